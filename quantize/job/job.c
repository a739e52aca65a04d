/* quantize/job/job.c - the streaming driver. */
#include "quantize/job/job.h"

#include <cblas.h>
#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "base/json.h"
#include "base/mapped.h"
#include "base/version.h"
#include "formats/llmq/llmq.h"
#include "formats/source/totals.h"
#include "formats/tensor/finite.h"
#include "kernels/ops.h"
#include "quantize/job/check.h"
#include "quantize/job/write_behind.h"
#include "quantize/layer/apply.h"
#include "quantize/mixed/bpw.h"
#include "quantize/tune/self_text.h"

enum { CURVATURE_WINDOWS = 128 };

typedef struct {
    const qz_job *j;
    src_source *src;
    const char *out_path;
    pool *p;
    const lq_job *job; /* the meter's */
    bool codes;        /* tuning trains codes */
    qz_meter meter;
    qz_plan plan;
    qz_need need;
    qz_state state;
    qz_report *reports; /* [plan.n] of tensors that were made while the file was written */
    size_t n_reports;
    cal_run *cal;
    cal_layer_stats st;
    fisher curvature;  /* G NULL: not wanted, or not to be had */
    bpw_choice bits;   /* --bpw */
    own_text text;     /* for tuning */
    tune_result tuned; /* kept: its tensors replace the parts' */
    cJSON *recipe, *provenance;
} run;

/* ---- what it takes ---- */
static bool trains_codes(const qz_opts *o, const qz_plan *plan)
{
    return qz_tune_steps(o) && grad_covers(src_config(plan->src)) && tune_small(plan->src);
}

/* Windows that auto takes the curvature from; 0: none, another method or kind of model. */
static int64_t curvature_windows(const qz_job *j, const qz_plan *plan)
{
    const bool wanted = j->samples && (qz_needs(j->o) & QZ_NEEDS_CURVATURE);
    if (!wanted || !grad_covers(src_config(plan->src))) return 0;
    return j->samples->n < CURVATURE_WINDOWS ? j->samples->n : CURVATURE_WINDOWS;
}

lq_status qz_job_need(qz_need *n, const qz_job *j, const qz_plan *plan, int threads, lq_err *err)
{
    const need_work w = { .plan = plan,
                          .o = j->o,
                          .windows = j->samples ? j->samples->n : 0,
                          .own_windows = j->own_windows,
                          .len = j->samples ? j->samples->len : 0,
                          .curvature_windows = curvature_windows(j, plan),
                          .check_windows = j->check ? j->check->n : 0,
                          .check_len = j->check ? j->check->len : 0,
                          .threads = threads,
                          .trains_codes = trains_codes(j->o, plan) };
    return qz_need_of(n, &w, j->memory_limit, err);
}

/* ---- recipe, provenance and the key of a run ---- */
static const char own_name[] = "self";

/* What the model is to write is known before; its hash is not. */
static void plan_own(cJSON *calibration, const qz_job *j)
{
    cJSON *files = cJSON_GetObjectItemCaseSensitive(calibration, "files");
    if (!j->own_windows) return;
    if (!files) files = cJSON_AddArrayToObject(calibration, "files");
    cJSON *f = cJSON_CreateObject();
    cJSON_AddItemToArray(files, f);
    cJSON_AddStringToObject(f, "name", own_name);
    cJSON_AddStringToObject(f, "kind", own_name);
    cJSON_AddNumberToObject(f, "windows", (double)j->own_windows);
    cJSON_AddNumberToObject(f, "tokens", (double)(j->own_windows * j->samples->len));
}

static cJSON *own_record(const cJSON *provenance)
{
    const cJSON *calibration = cJSON_GetObjectItemCaseSensitive(provenance, "calibration");
    cJSON *f;
    cJSON_ArrayForEach(f, cJSON_GetObjectItemCaseSensitive(calibration, "files"))
    {
        const cJSON *kind = cJSON_GetObjectItemCaseSensitive(f, "kind");
        if (cJSON_IsString(kind) && strcmp(kind->valuestring, own_name) == 0) return f;
    }
    return NULL;
}

/* NULL: out of memory. */
static cJSON *provenance(const run *r)
{
    lq_hash h;
    char hex[33];
    if (src_fingerprint(&h, r->src, NULL)) return NULL;
    cJSON *o = cJSON_CreateObject(), *src = cJSON_AddObjectToObject(o, "source");
    lq_hash_hex(hex, &h);
    cJSON_AddStringToObject(o, "llmq", LLMQ_VERSION);
    cJSON_AddStringToObject(src, "format", src_format(r->src));
    cJSON_AddStringToObject(src, "xxh3", hex);
    if (!r->j->samples) return o;
    cJSON *cal = cal_samples_json(r->j->samples);
    cJSON_AddNumberToObject(cal, "seed", (double)r->j->seed);
    plan_own(cal, r->j);
    cJSON_AddItemToObject(o, "calibration", cal);
    cJSON_AddStringToObject(o, "kernels", r->j->reproducible ? "any" : k_name());
    cJSON_AddStringToObject(o, "blas", openblas_get_corename());
    return o;
}

/* What cannot be written at the end is refused at the start. */
static lq_status check_out(const char *path, lq_err *err)
{
    lq_out *o;
    lq_status s = lq_out_open(&o, path, err);
    if (!s) lq_out_abort(o);
    return s;
}

/* *what borrows recipe and provenance: everything that the tensors of the result follow from. */
static lq_status describe(run *r, cJSON **what, lq_err *err)
{
    cJSON *config = arch_config_json(&r->plan.cfg);
    r->recipe = qz_recipe(r->j->o);
    r->provenance = provenance(r);
    *what = cJSON_CreateObject();
    if (!config || !cJSON_AddItemToObject(*what, "config", config)) cJSON_Delete(config);
    if (!js_ran_out() && *what && config && r->recipe && r->provenance &&
        cJSON_AddItemReferenceToObject(*what, "recipe", r->recipe) &&
        cJSON_AddItemReferenceToObject(*what, "provenance", r->provenance))
        return LQ_OK;
    return lq_fail(err, LQ_ENOMEM, "no memory for the recipe");
}

/* ---- the source, read once before the work ---- */
static void scan_item(void *ctx, int64_t item, int thread)
{
    (void)thread;
    src_scan(ctx, item);
}

/* A rotated source is made anew whenever it is read; what it is made of was checked then. */
static lq_status scan(run *r, lq_err *err)
{
    if (src_base(r->src) != r->src) return LQ_OK;
    lq_status s = src_scan_room(r->src, err);
    if (!s) pool_run(r->p, src_n_tensors(r->src), scan_item, r->src);
    return s ? s : qz_plan_check_finite(&r->plan, err);
}

/* The files that travel along are part of the result; tokenizer.blob follows from them. */
static bool same_blobs(const llmq_file *f, const src_source *src)
{
    size_t same = 0, want = 0;
    for (size_t i = 0; i < src_n_blobs(src); i++)
        want += strcmp(src_blob_at(src, i)->name, "tokenizer.blob") != 0;
    for (size_t i = 0; i < f->n_blobs; i++) {
        const llmq_blob *b = &f->blobs[i];
        if (strcmp(b->name, "tokenizer.blob") == 0) continue;
        const src_blob *s = src_find_blob(src, b->name);
        if (!s || s->bytes != b->span.bytes || memcmp(s->data, b->span.data, s->bytes) != 0)
            return false;
        same++;
    }
    return same == want;
}

/* With --resume, is OUT what this run would make? Then there is nothing left to do. (A check is no
 * part of what was asked for.) */
static bool already_there(const run *r, qz_check *check)
{
    llmq_file f;
    if (!lq_exists(r->out_path) || llmq_open(&f, r->out_path, NULL)) return false;
    qz_check_read(check, f.provenance);
    cJSON *p = cJSON_Duplicate(f.provenance, true);
    cJSON_DeleteItemFromObjectCaseSensitive(p, "check");
    cJSON_DeleteItemFromObjectCaseSensitive(own_record(p), "xxh3");
    cJSON_DeleteItemFromObjectCaseSensitive(own_record(p), "missing");
    bool same = f.recipe && p && cJSON_Compare(f.recipe, r->recipe, true) &&
                cJSON_Compare(p, r->provenance, true) && same_blobs(&f, r->src);
    cJSON_Delete(p);
    llmq_close(&f);
    return same;
}

/* ---- parts ---- */
static bool has_work(const run *r, int64_t part)
{
    for (size_t i = 0; i < r->plan.n; i++)
        if (r->plan.e[i].part == part && r->plan.e[i].quantize) return true;
    return false;
}

static void release_part(const run *r, int64_t part)
{
    for (size_t i = 0; i < r->plan.n; i++)
        if (r->plan.e[i].part == part) src_release(r->src, r->plan.e[i].src);
}

/* stages: the state is before the last of the layer's linears. */
static lq_status advance(run *r, int64_t layer, const model_layer *l, bool stages, lq_err *err)
{
    if (layer + 1 == r->plan.cfg.layers) return LQ_OK; /* nobody looks behind the last layer */
    meter_phase(&r->meter, METER_ADVANCING, layer);
    return stages ? cal_stage(r->cal, NULL, layer, l, FWD_AT_END, r->job, err)
                  : cal_advance(r->cal, layer, l, r->job, err);
}

/* A layer that is looked at while it is quantized. */
typedef struct {
    run *r;
    int64_t layer;
    model_layer *l;
    lq_arena *a; /* of l */
} sight;

static lq_status look_at(void *user, cal_layer_stats **st, fwd_point at, lq_err *err)
{
    const sight *s = user;
    *st = &s->r->st;
    meter_phase(&s->r->meter, METER_STATISTICS, s->layer);
    const lq_status status = cal_stage(s->r->cal, *st, s->layer, s->l, at, s->r->job, err);
    meter_phase(&s->r->meter, METER_ROUNDING, s->layer);
    return status;
}

static lq_status take(void *user, const qz_item *items, size_t n, lq_err *err)
{
    const sight *s = user;
    return qz_part_apply(s->l, &s->r->plan.cfg, items, n, s->a, s->r->p, err);
}

static lq_status look(void *user, cal_layer_stats **st, int64_t first, int64_t n, lq_err *err)
{
    const sight *s = user;
    *st = &s->r->st;
    meter_phase(&s->r->meter, METER_STATISTICS, s->layer);
    const lq_status status = cal_look(s->r->cal, *st, s->layer, s->l, first, n, s->r->job, err);
    meter_phase(&s->r->meter, METER_ROUNDING, s->layer);
    return status;
}

/* One layer with calibration: look, quantize, keep, advance; or only the last when it was done. */
static lq_status calibrated_layer(run *r, int64_t layer, qz_item *items, lq_err *err)
{
    lq_arena a = { 0 };
    model_layer l;
    qz_part part = { 0 };
    size_t n = 0;
    sight at = { r, layer, &l, &a };
    const bool done = qz_state_done(&r->state, layer);
    const bool stages = !done && qz_in_stages(r->j->o) && fwd_has_points(&r->plan.cfg, layer);
    qz_eyes eyes = { .look = look,
                     .look_at = stages ? look_at : NULL,
                     .take = stages ? take : NULL,
                     .user = &at,
                     .hessian = qz_needs_h(r->j->o),
                     .limit = r->need.experts,
                     .all_experts = r->j->o->all_experts,
                     .curvature = r->curvature.G ? &r->curvature : NULL,
                     .rest = r->codes };
    lq_status s = model_load_layer(&l, cal_model(r->cal), layer, &a, r->p, err);
    if (!s && !done) {
        s = qz_part_make(&part, &r->plan, layer, r->j->o, &eyes, r->p, r->job, err);
        if (!s) s = src_unchanged(r->src, err); /* else nothing of it is kept */
        if (!s) s = qz_state_add(&r->state, layer, &part, err);
        qz_part_free(&part);
        release_part(r, layer);
    }
    if (!s && !stages) s = qz_state_items(&r->state, &r->plan, layer, items, &n, err);
    if (!s && !stages) s = qz_part_apply(&l, &r->plan.cfg, items, n, &a, r->p, err);
    if (!s) s = advance(r, layer, &l, stages, err);
    lq_arena_free(&a);
    qz_state_drop(&r->state, layer); /* else they would add up to the whole result */
    return s;
}

static lq_status plain_part(run *r, int64_t i, lq_err *err)
{
    if (qz_state_done(&r->state, i) || !has_work(r, i)) return LQ_OK;
    qz_part part;
    meter_phase(&r->meter, METER_ROUNDING, i);
    lq_status s = qz_part_make(&part, &r->plan, i, r->j->o, NULL, r->p, r->job, err);
    if (!s) s = src_unchanged(r->src, err);
    if (!s) s = qz_state_add(&r->state, i, &part, err);
    qz_part_free(&part);
    release_part(r, i);
    return s;
}

/* The last part that still needs the hidden states of calibration; -1: none. */
static int64_t last_to_look(const run *r)
{
    int64_t last = -1;
    for (int64_t i = 0; i < r->plan.cfg.layers && r->j->samples; i++)
        if (!qz_state_done(&r->state, i)) last = i;
    return last;
}

static lq_status all_parts(run *r, lq_err *err)
{
    int64_t parts = r->state.n_parts, look = last_to_look(r);
    lq_status s = LQ_OK;
    qz_item *items = calloc(r->plan.n, sizeof *items);
    if (!items) return lq_fail(err, LQ_ENOMEM, "no memory for the plan");
    if (look >= 0) {
        cal_opts o = { .spill_dir = r->need.spill ? r->state.dir : NULL,
                       .want_h = qz_needs_h(r->j->o),
                       .staged = qz_in_stages(r->j->o),
                       .outlier = (float)qz_outlier_threshold(r->j->o),
                       .all_experts = r->j->o->all_experts,
                       .on = r->j->o->on };
        s = cal_open(&r->cal, r->src, r->j->samples, &o, r->p, err);
    }
    for (int64_t i = 0; i < parts && !s; i++) {
        if (lq_stopped(r->job))
            s = lq_fail(err, LQ_EINTR, "interrupted");
        else
            s = i <= look ? calibrated_layer(r, i, items, err) : plain_part(r, i, err);
    }
    cal_layer_stats_free(&r->st);
    cal_close(r->cal);
    r->cal = NULL;
    free(items);
    return s;
}

/* ---- what needs the whole model, before its layers and after ---- */
static void say(const run *r, const char *line)
{
    if (r->j->voice.say) r->j->voice.say(r->j->voice.user, line);
}

static lq_status look_at_curvature(run *r, lq_err *err)
{
    const qz_method *m = r->j->o->method;
    char line[200];
    if (!(qz_needs(r->j->o) & QZ_NEEDS_CURVATURE) || last_to_look(r) < 0) return LQ_OK;
    if (!grad_covers(src_config(r->src))) {
        snprintf(line, sizeof line, "%s: no backward pass for layers of this kind: %s", m->name,
                 m->without_curvature);
        say(r, line);
        return LQ_OK;
    }
    meter_phase(&r->meter, METER_CURVATURE, -1);
    return fisher_run(&r->curvature, r->src, r->j->samples, CURVATURE_WINDOWS, r->p, r->job, err);
}

/* --bpw: the plan's open entries are settled. */
static lq_status share_out(run *r, lq_err *err)
{
    char file[4200];
    if (!(r->j->o->bpw > 0)) return LQ_OK;
    if (!grad_covers(src_config(r->src)))
        say(r, "--bpw: no backward pass for layers of this kind: measuring by forward passes");
    meter_phase(&r->meter, METER_CURVATURE, -1);
    lq_status s = lq_path_join(file, sizeof file, r->state.dir, "choice.json", err);
    return s ? s
             : bpw_run(&r->bits, &r->plan, r->src, r->j->o, r->j->samples, &r->curvature, file,
                       r->p, r->job, err);
}

/* The text to tune by, and in the record what the model wrote of it. */
static lq_status own_words(run *r, lq_err *err)
{
    char file[4200], hex[33], line[sizeof err->msg + 64];
    const qz_job *j = r->j;
    lq_status s = lq_path_join(file, sizeof file, r->state.dir, "own.ids", err);
    if (s) return s;
    if (j->own_windows) meter_phase(&r->meter, METER_OWN_TEXT, -1);
    s = own_text_make(&r->text, j->own_windows, j->samples, r->src, j->seed, file, r->p, r->job,
                      err);
    if (s == LQ_EVALUE && j->own_asked) return lq_wrap(err, s, "--self-samples");
    if (s == LQ_EVALUE) {
        snprintf(line, sizeof line, "%s; tuning goes by the other text alone", err->msg);
        say(r, line);
        cJSON_AddStringToObject(own_record(r->provenance), "missing",
                                "the model could not write it");
        return own_text_make(&r->text, 0, j->samples, r->src, j->seed, file, r->p, r->job, err);
    }
    if (s || !j->own_windows) return s;
    lq_hash_hex(hex, &r->text.hash);
    cJSON_AddStringToObject(own_record(r->provenance), "xxh3", hex);
    snprintf(line, sizeof line, "calibration: %lld windows that the model wrote, xxh3 %.8s",
             (long long)j->own_windows, hex);
    say(r, line);
    return LQ_OK;
}

static lq_status tune(run *r, lq_err *err)
{
    tune_opts o = { .steps = qz_tune_steps(r->j->o),
                    .spill_dir = r->need.spill ? r->state.dir : NULL };
    if (!o.steps) return LQ_OK;
    if (!grad_covers(src_config(r->src))) {
        if (!(qz_needs(r->j->o) & QZ_NEEDS_CURVATURE)) /* else it is said already */
            say(r, "--tune: no backward pass for layers of this kind: not tuned");
        return LQ_OK;
    }
    lq_status s = own_words(r, err);
    if (s) return s;
    meter_phase(&r->meter, METER_TUNING, -1);
    s = tune_run(&r->tuned, r->src, &r->plan, &r->state, &r->text.text, &o, r->p, r->job, err);
    own_text_free(&r->text);
    return s;
}

static lq_status check(run *r, qz_check *c, lq_err *err)
{
    if (!r->j->check || !r->j->check->n) return LQ_OK;
    meter_phase(&r->meter, METER_CHECK, -1);
    const qz_made made = { &r->plan, &r->state, r->tuned.kept ? r->tuned.t : NULL };
    lq_status s = qz_check_run(c, r->src, &made, r->j->check, r->need.spill, r->p, r->job, err);
    if (!s && !qz_check_write(r->provenance, c)) s = lq_fail(err, LQ_ENOMEM, "no memory");
    return s;
}

/* ---- the file ---- */
/* Finished parts hold their tensors in the plan's order: one cursor each. */
static const llmq_tensor *from_part(const run *r, size_t *cursor, const plan_entry *e)
{
    const llmq_file *f = &r->state.parts[e->part];
    size_t *c = &cursor[e->part];
    if (!f->header || *c >= f->n_tensors || strcmp(f->tensors[*c].name, e->name) != 0) return NULL;
    return &f->tensors[(*c)++];
}

static lq_status add_entry(llmq_writer *w, const src_source *src, const plan_entry *e,
                           const qt_tensor *made, lq_err *err)
{
    const src_tensor *t = e->src;
    if (made) return llmq_add_tensor(w, e->name, made, t->n_dims, qz_plan_shape(e), err);
    if (!t->plain)
        return llmq_add_raw(w, e->name, t->raw_dtype, t->n_dims, t->shape, t->raw.data,
                            t->raw.bytes, err);
    qt_tensor all;
    src_load(&all, src, t);
    lq_status s = val_check(&all, true, err);
    if (s) lq_wrap(err, s, "tensor '%.100s'", e->name);
    if (!s) s = llmq_add_tensor(w, e->name, &all, t->n_dims, t->shape, err);
    src_unload(src, t);
    return s;
}

/* Without calibration a tensor is made faster than a record of it could be written and read back,
 * so there are no parts: it goes from the source to the file. */
static bool at_once(const run *r)
{
    return !r->j->samples && !(r->j->check && r->j->check->n); /* a check wants parts */
}

/* A tensor on its way into the file, and where it was made its planes. */
typedef struct {
    const run *r;
    llmq_writer *w;
    const plan_entry *e;
    qz_part made; /* no items: copied */
    behind writing;
} desk;

static lq_status write_entry(void *ctx, lq_err *err)
{
    const desk *d = ctx;
    return add_entry(d->w, d->r->src, d->e, d->made.n_items ? &d->made.items[0].t : NULL, err);
}

static lq_status finish_entry(desk *d, lq_err *err)
{
    const lq_status s = behind_wait(&d->writing, err);
    qz_part_free(&d->made);
    return s;
}

/* Make a tensor while the one before it is written, and leave it to be written likewise. */
static lq_status make_entry(run *r, desk *d, const plan_entry *e, lq_err *err)
{
    qz_part made = { 0 };
    lq_status s =
        e->quantize ? qz_part_entry(&made, &r->plan, e, r->j->o, r->p, r->job, err) : LQ_OK;
    if (made.n_reports) r->reports[r->n_reports++] = made.reports[0];
    if (e->quantize) src_release(r->src, e->src);
    const lq_status before = finish_entry(d, err); /* what failed first is told */
    if (before) s = before;
    d->e = e;
    d->made = made;
    if (s) return s;
    behind_start(&d->writing, write_entry, d);
    /* A derived source makes what it is asked for with the pool (quantize/transform/rotate.h). */
    return src_base(r->src) != r->src ? finish_entry(d, err) : LQ_OK;
}

static lq_status add_blobs(const run *r, llmq_writer *w, lq_err *err)
{
    lq_status s = LQ_OK;
    bool have = false;
    for (size_t i = 0; i < src_n_blobs(r->src) && !s; i++) {
        const src_blob *b = src_blob_at(r->src, i);
        have = have || strcmp(b->name, "tokenizer.blob") == 0;
        s = llmq_add_blob(w, b->name, b->data, b->bytes, err);
    }
    if (!s && !have && r->j->tokenizer)
        s = llmq_add_blob(w, "tokenizer.blob", r->j->tokenizer, r->j->tokenizer_bytes, err);
    return s;
}

static void drop_written(void *user, const void *p, size_t n) { src_drop(user, (qt_span){ p, n }); }

static lq_status write_file(run *r, lq_err *err)
{
    llmq_writer *w = NULL;
    desk d = { .r = r };
    cJSON *config = arch_config_json(&r->plan.cfg);
    size_t *cursor = calloc((size_t)r->state.n_parts, sizeof *cursor);
    lq_status s = LQ_OK;
    int64_t part = -1; /* at work, where parts are made while they are written */
    if (!at_once(r)) meter_phase(&r->meter, METER_WRITING, -1);
    if (!config || !cursor) s = lq_fail(err, LQ_ENOMEM, "no memory for the file's header");
    if (!s) s = llmq_create(&w, r->out_path, err);
    d.w = w;
    if (!s) llmq_on_written(w, drop_written, r->src);
    if (!s) s = llmq_set_config(w, config, err);
    if (!s) s = llmq_set_recipe(w, r->recipe, err);
    if (!s) s = llmq_set_provenance(w, r->provenance, err);
    for (size_t i = 0; i < r->plan.n && !s; i++) {
        const plan_entry *e = &r->plan.e[i];
        const llmq_tensor *done = from_part(r, cursor, e);
        const qt_tensor *tuned = r->tuned.kept && r->tuned.t[i].N ? &r->tuned.t[i] : NULL;
        if (at_once(r) && e->quantize && e->part != part)
            meter_phase(&r->meter, METER_ROUNDING, part = e->part);
        else if (!at_once(r))
            lq_report(r->job, "writing", (double)i, (double)r->plan.n);
        if (lq_stopped(r->job))
            s = lq_fail(err, LQ_EINTR, "interrupted");
        else if (at_once(r) && !done)
            s = make_entry(r, &d, e, err);
        else if (e->quantize && !done)
            s = lq_fail(err, LQ_EFORMAT, "%s: missing from %s; start afresh with --no-resume",
                        e->name, r->state.dir);
        else if (!(s = finish_entry(&d, err)))
            s = add_entry(w, r->src, e, tuned ? tuned : done ? &done->t : NULL, err);
        for (int p = 0; done && p < QT_N_PLANES; p++)
            if (done->t.plane[p].bytes)
                lq_map_drop(&r->state.parts[e->part].map, done->t.plane[p].data,
                            done->t.plane[p].bytes);
    }
    if (at_once(r)) meter_phase(&r->meter, METER_WRITING, -1);
    const lq_status last = finish_entry(&d, err);
    if (last) s = last;
    if (!s) s = add_blobs(r, w, err);
    if (!s) s = src_unchanged(r->src, err);
    if (s)
        llmq_abort(w);
    else
        s = llmq_commit(w, err);
    free(cursor);
    cJSON_Delete(config);
    return s;
}

/* ---- the report ---- */
static size_t file_bytes(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 ? (size_t)st.st_size : 0;
}

/* As `inspect` counts them: of the file that was written. */
static lq_status count_bits(qz_result *out, const char *path, lq_err *err)
{
    src_source *made;
    src_totals t;
    lq_status s = src_open(&made, path, NULL, err);
    if (s) return s;
    s = src_count(&t, made, err);
    out->bpw = src_bits_per(t.linear_bytes, t.linear_params);
    out->bpw_model = src_bits_per(t.bytes, t.params);
    src_totals_free(&t);
    src_close(made);
    return s;
}

/* What --bpw predicted goes into the reports; tensors that it left as they are get one. */
static void add_choices(const run *r, qz_result *out)
{
    size_t at = 0;
    for (size_t i = 0; i < r->plan.n; i++) {
        const plan_entry *e = &r->plan.e[i];
        qz_report *rep = NULL;
        if (isnan(r->bits.effect[i])) continue;
        for (size_t k = 0; k < out->n_reports && !rep; k++, at++) /* mostly the next */
            if (strcmp(out->reports[at % out->n_reports].name, e->name) == 0)
                rep = &out->reports[at % out->n_reports];
        if (!rep && !e->quantize) {
            rep = &out->reports[out->n_reports++];
            *rep = (qz_report){ .name = e->name,
                                .role = e->role,
                                .layer = e->part < r->plan.cfg.layers ? e->part : -1,
                                .expert = e->expert,
                                .tokens = -1,
                                .note = "kept",
                                .elements = src_elements(e->src),
                                .bytes = src_bytes(e->src),
                                .loss = (double)NAN,
                                .loss_rtn = (double)NAN };
            qt_scheme_text(rep->scheme, &e->scheme);
        }
        if (rep) rep->effect = r->bits.effect[i];
    }
}

static lq_status collect(const run *r, qz_result *out, lq_err *err)
{
    out->reports = lq_push(&out->arena, r->plan.n * sizeof *out->reports);
    if (!out->reports) return lq_fail(err, LQ_ENOMEM, "no memory for the report");
    for (int64_t i = 0; i < r->state.n_parts; i++)
        if (qz_state_done(&r->state, i))
            qz_state_reports(&r->state, i, out->reports, &out->n_reports);
    for (size_t i = 0; i < r->n_reports; i++)
        out->reports[out->n_reports++] = r->reports[i];
    for (size_t k = 0; k < out->n_reports; k++) {
        const char *name = out->reports[k].name;
        out->reports[k].name = lq_push_str(&out->arena, name, strlen(name));
        if (!out->reports[k].name) return lq_fail(err, LQ_ENOMEM, "no memory");
    }
    const src_source *given = src_base(r->src);
    for (int64_t i = 0; i < src_n_tensors(given); i++)
        out->bytes_in += src_bytes(src_tensor_at(given, i));
    out->bytes_out = file_bytes(r->out_path);
    out->predicted = r->bits.effect ? r->bits.predicted : (double)NAN;
    if (r->bits.effect) add_choices(r, out);
    return count_bits(out, r->out_path, err);
}

/* What this run will do, for its meter. */
static lq_status start_meter(run *r, const lq_job *job, lq_err *err)
{
    const qz_job *j = r->j;
    const cal_samples *c = j->samples;
    const int64_t look = last_to_look(r), L = r->plan.cfg.layers;
    const meter_work w = {
        .plan = &r->plan,
        .calibrated = c != NULL,
        .hessian = qz_needs_h(j->o),
        .staged = qz_in_stages(j->o),
        .tune_steps = grad_covers(src_config(r->src)) ? qz_tune_steps(j->o) : 0,
        .tokens = c ? c->n * c->len : 0,
        .curvature_tokens = look >= 0 ? curvature_windows(j, &r->plan) * c->len : 0,
        .tuned_tokens = c ? TUNE_BATCH * c->len : 0,
        .own_tokens = c ? j->own_windows * c->len : 0,
        .check_tokens = j->check ? j->check->n * j->check->len : 0,
    };
    lq_status s = meter_open(&r->meter, &w, &j->view, job, err);
    for (int64_t i = 0; i <= L && !s; i++)
        if (qz_state_done(&r->state, i)) meter_skip(&r->meter, i, i <= look);
    r->job = &r->meter.job;
    return s;
}

/* Keep what is finished where running again can go on from it. */
static bool worth_keeping(const run *r, lq_status s)
{
    return s && (r->state.n_done > 0 || r->bits.effect) &&
           lq_exit_code(s) != lq_exit_code(LQ_EVALUE);
}

lq_status qz_run(qz_result *out, src_source *src, const char *out_path, const qz_job *j, pool *p,
                 const lq_job *job, lq_err *err)
{
    memset(out, 0, sizeof *out);
    run r = { .j = j, .src = src, .out_path = out_path, .p = p, .job = job };
    r.tuned.kl_before = r.tuned.kl_after = (double)NAN;
    cJSON *what = NULL;
    openblas_set_num_threads(1);
    bpw_range range;
    lq_map_guard(true);
    lq_status s = qz_plan_make(&r.plan, src, j->o, &j->voice, err);
    if (s) goto unguard;
    r.codes = trains_codes(j->o, &r.plan);
    s = j->o->bpw > 0 ? bpw_check(&range, &r.plan, j->o, err) : LQ_OK;
    if (!s) s = qz_job_need(&r.need, j, &r.plan, pool_threads(p), err);
    out->need = r.need;
    if (!s) s = check_out(out_path, err);
    if (!s) s = scan(&r, err);
    if (!s) s = describe(&r, &what, err);
    if (!s && j->resume && already_there(&r, &out->check)) {
        out->resumed = -1;
        out->bytes_out = file_bytes(out_path);
        s = count_bits(out, out_path, err);
        qz_state_clear(out_path, what);
        goto done;
    }
    if (!s) s = qz_state_open(&r.state, out_path, what, r.plan.cfg.layers + 1, j->restart, err);
    if (s) goto done;
    out->resumed = r.state.n_done;
    if (out->resumed) say(&r, "going on from the finished layers of an earlier run");
    r.reports = lq_push(&out->arena, r.plan.n * sizeof *r.reports);
    if (!r.reports) s = lq_fail(err, LQ_ENOMEM, "no memory for the report");
    if (!s) s = start_meter(&r, job, err);
    if (!s) s = look_at_curvature(&r, err);
    if (!s) s = share_out(&r, err);
    if (!s && !at_once(&r)) s = all_parts(&r, err);
    fisher_free(&r.curvature);
    if (!s) s = tune(&r, err);
    if (!s) s = check(&r, &out->check, err);
    if (!s) s = write_file(&r, err);
    meter_end(&r.meter, out->phase_secs);
    out->tuned = r.tuned.kept;
    out->kl_before = r.tuned.kl_before;
    out->kl_after = r.tuned.kl_after;
    tune_free(&r.tuned);
    if (!s) s = collect(&r, out, err);
    if (worth_keeping(&r, s) && j->voice.say)
        j->voice.say(j->voice.user, "finished layers are kept: run again (--resume) to go on");
    qz_state_close(&r.state, !worth_keeping(&r, s));
    bpw_free(&r.bits);
done:
    if (s) qz_result_free(out);
    meter_close(&r.meter);
    cJSON_Delete(what);
    cJSON_Delete(r.recipe);
    cJSON_Delete(r.provenance);
    qz_plan_free(&r.plan);
unguard:
    lq_map_guard(false);
    return s;
}

void qz_result_free(qz_result *r)
{
    lq_arena_free(&r->arena);
    memset(r, 0, sizeof *r);
}
