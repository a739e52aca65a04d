/* tools/router/loras.c - see loras.h. */
#include "tools/router/loras.h"

#include <pthread.h>
#include <stdlib.h>
#include <time.h>

typedef enum { SETTLED, UNLOAD, LOAD } due;

typedef struct row row;
struct row {
    row *next; /* loaded later */
    int model;
    char name[CAT_ADAPTER_NAME + 1];
    char *path;   /* that it was loaded from since the start; NULL: that of the list */
    bool listed;  /* a server of the model begins with it */
    bool there;   /* requests find it */
    bool claimed; /* it is being loaded */
    due due;
    int64_t created;
};

struct loras {
    pthread_mutex_t mu;
    row *first;
};

/* Under mu, as all below but those of the header. */
static row *find(const loras *l, const char *name)
{
    for (row *r = l->first; r; r = r->next)
        if (strcmp(r->name, name) == 0) return r;
    return NULL;
}

static row *add(loras *l, const char *name, size_t n, int model)
{
    row **end = &l->first, *r = calloc(1, sizeof *r);
    if (!r) return NULL;
    while (*end)
        end = &(*end)->next;
    *end = r;
    r->model = model;
    r->created = (int64_t)time(NULL);
    memcpy(r->name, name, n);
    return r;
}

/* Where nothing is left to be known of it. */
static void forget(loras *l, row *gone)
{
    if (gone->there || gone->listed || gone->claimed) return;
    row **at = &l->first;
    while (*at != gone)
        at = &(*at)->next;
    *at = gone->next;
    free(gone->path);
    free(gone);
}

lq_status loras_open(loras **out, const catalog *c, lq_err *err)
{
    loras *l = *out = calloc(1, sizeof *l);
    bool ok = l != NULL;
    if (l) pthread_mutex_init(&l->mu, NULL);
    for (int i = 0; i < c->n && ok; i++)
        for (char **v = c->m[i].adapters; v && *v && ok; v++) {
            row *r = add(l, *v, strcspn(*v, "="), i);
            ok = r != NULL;
            if (r) r->listed = r->there = true;
        }
    if (ok) return LQ_OK;
    loras_close(l);
    *out = NULL;
    return lq_fail(err, LQ_ENOMEM, "out of memory");
}

void loras_close(loras *l)
{
    if (!l) return;
    for (row *r; (r = l->first) != NULL;) {
        l->first = r->next;
        free(r->path);
        free(r);
    }
    pthread_mutex_destroy(&l->mu);
    free(l);
}

int loras_find(loras *l, const char *name)
{
    pthread_mutex_lock(&l->mu);
    const row *r = find(l, name);
    const int model = r && r->there ? r->model : -1;
    pthread_mutex_unlock(&l->mu);
    return model;
}

bool loras_get(loras *l, int model, int i, loras_card *card)
{
    bool found = false;
    pthread_mutex_lock(&l->mu);
    for (const row *r = l->first; r && !found; r = r->next) {
        found = r->model == model && r->there && i-- == 0;
        if (!found) continue;
        memcpy(card->name, r->name, sizeof card->name);
        card->created = r->created;
    }
    pthread_mutex_unlock(&l->mu);
    return found;
}

/* ---- while the model's server runs ---- */

lq_status loras_claim(loras *l, const char *name, int model, lq_err *err)
{
    const size_t n = strlen(name);
    lq_status s = LQ_OK;
    if (!n || n > CAT_ADAPTER_NAME)
        return lq_fail(err, LQ_EVALUE, "lora_name: expected a name of 1..%d bytes, found %zu",
                       (int)CAT_ADAPTER_NAME, n);
    pthread_mutex_lock(&l->mu);
    row *r = find(l, name);
    if (r && r->claimed)
        s = lq_fail(err, LQ_EBUSY, "the adapter '%s' is being loaded; try again later", name);
    else if (r && r->there && r->model != model)
        s = lq_fail(err, LQ_EUSAGE, "the adapter '%s' is another model's", name);
    else if (r && r->listed && r->model != model)
        s = lq_fail(err, LQ_EUSAGE, "the adapter '%s' is another model's, by the list of --models",
                    name);
    if (!s && !r && !(r = add(l, name, n, model))) s = lq_fail(err, LQ_ENOMEM, "out of memory");
    if (!s) r->claimed = true;
    pthread_mutex_unlock(&l->mu);
    return s;
}

void loras_loaded(loras *l, const char *name, const char *path)
{
    char *copy = path ? strdup(path) : NULL;
    pthread_mutex_lock(&l->mu);
    row *r = find(l, name);
    r->claimed = false;
    if (path) {
        free(r->path);
        r->path = copy;
        r->there = true;
        r->created = (int64_t)time(NULL);
    }
    forget(l, r);
    pthread_mutex_unlock(&l->mu);
}

static void remove_row(loras *l, row *r)
{
    r->there = false;
    free(r->path);
    r->path = NULL;
    forget(l, r);
}

void loras_remove(loras *l, const char *name)
{
    pthread_mutex_lock(&l->mu);
    row *r = find(l, name);
    if (r) remove_row(l, r);
    pthread_mutex_unlock(&l->mu);
}

/* ---- a model's next server ---- */

void loras_begin(loras *l, int model)
{
    pthread_mutex_lock(&l->mu);
    for (row *r = l->first; r; r = r->next) {
        if (r->model != model) continue;
        const bool other = !r->there || r->path; /* than the list says */
        r->due = !other ? SETTLED : r->listed ? UNLOAD : r->there ? LOAD : SETTLED;
    }
    pthread_mutex_unlock(&l->mu);
}

bool loras_due(loras *l, int model, loras_order *o)
{
    pthread_mutex_lock(&l->mu);
    const row *r = l->first;
    while (r && (r->model != model || r->due == SETTLED))
        r = r->next;
    *o = (loras_order){ .unload = r && r->due == UNLOAD };
    if (r) memcpy(o->name, r->name, sizeof o->name);
    if (r && r->path) o->path = strdup(r->path);
    pthread_mutex_unlock(&l->mu);
    return r != NULL;
}

void loras_done(loras *l, const loras_order *o, bool kept)
{
    pthread_mutex_lock(&l->mu);
    row *r = find(l, o->name);
    if (r) r->due = o->unload && r->there && r->path ? LOAD : SETTLED;
    if (r && !o->unload && !kept) remove_row(l, r);
    pthread_mutex_unlock(&l->mu);
}
