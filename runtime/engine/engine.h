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

#include "runtime/engine/engine_opts.h"
#include "runtime/engine/request.h"
#include "runtime/model/kv_disk.h"
#include "runtime/tokenizer/tok.h"

const char *eng_finish_text(eng_finish f); /* "stop", "length", "abort", "error" */

/* Of the KV cache on disk; zeros without. */
typedef struct {
    kvd_stats files;
    uint64_t tokens;  /* that were read into the cache */
    double computing; /* seconds to compute a token of a prompt; 0: not known */
} eng_disk_stats;

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
    eng_disk_stats disk;
    uint64_t sent; /* bytes, to the other processes that share the model */
    /* The device has failed, or one of those processes: what ran has ended with an error, nothing will run. */
    bool lost;
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
/* What eng_close writes to a disk is written by then (lq_now's seconds), or not. */
void eng_save_until(engine *e, double until);

#endif
