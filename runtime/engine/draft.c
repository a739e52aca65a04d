/* runtime/engine/draft.c - see draft.h. */
#include "runtime/engine/draft.h"

#include <stdlib.h>

struct draft {
    const model *m;
    kv_cache *kv;
    fwd_ctx *fwd;
    int64_t max_rows, longest;
    seq *at[SPEC_ROWS]; /* those that are drafted in this step */
    int64_t want[SPEC_ROWS];
    int64_t row[SPEC_ROWS]; /* of its logits in this pass; -1: none */
    fwd_item items[SPEC_ROWS];
};

fwd_opts draft_step(const fwd_opts *f)
{
    fwd_opts fo = *f;
    fo.max_seqs = fo.max_logits = SPEC_ROWS;
    if (fo.max_rows < SPEC_ROWS) fo.max_rows = SPEC_ROWS;
    fo.lora_rank = 0;
    return fo;
}

lq_status draft_open(draft **out, const model *m, int64_t vocab, const kv_opts *cache,
                     const fwd_opts *f, pool *p, lq_err *err)
{
    *out = NULL;
    if (m->cfg->vocab != vocab)
        return lq_fail(err, LQ_EVALUE,
                       "--speculative-model: expected the model's vocabulary of %lld ids, found "
                       "one of %lld",
                       (long long)vocab, (long long)m->cfg->vocab);
    draft *d = calloc(1, sizeof *d);
    if (!d) return lq_fail(err, LQ_ENOMEM, "draft: out of memory");
    kv_opts ko = *cache;
    ko.n_windows = 0;     /* guesses' rows are taken back further than a window's slots allow */
    ko.on = model_dev(m); /* of its own: one of the two may be on the CPU */
    ko.first = model_first_on(m);
    /* Blocks of such a model belong to prompts of one length, which the salt does not tell here. */
    if (arch_rope_by_length(&m->cfg->rope[ROPE_MAIN])) ko.prefix_cache = false;
    const fwd_opts fo = draft_step(f);
    d->m = m;
    d->max_rows = fo.max_rows;
    d->longest = m->cfg->max_pos > 0 ? m->cfg->max_pos : INT32_MAX;
    lq_status s = kv_open(&d->kv, m->cfg, &ko, err);
    if (!s) s = fwd_open(&d->fwd, m, d->kv, p, &fo, err);
    if (s)
        draft_close(d);
    else
        *out = d;
    return s;
}

void draft_close(draft *d)
{
    if (!d) return;
    if (d->fwd) fwd_close(d->fwd);
    kv_close(d->kv);
    free(d);
}

void draft_begin(draft *d, seq *s)
{
    lq_err ignored; /* no block is free: there will be */
    if (d && !kv_reserve(d->kv, &s->draft.kv, 1, &ignored)) kv_truncate(d->kv, &s->draft.kv, 0);
}

void draft_forget(draft *d, seq *s)
{
    if (d) kv_seq_free(d->kv, &s->draft.kv);
}

/* Keep the rows of ids that stood: the guesses behind them may have been wrong. */
static void settle(draft *d, seq *s)
{
    seq_draft *x = &s->draft;
    int64_t stood = x->base;
    while (stood < x->n_done && stood < s->n_ids && x->ids[stood - x->base] == s->ids[stood])
        stood++;
    if (stood < x->n_done) x->n_done = stood;
    kv_truncate(d->kv, &x->kv, x->n_done);
    kv_register(d->kv, &x->kv, s->ids, x->n_done, s->r.salt);
    x->base = s->n_ids;
    if (x->n_done == 0) x->n_done = kv_match_prefix(d->kv, &x->kv, s->ids, s->n_ids, s->r.salt);
}

draft_turns draft_turns_of(seq *const *run, int64_t n, int64_t max)
{
    draft_turns t = { .run = run, .n = n, .max = max, .left = SPEC_ROWS };
    for (int64_t i = 0; i < n; i++)
        if (run[i]->n_ids - run[i]->n_done == 1) t.decodes++;
    t.left -= t.decodes;
    return t;
}

seq *draft_next(draft_turns *t, int64_t *want)
{
    while (t->at < t->n && t->left > 0) {
        seq *s = t->run[t->at++];
        if (s->n_ids - s->n_done != 1) continue;
        const int64_t share = t->left / t->decodes > 0 ? t->left / t->decodes : 1;
        t->decodes--; /* of those that are left */
        *want = seq_guesses(s, t->max < share ? t->max : share);
        if (*want > 0) return s;
    }
    return NULL;
}

/* Who is drafted, and for how many guesses; returns how many sequences. */
static int draft_choose(draft *d, seq *const *run, int64_t n, int64_t max)
{
    draft_turns t = draft_turns_of(run, n, max);
    int64_t want;
    int k = 0;
    for (seq *s; (s = draft_next(&t, &want));) {
        lq_err ignored;
        if (want > d->longest - s->n_ids) want = d->longest - s->n_ids;
        if (want <= 0) continue;
        settle(d, s);
        if (kv_reserve(d->kv, &s->draft.kv, s->n_ids + want - 1, &ignored)) continue;
        d->at[k] = s;
        d->want[k++] = want;
        t.left -= want;
    }
    return k;
}

/* One pass: for each that still wants a guess the ids that the draft has not read. Sets d->row;
 * NULL: nobody wanted one, or the pass failed. */
static const float *pass(draft *d, int n)
{
    int64_t left = d->max_rows, rows = 0;
    const float *logits = NULL;
    int items = 0;
    for (int i = 0; i < n; i++) {
        seq *s = d->at[i];
        d->row[i] = -1; /* and stays so where all that is left is read in the next step */
        if (s->n_draft >= d->want[i] || left == 0) continue;
        /* What is read from the first guess on may have to be taken back. */
        if (s->n_draft > 0 && !kv_keep_states(d->kv, &s->draft.kv, 1)) continue;
        int64_t todo = s->n_ids + s->n_draft - s->draft.n_done, m = todo < left ? todo : left;
        d->items[items++] = (fwd_item){ .seq = &s->draft.kv,
                                        .ids = s->ids + s->draft.n_done,
                                        .n = m,
                                        .pos0 = s->draft.n_done,
                                        .logits_from = m == todo ? m - 1 : m,
                                        .seq_len = s->n_prompt };
        s->draft.n_done += m;
        left -= m;
        if (m == todo)
            d->row[i] = rows++;
        else
            d->want[i] = 0;
    }
    lq_err ignored;
    if (items == 0) return NULL;
    if (!fwd_step(d->fwd, d->items, items, &logits, &ignored)) return logits;
    for (int i = 0; i < n; i++)
        d->at[i]->draft.n_done = 0; /* what was written is not known: all anew */
    return NULL;
}

bool draft_guess(draft *d, seq *const *run, int64_t n, int64_t max, smp_ctx *smp)
{
    bool only_guesses = true;
    for (int64_t i = 0; i < n; i++)
        run[i]->n_draft = 0;
    int k = draft_choose(d, run, n, max);
    for (int i = 0; i < k; i++)
        only_guesses &= d->at[i]->n_ids - d->at[i]->draft.n_done <= 1 + SPEC_MAX;
    for (const float *logits; (logits = pass(d, k));)
        for (int i = 0; i < k; i++) {
            seq *s = d->at[i];
            if (d->row[i] < 0) continue;
            if (!seq_guess_from(s, smp, logits + d->row[i] * d->m->cfg->vocab)) d->want[i] = 0;
        }
    for (int i = 0; i < k; i++) {
        seq *s = d->at[i];
        seq_guess_end(s);
        memcpy(s->draft.ids, s->ids + s->n_ids, (size_t)s->n_draft * sizeof *s->ids);
    }
    return only_guesses;
}
