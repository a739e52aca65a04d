/* formats/arch/rows/hybrid.c - models whose layers carry a state: gated delta rule, short convolution,
 * Mamba and Mamba-2; most have some layers of attention between. */
#include "formats/arch/arch_impl.h"
#include "formats/arch/rows/rows.h"

#include "base/json.h"

/* ---- keys with a meaning of their own ---- */

/* The MLP of LFM2 is two thirds of what is said, ... */
static lq_status two_thirds(arch_config *c, const char *key, const cJSON *v, lq_err *err)
{
    if (v && !cJSON_IsTrue(v)) return lq_fail(err, LQ_EVALUE, "%s: expected true or false", key);
    c->ffn = 2 * c->ffn / 3;
    return LQ_OK;
}

/* ... times a factor, ... */
static lq_status times_ffn(arch_config *c, const char *key, const cJSON *v, lq_err *err)
{
    const double f = v ? v->valuedouble : 1;
    if ((v && !cJSON_IsNumber(v)) || !(f > 0 && f <= 1024))
        return lq_fail(err, LQ_EVALUE, "%s: expected a number 0..1024", key);
    c->ffn = (int64_t)(f * (double)c->ffn);
    return LQ_OK;
}

/* ... rounded up. */
static lq_status round_ffn(arch_config *c, const char *key, const cJSON *v, lq_err *err)
{
    int64_t n = 256;
    if (v && !js_whole(v, 1, 1 << 20, &n))
        return lq_fail(err, LQ_EVALUE, "%s: expected an integer 1..1048576", key);
    c->ffn = lq_ceil_div(c->ffn, n) * n;
    return LQ_OK;
}

/* Of four layers of LFM3 one attends in a window, one to all, where no list says so. */
static lq_status lfm3_layers(arch_config *c, const cJSON *j, lq_err *err)
{
    (void)err;
    for (int64_t i = 0; i < c->layers && !js_get(j, "layer_types"); i++) {
        const bool window = c->window && i % 4 == 0 && i > 0;
        c->layer[i].window = window;
        c->layer[i].mixer = i % 4 == 2 || window ? MIX_ATTENTION : MIX_CONV;
        c->layer[i].rope = window ? ROPE_LOCAL : ROPE_MAIN;
    }
    return LQ_OK;
}

/* [lowest, highest] of Mamba-2's time step; null or Infinity: no bound. */
static lq_status time_step_limit(arch_config *c, const char *key, const cJSON *v, lq_err *err)
{
    const cJSON *lo = cJSON_IsArray(v) ? v->child : NULL, *hi = lo ? lo->next : NULL;
    if (!v) return LQ_OK;
    if (!cJSON_IsNumber(lo) || !hi || hi->next || !(lo->valuedouble >= 0 && lo->valuedouble <= 1e9))
        return lq_fail(err, LQ_EVALUE, "%s: expected [lowest, highest]", key);
    if (cJSON_IsNumber(hi) && !(hi->valuedouble > lo->valuedouble))
        return lq_fail(err, LQ_EVALUE, "%s: expected a highest above %g, found %g", key,
                       lo->valuedouble, hi->valuedouble);
    c->dt_min = lo->valuedouble;
    c->dt_max = cJSON_IsNumber(hi) && hi->valuedouble <= 1e9 ? hi->valuedouble : 0;
    return LQ_OK;
}

/* Values of all heads, as a factor on hidden: in mix_value till mamba_head. */
static lq_status mamba_expand(arch_config *c, const char *key, const cJSON *v, lq_err *err)
{
    int64_t factor = 2;
    if (v && !js_whole(v, 1, 1024, &factor))
        return lq_fail(err, LQ_EVALUE, "%s: expected an integer 1..1024", key);
    c->mix_value = factor * c->hidden;
    return LQ_OK;
}

/* Values of a head; "auto": its part of all. */
static lq_status mamba_head(arch_config *c, const char *key, const cJSON *v, lq_err *err)
{
    const bool said = v && !cJSON_IsString(v);
    const int64_t all = c->mix_value;
    if (c->mix_heads > 0) c->mix_value = all / c->mix_heads;
    if (said && !js_whole(v, 1, 1 << 20, &c->mix_value))
        return lq_fail(err, LQ_EVALUE, "%s: expected an integer or auto", key);
    return LQ_OK;
}

/* ---- Mamba ---- */

/* After mamba_expand: where it is said it counts, as in transformers (Falcon-Mamba's file says expand 16 beside
 * a width of 2 hidden). */
static lq_status inner_size(arch_config *c, const char *key, const cJSON *v, lq_err *err)
{
    char found[64];
    if (!v || js_whole(v, 1, 1 << 22, &c->mix_value)) return LQ_OK;
    return lq_fail(err, LQ_EVALUE, "%s: expected an integer 1..4194304, found %s", key,
                   js_describe(found, v));
}

/* Jamba: of so many layers one attends, and of so many one has experts. One expert is an MLP. */
static lq_status jamba_layers(arch_config *c, const cJSON *j, lq_err *err)
{
    static const char *const keys[] = { "attn_layer_period", "attn_layer_offset",
                                        "expert_layer_period", "expert_layer_offset" };
    int64_t v[] = { 8, 4, 2, 1 };
    lq_status s = LQ_OK;
    for (int i = 0; i < 4 && !s; i++)
        s = js_i64(j, keys[i], false, i % 2 ? 0 : 1, INT32_MAX, &v[i], err);
    for (int i = 0; i < 4 && !s; i += 2)
        if (v[i + 1] >= v[i])
            s = lq_fail(err, LQ_EVALUE, "%s: expected less than %s %lld, found %lld", keys[i + 1],
                        keys[i], (long long)v[i], (long long)v[i + 1]);
    if (c->experts <= 1) c->experts = c->experts_used = c->expert_ffn = 0;
    for (int64_t i = 0; i < c->layers && !s; i++) {
        c->layer[i].mixer = i % v[0] == v[1] ? MIX_ATTENTION : MIX_SELECT;
        c->layer[i].moe = c->experts && i % v[2] == v[3];
    }
    return s;
}

/* ---- Falcon-H1's factors ---- */

static lq_status factor_of(double *f, const char *key, const cJSON *v, lq_err *err)
{
    *f = v ? v->valuedouble : 1;
    if ((!v || cJSON_IsNumber(v)) && *f >= 0 && *f <= 1e9) return LQ_OK;
    return lq_fail(err, LQ_EVALUE, "%s: expected a number 0..1e9", key);
}

/* What a factor on attention's input does to q, k and v, ... */
static lq_status attention_in(arch_config *c, const char *key, const cJSON *v, lq_err *err)
{
    double f;
    const lq_status s = factor_of(&f, key, v, err);
    c->attn_scale *= f * f;
    c->o_scale *= f;
    return s;
}

/* ... one on k to the scores, ... */
static lq_status key_factor(arch_config *c, const char *key, const cJSON *v, lq_err *err)
{
    double f;
    const lq_status s = factor_of(&f, key, v, err);
    c->attn_scale *= f;
    return s;
}

/* ... and one on the output. */
static lq_status attention_out(arch_config *c, const char *key, const cJSON *v, lq_err *err)
{
    double f;
    const lq_status s = factor_of(&f, key, v, err);
    c->o_scale *= f;
    return s;
}

/* An array of n factors, or nothing. */
static lq_status factors_of(double *out[], int n, const char *key, const cJSON *v, lq_err *err)
{
    lq_status s = LQ_OK;
    if (v && (!cJSON_IsArray(v) || cJSON_GetArraySize(v) != n))
        return lq_fail(err, LQ_EVALUE, "%s: expected an array of %d numbers", key, n);
    const cJSON *e = v ? v->child : NULL;
    for (int i = 0; i < n && e && !s; i++, e = e->next)
        s = factor_of(out[i], key, e, err);
    return s;
}

static lq_status mlp_factors(arch_config *c, const char *key, const cJSON *v, lq_err *err)
{
    double *out[] = { &c->gate_scale, &c->down_scale };
    return factors_of(out, (int)LQ_COUNT(out), key, v, err);
}

static lq_status mamba_factors(arch_config *c, const char *key, const cJSON *v, lq_err *err)
{
    double *out[LQ_COUNT(c->mix_scale)];
    for (size_t i = 0; i < LQ_COUNT(out); i++)
        out[i] = &c->mix_scale[i];
    return factors_of(out, (int)LQ_COUNT(out), key, v, err);
}

static lq_status mamba_in(arch_config *c, const char *key, const cJSON *v, lq_err *err)
{
    double f;
    const lq_status s = factor_of(&f, key, v, err);
    for (size_t i = 0; i < LQ_COUNT(c->mix_scale); i++)
        c->mix_scale[i] *= f;
    return s;
}

/* ---- OLMo Hybrid ---- */

/* As many heads of each kind as attention has. */
static lq_status heads_or(int64_t *n, const arch_config *c, const char *key, const cJSON *v,
                          lq_err *err)
{
    *n = c->heads;
    if (!v || js_whole(v, 1, 1 << 20, n)) return LQ_OK;
    return lq_fail(err, LQ_EVALUE, "%s: expected a positive integer", key);
}

static lq_status value_heads(arch_config *c, const char *key, const cJSON *v, lq_err *err)
{
    return heads_or(&c->mix_heads, c, key, v, err);
}

static lq_status key_heads(arch_config *c, const char *key, const cJSON *v, lq_err *err)
{
    return heads_or(&c->mix_groups, c, key, v, err);
}

/* All keys are three quarters of hidden, ... */
static lq_status key_dim(arch_config *c, const char *key, const cJSON *v, lq_err *err)
{
    c->mix_key = c->mix_groups > 0 ? 3 * c->hidden / (4 * c->mix_groups) : 0;
    if (!v || js_whole(v, 1, 1 << 20, &c->mix_key)) return LQ_OK;
    return lq_fail(err, LQ_EVALUE, "%s: expected a positive integer", key);
}

/* ... and a value is twice a key. */
static lq_status value_dim(arch_config *c, const char *key, const cJSON *v, lq_err *err)
{
    c->mix_value = 2 * c->mix_key;
    if (!v || js_whole(v, 1, 1 << 20, &c->mix_value)) return LQ_OK;
    return lq_fail(err, LQ_EVALUE, "%s: expected a positive integer", key);
}

/* Nothing rotates where no theta is said. */
static lq_status rope_if_said(arch_config *c, const char *key, const cJSON *v, lq_err *err)
{
    (void)key, (void)err;
    if (cJSON_IsNumber(v) || cJSON_IsNumber(js_get(v, "rope_theta"))) c->w.pos = POS_ROPE;
    return LQ_OK;
}

/* ---- Nemotron-H's experts ---- */

/* config.json has their numbers also where no layer has any. */
static lq_status without_experts(arch_config *c, const cJSON *config, lq_err *err)
{
    if (!js_get(config, "layers_block_type") && !js_get(config, "layer_types") &&
        !js_get(config, "hybrid_override_pattern"))
        return lq_fail(err, LQ_EVALUE,
                       "layers_block_type: expected what each layer is, found nothing");
    for (int64_t i = 0; i < c->layers; i++)
        if (c->layer[i].moe) return LQ_OK;
    c->experts = c->experts_used = c->expert_ffn = c->shared_ffn = c->latent = 0;
    c->expert_groups = c->groups_used = 1;
    c->expert_scale = 1;
    c->w.norm_topk = c->row->w.norm_topk;
    return LQ_OK;
}

/* ---- Qwen4-Exp ---- */

/* Each layer that attends has an indexer, whatever it is called. */
static lq_status qwen4_words(cJSON *j, lq_err *err)
{
    cJSON *types = cJSON_GetObjectItemCaseSensitive(j, "layer_types");
    for (cJSON *t = cJSON_IsArray(types) ? types->child : NULL; t; t = t->next) {
        const char *word = cJSON_IsString(t) ? t->valuestring : "";
        const bool indexed = strcmp(word, "indexed_attention") == 0;
        if (indexed && !cJSON_SetValuestring(t, "full_attention"))
            return lq_fail(err, LQ_ENOMEM, "layer_types: no memory");
        if (!indexed && strcmp(word, "linear_attention") != 0 &&
            strcmp(word, "full_attention") != 0)
            return lq_fail(err, LQ_EUNSUPPORTED,
                           "layer_types: expected linear_attention or indexed_attention, found "
                           "\"%.40s\"",
                           word);
    }
    return LQ_OK;
}

static lq_status several_streams(arch_config *c, const char *key, const cJSON *v, lq_err *err)
{
    c->hyper = 4;
    if (!v || js_whole(v, 2, ARCH_MAX_STREAMS, &c->hyper)) return LQ_OK;
    return lq_fail(err, LQ_EVALUE, "%s: expected an integer 2..%d", key, ARCH_MAX_STREAMS);
}

/* The id that ends n-grams: of several the first. */
static lq_status end_of_ngrams(arch_config *c, const cJSON *config, lq_err *err)
{
    const cJSON *eos = js_get(config, "eos_token_id");
    if (cJSON_IsArray(eos)) eos = eos->child;
    if (js_whole(eos, 0, c->vocab - 1, &c->ngram_pad)) return LQ_OK;
    return lq_fail(
        err, LQ_EVALUE,
        "eos_token_id: expected an id below %lld, which ends n-grams, found another or none",
        (long long)c->vocab);
}

/* Layers, counted from 1, that add embeddings of n-grams. */
static lq_status layers_with_ngrams(arch_config *c, const cJSON *config, lq_err *err)
{
    static const char key[] = "ple_layer_ids";
    const struct {
        const char *key;
        int64_t def, *at;
    } numbers[] = {
        { "ngram_size", 3, &c->ngram },
        { "heads_per_ngram", 8, &c->ngram_heads },
        { "ple_embed_dim", c->hidden, &c->ngram_dim },
        { "ple_conv_kernel_size", 4, &c->ngram_taps },
        { "ngram_vocab_size_base", 20000000, &c->ngram_base },
        { "make_ngram_vocab_size_divisible_by", 128, &c->ngram_even },
        { "seed", 1234, &c->ngram_seed },
    };
    const cJSON *list = js_get(config, key);
    if (!list || (cJSON_IsArray(list) && !list->child)) return LQ_OK;
    if (!cJSON_IsArray(list)) return lq_fail(err, LQ_EVALUE, "%s: expected an array", key);
    for (const cJSON *e = list->child; e; e = e->next) {
        int64_t i;
        if (!js_whole(e, 1, c->layers, &i) || !arch_mixer_has_state(c->layer[i - 1].mixer))
            return lq_fail(
                err, LQ_EVALUE,
                "%s: expected numbers 1..%lld of layers of linear_attention, found another", key,
                (long long)c->layers);
        c->layer[i - 1].ngrams = 1;
    }
    for (size_t i = 0; i < LQ_COUNT(numbers); i++) {
        *numbers[i].at = numbers[i].def;
        const lq_status s = js_i64(config, numbers[i].key, false, 0, INT32_MAX, numbers[i].at, err);
        if (s) return s;
    }
    return end_of_ngrams(c, config, err);
}

/* Of a layer with a state; null: hidden_act's, which is SiLU. */
static lq_status output_gate(arch_config *c, const char *key, const cJSON *v, lq_err *err)
{
    c->w.mix_sigmoid = cJSON_IsString(v) && strcmp(v->valuestring, "sigmoid") == 0;
    return c->w.mix_sigmoid ? LQ_OK : arch_key_must(key, v, "silu", err);
}

/* ---- what has one value ---- */

static lq_status must_be_relu2(arch_config *c, const char *key, const cJSON *v, lq_err *err)
{
    (void)c;
    return arch_key_must(key, v, "relu2", err);
}

/* A table of names reads by line. */
/* clang-format off */
#define DELTA_NET \
    { R_MIX_CONV, LAYER "linear_attn.conv1d", NAME_TAPS, BIAS_NO }, \
    { R_MIX_DT, LAYER "linear_attn.dt_bias", NAME_BARE, BIAS_NO }, \
    { R_MIX_A_LOG, LAYER "linear_attn.A_log", NAME_BARE, BIAS_NO }, \
    { R_MIX_NORM, LAYER "linear_attn.norm", 0, BIAS_NO }, \
    { R_MIX_OUT, LAYER "linear_attn.out_proj", 0, BIAS_NO }
#define QWEN_EXPERTS \
    { R_ROUTER, LAYER "mlp.gate", 0, BIAS_NO }, \
    EXPERTS("mlp", "gate_proj", "up_proj", "down_proj"), \
    { R_SHARED_ROUTER, LAYER "mlp.shared_expert_gate", 0, BIAS_NO }, \
    SHARED("mlp.shared_expert")
#define QWEN35_DELTA \
    { R_MIX_IN, LAYER "linear_attn.in_proj_qkv", 0, BIAS_NO }, \
    { R_MIX_GATE, LAYER "linear_attn.in_proj_z", 0, BIAS_NO }, \
    { R_MIX_B, LAYER "linear_attn.in_proj_b", 0, BIAS_NO }, \
    { R_MIX_A, LAYER "linear_attn.in_proj_a", 0, BIAS_NO }, \
    DELTA_NET
static const arch_name qwen3_next_names[] = {
    LLAMA_NAMES(BIAS_ATTN, BIAS_ATTN, BIAS_NO),
    QK_NORMS,
    { R_MIX_IN, LAYER "linear_attn.in_proj_qkvz", 0, BIAS_NO },
    { R_MIX_BA, LAYER "linear_attn.in_proj_ba", 0, BIAS_NO },
    DELTA_NET,
    QWEN_EXPERTS,
    END,
};
/* As GGUF has them. */
static const arch_name qwen3_next_apart_names[] = {
    LLAMA_NAMES(BIAS_ATTN, BIAS_ATTN, BIAS_NO),
    QK_NORMS,
    { R_MIX_IN, LAYER "linear_attn.in_proj_qkv", 0, BIAS_NO },
    { R_MIX_GATE, LAYER "linear_attn.in_proj_z", 0, BIAS_NO },
    { R_MIX_BA, LAYER "linear_attn.in_proj_ba", 0, BIAS_NO },
    DELTA_NET,
    QWEN_EXPERTS,
    END,
};
static const arch_name qwen35_names[] = {
    LLAMA_NAMES(BIAS_ATTN, BIAS_ATTN, BIAS_NO),
    QK_NORMS,
    QWEN35_DELTA,
    END,
};
static const arch_name qwen35_moe_names[] = {
    EMBED_NORM_HEAD(BIAS_NO),
    PRE_NORMS(BIAS_NO),
    SELF_ATTN(BIAS_ATTN, BIAS_ATTN),
    QK_NORMS,
    QWEN35_DELTA,
    QWEN_EXPERTS,
    END,
};
#define GATED_STREAMS(norm, at) \
    { norm, at "hc_norm", 0, BIAS_NO }, \
    { (arch_role)((norm) + 1), at "input_mix_weight_down", 0, BIAS_NO }, \
    { (arch_role)((norm) + 2), at "input_mix_weight_up", 0, BIAS_NO }
static const arch_name qwen4_names[] = {
    { R_EMBED, "@embed_tokens", 0, BIAS_NO },
    { R_HEAD, "^lm_head", 0, BIAS_NO },
    GATED_STREAMS(R_HYPER_END_NORM, "@hyper_connection_mixer."),
    GATED_STREAMS(R_HYPER_ATTN_NORM, LAYER "attn_hyper_connection."),
    { R_HYPER_ATTN_POST, LAYER "attn_hyper_connection.block_inject_weight", 0, BIAS_NO },
    GATED_STREAMS(R_HYPER_MLP_NORM, LAYER "mlp_hyper_connection."),
    { R_HYPER_MLP_POST, LAYER "mlp_hyper_connection.block_inject_weight", 0, BIAS_NO },
    SELF_ATTN(BIAS_ATTN, BIAS_ATTN),
    QK_NORMS,
    { R_INDEX_Q, LAYER "self_attn.indexer.index_qk_proj", 0, BIAS_NO },
    { R_INDEX_Q_NORM, LAYER "self_attn.indexer.q_layernorm", 0, BIAS_NO },
    { R_INDEX_K_NORM, LAYER "self_attn.indexer.k_layernorm", 0, BIAS_NO },
    { R_NGRAM_TABLE, LAYER "ple.ple_embedding.ngram_embedding%s", NAME_ANY_ROWS, BIAS_NO },
    { R_NGRAM_KEY, LAYER "ple.key_proj", 0, BIAS_NO },
    { R_NGRAM_VALUE, LAYER "ple.value_proj", 0, BIAS_NO },
    { R_NGRAM_KEY_NORM, LAYER "ple.norm_key", 0, BIAS_NO },
    { R_NGRAM_QUERY_NORM, LAYER "ple.norm_query", 0, BIAS_NO },
    { R_NGRAM_CONV_NORM, LAYER "ple.norm_conv", 0, BIAS_NO },
    { R_NGRAM_CONV, LAYER "ple.conv1d", NAME_TAPS, BIAS_NO },
    QWEN35_DELTA,
    QWEN_EXPERTS,
    END,
};
#define LFM_NAMES \
    { R_EMBED, "@embed_tokens", 0, BIAS_NO }, \
    { R_FINAL_NORM, "@embedding_norm", 0, BIAS_NO }, \
    { R_HEAD, "^lm_head", 0, BIAS_NO }, \
    { R_ATTN_NORM, LAYER "operator_norm", 0, BIAS_NO }, \
    { R_MLP_NORM, LAYER "ffn_norm", 0, BIAS_NO }, \
    { R_MIX_IN, LAYER "conv.in_proj", 0, BIAS_CONV }, \
    { R_MIX_CONV, LAYER "conv.conv", NAME_TAPS, BIAS_CONV }, \
    { R_MIX_OUT, LAYER "conv.out_proj", 0, BIAS_CONV }, \
    { R_GATE, LAYER "feed_forward.w1", 0, BIAS_NO }, \
    { R_UP, LAYER "feed_forward.w3", 0, BIAS_NO }, \
    { R_DOWN, LAYER "feed_forward.w2", 0, BIAS_NO }
#define LFM2_NAMES \
    LFM_NAMES, \
    { R_Q, LAYER "self_attn.q_proj", 0, BIAS_NO }, \
    { R_K, LAYER "self_attn.k_proj", 0, BIAS_NO }, \
    { R_V, LAYER "self_attn.v_proj", 0, BIAS_NO }, \
    { R_O, LAYER "self_attn.out_proj", 0, BIAS_NO }, \
    { R_Q_NORM, LAYER "self_attn.q_layernorm", 0, BIAS_NO }, \
    { R_K_NORM, LAYER "self_attn.k_layernorm", 0, BIAS_NO }
static const arch_name lfm2_names[] = { LFM2_NAMES, END };
static const arch_name lfm3_names[] = {
    LFM_NAMES,
    { R_ATTN_POST_NORM, LAYER "post_operator_norm", 0, BIAS_NO },
    { R_MLP_POST_NORM, LAYER "post_ffn_norm", 0, BIAS_NO },
    SELF_ATTN(BIAS_ATTN, BIAS_ATTN),
    QK_NORMS,
    { R_ATTN_GATE, LAYER "self_attn.gate_proj", 0, BIAS_NO },
    END,
};
static const arch_name lfm2_moe_names[] = {
    LFM2_NAMES,
    { R_ROUTER, LAYER "feed_forward.gate", 0, BIAS_NO },
    { R_ROUTER_CORR, LAYER "feed_forward.expert_bias", NAME_BARE | NAME_OPTIONAL, BIAS_NO },
    EXPERTS("feed_forward", "w1", "w3", "w2"),
    END,
};
#define MAMBA_NO_NORM(at, bias) \
    { R_MIX_IN, LAYER at ".in_proj", 0, bias }, \
    { R_MIX_CONV, LAYER at ".conv1d", NAME_TAPS, BIAS_CONV }, \
    { R_MIX_DT, LAYER at ".dt_bias", NAME_BARE, BIAS_NO }, \
    { R_MIX_A_LOG, LAYER at ".A_log", NAME_BARE, BIAS_NO }, \
    { R_MIX_SKIP, LAYER at ".D", NAME_BARE, BIAS_NO }, \
    { R_MIX_OUT, LAYER at ".out_proj", 0, bias }
#define MAMBA(at) \
    MAMBA_NO_NORM(at, BIAS_OWN), \
    { R_MIX_NORM, LAYER at ".norm", 0, BIAS_NO }
#define BACKBONE_ENDS \
    { R_EMBED, "@embeddings", 0, BIAS_NO }, \
    { R_FINAL_NORM, "@norm_f", 0, BIAS_NO }, \
    { R_HEAD, "^lm_head", 0, BIAS_NO }, \
    { R_ATTN_NORM, LAYER "norm", 0, BIAS_NO }
#define BACKBONE BACKBONE_ENDS, MAMBA("mixer")
static const arch_name mamba2_names[] = { BACKBONE, END };
#define SELECTIVE(at) \
    { R_MIX_IN, LAYER at ".in_proj", 0, BIAS_OWN }, \
    { R_MIX_CONV, LAYER at ".conv1d", NAME_TAPS, BIAS_CONV }, \
    { R_MIX_X, LAYER at ".x_proj", 0, BIAS_NO }, \
    { R_MIX_DT, LAYER at ".dt_proj.bias", NAME_BARE, BIAS_NO }, \
    { R_MIX_STEP, LAYER at ".dt_proj", 0, BIAS_NO }, \
    { R_MIX_A_LOG, LAYER at ".A_log", NAME_BARE | NAME_HEAD_ROWS, BIAS_NO }, \
    { R_MIX_SKIP, LAYER at ".D", NAME_BARE, BIAS_NO }, \
    { R_MIX_OUT, LAYER at ".out_proj", 0, BIAS_OWN }
#define STEP_NORMS(at, flags) \
    { R_MIX_STEP_NORM, LAYER at ".dt_layernorm", flags, BIAS_NO }, \
    { R_MIX_B_NORM, LAYER at ".b_layernorm", flags, BIAS_NO }, \
    { R_MIX_C_NORM, LAYER at ".c_layernorm", flags, BIAS_NO }
static const arch_name mamba_names[] = { BACKBONE_ENDS, SELECTIVE("mixer"), END };
static const arch_name falcon_mamba_names[] = {
    BACKBONE_ENDS,
    SELECTIVE("mixer"),
    STEP_NORMS("mixer", NAME_OPTIONAL | NAME_ONES),
    END,
};
static const arch_name bamba_names[] = {
    { R_EMBED, "@embed_tokens", 0, BIAS_NO },
    { R_FINAL_NORM, "@final_layernorm", 0, BIAS_NO },
    { R_HEAD, "^lm_head", 0, BIAS_NO },
    { R_ATTN_NORM, LAYER "input_layernorm", 0, BIAS_NO },
    { R_MLP_NORM, LAYER "pre_ff_layernorm", 0, BIAS_NO },
    SELF_ATTN(BIAS_ATTN, BIAS_ATTN),
    MAMBA("mamba"),
    { R_GATE, LAYER "feed_forward.gate_proj", 0, BIAS_MLP },
    { R_UP, LAYER "feed_forward.up_proj", 0, BIAS_MLP },
    { R_DOWN, LAYER "feed_forward.down_proj", 0, BIAS_MLP },
    END,
};
static const arch_name jamba_names[] = {
    { R_EMBED, "@embed_tokens", 0, BIAS_NO },
    { R_FINAL_NORM, "@final_layernorm", 0, BIAS_NO },
    { R_HEAD, "^lm_head", 0, BIAS_NO },
    { R_ATTN_NORM, LAYER "input_layernorm", 0, BIAS_NO },
    { R_MLP_NORM, LAYER "pre_ff_layernorm", 0, BIAS_NO },
    SELF_ATTN(BIAS_NO, BIAS_NO),
    SELECTIVE("mamba"),
    STEP_NORMS("mamba", 0),
    { R_GATE, LAYER "feed_forward.gate_proj", 0, BIAS_NO },
    { R_UP, LAYER "feed_forward.up_proj", 0, BIAS_NO },
    { R_DOWN, LAYER "feed_forward.down_proj", 0, BIAS_NO },
    { R_ROUTER, LAYER "feed_forward.router", 0, BIAS_NO },
    EXPERTS("feed_forward", "gate_proj", "up_proj", "down_proj"),
    END,
};
static const arch_name nemotron_h_names[] = {
    BACKBONE,
    { R_MLP_NORM, LAYER "norm", 0, BIAS_NO },
    { R_Q, LAYER "mixer.q_proj", 0, BIAS_ATTN },
    { R_K, LAYER "mixer.k_proj", 0, BIAS_ATTN },
    { R_V, LAYER "mixer.v_proj", 0, BIAS_ATTN },
    { R_O, LAYER "mixer.o_proj", 0, BIAS_ATTN },
    { R_UP, LAYER "mixer.up_proj", 0, BIAS_MLP },
    { R_DOWN, LAYER "mixer.down_proj", 0, BIAS_MLP },
    { R_ROUTER, LAYER "mixer.gate", 0, BIAS_NO },
    { R_ROUTER_CORR, LAYER "mixer.gate.e_score_correction_bias", NAME_BARE, BIAS_NO },
    { R_LATENT_IN, LAYER "mixer.fc1_latent_proj", 0, BIAS_MLP },
    { R_LATENT_OUT, LAYER "mixer.fc2_latent_proj", 0, BIAS_MLP },
    { R_EXPERT_UP, LAYER "mixer.experts.%e.up_proj", 0, BIAS_NO },
    { R_EXPERT_DOWN, LAYER "mixer.experts.%e.down_proj", 0, BIAS_NO },
    { R_SHARED_UP, LAYER "mixer.shared_experts.up_proj", 0, BIAS_MLP },
    { R_SHARED_DOWN, LAYER "mixer.shared_experts.down_proj", 0, BIAS_MLP },
    END,
};
#define GRANITE_H \
    EMBED_NORM_HEAD(BIAS_NO), \
    PRE_NORMS(BIAS_NO), \
    SELF_ATTN(BIAS_ATTN, BIAS_ATTN), \
    MAMBA("mamba")
static const arch_name granite_h_names[] = {
    GRANITE_H,
    { R_GATE_UP, LAYER "shared_mlp.input_linear", 0, BIAS_NO },
    { R_DOWN, LAYER "shared_mlp.output_linear", 0, BIAS_NO },
    END,
};
static const arch_name granite_h_moe_names[] = {
    GRANITE_H,
    { R_ROUTER, LAYER "block_sparse_moe.router.layer", 0, BIAS_NO },
    { R_EXPERT_GATE_UP, LAYER "block_sparse_moe.input_linear", NAME_STACKED, BIAS_NO },
    { R_EXPERT_DOWN, LAYER "block_sparse_moe.output_linear", NAME_STACKED, BIAS_NO },
    { R_SHARED_GATE_UP, LAYER "shared_mlp.input_linear", 0, BIAS_NO },
    { R_SHARED_DOWN, LAYER "shared_mlp.output_linear", 0, BIAS_NO },
    END,
};
#define FALCON_H1 \
    { R_EMBED, "@embed_tokens", 0, BIAS_NO }, \
    { R_FINAL_NORM, "@final_layernorm", 0, BIAS_NO }, \
    { R_HEAD, "^lm_head", 0, BIAS_NO }, \
    { R_ATTN_NORM, LAYER "input_layernorm", 0, BIAS_NO }, \
    { R_MLP_NORM, LAYER "pre_ff_layernorm", 0, BIAS_NO }, \
    SELF_ATTN(BIAS_NO, BIAS_NO), \
    MAMBA_NO_NORM("mamba", BIAS_NO), \
    { R_GATE, LAYER "feed_forward.gate_proj", 0, BIAS_NO }, \
    { R_UP, LAYER "feed_forward.up_proj", 0, BIAS_NO }, \
    { R_DOWN, LAYER "feed_forward.down_proj", 0, BIAS_NO }
static const arch_name falcon_h1_names[] = { FALCON_H1, END };
static const arch_name falcon_h1_norm_names[] = {
    FALCON_H1,
    { R_MIX_NORM, LAYER "mamba.norm", 0, BIAS_NO },
    END,
};
/* Layers that attend have norms of their outputs, the others of their inputs. */
static const arch_name olmo_hybrid_names[] = {
    EMBED_NORM_HEAD(BIAS_NO),
    { R_ATTN_NORM, LAYER "attention_layer_norm", NAME_STATE, BIAS_NO },
    { R_MLP_NORM, LAYER "feedforward_layer_norm", NAME_STATE, BIAS_NO },
    { R_ATTN_POST_NORM, LAYER "post_attention_layernorm", NAME_ATTENDS, BIAS_NO },
    { R_MLP_POST_NORM, LAYER "post_feedforward_layernorm", NAME_ATTENDS, BIAS_NO },
    SELF_ATTN(BIAS_ATTN, BIAS_ATTN),
    QK_NORMS,
    { R_MIX_Q, LAYER "linear_attn.q_proj", 0, BIAS_NO },
    { R_MIX_K, LAYER "linear_attn.k_proj", 0, BIAS_NO },
    { R_MIX_V, LAYER "linear_attn.v_proj", 0, BIAS_NO },
    { R_MIX_GATE, LAYER "linear_attn.g_proj", 0, BIAS_NO },
    { R_MIX_B, LAYER "linear_attn.b_proj", 0, BIAS_NO },
    { R_MIX_A, LAYER "linear_attn.a_proj", 0, BIAS_NO },
    { R_MIX_CONV, LAYER "linear_attn.q_conv1d", NAME_TAPS, BIAS_NO },
    { R_MIX_CONV_K, LAYER "linear_attn.k_conv1d", NAME_TAPS, BIAS_NO },
    { R_MIX_CONV_V, LAYER "linear_attn.v_conv1d", NAME_TAPS, BIAS_NO },
    { R_MIX_DT, LAYER "linear_attn.dt_bias", NAME_BARE, BIAS_NO },
    { R_MIX_A_LOG, LAYER "linear_attn.A_log", NAME_BARE, BIAS_NO },
    { R_MIX_NORM, LAYER "linear_attn.o_norm", 0, BIAS_NO },
    { R_MIX_OUT, LAYER "linear_attn.o_proj", 0, BIAS_NO },
    GATED(BIAS_NO),
    END,
};
/* Has its effect elsewhere, in the tensors that are there, or none. */
#define KNOWN(key) { key, KEY_KNOWN, 0, NONE, NULL }
#define PROJ_BIAS(key) { key, KEY_FLAG, AT(own_bias), NONE, NULL }
#define CONV_BIAS(key) { key, KEY_FLAG, AT(conv_bias), NONE, NULL }
#define LFM2_KEYS \
    { "conv_L_cache", KEY_INT, AT(conv_taps), 3, NULL }, \
    { "tie_embedding", KEY_BOOL, AT(tied), NONE, NULL }, \
    CONV_BIAS("conv_bias"), KNOWN("block_norm_eps"), KNOWN("block_mlp_init_scale"), \
    KNOWN("block_out_init_scale"), MUST("block_use_swiglu", 1)
#define LFM2_WIDTH { "block_ff_dim", KEY_INT, AT(ffn), NONE, NULL }
static const arch_key lfm2_keys[] = {
    LFM2_KEYS,
    LFM2_WIDTH,
    { "block_auto_adjust_ff_dim", KEY_FN, 0, NONE, two_thirds },
    { "block_ffn_dim_multiplier", KEY_FN, 0, NONE, times_ffn },
    { "block_multiple_of", KEY_FN, 0, NONE, round_ffn },
    NO_KEY,
};
static const arch_key lfm2_plain_keys[] = { LFM2_KEYS, LFM2_WIDTH,
                                            KNOWN("block_ffn_dim_multiplier"), NO_KEY };
static const arch_key lfm2_moe_keys[] = {
    LFM2_KEYS,
    EXPERT_COUNTS("num_experts", 32, 4),
    EXPERT_FFN(1792),
    NORM_TOPK(1),
    { "routed_scaling_factor", KEY_REAL, AT(expert_scale), 1, NULL },
    { "use_expert_bias", KEY_NOT, AT(no_corr), NONE, NULL },
    NO_KEY,
};
static const arch_key lfm3_keys[] = {
    { "conv_L_cache", KEY_INT, AT(conv_taps), 7, NULL },
    CONV_BIAS("conv_bias"),
    MUST("use_sandwich_norm", 1),
    MUST("use_attention_gate", 1),
    NO_KEY,
};
#define MAMBA_SIZES(heads, groups, state, taps) \
    { heads, KEY_INT, AT(mix_heads), 128, NULL }, \
    { groups, KEY_INT, AT(mix_groups), 8, NULL }, \
    { state, KEY_INT, AT(mix_key), 128, NULL }, \
    { taps, KEY_INT, AT(conv_taps), 4, NULL }
static const arch_key mamba2_keys[] = {
    MAMBA_SIZES("num_heads", "n_groups", "state_size", "conv_kernel"),
    { "head_dim", KEY_INT, AT(mix_value), 64, NULL },
    { "time_step_limit", KEY_FN, 0, NONE, time_step_limit },
    { "hidden_act", KEY_FN, 0, NONE, arch_key_silu },
    MUST("rms_norm", 1),
    MUST("norm_before_gate", 0),
    PROJ_BIAS("use_bias"), CONV_BIAS("use_conv_bias"),
    KNOWN("rescale_prenorm_residual"),
    NO_KEY,
};
static const arch_key nemotron_h_keys[] = {
    MAMBA_SIZES("mamba_num_heads", "n_groups", "ssm_state_size", "conv_kernel"),
    { "mamba_head_dim", KEY_INT, AT(mix_value), 64, NULL },
    { "time_step_min", KEY_REAL, AT(dt_min), 0.001, NULL },
    { "mamba_hidden_act", KEY_FN, 0, NONE, arch_key_silu },
    { "mlp_hidden_act", KEY_FN, 0, NONE, must_be_relu2 },
    PROJ_BIAS("use_bias"), CONV_BIAS("use_conv_bias"),
    KNOWN("mamba_proj_bias"),
    KNOWN("rescale_prenorm_residual"),
    KNOWN("time_step_limit"),
    KNOWN("mtp_layers_block_type"),
    EXPERT_COUNTS("n_routed_experts", 8, 2),
    EXPERT_FFN(7688),
    NORM_TOPK(1),
    GROUP_KEYS(1, 1, 1),
    { "moe_shared_expert_intermediate_size", KEY_INT, AT(shared_ffn), 7688, NULL },
    { "moe_latent_size", KEY_INT, AT(latent), 0, NULL },
    KNOWN("moe_shared_expert_overlap"),
    NO_KEY,
};
#define MAMBA_KEYS \
    { "state_size", KEY_INT, AT(mix_key), 16, NULL }, \
    { "conv_kernel", KEY_INT, AT(conv_taps), 4, NULL }, \
    { "expand", KEY_FN, 0, NONE, mamba_expand }, \
    { "intermediate_size", KEY_FN, 0, NONE, inner_size }, \
    { "time_step_rank", KEY_FN, 0, NONE, arch_key_step_rank }, \
    { "hidden_act", KEY_FN, 0, NONE, arch_key_silu }, \
    MUST("rms_norm", 1), \
    PROJ_BIAS("use_bias"), CONV_BIAS("use_conv_bias"), KNOWN("rescale_prenorm_residual"), \
    KNOWN("fused_add_norm"), KNOWN("time_step_scale") /* of training */
static const arch_key mamba_keys[] = { MAMBA_KEYS, NO_KEY };
static const arch_key falcon_mamba_keys[] = { MAMBA_KEYS, MUST("mixer_rms_eps", 1e-6), NO_KEY };
static const arch_key jamba_keys[] = {
    { "mamba_d_state", KEY_INT, AT(mix_key), 16, NULL },
    { "mamba_d_conv", KEY_INT, AT(conv_taps), 4, NULL },
    { "mamba_expand", KEY_FN, 0, NONE, mamba_expand },
    { "mamba_dt_rank", KEY_FN, 0, NONE, arch_key_step_rank },
    { "hidden_act", KEY_FN, 0, NONE, arch_key_silu },
    EXPERT_COUNTS("num_experts", 16, 2),
    MUST("mamba_inner_layernorms", 1),
    /* jamba_layers: */
    KNOWN("attn_layer_period"), KNOWN("attn_layer_offset"), KNOWN("expert_layer_period"),
    KNOWN("expert_layer_offset"),
    PROJ_BIAS("mamba_proj_bias"), CONV_BIAS("mamba_conv_bias"),
    KNOWN("num_logits_to_keep"),
    NO_KEY,
};
#define MAMBA_N_SIZES(all) \
    { "mamba_n_heads", KEY_INT, AT(mix_heads), 128, NULL }, \
    { "mamba_n_groups", KEY_INT, AT(mix_groups), 1, NULL }, \
    { "mamba_d_state", KEY_INT, AT(mix_key), 256, NULL }, \
    { "mamba_d_conv", KEY_INT, AT(conv_taps), 4, NULL }, \
    { "mamba_expand", KEY_FN, 0, NONE, mamba_expand }, \
    all, \
    { "mamba_d_head", KEY_FN, 0, NONE, mamba_head }, \
    { "time_step_limit", KEY_FN, 0, NONE, time_step_limit }, \
    CONV_BIAS("mamba_conv_bias")
static const arch_key bamba_keys[] = {
    MAMBA_N_SIZES(KNOWN("mamba_chunk_size")),
    { "hidden_act", KEY_FN, 0, NONE, arch_key_silu },
    PROJ_BIAS("mamba_proj_bias"), KNOWN("num_logits_to_keep"),
    KNOWN("attn_rotary_emb"), /* half of a head, in its code */
    NO_KEY,
};
#define GRANITE_H_KEYS \
    GRANITE_KEYS, \
    MAMBA_N_SIZES(KNOWN("mamba_chunk_size")), \
    { "hidden_act", KEY_FN, 0, NONE, arch_key_silu }, \
    KNOWN("position_embedding_type"), PROJ_BIAS("mamba_proj_bias"), KNOWN("normalization_function")
#define MAMBA_WIDTH { "mamba_d_ssm", KEY_INT, AT(mix_value), 1024, NULL } /* null: by mamba_expand */
/* Biases are in no published file, and would be multiplied too. */
static const arch_key falcon_h1_keys[] = {
    MAMBA_N_SIZES(MAMBA_WIDTH),
    { "mamba_norm_before_gate", KEY_BOOL, AT(w.mix_norm_1st), 1, NULL },
    { "hidden_act", KEY_FN, 0, NONE, arch_key_silu },
    { "embedding_multiplier", KEY_REAL, AT(embed_scale), 1, NULL },
    { "lm_head_multiplier", KEY_REAL, AT(logit_scale), 1, NULL },
    { "attention_in_multiplier", KEY_FN, 0, NONE, attention_in },
    { "key_multiplier", KEY_FN, 0, NONE, key_factor },
    { "attention_out_multiplier", KEY_FN, 0, NONE, attention_out },
    { "mlp_multipliers", KEY_FN, 0, NONE, mlp_factors },
    { "ssm_multipliers", KEY_FN, 0, NONE, mamba_factors },
    { "ssm_in_multiplier", KEY_FN, 0, NONE, mamba_in },
    { "ssm_out_multiplier", KEY_REAL, AT(mix_out_scale), 1, NULL },
    KNOWN("mamba_rms_norm"),
    MUST("mamba_proj_bias", 0),
    MUST("projectors_bias", 0),
    MUST("attention_bias", 0),
    MUST("mlp_bias", 0),
    NO_KEY,
};
static const arch_key granite_h_keys[] = {
    GRANITE_H_KEYS,
    MUST("num_local_experts", 0),
    KNOWN("num_experts_per_tok"),
    { "shared_intermediate_size", KEY_INT, AT(ffn), 1024, NULL },
    NO_KEY,
};
static const arch_key granite_h_moe_keys[] = {
    GRANITE_H_KEYS,
    EXPERT_COUNTS("num_local_experts", 8, 2),
    { "shared_intermediate_size", KEY_INT, AT(shared_ffn), 1024, NULL },
    NO_KEY,
};
#define DELTA_KEYS \
    { "linear_num_value_heads", KEY_INT, AT(mix_heads), 32, NULL }, \
    { "linear_num_key_heads", KEY_INT, AT(mix_groups), 16, NULL }, \
    { "linear_key_head_dim", KEY_INT, AT(mix_key), 128, NULL }, \
    { "linear_value_head_dim", KEY_INT, AT(mix_value), 128, NULL }, \
    { "linear_conv_kernel_dim", KEY_INT, AT(conv_taps), 4, NULL }, \
    { "attn_output_gate", KEY_MUST, 0, 1, NULL }, \
    { "hidden_act", KEY_FN, 0, NONE, arch_key_silu }, \
    /* of what is read from GGUF */ \
    { "linear_value_heads_tiled", KEY_BOOL, AT(w.mix_tiled), 0, NULL }, \
    KNOWN("linear_projections_apart")
#define QWEN_EXPERT_KEYS(n, used) \
    EXPERT_COUNTS("num_experts", n, used), \
    EXPERT_FFN(512), \
    { "shared_expert_intermediate_size", KEY_INT, AT(shared_ffn), 512, NULL }
static const arch_key olmo_hybrid_keys[] = {
    { "linear_num_value_heads", KEY_FN, 0, NONE, value_heads },
    { "linear_num_key_heads", KEY_FN, 0, NONE, key_heads },
    { "linear_key_head_dim", KEY_FN, 0, NONE, key_dim },
    { "linear_value_head_dim", KEY_FN, 0, NONE, value_dim },
    { "linear_conv_kernel_dim", KEY_INT, AT(conv_taps), 4, NULL },
    { "hidden_act", KEY_FN, 0, NONE, arch_key_silu },
    { "linear_allow_neg_eigval", KEY_BOOL, AT(w.mix_beta_2), 1, NULL },
    { "rope_parameters", KEY_FN, 0, NONE, rope_if_said },
    { "rope_theta", KEY_FN, 0, NONE, rope_if_said },
    NO_KEY,
};
static const arch_key qwen3_next_keys[] = {
    DELTA_KEYS, NORM_TOPK(1), QWEN_EXPERT_KEYS(512, 10), NO_KEY,
};
static const arch_key qwen35_keys[] = { DELTA_KEYS, NO_KEY };
static const arch_key qwen35_moe_keys[] = { DELTA_KEYS, QWEN_EXPERT_KEYS(256, 8), NO_KEY };
static const arch_key qwen4_keys[] = {
    DELTA_KEYS, NORM_TOPK(1), QWEN_EXPERT_KEYS(512, 10),
    { "hc_count", KEY_FN, 0, NONE, several_streams },
    { "hc_lowrank", KEY_INT, AT(hyper_rank), 320, NULL },
    { "indexer_n_heads", KEY_INT, AT(index_heads), 0, NULL },
    MUST("indexer_kv_heads", 1),
    { "indexer_head_dim", KEY_INT, AT(index_dim), 0, NULL },
    { "indexer_budget", KEY_INT, AT(index_topk), 0, NULL },
    { "indexer_compress_ratio", KEY_INT, AT(index_every), 0, NULL },
    { "output_gate_type", KEY_FN, 0, NONE, output_gate },
    /* layers_with_ngrams; how many tensors a table is in is the file's to say */
    KNOWN("ple_layer_ids"), KNOWN("ngram_size"), KNOWN("heads_per_ngram"), KNOWN("ple_embed_dim"),
    KNOWN("ple_conv_kernel_size"), KNOWN("ngram_vocab_size_base"), KNOWN("seed"),
    KNOWN("make_ngram_vocab_size_divisible_by"), KNOWN("split_ngram_parts"),
    NO_KEY,
};
#define QWEN_GATED RMS_ROPE, .norm_offset = 1, .qk_norm = QK_NORM_HEAD, .q_gated = true
#define QWEN_DELTA \
    .mixer = MIX_DELTA, .def_full_every = 4, .def_head_dim = 256, .def_partial = 0.25, \
    .def_max_pos = 32768
#define FALCON_H1_ROW \
    .mixer = MIX_BOTH, .def_kv_heads = 8, .def_eps = 1e-5, .def_max_pos = 8192
#define LFM2 \
    .mixer = MIX_CONV, .def_full_every = 1, .def_kv_heads = 8, .def_eps = 1e-5, .def_theta = 1e6, \
    .def_max_pos = 128000, .def_tied = true, .def_ffn = 1
/* clang-format on */

/* clang-format off */
static const arch_name qwen_mtp_names[] = {
    { R_FINAL_NORM, "mtp.norm", 0, BIAS_NO },
    { R_MTP_EMBED_NORM, "mtp.pre_fc_norm_embedding", 0, BIAS_NO },
    { R_MTP_HIDDEN_NORM, "mtp.pre_fc_norm_hidden", 0, BIAS_NO },
    { R_MTP_PROJ, "mtp.fc", 0, BIAS_NO },
    END,
};
/* clang-format on */
static const arch_mtp qwen_mtp = { "mtp.layers.%d.", .names = qwen_mtp_names };

const arch_row arch_rows_hybrid[] = {
    { "Qwen3NextForCausalLM", "qwen3_next", ARCH_APART, "linear_projections_apart=true",
      .w = { QWEN_GATED, .mix_norm_1st = true, .norm_topk = true }, MODEL,
      .names = qwen3_next_apart_names, .keys = qwen3_next_keys, .mtp = &qwen_mtp, QWEN_DELTA,
      .def_kv_heads = 2 },
    { "Qwen3NextForCausalLM", "qwen3_next",
      .w = { QWEN_GATED, .mix_mixed = true, .mix_norm_1st = true, .norm_topk = true }, MODEL,
      .names = qwen3_next_names, .keys = qwen3_next_keys, .mtp = &qwen_mtp, QWEN_DELTA,
      .def_kv_heads = 2 },
    { "Qwen3_5ForCausalLM", "qwen3_5_text", .w = { QWEN_GATED, .mix_norm_1st = true }, MODEL,
      .names = qwen35_names, .keys = qwen35_keys, .mtp = &qwen_mtp, QWEN_DELTA, .def_kv_heads = 4 },
    { "Qwen3_5MoeForCausalLM", "qwen3_5_moe_text",
      .w = { QWEN_GATED, .mix_norm_1st = true, .norm_topk = true }, MODEL,
      .names = qwen35_moe_names, .keys = qwen35_moe_keys, .mtp = &qwen_mtp, QWEN_DELTA,
      .def_kv_heads = 2, .def_ffn = 1 },
    { "Qwen4ExpForCausalLM", "qwen4_exp_text", .def_partial = 1,
      .w = { QWEN_GATED, .mix_norm_1st = true, .norm_topk = true, .index_half = true,
             .hyper_apart = true },
      MODEL, .names = qwen4_names, .keys = qwen4_keys, .respell = qwen4_words,
      .layers = layers_with_ngrams, .mixer = MIX_DELTA, .def_full_every = 4, .def_kv_heads = 2,
      .def_head_dim = 256, .def_ffn = 1, .def_max_pos = 32768 },
    { "Lfm2ForCausalLM", "lfm2", "plain", "block_auto_adjust_ff_dim=false",
      .w = { RMS_ROPE, .qk_norm = QK_NORM_HEAD }, MODEL, .names = lfm2_names,
      .keys = lfm2_plain_keys, LFM2 },
    { "Lfm2ForCausalLM", "lfm2", .w = { RMS_ROPE, .qk_norm = QK_NORM_HEAD }, MODEL,
      .names = lfm2_names, .keys = lfm2_keys, LFM2 },
    { "Lfm2MoeForCausalLM", "lfm2_moe",
      .w = { RMS_ROPE, .qk_norm = QK_NORM_HEAD, .router = ROUTER_SIGMOID, .norm_topk = true,
             .topk_eps = 1e-6f },
      MODEL, .names = lfm2_moe_names, .keys = lfm2_moe_keys, LFM2, .def_dense = 2 },
    { "Lfm3ForCausalLM", "lfm3", .w = { RMS_ROPE, .qk_norm = QK_NORM_HEAD, .gate_heads = true },
      MODEL, .names = lfm3_names, .keys = lfm3_keys, .layers = lfm3_layers, .mixer = MIX_CONV,
      .window = WINDOW_PATTERN, .def_window = 256, .def_full_every = 1, .def_kv_heads = 4,
      .def_head_dim = 128, .def_eps = 1e-5, .def_theta = 1e6, .def_local_theta = -1,
      .def_max_pos = 128000, .def_tied = true,
      .def_rope = "{\"full_attention\":{\"rope_type\":\"proportional\",\"rope_theta\":1000000,"
                  "\"partial_rotary_factor\":0.5},"
                  "\"sliding_attention\":{\"rope_type\":\"default\",\"rope_theta\":10000}}" },
    { "Mamba2ForCausalLM", "mamba2", .w = { .norm = NORM_RMS, .mlp = MLP_GATED },
      .prefix = "backbone.", .names = mamba2_names, .keys = mamba2_keys, .mixer = MIX_MAMBA,
      .one_branch = true, .def_ffn = 1, .def_head_dim = 64, .def_eps = 1e-5,
      .def_max_pos = 262144 },
#define MAMBA_ROW                                                                 \
    .prefix = "backbone.", .mixer = MIX_SELECT, .one_branch = true, .def_ffn = 1, \
    .def_head_dim = 64, .def_eps = 1e-5, .def_max_pos = 262144, .def_tied = true
    { "MambaForCausalLM", "mamba", .w = { .norm = NORM_RMS, .mlp = MLP_GATED }, MAMBA_ROW,
      .names = mamba_names, .keys = mamba_keys },
    { "FalconMambaForCausalLM", "falcon_mamba",
      .w = { .norm = NORM_RMS, .mlp = MLP_GATED, .mix_eps = 1e-6f }, MAMBA_ROW,
      .names = falcon_mamba_names, .keys = falcon_mamba_keys },
    { "BambaForCausalLM", "bamba", .w = { RMS_ROPE }, MODEL, .names = bamba_names,
      .keys = bamba_keys, .mixer = MIX_MAMBA, .def_kv_heads = 8, .def_eps = 1e-5,
      .def_partial = 0.5, .def_max_pos = 262144 },
    { "JambaForCausalLM", "jamba", .w = { .norm = NORM_RMS, .mlp = MLP_GATED }, MODEL,
      .names = jamba_names, .keys = jamba_keys, .mixer = MIX_SELECT, .layers = jamba_layers,
      .def_kv_heads = 8, .def_max_pos = 262144 },
    { "NemotronHForCausalLM", "nemotron_h",
      .w = { .norm = NORM_RMS, .mlp = MLP_PLAIN, SIGMOID_MOE }, .layers = without_experts,
      .prefix = "backbone.", .names = nemotron_h_names, .keys = nemotron_h_keys, .mixer = MIX_MAMBA,
      .one_branch = true, .def_kv_heads = 8, .def_head_dim = 128, .def_eps = 1e-5,
      .def_act = ARCH_RELU2, .def_max_pos = 4096 },
    { "OlmoHybridForCausalLM", "olmo_hybrid",
      .w = { .norm = NORM_RMS,
             .rope_half = true,
             .mlp = MLP_GATED,
             .qk_norm = QK_NORM_ALL,
             .mix_norm_1st = true,
             .mix_eps = 1e-5f,
             .mix_beta_2 = true },
      MODEL, .names = olmo_hybrid_names, .keys = olmo_hybrid_keys, .mixer = MIX_DELTA,
      .def_full_every = 4, .def_max_pos = 65536 },
    { "FalconH1ForCausalLM", "falcon_h1", "norm", "mamba_rms_norm=true", .w = { RMS_ROPE }, MODEL,
      .names = falcon_h1_norm_names, .keys = falcon_h1_keys, FALCON_H1_ROW },
    { "FalconH1ForCausalLM", "falcon_h1", .w = { RMS_ROPE }, MODEL, .names = falcon_h1_names,
      .keys = falcon_h1_keys, FALCON_H1_ROW },
    { "GraniteMoeHybridForCausalLM", "granitemoehybrid", "h", "num_local_experts=0",
      .w = { .norm = NORM_RMS, .mlp = MLP_GATED }, MODEL, .names = granite_h_names,
      .keys = granite_h_keys, .mixer = MIX_MAMBA, .def_ffn = 4 },
    { "GraniteMoeHybridForCausalLM", "granitemoehybrid", "h-moe",
      .w = { .norm = NORM_RMS, .mlp = MLP_GATED, .norm_topk = true }, MODEL,
      .names = granite_h_moe_names, .keys = granite_h_moe_keys, .mixer = MIX_MAMBA, .def_ffn = 4 },
    { .arch = NULL },
};
