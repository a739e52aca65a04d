/* runtime/forward/forward_dev_mla.c - latent attention on a device: what forward_mla.c does, queued. */
#include "runtime/forward/forward_dev.h"

#include "kernels/hadamard.h"

/* K floats from row to row `ld` apart, into dst. */
static void norm_latent(const fwd_rows *r, float *dst, float *x, int64_t ld, const model_vector *v,
                        int64_t K)
{
    const fwd_dev_ctx *f = r->self;
    f->d->ops->norm(f->d, &(dev_norm_args){ .x = x,
                                            .h = dst,
                                            .w = v->w,
                                            .eps = (float)arch_norm_eps(r->c, R_KV_A_NORM),
                                            .T = r->R,
                                            .K = K,
                                            .ld = ld });
}

/* What is cached, before it rotates. */
static void norm_cached(const fwd_rows *r, const model_layer *l)
{
    const fwd_dev_ctx *f = r->self;
    const arch_config *c = r->c;
    const int64_t width = kv_latent_width(c);
    float *turned = r->kv_a + c->kv_lora;
    if (!l->lin[R_KV_A].present) return; /* another layer's */
    norm_latent(r, r->kv_a, r->kv_a, width, &l->vec[R_KV_A_NORM], c->kv_lora);
    fwd_dev_times(r, r->kv_a, c->kv_lora, width, c->latent_scale);
    dev_norm_args a =
        fwd_dev_norm_of(r, turned, turned, &l->vec[R_K_ROPE_NORM], r->R, c->rope_dims);
    a.layer = false;
    a.ld = width;
    if (a.w) f->d->ops->norm(f->d, &a);
}

/* `rope` of each of H * `width` floats at x. */
static void rotate_part(const fwd_rows *r, float *x, int64_t H, int64_t width)
{
    const fwd_dev_ctx *f = r->self;
    const arch_rope_use use = r->turn == ROPE_LOCAL ? ROPE_LOCAL : ROPE_MAIN;
    f->d->ops->rope(f->d, &(dev_rope_args){ .q = x,
                                            .cos = r->cos[use],
                                            .sin = r->sin[use],
                                            .half = r->c->w.rope_half,
                                            .T = r->R,
                                            .H = H,
                                            .D = width,
                                            .R = r->c->rope_dims });
}

/* The products of what R_Q_A_NORM gives, or of h where there are no latents of queries. */
static void queries(const fwd_rows *r, const model_layer *l)
{
    const arch_config *c = r->c;
    const int64_t Q = arch_q_width(c);
    const bool gated = c->w.q_gated;
    const mm_out q = fwd_out(&l->lin[R_Q_B], gated ? r->q_gate : r->q,
                             gated ? fwd_gate_width(c) : c->heads * c->head_dim, false),
                 index = fwd_dev_index_query(r, l);
    if (c->q_lora) {
        norm_latent(r, r->q_a, r->q_a + Q - c->q_lora, Q, &l->vec[R_Q_A_NORM], c->q_lora);
        const mm_out both[] = { q, index };
        const int n = gated || !l->lin[R_INDEX_Q].present ? 1 : 2;
        fwd_dev_products(r, both, n, r->q_a, Q, r->R, r->acts);
        if (gated && l->lin[R_INDEX_Q].present) /* of the first half of what R_Q_B reads */
            fwd_dev_products(r, &index, 1, r->q_a, Q, r->R, r->acts);
        if (gated) fwd_dev_split_gated(r);
    } else if (l->lin[R_INDEX_Q].present) {
        fwd_dev_index_queries(r, l);
    }
}

void fwd_dev_mla(const fwd_rows *r, const model_layer *l)
{
    const arch_config *c = r->c;
    const int64_t H = c->heads, D = c->head_dim, width = kv_latent_width(c), Q = arch_q_width(c);
    const bool indexed = l->lin[R_INDEX_Q].present, own = l->lin[R_KV_A].present;
    mm_out a[6] = { c->q_lora ? fwd_out(&l->lin[R_Q_A], r->q_a + Q - c->q_lora, Q, false)
                              : fwd_out(&l->lin[R_Q], r->q, H * D, false) };
    int n = 1;
    if (own) a[n++] = fwd_out(&l->lin[R_KV_A], r->kv_a, width, false);
    if (indexed) a[n++] = fwd_dev_index_key(r, l);
    if (indexed && c->index_every) a[n++] = fwd_dev_index_gate(r, l);
    if (l->lin[R_ATTN_GATE].present)
        a[n++] = fwd_out(&l->lin[R_ATTN_GATE], r->q_gate, fwd_gate_width(c), false);
    if (fwd_head_gates(c)) a[n++] = fwd_out(&l->lin[R_HEAD_GATE], r->head_gate, H, false);
    fwd_dev_products(r, a, n, r->h, c->hidden, r->R, r->acts);
    if (indexed) fwd_dev_index_weights(r, l);
    norm_cached(r, l);
    queries(r, l);
    if (c->w.pos == POS_ROPE && c->rope_dims) {
        rotate_part(r, r->q + c->nope_dims, H, D);
        if (own) rotate_part(r, r->kv_a + c->kv_lora, 1, width);
    }
    fwd_dev_grow(r, r->q, H, D, &l->vec[R_Q_SLOPE], &l->vec[R_Q_BASE]);
}

/* n floats of each of A times B rows: [A, B] of src to [B, A] of dst. */
static void swap(const fwd_rows *r, float *dst, int64_t ldd, const float *src, int64_t lds,
                 int64_t n, int64_t A, int64_t B)
{
    const fwd_dev_ctx *f = r->self;
    f->d->ops->swap(f->d, &(dev_swap_args){ dst, src, A, B, n, ldd, lds });
}

/* y = x W of each head, both [heads, R, ..]. */
static void head_product(const fwd_rows *r, const model_experts *w, float *y, int64_t ldy,
                         const float *x, int64_t ldx)
{
    const fwd_dev_ctx *f = r->self;
    const int64_t H = r->c->heads;
    const dev_group group = { w->parts, f->head_first, f->head_busy, H, r->R };
    fwd_dev_product_of_set(r, w, &group, r->R * H, y, ldy, x, ldx);
}

void fwd_dev_store_latents(const fwd_rows *r, const model_layer *l, const fwd_kv *kv)
{
    const fwd_dev_ctx *f = r->self;
    const arch_config *c = r->c;
    const int64_t H = c->heads, D = c->head_dim, nope = c->nope_dims, L = kv_latent_width(c);
    swap(r, r->by_head, nope, r->q, D, nope, r->R, H);
    head_product(r, &l->absorbed[0], r->latent, L, r->by_head, nope);
    if (c->rope_dims) swap(r, r->latent + c->kv_lora, L, r->q + nope, D, c->rope_dims, r->R, H);
    if (kv_turned(kv_of(kv->dtype, true))) {
        fwd_dev_turn(r, r->latent, H, L, 0, false);
        if (!kv->there) fwd_dev_turn(r, r->kv_a, 1, L, 0, false);
    }
    if (kv->there) return;
    f->d->ops->rope(f->d, &(dev_rope_args){ .k = r->kv_a,
                                            .block = r->row_block,
                                            .slot = r->row_slot,
                                            .cache_k = kv->k,
                                            .block_stride = kv->block_stride,
                                            .block_size = kv->block_size,
                                            .dtype = kv_of(kv->dtype, true),
                                            .T = r->R,
                                            .Hkv = 1,
                                            .D = L,
                                            .Dv = L });
}

void fwd_dev_latent_values(const fwd_rows *r, const model_layer *l, const fwd_kv *kv)
{
    const fwd_dev_ctx *f = r->self;
    const fwd_dev_heads h = fwd_dev_heads_of(r->c, f->types);
    const int64_t H = r->c->heads, V = r->c->v_dim, L = h.D, order = k_hadamard_order(L);
    if (kv_turned(kv_of(kv->dtype, false)))
        f->d->ops->turn(
            f->d, &(dev_turn_args){
                      .x = r->latent, .T = r->R * H, .H = h.Dv / order, .D = order, .ld = L });
    head_product(r, &l->absorbed[1], r->by_head, V, r->latent, L);
    swap(r, r->a, V, r->by_head, V, V, H, r->R);
}
