/* tools/router/relay.c - see relay.h. */
#include "tools/router/relay.h"

#include <curl/curl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>

enum { MAX_ANSWER = 256 << 20, MAX_HEADERS = 8, MAX_HEADER = 256, CONNECT_SECONDS = 10 };

typedef struct hop hop;
struct hop {
    hop *next, *prev;
    relay_call c;
    char *unix_path, *url;
    CURL *easy;
    struct curl_slist *headers;
    bool began, streams, cut; /* cut: the client is gone, or its connection is to be */
    bool whole_only;          /* and it streams: refused */
    size_t waits; /* bytes that its client has no room for: it is paused. 0: it is not */
    lq_buf body;
    char kept[MAX_HEADERS][MAX_HEADER]; /* of the answer */
    size_t n_kept;
};

struct relay {
    CURLM *multi;
    pthread_t thread;
    bool running;
    pthread_mutex_t mu;
    hop *fresh, *hops; /* to be begun; begun. Both under mu */
    bool closing;
};

/* ---- one hop ---- */

static void hop_free(hop *h)
{
    if (h->easy) curl_easy_cleanup(h->easy);
    curl_slist_free_all(h->headers);
    lq_buf_free(&h->body);
    free(h->unix_path);
    free(h->url);
    free(h);
}

/* Fields of an answer that its client needs; the others are the connection's, or this server's own. */
static bool is_passed(const char *line, size_t n)
{
    static const char *const names[] = { "retry-after:", "x-should-retry:", "allow:",
                                         "www-authenticate:" };
    for (size_t i = 0; i < LQ_COUNT(names); i++)
        if (n > strlen(names[i]) && strncasecmp(line, names[i], strlen(names[i])) == 0) return true;
    return false;
}

static size_t on_header(char *data, size_t size, size_t n, void *user)
{
    hop *h = user;
    n *= size;
    size_t k = n;
    while (k && (unsigned char)data[k - 1] <= ' ')
        k--;
    if (is_passed(data, k) && k < MAX_HEADER && h->n_kept < MAX_HEADERS)
        snprintf(h->kept[h->n_kept++], MAX_HEADER, "%.*s", (int)k, data);
    return n;
}

static void begin_answer(hop *h)
{
    const char *type = NULL;
    long status = 0;
    h->began = true;
    curl_easy_getinfo(h->easy, CURLINFO_RESPONSE_CODE, &status);
    curl_easy_getinfo(h->easy, CURLINFO_CONTENT_TYPE, &type);
    h->streams = status == 200 && type &&
                 (strncasecmp(type, "text/event-stream", 17) == 0 ||
                  strncasecmp(type, "application/x-ndjson", 20) == 0);
    h->whole_only = h->streams && !http_can_stream(h->c.r);
    h->cut |= h->whole_only;
    h->streams &= !h->whole_only;
    if (h->streams) http_stream_begin(h->c.r);
}

static size_t on_data(char *data, size_t size, size_t n, void *user)
{
    hop *h = user;
    n *= size;
    if (!h->began) begin_answer(h);
    if (atomic_load(h->c.gone)) h->cut = true;
    if (h->streams && !h->cut && http_stream_room(h->c.r) < n) {
        h->waits = n;
        return CURL_WRITEFUNC_PAUSE;
    }
    if (h->streams && !h->cut) h->cut = !http_stream_write(h->c.r, data, n);
    if (!h->streams && !h->cut) {
        h->cut = h->body.n + n > MAX_ANSWER || !http_hold(h->c.r, n);
        if (!h->cut) lq_buf_add(&h->body, data, n);
    }
    return h->cut ? 0 : n;
}

/* A client that has gone is noticed while its server is silent too. */
static int on_progress(void *user, curl_off_t a, curl_off_t b, curl_off_t c, curl_off_t d)
{
    (void)a, (void)b, (void)c, (void)d;
    return atomic_load(((hop *)user)->c.gone);
}

static bool add_field(hop *h, const char *name, const char *value)
{
    char line[MAX_HEADER];
    if (snprintf(line, sizeof line, "%s: %s", name, value) >= (int)sizeof line) return true;
    struct curl_slist *l = curl_slist_append(h->headers, line);
    if (l) h->headers = l;
    return l != NULL;
}

static bool set_up(hop *h)
{
    CURL *e = h->easy = curl_easy_init();
    const bool posts = strcmp(h->c.method, "POST") == 0;
    size_t n;
    const char *body = http_body(h->c.r, &n);
    if (!e) return false;
    bool ok = add_field(h, "X-Request-Id", http_id(h->c.r)) && add_field(h, "Expect", "");
    if (ok && posts) ok = add_field(h, "Content-Type", h->c.type);
    if (ok && h->c.accept) ok = add_field(h, "Accept", h->c.accept);
    curl_easy_setopt(e, CURLOPT_URL, h->url);
    curl_easy_setopt(e, CURLOPT_UNIX_SOCKET_PATH, h->unix_path);
    curl_easy_setopt(e, CURLOPT_PROXY, "");
    curl_easy_setopt(e, CURLOPT_CUSTOMREQUEST, h->c.method);
    curl_easy_setopt(e, CURLOPT_HTTPHEADER, h->headers);
    curl_easy_setopt(e, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(e, CURLOPT_CONNECTTIMEOUT, (long)CONNECT_SECONDS);
    curl_easy_setopt(e, CURLOPT_HEADERFUNCTION, on_header);
    curl_easy_setopt(e, CURLOPT_HEADERDATA, h);
    curl_easy_setopt(e, CURLOPT_WRITEFUNCTION, on_data);
    curl_easy_setopt(e, CURLOPT_WRITEDATA, h);
    curl_easy_setopt(e, CURLOPT_XFERINFOFUNCTION, on_progress);
    curl_easy_setopt(e, CURLOPT_XFERINFODATA, h);
    curl_easy_setopt(e, CURLOPT_NOPROGRESS, 0L);
    curl_easy_setopt(e, CURLOPT_PRIVATE, h);
    if (posts) {
        curl_easy_setopt(e, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)n);
        curl_easy_setopt(e, CURLOPT_POSTFIELDS, body);
    }
    return ok;
}

static void answer(hop *h)
{
    const char *type = NULL, *lines[MAX_HEADERS];
    long status = 0;
    curl_easy_getinfo(h->easy, CURLINFO_RESPONSE_CODE, &status);
    curl_easy_getinfo(h->easy, CURLINFO_CONTENT_TYPE, &type);
    for (size_t i = 0; i < h->n_kept; i++)
        lines[i] = h->kept[i];
    const http_extra x = { .type = type, .headers = lines, .n_headers = h->n_kept };
    if (h->body.oom)
        http_error(h->c.r, 503, NULL, NULL, "out of memory");
    else
        http_reply(h->c.r, (int)status, h->body.n ? h->body.p : "", h->body.n, &x);
}

/* It is in no list any more. */
static void finish(hop *h, CURLcode code, const char *broken)
{
    const char *why = NULL;
    long status = 0;
    if (code == CURLE_OK) curl_easy_getinfo(h->easy, CURLINFO_RESPONSE_CODE, &status);
    if (code == CURLE_COULDNT_CONNECT) status = RELAY_NOBODY;
    if (h->streams) {
        if (code != CURLE_OK) http_stream_write(h->c.r, NULL, 0);
        http_stream_end(h->c.r);
    } else if (h->whole_only) {
        http_error(h->c.r, 400, "stream", "unsupported_value", HTTP_WHOLE_ONLY);
    } else if (code == CURLE_OK) {
        if (h->c.answers) h->c.answers(h->c.user, (int)status);
        answer(h);
    } else if (h->cut && !atomic_load(h->c.gone)) {
        http_error(h->c.r, 503, NULL, NULL, "the answer takes more memory than there is for it");
    } else if (!atomic_load(h->c.gone)) {
        why = broken ? broken : curl_easy_strerror(code);
    }
    h->c.done(h->c.user, (int)status, why);
    hop_free(h);
}

/* ---- the thread ---- */

static void unlink_hop(relay *y, hop *h)
{
    pthread_mutex_lock(&y->mu);
    if (h->prev)
        h->prev->next = h->next;
    else
        y->hops = h->next;
    if (h->next) h->next->prev = h->prev;
    pthread_mutex_unlock(&y->mu);
}

static void begin_fresh(relay *y)
{
    for (;;) {
        pthread_mutex_lock(&y->mu);
        hop *h = y->fresh;
        if (h) {
            y->fresh = h->next;
            h->prev = NULL;
            h->next = y->hops;
            if (h->next) h->next->prev = h;
            y->hops = h;
        }
        pthread_mutex_unlock(&y->mu);
        if (!h) return;
        if (set_up(h) && curl_multi_add_handle(y->multi, h->easy) == CURLM_OK) continue;
        unlink_hop(y, h);
        finish(h, CURLE_OUT_OF_MEMORY, NULL);
    }
}

static void end_finished(relay *y)
{
    int left;
    for (CURLMsg *m; (m = curl_multi_info_read(y->multi, &left)) != NULL;) {
        hop *h;
        if (m->msg != CURLMSG_DONE) continue;
        const CURLcode code = m->data.result;
        curl_easy_getinfo(m->easy_handle, CURLINFO_PRIVATE, (char **)&h);
        curl_multi_remove_handle(y->multi, h->easy);
        unlink_hop(y, h);
        finish(h, code, NULL);
    }
}

/* Streams whose clients have room again for what waits, or are gone, go on: the model's server judges who is too slow. Are
 * others left? With less room they would be paused at once, and curl would never sleep. */
static bool resume(relay *y)
{
    bool left = false;
    for (hop *h = y->hops, *next; h; h = next) {
        next = h->next;
        if (!h->waits) continue;
        if (http_stream_room(h->c.r) >= h->waits || atomic_load(h->c.gone)) {
            h->waits = 0;
            curl_easy_pause(h->easy, CURLPAUSE_CONT);
        }
        left |= h->waits > 0;
    }
    return left;
}

static void *run(void *user)
{
    enum { LOOK_MS = 20, IDLE_MS = 1000 };
    relay *y = user;
    int running;
    for (bool closing = false; !closing;) {
        begin_fresh(y);
        curl_multi_perform(y->multi, &running);
        end_finished(y);
        curl_multi_poll(y->multi, NULL, 0, resume(y) ? LOOK_MS : IDLE_MS, NULL);
        pthread_mutex_lock(&y->mu);
        closing = y->closing;
        pthread_mutex_unlock(&y->mu);
    }
    begin_fresh(y);
    while (y->hops) {
        hop *h = y->hops;
        curl_multi_remove_handle(y->multi, h->easy);
        unlink_hop(y, h);
        finish(h, CURLE_ABORTED_BY_CALLBACK, "the server is shutting down");
    }
    return NULL;
}

/* ---- from any thread ---- */

lq_status relay_open(relay **out, lq_err *err)
{
    relay *y = *out = calloc(1, sizeof *y);
    if (!y) return lq_fail(err, LQ_ENOMEM, "out of memory");
    pthread_mutex_init(&y->mu, NULL);
    y->multi = curl_global_init(CURL_GLOBAL_DEFAULT) ? NULL : curl_multi_init();
    y->running = y->multi && pthread_create(&y->thread, NULL, run, y) == 0;
    if (y->running) return LQ_OK;
    relay_close(y);
    *out = NULL;
    return lq_fail(err, LQ_ENOMEM, "out of memory");
}

void relay_close(relay *y)
{
    if (!y) return;
    pthread_mutex_lock(&y->mu);
    y->closing = true;
    pthread_mutex_unlock(&y->mu);
    if (y->running) {
        curl_multi_wakeup(y->multi);
        pthread_join(y->thread, NULL);
    }
    if (y->multi) curl_multi_cleanup(y->multi);
    pthread_mutex_destroy(&y->mu);
    free(y);
}

lq_status relay_send(relay *y, const relay_call *c, lq_err *err)
{
    hop *h = calloc(1, sizeof *h);
    if (!h) return lq_fail(err, LQ_ENOMEM, "out of memory");
    h->c = *c;
    h->unix_path = strdup(c->unix_path);
    lq_buf url = { 0 };
    lq_buf_printf(&url, "http://localhost%s", c->path);
    lq_buf_add(&url, "", 1);
    h->url = url.p;
    if (url.oom || !h->unix_path) {
        hop_free(h);
        return lq_fail(err, LQ_ENOMEM, "out of memory");
    }
    pthread_mutex_lock(&y->mu);
    hop **end = &y->fresh;
    while (*end)
        end = &(*end)->next;
    *end = h;
    pthread_mutex_unlock(&y->mu);
    curl_multi_wakeup(y->multi);
    return LQ_OK;
}

void relay_wake(relay *y) { curl_multi_wakeup(y->multi); }

/* ---- one request ---- */

static size_t take(char *data, size_t size, size_t n, void *user)
{
    lq_buf *b = user;
    if (b->n + size * n > MAX_ANSWER) return 0;
    lq_buf_add(b, data, size * n);
    return b->oom ? 0 : size * n;
}

void relay_ask(const char *unix_path, const char *method, const char *path, const char *json,
               double seconds, int *status, lq_buf *body)
{
    char url[256];
    long code = 0;
    struct curl_slist *fields =
        json ? curl_slist_append(NULL, "Content-Type: application/json") : NULL;
    CURL *e = json && !fields ? NULL : curl_easy_init();
    *status = 0;
    if (!e) {
        curl_slist_free_all(fields);
        return;
    }
    snprintf(url, sizeof url, "http://localhost%s", path);
    curl_easy_setopt(e, CURLOPT_URL, url);
    curl_easy_setopt(e, CURLOPT_UNIX_SOCKET_PATH, unix_path);
    curl_easy_setopt(e, CURLOPT_PROXY, "");
    curl_easy_setopt(e, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(e, CURLOPT_CUSTOMREQUEST, method);
    curl_easy_setopt(e, CURLOPT_TIMEOUT_MS, (long)(seconds * 1e3));
    if (json) {
        curl_easy_setopt(e, CURLOPT_HTTPHEADER, fields);
        curl_easy_setopt(e, CURLOPT_POSTFIELDS, json);
    }
    curl_easy_setopt(e, CURLOPT_WRITEFUNCTION, take);
    curl_easy_setopt(e, CURLOPT_WRITEDATA, body);
    if (curl_easy_perform(e) == CURLE_OK) curl_easy_getinfo(e, CURLINFO_RESPONSE_CODE, &code);
    curl_easy_cleanup(e);
    curl_slist_free_all(fields);
    *status = (int)code;
}
