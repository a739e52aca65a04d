/* quantize/job/job_write.c - the file: finished tensors from the state, or made while others are written. */
#include <stdlib.h>
#include <string.h>

#include "base/mapped.h"
#include "formats/llmq/llmq.h"
#include "formats/tensor/finite.h"
#include "quantize/job/job_impl.h"
#include "quantize/job/write_behind.h"

/* Finished layers hold their tensors in the plan's order: one cursor each. */
static const lqf_tensor *from_state(const job_run *r, size_t *cursor, const plan_entry *e)
{
    const lqf_file *f = &r->state.layers[e->layer];
    size_t *c = &cursor[e->layer];
    if (!f->header || *c >= f->n_tensors || strcmp(f->tensors[*c].name, e->name) != 0) return NULL;
    return &f->tensors[(*c)++];
}

static lq_status write_tensor(lqf_writer *w, const src_source *src, const plan_entry *e,
                              const qt_tensor *made, lq_err *err)
{
    const src_tensor *t = e->src;
    if (made) return lqf_add_tensor(w, e->name, made, t->n_dims, qz_plan_shape(e), err);
    if (!t->plain)
        return lqf_add_raw(w, e->name, t->raw_dtype, t->n_dims, t->shape, t->raw.data, t->raw.bytes,
                           err);
    qt_tensor all;
    src_load(&all, src, t);
    lq_status s = val_check(&all, true, err);
    if (s) lq_wrap(err, s, "tensor '%.100s'", e->name);
    if (!s) s = lqf_add_tensor(w, e->name, &all, t->n_dims, t->shape, err);
    src_unload(src, t);
    return s;
}

/* A tensor on its way into the file, and where it was made its planes. */
typedef struct {
    const job_run *r;
    lqf_writer *w;
    const plan_entry *e;
    qz_layer made; /* no items: copied */
    write_behind writing;
} desk;

static lq_status write_entry(void *ctx, lq_err *err)
{
    const desk *d = ctx;
    return write_tensor(d->w, d->r->src, d->e, d->made.n_items ? &d->made.items[0].t : NULL, err);
}

static lq_status finish_entry(desk *d, lq_err *err)
{
    const lq_status s = write_behind_wait(&d->writing, err);
    qz_layer_free(&d->made);
    return s;
}

/* Make a tensor while the one before it is written, and leave it to be written likewise. */
static lq_status make_entry(job_run *r, desk *d, const plan_entry *e, int maker, lq_err *err)
{
    qz_layer made = { 0 };
    const qz_rounding how = { .plan = &r->plan, .o = r->j->o, .p = r->p, .job = r->job };
    lq_status s = LQ_OK;
    if (maker)
        s = job_get_made(r, &made, e, maker, err);
    else if (e->quantize)
        s = qz_layer_make(&made, &how, e->layer, e, err);
    if (made.n_reports) r->reports[r->n_reports++] = made.reports[0];
    if (e->quantize) src_release(r->src, e->src);
    const lq_status before = finish_entry(d, err); /* what failed first is told */
    if (before) s = before;
    d->e = e;
    d->made = made;
    if (s) return s;
    write_behind_start(&d->writing, write_entry, d);
    /* A derived source makes what it is asked for with the pool (quantize/transform/rotate.h). */
    return src_base(r->src) != r->src ? finish_entry(d, err) : LQ_OK;
}

static lq_status add_blobs(const job_run *r, lqf_writer *w, lq_err *err)
{
    lq_status s = LQ_OK;
    bool have = false;
    for (size_t i = 0; i < src_n_blobs(r->src) && !s; i++) {
        const src_blob *b = src_blob_at(r->src, i);
        have = have || strcmp(b->name, "tokenizer.blob") == 0;
        s = lqf_add_blob(w, b->name, b->data, b->bytes, err);
    }
    if (!s && !have && r->j->tokenizer)
        s = lqf_add_blob(w, "tokenizer.blob", r->j->tokenizer, r->j->tokenizer_bytes, err);
    return s;
}

static void drop_written(void *user, const void *p, size_t n) { src_drop(user, (qt_span){ p, n }); }

/* Another rank than 0: what it makes goes there. */
static lq_status make_for_writer(job_run *r, lq_err *err)
{
    const qz_rounding how = { .plan = &r->plan, .o = r->j->o, .p = r->p, .job = r->job };
    size_t n = 0;
    lq_status s = LQ_OK;
    for (size_t i = 0; i < r->plan.n && job_at_once(r) && !s; i++) {
        const plan_entry *e = &r->plan.e[i];
        if (!e->quantize || job_maker(r, n++) != comm_rank(r->j->ranks)) continue;
        qz_layer made = { 0 };
        if (lq_stopped(r->job)) s = lq_fail(err, LQ_EINTR, "interrupted");
        if (!s) s = qz_layer_make(&made, &how, e->layer, e, err);
        if (!s) s = job_send_made(r, &made, err);
        src_release(r->src, e->src);
        qz_layer_free(&made);
    }
    return s ? s : src_unchanged(r->src, err);
}

lq_status job_make_shard(job_run *r, lq_err *err)
{
    const qz_rounding how = { .plan = &r->plan, .o = r->j->o, .p = r->p, .job = r->job };
    lq_status s = LQ_OK;
    for (int64_t i = 0; i < r->state.n_layers && !s; i++) {
        qz_layer made = { 0 };
        if (!job_in_shard(r, i) || qz_state_done(&r->state, i)) continue;
        progress_phase(&r->progress, PROGRESS_ROUNDING, i);
        if (lq_stopped(r->job)) s = lq_fail(err, LQ_EINTR, "interrupted");
        if (!s) s = qz_layer_make(&made, &how, i, NULL, err);
        if (!s && made.n_items) s = qz_state_add(&r->state, i, &made, err);
        qz_layer_free(&made);
    }
    return s ? s : src_unchanged(r->src, err);
}

lq_status job_write(job_run *r, lq_err *err)
{
    if (!job_writes(r)) return make_for_writer(r, err);
    size_t n_made = 0;
    lqf_writer *w = NULL;
    desk d = { .r = r };
    cJSON *config = arch_config_json(&r->plan.cfg);
    size_t *cursor = calloc((size_t)r->state.n_layers, sizeof *cursor);
    lq_status s = LQ_OK;
    int64_t layer = -1; /* at work, where layers are made while they are written */
    if (!job_at_once(r)) progress_phase(&r->progress, PROGRESS_WRITING, -1);
    if (!config || !cursor) s = lq_fail(err, LQ_ENOMEM, "no memory for the file's header");
    if (!s) s = lqf_create(&w, r->out_path, err);
    d.w = w;
    if (!s) lqf_on_written(w, drop_written, r->src);
    if (!s) s = lqf_set_config(w, config, err);
    if (!s) s = lqf_set_recipe(w, r->recipe, err);
    if (!s) s = lqf_set_provenance(w, r->provenance, err);
    for (size_t i = 0; i < r->plan.n && !s; i++) {
        const plan_entry *e = &r->plan.e[i];
        const lqf_tensor *done = from_state(r, cursor, e);
        const qt_tensor *tuned = r->tuned.kept && r->tuned.t[i].N ? &r->tuned.t[i] : NULL;
        if (job_at_once(r) && e->quantize && e->layer != layer)
            progress_phase(&r->progress, PROGRESS_ROUNDING, layer = e->layer);
        else if (!job_at_once(r))
            lq_report(r->job, "writing", (double)i, (double)r->plan.n);
        if (lq_stopped(r->job))
            s = lq_fail(err, LQ_EINTR, "interrupted");
        else if (job_at_once(r) && !done)
            s = make_entry(r, &d, e, e->quantize ? job_maker(r, n_made++) : 0, err);
        else if (e->quantize && !done)
            s = lq_fail(err, LQ_EFORMAT, "%s: missing from %s; start afresh with --no-resume",
                        e->name, r->state.at.dir);
        else if (!(s = finish_entry(&d, err)))
            s = write_tensor(w, r->src, e, tuned ? tuned : done ? &done->t : NULL, err);
        for (int p = 0; done && p < QT_N_PLANES; p++)
            if (done->t.plane[p].bytes)
                lq_map_drop(&r->state.layers[e->layer].map, done->t.plane[p].data,
                            done->t.plane[p].bytes);
        if (tuned) tune_drop(&r->tuned);
    }
    if (job_at_once(r)) progress_phase(&r->progress, PROGRESS_WRITING, -1);
    const lq_status last = finish_entry(&d, err);
    if (last) s = last;
    if (!s) s = add_blobs(r, w, err);
    if (!s) s = src_unchanged(r->src, err);
    if (s)
        lqf_abort(w);
    else
        s = lqf_commit(w, err);
    free(cursor);
    cJSON_Delete(config);
    return s;
}
