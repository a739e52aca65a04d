/* runtime/engine/beam.h - beam search: the likeliest answers of a prompt instead of sampled ones.
 *
 * `width` lines are followed at once. In each step every line proposes its likeliest next ids; of
 * all proposals, ordered by the sum of their log-probabilities, those that end an answer (EOS, a
 * stop id, a stop string, max_tokens) may become answers when they are among the first `width`, and
 * the first `width` others are the lines of the next step. An answer's score is its sum divided by
 * length^length_penalty, its last id counted; the best `width` are kept. eng_early says when the
 * search is over. Scores, order and ends are those of transformers' generate(num_beams=width), to
 * rounding: tests/golden/beam.
 *
 * In the engine a search is one sequence (runtime/engine/seq.h) that takes `width` places of a step. Its
 * prompt is computed once; then the lines share its blocks, and those of the line that they come
 * from, by reference, and a block is copied where two lines write into it. A pre-empted search
 * begins again: nothing was sent yet, and it finds the same. Engine thread only, but for beam_draw.
 */
#ifndef LLMQ_RUNTIME_ENGINE_BEAM_H
#define LLMQ_RUNTIME_ENGINE_BEAM_H

#include "runtime/engine/seq.h"
#include "runtime/forward/forward.h"

/* Could it ever run, with that many places in a step, blocks and states? LQ_EVALUE. */
lq_status beam_fits(const seq *s, int64_t max_seqs, const kv_opts *kv, lq_err *err);

/* Rows that a decode of s has: its lines, or 1. */
static inline int64_t beam_rows(const seq *s)
{
    return s->beams && s->beams->n_lines ? s->beams->n_lines : 1;
}
/* Places of a step that s may need. */
static inline int64_t beam_places(const seq *s) { return s->r.beam.width ? s->r.beam.width : 1; }

/* Blocks for so many positions of s, or of each of its lines. LQ_EBUSY. */
lq_status beam_reserve(kv_cache *kv, seq *s, int64_t tokens, lq_err *err);
/* The items of its lines in this step; returns how many. */
int beam_items(const seq *s, fwd_item *items);
void beam_release(kv_cache *kv, seq *s); /* all its blocks; s without a search too */
void beam_restart(seq *s);               /* likewise; at the prompt again */

/* The lines' proposals. row(user, i): the logits after line i, whose ids are in s->ids then. */
lq_status beam_draw(seq *s, smp_ctx *smp, const float *(*row)(void *user, int64_t i), void *user,
                    lq_err *err);
/* The lines of the next step, one id longer, or the end: s->beams->over. LQ_ENOENT: what is not
 * banned makes fewer answers than are wanted. */
lq_status beam_take(seq *s, kv_cache *kv, const arch_config *c, const tok_tokenizer *t,
                    lq_err *err);
/* The ids of answer a into ids[answers[a].n], and what is known of each into b->results. */
void beam_path(const beam_set *b, int64_t a, int32_t *ids);

#endif
