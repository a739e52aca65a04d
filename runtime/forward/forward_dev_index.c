/* runtime/forward/forward_dev_index.c - layers with an indexer on a device: what forward_index.c does, queued. */
#include "runtime/forward/forward_dev.h"

/* Does a layer's attention read lists of positions: the most of one; 0: it sees all. */
int64_t fwd_dev_chosen(const arch_config *c, int64_t layer)
{
    if (!arch_indexed(c) || c->layer[layer].index_off) return 0;
    return c->index_every ? fwd_seen_most(c) : c->index_topk;
}

int64_t fwd_dev_listed(const arch_config *c, int64_t pos)
{
    const int64_t every = c->index_every ? c->index_every : 1, whole = (pos + 1) / every * every;
    return (whole < c->index_topk ? whole : c->index_topk) + (pos + 1) % every;
}

/* ---- sizes ---- */

/* Some layer chooses of such rows. */
static bool chooses(const fwd_dev_ctx *f, int which)
{
    bool some = false;
    for (int i = 0; i < f->n_kinds; i++)
        some |= f->kind[i].chosen && f->kind[i].has[which];
    return some;
}

size_t fwd_dev_index_stage(const fwd_dev_ctx *f, const fwd_opts *o)
{
    size_t n = 0;
    for (int which = 0; which < FWD_DEV_ROWS; which++)
        if (chooses(f, which))
            n += lq_round_up((size_t)o->max_rows * sizeof(dev_key_row), FWD_DEV_ALIGN);
    return n;
}

size_t fwd_dev_index_bytes(const fwd_dev_ctx *f, const arch_config *c, const fwd_opts *o)
{
    if (!arch_indexed(c)) return 0;
    if (c->index_block)
        return dev_topk_blocks_scratch(f->longest, c->index_block, c->index_heads, o->max_rows);
    return dev_topk_scratch(f->longest, c->index_topk, o->max_rows);
}

/* ---- a step ---- */

void fwd_dev_index_begin(fwd_dev_ctx *f, int n_seqs)
{
    for (int which = 0; which < FWD_DEV_ROWS; which++) {
        int64_t n = 0;
        if (!chooses(f, which)) continue;
        for (int i = 0; i < n_seqs; i++) {
            const attn_seq *s = &f->rows_of[which][i];
            for (int64_t t = 0; t < s->n_rows; t++)
                f->key_row_of[n++] =
                    (dev_key_row){ (int32_t)(s->row0 + t), (int32_t)(s->pos0 + t), f->table_at[i] };
        }
        f->key_rows[which] = fwd_dev_stage(f, f->key_row_of, (size_t)n * sizeof *f->key_row_of);
        f->n_key_rows[which] = n;
    }
}

/* ---- a layer ---- */

mm_out fwd_dev_index_key(const fwd_rows *r, const model_layer *l)
{
    return fwd_out(&l->lin[R_INDEX_K], r->index_k, arch_index_width(r->c), false);
}

mm_out fwd_dev_index_gate(const fwd_rows *r, const model_layer *l)
{
    return fwd_out(&l->lin[R_INDEX_GATE], r->index_k + r->c->index_dim, arch_index_width(r->c),
                   false);
}

mm_out fwd_dev_index_query(const fwd_rows *r, const model_layer *l)
{
    return fwd_out(&l->lin[R_INDEX_Q], r->index_q, r->c->index_heads * r->c->index_dim, false);
}

/* In f32 whatever the activations are, as routers. */
void fwd_dev_index_weights(const fwd_rows *r, const model_layer *l)
{
    const mm_out w = fwd_out(&l->lin[R_INDEX_W], r->index_w, r->c->index_heads, false);
    fwd_dev_product(r, &w, NULL, false, r->h, r->c->hidden, r->R, MM_F32, (dev_mm_act){ 0 });
}

void fwd_dev_index_queries(const fwd_rows *r, const model_layer *l)
{
    const fwd_dev_ctx *f = r->self;
    const model_vector *norm = &l->vec[R_INDEX_IN_NORM];
    const mm_out q = fwd_dev_index_query(r, l);
    const int64_t K = r->c->hidden;
    const float *in = norm->w ? r->index_in : r->h;
    if (norm->w)
        f->d->ops->norm(f->d, &(dev_norm_args){ .x = r->h,
                                                .h = r->index_in,
                                                .w = norm->w,
                                                .b = norm->bias,
                                                .eps = FWD_INDEX_EPS,
                                                .layer = true,
                                                .T = r->R,
                                                .K = K });
    fwd_dev_products(r, &q, 1, in, K, r->R, r->acts);
}

void fwd_dev_index_products(const fwd_rows *r, const model_layer *l)
{
    const mm_out of[] = { fwd_dev_index_key(r, l), fwd_dev_index_query(r, l) };
    fwd_dev_products(r, of, 2, r->h, r->c->hidden, r->R, r->acts);
}

/* The indexer's keys of block 0. */
static uint8_t *keys_of(const fwd_rows *r, const fwd_kv *kv)
{
    return kv->v + kv_value_bytes(r->c, kv->block_size, kv->dtype);
}

/* From there, those of groups. */
static size_t groups_at(const fwd_rows *r, const fwd_kv *kv)
{
    return r->c->index_every ? kv_groups_at(r->c, kv->block_size, kv->dtype) : 0;
}

/* MiniMax M3's are as the model's other norms, of q's heads too; of latents k's is a layer norm. */
static void norm_rows(const fwd_rows *r, const model_layer *l)
{
    const fwd_dev_ctx *f = r->self;
    const int64_t H = r->c->index_heads, D = r->c->index_dim;
    const model_vector *norm = &l->vec[R_INDEX_K_NORM];
    if (r->c->index_block) {
        const dev_norm_args k = fwd_dev_norm_of(r, r->index_k, r->index_k, norm, r->R, D),
                            q = fwd_dev_norm_of(r, r->index_q, r->index_q, &l->vec[R_INDEX_Q_NORM],
                                                r->R * H, D);
        f->d->ops->norm(f->d, &k);
        f->d->ops->norm(f->d, &q);
        return;
    }
    f->d->ops->norm(f->d, &(dev_norm_args){ .x = r->index_k,
                                            .h = r->index_k,
                                            .w = norm->w,
                                            .b = norm->bias,
                                            .eps = r->c->w.index_last ? norm->eps : FWD_INDEX_EPS,
                                            .layer = true,
                                            .T = r->R,
                                            .K = D,
                                            .ld = arch_index_width(r->c) });
}

/* The keys of groups that rows end, made of what `as` wrote, to their places. */
static void store_groups(const fwd_rows *r, const model_layer *l, const fwd_kv *kv,
                         const dev_rope_args *as)
{
    const fwd_dev_ctx *f = r->self;
    const int64_t D = r->c->index_dim, every = r->c->index_every;
    f->d->ops->group_keys(f->d, &(dev_group_keys_args){ .keys = r->index_group,
                                                        .k = as->cache_k,
                                                        .block_stride = as->block_stride,
                                                        .dtype = as->dtype,
                                                        .bias = l->vec[R_INDEX_BIAS].w,
                                                        .block = r->row_block,
                                                        .slot = r->row_slot,
                                                        .group = r->row_group,
                                                        .T = r->R,
                                                        .D = D,
                                                        .every = every });
    f->d->ops->rope(f->d, &(dev_rope_args){ .k = r->index_group,
                                            .block = r->row_block,
                                            .slot = r->row_group,
                                            .cache_k = as->cache_k + groups_at(r, kv),
                                            .block_stride = as->block_stride,
                                            .block_size = as->block_size / (int)every,
                                            .dtype = as->dtype,
                                            .T = r->R,
                                            .Hkv = 1,
                                            .D = D,
                                            .Dv = D });
}

void fwd_dev_index_store(const fwd_rows *r, const model_layer *l, const fwd_kv *kv)
{
    const fwd_dev_ctx *f = r->self;
    const arch_config *c = r->c;
    const int64_t D = c->index_dim, W = arch_index_width(c),
                  at = c->w.index_last ? D - c->rope_dims : 0;
    const bool on = c->w.pos == POS_ROPE;
    norm_rows(r, l);
    dev_rope_args turn = { .q = r->index_q + at,
                           .k = r->index_k + at,
                           .cos = on ? r->cos[ROPE_MAIN] : NULL,
                           .sin = on ? r->sin[ROPE_MAIN] : NULL,
                           .half = c->w.index_half,
                           .T = r->R,
                           .H = c->index_heads,
                           .Hkv = 1,
                           .D = D,
                           .Dv = D,
                           .R = on ? c->rope_dims : 0 };
    if (at) { /* the last dims rotate: what is written begins before them */
        f->d->ops->rope(f->d, &turn);
        turn = (dev_rope_args){ .k = r->index_k, .T = r->R, .Hkv = 1, .D = D, .Dv = D };
    } else if (W != D) { /* k has its weights beside it */
        turn.Hkv = 0;
        f->d->ops->rope(f->d, &turn);
        turn.H = 0;
        turn.Hkv = 1;
        turn.D = turn.Dv = W;
    }
    turn.block = r->row_block;
    turn.slot = r->row_slot;
    turn.cache_k = keys_of(r, kv);
    turn.block_stride = kv->block_stride;
    turn.block_size = kv->block_size;
    turn.dtype = kv_of(kv->dtype, false);
    f->d->ops->rope(f->d, &turn);
    if (c->index_every) store_groups(r, l, kv, &turn);
    fwd_dev_grow(r, r->index_q, c->index_heads, D, &l->vec[R_INDEX_SLOPE], &l->vec[R_INDEX_BASE]);
}

static void choose_blocks(const fwd_rows *r, const fwd_kv *kv, fwd_dev_which which)
{
    const fwd_dev_ctx *f = r->self;
    const arch_config *c = r->c;
    f->d->ops->topk_blocks(f->d, &(dev_topk_blocks_args){ .q = r->index_q,
                                                          .k = keys_of(r, kv),
                                                          .block_stride = kv->block_stride,
                                                          .block_size = kv->block_size,
                                                          .dtype = kv_of(kv->dtype, false),
                                                          .H = c->index_heads,
                                                          .D = c->index_dim,
                                                          .block = c->index_block,
                                                          .topk = c->index_topk / c->index_block,
                                                          .local = c->index_local,
                                                          .longest = f->longest,
                                                          .rows = f->key_rows[which],
                                                          .n_rows = f->n_key_rows[which],
                                                          .tables = f->tables,
                                                          .scratch = f->topk_scratch,
                                                          .chosen = r->index_keys,
                                                          .n_chosen = r->index_seen });
}

void fwd_dev_index_choose(const fwd_rows *r, const fwd_kv *kv, fwd_dev_which which)
{
    const fwd_dev_ctx *f = r->self;
    const arch_config *c = r->c;
    const int64_t each = c->index_every ? c->index_every : 1;
    if (c->index_block) {
        choose_blocks(r, kv, which);
        return;
    }
    f->d->ops->topk(f->d,
                    &(dev_topk_args){ .q = r->index_q,
                                      .weight = r->index_w,
                                      .weight_scale = (float)(1 / sqrt((double)c->index_heads)),
                                      .k = keys_of(r, kv) + groups_at(r, kv),
                                      .block_stride = kv->block_stride,
                                      .block_size = kv->block_size / (int)each,
                                      .dtype = kv_of(kv->dtype, false),
                                      .H = c->index_heads,
                                      .D = c->index_dim,
                                      .scale = (float)(1 / sqrt((double)c->index_dim)),
                                      .topk = c->index_topk / each,
                                      .every = c->index_every,
                                      .longest = lq_ceil_div(f->longest, each),
                                      .rows = f->key_rows[which],
                                      .n_rows = f->n_key_rows[which],
                                      .tables = f->tables,
                                      .scratch = f->topk_scratch,
                                      .chosen = r->index_keys });
    if (!c->index_every) return;
    f->d->ops->group_list(f->d, &(dev_group_list_args){ .list = r->seen,
                                                        .chosen = r->index_keys,
                                                        .rows = f->key_rows[which],
                                                        .n_rows = f->n_key_rows[which],
                                                        .ld = fwd_seen_most(c),
                                                        .every = each,
                                                        .most = c->index_topk / each });
}
