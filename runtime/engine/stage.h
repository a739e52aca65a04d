/* runtime/engine/stage.h - the steps between adjusted logits and a draw, as a table: what a request
 * asks for of it, in the order of the table or of its own.
 *
 * A stage changes x[V] in place: it drops ids (-INFINITY) or scales logits, and leaves at least one
 * id that it found. A new stage is a row of stage.c, a field of smp_params and a file of stages/.
 * Probabilities p below are the softmax of x as the stage finds it, without what was dropped.
 *
 * Sums are in double and in the order of ids, exp and log those of kernels/core/kmath.h, so the
 * same logits give the same ids on every machine.
 *
 * Sources: llama.cpp, src/llama-sampler.cpp; the papers that the stages name. */
#ifndef LLMQ_RUNTIME_ENGINE_STAGE_H
#define LLMQ_RUNTIME_ENGINE_STAGE_H

#include "runtime/engine/sample.h"
#include "runtime/engine/stages/scan.h"

typedef struct {
    const char *name, *other; /* as llama.cpp's `samplers` has it; another spelling, or NULL */
    bool (*on)(const smp_params *p);
    void (*run)(stage_ctx *c, float *x, const smp_params *p);
} smp_stage;

extern const smp_stage smp_stages[SMP_STAGES];

/* Any stage is asked for that only this table has. */
bool stages_wanted(const smp_params *p);
/* All that are on, in their order. */
void stages_run(stage_ctx *c, float *x, const smp_params *p);

#endif
