/* formats/tensor/finite.c */
#include "formats/tensor/finite.h"
#include "formats/tensor/blocks.h"

#include <stdio.h>

enum { RUN = 512 }; /* elements: a length that the compiler knows makes vectors without a rest */

/* ---- magnitudes ---- */
static inline int16_t more_bits16(int16_t most, const uint8_t *p)
{
    int16_t x; /* signed: the plainest vectors have that maximum */
    memcpy(&x, p, sizeof x);
    x = (int16_t)(x & 0x7fff);
    return x > most ? x : most;
}

static inline int32_t more_bits32(int32_t most, const uint8_t *p)
{
    int32_t x;
    memcpy(&x, p, sizeof x);
    x &= 0x7fffffff;
    return x > most ? x : most;
}

static uint32_t most_bits16(const uint8_t *p, size_t n)
{
    int16_t most = 0;
    size_t i = 0;
    for (; i + RUN <= n; i += RUN)
        for (size_t k = i; k < i + RUN; k++)
            most = more_bits16(most, p + 2 * k);
    for (; i < n; i++)
        most = more_bits16(most, p + 2 * i);
    return (uint32_t)most;
}

static uint32_t most_bits32(const uint8_t *p, size_t n)
{
    int32_t most = 0;
    size_t i = 0;
    for (; i + RUN <= n; i += RUN)
        for (size_t k = i; k < i + RUN; k++)
            most = more_bits32(most, p + 4 * k);
    for (; i < n; i++)
        most = more_bits32(most, p + 4 * i);
    return (uint32_t)most;
}

uint32_t val_largest_bits(const void *data, lq_dtype d, size_t n)
{
    return d == LQ_F32 ? most_bits32(data, n) : most_bits16(data, n);
}

float val_of_bits(uint32_t bits, lq_dtype d)
{
    float f;
    const uint16_t h = (uint16_t)bits;
    if (d == LQ_F32)
        memcpy(&f, &bits, sizeof f);
    else
        lq_to_f32(&f, &h, d, 1);
    return f;
}

float val_largest(const void *data, lq_dtype d, size_t n)
{
    return val_of_bits(val_largest_bits(data, d, n), d);
}

/* ---- planes ---- */
typedef enum { ANY_SIGN, NOT_BELOW_0, ABOVE_0 } val_sign;

/* A byte of which these bits are all set: NaN of e4m3 is S1111111, of e8m0 11111111. */
static bool has_byte(const uint8_t *p, size_t n, uint8_t bits)
{
    uint8_t found = 0;
    size_t i = 0;
    for (; i + RUN <= n; i += RUN)
        for (size_t k = i; k < i + RUN; k++)
            found |= (uint8_t)((p[k] & bits) == bits);
    for (; i < n; i++)
        found |= (uint8_t)((p[i] & bits) == bits);
    return found;
}

static bool has_below_0(const uint8_t *p, size_t n)
{
    int32_t least = 0; /* as integers: 0 is above -0.0, and that above all that is below it */
    size_t i = 0;
    for (; i + RUN <= n; i += RUN)
        for (size_t k = i; k < i + RUN; k++) {
            int32_t x;
            memcpy(&x, p + 4 * k, sizeof x);
            x = x == INT32_MIN ? 0 : x;
            least = x < least ? x : least;
        }
    for (; i < n; i++) {
        int32_t x;
        memcpy(&x, p + 4 * i, sizeof x);
        x = x == INT32_MIN ? 0 : x;
        least = x < least ? x : least;
    }
    return least < 0;
}

static float number_at(const uint8_t *p, lq_dtype d, size_t i)
{
    float v;
    if (d == LQ_F8_E4M3) return lq_e4m3_to_f32(p[i]);
    if (d == LQ_F8_E8M0) return lq_e8m0_to_f32(p[i]);
    lq_to_f32(&v, p + i * lq_dtype_bytes(d), d, 1);
    return v;
}

static bool fits(float v, val_sign sign)
{
    return isfinite(v) && (sign == ANY_SIGN || v > 0 || (sign == NOT_BELOW_0 && !(v < 0)));
}

/* Do the first n numbers of a plane fit? What is usual is answered by a pass of vectors. */
static bool all_fit(const uint8_t *p, lq_dtype d, size_t n, val_sign sign)
{
    if (d == LQ_F8_E4M3 || d == LQ_F8_E8M0) return !has_byte(p, n, d == LQ_F8_E4M3 ? 0x7f : 0xff);
    return sign != ABOVE_0 && isfinite(val_largest(p, d, n)) &&
           (sign == ANY_SIGN || !has_below_0(p, n));
}

static lq_status check_plane(const qt_tensor *t, qt_plane plane, lq_dtype d, val_sign sign,
                             lq_err *err)
{
    static const char *const wanted[] = { "finite numbers", "finite numbers from 0 on",
                                          "finite numbers above 0" };
    const uint8_t *p = t->plane[plane].data;
    size_t n = t->plane[plane].bytes / lq_dtype_bytes(d);
    if (plane == QT_SCALES2 && t->layout == QT_TILE16) n = (size_t)t->N; /* less the last padding */
    if (all_fit(p, d, n, sign)) return LQ_OK;
    for (size_t i = 0; i < n; i++) {
        const float v = number_at(p, d, i);
        char found[32] = "infinity";
        if (fits(v, sign)) continue;
        if (isnan(v)) snprintf(found, sizeof found, "NaN");
        if (isfinite(v)) snprintf(found, sizeof found, "%g", (double)v);
        return lq_fail(err, LQ_EVALUE, "%s: expected %s, found %s at number %zu",
                       qt_plane_text(plane), wanted[sign], found, i);
    }
    return LQ_OK;
}

/* d and dmin of every block. */
static lq_status check_blocks(const qt_tensor *t, lq_err *err)
{
    const blk_type *type = blk_find(t->scheme.blocks);
    const uint8_t *p = t->plane[QT_CODES].data;
    const size_t n = t->plane[QT_CODES].bytes / (size_t)type->bytes;
    blk_parts b = { .dmin = 0 };
    for (size_t i = 0; i < n; i++, p += type->bytes) {
        blk_take_scales(&b, type, p);
        const float d = lq_f16_to_f32(b.d), dmin = lq_f16_to_f32(b.dmin);
        if (isfinite(d) && isfinite(dmin)) continue;
        return lq_fail(err, LQ_EVALUE, "%s: scales: expected finite numbers, found %s in block %zu",
                       type->name, isnan(d) || (isfinite(d) && isnan(dmin)) ? "NaN" : "infinity",
                       i);
    }
    return LQ_OK;
}

lq_status val_check(const qt_tensor *t, bool codes, lq_err *err)
{
    const qt_scheme *s = &t->scheme;
    const bool mx = s->scale_dtype == LQ_F8_E8M0;
    const val_sign absmax = s->div127 ? NOT_BELOW_0 : ANY_SIGN;
    lq_status st = LQ_OK;
    switch (s->kind) {
    case QT_UINT:
        st = check_plane(t, QT_SCALES, s->scale_dtype, ANY_SIGN, err);
        if (!st && s->zero == QT_ZERO_F16) st = check_plane(t, QT_ZEROS, LQ_F16, ANY_SIGN, err);
        if (!st && s->zero == QT_ZERO_BIAS)
            st = check_plane(t, QT_ZEROS, s->scale_dtype, ANY_SIGN, err);
        return st;
    case QT_I8:
        return check_plane(t, QT_SCALES, LQ_F32, absmax, err);
    case QT_I8_OUTLIER:
        st = check_plane(t, QT_SCALES, LQ_F32, absmax, err);
        return st ? st : check_plane(t, QT_OUT_VALS, LQ_BF16, ANY_SIGN, err);
    case QT_LUT4:
        if (!s->dbl) st = check_plane(t, QT_SCALES, LQ_F32, NOT_BELOW_0, err);
        if (s->dbl) st = check_plane(t, QT_SCALES2, LQ_F32, NOT_BELOW_0, err);
        if (!st && s->dbl) st = check_plane(t, QT_MAP2, LQ_F32, ANY_SIGN, err);
        return st ? st : check_plane(t, QT_MAP, LQ_F32, ANY_SIGN, err);
    case QT_E4M3:
        if (codes) st = check_plane(t, QT_CODES, LQ_F8_E4M3, ANY_SIGN, err);
        return st ? st : check_plane(t, QT_SCALES, LQ_F32, ANY_SIGN, err);
    case QT_E2M1:
        if (!mx) st = check_plane(t, QT_SCALES2, LQ_F32, s->recip ? ABOVE_0 : NOT_BELOW_0, err);
        return st ? st : check_plane(t, QT_SCALES, s->scale_dtype, ANY_SIGN, err);
    case QT_BLOCKS:
        return check_blocks(t, err);
    default:
        return LQ_OK;
    }
}
