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
 * EAGLE-3 draft beside a model that is not all on one device, or one that was rotated; LQ_ENOENT: the model has
 * no head. Where the device is "auto" and the model on a GPU that has no room for a head or an EAGLE-3 draft, or
 * cannot run it, a note says so and nothing is opened (load_guess_opened). */
lq_status load_guess_open(load_model *l, const load_model *beside, const tok_tokenizer *t,
                          const load_guess *o, lq_err *err);
/* NULL: nothing guesses, and the engine wants no guesses. */
const model *load_guess_opened(const load_model *l);
/* What a device has to have left beside the weights of `layers` of a model there and of a head or an EAGLE-3
 * draft: steps and caches of both. */
size_t load_guess_left(const arch_config *c, int64_t layers, const arch_config *draft,
                       const load_opts *o);
const char *load_guess_what(const arch_config *draft); /* "MTP head", "EAGLE-3 draft" */
/* Whether such a one's failure on a GPU is none, as the device is "auto": then a note on "device" says it. */
bool load_guess_spared(lq_status s, const arch_config *draft, const load_opts *o,
                       const lq_err *err);
/* Whether a smaller model that failed so on the model's GPU runs on the CPU: with "auto", or beside a model that shares
 * the GPU with the CPU and leaves no room. A note on its path says it. */
bool load_guess_elsewhere(lq_status s, const load_opts *o);

#endif
