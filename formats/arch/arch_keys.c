/* formats/arch/arch_keys.c - keys of config.json that a row gives a meaning, and those that nobody does:
 * one that touches the computation is refused by name, never ignored. */
#include "formats/arch/arch_fields.h"

#include "base/json.h"

#include <stdio.h>

_Static_assert(sizeof(bool) == 1, "a bool is written through its offset");

/* ---- what a row knows ---- */

/* The value of "key" or "object.key"; NULL: missing. A null is a value here. */
static const cJSON *look(const cJSON *j, const char *path)
{
    const char *dot = strchr(path, '.');
    char first[64];
    if (!dot) return cJSON_GetObjectItemCaseSensitive(j, path);
    snprintf(first, sizeof first, "%.*s", (int)(dot - path), path);
    return cJSON_GetObjectItemCaseSensitive(js_get(j, first), dot + 1);
}

static lq_status wrong(const arch_key *k, const cJSON *v, const char *expected, lq_err *err)
{
    char found[64];
    return lq_fail(err, LQ_EVALUE, "%s: expected %s, found %s", k->key, expected,
                   js_describe(found, v));
}

static lq_status must(const arch_key *k, const cJSON *v, lq_err *err)
{
    char found[64];
    const bool flag = cJSON_IsBool(v), want = k->def > 0 || k->def < 0;
    if (flag && cJSON_IsTrue(v) == want) return LQ_OK;
    if (cJSON_IsNumber(v) && !(v->valuedouble < k->def) && !(v->valuedouble > k->def)) return LQ_OK;
    js_describe(found, v);
    return flag ? lq_fail(err, LQ_EUNSUPPORTED, "%s: expected %s, found %s", k->key,
                          want ? "true" : "false", found)
                : lq_fail(err, LQ_EUNSUPPORTED, "%s: expected %g, found %s", k->key, k->def, found);
}

static lq_status put_real(arch_config *c, const arch_key *k, double v, lq_err *err)
{
    const bool power = k->kind == KEY_INVERSE || k->kind == KEY_RSQRT;
    if (!(v >= (power ? 1e-9 : 0) && v <= 1e9))
        return lq_fail(err, LQ_EVALUE, "%s: expected a number %s..1e9, found %g", k->key,
                       power ? "1e-9" : "0", v);
    if (k->kind == KEY_INVERSE) v = 1 / v;
    if (k->kind == KEY_RSQRT) v = 1 / sqrt(v);
    if (k->kind == KEY_BY_DEPTH) v /= sqrt((double)c->layers);
    if (k->kind == KEY_BY_WIDTH) v /= (double)c->hidden;
    memcpy((char *)c + k->at, &v, sizeof v);
    return LQ_OK;
}

static lq_status put_flag(arch_config *c, const arch_key *k, bool on)
{
    const double one = 1;
    const int flag = on;
    if (k->kind == KEY_NOT) on = !on;
    if (k->kind == KEY_FLAG)
        memcpy((char *)c + k->at, &flag, sizeof flag);
    else if (k->kind != KEY_UNIT)
        memcpy((char *)c + k->at, &on, sizeof on);
    else if (!on)
        memcpy((char *)c + k->at, &one, sizeof one);
    return LQ_OK;
}

static lq_status apply(arch_config *c, const arch_key *k, const cJSON *v, lq_err *err)
{
    int64_t whole = 0;
    const bool null = v && cJSON_IsNull(v);
    if (k->kind == KEY_KNOWN) return LQ_OK;
    if (k->kind == KEY_FN) return k->fn(c, k->key, null ? NULL : v, err);
    if (null || (!v && (isnan(k->def) || k->kind == KEY_MUST))) return LQ_OK;
    switch (k->kind) {
    case KEY_REAL:
    case KEY_INVERSE:
    case KEY_RSQRT:
    case KEY_BY_DEPTH:
    case KEY_BY_WIDTH:
        if (v && !cJSON_IsNumber(v)) return wrong(k, v, "a number", err);
        return put_real(c, k, v ? v->valuedouble : k->def, err);
    case KEY_INT:
        if (!v) whole = (int64_t)k->def;
        if (v && !js_whole(v, 0, ARCH_MAX_WIDTH, &whole))
            return wrong(k, v, "an integer 0..4194304", err);
        memcpy((char *)c + k->at, &whole, sizeof whole);
        return LQ_OK;
    case KEY_MUST:
        return must(k, v, err);
    default:
        if (v && !cJSON_IsBool(v)) return wrong(k, v, "true or false", err);
        return put_flag(c, k, v ? cJSON_IsTrue(v) : k->def > 0);
    }
}

/* Fields that count something where there are experts, or a state, or latent attention: what is wrong with
 * them is said by the key that this config.json has for them. */
static const struct {
    size_t at;
    enum { OF_EXPERTS, OF_STATE, OF_LATENTS } of;
} counts[] = {
    { offsetof(arch_config, experts_used), OF_EXPERTS },
    { offsetof(arch_config, expert_ffn), OF_EXPERTS },
    { offsetof(arch_config, expert_groups), OF_EXPERTS },
    { offsetof(arch_config, groups_used), OF_EXPERTS },
    { offsetof(arch_config, mix_heads), OF_STATE },
    { offsetof(arch_config, mix_groups), OF_STATE },
    { offsetof(arch_config, mix_key), OF_STATE },
    { offsetof(arch_config, kv_lora), OF_LATENTS },
    { offsetof(arch_config, nope_dims), OF_LATENTS },
    { offsetof(arch_config, rope_dims), OF_LATENTS },
    { offsetof(arch_config, v_dim), OF_LATENTS },
};

static lq_status check_count(const arch_config *c, const arch_key *k, const cJSON *j, lq_err *err)
{
    const bool has[] = { [OF_EXPERTS] = c->experts > 0,
                         [OF_STATE] = c->row->mixer != MIX_ATTENTION,
                         [OF_LATENTS] = c->w.mla };
    int64_t n;
    memcpy(&n, (const char *)c + k->at, sizeof n);
    for (size_t i = 0; i < LQ_COUNT(counts) && n < 1; i++)
        if (counts[i].at == k->at && has[counts[i].of] && look(j, k->key))
            return lq_fail(err, LQ_EVALUE, "%s: expected 1 or more, found %s", k->key,
                           cJSON_IsNull(look(j, k->key)) ? "null" : "0");
    return LQ_OK;
}

lq_status arch_apply_keys(arch_config *c, const cJSON *j, lq_err *err)
{
    lq_status s = LQ_OK;
    for (const arch_key *k = c->row->keys; k && k->key && !s; k++)
        s = apply(c, k, look(j, k->key), err);
    for (const arch_key *k = c->row->keys; k && k->key && !s; k++)
        if (k->kind == KEY_INT) s = check_count(c, k, j, err);
    return s;
}

/* ---- what nobody knows ---- */

/* Keys whose names sound like arithmetic but are of training, of kernels, or of other tasks. */
static bool harmless(const char *key)
{
    static const char *const parts[] = { "dropout",         "pdrop",           "_loss",
                                         "initializer",     "aux_loss",        "flash_attn",
                                         "flash_attention", "attn_impl",       "attention_impl",
                                         "jitter",          "softmax_in_fp32", "token" };
    static const char *const names[] = {
        "output_attentions",
        "output_router_logits",
        "num_nextn_predict_layers",
        "use_cache",
        "attn_uses_sequence_id",
        "attn_type",
        "reorder_and_upcast_attn",
        "slow_but_exact",
        "pretraining_tp", /* products in parts, of the same sums */
        "classifier_activation",
        "summary_activation",
        "bias_dropout_fusion",
        "embedding_fraction",
        "learned_pos_emb",
        "residual_in_fp32",
        "mup_base_width",
        "fused_bias",
        "attn_bias_fused",
        "gradient_checkpointing",
        "expert_parallel",
        "ep_size",
        "decoder_attention_heads",
        "unpadded_attention",
        "rescale_layers",
        "cache_implementation",
        "attention_window",
        "max_logits",
        "bias_gelu_fusion",
        "gelu_fusion",
        "scale_attn_by_inverse_layer_idx_fused",
    };
    for (size_t i = 0; i < LQ_COUNT(parts); i++)
        if (strstr(key, parts[i])) return true;
    for (size_t i = 0; i < LQ_COUNT(names); i++)
        if (strcmp(key, names[i]) == 0) return true;
    return false;
}

/* Keys of the field with the values that change nothing. */
static const struct {
    const char *key, *neutral; /* "a|b" */
    bool of_norm;              /* only for rows with this norm */
    arch_norm norm;
} neutral_keys[] = {
    { "norm_type", "low_precision_layernorm|layer_norm|layernorm", true, NORM_LAYER },
    { "norm_type", "rms_norm|rmsnorm", true, NORM_RMS },
    { "normalization_function", "rmsnorm", true, NORM_RMS },
    { .key = "position_embedding_type", .neutral = "absolute|rope|rotary|alibi|default" },
    { .key = "is_causal", .neutral = "true" },
    { .key = "causal", .neutral = "true" },
    { .key = "scoring_func", .neutral = "softmax" },
    { .key = "add_cross_attention", .neutral = "false" },
    { .key = "is_encoder_decoder", .neutral = "false" },
    { .key = "use_bidirectional_attention", .neutral = "false" },
    { .key = "attn_output_gate", .neutral = "false" },
    { .key = "apply_residual_connection_post_layernorm", .neutral = "false" },
    { .key = "scale_attn_by_inverse_layer_idx", .neutral = "false" },
    { .key = "scale_attn_weights", .neutral = "true" },
    { .key = "prefix_lm", .neutral = "false" },
    { .key = "qkv_bias", .neutral = "false" },
    { .key = "cross_layer_sharing", .neutral = "false" },
    { .key = "num_kv_shared_layers", .neutral = "0" },
};

static void value_text(char out[64], const cJSON *v)
{
    if (cJSON_IsString(v))
        snprintf(out, 64, "%.60s", v->valuestring);
    else if (cJSON_IsBool(v))
        snprintf(out, 64, "%s", cJSON_IsTrue(v) ? "true" : "false");
    else if (cJSON_IsNumber(v))
        snprintf(out, 64, "%.9g", v->valuedouble);
    else
        snprintf(out, 64, "?");
}

static bool one_of(const char *list, const char *text)
{
    const size_t n = strlen(text);
    for (const char *p = list; p; p = strchr(p, '|'), p = p ? p + 1 : NULL)
        if (strncmp(p, text, n) == 0 && (p[n] == '|' || !p[n])) return true;
    return false;
}

/* Does the name of this key say that it touches the computation? */
static bool sounds_like_math(const char *key)
{
    static const char *const parts[] = {
        "scale",
        "scaling",
        "multiplier",
        "softcap",
        "norm",
        "rope",
        "rotary",
        "bias",
        "window",
        "alibi",
        "clip",
        "expert",
        "moe",
        "router",
        "topk",
        "residual",
        "attn",
        "attention",
        "activation",
        "_act",
        "gate",
        "sink",
        "logit",
        "qk_",
        "swiglu",
        "mlp",
        "nope",
        "mup",
        "temperature_tuning",
    };
    for (size_t i = 0; i < LQ_COUNT(parts); i++)
        if (strstr(key, parts[i])) return true;
    return false;
}

/* 1 is neutral where it multiplies, not where it bounds. */
static bool bounds(const char *key)
{
    return strstr(key, "clip") || strstr(key, "softcap") || strstr(key, "window");
}

static bool neutral_value(const cJSON *v)
{
    if (cJSON_IsNull(v) || cJSON_IsFalse(v)) return true;
    if (cJSON_IsNumber(v))
        return !(v->valuedouble < 0 || v->valuedouble > 0) ||
               (!(v->valuedouble < 1 || v->valuedouble > 1) && !bounds(v->string));
    if (cJSON_IsString(v)) return !v->valuestring[0];
    return (cJSON_IsArray(v) || cJSON_IsObject(v)) && !v->child;
}

static lq_status check_key(const arch_config *c, const char *parent, const cJSON *v, lq_err *err)
{
    const char *key = v->string;
    char text[64], found[64];
    if (cJSON_IsNull(v) || arch_row_knows(c, parent, key) || (!*parent && arch_key_is_read(key)))
        return LQ_OK;
    value_text(text, v);
    for (size_t i = 0; i < LQ_COUNT(neutral_keys); i++)
        if (strcmp(neutral_keys[i].key, key) == 0 &&
            (!neutral_keys[i].of_norm || neutral_keys[i].norm == c->row->w.norm)) {
            if (one_of(neutral_keys[i].neutral, text)) return LQ_OK;
            return lq_fail(err, LQ_EUNSUPPORTED, "%s: expected %s, found %s", key,
                           neutral_keys[i].neutral, js_describe(found, v));
        }
    if (harmless(key) || neutral_value(v) || !sounds_like_math(key)) return LQ_OK;
    return lq_fail(
        err, LQ_EUNSUPPORTED,
        "%.80s: expected no such key in a %s, found %s, and its name says that it changes "
        "the computation",
        key, c->row->arch, js_describe(found, v));
}

/* The offset of the whole number that we call so (n characters); false: there is none. */
static bool int_field(const char *name, size_t n, size_t *at)
{
#define X(key, field, ...) { key, offsetof(arch_config, field) },
    static const struct {
        const char *key;
        size_t at;
    } all[] = { OWN_INTS(X) LATER_INTS(X) };
#undef X
    for (size_t i = 0; i < LQ_COUNT(all); i++)
        if (strlen(all[i].key) == n && memcmp(all[i].key, name, n) == 0) {
            *at = all[i].at;
            return true;
        }
    return false;
}

lq_status arch_name_key(const arch_config *c, const cJSON *j, lq_status s, lq_err *err)
{
    const char *colon = s && err ? strchr(err->msg, ':') : NULL, *key = NULL, *silent = NULL;
    char rest[sizeof err->msg];
    size_t at;
    if (!colon || !int_field(err->msg, (size_t)(colon - err->msg), &at)) return s;
    for (const arch_key *k = c->row->keys; k && k->key; k++)
        if (k->kind == KEY_INT && k->at == at) *(look(j, k->key) ? &key : &silent) = k->key;
    if (!key) key = arch_key_spelled(j, at);
    if (!key) key = silent;
    if (!key) return s;
    snprintf(rest, sizeof rest, "%s", colon);
    return lq_fail(err, s, "%s%s", key, rest);
}

lq_status arch_check_keys(const arch_config *c, const cJSON *j, lq_err *err)
{
    lq_status s = LQ_OK;
    for (const cJSON *v = j->child; v && !s; v = v->next) {
        char found[64];
        const bool part =
            strcmp(v->string, "attn_config") == 0 || strcmp(v->string, "ffn_config") == 0;
        if (!part) s = check_key(c, "", v, err);
        if (part && !cJSON_IsObject(v) && !cJSON_IsNull(v))
            s = lq_fail(err, LQ_EVALUE, "%s: expected an object, found %s", v->string,
                        js_describe(found, v));
        for (const cJSON *a = part && cJSON_IsObject(v) ? v->child : NULL; a && !s; a = a->next)
            s = check_key(c, v->string, a, err);
    }
    return s;
}
