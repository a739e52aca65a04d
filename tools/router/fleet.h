/* tools/router/fleet.h - which models are loaded: each asked for one is started in a process of its own, at most
 * so many and so much memory at a time, and the one that was used least recently goes for another.
 *
 *     OFF -> SIZING -> STARTING -> READY -> LEAVING -> STOPPING -> OFF
 *
 * Who wants a model asks for it (fleet_ask) and is told when it is ready; until fleet_release it is not
 * unloaded. Who waits is served in the order of arrival: a model that must go for another takes no new
 * requests (LEAVING), so that a busy one does not keep the others out, and ends when those that run have
 * ended.
 *
 * One thread calls fleet_step over and over; all else may be called by any thread. */
#ifndef LLMQ_TOOLS_ROUTER_FLEET_H
#define LLMQ_TOOLS_ROUTER_FLEET_H

#include "base/json_write.h"
#include "tools/router/catalog.h"
#include "tools/router/keeper.h"
#include "tools/router/loras.h"

typedef enum {
    FLEET_OFF,
    FLEET_SIZING,
    FLEET_STARTING,
    FLEET_READY,
    FLEET_LEAVING,
    FLEET_STOPPING
} fleet_state;

typedef struct {
    int max_loaded;      /* 0: as many as the memory holds */
    uint64_t max_bytes;  /* of all that are loaded, as `serve --dry-run` counts; 0: not bounded */
    double idle_seconds; /* without a request, after which a model is unloaded; 0: never */
    double wait_seconds; /* that a request may wait for its model */
    int max_waiting;
} fleet_opts;

typedef struct fleet fleet;
/* status: 0: the model is ready and held. Else HTTP's, with the reason in words. */
typedef void (*fleet_ready)(void *user, int status, const char *code, const char *why);

/* c, l, k and folder (of the sockets, whose names are the models' numbers) are borrowed until fleet_close. */
lq_status fleet_open(fleet **f, const catalog *c, loras *l, keeper *k, const char *folder,
                     const fleet_opts *o, lq_err *err);
void fleet_close(fleet *f); /* who still waits is told that the server ends */
/* Moves everything along, and waits at most `seconds` for something to happen. LQ_EIO: no model can be started
 * any more. */
lq_status fleet_step(fleet *f, double seconds, lq_err *err);

/* ready() is called once, maybe at once and on this thread. NULL: nobody waits, and the model is not held. */
void fleet_ask(fleet *f, int model, fleet_ready ready, void *user);
/* True: it still waited, and ready() is not called any more. */
bool fleet_forget(fleet *f, const void *user);
/* Held as after ready(), where it is loaded already; to look at it, which is no use of it (--idle-unload). */
bool fleet_hold(fleet *f, int model);
void fleet_release(fleet *f, int model, bool used);
/* Its server broke off an answer: who comes now waits until it is known whether it lives. */
void fleet_doubt(fleet *f, int model);
void fleet_unload(fleet *f, int model); /* when what runs has ended; a start ends at once */
/* The loaded model that was used last, or -1; *n: how many are loaded. */
int fleet_latest(fleet *f, int *n);
void fleet_socket(const fleet *f, int model, char *out, size_t n); /* its path */

int64_t fleet_waiting(fleet *f);
int64_t fleet_running(fleet *f);
/* What /v1/models has of a model, as its own server says it where it is loaded. created: of an adapter of the
 * model, which this name is; 0: it is one of the model's own. anthropic: for a client of that API. */
void fleet_write_card(fleet *f, int model, const char *name, int64_t created, bool anthropic,
                      jw *w);
fleet_state fleet_state_of(fleet *f, int model);
uint64_t fleet_bytes(fleet *f, int model); /* of memory, as forecast; 0: not known yet */
void fleet_metrics(fleet *f, lq_buf *w);

#endif
