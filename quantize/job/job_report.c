/* quantize/job/job_report.c - what became of the model: reports of tensors, bytes, bits per weight. */
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "formats/source/totals.h"
#include "quantize/job/job_impl.h"

static size_t file_bytes(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 ? (size_t)st.st_size : 0;
}

/* As `inspect` counts them: of the file that was written. */
lq_status qz_count(qz_result *out, const char *path, lq_err *err)
{
    src_source *made;
    src_totals t;
    lq_status s = src_open(&made, path, NULL, err);
    if (s) return s;
    s = src_count(&t, made, err);
    out->bytes_out = file_bytes(path);
    out->bpw = src_bits_per(t.linear_bytes, t.linear_params);
    out->bpw_model = src_bits_per(t.bytes, t.params);
    src_totals_free(&t);
    src_close(made);
    return s;
}

/* What --bpw predicted goes into the reports; tensors that it left as they are get one. */
static void add_choices(const job_run *r, qz_result *out)
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
                                .layer = e->layer < r->plan.cfg.layers ? e->layer : -1,
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

/* Of layers that were finished before and tensors that were made while others were written, each in the plan's order:
 * in that of all. */
static lq_status merge_reports(const job_run *r, qz_result *out, lq_err *err)
{
    const size_t layers = (size_t)r->state.n_layers;
    size_t *next = calloc(layers, sizeof *next), *end = calloc(layers, sizeof *end), n = 0, own = 0;
    qz_report *done = calloc(r->plan.n + 1, sizeof *done);
    const lq_status s =
        next && end && done ? LQ_OK : lq_fail(err, LQ_ENOMEM, "no memory for the report");
    for (size_t i = 0; i < layers && !s; i++) {
        next[i] = n;
        if (qz_state_done(&r->state, (int64_t)i)) qz_state_reports(&r->state, (int64_t)i, done, &n);
        end[i] = n;
    }
    for (size_t i = 0; i < r->plan.n && !s; i++) {
        const plan_entry *e = &r->plan.e[i];
        size_t *at = &next[e->layer];
        if (own < r->n_reports && strcmp(r->reports[own].name, e->name) == 0)
            out->reports[out->n_reports++] = r->reports[own++];
        else if (*at < end[e->layer] && strcmp(done[*at].name, e->name) == 0)
            out->reports[out->n_reports++] = done[(*at)++];
    }
    free(next);
    free(end);
    free(done);
    return s;
}

lq_status job_collect(const job_run *r, qz_result *out, lq_err *err)
{
    out->reports = lq_push(&out->arena, r->plan.n * sizeof *out->reports);
    if (!out->reports) return lq_fail(err, LQ_ENOMEM, "no memory for the report");
    for (int64_t i = 0; i < r->state.n_layers && !job_at_once(r); i++)
        if (qz_state_done(&r->state, i))
            qz_state_reports(&r->state, i, out->reports, &out->n_reports);
    const lq_status s = job_at_once(r) ? merge_reports(r, out, err) : LQ_OK;
    if (s) return s;
    for (size_t k = 0; k < out->n_reports; k++) {
        const char *name = out->reports[k].name;
        out->reports[k].name = lq_push_str(&out->arena, name, strlen(name));
        if (!out->reports[k].name) return lq_fail(err, LQ_ENOMEM, "no memory");
    }
    const src_source *given = src_base(r->src);
    for (int64_t i = 0; i < src_n_tensors(given); i++)
        out->bytes_in += src_bytes(src_tensor_at(given, i));
    out->predicted = r->bits.effect ? r->bits.predicted : (double)NAN;
    if (r->bits.effect) add_choices(r, out);
    return qz_count(out, r->out_path, err);
}
