/* kernels/x86/mm_i8_rows_avx2.h - MM_I8 for many rows on AVX2: codes are unpacked once for all rows of
 * a panel, into blocks that stay in the first cache; part of mm_i8_avx2.h.
 *
 *     w  [ CHUNK inputs    ][ 16 outputs   ]   a byte each, for all rows of the panel
 *     x  [ rows            ][ CHUNK inputs ]   the panel's, a body's rows side by side
 *     y, acc [ tiles ][ rows ][ 16 ]           go on from one chunk to the next
 *
 * Loads of different lines that are equally far from the start of a page slow each other down,
 * though the cache has room for both: so codes have the first half of a page, activations the
 * second.
 *
 * Codes c below 32 are summed less their middle m, so that twice as many fit 16 bits. The sum of
 * (c - m) x is the sum of c x, begun with -m times the sum of x: on its way it may wrap around, at
 * its end it fits:
 *
 *     codes    |c - m|   quads summed before a fold
 *     4 bits      8      16: 16 * 2 *  8 * 127 = 32512
 *     3 bits      4      32: 32 * 2 *  4 * 127 = 32512
 *     2 bits      2      32 (all of a block): 16256
 *     tables     15       8:  8 * 2 * 15 * 127 = 30480     all below 32768
 *
 * The integers that reach f32 are smaller, and exact as before; so are sums that rest in memory
 * between two steps: the bytes are those of i8_block_avx2. A body takes 3 or 4 rows (8 sums, two
 * vectors of codes, an activation and a product; with 5 rows compilers spill). Rows are dealt out
 * evenly, so that none is computed twice: 13 = 4 + 3 + 3 + 3.
 *
 * Included once per instruction set; no include guard on purpose. */
enum {
    PANEL_FROM = 12, /* rows: with fewer, unpacking ahead costs more than it saves */
    BODY_ROWS = 4,   /* or one less */
    PANEL_BODIES = 20,
    PANEL_ROWS = PANEL_BODIES * BODY_ROWS,
    PANEL_TILES = 16,
    CHUNK = 128, /* a multiple of every A */
    CHUNK_BLOCKS = CHUNK / 16,
    PAGE_BODIES = 4
};

typedef struct {
    uint8_t w[CHUNK * TILE_N]; /* of the first page: codes, four inputs of 16 outputs side by side;
                                  of the second: |w| of codes of 8 bits */
    int8_t x[PAGE_BODIES][BODY_ROWS][CHUNK];
} i8_page;
static_assert(sizeof(i8_page) == 4096 && offsetof(i8_page, x) == 2048, "halves of a page");

/* One tile's codes of a chunk, and all rows' activations. */
typedef struct {
    _Alignas(64) i8_page page[PANEL_BODIES / PAGE_BODIES];
    float s[CHUNK_BLOCKS][TILE_N], z[CHUNK_BLOCKS][TILE_N]; /* of each block of A inputs */
    int32_t start[CHUNK_BLOCKS][PANEL_ROWS]; /* what sums begin with, 16 bits twice */
    float middle;                            /* of the codes */
    const float *xs, *xsum;                  /* of the chunk's first block; */
    int64_t nb;                              /* floats from row to row */
    int64_t n, A;                            /* blocks */
    int64_t group, at; /* blocks of a group; how many of the first one's came before */
    float (*y)[TILE_N], (*acc)[TILE_N]; /* of the panel's rows; acc: of the group at work */
} i8_chunk;

typedef struct {
    vi row[BODY_ROWS];
} i8_rows;

/* Quads whose products add up in 16 bits; 0: none, bytes are signed. */
V16 int quads_per_fold(w_src src)
{
    return is_signed(src) ? 0 : src == W_U4 ? 16 : src == W_LUT4S ? 8 : src == W_NV4 ? 4 : 32;
}
V16 int middle(w_src src)
{
    return is_signed(src) ? 128 : w_table(src) ? 15 : 1 << (w_bits(src) - 1);
}
/* Inputs of a sum of 16 bits. */
V16 int64_t inputs_per_fold(w_src src, int64_t A)
{
    const int64_t n = 4 * quads_per_fold(src);
    return n < A ? n : A;
}

/* The c->n * c->A inputs from p0 on of a tile: codes, scales and zero points. `next`, what comes
 * after them, is asked for. */
V16 void open_chunk(i8_chunk *c, const mm_task *t, w_src src, int64_t tile, int64_t p0,
                    const uint8_t *next)
{
    const vi table = vi_table(t->o.w->table.t);
    const uint8_t *step = (const uint8_t *)t->w->plane[QT_CODES].data +
                          (size_t)tile * t->s.tile_bytes + (size_t)(p0 / TILE_K) * t->s.step_bytes;
    for (int64_t p = 0; p < c->n * c->A; p += TILE_K, step += t->s.step_bytes) {
        uint8_t *w = c->page[0].w + p * TILE_N, *size = c->page[1].w + p * TILE_N;
        for (size_t i = 0; i < t->s.step_bytes; i += 64, next += 64)
            v16_prefetch(next);
        for (int turn = 0; turn < 8 / quads(src); turn++) {
            UNROLL
            for (int k = 0; k < quads(src); k++, w += 64, size += 64) {
                vi v = unpack(step, src, turn, k);
                if (w_table(src)) v = vi_lookup(table, v);
                if (is_signed(src)) {
                    v = vi_xor(v, signs());
                    vi_store(size, (vi){ _mm256_abs_epi8(v.a), _mm256_abs_epi8(v.b) });
                }
                vi_store(w, v);
            }
        }
    }
    for (int64_t b = 0, p = p0; b < c->n; b++, p += c->A) {
        const int64_t g = p / t->s.Gp, sub = p % t->s.Gp / (t->s.Gp / w_subs(src));
        vf_store(c->s[b], load_scale_i8(t, tile, g, sub, src));
        vf_store(c->z[b], load_zero(t, tile, g, src));
    }
}

/* RM rows of sums of 16 bits: + the products with n quads. Both products of a row come before
 * either is added: processors deal instructions out to their units in that order best. */
V16 void add_quads(vi *sum, const uint8_t *w, const int8_t *x, int n, int RM)
{
    UNROLL
    for (int k = 0; k < n; k++) {
        const vi v = vi_load(w + 64 * k);
        UNROLL
        for (int r = 0; r < RM; r++) {
            __m256i a = vi_word(x + r * CHUNK + 4 * k).a, b;
            __asm__("vpmaddubsw %[a], %[wb], %[b]\n\t"
                    "vpmaddubsw %[a], %[wa], %[a]\n\t"
                    "vpaddw %[b], %[sb], %[sb]\n\t"
                    "vpaddw %[a], %[sa], %[sa]"
                    : [a] "+x"(a), [b] "=&x"(b), [sa] "+x"(sum[r].a), [sb] "+x"(sum[r].b)
                    : [wa] "x"(v.a), [wb] "x"(v.b));
        }
    }
}
/* The same begun anew; n: 4 or a multiple of 8. */
V16 void sum_quads(vi *sum, const uint8_t *w, const int8_t *x, const int32_t *start, int64_t n,
                   int RM)
{
    UNROLL
    for (int r = 0; r < RM; r++)
        sum[r] = vi_word(start + r);
    if (n < 8) {
        add_quads(sum, w, x, 4, RM);
        return;
    }
    for (int64_t q = 0; q < n; q += 8)
        add_quads(sum, w + 64 * q, x + 4 * q, 8, RM);
}
/* RM rows' dot products with two folds. */
V16 void dot_twice(vi *dot, const uint8_t *w, const int8_t *x, const int32_t *start, int fold,
                   int RM)
{
    i8_rows first;
    sum_quads(dot, w, x, start, fold, RM);
    UNROLL
    for (int r = 0; r < RM; r++)
        first.row[r] = dot[r];
    __asm__("" : "+m"(first)); /* stay there: registers hold the second */
    sum_quads(dot, w + 64 * fold, x + 4 * fold, start + PANEL_ROWS, fold, RM);
    UNROLL
    for (int r = 0; r < RM; r++)
        dot[r] = vi_fold16(vi_fold16(vi_set1(0), first.row[r]), dot[r]);
}
/* The same with n quads: `fold` at most, or an even number of them. */
V16 void dot_small(vi *dot, const uint8_t *w, const int8_t *x, const int32_t *start, int64_t n,
                   int fold, int RM)
{
    enum { MOST = 128 / 4 };      /* quads of a block */
    if (fold == 4 || n <= fold) { /* 4: all that there are, of nvfp4 */
        sum_quads(dot, w, x, start, fold == 4 ? 4 : n, RM);
        UNROLL
        for (int r = 0; r < RM; r++)
            dot[r] = vi_fold16(vi_set1(0), dot[r]);
        return;
    }
    dot_twice(dot, w, x, start, fold, RM);
    for (int64_t q = 2 * fold; 2 * fold < MOST && q < n; q += 2 * fold) {
        i8_rows before;
        UNROLL
        for (int r = 0; r < RM; r++)
            before.row[r] = dot[r];
        start += 2 * PANEL_ROWS;
        dot_twice(dot, w + 64 * q, x + 4 * q, start, fold, RM);
        UNROLL
        for (int r = 0; r < RM; r++)
            dot[r] = vi_add(dot[r], before.row[r]);
    }
}

V16 void dot_signed(vi *dot, const uint8_t *w, const uint8_t *size, const int8_t *x, int64_t n,
                    int RM)
{
    UNROLL
    for (int r = 0; r < RM; r++)
        dot[r] = vi_set1(0);
    for (int64_t q = 0; q < n; q += 4, x += 16, w += 256, size += 256) {
        UNROLL
        for (int k = 0; k < 4; k++) {
            const vi v = vi_load(w + 64 * k), a = vi_load(size + 64 * k);
            UNROLL
            for (int r = 0; r < RM; r++)
                dot[r] = vi_dot_signed(dot[r], v, a, vi_word(x + r * CHUNK + 4 * k));
        }
    }
}

/* Block b's dot products, of codes less their middle, join the sums of RM rows. no_zeros: the
 * middle is the zero point. */
V16 void end_block(const i8_chunk *c, const vi *dot, int64_t b, int64_t row, bool no_zeros, int RM)
{
    const float *xs = c->xs + row * c->nb + b, *xsum = c->xsum + row * c->nb + b;
    float(*y)[TILE_N] = c->y + row, (*acc)[TILE_N] = c->acc + row;
    const vf s = vf_load(c->s[b]), z = vf_load(c->z[b]), zero = vf_set1(0);
    vf v[BODY_ROWS];
    UNROLL
    for (int r = 0; r < RM; r++)
        v[r] = vf_from_vi(dot[r]);
    if (!no_zeros) {
        UNROLL
        for (int r = 0; r < RM; r++) {
            const vf X = vf_set1(xsum[r * c->nb]);
            v[r] = vf_fnma(z, X, vf_fma(vf_set1(c->middle), X, v[r])); /* the inner one is exact */
        }
    }
    if (c->group == 1) {
        UNROLL
        for (int r = 0; r < RM; r++) {
            const vf sum = vf_fma(vf_set1(xs[r * c->nb]), v[r], zero);
            vf_store(y[r], vf_fma(s, sum, vf_load(y[r])));
        }
        return;
    }
    UNROLL
    for (int r = 0; r < RM; r++)
        vf_store(acc[r], vf_fma(vf_set1(xs[r * c->nb]), v[r], vf_load(acc[r])));
    if ((c->at + b + 1) % c->group) return;
    UNROLL
    for (int r = 0; r < RM; r++) {
        vf_store(y[r], vf_fma(s, vf_load(acc[r]), vf_load(y[r])));
        vf_store(acc[r], zero);
    }
}

/* Body i of the panel, whose first row is `row`. */
V16 void chunk_rows(const i8_chunk *c, int64_t i, int64_t row, bool no_zeros, int fold, int RM)
{
    const int8_t *x = c->page[i / PAGE_BODIES].x[i % PAGE_BODIES][0];
    const int64_t n = c->A / 4, folds = fold ? lq_ceil_div(n, fold) : 0;
    for (int64_t b = 0; b < c->n; b++, x += c->A) {
        vi dot[BODY_ROWS];
        const int64_t at = b * c->A * TILE_N;
        if (fold)
            dot_small(dot, c->page[0].w + at, x, c->start[b * folds] + row, n, fold, RM);
        else
            dot_signed(dot, c->page[0].w + at, c->page[1].w + at, x, n, RM);
        end_block(c, dot, b, row, no_zeros, RM);
    }
}

/* How `rows`, PANEL_FROM at least, are dealt out: `wide` bodies of BODY_ROWS, the others one less.
 */
typedef struct {
    int64_t bodies, wide;
} i8_bodies;
static inline i8_bodies bodies_of(int64_t rows)
{
    const int64_t n = lq_ceil_div(rows, BODY_ROWS);
    return (i8_bodies){ .bodies = n, .wide = rows - n * (BODY_ROWS - 1) };
}
static inline int64_t first_row(const i8_bodies *d, int64_t i)
{
    return i * (BODY_ROWS - 1) + (i < d->wide ? i : d->wide);
}

/* All rows of a panel. A function of its own for each way of folding. */
#define CHUNK_PANEL(name, fold)                                                       \
    static __attribute__((noinline)) void name(const i8_chunk *c, const i8_bodies *d, \
                                               bool no_zeros)                         \
    {                                                                                 \
        for (int64_t i = 0; i < d->wide; i++)                                         \
            chunk_rows(c, i, first_row(d, i), no_zeros, fold, BODY_ROWS);             \
        for (int64_t i = d->wide; i < d->bodies; i++)                                 \
            chunk_rows(c, i, first_row(d, i), no_zeros, fold, BODY_ROWS - 1);         \
    }
CHUNK_PANEL(panel_signed, 0)
CHUNK_PANEL(panel_4, 4)
CHUNK_PANEL(panel_8, 8)
CHUNK_PANEL(panel_16, 16)
CHUNK_PANEL(panel_32, 32)

V16 void chunk_panel(const i8_chunk *c, const i8_bodies *d, bool no_zeros, w_src src)
{
    switch (quads_per_fold(src)) {
    case 0:
        panel_signed(c, d, no_zeros);
        break;
    case 4:
        panel_4(c, d, no_zeros);
        break;
    case 8:
        panel_8(c, d, no_zeros);
        break;
    case 16:
        panel_16(c, d, no_zeros);
        break;
    default:
        panel_32(c, d, no_zeros);
    }
}

/* The sums of rows m0..m0+rows and n tiles from t0 on to where they go, a row at a time: rows are
 * pages apart. */
V16 void store_panel(const mm_task *t, float (*y)[PANEL_ROWS][TILE_N], int64_t m0, int64_t rows,
                     int64_t t0, int64_t n)
{
    for (int64_t m = 0; m < rows; m++)
        for (int64_t i = 0; i < n; i++) {
            const block b = { .tile[0] = t0 + i, .m[0] = m0 + m, .rows = 1, .tiles = 1 };
            const vf sum = vf_load(y[i][m]);
            block_store(t, &b, &sum, 1);
        }
}

/* The 16 bits twice with which sums begin that end with `sum` added: -sum over all pairs of lanes.
 */
V16 int32_t start_of(__m128i sum)
{
    sum = _mm_add_epi16(sum, _mm_shuffle_epi32(sum, 0x4e));
    sum = _mm_add_epi16(sum, _mm_shuffle_epi32(sum, 0xb1));
    return _mm_cvtsi128_si32(_mm_sub_epi16(_mm_setzero_si128(), sum));
}
/* n activations of row `row`, a multiple of TILE_K, and of each `unit` of them, 16 or a multiple of
 * TILE_K, what their sums begin with; unit 0: nothing. */
V16 void open_row(i8_chunk *c, int8_t *dst, const int8_t *x, int64_t n, int64_t row, int64_t unit,
                  __m256i middles)
{
    __m256i sum = _mm256_setzero_si256();
    int32_t *start = &c->start[0][row];
    for (int64_t i = 0, end = unit; i < n; i += TILE_K) {
        const __m256i v = _mm256_loadu_si256((const void *)(x + i));
        _mm256_storeu_si256((void *)(dst + i), v);
        if (!unit) continue;
        sum = _mm256_add_epi16(sum, _mm256_maddubs_epi16(middles, v));
        const __m128i low = _mm256_castsi256_si128(sum), high = _mm256_extracti128_si256(sum, 1);
        if (unit < TILE_K) {
            start[0] = start_of(low);
            start[PANEL_ROWS] = start_of(high);
            start += 2 * PANEL_ROWS;
        } else if (i + TILE_K == end) {
            *start = start_of(_mm_add_epi16(low, high));
            start += PANEL_ROWS;
            end += unit;
        } else {
            continue;
        }
        sum = _mm256_setzero_si256();
    }
    __builtin_prefetch(x + CHUNK, 0, 3);
    __builtin_prefetch(x + CHUNK + 64, 0, 3);
}

/* n activations of each row of the panel, x of the first. */
V16 void open_rows(i8_chunk *c, const i8_bodies *d, w_src src, const int8_t *x, int64_t Kp,
                   int64_t n)
{
    const int64_t unit = inputs_per_fold(src, c->A);
    const __m256i middles = _mm256_set1_epi8((char)middle(src));
    for (int64_t i = 0, row = 0; i < d->bodies; i++) {
        int8_t(*dst)[CHUNK] = c->page[i / PAGE_BODIES].x[i % PAGE_BODIES];
        for (const int64_t end = first_row(d, i + 1); row < end; row++, dst++)
            open_row(c, *dst, x + row * Kp, n, row, unit, middles);
    }
}

/* Rows m0..m0+rows of tiles t0..t1 of the task: a panel and PANEL_TILES at most. */
V16 void i8_panel(const mm_task *t, w_src src, int64_t m0, int64_t rows, int64_t t0, int64_t t1)
{
    float y[PANEL_TILES][PANEL_ROWS][TILE_N], acc[PANEL_TILES][PANEL_ROWS][TILE_N];
    i8_chunk c;
    const int64_t Kp = t->s.Kp, A = t->x.A;
    const bool no_zeros = t->w->scheme.zero == QT_ZERO_NONE; /* 128, of tables too */
    const i8_bodies d = bodies_of(rows);
    c.A = A;
    c.middle = (float)middle(src);
    c.nb = Kp / A;
    c.group = t->s.Gp / w_subs(src) / A;
    for (int64_t i = 0; i < t1 - t0; i++) {
        memset(y[i], 0, (size_t)rows * sizeof *y[i]);
        if (c.group > 1) memset(acc[i], 0, (size_t)rows * sizeof *acc[i]);
    }
    for (int64_t p = 0; p < Kp; p += CHUNK) {
        const int64_t n = Kp - p < CHUNK ? Kp - p : CHUNK;
        c.n = n / A;
        c.at = p / A % c.group;
        c.xs = t->x.s + m0 * c.nb + p / A;
        c.xsum = t->x.qs + m0 * c.nb + p / A;
        open_rows(&c, &d, src, t->x.q + m0 * Kp + p, Kp, n);
        for (int64_t tile = t0; tile < t1; tile++) {
            const uint8_t *codes = (const uint8_t *)t->w->plane[QT_CODES].data +
                                   (size_t)(tile + 1) * t->s.tile_bytes +
                                   (size_t)(p / TILE_K) * t->s.step_bytes;
            open_chunk(&c, t, src, tile, p, codes);
            c.y = y[tile - t0];
            c.acc = acc[tile - t0];
            chunk_panel(&c, &d, no_zeros, src);
        }
    }
    store_panel(t, y, m0, rows, t0, t1 - t0);
}

V16 void i8_panels(const mm_task *t, w_src src)
{
    const int64_t M = t->m1 - t->m0, panels = lq_ceil_div(M, PANEL_ROWS);
    for (int64_t i = 0, m = t->m0, rows; i < panels; i++, m += rows) {
        rows = lq_ceil_div(t->m1 - m, panels - i); /* even, so that none is below PANEL_FROM */
        for (int64_t tile = t->t0; tile < t->t1; tile += PANEL_TILES)
            i8_panel(t, src, m, rows, tile,
                     tile + PANEL_TILES < t->t1 ? tile + PANEL_TILES : t->t1);
    }
}
