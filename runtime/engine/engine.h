/* runtime/engine/engine.h - the serving engine: requests in, events out, continuous batching between.
 *
 * One engine thread runs steps: it admits waiting requests in order (priority, then arrival) as
 * eng_policy lets it, decodes every running sequence, gives the rest of the token budget to prefill
 * chunks, samples, turns ids into text, watches stop conditions, and pre-empts by recompute the
 * sequence that came last when blocks run out (runtime/engine/sched.h has the policy). Any thread may
 * submit and cancel. Every accepted request ends with exactly one event that is `last`; that, and
 * for a beam search the end of each answer before it, has `finish` set.
 *
 * What a request answers depends on the model, the options of arithmetic and the request alone: not
 * on load, chunks, threads, cache hits or pre-emption. Its answer ends at the first of: an EOS id
 * (unless ignore_eos), a stop id, a stop string, the end of a grammar (ENG_STOP, as EOS),
 * max_tokens, the context limit. Under a grammar EOS and special stop ids are drawn only where it
 * may end, no other special token at all.
 *
 * Memory: the KV pool and the scratch of a step are taken in eng_open, a sequence's buffers when it
 * is admitted; a step allocates nothing (but the states of a grammar that are met for the first
 * time). An idle engine sleeps. */
#ifndef LLMQ_RUNTIME_ENGINE_ENGINE_H
#define LLMQ_RUNTIME_ENGINE_ENGINE_H

#include "runtime/engine/sample.h"
#include "runtime/forward/forward.h"
#include "runtime/grammar/grammar.h"
#include "runtime/tokenizer/tok.h"

typedef enum {
    ENG_RUNNING,
    ENG_STOP,
    ENG_LENGTH,
    ENG_CANCELLED,
    ENG_ERROR,
    ENG_N_FINISH
} eng_finish;
/* What an embedding is made of: the last layer's output, after the final norm, over the prompt. */
typedef enum { ENG_NO_POOL, ENG_POOL_LAST, ENG_POOL_MEAN } eng_pool;
const char *eng_finish_text(eng_finish f); /* "stop", "length", "abort", "error" */

/* When a beam search is over before max_tokens, its `width` answers once found: as soon as the best
 * line that goes on could not be among them if it ended here; at once; or when it could not
 * whatever length it reached. transformers' early_stopping False, True and "never". */
typedef enum { ENG_EARLY_NO_GAIN, ENG_EARLY_FULL, ENG_EARLY_NEVER } eng_early;

/* runtime/engine/beam.h */
typedef struct {
    int64_t width;         /* lines followed; 0: no beam search */
    int64_t n;             /* answers wanted, 1..width */
    double length_penalty; /* an answer's score: the sum of its log-probabilities / length^this */
    eng_early early;
} eng_beam;

typedef struct {
    const int32_t *prompt;   /* copied */
    int64_t n_prompt;        /* >= 1 */
    int64_t max_tokens;      /* 0: only score the prompt */
    int64_t min_tokens;      /* EOS and stop ids are banned, stop strings ignored, until then */
    smp_params params;       /* arrays are copied */
    const char *const *stop; /* stop strings, copied */
    int n_stop;
    const int32_t *stop_ids;
    int n_stop_ids;
    /* Runs of ids that must not be output: of each the number of its ids (>= 1), then those. The
     * last id of a run is banned where the output ends with the others. Copied. */
    const int32_t *bad;
    int n_bad;         /* numbers in all */
    bool include_stop; /* keep the stop string in the text */
    bool ignore_eos;
    bool show_special;   /* text of special tokens is delivered */
    int prompt_logprobs; /* -1: none */
    grammar *grammar;    /* the answer is a sentence of it; NULL: free. A reference is taken */
    eng_beam beam;       /* nothing is drawn then: temperature, top_k, ..., seed say nothing */
    eng_pool pool;       /* an embedding of the prompt is wanted; max_tokens is 0 then */
    const char *salt;    /* prefix cache salt or NULL */
    int32_t priority;    /* lower is served first; a stream of them can starve higher ones */
} eng_request;

/* What a sequence has produced since the last event. Pointers are valid during the callback. */
typedef struct {
    uint64_t id;
    const char *text; /* new text, whole code points; may be empty while ids are held back */
    size_t n_text;
    const int32_t *ids;         /* new ids (all of them, also held back in text) */
    const smp_result *logprobs; /* [n_ids] or NULL */
    int n_ids;
    const smp_result
        *prompt_logprobs; /* [n_prompt], once, before the first token; entry 0 has no logprob */
    const double *pooled; /* [hidden] with the last event of an embedding */
    int64_t n_prompt, n_cached, n_output; /* usage so far */
    /* A beam search gives its answers when all is done, one after the other, the best first. */
    int answer;              /* which of them this event is of; 0 for all others */
    bool last;               /* of the request */
    eng_finish finish;       /* of the answer; set in the last event too */
    const char *stop_string; /* which stop string matched, or NULL */
    int32_t stop_id;         /* which stop id (not EOS), or -1 */
    const char *error;       /* ENG_ERROR */
    lq_status status; /* ENG_ERROR: LQ_ENOENT where what the request bans leaves no answer and
                         nothing else is wrong; LQ_EDEVICE: the device is lost */
} eng_event;

/* Called on the engine thread: must be quick and never call back into the engine except eng_cancel.
 */
typedef void (*eng_sink)(void *user, const eng_event *e);

/* A test's hand on what is drawn: returns the logits to draw output `n_output` from, [vocab], in
 * place of `row`; the pointer is used before the same thread calls again. Any thread below
 * `threads`; ids are the prompt's and then the output's. */
typedef struct {
    const float *(*logits)(void *self, int thread, const int32_t *ids, int64_t n_prompt,
                           int64_t n_output, const float *row);
    void *self;
} eng_script;

/* Who may begin while others run.
 * continuous: whoever is first in line, in any step, as soon as there is room.
 * static: nobody. What waits when nothing runs begins together and runs to the end.
 * dynamic: likewise, but a batch of fewer than max_seqs begins only when one of it has waited for
 * batch_wait. */
typedef enum { ENG_CONTINUOUS, ENG_STATIC, ENG_DYNAMIC, ENG_N_BATCHINGS } eng_batching;

typedef struct {
    eng_batching batching;
    double batch_wait; /* seconds; dynamic alone */
    /* continuous alone, 0: off. While sequences run others begin only when at least served_ratio
     * times as many wait, or some have waited for max_waiting_steps steps (0: 20). */
    double served_ratio;
    int64_t max_waiting_steps;
} eng_policy;

enum { ENG_LEN_AUTO = -1 };

typedef struct {
    mm_acts acts;
    kv_dtype kv;
    eng_policy policy;
    int block_size;  /* 0: 16 */
    size_t kv_bytes; /* the draft's included; 0: enough for max_seqs at max_len, at most 1/4 of
                        free memory */
    size_t room;     /* memory that the pool may be cut from; 0: what is free when it is */
    /* 0: the model's maximum, or what the KV pool holds if less; ENG_LEN_AUTO: likewise, and the
     * pool may take up to 3/4 of free memory where a longer context needs it. */
    int64_t max_len;
    int64_t max_seqs;         /* 0: 64 */
    int64_t max_batch_tokens; /* 0: 512 */
    int64_t queue;            /* 0: 1024; at most max_seqs + queue requests are in the engine */
    bool no_prefix_cache;
    int64_t guesses; /* of the next ids in a step (runtime/engine/spec.h), 0..SPEC_MAX; 0: none */
    const model *draft; /* makes the guesses (runtime/engine/draft.h), or NULL: n-grams; borrowed */
    const eng_script *script; /* tests alone: NULL otherwise */
} eng_opts;

typedef struct {
    int64_t running, waiting, kv_blocks, kv_blocks_used, kv_blocks_cached;
    int64_t kv_unused; /* places for tokens in the blocks of what runs that hold none */
    uint64_t prompt_tokens, cached_tokens, generation_tokens, preemptions, steps,
        finished[ENG_N_FINISH];
    uint64_t prefix_queries, prefix_hits; /* tokens */
    uint64_t rows, logit_rows;            /* through the layers, through the head */
    double step_seconds, model_seconds;   /* in all steps; of those in the model and sampling */
    uint64_t drafts, guesses, right; /* steps of a sequence with guesses; those; the right ones */
    uint64_t right_at[15];           /* [SPEC_MAX] by place: the first guess, the second, ... */
    double
        last_step_age; /* seconds since the last finished step while something runs; 0 when idle */
    bool lost; /* the device has failed: what ran has ended with an error, nothing will run */
    lq_err why;
} eng_stats;

typedef struct engine engine;
/* tok may be NULL (no text, no stop strings). The engine starts its thread. */
lq_status eng_open(engine **e, const model *m, const tok_tokenizer *tok, pool *p, const eng_opts *o,
                   lq_err *err);
/* Cancels what runs, waits for the thread. */
void eng_close(engine *e);
const eng_opts *eng_options(const engine *e); /* with the defaults filled in */
/* *id is written before the first event. LQ_EBUSY: queue full or draining; LQ_EVALUE: can never run
 * (too long, bad id; err says both numbers); LQ_EDEVICE: the device is lost. */
lq_status eng_submit(engine *e, const eng_request *r, eng_sink sink, void *user, uint64_t *id,
                     lq_err *err);
void eng_cancel(engine *e,
                uint64_t id); /* unknown ids are ignored; the final event says ENG_CANCELLED */
void eng_stats_get(engine *e, eng_stats *s);
/* Refuse new requests; true when nothing runs any more, within timeout seconds. */
bool eng_drain(engine *e, double timeout);

#endif
