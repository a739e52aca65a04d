/* tools/report/quantize_stats.h - `quantize --stats-only` and `--stats`: statistics as files (calib/stats_file.h). */
#ifndef LLMQ_TOOLS_REPORT_QUANTIZE_STATS_H
#define LLMQ_TOOLS_REPORT_QUANTIZE_STATS_H

#include "calib/stats_file.h"
#include "quantize/methods/method.h"
#include "tools/cli/opt.h"

/* What the sums are of. */
typedef struct {
    const src_source *src; /* as it is quantized */
    bool gguf_form;        /* ... and that is src_gguf_form's */
    const cal_samples *samples;
    const qz_opts *q;
} stats_subject;

/* shard: "i/N", "N", or NULL: as the environment says, else all. leaves: parts of the text. Errors: LQ_EUSAGE, those of
 * stats_make. */
lq_status quantize_stats_make(const char *out, src_source *src, const stats_subject *of,
                              const char *shard, int64_t leaves, pool *p, const cmd_ctx *c,
                              lq_err *err);
/* Files that are of this. Errors: LQ_EVALUE, those of stats_open. */
lq_status quantize_stats_open(stats_set **s, const char *const *paths, int n,
                              const stats_subject *of, lq_err *err);

#endif
