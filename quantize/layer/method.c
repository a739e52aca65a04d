/* quantize/layer/method.c - the table of methods; options into schemes and recipes. */
#include "quantize/layer/method.h"

#include <cjson/cJSON.h>
#include <stdio.h>

const qz_method_row qz_methods[QZ_N_METHODS] = {
    [QZ_RTN] = { "rtn", false, false },       [QZ_HQQ] = { "hqq", false, false },
    [QZ_ABSMAX] = { "absmax", false, false }, [QZ_INT8] = { "int8", true, false },
    [QZ_NF4] = { "nf4", false, false },       [QZ_FP4] = { "fp4", false, false },
    [QZ_GPTQ] = { "gptq", true, true },       [QZ_AWQ] = { "awq", true, true },
    [QZ_AUTO] = { "auto", true, true },
};

lq_status qz_method_find(qz_method *m, const char *name, lq_err *err)
{
    char list[128] = "";
    for (int i = 0; i < QZ_N_METHODS; i++) {
        if (strcmp(qz_methods[i].name, name) == 0) return *m = (qz_method)i, LQ_OK;
        size_t n = strlen(list);
        snprintf(list + n, sizeof list - n, "%s%s", n ? ", " : "", qz_methods[i].name);
    }
    return lq_fail(err, LQ_EUSAGE, "--method: expected one of %s; found '%s'", list, name);
}

static bool uniform(qz_method m)
{
    return m == QZ_RTN || m == QZ_HQQ || m == QZ_GPTQ || m == QZ_AWQ || m == QZ_AUTO;
}
static bool table(qz_method m) { return m == QZ_NF4 || m == QZ_FP4; }

bool qz_folds(const qz_opts *o) { return qz_methods[o->method].hessian && !o->no_fold; }

bool qz_calibrated(const qz_opts *o)
{
    if (o->method == QZ_RTN) return o->importance;
    return qz_methods[o->method].calibrated && !(o->method == QZ_INT8 && o->outlier_threshold < 0);
}

bool qz_shapes(qz_method m, int bits, double bpw, int tune)
{
    return m != QZ_GPTQ || bits != 2 || bpw > 0 || tune > 0;
}

bool qz_in_stages(const qz_opts *o) { return qz_calibrated(o) && !qz_folds(o); }

double qz_outlier_share(const qz_opts *o)
{
    return o->outlier_share < 0 ? 0 : o->outlier_share > 0 ? o->outlier_share : 0.06;
}

double qz_outlier_threshold(const qz_opts *o)
{
    return o->outlier_threshold > 0 ? o->outlier_threshold : 6;
}

bool qz_is_auto(const char *scheme) { return scheme && strcmp(scheme, "auto") == 0; }
bool qz_bpw_whole(const qz_opts *o) { return qz_is_auto(o->lm_head) || qz_is_auto(o->embed); }

int qz_tune_steps(const qz_opts *o) { return qz_methods[o->method].hessian ? o->tune : 0; }

static int bits_of(const qz_opts *o) { return o->bits ? o->bits : 4; }
static int64_t group_of(const qz_opts *o)
{
    return o->group < 0                              ? -1
           : o->group                                ? o->group
           : table(o->method) || o->method == QZ_HQQ ? 64
                                                     : 128;
}

lq_status qz_default_scheme(qt_scheme *s, const qz_opts *o, lq_err *err)
{
    char text[40];
    int64_t G = group_of(o);
    if (table(o->method)) {
        if (G < 32 || G > 4096 || (G & (G - 1)))
            return lq_fail(
                err, LQ_EUSAGE,
                "--group-size: expected a power of two from 32 to 4096 for %s, found %lld",
                qz_methods[o->method].name, (long long)o->group);
        snprintf(text, sizeof text, "%s-g%lld%s", qz_methods[o->method].name, (long long)G,
                 o->dbl ? "-double" : "");
    } else if (uniform(o->method)) {
        snprintf(text, sizeof text, "u%d-g%lld%s", bits_of(o), G < 0 ? 1LL : (long long)G,
                 o->sym                ? ""
                 : o->method == QZ_HQQ ? "-fzero"
                                       : "-asym");
    } else if (o->method == QZ_INT8) {
        snprintf(text, sizeof text, "%s", o->outlier_threshold < 0 ? "i8-row" : "i8-outlier");
    } else {
        snprintf(text, sizeof text, "i8-row%s", o->asym ? "-asym" : "");
    }
    lq_status st = qt_scheme_parse(s, text, err);
    if (st) return st == LQ_EVALUE ? LQ_EUSAGE : st;
    if (s->kind == QT_UINT) s->group = G;
    return LQ_OK;
}

static void add_list(cJSON *o, const char *key, const char *const *v, int n)
{
    cJSON *a = n ? cJSON_AddArrayToObject(o, key) : NULL;
    for (int i = 0; a && i < n; i++)
        cJSON_AddItemToArray(a, cJSON_CreateString(v[i]));
}

cJSON *qz_recipe(const qz_opts *o)
{
    cJSON *r = cJSON_CreateObject();
    cJSON_AddStringToObject(r, "method", qz_methods[o->method].name);
    if (uniform(o->method)) {
        if (o->bpw > 0) {
            cJSON_AddNumberToObject(r, "bpw", o->bpw);
            cJSON_AddBoolToObject(r, "bpw_fused", !o->untied);
        } else {
            cJSON_AddNumberToObject(r, "bits", bits_of(o));
        }
        if (o->method != QZ_HQQ) cJSON_AddBoolToObject(r, "sym", o->sym);
        if (o->sym) cJSON_AddBoolToObject(r, "narrow", o->narrow);
        if (o->method != QZ_HQQ)
            cJSON_AddBoolToObject(r, "clip",
                                  o->method == QZ_RTN && !o->importance ? o->clip : !o->no_clip);
    }
    if ((uniform(o->method) && !(o->bpw > 0)) || table(o->method))
        cJSON_AddNumberToObject(r, "group_size", (double)group_of(o));
    if (o->method == QZ_GPTQ) {
        cJSON_AddBoolToObject(r, "act_order", !o->no_act_order);
        cJSON_AddBoolToObject(r, "static_groups", !o->no_static_groups);
    }
    if (o->method == QZ_GPTQ || o->method == QZ_AUTO)
        cJSON_AddNumberToObject(r, "damp", o->damp > 0 ? o->damp : 0.01);
    if (qz_tune_steps(o)) cJSON_AddNumberToObject(r, "tune", qz_tune_steps(o));
    if (qz_methods[o->method].hessian) cJSON_AddBoolToObject(r, "fold", qz_folds(o));
    if (qz_calibrated(o) && o->all_experts) cJSON_AddBoolToObject(r, "all_experts", true);
    if (table(o->method)) cJSON_AddBoolToObject(r, "double_quant", o->dbl);
    if (o->method == QZ_ABSMAX) cJSON_AddBoolToObject(r, "sym", !o->asym);
    if (o->method == QZ_RTN && o->importance) cJSON_AddBoolToObject(r, "importance", true);
    if (o->method == QZ_INT8) cJSON_AddNumberToObject(r, "outlier_share", qz_outlier_share(o));
    if (o->method == QZ_INT8)
        cJSON_AddNumberToObject(r, "outlier_threshold",
                                o->outlier_threshold < 0   ? -1
                                : o->outlier_threshold > 0 ? o->outlier_threshold
                                                           : 6);
    if (o->on) cJSON_AddStringToObject(r, "device", "cuda");
    add_list(r, "overrides", o->overrides, o->n_overrides);
    add_list(r, "skip", o->skips, o->n_skips);
    if (o->rotate) cJSON_AddNumberToObject(r, "rotate_seed", (double)o->rotate_seed);
    if (o->lm_head) cJSON_AddStringToObject(r, "lm_head", o->lm_head);
    if (o->embed) cJSON_AddStringToObject(r, "embed", o->embed);
    return r;
}
