/* tools/bench/bench_kv.c - see bench_kv.h. */
#include "tools/bench/bench_kv.h"

#include "runtime/model/kv_state.h"

#include <stdio.h>
#include <unistd.h>

enum { BLOCK = 16, LONG = 4096 };
static const size_t measured_bytes = (size_t)32 << 20;

/* Anonymous memory of this process that is there; 0: the system does not say. */
static double resident_bytes(void)
{
    long long size, all = 0, shared = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    if (!f) return 0;
    if (fscanf(f, "%lld %lld %lld", &size, &all, &shared) != 3) all = shared = 0;
    fclose(f);
    return (double)(all - shared) * (double)sysconf(_SC_PAGESIZE);
}

/* A cache of tokens that were written, as the system counts it. */
static lq_status measure(bench_kv_type *t, const arch_config *c, lq_err *err)
{
    size_t block = kv_block_bytes(c, BLOCK, t->dtype);
    if (!block) return LQ_OK; /* every layer has a state instead */
    kv_opts o = { .n_blocks = (int64_t)(measured_bytes / block) + 1,
                  .block_size = BLOCK,
                  .dtype = t->dtype };
    kv_cache *kv = NULL;
    lq_status s = kv_open(&kv, c, &o, err);
    if (s) return s;
    double before = resident_bytes();
    kv_zero(kv);
    t->measured = (resident_bytes() - before) / (double)(o.n_blocks * BLOCK);
    kv_close(kv);
    return LQ_OK;
}

/* Of a token, had each layer so many KV heads. */
static double with_heads(const arch_config *c, int64_t heads, kv_types d)
{
    double n = 0;
    for (int64_t i = 0; i < c->layers; i++) {
        const arch_config *own = arch_at(c, i);
        if (!kv_layer_bytes(c, i, BLOCK, d)) continue;
        n += (double)heads * (double)(attn_kv_row_bytes(kv_of(d, true), own->head_dim) +
                                      attn_kv_row_bytes(kv_of(d, false), own->v_dim));
    }
    return n;
}

lq_status bench_kv_run(bench_kv *b, const arch_config *c, kv_types dtype, lq_err *err)
{
    enum { OWN = 1 }; /* the second row */
    *b = (bench_kv){ .dtype = dtype,
                     .heads = { { "multi-head", c->heads, 0 },
                                { "this model", c->kv_heads, 0 },
                                { "multi-query", 1, 0 } } };
    b->state = (double)kv_state_offset(c, c->layers) * sizeof(float);
    lq_status s = LQ_OK;
    for (int d = 0; d < KV_N_DTYPES && !s; d++) {
        b->types[d].dtype = (kv_dtype)d;
        b->types[d].formula = (double)kv_token_bytes(c, (kv_dtype)d);
        s = measure(&b->types[d], c, err);
    }
    for (size_t i = 0; i < LQ_COUNT(b->heads); i++)
        b->heads[i].bytes =
            i == OWN ? (double)kv_token_bytes(c, dtype) : with_heads(c, b->heads[i].heads, dtype);
    return s;
}

void bench_kv_json(cJSON *doc, const bench_kv *b)
{
    cJSON *o = cJSON_AddObjectToObject(doc, "kv_cache");
    cJSON_AddNumberToObject(o, "state_bytes", b->state);
    cJSON *types = cJSON_AddArrayToObject(o, "types"), *heads = cJSON_AddArrayToObject(o, "heads");
    for (size_t i = 0; i < LQ_COUNT(b->types); i++) {
        cJSON *row = cJSON_CreateObject();
        cJSON_AddStringToObject(row, "dtype", kv_types_text(b->types[i].dtype));
        cJSON_AddNumberToObject(row, "formula_token_bytes", b->types[i].formula);
        cJSON_AddNumberToObject(row, "measured_token_bytes", b->types[i].measured);
        cJSON_AddItemToArray(types, row);
    }
    for (size_t i = 0; i < LQ_COUNT(b->heads); i++) {
        cJSON *row = cJSON_CreateObject();
        cJSON_AddStringToObject(row, "name", b->heads[i].name);
        cJSON_AddNumberToObject(row, "kv_heads", (double)b->heads[i].heads);
        cJSON_AddNumberToObject(row, "token_bytes", b->heads[i].bytes);
        cJSON_AddItemToArray(heads, row);
    }
}

void bench_kv_print(const bench_kv *b)
{
    if (b->state > 0) printf("\nstate of a sequence: %.1f MiB\n", b->state * 0x1p-20);
    if (!(b->types->formula > 0)) return;
    printf(
        "\nKV cache: 2 x layers x KV heads x head size x bytes, and a scale per head where codes "
        "have one\n%-8s %14s %14s %16s\n",
        "", "bytes a token", "in memory", "tokens a GiB");
    for (size_t i = 0; i < LQ_COUNT(b->types); i++)
        printf("%-8s %14.0f %14.0f %16.0f\n", kv_types_text(b->types[i].dtype), b->types[i].formula,
               b->types[i].measured, 0x1p30 / b->types[i].formula);
    printf("\n%-12s %8s %14s %16s\n", kv_types_text(b->dtype), "KV heads", "bytes a token",
           "MiB for 4,096");
    for (size_t i = 0; i < LQ_COUNT(b->heads); i++)
        printf("%-12s %8lld %14.0f %16.1f\n", b->heads[i].name, (long long)b->heads[i].heads,
               b->heads[i].bytes, b->heads[i].bytes * LONG * 0x1p-20);
}
