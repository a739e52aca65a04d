/* quantize/job/check.c - the source and its quantized copy side by side; see check.h. */
#include "quantize/job/check.h"

#include <cjson/cJSON.h>
#include <stdlib.h>

#include "base/json.h"
#include "calib/forward_pass.h"
#include "quantize/layer/apply.h"
#include "runtime/eval.h"

enum { MIN_ROWS = 16 };

/* ---- which windows ---- */
static bool among(const cal_samples *s, const int32_t *ids)
{
    for (int64_t i = 0; i < s->n; i++)
        if (memcmp(s->ids + i * s->len, ids, (size_t)s->len * sizeof *ids) == 0) return true;
    return false;
}

lq_status qz_check_windows(cal_samples *out, const cal_samples *all, const cal_samples *used,
                           int64_t most, lq_err *err)
{
    const int64_t len = all->len;
    int64_t unseen = 0;
    memset(out, 0, sizeof *out);
    int64_t *at = calloc((size_t)all->n + 1, sizeof *at);
    out->ids = calloc((size_t)(most * len), sizeof *out->ids);
    if (!at || !out->ids) {
        free(at);
        cal_samples_free(out);
        return lq_fail(err, LQ_ENOMEM, "no memory for the windows of the check");
    }
    for (int64_t i = 0; i < all->n; i++)
        if (used->len != len || !among(used, all->ids + i * len)) at[unseen++] = i;
    out->len = len;
    out->begun = all->begun;
    out->available = unseen;
    out->n = unseen < most ? unseen : most;
    for (int64_t i = 0; i < out->n; i++)
        memcpy(out->ids + i * len, all->ids + at[i * unseen / out->n] * len,
               (size_t)len * sizeof *out->ids);
    free(at);
    return LQ_OK;
}

/* ---- the result's tensors ---- */
/* Those of a layer, in the plan's order; items [plan->n]. */
static lq_status layer_items(qz_item *items, size_t *n, const qz_made *made, int64_t layer,
                             lq_err *err)
{
    const qz_plan *plan = made->plan;
    size_t n_state = 0, at = 0;
    *n = 0;
    qz_item *stored = calloc(plan->n + 1, sizeof *stored);
    lq_status s = stored ? LQ_OK : lq_fail(err, LQ_ENOMEM, "no memory for the plan");
    if (!s && qz_state_done(made->state, layer))
        s = qz_state_items(made->state, plan, layer, stored, &n_state, err);
    for (size_t i = 0; i < plan->n && !s; i++) {
        const plan_entry *e = &plan->e[i];
        const bool in_state = at < n_state && stored[at].e == e;
        if (e->layer == layer && made->tuned && made->tuned->t[i].N)
            items[(*n)++] = (qz_item){ .e = e, .t = made->tuned->t[i] };
        else if (in_state)
            items[(*n)++] = stored[at];
        at += in_state;
    }
    free(stored);
    return s;
}

typedef struct {
    const qz_made *made;
    qz_item *items; /* [plan->n] */
    pool *p;
} builder;

static lq_status build_frame(void *user, model *m, lq_err *err)
{
    const builder *b = user;
    const arch_config *c = &b->made->plan->cfg;
    size_t n;
    lq_status s = layer_items(b->items, &n, b->made, c->layers, err);
    return s ? s : qz_frame_apply(m, c, b->items, n, b->p, err);
}

/* ---- the comparison ---- */
/* Positions of a window that answers are scored of: those of text, as `llmq eval` has it. */
static int64_t scored(const cal_samples *s) { return s->len - (s->begun > 1 ? s->begun : 1); }

typedef struct {
    cal_pass *ref, *made;
    const cal_samples *windows;
    int64_t rows, V;
    float *x, *y;           /* [rows, V]: logits of the result, of the source */
    eval_score *score;      /* [windows * scored] of all windows */
    eval_score *at;         /* ... of these rows */
    const int32_t *targets; /* of these rows */
    pool *p;
} comparison;

static lq_status run_layers(const comparison *k, const builder *b, const lq_job *job, lq_err *err)
{
    const arch_config *c = &b->made->plan->cfg;
    const lq_job quiet = { .stop = job ? job->stop : NULL };
    lq_status s = LQ_OK;
    for (int64_t i = 0; i < c->layers && !s; i++) {
        lq_arena a = { 0 };
        model_layer l;
        size_t n;
        lq_report(job, "check", (double)i, (double)(c->layers + k->windows->n));
        s = model_load_layer(&l, cal_model(k->ref), i, &a, k->p, err);
        if (!s) s = cal_advance(k->ref, i, &l, &quiet, err);
        if (!s && b->made->other)
            s = model_load_layer(&l, cal_model(k->made), i, &a, k->p, err);
        else if (!s)
            s = layer_items(b->items, &n, b->made, i, err);
        if (!s && !b->made->other) s = qz_layer_apply(&l, c, b->items, n, &a, k->p, err);
        if (!s) s = cal_advance(k->made, i, &l, &quiet, err);
        lq_arena_free(&a);
        if (!b->made->other) qz_state_drop(b->made->state, i);
        if (b->made->tuned) tune_drop(b->made->tuned);
    }
    return s;
}

static void score_row(void *ctx, int64_t row, int thread)
{
    comparison *k = ctx;
    (void)thread;
    k->at[row] = eval_position(k->x + row * k->V, k->y + row * k->V, k->V, k->targets[row]);
}

/* Windows of ours, whose scores go where they are among all: rank, rank + size, ... */
static lq_status score_windows(comparison *k, int rank, int size, const lq_job *job, lq_err *err)
{
    const int64_t per = scored(k->windows), before = k->windows->len - 1 - per,
                  layers = cal_model(k->ref)->cfg->layers;
    lq_status s = LQ_OK;
    for (int64_t w = 0; w < k->windows->n && !s; w++) {
        lq_report(job, "check", (double)(layers + w), (double)(layers + k->windows->n));
        for (int64_t t = 0, n; t < per && !s; t += n) {
            n = per - t < k->rows ? per - t : k->rows;
            if (lq_stopped(job)) return lq_fail(err, LQ_EINTR, "interrupted");
            s = cal_logits(k->ref, k->y, w, before + t, n, err);
            if (!s) s = cal_logits(k->made, k->x, w, before + t, n, err);
            if (s) break;
            k->targets = k->windows->ids + w * k->windows->len + before + t + 1;
            k->at = k->score + (w * size + rank) * per + t;
            pool_run(k->p, n, score_row, k);
        }
    }
    return s;
}

/* Everybody's to everybody, then summed in the order of the windows. */
static lq_status sum_up(qz_check *c, const comparison *k, const cal_samples *all, comm *ranks,
                        lq_err *err)
{
    const int64_t per = scored(all);
    double nll = 0, ref_nll = 0, kl = 0, agree = 0;
    for (int64_t w = 0; w < all->n; w++) {
        const int from = (int)(w % comm_size(ranks));
        const lq_status s =
            comm_broadcast(ranks, from, k->score + w * per, (size_t)per * sizeof *k->score, err);
        if (s) return s;
    }
    for (int64_t i = 0; i < all->n * per; i++) {
        nll += k->score[i].nll;
        ref_nll += k->score[i].ref_nll;
        kl += k->score[i].kl;
        agree += k->score[i].agree;
    }
    if (!isfinite(nll) || !isfinite(ref_nll) || !isfinite(kl))
        return lq_fail(err, LQ_EVALUE, "check: the logits of the %s are not finite",
                       isfinite(ref_nll) ? "quantized model" : "source");
    const double n = (double)(all->n * per);
    *c = (qz_check){ all->n, all->n * per, kl / n, agree / n, exp(nll / n), exp(ref_nll / n) };
    return LQ_OK;
}

/* Windows rank, rank + size, ...; out->n = 0: there are none. Free out->ids. */
static lq_status own_windows(cal_samples *out, const cal_samples *all, int rank, int size,
                             lq_err *err)
{
    const size_t one = (size_t)all->len;
    *out = *all;
    out->n = 0;
    out->ids = malloc(((size_t)all->n + 1) * one * sizeof *out->ids);
    if (!out->ids) return lq_fail(err, LQ_ENOMEM, "no memory for the windows of the check");
    for (int64_t w = rank; w < all->n; w += size, out->n++)
        memcpy(out->ids + (size_t)out->n * one, all->ids + (size_t)w * one, one * sizeof *out->ids);
    return LQ_OK;
}

static lq_status go_over(comparison *k, builder *b, src_source *src, bool spill, const lq_job *job,
                         lq_err *err)
{
    const qz_made *made = b->made;
    cal_opts o = { .spill_dir = spill ? made->state->at.dir : NULL,
                   .logits = true,
                   .on = made->on };
    lq_status s = cal_open(&k->ref, src, k->windows, &o, k->p, err);
    if (!made->other) o.frame = build_frame;
    o.user = b;
    if (!s) s = cal_open(&k->made, made->other ? made->other : src, k->windows, &o, k->p, err);
    if (!s) s = run_layers(k, b, job, err);
    return s ? s : score_windows(k, comm_rank(made->ranks), comm_size(made->ranks), job, err);
}

lq_status qz_check_run(qz_check *c, src_source *src, const qz_made *made,
                       const cal_samples *windows, bool spill, pool *p, const lq_job *job,
                       lq_err *err)
{
    memset(c, 0, sizeof *c);
    if (!windows || windows->n < 1) return LQ_OK;
    cal_samples own;
    comparison k = { .windows = &own, .p = p, .V = made->plan->cfg.vocab };
    builder b = { .made = made, .p = p };
    k.rows = QZ_CHECK_LOGITS / k.V < MIN_ROWS ? MIN_ROWS : QZ_CHECK_LOGITS / k.V;
    if (k.rows > CAL_LOGIT_ROWS) k.rows = CAL_LOGIT_ROWS;
    b.items = calloc(made->plan->n + 1, sizeof *b.items);
    k.x = malloc((size_t)(k.rows * k.V) * sizeof *k.x);
    k.y = malloc((size_t)(k.rows * k.V) * sizeof *k.y);
    k.score = calloc((size_t)(windows->n * scored(windows)), sizeof *k.score);
    lq_status s = own_windows(&own, windows, comm_rank(made->ranks), comm_size(made->ranks), err);
    if (!s && (!b.items || !k.x || !k.y || !k.score))
        s = lq_fail(err, LQ_ENOMEM, "no memory for the check");
    if (!s && own.n) s = go_over(&k, &b, src, spill, job, err);
    if (!s) s = sum_up(c, &k, windows, made->ranks, err);
    free(own.ids);
    cal_close(k.made);
    cal_close(k.ref);
    free(b.items);
    free(k.x);
    free(k.y);
    free(k.score);
    return s;
}

/* ---- as JSON ---- */
bool qz_check_write(cJSON *o, const qz_check *c)
{
    if (!c->windows) return true;
    cJSON *j = cJSON_AddObjectToObject(o, "check");
    return j && cJSON_AddNumberToObject(j, "kl_mean", c->kl_mean) &&
           cJSON_AddNumberToObject(j, "top1_agree", c->top1_agree) &&
           cJSON_AddNumberToObject(j, "perplexity", c->perplexity) &&
           cJSON_AddNumberToObject(j, "ref_perplexity", c->ref_perplexity) &&
           cJSON_AddNumberToObject(j, "windows", (double)c->windows) &&
           cJSON_AddNumberToObject(j, "tokens", (double)c->tokens);
}

void qz_check_read(qz_check *c, const cJSON *o)
{
    const cJSON *j = cJSON_GetObjectItemCaseSensitive(o, "check");
    const double inf = (double)INFINITY;
    qz_check r = { 0 };
    memset(c, 0, sizeof *c);
    if (!cJSON_IsObject(j)) return;
    if (js_f64(j, "kl_mean", true, -inf, inf, &r.kl_mean, NULL) ||
        js_f64(j, "top1_agree", true, 0, 1, &r.top1_agree, NULL) ||
        js_f64(j, "perplexity", true, 0, inf, &r.perplexity, NULL) ||
        js_f64(j, "ref_perplexity", true, 0, inf, &r.ref_perplexity, NULL) ||
        js_i64(j, "windows", true, 0, JS_MAX_INT, &r.windows, NULL) ||
        js_i64(j, "tokens", true, 0, JS_MAX_INT, &r.tokens, NULL))
        return;
    *c = r;
}
