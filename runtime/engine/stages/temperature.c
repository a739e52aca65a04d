/* runtime/engine/stages/temperature.c - x / T. With a range R the temperature follows the entropy H
 * of the n ids that are left: T - R + 2 R (H / ln n)^e, not below 0 ("entropy sampling" of
 * llama.cpp and KoboldCpp). */
#include "runtime/engine/stages/stages.h"

#include "kernels/core/kmath.h"

enum { COLDEST_INVERSE = 10000 }; /* where the range reaches 0 */

static float dynamic(stage_ctx *c, const float *x, const smp_params *p)
{
    int64_t left;
    const float low = fmaxf(0, p->temperature - p->dynatemp_range);
    const float high = p->temperature + p->dynatemp_range;
    const double sum = stage_weights(c, x), h = stage_entropy(c, x, sum, &left);
    if (left < 2) return p->temperature;
    const float share = fmaxf(0, (float)(h / km_log((float)left)));
    const float power =
        share > 0 ? km_exp((float)((double)p->dynatemp_exponent * km_log(share))) : 0;
    return fmaxf(low + (high - low) * power, 1.0f / (float)COLDEST_INVERSE);
}

void stage_temperature(stage_ctx *c, float *x, const smp_params *p)
{
    const float T = p->dynatemp_range > 0 ? dynamic(c, x, p) : p->temperature;
    for (int64_t i = 0; i < c->V; i++)
        x[i] /= T;
}
