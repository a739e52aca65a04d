/* runtime/engine/stages/scan.c - see scan.h. */
#include "runtime/engine/stages/scan.h"

#include "kernels/sampling.h"

double stage_weights(stage_ctx *c, const float *x)
{
    float max = x[0];
    double sum = 0;
    for (int64_t i = 1; i < c->V; i++)
        max = x[i] > max ? x[i] : max;
    for (int64_t i = 0; i < c->V; i++) {
        c->w[i] = draw_weight(x[i], max, 1);
        sum += (double)c->w[i];
    }
    return sum;
}

double stage_entropy(const stage_ctx *c, const float *x, double sum, int64_t *left)
{
    double h = 0;
    *left = 0;
    for (int64_t i = 0; i < c->V; i++) {
        *left += x[i] != -INFINITY;
        if (c->w[i] > 0) h -= (double)c->w[i] / sum * (km_log(c->w[i]) - km_log((float)sum));
    }
    return h;
}

void stage_keep(stage_ctx *c, float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        c->w[i] = x[c->ids[i]];
    for (int64_t i = 0; i < c->V; i++)
        x[i] = -INFINITY;
    for (int64_t i = 0; i < n; i++)
        x[c->ids[i]] = c->w[i];
}

/* ---- order ---- */

static bool before(const float *x, int32_t a, int32_t b)
{
    return x[a] > x[b] || (x[a] == x[b] && a < b);
}

void heap_sift(int32_t *h, int64_t n, int64_t i, const float *x, bool best)
{
    int32_t id = h[i];
    for (int64_t c; (c = 2 * i + 1) < n; i = c) {
        if (c + 1 < n && before(x, h[c + 1], h[c]) == best) c++;
        if (before(x, h[c], id) != best) break;
        h[i] = h[c];
    }
    h[i] = id;
}

void heap_make(int32_t *h, int64_t n, const float *x, bool best)
{
    for (int64_t i = n / 2 - 1; i >= 0; i--)
        heap_sift(h, n, i, x, best);
}

void heap_pop_to_end(int32_t *h, int64_t *n, const float *x, bool best)
{
    int32_t root = h[0];
    h[0] = h[--*n];
    h[*n] = root;
    heap_sift(h, *n, 0, x, best);
}
