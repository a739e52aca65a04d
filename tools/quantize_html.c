/* tools/quantize_html.c - see quantize_html.h. The page is embedded; the compiler runs at the root
 * of the repository, where .incbin finds it. */
#include "tools/quantize_html.h"

#include "formats/json.h"
#include "formats/llmq.h"

#include <stdio.h>
#include <stdlib.h>

__asm__(".section .rodata\n"
        "qhtml_page:\n"
        ".incbin \"tools/report.html\"\n"
        "qhtml_page_end:\n"
        ".byte 0\n"
        ".text\n");
extern const char qhtml_page[], qhtml_page_end[];

static const char marker[] = "@DATA@";

lq_status qhtml_check(const char *path, lq_err *err)
{
    lq_out *o;
    lq_status s = lq_out_open(&o, path, err);
    if (!s) lq_out_abort(o);
    return s ? lq_wrap(err, s, "--report") : LQ_OK;
}

/* Paths may be any bytes, a page is UTF-8. */
static cJSON *readable(const char *text)
{
    char *copy = strdup(text ? text : "");
    if (!copy) return NULL;
    if (!js_valid_utf8(copy, strlen(copy)))
        for (char *c = copy; *c; c++)
            if ((unsigned char)*c >= 0x80) *c = '?';
    cJSON *j = cJSON_CreateString(copy);
    free(copy);
    return j;
}

/* What the file itself says. */
static lq_status add_file(cJSON *doc, const char *path, lq_err *err)
{
    llmq_file f;
    char hex[33];
    lq_status s = llmq_open(&f, path, err);
    if (s) return s;
    const lq_hash h = lq_hash_bytes(f.bytes.data, f.bytes.bytes);
    lq_hash_hex(hex, &h);
    cJSON_AddStringToObject(doc, "xxh3", hex);
    cJSON_AddItemToObject(doc, "recipe", cJSON_Duplicate(f.recipe, true));
    cJSON_AddItemToObject(doc, "provenance", cJSON_Duplicate(f.provenance, true));
    llmq_close(&f);
    return LQ_OK;
}

static lq_status write_escaped(lq_out *o, const char *text, lq_err *err)
{
    lq_status s = LQ_OK;
    while (*text && !s) {
        const size_t n = strcspn(text, "<>&");
        s = lq_out_write(o, text, n, err);
        text += n;
        if (s || !*text) continue;
        char escape[16];
        snprintf(escape, sizeof escape, "\\u%04x", (unsigned char)*text++);
        s = lq_out_write(o, escape, strlen(escape), err);
    }
    return s;
}

static lq_status write_page(const char *path, const char *json, lq_err *err)
{
    const size_t size = (size_t)(qhtml_page_end - qhtml_page);
    const char *at = memmem(qhtml_page, size, marker, strlen(marker));
    const char *rest = at + strlen(marker);
    lq_out *o;
    lq_status s = lq_out_open(&o, path, err);
    if (s) return s;
    s = lq_out_write(o, qhtml_page, (size_t)(at - qhtml_page), err);
    if (!s) s = write_escaped(o, json, err);
    if (!s) s = lq_out_write(o, rest, (size_t)(qhtml_page_end - rest), err);
    if (!s) return lq_out_commit(o, err);
    lq_out_abort(o);
    return s;
}

lq_status qhtml_write(const char *path, const qz_result *r, const qrep_run *run, lq_err *err)
{
    cJSON *doc = qrep_json(r, run);
    cJSON_ReplaceItemInObjectCaseSensitive(doc, "source", readable(run->source));
    cJSON_ReplaceItemInObjectCaseSensitive(doc, "out", readable(run->out));
    lq_status s = doc ? add_file(doc, run->out, err) : LQ_ENOMEM;
    char *json = s ? NULL : js_print(doc, false);
    if (!s && !json) s = LQ_ENOMEM;
    if (!s) s = write_page(path, json, err);
    free(json);
    cJSON_Delete(doc);
    return s == LQ_ENOMEM ? lq_fail(err, s, "%s: no memory", path) : s;
}
