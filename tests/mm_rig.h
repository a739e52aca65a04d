/* tests/mm_rig.h - products of random matrices in any scheme. */
#ifndef LLMQ_TESTS_MM_RIG_H
#define LLMQ_TESTS_MM_RIG_H

#include "kernels/mm.h"
#include "tests/check.h"
#include "tests/fill.h"

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

#endif
