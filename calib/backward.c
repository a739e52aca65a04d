/* calib/backward.c - the layer's stages in order, and their transposes in reverse.
 *
 *     h1 = norm(x)            q,k,v = h1 W + b   (q,k normed per head, rotated)   a = attention
 *     x2 = x + c norm(a Wo)   h2 = norm(x2)      m = act(h2 Wg) * (h2 Wu)         y = x2 + c norm(m Wd)
 *
 * of which a model has those norms that it has; c: the branches' scale. In parallel h2 is of x, and norm(x) may be h1. */

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "calib/backward_impl.h"
#include "kernels/ops.h"

const arch_role grad_linear_roles[GRAD_SUMS] = {
    R_Q,  R_K,    R_V,           R_QKV,         R_O,         R_GATE_UP,    R_GATE,
    R_UP, R_DOWN, R_EXPERT_DOWN, R_SHARED_GATE, R_SHARED_UP, R_SHARED_DOWN
};

int grad_linear_of(arch_role r)
{
    int k = 0;
    while (k < GRAD_SUMS && grad_linear_roles[k] != r)
        k++;
    return k;
}

/* Is what the branches give not added to x as it is? */
static bool apart(const arch_config *c)
{
    return c->residual_scale != 1 || arch_name_of(c, R_ATTN_POST_NORM) ||
           arch_name_of(c, R_MLP_POST_NORM);
}

/* Is it not experts of gated MLPs by softmax or sigmoid scores, or a dense MLP? */
static bool other_mlp(const arch_config *c)
{
    const arch_wiring *w = &c->w;
    return c->act == ARCH_XIELU || (c->experts && (w->mlp != MLP_GATED || w->parallel)) ||
           w->router == ROUTER_SPARSEMIXER || w->share_in || w->dense_beside || c->latent;
}

bool grad_covers(const arch_config *c)
{
    const arch_wiring *w = &c->w;
    if ((w->pos != POS_ROPE && w->pos != POS_NONE) || w->norm_after_add ||
        w->qk_norm == QK_NORM_HEADS || w->qk_norm_rotated || w->mla || w->both_ways || c->n_sizes ||
        w->q_gated || w->qkv_quarters || c->v_dim != c->head_dim ||
        c->row->window == WINDOW_CHUNKS || arch_count_attending(c, 0, c->layers) != c->layers ||
        arch_has_state(c) || other_mlp(c) || c->qkv_clip != 0 || (w->parallel && apart(c)))
        return false;
    static const arch_role other[] = { R_EMBED_NORM, R_PROJ_IN,   R_POS_EMBED,   R_O_NORM,
                                       R_ATTN_GATE,  R_HEAD_GATE, R_V_NORM,      R_DOWN_NORM,
                                       R_PLE_EMBED,  R_STREAM_IN, R_LAUREL_LEFT, R_LAYER_SCALE,
                                       R_INDEX_K,    R_LATENT_IN, R_EXPERT_SCALE };
    for (size_t i = 0; i < LQ_COUNT(other); i++)
        if (arch_name_of(c, other[i])) return false;
    return true;
}

/* ---- buffers ---- */
enum { DENSE_PARTS = 14 };

/* What a layer makes of R rows on its way forward, but its experts. mlp: it has a dense one. */
static void dense_parts(grad_part p[DENSE_PARTS], grad_made *m, const arch_config *c, int64_t R,
                        bool mlp)
{
    const int64_t D = c->hidden, F = mlp ? c->ffn : 0;
    const int64_t Q = c->heads * c->head_dim, KV = c->kv_heads * c->head_dim;
    const bool qk = c->w.qk_norm != QK_NORM_NONE;
    const bool gated = c->w.mlp == MLP_GATED;
    const int64_t more = apart(c) ? R * D : 0;
    const grad_part parts[DENSE_PARTS] = {
        { &m->h, R * D },
        { &m->x2, R * D },
        { &m->h2, R * D },
        { &m->q, R * Q },
        { &m->a, R * Q },
        { &m->k, R * KV },
        { &m->v, R * KV },
        { &m->gate, gated ? R * F : 0 },
        { &m->up, R * F },
        { &m->mid, R * F },
        { &m->q0, qk ? R * Q : 0 },
        { &m->k0, qk ? R * KV : 0 },
        { &m->o, more },
        { &m->y, more },
    };
    memcpy(p, parts, sizeof parts);
}

/* Of the passes that go back, but their experts. */
enum { BACK_PARTS = 10 };

static void back_parts(grad_part p[BACK_PARTS], grad_ctx *g, const arch_config *c, int64_t R,
                       int64_t len, int threads)
{
    const int64_t D = c->hidden, F = grad_widest_ffn(c);
    const int64_t Q = c->heads * c->head_dim, KV = c->kv_heads * c->head_dim;
    const grad_part parts[BACK_PARTS] = {
        { &g->dx, R * D },
        { &g->dq, R * Q },
        { &g->da, R * Q },
        { &g->dk, R * KV },
        { &g->dv, R * KV },
        { &g->dgate, R * F },
        { &g->dup, R * F },
        { &g->head, grad_head_floats(c, len) * threads },
        { &g->dy, apart(c) || c->w.parallel ? R * D : 0 },
        { &g->fused, R * grad_widest_fused(c) },
    };
    memcpy(p, parts, sizeof parts);
}

static int64_t sum_parts(const grad_part *p, int n)
{
    int64_t sum = 0;
    for (int i = 0; i < n; i++)
        sum += p[i].n;
    return sum;
}

/* What layers are there: any, and this one. */
static bool any_layer(const arch_config *c, bool moe)
{
    for (int64_t i = 0; i < c->layers; i++)
        if (c->layer[i].moe == moe) return true;
    return false;
}

/* Floats that a layer of R rows makes on its way forward. */
static int64_t made_floats(const arch_config *c, int64_t R, bool mlp, bool moe)
{
    grad_made m;
    grad_part p[DENSE_PARTS], e[GRAD_MADE_PARTS];
    dense_parts(p, &m, c, R, mlp);
    grad_made_parts(e, &m, c, R);
    return sum_parts(p, DENSE_PARTS) + (moe ? sum_parts(e, GRAD_MADE_PARTS) : 0);
}

/* That all of them make together. */
static int64_t kept_floats(const arch_config *c, int64_t R)
{
    int64_t sum = 0;
    for (int64_t i = 0; i < c->layers; i++)
        sum += made_floats(c, R, !c->layer[i].moe, c->layer[i].moe);
    return sum;
}

bool grad_can_keep(const arch_config *c, int64_t windows, int64_t len)
{
    return kept_floats(c, windows * len) <= GRAD_KEPT_MOST / (int64_t)sizeof(float);
}

int64_t grad_chunk(const arch_config *c, int64_t most, int64_t len)
{
    int64_t n = most;
    while (n > 1 && !grad_can_keep(c, n, len))
        n /= 2;
    return grad_can_keep(c, n, len) ? n : most;
}

static lq_status push_parts(const grad_part *p, int n, grad_ctx *g, lq_err *err)
{
    for (int i = 0; i < n; i++) {
        void *v = p[i].n ? lq_push(&g->arena, (size_t)p[i].n * sizeof(float)) : NULL;
        if (p[i].n && !v) return lq_fail(err, LQ_ENOMEM, "no memory for a backward pass");
        memcpy(p[i].to, &v, sizeof v);
    }
    return LQ_OK;
}

static lq_status open_made(grad_ctx *g, int64_t R, lq_err *err)
{
    const arch_config *c = g->c;
    const int64_t n = g->kept ? g->kept : 1;
    lq_status s = LQ_OK;
    g->made = g->m = lq_push(&g->arena, (size_t)n * sizeof *g->made);
    if (!g->made) return lq_fail(err, LQ_ENOMEM, "no memory for a backward pass");
    for (int64_t l = 0; l < n && !s; l++) {
        grad_part p[DENSE_PARTS], e[GRAD_MADE_PARTS];
        const bool moe = g->kept ? c->layer[l].moe : any_layer(c, true);
        const bool mlp = g->kept ? !c->layer[l].moe : any_layer(c, false);
        dense_parts(p, &g->made[l], c, R, mlp);
        grad_made_parts(e, &g->made[l], c, R);
        s = push_parts(p, DENSE_PARTS, g, err);
        if (!s && moe) s = push_parts(e, GRAD_MADE_PARTS, g, err);
    }
    return s;
}

/* What `layer` makes has its own place, or that of all. */
static void at_layer(grad_ctx *g, int64_t layer) { g->m = &g->made[g->kept ? layer : 0]; }

/* Angles of all positions, there and back. */
static lq_status open_angles(grad_ctx *g, lq_err *err)
{
    const int64_t n = g->len * g->c->rope_dims / 2;
    lq_status s = LQ_OK;
    for (int u = 0; u < 2 && !s; u++) {
        const grad_part p[] = { { &g->cos[u], n }, { &g->sin[u], n }, { &g->neg[u], n } };
        s = push_parts(p, LQ_COUNT(p), g, err);
        if (s || !n) continue;
        arch_rope_table(g->c, (arch_rope_use)u, 0, g->len, g->len, g->cos[u], g->sin[u]);
        for (int64_t i = 0; i < n; i++)
            g->neg[u][i] = -g->sin[u][i];
    }
    return s;
}

/* Tiles of the largest norm: of x, of each head or of all of them. */
static int64_t tile_floats(const arch_config *c, int64_t R)
{
    const int64_t all = c->heads * c->head_dim, wide = c->hidden > all ? c->hidden : all;
    const int64_t rows = lq_ceil_div(R, GRAD_ROWS) * wide;
    const int64_t heads = lq_ceil_div(R * c->heads, GRAD_ROWS) * c->head_dim;
    return rows > heads ? rows : heads;
}

lq_status grad_open(grad_ctx **out, const arch_config *c, int64_t windows, int64_t len, bool keep,
                    pool *p, lq_err *err)
{
    *out = NULL;
    grad_ctx *g = calloc(1, sizeof *g);
    if (!g) return lq_fail(err, LQ_ENOMEM, "no memory for a backward pass");
    g->c = c;
    g->p = p;
    g->len = len;
    g->kept = keep ? c->layers : 0;
    const int64_t R = g->rows = windows * len;
    const grad_part tiles = { &g->tile_dw, tile_floats(c, R) };
    grad_part back[BACK_PARTS], moe[GRAD_MOE_PARTS];
    back_parts(back, g, c, R, len, pool_threads(p));
    grad_moe_parts(moe, &g->moe, c, R);
    lq_status s = open_made(g, R, err);
    if (!s) s = push_parts(back, BACK_PARTS, g, err);
    if (!s && c->experts) s = push_parts(moe, GRAD_MOE_PARTS, g, err);
    if (!s) s = push_parts(&tiles, 1, g, err);
    if (!s) s = open_angles(g, err);
    if (s)
        grad_close(g);
    else
        *out = g;
    return s;
}

size_t grad_bytes(const arch_config *c, int64_t windows, int64_t len, bool keep, int threads)
{
    const int64_t R = windows * len;
    const bool moe = any_layer(c, true);
    grad_ctx none;
    grad_part back[BACK_PARTS], experts[GRAD_MOE_PARTS];
    back_parts(back, &none, c, R, len, threads);
    grad_moe_parts(experts, &none.moe, c, R);
    return (size_t)((keep ? kept_floats(c, R) : made_floats(c, R, any_layer(c, false), moe)) +
                    sum_parts(back, BACK_PARTS) + (moe ? sum_parts(experts, GRAD_MOE_PARTS) : 0)) *
           sizeof(float);
}

void grad_close(grad_ctx *g)
{
    if (!g) return;
    lq_arena_free(&g->arena);
    free(g);
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

/* Rows of inputs x [R,K] by their gradients dy [R,N]. */
typedef struct {
    const float *dy, *x;
    float *c, *xc; /* [R], [R,K] */
    double mean;   /* of c */
    int64_t R, N, K;
} weigh_job;

static void square_item(void *ctx, int64_t item, int thread)
{
    (void)thread;
    const weigh_job *j = ctx;
    for (int64_t r = item * GRAD_ROWS; r < grad_tile_end(item, j->R); r++)
        j->c[r] = (float)grad_dot(j->dy + r * j->N, j->dy + r * j->N, j->N);
}

static void weigh_item(void *ctx, int64_t item, int thread)
{
    (void)thread;
    const weigh_job *j = ctx;
    for (int64_t r = item * GRAD_ROWS; r < grad_tile_end(item, j->R); r++) {
        const double most = GRAD_WEIGHT_MOST, w = j->mean > 0 ? (double)j->c[r] / j->mean : 1;
        const float root = (float)sqrt(w < most ? w : most);
        for (int64_t k = 0; k < j->K; k++)
            j->xc[r * j->K + k] = root * j->x[r * j->K + k];
    }
}

/* G += blocks of dy^T dy, H += x^T diag(c) x. */
static void curvature(const grad_ctx *g, const grad_out *out, int i, const float *dy, int64_t N,
                      const float *x, int64_t K, int64_t R)
{
    weigh_job j = { dy, x, out->scratch, out->scratch + R, 0, R, N, K };
    grad_sum_blocks(g, out->G[i], dy, N, R);
    if (!out->H[i]) return;
    pool_run(g->p, lq_ceil_div(R, GRAD_ROWS), square_item, &j);
    for (int64_t r = 0; r < R; r++)
        j.mean += (double)j.c[r] / (double)R;
    pool_run(g->p, lq_ceil_div(R, GRAD_ROWS), weigh_item, &j);
    grad_add_square(g, out->H[i], K, j.xc, K, K, R, 0, K);
}

/* dx (+)= dy W, dW += dy^T x, curvature. */
static void linear_back(grad_ctx *g, const grad_layer *l, const grad_out *out, int i, float *dx,
                        const float *dy, const float *x, int64_t R, bool add)
{
    int64_t N, K;
    arch_role_shape(g->c, grad_linear_roles[i], &N, &K);
    grad_product(g, dx, (gemm_in){ dy, N, false }, (gemm_in){ l->W[i], K, false }, R, K, N,
                 add ? 1 : 0);
    if (out->W[i])
        grad_add_rows(g, out->W[i], K, (gemm_in){ dy, N, true }, (gemm_in){ x, K, false }, N, K, R,
                      0, N);
    if (out->G[i]) curvature(g, out, i, dy, N, x, K, R);
}

/* ---- the layer ---- */
/* What of a token is normed alone: each of so many heads, or all of them together. */
typedef struct {
    int64_t rows, width;
} normed;

static normed normed_heads(const arch_config *c, int64_t heads)
{
    if (c->w.qk_norm == QK_NORM_ALL) return (normed){ 1, heads * c->head_dim };
    return (normed){ heads, c->head_dim };
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

/* q and k through their norms, from what is before them; and the gradients back. */
static void norm_heads(const grad_ctx *g, const grad_layer *l, int64_t R, const grad_out *back)
{
    const struct {
        int k;
        normed n;
        float *to, *from, *d;
    } both[] = { { GRAD_Q_NORM, normed_heads(g->c, g->c->heads), g->m->q, g->m->q0, g->dq },
                 { GRAD_K_NORM, normed_heads(g->c, g->c->kv_heads), g->m->k, g->m->k0, g->dk } };
    for (size_t i = 0; i < LQ_COUNT(both) && g->m->q0; i++) {
        const grad_norm v = grad_norm_of(g, l, both[i].k);
        const int64_t rows = R * both[i].n.rows, width = both[i].n.width;
        if (back)
            grad_norm_back(g, both[i].d, back->norm[both[i].k], both[i].from, &v, rows, width);
        else
            grad_norm_run(g, both[i].to, both[i].from, &v, rows, width);
    }
}

static void attention_forward(grad_ctx *g, const grad_layer *l, int64_t layer, const float *x,
                              int64_t windows)
{
    grad_made *m = g->m;
    const int64_t R = windows * g->len;
    float *q = m->q0 ? m->q0 : m->q, *k = m->k0 ? m->k0 : m->k;
    norm(g, l, GRAD_ATTN_NORM, m->h, x, R);
    if (l->W[GRAD_QKV]) {
        linear(g, l, GRAD_QKV, g->fused, m->h, R, false);
        grad_split_qkv(g, q, k, m->v, g->fused, R, false);
    } else {
        linear(g, l, GRAD_Q, q, m->h, R, false);
        linear(g, l, GRAD_K, k, m->h, R, false);
        linear(g, l, GRAD_V, m->v, m->h, R, false);
    }
    if (g->c->w.qk_norm_late) {
        grad_rotate(g, layer, q, k, R, false);
        norm_heads(g, l, R, NULL);
    } else {
        norm_heads(g, l, R, NULL);
        grad_rotate(g, layer, m->q, m->k, R, false);
    }
    grad_attend(g, l, layer, windows, false);
}

/* gate, up and mid from h2, or of experts the choices. x: what the norm before them reads. */
static void mlp_middle(grad_ctx *g, const grad_layer *l, const float *x, int64_t R)
{
    grad_made *m = g->m;
    const bool same = g->c->w.parallel && grad_norm_of(g, l, GRAD_MLP_NORM).none;
    norm(g, l, GRAD_MLP_NORM, m->h2, same ? m->h : x, R);
    if (l->experts) {
        grad_moe_choose(g, l, R);
        return;
    }
    if (l->W[GRAD_GATE_UP]) {
        linear(g, l, GRAD_GATE_UP, g->fused, m->h2, R, false);
        grad_split_gate_up(g, m->gate, m->up, g->fused, R, false);
    } else {
        if (m->gate) linear(g, l, GRAD_GATE, m->gate, m->h2, R, false);
        linear(g, l, GRAD_UP, m->up, m->h2, R, false);
    }
    grad_mid(g, m->mid, m->gate, m->up, R, g->c->ffn);
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

/* x += attention's output. */
static void attention_join(grad_ctx *g, const grad_layer *l, float *x, int64_t R)
{
    float *o = g->m->o;
    linear(g, l, GRAD_O, o ? o : x, g->m->a, R, !o);
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
    attention_forward(g, l, layer, x, windows);
    if (g->c->w.parallel) mlp_middle(g, l, x, R);
    attention_join(g, l, x2, R);
    if (!g->c->w.parallel) mlp_middle(g, l, x2, R);
}

/* m->y, which the norm after it reads. */
static lq_status make_y(grad_ctx *g, const grad_layer *l, int64_t R, lq_err *err)
{
    memset(g->m->y, 0, (size_t)(R * g->c->hidden) * sizeof(float));
    if (l->experts) return grad_moe_forward(g, l, g->m->y, R, err);
    linear(g, l, GRAD_DOWN, g->m->y, g->m->mid, R, true);
    return LQ_OK;
}

lq_status grad_forward(grad_ctx *g, const grad_layer *l, int64_t layer, float *x, int64_t windows,
                       lq_err *err)
{
    const int64_t R = windows * g->len;
    const size_t bytes = (size_t)(R * g->c->hidden) * sizeof *x;
    lq_status s = LQ_OK;
    at_layer(g, layer);
    memcpy(g->m->x2, x, bytes);
    to_mlp(g, l, layer, x, g->m->x2, windows);
    memcpy(x, g->m->x2, bytes);
    if (g->m->y)
        s = make_y(g, l, R, err);
    else if (l->experts)
        s = grad_moe_forward(g, l, x, R, err);
    else
        linear(g, l, GRAD_DOWN, x, g->m->mid, R, true);
    if (g->m->y && !s) join(g, l, GRAD_MLP_POST_NORM, x, g->m->y, R);
    return grad_end(g, s, err);
}

/* g->dx := the gradient at h2. */
static void mlp_backward(grad_ctx *g, const grad_layer *l, const float *d, int64_t R,
                         const grad_out *out)
{
    const grad_made *m = g->m;
    linear_back(g, l, out, GRAD_DOWN, g->dup, d, m->mid, R, false);
    grad_mid_back(g, g->dgate, g->dup, m->gate, m->up, R, g->c->ffn);
    if (l->W[GRAD_GATE_UP]) {
        grad_split_gate_up(g, g->dgate, g->dup, g->fused, R, true);
        linear_back(g, l, out, GRAD_GATE_UP, g->dx, g->fused, m->h2, R, false);
        return;
    }
    if (m->gate) linear_back(g, l, out, GRAD_GATE, g->dx, g->dgate, m->h2, R, false);
    linear_back(g, l, out, GRAD_UP, g->dx, g->dup, m->h2, R, m->gate != NULL);
}

/* g->dx := the gradient at h of d, that at attention's output; added to what is there where `add`. */
static void attention_backward(grad_ctx *g, const grad_layer *l, int64_t layer, const float *d,
                               int64_t windows, const grad_out *out, bool add)
{
    const int64_t R = windows * g->len;
    linear_back(g, l, out, GRAD_O, g->da, d, g->m->a, R, false);
    grad_attend(g, l, layer, windows, true);
    if (g->c->w.qk_norm_late) norm_heads(g, l, R, out);
    grad_rotate(g, layer, g->dq, g->dk, R, true);
    if (!g->c->w.qk_norm_late) norm_heads(g, l, R, out);
    if (l->W[GRAD_QKV]) {
        grad_split_qkv(g, g->dq, g->dk, g->dv, g->fused, R, true);
        linear_back(g, l, out, GRAD_QKV, g->dx, g->fused, g->m->h, R, add);
        return;
    }
    linear_back(g, l, out, GRAD_Q, g->dx, g->dq, g->m->h, R, add);
    linear_back(g, l, out, GRAD_K, g->dx, g->dk, g->m->h, R, true);
    linear_back(g, l, out, GRAD_V, g->dx, g->dv, g->m->h, R, true);
}

static lq_status make_again(grad_ctx *g, const grad_layer *l, int64_t layer, const float *x,
                            int64_t windows, lq_err *err)
{
    const int64_t R = windows * g->len;
    memcpy(g->m->x2, x, (size_t)(R * g->c->hidden) * sizeof *x);
    to_mlp(g, l, layer, x, g->m->x2, windows);
    return grad_norm_of(g, l, GRAD_MLP_POST_NORM).none ? LQ_OK : make_y(g, l, R, err);
}

/* The branches side by side: both gradients at x are of d as it came. */
static void parallel_backward(grad_ctx *g, const grad_layer *l, int64_t layer, const float *x,
                              float *d, int64_t windows, const grad_out *out)
{
    const int64_t R = windows * g->len, n = R * g->c->hidden;
    const bool same = grad_norm_of(g, l, GRAD_MLP_NORM).none;
    mlp_backward(g, l, d, R, out);
    if (!same) {
        norm_back(g, l, out, GRAD_MLP_NORM, g->dx, x, R);
        memcpy(g->dy, g->dx, (size_t)n * sizeof *d);
    }
    attention_backward(g, l, layer, d, windows, out, same);
    norm_back(g, l, out, GRAD_ATTN_NORM, g->dx, x, R);
    k_add(d, g->dx, n);
    if (!same) k_add(d, g->dy, n);
}

lq_status grad_backward(grad_ctx *g, const grad_layer *l, int64_t layer, const float *x, float *d,
                        int64_t windows, const grad_out *out, lq_err *err)
{
    const int64_t R = windows * g->len, n = R * g->c->hidden;
    grad_made *m;
    at_layer(g, layer);
    m = g->m;
    lq_status s = g->kept ? LQ_OK : make_again(g, l, layer, x, windows, err);
    if (s) return s;
    if (g->c->w.parallel) {
        parallel_backward(g, l, layer, x, d, windows, out);
        return grad_end(g, LQ_OK, err);
    }
    const float *dy = join_back(g, l, out, GRAD_MLP_POST_NORM, d, m->y, R);
    if (l->experts) {
        if ((s = grad_moe_backward(g, l, dy, R, out, err))) return s;
    } else {
        mlp_backward(g, l, dy, R, out);
    }
    norm_back(g, l, out, GRAD_MLP_NORM, g->dx, m->x2, R);
    k_add(d, g->dx, n);
    dy = join_back(g, l, out, GRAD_ATTN_POST_NORM, d, m->o, R);
    attention_backward(g, l, layer, dy, windows, out, false);
    norm_back(g, l, out, GRAD_ATTN_NORM, g->dx, x, R);
    k_add(d, g->dx, n);
    return grad_end(g, LQ_OK, err);
}
