/* tests/unit/test_pool.c - every item once, whatever the number of threads and the rest between steps.
 */
#include "kernels/core/pool.h"
#include "tests/support/check.h"

#include <limits.h>
#include <sched.h>
#include <stdlib.h>
#include <time.h>

enum { MAX = 1000 };

typedef struct {
    atomic_int count[MAX];
    atomic_int bad_thread;
    int threads;
} ctx;

static void count_item(void *user, int64_t item, int thread)
{
    ctx *c = user;
    if (thread < 0 || thread >= c->threads) atomic_store(&c->bad_thread, 1);
    atomic_fetch_add(&c->count[item], 1);
}

static void run_some(pool *p, ctx *c, int rounds)
{
    for (int i = 0; i < rounds; i++) {
        int64_t n = (i * 37) % MAX;
        memset(c->count, 0, sizeof c->count);
        pool_run(p, n, count_item, c);
        for (int64_t k = 0; k < MAX; k++)
            CHECK(atomic_load(&c->count[k]) == (k < n), "item %lld of %lld ran %d times",
                  (long long)k, (long long)n, atomic_load(&c->count[k]));
    }
    CHECK(!atomic_load(&c->bad_thread), "thread number out of range");
}

TEST(every_item_runs_exactly_once)
{
    static const int threads[] = { 1, 2, 3, 7, 16 }; /* more than there are processors, too */
    for (size_t i = 0; i < LQ_COUNT(threads); i++) {
        pool *p;
        lq_err err = { "" };
        CHECK(!pool_open(&p, threads[i], &err), "%s", err.msg);
        ctx *c = calloc(1, sizeof *c);
        c->threads = threads[i];
        CHECK(pool_threads(p) == threads[i], "threads");
        run_some(p, c, 100); /* outside a step: workers sleep between regions */
        pool_enter(p);
        run_some(p, c, 100);
        pool_leave(p);
        struct timespec nap = { 0, 20 * 1000 * 1000 };
        nanosleep(&nap, NULL); /* long enough for everybody to sleep */
        pool_enter(p);
        nanosleep(&nap, NULL);
        run_some(p, c, 20);
        pool_leave(p);
        free(c);
        pool_close(p);
    }
}

typedef struct {
    cpu_set_t of[8];
    atomic_int missing;
} seen;

static void see_cpus(void *user, int64_t item, int thread)
{
    seen *s = user;
    (void)item;
    if (sched_getaffinity(0, sizeof s->of[thread], &s->of[thread])) atomic_store(&s->missing, 1);
    struct timespec nap = { 0, 1000 * 1000 }; /* so that each thread gets an item */
    nanosleep(&nap, NULL);
}

TEST(threads_are_bound_to_one_cpu_each)
{
    static const int threads[] = { 1, 2, 5 }; /* also more than there are CPUs */
    cpu_set_t before, after;
    cpu_places where;
    places_here(&where, false);
    CHECK(!sched_getaffinity(0, sizeof before, &before), "CPUs");
    for (size_t i = 0; i < LQ_COUNT(threads); i++) {
        pool *p;
        seen *s = calloc(1, sizeof *s);
        CHECK(s && !pool_open(&p, threads[i], NULL) && !pool_pin(p, &where, NULL), "%d",
              threads[i]);
        pool_enter(p);
        pool_run(p, 200, see_cpus, s);
        pool_leave(p);
        CHECK(!s->missing, "not told");
        cpu_set_t taken;
        CPU_ZERO(&taken);
        for (int t = 0; t < threads[i]; t++) {
            const int n = CPU_COUNT(&s->of[t]);
            CHECK(n < 2, "thread %d of %d: %d CPUs", t, threads[i], n);
            CPU_AND(&after, &taken, &s->of[t]);
            CHECK(CPU_COUNT(&after) == 0 || threads[i] > where.n, "two threads have one CPU");
            CPU_OR(&taken, &taken, &s->of[t]);
        }
        CPU_OR(&after, &before, &taken);
        CHECK(CPU_EQUAL(&after, &before), "a CPU that is not ours");
        CHECK(CPU_COUNT(&s->of[0]) == 1 && CPU_ISSET((size_t)where.at[0].cpu, &s->of[0]),
              "the caller");
        CHECK(!sched_getaffinity(0, sizeof after, &after) && CPU_EQUAL(&before, &after),
              "the caller afterwards");
        const cpu_places none = { 0 };
        CHECK(pool_pin(p, &none, NULL) == LQ_EVALUE, "no CPU");
        free(s);
        pool_close(p);
    }
}

TEST(without_a_pool_the_caller_works)
{
    ctx *c = calloc(1, sizeof *c);
    c->threads = 1;
    CHECK(pool_threads(NULL) == 1 && pool_default_threads() >= 1, "threads");
    pool_enter(NULL);
    run_some(NULL, c, 5);
    pool_leave(NULL);
    pool_close(NULL);
    free(c);
}

TEST(an_idle_pool_takes_no_processor)
{
    pool *p;
    CHECK(!pool_open(&p, 4, NULL), "open");
    ctx *c = calloc(1, sizeof *c);
    c->threads = 4;
    pool_enter(p);
    run_some(p, c, 5);
    pool_leave(p);
    struct timespec nap = { 0, 50 * 1000 * 1000 }, t0, t1;
    long ns = LONG_MAX;
    for (int i = 0; i < 100 && ns >= 25 * 1000 * 1000;
         i++) { /* a busy machine lets it rest later */
        clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t0);
        nanosleep(&nap, NULL);
        clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t1);
        ns = (t1.tv_sec - t0.tv_sec) * 1000000000L + t1.tv_nsec - t0.tv_nsec;
    }
    CHECK(ns < 25 * 1000 * 1000, "%ld ns of processor time in 50 ms of rest",
          ns); /* spinning: 150 */
    free(c);
    pool_close(p);
}

TEST(bad_thread_counts_are_refused)
{
    pool *p;
    CHECK(pool_open(&p, -1, NULL) == LQ_EVALUE && !p, "negative");
    CHECK(pool_open(&p, 100000, NULL) == LQ_EVALUE && !p, "too many");
}

int main(int argc, char **argv)
{
    RUN(every_item_runs_exactly_once);
    RUN(threads_are_bound_to_one_cpu_each);
    RUN(without_a_pool_the_caller_works);
    RUN(an_idle_pool_takes_no_processor);
    RUN(bad_thread_counts_are_refused);
    return check_end();
}
