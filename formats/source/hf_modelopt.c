/* formats/source/hf_modelopt.c - NVIDIA's ModelOpt and AMD's Quark. Both name weights, scales and scales of
 * inputs as hf_fp8.c and hf_fp4.c read them; their configs only tell what else there is.
 *
 * ModelOpt: hf_quant_config.json { "quantization": { "quant_algo", ... } }, or the same keys flat in
 * quantization_config. Quark: "global_quant_config" { "weight", "input_tensors" }. */
#include "base/path.h"
#include "formats/source/hf_quant.h"

/* ---- ModelOpt ---- */
/* Weights that only other parts or other arithmetic make whole. */
static lq_status refuse_parts(const hf_quant *h, lq_err *err)
{
    static const char *const parts[] = { ".pre_quant_scale", ".svdquant_lora_a" };
    for (size_t i = 0; i < h->s->n_tensors; i++)
        for (size_t p = 0; p < LQ_COUNT(parts); p++)
            if (lq_has_ending(h->s->tensors[i].name, parts[p]))
                return lq_fail(err, LQ_EUNSUPPORTED,
                               "tensor '%.100s': inputs that are scaled before a linear are not "
                               "read",
                               h->s->tensors[i].name);
    return LQ_OK;
}

static lq_status check_algo(const cJSON *q, const char *key, lq_err *err)
{
    static const char *const known[] = { "FP8",         "FP8_PER_CHANNEL_PER_TOKEN",
                                         "FP8_PB_WO",   "FP8_PB_REAL",
                                         "NVFP4",       "NVFP4_AWQ",
                                         "W4A16_NVFP4", "MXFP8",
                                         "MXFP4",       "MIXED_PRECISION" };
    const char *algo = NULL;
    lq_status st = js_str(q, key, false, &algo, err);
    if (st || !algo) return st;
    for (size_t i = 0; i < LQ_COUNT(known); i++)
        if (strcmp(known[i], algo) == 0) return LQ_OK;
    return lq_fail(err, LQ_EUNSUPPORTED, "%s: \"%.40s\" is not read", key, algo);
}

static lq_status note_cache(hf_quant *h, const cJSON *q, lq_err *err)
{
    if (!js_get(q, "kv_cache_quant_algo") && !js_get(q, "kv_cache_scheme")) return LQ_OK;
    return hf_note_cache(h, "kv_cache_quant_algo", err);
}

lq_status hf_modelopt_read(hf_quant *h, lq_err *err)
{
    const cJSON *inner = js_get(h->q, "quantization"), *q = inner ? inner : h->q;
    lq_status st = check_algo(q, "quant_algo", err);
    const cJSON *layers = js_get(q, "quantized_layers");
    for (const cJSON *l = cJSON_IsObject(layers) ? layers->child : NULL; l && !st; l = l->next)
        st = check_algo(l, "quant_algo", err);
    if (!st) st = refuse_parts(h, err);
    if (!st) st = note_cache(h, q, err);
    if (st) return st;
    h->fp8.inputs = HF_INPUTS_STORED;
    st = hf_fp8_all(h, err);
    return st ? st : hf_fp4_all(h, err);
}

/* ---- Quark ---- */
/* "fp8_e4m3", "fp4" and so on of one of the objects that say how tensors are rounded. */
static lq_status check_dtype(const cJSON *config, const char *key, lq_err *err)
{
    static const char *const known[] = { "fp8_e4m3", "fp4", "mx", "fp8_e8m0" };
    const char *dtype = NULL;
    const cJSON *one = js_get(config, key);
    if (cJSON_IsArray(one)) one = one->child;
    lq_status st = one ? js_str(one, "dtype", false, &dtype, err) : LQ_OK;
    if (st || !dtype) return st;
    for (size_t i = 0; i < LQ_COUNT(known); i++)
        if (strcmp(known[i], dtype) == 0) return LQ_OK;
    return lq_fail(err, LQ_EUNSUPPORTED, "%s: dtype: \"%.40s\" is not read", key, dtype);
}

static lq_status read_quark_rule(hf_quant *h, const cJSON *rule, bool *inputs, lq_err *err)
{
    const cJSON *in = js_get(rule, "input_tensors");
    bool dynamic = false;
    lq_status st = check_dtype(rule, "weight", err);
    if (!st) st = check_dtype(rule, "input_tensors", err);
    if (!st && js_get(rule, "output_tensors"))
        st = src_note(h->s, err, "output_tensors: results of linears are not rounded");
    if (cJSON_IsArray(in)) in = in->child;
    *inputs = in != NULL;
    if (!st && in) st = js_bool(in, "is_dynamic", false, &dynamic, err);
    if (in) h->fp8.inputs = dynamic ? HF_INPUTS_DYNAMIC : HF_INPUTS_STORED;
    return st;
}

lq_status hf_quark_read(hf_quant *h, lq_err *err)
{
    const cJSON *layers = js_get(h->q, "layer_quant_config");
    bool inputs, unused;
    lq_status st = LQ_OK;
    for (const cJSON *l = cJSON_IsObject(layers) ? layers->child : NULL; l && !st; l = l->next)
        st = read_quark_rule(h, l, &unused, err);
    if (!st) st = read_quark_rule(h, js_get(h->q, "global_quant_config"), &inputs, err);
    if (!st && js_get(js_get(h->q, "export"), "kv_cache_group") &&
        js_get(js_get(h->q, "export"), "kv_cache_group")->child)
        st = hf_note_cache(h, "kv_cache_group", err);
    if (st) return st;
    h->fp4_inputs = inputs;
    st = hf_fp8_all(h, err);
    return st ? st : hf_fp4_all(h, err);
}
