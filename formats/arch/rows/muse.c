/* formats/arch/rows/muse.c - Muse Glimmer and Muse Spark: norms without weights, gated attention; Spark with experts that
 * read something narrower, and branches that join by gates of each dimension. */
#include "formats/arch/arch_impl.h"
#include "formats/arch/rows/rows.h"

#include "base/json.h"

#include <inttypes.h>

/* Multiplies q after its norm. */
static lq_status scale_q(arch_config *c, const char *key, const cJSON *v, double f, lq_err *err)
{
    if (v) f = cJSON_IsNumber(v) ? v->valuedouble : 0;
    if (!(f > 0 && f <= 1e6)) return lq_fail(err, LQ_EVALUE, "%s: expected a number above 0", key);
    c->attn_scale *= f;
    return LQ_OK;
}
static lq_status glimmer_scale(arch_config *c, const char *key, const cJSON *v, lq_err *err)
{
    return scale_q(c, key, v, 3.87, err);
}
static lq_status spark_scale(arch_config *c, const char *key, const cJSON *v, lq_err *err)
{
    return scale_q(c, key, v, 5.4730064863875, err);
}

/* What a gate is divided by. */
static lq_status gate_heat(arch_config *c, const char *key, const cJSON *v, lq_err *err)
{
    c->join_heat = 0.3;
    if (v) c->join_heat = cJSON_IsNumber(v) ? v->valuedouble : 0;
    if (c->join_heat >= 1e-6 && c->join_heat <= 1e6) return LQ_OK;
    return lq_fail(err, LQ_EVALUE, "%s: expected a number 1e-6..1e6", key);
}

/* Where no list says so, every fourth layer, counted from the last, sees all and does not rotate. */
static lq_status muse_layers(arch_config *c, const cJSON *j, lq_err *err)
{
    for (int64_t i = 0; i < c->layers; i++) {
        const bool full = (c->layers - 1 - i) % 4 == 0;
        if (!js_get(j, "layer_types")) c->layer[i].window = c->window && !full;
        c->layer[i].rope = full ? ROPE_OFF : ROPE_MAIN;
    }
    return arch_layer_thetas(c, j, err);
}

/* Of a layer's base only counts whether it is 0. */
static lq_status spark_layers(arch_config *c, const cJSON *j, lq_err *err)
{
    const double theta = c->rope[ROPE_MAIN].theta;
    const lq_status s = muse_layers(c, j, err);
    for (int64_t i = 0; i < c->layers && !s; i++) {
        const double own = c->layer[i].rope == ROPE_OFF ? theta : c->rope[c->layer[i].rope].theta;
        if (own < theta || own > theta)
            return lq_fail(err, LQ_EUNSUPPORTED,
                           "layer_rope_theta: layer %" PRId64
                           ": expected 0 or rope_theta, %g, found %g",
                           i, theta, own);
    }
    return s;
}

/* A table of names reads by line. */
/* clang-format off */
#define NO_WEIGHTS NAME_OPTIONAL | NAME_ONES | NAME_WHOLE
#define WHOLE_HEAD \
    { R_EMBED, "@embed_tokens", 0, BIAS_NO }, \
    { R_EMBED_NORM, "@embed_norm", NO_WEIGHTS, BIAS_NO }, \
    { R_FINAL_NORM, "@norm", NAME_WHOLE, BIAS_NO }, \
    { R_HEAD, "^lm_head", 0, BIAS_NO }
#define GATED_ATTN \
    SELF_ATTN(BIAS_ATTN, BIAS_ATTN), \
    { R_Q_NORM, LAYER "self_attn.q_norm", NO_WEIGHTS, BIAS_NO }, \
    { R_K_NORM, LAYER "self_attn.k_norm", NO_WEIGHTS, BIAS_NO }, \
    { R_ATTN_GATE, LAYER "self_attn.gate_proj", 0, BIAS_NO }
static const arch_name glimmer_names[] = {
    WHOLE_HEAD,
    { R_ATTN_NORM, LAYER "input_layernorm", 0, BIAS_NO },
    { R_ATTN_POST_NORM, LAYER "post_attention_layernorm", 0, BIAS_NO },
    { R_MLP_NORM, LAYER "pre_feedforward_layernorm", 0, BIAS_NO },
    { R_MLP_POST_NORM, LAYER "post_feedforward_layernorm", 0, BIAS_NO },
    GATED_ATTN,
    GATED(BIAS_NO),
    END,
};
static const arch_name spark_names[] = {
    WHOLE_HEAD,
    { R_ATTN_NORM, LAYER "input_layernorm", 0, BIAS_NO },
    { R_ATTN_POST_NORM, LAYER "post_attention_layernorm", NO_WEIGHTS, BIAS_NO },
    { R_ATTN_JOIN, LAYER "post_attention_residual_gate.gate", NAME_BARE, BIAS_NO },
    { R_MLP_NORM, LAYER "pre_feedforward_layernorm", 0, BIAS_NO },
    { R_MLP_POST_NORM, LAYER "post_feedforward_layernorm", NAME_BEFORE, BIAS_NO },
    { R_MLP_JOIN, LAYER "post_feedforward_residual_gate.gate", NAME_BARE, BIAS_NO },
    GATED_ATTN,
    { R_O_NORM, LAYER "self_attn.o_norm", NO_WEIGHTS, BIAS_NO },
    GATED(BIAS_NO),
    { R_ROUTER, LAYER "mlp.gate", 0, BIAS_NO },
    CORRECTION,
    { R_LATENT_IN, LAYER "mlp.pre_expert_proj", 0, BIAS_NO },
    { R_LATENT_NORM, LAYER "mlp.pre_expert_norm", 0, BIAS_NO },
    { R_LATENT_OUT, LAYER "mlp.post_expert_proj", 0, BIAS_NO },
    { R_EXPERT_GATE_UP, LAYER "mlp.experts.gate_up_proj", NAME_BARE | NAME_STACKED, BIAS_NO },
    { R_EXPERT_DOWN, LAYER "mlp.experts.down_proj", NAME_BARE | NAME_STACKED, BIAS_NO },
    { R_EXPERT_OUT_NORM, LAYER "mlp.experts.post_expert_norm", NAME_BEFORE, BIAS_NO },
    END,
};
#define MUSE_KEYS \
    { "final_logit_softcapping", KEY_REAL, AT(final_softcap), 20, NULL }, \
    { "post_norm_eps", KEY_REAL, AT(post_eps), 1e-8, NULL }, \
    { "layer_rope_theta", KEY_KNOWN, 0, NONE, NULL } /* muse_layers */
static const arch_key glimmer_keys[] = {
    MUSE_KEYS,
    { "qk_scale_factor", KEY_FN, 0, NONE, glimmer_scale },
    { "output_multiplier", KEY_REAL, AT(logit_scale), 0.19611613513818404, NULL },
    NO_KEY,
};
static const arch_key spark_keys[] = {
    MUSE_KEYS,
    { "qk_scale_factor", KEY_FN, 0, NONE, spark_scale },
    { "output_multiplier", KEY_REAL, AT(logit_scale), 0.1767766952966369, NULL },
    { "output_multiplier", KEY_REAL, AT(router_scale), 0.1767766952966369, NULL },
    { "residual_gate_temperature", KEY_FN, 0, NONE, gate_heat },
    EXPERT_COUNTS("num_local_experts", 256, 8),
    EXPERT_FFN(4096),
    { "moe_hidden_size", KEY_INT, AT(latent), 4096, NULL },
    { "routed_scaling_factor", KEY_REAL, AT(expert_scale), 1, NULL },
    NO_KEY,
};
/* clang-format on */

const arch_row arch_rows_muse[] = {
    { "MuseGlimmerForConditionalGeneration", "muse_glimmer",
      .w = { RMS_ROPE, .norm_offset = 1, .qk_norm = QK_NORM_HEAD },
      .prefix = "model.language_model.", .in_text = true, .names = glimmer_names,
      .keys = glimmer_keys, .layers = muse_layers, .window = WINDOW_PATTERN, .def_window = 2048,
      .def_kv_heads = 2, .def_head_dim = 128, .def_eps = 1e-5, .def_max_pos = 131072 },
    { "MuseSparkForConditionalGeneration", "muse_spark",
      .w = { RMS_ROPE, .norm_offset = 1, .qk_norm = QK_NORM_HEAD, .o_norm_heads = true,
             .router = ROUTER_SIGMOID, .norm_topk = true, .topk_eps = 1e-15f },
      .prefix = "model.language_model.", .in_text = true, .names = spark_names, .keys = spark_keys,
      .layers = spark_layers, .window = WINDOW_PATTERN, .def_window = 2048, .def_kv_heads = 16,
      .def_head_dim = 64, .def_eps = 1e-5, .def_theta = 500000, .def_max_pos = 1048576,
      .def_sizes = SIZES("202048", "8192", "16384", "62", "128") },
    { .arch = NULL },
};
