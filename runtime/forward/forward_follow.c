/* runtime/forward/forward_follow.c - see follow.h; what is told: forward_plan.c. */
#include "runtime/forward/follow.h"

#include "runtime/forward/forward_impl.h"
#include "runtime/model/lora_wire.h"

#include <stdlib.h>

typedef struct {
    const model *m;
    comm *c;
    pool *p;
    kv_cache *kv;
    fwd_ctx *fwd;
    fwd_opts opts;
    uint8_t *plan;
    size_t cap;
    fwd_item *items;      /* [max_seqs] */
    kv_seq *seqs;         /* [max_seqs] their tables; near is owned */
    kv_run *runs;         /* [max_seqs] */
    lora_adapter **loras; /* [n_loras] by rank 0's numbers */
    int n_loras;
    uint8_t *piece; /* own of a block or slot */
    size_t piece_cap;
} follower;

static lq_status no_plan(lq_err *err)
{
    return lq_fail(err, LQ_ENOMEM, "ranks: no memory for a plan");
}

static lq_status hear(follower *f, fwd_word *w, lq_err *err)
{
    lq_status s = comm_broadcast(f->c, 0, w, sizeof *w, err);
    if (s || w->bytes == 0) return s;
    if (w->bytes > f->cap) {
        uint8_t *more = realloc(f->plan, w->bytes);
        if (!more) return no_plan(err);
        f->plan = more;
        f->cap = w->bytes;
    }
    return comm_broadcast(f->c, 0, f->plan, w->bytes, err);
}

static void close_pass(follower *f)
{
    for (int64_t i = 0; f->seqs && i < f->opts.max_seqs; i++)
        free(f->seqs[i].near);
    for (int i = 0; i < f->n_loras; i++)
        lora_unref(f->loras[i]);
    fwd_close(f->fwd);
    kv_close(f->kv);
    free(f->loras);
    free(f->items);
    free(f->seqs);
    free(f->runs);
    f->fwd = NULL;
    f->kv = NULL;
    f->items = NULL;
    f->seqs = NULL;
    f->runs = NULL;
    f->loras = NULL;
    f->n_loras = 0;
}

/* Rank 0 hears how it went. */
static lq_status open_pass(follower *f, lq_err *err)
{
    kv_opts k;
    int who;
    memcpy(&f->opts, f->plan, sizeof f->opts);
    memcpy(&k, f->plan + sizeof f->opts, sizeof k);
    const size_t n = (size_t)f->opts.max_seqs;
    f->items = calloc(n, sizeof *f->items);
    f->seqs = calloc(n, sizeof *f->seqs);
    f->runs = calloc(n, sizeof *f->runs);
    lq_status s = f->items && f->seqs && f->runs ? LQ_OK : no_plan(err);
    if (!s) s = kv_open(&f->kv, f->m->cfg, &k, err);
    if (!s) s = fwd_open(&f->fwd, f->m, f->kv, f->p, &f->opts, err);
    lq_err others;
    const lq_status all = comm_agree(f->c, s, &who, &others);
    if (!s && all) *err = others;
    if (all)
        return s                                  ? s
               : all == LQ_EIO || all == LQ_EINTR ? all
                                                  : LQ_OK; /* rank 0 decides what follows */
    size_t own[KV_PARTS];
    for (int i = 0; i < KV_PARTS; i++)
        own[i] = kv_own_bytes(f->kv, (kv_part)i);
    return comm_gather(f->c, 0, own, sizeof own, NULL, err);
}

static lq_status room_for_lora(follower *f, int number, lq_err *err)
{
    if (number < f->n_loras) return LQ_OK;
    lora_adapter **more = realloc(f->loras, (size_t)(number + 1) * sizeof *more);
    if (!more) return lq_fail(err, LQ_ENOMEM, "ranks: no memory for adapters");
    memset(more + f->n_loras, 0, (size_t)(number + 1 - f->n_loras) * sizeof *more);
    f->loras = more;
    f->n_loras = number + 1;
    return LQ_OK;
}

/* Rank 0 hears how it went. */
static lq_status take_lora(follower *f, const fwd_word *w, lq_err *err)
{
    int who;
    lq_err others;
    adp_adapter a = { .n = 0 };
    lq_status s = room_for_lora(f, w->n_items, err);
    lora_adapter **to = s ? NULL : &f->loras[w->n_items];
    if (to) {
        lora_unref(*to);
        *to = NULL;
    }
    if (!s && w->bytes) s = lora_wire_get(&a, f->plan, err);
    if (!s && w->bytes) s = lora_make(to, f->m, &a, f->opts.lora_rank, f->p, err);
    adp_close(&a);
    const lq_status all = comm_agree(f->c, s, &who, &others);
    if (!s && all) *err = others;
    return s ? s : all;
}

static const uint8_t *take(void *to, const uint8_t *at, size_t n)
{
    memcpy(to, at, n);
    return at + n;
}

/* One item out of the plan, whose tables and ids are used as they lie. */
static const uint8_t *read_item(follower *f, int i, const uint8_t *at, lq_err *err)
{
    fwd_told t;
    kv_seq *q = &f->seqs[i];
    at = take(&t, at, sizeof t);
    int32_t *near = q->near;
    const size_t n_near = (size_t)(t.near_to - t.near_from);
    if (t.near_to > q->cap && !(near = realloc(near, (size_t)t.near_to * sizeof *near))) {
        (void)no_plan(err);
        return NULL;
    }
    *q = (kv_seq){ .table = (int32_t *)(uintptr_t)at,
                   .n_blocks = t.n_blocks,
                   .cap = t.near_to > q->cap ? t.near_to : q->cap,
                   .tokens = t.pos0 + t.n,
                   .near = near,
                   .near_from = t.near_from,
                   .near_to = t.near_to };
    at += (size_t)t.n_blocks * sizeof *q->table;
    if (n_near) at = take(near + t.near_from, at, n_near * sizeof *near);
    f->runs[i] = kv_run_of_slots(f->kv, &t.run);
    f->items[i] = (fwd_item){ .seq = q,
                              .run = &f->runs[i],
                              .ids = (const int32_t *)(const void *)at,
                              .n = t.n,
                              .pos0 = t.pos0,
                              .logits_from = t.logits_from,
                              .n_first = t.n_first,
                              .seq_len = t.seq_len,
                              .lora = t.lora < 0 ? NULL : f->loras[t.lora] };
    return at + (size_t)t.n * sizeof(int32_t);
}

/* Returns what follows them in the plan. */
static const uint8_t *make_copies(follower *f, const fwd_word *w)
{
    const uint8_t *at = f->plan;
    for (int64_t i = 0; i < w->n_copies; i++) {
        kv_copy one;
        at = take(&one, at, sizeof one);
        kv_make_copy(f->kv, one);
    }
    return at;
}

/* A part of a block, to rank 0 or from it. */
static lq_status move_kv(follower *f, const fwd_word *w, lq_err *err)
{
    const size_t n = kv_own_bytes(f->kv, w->part);
    (void)make_copies(f, w);
    if (n > f->piece_cap) {
        uint8_t *more = realloc(f->piece, n);
        if (!more) return no_plan(err);
        f->piece = more;
        f->piece_cap = n;
    }
    if (w->kind == FWD_WORD_KV_OUT) {
        kv_move_own(f->kv, w->part, w->n_items, f->piece, NULL);
        return comm_send(f->c, 0, FWD_TAG_KV, f->piece, n, err);
    }
    const lq_status s = comm_recv(f->c, 0, FWD_TAG_KV, f->piece, n, err);
    if (!s) kv_move_own(f->kv, w->part, w->n_items, NULL, f->piece);
    return s;
}

static lq_status follow_step(follower *f, const fwd_word *w, lq_err *err)
{
    const uint8_t *at = make_copies(f, w);
    const float *logits;
    for (int i = 0; i < w->n_items; i++)
        if (!(at = read_item(f, i, at, err))) return LQ_ENOMEM;
    return fwd_step(f->fwd, f->items, w->n_items, &logits, err);
}

static lq_status obey(follower *f, const fwd_word *w, lq_err *err)
{
    int who;
    switch (w->kind) {
    case FWD_WORD_OPEN:
        return open_pass(f, err);
    case FWD_WORD_STEP:
        return follow_step(f, w, err);
    case FWD_WORD_KV_OUT:
    case FWD_WORD_KV_IN:
        return move_kv(f, w, err);
    case FWD_WORD_LORA:
        return take_lora(f, w, err);
    case FWD_WORD_ALIVE:
        return comm_agree(f->c, LQ_OK, &who, err);
    case FWD_WORD_CLOSE:
        close_pass(f);
        return LQ_OK;
    case FWD_WORD_END:
        break;
    }
    return LQ_OK;
}

lq_status fwd_follow(const model *m, pool *p, lq_err *err)
{
    follower f = { .m = m, .c = m->part->c, .p = p };
    fwd_word w = { .kind = FWD_WORD_OPEN };
    lq_status s = LQ_OK;
    while (!s && w.kind != FWD_WORD_END) {
        s = hear(&f, &w, err);
        if (!s) s = obey(&f, &w, err);
    }
    close_pass(&f);
    free(f.plan);
    free(f.piece);
    return s;
}
