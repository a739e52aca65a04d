/* quantize/job/job.c - a quantization from end to end. */
#include "quantize/job/job.h"

#include <cblas.h>
#include <stdio.h>
#include <string.h>

#include "base/hash.h"
#include "base/machine.h"
#include "base/mapped.h"
#include "base/out_file.h"
#include "base/path.h"
#include "quantize/job/job_impl.h"
#include "quantize/methods/effort.h"

/* ---- what it takes ---- */
static bool trains_codes(const qz_opts *o, const qz_plan *plan)
{
    const qz_effort *e = qz_effort_of(o);
    const int steps = qz_tune_steps(o);
    return grad_covers(src_config(plan->src)) && steps > e->steps_still &&
           tune_moves_codes(steps, qz_effort_rate_code(e, steps));
}

/* Windows that auto takes the curvature from; 0: none, another method or kind of model. */
static int64_t curvature_windows(const qz_job *j, const qz_plan *plan)
{
    const bool wanted = j->samples && (qz_needs(j->o) & QZ_NEEDS_CURVATURE);
    if (!wanted || !grad_covers(src_config(plan->src))) return 0;
    const int64_t most = qz_effort_of(j->o)->curvature;
    return j->samples->n < most ? j->samples->n : most;
}

lq_status qz_job_memory(qz_memory *n, const qz_job *j, const qz_plan *plan, int threads,
                        lq_err *err)
{
    const memory_work w = { .plan = plan,
                            .o = j->o,
                            .windows = j->samples ? j->samples->n : 0,
                            .self_windows = j->self_windows,
                            .len = j->samples ? j->samples->len : 0,
                            .curvature_windows = curvature_windows(j, plan),
                            .check_windows = j->check ? j->check->n : 0,
                            .check_len = j->check ? j->check->len : 0,
                            .ranks = comm_size(j->ranks),
                            .threads = threads,
                            .trains_codes = trains_codes(j->o, plan),
                            .small = tune_small(plan->src) };
    return qz_memory_of(n, &w, j->memory_limit, err);
}

/* What cannot be written at the end is refused at the start. */
static lq_status check_out(const job_run *r, lq_err *err)
{
    lq_out *o;
    if (!job_writes(r)) return LQ_OK;
    lq_status s = lq_out_open(&o, r->out_path, err);
    if (!s) lq_out_abort(o);
    return s;
}

/* ---- the source, read once before the work ---- */
static void scan_item(void *ctx, int64_t item, int thread)
{
    (void)thread;
    const job_run *r = ctx;
    src_scan(r->src, item * comm_size(r->j->ranks) + comm_rank(r->j->ranks));
}

/* A rotated source is made anew whenever it is read; what it is made of was checked then. */
static lq_status scan(job_run *r, lq_err *err)
{
    if (src_base(r->src) != r->src) return LQ_OK;
    const int64_t all = src_n_tensors(r->src), own = all - comm_rank(r->j->ranks);
    lq_status s = src_scan_room(r->src, err);
    if (!s) pool_run(r->p, lq_ceil_div(own > 0 ? own : 0, comm_size(r->j->ranks)), scan_item, r);
    if (!s) s = job_share_scan(r, err);
    return s ? s : qz_plan_check_finite(&r->plan, err);
}

/* ---- what needs the whole model, before its layers and after ---- */
static void job_say(const job_run *r, const char *line)
{
    if (r->j->voice.say) r->j->voice.say(r->j->voice.user, line);
}

static lq_status take_curvature(job_run *r, lq_err *err)
{
    const qz_method *m = r->j->o->method;
    char line[200];
    if (!(qz_needs(r->j->o) & QZ_NEEDS_CURVATURE) || job_last_calibrated(r) < 0) return LQ_OK;
    if (!grad_covers(src_config(r->src))) {
        snprintf(line, sizeof line, "%s: no backward pass for layers of this kind: %s", m->name,
                 m->without_curvature);
        job_say(r, line);
        return LQ_OK;
    }
    progress_phase(&r->progress, PROGRESS_CURVATURE, -1);
    return fisher_run(&r->curvature, r->src, r->j->samples, qz_effort_of(r->j->o)->curvature,
                      !r->memory.spill, r->j->o->on, r->j->ranks, r->p, r->job, err);
}

/* --bpw: the plan's open entries are settled. */
static lq_status share_out(job_run *r, lq_err *err)
{
    char file[4200];
    if (!(r->j->o->bpw > 0)) return LQ_OK;
    if (!fisher_of_all(src_config(r->src)))
        job_say(r, "--bpw: no backward pass for layers of this kind: measuring by forward passes");
    progress_phase(&r->progress, PROGRESS_CURVATURE, -1);
    lq_status s = lq_path_join(file, sizeof file, r->state.at.dir, "choice.json", err);
    return s ? s
             : bpw_run(&r->bits, &r->plan, r->src, r->j->o, r->j->samples, &r->curvature, file,
                       r->j->ranks, r->p, r->job, err);
}

/* The text to tune by, and in the record what the model wrote of it. */
static lq_status self_words(job_run *r, lq_err *err)
{
    char file[4200], hex[33], line[sizeof err->msg + 64];
    const qz_job *j = r->j;
    lq_status s = lq_path_join(file, sizeof file, r->state.at.dir, "own.ids", err);
    if (s) return s;
    if (j->self_windows) progress_phase(&r->progress, PROGRESS_SELF_TEXT, -1);
    s = tuning_text_make(&r->text, j->self_windows, j->samples, r->src, j->seed, file, j->ranks,
                         r->p, r->job, err);
    if (s == LQ_EVALUE && j->self_asked) return lq_wrap(err, s, "--self-samples");
    if (s == LQ_EVALUE) {
        snprintf(line, sizeof line, "%s; tuning goes by the other text alone", err->msg);
        job_say(r, line);
        cJSON_AddStringToObject(job_self_record(r->provenance), "missing",
                                "the model could not write it");
        return tuning_text_make(&r->text, 0, j->samples, r->src, j->seed, file, j->ranks, r->p,
                                r->job, err);
    }
    if (s || !j->self_windows) return s;
    lq_hash_hex(hex, &r->text.hash);
    cJSON_AddStringToObject(job_self_record(r->provenance), "xxh3", hex);
    snprintf(line, sizeof line, "calibration: %lld windows that the model wrote, xxh3 %.8s",
             (long long)j->self_windows, hex);
    job_say(r, line);
    return LQ_OK;
}

static lq_status tune(job_run *r, lq_err *err)
{
    enum { SAVE_SECS = 300 };
    const qz_effort *e = qz_effort_of(r->j->o);
    const int steps = qz_tune_steps(r->j->o);
    lq_err unkept = { "" };
    const tune_opts o = { .steps = steps,
                          .batch = e->batch,
                          .spill_dir = r->memory.spill ? r->state.at.dir : NULL,
                          .states_dir = r->memory.states ? r->state.at.dir : NULL,
                          .resume_dir = comm_size(r->j->ranks) > 1 ? NULL : r->state.at.dir,
                          .save_secs = SAVE_SECS,
                          .unkept = &unkept,
                          .keep = !r->memory.spill,
                          .rate_scale = e->rate_scale,
                          .rate_norm = e->rate_norm,
                          .rate_code = qz_effort_rate_code(e, steps),
                          .on = r->j->o->on,
                          .ranks = r->j->ranks };
    if (!o.steps) return LQ_OK;
    if (!grad_covers(src_config(r->src))) {
        if (!(qz_needs(r->j->o) & QZ_NEEDS_CURVATURE)) /* else it is said already */
            job_say(r, "--tune: no backward pass for layers of this kind: not tuned");
        return LQ_OK;
    }
    lq_status s = self_words(r, err);
    if (s) return s;
    progress_phase(&r->progress, PROGRESS_TUNING, -1);
    machine_give_back(r->memory.rss); /* what rounding freed, which is counted as free */
    s = tune_run(&r->tuned, r->src, &r->plan, &r->state, &r->text.text, &o, r->p, r->job, err);
    tuning_text_free(&r->text);
    char line[160 + sizeof unkept.msg];
    if (s == LQ_EINTR && unkept.msg[0]) {
        snprintf(line, sizeof line, "how far training is could not be kept: %s", unkept.msg);
        job_say(r, line);
    }
    if (!s && r->tuned.began) {
        snprintf(line, sizeof line,
                 "tuning: went on from step %d of %d, which an earlier run had done",
                 r->tuned.began, steps);
        job_say(r, line);
    }
    if (!s && r->tuned.kept && r->tuned.idle) {
        snprintf(line, sizeof line,
                 "tuning: %lld of %lld experts got no token: as rounding left them",
                 (long long)r->tuned.idle, (long long)r->tuned.experts);
        job_say(r, line);
    }
    return s;
}

static lq_status check(job_run *r, qz_check *c, lq_err *err)
{
    if (!r->j->check || !r->j->check->n) return LQ_OK;
    progress_phase(&r->progress, PROGRESS_CHECK, -1);
    const qz_made made = { .plan = &r->plan,
                           .state = &r->state,
                           .tuned = r->tuned.kept ? &r->tuned : NULL,
                           .on = r->j->o->on,
                           .ranks = r->j->ranks };
    lq_status s = qz_check_run(c, r->src, &made, r->j->check, r->memory.spill, r->p, r->job, err);
    if (!s && !qz_check_write(r->provenance, c)) s = lq_fail(err, LQ_ENOMEM, "no memory");
    return s;
}

/* The same of the file that is made better. */
static lq_status check_before(job_run *r, qz_check *c, lq_err *err)
{
    src_source *like = r->j->o->like;
    if (!like) return LQ_OK;
    const qz_made made = {
        .plan = &r->plan, .state = &r->state, .other = like, .on = r->j->o->on, .ranks = r->j->ranks
    };
    return qz_check_run(c, r->src, &made, r->j->check, r->memory.spill, r->p, r->job, err);
}

/* The calibrated layers are still to be made? */
static progress_work work_of(const qz_job *j, const qz_plan *plan, const qz_memory *memory,
                             bool looks)
{
    const cal_samples *c = j->samples;
    const arch_config *cfg = &plan->cfg;
    const int steps = c && grad_covers(cfg) ? qz_tune_steps(j->o) : 0;
    const int64_t len = c ? c->len : 0, all = c ? c->n + j->self_windows : 0;
    const int64_t most = qz_effort_of(j->o)->batch, batch = most < all ? most : all;
    const int64_t curved = looks ? curvature_windows(j, plan) : 0;
    return (progress_work){
        .plan = plan,
        .calibrated = c != NULL,
        .hessian = qz_needs_h(j->o),
        .staged = qz_in_stages(j->o),
        .matched = qz_matches(j->o),
        .folds = qz_folds(j->o),
        .keep_rows = memory->keep_rows,
        .len = len,
        .tokens = c ? c->n * len : 0,
        .curvature_tokens = curved * len,
        .check_tokens = j->check ? j->check->n * j->check->len : 0,
        .tuned_tokens = steps * batch * len,
        .steps = trains_codes(j->o, plan) ? steps : 0,
        .states = memory->states,
        .self_tokens = c ? j->self_windows * len : 0,
        .curvature_kept =
            curved && !memory->spill && grad_can_keep(cfg, fisher_chunk(cfg, curved, len), len),
        .tuning_kept = steps && !memory->spill && tune_can_keep(cfg, batch, len, all),
        .curved = qz_needs(j->o) & QZ_NEEDS_CURVATURE,
        .speed = j->speed,
    };
}

lq_status qz_job_seconds(double secs[PROGRESS_N], const qz_job *j, const qz_plan *plan,
                         const qz_memory *memory, lq_err *err)
{
    const progress_work w = work_of(j, plan, memory, true);
    return progress_predict(secs, &w, err);
}

/* What this run will do, for its meter, and what it takes. */
static lq_status start_progress(job_run *r, double *predicted, const lq_job *job, lq_err *err)
{
    const int64_t look = job_last_calibrated(r), L = r->plan.cfg.layers;
    const progress_work w = work_of(r->j, &r->plan, &r->memory, look >= 0);
    char line[PROGRESS_LINE];
    lq_status s = progress_open(&r->progress, &w, &r->j->view, job, err);
    for (int64_t i = 0; i <= L && !s; i++)
        if (qz_state_done(&r->state, i) || (r->j->n_shards && !job_in_shard(r, i)))
            progress_skip(&r->progress, i, i <= look);
    r->job = &r->progress.job;
    if (s || !w.speed) return s;
    double secs[PROGRESS_N];
    *predicted = progress_left(secs, &r->progress);
    job_say(r, progress_line(line, secs));
    return LQ_OK;
}

/* Keep what is finished where running again can go on from it. */
static bool worth_keeping(const job_run *r, lq_status s)
{
    return s && (r->state.n_done > 0 || r->bits.effect) &&
           lq_exit_code(s) != lq_exit_code(LQ_EVALUE);
}

lq_status qz_run(qz_result *out, src_source *src, const char *out_path, const qz_job *j, pool *p,
                 const lq_job *job, lq_err *err)
{
    memset(out, 0, sizeof *out);
    out->predicted_secs = (double)NAN;
    job_run r = { .j = j, .src = src, .out_path = out_path, .p = p, .job = job };
    r.tuned.kl_before = r.tuned.kl_after = (double)NAN;
    cJSON *what = NULL;
    const int threads = openblas_get_num_threads(); /* of the program that we are part of */
    openblas_set_num_threads(1);                    /* our pool splits the work */
    bpw_range range;
    lq_map_guard(true);
    lq_status s = qz_plan_make(&r.plan, src, j->o, &j->voice, err);
    if (s) goto unguard;
    r.codes = trains_codes(j->o, &r.plan);
    s = j->o->bpw > 0 ? bpw_check(&range, &r.plan, j->o, err) : LQ_OK;
    if (!s) s = qz_job_memory(&r.memory, j, &r.plan, pool_threads(p), err);
    out->memory = r.memory;
    if (!s) s = check_out(&r, err);
    if ((s = job_agree(&r, s, err))) goto done;
    if ((s = job_agree_sizes(&r, err))) goto done;
    if ((s = job_agree_experts(&r, err))) goto done;
    s = scan(&r, err);
    if (!s) s = job_describe(&r, &what, err);
    if ((s = job_agree(&r, s, err))) goto done;
    if ((s = job_all_alike(&r, what, err))) goto done;
    bool there = j->resume && job_writes(&r) && job_already_there(&r, &out->check);
    s = job_share_answer(&r, &there, err);
    if (!s && there) {
        out->resumed = -1;
        if (!job_writes(&r)) goto done;
        s = qz_count(out, out_path, err);
        qz_state_clear(job_state_at(&r), what);
        goto done;
    }
    if (!s && j->keep_other && job_writes(&r)) s = job_check_other(&r, err);
    s = job_agree(&r, s, err);
    if (!s) s = job_open_state(&r, what, err);
    if (s) goto done;
    out->resumed = r.state.n_done;
    if (out->resumed) job_say(&r, "going on from the finished layers of an earlier run");
    r.reports = lq_push(&out->arena, r.plan.n * sizeof *r.reports);
    if (!r.reports) s = lq_fail(err, LQ_ENOMEM, "no memory for the report");
    if (!s) s = start_progress(&r, &out->predicted_secs, job, err);
    if (j->n_shards) {
        if (!s) s = job_make_shard(&r, err);
        progress_end(&r.progress, out->phase_secs);
        qz_state_close(&r.state, false);
        goto done;
    }
    if (!s) s = take_curvature(&r, err);
    if (!s) s = share_out(&r, err);
    if (!s && !job_at_once(&r)) s = job_layers(&r, err);
    fisher_free(&r.curvature);
    if (!s) s = tune(&r, err);
    if (!s) s = check(&r, &out->check, err);
    if (!s) s = check_before(&r, &out->before, err);
    if (!s) s = job_write(&r, err);
    progress_end(&r.progress, out->phase_secs);
    out->tuned = r.tuned.kept;
    out->resumed_steps = r.tuned.began;
    out->kl_before = r.tuned.kl_before;
    out->kl_after = r.tuned.kl_after;
    out->idle_experts = r.tuned.idle;
    tune_free(&r.tuned);
    if (!s && job_writes(&r)) s = job_collect(&r, out, err);
    if (!s) s = job_agree(&r, s, err);
    if (worth_keeping(&r, s) && j->voice.say)
        j->voice.say(j->voice.user, "finished layers are kept: run again (--resume) to go on");
    qz_state_close(&r.state, !worth_keeping(&r, s));
    bpw_free(&r.bits);
done:
    if (s) qz_result_free(out);
    progress_close(&r.progress);
    cJSON_Delete(what);
    cJSON_Delete(r.recipe);
    cJSON_Delete(r.provenance);
    qz_plan_free(&r.plan);
unguard:
    openblas_set_num_threads(threads);
    lq_map_guard(false);
    return s;
}

void qz_result_free(qz_result *r)
{
    lq_arena_free(&r->arena);
    memset(r, 0, sizeof *r);
}
