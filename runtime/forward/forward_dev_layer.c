/* runtime/forward/forward_dev_layer.c - what the steps of a layer are on a device: all are queued. */
#include "runtime/forward/choose.h"
#include "runtime/forward/forward_dev.h"

#include <assert.h>

static void products(const fwd_rows *r, const mm_out *outs, int n, const float *x, int64_t ldx,
                     int64_t M)
{
    fwd_dev_products(r, outs, n, x, ldx, M, r->acts);
}

/* Are rows of R_QKV in groups, and not all of q, all of k, all of v? */
static bool in_parts(const arch_config *c) { return c->w.qkv_grouped || c->w.qkv_quarters; }

/* R_QKV's output of groups, for each kv head [its q heads, k, v] or for each quarter of the heads [q v k], in three
 * places. Of several devices each has some of the four. */
static void split(const fwd_rows *r)
{
    const fwd_dev_ctx *f = r->self;
    const arch_config *c = r->c;
    const bool quarters = c->w.qkv_quarters;
    const int64_t parts = quarters ? 4 / f->on->ranks : c->kv_heads, group = c->kv_heads / parts;
    const int64_t nq = c->heads / parts * c->head_dim, nk = group * c->head_dim,
                  nv = group * c->v_dim, w = fwd_qkv_width(c);
    for (int64_t i = 0; i < parts; i++) {
        const float *from = r->qkv + i * (nq + nk + nv);
        fwd_dev_copy(r, r->q + i * nq, parts * nq, from, w, nq, r->R);
        fwd_dev_copy(r, r->k + i * nk, parts * nk, from + nq + (quarters ? nv : 0), w, nk, r->R);
        fwd_dev_copy(r, r->v + i * nv, parts * nv, from + nq + (quarters ? 0 : nk), w, nv, r->R);
    }
}

/* Where q, k and v are: each in rows of its own, or, as R_QKV leaves them, in rows of all three. */
typedef struct {
    float *q, *k, *v;
    int64_t ld, ldq, ldk; /* ld: of all three; 0: of each its own */
} heads;

static heads heads_of(const fwd_rows *r, const model_layer *l)
{
    const arch_config *c = r->c;
    const int64_t Q = c->heads * c->head_dim, K = c->kv_heads * c->head_dim, ld = fwd_qkv_width(c);
    if (l->lin[R_QKV].present && !in_parts(c))
        return (heads){ r->qkv, r->qkv + Q, r->qkv + Q + K, ld, ld, ld };
    return (heads){ r->q, r->k, r->v, 0, Q, K };
}

/* Of q, or of k, whose sums are the second R: this device's part of the norm of all heads. */
static dev_share_args shared_norm(const fwd_rows *r, const model_layer *l, bool key)
{
    const arch_config *c = r->c;
    const int64_t K = (key ? c->kv_heads : c->heads) * c->head_dim;
    const fwd_dev_ctx *f = r->self;
    const heads at = heads_of(r, l);
    const model_vector *v = &l->vec[key ? R_K_NORM : R_Q_NORM];
    return (dev_share_args){ .x = key ? at.k : at.q,
                             .sums = r->squares + (key ? r->R : 0),
                             .w = v->w,
                             .offset = v->offset,
                             .eps = v->eps,
                             .T = r->R,
                             .K = K,
                             .whole = K * f->on->ranks,
                             .ld = at.ld };
}

static void norm_heads(const fwd_rows *r, const model_layer *l, bool key)
{
    const fwd_dev_ctx *f = r->self;
    const int64_t D = r->c->head_dim, H = key ? r->c->kv_heads : r->c->heads;
    const model_vector *v = &l->vec[key ? R_K_NORM : R_Q_NORM];
    const dev_share_args share = shared_norm(r, l, key);
    const heads at = heads_of(r, l);
    float *x = key ? at.k : at.q;
    const bool all = r->c->w.qk_norm == QK_NORM_ALL;
    dev_norm_args a =
        all ? fwd_dev_norm_of(r, x, x, v, r->R, H * D) : fwd_dev_norm_of(r, x, x, v, r->R * H, D);
    a.ld = key ? at.ldk : at.ldq;
    a.side = all ? 1 : H;
    a.rows = r->c->w.qk_norm == QK_NORM_HEADS ? H : 1;
    if (fwd_norm_shared(r))
        f->d->ops->scale(f->d, &share);
    else if (r->c->w.qk_norm != QK_NORM_NONE && v->w)
        f->d->ops->norm(f->d, &a);
}

static void norm_values(const fwd_rows *r, const model_layer *l)
{
    const fwd_dev_ctx *f = r->self;
    const int64_t D = r->c->v_dim, H = r->c->kv_heads;
    const heads at = heads_of(r, l);
    dev_norm_args a = fwd_dev_norm_of(r, at.v, at.v, &l->vec[R_V_NORM], r->R * H, D);
    a.ld = at.ld ? at.ld : H * D;
    a.side = H;
    if (a.w) f->d->ops->norm(f->d, &a);
}

/* The attention of such layers rotates, writes the cache and merges itself. */
static bool joins(const fwd_dev_ctx *f, const fwd_dev_kind *k)
{
    return f->even && k->few == DEV_ATTN_DECODE;
}

enum { CLIP = 1, TURN = 2, WRITE = 4 }; /* into the cache */

/* What is asked for, in this order. What writes the cache is all that is left to do before
 * attention, which may do it. */
static void rotate(const fwd_rows *r, const model_layer *l, int64_t layer, const fwd_kv *kv,
                   unsigned what)
{
    fwd_dev_ctx *f = r->self;
    const heads at = heads_of(r, l);
    const bool write = what & WRITE, own = !r->c->layer[layer].kv_back;
    const arch_config *c = r->c;
    const arch_rope_use use = c->layer[layer].rope;
    const bool on = what & TURN && c->w.pos == POS_ROPE && use != ROPE_OFF;
    const dev_rope_args a = { .q = at.q,
                              .k = at.k,
                              .v = at.v,
                              .ld = at.ld,
                              .cos = on ? r->cos[use] : NULL,
                              .sin = on ? r->sin[use] : NULL,
                              .block = r->row_block,
                              .slot = r->row_slot,
                              .cache_k = write ? kv->k : NULL,
                              .cache_v = write ? kv->v : NULL,
                              .block_stride = kv->block_stride,
                              .block_size = kv->block_size,
                              .dtype = kv_of(kv->dtype, true),
                              .half = c->w.rope_half,
                              .clip = what & CLIP ? (float)c->qkv_clip : 0.0f,
                              .T = r->R,
                              .H = c->heads,
                              .Hkv = own ? c->kv_heads : 0,
                              .D = c->head_dim,
                              .Dv = c->v_dim,
                              .R = on ? c->rope_dims : 0 };
    if (write && a.clip == 0 && joins(f, fwd_dev_kind_at(r, layer)))
        f->late_rope = a;
    else
        f->d->ops->rope(f->d, &a);
}

/* Into the cache, after what else is asked for; q, k and v turned where its rows are. */
static void write_heads(const fwd_rows *r, const model_layer *l, int64_t layer, const fwd_kv *kv,
                        unsigned what)
{
    const arch_config *c = r->c;
    const heads at = heads_of(r, l);
    if (kv_turned(kv_of(kv->dtype, true))) {
        if (what) rotate(r, l, layer, kv, what);
        what = 0;
        fwd_dev_turn(r, at.q, c->heads, c->head_dim, at.ld, false);
        fwd_dev_turn(r, at.k, c->kv_heads, c->head_dim, at.ld, false);
        fwd_dev_turn(r, at.v, c->kv_heads, c->v_dim, at.ld, false);
    }
    rotate(r, l, layer, kv, WRITE | what);
}

/* ---- attention's gates ---- */

static bool gated_by(const fwd_rows *r, const model_layer *l)
{
    return r->c->w.q_gated || fwd_head_gates(r->c) || l->lin[R_ATTN_GATE].present;
}

/* A gate of W numbers a row, those of a head `step` apart. */
static void gate_by(const fwd_rows *r, const float *gate, const float *bias, int64_t W,
                    int64_t step, int64_t n)
{
    const fwd_dev_ctx *f = r->self;
    const arch_config *c = r->c;
    const int64_t D = c->v_dim;
    f->d->ops->gate(
        f->d, &(dev_gate_args){ .x = r->a,
                                .gate = gate,
                                .bias = bias,
                                .T = r->R,
                                .S = c->heads,
                                .n = D,
                                .ldx = c->heads * D,
                                .ldg = W,
                                .each = 1,
                                .step = step,
                                .width = n,
                                .f = c->w.gate_softplus ? DEV_GATE_SOFTPLUS : DEV_GATE_SIGMOID,
                                .bf16 = f->rounds });
}

static void gate_heads(const fwd_rows *r, const model_layer *l)
{
    const arch_config *c = r->c;
    const int64_t W = fwd_gate_width(c), H = c->heads, D = c->v_dim;
    if (c->w.q_gated) gate_by(r, r->q_gate + c->head_dim, NULL, W, c->head_dim + D, D);
    if (l->lin[R_ATTN_GATE].present)
        gate_by(r, r->q_gate, l->vec[R_GATE_BIAS].w, W, W / H, c->w.gate_heads ? 1 : D);
    if (fwd_head_gates(c)) gate_by(r, r->head_gate, NULL, H, 1, 1);
}

/* ---- q, k and v ---- */

/* q, k and v up to where their heads are normed. */
static void before_norm(const fwd_rows *r, const model_layer *l, int64_t layer, const fwd_kv *kv)
{
    const bool late = r->c->w.qk_norm_late, normed = r->c->w.qk_norm != QK_NORM_NONE;
    const int64_t K = r->c->kv_heads * r->c->head_dim;
    if (r->c->layer[layer].v_is_k) fwd_dev_copy(r, r->v, K, r->k, K, K, r->R);
    if (l->lin[R_QKV].present && in_parts(r->c)) split(r);
    if (r->c->w.q_gated) fwd_dev_split_gated(r);
    if (normed && (late || r->c->qkv_clip > 0)) rotate(r, l, layer, kv, late ? CLIP | TURN : CLIP);
}

static void squares(const fwd_rows *r, const model_layer *l, int64_t layer, const fwd_kv *kv)
{
    const fwd_dev_ctx *f = r->self;
    const dev_share_args q = shared_norm(r, l, false), k = shared_norm(r, l, true);
    before_norm(r, l, layer, kv);
    f->d->ops->squares(f->d, &q);
    f->d->ops->squares(f->d, &k);
}

/* q times its positions' factor: a rotation by no angle. */
static void grow_q(const fwd_rows *r, const model_layer *l, int64_t layer)
{
    const fwd_dev_ctx *f = r->self;
    const heads at = heads_of(r, l);
    if (!fwd_grows_in(r->c, layer)) return;
    f->d->ops->rope(f->d, &(dev_rope_args){ .q = at.q,
                                            .ld = at.ld,
                                            .cos = r->grow[0],
                                            .sin = r->grow[1],
                                            .half = true,
                                            .T = r->R,
                                            .H = r->c->heads,
                                            .D = r->c->head_dim,
                                            .R = r->c->head_dim });
}

static void store(const fwd_rows *r, const model_layer *l, int64_t layer, const fwd_kv *kv,
                  const fwd_group *g)
{
    const bool late = r->c->w.qk_norm_late, normed = r->c->w.qk_norm != QK_NORM_NONE;
    assert(g->row0 == 0 && g->n_rows == r->R);
    if (r->c->w.mla) {
        grow_q(r, l, layer);
        fwd_dev_store_latents(r, l, kv);
        if (l->lin[R_INDEX_Q].present) fwd_dev_index_store(r, l, kv);
        return;
    }
    if (r->c->layer[layer].kv_back) { /* k and v are there */
        norm_heads(r, l, false);
        rotate(r, l, layer, kv, TURN);
        if (kv_turned(kv_of(kv->dtype, true)))
            fwd_dev_turn(r, heads_of(r, l).q, r->c->heads, r->c->head_dim, 0, false);
        return;
    }
    if (!fwd_norm_shared(r)) before_norm(r, l, layer, kv);
    norm_heads(r, l, false);
    norm_heads(r, l, true);
    norm_values(r, l);
    grow_q(r, l, layer);
    if (l->lin[R_INDEX_Q].present) fwd_dev_index_store(r, l, kv);
    write_heads(r, l, layer, kv, (normed ? 0 : CLIP) | (late && normed ? 0 : TURN));
}

static dev_attn_args attn_of(const fwd_rows *r, const fwd_dev_heads h, const fwd_kv *kv)
{
    const arch_config *c = r->c;
    return (dev_attn_args){ .q = r->q,
                            .out = r->a,
                            .k = kv->k,
                            .v = kv->v,
                            .alibi = c->w.pos == POS_ALIBI ? r->slopes : NULL,
                            .ldq = h.H * h.D,
                            .ldo = h.H * h.Dv,
                            .H = h.H,
                            .Hkv = h.Hkv,
                            .D = h.D,
                            .Dv = h.Dv,
                            .latent = h.latent,
                            .block_stride = kv->block_stride,
                            .block_size = kv->block_size,
                            .dtype = kv_of(kv->dtype, true),
                            .scale = (float)c->attn_scale,
                            .softcap = (float)c->attn_softcap,
                            .alibi_scaled = c->w.alibi_scaled,
                            .alibi_bf16 = c->w.alibi_bf16,
                            .both = c->w.both_ways };
}

static void attend(const fwd_rows *r, const model_layer *l, int64_t layer, const fwd_kv *kv,
                   const fwd_group *g)
{
    fwd_dev_ctx *f = r->self;
    const fwd_dev_kind *k = fwd_dev_kind_at(r, layer);
    fwd_dev_which which = 0;
    while (f->rows_of[which] != g->seqs)
        which++;
    dev_attn_args a = attn_of(r, k->heads, kv);
    if (a.latent) {
        a.q = a.out = r->latent;
        a.ldq = a.ldo = a.D;
        a.hq = a.ho = r->R * a.D;
    } else {
        const heads in = heads_of(r, l);
        a.q = in.q;
        a.ldq = in.ldq;
    }
    const bool turned = kv_turned(kv_of(kv->dtype, false));
    const bool gated = gated_by(r, l);
    a.bf16 = f->rounds && !turned && !gated;
    a.sinks = l->vec[R_SINKS].w;
    a.dist_bias = l->dist_bias;
    a.n_dist = MODEL_DIST;
    a.window = k->window && r->c->row->window != WINDOW_CHUNKS ? r->c->window : 0;
    if (l->lin[R_INDEX_Q].present) fwd_dev_index_choose(r, kv, which);
    a.keys = !k->chosen ? NULL : r->c->index_every ? r->seen : r->index_keys;
    a.ld_keys = k->chosen;
    a.keys_by_head = k->chosen && r->c->index_block;
    a.n_keys = a.keys_by_head ? r->index_seen : NULL;
    a.tables = f->tables;
    a.scratch = f->attn_scratch;
    a.rope = f->late_rope.T ? &f->late_rope : NULL;
    a.done = joins(f, k) ? f->attn_done : NULL;
    for (a.how = 0; a.how < DEV_ATTN_N; a.how++) {
        const fwd_plan *p = &k->plans[a.how][which];
        dev_attn_args own = a;
        own.split = p->split;
        if (p->n_launches && k->widens && a.how == DEV_ATTN_WIDE) fwd_dev_widen(f, k, &own);
        for (int64_t i = 0; i < p->n_launches; i++) {
            const fwd_launch *at = &p->launches[i];
            own.chunks = p->chunks + at->chunk;
            own.chunk_of = p->chunk_of + at->slot;
            own.n_chunks = at->n_chunks;
            own.n_slots = at->n_slots;
            f->d->ops->attn(f->d, &own);
        }
    }
    f->late_rope.T = 0;
    if (a.latent)
        fwd_dev_latent_values(r, l, kv);
    else if (turned)
        fwd_dev_turn(r, r->a, r->c->heads, r->c->v_dim, 0, f->rounds && !gated);
    if (gated) gate_heads(r, l);
    fwd_dev_times(r, r->a, r->c->heads * r->c->v_dim, r->c->heads * r->c->v_dim, r->c->o_scale);
}

/* What layers that follow attend to, of the picked rows. */
static void gather_lists(fwd_rows *r, int64_t n)
{
    const int64_t K = fwd_lists_beyond(r->whole);
    float *to = (float *)(void *)r->index_keys_row, *from = (float *)(void *)r->index_keys;
    fwd_dev_gather(r, &from, &to, K, n);
    r->index_keys = (int32_t *)(void *)from;
    r->index_keys_row = (int32_t *)(void *)to;
}

static void pick(fwd_rows *r, const int64_t *rows, int64_t n)
{
    fwd_dev_ctx *f = r->self;
    (void)rows; /* as they were staged */
    if (n == r->R) return;
    f->lora.now = &f->lora.picked;
    fwd_dev_gather(r, &r->x, &r->y, r->c->hidden, n);
    if (r->c->w.parallel || r->c->laurel)
        fwd_dev_gather(r, &r->h, &r->y, r->c->hidden, n); /* its MLP, or Laurel, reads h too */
    if (r->c->streams || r->c->hyper)
        fwd_dev_gather(r, &r->streams, &r->streams_row, fwd_streams_width(r->c), n);
    if (r->c->streams) fwd_dev_gather(r, &r->first, &r->y, r->c->hidden, n);
    if (r->c->row->early) fwd_dev_gather(r, &r->beside, &r->y, r->c->hidden, n);
    if (r->c->w.shortcut) fwd_dev_gather(r, &r->streams, &r->y, r->c->hidden, n);
    if (r->c->hyper) fwd_dev_gather(r, &r->hyper, &r->hyper_row, arch_hyper_width(r->c), n);
    fwd_dev_gather(r, &r->a, &r->q, r->c->heads * r->c->v_dim, n);
    if (f->states)
        fwd_dev_gather(r, &r->mix_out, &r->mix, arch_mix_width(r->c, r->c->row->mixer), n);
    if (r->c->ple_dim) fwd_dev_gather(r, &r->ple, &r->ple_row, fwd_ple_width(r->c), n);
    if (fwd_lists_beyond(r->whole)) gather_lists(r, n);
    if (fwd_dev_packs(r->whole)) {
        r->turns = f->packed_turns;
        f->head_first = f->packed_head_first;
    }
    for (arch_rope_use u = ROPE_MAIN; u <= ROPE_LOCAL && f->packed_cos[u]; u++) {
        r->cos[u] = f->packed_cos[u]; /* layers may follow */
        r->sin[u] = f->packed_sin[u];
    }
}

static void xielu(const fwd_rows *r)
{
    const fwd_dev_ctx *f = r->self;
    const model_vector *v = r->layer->vec;
    const float b = *v[R_XIELU_BETA].w;
    f->d->ops->xielu(f->d, &(dev_xielu_args){ .x = r->mlp,
                                              .T = r->R,
                                              .n = r->c->ffn,
                                              .ld = fwd_mlp_width(r->c),
                                              .p = fwd_softplus(*v[R_XIELU_P].w),
                                              .m = b + fwd_softplus(*v[R_XIELU_N].w),
                                              .b = b,
                                              .eps = *v[R_XIELU_EPS].w });
}

static void mlp_in(const fwd_rows *r, const arch_role *roles, mm_out *outs, int n)
{
    fwd_dev_ctx *f = r->self;
    const arch_config *c = r->c;
    const dev_weight down = fwd_dev_weight(&r->layer->lin[R_DOWN].w);
    const bool pair = c->w.mlp == MLP_GATED;
    const dev_mm_act act = { .kind = pair ? DEV_ACT_PAIR : DEV_ACT_ALONE,
                             .f = (k_act_fn)c->act,
                             .limit = r->mlp_limit,
                             .bf16 = f->rounds };
    const dev_weight w = fwd_dev_weight(outs->w);
    const bool own = c->act == ARCH_XIELU, cut = r->sparse > 0,
               plain = !own && !cut && c->gate_scale == 1 && c->down_scale == 1;
    if (n == 1 && plain && !c->w.up_first && !f->lora.now->n &&
        dev_acts(f->d, &w, r->acts, r->R, act.kind)) {
        fwd_dev_product(r, outs, NULL, true, r->h, c->hidden, r->R, r->acts, act);
        pool_stage(r->p, STAGE_ACT);
        return;
    }
    products(r, outs, n, r->h, c->hidden, r->R);
    fwd_dev_adapt(r, roles, outs, n, r->h, c->hidden);
    pool_stage(r->p, STAGE_ACT);
    const int64_t ld = fwd_mlp_width(c);
    const bool alone = f->rounds && plain && !f->lora.now->n; /* adapters read it too */
    const dev_order none = { 0 };
    if (own) {
        xielu(r);
        return;
    }
    fwd_dev_times(r, r->mlp, c->ffn, ld, c->gate_scale);
    f->d->ops->act(
        f->d, &(dev_act_args){ .dst = r->mlp,
                               .gate = r->mlp + (c->w.up_first ? c->ffn : 0),
                               .up = !pair           ? NULL
                                     : c->w.up_first ? r->mlp
                                                     : r->mlp + c->ffn,
                               .T = r->R,
                               .n = c->ffn,
                               .ldd = ld,
                               .ld = ld,
                               .f = act.f,
                               .limit = act.limit,
                               .bf16 = act.bf16,
                               .cut = cut,
                               .z = cut ? (float)arch_normal_quantile(r->sparse) : 0,
                               .order = alone ? fwd_dev_order_for(f, &down, r->acts, r->R, r->mlp)
                                              : none });
    fwd_dev_times(r, r->mlp, c->ffn, ld, c->down_scale);
}

/* ---- experts (forward_moe.c says what they do) ---- */

/* Always in f32: a rounded logit may choose another expert. */
static void route(const fwd_rows *r, const model_layer *l, const float *x)
{
    const fwd_dev_ctx *f = r->self;
    const arch_config *c = r->c;
    const bool shared = l->lin[R_SHARED_ROUTER].present;
    const mm_out scores = fwd_out(&l->lin[R_ROUTER], r->scores, arch_choices(c), false);
    const mm_out share = fwd_out(&l->lin[R_SHARED_ROUTER], r->shared_share, 1, false);
    fwd_dev_product(r, &scores, NULL, false, x, c->hidden, r->R, MM_F32, (dev_mm_act){ 0 });
    if (shared)
        fwd_dev_product(r, &share, &scores, false, x, c->hidden, r->R, MM_F32, (dev_mm_act){ 0 });
    f->d->ops->route(f->d, &(dev_route_args){ .scores = r->scores,
                                              .choice = r->choice,
                                              .group_score = r->group_score,
                                              .group_best = r->group_best,
                                              .correction = l->vec[R_ROUTER_CORR].w,
                                              .each = l->vec[R_EXPERT_SCALE].w,
                                              .shared = shared ? r->shared_share : NULL,
                                              .chosen = r->chosen,
                                              .share = r->share,
                                              .T = r->R,
                                              .E = arch_choices(c),
                                              .k = c->experts_used,
                                              .groups = c->expert_groups,
                                              .groups_used = c->groups_used,
                                              .sigmoid = c->w.router == ROUTER_SIGMOID,
                                              .top2 = c->w.group_top2,
                                              .normed = c->w.norm_topk,
                                              .on_logits = c->w.corr_logits,
                                              .mixer = c->w.router == ROUTER_SPARSEMIXER,
                                              .jitter = (float)c->router_jitter,
                                              .scale = (float)c->expert_scale,
                                              .eps = choose_eps(c) });
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
                                              .E = arch_choices(c),
                                              .idle = arch_choices(c) - c->experts,
                                              .k = c->experts_used });
}

/* y = x of a role's experts, each one's places by its own; one launch where all have one scheme. */
static void expert_products(const fwd_rows *r, const model_layer *l, arch_role role, float *y,
                            int64_t ldy, const float *x, int64_t ldx)
{
    const fwd_dev_ctx *f = r->self;
    for (const model_experts *set = l->sets[role - R_EXPERT_GATE]; set; set = set->next) {
        const dev_group group = { set->parts, f->first_of, f->busy, r->c->experts, r->R };
        fwd_dev_product_of_set(r, set, &group, r->R * r->c->experts_used, y, ldy, x, ldx);
    }
}

static void act_experts(const fwd_rows *r, float *x, int64_t T, int64_t n, bool mixed, k_act_fn act,
                        float limit, const float *scale)
{
    const fwd_dev_ctx *f = r->self;
    const arch_config *c = r->c;
    f->d->ops->act(f->d, &(dev_act_args){ .dst = x,
                                          .gate = x,
                                          .up = c->w.mlp == MLP_PLAIN ? NULL : x + n,
                                          .scale = scale,
                                          .T = T,
                                          .n = n,
                                          .ldd = 2 * n,
                                          .ld = 2 * n,
                                          .f = act,
                                          .limit = limit,
                                          .mixed = mixed });
}

/* out += the shared MLP of h, its sigmoid taken before its last matrix. */
static void run_shared(const fwd_rows *r, const model_layer *l)
{
    const arch_config *c = r->c;
    const int64_t S = c->shared_ffn;
    if (!S) return;
    const bool plain = c->w.mlp == MLP_PLAIN, fused = l->lin[R_SHARED_GATE_UP].present;
    const arch_role first = plain ? R_SHARED_UP : fused ? R_SHARED_GATE_UP : R_SHARED_GATE;
    const mm_out in[] = { fwd_out(&l->lin[first], r->shared_in, 2 * S, false),
                          fwd_out(&l->lin[R_SHARED_UP], r->shared_in + S, 2 * S, false) };
    const mm_out down = fwd_out(&l->lin[R_SHARED_DOWN], r->out, c->hidden, true);
    products(r, in, plain || fused ? 1 : 2, r->h, c->hidden, r->R);
    act_experts(r, r->shared_in, r->R, S, false, (k_act_fn)c->act, r->mlp_limit,
                l->lin[R_SHARED_ROUTER].present ? r->shared_share : NULL);
    fwd_dev_times(r, r->shared_in, S, 2 * S, c->shared_scale);
    products(r, &down, 1, r->shared_in, 2 * S, r->R);
}

/* out += h through the experts that the rows have been given, and the shared one. What each place reads is in
 * expert_out until its output is; of experts without tensors that is what they put out. */
static void run_experts(const fwd_rows *r, const model_layer *l)
{
    const fwd_dev_ctx *f = r->self;
    const arch_config *c = r->c;
    const int64_t H = arch_expert_width(c), F = c->expert_ffn, places = r->R * c->experts_used;
    const bool plain = c->w.mlp == MLP_PLAIN, fused = l->sets[R_EXPERT_GATE_UP - R_EXPERT_GATE];
    const arch_role first = plain ? R_EXPERT_UP : fused ? R_EXPERT_GATE_UP : R_EXPERT_GATE;
    const mm_out in = fwd_out(&l->lin[R_LATENT_IN], r->latent_in, c->latent, false),
                 out = fwd_out(&l->lin[R_LATENT_OUT], r->out, c->hidden, true);
    place_rows(r);
    if (c->latent) {
        products(r, &in, 1, r->h, c->hidden, r->R);
        f->d->ops->zero(f->d, r->latent_sum, (size_t)(r->R * H) * sizeof *r->latent_sum);
    }
    f->d->ops->embed(f->d, &(dev_embed_args){ .x = r->expert_out,
                                              .table = c->latent ? r->latent_in : r->h,
                                              .dtype = LQ_F32,
                                              .ids = r->sent,
                                              .by = c->w.share_in ? r->share : NULL,
                                              .T = places,
                                              .K = H,
                                              .scale = 1 });
    expert_products(r, l, first, r->expert_in, 2 * F, r->expert_out, H);
    if (!plain && !fused)
        expert_products(r, l, R_EXPERT_UP, r->expert_in + F, 2 * F, r->expert_out, H);
    act_experts(r, r->expert_in, places, F, fused && c->w.gate_up_mixed, fwd_experts_act(c),
                r->expert_limit, NULL);
    expert_products(r, l, R_EXPERT_DOWN, r->expert_out, H, r->expert_in, 2 * F);
    run_shared(r, l);
    f->d->ops->join_experts(f->d, &(dev_join_args){ .out = c->latent ? r->latent_sum : r->out,
                                                    .y = r->expert_out,
                                                    .share = c->w.share_in ? NULL : r->share,
                                                    .bias = l->vec[R_EXPERTS_BIAS].w,
                                                    .place = r->place,
                                                    .T = r->R,
                                                    .H = H,
                                                    .k = c->experts_used });
    if (c->latent) products(r, &out, 1, r->latent_sum, H, r->R);
}

static void moe(const fwd_rows *r, const model_layer *l)
{
    route(r, l, r->c->row->early ? r->beside : r->h);
    run_experts(r, l);
}

static void hold(const fwd_rows *r)
{
    const int64_t H = r->c->hidden;
    fwd_dev_copy(r, r->beside, H, r->x, H, H, r->R);
}

/* K floats of each of R rows: dst = norm(src), and dst += more. */
static void norm_to(const fwd_rows *r, float *dst, float *src, const model_vector *v)
{
    const fwd_dev_ctx *f = r->self;
    const dev_norm_args a = fwd_dev_norm_of(r, dst, src, v, r->R, r->c->hidden);
    f->d->ops->norm(f->d, &a);
}
static void add_to(const fwd_rows *r, float *dst, const float *more)
{
    const fwd_dev_ctx *f = r->self;
    f->d->ops->norm(f->d, &(dev_norm_args){ .x = dst, .add = more, .T = r->R, .K = r->c->hidden });
}

/* Experts read what the MLP read; what they give waits in streams. */
static void run_shortcut(const fwd_rows *r, const model_layer *l)
{
    const fwd_dev_ctx *f = r->self;
    fwd_rows own = *r;
    own.out = r->streams;
    f->d->ops->zero(f->d, own.out, (size_t)(r->R * r->c->hidden) * sizeof *own.out);
    route(r, l, r->h);
    run_experts(&own, l);
}

static void take_up(const fwd_rows *r) { add_to(r, r->x, r->streams); }

/* As fwd_run_beside. */
static void beside(const fwd_rows *r, const model_layer *l)
{
    const fwd_dev_ctx *f = r->self;
    const int64_t H = r->c->hidden;
    fwd_rows own = *r;
    if (r->c->w.shortcut) {
        run_shortcut(r, l);
        return;
    }
    if (r->c->row->early) { /* experts read x as it was before attention */
        norm_to(r, r->h, r->beside, &l->vec[R_EXPERT_NORM]);
        route(r, l, r->h);
        run_experts(r, l);
        return;
    }
    norm_to(r, r->y, r->y, &l->vec[R_DENSE_POST_NORM]);
    norm_to(r, r->beside, r->x, &l->vec[R_ROUTER_NORM]);
    fwd_dev_times(r, r->beside, H, H, pow((double)H, -0.5));
    norm_to(r, r->h, r->x, &l->vec[R_EXPERT_NORM]);
    route(r, l, r->beside);
    own.out = r->beside;
    f->d->ops->zero(f->d, own.out, (size_t)(r->R * H) * sizeof *own.out);
    run_experts(&own, l);
    norm_to(r, r->beside, r->beside, &l->vec[R_EXPERT_POST_NORM]);
    add_to(r, r->y, r->beside);
}

/* As fwd_run_finish. */
static void finish(const fwd_rows *r, const model_layer *l, int64_t layer)
{
    if (r->c->streams) fwd_dev_correct(r, l);
    if (r->c->ple_dim) fwd_dev_ple_add(r, l, layer);
    if (l->vec[R_LAYER_SCALE].w)
        fwd_dev_times(r, r->x, r->c->hidden, r->c->hidden, (double)*l->vec[R_LAYER_SCALE].w);
    if (l->stream_out) fwd_dev_streams_end(r, l);
}

static void norm_in(const fwd_rows *r, float *x, int64_t ld, const model_vector *norm, int64_t K)
{
    const fwd_dev_ctx *f = r->self;
    dev_norm_args a = fwd_dev_norm_of(r, x, x, norm, r->R, K);
    a.ld = ld;
    if (a.w) f->d->ops->norm(f->d, &a);
}

static void clear(const fwd_rows *r)
{
    const fwd_dev_ctx *f = r->self;
    f->d->ops->zero(f->d, r->y, (size_t)(r->R * r->c->hidden) * sizeof *r->y);
}

static void stay(const fwd_rows *r, double factor)
{
    const int64_t H = r->c->hidden;
    fwd_dev_copy(r, r->x, H, r->h, H, H, r->R);
    fwd_dev_times(r, r->x, H, H, factor);
}

static void join(const fwd_rows *r, const model_vector *post, const model_vector *after)
{
    const fwd_dev_ctx *f = r->self;
    const int64_t T = r->R, K = r->c->hidden;
    const bool apart = r->out == r->y, normed = after && after->w;
    if (apart && post->w && !normed) {
        dev_post_args to = fwd_dev_post_of(r, r->x, post);
        to.by = r->scale_y;
        f->d->ops->post(f->d, &to);
        return;
    }
    dev_norm_args a = fwd_dev_norm_of(r, normed ? r->x : NULL, r->x, after, T, K);
    a.add = apart ? r->y : NULL;
    a.factor = r->scale_y;
    if (apart) fwd_dev_norm(r, r->y, r->y, post, T, K);
    if (apart || normed) f->d->ops->norm(f->d, &a);
}

const fwd_ops fwd_dev = {
    .begin = fwd_dev_begin,
    .enter = fwd_dev_enter,
    .norm = fwd_dev_norm,
    .gate_norm = fwd_dev_gate_norm,
    .products = products,
    .adapt = fwd_dev_adapt,
    .store = store,
    .squares = squares,
    .attend = attend,
    .mix_in = fwd_dev_mix_in,
    .mix = fwd_dev_mix,
    .pick = pick,
    .mlp_in = mlp_in,
    .norm_in = norm_in,
    .clear = clear,
    .stay = stay,
    .join = join,
    .mla = fwd_dev_mla,
    .index = fwd_dev_index_products,
    .hold = hold,
    .moe = moe,
    .beside = beside,
    .take_up = take_up,
    .predict = fwd_dev_predict,
    .laurel = fwd_dev_laurel,
    .hyper_enter = fwd_dev_hyper_enter,
    .hyper_leave = fwd_dev_hyper_leave,
    .hyper_mean = fwd_dev_hyper_mean,
    .hyper_end = fwd_dev_hyper_end,
    .finish = finish,
    .keep = fwd_dev_keep,
    .keep_all = fwd_dev_keep_all,
    .leave = fwd_dev_leave,
    .end = fwd_dev_end,
};
