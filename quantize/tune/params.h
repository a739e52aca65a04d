/* quantize/tune/params.h - a layer while a model is tuned: what of it is trained, and what is beside that.
 *
 * Of the f32 weights and their gradients those of one layer are in memory; of a layer with experts those of its
 * attention, and of one expert at a time: an expert is stepped as soon as its gradients are complete. One that no row
 * is sent to in a step is not looked at in it, so one that never gets any stays as rounding left it. */
#ifndef LLMQ_QUANTIZE_TUNE_PARAMS_H
#define LLMQ_QUANTIZE_TUNE_PARAMS_H

#include "calib/dense_layer.h"
#include "quantize/layer/state.h"
#include "quantize/tune/checkpoint.h"
#include "quantize/tune/states.h"
#include "quantize/tune/tune.h"

typedef struct {
    const plan_entry *e; /* NULL: it is as in the source */
    int64_t row0;        /* of e's tensor, which may be that of all experts */
    bool rounded;
    tune_state w;    /* where rounded */
    qt_tensor fixed; /* else */
    const float *bias;
} tune_linear;

enum { TUNE_EXPERT_LINEARS = GRAD_BUFFERS - GRAD_LINEARS };
typedef struct {
    tune_linear linear[TUNE_EXPERT_LINEARS]; /* gate, up, down */
    int64_t steps;                           /* that looked at it */
} tune_expert;

typedef struct {
    tune_linear linear[GRAD_LINEARS];
    const plan_entry *norm_e[GRAD_NORMS];
    tune_vector norm[GRAD_NORMS]; /* n = 0: none, or in `beside` */
    grad_layer beside;   /* what is not trained: biases of norms, heads' own, sinks, routers */
    tune_expert *expert; /* [experts + 1], the last the shared MLP; NULL: none */
} layer_params;

typedef struct {
    src_source *src;
    const qz_plan *plan;
    const qz_state *state;
    comm *ranks; /* that train together: each steps its rows (grad_share) */
    pool *p;
    const arch_config *c; /* the source's */
    int64_t len;          /* tokens of a window */
    qz_item *items;       /* [plan->n] scratch */
    float *W[GRAD_BUFFERS], *dW[GRAD_BUFFERS];
    tune_states states;
    layer_params *layer; /* [layers] */
    lq_arena arena;
    /* Of the layer at work: who has its experts, and the step, in a pass that goes back; else NULL. */
    grad_experts experts;
    layer_params *at;
    const tune_step *step;
} tune_params;

/* states_dir: as tune_opts has it. Errors: LQ_ENOMEM, LQ_EIO. */
lq_status tune_params_open(tune_params *t, const char *states_dir, lq_err *err);
void tune_params_close(tune_params *t);
/* A layer, as rounding left it. Errors: those of reading the source, of tune_states_add. */
lq_status tune_params_load(tune_params *t, int64_t layer, lq_err *err);
/* A norm or bias: that of items where folding changed it, else the source's; n values. NULL: none. */
lq_status tune_params_vector(tune_params *t, const float **v, int64_t *n, arch_role r,
                             int64_t layer, bool bias, size_t n_items, lq_err *err);
/* The layer as it is now, its weights in t->W. step: NULL, or of the pass back that it goes through, whose gradients
 * `out` takes; l and out stay until the next call. Errors: LQ_EIO. */
lq_status tune_params_expand(grad_layer *l, grad_out *out, tune_params *t, int64_t layer,
                             const tune_step *step, lq_err *err);
/* Against the gradients of its weights and norms; its experts were stepped on the way. Errors: LQ_EIO, those of comm.h. */
lq_status tune_params_step(tune_params *t, int64_t layer, const tune_step *step, lq_err *err);
/* All that training changes of the layers, and of a vector. Errors: those of checkpoint_piece, LQ_EIO. */
lq_status tune_params_pieces(tune_params *t, checkpoint *c, lq_err *err);
lq_status tune_vector_pieces(const tune_vector *v, checkpoint *c, lq_err *err);
/* What became of all layers, and of a vector. Errors: LQ_ENOMEM, LQ_EIO. */
lq_status tune_params_store(tune_result *r, tune_params *t, lq_err *err);
lq_status tune_params_store_vector(tune_result *r, const tune_params *t, const plan_entry *e,
                                   const tune_vector *v, lq_err *err);

#endif
