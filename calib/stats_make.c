/* calib/stats_make.c - a shard of statistics: its parts of the text through the model; see stats_file.h. */
#include "calib/forward_pass.h"
#include "calib/stats_file_impl.h"

#include <cjson/cJSON.h>
#include <stdlib.h>

/* One part through the model. */
static lq_status make_leaf(stats_writer *w, size_t *at, const slots *o, src_source *src,
                           const cal_samples *part, const stats_make_opts *how, pool *p,
                           const lq_job *job, lq_err *err)
{
    const arch_config *c = src_config(src);
    const cal_opts opts = { .want_h = how->want_h, .outlier = how->outlier, .sums = true };
    const size_t per = how->want_h ? STATS_PARTS : STATS_PARTS - 1;
    cal_pass *cal = NULL;
    cal_layer_stats st = { 0 };
    lq_status s = cal_open(&cal, src, part, &opts, p, err);
    for (int64_t i = 0; i < c->layers && !s; i++) {
        lq_arena a = { 0 };
        model_layer l;
        s = model_load_layer(&l, cal_model(cal), i, &a, p, err);
        if (!s) s = cal_statistics(cal, &st, i, &l, 0, c->layer[i].moe ? c->experts : 0, job, err);
        for (size_t k = 0; k < o->n && !s; k++)
            if (o->v[k].layer == i) {
                s = stats_put_slot(w, *at, stats_of_slot(&st, &o->v[k]), how->want_h, err);
                *at += per;
            }
        if (!s && i + 1 < c->layers) s = cal_advance(cal, i, &l, job, err);
        lq_arena_free(&a);
    }
    cal_layer_stats_free(&st);
    cal_close(cal);
    return s;
}

lq_status stats_make(const char *path, src_source *src, const cal_samples *samples,
                     const stats_make_opts *o, pool *p, const lq_job *job, lq_err *err)
{
    const int64_t leaves = samples->n < o->leaves ? samples->n : o->leaves;
    if (o->n > leaves)
        return lq_fail(err, LQ_EUSAGE,
                       "--shard: expected at most %lld shards of this text, found %d; "
                       "--stats-parts, and windows, bound them",
                       (long long)leaves, o->n);
    const int64_t first = leaves * o->shard / o->n, end = leaves * (o->shard + 1) / o->n;
    slots all;
    stats_writer w = { 0 };
    lq_status s = stats_find_slots(&all, src_config(src), err);
    cJSON *about = s ? NULL : stats_about(leaves, first, end, o->record);
    if (!s) s = stats_begin_file(&w, path, &all, first, end, o->want_h, about, err);
    size_t at = 1;
    for (int64_t i = first; i < end && !s; i++) {
        const int64_t from = samples->n * i / leaves, to = samples->n * (i + 1) / leaves;
        const cal_samples part = { .ids = samples->ids + from * samples->len,
                                   .n = to - from,
                                   .len = samples->len };
        lq_report(job, "parts of the text", (double)(i - first), (double)(end - first));
        s = make_leaf(&w, &at, &all, src, &part, o, p, job, err);
    }
    if (s)
        st_abort(w.w);
    else
        s = st_commit(w.w, err);
    stats_writer_free(&w);
    free(all.v);
    cJSON_Delete(about);
    return s;
}
