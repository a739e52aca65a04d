/* tools/report/quantize_report.h - what `llmq quantize` says: the table or the JSON of its end, the plan
 * of
 * --dry-run, and the job's messages. All on stdout but the messages. */
#ifndef LLMQ_TOOLS_REPORT_QUANTIZE_REPORT_H
#define LLMQ_TOOLS_REPORT_QUANTIZE_REPORT_H

#include "quantize/job/job.h"
#include "tools/cli/opt.h"

/* Of the run besides its result; borrowed. */
typedef struct {
    const char *out, *method, *source;
    double seconds;
} qrep_run;

/* Messages of a job go to stderr as warnings; its progress too. */
extern const plan_voice qrep_voice;
extern const progress_view qrep_view;

/* What would become of every tensor, and what it would take; out_path may be NULL. Of samples and
 * check only numbers and lengths count. Errors: those of the plan and of qz_job_memory. */
lq_status qrep_plan(const src_source *src, const qz_job *j, const char *out_path, int threads,
                    const cmd_ctx *c, lq_err *err);

/* All of the result as one document; NULL: out of memory. Caller frees. */
cJSON *qrep_json(const qz_result *r, const qrep_run *run);
void qrep_print_text(const qz_result *r, const qrep_run *run);

#endif
