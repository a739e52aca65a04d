/* runtime/model/distance.h - what scores have of the distance of a key from its query: biases (arXiv:1910.10683), or
 * keys and queries of each distance (disentangled attention, arXiv:2006.03654):
 *
 *     q_i . k_j + q_i . K_(i-j) + k_j . Q_(i-j)    K = W_k E, Q = W_q E, E the rows of R_DIST_EMBED, normed
 *
 * (of R_REL a query's addends are made of its row's input: runtime/forward/forward_taps.c).
 * K and Q are made once, when a layer is loaded, by R_DIST_K and R_DIST_Q or by the layer's own R_K and R_Q. */
#ifndef LLMQ_RUNTIME_MODEL_DISTANCE_H
#define LLMQ_RUNTIME_MODEL_DISTANCE_H

#include "runtime/model/model.h"

/* What the model has of them, out of its arena: dist_bias, dist_embed, dist_row. */
lq_status model_load_distances(model *m, lq_err *err);
/* Of a layer whose linears are loaded, of a model with dist_embed: dist_k, dist_q. */
lq_status model_layer_distances(model_layer *l, const model *m, lq_arena *a, pool *p, lq_err *err);

#endif
