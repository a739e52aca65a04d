/* quantize/job/job_impl.h - the state of a run, shared by the files of the job; only they include
 * it.
 *
 *     job.c         the run from end to end, and what goes over the whole model
 *     job_record.c  recipe and provenance; whether the output exists already
 *     job_layers.c  layer after layer: statistics, rounding, keeping what is finished
 *     job_write.c   the file
 *     job_ranks.c   what several ranks agree on, and send each other beside the layers
 *     job_report.c  the result, for the caller */
#ifndef LLMQ_QUANTIZE_JOB_JOB_IMPL_H
#define LLMQ_QUANTIZE_JOB_JOB_IMPL_H

#include <cjson/cJSON.h>

#include "calib/forward_pass.h"
#include "quantize/job/job.h"
#include "quantize/layer/state.h"
#include "quantize/mixed/bpw.h"
#include "quantize/tune/tuning_text.h"

typedef struct {
    const qz_job *j;
    src_source *src;
    const char *out_path;
    pool *p;
    const lq_job *job; /* the meter's */
    bool codes;        /* tuning trains codes */
    qz_progress progress;
    qz_plan plan;
    qz_memory memory;
    qz_state state;
    qz_report *reports; /* [plan.n] of tensors that were made while the file was written */
    size_t n_reports;
    cal_pass *cal;
    cal_layer_stats st;
    fisher curvature;  /* G NULL: not wanted, or not to be had */
    bpw_choice bits;   /* --bpw */
    tuning_text text;  /* for tuning */
    tune_result tuned; /* kept: its tensors replace the layers' */
    cJSON *recipe, *provenance;
} job_run;

/* ---- job_record.c ---- */
/* r->recipe, r->provenance, and *what, which borrows them: everything that the tensors of the result
 * follow from. Errors: LQ_ENOMEM. */
lq_status job_describe(job_run *r, cJSON **what, lq_err *err);
/* Where the record says what the model wrote itself, or NULL. */
cJSON *job_self_record(const cJSON *provenance);
/* With --resume: is OUT what this run would make? Its check is read. */
bool job_already_there(const job_run *r, qz_check *check);
/* Is OUT, if it is there, at least of this source and recipe? LQ_EUSAGE; those of lqf_open. */
lq_status job_check_other(const job_run *r, lq_err *err);

/* ---- job_layers.c ---- */
/* The last layer that still needs the hidden states of calibration; -1: none. */
int64_t job_last_calibrated(const job_run *r);
/* Makes and keeps what is not finished. Errors: those of the statistics, rounding, the state. */
lq_status job_layers(job_run *r, lq_err *err);

/* ---- job_write.c ---- */
/* Without calibration a tensor is made faster than a record of it could be written and read back,
 * so there are no finished layers: it goes from the source to the file. */
static inline bool job_at_once(const job_run *r)
{
    return !r->j->samples && !(r->j->check && r->j->check->n); /* a check wants layers */
}
static inline bool job_in_shard(const job_run *r, int64_t layer)
{
    return layer % r->j->n_shards == r->j->shard;
}
lq_status job_write(job_run *r, lq_err *err);
/* The name next to which the state is. */
static inline const char *job_state_at(const job_run *r)
{
    return r->j->state_at ? r->j->state_at : r->out_path;
}
/* The layers of qz_job.shard, to the state. */
lq_status job_make_shard(job_run *r, lq_err *err);

/* ---- job_ranks.c ---- */
static inline bool job_writes(const job_run *r) { return comm_rank(r->j->ranks) == 0; }
/* s, or if it is LQ_OK what another rank has instead of it: then that rank says what it was. */
lq_status job_agree(const job_run *r, lq_status s, lq_err *err);
/* Have all ranks the tensors and windows that exchanges are counted by? */
lq_status job_agree_sizes(const job_run *r, lq_err *err);
/* Ranks of other numbers of threads may do with other memory for experts: as many at once as the least allows. */
lq_status job_agree_experts(job_run *r, lq_err *err);
/* Each rank has read its share of the source: all know what was found. */
lq_status job_share_scan(const job_run *r, lq_err *err);
/* Are all ranks' source, options and kernels the same? */
lq_status job_all_alike(const job_run *r, const cJSON *what, lq_err *err);
/* Rank 0's answer, to all. */
lq_status job_share_answer(const job_run *r, bool *yes, lq_err *err);
/* The state: rank 0's, the others' beside it, with what an earlier run left. */
lq_status job_open_state(job_run *r, const cJSON *what, lq_err *err);
/* The rank that makes the plan's entry number i among those that are quantized, where none needs statistics. */
static inline int job_maker(const job_run *r, size_t i)
{
    return (int)(i % (size_t)comm_size(r->j->ranks));
}
/* A tensor that was made, to rank 0; and there, from its maker. */
lq_status job_send_made(const job_run *r, const qz_layer *made, lq_err *err);
lq_status job_get_made(const job_run *r, qz_layer *made, const plan_entry *e, int from,
                       lq_err *err);

/* ---- job_report.c ---- */
/* Errors: LQ_ENOMEM, qz_count's. */
lq_status job_collect(const job_run *r, qz_result *out, lq_err *err);

#endif
