/* runtime/http_early.c - requests that libmicrohttpd refuses before it tells us of them.
 *
 * It answers those with an HTML page of its own; in version 0.9.75 a Content-Length that is none is
 * answered with the head of that page twice. It has no hook for that, but it writes a line to its
 * log first, on the thread that serves the connection. So when it writes one (whatever the line
 * says) this looks at the requests of that thread whose head is still being read, and answers those
 * with such a length itself. Its page then finds the connection shut. What else it refuses (a line
 * that is no field, a version of HTTP that is none, chunks that are none) keeps its page, said
 * once. */
#include "runtime/http_int.h"

/* The status that the value of a Content-Length deserves; NULL: it is one, of 64 bits. */
static const char *fault_of(const char *text)
{
    uint64_t v = 0;
    size_t n = strspn(text, "0123456789");
    if (n == 0 || text[n]) return "400 Bad Request";
    for (size_t i = 0; i < n; i++) {
        unsigned d = (unsigned)(text[i] - '0');
        if (v > (UINT64_MAX - d) / 10) return "413 Content Too Large";
        v = v * 10 + d;
    }
    return NULL;
}

void http_early_message(void *server, const char *format, va_list ap)
{
    (void)format;
    (void)ap;
    http_server *s = server;
    pthread_mutex_lock(&s->mu);
    for (conn *c = s->conns; c; c = c->next) {
        if (c->cut || c->state != CONN_HEAD || !c->req || !pthread_equal(c->thread, pthread_self()))
            continue;
        const char *length =
            MHD_lookup_connection_value(c->req->mhd, MHD_HEADER_KIND, "Content-Length");
        const char *status = length ? fault_of(length) : NULL;
        if (status) http_answer_raw(s, c, status, "Content-Length: expected one number of bytes");
    }
    pthread_mutex_unlock(&s->mu);
}
