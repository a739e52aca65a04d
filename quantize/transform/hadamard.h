/* quantize/transform/hadamard.h - products with a seeded orthogonal matrix.
 *
 *     plain       R = diag(s) H / sqrt(b)     s: random signs
 *     keep_ones   R = H diag(s) H^T / b       s[0] = 1 and H's first column is all ones, so that
 *                                             1 R = 1 and the mean of x R is that of x
 *
 * H is a Hadamard matrix of order b: the Kronecker product of a Paley matrix, where the width has
 * an odd factor (12, 20, 28, 36, 44, 60, ...), and of Sylvester's of order 2^k. Where no such
 * product has the order of the width, R is block-diagonal with the largest b that divides it; b = 1
 * leaves the signs alone.
 *
 * Sums of f32 in one order: the same bits on every machine and at any number of threads.
 * Source: R. E. A. C. Paley, On orthogonal matrices, 1933; arXiv:2404.00456 (use of it). */
#ifndef LLMQ_QUANTIZE_TRANSFORM_HADAMARD_H
#define LLMQ_QUANTIZE_TRANSFORM_HADAMARD_H

#include "base/base.h"

typedef struct {
    int64_t n;     /* components of a vector */
    int64_t block; /* order b of H; divides n */
    int64_t paley; /* order of its Paley factor; 1: none */
    bool keep_ones;
    const int8_t *core; /* [paley][paley] of +-1; the first column is all ones. NULL: paley is 1 */
    const float *sign;  /* [n] */
} had_rotation;

/* Errors: LQ_ENOMEM. The tables go into the arena. */
lq_status had_init(had_rotation *r, int64_t n, uint64_t seed, bool keep_ones, lq_arena *a,
                   lq_err *err);

/* x <- x R for `lanes` vectors at once: component i of lane j is x[i * ld + j]. One vector in a
 * row: ld = lanes = 1. */
void had_apply(const had_rotation *r, float *x, int64_t ld, int64_t lanes);

/* "Hadamard 12 x 64"; "3 blocks of Hadamard 64" */
void had_text(char out[64], const had_rotation *r);

#endif
