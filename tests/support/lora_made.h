/* tests/support/lora_made.h - adapters made up for a model. */
#ifndef LLMQ_TESTS_SUPPORT_LORA_MADE_H
#define LLMQ_TESTS_SUPPORT_LORA_MADE_H

#include "base/random.h"
#include "runtime/model/lora.h"

#include <stdio.h>

static inline float *numbers(lq_arena *a, int64_t n, uint64_t *seed, float middle, float size)
{
    float *f = lq_push(a, (size_t)n * sizeof *f);
    for (int64_t i = 0; f && i < n; i++) {
        *seed = lq_random_of(*seed);
        f[i] = middle + size * ((float)(*seed >> 40) / (float)(1 << 24) - 0.5f);
    }
    return f;
}

/* Random changes, of this rank, of every linear that can have them at run time, whose weight is a matrix of its own. */
static inline void make_adapter(adp_adapter *a, const model *m, int64_t rank, bool dora,
                                uint64_t seed)
{
    static const arch_role roles[] = { R_Q, R_K,    R_V,  R_QKV,     R_ATTN_GATE,
                                       R_O, R_GATE, R_UP, R_GATE_UP, R_DOWN };
    *a = (adp_adapter){ .rank = rank, .id = seed, .dora = dora };
    a->parts = lq_push(&a->arena, (size_t)m->cfg->layers * LQ_COUNT(roles) * sizeof *a->parts);
    for (int64_t l = 0; l < m->cfg->layers; l++)
        for (size_t i = 0; i < LQ_COUNT(roles); i++) {
            const arch_role r = roles[i];
            const bool heads = r >= R_Q && r <= R_ATTN_GATE;
            char name[256];
            if (!m->layers[l].lin[r].present || (heads && m->cfg->w.mla)) continue;
            if (arch_first_with(m->cfg, r, l) < l) continue; /* it is there */
            adp_part *p = &a->parts[a->n];
            *p = (adp_part){ .slot = { r, l, -1, false }, .rank = rank, .scale = 0.5f };
            arch_tensor_name(m->cfg, r, l, -1, false, name, sizeof name);
            const src_tensor *t = src_find(m->src, name);
            if (!t || !t->plain || t->n_dims != 2 || t->t.scheme.kind != QT_DENSE) continue;
            p->name = lq_push_str(&a->arena, name, strlen(name));
            arch_role_shape(arch_at(m->cfg, l), r, &p->N, &p->K);
            p->a = numbers(&a->arena, rank * p->K, &seed, 0, 0.4f);
            p->b = numbers(&a->arena, p->N * rank, &seed, 0, 0.4f);
            p->magnitude = dora ? numbers(&a->arena, p->N, &seed, 1, 0.5f) : NULL;
            a->n++;
        }
}

#endif
