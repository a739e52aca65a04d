/* formats/arch/rows/keys.c - keys of config.json with a meaning of their own that several families have. */
#include "formats/arch/rows/rows.h"

#include "base/json.h"

#include <stdlib.h>
#include <string.h>

lq_status arch_key_must(const char *key, const cJSON *v, const char *want, lq_err *err)
{
    char found[64];
    if (!v || (cJSON_IsString(v) && strcmp(v->valuestring, want) == 0)) return LQ_OK;
    return lq_fail(err, LQ_EUNSUPPORTED, "%s: expected %s, found %s", key, want,
                   js_describe(found, v));
}

/* The row knows how experts are scored; the key may say the same. */
lq_status arch_key_scoring_func(arch_config *c, const char *key, const cJSON *v, lq_err *err)
{
    return arch_key_must(key, v, c->w.router == ROUTER_SIGMOID ? "sigmoid" : "softmax", err);
}

lq_status arch_key_no_labels(arch_config *c, const char *key, const cJSON *v, lq_err *err)
{
    (void)v;
    if (c->head != HEAD_LABELS) return LQ_OK;
    return lq_fail(err, LQ_EUNSUPPORTED,
                   "%s: expected a model of hidden states, found one of labels, whose positions "
                   "are pooled first",
                   key);
}

lq_status arch_key_noaux_tc(arch_config *c, const char *key, const cJSON *v, lq_err *err)
{
    (void)c;
    return arch_key_must(key, v, "noaux_tc", err);
}

lq_status arch_key_silu(arch_config *c, const char *key, const cJSON *v, lq_err *err)
{
    (void)c;
    return arch_key_must(key, v, "silu", err);
}

lq_status arch_key_step_rank(arch_config *c, const char *key, const cJSON *v, lq_err *err)
{
    c->mix_rank = lq_ceil_div(c->hidden, 16);
    if (!v || (cJSON_IsString(v) && strcmp(v->valuestring, "auto") == 0)) return LQ_OK;
    if (js_whole(v, 1, 1 << 20, &c->mix_rank)) return LQ_OK;
    return lq_fail(err, LQ_EVALUE, "%s: expected an integer 1..1048576 or auto", key);
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

lq_status arch_hybrid_types(cJSON *j, lq_err *err)
{
    cJSON *types = cJSON_GetObjectItemCaseSensitive(j, "layer_types");
    for (cJSON *e = cJSON_IsArray(types) ? types->child : NULL; e; e = e->next) {
        const char *text = cJSON_IsString(e) ? e->valuestring : "";
        const bool sliding = strcmp(text, "hybrid_sliding") == 0;
        if (!sliding && strcmp(text, "hybrid") != 0)
            return lq_fail(err, LQ_EUNSUPPORTED,
                           "layer_types: expected hybrid or hybrid_sliding, found \"%.40s\"", text);
        if (!cJSON_SetValuestring(e, sliding ? "sliding_attention" : "full_attention"))
            return lq_fail(err, LQ_ENOMEM, "no memory for layer_types");
    }
    return LQ_OK;
}

/* The second base is scaled as the first. */
static bool share_scaling(arch_config *c)
{
    const arch_rope *from = &c->rope[ROPE_MAIN];
    const size_t bytes = (size_t)(c->rope_dims / 2 * 2) * sizeof *from->factors;
    arch_rope *to = &c->rope[ROPE_LOCAL];
    free(to->factors);
    *to = *from;
    if (!from->factors) return true;
    to->factors = malloc(bytes);
    if (to->factors) memcpy(to->factors, from->factors, bytes);
    return to->factors != NULL;
}

lq_status arch_layer_thetas(arch_config *c, const cJSON *j, lq_err *err)
{
    const cJSON *list = js_get(j, "layer_rope_theta");
    double theta[2] = { 0, 0 }; /* ROPE_MAIN, ROPE_LOCAL */
    int64_t i = 0;
    if (!list) return LQ_OK;
    for (const cJSON *e = cJSON_IsArray(list) ? list->child : NULL; e; e = e->next, i++) {
        const double v = cJSON_IsNumber(e) ? e->valuedouble : -1;
        arch_rope_use use = v > 0 ? ROPE_MAIN : ROPE_OFF;
        if (i == c->layers || v < 0 || (v > 0 && v <= 1) || v > 1e15) break;
        while (use < ROPE_OFF && theta[use] > 0 && (theta[use] < v || theta[use] > v))
            use++;
        if (v > 0 && use == ROPE_OFF)
            return lq_fail(err, LQ_EUNSUPPORTED,
                           "layer_rope_theta: expected at most two bases, found a third: %g", v);
        if (use < ROPE_OFF) theta[use] = v;
        c->layer[i].rope = (uint8_t)use;
    }
    if (i != c->layers || cJSON_GetArraySize(list) != i)
        return lq_fail(err, LQ_EVALUE,
                       "layer_rope_theta: expected a base above 1, or 0, for each of %lld layers",
                       (long long)c->layers);
    if (theta[ROPE_LOCAL] > 0 && !share_scaling(c))
        return lq_fail(err, LQ_ENOMEM, "layer_rope_theta: out of memory");
    for (arch_rope_use use = ROPE_MAIN; use < ROPE_OFF; use++)
        if (theta[use] > 0) c->rope[use].theta = theta[use];
    return LQ_OK;
}
