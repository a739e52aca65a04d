/* tests/support/fill.h - random numbers, and quantized tensors with random but legal planes. */
#ifndef LLMQ_TESTS_SUPPORT_FILL_H
#define LLMQ_TESTS_SUPPORT_FILL_H

#include "formats/tensor/qtensor.h"
#include "tests/support/check.h"

#include <assert.h>

/* splitmix64 without its last step: the cases of the tests were chosen with these bits. */
static inline uint32_t fill_u32(uint64_t *s)
{
    uint64_t z = (*s += UINT64_C(0x9e3779b97f4a7c15));
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return (uint32_t)(z >> 32);
}
/* -1..1, sum of two: small values are more frequent */
static inline float fill_f32(uint64_t *s)
{
    return (float)((double)fill_u32(s) + (double)fill_u32(s)) * 0x1p-32f - 1.0f;
}
static inline void fill_row(float *x, int64_t n, uint64_t *s)
{
    for (int64_t i = 0; i < n; i++)
        x[i] = fill_f32(s);
}

static inline void fill_floats(void *w, lq_dtype d, size_t n, float lo, float hi, uint64_t *s)
{
    for (size_t i = 0; i < n; i++) {
        float v = lo + (hi - lo) * (float)fill_u32(s) * 0x1p-32f;
        lq_from_f32((uint8_t *)w + i * lq_dtype_bytes(d), &v, d, 1);
    }
}

/* All planes of a portable tensor of scheme `s` (group 0 stands for K) from the seed. */
static inline qt_tensor fill_tensor(qt_scheme s, int64_t N, int64_t K, lq_arena *a, uint64_t seed)
{
    qt_tensor t;
    void *w[QT_N_PLANES];
    lq_err err = { "" };
    if (s.kind == QT_UINT && !s.group) s.group = K;
    lq_status st = qt_alloc(&t, w, &s, N, K, a, &err);
    CHECK(!st, "%s", err.msg);
    if (st) return t;
    uint8_t *codes = w[QT_CODES];
    int64_t ng = s.kind == QT_UINT ? K / s.group : 1;
    for (size_t i = 0; i < t.plane[QT_CODES].bytes; i++)
        codes[i] = (uint8_t)fill_u32(&seed);
    switch (s.kind) {
    case QT_DENSE:
        fill_floats(codes, s.dtype, (size_t)(N * K), -0.1f, 0.1f, &seed);
        break;
    case QT_UINT: {
        fill_floats(w[QT_SCALES], s.scale_dtype, (size_t)(N * ng), -0.01f, 0.02f, &seed);
        assert(K <= 16384);
        uint8_t row[16384]; /* packed again, so that the padding bits are 0 */
        for (int64_t n = 0; n < N; n++) {
            for (int64_t k = 0; k < K; k++)
                row[k] = (uint8_t)fill_u32(&seed);
            qt_pack_row(codes + (size_t)n * qt_row_bytes(K, s.bits), row, K, s.bits);
            for (int64_t g = 0; g < ng && s.zero == QT_ZERO_INT; g++)
                row[g] = (uint8_t)(fill_u32(&seed) % ((1u << s.bits) + (s.zbits > s.bits)));
            if (s.zero == QT_ZERO_INT)
                qt_pack_row((uint8_t *)w[QT_ZEROS] + (size_t)n * qt_row_bytes(ng, s.zbits), row, ng,
                            s.zbits);
        }
        if (s.zero == QT_ZERO_BIAS)
            fill_floats(w[QT_ZEROS], s.scale_dtype, (size_t)(N * ng), -0.1f, 0.05f, &seed);
        if (s.zero == QT_ZERO_F16)
            fill_floats(w[QT_ZEROS], LQ_F16, (size_t)(N * ng), 0, (float)(1 << s.bits), &seed);
        int32_t *gidx = w[QT_GIDX];
        for (int64_t k = 0; k < K && s.act_order; k++)
            gidx[k] = (int32_t)(k / s.group);
        for (int64_t k = K - 1; k > 0 && s.act_order; k--) { /* shuffle */
            int64_t j = fill_u32(&seed) % (uint32_t)(k + 1);
            int32_t v = gidx[k];
            gidx[k] = gidx[j];
            gidx[j] = v;
        }
        break;
    }
    case QT_I8:
    case QT_I8_OUTLIER:
        for (int64_t i = 0; i < N * K; i++)
            if (codes[i] == 0x80) codes[i] = 0x81; /* -128 is a code of none of the methods */
        fill_floats(w[QT_SCALES], LQ_F32, (size_t)N, s.div127 ? 0.05f : 0.0004f,
                    s.div127 ? 0.2f : 0.002f, &seed);
        for (int64_t n = 0; n < N && s.zero; n++)
            ((int8_t *)w[QT_ZEROS])[n] = (int8_t)(fill_u32(&seed) % 256 - 128);
        for (int64_t i = 0; i < s.n_out; i++) {
            int32_t k = (int32_t)(i * K / s.n_out);
            memcpy((uint8_t *)w[QT_OUT_IDX] + 4 * i, &k, 4);
            for (int64_t n = 0; n < N; n++)
                codes[n * K + k] = 0;
        }
        if (s.n_out)
            fill_floats(w[QT_OUT_VALS], LQ_BF16, (size_t)(N * s.n_out), -0.1f, 0.1f, &seed);
        break;
    case QT_E4M3: /* no NaN: families agree on numbers only */
        for (int64_t i = 0; i < N * K; i++)
            if ((codes[i] & 0x7f) == 0x7f) codes[i] ^= 1;
        fill_floats(w[QT_SCALES], LQ_F32, t.plane[QT_SCALES].bytes / 4, 1e-4f, 1e-3f, &seed);
        break;
    case QT_E2M1:
        for (size_t i = 0; i < t.plane[QT_SCALES].bytes; i++) /* 2^-12..2^3, or 2^-9..448 */
            ((uint8_t *)w[QT_SCALES])[i] = s.scale_dtype == LQ_F8_E8M0
                                               ? (uint8_t)(115 + fill_u32(&seed) % 16)
                                               : (uint8_t)(fill_u32(&seed) % 0x7f);
        if (w[QT_SCALES2])
            fill_floats(w[QT_SCALES2], LQ_F32, t.plane[QT_SCALES2].bytes / 4,
                        s.recip ? 500.0f : 5e-4f, s.recip ? 2000.0f : 2e-3f, &seed);
        break;
    default: /* QT_LUT4 */
        if (N * K % 2) codes[N * K / 2] &= 0xf0;
        fill_floats(w[QT_MAP], LQ_F32, 16, -1, 1, &seed);
        if (s.dbl) {
            uint8_t *scales = w[QT_SCALES];
            for (size_t i = 0; i < t.plane[QT_SCALES].bytes; i++)
                scales[i] = (uint8_t)fill_u32(&seed);
            fill_floats(w[QT_SCALES2], LQ_F32, t.plane[QT_SCALES2].bytes / 4, 0.01f, 0.02f, &seed);
            fill_floats(w[QT_MAP2], LQ_F32, 256, -1, 1, &seed);
        } else {
            fill_floats(w[QT_SCALES], LQ_F32, t.plane[QT_SCALES].bytes / 4, 0.05f, 0.2f, &seed);
        }
    }
    st = qt_check_view(&t, &err);
    CHECK(!st, "%s", err.msg);
    return t;
}

/* Scheme by name, with fields that the name does not tell. */
static inline qt_scheme fill_scheme(const char *text)
{
    qt_scheme s;
    lq_err err = { "" };
    char name[40];
    bool act_order = strncmp(text, "gidx ", 5) == 0, wide = strncmp(text, "wide ", 5) == 0,
         f32 = strncmp(text, "f32s ", 5) == 0, recip = strncmp(text, "recip ", 6) == 0,
         bf16 = strncmp(text, "bf16s ", 6) == 0;
    snprintf(name, sizeof name, "%s", strchr(text, ' ') ? strchr(text, ' ') + 1 : text);
    lq_status st = qt_scheme_parse(&s, name, &err);
    CHECK(!st, "%s", err.msg);
    s.act_order = act_order;
    s.recip = recip;
    if (wide) s.zbits = 8;
    if (f32) s.scale_dtype = LQ_F32;
    if (bf16) s.scale_dtype = LQ_BF16;
    if (s.dbl) s.offset = 0.25f;
    return s;
}

/* Groups that do not divide K. */
static inline bool fill_misfit(const qt_scheme *s, int64_t K)
{
    return (s->kind == QT_UINT || s->kind == QT_E2M1) && s->group && K % s->group;
}

/* Schemes that the tests of tiles and matmuls walk through. */
#define FILL_SCHEMES                                                                              \
    "f32", "f16", "bf16", "u2-g32", "u2-gK-asym", "u3-g32", "u3-gK-asym", "u3-g96-fzero",         \
        "u4-g32", "u4-g64-asym", "u4-g128", "u4-gK", "u4-g43", "u4-g16-asym", "gidx u4-g32-asym", \
        "gidx u4-gK", "wide u4-g32-asym", "f32s u4-g32-asym", "bf16s u4-g32", "u4-g32-fzero",     \
        "u8-g32", "u8-g64-asym", "u8-gK-fzero", "i8-row", "i8-row-asym", "i8-outlier", "nf4",     \
        "nf4-g32", "nf4-double", "fp4-g128-double", "u4-g32-bias", "f32s u8-g32-bias",            \
        "bf16s u2-g16-bias", "u3-gK-bias", "fp8-e4m3", "fp8-e4m3-tensor", "fp8-e4m3-b128x128",    \
        "fp8-e4m3-b3x24", "mxfp4", "nvfp4", "recip nvfp4", "i8-row-a8", "fp8-e4m3-af8",           \
        "u4-g32-a8-g64"

#endif
