/* kernels/attn_int4.h - the writer of a cached row of 4 bits (attn.h). */
#ifndef LLMQ_KERNELS_ATTN_INT4_H
#define LLMQ_KERNELS_ATTN_INT4_H

#include "kernels/core/operands.h"

/* D numbers into a row of attn_kv_row_bytes(KV_I4, D). One with a NaN or infinity is all NaN. */
void attn_int4_write(uint8_t *row, const float *x, int64_t D);

#endif
