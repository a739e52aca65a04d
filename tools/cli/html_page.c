/* tools/cli/html_page.c - see html_page.h. */
#include "tools/cli/html_page.h"

#include "base/out_file.h"

#include <stdio.h>
#include <stdlib.h>

static const char marker[] = "@DATA@";

lq_status html_check(const char *path, const char *option, lq_err *err)
{
    lq_out *o;
    lq_status s = lq_out_open(&o, path, err);
    if (!s) lq_out_abort(o);
    return s ? lq_wrap(err, s, "%s", option) : LQ_OK;
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

static lq_status write_page(const char *path, const char *page, const char *end, const char *json,
                            lq_err *err)
{
    const size_t size = (size_t)(end - page);
    const char *at = memmem(page, size, marker, strlen(marker));
    const char *rest = at + strlen(marker);
    lq_out *o;
    lq_status s = lq_out_open(&o, path, err);
    if (s) return s;
    s = lq_out_write(o, page, (size_t)(at - page), err);
    if (!s) s = write_escaped(o, json, err);
    if (!s) s = lq_out_write(o, rest, (size_t)(end - rest), err);
    if (!s) return lq_out_commit(o, err);
    lq_out_abort(o);
    return s;
}

lq_status html_write(const char *path, const char *page, const char *end, const cJSON *doc,
                     lq_err *err)
{
    char *json = js_print(doc, false);
    if (!json) return lq_fail(err, LQ_ENOMEM, "%s: no memory", path);
    const lq_status s = write_page(path, page, end, json, err);
    free(json);
    return s;
}
