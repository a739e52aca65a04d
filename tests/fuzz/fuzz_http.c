/* tests/fuzz/fuzz_http.c - any bytes on a connection of the server, in two parts where they hold a
 * 0xff: what comes back is nothing or answers of HTTP, and the server answers the next as before.
 */
#include "runtime/http/http.h"
#include "tests/support/http_client.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void echo(void *app, http_req *r)
{
    size_t n;
    const char *body = http_body(r, &n), *tag = http_header(r, "X-Tag");
    (void)app;
    if (!body || !http_id(r)) abort();
    if (tag && *tag == 's') {
        http_stream_begin(r);
        (void)http_stream_event(r, NULL, "1", 1);
        http_stream_end(r);
    } else
        http_reply(r, 200, body, n, NULL);
}

static void rest(void *app, http_req *r)
{
    const char *s = http_rest(r);
    (void)app;
    if (!s || !*s) abort();
    http_error(r, 404, NULL, NULL, "no %.40s here", s);
}

static const http_route routes[] = {
    { "POST", "/echo", echo, HTTP_NOBODY, NULL, NULL },
    { "GET", "/x/*", rest, HTTP_NOBODY, NULL, NULL },
    { "DELETE", "/key", echo, HTTP_ADMIN, NULL, NULL },
};

static const char ask[] = "GET /x/y HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static http_server *server;
    static const char *const keys[] = { "k" };
    if (!server) {
        http_opts o = { .routes = routes,
                        .n_routes = LQ_COUNT(routes),
                        .max_body = 4096,
                        .threads = 1,
                        .header_seconds = 2,
                        .body_seconds = 2,
                        .idle_seconds = 2,
                        .keys = { keys, 1, NULL, 0 } };
        lq_err err;
        if (http_open(&server, &o, &err)) {
            fprintf(stderr, "%s\n", err.msg);
            abort();
        }
    }
    const int port = http_port(server), fd = dial(port);
    const uint8_t *cut = n ? memchr(data, 0xff, n) : NULL;
    const size_t first = cut ? (size_t)(cut - data) : n;
    (void)!send(fd, data, first, MSG_NOSIGNAL);
    if (cut) (void)!send(fd, cut + 1, n - first - 1, MSG_NOSIGNAL);
    shutdown(fd, SHUT_WR);
    const char *answer = hear(fd, NULL);
    close(fd);
    if (*answer && strncmp(answer, "HTTP/1.", 7) != 0) abort();
    if (strncmp(ask_port(port, ask), "HTTP/1.1 404 ", 13) != 0) abort();
    return 0;
}
