/* quantize/methods/method.c - what a method's row says of options: schemes, needs, the recipe. */
#include "quantize/methods/method.h"

#include <cjson/cJSON.h>
#include <stdio.h>

#include "quantize/methods/effort.h"

static bool takes(const qz_opts *o, unsigned option) { return o->method->options & option; }

unsigned qz_needs(const qz_opts *o)
{
    return o->method->needs_of ? o->method->needs_of(o) : o->method->needs;
}

bool qz_on_by_default(const qz_opts *o, unsigned option)
{
    if (o->method->always & option) return true;
    return (o->method->on & option) && (!o->method->is_on || o->method->is_on(o));
}

bool qz_folds(const qz_opts *o) { return takes(o, QZ_OPT_FOLD) && !o->no_fold; }
bool qz_matches(const qz_opts *o) { return takes(o, QZ_OPT_MATCH) && !o->no_match; }
bool qz_in_stages(const qz_opts *o) { return qz_calibrated(o) && (!qz_folds(o) || qz_matches(o)); }
int qz_bits(const qz_opts *o) { return o->bits ? o->bits : o->method->bits; }
double qz_damp(const qz_opts *o) { return o->damp > 0 ? o->damp : 0.01; }

int64_t qz_group(const qz_opts *o)
{
    return o->group < 0 ? -1 : o->group ? o->group : o->method->group;
}

double qz_outlier_share(const qz_opts *o)
{
    return o->outlier_share < 0 ? 0 : o->outlier_share > 0 ? o->outlier_share : 0.06;
}

double qz_outlier_threshold(const qz_opts *o)
{
    return o->outlier_threshold > 0 ? o->outlier_threshold : 6;
}

bool qz_is_auto(const char *scheme) { return scheme && strcmp(scheme, "auto") == 0; }
bool qz_is_keep(const char *scheme) { return scheme && strcmp(scheme, "keep") == 0; }
static bool rounds(const char *asked, const qz_opts *o)
{
    return asked ? !qz_is_keep(asked) : o->outer != NULL;
}
bool qz_rounds_outer(const qz_opts *o) { return rounds(o->embed, o) || rounds(o->lm_head, o); }
bool qz_bpw_whole(const qz_opts *o) { return qz_is_auto(o->lm_head) || qz_is_auto(o->embed); }

int qz_tune_steps(const qz_opts *o) { return takes(o, QZ_OPT_TUNE) ? o->tune : 0; }
const qz_effort *qz_effort_of(const qz_opts *o)
{
    return qz_effort_with(o->effort ? o->effort : qz_effort_best(), qz_tune_steps(o));
}

bool qz_keeps_order(const qz_opts *o)
{
    return takes(o, QZ_OPT_ACT_ORDER) && !o->no_act_order && o->no_static_groups;
}

lq_status qz_scheme_of(qt_scheme *s, const char *text, lq_err *err)
{
    const lq_status st = qt_scheme_parse(s, text, err);
    return st == LQ_EVALUE ? LQ_EUSAGE : st;
}

lq_status qz_scheme_uint(qt_scheme *s, const qz_opts *o, const char *zeros, lq_err *err)
{
    char text[40];
    const int64_t G = qz_group(o);
    snprintf(text, sizeof text, "u%d-g%lld%s", qz_bits(o), G < 0 ? 1LL : (long long)G,
             o->sym ? "" : zeros);
    const lq_status st = qz_scheme_of(s, text, err);
    if (!st) s->group = G;
    return st;
}

lq_status qz_scheme_grid(qt_scheme *s, const qz_opts *o, lq_err *err)
{
    return qz_scheme_uint(s, o, "-asym", err);
}

static bool power_of_two(int64_t n) { return (n & (n - 1)) == 0; }

int64_t qz_fit_group(int64_t K, int64_t group)
{
    if (group <= 0 || group >= K) return K;
    for (int64_t g = group; g >= QZ_SMALLEST_GROUP && power_of_two(group); g /= 2)
        if (K % g == 0) return g; /* kernels of other engines know powers of two alone */
    for (int64_t g = group; g >= QZ_SMALLEST_GROUP; g--)
        if (K % g == 0) return g;
    return K % group == 0 ? group : K;
}

static void add_list(cJSON *o, const char *key, const char *const *v, int n)
{
    cJSON *a = n ? cJSON_AddArrayToObject(o, key) : NULL;
    for (int i = 0; a && i < n; i++)
        cJSON_AddItemToArray(a, cJSON_CreateString(v[i]));
}

/* Bits, groups and how their grids lie. */
static void add_grid(cJSON *r, const qz_opts *o)
{
    const bool uniform = takes(o, QZ_OPT_BITS), shared = uniform && o->bpw > 0;
    if (o->mix) {
        cJSON_AddStringToObject(r, "mix", o->mix);
        return;
    }
    if (o->like) {
        cJSON_AddStringToObject(r, "refine", o->like_hash);
        return;
    }
    if (o->scheme) {
        cJSON_AddStringToObject(r, "scheme", o->scheme);
        if (takes(o, QZ_OPT_CLIP))
            cJSON_AddBoolToObject(r, "clip",
                                  qz_calibrated(o) || o->imatrix ? !o->no_clip : o->clip);
        return;
    }
    if (shared) {
        cJSON_AddNumberToObject(r, "bpw", o->bpw);
        cJSON_AddBoolToObject(r, "bpw_fused", !o->untied);
        if (o->bpw_for) cJSON_AddStringToObject(r, "bpw_for", o->bpw_for);
    } else if (uniform) {
        cJSON_AddNumberToObject(r, "bits", qz_bits(o));
    }
    if (uniform && takes(o, QZ_OPT_SYM)) cJSON_AddBoolToObject(r, "sym", o->sym);
    if (uniform && o->limits.zero_from_one) cJSON_AddBoolToObject(r, "zero_from_one", true);
    if (uniform && o->sym) cJSON_AddBoolToObject(r, "narrow", o->limits.narrow);
    if (takes(o, QZ_OPT_CLIP))
        cJSON_AddBoolToObject(r, "clip", qz_calibrated(o) || o->imatrix ? !o->no_clip : o->clip);
    if (takes(o, QZ_OPT_GROUP) && !shared)
        cJSON_AddNumberToObject(r, "group_size", (double)qz_group(o));
}

cJSON *qz_recipe(const qz_opts *o)
{
    cJSON *r = cJSON_CreateObject();
    cJSON_AddStringToObject(r, "method", o->method->name);
    add_grid(r, o);
    if (takes(o, QZ_OPT_ACT_ORDER)) cJSON_AddBoolToObject(r, "act_order", !o->no_act_order);
    if (takes(o, QZ_OPT_STATIC)) cJSON_AddBoolToObject(r, "static_groups", !o->no_static_groups);
    if (takes(o, QZ_OPT_DAMP)) cJSON_AddNumberToObject(r, "damp", qz_damp(o));
    if (o->effort) cJSON_AddStringToObject(r, "effort", o->effort->name);
    if (qz_tune_steps(o)) cJSON_AddNumberToObject(r, "tune", qz_tune_steps(o));
    if (takes(o, QZ_OPT_FOLD)) cJSON_AddBoolToObject(r, "fold", qz_folds(o));
    if (takes(o, QZ_OPT_MATCH)) cJSON_AddBoolToObject(r, "match", qz_matches(o));
    if (qz_calibrated(o) && o->all_experts) cJSON_AddBoolToObject(r, "all_experts", true);
    if (takes(o, QZ_OPT_DOUBLE)) cJSON_AddBoolToObject(r, "double_quant", o->dbl);
    if (o->method->recipe) o->method->recipe(r, o);
    if (o->on) cJSON_AddStringToObject(r, "device", "cuda");
    add_list(r, "overrides", o->overrides, o->n_overrides);
    add_list(r, "skip", o->skips, o->n_skips);
    if (o->rotate) cJSON_AddNumberToObject(r, "rotate_seed", (double)o->rotate_seed);
    if (o->outer) cJSON_AddStringToObject(r, "outer", o->outer);
    if (o->lm_head) cJSON_AddStringToObject(r, "lm_head", o->lm_head);
    if (o->embed) cJSON_AddStringToObject(r, "embed", o->embed);
    if (o->mtp) cJSON_AddStringToObject(r, "mtp", o->mtp);
    return r;
}
