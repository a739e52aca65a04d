/* kernels/simd/kv_tmpl.h - elements of a cached row (attn.h) on 16 lanes, for the templates of attention.
 * Included once per instruction set; no include guard on purpose. */
#include "kernels/attn.h"
#include "kernels/simd/v16.h"

/* The 16 elements at p of a row with this scale. */
V16 vf kv_load(const uint8_t *p, kv_dtype d, vf scale)
{
    if (d == KV_F32) {
        float t[16];
        memcpy(t, p, sizeof t); /* rows of an odd block may be unaligned */
        return vf_load(t);
    }
    if (d == KV_F16) return vf_f16(p);
    if (d == KV_BF16) return vf_bf16(p);
    if (d == KV_F8) return vf_mul(vf_mul(scale, vf_set1(256)), vf_f8(p)); /* a NaN is its scale's */
    if (d == KV_I4) return vf_mul(scale, vf_from_vi(vi_sub(vi_u4(p), vi_set1(8))));
    return vf_mul(scale, vf_from_vi(vi_i8(p)));
}

/* The scale of 16 elements of a row of D, from i on. */
V16 vf kv_scale(const uint8_t *row, kv_dtype d, int64_t i, int64_t D)
{
    float s = 0;
    if (d == KV_I4) {
        uint32_t head;
        memcpy(&head, row, sizeof head);
        const int64_t P = attn_i4_block(D), b = P == 16 ? i / 16 : i / P;
        s = attn_i4_scale(lq_bf16_to_f32((uint16_t)(head >> 16)), head >> 4 * b);
    } else if (attn_kv_head(d)) {
        memcpy(&s, row, sizeof s);
    }
    return vf_set1(s);
}

/* f(.., d) with a d that the compiler knows. */
#define KV_KNOWN(d, f, ...)      \
    switch (d) {                 \
    case KV_F32:                 \
        f(__VA_ARGS__, KV_F32);  \
        break;                   \
    case KV_F16:                 \
        f(__VA_ARGS__, KV_F16);  \
        break;                   \
    case KV_BF16:                \
        f(__VA_ARGS__, KV_BF16); \
        break;                   \
    case KV_I4:                  \
        f(__VA_ARGS__, KV_I4);   \
        break;                   \
    case KV_F8:                  \
        f(__VA_ARGS__, KV_F8);   \
        break;                   \
    default:                     \
        f(__VA_ARGS__, KV_I8);   \
    }

/* How many of `most` rows, from the first on, see the same keys; 1 where it sees none. */
static inline int rows_alike(const int *lo, const int *hi, int most)
{
    int n = 1;
    while (n < most && lo[0] < hi[0] && lo[n] == lo[0] && hi[n] == hi[0])
        n++;
    return n;
}
