/* formats/gguf/gguf_blocks.c */
#include "formats/gguf/gguf_blocks.h"
#include "formats/tensor/blocks.h"
#include "formats/tensor/blocks_bits.h"

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

/* ---- codes and f16 scales, apart ---- */
static void q4_0(block *b, const uint8_t *p)
{
    b->scale[0] = f16_at(p);
    get_nibbles(b->code, p + 2);
}
static void q8_0(block *b, const uint8_t *p)
{
    b->scale[0] = f16_at(p);
    for (int j = 0; j < 32; j += 8)
        put_eight(b->code + j, get_eight(p + 2 + j) ^ 0x80 * EACH_BYTE);
}

/* ---- the way back ---- */
static bool put_f16(uint8_t *p, float v)
{
    const uint16_t h = lq_f32_to_f16(v);
    const float back = lq_f16_to_f32(h);
    memcpy(p, &h, 2);
    return back >= v && back <= v;
}
static bool below(const uint8_t *code, int n, unsigned end)
{
    uint8_t top = 0;
    for (int i = 0; i < n; i++)
        top = code[i] > top ? code[i] : top;
    return top < end;
}
static void put_nibbles(uint8_t *qs, const uint8_t *code)
{
    get_bits(qs, code, 16, 0, 15);
    add_bits(qs, code + 16, 16, 0, 15, 4);
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
    for (int j = 0; j < 32; j += 8)
        put_eight(p + 2 + j, get_eight(b->code + j) ^ 0x80 * EACH_BYTE);
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
            const float part = v[i] / d, at = (float)(int)(part + (part < 0 ? -0.5f : 0.5f));
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
static void put_crumbs(uint8_t *qs, const uint8_t *code)
{
    for (int i = 0; i < 8; i++)
        add_bits(qs + 32 * (i / 4), code + 32 * i, 32, 0, 3, 2 * (i % 4));
}
static bool give_q2_k(uint8_t *p, block *b)
{
    int sc[16], m[16];
    if (!factor(p + 80, sc, b->scale, 16, 0, 15) || !mins(p + 82, m, b, 16, 15)) return false;
    for (int i = 0; i < 16; i++)
        p[i] = (uint8_t)(sc[i] | m[i] << 4);
    put_crumbs(p + 16, b->code);
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
    put_crumbs(p + 32, b->code);
    for (int i = 0; i < 8; i++)
        add_bits(p, b->code + 32 * i, 32, 2, 1, i);
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
    for (int i = 0; i < 8; i++)
        add_bits(qs + 32 * (i / 2), code + 32 * i, 32, 0, 15, 4 * (i % 2));
}
static bool give_q4_k(uint8_t *p, block *b)
{
    put_k_nibbles(p + 16, b->code);
    return put_six_bits(p, b);
}
static bool give_q5_k(uint8_t *p, block *b)
{
    put_k_nibbles(p + 48, b->code);
    for (int i = 0; i < 8; i++)
        add_bits(p + 16, b->code + 32 * i, 32, 4, 1, i);
    return below(b->code, 256, 32) && put_six_bits(p, b);
}
static bool give_q6_k(uint8_t *p, block *b)
{
    int sc[16];
    if (!factor(p + 208, sc, b->scale, 16, -128, 127)) return false;
    for (int i = 0; i < 16; i++)
        p[192 + i] = (uint8_t)(int8_t)sc[i];
    for (int k = 0; k < 256; k++)
        b->code[k] = (uint8_t)(b->code[k] - (128u - 32u));
    for (int i = 0; i < 8; i++) {
        const int h = i / 4, c = i % 4;
        add_bits(p + 64 * h + 32 * (c & 1), b->code + 32 * i, 32, 0, 15, 4 * (c >> 1));
        add_bits(p + 128 + 32 * h, b->code + 32 * i, 32, 4, 3, 2 * c);
    }
    return below(b->code, 256, 64);
}

static const struct {
    ggml_type type;
    const char *name;
    int elements, bytes, bits, group;
    bool bias, f32;                           /* f32: scales and biases are products */
    void (*take)(block *b, const uint8_t *p); /* NULL: as published (QT_BLOCKS), or floats */
    bool (*give)(uint8_t *p, block *b);       /* false: no place */
} kinds[] = {
    { GGML_Q4_0, "Q4_0", 32, 18, 4, 32, false, false, q4_0, give_q4_0 },
    { GGML_Q4_1, "Q4_1", 32, 20, 4, 32, true, false, NULL, give_q4_1 },
    { GGML_Q5_0, "Q5_0", 32, 22, 8, 32, false, false, NULL, give_q5_0 },
    { GGML_Q5_1, "Q5_1", 32, 24, 8, 32, true, false, NULL, give_q5_1 },
    { GGML_Q8_0, "Q8_0", 32, 34, 8, 32, false, false, q8_0, give_q8_0 },
    { GGML_Q2_K, "Q2_K", 256, 84, 2, 16, true, true, NULL, give_q2_k },
    { GGML_Q3_K, "Q3_K", 256, 110, 3, 16, false, true, NULL, give_q3_k },
    { GGML_Q4_K, "Q4_K", 256, 144, 4, 32, true, true, NULL, give_q4_k },
    { GGML_Q5_K, "Q5_K", 256, 176, 8, 32, true, true, NULL, give_q5_k },
    { GGML_Q6_K, "Q6_K", 256, 210, 8, 16, false, true, NULL, give_q6_k },
    { GGML_F32, "F32", 1, 4, 0, 0, false, false, NULL, NULL },
    { GGML_F16, "F16", 1, 2, 0, 0, false, false, NULL, NULL },
    { GGML_I32, "I32", 1, 4, 0, 0, false, false, NULL, NULL }, /* of NAME_IDS alone */
    { GGML_BF16, "BF16", 1, 2, 0, 0, false, false, NULL, NULL },
    { GGML_MXFP4, "MXFP4", 32, 17, 4, 32, false, false, NULL, NULL },
    { GGML_NVFP4, "NVFP4", 64, 36, 4, 16, false, false, NULL, NULL },
};
enum { MXFP4_CODES = 16, NVFP4_SCALES = 4, NVFP4_GROUP = 16 };

static size_t kind_of(ggml_type t)
{
    size_t i = 0;
    while (kinds[i].type != t)
        i++;
    return i;
}

const char *gguf_type_text(ggml_type t)
{
    const blk_type *b = blk_find((int64_t)t);
    return b ? b->name : kinds[kind_of(t)].name;
}

size_t gguf_row_bytes(ggml_type t, int64_t K)
{
    const blk_type *b = blk_find((int64_t)t);
    if (b) return blk_row_bytes(b, K);
    const size_t i = kind_of(t);
    return (size_t)(K / kinds[i].elements) * (size_t)kinds[i].bytes;
}

qt_scheme gguf_scheme(ggml_type t)
{
    if (blk_find((int64_t)t)) return (qt_scheme){ .kind = QT_BLOCKS, .blocks = (int)t };
    const size_t i = kind_of(t);
    if (t == GGML_MXFP4)
        return (qt_scheme){ .kind = QT_E2M1, .group = 32, .scale_dtype = LQ_F8_E8M0 };
    if (t == GGML_NVFP4)
        return (qt_scheme){ .kind = QT_E2M1, .group = NVFP4_GROUP, .scale_dtype = LQ_F8_E4M3 };
    if (!kinds[i].take)
        return (qt_scheme){ .kind = QT_DENSE,
                            .dtype = t == GGML_F32   ? LQ_F32
                                     : t == GGML_F16 ? LQ_F16
                                                     : LQ_BF16 };
    return (qt_scheme){ .kind = QT_UINT,
                        .bits = kinds[i].bits,
                        .group = kinds[i].group,
                        .zero = kinds[i].bias ? QT_ZERO_BIAS : QT_ZERO_NONE,
                        .scale_dtype = LQ_F16 };
}

/* Are a tensor's bytes in the file those of its one plane? */
static bool as_it_is(ggml_type t)
{
    const qt_kind k = gguf_scheme(t).kind;
    return k == QT_DENSE || k == QT_BLOCKS;
}

/* Blocks of MXFP4: the exponent, then the codes of 32 elements, of element i in the low half of
 * byte i, of element 16 + i in the high one. */
static void unpack_mxfp4(void *const w[QT_N_PLANES], int64_t K, int64_t n, const uint8_t *p)
{
    uint8_t *codes = (uint8_t *)w[QT_CODES] + n * K / 2;
    uint8_t *scales = (uint8_t *)w[QT_SCALES] + n * K / 32;
    for (int64_t k = 0; k < K; k += 32, p += 1 + MXFP4_CODES) {
        uint8_t code[32];
        scales[k / 32] = *p;
        get_nibbles(code, p + 1);
        qt_pack_row(codes + k / 2, code, 32, 4);
    }
}
static void pack_mxfp4(uint8_t *p, const qt_tensor *q, int64_t n)
{
    const uint8_t *codes = (const uint8_t *)q->plane[QT_CODES].data + n * q->K / 2;
    const uint8_t *scales = (const uint8_t *)q->plane[QT_SCALES].data + n * q->K / 32;
    for (int64_t k = 0; k < q->K; k += 32, p += 1 + MXFP4_CODES) {
        uint8_t code[32];
        *p = scales[k / 32];
        qt_unpack(code, codes, k, 32, 4);
        put_nibbles(p + 1, code);
    }
}

/* Blocks of NVFP4: four scales, then of each 16 elements the codes, i in the low half of byte i, 8 + i
 * in the high one. */
static void unpack_nvfp4(void *const w[QT_N_PLANES], int64_t K, int64_t n, const uint8_t *p)
{
    uint8_t *codes = (uint8_t *)w[QT_CODES] + n * K / 2;
    uint8_t *scales = (uint8_t *)w[QT_SCALES] + n * K / NVFP4_GROUP;
    for (int64_t g = 0; g < K / NVFP4_GROUP; g++) {
        const int64_t in = g % NVFP4_SCALES;
        const uint8_t *qs = p + NVFP4_SCALES + in * 8;
        uint8_t code[NVFP4_GROUP];
        scales[g] = (p[in] & 127) == 127 ? 0 : p[in] & 127;
        get_bits(code, qs, 8, 0, 15);
        get_bits(code + 8, qs, 8, 4, 15);
        qt_pack_row(codes + g * 8, code, NVFP4_GROUP, 4);
        if (in == NVFP4_SCALES - 1) p += NVFP4_SCALES + 32;
    }
}
static bool pack_nvfp4(uint8_t *p, const qt_tensor *q, int64_t n)
{
    const uint8_t *codes = (const uint8_t *)q->plane[QT_CODES].data + n * q->K / 2;
    const uint8_t *scales = (const uint8_t *)q->plane[QT_SCALES].data + n * q->K / NVFP4_GROUP;
    for (int64_t g = 0; g < q->K / NVFP4_GROUP; g++) {
        const int64_t in = g % NVFP4_SCALES;
        uint8_t code[NVFP4_GROUP];
        if (scales[g] >= 127) return false;
        p[in] = scales[g];
        qt_unpack(code, codes, g * NVFP4_GROUP, NVFP4_GROUP, 4);
        get_bits(p + NVFP4_SCALES + in * 8, code, 8, 0, 15);
        add_bits(p + NVFP4_SCALES + in * 8, code + 8, 8, 0, 15, 4);
        if (in == NVFP4_SCALES - 1) p += NVFP4_SCALES + 32;
    }
    return true;
}

void gguf_unpack_row(void *const w[QT_N_PLANES], const qt_tensor *q, int64_t n, ggml_type t,
                     const uint8_t *blocks)
{
    const qt_scheme *s = &q->scheme;
    if (as_it_is(t)) {
        const size_t row = gguf_row_bytes(t, q->K);
        memcpy((uint8_t *)w[QT_CODES] + (size_t)n * row, blocks, row);
        return;
    }
    if (s->kind == QT_E2M1) {
        (t == GGML_NVFP4 ? unpack_nvfp4 : unpack_mxfp4)(w, q->K, n, blocks);
        return;
    }
    const size_t i = kind_of(t);
    const int64_t ng = q->K / s->group;
    uint8_t *codes = (uint8_t *)w[QT_CODES] + (size_t)n * qt_row_bytes(q->K, s->bits);
    uint8_t *scales = (uint8_t *)w[QT_SCALES] + n * ng * 2;
    uint8_t *zeros = w[QT_ZEROS] ? (uint8_t *)w[QT_ZEROS] + n * ng * 2 : NULL;
    for (int64_t g = 0; g < ng; g++, blocks += kinds[i].bytes) {
        block b;
        kinds[i].take(&b, blocks);
        qt_pack_row(codes + g * s->group * s->bits / 8, b.code, s->group, s->bits);
        lq_from_f32(scales + 2 * g, b.scale, LQ_F16, 1);
        if (zeros) lq_from_f32(zeros + 2 * g, b.bias, LQ_F16, 1);
    }
}

bool gguf_type_for(ggml_type *t, const qt_tensor *q, size_t i)
{
    const qt_scheme *s = &q->scheme;
    const bool bias = s->zero == QT_ZERO_BIAS;
    const bool mx = s->kind == QT_E2M1 && s->scale_dtype == LQ_F8_E8M0;
    if (s->kind == QT_BLOCKS || mx) {
        *t = mx ? GGML_MXFP4 : (ggml_type)s->blocks;
        return i == 0;
    }
    if (s->kind == QT_E2M1) {
        *t = GGML_NVFP4;
        return i == 0 && q->K % kinds[kind_of(*t)].elements == 0 && !s->rows && !s->recip;
    }
    if (s->kind != QT_UINT || (s->zero && !bias) || s->act_order) return false;
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
    if (q->scheme.kind == QT_BLOCKS) {
        const size_t row = gguf_row_bytes(t, q->K);
        memcpy(blocks, (const uint8_t *)q->plane[QT_CODES].data + (size_t)n * row, row);
        return true;
    }
    if (t == GGML_NVFP4) return pack_nvfp4(blocks, q, n);
    if (t == GGML_MXFP4) {
        pack_mxfp4(blocks, q, n);
        return true;
    }
    const size_t i = kind_of(t);
    const qt_scheme *s = &q->scheme;
    const int64_t ng = q->K / s->group;
    const int shift = kinds[i].bias ? 0 : (1 << (kinds[i].bits - 1)) - (1 << (s->bits - 1));
    const size_t e = lq_dtype_bytes(s->scale_dtype);
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
