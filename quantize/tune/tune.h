/* quantize/tune/tune.h - end-to-end tuning of a quantized model towards the original.
 *
 * After every tensor has been rounded on its own, scales, norms and codes are trained together on
 * the model's output:
 *
 *     minimize  KL(original || quantized)  over the next-token distributions of calibration text
 *
 * by Adam with a falling step: one factor per group of weights, the norms' weights, and the codes
 * of items that say what rounding left of their weights (quantize/layer/residual.h). Zero points, biases,
 * routers, what is not rounded, embedding and head stay. Formats do not change; tuned norms are stored as
 * f32.
 *
 * Text that the model wrote itself may be added (calib/self_text.h). The last 1/16 of the
 * text is not trained on: it decides whether the result is kept. Memory: one layer in f32 with its
 * gradient (of its experts one at a time), the head in f32, the inputs of all layers for one batch; and in memory or on disk 20
 * bytes per group of weights, 13 per code where they are trained (else they stay in the layers' files), and
 * the original's last hidden states of all tokens (f32).
 *
 * Several ranks share the original's answers and the text held back by windows, a step by tiles of its products
 * (grad_share), and are each done with the same result. Source: arXiv:2407.11062, its second
 * stage (there with the loss of the text, not of a teacher).
 */
#ifndef LLMQ_QUANTIZE_TUNE_TUNE_H
#define LLMQ_QUANTIZE_TUNE_TUNE_H

#include "quantize/layer/state.h"

/* Is the model so small that what is trained stays in memory, where memory is not limited? At most so many weights. */
#define TUNE_SMALL_WEIGHTS ((int64_t)1 << 28)
bool tune_small(const src_source *src);
/* Rates of step 0, 1, ... in parts of the first rate: up over ten steps, then down half a cosine to nothing. */
double tune_rate_at(int step, int steps);
/* Can so many steps, the first at `rate`, move any code? Else they are not trained, with the same result. */
bool tune_moves_codes(int steps, double rate);
/* The steps that are worth their time: 100, on a small model up to 200, the more the smaller it is, and from there
 * on twice as many, of half the windows, up to 1,600 (qz_effort.many);
 * 0 of methods that are not tuned by default, and where there is no backward pass. */
int tune_default_steps(const qz_method *m, const src_source *src);

/* Windows that go through a layer at once: no more than a batch where what layers make of it can be kept. With experts
 * at least a batch: each is stepped as soon as it has gone back through it. */
int64_t tune_chunk(const arch_config *c, int64_t batch, int64_t len, int64_t windows);
/* Can what layers make of a batch be kept? It goes through them at once then, and is not much. */
bool tune_can_keep(const arch_config *c, int64_t batch, int64_t len, int64_t windows);

/* quantize/methods/effort.h has what is usual. */
typedef struct {
    int steps;
    int batch;              /* windows per step */
    const char *spill_dir;  /* folder for the original's hidden states; NULL: in memory */
    const char *states_dir; /* ... for what is trained (quantize/tune/states.h) */
    const char
        *resume_dir;  /* ... for how far training is (quantize/tune/checkpoint.h); NULL: not kept */
    double save_secs; /* between two times that it is kept, or 20 times what that takes */
    lq_err *unkept;   /* why it could not be kept the last time; empty: it was. NULL: not told */
    bool keep;        /* what layers make forward is kept for the way back, where that fits */
    double rate_scale; /* first step, relative to the scale at 4 bits, twice that per bit less */
    double rate_norm;  /* ... of a norm's weight */
    double rate_code;  /* ... of a code's underlying weight, in steps of the grid */
    dev *on;           /* where products are made; NULL: here */
    comm *ranks;       /* that train together, to the same result; NULL: this process alone */
} tune_opts;

/* Tensors that take the place of the plan's entries; N = 0: as it was. */
typedef struct {
    qt_tensor *t;               /* [plan->n] */
    bool kept;                  /* false: the tuned model was no better, nothing changes */
    double kl_before, kl_after; /* mean over the tokens held back; NAN: too few windows to tune */
    int began; /* the step that it went on from, which an earlier run had come to; 0: none */
    int64_t experts,
        idle; /* of all layers; those that got no token, and are as rounding left them */
    lq_arena arena;
    lq_map file; /* where codes are that were trained on disk */
} tune_result;

/* What is learned from: `own` windows of the model's own, then `text` of text. */
typedef struct {
    const int32_t *ids; /* [own + text][len] */
    int64_t own, text, len;
} tune_text;

/* The model is one that grad_covers (calib/backward.h). state: every layer is finished. When it is interrupted it keeps how
 * far it is; what cannot be kept because the disk is full fails nothing, o->unkept says so. Errors: LQ_ENOMEM, LQ_EINTR, those of reading the source and of comm.h. */
lq_status tune_run(tune_result *r, src_source *src, const qz_plan *plan, const qz_state *state,
                   const tune_text *text, const tune_opts *o, pool *p, const lq_job *job,
                   lq_err *err);
/* Its pages need not stay in memory. */
void tune_drop(const tune_result *r);
void tune_free(tune_result *r);

#endif
