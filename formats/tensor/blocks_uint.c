/* formats/tensor/blocks_uint.c */
#include "formats/tensor/blocks_uint.h"

qt_scheme blk_uint(const blk_type *t)
{
    const bool same = !t->table && t->bits < 5 && (t->bias || t->zero == 1 << (t->bits - 1));
    const int bits = same ? t->bits : 8;
    return (qt_scheme){ .kind = QT_UINT,
                        .bits = bits,
                        .group = t->group,
                        .zero = t->bias ? QT_ZERO_BIAS : QT_ZERO_NONE,
                        .scale_dtype = t->fine ? LQ_F32 : LQ_F16 };
}

/* Row n. */
static void uint_row(void *const w[QT_N_PLANES], const qt_tensor *q, int64_t n, const blk_type *t,
                     const uint8_t *blocks)
{
    const qt_scheme *s = &q->scheme;
    const int64_t ng = q->K / t->group;
    const int zero = t->bias ? 0 : 1 << (s->bits - 1);
    const size_t e = lq_dtype_bytes(s->scale_dtype);
    uint8_t *codes = (uint8_t *)w[QT_CODES] + (size_t)n * qt_row_bytes(q->K, s->bits);
    uint8_t *scales = (uint8_t *)w[QT_SCALES] + (size_t)(n * ng) * e;
    uint8_t *zeros = t->bias ? (uint8_t *)w[QT_ZEROS] + (size_t)(n * ng) * e : NULL;
    for (int64_t k = 0; k < q->K; k += t->elements, blocks += t->bytes) {
        blk_parts b;
        blk_take(&b, t, blocks);
        for (int i = 0; i < t->elements; i++)
            b.code[i] = (uint8_t)(blk_value(t, b.code[i]) + zero);
        qt_pack_row(codes + k * s->bits / 8, b.code, t->elements, s->bits);
        for (int g = 0; g < t->elements / t->group; g++) {
            const size_t at = (size_t)(k / t->group + g) * e;
            const float scale = blk_scale(t, &b, g), bias = t->bias ? blk_bias(t, &b, g) : 0;
            lq_from_f32(scales + at, &scale, s->scale_dtype, 1);
            if (zeros) lq_from_f32(zeros + at, &bias, s->scale_dtype, 1);
        }
    }
}

lq_status blk_to_uint(qt_tensor *q, const qt_tensor *t, lq_arena *a, lq_err *err)
{
    const blk_type *type = blk_find(t->scheme.blocks);
    const qt_scheme s = blk_uint(type);
    const size_t row = blk_row_bytes(type, t->K);
    void *w[QT_N_PLANES];
    const lq_status st = qt_alloc(q, w, &s, t->N, t->K, a, err);
    for (int64_t n = 0; n < t->N && !st; n++)
        uint_row(w, q, n, type, (const uint8_t *)t->plane[QT_CODES].data + (size_t)n * row);
    return st;
}
