/* runtime/forward_dev.c - the steps of a layer on a device (kernels/dev.h): all are queued, end
 * waits. Layers that the device has no room for come first and are the CPU's: x goes over once.
 *
 * What a step needs to know beside the weights (places in the cache, angles, ids, block tables, the
 * plan of attention) is written into one buffer on the host and goes up by one copy; logits and the
 * rows behind them come back. Nothing is allocated after fwd_dev_open. */
#include "runtime/forward_impl.h"

#include <assert.h>
#include <stdlib.h>

enum {
    MAX_MEM = 64,       /* pieces of device memory: more than there are buffers */
    MAX_PINNED = 5,     /* of the host's: the staging buffer, x, logits, rows behind them, draws */
    ALIGN = 256,        /* of a piece of the staging buffer */
    LAUNCH_SLOTS = 1024 /* splits of attention in one launch, unless one chunk has more: its scratch
                           is a row of every head for each, and these fill any device; of those of
                           more rows less */
};

/* Consecutive chunks of a plan that share a launch; slots count from 0 in each. */
typedef struct {
    int64_t chunk, n_chunks, slot, n_slots;
} launch;

/* Attention of layers with one window, over all rows or the last layer's. */
typedef struct {
    const dev_attn_chunk *chunks; /* device */
    const int32_t *chunk_of;
    launch *launches; /* [max_chunks] */
    int64_t n_launches;
} plan;

struct fwd_dev_ctx {
    dev *d;
    const model_on *on;       /* whose weights */
    const fwd_dev_ctx *first; /* of several devices; whose rows on the host are these; NULL: own */
    fwd_rows host; /* places; x, h, e where rows are looked up on the host; all where layers are */
    lq_arena arena, scratch;
    void *mem[MAX_MEM]; /* on the device */
    void *pinned[MAX_PINNED];
    int n_mem, n_pinned;
    uint8_t *stage, *stage_on; /* the buffer here (pinned) and there */
    size_t stage_bytes, staged;
    int64_t max_chunks, max_slots, launch_slots[DEV_ATTN_N];
    dev_attn_how few, many; /* attention of up to DEV_ATTN_FEW rows of a sequence, and of more */
    int block_size;
    dev_attn_chunk *chunks;       /* [max_chunks] */
    int32_t *chunk_of;            /* [max_slots] */
    int32_t *table_at;            /* [max_seqs] where each sequence's blocks begin in tables */
    int32_t *words;               /* [max_rows] */
    plan plans[DEV_ATTN_N][2][2]; /* [how][layers with a window][the last layer] */
    const int32_t *tables, *picked, *ids;
    bool steady;     /* the step's work is a matter of its shape: it may be captured */
    fwd_shape shape; /* of such a one */
    fwd_graphs graphs;
    void *attn_scratch, *mm_scratch;
    int32_t *first_of, *busy; /* [experts + 1], [experts] on the device: see dev_place_args */
    const dev_draw *draws;    /* the step's, on the device; what comes of them there and here */
    dev_drawn *drawn_on, *drawn;
};

/* ---- memory ---- */

static void *take_device(void *from, size_t bytes)
{
    fwd_dev_ctx *f = from;
    assert(f->n_mem < MAX_MEM);
    void *p = f->d->ops->alloc(f->d, bytes);
    if (p) f->mem[f->n_mem++] = p;
    return p;
}

/* What goes to the device and comes back lies in pinned memory: copies wait for nothing, and the
 * one wait at the end of a step is the only one. */
static void *take_pinned(fwd_dev_ctx *f, size_t bytes)
{
    assert(f->n_pinned < MAX_PINNED);
    void *p = f->d->ops->alloc_host(f->d, bytes);
    if (p) f->pinned[f->n_pinned++] = p;
    return p;
}

static void *take_host(void *from, size_t bytes)
{
    fwd_dev_ctx *f = from;
    return lq_push(&f->arena, bytes);
}

/* n bytes that go up with this step: where they will be. */
static void *stage(fwd_dev_ctx *f, const void *host, size_t n)
{
    const size_t at = f->staged;
    assert(at + n <= f->stage_bytes);
    if (n) memcpy(f->stage + at, host, n);
    f->staged = lq_round_up(at + n, ALIGN);
    return f->stage_on + at;
}

static size_t piece(int64_t n, size_t size) { return lq_round_up((size_t)n * size, ALIGN); }

static int64_t longest(const kv_opts *k, const fwd_opts *o)
{
    const int64_t held = k->n_blocks * k->block_size;
    return o->max_len && o->max_len < held ? o->max_len : held;
}

static int64_t mask_words(int64_t vocab) { return lq_ceil_div(vocab, 32); }

/* The most that a step can stage. */
static void size_stage(fwd_dev_ctx *f, const arch_config *c, const kv_opts *k, const fwd_opts *o)
{
    const int64_t len = longest(k, o), rows = dev_attn_rows(DEV_ATTN_EXACT, c->heads, c->kv_heads);
    int64_t splits[DEV_ATTN_N];
    for (dev_attn_how w = 0; w < DEV_ATTN_N; w++) /* a chunk of several rows may lie over an edge */
        splits[w] = len / dev_attn_split(w) + 2;
    const int64_t chunks = lq_ceil_div(o->max_rows, rows) + o->max_seqs;
    f->max_chunks = chunks < o->max_rows ? chunks : o->max_rows;
    f->max_slots = f->max_chunks * splits[DEV_ATTN_EXACT];
    for (dev_attn_how w = 0; w < DEV_ATTN_N; w++) {
        const int64_t n = LAUNCH_SLOTS * rows / dev_attn_rows(w, c->heads, c->kv_heads);
        f->launch_slots[w] = splits[w] > n ? splits[w] : n;
        if (f->launch_slots[w] > f->max_slots) f->launch_slots[w] = f->max_slots;
    }
    f->stage_bytes = 4 * piece(o->max_rows, sizeof(int32_t)) + /* ids, blocks, slots, picked */
                     piece(o->max_logits, sizeof(dev_draw)) +
                     (size_t)o->max_seqs * piece(mask_words(c->vocab), sizeof(uint32_t)) +
                     piece(fwd_draw_edits(o, c->vocab), sizeof(dev_edit)) +
                     (size_t)o->max_logits * ALIGN + /* a draw's edits are a piece */
                     (size_t)o->max_seqs * piece(lq_ceil_div(len, k->block_size), sizeof(int32_t)) +
                     /* each sequence is in the plans of one kind of attention */
                     4 * (piece(f->max_chunks, sizeof(dev_attn_chunk)) +
                          piece(f->max_slots, sizeof(int32_t)) + 2 * ALIGN);
    for (arch_rope_use u = ROPE_MAIN; u <= ROPE_LOCAL; u++)
        f->stage_bytes += 2 * piece(o->max_rows * fwd_angles(c, u), sizeof(float));
}

static dev_weight weight_of(const mm_weight *w)
{
    return (dev_weight){ w->t, tiles_shape(&w->t.scheme, w->t.N, w->t.K) };
}

static void widen(size_t *most, const dev *d, const dev_weight *w, int64_t M)
{
    const size_t n = d->ops->mm_scratch(w, M);
    if (n > *most) *most = n;
}

static void widen_linear(size_t *most, const dev *d, const model_linear *l, int64_t M)
{
    if (!l->present) return;
    const dev_weight w = weight_of(&l->w);
    widen(most, d, &w, M);
}

static size_t products_scratch(const dev *d, const model *w, const fwd_opts *o)
{
    size_t n = 0;
    widen_linear(&n, d, &w->head, o->max_logits);
    widen_linear(&n, d, &w->proj_out, o->max_logits);
    for (int64_t i = 0; i < w->cfg->layers; i++) {
        const model_layer *l = &w->layers[i];
        for (int r = 0; r < ARCH_N_ROLES; r++)
            widen_linear(&n, d, &l->lin[r], o->max_rows);
        for (int r = 0; r < ARCH_N_EXPERT_ROLES; r++)
            for (const model_experts *e = l->sets[r]; e; e = e->next)
                widen(&n, d, &e->w, o->max_rows * w->cfg->experts_used);
    }
    return n;
}

static dev_attn_args attn_of(const fwd_rows *r, const fwd_kv *kv)
{
    const arch_config *c = r->c;
    return (dev_attn_args){ .q = r->q,
                            .out = r->a,
                            .k = kv->k,
                            .v = kv->v,
                            .alibi = c->w.pos == POS_ALIBI ? r->slopes : NULL,
                            .ldq = c->heads * c->head_dim,
                            .ldo = c->heads * c->v_dim,
                            .H = c->heads,
                            .Hkv = c->kv_heads,
                            .D = c->head_dim,
                            .Dv = c->v_dim,
                            .block_stride = kv->block_stride,
                            .block_size = kv->block_size,
                            .dtype = kv->dtype,
                            .scale = (float)c->attn_scale,
                            .softcap = (float)c->attn_softcap,
                            .alibi_scaled = c->w.alibi_scaled,
                            .alibi_bf16 = c->w.alibi_bf16 };
}

/* ---- opening ---- */

lq_status fwd_check_device(const arch_config *c, lq_err *err)
{
    const char *what =
        c->head_dim > DEV_ATTN_WIDTH || c->head_dim % 4 || c->v_dim % 4 || c->v_dim > DEV_ATTN_WIDTH
            ? "heads of this size"
        : c->experts > DEV_EXPERTS ? "so many experts"
                                   : NULL;
    return what ? lq_fail(err, LQ_EUNSUPPORTED, "not on cuda yet: %s (%s)", what, c->row->arch)
                : LQ_OK;
}

size_t fwd_dev_bytes(const arch_config *c, const kv_opts *k, const fwd_opts *o)
{
    enum { GRAIN = 512 }; /* of an allocation */
    const kv_opts any = { .n_blocks = lq_ceil_div(o->max_len, k->block_size),
                          .block_size = k->block_size };
    const int64_t spread = c->experts_used > 1 ? c->experts_used : 1;
    const int64_t rows =
        o->max_rows * spread > o->max_logits ? o->max_rows * spread : o->max_logits;
    fwd_dev_ctx f = { 0 };
    int64_t wide = 0;
    size_t attn = 0;
    size_stage(&f, c, &any, o);
    for (dev_attn_how w = 0; w < DEV_ATTN_N; w++) {
        const size_t n = dev_attn_scratch(w, f.launch_slots[w], c->heads, c->kv_heads, c->v_dim);
        if (n > attn) attn = n;
    }
    for (arch_role r = 0; r < ARCH_N_ROLES; r++) {
        int64_t N, K;
        arch_role_shape(c, r, &N, &K);
        if (arch_role_linear(r) && K > wide) wide = K;
    }
    /* A product's inputs in three pieces at most: as tiles take them, rounded, of outliers. */
    const size_t parts = /* of logits, and all of them beside each other */
        o->ranks > 1 ? (size_t)((o->ranks + 1) * o->max_logits * fwd_ranks_width(c, o->ranks)) : 0;
    const size_t products = 3 * (size_t)rows * (size_t)(wide + TILE_K) * sizeof(float);
    return f.stage_bytes + fwd_slopes_bytes(c) + attn + products + parts * sizeof(float) +
           (size_t)(o->max_rows * c->hidden + o->max_logits * c->vocab + 2 * (c->experts + 1)) *
               sizeof(float) +
           (size_t)o->max_logits * sizeof(dev_drawn) + fwd_rows_bytes(c, o->max_rows, FWD_HELD) +
           (size_t)MAX_MEM * GRAIN;
}

static bool open_host(fwd_dev_ctx *f, fwd_rows *r, const arch_config *c, const fwd_opts *o)
{
    const size_t floats = (size_t)o->max_rows * sizeof(float);
    f->chunks = take_host(f, (size_t)f->max_chunks * sizeof *f->chunks);
    f->chunk_of = take_host(f, (size_t)f->max_slots * sizeof *f->chunk_of);
    f->table_at = take_host(f, (size_t)o->max_seqs * sizeof *f->table_at);
    f->words = take_host(f, (size_t)o->max_rows * sizeof *f->words);
    f->stage = take_pinned(f, f->stage_bytes);
    const bool layers = f->on->first > 0;
    bool ok = f->chunks && f->chunk_of && f->table_at && f->words && f->stage &&
              (f->first ? true
               : layers ? fwd_rows_push(&f->host, c, o->max_rows, &f->arena)
                        : fwd_rows_cut(&f->host, c, o->max_rows, FWD_PLACED, take_host, f));
    for (int i = 0; i < 4 * DEV_ATTN_N && ok; i++)
        ok = (f->plans[i / 4][i / 2 % 2][i % 2].launches =
                  take_host(f, (size_t)f->max_chunks * sizeof(launch)));
    if (f->first) f->host = f->first->host;
    if (!ok || f->first) return ok;
    f->host.ops = &fwd_cpu;
    f->host.p = r->p;
    f->host.acts = r->acts;
    f->host.scratch = &f->scratch;
    if (f->on->w.embed.N) return true;
    const int threads = pool_threads(r->p);
    ok = (f->host.x = take_pinned(f, floats * (size_t)c->hidden)) &&
         (layers || ((f->host.h = take_host(f, floats * (size_t)c->hidden)) &&
                     (f->host.e = take_host(f, floats * (size_t)c->embed_dim))));
    return ok && !lq_arena_init(&f->scratch,
                                layers ? fwd_rows_scratch(c, o->max_rows, threads)
                                       : mm_scratch_bytes(o->max_rows, c->embed_dim, 1, threads),
                                NULL);
}

static bool open_buffers(fwd_dev_ctx *f, fwd_rows *r, const arch_config *c, const fwd_opts *o)
{
    dev_attn_args a = attn_of(r, &(fwd_kv){ 0 });
    size_t attn = 0;
    for (a.how = 0; a.how < DEV_ATTN_N; a.how++) {
        a.n_slots = f->launch_slots[a.how];
        const size_t n = f->d->ops->attn_scratch(&a);
        if (n > attn && (a.how == f->few || a.how == f->many)) attn = n;
    }
    f->stage_on = take_device(f, f->stage_bytes);
    f->attn_scratch = take_device(f, attn);
    f->mm_scratch = take_device(f, products_scratch(f->d, &f->on->w, o));
    r->x = take_device(f, (size_t)(o->max_rows * c->hidden) * sizeof(float));
    f->first_of = take_device(f, (size_t)(c->experts + 1) * sizeof *f->first_of);
    f->busy = take_device(f, (size_t)(c->experts + 1) * sizeof *f->busy);
    return f->stage_on && f->attn_scratch && f->mm_scratch && r->x && f->first_of && f->busy &&
           fwd_rows_cut(r, c, o->max_rows, FWD_HELD, take_device, f);
}

/* Where logits and draws come out. */
static bool open_ends(fwd_dev_ctx *f, fwd_dev_ends *ends, const arch_config *c, const fwd_opts *o)
{
    const size_t logits = (size_t)(o->max_logits * c->vocab) * sizeof(float);
    ends->raw = take_device(f, logits);
    ends->logits = take_pinned(f, logits);
    ends->hidden = take_pinned(f, (size_t)(o->max_logits * c->hidden) * sizeof(float));
    f->drawn_on = take_device(f, (size_t)o->max_logits * sizeof *f->drawn_on);
    f->drawn = ends->drawn = take_pinned(f, (size_t)o->max_logits * sizeof *f->drawn);
    return ends->raw && ends->logits && ends->hidden && f->drawn_on && f->drawn;
}

/* Those of its own heads. */
static void put_slopes(fwd_dev_ctx *f, const fwd_rows *r, const arch_config *whole)
{
    const size_t n = fwd_slopes_bytes(r->c);
    if (n == 0) return;
    fwd_slopes(whole, (float *)(void *)f->stage); /* the buffer is large enough for it: see stage */
    f->d->ops->upload(f->d, r->slopes, f->stage + (size_t)f->on->rank * n, n);
}

/* The pass of one device; ends: of the first rank. */
static lq_status open_pass(fwd_dev_ctx **out, fwd_rows *r, fwd_dev_ends *ends, model_on *on,
                           const fwd_dev_ctx *first, const model *m, const kv_cache *kv,
                           const fwd_opts *o, lq_err *err)
{
    const arch_config *c = on->w.cfg;
    const kv_opts *k = kv_options(kv);
    if (k->dtype == KV_I4 && (c->head_dim % 8 || c->v_dim % 8))
        return lq_fail(err, LQ_EUNSUPPORTED, "not on cuda yet: int4 keys of heads of %lld",
                       (long long)c->head_dim);
    fwd_dev_ctx *f = *out = calloc(1, sizeof *f);
    if (!f) return lq_fail(err, LQ_ENOMEM, "out of memory");
    f->d = &on->d;
    f->on = on;
    f->first = first;
    if (ends) ends->host = &f->host;
    r->ops = &fwd_dev;
    r->self = f;
    r->c = c;
    f->block_size = k->block_size;
    f->few = dev_attn_choose(o->acts, k->dtype, c->head_dim, c->v_dim, DEV_ATTN_FEW);
    f->many = dev_attn_choose(o->acts, k->dtype, c->head_dim, c->v_dim, DEV_ATTN_FEW + 1);
    size_stage(f, c, k, o);
    if (f->stage_bytes < fwd_slopes_bytes(m->cfg)) f->stage_bytes = fwd_slopes_bytes(m->cfg);
    lq_status s = lq_arena_init(&f->arena, 0, err);
    if (!s && !open_host(f, r, m->cfg, o)) s = lq_fail(err, LQ_ENOMEM, "out of memory");
    if (!s && !(open_buffers(f, r, c, o) && (!ends || open_ends(f, ends, c, o))))
        s = LQ_ENOMEM; /* sync says it */
    if (r->acts == MM_I8 && !on->int8) r->acts = MM_BF16;
    if (!s) put_slopes(f, r, m->cfg);
    lq_status queued = f->d->ops->sync(f->d, err);
    return queued ? queued : s;
}

lq_status fwd_dev_open(fwd_dev_ctx **out, fwd_rows *r, fwd_dev_ends *ends, const model *m,
                       const kv_cache *kv, const fwd_opts *o, lq_err *err)
{
    assert(kv_options(kv)->on == model_dev(m) && kv_options(kv)->first == m->on->first);
    return open_pass(out, r, ends, m->on, NULL, m, kv, o, err);
}

lq_status fwd_dev_open_rank(fwd_dev_ctx **out, fwd_rows *r, model_on *on, fwd_dev_ctx *first,
                            const model *m, const kv_cache *kv, const fwd_opts *o, lq_err *err)
{
    return open_pass(out, r, NULL, on, first, m, kv, o, err);
}

void fwd_dev_close(fwd_dev_ctx *f)
{
    if (!f) return;
    fwd_graphs_close(&f->graphs, f->d);
    while (f->n_mem)
        f->d->ops->free(f->d, f->mem[--f->n_mem]);
    while (f->n_pinned)
        f->d->ops->free_host(f->d, f->pinned[--f->n_pinned]);
    lq_arena_free(&f->arena);
    lq_arena_free(&f->scratch);
    free(f);
}

/* ---- the beginning and the end of a step ---- */

/* Slots of no chunk behind the others, up to a power of two, so that a context that grows has few
 * shapes. Steps of several launches are not captured: what those do takes longer than launching. */
static void pad_slots(fwd_dev_ctx *f, launch *at, dev_attn_how how, bool several)
{
    int64_t n = 1;
    f->steady = !several;
    while (n < at->n_slots)
        n *= 2;
    if (n > f->launch_slots[how]) n = f->launch_slots[how];
    while (f->steady && at->n_slots && at->n_slots < n)
        f->chunk_of[at->n_slots++] = -1;
}

/* The chunks of those of these sequences that are for `how`, in launches of at most launch_slots.
 */
static void stage_plan(fwd_dev_ctx *f, plan *p, dev_attn_how how, const arch_config *c,
                       const attn_seq *seqs, int n, int64_t window)
{
    const int64_t rows = dev_attn_rows(how, c->heads, c->kv_heads);
    launch at = { 0 };
    p->n_launches = 0;
    for (int i = 0; i < n; i++) {
        if (how != (seqs[i].n_rows > DEV_ATTN_FEW ? f->many : f->few)) continue;
        for (int64_t row = 0; row < seqs[i].n_rows; row += rows) {
            const int64_t left = seqs[i].n_rows - row;
            const attn_seq one = { seqs[i].row0 + row, left < rows ? left : rows,
                                   seqs[i].pos0 + row, NULL };
            int64_t chunks = 0, slots = 0;
            dev_attn_plan(how, NULL, &chunks, NULL, &slots, &one, 0, c->heads, c->kv_heads, window);
            if (at.n_slots + slots > f->launch_slots[how]) {
                p->launches[p->n_launches++] = at;
                at = (launch){ .chunk = at.chunk + at.n_chunks, .slot = at.slot + at.n_slots };
            }
            assert(at.chunk + at.n_chunks < f->max_chunks &&
                   at.slot + at.n_slots + slots <= f->max_slots);
            dev_attn_plan(how, f->chunks + at.chunk, &at.n_chunks, f->chunk_of + at.slot,
                          &at.n_slots, &one, f->table_at[i], c->heads, c->kv_heads, window);
        }
    }
    if (f->steady) pad_slots(f, &at, how, p->n_launches > 0);
    if (at.n_slots) p->launches[p->n_launches++] = at;
    p->chunks = stage(f, f->chunks, (size_t)(at.chunk + at.n_chunks) * sizeof *f->chunks);
    p->chunk_of = stage(f, f->chunk_of, (size_t)(at.slot + at.n_slots) * sizeof *f->chunk_of);
}

static size_t table_bytes(const fwd_dev_ctx *f, const attn_seq *s)
{
    return (size_t)lq_ceil_div(s->pos0 + s->n_rows, f->block_size) * sizeof *s->table;
}

/* Where each sequence's table will be. */
static void place_tables(fwd_dev_ctx *f, const fwd_batch *b)
{
    size_t at = 0;
    for (int i = 0; i < b->n_seqs; i++) {
        f->table_at[i] = (int32_t)(at / sizeof *f->tables);
        at += lq_round_up(table_bytes(f, &b->seqs[i]), ALIGN);
    }
}

static void stage_tables(fwd_dev_ctx *f, const fwd_batch *b)
{
    f->tables = (const int32_t *)(const void *)(f->stage_on + f->staged);
    for (int i = 0; i < b->n_seqs; i++)
        stage(f, b->seqs[i].table, table_bytes(f, &b->seqs[i]));
}

/* What fwd_place has written, for the rows of r. */
static void stage_places(fwd_dev_ctx *f, fwd_rows *r)
{
    const size_t R = (size_t)r->R;
    r->row_block = stage(f, f->host.row_block, R * sizeof *r->row_block);
    r->row_slot = stage(f, f->host.row_slot, R * sizeof *r->row_slot);
    for (arch_rope_use u = ROPE_MAIN; u <= ROPE_LOCAL; u++) {
        const size_t n = R * (size_t)fwd_angles(r->c, u) * sizeof(float);
        r->cos[u] = stage(f, f->host.cos[u], n);
        r->sin[u] = stage(f, f->host.sin[u], n);
    }
}

/* What the staged draws point to. */
static void stage_draw_lists(fwd_dev_ctx *f, dev_draw *draws, int64_t n, int64_t vocab)
{
    for (int64_t i = 0; i < n; i++) {
        dev_draw *d = &draws[i];
        if (d->mask) d->mask = stage(f, d->mask, (size_t)mask_words(vocab) * sizeof *d->mask);
        if (d->n_edits) d->edits = stage(f, d->edits, (size_t)d->n_edits * sizeof *d->edits);
    }
}

/* Whether the step's work is that of every other step of its shape: all rows have logits, so that
 * no buffers change places, and attention is that of few rows. */
static bool is_steady(const fwd_dev_ctx *f, const fwd_rows *r, const fwd_batch *b)
{
    if (f->on->eager || f->on->ranks > 1 || b->n_picked != r->R || r->R > FWD_GRAPH_ROWS)
        return false;
    for (int i = 0; i < b->n_seqs; i++)
        if (b->seqs[i].n_rows > DEV_ATTN_FEW) return false;
    return true;
}

static void set_shape(fwd_dev_ctx *f, const fwd_rows *r, const fwd_batch *b)
{
    fwd_shape *s = &f->shape;
    *s = (fwd_shape){ .rows = r->R, .n_draws = b->n_draws, .fixed = (int64_t)f->staged };
    for (int64_t i = 0; i < b->n_draws; i++)
        s->drawn[b->draws[i].row / 64] |= UINT64_C(1) << b->draws[i].row % 64;
    for (int window = 0; window < 2; window++) {
        const plan *p = &f->plans[f->few][window][0];
        assert(p->n_launches <= 1);
        s->attn[window].chunks = p->n_launches ? p->launches[0].n_chunks : 0;
        s->attn[window].slots = p->n_launches ? p->launches[0].n_slots : 0;
    }
}

static void embed(fwd_dev_ctx *f, fwd_rows *r)
{
    const arch_config *c = r->c;
    const model *w = &f->on->w;
    f->d->ops->embed(f->d, &(dev_embed_args){ .x = r->x,
                                              .table = w->embed.plane[QT_CODES].data,
                                              .dtype = w->embed.scheme.dtype,
                                              .ids = f->ids,
                                              .T = r->R,
                                              .K = c->hidden,
                                              .scale = (float)c->embed_scale });
    if (w->embed_norm.w) fwd_dev.norm(r, r->x, r->x, &w->embed_norm, r->R, c->hidden);
}

static void begin(fwd_rows *r, const model *m, const fwd_batch *b)
{
    fwd_dev_ctx *f = r->self;
    const arch_config *c = r->c;
    f->d->ops->bind(f->d);
    f->staged = 0;
    f->steady = is_steady(f, r, b);
    f->ids = stage(f, b->ids, (size_t)r->R * sizeof *f->ids);
    for (int64_t i = 0; i < b->n_picked; i++)
        f->words[i] = (int32_t)b->picked[i];
    f->picked = stage(f, f->words, (size_t)b->n_picked * sizeof *f->picked);
    dev_draw *draws = (dev_draw *)(void *)(f->stage + f->staged);
    f->draws = stage(f, b->draws, (size_t)b->n_draws * sizeof *f->draws);
    stage_places(f, r);
    place_tables(f, b);
    for (dev_attn_how w = 0; w < DEV_ATTN_N; w++)
        for (int i = 0; i < 4; i++)
            stage_plan(f, &f->plans[w][i / 2][i % 2], w, c, i % 2 ? b->last : b->seqs, b->n_seqs,
                       i / 2 ? c->window : 0);
    if (f->steady) set_shape(f, r, b);
    /* Only data point to what follows, and to f->tables, whose place does not depend on it. */
    stage_tables(f, b);
    stage_draw_lists(f, draws, b->n_draws, c->vocab);
    f->d->ops->upload(f->d, f->stage_on, f->stage, f->staged);
    if (!f->on->w.embed.N && !f->first) fwd_embed_rows(&f->host, m, b->ids); /* with its norm */
}

fwd_how fwd_dev_how(fwd_dev_ctx *f)
{
    return f->steady ? fwd_graphs_begin(&f->graphs, f->d, &f->shape, f->on) : FWD_PLAIN;
}

bool fwd_dev_kept(fwd_dev_ctx *f) { return fwd_graphs_end(&f->graphs, f->d, f->on); }

static void enter(fwd_rows *r)
{
    fwd_dev_ctx *f = r->self;
    const size_t n = (size_t)(r->R * r->c->hidden);
    if (f->on->w.embed.N)
        embed(f, r);
    else
        f->d->ops->upload(f->d, r->x, f->host.x, n * sizeof *r->x);
}

static void leave(const fwd_rows *r, const fwd_batch *b, float *logits, float *hidden, float *raw)
{
    fwd_dev_ctx *f = r->self;
    const int64_t V = r->c->vocab, H = r->c->hidden;
    for (fwd_run at = { 0 }; fwd_next_run(&at, b);) {
        const size_t n = (size_t)at.n * sizeof *logits;
        f->d->ops->download(f->d, logits + at.row * V, raw + at.row * V, n * (size_t)V);
        f->d->ops->download(f->d, hidden + at.row * H, r->h + at.row * H, n * (size_t)H);
    }
    f->d->ops->draw(f->d, &(dev_draw_args){ .logits = raw,
                                            .how = f->draws,
                                            .out = f->drawn_on,
                                            .n = b->n_draws,
                                            .V = V,
                                            .scale = (float)r->c->logit_scale,
                                            .cap = (float)r->c->final_softcap });
    f->d->ops->download(f->d, f->drawn, f->drawn_on, (size_t)b->n_draws * sizeof *f->drawn);
}

static lq_status end(const fwd_rows *r, lq_err *err)
{
    const fwd_dev_ctx *f = r->self;
    return f->d->ops->sync(f->d, err);
}

/* ---- the steps ---- */

static void copy(const fwd_rows *r, float *dst, int64_t ldd, const float *src, int64_t lds,
                 int64_t n, int64_t rows)
{
    const fwd_dev_ctx *f = r->self;
    const size_t w = sizeof *dst;
    f->d->ops->copy(
        f->d, &(dev_copy_args){ dst, src, (size_t)n * w, (size_t)ldd * w, (size_t)lds * w, rows });
}

/* x += factor * add (NULL: nothing), then dst (NULL: nothing more) = norm(x), by so many rows of
 * weights in turn. */
static void add_norm(const fwd_rows *r, float *dst, float *x, const float *add, double factor,
                     const model_vector *v, int64_t T, int64_t K, int64_t rows)
{
    const fwd_dev_ctx *f = r->self;
    f->d->ops->norm(f->d, &(dev_norm_args){ .x = x,
                                            .h = dst,
                                            .add = add,
                                            .w = v ? v->w : NULL,
                                            .b = v ? v->bias : NULL,
                                            .factor = (float)factor,
                                            .offset = r->c->w.norm_offset,
                                            .eps = (float)r->c->norm_eps,
                                            .layer = r->c->w.norm == NORM_LAYER,
                                            .T = T,
                                            .K = K,
                                            .rows = rows });
}

static void norm(const fwd_rows *r, float *dst, float *x, const model_vector *v, int64_t T,
                 int64_t K)
{
    if (v->w)
        add_norm(r, dst, x, NULL, 1, v, T, K, 1);
    else if (dst != x)
        copy(r, dst, K, x, K, K, T);
}

/* y [M, ldy] = x l^T + bias, or added to y. before: the product before it, of the same x, which may
 * have arranged it; or NULL. */
static void product(const fwd_rows *r, const mm_out *o, const mm_out *before, const float *x,
                    int64_t ldx, int64_t M, mm_acts acts)
{
    const fwd_dev_ctx *f = r->self;
    const dev_weight w = weight_of(o->w), last = weight_of(before ? before->w : o->w);
    f->d->ops->matmul(f->d, &(dev_mm_args){ .y = o->y,
                                            .w = &w,
                                            .x = x,
                                            .bias = o->bias,
                                            .scratch = f->mm_scratch,
                                            .ldy = o->ldy,
                                            .ldx = ldx,
                                            .M = M,
                                            .acts = acts,
                                            .add = o->add,
                                            .arranged = before && dev_same_input(&w, &last, acts) });
}

static void products(const fwd_rows *r, const mm_out *outs, int n, const float *x, int64_t ldx,
                     int64_t M)
{
    for (int i = 0; i < n; i++)
        product(r, &outs[i], i ? &outs[i - 1] : NULL, x, ldx, M, r->acts);
}

/* R_QKV's output, [q k v] or for each kv head [its q heads, k, v]. */
static void split(const fwd_rows *r)
{
    const arch_config *c = r->c;
    const int64_t parts = c->w.qkv_grouped ? c->kv_heads : 1, group = c->kv_heads / parts;
    const int64_t nq = c->heads / parts * c->head_dim, nk = group * c->head_dim,
                  nv = group * c->v_dim, w = fwd_qkv_width(c);
    for (int64_t i = 0; i < parts; i++) {
        const float *from = r->qkv + i * (nq + nk + nv);
        copy(r, r->q + i * nq, parts * nq, from, w, nq, r->R);
        copy(r, r->k + i * nk, parts * nk, from + nq, w, nk, r->R);
        copy(r, r->v + i * nv, parts * nv, from + nq + nk, w, nv, r->R);
    }
}

static void norm_heads(const fwd_rows *r, float *x, const model_vector *v, int64_t H)
{
    const int64_t D = r->c->head_dim;
    if (r->c->w.qk_norm == QK_NORM_ALL)
        norm(r, x, x, v, r->R, H * D);
    else if (r->c->w.qk_norm != QK_NORM_NONE && v->w)
        add_norm(r, x, x, NULL, 1, v, r->R * H, D, r->c->w.qk_norm == QK_NORM_HEADS ? H : 1);
}

enum { CLIP = 1, TURN = 2, WRITE = 4 }; /* into the cache */

/* What is asked for, in this order. */
static void rotate(const fwd_rows *r, int64_t layer, const fwd_kv *kv, unsigned what)
{
    const fwd_dev_ctx *f = r->self;
    const bool write = what & WRITE;
    const arch_config *c = r->c;
    const arch_rope_use use = c->layer[layer].rope;
    const bool on = what & TURN && c->w.pos == POS_ROPE && use != ROPE_OFF;
    f->d->ops->rope(f->d, &(dev_rope_args){ .q = r->q,
                                            .k = r->k,
                                            .v = r->v,
                                            .cos = on ? r->cos[use] : NULL,
                                            .sin = on ? r->sin[use] : NULL,
                                            .block = r->row_block,
                                            .slot = r->row_slot,
                                            .cache_k = write ? kv->k : NULL,
                                            .cache_v = write ? kv->v : NULL,
                                            .block_stride = kv->block_stride,
                                            .block_size = kv->block_size,
                                            .dtype = kv->dtype,
                                            .half = c->w.rope_half,
                                            .clip = what & CLIP ? (float)c->qkv_clip : 0.0f,
                                            .T = r->R,
                                            .H = c->heads,
                                            .Hkv = c->kv_heads,
                                            .D = c->head_dim,
                                            .Dv = c->v_dim,
                                            .R = on ? c->rope_dims : 0 });
}

static void store(const fwd_rows *r, const model_layer *l, int64_t layer, const fwd_kv *kv,
                  const fwd_group *g)
{
    const bool late = r->c->w.qk_norm_late, normed = r->c->w.qk_norm != QK_NORM_NONE;
    assert(g->row0 == 0 && g->n_rows == r->R);
    if (r->c->w.mla) {
        rotate(r, layer, kv, WRITE);
        return;
    }
    if (l->lin[R_QKV].present) split(r);
    if (normed && (late || r->c->qkv_clip > 0)) rotate(r, layer, kv, late ? CLIP | TURN : CLIP);
    norm_heads(r, r->q, &l->vec[R_Q_NORM], r->c->heads);
    norm_heads(r, r->k, &l->vec[R_K_NORM], r->c->kv_heads);
    rotate(r, layer, kv, WRITE | (normed ? 0 : CLIP) | (late && normed ? 0 : TURN));
}

/* ---- latent attention (forward_mla.c says what it does) ---- */

/* K floats from row to row `ld` apart. */
static void norm_latent(const fwd_rows *r, float *x, int64_t ld, const model_vector *v, int64_t K)
{
    const fwd_dev_ctx *f = r->self;
    f->d->ops->norm(
        f->d, &(dev_norm_args){
                  .x = x, .h = x, .w = v->w, .eps = FWD_LATENT_EPS, .T = r->R, .K = K, .ld = ld });
}

/* `rope` of each of H * `width` floats at x. */
static void rotate_part(const fwd_rows *r, float *x, int64_t H, int64_t width)
{
    const fwd_dev_ctx *f = r->self;
    f->d->ops->rope(f->d, &(dev_rope_args){ .q = x,
                                            .cos = r->cos[ROPE_MAIN],
                                            .sin = r->sin[ROPE_MAIN],
                                            .half = r->c->w.rope_half,
                                            .T = r->R,
                                            .H = H,
                                            .D = width,
                                            .R = r->c->rope_dims });
}

static void mla(const fwd_rows *r, const model_layer *l)
{
    const fwd_dev_ctx *f = r->self;
    const arch_config *c = r->c;
    const int64_t H = c->heads, D = c->head_dim, nope = c->nope_dims, V = c->v_dim;
    const int64_t width = c->kv_lora + c->rope_dims;
    const mm_out a[] = { c->q_lora ? fwd_out(&l->lin[R_Q_A], r->q_a, c->q_lora, false)
                                   : fwd_out(&l->lin[R_Q], r->q, H * D, false),
                         fwd_out(&l->lin[R_KV_A], r->kv_a, width, false) };
    const mm_out q = fwd_out(&l->lin[R_Q_B], r->q, H * D, false);
    const mm_out kv = fwd_out(&l->lin[R_KV_B], r->kv_b, H * (nope + V), false);
    products(r, a, 2, r->h, c->hidden, r->R);
    norm_latent(r, r->kv_a, width, &l->vec[R_KV_A_NORM], c->kv_lora);
    if (c->q_lora) {
        norm_latent(r, r->q_a, c->q_lora, &l->vec[R_Q_A_NORM], c->q_lora);
        products(r, &q, 1, r->q_a, c->q_lora, r->R);
    }
    products(r, &kv, 1, r->kv_a, width, r->R);
    rotate_part(r, r->q + nope, H, D);
    rotate_part(r, r->kv_a + c->kv_lora, 1, width);
    copy(r, r->k, D, r->kv_b, nope + V, nope, r->R * H);
    f->d->ops->spread(f->d, &(dev_spread_args){ .dst = r->k + nope,
                                                .src = r->kv_a + c->kv_lora,
                                                .T = r->R,
                                                .H = H,
                                                .n = c->rope_dims,
                                                .ldd = D,
                                                .lds = width });
    copy(r, r->v, V, r->kv_b + nope, nope + V, V, r->R * H);
}

static void attend(const fwd_rows *r, const model_layer *l, int64_t layer, const fwd_kv *kv,
                   const fwd_group *g)
{
    const fwd_dev_ctx *f = r->self;
    const bool window = r->c->layer[layer].window;
    dev_attn_args a = attn_of(r, kv);
    (void)g; /* what the plan was made of */
    a.sinks = l->vec[R_SINKS].w;
    a.window = window ? r->c->window : 0;
    a.tables = f->tables;
    a.scratch = f->attn_scratch;
    for (a.how = 0; a.how < DEV_ATTN_N; a.how++) {
        const plan *p = &f->plans[a.how][window][layer == r->c->layers - 1];
        for (int64_t i = 0; i < p->n_launches; i++) {
            const launch *at = &p->launches[i];
            a.chunks = p->chunks + at->chunk;
            a.chunk_of = p->chunk_of + at->slot;
            a.n_chunks = at->n_chunks;
            a.n_slots = at->n_slots;
            f->d->ops->attn(f->d, &a);
        }
    }
}

/* Rows of *x into *spare, which change places. */
static void gather(const fwd_rows *r, float **x, float **spare, int64_t K, int64_t n)
{
    const fwd_dev_ctx *f = r->self;
    float *from = *x;
    f->d->ops->embed(f->d, &(dev_embed_args){ .x = *spare,
                                              .table = from,
                                              .dtype = LQ_F32,
                                              .ids = f->picked,
                                              .T = n,
                                              .K = K,
                                              .scale = 1 });
    *x = *spare;
    *spare = from;
}

static void pick(fwd_rows *r, const int64_t *rows, int64_t n)
{
    (void)rows; /* as they were staged */
    if (n == r->R) return;
    gather(r, &r->x, &r->y, r->c->hidden, n);
    gather(r, &r->h, &r->y, r->c->hidden, n);
    gather(r, &r->a, &r->q, r->c->heads * r->c->head_dim, n);
}

static void mlp_in(const fwd_rows *r, mm_out *outs, int n)
{
    const fwd_dev_ctx *f = r->self;
    const arch_config *c = r->c;
    products(r, outs, n, r->h, c->hidden, r->R);
    pool_stage(r->p, STAGE_ACT);
    const int64_t ld = fwd_mlp_width(c);
    f->d->ops->act(f->d, &(dev_act_args){ .dst = r->mlp,
                                          .gate = r->mlp,
                                          .up = c->w.mlp == MLP_GATED ? r->mlp + c->ffn : NULL,
                                          .T = r->R,
                                          .n = c->ffn,
                                          .ldd = ld,
                                          .ld = ld,
                                          .f = (k_act_fn)c->act,
                                          .limit = (float)c->act_limit });
}

/* ---- experts (forward_moe.c says what they do) ---- */

/* Always in f32: a rounded logit may choose another expert. */
static void route(const fwd_rows *r, const model_layer *l)
{
    const fwd_dev_ctx *f = r->self;
    const arch_config *c = r->c;
    const bool shared = l->lin[R_SHARED_ROUTER].present;
    const mm_out scores = fwd_out(&l->lin[R_ROUTER], r->scores, c->experts, false);
    const mm_out share = fwd_out(&l->lin[R_SHARED_ROUTER], r->shared_share, 1, false);
    product(r, &scores, NULL, r->h, c->hidden, r->R, MM_F32);
    if (shared) product(r, &share, &scores, r->h, c->hidden, r->R, MM_F32);
    f->d->ops->route(f->d, &(dev_route_args){ .scores = r->scores,
                                              .choice = r->choice,
                                              .group_score = r->group_score,
                                              .group_best = r->group_best,
                                              .correction = l->vec[R_ROUTER_CORR].w,
                                              .shared = shared ? r->shared_share : NULL,
                                              .chosen = r->chosen,
                                              .share = r->share,
                                              .T = r->R,
                                              .E = c->experts,
                                              .k = c->experts_used,
                                              .groups = c->expert_groups,
                                              .groups_used = c->groups_used,
                                              .sigmoid = c->w.router == ROUTER_SIGMOID,
                                              .top2 = c->w.group_top2,
                                              .normed = c->w.norm_topk,
                                              .scale = (float)c->expert_scale });
}

/* Rows in order of their experts; how many each has stays on the device. */
static void place_rows(const fwd_rows *r)
{
    const fwd_dev_ctx *f = r->self;
    const arch_config *c = r->c;
    f->d->ops->place(f->d, &(dev_place_args){ .first = f->first_of,
                                              .busy = f->busy,
                                              .place = r->place,
                                              .sent = r->sent,
                                              .chosen = r->chosen,
                                              .T = r->R,
                                              .E = c->experts,
                                              .k = c->experts_used });
}

/* y = x of a role's experts, each one's places by its own; one launch where all have one scheme. */
static void expert_products(const fwd_rows *r, const model_layer *l, arch_role role, float *y,
                            int64_t ldy, const float *x, int64_t ldx)
{
    const fwd_dev_ctx *f = r->self;
    for (const model_experts *set = l->sets[role - R_EXPERT_GATE]; set; set = set->next) {
        const dev_group group = { set->parts, f->first_of, f->busy, r->c->experts, r->R };
        f->d->ops->matmul(f->d, &(dev_mm_args){ .y = y,
                                                .w = &set->w,
                                                .group = &group,
                                                .x = x,
                                                .scratch = f->mm_scratch,
                                                .ldy = ldy,
                                                .ldx = ldx,
                                                .M = r->R * r->c->experts_used,
                                                .acts = r->acts });
    }
}

static void act_experts(const fwd_rows *r, float *x, int64_t T, int64_t n, bool mixed,
                        const float *scale)
{
    const fwd_dev_ctx *f = r->self;
    const arch_config *c = r->c;
    f->d->ops->act(f->d, &(dev_act_args){ .dst = x,
                                          .gate = x,
                                          .up = x + n,
                                          .scale = scale,
                                          .T = T,
                                          .n = n,
                                          .ldd = 2 * n,
                                          .ld = 2 * n,
                                          .f = (k_act_fn)c->act,
                                          .limit = (float)c->act_limit,
                                          .mixed = mixed });
}

/* out += the shared MLP of h, its sigmoid taken before its last matrix. */
static void run_shared(const fwd_rows *r, const model_layer *l)
{
    const arch_config *c = r->c;
    const int64_t S = c->shared_ffn;
    if (!S) return;
    const mm_out in[] = { fwd_out(&l->lin[R_SHARED_GATE], r->shared_in, 2 * S, false),
                          fwd_out(&l->lin[R_SHARED_UP], r->shared_in + S, 2 * S, false) };
    const mm_out down = fwd_out(&l->lin[R_SHARED_DOWN], r->out, c->hidden, true);
    products(r, in, 2, r->h, c->hidden, r->R);
    act_experts(r, r->shared_in, r->R, S, false,
                l->lin[R_SHARED_ROUTER].present ? r->shared_share : NULL);
    products(r, &down, 1, r->shared_in, 2 * S, r->R);
}

/* What each place reads lies in expert_out until its output does. */
static void moe(const fwd_rows *r, const model_layer *l)
{
    const fwd_dev_ctx *f = r->self;
    const arch_config *c = r->c;
    const int64_t H = c->hidden, F = c->expert_ffn, places = r->R * c->experts_used;
    const bool fused = l->sets[R_EXPERT_GATE_UP - R_EXPERT_GATE];
    route(r, l);
    place_rows(r);
    f->d->ops->embed(f->d, &(dev_embed_args){ .x = r->expert_out,
                                              .table = r->h,
                                              .dtype = LQ_F32,
                                              .ids = r->sent,
                                              .T = places,
                                              .K = H,
                                              .scale = 1 });
    expert_products(r, l, fused ? R_EXPERT_GATE_UP : R_EXPERT_GATE, r->expert_in, 2 * F,
                    r->expert_out, H);
    if (!fused) expert_products(r, l, R_EXPERT_UP, r->expert_in + F, 2 * F, r->expert_out, H);
    act_experts(r, r->expert_in, places, F, fused && c->w.gate_up_mixed, NULL);
    expert_products(r, l, R_EXPERT_DOWN, r->expert_out, H, r->expert_in, 2 * F);
    run_shared(r, l);
    f->d->ops->join_experts(f->d, &(dev_join_args){ .out = r->out,
                                                    .y = r->expert_out,
                                                    .share = r->share,
                                                    .place = r->place,
                                                    .T = r->R,
                                                    .H = H,
                                                    .k = c->experts_used });
}

static void clear(const fwd_rows *r)
{
    const fwd_dev_ctx *f = r->self;
    f->d->ops->zero(f->d, r->y, (size_t)(r->R * r->c->hidden) * sizeof *r->y);
}

static void join(const fwd_rows *r, const model_vector *post, const model_vector *after)
{
    const int64_t T = r->R, K = r->c->hidden;
    const bool apart = r->out == r->y, normed = after && after->w;
    if (apart) norm(r, r->y, r->y, post, T, K);
    if (apart || normed)
        add_norm(r, normed ? r->x : NULL, r->x, apart ? r->y : NULL, r->c->residual_scale, after, T,
                 K, 1);
}

const fwd_ops fwd_dev = { begin,  enter, norm, products, store, attend, pick,
                          mlp_in, clear, join, mla,      moe,   leave,  end };
