/* quantize/tune/params.c - see params.h. */
#include "quantize/tune/params.h"

#include "calib/gemm.h"
#include "quantize/layer/residual.h"

static lq_status no_memory(lq_err *err) { return lq_fail(err, LQ_ENOMEM, "no memory for tuning"); }

lq_status tune_params_open(tune_params *t, const char *states_dir, lq_err *err)
{
    lq_status s = tune_states_open(&t->states, states_dir, err);
    t->layer = lq_push(&t->arena, (size_t)t->c->layers * sizeof *t->layer);
    t->items = lq_push(&t->arena, t->plan->n * sizeof *t->items);
    if (!s && (!t->layer || !t->items)) s = no_memory(err);
    if (!s) s = dense_buffers(t->W, t->c, &t->arena, err);
    return s ? s : dense_buffers(t->dW, t->c, &t->arena, err);
}

void tune_params_close(tune_params *t)
{
    tune_states_close(&t->states);
    lq_arena_free(&t->arena);
}

/* ---- loading ---- */
/* Of expert -1: none's. That of all experts is any one's. */
static const qz_item *find_item(const tune_params *t, size_t n, arch_role r, int64_t expert,
                                bool bias)
{
    for (size_t i = 0; i < n; i++) {
        const plan_entry *e = t->items[i].e;
        if (e->role == r && e->is_bias == bias && (e->expert < 0 || e->expert == expert))
            return &t->items[i];
    }
    return NULL;
}

static lq_status load_bias(tune_params *t, tune_linear *q, arch_role r, int64_t layer,
                           int64_t expert, size_t n_items, lq_err *err)
{
    const qz_item *item = find_item(t, n_items, r, expert, true);
    if (!item) return src_vector(t->src, r, layer, expert, true, &q->bias, &t->arena, err);
    float *f = lq_push(&t->arena, (size_t)item->t.K * sizeof *f);
    if (!f) return no_memory(err);
    qt_dequant(f, &item->t, 0, 1);
    q->bias = f;
    return LQ_OK;
}

static lq_status load_linear(tune_params *t, tune_linear *q, arch_role r, int64_t layer,
                             int64_t expert, size_t n_items, lq_err *err)
{
    const qz_item *item = find_item(t, n_items, r, expert, false);
    lq_status s = load_bias(t, q, r, layer, expert, n_items, err);
    if (s) return s;
    if (!item) return src_matrix(t->src, r, layer, expert, &q->fixed, &t->arena, err);
    s = src_slice(&q->fixed, &t->plan->cfg, r, expert, &item->t, &t->arena, err);
    const qt_tensor *w = &q->fixed;
    const bool scales = w->scheme.kind == QT_UINT; /* they are trained, codes or not */
    if (s || !qz_residual_fits(&w->scheme) || (!scales && !item->residual)) return s;
    q->e = item->e;
    q->rounded = true;
    q->row0 = w->N < item->t.N ? expert * w->N : 0;
    const int8_t *rest = item->residual ? item->residual + q->row0 * w->K : NULL;
    return tune_states_add(&t->states, &q->w, w, rest, err);
}

lq_status tune_params_vector(tune_params *t, const float **v, int64_t *n, arch_role r,
                             int64_t layer, bool bias, size_t n_items, lq_err *err)
{
    const plan_entry *e = qz_plan_find(t->plan, r, layer < 0 ? t->c->layers : layer, -1, bias);
    *v = NULL;
    *n = e ? e->src->t.K : 0;
    for (size_t i = 0; i < n_items; i++) {
        if (t->items[i].e != e) continue;
        float *f = lq_push(&t->arena, (size_t)*n * sizeof *f);
        if (!f) return no_memory(err);
        qt_dequant(f, &t->items[i].t, 0, 1);
        *v = f;
        return LQ_OK;
    }
    return src_vector(t->src, r, layer, -1, bias, v, &t->arena, err);
}

/* A small matrix as f32, as folding left it. NULL: none. */
static lq_status load_small(tune_params *t, const float **v, arch_role r, int64_t layer,
                            size_t n_items, lq_err *err)
{
    const qz_item *item = find_item(t, n_items, r, -1, false);
    qt_tensor w;
    lq_status s = LQ_OK;
    *v = NULL;
    if (item)
        w = item->t;
    else
        s = src_matrix(t->src, r, layer, -1, &w, &t->arena, err);
    if (s || !w.N) return s;
    float *f = lq_push(&t->arena, (size_t)(w.N * w.K) * sizeof *f);
    if (!f) return no_memory(err);
    dense_expand(f, &w, t->p);
    *v = f;
    return LQ_OK;
}

static lq_status load_experts(tune_params *t, int64_t layer, size_t n_items, lq_err *err)
{
    layer_params *q = &t->layer[layer];
    const arch_config *c = t->c;
    const int64_t n = c->experts + (c->shared_ffn > 0);
    int64_t len;
    lq_status s = load_small(t, &q->beside.router, R_ROUTER, layer, n_items, err);
    if (!s) s = load_small(t, &q->beside.shared_router, R_SHARED_ROUTER, layer, n_items, err);
    if (!s) s = load_small(t, &q->beside.latent_in, R_LATENT_IN, layer, n_items, err);
    if (!s) s = load_small(t, &q->beside.latent_out, R_LATENT_OUT, layer, n_items, err);
    if (!s)
        s = tune_params_vector(t, &q->beside.router_bias, &len, R_ROUTER, layer, true, n_items,
                               err);
    if (!s)
        s = tune_params_vector(t, &q->beside.router_corr, &len, R_ROUTER_CORR, layer, false,
                               n_items, err);
    if (!s)
        s = tune_params_vector(t, &q->beside.expert_scale, &len, R_EXPERT_SCALE, layer, false,
                               n_items, err);
    q->expert = lq_push(&t->arena, (size_t)(c->experts + 1) * sizeof *q->expert);
    if (!s && !q->expert) s = no_memory(err);
    for (int64_t e = 0; e < n && !s; e++)
        for (int k = GRAD_X_GATE; k <= GRAD_X_DOWN && !s; k++) {
            const arch_role r = dense_expert_role(c, e, k);
            const int64_t expert = e < c->experts ? e : -1;
            if (r != ARCH_N_ROLES)
                s = load_linear(t, &q->expert[e].linear[k - GRAD_X_GATE], r, layer, expert, n_items,
                                err);
        }
    return s;
}

static lq_status load_state(tune_params *t, int64_t layer, size_t n_items, lq_err *err)
{
    grad_layer *l = &t->layer[layer].beside;
    lq_status s = dense_mix_vectors(l, t->src, layer, &t->arena, err);
    if (!s) s = load_small(t, &l->mix_x, R_MIX_X, layer, n_items, err);
    if (!s) s = load_small(t, &l->mix_step, R_MIX_STEP, layer, n_items, err);
    if (!s) s = load_small(t, &l->mix_ba, R_MIX_BA, layer, n_items, err);
    if (!s) s = load_small(t, &l->mix_b, R_MIX_B, layer, n_items, err);
    if (!s) s = load_small(t, &l->mix_a, R_MIX_A, layer, n_items, err);
    if (!s) s = load_small(t, &l->mix_a_down, R_MIX_A_DOWN, layer, n_items, err);
    if (!s) s = load_small(t, &l->mix_a_up, R_MIX_A_UP, layer, n_items, err);
    if (!s) s = load_small(t, &l->mix_gate_down, R_MIX_GATE_DOWN, layer, n_items, err);
    return s ? s : load_small(t, &l->mix_gate_up, R_MIX_GATE_UP, layer, n_items, err);
}

static lq_status load_indexer(tune_params *t, int64_t layer, size_t n_items, lq_err *err)
{
    grad_layer *l = &t->layer[layer].beside;
    lq_status s = load_small(t, &l->index_q, R_INDEX_Q, layer, n_items, err);
    if (!s) s = load_small(t, &l->index_k, R_INDEX_K, layer, n_items, err);
    if (!s) s = load_small(t, &l->index_w, R_INDEX_W, layer, n_items, err);
    return s ? s : dense_index_vectors(l, t->src, layer, &t->arena, err);
}

/* A norm; those that each head has for itself, which may be as many tensors, are not trained. */
static lq_status load_norm(tune_params *t, int k, int64_t layer, size_t n_items, lq_err *err)
{
    const arch_role r = grad_norm_roles[k];
    layer_params *q = &t->layer[layer];
    const float *w;
    int64_t len;
    if ((r == R_Q_NORM || r == R_K_NORM) && t->c->w.qk_norm == QK_NORM_HEADS)
        return src_vector(t->src, r, layer, -1, false, &q->beside.norm[k], &t->arena, err);
    q->norm_e[k] = qz_plan_find(t->plan, r, layer, -1, false);
    lq_status s = tune_params_vector(t, &w, &len, r, layer, false, n_items, err);
    return s || !w ? s : tune_vector_init(&q->norm[k], w, len, &t->arena, err);
}

lq_status tune_params_load(tune_params *t, int64_t layer, lq_err *err)
{
    layer_params *q = &t->layer[layer];
    const bool moe = t->c->layer[layer].moe;
    size_t n = 0;
    int64_t len;
    lq_status s = qz_state_items(t->state, t->plan, layer, t->items, &n, err);
    for (int k = 0; k < GRAD_LINEARS && !s; k++)
        s = load_linear(t, &q->linear[k], grad_linear_roles[k], layer, -1, n, err);
    for (int k = 0; k < GRAD_NORMS && !s; k++) {
        s = load_norm(t, k, layer, n, err);
        if (!s)
            s = tune_params_vector(t, &q->beside.norm_bias[k], &len, grad_norm_roles[k], layer,
                                   true, n, err);
    }
    if (!s) s = tune_params_vector(t, &q->beside.sinks, &len, R_SINKS, layer, false, n, err);
    if (!s) s = tune_params_vector(t, &q->beside.scale, &len, R_LAYER_SCALE, layer, false, n, err);
    for (int k = 0; k < GRAD_XIELU && !s; k++)
        s = tune_params_vector(t, &q->beside.xielu[k], &len, R_XIELU_P + (arch_role)k, layer, false,
                               n, err);
    if (!s) s = load_small(t, &q->beside.head_gate, R_HEAD_GATE, layer, n, err);
    if (!s) s = load_small(t, &q->beside.ple_gate, R_PLE_GATE, layer, n, err);
    if (!s) s = load_small(t, &q->beside.ple_out, R_PLE_OUT, layer, n, err);
    if (!s)
        s = tune_params_vector(t, &q->beside.gate_bias, &len, R_GATE_BIAS, layer, false, n, err);
    if (!s && arch_mixer_has_state(t->c->layer[layer].mixer)) s = load_state(t, layer, n, err);
    if (!s && t->c->streams) s = dense_streams(&q->beside, t->src, layer, &t->arena, t->p, err);
    if (!s && grad_chooses(t->c, t->len)) s = load_indexer(t, layer, n, err);
    if (!s && moe) s = load_experts(t, layer, n, err);
    qz_state_drop(t->state, layer);
    return s;
}

/* ---- values and steps ---- */
/* W: its weights; dW, where the pass goes back and it is trained: zeros. */
static lq_status expand(tune_params *t, tune_linear *q, int k, lq_err *err)
{
    lq_status s = q->rounded ? tune_states_get(&t->states, &q->w, false, err) : LQ_OK;
    if (s) return s;
    if (q->rounded)
        tune_weight_expand(t->W[k], &q->w.w, t->p);
    else
        dense_expand(t->W[k], &q->fixed, t->p);
    const qt_tensor *base = &q->w.w.base;
    if (q->rounded && t->step) memset(t->dW[k], 0, (size_t)(base->N * base->K) * sizeof(float));
    return LQ_OK;
}

/* ranks: that have each the gradients of some rows; NULL: of all here. */
static lq_status step_linear(tune_params *t, tune_linear *q, int k, const tune_step *step,
                             comm *ranks, lq_err *err)
{
    if (!q->rounded) return LQ_OK;
    tune_weight *w = &q->w.w;
    lq_status s = tune_states_get(&t->states, &q->w, true, err);
    if (s) return s;
    int64_t first, end;
    grad_own_rows(&first, &end, comm_rank(ranks), comm_size(ranks), w->base.N,
                  gemm_cut(w->base.N, w->base.K).side);
    tune_weight_step(w, t->dW[k], first, end, step, t->p);
    s = tune_weight_share(w, ranks, err);
    return s ? s : tune_states_put(&t->states, &q->w, err);
}

static lq_status get_expert(void *user, int64_t e, grad_expert *x, lq_err *err)
{
    tune_params *t = user;
    tune_expert *own = &t->at->expert[e];
    float *dW[GRAD_BUFFERS] = { NULL };
    const float *bias[GRAD_BUFFERS] = { NULL };
    lq_status s = LQ_OK;
    for (int k = GRAD_X_GATE; k <= GRAD_X_DOWN && !s; k++) {
        tune_linear *q = &own->linear[k - GRAD_X_GATE];
        if (dense_expert_role(t->c, e, k) == ARCH_N_ROLES) continue;
        s = expand(t, q, k, err);
        bias[k] = q->bias;
        if (q->rounded && t->step) dW[k] = t->dW[k];
    }
    if (!s) dense_expert(x, t->c, e, t->W, bias, dW);
    return s;
}

static lq_status step_expert(void *user, int64_t e, lq_err *err)
{
    tune_params *t = user;
    tune_expert *own = &t->at->expert[e];
    lq_status s = LQ_OK;
    const bool fused = dense_expert_role(t->c, e, GRAD_X_UP) == ARCH_N_ROLES;
    own->steps++;
    for (int k = GRAD_X_GATE; k <= GRAD_X_DOWN && !s; k++)
        s = step_linear(t, &own->linear[k - GRAD_X_GATE], k, t->step,
                        fused && k != GRAD_X_DOWN ? NULL : t->ranks, err);
    return s;
}

lq_status tune_params_expand(grad_layer *l, grad_out *out, tune_params *t, int64_t layer,
                             const tune_step *step, lq_err *err)
{
    layer_params *q = t->at = &t->layer[layer];
    lq_status s = LQ_OK;
    t->step = step;
    t->experts = (grad_experts){ get_expert, step ? step_expert : NULL, t };
    *l = q->beside;
    l->experts = q->expert ? &t->experts : NULL;
    for (int k = 0; k < GRAD_LINEARS && !s; k++) {
        l->W[k] = q->linear[k].rounded || q->linear[k].fixed.N ? t->W[k] : NULL;
        l->bias[k] = q->linear[k].bias;
        s = expand(t, &q->linear[k], k, err);
        if (step) out->W[k] = q->linear[k].rounded ? t->dW[k] : NULL;
    }
    for (int k = 0; k < GRAD_NORMS; k++) {
        if (q->norm[k].n) l->norm[k] = q->norm[k].w;
        if (step) out->norm[k] = q->norm[k].n ? q->norm[k].grad : NULL;
    }
    return s;
}

lq_status tune_params_step(tune_params *t, int64_t layer, const tune_step *step, lq_err *err)
{
    layer_params *q = &t->layer[layer];
    lq_status s = LQ_OK;
    for (int k = 0; k < GRAD_LINEARS && !s; k++)
        s = step_linear(t, &q->linear[k], k, step, t->ranks, err);
    for (int k = 0; k < GRAD_NORMS; k++)
        if (q->norm[k].n) tune_vector_step(&q->norm[k], step);
    return s;
}

/* ---- kept on the way ---- */
lq_status tune_vector_pieces(const tune_vector *v, checkpoint *c, lq_err *err)
{
    float *const parts[] = { v->w, v->m, v->v };
    lq_status s = LQ_OK;
    for (size_t i = 0; i < LQ_COUNT(parts) && v->n && !s; i++)
        s = checkpoint_piece(c, parts[i], (size_t)v->n * sizeof(float), err);
    return s;
}

static lq_status linear_piece(tune_params *t, tune_linear *q, checkpoint *c, lq_err *err)
{
    if (!q->rounded) return LQ_OK;
    lq_status s = tune_states_get(&t->states, &q->w, true, err);
    if (!s) s = checkpoint_piece(c, tune_state_memory(&q->w), q->w.bytes.all, err);
    return s || !checkpoint_loads(c) ? s : tune_states_put(&t->states, &q->w, err);
}

static lq_status layer_pieces(tune_params *t, layer_params *q, checkpoint *c, lq_err *err)
{
    const int64_t experts = q->expert ? t->c->experts + 1 : 0;
    lq_status s = LQ_OK;
    for (int k = 0; k < GRAD_LINEARS && !s; k++)
        s = linear_piece(t, &q->linear[k], c, err);
    for (int k = 0; k < GRAD_NORMS && !s; k++)
        s = tune_vector_pieces(&q->norm[k], c, err);
    for (int64_t e = 0; e < experts && !s; e++) {
        for (int k = 0; k < TUNE_EXPERT_LINEARS && !s; k++)
            s = linear_piece(t, &q->expert[e].linear[k], c, err);
        if (!s) s = checkpoint_piece(c, &q->expert[e].steps, sizeof q->expert[e].steps, err);
    }
    return s;
}

lq_status tune_params_pieces(tune_params *t, checkpoint *c, lq_err *err)
{
    lq_status s = LQ_OK;
    for (int64_t i = 0; i < t->c->layers && !s; i++)
        s = layer_pieces(t, &t->layer[i], c, err);
    return s;
}

/* ---- the result ---- */
lq_status tune_params_store_vector(tune_result *r, const tune_params *t, const plan_entry *e,
                                   const tune_vector *v, lq_err *err)
{
    float *w = lq_push(&r->arena, (size_t)v->n * sizeof *w);
    if (!w) return lq_fail(err, LQ_ENOMEM, "no memory for a tuned norm");
    memcpy(w, v->w, (size_t)v->n * sizeof *w);
    qt_tensor q = { .scheme = { .kind = QT_DENSE, .dtype = LQ_F32 }, .N = 1, .K = v->n };
    q.plane[QT_CODES] = (qt_span){ w, (size_t)v->n * sizeof *w };
    r->t[e - t->plan->e] = q;
    return LQ_OK;
}

static lq_status store_linear(tune_result *r, tune_params *t, tune_linear *q, size_t n_items,
                              lq_err *err)
{
    for (size_t i = 0; i < n_items && q->rounded; i++)
        if (t->items[i].e == q->e)
            return tune_states_store(&r->t[q->e - t->plan->e], &t->items[i].t, q->row0, &t->states,
                                     &q->w, &r->file, &r->arena, err);
    return LQ_OK;
}

static lq_status store_layer(tune_result *r, tune_params *t, int64_t layer, lq_err *err)
{
    layer_params *q = &t->layer[layer];
    const int64_t experts = q->expert ? t->c->experts + 1 : 0;
    size_t n = 0;
    lq_status s = qz_state_items(t->state, t->plan, layer, t->items, &n, err);
    for (int k = 0; k < GRAD_LINEARS && !s; k++)
        s = store_linear(r, t, &q->linear[k], n, err);
    for (int64_t e = 0; e < experts && !s; e++) {
        for (int k = 0; k < TUNE_EXPERT_LINEARS && !s; k++)
            s = store_linear(r, t, &q->expert[e].linear[k], n, err);
        r->experts += e < t->c->experts;
        r->idle += e < t->c->experts && !q->expert[e].steps;
    }
    for (int k = 0; k < GRAD_NORMS && !s; k++)
        if (q->norm[k].n) s = tune_params_store_vector(r, t, q->norm_e[k], &q->norm[k], err);
    qz_state_drop(t->state, layer);
    return s;
}

lq_status tune_params_store(tune_result *r, tune_params *t, lq_err *err)
{
    lq_status s = LQ_OK;
    for (int64_t i = 0; i < t->c->layers && !s; i++)
        s = store_layer(r, t, i, err);
    return s;
}
