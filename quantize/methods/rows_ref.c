/* quantize/methods/rows_ref.c - the loops for any machine, and the choice among them. Blocks have a fixed
 * length, so that compilers use vectors: a lane each, in the order of the plain loop. */
#include "quantize/methods/rows.h"

#include "kernels/ops.h"
#include "quantize/methods/rows_plain.h"

enum { LANES = QZ_LANES, PIECE = QZ_PIECE, EIGHT = 8 };

static grid_range ref_range(const float *w, int64_t n)
{
    float lo[LANES] = { 0 }, hi[LANES] = { 0 };
    grid_range r = { 0, 0 };
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        float x[LANES];
        memcpy(x, w + i, sizeof x);
        for (int k = 0; k < LANES; k++)
            lo[k] = x[k] < lo[k] ? x[k] : lo[k];
        for (int k = 0; k < LANES; k++)
            hi[k] = x[k] > hi[k] ? x[k] : hi[k];
    }
    plain_widen(&r, lo, LANES);
    plain_widen(&r, hi, LANES);
    plain_widen(&r, w + i, n - i);
    return r;
}

static float ref_absmax(const float *w, int64_t n) { return plain_absmax(ref_range(w, n)); }

static void ref_codes(uint8_t *codes, const float *w, int64_t n, grid_param p, float max_code)
{
    const float lo = -p.zero, hi = max_code - p.zero;
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        int32_t c[LANES];
        for (int k = 0; k < LANES; k++) {
            float x = w[i + k] / p.scale;
            x = x < lo ? lo : x;
            x = x > hi ? hi : x;
            c[k] = (int32_t)(grid_round(x) + p.zero);
        }
        for (int k = 0; k < LANES; k++)
            codes[i + k] = (uint8_t)c[k];
    }
    plain_codes(codes + i, w + i, n - i, p, max_code);
}

static void ref_pack4(uint8_t *dst, const uint8_t *codes, int64_t n)
{
    qt_pack_row(dst, codes, n, 4);
}

static void ref_square_sums(float acc[LANES], const float *a, const float *b, int64_t n)
{
    for (int64_t i = 0; i < n; i += LANES)
        for (int k = 0; k < LANES; k++) {
            const float e = a[i + k] - b[i + k];
            acc[k] += e * e;
        }
}

static double ref_square_error(const float *a, const float *b, int64_t n)
{
    double sum[LANES] = { 0 };
    for (int64_t i = 0, len; i < n; i += len) {
        float acc[LANES] = { 0 };
        len = n - i < PIECE ? n - i : PIECE;
        const int64_t whole = len / LANES * LANES;
        ref_square_sums(acc, a + i, b + i, whole);
        plain_squares(acc, a + i + whole, b + i + whole, len - whole);
        for (int k = 0; k < LANES; k++)
            sum[k] += (double)acc[k];
    }
    return plain_sum(sum);
}

static void ref_nearest(float v[EIGHT], const float *w, const rows_grid *g, float least, float inv)
{
    int c[EIGHT] = { 0 };
    for (int j = 0; j < EIGHT; j++)
        v[j] = (w[j] - least) * inv;
    for (int i = 0; g->table && i < 15; i++)
        for (int j = 0; j < EIGHT; j++)
            c[j] += v[j] > g->mid[i];
    for (int j = 0; j < EIGHT; j++) {
        const float x = v[j] < g->lo ? g->lo : v[j];
        v[j] = g->table ? g->table[c[j]] : grid_round(x > g->hi ? g->hi : x);
    }
}

static rows_sums ref_line(const float *w, const float *imp, int64_t n, const rows_grid *g,
                          rows_line l)
{
    float acc[6][EIGHT] = { { 0 } }, v[EIGHT];
    const float inv = 1 / l.scale;
    for (int64_t i = 0; i < n; i += EIGHT) {
        ref_nearest(v, w + i, g, l.least, inv);
        for (int j = 0; j < EIGHT; j++) {
            const float a = imp ? imp[i + j] : 1, x = w[i + j];
            const float r = x - (l.scale * v[j] + l.least), av = a * v[j];
            acc[0][j] += a * r * r;
            acc[1][j] += av * v[j];
            acc[2][j] += av;
            acc[3][j] += av * x;
            acc[4][j] += a * x;
            acc[5][j] += a;
        }
    }
    return plain_rows_sums(acc);
}

static void ref_sums(rows_sums *out, const float *w, const float *imp, int64_t n,
                     const rows_grid *g, const rows_line *line, int lines)
{
    for (int i = 0; i < lines; i++)
        out[i] = ref_line(w, imp, n, g, line[i]);
}

const qz_rows_ops qz_rows_ref = { .name = "ref",
                                  .to_f32 = lq_to_f32,
                                  .range = ref_range,
                                  .absmax = ref_absmax,
                                  .codes = ref_codes,
                                  .codes_i8 = plain_codes_i8,
                                  .pack4 = ref_pack4,
                                  .pack_table = plain_pack_table,
                                  .sums = ref_sums,
                                  .lines = plain_lines,
                                  .lowest_line = plain_lowest_line,
                                  .lowest_point = plain_lowest_point,
                                  .subtract = plain_subtract,
                                  .values = plain_values,
                                  .train = plain_train,
                                  .square_error = ref_square_error };

const qz_rows_ops *qz_rows_get(void)
{
#if defined(__x86_64__)
    if (strcmp(k_name(), "ref") != 0) return &qz_rows_avx2;
#endif
    return &qz_rows_ref;
}
