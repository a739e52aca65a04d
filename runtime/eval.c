/* runtime/eval.c - see eval.h.
 *
 * A step takes up to `rows` rows from one window after the other; a window that does not fit goes
 * on in the next step. The last id of a window is only ever a target. */
#include "runtime/eval.h"

#include "base/out_file.h"

#include <stdlib.h>

enum {
    STEP_ROWS = 512,         /* rows of a step: enough to share the weights */
    LOGIT_FLOATS = 32 << 20, /* at most this many logits at once ... */
    MIN_ROWS = 16,           /* ... but at least this many rows */
    MAX_OPEN = STEP_ROWS,    /* windows in one step: each has a scored row at least */
    BLOCK = 32
};

/* A model with what it needs to run windows. */
typedef struct {
    const model *m;
    kv_cache *kv;
    fwd_ctx *f;
    kv_seq seqs[MAX_OPEN];
    const float *logits; /* of the last step */
    const lora_adapter *lora;
} runner;

/* One piece of a window in a step, and where its scores go. */
typedef struct {
    int64_t window, pos, n;
    int64_t logits_from; /* first row of the piece whose logits are wanted */
} part;

typedef struct {
    const eval_opts *o;
    eval_result *r;
    const int32_t *ids; /* all of the text */
    int64_t first, V;
    int64_t rows, max_open;
    runner model, ref;
    bool has_ref;        /* a model */
    bool compares;       /* with ref or o->base */
    lq_out *saved;       /* of o->save_base, or NULL */
    uint8_t *codes;      /* with it [rows] of its rows */
    int32_t *window_ids; /* [max_open, ctx] of the windows in this step */
    part parts[MAX_OPEN];
    int n_parts;
    int64_t *row_slot; /* [rows] token_nll's index of each logits row of this step */
    int32_t *row_target;
    int64_t n_scored; /* rows of this step */
} evaluation;

/* ---- windows ---- */

static int64_t ids_before(const eval_opts *o) { return o->begin_replaces ? 0 : o->n_begin; }

int64_t eval_windows(int64_t n, const eval_opts *o)
{
    int64_t w = n / (o->ctx - ids_before(o));
    return o->max_windows && w > o->max_windows ? o->max_windows : w;
}

static void window_ids(int32_t *out, const evaluation *e, int64_t window)
{
    const eval_opts *o = e->o;
    int64_t shift = ids_before(o), n = o->ctx - shift;
    memcpy(out + shift, e->ids + (e->r->from + window) * n, (size_t)n * sizeof *out);
    memcpy(out, o->begin, (size_t)o->n_begin * sizeof *out);
}

/* ---- scores of one row ---- */

static void score_row(void *ctx, int64_t row, int thread)
{
    evaluation *e = ctx;
    (void)thread;
    const int64_t slot = e->row_slot[row], target = e->row_target[row];
    const float *x = e->model.logits + row * e->V;
    const int64_t row_of_all = e->r->from * e->r->per_window + slot;
    const eval_score s =
        e->o->base ? kl_base_score(e->o->base, row_of_all, x, target)
                   : eval_position(x, e->has_ref ? e->ref.logits + row * e->V : NULL, e->V, target);
    e->r->token_nll[slot] = s.nll;
    if (e->saved) kl_base_encode(e->codes + (size_t)row * kl_base_row_bytes(e->V), x, e->V);
    if (!e->compares) return;
    e->r->token_ref_nll[slot] = s.ref_nll;
    e->r->token_kl[slot] = s.kl;
    e->r->token_agree[slot] = s.agree;
}

/* ---- steps ---- */

/* Fill e->parts from (window, pos) on; moves both. */
static void plan_step(evaluation *e, int64_t *window, int64_t *pos)
{
    const int64_t inputs = e->o->ctx - 1;
    int64_t left = e->rows;
    e->n_parts = 0;
    e->n_scored = 0;
    while (left > 0 && *window < e->r->windows && e->n_parts < e->max_open) {
        int64_t n = inputs - *pos < left ? inputs - *pos : left;
        int64_t from = e->first - 1 - *pos; /* row t gives the scores of position t + 1 */
        part *q = &e->parts[e->n_parts];
        *q = (part){ *window, *pos, n, from < 0 ? 0 : from > n ? n : from };
        int32_t *ids = e->window_ids + e->n_parts * e->o->ctx;
        window_ids(ids, e, *window);
        for (int64_t t = q->logits_from; t < n; t++) {
            int64_t target = *pos + t + 1;
            e->row_slot[e->n_scored] = *window * e->r->per_window + target - e->first;
            e->row_target[e->n_scored++] = ids[target];
        }
        e->n_parts++;
        left -= n;
        *pos += n;
        if (*pos == inputs) {
            *pos = 0;
            (*window)++;
        }
    }
}

/* The first part goes on with the sequence that the last step left open in seqs[0]. */
static lq_status run_parts(runner *r, const evaluation *e, lq_err *err)
{
    fwd_item items[MAX_OPEN];
    lq_status s = LQ_OK;
    for (int i = 0; i < e->n_parts && !s; i++) {
        const part *q = &e->parts[i];
        const int32_t *ids = e->window_ids + i * e->o->ctx + q->pos;
        items[i] = (fwd_item){ .seq = &r->seqs[i],
                               .ids = ids,
                               .n = q->n,
                               .pos0 = q->pos,
                               .logits_from = q->logits_from,
                               .seq_len = e->o->ctx,
                               .lora = r->lora };
        s = kv_reserve(r->kv, &r->seqs[i], q->pos + q->n, err);
    }
    if (!s) s = fwd_step(r->f, items, e->n_parts, &r->logits, err);
    return s;
}

static void close_parts(runner *r, const evaluation *e)
{
    const part *last = &e->parts[e->n_parts - 1];
    bool open = last->pos + last->n < e->o->ctx - 1;
    kv_seq keep = r->seqs[e->n_parts - 1];
    for (int i = 0; i < e->n_parts - open; i++)
        kv_seq_free(r->kv, &r->seqs[i]);
    if (!open) return;
    kv_seq_init(&r->seqs[e->n_parts - 1]);
    r->seqs[0] = keep;
}

static lq_status run_all(evaluation *e, pool *p, const lq_job *job, lq_err *err)
{
    int64_t window = 0, pos = 0;
    lq_status s = LQ_OK;
    while (window < e->r->windows && !s) {
        plan_step(e, &window, &pos);
        s = lq_stopped(job) ? lq_fail(err, LQ_EINTR, "interrupted") : run_parts(&e->model, e, err);
        if (!s && e->has_ref) s = run_parts(&e->ref, e, err);
        if (s) break;
        pool_run(p, e->n_scored, score_row, e);
        if (e->saved) /* slots rise by one */
            s = lq_out_write(e->saved, e->codes, (size_t)e->n_scored * kl_base_row_bytes(e->V),
                             err);
        close_parts(&e->model, e);
        if (e->has_ref) close_parts(&e->ref, e);
        lq_report(job, "windows", (double)window, (double)e->r->windows);
    }
    return s;
}

/* ---- set-up and summary ---- */

void eval_size(kv_opts *kv, fwd_opts *step, const arch_config *c, const eval_opts *o)
{
    int64_t rows = LOGIT_FLOATS / c->vocab;
    if (rows < MIN_ROWS) rows = MIN_ROWS;
    if (rows > STEP_ROWS) rows = STEP_ROWS;
    /* Whole windows of ctx - 1 rows, and a part at either end. */
    int64_t open = rows / (o->ctx - 1) + 2;
    if (open > MAX_OPEN) open = MAX_OPEN;
    *kv = (kv_opts){ .n_blocks = (open + 1) * lq_ceil_div(o->ctx, BLOCK),
                     .block_size = BLOCK,
                     .dtype = o->kv };
    *step = (fwd_opts){
        .acts = o->acts, .max_rows = rows, .max_logits = rows, .max_seqs = open, .max_len = o->ctx
    };
}

static lq_status open_runner(runner *r, const model *m, const eval_opts *o, pool *p, lq_err *err)
{
    kv_opts k;
    fwd_opts f;
    r->m = m;
    eval_size(&k, &f, m->cfg, o);
    r->lora = o->lora;
    if (o->lora) f.lora_rank = o->lora->rank;
    k.on = model_dev(m);
    k.first = model_first_on(m);
    lq_status s = kv_open(&r->kv, m->cfg, &k, err);
    return s ? s : fwd_open(&r->f, m, r->kv, p, &f, err);
}

static void close_runner(runner *r)
{
    for (int i = 0; i < MAX_OPEN && r->kv; i++)
        kv_seq_free(r->kv, &r->seqs[i]);
    fwd_close(r->f);
    kv_close(r->kv);
}

/* Windows as those files have them, and the base's own ids. */
static lq_status check_base(const int32_t *ids, const eval_opts *o, lq_err *err)
{
    const kl_base *b = o->base;
    const bool theirs = o->first == kl_base_first(o->ctx) && !ids_before(o);
    if (!theirs)
        return lq_fail(err, LQ_EVALUE,
                       "file of a KL divergence's base: expected windows scored from position "
                       "%lld, found %lld",
                       (long long)kl_base_first(o->ctx), (long long)o->first);
    if (!b || (b->ctx == o->ctx && b->ids == ids)) return LQ_OK;
    return lq_fail(err, LQ_EVALUE,
                   "base of the KL divergence: expected its own ids in windows of %lld tokens, "
                   "found windows of %lld",
                   (long long)b->ctx, (long long)o->ctx);
}

static lq_status check_input(const model *m, const model *ref, const int32_t *ids, int64_t n,
                             const eval_opts *o, lq_err *err)
{
    const int64_t V = m->cfg->vocab;
    if (o->ctx < 2 || o->ctx > 1 << 24 || o->first < 0 || o->first >= o->ctx ||
        o->n_begin >= o->ctx)
        return lq_fail(err, LQ_EVALUE,
                       "window: expected at least 2 positions, found %lld, scored from %lld",
                       (long long)o->ctx, (long long)o->first);
    if (ref && ref->cfg->vocab != V)
        return lq_fail(err, LQ_ESHAPE, "reference model: expected a vocabulary of %lld, found %lld",
                       (long long)V, (long long)ref->cfg->vocab);
    if (o->base && o->base->V != V)
        return lq_fail(err, LQ_ESHAPE,
                       "base of the KL divergence: expected a vocabulary of %lld, found %lld",
                       (long long)V, (long long)o->base->V);
    if (eval_windows(n, o) < 1)
        return lq_fail(err, LQ_EVALUE,
                       "text: expected at least one window of %lld tokens, found %lld",
                       (long long)o->ctx, (long long)n);
    if (eval_windows(n, o) < o->n_shards)
        return lq_fail(err, LQ_EVALUE,
                       "text: expected a window for each of %lld shards, found %lld",
                       (long long)o->n_shards, (long long)eval_windows(n, o));
    for (int64_t i = 0; i < n; i++)
        if (ids[i] < 0 || ids[i] >= V)
            return lq_fail(err, LQ_EVALUE,
                           "token %lld of the text: expected an id below %lld, found %d",
                           (long long)i, (long long)V, ids[i]);
    for (int i = 0; i < o->n_begin; i++)
        if (o->begin[i] < 0 || o->begin[i] >= V)
            return lq_fail(err, LQ_EVALUE, "BOS: expected an id below %lld, found %d", (long long)V,
                           o->begin[i]);
    return o->base || o->save_base ? check_base(ids, o, err) : LQ_OK;
}

static lq_status set_up(evaluation *e, lq_err *err)
{
    eval_result *r = e->r;
    size_t tokens = (size_t)r->tokens, rows = (size_t)e->rows;
    r->token_nll = calloc(tokens, sizeof *r->token_nll);
    e->window_ids = calloc((size_t)e->max_open * (size_t)e->o->ctx, sizeof *e->window_ids);
    e->row_slot = calloc(rows, sizeof *e->row_slot);
    e->row_target = calloc(rows, sizeof *e->row_target);
    bool ok = r->token_nll && e->window_ids && e->row_slot && e->row_target;
    if (e->o->save_base) {
        e->codes = malloc(rows * kl_base_row_bytes(e->V));
        ok = ok && e->codes;
    }
    if (e->compares) {
        r->token_kl = calloc(tokens, sizeof *r->token_kl);
        r->token_ref_nll = calloc(tokens, sizeof *r->token_ref_nll);
        r->token_agree = calloc(tokens, sizeof *r->token_agree);
        ok = ok && r->token_kl && r->token_ref_nll && r->token_agree;
    }
    return ok ? LQ_OK : lq_fail(err, LQ_ENOMEM, "no memory to score %zu tokens", tokens);
}

static lq_status not_finite(const eval_result *r, int64_t token, const char *whose, lq_err *err)
{
    return lq_fail(err, LQ_EVALUE,
                   "%swindow %lld: the logits are not finite: the weights hold NaN or Inf, or "
                   "values that overflow (in --kv-cache-dtype f16 beyond 65504)",
                   whose, (long long)(r->from + token / r->per_window));
}

/* exp of the mean, which a model in use never makes overflow: 709 nats of a token are 1e308 to 1
 * against it. */
static lq_status perplexity_of(double *out, const eval_result *r, const double *nll,
                               const char *whose, lq_err *err)
{
    int64_t worst = 0;
    for (int64_t i = 1; i < r->tokens; i++)
        if (nll[i] > nll[worst]) worst = i;
    const double m = eval_mean_of(nll, r->tokens).mean;
    *out = exp(m);
    if (isfinite(*out)) return LQ_OK;
    return lq_fail(err, LQ_EVALUE,
                   "%sperplexity: expected a finite number, found exp(%.6g): %.6g nats for one "
                   "token of window %lld; the weights are damaged, or values overflow",
                   whose, m, nll[worst], (long long)(r->from + worst / r->per_window));
}

/* Both perplexities, which are there, beside each other. */
static void compare_perplexities(eval_result *r)
{
    const double *ref_nll = r->token_ref_nll;
    const int64_t n = r->tokens;
    const double cov = eval_mean_cov(r->token_nll, ref_nll, n);
    const double a = r->perplexity_error / r->perplexity, b = eval_mean_of(ref_nll, n).error;
    const double p = r->perplexity, q = r->ref_perplexity;
    r->perplexity_diff = p - q;
    r->perplexity_diff_error = sqrt(fmax(p * p * a * a + q * q * b * b - 2 * p * q * cov, 0));
    r->perplexity_ratio = p / q;
    r->perplexity_ratio_error = p / q * sqrt(fmax(a * a + b * b - 2 * cov, 0));
}

/* x [tokens] is scratch. */
static void summarize_kl(eval_result *r, double *x, bool between)
{
    const int64_t n = r->tokens;
    const eval_mean m = eval_mean_of(r->token_kl, n);
    const struct {
        double *to, p;
    } t[] = { { &r->kl_median, 0.5 }, { &r->kl_p90, 0.9 },    { &r->kl_p95, 0.95 },
              { &r->kl_p99, 0.99 },   { &r->kl_p999, 0.999 }, { &r->kl_max, 1 } };
    r->kl_mean = m.mean;
    r->kl_error = m.error;
    memcpy(x, r->token_kl, (size_t)n * sizeof *x);
    eval_sort(x, n);
    for (size_t i = 0; i < LQ_COUNT(t); i++)
        *t[i].to = eval_percentile(x, n, t[i].p, between);
}

static void summarize_dp(eval_result *r, double *x)
{
    const double *ref_nll = r->token_ref_nll;
    const int64_t n = r->tokens;
    for (int64_t i = 0; i < n; i++)
        x[i] = exp(-r->token_nll[i]) - exp(-ref_nll[i]);
    const eval_mean m = eval_mean_of(x, n);
    for (int64_t i = 0; i < n; i++)
        x[i] *= x[i];
    const eval_mean squares = eval_mean_of(x, n);
    r->dp_mean = m.mean;
    r->dp_error = m.error;
    r->dp_rms = sqrt(squares.mean);
    r->dp_rms_error = r->dp_rms > 0 ? squares.error / (2 * r->dp_rms) : 0;
}

static void summarize_top(eval_result *r)
{
    int64_t n = 0;
    for (int64_t i = 0; i < r->tokens; i++)
        n += r->token_agree[i];
    const double p = (double)n / (double)r->tokens;
    r->top1_agree = p;
    r->top1_error = r->tokens > 1 ? sqrt(p * (1 - p) / (double)(r->tokens - 1)) : 0;
}

static lq_status check_finite(const eval_result *r, const char *ref, lq_err *err)
{
    const bool compares = r->token_kl != NULL;
    for (int64_t i = 0; i < r->tokens; i++) {
        if (compares && !isfinite(r->token_ref_nll[i])) return not_finite(r, i, ref, err);
        if (!isfinite(r->token_nll[i])) return not_finite(r, i, "", err);
        if (compares && !isfinite(r->token_kl[i]))
            return lq_fail(err, LQ_EVALUE,
                           "window %lld: the divergence from the reference is not finite",
                           (long long)(r->from + i / r->per_window));
    }
    return LQ_OK;
}

lq_status eval_summarize(eval_result *r, bool between, lq_err *err)
{
    static const char *const ref = "reference model: ";
    lq_status s = check_finite(r, ref, err);
    if (s) return s;
    const eval_mean m = eval_mean_of(r->token_nll, r->tokens);
    r->nll = m.mean;
    s = perplexity_of(&r->perplexity, r, r->token_nll, "", err);
    r->perplexity_error = r->perplexity * m.error;
    if (s || !r->token_kl) return s;
    if ((s = perplexity_of(&r->ref_perplexity, r, r->token_ref_nll, ref, err))) return s;
    double *x = malloc((size_t)r->tokens * sizeof *x);
    if (!x) return lq_fail(err, LQ_ENOMEM, "no memory to sort %lld values", (long long)r->tokens);
    compare_perplexities(r);
    summarize_kl(r, x, between);
    summarize_dp(r, x);
    summarize_top(r);
    free(x);
    return LQ_OK;
}

/* Where what the model says is written to, up to its rows. */
static lq_status open_saved(evaluation *e, lq_err *err)
{
    const eval_opts *o = e->o;
    lq_status s = lq_out_open(&e->saved, o->save_base, err);
    return s ? s : kl_base_begin(e->saved, o->ctx, e->V, e->ids, e->r->windows, err);
}

static lq_status finish_saved(evaluation *e, lq_err *err)
{
    lq_out *o = e->saved;
    e->saved = NULL;
    return lq_out_commit(o, err);
}

lq_status eval_run(eval_result *r, const model *m, const model *ref, const int32_t *ids, int64_t n,
                   const eval_opts *o, pool *p, const lq_job *job, lq_err *err)
{
    memset(r, 0, sizeof *r);
    lq_status s = check_input(m, ref, ids, n, o, err);
    if (s) return s;
    evaluation *e = calloc(1, sizeof *e);
    if (!e) return lq_fail(err, LQ_ENOMEM, "evaluation: out of memory");
    e->o = o;
    e->r = r;
    e->ids = ids;
    e->first = o->first ? o->first : 1;
    e->V = m->cfg->vocab;
    e->has_ref = ref != NULL;
    e->compares = ref || o->base;
    r->all_windows = eval_windows(n, o);
    r->from = o->n_shards ? r->all_windows * o->shard / o->n_shards : 0;
    r->windows =
        (o->n_shards ? r->all_windows * (o->shard + 1) / o->n_shards : r->all_windows) - r->from;
    r->per_window = o->ctx - e->first;
    r->tokens = r->windows * r->per_window;
    kv_opts kv;
    fwd_opts step;
    eval_size(&kv, &step, m->cfg, o);
    e->rows = step.max_rows;
    e->max_open = step.max_seqs;
    eval_opts exact = *o; /* the reference's */
    exact.acts = MM_F32;
    exact.kv = KV_F32;
    exact.lora = NULL;
    s = set_up(e, err);
    if (!s) s = open_runner(&e->model, m, o, p, err);
    if (!s && ref) s = open_runner(&e->ref, ref, &exact, p, err);
    if (!s && o->save_base) s = open_saved(e, err);
    if (!s) s = run_all(e, p, job, err);
    if (!s) s = eval_summarize(r, o->between, err);
    if (!s && e->saved) s = finish_saved(e, err);
    lq_out_abort(e->saved);
    close_runner(&e->model);
    close_runner(&e->ref);
    free(e->codes);
    free(e->window_ids);
    free(e->row_slot);
    free(e->row_target);
    free(e);
    return s;
}

void eval_free(eval_result *r)
{
    free(r->token_nll);
    free(r->token_kl);
    free(r->token_ref_nll);
    free(r->token_agree);
    memset(r, 0, sizeof *r);
}
