/* kernels/simd/mm_bf16_tmpl.h - MM_BF16 where an instruction adds products of bf16 numbers. The sums of a
 * group begin at zero and join y with its scale. The includer has, besides mm_tmpl.h:
 *
 *     bf16_ints int_table(void)   what makes bf16 numbers of codes
 *     vi bf16_zero(t, tile, g, src)   the zero points of a tile's group, as bf16_quad takes them
 *     bf16_quad(acc, step, x, p, src, turn, k, z, table, RM, NT)   acc += the products of RM rows'
 *         inputs p..p+3 with their weights (quad k of a turn, as in unpack()) of NT tiles
 *     bf16_sort(acc, RM, NT)   acc[r][n] := the sums of row r and tile n, wherever they waited
 *     BF16_FEWEST   rows of the smallest body
 *
 * Included once per instruction set; no include guard on purpose. */

V16 void bf16_block(const mm_task *t, w_src src, int RM, int NT, int64_t m, int64_t tile)
{
    block b = block_at(t, m, tile, RM, NT);
    vf y[MAX_R][MAX_T];
    vi z[MAX_T];
    const bf16_ints table = int_table();
    const uint8_t *step[MAX_T];
    const uint16_t *x[MAX_R];
    UNROLL
    for (int n = 0; n < NT; n++)
        step[n] = (const uint8_t *)t->w->plane[QT_CODES].data + (size_t)b.tile[n] * t->s.tile_bytes;
    UNROLL
    for (int r = 0; r < RM; r++) {
        x[r] = t->x.b + b.m[r] * t->s.Kp;
        UNROLL
        for (int n = 0; n < NT; n++)
            y[r][n] = vf_set1(0);
    }
    const bool first = asks_ahead(t, m, RM);
    int64_t p = 0;
    for (int64_t g = 0; g < t->s.ng; g++) {
        vf acc[MAX_R][MAX_T];
        UNROLL
        for (int n = 0; n < NT; n++) {
            z[n] = bf16_zero(t, b.tile[n], g, src);
            UNROLL
            for (int r = 0; r < RM; r++)
                acc[r][n] = vf_set1(0);
        }
        for (int64_t end = p + t->s.Gp; p < end; p += TILE_K) {
            for (int turn = 0; turn < 8 / quads(src); turn++) {
                if (first) ask_ahead(step, src, turn, NT);
                UNROLL
                for (int k = 0; k < quads(src); k++)
                    bf16_quad(acc, step, x, p + 4 * (turn * quads(src) + k), src, turn, k, z, table,
                              RM, NT);
            }
            UNROLL
            for (int n = 0; n < NT; n++)
                step[n] += t->s.step_bytes;
        }
        bf16_sort(acc, RM, NT);
        UNROLL
        for (int n = 0; n < NT; n++) {
            vf s = load_scale(t, b.tile[n], g, 0);
            UNROLL
            for (int r = 0; r < RM; r++)
                y[r][n] = vf_fma(s, acc[r][n], y[r][n]);
        }
    }
    vf sums[MAX_R * MAX_T];
    UNROLL
    for (int r = 0; r < RM; r++) {
        UNROLL
        for (int n = 0; n < NT; n++)
            sums[r * NT + n] = y[r][n];
    }
    block_store(t, &b, sums, NT);
}

V16 void bf16_body(const mm_task *t, w_src src, int RM, int NT, int64_t m, int64_t tile)
{
    bf16_block(t, src, RM < BF16_FEWEST ? BF16_FEWEST : RM, NT, m, tile);
}

#define BF16_SOURCES(X)  \
    X(bf16_body, W_BF16) \
    X(bf16_body, W_U2)   \
    X(bf16_body, W_U3)   \
    X(bf16_body, W_U4)   \
    X(bf16_body, W_U8)
BF16_SOURCES(WALK_BODIES)
static mm_body *const *const bf16_bodies[] = { BF16_SOURCES(WALK_ROW) };

static void mm_bf16(const mm_task *t) { walk(t, bf16_bodies[w_src_of(&t->w->scheme)]); }
