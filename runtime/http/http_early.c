/* runtime/http/http_early.c - requests that libmicrohttpd refuses before it tells us of them.
 *
 * It answers those with an HTML page of its own; version 0.9.75 sends the head of that page twice
 * where a Content-Length is none or a cookie is odd, and falls silent over a query of thousands of
 * parameters. It has no hook for that. But it tells us the request's line when it has that alone,
 * and it writes a line to its log before it refuses, on the thread that serves the connection. So
 * when it writes one (whatever the line says) this looks at the requests of that thread whose head
 * is still being read, and answers those that have such a field itself. Its page then finds the
 * connection shut. What else it refuses (a line that is no field, a version of HTTP that is none,
 * chunks that are none) keeps its page, said once. */
#include "runtime/http/http_int.h"

static size_t count(const char *text, const char *of)
{
    size_t n = 0;
    for (const char *p = text; *(p += strcspn(p, of)); p++)
        n++;
    return n;
}

/* The status that the value of a Content-Length deserves; NULL: it is one, of 64 bits. */
static const char *fault_of_length(const char *text)
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

/* Likewise of a Cookie. A last value of one quote is taken for a quoted one. */
static const char *fault_of_cookie(const char *text)
{
    size_t n = strlen(text);
    if (count(text, ";,") > HTTP_MAX_PARTS) return "431 Request Header Fields Too Large";
    return n >= 2 && strcmp(text + n - 2, "=\"") == 0 ? "400 Bad Request" : NULL;
}

void http_early_message(void *server, const char *format, va_list ap)
{
    static const struct {
        const char *field, *expected;
        const char *(*fault)(const char *text);
    } fields[] = {
        { "Content-Length", "Content-Length: expected one number of bytes", fault_of_length },
        { "Cookie", "Cookie: expected at most 1000 values, with whole quotes", fault_of_cookie },
    };
    (void)format;
    (void)ap;
    http_server *s = server;
    pthread_mutex_lock(&s->mu);
    for (conn *c = s->conns; c; c = c->next)
        for (size_t i = 0; i < LQ_COUNT(fields); i++) {
            if (c->cut || c->state != CONN_HEAD || !c->req ||
                !pthread_equal(c->thread, pthread_self()))
                break;
            const char *text =
                MHD_lookup_connection_value(c->req->mhd, MHD_HEADER_KIND, fields[i].field);
            const char *status = text ? fields[i].fault(text) : NULL;
            if (status) http_answer_raw(s, c, status, fields[i].expected);
        }
    pthread_mutex_unlock(&s->mu);
}

void http_early_uri(http_server *s, conn *c, const char *uri)
{
    if (count(uri, "&") <= HTTP_MAX_PARTS) return;
    pthread_mutex_lock(&s->mu);
    http_answer_raw(s, c, "414 URI Too Long", "the query has more than 1000 parameters");
    pthread_mutex_unlock(&s->mu);
}
