/* base/comm.h - processes that do one job together: ranks 0 .. size - 1, which send each other bytes.
 *
 * A process is one of several where its launcher says so in the environment:
 *
 *     mpirun, srun   MPI, loaded at run time (comm_mpi.c): the ABI of Open MPI, of MPICH (Intel's, Cray's and others
 *                    follow it), or of MPI 5.0. LLMQ_MPI=FILE names the library instead of the launcher,
 *                    LLMQ_MPI=none makes each process one of its own.
 *     LLMQ_RANK=i LLMQ_RANKS=n LLMQ_RANK_SOCKETS=PREFIX
 *                    sockets PREFIX.0, PREFIX.1, ... of one machine (comm_sock.c), without a launcher
 *
 * Ranks tell each other all the time that they are there (comm_beat.c). One of which nothing has come for
 * LLMQ_RANK_TIMEOUT seconds (rank 0's variable; 60 where it is not set, 0: no limit) is lost: the link to it is cut,
 * its machine hangs, or it is stopped (SIGSTOP). One that computes is there, however long it takes.
 *
 * Without a launcher a process is the only rank, no library is loaded, and every call here is over at once; so is it for a comm of
 * NULL. One thread calls at a time. Messages of one sender and tag arrive in their order. Both ends know how long
 * a message is. What waits looks at the job's stop flag, spins briefly, then sleeps.
 *
 * Errors: LQ_EIO (the exchange failed, another rank is gone or lost), LQ_EINTR (the job was stopped, or another rank ended
 * it: comm_ended). After one of them the other ranks wait for nothing: comm_abort. */
#ifndef LLMQ_BASE_COMM_H
#define LLMQ_BASE_COMM_H

#include "base/base.h"

typedef struct comm comm;

enum { COMM_TAGS = 8192 }; /* tags are 0 .. COMM_TAGS - 1 */

/* A message on its way; its bytes and this stay where they are until comm_wait. */
typedef struct {
    bool sends, done;
    int peer, tag;
    const uint8_t *from;
    uint8_t *to;
    size_t n, moved; /* bytes; those that are through */
    size_t piece;    /* of these under way */
    uintptr_t request;
} comm_move;

/* Waits for all ranks to come. Errors: LQ_EUNSUPPORTED (no library, or none of these), LQ_EVALUE (another number of
 * ranks than the launcher said), LQ_EUSAGE (a variable LLMQ_RANK... that is wrong), LQ_EIO, LQ_ENOMEM. */
lq_status comm_open(comm **c, lq_err *err);
/* This process's rank as its launcher says it, also where comm_open failed; 0: no launcher, or it does not say. */
int comm_said_rank(void);
/* Likewise how many there are, 1 without a launcher; *who: the variable that says so. */
int comm_said_size(const char **who);
/* All ranks have come to this: ends the exchange. */
void comm_close(comm *c);
/* Ends all ranks, theirs with this exit code where the launcher passes it on. With MPI it does not return. */
void comm_abort(comm *c, int code);
/* The exit code that another rank has ended the job with, which says why, or will (comm_agree); 0: none has. */
int comm_ended(comm *c);
/* Have all agreed that this rank's failure ends the job? Then it says why, and comm_ended stays 0. */
bool comm_tells(const comm *c);
/* Has the process of this rank, of this machine, ended? Of another machine's nothing is known. */
bool comm_is_gone(const comm *c, int rank);
/* From now on waiting ends with the job. */
void comm_watch(comm *c, const lq_job *job);

int comm_rank(const comm *c);
int comm_size(const comm *c);
/* Ranks of this machine that may use the same processors, this one among them: threads are shared out among them. */
int comm_sharing(const comm *c);
/* "Open MPI v4.1.4, ...", "sockets"; "" for a single rank. */
const char *comm_text(const comm *c);

lq_status comm_start_send(comm *c, comm_move *m, int to, int tag, const void *p, size_t n,
                          lq_err *err);
lq_status comm_start_recv(comm *c, comm_move *m, int from, int tag, void *p, size_t n, lq_err *err);
lq_status comm_wait(comm *c, comm_move *m, size_t n, lq_err *err);

lq_status comm_send(comm *c, int to, int tag, const void *p, size_t n, lq_err *err);
lq_status comm_recv(comm *c, int from, int tag, void *p, size_t n, lq_err *err);
/* p [n]: that of `root`, to all. */
lq_status comm_broadcast(comm *c, int root, void *p, size_t n, lq_err *err);
/* all [size][n] of `root`: each rank's p [n], in their order. */
lq_status comm_gather(comm *c, int root, const void *p, size_t n, void *all, lq_err *err);
/* p: rank r's bytes at[r] .. at[r + 1], which it has there, to all; at [size + 1] is the same for all. */
lq_status comm_allgather(comm *c, void *p, const size_t *at, lq_err *err);
lq_status comm_barrier(comm *c, lq_err *err);
/* Whether each rank has come as far: the first status but LQ_OK in the order of ranks, for all alike; *rank: whose. Its
 * message stays with that rank. */
lq_status comm_agree(comm *c, lq_status mine, int *rank, lq_err *err);

#endif
