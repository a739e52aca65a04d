/* kernels/arm/v16_neon.h - the sixteen lanes of v16.h in four NEON registers; included from there. Only
 * what every ARMv8-A processor has. */
#ifndef LLMQ_KERNELS_ARM_V16_NEON_H
#define LLMQ_KERNELS_ARM_V16_NEON_H

#include <arm_neon.h>

typedef struct {
    float32x4_t a, b, c, d;
} vf;
typedef struct {
    uint32x4_t a, b, c, d;
} vi;
typedef vi vm;

/* A function or operator on each register. */
#define N1(type, op) \
    (type) { op(a.a), op(a.b), op(a.c), op(a.d) }
#define N2(type, op) \
    (type) { op(a.a, b.a), op(a.b, b.b), op(a.c, b.c), op(a.d, b.d) }
#define N3(type, op) \
    (type) { op(a.a, b.a, c.a), op(a.b, b.b, c.b), op(a.c, b.c, c.c), op(a.d, b.d, c.d) }

V16 vf vf_set1(float x)
{
    float32x4_t v = vdupq_n_f32(x);
    return (vf){ v, v, v, v };
}
V16 vf vf_load(const float *p)
{
    return (vf){ vld1q_f32(p), vld1q_f32(p + 4), vld1q_f32(p + 8), vld1q_f32(p + 12) };
}
V16 void vf_store(float *p, vf v)
{
    vst1q_f32(p, v.a);
    vst1q_f32(p + 4, v.b);
    vst1q_f32(p + 8, v.c);
    vst1q_f32(p + 12, v.d);
}
V16 vf vf_add(vf a, vf b) { return N2(vf, vaddq_f32); }
V16 vf vf_sub(vf a, vf b) { return N2(vf, vsubq_f32); }
V16 vf vf_mul(vf a, vf b) { return N2(vf, vmulq_f32); }
V16 vf vf_div(vf a, vf b) { return N2(vf, vdivq_f32); }
V16 vf vf_fma(vf b, vf c, vf a) { return N3(vf, vfmaq_f32); } /* the sum comes first in NEON */
V16 vf vf_fnma(vf b, vf c, vf a) { return N3(vf, vfmsq_f32); }
V16 vf vf_rint(vf a) { return N1(vf, vrndnq_f32); }
V16 vm vf_lt(vf a, vf b) { return N2(vm, vcltq_f32); }
V16 vm vf_nan(vf b)
{
    vm a = { vceqq_f32(b.a, b.a), vceqq_f32(b.b, b.b), vceqq_f32(b.c, b.c), vceqq_f32(b.d, b.d) };
    return N1(vm, vmvnq_u32);
}
V16 bool vm_all(vm m)
{
    return vminvq_u32(vandq_u32(vandq_u32(m.a, m.b), vandq_u32(m.c, m.d))) != 0;
}
V16 vf vf_sel(vm a, vf b, vf c) { return N3(vf, vbslq_f32); }
/* As x86 has it: b where one of the two is NaN. */
V16 vf vf_max(vf a, vf b) { return vf_sel(vf_lt(b, a), a, b); }

/* Integers are kept unsigned; those operations that differ say so. */
V16 vf vf_cast(vi a) { return N1(vf, vreinterpretq_f32_u32); }
V16 vi vi_cast(vf a) { return N1(vi, vreinterpretq_u32_f32); }
V16 float32x4_t from_i32(uint32x4_t v) { return vcvtq_f32_s32(vreinterpretq_s32_u32(v)); }
V16 vf vf_from_vi(vi a) { return N1(vf, from_i32); }
V16 uint32x4_t to_i32(float32x4_t v) { return vreinterpretq_u32_s32(vcvtnq_s32_f32(v)); }
V16 vi vi_round(vf a) { return N1(vi, to_i32); }
V16 vi vi_set1(int32_t x)
{
    uint32x4_t v = vreinterpretq_u32_s32(vdupq_n_s32(x));
    return (vi){ v, v, v, v };
}
V16 uint32x4_t load16(const uint8_t *p) { return vreinterpretq_u32_u8(vld1q_u8(p)); }
V16 vi vi_load(const void *p)
{
    const uint8_t *q = p;
    return (vi){ load16(q), load16(q + 16), load16(q + 32), load16(q + 48) };
}
V16 void vi_store(void *p, vi v)
{
    uint8_t *q = p;
    vst1q_u8(q, vreinterpretq_u8_u32(v.a));
    vst1q_u8(q + 16, vreinterpretq_u8_u32(v.b));
    vst1q_u8(q + 32, vreinterpretq_u8_u32(v.c));
    vst1q_u8(q + 48, vreinterpretq_u8_u32(v.d));
}
V16 vi vi_and(vi a, vi b) { return N2(vi, vandq_u32); }
V16 vi vi_or(vi a, vi b) { return N2(vi, vorrq_u32); }
V16 vi vi_xor(vi a, vi b) { return N2(vi, veorq_u32); }
V16 vi vi_add(vi a, vi b) { return N2(vi, vaddq_u32); }
V16 vi vi_max(vi a, vi b) { return N2(vi, vmaxq_u32); }
V16 vi vi_sub(vi a, vi b) { return N2(vi, vsubq_u32); }
V16 vi vi_sll(vi a, unsigned n) { return (vi){ a.a << n, a.b << n, a.c << n, a.d << n }; }
V16 vi vi_srl(vi a, unsigned n) { return (vi){ a.a >> n, a.b >> n, a.c >> n, a.d >> n }; }
V16 vi vi_sra(vi a, unsigned n)
{
    const int32_t count = (int32_t)n;
#define SRA(v) vreinterpretq_u32_s32(vreinterpretq_s32_u32(v) >> count)
    return N1(vi, SRA);
#undef SRA
}
V16 vi vi_srlv(vi a, int n) /* n known only at run time */
{
    const int32x4_t left = vdupq_n_s32(-n);
#define SRL(v) vshlq_u32(v, left)
    return N1(vi, SRL);
#undef SRL
}

V16 vi widen16(uint16x8_t low, uint16x8_t high)
{
    return (vi){ vmovl_u16(vget_low_u16(low)), vmovl_high_u16(low), vmovl_u16(vget_low_u16(high)),
                 vmovl_high_u16(high) };
}
V16 vi widen8(uint8x16_t v) { return widen16(vmovl_u8(vget_low_u8(v)), vmovl_high_u8(v)); }
V16 vi vi_u8(const void *p) { return widen8(vld1q_u8(p)); }
V16 vi vi_i8(const void *p) { return vi_sra(vi_sll(vi_u8(p), 24), 24); }
/* 16 codes of 4 bits at p, the low half of a byte first. */
V16 vi vi_u4(const void *p)
{
    uint8x8_t v = vld1_u8(p), low = vand_u8(v, vdup_n_u8(15)), high = vshr_n_u8(v, 4);
    return widen8(vcombine_u8(vzip1_u8(low, high), vzip2_u8(low, high)));
}
V16 uint8x16_t load_bytes(const void *p, int i) { return vld1q_u8((const uint8_t *)p + i); }
V16 vf vf_bf16(const void *p)
{
    return vf_cast(vi_sll(
        widen16(vreinterpretq_u16_u8(load_bytes(p, 0)), vreinterpretq_u16_u8(load_bytes(p, 16))),
        16));
}
V16 vf vf_halves(uint16x8_t low, uint16x8_t high)
{
    float16x8_t l = vreinterpretq_f16_u16(low), h = vreinterpretq_f16_u16(high);
    return (vf){ vcvt_f32_f16(vget_low_f16(l)), vcvt_high_f32_f16(l), vcvt_f32_f16(vget_low_f16(h)),
                 vcvt_high_f32_f16(h) };
}
V16 vf vf_f16(const void *p)
{
    return vf_halves(vreinterpretq_u16_u8(load_bytes(p, 0)),
                     vreinterpretq_u16_u8(load_bytes(p, 16)));
}
V16 vf vf_f8(const void *p)
{
    const int8x16_t c = vld1q_s8(p);
    const int16x8_t keep = vdupq_n_s16((int16_t)0xbf80);
    return vf_halves(vreinterpretq_u16_s16(vandq_s16(vshll_n_s8(vget_low_s8(c), 7), keep)),
                     vreinterpretq_u16_s16(vandq_s16(vshll_n_s8(vget_high_s8(c), 7), keep)));
}
/* The low halves of two registers' lanes, in order. */
V16 uint16x8_t narrow(uint32x4_t a, uint32x4_t b)
{
    return vuzp1q_u16(vreinterpretq_u16_u32(a), vreinterpretq_u16_u32(b));
}
V16 vf vf_f16_words(vi a) { return vf_halves(narrow(a.a, a.b), narrow(a.c, a.d)); }
V16 void vi_store16(void *p, vi a)
{
    vst1q_u8(p, vreinterpretq_u8_u16(narrow(a.a, a.b)));
    vst1q_u8((uint8_t *)p + 16, vreinterpretq_u8_u16(narrow(a.c, a.d)));
}
V16 void vi_store8(void *p, vi a)
{
    vst1q_u8(p, vuzp1q_u8(vreinterpretq_u8_u16(narrow(a.a, a.b)),
                          vreinterpretq_u8_u16(narrow(a.c, a.d))));
}

/* Byte b of all 16 floats in plane[b], so that one look-up serves 16 codes. */
typedef struct {
    uint8x16_t plane[4];
} vlut;
V16 vlut vlut_load(const float *p)
{
    const uint8x16x4_t v = vld4q_u8((const void *)p);
    return (vlut){ { v.val[0], v.val[1], v.val[2], v.val[3] } };
}
/* Four lanes: codes go from [lane][j] to [j][lane]; then the planes' bytes, interleaved twice, are
 * whole floats of one j. */
V16 void vlut_quarter(float32x4_t w[4], const vlut *t, uint32x4_t codes)
{
    static const uint8_t order[16] = { 0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15 };
    uint8x16_t i = vqtbl1q_u8(vreinterpretq_u8_u32(codes), vld1q_u8(order));
    uint8x16_t b0 = vqtbl1q_u8(t->plane[0], i), b1 = vqtbl1q_u8(t->plane[1], i),
               b2 = vqtbl1q_u8(t->plane[2], i), b3 = vqtbl1q_u8(t->plane[3], i);
    uint16x8_t low = vreinterpretq_u16_u8(vzip1q_u8(b0, b1)),
               high = vreinterpretq_u16_u8(vzip1q_u8(b2, b3));
    w[0] = vreinterpretq_f32_u16(vzip1q_u16(low, high));
    w[1] = vreinterpretq_f32_u16(vzip2q_u16(low, high));
    low = vreinterpretq_u16_u8(vzip2q_u8(b0, b1)), high = vreinterpretq_u16_u8(vzip2q_u8(b2, b3));
    w[2] = vreinterpretq_f32_u16(vzip1q_u16(low, high));
    w[3] = vreinterpretq_f32_u16(vzip2q_u16(low, high));
}
V16 void vlut_get4(vf w[4], vlut t, vi codes)
{
    float32x4_t a[4], b[4], c[4], d[4];
    vlut_quarter(a, &t, codes.a);
    vlut_quarter(b, &t, codes.b);
    vlut_quarter(c, &t, codes.c);
    vlut_quarter(d, &t, codes.d);
    UNROLL
    for (int j = 0; j < 4; j++)
        w[j] = (vf){ a[j], b[j], c[j], d[j] };
}
/* A table of 16 bytes; each byte of `codes`, below 16, becomes its entry. */
V16 vi vi_table(const uint8_t p[16])
{
    uint32x4_t t = load16(p);
    return (vi){ t, t, t, t };
}
V16 uint32x4_t lookup16(uint32x4_t t, uint32x4_t i)
{
    return vreinterpretq_u32_u8(vqtbl1q_u8(vreinterpretq_u8_u32(t), vreinterpretq_u8_u32(i)));
}
V16 vi vi_lookup(vi a, vi b) { return N2(vi, lookup16); }

/* r[i][j] = r[j][i] */
V16 void square4(float32x4_t r[4])
{
    float32x4_t a = vzip1q_f32(r[0], r[2]), b = vzip2q_f32(r[0], r[2]), c = vzip1q_f32(r[1], r[3]),
                d = vzip2q_f32(r[1], r[3]);
    r[0] = vzip1q_f32(a, c);
    r[1] = vzip2q_f32(a, c);
    r[2] = vzip1q_f32(b, d);
    r[3] = vzip2q_f32(b, d);
}
/* dst[i][r] = src[r][i] for a 4 x 4 block, and for 8 x 8 of four such. */
V16 void transpose4(float *dst, int64_t dstep, const float *src, int64_t sstep)
{
    float32x4_t r[4];
    UNROLL
    for (int i = 0; i < 4; i++)
        r[i] = vld1q_f32(src + i * sstep);
    square4(r);
    UNROLL
    for (int i = 0; i < 4; i++)
        vst1q_f32(dst + i * dstep, r[i]);
}
V16 void transpose8(float *dst, int64_t dstep, const float *src, int64_t sstep)
{
    UNROLL
    for (int i = 0; i < 8; i += 4) {
        UNROLL
        for (int r = 0; r < 8; r += 4)
            transpose4(dst + i * dstep + r, dstep, src + r * sstep + i, sstep);
    }
}
#undef N1
#undef N2
#undef N3

#endif
