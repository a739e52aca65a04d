/* tools/router/router.h - `llmq serve` of several models: one server that listens, and for each loaded model a
 * server of its own (a process) that it passes requests on to, by their "model".
 *
 *     catalog.h   the models that there are
 *     keeper.h    the process that starts and ends their servers
 *     fleet.h     which of them are loaded, and who waits for one
 *     loras.h     the names of their adapters
 *     relay.h     a request there, its answer back
 *
 * Models' servers listen on Unix sockets in a folder that only this user can enter. */
#ifndef LLMQ_TOOLS_ROUTER_ROUTER_H
#define LLMQ_TOOLS_ROUTER_ROUTER_H

#include "tools/cli/opt.h"
#include "tools/server/serve_door.h"

typedef struct {
    const char *file; /* --models */
    int64_t max_loaded;
    size_t memory;
    double idle_seconds, wait_seconds;
} router_opts;
enum { ROUTER_N = 5 };
extern const opt_row router_rows[ROUTER_N];

typedef struct {
    const cmd_ctx *c; /* of `serve`: the servers of models get its options but those of the door */
    const void *opts;
    const door_opts *door;
    const router_opts *router;
    const char *folder; /* of models; NULL: router->file has them */
    iso_mode isolation;
    int64_t queue;             /* requests that may wait */
    const char *limits;        /* --machine-limits of the models' servers; "": each finds them */
    size_t files;              /* --file-store, and where it is */
    const char *files_dir;     /* NULL: in memory */
    int64_t responses;         /* --response-store, and where it is */
    const char *responses_dir; /* NULL: in a folder that goes at the end */
    int batch_window;          /* requests of a batch at the same time */
    double shutdown_seconds;
} router_job;

/* Is `path` a folder of models rather than a model? */
bool router_takes(const char *path);
/* Until a signal. LQ_EVALUE, LQ_EUSAGE: the list, or a model's options; those of http_open. */
lq_status router_run(const router_job *j, lq_err *err);

#endif
