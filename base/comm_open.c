/* base/comm_open.c - the beginning and the end of ranks: which way is taken, who is beside us; see comm.h. */
#include "base/comm_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "base/hash.h"
#include "base/os.h"

/* ---- who is beside us ---- */
typedef struct {
    char host[64], processes[64]; /* the machine, and its name space of processes */
    lq_hash processors;
} place;

static lq_status find_sharing(comm *c, lq_err *err)
{
    place mine = { .host = "" }, *all = calloc((size_t)c->size, sizeof *all);
    int64_t pid = getpid(), *pids = calloc((size_t)c->size, sizeof *pids);
    os_cpus cpus;
    c->process = malloc((size_t)c->size * sizeof *c->process);
    if (!all || !pids || !c->process) {
        free(all);
        free(pids);
        return lq_fail(err, LQ_ENOMEM, "no memory for %d ranks", c->size);
    }
    for (int i = 0; i < c->size; i++)
        c->process[i] = -1;
    (void)!readlink("/proc/self/ns/pid", mine.processes, sizeof mine.processes - 1);
    gethostname(mine.host, sizeof mine.host - 1);
    os_cpus_allowed(&cpus);
    mine.processors = lq_hash_bytes(&cpus, sizeof cpus);
    lq_status s = comm_gather(c, 0, &mine, sizeof mine, all, err);
    if (!s) s = comm_broadcast(c, 0, all, (size_t)c->size * sizeof *all, err);
    if (!s) s = comm_gather(c, 0, &pid, sizeof pid, pids, err);
    if (!s) s = comm_broadcast(c, 0, pids, (size_t)c->size * sizeof *pids, err);
    c->sharing = 0;
    for (int i = 0; i < c->size; i++) {
        const bool beside = !s && i != c->rank && strcmp(all[i].host, mine.host) == 0 &&
                            strcmp(all[i].processes, mine.processes) == 0;
        if (beside) c->process[i] = os_watch_process((pid_t)pids[i]);
        c->sharing += memcmp(&all[i], &mine, sizeof mine) == 0;
    }
    if (c->sharing < 1) c->sharing = 1;
    free(all);
    free(pids);
    return s;
}

/* ---- opening and closing ---- */
static void comm_free(comm *c)
{
    for (int i = 0; c->process && i < c->size; i++)
        if (c->process[i] >= 0) close(c->process[i]);
    free(c->process);
    comm_beat_free(c);
    pthread_mutex_destroy(&c->lock);
    free(c);
}

int comm_said_rank(void)
{
    const comm_launch l = comm_mpi_launch();
    const char *own = getenv("LLMQ_RANK");
    const int rank = !comm_sock_asked() ? l.rank : own ? atoi(own) : 0;
    return rank > 0 ? rank : 0;
}

int comm_said_size(const char **who)
{
    const comm_launch l = comm_mpi_launch();
    *who = comm_sock_asked() ? "LLMQ_RANKS" : l.who;
    return comm_sock_asked() ? atoi(getenv("LLMQ_RANKS")) : l.size;
}

lq_status comm_open(comm **out, lq_err *err)
{
    *out = NULL;
    const comm_launch l = comm_mpi_launch();
    if (l.size < 2 && !comm_sock_asked()) return LQ_OK;
    comm *c = calloc(1, sizeof *c);
    if (!c) return lq_fail(err, LQ_ENOMEM, "no memory for ranks");
    c->sharing = c->size = 1;
    atomic_init(&c->lost, -1);
    pthread_mutex_init(&c->lock, NULL);
    lq_status s = comm_sock_asked() ? comm_sock_open(c, err) : comm_mpi_open(c, &l, err);
    if (!s) s = find_sharing(c, err);
    if (!s) s = comm_beat_start(c, err);
    if (s)
        comm_abort(c, lq_exit_code(s));
    else
        *out = c;
    if (s) comm_free(c);
    return s;
}

/* What is left is the library's own end. That of MPICH 4.0.2 over UCX waits for ever, now and then, for a rank that is
 * through with its part of it; one that ends a job may wait for a launcher that cannot be reached. */
static void *leave(void *code)
{
    enum { SECONDS = 5 };
    nanosleep(&(struct timespec){ .tv_sec = SECONDS }, NULL);
    _exit((int)(intptr_t)code);
    return NULL;
}

static void leave_anyway(const comm *c, int code)
{
    pthread_t t;
    if (c->way->hangs && pthread_create(&t, NULL, leave, (void *)(intptr_t)code) == 0)
        pthread_detach(t);
}

void comm_close(comm *c)
{
    if (!c) return;
    (void)comm_barrier(c, NULL);
    leave_anyway(c, 0);
    comm_beat_stop(c, true);
    c->way->close(c);
    comm_free(c);
}

void comm_abort(comm *c, int code)
{
    if (!c || !c->way) return;
    code = code ? code : 1;
    leave_anyway(c, code);
    comm_beat_stop(c, false);
    c->way->abort(c, code);
}
