/* kernels/bench.h - what this machine can do at most, and how near each kernel comes.
 *
 * Limits are measured with the kernels in use (k_init): reading memory, and multiply-adds from
 * registers alone in f32, bf16 and int8. A kernel's row then says its share of the limit that binds
 * it: memory for few rows of activations, arithmetic for many. Times are the best of the
 * repetitions. */
#ifndef LLMQ_KERNELS_BENCH_H
#define LLMQ_KERNELS_BENCH_H

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

typedef struct {
    double seconds; /* spent on each row; 0: 0.03 */
    size_t bytes;   /* of the buffer that is read; 0: 256 MB */
} bench_opts;

enum { BENCH_MAX_ROWS = 128 };

/* Limits with one thread and with all of p's (equal when p has one). LQ_ENOMEM. */
lq_status bench_limits_run(bench_limits *one, bench_limits *all, const bench_opts *o, pool *p,
                           lq_err *err);
/* Rows for all of p's threads beside the limits of as many. LQ_ENOMEM, LQ_EINTR. */
lq_status bench_kernels_run(bench_row rows[BENCH_MAX_ROWS], int *n_rows, const bench_limits *all,
                            const bench_opts *o, pool *p, const lq_job *job, lq_err *err);

#endif
