/* base/comm.c - waiting, and what several ranks do together; see comm.h. */
#include "base/comm_impl.h"

#include <assert.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "base/clock.h"

int comm_rank(const comm *c) { return c ? c->rank : 0; }
int comm_size(const comm *c) { return c ? c->size : 1; }
int comm_sharing(const comm *c) { return c ? c->sharing : 1; }
int comm_ended(comm *c)
{
    if (!c || c->tells) return 0;
    pthread_mutex_lock(&c->lock);
    if (!c->ended && c->way && c->way->look) c->way->look(c);
    const int code = c->ended;
    pthread_mutex_unlock(&c->lock);
    return code;
}

bool comm_tells(const comm *c) { return c && c->tells; }
const char *comm_text(const comm *c) { return c ? c->text : ""; }
void comm_watch(comm *c, const lq_job *job)
{
    if (c) c->stop = job ? job->stop : NULL;
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
    if (m->done) return LQ_OK;
    pthread_mutex_lock(&c->lock);
    const lq_status s = c->bad ? c->bad : c->way->start(c, m, err);
    pthread_mutex_unlock(&c->lock);
    return broke(c, s, err);
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

/* *open: those that are still under way; *moved: bytes of all that are through. */
static lq_status test_all(comm *c, comm_move *m, size_t n, size_t *open, size_t *moved, lq_err *err)
{
    lq_status s = LQ_OK;
    *open = *moved = 0;
    pthread_mutex_lock(&c->lock);
    for (size_t i = 0; i < n && !s; i++) {
        const size_t before = m[i].moved;
        if (!m[i].done) s = c->bad ? c->bad : c->way->test(c, &m[i], err);
        if (c->heard && !m[i].sends && m[i].moved != before) c->heard[m[i].peer] = true;
        *open += !m[i].done;
        *moved += m[i].moved;
    }
    pthread_mutex_unlock(&c->lock);
    return s ? broke(c, s, err) : LQ_OK;
}

static lq_status say_lost(const comm *c, int rank, lq_err *err)
{
    return lq_fail(err, LQ_EIO,
                   "rank %d of %d is lost: expected a sign of it within %g s (LLMQ_RANK_TIMEOUT), "
                   "found none",
                   rank, c->size, c->timeout);
}

bool comm_is_gone(const comm *c, int rank)
{
    struct pollfd p = { .fd = c && c->process ? c->process[rank] : -1, .events = POLLIN };
    return p.fd >= 0 && poll(&p, 1, 0) == 1;
}

/* A rank of this machine that has ended and is still waited for; -1: none. A library of MPI does not say. */
static int find_dead(const comm *c, const comm_move *m, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!m[i].done && comm_is_gone(c, m[i].peer)) return m[i].peer;
    return -1;
}

lq_status comm_wait(comm *c, comm_move *m, size_t n, lq_err *err)
{
    const double look = 0.05;
    double moved = lq_now(), looked = moved;
    size_t open = n, before = SIZE_MAX;
    while (open) {
        size_t now;
        const lq_status s = test_all(c, m, n, &open, &now, err);
        if (s || !open) return s;
        const int lost = atomic_load(&c->lost);
        if (lost >= 0) return broke(c, say_lost(c, lost, err), err);
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
    if (i) s = comm_recv(c, (i - bit + root) % size, COMM_TAG_TREE, p, n, err);
    for (bit >>= 1; bit && !s; bit >>= 1)
        if (i + bit < size) s = comm_send(c, (i + bit + root) % size, COMM_TAG_TREE, p, n, err);
    return s;
}

lq_status comm_gather(comm *c, int root, const void *p, size_t n, void *all, lq_err *err)
{
    const int rank = comm_rank(c), size = comm_size(c);
    uint8_t *to = all;
    if (rank != root) return comm_send(c, root, COMM_TAG_GATHER, p, n, err);
    lq_status s = LQ_OK;
    for (int i = 0; i < size && !s; i++)
        if (i == rank)
            memcpy(to + (size_t)i * n, p, n);
        else
            s = comm_recv(c, i, COMM_TAG_GATHER, to + (size_t)i * n, n, err);
    return s;
}

/* A ring: each rank gives the next one what came to it before, its own first. */
lq_status comm_allgather(comm *c, void *p, const size_t *at, lq_err *err)
{
    const int rank = comm_rank(c), size = comm_size(c);
    uint8_t *all = p;
    lq_status s = LQ_OK;
    for (int k = 1; k < size && !s; k++) {
        const int out = (rank - k + 1 + size) % size, in = (rank - k + size) % size;
        comm_move m[2];
        s = comm_start_recv(c, &m[0], (rank - 1 + size) % size, COMM_TAG_RING, all + at[in],
                            at[in + 1] - at[in], err);
        if (!s)
            s = comm_start_send(c, &m[1], (rank + 1) % size, COMM_TAG_RING, all + at[out],
                                at[out + 1] - at[out], err);
        if (!s) s = comm_wait(c, m, 2, err);
    }
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
    pthread_mutex_lock(&c->lock);
    if (!s && found[0] && *rank != c->rank) c->ended = lq_exit_code((lq_status)found[0]);
    pthread_mutex_unlock(&c->lock);
    c->tells |= !s && found[0] && *rank == c->rank;
    return s ? s : (lq_status)found[0];
}
