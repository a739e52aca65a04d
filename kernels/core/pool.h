/* kernels/core/pool.h - the thread pool: one per process, `n` threads that share fixed tiles of work.
 *
 * A region is a function called for every item 0..n_items-1, each exactly once, by any thread;
 * results never depend on which. Inside a step (pool_enter..pool_leave) waiting threads spin
 * briefly, then yield, then sleep; outside a step they sleep at once, so an idle process takes no
 * CPU. The calling thread works too: n = 1 starts no thread. Regions do not nest; one caller at a
 * time. */
#ifndef LLMQ_KERNELS_CORE_POOL_H
#define LLMQ_KERNELS_CORE_POOL_H

#include "base/base.h"
#include "base/cpus.h"

LQ_C_BEGIN

typedef struct pool pool;

lq_status pool_open(pool **p, int n_threads, lq_err *err); /* 0: pool_default_threads() */
void pool_close(pool *p);
int pool_threads(const pool *p); /* NULL pool: 1, everything runs in the caller */
int pool_default_threads(void);  /* machine_cpus(): cores that this process may use */

/* Binds each thread to one CPU of `where`, in its order, the caller of pool_enter until it leaves;
 * where there are more threads than CPUs they start over. LQ_EUNSUPPORTED where the system refuses.
 * Without it threads go where the scheduler puts them. */
lq_status pool_pin(pool *p, const cpu_places *where, lq_err *err);

/* fn(ctx, item, thread): thread is 0..pool_threads-1, for per-thread scratch. */
void pool_run(pool *p, int64_t n_items, void (*fn)(void *ctx, int64_t item, int thread), void *ctx);
void pool_enter(pool *p);
void pool_leave(pool *p);

/* Where the time of a step goes. The code that runs one says which stage begins; the time until the
 * next begins is the stage's, and `busy` the time of all threads inside items of its regions: what
 * lacks to threads * seconds was spent waiting, or alone in the caller. */
#define POOL_STAGES(X)                 \
    X(OTHER, "other")                  \
    X(EMBED, "embedding")              \
    X(NORM, "norm")                    \
    X(PREPARE, "activations prepared") \
    X(QKV, "q k v")                    \
    X(ROPE, "rope, cache written")     \
    X(ATTENTION, "attention")          \
    X(O, "o")                          \
    X(MLP_IN, "gate up")               \
    X(ACT, "activation function")      \
    X(MLP_OUT, "down")                 \
    X(EXPERTS, "experts")              \
    X(HEAD, "head")
#define X(name, text) STAGE_##name,
typedef enum { POOL_STAGES(X) N_STAGES } pool_stage_id;
#undef X
const char *pool_stage_text(pool_stage_id s);

typedef struct {
    double seconds[N_STAGES], busy[N_STAGES];
    pool_stage_id now;
    double since; /* a clock's */
} pool_times;
/* From here on times are added to *t, from STAGE_OTHER on; NULL: no more. Between regions only. */
void pool_watch(pool *p, pool_times *t);
/* A stage begins; returns the one that ends. Costs nothing unless watched. */
pool_stage_id pool_stage(pool *p, pool_stage_id s);

LQ_C_END

#endif
