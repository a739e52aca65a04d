/* kernels/x86/k_amx.c - MM_I8 and MM_BF16 by AMX: an instruction multiplies 16 rows, 16 outputs and 64
 * bytes of inputs. All other operations, and int8 products of few rows, are AVX-512's.
 *
 * What is left of two tiles' codes after unpacking is a B operand as it lies (four int8 inputs, or
 * a pair of bf16 ones, of 16 outputs side by side) and serves all rows of a panel; rows of
 * activations are A operands where they lie. Two blocks of rows by two tiles are four registers of
 * sums:
 *
 *                     tile 0   tile 1          w: 6, 7   [ inputs/4 or /2 ][ 16 outputs ][ 4 or 2 ]
 *     rows 0..R-1       0        1       x: 4            [ R ][ inputs ]
 *     rows R..2R-1      2        3       x: 5
 *
 * MM_I8: sums of a block of A inputs are exact integers; they leave the tiles through memory and
 * join y as in the other families, so the bytes are the same. MM_BF16: sums of a group are in f32,
 * of each 32 inputs the even and the odd ones by themselves (TDPBF16PS), with any number of rows.
 * Rows are dealt out in blocks of R, 16 or fewer, and the last block may begin in the one before:
 * what both compute is stored once. */
#include "kernels/x86/mm_shape512.h"

#include "kernels/simd/mm_tmpl.h"

#include "kernels/x86/mm_pairs.h"

#include "kernels/core/cpu.h"
#include "kernels/x86/amx.h"

enum {
    AMX_I8_FROM = 6, /* rows: with fewer, products with vectors take no longer */
    AMX_ROWS = 16,
    AMX_BLOCKS = 6, /* of a panel */
    AMX_TILES = 2,
    AMX_BYTES = 64,                       /* of inputs in a product */
    AMX_PAIRS = 256,                      /* bf16 inputs unpacked at once; a multiple of TILE_K */
    AMX_UNPACKED = AMX_PAIRS * TILE_N * 2 /* bytes; int8: of at most 128 inputs, a byte each */
};

typedef float amx_sums[AMX_TILES][AMX_ROWS][TILE_N];

typedef struct {
    const mm_task *t;
    w_src src;
    int64_t m0, M, R, blocks; /* the panel's rows; those of a block */
    int64_t tile[AMX_TILES];  /* at work */
    int stored;               /* of them; the other repeats the last */
    _Alignas(64) uint8_t w[AMX_TILES][AMX_UNPACKED];
    _Alignas(64) amx_sums y[AMX_BLOCKS], acc[AMX_BLOCKS];
} amx_panel;

static void configure(int64_t R, int64_t bytes)
{
    amx_config c = { .palette = 1 };
    for (int i = 0; i < 8; i++) {
        c.rows[i] = (uint8_t)(i < 6 ? R : bytes / 4);
        c.row_bytes[i] = (uint16_t)(i == 4 || i == 5 ? bytes : 4 * TILE_N);
    }
    amx_configure(&c);
}

/* The first row of block i. */
static int64_t row_of(const amx_panel *c, int64_t i)
{
    return c->m0 + (i * c->R < c->M - c->R ? i * c->R : c->M - c->R);
}

static const uint8_t *codes_at(const mm_task *t, int64_t tile, int64_t p)
{
    return (const uint8_t *)t->w->plane[QT_CODES].data + (size_t)tile * t->s.tile_bytes +
           (size_t)(p / TILE_K) * t->s.step_bytes;
}
/* As many codes as a step has, of those to come. */
V16 void ask_step(const uint8_t *step, size_t bytes)
{
    for (size_t b = 0; b < bytes; b += 64)
        v16_prefetch(step + AHEAD + b);
}

/* Both tiles' y of a panel's rows, to where they go. */
static void amx_store(const amx_panel *c)
{
    for (int64_t i = 0; i < c->blocks; i++) {
        const int64_t first = row_of(c, i);
        for (int64_t m = c->m0 + i * c->R; m < first + c->R; m++) {
            const block to = {
                .m = { m }, .tile = { c->tile[0], c->tile[1] }, .rows = 1, .tiles = c->stored
            };
            const vf sums[AMX_TILES] = { vf_load(c->y[i][0][m - first]),
                                         vf_load(c->y[i][1][m - first]) };
            block_store(c->t, &to, sums, AMX_TILES);
        }
    }
}

/* product: adds to y the products of the panel's rows and both tiles; `bytes` of inputs each. */
static void amx_walk(const mm_task *t, w_src src, int64_t bytes, void (*product)(amx_panel *))
{
    enum { PANEL = AMX_BLOCKS * AMX_ROWS };
    const int64_t panels = lq_ceil_div(t->m1 - t->m0, PANEL);
    amx_panel c;
    c.t = t;
    c.src = src;
    c.m0 = t->m0;
    for (int64_t i = 0; i < panels; i++, c.m0 += c.M) {
        c.M = lq_ceil_div(t->m1 - c.m0, panels - i); /* even ones */
        c.blocks = lq_ceil_div(c.M, AMX_ROWS);
        c.R = lq_ceil_div(c.M, c.blocks);
        configure(c.R, bytes);
        for (int64_t tile = t->t0; tile < t->t1; tile += AMX_TILES) {
            c.stored = t->t1 - tile < AMX_TILES ? (int)(t->t1 - tile) : AMX_TILES;
            c.tile[0] = tile;
            c.tile[1] = tile + c.stored - 1;
            memset(c.y, 0, (size_t)c.blocks * sizeof *c.y);
            product(&c);
            amx_store(&c);
        }
    }
    amx_release();
}

/* ---- MM_I8 ---- */
/* w := the codes of inputs p..p+n of a tile. */
V16 void open_codes(uint8_t *w, const mm_task *t, w_src src, int64_t tile, int64_t p, int64_t n)
{
    const vi table = vi_table(t->o.w->table.t);
    const uint8_t *step = codes_at(t, tile, p);
    for (int64_t i = 0; i < n; i += TILE_K, step += t->s.step_bytes) {
        ask_step(step, t->s.step_bytes);
        for (int turn = 0; turn < 8 / quads(src); turn++) {
            UNROLL
            for (int k = 0; k < quads(src); k++, w += 64) {
                const vi v = unpack(step, src, turn, k);
                vi_store(w, w_table(src) ? vi_lookup(table, v) : v);
            }
        }
    }
}
#define OPEN(f, SRC)                                 \
    case SRC:                                        \
        for (int i = 0; i < AMX_TILES; i++)          \
            f(c->w[i], c->t, SRC, c->tile[i], p, n); \
        break;
static void open_i8(amx_panel *c, int64_t p, int64_t n)
{
    switch (c->src) {
        OPEN(open_codes, W_U2)
        OPEN(open_codes, W_U3)
        OPEN(open_codes, W_U4)
        OPEN(open_codes, W_LUT4)
        OPEN(open_codes, W_LUT4S)
        OPEN(open_codes, W_NV4)
    default:
        OPEN(open_codes, W_U8)
    }
}

/* A block of A inputs: its number in a row, and what its sums are multiplied with. */
typedef struct {
    int64_t at;
    bool first, last; /* of a group */
    vf s[AMX_TILES], z[AMX_TILES];
} amx_block;

/* dot := the products of one or two blocks of rows, from i on, with the block's codes, at w. */
V16 void i8_dot(const amx_panel *c, const amx_block *b, int64_t i, size_t w, bool two,
                int32_t (*dot)[AMX_TILES][AMX_ROWS][TILE_N])
{
    const int64_t Kp = c->t->s.Kp, A = c->t->x.A, n = A < AMX_BYTES ? A : AMX_BYTES;
    const int8_t *x = c->t->x.q + b->at * A, *x0 = x + row_of(c, i) * Kp,
                 *x1 = x + row_of(c, i + two) * Kp;
    TILE_ZERO(0);
    TILE_ZERO(1);
    if (two) {
        TILE_ZERO(2);
        TILE_ZERO(3);
    }
    for (int64_t k = 0; k < A; k += n) {
        const size_t at = w + (size_t)(k * TILE_N);
        TILE_LOAD(4, x0 + k, Kp);
        TILE_LOAD(6, c->w[0] + at, 64);
        TILE_LOAD(7, c->w[1] + at, 64);
        TILE_DOT_I8(0, 4, 6);
        TILE_DOT_I8(1, 4, 7);
        if (two) {
            TILE_LOAD(5, x1 + k, Kp);
            TILE_DOT_I8(2, 5, 6);
            TILE_DOT_I8(3, 5, 7);
        }
    }
    TILE_STORE(0, dot[0][0], 64);
    TILE_STORE(1, dot[0][1], 64);
    if (two) {
        TILE_STORE(2, dot[1][0], 64);
        TILE_STORE(3, dot[1][1], 64);
    }
}

/* The products of row block i join its sums. */
V16 void i8_join(amx_panel *c, const amx_block *b, int64_t i, int32_t (*dot)[AMX_ROWS][TILE_N],
                 bool one)
{
    const mm_task *t = c->t;
    const int64_t nb = t->s.Kp / t->x.A, at = row_of(c, i) * nb + b->at;
    const bool no_zeros = t->w->scheme.zero == QT_ZERO_NONE;
    const float *s = t->x.s + at, *sum = t->x.qs + at;
    for (int64_t r = 0; r < c->R; r++, s += nb, sum += nb) {
        const vf X = vf_set1(*sum), sx = vf_set1(*s);
        UNROLL
        for (int n = 0; n < AMX_TILES; n++) {
            const vf v = less_zeros(vi_load(dot[n][r]), b->z[n], X, c->src, no_zeros);
            float *acc = c->acc[i][n][r], *y = c->y[i][n][r];
            const vf sums = vf_fma(sx, v, one || b->first ? vf_set1(0) : vf_load(acc));
            if (one || b->last)
                vf_store(y, vf_fma(b->s[n], sums, vf_load(y)));
            else
                vf_store(acc, sums);
        }
    }
}

/* A block of inputs, whose codes lie at w, and all rows. `one`: it is a group. */
V16 void i8_rows(amx_panel *c, const amx_block *b, size_t w, bool one)
{
    _Alignas(64) int32_t dot[2][AMX_TILES][AMX_ROWS][TILE_N];
    int64_t i = 0;
    for (; i + 1 < c->blocks; i += 2) {
        i8_dot(c, b, i, w, true, dot);
        i8_join(c, b, i, dot[0], one);
        i8_join(c, b, i + 1, dot[1], one);
    }
    if (i == c->blocks) return;
    i8_dot(c, b, i, w, false, dot);
    i8_join(c, b, i, dot[0], one);
}

static void i8_product(amx_panel *c)
{
    const mm_task *t = c->t;
    const int64_t A = t->x.A, n = A < TILE_K ? TILE_K : A, subs = w_subs(c->src),
                  per_group = t->s.Gp / subs / A;
    for (int64_t p = 0; p < t->s.Kp; p += n) {
        open_i8(c, p, n);
        for (int64_t q = 0; q < n; q += A) {
            amx_block b = { .at = (p + q) / A };
            const int64_t i = b.at / per_group;
            b.first = b.at % per_group == 0;
            b.last = b.at % per_group == per_group - 1;
            for (int k = 0; k < AMX_TILES; k++) {
                b.s[k] = load_scale_i8(t, c->tile[k], i / subs, i % subs, c->src);
                b.z[k] = load_zero(t, c->tile[k], i / subs, c->src);
            }
            const size_t w = (size_t)(q * TILE_N);
            if (per_group == 1)
                i8_rows(c, &b, w, true);
            else
                i8_rows(c, &b, w, false);
        }
    }
}

static void amx_mm_i8(const mm_task *t)
{
    if (t->m1 - t->m0 < AMX_I8_FROM)
        k_vnni.mm_i8(t);
    else
        amx_walk(t, w_src_i8(t), t->x.A < AMX_BYTES ? t->x.A : AMX_BYTES, i8_product);
}

/* ---- MM_BF16 ---- */
/* w := the weights, without their scale, of inputs p..p+n of a tile, all of one group. */
V16 void open_pairs(uint8_t *w, const mm_task *t, w_src src, int64_t tile, int64_t p, int64_t n)
{
    const vi table = int_table(), z = pairs_zero(t, tile, p / t->s.Gp, src);
    const uint8_t *step = codes_at(t, tile, p);
    for (int64_t i = 0; i < n; i += TILE_K, step += t->s.step_bytes) {
        ask_step(step, t->s.step_bytes);
        for (int turn = 0; turn < 8 / quads(src); turn++) {
            UNROLL
            for (int k = 0; k < quads(src); k++, w += 128) {
                vi v[2];
                pairs(v, src, step, turn, k, z, table);
                vi_store(w, v[0]);
                vi_store(w + 64, v[1]);
            }
        }
    }
}
static void open_bf16(amx_panel *c, int64_t p, int64_t n)
{
    switch (c->src) {
        OPEN(open_pairs, W_U2)
        OPEN(open_pairs, W_U3)
        OPEN(open_pairs, W_U4)
    default:
        OPEN(open_pairs, W_U8)
    }
}

/* The products of one or two blocks of rows, from i on, with n inputs of weights w from p on, added
 * to acc or, `first`, in its place. `ask`: for weights to come. */
V16 void bf16_dot(amx_panel *c, const uint8_t *const w[AMX_TILES], int64_t p, int64_t n, int64_t i,
                  bool two, bool first, bool ask)
{
    const int64_t Kp = c->t->s.Kp, step = 2 * Kp;
    const uint16_t *x0 = c->t->x.b + row_of(c, i) * Kp + p,
                   *x1 = c->t->x.b + row_of(c, i + two) * Kp + p;
    amx_sums *acc = c->acc + i;
    if (first) {
        TILE_ZERO(0);
        TILE_ZERO(1);
    } else {
        TILE_LOAD(0, acc[0][0], 64);
        TILE_LOAD(1, acc[0][1], 64);
    }
    if (two && first) {
        TILE_ZERO(2);
        TILE_ZERO(3);
    } else if (two) {
        TILE_LOAD(2, acc[1][0], 64);
        TILE_LOAD(3, acc[1][1], 64);
    }
    for (int64_t k = 0; k < n; k += TILE_K) {
        const size_t at = (size_t)(2 * k * TILE_N);
        for (int j = 0; j < AMX_TILES && ask; j++)
            ask_step(w[j] + at, 2 * TILE_K * TILE_N);
        TILE_LOAD(4, x0 + k, step);
        TILE_LOAD(6, w[0] + at, 64);
        TILE_LOAD(7, w[1] + at, 64);
        TILE_DOT_BF16(0, 4, 6);
        TILE_DOT_BF16(1, 4, 7);
        if (two) {
            TILE_LOAD(5, x1 + k, step);
            TILE_DOT_BF16(2, 5, 6);
            TILE_DOT_BF16(3, 5, 7);
        }
    }
    TILE_STORE(0, acc[0][0], 64);
    TILE_STORE(1, acc[0][1], 64);
    if (two) {
        TILE_STORE(2, acc[1][0], 64);
        TILE_STORE(3, acc[1][1], 64);
    }
}

/* A group's sums join y. */
static void bf16_join(amx_panel *c, int64_t g)
{
    const vf s[AMX_TILES] = { load_scale(c->t, c->tile[0], g, 0),
                              load_scale(c->t, c->tile[1], g, 0) };
    for (int64_t i = 0; i < c->blocks; i++)
        for (int n = 0; n < AMX_TILES; n++)
            for (int64_t r = 0; r < c->R; r++) {
                float *y = c->y[i][n][r];
                vf_store(y, vf_fma(s[n], vf_load(c->acc[i][n][r]), vf_load(y)));
            }
}

static void bf16_product(amx_panel *c)
{
    const mm_task *t = c->t;
    const bool dense = c->src == W_BF16; /* whose tiles are operands */
    for (int64_t p = 0, n; p < t->s.Kp; p += n) {
        const int64_t g = p / t->s.Gp, left = (g + 1) * t->s.Gp - p;
        n = left < AMX_PAIRS ? left : AMX_PAIRS;
        const bool first = p % t->s.Gp == 0;
        const uint8_t *w[AMX_TILES];
        if (!dense) open_bf16(c, p, n);
        for (int k = 0; k < AMX_TILES; k++)
            w[k] = dense ? codes_at(t, c->tile[k], p) : c->w[k];
        for (int64_t i = 0; i < c->blocks; i += 2)
            if (i + 1 < c->blocks)
                bf16_dot(c, w, p, n, i, true, first, dense && i == 0);
            else
                bf16_dot(c, w, p, n, i, false, first, dense && i == 0);
        if (n == left) bf16_join(c, g);
    }
}

static void amx_mm_bf16(const mm_task *t)
{
    amx_walk(t, w_src_of(&t->w->scheme), AMX_BYTES, bf16_product);
}

/* ---- limits ---- */
#define AMX_PEAK(name, DOT, inputs)                                     \
    static double name(int64_t rounds)                                  \
    {                                                                   \
        configure(AMX_ROWS, AMX_BYTES);                                 \
        for (int64_t n = 0; n < rounds; n++) {                          \
            DOT(0, 4, 6);                                               \
            DOT(1, 4, 7);                                               \
            DOT(2, 5, 6);                                               \
            DOT(3, 5, 7);                                               \
        }                                                               \
        amx_release();                                                  \
        return 4.0 * 2 * AMX_ROWS * TILE_N * (inputs) * (double)rounds; \
    }
AMX_PEAK(amx_peak_i8, TILE_DOT_I8, AMX_BYTES)
AMX_PEAK(amx_peak_bf16, TILE_DOT_BF16, AMX_BYTES / 2)

const k_ops k_amx = {
    .name = "amx",
    .usable = cpu_has_amx,
    .mm_i8 = amx_mm_i8,
    .mm_bf16 = amx_mm_bf16,
    .peak_i8 = amx_peak_i8,
    .peak_bf16 = amx_peak_bf16,
};
