/* runtime/forward_layer.c - attention and MLP of one layer over any rows; see forward_impl.h. */
#include "runtime/forward_impl.h"

/* ---- buffers ---- */

static int64_t angles(const arch_config *c, arch_rope_use which)
{
    for (int64_t i = 0; i < c->layers && c->w.pos == POS_ROPE; i++)
        if (c->layer[i].rope == which) return c->rope_dims / 2;
    return 0;
}

static int64_t qkv_width(const arch_config *c)
{
    return c->heads * c->head_dim + c->kv_heads * (c->head_dim + c->v_dim);
}

int64_t fwd_mlp_width(const arch_config *c) { return c->w.mlp == MLP_GATED ? 2 * c->ffn : c->ffn; }

/* Calls X(field, floats per row) for each buffer. */
#define BUFFERS(X)                                              \
    X(h, c->hidden)                                             \
    X(y, c->hidden)                                             \
    X(e, c->embed_dim == c->hidden ? 0 : c->embed_dim)          \
    X(q, c->heads * c->head_dim)                                \
    X(a, c->heads * c->v_dim)                                   \
    X(k, c->kv_heads * c->head_dim)                             \
    X(v, c->kv_heads * c->v_dim)                                \
    X(qkv, arch_name_of(c, R_QKV) ? qkv_width(c) : 0)           \
    X(mlp, fwd_mlp_width(c))                                    \
    X(cos[ROPE_MAIN], angles(c, ROPE_MAIN))                     \
    X(sin[ROPE_MAIN], angles(c, ROPE_MAIN))                     \
    X(cos[ROPE_LOCAL], angles(c, ROPE_LOCAL))                   \
    X(sin[ROPE_LOCAL], angles(c, ROPE_LOCAL))                   \
    X(scores, c->experts)                                       \
    X(choice, c->experts)                                       \
    X(group_score, c->experts ? c->expert_groups : 0)           \
    X(group_best, c->experts ? c->groups_used : 0)              \
    X(chosen, c->experts_used)                                  \
    X(place, c->experts_used)                                   \
    X(sent, c->experts_used)                                    \
    X(share, c->experts_used)                                   \
    X(expert_in, c->experts_used * 2 * c->expert_ffn)           \
    X(expert_out, c->experts_used * c->hidden)                  \
    X(shared_in, 2 * c->shared_ffn)                             \
    X(shared_share, c->shared_ffn ? 1 : 0)                      \
    X(q_a, c->w.mla ? c->q_lora : 0)                            \
    X(kv_a, c->w.mla ? c->kv_lora + c->rope_dims : 0)           \
    X(kv_b, c->w.mla ? c->heads *(c->nope_dims + c->v_dim) : 0) \
    X(row_pos, 1)                                               \
    X(row_block, 1)                                             \
    X(row_slot, 1)

static size_t buffer_bytes(int64_t R, int64_t per_row) { return (size_t)R * (size_t)per_row * 4; }
static size_t slope_bytes(const arch_config *c)
{
    return c->w.pos == POS_ALIBI ? (size_t)c->heads * sizeof(float) : 0;
}

size_t fwd_rows_bytes(const arch_config *c, int64_t R)
{
    size_t n = lq_round_up(slope_bytes(c) + 1, 64);
#define ADD(field, per_row) n += lq_round_up(buffer_bytes(R, per_row) + 1, 64);
    BUFFERS(ADD)
#undef ADD
    return n;
}

bool fwd_rows_push(fwd_rows *r, const arch_config *c, int64_t R, lq_arena *a)
{
    bool ok = true;
    r->c = c;
#define PUSH(field, per_row) ok = (r->field = lq_push(a, buffer_bytes(R, per_row))) && ok;
    BUFFERS(PUSH)
#undef PUSH
    ok = (r->slopes = lq_push(a, slope_bytes(c))) && ok;
    if (ok && slope_bytes(c)) arch_alibi_slopes(c, r->slopes);
    if (ok && slope_bytes(c) && c->w.alibi_twice) k_scale(r->slopes, 2, c->heads);
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
    const int64_t half = angles(r->c, which);
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

/* ---- work on rows ---- */

typedef void row_fn(const fwd_rows *r, int64_t row, int64_t n, const void *arg);
typedef struct {
    const fwd_rows *r;
    int64_t R;
    row_fn *fn;
    const void *arg;
} row_job;

static void row_item(void *ctx, int64_t item, int thread)
{
    const row_job *j = ctx;
    int64_t from = item * FWD_ROWS, left = j->R - from;
    (void)thread;
    j->fn(j->r, from, left < FWD_ROWS ? left : FWD_ROWS, j->arg);
}

void fwd_each(const fwd_rows *r, int64_t R, row_fn *fn, const void *arg)
{
    row_job j = { r, R, fn, arg };
    pool_run(r->p, lq_ceil_div(R, FWD_ROWS), row_item, &j);
}

/* T rows of K on this thread. */
static void norm_rows(const arch_config *c, float *dst, const float *x, const model_vector *v,
                      int64_t T, int64_t K)
{
    const float eps = (float)c->norm_eps, off = c->w.norm_offset;
    if (!v->w) {
        if (dst != x) memcpy(dst, x, (size_t)(T * K) * sizeof *x);
    } else if (c->w.norm == NORM_LAYER) {
        k_layernorm(dst, K, x, K, v->w, v->bias, off, T, K, eps);
    } else {
        k_rmsnorm(dst, K, x, K, v->w, off, T, K, eps);
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

void fwd_norm(const fwd_rows *r, float *dst, const float *x, const model_vector *v, int64_t T,
              int64_t K)
{
    norm_arg a = { dst, x, v, K };
    fwd_each(r, T, norm_chunk, &a);
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
    fwd_norm(r, r->h, r->x, r->c->w.norm_after_add ? &none : norm, r->R, r->c->hidden);
}

static void open_out(fwd_rows *r, const model_vector *post)
{
    bool apart = post->w || r->c->residual_scale != 1;
    r->out = apart ? r->y : r->x;
    if (apart) memset(r->y, 0, (size_t)(r->R * r->c->hidden) * sizeof *r->y);
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
        if (r->c->residual_scale != 1) k_scale(y, (float)r->c->residual_scale, n * K);
        k_add(x, y, n * K);
    }
    if (a->after) norm_rows(r->c, x, x, a->after, n, K);
}

/* What the branch left in out joins x. */
static void close_out(const fwd_rows *r, const model_vector *norm, const model_vector *post)
{
    join_arg a = { post, r->c->w.norm_after_add ? norm : NULL };
    pool_stage(r->p, STAGE_NORM);
    if (r->out == r->y || a.after) fwd_each(r, r->R, join_chunk, &a);
}

/* ---- attention ---- */

static void run_qkv(const fwd_rows *r, const model_layer *l)
{
    const arch_config *c = r->c;
    const model_linear *lin = l->lin;
    pool_stage(r->p, STAGE_QKV);
    if (lin[R_QKV].present) {
        fwd_tap_rows(r, R_QKV, r->h, c->hidden, c->hidden);
        mm_out all = fwd_out(&lin[R_QKV], r->qkv, qkv_width(c), false);
        mm_run(&all, 1, r->h, c->hidden, r->R, r->acts, r->scratch, r->p);
        return;
    }
    fwd_tap_rows(r, R_Q, r->h, c->hidden, c->hidden);
    fwd_tap_rows(r, R_K, r->h, c->hidden, c->hidden);
    fwd_tap_rows(r, R_V, r->h, c->hidden, c->hidden);
    mm_out qkv[] = { fwd_out(&lin[R_Q], r->q, c->heads * c->head_dim, false),
                     fwd_out(&lin[R_K], r->k, c->kv_heads * c->head_dim, false),
                     fwd_out(&lin[R_V], r->v, c->kv_heads * c->v_dim, false) };
    mm_run(qkv, 3, r->h, c->hidden, r->R, r->acts, r->scratch, r->p);
}

/* One row of R_QKV's output, [q k v] or for each kv head [its q heads, k, v]. */
static void split_qkv(const arch_config *c, float *q, float *k, float *v, const float *all)
{
    const int64_t parts = c->w.qkv_grouped ? c->kv_heads : 1, group = c->kv_heads / parts;
    const size_t nq = (size_t)(c->heads / parts * c->head_dim), nk = (size_t)(group * c->head_dim),
                 nv = (size_t)(group * c->v_dim);
    for (int64_t i = 0; i < parts; i++) {
        memcpy(q, all, nq * sizeof *q);
        memcpy(k, all + nq, nk * sizeof *k);
        memcpy(v, all + nq + nk, nv * sizeof *v);
        q += nq, k += nk, v += nv, all += nq + nk + nv;
    }
}

static void norm_heads(const arch_config *c, float *x, const model_vector *v, int64_t H)
{
    const int64_t D = c->head_dim;
    if (c->w.qk_norm == QK_NORM_ALL)
        norm_rows(c, x, x, v, 1, H * D);
    else if (c->w.qk_norm == QK_NORM_HEAD)
        norm_rows(c, x, x, v, H, D);
    for (int64_t h = 0; c->w.qk_norm == QK_NORM_HEADS && h < H; h++) {
        const model_vector own = { v->w + h * D, v->bias ? v->bias + h * D : NULL };
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
    k_rope(k, c->kv_heads, c->head_dim, c->rope_dims, cs, sn, c->w.rope_half);
}

/* From the linears' outputs to the q, k and v that attention takes. */
static void finish_qkv(const fwd_rows *r, const model_layer *l, int64_t layer, int64_t t)
{
    const arch_config *c = r->c;
    const int64_t D = c->head_dim, H = c->heads, G = c->kv_heads;
    float *q = r->q + t * H * D, *k = r->k + t * G * D, *v = r->v + t * G * c->v_dim;
    if (l->lin[R_QKV].present) split_qkv(c, q, k, v, r->qkv + t * qkv_width(c));
    if (c->qkv_clip > 0) {
        k_clamp(q, (float)c->qkv_clip, H * D);
        k_clamp(k, (float)c->qkv_clip, G * D);
        k_clamp(v, (float)c->qkv_clip, G * c->v_dim);
    }
    if (c->w.qk_norm_late) rotate(r, q, k, layer, t);
    norm_heads(c, q, &l->vec[R_Q_NORM], H);
    norm_heads(c, k, &l->vec[R_K_NORM], G);
    if (!c->w.qk_norm_late) rotate(r, q, k, layer, t);
}

static void store_chunk(const fwd_rows *r, int64_t row, int64_t n, const void *arg)
{
    const kv_arg *a = arg;
    const arch_config *c = r->c;
    const fwd_kv *kv = a->kv;
    for (int64_t t = a->g->row0 + row; t < a->g->row0 + row + n; t++) {
        if (!c->w.mla) finish_qkv(r, a->l, a->layer, t);
        size_t block = (size_t)r->row_block[t] * kv->block_stride;
        attn_kv_write(kv->k + block, r->row_slot[t], kv->block_size,
                      r->k + t * c->kv_heads * c->head_dim, c->kv_heads, c->head_dim, kv->dtype);
        attn_kv_write(kv->v + block, r->row_slot[t], kv->block_size,
                      r->v + t * c->kv_heads * c->v_dim, c->kv_heads, c->v_dim, kv->dtype);
    }
}

static void attend(const fwd_rows *r, const model_layer *l, int64_t layer, const fwd_kv *kv,
                   const fwd_group *g)
{
    const arch_config *c = r->c;
    attn_args a = {
        .q = r->q,
        .ldq = c->heads * c->head_dim,
        .out = r->a,
        .ldo = c->heads * c->v_dim,
        .k = kv->k,
        .v = kv->v,
        .block_stride = kv->block_stride,
        .block_size = kv->block_size,
        .dtype = kv->dtype,
        .H = c->heads,
        .Hkv = c->kv_heads,
        .D = c->head_dim,
        .Dv = c->v_dim,
        .scale = (float)c->attn_scale,
        .softcap = (float)c->attn_softcap,
        .window = c->layer[layer].window ? c->window : 0,
        .alibi = c->w.pos == POS_ALIBI ? r->slopes : NULL,
        .alibi_scaled = c->w.alibi_scaled,
        .alibi_bf16 = c->w.alibi_bf16,
        .sinks = l->vec[R_SINKS].w,
        .seqs = g->seqs,
        .n_seqs = g->n_seqs,
    };
    pool_stage(r->p, STAGE_ATTENTION);
    attn_run(&a, r->scratch, r->p);
}

static void run_wo(const fwd_rows *r, const model_layer *l)
{
    const int64_t K = r->c->heads * r->c->v_dim;
    fwd_tap_rows(r, R_O, r->a, K, K);
    mm_out o = fwd_out(&l->lin[R_O], r->out, r->c->hidden, true);
    pool_stage(r->p, STAGE_O);
    mm_run(&o, 1, r->a, K, r->R, r->acts, r->scratch, r->p);
}

/* ---- MLP ---- */

static void act_chunk(const fwd_rows *r, int64_t row, int64_t n, const void *arg)
{
    const arch_config *c = r->c;
    const int64_t ld = fwd_mlp_width(c);
    (void)arg;
    for (float *g = r->mlp + row * ld; n > 0; n--, g += ld)
        if (c->w.mlp == MLP_GATED)
            k_act_mul(g, g, g + c->ffn, c->ffn, (k_act_fn)c->act, (float)c->act_limit);
        else
            k_act(g, c->ffn, (k_act_fn)c->act);
}

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
    mm_run(outs, n, r->h, c->hidden, r->R, r->acts, r->scratch, r->p);
    pool_stage(r->p, STAGE_ACT);
    fwd_each(r, r->R, act_chunk, NULL);
}

static void run_down(const fwd_rows *r, const model_layer *l)
{
    const int64_t ld = fwd_mlp_width(r->c);
    fwd_tap_rows(r, R_DOWN, r->mlp, ld, r->c->ffn);
    if (r->tap && r->tap->inputs_only) return;
    mm_out down = fwd_out(&l->lin[R_DOWN], r->out, r->c->hidden, true);
    pool_stage(r->p, STAGE_MLP_OUT);
    mm_run(&down, 1, r->mlp, ld, r->R, r->acts, r->scratch, r->p);
}

/* ---- the layer ---- */

static void gather(float *x, int64_t K, const int64_t *rows, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        if (rows[i] != i) memmove(x + i * K, x + rows[i] * K, (size_t)K * sizeof *x);
}

/* h to attention's output a. */
static void run_attention(const fwd_rows *r, const model_layer *l, int64_t layer, const fwd_kv *kv,
                          const fwd_group *groups, int64_t n_groups)
{
    if (r->c->w.mla)
        fwd_run_mla(r, l);
    else
        run_qkv(r, l);
    for (int64_t i = 0; i < n_groups; i++) {
        kv_arg a = { l, kv, &groups[i], layer };
        pool_stage(r->p, STAGE_ROPE);
        fwd_each(r, groups[i].n_rows, store_chunk, &a);
        attend(r, l, layer, kv, &groups[i]);
    }
}

/* a joins x. */
static void leave_attention(fwd_rows *r, const model_layer *l)
{
    open_out(r, &l->vec[R_ATTN_POST_NORM]);
    run_wo(r, l);
    close_out(r, &l->vec[R_ATTN_NORM], &l->vec[R_ATTN_POST_NORM]);
}

void fwd_run_to(fwd_rows *r, const model_layer *l, int64_t layer, fwd_point at, const fwd_kv *kv,
                const fwd_group *groups, int64_t n_groups)
{
    const model_vector *v = l->vec;
    if (at == FWD_AT_QKV) enter_branch(r, &v[R_ATTN_NORM]);
    if (at == FWD_AT_O) run_attention(r, l, layer, kv, groups, n_groups);
    if (at == FWD_AT_MLP) {
        leave_attention(r, l);
        enter_branch(r, &v[R_MLP_NORM]);
    }
    if (at == FWD_AT_DOWN) enter_mlp(r, l);
    if (at == FWD_AT_END) {
        open_out(r, &v[R_MLP_POST_NORM]);
        run_down(r, l);
        close_out(r, &v[R_MLP_NORM], &v[R_MLP_POST_NORM]);
    }
}

void fwd_run_layer(fwd_rows *r, const model_layer *l, int64_t layer, const fwd_kv *kv,
                   const fwd_group *groups, int64_t n_groups, const int64_t *picked,
                   int64_t n_picked)
{
    const arch_config *c = r->c;
    const model_vector *v = l->vec;
    enter_branch(r, &v[R_ATTN_NORM]);
    run_attention(r, l, layer, kv, groups, n_groups);
    if (picked) {
        gather(r->x, c->hidden, picked, n_picked);
        gather(r->h, c->hidden, picked, n_picked);
        gather(r->a, c->heads * c->v_dim, picked, n_picked);
        r->R = n_picked;
        if (n_picked == 0) return;
    }
    /* A parallel MLP reads x before attention joins it, or attention's own input. */
    if (c->w.parallel && v[R_MLP_NORM].w) enter_branch(r, &v[R_MLP_NORM]);
    leave_attention(r, l);
    if (!c->w.parallel) enter_branch(r, &v[R_MLP_NORM]);
    open_out(r, &v[R_MLP_POST_NORM]);
    if (c->layer[layer].moe) {
        fwd_run_moe(r, l);
    } else {
        enter_mlp(r, l);
        run_down(r, l);
    }
    close_out(r, &v[R_MLP_NORM], &v[R_MLP_POST_NORM]);
}
