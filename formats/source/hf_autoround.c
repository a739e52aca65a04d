/* formats/source/hf_autoround.c - Intel's AutoRound in its own format. packing_format says whose words hold
 * integers; floats (fp8, nv_fp, mx_fp) are read by what is stored. extra_config has the exceptions:
 * hf_extra.
 *
 *   auto_round:auto_gptq (also where nothing is said)   GPTQ, zero points less one
 *   auto_round, auto_round:gptqmodel                     GPTQ, zero points themselves
 *   auto_round:auto_awq                                  AWQ's gemm
 *   mlx, auto_round:mlx                                  mlx-lm's, where config.json has no `quantization` */
#include "base/path.h"
#include "formats/source/hf_quant.h"

/* Floats. */
static lq_status read_stored(hf_quant *h, lq_err *err)
{
    const lq_status st = hf_fp8_all(h, err);
    return st ? st : hf_fp4_all(h, err);
}

static const struct {
    const char *word; /* part of packing_format, behind "auto_round:" where there is more */
    hf_reader *read;
    const char *format;
} packings[] = {
    { "auto_gptq", hf_gptq_read, "gptq" },
    { "gptqmodel", hf_gptq_read, "gptq_v2" },
    { "gptq", hf_gptq_read, "gptq" },
    { "awq", hf_awq_read, NULL },
    { "mlx", hf_mlx_read, NULL },
    { "fp", read_stored, NULL },
    { "llm_compressor", read_stored, NULL },
    { "auto_round", hf_gptq_read, "gptq_v2" },
    { "exllamav2", hf_gptq_read, "gptq_v2" },
};

/* Parts that belong to other arithmetic. */
static lq_status refuse_parts(const hf_quant *h, lq_err *err)
{
    static const char *const parts[] = { ".w_bf16_to_fp8_scale", ".act_scales", ".weight_zp",
                                         ".hadamard_matrix" };
    if (js_get(h->q, "rotation_config"))
        return lq_fail(err, LQ_EUNSUPPORTED, "rotation_config: expected none");
    for (size_t i = 0; i < h->s->n_tensors; i++)
        for (size_t p = 0; p < LQ_COUNT(parts); p++)
            if (lq_has_ending(h->s->tensors[i].name, parts[p]))
                return lq_fail(err, LQ_EUNSUPPORTED, "tensor '%.100s': such parts are not read",
                               h->s->tensors[i].name);
    return LQ_OK;
}

/* How inputs of floats are rounded; 16 bits or none said: not. */
static lq_status read_inputs(hf_quant *h, lq_err *err)
{
    const char *scheme = NULL;
    int64_t bits = 16;
    bool dynamic = true;
    lq_status st = js_i64(h->q, "act_bits", false, 1, 32, &bits, err);
    if (!st) st = js_bool(h->q, "act_dynamic", false, &dynamic, err);
    if (!st) st = js_str(h->q, "activation_scheme", false, &scheme, err);
    if (!st && !hf_block_size(h->q, "weight_block_size", &h->fp8.rows, &h->fp8.cols, NULL) &&
        !h->fp8.rows && cJSON_IsArray(js_get(h->q, "group_size")))
        st = hf_block_size(h->q, "group_size", &h->fp8.rows, &h->fp8.cols, err);
    if (st) return st;
    if (scheme) dynamic = strcmp(scheme, "static") != 0;
    if (bits == 8 || scheme) h->fp8.inputs = dynamic ? HF_INPUTS_DYNAMIC : HF_INPUTS_STORED;
    h->fp4_inputs = bits < 16;
    return LQ_OK;
}

lq_status hf_autoround_read(hf_quant *h, lq_err *err)
{
    const char *packing = NULL;
    size_t i = 0;
    lq_status st = js_str(h->q, "backend", false, &packing, err); /* its old name */
    if (!st) st = js_str(h->q, "packing_format", false, &packing, err);
    if (!st) st = read_inputs(h, err);
    if (st) return lq_wrap(err, st, "quantization_config");
    if (!packing) packing = "auto_round:auto_gptq";
    const char *colon = strchr(packing, ':');
    while (i < LQ_COUNT(packings) && !strstr(colon ? colon : packing, packings[i].word))
        i++;
    if (i == LQ_COUNT(packings))
        return lq_fail(err, LQ_EUNSUPPORTED, "packing_format: \"%.40s\" is not read", packing);
    h->format = packings[i].format;
    st = refuse_parts(h, err);
    if (!st) st = packings[i].read(h, err);
    return st || packings[i].read == read_stored ? st : read_stored(h, err);
}
