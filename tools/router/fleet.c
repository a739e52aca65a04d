/* tools/router/fleet.c - see fleet.h. */
#include "tools/router/fleet.h"

#include "base/clock.h"
#include "base/json.h"
#include "runtime/api/api_card.h"
#include "runtime/api/metrics.h"
#include "tools/cli/progress.h"
#include "tools/router/relay.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static const double FAILED_SECONDS = 2; /* that a failure is answered again without another try */
static const double STARTING_STEP = 0.01;

typedef struct {
    fleet_state state;
    int64_t running; /* held */
    double used, since;
    bool sized, failed;    /* failed: the last start, at `since` */
    bool doubtful;         /* READY, but maybe its server has died */
    uint64_t bytes, stamp; /* stamp: cat_stamp when `bytes` was asked for */
    double progress;
    char why[400];
    cJSON *cards; /* of /v1/models of its server; NULL: not loaded yet */
    uint64_t loads, failures, unloads, requests;
    double load_seconds;
} ship;

typedef struct waiter waiter;
struct waiter {
    waiter *next;
    int model;
    double since;
    fleet_ready ready;
    void *user;
    int status; /* once it is decided */
    const char *code;
    char why[480];
};

struct fleet {
    const catalog *c;
    loras *loras;
    keeper *k;
    const char *folder;
    fleet_opts o;
    pthread_mutex_t mu;
    ship *ships; /* [c->n] */
    waiter *first;
    int64_t waiting; /* requests among them: not what is only to be loaded */
    uint64_t refused;
    time_t created;
};

static const char *name_of(const fleet *f, int i) { return f->c->m[i].names[0]; }

void fleet_socket(const fleet *f, int model, char *out, size_t n)
{
    snprintf(out, n, "%s/%d", f->folder, model);
}

lq_status fleet_open(fleet **out, const catalog *c, loras *l, keeper *k, const char *folder,
                     const fleet_opts *o, lq_err *err)
{
    fleet *f = *out = calloc(1, sizeof *f);
    if (f) f->ships = calloc((size_t)c->n, sizeof *f->ships);
    if (!f || !f->ships) {
        free(f);
        *out = NULL;
        return lq_fail(err, LQ_ENOMEM, "out of memory");
    }
    f->c = c;
    f->loras = l;
    f->k = k;
    f->folder = folder;
    f->o = *o;
    f->created = time(NULL);
    pthread_mutex_init(&f->mu, NULL);
    return LQ_OK;
}

void fleet_close(fleet *f)
{
    if (!f) return;
    while (f->first) {
        waiter *w = f->first;
        f->first = w->next;
        if (w->ready) w->ready(w->user, 503, "shutting_down", "the server is shutting down");
        free(w);
    }
    for (int i = 0; i < f->c->n; i++)
        cJSON_Delete(f->ships[i].cards);
    pthread_mutex_destroy(&f->mu);
    free(f->ships);
    free(f);
}

/* ---- waiting ---- */

static void take(ship *s)
{
    s->running++;
    s->requests++;
    s->used = lq_now();
}

void fleet_ask(fleet *f, int model, fleet_ready ready, void *user)
{
    waiter *w = calloc(1, sizeof *w);
    ship *s = &f->ships[model];
    pthread_mutex_lock(&f->mu);
    const bool at_once = ready && s->state == FLEET_READY && !s->doubtful;
    const bool full = !at_once && (!w || (ready && f->waiting >= f->o.max_waiting));
    if (at_once) take(s);
    if (full) f->refused++;
    if (!at_once && !full) {
        *w = (waiter){ .model = model, .since = lq_now(), .ready = ready, .user = user };
        waiter **end = &f->first;
        while (*end)
            end = &(*end)->next;
        *end = w;
        f->waiting += ready != NULL;
    }
    pthread_mutex_unlock(&f->mu);
    if (at_once) ready(user, 0, NULL, NULL);
    if (full && ready) ready(user, 503, "queue_full", "too many requests wait for their model");
    if (at_once || full)
        free(w);
    else
        keeper_wake(f->k);
}

static waiter *remove_waiter(fleet *f, waiter **at)
{
    waiter *w = *at;
    *at = w->next;
    f->waiting -= w->ready != NULL;
    return w;
}

bool fleet_forget(fleet *f, const void *user)
{
    waiter *found = NULL;
    pthread_mutex_lock(&f->mu);
    for (waiter **at = &f->first; *at && !found;)
        if ((*at)->user == user)
            found = remove_waiter(f, at);
        else
            at = &(*at)->next;
    pthread_mutex_unlock(&f->mu);
    free(found);
    return found != NULL;
}

bool fleet_hold(fleet *f, int model)
{
    pthread_mutex_lock(&f->mu);
    const bool ready = f->ships[model].state == FLEET_READY;
    if (ready) f->ships[model].running++;
    pthread_mutex_unlock(&f->mu);
    return ready;
}

void fleet_release(fleet *f, int model, bool used)
{
    pthread_mutex_lock(&f->mu);
    ship *s = &f->ships[model];
    s->running--;
    if (used) s->used = lq_now();
    const bool wake = s->state == FLEET_LEAVING && !s->running;
    pthread_mutex_unlock(&f->mu);
    if (wake) keeper_wake(f->k);
}

void fleet_doubt(fleet *f, int model)
{
    pthread_mutex_lock(&f->mu);
    f->ships[model].doubtful = true;
    pthread_mutex_unlock(&f->mu);
    keeper_wake(f->k);
}

void fleet_unload(fleet *f, int model)
{
    pthread_mutex_lock(&f->mu);
    ship *s = &f->ships[model];
    if (s->state == FLEET_READY || s->state == FLEET_STARTING) s->state = FLEET_LEAVING;
    pthread_mutex_unlock(&f->mu);
    keeper_wake(f->k);
}

/* ---- what is loaded; all of it under mu ---- */

static bool is_in_memory(const ship *s) { return s->state >= FLEET_STARTING; }

/* Whether this model fits beside the others; without those that go already, if `later`. */
static bool fits(const fleet *f, int model, bool later)
{
    uint64_t bytes = f->ships[model].bytes;
    int n = 1;
    for (int i = 0; i < f->c->n; i++) {
        const ship *s = &f->ships[i];
        if (i == model || !is_in_memory(s) || (later && s->state >= FLEET_LEAVING)) continue;
        bytes += s->bytes;
        n++;
    }
    return (!f->o.max_loaded || n <= f->o.max_loaded) &&
           (!f->o.max_bytes || bytes <= f->o.max_bytes);
}

/* The loaded model that was used least recently, one without requests first; -1: none is. */
static int oldest(const fleet *f)
{
    int found = -1;
    for (int i = 0; i < f->c->n; i++) {
        const ship *s = &f->ships[i], *best = found < 0 ? NULL : &f->ships[found];
        if (s->state != FLEET_READY) continue;
        const bool idler = best && !s->running != !best->running;
        if (!best || (idler ? !s->running : s->used < best->used)) found = i;
    }
    return found;
}

static void fail_ship(ship *s, const char *why)
{
    s->state = FLEET_OFF;
    s->failed = true;
    s->since = lq_now();
    snprintf(s->why, sizeof s->why, "%s", why);
}

static void order(fleet *f, keeper_order o, int model)
{
    lq_err err;
    if (keeper_ask(f->k, o, model, &err)) fail_ship(&f->ships[model], err.msg);
}

/* Takes a model that is off a step nearer. False: there is no room yet. */
static bool start(fleet *f, int model)
{
    ship *s = &f->ships[model];
    char need[16], have[16], why[sizeof s->why];
    const uint64_t stamp = cat_stamp(&f->c->m[model]);
    if ((!s->sized || s->stamp != stamp) && f->o.max_bytes) {
        s->stamp = stamp;
        s->state = FLEET_SIZING;
        order(f, KEEP_SIZE, model);
        return true;
    }
    if (f->o.max_bytes && s->bytes > f->o.max_bytes) {
        snprintf(why, sizeof why, "it takes %s of memory, more than the %s of --models-memory",
                 opt_size_text(need, sizeof need, (double)s->bytes),
                 opt_size_text(have, sizeof have, (double)f->o.max_bytes));
        s->failures++;
        fail_ship(s, why);
        return true;
    }
    for (int victim; !fits(f, model, true) && (victim = oldest(f)) >= 0;) {
        prog_say(LOG_INFO, "%s goes for %s", name_of(f, victim), name_of(f, model));
        f->ships[victim].state = FLEET_LEAVING;
    }
    if (!fits(f, model, false)) return false;
    prog_say(LOG_INFO, "loading %s", name_of(f, model));
    s->state = FLEET_STARTING;
    s->since = lq_now();
    s->progress = 0;
    s->why[0] = 0;
    loras_begin(f->loras, model);
    order(f, KEEP_START, model);
    return true;
}

/* Those that wait are looked at in order; behind one for which there is no room nobody starts. */
static void start_wanted(fleet *f)
{
    const double now = lq_now();
    for (waiter *w = f->first; w; w = w->next) {
        const ship *s = &f->ships[w->model];
        if (s->state != FLEET_OFF || (s->failed && now - s->since < FAILED_SECONDS)) continue;
        if (!start(f, w->model)) return;
    }
}

static void stop_unused(fleet *f)
{
    const double now = lq_now();
    for (int i = 0; i < f->c->n; i++) {
        ship *s = &f->ships[i];
        const double own = f->c->m[i].idle_seconds, idle = own < 0 ? f->o.idle_seconds : own;
        if (s->state == FLEET_READY && idle > 0 && !s->running && now - s->used >= idle) {
            prog_say(LOG_INFO, "%s goes: no request for %g s", name_of(f, i), idle);
            s->state = FLEET_LEAVING;
        }
        if (s->state != FLEET_LEAVING || s->running) continue;
        s->state = FLEET_STOPPING;
        order(f, KEEP_STOP, i);
    }
}

/* ---- what happens ---- */

static void on_event(fleet *f, const keeper_event *e)
{
    ship *s = &f->ships[e->row];
    char why[sizeof s->why];
    s->doubtful = false;
    snprintf(why, sizeof why, "%.380s", e->text[0] ? e->text : "its server ended without a word");
    if (e->what == KEEP_SIZED) {
        s->sized = e->code == 0;
        s->bytes = e->bytes;
        s->state = FLEET_OFF;
        if (!s->sized) {
            s->failures++;
            fail_ship(s, why);
        }
        return;
    }
    if (s->state == FLEET_STARTING) {
        s->failures++;
        fail_ship(s, why);
    } else if (s->state != FLEET_STOPPING) {
        prog_say(LOG_ERROR, "%s is lost: %s", name_of(f, e->row), why);
    }
    if (s->state != FLEET_OFF) s->unloads++;
    s->state = FLEET_OFF;
}

/* Of the list in /v1/models. */
static const cJSON *card_of(const cJSON *list, const char *name)
{
    const cJSON *all = js_get(list, "data");
    for (const cJSON *c = all ? all->child : NULL; c; c = c->next) {
        const char *id = cJSON_GetStringValue(js_get(c, "id"));
        if (id && strcmp(id, name) == 0) return c;
    }
    return NULL;
}

/* One order about an adapter. Its server answers later than we wait where the adapter is large: then it is looked at
 * again, until the server has it (cards) or says no. */
static void give_adapter(fleet *f, int i, const char *socket, const cJSON *cards,
                         const loras_order *o)
{
    jw w = { 0 };
    lq_buf said = { 0 };
    int status = 200;
    const bool there = card_of(cards, o->name) != NULL;
    jw_open(&w, '{');
    jw_put_cstr(&w, "lora_name", o->name);
    if (!o->unload) jw_put_cstr(&w, "lora_path", o->path);
    jw_close(&w, '}');
    lq_buf_add(&w.b, "", 1);
    if (!w.b.oom && there == o->unload)
        relay_ask(socket, "POST", o->unload ? "/v1/unload_lora_adapter" : "/v1/load_lora_adapter",
                  w.b.p, 1, &status, &said);
    jw_free(&w);
    if (status != 0 && status != 503) {
        if (status != 200 && !o->unload)
            prog_say(LOG_WARN, "%s: the adapter %s is not there any more: %.*s", name_of(f, i),
                     o->name, said.n < 300 ? (int)said.n : 300, said.n ? said.p : "");
        loras_done(f->loras, o, status == 200);
    }
    lq_buf_free(&said);
}

/* True: the server has all adapters that it should have. */
static bool has_adapters(fleet *f, int i, const char *socket, const cJSON *cards)
{
    loras_order o;
    if (!loras_due(f->loras, i, &o)) return true;
    give_adapter(f, i, socket, cards, &o);
    free(o.path);
    return false;
}

/* A server that says so is ready; of the others how far they are. Not under mu: it takes a while. */
static void look(fleet *f, int i)
{
    ship *s = &f->ships[i];
    char socket[128];
    lq_buf body = { 0 }, cards = { 0 };
    int status, listed = 0;
    double progress = 0;
    cJSON *doc = NULL;
    fleet_socket(f, i, socket, sizeof socket);
    relay_ask(socket, "GET", "/ready", NULL, 1, &status, &body);
    if (status == 200) relay_ask(socket, "GET", "/v1/models", NULL, 1, &listed, &cards);
    if (status == 503 && !js_parse(&doc, body.p, body.n, body.n, 0, NULL))
        js_f64(doc, "progress", false, 0, 1, &progress, NULL);
    cJSON_Delete(doc);
    doc = NULL;
    if (listed == 200) (void)js_parse(&doc, cards.p, cards.n, cards.n, 0, NULL);
    const bool ready = status == 200 && has_adapters(f, i, socket, doc);
    pthread_mutex_lock(&f->mu);
    s->progress = progress;
    if (ready && s->state == FLEET_STARTING) {
        cJSON_Delete(s->cards);
        s->cards = doc;
        doc = NULL;
        s->state = FLEET_READY;
        s->failed = false;
        s->used = lq_now();
        s->loads++;
        s->load_seconds += s->used - s->since;
        prog_say(LOG_INFO, "%s is ready after %.2f s", name_of(f, i), s->used - s->since);
    }
    pthread_mutex_unlock(&f->mu);
    cJSON_Delete(doc);
    lq_buf_free(&body);
    lq_buf_free(&cards);
}

/* One that answers lives; of one that does not the keeper tells. True: it is not known yet. */
static bool still_doubtful(fleet *f, int i)
{
    ship *s = &f->ships[i];
    char socket[128];
    lq_buf body = { 0 };
    int status;
    pthread_mutex_lock(&f->mu);
    bool doubtful = s->doubtful && s->state == FLEET_READY;
    pthread_mutex_unlock(&f->mu);
    if (!doubtful) return false;
    fleet_socket(f, i, socket, sizeof socket);
    relay_ask(socket, "GET", "/health", NULL, 1, &status, &body);
    lq_buf_free(&body);
    pthread_mutex_lock(&f->mu);
    if (status) s->doubtful = false;
    doubtful = s->doubtful;
    pthread_mutex_unlock(&f->mu);
    return doubtful;
}

static bool look_at_starting(fleet *f)
{
    bool any = false;
    for (int i = 0; i < f->c->n; i++) {
        any |= still_doubtful(f, i);
        if (fleet_state_of(f, i) != FLEET_STARTING) continue;
        any = true;
        look(f, i);
    }
    return any;
}

/* Decides about one that waits; false: not yet. Under mu. */
static bool decide(fleet *f, waiter *w, double now)
{
    ship *s = &f->ships[w->model];
    if (s->state == FLEET_READY && !s->doubtful) {
        if (w->ready) take(s);
        return true;
    }
    if (s->state == FLEET_OFF && s->failed && s->since >= w->since - FAILED_SECONDS) {
        w->status = 500;
        w->code = "model_load_failed";
        snprintf(w->why, sizeof w->why, "%.60s cannot be loaded: %s", name_of(f, w->model), s->why);
        return true;
    }
    if (now - w->since < f->o.wait_seconds) return false;
    w->status = 503;
    w->code = "model_loading";
    snprintf(w->why, sizeof w->why, "%.60s is not loaded after %.0f s of waiting",
             name_of(f, w->model), now - w->since);
    return true;
}

static void answer_waiting(fleet *f)
{
    waiter *decided = NULL, **end = &decided;
    const double now = lq_now();
    pthread_mutex_lock(&f->mu);
    for (waiter **at = &f->first; *at;) {
        if (!decide(f, *at, now)) {
            at = &(*at)->next;
            continue;
        }
        *end = remove_waiter(f, at);
        (*end)->next = NULL;
        end = &(*end)->next;
    }
    pthread_mutex_unlock(&f->mu);
    while (decided) {
        waiter *w = decided;
        decided = w->next;
        if (w->ready) w->ready(w->user, w->status, w->code, w->why);
        free(w);
    }
}

lq_status fleet_step(fleet *f, double seconds, lq_err *err)
{
    keeper_event e;
    bool lost;
    const bool starting = look_at_starting(f);
    answer_waiting(f);
    if (starting && seconds > STARTING_STEP) seconds = STARTING_STEP;
    for (; keeper_next(f->k, seconds, &e, &lost); seconds = 0) {
        pthread_mutex_lock(&f->mu);
        on_event(f, &e);
        pthread_mutex_unlock(&f->mu);
    }
    if (lost) return lq_fail(err, LQ_EIO, "the process that starts the models' servers is gone");
    answer_waiting(f);
    pthread_mutex_lock(&f->mu);
    start_wanted(f);
    stop_unused(f);
    pthread_mutex_unlock(&f->mu);
    return LQ_OK;
}

/* ---- what is told ---- */

fleet_state fleet_state_of(fleet *f, int model)
{
    pthread_mutex_lock(&f->mu);
    const fleet_state s = f->ships[model].state;
    pthread_mutex_unlock(&f->mu);
    return s;
}

uint64_t fleet_bytes(fleet *f, int model)
{
    pthread_mutex_lock(&f->mu);
    const uint64_t n = f->ships[model].bytes;
    pthread_mutex_unlock(&f->mu);
    return n;
}

int fleet_latest(fleet *f, int *n)
{
    int found = -1;
    *n = 0;
    pthread_mutex_lock(&f->mu);
    for (int i = 0; i < f->c->n; i++) {
        if (f->ships[i].state != FLEET_READY) continue;
        if (found < 0 || f->ships[i].used > f->ships[found].used) found = i;
        ++*n;
    }
    pthread_mutex_unlock(&f->mu);
    return found;
}

int64_t fleet_waiting(fleet *f)
{
    pthread_mutex_lock(&f->mu);
    const int64_t n = f->waiting;
    pthread_mutex_unlock(&f->mu);
    return n;
}

int64_t fleet_running(fleet *f)
{
    int64_t n = 0;
    pthread_mutex_lock(&f->mu);
    for (int i = 0; i < f->c->n; i++)
        n += f->ships[i].running;
    pthread_mutex_unlock(&f->mu);
    return n;
}

static const char *const state_words[] = { "unloaded", "loading",   "loading",
                                           "loaded",   "unloading", "unloading" };

/* What the model's server said when it was loaded last of the model, an adapter of which has that too. */
static void write_known(jw *w, const cJSON *card)
{
    static const char *const ours[] = { "id", "object", "created", "owned_by", "root", "parent" };
    for (const cJSON *v = card->child; v; v = v->next) {
        bool is_ours = false;
        for (size_t i = 0; i < LQ_COUNT(ours); i++)
            is_ours |= strcmp(ours[i], v->string) == 0;
        if (is_ours) continue;
        char *text = cJSON_PrintUnformatted(v);
        jw_key(w, v->string);
        if (text) jw_json(w, text, strlen(text));
        free(text);
    }
}

static void write_anthropic(jw *w, const cJSON *card, const char *name, int64_t created)
{
    const cJSON *len = js_get(card, "max_model_len");
    api_anthropic_card(w, name, created, cJSON_IsNumber(len) ? (int64_t)len->valuedouble : 0);
}

static void write_card(jw *w, const fleet *f, int model, const cJSON *card, const char *name,
                       int64_t created)
{
    const ship *s = &f->ships[model];
    jw_open(w, '{');
    jw_put_cstr(w, "id", name);
    jw_put_cstr(w, "object", "model");
    jw_put_i64(w, "created", created ? created : (int64_t)f->created);
    jw_put_cstr(w, "owned_by", "llmq");
    jw_put_cstr(w, "root", name_of(f, model));
    jw_put_cstr(w, "parent", created ? name_of(f, model) : NULL);
    if (card)
        write_known(w, card);
    else
        jw_put_cstr(w, "max_model_len", NULL);
    jw_key(w, "status");
    jw_open(w, '{');
    jw_put_cstr(w, "value", state_words[s->state]);
    if (s->state == FLEET_STARTING) jw_put_f64(w, "progress", s->progress);
    if (s->state == FLEET_OFF && s->failed) {
        jw_put_bool(w, "failed", true);
        jw_put_cstr(w, "error", s->why);
    }
    jw_close(w, '}');
    jw_close(w, '}');
}

void fleet_write_card(fleet *f, int model, const char *name, int64_t created, bool anthropic, jw *w)
{
    pthread_mutex_lock(&f->mu);
    const cJSON *card = card_of(f->ships[model].cards, name_of(f, model));
    if (anthropic)
        write_anthropic(w, card, name, created ? created : (int64_t)f->created);
    else
        write_card(w, f, model, card, name, created);
    pthread_mutex_unlock(&f->mu);
}

static double value_of(const ship *s, size_t which)
{
    const double v[] = { (double)(s->state >= FLEET_READY),
                         (double)s->running,
                         (double)s->requests,
                         (double)s->loads,
                         (double)s->failures,
                         (double)s->unloads,
                         s->load_seconds,
                         (double)s->bytes };
    return v[which];
}

void fleet_metrics(fleet *f, lq_buf *w)
{
    static const struct {
        const char *name, *type, *help;
    } each[] = {
        { "llmq:model_loaded", "gauge", "1 where the model is in memory." },
        { "llmq:model_requests_running", "gauge", "Requests that the model answers." },
        { "llmq:model_requests_total", "counter", "Requests that were passed on to the model." },
        { "llmq:model_loads_total", "counter", "Times that the model was loaded." },
        { "llmq:model_load_failures_total", "counter", "Times that it could not be." },
        { "llmq:model_unloads_total", "counter", "Times that its server ended." },
        { "llmq:model_load_seconds_total", "counter", "Seconds that loading it took." },
        { "llmq:model_memory_bytes", "gauge",
          "Memory that it takes when it is loaded, as forecast." },
    };
    pthread_mutex_lock(&f->mu);
    double loaded = 0, bytes = 0;
    for (int i = 0; i < f->c->n; i++) {
        if (!is_in_memory(&f->ships[i])) continue;
        loaded += f->ships[i].state >= FLEET_READY;
        bytes += (double)f->ships[i].bytes;
    }
    met_write_one(w, "gauge", "llmq:models_known", "Models that can be served.", "", f->c->n);
    met_write_one(w, "gauge", "llmq:models_loaded", "Models in memory.", "", loaded);
    met_write_one(w, "gauge", "llmq:models_memory_bytes", "Memory of those, as forecast.", "",
                  bytes);
    met_write_one(w, "gauge", "llmq:models_waiting", "Requests that wait for their model.", "",
                  (double)f->waiting);
    met_write_one(w, "counter", "llmq:models_refused_total", "Requests that could not wait.", "",
                  (double)f->refused);
    for (size_t k = 0; k < LQ_COUNT(each); k++) {
        lq_buf_printf(w, "# HELP %s %s\n# TYPE %s %s\n", each[k].name, each[k].help, each[k].name,
                      each[k].type);
        for (int i = 0; i < f->c->n; i++) {
            lq_buf_printf(w, "%s{", each[k].name);
            met_label(w, "model_name", name_of(f, i));
            lq_buf_printf(w, "} %.15g\n", value_of(&f->ships[i], k));
        }
    }
    pthread_mutex_unlock(&f->mu);
}
