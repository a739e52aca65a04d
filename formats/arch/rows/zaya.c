/* formats/arch/rows/zaya.c - ZAYA: compressed convolutional attention, a router of several layers that hands on what it
 * reads and may choose no expert, branches that join with factors of each dimension. */
#include "formats/arch/arch_impl.h"
#include "formats/arch/rows/rows.h"

#include "base/json.h"

#include <inttypes.h>

static const char *const words[][2] = { { "hybrid", "full_attention" },
                                        { "hybrid_sliding", "sliding_attention" } };

/* layer_types and rope_parameters in the words that others have; rope_parameters may have a rope_type beside the kinds. */
static lq_status zaya_words(cJSON *j, lq_err *err)
{
    cJSON *rope = cJSON_GetObjectItemCaseSensitive(j, "rope_parameters");
    for (size_t i = 0; i < LQ_COUNT(words) && cJSON_IsObject(rope); i++) {
        cJSON *kind = cJSON_DetachItemFromObjectCaseSensitive(rope, words[i][0]);
        cJSON_DeleteItemFromObjectCaseSensitive(rope, "rope_type");
        if (kind) cJSON_AddItemToObject(rope, words[i][1], kind);
    }
    return arch_hybrid_types(j, err);
}

static lq_status zaya_layers(arch_config *c, const cJSON *j, lq_err *err)
{
    const cJSON *types = js_get(j, "layer_types");
    int64_t i = 0;
    for (const cJSON *e = types ? types->child : NULL; e; e = e->next, i++)
        if (strcmp(e->valuestring, words[1][1]) == 0 && !c->layer[i].window)
            return lq_fail(err, LQ_EVALUE, "sliding_window: expected a number of positions");
    for (i = 0; i < c->layers; i++) {
        c->layer[i].mixer = MIX_CCA;
        c->layer[i].window = types && c->layer[i].window;
        if (!types) c->layer[i].rope = ROPE_MAIN;
    }
    return LQ_OK;
}

/* A table of names reads by line. */
/* clang-format off */
#define JOIN(role, at) \
    { role, LAYER at ".hidden_states_scale", NAME_BARE, BIAS_NO }, \
    { role##_Y_ADD, LAYER at ".hidden_states_bias", NAME_BARE, BIAS_NO }, \
    { role##_X_BY, LAYER at ".residual_scale", NAME_BARE, BIAS_NO }, \
    { role##_X_ADD, LAYER at ".residual_bias", NAME_BARE, BIAS_NO }
#define ONES NAME_OPTIONAL | NAME_ONES
static const arch_name zaya_names[] = {
    EMBED_NORM_HEAD(BIAS_NO),
    { R_EMBED_BY, "@input_hidden_states_scale", NAME_BARE, BIAS_NO },
    { R_EMBED_ADD, "@input_hidden_states_bias", NAME_BARE, BIAS_NO },
    PRE_NORMS(BIAS_NO),
    { R_Q, LAYER "self_attn.qkv_proj.q_proj", 0, BIAS_NO },
    { R_K, LAYER "self_attn.qkv_proj.k_proj", 0, BIAS_NO },
    { R_V, LAYER "self_attn.qkv_proj.v_proj_current", 0, BIAS_NO },
    { R_V_LATE, LAYER "self_attn.qkv_proj.v_proj_delayed", 0, BIAS_NO },
    { R_CCA_CONV, LAYER "self_attn.qkv_proj.conv_qk_depthwise", NAME_TAPS, BIAS_YES },
    { R_CCA_HEADS, LAYER "self_attn.qkv_proj.conv_qk_grouped", NAME_HEAD_TAPS, BIAS_YES },
    { R_Q_NORM, LAYER "self_attn.q_norm", ONES, BIAS_NO },
    { R_K_NORM, LAYER "self_attn.k_norm", ONES, BIAS_NO },
    { R_K_SCALE, LAYER "self_attn.qk_norm.temp", NAME_BARE, BIAS_NO },
    { R_O, LAYER "self_attn.o_proj", 0, BIAS_NO },
    JOIN(R_ATTN_JOIN, "post_attention_residual_scale"),
    { R_ROUTER_IN, LAYER "mlp.gate.down_proj", 0, BIAS_YES },
    { R_ROUTER_CARRY, LAYER "mlp.gate.router_states_scale", NAME_BARE, BIAS_NO },
    { R_ROUTER_IN_NORM, LAYER "mlp.gate.router_mlp.norm", 0, BIAS_NO },
    { R_ROUTER_1, LAYER "mlp.gate.router_mlp.fc1", 0, BIAS_YES },
    { R_ROUTER_2, LAYER "mlp.gate.router_mlp.fc2", 0, BIAS_YES },
    { R_ROUTER, LAYER "mlp.gate.router_mlp.out_proj", 0, BIAS_NO },
    { R_ROUTER_CORR, LAYER "mlp.gate.balancing_biases", NAME_BARE, BIAS_NO },
    { R_EXPERT_GATE_UP, LAYER "mlp.experts.gate_up_proj", NAME_BARE | NAME_STACKED, BIAS_NO },
    { R_EXPERT_DOWN, LAYER "mlp.experts.down_proj", NAME_BARE | NAME_STACKED, BIAS_NO },
    JOIN(R_MLP_JOIN, "post_mlp_residual_scale"),
    END,
};
static const arch_key zaya_keys[] = {
    { "num_experts", KEY_INT, AT(experts), 16, NULL },
    { "num_experts_per_tok", KEY_INT, AT(experts_used), 1, NULL },
    EXPERT_FFN(2048),
    { "router_hidden_size", KEY_INT, AT(route), 256, NULL },
    { "cca_time0", KEY_INT, AT(conv_taps), 2, NULL },
    { "cca_time1", KEY_INT, AT(head_taps), 2, NULL },
    MUST("attention_bias", 0),
    MUST("lm_head_bias", 0),
    NO_KEY,
};
/* clang-format on */

const arch_row arch_rows_zaya[] = {
    { "ZayaForCausalLM", "zaya", .def_partial = 1,
      .w = { RMS_ROPE, .qk_norm = QK_NORM_HEAD, .qk_unit = true, .skips = true }, MODEL,
      .names = zaya_names, .keys = zaya_keys, .layers = zaya_layers, .respell = zaya_words,
      .mixer = MIX_CCA, .window = WINDOW_ALL, .def_kv_heads = 2, .def_head_dim = 128, .def_ffn = 1,
      .def_eps = 1e-5, .def_max_pos = 131072, .def_tied = true,
      .def_rope = "{\"full_attention\":{\"rope_type\":\"default\",\"rope_theta\":5000000,"
                  "\"partial_rotary_factor\":0.5},\"sliding_attention\":{\"rope_type\":\"default\","
                  "\"rope_theta\":10000,\"partial_rotary_factor\":0.5}}" },
    { .arch = NULL },
};
