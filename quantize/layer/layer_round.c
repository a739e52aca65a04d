/* quantize/layer/layer_round.c - one matrix of a layer: its statistics, its rounding, how far it is off. */
#include <stdarg.h>
#include <stdio.h>

#include "quantize/layer/importance.h"
#include "quantize/layer/layer_impl.h"
#include "quantize/layer/residual.h"
#include "quantize/methods/effort.h"
#include "quantize/methods/fp8.h"
#include "quantize/methods/int8.h"
#include "quantize/methods/kinds.h"
#include "quantize/transform/fold.h"

enum { FEW = 4 /* tokens: fewer than inputs / FEW */ };

void layer_note(qz_report *r, const char *fmt, ...)
{
    size_t n = strlen(r->note), cap = sizeof r->note;
    if (n && n + 2 < cap) n += (size_t)snprintf(r->note + n, cap - n, "; ");
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(r->note + n, cap - n, fmt, ap);
    va_end(ap);
}

/* ---- statistics ---- */
static void find_stats(const work *w, unit *u)
{
    const plan_entry *e = u->t->e;
    qz_report *rep = &u->t->rep;
    u->st = NULL;
    if (!w->st || (e->count > 1 && u->expert < 0)) return;
    u->st = cal_stats_of(w->st, w->c, e->role, u->expert);
    const bool of_expert = arch_role_per_expert(e->role);
    if (!of_expert) {
        rep->tokens = u->st ? u->st->tokens : -1;
        return;
    }
    cal_stats *all = cal_stats_of(w->st, w->c, R_ROUTER, -1);
    if (all && !all->tokens) all = NULL;
    u->st_all = !u->st && w->o->all_experts; /* the same tokens for every expert */
    if (u->st_all) u->st = all;
    if (!u->st) return;
    const int64_t tokens = u->st->tokens;
    if (rep->tokens < 0 || tokens < rep->tokens) rep->tokens = tokens;
    u->t->most = tokens > u->t->most ? tokens : u->t->most;
    if ((!u->st->H && !u->st->elsewhere) || tokens * FEW >= u->K) return;
    u->t->few++;
    u->st_all = true;
    u->st = e->role == R_EXPERT_DOWN ? NULL : all;
    u->t->rounded = !u->st;
}

unit layer_unit(const work *w, target *t, int64_t expert)
{
    const plan_entry *e = t->e;
    unit u = { .t = t, .expert = expert, .N = e->N, .K = e->K };
    u.loss = u.loss_rtn = (double)NAN;
    if (layer_by_matrix(t))
        u.row0 = expert * e->N;
    else
        u.N *= e->count;
    find_stats(w, &u);
    if (u.st) qz_report_inputs(&t->rep, u.st);
    return u;
}

/* ---- rounding ---- */

/* m->G: the curvature of a linear of this layer, for outputs as folding left them; NULL: none. That of inputs is u's
 * statistics, whose tokens count by the gradient there (calib/fisher.h). */
static lq_status curvature_of(const work *w, qz_matrix *m, const unit *u, lq_arena *a, lq_err *err)
{
    const int64_t B = FISHER_BLOCK, blocks = lq_ceil_div(u->N, B);
    const size_t n = (size_t)(blocks * B * B);
    const float *s = u->fold.rows;
    const fisher *from = w->how.curvature;
    const int k = grad_linear_of(u->t->e->role);
    if (!from || k == GRAD_SUMS || !from->G[w->layer][k]) return LQ_OK;
    float *G = lq_push(a, n * sizeof *G);
    if (!G) return layer_no_memory(n * sizeof *G, err);
    m->G = memcpy(G, from->G[w->layer][k] + u->skipped * B, n * sizeof *G);
    for (int64_t i = 0; i < u->N; i += B)
        cal_shrink(G + i * B, u->N - i < B ? u->N - i : B, B, from->tokens);
    for (int64_t i = 0; i < u->N && s; i++)
        for (int64_t j = i / B * B, at = 0; at < B && j < u->N; j++, at++)
            G[i * B + at] *= s[i] * s[j];
    return LQ_OK;
}

/* What rounding says of a matrix, for its tensor's report. */
static void note_rounded(const work *w, unit *u, const qz_rounded *r)
{
    qz_report *rep = &u->t->rep, unheard = { .note = "" };
    if (layer_by_matrix(u->t)) rep = &unheard; /* one note of 128 experts would do for none */
    if (r->fallback) layer_note(rep, "statistics not usable, rounded to nearest");
    if (r->nearest)
        layer_note(rep, "%lld blocks of outputs rounded to nearest", (long long)r->nearest);
    if (r->dead) layer_note(rep, "%lld inputs never fire", (long long)r->dead);
    if (!r->fallback && r->damp > qz_damp(w->o)) layer_note(rep, "damping raised to %g", r->damp);
}

/* By the method, or to nearest where it has none of what it goes by. */
static lq_status make_on_grids(work *w, unit *u, qz_out *out, lq_err *err)
{
    const cal_stats *st = u->st;
    const bool means = st && st->tokens && (qz_needs(w->o) & QZ_NEEDS_MEANS);
    qz_matrix m = { .o = w->o,
                    .W = u->W,
                    .d = u->d,
                    .N = u->N,
                    .K = u->K,
                    .H = st ? st->H : NULL,
                    .mean_sq = means ? st->mean_sq : NULL,
                    .stacked = u->t->e->count > 1,
                    .rest = u->t->residual ? u->t->residual + u->row0 * u->K : NULL,
                    .basis = u->basis ? u->basis : &w->basis };
    qz_rounded r = { .loss = (double)NAN, .loss_rtn = (double)NAN };
    if (w->o->imatrix) {
        const lq_status s = importance_of(&m.mean_sq, w->o->imatrix, w->c, u->t->e, u->expert, err);
        if (s) return s;
        if (!m.mean_sq && u->expert <= 0)
            layer_note(&u->t->rep, "not in the importance matrix: all inputs count alike");
    }
    if (!m.H && out->t.scheme.kind == QT_E4M3) return fp8_run(out, u->W, u->d, w->p, err);
    if (!w->o->method->round || (!m.H && qz_needs_h(w->o)))
        return rtn_round(out, &r, &m, w->p, err);
    lq_arena a = { 0 };
    lq_status s = LQ_OK;
    if (m.H && (u->d != LQ_F32 || (uintptr_t)u->W % sizeof(float))) {
        const size_t n = (size_t)u->N * (size_t)u->K;
        float *copy = lq_push(&a, n * sizeof *copy);
        if (!copy) return layer_no_memory(n * sizeof *copy, err);
        lq_to_f32(copy, u->W, u->d, n);
        m.W = copy;
        m.d = LQ_F32;
    }
    if (m.H) s = curvature_of(w, &m, u, &a, err);
    if (!s) s = w->o->method->round(out, &r, &m, w->p, err);
    if (!s && isnan(u->loss_rtn) && r.measure_rtn) s = layer_measure_rtn(w, u, err);
    if (!s) {
        if (isnan(u->loss_rtn)) u->loss_rtn = r.loss_rtn;
        if (!w->fold) u->loss = r.loss;
        note_rounded(w, u, &r);
        u->rested = r.rested;
    }
    lq_arena_free(&a);
    return s;
}

lq_status layer_share_basis(work *w, const unit *u, gptq_basis *b, lq_err *err)
{
    const qz_matrix m = { .o = w->o, .N = u->N, .K = u->K, .H = u->st->H, .basis = b };
    return w->o->method->share(&u->t->out, &m, w->how.ranks, w->p, err);
}

/* Columns whose inputs reach the threshold often enough; of stacked experts those of any. */
static int64_t find_outliers(work *w, target *t, int32_t *idx)
{
    const plan_entry *e = t->e;
    float *most = lq_push(&w->out.arena, (size_t)e->K * sizeof *most);
    if (!most) return -1;
    for (int64_t i = 0; i < e->count; i++) {
        unit u = { .t = t, .expert = layer_by_matrix(t) ? i : e->expert, .K = e->K };
        find_stats(w, &u);
        for (int64_t k = 0; u.st && u.st->tokens && k < e->K; k++)
            most[k] = fmaxf(most[k], (float)u.st->reached[k] / (float)u.st->tokens);
    }
    return int8_find_outliers(idx, most, e->K, (float)qz_outlier_share(w->o));
}

/* Settle what of the scheme depends on the weights or their inputs, and cut the tensor. */
lq_status layer_start_unit(work *w, const unit *u, lq_err *err)
{
    target *t = u->t;
    const plan_entry *e = t->e;
    qt_scheme s = e->scheme;
    if (t->out.t.N) return LQ_OK;
    if (u->fold.cols) { /* once for all stacked experts: they share it */
        layer_note(&t->rep, "scaled with alpha %.2f", u->alpha);
        qz_report_fold(&t->rep, u->fold.cols, u->K, u->alpha);
    }
    if (s.kind == QT_UINT) {
        float absmax;
        lq_status st = layer_absmax(w, u, &absmax, err);
        if (st) return st;
        if (layer_by_matrix(t) && w->fold) absmax *= FOLD_LIMIT * FOLD_LIMIT; /* experts to come */
        s.scale_dtype = grid_scale_dtype(absmax, s.bits);
        if (s.scale_dtype == LQ_F32) layer_note(&t->rep, "scales are f32: they do not fit f16");
    } else if (s.kind == QT_I8_OUTLIER) {
        t->outliers = lq_push(&w->out.arena, (size_t)e->K * sizeof *t->outliers);
        s.n_out = t->outliers && w->st ? find_outliers(w, t, t->outliers) : 0;
        if (!t->outliers || s.n_out < 0)
            return layer_no_memory((size_t)e->K * sizeof(int32_t), err);
        if (!s.n_out) s.kind = QT_I8;
        if (s.n_out) layer_note(&t->rep, "%lld outlier inputs", (long long)s.n_out);
    }
    lq_status st = qz_out_alloc(&t->out, &s, e->count * e->N, e->K, &w->out.arena, err);
    if (!st && s.kind == QT_E4M3 && !s.rows && !s.group) layer_float_scale(&t->out, w, e);
    if (st || !s.recip) return st;
    return layer_tensor_scale(&t->out, w, u, err);
}

/* Room for what rounding leaves of t, where tuning wants it. */
static lq_status make_residual(work *w, target *t, lq_err *err)
{
    const qt_tensor *all = &t->out.t;
    if (!w->how.residual || !w->st || t->residual || !qz_residual_fits(&all->scheme)) return LQ_OK;
    t->residual = lq_push(&w->out.arena, (size_t)(all->N * all->K));
    return t->residual ? LQ_OK : layer_no_memory((size_t)(all->N * all->K), err);
}

/* What rounding left of u, which became q. */
static lq_status keep_residual(const work *w, const unit *u, const qt_tensor *q, lq_err *err)
{
    if (!u->t->residual || u->rested) return LQ_OK;
    if (qz_effort_of(w->o)->from_loss) { /* these were rounded without that loss */
        memset(u->t->residual + u->row0 * u->K, 0, (size_t)(u->N * u->K));
        return LQ_OK;
    }
    return qz_residual_of(u->t->residual + u->row0 * u->K, q, u->W, u->d, w->p, err);
}

lq_status layer_round_unit(work *w, unit *u, lq_err *err)
{
    target *t = u->t;
    qz_out rows, *out = &t->out;
    if (u->N != t->out.t.N) {
        out = &rows;
        if (!qz_out_rows(out, &t->out, u->row0, u->row0 + u->N))
            return lq_fail(err, LQ_EUNSUPPORTED, "its blocks run across experts");
    }
    lq_status s = make_residual(w, t, err);
    if (!s)
        s = qz_by_method(t->e, w->o) ? make_on_grids(w, u, out, err)
                                     : qz_round_kind(out, u->W, u->d, t->outliers, w->p, err);
    if (!s) s = keep_residual(w, u, &out->t, err);
    qz_loss loss;
    qz_fold fold = u->fold;
    const float *H = u->st && isnan(u->loss) ? u->st->H : NULL;
    if (H) fold.shrink = u->st->shrink;
    if (!s) s = qz_loss_of(&loss, &out->t, u->W, u->d, H, fold, w->p, err);
    if (s) return s;
    if (!isnan(u->loss)) loss.loss = u->loss;
    if (!isfinite(loss.rmse))
        return lq_fail(err, LQ_EVALUE, "the quantized weights are not finite");
    u->sums = (unit_sums){ .squares = loss.rmse * loss.rmse * (double)(u->N * u->K) };
    if (isnan(loss.loss)) return LQ_OK;
    u->sums.measured = true;
    u->sums.loss = loss.loss;
    u->sums.loss_rtn = u->loss_rtn;
    return LQ_OK;
}

void layer_add_sums(target *t, const unit_sums *sums)
{
    t->squares += sums->squares;
    t->measured |= sums->measured != 0;
    t->loss += sums->loss;
    t->loss_rtn += sums->loss_rtn;
}
