/* formats/arch/rows/ettin.c - the decoders of Ettin, which are ModernBERT with attention to what came before: words
 * are guessed from norm(gelu(R_PROJ_OUT x)). */
#include "formats/arch/rows/rows.h"

#include "base/json.h"

static lq_status must_be_gelu(arch_config *c, const char *key, const cJSON *v, lq_err *err)
{
    (void)c;
    return arch_key_must(key, v, "gelu", err);
}

/* One scaling would be of both rotations, and one base of none. */
static lq_status no_rope(arch_config *c, const char *key, const cJSON *v, lq_err *err)
{
    char found[64];
    (void)c;
    if (!v) return LQ_OK;
    return lq_fail(err, LQ_EUNSUPPORTED, "%s: expected rope_parameters instead, found %s", key,
                   js_describe(found, v));
}

/* Of a window config.json says how wide ModernBERT's is, which looks both ways, or what is seen of it. */
static lq_status ettin_layers(arch_config *c, const cJSON *j, lq_err *err)
{
    static const char key[] = "local_attention", own[] = "sliding_window";
    int64_t width = 2 * c->row->def_window;
    if (cJSON_IsNull(cJSON_GetObjectItemCaseSensitive(j, key)))
        return lq_fail(err, LQ_EUNSUPPORTED, "%s: expected a number, found null", key);
    if (cJSON_IsNull(cJSON_GetObjectItemCaseSensitive(j, own)))
        return lq_fail(err, LQ_EUNSUPPORTED, "%s: expected a number, found null", own);
    const lq_status s = js_i64(j, key, false, 2, INT32_MAX, &width, err);
    if (c->window && !js_get(j, own)) c->window = width / 2;
    return s;
}

/* A table of names reads by line. */
/* clang-format off */
static const arch_name ettin_names[] = {
    { R_EMBED, "@embeddings.tok_embeddings", 0, BIAS_NO },
    { R_EMBED_NORM, "@embeddings.norm", 0, BIAS_OWN },
    { R_FINAL_NORM, "@final_norm", 0, BIAS_OWN },
    { R_PROJ_OUT, "^lm_head.dense", 0, BIAS_NO },
    { R_HEAD_NORM, "^lm_head.norm", 0, BIAS_OWN },
    { R_HEAD, "^decoder", 0, BIAS_CONV },
    { R_ATTN_NORM, LAYER "attn_norm", NAME_OPTIONAL, BIAS_OWN }, /* the first layer has none */
    { R_Q, LAYER "attn.q_proj", 0, BIAS_ATTN },
    { R_K, LAYER "attn.k_proj", 0, BIAS_ATTN },
    { R_V, LAYER "attn.v_proj", 0, BIAS_ATTN },
    { R_O, LAYER "attn.Wo", 0, BIAS_ATTN },
    { R_MLP_NORM, LAYER "mlp_norm", 0, BIAS_OWN },
    { R_GATE_UP, LAYER "mlp.Wi", 0, BIAS_MLP },
    { R_DOWN, LAYER "mlp.Wo", 0, BIAS_MLP },
    END,
};
static const arch_key ettin_keys[] = {
    { "attention_bias", KEY_FLAG, AT(attn_bias), 0, NULL },
    { "mlp_bias", KEY_FLAG, AT(mlp_bias), 0, NULL },
    { "norm_bias", KEY_FLAG, AT(own_bias), 0, NULL },
    { "decoder_bias", KEY_FLAG, AT(conv_bias), 1, NULL },
    { "norm_eps", KEY_REAL, AT(norm_eps), 1e-5, NULL }, /* whatever other spellings say */
    { "classifier_activation", KEY_FN, 0, NONE, must_be_gelu },
    { "rope_scaling", KEY_FN, 0, NONE, no_rope },
    { "rope_theta", KEY_FN, 0, NONE, no_rope },
    { "id2label", KEY_FN, 0, NONE, arch_key_no_labels },
    { "local_attention", KEY_KNOWN, 0, NONE, NULL }, /* ettin_layers */
    { "position_embedding_type", KEY_KNOWN, 0, NONE, NULL }, /* rotary, whatever it says */
    MUST("classifier_bias", 0),
    NO_KEY,
};
/* clang-format on */

const arch_row arch_rows_ettin[] = {
    { "ModernBertDecoderForCausalLM", "modernbert-decoder", .w = { LN_ROPE, .mlp = MLP_GATED },
      MODEL, .names = ettin_names, .keys = ettin_keys, .layers = ettin_layers, GELU,
      .window = WINDOW_PATTERN, .full_first = true, .def_window = 64, .def_pattern = 3,
      .def_max_pos = 8192, .def_eps = 1e-5, .def_theta = 160000, .def_local_theta = 10000,
      .def_tied = true },
    { .arch = NULL },
};
