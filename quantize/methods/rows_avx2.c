/* quantize/methods/rows_avx2.c - the loops in 256-bit registers. */
#include <assert.h>
#include <immintrin.h>

#include "quantize/methods/rows.h"
#include "quantize/methods/rows_plain.h"

enum { LANES = QZ_LANES, PIECE = QZ_PIECE, VECS = LANES / 8 };

#if defined(__clang__)
#define EACH_VEC _Pragma("clang loop unroll(full)") for (int v = 0; v < VECS; v++)
#else
#define EACH_VEC _Pragma("GCC unroll 4") for (int v = 0; v < VECS; v++)
#endif

/* Where weights come from memory, the hardware's own stream ends with each page: they are asked for
 * AHEAD bytes before. */
static void avx2_to_f32(float *dst, const void *src, lq_dtype d, size_t n)
{
    enum { AHEAD = 2048, LINE = 64 };
    const uint8_t *s = src;
    size_t i = 0;
    for (; d == LQ_BF16 && i + LINE / 2 <= n; i += LINE / 2) {
        __builtin_prefetch(s + 2 * i + AHEAD);
        EACH_VEC
        {
            const __m128i h = _mm_loadu_si128((const void *)(s + 2 * i + 16 * v));
            _mm256_storeu_si256((void *)(dst + i + 8 * v),
                                _mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
        }
    }
    for (; d == LQ_BF16 && i + 8 <= n; i += 8) {
        const __m128i h = _mm_loadu_si128((const void *)(s + 2 * i));
        _mm256_storeu_si256((void *)(dst + i), _mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
    }
    for (; d == LQ_F16 && i + 8 <= n; i += 8)
        _mm256_storeu_ps(dst + i, _mm256_cvtph_ps(_mm_loadu_si128((const void *)(s + 2 * i))));
    lq_to_f32(dst + i, s + i * lq_dtype_bytes(d), d, n - i);
}

/* min and max give their second argument where both are zeros: never -0. */
static grid_range avx2_range(const float *w, int64_t n)
{
    __m256 lo[VECS], hi[VECS];
    int64_t i = 0;
    EACH_VEC lo[v] = hi[v] = _mm256_setzero_ps();
    for (; i + LANES <= n; i += LANES)
        EACH_VEC
        {
            const __m256 x = _mm256_loadu_ps(w + i + 8 * v);
            lo[v] = _mm256_min_ps(x, lo[v]);
            hi[v] = _mm256_max_ps(x, hi[v]);
        }
    EACH_VEC
    {
        lo[0] = _mm256_min_ps(lo[v], lo[0]);
        hi[0] = _mm256_max_ps(hi[v], hi[0]);
    }
    __m128 a = _mm_min_ps(_mm256_extractf128_ps(lo[0], 1), _mm256_castps256_ps128(lo[0]));
    __m128 b = _mm_max_ps(_mm256_extractf128_ps(hi[0], 1), _mm256_castps256_ps128(hi[0]));
    a = _mm_min_ps(_mm_movehl_ps(a, a), a);
    b = _mm_max_ps(_mm_movehl_ps(b, b), b);
    grid_range r = { .lo = _mm_cvtss_f32(_mm_min_ss(_mm_movehdup_ps(a), a)),
                     .hi = _mm_cvtss_f32(_mm_max_ss(_mm_movehdup_ps(b), b)) };
    plain_widen(&r, w + i, n - i);
    return r;
}

static float avx2_absmax(const float *w, int64_t n) { return plain_absmax(avx2_range(w, n)); }

/* 32 numbers of 0..255, or of -128..127 as bytes of theirs, in order. */
static inline __m256i bytes_of(const __m256i c[VECS], bool with_sign)
{
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    const __m256i a = _mm256_packs_epi32(c[0], c[1]), b = _mm256_packs_epi32(c[2], c[3]);
    const __m256i v = with_sign ? _mm256_packs_epi16(a, b) : _mm256_packus_epi16(a, b);
    return _mm256_permutevar8x32_epi32(v, order);
}

/* Pairs of 32 codes of 4 bits: `first` is what the first of two is multiplied with, 1 or 16, and
 * `second`. */
static inline void store_pairs(uint8_t *dst, __m256i codes, int first, int second)
{
    const __m256i by = _mm256_set1_epi16((short)(second << 8 | first));
    const __m256i pair = _mm256_maddubs_epi16(codes, by);
    _mm_storeu_si128((void *)dst, _mm_packus_epi16(_mm256_castsi256_si128(pair),
                                                   _mm256_extracti128_si256(pair, 1)));
}

static void avx2_codes(uint8_t *codes, const float *w, int64_t n, grid_param p, float max_code)
{
    const __m256 scale = _mm256_set1_ps(p.scale), lo = _mm256_set1_ps(-p.zero);
    const __m256 hi = _mm256_set1_ps(max_code - p.zero);
    const __m256i zero = _mm256_set1_epi32((int32_t)p.zero);
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        __m256i c[VECS];
        EACH_VEC
        {
            const __m256 x = _mm256_div_ps(_mm256_loadu_ps(w + i + 8 * v), scale);
            const __m256 clamped = _mm256_min_ps(hi, _mm256_max_ps(lo, x));
            c[v] = _mm256_add_epi32(_mm256_cvtps_epi32(clamped), zero);
        }
        _mm256_storeu_si256((void *)(codes + i), bytes_of(c, false));
    }
    plain_codes(codes + i, w + i, n - i, p, max_code);
}

/* By the reciprocal, in f32: off by less than 127 * 2^-22 < 2^-14, so the whole number is the right
 * one unless a half is that near; then the division decides. */
static void avx2_codes_i8(int8_t *codes, const float *w, int64_t n, float absmax)
{
    const float tiny = 0x1p-100f; /* its reciprocal is finite */
    const __m256 inv = _mm256_set1_ps(127 / absmax), sign = _mm256_set1_ps(-0.0f);
    const __m256 near_half = _mm256_set1_ps(0.5f - 0x1p-14f);
    int64_t i = 0;
    for (; absmax > tiny && i + LANES <= n; i += LANES) {
        __m256i c[VECS];
        __m256 doubt = _mm256_setzero_ps();
        EACH_VEC
        {
            const __m256 x = _mm256_mul_ps(_mm256_loadu_ps(w + i + 8 * v), inv);
            c[v] = _mm256_cvtps_epi32(x);
            const __m256 off = _mm256_andnot_ps(sign, _mm256_sub_ps(x, _mm256_cvtepi32_ps(c[v])));
            doubt = _mm256_or_ps(doubt, _mm256_cmp_ps(off, near_half, _CMP_GT_OQ));
        }
        if (_mm256_movemask_ps(doubt))
            plain_codes_i8(codes + i, w + i, LANES, absmax);
        else
            _mm256_storeu_si256((void *)(codes + i), bytes_of(c, true));
    }
    plain_codes_i8(codes + i, w + i, n - i, absmax);
}

static void avx2_pack4(uint8_t *dst, const uint8_t *codes, int64_t n)
{
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        store_pairs(dst + i / 2, _mm256_loadu_si256((const void *)(codes + i)), 1, 16);
    qt_pack_row(dst + i / 2, codes + i, n - i, 4);
}

/* How many midpoints lie below is found by halving: the middle one, the middle of that half, and
 * so on; the last two steps look theirs up in a register. */
static void avx2_pack_table(uint8_t *dst, const float *w, int64_t n, float inv, const float mid[15],
                            const uint8_t code[16])
{
    const __m256 by = _mm256_set1_ps(inv), m8 = _mm256_set1_ps(mid[7]);
    const __m256 m4 = _mm256_set1_ps(mid[3]), m12 = _mm256_set1_ps(mid[11]);
    const __m256 fours = _mm256_setr_ps(mid[1], mid[5], mid[9], mid[13], 0, 0, 0, 0);
    const __m256 twos =
        _mm256_setr_ps(mid[0], mid[2], mid[4], mid[6], mid[8], mid[10], mid[12], mid[14]);
    const __m256i table = _mm256_broadcastsi128_si256(_mm_loadu_si128((const void *)code));
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        __m256i c[VECS];
        EACH_VEC
        {
            const __m256 x = _mm256_mul_ps(_mm256_loadu_ps(w + i + 8 * v), by);
            const __m256 above = _mm256_cmp_ps(x, m8, _CMP_GT_OQ); /* -1 as an integer */
            __m256i at = _mm256_srli_epi32(_mm256_castps_si256(above), 31);
            __m256 m = _mm256_blendv_ps(m4, m12, above);
            at = _mm256_sub_epi32(_mm256_add_epi32(at, at),
                                  _mm256_castps_si256(_mm256_cmp_ps(x, m, _CMP_GT_OQ)));
            m = _mm256_permutevar8x32_ps(fours, at);
            at = _mm256_sub_epi32(_mm256_add_epi32(at, at),
                                  _mm256_castps_si256(_mm256_cmp_ps(x, m, _CMP_GT_OQ)));
            m = _mm256_permutevar8x32_ps(twos, at);
            c[v] = _mm256_sub_epi32(_mm256_add_epi32(at, at),
                                    _mm256_castps_si256(_mm256_cmp_ps(x, m, _CMP_GT_OQ)));
        }
        store_pairs(dst + i / 2, _mm256_shuffle_epi8(table, bytes_of(c, false)), 16, 1);
    }
    plain_pack_table(dst + i / 2, w + i, n - i, inv, mid, code);
}

static void avx2_subtract(float *y, float a, const float *x, int64_t n)
{
    const __m256 by = _mm256_set1_ps(a);
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) {
        const __m256 p = _mm256_mul_ps(by, _mm256_loadu_ps(x + i));
        _mm256_storeu_ps(y + i, _mm256_sub_ps(_mm256_loadu_ps(y + i), p));
    }
    plain_subtract(y + i, a, x + i, n - i);
}

static inline __m256i eight_codes(const uint8_t *codes)
{
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64((const void *)codes));
}

static void avx2_values(float *w, const uint8_t *codes, int64_t n, grid_param p)
{
    const __m256 scale = _mm256_set1_ps(p.scale), zero = _mm256_set1_ps(p.zero);
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) {
        const __m256 c = _mm256_cvtepi32_ps(eight_codes(codes + i));
        _mm256_storeu_ps(w + i, _mm256_mul_ps(scale, _mm256_sub_ps(c, zero)));
    }
    plain_values(w + i, codes + i, n - i, p);
}

/* Where `over`, code and x go a step on, to `by` codes more. */
static inline void next_code(__m256i *code, __m256 *x, __m256 over, int by)
{
    const __m256i c = _mm256_and_si256(_mm256_castps_si256(over), _mm256_set1_epi32(by));
    *code = _mm256_add_epi32(*code, c);
    *x = _mm256_sub_ps(*x, _mm256_cvtepi32_ps(c));
}

static void avx2_train(uint8_t *code, float *off, float *m, float *v, const float *dW, int64_t n,
                       const rows_adam *a)
{
    const __m256 scale = _mm256_set1_ps(a->scale), rate = _mm256_set1_ps(a->rate);
    const __m256 b1 = _mm256_set1_ps(a->beta1), rest1 = _mm256_set1_ps(1 - a->beta1);
    const __m256 b2 = _mm256_set1_ps(a->beta2), rest2 = _mm256_set1_ps(1 - a->beta2);
    const __m256 fix1 = _mm256_set1_ps(a->fix1), fix2 = _mm256_set1_ps(a->fix2);
    const __m256 up = _mm256_set1_ps(0.5f), down = _mm256_set1_ps(-0.5f);
    const __m256i top = _mm256_set1_epi32(a->top), none = _mm256_setzero_si256();
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) {
        const __m256 g = _mm256_mul_ps(_mm256_loadu_ps(dW + i), scale);
        const __m256 mi =
            _mm256_add_ps(_mm256_mul_ps(b1, _mm256_loadu_ps(m + i)), _mm256_mul_ps(rest1, g));
        const __m256 vi = _mm256_add_ps(_mm256_mul_ps(b2, _mm256_loadu_ps(v + i)),
                                        _mm256_mul_ps(_mm256_mul_ps(rest2, g), g));
        const __m256 d = _mm256_sqrt_ps(_mm256_mul_ps(vi, fix2));
        const __m256 change = _mm256_and_ps(_mm256_cmp_ps(d, _mm256_setzero_ps(), _CMP_GT_OQ),
                                            _mm256_div_ps(_mm256_mul_ps(mi, fix1), d));
        __m256 x = _mm256_sub_ps(_mm256_loadu_ps(off + i), _mm256_mul_ps(rate, change));
        __m256i c = eight_codes(code + i);
        const __m256 room = _mm256_castsi256_ps(_mm256_cmpgt_epi32(top, c));
        next_code(&c, &x, _mm256_and_ps(_mm256_cmp_ps(x, up, _CMP_GT_OQ), room), 1);
        const __m256 above = _mm256_castsi256_ps(_mm256_cmpgt_epi32(c, none));
        next_code(&c, &x, _mm256_and_ps(_mm256_cmp_ps(x, down, _CMP_LT_OQ), above), -1);
        _mm256_storeu_ps(m + i, mi);
        _mm256_storeu_ps(v + i, vi);
        _mm256_storeu_ps(off + i, _mm256_max_ps(down, _mm256_min_ps(up, x)));
        const __m128i w =
            _mm_packus_epi32(_mm256_castsi256_si128(c), _mm256_extracti128_si256(c, 1));
        _mm_storel_epi64((void *)(code + i), _mm_packus_epi16(w, w));
    }
    plain_train(code + i, off + i, m + i, v + i, dW + i, n - i, a);
}

static inline __m256d half_of(__m256 a, int half)
{
    return _mm256_cvtps_pd(half ? _mm256_extractf128_ps(a, 1) : _mm256_castps256_ps128(a));
}

static double avx2_square_error(const float *a, const float *b, int64_t n)
{
    __m256d sum[2 * VECS];
    double lanes[LANES];
    EACH_VEC sum[2 * v] = sum[2 * v + 1] = _mm256_setzero_pd();
    for (int64_t i = 0; i < n;) {
        const int64_t end = n - i < PIECE ? n : i + PIECE;
        __m256 acc[VECS];
        EACH_VEC acc[v] = _mm256_setzero_ps();
        for (; i + LANES <= end; i += LANES)
            EACH_VEC
            {
                const __m256 e =
                    _mm256_sub_ps(_mm256_loadu_ps(a + i + 8 * v), _mm256_loadu_ps(b + i + 8 * v));
                acc[v] = _mm256_add_ps(acc[v], _mm256_mul_ps(e, e));
            }
        if (i < end) {
            float rest[8];
            _mm256_storeu_ps(rest, acc[0]);
            plain_squares(rest, a + i, b + i, end - i);
            acc[0] = _mm256_loadu_ps(rest);
            i = end;
        }
        EACH_VEC
        {
            sum[2 * v] = _mm256_add_pd(sum[2 * v], half_of(acc[v], 0));
            sum[2 * v + 1] = _mm256_add_pd(sum[2 * v + 1], half_of(acc[v], 1));
        }
    }
    EACH_VEC
    {
        _mm256_storeu_pd(lanes + 8 * v, sum[2 * v]);
        _mm256_storeu_pd(lanes + 8 * v + 4, sum[2 * v + 1]);
    }
    return plain_sum(lanes);
}

/* A table of 16 and the middles between its values, in the order in which halving asks for them. */
typedef struct {
    __m256 m8, m4, m12, fours, twos, low, high;
} halving;

static halving halves_of(const rows_grid *g)
{
    const float *m = g->mid;
    return (halving){ _mm256_set1_ps(m[7]),
                      _mm256_set1_ps(m[3]),
                      _mm256_set1_ps(m[11]),
                      _mm256_setr_ps(m[1], m[5], m[9], m[13], 0, 0, 0, 0),
                      _mm256_setr_ps(m[0], m[2], m[4], m[6], m[8], m[10], m[12], m[14]),
                      _mm256_loadu_ps(g->table),
                      _mm256_loadu_ps(g->table + 8) };
}

/* 2 at + 1 where x is above the middle, else 2 at. */
static inline __m256i halve(__m256i at, __m256 x, __m256 middle)
{
    const __m256 above = _mm256_cmp_ps(x, middle, _CMP_GT_OQ); /* -1 as an integer */
    return _mm256_sub_epi32(_mm256_add_epi32(at, at), _mm256_castps_si256(above));
}

static inline __m256 nearest_of_table(__m256 x, const halving *h)
{
    const __m256 upper = _mm256_cmp_ps(x, h->m8, _CMP_GT_OQ);
    __m256i at = _mm256_srli_epi32(_mm256_castps_si256(upper), 31);
    at = halve(at, x, _mm256_blendv_ps(h->m4, h->m12, upper));
    at = halve(at, x, _mm256_permutevar8x32_ps(h->fours, at));
    at = halve(at, x, _mm256_permutevar8x32_ps(h->twos, at));
    return _mm256_blendv_ps(_mm256_permutevar8x32_ps(h->low, at),
                            _mm256_permutevar8x32_ps(h->high, at), upper);
}

static inline __m256 nearest_whole(__m256 x, __m256 lo, __m256 hi)
{
    const __m256 magic = _mm256_set1_ps(12582912.0f); /* as grid_round */
    x = _mm256_min_ps(hi, _mm256_max_ps(lo, x));
    return _mm256_sub_ps(_mm256_add_ps(x, magic), magic);
}

/* Eight running sums of each of four, added in the pairs of plain_rows_sums. */
static inline __m128 in_pairs(__m256 a, __m256 b, __m256 c, __m256 d)
{
    const __m256 t = _mm256_hadd_ps(_mm256_hadd_ps(a, b), _mm256_hadd_ps(c, d));
    return _mm_add_ps(_mm256_castps256_ps128(t), _mm256_extractf128_ps(t, 1));
}

/* Of `count` lines at once: their sums wait for each other's operations no more than once. Without importance nothing
 * is multiplied by 1. */
static inline __attribute__((always_inline)) void
sums_of(rows_sums *out, const float *w, const float *imp, int64_t n, const rows_grid *g,
        const rows_line *line, const int count, const bool weighed, const bool table)
{
    enum { MOST = 2 };
    const __m256 one = _mm256_set1_ps(1), lo = _mm256_set1_ps(g->lo), hi = _mm256_set1_ps(g->hi);
    const halving h = table ? halves_of(g) : (halving){ lo, lo, lo, lo, lo, lo, lo };
    __m256 acc[MOST][4], inv[MOST], scale[MOST], least[MOST];
    __m256 all = _mm256_setzero_ps(), weights = all;
    for (int l = 0; l < count; l++) {
        inv[l] = _mm256_set1_ps(1 / line[l].scale);
        scale[l] = _mm256_set1_ps(line[l].scale);
        least[l] = _mm256_set1_ps(line[l].least);
        for (int k = 0; k < 4; k++)
            acc[l][k] = _mm256_setzero_ps();
    }
    for (int64_t i = 0; i < n; i += 8) {
        const __m256 x = _mm256_loadu_ps(w + i), a = weighed ? _mm256_loadu_ps(imp + i) : one;
        for (int l = 0; l < count; l++) {
            const __m256 y = _mm256_mul_ps(_mm256_sub_ps(x, least[l]), inv[l]);
            const __m256 v = table ? nearest_of_table(y, &h) : nearest_whole(y, lo, hi);
            const __m256 q = _mm256_add_ps(_mm256_mul_ps(scale[l], v), least[l]);
            const __m256 r = _mm256_sub_ps(x, q), av = weighed ? _mm256_mul_ps(a, v) : v;
            const __m256 ar = weighed ? _mm256_mul_ps(a, r) : r;
            acc[l][0] = _mm256_add_ps(acc[l][0], _mm256_mul_ps(ar, r));
            acc[l][1] = _mm256_add_ps(acc[l][1], _mm256_mul_ps(av, v));
            acc[l][2] = _mm256_add_ps(acc[l][2], av);
            acc[l][3] = _mm256_add_ps(acc[l][3], _mm256_mul_ps(av, x));
        }
        all = _mm256_add_ps(all, weighed ? _mm256_mul_ps(a, x) : x);
        weights = _mm256_add_ps(weights, a);
    }
    const __m128 same = in_pairs(all, weights, all, weights);
    static_assert(sizeof *out == 6 * sizeof(float), "in the order of these stores");
    for (int l = 0; l < count; l++) {
        float *to = (float *)(void *)(out + l);
        _mm_storeu_ps(to, in_pairs(acc[l][0], acc[l][1], acc[l][2], acc[l][3]));
        _mm_storel_pi((__m64 *)(void *)(to + 4), same);
    }
}

static inline __attribute__((always_inline)) void
sums_of_all(rows_sums *out, const float *w, const float *imp, int64_t n, const rows_grid *g,
            const rows_line *line, int lines, const bool weighed, const bool table)
{
    enum { AT_ONCE = 2 };
    int l = 0;
    for (; l + AT_ONCE <= lines; l += AT_ONCE)
        sums_of(out + l, w, imp, n, g, line + l, AT_ONCE, weighed, table);
    for (; l < lines; l++)
        sums_of(out + l, w, imp, n, g, line + l, 1, weighed, table);
}

static void avx2_sums(rows_sums *out, const float *w, const float *imp, int64_t n,
                      const rows_grid *g, const rows_line *line, int lines)
{
    if (g->table && imp)
        sums_of_all(out, w, imp, n, g, line, lines, true, true);
    else if (g->table)
        sums_of_all(out, w, imp, n, g, line, lines, false, true);
    else if (imp)
        sums_of_all(out, w, imp, n, g, line, lines, true, false);
    else
        sums_of_all(out, w, imp, n, g, line, lines, false, false);
}

static void avx2_lines(float *A, float *B, const float *v, int dim, int64_t n, const float *y,
                       const float *imp)
{
    for (int64_t p = 0; p < n; p += 8) {
        __m256 a = _mm256_setzero_ps(), b = a;
        for (int i = 0; i < dim; i++) {
            const __m256 x = _mm256_loadu_ps(v + i * n + p);
            a = _mm256_add_ps(a, _mm256_mul_ps(_mm256_broadcast_ss(y + i), x));
            b = _mm256_add_ps(b, _mm256_mul_ps(_mm256_broadcast_ss(imp + i), _mm256_mul_ps(x, x)));
        }
        _mm256_storeu_ps(A + p, _mm256_add_ps(a, a));
        _mm256_storeu_ps(B + p, b);
    }
}

/* In each of eight lanes the first of the least, and where it was. */
typedef struct {
    __m256 e;
    __m256i at;
} lowest;

static inline void keep_lower(lowest *l, __m256 e, int64_t p)
{
    const __m256 less = _mm256_cmp_ps(e, l->e, _CMP_LT_OQ);
    l->e = _mm256_blendv_ps(l->e, e, less);
    l->at = _mm256_blendv_epi8(l->at, _mm256_set1_epi32((int)p), _mm256_castps_si256(less));
}

/* The least of eight, in all lanes. */
static inline __m256 least_of(__m256 e)
{
    e = _mm256_min_ps(e, _mm256_permute2f128_ps(e, e, 1));
    e = _mm256_min_ps(e, _mm256_permute_ps(e, 0x4e));
    return _mm256_min_ps(e, _mm256_permute_ps(e, 0xb1));
}

static inline int first_lowest(const lowest *l)
{
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    const __m256 is = _mm256_cmp_ps(l->e, least_of(l->e), _CMP_EQ_OQ);
    const __m256i at = _mm256_blendv_epi8(_mm256_set1_epi32(INT32_MAX),
                                          _mm256_add_epi32(l->at, lane), _mm256_castps_si256(is));
    const __m128i half = _mm_min_epi32(_mm256_castsi256_si128(at), _mm256_extracti128_si256(at, 1));
    const __m128i pair = _mm_min_epi32(half, _mm_shuffle_epi32(half, 0x4e));
    return _mm_cvtsi128_si32(_mm_min_epi32(pair, _mm_shuffle_epi32(pair, 0xb1)));
}

static inline __m256 line_at(const float *A, const float *B, int64_t p, __m256 by)
{
    return _mm256_sub_ps(_mm256_mul_ps(by, _mm256_loadu_ps(B + p)), _mm256_loadu_ps(A + p));
}

/* First what the least is, in runs that do not wait for each other, then where: the same numbers again. */
static int avx2_lowest_line(const float *A, const float *B, int64_t n, float s)
{
    enum { RUNS = 4 };
    const __m256 by = _mm256_set1_ps(s), none = _mm256_set1_ps(INFINITY);
    __m256 e[RUNS] = { none, none, none, none };
    int64_t p = 0;
    for (; p + 8 * RUNS <= n; p += 8 * RUNS)
        for (int i = 0; i < RUNS; i++)
            e[i] = _mm256_min_ps(line_at(A, B, p + 8 * i, by), e[i]);
    for (; p < n; p += 8)
        e[0] = _mm256_min_ps(line_at(A, B, p, by), e[0]);
    const __m256 least =
        least_of(_mm256_min_ps(_mm256_min_ps(e[0], e[1]), _mm256_min_ps(e[2], e[3])));
    for (p = 0; p < n; p += 8) {
        const __m256 is = _mm256_cmp_ps(line_at(A, B, p, by), least, _CMP_EQ_OQ);
        const unsigned lanes = (unsigned)_mm256_movemask_ps(is);
        if (lanes) return (int)p + __builtin_ctz(lanes);
    }
    return 0;
}

static inline __attribute__((always_inline)) int lowest_of(const float *v, const int dim, int64_t n,
                                                           const float *m, const float *b)
{
    lowest l = { _mm256_set1_ps(INFINITY), _mm256_setzero_si256() };
    for (int64_t p = 0; p < n; p += 8) {
        __m256 x[8], e = _mm256_setzero_ps();
        for (int i = 0; i < dim; i++)
            x[i] = _mm256_loadu_ps(v + i * n + p);
        for (int i = 0; i < dim; i++) {
            __m256 t = _mm256_sub_ps(_mm256_mul_ps(_mm256_broadcast_ss(m + i * dim + i), x[i]),
                                     _mm256_broadcast_ss(b + i));
            for (int k = i + 1; k < dim; k++)
                t = _mm256_add_ps(t, _mm256_mul_ps(_mm256_broadcast_ss(m + i * dim + k), x[k]));
            e = _mm256_add_ps(e, _mm256_mul_ps(x[i], t));
        }
        keep_lower(&l, e, p);
    }
    return first_lowest(&l);
}

static int avx2_lowest_point(const float *v, int dim, int64_t n, const float *m, const float *b)
{
    return dim == 4 ? lowest_of(v, 4, n, m, b) : lowest_of(v, 8, n, m, b);
}

const qz_rows_ops qz_rows_avx2 = { .name = "avx2",
                                   .to_f32 = avx2_to_f32,
                                   .range = avx2_range,
                                   .absmax = avx2_absmax,
                                   .codes = avx2_codes,
                                   .codes_i8 = avx2_codes_i8,
                                   .pack4 = avx2_pack4,
                                   .pack_table = avx2_pack_table,
                                   .sums = avx2_sums,
                                   .lines = avx2_lines,
                                   .lowest_line = avx2_lowest_line,
                                   .lowest_point = avx2_lowest_point,
                                   .subtract = avx2_subtract,
                                   .values = avx2_values,
                                   .train = avx2_train,
                                   .square_error = avx2_square_error };
