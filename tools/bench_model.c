/* tools/bench_model.c - `llmq bench model`: prefill and decode of a whole model.
 *
 * Decoding sequences get a cache of zeros in place of a prefilled one: the time is the same. */
#include "tools/bench.h"

#include "formats/json.h"
#include "runtime/forward.h"
#include "tools/load.h"

#include <stdlib.h>

enum { BLOCK = 32, PREFILL_RUNS = 3, MAX_BATCH = 4096 };

typedef struct {
    char name[24], shape[40];
    int64_t batch, tokens; /* sequences; tokens per step */
    double seconds, gflops, gbytes_s, percent, tok_s;
} model_row;

typedef struct {
    const bench_cmd *o;
    const char *path; /* NULL: built in */
    pool *p;
    load_model loaded;
    model builtin;
    const model *m;
    bench_limits limits;
    double bytes_s, flops_s; /* those that bind this model */
    int64_t *batch, n_batch;
    model_row *rows;
    int64_t n_rows;
    double *times;
} session;

static lq_status open_model(session *b, const cmd_ctx *c, lq_err *err)
{
    if (b->path) {
        b->m = &b->loaded.m;
        return load_model_open(&b->loaded, b->path, b->p, c, err);
    }
    qt_scheme s;
    lq_status e = qt_scheme_parse(&s, b->o->scheme, err);
    if (!e) e = model_builtin(&b->builtin, &s, b->p, err);
    b->m = &b->builtin;
    return lq_exit_code(e) == lq_exit_code(LQ_EVALUE) ? LQ_EUSAGE : e; /* --scheme was wrong */
}

/* Of the first layer's attention output, which every architecture has. */
static const qt_scheme *layer_scheme(const model *m) { return &m->layers[0].lin[R_O].w.t.scheme; }

static lq_status measure_limits(session *b, lq_err *err)
{
    bench_limits one;
    lq_status s = bench_limits_run(&one, &b->limits, &(bench_opts){ 0 }, b->p, err);
    mm_acts acts = mm_effective(layer_scheme(b->m), opt_acts(&b->o->model));
    if (!(b->limits.gflops[acts] > 0)) acts = MM_F32; /* no instruction for it: f32 does the work */
    b->bytes_s = b->limits.read_gbytes_s * 1e9;
    b->flops_s = b->limits.gflops[acts] * 1e9;
    return s;
}

/* ---- what a step costs at least ---- */

/* Operations of `tokens` new tokens, `logits` of which go through the head, that see `keys` keys
 * each. */
static double step_flops(const model *m, int64_t tokens, int64_t logits, double keys)
{
    const arch_config *c = m->cfg;
    double attention = (double)(c->layers * c->heads * (c->head_dim + c->v_dim)) * keys;
    return (double)tokens * (model_row_flops(m) + 2 * attention) +
           (double)logits * model_logits_flops(m);
}

/* The weights once, and the cache of every sequence. */
static double step_bytes(const session *b, int64_t sequences, int64_t context)
{
    const arch_config *c = b->m->cfg;
    double kv = (double)kv_token_bytes(c, opt_kv(&b->o->model)) * (double)(sequences * context);
    return (double)b->m->weight_bytes + kv;
}

static void add_row(session *b, const char *name, int64_t batch, int64_t tokens, double seconds,
                    double flops, double bytes)
{
    model_row *r = &b->rows[b->n_rows++];
    *r = (model_row){ .batch = batch, .tokens = tokens, .seconds = seconds };
    snprintf(r->name, sizeof r->name, "%s", name);
    snprintf(r->shape, sizeof r->shape, "%lld x %lld", (long long)batch,
             (long long)(tokens / batch));
    double limit = fmax(flops / b->flops_s, bytes / b->bytes_s);
    r->gflops = flops / seconds * 1e-9;
    r->gbytes_s = bytes / seconds * 1e-9;
    r->percent = 100 * limit / seconds;
    r->tok_s = (double)tokens / seconds;
}

/* ---- running ---- */

static int by_value(const void *a, const void *b)
{
    double x, y;
    memcpy(&x, a, sizeof x);
    memcpy(&y, b, sizeof y);
    return (x > y) - (x < y);
}

static double median(double *x, int64_t n)
{
    qsort(x, (size_t)n, sizeof *x, by_value);
    return x[n / 2];
}

typedef struct {
    kv_cache *kv;
    fwd_ctx *f;
    kv_seq *seqs;
    fwd_item *items;
    int32_t *ids;
    int64_t n; /* sequences */
} batch;

static void close_batch(batch *k)
{
    for (int64_t i = 0; i < k->n && k->seqs && k->kv; i++)
        kv_seq_free(k->kv, &k->seqs[i]);
    fwd_close(k->f);
    kv_close(k->kv);
    free(k->seqs);
    free(k->items);
    free(k->ids);
}

/* n sequences of `len` positions in all that take `new` tokens per step. */
static lq_status open_batch(batch *k, const session *b, int64_t n, int64_t len, int64_t new,
                            lq_err *err)
{
    *k = (batch){ .n = n };
    k->seqs = calloc((size_t)n, sizeof *k->seqs);
    k->items = calloc((size_t)n, sizeof *k->items);
    k->ids = calloc((size_t) new, sizeof *k->ids);
    if (!k->seqs || !k->items || !k->ids) return lq_fail(err, LQ_ENOMEM, "out of memory");
    for (int64_t i = 0; i < new; i++)
        k->ids[i] = (int32_t)((i * 31 + 7) % b->m->cfg->vocab);
    kv_opts ko = { .n_blocks = n * lq_ceil_div(len, BLOCK),
                   .block_size = BLOCK,
                   .dtype = opt_kv(&b->o->model) };
    fwd_opts fo = {
        .acts = opt_acts(&b->o->model), .max_rows = n * new, .max_logits = n, .max_seqs = n
    };
    lq_status s = kv_open(&k->kv, b->m->cfg, &ko, err);
    if (!s) s = fwd_open(&k->f, b->m, k->kv, b->p, &fo, err);
    for (int64_t i = 0; i < n && !s; i++)
        s = kv_reserve(k->kv, &k->seqs[i], len, err);
    /* Written once, so that reading it reads memory rather than the kernel's one page of zeros. */
    size_t layer = (size_t)ko.n_blocks * (k->kv ? kv_block_stride(k->kv) : 0);
    for (int64_t l = 0; l < b->m->cfg->layers && !s; l++)
        memset(kv_k(k->kv, l), 0, layer); /* K and V */
    return s;
}

/* One step at position pos; the last token of each sequence gets logits. */
static lq_status timed_step(double *seconds, batch *k, int64_t new, int64_t pos, lq_err *err)
{
    const float *logits;
    for (int64_t i = 0; i < k->n; i++)
        k->items[i] = (fwd_item){
            .seq = &k->seqs[i], .ids = k->ids, .n = new, .pos0 = pos, .logits_from = new - 1
        };
    double start = prog_now();
    lq_status s = fwd_step(k->f, k->items, (int)k->n, &logits, err);
    *seconds = prog_now() - start;
    return s;
}

static lq_status run_prefill(session *b, const lq_job *job, lq_err *err)
{
    int64_t T = b->o->prompt;
    batch k;
    lq_status s = open_batch(&k, b, 1, T, T, err);
    for (int i = 0; i < PREFILL_RUNS && !s; i++) {
        s = lq_stopped(job) ? LQ_EINTR : timed_step(&b->times[i], &k, T, 0, err);
        lq_report(job, "prefill", i + 1, PREFILL_RUNS);
    }
    close_batch(&k);
    if (!s)
        add_row(b, "prefill", 1, T, median(b->times, PREFILL_RUNS),
                step_flops(b->m, T, 1, (double)(T + 1) / 2), step_bytes(b, 1, T));
    return s;
}

static lq_status run_decode(session *b, int64_t n, const lq_job *job, lq_err *err)
{
    const int64_t C = b->o->context, steps = b->o->steps;
    batch k;
    double warm;
    lq_status s = open_batch(&k, b, n, C + steps, 1, err);
    if (!s) s = timed_step(&warm, &k, 1, C, err);
    for (int64_t i = 0; i < steps && !s; i++) {
        s = lq_stopped(job) ? LQ_EINTR : timed_step(&b->times[i], &k, 1, C + i, err);
        lq_report(job, "decode", (double)(i + 1), (double)steps);
    }
    close_batch(&k);
    int64_t keys = C + steps / 2;
    if (!s)
        add_row(b, "decode", n, n, median(b->times, steps), step_flops(b->m, n, n, (double)keys),
                step_bytes(b, n, keys));
    return s;
}

static lq_status run_rows(session *b, const lq_job *job, lq_err *err)
{
    size_t times = (size_t)(b->o->steps > PREFILL_RUNS ? b->o->steps : PREFILL_RUNS);
    b->rows = calloc((size_t)b->n_batch + 1, sizeof *b->rows);
    b->times = calloc(times, sizeof *b->times);
    if (!b->rows || !b->times) return lq_fail(err, LQ_ENOMEM, "out of memory");
    lq_status s = run_prefill(b, job, err);
    for (int64_t i = 0; i < b->n_batch && !s; i++)
        s = run_decode(b, b->batch[i], job, err);
    return s;
}

/* ---- results ---- */

static double single_decode(const session *b)
{
    for (int64_t i = 1; i < b->n_rows; i++)
        if (b->rows[i].batch == 1) return b->rows[i].tok_s;
    return 0;
}

static lq_status print_json(const session *b, lq_err *err)
{
    char scheme[40];
    qt_scheme_text(scheme, layer_scheme(b->m));
    cJSON *doc = cJSON_CreateObject();
    cJSON_AddNumberToObject(doc, "prefill_tok_s", b->rows[0].tok_s);
    if (single_decode(b) > 0) cJSON_AddNumberToObject(doc, "decode_tok_s", single_decode(b));
    cJSON_AddStringToObject(doc, "model", b->path ? b->path : "built-in 1.1 B Llama");
    cJSON_AddStringToObject(doc, "scheme", scheme);
    cJSON_AddNumberToObject(doc, "weight_bytes", (double)b->m->weight_bytes);
    cJSON_AddStringToObject(doc, "kernels", k_name());
    cJSON_AddStringToObject(doc, "activations", mm_acts_text(opt_acts(&b->o->model)));
    cJSON_AddStringToObject(doc, "kv_cache_dtype", kv_dtype_text(opt_kv(&b->o->model)));
    cJSON_AddNumberToObject(doc, "threads", pool_threads(b->p));
    bench_add_limits(doc, "limits", &b->limits);
    cJSON *list = cJSON_AddArrayToObject(doc, "rows");
    for (int64_t i = 0; i < b->n_rows; i++) {
        const model_row *r = &b->rows[i];
        cJSON *o = cJSON_CreateObject();
        cJSON_AddStringToObject(o, "name", r->name);
        cJSON_AddStringToObject(o, "shape", r->shape);
        cJSON_AddNumberToObject(o, "batch", (double)r->batch);
        cJSON_AddNumberToObject(o, "seconds", r->seconds);
        cJSON_AddNumberToObject(o, "gflops", r->gflops);
        cJSON_AddNumberToObject(o, "gbytes_s", r->gbytes_s);
        cJSON_AddNumberToObject(o, "percent_of_limit", r->percent);
        cJSON_AddNumberToObject(o, i ? "decode_tok_s" : "prefill_tok_s", r->tok_s);
        cJSON_AddItemToArray(list, o);
    }
    return cmd_print_json(doc, err);
}

static void print_table(const session *b)
{
    char scheme[40], size[16];
    qt_scheme_text(scheme, layer_scheme(b->m));
    printf("%s, %s, %s read per step; kernels %s, activations %s, KV %s, %d threads\n",
           b->path ? b->path : "built-in 1.1 B Llama", scheme,
           opt_size_text(size, sizeof size, (double)b->m->weight_bytes), k_name(),
           mm_acts_text(opt_acts(&b->o->model)), kv_dtype_text(opt_kv(&b->o->model)),
           pool_threads(b->p));
    bench_print_limits(&b->limits);
    printf("\n");
    printf("%-8s %12s %12s %12s %10s %10s %10s\n", "", "batch x new", "tokens/s", "ms per step",
           "GFLOP/s", "GB/s", "% of limit");
    for (int64_t i = 0; i < b->n_rows; i++) {
        const model_row *r = &b->rows[i];
        printf("%-8s %12s %12.2f %12.2f %10.1f %10.2f %10.1f\n", r->name, r->shape, r->tok_s,
               r->seconds * 1e3, r->gflops, r->gbytes_s, r->percent);
    }
}

lq_status bench_model(const cmd_ctx *c, const bench_cmd *o, lq_err *err)
{
    session b = { .o = o, .path = c->argc > 1 ? c->argv[1] : NULL };
    lq_status s = opt_parse_ints(o->batch, "--batch", 1, MAX_BATCH, &b.batch, &b.n_batch, err);
    if (!s) s = load_start(&b.p, c, &o->model, err);
    if (!s) s = open_model(&b, c, err);
    if (!s) s = measure_limits(&b, err);
    if (!s) s = run_rows(&b, c->job, err);
    if (s == LQ_EINTR) lq_fail(err, s, "interrupted");
    if (!s) prog_end();
    if (!s && c->json) s = print_json(&b, err);
    if (!s && !c->json) print_table(&b);
    load_model_close(&b.loaded);
    model_free(&b.builtin);
    pool_close(b.p);
    free(b.batch);
    free(b.rows);
    free(b.times);
    return s;
}
