/* quantize/mixed/measure.c - one pass over the layers; see measure.h for what is measured how. */
#include "quantize/mixed/measure.h"

#include <stdlib.h>

#include "calib/forward_pass.h"
#include "formats/tensor/blocks.h"
#include "quantize/layer/layer.h"
#include "quantize/methods/rtn.h"
#include "quantize/mixed/perturb.h"
#include "quantize/mixed/sensitivity.h"

enum { EXPERTS_SEEN = 8 };

/* One model with something replaced. */
typedef struct {
    size_t entry;   /* embedding or head; or the first of a unit */
    int scheme;     /* of it; -1: a unit, which takes the reference scheme */
    int64_t branch; /* of the perturb; -1: only the head differs */
} trial;

typedef struct {
    measure_entry *m;
    size_t n;
    src_source *src;
    const qz_plan *plan;
    const qz_opts *o;
    pool *p;
    const lq_job *job;
    comm *ranks;
    const fisher *G;
    int reference; /* the scheme that sets a unit's scale */
    cal_samples samples;
    cal_pass *cal;
    cal_layer_stats st;
    perturb *perturb; /* NULL: not needed */
    trial *trials;
    int64_t n_trials;
} work;

static bool of_layer(const plan_entry *e) { return arch_role_per_layer(e->role); }

/* Of the same unit: one role of one layer. */
static bool same_unit(const plan_entry *a, const plan_entry *b)
{
    return a->layer == b->layer && a->role == b->role;
}

/* The next entry of i's unit, in the plan's order; n: none. */
static size_t next_of_unit(const work *w, size_t i)
{
    const plan_entry *e = w->m[i].e;
    while (++i < w->n && w->m[i].e->layer == e->layer)
        if (same_unit(w->m[i].e, e)) return i;
    return w->n;
}

static bool first_of_unit(const work *w, size_t i)
{
    for (size_t k = i; k-- > 0 && w->m[k].e->layer == w->m[i].e->layer;)
        if (same_unit(w->m[k].e, w->m[i].e)) return false;
    return true;
}

/* Does a trial round i's unit, of which i is the first? No type of blocks may divide its rows. */
static bool is_tried(const work *w, size_t i)
{
    return !w->G && first_of_unit(w, i) && w->m[i].scheme[w->reference].kind != QT_DENSE;
}

/* Whole bits of a weight's code. */
static int bits_of(const qt_scheme *s)
{
    const blk_type *t = s->kind == QT_BLOCKS ? blk_find(s->blocks) : NULL;
    return t ? 8 * t->bytes / t->elements : s->kind == QT_DENSE ? 0 : s->bits;
}

/* ---- the linears of a layer ---- */
static const float *curvature_of(const work *w, const plan_entry *e)
{
    const int k = grad_linear_of(e->role);
    return w->G && k < GRAD_SUMS ? w->G->G[e->layer][k] : NULL;
}

static int64_t expert_stride(const work *w)
{
    const int64_t n = w->plan->cfg.experts;
    return n > EXPERTS_SEEN ? lq_ceil_div(n, EXPERTS_SEEN) : 1;
}

/* H of a role's inputs; of experts' gate and up that of all tokens. NULL: not known. */
static const float *inputs_of(work *w, arch_role r)
{
    if (r == R_EXPERT_DOWN) return NULL;
    const arch_role of = arch_role_per_expert(r) ? R_ROUTER : r;
    const cal_stats *st = cal_stats_of(&w->st, &w->plan->cfg, of, -1);
    return st && st->tokens ? st->H : NULL;
}

static lq_status sense_one(work *w, measure_entry *m, int64_t expert, lq_err *err)
{
    const plan_entry *e = m->e;
    lq_arena a = { 0 };
    qt_tensor W;
    lq_status s = src_matrix(w->src, e->role, e->layer, expert, &W, &a, err);
    const sensitivity_opts how = { .H = inputs_of(w, e->role),
                                   .G = curvature_of(w, e),
                                   .damp = w->o->damp,
                                   .nearest = w->o->method->alone,
                                   .limits = w->o->limits };
    if (!s) s = sensitivity_of(m->effect, m->scheme, m->n, &W, &how, w->p, err);
    src_matrix_done(w->src, e->role, e->layer, expert);
    lq_arena_free(&a);
    return s;
}

static bool is_sensed(const work *w, const plan_entry *e)
{
    return !arch_role_per_expert(e->role) || e->expert < 0 || e->expert % expert_stride(w) == 0;
}

static lq_status sense_entry(work *w, measure_entry *m, lq_err *err)
{
    const plan_entry *e = m->e;
    const int64_t stride = expert_stride(w);
    lq_status s = LQ_OK;
    if (!arch_role_per_expert(e->role)) return sense_one(w, m, -1, err);
    if (e->expert >= 0) return sense_one(w, m, e->expert, err);
    int64_t seen = 0; /* of experts in one tensor */
    for (int64_t x = 0; x < w->plan->cfg.experts && !s; x += stride, seen++)
        s = sense_one(w, m, x, err);
    for (int c = 0; c < m->n && seen; c++)
        m->effect[c] *= (double)w->plan->cfg.experts / (double)seen;
    return s;
}

/* Experts that were not looked at are as the one before them that was. */
static void fill_experts(work *w, size_t first)
{
    const int64_t stride = expert_stride(w);
    for (size_t i = first; i < w->n; i = next_of_unit(w, i)) {
        const int64_t x = w->m[i].e->expert, like = x - x % stride;
        for (size_t k = first; k < w->n && x > like; k = next_of_unit(w, k))
            if (w->m[k].e->expert == like)
                memcpy(w->m[i].effect, w->m[k].effect, sizeof w->m[i].effect);
    }
}

/* ---- rounded matrices for trials ---- */
static lq_status round_matrix(work *w, qt_tensor *out, const qt_tensor *W, const qt_scheme *s,
                              const float *H, bool search, lq_arena *a, lq_err *err)
{
    const grid_spec spec = rtn_spec(s, w->o->limits, search);
    float *imp = H ? malloc((size_t)W->K * sizeof *imp) : NULL;
    if (H && !imp) return lq_fail(err, LQ_ENOMEM, "no memory for trying out rounded weights");
    for (int64_t k = 0; k < W->K && H; k++)
        imp[k] = H[k * W->K + k];
    qz_out q;
    qt_scheme regular = *s;
    regular.act_order = false;
    lq_status st = qz_out_alloc(&q, &regular, W->N, W->K, a, err);
    if (!st) st = rtn_run(&q, W->plane[QT_CODES].data, W->scheme.dtype, imp, &spec, w->p, err);
    *out = q.t;
    free(imp);
    return st;
}

/* Entry i's matrices take their reference scheme in the layer `l`. */
static lq_status replace_entry(work *w, model_layer *l, size_t i, lq_arena *a, lq_err *err)
{
    const measure_entry *m = &w->m[i];
    const plan_entry *e = m->e;
    const bool experts = arch_role_per_expert(e->role);
    const int64_t from = e->expert < 0 ? 0 : e->expert;
    const int64_t to = !experts || e->expert >= 0 ? from + 1 : w->plan->cfg.experts;
    lq_status s = LQ_OK;
    for (int64_t x = from; x < to && !s; x++) {
        lq_arena t = { 0 };
        qt_tensor W, q;
        model_linear *lin = experts ? &l->expert[e->role - R_EXPERT_GATE][x] : &l->lin[e->role];
        s = src_matrix(w->src, e->role, e->layer, experts ? x : -1, &W, &t, err);
        if (!s)
            s = round_matrix(w, &q, &W, &m->scheme[w->reference], inputs_of(w, e->role), true, &t,
                             err);
        if (!s) s = mm_pack(&lin->w, &q, a, w->p, err);
        src_matrix_done(w->src, e->role, e->layer, experts ? x : -1);
        lq_arena_free(&t);
    }
    return s;
}

/* A unit of this layer is replaced: a branch. */
static lq_status try_unit(work *w, size_t first, const model_layer *plain, lq_err *err)
{
    const plan_entry *e = w->m[first].e;
    model_layer l = *plain;
    lq_arena a = { 0 };
    lq_status s = LQ_OK;
    int64_t id;
    if (arch_role_per_expert(e->role)) { /* the plain layer's table stays */
        const size_t n = (size_t)w->plan->cfg.experts * sizeof(model_linear);
        model_linear **list = &l.expert[e->role - R_EXPERT_GATE];
        model_linear *copy = lq_push(&a, n);
        if (!copy) return lq_fail(err, LQ_ENOMEM, "no memory for trying out rounded weights");
        *list = memcpy(copy, *list, n);
    }
    for (size_t i = first; i < w->n && !s; i = next_of_unit(w, i))
        s = replace_entry(w, &l, i, &a, err);
    if (!s) s = perturb_layer(w->perturb, &id, e->layer, &l, err);
    if (!s) w->trials[w->n_trials++] = (trial){ first, -1, id };
    lq_arena_free(&a);
    return s;
}

/* ---- embedding and head ---- */
/* Rounded as quantize/layer/layer.c does what has no statistics. */
static lq_status round_frame(work *w, qt_tensor *q, const trial *t, lq_arena *a, lq_err *err)
{
    const measure_entry *m = &w->m[t->entry];
    lq_arena copy = { 0 };
    qt_tensor W;
    lq_status s = src_matrix(w->src, m->e->role, -1, -1, &W, &copy, err);
    if (!s) s = round_matrix(w, q, &W, &m->scheme[t->scheme], NULL, w->o->clip, a, err);
    src_matrix_done(w->src, m->e->role, -1, -1);
    lq_arena_free(&copy);
    return s;
}

static lq_status try_frame(work *w, size_t i, lq_err *err)
{
    const measure_entry *m = &w->m[i];
    lq_status s = LQ_OK;
    for (int c = 0; c < m->n && !s; c++) {
        if (m->scheme[c].kind == QT_DENSE) continue;
        trial *t = &w->trials[w->n_trials++];
        *t = (trial){ i, c, -1 };
        if (m->e->role != R_EMBED) continue;
        lq_arena a = { 0 };
        qt_tensor q;
        s = round_frame(w, &q, t, &a, err);
        if (!s) s = perturb_embed(w->perturb, &t->branch, &q, err);
        lq_arena_free(&a);
        if (lq_stopped(w->job)) return lq_fail(err, LQ_EINTR, "interrupted");
    }
    return s;
}

/* Its answers; by the rounded head where the head is what is tried. */
static lq_status answer(work *w, double *kl, const trial *t, lq_err *err)
{
    lq_arena a = { 0 };
    model_linear head = cal_model(w->cal)->head;
    const bool own = t->scheme >= 0 && (t->branch < 0 || w->plan->cfg.tied);
    qt_tensor q;
    lq_status s = own ? round_frame(w, &q, t, &a, err) : LQ_OK;
    if (!s && own) s = mm_pack(&head.w, &q, &a, w->p, err);
    if (!s) s = perturb_kl(w->perturb, kl, t->branch, own ? &head : NULL, w->job, err);
    lq_arena_free(&a);
    return s;
}

/* ---- the passes ---- */
static lq_status open_perturb(work *w, lq_err *err)
{
    int64_t n = 0;
    for (size_t i = 0; i < w->n; i++)
        n += !of_layer(w->m[i].e) ? w->m[i].n : is_tried(w, i);
    if (!n) return LQ_OK;
    w->trials = calloc((size_t)n, sizeof *w->trials);
    if (!w->trials) return lq_fail(err, LQ_ENOMEM, "no memory for trying out rounded weights");
    lq_status s = perturb_open(&w->perturb, cal_model(w->cal), &w->samples, n, w->p, err);
    for (size_t i = 0; i < w->n && !s; i++)
        if (!of_layer(w->m[i].e)) s = try_frame(w, i, err);
    return s;
}

/* The layer's entries, by a rank each; then all effects to all. */
static lq_status sense_layer(work *w, int64_t layer, lq_err *err)
{
    lq_status s = LQ_OK;
    for (int told = 0; told < 2; told++) {
        int at = 0;
        for (size_t i = 0; i < w->n && !s; i++) {
            measure_entry *m = &w->m[i];
            if (!of_layer(m->e) || m->e->layer != layer || !is_sensed(w, m->e)) continue;
            const int owner = at++ % comm_size(w->ranks);
            if (lq_stopped(w->job)) return lq_fail(err, LQ_EINTR, "interrupted");
            if (told)
                s = comm_broadcast(w->ranks, owner, m->effect, sizeof m->effect, err);
            else if (owner == comm_rank(w->ranks))
                s = sense_entry(w, m, err);
        }
    }
    return s;
}

static lq_status one_layer(work *w, int64_t layer, lq_err *err)
{
    lq_arena a = { 0 };
    model_layer l;
    lq_status s = model_load_layer(&l, cal_model(w->cal), layer, &a, w->p, err);
    if (!s) s = cal_statistics(w->cal, &w->st, layer, &l, 0, 0, w->job, err);
    if (!s) s = sense_layer(w, layer, err);
    for (size_t i = 0; i < w->n && !s; i++) {
        if (!of_layer(w->m[i].e) || w->m[i].e->layer != layer || !first_of_unit(w, i)) continue;
        fill_experts(w, i);
        if (is_tried(w, i)) s = try_unit(w, i, &l, err);
    }
    if (!s && w->perturb) s = perturb_advance(w->perturb, layer, &l, w->job, err);
    if (!s && layer + 1 < w->plan->cfg.layers) s = cal_advance(w->cal, layer, &l, w->job, err);
    src_release_all(w->src);
    lq_arena_free(&a);
    return s;
}

/* Every rank has all branches, and finds the answers of every N-th trial. */
static lq_status find_answers(work *w, double *kl, lq_err *err)
{
    const int size = comm_size(w->ranks);
    lq_status s = LQ_OK;
    for (int64_t k = comm_rank(w->ranks); k < w->n_trials && !s; k += size) {
        lq_report(w->job, "measuring answers", (double)k, (double)w->n_trials);
        s = answer(w, &kl[k], &w->trials[k], err);
    }
    for (int64_t k = 0; k < w->n_trials && !s; k++)
        s = comm_broadcast(w->ranks, (int)(k % size), &kl[k], sizeof *kl, err);
    return s;
}

/* The trials' figures become effects, or set the scale of a unit's. */
static lq_status settle(work *w, lq_err *err)
{
    double *all = calloc((size_t)w->n_trials + 1, sizeof *all);
    if (!all) return lq_fail(err, LQ_ENOMEM, "no memory for trying out rounded weights");
    const lq_status s = find_answers(w, all, err);
    for (int64_t k = 0; k < w->n_trials && !s; k++) {
        const trial *t = &w->trials[k];
        const double kl = all[k] > 0 ? all[k] : 0; /* rounding errors of a KL of nothing */
        double sum = 0;
        if (t->scheme >= 0) {
            w->m[t->entry].effect[t->scheme] = kl;
            continue;
        }
        for (size_t i = t->entry; i < w->n; i = next_of_unit(w, i))
            sum += w->m[i].effect[w->reference];
        for (size_t i = t->entry; i < w->n && sum > 0; i = next_of_unit(w, i))
            for (int c = 0; c < w->m[i].n; c++)
                w->m[i].effect[c] *= kl / sum;
    }
    free(all);
    return s;
}

/* MEASURE_WINDOWS of the samples, evenly spaced. */
static lq_status take_windows(cal_samples *out, const cal_samples *all, lq_err *err)
{
    *out = *all;
    out->n = all->n < MEASURE_WINDOWS ? all->n : MEASURE_WINDOWS;
    const size_t one = (size_t)all->len;
    out->ids = malloc((size_t)out->n * one * sizeof *out->ids);
    if (!out->ids) return lq_fail(err, LQ_ENOMEM, "no memory for windows of text");
    for (int64_t i = 0; i < out->n; i++)
        memcpy(out->ids + (size_t)i * one, all->ids + (size_t)(i * all->n / out->n) * one,
               one * sizeof *out->ids);
    return LQ_OK;
}

/* Effects that make no sense would be chosen by. */
static lq_status check_finite(const work *w, lq_err *err)
{
    for (size_t i = 0; i < w->n; i++)
        for (int c = 0; c < w->m[i].n; c++)
            if (!isfinite(w->m[i].effect[c]))
                return lq_fail(err, LQ_EVALUE, "%s: its effect on the answers is not finite",
                               w->m[i].e->name);
    return LQ_OK;
}

lq_status measure_run(measure_entry *m, size_t n, src_source *src, const qz_plan *plan,
                      const qz_opts *o, const cal_samples *samples, const fisher *curvature,
                      comm *ranks, pool *p, const lq_job *job, lq_err *err)
{
    fisher own = { 0 };
    work w = {
        .m = m, .n = n, .src = src, .plan = plan, .o = o, .ranks = ranks, .p = p, .job = job
    };
    w.G = curvature->G && fisher_of_all(src_config(src)) ? curvature : NULL;
    while (w.reference < m->n && bits_of(&m->scheme[w.reference]) != MEASURE_BITS)
        w.reference++;
    if (w.reference == m->n) w.reference = 0;
    lq_status s = LQ_OK;
    if (!w.G && fisher_of_all(src_config(src))) {
        s = fisher_run(&own, src, samples, MEASURE_WINDOWS, false, o->on, ranks, p, job, err);
        w.G = &own;
    }
    if (!s) s = take_windows(&w.samples, samples, err);
    /* Experts' gate and up are measured by all tokens, their down by its weights. */
    const cal_opts cal = {
        .want_h = true, .logits = true, .all_experts = true, .on = o->on, .ranks = ranks
    };
    if (!s) s = cal_open(&w.cal, src, &w.samples, &cal, p, err);
    if (!s) s = open_perturb(&w, err);
    for (int64_t i = 0; i < plan->cfg.layers && !s; i++) {
        lq_report(job, "measuring what bits do", (double)i, (double)plan->cfg.layers);
        if (lq_stopped(job)) s = lq_fail(err, LQ_EINTR, "interrupted");
        if (!s) s = one_layer(&w, i, err);
    }
    if (!s && w.perturb) s = settle(&w, err);
    if (!s) s = check_finite(&w, err);
    free(w.trials);
    perturb_close(w.perturb);
    cal_layer_stats_free(&w.st);
    cal_close(w.cal);
    free(w.samples.ids);
    fisher_free(&own);
    return s;
}
