/* calib/stats_file.h - statistics of a model's inputs in files, made apart and put together: for clusters without MPI.
 *
 * The windows of calibration are cut into parts (`leaves`), whatever the number of shards; a shard has some of them,
 * and each part's sums by itself. Whoever reads adds them in the order of parts, so that any number of shards gives the same sums.
 * They are of the unquantized model: each layer's inputs come from layers that nobody has rounded yet.
 *
 * A file is safetensors:
 *
 *     about                         u8: JSON {"format", "leaves", "have": [parts], "record": what it was made of}
 *     PART.LAYER.SITE.EXPERT.h      f32 [K (K + 1) / 2]: sum of x x^T, rows of the lower triangle; where it is wanted
 *     PART.LAYER.SITE.EXPERT.sums   f64 [2 K]: of |x|, of x^2
 *     PART.LAYER.SITE.EXPERT.max    f32 [K]
 *     PART.LAYER.SITE.EXPERT.count  i64 [K + 1]: tokens that reached the limit; tokens
 *     PART.LAYER.SITE.EXPERT.xxh3   u8 [16]: hash of the bytes of h, sums, max, count
 *
 * SITE: a cal_site; EXPERT: -1 of what a layer has once. In a merged file PART is 0 and `leaves` is 1. */
#ifndef LLMQ_CALIB_STATS_FILE_H
#define LLMQ_CALIB_STATS_FILE_H

#include "calib/samples.h"
#include "calib/stats.h"
#include "formats/source/source.h"

enum { STATS_LEAVES = 16, STATS_MOST_LEAVES = 256 }; /* usual; at most */
#define STATS_BEGIN ".count\""                       /* in the first 256 bytes of a file */

typedef struct cJSON cJSON;

/* Shard `shard` of `n` (from 0; at most as many as there are parts) of the samples, to a file. record: kept with it, borrowed. Errors:
 * those of cal_open and cal_statistics, LQ_EUSAGE (more shards than parts), LQ_EIO. */
typedef struct {
    int shard, n;
    int64_t leaves; /* parts that the text is cut into, where it has as many windows */
    bool want_h;
    float outlier;
    const cJSON *record;
} stats_make_opts;
lq_status stats_make(const char *path, src_source *src, const cal_samples *samples,
                     const stats_make_opts *o, pool *p, const lq_job *job, lq_err *err);

/* Files that have all parts together. */
typedef struct stats_set stats_set;
/* paths: borrowed until stats_close. Errors: those of reading; LQ_EVALUE: a part is missing, or twice there, or the
 * files are not of one record. */
lq_status stats_open(stats_set **s, const char *const *paths, int n, lq_err *err);
void stats_close(stats_set *s);
const cJSON *stats_record(const stats_set *s);
/* As cal_statistics. Errors: LQ_EVALUE (it has none of them, or such as no text gives), LQ_EFORMAT (other bytes than were
 * written), LQ_ENOMEM. */
lq_status stats_read(const stats_set *s, cal_layer_stats *st, const arch_config *c, int64_t layer,
                     int64_t first, int64_t n, bool want_h, lq_err *err);
/* All parts added up, as one file. Errors: those of stats_read, LQ_EIO. */
lq_status stats_merge(const char *path, const stats_set *s, lq_err *err);

#endif
