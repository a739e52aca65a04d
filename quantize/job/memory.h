/* quantize/job/memory.h - how much memory and disk a quantization takes, from shapes and options alone.
 *
 * The peak is that of the phase that needs most (quantize/job/progress.h names them): what is held
 * during it, plus the largest layer's weights, statistics and scratch. Mapped pages count while
 * they are in use. Measured peaks are 0.8 to 1.25 times this (tests/e2e/test_quantize_need.py).
 *
 * Three things reduce it: hidden states of the calibration text go to disk, of large models always what is trained, and a
 * layer's experts are measured a few at a time. The result does not depend on any. */
#ifndef LLMQ_QUANTIZE_JOB_MEMORY_H
#define LLMQ_QUANTIZE_JOB_MEMORY_H

#include "quantize/job/progress.h"

/* Bytes of what is no phase's. */
enum {
    QZ_PROGRAM = 13 << 20,   /* code, libraries, plan, reports */
    QZ_WORD = 96,            /* of the vocabulary: the tokenizer, compiled */
    QZ_PER_THREAD = 1 << 20, /* stacks */
    QZ_BLAS = 8 << 20        /* per thread: its buffers */
};

typedef struct {
    const qz_plan *plan;
    const qz_opts *o;
    int64_t windows, len;             /* of calibration's text; 0: none */
    int64_t self_windows;             /* that the model writes for tuning (calib/self_text.h) */
    int64_t curvature_windows;        /* auto's; 0: none */
    int64_t check_windows, check_len; /* 0: no check */
    int ranks;                        /* that share the work: what the one that has most takes */
    int threads;
    bool trains_codes; /* tuning trains codes as well as scales */
    bool small;        /* tune_small */
} memory_work;

typedef struct {
    size_t rss;          /* the peak, in bytes */
    size_t least;        /* the smallest limit that will do; any larger one does too */
    progress_kind phase; /* that has the peak */
    bool spill;          /* hidden states go to disk */
    bool keep_rows;      /* what gate and up make is kept between stages (calib/forward_pass.h) */
    bool states;         /* and what is trained */
    size_t experts;      /* bytes for H of experts at once */
    size_t disk;         /* next to the output while it is made: finished layers and states */
} qz_memory;

/* Within `limit` bytes; 0: no limit. n is filled in either case. Errors: LQ_EUSAGE (the limit is
 * too small: names the least that will do, and what for). */
lq_status qz_memory_of(qz_memory *n, const memory_work *w, size_t limit, lq_err *err);

#endif
