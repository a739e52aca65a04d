/* tests/unit/test_knapsack.c - sharing out bytes: against trying everything. */
#include "quantize/mixed/knapsack.h"
#include "tests/support/check.h"

enum { ITEMS = 5, CANDIDATES = 5 };

static uint32_t seed;
static uint32_t draw(uint32_t below)
{
    seed = seed * 1664525u + 1013904223u;
    return (seed >> 8) % below;
}

/* Sizes in steps of `unit`; costs fall with size, or not. */
static void make_items(knapsack_item *it, uint32_t unit, bool falling)
{
    for (int i = 0; i < ITEMS; i++) {
        it[i].n = 1 + (int)draw(CANDIDATES);
        double cost = 100;
        for (int k = 0; k < it[i].n; k++) {
            cost = falling ? cost * (0.2 + 0.1 * draw(8)) : draw(20);
            it[i].c[k] = (knapsack_candidate){ unit * (1 + draw(12)), cost };
        }
    }
}

static double cost_of(const knapsack_item *it, const int *pick, size_t *bytes)
{
    double cost = 0;
    *bytes = 0;
    for (int i = 0; i < ITEMS; i++) {
        cost += it[i].c[pick[i]].cost;
        *bytes += it[i].c[pick[i]].bytes;
    }
    return cost;
}

/* The least cost within the budget, by trying all. */
static double best_of_all(const knapsack_item *it, size_t budget)
{
    int pick[ITEMS] = { 0 };
    double best = INFINITY;
    for (;;) {
        size_t bytes;
        double cost = cost_of(it, pick, &bytes);
        if (bytes <= budget && cost < best) best = cost;
        int i = 0;
        while (i < ITEMS && ++pick[i] == it[i].n)
            pick[i++] = 0;
        if (i == ITEMS) return best;
    }
}

static double largest_cost(const knapsack_item *it)
{
    double most = 0;
    for (int i = 0; i < ITEMS; i++)
        for (int k = 0; k < it[i].n; k++)
            most = it[i].c[k].cost > most ? it[i].c[k].cost : most;
    return most;
}

TEST(the_exact_choice_is_the_best_of_all)
{
    knapsack_item it[ITEMS];
    for (seed = 1; seed < 400; seed++) {
        uint32_t keep = seed;
        make_items(it, 1 + draw(300), seed % 2 == 0);
        size_t least, most;
        knapsack_range(&least, &most, it, ITEMS);
        for (int step = 0; step <= 8; step++) {
            size_t budget = least + (most - least) * (size_t)step / 8, bytes;
            int pick[ITEMS];
            lq_status s = knapsack_choose(pick, it, ITEMS, budget, 0, NULL);
            CHECK(!s, "case %u: status %d", keep, s);
            double cost = cost_of(it, pick, &bytes), best = best_of_all(it, budget);
            CHECK(bytes <= budget, "case %u: %zu of %zu bytes", keep, bytes, budget);
            CHECK(fabs(cost - best) <= 1e-12 * best, "case %u: %g, best %g", keep, cost, best);
        }
        seed = keep;
    }
}

TEST(hulls_stay_within_a_step_of_the_best)
{
    knapsack_item it[ITEMS];
    int same = 0, all = 0;
    for (seed = 1; seed < 400; seed++) {
        uint32_t keep = seed;
        make_items(it, 1 + draw(300), true);
        size_t least, most;
        knapsack_range(&least, &most, it, ITEMS);
        for (int step = 0; step <= 8; step++) {
            size_t budget = least + (most - least) * (size_t)step / 8, bytes;
            int pick[ITEMS];
            lq_status s = knapsack_choose(pick, it, ITEMS, budget, 1, NULL); /* one cell: no DP */
            CHECK(!s, "case %u: status %d", keep, s);
            double cost = cost_of(it, pick, &bytes), best = best_of_all(it, budget);
            CHECK(bytes <= budget, "case %u: %zu of %zu bytes", keep, bytes, budget);
            CHECK(cost <= best + largest_cost(it), "case %u: %g, best %g", keep, cost, best);
            same += cost <= best * (1 + 1e-12);
            all++;
        }
        seed = keep;
    }
    CHECK(same * 2 > all, "hulls: %d of %d choices are the best", same, all);
}

TEST(of_equal_costs_the_smaller_and_earlier_is_taken)
{
    const knapsack_item it[2] = {
        { 4, { { 30, 1 }, { 20, 1 }, { 20, 1 }, { 10, 2 } } },
        { 3, { { 50, 0 }, { 10, 0 }, { 5, 0 } } },
    };
    for (size_t cells = 0; cells < 2; cells++) {
        int pick[2] = { -1, -1 };
        lq_status s = knapsack_choose(pick, it, 2, 1000, cells, NULL);
        CHECK(!s && pick[0] == 1 && pick[1] == 2, "cells %zu: %d %d", cells, pick[0], pick[1]);
    }
}

TEST(a_budget_below_the_smallest_is_refused)
{
    const knapsack_item it[2] = { { 2, { { 10, 1 }, { 20, 0 } } }, { 1, { { 7, 1 } } } };
    int pick[2];
    lq_err err;
    CHECK(knapsack_choose(pick, it, 2, 16, 0, &err) == LQ_EVALUE, "16 bytes are too few");
    CHECK(strstr(err.msg, "17") != NULL, "the message names the least: %s", err.msg);
    CHECK(!knapsack_choose(pick, it, 2, 17, 0, &err) && pick[0] == 0, "17 bytes are enough");
}

int main(int argc, char **argv)
{
    RUN(the_exact_choice_is_the_best_of_all);
    RUN(hulls_stay_within_a_step_of_the_best);
    RUN(of_equal_costs_the_smaller_and_earlier_is_taken);
    RUN(a_budget_below_the_smallest_is_refused);
    return check_end();
}
