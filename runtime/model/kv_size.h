/* runtime/model/kv_size.h - bytes of K and V, from a config. */
#ifndef LLMQ_RUNTIME_MODEL_KV_SIZE_H
#define LLMQ_RUNTIME_MODEL_KV_SIZE_H

#include "formats/arch/arch.h"
#include "kernels/attn.h"

/* Layers that compress have, behind the rows of a block's tokens, those of compressed positions that end
 * there; in V's place the indexer's keys of these (forward_compress.c). */
/* Rows of a block for compressed positions; 0: the layer has none. */
int64_t kv_compressed_rows(const arch_config *c, int64_t layer, int block_size);
/* In MLA layers a token's K and V are one row for all heads, [latent, rotated key] (forward_mla.c), and
 * V's place has the indexer's key of those that have one. In other layers that have one it is behind V.
 * Where keys are made of groups of positions, a token has its key and weights, and behind these of a block are the
 * groups' keys (kv_groups_at). */
/* All layers, K and V. */
size_t kv_block_bytes(const arch_config *c, int block_size, kv_types d);
/* Of one layer; of one that reads another's none. */
size_t kv_layer_bytes(const arch_config *c, int64_t layer, int block_size, kv_types d);
/* What each of several devices has of it: K and V of its KV heads, of latents all. */
size_t kv_layer_bytes_on(const arch_config *c, int64_t layer, int block_size, kv_types d,
                         int ranks);
/* K of it; V has the rest: of MLA the keys of its indexer, and of those of layers that read its K. */
size_t kv_key_bytes(const arch_config *c, int64_t layer, int block_size, kv_types d);
/* Before the indexer's keys in V's place. */
size_t kv_value_bytes(const arch_config *c, int block_size, kv_types d);
/* Of an indexer's part of a block with groups (index_every): where their keys begin. */
size_t kv_groups_at(const arch_config *c, int block_size, kv_types d);
/* An indexer's keys of a block. */
size_t kv_index_bytes(const arch_config *c, int64_t layer, int block_size, kv_types d);
size_t kv_most_bytes(const arch_config *c, int block_size, kv_types d); /* of any */
size_t kv_token_bytes(const arch_config *c, kv_types d); /* of one token, all layers */
int64_t kv_latent_width(const arch_config *c);           /* of MLA's row */

#endif
