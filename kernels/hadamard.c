/* kernels/hadamard.c - see hadamard.h. Sums are in the order of the stages, whatever the processor. */
#include "kernels/hadamard.h"

enum { QUAD = 4 };

/* Stages 1 and 2 of n numbers. */
static void quads(float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i += QUAD) {
        const float a = x[i] + x[i + 1], b = x[i] - x[i + 1];
        const float c = x[i + 2] + x[i + 3], d = x[i + 2] - x[i + 3];
        x[i] = a + c;
        x[i + 1] = b + d;
        x[i + 2] = a - c;
        x[i + 3] = b - d;
    }
}

/* Of h >= QUAD: four pairs at a time, which compilers turn into vectors. */
static void stage(float *x, int64_t n, int64_t h)
{
    for (int64_t i = 0; i < n; i += 2 * h)
        for (int64_t j = i; j < i + h; j += QUAD) {
            float a[QUAD], b[QUAD];
            memcpy(a, x + j, sizeof a);
            memcpy(b, x + j + h, sizeof b);
            for (int l = 0; l < QUAD; l++) {
                x[j + l] = a[l] + b[l];
                x[j + h + l] = a[l] - b[l];
            }
        }
}

static void pairs(float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i += 2) {
        const float a = x[i], b = x[i + 1];
        x[i] = a + b;
        x[i + 1] = a - b;
    }
}

void k_hadamard(float *x, int64_t H, int64_t D)
{
    const int64_t n = k_hadamard_order(D), all = H * D;
    const float scale = 1 / sqrtf((float)n);
    if (n == 1) return;
    if (n == 2)
        pairs(x, all);
    else
        quads(x, all);
    for (int64_t h = QUAD; h < n; h *= 2)
        stage(x, all, h);
    for (int64_t i = 0; i < all; i++)
        x[i] *= scale;
}
