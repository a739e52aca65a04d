/* runtime/model/lora_wire.c - see lora_wire.h: the adapter, its parts as structs, then each part's numbers. */
#include "runtime/model/lora_wire.h"

#include <stdlib.h>

enum { N_DATA = 3 }; /* a, b, magnitude */

static lq_status no_room(lq_err *err) { return lq_fail(err, LQ_ENOMEM, "adapter: out of memory"); }

static size_t data_bytes(const adp_part *p, int i)
{
    const size_t each = lq_dtype_bytes(p->dtype);
    const int64_t n = i == 0 ? p->rank * p->K : i == 1 ? p->N * p->rank : p->magnitude ? p->N : 0;
    return (size_t)n * (i == 2 ? sizeof *p->magnitude : each);
}

/* Where they begin, aligned for any of them. */
static size_t head_bytes(size_t n)
{
    return lq_round_up(sizeof(adp_adapter) + n * sizeof(adp_part), 64);
}

lq_status lora_wire_put(uint8_t **out, size_t *n, const adp_adapter *a, lq_err *err)
{
    size_t all = head_bytes(a->n);
    for (size_t i = 0; i < a->n; i++)
        for (int k = 0; k < N_DATA; k++)
            all += lq_round_up(data_bytes(&a->parts[i], k), 64);
    uint8_t *to = *out = calloc(1, all), *at = to;
    if (!to) return no_room(err);
    *n = all;
    memcpy(at, a, sizeof *a);
    memcpy(at + sizeof *a, a->parts, a->n * sizeof *a->parts);
    at += head_bytes(a->n);
    for (size_t i = 0; i < a->n; i++) {
        const adp_part *p = &a->parts[i];
        const void *const data[N_DATA] = { p->a, p->b, p->magnitude };
        for (int k = 0; k < N_DATA; k++) {
            const size_t bytes = data_bytes(p, k);
            if (bytes) memcpy(at, data[k], bytes);
            at += lq_round_up(bytes, 64);
        }
    }
    return LQ_OK;
}

lq_status lora_wire_get(adp_adapter *a, const uint8_t *bytes, lq_err *err)
{
    memcpy(a, bytes, sizeof *a);
    memset(&a->arena, 0, sizeof a->arena);
    a->parts = lq_push(&a->arena, (a->n + 1) * sizeof *a->parts);
    if (!a->parts) return no_room(err);
    memcpy(a->parts, bytes + sizeof *a, a->n * sizeof *a->parts);
    bytes += head_bytes(a->n);
    for (size_t i = 0; i < a->n; i++) {
        adp_part *p = &a->parts[i];
        const void *data[N_DATA];
        for (int k = 0; k < N_DATA; k++) {
            data[k] = bytes;
            bytes += lq_round_up(data_bytes(p, k), 64);
        }
        p->name = arch_role_text(p->slot.role);
        p->a = data[0];
        p->b = data[1];
        if (p->magnitude) p->magnitude = data[2];
    }
    return LQ_OK;
}
