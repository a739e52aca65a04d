/* kernels/x86/mm_pairs.h - weights less their zero points as pairs of bf16 numbers, exactly.
 *
 * Dense bf16 tiles hold the pairs already. Codes of up to 4 bits become the bf16 number code - zero
 * by one look-up: VPERMW with index code - zero + 16 in a table of -16..15. Codes of 8 bits go
 * through f32, where code - zero is exact, as it is in bf16 (at most 8 significant bits). Include
 * after mm_tmpl.h.
 *
 * Included once per instruction set; no include guard on purpose. */

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
        UNROLL
        for (int j = 0; j < 4; j++)
            c[j] = vi_cast(vf_sub(vf_from_vi(c[j]), vf_cast(z)));
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

/* The zero points of a tile's group as pairs() takes them. */
V16 vi pairs_zero(const mm_task *t, int64_t tile, int64_t g, w_src src)
{
    if (src == W_BF16) return vi_set1(0);
    const vf z = load_zero(t, tile, g, src);
    if (src == W_U8) return vi_cast(z);
    const vi off = vi_sub(vi_set1(16), vi_round(z));
    return vi_or(off, vi_sll(off, 16));
}
