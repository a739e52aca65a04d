/* tools/bench/bench_model.c - `llmq bench model`: prefill and decode of a whole model.
 *
 * Decoding sequences get a cache of zeros in place of a prefilled one: the time is the same. What
 * memory gives changes from second to second on a shared machine: it is measured between a row's
 * steps, too, and binds that row. */
#include "tools/bench/bench.h"

#include "base/json.h"
#include "base/machine.h"
#include "kernels/bench/bench_dev.h"
#include "runtime/model/kv_state.h"
#include "tools/bench/bench_kv.h"
#include "tools/bench/bench_policy.h"
#include "tools/bench/bench_profile.h"
#include "tools/bench/bench_spec.h"
#include "tools/cli/load.h"

#include <stdlib.h>

enum { PREFILL_RUNS = 3, MAX_BATCH = 4096, READ_EVERY = 8 /* steps */ };

typedef struct {
    char name[24], shape[40];
    int64_t batch, tokens; /* sequences; tokens per step */
    double seconds, gflops, gbytes_s, percent, tok_s;
    double read_gbytes_s;  /* between its steps */
    double limit_tok_s;    /* of the machine, */
    bool arithmetic;       /* which binds by its arithmetic; else by its memory */
    bench_profile profile; /* with --profile */
} model_row;

typedef struct {
    const bench_cmd *o;
    const char *path; /* NULL: built in */
    pool *p;
    load_model loaded;
    model builtin;
    const model *m;
    bench_limits limits;
    double bytes_s, flops_s; /* those that bind the row at work */
    bench_reader reader;     /* none on a device */
    int64_t prompt, context;
    int64_t *batch, n_batch;
    model_row *rows;
    int64_t n_rows;
    double *times, *reads;
    bench_profile profile; /* of the row at work */
    bench_kv kv;
    bench_spec spec;     /* with --spec-accept */
    bench_policy policy; /* with --mixed */
} session;

static lq_status open_model(session *b, const cmd_ctx *c, lq_err *err)
{
    load_opts how = load_opts_of(c, &b->o->model);
    how.beside.step.max_logits = 512;
    if (b->path) {
        b->m = &b->loaded.m;
        return load_model_open(&b->loaded, b->path, &how, b->p, c, err);
    }
    qt_scheme s;
    lq_status e = qt_scheme_parse(&s, b->o->scheme, err);
    if (!e) e = model_builtin(&b->builtin, b->o->shape, &s, b->p, err);
    b->m = &b->builtin;
    if (lq_exit_code(e) == lq_exit_code(LQ_EVALUE)) return LQ_EUSAGE; /* --scheme was wrong */
    return e ? e : load_device(&b->builtin, &how, err);
}

static const char *model_name(const session *b)
{
    return b->path ? b->path : model_shape_title(b->o->shape);
}

/* Of the first layer's attention output, which every architecture has. */
/* Of the widest product of the first layer: a layer may have no attention. */
static const qt_scheme *layer_scheme(const model *m)
{
    const model_layer *l = &m->layers[0];
    const model_linear *most = &l->lin[R_O];
    for (int r = 0; r < ARCH_N_ROLES; r++)
        if (l->lin[r].present && l->lin[r].w.N * l->lin[r].w.K > most->w.N * most->w.K)
            most = &l->lin[r];
    return &most->w.t.scheme;
}

/* Lengths within the model's own: one that nobody asked for is made to fit. The built-in shape has
 * any. */
static lq_status fit_lengths(session *b, const cmd_ctx *c, lq_err *err)
{
    const int64_t most = b->m->cfg->max_pos, steps = b->o->steps;
    b->prompt = b->o->prompt;
    b->context = b->o->context;
    if (!b->path || most <= 0) return LQ_OK;
    if (b->prompt > most && !opt_given(c, "prompt")) b->prompt = most;
    if (b->context + steps > most && !opt_given(c, "context")) b->context = most - steps;
    if (b->prompt > most)
        return lq_fail(err, LQ_EUSAGE,
                       "--prompt: expected at most %lld (the model's maximum), found %lld",
                       (long long)most, (long long)b->prompt);
    if (steps > most || b->context + steps > most)
        return lq_fail(
            err, LQ_EUSAGE,
            "--context and --steps: expected at most %lld together (the model's maximum), "
            "found %lld and %lld",
            (long long)most, (long long)b->o->context, (long long)steps);
    return LQ_OK;
}

/* The caches that the rows need, one row at a time. */
static lq_status check_memory(const session *b, lq_err *err)
{
    const size_t there = machine_memory();
    int64_t most = 0;
    for (int64_t i = 0; i < b->n_batch; i++)
        if (b->batch[i] > most) most = b->batch[i];
    const double tokens = (double)most * (double)(b->context + b->o->steps);
    const double need = tokens * (double)kv_token_bytes(b->m->cfg, opt_kv(&b->o->model));
    if (model_dev(b->m) || !there || need <= (double)there) return LQ_OK;
    char a[16], z[16];
    return lq_fail(
        err, LQ_EUSAGE,
        "--batch %lld and --context %lld: expected a KV cache of at most %s (free here), "
        "found %s",
        (long long)most, (long long)b->context, opt_size_text(a, sizeof a, (double)there),
        opt_size_text(z, sizeof z, need));
}

/* What auto comes to where the model is. */
static mm_acts acts_of(const session *b)
{
    const mm_acts a = opt_acts(&b->o->model);
    return a == MM_I8 && model_dev(b->m) && !opt_int8(&b->o->model) ? MM_BF16 : a;
}

static lq_status measure_limits(session *b, lq_err *err)
{
    bench_limits one;
    if (model_dev(b->m)) {
        b->flops_s = HUGE_VAL; /* its arithmetic is not measured: only memory binds here */
        return bench_dev_copy(model_dev(b->m), &b->bytes_s, err);
    }
    lq_status s = bench_limits_run(&one, &b->limits, &(bench_opts){ 0 }, b->p, err);
    if (!s) s = bench_reader_open(&b->reader, NULL, err);
    mm_acts acts = mm_effective(layer_scheme(b->m), opt_acts(&b->o->model));
    if (!(b->limits.gflops[acts] > 0)) acts = MM_F32; /* no instruction for it: f32 does the work */
    b->bytes_s = b->limits.read_gbytes_s * 1e9;
    b->flops_s = b->limits.gflops[acts] * 1e9;
    return s;
}

/* ---- what a step costs at least ---- */

/* Operations of `tokens` new tokens, `logits` of which go through the head, that see `keys` keys
 * each. */
static double step_flops(const session *b, int64_t tokens, int64_t logits, double keys)
{
    const model *m = b->m;
    const arch_config *c = m->cfg;
    double beside = 0; /* products: attention, and 7 of each entry of a state (kernels/scan.h) */
    for (int64_t i = 0; i < c->layers; i++) {
        const arch_config *own = arch_at(c, i);
        if (kv_layer_bytes(c, i, 1, opt_kv(&b->o->model)))
            beside += 2 * (double)(own->heads * (own->head_dim + own->v_dim)) * keys;
        beside += 7 * (double)kv_state_floats(c, i);
    }
    return (double)tokens * (model_row_flops(m) + beside) + (double)logits * model_logits_flops(m);
}

/* The weights once, the cache of every sequence, and its state read and written. */
static double step_bytes(const session *b, int64_t sequences, int64_t context)
{
    const arch_config *c = b->m->cfg;
    double kv = (double)kv_token_bytes(c, opt_kv(&b->o->model)) * (double)(sequences * context);
    const double state = 2.0 * sizeof(float) * (double)kv_state_offset(c, c->layers);
    return (double)b->m->weight_bytes + kv + state * (double)sequences;
}

static void add_row(session *b, const char *name, int64_t batch, int64_t tokens, double seconds,
                    double flops, double bytes)
{
    model_row *r = &b->rows[b->n_rows++];
    *r = (model_row){ .batch = batch, .tokens = tokens, .seconds = seconds, .profile = b->profile };
    snprintf(r->name, sizeof r->name, "%s", name);
    snprintf(r->shape, sizeof r->shape, "%lld x %lld", (long long)batch,
             (long long)(tokens / batch));
    double limit = fmax(flops / b->flops_s, bytes / b->bytes_s);
    r->gflops = flops / seconds * 1e-9;
    r->gbytes_s = bytes / seconds * 1e-9;
    r->percent = 100 * limit / seconds;
    r->tok_s = (double)tokens / seconds;
    r->limit_tok_s = (double)tokens / limit;
    r->read_gbytes_s = b->bytes_s * 1e-9;
    r->arithmetic = flops / b->flops_s > bytes / b->bytes_s;
}

/* ---- running ---- */

/* The next `steps` steps of `tokens` rows, `logits` of which go through the head. */
static void watch(session *b, int64_t steps, int64_t tokens, int64_t logits)
{
    b->profile = (bench_profile){ .steps = steps, .tokens = tokens, .logits = logits };
    if (b->o->profile) pool_watch(b->p, &b->profile.times);
}

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

static bench_fwd how_of(const session *b)
{
    return (bench_fwd){ .acts = acts_of(b), .kv = opt_kv(&b->o->model), .p = b->p };
}

static lq_status run_prefill(session *b, const lq_job *job, lq_err *err)
{
    const int64_t T = b->prompt;
    bench_batch k;
    const bench_fwd how = how_of(b);
    lq_status s = bench_batch_open(&k, b->m, &how, 1, T, T, err);
    watch(b, PREFILL_RUNS, T, 1);
    for (int i = 0; i < PREFILL_RUNS && !s; i++) {
        s = lq_stopped(job) ? LQ_EINTR : bench_batch_step(&b->times[i], &k, T, 1, 0, err);
        lq_report(job, "prefill", i + 1, PREFILL_RUNS);
    }
    pool_watch(b->p, NULL);
    bench_batch_close(&k);
    if (!s)
        add_row(b, "prefill", 1, T, median(b->times, PREFILL_RUNS),
                step_flops(b, T, 1, (double)(T + 1) / 2), step_bytes(b, 1, T));
    return s;
}

/* Between the steps of a row: what memory gives, and a step that finds the caches as every other
 * does. */
static lq_status read_between(session *b, int64_t at, bench_batch *k, int64_t pos, lq_err *err)
{
    double ignored;
    pool_watch(b->p, NULL);
    if (b->reader.data) b->reads[at] = bench_reader_run(&b->reader, b->p) * 1e9;
    lq_status s = bench_batch_step(&ignored, k, 1, 1, pos, err);
    if (b->o->profile) pool_watch(b->p, &b->profile.times);
    return s;
}

static lq_status run_decode(session *b, int64_t n, const lq_job *job, lq_err *err)
{
    const int64_t C = b->context, steps = b->o->steps;
    bench_batch k;
    const bench_fwd how = how_of(b);
    lq_status s = bench_batch_open(&k, b->m, &how, n, C + steps, 1, err);
    watch(b, steps, n, n);
    for (int64_t i = 0; i < steps && !s; i++) {
        if (i % READ_EVERY == 0) s = read_between(b, i / READ_EVERY, &k, C + i, err);
        if (!s)
            s = lq_stopped(job) ? LQ_EINTR : bench_batch_step(&b->times[i], &k, 1, 1, C + i, err);
        lq_report(job, "decode", (double)(i + 1), (double)steps);
    }
    pool_watch(b->p, NULL);
    bench_batch_close(&k);
    int64_t keys = C + steps / 2;
    if (!s && b->reader.data) b->bytes_s = median(b->reads, lq_ceil_div(steps, READ_EVERY));
    if (!s)
        add_row(b, "decode", n, n, median(b->times, steps), step_flops(b, n, n, (double)keys),
                step_bytes(b, n, keys));
    return s;
}

static lq_status run_rows(session *b, const lq_job *job, lq_err *err)
{
    size_t times = (size_t)(b->o->steps > PREFILL_RUNS ? b->o->steps : PREFILL_RUNS);
    b->rows = calloc((size_t)b->n_batch + 1, sizeof *b->rows);
    b->times = calloc(times, sizeof *b->times);
    b->reads = calloc((size_t)lq_ceil_div(b->o->steps, READ_EVERY), sizeof *b->reads);
    if (!b->rows || !b->times || !b->reads) return lq_fail(err, LQ_ENOMEM, "out of memory");
    lq_status s = run_prefill(b, job, err);
    for (int64_t i = 0; i < b->n_batch && !s; i++)
        s = run_decode(b, b->batch[i], job, err);
    const bench_fwd how = how_of(b);
    if (!s && b->o->accept > 0)
        s = bench_spec_run(&b->spec, b->m, &how, b->o->accept, b->context, job, err);
    if (!s && b->o->mixed)
        s = bench_policy_run(&b->policy, b->m, &how, b->o->mixed, b->o->places, job, err);
    if (!s) s = bench_kv_run(&b->kv, b->m->cfg, how.kv, err);
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
    cJSON_AddStringToObject(doc, "model", model_name(b));
    cJSON_AddStringToObject(doc, "scheme", scheme);
    cJSON_AddNumberToObject(doc, "weight_bytes", (double)b->m->weight_bytes);
    cJSON_AddStringToObject(doc, "kernels", k_name());
    cJSON_AddStringToObject(doc, "device", model_device(b->m));
    cJSON_AddStringToObject(doc, "activations", mm_acts_text(acts_of(b)));
    cJSON_AddStringToObject(doc, "kv_cache_dtype", kv_types_text(opt_kv(&b->o->model)));
    cJSON_AddNumberToObject(doc, "threads", pool_threads(b->p));
    if (model_dev(b->m))
        cJSON_AddNumberToObject(cJSON_AddObjectToObject(doc, "limits"), "copy_gbytes_s",
                                b->bytes_s * 1e-9);
    else
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
        cJSON_AddNumberToObject(o, "read_gbytes_s", r->read_gbytes_s);
        cJSON_AddNumberToObject(o, "limit_tok_s", r->limit_tok_s);
        cJSON_AddStringToObject(o, "bound_by", r->arithmetic ? "arithmetic" : "memory");
        if (i && single_decode(b) > 0)
            cJSON_AddNumberToObject(o, "times_one", r->tok_s / single_decode(b));
        if (b->o->profile) bench_profile_json(o, &r->profile, b->m, b->flops_s, pool_threads(b->p));
        cJSON_AddItemToArray(list, o);
    }
    if (b->o->accept > 0) bench_spec_json(doc, &b->spec);
    if (b->o->mixed) bench_policy_json(doc, &b->policy);
    bench_kv_json(doc, &b->kv);
    return cmd_print_json(doc, err);
}

static void print_table(const session *b)
{
    char scheme[40], size[16];
    qt_scheme_text(scheme, layer_scheme(b->m));
    printf("%s, %s, %s read per step; kernels %s, activations %s, KV %s, %d threads\n",
           model_name(b), scheme, opt_size_text(size, sizeof size, (double)b->m->weight_bytes),
           model_dev(b->m) ? model_dev(b->m)->ops->name : k_name(), mm_acts_text(acts_of(b)),
           kv_types_text(opt_kv(&b->o->model)), pool_threads(b->p));
    if (model_dev(b->m))
        printf("%s: %.1f GB/s read and written by copies; its arithmetic is not measured\n",
               model_device(b->m), b->bytes_s * 1e-9);
    else
        bench_print_limits(&b->limits);
    printf("\n");
    printf("%-8s %10s %10s %9s %9s %8s %10s %14s %8s\n", "", "batch x new", "tokens/s", "ms a step",
           "GFLOP/s", "GB/s", "% of limit", "limit tokens/s", "x one");
    for (int64_t i = 0; i < b->n_rows; i++) {
        const model_row *r = &b->rows[i];
        char times[16] = "";
        if (i && single_decode(b) > 0)
            snprintf(times, sizeof times, "%.2f", r->tok_s / single_decode(b));
        printf("%-8s %11s %10.2f %9.2f %9.1f %8.2f %10.1f %10.1f %-3.3s %8s\n", r->name, r->shape,
               r->tok_s, r->seconds * 1e3, r->gflops, r->gbytes_s, r->percent, r->limit_tok_s,
               r->arithmetic ? "arithmetic" : "memory", times);
    }
    printf("limit: by ari(thmetic) or mem(ory), whichever takes longer%s\n",
           b->reader.data ? "; of decode by what reading gave between its steps" : "");
    for (int64_t i = 0; i < b->n_rows && b->o->profile; i++) {
        char title[64];
        snprintf(title, sizeof title, "%s %s", b->rows[i].name, b->rows[i].shape);
        bench_profile_print(title, &b->rows[i].profile, b->m, b->flops_s, pool_threads(b->p));
    }
    if (b->o->accept > 0) bench_spec_print(&b->spec);
    if (b->o->mixed) bench_policy_print(&b->policy);
    bench_kv_print(&b->kv);
}

lq_status bench_model(const cmd_ctx *c, const bench_cmd *o, lq_err *err)
{
    session b = { .o = o, .path = c->argc > 1 ? c->argv[1] : NULL };
    lq_status s = opt_parse_ints(o->batch, "--batch", 1, MAX_BATCH, &b.batch, &b.n_batch, err);
    if (!s && b.path && opt_given(c, "shape"))
        s = lq_fail(err, LQ_EUSAGE, "--shape: expected without a MODEL, found %s", b.path);
    if (!s) s = load_start(&b.p, c, &o->model, err);
    if (!s) s = open_model(&b, c, err);
    if (!s) s = fit_lengths(&b, c, err);
    if (!s) s = check_memory(&b, err);
    if (!s) s = measure_limits(&b, err);
    if (!s) s = run_rows(&b, c->job, err);
    prog_end();
    lq_err unsaid;
    if (s == LQ_EINTR) {
        lq_fail(err, s, "interrupted");
        if (b.n_rows && c->json) print_json(&b, &unsaid); /* the rows before are no worse for it */
    }
    if (!s && c->json) s = print_json(&b, err);
    if (!s && !c->json) print_table(&b);
    load_model_close(&b.loaded);
    model_free(&b.builtin);
    pool_close(b.p);
    free(b.batch);
    free(b.rows);
    free(b.times);
    free(b.reads);
    bench_reader_close(&b.reader);
    return s;
}
