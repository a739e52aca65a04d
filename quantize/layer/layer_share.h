/* quantize/layer/layer_share.h - how rows to be rounded are dealt out over ranks; see layer_share.c. */
#ifndef LLMQ_QUANTIZE_LAYER_LAYER_SHARE_H
#define LLMQ_QUANTIZE_LAYER_LAYER_SHARE_H

#include "quantize/methods/gptq.h"

enum { LAYER_SHARE_ROWS = GPTQ_BATCH }; /* of a piece */

/* Whose is what is `at` of `all` of the work, in the order of pieces? */
int layer_dealt(double at, double all, int size);

#endif
