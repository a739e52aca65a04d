/* formats/source/hf_bnb.c - bitsandbytes, as transformers saves it: per linear,
 *
 *   4 bit   weight U8 [NK/2,1] (high nibble first, the matrix flat), weight.absmax,
 *           weight.quant_map, weight.quant_state.bitsandbytes__nf4 or __fp4: JSON text with shape,
 *           block and offset; double quantized also weight.nested_absmax, weight.nested_quant_map
 *   int8    weight I8 [N,K], SCB f32 [N], weight_format U8 (0)
 *
 * The file has all planes as QT_LUT4 and QT_I8 define them. LLM.int8's outlier inputs are found
 * while running (llm_int8_threshold) and not stored: the weights are served as they are. */
#include "formats/source/hf_quant.h"

#include <float.h>
#include <stdlib.h>

static const int BYTES[] = { LQ_U8, LQ_I8, LQ_BF16, LQ_F16, LQ_F32, -1 }; /* quant_storage */
static const int U8[] = { LQ_U8, -1 }, I8[] = { LQ_I8, -1 }, F32[] = { LQ_F32, -1 };

static lq_status one_of(const cJSON *j, const char *key, const char *const *words, lq_err *err)
{
    const char *text = words[0];
    lq_status st = js_str(j, key, false, &text, err);
    while (!st && *words && strcmp(*words, text) != 0)
        words++;
    if (st || *words) return st;
    return lq_fail(err, LQ_EVALUE, "%s: \"%.40s\" does not fit", key, text);
}

/* shape, blocksize and offset of a quant_state. */
static lq_status read_state(qt_tensor *q, const src_tensor *state, lq_err *err)
{
    /* of what the weight was; values are f32 here */
    static const char *const dtypes[] = { "float16", "bfloat16", "float32", NULL };
    const char *const type[] = { q->scheme.fp4 ? "fp4" : "nf4", NULL };
    enum { MAX_STATE = 1 << 16 };
    cJSON *j = NULL;
    double offset = 0;
    int64_t nested = 256;
    lq_status st = js_parse(&j, state->raw.data, state->raw.bytes, MAX_STATE, JS_UNIQUE, err);
    const cJSON *shape = j ? js_get(j, "shape") : NULL;
    if (!st && (cJSON_GetArraySize(shape) != 2 || !js_whole(shape->child, 1, INT32_MAX, &q->N) ||
                !js_whole(shape->child->next, 1, INT32_MAX, &q->K)))
        st = lq_fail(err, LQ_EVALUE, "shape: expected two sizes");
    if (!st) st = js_i64(j, "blocksize", true, 1, INT32_MAX, &q->scheme.group, err);
    q->scheme.dbl = j && js_get(j, "nested_offset");
    if (!st) st = js_f64(j, "nested_offset", false, 0, FLT_MAX, &offset, err);
    if (!st) st = js_i64(j, "nested_blocksize", false, 256, 256, &nested, err);
    if (!st) st = one_of(j, "quant_type", type, err);
    if (!st) st = one_of(j, "dtype", dtypes, err);
    q->scheme.offset = (float)offset;
    cJSON_Delete(j);
    return st ? lq_wrap(err, st, "tensor '%.100s'", state->name) : LQ_OK;
}

static lq_status make_4bit(hf_quant *h, const char *module, bool fp4, lq_err *err)
{
    const src_tensor *state, *weight, *absmax, *map, *absmax2 = NULL, *map2 = NULL;
    qt_tensor q = { .scheme = { .kind = QT_LUT4, .fp4 = fp4 } };
    lq_status st = hf_take(h, module,
                           fp4 ? ".weight.quant_state.bitsandbytes__fp4"
                               : ".weight.quant_state.bitsandbytes__nf4",
                           true, U8, 1, &state, err);
    if (!st) st = read_state(&q, state, err);
    if (!st) st = hf_take(h, module, ".weight", true, BYTES, -1, &weight, err);
    if (!st)
        st = hf_take(h, module, ".weight.absmax", true, q.scheme.dbl ? U8 : F32, 1, &absmax, err);
    if (!st) st = hf_take(h, module, ".weight.quant_map", true, F32, 1, &map, err);
    if (!st) st = hf_take(h, module, ".weight.nested_absmax", q.scheme.dbl, F32, 1, &absmax2, err);
    if (!st) st = hf_take(h, module, ".weight.nested_quant_map", q.scheme.dbl, F32, 1, &map2, err);
    if (st) return st;
    q.plane[QT_CODES] = weight->raw;
    q.plane[QT_SCALES] = absmax->raw;
    q.plane[QT_MAP] = map->raw;
    if (absmax2) q.plane[QT_SCALES2] = absmax2->raw;
    if (map2) q.plane[QT_MAP2] = map2->raw;
    return hf_make(h, module, ".weight", &q, NULL, NULL, 0, err);
}

static lq_status make_8bit(hf_quant *h, const char *module, lq_err *err)
{
    const src_tensor *scb, *weight, *format;
    lq_status st = hf_take(h, module, ".SCB", true, F32, 1, &scb, err);
    if (!st) st = hf_take(h, module, ".weight", true, I8, 2, &weight, err);
    if (!st) st = hf_take(h, module, ".weight_format", false, U8, -1, &format, err);
    if (st) return st;
    if (format && *(const uint8_t *)format->raw.data != 0)
        return lq_fail(err, LQ_EUNSUPPORTED,
                       "tensor '%.100s': expected 0 (rows), found the layout %d of an old GPU",
                       format->name, *(const uint8_t *)format->raw.data);
    qt_tensor q = { .scheme = { .kind = QT_I8, .div127 = true },
                    .N = weight->shape[0],
                    .K = weight->shape[1] };
    q.plane[QT_CODES] = weight->raw;
    q.plane[QT_SCALES] = scb->raw;
    return hf_make(h, module, ".weight", &q, NULL, NULL, 0, err);
}

lq_status hf_bnb_read(hf_quant *h, lq_err *err)
{
    lq_status st = LQ_OK;
    bool int8 = false;
    for (size_t i = 0; i < h->s->n_tensors && !st; i++) {
        const char *m;
        if ((m = hf_module(h, i, ".weight.quant_state.bitsandbytes__nf4")))
            st = make_4bit(h, m, false, err);
        else if ((m = hf_module(h, i, ".weight.quant_state.bitsandbytes__fp4")))
            st = make_4bit(h, m, true, err);
        else if ((m = hf_module(h, i, ".SCB"))) {
            st = make_8bit(h, m, err);
            int8 = true;
        }
    }
    if (!st && int8)
        st =
            src_note(h->s, err,
                     "LLM.int8 weights: outlier inputs, which its own library finds while running, "
                     "are not treated apart");
    return st;
}
