/* kernels/k_bf16.c - bf16 products by VDPBF16PS: a lane adds two products of its output per step.
 *
 * Dense bf16 tiles hold the pairs already. Codes of up to 4 bits become the bf16 number code - zero
 * by one look-up: VPERMW with index code - zero + 16 in a table of -16..15. Codes of 8 bits go
 * through f32, where code - zero is exact, as it is in bf16 (at most 8 significant bits). */
#include "kernels/mm_shape512.h"

#include "kernels/mm_tmpl.h"
#include "kernels/peak_tmpl.h"

#include "kernels/cpu.h"

V16 vf dot2(vf acc, vi w, vi x) { return _mm512_dpbf16_ps(acc, (__m512bh)w, (__m512bh)x); }

static vi int_table(void) /* bf16 of -16..15; 16 bits each */
{
    uint16_t t[32];
    for (int i = 0; i < 32; i++)
        t[i] = lq_f32_to_bf16((float)(i - 16));
    return vi_load(t);
}

/* Weights, without their scale, of the pairs (4i, 4i+1) and (4i+2, 4i+3); i as in unpack(). z: for
 * 8 bit the zero points in f32, else 16 - zero in both halves of each lane. */
V16 void pairs(vi w[2], w_src src, const uint8_t *step, int turn, int k, vi z, vi table)
{
    if (src == W_BF16) {
        w[0] = vi_load(step + 64 * (2 * turn));
        w[1] = vi_load(step + 64 * (2 * turn + 1));
        return;
    }
    vi u = unpack(step, src, turn, k);
    if (src == W_U8) {
        vi low = vi_set1(255);
        vi c[4] = { vi_and(u, low), vi_and(vi_srl(u, 8), low), vi_and(vi_srl(u, 16), low),
                    vi_srl(u, 24) };
        UNROLL for (int j = 0; j < 4; j++) c[j] = vi_cast(vf_sub(vf_from_vi(c[j]), vf_cast(z)));
        w[0] = vi_or(vi_srl(c[0], 16), c[1]);
        w[1] = vi_or(vi_srl(c[2], 16), c[3]);
        return;
    }
    /* Bytes 0 and 1 (2 and 3) of each lane, each widened to 16 bits; index 128 gives zero. */
    vi first = vi_set1(INT32_C(-0x7ffe8000)),
       four = _mm512_set4_epi32(0x000c000c, 0x00080008, 0x00040004, 0);
    vi a01 = vi_or(first, four), a23 = vi_or(a01, vi_set1(0x00020002));
    vi a = _mm512_add_epi16(_mm512_shuffle_epi8(u, a01), z);
    vi b = _mm512_add_epi16(_mm512_shuffle_epi8(u, a23), z);
    w[0] = _mm512_permutexvar_epi16(a, table);
    w[1] = _mm512_permutexvar_epi16(b, table);
}

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
            z[n] = vi_set1(0);
            if (src == W_U8)
                z[n] = vi_cast(load_zero(t, b.tile[n], g, src));
            else if (src != W_BF16) {
                vi off = vi_sub(vi_set1(16), vi_round(load_zero(t, b.tile[n], g, src)));
                z[n] = vi_or(off, vi_sll(off, 16));
            }
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
