/* runtime/api/api_store.c - see api_store.h. */
#include "runtime/api/api_store.h"

#include "runtime/api/api_store_dir.h"
#include "runtime/limits.h"

#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

typedef struct entry entry;
struct entry {
    entry *next; /* the one before it in time */
    char *id;
    lq_buf response, items, events;
    api_store_log log;
};

struct api_store {
    int dir; /* -1: in memory, by the list */
    pthread_mutex_t mu;
    entry *latest;
    int64_t n, most;
    size_t bytes;
};

lq_status api_store_open(api_store **out, int64_t n, const char *dir, lq_err *err)
{
    api_store *s = *out = calloc(1, sizeof *s);
    if (!s) return lq_fail(err, LQ_ENOMEM, "out of memory");
    pthread_mutex_init(&s->mu, NULL);
    s->most = n;
    s->dir = -1;
    return dir ? api_store_dir_open(&s->dir, dir, err) : LQ_OK;
}

static size_t size_of(const entry *e)
{
    return sizeof *e + strlen(e->id) + 1 + e->response.cap + e->items.cap + e->events.cap;
}

static void free_entry(entry *e)
{
    if (!e) return;
    free(e->id);
    lq_buf_free(&e->response);
    lq_buf_free(&e->items);
    lq_buf_free(&e->events);
    free(e);
}

/* Takes the entry at *at out of the list. Under mu. */
static void drop(api_store *s, entry **at)
{
    entry *e = *at;
    *at = e->next;
    s->n--;
    s->bytes -= size_of(e);
    free_entry(e);
}

void api_store_close(api_store *s)
{
    if (!s) return;
    while (s->latest)
        drop(s, &s->latest);
    if (s->dir >= 0) close(s->dir);
    pthread_mutex_destroy(&s->mu);
    free(s);
}

/* Under mu. Where the entry of this id is; NULL: nowhere. */
static entry **find(api_store *s, const char *id)
{
    for (entry **at = &s->latest; *at; at = &(*at)->next)
        if (strcmp((*at)->id, id) == 0) return at;
    return NULL;
}

static void drop_oldest(api_store *s)
{
    entry **at = &s->latest;
    while ((*at)->next)
        at = &(*at)->next;
    drop(s, at);
}

/* NULL: no memory, or it is too large. */
static entry *new_entry(const char *id, const lq_buf *response, const lq_buf *items,
                        const lq_buf *events)
{
    entry *e = calloc(1, sizeof *e);
    if (!e) return NULL;
    e->id = strdup(id);
    lq_buf_add(&e->response, response->p, response->n);
    lq_buf_add(&e->items, items->p, items->n);
    if (events) lq_buf_add(&e->events, events->p, events->n);
    if (e->id && !e->response.oom && !e->items.oom && !e->events.oom &&
        size_of(e) <= API_STORE_BYTES)
        return e;
    free_entry(e);
    return NULL;
}

static void keep_within(api_store *s)
{
    while (s->n > s->most || s->bytes > API_STORE_BYTES)
        drop_oldest(s);
}

/* Under mu. In the place of the one at `was`; NULL: of none. */
static void take_in(api_store *s, entry **was, entry *e)
{
    if (was) drop(s, was);
    e->next = s->latest;
    s->latest = e;
    s->n++;
    s->bytes += size_of(e);
    keep_within(s);
}

void api_store_put(api_store *s, const char *id, const lq_buf *response, const lq_buf *items,
                   const lq_buf *events)
{
    if (response->oom || items->oom || (events && events->oom)) return;
    if (s->dir >= 0) {
        if (response->n + items->n + (events ? events->n : 0) <= API_STORE_BYTES)
            api_store_dir_put(s->dir, id, response, items, events, s->most, API_STORE_BYTES);
        return;
    }
    entry *e = new_entry(id, response, items, events);
    if (!e) return;
    e->log = events ? API_LOG_OPEN : API_NO_LOG;
    pthread_mutex_lock(&s->mu);
    take_in(s, find(s, id), e);
    pthread_mutex_unlock(&s->mu);
}

static bool same(const lq_buf *a, const lq_buf *b)
{
    return a->n == b->n && (!a->n || memcmp(a->p, b->p, a->n) == 0);
}

bool api_store_swap(api_store *s, const char *id, const lq_buf *was, const lq_buf *response,
                    const lq_buf *items)
{
    if (!s || response->oom || (items && items->oom)) return false;
    if (s->dir >= 0) return api_store_dir_swap(s->dir, id, was, response, items);
    pthread_mutex_lock(&s->mu);
    entry **at = find(s, id);
    entry *e = at && same(&(*at)->response, was)
                   ? new_entry(id, response, items ? items : &(*at)->items, &(*at)->events)
                   : NULL;
    if (e && (*at)->log != API_NO_LOG) e->log = API_LOG_ENDED;
    if (e) take_in(s, at, e);
    pthread_mutex_unlock(&s->mu);
    return e != NULL;
}

bool api_store_add(api_store *s, const char *id, const char *p, size_t n)
{
    if (!s) return false;
    if (s->dir >= 0) return api_store_dir_add(s->dir, id, p, n);
    pthread_mutex_lock(&s->mu);
    entry **at = find(s, id);
    entry *e = at && (*at)->log == API_LOG_OPEN ? *at : NULL;
    if (e) {
        s->bytes -= size_of(e);
        lq_buf_add(&e->events, p, n);
        s->bytes += size_of(e);
        const bool oom = e->events.oom;
        if (!oom) keep_within(s);
        e = !oom && find(s, id) ? e : NULL;
    }
    pthread_mutex_unlock(&s->mu);
    return e != NULL;
}

bool api_store_events(api_store *s, const char *id, size_t from, size_t most, lq_buf *out,
                      api_store_log *log)
{
    if (!s) return false;
    if (s->dir >= 0) return api_store_dir_events(s->dir, id, from, most, out, log);
    pthread_mutex_lock(&s->mu);
    entry **at = find(s, id);
    const lq_buf *all = at ? &(*at)->events : NULL;
    if (at) *log = (*at)->log;
    if (at && from < all->n)
        lq_buf_add(out, all->p + from, all->n - from < most ? all->n - from : most);
    pthread_mutex_unlock(&s->mu);
    return at && !out->oom;
}

bool api_store_get(api_store *s, const char *id, lq_buf *response, lq_buf *items)
{
    if (!s) return false;
    if (s->dir >= 0) return api_store_dir_get(s->dir, id, response, items);
    pthread_mutex_lock(&s->mu);
    entry **at = find(s, id);
    if (at && response) lq_buf_add(response, (*at)->response.p, (*at)->response.n);
    if (at && items) lq_buf_add(items, (*at)->items.p, (*at)->items.n);
    pthread_mutex_unlock(&s->mu);
    return at && !(response && response->oom) && !(items && items->oom);
}

/* The item of a list with this id, out of it; NULL: none. */
static cJSON *take_item(const lq_buf *items, const char *id)
{
    cJSON *list = NULL, *found = NULL;
    if (!memmem(items->p, items->n, id, strlen(id))) return NULL;
    if (js_parse(&list, items->p, items->n, API_STORE_BYTES, 0, NULL)) list = NULL;
    for (cJSON *v = list ? list->child : NULL; v && !found; v = v->next) {
        const char *its = cJSON_GetStringValue(js_get(v, "id"));
        if (its && strcmp(its, id) == 0) found = v;
    }
    if (found) cJSON_DetachItemViaPointer(list, found);
    cJSON_Delete(list);
    return found;
}

cJSON *api_store_item(api_store *s, const char *id)
{
    cJSON *found = NULL;
    if (!s || !id[0]) return NULL;
    if (s->dir >= 0) return api_store_dir_each(s->dir, take_item, id);
    pthread_mutex_lock(&s->mu);
    for (const entry *e = s->latest; e && !found; e = e->next)
        found = take_item(&e->items, id);
    pthread_mutex_unlock(&s->mu);
    return found;
}

bool api_store_remove(api_store *s, const char *id)
{
    if (!s) return false;
    if (s->dir >= 0) return api_store_dir_remove(s->dir, id);
    pthread_mutex_lock(&s->mu);
    entry **at = find(s, id);
    if (at) drop(s, at);
    pthread_mutex_unlock(&s->mu);
    return at != NULL;
}
