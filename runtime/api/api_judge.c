/* runtime/api/api_judge.c - what /v1/rerank, /score and /classify take of the engine's events: the odds of yes, or the
 * model's scores. */
#include "runtime/api/api_gen_int.h"

#include <stdlib.h>

void gen_take_judgement(gen_choice *c, const smp_result *r)
{
    c->odds = (double)r->top_logprob[0] - (double)r->top_logprob[1];
}

void gen_take_score(gen_choice *c, const double *pooled)
{
    const api_backend *b = &c->g->a->m.backend;
    b->score(b->self, pooled, &c->odds);
}

bool gen_take_labels(gen_choice *c, const double *pooled)
{
    const api_backend *b = &c->g->a->m.backend;
    const int n = cJSON_GetArraySize(c->g->a->m.label_names);
    c->pooled = malloc((size_t)n * sizeof *c->pooled);
    if (c->pooled) b->score(b->self, pooled, c->pooled);
    return c->pooled != NULL;
}

eng_pool gen_pool(const gen *g)
{
    const api_model *m = &g->a->m;
    if ((g->shape->kind & (API_JUDGES | API_CLASSIFY)) && m->backend.score) return m->score_pool;
    if (g->shape->kind != API_EMBEDDINGS) return ENG_NO_POOL;
    if (g->p.pool) return g->p.pool;
    if (m->sentence) return sentence_pool(m->sentence);
    return m->both_ways ? ENG_POOL_MEAN : ENG_POOL_LAST; /* as sentence-transformers assumes */
}
