/* formats/arch/rows/longcat.c - LongCat-Flash (arXiv:2509.01322): of two layers of latent attention with an MLP, which
 * have one number in names, the first has experts too, whose output joins x after the second. Experts of the highest
 * numbers put out what they read. */
#include "formats/arch/arch_impl.h"
#include "formats/arch/rows/rows.h"

#include "base/json.h"

/* "num_layers" counts pairs. */
static lq_status longcat_words(cJSON *j, lq_err *err)
{
    static const char pairs[] = "num_layers", layers[] = "num_hidden_layers";
    const cJSON *said = js_get(j, layers);
    int64_t n, all;
    if (!js_get(j, pairs) && said) {
        if (!js_whole(said, 2, ARCH_MAX_WIDTH, &all) || all % 2)
            return lq_fail(err, LQ_EVALUE, "%s: expected an even number", layers);
        return LQ_OK;
    }
    const lq_status s = js_i64(j, pairs, true, 1, ARCH_MAX_LAYERS / 2, &n, err);
    if (s) return s;
    if (said && !(js_whole(said, 1, ARCH_MAX_WIDTH, &all) && all == 2 * n))
        return lq_fail(err, LQ_EVALUE, "%s: expected twice %s", layers, pairs);
    cJSON_DeleteItemFromObjectCaseSensitive(j, layers);
    cJSON_AddItemToObject(j, layers, cJSON_CreateNumber((double)(2 * n)));
    return LQ_OK;
}

static lq_status zero_kind(arch_config *c, const char *key, const cJSON *v, lq_err *err)
{
    (void)c;
    return arch_key_must(key, v, "identity", err);
}

/* As it is here. */
static lq_status router_type(arch_config *c, const char *key, const cJSON *v, lq_err *err)
{
    (void)c;
    return arch_key_must(key, v, "float32", err);
}

static lq_status attention_kind(arch_config *c, const char *key, const cJSON *v, lq_err *err)
{
    (void)c;
    return arch_key_must(key, v, "MLA", err);
}

/* q and the latents are scaled as if hidden were as wide as they are. */
static lq_status longcat_layers(arch_config *c, const cJSON *j, lq_err *err)
{
    const cJSON *dim = js_get(j, "head_dim");
    int64_t n;
    if (!c->q_lora || !c->kv_lora)
        return lq_fail(err, LQ_EVALUE, "q_lora_rank: expected 1 or more, found 0");
    if (dim && !(js_whole(dim, 1, ARCH_MAX_WIDTH, &n) && n == c->rope_dims))
        return lq_fail(err, LQ_EVALUE, "head_dim: expected qk_rope_head_dim");
    if (js_get(j, "qk_head_dim") &&
        !(js_whole(js_get(j, "qk_head_dim"), 1, ARCH_MAX_WIDTH, &n) && n == c->head_dim))
        return lq_fail(err, LQ_EVALUE, "qk_head_dim: expected qk_nope_head_dim + qk_rope_head_dim");
    c->attn_scale *= sqrt((double)c->hidden / (double)c->q_lora);
    c->latent_scale = sqrt((double)c->hidden / (double)c->kv_lora);
    for (int64_t i = 0; i < c->layers; i++) {
        if (c->experts && !c->layer[i].moe)
            return lq_fail(err, LQ_EUNSUPPORTED, "expected experts in every pair of layers");
        c->layer[i].moe = i % 2 == 0;
    }
    return LQ_OK;
}

/* clang-format off */
static const arch_name longcat_names[] = {
    EMBED_NORM_HEAD(BIAS_NO),
    { R_ATTN_NORM, LAYER "input_layernorm.%p", 0, BIAS_NO },
    { R_MLP_NORM, LAYER "post_attention_layernorm.%p", 0, BIAS_NO },
    { R_Q_A, LAYER "self_attn.%p.q_a_proj", 0, BIAS_ATTN },
    { R_Q_A_NORM, LAYER "self_attn.%p.q_a_layernorm", 0, BIAS_NO },
    { R_Q_B, LAYER "self_attn.%p.q_b_proj", 0, BIAS_NO },
    { R_KV_A, LAYER "self_attn.%p.kv_a_proj_with_mqa", 0, BIAS_ATTN },
    { R_KV_A_NORM, LAYER "self_attn.%p.kv_a_layernorm", 0, BIAS_NO },
    { R_KV_B, LAYER "self_attn.%p.kv_b_proj", 0, BIAS_NO },
    { R_O, LAYER "self_attn.%p.o_proj", 0, BIAS_ATTN },
    { R_GATE, LAYER "mlps.%p.gate_proj", 0, BIAS_NO },
    { R_UP, LAYER "mlps.%p.up_proj", 0, BIAS_NO },
    { R_DOWN, LAYER "mlps.%p.down_proj", 0, BIAS_NO },
    { R_ROUTER, LAYER "mlp.router.classifier", 0, BIAS_NO },
    { R_ROUTER_CORR, LAYER "mlp.router.e_score_correction_bias", NAME_BARE, BIAS_NO },
    EXPERTS("mlp", "gate_proj", "up_proj", "down_proj"),
    END,
};
static const arch_key longcat_keys[] = {
    { "q_lora_rank", KEY_INT, AT(q_lora), 1536, NULL },
    { "kv_lora_rank", KEY_INT, AT(kv_lora), 512, NULL },
    { "qk_nope_head_dim", KEY_INT, AT(nope_dims), 128, NULL },
    { "qk_rope_head_dim", KEY_INT, AT(rope_dims), 64, NULL },
    { "v_head_dim", KEY_INT, AT(v_dim), 128, NULL },
    { "qk_head_dim", KEY_KNOWN, 0, NONE, NULL }, /* the sum of two above */
    { "n_routed_experts", KEY_INT, AT(experts), 512, NULL },
    { "zero_expert_num", KEY_INT, AT(zero_experts), 256, NULL },
    { "moe_topk", KEY_INT, AT(experts_used), 12, NULL },
    { "expert_ffn_hidden_size", KEY_INT, AT(expert_ffn), 2048, NULL },
    { "routed_scaling_factor", KEY_REAL, AT(expert_scale), 6, NULL },
    { "zero_expert_type", KEY_FN, 0, NONE, zero_kind },
    { "attention_method", KEY_FN, 0, NONE, attention_kind },
    { "router_dtype", KEY_FN, 0, NONE, router_type },
    MUST("router_bias", 0),
    MUST("mla_scale_q_lora", 1),
    MUST("mla_scale_kv_lora", 1),
    MUST("norm_topk_prob", 0),
    NO_KEY,
};

const arch_row arch_rows_longcat[] = {
    { "LongcatFlashForCausalLM", "longcat_flash",
      .w = { RMS_PAIRS, .mla = true, .dense_beside = true, .shortcut = true }, MODEL, .names = longcat_names,
      .keys = longcat_keys, .respell = longcat_words, .layers = longcat_layers, .def_eps = 1e-5,
      .def_theta = 1e7, .def_max_pos = 131072 },
    { .arch = NULL },
};
/* clang-format on */
