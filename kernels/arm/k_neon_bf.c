/* kernels/arm/k_neon_bf.c - bf16 products by BFMMLA, two outputs and two rows at a time, and
 * attention's by BFDOT.
 *
 *     weights [2 outputs][4]  times  inputs [2 rows][4]   adds to   sum [2 outputs][2 rows]
 *
 * Weights less their zero points are exact in bf16 and are made in that order. Dense tiles hold
 * pairs of 16 outputs; two such, joined word by word (ZIP), are the fours. Codes have four inputs
 * of an output side by side: those of up to 4 bits, less a zero point of 0..15, become bf16 by
 * look-ups in tables of the low and the high bytes of 0..15, the sign is put in, and the bytes are
 * joined; those of 8 bits go through f32. The sums of rows 2i and 2i + 1 wait in acc[2i] and acc[2i
 * + 1], those of outputs 0, 1, 4, 5, 8.. and of 2, 3, 6, 7.., and are sorted at the end of a group.
 * A row alone is its own partner.
 *
 * For each sum BFMMLA is two BFDOT, one after the other: the pair's products, exact, are added, and
 * that to the sum, both rounded to odd (by less than 2^-23), with numbers below 2^-126 as 0,
 * whatever the rounding mode: over K places less than (K + 2) 2^-24 sum|x w|, within mm.h's bound.
 * Where a program sets FPCR.EBF (FEAT_EBF16), which this one does not, a pair is added with one
 * rounding. Source: Arm Architecture Reference Manual (DDI 0487), BFMatMulAdd and BFDotAdd. */
#include "kernels/arm/mm_shape_neon.h"

#undef MM_BODIES
#undef ROWS_BODY
#define MM_BODIES(X, body, SRC) X(body, SRC, 2, MM_TILES) X(body, SRC, 4, MM_TILES)
#define ROWS_BODY(n) ((n) > 2 ? 4 : 2)

#include "kernels/simd/mm_tmpl.h"
#include "kernels/simd/peak_tmpl.h"

#include "kernels/core/cpu.h"

/* op(.., ..) on each register of two. */
#define EACH(type, op, a_, b_) \
    (type) { op((a_).a, (b_).a), op((a_).b, (b_).b), op((a_).c, (b_).c), op((a_).d, (b_).d) }
#define BF(v) vreinterpretq_bf16_u32(v)

V16 vf bf16_mmla(vf acc, vi w, vi x)
{
    return (vf){ vbfmmlaq_f32(acc.a, BF(w.a), BF(x.a)), vbfmmlaq_f32(acc.b, BF(w.b), BF(x.b)),
                 vbfmmlaq_f32(acc.c, BF(w.c), BF(x.c)), vbfmmlaq_f32(acc.d, BF(w.d), BF(x.d)) };
}
V16 vf dot2(vf acc, vi w, vi x)
{
    return (vf){ vbfdotq_f32(acc.a, BF(w.a), BF(x.a)), vbfdotq_f32(acc.b, BF(w.b), BF(x.b)),
                 vbfdotq_f32(acc.c, BF(w.c), BF(x.c)), vbfdotq_f32(acc.d, BF(w.d), BF(x.d)) };
}

enum { BF16_FEWEST = 2 };
typedef struct {
    uint8x16_t low, high;
} bf16_ints;

static bf16_ints int_table(void) /* bf16 of 0..15 */
{
    uint8_t low[16], high[16];
    for (int i = 0; i < 16; i++) {
        const uint16_t v = lq_f32_to_bf16((float)i);
        low[i] = (uint8_t)v;
        high[i] = (uint8_t)(v >> 8);
    }
    return (bf16_ints){ vld1q_u8(low), vld1q_u8(high) };
}

/* The zero point in each byte of a lane. */
V16 vi bf16_zero(const mm_task *t, int64_t tile, int64_t g, w_src src)
{
    if (src == W_BF16) return vi_set1(0);
    vi z = vi_round(load_zero(t, tile, g, src));
    z = vi_or(z, vi_sll(z, 8));
    return vi_or(z, vi_sll(z, 16));
}

/* Those of two outputs, from the codes and zero points of 8 bits. */
V16 uint32x4_t wide_codes(uint8x8_t u, uint8x8_t z)
{
    const int16x8_t v = vreinterpretq_s16_u16(vsubl_u8(u, z));
    const float32x4_t f0 = vcvtq_f32_s32(vmovl_s16(vget_low_s16(v))),
                      f1 = vcvtq_f32_s32(vmovl_high_s16(v));
    return vreinterpretq_u32_u16(vuzp2q_u16(vreinterpretq_u16_f32(f0), vreinterpretq_u16_f32(f1)));
}
/* Of the four outputs whose codes are in u: outputs 0 and 1 to even, 2 and 3 to odd. */
V16 void small_codes(uint32x4_t *even, uint32x4_t *odd, uint32x4_t u, uint32x4_t z, bf16_ints t)
{
    const uint8x16_t v = vsubq_u8(vreinterpretq_u8_u32(u), vreinterpretq_u8_u32(z)),
                     size = vreinterpretq_u8_s8(vabsq_s8(vreinterpretq_s8_u8(v))),
                     low = vqtbl1q_u8(t.low, size),
                     high = vbslq_u8(vdupq_n_u8(0x80), v, vqtbl1q_u8(t.high, size));
    *even = vreinterpretq_u32_u8(vzip1q_u8(low, high));
    *odd = vreinterpretq_u32_u8(vzip2q_u8(low, high));
}

/* The weights of inputs 4i..4i+3 (i as in unpack()): of outputs 0, 1, 4, 5.. to even, the others to
 * odd. */
V16 void fours(vi *even, vi *odd, w_src src, const uint8_t *step, int turn, int k, vi z,
               bf16_ints t)
{
    if (src == W_BF16) {
        const vi first = vi_load(step + 64 * (2 * turn)),
                 second = vi_load(step + 64 * (2 * turn + 1));
        *even = EACH(vi, vzip1q_u32, first, second);
        *odd = EACH(vi, vzip2q_u32, first, second);
        return;
    }
    const vi u = unpack(step, src, turn, k);
    if (src == W_U8) {
#define LOW(v) vget_low_u8(vreinterpretq_u8_u32(v))
#define HIGH(v) vget_high_u8(vreinterpretq_u8_u32(v))
#define OF_LOW(v, zero) wide_codes(LOW(v), LOW(zero))
#define OF_HIGH(v, zero) wide_codes(HIGH(v), HIGH(zero))
        *even = EACH(vi, OF_LOW, u, z);
        *odd = EACH(vi, OF_HIGH, u, z);
        return;
    }
    small_codes(&even->a, &odd->a, u.a, z.a, t);
    small_codes(&even->b, &odd->b, u.b, z.b, t);
    small_codes(&even->c, &odd->c, u.c, z.c, t);
    small_codes(&even->d, &odd->d, u.d, z.d, t);
}

V16 void bf16_quad(vf acc[MAX_R][MAX_T], const uint8_t *const *step, const uint16_t *const *x,
                   int64_t p, w_src src, int turn, int k, const vi *z, bf16_ints table, int RM,
                   int NT)
{
    vi xv[MAX_R / 2];
    UNROLL
    for (int r = 0; r < RM; r += 2) {
        const uint32x4_t v =
            vreinterpretq_u32_u16(vcombine_u16(vld1_u16(x[r] + p), vld1_u16(x[r + 1] + p)));
        xv[r / 2] = (vi){ v, v, v, v };
    }
    UNROLL
    for (int n = 0; n < NT; n++) {
        vi even, odd;
        fours(&even, &odd, src, step[n], turn, k, z[n], table);
        UNROLL
        for (int r = 0; r < RM; r += 2) {
            acc[r][n] = bf16_mmla(acc[r][n], even, xv[r / 2]);
            acc[r + 1][n] = bf16_mmla(acc[r + 1][n], odd, xv[r / 2]);
        }
    }
}

V16 void bf16_sort(vf acc[MAX_R][MAX_T], int RM, int NT)
{
    UNROLL
    for (int r = 0; r < RM; r += 2) {
        UNROLL
        for (int n = 0; n < NT; n++) {
            const vf even = acc[r][n], odd = acc[r + 1][n];
            acc[r][n] = EACH(vf, vuzp1q_f32, even, odd);
            acc[r + 1][n] = EACH(vf, vuzp2q_f32, even, odd);
        }
    }
}

#include "kernels/simd/mm_bf16_tmpl.h"

#define PAIR_KEYS 4
#define PAIR_ROWS 3
#define PAIR_FEWER 2
#define PAIR_PV_VECS 1
V16 uint32x4_t to_bf16(float32x4_t low, float32x4_t high)
{
    return vreinterpretq_u32_bf16(vcvtq_high_bf16_f32(vcvtq_low_bf16_f32(low), high));
}
V16 vi vi_to_bf16(vf low, vf high)
{
    return (vi){ to_bf16(low.a, low.b), to_bf16(low.c, low.d), to_bf16(high.a, high.b),
                 to_bf16(high.c, high.d) };
}
V16 vi vi_load32(const void *p)
{
    const uint8_t *q = p;
    return (vi){ load16(q), load16(q + 16), vdupq_n_u32(0), vdupq_n_u32(0) };
}
V16 void vi_zip16(vi z[2], vi a, vi b)
{
#define ZIP16(half, x, y) \
    vreinterpretq_u32_u16(vzip##half##q_u16(vreinterpretq_u16_u32(x), vreinterpretq_u16_u32(y)))
    z[0] = (vi){ ZIP16(1, a.a, b.a), ZIP16(2, a.a, b.a), ZIP16(1, a.b, b.b), ZIP16(2, a.b, b.b) };
    z[1] = (vi){ ZIP16(1, a.c, b.c), ZIP16(2, a.c, b.c), ZIP16(1, a.d, b.d), ZIP16(2, a.d, b.d) };
#undef ZIP16
}
/* Four words of four keys. */
V16 void store_square(uint32_t *kt, float32x4_t a, float32x4_t b, float32x4_t c, float32x4_t d,
                      int n)
{
    float32x4_t r[4] = { a, b, c, d };
    square4(r);
    UNROLL
    for (int i = 0; i < 4; i++) {
        uint32_t word[4];
        if (n == PAIR_KEYS) {
            vst1q_u32(kt + i * ATTN_LANES, vreinterpretq_u32_f32(r[i]));
        } else {
            vst1q_u32(word, vreinterpretq_u32_f32(r[i]));
            memcpy(kt + i * ATTN_LANES, word, (size_t)n * sizeof *word);
        }
    }
}
V16 void store_keys(uint32_t *kt, vf x[PAIR_KEYS], int n, int words)
{
    store_square(kt, x[0].a, x[1].a, x[2].a, x[3].a, n);
    store_square(kt + 4 * ATTN_LANES, x[0].b, x[1].b, x[2].b, x[3].b, n);
    if (words == 8) return;
    store_square(kt + 8 * ATTN_LANES, x[0].c, x[1].c, x[2].c, x[3].c, n);
    store_square(kt + 12 * ATTN_LANES, x[0].d, x[1].d, x[2].d, x[3].d, n);
}
#include "kernels/simd/attn_pairs.h"

PEAK(peak_bf16, vf, vf_set1(0), bf16_mmla(sum[i], vi_cast(w), vi_cast(x)), 64)

const k_ops k_neon_bf = {
    .name = "neon-bf16",
    .usable = cpu_has_neon_bf16,
    .mm_bf16 = mm_bf16,
    .attn_k16 = pairs_attn_k,
    .attn_v16 = pairs_attn_v,
    .attn_scores16 = pairs_attn_scores,
    .attn_pv16 = pairs_attn_pv,
    .peak_bf16 = peak_bf16,
};
