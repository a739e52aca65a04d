/* runtime/model/model_score.c - what a model makes of a text without words: scores of labels (model.h). */
#include "runtime/model/model.h"

lq_status model_check_words(const arch_config *c, lq_err *err)
{
    char name[80];
    if (c->head == HEAD_WORDS) return LQ_OK;
    arch_full_name(name, c);
    return lq_fail(err, LQ_EUNSUPPORTED, "a %s gives %s, not words: it has no output head", name,
                   c->head == HEAD_LABELS ? "scores and embeddings" : "embeddings");
}

/* y = W x + bias, W [N,K]. */
static void product(double *y, const float *W, const float *bias, const double *x, int64_t N,
                    int64_t K)
{
    for (int64_t n = 0; n < N; n++) {
        y[n] = bias ? (double)bias[n] : 0;
        for (int64_t k = 0; k < K; k++)
            y[n] += (double)W[n * K + k] * x[k];
    }
}

static double activated(const arch_scorer *s, double x)
{
    if (s->act == POOLER_TANH) return tanh(x);
    if (s->act == POOLER_RELU) return x > 0 ? x : 0;
    return 0.5 * x * (1 + erf(x * sqrt(0.5)));
}

static void layer_norm(double *x, const model_vector *v, int64_t n)
{
    double mean = 0, square = 0;
    for (int64_t i = 0; i < n; i++)
        mean += x[i] / (double)n;
    for (int64_t i = 0; i < n; i++)
        square += (x[i] - mean) * (x[i] - mean) / (double)n;
    const double scale = 1 / sqrt(square + (double)v->eps);
    for (int64_t i = 0; i < n; i++)
        x[i] = (x[i] - mean) * scale * (double)v->w[i] + (v->bias ? (double)v->bias[i] : 0);
}

void model_score(const model *m, const double *hidden, double *scores)
{
    const arch_config *c = m->cfg;
    const int64_t K = c->hidden;
    if (m->pooler) {
        product(m->pooled, m->pooler, m->pooler_bias, hidden, K, K);
        for (int64_t k = 0; k < K; k++)
            m->pooled[k] = activated(c->row->scorer, m->pooled[k]);
        if (m->pool_norm.w) layer_norm(m->pooled, &m->pool_norm, K);
        hidden = m->pooled;
    }
    product(scores, m->score, m->score_bias, hidden, c->labels, K);
}
