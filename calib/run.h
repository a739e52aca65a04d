/* calib/run.h - calibration text through a model, one layer at a time.
 *
 * Holds the hidden state of every calibration token before the next layer. For each layer the
 * caller first takes statistics with the weights as they are, then quantizes them, then advances
 * the state through the quantized layer, so that later layers see the inputs they will have.
 *
 * Arithmetic is f32; windows are cut into fixed chunks, so nothing depends on the number of threads
 * or on the memory limit. Memory: the hidden states (or one chunk of them, the rest in a file when
 * they exceed the limit), one chunk's buffers, and the statistics asked for. */
#ifndef LLMQ_CALIB_RUN_H
#define LLMQ_CALIB_RUN_H

#include "calib/samples.h"
#include "calib/stats.h"
#include "runtime/model.h"

/* Where inputs are looked at; linears of one site share their input. */
typedef enum { CAL_ATTN, CAL_O, CAL_MLP, CAL_DOWN, CAL_N_SITES } cal_site;
bool cal_site_of(cal_site *site, arch_role r); /* false: not a linear of a layer */

typedef struct cal_run cal_run;
typedef struct {
    size_t state_limit;    /* bytes of hidden states to keep in memory; 0: all */
    const char *spill_dir; /* where the rest goes (an unnamed file); NULL: no limit */
    bool want_h;
} cal_opts;

/* Loads embedding, final norm and head (not the layers) and embeds the samples, which are copied.
 * The source must stay open. Errors: those of model_load_frame, LQ_EIO (spill file), LQ_ENOMEM. */
lq_status cal_open(cal_run **r, src_source *src, const cal_samples *samples, const cal_opts *o,
                   pool *p, lq_err *err);
void cal_close(cal_run *r);
const model *cal_model(const cal_run *r);
/* Statistics of `l`'s inputs; st are reset first. The state stays. */
lq_status cal_look(cal_run *r, cal_stats st[CAL_N_SITES], int64_t layer, const model_layer *l,
                   const lq_job *job, lq_err *err);
/* State := layer(state). */
lq_status cal_advance(cal_run *r, int64_t layer, const model_layer *l, const lq_job *job,
                      lq_err *err);

#endif
