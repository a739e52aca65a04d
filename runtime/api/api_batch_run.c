/* runtime/api/api_batch_run.c - the thread that answers batches. */
#include "base/clock.h"
#include "base/os.h"
#include "runtime/api/api_batches_int.h"
#include "runtime/api/batch_line.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static const char no_room[] = "the file store (--file-store) or its disk has no room";

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
    api_part out, err;
    bool full; /* the store has no room */
};

/* ---- lines ---- */

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

static void check_line(run *r, const char *line, size_t n, int64_t number, id_use *use,
                       int *n_errors)
{
    batch_line l;
    lq_err err = { "" };
    lq_status s = batch_line_read(&l, line, n, n, &err);
    if (!s && strcmp(l.url, r->b->endpoint) != 0)
        s = lq_fail(&err, LQ_EVALUE, "url: expected the batch's endpoint %s, found %.64s",
                    r->b->endpoint, l.url);
    if (s) api_batch_add_error(r->b, n_errors, "invalid_line", number, err.msg);
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
    while (batch_line_next(&at, r->end, &n))
        total++;
    const size_t bytes = ((size_t)total + 1) * sizeof(id_use);
    const bool room = api_files_claim(r->s->a->files, bytes);
    id_use *uses = room ? malloc(bytes) : NULL;
    at = r->at;
    for (int64_t i = 0; uses && (line = batch_line_next(&at, r->end, &n)); i++)
        check_line(r, line, n, i + 1, &uses[i], &n_errors);
    if (uses) qsort(uses, (size_t)total, sizeof *uses, by_id);
    for (int64_t i = 1; uses && i < total; i++)
        if (uses[i].line && uses[i - 1].line &&
            !memcmp(&uses[i].id, &uses[i - 1].id, sizeof uses->id))
            api_batch_add_error(r->b, &n_errors, "duplicate_custom_id", uses[i].line,
                                "custom_id: another line has it too");
    if (!total)
        api_batch_add_error(r->b, &n_errors, "empty_file", 0, "the input file has no requests");
    if (!uses) api_batch_add_error(r->b, &n_errors, "file_store_full", 0, no_room);
    if (room) api_files_give_back(r->s->a->files, bytes);
    free(uses);
    pthread_mutex_lock(&r->s->mu);
    r->b->total = total;
    pthread_mutex_unlock(&r->s->mu);
    return n_errors == 0;
}

/* ---- answers ---- */

/* The name of a line's answer up to its number. */
static void name_lines(char name[64], const run *r)
{
    snprintf(name, 64, "batch_req_%s_", r->b->id + strlen("batch_"));
}

/* a->name is set here. */
static void write_line(run *r, int64_t number, batch_answer *a)
{
    char name[96];
    jw w = { 0 };
    const bool ok = !a->error_code && a->status == 200;
    api_part *to = ok ? &r->out : &r->err;
    name_lines(name, r);
    snprintf(name + strlen(name), sizeof name - strlen(name), "%lld", (long long)number);
    a->name = name;
    batch_line_write(&w, a);
    if (!r->full) r->full = w.b.oom || !api_part_add(to, w.b.p, w.b.n);
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
         !http_local(a->routes, a->n_routes, a->routes_app, atomic_load(&a->http), r->b->endpoint,
                     l.body_text, l.n_body, &(http_taker){ .done = on_answer, .user = t }, &err);
    pthread_mutex_unlock(&r->s->submit);
    if (!ok) t->state = FREE;
    batch_line_free(&l);
    return ok;
}

static void wait_news(api_batches *s, double seconds)
{
    os_cond_until(&s->news, &s->mu, lq_now() + seconds);
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

/* ---- answers of an earlier process ---- */

/* A part's lines, one by one. */
typedef struct {
    lq_map map;
    const char *at, *end, *from; /* from: what counts so far ends there */
    int64_t number, n;           /* of the line at hand, 0: there is none; lines that count */
} earlier;

/* The next whole line, by the number in its name. */
static void next_earlier(earlier *e, const char *name)
{
    static const char head[] = "{\"id\":\"";
    const size_t h = sizeof head - 1, k = strlen(name);
    const char *stop = e->at < e->end ? memchr(e->at, '\n', (size_t)(e->end - e->at)) : NULL;
    const bool ours = stop && (size_t)(stop - e->at) > h + k && memcmp(e->at, head, h) == 0 &&
                      memcmp(e->at + h, name, k) == 0;
    e->number = ours ? strtoll(e->at + h + k, NULL, 10) : 0;
    if (ours) e->at = stop + 1;
}

static void open_earlier(earlier *e, const api_part *p, const char *name)
{
    *e = (earlier){ .number = 0 };
    if (api_part_map(p, &e->map)) return;
    union {
        const uint8_t *u;
        const char *c;
    } bytes = { e->map.data };
    e->at = e->from = bytes.c;
    e->end = e->at + e->map.size;
    next_earlier(e, name);
}

static void close_earlier(earlier *e, api_part *p)
{
    const size_t whole =
        e->map.data ? (size_t)(e->from - (const char *)(const void *)e->map.data) : 0;
    lq_map_close(&e->map);
    api_part_cut(p, whole);
}

/* Lines 1, 2, ... that are answered in one part or the other count; what else a part has does not. */
static void take_earlier(run *r)
{
    char name[64];
    earlier of[2];
    api_part *const parts[2] = { &r->out, &r->err };
    const char *line = "";
    size_t n;
    name_lines(name, r);
    for (int i = 0; i < 2; i++)
        open_earlier(&of[i], parts[i], name);
    for (bool more = true; more && line;) {
        more = false;
        for (int i = 0; i < 2 && !more && line; i++) {
            if (of[i].number != r->written + 1) continue;
            line = batch_line_next(&r->at, r->end, &n);
            r->written++;
            of[i].from = of[i].at;
            of[i].n++;
            next_earlier(&of[i], name);
            more = true;
        }
    }
    for (int i = 0; i < 2; i++)
        close_earlier(&of[i], parts[i]);
    pthread_mutex_lock(&r->s->mu);
    r->next = r->written;
    r->b->completed = of[0].n;
    r->b->failed = of[1].n;
    pthread_mutex_unlock(&r->s->mu);
}

static bool open_parts(run *r)
{
    char name[80];
    snprintf(name, sizeof name, "%s.output", r->b->id);
    lq_status s = api_part_open(&r->out, r->s->a->files, name, NULL);
    snprintf(name, sizeof name, "%s.error", r->b->id);
    if (!s) s = api_part_open(&r->err, r->s->a->files, name, NULL);
    if (!s) take_earlier(r);
    if (s)
        api_batch_add_error(r->b, &(int){ 0 }, "file_store_failed", 0,
                            "the server cannot keep answers");
    return !s;
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
        t->line = batch_line_next(&r->at, r->end, &t->n_line);
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
    while ((line = batch_line_next(&r->at, r->end, &n))) {
        batch_line l;
        lq_err err;
        batch_line_read(&l, line, n, n, &err);
        write_late(r, ++r->next, l.id);
        batch_line_free(&l);
    }
}

/* ---- the end ---- */

static void keep_file(run *r, api_part *data, const char *what, char id[48])
{
    api_files *files = r->s->a->files;
    api_file like = { .owner = r->b->owner };
    const bool some = data->n > 0;
    if (r->b->output_seconds) like.expires = (int64_t)time(NULL) + r->b->output_seconds;
    snprintf(like.name, sizeof like.name, "%s_%s.jsonl", r->b->id, what);
    snprintf(like.purpose, sizeof like.purpose, "batch_output");
    bool lasts;
    api_file *f = api_part_keep(data, &like, &lasts);
    r->full |= some && (!f || !lasts);
    if (f) memcpy(id, f->id, sizeof f->id);
    api_file_unref(files, f);
}

/* The server ends, and its folder has what is answered: the rest is for the next one. */
static bool goes_on_later(run *r)
{
    pthread_mutex_lock(&r->s->mu);
    const bool ends = r->s->closing || atomic_load(&r->s->a->state) != API_READY;
    const bool later = ends && r->out.fd >= 0 && !r->full && r->written < r->b->total &&
                       r->b->state == BATCH_IN_PROGRESS && !is_late(r);
    pthread_mutex_unlock(&r->s->mu);
    return later;
}

static void finish(run *r)
{
    char output[48] = "", error[48] = "";
    const bool late = is_late(r);
    if (goes_on_later(r)) {
        api_part_close(&r->out);
        api_part_close(&r->err);
        return;
    }
    if (late) expire_rest(r);
    pthread_mutex_lock(&r->s->mu);
    const bool cancelled = r->b->state == BATCH_CANCELLING;
    if (!cancelled) api_batch_enter(r->s, r->b, BATCH_FINALIZING);
    pthread_mutex_unlock(&r->s->mu);
    keep_file(r, &r->out, "output", output);
    keep_file(r, &r->err, "error", error);
    pthread_mutex_lock(&r->s->mu);
    int n = 0;
    if (r->full) api_batch_add_error(r->b, &n, "file_store_full", 0, no_room);
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
    bool ok = r != NULL;
    if (ok) {
        r->s = s;
        r->b = b;
        r->out.fd = r->err.fd = -1;
        r->at = b->input->data.p;
        r->end = r->at + b->input->data.n;
        r->window = s->a->window;
        ok = validate(r) && open_parts(r);
    }
    pthread_mutex_lock(&s->mu);
    const bool cancelled = b->state == BATCH_CANCELLING;
    if (!cancelled) api_batch_enter(s, b, ok ? BATCH_IN_PROGRESS : BATCH_FAILED);
    if (cancelled && !ok) api_batch_enter(s, b, BATCH_CANCELLED);
    pthread_mutex_unlock(&s->mu);
    if (ok) {
        answer_all(r);
        finish(r);
    } else if (r) {
        api_part_drop(&r->out);
        api_part_drop(&r->err);
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
