/* tools/report/quantize_report.c - the output of `llmq quantize`; see quantize_report.h. */
#include "tools/report/quantize_report.h"

#include "base/os.h"
#include "quantize/mixed/bpw.h"
#include "tools/cli/progress.h"

#include <cjson/cJSON.h>

static void quantize_report_say(void *user, const char *line)
{
    (void)user;
    prog_say(LOG_WARN, "%s", line);
}

const plan_voice qrep_voice = { quantize_report_say, NULL };

static void show(void *user, const progress_state *s)
{
    (void)user;
    char what[64];
    if (s->layer >= 0 && s->layer < s->n_layers)
        snprintf(what, sizeof what, "layer %lld/%lld  %s", (long long)s->layer + 1,
                 (long long)s->n_layers, s->phase);
    else
        snprintf(what, sizeof what, "%s", s->phase);
    prog_show(&(prog_phase){ what, s->detail, s->all, s->part, s->secs_left });
}

const progress_view qrep_view = { show, NULL };

static const char *budget_of(const qz_opts *q)
{
    return qz_bpw_whole(q) ? "the whole model" : "the linear layers";
}

static void print_need(const qz_memory *n)
{
    char a[16], b[16], c[16];
    printf("memory: %s predicted (%s takes most), %s at least; disk beside the output: %s\n",
           opt_limit_text(a, sizeof a, (double)n->rss), progress_phases[n->phase],
           opt_limit_text(b, sizeof b, (double)n->least),
           opt_limit_text(c, sizeof c, (double)n->disk));
}

static void add_need(cJSON *doc, const qz_memory *n)
{
    cJSON_AddNumberToObject(doc, "predicted_rss", (double)n->rss);
    cJSON_AddNumberToObject(doc, "least_memory_limit", (double)n->least);
    cJSON_AddNumberToObject(doc, "predicted_disk", (double)n->disk);
}

static void add_seconds(cJSON *doc, const double secs[PROGRESS_N])
{
    double sum = 0;
    cJSON *phases = cJSON_AddObjectToObject(doc, "predicted_phase_seconds");
    for (int k = 0; k < PROGRESS_N; k++) {
        if (secs[k] > 0) cJSON_AddNumberToObject(phases, progress_phases[k], secs[k]);
        sum += secs[k];
    }
    cJSON_AddNumberToObject(doc, "predicted_seconds", sum);
}

lq_status qrep_plan(const src_source *src, const qz_job *j, const char *out_path, int threads,
                    const cmd_ctx *c, lq_err *err)
{
    const bool json = c->json;
    const qz_opts *q = j->o;
    qz_plan plan;
    qz_memory memory;
    bpw_range range;
    lq_status s = qz_plan_make(&plan, src, q, &qrep_voice, err);
    if (s) return s;
    if (q->bpw > 0) s = bpw_check(&range, &plan, q, err);
    if (!s) s = qz_job_memory(&memory, j, &plan, threads, err);
    double secs[PROGRESS_N] = { 0 };
    if (!s && j->speed > 0) s = qz_job_seconds(secs, j, &plan, &memory, err);
    if (s) {
        qz_plan_free(&plan);
        return s;
    }
    cJSON *doc = cJSON_CreateObject(), *list = cJSON_AddArrayToObject(doc, "tensors");
    double in = 0, out = 0;
    if (out_path) cJSON_AddStringToObject(doc, "out", out_path);
    cJSON_AddStringToObject(doc, "method", q->method->name);
    for (size_t i = 0; i < plan.n; i++) {
        const plan_entry *e = &plan.e[i];
        char scheme[40] = "raw";
        double bytes = (double)qz_planned_bytes(e), n = (double)src_elements(e->src);
        if (e->quantize || e->src->plain)
            qt_scheme_text(scheme, e->quantize ? &e->scheme : &e->src->t.scheme);
        in += (double)src_bytes(e->src);
        cJSON *t = cJSON_CreateObject();
        cJSON_AddItemToArray(list, t);
        cJSON_AddStringToObject(t, "name", e->name);
        cJSON_AddStringToObject(t, "scheme", e->open ? "auto" : scheme);
        if (e->open) {
            if (!json) printf("%-56s as --bpw chooses\n", e->name);
            continue;
        }
        out += bytes;
        if (!json) printf("%-56s %-14s %12.0f bytes\n", e->name, scheme, bytes);
        cJSON_AddNumberToObject(t, "bytes", bytes);
        cJSON_AddNumberToObject(t, "bpw", n > 0 ? 8 * bytes / n : 0);
    }
    if (q->bpw > 0) {
        out += floor(q->bpw * range.weights / 8 - range.fixed);
        cJSON_AddNumberToObject(doc, "bpw_least", range.bpw_least);
        cJSON_AddNumberToObject(doc, "bpw_most", range.bpw_most);
    }
    cJSON_AddNumberToObject(doc, "bytes_in", in);
    cJSON_AddNumberToObject(doc, "bytes_out", out);
    add_need(doc, &memory);
    if (j->speed > 0) add_seconds(doc, secs);
    qz_plan_free(&plan);
    if (json) return cmd_give_json(c, doc, err);
    char a[16], b[16];
    if (q->bpw > 0)
        printf("%lld tensors share %g bits per weight of %s (%.3f to %.3f can be asked for)\n",
               (long long)range.n_open, q->bpw, budget_of(q), range.bpw_least, range.bpw_most);
    printf("%s of tensors become %s%s\n", opt_size_text(a, sizeof a, in),
           q->bpw > 0 ? "at most " : "", opt_size_text(b, sizeof b, out));
    print_need(&memory);
    char line[PROGRESS_LINE];
    if (j->speed > 0) printf("%s\n", progress_line(line, secs));
    cJSON_Delete(doc);
    return LQ_OK;
}

static void add_finite(cJSON *o, const char *key, double v)
{
    if (isfinite(v))
        cJSON_AddNumberToObject(o, key, v);
    else
        cJSON_AddNullToObject(o, key);
}

static cJSON *tensor_json(const qz_report *t)
{
    cJSON *j = cJSON_CreateObject();
    cJSON_AddStringToObject(j, "name", t->name);
    cJSON_AddStringToObject(j, "role", arch_role_text(t->role));
    cJSON_AddNumberToObject(j, "layer", (double)t->layer);
    cJSON_AddStringToObject(j, "scheme", t->scheme);
    cJSON_AddNumberToObject(j, "elements", (double)t->elements);
    cJSON_AddNumberToObject(j, "bytes", (double)t->bytes);
    cJSON_AddNumberToObject(j, "bpw", 8.0 * (double)t->bytes / (double)t->elements);
    cJSON_AddNumberToObject(j, "rmse", t->rmse);
    add_finite(j, "loss", t->loss);
    add_finite(j, "loss_rtn", t->loss_rtn);
    if (isfinite(t->effect)) cJSON_AddNumberToObject(j, "effect", t->effect);
    if (t->expert >= 0) cJSON_AddNumberToObject(j, "expert", (double)t->expert);
    if (t->tokens >= 0) cJSON_AddNumberToObject(j, "tokens", (double)t->tokens);
    if (t->in_max > 0) {
        cJSON_AddNumberToObject(j, "in_max", t->in_max);
        cJSON_AddNumberToObject(j, "in_mean", t->in_mean);
        cJSON *top = cJSON_AddArrayToObject(j, "top");
        for (int i = 0; i < QZ_TOP && t->top_max[i] > 0; i++) {
            cJSON *one = cJSON_CreateObject();
            cJSON_AddNumberToObject(one, "channel", (double)t->top[i]);
            cJSON_AddNumberToObject(one, "max", t->top_max[i]);
            cJSON_AddItemToArray(top, one);
        }
    }
    if (t->fold_hi > 0) {
        cJSON_AddNumberToObject(j, "alpha", t->alpha);
        cJSON_AddItemToObject(j, "fold",
                              cJSON_CreateDoubleArray((double[]){ t->fold_lo, t->fold_hi }, 2));
    }
    if (t->note[0]) cJSON_AddStringToObject(j, "note", t->note);
    return j;
}

cJSON *qrep_json(const qz_result *r, const qrep_run *run)
{
    cJSON *doc = cJSON_CreateObject();
    cJSON_AddStringToObject(doc, "source", run->source);
    cJSON_AddStringToObject(doc, "out", run->out);
    cJSON_AddStringToObject(doc, "method", run->method);
    cJSON_AddNumberToObject(doc, "bpw", r->bpw);
    cJSON_AddNumberToObject(doc, "bpw_model", r->bpw_model);
    cJSON_AddNumberToObject(doc, "bytes_in", (double)r->bytes_in);
    cJSON_AddNumberToObject(doc, "bytes_out", (double)r->bytes_out);
    cJSON_AddNumberToObject(doc, "seconds", run->seconds);
    cJSON_AddNumberToObject(doc, "peak_rss_bytes", (double)os_memory_peak());
    add_need(doc, &r->memory);
    if (isfinite(r->predicted_secs))
        cJSON_AddNumberToObject(doc, "predicted_seconds", r->predicted_secs);
    cJSON *phases = cJSON_AddObjectToObject(doc, "phase_seconds");
    for (int k = 0; k < PROGRESS_N; k++)
        if (r->phase_secs[k] > 0)
            cJSON_AddNumberToObject(phases, progress_phases[k], r->phase_secs[k]);
    if (isfinite(r->predicted)) cJSON_AddNumberToObject(doc, "kl_predicted", r->predicted);
    if (isfinite(r->kl_before)) {
        cJSON_AddBoolToObject(doc, "tuned", r->tuned);
        cJSON_AddNumberToObject(doc, "kl_held_back_before", r->kl_before);
        cJSON_AddNumberToObject(doc, "kl_held_back_after", r->kl_after);
        cJSON_AddNumberToObject(doc, "experts_not_tuned", (double)r->idle_experts);
    }
    qz_check_write(doc, &r->check);
    if (r->before.windows) cJSON_AddNumberToObject(doc, "kl_before", r->before.kl_mean);
    cJSON_AddBoolToObject(doc, "already_done", r->resumed < 0);
    cJSON_AddNumberToObject(doc, "resumed_parts", r->resumed > 0 ? (double)r->resumed : 0);
    cJSON_AddNumberToObject(doc, "resumed_steps", (double)r->resumed_steps);
    cJSON *list = cJSON_AddArrayToObject(doc, "tensors");
    for (size_t i = 0; i < r->n_reports; i++)
        cJSON_AddItemToArray(list, tensor_json(&r->reports[i]));
    return doc;
}

static void print_losses(double loss, double loss_rtn)
{
    if (isfinite(loss)) printf("  loss %.3e", loss);
    if (isfinite(loss_rtn)) printf("  (rtn %.3e)", loss_rtn);
}

static bool same_experts(const qz_report *a, const qz_report *b)
{
    return a->expert >= 0 && a->layer == b->layer && a->role == b->role && b->expert >= 0 &&
           strcmp(a->scheme, b->scheme) == 0;
}

/* The experts of a layer and role take one line: all reports of r like the first, if it is the
 * first of its kind. (--json lists them one by one.) */
static void print_experts(const qz_report *first, const qz_report *r, size_t n)
{
    double squares = 0, loss = 0, loss_rtn = 0, effect = 0;
    int64_t count = 0, starved = 0, least = INT64_MAX, most = -1;
    for (size_t i = 0; i < n; i++) {
        if (!same_experts(first, &r[i])) continue;
        if (&r[i] < first) return;
        count++;
        starved += strstr(r[i].note, "starved") != NULL;
        squares += r[i].rmse * r[i].rmse;
        if (isfinite(r[i].loss)) loss += r[i].loss;
        if (isfinite(r[i].loss_rtn)) loss_rtn += r[i].loss_rtn;
        if (isfinite(r[i].effect)) effect += r[i].effect;
        least = r[i].tokens < least ? r[i].tokens : least;
        most = r[i].tokens > most ? r[i].tokens : most;
    }
    if (first->layer < 0)
        printf("MTP head: ");
    else
        printf("layer %lld: ", (long long)first->layer);
    printf("%lld x %-32s %-14s rmse %.3e", (long long)count, arch_role_text(first->role),
           first->scheme, sqrt(squares / (double)count));
    if (loss > 0) print_losses(loss, loss_rtn);
    if (effect > 0) printf("  effect %.2e", effect);
    if (most >= 0) printf("  %lld to %lld tokens each", (long long)least, (long long)most);
    if (starved) printf(", %lld starved", (long long)starved);
    printf("\n");
}

static void print_quality(const qz_check *c)
{
    if (c->windows)
        printf("; mean KL %.5f, perplexity %.3f, source %.3f", c->kl_mean, c->perplexity,
               c->ref_perplexity);
    printf("\n");
}

/* What the result is, beside the source. */
static void print_result(const qz_result *r, const qrep_run *run)
{
    char in[16], out[16];
    printf("%s: %.3f bits per weight, %.3f in the linear layers; %s, source %s", run->out,
           r->bpw_model, r->bpw, opt_size_text(out, sizeof out, (double)r->bytes_out),
           opt_size_text(in, sizeof in, (double)r->bytes_in));
    print_quality(&r->check);
}

static void print_check(const qz_check *c, const qz_check *before)
{
    if (!c->windows) return;
    if (before->windows)
        printf("refined: mean KL to the original %.5f -> %.5f (%.2f of what it was)\n",
               before->kl_mean, c->kl_mean, c->kl_mean / before->kl_mean);
    printf("check: on %lld tokens that calibration did not see; same first choice %.2f%%\n",
           (long long)c->tokens, 100 * c->top1_agree);
}

void qrep_print_text(const qz_result *r, const qrep_run *run)
{
    char a[16], b[16];
    if (r->resumed < 0) {
        printf("%s is finished already", run->out);
        print_quality(&r->check);
        return;
    }
    print_result(r, run);
    for (size_t i = 0; i < r->n_reports; i++) {
        const qz_report *t = &r->reports[i];
        /* tensors of a layer lie together */
        size_t from = i, to = i;
        while (from > 0 && r->reports[from - 1].layer == t->layer)
            from--;
        while (to < r->n_reports && r->reports[to].layer == t->layer)
            to++;
        if (t->expert >= 0) {
            print_experts(t, r->reports + from, to - from);
            continue;
        }
        printf("%-48s %-14s rmse %.3e", t->name, t->scheme, t->rmse);
        print_losses(t->loss, t->loss_rtn);
        if (isfinite(t->effect)) printf("  effect %.2e", t->effect);
        printf("%s%s\n", t->note[0] ? "  " : "", t->note);
    }
    if (isfinite(r->predicted))
        printf("bits shared out: the effects add up to a KL of %.5f to the original\n",
               r->predicted);
    if (isfinite(r->kl_before))
        printf("tuning: mean KL to the original on text held back %.5f -> %.5f%s\n", r->kl_before,
               r->kl_after, r->tuned ? "" : ": not kept");
    print_check(&r->check, &r->before);
    printf("%.1f s, ", run->seconds);
    if (isfinite(r->predicted_secs)) printf("%.0f s predicted, ", r->predicted_secs);
    printf("peak memory %s, predicted %s\n", opt_limit_text(a, sizeof a, (double)os_memory_peak()),
           opt_limit_text(b, sizeof b, (double)r->memory.rss));
}
