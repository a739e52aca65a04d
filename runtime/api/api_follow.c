/* runtime/api/api_follow.c - see api_follow.h.
 *
 * News come from who makes the response (api_background.c), and several times a second from api_tick: for what another
 * process makes, and for clients that read slower than it is made. A client gets no more at once than its stream takes. */
#include "runtime/api/api_follow.h"

#include "runtime/api/api_int.h"

#include <stdio.h>
#include <stdlib.h>

enum { PIECE = 1 << 18 }; /* bytes that are read at once, unless an event is larger */

typedef struct follower follower;
struct follower {
    follower *next;
    http_req *r;
    char id[128];
    size_t at; /* bytes of the log that are dealt with ... */
    int64_t n; /* ... which are so many events */
    int64_t after;
    atomic_bool gone;
};

static void on_gone(void *user)
{
    follower *f = user;
    atomic_store(&f->gone, true);
}

/* False: not now. What the client has already is passed over. */
static bool send(follower *f, const char *p, size_t n)
{
    if (f->n > f->after) {
        if (http_stream_room(f->r) < n) return false;
        if (!http_stream_write(f->r, p, n)) atomic_store(&f->gone, true);
    }
    f->n++;
    return true;
}

/* The next piece of the log, with a whole event if there is one. *more: the log goes on behind it. False: there is no
 * such log (any more). */
static bool read_piece(api *a, const follower *f, lq_buf *b, api_store_log *log, bool *more)
{
    for (size_t most = PIECE;; most *= 2) {
        lq_buf_clear(b);
        if (!api_store_events(a->store, f->id, f->at, most, b, log)) return false;
        *more = b->n == most;
        if (!*more || memmem(b->p, b->n, "\n\n", 2)) return true;
    }
}

/* Whole events of a piece; returns how many bytes. */
static size_t send_piece(follower *f, const lq_buf *b)
{
    size_t done = 0;
    const char *end;
    while (done < b->n && !atomic_load(&f->gone) &&
           (end = memmem(b->p + done, b->n - done, "\n\n", 2)) != NULL) {
        const size_t n = (size_t)(end + 2 - b->p) - done;
        if (!send(f, b->p + done, n)) break;
        done += n;
    }
    return done;
}

static bool send_last(follower *f, const char *type, jw *w)
{
    lq_buf b = { 0 };
    jw_close(w, '}');
    lq_buf_printf(&b, "event: %s\ndata: ", type);
    lq_buf_add(&b, w->b.p, w->b.n);
    lq_buf_puts(&b, "\n\n");
    const bool oom = w->b.oom || b.oom, sent = oom || send(f, b.p, b.n);
    if (oom) atomic_store(&f->gone, true);
    lq_buf_free(&b);
    jw_free(w);
    return sent;
}

static void begin_last(jw *w, const follower *f, const char *type)
{
    jw_open(w, '{');
    jw_put_cstr(w, "type", type);
    jw_put_i64(w, "sequence_number", f->n);
}

static bool send_lost(follower *f)
{
    static const char type[] = "error";
    jw w = { 0 };
    begin_last(&w, f, type);
    jw_put_cstr(&w, "code", "response_not_found");
    jw_put_cstr(&w, "message", "the response is not kept any more");
    jw_key(&w, "param");
    jw_null(&w);
    return send_last(f, type, &w);
}

/* What became of the response. */
static bool send_end(api *a, follower *f)
{
    lq_buf text = { 0 };
    cJSON *response = NULL;
    jw w = { 0 };
    char type[32];
    bool sent;
    if (api_store_get(a->store, f->id, &text, NULL) &&
        !js_parse(&response, text.p, text.n, API_STORE_BYTES, 0, NULL)) {
        const char *status = cJSON_GetStringValue(js_get(response, "status"));
        snprintf(type, sizeof type, "response.%.20s", status ? status : "");
        begin_last(&w, f, type);
        jw_key(&w, "response");
        jw_json(&w, text.p, text.n);
        sent = send_last(f, type, &w);
    } else {
        sent = send_lost(f);
    }
    cJSON_Delete(response);
    lq_buf_free(&text);
    return sent;
}

/* Whatever can be sent now. True: it was the last. */
static bool feed(api *a, follower *f)
{
    lq_buf b = { 0 };
    api_store_log log = API_NO_LOG;
    bool over = false, more = true;
    while (more && !over && !atomic_load(&f->gone)) {
        if (!read_piece(a, f, &b, &log, &more)) {
            over = send_lost(f);
            break;
        }
        const size_t n = send_piece(f, &b);
        f->at += n;
        more = more && n > 0;
        /* Half an event is the last word of a server that was killed. */
        const bool all = n == b.n || !memmem(b.p + n, b.n - n, "\n\n", 2);
        if (all && !more && log != API_LOG_OPEN) over = send_end(a, f);
    }
    lq_buf_free(&b);
    return over || atomic_load(&f->gone);
}

static void let_go(follower *f)
{
    http_stream_end(f->r);
    http_release(f->r); /* f is gone after it */
}

void api_follow_news(api *a, const char *id)
{
    pthread_mutex_lock(&a->follow_mu);
    for (follower **at = &a->followers; *at;) {
        follower *f = *at;
        if ((id && strcmp(f->id, id) != 0) || !feed(a, f)) {
            at = &f->next;
            continue;
        }
        *at = f->next;
        let_go(f);
    }
    pthread_mutex_unlock(&a->follow_mu);
}

void api_follow(api *a, http_req *r, const char *id, int64_t after)
{
    follower *f = calloc(1, sizeof *f);
    if (!f) {
        http_error(r, 503, NULL, NULL, "out of memory");
        return;
    }
    f->r = r;
    f->after = after;
    snprintf(f->id, sizeof f->id, "%s", id);
    http_keep(r, on_gone, free, f);
    http_stream_begin(r);
    pthread_mutex_lock(&a->follow_mu);
    f->next = a->followers;
    a->followers = f;
    pthread_mutex_unlock(&a->follow_mu);
    api_follow_news(a, id);
}

void api_follow_close(api *a)
{
    for (follower *f = a->followers, *next; f; f = next) {
        next = f->next;
        let_go(f);
    }
    a->followers = NULL;
}
