/* kernels/x86/k_bf16.c - bf16 products by VDPBF16PS: a lane adds two products of its output per step. */
#include "kernels/x86/mm_shape512.h"

#include "kernels/simd/mm_tmpl.h"

#include "kernels/simd/peak_tmpl.h"
#include "kernels/x86/mm_pairs.h"

#include "kernels/core/cpu.h"

V16 vf dot2(vf acc, vi w, vi x) { return _mm512_dpbf16_ps(acc, (__m512bh)w, (__m512bh)x); }

typedef vi bf16_ints;
enum { BF16_FEWEST = 1 };

V16 vi bf16_zero(const mm_task *t, int64_t tile, int64_t g, w_src src)
{
    return pairs_zero(t, tile, g, src);
}
V16 void bf16_quad(vf acc[MAX_R][MAX_T], const uint8_t *const *step, const uint16_t *const *x,
                   int64_t p, w_src src, int turn, int k, const vi *z, bf16_ints table, int RM,
                   int NT)
{
    vi w[MAX_T][2];
    UNROLL
    for (int n = 0; n < NT; n++)
        pairs(w[n], src, step[n], turn, k, z[n], table);
    UNROLL
    for (int h = 0; h < 2; h++) {
        UNROLL
        for (int r = 0; r < RM; r++) {
            const vi xv = vi_word(x[r] + p + 2 * h);
            UNROLL
            for (int n = 0; n < NT; n++)
                acc[r][n] = dot2(acc[r][n], w[n][h], xv);
        }
    }
}
V16 void bf16_sort(vf acc[MAX_R][MAX_T], int RM, int NT) { (void)acc, (void)RM, (void)NT; }

#include "kernels/simd/mm_bf16_tmpl.h"

#define PAIR_KEYS 16
#define PAIR_ROWS 8
#define PAIR_FEWER 4
#define PAIR_PV_VECS 4
V16 vi vi_to_bf16(vf low, vf high) { return (vi)_mm512_cvtne2ps_pbh(high, low); }
V16 vi vi_load32(const void *p) { return _mm512_zextsi256_si512(_mm256_loadu_si256(p)); }
V16 void vi_zip16(vi z[2], vi a, vi b)
{
#define TURNS(i) i, i + 32, i + 1, i + 33, i + 2, i + 34, i + 3, i + 35
    static const uint16_t order[64] = { TURNS(0),  TURNS(4),  TURNS(8),  TURNS(12),
                                        TURNS(16), TURNS(20), TURNS(24), TURNS(28) };
#undef TURNS
    z[0] = _mm512_permutex2var_epi16(a, vi_load(order), b);
    z[1] = _mm512_permutex2var_epi16(a, vi_load(order + 32), b);
}
V16 void store_keys(uint32_t *kt, vf x[PAIR_KEYS], int n, int words)
{
    transpose16(x);
    UNROLL
    for (int c = 0; c < words; c++)
        _mm512_mask_storeu_epi32(kt + c * ATTN_LANES, vm_first(n), vi_cast(x[c]));
}
#include "kernels/simd/attn_pairs.h"

PEAK(peak_bf16, vf, vf_set1(0), dot2(sum[i], vi_cast(w), vi_cast(x)), 32)

const k_ops k_bf16 = {
    .name = "bf16",
    .usable = cpu_has_bf16,
    .pays = cpu_bf16_pays,
    .mm_bf16 = mm_bf16,
    .attn_k16 = pairs_attn_k,
    .attn_v16 = pairs_attn_v,
    .attn_scores16 = pairs_attn_scores,
    .attn_pv16 = pairs_attn_pv,
    .peak_bf16 = peak_bf16,
};
