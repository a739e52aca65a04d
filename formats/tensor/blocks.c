/* formats/tensor/blocks.c - the types of blocks; those of GGUF's IQ are taken apart in blocks_iq.c. */
#include "formats/tensor/blocks.h"
#include "formats/tensor/blocks_bits.h"

/* ---- 32 elements: low nibbles, then high ones ---- */
static void fifth_bits(uint8_t *code, const uint8_t *qh)
{
    for (int j = 0; j < 4; j++) { /* a byte eight times, of each another bit: 0, or above it */
        const uint64_t bit = qh[j] * EACH_BYTE & UINT64_C(0x8040201008040201);
        const uint64_t one = (bit + 0x7f * EACH_BYTE) >> 7 & EACH_BYTE;
        put_eight(code + 8 * j, get_eight(code + 8 * j) | one << 4);
    }
}
static void take_q4_1(blk_parts *b, const uint8_t *p) { get_nibbles(b->code, p + 4); }
static void take_q5_0(blk_parts *b, const uint8_t *p)
{
    get_nibbles(b->code, p + 6);
    fifth_bits(b->code, p + 2);
}
static void take_q5_1(blk_parts *b, const uint8_t *p)
{
    get_nibbles(b->code, p + 8);
    fifth_bits(b->code, p + 4);
}
static void take_iq4_nl(blk_parts *b, const uint8_t *p) { get_nibbles(b->code, p + 2); }

/* ---- 128 and 64 elements, in order ---- */
static const int8_t one_bit[2] = { -1, 1 };
static void take_q1_0(blk_parts *b, const uint8_t *p)
{
    for (int i = 0; i < 128; i++)
        b->code[i] = p[2 + i / 8] >> i % 8 & 1;
}
static void take_q2_0(blk_parts *b, const uint8_t *p)
{
    for (int i = 0; i < 64; i++)
        b->code[i] = p[2 + i / 4] >> 2 * (i % 4) & 3;
}

/* ---- 256 elements: element k is lane l = k%32 of part c = k%128/32 of half h = k/128 ---- */
static void crumbs(uint8_t *code, const uint8_t *qs) /* two bits of 32 h + l */
{
    for (int i = 0; i < 8; i++)
        get_bits(code + 32 * i, qs + 32 * (i / 4), 32, 2 * (i % 4), 3);
}
static void take_q2_k(blk_parts *b, const uint8_t *p)
{
    for (int i = 0; i < 16; i++) {
        b->sc[i] = (int8_t)(p[i] & 15);
        b->m[i] = (uint8_t)(p[i] >> 4);
    }
    crumbs(b->code, p + 16);
}
static void take_q3_k(blk_parts *b, const uint8_t *p)
{
    const uint8_t *s = p + 96;
    for (int i = 0; i < 16; i++) {
        const unsigned lo = (unsigned)s[i % 8] >> 4 * (i / 8) & 15u;
        const unsigned hi = (unsigned)s[8 + i % 4] >> 2 * (i / 4) & 3u;
        b->sc[i] = (int8_t)((int)(lo | hi << 4) - 32);
    }
    crumbs(b->code, p + 32);
    for (int i = 0; i < 8; i++) /* code - 4 is crumb - (high bit ? 0 : 4) */
        add_bits(b->code + 32 * i, p, 32, i, 1, 2);
}
/* Eight 6-bit scales and mins in 12 bytes. */
static void six_bits(blk_parts *b, const uint8_t *s)
{
    for (int j = 0; j < 4; j++) {
        b->sc[j] = (int8_t)(s[j] & 63);
        b->m[j] = s[j + 4] & 63;
        b->sc[j + 4] = (int8_t)((s[j + 8] & 15) | s[j] >> 6 << 4);
        b->m[j + 4] = (uint8_t)(s[j + 8] >> 4 | s[j + 4] >> 6 << 4);
    }
}
static void k_nibbles(uint8_t *code, const uint8_t *qs)
{
    for (int i = 0; i < 8; i++)
        get_bits(code + 32 * i, qs + 32 * (i / 2), 32, 4 * (i % 2), 15);
}
static void take_q4_k(blk_parts *b, const uint8_t *p)
{
    six_bits(b, p + 4);
    k_nibbles(b->code, p + 16);
}
static void take_q5_k(blk_parts *b, const uint8_t *p)
{
    six_bits(b, p + 4);
    k_nibbles(b->code, p + 48);
    for (int i = 0; i < 8; i++)
        add_bits(b->code + 32 * i, p + 16, 32, i, 1, 4);
}
static void take_q6_k(blk_parts *b, const uint8_t *p)
{
    memcpy(b->sc, p + 192, 16);
    for (int i = 0; i < 8; i++) {
        const int h = i / 4, c = i % 4;
        get_bits(b->code + 32 * i, p + 64 * h + 32 * (c & 1), 32, 4 * (c >> 1), 15);
        add_bits(b->code + 32 * i, p + 128 + 32 * h, 32, 2 * c, 3, 4);
    }
}
static void take_iq4_xs(blk_parts *b, const uint8_t *p)
{
    const unsigned high = get_half(p + 2);
    for (int i = 0; i < 8; i++) {
        const unsigned low = (unsigned)p[4 + i / 2] >> 4 * (i % 2) & 15u;
        b->sc[i] = (int8_t)((int)(low | (high >> 2 * i & 3u) << 4) - 32);
        get_nibbles(b->code + 32 * i, p + 8 + 16 * i);
    }
}
static void take_tq2_0(blk_parts *b, const uint8_t *p) { crumbs(b->code, p); }
/* n bytes of `each` digits to the base 3, the first the highest: byte i holds elements i, n + i, ...
 * A byte is the digits as a fraction of 256. */
static uint8_t *digits(uint8_t *code, const uint8_t *q, int n, int each)
{
    for (unsigned k = 0, power = 1; k < (unsigned)each; k++, power *= 3)
        for (int i = 0; i < n; i++)
            *code++ = (uint8_t)((uint8_t)(q[i] * power) * 3u >> 8);
    return code;
}
static void take_tq1_0(blk_parts *b, const uint8_t *p)
{
    uint8_t *code = digits(b->code, p, 32, 5);
    code = digits(code, p + 32, 16, 5);
    digits(code, p + 48, 4, 4);
}

enum {
#define X(name, id, elements, bytes) N_##name = elements, BYTES_##name = bytes,
    BLK_TYPES(X)
#undef X
};
static const blk_type types[] = {
#define T(n, d_, dmin_, bits_, group_, zero_, table_, bias_, fine_, unit_, take_)             \
    {                                                                                         \
        BLK_##n, #n, N_##n, BYTES_##n, d_, dmin_, bits_, group_, zero_, table_, bias_, fine_, \
            unit_, take_                                                                      \
    }
    T(Q4_1, 0, 2, 4, 32, 0, NULL, 1, false, 1, take_q4_1),
    T(Q5_0, 0, -1, 5, 32, 16, NULL, 0, false, 1, take_q5_0),
    T(Q5_1, 0, 2, 5, 32, 0, NULL, 1, false, 1, take_q5_1),
    T(Q2_K, 80, 82, 2, 16, 0, NULL, -1, true, 1, take_q2_k),
    T(Q3_K, 108, -1, 3, 16, 4, NULL, 0, true, 1, take_q3_k),
    T(Q4_K, 0, 2, 4, 32, 0, NULL, -1, true, 1, take_q4_k),
    T(Q5_K, 0, 2, 5, 32, 0, NULL, -1, true, 1, take_q5_k),
    T(Q6_K, 208, -1, 6, 16, 32, NULL, 0, true, 1, take_q6_k),
    T(IQ2_XXS, 0, -1, 3, 32, 0, blk_iq2, 0, true, 0.125f, blk_take_iq2_xxs),
    T(IQ2_XS, 0, -1, 3, 16, 0, blk_iq2, 0, true, 0.125f, blk_take_iq2_xs),
    T(IQ2_S, 0, -1, 3, 16, 0, blk_iq2, 0, true, 0.125f, blk_take_iq2_s),
    T(IQ3_XXS, 0, -1, 4, 32, 0, blk_iq3_xxs, 0, true, 0.25f, blk_take_iq3_xxs),
    T(IQ3_S, 0, -1, 4, 32, 0, blk_iq3_s, 0, true, 1, blk_take_iq3_s),
    T(IQ1_S, 0, -1, 3, 32, 0, blk_iq1, 0, true, 0.125f, blk_take_iq1_s),
    T(IQ1_M, -1, -1, 3, 16, 0, blk_iq1, 0, true, 0.125f, blk_take_iq1_m),
    T(IQ4_NL, 0, -1, 4, 32, 0, blk_iq4, 0, false, 1, take_iq4_nl),
    T(IQ4_XS, 0, -1, 4, 32, 0, blk_iq4, 0, true, 1, take_iq4_xs),
    T(TQ1_0, 52, -1, 2, 32, 1, NULL, 0, false, 1, take_tq1_0),
    T(TQ2_0, 64, -1, 2, 32, 1, NULL, 0, false, 1, take_tq2_0),
    T(Q1_0, 0, -1, 1, 32, 0, one_bit, 0, false, 1, take_q1_0),
    T(Q2_0, 0, -1, 2, 32, 1, NULL, 0, false, 1, take_q2_0),
#undef T
};

const blk_type *blk_find(int64_t id)
{
    for (size_t i = 0; i < LQ_COUNT(types); i++)
        if (types[i].id == (blk_id)id && id >= 0) return &types[i];
    return NULL;
}

const blk_type *blk_named(const char *name)
{
    for (size_t i = 0; i < LQ_COUNT(types); i++)
        if (strcmp(types[i].name, name) == 0) return &types[i];
    return NULL;
}

void blk_take_scales(blk_parts *b, const blk_type *t, const uint8_t *block)
{
    if (t->bias) b->dmin = get_half(block + t->dmin_at);
    if (t->d_at >= 0)
        b->d = get_half(block + t->d_at);
    else
        t->take(b, block);
}

void blk_take(blk_parts *b, const blk_type *t, const uint8_t *block)
{
    blk_take_scales(b, t, block);
    if (t->d_at >= 0) t->take(b, block);
}

float blk_scale(const blk_type *t, const blk_parts *b, int g)
{
    const float d = lq_f16_to_f32(b->d) * t->unit;
    return t->fine ? d * (float)b->sc[g] : d;
}

float blk_bias(const blk_type *t, const blk_parts *b, int g)
{
    const float v = lq_f16_to_f32(b->dmin) * (t->fine ? (float)b->m[g] : 1.0f);
    return t->bias < 0 ? -v : v;
}

void blk_dequant(float *dst, const blk_type *t, const uint8_t *blocks, int64_t K)
{
    blk_parts b;
    for (int64_t k = 0; k < K; k += t->elements, blocks += t->bytes, dst += t->elements) {
        blk_take(&b, t, blocks);
        for (int g = 0; g < t->elements / t->group; g++) {
            const float scale = blk_scale(t, &b, g), bias = t->bias ? blk_bias(t, &b, g) : 0.0f;
            const uint8_t *code = b.code + g * t->group;
            float *to = dst + g * t->group;
            for (int i = 0; i < t->group; i++)
                to[i] = scale * (float)blk_value(t, code[i]);
            for (int i = 0; t->bias && i < t->group; i++)
                to[i] += bias;
        }
    }
}
