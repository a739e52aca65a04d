/* formats/source/adapter_parts.c - tensors of either container of adapters become parts: checked, copied,
 * in order. */
#include "formats/source/adapter_impl.h"

#include <stdio.h>
#include <stdlib.h>

static const char *const which_text[ADP_N_PIECES] = { "A", "B", "magnitude" };

lq_status adp_no_target(const src_source *base, const char *tensor, lq_err *err)
{
    return lq_fail(err, LQ_EUNSUPPORTED, "tensor '%.200s': expected a linear of %s, found another",
                   tensor, src_config(base)->row->arch);
}

/* ---- tensors of the file ---- */

static adp_raw *find_raw(adp_reading *r, const arch_slot *slot)
{
    for (size_t i = 0; i < r->n; i++) {
        const arch_slot *s = &r->raw[i].slot;
        if (s->role == slot->role && s->layer == slot->layer && s->expert == slot->expert)
            return &r->raw[i];
    }
    return NULL;
}

lq_status adp_put(adp_reading *r, const arch_slot *slot, const char *module, adp_which which,
                  const adp_piece *p, lq_err *err)
{
    const bool stack = arch_role_per_expert(slot->role) && slot->expert < 0;
    if (slot->bias || stack || arch_role_kind(slot->role) == ARCH_VECTOR ||
        slot->role < R_FINAL_NORM)
        return adp_no_target(r->base, p->name, err);
    if (!arch_has(src_config(r->base), slot->role, slot->layer))
        return lq_fail(err, LQ_EUNSUPPORTED,
                       "tensor '%.200s': expected a weight that is there, found %s%s", p->name,
                       arch_role_text(slot->role),
                       slot->role == R_HEAD ? ", which is the embedding" : "");
    if (!lq_dtype_is_float(p->dtype))
        return lq_fail(err, LQ_EUNSUPPORTED, "tensor '%.200s': expected f32, f16 or bf16, found %s",
                       p->name, lq_dtype_text(p->dtype));
    adp_raw *raw = find_raw(r, slot);
    if (!raw) raw = &r->raw[r->n++];
    if (raw->piece[which].data)
        return lq_fail(err, LQ_EFORMAT, "tensor '%.150s': expected one %s, found '%.150s' too",
                       p->name, which_text[which], raw->piece[which].name);
    raw->slot = *slot;
    raw->module = module;
    raw->piece[which] = *p;
    return LQ_OK;
}

/* ---- one part ---- */

static lq_status check_halves(const adp_raw *raw, lq_err *err)
{
    const adp_piece *a = &raw->piece[ADP_A], *b = &raw->piece[ADP_B];
    const adp_piece *m = &raw->piece[ADP_MAGNITUDE];
    if (a->data && b->data) return LQ_OK;
    return lq_fail(err, LQ_ESHAPE, "tensor '%.200s': expected both A and B, found no %s",
                   a->data   ? a->name
                   : b->data ? b->name
                             : m->name,
                   a->data ? "B" : "A");
}

static lq_status check_shape(const adp_piece *p, int64_t N, int64_t K, lq_err *err)
{
    int64_t n = 1;
    for (int i = 0; i < p->n_dims; i++)
        n *= p->shape[i];
    const bool fits = K == 1 ? n == N : p->n_dims == 2 && p->shape[0] == N && p->shape[1] == K;
    if (fits) return LQ_OK;
    char found[64] = "";
    size_t at = 0;
    for (int i = 0; i < p->n_dims && at < sizeof found; i++)
        at += (size_t)snprintf(found + at, sizeof found - at, "%s%lld", i ? "," : "",
                               (long long)p->shape[i]);
    return lq_fail(err, LQ_ESHAPE, "tensor '%.200s': expected [%lld,%lld], found [%s]", p->name,
                   (long long)N, (long long)K, found);
}

/* n elements as `to`, aligned, in the arena. LQ_EVALUE: one is not finite. */
static lq_status copy(void **out, const adp_piece *p, int64_t n, lq_dtype to, lq_arena *a,
                      lq_err *err)
{
    float *f = malloc((size_t)n * sizeof *f + 1);
    *out = lq_push(a, (size_t)n * lq_dtype_bytes(to) + 1);
    lq_status s = f && *out ? LQ_OK : lq_fail(err, LQ_ENOMEM, "adapter: out of memory");
    if (!s) lq_to_f32(f, p->data, p->dtype, (size_t)n);
    for (int64_t i = 0; i < n && !s; i++)
        if (!isfinite(f[i]))
            s = lq_fail(err, LQ_EVALUE,
                        "tensor '%.200s': element %lld: expected a number, found %s", p->name,
                        (long long)i, isnan(f[i]) ? "NaN" : "infinity");
    if (!s) lq_from_f32(*out, f, to, (size_t)n);
    free(f);
    return s;
}

/* B's rows from GGUF's order to ours. */
static lq_status reorder(const void **b, const adp_part *part, const adp_reading *r, lq_arena *a,
                         lq_err *err)
{
    const gguf_order o = gguf_order_of(r->order, src_config(r->base), &part->slot);
    const size_t row = (size_t)part->rank * lq_dtype_bytes(part->dtype);
    if (o.kind == GGUF_AS_STORED) return LQ_OK;
    if (o.kind == GGUF_GATE_UP) return adp_no_target(r->base, part->name, err);
    uint8_t *own = lq_push(a, (size_t)part->N * row);
    if (!own) return lq_fail(err, LQ_ENOMEM, "adapter: out of memory");
    for (int64_t n = 0; n < part->N; n++) {
        bool second;
        memcpy(own + (size_t)n * row,
               (const uint8_t *)*b + (size_t)gguf_stored_row(&o, n, part->N, &second) * row, row);
    }
    *b = own;
    return LQ_OK;
}

static lq_status name_weight(adp_part *part, const arch_config *c, lq_arena *a, lq_err *err)
{
    char name[256];
    const arch_slot *s = &part->slot;
    if (!arch_tensor_name(c, s->role, s->layer, s->expert, false, name, sizeof name)) name[0] = 0;
    part->name = lq_push_str(a, name, strlen(name));
    return part->name ? LQ_OK : lq_fail(err, LQ_ENOMEM, "adapter: out of memory");
}

static lq_status make_part(adp_part *part, const adp_raw *raw, const adp_reading *r, lq_arena *a,
                           lq_err *err)
{
    const adp_piece *pa = &raw->piece[ADP_A], *pb = &raw->piece[ADP_B];
    const adp_piece *pm = &raw->piece[ADP_MAGNITUDE];
    const arch_config *c = src_config(r->base);
    lq_status s = check_halves(raw, err);
    if (s) return s;
    part->slot = raw->slot;
    part->rank = pa->shape[0];
    part->dtype = pa->dtype == pb->dtype ? pa->dtype : LQ_F32;
    arch_role_shape(arch_at(c, raw->slot.layer), raw->slot.role, &part->N, &part->K);
    if (pa->n_dims != 2 || part->rank < 1 || part->rank > ADP_MAX_RANK)
        return lq_fail(err, LQ_ESHAPE,
                       "tensor '%.200s': expected a rank of 1..%d, found %d dims, the first %lld",
                       pa->name, (int)ADP_MAX_RANK, pa->n_dims, (long long)part->rank);
    s = r->scale(&part->scale, r->user, raw, part->rank, err);
    if (!s) s = check_shape(pa, part->rank, part->K, err);
    if (!s) s = check_shape(pb, part->N, part->rank, err);
    if (!s && pm->data) s = check_shape(pm, part->N, 1, err);
    if (!s) s = name_weight(part, c, a, err);
    void *to = NULL;
    if (!s) s = copy(&to, pa, part->rank * part->K, part->dtype, a, err);
    part->a = to;
    if (!s) s = copy(&to, pb, part->N * part->rank, part->dtype, a, err);
    part->b = to;
    if (!s && pm->data) s = copy(&to, pm, part->N, LQ_F32, a, err);
    part->magnitude = pm->data ? to : NULL;
    return s || !r->order ? s : reorder(&part->b, part, r, a, err);
}

/* ---- all ---- */

static int by_place(const void *x, const void *y)
{
    const arch_slot *a = &((const adp_part *)x)->slot, *b = &((const adp_part *)y)->slot;
    if (a->layer != b->layer) return a->layer < b->layer ? -1 : 1;
    if (a->role != b->role) return a->role < b->role ? -1 : 1;
    return a->expert < b->expert ? -1 : a->expert > b->expert;
}

static lq_status identify(adp_adapter *a, lq_err *err)
{
    lq_hasher *h = lq_hasher_new();
    if (!h) return lq_fail(err, LQ_ENOMEM, "adapter: out of memory");
    for (size_t i = 0; i < a->n; i++) {
        const adp_part *p = &a->parts[i];
        const size_t e = lq_dtype_bytes(p->dtype);
        const int64_t head[] = {
            p->slot.layer, p->slot.role, p->slot.expert, p->rank,
            p->N,          p->K,         p->dtype,       p->magnitude != NULL
        };
        lq_hasher_add(h, head, sizeof head);
        lq_hasher_add(h, &p->scale, sizeof p->scale);
        lq_hasher_add(h, p->a, (size_t)(p->rank * p->K) * e);
        lq_hasher_add(h, p->b, (size_t)(p->N * p->rank) * e);
        if (p->magnitude) lq_hasher_add(h, p->magnitude, (size_t)p->N * sizeof *p->magnitude);
    }
    const lq_hash all = lq_hasher_end(h);
    memcpy(&a->id, all.b, sizeof a->id);
    if (!a->id) a->id = 1;
    return LQ_OK;
}

lq_status adp_finish(adp_adapter *a, const adp_reading *r, lq_err *err)
{
    if (!r->n) return lq_fail(err, LQ_EFORMAT, "expected tensors of an adapter, found none");
    a->parts = lq_push(&a->arena, r->n * sizeof *a->parts);
    if (!a->parts) return lq_fail(err, LQ_ENOMEM, "adapter: out of memory");
    lq_status s = LQ_OK;
    for (; a->n < r->n && !s; a->n++) {
        adp_part *p = &a->parts[a->n];
        s = make_part(p, &r->raw[a->n], r, &a->arena, err);
        if (p->rank > a->rank) a->rank = p->rank;
        a->dora = a->dora || p->magnitude;
    }
    if (s) return s;
    qsort(a->parts, a->n, sizeof *a->parts, by_place);
    return identify(a, err);
}
