/* runtime/forward/forward_cpu.c - the steps of a layer on the CPU: rows over the pool, kernels of mm.h,
 * attn.h and ops.h; see forward_impl.h. */
#include "kernels/hadamard.h"
#include "runtime/forward/forward_impl.h"

/* ---- norms ---- */

/* T rows of K on this thread. */
static void norm_rows(const arch_config *c, float *dst, const float *x, const model_vector *v,
                      int64_t T, int64_t K)
{
    if (!v->w) {
        if (dst != x) memcpy(dst, x, (size_t)(T * K) * sizeof *x);
    } else if (c->w.norm == NORM_LAYER) {
        k_layernorm(dst, K, x, K, v->w, v->bias, v->offset, T, K, v->eps);
    } else {
        for (int64_t i = 0; i < T * K && v->before; i++)
            dst[i] = x[i] * v->before[i % K];
        k_rmsnorm(dst, K, v->before ? dst : x, K, v->w, v->offset, T, K, v->eps);
    }
}

typedef struct {
    float *dst;
    const float *x;
    const model_vector *v;
    int64_t K;
} norm_arg;

static void norm_chunk(const fwd_rows *r, int64_t row, int64_t n, const void *arg)
{
    const norm_arg *a = arg;
    norm_rows(r->c, a->dst + row * a->K, a->x + row * a->K, a->v, n, a->K);
}

static void norm(const fwd_rows *r, float *dst, float *x, const model_vector *v, int64_t T,
                 int64_t K)
{
    norm_arg a = { dst, x, v, K };
    fwd_each(r, T, norm_chunk, &a);
}

static void products(const fwd_rows *r, const mm_out *outs, int n, const float *x, int64_t ldx,
                     int64_t M)
{
    const mm_job all = { x, ldx, M, NULL, outs, n };
    if (!r->offload || !fwd_offload_products(r->offload, &all))
        mm_run(outs, n, x, ldx, M, r->acts, r->scratch, r->p);
}

/* ---- attention ---- */

/* One row of R_QKV's output: [q k v], for each kv head [its q heads, k, v], or for each quarter of the
 * heads [q v k]. */
static void split_qkv(const arch_config *c, float *q, float *k, float *v, const float *all)
{
    const int64_t parts = c->w.qkv_grouped    ? c->kv_heads
                          : c->w.qkv_quarters ? 4
                                              : 1,
                  group = c->kv_heads / parts;
    const size_t nq = (size_t)(c->heads / parts * c->head_dim), nk = (size_t)(group * c->head_dim),
                 nv = (size_t)(group * c->v_dim);
    for (int64_t i = 0; i < parts; i++) {
        memcpy(q, all, nq * sizeof *q);
        memcpy(k, all + nq + (c->w.qkv_quarters ? nv : 0), nk * sizeof *k);
        memcpy(v, all + nq + (c->w.qkv_quarters ? 0 : nk), nv * sizeof *v);
        q += nq, k += nk, v += nv, all += nq + nk + nv;
    }
}

static void norm_heads(const fwd_rows *r, float *x, const model_vector *v, int64_t H)
{
    const arch_config *c = r->c;
    const int64_t D = c->head_dim - c->key_pad;
    if (c->w.qk_norm == QK_NORM_ALL && r->parts) return; /* done: fwd_norm_parts */
    if (c->w.qk_norm == QK_NORM_ALL)
        norm_rows(c, x, x, v, 1, H * D);
    else if (c->w.qk_norm == QK_NORM_HEAD)
        norm_rows(c, x, x, v, H, D);
    for (int64_t h = 0; c->w.qk_norm == QK_NORM_HEADS && h < H; h++) {
        model_vector own = *v;
        own.w += h * D;
        if (v->bias) own.bias += h * D;
        norm_rows(c, x + h * D, x + h * D, &own, 1, D);
    }
}

typedef struct {
    const model_layer *l;
    const fwd_kv *kv;
    const fwd_group *g;
    int64_t layer;
} kv_arg;

static void rotate(const fwd_rows *r, float *q, float *k, int64_t layer, int64_t t)
{
    const arch_config *c = r->c;
    const arch_rope_use use = c->layer[layer].rope;
    if (c->w.pos != POS_ROPE || use == ROPE_OFF) return;
    const float *cs = r->cos[use] + t * (c->rope_dims / 2);
    const float *sn = r->sin[use] + t * (c->rope_dims / 2);
    k_rope(q, c->heads, c->head_dim, c->rope_dims, cs, sn, c->w.rope_half);
    if (k) k_rope(k, c->kv_heads, c->head_dim, c->rope_dims, cs, sn, c->w.rope_half);
}

static void scale_q(const fwd_rows *r, float *q, int64_t layer, int64_t t)
{
    const float f = arch_q_factor(r->c, layer, r->row_pos[t]);
    if (f != 1) k_scale(q, f, r->c->heads * r->c->head_dim);
}

/* The q of each head, without its gate. */
static void split_gated(const arch_config *c, float *q, const float *all)
{
    const int64_t D = c->head_dim;
    for (int64_t h = 0; h < c->heads; h++)
        memcpy(q + h * D, all + 2 * h * D, (size_t)D * sizeof *q);
}

/* From the linears' outputs to the q, k and v that attention takes. */
static void finish_qkv(const fwd_rows *r, const model_layer *l, int64_t layer, int64_t t)
{
    const arch_config *c = r->c;
    const int64_t D = c->head_dim, H = c->heads, G = c->kv_heads;
    float *q = r->q + t * H * D, *k = r->k + t * G * D, *v = r->v + t * G * c->v_dim;
    if (c->layer[layer].kv_back) { /* k and v are there */
        norm_heads(r, q, &l->vec[R_Q_NORM], H);
        rotate(r, q, NULL, layer, t);
        return;
    }
    if (c->layer[layer].v_is_k) memcpy(v, k, (size_t)(G * D) * sizeof *v);
    if (l->lin[R_QKV].present) split_qkv(c, q, k, v, r->qkv + t * fwd_qkv_width(c));
    if (c->w.q_gated) split_gated(c, q, r->q_gate + t * 2 * H * D);
    if (c->qkv_clip > 0) {
        k_clamp(q, (float)c->qkv_clip, H * D);
        k_clamp(k, (float)c->qkv_clip, G * D);
        k_clamp(v, (float)c->qkv_clip, G * c->v_dim);
    }
    if (c->w.qk_norm_late) rotate(r, q, k, layer, t);
    norm_heads(r, q, &l->vec[R_Q_NORM], H);
    norm_heads(r, k, &l->vec[R_K_NORM], G);
    for (int64_t g = 0; g < G && l->vec[R_K_SCALE].w; g++)
        k_scale(k + g * D, l->vec[R_K_SCALE].w[g], D);
    norm_rows(c, v, v, &l->vec[R_V_NORM], G, c->v_dim);
    if (c->key_pad) fwd_key_widen(r, t);
    if (!c->w.qk_norm_late) rotate(r, q, k, layer, t);
    scale_q(r, q, layer, t);
    if (c->w.diff) fwd_diff_values(r, t);
}

/* Do K and V lie as attention multiplies them? Not where lists of positions are read. */
static bool in_pairs(const fwd_rows *r, const model_layer *l, const fwd_kv *kv)
{
    if (l->lin[R_INDEX_Q].present) return false;
    return attn_paired(kv->dtype, kv->block_size, r->c->head_dim, r->c->v_dim, r->acts != MM_F32);
}

/* x is used up. */
static void write_row(const fwd_kv *kv, uint8_t *block, int slot, float *x, int64_t heads,
                      int64_t D, bool pairs, bool key)
{
    const kv_dtype d = kv_of(kv->dtype, key);
    if (kv_turned(d)) k_hadamard(x, heads, D);
    if (pairs)
        attn_kv_write_paired(block, slot, kv->block_size, x, heads, D, key);
    else
        attn_kv_write(block, slot, kv->block_size, x, heads, D, d);
}

/* The row of q that meets turned keys. */
static void turn_q(const fwd_rows *r, const fwd_kv *kv, int64_t t)
{
    const arch_config *c = r->c;
    const int64_t D = c->w.mla ? kv_latent_width(c) : c->head_dim;
    if (kv_turned(kv_of(kv->dtype, true)))
        k_hadamard((c->w.mla ? r->latent : r->q) + t * c->heads * D, c->heads, D);
}

static void store_chunk(const fwd_rows *r, int64_t row, int64_t n, const void *arg)
{
    const kv_arg *a = arg;
    const arch_config *c = r->c;
    const fwd_kv *kv = a->kv;
    const bool pairs = in_pairs(r, a->l, kv);
    const bool indexed = a->l->lin[R_INDEX_Q].present;
    if (indexed && !c->w.mla) fwd_index_rows(r, a->l, a->g->row0 + row, n);
    for (int64_t t = a->g->row0 + row; t < a->g->row0 + row + n; t++) {
        if (!c->w.mla) finish_qkv(r, a->l, a->layer, t);
        turn_q(r, kv, t);
        if (kv->there && !c->w.mla) continue;
        const size_t block = (size_t)r->row_block[t] * kv->block_stride;
        if (c->w.mla) {
            const int64_t L = kv_latent_width(c);
            if (!kv->there)
                write_row(kv, kv->k + block, r->row_slot[t], r->kv_a + t * L, 1, L, false, true);
            if (indexed && !c->w.kv_one) fwd_index_store(r, kv, t);
            continue;
        }
        if (indexed) fwd_index_store(r, kv, t);
        write_row(kv, kv->k + block, r->row_slot[t], r->k + t * c->kv_heads * c->head_dim,
                  c->kv_heads, c->head_dim, pairs, true);
        write_row(kv, kv->v + block, r->row_slot[t], r->v + t * c->kv_heads * c->v_dim, c->kv_heads,
                  c->v_dim, pairs, false);
    }
}

static void store(const fwd_rows *r, const model_layer *l, int64_t layer, const fwd_kv *kv,
                  const fwd_group *g)
{
    kv_arg a = { l, kv, g, layer };
    fwd_each(r, g->n_rows, store_chunk, &a);
    if (r->c->index_every && l->lin[R_INDEX_Q].present) fwd_index_groups(r, l, kv, g);
}

/* a = a * sigmoid(gate), head by head; the gate's rows are used up. */
static void gate_chunk(const fwd_rows *r, int64_t row, int64_t n, const void *arg)
{
    const arch_config *c = r->c;
    const int64_t D = c->head_dim, row0 = *(const int64_t *)arg + row;
    for (int64_t i = row0 * c->heads; i < (row0 + n) * c->heads; i++) {
        float *a = r->a + i * D, *gate = r->q_gate + (2 * i + 1) * D;
        k_scale(gate, -1, D);
        k_exp_minus(gate, gate, 0, D);
        for (int64_t d = 0; d < D; d++)
            a[d] /= 1 + gate[d];
    }
}

/* Each head's output normed. */
static void norm_out_chunk(const fwd_rows *r, int64_t row, int64_t n, const void *arg)
{
    const arch_config *c = r->c;
    float *a = r->a + (*(const int64_t *)arg + row) * c->heads * c->v_dim;
    norm_rows(c, a, a, &r->layer->vec[R_O_NORM], n * c->heads, c->v_dim);
}

/* a = o_scale a */
static void scale_chunk(const fwd_rows *r, int64_t row, int64_t n, const void *arg)
{
    const arch_config *c = r->c;
    const int64_t K = c->heads * c->v_dim, row0 = *(const int64_t *)arg + row;
    k_scale(r->a + row0 * K, (float)c->o_scale, n * K);
}

/* a = a * g(gate), of R_ATTN_GATE: each dim's gate, or each head's. */
static void gate_apart_chunk(const fwd_rows *r, int64_t row, int64_t n, const void *arg)
{
    const arch_config *c = r->c;
    const int64_t W = fwd_gate_width(c), H = c->heads * c->v_dim, each = H / W;
    const float *bias = r->layer->vec[R_GATE_BIAS].w;
    for (int64_t t = *(const int64_t *)arg + row; n > 0; n--, t++) {
        float *a = r->a + t * H, *gate = r->q_gate + t * W;
        for (int64_t i = 0; i < W && bias; i++)
            gate[i] += bias[i / c->v_dim];
        if (c->w.gate_softplus) {
            for (int64_t i = 0; i < W; i++)
                gate[i] = gate[i] > 20 ? gate[i] : fwd_softplus(gate[i]);
            for (int64_t i = 0; i < H; i++)
                a[i] *= gate[i / each];
            continue;
        }
        k_scale(gate, -1, W);
        k_exp_minus(gate, gate, 0, W);
        for (int64_t i = 0; i < H; i++)
            a[i] /= 1 + gate[i / each];
    }
}

/* To a window, and to compressed positions where the layer has them: all of them as places in blocks. */
static void see_compressed(attn_args *a, const fwd_rows *r, int64_t layer, const fwd_kv *kv,
                           const fwd_group *g)
{
    const int64_t rows = kv_compressed_rows(r->c, layer, kv->block_size);
    a->keys = NULL;
    a->window = r->c->window;
    if (!rows) return;
    fwd_compress_seen(r, layer, kv, g);
    a->window = 0;
    a->keys = r->seen;
    a->ld_keys = fwd_seen_most(r->c);
    a->n_keys = r->n_seen;
    a->block_size += (int)rows;
}

/* All heads to one row of the cache, which is key and value; each output in its query's place. Where
 * there are indexers, to the positions that the layer's, or the one before it, chose. */
static void attend_latents(attn_args *a, const fwd_rows *r, const model_layer *l, int64_t layer,
                           const fwd_kv *kv, const fwd_group *g)
{
    if (l->lin[R_INDEX_Q].present) fwd_index_choose(r, kv, g);
    if (arch_indexed(r->c) && !r->c->layer[layer].index_off) a->keys = r->index_keys;
    a->ld_keys = r->c->index_topk;
    if (r->c->w.kv_one) see_compressed(a, r, layer, kv, g);
    if (r->c->index_every) {
        a->keys = r->seen;
        a->ld_keys = fwd_seen_most(r->c);
        a->n_keys = r->n_seen;
    }
    a->Hkv = 1;
    a->D = a->Dv = kv_latent_width(r->c);
    a->q = a->out = r->latent;
    a->ldq = a->ldo = r->c->heads * a->D;
    a->v = a->k;
    a->paired = false;
}

/* Each kv head to the positions of blocks that it chose, or all to those of the same groups. */
static void attend_chosen(attn_args *a, const fwd_rows *r, const fwd_kv *kv, const fwd_group *g)
{
    fwd_index_choose(r, kv, g);
    a->keys = r->index_keys;
    a->ld_keys = r->c->index_topk;
    a->n_keys = r->index_seen;
    a->keys_by_head = true;
    if (!r->c->index_every) return;
    a->keys = r->seen;
    a->ld_keys = fwd_seen_most(r->c);
    a->n_keys = r->n_seen;
    a->keys_by_head = false;
}

static void attend(const fwd_rows *r, const model_layer *l, int64_t layer, const fwd_kv *kv,
                   const fwd_group *g)
{
    const arch_config *c = r->c;
    const bool relative = l->lin[R_REL].present;
    attn_args a = {
        .q = r->q,
        .ldq = c->heads * c->head_dim,
        .out = c->w.diff ? r->pairs : r->a,
        .ldo = c->heads * c->v_dim,
        .k = kv->k,
        .v = kv->v,
        .block_stride = kv->block_stride,
        .block_size = kv->block_size,
        .dtype = kv->dtype,
        .turned = kv_turned(kv_of(kv->dtype, false)),
        .bf16 = r->acts != MM_F32,
        .paired = in_pairs(r, l, kv),
        .H = c->heads,
        .Hkv = c->kv_heads,
        .D = c->head_dim,
        .Dv = c->v_dim,
        .scale = (float)c->attn_scale,
        .softcap = (float)c->attn_softcap,
        .window = c->layer[layer].window ? c->window : 0,
        .chunks = c->row->window == WINDOW_CHUNKS,
        .both = c->w.both_ways,
        .alibi = c->w.pos == POS_ALIBI ? r->slopes : NULL,
        .alibi_scaled = c->w.alibi_scaled,
        .alibi_bf16 = c->w.alibi_bf16,
        .dist_bias = l->dist_bias,
        .n_dist = relative      ? c->rel_extent
                  : l->dist_row ? c->dist_far
                                : MODEL_DIST,
        .dist_row = l->dist_row,
        .dist_q = relative || l->dist_k ? r->dist_q : NULL,
        .dist_k = l->dist_q ? r->dist_k : NULL,
        .dist_rows = relative ? c->rel_extent + 1 : arch_dist_rows(c),
        .sinks = l->vec[R_SINKS].w,
        .seqs = g->seqs,
        .n_seqs = g->n_seqs,
    };
    if (c->w.mla)
        attend_latents(&a, r, l, layer, kv, g);
    else if (l->lin[R_INDEX_Q].present)
        attend_chosen(&a, r, kv, g);
    if (!r->offload || !fwd_offload_attention(r->offload, &a)) attn_run(&a, r->scratch, r->p);
    if (c->w.diff) fwd_each(r, g->n_rows, fwd_diff_heads, &g->row0);
    if (c->w.o_norm_heads) fwd_each(r, g->n_rows, norm_out_chunk, &g->row0);
    if (c->w.q_gated && !c->w.mla) fwd_each(r, g->n_rows, gate_chunk, &g->row0);
    if (c->o_scale != 1) fwd_each(r, g->n_rows, scale_chunk, &g->row0);
    if (l->lin[R_ATTN_GATE].present && !c->w.mla)
        fwd_each(r, g->n_rows, gate_apart_chunk, &g->row0);
}

/* ---- between the products ---- */

static void xielu(float *x, int64_t n, const model_vector *v)
{
    enum { PIECE = 256 };
    const float b = v[R_XIELU_BETA].w[0], eps = v[R_XIELU_EPS].w[0];
    const float p = fwd_softplus(v[R_XIELU_P].w[0]), m = b + fwd_softplus(v[R_XIELU_N].w[0]);
    float e[PIECE];
    for (int64_t at = 0, k; at < n; at += k, x += k) {
        k = n - at < PIECE ? n - at : PIECE;
        for (int64_t i = 0; i < k; i++)
            e[i] = x[i] < eps ? x[i] : eps;
        k_exp_minus(e, e, 0, k);
        for (int64_t i = 0; i < k; i++)
            x[i] = (x[i] > 0 ? p * x[i] * x[i] : (e[i] - 1 - x[i]) * m) + b * x[i];
    }
}

/* g = max(g - (mean + z std), 0): of normal ones all but the largest become 0 (arXiv:2506.06644). */
static void cut_gates(float *g, int64_t n, double z)
{
    double sum = 0, squares = 0;
    for (int64_t i = 0; i < n; i++)
        sum += (double)g[i];
    const double mean = sum / (double)n;
    for (int64_t i = 0; i < n; i++)
        squares += ((double)g[i] - mean) * ((double)g[i] - mean);
    const float cut = (float)(mean + sqrt(squares / (double)n) * z);
    for (int64_t i = 0; i < n; i++)
        g[i] = g[i] > cut ? g[i] - cut : 0;
}

/* arg: the z of gates that are cut, or NULL. */
static void act_chunk(const fwd_rows *r, int64_t row, int64_t n, const void *arg)
{
    const arch_config *c = r->c;
    const double *z = arg;
    const int64_t ld = fwd_mlp_width(c);
    for (int64_t t = row; t < row + n && z; t++)
        cut_gates(r->mlp + t * ld, c->ffn, *z);
    for (float *g = r->mlp + row * ld; n > 0; n--, g += ld) {
        if (c->gate_scale != 1) k_scale(g, (float)c->gate_scale, c->ffn);
        if (c->w.mlp_mixed)
            fwd_act_mixed(g, c->ffn, (k_act_fn)c->act, r->mlp_limit);
        else if (c->w.up_first)
            k_act_mul(g, g + c->ffn, g, c->ffn, (k_act_fn)c->act, r->mlp_limit);
        else if (c->w.mlp == MLP_GATED)
            k_act_mul(g, g, g + c->ffn, c->ffn, (k_act_fn)c->act, r->mlp_limit);
        else if (c->act == ARCH_XIELU)
            xielu(g, c->ffn, r->layer->vec);
        else
            k_act(g, c->ffn, (k_act_fn)c->act);
        if (c->down_scale != 1) k_scale(g, (float)c->down_scale, c->ffn);
        if (r->layer->vec[R_DOWN_SCALE].w) k_scale(g, *r->layer->vec[R_DOWN_SCALE].w, c->ffn);
    }
}

/* The halves of one matrix of gate and up; false where they are not whole tiles. */
static bool halve(mm_weight half[2], const mm_weight *w)
{
    const int64_t N = w->N / 2;
    for (int i = 0; i < 2; i++) {
        half[i] = *w;
        half[i].N = N;
        if (!tiles_rows(&half[i].t, &w->t, i * N, (i + 1) * N)) return false;
    }
    return true;
}

static void activate(const fwd_rows *r)
{
    pool_stage(r->p, STAGE_ACT);
    const double z = r->sparse > 0 ? arch_normal_quantile(r->sparse) : 0;
    fwd_each(r, r->R, act_chunk, r->sparse > 0 ? &z : NULL);
}

static void mlp_in(const fwd_rows *r, const arch_role *roles, mm_out *outs, int n)
{
    const arch_config *c = r->c;
    mm_weight half[2];
    const bool lora = r->lora && r->lora->n_groups;
    if (lora || c->aside_rank) {
        products(r, outs, n, r->h, c->hidden, r->R);
        if (lora) fwd_lora_add(r, roles, outs, n, r->h, c->hidden);
        if (c->aside_rank)
            fwd_aside_adapt(r, r->layer, R_GATE_UP_LOW, outs->y, outs->ldy, r->h, c->hidden);
        activate(r);
        return;
    }
    if (n == 1 && c->w.mlp == MLP_GATED && !c->w.mlp_mixed && halve(half, outs[0].w)) {
        outs[1] = outs[0];
        outs[1].y += c->ffn;
        if (outs[0].bias) outs[1].bias += c->ffn;
        for (n = 0; n < 2; n++)
            outs[n].w = &half[n];
    }
    const bool plain = !(r->sparse > 0) && c->gate_scale == 1 && c->down_scale == 1;
    const mm_out *up = &outs[c->w.up_first ? 0 : 1], *gate = &outs[c->w.up_first ? 1 : 0];
    if (n == 2 && !r->offload && plain && mm_gates(gate->w, up->w, r->acts)) {
        const mm_weight *w = gate->w;
        const float *bias = gate->bias;
        outs[0].up = up->w;
        outs[0].up_bias = up->bias;
        outs[0].w = w;
        outs[0].bias = bias;
        outs[0].act = (k_act_fn)c->act;
        outs[0].limit = r->mlp_limit;
        products(r, outs, 1, r->h, c->hidden, r->R);
        return;
    }
    products(r, outs, n, r->h, c->hidden, r->R);
    activate(r);
}

static void clear(const fwd_rows *r)
{
    memset(r->y, 0, (size_t)(r->R * r->c->hidden) * sizeof *r->y);
}

typedef struct {
    const model_vector *post, *after;
} join_arg;

static void join_chunk(const fwd_rows *r, int64_t row, int64_t n, const void *arg)
{
    const join_arg *a = arg;
    const int64_t K = r->c->hidden;
    float *x = r->x + row * K, *y = r->y + row * K;
    if (r->out == r->y) {
        norm_rows(r->c, y, y, a->post, n, K);
        if (r->scale_y != 1) k_scale(y, r->scale_y, n * K);
        for (int64_t i = 0; i < n * K && r->join->w; i++) {
            x[i] *= r->join->bias[i % K];
            y[i] *= r->join->w[i % K];
            if (r->join->before) y[i] += r->join->before[i % K];
        }
        k_add(x, y, n * K);
    }
    if (a->after) norm_rows(r->c, x, x, a->after, n, K);
}

static void join(const fwd_rows *r, const model_vector *post, const model_vector *after)
{
    join_arg a = { post, after };
    fwd_each(r, r->R, join_chunk, &a);
}

static void stay_chunk(const fwd_rows *r, int64_t row, int64_t n, const void *arg)
{
    const int64_t H = r->c->hidden;
    const double *factor = arg;
    memcpy(r->x + row * H, r->h + row * H, (size_t)(n * H) * sizeof *r->x);
    if (*factor != 1) k_scale(r->x + row * H, (float)*factor, n * H);
}
static void stay(const fwd_rows *r, double factor) { fwd_each(r, r->R, stay_chunk, &factor); }

static void hold_chunk(const fwd_rows *r, int64_t row, int64_t n, const void *arg)
{
    const int64_t H = r->c->hidden;
    (void)arg;
    memcpy(r->beside + row * H, r->x + row * H, (size_t)(n * H) * sizeof *r->x);
}
static void hold(const fwd_rows *r) { fwd_each(r, r->R, hold_chunk, NULL); }

/* Rows of K numbers of 4 bytes. */
static void gather(void *x, int64_t K, const int64_t *rows, int64_t n)
{
    const size_t row = (size_t)K * 4;
    uint8_t *at = x;
    for (int64_t i = 0; i < n; i++)
        if (rows[i] != i) memmove(at + (size_t)i * row, at + (size_t)rows[i] * row, row);
}

static void pick(fwd_rows *r, const int64_t *rows, int64_t n)
{
    gather(r->x, r->c->hidden, rows, n);
    gather(r->h, r->c->hidden, rows, n);
    if (r->c->w.mla)
        gather(r->latent, r->c->heads * kv_latent_width(r->c), rows, n);
    else
        gather(r->a, arch_o_width(r->c), rows, n);
    gather(r->head_gate, fwd_head_gates(r->c), rows, n);
    if (r->c->w.mla) gather(r->q_gate, fwd_gate_width(r->c), rows, n);
    gather(r->row_pos, 1, rows, n); /* layers may follow */
    if (r->lora) fwd_lora_pick(r->lora, rows, n);
    for (arch_rope_use u = ROPE_MAIN; u <= ROPE_LOCAL; u++) {
        gather(r->cos[u], fwd_angles(r->whole, u), rows, n);
        gather(r->sin[u], fwd_angles(r->whole, u), rows, n);
    }
    gather(r->ple, fwd_ple_width(r->c), rows, n);
    gather(r->streams, fwd_streams_width(r->c), rows, n);
    if (arch_shares_index(r->whole)) gather(r->index_keys, r->c->index_topk, rows, n);
    gather(r->route, r->c->route, rows, n);
    gather(r->hyper, arch_hyper_width(r->c), rows, n);
    if (r->c->row->early) gather(r->beside, r->c->hidden, rows, n);
    if (fwd_by_token(r->whole)) gather(r->ids, 1, rows, n);
    if (r->c->streams) gather(r->first, r->c->hidden, rows, n);
    gather(r->mix_out, arch_mix_width(r->c, r->c->row->mixer), rows, n);
}

/* ---- the step ---- */

static void forward_cpu_begin(fwd_rows *r, const model *m, const fwd_batch *b)
{
    fwd_embed_rows(r, m, b->ids);
}

static void keep(const fwd_rows *r, int64_t at, int64_t width)
{
    const int64_t H = r->c->hidden;
    for (int64_t t = 0; t < r->R; t++)
        memcpy(r->all + t * width + at, r->x + t * H, (size_t)H * sizeof *r->all);
}

static void keep_all(fwd_rows *r, const model_vector *final, const fwd_batch *b)
{
    const int64_t H = r->c->hidden;
    if (final) norm(r, r->all, r->x, final, r->R, H);
    for (int64_t i = 0; i < b->n_picked; i++)
        if (b->picked[i] != i)
            memmove(r->x + i * H, r->x + b->picked[i] * H, (size_t)H * sizeof *r->x);
    r->R = b->n_picked;
}

static void leave(const fwd_rows *r, const fwd_batch *b, float *logits, float *hidden, float *raw)
{
    (void)r, (void)b, (void)logits, (void)hidden, (void)raw; /* all there already */
}

static lq_status end(const fwd_rows *r, lq_err *err)
{
    (void)r, (void)err;
    return LQ_OK;
}

static void enter(fwd_rows *r) { (void)r; }

const fwd_ops fwd_cpu = {
    .begin = forward_cpu_begin,
    .enter = enter,
    .norm = norm,
    .gate_norm = fwd_gate_norm,
    .products = products,
    .adapt = fwd_lora_add,
    .store = store,
    .attend = attend,
    .mix_in = fwd_mix_in,
    .mix = fwd_mix,
    .pick = pick,
    .mlp_in = mlp_in,
    .norm_in = fwd_norm_within,
    .clear = clear,
    .stay = stay,
    .join = join,
    .mla = fwd_run_mla,
    .index = fwd_index_products,
    .values = fwd_run_values,
    .hold = hold,
    .moe = fwd_run_moe,
    .beside = fwd_run_beside,
    .take_up = fwd_end_shortcut,
    .predict = fwd_streams_predict,
    .laurel = fwd_run_laurel,
    .hyper_enter = fwd_hyper_enter,
    .hyper_leave = fwd_hyper_leave,
    .hyper_mean = fwd_hyper_mean,
    .hyper_end = fwd_hyper_end,
    .finish = fwd_run_finish,
    .keep = keep,
    .keep_all = keep_all,
    .leave = leave,
    .end = end,
};
