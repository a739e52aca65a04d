/* kernels/arm/mm_i8_neon.h - the four-way dot products of MM_I8 on NEON. Included by mm_tmpl.h.
 *
 * With USDOT (I8MM) codes are as they are. Else all are signed bytes, small codes as they are,
 * those of 8 bits less 128 (is_signed in mm_tmpl.h): with SDOT one instruction; without, two
 * products of bytes (at most 128 * 127 each) add up in 16 bits and such pairs in 32.
 *
 * Included once per instruction set; no include guard on purpose. */
V16 int32x4_t dot4(int32x4_t acc, uint8x16_t w, int8x16_t x)
{
#if defined(__ARM_FEATURE_MATMUL_INT8)
    return vusdotq_s32(acc, w, x);
#elif defined(__ARM_FEATURE_DOTPROD)
    return vdotq_s32(acc, vreinterpretq_s8_u8(w), x);
#else
    int8x16_t v = vreinterpretq_s8_u8(w);
    int16x8_t low = vmull_s8(vget_low_s8(v), vget_low_s8(x)), high = vmull_high_s8(v, x);
    return vpadalq_s16(acc, vpaddq_s16(low, high));
#endif
}

V16 vi vi_dot(vi acc, vi w, vi x, w_src src)
{
    if (is_signed(src)) w = vi_xor(w, vi_set1(INT32_C(-2139062144))); /* 0x80 in each byte */
#define DOT(i)             \
    vreinterpretq_u32_s32( \
        dot4(vreinterpretq_s32_u32(acc.i), vreinterpretq_u8_u32(w.i), vreinterpretq_s8_u32(x.i)))
    return (vi){ DOT(a), DOT(b), DOT(c), DOT(d) };
#undef DOT
}

#if defined(__ARM_FEATURE_MATMUL_INT8)
/* In each register: the codes of two outputs, eight of each, times the inputs of two rows; lanes of
 * the sums: output 0 with rows 0 and 1, output 1 with rows 0 and 1. */
V16 vi vi_mmla(vi acc, vi w, vi x)
{
#define MMLA(i)                                                                                 \
    vreinterpretq_u32_s32(vusmmlaq_s32(vreinterpretq_s32_u32(acc.i), vreinterpretq_u8_u32(w.i), \
                                       vreinterpretq_s8_u32(x.i)))
    return (vi){ MMLA(a), MMLA(b), MMLA(c), MMLA(d) };
#undef MMLA
}
#endif
