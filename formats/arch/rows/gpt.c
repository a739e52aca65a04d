/* formats/arch/rows/gpt.c - the GPT family: the first GPT, GPT-2 to NeoX, BLOOM, Falcon, MPT, OPT, XGLM, BioGPT,
 * the Japanese NeoX. */
#include "formats/arch/arch_impl.h"
#include "formats/arch/rows/rows.h"

#include "base/json.h"

/* One key and value for all heads; else grouped as q, k, v of each. */
static lq_status multi_query(arch_config *c, const char *key, const cJSON *v, lq_err *err)
{
    if (v && !cJSON_IsBool(v)) return lq_fail(err, LQ_EVALUE, "%s: expected true or false", key);
    c->w.qkv_grouped = v && cJSON_IsFalse(v);
    c->kv_heads = c->w.qkv_grouped ? c->heads : 1;
    return LQ_OK;
}

static lq_status falcon_alibi(arch_config *c, const char *key, const cJSON *v, lq_err *err)
{
    if (v && !cJSON_IsBool(v)) return lq_fail(err, LQ_EVALUE, "%s: expected true or false", key);
    if (cJSON_IsTrue(v)) c->w.pos = POS_ALIBI;
    return LQ_OK;
}

/* A number, or how to get it. */
static lq_status mpt_logit_scale(arch_config *c, const char *key, const cJSON *v, lq_err *err)
{
    char found[64];
    if (cJSON_IsString(v) && strcmp(v->valuestring, "inv_sqrt_d_model") == 0)
        c->logit_scale = 1 / sqrt((double)c->hidden);
    else if (cJSON_IsNumber(v))
        c->logit_scale = v->valuedouble;
    else if (v)
        return lq_fail(err, LQ_EVALUE, "%s: expected a number or inv_sqrt_d_model, found %s", key,
                       js_describe(found, v));
    return LQ_OK;
}

/* Otherwise a bias is used where there is one. */
static lq_status mpt_no_bias(arch_config *c, const char *key, const cJSON *v, lq_err *err)
{
    if (v && !cJSON_IsBool(v)) return lq_fail(err, LQ_EVALUE, "%s: expected true or false", key);
    if (cJSON_IsTrue(v)) c->own_bias = 0;
    return LQ_OK;
}

/* Norms of all queries and of all keys. */
static lq_status mpt_qk_norm(arch_config *c, const char *key, const cJSON *v, lq_err *err)
{
    if (v && !cJSON_IsBool(v)) return lq_fail(err, LQ_EVALUE, "%s: expected true or false", key);
    if (cJSON_IsTrue(v)) c->w.qk_norm = QK_NORM_ALL;
    return LQ_OK;
}

static lq_status times_hidden(arch_config *c, const char *key, const cJSON *v, lq_err *err)
{
    int64_t n = 4;
    if (v && !js_whole(v, 1, ARCH_MAX_WIDTH / c->hidden, &n))
        return lq_fail(err, LQ_EVALUE, "%s: expected a positive integer", key);
    c->ffn = n * c->hidden;
    return LQ_OK;
}

static lq_status mpt_expansion(arch_config *c, const char *key, const cJSON *v, lq_err *err)
{
    const double ratio = cJSON_IsNumber(v) ? v->valuedouble : 4;
    if (!(ratio > 0 && ratio <= 1024))
        return lq_fail(err, LQ_EVALUE, "%s: expected a number 0..1024, found %g", key, ratio);
    c->ffn = (int64_t)((double)c->hidden * ratio);
    return LQ_OK;
}

/* Three functions, of which gelu is the approximation by tanh. */
static lq_status first_gpt_act(arch_config *c, const char *key, const cJSON *v, lq_err *err)
{
    static const struct {
        const char *text;
        arch_act act;
    } acts[] = { { "gelu", ARCH_GELU_TANH },
                 { "relu", ARCH_RELU },
                 { "silu", ARCH_SILU },
                 { "swish", ARCH_SILU } };
    const char *text = v ? cJSON_GetStringValue(v) : "gelu";
    for (size_t i = 0; text && i < LQ_COUNT(acts); i++)
        if (strcmp(acts[i].text, text) == 0) {
            c->act = acts[i].act;
            return LQ_OK;
        }
    return lq_fail(err, LQ_EUNSUPPORTED, "%s: expected gelu, relu or silu", key);
}

/* Its norms have torch's own, whatever the config says. */
static lq_status biogpt_eps(arch_config *c, const char *key, const cJSON *v, lq_err *err)
{
    (void)key;
    (void)v;
    (void)err;
    c->norm_eps = 1e-5;
    return LQ_OK;
}

/* A table of names reads by line. */
/* clang-format off */
#define H "@h.%d."
#define GPT_NORMS \
    { R_EMBED, "@wte", 0, BIAS_NO }, \
    { R_FINAL_NORM, "@ln_f", 0, BIAS_YES }, \
    { R_ATTN_NORM, H "ln_1", 0, BIAS_YES }
#define GPT2_NAMES(turned) \
    GPT_NORMS, \
    { R_HEAD, "^lm_head", 0, BIAS_NO }, \
    { R_POS_EMBED, "@wpe", 0, BIAS_NO }, \
    { R_QKV, H "attn.c_attn", turned, BIAS_YES }, \
    { R_O, H "attn.c_proj", turned, BIAS_YES }, \
    { R_MLP_NORM, H "ln_2", 0, BIAS_YES }, \
    { R_UP, H "mlp.c_fc", turned, BIAS_YES }, \
    { R_DOWN, H "mlp.c_proj", turned, BIAS_YES }
static const arch_name gpt2_names[] = { GPT2_NAMES(NAME_TRANSPOSED), END };
static const arch_name gpt_bigcode_names[] = { GPT2_NAMES(0), END };
static const arch_name first_gpt_names[] = {
    { R_EMBED, "@tokens_embed", 0, BIAS_NO },
    { R_HEAD, "^lm_head", 0, BIAS_NO },
    { R_POS_EMBED, "@positions_embed", 0, BIAS_NO },
    { R_QKV, H "attn.c_attn", NAME_TRANSPOSED, BIAS_YES },
    { R_O, H "attn.c_proj", NAME_TRANSPOSED, BIAS_YES },
    { R_ATTN_NORM, H "ln_1", 0, BIAS_YES },
    { R_UP, H "mlp.c_fc", NAME_TRANSPOSED, BIAS_YES },
    { R_DOWN, H "mlp.c_proj", NAME_TRANSPOSED, BIAS_YES },
    { R_MLP_NORM, H "ln_2", 0, BIAS_YES },
    END,
};
static const arch_name gpt_neo_names[] = {
    GPT_NORMS,
    { R_HEAD, "^lm_head", 0, BIAS_NO },
    { R_POS_EMBED, "@wpe", 0, BIAS_NO },
    { R_Q, H "attn.attention.q_proj", 0, BIAS_NO },
    { R_K, H "attn.attention.k_proj", 0, BIAS_NO },
    { R_V, H "attn.attention.v_proj", 0, BIAS_NO },
    { R_O, H "attn.attention.out_proj", 0, BIAS_YES },
    { R_MLP_NORM, H "ln_2", 0, BIAS_YES },
    { R_UP, H "mlp.c_fc", 0, BIAS_YES },
    { R_DOWN, H "mlp.c_proj", 0, BIAS_YES },
    END,
};
static const arch_name gptj_names[] = {
    GPT_NORMS,
    { R_HEAD, "^lm_head", 0, BIAS_YES },
    { R_Q, H "attn.q_proj", 0, BIAS_NO },
    { R_K, H "attn.k_proj", 0, BIAS_NO },
    { R_V, H "attn.v_proj", 0, BIAS_NO },
    { R_O, H "attn.out_proj", 0, BIAS_NO },
    { R_UP, H "mlp.fc_in", 0, BIAS_YES },
    { R_DOWN, H "mlp.fc_out", 0, BIAS_YES },
    END,
};
static const arch_name codegen_names[] = {
    GPT_NORMS,
    { R_HEAD, "^lm_head", 0, BIAS_YES },
    { R_QKV, H "attn.qkv_proj", 0, BIAS_NO },
    { R_O, H "attn.out_proj", 0, BIAS_NO },
    { R_UP, H "mlp.fc_in", 0, BIAS_YES },
    { R_DOWN, H "mlp.fc_out", 0, BIAS_YES },
    END,
};
static const arch_name gpt_neox_names[] = {
    { R_EMBED, "@embed_in", 0, BIAS_NO },
    { R_FINAL_NORM, "@final_layer_norm", 0, BIAS_YES },
    { R_HEAD, "embed_out", 0, BIAS_NO },
    PRE_NORMS(BIAS_YES),
    { R_QKV, LAYER "attention.query_key_value", 0, BIAS_ATTN },
    { R_O, LAYER "attention.dense", 0, BIAS_ATTN },
    { R_UP, LAYER "mlp.dense_h_to_4h", 0, BIAS_YES },
    { R_DOWN, LAYER "mlp.dense_4h_to_h", 0, BIAS_YES },
    END,
};
/* Attention's output has a bias in the last layer. */
static const arch_name gpt_neox_japanese_names[] = {
    { R_EMBED, "@embed_in", 0, BIAS_NO },
    { R_FINAL_NORM, "@final_layer_norm", 0, BIAS_YES },
    { R_HEAD, "embed_out", 0, BIAS_NO },
    PRE_NORMS(BIAS_YES),
    { R_QKV, LAYER "attention.query_key_value", 0, BIAS_NO },
    { R_O, LAYER "attention.dense", NAME_BIAS_BARE, BIAS_ANY },
    { R_UP, LAYER "mlp.dense_h_to_4h", 0, BIAS_NO },
    { R_DOWN, LAYER "mlp.dense_4h_to_h", 0, BIAS_NO },
    END,
};
/* BLOOM and Falcon */
#define FUSED_HEADS(attn_bias, mlp_bias) \
    { R_EMBED, "@word_embeddings", 0, BIAS_NO }, \
    { R_FINAL_NORM, "@ln_f", 0, BIAS_YES }, \
    { R_HEAD, "^lm_head", 0, BIAS_NO }, \
    { R_QKV, H "self_attention.query_key_value", 0, attn_bias }, \
    { R_O, H "self_attention.dense", 0, attn_bias }, \
    { R_UP, H "mlp.dense_h_to_4h", 0, mlp_bias }, \
    { R_DOWN, H "mlp.dense_4h_to_h", 0, mlp_bias }
static const arch_name bloom_names[] = {
    FUSED_HEADS(BIAS_YES, BIAS_YES),
    { R_EMBED_NORM, "@word_embeddings_layernorm", 0, BIAS_YES },
    { R_ATTN_NORM, H "input_layernorm", 0, BIAS_YES },
    { R_MLP_NORM, H "post_attention_layernorm", 0, BIAS_YES },
    END,
};
static const arch_name falcon_names[] = {
    FUSED_HEADS(BIAS_ATTN, BIAS_MLP),
    { R_ATTN_NORM, H "input_layernorm", 0, BIAS_YES },
    { R_MLP_NORM, H "post_attention_layernorm", 0, BIAS_YES },
    END,
};
static const arch_name falcon_new_names[] = {
    FUSED_HEADS(BIAS_ATTN, BIAS_MLP),
    { R_ATTN_NORM, H "ln_attn", 0, BIAS_YES },
    { R_MLP_NORM, H "ln_mlp", 0, BIAS_YES },
    END,
};
static const arch_name mpt_names[] = {
    { R_EMBED, "@wte", 0, BIAS_NO },
    { R_FINAL_NORM, "@norm_f", 0, BIAS_OWN },
    { R_HEAD, "^lm_head", 0, BIAS_NO },
    { R_ATTN_NORM, "@blocks.%d.norm_1", 0, BIAS_OWN },
    { R_QKV, "@blocks.%d.attn.Wqkv", 0, BIAS_OWN },
    { R_Q_NORM, "@blocks.%d.attn.q_ln", 0, BIAS_OWN },
    { R_K_NORM, "@blocks.%d.attn.k_ln", 0, BIAS_OWN },
    { R_O, "@blocks.%d.attn.out_proj", 0, BIAS_OWN },
    { R_MLP_NORM, "@blocks.%d.norm_2", 0, BIAS_OWN },
    { R_UP, "@blocks.%d.ffn.up_proj", 0, BIAS_OWN },
    { R_DOWN, "@blocks.%d.ffn.down_proj", 0, BIAS_OWN },
    END,
};
/* fairseq's decoders */
#define FAIRSEQ_NAMES(head) \
    { R_EMBED, "@embed_tokens", 0, BIAS_NO }, \
    { R_HEAD, head, 0, BIAS_NO }, \
    { R_ATTN_NORM, LAYER "self_attn_layer_norm", 0, BIAS_YES }, \
    { R_Q, LAYER "self_attn.q_proj", 0, BIAS_ATTN }, \
    { R_K, LAYER "self_attn.k_proj", 0, BIAS_ATTN }, \
    { R_V, LAYER "self_attn.v_proj", 0, BIAS_ATTN }, \
    { R_O, LAYER "self_attn.out_proj", 0, BIAS_ATTN }, \
    { R_MLP_NORM, LAYER "final_layer_norm", 0, BIAS_YES }, \
    { R_UP, LAYER "fc1", 0, BIAS_MLP }, \
    { R_DOWN, LAYER "fc2", 0, BIAS_MLP }
static const arch_name opt_names[] = {
    FAIRSEQ_NAMES("^lm_head"),
    { R_POS_EMBED, "@embed_positions", 0, BIAS_NO },
    { R_PROJ_IN, "@project_in", 0, BIAS_NO },
    { R_PROJ_OUT, "@project_out", 0, BIAS_NO },
    { R_FINAL_NORM, "@final_layer_norm", 0, BIAS_YES },
    END,
};
static const arch_name xglm_names[] = {
    FAIRSEQ_NAMES("^lm_head"),
    { R_FINAL_NORM, "@layer_norm", 0, BIAS_YES },
    END,
};
static const arch_name biogpt_names[] = {
    FAIRSEQ_NAMES("output_projection"),
    { R_POS_EMBED, "@embed_positions", 0, BIAS_NO },
    { R_FINAL_NORM, "@layer_norm", 0, BIAS_YES },
    END,
};
static const arch_key gpt2_keys[] = {
    { "scale_attn_weights", KEY_UNIT, AT(attn_scale), 1, NULL },
    NO_KEY,
};
static const arch_key gpt_bigcode_keys[] = {
    { "scale_attn_weights", KEY_UNIT, AT(attn_scale), 1, NULL },
    { "multi_query", KEY_FN, 0, NONE, multi_query },
    NO_KEY,
};
static const arch_key gpt_neo_keys[] = {
    { "scale_attn_weights", KEY_UNIT, AT(attn_scale), 0, NULL }, /* never scaled */
    NO_KEY,
};
static const arch_key gptj_keys[] = {
    { "rotary_dim", KEY_INT, AT(rope_dims), 64, NULL },
    NO_KEY,
};
static const arch_key gpt_neox_keys[] = {
    { "use_parallel_residual", KEY_BOOL, AT(w.parallel), 1, NULL },
    { "attention_bias", KEY_FLAG, AT(attn_bias), 1, NULL },
    NO_KEY,
};
static const arch_key gpt_neox_japanese_keys[] = {
    { "intermediate_multiple_size", KEY_FN, 0, NONE, times_hidden },
    NO_KEY,
};
#define FALCON_KEYS BIASES("bias", 0), { "alibi", KEY_FN, 0, NONE, falcon_alibi }
static const arch_key falcon_keys[] = {
    FALCON_KEYS,
    { "multi_query", KEY_FN, 0, NONE, multi_query },
    { "parallel_attn", KEY_BOOL, AT(w.parallel), 1, NULL },
    { "parallel_attn", KEY_BOOL, AT(w.one_norm), 1, NULL },
    NO_KEY,
};
static const arch_key falcon_new_keys[] = {
    FALCON_KEYS,
    MUST("parallel_attn", 1),
    MUST("num_ln_in_parallel_attn", 2),
    NO_KEY,
};
static const arch_key falcon_one_norm_keys[] = {
    FALCON_KEYS,
    MUST("parallel_attn", 1),
    MUST("num_ln_in_parallel_attn", 1),
    NO_KEY,
};
static const arch_key mpt_keys[] = {
    { "attn_config.alibi_bias_max", KEY_REAL, AT(alibi_max), 8, NULL },
    { "attn_config.clip_qkv", KEY_REAL, AT(qkv_clip), 0, NULL },
    { "attn_config.softmax_scale", KEY_REAL, AT(attn_scale), NONE, NULL },
    { "logit_scale", KEY_FN, 0, NONE, mpt_logit_scale },
    { "expansion_ratio", KEY_FN, 0, NONE, mpt_expansion },
    MUST("attn_config.alibi", 1),
    { "no_bias", KEY_FN, 0, NONE, mpt_no_bias },
    MUST("attn_config.prefix_lm", 0),
    { "attn_config.qk_ln", KEY_FN, 0, NONE, mpt_qk_norm },
    MUST("attn_config.rope", 0),
    MUST("attn_config.qk_gn", 0),
    MUST("attn_config.sliding_window_size", -1),
    NO_KEY,
};
static const arch_key opt_keys[] = {
    BIASES("enable_bias", 1),
    { "do_layer_norm_before", KEY_NOT, AT(w.norm_after_add), 1, NULL },
    { "word_embed_proj_dim", KEY_INT, AT(embed_dim), NONE, NULL },
    MUST("_remove_final_layer_norm", 0),
    MUST("layer_norm_elementwise_affine", 1),
    NO_KEY,
};
static const arch_key xglm_keys[] = {
    { "scale_embedding", KEY_UNIT, AT(embed_scale), 1, NULL },
    NO_KEY,
};
static const arch_key first_gpt_keys[] = {
    { "afn", KEY_FN, 0, NONE, first_gpt_act },
    NO_KEY,
};
static const arch_key biogpt_keys[] = {
    { "scale_embedding", KEY_UNIT, AT(embed_scale), 1, NULL },
    { "layer_norm_eps", KEY_FN, 0, NONE, biogpt_eps },
    NO_KEY,
};
#define GPT .norm = NORM_LAYER, .mlp = MLP_PLAIN
/* clang-format on */

#define TRANSFORMER .prefix = "transformer."

const arch_row arch_rows_gpt[] = {
    { "GPT2LMHeadModel", "gpt2", .w = { GPT, .pos = POS_LEARNED }, TRANSFORMER, .names = gpt2_names,
      .keys = gpt2_keys, GELU_TANH, .def_ffn = 4, .def_eps = 1e-5, .def_max_pos = 1024,
      .def_tied = true },
    { "OpenAIGPTLMHeadModel", "openai-gpt",
      .w = { GPT, .pos = POS_LEARNED, .norm_after_add = true }, TRANSFORMER,
      .names = first_gpt_names, .keys = first_gpt_keys, GELU_TANH, .fixed_act = true, .def_ffn = 4,
      .def_eps = 1e-5, .def_max_pos = 512, .def_tied = true },
    { "GPTBigCodeForCausalLM", "gpt_bigcode", .w = { GPT, .pos = POS_LEARNED }, TRANSFORMER,
      .names = gpt_bigcode_names, .keys = gpt_bigcode_keys, GELU_TANH, .def_ffn = 4,
      .def_eps = 1e-5, .def_max_pos = 1024, .def_tied = true },
    { "GPTNeoForCausalLM", "gpt_neo", .w = { GPT, .pos = POS_LEARNED }, TRANSFORMER,
      .names = gpt_neo_names, .keys = gpt_neo_keys, GELU_TANH, .window = WINDOW_LOCAL,
      .def_window = 256, .def_ffn = 4, .def_eps = 1e-5, .def_tied = true },
    { "GPTJForCausalLM", "gptj", .w = { GPT, .pos = POS_ROPE, .parallel = true, .one_norm = true },
      TRANSFORMER, .names = gptj_names, .keys = gptj_keys, GELU_TANH, .def_ffn = 4,
      .def_eps = 1e-5 },
    { "CodeGenForCausalLM", "codegen",
      .w = { GPT, .pos = POS_ROPE, .parallel = true, .one_norm = true, .qkv_quarters = true },
      TRANSFORMER, .names = codegen_names, .keys = gptj_keys, GELU_TANH, .def_ffn = 4,
      .def_eps = 1e-5 },
    { "GPTNeoXForCausalLM", "gpt_neox", .w = { LN_ROPE, .mlp = MLP_PLAIN, .qkv_grouped = true },
      .prefix = "gpt_neox.", .names = gpt_neox_names, .keys = gpt_neox_keys, GELU, .def_eps = 1e-5,
      .def_partial = 0.25 },
    { "GPTNeoXJapaneseForCausalLM", "gpt_neox_japanese", .def_partial = 1,
      .w = { LN_ROPE, .mlp = MLP_PLAIN, .qkv_grouped = true }, .prefix = "gpt_neox_japanese.",
      .names = gpt_neox_japanese_names, .keys = gpt_neox_japanese_keys, GELU, .def_ffn = 4,
      .def_eps = 1e-5, .def_tied = true },
    { "BloomForCausalLM", "bloom", .w = { GPT, .pos = POS_ALIBI, .qkv_grouped = true }, TRANSFORMER,
      .names = bloom_names, GELU_TANH, .fixed_act = true, .def_ffn = 4, .def_eps = 1e-5,
      .def_tied = true },
#define FALCON_W .mlp = MLP_PLAIN, .alibi_scaled = true, .alibi_bf16 = true, .alibi_twice = true
#define FALCON TRANSFORMER, GELU, .def_ffn = 4, .def_eps = 1e-5, .def_tied = true
    { "FalconForCausalLM", "falcon", "one-norm",
      "new_decoder_architecture=true,num_ln_in_parallel_attn=1",
      .w = { LN_ROPE, FALCON_W, .qkv_grouped = true, .parallel = true, .one_norm = true }, FALCON,
      .names = falcon_names, .keys = falcon_one_norm_keys },
    { "FalconForCausalLM", "falcon", "new", "new_decoder_architecture=true",
      .w = { LN_ROPE, FALCON_W, .qkv_grouped = true, .parallel = true }, FALCON,
      .names = falcon_new_names, .keys = falcon_new_keys },
    { "FalconForCausalLM", "falcon", .w = { LN_ROPE, FALCON_W }, FALCON, .names = falcon_names,
      .keys = falcon_keys },
    { "MptForCausalLM", "mpt", .w = { GPT, .pos = POS_ALIBI }, TRANSFORMER, .names = mpt_names,
      .keys = mpt_keys, GELU, .fixed_act = true, .def_ffn = 4, .def_eps = 1e-5, .def_tied = true },
    { "OPTForCausalLM", "opt", .w = { GPT, .pos = POS_LEARNED }, .prefix = "model.decoder.",
      .names = opt_names, .keys = opt_keys, .def_act = ARCH_RELU, .pos_offset = 2, .def_eps = 1e-5,
      .def_tied = true },
    { "XGLMForCausalLM", "xglm", .w = { GPT, .pos = POS_SINUSOIDAL }, MODEL, .names = xglm_names,
      .keys = xglm_keys, GELU, .embed_sqrt = true, .pos_offset = 2, .def_eps = 1e-5,
      .def_tied = true },
    { "BioGptForCausalLM", "biogpt", .w = { GPT, .pos = POS_LEARNED }, .prefix = "biogpt.",
      .names = biogpt_names, .keys = biogpt_keys, GELU, .embed_sqrt = true, .pos_offset = 2,
      .def_eps = 1e-5, .def_max_pos = 1024, .def_tied = true },
    { .arch = NULL },
};
