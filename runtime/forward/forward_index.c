/* runtime/forward/forward_index.c - the lightning indexer of DeepSeek V3.2 (arXiv:2512.02556) and GLM-5: to which
 * positions a query attends.
 *
 *   q = index_q norm(a_q h)      of each of index_heads heads
 *   k = layernorm(index_k h)     cached beside the latents, one for all heads
 *   w = index_w h
 *
 * Where there is R_INDEX_IN_NORM, q = index_q layernorm(h), of which each head grows with its position as
 * attention's do (R_INDEX_SLOPE).
 *
 * The first rope_dims of q's heads and of k rotate, by halves or neighbours (w.index_half) whatever
 * attention does; of Hy4 the last (w.index_last). The published kernels turn q and k by one Hadamard matrix before they round them to
 * FP8; products of turned vectors are the same, so here nothing turns. The choice: kernels/topk.h.
 *
 * GLM-5-Next's chooses groups of index_every positions, by one key for each: of k with weights by dim, softmax of
 * index_gate h + index_bias of the place in the group. They are made of what is in the cache when a group is whole.
 *
 * Qwen4-Exp's chooses groups whose key is the mean of their positions' (arch_index_mean), by all heads alike: q and k are
 * rows of one product of h, q = norm(q), and of a group k = norm(mean k), which rotates as its first position does.
 *
 * MiniMax M3's chooses blocks (index_block): q = norm(index_q h), both norms as the model's others, no w;
 * kernels/topk_blocks.h. */
#include "runtime/forward/forward_impl.h"

#include "kernels/dispatch.h"
#include "kernels/topk.h"
#include "kernels/topk_blocks.h"

size_t fwd_index_scratch(const arch_config *c, int threads)
{
    if (c->index_block)
        return topk_blocks_scratch_bytes(c->index_heads, c->index_dim, c->index_block, c->max_pos,
                                         threads);
    return arch_indexed(c)
               ? topk_scratch_bytes(c->index_heads, c->index_dim, c->index_topk, threads)
               : 0;
}

/* The heads' weights in f32 whatever the activations are, as routers. */
void fwd_index_products(const fwd_rows *r, const model_layer *l)
{
    const arch_config *c = r->c;
    const model_linear *lin = l->lin;
    const int64_t W = arch_index_width(c);
    if (arch_index_mean(c)) {
        const mm_out qk =
            fwd_out(&lin[R_INDEX_Q], r->index_qk, (c->index_heads + 1) * c->index_dim, false);
        mm_run(&qk, 1, r->h, c->hidden, r->R, r->acts, r->scratch, r->p);
        return;
    }
    const mm_out w = fwd_out(&lin[R_INDEX_W], r->index_w, c->index_heads, false),
                 keys[] = { fwd_out(&lin[R_INDEX_K], r->index_k, W, false),
                            fwd_out(&lin[R_INDEX_GATE], r->index_k + c->index_dim, W, false) },
                 q = fwd_out(&lin[R_INDEX_Q], r->index_q, c->index_heads * c->index_dim, false);
    const bool latent = c->q_lora > 0; /* what R_Q_B reads begins with the normed one */
    if (lin[R_INDEX_W].present) mm_run(&w, 1, r->h, c->hidden, r->R, MM_F32, r->scratch, r->p);
    mm_run(keys, c->index_every ? 2 : 1, r->h, c->hidden, r->R, r->acts, r->scratch, r->p);
    const float *in = latent ? r->q_a : r->h;
    if (fwd_index_normed(c)) {
        const model_vector *norm = &l->vec[R_INDEX_IN_NORM];
        k_layernorm(r->index_in, c->hidden, r->h, c->hidden, norm->w, norm->bias, 0, r->R,
                    c->hidden, FWD_INDEX_EPS);
        in = r->index_in;
    }
    mm_run(&q, 1, in, latent ? arch_q_width(c) : c->hidden, r->R, r->acts, r->scratch, r->p);
}

static void norm_rows(float *x, const model_vector *v, int64_t n, int64_t D)
{
    k_rmsnorm(x, D, x, D, v->w, v->offset, n, D, v->eps);
}

/* Rows of one product to q, normed and rotated, and k; all heads count the same. */
static void part_rows(const fwd_rows *r, const model_layer *l, int64_t row, int64_t n)
{
    const arch_config *c = r->c;
    const int64_t H = c->index_heads, D = c->index_dim, half = c->rope_dims / 2;
    for (int64_t t = row; t < row + n; t++) {
        const float *qk = r->index_qk + t * (H + 1) * D;
        float *q = r->index_q + t * H * D;
        memcpy(q, qk, (size_t)(H * D) * sizeof *q);
        memcpy(r->index_k + t * D, qk + H * D, (size_t)D * sizeof *q);
        norm_rows(q, &l->vec[R_INDEX_Q_NORM], H, D);
        k_rope(q, H, D, c->rope_dims, r->cos[ROPE_MAIN] + t * half, r->sin[ROPE_MAIN] + t * half,
               c->w.index_half);
        for (int64_t h = 0; h < H; h++)
            r->index_w[t * H + h] = 1;
    }
}

void fwd_index_rows(const fwd_rows *r, const model_layer *l, int64_t row, int64_t n)
{
    const arch_config *c = r->c;
    const model_vector *norm = &l->vec[R_INDEX_K_NORM];
    const int64_t H = c->index_heads, D = c->index_dim, half = c->rope_dims / 2,
                  W = arch_index_width(c);
    float *first = r->index_k + row * W;
    const int64_t at = c->w.index_last ? D - c->rope_dims : 0; /* of what rotates */
    if (arch_index_mean(c)) {
        part_rows(r, l, row, n);
        return;
    }
    if (c->index_block) {
        norm_rows(first, norm, n, D);
        norm_rows(r->index_q + row * H * D, &l->vec[R_INDEX_Q_NORM], n * H, D);
    } else {
        k_layernorm(first, W, first, W, norm->w, norm->bias, 0, n, D,
                    c->w.index_last ? norm->eps : FWD_INDEX_EPS);
    }
    for (int64_t t = row; t < row + n; t++) {
        const float *cs = r->cos[ROPE_MAIN] + t * half, *sn = r->sin[ROPE_MAIN] + t * half;
        if (c->w.pos == POS_ROPE) {
            k_rope(r->index_q + t * H * D + at, H, D, c->rope_dims, cs, sn, c->w.index_half);
            k_rope(r->index_k + t * W + at, 1, D, c->rope_dims, cs, sn, c->w.index_half);
        }
        if (l->vec[R_INDEX_SLOPE].w)
            fwd_grow_heads(r->index_q + t * H * D, H, D, r->row_pos[t], &l->vec[R_INDEX_SLOPE],
                           &l->vec[R_INDEX_BASE]);
        if (!c->index_block) k_scale(r->index_w + t * H, (float)(1 / sqrt((double)H)), H);
    }
}

/* The indexer's keys of block 0. */
static uint8_t *keys_of(const fwd_rows *r, const fwd_kv *kv)
{
    return kv->v + kv_value_bytes(r->c, kv->block_size, kv->dtype);
}

void fwd_index_store(const fwd_rows *r, const fwd_kv *kv, int64_t t)
{
    const int64_t W = arch_index_width(r->c);
    attn_kv_write(keys_of(r, kv) + (size_t)r->row_block[t] * kv->block_stride, r->row_slot[t],
                  kv->block_size, r->index_k + t * W, 1, W, kv_of(kv->dtype, false));
}

/* ---- groups ---- */

typedef struct {
    const model_layer *l;
    const fwd_kv *kv;
    int64_t row0;
} group_arg;

/* x [every][2 D] of keys and weights: its first D become the group's key. */
static void weigh_keys(float *x, const float *bias, int64_t every, int64_t D)
{
    for (int64_t d = 0; d < D; d++) {
        float max = -INFINITY, sum = 0, key = 0;
        for (int64_t i = 0; i < every; i++) {
            const float w = x[i * 2 * D + D + d] + bias[i * D + d];
            max = w > max ? w : max;
        }
        for (int64_t i = 0; i < every; i++) {
            const float e = k_exp(x[i * 2 * D + D + d] + bias[i * D + d] - max);
            sum += e;
            key += e * x[i * 2 * D + d];
        }
        x[d] = key / sum;
    }
}

/* x [every][D] of keys: its first D become the group's key. */
static void mean_key(const fwd_rows *r, float *x, const model_vector *norm, int64_t first)
{
    const arch_config *c = r->c;
    const int64_t D = c->index_dim;
    float cs[ARCH_ONE_ROPE / 2], sn[ARCH_ONE_ROPE / 2];
    for (int64_t i = 1; i < c->index_every; i++)
        k_add(x, x + i * D, D);
    k_scale(x, 1 / (float)c->index_every, D);
    norm_rows(x, norm, 1, D);
    arch_rope_table(c, ROPE_MAIN, first, 1, first + 1, cs, sn);
    k_rope(x, 1, D, c->rope_dims, cs, sn, c->w.index_half);
}

static void group_rows(const fwd_rows *r, int64_t row, int64_t n, const void *arg)
{
    const group_arg *a = arg;
    const arch_config *c = r->c;
    const int64_t D = c->index_dim, every = c->index_every, W = arch_index_width(c);
    const kv_dtype d = kv_of(a->kv->dtype, false);
    const int size = a->kv->block_size;
    for (int64_t t = a->row0 + row; t < a->row0 + row + n; t++) {
        if ((r->row_pos[t] + 1) % every) continue; /* a block of the cache has whole groups */
        uint8_t *block = keys_of(r, a->kv) + (size_t)r->row_block[t] * a->kv->block_stride;
        const int64_t first = r->row_slot[t] + 1 - every;
        float *x = r->index_group + t * every * W;
        k_get()->attn_v(x, block + (size_t)first * attn_kv_row_bytes(d, W), (int)every, W, d);
        if (arch_index_mean(c))
            mean_key(r, x, &a->l->vec[R_INDEX_K_NORM], r->row_pos[t] + 1 - every);
        else
            weigh_keys(x, a->l->vec[R_INDEX_BIAS].w, every, D);
        attn_kv_write(block + kv_groups_at(c, size, a->kv->dtype), (int)(first / every),
                      size / (int)every, x, 1, D, d);
    }
}

void fwd_index_groups(const fwd_rows *r, const model_layer *l, const fwd_kv *kv, const fwd_group *g)
{
    const group_arg a = { l, kv, g->row0 };
    fwd_each(r, g->n_rows, group_rows, &a);
}

/* Chosen groups to their positions, and those of the group that is not whole. */
static void list_groups(const fwd_rows *r, int64_t row, int64_t n, const void *arg)
{
    const int64_t every = r->c->index_every, most = r->c->index_topk / every;
    for (int64_t t = *(const int64_t *)arg + row; n > 0; n--, t++) {
        const int64_t seen = r->row_pos[t] + 1, there = seen / every;
        const int32_t *chosen = r->index_keys + t * most;
        int32_t *first = r->seen + t * fwd_seen_most(r->c), *to = first;
        for (int64_t i = 0; i < there && i < most; i++)
            for (int64_t k = 0; k < every; k++)
                *to++ = (int32_t)(chosen[i] * every + k);
        for (int64_t p = there * every; p < seen; p++)
            *to++ = (int32_t)p;
        r->n_seen[t] = (int32_t)(to - first);
    }
}

/* ---- the choice ---- */

static void choose_blocks(const fwd_rows *r, const fwd_kv *kv, const fwd_group *g)
{
    const arch_config *c = r->c;
    const topk_blocks_args a = {
        .q = r->index_q,
        .k = keys_of(r, kv),
        .block_stride = kv->block_stride,
        .block_size = kv->block_size,
        .dtype = kv_of(kv->dtype, false),
        .H = c->index_heads,
        .D = c->index_dim,
        .block = c->index_block,
        .topk = c->index_topk / c->index_block,
        .local = c->index_local,
        .seqs = g->seqs,
        .n_seqs = g->n_seqs,
        .chosen = r->index_keys,
        .n_chosen = r->index_seen,
    };
    topk_blocks_run(&a, r->scratch, r->p);
}

void fwd_index_choose(const fwd_rows *r, const fwd_kv *kv, const fwd_group *g)
{
    const arch_config *c = r->c;
    const int64_t every = c->sparse_every ? c->sparse_every : c->index_every;
    if (c->index_block) {
        choose_blocks(r, kv, g);
        return;
    }
    const topk_args a = {
        .q = r->index_q,
        .weight = r->index_w,
        .k = keys_of(r, kv) + (c->index_every ? kv_groups_at(c, kv->block_size, kv->dtype) : 0),
        .block_stride = kv->block_stride,
        .block_size = every ? kv->block_size / (int)every : kv->block_size,
        .dtype = kv_of(kv->dtype, false),
        .H = c->index_heads,
        .D = c->index_dim,
        .scale = (float)(1 / sqrt((double)c->index_dim)),
        .topk = c->index_every ? c->index_topk / c->index_every : c->index_topk,
        .every = every,
        .seqs = g->seqs,
        .n_seqs = g->n_seqs,
        .chosen = r->index_keys,
    };
    topk_run(&a, r->scratch, r->p);
    if (c->index_every) fwd_each(r, g->n_rows, list_groups, &g->row0);
}
