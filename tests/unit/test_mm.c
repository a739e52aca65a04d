/* tests/unit/test_mm.c - matmuls: the reference against double precision, every family against the
 * reference, and a row's result against the company it keeps. */
#include "formats/tensor/tiles.h"
#include "kernels/mm.h"
#include "quantize/methods/lut4.h"
#include "tests/support/check.h"
#include "tests/support/families.h"
#include "tests/support/mm_rig.h"

#include <stdlib.h>

static const char *const schemes[] = { FILL_SCHEMES };
static const char *const acts_text[] = { "f32", "bf16", "int8" };

static const struct {
    const char *why;
    int64_t M, N, K;
} shapes[] = {
    { "one of each", 1, 1, 32 },   { "one short of a tile", 2, 15, 96 },
    { "a tile", 3, 16, 64 },       { "a tile and one", 4, 17, 172 },
    { "two and one", 5, 33, 384 }, { "odd width", 7, 65, 31 },
    { "many rows", 9, 80, 128 },   { "more rows", 13, 48, 256 },
    { "a panel", 25, 100, 128 },   { "more than fits at once", 98, 140, 288 },
};

TEST(the_reference_agrees_with_double_precision)
{
    char name[16];
    family_use(0, name);
    for (size_t i = 0; i < LQ_COUNT(schemes); i++)
        for (size_t j = 0; j < 6; j++)
            for (int acts = 0; acts < MM_N_ACTS; acts++) {
                problem b;
                if (!problem_make(&b, schemes[i], shapes[j].M, shapes[j].N, shapes[j].K, i + 7 * j))
                    continue;
                double share =
                    worst(&b, run(&b, (mm_acts)acts, 0, b.M, NULL, false), (mm_acts)acts);
                CHECK(share <= 1, "%s, %s, %s: %g of the bound", schemes[i], shapes[j].why,
                      acts_text[acts], share);
                problem_free(&b);
            }
}

TEST(every_family_agrees_with_the_reference)
{
    const bool small = getenv("LLMQ_TEST_SMALL"); /* in an emulator */
    const int64_t most = small ? 25 : INT64_MAX;  /* rows */
    char name[16];
    for (size_t i = 0; i < LQ_COUNT(schemes); i++)
        for (size_t j = 0; j < LQ_COUNT(shapes); j++) {
            problem b;
            if (shapes[j].M > most || (small && !check_hard() && (i + j) % 2)) continue;
            if (!problem_make(&b, schemes[i], shapes[j].M, shapes[j].N, shapes[j].K, i + 7 * j))
                continue;
            for (int acts = 0; acts < MM_N_ACTS; acts++) {
                mm_acts eff = mm_effective(&b.w.t.scheme, (mm_acts)acts);
                family_use(0, name);
                float *want = run(&b, (mm_acts)acts, 0, b.M, NULL, true);
                for (int f = 1; family_use(f, name); f++) {
                    float *got = run(&b, (mm_acts)acts, 0, b.M, NULL, true);
                    if (eff != MM_BF16) {
                        int64_t bad = 0;
                        while (bad < b.M * b.N && memcmp(got + bad, want + bad, 4) == 0)
                            bad++;
                        CHECK(bad == b.M * b.N, "%s, %s, %s, %s: y[%lld] = %.9g, expected %.9g",
                              schemes[i], shapes[j].why, acts_text[acts], name, (long long)bad,
                              (double)got[bad], (double)want[bad]);
                    } else {
                        got = run(&b, (mm_acts)acts, 0, b.M, NULL, false);
                        double share = worst(&b, got, (mm_acts)acts);
                        CHECK(share <= 1, "%s, %s, bf16, %s: %g of the bound", schemes[i],
                              shapes[j].why, name, share);
                    }
                }
            }
            problem_free(&b);
        }
}

TEST(a_row_has_the_same_bytes_alone_and_among_others)
{
    char name[16];
    pool *p;
    CHECK(!pool_open(&p, 3, NULL), "pool");
    for (int f = 0; family_use(f, name); f++)
        for (size_t i = 0; i < LQ_COUNT(schemes); i++)
            for (int acts = 0; acts < MM_N_ACTS; acts++) {
                problem b;
                if (!problem_make(&b, schemes[i], f ? 21 : 5, 90, 384, i)) continue;
                float *all = run(&b, (mm_acts)acts, 0, b.M, p, false);
                for (int64_t m0 = 0, n = 1; m0 < b.M; m0 += n, n++) {
                    if (n > b.M - m0) n = b.M - m0;
                    float *some = run(&b, (mm_acts)acts, m0, n, n & 1 ? p : NULL, false);
                    CHECK(memcmp(some, all + m0 * b.N, (size_t)(n * b.N) * 4) == 0,
                          "%s, %s, %s: rows %lld..+%lld", name, schemes[i], acts_text[acts],
                          (long long)m0, (long long)n);
                }
                problem_free(&b);
            }
    pool_close(p);
}

TEST(weights_of_different_needs_share_one_call)
{
    static const char *const names[] = { "u4-g32",     "gidx u4-g32", "u4-g64-asym", "i8-row",
                                         "i8-outlier", "bf16",        "u4-g32",      "nf4-g48" };
    char family[16];
    for (int f = 0; family_use(f, family); f++)
        for (int acts = 0; acts < MM_N_ACTS; acts++) {
            problem b[LQ_COUNT(names)];
            mm_out o[LQ_COUNT(names)];
            float *y[LQ_COUNT(names)];
            lq_arena scratch;
            enum { M = 3, K = 192 };
            lq_arena_init(&scratch, mm_scratch_bytes(M, K, (int)LQ_COUNT(names), 1), NULL);
            for (size_t i = 0; i < LQ_COUNT(names); i++) {
                CHECK(problem_make(&b[i], names[i], M, 20 + (int64_t)i, K, i), "%s", names[i]);
                memcpy(b[i].x, b[0].x, (size_t)(M * b[0].ldx) * 4);
                y[i] = lq_push(&b[i].a, (size_t)(M * b[i].N) * 4);
                o[i] = (mm_out){ .w = &b[i].w, .y = y[i], .ldy = b[i].N };
            }
            mm_run(o, LQ_COUNT(names), b[0].x, b[0].ldx, M, (mm_acts)acts, &scratch, NULL);
            for (size_t i = 0; i < LQ_COUNT(names); i++) {
                float *want = run(&b[i], (mm_acts)acts, 0, M, NULL, false);
                CHECK(memcmp(y[i], want, (size_t)(M * b[i].N) * 4) == 0, "%s, %s, %s", family,
                      names[i], acts_text[acts]);
            }
            for (size_t i = 0; i < LQ_COUNT(names); i++)
                problem_free(&b[i]);
            lq_arena_free(&scratch);
        }
}

TEST(jobs_run_together_give_the_bytes_of_each_alone)
{
    static const struct {
        const char *why, *scheme;
        int64_t M, N;
    } jobs[] = {
        { "one row", "u4-g32", 1, 40 },
        { "no rows", "u4-g32", 0, 40 },
        { "many rows", "u4-g64-asym", 37, 70 },
        { "act-order", "gidx u4-g32", 3, 33 },
        { "another order", "gidx u4-g32", 6, 33 },
        { "outliers", "i8-outlier", 5, 20 },
        { "dense", "bf16", 9, 100 },
    };
    enum { N_JOBS = LQ_COUNT(jobs), ROWS = 40, K = 192 };
    char family[16];
    pool *p;
    CHECK(!pool_open(&p, 3, NULL), "pool");
    for (int f = 0; family_use(f, family); f++)
        for (int variant = 0; variant < 2 * MM_N_ACTS; variant++) {
            const mm_acts acts = (mm_acts)(variant / 2);
            const bool gather = variant % 2;
            problem b[N_JOBS];
            mm_job j[N_JOBS];
            mm_out o[N_JOBS][2];
            int32_t rows[ROWS];
            int64_t M = 0;
            for (int i = 0; i < ROWS; i++)
                rows[i] = (i * 7 + 3) % ROWS;
            for (int i = 0; i < N_JOBS; i++) {
                CHECK(problem_make(&b[i], jobs[i].scheme, ROWS, jobs[i].N, K, (uint64_t)i), "make");
                for (int k = 0; k < 2; k++) {
                    float *y = lq_push(&b[i].a, (size_t)(ROWS * jobs[i].N) * 4);
                    o[i][k] = (mm_out){ .w = &b[i].w, .y = y, .ldy = jobs[i].N };
                }
                o[i][1].bias = b[i].bias;
                j[i] = (mm_job){ b[i].x, b[i].ldx, jobs[i].M, gather ? rows : NULL, o[i], 2 };
                M += jobs[i].M;
            }
            lq_arena scratch;
            lq_arena_init(&scratch, mm_scratch_bytes(M, K, 2 * N_JOBS, 3), NULL);
            mm_run_jobs(j, N_JOBS, acts, &scratch, p);
            CHECK(lq_arena_mark(&scratch) == 0, "scratch not left as found");
            lq_arena_free(&scratch);
            for (int i = 0; i < N_JOBS; i++)
                for (int64_t m = 0; m < jobs[i].M; m++) {
                    float *want = run(&b[i], acts, gather ? rows[m] : m, 1, NULL, false);
                    bool same = memcmp(o[i][0].y + m * b[i].N, want, (size_t)b[i].N * 4) == 0;
                    for (int64_t n = 0; n < b[i].N; n++)
                        want[n] += b[i].bias[n];
                    same &= memcmp(o[i][1].y + m * b[i].N, want, (size_t)b[i].N * 4) == 0;
                    CHECK(same, "%s, %s: %s, row %lld", family, acts_text[acts], jobs[i].why,
                          (long long)m);
                }
            for (int i = 0; i < N_JOBS; i++)
                problem_free(&b[i]);
        }
    pool_close(p);
}

TEST(tiled_weights_are_used_in_place_and_straddling_blocks_become_dense)
{
    problem b;
    mm_weight again;
    CHECK(problem_make(&b, "u4-g32", 1, 16, 64, 1), "make");
    CHECK(mm_pack_bytes(&b.w.t) == 0 && !mm_pack(&again, &b.w.t, &b.a, NULL, NULL), "tiled");
    CHECK(again.t.plane[QT_CODES].data == b.w.t.plane[QT_CODES].data && !again.expanded,
          "in place");
    problem_free(&b);
    CHECK(problem_make(&b, "nf4", 1, 16, 96, 1), "make");
    CHECK(b.w.expanded && b.w.t.scheme.kind == QT_DENSE, "straddling");
    problem_free(&b);
}

TEST(a_row_with_nan_spoils_itself_alone)
{
    static const float bad[] = { NAN, INFINITY, -INFINITY };
    char family[16];
    for (int f = 0; family_use(f, family); f++)
        for (int acts = 0; acts < MM_N_ACTS; acts++)
            for (size_t i = 0; i < LQ_COUNT(bad); i++) {
                problem b;
                CHECK(problem_make(&b, "u4-g32-asym", 3, 33, 128, 1), "make");
                float *good = run(&b, (mm_acts)acts, 0, 3, NULL, false);
                b.x[b.ldx + 40] = bad[i];
                b.x[3 * b.ldx - 4] = 1e-42f; /* and a subnormal beside */
                float *y = run(&b, (mm_acts)acts, 0, 3, NULL, false);
                CHECK(memcmp(y, good, 33 * 4) == 0, "%s: row 0", family);
                for (int n = 0; n < 33; n++) {
                    CHECK(!isfinite(y[33 + n]), "%s, %s: y[1][%d] = %g", family, acts_text[acts], n,
                          (double)y[33 + n]);
                    CHECK(isfinite(y[66 + n]), "%s: row 2", family);
                }
                /* a row of zeros and tiny numbers gives zeros, not NaN */
                memset(b.x, 0, (size_t)b.ldx * 4);
                b.x[5] = 1e-40f;
                y = run(&b, (mm_acts)acts, 0, 1, NULL, false);
                for (int n = 0; n < 33; n++)
                    CHECK(fabsf(y[n]) < 1e-30f, "%s: zeros", family);
                problem_free(&b);
            }
}

/* What mm_table promises of a table whose largest value is a normal number. */
static void check_table(const char *why, const float v[16], int n)
{
    const mm_table t = mm_table_of(v);
    float r[16];
    double sum = 0, max = 0;
    rounded(r, &t);
    for (int i = 0; i < 16; i++) {
        const double e = (double)r[i] - (double)v[i];
        sum += e * e;
        max = fmax(max, fabs((double)v[i]));
        CHECK(v[i] != 0 || t.t[i] == t.zero, "%s: zero is %d", why, t.t[i] - t.zero);
    }
    CHECK(sqrt(sum / 16) <= max / 254 * (1 + 0x1p-20), "%s: rms %g of %g", why, sqrt(sum / 16),
          max);
    CHECK((t.zero == 15 && n <= 15) || (t.zero == 128 && n > 15), "%s: zero %d", why, t.zero);
    CHECK(fabs(max / n - (double)t.unit) <= max / n * 0x1p-24, "%s: %g is no %d-th of %g", why,
          (double)t.unit, n, max);
}

TEST(tables_are_rounded_to_integers)
{
    float v[16];
    check_table("nf4", lut4_map(false), 112);
    check_table("fp4", lut4_map(true), 120);
    check_table("E2M1", qt_e2m1, 12);
    for (int i = 0; i < 16; i++)
        v[i] = ldexpf((float)(i < 8 ? i - 127 : 112 + i), 120);
    check_table("odd ones, large", v, 127);
    for (int i = 0; i < 16; i++)
        v[i] = ldexpf((float)(2 * i - 15), -120);
    check_table("small ones, tiny", v, 15);
    mm_table t = mm_table_of(qt_e2m1);
    rounded(v, &t);
    CHECK(memcmp(v + 1, qt_e2m1 + 1, 7 * sizeof *v) == 0, "E2M1 is exact");
    memset(v, 0, sizeof v);
    t = mm_table_of(v);
    CHECK(t.unit == 0 && t.t[3] == t.zero, "zeros");
    static const float bad[] = { NAN, INFINITY, -INFINITY };
    for (size_t i = 0; i < LQ_COUNT(bad); i++) {
        v[5] = bad[i];
        v[6] = 1;
        t = mm_table_of(v);
        CHECK(isnan(t.unit) && t.t[5] < 32, "%g", (double)bad[i]);
    }
}

enum { LIMIT_ROWS = 13 }; /* those that kernels of many rows take, in blocks of 5 and 4 */

/* Codes of b, already packed, at the ends (rows of the largest, of the smallest, of both), and
 * activations at theirs, of one sign or of both: sums of 16 bits are at their limits. */
static void to_limits(problem *b)
{
    const size_t row = qt_row_bytes(b->K, b->p.scheme.kind == QT_UINT ? b->p.scheme.bits : 4);
    uint8_t *codes = (uint8_t *)(uintptr_t)b->p.plane[QT_CODES].data;
    for (int64_t n = 0; n < b->N; n++)
        memset(codes + (size_t)n * row, n % 3 == 0 ? 0xff : n % 3 == 1 ? 0x00 : 0xf0, row);
    for (int64_t m = 0; m < b->M; m++)
        for (int64_t k = 0; k < b->K; k++)
            b->x[m * b->ldx + k] = m % 2 ? -2.0f : k % 2 && m > 1 ? -2.0f : 2.0f;
    lq_err err = { "" };
    CHECK(!mm_pack(&b->w, &b->p, &b->a, NULL, &err), "%s", err.msg);
}

/* One row and all, the same bytes in every family, and within the bound where it is meant to hold.
 */
static void check_limits(problem *b, const char *why, bool bound)
{
    char name[16];
    float *want[2] = { NULL, NULL };
    for (int f = 0; family_use(f, name); f++)
        for (int rows = 0; rows < 2; rows++) {
            float *y = run(b, MM_I8, 0, rows ? b->M : 1, NULL, false);
            double share = bound && rows && !f ? worst(b, y, MM_I8) : 0;
            if (!f) want[rows] = y;
            CHECK(share <= 1, "%s, %s: %g of the bound", name, why, share);
            CHECK(memcmp(y, want[rows], (size_t)(rows ? b->M * b->N : b->N) * 4) == 0, "%s, %s",
                  name, why);
        }
}

TEST(tables_at_their_limits_give_the_same_integers)
{
    static const struct {
        const char *why, *scheme;
        float top; /* of the table: values k / top */
        float scale;
    } cases[] = { { "n = 127", "nf4-g64", 127, 1 },       { "n = 15", "nf4-g64", 15, 1 },
                  { "a large scale", "nf4", 127, 1e30f }, { "a negative one", "nf4-g128", 127, -3 },
                  { "none", "nf4-g4096", 127, 0 },        { "denormal", "nf4-g32", 15, 1e-41f },
                  { "long blocks", "nf4-g128", 15, 1 } };
    for (size_t i = 0; i < LQ_COUNT(cases); i++) {
        problem b;
        CHECK(problem_make(&b, cases[i].scheme, LIMIT_ROWS, 17, 4096, i), "make");
        float map[16], *scales = (float *)(uintptr_t)b.p.plane[QT_SCALES].data;
        for (int c = 0; c < 16; c++) /* the ends are as large as they can be */
            map[c] =
                (c < 8 ? -cases[i].top + (float)c : cases[i].top - 15 + (float)c) / cases[i].top;
        memcpy((void *)(uintptr_t)b.p.plane[QT_MAP].data, map, sizeof map);
        for (size_t j = 0; j < b.p.plane[QT_SCALES].bytes / 4; j++)
            scales[j] = cases[i].scale;
        to_limits(&b);
        check_limits(&b, cases[i].why, fabsf(cases[i].scale) > 1e-30f);
        problem_free(&b);
    }
}

TEST(codes_at_their_limits_give_the_same_integers)
{
    static const char *const names[] = { "u2-g128",      "u2-g64-asym",  "u3-g128", "u3-g64-asym",
                                         "u4-g128",      "u4-g128-asym", "u4-g64",  "u4-g32-fzero",
                                         "u8-g128-asym", "mxfp4",        "nvfp4" };
    for (size_t i = 0; i < LQ_COUNT(names); i++) {
        problem b;
        CHECK(problem_make(&b, names[i], LIMIT_ROWS, 17, 1024, i), "make");
        to_limits(&b);
        check_limits(&b, names[i], true);
        problem_free(&b);
    }
}

TEST(products_that_underflow_keep_their_sign)
{
    static const char *const names[] = { "f32", "bf16", "u4-g32-asym", "nf4", "i8-row" };
    char family[16];
    for (size_t i = 0; i < LQ_COUNT(names); i++) {
        problem b;
        CHECK(problem_make(&b, names[i], 3, 33, 128, i), "make");
        for (int64_t k = 0; k < b.M * b.ldx; k++)
            b.x[k] = copysignf(0x1p-149f, b.x[k]); /* the least there is */
        for (int acts = 0; acts < MM_N_ACTS; acts++) {
            /* products of pairs have bits of their own */
            if (mm_effective(&b.w.t.scheme, (mm_acts)acts) == MM_BF16) continue;
            float *want = NULL;
            for (int f = 0; family_use(f, family); f++) {
                float *y = run(&b, (mm_acts)acts, 0, b.M, NULL, false);
                if (!want) want = y;
                CHECK(memcmp(y, want, (size_t)(b.M * b.N) * 4) == 0, "%s, %s, %s", family, names[i],
                      acts_text[acts]);
            }
        }
        problem_free(&b);
    }
}

/* gate and up of one product, and the same one after the other: the same bytes. */
static void check_gated(problem *g, problem *u, mm_acts acts, k_act_fn f, pool *p, const char *why)
{
    const int64_t M = g->M, N = g->N;
    float *want = run(g, acts, 0, M, p, false), *up = run(u, acts, 0, M, p, false);
    lq_arena scratch;
    lq_arena_init(&scratch, mm_scratch_bytes(M, g->K, 1, pool_threads(p)), NULL);
    for (int64_t m = 0; m < M; m++)
        for (int64_t n = 0; n < N; n++) {
            want[m * N + n] += g->bias[n];
            up[m * N + n] += u->bias[n];
        }
    for (int64_t m = 0; m < M; m++)
        k_act_mul(want + m * N, want + m * N, up + m * N, N, f, 3.0f);
    float *y = lq_push(&g->a, (size_t)(M * (N + 5)) * 4);
    for (int64_t i = 0; i < M * (N + 5); i++)
        y[i] = 77.0f;
    const mm_out o = { .w = &g->w,
                       .y = y,
                       .ldy = N + 5,
                       .bias = g->bias,
                       .up = &u->w,
                       .up_bias = u->bias,
                       .act = f,
                       .limit = 3.0f };
    CHECK(mm_gates(&g->w, &u->w, acts), "%s: not a pair", why);
    mm_run(&o, 1, g->x, g->ldx, M, acts, &scratch, p);
    int64_t wrong = 0;
    for (int64_t m = 0; m < M; m++) {
        wrong += memcmp(y + m * (N + 5), want + m * N, (size_t)N * 4) != 0;
        for (int i = 0; i < 5; i++)
            wrong += !(y[m * (N + 5) + N + i] >= 77.0f && y[m * (N + 5) + N + i] <= 77.0f);
    }
    CHECK(wrong == 0, "%s, %lld rows: %lld wrong", why, (long long)M, (long long)wrong);
    lq_arena_free(&scratch);
}

TEST(a_gate_and_its_partner_give_the_bytes_of_both_alone)
{
    static const int64_t rows[] = { 1, 7, 8, 9, 97, 130 };
    static const char *const some[] = { "u4-g128", "nf4", "i8-row", "f16", "bf16", "u4-g32-asym" };
    char family[16], why[64];
    pool *p;
    CHECK(!pool_open(&p, 3, NULL), "pool");
    for (int f = 0; family_use(f, family); f++)
        for (size_t i = 0; i < LQ_COUNT(some); i++)
            for (size_t k = 0; k < LQ_COUNT(rows); k++) {
                const mm_acts acts = (mm_acts)((i + k) % MM_N_ACTS);
                problem g, u;
                if (f == 0 && k > 3) continue; /* the reference is slow */
                CHECK(problem_make(&g, some[i], rows[k], 300, 256, i), "gate");
                CHECK(problem_make(&u, some[i], rows[k], 300, 256, i + 9), "up");
                memcpy(u.x, g.x, (size_t)(g.M * g.ldx) * 4);
                snprintf(why, sizeof why, "%s, %s, %s", family, some[i], acts_text[acts]);
                check_gated(&g, &u, acts, k % 2 ? ACT_SILU : ACT_SWIGLU_CLAMPED, p, why);
                problem_free(&u);
                problem_free(&g);
            }
    problem g, u, v;
    CHECK(problem_make(&g, "u4-g128", 1, 48, 256, 1), "gate");
    CHECK(problem_make(&u, "u4-g32", 1, 48, 256, 2), "up");
    CHECK(problem_make(&v, "u4-g128", 1, 47, 256, 2), "up");
    CHECK(!mm_gates(&g.w, &u.w, MM_I8), "inputs prepared otherwise");
    CHECK(!mm_gates(&g.w, &v.w, MM_F32), "fewer outputs");
    problem_free(&v);
    problem_free(&u);
    problem_free(&g);
    pool_close(p);
}

int main(int argc, char **argv)
{
    RUN(tables_are_rounded_to_integers);
    RUN(tables_at_their_limits_give_the_same_integers);
    RUN(codes_at_their_limits_give_the_same_integers);
    RUN(products_that_underflow_keep_their_sign);
    RUN(the_reference_agrees_with_double_precision);
    RUN(every_family_agrees_with_the_reference);
    RUN(a_row_has_the_same_bytes_alone_and_among_others);
    RUN(weights_of_different_needs_share_one_call);
    RUN(jobs_run_together_give_the_bytes_of_each_alone);
    RUN(tiled_weights_are_used_in_place_and_straddling_blocks_become_dense);
    RUN(a_row_with_nan_spoils_itself_alone);
    RUN(a_gate_and_its_partner_give_the_bytes_of_both_alone);
    return check_end();
}
