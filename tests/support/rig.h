/* tests/support/rig.h - a golden checkpoint ready to run: source, pool, model, cache, forward pass. */
#ifndef LLMQ_TESTS_SUPPORT_RIG_H
#define LLMQ_TESTS_SUPPORT_RIG_H

#include "formats/hf/safetensors.h"
#include "kernels/ops.h"
#include "runtime/forward/forward.h"
#include "tests/support/check.h"

typedef struct {
    src_source *src;
    pool *p;
    model m;
    kv_cache *kv;
    fwd_ctx *f;
} rig;

typedef struct {
    int threads, block_size;
    mm_acts acts;
    kv_types kv;
    bool prefix_cache;
    int64_t lora_rank;    /* fwd_opts' */
    comm *processes;      /* each has a part; NULL: this one has all */
    bool device;          /* dev_cuda's */
    bool int8;            /* model_share's */
    int64_t gpu_layers;   /* on it; 0: all */
    int ranks;            /* devices that share all layers; 0: one */
    bool eager;           /* no graphs there */
    bool batch_invariant; /* model_share's */
    void (*note)(const char *what, const char *text);
    void (*change)(model *m, void *user); /* its weights, once loaded; NULL: as they are */
    void *user;
} rig_opts;

enum { RIG_ROWS = 64, RIG_SEQS = 8 };

/* A pass over the weights as they are now. */
static inline lq_status rig_pass(rig *r, rig_opts o, lq_err *err)
{
    const fwd_opts f = { .acts = o.acts,
                         .max_rows = RIG_ROWS,
                         .max_logits = RIG_ROWS,
                         .max_seqs = RIG_SEQS,
                         .lora_rank = o.lora_rank };
    fwd_close(r->f);
    r->f = NULL;
    return fwd_open(&r->f, &r->m, r->kv, r->p, &f, err);
}

/* In place: the forward pass keeps the model's address. */
static inline bool rig_open(rig *r, const char *folder, rig_opts o)
{
    memset(r, 0, sizeof *r);
    lq_err err = { "" };
    lq_status s = k_init(NULL, &err);
    if (!s) s = src_open(&r->src, folder, &(src_opts){ .need_config = true }, &err);
    if (!s) s = pool_open(&r->p, o.threads ? o.threads : 1, &err);
    if (!s) s = model_load_part(&r->m, r->src, o.processes, r->p, NULL, &err);
    if (!s && o.change) o.change(&r->m, o.user);
    if (!s && o.device)
        s = model_to_device(&r->m, "cuda",
                            &(model_share){ .layers = o.gpu_layers,
                                            .ranks = o.ranks,
                                            .eager = o.eager,
                                            .batch_invariant = o.batch_invariant,
                                            .int8 = o.int8,
                                            .half = o.acts != MM_F32,
                                            .note = o.note },
                            &err);
    kv_opts k = { .n_blocks = 128,
                  .block_size = o.block_size ? o.block_size : 16,
                  .dtype = o.kv,
                  .prefix_cache = o.prefix_cache,
                  .on = model_dev(&r->m),
                  .first = model_first_on(&r->m) };
    if (!s) s = kv_open(&r->kv, r->m.cfg, &k, &err);
    if (!s) s = rig_pass(r, o, &err);
    CHECK(!s, "%s: %s", folder, err.msg);
    return !s;
}

static inline void rig_close(rig *r)
{
    fwd_close(r->f);
    kv_close(r->kv);
    model_free(&r->m);
    pool_close(r->p);
    src_close(r->src);
}

#endif
