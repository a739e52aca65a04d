/* tools/report/quantize_html.c - see quantize_html.h. */
#include "tools/report/quantize_html.h"

#include "base/hash.h"
#include "formats/llmq/llmq.h"
#include "tools/cli/html_page.h"

HTML_PAGE(qhtml_page, "report.html");

/* What the file itself says. */
static lq_status add_file(cJSON *doc, const char *path, lq_err *err)
{
    lqf_file f;
    char hex[33];
    lq_status s = lqf_open(&f, path, err);
    if (s) return s;
    const lq_hash h = lq_hash_bytes(f.bytes.data, f.bytes.bytes);
    lq_hash_hex(hex, &h);
    cJSON_AddStringToObject(doc, "xxh3", hex);
    cJSON_AddItemToObject(doc, "recipe", cJSON_Duplicate(f.recipe, true));
    cJSON_AddItemToObject(doc, "provenance", cJSON_Duplicate(f.provenance, true));
    lqf_close(&f);
    return LQ_OK;
}

lq_status qhtml_write(const char *path, const qz_result *r, const qrep_run *run, lq_err *err)
{
    cJSON *doc = qrep_json(r, run);
    lq_status s = doc ? add_file(doc, run->out, err) : LQ_ENOMEM;
    if (!s) s = html_write(path, qhtml_page, qhtml_page_end, doc, err);
    cJSON_Delete(doc);
    return s == LQ_ENOMEM ? lq_fail(err, s, "%s: no memory", path) : s;
}
