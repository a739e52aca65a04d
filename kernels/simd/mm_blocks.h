/* kernels/simd/mm_blocks.h - MM_I8 with GGUF's blocks (mm.h): tiles of formats/tensor/tiles.h whose
 * scales are whole numbers times a f16 of the block.
 *
 * A block of RM rows and NT tiles as in mm_tmpl.h. For each group of 16 or 32 inputs the integer
 * sums stay in registers; they are scaled into acc, and acc is scaled by the inputs' own scale into
 * y. Codes are unpacked once for all rows of a body; of many rows once for a panel (mm_blocks_rows.h).
 *
 * Needs vi_dot: mm_tmpl.h has it but for AVX2 without VNNI. Include after it (and mm_i8_avx2.h), with the shape's
 * BLOCKS_BODIES defined.
 *
 * Included once per instruction set; no include guard on purpose. */
#include "formats/tensor/blocks.h"

/* No four-way dot product: see mm_i8_avx2.h. */
#if defined(__AVX2__) && !defined(__AVX512F__) && !defined(__AVXVNNI__)
#define SUMS_OF_16_BITS 1
#else
#define SUMS_OF_16_BITS 0
#endif

/* What a type has: bits of a code, and these. */
enum { B_BITS = 7, B_16 = 8, B_TABLE = 16, B_BIAS = 32, B_ALL = 64 };
#define BLOCK_SOURCES(X)         \
    X(B_T1, 1 | B_TABLE)         \
    X(B_Q2K, 2 | B_16 | B_BIAS)  \
    X(B_Q3K, 3 | B_16)           \
    X(B_Q4K, 4 | B_BIAS)         \
    X(B_Q5, 5)                   \
    X(B_Q5K, 5 | B_BIAS)         \
    X(B_Q6K, 6 | B_16)           \
    X(B_T3, 3 | B_TABLE)         \
    X(B_T3G, 3 | B_TABLE | B_16) \
    X(B_T4, 4 | B_TABLE)         \
    X(B_TQ, 2)
enum {
#define X(name, has) name = has,
    BLOCK_SOURCES(X)
#undef X
};

#if SUMS_OF_16_BITS
V16 vi vi_dot(vi acc, vi w, vi x, w_src src)
{
    if (src != W_LUT4) /* sums of two products below 2^15: 2 * 63 * 127 */
        return vi_fold16(acc, vi_products(w, x));
    w = vi_xor(w, signs());
    const vi size = { _mm256_abs_epi8(w.a), _mm256_abs_epi8(w.b) };
    return vi_dot_signed(acc, w, size, x);
}
#endif

/* Compilers keep sums elsewhere, in memory, for some of the unrolled products. */
#if SUMS_OF_16_BITS
V16 vi blocks_stay(vi sum) { return vi_in_place(sum); }
#else
V16 vi blocks_stay(vi sum) { return vi_stay(sum); }
#endif

/* Each byte's bit `from` (and those above) to `to`. */
V16 vi move_bits(vi v, int from, int to)
{
    return from > to   ? vi_srl(v, (unsigned)(from - to))
           : from < to ? vi_sll(v, (unsigned)(to - from))
                       : v;
}

/* Codes of inputs 4q..4q+3 of a step, a byte each, in every row's lane. */
V16 vi blocks_unpack(const uint8_t *step, int has, int q)
{
    const int bits = has & B_BITS,
              width = bits == 1  ? 1
                      : bits < 4 ? 2
                                 : 4,
              more = bits - width, per = 8 / width;
    const vi low = vi_set1(((1 << width) - 1) * 0x01010101);
    vi w = vi_and(move_bits(vi_load(step + 64 * (q / per)), q % per * width, 0), low);
    if (more == 1) {
        const vi h = move_bits(vi_load(step + 64 * width), q, width);
        w = vi_or(w, vi_and(h, vi_set1((1 << width) * 0x01010101)));
    }
    if (more == 2) {
        const vi h = move_bits(vi_load(step + 64 * (width + q / 4)), q % 4 * 2, width);
        w = vi_or(w, vi_and(h, vi_set1((3 << width) * 0x01010101)));
    }
    return w;
}

/* Where a tile's planes are read next, and d and dmin of its blocks. */
typedef struct {
    const uint8_t *codes, *d, *m;
    const int8_t *sc;
    vf scale, min;
} blocks_tile;

V16 blocks_tile blocks_begin(const mm_task *t, const blk_type *type, int64_t tile)
{
    const qt_span *p = t->w->plane;
    const size_t n = (size_t)tile, groups = (size_t)(t->s.Kp / type->group);
    const size_t blocks = (size_t)(t->s.Kp / type->elements) * (type->bias ? 2 : 1);
    const size_t side = type->fine ? n * groups * TILE_N : 0;
    return (blocks_tile){ .codes = (const uint8_t *)p[QT_CODES].data + n * t->s.tile_bytes,
                          .d = (const uint8_t *)p[QT_SCALES2].data + n * blocks * TILE_N * 2,
                          .m = type->fine && type->bias ? (const uint8_t *)p[QT_ZEROS].data + side
                                                        : NULL,
                          .sc = type->fine ? (const int8_t *)p[QT_SCALES].data + side : NULL };
}

V16 void blocks_next(blocks_tile *b, const blk_type *type, int has)
{
    b->scale = vf_mul(vf_f16(b->d), vf_set1(type->unit));
    b->d += TILE_N * 2;
    if (!(has & B_BIAS)) return;
    b->min = vf_f16(b->d);
    if (type->bias < 0) b->min = vf_sub(vf_set1(0), b->min);
    b->d += TILE_N * 2;
}

/* Scale and bias of the next group. */
V16 void blocks_group(vf *s, vf *z, blocks_tile *b, int has)
{
    *s = b->scale;
    *z = b->min;
    if (!b->sc) return;
    *s = vf_mul(b->scale, vf_from_vi(vi_i8(b->sc)));
    b->sc += TILE_N;
    if (!(has & B_BIAS)) return;
    *z = vf_mul(b->min, vf_from_vi(vi_u8(b->m)));
    b->m += TILE_N;
}

/* Entries + 128. */
V16 vi blocks_table(const blk_type *type, int has)
{
    uint8_t entries[16] = { 0 };
    for (int i = 0; type->table && i < 1 << (has & B_BITS); i++)
        entries[i] = (uint8_t)(type->table[i] + 128);
    return vi_table(entries);
}

V16 void blocks_block(const mm_task *t, int has, int RM, int NT, int64_t m, int64_t tile)
{
    const block b = block_at(t, m, tile, RM, NT);
    const blk_type *type = blk_find(t->w->scheme.blocks);
    const int64_t K = t->s.Kp, A = t->x.A;
    const int parts = has & B_16 ? 2 : 1, n_quads = 8 / parts;
    const w_src src = has & B_TABLE ? W_LUT4 : W_U4;
    const vf zero = vf_set1(has & B_TABLE ? 128.0f : (float)type->zero);
    const bool zeros = (has & B_TABLE) || !(has & B_BIAS);
    const vi table = blocks_table(type, has);
    vf y[MAX_R][MAX_T];
    blocks_tile at[MAX_T];
    const int8_t *x[MAX_R];
    const float *sum[MAX_R], *sx[MAX_R];
    UNROLL
    for (int n = 0; n < NT; n++) {
        at[n] = blocks_begin(t, type, b.tile[n]);
        at[n].min = vf_set1(0);
        UNROLL
        for (int r = 0; r < RM; r++)
            y[r][n] = vf_set1(0);
    }
    UNROLL
    for (int r = 0; r < RM; r++) {
        x[r] = t->x.q + b.m[r] * K;
        sum[r] = t->x.qs + b.m[r] * (K / BLK_SUM);
        sx[r] = t->x.s + b.m[r] * (K / A);
    }
    for (int64_t p = 0; p < K; p += A) {
        vf acc[MAX_R][MAX_T];
        UNROLL
        for (int r = 0; r < RM; r++) {
            UNROLL
            for (int n = 0; n < NT; n++)
                acc[r][n] = vf_set1(0);
        }
        for (int64_t k = p; k < p + A; k += TILE_K) {
            if (k % type->elements == 0) {
                UNROLL
                for (int n = 0; n < NT; n++)
                    blocks_next(&at[n], type, has);
            }
            UNROLL
            for (int part = 0; part < parts; part++) {
                vi dot[MAX_R][MAX_T];
                vf s[MAX_T], z[MAX_T];
                UNROLL
                for (int r = 0; r < RM; r++) {
                    UNROLL
                    for (int n = 0; n < NT; n++)
                        dot[r][n] = vi_set1(0);
                }
                UNROLL
                for (int q = part * n_quads; q < (part + 1) * n_quads; q++) {
                    vi w[MAX_T];
                    UNROLL
                    for (int n = 0; n < NT; n++) {
                        w[n] = blocks_unpack(at[n].codes, has, q);
                        if (has & B_TABLE) w[n] = vi_lookup(table, w[n]);
                    }
                    UNROLL
                    for (int r = 0; r < RM; r++) {
                        const vi xv = vi_word(x[r] + k + 4 * q);
                        UNROLL
                        for (int n = 0; n < NT; n++)
                            dot[r][n] = blocks_stay(vi_dot(dot[r][n], w[n], xv, src));
                    }
                }
                UNROLL
                for (int n = 0; n < NT; n++)
                    blocks_group(&s[n], &z[n], &at[n], has);
                UNROLL
                for (int r = 0; r < RM; r++) {
                    const float *X = sum[r] + k / BLK_SUM + part;
                    const vf Xv = vf_set1(parts == 2 ? X[0] : X[0] + X[1]);
                    UNROLL
                    for (int n = 0; n < NT; n++) {
                        const vf v = zeros ? less_zeros(dot[r][n], zero, Xv, src, false)
                                           : vf_from_vi(dot[r][n]);
                        acc[r][n] = vf_fma(s[n], v, acc[r][n]);
                        if (has & B_BIAS) acc[r][n] = vf_fma(z[n], Xv, acc[r][n]);
                    }
                }
            }
            UNROLL
            for (int n = 0; n < NT; n++)
                at[n].codes += t->s.step_bytes;
        }
        UNROLL
        for (int r = 0; r < RM; r++) {
            const vf s = vf_set1(*sx[r]++);
            UNROLL
            for (int n = 0; n < NT; n++)
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

#define BLOCK_BODIES(name, has) WALK_BODIES(blocks_block, name)
BLOCK_SOURCES(BLOCK_BODIES)
#define BLOCK_ROW(name, has) WALK_ROW(blocks_block, name)
static mm_body *const *const blocks_bodies[B_ALL] = { BLOCK_SOURCES(BLOCK_ROW) };

#include "kernels/simd/mm_blocks_rows.h" /* needs blocks_unpack and the like */

static void tmpl_mm_blocks(const mm_task *t)
{
    const blk_type *type = blk_find(t->w->scheme.blocks);
    const int has = type->bits | (type->group == 16 ? B_16 : 0) | (type->table ? B_TABLE : 0) |
                    (type->bias ? B_BIAS : 0);
    if (t->m1 - t->m0 >= BLOCKS_FROM)
        blocks_panels(t, has);
    else
        walk(t, blocks_bodies[has]);
}
