/* tools/report/quantize_stats.h - `quantize --stats-only` and `--stats`: statistics as files (calib/stats_file.h). */
#ifndef LLMQ_TOOLS_REPORT_QUANTIZE_STATS_H
#define LLMQ_TOOLS_REPORT_QUANTIZE_STATS_H

#include "calib/stats_file.h"
#include "quantize/methods/method.h"

/* shard: "i/N", "N", or NULL: as the environment says, else all. Errors: LQ_EUSAGE, those of stats_make. */
lq_status quantize_stats_make(const char *out, src_source *src, const cal_samples *samples,
                              const qz_opts *q, const char *shard, pool *p, const lq_job *job,
                              lq_err *err);
/* Files of this source, text and kind of statistics. Errors: LQ_EVALUE, those of stats_open. */
lq_status quantize_stats_open(stats_set **s, const char *const *paths, int n, const src_source *src,
                              const cal_samples *samples, const qz_opts *q, lq_err *err);

#endif
