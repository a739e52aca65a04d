/* quantize/layer/apply.h - replaces the source's tensors by finished layers, to run them. */
#ifndef LLMQ_QUANTIZE_LAYER_APPLY_H
#define LLMQ_QUANTIZE_LAYER_APPLY_H

#include "quantize/layer/layer.h"

/* The layer as the quantized model will run it: `l` with the finished tensors in place of the
 * source's. What is packed goes into the arena. Errors: LQ_ENOMEM, those of mm_pack. */
lq_status qz_layer_apply(model_layer *l, const arch_config *c, const qz_item *items, size_t n,
                         lq_arena *a, pool *p, lq_err *err);
/* The same for what is outside the layers: embeddings, norms, projections, head. A tied head is the
 * embedding. What is packed goes into m->arena; m's embedding reads the items. */
lq_status qz_frame_apply(model *m, const arch_config *c, const qz_item *items, size_t n, pool *p,
                         lq_err *err);

#endif
