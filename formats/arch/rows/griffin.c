/* formats/arch/rows/griffin.c - RecurrentGemma: real-gated linear recurrent units (arXiv:2402.19427) between layers that
 * attend in a window. */
#include "formats/arch/rows/rows.h"

#include "base/json.h"

#include <inttypes.h>

/* The channels of a unit; null: as wide as x. */
static lq_status lru_width(arch_config *c, const char *key, const cJSON *v, lq_err *err)
{
    char found[64];
    c->mix_value = c->hidden;
    if (v && !js_whole(v, 1, 1 << 20, &c->mix_value))
        return lq_fail(err, LQ_EVALUE, "%s: expected an integer 1..1048576, found %s", key,
                       js_describe(found, v));
    if (c->mix_value % c->heads == 0) return LQ_OK;
    return lq_fail(err, LQ_EVALUE, "%s: expected a multiple of %" PRId64 " heads, found %" PRId64,
                   key, c->heads, c->mix_value);
}

static lq_status soft_cap(arch_config *c, const char *key, const cJSON *v, lq_err *err)
{
    char found[64];
    if (v && cJSON_IsNumber(v) && v->valuedouble > 0 && v->valuedouble <= 1e9) {
        c->final_softcap = v->valuedouble;
        return LQ_OK;
    }
    c->final_softcap = 30;
    return v ? lq_fail(err, LQ_EVALUE, "%s: expected a number above 0, found %s", key,
                       js_describe(found, v))
             : LQ_OK;
}

/* What is said is of gate and up together. */
static lq_status half_ffn(arch_config *c, const char *key, const cJSON *v, lq_err *err)
{
    (void)v;
    c->ffn /= 2;
    return c->ffn > 0 ? LQ_OK : lq_fail(err, LQ_EVALUE, "%s: expected 2 or more, found 1", key);
}

static lq_status block_types(arch_config *c, const cJSON *j, const char *key, lq_err *err)
{
    const cJSON *list = js_get(j, key);
    const int n = cJSON_IsArray(list) ? cJSON_GetArraySize(list) : 0;
    if (list && n < 1) return lq_fail(err, LQ_EVALUE, "%s: expected an array of strings", key);
    for (int64_t i = 0; list && i < c->layers; i++) {
        const char *text = cJSON_GetStringValue(cJSON_GetArrayItem(list, (int)(i % n)));
        const bool attends = text && strcmp(text, "attention") == 0;
        if (!attends && (!text || strcmp(text, "recurrent") != 0))
            return lq_fail(err, LQ_EUNSUPPORTED, "%s: expected recurrent or attention, found %.40s",
                           key, text ? text : "no string");
        c->layer[i].mixer = (uint8_t)(attends ? MIX_ATTENTION : MIX_LRU);
    }
    return LQ_OK;
}

/* Of three layers the last attends, where no list says it; the scale of embeddings has eight bits. */
static lq_status griffin_layers(arch_config *c, const cJSON *j, lq_err *err)
{
    float scale = (float)sqrt((double)c->hidden);
    uint32_t bits;
    if (c->rope[ROPE_MAIN].kind != ROPE_PLAIN)
        return lq_fail(err, LQ_EUNSUPPORTED, "rope_type: expected default in a %s, found a scaling",
                       c->row->arch);
    if (c->window < 1)
        return lq_fail(err, LQ_EVALUE, "attention_window_size: expected 1 or more, found 0");
    if (js_get(j, "layer_types") || js_get(j, "layers_block_type"))
        return lq_fail(err, LQ_EUNSUPPORTED, "layer_types: expected none beside block_types");
    for (int64_t i = 0; i < c->layers; i++)
        c->layer[i].mixer = (uint8_t)(i % 3 == 2 ? MIX_ATTENTION : MIX_LRU);
    lq_status s = block_types(c, j, "_block_types", err);
    if (!s) s = block_types(c, j, "block_types", err);
    for (int64_t i = 0; i < c->layers; i++)
        c->layer[i].window = c->layer[i].mixer == MIX_ATTENTION;
    memcpy(&bits, &scale, sizeof bits);
    bits = (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000u;
    memcpy(&scale, &bits, sizeof scale);
    c->embed_scale = (double)scale;
    return s;
}

/* A table of names reads by line. */
/* clang-format off */
#define BLOCK LAYER "temporal_block."
#define UNIT BLOCK "rg_lru."
static const arch_name recurrent_gemma_names[] = {
    { R_EMBED, "@embed_tokens", 0, BIAS_NO },
    { R_FINAL_NORM, "@final_norm", 0, BIAS_NO },
    { R_HEAD, "^lm_head", 0, BIAS_NO },
    { R_ATTN_NORM, LAYER "temporal_pre_norm", 0, BIAS_NO },
    { R_MLP_NORM, LAYER "channel_pre_norm", 0, BIAS_NO },
    { R_Q, BLOCK "q_proj", 0, BIAS_ATTN },
    { R_K, BLOCK "k_proj", 0, BIAS_ATTN },
    { R_V, BLOCK "v_proj", 0, BIAS_ATTN },
    { R_O, BLOCK "o_proj", 0, BIAS_YES },
    { R_MIX_IN, BLOCK "linear_x", 0, BIAS_YES },
    { R_MIX_GATE, BLOCK "linear_y", 0, BIAS_YES },
    { R_MIX_CONV, BLOCK "conv_1d", NAME_TAPS, BIAS_YES },
    { R_MIX_ADMIT, UNIT "input_gate_weight", NAME_BARE | NAME_BLOCKS, BIAS_NO },
    { R_MIX_ADMIT_BIAS, UNIT "input_gate_bias", NAME_BARE | NAME_HEAD_ROWS, BIAS_NO },
    { R_MIX_KEEP, UNIT "recurrent_gate_weight", NAME_BARE | NAME_BLOCKS, BIAS_NO },
    { R_MIX_KEEP_BIAS, UNIT "recurrent_gate_bias", NAME_BARE | NAME_HEAD_ROWS, BIAS_NO },
    { R_MIX_SPAN, UNIT "recurrent_param", NAME_BARE, BIAS_NO },
    { R_MIX_OUT, BLOCK "linear_out", 0, BIAS_YES },
    { R_GATE, LAYER "mlp_block.gate_proj", 0, BIAS_YES },
    { R_UP, LAYER "mlp_block.up_proj", 0, BIAS_YES },
    { R_DOWN, LAYER "mlp_block.down_proj", 0, BIAS_YES },
    END,
};
#define KNOWN(key) { key, KEY_KNOWN, 0, NONE, NULL }
static const arch_key recurrent_gemma_keys[] = {
    { "attention_bias", KEY_FLAG, AT(attn_bias), 0, NULL },
    { "attention_window_size", KEY_INT, AT(window), 2048, NULL },
    { "sliding_window", KEY_INT, AT(window), NONE, NULL }, /* the same to transformers */
    { "conv1d_width", KEY_INT, AT(conv_taps), 4, NULL },
    { "lru_width", KEY_FN, 0, NONE, lru_width },
    { "intermediate_size", KEY_FN, 0, NONE, half_ffn },
    { "logits_soft_cap", KEY_FN, 0, NONE, soft_cap },
    MUST("embeddings_scale_by_sqrt_dim", 1),
    KNOWN("block_types"), KNOWN("_block_types"), /* griffin_layers */
    KNOWN("w_init_variance_scale"), KNOWN("final_w_init_variance_scale"),
    NO_KEY,
};
/* clang-format on */

const arch_row arch_rows_griffin[] = {
    { "RecurrentGemmaForCausalLM", "recurrent_gemma", .w = { RMS_ROPE, .norm_offset = 1 }, MODEL,
      .names = recurrent_gemma_names, .keys = recurrent_gemma_keys, .mixer = MIX_LRU, GELU_TANH,
      .window = WINDOW_OWN, .layers = griffin_layers, .embed_sqrt = true, .def_partial = 0.5,
      .def_ffn = 3, .def_max_pos = 8192, .def_tied = true },
    { .arch = NULL },
};
