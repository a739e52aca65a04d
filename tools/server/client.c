/* tools/server/client.c - see client.h. */
#include "tools/server/client.h"

#include "base/ca_file.h"
#include "base/json.h"

#include <curl/curl.h>
#include <stdlib.h>
#include <strings.h>

enum { MAX_BODY = 64 << 20, MAX_EVENT = 16 << 20, CONNECT_SECONDS = 10, MAX_URL = 2048 };

typedef struct call {
    client *c;
    CURL *easy;
    client_request r;
    char *json;
    lq_buf body; /* an answer that is no stream; of a stream the line that is not complete */
    bool streams, broken, finished; /* broken: by event(); finished: [DONE] */
    char error[CURL_ERROR_SIZE];
    struct call *next, *prev;
} call;

struct client {
    CURLM *multi;
    struct curl_slist *headers;
    char url[MAX_URL];
    char *unix_path;
    bool insecure, cancelling;
    const char *ca; /* certificates to trust; NULL: libcurl's */
    long idle_seconds;
    call *calls;
    int n;
};

/* ---- the life of a client ---- */

static bool add_header(client *c, const char *line)
{
    struct curl_slist *l = curl_slist_append(c->headers, line);
    if (l) c->headers = l;
    return l != NULL;
}

static bool set_headers(client *c, const char *key)
{
    bool ok = add_header(c, "Content-Type: application/json") && add_header(c, "Expect:");
    if (!ok || !key) return ok;
    lq_buf w = { 0 };
    lq_buf_puts(&w, "Authorization: Bearer ");
    lq_buf_add(&w, key, strlen(key) + 1);
    ok = !w.oom && add_header(c, w.p);
    lq_buf_free(&w);
    return ok;
}

lq_status client_open(client **out, const client_opts *o, lq_err *err)
{
    *out = NULL;
    size_t n = strlen(o->url);
    if (strncasecmp(o->url, "http://", 7) != 0 && strncasecmp(o->url, "https://", 8) != 0)
        return lq_fail(err, LQ_EUSAGE, "expected http://HOST:PORT, found '%.80s'", o->url);
    if (o->key && strpbrk(o->key, "\r\n"))
        return lq_fail(err, LQ_EUSAGE, "the key: expected one line");
    while (n && o->url[n - 1] == '/')
        n--;
    if (n < 8 || o->url[n - 1] == ':')
        return lq_fail(err, LQ_EUSAGE, "expected http://HOST:PORT, found '%.80s'", o->url);
    if (n > 3 && memcmp(o->url + n - 3, "/v1", 3) == 0) n -= 3;
    if (n + 64 > MAX_URL) return lq_fail(err, LQ_EUSAGE, "the address is too long");
    client *c = calloc(1, sizeof *c);
    if (!c) return lq_fail(err, LQ_ENOMEM, "out of memory");
    memcpy(c->url, o->url, n);
    c->insecure = o->insecure;
    c->ca = ca_file(curl_version_info(CURLVERSION_NOW)->cainfo);
    c->idle_seconds = o->idle_seconds > 0 ? (long)o->idle_seconds : 300;
    c->multi = curl_global_init(CURL_GLOBAL_DEFAULT) ? NULL : curl_multi_init();
    bool ok = c->multi && set_headers(c, o->key);
    if (ok && o->unix_path) ok = (c->unix_path = strdup(o->unix_path)) != NULL;
    if (ok) {
        *out = c;
        return LQ_OK;
    }
    client_close(c);
    return lq_fail(err, LQ_ENOMEM, "out of memory");
}

static void call_free(call *k)
{
    client *c = k->c;
    if (k->easy) curl_multi_remove_handle(c->multi, k->easy);
    curl_easy_cleanup(k->easy);
    if (k->prev)
        k->prev->next = k->next;
    else if (c->calls == k)
        c->calls = k->next;
    if (k->next) k->next->prev = k->prev;
    lq_buf_free(&k->body);
    free(k->json);
    free(k);
}

void client_close(client *c)
{
    if (!c) return;
    while (c->calls)
        call_free(c->calls);
    if (c->multi) curl_multi_cleanup(c->multi);
    curl_slist_free_all(c->headers);
    free(c->unix_path);
    free(c);
}

/* ---- what arrives ---- */

/* One line of a stream, NUL-terminated; false: the client wants no more. llmq and every server of
 * this API write an event's data on one line. */
static bool take_line(call *k, char *line, size_t n)
{
    if (n && line[n - 1] == '\r') line[--n] = 0;
    if (n < 5 || memcmp(line, "data:", 5) != 0) return true;
    size_t at = line[5] == ' ' ? 6 : 5;
    if (strcmp(line + at, "[DONE]") == 0) {
        k->finished = true;
        return true;
    }
    return k->r.event(k->r.user, line + at, n - at);
}

static bool take_stream(call *k, const char *data, size_t n)
{
    for (const char *end; n && (end = memchr(data, '\n', n)) != NULL;) {
        size_t part = (size_t)(end - data);
        lq_buf_add(&k->body, data, part);
        lq_buf_add(&k->body, "", 1);
        if (k->body.oom || !take_line(k, k->body.p, k->body.n - 1)) return false;
        lq_buf_clear(&k->body);
        data += part + 1;
        n -= part + 1;
    }
    lq_buf_add(&k->body, data, n);
    return !k->body.oom && k->body.n <= MAX_EVENT;
}

static size_t on_data(char *data, size_t size, size_t n, void *user)
{
    call *k = user;
    n *= size;
    const char *type = NULL;
    long status = 0;
    if (!k->streams && k->r.event && !k->body.n) {
        curl_easy_getinfo(k->easy, CURLINFO_RESPONSE_CODE, &status);
        curl_easy_getinfo(k->easy, CURLINFO_CONTENT_TYPE, &type);
        k->streams = status == 200 && type && strncasecmp(type, "text/event-stream", 17) == 0;
    }
    if (k->streams) {
        k->broken = !take_stream(k, data, n);
        return k->broken ? 0 : n;
    }
    lq_buf_add(&k->body, data, n);
    return k->body.oom || k->body.n > MAX_BODY ? 0 : n;
}

/* ---- requests ---- */

static void set_options(call *k)
{
    client *c = k->c;
    CURL *e = k->easy;
    char url[MAX_URL + 64];
    snprintf(url, sizeof url, "%s%.60s", c->url, k->r.path);
    curl_easy_setopt(e, CURLOPT_URL, url);
    if (c->unix_path) curl_easy_setopt(e, CURLOPT_UNIX_SOCKET_PATH, c->unix_path);
    curl_easy_setopt(e, CURLOPT_HTTPHEADER, c->headers);
    curl_easy_setopt(e, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(e, CURLOPT_TCP_NODELAY, 1L);
    curl_easy_setopt(e, CURLOPT_CONNECTTIMEOUT, (long)CONNECT_SECONDS);
    curl_easy_setopt(e, CURLOPT_LOW_SPEED_LIMIT, 1L);
    curl_easy_setopt(e, CURLOPT_LOW_SPEED_TIME, c->idle_seconds);
    curl_easy_setopt(e, CURLOPT_WRITEFUNCTION, on_data);
    curl_easy_setopt(e, CURLOPT_WRITEDATA, k);
    curl_easy_setopt(e, CURLOPT_PRIVATE, k);
    curl_easy_setopt(e, CURLOPT_ERRORBUFFER, k->error);
    if (c->ca) curl_easy_setopt(e, CURLOPT_CAINFO, c->ca);
    if (c->insecure) {
        curl_easy_setopt(e, CURLOPT_SSL_VERIFYPEER, 0L);
        curl_easy_setopt(e, CURLOPT_SSL_VERIFYHOST, 0L);
    }
    if (!k->json) return;
    curl_easy_setopt(e, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)strlen(k->json));
    curl_easy_setopt(e, CURLOPT_POSTFIELDS, k->json);
}

lq_status client_send(client *c, const client_request *r, lq_err *err)
{
    call *k = calloc(1, sizeof *k);
    if (!k) return lq_fail(err, LQ_ENOMEM, "out of memory");
    k->c = c;
    k->r = *r;
    k->next = c->calls;
    if (k->next) k->next->prev = k;
    c->calls = k;
    k->json = r->json ? strdup(r->json) : NULL;
    k->easy = curl_easy_init();
    if (k->easy && (k->json || !r->json)) {
        set_options(k);
        if (curl_multi_add_handle(c->multi, k->easy) == CURLM_OK) {
            c->n++;
            return LQ_OK;
        }
    }
    call_free(k);
    return lq_fail(err, LQ_ENOMEM, "out of memory");
}

static void client_finish(call *k, CURLcode code)
{
    client *c = k->c;
    client_answer a = { .cancelled = c->cancelling || k->broken };
    long status = 0;
    if (k->streams) lq_buf_clear(&k->body);
    curl_easy_getinfo(k->easy, CURLINFO_RESPONSE_CODE, &status);
    a.whole = code == CURLE_OK && (!k->streams || k->finished);
    if (code == CURLE_OK || k->streams) a.status = (int)status;
    if (!a.whole && !k->streams) {
        lq_buf_clear(&k->body);
        lq_buf_puts(&k->body, k->error[0] ? k->error : curl_easy_strerror(code));
    }
    a.n = k->body.n;
    lq_buf_add(&k->body, "", 1);
    a.body = k->body.oom ? "" : k->body.p;
    if (k->body.oom) a.n = 0;
    c->n--;
    if (k->r.done) k->r.done(k->r.user, &a);
    call_free(k);
}

int client_step(client *c, double seconds)
{
    int running = 0, left = 0;
    curl_multi_perform(c->multi, &running);
    if (running && !c->cancelling) curl_multi_poll(c->multi, NULL, 0, (int)(seconds * 1e3), NULL);
    curl_multi_perform(c->multi, &running);
    for (CURLMsg *m; (m = curl_multi_info_read(c->multi, &left)) != NULL;) {
        call *k;
        if (m->msg != CURLMSG_DONE) continue;
        const CURLcode code = m->data.result;
        curl_easy_getinfo(m->easy_handle, CURLINFO_PRIVATE, (char **)&k);
        client_finish(k, code);
    }
    while (c->cancelling && c->calls)
        client_finish(c->calls, CURLE_ABORTED_BY_CALLBACK);
    c->cancelling = false;
    return c->n;
}

void client_cancel(client *c) { c->cancelling = true; }

/* ---- one request ---- */

void client_say(const client_answer *a, lq_err *err)
{
    cJSON *doc = NULL;
    const char *text = NULL;
    if (!js_parse(&doc, a->body, a->n, MAX_BODY, 0, NULL))
        js_str(js_get(doc, "error"), "message", false, &text, NULL);
    if (text)
        lq_fail(err, LQ_EIO, "the server says: %.300s", text);
    else if (!a->status)
        lq_fail(err, LQ_EIO, "%.300s", a->n ? a->body : "the connection ended early");
    else if (a->status == 200)
        lq_fail(err, LQ_EIO, "the connection ended early");
    else
        lq_fail(err, LQ_EIO, "the server answers with status %d: %.200s", a->status, a->body);
    cJSON_Delete(doc);
}

typedef struct {
    lq_status s;
    lq_err *err;
    char *body;
    size_t n;
} asked;

static void client_keep(void *user, const client_answer *a)
{
    asked *k = user;
    k->s = LQ_OK;
    if (a->status != 200 || !a->whole) {
        client_say(a, k->err);
        k->s = LQ_EIO;
        return;
    }
    k->n = a->n;
    k->body = malloc(a->n + 1);
    if (k->body)
        memcpy(k->body, a->body, a->n + 1);
    else
        k->s = lq_fail(k->err, LQ_ENOMEM, "out of memory");
}

lq_status client_ask(client *c, const char *path, const char *json, char **body, size_t *n,
                     lq_err *err)
{
    asked k = { .s = LQ_EINTR, .err = err };
    *body = NULL;
    lq_status s = client_send(
        c, &(client_request){ .path = path, .json = json, .done = client_keep, .user = &k }, err);
    while (!s && k.s == LQ_EINTR)
        client_step(c, 1);
    if (!s) s = k.s;
    *body = k.body;
    if (n) *n = k.n;
    return s;
}

lq_status client_model(client *c, char **name, lq_err *err)
{
    char *body;
    size_t n;
    cJSON *doc = NULL;
    const char *id = NULL;
    *name = NULL;
    lq_status s = client_ask(c, "/v1/models", NULL, &body, &n, err);
    if (s) return s;
    s = js_parse(&doc, body, n, MAX_BODY, 0, err);
    const cJSON *data = s ? NULL : js_get(doc, "data");
    if (!s) s = js_str(data ? data->child : NULL, "id", true, &id, err);
    if (!s && !(*name = strdup(id))) s = lq_fail(err, LQ_ENOMEM, "out of memory");
    cJSON_Delete(doc);
    free(body);
    return s && s != LQ_ENOMEM ? lq_wrap(err, s, "/v1/models") : s;
}
