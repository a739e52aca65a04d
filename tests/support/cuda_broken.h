/* tests/support/cuda_broken.h - kernels with one mistake each, for the emulation's detectors
 * (cuda_broken.cu), and each beside it without the mistake. */
#ifndef LLMQ_TESTS_SUPPORT_CUDA_BROKEN_H
#define LLMQ_TESTS_SUPPORT_CUDA_BROKEN_H

#include "kernels/device.h"

LQ_C_BEGIN

typedef struct {
    const char *why, *said; /* said: what the error must hold; NULL: it runs */
    void (*run)(dev *d, float *buf);
} broken_case;
enum { BROKEN_FLOATS = 64 };
extern const broken_case broken_cases[];
extern const size_t broken_n;

/* d [16, 8] += a [16, 32] b [8, 32]^T by one warp's cu_mma_u8s8; all device memory. */
void broken_mma_u8s8(dev *d, int32_t *sums, const uint8_t *a, const int8_t *b);

/* Into buf what a thread reads of a warpgroup's sums before its wait for them. */
void broken_read_early(dev *d, float *buf);

/* A kernel with 256 static bytes of shared memory: how many dynamic ones it is allowed; its launch. */
void broken_allow(dev *d, int bytes);
void broken_roomy(dev *d, float *buf, size_t bytes);

LQ_C_END

#endif
