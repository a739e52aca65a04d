/* tools/router/relay.h - passes requests on to the servers of single models, which listen on Unix sockets, and
 * their answers back, many at a time on one thread (libcurl).
 *
 * A stream goes on piece by piece, anything else as a whole. Where the server breaks off before its
 * answer begins, done() learns it and answers; in the middle of a stream the client's connection is
 * cut, since what it has would look whole. */
#ifndef LLMQ_TOOLS_ROUTER_RELAY_H
#define LLMQ_TOOLS_ROUTER_RELAY_H

#include "runtime/http/http.h"

typedef struct relay relay;
enum { RELAY_NOBODY = -1 };

/* All strings are copied. */
typedef struct {
    const char *unix_path; /* where the server listens */
    const char *method, *path;
    const char *accept;      /* the client's field; NULL: none */
    http_req *r;             /* kept until done(); its body is what is sent by a POST */
    const char *type;        /* of that body */
    const atomic_bool *gone; /* true: its client is; looked at until done() */
    /* Before a whole answer of this status goes to the client, on the relay's thread; NULL: nothing. */
    void (*answers)(void *user, int status);
    /* Once, on the relay's thread. why: there was no answer, and the exchange has none yet (RELAY_NOBODY: nobody
     * listens there); NULL: it has its answer, of that HTTP status, or (0) its client is gone. */
    void (*done)(void *user, int status, const char *why);
    void *user;
} relay_call;

lq_status relay_open(relay **y, lq_err *err);
/* Breaks off what still runs: done() is called with the reason. */
void relay_close(relay *y);
/* Any thread. LQ_ENOMEM: done() is not called. */
lq_status relay_send(relay *y, const relay_call *c, lq_err *err);
/* Any thread: a call's `gone` has become true. done() still comes, if it has not. */
void relay_wake(relay *y);

/* One request to its end, at most `seconds`; on the caller's thread. json: its body; NULL: none. *status 0: no
 * answer. What is answered is added to `body`. */
void relay_ask(const char *unix_path, const char *method, const char *path, const char *json,
               double seconds, int *status, lq_buf *body);

#endif
