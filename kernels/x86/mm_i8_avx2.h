/* kernels/x86/mm_i8_avx2.h - MM_I8 without a four-way dot product: sums of 16 bits as long as they fit.
 *
 * VPMADDUBSW gives, for each pair of bytes, code * x + code' * x' in 16 bits; folding each such
 * vector into 32 bits at once costs as much again as the product. Codes of up to four bits are
 * small enough that several products add up in 16 bits before one fold:
 *
 *   bits   one product        summed before a fold
 *    4     2 * 15 * 127       8 quads, one step of 32 inputs:  30480
 *    3     2 *  7 * 127      16 quads, two steps:              28448
 *    2     2 *  3 * 127      32 quads, four steps:             24384      all below 32768
 *
 * Codes of a table (mm_table) are looked up by a shuffle of bytes. Integers up to 30 leave room for
 * 4 quads, half a step; larger ones are taken as codes of 8 bits.
 *
 * Codes of 8 bits leave no room: c - 128 is split into its size (128 at most) and its sign, which
 * moves to x, so that a product is at most 2 * 128 * 127 = 32512; 128 * sum(x), known from the
 * preparation, is added back. All of it is exact: the same integers as in every other family.
 *
 * A block is up to 5 rows of one tile (10 sums, codes, x and masks fill 16 registers; of codes of 8
 * bits, whose sizes take two more, 4 rows), or one row of two tiles. Rows are dealt out evenly, so
 * that no row is computed twice: 6 = 3 + 3. From PANEL_FROM rows on codes are unpacked once for
 * all of them (mm_i8_rows_avx2.h). Include after mm_tmpl.h.
 *
 * Included once per instruction set; no include guard on purpose. */
#include "kernels/simd/v16.h"

enum { SMALL_ROWS = 5, U8_ROWS = 4, I8_TILES_1 = 2 };

V16 vi vi_ones16(void) { return vi_set1(0x00010001); }
V16 vi signs(void) { return vi_set1(INT32_C(-2139062144)); } /* the upper bit of each byte */
V16 __m256i products(__m256i codes, __m256i x) { return _mm256_maddubs_epi16(codes, x); }
/* Compilers regroup sums of integers, so that all products of a step wait in memory before one is
 * added: a sum that passes through here is finished where it is. */
V16 vi vi_in_place(vi sum)
{
    __asm__("" : "+x"(sum.a), "+x"(sum.b));
    return sum;
}
V16 vi vi_products(vi codes, vi x)
{
    return (vi){ products(codes.a, x.a), products(codes.b, x.b) };
}
V16 vi vi_add_products(vi sum, vi codes, vi x)
{
    return vi_in_place((vi){ _mm256_add_epi16(sum.a, products(codes.a, x.a)),
                             _mm256_add_epi16(sum.b, products(codes.b, x.b)) });
}
/* sum + the pairs of 16 bits of each lane. */
V16 vi vi_fold16(vi sum, vi pairs)
{
    const vi one = vi_ones16();
    return vi_in_place((vi){ _mm256_add_epi32(sum.a, _mm256_madd_epi16(pairs.a, one.a)),
                             _mm256_add_epi32(sum.b, _mm256_madd_epi16(pairs.b, one.b)) });
}
/* sum + a times b, signed bytes; size = |a|; b is never -128, a may be. */
V16 vi vi_dot_signed(vi sum, vi a, vi size, vi b)
{
    const vi pairs = { products(size.a, _mm256_sign_epi8(b.a, a.a)),
                       products(size.b, _mm256_sign_epi8(b.b, a.b)) };
    return vi_fold16(sum, pairs);
}

V16 int64_t steps_per_fold(w_src src) { return src == W_U2 ? 4 : src == W_U3 ? 2 : 1; }

/* One block: its tiles' codes at the step to come, its rows' activations, and sums. */
typedef struct {
    const uint8_t *step[MAX_T];
    const int8_t *x[MAX_R];
    vi sum[MAX_R][MAX_T]; /* 16 bits */
    vi dot[MAX_R][MAX_T]; /* 32 bits */
    vi table;             /* of W_LUT4, signed; of W_LUT4S and W_NV4 */
    vf y[MAX_R][MAX_T];
} i8_sums;

/* The first turns of a step from p on, of codes below 32; `fresh`: sums start with it. */
V16 void step_small(i8_sums *c, int64_t p, w_src src, int RM, int NT, int turns, bool fresh)
{
    UNROLL
    for (int turn = 0; turn < turns; turn++) {
        UNROLL
        for (int k = 0; k < quads(src); k++) {
            vi w[MAX_T];
            UNROLL
            for (int n = 0; n < NT; n++) {
                w[n] = unpack(c->step[n], src, turn, k);
                if (w_table(src)) w[n] = vi_lookup(c->table, w[n]);
            }
            UNROLL
            for (int r = 0; r < RM; r++) {
                vi x = vi_word(c->x[r] + p + 4 * (turn * quads(src) + k));
                UNROLL
                for (int n = 0; n < NT; n++)
                    c->sum[r][n] = fresh && turn + k == 0 ? vi_products(w[n], x)
                                                          : vi_add_products(c->sum[r][n], w[n], x);
            }
        }
    }
}

/* The same of codes of 8 bits, less 128, straight into 32 bits. */
V16 void step_signed(i8_sums *c, int64_t p, w_src src, int RM, int NT)
{
    UNROLL
    for (int quad = 0; quad < 8; quad++) {
        vi w[MAX_T], size[MAX_T];
        UNROLL
        for (int n = 0; n < NT; n++) {
            w[n] = src == W_U8 ? vi_xor(vi_load(c->step[n] + 64 * quad), signs())
                               : vi_lookup(c->table, unpack(c->step[n], src, quad / 2, quad % 2));
            size[n] = (vi){ _mm256_abs_epi8(w[n].a), _mm256_abs_epi8(w[n].b) };
        }
        UNROLL
        for (int r = 0; r < RM; r++) {
            vi x = vi_word(c->x[r] + p + 4 * quad);
            const vi size_x = { _mm256_abs_epi8(x.a), _mm256_abs_epi8(x.b) };
            UNROLL
            for (int n = 0; n < NT; n++)
                c->dot[r][n] = RM == 1 && src == W_LUT4
                                   ? vi_dot_signed(c->dot[r][n], x, size_x, w[n])
                                   : vi_dot_signed(c->dot[r][n], w[n], size[n], x);
        }
    }
}

/* The next step of every tile. Few rows wait for memory, and each tile starts a stream anew: its
 * successors, whose codes are `ahead` bytes further on, are asked for as its own are used. */
V16 void next_step(i8_sums *c, size_t step_bytes, size_t ahead, int NT)
{
    UNROLL
    for (int n = 0; n < NT; n++) {
        for (size_t i = 0; i < step_bytes; i += 64)
            v16_prefetch(c->step[n] + ahead + i);
        c->step[n] += step_bytes;
    }
}

#define BLOCK(r, n)              \
    UNROLL                       \
    for (int r = 0; r < RM; r++) \
        UNROLL                   \
    for (int n = 0; n < NT; n++)

#define FOLD() BLOCK(r, n) c->dot[r][n] = vi_fold16(c->dot[r][n], c->sum[r][n])

/* The A inputs from p on into dot. */
V16 void dot_inputs(i8_sums *c, int64_t p, int64_t A, size_t ahead, w_src src, int RM, int NT)
{
    const size_t step_bytes = 64 * (size_t)w_bits(src);
    for (int64_t stop = p + A; p < stop;) {
        if (src == W_LUT4S || src == W_NV4) {
            step_small(c, p, src, RM, NT, 2, true);
            FOLD();
            next_step(c, step_bytes / 2, ahead, NT);
            p += TILE_K / 2;
        } else if (is_signed(src)) {
            step_signed(c, p, src, RM, NT);
            next_step(c, step_bytes, ahead, NT);
            p += TILE_K;
        } else if (src == W_U4) {
            step_small(c, p, src, RM, NT, 4, true);
            FOLD();
            next_step(c, step_bytes, ahead, NT);
            p += TILE_K;
        } else {
            BLOCK(r, n) c->sum[r][n] = vi_set1(0);
            int64_t fold = p + TILE_K * steps_per_fold(src);
            for (fold = fold < stop ? fold : stop; p < fold; p += TILE_K) {
                step_small(c, p, src, RM, NT, 8 / quads(src), false);
                next_step(c, step_bytes, ahead, NT);
            }
            FOLD();
        }
    }
}

V16 void i8_block_avx2(const mm_task *t, w_src src, int RM, int NT, int64_t m, int64_t tile)
{
    block b = block_at(t, m, tile, RM, NT);
    const int64_t A = t->x.A, nb = t->s.Kp / A, per_group = t->s.Gp / w_subs(src) / A;
    const float *xs = t->x.s + m * nb, *xsum = t->x.qs + m * nb;
    const bool no_zeros = t->w->scheme.zero == QT_ZERO_NONE; /* 128, of tables too */
    i8_sums c;
    c.table = vi_table(t->o.w->table.t);
    if (is_signed(src)) c.table = vi_xor(c.table, signs());
    UNROLL
    for (int n = 0; n < NT; n++)
        c.step[n] =
            (const uint8_t *)t->w->plane[QT_CODES].data + (size_t)b.tile[n] * t->s.tile_bytes;
    UNROLL
    for (int r = 0; r < RM; r++)
        c.x[r] = t->x.q + (m + r) * t->s.Kp;
    BLOCK(r, n) c.y[r][n] = vf_set1(0);
    for (int64_t i = 0, p = 0; i < t->s.ng * w_subs(src); i++) {
        const int64_t g = i / w_subs(src), sub = i % w_subs(src);
        vf acc[MAX_R][MAX_T], z[MAX_T];
        BLOCK(r, n) acc[r][n] = vf_set1(0);
        UNROLL
        for (int n = 0; n < NT; n++)
            z[n] = load_zero(t, b.tile[n], g, src);
        for (int64_t end = p + per_group * A; p < end; p += A, xs++, xsum++) {
            BLOCK(r, n) c.dot[r][n] = vi_set1(0);
            dot_inputs(&c, p, A, (size_t)NT * t->s.tile_bytes, src, RM, NT);
            UNROLL
            for (int r = 0; r < RM; r++) {
                const vf scale = vf_set1(xs[r * nb]), X = vf_set1(xsum[r * nb]);
                UNROLL
                for (int n = 0; n < NT; n++)
                    acc[r][n] =
                        vf_fma(scale, less_zeros(c.dot[r][n], z[n], X, src, no_zeros), acc[r][n]);
            }
        }
        UNROLL
        for (int n = 0; n < NT; n++) {
            vf s = load_scale_i8(t, b.tile[n], g, sub, src);
            UNROLL
            for (int r = 0; r < RM; r++)
                c.y[r][n] = vf_fma(s, acc[r][n], c.y[r][n]);
        }
    }
    vf sums[MAX_R * MAX_T];
    BLOCK(r, n) sums[r * NT + n] = c.y[r][n];
    block_store(t, &b, sums, NT);
}

/* Rows of the next block when `left` are to come: as even as possible, two at least of several. */
static inline int64_t rows_next(int64_t left, w_src src)
{
    return lq_ceil_div(left, lq_ceil_div(left, is_signed(src) ? U8_ROWS : SMALL_ROWS));
}

#include "kernels/x86/mm_i8_rows_avx2.h" /* needs vi_add_products and the like */

/* As WALK_BODIES, with blocks of its own. */
#define I8_SOURCE(SRC)                                                                            \
    WALK_BODY(i8_block_avx2, SRC, 1, I8_TILES_1)                                                  \
    WALK_BODY(i8_block_avx2, SRC, 2, 1)                                                           \
    WALK_BODY(i8_block_avx2, SRC, 3, 1)                                                           \
    WALK_BODY(i8_block_avx2, SRC, 4, 1)                                                           \
    WALK_BODY(i8_block_avx2, SRC, 5, 1)                                                           \
    static __attribute__((noinline)) void SRC##_i8(const mm_task *t)                              \
    {                                                                                             \
        static mm_body *const bodies[] = { WALK_ENTRY(i8_block_avx2, SRC, 1, )                    \
                                               WALK_ENTRY(i8_block_avx2, SRC, 2, )                \
                                                   WALK_ENTRY(i8_block_avx2, SRC, 3, )            \
                                                       WALK_ENTRY(i8_block_avx2, SRC, 4, )        \
                                                           WALK_ENTRY(i8_block_avx2, SRC, 5, ) }; \
        const int64_t M = t->m1 - t->m0;                                                          \
        if (M >= PANEL_FROM) {                                                                    \
            i8_panels(t, SRC);                                                                    \
            return;                                                                               \
        }                                                                                         \
        for (int64_t tile = t->t0; tile < t->t1; tile += M == 1 ? I8_TILES_1 : 1)                 \
            for (int64_t m = t->m0, rows; m < t->m1; m += rows)                                   \
                bodies[rows = M == 1 ? 1 : rows_next(t->m1 - m, SRC)](t, m, tile);                \
    }
#define I8_SOURCES(X) X(W_U2) X(W_U3) X(W_U4) X(W_U8) X(W_LUT4) X(W_LUT4S) X(W_NV4)
I8_SOURCES(I8_SOURCE)

static inline void avx2_mm_i8(const mm_task *t)
{
#define I8_ROW(SRC) [SRC] = SRC##_i8,
    static void (*const of[])(const mm_task *t) = { I8_SOURCES(I8_ROW) };
    of[w_src_i8(t)](t);
}
