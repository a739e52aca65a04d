/* kernels/simd/mm_blocks_rows.h - mm_blocks of many rows: codes are unpacked once for all rows of a panel,
 * into bytes that stay in the first cache; part of mm_blocks.h.
 *
 *     w   [ MM_TILES ][ CHUNK inputs ][ 16 outputs ]   a byte each, four inputs of an output adjacent
 *     x   [ rows ][ CHUNK inputs ]                     the panel's
 *     y   [ tiles ][ rows ][ 16 ]                      goes on from one chunk to the next
 *
 * A chunk is one block of A inputs. An f32 sum that waits in memory between two steps is the same sum,
 * and sums of integers have no order, so the bytes are those of blocks_block. The zero point of a
 * row's group, -zero X, is what its sum of integers begins with.
 *
 * AVX2 without VNNI has no four-way dot product. Codes c less their middle m are so small that all products of a
 * group add up in 16 bits, twice for each output (as in mm_i8_rows_avx2.h):
 *
 *     codes    |c - m|   quads of a group
 *     6 bits     32      4:  4 * 2 * 32 * 127 = 32512
 *     5 bits     16      8:  8 * 2 * 16 * 127 = 32512     all below 32768
 *
 * Where a type has biases, m X is added back. Entries of tables are signed bytes.
 *
 * Rows are dealt out evenly to bodies of more than half of MM_ROWS (BLOCKS_BODIES, from the
 * includer), so that none is computed twice: 17 = 6 + 6 + 5.
 *
 * Included once per instruction set; no include guard on purpose. */
enum {
    BLOCKS_PANEL_ROWS = 80,  /* as I8_PANEL of mm.c */
    BLOCKS_PANEL_TILES = 16, /* whose y rest in the second cache */
    BLOCKS_CHUNK = 128,      /* every A divides it */
    BLOCKS_CHUNK_SUMS = BLOCKS_CHUNK / BLK_SUM,
    BLOCKS_FROM = 2 * MM_ROWS /* rows: fewer are few bodies, and bodies above half of MM_ROWS do */
};

typedef struct {
    float s[BLOCKS_CHUNK_SUMS][TILE_N], z[BLOCKS_CHUNK_SUMS][TILE_N]; /* of each group */
    uint8_t w[BLOCKS_CHUNK * TILE_N];
#if SUMS_OF_16_BITS
    uint8_t size[BLOCKS_CHUNK * TILE_N]; /* |w| of tables */
#endif
} blocks_codes;

typedef struct {
    _Alignas(64) blocks_codes tile[MM_TILES];
    _Alignas(64) int8_t x[BLOCKS_PANEL_ROWS][BLOCKS_CHUNK];
    float sx[BLOCKS_PANEL_ROWS];
    float sum[BLOCKS_CHUNK_SUMS][BLOCKS_PANEL_ROWS];     /* X of each group and row */
    int32_t start[BLOCKS_CHUNK_SUMS][BLOCKS_PANEL_ROWS]; /* what its sums begin with */
    float back;                                          /* times X: what sums of integers lack */
    int64_t groups;
    float (*y)[BLOCKS_PANEL_ROWS][TILE_N]; /* of the tiles at work */
} blocks_chunk;

/* What integer sums have taken off each code when they end, and where that is not the zero point,
 * what is given back. */
V16 int blocks_middle(const blk_type *type)
{
    if (type->table) return is_signed(W_LUT4) || SUMS_OF_16_BITS ? 0 : 128;
    if (SUMS_OF_16_BITS && type->bits == 5) return 16;
    return type->bias ? 0 : type->zero;
}

/* n inputs of a tile from p on. `next`: codes to ask for. */
V16 void blocks_open_tile(blocks_codes *c, const mm_task *t, int has, int64_t tile, int64_t p,
                          int64_t n)
{
    const blk_type *type = blk_find(t->w->scheme.blocks);
    const int parts = has & B_16 ? 2 : 1, halves = has & B_BIAS ? 2 : 1;
    blocks_tile at = blocks_begin(t, type, tile);
    at.codes += (size_t)(p / TILE_K) * t->s.step_bytes;
    at.d += p / type->elements * halves * TILE_N * 2;
    if (at.sc) at.sc += p / type->group * TILE_N;
    if (at.m) at.m += p / type->group * TILE_N;
    at.min = vf_set1(0);
    const vi table = blocks_table(type, has);
    uint8_t *w = c->w;
    for (int64_t k = p, g = 0; k < p + n; k += TILE_K, at.codes += t->s.step_bytes) {
        if (k == p || k % type->elements == 0) blocks_next(&at, type, has);
        for (int part = 0; part < parts; part++, g++) {
            vf s, z;
            blocks_group(&s, &z, &at, has);
            vf_store(c->s[g], s);
            if (has & B_BIAS) vf_store(c->z[g], z);
        }
        UNROLL
        for (int q = 0; q < 8; q++, w += 64) {
            vi v = blocks_unpack(at.codes, has, q);
            if (has & B_TABLE) v = vi_lookup(table, v);
#if SUMS_OF_16_BITS
            if (has & B_TABLE) {
                v = vi_xor(v, signs());
                vi_store(c->size + (w - c->w), (vi){ _mm256_abs_epi8(v.a), _mm256_abs_epi8(v.b) });
            }
#endif
            vi_store(w, v);
        }
    }
}

#if SUMS_OF_16_BITS
/* -middle times the sums of pairs of n inputs, 16 bits twice. */
V16 int32_t blocks_start(const int8_t *x, int64_t n, int middle, float X)
{
    (void)X;
    const __m128i m = _mm_set1_epi8((char)middle);
    __m128i sum = _mm_maddubs_epi16(m, _mm_loadu_si128((const void *)x));
    if (n == 32)
        sum = _mm_add_epi16(sum, _mm_maddubs_epi16(m, _mm_loadu_si128((const void *)(x + 16))));
    return start_of(sum);
}
V16 void blocks_dots(vi dot[][MAX_T], const blocks_chunk *c, int has, int64_t g, int64_t row,
                     int quads, int RM, int NT)
{
    UNROLL
    for (int r = 0; r < RM; r++) {
        UNROLL
        for (int n = 0; n < NT; n++)
            dot[r][n] = has & B_TABLE ? vi_set1(0) : vi_set1(c->start[g][row + r]);
    }
    UNROLL
    for (int q = 0; q < quads; q++) {
        const int64_t at = g * quads + q;
        UNROLL
        for (int n = 0; n < NT; n++) {
            const vi w = vi_load(c->tile[n].w + 64 * at);
            UNROLL
            for (int r = 0; r < RM; r++) {
                const vi x = vi_word(c->x[row + r] + 4 * at);
                dot[r][n] = has & B_TABLE
                                ? vi_dot_signed(dot[r][n], w, vi_load(c->tile[n].size + 64 * at), x)
                                : vi_add_products(dot[r][n], w, x);
            }
        }
    }
    if (has & B_TABLE) return;
    UNROLL
    for (int r = 0; r < RM; r++) {
        UNROLL
        for (int n = 0; n < NT; n++)
            dot[r][n] = vi_fold16(vi_set1(0), dot[r][n]);
    }
}
#else
V16 int32_t blocks_start(const int8_t *x, int64_t n, int middle, float X)
{
    (void)x;
    (void)n;
    return -middle * (int32_t)X;
}
V16 void blocks_dots(vi dot[][MAX_T], const blocks_chunk *c, int has, int64_t g, int64_t row,
                     int quads, int RM, int NT)
{
    UNROLL
    for (int r = 0; r < RM; r++) {
        UNROLL
        for (int n = 0; n < NT; n++)
            dot[r][n] = vi_set1(has & B_BIAS ? 0 : c->start[g][row + r]);
    }
    UNROLL
    for (int q = 0; q < quads; q++) {
        const int64_t at = g * quads + q;
        vi w[MAX_T];
        UNROLL
        for (int n = 0; n < NT; n++)
            w[n] = vi_load(c->tile[n].w + 64 * at);
        UNROLL
        for (int r = 0; r < RM; r++) {
            const vi x = vi_word(c->x[row + r] + 4 * at);
            UNROLL
            for (int n = 0; n < NT; n++)
                dot[r][n] = blocks_stay(vi_dot(dot[r][n], w[n], x, has & B_TABLE ? W_LUT4 : W_U4));
        }
    }
}
#endif

/* The panel's inputs p..p+n of rows m0..m0+rows. */
static inline void blocks_open_rows(blocks_chunk *c, const mm_task *t, int64_t m0, int64_t rows,
                                    int64_t p, int64_t n)
{
    const blk_type *type = blk_find(t->w->scheme.blocks);
    const int64_t K = t->s.Kp, per = type->group / BLK_SUM;
    const int middle = blocks_middle(type);
    for (int64_t r = 0; r < rows; r++) {
        const float *sum = t->x.qs + ((m0 + r) * K + p) / BLK_SUM;
        memcpy(c->x[r], t->x.q + (m0 + r) * K + p, (size_t)n);
        c->sx[r] = t->x.s[((m0 + r) * K + p) / t->x.A];
        for (int64_t g = 0; g < c->groups; g++) {
            const float X = per == 1 ? sum[g] : sum[2 * g] + sum[2 * g + 1];
            c->sum[g][r] = X;
            c->start[g][r] = blocks_start(c->x[r] + g * type->group, type->group, middle, X);
        }
    }
}

/* RM rows of NT tiles, in all groups of the chunk. */
V16 void blocks_rows(const blocks_chunk *c, int has, int64_t row, int RM, int NT)
{
    const int quads = has & B_16 ? 4 : 8;
    vf acc[MAX_R][MAX_T];
    UNROLL
    for (int r = 0; r < RM; r++) {
        UNROLL
        for (int n = 0; n < NT; n++)
            acc[r][n] = vf_set1(0);
    }
    for (int64_t g = 0; g < c->groups; g++) {
        vi dot[MAX_R][MAX_T];
        blocks_dots(dot, c, has, g, row, quads, RM, NT);
        UNROLL
        for (int r = 0; r < RM; r++) {
            const vf X = vf_set1(c->sum[g][row + r]);
            UNROLL
            for (int n = 0; n < NT; n++) {
                vf v = vf_from_vi(dot[r][n]);
                if (SUMS_OF_16_BITS && (has & B_BIAS)) v = vf_fma(vf_set1(c->back), X, v);
                acc[r][n] = vf_fma(vf_load(c->tile[n].s[g]), v, acc[r][n]);
                if (has & B_BIAS) acc[r][n] = vf_fma(vf_load(c->tile[n].z[g]), X, acc[r][n]);
            }
        }
    }
    UNROLL
    for (int r = 0; r < RM; r++) {
        const vf s = vf_set1(c->sx[row + r]);
        UNROLL
        for (int n = 0; n < NT; n++) {
            float *y = c->y[n][row + r];
            vf_store(y, vf_fma(s, acc[r][n], vf_load(y)));
        }
    }
}

/* How to multiply a type: B_16, B_TABLE and B_BIAS of it. */
#define BLOCKS_WAYS(X)        \
    X(32, 0)                  \
    X(32_BIAS, B_BIAS)        \
    X(32_TABLE, B_TABLE)      \
    X(16, B_16)               \
    X(16_BIAS, B_16 | B_BIAS) \
    X(16_TABLE, B_16 | B_TABLE)
typedef void blocks_body(const blocks_chunk *c, int64_t row);
#define BLOCKS_BODY(name, has, RM)                                                                 \
    static __attribute__((noinline)) void blocks_##name##_##RM(const blocks_chunk *c, int64_t row) \
    {                                                                                              \
        blocks_rows(c, has, row, RM, MM_TILES);                                                    \
    }
#define BLOCKS_ROWS_BODIES(name, has) BLOCKS_BODIES(BLOCKS_BODY, name, has)
#define BLOCKS_ENTRY(name, has, RM) [RM] = blocks_##name##_##RM,
#define BLOCKS_ROWS_ENTRY(name, has) [has] = { BLOCKS_BODIES(BLOCKS_ENTRY, name, has) },
BLOCKS_WAYS(BLOCKS_ROWS_BODIES)
static blocks_body *const blocks_rows_bodies[B_ALL][MAX_R + 1] = { BLOCKS_WAYS(BLOCKS_ROWS_ENTRY) };

typedef void blocks_opener(blocks_codes *c, const mm_task *t, int64_t tile, int64_t p, int64_t n);
#define BLOCKS_OPENER(name, has)                                                                 \
    static __attribute__((noinline)) void blocks_open_##name(blocks_codes *c, const mm_task *t,  \
                                                             int64_t tile, int64_t p, int64_t n) \
    {                                                                                            \
        blocks_open_tile(c, t, has, tile, p, n);                                                 \
    }
BLOCK_SOURCES(BLOCKS_OPENER)
#define BLOCKS_OPENER_ENTRY(name, has) [has] = blocks_open_##name,
static blocks_opener *const blocks_openers[B_ALL] = { BLOCK_SOURCES(BLOCKS_OPENER_ENTRY) };

/* Rows m0..m0+rows of tiles t0..t1: a panel and BLOCKS_PANEL_TILES at most. */
static inline void blocks_panel(const mm_task *t, int has, int64_t m0, int64_t rows, int64_t t0,
                                int64_t t1)
{
    float y[BLOCKS_PANEL_TILES][BLOCKS_PANEL_ROWS][TILE_N];
    blocks_chunk c;
    const blk_type *type = blk_find(t->w->scheme.blocks);
    const int64_t A = t->x.A, bodies = lq_ceil_div(rows, MM_ROWS);
    c.groups = A / type->group;
    c.back = (float)(type->bias ? blocks_middle(type) : 0);
    for (int64_t i = 0; i < t1 - t0; i++)
        memset(y[i], 0, (size_t)rows * sizeof *y[i]);
    for (int64_t p = 0; p < t->s.Kp; p += A) {
        blocks_open_rows(&c, t, m0, rows, p, A);
        for (int64_t tile = t0; tile < t1; tile += MM_TILES) {
            for (int64_t n = 0; n < MM_TILES; n++)
                blocks_openers[has](&c.tile[n], t, tile + n < t1 ? tile + n : t1 - 1, p, A);
            c.y = y + (tile - t0);
            for (int64_t i = 0, row = 0, n; i < bodies; i++, row += n) {
                n = lq_ceil_div(rows - row, bodies - i);
                blocks_rows_bodies[has & ~B_BITS][n](&c, row);
            }
        }
    }
    for (int64_t m = 0; m < rows; m++)
        for (int64_t i = 0; i < t1 - t0; i++) {
            const block b = { .tile[0] = t0 + i, .m[0] = m0 + m, .rows = 1, .tiles = 1 };
            const vf v = vf_load(y[i][m]);
            block_store(t, &b, &v, 1);
        }
}

static inline void blocks_panels(const mm_task *t, int has)
{
    const int64_t panels = lq_ceil_div(t->m1 - t->m0, BLOCKS_PANEL_ROWS);
    for (int64_t i = 0, m = t->m0, rows; i < panels; i++, m += rows) {
        rows = lq_ceil_div(t->m1 - m, panels - i);
        for (int64_t tile = t->t0; tile < t->t1; tile += BLOCKS_PANEL_TILES)
            blocks_panel(t, has, m, rows, tile,
                         tile + BLOCKS_PANEL_TILES < t->t1 ? tile + BLOCKS_PANEL_TILES : t->t1);
    }
}
