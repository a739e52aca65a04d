/* tools/bench/bench_attn.c - `llmq bench attention`: one layer's attention over a whole prompt, naive and
 * by tiles: its time and its scratch, by the prompt's length. */
#include "tools/bench/bench.h"

#include "base/clock.h"
#include "base/json.h"
#include "kernels/bench/attn_naive.h"
#include "tools/cli/load.h"

#include <stdlib.h>

enum { H = 32, HKV = 4, D = 64, BLOCK = 16, SHORTEST = 128, MAX_ROWS = 32, RUNS = 3 };
const char *const bench_attentions[] = { "both", "naive", "flash", NULL };
enum { BOTH, NAIVE, FLASH };

typedef struct {
    int64_t n; /* tokens */
    int way;
    double seconds, scratch;
} attn_row;

typedef struct {
    lq_arena arena;
    attn_args a;
    attn_seq seq;
} prompt;

/* n rows of queries over as many written positions. */
static lq_status prompt_open(prompt *t, int64_t n, kv_types d, bool bf16, lq_err *err)
{
    const size_t rows = (size_t)HKV * BLOCK, half = attn_kv_row_bytes(kv_of(d, true), D) * rows,
                 stride = half + attn_kv_row_bytes(kv_of(d, false), D) * rows;
    int64_t blocks = lq_ceil_div(n, BLOCK);
    lq_status s = lq_arena_init(&t->arena, 0, err);
    if (s) return s;
    uint8_t *kv = lq_push(&t->arena, stride * (size_t)blocks);
    float *q = lq_push(&t->arena, (size_t)(n * H * D) * 4),
          *out = lq_push(&t->arena, (size_t)(n * H * D) * 4);
    int32_t *table = lq_push(&t->arena, (size_t)blocks * sizeof *table);
    if (!kv || !q || !out || !table) return lq_fail(err, LQ_ENOMEM, "no memory for the benchmark");
    for (int32_t i = 0; i < blocks; i++)
        table[i] = i;
    for (int64_t i = 0; i < n * H * D; i++)
        q[i] = (float)(i % 17) * 0.01f;
    for (int64_t i = 0; i < n; i++) {
        uint8_t *block = kv + (size_t)(i / BLOCK) * stride;
        attn_kv_write(block, (int)(i % BLOCK), BLOCK, q + i * H * D, HKV, D, kv_of(d, true));
        attn_kv_write(block + half, (int)(i % BLOCK), BLOCK, q + i * H * D, HKV, D,
                      kv_of(d, false));
    }
    t->seq = (attn_seq){ .n_rows = n, .table = table };
    t->a = (attn_args){ .q = q,
                        .ldq = H * D,
                        .out = out,
                        .ldo = H * D,
                        .k = kv,
                        .v = kv + half,
                        .block_stride = stride,
                        .block_size = BLOCK,
                        .dtype = d,
                        .turned = kv_turned(kv_of(d, false)),
                        .bf16 = bf16,
                        .H = H,
                        .Hkv = HKV,
                        .D = D,
                        .Dv = D,
                        .scale = 0.125f,
                        .seqs = &t->seq,
                        .n_seqs = 1 };
    return LQ_OK;
}

/* The best of some runs; the first also touches the scratch. */
static lq_status measure(attn_row *r, prompt *t, pool *p, const lq_job *job, lq_err *err)
{
    size_t bytes = r->way == NAIVE ? attn_naive_scratch_bytes(&t->a)
                                   : attn_scratch_bytes(H, D, pool_threads(p));
    lq_arena scratch;
    lq_status s = lq_arena_init(&scratch, bytes, err);
    if (s) return s;
    for (int i = 0; i <= RUNS && !s; i++) {
        double start = lq_now();
        if (r->way == NAIVE)
            attn_naive_run(&t->a, &scratch, p);
        else
            attn_run(&t->a, &scratch, p);
        double took = lq_now() - start;
        if (i == 1 || (i > 1 && took < r->seconds)) r->seconds = took;
        if (lq_stopped(job)) s = LQ_EINTR;
    }
    r->scratch = (double)bytes;
    lq_arena_free(&scratch);
    return s;
}

static lq_status bench_attn_run(attn_row *rows, int *n_rows, const bench_cmd *o, pool *p,
                                const lq_job *job, lq_err *err)
{
    lq_status s = LQ_OK;
    for (int64_t n = SHORTEST; n <= o->longest && !s; n *= 2) {
        prompt t = { 0 };
        s = prompt_open(&t, n, opt_kv(&o->model), opt_acts(&o->model) != MM_F32, err);
        for (int way = NAIVE; way <= FLASH && !s; way++) {
            if (o->attention != BOTH && o->attention != way) continue;
            attn_row *r = &rows[(*n_rows)++];
            *r = (attn_row){ .n = n, .way = way };
            s = measure(r, &t, p, job, err);
        }
        lq_arena_free(&t.arena);
        lq_report(job, "attention", (double)n, (double)o->longest);
    }
    return s;
}

static lq_status print_json(const attn_row *rows, int n, const bench_cmd *o, pool *p, lq_err *err)
{
    cJSON *doc = cJSON_CreateObject(), *list = cJSON_AddArrayToObject(doc, "rows");
    cJSON_AddStringToObject(doc, "kernels", k_name());
    cJSON_AddStringToObject(doc, "kv_cache_dtype", kv_types_text(opt_kv(&o->model)));
    cJSON_AddNumberToObject(doc, "threads", pool_threads(p));
    for (int i = 0; i < n; i++) {
        cJSON *r = cJSON_CreateObject();
        cJSON_AddStringToObject(r, "attention", bench_attentions[rows[i].way]);
        cJSON_AddNumberToObject(r, "tokens", (double)rows[i].n);
        cJSON_AddNumberToObject(r, "seconds", rows[i].seconds);
        cJSON_AddNumberToObject(r, "scratch_bytes", rows[i].scratch);
        cJSON_AddItemToArray(list, r);
    }
    return cmd_print_json(doc, err);
}

static void print_table(const attn_row *rows, int n, const bench_cmd *o, pool *p)
{
    printf("one layer over a whole prompt: %d heads of %d, %d KV heads, KV %s, kernels %s, %d "
           "threads\n\n%-8s %8s %12s %14s\n",
           H, D, HKV, kv_types_text(opt_kv(&o->model)), k_name(), pool_threads(p), "", "tokens",
           "ms", "scratch");
    for (int i = 0; i < n; i++) {
        char size[16];
        printf("%-8s %8lld %12.2f %14s\n", bench_attentions[rows[i].way], (long long)rows[i].n,
               rows[i].seconds * 1e3, opt_size_text(size, sizeof size, rows[i].scratch));
    }
}

lq_status bench_attention(const cmd_ctx *c, const bench_cmd *o, lq_err *err)
{
    if (c->argc > 1) return lq_fail(err, LQ_EUSAGE, "bench attention takes no MODEL");
    attn_row rows[MAX_ROWS];
    int n = 0;
    pool *p = NULL;
    lq_status s = opt_only_cpu(&o->model, "bench attention", err);
    if (!s) s = load_start(&p, c, &o->model, err);
    if (!s) s = bench_attn_run(rows, &n, o, p, c->job, err);
    if (s == LQ_EINTR) lq_fail(err, s, "interrupted");
    if (!s) prog_end();
    if (!s && c->json) s = print_json(rows, n, o, p, err);
    if (!s && !c->json) print_table(rows, n, o, p);
    pool_close(p);
    return s;
}
