/* runtime/engine/mtp.h - speculative decoding with the model's own MTP head (multi-token prediction,
 * arXiv:2412.19437, section 2.2): one more layer that was trained to predict the token after the next.
 *
 * Row p of the head reads the model's hidden state at position p and the id at p + 1, and gives logits
 * for the id at p + 2. It has a KV cache of its own, with as many blocks as the model's. After each step
 * it reads the states of that step's rows, prompts' too; the last of them gives the first guess. Each
 * further guess is a row of the head's own last state, dropped when the model's is there.
 *
 * An EAGLE-3 draft (arXiv:2503.01840) does the same with the states before three of the model's layers, has
 * an embedding and a head of its own, and guesses among fewer ids.
 *
 * What it guesses decides nothing but the time (runtime/engine/draft.h). So where states are missing (a
 * prefix from the model's cache that its own lacks; steps in which it did not read) it begins
 * anew at the first row that there is: rotations tell distances alone. Engine thread only. */
#ifndef LLMQ_RUNTIME_ENGINE_MTP_H
#define LLMQ_RUNTIME_ENGINE_MTP_H

#include "runtime/engine/seq.h"
#include "runtime/forward/forward.h"

typedef struct mtp mtp;

/* Of its passes; f: of the model's. */
fwd_opts mtp_step(const fwd_opts *f);
/* head: model_load_mtp's or model_load_eagle's; cache: of the model. */
lq_status mtp_open(mtp **m, const model *head, const kv_opts *cache, const fwd_opts *f, pool *p,
                   lq_err *err);
void mtp_close(mtp *m); /* its sequences are gone already; NULL allowed */

/* Reads the hidden states [rows, hidden, or what EAGLE-3 reads] of the last step, where s->draft.hidden says; with `max` 0 no more
 * than that. Guesses then as draft_guess does. True: no prompt was read for it. */
bool mtp_guess(mtp *m, seq *const *run, int64_t n, int64_t max, const float *hidden, smp_ctx *smp);
/* As draft_begin and draft_forget. */
void mtp_begin(mtp *m, seq *s);
void mtp_forget(mtp *m, seq *s);

#endif
