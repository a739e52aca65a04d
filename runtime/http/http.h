/* runtime/http/http.h - HTTP/1.1 on libmicrohttpd: listening, a routing table, limits, keys, and
 * replies that are written whole or as a stream of server-sent events, from any thread.
 *
 * An exchange (http_req) begins when the request's body has arrived; its route's handler is called
 * on one of the server's threads and has three ways to answer:
 *
 *     http_reply        at once, or later from any thread if the handler kept the exchange
 *     http_stream_begin events follow with http_stream_write from any thread, then http_stream_end
 *     (neither)         the connection sleeps until one of them is called
 *
 * A handler that answers later calls http_keep first and http_release when done. libmicrohttpd does
 * not notice that the client of a sleeping connection has gone: a watcher thread polls those
 * sockets for POLLRDHUP (a client that closes, or half-closes, while it waits has gone) and calls
 * `gone`.
 *
 * Everything is bounded: connections, header bytes, body bytes of a request and of all requests,
 * the time for headers and for a body, the bytes of a stream that its client has not read, and the
 * time that a client may read nothing.
 *
 * Errors have the shape of their route's clients; where no route is meant, OpenAI's:
 * {"error":{"message","type","param","code"}}. */
#ifndef LLMQ_RUNTIME_HTTP_HTTP_H
#define LLMQ_RUNTIME_HTTP_HTTP_H

#include "base/hash.h"
#include "base/json_write.h"
#include "runtime/http/http_keys.h"

typedef struct http_server http_server;
typedef struct http_req http_req;

/* What a family of clients expects of errors and streams. */
typedef struct {
    /* An error's whole body. param and code may be NULL. */
    void (*error)(jw *w, int status, const char *param, const char *code, const char *message);
    const char *stream; /* the type of a stream; NULL: text/event-stream; charset=utf-8 */
    const char *ping;   /* what a silent stream gets; NULL: nothing */
    const char *takes;  /* the type of a POST's body; NULL: application/json */
    bool untyped;       /* which a client may leave out, or call a form as `curl -d` does */
    bool bodied;        /* a DELETE's body is read, as a POST's */
    const char
        *id; /* the field where they look for the request's id, beside X-Request-Id; NULL: none */
} http_style;
extern const http_style http_openai;
extern const http_style http_form; /* OpenAI's, of what is sent as a form */
extern const http_style http_bare; /* OpenAI's, of what needs no body */

typedef struct {
    const char *method; /* "GET" (also answers HEAD), "POST" (takes application/json), "DELETE" */
    const char *path;   /* exact; or, ending in slash-star, with one or more bytes after it */
    void (*handle)(void *app, http_req *r);
    http_role need;          /* whose key, where there are keys; HTTP_NOBODY: none is needed */
    const char *text;        /* what it is for, in one line; NULL in tests */
    const http_style *style; /* NULL: http_openai */
} http_route;

typedef struct {
    const char *method, *path, *request_id; /* bytes below 0x20 are gone from them */
    int status;                             /* 499: the client had gone */
    double seconds;
    size_t bytes; /* of the request's body */
} http_log_line;

typedef struct {
    const char *host;         /* NULL: 127.0.0.1 */
    int port;                 /* 0: any free one, see http_port */
    const char *unix_path;    /* listen on this Unix socket instead; NULL: on host and port */
    const http_route *routes; /* borrowed */
    size_t n_routes;
    /* TLS: a chain of certificates and its private key, PEM texts, borrowed until http_close; NULL:
     * plain HTTP. TLS 1.2 and 1.3. */
    const char *tls_cert, *tls_key;
    http_key_list keys;         /* copied; none: no key is asked for */
    const char *const *origins; /* whose pages may call (CORS), "*": all; borrowed */
    int n_origins;
    bool check_host; /* refuse what is sent to names but these, `host` and localhost: http_host.c */
    const char *const *hosts; /* "*": any; borrowed */
    int n_hosts;
    size_t max_body;       /* 0: 32 MiB */
    size_t max_bodies;     /* of all requests together, with what they claim; 0: 256 MiB */
    size_t max_claim;      /* of one request, see http_claim; 0: 3 times max_body */
    size_t max_backlog;    /* bytes of a stream not yet read; 0: 1 MiB */
    int max_connections;   /* 0: 4096; never more than open files allow */
    int threads;           /* 0: 4 */
    double header_seconds; /* 0: 10 */
    double body_seconds;   /* 0: 60 */
    double idle_seconds;   /* keep-alive, and a client that reads nothing; 0: 30 */
    double ping_seconds;   /* a stream silent for so long gets http_style.ping; 0: 15 */
    void (*log)(void *app, const http_log_line *l);
    void (*tick)(void *app); /* several times a second, on a thread of the server; NULL: none */
    void *app;
} http_opts;

/* Most bytes that a server with these options holds: for its connections (a TLS session's come on
 * top), for bodies, and for what `exchanges` at once have not yet read of their streams. */
typedef struct {
    size_t connections, bodies, streams;
} http_need;
void http_defaults(http_opts *o); /* what is 0 gets its value */
void http_need_of(http_need *n, const http_opts *o, int64_t exchanges);
/* LQ_EIO: the address is in use, unknown or forbidden; err names host and port. LQ_EFORMAT: TLS was
 * asked for, and does not start with this certificate and key. */
lq_status http_open(http_server **s, const http_opts *o, lq_err *err);
/* Cuts what is open, stops the threads. Who kept an exchange may still answer (in vain) and must
 * release it. */
void http_close(http_server *s);
int http_port(const http_server *s);
lq_status http_set_keys(http_server *s, const http_key_list *l, lq_err *err); /* at any time */
/* A new certificate and key for connections that begin from now on, at any time; texts as tls_cert
 * and tls_key, not kept. Only where there was one at the start. LQ_EFORMAT: what was stays. */
lq_status http_set_tls(http_server *s, const char *cert, const char *key, lq_err *err);
/* From now on every answer closes its connection. */
void http_drain(http_server *s);
/* True when no exchange is open, within `seconds`. */
bool http_wait_idle(http_server *s, double seconds);

typedef struct {
    uint64_t requests, unauthorized, timeouts, gone, overflows; /* since the start */
    int64_t connections, open;                                  /* now */
} http_stats;
void http_stats_get(http_server *s, http_stats *out);

/* The routes of the server that has this request; none without a connection. */
const http_route *http_routes(const http_req *r, size_t *n);

/* ---- without a connection ---- */
typedef void (*http_done)(void *user, int status, const char *body, size_t n);
/* Who takes an answer, on whatever thread gives it. */
typedef struct {
    http_done done; /* once: the whole answer; behind a stream 200 and no bytes */
    /* What a stream writes, as http_stream_write has it and returns it; NULL: only whole answers are taken. */
    bool (*event)(void *user, const char *p, size_t n);
    void *user;
} http_taker;
/* Calls the handler of the POST route `path` with this body; the answer goes to `to`. counts: the server whose max_bodies bounds its memory too; NULL: it is
 * the caller's affair. LQ_EVALUE: there is no such route; LQ_ENOMEM (then done is not called). */
lq_status http_local(const http_route *routes, size_t n_routes, void *app, http_server *counts,
                     const char *path, const char *body, size_t n, const http_taker *to,
                     lq_err *err);

/* ---- inside a handler ---- */
bool http_can_stream(const http_req *r); /* false: only a whole answer can be given */
#define HTTP_WHOLE_ONLY "stream: a batch has whole answers only" /* is why */
const char *http_body(const http_req *r, size_t *n); /* not NULL; valid as long as the exchange */
const char *http_path(const http_req *r);            /* decoded, without the query */
const char *http_rest(const http_req *r); /* what stood for the star of the route, decoded */
const char *http_id(const http_req *r);   /* X-Request-Id: the client's if it was clean */
const char *http_header(const http_req *r, const char *name); /* only inside the handler */
/* A parameter of the query, decoded; NULL: not there. Only inside the handler. */
const char *http_query(const http_req *r, const char *name);
/* The same for requests with the same key, and for all where the server asks for none. Only inside
 * the handler. */
lq_hash http_client(const http_req *r);
double http_age(const http_req *r); /* seconds since the request's head arrived */
/* Memory that the exchange is about to take besides its body, counted with the bodies until its
 * end. False: refused and answered, with 413 where it is more than one may have, with 503 where all
 * together have too much. Only inside the handler. */
bool http_claim(http_req *r, size_t bytes);
/* Likewise for what its answer takes; not answered when refused. By one thread at a time. */
bool http_hold(http_req *r, size_t bytes);

/* ---- from any thread ---- */
/* Keep the exchange beyond the handler; `user` belongs to it from now on. gone(user) is called at
 * most once, on a server thread, when the client went away before the answer was complete; it may
 * come while another thread answers, and must be quick. destroy(user) is called once, at the very
 * end, when gone cannot be called any more. */
void http_keep(http_req *r, void (*gone)(void *user), void (*destroy)(void *user), void *user);
void http_release(http_req *r); /* the keeper is done: it touches neither r nor user again */

/* The whole answer: status, type, body (copied). headers: "Name: value" strings or NULL; n of them.
 * The first answer counts, later ones are dropped. */
typedef struct {
    const char *type; /* NULL: application/json */
    const char *const *headers;
    size_t n_headers;
} http_extra;
void http_reply(http_req *r, int status, const void *body, size_t n, const http_extra *x);
/* An error in the shape of the route's style. param and code may be NULL. 401 adds WWW-Authenticate, 503 and 429 add Retry-After, and an error that the same request would
 * meet again tells the client not to retry. */
void http_error(http_req *r, int status, const char *param, const char *code, const char *fmt, ...)
#if defined(__GNUC__)
    __attribute__((format(printf, 5, 6)))
#endif
    ;

/* The request's own client is of another family than those of its route: its error has that shape. Only inside the
 * handler. */
void http_set_style(http_req *r, const http_style *style);

/* Head of an event stream now, events after it. Writes are taken before it as well. */
void http_stream_begin(http_req *r);
/* p[n] as it is. False: the client has gone or reads too slowly (its backlog is full and the
 * connection is cut); stop producing. p NULL: there was no memory for it; the connection is cut,
 * since a stream that goes on without it would look whole. */
bool http_stream_write(http_req *r, const char *p, size_t n);
/* Likewise one event: "data: " + p[n] + blank line, after "event: " + name where there is one. */
bool http_stream_event(http_req *r, const char *name, const char *p, size_t n);
/* Likewise an event that says once more what the client was told in pieces, as the last of an answer do: up to
 * HTTP_REPEAT_MAX backlogs of these, until all is read, are not counted against a client. */
enum { HTTP_REPEAT_MAX = 64 };
bool http_stream_repeat(http_req *r, const char *name, const char *p, size_t n);
void http_stream_end(http_req *r);
/* Bytes that a write may have now, before the client counts as too slow; SIZE_MAX where nothing waits to be read. */
size_t http_stream_room(http_req *r);

#endif
