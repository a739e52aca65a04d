/* formats/source/hf_fp4.c - linears of E2M1 codes, by what is stored: compressed-tensors, ModelOpt, Quark,
 * AutoRound. Per linear,
 *
 *   weight_packed or weight   U8 [N,K/2], the even input in the low nibble
 *   weight_scale              F8_E4M3 [N,K/16] (NVFP4), or U8, F8_E8M0 [N,K/32] (MXFP4)
 *   weight_global_scale       NVFP4: f32 [1], by which scales are divided; or ModelOpt's
 *   weight_scale_2            f32 [], with which they are multiplied
 *   input_global_scale,       inputs are rounded to E2M1 too, which is not done: a note says so
 *   input_scale
 *
 * All planes are as QT_E2M1 has them. */
#include "formats/source/hf_quant.h"

static const int U8[] = { LQ_U8, -1 }, F32[] = { LQ_F32, -1 };

/* The second scale of NVFP4, one number. */
static lq_status take_second(qt_tensor *q, hf_quant *h, const char *module, lq_err *err)
{
    const src_tensor *second;
    lq_status st = hf_take(h, module, ".weight_global_scale", false, F32, -1, &second, err);
    q->scheme.recip = second != NULL;
    if (!st && !second) st = hf_take(h, module, ".weight_scale_2", true, F32, -1, &second, err);
    if (!st && src_elements(second) != 1)
        st = lq_fail(err, LQ_ESHAPE, "tensor '%.100s': expected one number", second->name);
    if (!st) q->plane[QT_SCALES2] = second->raw;
    return st;
}

lq_status hf_fp4_make(hf_quant *h, const char *module, lq_err *err)
{
    static const int scales[] = { LQ_F8_E4M3, LQ_U8, LQ_F8_E8M0, -1 };
    const src_tensor *packed, *scale, *input = NULL, *ignored;
    lq_status st = hf_take(h, module, ".weight_packed", false, U8, 2, &packed, err);
    if (!st && !packed) st = hf_take(h, module, ".weight", true, U8, 2, &packed, err);
    if (!st) st = hf_take(h, module, ".weight_scale", true, scales, 2, &scale, err);
    if (!st) st = hf_take(h, module, ".input_global_scale", false, F32, -1, &input, err);
    if (!st) st = hf_take(h, module, ".input_scale", false, F32, -1, &ignored, err);
    if (st) return st;
    const bool nv = scale->raw_dtype == LQ_F8_E4M3;
    qt_tensor q = { .N = packed->shape[0], .K = packed->shape[1] * 2 };
    q.scheme = (qt_scheme){ .kind = QT_E2M1,
                            .group = nv ? 16 : 32,
                            .scale_dtype = nv ? LQ_F8_E4M3 : LQ_F8_E8M0 };
    if (nv) st = take_second(&q, h, module, err);
    if (!st && q.K % q.scheme.group)
        st = lq_fail(err, LQ_ESHAPE, "tensor '%.100s': expected a multiple of %lld inputs",
                     packed->name, (long long)q.scheme.group);
    if (!st) st = hf_expect(scale, q.N, q.K / q.scheme.group, err);
    if (!st && (h->fp4_inputs || input || ignored))
        st = hf_note_weight_only(h, nv ? "NVFP4" : "MXFP4", err);
    if (st) return st;
    q.plane[QT_CODES] = packed->raw;
    q.plane[QT_SCALES] = scale->raw;
    return hf_make(h, module, ".weight", &q, NULL, NULL, 0, err);
}

/* A packed weight with scales of four-bit floats beside it? */
static bool is_fp4(const hf_quant *h, const char *module)
{
    const src_tensor *scale = hf_stored(h, module, ".weight_scale");
    return scale && scale->n_dims == 2 &&
           (scale->raw_dtype == LQ_F8_E4M3 || scale->raw_dtype == LQ_F8_E8M0 ||
            scale->raw_dtype == LQ_U8);
}

lq_status hf_fp4_all(hf_quant *h, lq_err *err)
{
    static const char *const names[] = { ".weight", ".weight_packed" };
    lq_status st = LQ_OK;
    for (size_t i = 0; i < h->s->n_tensors && !st; i++)
        for (size_t n = 0; n < LQ_COUNT(names) && !st; n++) {
            if (h->s->tensors[i].raw_dtype != LQ_U8) continue;
            const char *module = hf_module(h, i, names[n]);
            if (module && is_fp4(h, module)) st = hf_fp4_make(h, module, err);
        }
    return st;
}
