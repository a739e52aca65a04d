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
        code[j] = (uint8_t)((code[j] | ((unsigned)qh[j / 8] >> j % 8 & 1u) << 4) + add);
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
        b->code[k] = (uint8_t)((unsigned)qs[32 * (k / 64) + k % 32] >> 4 * (k / 32 % 2) & 15u);
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
        b->code[k] |= (uint8_t)(((unsigned)p[16 + k % 32] >> k / 32 & 1u) << 4);
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

/* ---- the way back ---- */
static bool put_f16(uint8_t *p, float v)
{
    const uint16_t h = lq_f32_to_f16(v);
    memcpy(p, &h, 2);
    return lq_f16_to_f32(h) >= v && lq_f16_to_f32(h) <= v;
}
static bool below(const uint8_t *code, int n, unsigned end)
{
    unsigned top = 0;
    for (int i = 0; i < n; i++)
        top = code[i] > top ? code[i] : top;
    return top < end;
}
static void put_nibbles(uint8_t *qs, const uint8_t *code)
{
    for (int j = 0; j < 16; j++)
        qs[j] = (uint8_t)((code[j] & 15u) | (code[16 + j] & 15u) << 4);
}
static void put_fifth_bits(uint8_t *qh, const uint8_t *code)
{
    for (int j = 0; j < 32; j++)
        qh[j / 8] |= (uint8_t)((code[j] >> 4 & 1u) << j % 8);
}
static bool give_q4_0(uint8_t *p, block *b)
{
    put_nibbles(p + 2, b->code);
    return put_f16(p, b->scale[0]);
}
static bool give_q4_1(uint8_t *p, block *b)
{
    put_nibbles(p + 4, b->code);
    return put_f16(p, b->scale[0]) && put_f16(p + 2, b->bias[0]);
}
static bool give_q5_0(uint8_t *p, block *b)
{
    for (int j = 0; j < 32; j++)
        b->code[j] = (uint8_t)(b->code[j] - (128 - 16));
    put_nibbles(p + 6, b->code);
    put_fifth_bits(p + 2, b->code);
    return below(b->code, 32, 32) && put_f16(p, b->scale[0]);
}
static bool give_q5_1(uint8_t *p, block *b)
{
    put_nibbles(p + 8, b->code);
    put_fifth_bits(p + 4, b->code);
    return below(b->code, 32, 32) && put_f16(p, b->scale[0]) && put_f16(p + 2, b->bias[0]);
}
static bool give_q8_0(uint8_t *p, block *b)
{
    for (int j = 0; j < 32; j++)
        p[2 + j] = b->code[j] ^ 0x80u;
    return put_f16(p, b->scale[0]);
}

/* v[i] = d * k[i] with d an f16 and whole k within lo..hi; the largest |v| is tried as hi (signed:
 * as lo) times d first, as llama.cpp chooses d. */
static bool factor(uint8_t *d16, int *k, const float *v, int n, int lo, int hi)
{
    int top = 0;
    memset(k, 0, (size_t)n * sizeof *k);
    for (int i = 1; i < n; i++)
        top = fabsf(v[i]) > fabsf(v[top]) ? i : top;
    if (!(fabsf(v[top]) > 0)) return put_f16(d16, 0);
    for (int t = 0; t <= hi - lo; t++) {
        const int s = lo ? lo + t : hi - t;
        if (!s) continue;
        const float d = lq_f16_to_f32(lq_f32_to_f16(v[top] / (float)s));
        bool all = d > 0 || d < 0;
        for (int i = 0; i < n && all; i++) {
            const float at = roundf(v[i] / d);
            all = at >= (float)lo && at <= (float)hi && d * at <= v[i] && d * at >= v[i];
            k[i] = all ? (int)at : 0;
        }
        if (all) return put_f16(d16, d);
    }
    return false;
}
static bool mins(uint8_t *d16, int *k, const block *b, int n, int hi)
{
    float v[MAX_GROUPS];
    for (int i = 0; i < n; i++)
        v[i] = -b->bias[i];
    return factor(d16, k, v, n, 0, hi);
}
static void put_crumb(uint8_t *qs, int k, unsigned v)
{
    qs[32 * (k / 128) + k % 32] |= (uint8_t)(v << 2 * (k % 128 / 32));
}
static bool give_q2_k(uint8_t *p, block *b)
{
    int sc[16], m[16];
    if (!factor(p + 80, sc, b->scale, 16, 0, 15) || !mins(p + 82, m, b, 16, 15)) return false;
    for (int i = 0; i < 16; i++)
        p[i] = (uint8_t)(sc[i] | m[i] << 4);
    for (int k = 0; k < 256; k++)
        put_crumb(p + 16, k, b->code[k]);
    return true;
}
static bool give_q3_k(uint8_t *p, block *b)
{
    int sc[16];
    uint8_t *s = p + 96;
    if (!factor(p + 108, sc, b->scale, 16, -32, 31)) return false;
    for (int i = 0; i < 16; i++) {
        const unsigned v = (unsigned)(sc[i] + 32);
        s[i % 8] |= (uint8_t)((v & 15u) << 4 * (i / 8));
        s[8 + i % 4] |= (uint8_t)(v >> 4 << 2 * (i / 4));
    }
    for (int k = 0; k < 256; k++) {
        put_crumb(p + 32, k, b->code[k] & 3u);
        p[k % 32] |= (uint8_t)((unsigned)b->code[k] >> 2 << k / 32);
    }
    return true;
}
static bool put_six_bits(uint8_t *p, const block *b)
{
    int sc[8], m[8];
    uint8_t *s = p + 4;
    if (!factor(p, sc, b->scale, 8, 0, 63) || !mins(p + 2, m, b, 8, 63)) return false;
    for (int j = 0; j < 4; j++) {
        s[j] = (uint8_t)(sc[j] | sc[j + 4] >> 4 << 6);
        s[j + 4] = (uint8_t)(m[j] | m[j + 4] >> 4 << 6);
        s[j + 8] = (uint8_t)((sc[j + 4] & 15) | (m[j + 4] & 15) << 4);
    }
    return true;
}
static void put_k_nibbles(uint8_t *qs, const uint8_t *code)
{
    for (int k = 0; k < 256; k++)
        qs[32 * (k / 64) + k % 32] |= (uint8_t)((code[k] & 15u) << 4 * (k / 32 % 2));
}
static bool give_q4_k(uint8_t *p, block *b)
{
    put_k_nibbles(p + 16, b->code);
    return put_six_bits(p, b);
}
static bool give_q5_k(uint8_t *p, block *b)
{
    put_k_nibbles(p + 48, b->code);
    for (int k = 0; k < 256; k++)
        p[16 + k % 32] |= (uint8_t)((b->code[k] >> 4 & 1u) << k / 32);
    return below(b->code, 256, 32) && put_six_bits(p, b);
}
static bool give_q6_k(uint8_t *p, block *b)
{
    int sc[16];
    if (!factor(p + 208, sc, b->scale, 16, -128, 127)) return false;
    for (int i = 0; i < 16; i++)
        p[192 + i] = (uint8_t)(int8_t)sc[i];
    for (int k = 0; k < 256; k++) {
        const int h = k / 128, c = k % 128 / 32, l = k % 32;
        const unsigned v = b->code[k] - (128u - 32u);
        if (v > 63) return false;
        p[64 * h + 32 * (c & 1) + l] |= (uint8_t)((v & 15u) << 4 * (c >> 1));
        p[128 + 32 * h + l] |= (uint8_t)(v >> 4 << 2 * c);
    }
    return true;
}

static const struct {
    ggml_type type;
    const char *name;
    int elements, bytes, bits, group;
    bool bias, f32; /* f32: scales and biases are products */
    void (*take)(block *b, const uint8_t *p);
    bool (*give)(uint8_t *p, block *b); /* false: no place */
} kinds[] = {
    { GGML_Q4_0, "Q4_0", 32, 18, 4, 32, false, false, q4_0, give_q4_0 },
    { GGML_Q4_1, "Q4_1", 32, 20, 4, 32, true, false, q4_1, give_q4_1 },
    { GGML_Q5_0, "Q5_0", 32, 22, 8, 32, false, false, q5_0, give_q5_0 },
    { GGML_Q5_1, "Q5_1", 32, 24, 8, 32, true, false, q5_1, give_q5_1 },
    { GGML_Q8_0, "Q8_0", 32, 34, 8, 32, false, false, q8_0, give_q8_0 },
    { GGML_Q2_K, "Q2_K", 256, 84, 2, 16, true, true, q2_k, give_q2_k },
    { GGML_Q3_K, "Q3_K", 256, 110, 3, 16, false, true, q3_k, give_q3_k },
    { GGML_Q4_K, "Q4_K", 256, 144, 4, 32, true, true, q4_k, give_q4_k },
    { GGML_Q5_K, "Q5_K", 256, 176, 8, 32, true, true, q5_k, give_q5_k },
    { GGML_Q6_K, "Q6_K", 256, 210, 8, 16, false, true, q6_k, give_q6_k },
    { GGML_F32, "F32", 1, 4, 0, 0, false, false, NULL, NULL },
    { GGML_F16, "F16", 1, 2, 0, 0, false, false, NULL, NULL },
    { GGML_BF16, "BF16", 1, 2, 0, 0, false, false, NULL, NULL },
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
        block b;
        kinds[i].take(&b, blocks);
        qt_pack_row(codes + k * s->bits / 8, b.code, kinds[i].elements, s->bits);
        lq_from_f32(scales + (size_t)(k / s->group) * e, b.scale, s->scale_dtype, (size_t)groups);
        if (zeros)
            lq_from_f32(zeros + (size_t)(k / s->group) * e, b.bias, s->scale_dtype, (size_t)groups);
    }
}

bool gguf_type_for(ggml_type *t, const qt_tensor *q, size_t i)
{
    const qt_scheme *s = &q->scheme;
    const bool bias = s->zero == QT_ZERO_BIAS;
    if (s->kind != QT_UINT || (s->zero && !bias) || s->irregular) return false;
    for (int products = 1; products >= 0; products--) /* of an f32 scale the factors first */
        for (size_t k = 0; k < LQ_COUNT(kinds); k++) {
            const bool wide = s->scale_dtype == LQ_F32;
            if (!kinds[k].give || kinds[k].f32 != (products == wide) || kinds[k].bias != bias ||
                kinds[k].bits < s->bits || s->group % kinds[k].group || q->K % kinds[k].elements ||
                i--)
                continue;
            *t = kinds[k].type;
            return true;
        }
    return false;
}

/* n codes of a row from element k on. */
static void take_codes(uint8_t *out, const uint8_t *row, int64_t k, int n, int bits, int shift)
{
    qt_unpack(out, row, k, n, bits);
    for (int j = 0; j < n && shift; j++)
        out[j] = (uint8_t)(out[j] + shift);
}

bool gguf_pack_row(uint8_t *blocks, const qt_tensor *q, int64_t n, ggml_type t)
{
    const size_t i = kind_of(t);
    const qt_scheme *s = &q->scheme;
    const int64_t ng = q->K / s->group;
    const int shift = kinds[i].bias ? 0 : (1 << (kinds[i].bits - 1)) - (1 << (s->bits - 1));
    const size_t e = (size_t)lq_dtype_bits(s->scale_dtype) / 8;
    const uint8_t *codes =
        (const uint8_t *)q->plane[QT_CODES].data + (size_t)n * qt_row_bytes(q->K, s->bits);
    const uint8_t *scales = (const uint8_t *)q->plane[QT_SCALES].data + (size_t)(n * ng) * e;
    const uint8_t *zeros =
        kinds[i].bias ? (const uint8_t *)q->plane[QT_ZEROS].data + (size_t)(n * ng) * e : NULL;
    for (int64_t k = 0; k < q->K; k += kinds[i].elements, blocks += kinds[i].bytes) {
        block b;
        take_codes(b.code, codes, k, kinds[i].elements, s->bits, shift);
        for (int j = 0; j < kinds[i].elements / kinds[i].group; j++) {
            const size_t at = (size_t)((k + j * kinds[i].group) / s->group) * e;
            lq_to_f32(&b.scale[j], scales + at, s->scale_dtype, 1);
            if (zeros) lq_to_f32(&b.bias[j], zeros + at, s->scale_dtype, 1);
        }
        if (!kinds[i].give(blocks, &b)) return false;
    }
    return true;
}
