/* runtime/eval.c - see eval.h.
 *
 * A step takes up to `rows` rows from one window after the other; a window that does not fit goes
 * on in the next step. The last id of a window is only ever a target. */
#include "runtime/eval.h"

#include "kernels/ops.h"

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
    bool has_ref;
    int32_t *window_ids; /* [max_open, ctx] of the windows in this step */
    part parts[MAX_OPEN];
    int n_parts;
    double *ref_nll;   /* [tokens] with ref */
    uint8_t *agree;    /* [tokens] with ref */
    int64_t *row_slot; /* [rows] token_nll's index of each logits row of this step */
    int32_t *row_target;
    int64_t n_scored; /* rows of this step */
} evaluation;

/* ---- windows ---- */

static bool bos_before(const eval_opts *o) { return o->has_bos && !o->bos_replaces; }

int64_t eval_windows(int64_t n, const eval_opts *o)
{
    int64_t w = n / (o->ctx - bos_before(o));
    return o->max_windows && w > o->max_windows ? o->max_windows : w;
}

static void window_ids(int32_t *out, const evaluation *e, int64_t window)
{
    const eval_opts *o = e->o;
    int64_t shift = bos_before(o), n = o->ctx - shift;
    memcpy(out + shift, e->ids + window * n, (size_t)n * sizeof *out);
    if (o->has_bos) out[0] = o->bos;
}

/* ---- scores of one row ---- */

enum { CHUNK = 256 };
static int64_t chunk_at(int64_t at, int64_t n) { return n - at < CHUNK ? n - at : CHUNK; }

static double log_sum_exp(const float *x, int64_t n, int64_t *argmax)
{
    int64_t best = 0;
    for (int64_t i = 1; i < n; i++)
        if (x[i] > x[best]) best = i;
    double sum = 0;
    for (int64_t at = 0; at < n; at += CHUNK) {
        float e[CHUNK];
        const int64_t m = chunk_at(at, n);
        k_exp_minus(e, x + at, x[best], m);
        for (int64_t i = 0; i < m; i++)
            sum += (double)e[i];
    }
    *argmax = best;
    return (double)x[best] + log(sum);
}

eval_score eval_position(const float *x, const float *y, int64_t V, int64_t target)
{
    int64_t top, ref_top;
    double lse = log_sum_exp(x, V, &top);
    eval_score s = { .nll = lse - (double)x[target] };
    if (!y) return s;
    double ref_lse = log_sum_exp(y, V, &ref_top);
    for (int64_t at = 0; at < V; at += CHUNK) {
        float p[CHUNK];
        const int64_t m = chunk_at(at, V);
        for (int64_t i = 0; i < m; i++)
            p[i] = (float)((double)y[at + i] - ref_lse);
        k_exp_minus(p, p, 0, m);
        for (int64_t i = 0; i < m; i++) {
            const double log_p = (double)y[at + i] - ref_lse;
            s.kl += (double)p[i] * (log_p - ((double)x[at + i] - lse));
        }
    }
    s.ref_nll = ref_lse - (double)y[target];
    s.agree = top == ref_top;
    return s;
}

static void score_row(void *ctx, int64_t row, int thread)
{
    evaluation *e = ctx;
    (void)thread;
    const int64_t slot = e->row_slot[row];
    const eval_score s =
        eval_position(e->model.logits + row * e->V, e->has_ref ? e->ref.logits + row * e->V : NULL,
                      e->V, e->row_target[row]);
    e->r->token_nll[slot] = s.nll;
    if (!e->has_ref) return;
    e->ref_nll[slot] = s.ref_nll;
    e->r->token_kl[slot] = s.kl;
    e->agree[slot] = s.agree;
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
                               .seq_len = e->o->ctx };
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

static lq_status check_input(const model *m, const model *ref, const int32_t *ids, int64_t n,
                             const eval_opts *o, lq_err *err)
{
    const int64_t V = m->cfg->vocab;
    if (o->ctx < 2 || o->ctx > 1 << 24 || o->first < 0 || o->first >= o->ctx)
        return lq_fail(err, LQ_EVALUE,
                       "window: expected at least 2 positions, found %lld, scored from %lld",
                       (long long)o->ctx, (long long)o->first);
    if (ref && ref->cfg->vocab != V)
        return lq_fail(err, LQ_ESHAPE, "reference model: expected a vocabulary of %lld, found %lld",
                       (long long)V, (long long)ref->cfg->vocab);
    if (eval_windows(n, o) < 1)
        return lq_fail(err, LQ_EVALUE,
                       "text: expected at least one window of %lld tokens, found %lld",
                       (long long)o->ctx, (long long)n);
    for (int64_t i = 0; i < n; i++)
        if (ids[i] < 0 || ids[i] >= V)
            return lq_fail(err, LQ_EVALUE,
                           "token %lld of the text: expected an id below %lld, found %d",
                           (long long)i, (long long)V, ids[i]);
    if (o->has_bos && (o->bos < 0 || o->bos >= V))
        return lq_fail(err, LQ_EVALUE, "BOS: expected an id below %lld, found %d", (long long)V,
                       o->bos);
    return LQ_OK;
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
    if (e->has_ref) {
        r->token_kl = calloc(tokens, sizeof *r->token_kl);
        e->ref_nll = calloc(tokens, sizeof *e->ref_nll);
        e->agree = calloc(tokens, sizeof *e->agree);
        ok = ok && r->token_kl && e->ref_nll && e->agree;
    }
    return ok ? LQ_OK : lq_fail(err, LQ_ENOMEM, "no memory to score %zu tokens", tokens);
}

static int by_value(const void *a, const void *b)
{
    double x, y;
    memcpy(&x, a, sizeof x);
    memcpy(&y, b, sizeof y);
    return (x > y) - (x < y);
}

/* The smallest value that a fraction p of them does not exceed. */
static double percentile(const double *x, int64_t n, double p, lq_err *err, lq_status *s)
{
    double *copy = malloc((size_t)n * sizeof *copy);
    if (!copy) {
        *s = lq_fail(err, LQ_ENOMEM, "no memory to sort %lld values", (long long)n);
        return 0;
    }
    memcpy(copy, x, (size_t)n * sizeof *copy);
    qsort(copy, (size_t)n, sizeof *copy, by_value);
    int64_t rank = (int64_t)ceil(p * (double)n);
    double v = copy[rank > 0 ? rank - 1 : 0];
    free(copy);
    return v;
}

static double mean(const double *x, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += x[i];
    return sum / (double)n;
}

static lq_status not_finite(const eval_result *r, int64_t token, const char *whose, lq_err *err)
{
    return lq_fail(err, LQ_EVALUE,
                   "%swindow %lld: the logits are not finite: the weights hold NaN or Inf, or "
                   "values that overflow (in --kv-cache-dtype f16 beyond 65504)",
                   whose, (long long)(token / r->per_window));
}

/* exp of the mean, which a model in use never makes overflow: 709 nats of a token are 1e308 to 1
 * against it. */
static lq_status perplexity_of(double *out, const eval_result *r, const double *nll,
                               const char *whose, lq_err *err)
{
    int64_t worst = 0;
    for (int64_t i = 1; i < r->tokens; i++)
        if (nll[i] > nll[worst]) worst = i;
    const double m = mean(nll, r->tokens);
    *out = exp(m);
    if (isfinite(*out)) return LQ_OK;
    return lq_fail(err, LQ_EVALUE,
                   "%sperplexity: expected a finite number, found exp(%.6g): %.6g nats for one "
                   "token of window %lld; the weights are damaged, or values overflow",
                   whose, m, nll[worst], (long long)(worst / r->per_window));
}

static lq_status summarize(evaluation *e, lq_err *err)
{
    static const char *const ref = "reference model: ";
    eval_result *r = e->r;
    for (int64_t i = 0; i < r->tokens; i++) {
        if (e->has_ref && !isfinite(e->ref_nll[i])) return not_finite(r, i, ref, err);
        if (!isfinite(r->token_nll[i])) return not_finite(r, i, "", err);
        if (e->has_ref && !isfinite(r->token_kl[i]))
            return lq_fail(err, LQ_EVALUE,
                           "window %lld: the divergence from the reference is not finite",
                           (long long)(i / r->per_window));
    }
    r->nll = mean(r->token_nll, r->tokens);
    lq_status s = perplexity_of(&r->perplexity, r, r->token_nll, "", err);
    if (s || !e->has_ref) return s;
    int64_t agree = 0;
    for (int64_t i = 0; i < r->tokens; i++)
        agree += e->agree[i];
    r->top1_agree = (double)agree / (double)r->tokens;
    r->kl_mean = mean(r->token_kl, r->tokens);
    r->kl_p99 = percentile(r->token_kl, r->tokens, 0.99, err, &s);
    return s ? s : perplexity_of(&r->ref_perplexity, r, e->ref_nll, ref, err);
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
    r->windows = eval_windows(n, o);
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
    s = set_up(e, err);
    if (!s) s = open_runner(&e->model, m, o, p, err);
    if (!s && ref) s = open_runner(&e->ref, ref, &exact, p, err);
    if (!s) s = run_all(e, p, job, err);
    if (!s) s = summarize(e, err);
    close_runner(&e->model);
    close_runner(&e->ref);
    free(e->window_ids);
    free(e->row_slot);
    free(e->row_target);
    free(e->ref_nll);
    free(e->agree);
    free(e);
    return s;
}

void eval_free(eval_result *r)
{
    free(r->token_nll);
    free(r->token_kl);
    memset(r, 0, sizeof *r);
}
