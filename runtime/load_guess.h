/* runtime/load_guess.h - what guesses the next tokens beside a model (eng_opts.draft): a smaller model, an EAGLE-3
 * draft, or the model's own head for multi-token prediction. */
#ifndef LLMQ_RUNTIME_LOAD_GUESS_H
#define LLMQ_RUNTIME_LOAD_GUESS_H

#include "runtime/load.h"

typedef struct {
    const char *path;      /* the smaller model or the draft; NULL: the model's MTP head */
    const load_opts *load; /* as the model was loaded */
    pool *p;
    const lq_job *job; /* may be NULL */
} load_guess;
/* beside: the model, which stays open longer; t: its tokenizer, or NULL. load_model_close *l, also after an
 * error. Errors name the option and the file; LQ_EVALUE: it is for another model; LQ_EUNSUPPORTED: a head or an
 * EAGLE-3 draft beside a model on a device, or one that was rotated; LQ_ENOENT: the model has no head. */
lq_status load_guess_open(load_model *l, const load_model *beside, const tok_tokenizer *t,
                          const load_guess *o, lq_err *err);

#endif
