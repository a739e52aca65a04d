/* quantize/layer/report.h - the report of one tensor, and its JSON: numbers have 17 digits, so that
 * a resumed run reports the same as an uninterrupted one. */
#ifndef LLMQ_QUANTIZE_LAYER_REPORT_H
#define LLMQ_QUANTIZE_LAYER_REPORT_H

#include "calib/stats.h"

enum { QZ_TOP = 4 };

typedef struct {
    const char *name;
    arch_role role;
    int64_t layer, expert; /* -1: none */
    int64_t tokens;        /* that the statistics are of; of stacked experts the fewest; -1: none */
    char scheme[40], note[120];
    int64_t elements;
    size_t bytes;
    double rmse, loss, loss_rtn; /* losses: NAN without statistics */
    double effect; /* --bpw: predicted (quantize/mixed/bpw.h); NAN: not chosen by it */
    /* Inputs as calibration saw them, before folding: the largest magnitude, the mean one, and the
     * channels that reach highest. 0: no statistics. Of stacked experts: of the one whose inputs
     * reach highest. */
    double in_max, in_mean;
    int64_t top[QZ_TOP];
    double top_max[QZ_TOP]; /* falling; 0: no more */
    /* What folding divided the inputs by: factors, and the exponent that was chosen
     * (quantize/methods/awq.h); fold_hi = 0: nothing. Of stacked experts the range of all. */
    double alpha, fold_lo, fold_hi;
} qz_report;

/* Take note of a matrix's inputs, of its factors [K]. */
void qz_report_inputs(qz_report *r, const cal_stats *s);
void qz_report_fold(qz_report *r, const float *factors, int64_t K, double alpha);

/* An object, NULL: out of memory; and back: false where it is none (name lives as long as j). */
typedef struct cJSON cJSON;
cJSON *qz_report_json(const qz_report *r);
bool qz_report_read(qz_report *r, const cJSON *j);

#endif
