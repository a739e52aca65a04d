/* calib/backward_index.c - the positions that a layer's rows attend to, where an indexer chooses them (calib/backward_impl.h;
 * runtime/forward/forward_index.c, its formulas and names).
 *
 * Which are chosen has no gradient, and so the indexer has none. It chooses on the way forward, by the rows as they are
 * then; layers that have no indexer of their own, and the way back, take what was chosen. Where a window has no more
 * positions than a row may choose, a row attends to all that it sees and no indexer is asked. */
#include <math.h>
#include <string.h>

#include "calib/backward_impl.h"
#include "kernels/ops.h"
#include "kernels/topk.h"
#include "kernels/topk_blocks.h"

#define INDEX_EPS 1e-6f /* of keys' norm, whatever the config says; but of blocks' */

bool grad_chooses(const arch_config *c, int64_t len)
{
    return arch_indexed(c) && len > c->index_topk;
}

/* ---- what there is ---- */
/* The layer whose indexer chooses for this one; -1: it attends to all. */
static int64_t chooser_of(const arch_config *c, int64_t layer)
{
    int64_t i = layer;
    while (c->layer[i].index_shared)
        i--;
    return arch_has_indexer(c, i) ? i : -1;
}

/* Is the layer's choice kept apart from those of others? */
static bool own_lists(const arch_config *c, int64_t layer, bool keep)
{
    const bool read = layer + 1 < c->layers && c->layer[layer + 1].index_shared;
    return arch_has_indexer(c, layer) && (keep || read);
}

/* Parts of R rows: lists of positions, and how many each has where blocks are chosen. */
enum { CHOSEN_PARTS = 2 };
static void chosen_parts(grad_part p[CHOSEN_PARTS], grad_chosen *x, const arch_config *c, int64_t R)
{
    const int64_t lists = R * arch_index_lists(c);
    p[0] = (grad_part){ &x->keys, lists * c->index_topk };
    p[1] = (grad_part){ &x->n, c->index_block ? lists : 0 };
}

/* What an indexer makes of R rows; the list of those that keep none apart. */
enum { INDEX_PARTS = 3 + CHOSEN_PARTS };
static void index_parts(grad_part p[INDEX_PARTS], grad_index *x, const arch_config *c, int64_t R)
{
    p[0] = (grad_part){ &x->q, R * c->index_heads * c->index_dim };
    p[1] = (grad_part){ &x->k, R * c->index_dim };
    p[2] = (grad_part){ &x->w, c->index_block ? 0 : R * c->index_heads };
    chosen_parts(p + 3, &x->common, c, R);
}

static size_t scratch_bytes(const arch_config *c, int64_t len, int threads)
{
    if (c->index_block)
        return topk_blocks_scratch_bytes(c->index_heads, c->index_dim, c->index_block, len,
                                         threads);
    return topk_scratch_bytes(c->index_heads, c->index_dim, c->index_topk, threads);
}

static int64_t sum_parts(const grad_part *p, int n)
{
    int64_t sum = 0;
    for (int i = 0; i < n; i++)
        sum += p[i].n;
    return sum;
}

size_t grad_index_bytes(const arch_config *c, int64_t R, int64_t len, bool keep, int threads)
{
    grad_index none;
    grad_part p[INDEX_PARTS];
    if (!grad_chooses(c, len)) return 0;
    index_parts(p, &none, c, R);
    int64_t n = sum_parts(p, INDEX_PARTS);
    for (int64_t i = 0; i < c->layers; i++) {
        chosen_parts(p, &none.common, c, R);
        if (own_lists(c, i, keep)) n += sum_parts(p, CHOSEN_PARTS);
    }
    return (size_t)n * sizeof(float) + scratch_bytes(c, len, threads);
}

lq_status grad_open_index(grad_ctx *g, int64_t windows, lq_err *err)
{
    const arch_config *c = g->all;
    grad_index *x = &g->index;
    grad_part p[INDEX_PARTS];
    const int64_t R = windows * g->len;
    if (!grad_chooses(c, g->len)) return LQ_OK;
    x->own = lq_push(&g->arena, (size_t)c->layers * sizeof *x->own);
    x->seqs = lq_push(&g->arena, (size_t)windows * sizeof *x->seqs);
    x->blocks = lq_push(&g->arena, (size_t)windows * sizeof *x->blocks);
    if (!x->own || !x->seqs || !x->blocks)
        return lq_fail(err, LQ_ENOMEM, "no memory for a backward pass");
    for (int64_t w = 0; w < windows; w++) { /* a window is a block of a cache */
        x->blocks[w] = (int32_t)w;
        x->seqs[w] = (attn_seq){ .row0 = w * g->len, .n_rows = g->len, .table = &x->blocks[w] };
    }
    index_parts(p, x, c, R);
    lq_status s = grad_push(g, p, INDEX_PARTS, err);
    for (int64_t i = 0; i < c->layers && !s; i++) {
        chosen_parts(p, &x->own[i], c, R);
        if (own_lists(c, i, g->kept > 0)) s = grad_push(g, p, CHOSEN_PARTS, err);
    }
    const size_t scratch = scratch_bytes(c, g->len, pool_threads(g->p));
    return s ? s : lq_arena_init(&x->scratch, scratch, err);
}

const grad_chosen *grad_chosen_of(const grad_ctx *g, int64_t layer)
{
    const grad_index *x = &g->index;
    const int64_t from = x->own ? chooser_of(g->all, layer) : -1;
    if (from < 0) return NULL;
    return x->own[from].keys ? &x->own[from] : &x->common;
}

/* ---- the choice ---- */
typedef struct {
    const grad_ctx *g;
    const grad_layer *l;
    int64_t layer, R;
} index_job;

static void rms_rows(const index_job *j, float *x, const float *w, arch_role r, int64_t n)
{
    const arch_config *c = j->g->c;
    const int64_t D = c->index_dim;
    k_rmsnorm(x, D, x, D, w, arch_norm_offset(c, r), n, D, (float)arch_norm_eps_at(c, r, j->layer));
}

static void index_item(void *ctx, int64_t item, int thread)
{
    (void)thread;
    const index_job *j = ctx;
    const arch_config *c = j->g->c;
    const grad_index *x = &j->g->index;
    const int64_t H = c->index_heads, D = c->index_dim, P = c->rope_dims;
    const grad_angles *t = grad_angles_of(j->g, j->layer);
    const int64_t row = item * GRAD_ROWS, n = grad_tile_end(item, j->R) - row;
    float *k = x->k + row * D, *q = x->q + row * H * D;
    if (c->index_block) {
        rms_rows(j, k, j->l->index_k_norm, R_INDEX_K_NORM, n);
        rms_rows(j, q, j->l->index_q_norm, R_INDEX_Q_NORM, n * H);
    } else {
        k_layernorm(k, D, k, D, j->l->index_k_norm, j->l->index_k_bias, 0, n, D, INDEX_EPS);
        k_scale(x->w + row * H, (float)(1 / sqrt((double)H)), n * H);
    }
    for (int64_t r = row; r < row + n && t; r++) {
        const float *cs = t->cos + r % j->g->len * (P / 2), *sn = t->sin + r % j->g->len * (P / 2);
        k_rope(x->q + r * H * D, H, D, P, cs, sn, c->w.index_half);
        k_rope(x->k + r * D, 1, D, P, cs, sn, c->w.index_half);
    }
}

static void choose(grad_ctx *g, const grad_chosen *to, int64_t windows)
{
    const arch_config *c = g->c;
    const int64_t H = c->index_heads, D = c->index_dim;
    grad_index *x = &g->index;
    const size_t window = (size_t)(g->len * D) * sizeof(float);
    const topk_args some = { .q = x->q,
                             .weight = x->w,
                             .k = (const uint8_t *)x->k,
                             .block_stride = window,
                             .block_size = (int)g->len,
                             .dtype = KV_F32,
                             .H = H,
                             .D = D,
                             .scale = (float)(1 / sqrt((double)D)),
                             .topk = c->index_topk,
                             .seqs = x->seqs,
                             .n_seqs = (int)windows,
                             .chosen = to->keys };
    const topk_blocks_args blocks = { .q = x->q,
                                      .k = (const uint8_t *)x->k,
                                      .block_stride = window,
                                      .block_size = (int)g->len,
                                      .dtype = KV_F32,
                                      .H = H,
                                      .D = D,
                                      .block = c->index_block,
                                      .topk = c->index_block ? c->index_topk / c->index_block : 0,
                                      .local = c->index_local,
                                      .seqs = x->seqs,
                                      .n_seqs = (int)windows,
                                      .chosen = to->keys,
                                      .n_chosen = to->n };
    if (c->index_block)
        topk_blocks_run(&blocks, &x->scratch, g->p);
    else
        topk_run(&some, &x->scratch, g->p);
}

/* y [R,N] = x [R,K] W^T */
static void times(grad_ctx *g, float *y, const float *x, const float *W, int64_t R, arch_role r)
{
    int64_t N, K;
    arch_role_shape(g->c, r, &N, &K);
    grad_product(g, y, (gemm_in){ x, K, false }, (gemm_in){ W, K, true }, R, N, K, 0);
}

void grad_index_choose(grad_ctx *g, const grad_layer *l, int64_t layer, int64_t windows)
{
    const grad_made *m = g->m;
    const int64_t R = windows * g->len;
    index_job j = { g, l, layer, R };
    if (!g->index.own || !arch_has_indexer(g->all, layer)) return;
    times(g, g->index.q, g->c->q_lora ? m->mla.q_normed : m->h, l->index_q, R, R_INDEX_Q);
    times(g, g->index.k, m->h, l->index_k, R, R_INDEX_K);
    if (g->index.w) times(g, g->index.w, m->h, l->index_w, R, R_INDEX_W);
    pool_run(g->p, lq_ceil_div(R, GRAD_ROWS), index_item, &j);
    choose(g, grad_chosen_of(g, layer), windows);
}
