/* runtime/model/kv_disk.c - see kv_disk.h. `mu` guards the queues; files are read and written without it. */
#include "runtime/model/kv_disk.h"

#include "base/clock.h"
#include "base/locale.h"
#include "base/os.h"
#include "runtime/model/kv_store.h"

#include <pthread.h>
#include <stdlib.h>

enum {
    QUEUE_BYTES = 64 << 20, /* of each queue, but at least LEAST places */
    LEAST = 3,
    MOST = 256,
    PACE_BYTES = 256 << 20, /* what was read before counts half after so much */
    TRY_AGAIN = 8           /* every so many looks that would be slower are read all the same */
};

/* A place of a queue: a file in memory. */
typedef struct {
    uint8_t *file; /* [KVF_HEAD + the largest part] */
    kvf_what what;
    int64_t used;   /* when; */
    bool only_used; /* there is nothing to write */
    kvd_look *look; /* that it is read for */
    int64_t i;      /* which block of it */
    int next;
} place;

typedef struct {
    place *at;                /* [n] */
    int n, free, first, last; /* lists, by next; -1 ends them */
} queue;

struct kvd_look {
    kvd_look *next;
    kvd_block *blocks;
    int32_t *ids;
    int64_t n, usable;
    double pace;
    void *user;
    int to_take;  /* pieces of it that are in the queue or taken */
    bool reading; /* the thread has it */
    bool over, dropped;
};

struct kv_disk {
    kvd_opts o;
    kv_store *store;
    pthread_mutex_t mu;
    pthread_cond_t to_write, to_read, room;
    pthread_t writer, reader;
    bool has_writer, has_reader, closing, noted;
    _Atomic double until; /* when writing ends; 0: it does not */
    uint64_t late;        /* parts that were not written for that */
    queue out, in;
    kvd_look *looks, **last_look; /* that wait for the thread */
    bool failing;
    uint64_t skipped; /* looks in a row */
    double pace_seconds, pace_bytes;
    kvd_stats stats;
};

/* ---- queues ---- */

static size_t file_bytes(const size_t part_bytes[KV_PARTS])
{
    size_t most = 0;
    for (int p = 0; p < KV_PARTS; p++)
        if (part_bytes[p] > most) most = part_bytes[p];
    return lq_round_up(KVF_HEAD + most, 64);
}

static int places_of(size_t file)
{
    const size_t n = QUEUE_BYTES / file;
    return (int)(n < LEAST ? LEAST : n > MOST ? MOST : n);
}

size_t kvd_memory(const size_t part_bytes[KV_PARTS])
{
    const size_t file = file_bytes(part_bytes);
    return 2 * (size_t)places_of(file) * (file + sizeof(place));
}

static lq_status queue_open(queue *q, size_t file, const kvd_opts *o, lq_err *err)
{
    q->n = places_of(file);
    q->free = q->first = q->last = -1;
    q->at = calloc((size_t)q->n, sizeof *q->at);
    for (int i = 0; q->at && i < q->n; i++) {
        q->at[i].file = o->alloc ? o->alloc(o->user, file) : malloc(file);
        q->at[i].next = q->free;
        q->free = i;
        if (!q->at[i].file) return lq_fail(err, LQ_ENOMEM, "KV cache on disk: out of memory");
    }
    return q->at ? LQ_OK : lq_fail(err, LQ_ENOMEM, "KV cache on disk: out of memory");
}

static void queue_close(queue *q, const kvd_opts *o)
{
    for (int i = 0; q->at && i < q->n; i++)
        if (o->free)
            o->free(o->user, q->at[i].file);
        else
            free(q->at[i].file);
    free(q->at);
}

static int take_free(queue *q)
{
    const int i = q->free;
    if (i >= 0) q->free = q->at[i].next;
    return i;
}

static void put_free(queue *q, int i)
{
    q->at[i].next = q->free;
    q->free = i;
}

static void push(queue *q, int i)
{
    q->at[i].next = -1;
    *(q->last < 0 ? &q->first : &q->at[q->last].next) = i;
    q->last = i;
}

static int pop(queue *q)
{
    const int i = q->at ? q->first : -1;
    if (i < 0) return i;
    q->first = q->at[i].next;
    if (q->first < 0) q->last = -1;
    return i;
}

/* ---- writing ---- */

void kvd_until(kv_disk *d, double until)
{
    pthread_mutex_lock(&d->mu);
    atomic_store(&d->until, until);
    pthread_cond_broadcast(&d->room);
    pthread_mutex_unlock(&d->mu);
}

static bool is_late(kv_disk *d)
{
    const double until = atomic_load(&d->until);
    return until > 0 && lq_now() >= until;
}

/* Under mu, which is left meanwhile: a place becomes free, or it is too late. */
static void wait_room(kv_disk *d)
{
    const double until = atomic_load(&d->until);
    if (until > 0)
        os_cond_until(&d->room, &d->mu, until);
    else
        pthread_cond_wait(&d->room, &d->mu);
}

uint8_t *kvd_put(kv_disk *d, const uint64_t key[2], kv_part part, const int32_t *tokens,
                 int64_t used, bool wait)
{
    const bool known = kvs_knows(d->store, key, part);
    pthread_mutex_lock(&d->mu);
    int i = -1;
    while (!is_late(d) && (i = take_free(&d->out)) < 0 && wait)
        wait_room(d);
    if (i < 0 && !known) d->stats.lost++;
    if (i < 0 && !known && is_late(d)) d->late++;
    if (i >= 0) {
        place *x = &d->out.at[i];
        x->used = used;
        x->only_used = known;
        x->what = (kvf_what){ .of = { d->o.of[0], d->o.of[1] },
                              .key = { key[0], key[1] },
                              .part = part,
                              .block_size = d->o.block_size,
                              .bytes = d->o.part_bytes[part] };
        memcpy(x->what.tokens, tokens, (size_t)d->o.block_size * sizeof *tokens);
        if (known) push(&d->out, i);
    }
    if (i >= 0 && known) pthread_cond_signal(&d->to_write);
    pthread_mutex_unlock(&d->mu);
    return i < 0 || known ? NULL : d->out.at[i].file + KVF_HEAD;
}

static int place_at(const kv_disk *d, const uint8_t *data)
{
    int i = 0;
    while (d->out.at[i].file + KVF_HEAD != data)
        i++;
    return i;
}

void kvd_put_end(kv_disk *d, uint8_t *data)
{
    pthread_mutex_lock(&d->mu);
    push(&d->out, place_at(d, data));
    pthread_cond_signal(&d->to_write);
    pthread_mutex_unlock(&d->mu);
}

void kvd_put_drop(kv_disk *d, uint8_t *data)
{
    pthread_mutex_lock(&d->mu);
    put_free(&d->out, place_at(d, data));
    d->stats.lost++;
    pthread_mutex_unlock(&d->mu);
}

bool kvd_failed(kv_disk *d)
{
    pthread_mutex_lock(&d->mu);
    const bool failing = d->failing;
    pthread_mutex_unlock(&d->mu);
    return failing;
}

/* With the folder's lock, or (held: false) without: then nothing is written. */
static void write_one(kv_disk *d, place *x, bool held)
{
    bool written = false;
    lq_err err = { "another server writes there all the time" };
    lq_status s = held ? LQ_OK : LQ_EBUSY;
    if (x->only_used)
        kvs_use(d->store, x->what.key, x->what.part, x->used);
    else if (held)
        s = kvs_put(d->store, &x->what, x->file, x->used, &written, &err);
    pthread_mutex_lock(&d->mu);
    const bool say = s && !x->only_used && !d->noted;
    if (!x->only_used) d->failing = s != LQ_OK;
    if (s && !x->only_used) d->stats.failed++;
    if (written) {
        d->stats.writes++;
        d->stats.written_bytes += KVF_HEAD + x->what.bytes;
    }
    d->noted |= say;
    pthread_mutex_unlock(&d->mu);
    if (say && d->o.note) d->o.note(d->o.user, err.msg);
}

/* All that waits, under one lock of the folder. */
static void write_all(kv_disk *d)
{
    const bool held = kvs_begin(d->store, &d->until);
    pthread_mutex_lock(&d->mu);
    for (int i; (i = pop(&d->out)) >= 0;) {
        const bool late = is_late(d);
        d->late += late && !d->out.at[i].only_used;
        pthread_mutex_unlock(&d->mu);
        if (!late) write_one(d, &d->out.at[i], held);
        pthread_mutex_lock(&d->mu);
        put_free(&d->out, i);
        pthread_cond_broadcast(&d->room);
    }
    pthread_mutex_unlock(&d->mu);
    if (held) kvs_end(d->store);
}

static void *write_run(void *arg)
{
    kv_disk *d = arg;
    lq_locale_c();
    for (;;) {
        pthread_mutex_lock(&d->mu);
        while (d->out.first < 0 && !d->closing)
            pthread_cond_wait(&d->to_write, &d->mu);
        const bool any = d->out.first >= 0;
        pthread_mutex_unlock(&d->mu);
        if (!any) return NULL;
        write_all(d);
    }
}

/* ---- reading: what for ---- */

static bool has(const kv_disk *d, const kvd_look *l, int64_t i, kv_part part)
{
    if (!d->o.part_bytes[part] || l->blocks[i].have >> part & 1) return true;
    return !(l->blocks[i].bad >> part & 1) && kvs_has(d->store, l->blocks[i].key, part);
}

static int64_t near_from(const kv_disk *d, int64_t n)
{
    return d->o.part_bytes[KV_NEAR] ? d->o.near_from(d->o.near_user, n) : n;
}

/* Can a prompt go on after n blocks, whose rows are there? */
static bool may_begin(const kv_disk *d, const kvd_look *l, int64_t n)
{
    if (!has(d, l, n - 1, KV_STATE)) return false;
    for (int64_t i = n; i-- > near_from(d, n);)
        if (!has(d, l, i, KV_NEAR)) return false;
    return true;
}

/* How far the prompt could go with what memory and folder have. */
static int64_t reach(const kv_disk *d, const kvd_look *l)
{
    int64_t n = l->usable;
    while (n < l->n && has(d, l, n, KV_ROWS))
        n++;
    while (n > l->usable && !may_begin(d, l, n))
        n--;
    return n;
}

static bool wanted(const kv_disk *d, const kvd_look *l, int64_t n, int64_t i, kv_part part)
{
    if (l->blocks[i].have >> part & 1) return false;
    if (part == KV_STATE) return d->o.part_bytes[part] && i == n - 1;
    if (part == KV_NEAR) return d->o.part_bytes[part] && i >= near_from(d, n);
    return true; /* rows of no bytes too: the block itself */
}

/* Bytes to read of n blocks. */
static size_t bytes_of(const kv_disk *d, const kvd_look *l, int64_t n)
{
    size_t bytes = 0;
    for (int p = 0; p < KV_PARTS; p++)
        for (int64_t i = 0; i < n; i++)
            if (wanted(d, l, n, i, (kv_part)p)) bytes += d->o.part_bytes[p];
    return bytes;
}

/* Is it worth it? Sometimes it is done all the same: the disk's pace is known by reading alone. */
static bool pays(kv_disk *d, const kvd_look *l, int64_t n)
{
    pthread_mutex_lock(&d->mu);
    const double pace = d->pace_bytes > 0 ? d->pace_seconds / d->pace_bytes : 0;
    const double reading = pace * (double)bytes_of(d, l, n);
    const double computing = l->pace * (double)((n - l->usable) * d->o.block_size);
    const bool slower = l->pace > 0 && reading > computing && ++d->skipped % TRY_AGAIN != 0;
    if (slower) d->stats.slower++;
    pthread_mutex_unlock(&d->mu);
    return !slower;
}

/* ---- reading ---- */

/* A free place; -1: nobody wants it any more. */
static int wait_place(kv_disk *d, const kvd_look *l)
{
    pthread_mutex_lock(&d->mu);
    int i = -1;
    while (!l->dropped && !d->closing && (i = take_free(&d->in)) < 0)
        pthread_cond_wait(&d->room, &d->mu);
    pthread_mutex_unlock(&d->mu);
    return i;
}

static void count_read(kv_disk *d, size_t bytes, double seconds)
{
    d->stats.reads++;
    d->stats.read_bytes += bytes;
    d->stats.read_seconds += seconds;
    d->pace_bytes += (double)bytes;
    d->pace_seconds += seconds;
    if (d->pace_bytes > PACE_BYTES) {
        d->pace_bytes /= 2;
        d->pace_seconds /= 2;
    }
}

/* False: it is not there any more, or nobody wants it. */
static bool read_one(kv_disk *d, kvd_look *l, int64_t i, kv_part part)
{
    const int at = wait_place(d, l);
    if (at < 0) return false;
    place *x = &d->in.at[at];
    const size_t bytes = d->o.part_bytes[part], bs = (size_t)d->o.block_size;
    kvs_found found = KVS_READ;
    x->look = l;
    x->i = i;
    x->what = (kvf_what){ .of = { d->o.of[0], d->o.of[1] },
                          .key = { l->blocks[i].key[0], l->blocks[i].key[1] },
                          .part = part,
                          .block_size = d->o.block_size,
                          .bytes = bytes };
    memcpy(x->what.tokens, l->ids + (size_t)i * bs, bs * sizeof *l->ids);
    const double start = lq_now();
    /* What is nearer to the beginning counts as used later: more prompts share it. */
    if (bytes) found = kvs_read(d->store, &x->what, x->file, kvs_now() - i * 1000);
    pthread_mutex_lock(&d->mu);
    if (found == KVS_READ) {
        l->to_take++;
        if (bytes) count_read(d, KVF_HEAD + bytes, lq_now() - start);
        push(&d->in, at);
    } else {
        d->stats.damaged += found == KVS_DAMAGED;
        put_free(&d->in, at);
    }
    pthread_mutex_unlock(&d->mu);
    *(found == KVS_READ ? &l->blocks[i].have : &l->blocks[i].bad) |= 1u << part;
    if (found != KVS_READ) return false;
    d->o.wake(d->o.user);
    return true;
}

/* All that n blocks want; false: something was not there after all. */
static bool read_blocks(kv_disk *d, kvd_look *l, int64_t n)
{
    for (int p = 0; p < KV_PARTS; p++)
        for (int64_t i = 0; i < n; i++)
            if (wanted(d, l, n, i, (kv_part)p) && !read_one(d, l, i, (kv_part)p)) return false;
    return true;
}

static bool dropped(kv_disk *d, const kvd_look *l)
{
    pthread_mutex_lock(&d->mu);
    const bool gone = l->dropped || d->closing;
    pthread_mutex_unlock(&d->mu);
    return gone;
}

static void look_through(kv_disk *d, kvd_look *l)
{
    int64_t n = reach(d, l);
    const bool any = n > l->usable, read = any && pays(d, l, n);
    /* A file that is missing or damaged leaves a shorter way. */
    while (read && n > l->usable && !dropped(d, l) && !read_blocks(d, l, n))
        n = reach(d, l);
    pthread_mutex_lock(&d->mu);
    d->stats.hits += read && n > l->usable;
    d->stats.misses += !any || (read && n <= l->usable);
    pthread_mutex_unlock(&d->mu);
}

static void look_free(kvd_look *l)
{
    if (!l) return;
    free(l->blocks);
    free(l->ids);
    free(l);
}

/* Under mu. It is freed by whoever is the last to know it. */
static void forget(kvd_look *l)
{
    if (l->dropped && !l->reading && !l->to_take) look_free(l);
}

static kvd_look *next_look(kv_disk *d)
{
    pthread_mutex_lock(&d->mu);
    while (!d->looks && !d->closing)
        pthread_cond_wait(&d->to_read, &d->mu);
    kvd_look *l = d->closing ? NULL : d->looks;
    if (l) {
        d->looks = l->next;
        if (!d->looks) d->last_look = &d->looks;
        l->reading = true;
    }
    pthread_mutex_unlock(&d->mu);
    return l;
}

static void *read_run(void *arg)
{
    kv_disk *d = arg;
    lq_locale_c();
    for (kvd_look *l; (l = next_look(d));) {
        look_through(d, l);
        pthread_mutex_lock(&d->mu);
        l->reading = false;
        l->over = true;
        forget(l);
        pthread_mutex_unlock(&d->mu);
        d->o.wake(d->o.user);
    }
    return NULL;
}

kvd_look *kvd_look_begin(kv_disk *d, const kvd_block *blocks, const int32_t *ids, int64_t n,
                         int64_t usable, double pace, void *user)
{
    const size_t b = (size_t)n * sizeof *blocks, i = (size_t)(n * d->o.block_size) * sizeof *ids;
    kvd_look *l = calloc(1, sizeof *l);
    if (!l) return NULL;
    l->blocks = malloc(b);
    l->ids = malloc(i);
    if (!l->blocks || !l->ids) {
        look_free(l);
        return NULL;
    }
    memcpy(l->blocks, blocks, b);
    memcpy(l->ids, ids, i);
    l->n = n;
    l->usable = usable;
    l->pace = pace;
    l->user = user;
    pthread_mutex_lock(&d->mu);
    *d->last_look = l;
    d->last_look = &l->next;
    pthread_cond_signal(&d->to_read);
    pthread_mutex_unlock(&d->mu);
    return l;
}

bool kvd_look_over(kv_disk *d, const kvd_look *l)
{
    pthread_mutex_lock(&d->mu);
    const bool over = l->over && !l->to_take;
    pthread_mutex_unlock(&d->mu);
    return over;
}

/* Under mu: out of the list of those that wait, if it is there. */
static void leave_list(kv_disk *d, kvd_look *l)
{
    for (kvd_look **at = &d->looks; *at; at = &(*at)->next) {
        if (*at != l) continue;
        *at = l->next;
        if (d->last_look == &l->next) d->last_look = at;
        return;
    }
}

void kvd_look_end(kv_disk *d, kvd_look *l)
{
    pthread_mutex_lock(&d->mu);
    l->dropped = true;
    leave_list(d, l);
    pthread_cond_broadcast(&d->room); /* the thread may wait for a place for it */
    forget(l);
    pthread_mutex_unlock(&d->mu);
}

/* Under mu. */
static void give_back(kv_disk *d, int at)
{
    kvd_look *l = d->in.at[at].look;
    put_free(&d->in, at);
    l->to_take--;
    forget(l);
    pthread_cond_broadcast(&d->room);
}

bool kvd_take(kv_disk *d, kvd_piece *p)
{
    pthread_mutex_lock(&d->mu);
    int at;
    while ((at = pop(&d->in)) >= 0 && d->in.at[at].look->dropped)
        give_back(d, at);
    if (at >= 0) {
        const place *x = &d->in.at[at];
        *p = (kvd_piece){ x->look->user, x->i, x->what.part, x->file + KVF_HEAD, at };
    }
    pthread_mutex_unlock(&d->mu);
    return at >= 0;
}

void kvd_give_back(kv_disk *d, const kvd_piece *p)
{
    pthread_mutex_lock(&d->mu);
    give_back(d, p->place);
    pthread_mutex_unlock(&d->mu);
}

/* ---- opening and closing ---- */

lq_status kvd_open(kv_disk **out, const kvd_opts *o, lq_err *err)
{
    *out = NULL;
    const size_t file = file_bytes(o->part_bytes), least = kvs_least(file);
    if (o->bytes < least)
        return lq_fail(err, LQ_EUSAGE,
                       "%s: expected %zu bytes or more, as a block takes, found %zu", o->dir, least,
                       o->bytes);
    kv_disk *d = calloc(1, sizeof *d);
    if (!d) return lq_fail(err, LQ_ENOMEM, "KV cache on disk: out of memory");
    d->o = *o;
    d->last_look = &d->looks;
    pthread_mutex_init(&d->mu, NULL);
    pthread_cond_init(&d->to_write, NULL);
    pthread_cond_init(&d->to_read, NULL);
    os_cond_init(&d->room);
    lq_status s = kvs_open(&d->store, o->dir, o->bytes, err);
    if (!s) s = queue_open(&d->out, file, o, err);
    if (!s) s = queue_open(&d->in, file, o, err);
    if (!s) {
        d->has_writer = pthread_create(&d->writer, NULL, write_run, d) == 0;
        d->has_reader = d->has_writer && pthread_create(&d->reader, NULL, read_run, d) == 0;
        if (!d->has_reader) s = lq_fail(err, LQ_ENOMEM, "KV cache on disk: cannot start a thread");
    }
    if (s)
        kvd_close(d);
    else
        *out = d;
    return s;
}

uint64_t kvd_close(kv_disk *d)
{
    if (!d) return 0;
    pthread_mutex_lock(&d->mu);
    d->closing = true;
    pthread_cond_broadcast(&d->to_write);
    pthread_cond_broadcast(&d->to_read);
    pthread_cond_broadcast(&d->room);
    pthread_mutex_unlock(&d->mu);
    if (d->has_writer) pthread_join(d->writer, NULL);
    if (d->has_reader) pthread_join(d->reader, NULL);
    for (int i; (i = pop(&d->in)) >= 0;)
        give_back(d, i);
    queue_close(&d->out, &d->o);
    queue_close(&d->in, &d->o);
    kvs_close(d->store);
    pthread_cond_destroy(&d->to_write);
    pthread_cond_destroy(&d->to_read);
    pthread_cond_destroy(&d->room);
    pthread_mutex_destroy(&d->mu);
    const uint64_t late = d->late;
    free(d);
    return late;
}

void kvd_stats_get(kv_disk *d, kvd_stats *s)
{
    kvs_stats there;
    kvs_stats_get(d->store, &there);
    pthread_mutex_lock(&d->mu);
    *s = d->stats;
    s->pace = d->pace_bytes > 0 ? d->pace_seconds / d->pace_bytes : 0;
    pthread_mutex_unlock(&d->mu);
    s->files = there.files;
    s->bytes = there.bytes;
    s->removed = there.removed;
}
