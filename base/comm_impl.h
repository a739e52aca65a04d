/* base/comm_impl.h - what a way to exchange bytes is: comm.c and comm_open.c are above, comm_mpi.c and comm_sock.c below. */
#ifndef LLMQ_BASE_COMM_IMPL_H
#define LLMQ_BASE_COMM_IMPL_H

#include <pthread.h>

#include "base/comm.h"

/* Tags of what ranks do together. */
enum { COMM_TAG_TREE = COMM_TAGS, COMM_TAG_GATHER, COMM_TAG_RING, COMM_TAG_BEAT };

/* Calls of a way are made with the comm's lock held, all but sleep. */
typedef struct {
    /* Begins m. */
    lq_status (*start)(comm *c, comm_move *m, lq_err *err);
    /* Sets m->done where it is; never waits. */
    lq_status (*test)(comm *c, comm_move *m, lq_err *err);
    /* Sleeps until something may have moved, `ms` at most; NULL: there is no such call. */
    void (*sleep)(comm *c, int ms);
    void (*look)(
        comm *c); /* whether another rank has ended the job; NULL: that ends this process too */
    void (*abort)(comm *c, int code);
    void (*close)(comm *c);
    bool hangs; /* its end may wait for ever: the process leaves without it */
} comm_way;

typedef struct comm_beat comm_beat;

struct comm {
    const comm_way *way; /* NULL: a single rank */
    void *own;           /* the way's */
    int rank, size, sharing, ended;
    bool tells; /* comm_tells */
    /* [size] os_watch_process of other ranks of this machine, else -1; NULL: none are */
    int *process;
    const atomic_int *stop;
    lq_status bad; /* the exchange has failed */
    lq_err why;
    char text[128];
    pthread_mutex_t lock; /* of the way */
    double timeout;       /* seconds without a sign after which a rank is lost; 0: no limit */
    atomic_int lost;      /* such a rank; -1: none is */
    bool *heard;          /* [size] something of this one has come */
    comm_beat *beat;
};

/* Looks from now on for ranks that are lost (comm_beat.c). */
lq_status comm_beat_start(comm *c, lq_err *err);
/* in_order: all ranks come to this. */
void comm_beat_stop(comm *c, bool in_order);
void comm_beat_free(comm *c);

/* What the launcher said; size 1: nothing. */
typedef struct {
    int rank, size;          /* rank -1: not said */
    const char *who;         /* the variable that has the size */
    const char *const *libs; /* names of MPI's library to be tried, up to NULL */
} comm_launch;

/* Whether a launcher of MPI started this process. */
comm_launch comm_mpi_launch(void);
lq_status comm_mpi_open(comm *c, const comm_launch *l, lq_err *err);
/* Sockets were asked for: *c is filled in. */
bool comm_sock_asked(void);
lq_status comm_sock_open(comm *c, lq_err *err);

#endif
