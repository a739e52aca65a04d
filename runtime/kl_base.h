/* runtime/kl_base.h - files of llama-perplexity's --kl-divergence-base: what a model says of each
 * token of a text, for the KL divergence of others from it.
 *
 *     "_logits_", i32 ctx, i32 V, i32 windows, i32 ids[windows * ctx],
 *     for each window and each of its positions ctx/2 .. ctx-2 a row:
 *         f32 step, f32 least, u16 code[V] (one more where V is odd)
 *
 * little-endian. log p(v) = step * code[v] + least; least is no lower than 16 below the largest, so
 * what is less likely than that has code 0. The row of position t is of the id at t + 1; ids are the
 * text's, also the first of a window, which the model reads as BOS where the tokenizer adds one.
 * Source: llama.cpp, tools/perplexity/perplexity.cpp. */
#ifndef LLMQ_RUNTIME_KL_BASE_H
#define LLMQ_RUNTIME_KL_BASE_H

#include "base/file.h"
#include "base/out_file.h"
#include "runtime/eval_score.h"

typedef struct {
    lq_map map;
    int64_t ctx, V, windows;
    int32_t *ids; /* [windows * ctx], owned */
    const uint8_t *rows;
} kl_base;

int64_t kl_base_first(int64_t ctx); /* first position of a window that is scored */
size_t kl_base_row_bytes(int64_t V);

/* Errors: lq_map_open's; LQ_EFORMAT - no such file, or of another length than its sizes say;
 * LQ_ENOMEM. Close it also after an error. */
lq_status kl_base_open(kl_base *b, const char *path, lq_err *err);
void kl_base_close(kl_base *b);
/* What logits [V] and row `row` say of `target`. As llama-perplexity sums, ids less likely than e^-16
 * add nothing to the divergence. */
eval_score kl_base_score(const kl_base *b, int64_t row, const float *logits, int64_t target);

/* The row [kl_base_row_bytes] of logits [V]. */
void kl_base_encode(uint8_t *row, const float *logits, int64_t V);
/* All that comes before the rows. */
lq_status kl_base_begin(lq_out *out, int64_t ctx, int64_t V, const int32_t *ids, int64_t windows,
                        lq_err *err);

#endif
