/* tools/bench/bench_kv.h - what a token of context takes: the formula against memory, by type and by the
 * number of KV heads. */
#ifndef LLMQ_TOOLS_BENCH_BENCH_KV_H
#define LLMQ_TOOLS_BENCH_BENCH_KV_H

#include "base/json.h"
#include "runtime/model/kv.h"

typedef struct {
    kv_dtype dtype;
    double formula, measured; /* bytes of a token */
} bench_kv_type;

typedef struct {
    const char *name; /* multi-head, this model's own, multi-query */
    int64_t heads;
    double bytes; /* of a token, by the formula */
} bench_kv_heads;

typedef struct {
    kv_types dtype; /* of `heads` */
    bench_kv_type types[KV_N_DTYPES];
    bench_kv_heads heads[3];
    double state; /* bytes of a sequence, of layers that have one instead of a cache */
} bench_kv;

/* dtype: of the second table. Each type's cache is made and written, 32 MiB or a block of it. */
lq_status bench_kv_run(bench_kv *b, const arch_config *c, kv_types dtype, lq_err *err);
void bench_kv_json(cJSON *doc, const bench_kv *b);
void bench_kv_print(const bench_kv *b);

#endif
