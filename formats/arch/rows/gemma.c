/* formats/arch/rows/gemma.c - the Gemma family. */
#include "formats/arch/rows/rows.h"

/* A table of names reads by line. */
/* clang-format off */
static const arch_name gemma_names[] = { LLAMA_NAMES(BIAS_ATTN, BIAS_ATTN, BIAS_MLP), END };
/* Norms before and after attention and MLP. */
#define SANDWICH \
    { R_ATTN_NORM, LAYER "input_layernorm", 0, BIAS_NO }, \
    { R_ATTN_POST_NORM, LAYER "post_attention_layernorm", 0, BIAS_NO }, \
    { R_MLP_NORM, LAYER "pre_feedforward_layernorm", 0, BIAS_NO }, \
    { R_MLP_POST_NORM, LAYER "post_feedforward_layernorm", 0, BIAS_NO }
static const arch_name gemma2_names[] = {
    EMBED_NORM_HEAD(BIAS_NO), SANDWICH, SELF_ATTN(BIAS_ATTN, BIAS_ATTN), GATED(BIAS_NO), END,
};
static const arch_name gemma3_names[] = {
    EMBED_NORM_HEAD(BIAS_NO), SANDWICH, SELF_ATTN(BIAS_ATTN, BIAS_ATTN), QK_NORMS,
    GATED(BIAS_NO),           END,
};
static const arch_name vaultgemma_names[] = {
    EMBED_NORM_HEAD(BIAS_NO),
    { R_ATTN_NORM, LAYER "input_layernorm", 0, BIAS_NO },
    { R_MLP_NORM, LAYER "pre_feedforward_layernorm", 0, BIAS_NO },
    SELF_ATTN(BIAS_ATTN, BIAS_ATTN),
    GATED(BIAS_NO),
    END,
};
static const arch_key gemma2_keys[] = {
    { "query_pre_attn_scalar", KEY_RSQRT, AT(attn_scale), 256, NULL },
    { "attn_logit_softcapping", KEY_REAL, AT(attn_softcap), 50, NULL },
    { "final_logit_softcapping", KEY_REAL, AT(final_softcap), 30, NULL },
    NO_KEY,
};
static const arch_key gemma3_keys[] = {
    { "query_pre_attn_scalar", KEY_RSQRT, AT(attn_scale), 256, NULL },
    { "attn_logit_softcapping", KEY_REAL, AT(attn_softcap), 0, NULL },
    { "final_logit_softcapping", KEY_REAL, AT(final_softcap), 0, NULL },
    NO_KEY,
};
/* clang-format on */

const arch_row arch_rows_gemma[] = {
    { "GemmaForCausalLM", "gemma", .w = { RMS_ROPE, .norm_offset = 1 }, MODEL, .names = gemma_names,
      .embed_sqrt = true, GELU_TANH, .def_kv_heads = 16, .def_head_dim = 256, .def_max_pos = 8192,
      .def_tied = true },
    { "Gemma2ForCausalLM", "gemma2", .w = { RMS_ROPE, .norm_offset = 1 }, MODEL,
      .names = gemma2_names, .keys = gemma2_keys, .embed_sqrt = true, GELU_TANH,
      .window = WINDOW_PATTERN, .def_pattern = 2, .def_window = 4096, .def_kv_heads = 4,
      .def_head_dim = 256, .def_max_pos = 8192, .def_tied = true },
    { "Gemma3ForCausalLM", "gemma3_text",
      .w = { RMS_ROPE, .norm_offset = 1, .qk_norm = QK_NORM_HEAD }, MODEL, .names = gemma3_names,
      .keys = gemma3_keys, .embed_sqrt = true, GELU_TANH, .window = WINDOW_PATTERN,
      .def_pattern = 6, .def_window = 4096, .def_kv_heads = 4, .def_head_dim = 256,
      .def_max_pos = 131072, .def_theta = 1e6, .def_local_theta = 1e4, .def_tied = true },
    { "VaultGemmaForCausalLM", "vaultgemma", .w = { RMS_ROPE, .norm_offset = 1 }, MODEL,
      .names = vaultgemma_names, .keys = gemma2_keys, .embed_sqrt = true, GELU_TANH,
      .window = WINDOW_PATTERN, .def_pattern = 2, .def_window = 4096, .def_kv_heads = 4,
      .def_head_dim = 256, .def_max_pos = 8192, .def_tied = true },
    { .arch = NULL },
};
