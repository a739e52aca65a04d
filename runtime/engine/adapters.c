/* runtime/engine/adapters.c - see adapters.h. */
#include "runtime/engine/adapters.h"

#include "base/path.h"

#include <limits.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>

typedef struct {
    adapters_card card;
    lora_adapter *l;
} entry;

struct adapters {
    const model *m;
    const char *dir;
    int64_t max_rank;
    pthread_mutex_t mu;
    entry *at; /* [ADAPTERS_MOST] */
    int n;
    /* of the one that is being read */
    bool busy, started; /* started: the thread is to be joined */
    pthread_t thread;
    char name[ADAPTERS_NAME + 1], path[PATH_MAX];
    adapters_done *done;
    void *user;
};

/* With the lock held. */
static entry *find_name(adapters *a, const char *name)
{
    for (int i = 0; i < a->n; i++)
        if (strcmp(a->at[i].card.name, name) == 0) return &a->at[i];
    return NULL;
}

/* Takes l over. With the lock held; there is room. */
static void put(adapters *a, const char *name, lora_adapter *l)
{
    entry *e = find_name(a, name);
    if (!e) e = &a->at[a->n++];
    lora_unref(e->l);
    const uint64_t requests = e->card.requests; /* of a name that goes on */
    *e = (entry){ .card = { .created = (int64_t)time(NULL),
                            .requests = requests,
                            .bytes = l->bytes,
                            .id = l->id },
                  .l = l };
    memcpy(e->card.name, name, strlen(name) + 1);
}

static lq_status check_name(const char *name, size_t n, lq_err *err)
{
    if (n > 0 && n <= ADAPTERS_NAME) return LQ_OK;
    return lq_fail(err, LQ_EVALUE, "'%.200s': expected a name of 1..%d bytes, found %zu", name,
                   (int)ADAPTERS_NAME, n);
}

static size_t name_length(const char *named) { return strcspn(named, "="); }

lq_status adapters_check(const adapters_opts *o, lq_err *err)
{
    if (o->n > ADAPTERS_MOST)
        return lq_fail(err, LQ_EUSAGE, "--lora: expected at most %d, found %d", (int)ADAPTERS_MOST,
                       o->n);
    for (int i = 0; i < o->n; i++) {
        const char *v = o->named[i];
        const size_t n = name_length(v);
        if (v[n] != '=' || !v[n + 1] || check_name(v, n, err))
            return lq_fail(err, LQ_EUSAGE, "--lora: expected NAME=PATH, found '%.200s'", v);
        for (int k = 0; k < i; k++)
            if (strncmp(o->named[k], v, n + 1) == 0)
                return lq_fail(err, LQ_EUSAGE, "--lora: the name '%.*s' is there twice", (int)n, v);
    }
    return LQ_OK;
}

size_t adapters_path_bytes(const char *path)
{
    char inside[PATH_MAX];
    struct stat s;
    if (stat(path, &s)) return 0;
    if (!S_ISDIR(s.st_mode)) return (size_t)s.st_size;
    const bool joined =
        !lq_path_join(inside, sizeof inside, path, "adapter_model.safetensors", NULL);
    return joined && !stat(inside, &s) ? (size_t)s.st_size : 0;
}

size_t adapters_file_bytes(const adapters_opts *o)
{
    size_t n = 0;
    for (int i = 0; i < o->n; i++) {
        const char *path = o->named[i] + name_length(o->named[i]);
        n += *path ? adapters_path_bytes(path + 1) : 0;
    }
    return n;
}

static lq_status read_named(adapters *a, const char *named, pool *p, lq_err *err)
{
    char name[ADAPTERS_NAME + 1];
    const size_t n = name_length(named);
    lora_adapter *l;
    memcpy(name, named, n);
    name[n] = 0;
    lq_status s = lora_open(&l, a->m, named + n + 1, a->max_rank, p, err);
    if (!s) put(a, name, l);
    return s;
}

lq_status adapters_open(adapters **out, const model *m, const adapters_opts *o, pool *p,
                        lq_err *err)
{
    adapters *a = *out = NULL;
    lq_status s = adapters_check(o, err);
    if (s) return s;
    a = calloc(1, sizeof *a);
    if (!a) return lq_fail(err, LQ_ENOMEM, "adapters: out of memory");
    pthread_mutex_init(&a->mu, NULL);
    a->m = m;
    a->dir = o->dir;
    a->max_rank = o->max_rank;
    a->at = calloc(ADAPTERS_MOST, sizeof *a->at);
    if (!a->at) s = lq_fail(err, LQ_ENOMEM, "adapters: out of memory");
    for (int i = 0; i < o->n && !s; i++)
        s = read_named(a, o->named[i], p, err);
    if (s)
        adapters_close(a);
    else
        *out = a;
    return s;
}

void adapters_close(adapters *a)
{
    if (!a) return;
    if (a->started) pthread_join(a->thread, NULL);
    for (int i = 0; i < a->n; i++)
        lora_unref(a->at[i].l);
    pthread_mutex_destroy(&a->mu);
    free(a->at);
    free(a);
}

bool adapters_have(adapters *a, const char *name)
{
    pthread_mutex_lock(&a->mu);
    const bool have = find_name(a, name) != NULL;
    pthread_mutex_unlock(&a->mu);
    return have;
}

lora_adapter *adapters_take(adapters *a, const char *name)
{
    pthread_mutex_lock(&a->mu);
    entry *e = find_name(a, name);
    lora_adapter *l = e ? lora_ref(e->l) : NULL;
    if (e) e->card.requests++;
    pthread_mutex_unlock(&a->mu);
    return l;
}

int adapters_list(adapters *a, adapters_card *cards)
{
    pthread_mutex_lock(&a->mu);
    const int n = a->n;
    for (int i = 0; i < n; i++)
        cards[i] = a->at[i].card;
    pthread_mutex_unlock(&a->mu);
    return n;
}

/* ---- while others run ---- */

static void *read_one(void *self)
{
    adapters *a = self;
    lora_adapter *l = NULL;
    pool *p = NULL;
    lq_err err = { "" };
    lq_status s = pool_open(&p, 1, &err); /* the engine's is at work */
    if (!s) s = lora_open(&l, a->m, a->path, a->max_rank, p, &err);
    pool_close(p);
    pthread_mutex_lock(&a->mu);
    if (!s && !find_name(a, a->name) && a->n == ADAPTERS_MOST)
        s = lq_fail(&err, LQ_EBUSY, "adapters: expected at most %d", ADAPTERS_MOST);
    if (s)
        lora_unref(l);
    else
        put(a, a->name, l);
    adapters_done *done = a->done;
    void *user = a->user;
    a->busy = false;
    pthread_mutex_unlock(&a->mu);
    done(user, s, &err);
    return NULL;
}

/* The real path, which must be in the folder. */
static lq_status find_path(char out[PATH_MAX], const char *dir, const char *path, lq_err *err)
{
    char dir_real[PATH_MAX], named[PATH_MAX];
    if (!realpath(dir, dir_real)) return lq_open_failed(err, dir);
    lq_status s = path[0] == '/' ? LQ_OK : lq_path_join(named, sizeof named, dir, path, err);
    if (s) return s;
    if (!realpath(path[0] == '/' ? path : named, out)) return lq_open_failed(err, path);
    const size_t n = strlen(dir_real);
    if (strncmp(out, dir_real, n) == 0 && out[n] == '/') return LQ_OK;
    return lq_fail(err, LQ_EVALUE, "%s: expected a path in the folder of --lora-dir", path);
}

/* With the lock held: a's fields of the one that is to be read. */
static lq_status claim(adapters *a, const char *name, const char *path, bool inplace, lq_err *err)
{
    if (a->busy) return lq_fail(err, LQ_EBUSY, "another adapter is being loaded; try again later");
    entry *e = find_name(a, name);
    if (e && !inplace)
        return lq_fail(err, LQ_EUSAGE, "the adapter '%s' has already been loaded", name);
    if (!e && a->n == ADAPTERS_MOST)
        return lq_fail(err, LQ_EBUSY, "adapters: expected at most %d", ADAPTERS_MOST);
    if (a->started) pthread_join(a->thread, NULL); /* has ended, or has only its answer to give */
    a->started = false;
    memcpy(a->name, name, strlen(name) + 1);
    memcpy(a->path, path, strlen(path) + 1);
    return LQ_OK;
}

lq_status adapters_load(adapters *a, const char *name, const char *path, bool inplace,
                        adapters_done *done, void *user, lq_err *err)
{
    char real[PATH_MAX];
    if (!a->dir)
        return lq_fail(err, LQ_EUNSUPPORTED,
                       "adapters are loaded at run time from the folder of --lora-dir alone, and "
                       "this server was started without it");
    lq_status s = check_name(name, strlen(name), err);
    if (!s) s = find_path(real, a->dir, path, err);
    if (s) return s;
    pthread_mutex_lock(&a->mu);
    s = claim(a, name, real, inplace, err);
    if (!s) {
        a->done = done;
        a->user = user;
        a->busy = a->started = pthread_create(&a->thread, NULL, read_one, a) == 0;
        if (!a->started) s = lq_fail(err, LQ_EBUSY, "no thread to load the adapter on");
    }
    pthread_mutex_unlock(&a->mu);
    return s;
}

lq_status adapters_unload(adapters *a, const char *name, lq_err *err)
{
    pthread_mutex_lock(&a->mu);
    entry *e = find_name(a, name);
    lora_adapter *l = e ? e->l : NULL;
    if (e) {
        a->n--;
        memmove(e, e + 1, (size_t)(&a->at[a->n] - e) * sizeof *e);
        a->at[a->n] = (entry){ .l = NULL };
    }
    pthread_mutex_unlock(&a->mu);
    lora_unref(l);
    return e ? LQ_OK : lq_fail(err, LQ_ENOENT, "the adapter '%.200s' cannot be found", name);
}
