/* quantize/layer/importance.h - the inputs of a matrix by llama.cpp's importance matrix (formats/gguf/imatrix.h). */
#ifndef LLMQ_QUANTIZE_LAYER_IMPORTANCE_H
#define LLMQ_QUANTIZE_LAYER_IMPORTANCE_H

#include "formats/gguf/imatrix.h"
#include "quantize/layer/plan.h"

/* *mean_sq [e->K] of the entry's matrix, or of one of its experts (-1: it has none), by the name that GGUF has for it;
 * NULL: m has no such weight. LQ_ESHAPE: it has another number of inputs. */
lq_status importance_of(const float **mean_sq, const imatrix *m, const arch_config *c,
                        const plan_entry *e, int64_t expert, lq_err *err);

#endif
