/* tests/unit/test_http.c - the HTTP layer over real sockets: routing, keys, limits, replies from other
 * threads, event streams, clients that go away. The expected bytes are those of RFC 9110/9112, the
 * OpenAI error shape and the server-sent events of the HTML standard. */
#include "runtime/http/http.h"
#include "tests/support/check.h"
#include "tests/support/http_client.h"

#include <pthread.h>
#include <stdlib.h>

/* ---- a small application ---- */

typedef struct {
    atomic_int gone, destroyed, kept, left;
    http_req *_Atomic held; /* of /hold and /stream */
} app;

static void on_gone(void *user) { atomic_fetch_add(&((app *)user)->gone, 1); }
static void on_destroy(void *user) { atomic_fetch_add(&((app *)user)->destroyed, 1); }

static void get_hello(void *a, http_req *r)
{
    (void)a;
    http_reply(r, 200, "hello", 5, &(http_extra){ .type = "text/plain" });
}

static void post_echo(void *a, http_req *r)
{
    (void)a;
    size_t n;
    const char *p = http_body(r, &n);
    http_reply(r, 200, p, n, NULL);
}

static void get_rest(void *a, http_req *r)
{
    (void)a;
    http_reply(r, 200, http_rest(r), strlen(http_rest(r)), NULL);
}

static void *answer_later(void *arg)
{
    http_req *r = arg;
    nanosleep(&(struct timespec){ .tv_nsec = 20000000 }, NULL);
    http_reply(r, 200, "later", 5, NULL);
    http_release(r);
    return NULL;
}

static void get_later(void *a, http_req *r)
{
    (void)a;
    pthread_t t;
    http_keep(r, NULL, NULL, NULL);
    if (pthread_create(&t, NULL, answer_later, r) == 0) pthread_detach(t);
}

static void get_hold(void *a, http_req *r)
{
    app *ap = a;
    http_keep(r, on_gone, on_destroy, ap);
    atomic_fetch_add(&ap->kept, 1);
    atomic_store(&ap->held, r);
}

static void get_stream(void *a, http_req *r)
{
    get_hold(a, r);
    http_stream_begin(r);
}

/* Keeps the exchange when its client has gone, and that was seen or is soon. */
static void get_late(void *a, http_req *r)
{
    wait_for(&((app *)a)->left, 1);
    nanosleep(&(struct timespec){ .tv_nsec = 300000000 }, NULL);
    http_keep(r, on_gone, on_destroy, a);
    http_release(r);
}

/* A family of clients other than OpenAI's. */
static void short_error(jw *w, int status, const char *param, const char *code, const char *message)
{
    (void)status;
    (void)param;
    (void)code;
    jw_cstr(w, message);
}

static const http_style lines = { .error = short_error, .stream = "application/x-ndjson" };

static const http_route routes[] = {
    { "GET", "/hello", get_hello, HTTP_NOBODY, NULL, NULL },
    { "POST", "/echo", post_echo, HTTP_USER, NULL, NULL },
    { "GET", "/later", get_later, HTTP_NOBODY, NULL, NULL },
    { "GET", "/hold", get_hold, HTTP_NOBODY, NULL, NULL },
    { "GET", "/stream", get_stream, HTTP_NOBODY, NULL, NULL },
    { "GET", "/lines", get_stream, HTTP_USER, NULL, &lines },
    { "GET", "/rest/*", get_rest, HTTP_NOBODY, NULL, NULL },
    { "GET", "/late", get_late, HTTP_NOBODY, NULL, NULL },
};

/* ---- a client ---- */

static app the_app;
static http_server *server;

static void start(http_opts o)
{
    lq_err err;
    the_app = (app){ 0 };
    o.routes = routes;
    o.n_routes = LQ_COUNT(routes);
    o.app = &the_app;
    o.threads = 2;
    lq_status s = http_open(&server, &o, &err);
    CHECK(!s, "%s", err.msg);
    if (s) exit(1);
}

static int call(void) { return dial(http_port(server)); }
static const char *ask(const char *text) { return ask_port(http_port(server), text); }

/* ---- tests ---- */

#define END "Host: x\r\nConnection: close\r\n\r\n"
#define JSON "Content-Type: application/json\r\n"

TEST(requests_get_the_status_that_they_deserve)
{
    static const struct {
        const char *why, *request, *status, *also;
    } cases[] = {
        { "plain", "GET /hello HTTP/1.1\r\n" END, "200", "\r\n\r\nhello" },
        { "a query is not part of the path", "GET /hello?a=b HTTP/1.1\r\n" END, "200", "hello" },
        { "HEAD has no body", "HEAD /hello HTTP/1.1\r\n" END, "200", "Content-Length: 5" },
        { "escapes are decoded once", "GET /rest/a%2Fb%2520 HTTP/1.1\r\n" END, "200",
          "\r\n\r\na/b%20" },
        { "HTTP/1.0 needs no Host", "GET /hello HTTP/1.0\r\n\r\n", "200", "hello" },
        { "HTTP/1.1 needs one", "GET /hello HTTP/1.1\r\nConnection: close\r\n\r\n", "400", "" },
        { "unknown path", "GET /nope HTTP/1.1\r\nX-Api-Key: k2\r\n" END, "404",
          "\"type\":\"invalid_request_error\"" },
        { "unknown paths need a key too", "GET /nope HTTP/1.1\r\n" END, "401",
          "WWW-Authenticate: Bearer" },
        { "wrong method", "PUT /hello HTTP/1.1\r\n" END, "405", "Allow: GET, HEAD" },
        { "wrong method", "GET /echo HTTP/1.1\r\nX-Api-Key: k2\r\n" END, "405", "Allow: POST" },
        { "no key", "POST /echo HTTP/1.1\r\nContent-Length: 2\r\n" JSON END "{}", "401",
          "\"code\":\"invalid_api_key\"" },
        { "a prefix of a key",
          "POST /echo HTTP/1.1\r\nAuthorization: Bearer k\r\nContent-Length: 2\r\n" JSON END "{}",
          "401", "" },
        { "an empty key",
          "POST /echo HTTP/1.1\r\nAuthorization: Bearer \r\nContent-Length: 2\r\n" JSON END "{}",
          "401", "" },
        { "another scheme",
          "POST /echo HTTP/1.1\r\nAuthorization: Basic k1\r\nContent-Length: 2\r\n" JSON END "{}",
          "401", "" },
        { "first key",
          "POST /echo HTTP/1.1\r\nAuthorization: bearer k1\r\nContent-Length: 2\r\n" JSON END "{}",
          "200", "\r\n\r\n{}" },
        { "no way around", "POST //echo HTTP/1.1\r\nContent-Length: 2\r\n" JSON END "{}", "401",
          "" },
        { "no way around", "POST /x/../echo HTTP/1.1\r\nContent-Length: 2\r\n" JSON END "{}", "401",
          "" },
        { "an escaped letter is the same path",
          "POST /%65cho HTTP/1.1\r\nContent-Length: 2\r\n" JSON END "{}", "401", "" },
        { "no type", "POST /echo HTTP/1.1\r\nX-Api-Key: k1\r\nContent-Length: 2\r\n" END "{}",
          "415", "" },
        { "another type",
          "POST /echo HTTP/1.1\r\nX-Api-Key: k1\r\nContent-Type: text/plain\r\nContent-Length: "
          "2\r\n" END "{}",
          "415", "" },
        { "a parameter of the type",
          "POST /echo HTTP/1.1\r\nX-Api-Key: k1\r\nContent-Type: application/json; "
          "charset=utf-8\r\n"
          "Content-Length: 2\r\n" END "{}",
          "200", "{}" },
        { "packed bodies",
          "POST /echo HTTP/1.1\r\nX-Api-Key: k1\r\nContent-Encoding: gzip\r\nContent-Length: "
          "2\r\n" JSON END "{}",
          "415", "" },
        { "chunked body",
          "POST /echo HTTP/1.1\r\nX-Api-Key: k1\r\nTransfer-Encoding: chunked\r\n" JSON END
          "2\r\n{}\r\n3\r\nabc\r\n0\r\n\r\n",
          "200", "{}abc" },
        { "two lengths",
          "POST /echo HTTP/1.1\r\nX-Api-Key: k1\r\nTransfer-Encoding: chunked\r\nContent-Length: "
          "4\r\n" JSON END "2\r\n{}\r\n0\r\n\r\n",
          "400", "" },
        { "a body over the limit",
          "POST /echo HTTP/1.1\r\nX-Api-Key: k1\r\nContent-Length: 2000\r\n" JSON END, "413", "" },
        { "a chunked body over the limit",
          "POST /echo HTTP/1.1\r\nX-Api-Key: k1\r\nTransfer-Encoding: chunked\r\n" JSON END
          "3\r\nabc\r\n80\r\n0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
          "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef\r\n0\r\n\r\n",
          "413", "" },
        { "a length past 64 bits",
          "POST /echo HTTP/1.1\r\nX-Api-Key: k1\r\nContent-Length: 90000000000000000000\r\n" JSON
              END,
          "413", "" },
        { "a negative length",
          "POST /echo HTTP/1.1\r\nX-Api-Key: k1\r\nContent-Length: -1\r\n" JSON END, "400", "" },
        { "NUL in the path", "GET /hello%00x HTTP/1.1\r\n" END, "400", "malformed" },
        { "a broken escape", "GET /hello%4 HTTP/1.1\r\n" END, "400", "malformed" },
        { "a request id comes back", "GET /hello HTTP/1.1\r\nX-Request-Id: abc-1\r\n" END, "200",
          "X-Request-Id: abc-1\r\n" },
        { "an unclean one does not", "GET /hello HTTP/1.1\r\nX-Request-Id: a b\r\n" END, "200",
          "X-Request-Id: req-" },
        { "an answer from another thread", "GET /later HTTP/1.1\r\n" END, "200", "later" },
    };
    static const char *const keys[] = { "k1", "k2" };
    start((http_opts){ .keys = { .keys = keys, .n_keys = 2 }, .max_body = 128 });
    for (size_t i = 0; i < LQ_COUNT(cases); i++) {
        const char *a = ask(cases[i].request);
        CHECK(strlen(a) > 12 && strncmp(a + 9, cases[i].status, 3) == 0, "%s: wanted %s, got %.60s",
              cases[i].why, cases[i].status, a);
        CHECK(strstr(a, cases[i].also), "%s: no '%s' in %s", cases[i].why, cases[i].also, a);
    }
    http_close(server);
}

TEST(a_connection_is_used_again)
{
    start((http_opts){ 0 });
    int fd = call();
    say(fd, "GET /hello HTTP/1.1\r\nHost: x\r\n\r\n"
            "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Type: text/plain\r\nContent-Length: "
            "3\r\n\r\nabc"
            "GET /later HTTP/1.1\r\nHost: x\r\n\r\n");
    const char *a = hear(fd, "later");
    const char *one = strstr(a, "hello"), *two = strstr(a, " 415 "), *three = strstr(a, "later");
    CHECK(one && two && three && one < two && two < three, "pipelined: %s", a);
    close(fd);
    http_close(server);
}

TEST(a_route_has_the_style_of_its_clients)
{
    start((http_opts){ .ping_seconds = 0.05 });
    const char *a = ask("POST /lines HTTP/1.1\r\nContent-Length: 0\r\n" END);
    CHECK(strstr(a, "\r\n\r\n\"this path does not take that method\""), "%s", a);
    int fd = call();
    say(fd, "GET /lines HTTP/1.1\r\n" END);
    CHECK(strstr(hear(fd, "\r\n\r\n"), "Content-Type: application/x-ndjson\r\n"), "no stream");
    http_req *r = atomic_load(&the_app.held);
    nanosleep(&(struct timespec){ .tv_nsec = 200000000 }, NULL);
    CHECK(http_stream_write(r, "{}\n", 3), "refused");
    http_stream_end(r);
    http_release(r);
    a = hear(fd, NULL);
    CHECK(strstr(a, "\n{}\n") && !strstr(a, "data:") && !strstr(a, "ping"), "%s", a);
    close(fd);
    http_close(server);
}

TEST(a_stream_arrives_event_by_event)
{
    start((http_opts){ .ping_seconds = 0.3 });
    int fd = call();
    say(fd, "GET /stream HTTP/1.1\r\n" END);
    CHECK(strstr(hear(fd, "\r\n\r\n"), "text/event-stream; charset=utf-8"), "no stream");
    http_req *r = atomic_load(&the_app.held);
    CHECK(http_stream_event(r, NULL, "one", 3), "refused");
    CHECK(strstr(hear(fd, "\n\n"), "data: one\n\n"), "no first event");
    CHECK(strstr(hear(fd, ": ping\n\n"), ": ping"), "no comment in the silence");
    CHECK(http_stream_event(r, "second", "two", 3), "refused");
    http_stream_end(r);
    http_release(r);
    const char *a = hear(fd, NULL);
    CHECK(strstr(a, "event: second\ndata: two\n\n"), "%s", a);
    close(fd);
    CHECK(wait_for(&the_app.destroyed, 1), "the exchange was not freed");
    CHECK(atomic_load(&the_app.gone) == 0, "gone was called after the end");
    http_close(server);
}

TEST(a_client_that_leaves_is_noticed)
{
    static const struct {
        const char *why, *request;
        int how; /* -1: close, -2: reset, else shutdown(how) */
    } cases[] = {
        { "waiting, closed", "GET /hold HTTP/1.1\r\nHost: x\r\n\r\n", -1 },
        { "waiting, reset", "GET /hold HTTP/1.1\r\nHost: x\r\n\r\n", -2 },
        { "waiting, half-closed", "GET /hold HTTP/1.1\r\nHost: x\r\n\r\n", SHUT_WR },
        { "streaming, closed", "GET /stream HTTP/1.1\r\nHost: x\r\n\r\n", -1 },
        { "streaming, reset", "GET /stream HTTP/1.1\r\nHost: x\r\n\r\n", -2 },
    };
    start((http_opts){ 0 });
    for (size_t i = 0; i < LQ_COUNT(cases); i++) {
        the_app = (app){ 0 };
        int fd = call();
        say(fd, cases[i].request);
        CHECK(wait_for(&the_app.kept, 1), "%s: no request", cases[i].why);
        struct linger now = { .l_onoff = 1 };
        if (cases[i].how == -2) setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof now);
        if (cases[i].how >= 0)
            shutdown(fd, cases[i].how);
        else
            close(fd);
        CHECK(wait_for(&the_app.gone, 1), "%s: not noticed", cases[i].why);
        http_req *r = atomic_load(&the_app.held);
        CHECK(!http_stream_event(r, NULL, "x", 1), "%s: still open", cases[i].why);
        http_release(r);
        CHECK(wait_for(&the_app.destroyed, 1), "%s: not freed", cases[i].why);
        CHECK(atomic_load(&the_app.gone) == 1, "%s: told twice", cases[i].why);
        if (cases[i].how >= 0) close(fd);
    }
    CHECK(http_wait_idle(server, 400), "an exchange is left");
    http_close(server);
}

/* Two events, and no more once one is not taken. */
static void local_stream(void *user, http_req *r)
{
    bool *went_on = user;
    if (!http_can_stream(r)) {
        http_error(r, 400, NULL, NULL, "no streams");
        return;
    }
    http_stream_begin(r);
    *went_on = http_stream_event(r, "a", "1", 1) && http_stream_event(r, NULL, "2", 1);
    http_stream_end(r);
}

typedef struct {
    lq_buf text;
    size_t most;
    int done, status;
} local_taker;

static bool take_piece(void *user, const char *p, size_t n)
{
    local_taker *t = user;
    lq_buf_add(&t->text, p, n);
    return t->text.n < t->most;
}

static void take_end(void *user, int status, const char *body, size_t n)
{
    local_taker *t = user;
    lq_buf_add(&t->text, body, n);
    t->done++;
    t->status = status;
}

TEST(a_stream_goes_to_a_caller_without_a_connection)
{
    const struct {
        const char *why, *text;
        size_t most;
        bool streams, went_on;
        int status;
    } cases[] = {
        { "all of it", "event: a\ndata: 1\n\ndata: 2\n\n", 100, true, true, 200 },
        { "the first is not taken", "event: a\ndata: 1\n\n", 1, true, false, 200 },
        { "who takes no streams", NULL, 100, false, false, 400 },
    };
    for (size_t i = 0; i < LQ_COUNT(cases); i++) {
        bool went_on = false;
        local_taker t = { .most = cases[i].most };
        const http_route route = { .method = "POST", .path = "/", .handle = local_stream };
        const http_taker to = { take_end, cases[i].streams ? take_piece : NULL, &t };
        lq_err err;
        CHECK(!http_local(&route, 1, &went_on, NULL, "/", "", 0, &to, &err), "%s", err.msg);
        CHECK(t.done == 1 && t.status == cases[i].status && went_on == cases[i].went_on,
              "%s: %d ends, status %d", cases[i].why, t.done, t.status);
        CHECK(!cases[i].text || (t.text.n == strlen(cases[i].text) &&
                                 memcmp(t.text.p, cases[i].text, t.text.n) == 0),
              "%s: %.*s", cases[i].why, (int)t.text.n, t.text.p);
        lq_buf_free(&t.text);
    }
}

TEST(a_client_that_leaves_before_it_is_kept_is_noticed)
{
    start((http_opts){ 0 });
    int fd = call();
    say(fd, "GET /late HTTP/1.1\r\nHost: x\r\n\r\n");
    close(fd);
    atomic_store(&the_app.left, 1);
    CHECK(wait_for(&the_app.destroyed, 1), "the exchange was not freed");
    CHECK(atomic_load(&the_app.gone) == 1, "gone was called %d times", atomic_load(&the_app.gone));
    http_close(server);
}

TEST(a_slow_reader_is_cut)
{
    start((http_opts){ .max_backlog = 100000, .idle_seconds = 2 });
    int fd = call();
    say(fd, "GET /stream HTTP/1.1\r\nHost: x\r\n\r\n");
    CHECK(wait_for(&the_app.kept, 1), "no request");
    http_req *r = atomic_load(&the_app.held);
    static char big[50000];
    memset(big, 'a', sizeof big);
    int sent = 0;
    while (sent < 10000 && http_stream_event(r, NULL, big, sizeof big)) {
        nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
        sent++;
    }
    http_release(r);
    CHECK(sent < 10000, "the backlog has no bound");
    CHECK(http_wait_idle(server, 400), "it is still open");
    CHECK(wait_for(&the_app.destroyed, 1), "it was not freed");
    http_stats s;
    http_stats_get(server, &s);
    CHECK(s.overflows == 1, "%llu overflows", (unsigned long long)s.overflows);
    close(fd);
    http_close(server);
}

TEST(what_repeats_is_not_counted_against_a_reader)
{
    static char big[50000];
    const size_t most = 200000;
    start((http_opts){ .max_backlog = most, .idle_seconds = 5 });
    int fd = call();
    say(fd, "GET /stream HTTP/1.1\r\nHost: x\r\n\r\n");
    CHECK(wait_for(&the_app.kept, 1), "no request");
    http_req *r = atomic_load(&the_app.held);
    memset(big, 'a', sizeof big);
    for (int full = 0; full < 100; full++) { /* what the system holds is full too */
        for (; http_stream_room(r) >= sizeof big + 8; full = 0)
            CHECK(http_stream_event(r, NULL, big, sizeof big), "there was room");
        nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
    }
    for (int i = 0; i < 20; i++)
        CHECK(http_stream_repeat(r, "done", big, sizeof big), "repeat %d was refused", i);
    CHECK(http_stream_room(r) < sizeof big + 8, "they are room for others");
    bool more = true;
    for (int i = 0; i < 5 && more; i++)
        more = http_stream_event(r, NULL, big, sizeof big);
    CHECK(!more, "the backlog has no bound");
    http_release(r);
    CHECK(wait_for(&the_app.destroyed, 1), "it was not freed");
    close(fd);
    http_close(server);
}

TEST(an_event_larger_than_the_backlog_arrives)
{
    start((http_opts){ .max_backlog = 10 });
    int fd = call();
    say(fd, "GET /stream HTTP/1.1\r\n" END);
    CHECK(wait_for(&the_app.kept, 1), "no request");
    http_req *r = atomic_load(&the_app.held);
    CHECK(http_stream_room(r) == SIZE_MAX, "something waits");
    CHECK(http_stream_event(r, NULL, "more than ten bytes", 19), "refused");
    http_stream_end(r);
    http_release(r);
    const char *a = hear(fd, NULL);
    CHECK(strstr(a, "data: more than ten bytes\n\n"), "%s", a);
    close(fd);
    CHECK(wait_for(&the_app.destroyed, 1), "the exchange was not freed");
    http_close(server);
}

TEST(trickling_requests_are_cut)
{
    static const struct {
        const char *why, *begin;
    } cases[] = { { "slow head", "GET /hello HTTP/1.1\r\nHost: " },
                  { "slow body",
                    "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n" JSON "\r\n{" } };
    start((http_opts){ .header_seconds = 0.3, .body_seconds = 0.3 });
    for (size_t i = 0; i < LQ_COUNT(cases); i++) {
        bool cut = false;
        for (int tries = 0; tries < 20 && !cut;
             tries++) { /* it may be too slow for its first word */
            int fd = call();
            say(fd, cases[i].begin);
            cut = strstr(hear(fd, NULL), " 408 ") != NULL;
            close(fd);
        }
        CHECK(cut, "%s", cases[i].why);
    }
    http_close(server);
}

TEST(closing_wakes_who_sleeps)
{
    start((http_opts){ 0 });
    int a = call(), b = call(), c = call();
    say(a, "GET /hold HTTP/1.1\r\nHost: x\r\n\r\n");
    CHECK(wait_for(&the_app.kept, 1), "no request");
    http_req *r = atomic_load(&the_app.held);
    say(b, "GET /stream HTTP/1.1\r\nHost: x\r\n\r\n");
    CHECK(wait_for(&the_app.kept, 2), "no request");
    http_req *q = atomic_load(&the_app.held);
    say(c, "GET /hel");
    http_release(r);
    http_release(q);
    http_close(server);
    CHECK(the_app.gone == 2 && the_app.destroyed == 2, "gone %d, destroyed %d", the_app.gone,
          the_app.destroyed);
    close(a);
    close(b);
    close(c);
}

TEST(a_port_in_use_is_one_clear_error)
{
    start((http_opts){ 0 });
    http_server *second;
    lq_err err;
    http_opts o = { .port = http_port(server), .routes = routes, .n_routes = 1 };
    lq_status s = http_open(&second, &o, &err);
    CHECK(s == LQ_EIO && strstr(err.msg, "the port is in use") && !second, "%s", err.msg);
    o = (http_opts){ .host = "256.0.0.1", .routes = routes, .n_routes = 1 };
    CHECK(http_open(&second, &o, &err) == LQ_EIO, "%s", err.msg);
    http_close(server);
}

TEST(json_strings_hold_any_bytes)
{
    static const struct {
        const char *in;
        size_t n;
        const char *out;
    } cases[] = {
        { "a\"b\\c/", 6, "\"a\\\"b\\\\c/\"" },
        { "\0\x01\x1f\x7f\n\t\r\b\f", 9, "\"\\u0000\\u0001\\u001f\x7f\\n\\t\\r\\b\\f\"" },
        { "\xc3\xa9\xe6\xbc\xa2\xf0\x9f\x91\xa9", 9, "\"\xc3\xa9\xe6\xbc\xa2\xf0\x9f\x91\xa9\"" },
        /* Unicode 15, tables 3-8 to 3-11: one U+FFFD per maximal subpart */
        { "\xc0\xaf\xe0\x80\xbf", 5,
          "\"\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\"" },
        { "\xed\xa0\x80", 3, "\"\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\"" },
        { "\xe1\x80\xe2\xf0\x91\x92\xf1\xbf\x41", 9,
          "\"\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"
          "A\"" },
        { "\xf0\x9f\x91", 3, "\"\xef\xbf\xbd\"" },
        { "\xf4\x90\x80\x80", 4, "\"\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\"" },
    };
    for (size_t i = 0; i < LQ_COUNT(cases); i++) {
        jw w = { 0 };
        jw_str(&w, cases[i].in, cases[i].n);
        CHECK(w.b.n == strlen(cases[i].out) && memcmp(w.b.p, cases[i].out, w.b.n) == 0,
              "case %zu: %.*s", i, (int)w.b.n, w.b.p);
        jw_free(&w);
    }
    jw w = { 0 };
    jw_open(&w, '{');
    jw_key(&w, "a");
    jw_open(&w, '[');
    jw_i64(&w, INT64_MIN);
    jw_f64(&w, -0.25);
    jw_f64(&w, (double)NAN);
    jw_json(&w, "", 0);
    jw_open(&w, '[');
    jw_close(&w, ']');
    jw_close(&w, ']');
    jw_key(&w, "b");
    jw_cstr(&w, NULL);
    jw_close(&w, '}');
    static const char want[] = "{\"a\":[-9223372036854775808,-0.25,null,[]],\"b\":null}";
    CHECK(w.b.n == sizeof want - 1 && memcmp(w.b.p, want, w.b.n) == 0, "%.*s", (int)w.b.n, w.b.p);
    jw_free(&w);
}

int main(int argc, char **argv)
{
    RUN(json_strings_hold_any_bytes);
    RUN(requests_get_the_status_that_they_deserve);
    RUN(a_connection_is_used_again);
    RUN(a_route_has_the_style_of_its_clients);
    RUN(a_stream_arrives_event_by_event);
    RUN(a_client_that_leaves_is_noticed);
    RUN(a_stream_goes_to_a_caller_without_a_connection);
    RUN(a_client_that_leaves_before_it_is_kept_is_noticed);
    RUN(a_slow_reader_is_cut);
    RUN(what_repeats_is_not_counted_against_a_reader);
    RUN(an_event_larger_than_the_backlog_arrives);
    RUN(trickling_requests_are_cut);
    RUN(closing_wakes_who_sleeps);
    RUN(a_port_in_use_is_one_clear_error);
    return check_end();
}
