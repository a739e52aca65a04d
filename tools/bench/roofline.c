/* tools/bench/roofline.c - see roofline.h. */
#include "tools/bench/roofline.h"

#include <math.h>

static double row_seconds(const roof_side *s) { return 2 * s->weights / s->flops; }

static double decode_seconds(const roof_side *s, double tokens)
{
    return fmax((s->bytes + tokens * s->kv_bytes) / s->bandwidth, row_seconds(s));
}

roof_limits roof_of(const roof_side *sides, int n, double ctx)
{
    double empty = 0, full = 0, rows = 0;
    for (int i = 0; i < n; i++) {
        empty += decode_seconds(&sides[i], 0);
        full += decode_seconds(&sides[i], ctx);
        rows += row_seconds(&sides[i]);
    }
    return (roof_limits){ 1 / empty, 1 / full, 1 / rows };
}

double roof_batch(const roof_side *s)
{
    return fmax(1, ceil(s->bytes / s->bandwidth * (s->flops / (2 * s->weights))));
}
