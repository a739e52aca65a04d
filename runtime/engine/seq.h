/* runtime/engine/seq.h - one request inside the engine: its ids, text, stop conditions and KV blocks.
 *
 * A sequence is a list of ids: the prompt, then the output. n_done of them have their K and V in
 * the cache; a step computes some of ids[n_done .. n_ids) and, when it reaches the end, samples one
 * more. Prefill, decode and the recomputation after a pre-emption are therefore the same thing.
 *
 * Everything it needs while it runs is allocated by seq_prepare, at admission; a waiting request
 * holds its own copy of the request and nothing more. Engine thread only, but for the fields that
 * are said to be the engine's. */
#ifndef LLMQ_RUNTIME_ENGINE_SEQ_H
#define LLMQ_RUNTIME_ENGINE_SEQ_H

#include "runtime/engine/beam_set.h"
#include "runtime/engine/request.h"
#include "runtime/engine/spec.h"
#include "runtime/engine/stop.h"
#include "runtime/model/kv.h"
#include "runtime/tokenizer/tok.h"

/* What a draft model (runtime/engine/draft.h) or an MTP head (runtime/engine/mtp.h) knows of a sequence. */
typedef struct {
    kv_seq kv;
    int64_t
        n_done;   /* ids and guesses that it has read; of an MTP head rows of the model's states */
    int64_t base; /* n_ids when it last guessed, and the guesses then */
    int32_t ids[SPEC_MAX];
    int64_t steps; /* of the matcher along the guesses */
    int64_t first; /* MTP: position of its first row */
    /* MTP: states of the last step that are not read yet: n rows from `row` on, of positions pos.. */
    struct {
        int64_t row, pos, n;
    } hidden;
} seq_draft;

enum { ENG_TAIL = 1024 };

typedef struct seq seq;
struct seq {
    uint64_t id;
    eng_request r; /* arrays are in the arena */
    eng_sink sink;
    void *user;
    lq_arena arena;

    int64_t n_prompt, max_new; /* max_new: max_tokens within the context limit */
    int32_t *ids;              /* [n_prompt + max_new] once prepared */
    int64_t n_ids, n_done;
    int64_t read;     /* ids of the prompt that were told of (eng_request.progress) */
    int64_t n_cached; /* from the prefix cache, at the first admission */
    kv_seq kv;

    smp_params early;    /* r.params with the stop ids banned, until min_tokens are out */
    float mu;            /* mirostat's, before the next draw */
    smp_result *samples; /* [1 + SPEC_MAX] of this step; [1] where nothing is guessed */
    int64_t n_samples;
    smp_result *scores; /* [n_prompt] for prompt_logprobs */
    int64_t n_scored;   /* positions whose logits have been scored */
    bool scores_sent;
    beam_set *beams;     /* of r.beam, or NULL; ids then hold one of its lines after the prompt */
    gr_matcher *matcher; /* of r.grammar, or NULL */
    char *tail;          /* [ENG_TAIL] the output's last bytes, where the grammar may sleep */
    size_t n_tail;
    bool cut_tail;    /* there was more */
    bool behind_call; /* the tail begins where a call ended */
    thought_watch thought;
    uint32_t *mask; /* [n_mask] of the next draw; in r.params and early; NULL: all may be */
    size_t n_mask;
    spec_state spec;
    int64_t n_draft; /* guesses for this step, after ids[n_ids - 1] */
    seq_draft draft;
    const int32_t *end_ids; /* that may be drawn where the grammar may end */
    int n_end_ids;
    double
        *pooled; /* [hidden] for an embedding: the sum over the rows so far, or what r.pool says */
    tok_stream *stream; /* NULL without a tokenizer */
    stop_matcher *stop;

    eng_finish finish;
    int32_t stop_id;  /* -1: none */
    int stop_matched; /* -1: none */
    lq_status status; /* of this step */
    lq_err err;

    /* scheduler's */
    double arrived; /* seconds on the caller's clock */
    seq *next;      /* in the waiting list */
    bool running, admitted, prepared, preempted;
    bool looked, reading; /* for its beginning on disk; that is being read, it waits (sched.look) */
    uint64_t preempt_mark;
    int64_t plan_n, plan_from; /* this step: ids computed; first of them that wants logits */
    int64_t plan_draft;        /* and guesses after them, all with logits */
    int64_t row0;              /* of those logits among the step's; engine's */
    bool draws_there;          /* where the pass draws, if its edits have room */
    int64_t draw0;             /* of its draws among the device's; -1: not drawn there */

    /* engine's, under its lock */
    seq *live_prev, *live_next, *inbox_next, *doom_next;
    bool cancel;
};

/* Checks the request against the model and copies it. max_len: positions a sequence may have.
 * LQ_EVALUE says what is wrong with it. */
lq_status seq_new(seq **s, const eng_request *r, const arch_config *c, int64_t max_len,
                  bool has_tok, lq_err *err);
/* Most bytes of one that waits, and what it takes on top when it runs, of positions up to max_len.
 */
typedef struct {
    size_t waiting, running;
} seq_need;
void seq_need_of(seq_need *n, const arch_config *c, int64_t max_len, int64_t guesses,
                 int block_size);
void seq_free(seq *s); /* its KV blocks are gone already; NULL allowed */
/* Buffers for the whole run; guesses: most of a step. */
lq_status seq_prepare(seq *s, const arch_config *c, const tok_tokenizer *t, int64_t guesses,
                      lq_err *err);

static inline int64_t seq_output(const seq *s) { return s->n_ids - s->n_prompt; }
/* Still to be scored: for prompt_logprobs positions 0..n_prompt-2, which predict the tokens after
 * them; for an embedding all of the prompt that it is made of. */
static inline bool seq_scoring(const seq *s)
{
    if (s->r.pool) return s->r.pool != ENG_POOL_LAST && s->n_scored < s->n_prompt;
    return s->r.prompt_logprobs >= 0 && s->n_scored < s->n_prompt - 1;
}
/* How many guesses the next step is worth, at most `max`; 0 if it does not draw. Once a step. */
int64_t seq_guesses(seq *s, int64_t max);
/* So many into ids[n_ids ..] from the ids so far. */
void seq_guess(seq *s, int64_t max);
/* One more guess, from a draft's logits; false: it is the last that makes sense. Then
 * seq_guess_end.
 */
bool seq_guess_from(seq *s, smp_ctx *smp, const float *row);
void seq_guess_end(seq *s);
/* Parameters for the draw of output id i. */
static inline const smp_params *seq_params(const seq *s, int64_t i)
{
    return i < s->r.min_tokens ? &s->early : &s->r.params;
}
/* Draws s->samples from the step's rows: the next id, and one more after each guess that was
 * right. row(user, i): the logits to draw output id i from; drawn: what a device drew instead, or
 * NULL; t as in seq_append. An error counts only at the first. */
lq_status seq_draw(seq *s, smp_ctx *smp, const dev_drawn *drawn,
                   const float *(*row)(void *user, int64_t i), void *user, const tok_tokenizer *t,
                   lq_err *err);
/* What the grammar and bad words allow after n ids of output, into s->mask if there is one. */
lq_status seq_mask(seq *s, int64_t n, lq_err *err);
/* Append an id that was drawn: text, stop conditions, finish. New text waits in s->stop for
 * stop_take. */
lq_status seq_append(seq *s, int32_t id, const arch_config *c, const tok_tokenizer *t, lq_err *err);
/* Back to the prompt, for another answer; t as in seq_append. */
lq_status seq_rewind(seq *s, const tok_tokenizer *t, lq_err *err);

#endif
