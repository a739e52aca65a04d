/* tools/cmd_quantize.c - `llmq quantize SRC -o OUT.llmq --method M`. */
#include "calib/builtin.h"
#include "calib/jsonl.h"
#include "quantize/job.h"
#include "tools/cmds.h"

#include "runtime/tok_files.h"

#include <cjson/cJSON.h>
#include <stdlib.h>

typedef struct {
    const char *out, *method;
    int64_t bits, group;
    bool sym, asym, narrow;
    opt_tri clip, act_order, static_groups, fold;
    double damp, outlier_threshold;
    int64_t tune;
    bool dbl, all_experts;
    const char *calib;
    int64_t samples, len, seed;
    opt_list overrides, skips;
    const char *lm_head, *embed, *kernels;
    size_t memory_limit;
    bool resume, dry_run;
} quantize_opts;

#define F(field) offsetof(quantize_opts, field)
static const opt_row main_rows[] = {
    { "out", 'o', OPT_STR, F(out), .arg = "OUT.llmq", .help = "where the result goes" },
    { "method", 'm', OPT_STR, F(method), .arg = "M", .required = true,
      .help = "rtn, absmax, int8, nf4, fp4, gptq, awq or auto" },
    { "bits", 'b', OPT_INT, F(bits), .def = "4", .lo = 2, .hi = 8,
      .help = "bits per weight of rtn, gptq, awq, auto: 2, 3, 4 or 8" },
    { "group-size", 'g', OPT_INT, F(group), .lo = -1, .hi = 1 << 24,
      .help = "weights that share a scale, or the largest number below that divides the row; -1: "
              "the whole row (default 128; nf4, fp4: 64)" },
    { "sym", 0, OPT_FLAG, F(sym), .help = "grids symmetric about zero, no zero points" },
    { "asym", 0, OPT_FLAG, F(asym), .help = "zero points (default of rtn, gptq, awq, auto)" },
    { "narrow", 0, OPT_FLAG, F(narrow),
      .help = "with --sym: only positive scales, as GPTQ's own rule has it" },
    { "clip", 0, OPT_TRI, F(clip),
      .help = "draw in the ends of grids where that lowers the error (default: gptq, awq, auto)" },
    { "double-quant", 0, OPT_FLAG, F(dbl), .help = "nf4, fp4: quantize the block scales too" },
    { "outlier-threshold", 0, OPT_FLOAT, F(outlier_threshold), .def = "6", .lo = 0, .hi = 1e9,
      .help = "int8: inputs whose activations reach it stay in bf16; 0: none do" },
};
static const opt_row calib_rows[] = {
    { "calib", 0, OPT_STR, F(calib), .def = "builtin", .arg = "FILE|builtin",
      .help = "text to run through the model (gptq, awq, auto, int8); FILE.jsonl: a line each of "
              "{\"text\": ...} or {\"ids\": [1, 2, ...]}, which needs no tokenizer" },
    { "calib-samples", 0, OPT_INT, F(samples), .def = "128", .lo = 1, .hi = 1 << 20,
      .help = "windows of text" },
    { "calib-len", 0, OPT_INT, F(len), .def = "512", .lo = 8, .hi = 1 << 20,
      .help = "tokens in each" },
    { "seed", 0, OPT_INT, F(seed), .def = "0", .lo = 0, .hi = 9007199254740991.0,
      .help = "which windows are chosen" },
    { "all-experts", 0, OPT_FLAG, F(all_experts),
      .help = "round every expert's gate and up by all tokens, not by those that are sent to it" },
    { "act-order", 0, OPT_TRI, F(act_order),
      .help = "gptq: round the inputs that carry most first (default yes)" },
    { "static-groups", 0, OPT_TRI, F(static_groups),
      .help = "gptq: choose all grids first, so that groups stay regular (default yes)" },
    { "damp", 0, OPT_FLOAT, F(damp), .def = "0.01", .lo = 1e-6, .hi = 1,
      .help = "gptq, auto: added to the diagonal, as a fraction of its mean" },
    { "tune", 0, OPT_INT, F(tune), .lo = 0, .hi = 1 << 20, .arg = "STEPS",
      .help = "gptq, awq, auto: then train scales and norms together towards the original's "
              "answers; 0: do not (default: auto 64, else 0)" },
    { "fold", 0, OPT_TRI, F(fold),
      .help =
          "gptq, awq, auto: scale inputs by what they carry, folded into the layer before (default "
          "yes)" },
};
static const opt_row which_rows[] = {
    { "override", 0, OPT_LIST, F(overrides), .arg = "'REGEX=scheme'",
      .help = "weights whose name matches take another scheme: u4-g64, u8-g128-asym, i8-row, nf4, "
              "f16, ...; the first match counts" },
    { "skip", 0, OPT_LIST, F(skips), .arg = "REGEX", .help = "weights to leave as they are" },
    { "lm-head", 0, OPT_STR, F(lm_head), .arg = "SCHEME", .help = "quantize the output head" },
    { "embed", 0, OPT_STR, F(embed), .arg = "SCHEME", .help = "quantize the embedding" },
};
static const opt_row run_rows[] = {
    { "memory-limit", 0, OPT_SIZE, F(memory_limit),
      .help = "keep half of it at most for calibration states, the rest of them on disk" },
    { "resume", 0, OPT_FLAG, F(resume), .help = "go on from the last finished layer" },
    { "dry-run", 0, OPT_FLAG, F(dry_run), .help = "print what would become of every tensor" },
    { "kernels", 0, OPT_STR, F(kernels), .arg = "NAME", .help = "instruction set for calibration" },
};

static void say(void *user, const char *line)
{
    (void)user;
    prog_say(LOG_WARN, "%s", line);
}

/* Options that change weights, and the methods that know them: elsewhere they would do nothing. */
static const struct {
    const char *option, *methods;
} belongs[] = { { "bits", "rtn, gptq, awq, auto" },
                { "group-size", "rtn, gptq, awq, auto, nf4, fp4" },
                { "sym", "rtn, gptq, awq, auto, absmax" },
                { "asym", "rtn, gptq, awq, auto, absmax" },
                { "narrow", "rtn, gptq, awq, auto" },
                { "clip", "rtn, gptq, awq, auto" },
                { "double-quant", "nf4, fp4" },
                { "outlier-threshold", "int8" },
                { "act-order", "gptq" },
                { "static-groups", "gptq" },
                { "damp", "gptq, auto" },
                { "tune", "gptq, awq, auto" },
                { "fold", "gptq, awq, auto" },
                { "all-experts", "gptq, awq, auto, int8" } };

static bool among(const char *word, const char *list)
{
    size_t n = strlen(word);
    for (const char *p = list; (p = strstr(p, word)); p += n)
        if ((p == list || p[-1] == ' ') && (p[n] == ',' || !p[n])) return true;
    return false;
}

static lq_status check_options(const cmd_ctx *c, const quantize_opts *o, lq_err *err)
{
    for (size_t i = 0; i < LQ_COUNT(belongs); i++)
        if (opt_given(c, belongs[i].option) && !among(o->method, belongs[i].methods))
            return lq_fail(err, LQ_EUSAGE, "--%s: expected a method that has it (%s), found %s",
                           belongs[i].option, belongs[i].methods, o->method);
    if (!o->out && !o->dry_run) return lq_fail(err, LQ_EUSAGE, "--out is required");
    if (o->sym && o->asym) return lq_fail(err, LQ_EUSAGE, "--sym and --asym exclude each other");
    if (o->narrow && !o->sym) return lq_fail(err, LQ_EUSAGE, "--narrow needs --sym");
    return LQ_OK;
}

static lq_status read_options(qz_opts *q, const cmd_ctx *c, const quantize_opts *o, lq_err *err)
{
    lq_status s = qz_method_find(&q->method, o->method, err);
    if (!s) s = check_options(c, o, err);
    if (s) return s;
    if (o->bits != 2 && o->bits != 3 && o->bits != 4 && o->bits != 8)
        return lq_fail(err, LQ_EUSAGE, "--bits: expected 2, 3, 4 or 8, found %lld",
                       (long long)o->bits);
    q->bits = (int)o->bits;
    q->group = opt_given(c, "group-size") && o->group == 0 ? -1 : o->group;
    q->sym = o->sym;
    q->asym = o->asym;
    q->narrow = o->narrow;
    q->clip = opt_tri_or(o->clip, false);
    q->no_clip = !opt_tri_or(o->clip, true);
    q->no_act_order = !opt_tri_or(o->act_order, true);
    q->no_static_groups = !opt_tri_or(o->static_groups, true);
    q->no_fold = !opt_tri_or(o->fold, true);
    q->damp = o->damp;
    q->tune = opt_given(c, "tune") && o->tune == 0 ? -1 : (int)o->tune;
    q->all_experts = o->all_experts;
    q->dbl = o->dbl;
    q->outlier_threshold = o->outlier_threshold > 0 ? o->outlier_threshold : -1;
    q->overrides = o->overrides.v;
    q->n_overrides = o->overrides.n;
    q->skips = o->skips.v;
    q->n_skips = o->skips.n;
    q->lm_head = o->lm_head;
    q->embed = o->embed;
    return LQ_OK;
}

/* ---- the tokenizer: compiled for the file, and for the calibration text ---- */
typedef struct {
    uint8_t *blob; /* owned unless borrowed from the source */
    const uint8_t *data;
    size_t bytes;
    tok_tokenizer *tok;
} tokenizer;

static lq_status tokenizer_open(tokenizer *t, const src_source *src, bool needed, lq_err *err)
{
    const src_blob *blob = src_find_blob(src, "tokenizer.blob");
    memset(t, 0, sizeof *t);
    lq_status s = LQ_OK;
    if (blob && tok_blob_current(blob->data, blob->bytes)) {
        t->data = blob->data;
        t->bytes = blob->bytes;
    } else {
        s = tok_compile_source(&t->blob, &t->bytes, src, err);
        t->data = t->blob;
    }
    if (s == LQ_ENOENT) s = LQ_OK; /* a model without */
    if (!s && t->data && needed) s = tok_open(&t->tok, t->data, t->bytes, err);
    if (s && needed) return lq_wrap(err, s, "%s", src_path(src));
    if (s) { /* the weights do not need it */
        prog_say(LOG_WARN, "%s; the result carries it uncompiled", err->msg);
        t->data = NULL;
    }
    return LQ_OK;
}

static void tokenizer_close(tokenizer *t)
{
    tok_close(t->tok);
    free(t->blob);
}

static bool is_jsonl(const char *path)
{
    const size_t n = strlen(path), ext = strlen(".jsonl");
    return n > ext && strcmp(path + n - ext, ".jsonl") == 0;
}

/* Text, or a file of JSON lines, as windows of ids. */
static lq_status make_samples(cal_samples *s, const quantize_opts *o, const arch_config *c,
                              const tok_tokenizer *tok, const char *text, size_t bytes, lq_err *err)
{
    if (!is_jsonl(o->calib)) {
        if (!tok)
            return lq_fail(err, LQ_ENOENT,
                           "calibration needs tokenizer.json, which the model lacks; --calib "
                           "FILE.jsonl can hold token ids");
        return cal_samples_make(s, tok, text, bytes, o->samples, o->len, (uint64_t)o->seed,
                                c->vocab, err);
    }
    int32_t *ids = NULL;
    int64_t n = 0;
    lq_status st = cal_read_jsonl(&ids, &n, text, bytes, tok, err);
    if (!st)
        st = cal_samples_from_ids(s, ids, n, o->samples, o->len, (uint64_t)o->seed, c->vocab, err);
    free(ids);
    return st;
}

static lq_status read_samples(cal_samples *s, const quantize_opts *o, const src_source *src,
                              const tok_tokenizer *tok, lq_err *err)
{
    const arch_config *c = src_config(src);
    char *text = NULL;
    size_t bytes = calib_builtin_bytes();
    const char *use = calib_builtin_text;
    bool file = strcmp(o->calib, "builtin") != 0;
    if (o->len > c->max_pos)
        return lq_fail(err, LQ_EUSAGE, "--calib-len: expected at most the model's %lld, found %lld",
                       (long long)c->max_pos, (long long)o->len);
    lq_status st = file ? lq_read_file(&text, &bytes, o->calib, (size_t)1 << 30, err) : LQ_OK;
    if (file) use = text;
    if (!st) st = make_samples(s, o, c, tok, use, bytes, err);
    if (st && file) st = lq_wrap(err, st, "--calib %s", o->calib);
    free(text);
    if (!st && s->n < o->samples)
        prog_say(LOG_WARN,
                 "calibration text: %lld windows of %lld tokens, fewer than the %lld "
                 "asked for",
                 (long long)s->n, (long long)s->len, (long long)o->samples);
    if (!st && s->n * s->len < 8 * c->ffn)
        prog_say(LOG_WARN,
                 "calibration text: %lld tokens are few for inputs of %lld; expect worse "
                 "results",
                 (long long)(s->n * s->len), (long long)c->ffn);
    return st;
}

/* ---- output ---- */
static lq_status print_plan(const cmd_ctx *c, const quantize_opts *o, const src_source *src,
                            const qz_opts *q, lq_err *err)
{
    qz_plan plan;
    plan_voice voice = { say, NULL };
    lq_status s = qz_plan_make(&plan, src, q, &voice, err);
    if (s) return s;
    cJSON *doc = cJSON_CreateObject(), *list = cJSON_AddArrayToObject(doc, "tensors");
    double in = 0, out = 0;
    if (o->out) cJSON_AddStringToObject(doc, "out", o->out);
    cJSON_AddStringToObject(doc, "method", o->method);
    for (size_t i = 0; i < plan.n; i++) {
        const plan_entry *e = &plan.e[i];
        char scheme[40] = "raw";
        double bytes = (double)qz_planned_bytes(e), n = (double)src_elements(e->src);
        if (e->quantize || e->src->plain)
            qt_scheme_text(scheme, e->quantize ? &e->scheme : &e->src->t.scheme);
        in += (double)src_bytes(e->src);
        out += bytes;
        if (!c->json) printf("%-56s %-14s %12.0f bytes\n", e->name, scheme, bytes);
        cJSON *t = cJSON_CreateObject();
        cJSON_AddStringToObject(t, "name", e->name);
        cJSON_AddStringToObject(t, "scheme", scheme);
        cJSON_AddNumberToObject(t, "bytes", bytes);
        cJSON_AddNumberToObject(t, "bpw", n > 0 ? 8 * bytes / n : 0);
        cJSON_AddItemToArray(list, t);
    }
    cJSON_AddNumberToObject(doc, "bytes_in", in);
    cJSON_AddNumberToObject(doc, "bytes_out", out);
    qz_plan_free(&plan);
    if (c->json) return cmd_print_json(doc, err);
    char a[16], b[16];
    printf("%s of tensors become %s\n", opt_size_text(a, sizeof a, in),
           opt_size_text(b, sizeof b, out));
    cJSON_Delete(doc);
    return LQ_OK;
}

static void add_finite(cJSON *o, const char *key, double v)
{
    if (isfinite(v))
        cJSON_AddNumberToObject(o, key, v);
    else
        cJSON_AddNullToObject(o, key);
}

static lq_status print_json(const quantize_opts *o, const qz_result *r, double seconds, lq_err *err)
{
    cJSON *doc = cJSON_CreateObject();
    cJSON_AddStringToObject(doc, "out", o->out);
    cJSON_AddStringToObject(doc, "method", o->method);
    cJSON_AddNumberToObject(doc, "bpw", r->bpw);
    cJSON_AddNumberToObject(doc, "bpw_model", r->bpw_model);
    cJSON_AddNumberToObject(doc, "bytes_in", (double)r->bytes_in);
    cJSON_AddNumberToObject(doc, "bytes_out", (double)r->bytes_out);
    cJSON_AddNumberToObject(doc, "seconds", seconds);
    cJSON_AddNumberToObject(doc, "peak_rss_bytes", (double)prog_peak_rss_bytes());
    if (isfinite(r->kl_before)) {
        cJSON_AddBoolToObject(doc, "tuned", r->tuned);
        cJSON_AddNumberToObject(doc, "kl_held_back_before", r->kl_before);
        cJSON_AddNumberToObject(doc, "kl_held_back_after", r->kl_after);
    }
    cJSON_AddBoolToObject(doc, "already_done", r->resumed < 0);
    cJSON_AddNumberToObject(doc, "resumed_parts", r->resumed > 0 ? (double)r->resumed : 0);
    cJSON *list = cJSON_AddArrayToObject(doc, "tensors");
    for (size_t i = 0; i < r->n_reports; i++) {
        const qz_report *t = &r->reports[i];
        cJSON *j = cJSON_CreateObject();
        cJSON_AddStringToObject(j, "name", t->name);
        cJSON_AddStringToObject(j, "scheme", t->scheme);
        cJSON_AddNumberToObject(j, "bpw", 8.0 * (double)t->bytes / (double)t->elements);
        cJSON_AddNumberToObject(j, "rmse", t->rmse);
        add_finite(j, "loss", t->loss);
        add_finite(j, "loss_rtn", t->loss_rtn);
        if (t->expert >= 0) cJSON_AddNumberToObject(j, "expert", (double)t->expert);
        if (t->tokens >= 0) cJSON_AddNumberToObject(j, "tokens", (double)t->tokens);
        if (t->note[0]) cJSON_AddStringToObject(j, "note", t->note);
        cJSON_AddItemToArray(list, j);
    }
    return cmd_print_json(doc, err);
}

static void print_losses(double loss, double loss_rtn)
{
    if (isfinite(loss)) printf("  loss %.3e", loss);
    if (isfinite(loss_rtn)) printf("  (rtn %.3e)", loss_rtn);
}

static bool same_experts(const qz_report *a, const qz_report *b)
{
    return a->expert >= 0 && a->layer == b->layer && a->role == b->role && b->expert >= 0 &&
           strcmp(a->scheme, b->scheme) == 0;
}

/* The experts of a layer and role take one line: all reports of r like the first, if it is the
 * first of its kind. (--json lists them one by one.) */
static void print_experts(const qz_report *first, const qz_report *r, size_t n)
{
    double squares = 0, loss = 0, loss_rtn = 0;
    int64_t count = 0, starved = 0, least = INT64_MAX, most = -1;
    for (size_t i = 0; i < n; i++) {
        if (!same_experts(first, &r[i])) continue;
        if (&r[i] < first) return;
        count++;
        starved += strstr(r[i].note, "starved") != NULL;
        squares += r[i].rmse * r[i].rmse;
        if (isfinite(r[i].loss)) loss += r[i].loss;
        if (isfinite(r[i].loss_rtn)) loss_rtn += r[i].loss_rtn;
        least = r[i].tokens < least ? r[i].tokens : least;
        most = r[i].tokens > most ? r[i].tokens : most;
    }
    printf("layer %lld: %lld x %-32s %-14s rmse %.3e", (long long)first->layer, (long long)count,
           arch_role_text(first->role), first->scheme, sqrt(squares / (double)count));
    if (loss > 0) print_losses(loss, loss_rtn);
    if (most >= 0) printf("  %lld to %lld tokens each", (long long)least, (long long)most);
    if (starved) printf(", %lld starved", (long long)starved);
    printf("\n");
}

static void print_text(const quantize_opts *o, const qz_result *r, double seconds)
{
    char a[16], b[16];
    if (r->resumed < 0) {
        printf("%s is finished already\n", o->out);
        return;
    }
    for (size_t i = 0; i < r->n_reports; i++) {
        const qz_report *t = &r->reports[i];
        /* tensors of a layer lie together */
        size_t from = i, to = i;
        while (from > 0 && r->reports[from - 1].layer == t->layer)
            from--;
        while (to < r->n_reports && r->reports[to].layer == t->layer)
            to++;
        if (t->expert >= 0) {
            print_experts(t, r->reports + from, to - from);
            continue;
        }
        printf("%-48s %-14s rmse %.3e", t->name, t->scheme, t->rmse);
        print_losses(t->loss, t->loss_rtn);
        printf("%s%s\n", t->note[0] ? "  " : "", t->note);
    }
    if (isfinite(r->kl_before))
        printf("tuning: mean KL to the original on text held back %.5f -> %.5f%s\n", r->kl_before,
               r->kl_after, r->tuned ? "" : ": not kept");
    printf("%s: %s -> %s, %.3f bits per weight in the linear layers, %.1f s\n", o->out,
           opt_size_text(a, sizeof a, (double)r->bytes_in),
           opt_size_text(b, sizeof b, (double)r->bytes_out), r->bpw, seconds);
}

static lq_status run(const cmd_ctx *c, const void *opts, lq_err *err)
{
    const quantize_opts *o = opts;
    double start = prog_now();
    qz_opts q = { 0 };
    lq_status s = read_options(&q, c, o, err);
    if (!s) s = k_init(o->kernels, err);
    if (s) return s;
    src_source *src = NULL;
    pool *p = NULL;
    tokenizer tok = { 0 };
    cal_samples samples = { 0 };
    qz_result r = { 0 };
    s = src_open(&src, c->argv[0], &(src_opts){ .need_config = true }, err);
    if (s) return s;
    if (o->dry_run) {
        s = print_plan(c, o, src, &q, err);
        goto done;
    }
    s = tokenizer_open(&tok, src, qz_calibrated(&q), err);
    if (!s && qz_calibrated(&q)) s = read_samples(&samples, o, src, tok.tok, err);
    if (!s) s = pool_open(&p, c->threads, err);
    if (s) goto done;
    qz_job job = { .o = &q,
                   .samples = qz_calibrated(&q) ? &samples : NULL,
                   .seed = (uint64_t)o->seed,
                   .memory_limit = o->memory_limit,
                   .resume = o->resume,
                   .tokenizer = tok.data,
                   .tokenizer_bytes = tok.bytes,
                   .voice = { say, NULL } };
    s = qz_run(&r, src, o->out, &job, p, c->job, err);
    prog_end();
    if (!s && c->json)
        s = print_json(o, &r, prog_now() - start, err);
    else if (!s)
        print_text(o, &r, prog_now() - start);
done:
    qz_result_free(&r);
    cal_samples_free(&samples);
    tokenizer_close(&tok);
    pool_close(p);
    src_close(src);
    return s;
}

const cmd_row cmd_quantize = {
    .name = "quantize",
    .summary = "make a model smaller: fewer bits per weight",
    .details = "Works layer by layer: memory stays at one layer and the calibration states. The "
               "output appears whole or not at all; an interrupted run goes on with --resume and "
               "gives the same bytes.",
    .args = { { "SRC", 1, 1, "Hugging Face folder or unquantized .llmq" } },
    .groups = { OPT_GROUP("Options", main_rows, 0),
                OPT_GROUP("Calibration (gptq, awq, auto, int8)", calib_rows, 0),
                OPT_GROUP("Which tensors", which_rows, 0), OPT_GROUP("Running", run_rows, 0) },
    .examples = "llmq quantize models/novels-6m -o awq4.llmq --method awq\0"
                "llmq quantize models/novels-6m -o gptq3.llmq --method gptq --bits 3 "
                "--calib my-text.txt\0"
                "llmq quantize models/novels-6m -o mix.llmq --method gptq --override "
                "'down_proj=u8-g128'\0"
                "llmq quantize models/novels-6m -o best3.llmq --method auto --bits 3\0"
                "llmq quantize models/novels-6m --method nf4 --double-quant --dry-run\0",
    .opts_bytes = sizeof(quantize_opts),
    .run = run,
};
