/* runtime/engine/engine_opts.h - the options of an engine; what they are where they are left 0:
 * runtime/engine/sizing.h. */
#ifndef LLMQ_RUNTIME_ENGINE_ENGINE_OPTS_H
#define LLMQ_RUNTIME_ENGINE_ENGINE_OPTS_H

#include "base/hash.h"
#include "runtime/forward/forward.h"

/* For tests, replaces the logits: returns the logits to draw output `n_output` from, [vocab], in
 * place of `row`; the pointer is used before the same thread calls again. Any thread below
 * `threads`; ids are the prompt's and then the output's. */
typedef struct {
    const float *(*logits)(void *self, int thread, const int32_t *ids, int64_t n_prompt,
                           int64_t n_output, const float *row);
    void *self;
} eng_script;

/* Who may begin while others run.
 * continuous: the first in line, in any step, as soon as there is room.
 * static: no request. What waits when nothing runs begins together and runs to the end.
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

/* The KV cache on disk (runtime/engine/disk.h). */
typedef struct {
    const char *dir;                /* NULL: none */
    size_t bytes;                   /* of all files there, at most */
    lq_hash weights;                /* src_fingerprint's */
    void (*note)(const char *text); /* of a disk that fails, once; any thread. May be NULL */
} eng_disk;

enum { ENG_LEN_AUTO = -1 };

typedef struct {
    mm_acts acts;
    kv_types kv;
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
    eng_disk disk;
    int64_t lora_rank; /* the largest of any request's adapter; 0: there are none */
    size_t lora_bytes; /* that those take which are there from the start, about */
    int64_t guesses;   /* of the next ids in a step (runtime/engine/spec.h), 0..SPEC_MAX; 0: none */
    /* Makes the guesses, or NULL: n-grams; borrowed. A model (runtime/engine/draft.h), or the model's own
     * MTP head (runtime/engine/mtp.h) */
    const model *draft;
    const eng_script *script; /* tests alone: NULL otherwise */
} eng_opts;

#endif
