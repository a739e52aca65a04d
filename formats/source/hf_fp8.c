/* formats/source/hf_fp8.c - quant_method "fp8": DeepSeek, Qwen and others. Per linear,
 *
 *   weight            F8_E4M3 [N,K]
 *   weight_scale_inv  f32 [ceil(N/R), ceil(K/C)], weight_block_size [R,C]; the weight is multiplied
 *                     with it, whatever its name says
 *   weight_scale      without blocks: [1] or []
 *   input_scale       activation_scheme "static": [1] or []; "dynamic": inputs are rounded with a
 *                     scale for each C inputs of a token, or for the token without blocks */
#include "formats/source/hf_quant.h"

typedef struct {
    lq_dtype dtype;
    const uint8_t *scales;
} fp8_parts;

static void hf_fp8_fill(void *const w[QT_N_PLANES], const qt_tensor *t, const void *from)
{
    const fp8_parts *p = from;
    lq_to_f32(w[QT_SCALES], p->scales, p->dtype, t->plane[QT_SCALES].bytes / 4);
}

typedef struct {
    int64_t rows, cols; /* of a block; 0: none */
    bool acts, fixed;
} fp8_config;

static lq_status read_config(fp8_config *c, const cJSON *q, lq_err *err)
{
    const char *acts = "dynamic", *fmt = "e4m3";
    const cJSON *block = js_get(q, "weight_block_size");
    *c = (fp8_config){ .rows = 0 };
    lq_status st = js_str(q, "activation_scheme", false, &acts, err);
    if (!st) st = js_str(q, "fmt", false, &fmt, err);
    if (!st && block &&
        (cJSON_GetArraySize(block) != 2 || !js_whole(block->child, 1, INT32_MAX, &c->rows) ||
         !js_whole(block->child->next, 1, INT32_MAX, &c->cols)))
        st = lq_fail(err, LQ_EVALUE, "weight_block_size: expected two sizes");
    if (st) return lq_wrap(err, st, "quantization_config");
    if (strcmp(fmt, "e4m3") != 0)
        return lq_fail(err, LQ_EUNSUPPORTED, "fmt: expected e4m3, found \"%.40s\"", fmt);
    c->fixed = strcmp(acts, "static") == 0;
    c->acts = c->fixed || strcmp(acts, "dynamic") == 0;
    if (!c->acts)
        return lq_fail(err, LQ_EUNSUPPORTED,
                       "activation_scheme: expected dynamic or static, found \"%.40s\"", acts);
    return LQ_OK;
}

static lq_status hf_fp8_make_one(hf_quant *h, const fp8_config *c, const char *module, lq_err *err)
{
    static const int f8[] = { LQ_F8_E4M3, -1 };
    const src_tensor *weight, *scale, *input = NULL;
    lq_status st = hf_take(h, module, ".weight", true, f8, 2, &weight, err);
    if (!st)
        st = hf_take(h, module, c->rows ? ".weight_scale_inv" : ".weight_scale", true, HF_FLOATS,
                     -1, &scale, err);
    if (!st) st = hf_take(h, module, ".input_scale", c->fixed, HF_FLOATS, -1, &input, err);
    if (st) return st;
    qt_tensor q = { .N = weight->shape[0], .K = weight->shape[1] };
    q.scheme = (qt_scheme){
        .kind = QT_E4M3, .rows = c->rows, .group = c->cols, .act = QT_ACT_F8, .act_group = c->cols
    };
    if (c->rows)
        st = hf_expect(scale, lq_ceil_div(q.N, c->rows), lq_ceil_div(q.K, c->cols), err);
    else if (src_elements(scale) != 1)
        st = lq_fail(err, LQ_ESHAPE, "tensor '%.100s': expected one number", scale->name);
    if (!st && c->fixed) st = hf_one_float(&q.scheme.act_scale, input, err);
    if (st) return st;
    if (c->fixed) q.scheme.act_group = 0;
    q.plane[QT_CODES] = weight->raw;
    hf_view_f32(&q, QT_SCALES, scale);
    const fp8_parts p = { scale->raw_dtype, scale->raw.data };
    return hf_make(h, module, ".weight", &q, hf_fp8_fill, &p, sizeof p, err);
}

lq_status hf_fp8_read(hf_quant *h, lq_err *err)
{
    fp8_config c;
    lq_status st = read_config(&c, h->q, err);
    for (size_t i = 0; i < h->s->n_tensors && !st; i++) {
        if (h->s->tensors[i].raw_dtype != LQ_F8_E4M3) continue;
        const char *module = hf_module(h, i, ".weight");
        if (module) st = hf_fp8_make_one(h, &c, module, err);
    }
    return st;
}
