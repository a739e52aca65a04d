/* tests/support/devtwins.h - one matrix product on both sides: the device's of tests/support/devrig.h, and
 * the CPU's in plain C; and how far apart they may be. */
#ifndef LLMQ_TESTS_SUPPORT_DEVTWINS_H
#define LLMQ_TESTS_SUPPORT_DEVTWINS_H

#include "tests/support/devrig.h"

static inline dev_weight put_weight(rig *r, const qt_tensor *t)
{
    dev_weight w = { *t, tiles_shape(&t->scheme, t->N, t->K) };
    for (int p = 0; p < QT_N_PLANES; p++)
        if (t->plane[p].bytes) w.t.plane[p].data = put(r, t->plane[p].data, t->plane[p].bytes);
    return w;
}

/* sum |x w| for each output, x as the product takes it. */
static inline double size_of(const float *x, const float *w, int64_t K)
{
    double sum = 0;
    for (int64_t k = 0; k < K; k++)
        sum += fabs((double)x[k] * (double)w[k]);
    return sum;
}

/* Whether the matrix units take a weight as the sum of two bf16 (dev_mm_args). */
static inline bool as_two(const qt_scheme *s)
{
    return (s->kind == QT_DENSE && s->dtype == LQ_F16) || s->kind == QT_LUT4 ||
           s->zero == QT_ZERO_F16 || s->zero == QT_ZERO_BIAS;
}

/* The largest share of the bound that got takes: each side is within 3 K u of the sum of sizes
 * (mm.h), and of the last additions; `left` is what rounding leaves of a weight: 2^-8 of one bf16,
 * 2^-16 of two, with float zeros of what is subtracted as well, at most 2^bits scales. */
static inline double of_bound(const float *got, const float *want, const float *x, int64_t ldx,
                              const float *dense, int64_t M, int64_t N, int64_t K, double left)
{
    double worst = 0;
    for (int64_t m = 0; m < M; m++)
        for (int64_t n = 0; n < N; n++) {
            double size = size_of(x + m * ldx, dense + n * K, K);
            double bound = size * (6 * (double)K * 0x1p-24 + left) +
                           0x1p-22 * (2 + fabs((double)want[m * N + n]));
            double diff = fabs((double)got[m * N + n] - (double)want[m * N + n]);
            if (!(diff <= worst * bound)) worst = diff / bound;
        }
    return worst;
}

/* The twin: plain C, f32, on activations that are bf16 already where the device rounds them. */
static inline void on_cpu(float *y, const mm_weight *w, const float *x, int64_t ldx,
                          const float *bias, int64_t M, mm_acts acts, bool add)
{
    lq_err err = { "" };
    lq_arena scratch;
    CHECK(!k_init("ref", &err), "%s", err.msg);
    lq_arena_init(&scratch, mm_scratch_bytes(M, w->t.K, 1, 1), NULL);
    mm_out o = { .w = w, .y = y, .ldy = w->t.N, .bias = bias, .add = add };
    mm_run(&o, 1, x, ldx, M, acts, &scratch, NULL);
    lq_arena_free(&scratch);
}

/* One product of M rows: its weight on both sides, inputs, outputs that begin with noise. */
typedef struct {
    rig r;
    qt_tensor t;
    mm_weight w;
    dev_weight dw;
    float *x, *bias, *want, *got;
    int64_t M, N, K, ldx;
} twins;

/* False: no such weight of so many inputs. */
static inline bool twins_open(twins *o, const char *name, int64_t M, int64_t N, int64_t K,
                              uint64_t seed)
{
    qt_scheme s = fill_scheme(name);
    if (fill_misfit(&s, K)) return false;
    if (s.kind == QT_I8_OUTLIER) s.n_out = K / 9 + 1;
    *o = (twins){ .M = M, .N = N, .K = K, .ldx = K + 3 };
    rig_open(&o->r);
    lq_err err = { "" };
    o->t = fill_tensor(s, N, K, &o->r.a, seed);
    CHECK(!mm_pack(&o->w, &o->t, &o->r.a, NULL, &err), "%s", err.msg);
    o->x = floats(&o->r, M * o->ldx, 1);
    o->bias = floats(&o->r, N, 2);
    o->want = floats(&o->r, M * N, 3);
    o->got = floats(&o->r, M * N, 4);
    return true;
}

static inline dev_mm_args twins_args(twins *o, mm_acts acts, bool add)
{
    rig *r = &o->r;
    return (dev_mm_args){ .y = put(r, o->want, (size_t)(o->M * o->N) * 4),
                          .w = &o->dw,
                          .x = put(r, o->x, (size_t)(o->M * o->ldx) * 4),
                          .bias = put(r, o->bias, (size_t)o->N * 4),
                          .scratch = put(r, NULL, ops->mm_scratch(&o->dw, o->M)),
                          .ldy = o->N,
                          .ldx = o->ldx,
                          .M = o->M,
                          .acts = acts,
                          .add = add };
}

/* Into `got` on the device, into `want` on the CPU; false: the device has failed. */
static inline bool twins_run(twins *o, const char *name, mm_acts acts, bool add)
{
    rig *r = &o->r;
    const size_t bytes = (size_t)(o->M * o->N) * 4;
    const dev_mm_args a = twins_args(o, acts, add);
    ops->matmul(&r->d, &a);
    on_cpu(o->want, &o->w, o->x, o->ldx, o->bias, o->M, acts, add);
    return get(r, o->got, a.y, bytes, name);
}

static inline void twins_check(twins *o, const char *name, const char *why, mm_acts acts)
{
    float *dense = lq_push(&o->r.a, (size_t)(o->N * o->K) * 4);
    const double left = dev_mm_wide(&o->r.d, &o->dw, acts, o->M)  ? 0x1p-8
                        : acts == MM_BF16 && as_two(&o->t.scheme) ? 0x1p-16
                                                                  : 0;
    double worst = 0;
    if (twins_run(o, name, acts, true)) {
        qt_dequant(dense, &o->t, 0, o->N);
        worst = of_bound(o->got, o->want, o->x, o->ldx, dense, o->M, o->N, o->K, left);
    }
    CHECK(worst <= 1, "%s, %s, %s, sm_%d: %g of the bound", name, why,
          acts == MM_F32 ? "f32" : "bf16", o->r.d.cc, worst);
}

#endif
