/* convert/report.c */
#include "convert/report.h"

#include "base/hash.h"
#include "base/json.h"
#include "base/version.h"
#include "formats/source/history.h"

#include <stdarg.h>
#include <stdio.h>

void conv_note(conv_report *r, const char *fmt, ...)
{
    va_list args;
    if (r->n_notes == CONV_MAX_NOTES) return;
    va_start(args, fmt);
    vsnprintf(r->note[r->n_notes++], sizeof r->note[0], fmt, args);
    va_end(args);
}

void conv_note_inputs(conv_report *r, const src_source *src)
{
    int64_t n = 0;
    for (int64_t i = 0; i < src_n_tensors(src); i++)
        n += src_tensor_at(src, i)->plain && src_tensor_at(src, i)->t.scheme.act;
    if (n)
        conv_note(r,
                  "the source rounds the inputs of %lld layers to 8 bits, which floats cannot say: "
                  "the result's logits differ",
                  (long long)n);
}

bool conv_has_history(const src_source *src, bool anew)
{
    return src_recipe(src) || src_conversion(src) || anew;
}

cJSON *conv_from(const src_source *src, bool anew)
{
    char hex[33];
    lq_hash h;
    cJSON *o = cJSON_CreateObject();
    bool ok = o && cJSON_AddStringToObject(o, "format", src_format(src));
    if (ok && (anew || strcmp(src_format(src), "llmq") == 0)) { /* a .llmq has it in its table */
        ok = !src_fingerprint(&h, src, NULL);
        if (ok) lq_hash_hex(hex, &h);
        ok = ok && cJSON_AddStringToObject(o, "xxh3", hex);
    }
    if (ok) return o;
    cJSON_Delete(o);
    return NULL;
}

/* Which weights these were is not kept, so two times 14 may be the same 14. */
static double most(const cJSON *before, const char *key, double now)
{
    double was = 0;
    js_f64(before, key, false, 0, 1e15, &was, NULL);
    return was > now ? was : now;
}

cJSON *conv_converted(const src_source *src, const conv_report *r, const cJSON *from)
{
    const cJSON *before = src_conversion(src);
    const bool changed = r->requantized || r->floats || !r->bit_exact;
    double times = before ? 1 : 0; /* none is told of one time */
    if (before && !changed) return cJSON_Duplicate(before, true);
    js_f64(before, "times", false, 1, 1e15, &times, NULL);
    cJSON *o = cJSON_CreateObject();
    cJSON_AddStringToObject(o, "llmq", LLMQ_VERSION);
    cJSON_AddItemToObject(o, "from", cJSON_Duplicate(from, true));
    cJSON_AddBoolToObject(o, "bit_exact", r->bit_exact);
    cJSON_AddNumberToObject(o, "requantized", most(before, "requantized", (double)r->requantized));
    cJSON_AddNumberToObject(o, "floats", most(before, "floats", (double)r->floats));
    if (times > 0) cJSON_AddNumberToObject(o, "times", times + 1);
    if (!js_ran_out()) return o;
    cJSON_Delete(o);
    return NULL;
}
