/* runtime/model/kv_size.c - what blocks of the KV cache take, see kv_size.h. */
#include "runtime/model/kv_size.h"

#include "runtime/model/rank.h"

#include "kernels/core/operands.h"

/* K or V of a block, in rows of D. */
static size_t plane_bytes(const arch_config *c, int64_t D, int block_size, kv_dtype d)
{
    return lq_round_up((size_t)c->kv_heads * (size_t)block_size * attn_kv_row_bytes(d, D), 64);
}

/* Has this layer K and V, and of its own? */
static bool has_own(const arch_config *c, int64_t layer)
{
    return !c->layer[layer].kv_back && arch_mixer_attends(c->layer[layer].mixer);
}

int64_t kv_latent_width(const arch_config *c) { return c->kv_lora + c->rope_dims; }

int64_t kv_compressed_rows(const arch_config *c, int64_t layer, int block_size)
{
    const int64_t every = arch_compresses(c, layer);
    return !every ? 0 : every < block_size ? block_size / every : 1;
}

/* The latents of a block. */
static size_t latent_bytes(const arch_config *c, int64_t layer, int block_size, kv_types d)
{
    const size_t row = attn_kv_row_bytes(kv_of(d, true), kv_latent_width(arch_at(c, layer))),
                 rows = (size_t)block_size + (size_t)kv_compressed_rows(c, layer, block_size);
    return lq_round_up(rows * row, 64);
}

/* A token's key of the layer's indexer; 0: it has none. */
static size_t index_row_bytes(const arch_config *c, int64_t layer, kv_types d)
{
    return arch_has_indexer(c, layer) ? attn_kv_row_bytes(kv_of(d, false), c->index_dim) : 0;
}

size_t kv_groups_at(const arch_config *c, int block_size, kv_types d)
{
    return lq_round_up((size_t)block_size * attn_kv_row_bytes(kv_of(d, false), arch_index_width(c)),
                       64);
}

size_t kv_index_bytes(const arch_config *c, int64_t layer, int block_size, kv_types d)
{
    if (c->index_every && arch_has_indexer(c, layer))
        return kv_groups_at(c, block_size, d) +
               lq_round_up((size_t)(block_size / c->index_every) * index_row_bytes(c, layer, d),
                           64);
    const int64_t rows =
        arch_compresses(c, layer) ? kv_compressed_rows(c, layer, block_size) : block_size;
    return lq_round_up((size_t)rows * index_row_bytes(c, layer, d), 64);
}

size_t kv_key_bytes(const arch_config *c, int64_t layer, int block_size, kv_types d)
{
    const arch_config *own = arch_at(c, layer);
    return c->w.mla ? latent_bytes(c, layer, block_size, d)
                    : plane_bytes(own, own->head_dim, block_size, kv_of(d, true));
}

size_t kv_value_bytes(const arch_config *c, int block_size, kv_types d)
{
    return c->w.mla ? 0 : plane_bytes(c, c->v_dim, block_size, kv_of(d, false));
}

size_t kv_layer_bytes(const arch_config *c, int64_t layer, int block_size, kv_types d)
{
    if (!has_own(c, layer)) return 0;
    size_t n = kv_key_bytes(c, layer, block_size, d) +
               kv_value_bytes(arch_at(c, layer), block_size, d) +
               kv_index_bytes(c, layer, block_size, d);
    for (int64_t i = layer + 1; c->w.mla_shared && i < c->layers; i++)
        if (i - c->layer[i].kv_back == layer) n += kv_index_bytes(c, i, block_size, d);
    return n;
}

size_t kv_layer_bytes_on(const arch_config *c, int64_t layer, int block_size, kv_types d, int ranks)
{
    if (ranks == 1 || c->w.mla || !has_own(c, layer))
        return kv_layer_bytes(c, layer, block_size, d);
    arch_config own = *arch_at(c, layer);
    own.kv_heads = rank_kv_heads(&own, ranks);
    return plane_bytes(&own, own.head_dim, block_size, kv_of(d, true)) +
           plane_bytes(&own, own.v_dim, block_size, kv_of(d, false)) +
           kv_index_bytes(c, layer, block_size, d);
}

size_t kv_most_bytes(const arch_config *c, int block_size, kv_types d)
{
    size_t most = 0;
    for (int64_t i = 0; i < c->layers; i++) {
        const size_t n = kv_layer_bytes(c, i, block_size, d);
        most = n > most ? n : most;
    }
    return most;
}

size_t kv_block_bytes(const arch_config *c, int block_size, kv_types d)
{
    size_t n = 0;
    for (int64_t i = 0; i < c->layers; i++)
        n += kv_layer_bytes(c, i, block_size, d);
    return n;
}

/* Of a token the indexer's key, and its part of a group's. */
static size_t index_token_bytes(const arch_config *c, int64_t layer, kv_types d)
{
    const size_t one = index_row_bytes(c, layer, d);
    if (!c->index_every || !one) return one;
    return attn_kv_row_bytes(kv_of(d, false), arch_index_width(c)) +
           (size_t)lq_ceil_div((int64_t)one, c->index_every);
}

/* Of a token its row, its part of a compressed one, and of an indexer's keys. */
static size_t latent_token_bytes(const arch_config *c, int64_t layer, kv_types d)
{
    const size_t row = attn_kv_row_bytes(kv_of(d, true), kv_latent_width(arch_at(c, layer))),
                 index = index_token_bytes(c, layer, d);
    const int64_t every = arch_compresses(c, layer);
    return every ? row + (size_t)lq_ceil_div((int64_t)(row + index), every) : row + index;
}

size_t kv_token_bytes(const arch_config *c, kv_types d)
{
    size_t n = 0;
    for (int64_t i = 0; i < c->layers; i++) {
        const arch_config *own = arch_at(c, i);
        if (c->w.mla_shared && c->layer[i].kv_back) n += index_row_bytes(c, i, d);
        if (!has_own(c, i)) continue;
        n += c->w.mla
                 ? latent_token_bytes(c, i, d)
                 : index_token_bytes(c, i, d) +
                       (size_t)own->kv_heads * (attn_kv_row_bytes(kv_of(d, true), own->head_dim) +
                                                attn_kv_row_bytes(kv_of(d, false), own->v_dim));
    }
    return n;
}
