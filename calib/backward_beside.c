/* calib/backward_beside.c - what layers read besides x (calib/backward_impl.h): per-layer embeddings of a row's token,
 * and K and V of an earlier layer.
 *
 * Per-layer embeddings v end a layer: x += norm(out (act(gate x) v)). They have no gradient; the embedding is not trained.
 *
 * A layer whose K and V others read puts them away on its way forward. On the way back those layers, which come first,
 * add their gradients up, and it takes the sum. */
#include <string.h>

#include "calib/backward_impl.h"
#include "kernels/ops.h"
#include "runtime/forward/forward.h"

/* ---- what there is ---- */
/* Is the first layer's input more than scaled rows of the embedding? */
static bool more_than_embedding(const arch_config *c)
{
    return c->w.pos == POS_LEARNED || c->w.pos == POS_SINUSOIDAL || arch_name_of(c, R_EMBED_NORM) ||
           c->ple_dim;
}

bool grad_reads_beside(const arch_config *c) { return fwd_state(c) > c->hidden; }

static bool is_read(const arch_config *c, int64_t layer)
{
    for (int64_t i = layer + 1; i < c->layers; i++)
        if (c->layer[i].kv_back == i - layer) return true;
    return false;
}

/* Floats of its K, its V and their gradients. */
typedef struct {
    int64_t k, v;
} lent_size;

static lent_size lent_of(const arch_config *c, int64_t layer, int64_t R)
{
    const arch_config *own = arch_at(c, layer);
    const int64_t rows = is_read(c, layer) ? R * own->kv_heads : 0;
    return (lent_size){ rows * own->head_dim, rows * own->v_dim };
}

static int64_t ple_width(const arch_config *c) { return c->layers * c->ple_dim; }

int64_t grad_beside_floats(const arch_config *c, int64_t R)
{
    int64_t n = R * ple_width(c);
    for (int64_t i = 0; i < c->layers; i++) {
        const lent_size each = lent_of(c, i, R);
        n += 2 * (each.k + each.v);
    }
    return n;
}

/* Rows of one window, which the forward pass embeds. */
static size_t window_bytes(const arch_config *c, int64_t len)
{
    return lq_round_up((size_t)(len * fwd_state(c)) * sizeof(float), 64);
}

size_t grad_embed_bytes(const arch_config *c, int64_t len, int threads)
{
    if (!more_than_embedding(c)) return 0;
    return window_bytes(c, len) + fwd_layer_scratch(c, len, threads);
}

lq_status grad_open_beside(grad_ctx *g, int64_t R, lq_err *err)
{
    const arch_config *c = g->all;
    const grad_part ple = { &g->ple, R * ple_width(c) };
    lq_status s = grad_push(g, &ple, 1, err);
    g->lent = lq_push(&g->arena, (size_t)c->layers * sizeof *g->lent);
    if (!s && !g->lent) s = lq_fail(err, LQ_ENOMEM, "no memory for a backward pass");
    for (int64_t i = 0; i < c->layers && !s; i++) {
        const lent_size n = lent_of(c, i, R);
        grad_lent *l = &g->lent[i];
        const grad_part p[GRAD_LENT_PARTS] = {
            { &l->k, n.k }, { &l->v, n.v }, { &l->dk, n.k }, { &l->dv, n.v }
        };
        s = grad_push(g, p, GRAD_LENT_PARTS, err);
    }
    const size_t scratch = grad_embed_bytes(c, g->len, pool_threads(g->p));
    if (!s && scratch) s = lq_arena_init(&g->scratch, scratch, err);
    return s;
}

/* ---- the first layer's input ---- */
lq_status grad_embed(grad_ctx *g, const model *m, float *x, const int32_t *ids, int64_t windows,
                     lq_err *err)
{
    const arch_config *c = g->all;
    const int64_t D = c->hidden, len = g->len, P = ple_width(c);
    const int64_t S = c->streams ? (c->streams - 1) * D : 0;
    lq_status s = LQ_OK;
    if (!more_than_embedding(c)) {
        model_embed(m, x, ids, windows * len);
        return LQ_OK;
    }
    for (int64_t w = 0; w < windows && !s; w++) {
        const size_t mark = lq_arena_mark(&g->scratch);
        float *rows = lq_push(&g->scratch, window_bytes(c, len));
        s = fwd_embed(m, rows, ids + w * len, 1, len, MM_F32, &g->scratch, g->p, err);
        if (!s) memcpy(x + w * len * D, rows, (size_t)(len * D) * sizeof *x);
        if (!s && P) memcpy(g->ple + w * len * P, rows + len * D, (size_t)(len * P) * sizeof *x);
        if (!s && S)
            memcpy(g->streams.now + w * len * S, rows + len * (D + P),
                   (size_t)(len * S) * sizeof *x);
        lq_arena_reset(&g->scratch, mark);
    }
    return s;
}

/* ---- K and V of an earlier layer ---- */
const grad_lent *grad_lent_of(const grad_ctx *g, int64_t layer)
{
    const int64_t back = g->all->layer[layer].kv_back;
    return back ? &g->lent[layer - back] : NULL;
}

void grad_lend(grad_ctx *g, int64_t layer, int64_t R)
{
    const grad_lent *l = &g->lent[layer];
    const lent_size n = lent_of(g->all, layer, R);
    if (!l->k) return;
    memcpy(l->k, g->m->k, (size_t)n.k * sizeof(float));
    memcpy(l->v, g->m->v, (size_t)n.v * sizeof(float));
    memset(l->dk, 0, (size_t)n.k * sizeof(float));
    memset(l->dv, 0, (size_t)n.v * sizeof(float));
}

void grad_lent_back(grad_ctx *g, int64_t layer, int64_t R)
{
    const grad_lent *from = grad_lent_of(g, layer), *own = &g->lent[layer];
    const int64_t rows = R * g->c->kv_heads, nk = rows * g->c->head_dim, nv = rows * g->c->v_dim;
    if (from) k_add(from->dk, g->dk, nk);
    if (from) k_add(from->dv, g->dv, nv);
    if (own->k) k_add(g->dk, own->dk, nk);
    if (own->k) k_add(g->dv, own->dv, nv);
}

/* ---- per-layer embeddings ---- */
/* y [R,N] = x [R,K] W^T; or back, dx (+)= dy W. */
static void times(grad_ctx *g, float *y, const float *x, const float *W, int64_t R, int64_t N,
                  int64_t K)
{
    grad_product(g, y, (gemm_in){ x, K, false }, (gemm_in){ W, K, true }, R, N, K, 0);
}

static void times_back(grad_ctx *g, float *dx, const float *dy, const float *W, int64_t R,
                       int64_t N, int64_t K, bool add)
{
    grad_product(g, dx, (gemm_in){ dy, N, false }, (gemm_in){ W, K, false }, R, K, N, add ? 1 : 0);
}

void grad_ple_forward(grad_ctx *g, const grad_layer *l, float *x, int64_t R)
{
    const int64_t D = g->c->hidden, P = g->c->ple_dim;
    grad_made *m = g->m;
    const grad_norm v = grad_norm_of(g, l, GRAD_PLE_POST_NORM);
    if (!P) return;
    for (int64_t r = 0; r < R; r++)
        memcpy(m->pv + r * P, g->ple + r * ple_width(g->all) + g->layer * P,
               (size_t)P * sizeof *m->pv);
    const float *in = g->c->streams ? g->streams.made : x;
    if (g->c->streams) grad_streams_ple(g, l, g->streams.made, x, R);
    times(g, m->pg, in, l->ple_gate, R, P, D);
    grad_mid(g, grad_act_of(g, false), g->dple, m->pg, m->pv, R, P);
    times(g, m->py, g->dple, l->ple_out, R, D, P);
    grad_norm_run(g, g->dx, m->py, &v, R, D);
    if (g->c->streams)
        grad_streams_join(g, g->dx, R);
    else
        k_add(x, g->dx, R * D);
}

void grad_ple_backward(grad_ctx *g, const grad_layer *l, float *d, int64_t R, const grad_out *out)
{
    const int64_t D = g->c->hidden, P = g->c->ple_dim;
    const grad_made *m = g->m;
    const grad_norm v = grad_norm_of(g, l, GRAD_PLE_POST_NORM);
    float *dgate = g->dple, *dmid = g->dple + R * P;
    if (!P) return;
    if (g->c->streams)
        grad_streams_join_back(g, g->dx, R);
    else
        memcpy(g->dx, d, (size_t)(R * D) * sizeof *d);
    grad_norm_back(g, g->dx, out->norm[GRAD_PLE_POST_NORM], m->py, &v, R, D);
    times_back(g, dmid, g->dx, l->ple_out, R, D, P, false);
    grad_mid_back(g, grad_act_of(g, false), dgate, dmid, m->pg, m->pv, R, P);
    if (!g->c->streams) {
        times_back(g, d, dgate, l->ple_gate, R, P, D, true);
        return;
    }
    times_back(g, g->streams.made, dgate, l->ple_gate, R, P, D, false);
    grad_streams_ple(g, l, g->dx, g->streams.made, R);
    k_add(d, g->dx, R * D);
}
