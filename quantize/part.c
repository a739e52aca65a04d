/* quantize/part.c - one part of a plan: folding, then each tensor by its scheme. */
#include "quantize/part.h"

#include <stdarg.h>
#include <stdio.h>

#include "quantize/awq.h"
#include "quantize/gptq.h"
#include "quantize/int8.h"
#include "quantize/loss.h"
#include "quantize/lut4.h"
#include "quantize/rtn.h"

enum { SWEEPS = 8 };

/* A linear of the layer while it is worked on. */
typedef struct {
    const plan_entry *e;
    const float *W; /* f32, folded; NULL: the source's, unchanged */
    float *own;     /* W, writable */
    qz_fold fold;
    double loss_rtn; /* before folding; NAN: not measured */
    double alpha;
} linear;

typedef struct {
    qz_part *out;
    const qz_plan *plan;
    int64_t part;
    const qz_opts *o;
    cal_stats *st;
    pool *p;
    const lq_job *job;
    linear lin[ARCH_N_ROLES];
    const float *changed[ARCH_N_ROLES][2]; /* folded norms and biases by role: weight, bias */
} work;

static void *push(work *w, size_t n, lq_status *s, lq_err *err)
{
    void *v = *s ? NULL : lq_push(&w->out->arena, n);
    if (!v && !*s) *s = lq_fail(err, LQ_ENOMEM, "no memory for %zu bytes of a layer", n);
    return v;
}

static cal_stats *stats_of(const work *w, arch_role r)
{
    cal_site site;
    return w->st && cal_site_of(&site, r) ? &w->st[site] : NULL;
}

static ug_spec spec_of(const work *w, const qt_scheme *s, bool search)
{
    return rtn_spec(s, !w->o->narrow, search);
}

/* ---- folding ---- */
typedef struct {
    arch_role readers[AWQ_MAX_LINEARS];
    int n;
    cal_site site;
    arch_role norm, rows; /* what makes the input: a norm, or the rows of a linear (the other is
                             ARCH_N_ROLES) */
} fold_site;

/* SwiGLU-like MLPs only: up's rows pass through no nonlinearity. */
static const fold_site fold_sites[] = {
    { { R_Q, R_K, R_V }, 3, CAL_ATTN, R_ATTN_NORM, ARCH_N_ROLES },
    { { R_O }, 1, CAL_O, ARCH_N_ROLES, R_V },
    { { R_GATE, R_UP }, 2, CAL_MLP, R_MLP_NORM, ARCH_N_ROLES },
    { { R_DOWN }, 1, CAL_DOWN, ARCH_N_ROLES, R_UP },
};

static bool is_uint(const linear *l)
{
    return l->e && l->e->quantize && l->e->scheme.kind == QT_UINT;
}

/* Every reader must be rounded with groups, and a linear that takes 1/s be rounded at all: what is
 * kept as it is must keep its bytes. */
static bool can_fold(const work *w, const fold_site *f)
{
    for (int i = 0; i < f->n; i++)
        if (!is_uint(&w->lin[f->readers[i]])) return false;
    if (f->rows == ARCH_N_ROLES) return qz_plan_find(w->plan, f->norm, w->part, false) != NULL;
    return is_uint(&w->lin[f->rows]) && w->plan->cfg.w.mlp == MLP_GATED;
}

static lq_status load_f32(work *w, linear *l, lq_err *err)
{
    const qt_tensor *t = &l->e->src->t;
    lq_status s = LQ_OK;
    size_t n = (size_t)t->N * (size_t)t->K;
    l->own = push(w, n * sizeof *l->own, &s, err);
    if (s) return s;
    lq_to_f32(l->own, t->plane[QT_CODES].data, t->scheme.dtype, n);
    l->W = l->own;
    return LQ_OK;
}

/* What plain rounding of the unfolded weights would lose. */
static lq_status measure_rtn(work *w, linear *l, arch_role r, lq_err *err)
{
    const qt_tensor *t = &l->e->src->t;
    qt_scheme scheme = l->e->scheme;
    ug_spec spec = spec_of(w, &scheme, false);
    lq_arena a = { 0 };
    qz_out q;
    qz_loss loss;
    scheme.irregular = false;
    lq_status s = qz_out_alloc(&q, &scheme, t->N, t->K, &a, err);
    if (!s) s = rtn_run(&q, l->W, LQ_F32, NULL, &spec, w->p, err);
    if (!s) s = qz_loss_of(&loss, &q.t, l->W, LQ_F32, stats_of(w, r)->H, (qz_fold){ 0 }, w->p, err);
    if (!s) l->loss_rtn = loss.loss;
    lq_arena_free(&a);
    return s;
}

/* Inputs of o that come from one row of v share a scale. */
static lq_status make_tie(work *w, int32_t **tie, int64_t K, lq_err *err)
{
    const arch_config *c = &w->plan->cfg;
    lq_status s = LQ_OK;
    int32_t *t = push(w, (size_t)K * sizeof *t, &s, err);
    for (int64_t k = 0; k < K && !s; k++) {
        int64_t head = k / c->head_dim, kv = head / (c->heads / c->kv_heads);
        t[k] = (int32_t)(kv * c->head_dim + k % c->head_dim);
    }
    *tie = t;
    return s;
}

/* A norm's weights or a bias divided by s, as f32; `off` is what the model adds to a norm. */
static lq_status divide_vector(work *w, arch_role r, bool bias, const float *s, float off,
                               lq_err *err)
{
    const plan_entry *e = qz_plan_find(w->plan, r, w->part, bias);
    lq_status st = LQ_OK;
    if (!e) return LQ_OK;
    int64_t n = e->src->t.K;
    float *v = push(w, (size_t)n * sizeof *v, &st, err);
    if (st) return st;
    qt_dequant(v, &e->src->t, 0, 1);
    for (int64_t k = 0; k < n; k++)
        v[k] = (v[k] + off) / s[k] - off;
    w->changed[r][bias] = v;
    return LQ_OK;
}

static lq_status fold_one(work *w, const fold_site *f, lq_err *err)
{
    cal_stats *st = &w->st[f->site];
    awq_site site = { .n = f->n, .K = st->K, .H = st->H, .mean_abs = st->mean_abs };
    for (int i = 0; i < f->n; i++) {
        const linear *l = &w->lin[f->readers[i]];
        site.lin[i].W = l->W;
        site.lin[i].N = l->e->src->t.N;
        site.lin[i].group = l->e->scheme.group;
        site.lin[i].spec = spec_of(w, &l->e->scheme, false);
        site.lin[i].spec.scale_dtype = LQ_F32; /* ranks scales; the stored type matters little */
    }
    int32_t *tie = NULL;
    awq_report rep;
    lq_status s = f->rows == R_V ? make_tie(w, &tie, st->K, err) : LQ_OK;
    site.tie = tie;
    float *scale = push(w, (size_t)st->K * sizeof *scale, &s, err);
    if (!s) s = awq_search(scale, &rep, &site, w->p, err);
    if (s || !(rep.after < rep.before)) return s;
    for (int i = 0; i < f->n; i++) {
        linear *l = &w->lin[f->readers[i]];
        awq_scale_columns(l->own, scale, site.lin[i].N, st->K, w->p);
        l->fold.cols = scale;
        l->alpha = rep.alpha;
    }
    awq_scale_h(st->H, scale, st->K, w->p);
    if (f->rows == ARCH_N_ROLES)
        return divide_vector(w, f->norm, false, scale, w->plan->cfg.w.norm_offset, err);
    linear *from = &w->lin[f->rows];
    int64_t N = from->e->src->t.N;
    float *rows = scale;
    if (tie) {
        rows = push(w, (size_t)N * sizeof *rows, &s, err);
        for (int64_t k = 0; k < st->K && !s; k++)
            rows[tie[k]] = scale[k];
        if (s) return s;
    }
    awq_divide_rows(from->own, rows, N, from->e->src->t.K, w->p);
    from->fold.rows = rows;
    return divide_vector(w, f->rows, true, rows, 0, err);
}

static lq_status fold_all(work *w, lq_err *err)
{
    lq_status s = LQ_OK;
    for (int r = 0; r < ARCH_N_ROLES && !s; r++) {
        linear *l = &w->lin[r];
        if (!is_uint(l) || !stats_of(w, (arch_role)r)) continue;
        s = load_f32(w, l, err);
        if (!s) s = measure_rtn(w, l, (arch_role)r, err);
    }
    for (size_t i = 0; i < LQ_COUNT(fold_sites) && !s; i++) {
        if (lq_stopped(w->job)) return lq_fail(err, LQ_EINTR, "interrupted");
        if (can_fold(w, &fold_sites[i])) s = fold_one(w, &fold_sites[i], err);
    }
    return s;
}

/* ---- one tensor ---- */
typedef struct {
    const void *W;
    lq_dtype d;
    cal_stats *st; /* NULL: none */
    qz_out out;
    qz_report *rep;
} one;

#if defined(__GNUC__)
__attribute__((format(printf, 2, 3)))
#endif
static void
note(qz_report *r, const char *fmt, ...)
{
    size_t n = strlen(r->note), cap = sizeof r->note;
    if (n && n + 2 < cap) n += (size_t)snprintf(r->note + n, cap - n, "; ");
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(r->note + n, cap - n, fmt, ap);
    va_end(ap);
}

static lq_status make_uint(work *w, one *t, lq_err *err)
{
    const qt_tensor *q = &t->out.t;
    ug_spec spec = spec_of(w, &q->scheme, w->o->clip);
    const float *H = t->st ? t->st->H : NULL;
    if (!H) return rtn_run(&t->out, t->W, t->d, NULL, &spec, w->p, err);
    spec.search = !w->o->no_clip;
    float *copy = NULL;
    lq_arena a = { 0 };
    lq_status s = LQ_OK;
    if (t->d != LQ_F32 || (uintptr_t)t->W % sizeof(float)) {
        size_t n = (size_t)q->N * (size_t)q->K;
        copy = lq_push(&a, n * sizeof *copy);
        if (!copy) return lq_fail(err, LQ_ENOMEM, "no memory for %zu weights", n);
        lq_to_f32(copy, t->W, t->d, n);
    }
    const float *W = copy ? copy : t->W;
    if (w->o->method == QZ_AWQ) {
        s = awq_round(&t->out, W, H, &spec, w->p, err);
    } else {
        gptq_report rep;
        gptq_opts o = { spec, w->o->damp, !w->o->no_act_order, !w->o->no_static_groups, SWEEPS };
        s = gptq_run(&t->out, &rep, W, H, &o, w->p, err);
        if (!s) {
            if (isnan(t->rep->loss_rtn)) t->rep->loss_rtn = rep.loss_rtn;
            if (rep.fallback) note(t->rep, "statistics not usable, rounded to nearest");
            if (rep.dead) note(t->rep, "%lld inputs never fire", (long long)rep.dead);
            if (!rep.fallback && rep.damp > (w->o->damp > 0 ? w->o->damp : 0.01))
                note(t->rep, "damping raised to %g", rep.damp);
        }
    }
    lq_arena_free(&a);
    return s;
}

static lq_status make_dense(one *t)
{
    const qt_tensor *q = &t->out.t;
    float row[1024];
    size_t n = (size_t)q->N * (size_t)q->K, in = (size_t)lq_dtype_bits(t->d) / 8;
    size_t out = (size_t)lq_dtype_bits(q->scheme.dtype) / 8;
    for (size_t i = 0; i < n; i += LQ_COUNT(row)) {
        size_t len = n - i < LQ_COUNT(row) ? n - i : LQ_COUNT(row);
        lq_to_f32(row, (const uint8_t *)t->W + i * in, t->d, len);
        lq_from_f32((uint8_t *)t->out.w[QT_CODES] + i * out, row, q->scheme.dtype, len);
    }
    return LQ_OK;
}

/* Settle what of the scheme depends on the weights or their inputs. */
static lq_status settle(work *w, one *t, const plan_entry *e, qt_scheme *s, int32_t **outliers,
                        lq_err *err)
{
    *s = e->scheme;
    *outliers = NULL;
    lq_status st = LQ_OK;
    int64_t N = e->src->t.N, K = e->src->t.K;
    if (s->kind == QT_UINT) {
        float absmax;
        int64_t bad;
        if (!qz_absmax(&absmax, &bad, t->W, t->d, N * K, w->p))
            return lq_fail(err, LQ_EVALUE, "%s: weight %lld became NaN or Inf", e->name,
                           (long long)bad);
        s->scale_dtype = ug_scale_dtype(absmax, s->bits);
        if (s->scale_dtype == LQ_F32) note(t->rep, "scales are f32: they do not fit f16");
    } else if (s->kind == QT_I8_OUTLIER) {
        *outliers = push(w, (size_t)K * sizeof **outliers, &st, err);
        if (st) return st;
        double limit = w->o->outlier_threshold > 0 ? w->o->outlier_threshold : 6;
        if (t->st) s->n_out = int8_find_outliers(*outliers, t->st->max_abs, K, (float)limit);
        if (!s->n_out) s->kind = QT_I8;
        if (s->n_out) note(t->rep, "%lld outlier inputs", (long long)s->n_out);
    }
    return LQ_OK;
}

static lq_status make_one(work *w, const plan_entry *e, lq_err *err)
{
    const linear *l = &w->lin[e->role];
    bool layer = l->e == e;
    qz_report *rep = &w->out->reports[w->out->n_reports];
    one t = { .W = e->src->t.plane[QT_CODES].data, .d = e->src->t.scheme.dtype, .rep = rep };
    *rep = (qz_report){
        .name = e->name, .role = e->role, .loss = (double)NAN, .loss_rtn = (double)NAN
    };
    if (layer) t.st = stats_of(w, e->role);
    if (layer && l->W) {
        t.W = l->W;
        t.d = LQ_F32;
        rep->loss_rtn = l->loss_rtn;
        if (l->fold.cols) note(rep, "scaled with alpha %.2f", l->alpha);
    }
    qt_scheme s;
    int32_t *outliers;
    lq_status st = settle(w, &t, e, &s, &outliers, err);
    if (!st) st = qz_out_alloc(&t.out, &s, e->src->t.N, e->src->t.K, &w->out->arena, err);
    if (!st && s.kind == QT_UINT) st = make_uint(w, &t, err);
    if (!st && s.kind == QT_LUT4) st = lut4_run(&t.out, t.W, t.d, w->p, err);
    if (!st && (s.kind == QT_I8 || s.kind == QT_I8_OUTLIER))
        st = int8_run(&t.out, t.W, t.d, outliers, w->p, err);
    if (!st && s.kind == QT_DENSE) st = make_dense(&t);
    qz_loss loss;
    if (!st)
        st = qz_loss_of(&loss, &t.out.t, t.W, t.d, t.st ? t.st->H : NULL,
                        layer ? l->fold : (qz_fold){ 0 }, w->p, err);
    if (st) return lq_wrap(err, st, "%s", e->name);
    if (!isfinite(loss.rmse))
        return lq_fail(err, LQ_EVALUE, "%s: the quantized weights are not finite", e->name);
    rep->rmse = loss.rmse;
    rep->loss = loss.loss;
    rep->elements = e->src->t.N * e->src->t.K;
    rep->bytes = qt_bytes(&t.out.t.scheme, e->src->t.N, e->src->t.K);
    qt_scheme_text(rep->scheme, &t.out.t.scheme);
    w->out->items[w->out->n_items++] = (qz_item){ e, t.out.t };
    w->out->n_reports++;
    return LQ_OK;
}

static void keep_vector(work *w, const plan_entry *e)
{
    qt_tensor t = { .scheme = { .kind = QT_DENSE, .dtype = LQ_F32 }, .N = 1, .K = e->src->t.K };
    t.plane[QT_CODES] = (qt_span){ w->changed[e->role][e->is_bias], (size_t)t.K * sizeof(float) };
    w->out->items[w->out->n_items++] = (qz_item){ e, t };
}

lq_status qz_part_make(qz_part *out, const qz_plan *plan, int64_t part, const qz_opts *o,
                       cal_stats *st, pool *p, const lq_job *job, lq_err *err)
{
    memset(out, 0, sizeof *out);
    work w = { out, plan, part, o, st, p, job, { { 0 } }, { { 0 } } };
    size_t n = 0;
    for (size_t i = 0; i < plan->n; i++) {
        const plan_entry *e = &plan->e[i];
        if (e->part != part) continue;
        n++;
        if (!e->known || e->is_bias || !arch_role_linear(e->role) || part == plan->cfg.layers)
            continue;
        w.lin[e->role] = (linear){ .e = e, .loss_rtn = (double)NAN };
    }
    lq_status s = LQ_OK;
    out->items = push(&w, n * sizeof *out->items, &s, err);
    out->reports = push(&w, n * sizeof *out->reports, &s, err);
    if (!s && st && qz_folds(o)) s = fold_all(&w, err);
    for (size_t i = 0; i < plan->n && !s; i++) {
        const plan_entry *e = &plan->e[i];
        if (e->part != part || !e->known) continue;
        if (lq_stopped(job))
            s = lq_fail(err, LQ_EINTR, "interrupted");
        else if (e->quantize)
            s = make_one(&w, e, err);
        else if (w.changed[e->role][e->is_bias])
            keep_vector(&w, e);
    }
    if (s) qz_part_free(out);
    return s;
}

void qz_part_free(qz_part *p)
{
    lq_arena_free(&p->arena);
    memset(p, 0, sizeof *p);
}

/* ---- the layer as it will run ---- */
static lq_status put_vector(const float **out, const qz_item *item, lq_arena *a, lq_err *err)
{
    float *v = lq_push(a, (size_t)item->t.K * sizeof *v);
    if (!v) return lq_fail(err, LQ_ENOMEM, "%s: no memory", item->e->name);
    qt_dequant(v, &item->t, 0, 1);
    *out = v;
    return LQ_OK;
}

lq_status qz_part_apply(model_layer *l, const qz_item *items, size_t n, lq_arena *a, pool *p,
                        lq_err *err)
{
    lq_status s = LQ_OK;
    for (size_t i = 0; i < n && !s; i++) {
        const plan_entry *e = items[i].e;
        model_vector *vec = &l->vec[e->role];
        model_linear *lin = &l->lin[e->role];
        const bool matrix = arch_role_kind(e->role) != ARCH_VECTOR;
        if (e->is_bias)
            s = put_vector(matrix ? &lin->bias : &vec->bias, &items[i], a, err);
        else if (!matrix)
            s = put_vector(&vec->w, &items[i], a, err);
        else if ((s = mm_pack(&lin->w, &items[i].t, a, p, err)))
            lq_wrap(err, s, "%s", e->name);
    }
    return s;
}
