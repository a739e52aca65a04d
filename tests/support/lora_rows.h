/* tests/support/lora_rows.h - sequences with adapters of their own, whose rows go through a model together. */
#ifndef LLMQ_TESTS_SUPPORT_LORA_ROWS_H
#define LLMQ_TESTS_SUPPORT_LORA_ROWS_H

#include "runtime/model/lora.h"
#include "tests/support/rig.h"

#include <stdlib.h>

enum { LORA_SEQS = 5, LORA_LEN = 14 }; /* at most */

typedef struct {
    kv_seq kv;
    int32_t ids[LORA_LEN];
    int64_t len, done;
    const lora_adapter *l;
    float *logits; /* [len, V] of those rows that were asked for, else zeros */
} lora_seq;

/* The i-th, of len tokens. */
static inline void lora_begin(lora_seq *s, int i, int64_t len, const lora_adapter *l, int64_t V)
{
    *s = (lora_seq){ .len = len, .l = l, .logits = calloc((size_t)(len * V), sizeof(float)) };
    kv_seq_init(&s->kv);
    if (l) s->kv.adapter = l->id;
    for (int t = 0; t < len; t++)
        s->ids[t] = (int32_t)((i * 31 + t * 17 + 5) % V);
}

/* The next rows of all sequences that have some: n[i] of each; the logits of all or of the last. */
static inline void lora_step(rig *r, lora_seq *s, int n_seqs, const int64_t *n, bool last)
{
    fwd_item items[LORA_SEQS];
    const int64_t V = r->m.cfg->vocab;
    const float *logits;
    lq_err err = { "" };
    int k = 0;
    for (int i = 0; i < n_seqs; i++) {
        if (!n[i]) continue;
        CHECK(!kv_reserve(r->kv, &s[i].kv, s[i].done + n[i], &err), "%s", err.msg);
        items[k++] = (fwd_item){ .seq = &s[i].kv,
                                 .ids = s[i].ids + s[i].done,
                                 .n = n[i],
                                 .pos0 = s[i].done,
                                 .logits_from = last ? n[i] - 1 : 0,
                                 .seq_len = s[i].len,
                                 .lora = s[i].l };
    }
    const lq_status st = fwd_step(r->f, items, k, &logits, &err);
    CHECK(!st, "%s", err.msg);
    for (int i = 0; i < n_seqs && !st; i++) {
        if (!n[i]) continue;
        const int64_t from = last ? n[i] - 1 : 0, rows = n[i] - from;
        memcpy(s[i].logits + (s[i].done + from) * V, logits, (size_t)(rows * V) * sizeof *logits);
        logits += rows * V;
        s[i].done += n[i];
    }
}

static inline void lora_end(rig *r, lora_seq *s)
{
    kv_seq_free(r->kv, &s->kv);
    free(s->logits);
}

#endif
