/* tests/support/head_pair.h - a model and what guesses beside it from its hidden states, run together. */
#ifndef LLMQ_TESTS_SUPPORT_HEAD_PAIR_H
#define LLMQ_TESTS_SUPPORT_HEAD_PAIR_H

#include "formats/hf/safetensors.h"
#include "runtime/forward/forward.h"
#include "tests/support/check.h"

#include <math.h>

enum { PAIR_T = 24 }; /* ids of a reference */

/* A model, its head, and both passes. */
typedef struct {
    src_source *src, *head_src;
    model m, head;
    pool *p;
    kv_cache *kv[2];
    fwd_ctx *f[2];
} pair;

static lq_status pass(pair *r, int i, const model *m, lq_err *err)
{
    const kv_opts k = { .n_blocks = 8, .block_size = 8 };
    fwd_opts o = { .max_rows = PAIR_T, .max_logits = PAIR_T, .max_seqs = 1, .all_hidden = i == 0 };
    lq_status s = LQ_OK;
    if (i == 0 && arch_is_eagle(r->head.cfg)) {
        o.n_inputs = 3;
        s = model_eagle_layers(o.inputs, r->head.cfg, m->cfg, err);
    }
    if (!s) s = kv_open(&r->kv[i], m->cfg, &k, err);
    return s ? s : fwd_open(&r->f[i], m, r->kv[i], r->p, &o, err);
}

/* draft: the folder of an EAGLE-3 draft; NULL: the head is the model's. */
static bool pair_open(pair *r, const char *folder, const char *draft)
{
    lq_err err = { "" };
    memset(r, 0, sizeof *r);
    lq_status s = pool_open(&r->p, 2, &err);
    if (!s) s = src_open(&r->src, folder, &(src_opts){ .need_config = true }, &err);
    if (!s) s = model_load(&r->m, r->src, r->p, NULL, &err);
    if (!s && draft) {
        s = src_open(&r->head_src, draft, &(src_opts){ .need_config = true, .draft = true }, &err);
        if (!s) s = model_load_eagle(&r->head, &r->m, r->head_src, r->p, &err);
    } else {
        if (!s) s = src_mtp(&r->head_src, r->src, &err);
        if (!s) s = model_load_mtp(&r->head, &r->m, r->head_src, r->p, &err);
    }
    if (!s) s = pass(r, 0, &r->m, &err);
    if (!s) s = pass(r, 1, &r->head, &err);
    CHECK(!s, "%s: %s", folder, err.msg);
    return !s;
}

static void pair_close(pair *r)
{
    for (int i = 0; i < 2; i++) {
        fwd_close(r->f[i]);
        kv_close(r->kv[i]);
    }
    model_free(&r->head);
    model_free(&r->m);
    src_close(r->head_src);
    src_close(r->src);
    pool_close(r->p);
}

/* Chunks of n ids: the model's logits, and the head's of every row whose next id is there. */
static void run_pair(pair *r, const int32_t *ids, int64_t n, float *out[2])
{
    const int64_t V = r->m.cfg->vocab, W = arch_words(r->head.cfg), T = PAIR_T;
    const float *logits;
    kv_seq s[2];
    lq_err err = { "" };
    for (int i = 0; i < 2; i++)
        kv_seq_init(&s[i]);
    for (int64_t at = 0; at < T; at += n) {
        const int64_t rows = T - at < n ? T - at : n, read = at + rows < T ? rows : rows - 1;
        const fwd_item a = { .seq = &s[0], .ids = ids + at, .n = rows, .pos0 = at };
        CHECK(!kv_reserve(r->kv[0], &s[0], at + rows, &err), "%s", err.msg);
        CHECK(!fwd_step(r->f[0], &a, 1, &logits, &err), "%s", err.msg);
        memcpy(out[0] + at * V, logits, (size_t)(rows * V) * sizeof *logits);
        if (!read) continue;
        const fwd_item b = { .seq = &s[1],
                             .ids = ids + at + 1,
                             .n = read,
                             .pos0 = at,
                             .given = fwd_all_hidden(r->f[0]) };
        CHECK(!kv_reserve(r->kv[1], &s[1], at + read, &err), "%s", err.msg);
        CHECK(!fwd_step(r->f[1], &b, 1, &logits, &err), "%s", err.msg);
        memcpy(out[1] + at * W, logits, (size_t)(read * W) * sizeof *logits);
    }
    for (int i = 0; i < 2; i++)
        kv_seq_free(r->kv[i], &s[i]);
}

static double worst(const float *got, const st_tensor *want, int64_t n)
{
    double diff = 0, top = 0;
    for (int64_t i = 0; i < n; i++) {
        float x;
        memcpy(&x, want->data + i * 4, 4);
        diff = fmax(diff, fabs((double)got[i] - (double)x));
        top = fmax(top, fabs((double)x));
    }
    return diff / top;
}

#endif
