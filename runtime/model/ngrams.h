/* runtime/model/ngrams.h - the table of a layer with embeddings of n-grams: tens of gigabytes in a large model, so that
 * it stays where the source has it, and is read by rows. */
#ifndef LLMQ_RUNTIME_MODEL_NGRAMS_H
#define LLMQ_RUNTIME_MODEL_NGRAMS_H

#include "formats/arch/ngrams.h"
#include "runtime/model/model.h"

struct model_ngrams {
    arch_ngrams of;
    int64_t n;
    qt_tensor *part; /* [n] any scheme, portable, one after the other */
    int64_t *first;  /* [n] the row that each begins with */
};

/* LQ_ESHAPE: the parts have not as many rows as heads need. */
lq_status model_load_ngrams(model_ngrams **out, const model *m, int64_t layer, lq_arena *a,
                            lq_err *err);
/* Rows are looked up from now on: the system need not read on after them. */
void model_ngrams_ready(const model_ngrams *t, const model *m);
/* Row `row` of the whole: dst [arch_ngram_width]. */
void model_ngram_row(const model_ngrams *t, int64_t row, float *dst);

#endif
