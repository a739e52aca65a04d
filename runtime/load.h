/* runtime/load.h - a model on disk, ready to run: weights loaded, tokenizer opened, the ids that
 * end an answer and the defaults of generation read. */
#ifndef LLMQ_RUNTIME_LOAD_H
#define LLMQ_RUNTIME_LOAD_H

#include "formats/arch/generation_config.h"
#include "runtime/forward/forward.h"
#include "runtime/tokenizer/tok.h"

/* A source and its model. The model keeps the address: do not copy. */
typedef struct {
    src_source *src;
    model m;
    arch_config cfg; /* the source's, with all ids that end an answer (load_stops) */
    bool leads;      /* other processes follow (runtime/forward/follow.h) until it is closed */
} load_model;
/* What a device must have room for besides the weights: a step, and a cache. */
typedef struct {
    fwd_opts step; /* zeros: 512 rows of 64 sequences; max_len 0: of `tokens` */
    kv_types kv;
    int block_size; /* 0: 16 */
    int64_t tokens; /* of the cache; 0, or more without `exact`: the model's context, or 4,096 */
    size_t cache_bytes; /* in all layers, in place of `tokens`, for as many sequences as use it */
    bool exact;         /* so much of a cache; else three quarters of what a step leaves hold it */
    bool whole;         /* the layers asked for fit with all of this, or none is there */
    size_t also;        /* and what another model there has not taken yet */
} load_beside;
typedef struct {
    bool verify; /* every checksum is looked at */
    /* Where it is to run: "cpu" (or NULL), "cuda", "cuda:1": there or not at all, or "auto": on the
     * first GPU where there is one that it runs on, else on the CPU, and a note on "device" says
     * which and why (as it does of layers on both). */
    const char *device;
    /* Of its layers on the GPU the last so many, MODEL_ALL_LAYERS or MODEL_AUTO_LAYERS; the others
     * stay on the CPU. */
    int64_t gpu_layers;
    int ranks; /* GPUs that share every layer, from the named one on; 0: one. With all layers */
    comm *
        processes; /* on the CPU: each of these has a part (runtime/model/part.h); NULL: all is here */
    bool batch_invariant; /* on a GPU answers do not depend on load (model_share) */
    bool eager;         /* on a GPU each operation of a step is launched by itself (model_share) */
    bool int8;          /* on a GPU too, where activations are to be int8 (model_share) */
    load_beside beside; /* what MODEL_AUTO_LAYERS leaves room for */
    /* Fills in `beside` from the config; may be NULL. */
    void (*size)(load_beside *b, const arch_config *c, const void *user);
    const void *user;
    /* May be NULL. Notes of a GPU may come later, and from another thread. */
    void (*note)(const char *what, const char *text);
    const char *rope;      /* arch_rope_rescale's text; NULL: as the model's config says */
    const char *tokenizer; /* of this folder or model instead of the model's own; NULL */
    const char *chat_template, *tool_format;     /* chat_choice's (runtime/chat/chat_set.h) */
    const char *rerank_template, *rerank_labels; /* rerank_choice's (runtime/chat/rerank.h) */
} load_opts;
/* path: whatever formats/source/source.h opens. Notes are those of the source (what: the path) and
 * of the device. Errors name the file. Of several processes all call it; the others than the first then
 * fwd_follow. */
lq_status load_weights(load_model *l, const char *path, const load_opts *o, pool *p,
                       const lq_job *job, lq_err *err);
void load_model_close(load_model *l); /* a zeroed one too */
/* What load_weights does about o->device, of a model from elsewhere. */
lq_status load_device(model *m, const load_opts *o, lq_err *err);
/* o->gpu_layers, and what is left besides. */
model_share load_share(const arch_config *c, const load_opts *o);
/* What load_device has left for a model that has not taken it yet; 0 on the CPU. */
size_t load_left(const model *m, const load_opts *o);

/* The tokenizer that travels with a source: compiled already (.llmq) or compiled now. */
typedef struct {
    tok_tokenizer *t;
    uint8_t *blob; /* owned when compiled here */
} load_tok;
/* LQ_ENOENT when the source has none. */
lq_status load_tok_open(load_tok *l, const src_source *src, const char *path, lq_err *err);
void load_tok_close(load_tok *l);

/* Let the tokenizer's own end token (eos_token of tokenizer_config.json: a chat model's end of
 * turn) end answers as well as those of config.json and generation_config.json. Before the
 * engine. */
lq_status load_stops(load_model *l, const tok_tokenizer *t, lq_err *err);

/* The source's generation_config.json, if it has one. */
lq_status load_gen(gen_defaults *g, const src_source *src, const char *path, lq_err *err);

#endif
