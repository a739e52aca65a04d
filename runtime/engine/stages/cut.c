/* runtime/engine/stages/cut.c - top-k, top-p and min-p, as sample.h says, at any place of an order. */
#include "runtime/engine/stages/stages.h"

#include "kernels/sampling.h"

/* The ids that are not dropped as a heap, the first in order at its root; returns how many. */
static int64_t all_left(stage_ctx *c, const float *x)
{
    int64_t n = 0;
    for (int64_t i = 0; i < c->V; i++)
        if (x[i] != -INFINITY) c->ids[n++] = (int32_t)i;
    heap_make(c->ids, n, x, true);
    return n;
}

/* The ids that were taken off the heap are those behind `left`: they go to the front. */
static void keep_popped(stage_ctx *c, float *x, int64_t n, int64_t left)
{
    memmove(c->ids, c->ids + left, (size_t)(n - left) * sizeof *c->ids);
    stage_keep(c, x, n - left);
}

void stage_top_k(stage_ctx *c, float *x, const smp_params *p)
{
    const int64_t n = all_left(c, x);
    int64_t left = n;
    while (left > 0 && n - left < p->top_k)
        heap_pop_to_end(c->ids, &left, x, true);
    keep_popped(c, x, n, left);
}

void stage_top_p(stage_ctx *c, float *x, const smp_params *p)
{
    uint64_t total = 0, sum = 0;
    stage_weights(c, x);
    for (int64_t i = 0; i < c->V; i++)
        total += draw_units(c->w[i], c->unit);
    const uint64_t share = draw_share(p->top_p, total);
    const int64_t n = all_left(c, x);
    int64_t left = n;
    while (left > 0 && sum < share) {
        sum += draw_units(c->w[c->ids[0]], c->unit);
        heap_pop_to_end(c->ids, &left, x, true);
    }
    keep_popped(c, x, n, left);
}

void stage_min_p(stage_ctx *c, float *x, const smp_params *p)
{
    stage_weights(c, x);
    for (int64_t i = 0; i < c->V; i++)
        if (c->w[i] < p->min_p) x[i] = -INFINITY;
}
