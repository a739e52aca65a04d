/* base/comm_impl.h - what a way to exchange bytes is: comm.c is above, comm_mpi.c and comm_sock.c below. */
#ifndef LLMQ_BASE_COMM_IMPL_H
#define LLMQ_BASE_COMM_IMPL_H

#include "base/comm.h"

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
} comm_way;

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
};

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
