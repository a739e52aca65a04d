/* publish/hub/api.c - see api.h. */
#include "publish/hub/api.h"

#include "publish/ranged.h"

#include <stdio.h>
#include <stdlib.h>

enum { MAX_PAGES = 400 };

/* ---- the connection ---- */
static bool is_loopback_or_secure(const char *endpoint)
{
    return strncmp(endpoint, "https://", 8) == 0 ||
           strncmp(endpoint, "http://localhost", 16) == 0 ||
           strncmp(endpoint, "http://127.", 11) == 0;
}

lq_status hub_open(hub_conn *c, const hub_env *env, const hub_name *name, const pub_opts *o,
                   lq_err *err)
{
    *c = (hub_conn){ .env = env, .name = name, .retry = { .o = o, .base = env->endpoint } };
    if (env->token[0]) {
        snprintf(c->bearer, sizeof c->bearer, "Bearer %s", env->token);
        c->authorization = c->bearer;
        if (!is_loopback_or_secure(env->endpoint))
            pub_say(o, "HF_ENDPOINT: %s is not encrypted: whoever listens sees %s", env->endpoint,
                    env->token_of);
    }
    return hc_open(&c->http, NULL, o->patience, o->job, err);
}

void hub_close(hub_conn *c) { hc_close(c->http); }

static lq_status call(void *conn, const hc_request *r, hc_answer *a, lq_err *err)
{
    hub_conn *c = conn;
    hc_request with = *r;
    with.authorization = c->authorization; /* hc_do keeps it from other hosts */
    return hc_do(c->http, &with, a, err);
}

/* ---- refusals ---- */
static lq_status gated(const hub_conn *c, lq_err *err)
{
    const char *repo = c->name->repo, *at = c->env->endpoint;
    if (c->authorization)
        return lq_fail(
            err, LQ_EIO,
            "it is gated, and the account of %s has no access yet: accept its conditions "
            "at %s/%s, or wait for its owners to",
            c->env->token_of, at, repo);
    return lq_fail(
        err, LQ_EIO,
        "it is gated: accept its conditions at %s/%s with an account, then set HF_TOKEN to "
        "a token of that account (%s/settings/tokens)",
        at, repo, at);
}

static lq_status no_repo(const hub_conn *c, lq_err *err)
{
    const char *how = !c->authorization ? "of a private one set HF_TOKEN"
                                        : "or the token has no access to a private one";
    return lq_fail(err, LQ_ENOENT, "%s has no repository of that name: check it (%s)",
                   c->env->endpoint, how);
}

static lq_status no_revision(const hub_conn *c, lq_err *err)
{
    return lq_fail(err, LQ_ENOENT, "expected a branch, tag or commit of it, found '%s'",
                   c->name->revision);
}

static lq_status no_entry(const hub_conn *c, lq_err *err)
{
    return lq_fail(err, LQ_EIO, "%s lists a file that it does not have", c->env->endpoint);
}

static lq_status bad_token(const hub_conn *c, lq_err *err)
{
    return lq_fail(err, LQ_EIO, "%s does not accept %s: make a new one at %s/settings/tokens",
                   c->env->endpoint,
                   c->authorization ? c->env->token_of : "requests without a token",
                   c->env->endpoint);
}

static lq_status too_many(const hub_conn *c, lq_err *err)
{
    return lq_fail(err, LQ_EIO, "%s: too many requests: try again later%s", c->env->endpoint,
                   c->authorization ? "" : ", or set HF_TOKEN, whose limit is higher");
}

/* Each answer that is no file and no list, by X-Error-Code where it has one. "": any; 0: any. */
static const struct {
    const char *code;
    int status;
    lq_status (*say)(const hub_conn *c, lq_err *err);
} refusals[] = {
    { "GatedRepo", 0, gated },      { "RevisionNotFound", 0, no_revision },
    { "RepoNotFound", 0, no_repo }, { "EntryNotFound", 0, no_entry },
    { "", 401, bad_token },         { "", 404, no_repo },
    { "", 429, too_many },
};

static lq_status refused(const hub_conn *c, const hc_answer *a, lq_err *err)
{
    for (size_t i = 0; i < LQ_COUNT(refusals); i++)
        if ((!*refusals[i].code || strcmp(refusals[i].code, a->error_code) == 0) &&
            (!refusals[i].status || refusals[i].status == a->status))
            return refusals[i].say(c, err);
    return lq_fail(err, LQ_EIO, "%s answered %d%s%s", c->env->endpoint, a->status,
                   a->error_message[0] ? ": " : "", a->error_message);
}

/* The same of a file, which may be on another host than the repository. */
static lq_status refused_file(void *conn, const hc_answer *a, lq_err *err)
{
    return a->status == 404 && !a->error_code[0] ? no_entry(conn, err) : refused(conn, a, err);
}

/* ---- addresses ---- */
/* `text` in an address; '/' stays where `slash` says so. */
static void add_escaped(lq_buf *b, const char *text, bool slash)
{
    static const char plain[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~";
    for (; *text; text++)
        if (strchr(plain, *text) || (slash && *text == '/'))
            lq_buf_add(b, text, 1);
        else
            lq_buf_printf(b, "%%%02X", (unsigned char)*text);
}

/* "ENDPOINT[/api/models]/REPO/WHAT/REVISION[/PATH]"; false: too long. */
static bool address(char out[HC_VALUE], const hub_conn *c, const char *api, const char *what,
                    const char *revision, const char *path)
{
    lq_buf b = { 0 };
    lq_buf_printf(&b, "%s%s/", c->env->endpoint, api);
    add_escaped(&b, c->name->repo, true);
    lq_buf_printf(&b, "/%s/", what);
    add_escaped(&b, revision, false);
    if (path) lq_buf_puts(&b, "/");
    if (path) add_escaped(&b, path, true);
    const bool fits = !b.oom && b.n < HC_VALUE - 40;
    snprintf(out, HC_VALUE, "%.*s", fits ? (int)b.n : 0, fits ? b.p : "");
    lq_buf_free(&b);
    return fits;
}

static lq_status too_long(lq_err *err) { return lq_fail(err, LQ_EUSAGE, "the name is too long"); }

/* A GET whose answer is small; a->status 200 or 206, or an error. */
static lq_status ask(hub_conn *c, const char *url, const char *range, hc_answer *a, lq_err *err)
{
    const hc_request r = { .method = "GET", .url = url, .headers = { range } };
    lq_status s;
    c->retry.tries = 0;
    do
        s = call(c, &r, a, err);
    while (retry_again(&c->retry, &s, a, err));
    if (s) return s;
    return a->status == 200 || (range && a->status == 206) ? LQ_OK
           : range                                         ? refused_file(c, a, err)
                                                           : refused(c, a, err);
}

/* ---- what there is ---- */
lq_status hub_commit(char commit[SHA1_HEX], hub_conn *c, lq_err *err)
{
    char url[HC_VALUE];
    hc_answer a;
    cJSON *doc = NULL;
    const char *sha = NULL;
    if (!address(url, c, "/api/models", "revision", c->name->revision, NULL)) return too_long(err);
    lq_status s = ask(c, url, NULL, &a, err);
    if (!s) s = js_parse(&doc, a.body ? a.body : "", a.body_bytes, PUB_MAX_SMALL, 0, err);
    if (!s) s = js_str(doc, "sha", true, &sha, err);
    if (!s && !hub_is_commit(sha))
        s = lq_fail(err, LQ_EFORMAT, "sha: expected 40 hex digits, found '%.80s'", sha);
    if (!s) snprintf(commit, SHA1_HEX, "%s", sha);
    if (s == LQ_EVALUE || s == LQ_EFORMAT)
        s = lq_wrap(err, LQ_EFORMAT, "%s answered as no hub does", c->env->endpoint);
    cJSON_Delete(doc);
    return s;
}

/* The address in `<https://...>; rel="next"`; false: it is the last page. */
static bool next_page(char url[HC_VALUE], const char *link)
{
    const char *end, *rel = strstr(link, "rel=\"next\"");
    if (!rel || link[0] != '<' || !(end = strchr(link, '>')) || end > rel) return false;
    snprintf(url, HC_VALUE, "%.*s", (int)(end - link - 1), link + 1);
    return true;
}

lq_status hub_list(hub_tree *t, hub_conn *c, const char *commit, lq_err *err)
{
    char url[HC_VALUE], next[HC_VALUE];
    hc_answer a;
    if (!address(url, c, "/api/models", "tree", commit, NULL)) return too_long(err);
    strcat(url, "?recursive=true&expand=false");
    lq_status s = LQ_OK;
    bool more = true;
    for (int page = 0; more && !s; page++) {
        s = page == MAX_PAGES ? lq_fail(err, LQ_EFORMAT, "expected fewer files, found more")
                              : ask(c, url, NULL, &a, err);
        if (!s) s = hub_tree_add_page(t, a.body ? a.body : "", a.body_bytes, err);
        more = !s && next_page(next, a.link);
        if (more) s = hc_resolve(url, sizeof url, url, next, err);
    }
    if (!s) return LQ_OK;
    hub_tree_free(t);
    return s == LQ_EFORMAT ? lq_wrap(err, s, "%s: list of files", c->env->endpoint) : s;
}

/* ---- bytes ---- */
lq_status hub_get(hub_conn *c, const char *commit, const hub_entry *e, pub_part *part, lq_err *err)
{
    char url[HC_VALUE];
    const ranged_side side = { c, c->http, &c->retry, call, refused_file };
    if (!address(url, c, "", "resolve", commit, e->path)) return too_long(err);
    return ranged_get(&side, url, e->bytes, part, err);
}

lq_status hub_get_range(uint8_t **data, size_t *n, hub_conn *c, const char *commit,
                        const hub_entry *e, uint64_t from, uint64_t to, lq_err *err)
{
    char url[HC_VALUE], range[80];
    hc_answer a;
    unsigned long long first = 0;
    if (!address(url, c, "", "resolve", commit, e->path)) return too_long(err);
    snprintf(range, sizeof range, "Range: bytes=%llu-%llu", (unsigned long long)from,
             (unsigned long long)to - 1);
    lq_status s = ask(c, url, range, &a, err);
    if (s) return s;
    const bool whole = a.status == 200 && !from; /* of a small file, from who knows no ranges */
    if (a.body_bytes > to - from ||
        !(whole || (a.status == 206 && sscanf(a.content_range, "bytes %llu-", &first) == 1 &&
                    first == from)))
        return lq_fail(
            err, LQ_EIO, "%.200s: expected bytes %llu-%llu, found '%.80s' with status %d", e->path,
            (unsigned long long)from, (unsigned long long)to - 1, a.content_range, a.status);
    *data = malloc(a.body_bytes + 1);
    if (!*data) return lq_fail(err, LQ_ENOMEM, "out of memory");
    if (a.body_bytes) memcpy(*data, a.body, a.body_bytes);
    *n = a.body_bytes;
    return LQ_OK;
}
