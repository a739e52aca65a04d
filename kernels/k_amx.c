/* kernels/k_amx.c - MM_I8 by AMX: products of 16 rows, 16 outputs and 64 inputs; few rows, and all
 * other operations, are AVX-512's.
 *
 * The codes of a block of A inputs of two tiles are unpacked once for all rows of a panel; each is
 * a B operand as it lies (four inputs of 16 outputs side by side), and rows of activations are A
 * operands where they lie. Two blocks of rows by two tiles are four registers of sums:
 *
 *                     tile 0   tile 1          w: 6, 7   [ A/4 ][ 16 outputs ][ 4 ]
 *     rows 0..R-1       0        1       x: 4            [ R ][ A ]
 *     rows R..2R-1      2        3       x: 5
 *
 * Sums of a block of A inputs are exact integers; they leave the tiles through memory and join y as
 * in the other families: the bytes are the same. Rows are dealt out in blocks of R, 16 or fewer,
 * and the last block may begin in the one before: what it computes twice is stored once. */
#include "kernels/mm_shape512.h"

#include "kernels/mm_tmpl.h"

#include "kernels/amx.h"
#include "kernels/cpu.h"

enum {
    AMX_FROM = 6, /* rows: with fewer, products with vectors take no longer */
    AMX_ROWS = 16,
    AMX_PANEL = 96,
    AMX_TILES = 2,
    AMX_DOT = 64, /* inputs of a product */
    AMX_A = 128   /* inputs of a block at most */
};

typedef struct {
    const mm_task *t;
    w_src src;
    bool no_zeros;
    int64_t m0, M, R;        /* the panel's rows, and those of a block */
    int64_t A, nb, n;        /* inputs of a block; blocks of a row; inputs unpacked at once */
    int64_t tile[AMX_TILES]; /* at work */
    int stored;              /* of them; the other repeats the last */
    _Alignas(64) uint8_t w[AMX_TILES][AMX_A * TILE_N];
    _Alignas(64) int32_t dot[2][AMX_TILES][AMX_ROWS][TILE_N];
    _Alignas(64) float y[AMX_PANEL][AMX_TILES][TILE_N], acc[AMX_PANEL][AMX_TILES][TILE_N];
} amx_panel;

/* A block of inputs: its number in a row, and what its sums are multiplied with. */
typedef struct {
    int64_t at;
    bool first, last; /* of a group */
    vf s[AMX_TILES], z[AMX_TILES];
} amx_block;

static void configure(int64_t R, int64_t inputs)
{
    amx_config c = { .palette = 1 };
    for (int i = 0; i < 8; i++) {
        c.rows[i] = (uint8_t)(i < 6 ? R : inputs / 4);
        c.row_bytes[i] = (uint16_t)(i == 4 || i == 5 ? inputs : 4 * TILE_N);
    }
    amx_configure(&c);
}

/* w := the codes of inputs p..p+n of a tile, for which those that come next are asked for. */
V16 void open_codes(uint8_t *w, const mm_task *t, w_src src, int64_t tile, int64_t p, int64_t n)
{
    const vi table = vi_table(t->o.w->table.t);
    const uint8_t *step = (const uint8_t *)t->w->plane[QT_CODES].data +
                          (size_t)tile * t->s.tile_bytes + (size_t)(p / TILE_K) * t->s.step_bytes;
    for (int64_t i = 0; i < n; i += TILE_K, step += t->s.step_bytes) {
        for (size_t b = 0; b < t->s.step_bytes; b += 64)
            v16_prefetch(step + AHEAD + b);
        for (int turn = 0; turn < 8 / quads(src); turn++)
            UNROLL for (int k = 0; k < quads(src); k++, w += 64)
            {
                const vi v = unpack(step, src, turn, k);
                vi_store(w, w_table(src) ? vi_lookup(table, v) : v);
            }
    }
}
#define OPEN(SRC)                                                \
    case SRC:                                                    \
        for (int i = 0; i < AMX_TILES; i++)                      \
            open_codes(c->w[i], c->t, SRC, c->tile[i], p, c->n); \
        break;
static void open_tiles(amx_panel *c, int64_t p)
{
    switch (c->src) {
        OPEN(W_U2)
        OPEN(W_U3)
        OPEN(W_U4)
        OPEN(W_LUT4)
        OPEN(W_LUT4S)
        OPEN(W_NV4)
    default:
        OPEN(W_U8)
    }
}

/* First row, in the panel, of its block i. */
static int64_t first_of(const amx_panel *c, int64_t i)
{
    return i * c->R < c->M - c->R ? i * c->R : c->M - c->R;
}

/* dot := the products of one or two blocks of rows, from i on, with the A inputs at `w` of both
 * tiles' codes. */
V16 void amx_dot(amx_panel *c, const amx_block *b, int64_t i, size_t w, bool two)
{
    const int64_t Kp = c->t->s.Kp, n = c->A < AMX_DOT ? c->A : AMX_DOT;
    const int8_t *x = c->t->x.q + b->at * c->A, *x0 = x + (c->m0 + first_of(c, i)) * Kp,
                 *x1 = x + (c->m0 + first_of(c, i + two)) * Kp;
    TILE_ZERO(0);
    TILE_ZERO(1);
    if (two) {
        TILE_ZERO(2);
        TILE_ZERO(3);
    }
    for (int64_t k = 0; k < c->A; k += n) {
        const size_t at = w + (size_t)(k * TILE_N);
        TILE_LOAD(4, x0 + k, Kp);
        TILE_LOAD(6, c->w[0] + at, 64);
        TILE_LOAD(7, c->w[1] + at, 64);
        TILE_DOT(0, 4, 6);
        TILE_DOT(1, 4, 7);
        if (two) {
            TILE_LOAD(5, x1 + k, Kp);
            TILE_DOT(2, 5, 6);
            TILE_DOT(3, 5, 7);
        }
    }
    TILE_STORE(0, c->dot[0][0], 64);
    TILE_STORE(1, c->dot[0][1], 64);
    if (two) {
        TILE_STORE(2, c->dot[1][0], 64);
        TILE_STORE(3, c->dot[1][1], 64);
    }
}

/* The products of row block i, dot, join its sums, but for rows that the one before had. */
V16 void amx_fold(amx_panel *c, const amx_block *b, int64_t i, int32_t (*dot)[AMX_ROWS][TILE_N],
                  bool one)
{
    const int64_t first = first_of(c, i), begin = i * c->R;
    const float *s = c->t->x.s + (c->m0 + begin) * c->nb + b->at,
                *sum = c->t->x.qs + (c->m0 + begin) * c->nb + b->at;
    for (int64_t m = begin; m < first + c->R; m++, s += c->nb, sum += c->nb) {
        const vf X = vf_set1(*sum), sx = vf_set1(*s);
        UNROLL for (int n = 0; n < AMX_TILES; n++)
        {
            const vi D = vi_load(dot[n][m - first]);
            const vf v = less_zeros(D, b->z[n], X, c->src, c->no_zeros);
            float *acc = c->acc[m][n], *y = c->y[m][n];
            const vf sums = vf_fma(sx, v, one || b->first ? vf_set1(0) : vf_load(acc));
            if (one || b->last)
                vf_store(y, vf_fma(b->s[n], sums, vf_load(y)));
            else
                vf_store(acc, sums);
        }
    }
}

/* A block of inputs, whose codes lie at `w`, for all rows. `one`: it is a group. */
V16 void amx_rows(amx_panel *c, const amx_block *b, size_t w, bool one)
{
    const int64_t blocks = lq_ceil_div(c->M, c->R);
    int64_t i = 0;
    for (; i + 1 < blocks; i += 2) {
        amx_dot(c, b, i, w, true);
        amx_fold(c, b, i, c->dot[0], one);
        amx_fold(c, b, i + 1, c->dot[1], one);
    }
    if (i == blocks) return;
    amx_dot(c, b, i, w, false);
    amx_fold(c, b, i, c->dot[0], one);
}

/* Both tiles' sums of the panel's rows, to where they go. */
static void amx_tiles(amx_panel *c)
{
    const mm_task *t = c->t;
    const int64_t Kp = t->s.Kp, per_group = t->s.Gp / w_subs(c->src) / c->A;
    memset(c->y, 0, (size_t)c->M * sizeof *c->y);
    for (int64_t p = 0; p < Kp; p += c->n) {
        open_tiles(c, p);
        for (int64_t q = 0; q < c->n; q += c->A) {
            amx_block b = { .at = (p + q) / c->A };
            const int64_t i = b.at / per_group, g = i / w_subs(c->src), sub = i % w_subs(c->src);
            b.first = b.at % per_group == 0;
            b.last = b.at % per_group == per_group - 1;
            for (int n = 0; n < AMX_TILES; n++) {
                b.s[n] = load_scale_i8(t, c->tile[n], g, sub, c->src);
                b.z[n] = load_zero(t, c->tile[n], g, c->src);
            }
            const size_t w = (size_t)(q * TILE_N);
            if (per_group == 1)
                amx_rows(c, &b, w, true);
            else
                amx_rows(c, &b, w, false);
        }
    }
    for (int64_t m = 0; m < c->M; m++) {
        const block to = {
            .m = { c->m0 + m }, .tile = { c->tile[0], c->tile[1] }, .rows = 1, .tiles = c->stored
        };
        const vf sums[AMX_TILES] = { vf_load(c->y[m][0]), vf_load(c->y[m][1]) };
        block_store(t, &to, sums, AMX_TILES);
    }
}

static void amx_mm_i8(const mm_task *t)
{
    const int64_t M = t->m1 - t->m0, panels = lq_ceil_div(M, AMX_PANEL);
    if (M < AMX_FROM) {
        k_vnni.mm_i8(t);
        return;
    }
    amx_panel c;
    c.t = t;
    c.src = w_src_i8(t);
    c.no_zeros = t->w->scheme.zero == QT_ZERO_NONE;
    c.A = t->x.A;
    c.nb = t->s.Kp / c.A;
    c.n = c.A < TILE_K ? TILE_K : c.A;
    c.m0 = t->m0;
    for (int64_t i = 0; i < panels; i++, c.m0 += c.M) {
        c.M = lq_ceil_div(t->m1 - c.m0, panels - i); /* even ones */
        c.R = lq_ceil_div(c.M, lq_ceil_div(c.M, AMX_ROWS));
        configure(c.R, c.A < AMX_DOT ? c.A : AMX_DOT);
        for (int64_t tile = t->t0; tile < t->t1; tile += AMX_TILES) {
            c.stored = t->t1 - tile < AMX_TILES ? (int)(t->t1 - tile) : AMX_TILES;
            c.tile[0] = tile;
            c.tile[1] = tile + c.stored - 1;
            amx_tiles(&c);
        }
    }
    amx_release();
}

static double amx_peak_i8(int64_t rounds)
{
    configure(AMX_ROWS, AMX_DOT);
    for (int64_t n = 0; n < rounds; n++) {
        TILE_DOT(0, 4, 6);
        TILE_DOT(1, 4, 7);
        TILE_DOT(2, 5, 6);
        TILE_DOT(3, 5, 7);
    }
    amx_release();
    return 4.0 * 2 * AMX_ROWS * TILE_N * AMX_DOT * (double)rounds;
}

const k_ops k_amx = {
    .name = "amx", .usable = cpu_has_amx, .mm_i8 = amx_mm_i8, .peak_i8 = amx_peak_i8
};
