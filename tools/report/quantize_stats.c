/* tools/report/quantize_stats.c - see quantize_stats.h. */
#include "tools/report/quantize_stats.h"

#include <cblas.h>
#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/hash.h"
#include "base/json.h"
#include "kernels/ops.h"
#include "tools/cli/progress.h"
#include "tools/cli/shard.h"

/* What the sums follow from. NULL: out of memory. */
static cJSON *record_of(const stats_subject *of)
{
    lq_hash h;
    char hex[33];
    if (src_fingerprint(&h, of->src, NULL)) return NULL;
    cJSON *o = cJSON_CreateObject();
    lq_hash_hex(hex, &h);
    cJSON_AddStringToObject(o, "source", hex);
    cJSON_AddItemToObject(o, "calibration", cal_samples_json(of->samples));
    cJSON_AddStringToObject(o, "kernels", k_name());
    cJSON_AddStringToObject(o, "blas", openblas_get_corename());
    cJSON_AddBoolToObject(o, "h", qz_needs_h(of->q));
    cJSON_AddNumberToObject(o, "limit", qz_outlier_threshold(of->q));
    cJSON_AddStringToObject(o, "form", of->gguf_form ? "gguf" : "source");
    cJSON_AddNumberToObject(o, "rotation", of->q->rotate ? (double)of->q->rotate_seed : -1);
    cJSON_AddBoolToObject(o, "wide", of->q->rotate && qz_rounds_outer(of->q));
    return o;
}

static cJSON *made_json(const char *out, const stats_make_opts *o, const cal_samples *of)
{
    cJSON *r = cJSON_CreateObject();
    cJSON_AddStringToObject(r, "out", out);
    cJSON_AddNumberToObject(r, "shard", o->shard + 1);
    cJSON_AddNumberToObject(r, "shards", o->n);
    cJSON_AddNumberToObject(r, "parts", (double)(of->n < o->leaves ? of->n : o->leaves));
    cJSON_AddNumberToObject(r, "windows", (double)of->n);
    cJSON_AddNumberToObject(r, "tokens", (double)(of->n * of->len));
    return r;
}

lq_status quantize_stats_make(const char *out, src_source *src, const stats_subject *of,
                              const char *shard, int64_t leaves, pool *p, const cmd_ctx *c,
                              lq_err *err)
{
    stats_make_opts o = { .leaves = leaves,
                          .want_h = qz_needs_h(of->q),
                          .outlier = (float)qz_outlier_threshold(of->q) };
    lq_status s = shard_read(&o.shard, &o.n, shard, err);
    cJSON *record = s ? NULL : record_of(of);
    o.record = record;
    if (!s && !record) s = lq_fail(err, LQ_ENOMEM, "no memory for statistics");
    if (!s) s = stats_make(out, src, of->samples, &o, p, c->job, err);
    prog_end();
    if (!s) prog_say(LOG_INFO, "%s: statistics of share %d of %d", out, o.shard + 1, o.n);
    if (!s && c->json) s = cmd_give_json(c, made_json(out, &o, of->samples), err);
    cJSON_Delete(record);
    return s;
}

lq_status quantize_stats_open(stats_set **s, const char *const *paths, int n,
                              const stats_subject *of, lq_err *err)
{
    static const char *const parts[] = { "source", "calibration", "kernels",  "blas", "h",
                                         "limit",  "form",        "rotation", "wide" };
    cJSON *own = record_of(of);
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
