/* runtime/model/tables.h - matrices of a model that are read row by row: embeddings, and small ones as floats. Nothing
 * is done where the model has none. */
#ifndef LLMQ_RUNTIME_MODEL_TABLES_H
#define LLMQ_RUNTIME_MODEL_TABLES_H

#include "runtime/model/model.h"

lq_status model_load_rows(qt_tensor *out, const model *m, arch_role r, int64_t layer, int64_t part,
                          lq_arena *a, lq_err *err);
/* The first n rows as floats [n, K], out of the model's arena. */
lq_status model_load_floats(float **out, model *m, arch_role r, int64_t n, lq_err *err);

#endif
