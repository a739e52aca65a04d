/* tools/report/plan_quantize.h - what `llmq quantize` would take of this machine, for `llmq plan`. */
#ifndef LLMQ_TOOLS_REPORT_PLAN_QUANTIZE_H
#define LLMQ_TOOLS_REPORT_PLAN_QUANTIZE_H

#include "quantize/job/job.h"

enum { PLAN_METHODS = 8 }; /* at most */

typedef struct {
    const qz_method *method;
    qz_memory memory;
} plan_need;

/* By method as `quantize` takes it without options: 128 windows of 512 tokens, its check. Returns
 * their number; 0: no weights to quantize (they are already, or the model is not understood). */
int plan_quantize(plan_need need[PLAN_METHODS], const src_source *src, int threads);

#endif
