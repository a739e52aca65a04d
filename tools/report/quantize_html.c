/* tools/report/quantize_html.c - see quantize_html.h. */
#include "tools/report/quantize_html.h"

#include "base/embed.h"
#include "base/hash.h"
#include "formats/llmq/llmq.h"
#include "tools/cli/html_page.h"

LQ_EMBED(qhtml_page, "tools/report/report.html");

lq_status qhtml_about(cJSON **about, const char *made, bool is_out, lq_err *err)
{
    lqf_file f;
    char hex[33];
    lq_status s = lqf_open(&f, made, err);
    if (s) return s;
    cJSON *o = *about = cJSON_CreateObject();
    if (is_out) {
        const lq_hash h = lq_hash_bytes(f.bytes.data, f.bytes.bytes);
        lq_hash_hex(hex, &h);
        cJSON_AddStringToObject(o, "xxh3", hex);
    }
    cJSON_AddItemToObject(o, "recipe", cJSON_Duplicate(f.recipe, true));
    cJSON_AddItemToObject(o, "provenance", cJSON_Duplicate(f.provenance, true));
    lqf_close(&f);
    return o ? LQ_OK : lq_fail(err, LQ_ENOMEM, "%s: no memory", made);
}

lq_status qhtml_write(const char *path, const qz_result *r, const qrep_run *run, cJSON *about,
                      lq_err *err)
{
    cJSON *doc = qrep_json(r, run), *j;
    while (doc && (j = cJSON_DetachItemFromArray(about, 0)))
        cJSON_AddItemToObject(doc, j->string, j);
    lq_status s = doc ? html_write(path, qhtml_page, qhtml_page_end, doc, err) : LQ_ENOMEM;
    cJSON_Delete(doc);
    return s == LQ_ENOMEM ? lq_fail(err, s, "%s: no memory", path) : s;
}
