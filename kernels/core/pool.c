/* kernels/core/pool.c - one counter of items left, claimed by compare-and-swap.
 *
 * `left` alone says whether there is work: a thread that lowers it from v to v-1 owns item n - v,
 * and until it reports that item done the region cannot end, so fn, ctx and n are stable while it
 * reads them. A thread that never wakes for a region is never waited for: on a loaded machine the
 * caller does the work itself rather than wait for the scheduler. Sleeping goes through one mutex
 * and two conditions; `sleepers` and `left` are ordered (seq_cst) so that either the sleeper sees
 * the work or the publisher sees the sleeper. */
#include "kernels/core/pool.h"

#include "base/clock.h"
#include "base/locale.h"
#include "base/machine.h"
#include "base/os.h"

#include <assert.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <time.h>
#if defined(__x86_64__)
#include <immintrin.h>
#define PAUSE() _mm_pause()
#else
#define PAUSE() ((void)0)
#endif

enum {
    N_SPINS = 2000, /* pauses before the first yield: some 50 to 100 us */
    N_YIELDS = 200, /* yields before sleeping */
    MAX_THREADS = 1024
};

struct pool {
    int n_threads, n_started;
    pthread_t *threads;
    pthread_mutex_t lock;
    pthread_cond_t wake, finished;
    _Alignas(64) atomic_llong left;
    _Alignas(64) atomic_llong done;
    _Alignas(64) atomic_int sleepers; /* workers inside `wake` */
    atomic_int caller_sleeps, in_step, quit;
    atomic_int next_id;
    void (*fn)(void *ctx, int64_t item, int thread);
    void *ctx;
    int64_t n_items;
    pool_times *times; /* or NULL */
    bool pinned;
    os_cpus of_caller; /* the caller's CPU in a step */
    os_cpus of_all;    /* where it may go outside of one */
    atomic_llong busy_ns;
};

/* ---- times ---- */
const char *pool_stage_text(pool_stage_id s)
{
#define X(name, text) text,
    static const char *const texts[] = { POOL_STAGES(X) };
#undef X
    return (unsigned)s < N_STAGES ? texts[s] : "?";
}

pool_stage_id pool_stage(pool *p, pool_stage_id s)
{
    if (!p || !p->times) return s;
    pool_times *t = p->times;
    const pool_stage_id before = t->now;
    const double now = lq_now();
    t->seconds[before] += now - t->since;
    t->busy[before] += (double)atomic_exchange(&p->busy_ns, 0) * 1e-9;
    t->now = s;
    t->since = now;
    return before;
}

void pool_watch(pool *p, pool_times *t)
{
    pool_stage(p, STAGE_OTHER);
    p->times = t;
    if (!t) return;
    t->now = STAGE_OTHER;
    t->since = lq_now();
    atomic_store(&p->busy_ns, 0);
}

/* ---- regions ---- */
typedef void item_fn(void *ctx, int64_t item, int thread);

static void run_item(pool *p, item_fn *fn, void *ctx, int64_t item, int thread)
{
    const bool timed = p && p->times;
    const int64_t start = timed ? lq_now_ns() : 0;
    fn(ctx, item, thread);
    if (timed) atomic_fetch_add(&p->busy_ns, lq_now_ns() - start);
}

/* Work until no item is left; whether there was one. */
static bool drain(pool *p, int thread)
{
    bool any = false;
    long long v = atomic_load_explicit(&p->left, memory_order_acquire);
    while (v > 0) {
        if (!atomic_compare_exchange_weak_explicit(&p->left, &v, v - 1, memory_order_acq_rel,
                                                   memory_order_acquire))
            continue;
        int64_t n = p->n_items;
        run_item(p, p->fn, p->ctx, n - v, thread);
        any = true;
        if (atomic_fetch_add(&p->done, 1) + 1 == n && atomic_load(&p->caller_sleeps)) {
            pthread_mutex_lock(&p->lock);
            pthread_cond_signal(&p->finished);
            pthread_mutex_unlock(&p->lock);
        }
        v = atomic_load_explicit(&p->left, memory_order_acquire);
    }
    return any;
}

static void sleep_until_work(pool *p, bool in_step)
{
    pthread_mutex_lock(&p->lock);
    atomic_fetch_add(&p->sleepers, 1);
    while (atomic_load(&p->left) <= 0 && !atomic_load(&p->quit) &&
           (in_step || !atomic_load(&p->in_step)))
        pthread_cond_wait(&p->wake, &p->lock);
    atomic_fetch_sub(&p->sleepers, 1);
    pthread_mutex_unlock(&p->lock);
}

static void *worker(void *arg)
{
    lq_locale_c();
    pool *p = arg;
    int id = atomic_fetch_add(&p->next_id, 1);
    int idle = 0;
    while (!atomic_load(&p->quit)) {
        if (drain(p, id)) {
            idle = 0;
            continue;
        }
        bool in_step = atomic_load(&p->in_step);
        if (!in_step || idle >= N_SPINS + N_YIELDS) {
            sleep_until_work(p, in_step);
            idle = 0;
        } else if (idle++ < N_SPINS) {
            PAUSE();
        } else {
            sched_yield();
        }
    }
    return NULL;
}

static void wake_all(pool *p)
{
    if (atomic_load(&p->sleepers) == 0) return;
    pthread_mutex_lock(&p->lock);
    pthread_cond_broadcast(&p->wake);
    pthread_mutex_unlock(&p->lock);
}

void pool_run(pool *p, int64_t n_items, void (*fn)(void *ctx, int64_t item, int thread), void *ctx)
{
    if (!p || p->n_threads == 1 || n_items <= 1) {
        for (int64_t i = 0; i < n_items; i++)
            run_item(p, fn, ctx, i, 0);
        return;
    }
    assert(atomic_load(&p->left) == 0); /* regions do not nest */
    p->fn = fn;
    p->ctx = ctx;
    p->n_items = n_items;
    atomic_store(&p->done, 0);
    atomic_store(&p->left, n_items);
    wake_all(p);
    drain(p, 0);
    for (int idle = 0; atomic_load(&p->done) != n_items; idle++) {
        if (idle < N_SPINS) {
            PAUSE();
        } else if (idle < N_SPINS + N_YIELDS) {
            sched_yield();
        } else {
            pthread_mutex_lock(&p->lock);
            atomic_store(&p->caller_sleeps, 1);
            while (atomic_load(&p->done) != n_items)
                pthread_cond_wait(&p->finished, &p->lock);
            atomic_store(&p->caller_sleeps, 0);
            pthread_mutex_unlock(&p->lock);
        }
    }
}

void pool_enter(pool *p)
{
    if (p && p->pinned) os_bind(pthread_self(), &p->of_caller);
    if (!p || p->n_threads == 1) return;
    atomic_store(&p->in_step, 1);
    wake_all(p);
}

void pool_leave(pool *p)
{
    if (!p) return;
    atomic_store(&p->in_step, 0); /* spinning workers see it and go to sleep */
    if (p->pinned) os_bind(pthread_self(), &p->of_all);
}

static os_cpus set_of(const struct place *at, int n)
{
    os_cpus set = { { 0 } };
    for (int i = 0; i < n; i++)
        set.word[at[i].cpu / 64] |= (uint64_t)1 << at[i].cpu % 64;
    return set;
}

lq_status pool_pin(pool *p, const cpu_places *where, lq_err *err)
{
    if (where->n < 1)
        return lq_fail(err, LQ_EVALUE, "CPUs to bind threads to: expected some, found 0");
    for (int i = 1; i < p->n_threads; i++) {
        const int cpu = where->at[i % where->n].cpu;
        const os_cpus set = set_of(&where->at[i % where->n], 1);
        const int why = os_bind(p->threads[i - 1], &set);
        if (why)
            return lq_fail(err, LQ_EUNSUPPORTED, "thread %d cannot be bound to CPU %d: %s", i, cpu,
                           strerror(why));
    }
    p->of_caller = set_of(where->at, 1);
    p->of_all = set_of(where->at, where->n);
    p->pinned = true;
    return LQ_OK;
}

int pool_threads(const pool *p) { return p ? p->n_threads : 1; }

int pool_default_threads(void)
{
    const int n = machine_cpus();
    return n > MAX_THREADS ? MAX_THREADS : n;
}

lq_status pool_open(pool **out, int n_threads, lq_err *err)
{
    *out = NULL;
    if (n_threads < 0 || n_threads > MAX_THREADS)
        return lq_fail(err, LQ_EVALUE, "threads: expected 0..%d, found %d", MAX_THREADS, n_threads);
    if (!n_threads) n_threads = pool_default_threads();
    pool *p = aligned_alloc(64, lq_round_up(sizeof *p, 64));
    if (!p) return lq_fail(err, LQ_ENOMEM, "no memory for the thread pool");
    memset(p, 0, sizeof *p);
    p->n_threads = n_threads;
    atomic_init(&p->next_id, 1);
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->wake, NULL);
    pthread_cond_init(&p->finished, NULL);
    p->threads = calloc((size_t)n_threads, sizeof *p->threads);
    lq_status st = p->threads ? LQ_OK : lq_fail(err, LQ_ENOMEM, "no memory for the thread pool");
    for (; !st && p->n_started < n_threads - 1; p->n_started++)
        if (pthread_create(&p->threads[p->n_started], NULL, worker, p)) {
            st = lq_fail(err, LQ_ENOMEM, "thread %d of %d could not be started", p->n_started + 2,
                         n_threads);
            break;
        }
    if (st) {
        pool_close(p);
        return st;
    }
    *out = p;
    return LQ_OK;
}

void pool_close(pool *p)
{
    if (!p) return;
    pthread_mutex_lock(&p->lock);
    atomic_store(&p->quit, 1);
    pthread_cond_broadcast(&p->wake);
    pthread_mutex_unlock(&p->lock);
    for (int i = 0; i < p->n_started; i++)
        pthread_join(p->threads[i], NULL);
    pthread_cond_destroy(&p->finished);
    pthread_cond_destroy(&p->wake);
    pthread_mutex_destroy(&p->lock);
    free(p->threads);
    free(p);
}
