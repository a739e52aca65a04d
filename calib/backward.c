/* calib/backward.c - the layer's stages in order, and their transposes in reverse.
 *
 *     h1 = norm(x)    q,k,v = h1 W + b   (q,k normed per head, rotated)   a = attention
 *     x2 = x + a Wo   h2 = norm(x2)      m = act(h2 Wg) * (h2 Wu)         y = x2 + m Wd */

#include <cblas.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "calib/backward_impl.h"
#include "kernels/ops.h"

const arch_role grad_linear_roles[GRAD_SUMS] = { R_Q,         R_K,           R_V,
                                                 R_O,         R_GATE,        R_UP,
                                                 R_DOWN,      R_EXPERT_DOWN, R_SHARED_GATE,
                                                 R_SHARED_UP, R_SHARED_DOWN };
const arch_role grad_norm_roles[GRAD_NORMS] = { R_ATTN_NORM, R_MLP_NORM, R_Q_NORM, R_K_NORM };

int grad_linear_of(arch_role r)
{
    int k = 0;
    while (k < GRAD_SUMS && grad_linear_roles[k] != r)
        k++;
    return k;
}

/* Is it not MLP_GATED experts by softmax or sigmoid scores, or the dense MLP of such a kind? */
static bool other_mlp(const arch_config *c)
{
    const arch_wiring *w = &c->w;
    return w->mlp != MLP_GATED || c->act == ARCH_RELU2 || c->act == ARCH_XIELU ||
           w->router == ROUTER_SPARSEMIXER || w->share_in || w->dense_beside || c->latent;
}

bool grad_covers(const arch_config *c)
{
    const arch_wiring *w = &c->w;
    if (w->norm != NORM_RMS || (w->pos != POS_ROPE && w->pos != POS_NONE) || w->parallel ||
        w->norm_after_add || w->qk_norm == QK_NORM_HEADS || w->qk_norm_late || w->qk_norm_rotated ||
        w->mla || w->both_ways || c->n_sizes || w->q_gated || c->v_dim != c->head_dim ||
        c->row->window == WINDOW_CHUNKS || arch_count_attending(c, 0, c->layers) != c->layers ||
        arch_has_state(c) || other_mlp(c))
        return false;
    if (c->residual_scale != 1 || c->logit_scale != 1 || c->attn_softcap != 0 ||
        c->final_softcap != 0 || c->qkv_clip != 0 || c->post_eps != 0)
        return false;
    static const arch_role other[] = { R_QKV,        R_GATE_UP,   R_ATTN_POST_NORM, R_MLP_POST_NORM,
                                       R_EMBED_NORM, R_PROJ_IN,   R_POS_EMBED,      R_O_NORM,
                                       R_ATTN_GATE,  R_HEAD_GATE, R_V_NORM,         R_DOWN_NORM,
                                       R_PLE_EMBED,  R_STREAM_IN, R_LAUREL_LEFT,    R_LAYER_SCALE,
                                       R_INDEX_K,    R_LATENT_IN, R_EXPERT_SCALE };
    for (size_t i = 0; i < LQ_COUNT(other); i++)
        if (arch_name_of(c, other[i])) return false;
    return true;
}

/* ---- buffers ---- */
enum { DENSE_PARTS = 12 };

/* What a layer makes of R rows on its way forward, but its experts. mlp: it has a dense one. */
static void dense_parts(grad_part p[DENSE_PARTS], grad_made *m, const arch_config *c, int64_t R,
                        bool mlp)
{
    const int64_t D = c->hidden, F = mlp ? c->ffn : 0;
    const int64_t Q = c->heads * c->head_dim, KV = c->kv_heads * c->head_dim;
    const bool qk = c->w.qk_norm != QK_NORM_NONE;
    const grad_part parts[DENSE_PARTS] = {
        { &m->h, R * D },   { &m->x2, R * D },          { &m->h2, R * D },
        { &m->q, R * Q },   { &m->a, R * Q },           { &m->k, R * KV },
        { &m->v, R * KV },  { &m->gate, R * F },        { &m->up, R * F },
        { &m->mid, R * F }, { &m->q0, qk ? R * Q : 0 }, { &m->k0, qk ? R * KV : 0 },
    };
    memcpy(p, parts, sizeof parts);
}

/* Of the passes that go back, but their experts. */
enum { BACK_PARTS = 8 };

static void back_parts(grad_part p[BACK_PARTS], grad_ctx *g, const arch_config *c, int64_t R,
                       int64_t len, int threads)
{
    const int64_t D = c->hidden, F = grad_widest_ffn(c);
    const int64_t Q = c->heads * c->head_dim, KV = c->kv_heads * c->head_dim;
    const grad_part parts[BACK_PARTS] = {
        { &g->dx, R * D },  { &g->dq, R * Q },
        { &g->da, R * Q },  { &g->dk, R * KV },
        { &g->dv, R * KV }, { &g->dgate, R * F },
        { &g->dup, R * F }, { &g->head, grad_head_floats(len) * threads },
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

/* ---- RMS norm: y = x / sqrt(mean x^2 + eps) * (w + offset) ---- */
typedef struct {
    float *d, *dw; /* dw: one row of K per tile */
    const float *x, *w;
    float offset, eps;
    int64_t R, K;
    float *y;
} norm_job;

static void norm_item(void *ctx, int64_t item, int thread)
{
    (void)thread;
    const norm_job *j = ctx;
    int64_t r = item * GRAD_ROWS, n = grad_tile_end(item, j->R) - r;
    k_rmsnorm(j->y + r * j->K, j->K, j->x + r * j->K, j->K, j->w, j->offset, n, j->K, j->eps);
}

/* With n = x / rms, y = n w:  dx = (d w - n mean(d w n)) / rms,  dw = sum d n. */
static void norm_back_item(void *ctx, int64_t item, int thread)
{
    (void)thread;
    const norm_job *j = ctx;
    const int64_t K = j->K;
    float *dw = j->dw ? j->dw + item * K : NULL;
    if (dw) memset(dw, 0, (size_t)K * sizeof *dw);
    for (int64_t r = item * GRAD_ROWS; r < grad_tile_end(item, j->R); r++) {
        const float *x = j->x + r * K;
        float *d = j->d + r * K;
        double sq = 0, dot = 0;
        for (int64_t k = 0; k < K; k++) {
            sq += (double)x[k] * (double)x[k];
            dot += (double)d[k] * (double)(j->w[k] + j->offset) * (double)x[k];
        }
        double inv = 1 / sqrt(sq / (double)K + (double)j->eps);
        float a = (float)inv, b = (float)(dot / (double)K * inv * inv * inv);
        for (int64_t k = 0; k < K; k++) {
            if (dw) dw[k] += d[k] * x[k] * a;
            d[k] = d[k] * (j->w[k] + j->offset) * a - x[k] * b;
        }
    }
}

/* Rows of K at a time, R of them. */
static void norm(const grad_ctx *g, float *y, const float *x, const float *w, int64_t R, int64_t K)
{
    norm_job j = { .y = y,
                   .x = x,
                   .w = w,
                   .offset = g->c->w.norm_offset,
                   .eps = (float)g->c->norm_eps,
                   .R = R,
                   .K = K };
    pool_run(g->p, lq_ceil_div(R, GRAD_ROWS), norm_item, &j);
}

static void norm_back(const grad_ctx *g, float *d, float *dw, const float *x, const float *w,
                      int64_t R, int64_t K)
{
    norm_job j = { .d = d,
                   .dw = dw ? g->tile_dw : NULL,
                   .x = x,
                   .w = w,
                   .offset = g->c->w.norm_offset,
                   .eps = (float)g->c->norm_eps,
                   .R = R,
                   .K = K };
    int64_t n = lq_ceil_div(R, GRAD_ROWS);
    pool_run(g->p, n, norm_back_item, &j);
    for (int64_t i = 0; i < n && dw; i++)
        for (int64_t k = 0; k < K; k++)
            dw[k] += g->tile_dw[i * K + k];
}

void grad_norm_forward(grad_ctx *g, float *y, const float *x, const float *w, int64_t R)
{
    norm(g, y, x, w, R, g->c->hidden);
}

void grad_norm_backward(grad_ctx *g, float *d, float *dw, const float *x, const float *w, int64_t R)
{
    norm_back(g, d, dw, x, w, R, g->c->hidden);
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

static void attention_forward(grad_ctx *g, const grad_layer *l, int64_t layer, const float *x,
                              int64_t windows)
{
    const arch_config *c = g->c;
    const int64_t R = windows * g->len;
    const normed qn = normed_heads(c, c->heads), kn = normed_heads(c, c->kv_heads);
    norm(g, g->m->h, x, l->norm[GRAD_ATTN_NORM], R, c->hidden);
    float *q = g->m->q0 ? g->m->q0 : g->m->q, *k = g->m->k0 ? g->m->k0 : g->m->k;
    linear(g, l, GRAD_Q, q, g->m->h, R, false);
    linear(g, l, GRAD_K, k, g->m->h, R, false);
    linear(g, l, GRAD_V, g->m->v, g->m->h, R, false);
    if (g->m->q0) {
        norm(g, g->m->q, q, l->norm[GRAD_Q_NORM], R * qn.rows, qn.width);
        norm(g, g->m->k, k, l->norm[GRAD_K_NORM], R * kn.rows, kn.width);
    }
    grad_rotate(g, layer, R, false);
    grad_attend(g, l, layer, windows, false);
}

/* gate, up and mid from h2, or of experts the choices. */
static void mlp_middle(grad_ctx *g, const grad_layer *l, int64_t R)
{
    grad_made *m = g->m;
    norm(g, m->h2, m->x2, l->norm[GRAD_MLP_NORM], R, g->c->hidden);
    if (l->experts) {
        grad_moe_choose(g, l, R);
        return;
    }
    linear(g, l, GRAD_GATE, m->gate, m->h2, R, false);
    linear(g, l, GRAD_UP, m->up, m->h2, R, false);
    grad_mid(g, m->mid, m->gate, m->up, R, g->c->ffn);
}

/* s, or that the ranks have lost each other. */
static lq_status grad_end(const grad_ctx *g, lq_status s, lq_err *err)
{
    if (s || !g->lost) return s;
    if (err) *err = g->why;
    return g->lost;
}

lq_status grad_forward(grad_ctx *g, const grad_layer *l, int64_t layer, float *x, int64_t windows,
                       lq_err *err)
{
    const int64_t R = windows * g->len;
    at_layer(g, layer);
    attention_forward(g, l, layer, x, windows);
    linear(g, l, GRAD_O, x, g->m->a, R, true);
    memcpy(g->m->x2, x, (size_t)(R * g->c->hidden) * sizeof *x);
    mlp_middle(g, l, R);
    if (l->experts) return grad_end(g, grad_moe_forward(g, l, x, R, err), err);
    linear(g, l, GRAD_DOWN, x, g->m->mid, R, true);
    return grad_end(g, LQ_OK, err);
}

/* g->dx := the gradient at h2. */
static void mlp_backward(grad_ctx *g, const grad_layer *l, float *d, int64_t R, const grad_out *out)
{
    linear_back(g, l, out, GRAD_DOWN, g->dup, d, g->m->mid, R, false);
    grad_mid_back(g, g->dgate, g->dup, g->m->gate, g->m->up, R, g->c->ffn);
    linear_back(g, l, out, GRAD_GATE, g->dx, g->dgate, g->m->h2, R, false);
    linear_back(g, l, out, GRAD_UP, g->dx, g->dup, g->m->h2, R, true);
}

static void attention_backward(grad_ctx *g, const grad_layer *l, int64_t layer, const float *x,
                               float *d, int64_t windows, const grad_out *out)
{
    const arch_config *c = g->c;
    const int64_t R = windows * g->len;
    const normed qn = normed_heads(c, c->heads), kn = normed_heads(c, c->kv_heads);
    linear_back(g, l, out, GRAD_O, g->da, d, g->m->a, R, false);
    grad_attend(g, l, layer, windows, true);
    grad_rotate(g, layer, R, true);
    if (g->m->q0) {
        norm_back(g, g->dq, out->norm[GRAD_Q_NORM], g->m->q0, l->norm[GRAD_Q_NORM], R * qn.rows,
                  qn.width);
        norm_back(g, g->dk, out->norm[GRAD_K_NORM], g->m->k0, l->norm[GRAD_K_NORM], R * kn.rows,
                  kn.width);
    }
    linear_back(g, l, out, GRAD_Q, g->dx, g->dq, g->m->h, R, false);
    linear_back(g, l, out, GRAD_K, g->dx, g->dk, g->m->h, R, true);
    linear_back(g, l, out, GRAD_V, g->dx, g->dv, g->m->h, R, true);
    norm_back(g, g->dx, out->norm[GRAD_ATTN_NORM], x, l->norm[GRAD_ATTN_NORM], R, c->hidden);
    k_add(d, g->dx, R * c->hidden);
}

static void make_again(grad_ctx *g, const grad_layer *l, int64_t layer, const float *x,
                       int64_t windows)
{
    const int64_t R = windows * g->len;
    attention_forward(g, l, layer, x, windows);
    memcpy(g->m->x2, x, (size_t)(R * g->c->hidden) * sizeof *x);
    linear(g, l, GRAD_O, g->m->x2, g->m->a, R, true);
    mlp_middle(g, l, R);
}

lq_status grad_backward(grad_ctx *g, const grad_layer *l, int64_t layer, const float *x, float *d,
                        int64_t windows, const grad_out *out, lq_err *err)
{
    const int64_t R = windows * g->len;
    lq_status s = LQ_OK;
    at_layer(g, layer);
    if (!g->kept) make_again(g, l, layer, x, windows);
    if (l->experts)
        s = grad_moe_backward(g, l, d, R, out, err);
    else
        mlp_backward(g, l, d, R, out);
    if (s) return s;
    norm_back(g, g->dx, out->norm[GRAD_MLP_NORM], g->m->x2, l->norm[GRAD_MLP_NORM], R,
              g->c->hidden);
    k_add(d, g->dx, R * g->c->hidden);
    attention_backward(g, l, layer, x, d, windows, out);
    return grad_end(g, LQ_OK, err);
}
