/* base/comm_beat.c - whether the other ranks are still there, asked while this one waits or computes.
 *
 * A thread sends every other rank a byte again and again, and takes theirs, over the way that messages go. A rank from
 * which nothing has come for LLMQ_RANK_TIMEOUT is lost, and what waits ends with that (comm_wait). How long a rank
 * computes does not matter: its thread goes on. Only time in which this thread ran is counted, so a job whose ranks
 * were all suspended goes on when they do. */
#include "base/comm_impl.h"

#include <signal.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/os.h"

enum { BEAT_ALIVE, BEAT_LAST, BEATS_PER_TIMEOUT = 20, TIMEOUT = 60, TIMEOUT_MOST = 1000000 };

typedef struct {
    comm_move in, out;
    uint8_t comes, goes; /* BEAT_ALIVE or BEAT_LAST */
    bool failed, last;   /* the exchange with it; its last one has come */
    double silent;       /* seconds */
} beat_peer;

struct comm_beat {
    pthread_t thread;
    bool runs;
    pthread_mutex_t lock; /* of stop */
    pthread_cond_t wake;
    bool stop;
    beat_peer peer[];
};

/* ---- with the comm's lock held ---- */
static bool begin(comm *c, comm_move *m, int peer, uint8_t *byte, bool sends)
{
    lq_err err;
    *m = (comm_move){ .sends = sends, .peer = peer, .tag = COMM_TAG_BEAT, .n = 1 };
    if (sends)
        m->from = byte;
    else
        m->to = byte;
    return c->way->start(c, m, &err) == LQ_OK;
}

static bool over(comm *c, comm_move *m)
{
    lq_err err;
    return m->done || c->way->test(c, m, &err) == LQ_OK;
}

/* Takes all that has come of a rank, and sends it one more, where the one before is gone. */
static void exchange(comm *c, int i)
{
    beat_peer *p = &c->beat->peer[i];
    while (!p->failed && !p->last) {
        p->failed = !over(c, &p->in);
        if (p->failed || !p->in.done) break;
        p->silent = 0;
        p->last = p->comes == BEAT_LAST;
        if (!p->last) p->failed = !begin(c, &p->in, i, &p->comes, false);
    }
    if (c->heard[i]) p->silent = 0;
    c->heard[i] = false;
    if (!p->failed) p->failed = !over(c, &p->out);
    if (!p->failed && p->out.done) p->failed = !begin(c, &p->out, i, &p->goes, true);
}

/* ---- the thread ---- */
/* Until the next one is due; true: it is the end. */
static bool wait_for_next(comm_beat *b, double seconds)
{
    const double until = lq_now() + seconds;
    pthread_mutex_lock(&b->lock);
    while (!b->stop && lq_now() < until)
        os_cond_until(&b->wake, &b->lock, until);
    const bool stop = b->stop;
    pthread_mutex_unlock(&b->lock);
    return stop;
}

static void *beat(void *arg)
{
    comm *c = arg;
    comm_beat *b = c->beat;
    const double step = c->timeout / BEATS_PER_TIMEOUT;
    double before = lq_now();
    while (!wait_for_next(b, step)) {
        const double now = lq_now();
        const double passed = now - before < 2 * step ? now - before : 2 * step;
        before = now;
        for (int i = 0; i < c->size; i++) {
            if (i == c->rank) continue;
            beat_peer *p = &b->peer[i];
            p->silent += p->last ? 0 : passed;
            pthread_mutex_lock(&c->lock);
            exchange(c, i);
            pthread_mutex_unlock(&c->lock);
            if (p->silent > c->timeout && atomic_load(&c->lost) < 0) atomic_store(&c->lost, i);
        }
    }
    return NULL;
}

/* Signals are the other threads'. */
static bool start_thread(comm *c)
{
    sigset_t all, was;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &was);
    c->beat->runs = pthread_create(&c->beat->thread, NULL, beat, c) == 0;
    pthread_sigmask(SIG_SETMASK, &was, NULL);
    return c->beat->runs;
}

/* ---- its beginning and its end ---- */
/* Seconds, rank 0's for all: launchers do not hand every variable on. */
static lq_status find_timeout(comm *c, lq_err *err)
{
    const char *given = getenv("LLMQ_RANK_TIMEOUT");
    char *end = NULL;
    long n = TIMEOUT;
    if (given && *given) n = strtol(given, &end, 10);
    if ((end && *end) || n < 0 || n > TIMEOUT_MOST)
        return lq_fail(err, LQ_EUSAGE,
                       "LLMQ_RANK_TIMEOUT: expected seconds from 0 (no limit) to %d, found %.40s",
                       TIMEOUT_MOST, given);
    int64_t own = n;
    const lq_status s = comm_broadcast(c, 0, &own, sizeof own, err);
    c->timeout = (double)own;
    return s;
}

lq_status comm_beat_start(comm *c, lq_err *err)
{
    lq_status s = find_timeout(c, err);
    if (s || c->timeout <= 0) return s;
    comm_beat *b = calloc(1, sizeof *b + (size_t)c->size * sizeof *b->peer);
    c->heard = calloc((size_t)c->size, sizeof *c->heard);
    if (!b || !c->heard) {
        free(b);
        return lq_fail(err, LQ_ENOMEM, "no memory for %d ranks", c->size);
    }
    c->beat = b;
    pthread_mutex_init(&b->lock, NULL);
    os_cond_init(&b->wake);
    for (int i = 0; i < c->size; i++) {
        if (i == c->rank) continue;
        beat_peer *p = &b->peer[i];
        p->goes = BEAT_ALIVE;
        p->failed = !begin(c, &p->in, i, &p->comes, false);
        p->failed |= !begin(c, &p->out, i, &p->goes, true);
    }
    return start_thread(c) ? LQ_OK : lq_fail(err, LQ_ENOMEM, "ranks: cannot start a thread");
}

/* A library of MPI wants every message to be taken before its end. */
static lq_status say_last(comm *c)
{
    lq_status s = LQ_OK;
    for (int i = 0; i < c->size && !s; i++) {
        beat_peer *p = &c->beat->peer[i];
        if (i == c->rank || p->failed) continue;
        s = comm_wait(c, &p->out, 1, NULL);
        p->goes = BEAT_LAST;
        if (!s) s = comm_start_send(c, &p->out, i, COMM_TAG_BEAT, &p->goes, 1, NULL);
    }
    for (int i = 0; i < c->size && !s; i++) {
        beat_peer *p = &c->beat->peer[i];
        if (i == c->rank || p->failed) continue;
        while (!s && !p->last) {
            s = comm_wait(c, &p->in, 1, NULL);
            p->last = p->comes == BEAT_LAST;
            if (!s && !p->last)
                s = comm_start_recv(c, &p->in, i, COMM_TAG_BEAT, &p->comes, 1, NULL);
        }
        if (!s) s = comm_wait(c, &p->out, 1, NULL);
    }
    return s;
}

void comm_beat_stop(comm *c, bool in_order)
{
    comm_beat *b = c->beat;
    if (!b || !b->runs) return;
    pthread_mutex_lock(&b->lock);
    b->stop = true;
    pthread_cond_signal(&b->wake);
    pthread_mutex_unlock(&b->lock);
    pthread_join(b->thread, NULL);
    b->runs = false;
    if (in_order) (void)say_last(c);
}

void comm_beat_free(comm *c)
{
    if (c->beat) {
        pthread_cond_destroy(&c->beat->wake);
        pthread_mutex_destroy(&c->beat->lock);
    }
    free(c->beat);
    free(c->heard);
}
