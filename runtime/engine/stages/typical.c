/* runtime/engine/stages/typical.c - keeps the ids whose surprise -ln p is nearest to the entropy:
 * the shortest run of them whose probability passes typical_p (Meister et al., "Locally typical
 * sampling", arXiv:2202.00666). Of equally near ones the lower id comes first. */
#include "runtime/engine/stages/stages.h"

#include "kernels/core/kmath.h"

void stage_typical(stage_ctx *c, float *x, const smp_params *p)
{
    int64_t left, n = 0, rest;
    const double sum = stage_weights(c, x), h = stage_entropy(c, x, sum, &left);
    for (int64_t i = 0; i < c->V; i++) {
        if (!(c->w[i] > 0)) continue; /* its surprise is without end */
        const double surprise = km_log((float)sum) - km_log(c->w[i]);
        c->w[i] = -(float)fabs(surprise - h); /* the nearest is the largest */
        c->ids[n++] = (int32_t)i;
    }
    heap_make(c->ids, n, c->w, true);
    double kept = 0, max = -INFINITY;
    for (int64_t i = 0; i < c->V; i++)
        max = (double)x[i] > max ? (double)x[i] : max;
    for (rest = n; rest > 0 && kept <= (double)p->typical_p;) {
        kept += (double)km_exp((float)((double)x[c->ids[0]] - max)) / sum;
        heap_pop_to_end(c->ids, &rest, c->w, true);
    }
    memmove(c->ids, c->ids + rest, (size_t)(n - rest) * sizeof *c->ids);
    stage_keep(c, x, n - rest);
}
