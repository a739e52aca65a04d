/* publish/oci_push.c - blobs in pieces, each where the last one ended; then the manifest. */
#include "base/out_file.h"
#include "base/path.h"
#include "publish/oci.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

/* The empty config of an artifact: image specification, "Guidance for an empty descriptor". */
#define EMPTY "{}"
#define EMPTY_MEDIA "application/vnd.oci.empty.v1+json"
static const uint64_t CHUNK = (uint64_t)64 << 20;

typedef struct {
    oci_conn *c;
    const pub_file *f;
    char location[HC_VALUE]; /* where the next piece goes; "": no upload has begun */
    bool saved;              /* by an earlier run; not asked yet */
    uint64_t off;            /* bytes that the registry has */
    uint64_t chunk;
    double before, total;
    pub_result *r;
} upload;

/* ---- what an interrupted run leaves: the addresses of its uploads ---- */
/* *doc: NULL where there is none of this repository. LQ_EUSAGE: somebody's file has that name. */
static lq_status state_read(cJSON **doc, const oci_conn *c, lq_err *err)
{
    const char *of = NULL, *location = NULL, *path = c->o->state;
    char key[600];
    *doc = NULL;
    snprintf(key, sizeof key, "%s/%s", c->base, c->name);
    if (!path || !lq_exists(path)) return LQ_OK;
    if (!js_parse_file(doc, path, PUB_MAX_SMALL, 0, NULL)) {
        js_str(*doc, "repository", false, &of, NULL);
        js_str(*doc, "location", false, &location, NULL);
    }
    if (of && strcmp(of, key) == 0) return LQ_OK;
    const bool ours = of && location;
    cJSON_Delete(*doc);
    *doc = NULL;
    return ours ? LQ_OK
                : lq_fail(err, LQ_EUSAGE,
                          "%s: is in the way: expected nothing there, or what an interrupted "
                          "publish left: move it elsewhere",
                          path);
}

/* Only its owner may read it: some registries' addresses are as good as a password. */
static void state_write(const upload *u)
{
    char key[600];
    const oci_conn *c = u->c;
    if (!c->o->state) return;
    cJSON *doc = cJSON_CreateObject();
    snprintf(key, sizeof key, "%s/%s", c->base, c->name);
    cJSON_AddStringToObject(doc, "repository", key);
    cJSON_AddStringToObject(doc, "sha256", u->f->sha256);
    cJSON_AddStringToObject(doc, "location", u->location);
    char *text = js_print(doc, false);
    cJSON_Delete(doc);
    lq_err why;
    const mode_t mask = umask(077);
    if (text && lq_write_file(c->o->state, text, strlen(text), &why))
        pub_say(c->o, "%s: an interrupted upload will start over", why.msg);
    umask(mask);
    free(text);
}

/* ---- one blob ---- */
/* "0-41" -> 42; both "0-0" and nothing mean none. False: something else. */
static bool range_end(uint64_t *next, const char *range)
{
    unsigned long long from, to;
    char more;
    *next = 0;
    if (strncmp(range, "bytes=", 6) == 0) range += 6;
    if (!*range) return true;
    if (sscanf(range, "%llu-%llu%c", &from, &to, &more) != 2 || from) return false;
    *next = to ? to + 1 : 0;
    return true;
}

static lq_status set_location(upload *u, const hc_answer *a, lq_err *err)
{
    char base[HC_VALUE];
    snprintf(base, sizeof base, "%s", *u->location ? u->location : u->c->base);
    if (!a->location[0])
        return *u->location ? LQ_OK
                            : lq_fail(err, LQ_EFORMAT,
                                      "%s: expected the upload's Location, found "
                                      "none",
                                      u->c->base);
    return hc_resolve(u->location, sizeof u->location, base, a->location, err);
}

static lq_status is_there(bool *there, upload *u, lq_err *err)
{
    char url[HC_VALUE];
    hc_answer a;
    oci_url(url, sizeof url, u->c, "blobs/sha256:%s", u->f->sha256);
    const hc_request r = { .method = "HEAD", .url = url };
    lq_status s = oci_insist(u->c, &r, &a, err);
    *there = !s && a.status == 200;
    if (s || a.status == 200 || a.status == 404) return s;
    return oci_refused(u->c, &a, "a blob", err);
}

static lq_status oci_push_begin(upload *u, lq_err *err)
{
    char url[HC_VALUE];
    hc_answer a;
    oci_url(url, sizeof url, u->c, "blobs/uploads/");
    u->location[0] = 0;
    u->off = 0;
    const hc_request r = { .method = "POST", .url = url };
    lq_status s = oci_insist(u->c, &r, &a, err);
    if (s) return s;
    if (a.status != 202) return oci_refused(u->c, &a, "an upload", err);
    if (a.chunk_min > u->chunk) u->chunk = a.chunk_min;
    s = set_location(u, &a, err);
    if (!s) state_write(u);
    return s;
}

/* How far did it get? An upload that the registry has forgotten, or of which it has what we cannot
 * have sent, begins anew. */
static lq_status ask(upload *u, lq_err *err)
{
    hc_answer a;
    const hc_request r = { .method = "GET", .url = u->location };
    lq_status s = oci_call(u->c, &r, &a, err);
    if (s == LQ_EIO && a.lost && !u->saved) return LQ_OK; /* the next piece will tell */
    if (s) return s;
    uint64_t next = 0;
    const bool known =
        (a.status == 204 || a.status == 202) && range_end(&next, a.range) && next <= u->f->bytes;
    s = known && next >= u->off ? LQ_OK : retry_anew(&u->c->retry, err);
    if (s) return s;
    if (!known) return oci_push_begin(u, err);
    u->off = next;
    return set_location(u, &a, err);
}

static void resume(upload *u, const cJSON *state, lq_err *err)
{
    const char *sha = NULL, *location = NULL;
    js_str(state, "sha256", false, &sha, NULL);
    js_str(state, "location", false, &location, NULL);
    if (!sha || !location || strcmp(sha, u->f->sha256) != 0 ||
        hc_resolve(u->location, sizeof u->location, u->c->base, location, err))
        return;
    u->off = 0;
    u->saved = true;
}

/* One piece; then u->off is what the registry says it has. */
static lq_status send_piece(upload *u, lq_err *err)
{
    char range[80];
    hc_answer a;
    const uint64_t left = u->f->bytes - u->off, n = left < u->chunk ? left : u->chunk;
    const hc_body body = { .file = u->f, .off = u->off, .bytes = n };
    snprintf(range, sizeof range, "Content-Range: %llu-%llu", (unsigned long long)u->off,
             (unsigned long long)(u->off + n - 1));
    const hc_request r = { .method = "PATCH",
                           .url = u->location,
                           .headers = { "Content-Type: application/octet-stream", range },
                           .body = &body };
    lq_status s = oci_call(u->c, &r, &a, err);
    uint64_t next;
    if (!s && a.status == 202 && range_end(&next, a.range) &&
        (next == u->off + n || !a.range[0] || u->off + n == 1)) {
        u->off += n;
        retry_reached(&u->c->retry, u->off);
        u->r->sent += n;
        lq_report(u->c->o->job, u->f->name, u->before + (double)u->off, u->total);
        s = set_location(u, &a, err);
        if (!s) state_write(u);
        return s;
    }
    if (!s && a.status != 202 && a.status != 404 && a.status != 416 && a.status < 500 &&
        a.status != 408 && a.status != 429)
        return oci_refused(u->c, &a, "a piece of a blob", err);
    if (!s && (a.status == 202 || a.status == 404 || a.status == 416)) {
        if (++u->c->retry.tries >= RETRY_TRIES)
            return oci_refused(u->c, &a, "a piece of a blob", err);
    } else if (!retry_again(&u->c->retry, &s, &a, err)) {
        return s ? s : oci_refused(u->c, &a, "a piece of a blob", err);
    }
    s = ask(u, err);
    retry_reached(&u->c->retry, u->off);
    return s;
}

static lq_status oci_push_finish(upload *u, lq_err *err)
{
    char url[HC_VALUE + 100];
    hc_answer a;
    snprintf(url, sizeof url, "%s%cdigest=sha256:%s", u->location,
             strchr(u->location, '?') ? '&' : '?', u->f->sha256);
    const hc_body none = { .data = "" };
    const hc_request r = { .method = "PUT",
                           .url = url,
                           .headers = { "Content-Type: application/octet-stream" },
                           .body = &none };
    lq_status s = oci_insist(u->c, &r, &a, err);
    if (s) return s;
    if (a.status == 201 || a.status == 204) return LQ_OK;
    bool there = false; /* an answer that was lost */
    if (a.status == 404) s = is_there(&there, u, err);
    if (s || there) return s;
    return oci_refused(u->c, &a, "a blob to be closed", err);
}

static lq_status push_blob(upload *u, const cJSON *state, lq_err *err)
{
    bool there;
    retry_file(&u->c->retry, u->f->bytes);
    lq_status s = is_there(&there, u, err);
    if (s || there) return s;
    u->saved = false;
    resume(u, state, err);
    if (u->saved) s = ask(u, err);
    if (!u->saved || (s && s != LQ_EINTR))
        s = oci_push_begin(u, err); /* where it was cannot be reached */
    u->saved = false;
    while (!s && u->off < u->f->bytes)
        s = send_piece(u, err);
    return s ? s : oci_push_finish(u, err);
}

/* ---- the manifest ---- */
static cJSON *descriptor(const char *media, const char *sha256, uint64_t bytes)
{
    char digest[80];
    cJSON *o = cJSON_CreateObject();
    snprintf(digest, sizeof digest, "sha256:%s", sha256);
    cJSON_AddStringToObject(o, "mediaType", media);
    cJSON_AddStringToObject(o, "digest", digest);
    cJSON_AddNumberToObject(o, "size", (double)bytes);
    return o;
}

static lq_status manifest_text(lq_buf *b, const pub_files *fs, const char *empty_sha, lq_err *err)
{
    cJSON *m = cJSON_CreateObject(), *layers;
    cJSON_AddNumberToObject(m, "schemaVersion", 2);
    cJSON_AddStringToObject(m, "mediaType", OCI_MANIFEST);
    cJSON_AddStringToObject(m, "artifactType", OCI_ARTIFACT);
    cJSON_AddItemToObject(m, "config", descriptor(EMPTY_MEDIA, empty_sha, strlen(EMPTY)));
    layers = cJSON_AddArrayToObject(m, "layers");
    for (size_t i = 0; i < fs->n; i++) {
        cJSON *o = descriptor(fs->f[i].kind->media, fs->f[i].sha256, fs->f[i].bytes);
        cJSON_AddStringToObject(cJSON_AddObjectToObject(o, "annotations"), OCI_TITLE,
                                fs->f[i].name);
        cJSON_AddItemToArray(layers, o);
    }
    lq_status s = js_canonical(b, m, err);
    cJSON_Delete(m);
    if (!s && b->oom) s = lq_fail(err, LQ_ENOMEM, "out of memory");
    return s;
}

static lq_status put_manifest(oci_conn *c, const lq_buf *b, lq_err *err)
{
    char url[HC_VALUE];
    hc_answer a;
    oci_url(url, sizeof url, c, "manifests/%s", c->ref);
    const hc_body body = { .data = b->p, .bytes = b->n };
    const hc_request r = {
        .method = "PUT", .url = url, .headers = { "Content-Type: " OCI_MANIFEST }, .body = &body
    };
    lq_status s = oci_insist(c, &r, &a, err);
    return s || a.status == 201 ? s : oci_refused(c, &a, "the manifest to be stored", err);
}

/* Is the manifest there, byte for byte? */
static lq_status same_manifest(bool *same, oci_conn *c, const lq_buf *b, lq_err *err)
{
    char *text, digest[80];
    size_t n = 0;
    lq_status s = oci_get_manifest(&text, &n, digest, c, err);
    *same = !s && text && n == b->n && memcmp(text, b->p, n) == 0;
    free(text);
    return s;
}

static lq_status push_manifest(pub_result *r, oci_conn *c, const lq_buf *b, lq_err *err)
{
    bool same = false;
    char hex[SHA_HEX];
    sha_of(hex, b->p, b->n);
    snprintf(r->digest, sizeof r->digest, "sha256:%s", hex);
    if (strchr(c->ref, ':') && strcmp(c->ref, r->digest) != 0)
        return lq_fail(err, LQ_EUSAGE,
                       "oci://: expected a tag, found %s, which these files do not "
                       "have",
                       c->ref);
    if (!r->sent) same_manifest(&same, c, b, NULL);
    r->same = same;
    lq_status s = same ? LQ_OK : put_manifest(c, b, err);
    if (s || same) return s;
    s = same_manifest(&same, c, b, err);
    if (!s && !same)
        s = lq_fail(err, LQ_ECHECK, "%s: stored %s, but gives another manifest back", c->base,
                    r->digest);
    return s;
}

lq_status oci_push(pub_result *r, const char *where, const pub_files *fs, const pub_opts *o,
                   lq_err *err)
{
    oci_conn c;
    lq_buf b = { 0 };
    cJSON *state = NULL;
    pub_file empty = { .data = (uint8_t *)(uintptr_t)EMPTY, .bytes = strlen(EMPTY) };
    upload u = { .c = &c, .total = (double)pub_bytes(fs), .r = r };
    sha_of(empty.sha256, EMPTY, strlen(EMPTY));
    empty.name = empty.sha256;
    lq_status s = oci_open(&c, where, o, err);
    if (!s) s = manifest_text(&b, fs, empty.sha256, err);
    if (!s) s = state_read(&state, &c, err);
    for (size_t i = 0; i <= fs->n && !s; i++) {
        u.f = i < fs->n ? &fs->f[i] : &empty;
        u.chunk = o->chunk_bytes ? o->chunk_bytes : CHUNK;
        u.location[0] = 0;
        s = push_blob(&u, state, err);
        u.before += (double)u.f->bytes;
    }
    if (!s) s = push_manifest(r, &c, &b, err);
    if (!s && o->state) unlink(o->state);
    cJSON_Delete(state);
    free(b.p);
    oci_close(&c);
    return s;
}
