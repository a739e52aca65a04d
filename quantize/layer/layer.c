/* quantize/layer/layer.c - one part of a plan: its matrices, group by group; see layer.h. */
#include "quantize/layer/layer.h"

#include <stdarg.h>
#include <stdio.h>

#include "formats/tensor/finite.h"
#include "quantize/layer/layer_impl.h"
#include "quantize/layer/residual.h"
#include "quantize/methods/int8.h"
#include "quantize/methods/lut4.h"
#include "quantize/transform/fold.h"

enum { STARVED = 4 /* fewer tokens than inputs / STARVED */ };

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

/* Are its matrices rounded one by one? Where blocks may run from one into the next they are not. */
static bool by_matrix(const target *t)
{
    const qt_kind k = t->e->scheme.kind;
    return t->e->count > 1 && (k == QT_UINT || k == QT_I8 || k == QT_I8_OUTLIER);
}

static bool in_stages(const work *w) { return w->eyes && w->eyes->look_at; }

/* Is it made along with expert `expert` (-1: with what the layer has once), and now? */
static bool belongs(const work *w, const target *t, int64_t expert)
{
    const plan_entry *e = t->e;
    if (!e->known || !e->quantize) return false;
    if (in_stages(w) && cal_point_of(w->c, e->role) != w->at) return false;
    if (by_matrix(t)) return expert >= 0 && expert < e->count;
    return e->expert == expert;
}

/* ---- weights and statistics of one matrix ---- */

/* u->W: a view of the source, or its transposed copy. */
lq_status part_read(unit *u, lq_arena *a, lq_err *err)
{
    const plan_entry *e = u->t->e;
    const qt_tensor *t = &u->t->src;
    const size_t size = (size_t)lq_dtype_bits(t->scheme.dtype) / 8;
    const size_t one = (size_t)(e->N * e->K) * size, n = (size_t)(u->N * u->K) * size;
    const uint8_t *from =
        (const uint8_t *)t->plane[QT_CODES].data + (size_t)(u->row0 * u->K) * size;
    u->d = t->scheme.dtype;
    u->W = from;
    if (!e->turned) return LQ_OK;
    uint8_t *copy = lq_push(a, n);
    if (!copy) return part_no_memory(n, err);
    for (size_t at = 0; at < n; at += one)
        src_transpose(copy + at, from + at, e->N, e->K, size);
    u->W = copy;
    return LQ_OK;
}

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
    u->st_all = !u->st && w->eyes->all_experts; /* the same tokens for every expert */
    if (u->st_all) u->st = all;
    if (!u->st) return;
    const int64_t tokens = u->st->tokens;
    if (rep->tokens < 0 || tokens < rep->tokens) rep->tokens = tokens;
    u->t->most = tokens > u->t->most ? tokens : u->t->most;
    if (!u->st->H || tokens * STARVED >= u->K) return;
    u->t->starved++;
    u->st_all = true;
    u->st = e->role == R_EXPERT_DOWN ? NULL : all;
    u->t->rounded = !u->st;
}

/* ---- rounding ---- */

/* m->G, m->G_H: the curvature of a linear of this layer, for inputs and outputs as folding left
 * them; NULL: none. Half of that of inputs is u's statistics, of inputs that quantized layers made;
 * half weighs tokens by the gradient there (calib/fisher.h). */
static lq_status curvature_of(const work *w, qz_matrix *m, const unit *u, lq_arena *a, lq_err *err)
{
    const int64_t B = FISHER_BLOCK, blocks = lq_ceil_div(u->N, B), K = u->K;
    const size_t n = (size_t)(blocks * B * B), nh = (size_t)(K * K);
    const float *s = u->fold.rows, *f = u->fold.cols;
    const fisher *from = w->eyes->curvature;
    int k = 0;
    double plain = 0, weighed = 0;
    while (k < GRAD_LINEARS && grad_linear_roles[k] != u->t->e->role)
        k++;
    if (!from || k == GRAD_LINEARS) return LQ_OK;
    float *G = lq_push(a, n * sizeof *G), *own = lq_push(a, nh * sizeof *own);
    if (!G || !own) return part_no_memory((n + nh) * sizeof *G, err);
    m->G = memcpy(G, from->G[w->part][k], n * sizeof *G);
    for (int64_t i = 0; i < u->N && s; i++)
        for (int64_t j = i / B * B, at = 0; at < B && j < u->N; j++, at++)
            G[i * B + at] *= s[i] * s[j];
    m->G_H = memcpy(own, u->st->H, nh * sizeof *own);
    if (!from->H) return LQ_OK;
    const float *H = from->H[w->part][k];
    for (int64_t i = 0; i < K; i++) {
        plain += (double)own[i * K + i];
        weighed += (double)H[i * K + i] / (f ? (double)f[i] * (double)f[i] : 1);
    }
    for (int64_t i = 0; i < K && weighed > 0; i++)
        for (int64_t j = 0; j < K; j++) {
            double h = (double)H[i * K + j] / (f ? (double)f[i] * (double)f[j] : 1);
            own[i * K + j] = (float)(((double)own[i * K + j] + h * plain / weighed) / 2);
        }
    return LQ_OK;
}

/* What rounding says of a matrix, for its tensor's report. */
static void note_rounded(const work *w, unit *u, const qz_rounded *r)
{
    qz_report *rep = &u->t->rep, unheard = { .note = "" };
    if (by_matrix(u->t)) rep = &unheard; /* one note of 128 experts would do for none */
    if (r->fallback) note(rep, "statistics not usable, rounded to nearest");
    if (r->nearest) note(rep, "%lld blocks of outputs rounded to nearest", (long long)r->nearest);
    if (r->dead) note(rep, "%lld inputs never fire", (long long)r->dead);
    if (!r->fallback && r->damp > qz_damp(w->o)) note(rep, "damping raised to %g", r->damp);
}

/* By the method, or to nearest where it has none of what it goes by. */
static lq_status make_uint(work *w, unit *u, qz_out *out, lq_err *err)
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
                    .basis = &w->basis };
    qz_rounded r = { .loss = (double)NAN, .loss_rtn = (double)NAN };
    if (!w->o->method->round || (!m.H && qz_needs_h(w->o)))
        return rtn_round(out, &r, &m, w->p, err);
    lq_arena a = { 0 };
    lq_status s = LQ_OK;
    if (m.H && (u->d != LQ_F32 || (uintptr_t)u->W % sizeof(float))) {
        const size_t n = (size_t)u->N * (size_t)u->K;
        float *copy = lq_push(&a, n * sizeof *copy);
        if (!copy) return part_no_memory(n * sizeof *copy, err);
        lq_to_f32(copy, u->W, u->d, n);
        m.W = copy;
        m.d = LQ_F32;
    }
    if (m.H) s = curvature_of(w, &m, u, &a, err);
    if (!s) s = w->o->method->round(out, &r, &m, w->p, err);
    if (!s && isnan(u->loss_rtn) && r.measure_rtn) s = part_measure_rtn(w, u, err);
    if (!s) {
        if (isnan(u->loss_rtn)) u->loss_rtn = r.loss_rtn;
        if (!w->fold) u->loss = r.loss;
        note_rounded(w, u, &r);
    }
    lq_arena_free(&a);
    return s;
}

static void make_dense(const unit *u, const qz_out *to)
{
    const qt_tensor *q = &to->t;
    float row[1024];
    size_t n = (size_t)q->N * (size_t)q->K, in = (size_t)lq_dtype_bits(u->d) / 8;
    size_t out = (size_t)lq_dtype_bits(q->scheme.dtype) / 8;
    for (size_t i = 0; i < n; i += LQ_COUNT(row)) {
        size_t len = n - i < LQ_COUNT(row) ? n - i : LQ_COUNT(row);
        lq_to_f32(row, (const uint8_t *)u->W + i * in, u->d, len);
        lq_from_f32((uint8_t *)to->w[QT_CODES] + i * out, row, q->scheme.dtype, len);
    }
}

/* Largest magnitude of all of a tensor: of its one unit as folded, else of the source. */
static lq_status absmax_of(const work *w, const unit *u, float *absmax, lq_err *err)
{
    const plan_entry *e = u->t->e;
    const qt_tensor *t = &u->t->src;
    const bool all = u->N == e->count * e->N;
    int64_t bad;
    if (e->src->scanned && !(all && u->own)) {
        *absmax = e->src->largest;
        return LQ_OK;
    }
    if (qz_absmax(absmax, &bad, all ? u->W : t->plane[QT_CODES].data, all ? u->d : t->scheme.dtype,
                  e->count * e->N * e->K, w->p))
        return LQ_OK;
    return lq_fail(err, LQ_EVALUE, "%s: weight %lld became NaN or Inf", e->name, (long long)bad);
}

/* Columns whose inputs reach the threshold often enough; of stacked experts those of any. */
static int64_t find_outliers(const work *w, target *t, int32_t *idx)
{
    const plan_entry *e = t->e;
    float *most = lq_push(&w->out->arena, (size_t)e->K * sizeof *most);
    if (!most) return -1;
    for (int64_t i = 0; i < e->count; i++) {
        unit u = { .t = t, .expert = by_matrix(t) ? i : e->expert, .K = e->K };
        find_stats(w, &u);
        for (int64_t k = 0; u.st && u.st->tokens && k < e->K; k++)
            most[k] = fmaxf(most[k], (float)u.st->reached[k] / (float)u.st->tokens);
    }
    return int8_find_outliers(idx, most, e->K, (float)qz_outlier_share(w->o));
}

/* Settle what of the scheme depends on the weights or their inputs, and cut the tensor. */
static lq_status start_target(work *w, const unit *u, lq_err *err)
{
    target *t = u->t;
    const plan_entry *e = t->e;
    qt_scheme s = e->scheme;
    if (t->out.t.N) return LQ_OK;
    if (s.kind == QT_UINT) {
        float absmax;
        lq_status st = absmax_of(w, u, &absmax, err);
        if (st) return st;
        if (by_matrix(t) && w->fold) absmax *= FOLD_LIMIT * FOLD_LIMIT; /* experts to come */
        s.scale_dtype = ug_scale_dtype(absmax, s.bits);
        if (s.scale_dtype == LQ_F32) note(&t->rep, "scales are f32: they do not fit f16");
    } else if (s.kind == QT_I8_OUTLIER) {
        t->outliers = lq_push(&w->out->arena, (size_t)e->K * sizeof *t->outliers);
        s.n_out = t->outliers && w->st ? find_outliers(w, t, t->outliers) : 0;
        if (!t->outliers || s.n_out < 0) return part_no_memory((size_t)e->K * sizeof(int32_t), err);
        if (!s.n_out) s.kind = QT_I8;
        if (s.n_out) note(&t->rep, "%lld outlier inputs", (long long)s.n_out);
    }
    return qz_out_alloc(&t->out, &s, e->count * e->N, e->K, &w->out->arena, err);
}

/* What rounding left of a linear that a layer has once. */
static lq_status keep_rest(work *w, const unit *u, lq_err *err)
{
    target *t = u->t;
    const qt_tensor *q = &t->out.t;
    if (!qz_rest_fits(&q->scheme) || t->e->count > 1 || u->expert >= 0) return LQ_OK;
    t->rest = lq_push(&w->out->arena, (size_t)(q->N * q->K));
    if (!t->rest) return part_no_memory((size_t)(q->N * q->K), err);
    return qz_rest_of(t->rest, q, u->W, u->d, w->p, err);
}

static lq_status round_unit(work *w, unit *u, lq_err *err)
{
    target *t = u->t;
    qz_out rows, *out = &t->out;
    if (u->fold.cols && !t->out.t.N) { /* once for all stacked experts: they share it */
        note(&t->rep, "scaled with alpha %.2f", u->alpha);
        qz_report_fold(&t->rep, u->fold.cols, u->K, u->alpha);
    }
    lq_status s = start_target(w, u, err);
    if (s) return s;
    const qt_scheme *scheme = &t->out.t.scheme;
    if (u->N != t->out.t.N) {
        out = &rows;
        if (!qz_out_rows(out, &t->out, u->row0, u->row0 + u->N))
            return lq_fail(err, LQ_EUNSUPPORTED, "its blocks run across experts");
    }
    if (scheme->kind == QT_UINT) s = make_uint(w, u, out, err);
    if (scheme->kind == QT_LUT4) s = lut4_run(out, u->W, u->d, w->p, err);
    if (scheme->kind == QT_I8 || scheme->kind == QT_I8_OUTLIER)
        s = int8_run(out, u->W, u->d, t->outliers, w->p, err);
    if (scheme->kind == QT_DENSE) make_dense(u, out);
    if (!s && w->eyes && w->eyes->rest) s = keep_rest(w, u, err);
    qz_loss loss;
    const float *H = u->st && isnan(u->loss) ? u->st->H : NULL;
    if (!s) s = qz_loss_of(&loss, &out->t, u->W, u->d, H, u->fold, w->p, err);
    if (s) return s;
    if (!isnan(u->loss)) loss.loss = u->loss;
    if (!isfinite(loss.rmse))
        return lq_fail(err, LQ_EVALUE, "the quantized weights are not finite");
    t->squares += loss.rmse * loss.rmse * (double)(u->N * u->K);
    if (isnan(loss.loss)) return LQ_OK;
    t->measured = true;
    t->loss += loss.loss;
    t->loss_rtn += u->loss_rtn;
    return LQ_OK;
}

/* ---- a group: what the layer has once, or one expert ---- */
static unit unit_of(const work *w, target *t, int64_t expert)
{
    const plan_entry *e = t->e;
    unit u = { .t = t, .expert = expert, .N = e->N, .K = e->K };
    u.loss = u.loss_rtn = (double)NAN;
    if (by_matrix(t))
        u.row0 = expert * e->N;
    else
        u.N *= e->count;
    find_stats(w, &u);
    if (u.st) qz_report_inputs(&t->rep, u.st);
    return u;
}

/* A matrix is done: how it went. */
static void tell(work *w, const unit *u)
{
    const target *t = u->t;
    const double ratio = t->loss / t->loss_rtn;
    char text[64];
    int n = snprintf(text, sizeof text, "%s", arch_role_text(t->e->role));
    if (u->expert >= 0)
        n += snprintf(text + n, sizeof text - (size_t)n, " %lld", (long long)u->expert);
    if (t->measured && isfinite(ratio))
        snprintf(text + n, sizeof text - (size_t)n, "  loss %.2f x rtn", ratio);
    w->n_made++;
    lq_report(w->job, text, (double)w->n_made, (double)w->n_units);
}

static lq_status make_group(work *w, int64_t expert, lq_err *err)
{
    group g = { 0 };
    lq_status s = LQ_OK;
    const bool fold = w->fold && w->st;
    g.u = lq_push(&g.a, (w->n + 1) * sizeof *g.u);
    if (!g.u) s = part_no_memory(w->n * sizeof *g.u, err);
    for (size_t i = 0; i < w->n && !s; i++) {
        target *t = &w->targets[i];
        if (!belongs(w, t, expert)) continue;
        unit *u = &g.u[g.n++];
        *u = unit_of(w, t, expert);
        if (fold) s = part_read(u, &g.a, err);
    }
    if (fold && !s) s = part_fold_group(w, &g, expert, err);
    for (size_t i = 0; i < g.n && !s; i++) {
        unit *u = &g.u[i];
        lq_arena copy = { 0 };
        if (lq_stopped(w->job)) s = lq_fail(err, LQ_EINTR, "interrupted");
        if (!s && !fold) s = part_read(u, &copy, err);
        if (!s && (s = round_unit(w, u, err))) lq_wrap(err, s, "%s", u->t->e->name);
        if (!s) tell(w, u);
        lq_arena_free(&copy);
    }
    gptq_basis_free(&w->basis);
    lq_arena_free(&g.a);
    return s;
}

/* ---- the part ---- */
static int64_t n_experts(const work *w)
{
    return w->part < w->c->layers && w->c->layer[w->part].moe ? w->c->experts : 0;
}

/* Experts whose statistics fit in the limit together. */
static int64_t experts_at_once(const work *w)
{
    const int64_t all = n_experts(w);
    if (!w->eyes || !w->eyes->hessian || !w->eyes->limit) return all;
    size_t one = 0;
    for (int s = CAL_N_SHARED; s < CAL_N_SITES; s++) {
        const size_t K = (size_t)cal_site_width(w->c, (cal_site)s);
        if (s != CAL_EXPERT_IN || !w->eyes->all_experts) one += K * K * sizeof(float);
    }
    const int64_t n = one ? (int64_t)(w->eyes->limit / one) : all;
    return n < 1 ? 1 : n < all ? n : all;
}

static lq_status look(work *w, int64_t first, int64_t n, lq_err *err)
{
    return w->eyes ? w->eyes->look(w->eyes->user, &w->st, first, n, err) : LQ_OK;
}

static lq_status hand_over(work *w, lq_err *err)
{
    lq_status s = LQ_OK;
    for (size_t i = 0; i < w->n && !s; i++) {
        const target *t = &w->targets[i];
        const qz_item item = { .e = t->e, .t = t->out.t };
        if (belongs(w, t, -1)) s = w->eyes->take(w->eyes->user, &item, 1, err);
    }
    return s;
}

static lq_status make_stages(work *w, lq_err *err)
{
    lq_status s = LQ_OK;
    for (w->at = FWD_AT_QKV; w->at < FWD_AT_END && !s; w->at++) {
        s = w->eyes->look_at(w->eyes->user, &w->st, w->at, err);
        if (!s) s = make_group(w, -1, err);
        if (!s) s = hand_over(w, err);
    }
    return s;
}

static lq_status make_groups(work *w, lq_err *err)
{
    if (in_stages(w)) return make_stages(w, err);
    const int64_t all = n_experts(w), batch = experts_at_once(w);
    lq_status s = look(w, 0, batch, err);
    if (!s) s = make_group(w, -1, err);
    for (int64_t e = 0; e < all && !s; e++) {
        if (e && e % batch == 0) s = look(w, e, e + batch < all ? batch : all - e, err);
        if (!s) s = make_group(w, e, err);
    }
    return s;
}

static void add_result(work *w, target *t)
{
    const plan_entry *e = t->e;
    qz_part *out = w->out;
    if (t->dense) {
        qt_tensor v = { .scheme = { .kind = QT_DENSE, .dtype = LQ_F32 } };
        v.N = e->src->t.N;
        v.K = e->src->t.K;
        v.plane[QT_CODES] = (qt_span){ t->dense, (size_t)(v.N * v.K) * sizeof(float) };
        out->items[out->n_items++] = (qz_item){ .e = e, .t = v };
    }
    if (!t->out.t.N) return;
    qz_report *rep = &t->rep;
    const qt_tensor *q = &t->out.t;
    rep->elements = q->N * q->K;
    rep->rmse = sqrt(t->squares / (double)rep->elements);
    rep->loss = t->measured ? t->loss : (double)NAN;
    rep->loss_rtn = t->measured ? t->loss_rtn : (double)NAN;
    rep->bytes = qt_bytes(&q->scheme, q->N, q->K);
    qt_scheme_text(rep->scheme, &q->scheme);
    if (rep->tokens >= 0 && e->count > 1)
        note(rep, "%lld to %lld tokens per expert", (long long)rep->tokens, (long long)t->most);
    const char *how = t->rounded ? "rounded to nearest" : "all tokens' statistics";
    if (t->starved && e->count > 1)
        note(rep, "%lld of %lld experts starved: %s", (long long)t->starved, (long long)e->count,
             how);
    else if (t->starved)
        note(rep, "starved, %lld tokens: %s", (long long)rep->tokens, how);
    out->items[out->n_items++] = (qz_item){ e, t->out.t, t->rest };
    out->reports[out->n_reports++] = *rep;
}

static lq_status make(qz_part *out, const qz_plan *plan, int64_t part, const plan_entry *only,
                      const qz_opts *o, const qz_eyes *eyes, pool *p, const lq_job *job,
                      lq_err *err)
{
    memset(out, 0, sizeof *out);
    work w = { .out = out,
               .plan = plan,
               .c = &plan->cfg,
               .part = part,
               .o = o,
               .eyes = eyes,
               .fold = eyes && eyes->hessian && qz_folds(o),
               .p = p,
               .job = job };
    size_t n = 0;
    for (size_t i = 0; i < plan->n; i++)
        n += plan->e[i].part == part;
    lq_status s = LQ_OK;
    out->items = lq_push(&out->arena, (n + 1) * sizeof *out->items);
    out->reports = lq_push(&out->arena, (n + 1) * sizeof *out->reports);
    w.targets = lq_push(&out->arena, (n + 1) * sizeof *w.targets);
    if (!out->items || !out->reports || !w.targets) s = part_no_memory(n * sizeof *w.targets, err);
    for (size_t i = 0; i < plan->n && !s; i++) {
        const plan_entry *e = &plan->e[i];
        if (e->part != part || (only && e != only)) continue;
        w.targets[w.n++] = (target){ .e = e,
                                     .rep = { .name = e->name,
                                              .role = e->role,
                                              .layer = part < plan->cfg.layers ? part : -1,
                                              .expert = e->expert,
                                              .tokens = -1,
                                              .effect = (double)NAN } };
        if (e->quantize) w.n_units += by_matrix(&w.targets[w.n - 1]) ? e->count : 1;
        src_load(&w.targets[w.n - 1].src, plan->src, e->src);
        s = val_check(&w.targets[w.n - 1].src, true, err);
        if (s) lq_wrap(err, s, "tensor '%.100s'", e->name);
    }
    if (!s) s = make_groups(&w, err);
    for (size_t i = 0; i < w.n; i++)
        src_unload(plan->src, w.targets[i].e->src);
    for (size_t i = 0; i < w.n && !s; i++)
        add_result(&w, &w.targets[i]);
    if (s) qz_part_free(out);
    return s;
}

lq_status qz_part_make(qz_part *out, const qz_plan *plan, int64_t part, const qz_opts *o,
                       const qz_eyes *eyes, pool *p, const lq_job *job, lq_err *err)
{
    return make(out, plan, part, NULL, o, eyes, p, job, err);
}

lq_status qz_part_entry(qz_part *out, const qz_plan *plan, const plan_entry *e, const qz_opts *o,
                        pool *p, const lq_job *job, lq_err *err)
{
    return make(out, plan, e->part, e, o, NULL, p, job, err);
}

void qz_part_free(qz_part *p)
{
    lq_arena_free(&p->arena);
    memset(p, 0, sizeof *p);
}
