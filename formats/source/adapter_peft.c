/* formats/source/adapter_peft.c - an adapter in a folder of PEFT's: adapter_config.json says how, and
 * adapter_model.safetensors has for each target
 *
 *     base_model.model.MODULE.lora_A.weight             [rank, inputs]
 *     base_model.model.MODULE.lora_B.weight             [outputs, rank]
 *     base_model.model.MODULE.lora_magnitude_vector     [outputs], of DoRA; also with ".weight"
 *
 * fan_in_fan_out says how the model stores its weight, which the model's own row does: A and B are
 * the same either way. */
#include "formats/source/adapter_impl.h"

#include "base/json.h"
#include "base/path.h"
#include "formats/hf/safetensors.h"

#include <stdio.h>
#include <stdlib.h>

typedef struct {
    const cJSON *ranks, *alphas; /* of some modules; NULL: of none */
    int64_t rank;
    double alpha;
    bool root; /* rsLoRA */
} peft_config;

/* ---- adapter_config.json ---- */

static const double MAX_ALPHA = 1e6; /* and of the numbers of a pattern */

/* Keys under which an adapter changes what llmq does not; null, false, "none" and nothing in it say
 * that it does not. */
static const char *const refused[] = {
    "modules_to_save",   "bias",
    "lora_bias",         "trainable_token_indices",
    "layer_replication", "use_qalora",
    "target_parameters", "alora_invocation_tokens",
    "use_bdlora",        "monteclora_config",
    "arrow_config",      "kasa_config",
    "velora_config",
};

static bool says_nothing(const cJSON *v)
{
    if (!v || cJSON_IsFalse(v)) return true;
    if (cJSON_IsString(v)) return strcmp(v->valuestring, "none") == 0;
    return (cJSON_IsArray(v) || cJSON_IsObject(v)) && !v->child;
}

static lq_status check_keys(const cJSON *j, lq_err *err)
{
    char found[64];
    const char *type = NULL;
    lq_status s = js_str(j, "peft_type", true, &type, err);
    if (!s && strcmp(type, "LORA") != 0)
        return lq_fail(err, LQ_EUNSUPPORTED, "peft_type: expected \"LORA\", found \"%.40s\"", type);
    for (size_t i = 0; i < LQ_COUNT(refused) && !s; i++) {
        const cJSON *v = js_get(j, refused[i]);
        if (!says_nothing(v))
            s = lq_fail(err, LQ_EUNSUPPORTED, "%s: expected none, found %s", refused[i],
                        js_describe(found, v));
    }
    /* These begin by changing the model's own weights, which the file does not have. */
    static const char *const changing[] = { "pissa", "olora", "corda", "loftq", "lora_ga" };
    const cJSON *init = js_get(j, "init_lora_weights");
    for (size_t i = 0; i < LQ_COUNT(changing) && !s && cJSON_IsString(init); i++)
        if (strncmp(init->valuestring, changing[i], strlen(changing[i])) == 0)
            s = lq_fail(err, LQ_EUNSUPPORTED,
                        "init_lora_weights: expected an adapter to the model as it is, found "
                        "\"%.40s\", which changes its weights",
                        init->valuestring);
    return s;
}

/* "model.layers.0.self_attn.q_proj" by a key that is a name or the end of one: PEFT's
 * (.*\.)?(KEY)$ where KEY has no signs of a regular expression but points and a leading ^. */
static lq_status check_pattern(const cJSON *patterns, const char *which, lq_err *err)
{
    char found[64];
    if (patterns && !cJSON_IsObject(patterns) && !cJSON_IsNull(patterns))
        return lq_fail(err, LQ_EFORMAT, "%s: expected numbers of modules by name, found %s", which,
                       js_describe(found, patterns));
    for (const cJSON *v = patterns ? patterns->child : NULL; v; v = v->next) {
        const char *k = v->string + (v->string[0] == '^');
        if (!cJSON_IsNumber(v) || k[strspn(k, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                              "0123456789_.")])
            return lq_fail(err, LQ_EUNSUPPORTED,
                           "%s: expected numbers of modules by name, found '%.100s'", which,
                           v->string);
        if (!(v->valuedouble >= 0 && v->valuedouble <= MAX_ALPHA))
            return lq_fail(err, LQ_EVALUE, "%s: %.100s: expected a number 0..%g, found %g", which,
                           v->string, MAX_ALPHA, v->valuedouble);
    }
    return LQ_OK;
}

static const cJSON *of_module(const cJSON *patterns, const char *module)
{
    const size_t n = strlen(module);
    for (const cJSON *v = patterns ? patterns->child : NULL; v; v = v->next) {
        const char *k = v->string;
        const bool whole = k[0] == '^';
        k += whole;
        const size_t len = strlen(k);
        if (len > n || strcmp(module + n - len, k) != 0) continue;
        if (len == n || (!whole && module[n - len - 1] == '.')) return v;
    }
    return NULL;
}

static lq_status read_config(peft_config *p, const cJSON *j, lq_err *err)
{
    *p = (peft_config){ .alpha = 8, .rank = 8 };
    lq_status s = check_keys(j, err);
    p->ranks = js_get(j, "rank_pattern");
    p->alphas = js_get(j, "alpha_pattern");
    if (!s) s = js_i64(j, "r", true, 1, ADP_MAX_RANK, &p->rank, err);
    if (!s) s = js_f64(j, "lora_alpha", true, 0, MAX_ALPHA, &p->alpha, err);
    if (!s) s = js_bool(j, "use_rslora", false, &p->root, err);
    if (!s) s = check_pattern(p->ranks, "rank_pattern", err);
    if (!s) s = check_pattern(p->alphas, "alpha_pattern", err);
    return s;
}

static lq_status scale_of(float *scale, const void *user, const adp_raw *raw, int64_t rank,
                          lq_err *err)
{
    const peft_config *p = user;
    const cJSON *r = of_module(p->ranks, raw->module), *a = of_module(p->alphas, raw->module);
    const double want = r ? r->valuedouble : (double)p->rank;
    const double alpha = a ? a->valuedouble : p->alpha;
    if (want != (double)rank)
        return lq_fail(
            err, LQ_ESHAPE,
            "tensor '%.200s': expected a rank of %g as adapter_config.json says, found %lld",
            raw->piece[ADP_A].name, want, (long long)rank);
    *scale = (float)(alpha / (p->root ? sqrt((double)rank) : (double)rank));
    return LQ_OK;
}

/* ---- adapter_model.safetensors ---- */

/* The module's role, whatever the class that was trained calls the body. */
static bool find_slot(const arch_config *c, const char *module, arch_slot *slot)
{
    static const char *const bodies[] = {
        "", "model.language_model.", "language_model.model.", "model.", "transformer.", "backbone."
    };
    char name[512];
    snprintf(name, sizeof name, "%s.weight", module);
    if (arch_slot_of(c, name, slot)) return true;
    for (size_t i = 0; i < LQ_COUNT(bodies); i++) {
        const size_t n = strlen(bodies[i]);
        if (strncmp(module, bodies[i], n) != 0) continue;
        snprintf(name, sizeof name, "%s%s.weight", c->prefix, module + n);
        if (arch_slot_of(c, name, slot)) return true;
    }
    return false;
}

static lq_status put_tensor(adp_reading *r, const st_tensor *t, lq_arena *a, lq_err *err)
{
    static const char begin[] = "base_model.model.";
    static const struct {
        const char *end;
        adp_which which;
    } ends[] = { { ".lora_A.weight", ADP_A },
                 { ".lora_B.weight", ADP_B },
                 { ".lora_magnitude_vector", ADP_MAGNITUDE },
                 { ".lora_magnitude_vector.weight", ADP_MAGNITUDE } };
    const size_t n = strlen(t->name), b = strlen(begin);
    size_t i = 0;
    while (i < LQ_COUNT(ends) && !lq_has_ending(t->name, ends[i].end))
        i++;
    if (i == LQ_COUNT(ends) || strncmp(t->name, begin, b) != 0)
        return lq_fail(err, LQ_EUNSUPPORTED,
                       "tensor '%.200s': expected lora_A, lora_B or lora_magnitude_vector of a "
                       "linear, found another",
                       t->name);
    const char *module = lq_push_str(a, t->name + b, n - b - strlen(ends[i].end));
    arch_slot slot;
    if (!module) return lq_fail(err, LQ_ENOMEM, "adapter: out of memory");
    if (!find_slot(src_config(r->base), module, &slot)) return adp_no_target(r->base, t->name, err);
    adp_piece p = { .name = t->name, .dtype = t->dtype, .n_dims = t->n_dims, .data = t->data };
    memcpy(p.shape, t->shape, sizeof p.shape);
    return adp_put(r, &slot, module, ends[i].which, &p, err);
}

static lq_status read_tensors(adp_adapter *a, const char *path, const peft_config *c,
                              const src_source *base, lq_err *err)
{
    st_file f;
    lq_arena names = { 0 };
    lq_status s = st_open(&f, path, err);
    if (s) return s;
    adp_reading r = { .base = base, .cap = f.n, .scale = scale_of, .user = c };
    r.raw = calloc(f.n + 1, sizeof *r.raw);
    if (!r.raw) s = lq_fail(err, LQ_ENOMEM, "adapter: out of memory");
    for (size_t i = 0; i < f.n && !s; i++)
        s = put_tensor(&r, &f.tensors[i], &names, err);
    if (!s) s = adp_finish(a, &r, err);
    free(r.raw);
    lq_arena_free(&names);
    st_close(&f);
    return s;
}

lq_status adp_open_peft(adp_adapter *a, const char *folder, const src_source *base, lq_err *err)
{
    char config[4096], tensors[4096];
    peft_config c;
    cJSON *j = NULL;
    lq_status s = lq_path_join(config, sizeof config, folder, "adapter_config.json", err);
    if (!s) s = lq_path_join(tensors, sizeof tensors, folder, "adapter_model.safetensors", err);
    if (!s) s = js_parse_file(&j, config, (size_t)1 << 20, 0, err);
    if (!s) s = read_config(&c, j, err);
    if (!s) s = read_tensors(a, tensors, &c, base, err);
    cJSON_Delete(j);
    return s;
}
