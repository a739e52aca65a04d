/* tests/unit/test_dev_lt.c - many rows by weights whose inputs are rounded too, through cuBLASLt
 * (kernels/cuda/mm_lt.cu): integers to the last bit, e4m3 within the bound of its sums; where the rule says
 * so, and where the library does not do it. The device is tests/support/emulated.c's. */
#include "tests/support/devtwins.h"

extern int emu_cc;
extern bool emu_cublaslt_refuses;

typedef struct {
    const char *scheme, *why;
    int64_t M, N, K;
    float act_scale; /* 0: of each row */
    bool add;
} row;
static const row rows[] = {
    { "i8-row-a8", "rows behind the last sixteen, outputs behind the last tile", 515, 37, 96, 0,
      true },
    { "i8-row-a8", "a scale of the checkpoint, some inputs beyond it", 512, 16, 40, 0.01f, false },
    { "fp8-e4m3-af8", "e4m3", 513, 35, 64, 0, true },
};

/* What row x of K is rounded to, and its scale (kernels/mm.c). */
static float rounded(float *q, const float *x, int64_t K, const qt_scheme *s)
{
    float max = 0;
    for (int64_t k = 0; k < K; k++)
        max = fmaxf(max, fabsf(x[k]));
    const float scale =
        s->act_scale > 0 ? s->act_scale : max / (s->act == QT_ACT_I8 ? 127.5f : 448.0f);
    for (int64_t k = 0; k < K; k++)
        q[k] = s->act == QT_ACT_I8 ? fminf(fmaxf(rintf(x[k] / scale), -128), 127)
                                   : lq_e4m3_to_f32(lq_f32_to_e4m3(x[k] / scale));
    return scale;
}

/* The largest share of the bound that `got` takes: of integers the sum is exact, and what follows it is
 * rounded a few times; of e4m3 the sum is one of f32. */
static double worst_of(const twins *o, const float *got, const float *old)
{
    const qt_scheme *s = &o->t.scheme;
    float *w = lq_push(&((twins *)(uintptr_t)o)->r.a, (size_t)(o->N * o->K) * 4),
          *q = calloc((size_t)o->K, 4);
    double worst = 0;
    qt_dequant(w, &o->t, 0, o->N);
    for (int64_t m = 0; m < o->M; m++) {
        const float scale = rounded(q, o->x + m * o->ldx, o->K, s);
        for (int64_t n = 0; n < o->N; n++) {
            double sum = 0, size = 0;
            for (int64_t k = 0; k < o->K; k++) {
                const double p = (double)q[k] * (double)scale * (double)w[n * o->K + k];
                sum += p;
                size += fabs(p);
            }
            const double was = old ? (double)old[m * o->N + n] : 0, b = (double)o->bias[n];
            const double terms = s->act == QT_ACT_I8 ? 4 * fabs(sum) + size /* w is rounded */
                                                     : (3 * (double)o->K + 8) * size;
            const double bound = 0x1p-24 * (terms + 4 * (fabs(sum) + fabs(b) + fabs(was))) + 1e-30;
            worst = fmax(worst, fabs((double)got[m * o->N + n] - (sum + b + was)) / bound);
        }
    }
    free(q);
    return worst;
}

static bool open_row(twins *o, const row *c)
{
    if (!twins_open(o, c->scheme, c->M, c->N, c->K, 7)) return false;
    o->t.scheme.act_scale = o->w.t.scheme.act_scale = c->act_scale;
    o->dw = put_weight(&o->r, &o->w.t);
    CHECK(ops->blas(&o->r.d) && o->r.d.lt, "cuBLASLt is there");
    return true;
}

static void close_row(twins *o) { rig_close(&o->r); }

TEST(codes_are_multiplied_as_they_are)
{
    for (size_t i = 0; i < LQ_COUNT(rows); i++) {
        twins o;
        if (!open_row(&o, &rows[i])) continue;
        const dev_mm_args a = twins_args(&o, MM_BF16, rows[i].add);
        CHECK(dev_mm_lt(&o.r.d, &o.dw, MM_BF16, o.M), "%s: the rule", rows[i].why);
        ops->matmul(&o.r.d, &a);
        if (get(&o.r, o.got, a.y, (size_t)(o.M * o.N) * 4, rows[i].why)) {
            const double d = worst_of(&o, o.got, rows[i].add ? o.want : NULL);
            CHECK(d <= 1, "%s, %s: %g of the bound", rows[i].scheme, rows[i].why, d);
        }
        close_row(&o);
    }
}

/* Two products of one x, the second of which takes the codes of the first; and the same where the library
 * does none of them, or the second one alone. */
TEST(what_the_library_does_not_do_is_done_without)
{
    const row c = { "i8-row-a8", "", 512, 16, 32, 0, false };
    for (int refuses = 0; refuses < 3; refuses++) {
        twins o;
        if (!open_row(&o, &c)) return;
        dev_mm_args a = twins_args(&o, MM_BF16, false);
        emu_cublaslt_refuses = refuses == 1;
        ops->matmul(&o.r.d, &a);
        emu_cublaslt_refuses = refuses > 0;
        a.arranged = true;
        a.y = put(&o.r, o.want, (size_t)(o.M * o.N) * 4);
        ops->matmul(&o.r.d, &a);
        emu_cublaslt_refuses = false;
        CHECK(o.r.d.lt == !refuses, "it is asked once");
        if (get(&o.r, o.got, a.y, (size_t)(o.M * o.N) * 4, "the second")) {
            on_cpu(o.want, &o.w, o.x, o.ldx, o.bias, o.M, MM_F32, false);
            double worst = refuses ? 0 : worst_of(&o, o.got, NULL);
            for (int64_t k = 0; k < o.M * o.N && refuses; k++)
                worst = fmax(worst, fabs((double)o.got[k] - (double)o.want[k]) / 1e-4);
            CHECK(worst <= 1, "refuses %d: %g", refuses, worst);
        }
        close_row(&o);
    }
}

TEST(few_rows_f32_and_one_order_are_left_as_they_are)
{
    twins o, f8;
    if (!open_row(&o, &rows[0]) || !open_row(&f8, &rows[2])) return;
    dev *d = &o.r.d;
    CHECK(!dev_mm_lt(d, &o.dw, MM_BF16, DEV_MM_LT - 1), "few rows");
    CHECK(!dev_mm_lt(d, &o.dw, MM_F32, DEV_MM_LT), "f32");
    CHECK(dev_mm_lt(d, &o.dw, MM_I8, DEV_MM_LT), "int8");
    d->batch_invariant = true;
    CHECK(!dev_mm_lt(d, &o.dw, MM_BF16, DEV_MM_LT), "one order of any number of rows");
    d->batch_invariant = false;
    const int cc = d->cc;
    d->cc = 86;
    CHECK(dev_mm_lt(d, &o.dw, MM_BF16, DEV_MM_LT) && !dev_mm_lt(d, &f8.dw, MM_BF16, DEV_MM_LT),
          "e4m3 before 8.9");
    d->cc = cc;
    d->lt = false;
    CHECK(!dev_mm_lt(d, &o.dw, MM_BF16, DEV_MM_LT), "no library");
    dev_weight w = o.dw;
    w.t.scheme.act_group = 32;
    d->lt = true;
    CHECK(!dev_mm_lt(d, &w, MM_BF16, DEV_MM_LT) && !dev_same_input(&w, &o.dw, MM_BF16),
          "scales of groups");
    close_row(&o);
    close_row(&f8);
}

int main(int argc, char **argv)
{
    if (!rig_table()) return 0;
    if (getenv("LLMQ_TEST_DEVICE") || emu_cc < 89) {
        printf("skipped: of an emulated device of 8.9 or later\n0 passed, 0 failed\n");
        return 0;
    }
    RUN(codes_are_multiplied_as_they_are);
    RUN(what_the_library_does_not_do_is_done_without);
    RUN(few_rows_f32_and_one_order_are_left_as_they_are);
    return check_end();
}
