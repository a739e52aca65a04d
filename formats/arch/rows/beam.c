/* formats/arch/rows/beam.c - Beam: experts, windows with a rotation and layers without either, whose queries grow
 * with the position; a residual that is divided by how many branches it has had. */
#include "formats/arch/rows/rows.h"

#include "base/json.h"

/* Without a list the last layer has no window. */
static lq_status beam_layers(arch_config *c, const cJSON *j, lq_err *err)
{
    static const char window[] = "sliding_window", full[] = "full_attention";
    if (cJSON_IsNull(cJSON_GetObjectItemCaseSensitive(j, window)))
        return lq_fail(err, LQ_EUNSUPPORTED, "%s: expected a number, found null", window);
    if (js_get(js_get(j, "rope_parameters"), full))
        return lq_fail(err, LQ_EUNSUPPORTED, "rope_parameters: %s: expected null: no rotation",
                       full);
    if (!js_get(j, "layer_types")) {
        c->layer[c->layers - 1].window = false;
        c->layer[c->layers - 1].rope = ROPE_OFF;
    }
    c->q_grow = 0.1;
    c->q_grow_every = 2048;
    return LQ_OK;
}

/* A table of names reads by line. */
/* clang-format off */
static const arch_name beam_names[] = {
    EMBED_NORM_HEAD(BIAS_NO),
    { R_ATTN_NORM, LAYER "input_layernorm", 0, BIAS_NO },
    { R_ATTN_POST_NORM, LAYER "post_attention_layernorm", 0, BIAS_NO },
    { R_MLP_NORM, LAYER "pre_feedforward_layernorm", 0, BIAS_NO },
    { R_MLP_POST_NORM, LAYER "post_feedforward_layernorm", 0, BIAS_NO },
    SELF_ATTN(BIAS_ATTN, BIAS_ATTN),
    QK_NORMS,
    { R_ATTN_GATE, LAYER "self_attn.gate_proj", 0, BIAS_NO },
    { R_GATE_BIAS, LAYER "self_attn.gate_bias", NAME_BARE, BIAS_NO },
    GATED(BIAS_NO),
    { R_ROUTER, LAYER "mlp.gate", 0, BIAS_NO },
    CORRECTION,
    EXPERTS("mlp", "gate_proj", "up_proj", "down_proj"),
    END,
};
static const arch_key beam_keys[] = {
    GROUP_KEYS(8, 4, 2.5),
    EXPERT_COUNTS("num_experts", 256, 8),
    EXPERT_FFN(2560),
    NORM_TOPK(1),
    { "final_logit_softcapping", KEY_REAL, AT(final_softcap), 30, NULL },
    MUST("mlp_bias", 0),
    NO_KEY,
};
/* clang-format on */

const arch_row arch_rows_beam[] = {
    { "BeamForCausalLM", "beam",
      .w = { RMS_ROPE, .qk_norm = QK_NORM_HEAD, SIGMOID_MOE, .q_grow_nope = true,
             .q_grow_power = true, .depth_norms = true },
      MODEL, .names = beam_names, .keys = beam_keys, .layers = beam_layers,
      .window = WINDOW_PATTERN, .def_pattern = 6, .def_window = 512, .def_kv_heads = 8,
      .def_head_dim = 128, .def_max_pos = 8192, .def_dense = 3,
      .def_rope = "{\"sliding_attention\":{\"rope_type\":\"default\",\"rope_theta\":10000},"
                  "\"full_attention\":null}" },
    { .arch = NULL },
};
