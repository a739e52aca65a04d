/* runtime/forward/forward_index.c - the lightning indexer of DeepSeek V3.2 (arXiv:2512.02556) and GLM-5: to which
 * positions a query attends.
 *
 *   q = index_q norm(a_q h)      of each of index_heads heads
 *   k = layernorm(index_k h)     cached beside the latents, one for all heads
 *   w = index_w h
 *
 * The first rope_dims of q's heads and of k rotate, by halves or neighbours (w.index_half) whatever
 * attention does; of Hy4 the last (w.index_last). The published kernels turn q and k by one Hadamard matrix before they round them to
 * FP8; products of turned vectors are the same, so here nothing turns. The choice: kernels/topk.h.
 *
 * MiniMax M3's chooses blocks (index_block): q = norm(index_q h), both norms as the model's others, no w;
 * kernels/topk_blocks.h. */
#include "runtime/forward/forward_impl.h"

#include "kernels/topk.h"
#include "kernels/topk_blocks.h"

#define INDEX_EPS 1e-6f /* of k's norm, whatever the config says */

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
    const mm_out w = fwd_out(&lin[R_INDEX_W], r->index_w, c->index_heads, false),
                 k = fwd_out(&lin[R_INDEX_K], r->index_k, c->index_dim, false),
                 q = fwd_out(&lin[R_INDEX_Q], r->index_q, c->index_heads * c->index_dim, false);
    const bool latent = c->q_lora > 0; /* what R_Q_B reads begins with the normed one */
    if (lin[R_INDEX_W].present) mm_run(&w, 1, r->h, c->hidden, r->R, MM_F32, r->scratch, r->p);
    mm_run(&k, 1, r->h, c->hidden, r->R, r->acts, r->scratch, r->p);
    mm_run(&q, 1, latent ? r->q_a : r->h, latent ? arch_q_width(c) : c->hidden, r->R, r->acts,
           r->scratch, r->p);
}

static void norm_rows(float *x, const model_vector *v, int64_t n, int64_t D)
{
    k_rmsnorm(x, D, x, D, v->w, v->offset, n, D, v->eps);
}

void fwd_index_rows(const fwd_rows *r, const model_layer *l, int64_t row, int64_t n)
{
    const arch_config *c = r->c;
    const model_vector *norm = &l->vec[R_INDEX_K_NORM];
    const int64_t H = c->index_heads, D = c->index_dim, half = c->rope_dims / 2;
    float *first = r->index_k + row * D;
    const int64_t at = c->w.index_last ? D - c->rope_dims : 0; /* of what rotates */
    if (c->index_block) {
        norm_rows(first, norm, n, D);
        norm_rows(r->index_q + row * H * D, &l->vec[R_INDEX_Q_NORM], n * H, D);
    } else {
        k_layernorm(first, D, first, D, norm->w, norm->bias, 0, n, D,
                    c->w.index_last ? norm->eps : INDEX_EPS);
    }
    for (int64_t t = row; t < row + n; t++) {
        const float *cs = r->cos[ROPE_MAIN] + t * half, *sn = r->sin[ROPE_MAIN] + t * half;
        k_rope(r->index_q + t * H * D + at, H, D, c->rope_dims, cs, sn, c->w.index_half);
        k_rope(r->index_k + t * D + at, 1, D, c->rope_dims, cs, sn, c->w.index_half);
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
    const int64_t D = r->c->index_dim;
    attn_kv_write(keys_of(r, kv) + (size_t)r->row_block[t] * kv->block_stride, r->row_slot[t],
                  kv->block_size, r->index_k + t * D, 1, D, kv_of(kv->dtype, false));
}

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
    if (c->index_block) {
        choose_blocks(r, kv, g);
        return;
    }
    const topk_args a = {
        .q = r->index_q,
        .weight = r->index_w,
        .k = keys_of(r, kv),
        .block_stride = kv->block_stride,
        .block_size = c->sparse_every ? kv->block_size / (int)c->sparse_every : kv->block_size,
        .dtype = kv_of(kv->dtype, false),
        .H = c->index_heads,
        .D = c->index_dim,
        .scale = (float)(1 / sqrt((double)c->index_dim)),
        .topk = c->index_topk,
        .every = c->sparse_every,
        .seqs = g->seqs,
        .n_seqs = g->n_seqs,
        .chosen = r->index_keys,
    };
    topk_run(&a, r->scratch, r->p);
}
