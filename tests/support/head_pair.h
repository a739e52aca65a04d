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
    const kv_opts k = { .n_blocks = 8, .block_size = 8, .n_states = 4, .on = model_dev(m) };
    fwd_opts o = { .max_rows = PAIR_T, .max_logits = PAIR_T, .max_seqs = 1, .all_hidden = i == 0 };
    lq_status s = LQ_OK;
    if (i == 0 && arch_is_eagle(r->head.cfg)) {
        o.n_inputs = 3;
        s = model_eagle_layers(o.inputs, r->head.cfg, m->cfg, err);
    }
    if (!s) s = kv_open(&r->kv[i], m->cfg, &k, err);
    return s ? s : fwd_open(&r->f[i], m, r->kv[i], r->p, &o, err);
}

/* draft: the folder of an EAGLE-3 draft; NULL: the head is the model's. device: both are there; NULL: the CPU. */
static bool pair_open(pair *r, const char *folder, const char *draft, const char *device)
{
    lq_err err = { "" };
    memset(r, 0, sizeof *r);
    lq_status s = pool_open(&r->p, 2, &err);
    if (!s) s = src_open(&r->src, folder, &(src_opts){ .need_config = true }, &err);
    if (!s) s = model_load(&r->m, r->src, r->p, NULL, &err);
    if (!s && device) s = model_to_device(&r->m, device, &(model_share){ 0 }, &err);
    if (!s && draft) {
        s = src_open(&r->head_src, draft, &(src_opts){ .need_config = true, .draft = true }, &err);
        if (!s) s = model_load_eagle(&r->head, &r->m, r->head_src, r->p, &err);
    } else {
        if (!s) s = src_mtp(&r->head_src, r->src, &err);
        if (!s) s = model_load_mtp(&r->head, &r->m, r->head_src, r->p, &err);
    }
    if (!s && device) s = model_join_device(&r->head, &r->m, &err);
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

static double pair_apart(const float *a, const float *b, int64_t n)
{
    double diff = 0, top = 0;
    for (int64_t i = 0; i < n; i++) {
        diff = fmax(diff, fabs((double)a[i] - (double)b[i]));
        top = fmax(top, fabs((double)b[i]));
    }
    return diff / top;
}

/* The reference of a pair, and its ids. */
static bool pair_reference(pair *r, st_file *f, int32_t ids[PAIR_T], const char *folder,
                           const char *draft, const char *device)
{
    char path[128];
    lq_err err = { "" };
    if (!pair_open(r, folder, draft, device)) return false;
    snprintf(path, sizeof path, "%s/expected.safetensors", draft ? draft : folder);
    const lq_status s = st_open(f, path, &err);
    CHECK(!s, "%s", err.msg);
    if (s) return false;
    memcpy(ids, st_find(f, "input_ids")->data, PAIR_T * sizeof *ids);
    return true;
}

/* The head's logits, and the model's where its reference is there, agree with it; in chunks the same bytes, on a device within
 * rounding. */
static void check_pair(const char *folder, const char *draft, const char *device)
{
    enum { V = 64, T = PAIR_T };
    static const double ROUND = 5e-6;
    static float want[2][T * V], got[2][T * V];
    const double far = device ? 2 * ROUND : ROUND;
    const char *name = draft ? draft : folder;
    int32_t ids[T];
    pair r;
    st_file f;
    if (!pair_reference(&r, &f, ids, folder, draft, device)) return;
    const int64_t n[] = { T * V, (T - 1) * arch_words(r.head.cfg) };
    const st_tensor *own = st_find(&f, "logits");
    run_pair(&r, ids, T, (float *[]){ want[0], want[1] });
    const double d[] = { own ? worst(want[0], own, n[0]) : 0,
                         worst(want[1], st_find(&f, draft ? "draft" : "mtp"), n[1]) };
    CHECK(d[0] <= far && d[1] <= far, "%s: %.2g and %.2g of the largest logit", name, d[0], d[1]);
    for (int64_t rows = 1; rows < T; rows = (device ? 3 : 2) * rows + 1) {
        run_pair(&r, ids, rows, (float *[]){ got[0], got[1] });
        for (int i = 0; i < 2; i++)
            CHECK(device ? pair_apart(got[i], want[i], n[i]) <= ROUND
                         : memcmp(got[i], want[i], (size_t)n[i] * sizeof(float)) == 0,
                  "%s: %s in chunks of %d", name, i ? "the head" : "the model", (int)rows);
    }
    st_close(&f);
    pair_close(&r);
}

/* One more row of a draft, of its own last state. */
static inline void check_own_state(const char *folder, const char *draft, const char *device)
{
    enum { V = 64, T = PAIR_T };
    static float out[2][T * V];
    pair r;
    st_file f;
    lq_err err = { "" };
    const float *logits;
    kv_seq s;
    int32_t ids[T], next;
    if (!pair_reference(&r, &f, ids, folder, draft, device)) return;
    const int64_t words = arch_words(r.head.cfg);
    memcpy(&next, st_find(&f, "next_id")->data, sizeof next);
    run_pair(&r, ids, T, (float *[]){ out[0], out[1] }); /* leaves the model's states */
    kv_seq_init(&s);
    CHECK(!kv_reserve(r.kv[1], &s, T, &err), "%s", err.msg);
    const fwd_item all = { .seq = &s, .ids = ids + 1, .n = T - 1, .given = fwd_all_hidden(r.f[0]) };
    CHECK(!fwd_step(r.f[1], &all, 1, &logits, &err), "%s", err.msg);
    int64_t best = 0;
    for (int64_t i = 0; i < words; i++)
        if (logits[(T - 2) * words + i] > logits[(T - 2) * words + best]) best = i;
    CHECK(r.head.drafted[best] == next, "guessed %d, the reference %d", r.head.drafted[best], next);
    const fwd_item one = { .seq = &s,
                           .ids = &next,
                           .n = 1,
                           .pos0 = T - 1,
                           .given = fwd_residual(r.f[1]) + (T - 2) * r.head.cfg->hidden,
                           .given_own = true };
    CHECK(!fwd_step(r.f[1], &one, 1, &logits, &err), "%s", err.msg);
    const double d = worst(logits, st_find(&f, "next"), words);
    CHECK(d <= (device ? 2 : 1) * 5e-6, "%s: %.2g of the largest logit", draft, d);
    kv_seq_free(r.kv[1], &s);
    st_close(&f);
    pair_close(&r);
}

#endif
