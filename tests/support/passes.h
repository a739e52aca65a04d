/* tests/support/passes.h - a golden checkpoint, its prompts and what transformers made of them; and the
 * prompts through a rig, cut into steps one way or another. */
#ifndef LLMQ_TESTS_SUPPORT_PASSES_H
#define LLMQ_TESTS_SUPPORT_PASSES_H

#include "tests/support/rig.h"

#include <stdio.h>
#include <stdlib.h>

enum { MAX_B = 2, MAX_T = 48, GREEDY = 16, MAX_V = 512 };

static inline bool open_arch(rig *r, const char *name, rig_opts o)
{
    char path[128];
    snprintf(path, sizeof path, "tests/golden/arch/%.100s", name);
    return rig_open(r, path, o);
}

typedef struct {
    st_file file;
    int64_t B, T, V;
    int32_t ids[MAX_B][MAX_T];
    bool has_greedy; /* prompt and what follows it; the lead of each over the second best */
    int32_t greedy[MAX_B][MAX_T + GREEDY];
    float margin[MAX_B][GREEDY];
    const uint8_t *logits; /* [B, T, V] float32, unaligned */
} golden;

static inline bool golden_open(golden *g, const char *name)
{
    char path[128];
    lq_err err = { "" };
    snprintf(path, sizeof path, "tests/golden/arch/%.64s/expected.safetensors", name);
    lq_status s = st_open(&g->file, path, &err);
    CHECK(!s, "%s", err.msg);
    if (s) return false;
    const st_tensor *l = st_find(&g->file, "logits"), *ids = st_find(&g->file, "input_ids");
    const st_tensor *greedy = st_find(&g->file, "greedy"), *margin = st_find(&g->file, "margin");
    g->B = l->shape[0], g->T = l->shape[1], g->V = l->shape[2];
    bool fits = g->B <= MAX_B && g->T <= MAX_T && g->V <= MAX_V;
    CHECK(fits, "%s: larger than the test's buffers", name);
    if (!fits) return st_close(&g->file), false;
    for (int64_t b = 0; b < g->B; b++)
        memcpy(g->ids[b], ids->data + (size_t)(b * g->T) * 4, (size_t)g->T * 4);
    for (int64_t b = g->B; b < MAX_B; b++) /* of one prompt the other is the same backwards */
        for (int64_t t = 0; t < g->T; t++)
            g->ids[b][t] = g->ids[0][g->T - 1 - t];
    g->has_greedy = greedy && margin;
    for (int64_t b = 0; b < g->B && g->has_greedy; b++) {
        memcpy(g->greedy[b], greedy->data + (size_t)(b * (g->T + GREEDY)) * 4,
               (size_t)(g->T + GREEDY) * 4);
        memcpy(g->margin[b], margin->data + (size_t)(b * GREEDY) * 4, GREEDY * 4);
    }
    g->logits = l->data;
    return true;
}

/* Logits of all prompts, fed in chunks; the second may have chunks of its own, as a prefill beside
 * a decode. */
typedef struct {
    const char *why;
    int64_t chunk, chunk2; /* 0: whole */
    int threads, block_size;
    bool alone; /* the second prompt after the first, in batches of its own */
} cut;

static inline void run_cut(rig *r, const golden *g, const cut *c, float *out)
{
    const int64_t T = g->T;
    kv_seq s[MAX_B];
    int64_t at[MAX_B] = { 0 },
            chunk[MAX_B] = { c->chunk ? c->chunk : T, c->chunk2 ? c->chunk2 : T };
    for (int64_t b = 0; b < g->B; b++)
        kv_seq_init(&s[b]);
    while (at[0] < T || at[g->B - 1] < T) {
        fwd_item items[MAX_B];
        int64_t which[MAX_B];
        int n = 0;
        for (int64_t b = 0; b < g->B; b++) {
            if (at[b] == T || (c->alone && b == 1 && at[0] < T)) continue;
            int64_t k = T - at[b] < chunk[b] ? T - at[b] : chunk[b];
            CHECK(!kv_reserve(r->kv, &s[b], at[b] + k, NULL), "reserve");
            which[n] = b;
            items[n++] = (fwd_item){
                .seq = &s[b], .ids = g->ids[b] + at[b], .n = k, .pos0 = at[b], .seq_len = T
            };
        }
        const float *logits;
        lq_err err = { "" };
        lq_status st = fwd_step(r->f, items, n, &logits, &err);
        CHECK(!st, "%s: %s", c->why, err.msg);
        if (st) break;
        for (int i = 0; i < n; i++) {
            int64_t words = items[i].n * g->V;
            memcpy(out + (which[i] * T + at[which[i]]) * g->V, logits, (size_t)words * 4);
            logits += words;
            at[which[i]] += items[i].n;
        }
    }
    for (int64_t b = 0; b < g->B; b++)
        kv_seq_free(r->kv, &s[b]);
}

static const cut whole = { "whole prompts in one batch", 0, 0, 1, 16, false };

/* The rig, the reference and the logits of one pass, [B, T, V]; NULL after a failed check. */
static inline float *open_both(rig *r, golden *g, const char *name, rig_opts o)
{
    memset(g, 0, sizeof *g);
    if (!open_arch(r, name, o) || !golden_open(g, name)) return NULL;
    float *out = malloc((size_t)(g->B * g->T * g->V) * 4);
    if (out) run_cut(r, g, &whole, out);
    return out;
}

static inline void close_both(rig *r, golden *g, float *logits)
{
    free(logits);
    st_close(&g->file);
    rig_close(r);
}

#endif
