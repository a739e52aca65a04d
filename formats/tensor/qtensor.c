/* formats/tensor/qtensor.c - which schemes fit which shapes, the sizes of their planes, and views of rows. */
#include "formats/tensor/qtensor.h"
#include "formats/tensor/blocks.h"
#include "formats/tensor/tiles.h"

#include <stdlib.h>

static const char *const plane_names[QT_N_PLANES] = { "codes", "scales",  "zeros",
                                                      "gidx",  "out_idx", "out_vals",
                                                      "map",   "scales2", "map2" };
static const char *const layout_names[QT_N_LAYOUTS] = { "portable", "tile16" };

const char *qt_plane_text(qt_plane p) { return (unsigned)p < QT_N_PLANES ? plane_names[p] : "?"; }
const char *qt_layout_text(qt_layout l)
{
    return (unsigned)l < QT_N_LAYOUTS ? layout_names[l] : "?";
}

/* ---- legality ---- */
static lq_status check_e2m1(const qt_scheme *s, int64_t K, lq_err *err)
{
    const bool mx = s->scale_dtype == LQ_F8_E8M0;
    if (!mx && s->scale_dtype != LQ_F8_E4M3)
        return lq_fail(err, LQ_EVALUE, "scales: expected f8_e8m0 or f8_e4m3, found %s",
                       lq_dtype_text(s->scale_dtype));
    if (s->group != (mx ? 32 : 16) || s->rows < 0 || (mx && (s->rows || s->recip)))
        return lq_fail(err, LQ_EVALUE,
                       "4-bit floats: expected groups of 32 for f8_e8m0 scales, of "
                       "16 for f8_e4m3, found %lld",
                       (long long)s->group);
    if (K % s->group)
        return lq_fail(err, LQ_ESHAPE, "group size %lld does not divide %lld inputs",
                       (long long)s->group, (long long)K);
    return LQ_OK;
}

static lq_status check_blocks(const qt_scheme *s, int64_t K, lq_err *err)
{
    const blk_type *t = blk_find(s->blocks);
    if (!t) return lq_fail(err, LQ_EUNSUPPORTED, "blocks: unknown type %d", s->blocks);
    if (K % t->elements)
        return lq_fail(err, LQ_ESHAPE, "blocks of %d elements do not divide %lld inputs",
                       t->elements, (long long)K);
    return LQ_OK;
}

lq_status qt_check(const qt_scheme *s, int64_t N, int64_t K, lq_err *err)
{
    /* 2^31 inputs index with int32; 2^48 elements leave room for every product below. */
    if (N < 1 || K < 1 || K > INT32_MAX || N > (INT64_C(1) << 48) / K)
        return lq_fail(err, LQ_ESHAPE, "shape [%lld,%lld]: expected 1.. rows and 1..2^31-1 columns",
                       (long long)N, (long long)K);
    if ((unsigned)s->act >= QT_N_ACTS || s->act_group < 0 || !isfinite(s->act_scale) ||
        s->act_scale < 0 || (!s->act && (s->act_group || s->act_scale > 0)))
        return lq_fail(err, LQ_EVALUE,
                       "rounding of inputs: expected a known kind, groups and a scale of 0 or "
                       "above, found kind %d, group %lld, scale %g",
                       (int)s->act, (long long)s->act_group, (double)s->act_scale);
    switch (s->kind) {
    case QT_DENSE:
        if (!lq_dtype_is_float(s->dtype))
            return lq_fail(err, LQ_EUNSUPPORTED,
                           "dense weights: expected f32, f16 or bf16, found %s",
                           lq_dtype_text(s->dtype));
        return LQ_OK;
    case QT_UINT:
        if (s->bits != 2 && s->bits != 3 && s->bits != 4 && s->bits != 8)
            return lq_fail(err, LQ_EVALUE, "bits: expected 2, 3, 4 or 8, found %d", s->bits);
        if (s->group < 1 || K % s->group)
            return lq_fail(err, LQ_ESHAPE, "group size %lld does not divide %lld inputs",
                           (long long)s->group, (long long)K);
        if (!lq_dtype_is_float(s->scale_dtype))
            return lq_fail(err, LQ_EVALUE, "scales: expected f16, bf16 or f32, found %s",
                           lq_dtype_text(s->scale_dtype));
        if ((unsigned)s->zero >= QT_N_ZEROS)
            return lq_fail(err, LQ_EVALUE, "zero points: unknown kind %d", (int)s->zero);
        if (s->zero == QT_ZERO_INT && s->zbits != s->bits && s->zbits != 8)
            return lq_fail(err, LQ_EVALUE, "bits of a zero point: expected %d or 8, found %d",
                           s->bits, s->zbits);
        return LQ_OK;
    case QT_I8:
        if (s->zero != QT_ZERO_NONE && s->zero != QT_ZERO_INT)
            return lq_fail(err, LQ_EVALUE, "i8-row: expected no or integer zero points");
        return LQ_OK;
    case QT_I8_OUTLIER:
        if (s->zero != QT_ZERO_NONE)
            return lq_fail(err, LQ_EVALUE, "i8-outlier: expected no zero points");
        if (s->n_out < 0 || s->n_out > K)
            return lq_fail(err, LQ_ESHAPE, "outlier columns: expected 0..%lld, found %lld",
                           (long long)K, (long long)s->n_out);
        return LQ_OK;
    case QT_LUT4:
        if (s->group < 1 || s->group > (INT64_C(1) << 31))
            return lq_fail(err, LQ_EVALUE, "block size: expected 1..2^31, found %lld",
                           (long long)s->group);
        return LQ_OK;
    case QT_E4M3:
        if (s->group < 0 || s->group > INT32_MAX || s->rows < 0 || s->rows > (INT64_C(1) << 48))
            return lq_fail(err, LQ_EVALUE,
                           "block: expected 0 or more rows and inputs, found "
                           "[%lld,%lld]",
                           (long long)s->rows, (long long)s->group);
        return LQ_OK;
    case QT_E2M1:
        return check_e2m1(s, K, err);
    case QT_BLOCKS:
        return check_blocks(s, K, err);
    default:
        return lq_fail(err, LQ_EUNSUPPORTED, "unknown scheme kind %d", (int)s->kind);
    }
}

/* ---- sizes ---- */
/* Rows of scales where `rows` of the weight share one. */
static int64_t scale_rows(const qt_scheme *s, int64_t N)
{
    return s->rows ? lq_ceil_div(N, s->rows) : 1;
}
static int64_t lut_blocks(const qt_scheme *s, int64_t N, int64_t K)
{
    return lq_ceil_div(N * K, s->group);
}

static size_t portable_bytes(const qt_scheme *s, int64_t N, int64_t K, qt_plane p)
{
    size_t n = (size_t)N, k = (size_t)K;
    size_t ng = s->kind == QT_UINT ? (size_t)lq_ceil_div(K, s->group) : 0;
    switch (s->kind) {
    case QT_DENSE:
        return p == QT_CODES ? n * k * lq_dtype_bytes(s->dtype) : 0;
    case QT_UINT:
        if (p == QT_CODES) return n * qt_row_bytes(K, s->bits);
        if (p == QT_SCALES) return n * ng * lq_dtype_bytes(s->scale_dtype);
        if (p == QT_ZEROS && s->zero == QT_ZERO_INT) return n * qt_row_bytes((int64_t)ng, s->zbits);
        if (p == QT_ZEROS && s->zero == QT_ZERO_F16) return n * ng * 2;
        if (p == QT_ZEROS && s->zero == QT_ZERO_BIAS)
            return n * ng * lq_dtype_bytes(s->scale_dtype);
        return p == QT_GIDX && s->act_order ? k * 4 : 0;
    case QT_I8:
    case QT_I8_OUTLIER:
        if (p == QT_CODES) return n * k;
        if (p == QT_SCALES) return n * 4;
        if (p == QT_ZEROS) return s->zero == QT_ZERO_INT ? n : 0;
        if (s->kind == QT_I8) return 0;
        return p == QT_OUT_IDX    ? (size_t)s->n_out * 4
               : p == QT_OUT_VALS ? n * (size_t)s->n_out * 2
                                  : 0;
    case QT_LUT4: {
        size_t nb = (size_t)lut_blocks(s, N, K);
        switch (p) {
        case QT_CODES:
            return (n * k + 1) / 2;
        case QT_SCALES:
            return s->dbl ? nb : nb * 4;
        case QT_MAP:
            return 16 * 4;
        case QT_SCALES2:
            return s->dbl ? (nb + 255) / 256 * 4 : 0;
        case QT_MAP2:
            return s->dbl ? 256 * 4 : 0;
        default:
            return 0;
        }
    }
    case QT_E4M3:
        if (p == QT_CODES) return n * k;
        if (p != QT_SCALES) return 0;
        return (size_t)scale_rows(s, N) * (size_t)(s->group ? lq_ceil_div(K, s->group) : 1) * 4;
    case QT_E2M1:
        if (p == QT_CODES) return n * qt_row_bytes(K, 4);
        if (p == QT_SCALES) return n * (k / (size_t)s->group);
        return p == QT_SCALES2 && s->scale_dtype == LQ_F8_E4M3 ? (size_t)scale_rows(s, N) * 4 : 0;
    case QT_BLOCKS:
        return p == QT_CODES ? n * blk_row_bytes(blk_find(s->blocks), K) : 0;
    default:
        return 0;
    }
}

/* Of QT_BLOCKS. */
static size_t tile_side_bytes(const qt_scheme *s, int64_t K, qt_plane p)
{
    const blk_type *b = blk_find(s->blocks);
    const size_t groups = (size_t)(K / b->group), blocks = (size_t)(K / b->elements);
    if (p == QT_SCALES2) return blocks * (b->bias ? 2 : 1) * TILE_N * 2;
    if (p == QT_SCALES) return b->fine ? groups * TILE_N : 0;
    return p == QT_ZEROS && b->fine && b->bias ? groups * TILE_N : 0;
}

static size_t tile_bytes(const qt_scheme *s, int64_t N, int64_t K, qt_plane p)
{
    tile_shape t = tiles_shape(s, N, K);
    if (s->kind == QT_BLOCKS && p != QT_CODES) return (size_t)t.tiles * tile_side_bytes(s, K, p);
    size_t tiles = (size_t)t.tiles, entries = tiles * (size_t)t.ng * TILE_N;
    switch (p) {
    case QT_CODES:
        return tiles * t.tile_bytes;
    case QT_SCALES:
        return entries * (size_t)t.subs * tiles_scale_bytes(s);
    case QT_ZEROS:
        return entries * tiles_zero_bytes(s);
    case QT_GIDX:
        return s->kind == QT_UINT && s->act_order ? (size_t)K * 4 : 0;
    case QT_OUT_IDX:
        return s->kind == QT_I8_OUTLIER ? (size_t)s->n_out * 4 : 0;
    case QT_OUT_VALS:
        return s->kind == QT_I8_OUTLIER ? tiles * lq_round_up((size_t)s->n_out, TILE_K) * TILE_N * 2
                                        : 0;
    case QT_MAP:
        return s->kind == QT_LUT4 ? 16 * 4 : 0;
    case QT_SCALES2:
        return s->kind == QT_E2M1 && s->scale_dtype == LQ_F8_E4M3 ? tiles * TILE_N * 4 : 0;
    default:
        return 0;
    }
}

size_t qt_plane_bytes(const qt_scheme *s, qt_layout l, int64_t N, int64_t K, qt_plane p)
{
    return l == QT_PORTABLE ? portable_bytes(s, N, K, p) : tile_bytes(s, N, K, p);
}

size_t qt_bytes(const qt_scheme *s, int64_t N, int64_t K)
{
    size_t sum = 0;
    for (int p = 0; p < QT_N_PLANES; p++)
        sum += portable_bytes(s, N, K, (qt_plane)p);
    return sum;
}

/* ---- views ---- */
/* GIDX, portable: group numbers, `group` inputs in each. Tiled: a permutation of the inputs. Both
 * are "each of n values exactly `each` times". */
static lq_status check_counts(const qt_span *s, int64_t K, int64_t n, int64_t each, lq_err *err)
{
    int32_t *count = calloc((size_t)n, sizeof *count);
    if (!count) return lq_fail(err, LQ_ENOMEM, "no memory to check gidx of %lld", (long long)K);
    lq_status st = LQ_OK;
    for (int64_t k = 0; k < K && !st; k++) {
        int32_t v = qt_get_i32(s->data, k);
        if (v < 0 || v >= n)
            st = lq_fail(err, LQ_EVALUE, "gidx[%lld]: expected 0..%lld, found %d", (long long)k,
                         (long long)n - 1, v);
        else
            count[v]++;
    }
    for (int64_t g = 0; g < n && !st; g++)
        if (count[g] != each)
            st = lq_fail(err, LQ_EUNSUPPORTED, "gidx: expected value %lld %lld times, found %d",
                         (long long)g, (long long)each, count[g]);
    free(count);
    return st;
}

lq_status qt_check_view(const qt_tensor *t, lq_err *err)
{
    const qt_scheme *s = &t->scheme;
    lq_status st = qt_check(s, t->N, t->K, err);
    if (st) return st;
    if ((unsigned)t->layout >= QT_N_LAYOUTS)
        return lq_fail(err, LQ_EUNSUPPORTED, "unknown layout %d", (int)t->layout);
    if (t->layout == QT_TILE16) {
        if (!tiles_keep(s, t->N, t->K))
            return lq_fail(err, LQ_EFORMAT, "this scheme has no tile16 layout");
    }
    for (int p = 0; p < QT_N_PLANES; p++) {
        size_t want = qt_plane_bytes(s, t->layout, t->N, t->K, (qt_plane)p);
        if (t->plane[p].bytes != want || (want && !t->plane[p].data))
            return lq_fail(err, LQ_EFORMAT, "plane %s: expected %zu bytes, found %zu",
                           qt_plane_text((qt_plane)p), want, t->plane[p].bytes);
    }
    if (s->kind == QT_UINT && s->act_order) {
        bool tiled = t->layout == QT_TILE16;
        st = check_counts(&t->plane[QT_GIDX], t->K, tiled ? t->K : t->K / s->group,
                          tiled ? 1 : s->group, err);
    }
    for (int64_t i = 0, last = -1; s->kind == QT_I8_OUTLIER && i < s->n_out && !st; i++) {
        int32_t v = qt_get_i32(t->plane[QT_OUT_IDX].data, i);
        if (v <= last || v >= t->K)
            st = lq_fail(err, LQ_EVALUE, "out_idx[%lld]: expected %lld..%lld, found %d",
                         (long long)i, (long long)last + 1, (long long)t->K - 1, v);
        last = v;
    }
    return st;
}

lq_status qt_alloc(qt_tensor *t, void *w[QT_N_PLANES], const qt_scheme *s, int64_t N, int64_t K,
                   lq_arena *a, lq_err *err)
{
    lq_status st = qt_check(s, N, K, err);
    if (st) return st;
    *t = (qt_tensor){ .scheme = *s, .layout = QT_PORTABLE, .N = N, .K = K };
    for (int p = 0; p < QT_N_PLANES; p++) {
        size_t n = portable_bytes(s, N, K, (qt_plane)p);
        w[p] = n ? lq_push(a, n) : NULL;
        if (n && !w[p])
            return lq_fail(err, LQ_ENOMEM, "plane %s: no memory for %zu bytes",
                           qt_plane_text((qt_plane)p), n);
        t->plane[p] = (qt_span){ w[p], n };
    }
    return LQ_OK;
}

/* ---- a part of the rows ---- */
/* Bytes of plane p before row n, or SIZE_MAX: no whole number of blocks lies before it. */
static size_t bytes_before(const qt_tensor *t, qt_plane p, int64_t n)
{
    const qt_scheme *s = &t->scheme;
    if (p == QT_GIDX || p == QT_OUT_IDX || p == QT_MAP || p == QT_MAP2 || n == 0 ||
        !t->plane[p].bytes)
        return 0;
    if (s->kind == QT_LUT4) {
        int64_t each = p == QT_CODES ? 2 : p == QT_SCALES ? s->group : 256 * s->group;
        if (n * t->K % each) return SIZE_MAX;
    }
    const bool shared = (s->kind == QT_E4M3 && p == QT_SCALES) || p == QT_SCALES2;
    if (shared && (s->kind == QT_E4M3 || s->kind == QT_E2M1)) {
        if (!s->rows) return 0;
        if (n % s->rows) return SIZE_MAX;
    }
    return portable_bytes(s, n, t->K, p);
}

bool qt_rows(qt_tensor *out, const qt_tensor *t, int64_t n0, int64_t n1)
{
    *out = *t;
    if (t->layout != QT_PORTABLE || n0 < 0 || n1 > t->N || n0 >= n1) return false;
    out->N = n1 - n0;
    for (int p = 0; p < QT_N_PLANES; p++) {
        size_t at = bytes_before(t, (qt_plane)p, n0);
        size_t n = portable_bytes(&t->scheme, out->N, t->K, (qt_plane)p);
        if (at == SIZE_MAX) return false;
        if (t->plane[p].bytes) out->plane[p].data = (const uint8_t *)t->plane[p].data + at;
        out->plane[p].bytes = n;
    }
    return true;
}
