/* formats/arch/arch_fields.h - our names of a config's whole numbers, as .llmq has them (docs/formats/llmq.md). */
#ifndef LLMQ_FORMATS_ARCH_ARCH_FIELDS_H
#define LLMQ_FORMATS_ARCH_ARCH_FIELDS_H

#include "formats/arch/arch_impl.h"

enum { MAX_WIDTH = ARCH_MAX_WIDTH };

/* X(key, field, lowest, highest) */
#define OWN_INTS(X)                                                    \
    X("vocab", vocab, 1, INT32_MAX)                                    \
    X("hidden", hidden, 1, MAX_WIDTH)                                  \
    X("layers", layers, 1, ARCH_MAX_LAYERS)                            \
    X("heads", heads, 1, MAX_WIDTH)                                    \
    X("kv_heads", kv_heads, 1, MAX_WIDTH)                              \
    X("head_dim", head_dim, 1, MAX_WIDTH)                              \
    X("ffn", ffn, 1, MAX_WIDTH)                                        \
    X("max_pos", max_pos, 1, INT32_MAX)                                \
    X("rope_dims", rope_dims, 0, MAX_WIDTH)                            \
    X("rope_original_max", rope[ROPE_MAIN].original_max, 0, INT32_MAX) \
    X("window", window, 0, INT32_MAX)

/* Left out where they are neutral: X(key, field, lowest, highest, neutral). The neutral value may
 * use what stands above. */
#define LATER_INTS(X)                                         \
    X("v_dim", v_dim, 1, MAX_WIDTH, c->head_dim)              \
    X("key_pad", key_pad, 0, MAX_WIDTH, 0)                    \
    X("embed_dim", embed_dim, 1, MAX_WIDTH, c->hidden)        \
    X("pos_offset", pos_offset, 0, 65536, c->row->pos_offset) \
    X("rel_dims", rel_dims, 0, MAX_WIDTH, 0)                  \
    X("rel_extent", rel_extent, 0, MAX_WIDTH, 0)              \
    X("types", types, 0, 1024, 0)                             \
    X("dist_buckets", dist_buckets, 0, 1024, 0)               \
    X("dist_far", dist_far, 0, MAX_WIDTH / 2, 0)              \
    X("dist_keys", dist_keys, 0, 1, 0)                        \
    X("dist_queries", dist_queries, 0, 1, 0)                  \
    X("dist_shared", dist_shared, 0, 1, 0)                    \
    X("dist_normed", dist_normed, 0, 1, 0)                    \
    X("layer_groups", layer_groups, 0, c->layers, 0)          \
    X("asides", asides, 0, c->layers, 0)                      \
    X("aside_rank", aside_rank, 0, MAX_WIDTH, 0)              \
    X("aside_heads", aside_heads, 0, 1, 0)                    \
    X("labels", labels, 0, MAX_WIDTH, 0)                      \
    X("label_mean", label_mean, 0, 1, 0)                      \
    X("label_raw", label_raw, 0, 1, 0)                        \
    X("q_lora", q_lora, 0, MAX_WIDTH, 0)                      \
    X("kv_lora", kv_lora, 0, MAX_WIDTH, 0)                    \
    X("nope_dims", nope_dims, 0, MAX_WIDTH, 0)                \
    X("norm_rank", norm_rank, 0, MAX_WIDTH, 0)                \
    X("index_heads", index_heads, 0, MAX_WIDTH, 0)            \
    X("index_dim", index_dim, 0, MAX_WIDTH, 0)                \
    X("index_topk", index_topk, 0, MAX_WIDTH, 0)              \
    X("index_block", index_block, 0, MAX_WIDTH, 0)            \
    X("index_local", index_local, 0, MAX_WIDTH, 0)            \
    X("index_every", index_every, 0, MAX_WIDTH, 0)            \
    X("ple_dim", ple_dim, 0, MAX_WIDTH, 0)                    \
    X("ple_vocab", ple_vocab, 0, INT32_MAX, 0)                \
    X("embed_more", embed_more, 0, 1024, 0)                   \
    X("head_more", head_more, 0, 1024, 0)                     \
    X("streams", streams, 0, ARCH_MAX_STREAMS, 0)             \
    X("laurel", laurel, 0, MAX_WIDTH, 0)                      \
    X("hyper", hyper, 0, ARCH_MAX_STREAMS, 0)                 \
    X("hyper_steps", hyper_steps, 0, 65536, 0)                \
    X("hyper_rank", hyper_rank, 0, MAX_WIDTH, 0)              \
    X("ngram", ngram, 0, 1024, 0)                             \
    X("ngram_heads", ngram_heads, 0, MAX_WIDTH, 0)            \
    X("ngram_dim", ngram_dim, 0, MAX_WIDTH, 0)                \
    X("ngram_taps", ngram_taps, 0, ARCH_MAX_TAPS, 0)          \
    X("ngram_base", ngram_base, 0, INT32_MAX, 0)              \
    X("ngram_even", ngram_even, 0, INT32_MAX, 0)              \
    X("ngram_seed", ngram_seed, 0, INT32_MAX, 0)              \
    X("ngram_pad", ngram_pad, 0, INT32_MAX, 0)                \
    X("ngram_parts", ngram_parts, 0, ARCH_MAX_PARTS, 0)       \
    X("sparse_every", sparse_every, 0, MAX_WIDTH, 0)          \
    X("heavy_every", heavy_every, 0, MAX_WIDTH, 0)            \
    X("o_groups", o_groups, 0, MAX_WIDTH, 0)                  \
    X("o_lora", o_lora, 0, MAX_WIDTH, 0)                      \
    X("mix_heads", mix_heads, 0, MAX_WIDTH, 0)                \
    X("mix_groups", mix_groups, 0, MAX_WIDTH, 0)              \
    X("mix_key", mix_key, 0, MAX_WIDTH, 0)                    \
    X("mix_value", mix_value, 0, MAX_WIDTH, 0)                \
    X("mix_rank", mix_rank, 0, MAX_WIDTH, 0)                  \
    X("conv_taps", conv_taps, 0, ARCH_MAX_TAPS, 0)            \
    X("head_taps", head_taps, 0, ARCH_MAX_TAPS, 0)            \
    X("route", route, 0, MAX_WIDTH, 0)                        \
    X("experts", experts, 0, ARCH_MAX_EXPERTS, 0)             \
    X("experts_used", experts_used, 0, ARCH_MAX_EXPERTS, 0)   \
    X("shared_experts", shared_experts, 0, 1024, 0)           \
    X("zero_experts", zero_experts, 0, ARCH_MAX_EXPERTS, 0)   \
    X("expert_ffn", expert_ffn, 0, MAX_WIDTH, 0)              \
    X("shared_ffn", shared_ffn, 0, INT32_MAX, 0)              \
    X("latent", latent, 0, MAX_WIDTH, 0)                      \
    X("expert_groups", expert_groups, 1, ARCH_MAX_EXPERTS, 1) \
    X("groups_used", groups_used, 1, ARCH_MAX_EXPERTS, 1)     \
    X("q_grow_every", q_grow_every, 0, INT32_MAX, 0)          \
    X("rope_local_original_max", rope[ROPE_LOCAL].original_max, 0, INT32_MAX, 0)

#endif
