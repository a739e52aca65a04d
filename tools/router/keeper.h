/* tools/router/keeper.h - starts and ends the servers of single models, each a process of its own.
 *
 * The keeper is a process too: keeper_start forks it before the router has a thread or gives up its
 * rights (tools/server/isolate.h), so that the router itself can start no program. It takes orders by
 * the number of a command line that it was given at the start, and no other. What the servers write
 * to stderr it passes on, each line after the model's name.
 *
 * The keeper ends the servers when the router is gone, however that came about, and removes the
 * folder of their sockets (place.h). */
#ifndef LLMQ_TOOLS_ROUTER_KEEPER_H
#define LLMQ_TOOLS_ROUTER_KEEPER_H

#include "base/base.h"

typedef struct keeper keeper;

typedef struct {
    const char *name;    /* before its lines */
    char **argv;         /* the program and its arguments, ends with NULL */
    char **size_argv;    /* the same, to print the memory that it takes as JSON; KEEP_SIZE */
    double size_seconds; /* that this may take; 0: as long as it takes */
} keeper_row;

typedef enum {
    KEEP_START,
    KEEP_STOP, /* SIGTERM, and SIGKILL after `grace`; KEEP_ENDED follows */
    KEEP_SIZE, /* KEEP_SIZED follows */
} keeper_order;

typedef enum { KEEP_ENDED, KEEP_SIZED } keeper_what;
typedef struct {
    keeper_what what;
    int32_t row;
    int32_t code;   /* of its exit; minus the signal that ended it */
    uint64_t bytes; /* KEEP_SIZED with code 0: held_bytes */
    char text
        [400]; /* which signal ended it, else its last line on stderr without the program's name; "": none */
} keeper_event;

/* folder: of the sockets; removed at the end. rows: borrowed until the call returns. grace: seconds that a server
 * has to end. */
lq_status keeper_start(keeper **k, const keeper_row *rows, int n, const char *folder, double grace,
                       lq_err *err);
/* By one thread. LQ_EIO: the keeper is gone. */
lq_status keeper_ask(keeper *k, keeper_order o, int row, lq_err *err);
/* The next event, waiting at most `seconds` for it. False: none. *lost: the keeper is gone. */
bool keeper_next(keeper *k, double seconds, keeper_event *e, bool *lost);
void keeper_wake(keeper *k); /* any thread: keeper_next returns */
/* Ends all servers, and waits until they have ended. */
void keeper_close(keeper *k);

#endif
