/* publish/oci_pull.c - what a manifest names, and its blobs from where the last run stopped. */
#include "publish/oci.h"

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
typedef struct {
    oci_conn *c;
    pub_part *part;
    uint64_t bytes;
    bool whole; /* no range was asked for */
    bool lied;  /* nor can one be had */
} download;

static lq_status begin_anew(download *d, lq_err *err)
{
    lq_status s = pub_part_at(d->part) ? oci_anew(d->c, err) : LQ_OK;
    return s ? s : pub_part_restart(d->part, err);
}

/* The first byte is that of a range, or of the whole. */
static lq_status oci_pull_begin(void *user, lq_err *err)
{
    download *d = user;
    const hc_answer *a = hc_current(d->c->http);
    unsigned long long from, to, of;
    if (a->status == 200) return begin_anew(d, err);
    if (a->status == 206 && !d->whole &&
        sscanf(a->content_range, "bytes %llu-%llu/%llu", &from, &to, &of) == 3 &&
        from == pub_part_at(d->part) && to < of && of == d->bytes)
        return LQ_OK;
    d->lied = true;
    return lq_fail(err, LQ_EFORMAT,
                   "Content-Range: expected bytes %llu-%llu/%llu, found '%.80s' with status %d",
                   (unsigned long long)pub_part_at(d->part), (unsigned long long)d->bytes - 1,
                   (unsigned long long)d->bytes, a->content_range, a->status);
}

static lq_status piece(void *user, const void *data, size_t n, lq_err *err)
{
    download *d = user;
    return pub_part_write(d->part, data, n, err);
}

/* One request; *more: it did not bring everything, and another may. */
static lq_status one_get(download *d, const char *url, bool *more, lq_err *err)
{
    char range[60];
    hc_answer a;
    const uint64_t at = pub_part_at(d->part);
    d->whole = at == 0 || d->lied;
    snprintf(range, sizeof range, "Range: bytes=%llu-", (unsigned long long)at);
    const hc_request r = { .method = "GET",
                           .url = url,
                           .headers = { d->whole ? NULL : range },
                           .begin = oci_pull_begin,
                           .sink = piece,
                           .user = d };
    const bool lied = d->lied;
    lq_status s = oci_call(d->c, &r, &a, err);
    *more = false;
    if (d->lied && !lied) { /* then all of it, without asking for a range */
        pub_say(d->c->o, "%s; from its beginning", err->msg);
        *more = true;
        return begin_anew(d, err);
    }
    if (!s && a.status == 416) {
        *more = ++d->c->tries < OCI_TRIES;
        return *more ? begin_anew(d, err) : oci_refused(d->c, &a, "a blob", err);
    }
    oci_reached(d->c, pub_part_at(d->part));
    if (!s && (a.status == 200 || a.status == 206)) {
        *more = pub_part_at(d->part) < d->bytes && ++d->c->tries < OCI_TRIES;
        return LQ_OK;
    }
    *more = oci_again(d->c, &s, &a, err);
    if (*more) return LQ_OK;
    return s ? s : oci_refused(d->c, &a, "a blob", err);
}

static lq_status get(pub_remote *r, const pub_file *f, pub_part *part, lq_err *err)
{
    char url[HC_VALUE];
    download d = { .c = r->own, .part = part, .bytes = f->bytes };
    bool more = true;
    lq_status s = LQ_OK;
    oci_url(url, sizeof url, d.c, "blobs/sha256:%s", f->sha256);
    oci_blob(d.c, f->bytes);
    while (!s && more)
        s = one_get(&d, url, &more, err);
    return s;
}

static void close_oci(pub_remote *r, bool done)
{
    (void)done;
    if (r->own) oci_close(r->own);
    free(r->own);
}

const pub_target pub_oci = { "oci://", NULL, oci_push, open_oci, get, close_oci };
