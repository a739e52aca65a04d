/* calib/backward.c - the layer's stages in order, and their transposes in reverse.
 *
 *     h1 = norm(x)            q,k,v = h1 W + b   (q,k normed per head, rotated)   a = attention
 *     x2 = x + c norm(a Wo)   h2 = norm(x2)      m = act(h2 Wg) * (h2 Wu)         y = s (x2 + c norm(m Wd))
 *
 * of which a model has those norms that it has; c: the branches' scale; s: the layer's. In parallel h2 is of x, and norm(x) may be h1. */

#include <math.h>
#include <string.h>

#include "calib/backward_impl.h"
#include "kernels/ops.h"
#include "kernels/scan.h"

/* What `layer` makes has its own place, or that of all. */
static void at_layer(grad_ctx *g, const grad_layer *l, int64_t layer)
{
    g->m = &g->made[g->kept ? layer : 0];
    g->c = arch_at(g->all, layer);
    g->layer = layer;
    if (g->c->act != ARCH_XIELU) return;
    const float *const *v = l->xielu, b = *v[R_XIELU_BETA - R_XIELU_P];
    float p = *v[0], n = *v[R_XIELU_N - R_XIELU_P];
    k_softplus(&p, &(float){ 0 }, 1);
    k_softplus(&n, &(float){ 0 }, 1);
    g->xielu.p = p;
    g->xielu.m = b + n;
    g->xielu.b = b;
    g->xielu.eps = *v[R_XIELU_EPS - R_XIELU_P];
}

/* ---- linears ---- */
static void linear(grad_ctx *g, const grad_layer *l, int i, float *y, const float *x, int64_t R,
                   bool add)
{
    int64_t N, K;
    arch_role_shape(g->c, grad_linear_roles[i], &N, &K);
    grad_product(g, y, (gemm_in){ x, K, false }, (gemm_in){ l->W[i], K, true }, R, N, K,
                 add ? 1 : 0);
    grad_add_bias(g, y, l->bias[i], 1, R, N);
}

/* out [R]: |dy|^2 of the rows of dy [R,N]. */
typedef struct {
    float *out;
    const float *dy;
    int64_t R, N;
} square_job;

static void square_item(void *ctx, int64_t item, int thread)
{
    (void)thread;
    const square_job *j = ctx;
    for (int64_t r = item * GRAD_ROWS; r < grad_tile_end(item, j->R); r++)
        j->out[r] = (float)grad_dot(j->dy + r * j->N, j->dy + r * j->N, j->N);
}

static void curvature(const grad_ctx *g, const grad_out *out, int i, const float *dy, int64_t N,
                      int64_t R)
{
    square_job j = { out->squares[i], dy, R, N };
    grad_sum_blocks(g, out->G[i], dy, N, R);
    if (j.out) pool_run(g->p, lq_ceil_div(R, GRAD_ROWS), square_item, &j);
}

/* dx (+)= dy W, dW += dy^T x, curvature. */
static void linear_back(grad_ctx *g, const grad_layer *l, const grad_out *out, int i, float *dx,
                        const float *dy, const float *x, int64_t R, bool add)
{
    int64_t N, K;
    arch_role_shape(g->c, grad_linear_roles[i], &N, &K);
    gemm_dev_keep(g->on, dy, R * N);
    grad_product(g, dx, (gemm_in){ dy, N, false }, (gemm_in){ l->W[i], K, false }, R, K, N,
                 add ? 1 : 0);
    if (out->W[i])
        grad_add_rows(g, out->W[i], K, (gemm_in){ dy, N, true }, (gemm_in){ x, K, false }, N, K, R,
                      0, N);
    if (out->G[i]) curvature(g, out, i, dy, N, R);
    gemm_dev_forget(g->on, dy);
}

/* ---- the layer ---- */
/* What of a token is normed alone: each of so many heads, or all of them together; parts: with weights of its own. */
typedef struct {
    int64_t rows, width, parts;
} normed;

static normed normed_heads(const arch_config *c, int64_t heads)
{
    if (c->w.qk_norm == QK_NORM_ALL) return (normed){ 1, heads * c->head_dim, 1 };
    if (c->w.qk_norm == QK_NORM_HEADS) return (normed){ 1, heads * c->head_dim, heads };
    return (normed){ heads, c->head_dim, 1 };
}

/* y = the layer's norm k of x [R, hidden]; x itself where there is none. */
static void norm(const grad_ctx *g, const grad_layer *l, int k, float *y, const float *x, int64_t R)
{
    const grad_norm v = grad_norm_of(g, l, k);
    if (v.none)
        memcpy(y, x, (size_t)(R * g->c->hidden) * sizeof *y);
    else
        grad_norm_run(g, y, x, &v, R, g->c->hidden);
}

static void norm_back(const grad_ctx *g, const grad_layer *l, const grad_out *out, int k, float *d,
                      const float *x, int64_t R)
{
    const grad_norm v = grad_norm_of(g, l, k);
    if (!v.none) grad_norm_back(g, d, out->norm[k], x, &v, R, g->c->hidden);
}

/* q, k and v through their norms, from what is before them; and the gradients back. */
static void norm_heads(const grad_ctx *g, const grad_layer *l, int64_t layer, int64_t R,
                       const grad_out *back)
{
    const bool still = g->c->w.qk_norm_rotated && g->c->layer[layer].rope == ROPE_OFF;
    const struct {
        int k;
        normed n;
        float *to, *from, *d;
    } both[] = { { GRAD_Q_NORM, normed_heads(g->c, g->c->heads), g->m->q, g->m->q0, g->dq },
                 { GRAD_K_NORM, normed_heads(g->c, g->c->kv_heads), g->m->k, g->m->k0, g->dk },
                 { GRAD_V_NORM, { g->c->kv_heads, g->c->v_dim, 1 }, g->m->v, g->m->v0, g->dv } };
    for (size_t i = 0; i < LQ_COUNT(both); i++) {
        grad_norm v = grad_norm_of(g, l, both[i].k);
        v.parts = both[i].n.parts;
        const int64_t rows = R * both[i].n.rows, width = both[i].n.width;
        if (!both[i].from || (i && grad_lent_of(g, layer))) continue;
        if (v.none || (still && both[i].k != GRAD_V_NORM)) {
            if (!back) memcpy(both[i].to, both[i].from, (size_t)(rows * width) * sizeof(float));
        } else if (back)
            grad_norm_back(g, both[i].d, back->norm[both[i].k], both[i].from, &v, rows, width);
        else
            grad_norm_run(g, both[i].to, both[i].from, &v, rows, width);
    }
}

/* What a norm of n-wide rows makes of x. */
static void norm_latents(const grad_ctx *g, const grad_layer *l, int k, float *y, const float *x,
                         int64_t R, int64_t n)
{
    const grad_norm v = grad_norm_of(g, l, k);
    grad_norm_run(g, y, x, &v, R, n);
}

static void norm_latents_back(const grad_ctx *g, const grad_layer *l, const grad_out *out, int k,
                              float *d, const float *x, int64_t R, int64_t n)
{
    const grad_norm v = grad_norm_of(g, l, k);
    grad_norm_back(g, d, out->norm[k], x, &v, R, n);
}

/* Latent attention: q, k and v of h, rotated. */
static void mla_forward(grad_ctx *g, const grad_layer *l, int64_t layer, int64_t R)
{
    const arch_config *c = g->c;
    grad_made *m = g->m;
    if (c->q_lora) {
        linear(g, l, GRAD_Q_A, m->mla.q, m->h, R, false);
        norm_latents(g, l, GRAD_Q_A_NORM, m->mla.q_normed, m->mla.q, R, c->q_lora);
        linear(g, l, GRAD_Q_B, m->q, m->mla.q_normed, R, false);
    } else {
        linear(g, l, GRAD_Q, m->q, m->h, R, false);
    }
    linear(g, l, GRAD_KV_A, g->fused, m->h, R, false);
    grad_mla_latents(g, g->fused, R, false);
    norm_latents(g, l, GRAD_KV_A_NORM, m->mla.c_normed, m->mla.c, R, c->kv_lora);
    grad_rotate(g, layer, m->q, m->mla.k_rope, R, false);
    linear(g, l, GRAD_KV_B, g->fused, m->mla.c_normed, R, false);
    grad_mla_heads(g, g->fused, R, false);
}

/* g->dx (+)= the gradient at h of those in g->dq, g->dk and g->dv. */
static void mla_backward(grad_ctx *g, const grad_layer *l, int64_t layer, int64_t R,
                         const grad_out *out, bool add)
{
    const arch_config *c = g->c;
    const grad_made *m = g->m;
    grad_mla_heads(g, g->fused, R, true);
    grad_rotate(g, layer, g->dq, g->dk_rope, R, true);
    linear_back(g, l, out, GRAD_KV_B, g->dc, g->fused, m->mla.c_normed, R, false);
    norm_latents_back(g, l, out, GRAD_KV_A_NORM, g->dc, m->mla.c, R, c->kv_lora);
    grad_mla_latents(g, g->fused, R, true);
    linear_back(g, l, out, GRAD_KV_A, g->dx, g->fused, m->h, R, add);
    if (c->q_lora) {
        linear_back(g, l, out, GRAD_Q_B, g->dlora, g->dq, m->mla.q_normed, R, false);
        norm_latents_back(g, l, out, GRAD_Q_A_NORM, g->dlora, m->mla.q, R, c->q_lora);
        linear_back(g, l, out, GRAD_Q_A, g->dx, g->dlora, m->h, R, true);
    } else {
        linear_back(g, l, out, GRAD_Q, g->dx, g->dq, m->h, R, true);
    }
}

/* q, k and v of h, before norms and rotation, and of R_Q that is gated the gate on what attention gives. */
static void make_heads(grad_ctx *g, const grad_layer *l, int64_t layer, float *q, float *k,
                       int64_t R)
{
    grad_made *m = g->m;
    float *v = m->v0 ? m->v0 : m->v;
    if (l->W[GRAD_QKV]) {
        linear(g, l, GRAD_QKV, g->fused, m->h, R, false);
        grad_split_qkv(g, q, k, v, g->fused, R, false);
    } else {
        linear(g, l, GRAD_Q, g->c->w.q_gated ? g->fused : q, m->h, R, false);
        if (g->c->w.q_gated) grad_split_gated(g, q, m->z, g->fused, R, false);
        if (grad_lent_of(g, layer)) return;
        linear(g, l, GRAD_K, k, m->h, R, false);
        if (g->c->layer[layer].v_is_k)
            memcpy(v, k, (size_t)(R * g->c->kv_heads * g->c->head_dim) * sizeof *v);
        else
            linear(g, l, GRAD_V, v, m->h, R, false);
    }
    grad_clip(g, q, k, v, R);
}

/* Keys to rotate: none, where those of an earlier layer are read. */
static float *own_keys(const grad_ctx *g, int64_t layer, float *k)
{
    return grad_lent_of(g, layer) ? NULL : k;
}

/* What attention gives, gated. */
static const float *gated(const grad_ctx *g) { return g->m->z ? g->m->g : g->m->a; }

static void attention_forward(grad_ctx *g, const grad_layer *l, int64_t layer, int64_t windows)
{
    grad_made *m = g->m;
    const int64_t R = windows * g->len;
    float *q = m->q0 ? m->q0 : m->q, *k = m->k0 ? m->k0 : m->k;
    if (g->c->w.mla) {
        mla_forward(g, l, layer, R);
    } else {
        make_heads(g, l, layer, q, k, R);
        if (g->c->w.qk_norm_late) grad_rotate(g, layer, q, own_keys(g, layer, k), R, false);
        norm_heads(g, l, layer, R, NULL);
        if (!g->c->w.qk_norm_late) grad_rotate(g, layer, m->q, own_keys(g, layer, m->k), R, false);
    }
    if (l->W[GRAD_ATTN_GATE]) linear(g, l, GRAD_ATTN_GATE, m->z, m->h, R, false);
    if (l->head_gate)
        gemm_run(m->z, g->c->heads, (gemm_in){ m->h, g->c->hidden, false },
                 (gemm_in){ l->head_gate, g->c->hidden, true }, R, g->c->heads, g->c->hidden, 0,
                 g->p);
    if (l->gate_bias) grad_gate_bias(g, l->gate_bias, R);
    grad_index_choose(g, l, layer, windows);
    grad_attend(g, l, layer, grad_chosen_of(g, layer), windows, false);
    if (g->c->o_scale != 1) k_scale(m->a, (float)g->c->o_scale, R * g->c->heads * g->c->v_dim);
    if (m->z) grad_gate(g, R, false);
    if (m->an) norm_latents(g, l, GRAD_O_NORM, m->an, gated(g), R, g->c->heads * g->c->v_dim);
}

static const int mix_columns[] = { GRAD_MIX_Q, GRAD_MIX_K, GRAD_MIX_V };

/* Does R_MIX_IN make what the convolution reads and nothing else? */
static bool mix_in_alone(const arch_config *c)
{
    return c->row->mixer == MIX_DELTA && !c->w.mix_mixed;
}

static void state_forward(grad_ctx *g, const grad_layer *l, int64_t windows)
{
    grad_made *m = g->m;
    const int64_t R = windows * g->len;
    if (l->W[GRAD_MIX_IN]) {
        const bool alone = mix_in_alone(g->c);
        linear(g, l, GRAD_MIX_IN, alone ? m->mix.y : g->fused, m->h, R, false);
        if (!alone) grad_mix_split(g, g->fused, R, false);
    }
    for (size_t i = 0; i < LQ_COUNT(mix_columns); i++) {
        if (!l->W[mix_columns[i]]) continue;
        linear(g, l, mix_columns[i], g->fused, m->h, R, false);
        grad_mix_columns(g, mix_columns[i], g->fused, R, false);
    }
    if (l->W[GRAD_MIX_GATE]) linear(g, l, GRAD_MIX_GATE, m->mix.z, m->h, R, false);
    grad_mix_forward(g, l, windows);
}

/* What R_O and R_DOWN read. */
static const float *read_by_o(const grad_ctx *g) { return g->m->an ? g->m->an : gated(g); }
static const float *read_by_down(const grad_ctx *g) { return g->m->midn ? g->m->midn : g->m->mid; }

static void mixer_forward(grad_ctx *g, const grad_layer *l, int64_t layer, const float *x,
                          int64_t windows)
{
    const arch_mixer m = g->c->layer[layer].mixer;
    norm(g, l, GRAD_ATTN_NORM, g->m->h, x, windows * g->len);
    if (arch_mixer_has_state(m)) state_forward(g, l, windows);
    if (arch_mixer_attends(m)) attention_forward(g, l, layer, windows);
}

/* Experts beside an MLP: what they read, and the router. */
static void enter_beside(grad_ctx *g, const grad_layer *l, const float *x, int64_t R)
{
    const int64_t D = g->c->hidden;
    norm(g, l, GRAD_EXPERT_NORM, g->m->he, x, R);
    norm(g, l, GRAD_ROUTER_NORM, g->m->hr, x, R);
    k_scale(g->m->hr, (float)pow((double)D, -0.5), R * D);
}

/* The gates of the layer's MLP, without those that are cut off. */
static const float *gates(const grad_ctx *g)
{
    return g->c->layer[g->layer].sparse > 0 ? g->m->cut : g->m->gate;
}

/* gate, up and mid from h2, and of experts the choices. x: what the norm before them reads. */
static void mlp_middle(grad_ctx *g, const grad_layer *l, const float *x, int64_t R)
{
    grad_made *m = g->m;
    const bool same = g->c->w.parallel && grad_norm_of(g, l, GRAD_MLP_NORM).none;
    norm(g, l, GRAD_MLP_NORM, m->h2, same ? m->h : x, R);
    if (l->experts && g->c->w.dense_beside) enter_beside(g, l, x, R);
    if (l->experts) grad_moe_choose(g, l, R);
    if (!l->W[GRAD_DOWN]) return;
    if (l->W[GRAD_GATE_UP]) {
        linear(g, l, GRAD_GATE_UP, g->fused, m->h2, R, false);
        grad_split_gate_up(g, m->gate, m->up, g->fused, R, false);
    } else {
        if (m->gate) linear(g, l, GRAD_GATE, m->gate, m->h2, R, false);
        linear(g, l, GRAD_UP, m->up, m->h2, R, false);
    }
    if (g->c->gate_scale != 1) k_scale(m->gate, (float)g->c->gate_scale, R * g->c->ffn);
    if (gates(g) != m->gate) grad_cut(g, R, false);
    grad_mid(g, grad_act_of(g, false), m->mid, gates(g), m->up, R, g->c->ffn);
    if (g->c->down_scale != 1) k_scale(m->mid, (float)g->c->down_scale, R * g->c->ffn);
    if (m->midn) norm_latents(g, l, GRAD_DOWN_NORM, m->midn, m->mid, R, g->c->ffn);
}

/* x += what a branch gave, through the norm after it, scaled. */
static void join(const grad_ctx *g, const grad_layer *l, int k, float *x, const float *y, int64_t R)
{
    const int64_t n = R * g->c->hidden;
    norm(g, l, k, g->dx, y, R);
    if (g->c->residual_scale != 1) k_scale(g->dx, (float)g->c->residual_scale, n);
    k_add(x, g->dx, n);
}

/* The gradient at what a branch gave: of d, that at the sum; in d itself where that is the same. */
static const float *join_back(const grad_ctx *g, const grad_layer *l, const grad_out *out, int k,
                              const float *d, const float *y, int64_t R)
{
    const int64_t n = R * g->c->hidden;
    if (!y) return d;
    memcpy(g->dy, d, (size_t)n * sizeof *d);
    if (g->c->residual_scale != 1) k_scale(g->dy, (float)g->c->residual_scale, n);
    norm_back(g, l, out, k, g->dy, y, R);
    return g->dy;
}

/* x += what the layer mixed. */
static void mixer_join(grad_ctx *g, const grad_layer *l, int64_t layer, float *x, int64_t R)
{
    const arch_mixer m = g->c->layer[layer].mixer;
    const bool state = arch_mixer_has_state(m);
    float *o = g->m->o, *to = o ? o : x;
    if (state) linear(g, l, GRAD_MIX_OUT, to, g->m->mix.t, R, !o);
    if (arch_mixer_attends(m)) linear(g, l, GRAD_O, to, read_by_o(g), R, !o || state);
    if (o) join(g, l, GRAD_ATTN_POST_NORM, x, o, R);
}

/* s, or that the ranks have lost each other. */
static lq_status grad_end(const grad_ctx *g, lq_status s, lq_err *err)
{
    if (s || !g->lost) return s;
    if (err) *err = g->why;
    return g->lost;
}

/* What comes before the MLP's last product; x2 [R, hidden], which has x, becomes the sum that its output joins. */
static void to_mlp(grad_ctx *g, const grad_layer *l, int64_t layer, const float *x, float *x2,
                   int64_t windows)
{
    const int64_t R = windows * g->len;
    const bool parallel = g->c->w.parallel, mixes = g->c->layer[layer].mixer != MIX_NONE;
    if (mixes) mixer_forward(g, l, layer, x, windows);
    if (parallel) mlp_middle(g, l, x, R);
    if (mixes) mixer_join(g, l, layer, x2, R);
    if (g->c->laurel) grad_laurel(g, l, x2, R);
    if (!parallel && !g->c->layer[layer].no_mlp) mlp_middle(g, l, x2, R);
}

/* m->y of an MLP and the experts beside it, each normed. */
static lq_status make_beside(grad_ctx *g, const grad_layer *l, int64_t R, lq_err *err)
{
    grad_made *m = g->m;
    const int64_t n = R * g->c->hidden;
    linear(g, l, GRAD_DOWN, m->yd, read_by_down(g), R, false);
    memset(m->ye, 0, (size_t)n * sizeof *m->ye);
    const lq_status s = grad_moe_forward(g, l, m->ye, R, err);
    norm(g, l, GRAD_DENSE_POST_NORM, m->y, m->yd, R);
    norm(g, l, GRAD_EXPERT_POST_NORM, g->dx, m->ye, R);
    k_add(m->y, g->dx, n);
    return s;
}

/* m->y, which the norm after it reads. */
static lq_status make_y(grad_ctx *g, const grad_layer *l, int64_t R, lq_err *err)
{
    if (l->experts && g->c->w.dense_beside) return make_beside(g, l, R, err);
    memset(g->m->y, 0, (size_t)(R * g->c->hidden) * sizeof(float));
    if (l->experts) return grad_moe_forward(g, l, g->m->y, R, err);
    linear(g, l, GRAD_DOWN, g->m->y, read_by_down(g), R, true);
    return LQ_OK;
}

/* A layer's weights, which are read several times on the way, are kept on the device; then no more, and s, or
 * what failed there. */
static void keep_weights(const grad_ctx *g, const grad_layer *l)
{
    for (int i = 0; i < GRAD_LINEARS && g->on; i++) {
        int64_t N, K;
        if (!l->W[i]) continue;
        arch_role_shape(g->c, grad_linear_roles[i], &N, &K);
        gemm_dev_keep(g->on, l->W[i], N * K);
    }
}

static lq_status forget_weights(const grad_ctx *g, const grad_layer *l, lq_status s, lq_err *err)
{
    for (int i = 0; i < GRAD_LINEARS; i++)
        gemm_dev_forget(g->on, l->W[i]);
    return s ? s : gemm_dev_check(g->on, err);
}

static lq_status forward(grad_ctx *g, const grad_layer *l, int64_t layer, float *x, int64_t windows,
                         lq_err *err)
{
    const int64_t R = windows * g->len;
    const size_t bytes = (size_t)(R * g->c->hidden) * sizeof *x;
    lq_status s = LQ_OK;
    if (g->c->streams) grad_streams_enter(g, l, x, R, false);
    memcpy(g->m->x2, x, bytes);
    to_mlp(g, l, layer, x, g->m->x2, windows);
    memcpy(x, g->m->x2, bytes);
    if (grad_lent_of(g, layer) == NULL) grad_lend(g, layer, R);
    if (g->c->layer[layer].no_mlp) return grad_end(g, s, err);
    if (g->m->y)
        s = make_y(g, l, R, err);
    else if (l->experts)
        s = grad_moe_forward(g, l, x, R, err);
    else
        linear(g, l, GRAD_DOWN, x, read_by_down(g), R, true);
    if (g->m->y && !s) join(g, l, GRAD_MLP_POST_NORM, x, g->m->y, R);
    if (g->c->streams) grad_streams_correct(g, l, x, R);
    grad_ple_forward(g, l, x, R);
    if (l->stream_out[0]) grad_streams_end(g, l, x, R);
    if (l->scale) k_scale(x, *l->scale, R * g->c->hidden);
    return grad_end(g, s, err);
}

lq_status grad_forward(grad_ctx *g, const grad_layer *l, int64_t layer, float *x, int64_t windows,
                       lq_err *err)
{
    at_layer(g, l, layer);
    keep_weights(g, l);
    return forget_weights(g, l, forward(g, l, layer, x, windows, err), err);
}

/* g->dx := the gradient at h2. */
static void mlp_backward(grad_ctx *g, const grad_layer *l, const float *d, int64_t R,
                         const grad_out *out)
{
    const grad_made *m = g->m;
    linear_back(g, l, out, GRAD_DOWN, g->dup, d, read_by_down(g), R, false);
    if (m->midn) norm_latents_back(g, l, out, GRAD_DOWN_NORM, g->dup, m->mid, R, g->c->ffn);
    if (g->c->down_scale != 1) k_scale(g->dup, (float)g->c->down_scale, R * g->c->ffn);
    grad_mid_back(g, grad_act_of(g, false), g->dgate, g->dup, gates(g), m->up, R, g->c->ffn);
    if (gates(g) != m->gate) grad_cut(g, R, true);
    if (g->c->gate_scale != 1) k_scale(g->dgate, (float)g->c->gate_scale, R * g->c->ffn);
    if (l->W[GRAD_GATE_UP]) {
        grad_split_gate_up(g, g->dgate, g->dup, g->fused, R, true);
        linear_back(g, l, out, GRAD_GATE_UP, g->dx, g->fused, m->h2, R, false);
        return;
    }
    if (m->gate) linear_back(g, l, out, GRAD_GATE, g->dx, g->dgate, m->h2, R, false);
    linear_back(g, l, out, GRAD_UP, g->dx, g->dup, m->h2, R, m->gate != NULL);
}

/* g->dx := the gradient at h2 of that at m->y, in g->dy; d += that which x2 has through the experts. */
static lq_status beside_backward(grad_ctx *g, const grad_layer *l, float *d, int64_t R,
                                 const grad_out *out, lq_err *err)
{
    const grad_made *m = g->m;
    const int64_t n = R * g->c->hidden;
    float *de = g->moe.dsum, *dr = g->moe.dread;
    memcpy(de, g->dy, (size_t)n * sizeof *de);
    norm_back(g, l, out, GRAD_EXPERT_POST_NORM, de, m->ye, R);
    const lq_status s = grad_moe_backward(g, l, de, R, out, err);
    if (s) return s;
    norm_back(g, l, out, GRAD_EXPERT_NORM, g->dx, m->x2, R);
    k_add(d, g->dx, n);
    k_scale(dr, (float)pow((double)g->c->hidden, -0.5), n);
    norm_back(g, l, out, GRAD_ROUTER_NORM, dr, m->x2, R);
    k_add(d, dr, n);
    norm_back(g, l, out, GRAD_DENSE_POST_NORM, g->dy, m->yd, R);
    mlp_backward(g, l, g->dy, R, out);
    return LQ_OK;
}

/* g->dx (+)= the gradient at h of that at what R_O reads, in g->da. */
static void attention_backward(grad_ctx *g, const grad_layer *l, int64_t layer, int64_t windows,
                               const grad_out *out, bool add)
{
    const grad_made *m = g->m;
    const int64_t R = windows * g->len;
    const int64_t A = g->c->heads * g->c->v_dim;
    if (m->an) norm_latents_back(g, l, out, GRAD_O_NORM, g->da, gated(g), R, A);
    if (m->z) grad_gate(g, R, true);
    if (g->c->o_scale != 1) k_scale(g->da, (float)g->c->o_scale, R * A);
    grad_attend(g, l, layer, grad_chosen_of(g, layer), windows, true);
    grad_lent_back(g, layer, R);
    if (l->W[GRAD_ATTN_GATE]) linear_back(g, l, out, GRAD_ATTN_GATE, g->dx, g->dz, m->h, R, add);
    add |= l->W[GRAD_ATTN_GATE] != NULL;
    if (l->head_gate)
        gemm_run(g->dx, g->c->hidden, (gemm_in){ g->dz, g->c->heads, false },
                 (gemm_in){ l->head_gate, g->c->hidden, false }, R, g->c->hidden, g->c->heads,
                 add ? 1 : 0, g->p);
    add |= l->head_gate != NULL;
    if (g->c->w.mla) {
        mla_backward(g, l, layer, R, out, add);
        return;
    }
    if (g->c->w.qk_norm_late) norm_heads(g, l, layer, R, out);
    grad_rotate(g, layer, g->dq, own_keys(g, layer, g->dk), R, true);
    if (!g->c->w.qk_norm_late) norm_heads(g, l, layer, R, out);
    grad_clip_back(g, R);
    if (l->W[GRAD_QKV]) {
        grad_split_qkv(g, g->dq, g->dk, g->dv, g->fused, R, true);
        linear_back(g, l, out, GRAD_QKV, g->dx, g->fused, m->h, R, add);
    } else {
        if (g->c->w.q_gated) grad_split_gated(g, g->dq, g->dz, g->fused, R, true);
        linear_back(g, l, out, GRAD_Q, g->dx, g->c->w.q_gated ? g->fused : g->dq, m->h, R, add);
        if (grad_lent_of(g, layer)) return;
        if (g->c->layer[layer].v_is_k)
            k_add(g->dk, g->dv, R * g->c->kv_heads * g->c->head_dim);
        else
            linear_back(g, l, out, GRAD_V, g->dx, g->dv, m->h, R, true);
        linear_back(g, l, out, GRAD_K, g->dx, g->dk, m->h, R, true);
    }
}

/* g->dx := the gradient at h of that at what R_MIX_OUT reads, in g->mix.dout. */
static void state_backward(grad_ctx *g, const grad_layer *l, int64_t windows, const grad_out *out)
{
    const grad_made *m = g->m;
    const int64_t R = windows * g->len;
    bool add = false;
    grad_mix_backward(g, l, windows);
    if (l->W[GRAD_MIX_IN]) {
        const bool alone = mix_in_alone(g->c);
        if (!alone) grad_mix_split(g, g->fused, R, true);
        linear_back(g, l, out, GRAD_MIX_IN, g->dx, alone ? g->mix.dc : g->fused, m->h, R, false);
        add = true;
    }
    for (size_t i = 0; i < LQ_COUNT(mix_columns); i++) {
        if (!l->W[mix_columns[i]]) continue;
        grad_mix_columns(g, mix_columns[i], g->fused, R, true);
        linear_back(g, l, out, mix_columns[i], g->dx, g->fused, m->h, R, add);
        add = true;
    }
    if (l->W[GRAD_MIX_GATE]) linear_back(g, l, out, GRAD_MIX_GATE, g->dx, g->mix.dz, m->h, R, true);
    grad_mix_pace_back(g, l, g->dx, R);
}

/* g->dx := the gradient at h of d, that at the output; added to what is there where `add`. */
static void mixer_backward(grad_ctx *g, const grad_layer *l, int64_t layer, const float *d,
                           int64_t windows, const grad_out *out, bool add)
{
    const arch_mixer m = g->c->layer[layer].mixer;
    const int64_t R = windows * g->len;
    const bool state = arch_mixer_has_state(m);
    if (state) {
        linear_back(g, l, out, GRAD_MIX_OUT, g->mix.dout, d, g->m->mix.t, R, false);
        state_backward(g, l, windows, out);
    }
    if (!arch_mixer_attends(m)) return;
    linear_back(g, l, out, GRAD_O, g->da, d, read_by_o(g), R, false);
    attention_backward(g, l, layer, windows, out, add || state);
}

static lq_status make_again(grad_ctx *g, const grad_layer *l, int64_t layer, const float *x,
                            int64_t windows, lq_err *err)
{
    const int64_t R = windows * g->len;
    const float *in = g->c->streams ? g->m->x1 : x;
    if (g->c->streams) {
        memcpy(g->m->x1, x, (size_t)(R * g->c->hidden) * sizeof *x);
        grad_streams_enter(g, l, g->m->x1, R, true);
    }
    memcpy(g->m->x2, in, (size_t)(R * g->c->hidden) * sizeof *x);
    to_mlp(g, l, layer, in, g->m->x2, windows);
    lq_status s = LQ_OK;
    if (!g->c->layer[layer].no_mlp && !grad_norm_of(g, l, GRAD_MLP_POST_NORM).none)
        s = make_y(g, l, R, err);
    if (s || !g->c->ple_dim) return s;
    memcpy(g->dy, g->m->x2, (size_t)(R * g->c->hidden) * sizeof *x);
    join(g, l, GRAD_MLP_POST_NORM, g->dy, g->m->y, R);
    if (g->c->streams) grad_streams_correct(g, l, g->dy, R);
    grad_ple_forward(g, l, g->dy, R);
    return LQ_OK;
}

/* The branches side by side: both gradients at x are of d as it came. */
static lq_status parallel_backward(grad_ctx *g, const grad_layer *l, int64_t layer, const float *x,
                                   float *d, int64_t windows, const grad_out *out, lq_err *err)
{
    const int64_t R = windows * g->len, n = R * g->c->hidden;
    const bool same = grad_norm_of(g, l, GRAD_MLP_NORM).none;
    if (l->experts) {
        const lq_status s = grad_moe_backward(g, l, d, R, out, err);
        if (s) return s;
    } else {
        mlp_backward(g, l, d, R, out);
    }
    if (!same) {
        norm_back(g, l, out, GRAD_MLP_NORM, g->dx, x, R);
        memcpy(g->dy, g->dx, (size_t)n * sizeof *d);
    }
    mixer_backward(g, l, layer, d, windows, out, same);
    norm_back(g, l, out, GRAD_ATTN_NORM, g->dx, x, R);
    k_add(d, g->dx, n);
    if (!same) k_add(d, g->dy, n);
    return LQ_OK;
}

/* d, the gradient at the output, becomes that at x2. */
static lq_status mlp_part_back(grad_ctx *g, const grad_layer *l, float *d, int64_t R,
                               const grad_out *out, lq_err *err)
{
    const grad_made *m = g->m;
    const float *dy = join_back(g, l, out, GRAD_MLP_POST_NORM, d, m->y, R);
    lq_status s = LQ_OK;
    if (l->experts && g->c->w.dense_beside)
        s = beside_backward(g, l, d, R, out, err);
    else if (l->experts)
        s = grad_moe_backward(g, l, dy, R, out, err);
    else
        mlp_backward(g, l, dy, R, out);
    if (s) return s;
    norm_back(g, l, out, GRAD_MLP_NORM, g->dx, m->x2, R);
    k_add(d, g->dx, R * g->c->hidden);
    return LQ_OK;
}

static lq_status backward(grad_ctx *g, const grad_layer *l, int64_t layer, const float *x, float *d,
                          int64_t windows, const grad_out *out, lq_err *err)
{
    const int64_t R = windows * g->len, n = R * g->c->hidden;
    const grad_made *m = g->m;
    lq_status s = g->kept ? LQ_OK : make_again(g, l, layer, x, windows, err);
    if (s) return s;
    if (l->scale) k_scale(d, *l->scale, n);
    if (l->stream_out[0]) grad_streams_end_back(g, l, d, R);
    grad_ple_backward(g, l, d, R, out);
    if (g->c->streams) grad_streams_correct_back(g, l, d, R);
    if (g->c->w.parallel)
        return grad_end(g, parallel_backward(g, l, layer, x, d, windows, out, err), err);
    if (!g->c->layer[layer].no_mlp) s = mlp_part_back(g, l, d, R, out, err);
    if (s) return s;
    if (g->c->laurel) k_scale(d, (float)sqrt(0.5), n);
    if (g->c->layer[layer].mixer != MIX_NONE) {
        const float *dy = join_back(g, l, out, GRAD_ATTN_POST_NORM, d, m->o, R);
        mixer_backward(g, l, layer, dy, windows, out, false);
        if (g->c->laurel) grad_laurel_back(g, l, g->dx, d, R);
        norm_back(g, l, out, GRAD_ATTN_NORM, g->dx, g->c->streams ? m->x1 : x, R);
        k_add(d, g->dx, n);
    }
    if (g->c->streams) grad_streams_enter_back(g, l, x, d, R);
    return grad_end(g, LQ_OK, err);
}

lq_status grad_backward(grad_ctx *g, const grad_layer *l, int64_t layer, const float *x, float *d,
                        int64_t windows, const grad_out *out, lq_err *err)
{
    at_layer(g, l, layer);
    keep_weights(g, l);
    return forget_weights(g, l, backward(g, l, layer, x, d, windows, out, err), err);
}

void grad_use(grad_ctx *g, gemm_dev *on) { g->on = on; }
