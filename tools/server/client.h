/* tools/server/client.h - requests to an OpenAI-compatible server, many at a time on one thread (libcurl).
 *
 *     client_open    the server's address and key
 *     client_send    begins a request
 *     client_step    moves all of them along; their callbacks run inside it
 *     client_close   breaks off what still runs, without callbacks
 *
 * An answer is either a stream of server-sent events, each handed over as it arrives, or a whole
 * body. Nothing is tried twice. */
#ifndef LLMQ_TOOLS_SERVER_CLIENT_H
#define LLMQ_TOOLS_SERVER_CLIENT_H

#include "base/json_write.h"

typedef struct client client;

typedef struct {
    const char *url;       /* "http://host:port"; a "/v1" at its end is left out */
    const char *unix_path; /* connect to this Unix socket; url still names the host; NULL */
    const char *key;       /* NULL: none */
    bool insecure;         /* believe any certificate */
    double idle_seconds;   /* an answer silent for so long is broken off; 0: 300 */
} client_opts;

/* LQ_EUSAGE: url is no http or https address. */
lq_status client_open(client **c, const client_opts *o, lq_err *err);
void client_close(client *c);

typedef struct {
    int status;       /* HTTP's; 0: there was no answer, body says why */
    bool whole;       /* the body is there; of a stream: [DONE] came */
    bool cancelled;   /* by client_cancel */
    const char *body; /* n bytes and a NUL; of a stream that began well: empty */
    size_t n;
} client_answer;

typedef struct {
    const char *path; /* "/v1/models" */
    const char *json; /* NULL: GET, else the body of a POST; copied */
    /* data of one event, NUL-terminated; NULL: none is expected. False cuts the connection. */
    bool (*event)(void *user, const char *data, size_t n);
    void (*done)(void *user, const client_answer *a); /* once; may send the next one */
    void *user;
} client_request;
lq_status client_send(client *c, const client_request *r, lq_err *err);
/* Waits for something to happen, at most `seconds`, and lets it. Returns how many still run. */
int client_step(client *c, double seconds);
void client_cancel(client *c); /* everything; done() is called in the next step */

/* One request to its end. The answer's body is malloc'd into *body. LQ_EIO: none, or not status
 * 200; err has the server's words. */
lq_status client_ask(client *c, const char *path, const char *json, char **body, size_t *n,
                     lq_err *err);
/* What an answer that is no success says: the server's message, or the status. */
void client_say(const client_answer *a, lq_err *err);
/* The name of the first model that the server has; malloc'd. */
lq_status client_model(client *c, char **name, lq_err *err);

#endif
