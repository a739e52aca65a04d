/* quantize/methods/kinds.c - see kinds.h. */
#include "quantize/methods/kinds.h"

#include "quantize/methods/fp4.h"
#include "quantize/methods/fp8.h"
#include "quantize/methods/int8.h"
#include "quantize/methods/lut4.h"
#include "quantize/methods/rtn.h"

static void make_dense(const qz_out *to, const void *W, lq_dtype d)
{
    const qt_tensor *q = &to->t;
    float row[1024];
    size_t n = (size_t)q->N * (size_t)q->K, in = lq_dtype_bytes(d);
    size_t out = lq_dtype_bytes(q->scheme.dtype);
    for (size_t i = 0; i < n; i += LQ_COUNT(row)) {
        size_t len = n - i < LQ_COUNT(row) ? n - i : LQ_COUNT(row);
        lq_to_f32(row, (const uint8_t *)W + i * in, d, len);
        lq_from_f32((uint8_t *)to->w[QT_CODES] + i * out, row, q->scheme.dtype, len);
    }
}

lq_status qz_round_kind(qz_out *out, const void *W, lq_dtype d, const int32_t *outliers, pool *p,
                        lq_err *err)
{
    switch (out->t.scheme.kind) {
    case QT_DENSE:
        make_dense(out, W, d);
        return LQ_OK;
    case QT_LUT4:
        return lut4_run(out, W, d, p, err);
    case QT_E4M3:
        return fp8_run(out, W, d, p, err);
    default:
        return int8_run(out, W, d, outliers, p, err);
    }
}

static void tensor_scale(qz_out *out, const void *W, lq_dtype d)
{
    float row[1024], absmax = 0;
    const size_t n = (size_t)(out->t.N * out->t.K), size = lq_dtype_bytes(d);
    for (size_t i = 0; i < n; i += LQ_COUNT(row)) {
        const size_t len = n - i < LQ_COUNT(row) ? n - i : LQ_COUNT(row);
        lq_to_f32(row, (const uint8_t *)W + i * size, d, len);
        absmax = fmaxf(absmax, qz_rows_get()->absmax(row, (int64_t)len));
    }
    const float scale = fp4_tensor_scale(absmax);
    memcpy(out->w[QT_SCALES2], &scale, sizeof scale);
}

lq_status qz_round_weights(qz_out *out, const qz_opts *o, const void *W, lq_dtype d, pool *p,
                           lq_err *err)
{
    const qz_matrix m = { .o = o, .W = W, .d = d, .N = out->t.N, .K = out->t.K };
    qz_rounded r = { .loss = (double)NAN, .loss_rtn = (double)NAN };
    if (out->t.scheme.kind != QT_UINT && out->t.scheme.kind != QT_BLOCKS &&
        out->t.scheme.kind != QT_E2M1)
        return qz_round_kind(out, W, d, NULL, p, err);
    if (out->t.scheme.recip) tensor_scale(out, W, d);
    return o->method->round ? o->method->round(out, &r, &m, p, err)
                            : rtn_round(out, &r, &m, p, err);
}
