/* kernels/mm_i8_rows_avx2.h - MM_I8 for many rows on AVX2: codes are unpacked once for all rows of
 * a panel, into blocks that stay in the first cache; part of mm_i8_avx2.h.
 *
 *     x  [ PANEL_ROWS rows ][ CHUNK inputs ]   copied side by side: rows of K bytes lie on few sets
 *     w  [ CHUNK inputs    ][ 16 outputs   ]   a byte each, for all rows of the panel
 *     y, acc [ tiles ][ rows ][ 16 ]           go on from one chunk to the next
 *
 * A sum that rests in memory between two steps is the same sum, so the bytes are those of
 * i8_block_avx2. A body takes 4 or 5 rows (10 sums, two vectors of codes, an activation and two
 * products fill 16 registers), or 3 or 4 of codes of 8 bits, whose sizes take two more. Rows are
 * dealt out evenly, so that none is computed twice: 12 = 4 + 4 + 4. */
enum {
    PANEL_FROM = 12, /* rows: with fewer, unpacking ahead costs more than it saves */
    PANEL_ROWS = 60,
    PANEL_TILES = 16,
    CHUNK = 256, /* a multiple of every A */
    CHUNK_BLOCKS = CHUNK / 16,
    STORE_ROWS = 4
};

/* One tile's codes of a chunk, and all rows' activations. */
typedef struct {
    uint8_t w[CHUNK * TILE_N];    /* four inputs of 16 outputs side by side */
    uint8_t size[CHUNK * TILE_N]; /* |w| of codes of 8 bits */
    float s[CHUNK_BLOCKS][TILE_N], z[CHUNK_BLOCKS][TILE_N]; /* of each block of A inputs */
    int8_t x[PANEL_ROWS][CHUNK];
    const float *xs, *xsum; /* of the chunk's first block; */
    int64_t nb;             /* floats from row to row */
    int64_t n, A;           /* blocks */
    int64_t group, at;      /* blocks of a group; how many of the first one's came before */
    float (*y)[TILE_N], (*acc)[TILE_N]; /* of the panel's rows; acc: of the group at work */
} i8_chunk;

/* A body's dot products: in memory, since registers hold sums of 16 bits. */
typedef struct {
    vi row[SMALL_ROWS];
} i8_dots;

/* Quads whose products add up in 16 bits; 0: none, bytes are signed. */
V16 int quads_per_fold(w_src src)
{
    return is_signed(src) ? 0 : w_table(src) ? 4 : 8 * (int)steps_per_fold(src);
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
        uint8_t *w = c->w + p * TILE_N, *size = c->size + p * TILE_N;
        for (size_t i = 0; i < t->s.step_bytes; i += 64, next += 64)
            v16_prefetch(next);
        for (int turn = 0; turn < 8 / quads(src); turn++)
            UNROLL for (int k = 0; k < quads(src); k++, w += 64, size += 64)
            {
                vi v = unpack(step, src, turn, k);
                if (w_table(src)) v = vi_lookup(table, v);
                if (is_signed(src)) {
                    v = vi_xor(v, signs());
                    vi_store(size, (vi){ _mm256_abs_epi8(v.a), _mm256_abs_epi8(v.b) });
                }
                vi_store(w, v);
            }
    }
    for (int64_t b = 0, p = p0; b < c->n; b++, p += c->A) {
        const int64_t g = p / t->s.Gp, sub = p % t->s.Gp / (t->s.Gp / w_subs(src));
        vf_store(c->s[b], load_scale_i8(t, tile, g, sub, src));
        vf_store(c->z[b], load_zero(t, tile, g, src));
    }
}

/* Sums of 16 bits of RM rows: + the products with n quads; `fresh`: they start with them. */
V16 void add_quads(vi *sum, const uint8_t *w, const int8_t *x, int n, bool fresh, int RM)
{
    UNROLL for (int k = 0; k < n; k++)
    {
        const vi v = vi_load(w + 64 * k);
        UNROLL for (int r = 0; r < RM; r++)
        {
            const vi a = vi_word(x + r * CHUNK + 4 * k);
            sum[r] = fresh && k == 0 ? vi_products(v, a) : vi_add_products(sum[r], v, a);
        }
    }
}
/* The products with n quads, a multiple of 8 or of `fold` and at most that, into d. */
V16 void fold_quads(i8_dots *d, const uint8_t *w, const int8_t *x, int64_t n, bool first, int fold,
                    int RM)
{
    const int turn = fold < 8 ? fold : 8;
    vi sum[SMALL_ROWS];
    add_quads(sum, w, x, turn, true, RM);
    for (int64_t q = turn; q < n && fold > turn; q += turn)
        add_quads(sum, w + 64 * q, x + 4 * q, turn, false, RM);
    if (first)
        UNROLL for (int r = 0; r < RM; r++) d->row[r] = vi_fold16(vi_set1(0), sum[r]);
    else
        UNROLL for (int r = 0; r < RM; r++) d->row[r] = vi_fold16(d->row[r], sum[r]);
    __asm__("" : "+m"(*d)); /* stay there */
}

V16 void dot_signed(i8_dots *d, const uint8_t *w, const uint8_t *size, const int8_t *x, int64_t n,
                    int RM)
{
    vi dot[SMALL_ROWS];
    UNROLL for (int r = 0; r < RM; r++) dot[r] = vi_set1(0);
    for (int64_t q = 0; q < n; q += 4, x += 16, w += 256, size += 256)
        UNROLL for (int k = 0; k < 4; k++)
        {
            const vi v = vi_load(w + 64 * k), a = vi_load(size + 64 * k);
            UNROLL for (int r = 0; r < RM; r++) dot[r] =
                vi_dot_signed(dot[r], v, a, vi_word(x + r * CHUNK + 4 * k));
        }
    UNROLL for (int r = 0; r < RM; r++) d->row[r] = dot[r];
}

/* Block b's dot products join the sums of RM rows. */
V16 void end_block(const i8_chunk *c, const i8_dots *d, int64_t b, int64_t row, bool no_zeros,
                   int fold, int RM)
{
    const float *xs = c->xs + row * c->nb + b, *xsum = c->xsum + row * c->nb + b;
    float(*y)[TILE_N] = c->y + row, (*acc)[TILE_N] = c->acc + row;
    const vf s = vf_load(c->s[b]), z = vf_load(c->z[b]), zero = vf_set1(0);
    const bool alone = c->group == 1;
    UNROLL for (int r = 0; r < RM; r++)
    {
        const vf X = vf_set1(xsum[r * c->nb]), scale = vf_set1(xs[r * c->nb]);
        const vf v = less_zeros(d->row[r], z, X, fold ? W_U4 : W_U8, no_zeros);
        if (alone)
            vf_store(y[r], vf_fma(s, vf_fma(scale, v, zero), vf_load(y[r])));
        else
            vf_store(acc[r], vf_fma(scale, v, vf_load(acc[r])));
    }
    if (alone || (c->at + b + 1) % c->group) return;
    UNROLL for (int r = 0; r < RM; r++)
    {
        vf_store(y[r], vf_fma(s, vf_load(acc[r]), vf_load(y[r])));
        vf_store(acc[r], zero);
    }
}

V16 void chunk_rows(const i8_chunk *c, int64_t row, bool no_zeros, int fold, int RM)
{
    i8_dots d;
    for (int64_t b = 0; b < c->n; b++) {
        const int64_t p = b * c->A, n = c->A / 4;
        const int8_t *x = c->x[row] + p;
        const uint8_t *w = c->w + p * TILE_N;
        if (fold == 0) dot_signed(&d, w, c->size + p * TILE_N, x, n, RM);
        for (int64_t q = 0; q < n && fold; q += fold)
            fold_quads(&d, w + 64 * q, x + 4 * q, n - q < fold ? n - q : fold, q == 0, fold, RM);
        end_block(c, &d, b, row, no_zeros, fold, RM);
    }
}

/* All rows of a panel, PANEL_FROM at least. A function of its own for each way of folding. */
#define CHUNK_PANEL(name, fold, MOST)                                                          \
    static __attribute__((noinline)) void name(const i8_chunk *c, int64_t rows, bool no_zeros) \
    {                                                                                          \
        for (int64_t row = 0, left = rows, n; left; row += n, left -= n)                       \
            if ((n = lq_ceil_div(left, lq_ceil_div(left, MOST))) == MOST)                      \
                chunk_rows(c, row, no_zeros, fold, MOST);                                      \
            else                                                                               \
                chunk_rows(c, row, no_zeros, fold, MOST - 1);                                  \
    }
CHUNK_PANEL(panel_signed, 0, U8_ROWS)
CHUNK_PANEL(panel_4, 4, SMALL_ROWS)
CHUNK_PANEL(panel_8, 8, SMALL_ROWS)
CHUNK_PANEL(panel_16, 16, SMALL_ROWS)
CHUNK_PANEL(panel_32, 32, SMALL_ROWS)

V16 void chunk_panel(const i8_chunk *c, int64_t rows, bool no_zeros, w_src src)
{
    switch (quads_per_fold(src)) {
    case 0:
        panel_signed(c, rows, no_zeros);
        break;
    case 4:
        panel_4(c, rows, no_zeros);
        break;
    case 8:
        panel_8(c, rows, no_zeros);
        break;
    case 16:
        panel_16(c, rows, no_zeros);
        break;
    default:
        panel_32(c, rows, no_zeros);
    }
}

/* Row m of the task of tile `tile`, its sums in y: to where they go. */
V16 void store_panel(const mm_task *t, float (*y)[TILE_N], int64_t m0, int64_t rows, int64_t tile)
{
    for (int64_t m = 0; m < rows; m += STORE_ROWS) {
        block b = { .tile[0] = tile, .rows = STORE_ROWS, .tiles = 1 };
        if (rows - m < STORE_ROWS) b.rows = (int)(rows - m);
        vf sums[STORE_ROWS];
        for (int r = 0; r < b.rows; r++) {
            b.m[r] = m0 + m + r;
            sums[r] = vf_load(y[m + r]);
        }
        block_store(t, &b, sums, 1);
    }
}

/* n: a multiple of TILE_K. What compilers make of a plain loop costs five per cent of a product. */
V16 void copy_inputs(int8_t *dst, const int8_t *src, int64_t n)
{
    for (int64_t i = 0; i < n; i += TILE_K) {
        if (i % 64 == 0) __builtin_prefetch(src + i + CHUNK, 0, 3);
        __m256i v = _mm256_loadu_si256((const void *)(src + i));
        __asm__("" : "+x"(v));
        _mm256_storeu_si256((void *)(dst + i), v);
    }
}

/* Rows m0..m0+rows of tiles t0..t1 of the task: a panel and PANEL_TILES at most. */
V16 void i8_panel(const mm_task *t, w_src src, int64_t m0, int64_t rows, int64_t t0, int64_t t1)
{
    float y[PANEL_TILES][PANEL_ROWS][TILE_N], acc[PANEL_TILES][PANEL_ROWS][TILE_N];
    i8_chunk c;
    const int64_t Kp = t->s.Kp, A = t->x.A;
    const bool no_zeros = t->w->scheme.zero == QT_ZERO_NONE; /* 128, of tables too */
    c.A = A;
    c.nb = Kp / A;
    c.group = t->s.Gp / w_subs(src) / A;
    for (int64_t i = 0; i < t1 - t0; i++) {
        memset(y[i], 0, (size_t)rows * sizeof *y[i]);
        memset(acc[i], 0, (size_t)rows * sizeof *acc[i]);
    }
    for (int64_t p = 0; p < Kp; p += CHUNK) {
        const int64_t n = Kp - p < CHUNK ? Kp - p : CHUNK;
        c.n = n / A;
        c.at = p / A % c.group;
        c.xs = t->x.s + m0 * c.nb + p / A;
        c.xsum = t->x.qs + m0 * c.nb + p / A;
        for (int64_t r = 0; r < rows; r++)
            copy_inputs(c.x[r], t->x.q + (m0 + r) * Kp + p, n);
        for (int64_t tile = t0; tile < t1; tile++) {
            const uint8_t *codes = (const uint8_t *)t->w->plane[QT_CODES].data +
                                   (size_t)(tile + 1) * t->s.tile_bytes +
                                   (size_t)(p / TILE_K) * t->s.step_bytes;
            open_chunk(&c, t, src, tile, p, codes);
            c.y = y[tile - t0];
            c.acc = acc[tile - t0];
            chunk_panel(&c, rows, no_zeros, src);
        }
    }
    for (int64_t tile = t0; tile < t1; tile++)
        store_panel(t, y[tile - t0], m0, rows, tile);
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
