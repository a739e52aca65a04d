/* tests/cuda_broken.h - kernels with one mistake each, for the emulation's detectors
 * (cuda_broken.cu), and each beside it without the mistake. */
#ifndef LLMQ_TESTS_CUDA_BROKEN_H
#define LLMQ_TESTS_CUDA_BROKEN_H

#include "kernels/dev.h"

LQ_C_BEGIN

typedef struct {
    const char *why, *said; /* said: what the error must hold; NULL: it runs */
    void (*run)(dev *d, float *buf);
} broken_case;
enum { BROKEN_N = 19, BROKEN_FLOATS = 64 };
extern const broken_case broken_cases[BROKEN_N];

LQ_C_END

#endif
