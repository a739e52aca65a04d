/* kernels/k_bf16.c - bf16 products by VDPBF16PS: a lane adds two products of its output per step. */
#include "kernels/mm_shape512.h"

#include "kernels/mm_tmpl.h"

#include "kernels/mm_pairs.h"
#include "kernels/peak_tmpl.h"

#include "kernels/cpu.h"

V16 vf dot2(vf acc, vi w, vi x) { return _mm512_dpbf16_ps(acc, (__m512bh)w, (__m512bh)x); }

V16 void bf16_block(const mm_task *t, w_src src, int RM, int NT, int64_t m, int64_t tile)
{
    block b = block_at(t, m, tile, RM, NT);
    vf y[MAX_R][MAX_T];
    vi z[MAX_T], table = int_table();
    const uint8_t *step[MAX_T];
    const uint16_t *x[MAX_R];
    UNROLL for (int n = 0; n < NT; n++) step[n] =
        (const uint8_t *)t->w->plane[QT_CODES].data + (size_t)b.tile[n] * t->s.tile_bytes;
    UNROLL for (int r = 0; r < RM; r++)
    {
        x[r] = t->x.b + b.m[r] * t->s.Kp;
        UNROLL for (int n = 0; n < NT; n++) y[r][n] = vf_set1(0);
    }
    const bool first = asks_ahead(t, m, RM);
    int64_t p = 0;
    for (int64_t g = 0; g < t->s.ng; g++) {
        vf acc[MAX_R][MAX_T];
        UNROLL for (int n = 0; n < NT; n++)
        {
            z[n] = pairs_zero(t, b.tile[n], g, src);
            UNROLL for (int r = 0; r < RM; r++) acc[r][n] = vf_set1(0);
        }
        for (int64_t end = p + t->s.Gp; p < end; p += TILE_K) {
            for (int turn = 0; turn < 8 / quads(src); turn++) {
                if (first) ask_ahead(step, src, turn, NT);
                UNROLL for (int k = 0; k < quads(src); k++)
                {
                    vi w[MAX_T][2];
                    UNROLL for (int n = 0; n < NT; n++)
                        pairs(w[n], src, step[n], turn, k, z[n], table);
                    UNROLL for (int h = 0; h < 2; h++) UNROLL for (int r = 0; r < RM; r++)
                    {
                        vi xv = vi_word(x[r] + p + 4 * (turn * quads(src) + k) + 2 * h);
                        UNROLL for (int n = 0; n < NT; n++) acc[r][n] =
                            dot2(acc[r][n], w[n][h], xv);
                    }
                }
            }
            UNROLL for (int n = 0; n < NT; n++) step[n] += t->s.step_bytes;
        }
        UNROLL for (int n = 0; n < NT; n++)
        {
            vf s = load_scale(t, b.tile[n], g, 0);
            UNROLL for (int r = 0; r < RM; r++) y[r][n] = vf_fma(s, acc[r][n], y[r][n]);
        }
    }
    vf sums[MAX_R * MAX_T];
    UNROLL for (int r = 0; r < RM; r++) UNROLL for (int n = 0; n < NT; n++) sums[r * NT + n] =
        y[r][n];
    block_store(t, &b, sums, NT);
}

static void mm_bf16(const mm_task *t)
{
    switch (w_src_of(&t->w->scheme)) {
    case W_BF16:
        WALK(bf16_block, W_BF16);
        break;
    case W_U2:
        WALK(bf16_block, W_U2);
        break;
    case W_U3:
        WALK(bf16_block, W_U3);
        break;
    case W_U4:
        WALK(bf16_block, W_U4);
        break;
    default:
        WALK(bf16_block, W_U8);
    }
}

#include "kernels/attn_pairs.h"

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
