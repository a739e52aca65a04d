/* runtime/engine/disk.c - see disk.h. */
#include "runtime/engine/disk.h"

#include "base/buf.h"
#include "base/version.h"
#include "kernels/ops.h"
#include "runtime/model/kv_store.h"
#include "runtime/model/part.h"

#include <cjson/cJSON.h>
#include <nettle/sha2.h>
#include <stdio.h>
#include <stdlib.h>

enum {
    STEP_BYTES = 16 << 20, /* into the cache between two steps */
    PACE_ROWS = 1 << 14,   /* what was computed before counts half after so many */
    DEPTH_NS = 1000        /* a block counts as used so much earlier than the one before it */
};

typedef struct look look;
struct look {
    look *next;
    seq *s;
    kvd_look *reading;
    kv_link root, *links; /* [n] */
    kvd_block *blocks;    /* [n] */
    bool failed;          /* no room, or blocks went: the rest is computed */
};

/* Places that copies of a device are not done with. */
typedef struct {
    uint8_t **put; /* [n_put] that leave the cache */
    kvd_piece *back;
    int n_put, n_back, cap_put, cap_back;
} flights;

struct disk {
    kv_cache *kv;
    flights due;
    kv_disk *files;
    int block_size;
    size_t limit, part_bytes[KV_PARTS];
    look *looks;
    uint64_t tokens;
    double rows, seconds;
    eng_disk o;
    void (*wake)(void *user);
    void *wake_user;
};

/* ---- what blocks depend on ---- */

/* Prompts choose what is hashed, and a file is known by it alone: so no XXH3. */
void disk_hash(uint64_t out[2], const void *data, size_t n)
{
    struct sha256_ctx c;
    uint8_t digest[16];
    sha256_init(&c);
    sha256_update(&c, n, data);
    sha256_digest(&c, sizeof digest, digest);
    memcpy(out, digest, sizeof digest);
}

/* K and V of a device are summed in its own orders; without --batch-invariant in those of its steps, too, as
 * they are in its memory. */
static void say_device(lq_buf *b, const model_on *on)
{
    if (!on) return;
    lq_buf_printf(b, "on %s %d.%d, %d multiprocessors, %d of them, from layer %lld%s%s%s%s\n",
                  on->d.name, on->d.cc / 10, on->d.cc % 10, on->d.n_sm, on->ranks,
                  (long long)on->first, on->d.batch_invariant ? ", batch-invariant" : "",
                  on->int8 ? ", int8" : "", on->rows ? ", rows" : "", on->d.wide ? ", wide" : "");
}

lq_status disk_identity(uint64_t of[2], const eng_opts *o, const model *m, lq_err *err)
{
    lq_buf b = { 0 };
    char weights[33];
    cJSON *config = arch_config_json(m->cfg); /* with its rope, as it is run */
    char *text = config ? cJSON_PrintUnformatted(config) : NULL;
    lq_hash_hex(weights, &o->disk.weights);
    lq_buf_printf(&b, "llmq %s kernels %s weights %s activations %d kv %s block %d\n", LLMQ_VERSION,
                  k_name(), weights, (int)o->acts, kv_types_text(o->kv), o->block_size);
    say_device(&b, m->on);
    if (model_processes(m) > 1) lq_buf_printf(&b, "over %d processes\n", model_processes(m));
    if (text) lq_buf_puts(&b, text);
    const lq_status s = b.oom || !text ? lq_fail(err, LQ_ENOMEM, "out of memory") : LQ_OK;
    if (!s) disk_hash(of, b.p, b.n);
    lq_buf_free(&b);
    free(text);
    cJSON_Delete(config);
    return s;
}

/* ---- copies of devices ---- */

static dev *on_of(const disk *d) { return kv_options(d->kv)->on; }

/* For one more; false: no memory. */
static bool grow(void *list, int n, int *cap, size_t each)
{
    void **at = list;
    if (n < *cap) return true;
    void *more = realloc(*at, (size_t)(2 * *cap + 16) * each);
    if (!more) return false;
    *at = more;
    *cap = 2 * *cap + 16;
    return true;
}

static void finish(disk *d, bool ok)
{
    flights *f = &d->due;
    for (int i = 0; i < f->n_put; i++)
        if (ok)
            kvd_put_end(d->files, f->put[i]);
        else
            kvd_put_drop(d->files, f->put[i]);
    for (int i = 0; i < f->n_back; i++)
        kvd_give_back(d->files, &f->back[i]);
    f->n_put = f->n_back = 0;
}

/* Waits for all of them; a failure stays the device's, for the next step to say. */
static void settle(disk *d)
{
    bool ok = true;
    for (dev *on = on_of(d); on; on = on->peer) {
        lq_err err;
        on->ops->bind(on);
        const lq_status s = on->ops->sync(on, &err);
        if (!s) continue;
        on->bad = s;
        on->why = err;
        ok = false;
    }
    finish(d, ok);
}

void disk_settled(disk *d, bool ok)
{
    if (ok)
        finish(d, true);
    else
        settle(d);
}

/* A block's part to its place in the queue. */
static void take_out(disk *d, int32_t b, kv_part part, uint8_t *to)
{
    flights *f = &d->due;
    const bool room = !on_of(d) || grow(&f->put, f->n_put, &f->cap_put, sizeof *f->put);
    const bool read = room && kv_block_read(d->kv, b, part, to);
    if (!read)
        kvd_put_drop(d->files, to);
    else if (on_of(d))
        f->put[f->n_put++] = to;
    else
        kvd_put_end(d->files, to);
}

/* A place that the cache has read, or will have. */
static void give_back(disk *d, const kvd_piece *p)
{
    flights *f = &d->due;
    if (on_of(d) && grow(&f->back, f->n_back, &f->cap_back, sizeof *f->back)) {
        f->back[f->n_back++] = *p;
        return;
    }
    if (on_of(d)) settle(d);
    kvd_give_back(d->files, p);
}

/* ---- what leaves the cache ---- */

static void hand_over(disk *d, int32_t b, unsigned parts, int64_t used, bool wait)
{
    const kv_findable f = kv_block_find(d->kv, b);
    for (int p = 0; p < KV_PARTS; p++) {
        if (!(parts >> p & 1) || !d->part_bytes[p]) continue;
        /* Places that copies have are not waited for. */
        uint8_t *to = kvd_put(d->files, f.hash, (kv_part)p, f.tokens, used, wait && !d->due.n_put);
        if (!to && wait && d->due.n_put) {
            settle(d);
            to = kvd_put(d->files, f.hash, (kv_part)p, f.tokens, used, true);
        }
        if (to) take_out(d, b, (kv_part)p, to);
    }
}

static void on_leave(void *user, int32_t b, unsigned parts)
{
    disk *d = user;
    hand_over(d, b, parts, kvs_now() - kv_block_find(d->kv, b).depth * DEPTH_NS, false);
}

/* What was used last first, and that counts as used last, so that what does not fit is the oldest. */
static void save_all(disk *d)
{
    size_t bytes = 0;
    int64_t used = kvs_now();
    for (int32_t b = -1; (b = kv_cached_next(d->kv, b, false)) >= 0; used -= DEPTH_NS) {
        const unsigned parts = kv_block_find(d->kv, b).parts;
        for (int p = 0; p < KV_PARTS; p++)
            if (parts >> p & 1 && d->part_bytes[p]) bytes += kvs_least(KVF_HEAD + d->part_bytes[p]);
        if (bytes > d->limit || kvd_failed(d->files)) return;
        hand_over(d, b, parts, used, true);
    }
}

/* ---- what prompts begin with ---- */

static const int32_t *ids_of(const seq *s) { return s->ids ? s->ids : s->r.prompt; }

/* Tokens that s would find in the cache now. These blocks go last from here on, the first of them last of
 * all. */
static int64_t usable(disk *d, const seq *s)
{
    kv_seq probe = { .adapter = s->kv.adapter };
    const int64_t n = kv_match_prefix(d->kv, &probe, ids_of(s), s->n_ids, s->r.salt);
    kv_seq_free(d->kv, &probe);
    return n;
}

static void look_free(look *l)
{
    free(l->links);
    free(l->blocks);
    free(l);
}

static look *look_make(disk *d, seq *s, int64_t n)
{
    look *l = calloc(1, sizeof *l);
    if (!l) return NULL;
    l->s = s;
    l->links = calloc((size_t)n, sizeof *l->links);
    l->blocks = calloc((size_t)n, sizeof *l->blocks);
    if (!l->links || !l->blocks) {
        look_free(l);
        return NULL;
    }
    l->root = kv_link_root(d->kv, s->kv.adapter, s->r.salt);
    const kv_link *at = &l->root;
    for (int64_t i = 0; i < n; at = &l->links[i++]) {
        l->blocks[i].have = kv_link_next(d->kv, &l->links[i], at, ids_of(s) + i * d->block_size);
        memcpy(l->blocks[i].key, l->links[i].hash, sizeof l->blocks[i].key);
    }
    return l;
}

bool disk_look(void *user, seq *s)
{
    disk *d = user;
    const int64_t n = (s->n_ids - 1) / d->block_size;
    if (s->looked || !n) return false;
    if (lq_ceil_div(s->n_ids, d->block_size) > kv_spare_blocks(d->kv)) return false;
    s->looked = true;
    const int64_t found = usable(d, s) / d->block_size;
    look *l = found < n ? look_make(d, s, n) : NULL;
    if (!l) return false;
    l->reading = kvd_look_begin(d->files, l->blocks, ids_of(s), n, found, disk_pace(d), l);
    if (!l->reading) {
        look_free(l);
        return false;
    }
    l->next = d->looks;
    d->looks = l;
    s->reading = true;
    return true;
}

static void end_look(disk *d, look **at)
{
    look *l = *at;
    *at = l->next;
    kvd_look_end(d->files, l->reading);
    l->s->reading = false;
    look_free(l);
}

static void put_piece(disk *d, const kvd_piece *p)
{
    look *l = p->user;
    if (l->failed) return;
    const kv_link *at = p->i ? &l->links[p->i - 1] : &l->root;
    l->failed = !kv_link_put(d->kv, &l->links[p->i], at, ids_of(l->s) + p->i * d->block_size, p->i,
                             p->part, p->data);
    if (!l->failed && p->part == KV_ROWS) d->tokens += (uint64_t)d->block_size;
}

bool disk_step(disk *d)
{
    size_t bytes = 0;
    kvd_piece p;
    while (bytes < STEP_BYTES && kvd_take(d->files, &p)) {
        put_piece(d, &p);
        give_back(d, &p);
        bytes += d->part_bytes[p.part] + 1;
    }
    if (bytes && on_of(d)) settle(d);
    for (look **at = &d->looks; *at;) {
        look *l = *at;
        if (!l->failed && !kvd_look_over(d->files, l->reading)) {
            at = &l->next;
            continue;
        }
        (void)usable(d, l->s); /* in the order in which they are to go */
        end_look(d, at);
    }
    return bytes >= STEP_BYTES;
}

int64_t disk_looks(const disk *d)
{
    int64_t n = 0;
    for (const look *l = d ? d->looks : NULL; l; l = l->next)
        n++;
    return n;
}

void disk_forget(disk *d, seq *s)
{
    for (look **at = d ? &d->looks : NULL; at && *at; at = &(*at)->next)
        if ((*at)->s == s) {
            end_look(d, at);
            return;
        }
}

void disk_computed(disk *d, int64_t rows, double seconds)
{
    d->rows += (double)rows;
    d->seconds += seconds;
    if (d->rows < PACE_ROWS) return;
    d->rows /= 2;
    d->seconds /= 2;
}

uint64_t disk_tokens(const disk *d) { return d->tokens; }
double disk_pace(const disk *d) { return d->rows > 0 ? d->seconds / d->rows : 0; }
void disk_files(const disk *d, kvd_stats *s) { kvd_stats_get(d->files, s); }

/* ---- opening and closing ---- */

static int64_t near_from(const void *kv, int64_t n) { return kv_near_from(kv, n); }

static void on_wake(void *user)
{
    const disk *d = user;
    d->wake(d->wake_user);
}

static void on_note(void *user, const char *text)
{
    const disk *d = user;
    if (d->o.note) d->o.note(text);
}

static void *pinned(void *user, size_t n)
{
    const disk *d = user;
    dev *on = on_of(d);
    on->ops->bind(on);
    void *p = on->ops->alloc_host(on, n);
    if (!p) on->ops->sync(on, NULL); /* kvd_open says it */
    return p;
}

static void unpin(void *user, void *p)
{
    const disk *d = user;
    dev *on = on_of(d);
    on->ops->free_host(on, p);
}

lq_status disk_open(disk **out, const eng_opts *o, kv_cache *kv, void (*wake)(void *user),
                    void *user, lq_err *err)
{
    const kv_opts *k = kv_options(kv);
    *out = NULL;
    if (!k->prefix_cache)
        return lq_fail(err, LQ_EUNSUPPORTED,
                       "--kv-cache-dir: expected a prefix cache, found none: the option or a model "
                       "whose tokens see both ways");
    disk *d = calloc(1, sizeof *d);
    if (!d) return lq_fail(err, LQ_ENOMEM, "KV cache on disk: out of memory");
    d->kv = kv;
    d->o = o->disk;
    d->block_size = k->block_size;
    d->limit = o->disk.bytes;
    d->wake = wake;
    d->wake_user = user;
    kvd_opts f = { .dir = o->disk.dir,
                   .bytes = o->disk.bytes,
                   .of = { k->of[0], k->of[1] },
                   .block_size = k->block_size,
                   .near_from = near_from,
                   .near_user = kv,
                   .alloc = k->on ? pinned : NULL,
                   .free = k->on ? unpin : NULL,
                   .wake = on_wake,
                   .note = on_note,
                   .user = d };
    for (int p = 0; p < KV_PARTS; p++)
        f.part_bytes[p] = d->part_bytes[p] = kv_part_bytes(kv, (kv_part)p);
    const lq_status s = kvd_open(&d->files, &f, err);
    if (s) {
        free(d);
        return lq_wrap(err, s, "--kv-cache-dir");
    }
    kv_on_leave(kv, on_leave, d);
    *out = d;
    return LQ_OK;
}

void disk_until(disk *d, double until)
{
    if (d) kvd_until(d->files, until);
}

void disk_close(disk *d)
{
    if (!d) return;
    while (d->looks)
        end_look(d, &d->looks);
    save_all(d);
    settle(d);
    const uint64_t late = kvd_close(d->files);
    free(d->due.put);
    free(d->due.back);
    char text[128];
    snprintf(text, sizeof text, "%llu parts of blocks in the time that there was",
             (unsigned long long)late);
    if (late) on_note(d, text);
    free(d);
}
