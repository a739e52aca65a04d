/* base/comm.c - which way is taken, waiting, and what several ranks do together; see comm.h. */
#include "base/comm_impl.h"

#include <assert.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/os.h"

enum { TAG_TREE = COMM_TAGS, TAG_GATHER };

int comm_rank(const comm *c) { return c ? c->rank : 0; }
int comm_size(const comm *c) { return c ? c->size : 1; }
int comm_sharing(const comm *c) { return c ? c->sharing : 1; }
int comm_ended(comm *c)
{
    if (!c || c->tells) return 0;
    if (!c->ended && c->way && c->way->look) c->way->look(c);
    return c->ended;
}

bool comm_tells(const comm *c) { return c && c->tells; }
const char *comm_text(const comm *c) { return c ? c->text : ""; }
void comm_watch(comm *c, const lq_job *job)
{
    if (c) c->stop = job ? job->stop : NULL;
}

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

/* A rank of this machine that has ended and is still waited for; -1: none. A library of MPI does not say. */
static int find_dead(const comm *c, const comm_move *m, size_t n)
{
    for (size_t i = 0; i < n && c->process; i++) {
        struct pollfd p = { .fd = c->process[m[i].peer], .events = POLLIN };
        if (!m[i].done && p.fd >= 0 && poll(&p, 1, 0) == 1) return m[i].peer;
    }
    return -1;
}

static void comm_free(comm *c)
{
    for (int i = 0; c->process && i < c->size; i++)
        if (c->process[i] >= 0) close(c->process[i]);
    free(c->process);
    free(c);
}

int comm_said_rank(void)
{
    const comm_launch l = comm_mpi_launch();
    const int rank = comm_sock_asked() ? atoi(getenv("LLMQ_RANK")) : l.rank;
    return rank > 0 ? rank : 0;
}

lq_status comm_open(comm **out, lq_err *err)
{
    *out = NULL;
    const comm_launch l = comm_mpi_launch();
    if (l.size < 2 && !comm_sock_asked()) return LQ_OK;
    comm *c = calloc(1, sizeof *c);
    if (!c) return lq_fail(err, LQ_ENOMEM, "no memory for ranks");
    c->sharing = c->size = 1;
    lq_status s = comm_sock_asked() ? comm_sock_open(c, err) : comm_mpi_open(c, &l, err);
    if (!s) s = find_sharing(c, err);
    if (s)
        comm_abort(c, lq_exit_code(s));
    else
        *out = c;
    if (s) comm_free(c);
    return s;
}

void comm_close(comm *c)
{
    if (!c) return;
    (void)comm_barrier(c, NULL);
    if (c->way) c->way->close(c);
    comm_free(c);
}

void comm_abort(comm *c, int code)
{
    if (c && c->way) c->way->abort(c, code ? code : 1);
}

/* ---- moving ---- */
/* What failed once fails from then on, by the same reason. */
static lq_status broke(comm *c, lq_status s, lq_err *err)
{
    if (s && !c->bad && err) c->why = *err;
    if (s && c->bad && err) *err = c->why;
    return c->bad = s;
}

static lq_status start(comm *c, comm_move *m, lq_err *err)
{
    assert(c && m->peer >= 0 && m->peer < c->size && m->peer != c->rank);
    m->done = m->n == 0;
    return m->done ? LQ_OK : broke(c, c->bad ? c->bad : c->way->start(c, m, err), err);
}

lq_status comm_start_send(comm *c, comm_move *m, int to, int tag, const void *p, size_t n,
                          lq_err *err)
{
    *m = (comm_move){ .sends = true, .peer = to, .tag = tag, .from = p, .n = n };
    return start(c, m, err);
}

lq_status comm_start_recv(comm *c, comm_move *m, int from, int tag, void *p, size_t n, lq_err *err)
{
    *m = (comm_move){ .peer = from, .tag = tag, .to = p, .n = n };
    return start(c, m, err);
}

/* Nothing has moved for `idle` seconds: other threads and ranks need this processor too. */
static void comm_idle(comm *c, double idle)
{
    const double spin = 200e-6, brief = 2e-3;
    if (idle < spin)
        sched_yield();
    else if (c->way->sleep)
        c->way->sleep(c, 50);
    else
        nanosleep(&(struct timespec){ .tv_nsec = idle < brief ? 50000 : 1000000 }, NULL);
}

lq_status comm_wait(comm *c, comm_move *m, size_t n, lq_err *err)
{
    const double look = 0.05;
    double moved = lq_now(), looked = moved;
    size_t open = n, before = SIZE_MAX;
    while (open) {
        size_t now = 0;
        open = 0;
        for (size_t i = 0; i < n; i++) {
            const lq_status s = m[i].done ? LQ_OK : c->bad ? c->bad : c->way->test(c, &m[i], err);
            if (s) return broke(c, s, err);
            open += !m[i].done;
            now += m[i].moved;
        }
        if (!open) break;
        if (c->stop && atomic_load(c->stop))
            return broke(c, lq_fail(err, LQ_EINTR, "interrupted"), err);
        if (now != before) moved = lq_now();
        before = now;
        const double at = lq_now();
        if (at - moved > look && at - looked > look) {
            const int dead = find_dead(c, m, n);
            looked = at;
            if (dead >= 0)
                return broke(c, lq_fail(err, LQ_EIO, "rank %d of %d is gone", dead, c->size), err);
        }
        comm_idle(c, at - moved);
    }
    return LQ_OK;
}

lq_status comm_send(comm *c, int to, int tag, const void *p, size_t n, lq_err *err)
{
    comm_move m;
    const lq_status s = comm_start_send(c, &m, to, tag, p, n, err);
    return s ? s : comm_wait(c, &m, 1, err);
}

lq_status comm_recv(comm *c, int from, int tag, void *p, size_t n, lq_err *err)
{
    comm_move m;
    const lq_status s = comm_start_recv(c, &m, from, tag, p, n, err);
    return s ? s : comm_wait(c, &m, 1, err);
}

/* ---- together ---- */
/* A tree: rank i (counted from root) has it from i without its lowest bit, and gives it to i + 1, 2, 4, ... below
 * that bit. */
lq_status comm_broadcast(comm *c, int root, void *p, size_t n, lq_err *err)
{
    const int size = comm_size(c), i = (comm_rank(c) - root + size) % size;
    int bit = 1;
    lq_status s = LQ_OK;
    if (size < 2) return LQ_OK;
    while (bit < size && !(i & bit))
        bit <<= 1;
    if (i) s = comm_recv(c, (i - bit + root) % size, TAG_TREE, p, n, err);
    for (bit >>= 1; bit && !s; bit >>= 1)
        if (i + bit < size) s = comm_send(c, (i + bit + root) % size, TAG_TREE, p, n, err);
    return s;
}

lq_status comm_gather(comm *c, int root, const void *p, size_t n, void *all, lq_err *err)
{
    const int rank = comm_rank(c), size = comm_size(c);
    uint8_t *to = all;
    if (rank != root) return comm_send(c, root, TAG_GATHER, p, n, err);
    lq_status s = LQ_OK;
    for (int i = 0; i < size && !s; i++)
        if (i == rank)
            memcpy(to + (size_t)i * n, p, n);
        else
            s = comm_recv(c, i, TAG_GATHER, to + (size_t)i * n, n, err);
    return s;
}

lq_status comm_barrier(comm *c, lq_err *err)
{
    int rank;
    return comm_agree(c, LQ_OK, &rank, err);
}

lq_status comm_agree(comm *c, lq_status mine, int *rank, lq_err *err)
{
    const int size = comm_size(c);
    int64_t own = (int64_t)mine, found[2] = { 0, 0 }, *all = NULL;
    *rank = 0;
    if (size < 2) return mine;
    if (comm_rank(c) == 0 && !(all = calloc((size_t)size, sizeof *all)))
        return lq_fail(err, LQ_ENOMEM, "no memory for %d ranks", size);
    lq_status s = comm_gather(c, 0, &own, sizeof own, all, err);
    for (int i = 0; all && i < size && !s; i++)
        if (all[i] && !found[0]) found[0] = all[i], found[1] = i;
    free(all);
    if (!s) s = comm_broadcast(c, 0, found, sizeof found, err);
    *rank = (int)found[1];
    if (!s && found[0] && *rank != c->rank) c->ended = lq_exit_code((lq_status)found[0]);
    c->tells |= !s && found[0] && *rank == c->rank;
    return s ? s : (lq_status)found[0];
}
