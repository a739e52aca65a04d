/* runtime/engine/disk.c - see disk.h. */
#include "runtime/engine/disk.h"

#include "base/buf.h"
#include "base/version.h"
#include "kernels/ops.h"
#include "runtime/model/kv_store.h"

#include <cjson/cJSON.h>
#include <nettle/sha2.h>
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

struct disk {
    kv_cache *kv;
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

lq_status disk_identity(uint64_t of[2], const eng_opts *o, const arch_config *c, lq_err *err)
{
    lq_buf b = { 0 };
    char weights[33];
    cJSON *config = arch_config_json(c); /* with its rope, as it is run */
    char *text = config ? cJSON_PrintUnformatted(config) : NULL;
    lq_hash_hex(weights, &o->disk.weights);
    lq_buf_printf(&b, "llmq %s kernels %s weights %s activations %d kv %s block %d\n", LLMQ_VERSION,
                  k_name(), weights, (int)o->acts, kv_types_text(o->kv), o->block_size);
    if (text) lq_buf_puts(&b, text);
    const lq_status s = b.oom || !text ? lq_fail(err, LQ_ENOMEM, "out of memory") : LQ_OK;
    if (!s) disk_hash(of, b.p, b.n);
    lq_buf_free(&b);
    free(text);
    cJSON_Delete(config);
    return s;
}

/* ---- what leaves the cache ---- */

static void hand_over(disk *d, int32_t b, unsigned parts, int64_t used, bool wait)
{
    const kv_findable f = kv_block_find(d->kv, b);
    for (int p = 0; p < KV_PARTS; p++) {
        if (!(parts >> p & 1) || !d->part_bytes[p]) continue;
        uint8_t *to = kvd_put(d->files, f.hash, (kv_part)p, f.tokens, used, wait);
        if (!to) continue;
        kv_block_read(d->kv, b, (kv_part)p, to);
        kvd_put_end(d->files, to);
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
        kvd_give_back(d->files, &p);
        bytes += d->part_bytes[p.part] + 1;
    }
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

lq_status disk_open(disk **out, const eng_opts *o, kv_cache *kv, void (*wake)(void *user),
                    void *user, lq_err *err)
{
    const kv_opts *k = kv_options(kv);
    *out = NULL;
    if (k->on)
        return lq_fail(err, LQ_EUNSUPPORTED,
                       "--kv-cache-dir: not on cuda yet: expected a KV cache "
                       "in the host's memory");
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

void disk_close(disk *d)
{
    if (!d) return;
    while (d->looks)
        end_look(d, &d->looks);
    save_all(d);
    kvd_close(d->files);
    free(d);
}
