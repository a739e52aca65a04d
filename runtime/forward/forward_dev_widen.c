/* runtime/forward/forward_dev_widen.c - attention of many rows over a cache of codes on a device whose quickest
 * kernel takes none: before it a layer's blocks become bf16 in a buffer (dev_widen_args), where that holds all
 * that the step's long sequences see; else it goes the slower way. */
#include "runtime/forward/forward_dev.h"

enum { MOST_BYTES = 128 << 20 }; /* of the buffer: 32,768 tokens of 8 KV heads of 128 */

static bool could(const fwd_dev_heads *h, kv_dtype t)
{
    return !h->latent && dev_attn_codes(t, h->D, h->Dv);
}

size_t fwd_dev_widen_size(fwd_dev_ctx *f, int64_t len, const fwd_opts *o)
{
    const int64_t bs = f->block_size, each = lq_ceil_div(len, bs);
    f->widen.stride = 0;
    for (int i = 0; i < f->n_kinds; i++) {
        const fwd_dev_heads *h = &f->kind[i].heads;
        const size_t n = (size_t)(h->Hkv * bs * (h->D + h->Dv)) * sizeof(uint16_t);
        if (could(h, kv_of(f->types, true)) && n > f->widen.stride) f->widen.stride = n;
    }
    f->widen.blocks =
        f->widen.stride && o->acts != MM_F32 ? MOST_BYTES / (int64_t)f->widen.stride : 0;
    if (f->widen.blocks > each * o->max_seqs) f->widen.blocks = each * o->max_seqs;
    if (!f->widen.blocks) return 0;
    const size_t list = lq_round_up((size_t)f->widen.blocks * sizeof(int32_t), FWD_DEV_ALIGN),
                 table = lq_round_up((size_t)each * sizeof(int32_t), FWD_DEV_ALIGN);
    return list * (size_t)f->n_kinds + table * (size_t)o->max_seqs;
}

size_t fwd_dev_widen_bytes(const fwd_dev_ctx *f)
{
    return (size_t)f->widen.blocks * f->widen.stride;
}

void fwd_dev_widen_open(fwd_dev_ctx *f, bool both_ways)
{
    bool any = false;
    for (int i = 0; i < f->n_kinds; i++) {
        fwd_dev_kind *k = &f->kind[i];
        k->widens = !both_ways && f->widen.blocks && k->many == DEV_ATTN_UNITS &&
                    could(&k->heads, kv_of(f->types, true)) &&
                    dev_attn_choose_wide(f->d, k->heads.D, k->heads.Dv);
        any = any || k->widens;
    }
    if (!any) f->widen.blocks = 0;
}

/* So many numbers were written where the next piece goes. */
static void take_stage(fwd_dev_ctx *f, int64_t n)
{
    f->staged = lq_round_up(f->staged + (size_t)n * sizeof(int32_t), FWD_DEV_ALIGN);
    assert(f->staged <= f->stage_bytes);
}

/* Blocks of the tables of those that have many rows. */
static int64_t long_blocks(const fwd_dev_ctx *f, const fwd_batch *b)
{
    int64_t n = 0;
    for (int i = 0; i < b->n_seqs; i++)
        if (b->seqs[i].n_rows > DEV_ATTN_FEW)
            n += lq_ceil_div(b->seqs[i].pos0 + b->seqs[i].n_rows, f->block_size);
    return n;
}

/* The blocks that layers of a kind see, in the order of their places; < 0: of no row's window any more. */
static const int32_t *stage_list(fwd_dev_ctx *f, const fwd_dev_kind *k, const fwd_batch *b,
                                 const arch_config *c)
{
    enum { TILE = 128 }; /* keys that attention may read from before the first that it sees */
    int32_t *list = (int32_t *)(void *)(f->stage + f->staged);
    const int32_t *there = (const int32_t *)(const void *)(f->stage_on + f->staged);
    int64_t n = 0;
    for (int i = 0; i < b->n_seqs; i++) {
        const attn_seq *s = &b->seqs[i];
        if (s->n_rows <= DEV_ATTN_FEW) continue;
        const int64_t from = k->window && s->pos0 >= c->window ? s->pos0 - c->window + 1 : 0,
                      blocks = lq_ceil_div(s->pos0 + s->n_rows, f->block_size);
        for (int64_t j = 0; j < blocks; j++)
            list[n++] = (j + 1) * f->block_size > from / TILE * TILE ? s->table[j] : -1;
    }
    take_stage(f, n);
    return there;
}

void fwd_dev_widen_begin(fwd_dev_ctx *f, const fwd_batch *b, const arch_config *c)
{
    f->widen.n = f->widen.blocks ? long_blocks(f, b) : 0;
    if (f->widen.n > f->widen.blocks) f->widen.n = 0;
    for (int i = 0; i < f->n_kinds; i++) {
        fwd_dev_kind *k = &f->kind[i];
        if (!k->widens) continue;
        k->many = f->widen.n ? DEV_ATTN_WIDE : DEV_ATTN_UNITS;
        if (f->widen.n) f->widen.list[i] = stage_list(f, k, b, c);
    }
}

void fwd_dev_widen_tables(fwd_dev_ctx *f, const fwd_batch *b)
{
    int32_t next = 0;
    if (!f->widen.n) return;
    f->widen.tables = (const int32_t *)(const void *)(f->stage_on + f->staged);
    for (int i = 0; i < b->n_seqs; i++) {
        const attn_seq *s = &b->seqs[i];
        const int64_t blocks = lq_ceil_div(s->pos0 + s->n_rows, f->block_size);
        int32_t *table = (int32_t *)(void *)(f->stage + f->staged);
        const bool many = s->n_rows > DEV_ATTN_FEW;
        for (int64_t j = 0; j < blocks; j++)
            table[j] = many ? next++ : 0;
        take_stage(f, blocks);
    }
}

void fwd_dev_widen(fwd_dev_ctx *f, const fwd_dev_kind *k, dev_attn_args *a)
{
    const size_t keys = (size_t)(a->Hkv * a->block_size * a->D) * sizeof(uint16_t);
    f->d->ops->widen(f->d, &(dev_widen_args){ .to = f->widen.to,
                                              .k = a->k,
                                              .v = a->v,
                                              .blocks = f->widen.list[k - f->kind],
                                              .n = f->widen.n,
                                              .block_stride = a->block_stride,
                                              .to_stride = f->widen.stride,
                                              .block_size = a->block_size,
                                              .Hkv = a->Hkv,
                                              .D = a->D,
                                              .Dv = a->Dv,
                                              .dtype = a->dtype });
    a->k = f->widen.to;
    a->v = f->widen.to + keys;
    a->block_stride = f->widen.stride;
    a->dtype = KV_BF16;
    a->tables = f->widen.tables;
}
