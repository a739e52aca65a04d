/* runtime/engine/stages/xtc.c - "exclude top choices" (text-generation-webui #6335): with
 * xtc_probability all ids of p >= xtc_threshold but the least likely of them are dropped. */
#include "runtime/engine/stages/stages.h"

#include "kernels/sampling.h"

/* Its chance is another stream of random numbers than the draw's. */
static const uint64_t STREAM = 0x5854435f63686f69u; /* "XTC_choi" */

void stage_xtc(stage_ctx *c, float *x, const smp_params *p)
{
    if (p->xtc_threshold > 0.5f) return; /* two such ids there cannot be */
    if ((double)draw_bits(p->seed ^ STREAM, c->draw) * 0x1p-53 >= (double)p->xtc_probability)
        return;
    const double sum = stage_weights(c, x), least = (double)p->xtc_threshold * sum;
    int64_t last = -1;
    for (int64_t i = 0; i < c->V; i++)
        if ((double)c->w[i] >= least && x[i] != -INFINITY && (last < 0 || x[i] <= x[last]))
            last = i;
    for (int64_t i = 0; i < c->V; i++)
        if (last >= 0 && i != last && (double)c->w[i] >= least) x[i] = -INFINITY;
}
