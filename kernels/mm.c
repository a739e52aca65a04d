/* kernels/mm.c - packing weights, preparing activations, and cutting a product into items.
 *
 * An item is a run of tiles times a panel of rows: few rows and many tiles while decoding, where
 * weights stream from memory once; a panel whose activations stay in the second cache while
 * prefilling. Which item a thread takes changes nothing in the result. */
#include "kernels/mm.h"
#include "kernels/dispatch.h"
#include "kernels/ops.h"

#include <assert.h>
#include <stddef.h>

enum {
    TILES_MAX = 16,          /* tiles of an item at most: 256 outputs */
    TILES_STEP = 4,          /* a multiple of what the widest kernel takes at once */
    MANY_ROWS = 16,          /* products that arithmetic bounds, not memory */
    PANEL_BYTES = 384 << 10, /* prepared activations of one panel: part of a 1 MB second cache */
    STAGED_FROM = 8,         /* rows of an item whose results are gathered first */
    STAGED_ROWS = 96,        /* of those at a time */
    F32_PANEL = 96,          /* rows at least: the f32 kernels cut K so that they fit (mm_wide.h) */
    I8_PANEL = 80            /* rows at most: as many as mm_i8_rows_avx2.h takes at once */
};

mm_acts mm_effective(const qt_scheme *s, mm_acts want)
{
    if (s->act) return MM_F32;
    const bool ints = s->kind != QT_DENSE && s->kind != QT_E4M3 && s->zero != QT_ZERO_BIAS;
    if (want != MM_I8 || ints) return want;
    return s->kind == QT_DENSE && s->dtype == LQ_BF16 ? MM_BF16 : MM_F32;
}

int64_t mm_i8_block(const tile_shape *s)
{
    if (s->subs > 1) return TILE_K / s->subs;
    return s->Gp % 128 == 0 ? 128 : s->Gp % 64 == 0 ? 64 : 32;
}

/* dst = x [K] rounded as s->act says (it is not QT_ACT_NONE): per group scale = absmax/127.5 (int8)
 * or absmax/448 (e4m3), or act_scale; scale * clamp(rint(x / scale), -128, 127), or scale *
 * e4m3(x / scale). A group with NaN or Inf becomes NaN; of zeros, zeros. dst == x is allowed. */
static void round_acts(float *dst, const float *x, int64_t K, const qt_scheme *s)
{
    const float top = s->act == QT_ACT_I8 ? 127.5f : 448.0f;
    const int64_t group = s->act_group ? s->act_group : K;
    for (int64_t k = 0; k < K; k += group) {
        const int64_t n = K - k < group ? K - k : group;
        float max = 0;
        bool finite = true;
        for (int64_t i = k; i < k + n; i++) {
            finite = finite && fabsf(x[i]) < INFINITY; /* false for NaN too */
            max = fabsf(x[i]) > max ? fabsf(x[i]) : max;
        }
        const float scale = s->act_scale > 0 ? s->act_scale : max / top;
        for (int64_t i = k; i < k + n; i++) {
            float q = scale > 0 ? x[i] / scale : 0.0f;
            if (s->act == QT_ACT_I8)
                q = fminf(fmaxf(rintf(q), -128.0f), 127.0f);
            else
                q = lq_e4m3_to_f32(lq_f32_to_e4m3(q));
            dst[i] = finite ? q * scale : NAN;
        }
    }
}

/* ---- weights ---- */
size_t mm_pack_bytes(const qt_tensor *w)
{
    if (w->layout == QT_TILE16) return 0;
    qt_scheme s = tiles_scheme(&w->scheme, w->N, w->K);
    size_t sum = 0;
    for (int p = 0; p < QT_N_PLANES; p++)
        sum += lq_round_up(qt_plane_bytes(&s, QT_TILE16, w->N, w->K, (qt_plane)p), 64);
    return sum;
}

mm_table mm_table_of(const float v[16])
{
    enum { N_MIN = 8, N_SMALL = 15, N_MAX = 127 };
    mm_table out = { .zero = N_SMALL, .unit = 0 };
    double max = 0, least = HUGE_VAL;
    int best = N_MIN;
    for (int i = 0; i < 16; i++) {
        if (!(fabsf(v[i]) < INFINITY)) out.unit = NAN;
        if (fabs((double)v[i]) > max) max = fabs((double)v[i]);
    }
    const bool usable = max > 0 && max < HUGE_VAL && out.unit == 0;
    for (int n = N_MIN; usable && n <= N_MAX; n++) {
        double sum = 0;
        for (int i = 0; i < 16; i++) {
            double at = (double)v[i] * n / max, e = (rint(at) - at) / n;
            sum += e * e;
        }
        if (sum < least) least = sum, best = n;
    }
    if (best > N_SMALL) out.zero = 128;
    if (usable) out.unit = (float)(max / best);
    for (int i = 0; i < 16; i++)
        out.t[i] = (uint8_t)(out.zero + (usable ? (int)rint((double)v[i] * best / max) : 0));
    return out;
}

static void set_table(mm_weight *w)
{
    float map[16];
    if (w->t.scheme.kind == QT_E2M1) w->table = mm_table_of(qt_e2m1);
    if (w->t.scheme.kind != QT_LUT4) return;
    memcpy(map, w->t.plane[QT_MAP].data, sizeof map);
    w->table = mm_table_of(map);
}

typedef struct {
    void *w[QT_N_PLANES];
    const qt_tensor *from;
} pack_ctx;

static void pack_item(void *ctx, int64_t item, int thread)
{
    (void)thread;
    const pack_ctx *c = ctx;
    tiles_pack(c->w, c->from, item, item + 1);
}

lq_status mm_pack(mm_weight *out, const qt_tensor *w, lq_arena *a, pool *p, lq_err *err)
{
    *out = (mm_weight){ .t = *w, .N = w->N, .K = w->K };
    if (w->layout == QT_TILE16) {
        set_table(out);
        return LQ_OK;
    }
    qt_scheme s = tiles_scheme(&w->scheme, w->N, w->K);
    pack_ctx c = { .from = w };
    out->t = (qt_tensor){ .scheme = s, .layout = QT_TILE16, .N = w->N, .K = w->K };
    out->expanded = s.kind != w->scheme.kind;
    for (int i = 0; i < QT_N_PLANES; i++) {
        size_t n = qt_plane_bytes(&s, QT_TILE16, w->N, w->K, (qt_plane)i);
        c.w[i] = n ? lq_push(a, n) : NULL;
        if (n && !c.w[i]) return lq_fail(err, LQ_ENOMEM, "no memory for %zu bytes of tiles", n);
        out->t.plane[i] = (qt_span){ c.w[i], n };
    }
    tiles_pack_shared(c.w, w);
    pool_run(p, tiles_shape(&s, w->N, w->K).tiles, pack_item, &c);
    set_table(out);
    return LQ_OK;
}

/* ---- activations ---- */
/* How a weight wants its activations. Two weights with equal needs share one preparation. */
typedef struct {
    mm_acts acts;
    bool hardware; /* MM_BF16 with the instruction */
    tile_shape s;
    int64_t K, A, sums;     /* inputs of a block, of a sum of them */
    const qt_scheme *act;   /* says how inputs are rounded, or NULL */
    const int32_t *perm;    /* [K] or NULL */
    const int32_t *out_idx; /* [n_out] */
    int64_t n_out, ldo;
} need;

static need need_of(const mm_weight *w, mm_acts acts)
{
    const qt_scheme *sc = &w->t.scheme;
    need d = { .acts = mm_effective(sc, acts), .s = tiles_shape(sc, w->N, w->K), .K = w->K };
    /* Dense bf16, or codes less a zero point that is an integer of their own size. */
    bool exact = sc->kind == QT_DENSE  ? sc->dtype == LQ_BF16
                 : sc->kind == QT_UINT ? sc->zero == QT_ZERO_NONE ||
                                             (sc->zero == QT_ZERO_INT && sc->zbits == sc->bits)
                                       : sc->kind == QT_I8 || sc->kind == QT_I8_OUTLIER;
    d.hardware = d.acts == MM_BF16 && k_get()->mm_bf16 && exact;
    d.A = mm_i8_block(&d.s);
    d.sums = sc->kind == QT_BLOCKS ? BLK_SUM : d.A;
    if (sc->act) d.act = sc;
    if (sc->kind == QT_UINT && sc->act_order) d.perm = w->t.plane[QT_GIDX].data;
    if (sc->kind == QT_I8_OUTLIER && sc->n_out) {
        d.out_idx = w->t.plane[QT_OUT_IDX].data;
        d.n_out = sc->n_out;
        d.ldo = (int64_t)lq_round_up((size_t)d.n_out, TILE_K);
    }
    return d;
}

static bool same_index(const int32_t *a, const int32_t *b, int64_t n)
{
    return a == b || (a && b && memcmp(a, b, (size_t)n * sizeof *a) == 0);
}

static bool same_act(const qt_scheme *a, const qt_scheme *b)
{
    if (!a || !b) return a == b;
    return a->act == b->act && a->act_group == b->act_group && !(a->act_scale < b->act_scale) &&
           !(a->act_scale > b->act_scale);
}

static bool same_need(const need *a, const need *b)
{
    return a->acts == b->acts && same_act(a->act, b->act) && a->hardware == b->hardware &&
           a->K == b->K && a->s.G == b->s.G && a->A == b->A && a->sums == b->sums &&
           same_index(a->perm, b->perm, a->K) && a->n_out == b->n_out &&
           same_index(a->out_idx, b->out_idx, a->n_out);
}

bool mm_gates(const mm_weight *gate, const mm_weight *up, mm_acts acts)
{
    const need g = need_of(gate, acts), u = need_of(up, acts);
    return gate->N == up->N && same_need(&g, &u);
}

/* Plain f32 rows in order and without padding are read where they are. */
static bool in_place(const need *d, const mm_job *job)
{
    return d->acts == MM_F32 && d->s.Kp == d->K && !d->perm && !d->act && !job->rows;
}

/* Bytes of a prepared row, each part rounded up so that rows of parts stay aligned. */
static size_t row_bytes(const need *d, const mm_job *job)
{
    size_t Kp = (size_t)d->s.Kp, n = (size_t)d->ldo * 4;
    if (d->acts == MM_I8) return n + Kp + Kp / (size_t)d->A * 4 + Kp / (size_t)d->sums * 4;
    if (d->hardware) return n + Kp * 2;
    return n + (in_place(d, job) ? 0 : Kp * 4);
}

/* Two rows of f32 per thread: rounded inputs, and what is gathered from them, a group at most. */
static size_t gather_row(int64_t K) { return lq_round_up((size_t)(K + TILE_K) * 4, 64); }
static size_t gather_bytes(int64_t K) { return 2 * gather_row(K); }
static size_t usual_row(int64_t K) { return 2 * (size_t)(K + TILE_K) * 4; }
/* Groups below 32 are padded up to 32 times; such rows are prepared as many at a time as fit. */
static size_t worst_row(int64_t K) { return (size_t)K * TILE_K * 4 + (size_t)(K + TILE_K) * 4; }

/* Rows of one input whose products run in one round, prepared for the outs of equal need. */
typedef struct {
    need d;
    const mm_job *job;
    int64_t m_first, M; /* rows of the job */
    int64_t first_prep; /* of its items among those of the round */
    int64_t panel;      /* rows of a panel */
    float *f, *s, *qs, *out;
    uint16_t *b;
    int8_t *q;
    mm_x x; /* the above as the kernels read them */
} part;

/* Results of an item lie together first: in y they are runs of 1 KiB a power of two apart, which
 * share few places of a cache. Of a gate and its partner, half of the tiles each. */
enum { STAGED = STAGED_ROWS * TILES_MAX * TILE_N };

/* One out of a part. */
typedef struct {
    const mm_out *o;
    int part;
    int64_t first_item;
} piece;

/* Parts that fit into scratch together: prepared in one region, multiplied in another. */
typedef struct {
    lq_arena *scratch;
    pool *p;
    float *gather;   /* [threads] of gather_bytes(K) */
    float *staged;   /* [threads][STAGED] */
    float *unpacked; /* [threads][K][TILE_N] */
    int64_t K;       /* the largest of the jobs */
    size_t mark, room, left;
    part *parts;
    piece *pieces;
    int n_parts, n_pieces;
    int64_t n_preps, n_items, chunk;
} batch;

enum { PART_PLANES = 4, PART_PIECES_BYTES = sizeof(part) + sizeof(piece) + PART_PLANES * 64 };

size_t mm_scratch_bytes(int64_t M, int64_t K, int n_outs, int threads)
{
    enum { PARTS = 8 };
    return (size_t)threads *
               (gather_bytes(K) + (STAGED + (size_t)K * TILE_N) * sizeof(float) + 64) +
           (size_t)M * usual_row(K) + worst_row(K) + (size_t)n_outs * PART_PIECES_BYTES +
           PARTS * 64;
}

/* Inputs of group g of one row into dst[Gp]; outlier places hold 0 in MM_I8. */
static void gather_group(float *dst, const need *d, const float *x, int64_t g)
{
    int64_t first = g * d->s.G, n = d->s.G < d->K - first ? d->s.G : d->K - first;
    if (d->perm)
        for (int64_t i = 0; i < n; i++)
            dst[i] = x[d->perm[first + i]];
    else
        memcpy(dst, x + first, (size_t)n * sizeof *dst);
    memset(dst + n, 0, (size_t)(d->s.Gp - n) * sizeof *dst);
    for (int64_t i = 0; d->acts == MM_I8 && i < d->n_out; i++)
        dst[d->out_idx[i]] = 0;
}

/* Sums of each n of K int8. */
static void sum_parts(float *sum, const int8_t *q, int64_t K, int64_t n)
{
    for (int64_t k = 0; k < K; k += n) {
        int s = 0;
        for (int64_t i = k; i < k + n; i++)
            s += q[i];
        *sum++ = (float)s;
    }
}

static void prep_row(const part *c, int64_t m, float *tmp)
{
    const need *d = &c->d;
    const int64_t row = c->m_first + m;
    const float *x = c->job->x + (c->job->rows ? c->job->rows[row] : row) * c->job->ldx;
    const k_ops *k = k_get();
    int64_t nb = d->s.Kp / d->A, Gp = d->s.Gp;
    if (d->act) {
        float *rounded = tmp + gather_row(d->K) / sizeof *tmp;
        round_acts(rounded, x, d->K, d->act);
        x = rounded;
    }
    for (int64_t i = 0; i < d->ldo; i++)
        c->out[m * d->ldo + i] = i < d->n_out ? x[d->out_idx[i]] : 0;
    for (int64_t g = 0; g < d->s.ng && !in_place(d, c->job); g++) {
        int64_t at = m * d->s.Kp + g * Gp;
        /* Whole groups in their own order need no copy; the last one may be short. */
        const float *src = x + g * d->s.G;
        if (d->perm || Gp != d->s.G || (g + 1) * Gp > d->K || d->n_out) {
            gather_group(tmp, d, x, g);
            src = tmp;
        }
        if (d->acts == MM_I8) {
            int64_t b = m * nb + g * Gp / d->A;
            k->mm_quant(c->q + at, c->s + b, c->qs + at / d->sums, src, Gp, d->A);
            if (d->sums != d->A) sum_parts(c->qs + at / d->sums, c->q + at, Gp, d->sums);
        } else if (d->hardware) {
            k->to_bf16(c->b + at, src, Gp);
        } else if (d->acts == MM_BF16) {
            k->round_bf16(c->f + at, src, Gp);
        } else {
            memcpy(c->f + at, src, (size_t)Gp * sizeof *src);
        }
    }
}

/* Of n elements the last whose first item (an int64_t at `off`) is `item` or before. */
static const void *owner(const void *base, size_t size, size_t off, int n, int64_t item)
{
    int lo = 0, hi = n - 1;
    while (lo < hi) {
        int mid = (lo + hi + 1) / 2;
        int64_t first;
        memcpy(&first, (const uint8_t *)base + (size_t)mid * size + off, sizeof first);
        if (first <= item)
            lo = mid;
        else
            hi = mid - 1;
    }
    return (const uint8_t *)base + (size_t)lo * size;
}

enum { PREP_ROWS = 4 }; /* rows of an item; as few in all are not worth waking anybody */

static void prep_item(void *ctx, int64_t item, int thread)
{
    const batch *r = ctx;
    float *tmp = (float *)((uint8_t *)r->gather + (size_t)thread * gather_bytes(r->K));
    const part *c = owner(r->parts, sizeof *c, offsetof(part, first_prep), r->n_parts, item);
    int64_t m = (item - c->first_prep) * PREP_ROWS, m1 = m + PREP_ROWS;
    for (; m < m1 && m < c->M; m++)
        prep_row(c, m, tmp);
}

/* ---- the product ---- */
/* Tiles of an item. */
static int64_t item_tiles(const batch *r, const piece *o)
{
    return o->o->up ? r->chunk / 2 : r->chunk;
}
static int64_t chunks(const batch *r, const piece *o)
{
    return lq_ceil_div(lq_ceil_div(o->o->w->N, TILE_N), item_tiles(r, o));
}
static int64_t panels(const part *c) { return lq_ceil_div(c->M, c->panel); }

/* QT_BLOCKS in f32: a tile at a time, unpacked. */
static void run_unpacked(const mm_task *t, float *tile)
{
    const int64_t K = t->s.Kp;
    for (int64_t i = t->t0; i < t->t1; i++) {
        const int64_t left = t->o.w->N - i * TILE_N;
        mm_weight w = { .N = left < TILE_N ? left : TILE_N, .K = K };
        w.t = (qt_tensor){
            .scheme = { .kind = QT_DENSE, .dtype = LQ_F32 }, .layout = QT_TILE16, .N = w.N, .K = K
        };
        w.t.plane[QT_CODES] = (qt_span){ tile, (size_t)(K * TILE_N) * sizeof *tile };
        tiles_blocks(tile, t->w, i);
        mm_task own = *t;
        own.w = &w.t;
        own.s = tiles_shape(&w.t.scheme, w.N, K);
        own.o.w = &w;
        if (t->o.bias) own.o.bias = t->o.bias + i * TILE_N;
        own.t0 = 0;
        own.t1 = 1;
        own.y_t = t->y_t - i;
        k_get()->mm_f32(&own);
    }
}

/* unpacked: room for a tile of f32. */
static void run_task(const part *c, const mm_task *t, float *unpacked)
{
    const k_ops *k = k_get();
    const bool blocks = t->w->scheme.kind == QT_BLOCKS;
    if (blocks && c->d.acts != MM_I8)
        run_unpacked(t, unpacked);
    else if (c->d.acts == MM_I8)
        (blocks ? k->mm_blocks : k->mm_i8)(t);
    else
        (c->d.hardware ? k->mm_bf16 : k->mm_f32)(t);
}

/* The task's w x + bias to dst [m1 - m0][ld]. */
static void stage(const part *c, const mm_task *t, const mm_weight *w, const float *bias,
                  float *dst, int64_t ld, float *unpacked)
{
    mm_task own = *t;
    own.w = &w->t;
    own.s = tiles_shape(&w->t.scheme, w->N, w->K);
    own.o = (mm_out){ .w = w, .y = dst, .ldy = ld, .bias = bias };
    own.y_m = t->m0;
    own.y_t = t->t0;
    run_task(c, &own, unpacked);
}

/* At most STAGED_ROWS rows by way of `staged`. */
static void run_staged(const part *c, const mm_task *t, float *staged, float *unpacked)
{
    const mm_out *o = &t->o;
    const int64_t n0 = t->t0 * TILE_N, ld = (t->t1 - t->t0) * TILE_N,
                  n = o->w->N - n0 < ld ? o->w->N - n0 : ld;
    float *up = staged + (t->m1 - t->m0) * ld;
    stage(c, t, o->w, o->bias, staged, ld, unpacked);
    if (o->up) stage(c, t, o->up, o->up_bias, up, ld, unpacked);
    for (int64_t m = t->m0; m < t->m1; m++, staged += ld, up += ld) {
        float *y = mm_place(t, m, t->t0);
        if (o->up)
            k_act_mul(y, staged, up, n, o->act, o->limit);
        else if (o->add)
            k_add(y, staged, n);
        else
            memcpy(y, staged, (size_t)n * sizeof *y);
    }
}

static void run_item(void *ctx, int64_t item, int thread)
{
    const batch *r = ctx;
    const piece *o = owner(r->pieces, sizeof *o, offsetof(piece, first_item), r->n_pieces, item);
    const part *c = &r->parts[o->part];
    float *unpacked = r->unpacked + (int64_t)thread * r->K * TILE_N;
    int64_t at = item - o->first_item, n = panels(c), panel = at % n, chunk = at / n;
    mm_task t = { .w = &o->o->w->t, .x = c->x, .o = *o->o };
    t.s = tiles_shape(&t.w->scheme, t.w->N, t.w->K);
    t.o.y += c->m_first * t.o.ldy;
    t.m0 = panel * c->panel;
    const int64_t end = t.m0 + c->panel < c->M ? t.m0 + c->panel : c->M;
    t.t0 = chunk * item_tiles(r, o);
    t.t1 = t.t0 + item_tiles(r, o) < t.s.tiles ? t.t0 + item_tiles(r, o) : t.s.tiles;
    if (end - t.m0 < STAGED_FROM && !t.o.up) {
        t.m1 = end;
        run_task(c, &t, unpacked);
        return;
    }
    for (; t.m0 < end; t.m0 = t.m1) {
        t.m1 = t.m0 + STAGED_ROWS < end ? t.m0 + STAGED_ROWS : end;
        run_staged(c, &t, r->staged + (int64_t)thread * STAGED, unpacked);
    }
}

/* Run what the batch holds and empty it. */
static void run_batch(batch *r)
{
    if (!r->n_parts) return;
    const pool_stage_id product = pool_stage(r->p, STAGE_PREPARE);
    pool_run(r->n_preps > 1 ? r->p : NULL, r->n_preps, prep_item, r);
    pool_stage(r->p, product);
    int64_t tiles = 0, most = 0;
    for (int i = 0; i < r->n_pieces; i++) {
        const part *c = &r->parts[r->pieces[i].part];
        tiles +=
            lq_ceil_div(r->pieces[i].o->w->N, TILE_N) * panels(c) * (r->pieces[i].o->up ? 2 : 1);
        if (c->M > most) most = c->M;
    }
    /* Some eight items for each thread, so that a slow one leaves the rest to the others; of many
     * rows four, since an item lays its rows out for all of its tiles (mm_i8_rows_avx2.h). */
    const int64_t share = most < MANY_ROWS ? 8 : 4;
    r->chunk = lq_ceil_div(tiles, pool_threads(r->p) * share);
    r->chunk = (int64_t)lq_round_up((size_t)r->chunk, TILES_STEP);
    if (r->chunk > TILES_MAX) r->chunk = TILES_MAX;
    r->n_items = 0;
    for (int i = 0; i < r->n_pieces; i++) {
        piece *o = &r->pieces[i];
        o->first_item = r->n_items;
        r->n_items += chunks(r, o) * panels(&r->parts[o->part]);
    }
    pool_run(r->p, r->n_items, run_item, r);
    lq_arena_reset(r->scratch, r->mark);
    r->left = r->room;
    r->n_parts = r->n_pieces = 0;
    r->n_preps = 0;
}

/* Cut the buffers of rows m_first..m_first+M-1. */
static void push_part(batch *r, const mm_job *job, const need *d, int64_t m_first, int64_t rows)
{
    part *c = &r->parts[r->n_parts++];
    const size_t M = (size_t)rows, Kp = (size_t)d->s.Kp;
    *c = (part){ .d = *d, .job = job, .m_first = m_first, .M = rows, .first_prep = r->n_preps };
    r->left -= M * row_bytes(d, job);
    if (d->ldo) c->out = lq_push(r->scratch, M * (size_t)d->ldo * 4);
    if (d->acts == MM_I8) {
        c->q = lq_push(r->scratch, M * Kp);
        c->s = lq_push(r->scratch, M * Kp / (size_t)d->A * 4);
        c->qs = lq_push(r->scratch, M * Kp / (size_t)d->sums * 4);
    } else if (d->hardware) {
        c->b = lq_push(r->scratch, M * Kp * 2);
    } else if (!in_place(d, job)) {
        c->f = lq_push(r->scratch, M * Kp * 4);
    }
    if (!in_place(d, job) || d->ldo) r->n_preps += lq_ceil_div(rows, PREP_ROWS);
    c->x = (mm_x){ .f = c->f,
                   .ldf = d->s.Kp,
                   .b = c->b,
                   .q = c->q,
                   .s = c->s,
                   .qs = c->qs,
                   .A = d->A,
                   .out = c->out,
                   .ldo = d->ldo };
    if (in_place(d, job)) c->x.f = job->x + m_first * job->ldx, c->x.ldf = job->ldx;
    size_t bytes = d->acts == MM_I8 ? Kp : d->hardware ? Kp * 2 : Kp * 4;
    c->panel = (int64_t)lq_round_up(PANEL_BYTES / (bytes + 1) + 1, 8);
    if (c->x.f && c->panel < F32_PANEL) c->panel = F32_PANEL;
    if (c->x.q && c->panel > I8_PANEL) c->panel = I8_PANEL;
    if (rows > c->panel) /* even ones */
        c->panel = (int64_t)lq_round_up((size_t)lq_ceil_div(rows, lq_ceil_div(rows, c->panel)), 8);
}

/* The outs of a job that are marked, which have equal needs; in batches as they fit. */
static void add_outs(batch *r, const mm_job *job, const need *d, const mm_out *outs,
                     const bool *mine, int n_outs)
{
    const size_t row = row_bytes(d, job);
    for (int64_t m = 0; m < job->M;) {
        int64_t n = job->M - m, fits = row ? (int64_t)(r->left / row) : n;
        if (fits < n && r->n_parts) {
            run_batch(r);
            continue;
        }
        assert(fits > 0);
        if (fits < n) n = fits;
        push_part(r, job, d, m, n);
        for (int i = 0; i < n_outs; i++)
            if (mine[i])
                r->pieces[r->n_pieces++] = (piece){ .o = &outs[i], .part = r->n_parts - 1 };
        m += n;
    }
}

static void add_job(batch *r, const mm_job *job, mm_acts acts)
{
    enum { AT_ONCE = 64 };
    for (int first = 0; first < job->n_outs; first += AT_ONCE) {
        const mm_out *outs = job->outs + first;
        int n = job->n_outs - first < AT_ONCE ? job->n_outs - first : AT_ONCE;
        bool done[AT_ONCE] = { false }, mine[AT_ONCE];
        for (int i = 0; i < n; i++) {
            if (done[i]) continue;
            need d = need_of(outs[i].w, acts);
            for (int j = 0; j < n; j++) {
                need e = need_of(outs[j].w, acts);
                mine[j] = !done[j] && same_need(&d, &e);
                done[j] = done[j] || mine[j];
            }
            add_outs(r, job, &d, outs, mine, n);
        }
    }
}

void mm_run_jobs(const mm_job *jobs, int n_jobs, mm_acts acts, lq_arena *scratch, pool *p)
{
    const size_t start = lq_arena_mark(scratch);
    int64_t rows = 0;
    size_t n_outs = 0;
    batch r = { .scratch = scratch, .p = p };
    for (int i = 0; i < n_jobs; i++) {
        rows += jobs[i].M;
        n_outs += (size_t)jobs[i].n_outs;
        if (jobs[i].n_outs && jobs[i].outs->w->K > r.K) r.K = jobs[i].outs->w->K;
    }
    if (rows == 0 || n_outs == 0) return;
    r.gather = lq_push(scratch, (size_t)pool_threads(p) * gather_bytes(r.K));
    r.staged = lq_push(scratch, (size_t)pool_threads(p) * STAGED * sizeof *r.staged);
    r.unpacked = lq_push(scratch, (size_t)(pool_threads(p) * r.K * TILE_N) * sizeof *r.unpacked);
    r.parts = lq_push(scratch, n_outs * sizeof *r.parts);
    r.pieces = lq_push(scratch, n_outs * sizeof *r.pieces);
    assert(r.gather && r.staged && r.unpacked && r.parts && r.pieces);
    r.mark = lq_arena_mark(scratch);
    r.room = r.left = (size_t)rows * usual_row(r.K) + worst_row(r.K);
    for (int i = 0; i < n_jobs; i++)
        add_job(&r, &jobs[i], acts);
    run_batch(&r);
    lq_arena_reset(scratch, start);
}

void mm_run(const mm_out *outs, int n_outs, const float *x, int64_t ldx, int64_t M, mm_acts acts,
            lq_arena *scratch, pool *p)
{
    mm_job job = { .x = x, .ldx = ldx, .M = M, .outs = outs, .n_outs = n_outs };
    mm_run_jobs(&job, 1, acts, scratch, p);
}
