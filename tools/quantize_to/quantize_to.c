/* tools/quantize_to/quantize_to.c - see quantize_to.h. */
#include "tools/quantize_to/quantize_to.h"

#include "convert/convert.h"
#include "quantize/layer/mix.h"
#include "quantize/layer/plan.h"
#include "quantize/methods/methods.h"
#include "quantize/mixed/bpw.h"
#include "tools/cli/outputs.h"
#include "tools/cli/progress.h"
#include "tools/quantize_to/refine.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static bool ends_as(const char *out, const char *ending)
{
    const char *dot = out ? strrchr(out, '.') : NULL;
    return dot && strcmp(dot, ending) == 0;
}

/* compressed-tensors:NAME, as llm-compressor calls them: the scheme of every linear. */
static const char CT[] = "compressed-tensors:";
static const struct {
    const char *name, *scheme, *method; /* method NULL: any */
} ct_schemes[] = {
    { "nvfp4", "nvfp4", NULL },
    { "mxfp4", "mxfp4", NULL },
    { "fp8-block", "fp8-e4m3-b128x128-af8-g128", "fp8" },
    { "fp8-channel", "fp8-e4m3-af8", "fp8" },
    { "fp8-tensor", "fp8-e4m3-tensor-af8", "fp8" },
};

static lq_status find_scheme(const char **scheme, const char *name, lq_err *err)
{
    char names[100];
    size_t at = 0;
    for (size_t i = 0; i < LQ_COUNT(ct_schemes); i++) {
        *scheme = ct_schemes[i].scheme;
        if (strcmp(ct_schemes[i].name, name) == 0) return LQ_OK;
        at += (size_t)snprintf(names + at, sizeof names - at, "%s%s", i ? ", " : "",
                               ct_schemes[i].name);
    }
    return lq_fail(err, LQ_EUSAGE, "--to compressed-tensors: expected one of %s, found '%.40s'",
                   names, name);
}

/* A layout's own spelling of `to`, or NULL and all names in err. */
static const char *find_layout(const char *to, lq_err *err)
{
    char names[200];
    size_t at = (size_t)snprintf(names, sizeof names, "gguf, gguf:MIX");
    const char *name;
    for (size_t i = 0; (name = conv_layout_at(i)); i++) {
        if (strcmp(name, to) == 0) return name;
        at += (size_t)snprintf(names + at, sizeof names - at, ", %s", name);
    }
    const mix_row *mix;
    lq_err none;
    lq_fail(err, LQ_EUSAGE, "--to: expected one of %s, found '%.40s'", names, to);
    if (!mix_find(&mix, to, &none))
        lq_append(err, LQ_EUSAGE, "; did you mean gguf:%s?", mix_name(mix));
    for (size_t i = 0; i < LQ_COUNT(ct_schemes); i++)
        if (strcmp(ct_schemes[i].name, to) == 0)
            lq_append(err, LQ_EUSAGE, "; did you mean %s%s?", CT, to);
    return NULL;
}

const char *quantize_to_method(const char *to)
{
    const qz_method *m = qz_method_of_layout(to);
    if (strncmp(to, CT, sizeof CT - 1) != 0) return m ? m->name : NULL;
    for (size_t i = 0; i < LQ_COUNT(ct_schemes); i++)
        if (strcmp(ct_schemes[i].name, to + sizeof CT - 1) == 0) return ct_schemes[i].method;
    return NULL;
}

bool quantize_to_blocks(const quantize_to *t) { return t->mix || strcmp(t->format, "gguf") == 0; }

static bool is_folder(const quantize_to *t)
{
    return strcmp(t->format, "llmq") != 0 && strcmp(t->format, "gguf") != 0;
}

lq_status quantize_to_read(quantize_to *t, const char *to, const char *out, lq_err *err)
{
    const mix_row *mix;
    *t = (quantize_to){ .format = ends_as(out, ".gguf") ? "gguf" : "llmq" };
    if (to && strncmp(to, "gguf", 4) == 0 && (!to[4] || to[4] == ':')) {
        t->format = to[4] && ends_as(out, ".llmq") ? "llmq" : "gguf";
        if (to[4]) {
            const lq_status s = mix_find(&mix, to + 5, err);
            if (s) return lq_wrap(err, s, "--to gguf:");
            t->mix = mix_name(mix);
        }
    } else if (to && strncmp(to, CT, sizeof CT - 1) == 0) {
        t->format = "compressed-tensors";
        const lq_status s = find_scheme(&t->scheme, to + sizeof CT - 1, err);
        if (s) return s;
    } else if (to && !(t->format = find_layout(to, err))) {
        return LQ_EUSAGE;
    }
    if (!out) return LQ_OK;
    /* Not OUT.llmq, which may be somebody's: this file is removed in the end. */
    const char *tail = strcmp(t->format, "llmq") == 0 ? "" : ".unconverted.llmq";
    if (snprintf(t->made, sizeof t->made, "%s%s", out, tail) >= (int)sizeof t->made)
        return lq_fail(err, LQ_EUSAGE, "--out: the name is too long");
    return LQ_OK;
}

lq_status quantize_to_check(const quantize_to *t, const char *out, const src_source *src,
                            const char *given, lq_err *err)
{
    const lq_status s = output_check_place("--out", out, is_folder(t), src, given, err);
    return s ? s : output_check_ending("--out", out, t->format, is_folder(t), err);
}

/* The model as it will be. Outlier columns are found on the way, or none are: a format that has no place for int8
 * without them has none at all. */
static lq_status plan_result(src_source **out, const qz_plan *p, lq_err *err)
{
    src_coming *c = calloc(p->n + 1, sizeof *c);
    size_t n = 0;
    if (!c) return lq_fail(err, LQ_ENOMEM, "no memory for a plan");
    for (size_t i = 0; i < p->n; i++) {
        const plan_entry *e = &p->e[i];
        if (!e->quantize) continue;
        c[n] = (src_coming){ e->name, e->scheme, e->count * e->N, e->K, e->src->n_dims, e->shape };
        if (e->scheme.kind == QT_I8_OUTLIER) c[n].scheme.kind = QT_I8;
        n++;
    }
    lq_status s = src_plan(out, p->src, c, n, p->cfg.tied, err);
    free(c);
    return s;
}

/* Readers of such a folder round inputs in groups, and have no kernel for a shorter last one. */
static lq_status check_input_groups(const qz_plan *p, lq_err *err)
{
    for (size_t i = 0; i < p->n; i++) {
        const plan_entry *e = &p->e[i];
        const int64_t g = e->quantize ? e->scheme.act_group : 0;
        if (g && e->K % g)
            return lq_fail(err, LQ_EUNSUPPORTED,
                           "%s: engines round its inputs in groups of %lld: expected a multiple, "
                           "found %lld (compressed-tensors:fp8-channel has no groups; --skip keeps "
                           "a tensor as it is)",
                           e->name, (long long)g, (long long)e->K);
    }
    return LQ_OK;
}

/* Candidates that are tried: the open tensors take them by turns. */
typedef struct {
    const int *c; /* of bpw_candidate */
    int n;
} turns;

/* Would the format hold src with these? */
static lq_status try_schemes(const quantize_to *t, const src_source *src, const qz_opts *o,
                             const turns *open, lq_err *err)
{
    qz_plan p = { .n = 0 };
    src_source *would = NULL;
    int at = 0;
    lq_status s = qz_plan_make(&p, src, o, &(plan_voice){ 0 }, err);
    for (size_t i = 0; i < p.n && open && !s; i++) {
        qt_scheme scheme;
        if (!p.e[i].open) continue;
        s = qz_plan_scheme(&scheme, &p.e[i], &p, o, bpw_candidate(o, open->c[at++ % open->n]), err);
        if (!s) qz_plan_take(&p.e[i], &scheme);
        p.e[i].open = false;
    }
    if (!s && is_folder(t)) s = check_input_groups(&p, err);
    if (!s) s = plan_result(&would, &p, err);
    if (!s) s = is_folder(t) ? conv_holds(would, t->format, err) : conv_gguf_holds(would, err);
    src_close(would);
    qz_plan_free(&p);
    return s;
}

static lq_status try_candidates(const quantize_to *t, const src_source *src, qz_opts *o,
                                lq_err *err)
{
    int held[8 * sizeof o->bpw_without], n = 0;
    const plan_candidate *x;
    lq_status s = LQ_OK, refused = LQ_OK;
    lq_err why;
    for (int c = 0; (x = bpw_candidate(o, c)); c++) {
        s = try_schemes(t, src, o, &(turns){ &c, 1 }, &why);
        if (s && s != LQ_EUNSUPPORTED && s != LQ_ESHAPE) return *err = why, s;
        if (s) {
            o->bpw_without |= 1u << c;
            if (!refused) *err = why;
            refused = s;
        } else if (x->bits || x->type) {
            held[n++] = c;
        }
    }
    if (!n) return refused;
    s = try_schemes(t, src, o, &(turns){ held, n }, err);
    return s ? lq_append(err, s, " (--bpw gives tensors several schemes)") : LQ_OK;
}

lq_status quantize_to_fits(const quantize_to *t, const src_source *src, qz_opts *o, lq_err *err)
{
    if (strcmp(t->format, "llmq") == 0) return LQ_OK;
    const lq_status s =
        o->bpw > 0 ? try_candidates(t, src, o, err) : try_schemes(t, src, o, NULL, err);
    if (s && t->like) return lq_wrap(err, s, "--ref: %s", src_path(src));
    return s ? lq_wrap(err, s, "--to %s", t->format) : LQ_OK;
}

static lq_status write_gguf(conv_report *r, const quantize_to *t, const src_source *src,
                            const char *out, const cmd_ctx *c, pool *p, lq_err *err)
{
    const conv_gguf_opts o = { .keep_dtype = true };
    char name[sizeof t->made + 8];
    if (!t->like) return conv_to_gguf(r, src, out, &o, p, c->job, err);
    snprintf(name, sizeof name, "%s.gguf", t->made);
    lq_status s = conv_to_gguf(r, src, name, &o, p, c->job, err);
    if (!s) s = refine_write(out, t->like, name, err);
    unlink(name);
    r->n_notes = 0; /* they are of that file's metadata */
    return s;
}

lq_status quantize_to_write(const quantize_to *t, const char *out, qz_result *made,
                            const cmd_ctx *c, pool *p, lq_err *err)
{
    if (strcmp(t->format, "llmq") == 0) return LQ_OK;
    conv_report r = { .bit_exact = true };
    src_source *src = NULL;
    lq_status s = src_open(&src, t->made, &(src_opts){ .need_config = true }, err);
    if (!s && is_folder(t))
        s = conv_to_hf(&r, src, out, &(conv_hf_opts){ .to = t->format, .keep_dtype = true }, p,
                       c->job, err);
    else if (!s)
        s = write_gguf(&r, t, src, out, c, p, err);
    src_close(src);
    if (s && s != LQ_EINTR)
        return lq_wrap(err, s, "%s is whole and stays; as %s it cannot be written", t->made,
                       t->format);
    if (s) return s;
    for (int i = 0; i < r.n_notes; i++)
        prog_say(LOG_INFO, "%s", r.note[i]);
    s = qz_count(made, out, err); /* embedding and head may have become floats */
    if (!t->like) made->bytes_out = r.bytes;
    unlink(t->made);
    return s;
}
