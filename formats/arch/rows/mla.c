/* formats/arch/rows/mla.c - latent attention (arXiv:2405.04434): DeepSeek and relatives. */
#include "formats/arch/rows/rows.h"

#include <inttypes.h>

#include "base/json.h"

/* How the groups of experts are used. */
static lq_status topk_method(arch_config *c, const char *key, const cJSON *v, lq_err *err)
{
    const char *text = cJSON_IsString(v) ? v->valuestring : v ? "?" : "greedy";
    if (strcmp(text, "greedy") == 0)
        c->expert_groups = c->groups_used = 1;
    else if (strcmp(text, "group_limited_greedy") != 0)
        return lq_fail(err, LQ_EUNSUPPORTED,
                       "%s: expected greedy or group_limited_greedy, found \"%.40s\"", key, text);
    return LQ_OK;
}

/* All layers up to the index_skip_topk_offset-th, counted from 1, have an indexer, and after it each
 * index_topk_freq-th. */
static lq_status index_by_step(arch_config *c, const cJSON *j, lq_err *err)
{
    int64_t every = 1, first = 2;
    lq_status s = js_i64(j, "index_topk_freq", false, 0, INT32_MAX, &every, err);
    if (!s) s = js_i64(j, "index_skip_topk_offset", false, 0, INT32_MAX, &first, err);
    for (int64_t i = first; i < c->layers && !s && every > 1; i++)
        c->layer[i].index_shared = (i - first + 1) % every != 0;
    return s;
}

/* "FSSF": full and shared, a letter for each layer. */
static lq_status index_by_letter(arch_config *c, const cJSON *pattern, lq_err *err)
{
    const char *text = pattern->valuestring;
    int64_t i = 0;
    for (; i < c->layers && (text[i] == 'F' || text[i] == 'S'); i++)
        c->layer[i].index_shared = text[i] == 'S';
    if (i == c->layers && !text[i]) return LQ_OK;
    return lq_fail(err, LQ_EVALUE,
                   "%s: expected F or S for each of %" PRId64 " layers, found \"%.80s\"",
                   pattern->string, c->layers, text);
}

static lq_status index_by_name(arch_config *c, const cJSON *list, lq_err *err)
{
    int64_t i = 0;
    for (const cJSON *e = cJSON_IsArray(list) ? list->child : NULL; e; e = e->next, i++) {
        const char *word = cJSON_IsString(e) ? e->valuestring : "";
        const bool shared = strcmp(word, "shared") == 0;
        if (i == c->layers || (!shared && strcmp(word, "full") != 0)) break;
        c->layer[i].index_shared = shared;
    }
    if (i == c->layers && cJSON_GetArraySize(list) == i) return LQ_OK;
    return lq_fail(err, LQ_EVALUE, "%s: expected full or shared for each of %" PRId64 " layers",
                   list->string, c->layers);
}

lq_status arch_index_layers(arch_config *c, const cJSON *j, lq_err *err)
{
    const cJSON *names = js_get(j, "indexer_types"), *pattern = js_get(j, "index_topk_pattern");
    if (names) return index_by_name(c, names, err);
    if (cJSON_IsString(pattern)) return index_by_letter(c, pattern, err);
    return pattern ? index_by_name(c, pattern, err) : index_by_step(c, j, err);
}

lq_status arch_all_indexed(arch_config *c, const cJSON *j, lq_err *err)
{
    (void)c;
    const cJSON *kinds = js_get(j, "layer_types");
    for (const cJSON *e = kinds ? kinds->child : NULL; e; e = e->next)
        if (!cJSON_IsString(e) || strcmp(e->valuestring, "indexed_attention") != 0)
            return lq_fail(err, LQ_EUNSUPPORTED, "layer_types: expected indexed_attention");
    return LQ_OK;
}

/* The first two layers have an indexer, and after them each fourth. */
static lq_status hy_layers(arch_config *c, const cJSON *j, lq_err *err)
{
    const cJSON *names = js_get(j, "indexer_types");
    for (int64_t i = 1; i < c->layers; i++)
        c->layer[i].index_shared = (i - 1) % 4 != 0;
    const lq_status s = arch_all_indexed(c, j, err);
    return s || !names ? s : index_by_name(c, names, err);
}

/* Of routed experts; 0 or less: none. */
static lq_status expert_limit(arch_config *c, const char *key, const cJSON *v, lq_err *err)
{
    c->act_limit = 10;
    if (!v) return LQ_OK;
    if (!cJSON_IsNumber(v) || !(fabs(v->valuedouble) <= 1e9))
        return lq_fail(err, LQ_EVALUE, "%s: expected a number", key);
    c->act_limit = v->valuedouble > 0 ? v->valuedouble : 0;
    return LQ_OK;
}

/* A table of names reads by line. */
/* clang-format off */
#define MLA_LAYER \
    { R_Q, LAYER "self_attn.q_proj", 0, BIAS_NO }, \
    { R_Q_A, LAYER "self_attn.q_a_proj", 0, BIAS_ATTN }, \
    { R_Q_A_NORM, LAYER "self_attn.q_a_layernorm", 0, BIAS_NO }, \
    { R_Q_B, LAYER "self_attn.q_b_proj", 0, BIAS_NO }, \
    { R_KV_A, LAYER "self_attn.kv_a_proj_with_mqa", 0, BIAS_ATTN }, \
    { R_KV_A_NORM, LAYER "self_attn.kv_a_layernorm", 0, BIAS_NO }, \
    { R_KV_B, LAYER "self_attn.kv_b_proj", 0, BIAS_NO }, \
    { R_O, LAYER "self_attn.o_proj", 0, BIAS_ATTN }, \
    GATED(BIAS_NO)
#define MLA_NAMES \
    EMBED_NORM_HEAD(BIAS_NO), \
    PRE_NORMS(BIAS_NO), \
    MLA_LAYER
#define DEEPSEEK_NAMES \
    MLA_NAMES, \
    { R_ROUTER, LAYER "mlp.gate", 0, BIAS_NO }, \
    EXPERTS("mlp", "gate_proj", "up_proj", "down_proj"), \
    SHARED("mlp.shared_experts")
static const arch_name deepseek_v2_names[] = { DEEPSEEK_NAMES, END };
/* DeepSeek-OCR 2: its experts, and attention as Llama's. */
static const arch_name deepseek_ocr2_names[] = {
    LLAMA_NAMES(BIAS_ATTN, BIAS_ATTN, BIAS_NO),
    { R_ROUTER, LAYER "mlp.gate", 0, BIAS_NO },
    EXPERTS("mlp", "gate_proj", "up_proj", "down_proj"),
    SHARED("mlp.shared_experts"),
    END,
};
static const arch_name deepseek_v3_names[] = { DEEPSEEK_NAMES, CORRECTION, END };
#define INDEXER \
    { R_INDEX_Q, LAYER "self_attn.indexer.wq_b", 0, BIAS_NO }, \
    { R_INDEX_K, LAYER "self_attn.indexer.wk", 0, BIAS_NO }, \
    { R_INDEX_K_NORM, LAYER "self_attn.indexer.k_norm", 0, BIAS_YES }, \
    { R_INDEX_W, LAYER "self_attn.indexer.weights_proj", 0, BIAS_NO }
static const arch_name deepseek_v32_names[] = {
    DEEPSEEK_NAMES,
    CORRECTION,
    INDEXER,
    END,
};
/* Its published file has no correction, and a norm of the MLP's output in every layer, which those
 * without experts do not use. */
static const arch_name axk1_names[] = {
    DEEPSEEK_NAMES,
    { R_ROUTER_CORR, LAYER "mlp.gate.e_score_correction_bias", NAME_BARE | NAME_OPTIONAL, BIAS_NO },
    { R_MLP_POST_NORM, LAYER "post_mlp_layernorm", NAME_MOE, BIAS_NO },
    END,
};
/* Norms of layers with experts have gates, as all before attention. */
static const arch_name axk2_names[] = {
    EMBED_NORM_HEAD(BIAS_NO),
    { R_ATTN_NORM, LAYER "input_layernorm.norm", 0, BIAS_NO },
    { R_ATTN_NORM_DOWN, LAYER "input_layernorm.W_down", 0, BIAS_NO },
    { R_ATTN_NORM_UP, LAYER "input_layernorm.W_up", 0, BIAS_NO },
    { R_MLP_NORM, LAYER "post_attention_layernorm.norm", NAME_MOE, BIAS_NO },
    { R_MLP_NORM, LAYER "post_attention_layernorm", 0, BIAS_NO },
    { R_MLP_NORM_DOWN, LAYER "post_attention_layernorm.W_down", NAME_MOE, BIAS_NO },
    { R_MLP_NORM_UP, LAYER "post_attention_layernorm.W_up", NAME_MOE, BIAS_NO },
    MLA_LAYER,
    { R_ROUTER, LAYER "mlp.gate", 0, BIAS_NO },
    EXPERTS("mlp", "gate_proj", "up_proj", "down_proj"),
    SHARED("mlp.shared_experts"),
    CORRECTION,
    INDEXER,
    END,
};
/* Published files with the experts in one tensor. */
#define STACKED_NAMES \
    MLA_NAMES, \
    { R_ROUTER, LAYER "mlp.gate", 0, BIAS_NO }, \
    { R_EXPERT_GATE_UP, LAYER "mlp.experts.gate_up_proj", NAME_BARE | NAME_STACKED, BIAS_NO }, \
    { R_EXPERT_DOWN, LAYER "mlp.experts.down_proj", NAME_BARE | NAME_STACKED, BIAS_NO }, \
    SHARED("mlp.shared_experts")
static const arch_name mistral4_names[] = { STACKED_NAMES, END };
/* Its published files have ".hc_pre" in the names of hyper-connections besides (formats/source/source_fit.c). */
#define HY_HYPER(fn, base, scale, at) \
    { fn, at "_fn", NAME_BARE, BIAS_NO }, \
    { base, at "_base", NAME_BARE, BIAS_NO }, \
    { scale, at "_scale", NAME_BARE, BIAS_NO }
static const arch_name hy_v4_names[] = {
    STACKED_NAMES,
    CORRECTION,
    { R_ATTN_GATE, LAYER "self_attn.linear_gate", 0, BIAS_NO },
    { R_SINKS, LAYER "self_attn.learnable_sink_param", NAME_BARE, BIAS_NO },
    HY_HYPER(R_HYPER_END_FN, R_HYPER_END_BASE, R_HYPER_END_SCALE, "@hc_head.hc_head"),
    HY_HYPER(R_HYPER_ATTN_FN, R_HYPER_ATTN_BASE, R_HYPER_ATTN_SCALE, LAYER "hc_attn_layer.hc"),
    HY_HYPER(R_HYPER_MLP_FN, R_HYPER_MLP_BASE, R_HYPER_MLP_SCALE, LAYER "hc_mlp_layer.hc"),
    INDEXER,
    END,
};
static const arch_name plm_names[] = {
    EMBED_NORM_HEAD(BIAS_NO),
    PRE_NORMS(BIAS_NO),
    { R_Q, LAYER "self_attn.q_proj", 0, BIAS_NO },
    { R_KV_A, LAYER "self_attn.kv_a_proj_with_mqa", 0, BIAS_ATTN },
    { R_KV_A_NORM, LAYER "self_attn.kv_a_layernorm", 0, BIAS_NO },
    { R_KV_B, LAYER "self_attn.kv_b_proj", 0, BIAS_NO },
    { R_O, LAYER "self_attn.o_proj", 0, BIAS_ATTN },
    { R_UP, LAYER "mlp.up_proj", 0, BIAS_NO },
    { R_DOWN, LAYER "mlp.down_proj", 0, BIAS_NO },
    END,
};
static const arch_name youtu_names[] = { MLA_NAMES, END };
static const arch_name deepseek_mtp_names[] = {
    { R_FINAL_NORM, LAYER "shared_head.norm", 0, BIAS_NO },
    { R_MTP_EMBED_NORM, LAYER "enorm", 0, BIAS_NO },
    { R_MTP_HIDDEN_NORM, LAYER "hnorm", 0, BIAS_NO },
    { R_MTP_PROJ, LAYER "eh_proj", 0, BIAS_NO },
    END,
};
const arch_mtp arch_mtp_deepseek = { LAYER, .counted = true, .names = deepseek_mtp_names };
#define MLA_KEYS(q_lora_def, kv_lora_def, nope_def, v_def) \
    { "q_lora_rank", KEY_INT, AT(q_lora), q_lora_def, NULL }, \
    { "kv_lora_rank", KEY_INT, AT(kv_lora), kv_lora_def, NULL }, \
    { "qk_nope_head_dim", KEY_INT, AT(nope_dims), nope_def, NULL }, \
    { "qk_rope_head_dim", KEY_INT, AT(rope_dims), 64, NULL }, \
    { "v_head_dim", KEY_INT, AT(v_dim), v_def, NULL }, \
    { "qk_head_dim", KEY_KNOWN, 0, NONE, NULL }
static const arch_key deepseek_v2_keys[] = {
    MLA_KEYS(1536, 512, 128, 128),
    GROUP_KEYS(1, 1, 1),
    { "topk_method", KEY_FN, 0, NONE, topk_method },
    MUST("norm_topk_prob", 0),
    MUST("mlp_bias", 0),
    NO_KEY,
};
static const arch_key plm_keys[] = {
    MLA_KEYS(0, 512, 128, 128),
    MUST("mlp_bias", 0),
    NO_KEY,
};
static const arch_key deepseek_ocr2_keys[] = {
    EXPERT_COUNTS("n_routed_experts", 64, 6),
    EXPERT_FFN(1407),
    GROUP_KEYS(1, 1, 1),
    { "topk_method", KEY_FN, 0, NONE, topk_method },
    MUST("norm_topk_prob", 0),
    MUST("mlp_bias", 0),
    NO_KEY,
};
/* DeepSeek V3's and those of models that compute as it does. */
#define V3_KEYS(experts, used, ffn) \
    EXPERT_COUNTS("n_routed_experts", experts, used), \
    EXPERT_FFN(ffn), \
    NORM_TOPK(1), \
    { "topk_method", KEY_FN, 0, NONE, arch_key_noaux_tc }, \
    { "rope_interleave", KEY_NOT, AT(w.rope_half), 1, NULL }, \
    MUST("mlp_bias", 0)
static const arch_key deepseek_v3_keys[] = {
    MLA_KEYS(1536, 512, 128, 128), GROUP_KEYS(8, 4, 2.5), V3_KEYS(256, 8, 2048), NO_KEY,
};
#define INDEX_KEYS(heads, interleaved) \
    { "index_n_heads", KEY_INT, AT(index_heads), heads, NULL }, \
    { "index_head_dim", KEY_INT, AT(index_dim), 128, NULL }, \
    { "index_topk", KEY_INT, AT(index_topk), 2048, NULL }, \
    { "indexer_rope_interleave", KEY_NOT, AT(w.index_half), interleaved, NULL }
static const arch_key deepseek_v32_keys[] = {
    MLA_KEYS(1536, 512, 128, 128), GROUP_KEYS(8, 4, 2.5), V3_KEYS(256, 8, 2048), INDEX_KEYS(64, 0), NO_KEY,
};
static const arch_key glm_moe_dsa_keys[] = {
    MLA_KEYS(2048, 512, 192, 256), GROUP_KEYS(1, 1, 2.5), V3_KEYS(256, 8, 2048), INDEX_KEYS(32, 1),
    { "index_topk_freq", KEY_KNOWN, 0, NONE, NULL }, /* by arch_index_layers, as these: */
    { "index_skip_topk_offset", KEY_KNOWN, 0, NONE, NULL },
    { "index_topk_pattern", KEY_KNOWN, 0, NONE, NULL },
    NO_KEY,
};
static const arch_key hy_v4_keys[] = {
    MLA_KEYS(1536, 512, 192, 256), GROUP_KEYS(1, 1, 2.827),
    EXPERT_COUNTS("n_routed_experts", 256, 8),
    EXPERT_FFN(768),
    NORM_TOPK(1),
    MUST("mlp_bias", 0),
    MUST("attention_bias", 0),
    { "index_n_heads", KEY_INT, AT(index_heads), 16, NULL },
    { "index_head_dim", KEY_INT, AT(index_dim), 128, NULL },
    { "index_topk", KEY_INT, AT(index_topk), 2048, NULL },
    { "hc_mult", KEY_INT, AT(hyper), 4, NULL },
    { "hc_magnitude", KEY_REAL, AT(hyper_post), 2, NULL },
    { "hc_eps", KEY_REAL, AT(hyper_eps), 1e-6, NULL },
    { "swiglu_limit", KEY_FN, 0, NONE, expert_limit },
    { "hidden_act", KEY_FN, 0, NONE, arch_key_silu },
    { "learnable_sink_init", KEY_KNOWN, 0, NONE, NULL },
    NO_KEY,
};
static const arch_key glm4_moe_lite_keys[] = {
    MLA_KEYS(768, 512, 192, 256), GROUP_KEYS(1, 1, 1.8), V3_KEYS(64, 4, 1536), NO_KEY,
};
static const arch_key axk1_keys[] = {
    MLA_KEYS(1536, 512, 128, 128), GROUP_KEYS(8, 4, 2.5), V3_KEYS(192, 8, 2048), NO_KEY,
};
static const arch_key axk2_keys[] = {
    { "q_lora_rank", KEY_INT, AT(q_lora), 384, NULL },
    { "kv_lora_rank", KEY_INT, AT(kv_lora), 128, NULL },
    { "qk_nope_head_dim", KEY_INT, AT(nope_dims), 64, NULL },
    { "qk_rope_head_dim", KEY_INT, AT(rope_dims), 32, NULL },
    { "v_head_dim", KEY_INT, AT(v_dim), 64, NULL },
    { "qk_head_dim", KEY_KNOWN, 0, NONE, NULL },
    GROUP_KEYS(1, 1, 2.5),
    EXPERT_COUNTS("n_routed_experts", 128, 8),
    EXPERT_FFN(512),
    NORM_TOPK(1),
    { "topk_method", KEY_FN, 0, NONE, arch_key_noaux_tc },
    { "index_n_heads", KEY_INT, AT(index_heads), 16, NULL },
    { "index_head_dim", KEY_INT, AT(index_dim), 128, NULL },
    { "index_topk", KEY_INT, AT(index_topk), 2048, NULL },
    { "gated_norm_rank", KEY_INT, AT(norm_rank), 16, NULL },
    MUST("rope_interleave", 1),
    MUST("mlp_bias", 0),
    NO_KEY,
};
static const arch_key mistral4_keys[] = {
    MLA_KEYS(1024, 256, 64, 128), GROUP_KEYS(1, 1, 1), V3_KEYS(128, 4, 2048), Q_GROW_KEYS, NO_KEY,
};
static const arch_key youtu_keys[] = {
    MLA_KEYS(1536, 512, 128, 128),
    { "rope_interleave", KEY_NOT, AT(w.rope_half), 1, NULL },
    MUST("mlp_bias", 0),
    NO_KEY,
};
static lq_status minicpm3_v_dim(arch_config *c, const char *key, const cJSON *v, lq_err *err)
{
    c->v_dim = c->hidden / c->heads;
    if (!v || js_whole(v, 1, INT32_MAX, &c->v_dim)) return LQ_OK;
    return lq_fail(err, LQ_EVALUE, "%s: expected a positive integer", key);
}
static const arch_key minicpm3_keys[] = {
    { "q_lora_rank", KEY_INT, AT(q_lora), 768, NULL },
    { "kv_lora_rank", KEY_INT, AT(kv_lora), 256, NULL },
    { "qk_nope_head_dim", KEY_INT, AT(nope_dims), 64, NULL },
    { "qk_rope_head_dim", KEY_INT, AT(rope_dims), 32, NULL },
    { "v_head_dim", KEY_FN, 0, NONE, minicpm3_v_dim },
    { "qk_head_dim", KEY_KNOWN, 0, NONE, NULL }, /* the sum of two above */
    MINICPM_SCALES(12, 1.4, 256),
    NO_KEY,
};
/* clang-format on */

const arch_row arch_rows_mla[] = {
    { "DeepseekV2ForCausalLM", "deepseek_v2", .w = { RMS_PAIRS, .mla = true }, MODEL,
      .names = deepseek_v2_names, .keys = deepseek_v2_keys, .def_shared = 2 },
    { "PLMForCausalLM", "plm",
      .w = { .norm = NORM_RMS, .pos = POS_ROPE, .mlp = MLP_PLAIN, .mla = true }, MODEL,
      .names = plm_names, .keys = plm_keys, .def_act = ARCH_RELU2, .def_tied = true },
    { "DeepseekOcr2ForConditionalGeneration", "deepseek_ocr2", .w = { RMS_ROPE },
      .prefix = "model.language_model.", .in_text = true, .names = deepseek_ocr2_names,
      .keys = deepseek_ocr2_keys, .def_shared = 2 },
    { "DeepseekV3ForCausalLM", "deepseek_v3", .w = { RMS_PAIRS, .mla = true, SIGMOID_MOE }, MODEL,
      .names = deepseek_v3_names, .keys = deepseek_v3_keys, .mtp = &arch_mtp_deepseek,
      .def_max_pos = 4096, .def_dense = 3, .def_shared = 1 },
    { "DeepseekV32ForCausalLM", "deepseek_v32", .w = { RMS_PAIRS, .mla = true, SIGMOID_MOE }, MODEL,
      .names = deepseek_v32_names, .keys = deepseek_v32_keys, .mtp = &arch_mtp_deepseek,
      .def_max_pos = 163840, .def_dense = 3, .def_shared = 1 },
    { "GlmMoeDsaForCausalLM", "glm_moe_dsa", .w = { RMS_PAIRS, .mla = true, SIGMOID_MOE }, MODEL,
      .names = deepseek_v32_names, .keys = glm_moe_dsa_keys, .mtp = &arch_mtp_deepseek,
      .layers = arch_index_layers, .def_eps = 1e-5, .def_max_pos = 202752, .def_dense = 3,
      .def_shared = 1 },
    { "HYV4ForCausalLM", "hy_v4",
      .w = { RMS_ROPE, .mla = true, SIGMOID_MOE, .index_half = true, .index_last = true,
             .hyper_apart = true, .limit_experts = true },
      MODEL, .names = hy_v4_names, .keys = hy_v4_keys, .layers = hy_layers, .def_eps = 1e-5,
      .def_max_pos = 262144, .def_dense = 1, .def_shared = 1 },
    { "Glm4MoeLiteForCausalLM", "glm4_moe_lite", .w = { RMS_PAIRS, .mla = true, SIGMOID_MOE },
      MODEL, .names = deepseek_v3_names, .keys = glm4_moe_lite_keys, .mtp = &arch_mtp_deepseek,
      .def_eps = 1e-5, .def_max_pos = 202752, .def_dense = 1, .def_shared = 1 },
    { "AXK1ForCausalLM", "axk1", .w = { RMS_PAIRS, .mla = true, SIGMOID_MOE }, MODEL,
      .names = axk1_names, .keys = axk1_keys, .def_max_pos = 32768, .def_dense = 1,
      .def_shared = 1 },
    { "AXK2ForCausalLM", "axk2",
      .w = { RMS_PAIRS, .mla = true, SIGMOID_MOE, .index_half = true, .q_gated = true,
             .group_zero = true },
      MODEL, .names = axk2_names, .keys = axk2_keys, .layers = arch_all_indexed,
      .def_max_pos = 131072, .def_dense = 1, .def_shared = 1 },
    { "YoutuForCausalLM", "youtu", .w = { RMS_PAIRS, .mla = true }, MODEL, .names = youtu_names,
      .keys = youtu_keys, .def_max_pos = 131072, .def_tied = true },
    { "MiniCPM3ForCausalLM", "minicpm3", .w = { RMS_ROPE, .mla = true }, MODEL,
      .names = youtu_names, .keys = minicpm3_keys, .def_eps = 1e-5, .def_max_pos = 32768,
      .def_tied = true },
    { "Mistral4ForCausalLM", "mistral4",
      .w = { RMS_PAIRS, .mla = true, .norm_topk = true, .group_top2 = true }, MODEL,
      .names = mistral4_names, .keys = mistral4_keys, .def_max_pos = 1048576, .def_shared = 1,
      .def_rope = "{\"rope_type\":\"yarn\",\"rope_theta\":10000,\"factor\":128,"
                  "\"original_max_position_embeddings\":8192,\"beta_fast\":32,\"beta_slow\":1,"
                  "\"mscale\":1,\"mscale_all_dim\":1,\"llama_4_scaling_beta\":0.1}" },
    { .arch = NULL },
};
