/* runtime/api/api_judge.c - what /v1/rerank and /score take of the engine's events: the odds of yes, or the model's score. */
#include "runtime/api/api_gen_int.h"

void gen_take_judgement(gen_choice *c, const smp_result *r)
{
    c->odds = (double)r->top_logprob[0] - (double)r->top_logprob[1];
}

void gen_take_score(gen_choice *c, const double *pooled)
{
    const api_backend *b = &c->g->a->m.backend;
    b->score(b->self, pooled, &c->odds);
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
