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

bool gen_pools(const gen *g)
{
    return g->shape->kind == API_EMBEDDINGS ||
           ((g->shape->kind & API_JUDGES) && g->a->m.backend.score);
}
