/* quantize/transform/hadamard.c - orders, Paley matrices, and the fast transform. */
#include "quantize/transform/hadamard.h"

#include <inttypes.h>
#include <stdio.h>

#include "base/random.h"

enum { MAX_PALEY = 512, MIXED = 16 /* floats of each row mixed at once */ };

/* ---- orders ---- */
static bool is_prime(int64_t q)
{
    for (int64_t d = 2; d * d <= q; d++)
        if (q % d == 0) return false;
    return q > 1;
}

/* The field of which a Paley matrix of order b is made; 0: none of a prime's. */
static int64_t field_of(int64_t b)
{
    if (b % 4 || b > MAX_PALEY) return 0;
    if ((b - 1) % 4 == 3 && is_prime(b - 1)) return b - 1;
    return (b / 2 - 1) % 4 == 1 && is_prime(b / 2 - 1) ? b / 2 - 1 : 0;
}

/* Order of the Paley factor of a Hadamard matrix of order n; 0: there is none that we can make. */
static int64_t factor_of(int64_t n)
{
    int64_t odd = n;
    while (odd % 2 == 0)
        odd /= 2;
    if (odd == 1) return 1;
    for (int64_t b = odd; b <= n; b *= 2)
        if (field_of(b)) return b;
    return 0;
}

/* ---- Paley's two constructions ---- */

/* S [m][m], m = q + 1: 0 on the diagonal, the quadratic character of j - i, and a border. */
static int character(int64_t i, int64_t j, int64_t q, const bool *square)
{
    if (i == j) return 0;
    if (i == 0) return 1;
    if (j == 0) return q % 4 == 3 ? -1 : 1;
    return square[((j - i) % q + q) % q] ? 1 : -1;
}

static void fill_core(int8_t *core, int64_t b)
{
    static const int twos[3][2][2] = { { { -1, -1 }, { -1, 1 } }, /* for -1, 0, 1 */
                                       { { 1, -1 }, { -1, -1 } },
                                       { { 1, 1 }, { 1, -1 } } };
    const int64_t q = field_of(b);
    bool square[MAX_PALEY] = { false };
    for (int64_t x = 1; x < q; x++)
        square[x * x % q] = true;
    for (int64_t i = 0; i < b; i++) {
        int first = 1; /* rows change their sign so that the first column is all ones */
        for (int64_t j = 0; j < b; j++) {
            int v;
            if (q + 1 == b)
                v = character(i, j, q, square) + (i == j);
            else
                v = twos[character(i / 2, j / 2, q, square) + 1][i % 2][j % 2];
            if (j == 0) first = v;
            core[i * b + j] = (int8_t)(v * first);
        }
    }
}

lq_status had_init(had_rotation *r, int64_t n, uint64_t seed, bool keep_ones, lq_arena *a,
                   lq_err *err)
{
    *r = (had_rotation){ .n = n, .block = n, .keep_ones = keep_ones };
    while (r->block > 1 && (n % r->block || !factor_of(r->block)))
        r->block--;
    r->paley = factor_of(r->block);
    int8_t *core = lq_push(a, (size_t)(r->paley * r->paley));
    float *sign = lq_push(a, (size_t)n * sizeof *sign);
    if (!core || !sign)
        return lq_fail(err, LQ_ENOMEM, "no memory for a rotation of %lld", (long long)n);
    if (r->paley > 1) {
        fill_core(core, r->paley);
        r->core = core;
    }
    for (int64_t i = 0; i < n; i++) {
        const bool fixed = keep_ones && i % r->block == 0;
        sign[i] = lq_random(&seed) >> 63 && !fixed ? -1.0f : 1.0f;
    }
    r->sign = sign;
    return LQ_OK;
}

/* ---- the transform ---- */
static void butterfly(float *a, float *b, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        const float x = a[i], y = b[i];
        a[i] = x + y;
        b[i] = x - y;
    }
}

/* Sylvester's matrix of order n, a power of two. */
static void sylvester(float *x, int64_t n, int64_t ld, int64_t lanes)
{
    for (int64_t h = 1; h < n; h *= 2)
        for (int64_t i = 0; i < n; i += 2 * h) {
            float *a = x + i * ld, *b = a + h * ld;
            if (ld == lanes) {
                butterfly(a, b, h * lanes);
                continue;
            }
            for (int64_t j = 0; j < h; j++)
                butterfly(a + j * ld, b + j * ld, lanes);
        }
}

/* y_j = sum_i x_i core[i][j], or its transpose; component i at x[i * ld], `width` lanes. */
static void mix(const had_rotation *r, float *x, int64_t ld, int64_t width, bool turned)
{
    const int64_t b = r->paley;
    float y[MAX_PALEY * MIXED];
    for (int64_t l0 = 0; l0 < width; l0 += MIXED) {
        const int64_t n = width - l0 < MIXED ? width - l0 : MIXED;
        memset(y, 0, (size_t)(b * n) * sizeof *y);
        for (int64_t i = 0; i < b; i++)
            for (int64_t j = 0; j < b; j++) {
                const float *from = x + i * ld + l0;
                const float s = turned ? r->core[j * b + i] : r->core[i * b + j];
                for (int64_t l = 0; l < n; l++)
                    y[j * n + l] += s * from[l];
            }
        for (int64_t j = 0; j < b; j++)
            memcpy(x + j * ld + l0, y + j * n, (size_t)n * sizeof *y);
    }
}

/* Component (i, k) of a block, i of the Paley factor, is number i * two + k. */
static void block_times_h(const had_rotation *r, float *x, int64_t ld, int64_t lanes, bool turned)
{
    const int64_t two = r->block / r->paley;
    for (int64_t i = 0; i < r->paley; i++)
        sylvester(x + i * two * ld, two, ld, lanes);
    if (!r->core) return;
    if (ld == lanes) {
        mix(r, x, two * ld, two * lanes, turned);
        return;
    }
    for (int64_t k = 0; k < two; k++)
        mix(r, x + k * ld, two * ld, lanes, turned);
}

static void times_sign(const had_rotation *r, float *x, int64_t ld, int64_t lanes, float scale)
{
    for (int64_t i = 0; i < r->n; i++)
        for (int64_t j = 0; j < lanes; j++)
            x[i * ld + j] *= scale * r->sign[i];
}

void had_apply(const had_rotation *r, float *x, int64_t ld, int64_t lanes)
{
    const float b = (float)r->block;
    if (r->keep_ones)
        for (int64_t i = 0; i < r->n; i += r->block)
            block_times_h(r, x + i * ld, ld, lanes, false);
    times_sign(r, x, ld, lanes, r->keep_ones ? 1 / b : 1 / sqrtf(b));
    for (int64_t i = 0; i < r->n; i += r->block)
        block_times_h(r, x + i * ld, ld, lanes, r->keep_ones);
}

void had_text(char out[64], const had_rotation *r)
{
    const int64_t blocks = r->n / r->block, two = r->block / r->paley;
    int at = 0;
    if (blocks > 1) at = snprintf(out, 64, "%" PRId64 " blocks of ", blocks);
    if (r->paley > 1)
        snprintf(out + at, (size_t)(64 - at), "Hadamard %" PRId64 " x %" PRId64, r->paley, two);
    else
        snprintf(out + at, (size_t)(64 - at), "Hadamard %" PRId64, r->block);
}
