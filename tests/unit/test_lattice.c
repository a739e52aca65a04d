/* quantize/methods/lattice.h against all points, one by one. */
#include "quantize/methods/lattice.h"
#include "tests/support/check.h"
#include "tests/support/fill.h"

enum { U = LAT_UNIT };

static const char *const names[] = { "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S" };

/* Size i of point p. */
static float size_of(const blk_type *t, int p, int i)
{
    const blk_book *b = blk_made_of(t)->book;
    return t->table[b->point[p] >> b->bits * i & ((1 << b->bits) - 1)];
}

/* The least error of dim weights over all points, with signs that make y = sign * w. */
static double least_error(const blk_type *t, const float *y, const float *imp, float scale)
{
    const blk_book *b = blk_made_of(t)->book;
    double least = INFINITY;
    for (int p = 0; p < b->n; p++) {
        double e = 0;
        for (int i = 0; i < b->dim; i++) {
            const double d = (double)y[i] - (double)(scale * size_of(t, p, i));
            e += (double)imp[i] * d * d;
        }
        if (e < least) least = e;
    }
    return least;
}

static float most_of(const lattice *l)
{
    const int8_t *sizes;
    const int n = lattice_sizes(l, &sizes);
    return sizes[n - 1];
}

static double error_of(const blk_type *t, const uint8_t *code, const float *w, const float *imp,
                       int n, float scale)
{
    double e = 0;
    for (int i = 0; i < n; i++) {
        const double d = (double)w[i] - (double)(scale * (float)t->table[code[i]]);
        e += (double)imp[i] * d * d;
    }
    return e;
}

static bool is_point(const blk_type *t, const uint8_t *code)
{
    const blk_book *b = blk_made_of(t)->book;
    unsigned negative = 0;
    for (int at = 0; at < U; at += b->dim) {
        bool found = false;
        for (int p = 0; p < b->n && !found; p++) {
            found = true;
            for (int i = 0; i < b->dim; i++)
                found &= fabsf((float)t->table[code[at + i]]) == size_of(t, p, i);
        }
        if (!found) return false;
    }
    for (int i = 0; i < U; i++)
        negative += t->table[code[i]] < 0;
    return !b->even || negative % 2 == 0;
}

static void fill_unit(float *w, float *imp, int n, uint64_t *seed)
{
    fill_row(w, n, seed);
    fill_row(imp, n, seed);
    for (int i = 0; i < n; i++)
        imp[i] = fabsf(imp[i]) + 0.01f;
}

/* Where the number of signs is free, or even as it is, the sizes have the least error there is. */
TEST(the_nearest_point_is_the_best_of_all)
{
    uint64_t seed = 1;
    for (size_t k = 0; k < LQ_COUNT(names); k++) {
        const blk_type *t = blk_named(names[k]);
        const blk_book *b = blk_made_of(t)->book;
        for (int round = 0; round < 200; round++) {
            float w[U], imp[U], y[U];
            uint8_t code[U];
            double best = 0;
            unsigned negative = 0;
            fill_unit(w, imp, U, &seed);
            const float scale = 0.3f / most_of(lattice_of(t)) * (float)(1 + round % 4);
            for (int i = 0; i < U; i++) {
                y[i] = fabsf(w[i]);
                negative += w[i] < 0;
            }
            lattice_nearest(code, lattice_of(t), w, imp, scale);
            CHECK(is_point(t, code), "%s", names[k]);
            for (int i = 0; i < U; i += b->dim)
                best += least_error(t, y + i, imp + i, scale);
            const double e = error_of(t, code, w, imp, U, scale);
            const bool exact = !b->even || negative % 2 == 0;
            CHECK(e >= best * 0.99999, "%s: %g, all points %g", names[k], e, best);
            CHECK(!exact || e <= best * 1.00001, "%s: %g, all points %g", names[k], e, best);
        }
    }
}

TEST(lines_say_the_error_of_the_nearest_points)
{
    uint64_t seed = 2;
    for (size_t k = 0; k < LQ_COUNT(names); k++) {
        const blk_type *t = blk_named(names[k]);
        const lattice *l = lattice_of(t);
        for (int round = 0; round < 20; round++) {
            float w[32], imp[32];
            lat_lines lines;
            fill_unit(w, imp, t->group, &seed);
            const float one = 1 / most_of(l);
            lattice_lines(&lines, l, w, imp, t->group, 0.25f * one, 4 * one);
            for (float s = 0.3f; s < 4; s *= 1.1f) {
                double e = 0;
                for (int i = 0; i < t->group; i += U) {
                    uint8_t code[U];
                    lattice_nearest(code, l, w + i, imp + i, s * one);
                    e += error_of(t, code, w + i, imp + i, U, s * one);
                }
                const double said = (double)lattice_sums(&lines, s * one).e;
                CHECK(fabs(said - e) <= 1e-5 * (e + (double)lines.ww), "%s: %g, %g", names[k], said,
                      e);
            }
        }
    }
}

/* Importances far apart, where rounding errors decide which of two points is better. */
TEST(lines_end_whatever_the_importances)
{
    uint64_t seed = 5;
    for (size_t k = 0; k < LQ_COUNT(names); k++) {
        const blk_type *t = blk_named(names[k]);
        const lattice *l = lattice_of(t);
        for (int round = 0; round < 400; round++) {
            float w[32], imp[32];
            lat_lines lines;
            fill_unit(w, imp, t->group, &seed);
            for (int i = 0; i < t->group; i++)
                imp[i] = i % 4 == round % 4 ? 1 : expf(-12 * fabsf(imp[i]) - 4);
            const float one = 1 / most_of(l);
            lattice_lines(&lines, l, w, imp, t->group, 0.25f * one, 16 * one);
            for (int p = 0; p < lines.n_points; p++)
                for (int i = 1; i < lines.n_pieces[p]; i++)
                    CHECK(lines.piece[p][i].B < lines.piece[p][i - 1].B, "%s: piece %d", names[k],
                          i);
        }
    }
}

/* q M q - 2 b q */
static double quadratic(const blk_type *t, const uint8_t *code, const float *M, const double *b,
                        float scale)
{
    double e = 0, q[U];
    for (int i = 0; i < U; i++)
        q[i] = (double)scale * t->table[code[i]];
    for (int i = 0; i < U; i++) {
        e -= 2 * b[i] * q[i];
        for (int j = 0; j < U; j++)
            e += q[i] * (double)M[i * U + j] * q[j];
    }
    return e;
}

TEST(descent_ends_lower_and_at_a_point)
{
    uint64_t seed = 3;
    int moved = 0;
    for (size_t k = 0; k < LQ_COUNT(names); k++) {
        const blk_type *t = blk_named(names[k]);
        for (int round = 0; round < 200; round++) {
            float w[U], x[U * U], M[U * U], r[U], one[U] = { 1, 1, 1, 1, 1, 1, 1, 1 };
            double b[U] = { 0 };
            uint8_t code[U], before[U];
            const float scale = 0.6f / most_of(lattice_of(t));
            fill_row(w, U, &seed);
            fill_row(x, U * U, &seed);
            for (int i = 0; i < U; i++)
                for (int j = 0; j < U; j++) {
                    M[i * U + j] = i == j ? 0.3f : 0;
                    for (int n = 0; n < U; n++)
                        M[i * U + j] += x[n * U + i] * x[n * U + j];
                }
            lattice_nearest(code, lattice_of(t), w, one, scale);
            memcpy(before, code, U);
            for (int i = 0; i < U; i++) {
                r[i] = 0;
                for (int j = 0; j < U; j++) {
                    b[i] += (double)M[i * U + j] * (double)w[j];
                    r[i] += M[i * U + j] * (w[j] - scale * (float)t->table[code[j]]);
                }
            }
            moved += lattice_descend(code, lattice_of(t), M, r, scale);
            CHECK(is_point(t, code), "%s", names[k]);
            const double e = quadratic(t, code, M, b, scale),
                         e0 = quadratic(t, before, M, b, scale);
            CHECK(e <= e0 + 1e-5 * fabs(e0), "%s: %g, before %g", names[k], e, e0);
        }
    }
    CHECK(moved > 500, "%d of 1000 moved", moved);
}

int main(int argc, char **argv)
{
    RUN(the_nearest_point_is_the_best_of_all);
    RUN(lines_say_the_error_of_the_nearest_points);
    RUN(lines_end_whatever_the_importances);
    RUN(descent_ends_lower_and_at_a_point);
    return check_end();
}
