/* formats/arch/rows/rows.h - pieces of the tables of names, keys and rows; see formats/arch/arch.h. A family of
 * architectures is a file here that ends with its rows, and a line in formats/arch/arch_rows.c. */
#ifndef LLMQ_FORMATS_ARCH_ROWS_ROWS_H
#define LLMQ_FORMATS_ARCH_ROWS_ROWS_H

#include "formats/arch/arch.h"

#include <stddef.h>

/* The families; each ends with arch NULL. */
extern const arch_row arch_rows_dense[];
extern const arch_row arch_rows_gemma[];
extern const arch_row arch_rows_moe[];
extern const arch_row arch_rows_mla[];
extern const arch_row arch_rows_gpt[];
extern const arch_row arch_rows_encoder[];
extern const arch_row arch_rows_hybrid[];
extern const arch_row arch_rows_kda[];
extern const arch_row arch_rows_ling[];
extern const arch_row arch_rows_compress[];
extern const arch_row arch_rows_step[];
extern const arch_row arch_rows_minimax[];
extern const arch_row arch_rows_minimax_m3[];
extern const arch_row arch_rows_beam[];
extern const arch_row arch_rows_mistral_large[];
extern const arch_row arch_rows_ettin[];
extern const arch_row arch_rows_griffin[];
extern const arch_row arch_rows_diffllama[];
extern const arch_row arch_rows_muse[];
extern const arch_row arch_rows_longcat[];
extern const arch_row arch_rows_zaya[];
extern const arch_row arch_rows_inkling[];
extern const arch_row arch_rows_zamba[];
extern const arch_row arch_rows_doge[];
extern const arch_row arch_rows_outside[];
extern const arch_row arch_rows_dots[];

/* Keys with a meaning of their own that several families have (KEY_FN). */
lq_status arch_key_scoring_func(arch_config *c, const char *key, const cJSON *v, lq_err *err);
lq_status arch_key_noaux_tc(arch_config *c, const char *key, const cJSON *v, lq_err *err);
/* LQ_EUNSUPPORTED: a model of labels, which are made of several positions or through further layers there. */
lq_status arch_key_no_labels(arch_config *c, const char *key, const cJSON *v, lq_err *err);
/* The activation of a mixer's convolution and gate, which is SiLU. */
lq_status arch_key_silu(arch_config *c, const char *key, const cJSON *v, lq_err *err);
/* The rank of what makes Mamba's time step; "auto": a sixteenth of hidden. */
lq_status arch_key_step_rank(arch_config *c, const char *key, const cJSON *v, lq_err *err);
/* LQ_EUNSUPPORTED: a key has another value than this, the only one known. */
lq_status arch_key_must(const char *key, const cJSON *v, const char *want, lq_err *err);
lq_status arch_key_head_qk_norm(arch_config *c, const char *key, const cJSON *v, lq_err *err);
/* "num_attention_heads_per_layer", and rotated dims of layers with a window (arch_row.layers). */
lq_status arch_heads_by_layer(arch_config *c, const cJSON *j, lq_err *err);
/* "layer_rope_theta": a base for each layer, at most two of them, or 0: no rotation (arch_row.layers). */
lq_status arch_layer_thetas(arch_config *c, const cJSON *j, lq_err *err);
lq_status arch_key_heads_qk_norm(arch_config *c, const char *key, const cJSON *v, lq_err *err);

/* layer_types' hybrid and hybrid_sliding, of layers that all mix alike, as full_attention and sliding_attention
 * (arch_row.respell). */
lq_status arch_hybrid_types(cJSON *j, lq_err *err);
/* Which layers have an indexer (arXiv:2603.12201): "indexer_types", "index_topk_pattern" or index_topk_freq. */
lq_status arch_index_layers(arch_config *c, const cJSON *j, lq_err *err);
/* LQ_EUNSUPPORTED: another word than indexed_attention in layer_types (arch_row.layers). */
lq_status arch_all_indexed(arch_config *c, const cJSON *j, lq_err *err);

/* The MTP head as DeepSeek names it, a layer behind the last. */
extern const arch_mtp arch_mtp_deepseek;

/* A table of names reads by line. */
/* clang-format off */
#define AT(field) offsetof(arch_config, field)
#define NONE ((double)NAN) /* no default: a missing key leaves the field alone */
#define END { ARCH_N_ROLES, NULL, 0, BIAS_NO }
#define NO_KEY { .key = NULL }
#define LAYER "@layers.%d."
/* Names of the Llama family; they differ in which linears have biases. */
#define EMBED_NORM_HEAD(norm_bias) \
    { R_EMBED, "@embed_tokens", 0, BIAS_NO }, \
    { R_FINAL_NORM, "@norm", 0, norm_bias }, \
    { R_HEAD, "^lm_head", 0, BIAS_NO }
#define SELF_ATTN(qkv_bias, o_bias) \
    { R_Q, LAYER "self_attn.q_proj", 0, qkv_bias }, \
    { R_K, LAYER "self_attn.k_proj", 0, qkv_bias }, \
    { R_V, LAYER "self_attn.v_proj", 0, qkv_bias }, \
    { R_O, LAYER "self_attn.o_proj", 0, o_bias }
#define QK_NORMS \
    { R_Q_NORM, LAYER "self_attn.q_norm", 0, BIAS_NO }, \
    { R_K_NORM, LAYER "self_attn.k_norm", 0, BIAS_NO }
#define PRE_NORMS(bias) \
    { R_ATTN_NORM, LAYER "input_layernorm", 0, bias }, \
    { R_MLP_NORM, LAYER "post_attention_layernorm", 0, bias }
#define GATED(bias) \
    { R_GATE, LAYER "mlp.gate_proj", 0, bias }, \
    { R_UP, LAYER "mlp.up_proj", 0, bias }, \
    { R_DOWN, LAYER "mlp.down_proj", 0, bias }
#define LLAMA_NAMES(qkv_bias, o_bias, mlp_bias) \
    EMBED_NORM_HEAD(BIAS_NO), \
    PRE_NORMS(BIAS_NO), \
    SELF_ATTN(qkv_bias, o_bias), \
    GATED(mlp_bias)
#define EXPERTS(at, gate, up, down) \
    { R_EXPERT_GATE, LAYER at ".experts.%e." gate, 0, BIAS_NO }, \
    { R_EXPERT_UP, LAYER at ".experts.%e." up, 0, BIAS_NO }, \
    { R_EXPERT_DOWN, LAYER at ".experts.%e." down, 0, BIAS_NO }
#define SHARED(at) \
    { R_SHARED_GATE, LAYER at ".gate_proj", 0, BIAS_NO }, \
    { R_SHARED_UP, LAYER at ".up_proj", 0, BIAS_NO }, \
    { R_SHARED_DOWN, LAYER at ".down_proj", 0, BIAS_NO }
#define CORRECTION { R_ROUTER_CORR, LAYER "mlp.gate.e_score_correction_bias", NAME_BARE, BIAS_NO }
#define Q_GROW_KEYS \
    { "rope_parameters.llama_4_scaling_beta", KEY_REAL, AT(q_grow), NONE, NULL }, \
    { "rope_parameters.original_max_position_embeddings", KEY_INT, AT(q_grow_every), NONE, NULL }, \
    { "rope_parameters.max_position_embeddings", KEY_KNOWN, 0, NONE, NULL }, \
    { "rope_scaling.llama_4_scaling_beta", KEY_REAL, AT(q_grow), NONE, NULL }, \
    { "rope_scaling.original_max_position_embeddings", KEY_INT, AT(q_grow_every), NONE, NULL }
#define BIASES(key, def) \
    { key, KEY_FLAG, AT(attn_bias), def, NULL }, \
    { key, KEY_FLAG, AT(mlp_bias), def, NULL }
#define MUST(key, value) { key, KEY_MUST, 0, value, NULL }
#define GRANITE_KEYS \
    { "embedding_multiplier", KEY_REAL, AT(embed_scale), 1, NULL }, \
    { "residual_multiplier", KEY_REAL, AT(residual_scale), 1, NULL }, \
    { "attention_multiplier", KEY_REAL, AT(attn_scale), 1, NULL }, \
    { "logits_scaling", KEY_INVERSE, AT(logit_scale), 1, NULL }
/* Residuals are scaled by depth / sqrt(layers), logits by base / hidden; null: by 1. */
#define MINICPM_SCALES(emb, depth, base) \
    { "scale_emb", KEY_REAL, AT(embed_scale), emb, NULL }, \
    { "scale_depth", KEY_BY_DEPTH, AT(residual_scale), depth, NULL }, \
    { "dim_model_base", KEY_BY_WIDTH, AT(logit_scale), base, NULL }
#define NORM_TOPK(def) { "norm_topk_prob", KEY_BOOL, AT(w.norm_topk), def, NULL }
#define EXPERT_COUNTS(key, n, used) \
    { key, KEY_INT, AT(experts), n, NULL }, \
    { "num_experts_per_tok", KEY_INT, AT(experts_used), used, NULL }
#define EXPERT_FFN(def) { "moe_intermediate_size", KEY_INT, AT(expert_ffn), def, NULL }
#define GROUP_KEYS(n, used, scale) \
    { "routed_scaling_factor", KEY_REAL, AT(expert_scale), scale, NULL }, \
    { "n_group", KEY_INT, AT(expert_groups), n, NULL }, \
    { "topk_group", KEY_INT, AT(groups_used), used, NULL }, \
    { "scoring_func", KEY_FN, 0, NONE, arch_key_scoring_func }
#define RMS_ROPE .norm = NORM_RMS, .pos = POS_ROPE, .rope_half = true, .mlp = MLP_GATED
#define RMS_PAIRS .norm = NORM_RMS, .pos = POS_ROPE, .mlp = MLP_GATED
#define SIGMOID_MOE .router = ROUTER_SIGMOID, .norm_topk = true, .group_top2 = true
#define LN_ROPE .norm = NORM_LAYER, .pos = POS_ROPE, .rope_half = true
#define SIZES(vocab, hidden, ffn, layers, heads) \
    "{\"vocab_size\":" vocab ",\"hidden_size\":" hidden ",\"intermediate_size\":" ffn \
    ",\"num_hidden_layers\":" layers ",\"num_attention_heads\":" heads "}"
#define MODEL .prefix = "model."
#define GELU .def_act = ARCH_GELU
#define GELU_TANH .def_act = ARCH_GELU_TANH
/* clang-format on */

#endif
