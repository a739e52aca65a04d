/* tests/unit/test_quant_dev.c - quantization on a device table against the CPU's: products, statistics,
 * GPTQ. */
#include <cblas.h>

#include "calib/stats.h"
#include "quantize/methods/awq.h"
#include "quantize/methods/cholesky.h"
#include "quantize/methods/gptq.h"
#include "runtime/model/offload.h"
#include "tests/support/devrig.h"
#include "tests/support/emucounts.h"

extern size_t emu_memory;

static const struct {
    int64_t M, N, K;
    bool ta, tb, lower;
    float beta;
} products[] = { { 1, 1, 1, false, false, false, 0 },      { 65, 70, 17, false, false, false, 1 },
                 { 64, 64, 128, true, false, false, 1 },   { 3, 130, 40, false, true, false, 0 },
                 { 70, 5, 33, true, true, false, 0.5f },   { 200, 200, 24, true, false, true, 1 },
                 { 515, 390, 21, false, true, false, 0 },  { 390, 515, 20, true, false, false, 1 },
                 { 400, 400, 35, true, false, true, 0.5f } };

/* To the bit: sums over k in order, by fma. */
static void one_product(size_t i)
{
    const int64_t M = products[i].M, N = products[i].N, K = products[i].K;
    const int64_t lda = (products[i].ta ? M : K) + 3, ldb = (products[i].tb ? K : N) + 1,
                  ldc = N + 2;
    rig r;
    rig_open(&r);
    const int64_t na = (products[i].ta ? K : M) * lda, nb = (products[i].tb ? N : K) * ldb;
    float *A = floats(&r, na, 1), *B = floats(&r, nb, 2), *C = floats(&r, M * ldc, 3),
          *got = floats(&r, M * ldc, 4);
    dev_gemm_args a = { .C = put(&r, C, (size_t)(M * ldc) * 4),
                        .A = put(&r, A, (size_t)na * 4),
                        .B = put(&r, B, (size_t)nb * 4),
                        .ldc = ldc,
                        .lda = lda,
                        .ldb = ldb,
                        .M = M,
                        .N = N,
                        .K = K,
                        .ta = products[i].ta,
                        .tb = products[i].tb,
                        .lower = products[i].lower,
                        .beta = products[i].beta };
    ops->gemm(&r.d, &a);
    int64_t others = 0;
    if (get(&r, got, a.C, (size_t)(M * ldc) * 4, "gemm"))
        for (int64_t m = 0; m < M; m++)
            for (int64_t n = 0; n < N; n++) {
                float sum = 0;
                if (a.lower && n > m) continue;
                for (int64_t k = 0; k < K; k++)
                    sum = fmaf(A[a.ta ? k * lda + m : m * lda + k],
                               B[a.tb ? n * ldb + k : k * ldb + n], sum);
                const float old = a.beta * C[m * ldc + n];
                others += got[m * ldc + n] != (a.beta == 0 ? sum : sum + old);
            }
    CHECK(others == 0, "product %d: %lld others", (int)i, (long long)others);
    for (int64_t m = 0; m < M; m++)
        CHECK(memcmp(got + m * ldc + N, C + m * ldc + N, 8) == 0, "product %d: behind a row",
              (int)i);
    rig_close(&r);
}

TEST(products_are_summed_in_order)
{
    for (size_t i = 0; i < LQ_COUNT(products); i++)
        one_product(i);
}

/* x [T, K] whose inputs are related, some of them large. */
static float *inputs(rig *r, int64_t T, int64_t K)
{
    float *x = floats(r, T * K, 9);
    for (int64_t t = 0; t < T; t++)
        for (int64_t k = 1; k < K; k++)
            x[t * K + k] = (x[t * K + k] + 0.7f * x[t * K + k - 1]) * (k % 37 == 5 ? 20.0f : 1.0f);
    for (int64_t t = 0; t < T; t++)
        x[t * K + 3] = 0; /* never fires */
    return x;
}

enum { AT = 11, D = 30 };

/* weight: rows count by it, and beside them come their inputs AT .. AT + D. */
static void two_chunks(cal_stats *s, const float *x, int64_t T, int64_t K, dev *on,
                       const float *weight)
{
    const float *rest = x + T / 3 * K;
    lq_err err = { "" };
    CHECK(!cal_stats_init(s, K, true, on, &err), "%s", err.msg);
    s->weight = weight;
    if (weight) {
        CHECK(!cal_stats_match(s, D, &err), "%s", err.msg);
        CHECK(!cal_stats_add_with(s, x, K, x + AT, K, T / 3, NULL, &err), "%s", err.msg);
        CHECK(!cal_stats_add_with(s, rest, K, rest + AT, K, T - T / 3, NULL, &err), "%s", err.msg);
    } else {
        CHECK(!cal_stats_add(s, x, K, T / 3, NULL, &err), "%s", err.msg);
        CHECK(!cal_stats_add(s, rest, K, T - T / 3, NULL, &err), "%s", err.msg);
    }
    CHECK(!cal_stats_finish(s, &err), "%s", err.msg);
}

static void compare_sides(const float *weight, int64_t T, int64_t K)
{
    rig r;
    rig_open(&r);
    const float *x = inputs(&r, T, K);
    cal_stats here = { 0 }, there = { 0 };
    two_chunks(&here, x, T, K, NULL, weight);
    two_chunks(&there, x, T, K, &r.d, weight);
    double worst = 0;
    for (int64_t i = 0; i < K; i++)
        for (int64_t j = 0; j < K; j++) {
            const bool of_m = here.M && i >= AT && i < AT + D;
            const int64_t h = i * K + j, m = of_m ? (i - AT) * K + j : 0;
            double size = 0;
            for (int64_t t = 0; t < T; t++)
                size += (weight ? (double)weight[t] : 1) *
                        fabs((double)x[t * K + i] * (double)x[t * K + j]) / (double)T;
            const double bound =
                2 * (double)(T + 2) * 0x1p-24 * size + 1e-30; /* stats.h, of each side */
            double off = fabs((double)here.H[h] - (double)there.H[h]);
            if (!(off <= worst * bound)) worst = off / bound;
            off = of_m ? fabs((double)here.M[m] - (double)there.M[m]) : 0;
            if (!(off <= worst * bound)) worst = off / bound;
            if (of_m)
                CHECK(fabs((double)there.M[m] - (double)there.H[h]) <= bound, "M %lld",
                      (long long)m);
        }
    CHECK(worst <= 1, "%g of the bound", worst);
    CHECK(memcmp(here.sum_sq, there.sum_sq, (size_t)K * sizeof *here.sum_sq) == 0,
          "what the CPU sums");
    cal_stats_free(&here);
    cal_stats_free(&there);
    rig_close(&r);
}

TEST(statistics_are_the_cpus_within_rounding)
{
    enum { T = 300 };
    float weight[T];
    for (int t = 0; t < T; t++)
        weight[t] = (float)(t % 9) / 4;
    compare_sides(NULL, T, 70);
    compare_sides(weight, T, 70);
}

/* Where they differ first, and how often. */
static void same_bits(const float *a, const float *b, int64_t K, const char *what)
{
    int64_t n = 0, at = 0;
    for (int64_t i = K * K - 1; i >= 0; i--)
        if (memcmp(&a[i], &b[i], sizeof *a) != 0) n++, at = i;
    CHECK(!n, "K = %lld, %s: %lld other bits, the first in row %lld, column %lld: %a and %a",
          (long long)K, what, (long long)n, (long long)(at / K), (long long)(at % K), (double)a[at],
          (double)b[at]);
}

/* The factor of an inverse: in tiles of 128, of which the device multiplies whole columns. */
TEST(the_factor_has_the_cpus_bits)
{
    static const int64_t sizes[] = { 70, 129, 300, 520 };
    if (strcmp(openblas_get_corename(), "Prescott") == 0) {
        CHECK_SKIP("skipped: OpenBLAS took Prescott's kernels, without FMA (OPENBLAS_CORETYPE)");
        return;
    }
    for (size_t i = 0; i < LQ_COUNT(sizes); i++) {
        const int64_t K = sizes[i];
        const size_t bytes = (size_t)(K * K) * sizeof(float);
        rig r;
        lq_err err = { "" };
        rig_open(&r);
        cal_stats st = { 0 };
        two_chunks(&st, inputs(&r, 2 * K, K), 2 * K, K, NULL, NULL);
        float *U = lq_push(&r.a, bytes), *there = lq_push(&r.a, bytes);
        int32_t *perm = lq_push(&r.a, (size_t)K * sizeof *perm);
        for (int64_t k = 0; k < K; k++)
            perm[k] = (int32_t)(K - 1 - k);
        const size_t room = ops->room(&r.d), before = emu_counted.launches;
        CHECK(!cholesky_upper(U, st.H, perm, K, 0.5, NULL, NULL, NULL, &err), "%s", err.msg);
        CHECK(!cholesky_upper(there, st.H, perm, K, 0.5, NULL, NULL, NULL, &err), "%s", err.msg);
        same_bits(U, there, K, "twice on the CPU");
        CHECK(!cholesky_upper(there, st.H, perm, K, 0.5, &r.d, NULL, NULL, &err), "%s", err.msg);
        same_bits(U, there, K, "on the device");
        CHECK(ops->room(&r.d) == room, "K = %lld: memory is left there", (long long)K);
        CHECK(getenv("LLMQ_TEST_DEVICE") || (emu_counted.launches > before) == (K > 128),
              "K = %lld: %zu launches", (long long)K, emu_counted.launches - before);
        st.H[0] = -1e6f; /* of no factor */
        st.H[1] = st.H[K] = 1e6f;
        CHECK(cholesky_upper(there, st.H, perm, K, 0.5, &r.d, NULL, NULL, &err) == LQ_ECHECK,
              "taken");
        cal_stats_free(&st);
        rig_close(&r);
    }
}

static const struct {
    const char *why;
    int64_t N, K;
    int bits, group, sweeps;
    grid_mode mode;
    bool act_order, search;
} roundings[] = {
    { "one short block", 9, 64, 4, 32, 0, GRID_ASYM, false, false },
    { "blocks, the last short", 40, 320, 4, 64, 0, GRID_ASYM, true, false },
    { "sweeps", 40, 320, 4, 64, 4, GRID_ASYM, true, true },
    { "3 bits, symmetric", 33, 288, 3, 96, 2, GRID_SYM, true, true },
    { "2 bits", 24, 256, 2, 16, 8, GRID_ASYM, true, true },
    { "8 bits, one group", 8, 160, 8, 160, 2, GRID_SYM_FULL, true, false },
};

static void one_rounding(size_t i)
{
    const int64_t N = roundings[i].N, K = roundings[i].K;
    const bool asym = roundings[i].mode == GRID_ASYM;
    const int bits = roundings[i].bits;
    const qt_scheme s = { .kind = QT_UINT,
                          .bits = bits,
                          .group = roundings[i].group,
                          .zero = asym ? QT_ZERO_INT : QT_ZERO_NONE,
                          .zbits = asym ? bits : 0,
                          .scale_dtype = LQ_F16 };
    gptq_opts o = { .spec = { bits, roundings[i].mode, LQ_F16, roundings[i].search, false },
                    .static_groups = true,
                    .sweeps = roundings[i].sweeps };
    rig r;
    rig_open(&r);
    lq_err err = { "" };
    cal_stats st = { 0 };
    two_chunks(&st, inputs(&r, 3 * K, K), 3 * K, K, NULL, NULL);
    const float *W = floats(&r, N * K, i + 20);
    gptq_basis b;
    qz_out out[2];
    gptq_report rep[2];
    CHECK(!gptq_prepare(&b, st.H, K, 0, roundings[i].act_order, 1, NULL, NULL, NULL, &err), "%s",
          err.msg);
    CHECK(b.U && b.dead == 1, "%s: the basis", roundings[i].why);
    size_t launches = 0;
    for (int there = 0; there < 2; there++) {
        o.on = there ? &r.d : NULL;
        const size_t before = emu_counted.launches;
        CHECK(!qz_out_alloc(&out[there], &s, N, K, &r.a, &err), "%s", err.msg);
        CHECK(!gptq_run(&out[there], &rep[there], W, &b, &o, NULL, &err), "%s", err.msg);
        launches = emu_counted.launches - before;
    }
    CHECK(getenv("LLMQ_TEST_DEVICE") || launches > 3, "%s: not on the device", roundings[i].why);
    int64_t others = 0;
    const size_t row = qt_row_bytes(K, bits);
    for (int64_t n = 0; n < N; n++)
        for (int64_t k = 0; k < K; k++)
            others += qt_get((uint8_t *)out[0].w[QT_CODES] + (size_t)n * row, k, bits) !=
                      qt_get((uint8_t *)out[1].w[QT_CODES] + (size_t)n * row, k, bits);
    CHECK(others * 1000 < N * K, "%s: %lld of %lld codes are others", roundings[i].why,
          (long long)others, (long long)(N * K));
    CHECK(fabs(rep[0].loss - rep[1].loss) <= 1e-3 * rep[0].loss &&
              fabs(rep[0].loss_rtn - rep[1].loss_rtn) <= 1e-4 * rep[0].loss_rtn,
          "%s: loss %g, there %g; rtn %g, there %g", roundings[i].why, rep[0].loss, rep[1].loss,
          rep[0].loss_rtn, rep[1].loss_rtn);
    if (getenv("SHOW"))
        printf("%s: %lld of %lld others, loss %.9g %.9g\n", roundings[i].why, (long long)others,
               (long long)(N * K), rep[0].loss, rep[1].loss);
    gptq_basis_free(&b);
    cal_stats_free(&st);
    rig_close(&r);
}

TEST(gptq_gives_the_cpus_codes_but_for_ties)
{
    for (size_t i = 0; i < LQ_COUNT(roundings); i++)
        one_rounding(i);
}

/* ---- AWQ's search ---- */
TEST(awq_chooses_the_cpus_scales)
{
    enum { K = 96, N = 70, T = 200 };
    rig r;
    lq_err err = { "" };
    rig_open(&r);
    cal_stats st = { 0 };
    const float *x = inputs(&r, T, K);
    two_chunks(&st, x, T, K, NULL, NULL);
    awq_site site = { .n = 2, .K = K, .H = st.H, .mean_abs = st.mean_abs };
    for (int l = 0; l < 2; l++) {
        site.lin[l].W = floats(&r, N * K, (uint64_t)(20 + l));
        site.lin[l].N = N - 3 * l;
        site.lin[l].group = 32;
        site.lin[l].spec = (grid_spec){ .bits = 3, .scale_dtype = LQ_F32 };
    }
    float s[2][K];
    awq_report rep[2];
    for (int on = 0; on < 2; on++) {
        site.on = on ? &r.d : NULL;
        CHECK(!awq_search(s[on], &rep[on], &site, NULL, &err), "%s", err.msg);
    }
    CHECK(rep[0].after < rep[0].before, "%g, scaled %g", rep[0].before, rep[0].after);
    CHECK(memcmp(s[0], s[1], sizeof s[0]) == 0, "alpha %g of %d, on the device %g of %d",
          rep[0].alpha, rep[0].by_weight, rep[1].alpha, rep[1].by_weight);
    CHECK(fabs(rep[1].before / rep[0].before - 1) < 1e-5 &&
              fabs(rep[1].after / rep[0].after - 1) < 1e-5,
          "losses %g and %g, on the device %g and %g", rep[0].before, rep[0].after, rep[1].before,
          rep[1].after);
    cal_stats_free(&st);
    rig_close(&r);
}

/* ---- products of a calibration pass ---- */
TEST(products_of_a_pass_have_the_cpus_bits)
{
    static const char *const schemes[] = { "bf16", "f32",    "f16",    "u4-g32-asym",
                                           "nf4",  "i8-row", "u3-g24", "u4-g32-bias" };
    enum { N = 300, K = 96, M = 261 }; /* more than are converted, or taken, at a time */
    for (size_t i = 0; i < LQ_COUNT(schemes); i++) {
        const qt_scheme sc = fill_scheme(schemes[i]);
        rig r;
        lq_err err = { "" };
        fwd_offload *o;
        mm_weight w;
        rig_open(&r);
        const qt_tensor t = fill_tensor(sc, N, K, &r.a, 4);
        CHECK(!mm_pack(&w, &t, &r.a, NULL, &err), "%s", err.msg);
        CHECK(!fwd_offload_open(&o, &r.d, NULL, &err), "%s", err.msg);
        const float *x = floats(&r, M * (K + 5), 1), *bias = floats(&r, N, 2);
        int32_t rows[M]; /* some twice, others not at all */
        for (int m = 0; m < M; m++)
            rows[m] = m * 7 % M / 2 * 2;
        const size_t bytes = (size_t)(M * (N + 7)) * sizeof(float);
        float *y = lq_push(&r.a, bytes), *want = lq_push(&r.a, bytes);
        for (int add = 0; add < 2; add++) {
            for (int64_t k = 0; k < M * (N + 7); k++)
                y[k] = want[k] = 1;
            mm_out out = {
                .w = &w, .y = want, .ldy = N + 7, .bias = add ? NULL : bias, .add = add
            };
            const mm_job job = { x, K + 5, M, i % 2 ? rows : NULL, &out, 1 };
            mm_run_jobs(&job, 1, MM_F32, &r.a, NULL);
            out.y = y;
            CHECK(fwd_offload_products(o, &job), "%s", schemes[i]);
            CHECK(!fwd_offload_check(o, &err), "%s", err.msg);
            CHECK(memcmp(y, want, bytes) == 0, "%s: others, add %d", schemes[i], add);
        }
        fwd_offload_close(o);
        CHECK(!ops->sync(&r.d, &err), "%s", err.msg);
        rig_close(&r);
    }
}

/* Where there is room for little else, a weight goes when another comes. */
TEST(weights_of_a_pass_make_room_for_each_other)
{
    enum { N = 48, K = 64, M = 5 };
    if (check_real_gpu("its memory is what it is")) return;
    rig r;
    lq_err err = { "" };
    fwd_offload *o;
    mm_weight w[2];
    float y[M * N], want[M * N];
    size_t left[3];
    rig_open(&r);
    const size_t memory = emu_memory;
    const float *x = floats(&r, M * K, 1);
    for (int i = 0; i < 2; i++) {
        const qt_tensor t = fill_tensor(fill_scheme("f32"), N, K, &r.a, (uint64_t)(4 + i));
        CHECK(!mm_pack(&w[i], &t, &r.a, NULL, &err), "%s", err.msg);
    }
    CHECK(!fwd_offload_open(&o, &r.d, NULL, &err), "%s", err.msg);
    emu_memory = 1 << 20;
    for (int i = 0; i < 3; i++) {
        mm_out out = { .w = &w[i % 2], .y = want, .ldy = N };
        const mm_job job = { x, K, M, NULL, &out, 1 };
        mm_run_jobs(&job, 1, MM_F32, &r.a, NULL);
        out.y = y;
        CHECK(fwd_offload_products(o, &job) && !fwd_offload_check(o, &err), "%s", err.msg);
        CHECK(memcmp(y, want, sizeof y) == 0, "product %d: others", i);
        left[i] = ops->room(&r.d);
    }
    CHECK(left[0] == left[1] && left[1] == left[2], "%zu, %zu, %zu bytes left", left[0], left[1],
          left[2]);
    emu_memory = memory;
    fwd_offload_close(o);
    rig_close(&r);
}

TEST(a_pass_that_fails_there_says_so)
{
    if (check_real_gpu("its memory is what it is")) return;
    rig r;
    lq_err err = { "" };
    fwd_offload *o;
    mm_weight w;
    float x[32] = { 0 }, y[16];
    rig_open(&r);
    const qt_tensor t = fill_tensor(fill_scheme("bf16"), 16, 32, &r.a, 4);
    CHECK(!mm_pack(&w, &t, &r.a, NULL, &err), "%s", err.msg);
    CHECK(!fwd_offload_open(&o, &r.d, NULL, &err), "%s", err.msg);
    const mm_out out = { .w = &w, .y = y, .ldy = 16 };
    const mm_job job = { x, 32, 1, NULL, &out, 1 };
    const size_t memory = emu_memory;
    emu_memory = 1;
    CHECK(fwd_offload_products(o, &job), "it is taken");
    CHECK(fwd_offload_check(o, &err) == LQ_ENOMEM && strstr(err.msg, "out of memory"), "%s",
          err.msg);
    emu_memory = memory;
    CHECK(!fwd_offload_check(o, &err) && fwd_offload_products(o, &job) &&
              !fwd_offload_check(o, &err),
          "and goes on: %s", err.msg);
    qt_tensor other = t;
    other.scheme.act = QT_ACT_I8;
    w.t = other;
    CHECK(!fwd_offload_products(o, &job), "inputs that are rounded are the CPU's");
    other.scheme = fill_scheme("gidx u4-g32-asym");
    w.t = other;
    CHECK(!fwd_offload_products(o, &job), "and sums in another order");
    fwd_offload_close(o);
    rig_close(&r);
}

int main(int argc, char **argv)
{
    if (!rig_table()) return 0;
    RUN(products_are_summed_in_order);
    RUN(awq_chooses_the_cpus_scales);
    RUN(products_of_a_pass_have_the_cpus_bits);
    RUN(weights_of_a_pass_make_room_for_each_other);
    RUN(a_pass_that_fails_there_says_so);
    RUN(statistics_are_the_cpus_within_rounding);
    RUN(the_factor_has_the_cpus_bits);
    RUN(gptq_gives_the_cpus_codes_but_for_ties);
    return check_end();
}
