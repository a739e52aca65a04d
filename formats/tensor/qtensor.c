/* formats/tensor/qtensor.c - names, sizes and the reference reading of quantized tensors. */
#include "formats/tensor/qtensor.h"
#include "formats/tensor/tiles.h"

#include <stdio.h>
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

/* ---- names ---- */
static const char *const zero_suffix[QT_N_ZEROS] = { "", "-asym", "-fzero", "-bias" };
static const char *const act_suffix[QT_N_ACTS] = { "", "-a8", "-af8" };

/* A count of rows or inputs that share something; `all` for 0. */
static const char *count_text(char out[24], int64_t n, const char *all)
{
    snprintf(out, 24, "%lld", (long long)n);
    return n ? out : all;
}

static int weight_text(char *out, size_t room, const qt_scheme *s)
{
    char a[24], b[24], group[32] = "";
    switch (s->kind) {
    case QT_DENSE:
        return snprintf(out, room, "%s", lq_dtype_text(s->dtype));
    case QT_UINT:
        return snprintf(out, room, "u%d-g%lld%s", s->bits, (long long)s->group,
                        zero_suffix[s->zero]);
    case QT_I8:
        return snprintf(out, room, "i8-row%s", s->zero ? "-asym" : "");
    case QT_I8_OUTLIER:
        return snprintf(out, room, "i8-outlier");
    case QT_LUT4:
        if (s->group != 64) snprintf(group, sizeof group, "-g%lld", (long long)s->group);
        return snprintf(out, room, "%s%s%s", s->fp4 ? "fp4" : "nf4", group,
                        s->dbl ? "-double" : "");
    case QT_E4M3:
        if (!s->group && s->rows < 2)
            return snprintf(out, room, "fp8-e4m3%s", s->rows ? "" : "-tensor");
        return snprintf(out, room, "fp8-e4m3-b%sx%s", count_text(a, s->rows, "N"),
                        count_text(b, s->group, "K"));
    case QT_E2M1:
        return snprintf(out, room, "%s", s->scale_dtype == LQ_F8_E8M0 ? "mxfp4" : "nvfp4");
    default:
        return snprintf(out, room, "?");
    }
}

void qt_scheme_text(char out[40], const qt_scheme *s)
{
    char group[32] = "";
    int n = weight_text(out, 40, s);
    if (!s->act || n < 0 || n >= 40) return;
    if (s->act_group) snprintf(group, sizeof group, "-g%lld", (long long)s->act_group);
    snprintf(out + n, (size_t)(40 - n), "%s%s%s", act_suffix[s->act], group,
             s->act_scale != 0 ? "-static" : "");
}

/* A number, or the letter `all` for 0. */
static bool take_count(const char **p, char all, int64_t *n)
{
    const char *q = *p;
    if (*q == all) {
        *n = 0;
        *p = q + 1;
        return true;
    }
    int64_t v = 0;
    int digits = 0;
    for (; *q >= '0' && *q <= '9' && digits < 10; q++, digits++)
        v = v * 10 + (*q - '0');
    if (!digits || v == 0) return false;
    *n = v;
    *p = q;
    return true;
}

/* "-gNUMBER" or "-gK" at *p: moves *p behind it. K is written as group 0. */
static bool take_group(const char **p, int64_t *group)
{
    if (strncmp(*p, "-g", 2) != 0) return false;
    const char *q = *p + 2;
    if (!take_count(&q, 'K', group)) return false;
    *p = q;
    return true;
}

static bool take(const char **p, const char *word)
{
    size_t n = strlen(word);
    if (strncmp(*p, word, n) != 0) return false;
    *p += n;
    return true;
}

lq_status qt_scheme_parse(qt_scheme *out, const char *text, lq_err *err)
{
    const char *p = text;
    qt_scheme s = { 0 };
    bool ok = false;
    if (lq_dtype_from_text(&s.dtype, text) && lq_dtype_is_float(s.dtype)) {
        *out = s; /* kind 0 is QT_DENSE */
        return LQ_OK;
    }
    s.dtype = LQ_F32;
    if (take(&p, "i8-row")) {
        s.kind = QT_I8;
        s.zero = take(&p, "-asym") ? QT_ZERO_INT : QT_ZERO_NONE;
        s.div127 = !s.zero;
        ok = true;
    } else if (take(&p, "i8-outlier")) {
        s.kind = QT_I8_OUTLIER;
        s.div127 = true;
        ok = true;
    } else if (take(&p, "nf4") || take(&p, "fp4")) {
        s.kind = QT_LUT4;
        s.fp4 = text[0] == 'f';
        s.group = 64;
        take_group(&p, &s.group);
        s.dbl = take(&p, "-double");
        ok = s.group > 0;
    } else if (take(&p, "fp8-e4m3")) {
        s.kind = QT_E4M3;
        ok = true;
        if (take(&p, "-b"))
            ok = take_count(&p, 'N', &s.rows) && take(&p, "x") && take_count(&p, 'K', &s.group);
        else
            s.rows = take(&p, "-tensor") ? 0 : 1;
    } else if (take(&p, "mxfp4") || take(&p, "nvfp4")) {
        s.kind = QT_E2M1;
        s.scale_dtype = text[0] == 'm' ? LQ_F8_E8M0 : LQ_F8_E4M3;
        s.group = text[0] == 'm' ? 32 : 16;
        ok = true;
    } else if (*p == 'u' && p[1] && strchr("2348", p[1])) {
        s.kind = QT_UINT;
        s.bits = p[1] - '0';
        s.zbits = s.bits;
        s.scale_dtype = LQ_F16;
        p += 2;
        ok = take_group(&p, &s.group);
        if (take(&p, "-asym"))
            s.zero = QT_ZERO_INT;
        else if (take(&p, "-fzero"))
            s.zero = QT_ZERO_F16;
        else if (take(&p, "-bias"))
            s.zero = QT_ZERO_BIAS;
    }
    if (take(&p, act_suffix[QT_ACT_I8]))
        s.act = QT_ACT_I8;
    else if (take(&p, act_suffix[QT_ACT_F8]))
        s.act = QT_ACT_F8;
    if (s.act) take_group(&p, &s.act_group);
    if (!ok || *p)
        return lq_fail(err, LQ_EVALUE,
                       "scheme '%s': expected f32, f16, bf16, i8-row[-asym], i8-outlier, "
                       "u{2,3,4,8}-gG[-asym|-fzero|-bias], nf4|fp4[-gG][-double], "
                       "fp8-e4m3[-tensor|-bRxG], mxfp4 or nvfp4, then [-a8|-af8[-gG]]",
                       text);
    *out = s;
    return LQ_OK;
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
    default:
        return lq_fail(err, LQ_EUNSUPPORTED, "unknown scheme kind %d", (int)s->kind);
    }
}

/* ---- sizes ---- */
static size_t dtype_bytes(lq_dtype d) { return (size_t)lq_dtype_bits(d) / 8; }
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
        return p == QT_CODES ? n * k * dtype_bytes(s->dtype) : 0;
    case QT_UINT:
        if (p == QT_CODES) return n * qt_row_bytes(K, s->bits);
        if (p == QT_SCALES) return n * ng * dtype_bytes(s->scale_dtype);
        if (p == QT_ZEROS && s->zero == QT_ZERO_INT) return n * qt_row_bytes((int64_t)ng, s->zbits);
        if (p == QT_ZEROS && s->zero == QT_ZERO_F16) return n * ng * 2;
        if (p == QT_ZEROS && s->zero == QT_ZERO_BIAS) return n * ng * dtype_bytes(s->scale_dtype);
        return p == QT_GIDX && s->irregular ? k * 4 : 0;
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
    default:
        return 0;
    }
}

static size_t tile_bytes(const qt_scheme *s, int64_t N, int64_t K, qt_plane p)
{
    tile_shape t = tiles_shape(s, N, K);
    size_t tiles = (size_t)t.tiles, entries = tiles * (size_t)t.ng * TILE_N;
    switch (p) {
    case QT_CODES:
        return tiles * t.tile_bytes;
    case QT_SCALES:
        return entries * (size_t)t.subs * tiles_scale_bytes(s);
    case QT_ZEROS:
        return entries * tiles_zero_bytes(s);
    case QT_GIDX:
        return s->kind == QT_UINT && s->irregular ? (size_t)K * 4 : 0;
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
static int32_t get_i32(const void *p, int64_t i)
{
    int32_t v;
    memcpy(&v, (const uint8_t *)p + 4 * i, 4);
    return v;
}

/* GIDX, portable: group numbers, `group` inputs in each. Tiled: a permutation of the inputs. Both
 * are "each of n values exactly `each` times". */
static lq_status check_counts(const qt_span *s, int64_t K, int64_t n, int64_t each, lq_err *err)
{
    int32_t *count = calloc((size_t)n, sizeof *count);
    if (!count) return lq_fail(err, LQ_ENOMEM, "no memory to check gidx of %lld", (long long)K);
    lq_status st = LQ_OK;
    for (int64_t k = 0; k < K && !st; k++) {
        int32_t v = get_i32(s->data, k);
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
        qt_scheme tiled = tiles_scheme(s, t->N, t->K);
        if (tiled.kind != s->kind || tiled.dbl != s->dbl)
            return lq_fail(err, LQ_EFORMAT, "this scheme has no tile16 layout");
    }
    for (int p = 0; p < QT_N_PLANES; p++) {
        size_t want = qt_plane_bytes(s, t->layout, t->N, t->K, (qt_plane)p);
        if (t->plane[p].bytes != want || (want && !t->plane[p].data))
            return lq_fail(err, LQ_EFORMAT, "plane %s: expected %zu bytes, found %zu",
                           qt_plane_text((qt_plane)p), want, t->plane[p].bytes);
    }
    if (s->kind == QT_UINT && s->irregular) {
        bool tiled = t->layout == QT_TILE16;
        st = check_counts(&t->plane[QT_GIDX], t->K, tiled ? t->K : t->K / s->group,
                          tiled ? 1 : s->group, err);
    }
    for (int64_t i = 0, last = -1; s->kind == QT_I8_OUTLIER && i < s->n_out && !st; i++) {
        int32_t v = get_i32(t->plane[QT_OUT_IDX].data, i);
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

/* ---- codes side by side ---- */
/* Of a known number of bits a compiler makes shifts by constants. */
#if defined(__GNUC__)
#define QT_BITS static inline __attribute__((always_inline))
#else
#define QT_BITS static inline
#endif
#define EACH_BITS(bits, fn, dst, src, n) \
    switch (bits) {                      \
    case 2:                              \
        fn(dst, src, n, 2);              \
        break;                           \
    case 3:                              \
        fn(dst, src, n, 3);              \
        break;                           \
    case 4:                              \
        fn(dst, src, n, 4);              \
        break;                           \
    default:                             \
        fn(dst, src, n, bits);           \
        break;                           \
    }

/* Eight codes as the bytes of a word, and side by side: neighbours move together, then pairs, then
 * fours. */
typedef struct {
    int gap;                 /* bits of a byte that a code leaves */
    uint64_t one, two, four; /* the lower of two codes in every 16 bits, pair in every 32, four */
} packing;

static packing packing_of(int bits)
{
    const uint64_t bit = 1;
    return (packing){ .gap = 8 - bits,
                      .one = ((bit << bits) - 1) * 0x0001000100010001u,
                      .two = ((bit << 2 * bits) - 1) * 0x0000000100000001u,
                      .four = (bit << 4 * bits) - 1 };
}

QT_BITS uint64_t together(uint64_t x, packing p)
{
    x = (x & p.one) | (x & p.one << 8) >> p.gap;
    x = (x & p.two) | (x & p.two << 16) >> 2 * p.gap;
    return (x & p.four) | (x & p.four << 32) >> 4 * p.gap;
}

QT_BITS uint64_t apart(uint64_t x, packing p, int bits)
{
    x = (x & p.four) | (x & p.four << 4 * bits) << 4 * p.gap;
    x = (x & p.two) | (x & p.two << 2 * bits) << 2 * p.gap;
    return (x & p.one) | (x & p.one << bits) << p.gap;
}

QT_BITS void pack_bits(uint8_t *row, const uint8_t *codes, int64_t K, int bits)
{
    const packing p = packing_of(bits);
    const uint8_t *end = row + qt_row_bytes(K, bits);
    uint64_t x = 0;
    for (; K >= 8 && end - row >= 8; K -= 8, codes += 8, row += bits) {
        memcpy(&x, codes, 8);
        x = together(x, p);
        memcpy(row, &x, 8); /* what is too much the next codes go over */
    }
    for (; K > 0; K -= 8, codes += 8, row += bits) {
        x = 0;
        memcpy(&x, codes, K < 8 ? (size_t)K : 8);
        x = together(x, p);
        memcpy(row, &x, end - row < 8 ? (size_t)(end - row) : 8);
    }
}

QT_BITS void unpack_bits(uint8_t *codes, const uint8_t *row, int64_t K, int bits)
{
    const packing p = packing_of(bits);
    const uint8_t *end = row + qt_row_bytes(K, bits);
    uint64_t x = 0;
    for (; K >= 8 && end - row >= 8; K -= 8, codes += 8, row += bits) {
        memcpy(&x, row, 8);
        x = apart(x, p, bits);
        memcpy(codes, &x, 8);
    }
    for (; K > 0; K -= 8, codes += 8, row += bits) {
        x = 0;
        memcpy(&x, row, end - row < 8 ? (size_t)(end - row) : 8);
        x = apart(x, p, bits);
        memcpy(codes, &x, K < 8 ? (size_t)K : 8);
    }
}

/* Nibbles, 32 at a time: a loop of a fixed length that compilers make vectors of. Returns how many
 * were done. */
static int64_t unpack_nibbles(uint8_t *restrict codes, const uint8_t *restrict row, int64_t K)
{
    enum { BYTES = 16 };
    int64_t k = 0;
    for (; k + 2 * BYTES <= K; k += 2 * BYTES)
        for (int j = 0; j < BYTES; j++) {
            codes[k + 2 * j] = row[k / 2 + j] & 15;
            codes[k + 2 * j + 1] = row[k / 2 + j] >> 4;
        }
    return k;
}

static int64_t pack_nibbles(uint8_t *restrict row, const uint8_t *restrict codes, int64_t K)
{
    enum { BYTES = 16 };
    int64_t k = 0;
    for (; k + 2 * BYTES <= K; k += 2 * BYTES)
        for (int j = 0; j < BYTES; j++) {
            uint16_t two;
            memcpy(&two, codes + k + 2 * j, 2);
            row[k / 2 + j] = (uint8_t)((two & 15) | (two >> 4 & 0xf0));
        }
    return k;
}

void qt_pack_row(uint8_t *row, const uint8_t *codes, int64_t K, int bits)
{
    if (bits == 8) {
        memcpy(row, codes, (size_t)K);
        return;
    }
    const int64_t k = bits == 4 ? pack_nibbles(row, codes, K) : 0;
    EACH_BITS(bits, pack_bits, row + k / 2, codes + k, K - k);
}

static void unpack_row(uint8_t *codes, const uint8_t *row, int64_t K, int bits)
{
    if (bits == 8) {
        memcpy(codes, row, (size_t)K);
        return;
    }
    const int64_t k = bits == 4 ? unpack_nibbles(codes, row, K) : 0;
    EACH_BITS(bits, unpack_bits, codes + k, row + k / 2, K - k);
}

void qt_unpack(uint8_t *codes, const uint8_t *row, int64_t k, int64_t n, int bits)
{
    for (; n && k % 8; k++, n--)
        *codes++ = (uint8_t)qt_get(row, k, bits);
    if (n) unpack_row(codes, row + (size_t)k / 8 * (size_t)bits, n, bits);
}

/* ---- the reference reading ---- */
static float get_float(const void *p, lq_dtype d, size_t i)
{
    float f;
    lq_to_f32(&f, (const uint8_t *)p + i * dtype_bytes(d), d, 1);
    return f;
}

/* scale * code + add, or scale * (code - zero), of one group. */
typedef struct {
    float scale, zero, add;
    bool biased; /* add counts, not zero */
} uint_grid;

static uint_grid grid_of(const qt_tensor *t, const uint8_t *zeros, int64_t n, int64_t ng, int64_t g)
{
    const qt_scheme *s = &t->scheme;
    const size_t at = (size_t)(n * ng + g);
    uint_grid r = { .scale = get_float(t->plane[QT_SCALES].data, s->scale_dtype, at) };
    r.biased = s->zero == QT_ZERO_BIAS;
    if (r.biased)
        r.add = get_float(zeros, s->scale_dtype, at);
    else
        r.zero = s->zero == QT_ZERO_NONE  ? (float)(1 << (s->bits - 1))
                 : s->zero == QT_ZERO_INT ? (float)qt_get(zeros, g, s->zbits)
                                          : get_float(zeros, LQ_F16, at);
    return r;
}

static float grid_value(uint_grid r, float code)
{
    return r.biased ? r.scale * code + r.add : r.scale * (code - r.zero);
}

/* Of n codes, a multiple of BLOCK: of a fixed length, so that compilers use vectors. */
enum { BLOCK = 16 };
static void grid_values(float *dst, const uint8_t *codes, int64_t n, uint_grid r)
{
    if (r.biased)
        for (int64_t i = 0; i < n; i += BLOCK)
            for (int j = 0; j < BLOCK; j++)
                dst[i + j] = r.scale * (float)codes[i + j] + r.add;
    else
        for (int64_t i = 0; i < n; i += BLOCK)
            for (int j = 0; j < BLOCK; j++)
                dst[i + j] = r.scale * ((float)codes[i + j] - r.zero);
}

/* Codes k .. k + n of a row by their grid. They are unpacked a piece at a time: read back at once
 * they would wait for the stores. */
static void dequant_run(float *dst, const uint8_t *row, int bits, uint_grid r, int64_t k, int64_t n)
{
    enum { PIECE = 256 };
    uint8_t codes[PIECE];
    int64_t i = 0;
    while (k % 8 == 0 && n - i >= BLOCK) {
        const int64_t len = n - i < PIECE ? (n - i) / BLOCK * BLOCK : PIECE;
        unpack_row(codes, row + (size_t)(k + i) / 8 * (size_t)bits, len, bits);
        grid_values(dst + i, codes, len, r);
        i += len;
    }
    for (; i < n; i++)
        dst[i] = grid_value(r, (float)qt_get(row, k + i, bits));
}

static void dequant_uint(float *dst, const qt_tensor *t, int64_t n)
{
    const qt_scheme *s = &t->scheme;
    const int64_t ng = lq_ceil_div(t->K, s->group);
    const uint8_t *codes =
        (const uint8_t *)t->plane[QT_CODES].data + (size_t)n * qt_row_bytes(t->K, s->bits);
    const uint8_t *zeros = t->plane[QT_ZEROS].data;
    if (s->zero == QT_ZERO_INT) zeros += (size_t)n * qt_row_bytes(ng, s->zbits);
    if (s->irregular) {
        for (int64_t k = 0; k < t->K; k++) {
            const int64_t g = get_i32(t->plane[QT_GIDX].data, k);
            dst[k] = grid_value(grid_of(t, zeros, n, ng, g), (float)qt_get(codes, k, s->bits));
        }
        return;
    }
    for (int64_t g = 0, k = 0; g < ng; g++) {
        const uint_grid r = grid_of(t, zeros, n, ng, g);
        const int64_t n_in = t->K - k < s->group ? t->K - k : s->group;
        dequant_run(dst + k, codes, s->bits, r, k, n_in);
        k += n_in;
    }
}

static void dequant_i8(float *dst, const qt_tensor *t, int64_t n)
{
    const qt_scheme *s = &t->scheme;
    const int8_t *codes = (const int8_t *)t->plane[QT_CODES].data + n * t->K;
    int z = s->zero ? ((const int8_t *)t->plane[QT_ZEROS].data)[n] : 0;
    float scale = get_float(t->plane[QT_SCALES].data, LQ_F32, (size_t)n);
    if (s->div127) scale /= 127.0f;
    int64_t k = 0;
    for (; k + BLOCK <= t->K; k += BLOCK)
        for (int j = 0; j < BLOCK; j++)
            dst[k + j] = scale * (float)(codes[k + j] - z);
    for (; k < t->K; k++)
        dst[k] = scale * (float)(codes[k] - z);
    for (int64_t i = 0; s->kind == QT_I8_OUTLIER && i < s->n_out; i++)
        dst[get_i32(t->plane[QT_OUT_IDX].data, i)] =
            get_float(t->plane[QT_OUT_VALS].data, LQ_BF16, (size_t)(n * s->n_out + i));
}

float qt_lut_absmax(const qt_tensor *t, int64_t block)
{
    const void *scales = t->plane[QT_SCALES].data;
    if (!t->scheme.dbl) return get_float(scales, LQ_F32, (size_t)block);
    float a = get_float(t->plane[QT_MAP2].data, LQ_F32, ((const uint8_t *)scales)[block]) *
              get_float(t->plane[QT_SCALES2].data, LQ_F32, (size_t)block / 256);
    return a + t->scheme.offset;
}

/* The two values of every byte of codes, the high half's first. */
typedef struct {
    float v[256][2];
} lut_pairs;

static void pairs_of(lut_pairs *p, const qt_tensor *t)
{
    float map[16];
    memcpy(map, t->plane[QT_MAP].data, sizeof map);
    for (int b = 0; b < 256; b++) {
        p->v[b][0] = map[b >> 4];
        p->v[b][1] = map[b & 15];
    }
}

/* n codes from number i on, times absmax; four at once where they are two whole bytes. */
static void lut_values(float *dst, const uint8_t *codes, int64_t i, int64_t n, const lut_pairs *p,
                       float absmax)
{
    const int64_t end = i + n;
    for (; i < end && i % 2; i++)
        *dst++ = p->v[codes[i / 2]][1] * absmax;
    for (const uint8_t *c = codes + (size_t)i / 2; i + 4 <= end; i += 4, dst += 4, c += 2) {
        float four[4];
        memcpy(four, p->v[c[0]], sizeof p->v[0]);
        memcpy(four + 2, p->v[c[1]], sizeof p->v[0]);
        for (int j = 0; j < 4; j++)
            dst[j] = four[j] * absmax;
    }
    for (; i < end; i++)
        *dst++ = p->v[codes[i / 2]][i % 2] * absmax;
}

static void dequant_lut4(float *dst, const qt_tensor *t, int64_t n, const lut_pairs *p)
{
    const uint8_t *codes = t->plane[QT_CODES].data;
    const int64_t group = t->scheme.group, from = n * t->K, to = from + t->K;
    for (int64_t i = from, len; i < to; i += len) { /* flat: blocks run across rows */
        const int64_t block = i / group, left = (block + 1) * group - i;
        len = left < to - i ? left : to - i;
        lut_values(dst + (i - from), codes, i, len, p, qt_lut_absmax(t, block));
    }
}

const float qt_e2m1[16] = { 0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                            -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f };

float qt_scale(const qt_tensor *t, int64_t n, int64_t k)
{
    const qt_scheme *s = &t->scheme;
    const uint8_t *scales = t->plane[QT_SCALES].data;
    const int64_t block = s->rows ? n / s->rows : 0;
    if (s->kind == QT_E4M3) {
        int64_t ng = s->group ? lq_ceil_div(t->K, s->group) : 1;
        return get_float(scales, LQ_F32, (size_t)(block * ng + (s->group ? k / s->group : 0)));
    }
    uint8_t c = scales[n * (t->K / s->group) + k / s->group];
    if (s->scale_dtype == LQ_F8_E8M0) return lq_e8m0_to_f32(c);
    float second = get_float(t->plane[QT_SCALES2].data, LQ_F32, (size_t)block);
    return s->recip ? lq_e4m3_to_f32(c) / second : lq_e4m3_to_f32(c) * second;
}

static void dequant_small_float(float *dst, const qt_tensor *t, int64_t n)
{
    const qt_scheme *s = &t->scheme;
    const bool e4m3 = s->kind == QT_E4M3;
    const int64_t group = s->group ? s->group : t->K;
    const size_t row_bytes = qt_row_bytes(t->K, e4m3 ? 8 : 4);
    const uint8_t *codes = (const uint8_t *)t->plane[QT_CODES].data + (size_t)n * row_bytes;
    float scale = 0;
    for (int64_t k = 0; k < t->K; k++) {
        if (k % group == 0) scale = qt_scale(t, n, k);
        dst[k] = (e4m3 ? lq_e4m3_to_f32(codes[k]) : qt_e2m1[qt_get(codes, k, 4)]) * scale;
    }
}

void qt_dequant(float *dst, const qt_tensor *t, int64_t n0, int64_t n1)
{
    lut_pairs pairs;
    if (t->scheme.kind == QT_LUT4) pairs_of(&pairs, t);
    for (int64_t n = n0; n < n1; n++, dst += t->K) {
        switch (t->scheme.kind) {
        case QT_DENSE:
            lq_to_f32(dst,
                      (const uint8_t *)t->plane[QT_CODES].data +
                          (size_t)(n * t->K) * dtype_bytes(t->scheme.dtype),
                      t->scheme.dtype, (size_t)t->K);
            break;
        case QT_UINT:
            dequant_uint(dst, t, n);
            break;
        case QT_I8:
        case QT_I8_OUTLIER:
            dequant_i8(dst, t, n);
            break;
        case QT_LUT4:
            dequant_lut4(dst, t, n, &pairs);
            break;
        case QT_E4M3:
        case QT_E2M1:
            dequant_small_float(dst, t, n);
            break;
        default:
            break;
        }
    }
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
