/* quantize/layer/state.h - the finished part of a quantization, kept next to the output until it is
 * done (base/resume.h).
 *
 *     OUT.resume/state.json        config, recipe, provenance
 *     OUT.resume/choice.json       --bpw: the scheme of every tensor (quantize/mixed/bpw.h)
 *     OUT.resume/own.ids           text that the model wrote for tuning (quantize/tune/tuning_text.h)
 *     OUT.resume/tuning.*          how far tuning is (quantize/tune/checkpoint.h)
 *     OUT.resume/part-00007.llmq   the tensors of one layer */
#ifndef LLMQ_QUANTIZE_LAYER_STATE_H
#define LLMQ_QUANTIZE_LAYER_STATE_H

#include "base/resume.h"
#include "formats/llmq/llmq.h"
#include "quantize/layer/layer.h"

#define QZ_STATE_TO \
    "--to" /* in `what`: the layout that layers are for; those of the same recipe serve any */

typedef struct {
    resume at;
    bool
        apart; /* of another rank than 0: a folder for a while, whose files have no names once they are mapped */
    int64_t n_layers, n_done;
    lqf_file *layers; /* [n_layers]; header NULL: not finished */
} qz_state;

/* Lock the folder, and take the finished layers of an earlier run of the same `what` ({"config",
 * "recipe", "provenance"}: borrowed). restart, shared, errors: those of resume_open. */
lq_status qz_state_open(qz_state *s, const char *out_path, const cJSON *what, int64_t n_layers,
                        bool restart, bool shared, lq_err *err);
static inline bool qz_state_done(const qz_state *s, int64_t layer)
{
    return s->layers[layer].header != NULL;
}
/* Write one layer durably and map it. Errors: LQ_EIO (the disk is full, ...). */
lq_status qz_state_add(qz_state *s, int64_t layer, const qz_layer *l, lq_err *err);
/* The tensors of a finished layer as items; items [plan->n]. LQ_EFORMAT when they do not fit the
 * plan. */
lq_status qz_state_items(const qz_state *s, const qz_plan *plan, int64_t layer, qz_item *items,
                         size_t *n, lq_err *err);
/* Its pages need not stay in memory; they are read again where they are looked at. */
void qz_state_drop(const qz_state *s, int64_t layer);
/* Its reports; reports [plan->n], strings live as long as the state. */
void qz_state_reports(const qz_state *s, int64_t layer, qz_report *reports, size_t *n);
/* The state of a rank that shares another's work: empty, in a folder of resume_open_apart. Errors: LQ_EIO, LQ_ENOMEM. */
lq_status qz_state_apart(qz_state *s, int64_t n_layers, lq_err *err);
/* The finished layers of rank 0, to all ranks. Errors: those of comm.h, LQ_EIO, LQ_ENOMEM. */
lq_status qz_state_share(qz_state *s, comm *ranks, lq_err *err);
/* A file of rank 0's folder that a run goes on from, likewise, if it is there. */
lq_status qz_state_share_file(const qz_state *s, comm *ranks, const char *name, lq_err *err);
/* Unmap; with `remove` also delete the folder. */
void qz_state_close(qz_state *s, bool remove);
/* The output is there: removes what a run of the same `what` left that was killed after its end.
 */
void qz_state_clear(const char *out_path, const cJSON *what);

#endif
