/* runtime/engine/draft.h - speculative decoding with a small draft model that guesses the next ids.
 *
 * The draft has the large model's vocabulary, a KV cache of its own with as many blocks, and reads
 * the same ids. A guess is the likeliest id of the draft's logits under all that the request asks
 * for (penalties, bias, grammar, ...). The model then draws from its own logits with its own random
 * number, as always (runtime/engine/spec.h): so the answers are the same bytes as without a draft,
 * drawn ones too, and have exactly the model's distribution.
 *
 * The other way, arXiv:2211.17192 with guesses drawn from the draft's distribution q, accepts more
 * where the temperature is high (sum of min(p, q) in place of p of one id), but then an answer
 * depends on when guesses were made, and so on load and clocks: not done.
 *
 * In a step each sequence that decodes gets up to `max` guesses, within SPEC_ROWS rows in all. The
 * sequences are drafted together, one pass of the draft for each place. Engine thread only. */
#ifndef LLMQ_RUNTIME_ENGINE_DRAFT_H
#define LLMQ_RUNTIME_ENGINE_DRAFT_H

#include "runtime/engine/seq.h"
#include "runtime/forward/forward.h"

/* Who is guessed for in a step, and how many rows are left for it. */
typedef struct {
    seq *const *run;
    int64_t n, at, max, left, decodes;
} draft_turns;
/* Of run[n], up to `max` guesses each within SPEC_ROWS rows. */
draft_turns draft_turns_of(seq *const *run, int64_t n, int64_t max);
/* The next that decodes, and its share of the rows; NULL: no more. Whoever guesses takes what it
 * needs of the share from t->left. */
seq *draft_next(draft_turns *t, int64_t *want);

typedef struct draft draft;

/* Of its passes, where f.max_rows ids are to be read in one. */
fwd_opts draft_step(const fwd_opts *f);
/* cache: of the large model; f.max_rows: most ids that the draft reads in a pass.
 * LQ_EVALUE: the draft's vocabulary is not of `vocab` ids. */
lq_status draft_open(draft **d, const model *m, int64_t vocab, const kv_opts *cache,
                     const fwd_opts *f, pool *p, lq_err *err);
void draft_close(draft *d); /* its sequences are gone already; NULL allowed */

/* Guesses of up to `max` ids after those of run[n], into their ids[n_ids ..] and n_draft. True: no
 * prompt had to be read for it. What goes wrong leaves a sequence without guesses. */
bool draft_guess(draft *d, seq *const *run, int64_t n, int64_t max, smp_ctx *smp);
/* At the sequence's admission, so that no step allocates; its blocks, before seq_free. d may be
 * NULL. */
void draft_begin(draft *d, seq *s);
void draft_forget(draft *d, seq *s);

#endif
