/* runtime/model/lora_dev.c - an adapter's matrices on the devices that have the model's last layers: as
 * kernels/device.h has them (dev_lora_part), of several devices each its own part. All of one device is
 * one piece of memory, which is taken, filled and given back with a handle of its own: whoever loads an
 * adapter is not who works with the model. */
#include "runtime/model/lora.h"
#include "runtime/model/rank.h"

#include <assert.h>
#include <stdlib.h>

int lora_slot(arch_role r)
{
    static const arch_role known[LORA_SLOTS] = { R_Q, R_K,    R_V,  R_QKV,     R_ATTN_GATE,
                                                 R_O, R_GATE, R_UP, R_GATE_UP, R_DOWN };
    int i = 0;
    while (i < LORA_SLOTS && known[i] != r)
        i++;
    return i;
}

/* What one device gets: first it is counted (host NULL), then written. */
typedef struct {
    uint8_t *host, *on; /* the same bytes here and there */
    size_t used;
    const rank_part *cut; /* of the part at work */
} pile;

enum { ALIGN = 256 };

/* Where the next n bytes will be there; *host: and where they are here, zeros; NULL: counting. */
static void *push(pile *p, size_t n, uint8_t **host)
{
    const size_t at = p->used;
    p->used += lq_round_up(n, ALIGN);
    *host = p->host ? p->host + at : NULL;
    return p->on ? p->on + at : NULL;
}

static size_t padded(int64_t n) { return lq_round_up((size_t)n, DEV_LORA_PAD); }

/* [rank, K] of which this device has the inputs k0..k1-1. */
static const void *put_a(pile *p, const adp_part *a)
{
    const size_t each = lq_dtype_bytes(a->dtype), n = (size_t)(p->cut->k1 - p->cut->k0);
    const size_t row = padded(p->cut->k1 - p->cut->k0) * each;
    uint8_t *to;
    const void *on = push(p, padded(a->rank) * row, &to);
    for (int64_t r = 0; r < a->rank && to; r++)
        memcpy(to + (size_t)r * row, (const uint8_t *)a->a + (size_t)(r * a->K + p->cut->k0) * each,
               n * each);
    return on;
}

static int64_t outputs(const rank_part *cut)
{
    int64_t n = 0;
    for (int i = 0; i < cut->n; i++)
        n += cut->rows[i].n1 - cut->rows[i].n0;
    return n;
}

/* [N, rank] of which it has some outputs, as [ranks / 8][outputs][8]. */
static const void *put_b(pile *p, const adp_part *b)
{
    const size_t each = lq_dtype_bytes(b->dtype), N = (size_t)outputs(p->cut);
    uint8_t *to;
    const void *on = push(p, padded(b->rank) * N * each, &to);
    size_t at = 0;
    for (int i = 0; i < p->cut->n && to; i++)
        for (int64_t n = p->cut->rows[i].n0; n < p->cut->rows[i].n1; n++, at++)
            for (int64_t r = 0; r < b->rank; r += DEV_LORA_PAD) {
                const int64_t here = b->rank - r < DEV_LORA_PAD ? b->rank - r : DEV_LORA_PAD;
                memcpy(to + ((size_t)r * N + at * DEV_LORA_PAD) * each,
                       (const uint8_t *)b->b + (size_t)(n * b->rank + r) * each,
                       (size_t)here * each);
            }
    return on;
}

static const float *put_gain(pile *p, const float *gain)
{
    uint8_t *to;
    if (!gain) return NULL;
    const void *on = push(p, (size_t)outputs(p->cut) * sizeof *gain, &to);
    for (int i = 0; i < p->cut->n && to; i++) {
        const size_t n = (size_t)(p->cut->rows[i].n1 - p->cut->rows[i].n0) * sizeof *gain;
        memcpy(to, gain + p->cut->rows[i].n0, n);
        to += n;
    }
    return on;
}

static void fill_pile(pile *p, const model *m, const adp_adapter *a, const float *const *gains,
                      int rank)
{
    uint8_t *table;
    push(p, (size_t)(m->cfg->layers * LORA_SLOTS) * sizeof(dev_lora_part), &table);
    for (size_t i = 0; i < a->n; i++) {
        const adp_part *part = &a->parts[i];
        rank_part cut;
        if (part->slot.layer < m->on->first) continue;
        rank_part_of(&cut, m->cfg, part->slot.role, rank, m->on->ranks);
        p->cut = &cut;
        const dev_lora_part it = { .a = put_a(p, part),
                                   .b = put_b(p, part),
                                   .gain = put_gain(p, gains[i]),
                                   .rank = (int32_t)part->rank,
                                   .dtype = part->dtype,
                                   .scale = part->scale };
        const int64_t at = part->slot.layer * LORA_SLOTS + lora_slot(part->slot.role);
        if (table) memcpy(table + (size_t)at * sizeof it, &it, sizeof it);
    }
}

/* Device `rank` of those that m is on, by a stream of this thread's own. */
static lq_status put_rank(lora_adapter *l, const model *m, const adp_adapter *a,
                          const float *const *gains, int rank, lq_err *err)
{
    lora_on *on = &l->on[rank];
    pile p = { 0 };
    dev d;
    lq_status s = l->ops->open(&d, l->index + rank, err);
    if (s) return s;
    fill_pile(&p, m, a, gains, rank);
    const size_t n = p.used;
    s = dev_take(&on->mem, &d, n, "an adapter needs", err);
    if (!s && !(p.host = calloc(n, 1))) s = lq_fail(err, LQ_ENOMEM, "adapter: out of memory");
    if (!s) {
        p.on = on->mem;
        p.used = 0;
        fill_pile(&p, m, a, gains, rank);
        d.ops->upload(&d, on->mem, p.host, n);
        on->parts = on->mem;
        l->bytes += n;
    }
    const lq_status done = d.ops->sync(&d, s ? NULL : err);
    free(p.host);
    d.ops->close(&d);
    return s ? s : done;
}

lq_status lora_put(lora_adapter *l, const model *m, const adp_adapter *a, const float *const *gains,
                   lq_err *err)
{
    lq_status s = LQ_OK;
    l->ops = m->on->d.ops;
    l->index = m->on->d.index;
    for (int r = 0; r < m->on->ranks && !s; r++, l->ranks++)
        s = put_rank(l, m, a, gains, r, err);
    return s;
}

void lora_take_back(lora_adapter *l)
{
    for (int r = l->ranks; r-- > 0;) { /* the first device is the thread's again */
        dev d = { .ops = l->ops, .index = l->index + r };
        d.ops->bind(&d);
        d.ops->free(&d, l->on[r].mem);
    }
}
