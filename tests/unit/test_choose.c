/* tests/unit/test_choose.c - which experts a router chooses where those of other groups count as 0 (A.X K2), and where
 * they cannot be chosen; and by capped logits (Grok). */
#include "runtime/forward/choose.h"
#include "tests/support/check.h"

#include <math.h>

enum { E = 6, GROUPS = 3, USED = 2 };

/* The choice of `used` of E experts by sigmoids of 0 with these corrections, of one group of two. */
static void choose(int32_t chosen[E], float share[E], const float *corr, int64_t used, bool zero)
{
    float scores[E] = { 0 }, choice[E], group_score[GROUPS];
    int32_t best[GROUPS];
    const arch_config c = {
        .experts = E,
        .experts_used = used,
        .expert_groups = GROUPS,
        .groups_used = 1,
        .expert_scale = 1,
        .w = { .router = ROUTER_SIGMOID, .norm_topk = true, .group_top2 = true, .group_zero = zero }
    };
    const choose_row r = { .scores = scores,
                           .choice = choice,
                           .group_score = group_score,
                           .group_best = best,
                           .chosen = chosen,
                           .share = share };
    choose_experts(&r, &c, corr, NULL);
}

TEST(experts_of_other_groups_count_as_zero_or_not_at_all)
{
    /* With corrections: [-0.2, -0.1] is the best group, since 0.3 and 0.4 are beside -9. */
    static const float corr[E] = { -0.2f - 0.5f, -0.1f - 0.5f, 0.3f - 0.5f,
                                   -9.0f,        0.4f - 0.5f,  -9.0f };
    int32_t chosen[E];
    float share[E];
    choose(chosen, share, corr, USED, false);
    CHECK(chosen[0] == 0 && chosen[1] == 1, "of the group alone: %d and %d", chosen[0], chosen[1]);
    choose(chosen, share, corr, USED, true);
    CHECK(chosen[0] == 2 && chosen[1] == 3, "those of 0 beat it: %d and %d", chosen[0], chosen[1]);
    CHECK(fabsf(share[0] - 0.5f) < 1e-6f, "a share is of the score: %g", (double)share[0]);
}

TEST(a_cap_bounds_the_logits_that_shares_are_made_of)
{
    float scores[E] = { 8, -8, 0, 0, 0, 4 }, choice[E], group_score[1], share[2];
    int32_t best[1], chosen[2];
    const arch_config c = { .experts = E,
                            .experts_used = 2,
                            .expert_groups = 1,
                            .groups_used = 1,
                            .expert_scale = 1,
                            .router_scale = 1,
                            .router_softcap = 2 };
    double sum = 0;
    for (int e = 0; e < E; e++)
        sum += exp(2 * tanh((double)scores[e] / 2));
    const double want[] = { exp(2 * tanh(4.0)) / sum, exp(2 * tanh(2.0)) / sum };
    const choose_row r = { .scores = scores,
                           .choice = choice,
                           .group_score = group_score,
                           .group_best = best,
                           .chosen = chosen,
                           .share = share };
    choose_experts(&r, &c, NULL, NULL);
    CHECK(chosen[0] == 0 && chosen[1] == 5, "the largest two: %d and %d", chosen[0], chosen[1]);
    for (int i = 0; i < 2; i++)
        CHECK(fabs((double)share[i] - want[i]) < 1e-6, "share %d: %g, expected %g", i,
              (double)share[i], want[i]);
}

int main(int argc, char **argv)
{
    RUN(experts_of_other_groups_count_as_zero_or_not_at_all);
    RUN(a_cap_bounds_the_logits_that_shares_are_made_of);
    return check_end();
}
