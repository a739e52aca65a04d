/* runtime/http/http_answer.c - the answer of an exchange, given by any thread and sent by its connection's.
 *
 * The connection's thread and the answering thread meet under req.mu. Who finds nothing to send
 * puts the connection to sleep while it holds the lock; who has something to send looks at `asleep`
 * under the lock and wakes it: no wake-up is lost, and none reaches a connection that is not there
 * (`mhd` is cleared under the lock when the exchange ends). */
#include "runtime/http/http_int.h"

#include "base/clock.h"

#include <stdarg.h>
#include <stdio.h>

enum { CLOSE_SECONDS = 1 };

bool http_req_count(http_req *r, size_t n)
{
    if (http_hold(r, n)) return true;
    http_error(r, 503, NULL, NULL, "too many large requests at the same time");
    return false;
}

bool http_claim(http_req *r, size_t bytes)
{
    if (!r->counts) return true; /* of the same process: its own affair */
    if (bytes <= r->counts->o.max_claim) return http_req_count(r, bytes);
    http_error(r, 413, NULL, NULL,
               "the body has so many values that they take %zu bytes of memory, more than %zu",
               bytes, r->counts->o.max_claim);
    return false;
}

void http_reply(http_req *r, int status, const void *body, size_t n, const http_extra *x)
{
    pthread_mutex_lock(&r->mu);
    bool first = r->answer == ANS_NONE;
    if (first) {
        r->answer = ANS_WHOLE;
        r->ended = true;
        r->status = status;
        lq_buf_clear(&r->out); /* stream events that were written before the answer turned out so */
        r->out_off = 0;
        lq_buf_add(&r->out, body, n);
        if (x && x->type) r->type = strdup(x->type);
        for (size_t i = 0; x && i < x->n_headers && r->n_headers < HTTP_HEADERS_MAX; i++)
            if ((r->headers[r->n_headers] = strdup(x->headers[i])) != NULL) r->n_headers++;
        http_req_wake(r);
    }
    pthread_mutex_unlock(&r->mu);
    if (first && r->to.done) r->to.done(r->to.user, r->out.oom ? 503 : status, r->out.p, r->out.n);
}

void http_error(http_req *r, int status, const char *param, const char *code, const char *fmt, ...)
{
    char message[1024];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(message, sizeof message, fmt, ap);
    va_end(ap);
    jw w = { 0 };
    http_req_style(r)->error(&w, status, param, code, message);
    const char *headers[2];
    bool final = status == 409 || status == 500 || status == 501 || status == 504;
    http_extra x = { .headers = headers };
    if (status == 401) headers[x.n_headers++] = "WWW-Authenticate: Bearer";
    if (status == 429 || status == 503) headers[x.n_headers++] = "Retry-After: 1";
    if (final) headers[x.n_headers++] = "x-should-retry: false";
    http_reply(r, status, w.b.p, w.b.n, &x);
    jw_free(&w);
}

void http_stream_begin(http_req *r)
{
    pthread_mutex_lock(&r->mu);
    if (r->answer == ANS_NONE) {
        r->answer = ANS_STREAM;
        r->status = 200;
        r->written = lq_now();
        http_req_wake(r);
    }
    pthread_mutex_unlock(&r->mu);
}

typedef struct {
    const char *p;
    size_t n;
} piece;

/* To http_local's caller, without a lock. */
static bool hand_pieces(http_req *r, const piece *v, int count)
{
    lq_buf b = { 0 };
    for (int i = 0; i < count; i++)
        lq_buf_add(&b, v[i].p, v[i].n);
    const bool ok = !b.oom && r->to.event(r->to.user, b.p, b.n);
    lq_buf_free(&b);
    return ok;
}

static bool write_pieces(http_req *r, const piece *v, int count, bool whole, bool repeats)
{
    size_t n = 0;
    if (!r->s) return whole && hand_pieces(r, v, count);
    for (int i = 0; i < count; i++)
        n += v[i].n;
    pthread_mutex_lock(&r->mu);
    const size_t have = r->out.n - r->out_off;
    const size_t most = HTTP_REPEAT_MAX * r->s->o.max_backlog;
    if (!have) r->repeated = 0;
    if (repeats) r->repeated = r->repeated + n < most ? r->repeated + n : most;
    bool over = have && have + n > r->s->o.max_backlog + r->repeated; /* as http_stream_room */
    bool ok = whole && !r->dead && !r->ended && !over;
    if (ok) {
        if (r->out_off > r->out.n / 2) { /* drop what was read */
            r->out.n -= r->out_off;
            memmove(r->out.p, r->out.p + r->out_off, r->out.n);
            r->out_off = 0;
        }
        for (int i = 0; i < count; i++)
            lq_buf_add(&r->out, v[i].p, v[i].n);
        r->written = lq_now();
        ok = !r->out.oom;
        http_req_wake(r);
    }
    bool cut = !ok && !r->dead && !r->ended;
    if (cut) r->told = true; /* the caller learns it from the result */
    pthread_mutex_unlock(&r->mu);
    if (cut) {
        atomic_fetch_add(&r->s->n_overflows, 1);
        http_req_cut(r);
    }
    return ok;
}

bool http_stream_write(http_req *r, const char *p, size_t n)
{
    return write_pieces(r, &(piece){ p, n }, 1, p != NULL, false);
}

static bool write_event(http_req *r, const char *name, const char *p, size_t n, bool repeats)
{
    const piece v[] = { { "event: ", 7 }, { name, name ? strlen(name) : 0 },
                        { "\n", 1 },      { "data: ", 6 },
                        { p, n },         { "\n\n", 2 } };
    const int skip = name ? 0 : 3;
    return write_pieces(r, v + skip, (int)LQ_COUNT(v) - skip, p != NULL, repeats);
}

bool http_stream_event(http_req *r, const char *name, const char *p, size_t n)
{
    return write_event(r, name, p, n, false);
}

bool http_stream_repeat(http_req *r, const char *name, const char *p, size_t n)
{
    return write_event(r, name, p, n, true);
}

void http_stream_end(http_req *r)
{
    pthread_mutex_lock(&r->mu);
    const bool first = !r->ended;
    r->ended = true;
    http_req_wake(r);
    pthread_mutex_unlock(&r->mu);
    if (first && r->to.done) r->to.done(r->to.user, r->status, NULL, 0);
}

size_t http_stream_room(http_req *r)
{
    pthread_mutex_lock(&r->mu);
    const size_t have = r->out.n - r->out_off, repeated = r->repeated;
    pthread_mutex_unlock(&r->mu);
    if (!have || !r->s) return SIZE_MAX;
    const size_t most = r->s->o.max_backlog + repeated;
    return have < most ? most - have : 0;
}

/* MHD asks for bytes of the stream. After an error it marks the connection as closed, but frees it
 * (and its descriptor) only when its thread next looks at it: on an event, which a reset socket
 * does not have any more, or for its limit of time, which is made short for that. */
static ssize_t read_stream(void *cls, uint64_t pos, char *buf, size_t max)
{
    (void)pos;
    http_req *r = cls;
    ssize_t got = 0;
    pthread_mutex_lock(&r->mu);
    size_t have = r->out.n - r->out_off;
    if (r->dead) {
        MHD_set_connection_option(r->mhd, MHD_CONNECTION_OPTION_TIMEOUT, (unsigned)CLOSE_SECONDS);
        got = MHD_CONTENT_READER_END_WITH_ERROR;
    } else if (have) {
        size_t n = have < max ? have : max;
        memcpy(buf, r->out.p + r->out_off, n);
        r->out_off += n;
        got = (ssize_t)n;
    } else if (r->ended) {
        got = MHD_CONTENT_READER_END_OF_STREAM;
    } else {
        r->asleep = true;
        MHD_suspend_connection(r->mhd);
    }
    pthread_mutex_unlock(&r->mu);
    return got;
}

static void free_stream(void *cls) { http_req_unref(cls); }

static void add_header(struct MHD_Response *m, const char *line)
{
    char name[64];
    const char *colon = strchr(line, ':');
    size_t n = colon ? (size_t)(colon - line) : 0;
    if (!n || n >= sizeof name) return;
    memcpy(name, line, n);
    name[n] = 0;
    MHD_add_response_header(m, name, colon + 1 + strspn(colon + 1, " "));
}

/* Under mu. */
static struct MHD_Response *make_response(http_req *r)
{
    struct MHD_Response *m;
    if (r->answer == ANS_STREAM) {
        m = MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, 16384, read_stream, r, free_stream);
        if (!m) return NULL;
        http_req_ref(r);
        const char *type = http_req_style(r)->stream;
        MHD_add_response_header(m, "Content-Type",
                                type ? type : "text/event-stream; charset=utf-8");
        add_header(m, "Cache-Control: no-cache");
        add_header(m, "X-Accel-Buffering: no");
    } else {
        if (r->out.oom) {
            r->status = 500;
            lq_buf_free(&r->out);
        }
        m = MHD_create_response_from_buffer(r->out.n, r->out.n ? r->out.p : NULL,
                                            MHD_RESPMEM_MUST_COPY);
        if (!m) return NULL;
        MHD_add_response_header(m, "Content-Type", r->type ? r->type : "application/json");
    }
    MHD_add_response_header(m, "X-Request-Id", r->id);
    if (http_req_style(r)->id) MHD_add_response_header(m, http_req_style(r)->id, r->id);
    for (size_t i = 0; i < r->n_headers; i++)
        add_header(m, r->headers[i]);
    if (r->mhd) http_cors_headers(r->s, r->mhd, m);
    if (r->closing || atomic_load(&r->s->draining)) add_header(m, "Connection: close");
    return m;
}

enum MHD_Result http_req_advance(http_req *r, struct MHD_Connection *mhd)
{
    struct MHD_Response *m = NULL;
    bool sleep = false;
    pthread_mutex_lock(&r->mu);
    if (!r->dead && r->answer == ANS_NONE && r->kept) {
        sleep = r->asleep = true;
        MHD_suspend_connection(mhd);
    } else if (!r->dead && r->answer != ANS_NONE) {
        m = make_response(r);
    }
    int status = r->status;
    pthread_mutex_unlock(&r->mu);
    if (sleep) return MHD_YES;
    if (!m) return MHD_NO;
    enum MHD_Result ok = MHD_queue_response(mhd, (unsigned)status, m);
    MHD_destroy_response(m);
    return ok;
}
