/* quantize/methods/row_grid.c - see row_grid.h. */
#include "quantize/methods/row_grid.h"

#include "quantize/methods/fp4.h"
#include "quantize/methods/rows.h"

enum { SHRINKS = 12, ROUNDS = 3, LINES = 4 * SHRINKS };

/* One block while it is fitted: w ~ scale * v(code) + least in each group. */
typedef struct {
    const grid_spec *s;
    const blk_type *t;
    const blk_made *made;
    const float *w, *imp;
    int groups, G;
    float unit; /* of the type */
    const qz_rows_ops *ops;
    rows_grid grid;
    lat_lines lines[BLK_GROUPS]; /* of a lattice */
    float table[16], mid[15];    /* of a table, and between its values */
    rows_line best[BLK_GROUPS];  /* free */
    float error;                 /* of the group's at work */
    float d, dmin;               /* as stored */
    int sc[BLK_GROUPS], m[BLK_GROUPS];
} block;

/* ---- one group ---- */
static void measure(rows_sums *out, const block *b, int g, const rows_line *line, int lines)
{
    const float *imp = b->imp ? b->imp + g * b->G : NULL;
    if (!b->s->points) b->ops->sums(out, b->w + g * b->G, imp, b->G, &b->grid, line, lines);
    for (int i = 0; b->s->points && i < lines; i++)
        out[i] = lattice_sums(&b->lines[g], line[i].scale);
}

/* With all codes fixed. False: they say nothing. */
static bool least_squares(rows_line *l, const block *b, const rows_sums *s)
{
    const float det = s->vv * s->one - s->v1 * s->v1;
    if (b->t->bias && det > 0) {
        l->scale = (s->wv * s->one - s->w1 * s->v1) / det;
        l->least = (s->w1 * s->vv - s->wv * s->v1) / det;
        if (b->t->bias > 0 || l->least <= 0) return l->scale != 0;
    }
    if (!(s->vv > 0)) return false;
    l->least = 0; /* as large as it may be */
    l->scale = s->wv / s->vv;
    return l->scale != 0;
}

/* Grids, and those that least squares makes of their codes: a local least each. The first of the best. */
static void keep_best(block *b, int g, const rows_line *line, int lines)
{
    rows_sums sums[LINES], again[LINES];
    rows_line next[LINES];
    bool differs[LINES];
    measure(sums, b, g, line, lines);
    for (int i = 0; i < lines; i++) {
        differs[i] = least_squares(&next[i], b, &sums[i]);
        if (!differs[i]) next[i] = line[i];
    }
    measure(again, b, g, next, lines);
    for (int i = 0; i < lines; i++) {
        if (sums[i].e < b->error) b->error = sums[i].e, b->best[g] = line[i];
        if (differs[i] && again[i].e < b->error) b->error = again[i].e, b->best[g] = next[i];
    }
}

/* Scales for which the largest weight is about the largest size, and each of the others. */
static void fit_points(block *b, int g)
{
    const float *w = b->w + g * b->G, *imp = b->imp ? b->imp + g * b->G : NULL;
    const int8_t *sizes;
    const int n = lattice_sizes(b->s->points, &sizes);
    const grid_range r = grid_find_range(w, b->G);
    const float most = fmaxf(-r.lo, r.hi), end = most / (float)sizes[n - 1];
    rows_line line[LINES];
    b->best[g] = (rows_line){ end, 0 };
    lattice_lines(&b->lines[g], b->s->points, w, imp, b->G, 0.25f * end, most / (float)sizes[0]);
    for (int i = 0; i < 2 * SHRINKS; i++)
        line[i] = (rows_line){ end * (0.8f + 0.05f * (float)i), 0 };
    for (int i = 0; i < n; i++)
        line[2 * SHRINKS + i] = (rows_line){ most / (float)sizes[i], 0 };
    if (end > 0) keep_best(b, g, line, 2 * SHRINKS + n);
}

/* Ends that cover all weights, and drawn in. */
static void fit_group(block *b, int g)
{
    if (b->s->points) {
        fit_points(b, g);
        return;
    }
    const float M = grid_max_code(b->s->bits);
    const int8_t *table = b->t->table;
    const float first = table ? (float)table[0] : (float)-b->t->zero;
    const float last = table ? (float)table[(1 << b->s->bits) - 1] : M - (float)b->t->zero;
    float lo = b->w[g * b->G], hi = lo;
    rows_line line[LINES];
    int lines = 0;
    for (int i = 0; i < b->G; i++) {
        const float w = b->w[g * b->G + i];
        lo = w < lo ? w : lo;
        hi = w > hi ? w : hi;
    }
    if (b->t->bias < 0 && lo > 0) lo = 0;
    const float end = fabsf(lo) > fabsf(hi) ? lo : hi;
    b->best[g] = (rows_line){ 0, b->t->bias ? lo : 0 };
    const int n = b->t->fine ? SHRINKS : 2 * SHRINKS; /* what is found here is final */
    const float step = 2.4f / (float)n;
    if (!(b->t->bias ? hi > lo : end != 0)) return;
    for (int i = 0; i < n; i++) {
        const float f = 1 - 0.4f * (float)i / (float)n;
        if (b->t->bias) {
            line[lines++] = (rows_line){ (hi - lo) / (M - 1.5f + step * (float)i), lo };
        } else {
            line[lines++] = (rows_line){ f * end / first, 0 };
            line[lines++] = (rows_line){ f * end / last, 0 };
        }
    }
    keep_best(b, g, line, lines);
    if (b->error < INFINITY) keep_best(b, g, &(rows_line){ b->best[g].scale, b->best[g].least }, 1);
}

/* ---- the block ---- */
static float stored(float x)
{
    const float most = 65504, a = fabsf(x) > most ? most : fabsf(x);
    const float f = lq_f16_to_f32(lq_f32_to_f16(a));
    return x < 0 ? -f : f;
}
/* A step is never 0: codes of a group with scale 0 would mean nothing. */
static float stored_step(float x)
{
    const float f = stored(x);
    return f != 0 ? f : x < 0 ? -0x1p-24f : 0x1p-24f;
}
static int whole(float x, int lo, int hi)
{
    if (!(x > (float)lo)) return lo;
    return x > (float)hi ? hi : (int)grid_round(x);
}
static int whole_scale(const block *b, float x)
{
    const int step = b->made->sc_step, lo = b->made->sc_lo, hi = b->made->sc_hi;
    if (step > 1) return lo + step * whole((x - (float)lo) / (float)step, 0, (hi - lo) / step);
    const int sc = whole(x, lo, hi);
    return sc ? sc : x < 0 && b->made->sc_lo < 0 ? -1 : 1;
}

/* d and dmin by the largest scale and least value, and the whole numbers by them. */
static void first_choice(block *b)
{
    float most = 0, deep = 0;
    for (int g = 0; g < b->groups; g++) {
        if (fabsf(b->best[g].scale) > fabsf(most)) most = b->best[g].scale;
        if (fabsf(b->best[g].least) > fabsf(deep)) deep = b->best[g].least;
    }
    const int end = b->made->sc_lo < 0 ? b->made->sc_lo : b->made->sc_hi;
    b->d = stored_step(most / b->unit / (float)end);
    b->dmin = b->t->bias ? stored((float)b->t->bias * deep / (float)b->made->m_hi) : 0;
    for (int g = 0; g < b->groups; g++) {
        const float m = b->dmin != 0 ? (float)b->t->bias * b->best[g].least / b->dmin : 0;
        b->sc[g] = whole_scale(b, b->best[g].scale / b->unit / b->d);
        b->m[g] = b->t->fine ? whole(m, 0, b->made->m_hi) : 1;
    }
}

static rows_line line_of(const block *b, int sc, int m)
{
    return (rows_line){ b->d * b->unit * (float)sc, (float)b->t->bias * b->dmin * (float)m };
}

static bool allowed(const block *b, int sc, int m)
{
    const blk_made *t = b->made;
    return sc && sc >= t->sc_lo && sc <= t->sc_hi && m >= 0 && m <= t->m_hi;
}

/* The whole numbers beside a group's that are better; its sums. */
static rows_sums step_group(block *b, int g)
{
    enum { NEAR = 9 };
    const int sc0 = b->sc[g], m0 = b->m[g], reach = b->t->bias ? 1 : 0, by = b->made->sc_step;
    rows_line line[NEAR + 1] = { line_of(b, sc0, m0) };
    rows_sums sums[NEAR + 1];
    int sc[NEAR + 1] = { sc0 }, m[NEAR + 1] = { m0 }, n = 1, best = 0;
    for (int y = m0 - reach; y <= m0 + reach && b->t->fine; y++)
        for (int x = sc0 - by; x <= sc0 + by; x += by) {
            if (!allowed(b, x, y) || (x == sc0 && y == m0)) continue;
            sc[n] = x;
            m[n] = y;
            line[n++] = line_of(b, x, y);
        }
    measure(sums, b, g, line, n);
    for (int i = 1; i < n; i++)
        if (sums[i].e < sums[best].e) best = i;
    b->sc[g] = sc[best];
    b->m[g] = m[best];
    return sums[best];
}

/* d and dmin by least squares with codes and whole numbers fixed; false: no better. */
static bool step_block(block *b, const rows_sums s[BLK_GROUPS])
{
    double dd = 0, dm = 0, mm = 0, wd = 0, wm = 0, before = 0, after = 0;
    for (int g = 0; g < b->groups; g++) {
        const double sc = b->sc[g] * (double)b->unit, m = b->t->bias * b->m[g];
        dd += sc * sc * (double)s[g].vv;
        dm += sc * m * (double)s[g].v1;
        mm += m * m * (double)s[g].one;
        wd += sc * (double)s[g].wv;
        wm += m * (double)s[g].w1;
        before += (double)s[g].e;
    }
    const float d = b->d, dmin = b->dmin;
    const double det = dd * mm - dm * dm;
    if (b->t->bias && det > 1e-12 * dd * mm) {
        b->d = stored_step((float)((wd * mm - wm * dm) / det));
        b->dmin = stored((float)((wm * dd - wd * dm) / det));
        if (b->t->bias < 0 && b->dmin < 0) b->dmin = 0;
    } else if (dd > 0) {
        b->d = stored_step((float)(wd / dd));
    }
    for (int g = 0; g < b->groups; g++) {
        const rows_line line = line_of(b, b->sc[g], b->m[g]);
        rows_sums sums;
        measure(&sums, b, g, &line, 1);
        after += (double)sums.e;
    }
    if (after < before) return true;
    b->d = d;
    b->dmin = dmin;
    return false;
}

static void fit_block(block *b)
{
    rows_sums s[BLK_GROUPS];
    for (int g = 0; g < b->groups; g++) {
        b->error = INFINITY;
        fit_group(b, g);
    }
    first_choice(b);
    for (int i = 0; i < ROUNDS; i++) {
        for (int g = 0; g < b->groups; g++)
            s[g] = step_group(b, g);
        if (!step_block(b, s)) return;
    }
}

static void take_block(const block *b, grid_param *params, row_head *head)
{
    *head = (row_head){ lq_f32_to_f16(b->d), lq_f32_to_f16(b->dmin), { 0 }, { 0 } };
    for (int g = 0; g < b->groups; g++) {
        const float scale = b->d * b->unit * (float)b->sc[g];
        const float least = (float)b->t->bias * b->dmin * (float)b->m[g];
        head->sc[g] = (int8_t)b->sc[g];
        head->m[g] = (uint8_t)b->m[g];
        params[g] = (grid_param){ scale, b->t->bias ? -least / scale : (float)b->t->zero };
    }
}

static void fit_blocks(grid_param *params, row_head *heads, const grid_spec *s, const float *w,
                       const float *imp, int64_t K)
{
    const blk_type *t = s->blocks;
    block b = { .s = s, .t = t, .made = blk_made_of(t), .G = t->group };
    b.groups = t->elements / t->group;
    b.unit = t->unit;
    b.ops = qz_rows_get();
    b.grid.lo = (float)-t->zero;
    b.grid.hi = grid_max_code(s->bits) - (float)t->zero;
    for (int i = 0; t->table && i < 1 << s->bits; i++) {
        b.table[i] = t->table[i];
        if (i) b.mid[i - 1] = 0.5f * (float)(t->table[i - 1] + t->table[i]);
    }
    if (t->table) b.grid.table = b.table, b.grid.mid = b.mid;
    for (int64_t k = 0; k < K; k += t->elements) {
        b.w = w + k;
        b.imp = imp ? imp + k : NULL;
        fit_block(&b);
        take_block(&b, params + k / t->group, heads++);
    }
}

/* ---- rows ---- */
void row_fit(grid_param *params, row_head *heads, const grid_spec *s, const float *w,
             const float *imp, int64_t n, int64_t K, int64_t G)
{
    if (s->blocks) {
        fit_blocks(params, heads, s, w, imp, K);
        return;
    }
    if (s->floats) {
        const float *scales = s->floats + (s->float_rows ? n / s->float_rows : 0) * (K / G);
        for (int64_t g = 0; g < K / G; g++)
            params[g] = (grid_param){ scales[g], 0 };
        return;
    }
    for (int64_t k = 0; k < K; k += G)
        params[k / G] = s->table ? fp4_fit(s, w + k, imp ? imp + k : NULL, G)
                                 : grid_fit(s, w + k, imp ? imp + k : NULL, G);
}

void row_codes(uint8_t *codes, const grid_spec *s, const float *w, const float *imp, int64_t n,
               grid_param p)
{
    for (int64_t i = 0; s->points && i < n; i += LAT_UNIT)
        lattice_nearest(codes + i, s->points, w + i, imp ? imp + i : NULL, p.scale);
    if (s->points) return;
    if (!s->blocks && !s->table && !s->floats) {
        qz_rows_get()->codes(codes, w, n, p, grid_max_code(s->bits));
        return;
    }
    for (int64_t i = 0; i < n; i++)
        codes[i] = (uint8_t)row_code(s, w[i], p);
}

static void store_blocks(qz_out *out, int64_t n, const row_head *heads, const uint8_t *codes)
{
    const blk_type *t = blk_find(out->t.scheme.blocks);
    uint8_t *to = (uint8_t *)out->w[QT_CODES] + (size_t)n * blk_row_bytes(t, out->t.K);
    blk_parts b;
    for (int64_t k = 0; k < out->t.K; k += t->elements, heads++, to += t->bytes) {
        b.d = heads->d;
        b.dmin = heads->dmin;
        memcpy(b.sc, heads->sc, sizeof b.sc);
        memcpy(b.m, heads->m, sizeof b.m);
        memcpy(b.code, codes + k, (size_t)t->elements);
        blk_put(to, t, &b);
    }
}

static void load_blocks(grid_param *params, row_head *heads, uint8_t *codes, const qt_tensor *q,
                        int64_t n)
{
    const blk_type *t = blk_find(q->scheme.blocks);
    const uint8_t *from =
        (const uint8_t *)q->plane[QT_CODES].data + (size_t)n * blk_row_bytes(t, q->K);
    blk_parts b;
    for (int64_t k = 0; k < q->K; k += t->elements, heads++, from += t->bytes) {
        blk_take(&b, t, from);
        *heads = (row_head){ .d = b.d, .dmin = b.dmin };
        memcpy(heads->sc, b.sc, sizeof b.sc);
        memcpy(heads->m, b.m, sizeof b.m);
        memcpy(codes + k, b.code, (size_t)t->elements);
        for (int g = 0; g < t->elements / t->group; g++) {
            const float scale = blk_scale(t, &b, g);
            const float zero = t->bias ? -blk_bias(t, &b, g) / scale : (float)t->zero;
            params[(k + g * t->group) / t->group] = (grid_param){ scale, zero };
        }
    }
}

void row_load(grid_param *params, row_head *heads, uint8_t *codes, const qt_tensor *t, int64_t n)
{
    if (t->scheme.kind == QT_BLOCKS)
        load_blocks(params, heads, codes, t, n);
    else
        fp4_load(params, codes, t, n);
}

void row_store(qz_out *out, int64_t n, const grid_param *params, const row_head *heads,
               const uint8_t *codes, uint8_t *zeros)
{
    const qt_scheme *s = &out->t.scheme;
    if (s->kind == QT_BLOCKS) {
        store_blocks(out, n, heads, codes);
        return;
    }
    if (s->kind == QT_E2M1) {
        fp4_store(out, n, params, codes);
        return;
    }
    if (s->kind == QT_E4M3) {
        memcpy((uint8_t *)out->w[QT_CODES] + n * out->t.K, codes, (size_t)out->t.K);
        return;
    }
    int64_t K = out->t.K, ng = lq_ceil_div(K, s->group);
    size_t elem = lq_dtype_bytes(s->scale_dtype), row = (size_t)n;
    uint8_t *scales = (uint8_t *)out->w[QT_SCALES] + row * (size_t)ng * elem;
    for (int64_t g = 0; g < ng; g++) {
        lq_from_f32(scales + (size_t)g * elem, &params[g].scale, s->scale_dtype, 1);
        if (s->zero == QT_ZERO_INT) zeros[g] = (uint8_t)params[g].zero;
        if (s->zero == QT_ZERO_F16)
            ((uint16_t *)out->w[QT_ZEROS])[(int64_t)row * ng + g] = lq_f32_to_f16(params[g].zero);
    }
    if (s->zero == QT_ZERO_INT)
        qt_pack_row((uint8_t *)out->w[QT_ZEROS] + row * qt_row_bytes(ng, s->zbits), zeros, ng,
                    s->zbits);
    uint8_t *to = (uint8_t *)out->w[QT_CODES] + row * qt_row_bytes(K, s->bits);
    if (s->bits == 4)
        qz_rows_get()->pack4(to, codes, K);
    else
        qt_pack_row(to, codes, K, s->bits);
}
