/* runtime/engine/stages/dry.h - "don't repeat yourself" (text-generation-webui #5677, llama.cpp): an
 * id that would go on with a run that was there before is punished, the more the longer the run.
 *
 * Where the last L ids occurred before, L >= allowed, and were followed by an id, its logit falls
 * by multiplier * base^(L - allowed); of several places the longest run counts. A run has no
 * breaker in it: an id of `breaks`, or several ids that are one of `runs`. */
#ifndef LLMQ_RUNTIME_ENGINE_STAGES_DRY_H
#define LLMQ_RUNTIME_ENGINE_STAGES_DRY_H

#include "runtime/engine/sample.h"

/* x[V] after the ids prompt, output; count[V]: scratch, zero before and after. */
void dry_apply(float *x, int32_t *count, const smp_dry *d, const int32_t *prompt, int64_t n_prompt,
               const int32_t *output, int64_t n_output);

#endif
