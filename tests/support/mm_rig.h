/* tests/support/mm_rig.h - products of random matrices in any scheme. */
#ifndef LLMQ_TESTS_SUPPORT_MM_RIG_H
#define LLMQ_TESTS_SUPPORT_MM_RIG_H

#include "formats/tensor/tiles.h"
#include "kernels/mm.h"
#include "kernels/ops.h"
#include "tests/support/check.h"
#include "tests/support/fill.h"

#include <stdlib.h>

/* One product with everything around it. */
typedef struct {
    lq_arena a;
    qt_tensor p; /* portable */
    mm_weight w;
    float *x, *bias;
    int64_t M, N, K, ldx;
} problem;

static inline bool problem_make(problem *b, const char *name, int64_t M, int64_t N, int64_t K,
                                uint64_t seed)
{
    qt_scheme s = fill_scheme(name);
    if (fill_misfit(&s, K)) return false;
    if (s.kind == QT_I8_OUTLIER) s.n_out = K / 9 + 1;
    *b = (problem){ .M = M, .N = N, .K = K, .ldx = K + 3 };
    lq_arena_init(&b->a, 0, NULL);
    b->p = fill_tensor(s, N, K, &b->a, seed);
    lq_err err = { "" };
    CHECK(!mm_pack(&b->w, &b->p, &b->a, NULL, &err), "%s", err.msg);
    b->x = lq_push(&b->a, (size_t)(M * b->ldx + 1) * 4);
    b->bias = lq_push(&b->a, (size_t)N * 4);
    fill_row(b->x, M * b->ldx, &seed);
    fill_row(b->bias, N, &seed);
    return true;
}

static inline void problem_free(problem *b) { lq_arena_free(&b->a); }

/* y [M,N] with exactly the scratch that mm_scratch_bytes promises. */
static inline float *run(problem *b, mm_acts acts, int64_t m0, int64_t M, pool *p, bool more)
{
    lq_arena scratch;
    lq_arena_init(&scratch, mm_scratch_bytes(M, b->K, 1, pool_threads(p)), NULL);
    float *y = lq_push(&b->a, (size_t)(M * b->N + 1) * 4);
    for (int64_t i = 0; i < M * b->N && more; i++)
        y[i] = (float)i;
    y[M * b->N] = 77.0f; /* one behind the end */
    mm_out o = { .w = &b->w, .y = y, .ldy = b->N, .bias = more ? b->bias : NULL, .add = more };
    mm_run(&o, 1, b->x + m0 * b->ldx, b->ldx, M, acts, &scratch, p);
    CHECK(y[M * b->N] == 77.0f, "written behind y");
    CHECK(lq_arena_mark(&scratch) == 0, "scratch not left as found");
    lq_arena_free(&scratch);
    return y;
}

/* Inputs rounded as the scheme says, in double precision but for the steps that are f32. */
static inline void round_acts(double *out, const float *x, int64_t K, const qt_scheme *s)
{
    int64_t group = s->act_group ? s->act_group : K;
    for (int64_t k = 0; k < K; k++) {
        int64_t g0 = k / group * group;
        float max = 0;
        for (int64_t i = g0; i < K && i < g0 + group; i++)
            max = fmaxf(max, fabsf(x[i]));
        float scale = max / (s->act == QT_ACT_I8 ? 127.5f : 448.0f);
        double q = rint((double)(x[k] / scale));
        if (s->act == QT_ACT_F8) q = (double)lq_e4m3_to_f32(lq_f32_to_e4m3(x[k] / scale));
        if (s->act == QT_ACT_I8) q = q > 127 ? 127 : q;
        out[k] = (double)(float)(q * (double)scale);
    }
}

/* The prepared activations of one row, by the words of mm.h: what stands at each input. */
static inline void prepare(double *out, const problem *b, const float *x, mm_acts acts)
{
    const qt_scheme *s = &b->w.t.scheme;
    tile_shape ts = tiles_shape(s, b->N, b->K);
    int64_t A = ts.subs > 1 ? 16 : ts.Gp % 128 == 0 ? 128 : ts.Gp % 64 == 0 ? 64 : 32;
    const int32_t *perm = s->kind == QT_UINT && s->act_order ? b->w.t.plane[QT_GIDX].data : NULL;
    acts = mm_effective(s, acts);
    for (int64_t k = 0; k < b->K; k++)
        out[k] = (double)(acts == MM_BF16 ? lq_bf16_to_f32(lq_f32_to_bf16(x[k])) : x[k]);
    if (s->act) round_acts(out, x, b->K, s);
    for (int64_t i = 0; i < s->n_out; i++) { /* outlier columns see the input itself */
        int32_t k = ((const int32_t *)b->w.t.plane[QT_OUT_IDX].data)[i];
        out[k] = (double)x[k];
    }
    if (acts != MM_I8) return;
    float *in = calloc((size_t)b->K, 4);
    memcpy(in, x, (size_t)b->K * 4);
    for (int64_t i = 0; i < s->n_out; i++)
        in[((const int32_t *)b->w.t.plane[QT_OUT_IDX].data)[i]] = 0;
    for (int64_t g = 0; g < ts.ng; g++)
        for (int64_t f = 0; f < ts.G; f += A) {
            int64_t n = ts.G - f < A ? ts.G - f : A, at = g * ts.G + f;
            float max = 0;
            for (int64_t i = 0; i < n; i++) {
                float v = fabsf(in[perm ? perm[at + i] : at + i]);
                max = v > max ? v : max;
            }
            for (int64_t i = 0; i < n; i++) {
                int64_t k = perm ? perm[at + i] : at + i;
                out[k] =
                    max > 0 ? (double)(max / 127.0f) * (double)rintf(in[k] * (127.0f / max)) : 0;
            }
        }
    for (int64_t i = 0; i < s->n_out; i++) {
        int32_t k = ((const int32_t *)b->w.t.plane[QT_OUT_IDX].data)[i];
        out[k] = (double)x[k];
    }
    free(in);
}

/* The values that MM_I8 multiplies in place of a table's. */
static inline void rounded(float out[16], const mm_table *t)
{
    for (int i = 0; i < 16; i++)
        out[i] = (float)(t->t[i] - t->zero) * t->unit;
}

/* Largest |y - truth| as a share of mm.h's bound. */
static inline double worst(problem *b, const float *y, mm_acts acts)
{
    const qt_scheme *s = &b->p.scheme;
    double *x = calloc((size_t)b->K, sizeof *x), worst_share = 0;
    float *w = calloc((size_t)(b->N * b->K), 4), *z = calloc((size_t)(b->N * b->K), 4);
    qt_tensor zero = b->p; /* the same with codes 0: -s*z */
    void *codes = calloc(1, b->p.plane[QT_CODES].bytes);
    zero.plane[QT_CODES].data = codes;
    qt_tensor p = b->p;
    float map[16];
    if (b->w.t.scheme.kind == QT_LUT4 && mm_effective(s, acts) == MM_I8) {
        rounded(map, &b->w.table);
        p.plane[QT_MAP].data = map;
    }
    qt_dequant(w, &p, 0, b->N);
    bool has_zero = s->kind == QT_UINT || s->kind == QT_I8 || s->kind == QT_I8_OUTLIER;
    if (has_zero) qt_dequant(z, &zero, 0, b->N);
    for (int64_t m = 0; m < b->M; m++) {
        prepare(x, b, b->x + m * b->ldx, acts);
        for (int64_t n = 0; n < b->N; n++) {
            double sum = 0, abs = 0;
            float scale = 0;
            if (s->kind == QT_I8 || s->kind == QT_I8_OUTLIER) {
                memcpy(&scale, (const uint8_t *)b->p.plane[QT_SCALES].data + 4 * n, 4);
                if (s->div127) scale /= 127.0f;
            }
            for (int64_t k = 0; k < b->K; k++) {
                double wv = (double)w[n * b->K + k], zv = fabs((double)z[n * b->K + k]);
                if (scale > 0) zv = 255.0 * (double)scale; /* stored codes and zeros are + 128 */
                sum += x[k] * wv;
                abs += fabs(x[k]) * (fabs(wv) + (mm_effective(s, acts) == MM_F32 ? 0 : 2 * zv));
            }
            double bound = 3.0 * (double)b->K * 0x1p-24 * abs;
            double diff = fabs((double)y[m * b->N + n] - sum);
            if (!(diff <= worst_share * bound)) worst_share = diff / (bound + 1e-300);
        }
    }
    free(codes), free(z), free(w), free(x);
    return worst_share;
}

#endif
