/* runtime/api/api_file_routes.c - POST, GET and DELETE /v1/files. */
#include "runtime/api/api_files_int.h"
#include "runtime/api/api_int.h"
#include "runtime/api/multipart.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

/* ---- lists ---- */

bool api_read_page(http_req *r, api_page *p, int64_t def, int64_t most)
{
    const char *limit = http_query(r, "limit");
    char *end = NULL;
    errno = 0;
    *p = (api_page){ .limit = limit ? strtoll(limit, &end, 10) : def,
                     .after = http_query(r, "after") };
    p->begun = !p->after;
    if (!limit || (*limit && !*end && !errno && p->limit >= 1 && p->limit <= most)) return true;
    http_error(r, 400, "limit", "invalid_value", "limit: expected 1..%lld, found '%.20s'",
               (long long)most, limit);
    return false;
}

bool api_page_takes(api_page *p, const char *id, bool listed)
{
    const bool here = p->begun && listed && p->limit > 0;
    p->more = p->begun && listed && p->limit == 0;
    p->begun |= !p->begun && strcmp(id, p->after) == 0;
    if (!here) return false;
    if (!p->first[0]) snprintf(p->first, sizeof p->first, "%s", id);
    snprintf(p->last, sizeof p->last, "%s", id);
    p->limit--;
    return true;
}

void api_write_page(jw *w, const api_page *p)
{
    jw_put_cstr(w, "first_id", p->first[0] ? p->first : NULL);
    jw_put_cstr(w, "last_id", p->last[0] ? p->last : NULL);
    jw_put_bool(w, "has_more", p->more);
}

/* ---- the routes ---- */

static void write_file(jw *w, const api_file *f)
{
    jw_open(w, '{');
    jw_key(w, "id");
    jw_cstr(w, f->id);
    jw_key(w, "object");
    jw_cstr(w, "file");
    jw_key(w, "bytes");
    jw_i64(w, (int64_t)f->data.n);
    jw_key(w, "created_at");
    jw_i64(w, f->created);
    if (f->expires) {
        jw_key(w, "expires_at");
        jw_i64(w, f->expires);
    }
    jw_key(w, "filename");
    jw_cstr(w, f->name);
    jw_key(w, "purpose");
    jw_cstr(w, f->purpose);
    jw_key(w, "status");
    jw_cstr(w, "processed");
    jw_close(w, '}');
}

bool api_keeps_files(const api *a, http_req *r)
{
    if (a->files) return true;
    http_error(r, 404, NULL, "no_file_store", "this server keeps no files (--file-store)");
    return false;
}

typedef struct {
    api_file f;
    const char *data;
    size_t n;
    bool anchored;
} upload;

static lq_status take_seconds(upload *u, const form_part *p, api_error *e)
{
    char text[24] = "", *end;
    memcpy(text, p->data, p->n < sizeof text ? p->n : 0);
    const long long s = strtoll(text, &end, 10);
    if (!text[0] || *end || s < 3600 || s > 2592000)
        return api_fail(e, "expires_after", "invalid_value",
                        "expires_after[seconds]: expected 3600..2592000, found '%s'", text);
    u->f.expires = (int64_t)time(NULL) + s;
    return LQ_OK;
}

static bool is_text(const form_part *p, const char *text)
{
    return p->n == strlen(text) && memcmp(p->data, text, p->n) == 0;
}

static lq_status take_part(upload *u, const form_part *p, api_error *e)
{
    if (strcmp(p->name, "file") == 0) {
        u->data = p->data;
        u->n = p->n;
        memcpy(u->f.name, p->file, sizeof u->f.name);
    } else if (strcmp(p->name, "purpose") == 0) {
        if (!is_text(p, "batch"))
            return api_fail(e, "purpose", "unsupported_value",
                            "purpose: expected batch, found '%.*s'", p->n < 40 ? (int)p->n : 40,
                            p->data);
        snprintf(u->f.purpose, sizeof u->f.purpose, "batch");
    } else if (strcmp(p->name, "expires_after[seconds]") == 0) {
        return take_seconds(u, p, e);
    } else if (strcmp(p->name, "expires_after[anchor]") == 0) {
        if (!is_text(p, "created_at"))
            return api_fail(e, "expires_after", "invalid_value",
                            "expires_after[anchor]: expected created_at");
    } else {
        return api_fail(e, p->name, "unknown_parameter", "%.60s: unknown parameter", p->name);
    }
    return LQ_OK;
}

static lq_status read_form(upload *u, http_req *r, api_error *e)
{
    size_t n;
    const char *body = http_body(r, &n);
    multipart m;
    form_part p;
    bool more = false;
    lq_err err = { "" };
    lq_status s = multipart_open(&m, http_header(r, "Content-Type"), body, n, &err);
    while (!s && !(s = multipart_next(&m, &p, &more, &err)) && more) {
        s = take_part(u, &p, e);
        if (s) return s;
    }
    if (s) return api_fail(e, NULL, "invalid_form", "%s", err.msg);
    const char *missing = !u->data ? "file" : !u->f.purpose[0] ? "purpose" : NULL;
    if (!missing) return LQ_OK;
    return api_fail(e, missing, "missing_required_parameter", "%s: it is required", missing);
}

lq_status api_keep_file(api *a, const api_file *like, const char *text, size_t n, api_file **f,
                        api_error *e)
{
    lq_buf data = { 0 };
    const size_t bytes = n + sizeof *like;
    if (!api_files_claim(a->files, bytes)) {
        api_fail(e, "file", "file_store_full",
                 "the file store has no room for %zu bytes (--file-store %zu)", n, a->files->most);
        e->status = 413;
        return LQ_EVALUE;
    }
    data.p = malloc(n + 1);
    if (!data.p) {
        api_files_give_back(a->files, bytes);
        return api_no_memory(e);
    }
    memcpy(data.p, text, n);
    data.n = data.cap = n;
    lq_err err = { "" };
    *f = api_files_add(a->files, like, &data, &err);
    if (*f) return LQ_OK;
    if (a->o.note) a->o.note(a->o.user, err.msg);
    api_fail(e, NULL, "file_store_failed", "the server cannot keep the file");
    e->status = 500;
    return LQ_EIO;
}

void api_post_file(void *app, http_req *r)
{
    api *a = app;
    upload u = { .f.owner = http_client(r) };
    api_file *f = NULL;
    api_error e = { 0 };
    jw w = { 0 };
    if (!api_keeps_files(a, r)) return;
    lq_status s = read_form(&u, r, &e);
    if (!s) s = api_keep_file(a, &u.f, u.data, u.n, &f, &e);
    if (s) {
        api_reply_error(a, r, &e);
        return;
    }
    write_file(&w, f);
    api_file_unref(a->files, f);
    api_reply(r, 200, &w);
}

void api_get_files(void *app, http_req *r)
{
    api *a = app;
    const lq_hash owner = http_client(r);
    const char *purpose = http_query(r, "purpose");
    api_page p;
    jw w = { 0 };
    if (!api_keeps_files(a, r) || !api_read_page(r, &p, 10000, 10000)) return;
    jw_open(&w, '{');
    jw_key(&w, "object");
    jw_cstr(&w, "list");
    jw_key(&w, "data");
    jw_open(&w, '[');
    pthread_mutex_lock(&a->files->mu);
    api_files_expire(a->files);
    for (const api_file *f = a->files->latest; f && !p.more; f = f->next) {
        const bool mine = memcmp(&f->owner, &owner, sizeof owner) == 0 &&
                          (!purpose || strcmp(f->purpose, purpose) == 0);
        if (api_page_takes(&p, f->id, mine)) write_file(&w, f);
    }
    pthread_mutex_unlock(&a->files->mu);
    jw_close(&w, ']');
    api_write_page(&w, &p);
    jw_close(&w, '}');
    api_reply(r, 200, &w);
}

static void no_such_file(http_req *r)
{
    http_error(r, 404, "file_id", "file_not_found", "there is no file '%.60s' here (any more)",
               http_rest(r));
}

/* /v1/files/ID, and its text: /v1/files/ID/content. */
void api_get_file(void *app, http_req *r)
{
    static const char content[] = "/content";
    api *a = app;
    const lq_hash owner = http_client(r);
    char id[sizeof((api_file *)0)->id];
    jw w = { 0 };
    if (!api_keeps_files(a, r)) return;
    snprintf(id, sizeof id, "%s", http_rest(r));
    char *slash = strchr(id, '/');
    const bool whole = slash && strcmp(slash, content) == 0;
    if (whole) *slash = 0;
    api_file *f = api_files_get(a->files, id, &owner);
    if (!f) {
        no_such_file(r);
    } else if (whole) {
        http_reply(r, 200, f->data.p, f->data.n,
                   &(http_extra){ .type = "application/octet-stream" });
    } else {
        write_file(&w, f);
        api_reply(r, 200, &w);
    }
    api_file_unref(a->files, f);
}

void api_delete_file(void *app, http_req *r)
{
    api *a = app;
    const lq_hash owner = http_client(r);
    jw w = { 0 };
    if (!api_keeps_files(a, r)) return;
    if (!api_files_remove(a->files, http_rest(r), &owner)) {
        no_such_file(r);
        return;
    }
    jw_open(&w, '{');
    jw_key(&w, "id");
    jw_cstr(&w, http_rest(r));
    jw_key(&w, "object");
    jw_cstr(&w, "file");
    jw_key(&w, "deleted");
    jw_bool(&w, true);
    jw_close(&w, '}');
    api_reply(r, 200, &w);
}
