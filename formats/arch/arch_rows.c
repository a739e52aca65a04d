/* formats/arch/arch_rows.c - the architectures. A new model is a row at the end of this file and, where
 * its names or its config.json differ from its relatives', a table of names or keys. */
#include "formats/arch/arch.h"

#include "base/json.h"

#include <stddef.h>

#define AT(field) offsetof(arch_config, field)
#define NONE ((double)NAN) /* no default: a missing key leaves the field alone */

/* ---- keys with a meaning of their own ---- */

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

static lq_status mpt_expansion(arch_config *c, const char *key, const cJSON *v, lq_err *err)
{
    const double ratio = cJSON_IsNumber(v) ? v->valuedouble : 4;
    if (!(ratio > 0 && ratio <= 1024))
        return lq_fail(err, LQ_EVALUE, "%s: expected a number 0..1024, found %g", key, ratio);
    c->ffn = (int64_t)((double)c->hidden * ratio);
    return LQ_OK;
}

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

static lq_status noaux_tc(arch_config *c, const char *key, const cJSON *v, lq_err *err)
{
    (void)c;
    if (!v || (cJSON_IsString(v) && strcmp(v->valuestring, "noaux_tc") == 0)) return LQ_OK;
    char found[64];
    return lq_fail(err, LQ_EUNSUPPORTED, "%s: expected noaux_tc, found %s", key,
                   js_describe(found, v));
}

/* The row knows how experts are scored; the key may say the same. */
static lq_status scoring_func(arch_config *c, const char *key, const cJSON *v, lq_err *err)
{
    const char *want = c->w.router == ROUTER_SIGMOID ? "sigmoid" : "softmax";
    if (!v || (cJSON_IsString(v) && strcmp(v->valuestring, want) == 0)) return LQ_OK;
    char found[64];
    return lq_fail(err, LQ_EUNSUPPORTED, "%s: expected %s, found %s", key, want,
                   js_describe(found, v));
}

/* Norms of q and k if the key says so; missing: as the row has it. */
static lq_status if_qk_norm(arch_config *c, const char *key, const cJSON *v, arch_qk_norm kind,
                            lq_err *err)
{
    if (v && !cJSON_IsBool(v)) return lq_fail(err, LQ_EVALUE, "%s: expected true or false", key);
    if (v) c->w.qk_norm = cJSON_IsTrue(v) ? kind : QK_NORM_NONE;
    return LQ_OK;
}

static lq_status head_qk_norm(arch_config *c, const char *key, const cJSON *v, lq_err *err)
{
    return if_qk_norm(c, key, v, QK_NORM_HEAD, err);
}

static lq_status heads_qk_norm(arch_config *c, const char *key, const cJSON *v, lq_err *err)
{
    return if_qk_norm(c, key, v, QK_NORM_HEADS, err);
}

/* ---- pieces of tables ---- */
/* A table of names reads by line. */
/* clang-format off */
#define END { ARCH_N_ROLES, NULL, 0, BIAS_NO }
#define NO_KEY { .key = NULL }
#define LAYER "@layers.%d."
#define H "@h.%d."

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
#define UP_DOWN \
    { R_UP, LAYER "mlp.up_proj", 0, BIAS_MLP }, \
    { R_DOWN, LAYER "mlp.down_proj", 0, BIAS_MLP }
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

static const arch_name llama_names[] = { LLAMA_NAMES(BIAS_ATTN, BIAS_ATTN, BIAS_MLP), END };
static const arch_name mistral_names[] = { LLAMA_NAMES(BIAS_NO, BIAS_NO, BIAS_NO), END };
static const arch_name qwen2_names[] = { LLAMA_NAMES(BIAS_YES, BIAS_NO, BIAS_NO), END };
static const arch_name qwen3_names[] = { LLAMA_NAMES(BIAS_ATTN, BIAS_ATTN, BIAS_NO), QK_NORMS,
                                         END };
static const arch_name phi3_names[] = {
    EMBED_NORM_HEAD(BIAS_NO),
    PRE_NORMS(BIAS_NO),
    { R_QKV, LAYER "self_attn.qkv_proj", 0, BIAS_NO },
    { R_O, LAYER "self_attn.o_proj", 0, BIAS_NO },
    { R_GATE_UP, LAYER "mlp.gate_up_proj", 0, BIAS_NO },
    { R_DOWN, LAYER "mlp.down_proj", 0, BIAS_NO },
    END,
};
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
#define GATE_UP \
    { R_GATE_UP, LAYER "mlp.gate_up_proj", 0, BIAS_NO }, \
    { R_DOWN, LAYER "mlp.down_proj", 0, BIAS_NO }
static const arch_name glm_names[] = {
    EMBED_NORM_HEAD(BIAS_NO), PRE_NORMS(BIAS_NO), SELF_ATTN(BIAS_ATTN, BIAS_NO), GATE_UP, END,
};
static const arch_name glm4_names[] = {
    EMBED_NORM_HEAD(BIAS_NO),
    { R_ATTN_NORM, LAYER "input_layernorm", 0, BIAS_NO },
    { R_ATTN_POST_NORM, LAYER "post_self_attn_layernorm", 0, BIAS_NO },
    { R_MLP_NORM, LAYER "post_attention_layernorm", 0, BIAS_NO },
    { R_MLP_POST_NORM, LAYER "post_mlp_layernorm", 0, BIAS_NO },
    SELF_ATTN(BIAS_ATTN, BIAS_NO),
    GATE_UP,
    END,
};
static const arch_name helium_names[] = { LLAMA_NAMES(BIAS_ATTN, BIAS_NO, BIAS_MLP), END };
static const arch_name seed_oss_names[] = { LLAMA_NAMES(BIAS_ATTN, BIAS_ANY, BIAS_MLP), END };
static const arch_name olmo2_names[] = {
    EMBED_NORM_HEAD(BIAS_NO),
    { R_ATTN_POST_NORM, LAYER "post_attention_layernorm", 0, BIAS_NO },
    { R_MLP_POST_NORM, LAYER "post_feedforward_layernorm", 0, BIAS_NO },
    SELF_ATTN(BIAS_ATTN, BIAS_ATTN),
    QK_NORMS,
    GATED(BIAS_NO),
    END,
};
static const arch_name cohere_names[] = {
    EMBED_NORM_HEAD(BIAS_NO),
    { R_ATTN_NORM, LAYER "input_layernorm", 0, BIAS_NO },
    SELF_ATTN(BIAS_ATTN, BIAS_ATTN),
    { R_Q_NORM, LAYER "self_attn.q_norm", NAME_HEAD_ROWS, BIAS_NO },
    { R_K_NORM, LAYER "self_attn.k_norm", NAME_HEAD_ROWS, BIAS_NO },
    GATED(BIAS_NO),
    END,
};
static const arch_name stablelm_names[] = {
    EMBED_NORM_HEAD(BIAS_YES),
    PRE_NORMS(BIAS_YES),
    SELF_ATTN(BIAS_ATTN, BIAS_NO),
    { R_Q_NORM, LAYER "self_attn.q_layernorm.norms.%e", NAME_HEAD_EACH, BIAS_NO },
    { R_K_NORM, LAYER "self_attn.k_layernorm.norms.%e", NAME_HEAD_EACH, BIAS_NO },
    GATED(BIAS_NO),
    END,
};
static const arch_name starcoder2_names[] = {
    EMBED_NORM_HEAD(BIAS_YES),
    PRE_NORMS(BIAS_YES),
    SELF_ATTN(BIAS_ATTN, BIAS_ATTN),
    { R_UP, LAYER "mlp.c_fc", 0, BIAS_MLP },
    { R_DOWN, LAYER "mlp.c_proj", 0, BIAS_MLP },
    END,
};
#define QK_LAYERNORMS \
    { R_Q_NORM, LAYER "self_attn.q_layernorm", 0, BIAS_YES }, \
    { R_K_NORM, LAYER "self_attn.k_layernorm", 0, BIAS_YES }
static const arch_name phi_names[] = {
    { R_EMBED, "@embed_tokens", 0, BIAS_NO },
    { R_FINAL_NORM, "@final_layernorm", 0, BIAS_YES },
    { R_HEAD, "^lm_head", 0, BIAS_YES },
    { R_ATTN_NORM, LAYER "input_layernorm", 0, BIAS_YES },
    { R_Q, LAYER "self_attn.q_proj", 0, BIAS_YES },
    { R_K, LAYER "self_attn.k_proj", 0, BIAS_YES },
    { R_V, LAYER "self_attn.v_proj", 0, BIAS_YES },
    QK_LAYERNORMS,
    { R_O, LAYER "self_attn.dense", 0, BIAS_YES },
    { R_UP, LAYER "mlp.fc1", 0, BIAS_YES },
    { R_DOWN, LAYER "mlp.fc2", 0, BIAS_YES },
    END,
};
static const arch_name nemotron_names[] = {
    EMBED_NORM_HEAD(BIAS_YES), PRE_NORMS(BIAS_YES), SELF_ATTN(BIAS_ATTN, BIAS_ATTN), UP_DOWN, END,
};
static const arch_name arcee_names[] = {
    EMBED_NORM_HEAD(BIAS_NO), PRE_NORMS(BIAS_NO), SELF_ATTN(BIAS_ATTN, BIAS_ATTN), UP_DOWN, END,
};
static const arch_name persimmon_names[] = {
    { R_EMBED, "@embed_tokens", 0, BIAS_NO },
    { R_FINAL_NORM, "@final_layernorm", 0, BIAS_YES },
    { R_HEAD, "^lm_head", 0, BIAS_NO },
    PRE_NORMS(BIAS_YES),
    { R_QKV, LAYER "self_attn.query_key_value", 0, BIAS_YES },
    QK_LAYERNORMS,
    { R_O, LAYER "self_attn.dense", 0, BIAS_YES },
    { R_UP, LAYER "mlp.dense_h_to_4h", 0, BIAS_YES },
    { R_DOWN, LAYER "mlp.dense_4h_to_h", 0, BIAS_YES },
    END,
};
/* Its norms have no weights. */
static const arch_name olmo_names[] = {
    { R_EMBED, "@embed_tokens", 0, BIAS_NO },
    { R_FINAL_NORM, "@norm", NAME_OPTIONAL | NAME_ONES, BIAS_NO },
    { R_HEAD, "^lm_head", 0, BIAS_NO },
    { R_ATTN_NORM, LAYER "input_layernorm", NAME_OPTIONAL | NAME_ONES, BIAS_NO },
    { R_MLP_NORM, LAYER "post_attention_layernorm", NAME_OPTIONAL | NAME_ONES, BIAS_NO },
    SELF_ATTN(BIAS_ATTN, BIAS_ATTN),
    GATED(BIAS_NO),
    END,
};
static const arch_name hunyuan_names[] = {
    LLAMA_NAMES(BIAS_ATTN, BIAS_ATTN, BIAS_NO),
    { R_Q_NORM, LAYER "self_attn.query_layernorm", 0, BIAS_NO },
    { R_K_NORM, LAYER "self_attn.key_layernorm", 0, BIAS_NO },
    END,
};

/* ---- mixtures of experts ---- */
static const arch_name mixtral_names[] = {
    EMBED_NORM_HEAD(BIAS_NO),
    PRE_NORMS(BIAS_NO),
    SELF_ATTN(BIAS_NO, BIAS_NO),
    { R_ROUTER, LAYER "block_sparse_moe.gate", 0, BIAS_NO },
    EXPERTS("block_sparse_moe", "w1", "w3", "w2"),
    END,
};
static const arch_name qwen2_moe_names[] = {
    LLAMA_NAMES(BIAS_ATTN, BIAS_NO, BIAS_NO),
    { R_ROUTER, LAYER "mlp.gate", 0, BIAS_NO },
    EXPERTS("mlp", "gate_proj", "up_proj", "down_proj"),
    { R_SHARED_ROUTER, LAYER "mlp.shared_expert_gate", 0, BIAS_NO },
    SHARED("mlp.shared_expert"),
    END,
};
static const arch_name qwen3_moe_names[] = {
    LLAMA_NAMES(BIAS_ATTN, BIAS_ATTN, BIAS_NO),
    QK_NORMS,
    { R_ROUTER, LAYER "mlp.gate", 0, BIAS_NO },
    EXPERTS("mlp", "gate_proj", "up_proj", "down_proj"),
    END,
};
#define DEEPSEEK_NAMES \
    EMBED_NORM_HEAD(BIAS_NO), \
    PRE_NORMS(BIAS_NO), \
    { R_Q, LAYER "self_attn.q_proj", 0, BIAS_NO }, \
    { R_Q_A, LAYER "self_attn.q_a_proj", 0, BIAS_ATTN }, \
    { R_Q_A_NORM, LAYER "self_attn.q_a_layernorm", 0, BIAS_NO }, \
    { R_Q_B, LAYER "self_attn.q_b_proj", 0, BIAS_NO }, \
    { R_KV_A, LAYER "self_attn.kv_a_proj_with_mqa", 0, BIAS_ATTN }, \
    { R_KV_A_NORM, LAYER "self_attn.kv_a_layernorm", 0, BIAS_NO }, \
    { R_KV_B, LAYER "self_attn.kv_b_proj", 0, BIAS_NO }, \
    { R_O, LAYER "self_attn.o_proj", 0, BIAS_ATTN }, \
    GATED(BIAS_NO), \
    { R_ROUTER, LAYER "mlp.gate", 0, BIAS_NO }, \
    EXPERTS("mlp", "gate_proj", "up_proj", "down_proj"), \
    SHARED("mlp.shared_experts")
static const arch_name deepseek_v2_names[] = { DEEPSEEK_NAMES, END };
#define CORRECTION { R_ROUTER_CORR, LAYER "mlp.gate.e_score_correction_bias", NAME_BARE, BIAS_NO }
static const arch_name deepseek_v3_names[] = { DEEPSEEK_NAMES, CORRECTION, END };
static const arch_name glm4_moe_names[] = {
    LLAMA_NAMES(BIAS_ATTN, BIAS_NO, BIAS_NO),
    QK_NORMS,
    { R_ROUTER, LAYER "mlp.gate", 0, BIAS_NO },
    CORRECTION,
    EXPERTS("mlp", "gate_proj", "up_proj", "down_proj"),
    SHARED("mlp.shared_experts"),
    END,
};
static const arch_name dots1_names[] = {
    LLAMA_NAMES(BIAS_ATTN, BIAS_ATTN, BIAS_NO),
    QK_NORMS,
    { R_ROUTER, LAYER "mlp.gate", 0, BIAS_NO },
    CORRECTION,
    EXPERTS("mlp", "gate_proj", "up_proj", "down_proj"),
    SHARED("mlp.shared_experts"),
    END,
};
static const arch_name granite_moe_names[] = {
    EMBED_NORM_HEAD(BIAS_NO),
    PRE_NORMS(BIAS_NO),
    SELF_ATTN(BIAS_ATTN, BIAS_ATTN),
    { R_ROUTER, LAYER "block_sparse_moe.router.layer", 0, BIAS_NO },
    { R_EXPERT_GATE_UP, LAYER "block_sparse_moe.input_linear", NAME_STACKED, BIAS_NO },
    { R_EXPERT_DOWN, LAYER "block_sparse_moe.output_linear", NAME_STACKED, BIAS_NO },
    END,
};
static const arch_name gpt_oss_names[] = {
    EMBED_NORM_HEAD(BIAS_NO),
    PRE_NORMS(BIAS_NO),
    SELF_ATTN(BIAS_ATTN, BIAS_ATTN),
    { R_SINKS, LAYER "self_attn.sinks", NAME_BARE, BIAS_NO },
    { R_ROUTER, LAYER "mlp.router", 0, BIAS_YES },
    { R_EXPERT_GATE_UP, LAYER "mlp.experts.gate_up_proj",
      NAME_BARE | NAME_STACKED | NAME_TRANSPOSED, BIAS_YES },
    { R_EXPERT_DOWN, LAYER "mlp.experts.down_proj", NAME_BARE | NAME_STACKED | NAME_TRANSPOSED,
      BIAS_YES },
    END,
};

/* ---- the GPT family ---- */
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
    { R_FINAL_NORM, "@norm_f", 0, BIAS_ANY },
    { R_HEAD, "^lm_head", 0, BIAS_NO },
    { R_ATTN_NORM, "@blocks.%d.norm_1", 0, BIAS_ANY },
    { R_QKV, "@blocks.%d.attn.Wqkv", 0, BIAS_ANY },
    { R_O, "@blocks.%d.attn.out_proj", 0, BIAS_ANY },
    { R_MLP_NORM, "@blocks.%d.norm_2", 0, BIAS_ANY },
    { R_UP, "@blocks.%d.ffn.up_proj", 0, BIAS_ANY },
    { R_DOWN, "@blocks.%d.ffn.down_proj", 0, BIAS_ANY },
    END,
};
/* fairseq's decoders */
#define FAIRSEQ_NAMES \
    { R_EMBED, "@embed_tokens", 0, BIAS_NO }, \
    { R_HEAD, "^lm_head", 0, BIAS_NO }, \
    { R_ATTN_NORM, LAYER "self_attn_layer_norm", 0, BIAS_YES }, \
    { R_Q, LAYER "self_attn.q_proj", 0, BIAS_ATTN }, \
    { R_K, LAYER "self_attn.k_proj", 0, BIAS_ATTN }, \
    { R_V, LAYER "self_attn.v_proj", 0, BIAS_ATTN }, \
    { R_O, LAYER "self_attn.out_proj", 0, BIAS_ATTN }, \
    { R_MLP_NORM, LAYER "final_layer_norm", 0, BIAS_YES }, \
    { R_UP, LAYER "fc1", 0, BIAS_MLP }, \
    { R_DOWN, LAYER "fc2", 0, BIAS_MLP }
static const arch_name opt_names[] = {
    FAIRSEQ_NAMES,
    { R_POS_EMBED, "@embed_positions", 0, BIAS_NO },
    { R_PROJ_IN, "@project_in", 0, BIAS_NO },
    { R_PROJ_OUT, "@project_out", 0, BIAS_NO },
    { R_FINAL_NORM, "@final_layer_norm", 0, BIAS_YES },
    END,
};
static const arch_name xglm_names[] = {
    FAIRSEQ_NAMES,
    { R_FINAL_NORM, "@layer_norm", 0, BIAS_YES },
    END,
};

/* ---- keys ---- */
#define BIASES(key, def) \
    { key, KEY_FLAG, AT(attn_bias), def, NULL }, \
    { key, KEY_FLAG, AT(mlp_bias), def, NULL }
#define MUST(key, value) { key, KEY_MUST, 0, value, NULL }

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
static const arch_key cohere_keys[] = {
    { "logit_scale", KEY_REAL, AT(logit_scale), 0.0625, NULL },
    { "use_qk_norm", KEY_FN, 0, NONE, heads_qk_norm },
    NO_KEY,
};
#define GRANITE_KEYS \
    { "embedding_multiplier", KEY_REAL, AT(embed_scale), 1, NULL }, \
    { "residual_multiplier", KEY_REAL, AT(residual_scale), 1, NULL }, \
    { "attention_multiplier", KEY_REAL, AT(attn_scale), 1, NULL }, \
    { "logits_scaling", KEY_INVERSE, AT(logit_scale), 1, NULL }
static const arch_key granite_keys[] = { GRANITE_KEYS, NO_KEY };
static const arch_key stablelm_keys[] = {
    { "use_qkv_bias", KEY_FLAG, AT(attn_bias), 0, NULL },
    { "use_parallel_residual", KEY_BOOL, AT(w.parallel), 0, NULL },
    { "use_parallel_residual", KEY_BOOL, AT(w.one_norm), 0, NULL },
    { "qk_layernorm", KEY_FN, 0, NONE, heads_qk_norm },
    NO_KEY,
};
static const arch_key starcoder2_keys[] = { BIASES("use_bias", 1), NO_KEY };
/* Phi's and Persimmon's */
static const arch_key phi_keys[] = { { "qk_layernorm", KEY_FN, 0, NONE, head_qk_norm }, NO_KEY };
static const arch_key olmo_keys[] = {
    { "clip_qkv", KEY_REAL, AT(qkv_clip), 0, NULL },
    NO_KEY,
};
static const arch_key hunyuan_keys[] = {
    MUST("use_qk_norm", 1),
    MUST("use_rotary_pos_emb", 1),
    MUST("mlp_bias", 0),
    MUST("use_cla", 0),
    { "norm_type", KEY_KNOWN, 0, NONE, NULL }, /* not read by the modelling code, like these: */
    { "attention_head_dim", KEY_KNOWN, 0, NONE, NULL },
    { "routed_scaling_factor", KEY_KNOWN, 0, NONE, NULL },
    NO_KEY,
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
    { "no_bias", KEY_KNOWN, 0, NONE, NULL }, /* a bias is used where there is one */
    MUST("attn_config.prefix_lm", 0),
    MUST("attn_config.qk_ln", 0),
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
#define NORM_TOPK(def) { "norm_topk_prob", KEY_BOOL, AT(w.norm_topk), def, NULL }
#define EXPERT_COUNTS(key, n, used) \
    { key, KEY_INT, AT(experts), n, NULL }, \
    { "num_experts_per_tok", KEY_INT, AT(experts_used), used, NULL }
#define EXPERT_FFN(def) { "moe_intermediate_size", KEY_INT, AT(expert_ffn), def, NULL }
static const arch_key granite_moe_keys[] = {
    GRANITE_KEYS,
    EXPERT_COUNTS("num_local_experts", 8, 2),
    NO_KEY,
};
static const arch_key mixtral_keys[] = { EXPERT_COUNTS("num_local_experts", 8, 2), NO_KEY };
static const arch_key qwen2_moe_keys[] = {
    NORM_TOPK(0),
    EXPERT_COUNTS("num_experts", 60, 4),
    EXPERT_FFN(1408),
    { "shared_expert_intermediate_size", KEY_INT, AT(shared_ffn), 5632, NULL },
    { "qkv_bias", KEY_FLAG, AT(attn_bias), 1, NULL },
    NO_KEY,
};
static const arch_key qwen3_moe_keys[] = {
    NORM_TOPK(0),
    EXPERT_COUNTS("num_experts", 128, 8),
    EXPERT_FFN(768),
    NO_KEY,
};
static const arch_key gpt_oss_keys[] = {
    { "swiglu_limit", KEY_REAL, AT(act_limit), 7, NULL },
    EXPERT_COUNTS("num_local_experts", 128, 4),
    { "attention_bias", KEY_FLAG, AT(attn_bias), 1, NULL },
    NO_KEY,
};
#define GROUP_KEYS(n, used, scale) \
    { "routed_scaling_factor", KEY_REAL, AT(expert_scale), scale, NULL }, \
    { "n_group", KEY_INT, AT(expert_groups), n, NULL }, \
    { "topk_group", KEY_INT, AT(groups_used), used, NULL }, \
    { "scoring_func", KEY_FN, 0, NONE, scoring_func }
#define MLA_KEYS(q_lora_def) \
    { "q_lora_rank", KEY_INT, AT(q_lora), q_lora_def, NULL }, \
    { "kv_lora_rank", KEY_INT, AT(kv_lora), 512, NULL }, \
    { "qk_nope_head_dim", KEY_INT, AT(nope_dims), 128, NULL }, \
    { "qk_rope_head_dim", KEY_INT, AT(rope_dims), 64, NULL }, \
    { "v_head_dim", KEY_INT, AT(v_dim), 128, NULL }, \
    { "qk_head_dim", KEY_KNOWN, 0, NONE, NULL }
static const arch_key deepseek_v2_keys[] = {
    MLA_KEYS(1536),
    GROUP_KEYS(1, 1, 1),
    { "topk_method", KEY_FN, 0, NONE, topk_method },
    MUST("norm_topk_prob", 0),
    MUST("mlp_bias", 0),
    NO_KEY,
};
static const arch_key deepseek_v3_keys[] = {
    MLA_KEYS(1536),
    GROUP_KEYS(8, 4, 2.5),
    EXPERT_COUNTS("n_routed_experts", 256, 8),
    EXPERT_FFN(2048),
    NORM_TOPK(1),
    { "topk_method", KEY_FN, 0, NONE, noaux_tc },
    { "rope_interleave", KEY_NOT, AT(w.rope_half), 1, NULL },
    MUST("mlp_bias", 0),
    NO_KEY,
};
static const arch_key glm4_moe_keys[] = {
    GROUP_KEYS(1, 1, 1), EXPERT_COUNTS("n_routed_experts", 128, 8),        EXPERT_FFN(1408),
    NORM_TOPK(1),        { "use_qk_norm", KEY_FN, 0, NONE, head_qk_norm }, NO_KEY,
};
static const arch_key dots1_keys[] = { GROUP_KEYS(1, 1, 1), NORM_TOPK(0), EXPERT_FFN(1408),
                                       NO_KEY };
static const arch_key olmoe_keys[] = { NORM_TOPK(0), EXPERT_COUNTS("num_experts", 64, 8),
                                       MUST("clip_qkv", 0), NO_KEY };
static const arch_key ernie_keys[] = { BIASES("use_bias", 0), NO_KEY };
static const arch_key seed_oss_keys[] = {
    { "attention_bias", KEY_FLAG, AT(attn_bias), 1, NULL },
    { "attention_out_bias", KEY_KNOWN, 0, NONE, NULL }, /* there is one or there is not */
    NO_KEY,
};
static const arch_key cohere2_keys[] = {
    { "logit_scale", KEY_REAL, AT(logit_scale), 0.0625, NULL },
    { "rotary_pct", KEY_KNOWN, 0, NONE, NULL },
    NO_KEY,
};

/* ---- rows ---- */
#define RMS_ROPE .norm = NORM_RMS, .pos = POS_ROPE, .rope_half = true, .mlp = MLP_GATED
#define RMS_PAIRS .norm = NORM_RMS, .pos = POS_ROPE, .mlp = MLP_GATED
#define SIGMOID_MOE .router = ROUTER_SIGMOID, .norm_topk = true, .group_top2 = true
#define LN_ROPE .norm = NORM_LAYER, .pos = POS_ROPE, .rope_half = true
#define GPT .norm = NORM_LAYER, .mlp = MLP_PLAIN
#define MODEL .prefix = "model."
#define TRANSFORMER .prefix = "transformer."
#define GELU .def_act = ARCH_GELU
#define GELU_TANH .def_act = ARCH_GELU_TANH

const arch_row arch_rows[] = {
    { "LlamaForCausalLM", "llama", .w = { RMS_ROPE }, MODEL, .names = llama_names },
    { "MistralForCausalLM", "mistral", .w = { RMS_ROPE }, MODEL, .names = mistral_names,
      .window = WINDOW_ALL, .def_kv_heads = 8, .def_window = 4096, .def_max_pos = 131072 },
    { "Qwen2ForCausalLM", "qwen2", .w = { RMS_ROPE }, MODEL, .names = qwen2_names,
      .window = WINDOW_IF_USED, .def_kv_heads = 32, .def_window = 4096, .def_max_pos = 32768 },
    { "Qwen3ForCausalLM", "qwen3", .w = { RMS_ROPE, .qk_norm = QK_NORM_HEAD }, MODEL,
      .names = qwen3_names, .window = WINDOW_IF_USED, .def_kv_heads = 32, .def_head_dim = 128,
      .def_window = 4096, .def_max_pos = 32768 },
    { "GemmaForCausalLM", "gemma", .w = { RMS_ROPE, .norm_offset = 1 }, MODEL, .names = llama_names,
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
    { "Phi3ForCausalLM", "phi3", .w = { RMS_ROPE }, MODEL, .names = phi3_names,
      .window = WINDOW_ALL, .def_eps = 1e-5, .def_max_pos = 4096 },
    { "Olmo2ForCausalLM", "olmo2", .w = { RMS_ROPE, .qk_norm = QK_NORM_ALL }, MODEL,
      .names = olmo2_names, .def_eps = 1e-5 },
    { "GraniteForCausalLM", "granite", .w = { RMS_ROPE }, MODEL, .names = llama_names,
      .keys = granite_keys },
    { "SmolLM3ForCausalLM", "smollm3", .w = { RMS_ROPE }, MODEL, .names = llama_names,
      .window = WINDOW_NOPE_IF_USED, .def_nope_every = 4, .def_kv_heads = 4, .def_theta = 2e6,
      .def_max_pos = 32768, .def_tied = true },
    { "VaultGemmaForCausalLM", "vaultgemma", .w = { RMS_ROPE, .norm_offset = 1 }, MODEL,
      .names = vaultgemma_names, .keys = gemma2_keys, .embed_sqrt = true, GELU_TANH,
      .window = WINDOW_PATTERN, .def_pattern = 2, .def_window = 4096, .def_kv_heads = 4,
      .def_head_dim = 256, .def_max_pos = 8192, .def_tied = true },
    { "Olmo3ForCausalLM", "olmo3", .w = { RMS_ROPE, .qk_norm = QK_NORM_ALL }, MODEL,
      .names = olmo2_names, .window = WINDOW_PATTERN, .def_pattern = 4, .def_window = 4096,
      .def_eps = 1e-5, .def_local_theta = -1 },
    { "Exaone4ForCausalLM", "exaone4", .w = { RMS_ROPE, .qk_norm = QK_NORM_HEAD }, MODEL,
      .names = olmo2_names, .window = WINDOW_PATTERN, .def_pattern = 4, .def_window = 4096,
      .def_kv_heads = 32, .def_eps = 1e-5, .nope_full = true },
    { "GlmForCausalLM", "glm", .w = { RMS_PAIRS }, MODEL, .names = glm_names, .def_kv_heads = 2,
      .def_head_dim = 128, .def_partial = 0.5, .def_eps = 1.5625e-07, .def_max_pos = 131072 },
    { "Glm4ForCausalLM", "glm4", .w = { RMS_PAIRS }, MODEL, .names = glm4_names, .def_kv_heads = 2,
      .def_head_dim = 128, .def_partial = 0.5, .def_eps = 1.5625e-07, .def_max_pos = 131072 },
    { "HeliumForCausalLM", "helium", .w = { RMS_PAIRS }, MODEL, .names = helium_names,
      .def_kv_heads = 20, .def_head_dim = 128, .def_eps = 1e-8, .def_theta = 1e5,
      .def_max_pos = 4096 },
    { "Ernie4_5ForCausalLM", "ernie4_5", .w = { RMS_PAIRS }, MODEL, .names = llama_names,
      .keys = ernie_keys, .def_kv_heads = 2, .def_head_dim = 128, .def_eps = 1e-5, .def_theta = 5e5,
      .def_max_pos = 131072, .def_tied = true },
    { "SeedOssForCausalLM", "seed_oss", .w = { RMS_ROPE }, MODEL, .names = seed_oss_names,
      .keys = seed_oss_keys, .def_kv_heads = 8, .def_head_dim = 128, .def_max_pos = 524288 },
    { "MinistralForCausalLM", "ministral", .w = { RMS_ROPE }, MODEL, .names = mistral_names,
      .window = WINDOW_ALL, .def_kv_heads = 8, .def_window = 4096, .def_max_pos = 131072 },
    { "Cohere2ForCausalLM", "cohere2",
      .w = { .norm = NORM_LAYER,
             .pos = POS_ROPE,
             .mlp = MLP_GATED,
             .parallel = true,
             .one_norm = true },
      MODEL, .names = cohere_names, .keys = cohere2_keys, .window = WINDOW_PATTERN,
      .def_pattern = 4, .def_window = 4096, .nope_full = true, .def_head_dim = 128, .def_eps = 1e-5,
      .def_max_pos = 8192, .def_tied = true },
    { "CohereForCausalLM", "cohere",
      .w = { .norm = NORM_LAYER,
             .pos = POS_ROPE,
             .mlp = MLP_GATED,
             .parallel = true,
             .one_norm = true },
      MODEL, .names = cohere_names, .keys = cohere_keys, .def_eps = 1e-5, .def_max_pos = 8192,
      .def_tied = true },
    { "StableLmForCausalLM", "stablelm", .w = { LN_ROPE, .mlp = MLP_GATED }, MODEL,
      .names = stablelm_names, .keys = stablelm_keys, .def_eps = 1e-5, .def_partial = 0.25,
      .def_max_pos = 4096 },
    { "Starcoder2ForCausalLM", "starcoder2", .w = { LN_ROPE, .mlp = MLP_PLAIN }, MODEL,
      .names = starcoder2_names, .keys = starcoder2_keys, GELU_TANH, .window = WINDOW_ALL,
      .def_kv_heads = 2, .def_eps = 1e-5, .def_max_pos = 4096, .def_tied = true },
    { "PhiForCausalLM", "phi",
      .w = { LN_ROPE, .mlp = MLP_PLAIN, .parallel = true, .one_norm = true }, MODEL,
      .names = phi_names, .keys = phi_keys, GELU_TANH, .def_eps = 1e-5, .def_partial = 0.5 },
    { "PersimmonForCausalLM", "persimmon",
      .w = { LN_ROPE, .mlp = MLP_PLAIN, .qkv_grouped = true, .qk_norm = QK_NORM_HEAD }, MODEL,
      .names = persimmon_names, .keys = phi_keys, .def_act = ARCH_RELU2, .def_eps = 1e-5,
      .def_theta = 25000, .def_partial = 0.5, .def_max_pos = 16384 },
    { "NemotronForCausalLM", "nemotron", .w = { LN_ROPE, .norm_offset = 1, .mlp = MLP_PLAIN },
      MODEL, .names = nemotron_names, .def_act = ARCH_RELU2, .def_eps = 1e-5, .def_partial = 0.5,
      .def_max_pos = 4096 },
    { "ArceeForCausalLM", "arcee",
      .w = { .norm = NORM_RMS, .pos = POS_ROPE, .rope_half = true, .mlp = MLP_PLAIN }, MODEL,
      .names = arcee_names, .def_act = ARCH_RELU2, .def_eps = 1e-5, .def_max_pos = 4096 },
    { "OlmoForCausalLM", "olmo", .w = { LN_ROPE, .mlp = MLP_GATED }, MODEL, .names = olmo_names,
      .keys = olmo_keys, .def_eps = 1e-5 },
    { "HunYuanDenseV1ForCausalLM", "hunyuan_v1_dense",
      .w = { RMS_ROPE, .qk_norm = QK_NORM_HEAD, .qk_norm_late = true }, MODEL,
      .names = hunyuan_names, .keys = hunyuan_keys, .def_eps = 1e-5 },

    { "MixtralForCausalLM", "mixtral", .w = { RMS_ROPE, .norm_topk = true }, MODEL,
      .names = mixtral_names, .keys = mixtral_keys, .window = WINDOW_ALL, .def_kv_heads = 8,
      .def_eps = 1e-5, .def_theta = 1e6, .def_max_pos = 131072 },
    { "Qwen2MoeForCausalLM", "qwen2_moe", .w = { RMS_ROPE }, MODEL, .names = qwen2_moe_names,
      .keys = qwen2_moe_keys, .window = WINDOW_ALL_IF_USED, .def_window = 4096, .def_kv_heads = 16,
      .def_max_pos = 32768 },
    { "Qwen3MoeForCausalLM", "qwen3_moe", .w = { RMS_ROPE, .qk_norm = QK_NORM_HEAD }, MODEL,
      .names = qwen3_moe_names, .keys = qwen3_moe_keys, .window = WINDOW_ALL_IF_USED,
      .def_window = 4096, .def_kv_heads = 4, .def_max_pos = 32768 },
    { "DeepseekV2ForCausalLM", "deepseek_v2", .w = { RMS_PAIRS, .mla = true }, MODEL,
      .names = deepseek_v2_names, .keys = deepseek_v2_keys, .def_shared = 2 },
    { "DeepseekV3ForCausalLM", "deepseek_v3", .w = { RMS_PAIRS, .mla = true, SIGMOID_MOE }, MODEL,
      .names = deepseek_v3_names, .keys = deepseek_v3_keys, .def_max_pos = 4096, .def_dense = 3,
      .def_shared = 1 },
    { "Glm4MoeForCausalLM", "glm4_moe", .w = { RMS_ROPE, SIGMOID_MOE }, MODEL,
      .names = glm4_moe_names, .keys = glm4_moe_keys, .def_kv_heads = 8, .def_partial = 0.5,
      .def_eps = 1e-5, .def_max_pos = 131072, .def_dense = 1, .def_shared = 1 },
    { "Dots1ForCausalLM", "dots1", .w = { RMS_ROPE, .qk_norm = QK_NORM_HEAD, SIGMOID_MOE }, MODEL,
      .names = dots1_names, .keys = dots1_keys, .window = WINDOW_ALL, .def_kv_heads = 32 },
    { "OlmoeForCausalLM", "olmoe", .w = { RMS_ROPE, .qk_norm = QK_NORM_ALL }, MODEL,
      .names = qwen3_moe_names, .keys = olmoe_keys, .def_kv_heads = 16, .def_eps = 1e-5,
      .def_max_pos = 4096 },
    { "GraniteMoeForCausalLM", "granitemoe", .w = { RMS_ROPE, .norm_topk = true }, MODEL,
      .names = granite_moe_names, .keys = granite_moe_keys },
    { "GptOssForCausalLM", "gpt_oss", .w = { RMS_ROPE, .norm_topk = true, .gate_up_mixed = true },
      MODEL, .names = gpt_oss_names, .keys = gpt_oss_keys, .def_act = ARCH_SWIGLU_CLAMPED,
      .fixed_act = true, .window = WINDOW_PATTERN, .def_pattern = 2, .def_window = 128,
      .def_kv_heads = 8, .def_head_dim = 64, .def_eps = 1e-5, .def_theta = 150000,
      .def_max_pos = 131072 },

    { "GPT2LMHeadModel", "gpt2", .w = { GPT, .pos = POS_LEARNED }, TRANSFORMER, .names = gpt2_names,
      .keys = gpt2_keys, GELU_TANH, .def_ffn = 4, .def_eps = 1e-5, .def_max_pos = 1024,
      .def_tied = true },
    { "GPTBigCodeForCausalLM", "gpt_bigcode", .w = { GPT, .pos = POS_LEARNED }, TRANSFORMER,
      .names = gpt_bigcode_names, .keys = gpt_bigcode_keys, GELU_TANH, .def_ffn = 4,
      .def_eps = 1e-5, .def_max_pos = 1024, .def_tied = true },
    { "GPTNeoForCausalLM", "gpt_neo", .w = { GPT, .pos = POS_LEARNED }, TRANSFORMER,
      .names = gpt_neo_names, .keys = gpt_neo_keys, GELU_TANH, .window = WINDOW_LOCAL,
      .def_window = 256, .def_ffn = 4, .def_eps = 1e-5, .def_tied = true },
    { "GPTJForCausalLM", "gptj", .w = { GPT, .pos = POS_ROPE, .parallel = true, .one_norm = true },
      TRANSFORMER, .names = gptj_names, .keys = gptj_keys, GELU_TANH, .def_ffn = 4,
      .def_eps = 1e-5 },
    { "GPTNeoXForCausalLM", "gpt_neox", .w = { LN_ROPE, .mlp = MLP_PLAIN, .qkv_grouped = true },
      .prefix = "gpt_neox.", .names = gpt_neox_names, .keys = gpt_neox_keys, GELU, .def_eps = 1e-5,
      .def_partial = 0.25 },
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
    { .arch = NULL },
};
