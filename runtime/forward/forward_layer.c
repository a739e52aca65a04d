/* runtime/forward/forward_layer.c - attention and MLP of one layer over any rows, as steps of an fwd_ops;
 * see forward_impl.h. */
#include "runtime/forward/forward_impl.h"

/* ---- buffers ---- */

int64_t fwd_angles(const arch_config *c, arch_rope_use which)
{
    for (int64_t i = 0; i < c->layers && c->w.pos == POS_ROPE; i++)
        if (c->layer[i].rope == which) return c->rope_dims / 2;
    return 0;
}

int64_t fwd_qkv_width(const arch_config *c)
{
    return c->heads * c->head_dim + c->kv_heads * (c->head_dim + c->v_dim);
}

int64_t fwd_mlp_width(const arch_config *c) { return c->w.mlp == MLP_GATED ? 2 * c->ffn : c->ffn; }

/* X(field, floats per row) for each buffer: what fwd_place fills, and what the steps do. */
#define PLACED(X)                                 \
    X(cos[ROPE_MAIN], fwd_angles(c, ROPE_MAIN))   \
    X(sin[ROPE_MAIN], fwd_angles(c, ROPE_MAIN))   \
    X(cos[ROPE_LOCAL], fwd_angles(c, ROPE_LOCAL)) \
    X(sin[ROPE_LOCAL], fwd_angles(c, ROPE_LOCAL)) \
    X(row_pos, 1)                                 \
    X(row_block, 1)                               \
    X(row_slot, 1)
#define HELD(X)                                           \
    X(h, c->hidden)                                       \
    X(y, c->hidden)                                       \
    X(e, c->embed_dim == c->hidden ? 0 : c->embed_dim)    \
    X(q, c->heads * c->head_dim)                          \
    X(a, c->heads * c->v_dim)                             \
    X(k, c->kv_heads * c->head_dim)                       \
    X(v, c->kv_heads * c->v_dim)                          \
    X(squares, c->w.qk_norm == QK_NORM_ALL ? 2 : 0)       \
    X(qkv, arch_name_of(c, R_QKV) ? fwd_qkv_width(c) : 0) \
    X(mlp, fwd_mlp_width(c))                              \
    X(scores, c->experts)                                 \
    X(choice, c->experts)                                 \
    X(group_score, c->experts ? c->expert_groups : 0)     \
    X(group_best, c->experts ? c->groups_used : 0)        \
    X(chosen, c->experts_used)                            \
    X(place, c->experts_used)                             \
    X(sent, c->experts_used)                              \
    X(share, c->experts_used)                             \
    X(expert_in, c->experts_used * 2 * c->expert_ffn)     \
    X(expert_out, c->experts_used * c->hidden)            \
    X(shared_in, 2 * c->shared_ffn)                       \
    X(shared_share, c->shared_ffn ? 1 : 0)                \
    X(q_a, c->w.mla ? c->q_lora : 0)                      \
    X(kv_a, c->w.mla ? c->kv_lora + c->rope_dims : 0)     \
    X(kv_b, c->w.mla ? c->heads *(c->nope_dims + c->v_dim) : 0)

static size_t buffer_bytes(int64_t R, int64_t per_row) { return (size_t)R * (size_t)per_row * 4; }

size_t fwd_rows_bytes(const arch_config *c, int64_t R, fwd_which which)
{
    size_t n = 0;
#define ADD(field, per_row) n += lq_round_up(buffer_bytes(R, per_row) + 1, 64);
    if (which & FWD_PLACED) {
        PLACED(ADD)
    }
    if (which & FWD_HELD) {
        HELD(ADD)
        n += lq_round_up(fwd_slopes_bytes(c) + 1, 64);
    }
#undef ADD
    return n;
}

bool fwd_rows_cut(fwd_rows *r, const arch_config *c, int64_t R, fwd_which which, fwd_take *take,
                  void *from)
{
    bool ok = true;
    r->c = c;
#define TAKE(field, per_row) ok = (r->field = take(from, buffer_bytes(R, per_row))) && ok;
    if (which & FWD_PLACED) {
        PLACED(TAKE)
    }
    if (which & FWD_HELD) {
        HELD(TAKE)
        ok = (r->slopes = take(from, fwd_slopes_bytes(c))) && ok;
    }
#undef TAKE
    return ok;
}

size_t fwd_slopes_bytes(const arch_config *c)
{
    return c->w.pos == POS_ALIBI ? (size_t)c->heads * sizeof(float) : 0;
}

void fwd_slopes(const arch_config *c, float *slopes)
{
    arch_alibi_slopes(c, slopes);
    if (c->w.alibi_twice) k_scale(slopes, 2, c->heads);
}

static void *take_arena(void *from, size_t bytes) { return lq_push(from, bytes); }

bool fwd_rows_push(fwd_rows *r, const arch_config *c, int64_t R, lq_arena *a)
{
    r->ops = &fwd_cpu;
    bool ok = fwd_rows_cut(r, c, R, FWD_ALL, take_arena, a);
    if (ok && fwd_slopes_bytes(c)) fwd_slopes(c, r->slopes);
    return ok;
}

static size_t max_size(size_t a, size_t b) { return a > b ? a : b; }

size_t fwd_rows_scratch(const arch_config *c, int64_t R, int threads)
{
    size_t n = mm_scratch_bytes(R, c->hidden, 3, threads);
    n = max_size(n, mm_scratch_bytes(R, c->embed_dim, 1, threads));
    n = max_size(n, mm_scratch_bytes(R, c->heads * c->v_dim, 1, threads));
    n = max_size(n, mm_scratch_bytes(R, c->ffn, 1, threads));
    n = max_size(n, fwd_moe_scratch(c, R, threads));
    n = max_size(n, fwd_mla_scratch(c, R, threads));
    return max_size(
        n, attn_scratch_bytes(c->heads, c->head_dim > c->v_dim ? c->head_dim : c->v_dim, threads));
}

/* Angles of rows row0.. at positions pos0..: rows up to seq_len take that length's, each later row
 * that of its own (dynamic NTK). */
static void place_angles(fwd_rows *r, arch_rope_use which, const attn_seq *s, int64_t seq_len)
{
    const int64_t half = fwd_angles(r->c, which);
    const bool by_length = arch_rope_by_length(&r->c->rope[which]);
    for (int64_t i = 0, n; i < s->n_rows && half; i += n) {
        int64_t pos = s->pos0 + i, at = (s->row0 + i) * half;
        n = by_length && pos >= seq_len ? 1 : s->n_rows - i;
        if (by_length && pos < seq_len && n > seq_len - pos) n = seq_len - pos;
        arch_rope_table(r->c, which, pos, n, pos < seq_len ? seq_len : pos + 1, r->cos[which] + at,
                        r->sin[which] + at);
    }
}

void fwd_place(fwd_rows *r, const attn_seq *s, int block_size, int64_t seq_len)
{
    for (int64_t i = 0; i < s->n_rows; i++) {
        int64_t pos = s->pos0 + i;
        r->row_pos[s->row0 + i] = (int32_t)pos;
        r->row_block[s->row0 + i] = s->table[pos / block_size];
        r->row_slot[s->row0 + i] = (int32_t)(pos % block_size);
    }
    place_angles(r, ROPE_MAIN, s, seq_len);
    place_angles(r, ROPE_LOCAL, s, seq_len);
}

void fwd_tap_rows(const fwd_rows *r, arch_role role, const float *x, int64_t ldx, int64_t K)
{
    if (r->tap) r->tap->tap(r->tap->user, role, -1, x, ldx, r->R, K);
}

/* ---- a branch's input and output ---- */

/* h = norm(x); with norms after the sum it is x itself. */
static void enter_branch(const fwd_rows *r, const model_vector *norm)
{
    static const model_vector none = { 0 };
    pool_stage(r->p, STAGE_NORM);
    r->ops->norm(r, r->h, r->x, r->c->w.norm_after_add ? &none : norm, r->R, r->c->hidden);
}

static void open_out(fwd_rows *r, const model_vector *post)
{
    bool apart = post->w || r->c->residual_scale != 1 || r->shared;
    r->out = apart ? r->y : r->x;
    if (apart) r->ops->clear(r);
}

/* What the branch left in out joins x. */
static void close_out(const fwd_rows *r, const model_vector *norm, const model_vector *post)
{
    const model_vector *after = r->c->w.norm_after_add ? norm : NULL;
    pool_stage(r->p, STAGE_NORM);
    if (r->out == r->y || after) r->ops->join(r, post, after);
}

/* ---- attention ---- */

static void run_qkv(const fwd_rows *r, const model_layer *l)
{
    const arch_config *c = r->c;
    const model_linear *lin = l->lin;
    pool_stage(r->p, STAGE_QKV);
    if (lin[R_QKV].present) {
        fwd_tap_rows(r, R_QKV, r->h, c->hidden, c->hidden);
        mm_out all = fwd_out(&lin[R_QKV], r->qkv, fwd_qkv_width(c), false);
        r->ops->products(r, &all, 1, r->h, c->hidden, r->R);
        return;
    }
    fwd_tap_rows(r, R_Q, r->h, c->hidden, c->hidden);
    fwd_tap_rows(r, R_K, r->h, c->hidden, c->hidden);
    fwd_tap_rows(r, R_V, r->h, c->hidden, c->hidden);
    mm_out qkv[] = { fwd_out(&lin[R_Q], r->q, c->heads * c->head_dim, false),
                     fwd_out(&lin[R_K], r->k, c->kv_heads * c->head_dim, false),
                     fwd_out(&lin[R_V], r->v, c->kv_heads * c->v_dim, false) };
    r->ops->products(r, qkv, 3, r->h, c->hidden, r->R);
}

static void run_wo(const fwd_rows *r, const model_layer *l)
{
    const int64_t K = r->c->heads * r->c->v_dim;
    fwd_tap_rows(r, R_O, r->a, K, K);
    mm_out o = fwd_out(&l->lin[R_O], r->out, r->c->hidden, true);
    pool_stage(r->p, STAGE_O);
    r->ops->products(r, &o, 1, r->a, K, r->R);
}

/* ---- MLP ---- */

/* h to activated. */
static void enter_mlp(const fwd_rows *r, const model_layer *l)
{
    const arch_config *c = r->c;
    const int64_t ld = fwd_mlp_width(c);
    static const arch_role fused[] = { R_GATE_UP }, gated[] = { R_GATE, R_UP }, plain[] = { R_UP };
    const arch_role *in = l->lin[R_GATE_UP].present ? fused : c->w.mlp == MLP_GATED ? gated : plain;
    mm_out outs[2];
    int n = in == gated ? 2 : 1;
    pool_stage(r->p, STAGE_MLP_IN);
    for (int i = 0; i < n; i++) {
        fwd_tap_rows(r, in[i], r->h, c->hidden, c->hidden);
        outs[i] = fwd_out(&l->lin[in[i]], r->mlp + i * c->ffn, ld, false);
    }
    r->ops->mlp_in(r, outs, n);
}

static void run_down(const fwd_rows *r, const model_layer *l)
{
    const int64_t ld = fwd_mlp_width(r->c);
    fwd_tap_rows(r, R_DOWN, r->mlp, ld, r->c->ffn);
    if (r->tap && r->tap->inputs_only) return;
    mm_out down = fwd_out(&l->lin[R_DOWN], r->out, r->c->hidden, true);
    pool_stage(r->p, STAGE_MLP_OUT);
    r->ops->products(r, &down, 1, r->mlp, ld, r->R);
}

/* ---- the layer ---- */

/* h to heads. */
static void make_heads(const fwd_rows *r, const model_layer *l, int64_t layer, const fwd_kv *kv)
{
    if (r->c->w.mla)
        r->ops->mla(r, l);
    else
        run_qkv(r, l);
    pool_stage(r->p, STAGE_ROPE);
    if (fwd_norm_shared(r)) r->ops->squares(r, l, layer, kv);
}

/* Heads to attention's output a. */
static void run_heads(const fwd_rows *r, const model_layer *l, int64_t layer, const fwd_kv *kv,
                      const fwd_group *groups, int64_t n_groups)
{
    for (int64_t i = 0; i < n_groups; i++) {
        pool_stage(r->p, STAGE_ROPE);
        r->ops->store(r, l, layer, kv, &groups[i]);
        pool_stage(r->p, STAGE_ATTENTION);
        r->ops->attend(r, l, layer, kv, &groups[i]);
    }
}

/* a to `out`, and with it into x. */
static void attention_out(fwd_rows *r, const model_layer *l)
{
    open_out(r, &l->vec[R_ATTN_POST_NORM]);
    run_wo(r, l);
}
static void attention_join(const fwd_rows *r, const model_layer *l)
{
    close_out(r, &l->vec[R_ATTN_NORM], &l->vec[R_ATTN_POST_NORM]);
}

void fwd_run_to(fwd_rows *r, const model_layer *l, int64_t layer, fwd_point at, const fwd_kv *kv,
                const fwd_group *groups, int64_t n_groups)
{
    const model_vector *v = l->vec;
    if (at == FWD_AT_QKV) enter_branch(r, &v[R_ATTN_NORM]);
    if (at == FWD_AT_O) {
        make_heads(r, l, layer, kv);
        run_heads(r, l, layer, kv, groups, n_groups);
    }
    if (at == FWD_AT_MLP) {
        attention_out(r, l);
        attention_join(r, l);
        enter_branch(r, &v[R_MLP_NORM]);
    }
    if (at == FWD_AT_DOWN) enter_mlp(r, l);
    if (at == FWD_AT_END) {
        open_out(r, &v[R_MLP_POST_NORM]);
        run_down(r, l);
        close_out(r, &v[R_MLP_NORM], &v[R_MLP_POST_NORM]);
    }
}

static void to_attention(fwd_rows *r, const model_layer *l, int64_t layer, const fwd_kv *kv,
                         const fwd_group *groups, int64_t n_groups, const int64_t *picked,
                         int64_t n_picked)
{
    const model_vector *v = l->vec;
    run_heads(r, l, layer, kv, groups, n_groups);
    if (picked) {
        r->ops->pick(r, picked, n_picked);
        r->R = n_picked;
        if (n_picked == 0) return;
    }
    /* A parallel MLP reads x before attention joins it, or attention's own input. */
    if (r->c->w.parallel && v[R_MLP_NORM].w) enter_branch(r, &v[R_MLP_NORM]);
    attention_out(r, l);
}

static void to_mlp(fwd_rows *r, const model_layer *l, int64_t layer)
{
    const model_vector *v = l->vec;
    attention_join(r, l);
    if (!r->c->w.parallel) enter_branch(r, &v[R_MLP_NORM]);
    open_out(r, &v[R_MLP_POST_NORM]);
    if (r->c->layer[layer].moe) {
        r->ops->moe(r, l);
    } else {
        enter_mlp(r, l);
        run_down(r, l);
    }
}

void fwd_run_part(fwd_part part, fwd_rows *r, const model_layer *l, int64_t layer, const fwd_kv *kv,
                  const fwd_group *groups, int64_t n_groups, const int64_t *picked,
                  int64_t n_picked)
{
    if (part == FWD_TO_HEADS) {
        enter_branch(r, &l->vec[R_ATTN_NORM]);
        make_heads(r, l, layer, kv);
    } else if (part == FWD_TO_ATTENTION)
        to_attention(r, l, layer, kv, groups, n_groups, picked, n_picked);
    else if (r->R && part == FWD_TO_MLP)
        to_mlp(r, l, layer);
    else if (r->R)
        close_out(r, &l->vec[R_MLP_NORM], &l->vec[R_MLP_POST_NORM]);
}

void fwd_run_layer(fwd_rows *r, const model_layer *l, int64_t layer, const fwd_kv *kv,
                   const fwd_group *groups, int64_t n_groups, const int64_t *picked,
                   int64_t n_picked)
{
    for (fwd_part part = 0; part < FWD_N_PARTS; part++)
        fwd_run_part(part, r, l, layer, kv, groups, n_groups, picked, n_picked);
}
