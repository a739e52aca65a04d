/* runtime/model/absorb.h - the two halves of R_KV_B as the factors that absorbed MLA multiplies by
 * (runtime/forward/forward_mla.c): of each head its rows of keys, turned, and its rows of values.
 * Dense: weights that are dense keep their type, of codes they are f32, so that a product with either
 * is exact whatever the codes are, or, where `half` allows, f16, to nearest. */
#ifndef LLMQ_RUNTIME_MODEL_ABSORB_H
#define LLMQ_RUNTIME_MODEL_ABSORB_H

#include "runtime/model/model.h"

/* Of each head: k [kv_lora, nope_dims], v [v_dim, kv_lora]. */
typedef struct model_absorbed {
    mm_weight *k, *v; /* [heads] */
} model_absorbed;

/* Out of a, which takes model_absorb_bytes at most; tmp, another or the same, model_absorb_scratch
 * besides, given back where it is another. kv_b, of c's heads, is not needed afterwards. Errors:
 * LQ_ENOMEM. */
lq_status model_absorb(model_absorbed *out, const arch_config *c, const model_linear *kv_b,
                       bool half, lq_arena *a, lq_arena *tmp, pool *p, lq_err *err);
size_t model_absorb_bytes(const arch_config *c);
size_t model_absorb_scratch(const arch_config *c);
/* Bytes of the two factors of one head, tiled, of an R_KV_B that is of this scheme. */
void model_absorb_head(size_t *k, size_t *v, const arch_config *c, const qt_scheme *kv_b,
                       bool half);

#endif
