/* runtime/forward/choose.h - which experts a row is sent to, and with what shares.
 *
 *   scores = softmax, sigmoid or the root of softplus of the router's logits; of the best groups of experts the best experts, by
 *   scores and correction; shares: their scores, of the sum of these (and of the shared experts') where the row's wiring says so
 *
 * (arXiv:2401.04088; groups: arXiv:2405.04434; correction: arXiv:2412.19437; two experts by thresholds:
 * arXiv:2409.12136.) */
#ifndef LLMQ_RUNTIME_FORWARD_CHOOSE_H
#define LLMQ_RUNTIME_FORWARD_CHOOSE_H

#include "formats/arch/arch.h"
#include <math.h>

#include "kernels/ops.h"

/* Buffers of one row; chosen and share are its result. */
typedef struct {
    float
        *scores; /* [arch_choices]: logits in, scores out (with ROUTER_SPARSEMIXER still logits) */
    float *choice;       /* [arch_choices] scratch */
    float *group_score;  /* [expert_groups] scratch */
    int32_t *group_best; /* [groups_used] scratch */
    int32_t *chosen;     /* [experts_used], rising */
    float *share;        /* [experts_used] */
    float *shared;       /* [shared_experts], whose logits are after the others */
    const float *by;     /* [1] on all shares, or NULL */
    const float *given;  /* [experts_used] those of the row's token, or NULL */
} choose_row;

/* correction, scale: R_ROUTER_CORR, R_EXPERT_SCALE of the layer, [experts], or NULL. */
void choose_experts(const choose_row *r, const arch_config *c, const float *correction,
                    const float *scale);
static inline float choose_sigmoid(float x) { return 1.0f / (1.0f + k_exp(-x)); }
/* ROUTER_SPARSEMIXER: is a logit near the best, `top`? */
static inline bool choose_near(float logit, float top, const arch_config *c)
{
    const float by = fabsf(logit) > top ? fabsf(logit) : top;
    return !((top - logit) / by > 2 * (float)c->router_jitter);
}
/* What is added to the chosen scores' sum where shares are parts of it. */
float choose_eps(const arch_config *c);

#endif
