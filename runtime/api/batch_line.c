/* runtime/api/batch_line.c - see batch_line.h. */
#include "runtime/api/batch_line.h"

#include <string.h>

const char *batch_line_next(const char **at, const char *end, size_t *n)
{
    while (*at < end) {
        const char *from = *at, *stop = memchr(from, '\n', (size_t)(end - from));
        if (!stop) stop = end;
        *at = stop < end ? stop + 1 : end;
        *n = (size_t)(stop - from);
        for (size_t i = 0; i < *n; i++)
            if (!strchr(" \t\r", from[i])) return from;
    }
    return NULL;
}

lq_status batch_line_read(batch_line *l, const char *text, size_t n, size_t max_bytes, lq_err *err)
{
    const char *method = NULL;
    *l = (batch_line){ 0 };
    lq_status s = js_parse(&l->doc, text, n, max_bytes, JS_UNIQUE, err);
    if (!s && !cJSON_IsObject(l->doc)) s = lq_fail(err, LQ_EFORMAT, "expected an object");
    if (!s) s = js_str(l->doc, "custom_id", true, &l->id, err);
    if (!s) s = js_str(l->doc, "method", true, &method, err);
    if (!s && strcmp(method, "POST") != 0)
        s = lq_fail(err, LQ_EVALUE, "method: expected \"POST\", found \"%.20s\"", method);
    if (!s) s = js_str(l->doc, "url", true, &l->url, err);
    if (s) return s;
    l->body = js_get(l->doc, "body");
    l->body_text = js_member_source(text, n, "body", &l->n_body);
    if (!cJSON_IsObject(l->body) || !l->body_text)
        return lq_fail(err, LQ_EVALUE, "body: expected an object");
    return LQ_OK;
}

void batch_line_free(batch_line *l)
{
    cJSON_Delete(l->doc);
    *l = (batch_line){ 0 };
}

static void write_response(jw *w, const batch_answer *a)
{
    jw_open(w, '{');
    jw_key(w, "status_code");
    jw_i64(w, a->status);
    jw_key(w, "request_id");
    jw_cstr(w, a->name);
    jw_key(w, "body");
    jw_json(w, a->body, a->n_body);
    jw_close(w, '}');
}

void batch_line_write(jw *w, const batch_answer *a)
{
    jw_open(w, '{');
    jw_key(w, "id");
    jw_cstr(w, a->name);
    jw_key(w, "custom_id");
    jw_cstr(w, a->custom_id);
    jw_key(w, "response");
    if (a->error_code)
        jw_null(w);
    else
        write_response(w, a);
    jw_key(w, "error");
    if (a->error_code) {
        jw_open(w, '{');
        jw_key(w, "code");
        jw_cstr(w, a->error_code);
        jw_key(w, "message");
        jw_cstr(w, a->error);
        jw_close(w, '}');
    } else {
        jw_null(w);
    }
    jw_close(w, '}');
    lq_buf_add(&w->b, "\n", 1);
    w->comma = false;
}
