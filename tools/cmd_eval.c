/* tools/cmd_eval.c - `llmq eval`: perplexity on a text, distance from another model, gates. */
#include "tools/cli/load.h"
#include "tools/cli/outputs.h"
#include "tools/cli/shard.h"
#include "tools/inflight/inflight.h"

#include "base/buf.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/out_file.h"
#include "kernels/ops.h"
#include "runtime/eval_shard.h"

#include <stdlib.h>

enum { DEFAULT_CTX = 2048 };
typedef enum { RULER_OWN, RULER_GPTQ, RULER_LLAMA_CPP } ruler;

typedef struct {
    const char *text, *ref, *ctx;
    const char *lora;
    const char *base, *save_base; /* --kl-divergence-base, --save-... */
    const char *shard, *out;
    bool merge;
    int64_t windows;
    bool join_rows;
    opt_tri bos;
    int ruler;
    double max_ppl, max_kl, max_kl_p99;
    opt_model model;
    inflight_opts inflight;
} eval_cmd_opts;

static const char *const rulers[] = { "llmq", "gptq", "llama.cpp", NULL };

#define F(field) offsetof(eval_cmd_opts, field)
static const opt_row rows[] = {
    { "text", 't', OPT_STR, F(text), .arg = "FILE",
      .help = "UTF-8 text; needed unless --kl-divergence-base has its own" },
    { "join-rows", 0, OPT_FLAG, F(join_rows),
      .help = "the text's lines are rows of a data set, joined by blank lines as GPTQ's evaluation "
              "joins those of WikiText-2 (wiki.test.raw)" },
    { "ctx", 'c', OPT_STR, F(ctx), .arg = "C[,C...]",
      .help =
          "tokens of a window; several give one row each (default: 2048 or the model's maximum)" },
    { "windows", 0, OPT_INT, F(windows), .def = "0", .lo = 0, .hi = 1e12,
      .help = "score only the first N windows (0: all)" },
    { "bos", 0, OPT_TRI, F(bos),
      .help = "begin each window with BOS, followed by C - 1 tokens of text (default: where the "
              "tokenizer begins a text so)" },
    { "ruler", 0, OPT_ENUM, F(ruler), .def = "llmq", .words = rulers,
      .help = "whose way of measuring to use" },
    { "ref", 'r', OPT_STR, F(ref), .arg = "MODEL2", .files = FILES_MODEL,
      .help =
          "also KL(MODEL2 || MODEL) and how often both choose the same token; MODEL2 runs with f32 "
          "activations and cache, whatever MODEL does" },
    { "kl-divergence-base", 0, OPT_STR, F(base), .arg = "FILE",
      .help = "the same from what this file of llama-perplexity --kl-divergence-base says of "
              "another model, on its text and windows; implies --ruler llama.cpp" },
    { "save-kl-divergence-base", 0, OPT_STR, F(save_base), .arg = "FILE",
      .help = "write such a file of MODEL; with --ruler llama.cpp" },
    { "lora", 0, OPT_STR, F(lora), .arg = "PATH", .help = OPT_LORA_HELP },
};
static const opt_row shard_rows[] = {
    { "out", 'o', OPT_STR, F(out), .arg = "FILE",
      .help = "keep the scores of all tokens, for --merge" },
    { "shard", 0, OPT_STR, F(shard), .arg = "i/N",
      .help = "with --out: of the i-th of N shares of the windows (i from 1); auto: "
              "SLURM_ARRAY_TASK_ID of _COUNT; N alone: JOB_COMPLETION_INDEX says which" },
    { "merge", 0, OPT_FLAG, F(merge),
      .help = "the arguments are such files, of all shares, in place of MODEL: figures as of one "
              "run over all windows" },
};
static const opt_row gates[] = {
    { "max-ppl", 0, OPT_FLOAT, F(max_ppl), .lo = 1, .hi = 1e300, .help = "largest perplexity" },
    { "max-kl", 0, OPT_FLOAT, F(max_kl), .lo = 0, .hi = 1e300,
      .help = "largest mean KL divergence from --ref" },
    { "max-kl-p99", 0, OPT_FLOAT, F(max_kl_p99), .lo = 0, .hi = 1e300,
      .help = "largest 99th percentile of it" },
};

/* What each ruler does differently, as it is told to the user. */
static const char *const ruler_text[] = {
    "text tokenized once without special tokens, cut into whole windows, each scored from its "
    "second token",
    "as GPTQ's evaluation: text tokenized once, special tokens read and added, cut into whole "
    "windows, each scored from its second token",
    "as llama-perplexity: text tokenized once with special tokens, cut into whole windows whose "
    "first token is replaced by BOS where the tokenizer adds one, scored from the token after the "
    "middle",
};
static const char own_after_bos[] =
    "text tokenized once without special tokens, cut into whole windows that each come after BOS, "
    "scored from the token after it";

typedef struct {
    const eval_cmd_opts *o;
    load_model model, ref;
    load_tok tok;
    lora_adapter *lora; /* --lora */
    kl_base base;       /* of --kl-divergence-base */
    int32_t *ids;       /* owned, or base's */
    size_t n_ids;
    eval_row *rows; /* a window length and what came out */
    eval_opts *how; /* [n_rows] */
    int64_t n_rows;
    double seconds;
    int shard, n_shards;
    cJSON *record; /* --merge: what the files have */
} session;

/* Python's "\n\n".join(rows), a row being a line with its end, or "" where that is blank: as the data
 * set library has them. */
static void join_rows(lq_buf *to, const char *text, size_t n)
{
    for (size_t at = 0, end; at < n; at = end) {
        const char *nl = memchr(text + at, '\n', n - at);
        size_t first = at;
        end = nl ? (size_t)(nl - text) + 1 : n;
        while (first < end && strchr(" \t\r\n\v\f", text[first]))
            first++;
        if (at > 0) lq_buf_puts(to, "\n\n");
        if (first < end) lq_buf_add(to, text + at, end - at);
    }
}

static lq_status encode(session *e, const char *text, size_t n, lq_err *err)
{
    static const unsigned flags[] = { [RULER_OWN] = TOK_PLAIN_SPECIAL,
                                      [RULER_GPTQ] = TOK_ADD_SPECIAL,
                                      [RULER_LLAMA_CPP] = TOK_PLAIN_SPECIAL | TOK_ADD_SPECIAL };
    lq_buf joined = { 0 };
    if (e->o->join_rows) {
        join_rows(&joined, text, n);
        text = joined.p;
        n = joined.n;
    }
    lq_status s = joined.oom ? lq_fail(err, LQ_ENOMEM, "out of memory")
                             : tok_encode(e->tok.t, n ? text : "", n, flags[e->o->ruler], &e->ids,
                                          &e->n_ids, err);
    lq_buf_free(&joined);
    return s;
}

static lq_status tokenize(session *e, const char *model_path, lq_err *err)
{
    lq_map map;
    if (e->o->base) {
        e->ids = e->base.ids;
        e->n_ids = (size_t)(e->base.windows * e->base.ctx);
        return LQ_OK;
    }
    lq_status s = load_tok_open(&e->tok, e->model.src, model_path, err);
    if (!s) s = lq_map_open(&map, e->o->text, err);
    if (s) return s;
    s = encode(e, (const char *)map.data, map.size, err);
    lq_map_close(&map);
    return s ? lq_wrap(err, s, "%s", e->o->text) : LQ_OK;
}

/* --ctx, or the base's; 0: the model says. */
static lq_status read_ctx(session *e, lq_err *err)
{
    int64_t *ctx = NULL;
    if (e->o->base) {
        lq_status s = kl_base_open(&e->base, e->o->base, err);
        if (s) return s;
    }
    if (e->o->ctx) {
        lq_status s = opt_parse_ints(e->o->ctx, "--ctx", 2, 1 << 24, &ctx, &e->n_rows, err);
        if (s) return s;
    } else {
        e->n_rows = 1;
    }
    e->rows = calloc((size_t)e->n_rows, sizeof *e->rows);
    e->how = calloc((size_t)e->n_rows, sizeof *e->how);
    for (int64_t i = 0; i < e->n_rows && e->rows && ctx; i++)
        e->rows[i].ctx = ctx[i];
    if (e->o->base && e->rows) e->rows[0].ctx = e->base.ctx;
    free(ctx);
    return e->rows && e->how ? LQ_OK : lq_fail(err, LQ_ENOMEM, "out of memory");
}

static int64_t window_of(const eval_row *r, const arch_config *c)
{
    return r->ctx ? r->ctx : c->max_pos < DEFAULT_CTX ? c->max_pos : DEFAULT_CTX;
}

static void window_lengths(session *e)
{
    const int64_t max_pos = e->model.m.cfg->max_pos;
    for (int64_t i = 0; i < e->n_rows; i++) {
        const int64_t ctx = e->rows[i].ctx = window_of(&e->rows[i], e->model.m.cfg);
        if (ctx > max_pos)
            prog_say(LOG_WARN, "windows of %lld tokens: the model was made for %lld",
                     (long long)ctx, (long long)max_pos);
    }
}

/* The ids that every window begins with. */
static lq_status find_begin(const session *e, eval_opts *o, lq_err *err)
{
    const int32_t bos = e->model.m.cfg->bos;
    if (e->o->ruler == RULER_GPTQ || e->o->bos == OPT_NO) return LQ_OK;
    if (e->o->ruler == RULER_LLAMA_CPP) { /* a base has no tokenizer, and its windows their BOS */
        o->begin[0] = bos;
        o->n_begin = e->n_ids && bos >= 0 && e->ids[0] == bos;
        return LQ_OK;
    }
    lq_status s = tok_begin(e->tok.t, e->model.m.cfg->vocab, TOK_BEGIN, o->begin, &o->n_begin, err);
    if (s == LQ_EUNSUPPORTED && e->o->bos != OPT_YES) { /* as calibration does */
        prog_say(LOG_WARN, "windows begin without BOS: %s", err->msg);
        return LQ_OK;
    }
    if (s || o->n_begin || e->o->bos != OPT_YES) return s;
    if (bos < 0) return lq_fail(err, LQ_EVALUE, "--bos: the model has no BOS token");
    o->begin[0] = bos;
    o->n_begin = 1;
    return LQ_OK;
}

static lq_status set_ruler(session *e, lq_err *err)
{
    const bool llama = e->o->ruler == RULER_LLAMA_CPP;
    eval_opts begin = { 0 };
    lq_status s = find_begin(e, &begin, err);
    if (s) return s;
    for (int64_t i = 0; i < e->n_rows; i++) {
        eval_opts *o = &e->how[i];
        o->ctx = e->rows[i].ctx;
        o->max_windows = e->o->windows;
        o->shard = e->shard;
        o->n_shards = e->n_shards;
        o->lora = e->lora;
        memcpy(o->begin, begin.begin, sizeof o->begin);
        o->n_begin = begin.n_begin;
        o->begin_replaces = llama;
        o->first = llama ? kl_base_first(o->ctx) : begin.n_begin > 1 ? begin.n_begin : 1;
        o->between = llama;
        o->base = e->o->base ? &e->base : NULL;
        o->save_base = e->o->save_base;
        o->acts = opt_acts(&e->o->model);
        o->kv = opt_kv(&e->o->model);
        if (o->first >= o->ctx)
            return lq_fail(err, LQ_EUSAGE, "--ctx: windows of %lld tokens leave nothing to score",
                           (long long)o->ctx);
    }
    return LQ_OK;
}

/* ---- results ---- */

/* Before the work: what is read stays, and so does somebody's file; and there the result can be written. */
static lq_status check_outputs(const cmd_ctx *c, const eval_cmd_opts *o, lq_err *err)
{
    const struct {
        const char *option, *path;
    } out[] = { { "--out", o->out }, { "--save-kl-divergence-base", o->save_base } };
    const char *models[] = { load_named(c, c->argv[0]), o->ref }, *read[2];
    int n = 0;
    if (o->text) read[n++] = o->text;
    if (o->base) read[n++] = o->base;
    lq_status s = LQ_OK;
    for (size_t i = 0; i < LQ_COUNT(out) && !s; i++) {
        if (!out[i].path) continue;
        for (size_t k = 0; k < LQ_COUNT(models) && models[k] && !s; k++)
            s = output_check_place(out[i].option, out[i].path, false, NULL, models[k], err);
        if (!s) s = output_check_own(out[i].option, out[i].path, read, n, err);
        lq_out *there = NULL;
        if (!s) s = lq_out_open(&there, out[i].path, err);
        lq_out_abort(there);
    }
    if (!s && o->out) s = output_check_kind("--out", o->out, EVAL_SHARD_BEGIN, "scores", err);
    return s;
}

/* Does BOS come before the text of each window? */
static bool after_bos(const session *e)
{
    if (e->o->ruler != RULER_OWN) return false;
    return e->record ? cJSON_GetArraySize(js_get(e->record, "begin")) > 0 : e->how[0].n_begin > 0;
}

static bool compares(const session *e) { return e->rows[0].r.token_kl != NULL; }

/* What is printed of a result, as --json has it. */
#define R(field) #field, offsetof(eval_result, field)
static const struct {
    const char *key;
    size_t off;
    bool ref; /* needs a reference */
} figures[] = {
    { R(perplexity), false },
    { R(perplexity_error), false },
    { R(nll), false },
    { R(kl_mean), true },
    { R(kl_error), true },
    { R(kl_median), true },
    { R(kl_p90), true },
    { R(kl_p95), true },
    { R(kl_p99), true },
    { R(kl_p999), true },
    { R(kl_max), true },
    { R(top1_agree), true },
    { R(top1_error), true },
    { R(dp_mean), true },
    { R(dp_error), true },
    { R(dp_rms), true },
    { R(dp_rms_error), true },
    { R(ref_perplexity), true },
    { R(perplexity_diff), true },
    { R(perplexity_diff_error), true },
    { R(perplexity_ratio), true },
    { R(perplexity_ratio_error), true },
};

static void add_row(cJSON *to, const eval_row *row, bool ref)
{
    const eval_result *r = &row->r;
    cJSON_AddNumberToObject(to, "ctx", (double)row->ctx);
    cJSON_AddNumberToObject(to, "tokens", (double)r->tokens);
    cJSON_AddNumberToObject(to, "windows", (double)r->windows);
    for (size_t i = 0; i < LQ_COUNT(figures); i++) {
        double v;
        memcpy(&v, (const char *)r + figures[i].off, sizeof v);
        if (ref || !figures[i].ref) cJSON_AddNumberToObject(to, figures[i].key, v);
    }
}

static void add_hash(cJSON *doc, const char *key, const lq_hash *h)
{
    char hex[33];
    lq_hash_hex(hex, h);
    cJSON_AddStringToObject(doc, key, hex);
}

static lq_status add_fingerprint(cJSON *doc, const char *key, const src_source *src, lq_err *err)
{
    lq_hash h;
    const lq_status s = src_fingerprint(&h, src, err);
    if (!s) add_hash(doc, key, &h);
    return s;
}

/* Which weights the figures are of, as `publish --eval` compares them. */
static lq_status add_weights(cJSON *doc, const session *e, lq_err *err)
{
    if (!e->record) return add_fingerprint(doc, "weights_xxh3", e->model.src, err);
    cJSON_AddItemToObject(doc, "weights_xxh3", cJSON_Duplicate(js_get(e->record, "weights"), true));
    return LQ_OK;
}

static lq_status print_json(const session *e, lq_err *err)
{
    cJSON *doc = cJSON_CreateObject(), *list = cJSON_AddArrayToObject(doc, "by_ctx");
    add_row(doc, &e->rows[0], compares(e));
    for (int64_t i = 0; i < e->n_rows; i++) {
        cJSON *one = cJSON_CreateObject();
        add_row(one, &e->rows[i], compares(e));
        cJSON_AddItemToArray(list, one);
    }
    cJSON_AddStringToObject(doc, "ruler", rulers[e->o->ruler]);
    if (e->o->ruler == RULER_OWN) cJSON_AddBoolToObject(doc, "bos", after_bos(e));
    cJSON_AddNumberToObject(doc, "seconds", e->seconds);
    lq_status s = add_weights(doc, e, err);
    if (!s) return cmd_print_json(doc, err);
    cJSON_Delete(doc);
    return s;
}

/* Under the row of a window length: what the reference adds. */
static void print_compared(const eval_row *row)
{
    const eval_result *r = &row->r;
    printf("\nbeside the reference, windows of %lld\n", (long long)row->ctx);
    printf("  perplexity       %.4f (reference) %+.4f ± %.4f, ratio %.5f ± %.5f\n",
           r->ref_perplexity, r->perplexity_diff, r->perplexity_diff_error, r->perplexity_ratio,
           r->perplexity_ratio_error);
    printf("  KL divergence    mean %.6f ± %.6f, median %.6f, 90 %% %.6f, 95 %% %.6f, 99 %% %.6f, "
           "99.9 %% %.6f, largest %.6f\n",
           r->kl_mean, r->kl_error, r->kl_median, r->kl_p90, r->kl_p95, r->kl_p99, r->kl_p999,
           r->kl_max);
    printf("  same top token   %.3f ± %.3f %%\n", 100 * r->top1_agree, 100 * r->top1_error);
    printf("  next token's probability, less the reference's: mean %+.3f ± %.3f %%, RMS %.3f ± "
           "%.3f %%\n",
           100 * r->dp_mean, 100 * r->dp_error, 100 * r->dp_rms, 100 * r->dp_rms_error);
}

static void print_text(const session *e)
{
    printf("%s\n\n", after_bos(e) ? own_after_bos : ruler_text[e->o->ruler]);
    printf("%8s %8s %10s %12s %10s %10s\n", "ctx", "windows", "tokens", "perplexity", "+-", "nll");
    for (int64_t i = 0; i < e->n_rows; i++) {
        const eval_result *r = &e->rows[i].r;
        printf("%8lld %8lld %10lld %12.4f %10.4f %10.6f\n", (long long)e->rows[i].ctx,
               (long long)r->windows, (long long)r->tokens, r->perplexity, r->perplexity_error,
               r->nll);
    }
    for (int64_t i = 0; i < e->n_rows && compares(e); i++)
        print_compared(&e->rows[i]);
    printf("\n%.1f s\n", e->seconds);
}

/* ---- shares ---- */

/* What all shares of an evaluation have alike. */
static lq_status record_of(cJSON **out, const session *e, lq_err *err)
{
    const eval_opts *o = &e->how[0];
    const lq_hash text = lq_hash_bytes(e->ids, e->n_ids * sizeof *e->ids);
    char lora[20] = "";
    if (e->lora) snprintf(lora, sizeof lora, "%016llx", (unsigned long long)e->lora->id);
    cJSON *r = *out = cJSON_CreateObject();
    cJSON_AddStringToObject(r, "ruler", rulers[e->o->ruler]);
    cJSON_AddStringToObject(r, "kernels", k_name());
    cJSON_AddStringToObject(r, "lora", lora);
    cJSON_AddStringToObject(r, "rope", e->o->model.rope ? e->o->model.rope : "");
    cJSON_AddStringToObject(r, "device", model_device(&e->model.m));
    add_hash(r, "text", &text);
    cJSON_AddItemToObject(r, "begin", cJSON_CreateIntArray(o->begin, o->n_begin));
    cJSON_AddNumberToObject(r, "activations", o->acts);
    cJSON_AddNumberToObject(r, "kv", (double)o->kv);
    if (e->o->base) {
        const lq_hash base = lq_hash_bytes(e->base.map.data, e->base.map.size);
        add_hash(r, "base", &base);
    }
    lq_status s = add_fingerprint(r, "weights", e->model.src, err);
    if (!s && e->o->ref) s = add_fingerprint(r, "ref", e->ref.src, err);
    return s;
}

static lq_status write_scores(const session *e, lq_err *err)
{
    cJSON *record = NULL;
    lq_status s = record_of(&record, e, err);
    if (!s) s = eval_shard_write(e->o->out, record, e->how[0].between, e->rows, e->n_rows, err);
    if (!s)
        prog_say(LOG_INFO, "%s: scores of share %d of %d", e->o->out, e->shard + 1, e->n_shards);
    cJSON_Delete(record);
    return s;
}

/* As if one run had gone over all windows. */
static lq_status merge_scores(session *e, eval_cmd_opts *o, const cmd_ctx *c, lq_err *err)
{
    const char *by, *who;
    const int n = comm_said_size(&who);
    if (n > 1)
        return lq_fail(err, LQ_EUNSUPPORTED, "--merge: expected one process, found %d ranks (%s)",
                       n, who);
    lq_status s = eval_shards_read(&e->rows, &e->n_rows, &e->record, c->argv, c->argc, err);
    if (!s && !compares(e) && (opt_given(c, "max-kl") || opt_given(c, "max-kl-p99")))
        s = lq_fail(err, LQ_EUSAGE, "--max-kl and --max-kl-p99 need scores beside --ref's");
    if (!s) s = js_str(e->record, "ruler", true, &by, err);
    for (o->ruler = 0; !s && rulers[o->ruler] && strcmp(rulers[o->ruler], by) != 0;)
        o->ruler++;
    if (!s && !rulers[o->ruler])
        s = lq_fail(err, LQ_EVALUE, "ruler: expected one of this version's, found %.40s", by);
    return s;
}

/* All rows must pass. */
static lq_status check_gates(const session *e, const cmd_ctx *c, lq_err *err)
{
    for (int64_t i = 0; i < e->n_rows; i++) {
        const eval_result *r = &e->rows[i].r;
        const struct {
            const char *option, *what;
            double got, limit;
        } t[] = {
            { "max-ppl", "perplexity", r->perplexity, e->o->max_ppl },
            { "max-kl", "mean KL divergence", r->kl_mean, e->o->max_kl },
            { "max-kl-p99", "99th percentile of KL divergence", r->kl_p99, e->o->max_kl_p99 },
        };
        for (size_t k = 0; k < LQ_COUNT(t); k++)
            if (opt_given(c, t[k].option) && !(t[k].got <= t[k].limit))
                return lq_fail(err, LQ_ECHECK,
                               "%s: expected at most %g, found %.6g (windows of %lld)", t[k].what,
                               t[k].limit, t[k].got, (long long)e->rows[i].ctx);
    }
    return LQ_OK;
}

/* Which of the two models a device is asked to have room for. */
typedef struct {
    const session *e;
    bool ref;
} runner;

/* Of its windows those that take most. */
static void size_windows(load_beside *b, const arch_config *c, const void *user)
{
    const runner *r = user;
    size_t most = 0;
    for (int64_t i = 0; i < r->e->n_rows; i++) {
        kv_opts kv;
        fwd_opts step;
        const eval_opts o = { .ctx = window_of(&r->e->rows[i], c),
                              .acts = r->ref ? MM_F32 : opt_acts(&r->e->o->model),
                              .kv = r->ref ? KV_F32 : opt_kv(&r->e->o->model) };
        eval_size(&kv, &step, c, &o);
        const size_t n = fwd_dev_bytes(c, &kv, &step) +
                         (size_t)kv.n_blocks * kv_block_bytes(c, kv.block_size, kv.dtype);
        if (n <= most) continue;
        most = n;
        b->step = step;
        b->kv = kv.dtype;
        b->block_size = kv.block_size;
        b->tokens = kv.n_blocks * kv.block_size;
    }
}

static lq_status open_models(session *e, const cmd_ctx *c, pool *p, lq_err *err)
{
    const runner first = { e, false }, ref = { e, true };
    load_opts how = load_opts_of(c, &e->o->model);
    how.beside.exact = how.beside.whole = true;
    how.size = size_windows;
    how.user = &first;
    lq_status s = load_model_open(&e->model, c->argv[0], &how, p, c, err);
    if (s || !e->o->ref) return s;
    how.beside.also = load_left(&e->model.m, &how);
    how.user = &ref;
    return load_model_open(&e->ref, e->o->ref, &how, p, c, err);
}

static lq_status evaluate(session *e, const cmd_ctx *c, pool *p, lq_err *err)
{
    const char *path = c->argv[0];
    lq_status s = read_ctx(e, err);
    if (!s) s = open_models(e, c, p, err);
    if (!s && e->o->lora) s = lora_open(&e->lora, &e->model.m, e->o->lora, 0, p, err);
    if (!s) s = tokenize(e, path, err);
    if (!s) window_lengths(e);
    if (!s) s = set_ruler(e, err);
    if (!s && e->o->save_base && e->n_rows > 1)
        s = lq_fail(err, LQ_EUSAGE, "--save-kl-divergence-base: expected one --ctx, found %lld",
                    (long long)e->n_rows);
    double start = lq_now();
    for (int64_t i = 0; i < e->n_rows && !s; i++)
        s = eval_run(&e->rows[i].r, &e->model.m, e->o->ref ? &e->ref.m : NULL, e->ids,
                     (int64_t)e->n_ids, &e->how[i], p, c->job, err);
    e->seconds = lq_now() - start;
    return s;
}

/* Gates are all that goes with files of scores. */
static lq_status check_merge(const cmd_ctx *c, lq_err *err)
{
    const opt_row *const groups[] = { rows, shard_rows };
    const size_t n[] = { LQ_COUNT(rows), LQ_COUNT(shard_rows) };
    for (size_t g = 0; g < LQ_COUNT(groups); g++)
        for (size_t i = 0; i < n[g]; i++)
            if (strcmp(groups[g][i].name, "merge") != 0 && opt_given(c, groups[g][i].name))
                return lq_fail(err, LQ_EUSAGE, "--%s goes without --merge", groups[g][i].name);
    return LQ_OK;
}

static lq_status eval_check(const cmd_ctx *c, const void *opts, lq_err *err)
{
    const eval_cmd_opts *o = opts;
    static const char *const own[] = { "text", "ctx", "ref", "join-rows", "bos" };
    const bool llama = o->ruler == RULER_LLAMA_CPP;
    if ((opt_given(c, "max-kl") || opt_given(c, "max-kl-p99")) && !o->ref && !o->base && !o->merge)
        return lq_fail(err, LQ_EUSAGE, "--max-kl and --max-kl-p99 need --ref");
    if (!o->text && !o->base && !o->merge) return lq_fail(err, LQ_EUSAGE, "--text is required");
    for (size_t i = 0; i < LQ_COUNT(own) && o->base; i++)
        if (opt_given(c, own[i]))
            return lq_fail(err, LQ_EUSAGE, "--%s goes without --kl-divergence-base", own[i]);
    if (o->base && opt_given(c, "ruler") && !llama)
        return lq_fail(err, LQ_EUSAGE, "--kl-divergence-base: its ruler is llama.cpp, not %s",
                       rulers[o->ruler]);
    static const char *const apart[] = { "max-ppl", "max-kl", "max-kl-p99",
                                         "save-kl-divergence-base" };
    if (o->merge) return check_merge(c, err);
    if (o->bos != OPT_UNSET && o->ruler != RULER_OWN)
        return lq_fail(err, LQ_EUSAGE, "--%sbos: the ruler %s has its own rule",
                       o->bos == OPT_NO ? "no-" : "", rulers[o->ruler]);
    if (c->argc > 1) return lq_fail(err, LQ_EUSAGE, "unexpected argument '%.60s'", c->argv[1]);
    if (o->shard && !o->out) return lq_fail(err, LQ_EUSAGE, "--shard needs --out");
    for (size_t i = 0; i < LQ_COUNT(apart) && o->out; i++)
        if (opt_given(c, apart[i]))
            return lq_fail(err, LQ_EUSAGE, "--%s: of all windows: expected no --out beside it",
                           apart[i]);
    if (o->save_base && !llama && !o->base)
        return lq_fail(err, LQ_EUSAGE, "--save-kl-divergence-base needs --ruler llama.cpp");
    return LQ_OK;
}

static lq_status eval_cmd_run(const cmd_ctx *c, const void *opts, lq_err *err)
{
    eval_cmd_opts o = *(const eval_cmd_opts *)opts;
    session e = { .o = &o };
    pool *p = NULL;
    bool over = false;
    if (o.base) o.ruler = RULER_LLAMA_CPP;
    lq_status s = LQ_OK;
    if (o.merge) {
        s = merge_scores(&e, &o, c, err);
    } else {
        s = load_ranks(&over, c, &o.model, c->argv[0], err);
        if (over) return s;
        if (!s && o.out) s = shard_read(&e.shard, &e.n_shards, o.shard, err);
        if (!s) s = check_outputs(c, &o, err);
        if (!s) s = load_start(&p, c, &e.o->model, err);
        if (!s) s = evaluate(&e, c, p, err);
        if (!s) prog_end();
        if (!s && o.out) s = write_scores(&e, err);
    }
    if (!s && c->json) s = print_json(&e, err);
    if (!s && !c->json) print_text(&e);
    if (!s) s = check_gates(&e, c, err);
    for (int64_t i = 0; i < e.n_rows && e.rows; i++)
        eval_free(&e.rows[i].r);
    free(e.rows);
    free(e.how);
    cJSON_Delete(e.record);
    if (!o.base) free(e.ids);
    kl_base_close(&e.base);
    load_tok_close(&e.tok);
    lora_unref(e.lora);
    load_model_close(&e.ref);
    load_model_close(&e.model);
    pool_close(p);
    return s;
}

const cmd_row cmd_eval = {
    .name = "eval",
    .summary = "perplexity on a text, and KL divergence from another model",
    .details =
        "The text is tokenized once and cut into whole windows of C tokens, of which the first is "
        "BOS where the tokenizer begins texts with it; each is scored from its second token. "
        "--ruler gptq and --ruler llama.cpp follow "
        "those projects' way instead, so that figures can be compared: perplexities of papers are "
        "--ruler gptq --join-rows --ctx 2048 on wiki.test.raw, those of llama-perplexity --ruler "
        "llama.cpp --ctx 512. What follows +- is a standard error. Exit code 4 when a "
        "--max-... gate fails (every window length must pass). With several lengths the "
        "figures at the top of --json are those of the first.",
    .args = { { "MODEL", 1, 1, OPT_MODEL_HELP, FILES_MODEL },
              { "FILE", 0, 1023, "with --merge: more files of --out", FILES_NONE } },
    .groups = { OPT_GROUP("Options", rows, 0), OPT_GROUP("Gates", gates, 0),
                OPT_GROUP("Windows shared out", shard_rows, 0),
                OPT_GROUP("Running the model", opt_model_exact_rows, F(model)),
                OPT_GROUP("Quantizing while loading", inflight_rows, F(inflight)) },
    .examples = "llmq eval models/novels-6m --text held-out.txt --ctx 512\0"
                "llmq eval model.llmq --text held-out.txt --ctx 512 --ref models/novels-6m --json\0"
                "llmq eval model.llmq --text held-out.txt --ctx 512,1024 --max-ppl 47.5\0"
                "llmq eval model.gguf --kl-divergence-base base.kld\0"
                "llmq eval model.llmq --text held-out.txt --shard 1/8 -o 1.scores\0"
                "llmq eval --merge 1.scores 2.scores\0",
    .opts_bytes = sizeof(eval_cmd_opts),
    .check = eval_check,
    .run = eval_cmd_run,
    .processes = CMD_SHARED,
};
