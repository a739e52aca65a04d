/* kernels/simd/v16.h - sixteen 32-bit lanes: one AVX-512 register, two of AVX2, four of NEON. The
 * templates (mm_tmpl.h, ops_tmpl.h, attn_tmpl.h) are written on these and compiled once per
 * instruction family; lane for lane the results are those of the plain C. Include from files with
 * ISA flags only. */
#ifndef LLMQ_KERNELS_SIMD_V16_H
#define LLMQ_KERNELS_SIMD_V16_H

#if defined(__x86_64__)
#include <immintrin.h>
#endif
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "kernels/core/kmath.h"

#define V16 static inline __attribute__((always_inline))
/* UNROLL: all of a loop of few constant turns. NO_UNROLL do {} while: gcc takes the UNROLL of loops
 * inside for the loop around them (not always; a `for` keeps it even with this). */
#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#define NO_UNROLL _Pragma("clang loop unroll(disable)")
#else
#define UNROLL _Pragma("GCC unroll 32")
#define NO_UNROLL _Pragma("GCC unroll 1")
#endif

/* vf: 16 floats; vi: 16 integers; vm: a mask of lanes. sel(m, a, b) = m ? a : b. fma = a*b + c,
 * fnma = c - a*b. vi_max: of lanes below 2^31. loadn/storen touch n < 16 lanes. */
#if defined(__AVX512F__)

typedef __m512 vf;
typedef __m512i vi;
typedef __mmask16 vm;

V16 vf vf_set1(float x) { return _mm512_set1_ps(x); }
V16 vf vf_load(const float *p) { return _mm512_loadu_ps(p); }
V16 void vf_store(float *p, vf v) { _mm512_storeu_ps(p, v); }
V16 vm vm_first(int n) { return (__mmask16)((1u << n) - 1u); }
V16 vf vf_loadn(const float *p, int n) { return _mm512_maskz_loadu_ps(vm_first(n), p); }
V16 void vf_storen(float *p, vf v, int n) { _mm512_mask_storeu_ps(p, vm_first(n), v); }
V16 vf vf_add(vf a, vf b) { return _mm512_add_ps(a, b); }
V16 vf vf_sub(vf a, vf b) { return _mm512_sub_ps(a, b); }
V16 vf vf_mul(vf a, vf b) { return _mm512_mul_ps(a, b); }
V16 vf vf_div(vf a, vf b) { return _mm512_div_ps(a, b); }
V16 vf vf_max(vf a, vf b) { return _mm512_max_ps(a, b); }
V16 vf vf_fma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
V16 vf vf_fnma(vf a, vf b, vf c) { return _mm512_fnmadd_ps(a, b, c); }
V16 vf vf_rint(vf a) { return _mm512_roundscale_ps(a, 0x08); }
V16 vm vf_lt(vf a, vf b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
V16 vm vf_nan(vf a) { return _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q); }
V16 bool vm_all(vm m) { return m == 0xffff; }
V16 vf vf_sel(vm m, vf a, vf b) { return _mm512_mask_blend_ps(m, b, a); }
V16 vf vf_from_vi(vi a) { return _mm512_cvtepi32_ps(a); }
V16 vi vi_round(vf a) { return _mm512_cvtps_epi32(a); }
V16 vi vi_cast(vf a) { return _mm512_castps_si512(a); }
V16 vf vf_cast(vi a) { return _mm512_castsi512_ps(a); }
V16 vi vi_set1(int32_t x) { return _mm512_set1_epi32(x); }
V16 vi vi_load(const void *p) { return _mm512_loadu_si512(p); }
V16 void vi_store(void *p, vi v) { _mm512_storeu_si512(p, v); }
V16 vi vi_and(vi a, vi b) { return _mm512_and_si512(a, b); }
V16 vi vi_or(vi a, vi b) { return _mm512_or_si512(a, b); }
V16 vi vi_xor(vi a, vi b) { return _mm512_xor_si512(a, b); }
V16 vi vi_add(vi a, vi b) { return _mm512_add_epi32(a, b); }
V16 vi vi_sub(vi a, vi b) { return _mm512_sub_epi32(a, b); }
V16 vi vi_max(vi a, vi b) { return _mm512_max_epi32(a, b); }
V16 vi vi_srl(vi a, unsigned n) { return _mm512_srli_epi32(a, n); }
V16 vi vi_sra(vi a, unsigned n) { return _mm512_srai_epi32(a, n); }
V16 vi vi_sll(vi a, unsigned n) { return _mm512_slli_epi32(a, n); }
V16 vi vi_srlv(vi a, int n) { return _mm512_srl_epi32(a, _mm_cvtsi32_si128(n)); }
V16 vi vi_u8(const void *p) { return _mm512_cvtepu8_epi32(_mm_loadu_si128(p)); }
V16 vi vi_i8(const void *p) { return _mm512_cvtepi8_epi32(_mm_loadu_si128(p)); }
V16 vf vf_f16(const void *p) { return _mm512_cvtph_ps(_mm256_loadu_si256(p)); }
V16 vf vf_bf16(const void *p)
{
    return vf_cast(vi_sll(_mm512_cvtepu16_epi32(_mm256_loadu_si256(p)), 16));
}
/* 16 bytes of e4m3 that is not NaN, as 2^-8 of their values: f16 has the same bits, its exponents are biased by 8 more. */
V16 vf vf_f8(const void *p)
{
    const __m256i w = _mm256_slli_epi16(_mm256_cvtepi8_epi16(_mm_loadu_si128(p)), 7);
    return _mm512_cvtph_ps(_mm256_and_si256(w, _mm256_set1_epi16((short)0xbf80)));
}
/* The low halves of 16 words as f16 numbers. */
V16 vf vf_f16_words(vi a) { return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(a)); }
/* The low byte, or low half, of each lane, in order (values fit). */
V16 void vi_store8(void *p, vi a) { _mm_storeu_si128(p, _mm512_cvtepi32_epi8(a)); }
V16 void vi_store16(void *p, vi a) { _mm256_storeu_si256(p, _mm512_cvtepi32_epi16(a)); }

/* A table of 16 floats. vlut_get4: w[j] = table[byte j of each lane], bytes below 16. */
typedef vf vlut;
V16 vlut vlut_load(const float *p) { return vf_load(p); }
V16 void vlut_get4(vf w[4], vlut t, vi codes)
{
    UNROLL
    for (unsigned j = 0; j < 4; j++)
        w[j] = _mm512_permutexvar_ps(vi_and(vi_srl(codes, 8 * j), vi_set1(15)), t);
}
/* A table of 16 bytes; each byte of `codes`, below 16, becomes its entry. */
V16 vi vi_table(const uint8_t p[16])
{
    return _mm512_broadcast_i32x4(_mm_loadu_si128((const void *)p));
}
V16 vi vi_lookup(vi table, vi codes) { return _mm512_shuffle_epi8(table, codes); }

#elif defined(__AVX2__)

typedef struct {
    __m256 a, b;
} vf;
typedef struct {
    __m256i a, b;
} vi;
typedef vf vm;

#define F2(op) \
    (vf) { op(a.a, b.a), op(a.b, b.b) }
#define I2(op) \
    (vi) { op(a.a, b.a), op(a.b, b.b) }
V16 vf vf_set1(float x) { return (vf){ _mm256_set1_ps(x), _mm256_set1_ps(x) }; }
V16 vf vf_load(const float *p) { return (vf){ _mm256_loadu_ps(p), _mm256_loadu_ps(p + 8) }; }
V16 void vf_store(float *p, vf v)
{
    _mm256_storeu_ps(p, v.a);
    _mm256_storeu_ps(p + 8, v.b);
}
V16 vf vf_add(vf a, vf b) { return F2(_mm256_add_ps); }
V16 vf vf_sub(vf a, vf b) { return F2(_mm256_sub_ps); }
V16 vf vf_mul(vf a, vf b) { return F2(_mm256_mul_ps); }
V16 vf vf_div(vf a, vf b) { return F2(_mm256_div_ps); }
V16 vf vf_max(vf a, vf b) { return F2(_mm256_max_ps); }
V16 vf vf_fma(vf a, vf b, vf c)
{
    return (vf){ _mm256_fmadd_ps(a.a, b.a, c.a), _mm256_fmadd_ps(a.b, b.b, c.b) };
}
V16 vf vf_fnma(vf a, vf b, vf c)
{
    return (vf){ _mm256_fnmadd_ps(a.a, b.a, c.a), _mm256_fnmadd_ps(a.b, b.b, c.b) };
}
V16 vf vf_rint(vf a) { return (vf){ _mm256_round_ps(a.a, 8), _mm256_round_ps(a.b, 8) }; }
V16 vm vf_lt(vf a, vf b)
{
    return (vm){ _mm256_cmp_ps(a.a, b.a, _CMP_LT_OQ), _mm256_cmp_ps(a.b, b.b, _CMP_LT_OQ) };
}
V16 vm vf_nan(vf a)
{
    return (vm){ _mm256_cmp_ps(a.a, a.a, _CMP_UNORD_Q), _mm256_cmp_ps(a.b, a.b, _CMP_UNORD_Q) };
}
V16 bool vm_all(vm m) { return (_mm256_movemask_ps(m.a) & _mm256_movemask_ps(m.b)) == 0xff; }
V16 vf vf_sel(vm m, vf a, vf b)
{
    return (vf){ _mm256_blendv_ps(b.a, a.a, m.a), _mm256_blendv_ps(b.b, a.b, m.b) };
}
V16 vf vf_from_vi(vi a) { return (vf){ _mm256_cvtepi32_ps(a.a), _mm256_cvtepi32_ps(a.b) }; }
V16 vi vi_round(vf a) { return (vi){ _mm256_cvtps_epi32(a.a), _mm256_cvtps_epi32(a.b) }; }
V16 vi vi_cast(vf a) { return (vi){ _mm256_castps_si256(a.a), _mm256_castps_si256(a.b) }; }
V16 vf vf_cast(vi a) { return (vf){ _mm256_castsi256_ps(a.a), _mm256_castsi256_ps(a.b) }; }
V16 vi vi_set1(int32_t x) { return (vi){ _mm256_set1_epi32(x), _mm256_set1_epi32(x) }; }
V16 vi vi_load(const void *p)
{
    const uint8_t *q = p;
    return (vi){ _mm256_loadu_si256((const void *)q), _mm256_loadu_si256((const void *)(q + 32)) };
}
V16 void vi_store(void *p, vi v)
{
    uint8_t *q = p;
    _mm256_storeu_si256((void *)q, v.a);
    _mm256_storeu_si256((void *)(q + 32), v.b);
}
V16 vi vi_and(vi a, vi b) { return I2(_mm256_and_si256); }
V16 vi vi_or(vi a, vi b) { return I2(_mm256_or_si256); }
V16 vi vi_xor(vi a, vi b) { return I2(_mm256_xor_si256); }
V16 vi vi_add(vi a, vi b) { return I2(_mm256_add_epi32); }
V16 vi vi_sub(vi a, vi b) { return I2(_mm256_sub_epi32); }
V16 vi vi_max(vi a, vi b) { return I2(_mm256_max_epi32); }
V16 vi vi_srl(vi a, unsigned n)
{
    return (vi){ _mm256_srli_epi32(a.a, (int)n), _mm256_srli_epi32(a.b, (int)n) };
}
V16 vi vi_sra(vi a, unsigned n)
{
    return (vi){ _mm256_srai_epi32(a.a, (int)n), _mm256_srai_epi32(a.b, (int)n) };
}
V16 vi vi_sll(vi a, unsigned n)
{
    return (vi){ _mm256_slli_epi32(a.a, (int)n), _mm256_slli_epi32(a.b, (int)n) };
}
V16 vi vi_srlv(vi a, int n) /* n known only at run time */
{
    __m128i c = _mm_cvtsi32_si128(n);
    return (vi){ _mm256_srl_epi32(a.a, c), _mm256_srl_epi32(a.b, c) };
}
V16 vi vi_u8(const void *p)
{
    __m128i v = _mm_loadu_si128(p);
    return (vi){ _mm256_cvtepu8_epi32(v), _mm256_cvtepu8_epi32(_mm_srli_si128(v, 8)) };
}
V16 vi vi_i8(const void *p)
{
    __m128i v = _mm_loadu_si128(p);
    return (vi){ _mm256_cvtepi8_epi32(v), _mm256_cvtepi8_epi32(_mm_srli_si128(v, 8)) };
}
V16 vf vf_f16(const void *p)
{
    const uint8_t *q = p;
    return (vf){ _mm256_cvtph_ps(_mm_loadu_si128((const void *)q)),
                 _mm256_cvtph_ps(_mm_loadu_si128((const void *)(q + 16))) };
}
V16 vf vf_bf16(const void *p)
{
    const uint8_t *q = p;
    vi v = { _mm256_cvtepu16_epi32(_mm_loadu_si128((const void *)q)),
             _mm256_cvtepu16_epi32(_mm_loadu_si128((const void *)(q + 16))) };
    return vf_cast(vi_sll(v, 16));
}
/* 16 words below 65536 as 16 halves in order. */
V16 __m256i vi_pack16(vi a)
{
    return _mm256_permute4x64_epi64(_mm256_packus_epi32(a.a, a.b), 0xd8);
}
V16 vf vf_f8(const void *p)
{
    const __m256i w = _mm256_slli_epi16(_mm256_cvtepi8_epi16(_mm_loadu_si128(p)), 7);
    const __m256i h = _mm256_and_si256(w, _mm256_set1_epi16((short)0xbf80));
    return (vf){ _mm256_cvtph_ps(_mm256_castsi256_si128(h)),
                 _mm256_cvtph_ps(_mm256_extracti128_si256(h, 1)) };
}
V16 vf vf_f16_words(vi a)
{
    __m256i h = vi_pack16(vi_and(a, vi_set1(0xffff)));
    return (vf){ _mm256_cvtph_ps(_mm256_castsi256_si128(h)),
                 _mm256_cvtph_ps(_mm256_extracti128_si256(h, 1)) };
}
V16 void vi_store16(void *p, vi a) { _mm256_storeu_si256(p, vi_pack16(a)); }
V16 void vi_store8(void *p, vi a)
{
    __m256i h = vi_pack16(vi_and(a, vi_set1(0xff)));
    _mm_storeu_si128(p,
                     _mm_packus_epi16(_mm256_castsi256_si128(h), _mm256_extracti128_si256(h, 1)));
}

/* Byte b of all 16 floats in plane[b], so that a shuffle of bytes looks up 32 codes at once. */
typedef struct {
    __m256i plane[4];
} vlut;
V16 vlut vlut_load(const float *p)
{
    vlut t;
    uint8_t bytes[64], plane[16];
    memcpy(bytes, p, sizeof bytes);
    for (int b = 0; b < 4; b++) {
        for (int i = 0; i < 16; i++)
            plane[i] = bytes[4 * i + b];
        t.plane[b] = _mm256_broadcastsi128_si256(_mm_loadu_si128((const void *)plane));
    }
    return t;
}
/* Eight lanes: codes go from [lane][j] to [j][lane] within each half of the register; then the
 * planes' bytes, interleaved twice, are whole floats of one j. */
V16 void vlut_half(__m256 w[4], const vlut *t, __m256i codes)
{
    const __m256i order = _mm256_set_epi8(15, 11, 7, 3, 14, 10, 6, 2, 13, 9, 5, 1, 12, 8, 4, 0, 15,
                                          11, 7, 3, 14, 10, 6, 2, 13, 9, 5, 1, 12, 8, 4, 0);
    __m256i i = _mm256_shuffle_epi8(codes, order), b[4];
    UNROLL
    for (int k = 0; k < 4; k++)
        b[k] = _mm256_shuffle_epi8(t->plane[k], i);
    __m256i low = _mm256_unpacklo_epi8(b[0], b[1]), high = _mm256_unpacklo_epi8(b[2], b[3]);
    w[0] = _mm256_castsi256_ps(_mm256_unpacklo_epi16(low, high));
    w[1] = _mm256_castsi256_ps(_mm256_unpackhi_epi16(low, high));
    low = _mm256_unpackhi_epi8(b[0], b[1]), high = _mm256_unpackhi_epi8(b[2], b[3]);
    w[2] = _mm256_castsi256_ps(_mm256_unpacklo_epi16(low, high));
    w[3] = _mm256_castsi256_ps(_mm256_unpackhi_epi16(low, high));
}
V16 void vlut_get4(vf w[4], vlut t, vi codes)
{
    __m256 a[4], b[4];
    vlut_half(a, &t, codes.a);
    vlut_half(b, &t, codes.b);
    UNROLL
    for (int j = 0; j < 4; j++)
        w[j] = (vf){ a[j], b[j] };
}
V16 vi vi_table(const uint8_t p[16])
{
    __m256i t = _mm256_broadcastsi128_si256(_mm_loadu_si128((const void *)p));
    return (vi){ t, t };
}
V16 vi vi_lookup(vi table, vi codes)
{
    return (vi){ _mm256_shuffle_epi8(table.a, codes.a), _mm256_shuffle_epi8(table.b, codes.b) };
}
#undef F2
#undef I2

#else
#include "kernels/arm/v16_neon.h"
#endif

#if defined(__x86_64__)
/* 16 codes of 4 bits at p, the low half of a byte first. */
V16 vi vi_u4(const void *p)
{
    __m128i v = _mm_loadl_epi64(p), low = _mm_set1_epi8(15);
    uint8_t codes[16];
    v = _mm_unpacklo_epi8(_mm_and_si128(v, low), _mm_and_si128(_mm_srli_epi16(v, 4), low));
    _mm_storeu_si128((void *)codes, v);
    return vi_u8(codes);
}
/* dst[i][r] = src[r][i] for an 8 x 8 block; rows `dstep` and `sstep` floats apart. */
V16 void transpose8(float *dst, int64_t dstep, const float *src, int64_t sstep)
{
    __m256 r[8], t[8];
    UNROLL
    for (int i = 0; i < 8; i++)
        r[i] = _mm256_loadu_ps(src + i * sstep);
    UNROLL
    for (int i = 0; i < 8; i += 2) {
        t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
        t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
    }
    UNROLL
    for (int i = 0; i < 8; i += 4) {
        UNROLL
        for (int j = 0; j < 2; j++) {
            r[i + 2 * j] = _mm256_shuffle_ps(t[i + j], t[i + j + 2], 0x44);
            r[i + 2 * j + 1] = _mm256_shuffle_ps(t[i + j], t[i + j + 2], 0xee);
        }
    }
    UNROLL
    for (int i = 0; i < 4; i++) {
        _mm256_storeu_ps(dst + i * dstep, _mm256_permute2f128_ps(r[i], r[i + 4], 0x20));
        _mm256_storeu_ps(dst + (i + 4) * dstep, _mm256_permute2f128_ps(r[i], r[i + 4], 0x31));
    }
}
#endif
#if defined(__AVX512F__)
/* r[i][j] = r[j][i]: words, pairs of words, and quarters of registers change places. */
V16 void transpose16(vf r[16])
{
    vf t[16];
    UNROLL
    for (int i = 0; i < 16; i += 2) {
        t[i] = _mm512_unpacklo_ps(r[i], r[i + 1]);
        t[i + 1] = _mm512_unpackhi_ps(r[i], r[i + 1]);
    }
    UNROLL
    for (int i = 0; i < 16; i += 4) {
        UNROLL
        for (int j = 0; j < 2; j++) {
            r[i + 2 * j] = _mm512_shuffle_ps(t[i + j], t[i + j + 2], 0x44);
            r[i + 2 * j + 1] = _mm512_shuffle_ps(t[i + j], t[i + j + 2], 0xee);
        }
    }
    UNROLL
    for (int i = 0; i < 16; i += 8) {
        UNROLL
        for (int j = 0; j < 4; j++) {
            t[i + j] = _mm512_shuffle_f32x4(r[i + j], r[i + j + 4], 0x88);
            t[i + j + 4] = _mm512_shuffle_f32x4(r[i + j], r[i + j + 4], 0xdd);
        }
    }
    UNROLL
    for (int j = 0; j < 8; j++) {
        const int at = j % 4 + 4 * (j / 4); /* columns j % 4 and on of quarters 0, 2 or 1, 3 */
        r[at] = _mm512_shuffle_f32x4(t[j], t[j + 8], 0x88);
        r[at + 8] = _mm512_shuffle_f32x4(t[j], t[j + 8], 0xdd);
    }
}
#endif

#if !defined(__AVX512F__) /* which has masks */
V16 vf vf_loadn(const float *p, int n)
{
    float t[16] = { 0 };
    memcpy(t, p, (size_t)n * sizeof *t);
    return vf_load(t);
}
V16 void vf_storen(float *p, vf v, int n)
{
    float t[16];
    vf_store(t, v);
    memcpy(p, t, (size_t)n * sizeof *t);
}
#endif

/* Ask for the line at p, which need not exist, in the second cache. */
V16 void v16_prefetch(const void *p) { __builtin_prefetch(p, 0, 3); }

V16 vf vf_abs(vf a) { return vf_cast(vi_and(vi_cast(a), vi_set1(0x7fffffff))); }
/* Numbers of 8 bits, one in each lane (base/base.h). */
V16 vf vf_e4m3(vi c)
{
    vi half = vi_or(vi_sll(vi_and(c, vi_set1(0x80)), 8), vi_sll(vi_and(c, vi_set1(0x7f)), 7));
    vf v = vf_mul(vf_f16_words(half), vf_set1(256)); /* exponents of f16 are biased by 8 more */
    return vf_sel(vf_lt(vf_set1(448), vf_abs(v)), vf_set1(NAN), v);
}
/* |a| with the sign of s */
V16 vf vf_sign(vf a, vf s)
{
    return vf_cast(
        vi_or(vi_and(vi_cast(a), vi_set1(0x7fffffff)), vi_and(vi_cast(s), vi_set1(INT32_MIN))));
}
/* The 32 bits at p (four int8 activations, or two bf16) in every lane. */
V16 vi vi_word(const void *p)
{
    int32_t v;
    memcpy(&v, p, sizeof v);
    return vi_set1(v);
}
#if defined(__AVX512F__)
V16 __m256 vf_low(vf a) { return _mm512_castps512_ps256(a); }
V16 __m256 vf_high(vf a) { return _mm512_extractf32x8_ps(a, 1); }
#elif defined(__x86_64__)
V16 __m256 vf_low(vf a) { return a.a; }
V16 __m256 vf_high(vf a) { return a.b; }
#endif
#if defined(__x86_64__)
/* f(.., ..) of all lanes: 8 apart, 4 apart, 2 apart, and of the last two. */
#define FOLD16(f, a)                                                                  \
    const __m256 eight = _mm256_##f##_ps(vf_low(a), vf_high(a));                      \
    const __m128 four =                                                               \
        _mm_##f##_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1)); \
    const __m128 two = _mm_##f##_ps(four, _mm_movehl_ps(four, four));                 \
    return _mm_cvtss_f32(_mm_##f##_ss(two, _mm_movehdup_ps(two)))
/* Pairwise, as km_sum16. */
V16 float vf_sum(vf a) { FOLD16(add, a); }
/* The largest lane; all lanes or none are NaN. */
V16 float vf_top(vf a) { FOLD16(max, a); }
#undef FOLD16
#else
V16 float vf_sum(vf a)
{
    float t[16];
    vf_store(t, a);
    return km_sum16(t);
}
V16 float vf_top(vf a)
{
    float t[16];
    vf_store(t, a);
    UNROLL
    for (int n = 8; n; n /= 2) {
        UNROLL
        for (int i = 0; i < n; i++)
            t[i] = t[i] > t[i + n] ? t[i] : t[i + n];
    }
    return t[0];
}
#endif

/* Lane i: vf_sum (vf_top) of row i, of n <= 16 rows; the same order. */
#if defined(__AVX512F__)
/* Of all 16: halves, quarters, pairs and single lanes of two registers are joined in one, and rows
 * enter so that they leave in theirs. */
#define FOLD_ROWS(f, rows, n)                                                       \
    vf t[16];                                                                       \
    (void)(n);                                                                      \
    UNROLL                                                                          \
    for (int i = 0; i < 16; i++)                                                    \
        t[i] = (rows)[i % 4 * 4 + i / 4];                                           \
    UNROLL                                                                          \
    for (int i = 0; i < 8; i++)                                                     \
        t[i] = _mm512_##f##_ps(_mm512_shuffle_f32x4(t[2 * i], t[2 * i + 1], 0x44),  \
                               _mm512_shuffle_f32x4(t[2 * i], t[2 * i + 1], 0xee)); \
    UNROLL                                                                          \
    for (int i = 0; i < 4; i++)                                                     \
        t[i] = _mm512_##f##_ps(_mm512_shuffle_f32x4(t[2 * i], t[2 * i + 1], 0x88),  \
                               _mm512_shuffle_f32x4(t[2 * i], t[2 * i + 1], 0xdd)); \
    UNROLL                                                                          \
    for (int i = 0; i < 2; i++)                                                     \
        t[i] = _mm512_##f##_ps(_mm512_shuffle_ps(t[2 * i], t[2 * i + 1], 0x44),     \
                               _mm512_shuffle_ps(t[2 * i], t[2 * i + 1], 0xee));    \
    return _mm512_##f##_ps(_mm512_shuffle_ps(t[0], t[1], 0x88), _mm512_shuffle_ps(t[0], t[1], 0xdd))
V16 vf vf_sums(const vf rows[16], int n) { FOLD_ROWS(add, rows, n); }
V16 vf vf_tops(const vf rows[16], int n) { FOLD_ROWS(max, rows, n); }
#else
#define FOLD_ROWS(one, rows, n)   \
    float t[16] = { 0 };          \
    for (int i = 0; i < (n); i++) \
        t[i] = one((rows)[i]);    \
    return vf_load(t)
V16 vf vf_sums(const vf rows[16], int n) { FOLD_ROWS(vf_sum, rows, n); }
V16 vf vf_tops(const vf rows[16], int n) { FOLD_ROWS(vf_top, rows, n); }
#endif
#undef FOLD_ROWS

#endif
