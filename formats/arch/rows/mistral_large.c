/* formats/arch/rows/mistral_large.c - Mistral Large 4: latents that several layers read, layers without a rotation,
 * an indexer that reads a layer norm, q that grows with its position. */
#include "formats/arch/arch_impl.h"
#include "formats/arch/rows/rows.h"

#include <inttypes.h>
#include <stdlib.h>

#include "base/json.h"

/* The last layer before this one whose latents others read, of those that rotate or of those that do not. */
static int64_t last_shared(const int64_t *source, const arch_config *c, int64_t layer)
{
    for (int64_t k = layer - 1; k >= 0; k--)
        for (int64_t i = k + 1; i < c->layers && c->layer[k].rope == c->layer[layer].rope; i++)
            if (source[i] == k) return k;
    return -1;
}

/* transformers hands on the latents of the last such layer, so no other can be meant. */
static lq_status set_sources(arch_config *c, const int64_t *source, lq_err *err)
{
    for (int64_t i = 0; i < c->layers; i++) {
        if (source[i] == i) continue;
        const int64_t last = last_shared(source, c, i);
        if (last < 0 || source[i] != last || source[last] != last)
            return lq_fail(err, LQ_EUNSUPPORTED,
                           "kv_source_layers: expected for layer %" PRId64
                           " itself or the last shared one before it that rotates as it does, "
                           "found %" PRId64,
                           i, source[i]);
        c->layer[i].kv_back = i - last;
    }
    return LQ_OK;
}

static lq_status read_sources(arch_config *c, const cJSON *j, lq_err *err)
{
    const cJSON *list = js_get(j, "kv_source_layers");
    if (!list) return LQ_OK;
    int64_t *source = calloc((size_t)c->layers, sizeof *source), i = 0;
    if (!source) return lq_fail(err, LQ_ENOMEM, "no memory for %" PRId64 " layers", c->layers);
    for (const cJSON *e = cJSON_IsArray(list) ? list->child : NULL; e; e = e->next, i++)
        if (i == c->layers || !js_whole(e, 0, i, &source[i])) break;
    lq_status s = LQ_OK;
    if (i != c->layers || cJSON_GetArraySize(list) != i)
        s = lq_fail(err, LQ_EVALUE,
                    "kv_source_layers: expected for each of %" PRId64
                    " layers itself or one before it",
                    c->layers);
    if (!s) s = set_sources(c, source, err);
    free(source);
    return s;
}

/* Layers that do not rotate have no rotated dims. */
static lq_status large_layers(arch_config *c, const cJSON *j, lq_err *err)
{
    arch_sizes *z = calloc((size_t)c->layers, sizeof *z);
    if (!z) return lq_fail(err, LQ_ENOMEM, "no memory for %" PRId64 " layers", c->layers);
    for (int64_t i = 0; i < c->layers; i++) {
        z[i] = arch_sizes_of(c, i);
        if (c->layer[i].rope == ROPE_OFF) z[i].rope_dims = 0;
    }
    lq_status s = arch_set_sizes(c, z, err);
    free(z);
    if (!s) s = arch_index_layers(c, j, err);
    if (!s) s = arch_all_indexed(c, j, err);
    return s ? s : read_sources(c, j, err);
}

/* A table of names reads by line. */
/* clang-format off */
#define AT_ATTN LAYER "attention."
#define AT_INDEX LAYER "attention.indexer."
static const arch_name large_names[] = {
    { R_EMBED, "@tok_embeddings", 0, BIAS_NO },
    { R_ROPE_LOG, "@lerope.alpha", NAME_BARE, BIAS_NO },
    { R_FINAL_NORM, "@norm", 0, BIAS_NO },
    { R_HEAD, "@output", 0, BIAS_NO },
    { R_ATTN_NORM, LAYER "attention_norm", 0, BIAS_NO },
    { R_MLP_NORM, LAYER "ffn_norm", 0, BIAS_NO },
    { R_Q, AT_ATTN "wq", 0, BIAS_NO },
    { R_Q_SLOPE, AT_ATTN "ssmax_scaling.s", NAME_BARE, BIAS_NO },
    { R_Q_BASE, AT_ATTN "ssmax_scaling.b", NAME_BARE, BIAS_NO },
    { R_KV_A, AT_ATTN "wkv_a_with_mqa", 0, BIAS_ATTN },
    { R_KV_A_NORM, AT_ATTN "kv_a_norm", 0, BIAS_NO },
    { R_KV_B, AT_ATTN "wkv_b", 0, BIAS_NO },
    { R_O, AT_ATTN "wo", 0, BIAS_ATTN },
    { R_INDEX_IN_NORM, AT_INDEX "q_input_norm", 0, BIAS_YES },
    { R_INDEX_Q, AT_INDEX "wq_b", 0, BIAS_NO },
    { R_INDEX_SLOPE, AT_INDEX "ssmax_scaling.s", NAME_BARE, BIAS_NO },
    { R_INDEX_BASE, AT_INDEX "ssmax_scaling.b", NAME_BARE, BIAS_NO },
    { R_INDEX_K, AT_INDEX "wk", 0, BIAS_NO },
    { R_INDEX_K_NORM, AT_INDEX "k_norm", 0, BIAS_YES },
    { R_INDEX_W, AT_INDEX "weights_proj", 0, BIAS_NO },
    { R_GATE, LAYER "feed_forward.w1", 0, BIAS_NO },
    { R_UP, LAYER "feed_forward.w3", 0, BIAS_NO },
    { R_DOWN, LAYER "feed_forward.w2", 0, BIAS_NO },
    { R_ROUTER, LAYER "gate", 0, BIAS_NO },
    { R_EXPERT_GATE, LAYER "experts.%e.w1", 0, BIAS_NO },
    { R_EXPERT_UP, LAYER "experts.%e.w3", 0, BIAS_NO },
    { R_EXPERT_DOWN, LAYER "experts.%e.w2", 0, BIAS_NO },
    { R_SHARED_GATE, LAYER "shared_experts.w1", 0, BIAS_NO },
    { R_SHARED_UP, LAYER "shared_experts.w3", 0, BIAS_NO },
    { R_SHARED_DOWN, LAYER "shared_experts.w2", 0, BIAS_NO },
    END,
};
static const arch_key large_keys[] = {
    { "kv_lora_rank", KEY_INT, AT(kv_lora), 512, NULL },
    { "qk_nope_head_dim", KEY_INT, AT(nope_dims), 64, NULL },
    { "qk_rope_head_dim", KEY_INT, AT(rope_dims), 64, NULL },
    { "v_head_dim", KEY_INT, AT(v_dim), 128, NULL },
    { "qk_head_dim", KEY_KNOWN, 0, NONE, NULL }, /* the sum of two above */
    { "routed_scaling_factor", KEY_REAL, AT(expert_scale), 1, NULL },
    { "n_group", KEY_INT, AT(expert_groups), 1, NULL },
    { "topk_group", KEY_INT, AT(groups_used), 1, NULL },
    EXPERT_COUNTS("n_routed_experts", 128, 4),
    { "num_experts", KEY_INT, AT(experts), NONE, NULL }, /* counts, where it is there */
    EXPERT_FFN(6144),
    { "index_n_heads", KEY_INT, AT(index_heads), 32, NULL },
    { "index_head_dim", KEY_INT, AT(index_dim), 128, NULL },
    { "index_topk", KEY_INT, AT(index_topk), 2048, NULL },
    { "index_topk_freq", KEY_KNOWN, 0, NONE, NULL }, /* by arch_index_layers, as these: */
    { "index_skip_topk_offset", KEY_KNOWN, 0, NONE, NULL },
    { "index_topk_pattern", KEY_KNOWN, 0, NONE, NULL },
    { "kv_source_layers", KEY_KNOWN, 0, NONE, NULL },
    MUST("q_lora_rank", 0),
    MUST("norm_topk_prob", 1),
    MUST("mlp_bias", 0),
    { "final_logit_softcapping", KEY_REAL, AT(final_softcap), 30, NULL },
    NO_KEY,
};
/* clang-format on */

const arch_row arch_rows_mistral_large[] = {
    { "MistralLarge4ForConditionalGeneration", "mistral_large4",
      .w = { RMS_PAIRS, .mla = true, .mla_shared = true, .latent_eps = true, .norm_topk = true,
             .group_top2 = true },
      .prefix = "", .in_text = true, .names = large_names, .keys = large_keys,
      .layers = large_layers, .def_sizes = SIZES("204800", "6144", "24576", "72", "64"),
      .def_nope_every = 4, .def_eps = 1e-5, .def_max_pos = 1048576, .def_dense = 1, .def_shared = 1,
      .def_rope = "{\"rope_type\":\"yarn\",\"rope_theta\":10000,\"factor\":2048,"
                  "\"original_max_position_embeddings\":512,\"beta_fast\":32,\"beta_slow\":1,"
                  "\"attention_factor\":1}" },
    { .arch = NULL },
};
