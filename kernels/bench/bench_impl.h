/* kernels/bench/bench_impl.h - what the files of the benchmark share. */
#ifndef LLMQ_KERNELS_BENCH_BENCH_IMPL_H
#define LLMQ_KERNELS_BENCH_BENCH_IMPL_H

#include "kernels/bench/bench.h"

double bench_row_seconds(const bench_opts *o);
/* A tiled weight of arbitrary codes: what they are changes no time. LQ_ENOMEM, LQ_EVALUE. */
lq_status bench_make_weight(mm_weight *w, const char *scheme, int64_t N, int64_t K, lq_arena *a,
                            lq_err *err);

#endif
