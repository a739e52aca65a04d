/* formats/arch/rows/keys.c - keys of config.json with a meaning of their own that several families have. */
#include "formats/arch/rows/rows.h"

#include "base/json.h"

/* The row knows how experts are scored; the key may say the same. */
lq_status arch_key_scoring_func(arch_config *c, const char *key, const cJSON *v, lq_err *err)
{
    const char *want = c->w.router == ROUTER_SIGMOID ? "sigmoid" : "softmax";
    if (!v || (cJSON_IsString(v) && strcmp(v->valuestring, want) == 0)) return LQ_OK;
    char found[64];
    return lq_fail(err, LQ_EUNSUPPORTED, "%s: expected %s, found %s", key, want,
                   js_describe(found, v));
}

lq_status arch_key_noaux_tc(arch_config *c, const char *key, const cJSON *v, lq_err *err)
{
    (void)c;
    if (!v || (cJSON_IsString(v) && strcmp(v->valuestring, "noaux_tc") == 0)) return LQ_OK;
    char found[64];
    return lq_fail(err, LQ_EUNSUPPORTED, "%s: expected noaux_tc, found %s", key,
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

lq_status arch_key_head_qk_norm(arch_config *c, const char *key, const cJSON *v, lq_err *err)
{
    return if_qk_norm(c, key, v, QK_NORM_HEAD, err);
}

lq_status arch_key_heads_qk_norm(arch_config *c, const char *key, const cJSON *v, lq_err *err)
{
    return if_qk_norm(c, key, v, QK_NORM_HEADS, err);
}

/* What scale_depth and dim_model_base are relative to. */
lq_status arch_key_per_depth(arch_config *c, const char *key, const cJSON *v, lq_err *err)
{
    (void)key, (void)v, (void)err;
    c->residual_scale /= sqrt((double)c->layers);
    return LQ_OK;
}

lq_status arch_key_per_width(arch_config *c, const char *key, const cJSON *v, lq_err *err)
{
    (void)key, (void)v, (void)err;
    c->logit_scale /= (double)c->hidden;
    return LQ_OK;
}
