/* runtime/engine/beam.h - beam search: the likeliest answers of a prompt rather than one that was drawn.
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

/* One id of a line or an answer; the ids before it are its parent's. */
typedef struct {
    int32_t id, parent; /* parent: a node; -1: the prompt's end */
    float logprob;
    int32_t row; /* of b->tops */
} beam_node;

/* The last node of a line, and the blocks of all that is before it. */
typedef struct {
    double sum;
    int32_t node, from; /* from: the line of the step before */
    kv_seq kv;
} beam_line;

typedef struct {
    double score;
    int32_t node;
    int64_t n; /* ids */
} beam_answer;

typedef struct {
    double sum;
    int32_t line;
    smp_cand c;
} beam_proposal;

struct beam_set {
    eng_beam o;
    int64_t max_new;
    int64_t
        keep;    /* proposals looked at in a step: `width` for lines, as many for each way to end */
    int64_t per; /* of a line */
    beam_line *lines, *next; /* [width] */
    int64_t n_lines;         /* 0: the prompt is not done */
    beam_answer *answers;    /* [width], the best first */
    int64_t n_answers;
    beam_node *nodes; /* [2 * width * max_new] */
    int64_t n_nodes;
    smp_result *tops;      /* [width * max_new] alternatives by step and line; NULL: not wanted */
    smp_result *results;   /* [max_new] of one answer */
    smp_cand *cands;       /* [width, per] of this step */
    int64_t *n_cands, *at; /* [width] how many; and how many are merged */
    beam_proposal *proposals; /* [keep] */
    bool over;
};

/* What is wrong with the request; LQ_EVALUE. */
lq_status beam_check(const eng_request *r, int64_t max_new, lq_err *err);
/* Could it ever run, with that many places in a step and blocks? LQ_EVALUE. */
lq_status beam_fits(const seq *s, int64_t max_seqs, const kv_opts *kv, lq_err *err);
/* In s->arena, for s->r.beam; n_ends: ids that end an answer. */
lq_status beam_new(seq *s, int64_t vocab, int n_ends, lq_err *err);

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

/* The lines' proposals. row(user, i): the logits behind line i, whose ids are in s->ids then. */
lq_status beam_draw(seq *s, smp_ctx *smp, const float *(*row)(void *user, int64_t i), void *user,
                    lq_err *err);
/* The lines of the next step, one id longer, or the end: s->beams->over. LQ_ENOENT: what is not
 * banned makes fewer answers than are wanted. */
lq_status beam_take(seq *s, kv_cache *kv, const arch_config *c, const tok_tokenizer *t,
                    lq_err *err);
/* The ids of answer a into ids[answers[a].n], and what is known of each into b->results. */
void beam_path(const beam_set *b, int64_t a, int32_t *ids);

#endif
