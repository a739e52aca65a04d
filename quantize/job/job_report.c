/* quantize/job/job_report.c - what became of the model: reports of tensors, bytes, bits per weight. */
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

lq_status job_collect(const job_run *r, qz_result *out, lq_err *err)
{
    out->reports = lq_push(&out->arena, r->plan.n * sizeof *out->reports);
    if (!out->reports) return lq_fail(err, LQ_ENOMEM, "no memory for the report");
    for (int64_t i = 0; i < r->state.n_layers; i++)
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
    out->predicted = r->bits.effect ? r->bits.predicted : (double)NAN;
    if (r->bits.effect) add_choices(r, out);
    return qz_count(out, r->out_path, err);
}
