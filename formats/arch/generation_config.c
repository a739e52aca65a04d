/* formats/arch/generation_config.c - see generation_config.h. */
#include "formats/arch/generation_config.h"

#include "base/json.h"

#include <float.h>
#include <stdlib.h>

typedef struct {
    const char *key;
    bool *has;
    double *real; /* or */
    int64_t *whole;
    double lo, hi;
} field;

enum { N_FIELDS = 6 };

static const double LEAST = (double)FLT_MIN;

static void list_fields(field out[N_FIELDS], gen_defaults *g)
{
    const field all[N_FIELDS] = {
        { "temperature", &g->has_temperature, &g->temperature, NULL, 0, 100 },
        { "top_p", &g->has_top_p, &g->top_p, NULL, LEAST, 1 },
        { "top_k", &g->has_top_k, NULL, &g->top_k, -1, INT32_MAX },
        { "min_p", &g->has_min_p, &g->min_p, NULL, 0, 1 },
        { "repetition_penalty", &g->has_repetition_penalty, &g->repetition_penalty, NULL, LEAST,
          1e6 },
        { "max_new_tokens", &g->has_max_new_tokens, NULL, &g->max_new_tokens, 1, INT32_MAX },
    };
    memcpy(out, all, sizeof all);
}

static lq_status read_field(const field *f, const cJSON *doc, lq_err *err)
{
    const cJSON *v = js_get(doc, f->key);
    if (!v || cJSON_IsNull(v)) return LQ_OK;
    double d = cJSON_IsNumber(v) ? v->valuedouble : -2;
    bool fits = d >= f->lo && d <= f->hi && (f->real || d == (double)(int64_t)d);
    if (!fits) {
        char *found = js_print(v, false);
        lq_status s = lq_fail(err, LQ_EVALUE, "%s: expected %s%.3g to %.3g, found %.60s", f->key,
                              f->real ? "" : "a whole number, ", f->lo, f->hi,
                              found ? found : "another type");
        free(found);
        return s;
    }
    *f->has = true;
    if (f->real)
        *f->real = d;
    else
        *f->whole = (int64_t)d;
    return LQ_OK;
}

lq_status gen_read(gen_defaults *g, const uint8_t *data, size_t n, lq_err *err)
{
    enum { MAX_FILE = 1 << 20 };
    cJSON *doc;
    field fields[N_FIELDS];
    *g = (gen_defaults){ 0 };
    if (!data) return LQ_OK;
    lq_status s = js_parse(&doc, (const char *)data, n, MAX_FILE, 0, err);
    if (s) return s;
    if (!cJSON_IsObject(doc)) s = lq_fail(err, LQ_EFORMAT, "expected an object");
    list_fields(fields, g);
    for (int i = 0; i < N_FIELDS && !s; i++)
        s = read_field(&fields[i], doc, err);
    const cJSON *sample = js_get(doc, "do_sample");
    if (!s && sample && !cJSON_IsNull(sample) && !cJSON_IsBool(sample))
        s = lq_fail(err, LQ_EVALUE, "do_sample: expected true or false");
    if (!s && cJSON_IsFalse(sample)) {
        g->has_temperature = true;
        g->temperature = 0;
    }
    if (!s && cJSON_IsTrue(sample) && !g->has_temperature) { /* its class's own default */
        g->has_temperature = true;
        g->temperature = 1;
    }
    if (g->top_k < 0) g->top_k = 0;
    cJSON_Delete(doc);
    return s;
}

cJSON *gen_json(const gen_defaults *g)
{
    gen_defaults copy = *g;
    field fields[N_FIELDS];
    cJSON *o = cJSON_CreateObject();
    bool ok = o != NULL;
    list_fields(fields, &copy);
    for (int i = 0; i < N_FIELDS && ok; i++)
        ok = !*fields[i].has ||
             cJSON_AddNumberToObject(o, fields[i].key,
                                     fields[i].real ? *fields[i].real : (double)*fields[i].whole);
    if (ok) return o;
    cJSON_Delete(o);
    return NULL;
}
