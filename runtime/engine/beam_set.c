/* runtime/engine/beam_set.c - see beam_set.h. */
#include "runtime/engine/beam_set.h"

/* Of lists that grow with the answer. */
static bool list_bytes(const eng_beam *o, int64_t max_new, bool tops, size_t *bytes)
{
    size_t n, per = 2 * sizeof(beam_node) + (tops ? sizeof(smp_result) : 0);
    return lq_mul((size_t)o->width, (size_t)max_new, &n) && lq_mul(n, per, bytes);
}

lq_status beam_check(const eng_request *r, int64_t max_new, lq_err *err)
{
    const eng_beam *o = &r->beam;
    size_t bytes;
    if (o->width == 0) return LQ_OK;
    if (o->width < 1 || o->n < 1 || o->n > o->width)
        return lq_fail(err, LQ_EVALUE, "beam search: expected 1..width answers, found %lld of %lld",
                       (long long)o->n, (long long)o->width);
    if (!isfinite(o->length_penalty) || fabs(o->length_penalty) > 100)
        return lq_fail(err, LQ_EVALUE, "length_penalty: expected -100..100, found %g",
                       o->length_penalty);
    if (r->grammar || r->pool || max_new < 1)
        return lq_fail(
            err, LQ_EVALUE,
            "beam search: expected max_tokens of 1 or more, no grammar and no embedding");
    if (!list_bytes(o, max_new, r->params.logprobs >= 0, &bytes) || bytes > (size_t)BEAM_MAX_MIB
                                                                                << 20)
        return lq_fail(err, LQ_EVALUE,
                       "beam search: %lld lines of %lld tokens take more than the %d MiB that one "
                       "may have",
                       (long long)o->width, (long long)max_new, BEAM_MAX_MIB);
    return LQ_OK;
}

lq_status beam_set_new(beam_set **out, lq_arena *a, const eng_request *r, int64_t max_new,
                       int64_t vocab, int n_ends, lq_err *err)
{
    const eng_beam *o = &r->beam;
    size_t W = (size_t)o->width, steps = (size_t)max_new;
    int ends = n_ends < 1 ? 1 : n_ends > BEAM_MAX_ENDS ? BEAM_MAX_ENDS : n_ends;
    beam_set *b = lq_push(a, sizeof *b);
    if (!b) return lq_fail(err, LQ_ENOMEM, "beam search: out of memory");
    *b = (beam_set){ .o = *o, .max_new = max_new, .keep = o->width * (1 + ends) };
    b->per = b->keep < vocab ? b->keep : vocab;
    b->lines = lq_push(a, W * sizeof *b->lines);
    b->next = lq_push(a, W * sizeof *b->next);
    b->answers = lq_push(a, W * sizeof *b->answers);
    b->nodes = lq_push(a, 2 * W * steps * sizeof *b->nodes);
    b->cands = lq_push(a, W * (size_t)b->per * sizeof *b->cands);
    b->n_cands = lq_push(a, W * sizeof *b->n_cands);
    b->at = lq_push(a, W * sizeof *b->at);
    b->results = lq_push(a, steps * sizeof *b->results);
    b->proposals = lq_push(a, (size_t)b->keep * sizeof *b->proposals);
    bool ok = b->lines && b->next && b->answers && b->nodes && b->cands && b->n_cands && b->at &&
              b->results && b->proposals;
    if (ok && r->params.logprobs >= 0) {
        b->tops = lq_push(a, W * steps * sizeof *b->tops);
        ok = b->tops != NULL;
    }
    if (!ok) return lq_fail(err, LQ_ENOMEM, "beam search: out of memory");
    for (size_t i = 0; i < W; i++) {
        kv_seq_init(&b->lines[i].kv);
        kv_seq_init(&b->next[i].kv);
    }
    *out = b;
    return LQ_OK;
}
