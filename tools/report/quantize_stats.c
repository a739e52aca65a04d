/* tools/report/quantize_stats.c - see quantize_stats.h. */
#include "tools/report/quantize_stats.h"

#include <cblas.h>
#include <cjson/cJSON.h>
#include <stdlib.h>

#include "base/hash.h"
#include "base/json.h"
#include "kernels/ops.h"
#include "tools/cli/progress.h"

/* What the sums follow from. NULL: out of memory. */
static cJSON *record_of(const src_source *src, const cal_samples *samples, const qz_opts *q)
{
    lq_hash h;
    char hex[33];
    if (src_fingerprint(&h, src, NULL)) return NULL;
    cJSON *o = cJSON_CreateObject();
    lq_hash_hex(hex, &h);
    cJSON_AddStringToObject(o, "source", hex);
    cJSON_AddItemToObject(o, "calibration", cal_samples_json(samples));
    cJSON_AddStringToObject(o, "kernels", k_name());
    cJSON_AddStringToObject(o, "blas", openblas_get_corename());
    cJSON_AddBoolToObject(o, "h", qz_needs_h(q));
    cJSON_AddNumberToObject(o, "limit", qz_outlier_threshold(q));
    return o;
}

static lq_status read_shard(stats_make_opts *o, const char *text, lq_err *err)
{
    const char *id = getenv("SLURM_ARRAY_TASK_ID"), *count = getenv("SLURM_ARRAY_TASK_COUNT");
    const char *least = getenv("SLURM_ARRAY_TASK_MIN"), *index = getenv("JOB_COMPLETION_INDEX");
    int i = 1, n = 1, end = 0;
    if (text && sscanf(text, "%d/%d%n", &i, &n, &end) == 2 && !text[end]) {
    } else if (text && index && sscanf(text, "%d%n", &n, &end) == 1 && !text[end]) {
        i = atoi(index) + 1;
    } else if (text) {
        return lq_fail(err, LQ_EUSAGE, "--shard: expected i/N, such as 1/8, found '%s'", text);
    } else if (id && count) {
        n = atoi(count);
        i = atoi(id) - (least ? atoi(least) : 1) + 1;
    }
    if (n < 1 || i < 1 || i > n)
        return lq_fail(err, LQ_EUSAGE, "--shard: expected 1 to %d of %d, found %d", n, n, i);
    o->shard = i - 1;
    o->n = n;
    return LQ_OK;
}

lq_status quantize_stats_make(const char *out, src_source *src, const cal_samples *samples,
                              const qz_opts *q, const char *shard, pool *p, const lq_job *job,
                              lq_err *err)
{
    stats_make_opts o = { .want_h = qz_needs_h(q), .outlier = (float)qz_outlier_threshold(q) };
    lq_status s = read_shard(&o, shard, err);
    cJSON *record = s ? NULL : record_of(src, samples, q);
    o.record = record;
    if (!s && !record) s = lq_fail(err, LQ_ENOMEM, "no memory for statistics");
    if (!s) s = stats_make(out, src, samples, &o, p, job, err);
    prog_end();
    if (!s) prog_say(LOG_INFO, "%s: statistics of share %d of %d", out, o.shard + 1, o.n);
    cJSON_Delete(record);
    return s;
}

lq_status quantize_stats_open(stats_set **s, const char *const *paths, int n, const src_source *src,
                              const cal_samples *samples, const qz_opts *q, lq_err *err)
{
    static const char *const parts[] = { "source", "calibration", "kernels", "blas", "h", "limit" };
    cJSON *own = record_of(src, samples, q);
    lq_status st =
        own ? stats_open(s, paths, n, err) : lq_fail(err, LQ_ENOMEM, "no memory for statistics");
    for (size_t i = 0; i < LQ_COUNT(parts) && !st; i++)
        if (!cJSON_Compare(js_get(own, parts[i]), js_get(stats_record(*s), parts[i]), true))
            st = lq_fail(err, LQ_EVALUE,
                         "--stats: expected statistics that the same model, text and options gave, "
                         "found another %s",
                         parts[i]);
    cJSON_Delete(own);
    return st;
}
