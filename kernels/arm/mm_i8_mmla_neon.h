/* kernels/arm/mm_i8_mmla_neon.h - the products of mm_i8_dot.h's bodies by USMMLA (I8MM), two outputs
 * and two rows at a time; part of mm_i8_dot.h.
 *
 *     codes [2 outputs][8]  times  inputs [2 rows][8]   adds to   sum [2 outputs][2 rows]
 *
 * A vector of codes has four inputs of 16 outputs; two such, joined word by word, have the eight of
 * two outputs in each register: four ZIP1 for outputs 0, 1, 4, 5, 8.., and four ZIP2 for 2, 3,
 * 6, 7.., which all rows share. The sums of rows 2i and 2i + 1 wait in dot[2i] and dot[2i + 1],
 * those of the outputs of ZIP1 and of ZIP2, and are sorted at the end of a block.
 *
 * An odd row is left to USDOT, which takes as many instructions as USMMLA would for it and another,
 * and half the registers.
 *
 * Included once per instruction set; no include guard on purpose. */

#define VI_JOIN(v, w, f) \
    (vi) { f((v).a, (w).a), f((v).b, (w).b), f((v).c, (w).c), f((v).d, (w).d) }

/* Eight inputs of two rows. */
V16 vi two_rows(const int8_t *x0, const int8_t *x1)
{
    const uint32x4_t v = vreinterpretq_u32_s8(vcombine_s8(vld1_s8(x0), vld1_s8(x1)));
    return (vi){ v, v, v, v };
}

/* Eight inputs, whose codes are w[0] and w[1] of each tile. */
V16 void mmla_eight(i8_body *c, vi w[2][MAX_T], w_src src, int RM, int NT)
{
    if (RM % 2) {
        UNROLL
        for (int h = 0; h < 2; h++) {
            const vi x = vi_word(c->x[RM - 1] + c->p + 4 * h);
            UNROLL
            for (int n = 0; n < NT; n++) {
                vi *sum = &c->dot[RM - 1][n][0];
                *sum = vi_dot(*sum, w[h][n], x, src);
            }
        }
    }
    vi x[MAX_R / 2];
    UNROLL
    for (int r = 0; r + 1 < RM; r += 2)
        x[r / 2] = two_rows(c->x[r] + c->p, c->x[r + 1] + c->p);
    UNROLL
    for (int n = 0; n < NT; n++) {
        const vi even = VI_JOIN(w[0][n], w[1][n], vzip1q_u32),
                 odd = VI_JOIN(w[0][n], w[1][n], vzip2q_u32);
        UNROLL
        for (int r = 0; r + 1 < RM; r += 2) {
            c->dot[r][n][0] = vi_mmla(c->dot[r][n][0], even, x[r / 2]);
            c->dot[r + 1][n][0] = vi_mmla(c->dot[r + 1][n][0], odd, x[r / 2]);
        }
    }
    c->p += 8;
}

/* As dot_block. */
V16 void mmla_block(i8_body *c, int64_t A, size_t ahead, w_src src, int RM, int NT)
{
    const int turns = w_bits(src) == 3 ? 2 : 1, eights = quads(src) == 4 ? 2 : 1,
              apart = quads(src) == 1; /* the second four inputs are in a vector of their own */
    const size_t bytes = turns == 2 ? 192 : apart ? 128 : 64;
    EACH_SUM(r, n) c->dot[r][n][0] = vi_set1(0);
    const int64_t end = c->p + A;
    NO_UNROLL
    do {
        UNROLL
        for (int n = 0; n < NT; n++) {
            UNROLL
            for (size_t i = 0; i < bytes; i += 64)
                v16_prefetch(c->codes[n] + ahead + i);
        }
        NO_UNROLL
        for (int turn = 0; turn < turns; turn++) {
            UNROLL
            for (int e = 0; e < eights; e++) {
                vi w[2][MAX_T];
                UNROLL
                for (int h = 0; h < 2; h++) {
                    UNROLL
                    for (int n = 0; n < NT; n++) {
                        w[h][n] = apart ? unpack(c->codes[n], src, h, 0)
                                        : unpack(c->codes[n], src, turn, 2 * e + h);
                        if (w_table(src)) w[h][n] = vi_lookup(c->table, w[h][n]);
                    }
                }
                mmla_eight(c, w, src, RM, NT);
            }
        }
        UNROLL
        for (int n = 0; n < NT; n++)
            c->codes[n] += bytes;
    } while (c->p < end);
    UNROLL
    for (int r = 0; r + 1 < RM; r += 2) {
        UNROLL
        for (int n = 0; n < NT; n++) {
            const vi even = c->dot[r][n][0], odd = c->dot[r + 1][n][0];
            c->dot[r][n][0] = VI_JOIN(even, odd, vuzp1q_u32);
            c->dot[r + 1][n][0] = VI_JOIN(even, odd, vuzp2q_u32);
        }
    }
}

V16 void i8_products(i8_body *c, int64_t A, size_t ahead, w_src src, int RM, int NT)
{
    if (RM == 1)
        dot_block(c, A, ahead, src, RM, NT);
    else
        mmla_block(c, A, ahead, src, RM, NT);
}
