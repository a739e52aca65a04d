/* kernels/bench/bench.h - what this machine can do at most, and how near each kernel comes.
 *
 * Limits are measured with the kernels in use (k_init): reading memory, and multiply-adds from
 * registers alone in f32, bf16 and int8. A kernel's row then says its share of the limit that binds
 * it: memory for few rows of activations, arithmetic for many. Times are the best of the
 * repetitions. */
#ifndef LLMQ_KERNELS_BENCH_BENCH_H
#define LLMQ_KERNELS_BENCH_BENCH_H

#include "kernels/mm.h"

typedef struct {
    int threads;
    double read_gbytes_s;     /* a buffer of bench_opts.bytes, read in contiguous parts */
    double gflops[MM_N_ACTS]; /* 2 per multiply-add; 0 for MM_BF16 where there is no instruction */
} bench_limits;

typedef struct {
    char name[32];  /* "u4-g128 int8", "attention f16" */
    char shape[48]; /* "1x16384x2048" = M x N x K; "1 at 2048, 32/4x64" = rows at position, H/Hkv x
                       D */
    int threads;
    double seconds;          /* one call */
    double gflops, gbytes_s; /* bytes: weights (or keys and values) once, activations once */
    double percent_of_limit; /* the larger of the two shares */
} bench_row;

/* What sharing work costs: inside a step (pool.h), with all threads of the pool. */
typedef struct {
    int threads, cpus; /* cpus: what this process may use */
    /* Seconds of a region in which every thread takes one item and waits in it for the others:
     * waking, meeting and ending. The best and the median of many. */
    double meet_best, meet_median;
    /* One row's product, as in decode, next to a busy thread of no part in it. */
    double load;     /* cores that it took, as measured */
    double slowdown; /* time next to it over time alone, in turns */
    double fair; /* what the loss of `load` cores explains: threads / min(threads, cpus - load) */
} bench_sharing;

typedef struct {
    double seconds; /* spent on each row; 0: 0.03 */
    size_t bytes;   /* of the buffer that is read; 0: 256 MB */
} bench_opts;

enum { BENCH_MAX_ROWS = 128 };

/* A buffer beyond any cache, to see in between what memory gives at this moment. */
typedef struct {
    uint8_t *data;
    size_t bytes;
} bench_reader;
lq_status bench_reader_open(bench_reader *r, const bench_opts *o, lq_err *err); /* LQ_ENOMEM */
double bench_reader_run(const bench_reader *r, pool *p); /* GB/s of reading it once */
void bench_reader_close(bench_reader *r);

/* Limits with one thread and with all of p's (equal when p has one). LQ_ENOMEM. */
lq_status bench_limits_run(bench_limits *one, bench_limits *all, const bench_opts *o, pool *p,
                           lq_err *err);
enum { BENCH_MAX_STEPS = 20 };
typedef struct {
    char name[24];
    double seconds; /* best */
    double bytes;   /* read and written, weights included, by this step of all rows */
} bench_step;
/* One layer (hidden 2048, 32 heads, 4 of keys, ffn 5632), M rows that end at position `depth`; the
 * last step is all of it. */
typedef struct {
    bool fused;
    int64_t M, depth;
    bench_step step[BENCH_MAX_STEPS];
    int n_steps;
} bench_chain;

/* The layer's steps as the forward pass joins them, or each on its own. M: 1..2048. LQ_EVALUE
 * (scheme), LQ_ENOMEM. */
lq_status bench_chain_run(bench_chain *out, bool fuse, int64_t M, const char *scheme, mm_acts acts,
                          const bench_opts *o, pool *p, lq_err *err);
/* LQ_ENOMEM. With one thread meet_best and meet_median are 0. */
lq_status bench_sharing_run(bench_sharing *s, const bench_opts *o, pool *p, lq_err *err);
/* Rows for all of p's threads next to the limits of as many. LQ_ENOMEM, LQ_EINTR. */
lq_status bench_kernels_run(bench_row rows[BENCH_MAX_ROWS], int *n_rows, const bench_limits *all,
                            const bench_opts *o, pool *p, const lq_job *job, lq_err *err);

#endif
