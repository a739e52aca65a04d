/* formats/tensor/dequant.c - the reference reading: the values of every scheme's codes. */
#include "formats/tensor/blocks.h"

static float get_float(const void *p, lq_dtype d, size_t i)
{
    float f;
    lq_to_f32(&f, (const uint8_t *)p + i * lq_dtype_bytes(d), d, 1);
    return f;
}

/* scale * code + add, or scale * (code - zero), of one group. */
typedef struct {
    float scale, zero, add;
    bool biased; /* add counts, not zero */
} uint_grid;

static uint_grid grid_of(const qt_tensor *t, const uint8_t *zeros, int64_t n, int64_t ng, int64_t g)
{
    const qt_scheme *s = &t->scheme;
    const size_t at = (size_t)(n * ng + g);
    uint_grid r = { .scale = get_float(t->plane[QT_SCALES].data, s->scale_dtype, at) };
    r.biased = s->zero == QT_ZERO_BIAS;
    if (r.biased)
        r.add = get_float(zeros, s->scale_dtype, at);
    else
        r.zero = s->zero == QT_ZERO_NONE  ? (float)(1 << (s->bits - 1))
                 : s->zero == QT_ZERO_INT ? (float)qt_get(zeros, g, s->zbits)
                                          : get_float(zeros, LQ_F16, at);
    return r;
}

static float grid_value(uint_grid r, float code)
{
    return r.biased ? r.scale * code + r.add : r.scale * (code - r.zero);
}

/* Of n codes, a multiple of BLOCK: of a fixed length, so that compilers use vectors. */
enum { BLOCK = 16 };

static void grid_values(float *dst, const uint8_t *codes, int64_t n, uint_grid r)
{
    if (r.biased)
        for (int64_t i = 0; i < n; i += BLOCK)
            for (int j = 0; j < BLOCK; j++)
                dst[i + j] = r.scale * (float)codes[i + j] + r.add;
    else
        for (int64_t i = 0; i < n; i += BLOCK)
            for (int j = 0; j < BLOCK; j++)
                dst[i + j] = r.scale * ((float)codes[i + j] - r.zero);
}

/* Codes k .. k + n of a row by their grid. They are unpacked a piece at a time: read back at once
 * they would wait for the stores. */
static void dequant_run(float *dst, const uint8_t *row, int bits, uint_grid r, int64_t k, int64_t n)
{
    enum { PIECE = 256 };
    uint8_t codes[PIECE];
    int64_t i = 0;
    while (k % 8 == 0 && n - i >= BLOCK) {
        const int64_t len = n - i < PIECE ? (n - i) / BLOCK * BLOCK : PIECE;
        qt_unpack(codes, row, k + i, len, bits);
        grid_values(dst + i, codes, len, r);
        i += len;
    }
    for (; i < n; i++)
        dst[i] = grid_value(r, (float)qt_get(row, k + i, bits));
}

static void dequant_uint(float *dst, const qt_tensor *t, int64_t n)
{
    const qt_scheme *s = &t->scheme;
    const int64_t ng = lq_ceil_div(t->K, s->group);
    const uint8_t *codes =
        (const uint8_t *)t->plane[QT_CODES].data + (size_t)n * qt_row_bytes(t->K, s->bits);
    const uint8_t *zeros = t->plane[QT_ZEROS].data;
    if (s->zero == QT_ZERO_INT) zeros += (size_t)n * qt_row_bytes(ng, s->zbits);
    if (s->act_order) {
        for (int64_t k = 0; k < t->K; k++) {
            const int64_t g = qt_get_i32(t->plane[QT_GIDX].data, k);
            dst[k] = grid_value(grid_of(t, zeros, n, ng, g), (float)qt_get(codes, k, s->bits));
        }
        return;
    }
    for (int64_t g = 0, k = 0; g < ng; g++) {
        const uint_grid r = grid_of(t, zeros, n, ng, g);
        const int64_t n_in = t->K - k < s->group ? t->K - k : s->group;
        dequant_run(dst + k, codes, s->bits, r, k, n_in);
        k += n_in;
    }
}

static void dequant_i8(float *dst, const qt_tensor *t, int64_t n)
{
    const qt_scheme *s = &t->scheme;
    const int8_t *codes = (const int8_t *)t->plane[QT_CODES].data + n * t->K;
    int z = s->zero ? ((const int8_t *)t->plane[QT_ZEROS].data)[n] : 0;
    float scale = get_float(t->plane[QT_SCALES].data, LQ_F32, (size_t)n);
    if (s->div127) scale /= 127.0f;
    int64_t k = 0;
    for (; k + BLOCK <= t->K; k += BLOCK)
        for (int j = 0; j < BLOCK; j++)
            dst[k + j] = scale * (float)(codes[k + j] - z);
    for (; k < t->K; k++)
        dst[k] = scale * (float)(codes[k] - z);
    for (int64_t i = 0; s->kind == QT_I8_OUTLIER && i < s->n_out; i++)
        dst[qt_get_i32(t->plane[QT_OUT_IDX].data, i)] =
            get_float(t->plane[QT_OUT_VALS].data, LQ_BF16, (size_t)(n * s->n_out + i));
}

float qt_lut_absmax(const qt_tensor *t, int64_t block)
{
    const void *scales = t->plane[QT_SCALES].data;
    if (!t->scheme.dbl) return get_float(scales, LQ_F32, (size_t)block);
    float a = get_float(t->plane[QT_MAP2].data, LQ_F32, ((const uint8_t *)scales)[block]) *
              get_float(t->plane[QT_SCALES2].data, LQ_F32, (size_t)block / 256);
    return a + t->scheme.offset;
}

/* The two values of every byte of codes, the high half's first. */
typedef struct {
    float v[256][2];
} lut_pairs;

static void pairs_of(lut_pairs *p, const qt_tensor *t)
{
    float map[16];
    memcpy(map, t->plane[QT_MAP].data, sizeof map);
    for (int b = 0; b < 256; b++) {
        p->v[b][0] = map[b >> 4];
        p->v[b][1] = map[b & 15];
    }
}

/* n codes from number i on, times absmax; four at once where they are two whole bytes. */
static void lut_values(float *dst, const uint8_t *codes, int64_t i, int64_t n, const lut_pairs *p,
                       float absmax)
{
    const int64_t end = i + n;
    for (; i < end && i % 2; i++)
        *dst++ = p->v[codes[i / 2]][1] * absmax;
    for (const uint8_t *c = codes + (size_t)i / 2; i + 4 <= end; i += 4, dst += 4, c += 2) {
        float four[4];
        memcpy(four, p->v[c[0]], sizeof p->v[0]);
        memcpy(four + 2, p->v[c[1]], sizeof p->v[0]);
        for (int j = 0; j < 4; j++)
            dst[j] = four[j] * absmax;
    }
    for (; i < end; i++)
        *dst++ = p->v[codes[i / 2]][i % 2] * absmax;
}

static void dequant_lut4(float *dst, const qt_tensor *t, int64_t n, const lut_pairs *p)
{
    const uint8_t *codes = t->plane[QT_CODES].data;
    const int64_t group = t->scheme.group, from = n * t->K, to = from + t->K;
    for (int64_t i = from, len; i < to; i += len) { /* flat: blocks run across rows */
        const int64_t block = i / group, left = (block + 1) * group - i;
        len = left < to - i ? left : to - i;
        lut_values(dst + (i - from), codes, i, len, p, qt_lut_absmax(t, block));
    }
}

const float qt_e2m1[16] = { 0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                            -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f };

float qt_scale(const qt_tensor *t, int64_t n, int64_t k)
{
    const qt_scheme *s = &t->scheme;
    const uint8_t *scales = t->plane[QT_SCALES].data;
    const int64_t block = s->rows ? n / s->rows : 0;
    if (s->kind == QT_E4M3) {
        int64_t ng = s->group ? lq_ceil_div(t->K, s->group) : 1;
        return get_float(scales, LQ_F32, (size_t)(block * ng + (s->group ? k / s->group : 0)));
    }
    uint8_t c = scales[n * (t->K / s->group) + k / s->group];
    if (s->scale_dtype == LQ_F8_E8M0) return lq_e8m0_to_f32(c);
    float second = get_float(t->plane[QT_SCALES2].data, LQ_F32, (size_t)block);
    return s->recip ? lq_e4m3_to_f32(c) / second : lq_e4m3_to_f32(c) * second;
}

static void dequant_small_float(float *dst, const qt_tensor *t, int64_t n)
{
    const qt_scheme *s = &t->scheme;
    const bool e4m3 = s->kind == QT_E4M3;
    const int64_t group = s->group ? s->group : t->K;
    const size_t row_bytes = qt_row_bytes(t->K, e4m3 ? 8 : 4);
    const uint8_t *codes = (const uint8_t *)t->plane[QT_CODES].data + (size_t)n * row_bytes;
    float scale = 0;
    for (int64_t k = 0; k < t->K; k++) {
        if (k % group == 0) scale = qt_scale(t, n, k);
        dst[k] = (e4m3 ? lq_e4m3_to_f32(codes[k]) : qt_e2m1[qt_get(codes, k, 4)]) * scale;
    }
}

static void dequant_blocks(float *dst, const qt_tensor *t, int64_t n)
{
    const blk_type *b = blk_find(t->scheme.blocks);
    blk_dequant(dst, b,
                (const uint8_t *)t->plane[QT_CODES].data + (size_t)n * blk_row_bytes(b, t->K),
                t->K);
}

void qt_dequant(float *dst, const qt_tensor *t, int64_t n0, int64_t n1)
{
    lut_pairs pairs;
    if (t->scheme.kind == QT_LUT4) pairs_of(&pairs, t);
    for (int64_t n = n0; n < n1; n++, dst += t->K) {
        switch (t->scheme.kind) {
        case QT_DENSE:
            lq_to_f32(dst,
                      (const uint8_t *)t->plane[QT_CODES].data +
                          (size_t)(n * t->K) * lq_dtype_bytes(t->scheme.dtype),
                      t->scheme.dtype, (size_t)t->K);
            break;
        case QT_UINT:
            dequant_uint(dst, t, n);
            break;
        case QT_I8:
        case QT_I8_OUTLIER:
            dequant_i8(dst, t, n);
            break;
        case QT_LUT4:
            dequant_lut4(dst, t, n, &pairs);
            break;
        case QT_E4M3:
        case QT_E2M1:
            dequant_small_float(dst, t, n);
            break;
        case QT_BLOCKS:
            dequant_blocks(dst, t, n);
            break;
        default:
            break;
        }
    }
}
