/* quantize/layer/layer_fold.c - scales of inputs for the linears of one group; see quantize/transform/fold.h.
 *
 * The norm before a MoE layer's MLP is read by the router and by every expert, which are not in
 * memory together: its scales are chosen with what the layer has once, from a sample of the
 * experts' rows, and each expert takes them when its turn comes. */
#include "quantize/layer/layer_impl.h"
#include "quantize/transform/fold.h"

/* ---- what the layer stores beside the group's linears ---- */

/* t's tensor as f32, to be changed. */
static lq_status read_dense(float **out, const target *t, lq_arena *a, lq_err *err)
{
    const qt_tensor *q = &t->src;
    const size_t n = (size_t)(q->N * q->K);
    *out = lq_push(a, n * sizeof **out);
    if (!*out) return layer_no_memory(n * sizeof **out, err);
    qt_dequant(*out, q, 0, q->N);
    return LQ_OK;
}

/* Norms, biases of the linears, routers: what is stored as it is and may take factors. */
static bool stays_dense(const target *t, int64_t expert)
{
    const plan_entry *e = t->e;
    return e->known && e->expert == expert && !e->quantize && e->src->plain &&
           e->src->t.scheme.kind == QT_DENSE;
}

static bool is_exact(const plan_entry *e) { return arch_role_exact(e->role) && !e->is_bias; }

static lq_status read_beside(work *w, fold_layer *f, lq_arena *a, lq_err *err)
{
    lq_status s = LQ_OK;
    for (size_t i = 0; i < w->n && !s; i++) {
        const target *t = &w->targets[i];
        const plan_entry *e = t->e;
        if (!stays_dense(t, f->expert)) continue;
        if (is_exact(e)) {
            fold_linear *r = &f->lin[e->role];
            *r = (fold_linear){
                .present = true, .open = true, .kept = true, .N = e->src->t.N, .K = e->src->t.K
            };
            s = read_dense(&r->W, t, a, err);
        } else if (e->src->n_dims == 1 && e->is_bias) {
            s = read_dense(&f->bias[e->role].w, t, a, err);
        } else if (e->src->n_dims == 1 && arch_role_kind(e->role) == ARCH_VECTOR) {
            s = read_dense(&f->weight[e->role].w, t, a, err);
        }
    }
    return s;
}

static lq_status keep_beside(work *w, const fold_layer *f, lq_err *err)
{
    for (size_t i = 0; i < w->n; i++) {
        target *t = &w->targets[i];
        const plan_entry *e = t->e;
        if (!stays_dense(t, f->expert)) continue;
        const fold_vector *v = e->is_bias ? &f->bias[e->role] : &f->weight[e->role];
        const float *changed = v->changed ? v->w : NULL;
        if (is_exact(e)) changed = f->lin[e->role].cols ? f->lin[e->role].W : NULL;
        if (!changed) continue;
        const size_t n = (size_t)(e->src->t.N * e->src->t.K) * sizeof *changed;
        float *keep = lq_push(&w->out.arena, n);
        if (!keep) return layer_no_memory(n, err);
        memcpy(keep, changed, n);
        t->dense = keep;
    }
    return LQ_OK;
}

/* ---- the group's linears ---- */

/* u->W: a view of the source, or its transposed copy. */
lq_status layer_read(unit *u, lq_arena *a, lq_err *err)
{
    const plan_entry *e = u->t->e;
    const qt_tensor *t = &u->t->src;
    const size_t size = lq_dtype_bytes(t->scheme.dtype);
    const size_t one = (size_t)(e->N * e->K) * size, n = (size_t)(u->N * u->K) * size;
    const uint8_t *from =
        (const uint8_t *)t->plane[QT_CODES].data + (size_t)(u->row0 * u->K) * size;
    u->d = t->scheme.dtype;
    u->W = from;
    if (!e->turned) return LQ_OK;
    uint8_t *copy = lq_push(a, n);
    if (!copy) return layer_no_memory(n, err);
    for (size_t at = 0; at < n; at += one)
        src_transpose(copy + at, from + at, e->N, e->K, size);
    u->W = copy;
    return LQ_OK;
}

/* Experts stacked in one tensor have their biases in one tensor too, which no expert changes. */
static bool has_stacked_bias(const work *w, arch_role role)
{
    for (size_t i = 0; i < w->n; i++) {
        const plan_entry *e = w->targets[i].e;
        if (e->known && e->is_bias && e->role == role && e->expert < 0) return true;
    }
    return false;
}

/* The grids that scales of inputs are compared on: of blocks uniform ones of as many bits and as many inputs. */
static grid_spec fold_spec(const work *w, const qt_scheme *s)
{
    const blk_type *t = s->kind == QT_BLOCKS ? blk_find(s->blocks) : NULL;
    if (s->kind == QT_UINT) return layer_spec(w, s, false);
    return (grid_spec){ .bits = t ? t->bits : 4,
                        .mode = t && t->bias ? GRID_ASYM : GRID_SYM_FULL,
                        .scale_dtype = LQ_F32 };
}

static lq_status add_unit(work *w, fold_layer *f, unit *u, lq_arena *a, lq_err *err)
{
    target *t = u->t;
    const bool stacked = t->e->count > 1;
    const lq_status s = layer_own(u, a, err);
    f->lin[t->e->role] = (fold_linear){ .present = true,
                                        .open = u->st && u->st->H,
                                        .W = u->own,
                                        .N = u->N,
                                        .K = u->K,
                                        .group = row_group(&t->e->scheme),
                                        .spec = fold_spec(w, &t->e->scheme),
                                        .rows_fixed = stacked && has_stacked_bias(w, t->e->role),
                                        .limited = stacked };
    return s;
}

/* What plain rounding loses, before anything is folded; of what the layer has once by a rank each. */
static lq_status measure_units(work *w, group *g, bool shared, lq_err *err)
{
    comm *ranks = shared ? w->how.ranks : NULL;
    lq_status s = LQ_OK;
    double sum = 0, before = 0;
    for (size_t i = 0; i < g->n; i++)
        sum += layer_cost(&g->u[i], g->u[i].N);
    int *owner = lq_push(&g->a, (g->n + 1) * sizeof *owner);
    if (!owner) return layer_no_memory(g->n * sizeof *owner, err);
    for (size_t i = 0; i < g->n && !s; i++) {
        unit *u = &g->u[i];
        const double cost = layer_cost(u, u->N);
        owner[i] = layer_dealt(before + cost / 2, sum, comm_size(ranks));
        before += cost;
        if (u->own && u->st && u->st->H && owner[i] == comm_rank(ranks))
            s = layer_measure_rtn(w, u, err);
    }
    for (size_t i = 0; i < g->n && ranks && !s; i++)
        if (g->u[i].own && g->u[i].st && g->u[i].st->H)
            s = comm_broadcast(ranks, owner[i], &g->u[i].loss_rtn, sizeof g->u[i].loss_rtn, err);
    return s;
}

/* ---- the experts' common input ---- */
static bool reads_common(const work *w, arch_role role)
{
    cal_site site;
    return cal_site_of(&site, w->c, role) && site == CAL_EXPERT_IN;
}

/* Every n-th row of a role's experts, AWQ_SEARCH_ROWS of them at most. */
static lq_status sample_experts(work *w, fold_linear *l, arch_role role, lq_arena *a, lq_err *err)
{
    const plan_entry *first = NULL;
    int64_t done = 0;
    for (size_t i = 0; i < w->n && !first; i++)
        if (w->targets[i].e->known && w->targets[i].e->role == role && !w->targets[i].e->is_bias)
            first = w->targets[i].e;
    const int64_t all = w->c->experts * first->N, M = all < AWQ_SEARCH_ROWS ? all : AWQ_SEARCH_ROWS;
    const size_t bytes = (size_t)(M * first->K) * sizeof *l->W;
    *l = (fold_linear){ .present = true,
                        .open = true,
                        .N = M,
                        .K = first->K,
                        .group = row_group(&first->scheme),
                        .spec = fold_spec(w, &first->scheme),
                        .limited = first->count > 1,
                        .W = lq_push(a, bytes) };
    l->stand_for = (double)all * (double)w->c->experts_used / (double)w->c->experts;
    if (!l->W) return layer_no_memory(bytes, err);
    for (int64_t x = 0; x < w->c->experts; x++) {
        lq_arena copy = { 0 };
        lq_status s = LQ_OK;
        for (size_t i = 0; i < w->n && !s; i++) {
            target *t = &w->targets[i];
            const plan_entry *e = t->e;
            if (!e->known || e->role != role || e->is_bias || (e->expert >= 0 && e->expert != x))
                continue;
            unit u = { .t = t, .expert = x, .N = e->N, .K = e->K };
            u.row0 = e->count > 1 ? x * e->N : 0;
            s = layer_read(&u, &copy, err);
            const size_t size = lq_dtype_bytes(u.d);
            for (; !s && done < M && done * all / M < (x + 1) * e->N; done++) {
                const int64_t row = done * all / M - x * e->N;
                lq_to_f32(l->W + done * e->K, (const uint8_t *)u.W + (size_t)(row * e->K) * size,
                          u.d, (size_t)e->K);
            }
        }
        lq_arena_free(&copy);
        if (s) return s;
    }
    return LQ_OK;
}

/* Experts for the layer's group: open where all of them are rounded with groups, and now. */
static lq_status add_experts(work *w, fold_layer *f, lq_arena *a, lq_err *err)
{
    lq_status s = LQ_OK;
    bool open = !w->changing;
    for (size_t i = 0; i < w->n; i++) {
        const plan_entry *e = w->targets[i].e;
        if (!e->known || e->is_bias || !reads_common(w, e->role)) continue;
        f->lin[e->role].present = true;
        open &= qz_on_grids(w->targets[i].e);
    }
    for (arch_role r = R_EXPERT_GATE; r <= R_EXPERT_DOWN && open && !s; r++)
        if (f->lin[r].present && reads_common(w, r)) s = sample_experts(w, &f->lin[r], r, a, err);
    return s;
}

/* What was chosen for them, for their turns. */
static lq_status keep_expert_scales(work *w, const fold_layer *f, lq_err *err)
{
    for (arch_role r = R_EXPERT_GATE; r <= R_EXPERT_DOWN; r++) {
        const fold_linear *l = &f->lin[r];
        if (!l->cols || w->expert_cols) continue;
        float *s = lq_push(&w->out.arena, (size_t)l->K * sizeof *s);
        if (!s) return layer_no_memory((size_t)l->K * sizeof *s, err);
        memcpy(s, l->cols, (size_t)l->K * sizeof *s);
        w->expert_cols = s;
        w->expert_alpha = l->alpha;
    }
    return LQ_OK;
}

/* An expert's linears, and the H of its own inputs, take what was chosen for all. */
static void scale_expert(work *w, fold_layer *f, const group *g)
{
    cal_stats *own = NULL;
    for (size_t i = 0; i < g->n; i++) {
        const unit *u = &g->u[i];
        fold_linear *l = &f->lin[u->t->e->role];
        if (!reads_common(w, u->t->e->role)) continue;
        awq_scale_columns(u->own, w->expert_cols, u->N, u->K, w->p);
        l->cols = w->expert_cols;
        l->alpha = w->expert_alpha;
        if (u->st && !u->st_all) own = u->st; /* one for all of them */
    }
    if (own && own->H) awq_scale_h(own->H, w->expert_cols, own->K, w->p);
}

/* ---- the group ---- */
lq_status layer_fold_group(work *w, group *g, int64_t expert, lq_err *err)
{
    fold_layer f = { .c = arch_at(w->c, w->layer),
                     .ranks = expert < 0 ? w->how.ranks : NULL,
                     .expert = expert };
    fold_site sites[FOLD_MAX_SITES];
    const bool layer_of_moe = expert < 0 && w->layer < w->c->layers && w->c->layer[w->layer].moe;
    for (size_t i = 0; i < w->n; i++) {
        const plan_entry *e = w->targets[i].e;
        if (e->known && !e->is_bias && e->expert == expert) f.lin[e->role].present = true;
    }
    lq_status s = read_beside(w, &f, &g->a, err);
    for (size_t i = 0; i < g->n && !s; i++) {
        unit *u = &g->u[i];
        const bool scaled = expert >= 0 && w->expert_cols && reads_common(w, u->t->e->role);
        if (qz_on_grids(u->t->e) && (scaled || (u->st && u->st->H)))
            s = add_unit(w, &f, u, &g->a, err);
    }
    if (!s) s = measure_units(w, g, expert < 0, err);
    if (!s && layer_of_moe) s = add_experts(w, &f, &g->a, err);
    if (!s && expert >= 0 && w->expert_cols) scale_expert(w, &f, g);
    int n = s ? 0 : fold_find(sites, &f, &g->a);
    if (n < 0) return layer_no_memory(0, err);
    for (int i = 0; i < n && !s; i++) {
        const arch_role first = sites[i].readers[0];
        const bool common = expert < 0 && arch_role_per_expert(first);
        cal_stats *st = cal_stats_of(w->st, w->c, common ? R_ROUTER : first, expert);
        if (lq_stopped(w->job)) return lq_fail(err, LQ_EINTR, "interrupted");
        s = fold_choose(&f, &sites[i], st->H, st->mean_abs, w->o->on, &g->a, w->p, err);
    }
    for (size_t i = 0; i < g->n && !s; i++) {
        const fold_linear *l = &f.lin[g->u[i].t->e->role];
        g->u[i].fold = (qz_fold){ .cols = l->cols, .rows = l->rows };
        g->u[i].alpha = l->alpha;
    }
    if (!s && layer_of_moe) s = keep_expert_scales(w, &f, err);
    return s ? s : keep_beside(w, &f, err);
}
