/* publish/hub/hub.c - see hub.h. */
#include "publish/hub/hub.h"

#include "base/out_file.h"
#include "base/path.h"
#include "publish/hub/api.h"
#include "publish/hub/cache.h"
#include "publish/hub/skeleton.h"
#include "publish/part.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

typedef struct {
    hub_env env;
    hub_name name;
    hub_cache cache;
    hub_conn conn;
    bool connected;
    char commit[SHA1_HEX];
    hub_tree tree;
    const hub_entry **of; /* [r->files.n]: what each file is in the tree */
} session;

static void session_close(session *h)
{
    if (h->connected) hub_close(&h->conn);
    hub_tree_free(&h->tree);
    free(h->of);
}

static lq_status session_open(session *h, const char *text, lq_err *err)
{
    *h = (session){ .connected = false };
    lq_status s = hub_name_parse(&h->name, text, err);
    if (!s) s = hub_env_read(&h->env, err);
    return s ? s : hub_cache_init(&h->cache, &h->env, &h->name, err);
}

/* Connected; the commit and its list are those of the hub. */
static lq_status ask_hub(session *h, const pub_opts *o, lq_err *err)
{
    lq_status s = hub_open(&h->conn, &h->env, &h->name, o, err);
    h->connected = !s;
    if (!s) s = hub_commit(h->commit, &h->conn, err);
    hub_tree_free(&h->tree);
    if (s || hub_cache_tree(&h->tree, &h->cache, h->commit)) return s;
    return hub_list(&h->tree, &h->conn, h->commit, err);
}

/* The wanted entries as files, under names that an artifact may have. */
static lq_status name_files(pub_files *fs, session *h, lq_err *err)
{
    lq_status s = LQ_OK;
    h->of = calloc(h->tree.n + 1, sizeof *h->of);
    if (!h->of) return lq_fail(err, LQ_ENOMEM, "out of memory");
    for (size_t i = 0; i < h->tree.n && !s; i++) {
        const hub_entry *e = &h->tree.e[i];
        const char *slash = strrchr(e->path, '/');
        pub_file *f;
        if (!e->wanted) continue;
        const bool weights = model_file_of(e->path)->weights; /* those may be in any folder */
        s = pub_add(fs, weights && slash ? slash + 1 : e->path, &f, err);
        if (s) break;
        h->of[fs->n - 1] = e;
        f->bytes = e->bytes;
        snprintf(f->sha256, sizeof f->sha256, "%s", e->sha256);
        if (!e->sha256[0]) snprintf(f->git_sha1, sizeof f->git_sha1, "%s", e->git_sha1);
    }
    return s;
}

/* ---- the target "hf:" of pub_pull: into a folder ---- */
static lq_status hub_check(const char *where, lq_err *err)
{
    return lq_fail(
        err, LQ_EUSAGE,
        "hf: it is read alone: publish to git:https://huggingface.co/%.200s, or to a folder "
        "(dir:PATH) for `hf upload`",
        where);
}

static lq_status hub_push(pub_result *r, const char *where, const pub_files *fs, const pub_opts *o,
                          lq_err *err)
{
    (void)r, (void)fs, (void)o;
    return hub_check(where, err);
}

static lq_status open_hub(pub_remote *r, const char *where, const char *scratch, const pub_opts *o,
                          lq_err *err)
{
    char main[HUB_PICK];
    (void)scratch;
    session *h = r->own = malloc(sizeof *h);
    if (!h) return lq_fail(err, LQ_ENOMEM, "out of memory");
    lq_status s = session_open(h, where, err);
    if (!s && h->env.offline)
        s = lq_fail(err, LQ_ENOENT, "HF_HUB_OFFLINE is set: leave out -o to use the cache");
    if (!s) s = ask_hub(h, o, err);
    if (!s) s = hub_choose(&h->tree, main, sizeof main, h->name.pick, HUB_MODEL, err);
    if (!s) s = name_files(&r->files, h, err);
    if (!s) snprintf(r->digest, sizeof r->digest, "%s", h->commit);
    return s;
}

static lq_status get_hub(pub_remote *r, const pub_file *f, pub_part *part, lq_err *err)
{
    session *h = r->own;
    return hub_get(&h->conn, h->commit, h->of[f - r->files.f], part, err);
}

static void close_hub(pub_remote *r, bool done)
{
    (void)done;
    if (r->own) session_close(r->own);
    free(r->own);
}

const pub_target pub_hub = { "hf:", hub_check, hub_push, open_hub, get_hub, close_hub };

/* ---- into the cache ---- */
typedef struct {
    session *h;
    pub_remote *r;
    const pub_opts *o;
    uint64_t done, total, fetched;
    const char *what; /* the file under way */
} filling;

static bool is_whole(const session *h, const hub_entry *e)
{
    return hub_cache_has(&h->cache, h->commit, e->path, e->bytes);
}

/* Of a plain file; 0: there is none. */
static uint64_t bytes_of(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISREG(st.st_mode) ? (uint64_t)st.st_size : 0;
}

static bool blob_there(const char *blob, uint64_t bytes)
{
    return lq_exists(blob) && bytes_of(blob) == bytes;
}

static void say_waiting(void *user)
{
    const filling *p = user;
    pub_say(p->o, "%s: another process fetches it; waiting", p->what);
}

/* Where its beginning is; false: too long. */
static bool part_name(char *out, size_t n, const char *blob)
{
    return (size_t)snprintf(out, n, "%s.incomplete", blob) < n;
}

/* Beside its place, then there. */
static lq_status fetch_blob(filling *p, pub_file *f, const char *blob, lq_err *err)
{
    char digest[SHA_HEX] = "";
    pub_part part = {
        .f = f, .fd = -1, .job = p->o->job, .before = (double)p->done, .total = (double)p->total
    };
    lq_status s = part_name(part.path, sizeof part.path, blob)
                      ? LQ_OK
                      : lq_fail(err, LQ_EUSAGE, "%.200s...: too long", blob);
    if (!s) s = pub_part_open(&part, err);
    const uint64_t before = s ? 0 : pub_part_at(&part);
    if (!s) s = pub_part_fetch(&part, p->r, digest, err);
    if (part.fd >= 0) close(part.fd);
    if (!s && rename(part.path, blob) != 0) s = lq_open_failed(err, blob);
    if (!s) lq_sync_name(blob);
    if (!s) p->fetched += f->bytes - before;
    return s;
}

static lq_status fetch_file(filling *p, pub_file *f, const hub_entry *e, lq_err *err)
{
    char blob[HUB_PATH];
    int lock;
    const char *etag = hub_etag(e);
    p->what = f->name;
    hub_cache_blob(blob, &p->h->cache, etag);
    lq_status s = hub_cache_lock(&lock, &p->h->cache, etag, p->o->job, say_waiting, p, err);
    if (!s && !blob_there(blob, e->bytes)) s = fetch_blob(p, f, blob, err);
    if (!s) s = hub_cache_link(&p->h->cache, p->h->commit, e->path, etag, err);
    if (lock >= 0) close(lock);
    return s;
}

/* What is to come, less what an earlier run left of it. */
static lq_status hub_check_room(const filling *p, lq_err *err)
{
    struct statvfs v;
    uint64_t need = 0;
    if (statvfs(p->h->cache.dir, &v) != 0) return LQ_OK;
    for (size_t i = 0; i < p->r->files.n; i++) {
        char blob[HUB_PATH], part[HUB_PATH];
        const hub_entry *e = p->h->of[i];
        hub_cache_blob(blob, &p->h->cache, hub_etag(e));
        if (is_whole(p->h, e) || blob_there(blob, e->bytes) || !part_name(part, sizeof part, blob))
            continue;
        const uint64_t begun = bytes_of(part);
        need += begun < e->bytes ? e->bytes - begun : 0;
    }
    const uint64_t room = (uint64_t)v.f_bavail * v.f_frsize;
    return need <= room
               ? LQ_OK
               : lq_fail(err, LQ_EIO,
                         "%s: expected room for %llu bytes, found %llu: free some, or name "
                         "another place with HF_HUB_CACHE",
                         p->h->env.cache, (unsigned long long)need, (unsigned long long)room);
}

static lq_status fill(filling *p, lq_err *err)
{
    p->total = pub_bytes(&p->r->files);
    char blob[HUB_PATH];
    hub_cache_blob(blob, &p->h->cache, "x");
    lq_status s = lq_make_parents(blob, err);
    if (!s) s = hub_check_room(p, err);
    for (size_t i = 0; i < p->r->files.n && !s; i++) {
        if (!is_whole(p->h, p->h->of[i])) s = fetch_file(p, &p->r->files.f[i], p->h->of[i], err);
        p->done += p->r->files.f[i].bytes;
    }
    if (s) return s;
    hub_cache_keep(&p->h->tree, &p->h->cache, p->h->commit);
    return hub_cache_set(&p->h->cache, p->h->name.revision, p->h->commit, err);
}

/* ---- what is there already ---- */
/* Is the whole model of the known commit in the cache? By the list of its files; without one (an
 * older huggingface_hub) and `trusting`, as far as what is there is a model. */
static bool is_cached(session *h, char main[HUB_PICK], hub_need need, bool trusting, lq_err *err)
{
    hub_tree_free(&h->tree);
    if (!hub_cache_commit(h->commit, &h->cache, h->name.revision)) return false;
    const bool listed = hub_cache_tree(&h->tree, &h->cache, h->commit);
    if (!listed && (!trusting || hub_cache_look(&h->tree, &h->cache, h->commit, err))) return false;
    bool all = hub_choose(&h->tree, main, HUB_PICK, h->name.pick, need, err) == LQ_OK;
    for (size_t i = 0; i < h->tree.n && all; i++)
        all = !h->tree.e[i].wanted || is_whole(h, &h->tree.e[i]);
    return all;
}

static lq_status not_offline(const session *h, const lq_err *why, lq_err *err)
{
    return lq_fail(err, LQ_ENOENT,
                   "HF_HUB_OFFLINE is set, and %s has not all of it (%s): unset it, or `llmq pull` "
                   "where there is a network",
                   h->cache.dir, why->msg[0] ? why->msg : "files are missing");
}

static lq_status find_headers(hub_found *f, session *h, const char *main, lq_err *err)
{
    const char *slash = strrchr(main, '/'), *file = slash ? slash + 1 : main;
    memcpy(f->commit, h->commit, sizeof f->commit);
    lq_status s = skeleton_make(f->scratch, sizeof f->scratch, &h->conn, h->commit, &h->tree, err);
    if (!s) snprintf(f->path, sizeof f->path, "%s%s%s", f->scratch, *file ? "/" : "", file);
    return s;
}

static lq_status find(hub_found *f, session *h, pub_remote *r, hub_need need, bool newest,
                      const pub_opts *o, lq_err *err)
{
    char main[HUB_PICK];
    lq_err why = { "" };
    bool cached = (!newest || h->env.offline) && is_cached(h, main, need, h->env.offline, &why);
    if (!cached && h->env.offline) return not_offline(h, &why, err);
    lq_status s = cached ? LQ_OK : ask_hub(h, o, err);
    if (s == LQ_EIO && !newest && is_cached(h, main, need, true, &why)) {
        pub_say(o, "%s; what the cache has is taken, commit %s", err->msg, h->commit);
        cached = true;
        s = LQ_OK;
    }
    if (!cached && !s) s = hub_choose(&h->tree, main, sizeof main, h->name.pick, need, err);
    /* a GGUF's tokenizer is in its header */
    const bool head = need == HUB_HEADERS || (need == HUB_TEXT && lq_has_ending(main, ".gguf"));
    if (!cached && !s && head) return find_headers(f, h, main, err);
    if (!s) s = name_files(&r->files, h, err);
    filling p = { .h = h, .r = r, .o = o };
    if (!s && !cached) s = fill(&p, err);
    if (s) return s;
    hub_cache_path(f->path, &h->cache, h->commit, main);
    memcpy(f->commit, h->commit, sizeof f->commit);
    f->fetched = p.fetched;
    return LQ_OK;
}

lq_status hub_find(hub_found *f, const char *text, hub_need need, bool newest, const pub_opts *o,
                   lq_err *err)
{
    session h;
    pub_remote r = { .target = &pub_hub, .opts = o, .own = &h };
    *f = (hub_found){ .fetched = 0 };
    lq_status s = session_open(&h, text, err);
    if (!s) s = find(f, &h, &r, need, newest, o, err);
    f->files = r.files;
    session_close(&h);
    return s && s != LQ_EINTR ? lq_wrap(err, s, "hf:%.200s", text) : s;
}

void hub_found_free(hub_found *f)
{
    pub_files_free(&f->files);
    skeleton_drop(f->scratch);
}
