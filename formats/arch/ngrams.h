/* formats/arch/ngrams.h - embeddings of n-grams (Qwen4-Exp): which rows of its table a layer reads.
 *
 * Of each n from 2 to arch_config.ngram there are ngram_heads heads, each with a part of the table's rows to itself:
 *
 *     row = at + (id_0 by_0 xor id_1 by_1 .. xor id_(n-1) by_(n-1)) mod size
 *
 * id_i is the token i positions back, or ngram_pad where the sequence begins or one of the tokens up to there is ngram_pad.
 * Sizes are successive primes from ngram_base on, over all layers that have such embeddings, factors come from splitmix64 of
 * ngram_seed and the layer's place among these. Source: transformers 5.23, models/qwen4_exp. */
#ifndef LLMQ_FORMATS_ARCH_NGRAMS_H
#define LLMQ_FORMATS_ARCH_NGRAMS_H

#include "formats/arch/arch.h"

enum { ARCH_MAX_NGRAM = 8, ARCH_MAX_NGRAM_HEADS = 64 };

typedef struct {
    uint64_t by[ARCH_MAX_NGRAM];
    int64_t heads; /* of all n together, those of the smallest n first */
    int64_t size[ARCH_MAX_NGRAM_HEADS], at[ARCH_MAX_NGRAM_HEADS];
    int64_t rows; /* of the table, with those that no head has */
} arch_ngrams;

/* Heads of all n; 0: the model has no such embeddings. */
static inline int64_t arch_ngram_heads(const arch_config *c)
{
    return c->ngram ? (c->ngram - 1) * c->ngram_heads : 0;
}
/* Numbers of a row of the table. */
static inline int64_t arch_ngram_width(const arch_config *c)
{
    return c->ngram ? c->ngram_dim / arch_ngram_heads(c) : 0;
}
/* Positions that the convolution looks back. */
static inline int64_t arch_ngram_back(const arch_config *c)
{
    return c->ngram ? (c->ngram_taps - 1) * c->ngram : 0;
}
/* What `by` is made of: place, from 0, is the layer's among those with n-grams. */
void arch_ngram_factors(arch_ngrams *out, const arch_config *c, int64_t place);
/* Those of a layer that has some. */
void arch_ngrams_of(arch_ngrams *out, const arch_config *c, int64_t layer);

#endif
