/* runtime/engine/stages/mirostat.c - version 2: drops the ids whose surprise -log2 p is above mu,
 * but never the likeliest. After the draw mu moves by eta times what its surprise, among the ids
 * that were left, is above tau (Basu et al., "Mirostat", arXiv:2007.14966, Algorithm 2). */
#include "runtime/engine/stages/stages.h"

#include "kernels/core/kmath.h"

void stage_mirostat(stage_ctx *c, float *x, const smp_params *p)
{
    const double sum = stage_weights(c, x), ln2 = 0.6931471805599453;
    int64_t best = 0;
    for (int64_t i = 1; i < c->V; i++)
        if (x[i] > x[best]) best = i;
    for (int64_t i = 0; i < c->V; i++) {
        const bool out =
            !(c->w[i] > 0) || (km_log((float)sum) - km_log(c->w[i])) / ln2 > (double)p->mu;
        if (out && i != best) x[i] = -INFINITY;
    }
}
