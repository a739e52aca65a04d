/* quantize/layer/report.c - see report.h. */
#include "quantize/layer/report.h"

#include <stdio.h>

#include "base/json.h"

void qz_report_inputs(qz_report *r, const cal_stats *s)
{
    double most = 0, sum = 0;
    for (int64_t k = 0; k < s->K; k++) {
        most = (double)s->max_abs[k] > most ? (double)s->max_abs[k] : most;
        sum += (double)s->mean_abs[k];
    }
    if (!(most > r->in_max)) return;
    r->in_max = most;
    r->in_mean = sum / (double)s->K;
    memset(r->top_max, 0, sizeof r->top_max);
    for (int64_t k = 0; k < s->K; k++) {
        const double v = (double)s->max_abs[k];
        int at = QZ_TOP;
        while (at > 0 && v > r->top_max[at - 1])
            at--;
        for (int i = QZ_TOP - 1; i > at; i--) {
            r->top[i] = r->top[i - 1];
            r->top_max[i] = r->top_max[i - 1];
        }
        if (at == QZ_TOP) continue;
        r->top[at] = k;
        r->top_max[at] = v;
    }
}

void qz_report_fold(qz_report *r, const float *factors, int64_t K, double alpha)
{
    r->alpha = alpha;
    for (int64_t k = 0; k < K; k++) {
        const double v = (double)factors[k];
        if (r->fold_hi <= 0 || v < r->fold_lo) r->fold_lo = v;
        if (v > r->fold_hi) r->fold_hi = v;
    }
}

/* ---- as JSON ---- */
static void add_number(cJSON *o, const char *key, double v)
{
    if (isfinite(v)) cJSON_AddNumberToObject(o, key, v);
}

cJSON *qz_report_json(const qz_report *r)
{
    cJSON *j = cJSON_CreateObject();
    cJSON_AddStringToObject(j, "name", r->name);
    cJSON_AddStringToObject(j, "scheme", r->scheme);
    cJSON_AddStringToObject(j, "note", r->note);
    cJSON_AddNumberToObject(j, "role", (double)r->role);
    cJSON_AddNumberToObject(j, "layer", (double)r->layer);
    cJSON_AddNumberToObject(j, "expert", (double)r->expert);
    cJSON_AddNumberToObject(j, "tokens", (double)r->tokens);
    cJSON_AddNumberToObject(j, "elements", (double)r->elements);
    cJSON_AddNumberToObject(j, "bytes", (double)r->bytes);
    add_number(j, "rmse", r->rmse);
    add_number(j, "loss", r->loss);
    add_number(j, "loss_rtn", r->loss_rtn);
    if (r->in_max > 0) {
        add_number(j, "in_max", r->in_max);
        add_number(j, "in_mean", r->in_mean);
        cJSON *top = cJSON_AddArrayToObject(j, "top"), *most = cJSON_AddArrayToObject(j, "top_max");
        for (int i = 0; i < QZ_TOP && r->top_max[i] > 0; i++) {
            cJSON_AddItemToArray(top, cJSON_CreateNumber((double)r->top[i]));
            cJSON_AddItemToArray(most, cJSON_CreateNumber(r->top_max[i]));
        }
    }
    if (r->fold_hi > 0) {
        add_number(j, "alpha", r->alpha);
        add_number(j, "fold_lo", r->fold_lo);
        add_number(j, "fold_hi", r->fold_hi);
    }
    return j;
}

static double number_or(double otherwise, const cJSON *j, const char *key)
{
    js_f64(j, key, false, -(double)INFINITY, (double)INFINITY, &otherwise, NULL);
    return otherwise;
}

static void read_top(qz_report *r, const cJSON *j)
{
    const cJSON *k = js_get(j, "top"), *v = js_get(j, "top_max");
    if (!cJSON_IsArray(k) || !cJSON_IsArray(v)) return;
    k = k->child;
    v = v->child;
    for (int i = 0; i < QZ_TOP && cJSON_IsNumber(k) && cJSON_IsNumber(v); i++) {
        r->top[i] = (int64_t)k->valuedouble;
        r->top_max[i] = v->valuedouble;
        k = k->next;
        v = v->next;
    }
}

bool qz_report_read(qz_report *r, const cJSON *j)
{
    const double nan = (double)NAN;
    const char *scheme = "", *text = "";
    int64_t bytes = 0, role = 0;
    *r = (qz_report){ .rmse = number_or(nan, j, "rmse"),
                      .loss = number_or(nan, j, "loss"),
                      .loss_rtn = number_or(nan, j, "loss_rtn"),
                      .effect = nan, /* of the choice, not of the part */
                      .in_max = number_or(0, j, "in_max"),
                      .in_mean = number_or(0, j, "in_mean"),
                      .alpha = number_or(0, j, "alpha"),
                      .fold_lo = number_or(0, j, "fold_lo"),
                      .fold_hi = number_or(0, j, "fold_hi") };
    if (js_str(j, "name", true, &r->name, NULL) || js_str(j, "scheme", true, &scheme, NULL) ||
        js_str(j, "note", true, &text, NULL) ||
        js_i64(j, "role", true, 0, ARCH_N_ROLES - 1, &role, NULL) ||
        js_i64(j, "layer", true, -1, INT32_MAX, &r->layer, NULL) ||
        js_i64(j, "expert", true, -1, INT32_MAX, &r->expert, NULL) ||
        js_i64(j, "tokens", true, -1, JS_MAX_INT, &r->tokens, NULL) ||
        js_i64(j, "elements", true, 1, INT64_C(1) << 48, &r->elements, NULL) ||
        js_i64(j, "bytes", true, 1, INT64_C(1) << 50, &bytes, NULL))
        return false;
    snprintf(r->scheme, sizeof r->scheme, "%s", scheme);
    snprintf(r->note, sizeof r->note, "%s", text);
    r->role = (arch_role)role;
    r->bytes = (size_t)bytes;
    read_top(r, j);
    return true;
}
