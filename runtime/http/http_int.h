/* runtime/http/http_int.h - what the files of the HTTP layer share; nothing else includes it.
 *
 * Two kinds of objects. A conn is a TCP connection: it exists from accept to close and is known to
 * the watcher. An http_req is one exchange on it. Locks: server.mu guards the list of conns and
 * their fields; req.mu guards the answer. A thread holds at most one of them, and calls nothing of
 * the application while it holds either. */
#ifndef LLMQ_RUNTIME_HTTP_HTTP_INT_H
#define LLMQ_RUNTIME_HTTP_HTTP_INT_H

#include "base/hangup.h"
#include "runtime/http/http.h"

#include <microhttpd.h>
#include <pthread.h>
#include <stdarg.h>

/* What a connection is doing; each state but BUSY has a limit of time. */
typedef enum { CONN_IDLE, CONN_HEAD, CONN_BODY, CONN_BUSY } conn_state;

typedef struct conn conn;
struct conn {
    conn *prev, *next;
    uint64_t id; /* names it to the watcher: pointers may be reused */
    int fd;
    conn_state state;
    double since; /* when it entered the state */
    double left;  /* when its client had hung up; 0: it has not */
    bool cut;     /* the watcher has answered and shut it */
    http_req *req;
    pthread_t thread; /* of libmicrohttpd's that serves it, once it has a request */
};

typedef enum { ANS_NONE, ANS_WHOLE, ANS_STREAM } answer_kind;
typedef enum { REQ_NEW, REQ_BODY, REQ_HANDLED } req_phase;

struct http_req {
    http_server *s;      /* NULL: there is no connection, `to` takes the answer (http_local.c) */
    http_server *counts; /* what bounds its memory: s, http_local's, or NULL */
    http_taker to;
    atomic_int refs;

    /* used by the connection's thread alone */
    conn *c;
    req_phase phase;
    const http_route *route;
    const http_style *style;  /* of the routes with this path; NULL: none */
    char path[HTTP_PATH_MAX]; /* decoded; empty: malformed */
    char method[16];
    char id[HTTP_ID_MAX + 1];
    double t0;
    lq_buf body;
    size_t counted; /* of counts->bodies */
    bool discard;   /* the body is read and forgotten */
    size_t discarded;
    bool closing; /* the answer ends the connection */

    pthread_mutex_t mu;
    struct MHD_Connection *mhd; /* NULL once the exchange is over */
    bool asleep;                /* suspended: the answer resumes it */
    bool dead;                  /* client gone, or cut */
    bool kept, told;            /* gone was called */
    void (*gone)(void *user);
    void (*destroy)(void *user);
    void *user;
    answer_kind answer;
    int status;
    char *type;
    char *headers[HTTP_HEADERS_MAX];
    size_t n_headers;
    lq_buf out; /* the whole body, or what of the stream is not yet read: from out_off on */
    size_t out_off;
    size_t repeated; /* of what waits at most so many bytes are of http_stream_repeat */
    bool ended;      /* nothing will be added to out */
    double written;  /* time of the last event or ping */
};

typedef struct http_tls http_tls; /* runtime/http/http_tls.c */

struct http_server {
    atomic_int refs; /* http_close and every exchange: who answers late finds it still there */
    http_opts o;
    http_keys *keys;
    struct MHD_Daemon *daemon;
    int listen_fd, port;
    bool bound_unix; /* the socket file is ours */
    atomic_bool draining;
    bool closing; /* under mu: no more connections */
    atomic_size_t bodies;
    atomic_ullong n_requests, n_unauthorized, n_timeouts, n_gone, n_overflows;

    pthread_mutex_t mu;
    pthread_cond_t idle; /* n_open became 0 */
    conn *conns;
    uint64_t next_id;
    int64_t n_conns, n_open;
    http_tls *tls; /* the latest of http_set_tls; NULL: as it began */

    hangup ends; /* the watcher's */
    pthread_t watcher;
    bool watching;
};

/* http_exchange.c: libmicrohttpd begins to serve listen_fd, and calls the handlers. */
lq_status http_exchange_start(http_server *s, lq_err *err);

/* http_req.c */
/* What a path has in the place of the route's star, "" where there is none; NULL: it is not that
 * route's. Paths that begin with /v1 may leave it out. */
const char *http_route_rest(const http_route *t, const char *path);
void http_server_unref(http_server *s);
http_req *http_req_new(http_server *s, conn *c);
void http_req_ref(http_req *r);
void http_req_wake(http_req *r); /* under mu: something is to be sent */
/* Counts n bytes of this exchange in server.bodies until its end; false: they are too many, and 503
 * is the answer. */
bool http_req_count(http_req *r, size_t n);
void http_req_unref(http_req *r);
/* Calls the route's handler; halves of surrogate pairs in a JSON body are U+FFFD (js_mend). */
void http_req_handle(http_req *r, void *app);
/* The client is gone, or is to be cut: wakes the connection so that it closes, tells the keeper. */
void http_req_cut(http_req *r);
/* http_style.c */
const http_style *http_req_style(const http_req *r);
/* http_answer.c. The connection's side of an answer: queues it, or puts the connection to sleep. */
enum MHD_Result http_req_advance(http_req *r, struct MHD_Connection *mhd);
/* http_cors.c: the request's origin if its pages may call, else NULL; the headers that an answer to
 * such a page has. */
const char *http_cors_origin(const http_server *s, struct MHD_Connection *mhd);
/* The fields that such a page may send: those that its preflight asks for, if they are a list of
 * names of at most HTTP_CORS_FIELDS_MAX bytes, else those that this server reads. */
const char *http_cors_fields(struct MHD_Connection *mhd);
void http_cors_headers(const http_server *s, struct MHD_Connection *mhd, struct MHD_Response *m);

/* http_host.c: whether a request with this Host field (NULL: without one) is for this server. */
bool http_host_served(const http_server *s, const char *host);

/* http_early.c: what libmicrohttpd refuses by itself is answered in our words where that can be. */
void http_early_message(void *server, const char *format, va_list ap); /* its logger */
void http_early_uri(http_server *s, conn *c, const char *uri); /* when it knows a request's line */

void http_tls_give(http_server *s, struct MHD_Connection *mhd); /* to a connection that begins */
void http_tls_free(http_server *s);

/* Under server.mu. An error, written past libmicrohttpd, which has written nothing on this
 * connection since its last answer; the connection is shut. False: the client reads nothing, or
 * speaks TLS: it learns it from the close. */
bool http_answer_raw(http_server *s, conn *c, const char *status, const char *message);

lq_status http_watch_start(http_server *s, lq_err *err);
void http_watch_stop(http_server *s);
/* Tell when this client hangs up, once, until its descriptor is closed; and once more, also where
 * it has been told before (its request has arrived: it waits for an answer now). */
void http_watch_add(http_server *s, const conn *c);
void http_watch_again(http_server *s, const conn *c);

#endif
