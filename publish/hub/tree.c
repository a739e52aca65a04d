/* publish/hub/tree.c - see tree.h. */
#include "publish/hub/tree.h"

#include "base/file.h"
#include "base/out_file.h"

#include <stdio.h>
#include <stdlib.h>

enum { MAX_LIST = 64 << 20, MAX_ENTRIES = 200000 };

void hub_tree_free(hub_tree *t)
{
    for (size_t i = 0; i < t->n; i++)
        free(t->e[i].path);
    free(t->e);
    *t = (hub_tree){ NULL, 0 };
}

hub_entry *hub_tree_add(hub_tree *t, const char *path)
{
    if (t->n == MAX_ENTRIES) return NULL;
    if ((t->n & (t->n - 1)) == 0) { /* room for a power of two */
        hub_entry *more = realloc(t->e, (t->n ? 2 * t->n : 1) * sizeof *more);
        if (!more) return NULL;
        t->e = more;
    }
    hub_entry *e = &t->e[t->n];
    *e = (hub_entry){ .path = strdup(path) };
    if (!e->path) return NULL;
    t->n++;
    return e;
}

const hub_entry *hub_tree_find(const hub_tree *t, const char *path)
{
    for (size_t i = 0; i < t->n; i++)
        if (strcmp(t->e[i].path, path) == 0) return &t->e[i];
    return NULL;
}

const char *hub_etag(const hub_entry *e) { return e->sha256[0] ? e->sha256 : e->git_sha1; }

static lq_status tree_no_memory(lq_err *err)
{
    return lq_fail(err, LQ_ENOMEM, "out of memory for a repository's list of files");
}

/* What both forms say of a file, under the names that each of them has. */
typedef struct {
    const char *oid, *sha256, *xet;
} keys;

static lq_status read_entry(hub_entry *e, const cJSON *file, const cJSON *large, const keys *k,
                            lq_err *err)
{
    const char *oid = NULL, *sha256 = NULL, *xet = NULL;
    int64_t bytes = 0;
    lq_status s = js_i64(file, "size", true, 0, JS_MAX_INT, &bytes, err);
    if (!s) s = js_str(file, k->oid, false, &oid, err);
    if (!s) s = js_str(large, k->sha256, false, &sha256, err);
    if (!s) s = js_str(file, k->xet, false, &xet, err);
    if (!s &&
        !((sha256 && sha_is_hex(sha256, strlen(sha256))) || (!sha256 && oid && sha1_is_hex(oid))))
        s = lq_fail(err, LQ_EFORMAT, "expected a digest in hex, found '%.80s'",
                    sha256 ? sha256
                    : oid  ? oid
                           : "");
    if (s) return lq_wrap(err, LQ_EFORMAT, "%.200s", e->path);
    e->bytes = (uint64_t)bytes;
    if (oid && sha1_is_hex(oid)) snprintf(e->git_sha1, sizeof e->git_sha1, "%s", oid);
    if (sha256) snprintf(e->sha256, sizeof e->sha256, "%s", sha256);
    if (xet && sha_is_hex(xet, strlen(xet))) snprintf(e->xet, sizeof e->xet, "%s", xet);
    return LQ_OK;
}

lq_status hub_tree_add_page(hub_tree *t, const char *text, size_t n, lq_err *err)
{
    static const keys page = { "oid", "oid", "xetHash" };
    cJSON *doc;
    lq_status s = js_parse(&doc, text, n, MAX_LIST, 0, err);
    if (s) return s;
    if (!cJSON_IsArray(doc)) s = lq_fail(err, LQ_EFORMAT, "expected a list of files, found none");
    for (const cJSON *f = s ? NULL : doc->child; f && !s; f = f->next) {
        const char *type = NULL, *path = NULL;
        s = js_str(f, "type", true, &type, err);
        if (!s) s = js_str(f, "path", true, &path, err);
        if (s || strcmp(type, "file") != 0) continue;
        hub_entry *e = hub_tree_add(t, path);
        s = e ? read_entry(e, f, js_get(f, "lfs"), &page, err) : tree_no_memory(err);
    }
    cJSON_Delete(doc);
    return s == LQ_EVALUE ? LQ_EFORMAT : s;
}

lq_status hub_tree_read(hub_tree *t, const char *path, lq_err *err)
{
    static const keys kept = { "blob_id", "lfs_sha256", "xet_hash" };
    cJSON *doc;
    int64_t version = 0;
    lq_status s = js_parse_file(&doc, path, MAX_LIST, 0, err);
    if (s) return s;
    s = js_i64(doc, "format_version", true, 1, 1, &version, err);
    const cJSON *files = js_get(doc, "files");
    if (!s && !cJSON_IsObject(files)) s = lq_fail(err, LQ_EFORMAT, "files: expected an object");
    for (const cJSON *f = s ? NULL : files->child; f && !s; f = f->next) {
        hub_entry *e = hub_tree_add(t, f->string);
        s = e ? read_entry(e, f, f, &kept, err) : tree_no_memory(err);
    }
    cJSON_Delete(doc);
    if (!s) return LQ_OK;
    hub_tree_free(t);
    return lq_wrap(err, s, "%s", path);
}

static cJSON *entry_json(const hub_entry *e)
{
    cJSON *o = cJSON_CreateObject();
    cJSON_AddNumberToObject(o, "size", (double)e->bytes);
    cJSON_AddStringToObject(o, "blob_id", e->git_sha1);
    if (e->sha256[0]) {
        cJSON_AddStringToObject(o, "lfs_sha256", e->sha256);
        cJSON_AddNumberToObject(o, "lfs_size", (double)e->bytes);
    }
    if (e->xet[0]) cJSON_AddStringToObject(o, "xet_hash", e->xet);
    return o;
}

lq_status hub_tree_write(const hub_tree *t, const char *path, lq_err *err)
{
    cJSON *doc = cJSON_CreateObject();
    cJSON_AddNumberToObject(doc, "format_version", 1);
    cJSON *files = cJSON_AddObjectToObject(doc, "files");
    for (size_t i = 0; i < t->n; i++)
        cJSON_AddItemToObject(files, t->e[i].path, entry_json(&t->e[i]));
    char *text = js_print(doc, true);
    cJSON_Delete(doc);
    lq_status s = text ? lq_write_file(path, text, strlen(text), err) : tree_no_memory(err);
    free(text);
    return s;
}
