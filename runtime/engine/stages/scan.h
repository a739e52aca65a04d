/* runtime/engine/stages/scan.h - what stages have in common: a pass over a row of logits. */
#ifndef LLMQ_RUNTIME_ENGINE_STAGES_SCAN_H
#define LLMQ_RUNTIME_ENGINE_STAGES_SCAN_H

#include "base/base.h"

/* Scratch of a call, all of V numbers. */
typedef struct {
    float *w;
    int32_t *ids;
    float unit; /* of weights: kernels/sampling.h */
    int64_t V;
    uint64_t draw; /* number of the draw */
} stage_ctx;

/* w = exp(x - max x) of every id, 0 for what was dropped; returns their sum. */
double stage_weights(stage_ctx *c, const float *x);
/* -sum p ln p, given those weights and their sum; left: how many ids are not dropped. */
double stage_entropy(const stage_ctx *c, const float *x, double sum, int64_t *left);
/* Drops what is not among the first n of c->ids. */
void stage_keep(stage_ctx *c, float *x, int64_t n);

/* ---- order: larger x first, lower id first among equals ---- */
/* A heap of n ids below node i. best: the first in order is at the root, else the last. */
void heap_sift(int32_t *h, int64_t n, int64_t i, const float *x, bool best);
void heap_make(int32_t *h, int64_t n, const float *x, bool best);
/* Move the root to the end of the heap, which is one shorter then. */
void heap_pop_to_end(int32_t *h, int64_t *n, const float *x, bool best);

#endif
