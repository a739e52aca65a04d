/* publish/http_client.c */
#include "publish/http_client.h"

#include "base/ca_file.h"
#include "base/clock.h"
#include "base/version.h"

#include <curl/curl.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>
#include <time.h>
#include <unistd.h>

enum { MAX_REDIRECTS = 5, CONNECT_SECONDS = 30, MIN_BYTES = 1024 /* a second */ };

struct hc_client {
    CURL *curl;
    const lq_job *job;
    int patience;
    struct {
        time_t since;
        curl_off_t bytes; /* carried by then */
    } window;
    char ca[4096];
    bool named; /* by the environment */
    char why[CURL_ERROR_SIZE];
    char *body;
    size_t body_cap;
    const hc_request *r;
    hc_answer *a;
    lq_status failed; /* of a callback */
    lq_err *err;
    bool begun, slow;
    uint64_t sent;
    int fd; /* of the body's file, or -1 */
};

/* ---- addresses ---- */
static char *url_part(CURLU *u, CURLUPart part)
{
    char *text = NULL;
    return curl_url_get(u, part, &text, CURLU_DEFAULT_PORT) == CURLUE_OK ? text : NULL;
}

static CURLU *parsed(const char *url)
{
    CURLU *u = curl_url();
    if (u && curl_url_set(u, CURLUPART_URL, url, 0) != CURLUE_OK) {
        curl_url_cleanup(u);
        return NULL;
    }
    return u;
}

static bool same_part(CURLU *a, CURLU *b, CURLUPart part)
{
    char *x = url_part(a, part), *y = url_part(b, part);
    const bool same = x && y && strcasecmp(x, y) == 0;
    curl_free(x);
    curl_free(y);
    return same;
}

bool hc_same_origin(const char *a, const char *b)
{
    CURLU *x = parsed(a), *y = parsed(b);
    const bool same = x && y && same_part(x, y, CURLUPART_SCHEME) &&
                      same_part(x, y, CURLUPART_HOST) && same_part(x, y, CURLUPART_PORT);
    curl_url_cleanup(x);
    curl_url_cleanup(y);
    return same;
}

lq_status hc_resolve(char *out, size_t n, const char *base, const char *location, lq_err *err)
{
    CURLU *u = parsed(base);
    char *scheme = NULL, *whole = NULL;
    lq_status s = LQ_OK;
    if (!u || curl_url_set(u, CURLUPART_URL, location, 0) != CURLUE_OK ||
        !(scheme = url_part(u, CURLUPART_SCHEME)) ||
        curl_url_get(u, CURLUPART_URL, &whole, 0) != CURLUE_OK || strlen(whole) >= n)
        s = lq_fail(err, LQ_EFORMAT, "expected an address, found '%.200s'", location);
    else if (strcmp(scheme, "https") != 0 &&
             (strcmp(scheme, "http") != 0 || strncasecmp(base, "https:", 6) == 0))
        s = lq_fail(err, LQ_EFORMAT, "expected an https address, found '%.200s'", location);
    else
        snprintf(out, n, "%s", whole);
    curl_free(scheme);
    curl_free(whole);
    curl_url_cleanup(u);
    return s;
}

char *hc_escape(const char *s)
{
    char *made = curl_easy_escape(NULL, s, 0), *copy = made ? strdup(made) : NULL;
    curl_free(made);
    return copy;
}

/* ---- what libcurl calls ---- */
static void copy_value(char *out, size_t n, const char *value, size_t len)
{
    snprintf(out, n, "%.*s", (int)(len < n ? len : n - 1), value);
}

static size_t on_header(char *line, size_t one, size_t n, void *user)
{
    hc_client *c = user;
    hc_answer *a = c->a;
    (void)one;
    if (n > 5 && strncmp(line, "HTTP/", 5) == 0) { /* of the last answer only */
        a->location[0] = a->range[0] = a->content_range[0] = a->challenge[0] = 0;
        a->docker_digest[0] = a->content_type[0] = 0;
        a->error_code[0] = a->error_message[0] = a->link[0] = 0;
        a->chunk_min = 0;
        a->retry_after = -1;
        return n;
    }
    const struct {
        const char *name;
        char *out;
        size_t n;
    } wanted[] = { { "Location", a->location, sizeof a->location },
                   { "Range", a->range, sizeof a->range },
                   { "Content-Range", a->content_range, sizeof a->content_range },
                   { "WWW-Authenticate", a->challenge, sizeof a->challenge },
                   { "Docker-Content-Digest", a->docker_digest, sizeof a->docker_digest },
                   { "Content-Type", a->content_type, sizeof a->content_type },
                   { "X-Error-Code", a->error_code, sizeof a->error_code },
                   { "X-Error-Message", a->error_message, sizeof a->error_message },
                   { "Link", a->link, sizeof a->link } };
    const char *colon = memchr(line, ':', n);
    if (!colon) return n;
    const size_t len = (size_t)(colon - line);
    const char *v = colon + 1, *end = line + n;
    while (v < end && (*v == ' ' || *v == '\t'))
        v++;
    while (end > v && (end[-1] == '\r' || end[-1] == '\n' || end[-1] == ' '))
        end--;
    char number[24];
    copy_value(number, sizeof number, v, (size_t)(end - v));
    for (size_t i = 0; i < LQ_COUNT(wanted); i++)
        if (len == strlen(wanted[i].name) && strncasecmp(line, wanted[i].name, len) == 0)
            copy_value(wanted[i].out, wanted[i].n, v, (size_t)(end - v));
    if (len == 20 && strncasecmp(line, "OCI-Chunk-Min-Length", len) == 0)
        a->chunk_min = strtoull(number, NULL, 10);
    if (len == 11 && strncasecmp(line, "Retry-After", len) == 0 && *number >= '0' && *number <= '9')
        a->retry_after = strtoll(number, NULL, 10);
    return n;
}

static bool keep_body(hc_client *c, const void *data, size_t n)
{
    hc_answer *a = c->a;
    if (n > PUB_MAX_SMALL - a->body_bytes) {
        c->failed =
            lq_fail(c->err, LQ_EFORMAT, "expected an answer of at most %d bytes", PUB_MAX_SMALL);
        return false;
    }
    if (a->body_bytes + n + 1 > c->body_cap) {
        const size_t cap = (a->body_bytes + n + 1) * 2;
        char *more = realloc(c->body, cap);
        if (!more) {
            c->failed = lq_fail(c->err, LQ_ENOMEM, "out of memory");
            return false;
        }
        c->body = more;
        c->body_cap = cap;
    }
    memcpy(c->body + a->body_bytes, data, n);
    a->body_bytes += n;
    c->body[a->body_bytes] = 0;
    a->body = c->body;
    return true;
}

static size_t on_body(char *data, size_t one, size_t n, void *user)
{
    hc_client *c = user;
    long status = 0;
    (void)one;
    curl_easy_getinfo(c->curl, CURLINFO_RESPONSE_CODE, &status);
    c->a->status = (int)status;
    if (status < 200 || status > 299 || !c->r->sink) return keep_body(c, data, n) ? n : 0;
    if (!c->begun && c->r->begin) c->failed = c->r->begin(c->r->user, c->err);
    c->begun = true;
    if (!c->failed) c->failed = c->r->sink(c->r->user, data, n, c->err);
    return c->failed ? 0 : n;
}

static size_t on_read(char *out, size_t one, size_t n, void *user)
{
    hc_client *c = user;
    const hc_body *b = c->r->body;
    const uint64_t left = b->bytes - c->sent;
    const size_t want = one * n < left ? one * n : (size_t)left;
    if (!want) return 0;
    const uint8_t *data = b->file ? b->file->data : b->data;
    if (data) {
        memcpy(out, data + b->off + c->sent, want);
    } else {
        const ssize_t got = pread(c->fd, out, want, (off_t)(b->off + c->sent));
        const bool ok = got == (ssize_t)want;
        if (!ok) {
            c->failed = lq_fail(c->err, LQ_EIO, "%s: cannot read %zu bytes at %llu", b->file->path,
                                want, (unsigned long long)(b->off + c->sent));
            return CURL_READFUNC_ABORT;
        }
    }
    c->sent += want;
    return want;
}

static int on_seek(void *user, curl_off_t off, int origin)
{
    hc_client *c = user;
    if (origin != SEEK_SET || off < 0 || (uint64_t)off > c->r->body->bytes)
        return CURL_SEEKFUNC_CANTSEEK;
    c->sent = (uint64_t)off;
    return CURL_SEEKFUNC_OK;
}

/* libcurl's own limit looks at a few seconds at a time: a burst now and then satisfies it. */
static bool too_slow(hc_client *c, curl_off_t carried)
{
    const time_t now = (time_t)lq_now();
    if (now - c->window.since <= c->patience) return false;
    const bool slow = carried - c->window.bytes < (curl_off_t)MIN_BYTES * c->patience;
    c->window.since = now;
    c->window.bytes = carried;
    return slow;
}

static int on_progress(void *user, curl_off_t to_come, curl_off_t received, curl_off_t to_go,
                       curl_off_t sent)
{
    hc_client *c = user;
    (void)to_come, (void)to_go;
    if (lq_stopped(c->job)) return 1;
    if (!too_slow(c, received + sent)) return 0;
    c->slow = true;
    return 1;
}

/* ---- the client ---- */
lq_status hc_open(hc_client **out, const char *ca, int patience, const lq_job *job, lq_err *err)
{
    hc_client *c = calloc(1, sizeof *c);
    if (c) c->curl = curl_easy_init();
    if (!c || !c->curl) {
        free(c);
        return lq_fail(err, LQ_ENOMEM, "out of memory");
    }
    c->job = job;
    c->patience = patience ? patience : PUB_PATIENCE;
    c->named = !ca && ca_file_variable();
    if (!ca) ca = ca_file(curl_version_info(CURLVERSION_NOW)->cainfo);
    if (ca) snprintf(c->ca, sizeof c->ca, "%s", ca);
    *out = c;
    return LQ_OK;
}

void hc_close(hc_client *c)
{
    if (!c) return;
    curl_easy_cleanup(c->curl);
    free(c->body);
    free(c);
}

const hc_answer *hc_current(const hc_client *c) { return c->a; }

static void only_http(CURL *h)
{
#if LIBCURL_VERSION_NUM >= 0x075500
    curl_easy_setopt(h, CURLOPT_PROTOCOLS_STR, "http,https");
#else
    curl_easy_setopt(h, CURLOPT_PROTOCOLS, (long)(CURLPROTO_HTTP | CURLPROTO_HTTPS));
#endif
}

/* Behind the others; false, and none left: out of memory. */
static bool add_header(struct curl_slist **list, const char *line)
{
    struct curl_slist *more = curl_slist_append(*list, line);
    if (!more) curl_slist_free_all(*list);
    *list = more;
    return more != NULL;
}

/* NULL: out of memory. */
static struct curl_slist *headers_of(const hc_request *r, bool authorized)
{
    char line[HC_AUTHORIZATION + 32];
    struct curl_slist *list = NULL;
    bool all = add_header(&list, "Expect:");
    for (size_t i = 0; all && i < LQ_COUNT(r->headers) && r->headers[i]; i++)
        all = add_header(&list, r->headers[i]);
    if (all && authorized && r->authorization) {
        snprintf(line, sizeof line, "Authorization: %s", r->authorization);
        add_header(&list, line);
    }
    return list;
}

static void set_options(hc_client *c, const char *url, struct curl_slist *headers)
{
    CURL *h = c->curl;
    const hc_request *r = c->r;
    curl_easy_reset(h); /* connections stay */
    only_http(h);
    curl_easy_setopt(h, CURLOPT_URL, url);
    curl_easy_setopt(h, CURLOPT_HTTPHEADER, headers);
    curl_easy_setopt(h, CURLOPT_USERAGENT, "llmq/" LLMQ_VERSION);
    curl_easy_setopt(h, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(h, CURLOPT_ERRORBUFFER, c->why);
    curl_easy_setopt(h, CURLOPT_CONNECTTIMEOUT, (long)CONNECT_SECONDS);
    curl_easy_setopt(h, CURLOPT_HEADERFUNCTION, on_header);
    curl_easy_setopt(h, CURLOPT_HEADERDATA, c);
    curl_easy_setopt(h, CURLOPT_WRITEFUNCTION, on_body);
    curl_easy_setopt(h, CURLOPT_WRITEDATA, c);
    curl_easy_setopt(h, CURLOPT_NOPROGRESS, 0L);
    curl_easy_setopt(h, CURLOPT_XFERINFOFUNCTION, on_progress);
    curl_easy_setopt(h, CURLOPT_XFERINFODATA, c);
    if (c->ca[0]) curl_easy_setopt(h, CURLOPT_CAINFO, c->ca);
    if (strcmp(r->method, "HEAD") == 0) {
        curl_easy_setopt(h, CURLOPT_NOBODY, 1L);
    } else if (r->body) {
        curl_easy_setopt(h, CURLOPT_UPLOAD, 1L);
        curl_easy_setopt(h, CURLOPT_READFUNCTION, on_read);
        curl_easy_setopt(h, CURLOPT_READDATA, c);
        curl_easy_setopt(h, CURLOPT_SEEKFUNCTION, on_seek);
        curl_easy_setopt(h, CURLOPT_SEEKDATA, c);
        curl_easy_setopt(h, CURLOPT_INFILESIZE_LARGE, (curl_off_t)r->body->bytes);
        curl_easy_setopt(h, CURLOPT_CUSTOMREQUEST, r->method);
    } else if (strcmp(r->method, "GET") != 0) {
        curl_easy_setopt(h, CURLOPT_POSTFIELDS, "");
        curl_easy_setopt(h, CURLOPT_CUSTOMREQUEST, r->method);
    }
}

static lq_status one_request(hc_client *c, const char *url, bool authorized)
{
    hc_answer *a = c->a;
    *a = (hc_answer){ .retry_after = -1 };
    struct curl_slist *headers = headers_of(c->r, authorized);
    if (!headers) return lq_fail(c->err, LQ_ENOMEM, "out of memory");
    c->why[0] = 0;
    c->sent = 0;
    c->window.since = (time_t)lq_now();
    c->window.bytes = 0;
    c->failed = LQ_OK;
    c->begun = c->slow = false;
    set_options(c, url, headers);
    const hc_body *b = c->r->body;
    c->fd = b && b->file && b->file->path ? open(b->file->path, O_RDONLY | O_CLOEXEC) : -1;
    const CURLcode code = curl_easy_perform(c->curl);
    long status = 0;
    curl_easy_getinfo(c->curl, CURLINFO_RESPONSE_CODE, &status);
    curl_slist_free_all(headers);
    if (c->fd >= 0) close(c->fd);
    a->status = (int)status;
    a->sent = c->sent;
    if (c->failed) return c->failed;
    if (lq_stopped(c->job)) return lq_fail(c->err, LQ_EINTR, "interrupted");
    if (code == CURLE_OK) return LQ_OK;
    if (c->slow)
        snprintf(c->why, sizeof c->why, "less than %d bytes a second for %d s", MIN_BYTES,
                 c->patience);
    if (code == CURLE_SSL_CACERT_BADFILE && c->named)
        return lq_fail(c->err, LQ_EIO, "%.200s: %s: %.200s: expected a file of certificates", url,
                       ca_file_variable(), c->ca);
    a->lost = code != CURLE_PEER_FAILED_VERIFICATION && code != CURLE_SSL_CACERT_BADFILE &&
              code != CURLE_URL_MALFORMAT && code != CURLE_UNSUPPORTED_PROTOCOL;
    return lq_fail(c->err, LQ_EIO, "%.200s: %s", url,
                   c->why[0] ? c->why : curl_easy_strerror(code));
}

lq_status hc_do(hc_client *c, const hc_request *r, hc_answer *a, lq_err *err)
{
    char url[HC_VALUE];
    c->r = r;
    c->a = a;
    c->err = err;
    *a = (hc_answer){ .retry_after = -1 };
    lq_status s = hc_resolve(url, sizeof url, r->url, r->url, err);
    const bool follow = strcmp(r->method, "GET") == 0 || strcmp(r->method, "HEAD") == 0;
    for (int hop = 0; !s; hop++) {
        s = one_request(c, url, hc_same_origin(r->url, url));
        if (s || !follow || a->status < 301 || a->status > 308 || !a->location[0]) return s;
        if (hop == MAX_REDIRECTS)
            return lq_fail(err, LQ_EFORMAT, "%.200s: expected at most %d redirects, found more",
                           r->url, MAX_REDIRECTS);
        char next[HC_VALUE];
        s = hc_resolve(next, sizeof next, url, a->location, err);
        if (!s) memcpy(url, next, sizeof url);
    }
    return s;
}
