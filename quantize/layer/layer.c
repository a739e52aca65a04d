/* quantize/layer/layer.c - one layer of a plan: its matrices, group by group; see layer.h. */
#include "quantize/layer/layer.h"

#include <stdio.h>
#include <stdlib.h>

#include "formats/tensor/finite.h"
#include "quantize/layer/layer_impl.h"

/* ---- a group: what the layer has once, or one expert ---- */

/* Is it made along with expert `expert` (-1: with what the layer has once), and now? */
static bool belongs(const work *w, const target *t, int64_t expert)
{
    const plan_entry *e = t->e;
    if (!e->quantize) return false;
    if (w->staged || w->changing) {
        const fwd_point at = cal_point_of(w->c, w->layer, e->role);
        if (w->changing ? at == FWD_AT_END : at != w->at) return false;
    }
    if (layer_by_matrix(t)) return expert >= 0 && expert < e->count;
    return e->expert == expert;
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

/* One unit that is read, and those of its pieces that are ours. */
static lq_status round_pieces(work *w, const unit *u, piece *p, size_t n, unit_sums *sums,
                              lq_err *err)
{
    lq_status s = layer_start_unit(w, u, err);
    for (size_t i = 0; i < n && !s; i++) {
        if (p[i].owner != comm_rank(w->how.ranks)) continue;
        unit part = layer_part(u, &p[i]);
        s = layer_round_unit(w, &part, err);
        sums[i] = part.sums;
    }
    return s;
}

/* Every rank settles the schemes, by all of each matrix. */
static lq_status start_units(work *w, const group *g, lq_err *err)
{
    lq_status s = LQ_OK;
    for (size_t i = 0; i < g->n && !s; i++) {
        lq_arena copy = { 0 };
        unit u = g->u[i];
        if (!u.W) s = layer_read(&u, &copy, err);
        if (!s) s = layer_start_unit(w, &u, err);
        lq_arena_free(&copy);
    }
    return s;
}

/* sums [n_pieces]: ours. */
static lq_status round_units(work *w, const group *g, piece *p, size_t n_pieces, unit_sums *sums,
                             lq_err *err)
{
    lq_status s = LQ_OK;
    for (size_t i = 0, at = 0, n; i < g->n && !s; i++, at += n) {
        unit *u = &g->u[i];
        lq_arena copy = { 0 };
        for (n = 0; at + n < n_pieces && p[at + n].unit == i;)
            n++;
        if (lq_stopped(w->job)) s = lq_fail(err, LQ_EINTR, "interrupted");
        if (!s && !u->W) s = layer_read(u, &copy, err);
        if (!s && (s = round_pieces(w, u, p + at, n, sums + at, err)))
            lq_wrap(err, s, "%s", u->t->e->name);
        lq_arena_free(&copy);
    }
    return s;
}

/* The group's pieces: rounded, and where the layer's own are shared out, all of them to all ranks. */
static lq_status round_and_share(work *w, group *g, bool shared, lq_err *err)
{
    const size_t most = shared ? layer_most_pieces(w, g->n) : g->n + 1;
    for (size_t i = 0; i < g->n; i++)
        if (g->u[i].st) cal_stats_shrink(g->u[i].st);
    piece *p = lq_push(&g->a, most * sizeof *p);
    unit_sums *sums = lq_push(&g->a, most * sizeof *sums);
    gptq_basis *b = lq_push(&g->a, (g->n + 1) * sizeof *b);
    if (!p || !sums || !b) return layer_no_memory(most * sizeof *p, err);
    lq_status s = shared ? start_units(w, g, err) : LQ_OK;
    if (s) return s;
    size_t n = 0;
    if (shared)
        n = layer_cut(p, w, g->u, g->n);
    else
        for (; n < g->n; n++)
            p[n] = (piece){ n, 0, g->u[n].N, comm_rank(w->how.ranks) };
    if (shared) s = layer_share_factors(w, g, p, n, b, err);
    if (!s) s = round_units(w, g, p, n, sums, err);
    for (size_t i = 0; i < g->n; i++)
        gptq_basis_free(&b[i]);
    for (size_t i = 0; i < n && !s; i++) {
        const unit *u = &g->u[p[i].unit];
        if (shared) s = layer_share_piece(w, u, p[i].first, p[i].rows, p[i].owner, &sums[i], err);
        if (s) break;
        if (u->expert >= 0 && w->how.ranks) { /* to be shared when all are done */
            w->expert_sums[w->n_sums++] = sums[i];
            continue;
        }
        layer_add_sums(u->t, &sums[i]);
        if (i + 1 == n || p[i + 1].unit != p[i].unit) tell(w, u);
    }
    return s;
}

static lq_status find_units(work *w, group *g, int64_t expert, bool read, lq_err *err)
{
    lq_status s = LQ_OK;
    g->u = lq_push(&g->a, (w->n + 1) * sizeof *g->u);
    if (!g->u) s = layer_no_memory(w->n * sizeof *g->u, err);
    for (size_t i = 0; i < w->n && !s; i++) {
        target *t = &w->targets[i];
        if (!belongs(w, t, expert)) continue;
        unit *u = &g->u[g->n++];
        *u = layer_unit(w, t, expert);
        if (read) s = layer_read(u, &g->a, err);
    }
    return s;
}

static lq_status round_group(work *w, int64_t expert, lq_err *err)
{
    group g = { 0 };
    lq_status s = find_units(w, &g, expert, w->fold, err);
    if (w->fold && !s) s = layer_fold_group(w, &g, expert, err);
    if (!s) s = round_and_share(w, &g, expert < 0 && w->how.ranks, err);
    gptq_basis_free(&w->basis);
    lq_arena_free(&g.a);
    return s;
}

/* An expert that its owner has rounded; at: how many of our sums are shared. */
static lq_status share_group(work *w, int64_t expert, size_t *at, lq_err *err)
{
    const int owner = layer_expert_owner(w, expert);
    const bool ours = owner == comm_rank(w->how.ranks);
    lq_status s = LQ_OK;
    for (size_t i = 0; i < w->n && !s; i++) {
        target *t = &w->targets[i];
        unit_sums sums = { 0 };
        if (!belongs(w, t, expert)) continue;
        unit u = { .t = t, .expert = expert, .N = t->e->N, .K = t->e->K };
        if (!ours)
            u = layer_unit(w, t, expert); /* for the report */
        else if (layer_by_matrix(t))
            u.row0 = expert * t->e->N;
        if (ours) sums = w->expert_sums[(*at)++];
        s = layer_share_piece(w, &u, 0, u.N, owner, &sums, err);
        if (s) break;
        layer_add_sums(t, &sums);
        tell(w, &u);
    }
    return s ? s : layer_share_beside(w, expert, err);
}

/* Each rank its experts, then all to all. */
static lq_status round_experts(work *w, int64_t first, int64_t n, lq_err *err)
{
    lq_status s = LQ_OK;
    size_t at = 0;
    if (w->how.ranks && n) {
        w->n_sums = 0;
        w->expert_sums = lq_push(&w->out.arena, (size_t)n * w->n * sizeof *w->expert_sums);
        if (!w->expert_sums) return layer_no_memory((size_t)n * w->n, err);
    }
    for (int64_t e = first; e < first + n && !s; e++)
        if (!w->how.ranks || layer_expert_owner(w, e) == comm_rank(w->how.ranks))
            s = round_group(w, e, err);
    for (int64_t e = first; e < first + n && w->how.ranks && !s; e++)
        s = share_group(w, e, &at, err);
    return s;
}

/* ---- the layer ---- */
static lq_status load_target(work *w, const plan_entry *e, lq_err *err)
{
    const arch_config *c = w->c;
    target *t = &w->targets[w->n++];
    *t = (target){ .e = e,
                   .rep = { .name = e->name,
                            .role = e->role,
                            .layer = w->layer < c->layers ? w->layer : -1,
                            .expert = e->expert,
                            .tokens = -1,
                            .effect = (double)NAN } };
    if (e->quantize) w->n_units += layer_by_matrix(t) ? e->count : 1;
    src_load(&t->src, w->how.plan->src, e->src);
    const lq_status s = val_check(&t->src, true, err);
    return s ? lq_wrap(err, s, "tensor '%.100s'", e->name) : LQ_OK;
}

static lq_status begin_layer(work **out, const qz_rounding *how, int64_t layer,
                             const plan_entry *only, lq_err *err)
{
    const qz_plan *plan = how->plan;
    size_t n = 0;
    for (size_t i = 0; i < plan->n; i++)
        n += plan->e[i].layer == layer;
    work *w = *out = calloc(1, sizeof *w);
    if (!w) return layer_no_memory(sizeof *w, err);
    *w = (work){
        .how = *how, .c = &plan->cfg, .o = how->o, .p = how->p, .job = how->job, .layer = layer
    };
    lq_status s = LQ_OK;
    w->out.items = lq_push(&w->out.arena, (n + 1) * sizeof *w->out.items);
    w->out.reports = lq_push(&w->out.arena, (n + 1) * sizeof *w->out.reports);
    w->targets = lq_push(&w->out.arena, (n + 1) * sizeof *w->targets);
    if (!w->out.items || !w->out.reports || !w->targets)
        s = layer_no_memory(n * sizeof *w->targets, err);
    for (size_t i = 0; i < plan->n && !s; i++)
        if (plan->e[i].layer == layer && (!only || &plan->e[i] == only))
            s = load_target(w, &plan->e[i], err);
    if (!s) return LQ_OK;
    qz_layer_end(NULL, w);
    *out = NULL;
    return s;
}

lq_status qz_layer_begin(qz_layer_work **w, const qz_rounding *how, int64_t layer, lq_err *err)
{
    return begin_layer(w, how, layer, NULL, err);
}

lq_status qz_layer_round(qz_layer_work *w, cal_layer_stats *st, int64_t first, int64_t n,
                         lq_err *err)
{
    w->st = st;
    w->fold = st && qz_folds(w->o);
    if (w->staged) w->at = FWD_AT_END;
    const lq_status s = first == 0 ? round_group(w, -1, err) : LQ_OK;
    return s ? s : round_experts(w, first, n, err);
}

/* A norm, bias or router that folding changed. */
static qz_item dense_item(const target *t)
{
    qt_tensor v = { .scheme = { .kind = QT_DENSE, .dtype = LQ_F32 } };
    v.N = t->e->src->t.N;
    v.K = t->e->src->t.K;
    v.plane[QT_CODES] = (qt_span){ t->dense, (size_t)(v.N * v.K) * sizeof(float) };
    return (qz_item){ .e = t->e, .t = v };
}

lq_status qz_layer_change(qz_layer_work *w, cal_layer_stats *st, qz_item *items, size_t *n,
                          lq_err *err)
{
    group *g = &w->kept;
    *n = 0;
    w->st = st;
    if (st) cal_layer_stats_shrink(st);
    w->fold = st && qz_folds(w->o);
    w->changing = true;
    lq_status s = find_units(w, g, -1, true, err);
    if (!s && w->fold) s = layer_fold_group(w, g, -1, err);
    w->changing = false;
    for (size_t i = 0; i < g->n && !s; i++)
        if (qz_on_grids(g->u[i].t->e)) s = layer_own(&g->u[i], &g->a, err);
    for (size_t i = 0; i < w->n && !s; i++)
        if (w->targets[i].dense) items[(*n)++] = dense_item(&w->targets[i]);
    return s;
}

/* Those of the kept linears that read at w->at. */
static lq_status round_kept(work *w, lq_err *err)
{
    group g = { 0 };
    lq_status s = LQ_OK;
    g.u = lq_push(&g.a, (w->kept.n + 1) * sizeof *g.u);
    if (!g.u) s = layer_no_memory(w->kept.n * sizeof *g.u, err);
    for (size_t i = 0; i < w->kept.n && !s; i++) {
        unit *u = &w->kept.u[i];
        if (!belongs(w, u->t, -1)) continue;
        u->st = cal_stats_of(w->st, w->c, u->t->e->role, -1);
        if (u->st) u->t->rep.tokens = u->st->tokens;
        if (u->st && !w->fold) qz_report_inputs(&u->t->rep, u->st);
        g.u[g.n++] = *u;
    }
    if (!s) s = layer_match_group(w, &g, err);
    if (!s) s = round_and_share(w, &g, w->how.ranks, err);
    gptq_basis_free(&w->basis);
    lq_arena_free(&g.a);
    return s;
}

lq_status qz_layer_round_at(qz_layer_work *w, cal_layer_stats *st, fwd_point at, qz_item *items,
                            size_t *n, lq_err *err)
{
    lq_status s;
    w->staged = true;
    w->at = at;
    *n = 0;
    w->st = st;
    if (w->kept.u) {
        s = round_kept(w, err);
    } else {
        w->fold = false;
        s = round_group(w, -1, err);
    }
    for (size_t i = 0; i < w->n && !s; i++) {
        const target *t = &w->targets[i];
        if (belongs(w, t, -1)) items[(*n)++] = (qz_item){ .e = t->e, .t = t->out.t };
    }
    return s;
}

static void add_result(work *w, target *t)
{
    const plan_entry *e = t->e;
    qz_layer *out = &w->out;
    if (t->dense) out->items[out->n_items++] = dense_item(t);
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
        layer_note(rep, "%lld to %lld tokens per expert", (long long)rep->tokens,
                   (long long)t->most);
    const char *how = t->rounded ? "rounded to nearest" : "all tokens' statistics";
    if (t->few && e->count > 1)
        layer_note(rep, "%lld of %lld experts starved: %s", (long long)t->few, (long long)e->count,
                   how);
    else if (t->few)
        layer_note(rep, "starved, %lld tokens: %s", (long long)rep->tokens, how);
    out->items[out->n_items++] = (qz_item){ e, t->out.t, t->residual };
    out->reports[out->n_reports++] = *rep;
}

void qz_layer_end(qz_layer *out, qz_layer_work *w)
{
    if (!w) return;
    for (size_t i = 0; i < w->n; i++)
        src_unload(w->how.plan->src, w->targets[i].e->src);
    for (size_t i = 0; i < w->n && out; i++)
        add_result(w, &w->targets[i]);
    if (out)
        *out = w->out;
    else
        qz_layer_free(&w->out);
    lq_arena_free(&w->kept.a);
    free(w);
}

/* Outside of the layers an MTP head has experts. */
static int64_t experts_of(const qz_plan *p, int64_t layer, const plan_entry *only)
{
    const arch_config *c = &p->cfg;
    if (layer < c->layers) return c->layer[layer].moe ? c->experts : 0;
    for (size_t i = 0; i < p->n; i++) {
        const plan_entry *e = &p->e[i];
        if (e->mtp && e->quantize && arch_role_per_expert(e->role) && (!only || e == only))
            return c->experts;
    }
    return 0;
}

lq_status qz_layer_make(qz_layer *out, const qz_rounding *how, int64_t layer,
                        const plan_entry *only, lq_err *err)
{
    const int64_t experts = experts_of(how->plan, layer, only);
    qz_layer_work *w;
    memset(out, 0, sizeof *out);
    lq_status s = begin_layer(&w, how, layer, only, err);
    if (!s) s = qz_layer_round(w, NULL, 0, experts, err);
    qz_layer_end(s ? NULL : out, w);
    return s;
}

void qz_layer_free(qz_layer *l)
{
    lq_arena_free(&l->arena);
    memset(l, 0, sizeof *l);
}
