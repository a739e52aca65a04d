/* runtime/forward/choose.c - see choose.h. */
#include "runtime/forward/choose.h"

#include <math.h>
#include <string.h>

static void softmax(float *x, int64_t n)
{
    float max = x[0], sum = 0;
    for (int64_t i = 1; i < n; i++)
        max = x[i] > max ? x[i] : max;
    for (int64_t i = 0; i < n; i++)
        sum += x[i] = k_exp(x[i] - max);
    for (int64_t i = 0; i < n; i++)
        x[i] /= sum;
}

/* The k best of v[n], best first, of equals the first; k distinct ones whatever v holds. */
static void best_of(int32_t *best, int64_t k, const float *v, int64_t n)
{
    int64_t have = 0;
    for (int64_t e = 0; e < n; e++) {
        if (have == k && !(v[e] > v[best[k - 1]])) continue;
        int64_t i = have < k ? have++ : k - 1;
        for (; i > 0 && v[e] > v[best[i - 1]]; i--)
            best[i] = best[i - 1];
        best[i] = (int32_t)e;
    }
}

static float group_score(const float *v, int64_t n, bool top2)
{
    float first = -INFINITY, second = -INFINITY;
    for (int64_t i = 0; i < n; i++) {
        if (v[i] > first) {
            second = first;
            first = v[i];
        } else if (v[i] > second) {
            second = v[i];
        }
    }
    return top2 && n > 1 ? first + second : first;
}

/* Experts of other than the best groups are not chosen, or as if their scores were 0. score [groups], best [used] are scratch. */
static void keep_groups(float *choice, const arch_config *c, float *score, int32_t *best)
{
    const int64_t G = c->expert_groups, n = c->experts / G;
    for (int64_t g = 0; g < G; g++)
        score[g] = group_score(choice + g * n, n, c->w.group_top2);
    best_of(best, c->groups_used, score, G);
    for (int64_t g = 0; g < G; g++) {
        bool kept = false;
        for (int64_t i = 0; i < c->groups_used; i++)
            kept |= best[i] == g;
        for (int64_t e = g * n; e < (g + 1) * n && !kept; e++)
            choice[e] = c->w.group_zero ? 0 : -INFINITY;
    }
}

/* The share of the best of v, which is at `best`, among those near it (arXiv:2409.12136), as `size` says. */
static float near_share(const float *v, const float *size, int32_t best, const arch_config *c)
{
    const float top = v[best];
    float sum = 0;
    for (int64_t e = 0; e < c->experts; e++)
        if (choose_near(size[e], top, c)) sum += k_exp(v[e] - top);
    return 1 / sum;
}

/* Two experts, each with its share, rising. */
static void sparse_mixer(int32_t chosen[2], float share[2], const float *logits, float *others,
                         const arch_config *c)
{
    const int64_t E = c->experts;
    int32_t best[2];
    best_of(&best[0], 1, logits, E);
    memcpy(others, logits, (size_t)E * sizeof *others);
    others[best[0]] = -INFINITY;
    best_of(&best[1], 1, others, E);
    const float shares[2] = { near_share(logits, logits, best[0], c),
                              near_share(others, logits, best[1], c) };
    const int first = best[0] > best[1];
    for (int i = 0; i < 2; i++) {
        chosen[i] = best[i ^ first];
        share[i] = shares[i ^ first];
    }
}

static float softplus(float x) { return x > 20 ? x : log1pf(k_exp(x)); }

float choose_eps(const arch_config *c)
{
    return c->w.topk_eps > 0 ? c->w.topk_eps : 1e-20f; /* as DeepSeek-V3; nothing to a softmax */
}

static void rise(int32_t *chosen, int64_t k)
{
    for (int64_t i = 1; i < k; i++) {
        int32_t e = chosen[i];
        int64_t j = i;
        for (; j > 0 && chosen[j - 1] > e; j--)
            chosen[j] = chosen[j - 1];
        chosen[j] = e;
    }
}

static void add_correction(float *choice, const float *v, const float *correction, int64_t E)
{
    for (int64_t e = 0; e < E; e++)
        choice[e] = correction ? v[e] + correction[e] : v[e];
}

void choose_experts(const choose_row *r, const arch_config *c, const float *correction,
                    const float *scale)
{
    const int64_t E = arch_choices(c), k = c->experts_used;
    float *scores = r->scores, *choice = r->choice;
    for (int64_t e = 0; e < E && c->router_scale != 1; e++)
        scores[e] *= (float)c->router_scale;
    if (c->router_softcap > 0) k_softcap(scores, (float)c->router_softcap, E);
    if (c->w.router == ROUTER_SPARSEMIXER) {
        sparse_mixer(r->chosen, r->share, scores, choice, c);
        return;
    }
    if (c->w.corr_logits) add_correction(choice, scores, correction, E);
    if (c->w.router == ROUTER_SIGMOID || c->w.router == ROUTER_SQRT_SOFTPLUS)
        for (int64_t e = 0; e < E; e++)
            scores[e] = c->w.router == ROUTER_SIGMOID ? choose_sigmoid(scores[e])
                                                      : sqrtf(softplus(scores[e]));
    else
        softmax(scores, E);
    if (!c->w.corr_logits) add_correction(choice, scores, correction, E);
    if (c->groups_used < c->expert_groups) keep_groups(choice, c, r->group_score, r->group_best);
    if (r->given)
        for (int64_t i = 0; i < k; i++)
            r->chosen[i] = (int32_t)r->given[i];
    else
        best_of(r->chosen, k, choice, E);
    float sum = choose_eps(c);
    for (int64_t i = 0; i < k; i++)
        sum += scores[r->chosen[i]];
    for (int64_t i = 0; i < c->shared_experts; i++)
        sum += r->shared[i] = choose_sigmoid(scores[E + i]);
    const float by = (float)c->expert_scale * (r->by ? *r->by : 1);
    for (int64_t i = 0; i < c->shared_experts; i++)
        r->shared[i] = r->shared[i] / sum * by;
    rise(r->chosen, k);
    for (int64_t i = 0; i < k; i++) {
        const float s = scores[r->chosen[i]];
        r->share[i] = (c->w.norm_topk ? s / sum : s) * by;
        if (scale) r->share[i] *= scale[r->chosen[i]];
        if (c->w.skips && r->chosen[i] == E - 1) r->chosen[i] = 0, r->share[i] = 0;
    }
}
