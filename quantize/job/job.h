/* quantize/job/job.h - a model from a source to a .llmq file, layer by layer.
 *
 *     source -> plan -> for each layer: statistics -> rounding -> keep -> advance -> write
 *
 * Memory: one layer, its statistics, and the hidden states of the calibration tokens; never the
 * whole model. It is known beforehand (quantize/job/memory.h); with a memory limit the states go to
 * disk and a layer's experts are measured a few at a time (the layer runs again for the next).
 * Pages of the mapped source are dropped once they are read.
 *
 * Finished layers are kept in OUT.resume/ until the whole file is written (quantize/layer/state.h),
 * so the disk holds the result twice for a moment; methods without calibration write each tensor
 * straight into the file. The result is compared with the source (quantize/job/check.h) before it
 * is written, and its provenance records the figures. Its bytes depend on source, options,
 * calibration tokens and kernels only: not on threads, ranks, interruptions, memory limit or paths. */
#ifndef LLMQ_QUANTIZE_JOB_JOB_H
#define LLMQ_QUANTIZE_JOB_JOB_H

#include "base/comm.h"
#include "calib/stats_file.h"
#include "quantize/job/check.h"
#include "quantize/job/memory.h"
#include "quantize/job/progress.h"

typedef struct {
    const qz_opts *o;
    const cal_samples *samples; /* where qz_calibrated(o) */
    uint64_t seed;              /* that chose them */
    int64_t self_windows;       /* more of their length, that the source writes itself for tuning */
    bool self_asked;     /* a source that cannot write (no finite logits) is an error; else tuning
                            does without */
    bool reproducible;   /* kernels are not recorded: all that may run give the same bytes,
                            which the caller sees to */
    size_t memory_limit; /* bytes; 0: none */
    double speed; /* of this machine (quantize/job/probe.h): the time is foretold by it; 0: not */
    bool resume;  /* an output that is what this run would make is left alone */
    bool keep_other;      /* with resume: an output of another source or recipe is not replaced */
    bool restart;         /* do not go on from what an earlier run finished */
    const char *to;       /* layout that the output will be converted to; NULL: none */
    const char *state_at; /* finished layers are kept next to this name; NULL: to the output's */
    const cal_samples *check; /* windows for the check at the end; NULL: none */
    const uint8_t *tokenizer; /* tokenizer.blob to carry, or NULL; tok_compile's output */
    size_t tokenizer_bytes;
    comm *
        ranks; /* they share the work: all run it alike, on the same source; rank 0 has the files. NULL: one */
    /* Without samples and check: only the layers of this share (from 0) of so many are made, into OUT.resume, where a
     * run without shards finds them; 0: all, and the file. */
    int shard, n_shards;
    const stats_set *stats; /* of the source's inputs, instead of text through what is rounded */
    plan_voice voice;
    progress_view view; /* of progress; show NULL: it is reported to the lq_job */
} qz_job;

typedef struct {
    qz_report *reports; /* of every tensor that was quantized, in file order */
    size_t n_reports;
    size_t bytes_in, bytes_out; /* of tensors in the source; of the file */
    double bpw;                 /* of the linears of the layers */
    double bpw_model;           /* of all tensors */
    double predicted;           /* --bpw: KL divergence to the source; NAN: not asked for */
    int resumed_steps;          /* of tuning, which an earlier run had done */
    bool tuned; /* and kept; the KL divergence to the source on windows held back: */
    double kl_before, kl_after;    /* NAN: not measured */
    int64_t idle_experts;          /* that got no token in tuning: as rounding left them */
    int64_t resumed;               /* layers that were finished before; -1: the output was */
    double phase_secs[PROGRESS_N]; /* where the time went */
    qz_memory memory;              /* as predicted */
    double predicted_secs;         /* NAN: not foretold */
    qz_check check;                /* windows = 0: not made */
    qz_check before;               /* the same of the file whose schemes these are (qz_opts.like) */
    lq_arena arena;
} qz_result;

/* What j would take of memory and disk, of samples and check by their numbers and lengths alone.
 * Errors: LQ_EUSAGE (more than the limit). */
lq_status qz_job_memory(qz_memory *n, const qz_job *j, const qz_plan *plan, int threads,
                        lq_err *err);

/* ... and of time, in seconds of each kind of phase; j->speed is known. memory: as it was found for j. Errors:
 * LQ_ENOMEM. */
lq_status qz_job_seconds(double secs[PROGRESS_N], const qz_job *j, const qz_plan *plan,
                         const qz_memory *memory, lq_err *err);

/* Errors: those of the plan and of qz_job_memory; LQ_EVALUE (NaN or Inf in a weight, by name), LQ_EIO
 * (state stays for a repeated run; also: the source changed meanwhile), LQ_EINTR (the same),
 * LQ_EBUSY, LQ_EUSAGE (quantize/layer/state.h; keep_other), LQ_ENOMEM. */
lq_status qz_run(qz_result *r, src_source *src, const char *out_path, const qz_job *j, pool *p,
                 const lq_job *job, lq_err *err);
/* Bytes and bits per weight of the result that is at `path`, in any format. Errors: those of opening it. */
lq_status qz_count(qz_result *r, const char *path, lq_err *err);
void qz_result_free(qz_result *r);

#endif
