/* quantize/mixed/knapsack.h - one candidate for each of many items, the least cost within so many bytes.
 *
 *     minimize  sum of cost over the chosen candidates,   sum of bytes <= budget
 *
 * The multiple-choice knapsack problem. Where the sizes share a divisor so that the spare bytes
 * come in few enough steps (KNAPSACK_CELLS cells of item x step) it is solved exactly, by dynamic
 * programming over the spare bytes. Otherwise the steps of every item's lower convex hull of cost
 * over bytes are taken by falling gain per byte, passing over what no longer fits: the cost then
 * exceeds the optimum by less than the largest single step.
 *
 * Of equal costs the fewer bytes are taken, then the earlier candidate; nothing else decides, so
 * equal input gives equal choices everywhere.
 * Source: Sinha and Zoltners, "The multiple-choice knapsack problem", Operations Research 27
 * (1979).
 */
#ifndef LLMQ_QUANTIZE_MIXED_KNAPSACK_H
#define LLMQ_QUANTIZE_MIXED_KNAPSACK_H

#include "base/base.h"

enum { KNAPSACK_MAX = 32 /* candidates of an item */, KNAPSACK_CELLS = 1 << 26 };

typedef struct {
    size_t bytes;
    double cost; /* finite */
} knapsack_candidate;

typedef struct {
    int n; /* 1..KNAPSACK_MAX */
    knapsack_candidate c[KNAPSACK_MAX];
} knapsack_item;

/* Sums of the smallest and of the largest candidates. */
void knapsack_range(size_t *least, size_t *most, const knapsack_item *items, int64_t n);

/* pick [n]: the index of each item's candidate. cells: limit on the exact method, 0: KNAPSACK_CELLS.
 * Errors: LQ_EVALUE (even the smallest candidates exceed the budget), LQ_ENOMEM. */
lq_status knapsack_choose(int *pick, const knapsack_item *items, int64_t n, size_t budget,
                          size_t cells, lq_err *err);

#endif
