/* quantize/mixed/knapsack.c - dynamic programming over the spare bytes, or the steps of convex hulls. */
#include "quantize/mixed/knapsack.h"

#include <assert.h>
#include <stdlib.h>

/* The candidates of an item that can be part of a best choice: bytes rise, cost falls. */
typedef struct {
    int n;
    uint8_t index[KNAPSACK_MAX]; /* in the item */
    size_t extra[KNAPSACK_MAX];  /* bytes beyond the smallest's */
    double cost[KNAPSACK_MAX];
} ladder;

static void order(int *by, const knapsack_item *it)
{
    for (int i = 0; i < it->n; i++) {
        const knapsack_candidate *x = &it->c[i];
        int at = i;
        for (; at > 0; at--) {
            const knapsack_candidate *y = &it->c[by[at - 1]];
            if (y->bytes < x->bytes || (y->bytes == x->bytes && y->cost <= x->cost)) break;
            by[at] = by[at - 1];
        }
        by[at] = i;
    }
}

static ladder ladder_of(const knapsack_item *it)
{
    int by[KNAPSACK_MAX];
    ladder l = { 0 };
    assert(it->n >= 1 && it->n <= KNAPSACK_MAX);
    order(by, it);
    for (int i = 0; i < it->n; i++) {
        const knapsack_candidate *c = &it->c[by[i]];
        if (l.n && !(c->cost < l.cost[l.n - 1])) continue;
        l.index[l.n] = (uint8_t)by[i];
        l.extra[l.n] = c->bytes - it->c[by[0]].bytes;
        l.cost[l.n++] = c->cost;
    }
    return l;
}

void knapsack_range(size_t *least, size_t *most, const knapsack_item *items, int64_t n)
{
    *least = *most = 0;
    for (int64_t i = 0; i < n; i++) {
        size_t lo = items[i].c[0].bytes, hi = lo;
        for (int k = 1; k < items[i].n; k++) {
            const size_t b = items[i].c[k].bytes;
            lo = b < lo ? b : lo;
            hi = b > hi ? b : hi;
        }
        *least += lo;
        *most += hi;
    }
}

/* ---- exactly ---- */
static size_t gcd(size_t a, size_t b)
{
    while (b) {
        size_t r = a % b;
        a = b;
        b = r;
    }
    return a;
}

/* best[s]: the least cost of the items so far with at most s steps spent. take [item][s]: the rung
 * that gave it. */
static lq_status by_steps(int *pick, const ladder *l, int64_t n, size_t steps, size_t unit,
                          lq_err *err)
{
    const size_t row = steps + 1;
    double *best = calloc(row, sizeof *best);
    uint8_t *take = calloc((size_t)n + 1, row);
    lq_status s = LQ_OK;
    if (!best || !take) s = lq_fail(err, LQ_ENOMEM, "no memory to share out %zu steps", steps);
    for (int64_t i = 0; i < n && !s; i++)
        for (size_t at = row; at-- > 0;) { /* falling: smaller states are still without item i */
            double least = best[at] + l[i].cost[0];
            uint8_t rung = 0;
            for (int k = 1; k < l[i].n && l[i].extra[k] / unit <= at; k++) {
                double c = best[at - l[i].extra[k] / unit] + l[i].cost[k];
                if (!(c < least)) continue;
                least = c;
                rung = (uint8_t)k;
            }
            best[at] = least;
            take[(size_t)i * row + at] = rung;
        }
    size_t at = steps;
    for (int64_t i = n; i-- > 0 && !s;) {
        const uint8_t rung = take[(size_t)i * row + at];
        at -= l[i].extra[rung] / unit;
        pick[i] = l[i].index[rung];
    }
    free(take);
    free(best);
    return s;
}

/* ---- by hulls ---- */
typedef struct {
    int64_t item;
    int from, to; /* rungs */
    double slope; /* cost saved per byte */
    size_t bytes;
} step;

static int by_slope(const void *a, const void *b)
{
    const step *x = a, *y = b;
    if (x->slope != y->slope) return x->slope > y->slope ? -1 : 1;
    if (x->item != y->item) return x->item < y->item ? -1 : 1;
    return x->from - y->from;
}

static double slope_of(const ladder *l, int from, int to)
{
    return (l->cost[from] - l->cost[to]) / (double)(l->extra[to] - l->extra[from]);
}

static lq_status by_hulls(int *pick, const ladder *l, int64_t n, size_t spare, lq_err *err)
{
    step *steps = malloc((size_t)n * KNAPSACK_MAX * sizeof *steps);
    int *rung = calloc((size_t)n, sizeof *rung);
    size_t m = 0;
    lq_status s = LQ_OK;
    if (!steps || !rung) s = lq_fail(err, LQ_ENOMEM, "no memory to share out bytes");
    for (int64_t i = 0; i < n && !s; i++)
        for (int from = 0; from < l[i].n - 1;) {
            int to = from + 1;
            for (int k = to + 1; k < l[i].n; k++)
                if (slope_of(&l[i], from, k) >= slope_of(&l[i], from, to)) to = k;
            steps[m++] =
                (step){ i, from, to, slope_of(&l[i], from, to), l[i].extra[to] - l[i].extra[from] };
            from = to;
        }
    if (m) qsort(steps, m, sizeof *steps, by_slope);
    for (size_t i = 0; i < m; i++) {
        const step *t = &steps[i];
        if (rung[t->item] != t->from || t->bytes > spare) continue;
        rung[t->item] = t->to;
        spare -= t->bytes;
    }
    for (int64_t i = 0; i < n && !s; i++)
        pick[i] = l[i].index[rung[i]];
    free(rung);
    free(steps);
    return s;
}

lq_status knapsack_choose(int *pick, const knapsack_item *items, int64_t n, size_t budget,
                          size_t cells, lq_err *err)
{
    size_t least, most, unit = 0, largest = 0;
    knapsack_range(&least, &most, items, n);
    if (least > budget)
        return lq_fail(err, LQ_EVALUE, "expected at least %zu bytes, found %zu", least, budget);
    ladder *l = malloc(((size_t)n + 1) * sizeof *l);
    if (!l) return lq_fail(err, LQ_ENOMEM, "no memory to share out bytes");
    for (int64_t i = 0; i < n; i++) {
        l[i] = ladder_of(&items[i]);
        for (int k = 1; k < l[i].n; k++)
            unit = gcd(l[i].extra[k], unit);
        largest += l[i].extra[l[i].n - 1];
    }
    const size_t spare = budget - least < largest ? budget - least : largest;
    const size_t steps = unit ? spare / unit : 0, most_cells = cells ? cells : KNAPSACK_CELLS;
    lq_status s = (steps + 1) <= most_cells / (size_t)(n > 0 ? n : 1)
                      ? by_steps(pick, l, n, steps, unit ? unit : 1, err)
                      : by_hulls(pick, l, n, spare, err);
    free(l);
    return s;
}
