/* runtime/forward/forward_plan.c - rank 0 tells the other ranks what it does (runtime/forward/follow.h): a word of
 * fixed size, and bytes as it says.
 *
 *   FWD_WORD_OPEN    fwd_open: fwd_opts, kv_opts; all then say whether they could
 *   FWD_WORD_LORA    an adapter that an item will have, whole, and its number; without bytes: it is no more needed
 *   FWD_WORD_KV_OUT  blocks to copy; then each sends its own of a block to rank 0
 *   FWD_WORD_KV_IN   the same, which rank 0 sends
 *   FWD_WORD_STEP    fwd_begin: blocks to copy, then for each item its numbers, its tables and its ids
 *   FWD_WORD_CLOSE   fwd_close
 *   FWD_WORD_ALIVE   all say that they are there
 *   FWD_WORD_END     the model is closed */
#include "runtime/forward/follow.h"
#include "runtime/forward/forward_impl.h"

#include <stdlib.h>

static bool put(fwd_bytes_of *b, const void *p, size_t n)
{
    if (b->n + n > b->cap) {
        const size_t cap = 2 * (b->n + n);
        uint8_t *more = realloc(b->bytes, cap);
        if (!more) return false;
        b->bytes = more;
        b->cap = cap;
    }
    if (n) memcpy(b->bytes + b->n, p, n);
    b->n += n;
    return true;
}

/* The word and the bytes that it speaks of. */
static lq_status tell_word(fwd_parts *p, fwd_word *w, uint8_t *bytes, lq_err *err)
{
    comm *c = p->part->c;
    lq_status s = comm_broadcast(c, 0, w, sizeof *w, err);
    if (!s && w->bytes) s = comm_broadcast(c, 0, bytes, w->bytes, err);
    p->sent += sizeof *w + w->bytes;
    return s;
}

static lq_status tell(fwd_parts *p, fwd_word_kind kind, int n_items, int64_t n_copies, lq_err *err)
{
    fwd_word w = { .kind = kind, .n_items = n_items, .n_copies = n_copies, .bytes = p->plan.n };
    return tell_word(p, &w, p->plan.bytes, err);
}

static lq_status all_well(const fwd_parts *p, lq_status mine, lq_err *err)
{
    int who;
    lq_err none;
    const lq_status s = comm_agree(p->part->c, mine, &who, mine ? &none : err);
    if (mine || s == LQ_OK) return mine;
    return s == LQ_EIO || s == LQ_EINTR
               ? s
               : lq_fail(err, s, "rank %d of %d: %s", who, p->part->ranks, lq_status_text(s));
}

/* ---- adapters ---- */
static lq_status tell_lora(fwd_parts *p, int number, const lora_adapter *l, lq_err *err)
{
    fwd_word w = { .kind = FWD_WORD_LORA, .n_items = number, .bytes = l ? l->n_wire : 0 };
    const lq_status s = tell_word(p, &w, l ? l->wire : NULL, err);
    return s ? s : all_well(p, LQ_OK, err);
}

/* Those that nobody else has any more. */
static lq_status drop_loras(fwd_parts *p, lq_err *err)
{
    lq_status s = LQ_OK;
    for (int i = 0; i < p->n_loras && !s; i++) {
        if (!p->loras[i] || atomic_load(&p->loras[i]->users) > 1) continue;
        s = tell_lora(p, i, NULL, err);
        lora_unref(p->loras[i]);
        p->loras[i] = NULL;
    }
    return s;
}

static int number_of(const fwd_parts *p, const lora_adapter *l)
{
    int i = 0;
    while (i < p->n_loras && p->loras[i] != l)
        i++;
    return i;
}

/* The others have it from here on. */
static lq_status share_lora(fwd_parts *p, const lora_adapter *l, lq_err *err)
{
    if (number_of(p, l) < p->n_loras) return LQ_OK;
    const int at = number_of(p, NULL);
    if (at == p->n_loras) {
        lora_adapter **more = realloc(p->loras, (size_t)(at + 1) * sizeof *more);
        if (!more) return lq_fail(err, LQ_ENOMEM, "ranks: no memory for adapters");
        more[at] = NULL;
        p->loras = more;
        p->n_loras = at + 1;
    }
    const lq_status s = tell_lora(p, at, l, err);
    if (!s) p->loras[at] = lora_ref((lora_adapter *)(uintptr_t)l);
    return s;
}

static lq_status share_loras(fwd_parts *p, const fwd_item *items, int n_items, lq_err *err)
{
    lq_status s = drop_loras(p, err);
    for (int i = 0; i < n_items && !s; i++)
        if (items[i].lora) s = share_lora(p, items[i].lora, err);
    return s;
}

/* ---- blocks and steps ---- */
static void note_copy(void *user, kv_copy c)
{
    fwd_parts *p = user;
    if (p->n_copies == p->cap_copies) {
        const int64_t cap = p->cap_copies ? 2 * p->cap_copies : 64;
        kv_copy *more = realloc(p->copies, (size_t)cap * sizeof *more);
        if (!more) {
            fwd_parts_failed(p, lq_fail(&p->why, LQ_ENOMEM, "ranks: no memory for a plan"));
            return;
        }
        p->copies = more;
        p->cap_copies = cap;
    }
    p->copies[p->n_copies++] = c;
}

/* ---- blocks that are kept elsewhere ---- */
static lq_status tell_part(fwd_parts *p, fwd_word_kind kind, kv_part part, int32_t i)
{
    p->plan.n = 0;
    if (p->bad) return p->bad;
    if (!put(&p->plan, p->copies, (size_t)p->n_copies * sizeof *p->copies))
        return lq_fail(&p->why, LQ_ENOMEM, "ranks: no memory for a plan");
    fwd_word w = {
        .kind = kind, .n_items = i, .part = part, .n_copies = p->n_copies, .bytes = p->plan.n
    };
    p->n_copies = 0;
    return tell_word(p, &w, p->plan.bytes, &p->why);
}

static bool read_others(void *user, kv_part part, int32_t i, void *theirs)
{
    fwd_parts *p = user;
    uint8_t *to = theirs;
    if (part == KV_STATE) return true;
    lq_status s = tell_part(p, FWD_WORD_KV_OUT, part, i);
    for (int r = 1; r < p->part->ranks && !s; r++) {
        s = comm_recv(p->part->c, r, FWD_TAG_KV, to, p->kv_bytes[r][part], &p->why);
        to += p->kv_bytes[r][part];
    }
    return !fwd_parts_failed(p, s);
}

static bool write_others(void *user, kv_part part, int32_t i, const void *own, const void *theirs)
{
    fwd_parts *p = user;
    const uint8_t *from = part == KV_STATE ? own : theirs;
    lq_status s = tell_part(p, FWD_WORD_KV_IN, part, i);
    for (int r = 1; r < p->part->ranks && !s; r++) {
        s = comm_send(p->part->c, r, FWD_TAG_KV, from, p->kv_bytes[r][part], &p->why);
        from += part == KV_STATE ? 0 : p->kv_bytes[r][part];
        p->sent += p->kv_bytes[r][part];
    }
    return !fwd_parts_failed(p, s);
}

/* How much each has of a block. */
static lq_status know_others(fwd_parts *p, kv_cache *kv, lq_err *err)
{
    size_t own[KV_PARTS];
    kv_others o = { .read = read_others, .write = write_others, .user = p };
    p->kv_bytes = calloc((size_t)p->part->ranks, sizeof *p->kv_bytes);
    if (!p->kv_bytes) return lq_fail(err, LQ_ENOMEM, "ranks: no memory for their sizes");
    for (int k = 0; k < KV_PARTS; k++)
        own[k] = kv_own_bytes(kv, (kv_part)k);
    const lq_status s = comm_gather(p->part->c, 0, own, sizeof own, p->kv_bytes, err);
    for (int r = 1; r < p->part->ranks; r++)
        for (int k = 0; k < KV_PARTS; k++)
            o.bytes[k] += k == KV_STATE ? 0 : p->kv_bytes[r][k];
    if (!s) kv_on_others(kv, &o);
    return s;
}

/* ---- a pass ---- */
lq_status fwd_lead_open(fwd_parts *p, kv_cache *kv, const fwd_opts *o, lq_err *err)
{
    kv_opts k = *kv_options(kv);
    k.hash = NULL;
    p->plan.n = 0;
    if (!put(&p->plan, o, sizeof *o) || !put(&p->plan, &k, sizeof k))
        return lq_fail(err, LQ_ENOMEM, "ranks: no memory for a plan");
    lq_status s = tell(p, FWD_WORD_OPEN, 0, 0, err);
    p->led = !s;
    if (!s) s = all_well(p, LQ_OK, err);
    if (!s) s = know_others(p, kv, err);
    if (!s) kv_on_copy(kv, note_copy, p);
    return s;
}

static bool put_item(fwd_bytes_of *b, const kv_cache *kv, const fwd_item *it, const kv_run *run,
                     int64_t lora)
{
    const int block_size = kv_options(kv)->block_size;
    const kv_seq *q = it->seq;
    const fwd_told t = { .n = it->n,
                         .pos0 = it->pos0,
                         .logits_from = it->logits_from,
                         .n_first = it->n_first,
                         .seq_len = it->seq_len,
                         .n_blocks = lq_ceil_div(it->pos0 + it->n, block_size),
                         .near_from = q->near ? q->near_from : 0,
                         .near_to = q->near ? q->near_to : 0,
                         .lora = lora,
                         .run = kv_slots_of_run(kv, run) };
    return put(b, &t, sizeof t) && put(b, q->table, (size_t)t.n_blocks * sizeof *q->table) &&
           (t.near_to == t.near_from ||
            put(b, q->near + t.near_from, (size_t)(t.near_to - t.near_from) * sizeof *q->near)) &&
           put(b, it->ids, (size_t)it->n * sizeof *it->ids);
}

void fwd_lead_step(fwd_parts *p, const kv_cache *kv, const fwd_item *items,
                   const fwd_seq_state *states, int n_items)
{
    p->plan.n = 0;
    lq_status s = p->bad;
    if (!s) s = share_loras(p, items, n_items, &p->why);
    bool ok = put(&p->plan, p->copies, (size_t)p->n_copies * sizeof *p->copies);
    for (int i = 0; i < n_items && ok && !s; i++)
        ok = put_item(&p->plan, kv, &items[i], &states[i].run,
                      items[i].lora ? number_of(p, items[i].lora) : -1);
    if (!s && !ok) s = lq_fail(&p->why, LQ_ENOMEM, "ranks: no memory for a plan");
    if (!s) s = tell(p, FWD_WORD_STEP, n_items, p->n_copies, &p->why);
    p->n_copies = 0;
    fwd_parts_failed(p, s);
}

lq_status fwd_lead_alive(fwd_parts *p, lq_err *err)
{
    p->plan.n = 0;
    lq_status s = p->bad;
    if (!s) s = drop_loras(p, &p->why);
    if (!s) s = tell(p, FWD_WORD_ALIVE, 0, 0, &p->why);
    if (!s) s = all_well(p, LQ_OK, &p->why);
    if (fwd_parts_failed(p, s)) *err = p->why;
    return p->bad;
}

void fwd_lead_close(fwd_parts *p)
{
    p->plan.n = 0;
    if (p->led && !p->bad) (void)tell(p, FWD_WORD_CLOSE, 0, 0, &p->why);
    p->led = false;
}

void fwd_dismiss(const model *m)
{
    fwd_parts p = { .part = m->part };
    if (m->part && m->part->rank == 0) (void)tell(&p, FWD_WORD_END, 0, 0, &p.why);
}
