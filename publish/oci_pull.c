/* publish/oci_pull.c - what a manifest names, and its blobs from where the last run stopped. */
#include "publish/oci.h"
#include "publish/ranged.h"

#include <stdio.h>
#include <stdlib.h>

/* ---- the manifest ---- */
static lq_status add_layer(pub_files *fs, const cJSON *layer, lq_err *err)
{
    const char *title = NULL, *digest = NULL;
    int64_t size = 0;
    pub_file *f;
    lq_status s = js_str(layer, "digest", true, &digest, err);
    if (!s) s = js_i64(layer, "size", true, 0, JS_MAX_INT, &size, err);
    if (!s) s = js_str(js_get(layer, "annotations"), OCI_TITLE, true, &title, err);
    if (s) return s;
    if (strncmp(digest, "sha256:", 7) != 0 || !sha_is_hex(digest + 7, strlen(digest + 7)))
        return lq_fail(err, LQ_EFORMAT, "digest: expected sha256: and 64 hex digits, found '%.80s'",
                       digest);
    s = pub_add(fs, title, &f, err);
    if (s) return s;
    f->bytes = (uint64_t)size;
    snprintf(f->sha256, sizeof f->sha256, "%s", digest + 7);
    return LQ_OK;
}

static lq_status read_manifest(pub_files *fs, const char *text, size_t n, lq_err *err)
{
    cJSON *doc;
    int64_t version = 0;
    lq_status s = js_parse(&doc, text, n, PUB_MAX_SMALL, JS_UNIQUE, err);
    if (s) return s;
    s = js_i64(doc, "schemaVersion", true, 2, 2, &version, err);
    const cJSON *layers = js_get(doc, "layers");
    if (!s && !cJSON_IsArray(layers))
        s = lq_fail(err, LQ_EFORMAT, "expected an artifact with layers, found %s",
                    js_get(doc, "manifests") ? "an index of several" : "none");
    for (const cJSON *l = s ? NULL : layers->child; l && !s; l = l->next)
        s = add_layer(fs, l, err);
    cJSON_Delete(doc);
    return s == LQ_EVALUE ? LQ_EFORMAT : s;
}

static lq_status open_oci(pub_remote *r, const char *where, const char *scratch, const pub_opts *o,
                          lq_err *err)
{
    (void)scratch;
    char *text = NULL;
    size_t n = 0;
    oci_conn *c = r->own = calloc(1, sizeof *c);
    if (!c) return lq_fail(err, LQ_ENOMEM, "out of memory");
    lq_status s = oci_open(c, where, o, err);
    if (!s) s = oci_get_manifest(&text, &n, r->digest, c, err);
    if (!s && !text) s = lq_fail(err, LQ_ENOENT, "expected an artifact, found none of that name");
    if (!s) s = read_manifest(&r->files, text, n, err);
    if (s == LQ_EFORMAT) lq_wrap(err, s, "manifest");
    free(text);
    return s;
}

/* ---- blobs ---- */
static lq_status call_oci(void *conn, const hc_request *r, hc_answer *a, lq_err *err)
{
    return oci_call(conn, r, a, err);
}

static lq_status refuse_blob(void *conn, const hc_answer *a, lq_err *err)
{
    return oci_refused(conn, a, "a blob", err);
}

static lq_status get(pub_remote *r, const pub_file *f, pub_part *part, lq_err *err)
{
    char url[HC_VALUE];
    oci_conn *c = r->own;
    const ranged_side side = { c, c->http, &c->retry, call_oci, refuse_blob };
    oci_url(url, sizeof url, c, "blobs/sha256:%s", f->sha256);
    return ranged_get(&side, url, f->bytes, part, err);
}

static void close_oci(pub_remote *r, bool done)
{
    (void)done;
    if (r->own) oci_close(r->own);
    free(r->own);
}

const pub_target pub_oci = { "oci://", NULL, oci_push, open_oci, get, close_oci };
