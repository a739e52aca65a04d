/* runtime/api/api_batch_run.c - the thread that answers batches. */
#include "base/clock.h"
#include "runtime/api/api_batches_int.h"
#include "runtime/api/batch_line.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static const char no_room[] = "the file store has no room (--file-store)";

typedef enum { FREE, RUNNING, DONE } slot_state;

typedef struct run run;
typedef struct {
    run *r;
    slot_state state; /* under the batches' mu, as the answer */
    int64_t number;   /* of the line */
    const char *line;
    size_t n_line;
    char *custom_id;
    int status;
    char *body; /* NULL: there was no room for it */
    size_t n_body;
} slot;

struct run {
    api_batches *s;
    api_batch *b;
    const char *at, *end;  /* of the input: what was not submitted yet */
    int64_t next, written; /* lines submitted, answered */
    slot slots[API_BATCH_WINDOW];
    int window;
    lq_buf out, err;
    bool full; /* the store has no room */
};

/* ---- lines ---- */

/* The next line that is not empty; NULL: there is none. */
static const char *take_line(const char **at, const char *end, size_t *n)
{
    while (*at < end) {
        const char *from = *at, *stop = memchr(from, '\n', (size_t)(end - from));
        if (!stop) stop = end;
        *at = stop < end ? stop + 1 : end;
        *n = (size_t)(stop - from);
        for (size_t i = 0; i < *n; i++)
            if (!strchr(" \t\r", from[i])) return from;
    }
    return NULL;
}

typedef struct {
    lq_hash id;
    int64_t line;
} id_use;

static int by_id(const void *a, const void *b)
{
    const id_use *p = a, *q = b;
    const int c = memcmp(&p->id, &q->id, sizeof p->id);
    return c ? c : (p->line > q->line) - (p->line < q->line);
}

static void add_error(api_batch *b, int *n, const char *code, int64_t line, const char *message)
{
    if ((*n)++ >= API_BATCH_ERRORS) return;
    jw_open(&b->errors, '{');
    jw_key(&b->errors, "code");
    jw_cstr(&b->errors, code);
    jw_key(&b->errors, "message");
    jw_cstr(&b->errors, message);
    jw_key(&b->errors, "param");
    jw_null(&b->errors);
    jw_key(&b->errors, "line");
    if (line)
        jw_i64(&b->errors, line);
    else
        jw_null(&b->errors);
    jw_close(&b->errors, '}');
}

static void check_line(run *r, const char *line, size_t n, int64_t number, id_use *use,
                       int *n_errors)
{
    batch_line l;
    lq_err err = { "" };
    lq_status s = batch_line_read(&l, line, n, n, &err);
    if (!s && strcmp(l.url, r->b->endpoint) != 0)
        s = lq_fail(&err, LQ_EVALUE, "url: expected the batch's endpoint %s, found %.64s",
                    r->b->endpoint, l.url);
    if (s) add_error(r->b, n_errors, "invalid_line", number, err.msg);
    *use = (id_use){ lq_hash_bytes(l.id ? l.id : "", l.id ? strlen(l.id) : 0), l.id ? number : 0 };
    batch_line_free(&l);
}

/* Counts the lines, and says what is wrong with them. */
static bool validate(run *r)
{
    const char *at = r->at, *line;
    size_t n;
    int n_errors = 0;
    int64_t total = 0;
    while (take_line(&at, r->end, &n))
        total++;
    const size_t bytes = ((size_t)total + 1) * sizeof(id_use);
    const bool room = api_files_claim(r->s->a->files, bytes);
    id_use *uses = room ? malloc(bytes) : NULL;
    at = r->at;
    for (int64_t i = 0; uses && (line = take_line(&at, r->end, &n)); i++)
        check_line(r, line, n, i + 1, &uses[i], &n_errors);
    if (uses) qsort(uses, (size_t)total, sizeof *uses, by_id);
    for (int64_t i = 1; uses && i < total; i++)
        if (uses[i].line && uses[i - 1].line &&
            !memcmp(&uses[i].id, &uses[i - 1].id, sizeof uses->id))
            add_error(r->b, &n_errors, "duplicate_custom_id", uses[i].line,
                      "custom_id: another line has it too");
    if (!total) add_error(r->b, &n_errors, "empty_file", 0, "the input file has no requests");
    if (!uses) add_error(r->b, &n_errors, "file_store_full", 0, no_room);
    if (room) api_files_give_back(r->s->a->files, bytes);
    free(uses);
    pthread_mutex_lock(&r->s->mu);
    r->b->total = total;
    pthread_mutex_unlock(&r->s->mu);
    return n_errors == 0;
}

/* ---- answers ---- */

static bool grow(run *r, lq_buf *to, size_t more)
{
    const size_t cap = to->n + more + to->n / 4;
    if (more <= to->cap - to->n) return true;
    if (r->full || !api_files_claim(r->s->a->files, cap - to->cap)) return false;
    char *p = realloc(to->p, cap);
    if (!p) {
        api_files_give_back(r->s->a->files, cap - to->cap);
        return false;
    }
    to->p = p;
    to->cap = cap;
    return true;
}

/* a->name is set here. */
static void write_line(run *r, int64_t number, batch_answer *a)
{
    char name[96];
    jw w = { 0 };
    const bool ok = !a->error_code && a->status == 200;
    lq_buf *to = ok ? &r->out : &r->err;
    snprintf(name, sizeof name, "batch_req_%s_%lld", r->b->id + strlen("batch_"),
             (long long)number);
    a->name = name;
    batch_line_write(&w, a);
    r->full |= w.b.oom || !grow(r, to, w.b.n);
    if (!r->full) lq_buf_add(to, w.b.p, w.b.n);
    jw_free(&w);
    pthread_mutex_lock(&r->s->mu);
    r->b->completed += ok;
    r->b->failed += !ok;
    pthread_mutex_unlock(&r->s->mu);
}

static void write_late(run *r, int64_t number, const char *custom_id)
{
    write_line(r, number,
               &(batch_answer){ .custom_id = custom_id,
                                .error_code = "batch_expired",
                                .error = "the batch's time was over before the request was "
                                         "answered" });
}

static void write_answer(run *r, const slot *t)
{
    r->full |= !t->body;
    if (!t->body) return;
    write_line(
        r, t->number,
        &(batch_answer){
            .custom_id = t->custom_id, .status = t->status, .body = t->body, .n_body = t->n_body });
}

static void free_answer(run *r, slot *t)
{
    if (t->body) api_files_give_back(r->s->a->files, t->n_body);
    free(t->body);
    t->body = NULL;
}

/* Any thread. */
static void on_answer(void *user, int status, const char *body, size_t n)
{
    slot *t = user;
    api_batches *s = t->r->s;
    const bool fits = api_files_claim(s->a->files, n);
    char *copy = fits ? malloc(n + 1) : NULL;
    if (copy) memcpy(copy, body, n);
    if (fits && !copy) api_files_give_back(s->a->files, n);
    pthread_mutex_lock(&s->mu);
    t->status = status;
    t->body = copy;
    t->n_body = n;
    t->state = DONE;
    pthread_cond_broadcast(&s->news);
    pthread_mutex_unlock(&s->mu);
}

/* ---- requests ---- */

/* The line's request; false: not now. */
static bool submit(run *r, slot *t)
{
    api *a = r->s->a;
    batch_line l;
    lq_err err;
    bool ok = !batch_line_read(&l, t->line, t->n_line, t->n_line, &err);
    if (ok && !t->custom_id) t->custom_id = strdup(l.id);
    ok = ok && t->custom_id;
    pthread_mutex_lock(&r->s->submit);
    t->state = RUNNING;
    ok = ok && atomic_load(&a->state) == API_READY &&
         !http_local(a->routes, a->n_routes, a, atomic_load(&a->http), r->b->endpoint, l.body_text,
                     l.n_body, on_answer, t, &err);
    pthread_mutex_unlock(&r->s->submit);
    if (!ok) t->state = FREE;
    batch_line_free(&l);
    return ok;
}

static void wait_news(api_batches *s, double seconds)
{
    const struct timespec t = lq_timespec(lq_now() + seconds);
    pthread_cond_timedwait(&s->news, &s->mu, &t);
}

static bool is_late(const run *r) { return (int64_t)time(NULL) >= r->b->expires; }

/* No further request begins. Under mu. */
static bool stops(const run *r)
{
    return r->full || r->s->closing || r->b->state != BATCH_IN_PROGRESS ||
           atomic_load(&r->s->a->state) != API_READY || is_late(r);
}

/* The oldest request under way: its answer is written when it is there, and one that found the server
 * busy is sent again. Under mu, which is left meanwhile. */
static void take_answer(run *r)
{
    enum { BUSY = 503 };
    slot *t = &r->slots[r->written % r->window];
    if (t->state == RUNNING) {
        wait_news(r->s, 0.2);
        return;
    }
    const bool again = t->state == FREE || t->status == BUSY, stop = stops(r);
    if (again && !stop) wait_news(r->s, 0.1);
    pthread_mutex_unlock(&r->s->mu);
    if (again && !stop) {
        free_answer(r, t);
        submit(r, t);
    } else {
        if (!again)
            write_answer(r, t);
        else if (is_late(r))
            write_late(r, t->number, t->custom_id);
        free_answer(r, t);
        free(t->custom_id);
        r->written++;
    }
    pthread_mutex_lock(&r->s->mu);
}

static void answer_all(run *r)
{
    pthread_mutex_lock(&r->s->mu);
    while (r->written < r->next || (r->next < r->b->total && !stops(r))) {
        const bool begins = r->next < r->b->total && r->next < r->written + r->window && !stops(r);
        if (!begins) {
            take_answer(r);
            continue;
        }
        slot *t = &r->slots[r->next++ % r->window];
        *t = (slot){ .r = r, .number = r->next };
        t->line = take_line(&r->at, r->end, &t->n_line);
        pthread_mutex_unlock(&r->s->mu);
        submit(r, t);
        pthread_mutex_lock(&r->s->mu);
    }
    pthread_mutex_unlock(&r->s->mu);
}

/* What time has left unasked. */
static void expire_rest(run *r)
{
    const char *line;
    size_t n;
    while ((line = take_line(&r->at, r->end, &n))) {
        batch_line l;
        lq_err err;
        batch_line_read(&l, line, n, n, &err);
        write_late(r, ++r->next, l.id);
        batch_line_free(&l);
    }
}

/* ---- the end ---- */

static void keep_file(run *r, lq_buf *data, const char *what, char id[48])
{
    api_files *files = r->s->a->files;
    api_file like = { .owner = r->b->owner };
    if (!data->n) return;
    if (r->b->output_seconds) like.expires = (int64_t)time(NULL) + r->b->output_seconds;
    snprintf(like.name, sizeof like.name, "%s_%s.jsonl", r->b->id, what);
    snprintf(like.purpose, sizeof like.purpose, "batch_output");
    if (!api_files_claim(files, sizeof like)) {
        r->full = true;
        api_files_give_back(files, data->cap);
        lq_buf_free(data);
        return;
    }
    api_file *f = api_files_add(files, &like, data);
    r->full |= !f;
    if (f) memcpy(id, f->id, sizeof f->id);
    api_file_unref(files, f);
}

static void finish(run *r)
{
    char output[48] = "", error[48] = "";
    const bool late = is_late(r);
    if (late) expire_rest(r);
    pthread_mutex_lock(&r->s->mu);
    const bool cancelled = r->b->state == BATCH_CANCELLING;
    if (!cancelled) api_batch_enter(r->s, r->b, BATCH_FINALIZING);
    pthread_mutex_unlock(&r->s->mu);
    keep_file(r, &r->out, "output", output);
    keep_file(r, &r->err, "error", error);
    pthread_mutex_lock(&r->s->mu);
    int n = 0;
    if (r->full) add_error(r->b, &n, "file_store_full", 0, no_room);
    memcpy(r->b->output_id, output, sizeof output);
    memcpy(r->b->error_id, error, sizeof error);
    const bool whole = r->written == r->b->total;
    api_batch_enter(r->s, r->b,
                    cancelled           ? BATCH_CANCELLED
                    : late              ? BATCH_EXPIRED
                    : whole && !r->full ? BATCH_COMPLETED
                                        : BATCH_FAILED);
    pthread_mutex_unlock(&r->s->mu);
}

static void run_batch(api_batches *s, api_batch *b)
{
    run *r = calloc(1, sizeof *r);
    const int64_t half = s->a->m.max_seqs / 2;
    bool ok = r != NULL;
    if (ok) {
        r->s = s;
        r->b = b;
        r->at = b->input->data.p;
        r->end = r->at + b->input->data.n;
        r->window = half < 1 ? 1 : half > API_BATCH_WINDOW ? API_BATCH_WINDOW : (int)half;
        ok = validate(r);
    }
    pthread_mutex_lock(&s->mu);
    if (b->state == BATCH_CANCELLING)
        api_batch_enter(s, b, BATCH_CANCELLED);
    else
        api_batch_enter(s, b, ok ? BATCH_IN_PROGRESS : BATCH_FAILED);
    ok = !batch_ended(b);
    pthread_mutex_unlock(&s->mu);
    if (ok) {
        answer_all(r);
        finish(r);
    }
    free(r);
}

void *api_batches_work(void *user)
{
    api_batches *s = user;
    pthread_mutex_lock(&s->mu);
    while (!s->closing) {
        api_batch *next = NULL;
        for (api_batch *b = s->latest; b; b = b->next)
            if (!batch_ended(b)) next = b;
        if (!next) pthread_cond_wait(&s->news, &s->mu);
        if (next && atomic_load(&s->a->state) != API_READY) wait_news(s, 1);
        if (!next || atomic_load(&s->a->state) != API_READY) continue;
        s->running = next;
        pthread_mutex_unlock(&s->mu);
        run_batch(s, next);
        pthread_mutex_lock(&s->mu);
        s->running = NULL;
    }
    pthread_mutex_unlock(&s->mu);
    return NULL;
}
