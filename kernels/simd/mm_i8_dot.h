/* kernels/simd/mm_i8_dot.h - MM_I8 with a four-way dot product: AVX-VNNI, AVX-512 with and without, and
 * NEON, which with I8MM has an eight-way one of two rows (mm_i8_mmla_neon.h).
 *
 * A body is RM rows of NT tiles, whose sums of a block of A inputs stay in registers: on AVX-512 up
 * to 8 rows of 2 tiles are 16 sums, two vectors of codes and one of inputs. A vector of codes is
 * unpacked once for all rows of a body. What rests from block to block, the sums in f32, is in
 * memory, so that the innermost loop has all registers; it is short, and runs on through the steps
 * of a block.
 *
 *     y [ RM ][ NT ][ 16 ]   += scale *
 *     acc  (where a group has several blocks, as y)   += scale of the inputs *
 *     dot  (registers)   codes . inputs  - zero * sum of the inputs
 *
 * Rows are dealt out evenly, so that none is computed twice: 9 = 5 + 4. Each tile starts a stream
 * of codes that no hardware prefetcher knows, so the first rows of a tile ask for codes before they
 * need them: with that, products from memory run at its speed (8 rows of u4, one thread of a Zen 5,
 * 128 MB: 842 against 404 GOP/s).
 *
 * I8_ROWS, I8_TILES and I8_TILES_1 (of one row) come from the includer. Include after mm_tmpl.h.
 *
 * Included once per instruction set; no include guard on purpose. */

typedef struct {
    const uint8_t *codes[MAX_T]; /* of the inputs to come */
    const int8_t *x[MAX_R];
    int64_t p; /* place of those inputs */
    vi table;
    vi dot[MAX_R][MAX_T][2]; /* their sum is what counts */
} i8_body;

#define EACH_SUM(r, n)           \
    UNROLL                       \
    for (int r = 0; r < RM; r++) \
        UNROLL                   \
    for (int n = 0; n < NT; n++)
#define EACH_PART(r, n, i) \
    EACH_SUM(r, n) UNROLL  \
    for (int i = 0; i < i8_parts(RM, NT); i++)

/* How many sums share the products of a row and a tile: with one or two of those a single sum would
 * have each product wait for the one before. */
V16 int i8_parts(int RM, int NT) { return RM * NT < 3 ? 2 : 1; }

/* One vector of codes of each tile, turn `turn` of a step, and the inputs that meet it. */
V16 void dot_vector(i8_body *c, w_src src, int RM, int NT, int turn)
{
    UNROLL
    for (int k = 0; k < quads(src); k++) {
        vi w[MAX_T];
        UNROLL
        for (int n = 0; n < NT; n++) {
            w[n] = unpack(c->codes[n], src, turn, k);
            if (w_table(src)) w[n] = vi_lookup(c->table, w[n]);
        }
        UNROLL
        for (int r = 0; r < RM; r++) {
            const vi x = vi_word(c->x[r] + c->p + 4 * k);
            UNROLL
            for (int n = 0; n < NT; n++) {
                vi *sum = &c->dot[r][n][k % i8_parts(RM, NT)];
                *sum = vi_dot(*sum, w[n], x, src);
            }
        }
    }
    c->p += 4 * quads(src);
}

/* gcc else keeps sums in other registers at the end of a loop than at its beginning, and copies all
 * of them in each turn. */
V16 vi vi_stay(vi sum)
{
#if defined(__AVX512F__)
    __asm__("" : "+v"(sum));
#elif defined(__AVX2__)
    __asm__("" : "+x"(sum.a), "+x"(sum.b));
#endif
    return sum;
}

/* dot[..][0] := the products of the next A inputs. `ahead`: from their codes to those to ask for.
 */
V16 void dot_block(i8_body *c, int64_t A, size_t ahead, w_src src, int RM, int NT)
{
    const int turns = w_bits(src) == 3 ? 2 : 1; /* that share a vector of upper bits */
    const size_t bytes = turns == 2 ? 192 : 64;
    EACH_PART(r, n, i) c->dot[r][n][i] = vi_set1(0);
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
        for (int turn = 0; turn < turns; turn++)
            dot_vector(c, src, RM, NT, turn);
        UNROLL
        for (int n = 0; n < NT; n++)
            c->codes[n] += bytes;
        EACH_PART(r, n, i) c->dot[r][n][i] = vi_stay(c->dot[r][n][i]);
    } while (c->p < end);
    if (i8_parts(RM, NT) == 2)
        EACH_SUM(r, n) c->dot[r][n][0] = vi_add(c->dot[r][n][0], c->dot[r][n][1]);
}

#if defined(__ARM_FEATURE_MATMUL_INT8)
#include "kernels/arm/mm_i8_mmla_neon.h"
#else
#define i8_products dot_block
#endif

/* The scales of inputs and their sums for one block: those of row r are nb floats on. */
typedef struct {
    const float *s, *sum;
    int64_t nb;
    bool no_zeros;
} i8_scales;

/* acc + what a block's dot products stand for. */
V16 vf i8_fold(const i8_scales *x, int r, vi dot, vf z, vf acc, w_src src)
{
    const vf v = less_zeros(dot, z, vf_set1(x->sum[r * x->nb]), src, x->no_zeros);
    return vf_fma(vf_set1(x->s[r * x->nb]), v, acc);
}

/* From the codes of a body's block to those to ask for: AHEAD bytes on in the same tile or, at its
 * end, in the tile that takes its place. */
V16 size_t codes_ahead(const i8_body *c, const mm_task *t, int64_t tile, int NT)
{
    const uint8_t *codes = t->w->plane[QT_CODES].data;
    const uint8_t *end = codes + (size_t)(tile + 1) * t->s.tile_bytes;
    return c->codes[0] + AHEAD < end ? AHEAD : AHEAD + (size_t)(NT - 1) * t->s.tile_bytes;
}

/* `one`: a group is one block of inputs. */
V16 void i8_rows(const mm_task *t, w_src src, int RM, int NT, int64_t m, int64_t tile, bool one)
{
    const block b = block_at(t, m, tile, RM, NT);
    const int64_t A = t->x.A, nb = t->s.Kp / A, per_group = t->s.Gp / w_subs(src) / A;
    const bool first = m == t->m0;
    i8_scales x = { t->x.s + m * nb, t->x.qs + m * nb, nb,
                    t->w->scheme.zero == QT_ZERO_NONE }; /* 128, of tables too */
    vf y[MAX_R][MAX_T], z[MAX_T];
    i8_body c = { .table = vi_table(t->o.w->table.t) };
    UNROLL
    for (int n = 0; n < NT; n++) {
        c.codes[n] =
            (const uint8_t *)t->w->plane[QT_CODES].data + (size_t)b.tile[n] * t->s.tile_bytes;
        z[n] = load_zero(t, b.tile[n], 0, src);
    }
    UNROLL
    for (int r = 0; r < RM; r++)
        c.x[r] = t->x.q + (m + r) * t->s.Kp;
    EACH_SUM(r, n) y[r][n] = vf_set1(0);
    for (int64_t i = 0; i < t->s.ng * w_subs(src); i++) {
        const int64_t g = i / w_subs(src), sub = i % w_subs(src);
        vf acc[MAX_R][MAX_T], s[MAX_T];
        UNROLL
        for (int n = 0; n < NT; n++) {
            if (!x.no_zeros) z[n] = load_zero(t, b.tile[n], g, src);
            s[n] = load_scale_i8(t, b.tile[n], g, sub, src);
        }
        EACH_SUM(r, n) acc[r][n] = vf_set1(0);
        for (int64_t k = 0; k < (one ? 1 : per_group); k++, x.s++, x.sum++) {
            i8_products(&c, A, first ? codes_ahead(&c, t, b.tile[0], NT) : 0, src, RM, NT);
            EACH_SUM(r, n) acc[r][n] = i8_fold(&x, r, c.dot[r][n][0], z[n], acc[r][n], src);
        }
        EACH_SUM(r, n) y[r][n] = vf_fma(s[n], acc[r][n], y[r][n]);
    }
    vf sums[MAX_R * MAX_T];
    EACH_SUM(r, n) sums[r * NT + n] = y[r][n];
    block_store(t, &b, sums, NT);
}

/* A function for each body: compilers take very long over one function of them all. */
typedef void i8_fn(const mm_task *t, int64_t m, int64_t tile);
#define I8_FN_OF(name, SRC, RM, NT, one)                                                  \
    static __attribute__((noinline)) void name(const mm_task *t, int64_t m, int64_t tile) \
    {                                                                                     \
        i8_rows(t, SRC, RM, NT, m, tile, one);                                            \
    }
#define I8_FN(SRC, RM, NT)                        \
    I8_FN_OF(SRC##_##RM##_one, SRC, RM, NT, true) \
    I8_FN_OF(SRC##_##RM##_more, SRC, RM, NT, false)
#define I8_ONE(SRC, RM, NT) SRC##_##RM##_one,
#define I8_MORE(SRC, RM, NT) SRC##_##RM##_more,
#define I8_SOURCE(SRC)                                  \
    I8_FN(SRC, 1, I8_TILES_1)                           \
    I8_BODIES(I8_FN, SRC)                               \
    static i8_fn *const SRC##_rows[2][I8_ROWS] = {      \
        { I8_MORE(SRC, 1, 0) I8_BODIES(I8_MORE, SRC) }, \
        { I8_ONE(SRC, 1, 0) I8_BODIES(I8_ONE, SRC) },   \
    };
I8_SOURCE(W_U2)
I8_SOURCE(W_U3)
I8_SOURCE(W_U4)
I8_SOURCE(W_U8)
I8_SOURCE(W_LUT4)
I8_SOURCE(W_NV4)
#if SMALL_TABLES
I8_SOURCE(W_LUT4S)
#define SMALL_ROW [W_LUT4S] = W_LUT4S_rows,
#else
#define SMALL_ROW
#endif

#define I8_ROW(SRC) [SRC] = SRC##_rows,
static i8_fn *const (*const i8_rows_of[])[I8_ROWS] = { I8_ROW(W_U2) I8_ROW(W_U3) I8_ROW(W_U4)
                                                           I8_ROW(W_U8) I8_ROW(W_LUT4) I8_ROW(W_NV4)
                                                               SMALL_ROW };

static void dot_mm_i8(const mm_task *t)
{
    const w_src src = w_src_i8(t);
    i8_fn *const *fn = i8_rows_of[src][t->s.Gp == t->x.A * w_subs(src)];
    const int64_t M = t->m1 - t->m0, tiles = M == 1 ? I8_TILES_1 : I8_TILES;
    for (int64_t tile = t->t0; tile < t->t1; tile += tiles)
        for (int64_t m = t->m0, rows; m < t->m1; m += rows) {
            const int64_t left = t->m1 - m;
            rows = lq_ceil_div(left, lq_ceil_div(left, I8_ROWS));
            fn[rows - 1](t, m, tile);
        }
}
