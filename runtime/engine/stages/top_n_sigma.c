/* runtime/engine/stages/top_n_sigma.c - keeps x >= max - n sigma, sigma the standard deviation of
 * the logits (Tang et al., "Top-n-sigma", arXiv:2411.07641). */
#include "runtime/engine/stages/stages.h"

void stage_top_n_sigma(stage_ctx *c, float *x, const smp_params *p)
{
    double sum = 0, squares = 0, max = -INFINITY;
    int64_t n = 0;
    for (int64_t i = 0; i < c->V; i++) {
        if (x[i] == -INFINITY) continue;
        sum += (double)x[i];
        max = (double)x[i] > max ? (double)x[i] : max;
        n++;
    }
    for (int64_t i = 0; i < c->V; i++) {
        const double d = x[i] == -INFINITY ? 0 : (double)x[i] - sum / (double)n;
        squares += d * d;
    }
    const double least = max - (double)p->top_n_sigma * sqrt(squares / (double)n);
    for (int64_t i = 0; i < c->V; i++)
        if ((double)x[i] < least) x[i] = -INFINITY;
}
