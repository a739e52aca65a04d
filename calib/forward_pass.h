/* calib/forward_pass.h - calibration text through a model, one layer at a time.
 *
 * Holds the hidden state of every calibration token before the next layer. For each layer the
 * caller first takes statistics with the weights as they are, then quantizes them, then advances
 * the state through the quantized layer, so that later layers see the inputs they will have. Or, at
 * half the work, it goes through the layer once in stages (cal_stage): the linears that read one input are
 * quantized before the state goes on from them, so that later linears of the layer too see the
 * inputs they will have.
 *
 * Arithmetic is f32; windows are cut into fixed chunks, so nothing depends on the number of threads
 * or on where the states are. Memory: the hidden states (or one chunk of them, the rest in a file),
 * one chunk's buffers, and the statistics asked for; in stages also what attention made for each token (what gate and up
 * make too with keep_rows), and where an original goes along its states. */
#ifndef LLMQ_CALIB_FORWARD_PASS_H
#define LLMQ_CALIB_FORWARD_PASS_H

#include "base/comm.h"
#include "calib/samples.h"
#include "calib/stats.h"
#include "runtime/forward/forward.h"

typedef struct cal_pass cal_pass;
typedef struct {
    const char *spill_dir; /* hidden states go into an unnamed file there; NULL: into memory */
    bool want_h;
    bool staged; /* cal_stage will be called, where layers allow it; cal_statistics for others */
    bool looks;  /* cal_glance will be called for these */
    bool
        match; /* cal_stage is told what to compare with (cal_original): the original's states go along. Not
                      where layers have no points */
    bool
        keep_rows; /* what is read at FWD_AT_DOWN is kept until the state goes on from there; else it is made again */
    bool logits;      /* cal_logits will be called: the head is loaded */
    float outlier;    /* cal_stats.limit */
    bool all_experts; /* no statistics for CAL_EXPERT_IN: CAL_MLP's, of all tokens, serve. What goes
                         on is still routed */
    bool sums;        /* statistics stay sums: cal_stats_finish is the caller's */
    float *(*weight)
        [CAL_N_SHARED]; /* fisher.weight, of these samples: cal_stats.weight of each layer's sites;
                                       borrowed. NULL: none */
    dev *on;            /* products and attention of layers are done there, and H is summed, but an
                         expert's; NULL: here */
    comm *
        ranks; /* the windows are shared out among these, which all make the same calls; each holds the states of its
                    own, and the statistics are alike but H of experts (calib/share.h). NULL: one process */
    /* Called once with what is outside the layers, before the samples are embedded: it may put
     * other weights there. NULL: the source's. */
    lq_status (*frame)(void *user, model *m, lq_err *err);
    void *user;
} cal_opts;

/* Loads what is outside the layers and embeds the samples. One chunk of states takes cal_chunk
 * tokens of hidden floats.
 * The source must stay open. Errors: those of model_load_frame, LQ_EIO (spill file), LQ_ENOMEM. */
lq_status cal_open(cal_pass **r, src_source *src, const cal_samples *samples, const cal_opts *o,
                   pool *p, lq_err *err);
void cal_close(cal_pass *r);
int64_t cal_chunk(int64_t n, int64_t len); /* tokens, of n windows */
const model *cal_model(const cal_pass *r);
/* Statistics of `l`'s inputs: of all sites when `first` is 0 (the experts' excepted), and of
 * experts first .. first + n. The state stays, and what is found of an expert does not depend on
 * first and n, so a layer whose experts' statistics do not fit in memory at once is looked at
 * several times. With all_experts CAL_EXPERT_IN stays empty: its statistics are CAL_MLP's. Of a layer that has
 * points what stages have looked at stays empty. st
 * starts zeroed and is reused from call to call. Errors: LQ_EVALUE (an input of a linear that is
 * not finite: names layer and role), LQ_EINTR, LQ_EIO, LQ_ENOMEM. */
lq_status cal_statistics(cal_pass *r, cal_layer_stats *st, int64_t layer, const model_layer *l,
                         int64_t first, int64_t n, const lq_job *job, lq_err *err);
/* The same of what the layer has once, of every CAL_GLANCE-th chunk: enough to choose scales by. */
enum { CAL_GLANCE = 4 };
lq_status cal_glance(cal_pass *r, cal_layer_stats *st, int64_t layer, const model_layer *l,
                     const lq_job *job, lq_err *err);
/* With cal_opts.match: the original's states through its layer, of those that no cal_stage goes through to the end, and after
 * all of its stages. Else nothing.
 * Errors: those of cal_advance. */
lq_status cal_follow(cal_pass *r, int64_t layer, const model_layer *own, const lq_job *job,
                     lq_err *err);
/* State := layer(state). */
lq_status cal_advance(cal_pass *r, int64_t layer, const model_layer *l, const lq_job *job,
                      lq_err *err);
/* What rows at a point are compared with: those of the original, whose states go through its own layer. A row's d is
 *     x0 / cols - x                         at FWD_AT_QKV and FWD_AT_MLP: x0 is the original's row, x that of the layer at work
 *     (x0 / cols - x) W^T + (s0 - s) / scale    at FWD_AT_O and FWD_AT_DOWN: s0 and s are the states that the outputs join
 * With M = mean d x^T (calib/stats.h) and H the weights W + W M / H, and W + M / H, come nearest to the original's
 * outputs, and states, where x goes in: arXiv:2504.09629 (QEP), arXiv:2504.02692 (GPTAQ). */
typedef struct {
    const model_layer *own;
    bool match; /* d is wanted */
    const float
        *cols; /* [K]: what the linear's columns were multiplied with (folding); NULL: nothing */
    const float *W; /* [hidden,K]: the linear, with them */
    float scale;    /* fwd_join_scale; 0: outputs alone are compared */
} cal_original;

/* Does a branch's last linear read there, so that outputs are compared? */
static inline bool cal_ends_branch(fwd_point at) { return at == FWD_AT_O || at == FWD_AT_DOWN; }

/* The layer's stages (runtime/forward/forward.h), where fwd_has_points: from its first point to FWD_AT_END, each
 * once, or before experts to its last point. The state goes on to `at`, with the linears of the points before as `l` has them then; st
 * becomes the statistics of what is read there, and of nothing else (NULL with FWD_AT_END). by: with cal_opts.match alone. Errors:
 * cal_statistics's. */
lq_status cal_stage(cal_pass *r, cal_layer_stats *st, int64_t layer, const model_layer *l,
                    const cal_original *by, fwd_point at, const lq_job *job, lq_err *err);
/* Floats of what a token's linears read at a point at most, and of those that are kept for every token between
 * stages. */
int64_t cal_stage_width(const arch_config *c);
int64_t cal_kept_width(const arch_config *c, bool keep_rows);
/* keep_rows where memory is not limited: of so many tokens they take no more than 1 GiB. */
bool cal_keeps_rows(const arch_config *c, int64_t tokens);
/* With cal_opts.match: those of a chunk's token that d takes. */
int64_t cal_match_width(const arch_config *c);
/* Once the state is after the last layer, of one process: logits [n, vocab] of positions from .. from + n of a
 * window. */
enum { CAL_LOGIT_ROWS = 512 }; /* n at most */
lq_status cal_logits(cal_pass *r, float *logits, int64_t window, int64_t from, int64_t n,
                     lq_err *err);

#endif
