/* runtime/model/model_eagle.c - an EAGLE-3 draft (arXiv:2503.01840) from the checkpoint that it is published
 * in: see model.h. Row i of its head is the id i + d2t[i]. */
#include "runtime/model/model.h"

#include <inttypes.h>

lq_status model_eagle_layers(int64_t at[3], const arch_config *draft, const arch_config *m,
                             lq_err *err)
{
    const int64_t L = m->layers, usual[3] = { 2, L / 2, L - 3 };
    for (int i = 0; i < 3; i++) {
        at[i] = draft->target_layers[i] < 0 ? usual[i] : draft->target_layers[i];
        if (at[i] < 0 || at[i] >= L)
            return lq_fail(err, LQ_EVALUE,
                           "EAGLE-3 draft: expected a model that has a layer %" PRId64
                           ", found one of %" PRId64 " layers",
                           at[i], L);
    }
    return LQ_OK;
}

lq_status model_eagle_fits(const arch_config *c, const arch_config *m, lq_err *err)
{
    int64_t at[3];
    if (c->vocab != m->vocab)
        return lq_fail(err, LQ_EVALUE,
                       "EAGLE-3 draft: expected the model's vocabulary of %" PRId64
                       " ids, found one for %" PRId64,
                       m->vocab, c->vocab);
    if (c->target_hidden != m->hidden)
        return lq_fail(err, LQ_EVALUE,
                       "EAGLE-3 draft: expected a draft for the model's hidden size of %" PRId64
                       ", found one for %" PRId64,
                       m->hidden, c->target_hidden);
    if (m->streams || m->hyper)
        return lq_fail(err, LQ_EUNSUPPORTED,
                       "EAGLE-3 draft: expected a model with one residual stream, found %" PRId64,
                       m->streams + m->hyper);
    return model_eagle_layers(at, c, m, err);
}

/* The model's, where the checkpoint has none. */
static lq_status find_embedding(model *d, const model *m, lq_err *err)
{
    if (d->embed.N) return LQ_OK;
    if (m->embed.K != d->cfg->hidden || m->proj_in.present)
        return lq_fail(err, LQ_EVALUE,
                       "EAGLE-3 draft: expected an embedding of its own ('embed_tokens.weight'): "
                       "the model's is %" PRId64 " wide, the draft %" PRId64,
                       m->embed.K, d->cfg->hidden);
    d->embed = m->embed;
    return LQ_OK;
}

/* Without d2t the first ids. */
static lq_status load_ids(model *d, lq_err *err)
{
    const int64_t n = d->cfg->draft_vocab;
    const src_tensor *t = src_find(d->src, "d2t");
    int32_t *ids = lq_push(&d->arena, (size_t)n * sizeof *ids);
    if (!ids) return lq_fail(err, LQ_ENOMEM, "EAGLE-3 draft: out of memory");
    if (t && (t->raw_dtype != LQ_I64 || t->n_dims != 1 || t->shape[0] != n || !t->raw.data))
        return lq_fail(err, LQ_EVALUE, "%s: tensor 'd2t': expected %" PRId64 " numbers of 64 bits",
                       src_path(d->src), n);
    for (int64_t i = 0; i < n; i++) {
        int64_t by = 0;
        if (t) memcpy(&by, (const uint8_t *)t->raw.data + i * 8, 8);
        if (by < -i || by >= d->cfg->vocab - i)
            return lq_fail(err, LQ_EVALUE,
                           "%s: tensor 'd2t': expected ids 0..%" PRId64 ", found %" PRId64
                           " + %" PRId64,
                           src_path(d->src), d->cfg->vocab - 1, i, by);
        ids[i] = (int32_t)(i + by);
    }
    d->drafted = ids;
    return LQ_OK;
}

/* A weight that is not finite would make every guess a wrong one, unnoticed. */
static lq_status check_values(const src_source *src, lq_err *err)
{
    lq_status s = LQ_OK;
    for (int64_t i = 0; i < src_n_tensors(src) && !s; i++)
        s = src_check_values(src, src_tensor_at(src, i), err);
    return s ? lq_wrap(err, s, "%s", src_path(src)) : LQ_OK;
}

lq_status model_load_eagle(model *d, const model *m, src_source *src, pool *p, lq_err *err)
{
    lq_status s = model_eagle_fits(src_config(src), m->cfg, err);
    if (s) return lq_wrap(err, s, "%s", src_path(src));
    s = model_load_frame(d, src, p, err);
    if (s) return s;
    s = find_embedding(d, m, err);
    if (!s) s = model_load_reader(d, p, err);
    if (!s) s = model_load_head(d, p, err);
    if (!s) s = load_ids(d, err);
    if (!s) s = check_values(src, err);
    if (!s) d->weight_bytes = model_count_bytes(d);
    if (s) model_free(d);
    return s;
}
