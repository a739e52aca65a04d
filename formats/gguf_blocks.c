/* formats/gguf_blocks.c */
#include "formats/gguf_blocks.h"

enum { MAX_BLOCK = 256, MAX_GROUPS = 16 };

/* One block taken apart: codes as stored in our scheme, a scale and a bias for each group. */
typedef struct {
    uint8_t code[MAX_BLOCK];
    float scale[MAX_GROUPS], bias[MAX_GROUPS];
} block;

static float f16_at(const uint8_t *p)
{
    uint16_t h;
    memcpy(&h, p, 2);
    return lq_f16_to_f32(h);
}

/* ---- 32 elements: low nibbles, then high ones ---- */
static void nibbles(uint8_t *code, const uint8_t *qs)
{
    for (int j = 0; j < 16; j++) {
        code[j] = qs[j] & 15u;
        code[16 + j] = qs[j] >> 4;
    }
}
static void fifth_bits(uint8_t *code, const uint8_t *qh, unsigned add)
{
    for (int j = 0; j < 32; j++)
        code[j] = (uint8_t)((code[j] | (qh[j / 8] >> j % 8 & 1u) << 4) + add);
}
static void q4_0(block *b, const uint8_t *p)
{
    b->scale[0] = f16_at(p);
    nibbles(b->code, p + 2);
}
static void q4_1(block *b, const uint8_t *p)
{
    b->scale[0] = f16_at(p);
    b->bias[0] = f16_at(p + 2);
    nibbles(b->code, p + 4);
}
static void q5_0(block *b, const uint8_t *p)
{
    b->scale[0] = f16_at(p);
    nibbles(b->code, p + 6);
    fifth_bits(b->code, p + 2, 128 - 16);
}
static void q5_1(block *b, const uint8_t *p)
{
    b->scale[0] = f16_at(p);
    b->bias[0] = f16_at(p + 2);
    nibbles(b->code, p + 8);
    fifth_bits(b->code, p + 4, 0);
}
static void q8_0(block *b, const uint8_t *p)
{
    b->scale[0] = f16_at(p);
    for (int j = 0; j < 32; j++)
        b->code[j] = p[2 + j] ^ 0x80u;
}

/* ---- 256 elements: element k is lane l = k%32 of part c = k%128/32 of half h = k/128 ---- */
static unsigned crumb(const uint8_t *qs, int k) /* two bits of 32 h + l */
{
    return (unsigned)qs[32 * (k / 128) + k % 32] >> 2 * (k % 128 / 32) & 3u;
}
static void q2_k(block *b, const uint8_t *p)
{
    const float d = f16_at(p + 80), dmin = f16_at(p + 82);
    for (int i = 0; i < 16; i++) {
        b->scale[i] = d * (float)(p[i] & 15);
        b->bias[i] = -(dmin * (float)(p[i] >> 4));
    }
    for (int k = 0; k < 256; k++)
        b->code[k] = (uint8_t)crumb(p + 16, k);
}
static void q3_k(block *b, const uint8_t *p)
{
    const float d = f16_at(p + 108);
    const uint8_t *s = p + 96;
    for (int i = 0; i < 16; i++) {
        const unsigned lo = (unsigned)s[i % 8] >> 4 * (i / 8) & 15u;
        const unsigned hi = (unsigned)s[8 + i % 4] >> 2 * (i / 4) & 3u;
        b->scale[i] = d * (float)((int)(lo | hi << 4) - 32);
    }
    for (int k = 0; k < 256; k++) /* code - 4 is crumb - (high bit ? 0 : 4) */
        b->code[k] = (uint8_t)(crumb(p + 32, k) | ((unsigned)p[k % 32] >> k / 32 & 1u) << 2);
}
/* Eight 6-bit scales and mins in 12 bytes. */
static void six_bits(block *b, const uint8_t *p)
{
    const float d = f16_at(p), dmin = f16_at(p + 2);
    const uint8_t *s = p + 4;
    for (int j = 0; j < 8; j++) {
        const unsigned sc = j < 4 ? s[j] & 63u : (s[j + 4] & 15u) | (unsigned)(s[j - 4] >> 6) << 4;
        const unsigned m =
            j < 4 ? s[j + 4] & 63u : (unsigned)(s[j + 4] >> 4) | (unsigned)(s[j] >> 6) << 4;
        b->scale[j] = d * (float)sc;
        b->bias[j] = -(dmin * (float)m);
    }
}
static void k_nibbles(block *b, const uint8_t *qs)
{
    for (int k = 0; k < 256; k++)
        b->code[k] = (uint8_t)(qs[32 * (k / 64) + k % 32] >> 4 * (k / 32 % 2) & 15u);
}
static void q4_k(block *b, const uint8_t *p)
{
    six_bits(b, p);
    k_nibbles(b, p + 16);
}
static void q5_k(block *b, const uint8_t *p)
{
    six_bits(b, p);
    k_nibbles(b, p + 48);
    for (int k = 0; k < 256; k++)
        b->code[k] |= (uint8_t)((p[16 + k % 32] >> k / 32 & 1u) << 4);
}
static void q6_k(block *b, const uint8_t *p)
{
    const float d = f16_at(p + 208);
    for (int i = 0; i < 16; i++)
        b->scale[i] = d * (float)(int8_t)p[192 + i];
    for (int k = 0; k < 256; k++) {
        const int h = k / 128, c = k % 128 / 32, l = k % 32;
        const unsigned lo = (unsigned)p[64 * h + 32 * (c & 1) + l] >> 4 * (c >> 1) & 15u;
        const unsigned hi = (unsigned)p[128 + 32 * h + l] >> 2 * c & 3u;
        b->code[k] = (uint8_t)((lo | hi << 4) + 128 - 32);
    }
}

static const struct {
    ggml_type type;
    const char *name;
    int elements, bytes, bits, group;
    bool bias, f32; /* f32: scales and biases are products */
    void (*take)(block *b, const uint8_t *p);
} kinds[] = {
    { GGML_Q4_0, "Q4_0", 32, 18, 4, 32, false, false, q4_0 },
    { GGML_Q4_1, "Q4_1", 32, 20, 4, 32, true, false, q4_1 },
    { GGML_Q5_0, "Q5_0", 32, 22, 8, 32, false, false, q5_0 },
    { GGML_Q5_1, "Q5_1", 32, 24, 8, 32, true, false, q5_1 },
    { GGML_Q8_0, "Q8_0", 32, 34, 8, 32, false, false, q8_0 },
    { GGML_Q2_K, "Q2_K", 256, 84, 2, 16, true, true, q2_k },
    { GGML_Q3_K, "Q3_K", 256, 110, 3, 16, false, true, q3_k },
    { GGML_Q4_K, "Q4_K", 256, 144, 4, 32, true, true, q4_k },
    { GGML_Q5_K, "Q5_K", 256, 176, 8, 32, true, true, q5_k },
    { GGML_Q6_K, "Q6_K", 256, 210, 8, 16, false, true, q6_k },
    { GGML_F32, "F32", 1, 4, 0, 0, false, false, NULL },
    { GGML_F16, "F16", 1, 2, 0, 0, false, false, NULL },
    { GGML_BF16, "BF16", 1, 2, 0, 0, false, false, NULL },
};

static size_t kind_of(ggml_type t)
{
    size_t i = 0;
    while (kinds[i].type != t)
        i++;
    return i;
}

const char *gguf_type_text(ggml_type t) { return kinds[kind_of(t)].name; }

size_t gguf_row_bytes(ggml_type t, int64_t K)
{
    const size_t i = kind_of(t);
    return (size_t)(K / kinds[i].elements) * (size_t)kinds[i].bytes;
}

qt_scheme gguf_scheme(ggml_type t, bool *grows)
{
    const size_t i = kind_of(t);
    *grows = kinds[i].f32 || t == GGML_Q5_0 || t == GGML_Q5_1;
    if (!kinds[i].take)
        return (qt_scheme){ .kind = QT_DENSE,
                            .dtype = t == GGML_F32   ? LQ_F32
                                     : t == GGML_F16 ? LQ_F16
                                                     : LQ_BF16 };
    return (qt_scheme){ .kind = QT_UINT,
                        .bits = kinds[i].bits,
                        .group = kinds[i].group,
                        .zero = kinds[i].bias ? QT_ZERO_BIAS : QT_ZERO_NONE,
                        .scale_dtype = kinds[i].f32 ? LQ_F32 : LQ_F16 };
}

void gguf_unpack_row(void *const w[QT_N_PLANES], const qt_tensor *q, int64_t n, ggml_type t,
                     const uint8_t *blocks)
{
    const size_t i = kind_of(t);
    const qt_scheme *s = &q->scheme;
    if (s->kind == QT_DENSE) {
        const size_t row = gguf_row_bytes(t, q->K);
        memcpy((uint8_t *)w[QT_CODES] + (size_t)n * row, blocks, row);
        return;
    }
    const int64_t ng = q->K / s->group;
    const int groups = kinds[i].elements / kinds[i].group;
    const size_t e = (size_t)lq_dtype_bits(s->scale_dtype) / 8;
    uint8_t *codes = (uint8_t *)w[QT_CODES] + (size_t)n * qt_row_bytes(q->K, s->bits);
    uint8_t *scales = (uint8_t *)w[QT_SCALES] + (size_t)(n * ng) * e;
    uint8_t *zeros = w[QT_ZEROS] ? (uint8_t *)w[QT_ZEROS] + (size_t)(n * ng) * e : NULL;
    for (int64_t k = 0; k < q->K; k += kinds[i].elements, blocks += kinds[i].bytes) {
        block b = { .code = { 0 } };
        kinds[i].take(&b, blocks);
        qt_pack_row(codes + k * s->bits / 8, b.code, kinds[i].elements, s->bits);
        lq_from_f32(scales + (size_t)(k / s->group) * e, b.scale, s->scale_dtype, (size_t)groups);
        if (zeros)
            lq_from_f32(zeros + (size_t)(k / s->group) * e, b.bias, s->scale_dtype, (size_t)groups);
    }
}
