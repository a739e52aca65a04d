/* runtime/forward/forward_layer.c - attention and MLP of one layer over any rows, as steps of an fwd_ops;
 * see forward_impl.h. */
#include "runtime/forward/forward_impl.h"

static size_t max_size(size_t a, size_t b) { return a > b ? a : b; }

size_t fwd_rows_scratch(const arch_config *c, int64_t R, int threads)
{
    size_t n = mm_scratch_bytes(R, c->hidden, 3, threads);
    n = max_size(n, mm_scratch_bytes(R, c->embed_dim, 1, threads));
    if (c->mtp || c->asides) n = max_size(n, mm_scratch_bytes(R, 2 * c->hidden, 3, threads));
    if (c->aside_rank) n = max_size(n, mm_scratch_bytes(R, c->aside_rank, 1, threads));
    if (c->row->mixer == MIX_SELECT && c->mix_heads > 1)
        n = max_size(n, fwd_heads_scratch(c->mix_heads, R,
                                          c->mix_value > c->mix_rank ? c->mix_value : c->mix_rank,
                                          threads));
    if (c->mtp) n = max_size(n, mm_scratch_bytes(R, fwd_given_width(c), 1, threads));
    n = max_size(n, mm_scratch_bytes(R, c->heads * c->v_dim, 1, threads));
    if (c->key_pad) n = max_size(n, mm_scratch_bytes(R, c->kv_heads * c->v_dim, 1, threads));
    n = max_size(n, mm_scratch_bytes(R, c->ffn, 1, threads));
    n = max_size(n, mm_scratch_bytes(R, arch_mix_width(c, c->row->mixer), 1, threads));
    if (arch_name_of(c, R_MIX_V) || arch_name_of(c, R_V_LATE) || c->rel_dims)
        n = max_size(n, mm_scratch_bytes(R, c->hidden, 5, threads));
    n = max_size(n, fwd_moe_scratch(c, R, threads));
    n = max_size(n, fwd_mla_scratch(c, R, threads));
    n = max_size(n, fwd_relative_scratch(c, R, threads));
    if (c->dist_far) n = max_size(n, fwd_heads_scratch(c->heads, R, c->head_dim, threads));
    if (c->head_taps)
        n = max_size(
            n, fwd_heads_scratch(c->heads + c->kv_heads, R, c->head_dim * c->head_taps, threads));
    n = max_size(n, fwd_index_scratch(c, threads));
    n = max_size(n, fwd_one_scratch(c, R, threads));
    n = max_size(n, mm_scratch_bytes(R, c->hyper * c->hidden, 2, threads));
    n = max_size(n, mm_scratch_bytes(R, c->hyper_rank, 1, threads));
    n = max_size(n, mm_scratch_bytes(R, c->ngram_dim, 2, threads));
    const int64_t D = c->w.mla                 ? kv_latent_width(c)
                      : c->head_dim > c->v_dim ? c->head_dim
                                               : c->v_dim;
    return max_size(n, attn_scratch_bytes(c->heads, D, threads));
}

/* ---- a branch's input and output ---- */

static void gate_chunk(const fwd_rows *r, int64_t row, int64_t n, const void *arg)
{
    const int64_t H = r->c->hidden;
    float *h = r->h + row * H, *gate = r->y + row * H;
    (void)arg;
    k_scale(gate, -1, n * H);
    k_exp_minus(gate, gate, 0, n * H);
    for (int64_t i = 0; i < n * H; i++)
        h[i] /= 1 + gate[i];
}

static void act_chunk(const fwd_rows *r, int64_t row, int64_t n, const void *arg)
{
    const int64_t W = r->c->norm_rank;
    (void)arg;
    k_act(r->norm_gate + row * W, n * W, (k_act_fn)ARCH_SILU);
}

/* h = h sigmoid(up silu(down h)); y is free between branches. */
void fwd_gate_norm(const fwd_rows *r, const model_layer *l, arch_role down, arch_role up)
{
    const int64_t H = r->c->hidden, W = r->c->norm_rank;
    const mm_out low = fwd_out(&l->lin[down], r->norm_gate, W, false),
                 gate = fwd_out(&l->lin[up], r->y, H, false);
    mm_run(&low, 1, r->h, H, r->R, MM_F32, r->scratch, r->p);
    fwd_each(r, r->R, act_chunk, NULL);
    mm_run(&gate, 1, r->norm_gate, W, r->R, MM_F32, r->scratch, r->p);
    fwd_each(r, r->R, gate_chunk, NULL);
}

/* What a layer's mixer adds. */
static arch_branch branch_of(const fwd_rows *r, int64_t layer)
{
    return r->c->layer[layer].mixer == MIX_ATTENTION ? BRANCH_ATTENTION : BRANCH_STATE;
}

/* h = norm(x), R_ATTN_NORM's or R_MLP_NORM's; with norms after the sum it is x itself. */
static void enter_branch(const fwd_rows *r, const model_layer *l, arch_role norm, arch_branch b)
{
    static const model_vector none = { 0 };
    const bool attn = norm == R_ATTN_NORM;
    pool_stage(r->p, STAGE_NORM);
    r->ops->norm(r, r->h, r->x, r->c->w.norm_after_add ? &none : &l->vec[norm], r->R, r->c->hidden);
    const arch_role down = attn ? R_ATTN_NORM_DOWN : R_MLP_NORM_DOWN,
                    up = attn ? R_ATTN_NORM_UP : R_MLP_NORM_UP;
    if (l->lin[down].present) r->ops->gate_norm(r, l, down, up);
    if (r->c->w.norm_stays) r->ops->stay(r, r->c->join_x[b]);
}

/* How y joins x. Set where a branch begins and where it ends: of several devices what is between may be a graph. */
static void set_join(fwd_rows *r, arch_branch b)
{
    r->scale_y = (float)(r->c->residual_scale * r->c->join_y[b]);
}

static void open_out(fwd_rows *r, const model_vector *post, arch_branch b)
{
    set_join(r, b);
    r->join = &r->layer->vec[b == BRANCH_MLP ? R_MLP_JOIN : R_ATTN_JOIN];
    const bool tapped = r->layer->vec[b == BRANCH_MLP ? R_MLP_CONV : R_ATTN_CONV].w;
    bool apart = tapped || post->w || r->join->w || r->scale_y != 1 || r->shared || r->c->hyper;
    r->out = apart ? r->y : r->x;
    if (apart) r->ops->clear(r);
}

/* What a layer's branch left in out joins x. */
static void close_out(fwd_rows *r, const model_layer *l, int64_t layer, arch_branch b)
{
    set_join(r, b);
    const bool mlp = b == BRANCH_MLP;
    const model_vector *norm = &l->vec[mlp ? R_MLP_NORM : R_ATTN_NORM],
                       *post = &l->vec[mlp ? R_MLP_POST_NORM : R_ATTN_POST_NORM],
                       *after = r->c->w.norm_after_add ? norm : NULL;
    fwd_tap_along(r, l, layer, mlp ? R_MLP_CONV : R_ATTN_CONV, r->out);
    pool_stage(r->p, STAGE_NORM);
    if (r->c->hyper)
        r->ops->hyper_leave(r);
    else if (r->out == r->y || after)
        r->ops->join(r, post, after);
}

/* ---- attention ---- */

static void run_qkv(const fwd_rows *r, const model_layer *l)
{
    const arch_config *c = r->c;
    const model_linear *lin = l->lin;
    const bool pair = arch_is_eagle(c) || c->asides;
    const float *in = pair ? r->mtp_in : r->h;
    const int64_t width = pair ? 2 * c->hidden : c->hidden;
    pool_stage(r->p, STAGE_QKV);
    if (lin[R_QKV].present) {
        fwd_tap_rows(r, R_QKV, in, width, width);
        mm_out all = fwd_out(&lin[R_QKV], r->qkv, fwd_qkv_width(c), false);
        r->ops->products(r, &all, 1, in, width, r->R);
        r->ops->adapt(r, (const arch_role[]){ R_QKV }, &all, 1, in, width);
        return;
    }
    const struct {
        arch_role role;
        float *to;
        int64_t width;
    } parts[] = { { R_Q, c->w.q_gated ? r->q_gate : r->q,
                    (c->w.q_gated ? 2 : 1) * c->heads * c->head_dim },
                  { R_K, r->k, c->kv_heads * c->head_dim },
                  { R_V, r->v, c->kv_heads * c->v_dim },
                  { R_V_LATE, r->v + c->kv_heads * c->v_dim / 2, c->kv_heads * c->v_dim },
                  { R_ATTN_GATE, r->q_gate, fwd_gate_width(c) },
                  { R_REL, r->rel, c->heads * c->rel_dims } };
    mm_out qkv[LQ_COUNT(parts)];
    arch_role roles[LQ_COUNT(parts)];
    int n = 0;
    for (size_t i = 0; i < LQ_COUNT(parts); i++) {
        if (!lin[parts[i].role].present) continue;
        fwd_tap_rows(r, parts[i].role, in, width, width);
        roles[n] = parts[i].role;
        qkv[n++] = fwd_out(&lin[parts[i].role], parts[i].to, parts[i].width, false);
    }
    r->ops->products(r, qkv, n, in, width, r->R);
    r->ops->adapt(r, roles, qkv, n, in, width);
    for (int i = 0; i < 3 && c->aside_heads; i++)
        fwd_aside_adapt(r, l, (arch_role)(R_Q_LOW + 2 * i), parts[i].to, parts[i].width, in, width);
    if (lin[R_INDEX_Q].present) r->ops->index(r, l);
}

/* Of a product of all inputs: where this process's outputs begin in a row; and the others' beside them. */
static int64_t own_outputs(const fwd_rows *r)
{
    return r->parts ? r->parts->part->hidden.at[r->parts->part->rank] : 0;
}
static void whole_outputs(const fwd_rows *r)
{
    const int64_t H = r->c->hidden;
    if (r->parts)
        fwd_put_together(r, r->out, H, r->out + own_outputs(r), H, r->R, &r->parts->part->hidden);
}

static void run_wo(const fwd_rows *r, const model_layer *l)
{
    const arch_config *c = r->parts ? r->parts->at->whole : r->c;
    const int64_t K = arch_o_width(c);
    const float *a = r->parts ? fwd_all_heads(r, l) : r->a;
    fwd_tap_rows(r, R_O, a, K, K);
    mm_out o = fwd_out(&l->lin[R_O], r->out + own_outputs(r), c->hidden, true);
    pool_stage(r->p, STAGE_O);
    r->ops->products(r, &o, 1, a, K, r->R);
    r->ops->adapt(r, (const arch_role[]){ R_O }, &o, 1, a, K);
    whole_outputs(r);
}

/* The last product of a layer with a state. */
static void run_mix_out(const fwd_rows *r, const model_layer *l, int64_t layer)
{
    const int64_t K = arch_mix_width(r->c, r->c->layer[layer].mixer);
    fwd_tap_rows(r, R_MIX_OUT, r->mix_out, K, K);
    mm_out o = fwd_out(&l->lin[R_MIX_OUT], r->out, r->c->hidden, true);
    pool_stage(r->p, STAGE_O);
    r->ops->products(r, &o, 1, r->mix_out, K, r->R);
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
    r->ops->mlp_in(r, in, outs, n);
    if (!r->parts) r->ops->norm_in(r, r->mlp, ld, &l->vec[R_DOWN_NORM], c->ffn);
}

static void run_down(const fwd_rows *r, const model_layer *l)
{
    const int64_t ld = r->parts ? r->parts->at->whole->ffn : fwd_mlp_width(r->c);
    const float *in = r->parts ? fwd_all_width(r, l) : r->mlp;
    fwd_tap_rows(r, R_DOWN, in, ld, r->c->ffn);
    if (r->tap && r->tap->inputs_only) return;
    mm_out down = fwd_out(&l->lin[R_DOWN], r->out + own_outputs(r), r->c->hidden, true);
    pool_stage(r->p, STAGE_MLP_OUT);
    r->ops->products(r, &down, 1, in, ld, r->R);
    r->ops->adapt(r, (const arch_role[]){ R_DOWN }, &down, 1, in, ld);
    whole_outputs(r);
}

/* ---- the layer ---- */

static void set_layer(fwd_rows *r, const model_layer *l, int64_t layer, const fwd_kv *kv)
{
    r->layer = l;
    r->state = r->in_turn ? 0 : kv->state;
    r->turn = (arch_rope_use)r->c->layer[layer].rope;
}

/* Of an MLP's activation: the model's, or the layer's own. */
static void set_limits(fwd_rows *r, int64_t layer)
{
    const arch_layer *own = &r->c->layer[layer];
    const bool by_layer = r->c->act == ARCH_SILU_CAPPED;
    r->expert_limit = r->mlp_limit = by_layer ? INFINITY : (float)r->c->act_limit;
    if (by_layer && own->expert_limit > 0) r->expert_limit = (float)own->expert_limit;
    if (by_layer && own->mlp_limit > 0) r->mlp_limit = (float)own->mlp_limit;
}

/* What scores have of distances: q by the keys of each, k by the queries of each. */
static void run_distances(const fwd_rows *r, const model_layer *l)
{
    const arch_config *c = r->c;
    const int64_t n = arch_dist_rows(c), D = c->head_dim, ld = c->heads * n, ldx = c->heads * D;
    if (l->dist_k) fwd_head_products(r, l->dist_k, c->heads, r->dist_q, ld, n, r->q, ldx, D);
    if (l->dist_q) fwd_head_products(r, l->dist_q, c->heads, r->dist_k, ld, n, r->k, ldx, D);
}

/* h to heads. */
static void make_heads(const fwd_rows *r, const model_layer *l, int64_t layer, const fwd_kv *kv)
{
    if (r->c->w.mla)
        r->ops->mla(r, l);
    else
        run_qkv(r, l);
    if (l->vec[R_CCA_CONV].w) fwd_cca(r, l, kv);
    fwd_tap_along(r, l, layer, R_K_CONV, r->k);
    fwd_tap_along(r, l, layer, R_V_CONV, r->v);
    if (l->lin[R_KEY_STEP].present) fwd_key_steps(r, l);
    if (l->lin[R_REL].present)
        fwd_relative(r, l, layer);
    else if (l->dist_row)
        run_distances(r, l);
    pool_stage(r->p, STAGE_ROPE);
    if (fwd_norm_shared(r)) r->ops->squares(r, l, layer, kv);
    if (r->parts && r->c->w.qk_norm == QK_NORM_ALL) fwd_norm_parts(r, l);
}

/* Heads to attention's output a. */
static void run_heads(const fwd_rows *r, const model_layer *l, int64_t layer, const fwd_kv *kv,
                      const fwd_group *groups, int64_t n_groups)
{
    for (int64_t i = 0; i < n_groups; i++) {
        pool_stage(r->p, STAGE_ROPE);
        r->ops->store(r, l, layer, kv, &groups[i]);
        if (arch_compresses(r->c, layer))
            fwd_compress(r, l, layer, kv, &groups[i], r->in_turn ? (int)i : 0,
                         r->in_turn ? 1 : r->n_states);
        pool_stage(r->p, STAGE_ATTENTION);
        r->ops->attend(r, l, layer, kv, &groups[i]);
    }
    const int64_t K = r->c->heads * r->c->v_dim;
    if (!r->parts && !r->c->w.o_norm_heads) r->ops->norm_in(r, r->a, K, &l->vec[R_O_NORM], K);
}

static void enter_mixer(const fwd_rows *r, const model_layer *l, int64_t layer, const fwd_kv *kv)
{
    const arch_mixer m = r->c->layer[layer].mixer;
    if (r->c->row->early) r->ops->hold(r);
    if (m == MIX_NONE) return;
    if (l->ngrams) fwd_ngrams(r, l, layer, kv);
    if (r->c->hyper) r->ops->hyper_enter(r, l, R_HYPER_ATTN_FN, R_HYPER_ATTN_NORM);
    if (arch_is_aside(r->c, layer))
        fwd_aside_enter(r, l);
    else
        enter_branch(r, l, R_ATTN_NORM, branch_of(r, layer));
    if (arch_is_aside(r->c, layer - 1)) fwd_aside_resume(r);
    if (arch_mixer_attends(m)) make_heads(r, l, layer, kv);
    if (fwd_scans(r->c, layer)) r->ops->mix_in(r, l, layer);
}

/* Of MLA: what heads found, to a. */
static void to_values(const fwd_rows *r)
{
    if (r->c->w.mla && r->ops->values) r->ops->values(r);
}

/* a, and what a state gave, to `out`, and with it into x. */
static void attention_out(fwd_rows *r, const model_layer *l, int64_t layer)
{
    const arch_mixer m = r->c->layer[layer].mixer;
    if (m == MIX_NONE) return;
    open_out(r, &l->vec[R_ATTN_POST_NORM], branch_of(r, layer));
    if (arch_mixer_attends(m)) run_wo(r, l);
    if (fwd_scans(r->c, layer)) run_mix_out(r, l, layer);
}
static void attention_join(fwd_rows *r, const model_layer *l, int64_t layer)
{
    close_out(r, l, layer, branch_of(r, layer));
}

/* The MLP's output into x, and what comes after it. */
static void to_end(fwd_rows *r, const model_layer *l, int64_t layer)
{
    if (!r->c->layer[layer].no_mlp) close_out(r, l, layer, BRANCH_MLP);
    if (r->c->w.shortcut && !r->c->layer[layer].moe) r->ops->take_up(r);
    if (arch_is_aside(r->c, layer)) fwd_aside_leave(r, l);
    if (l->lin[R_HYPER_END_FN].present || l->lin[R_HYPER_END_UP].present) r->ops->hyper_end(r, l);
    if (r->c->w.hyper_mean && layer == r->whole->layers - 1) r->ops->hyper_mean(r);
    if (l->vec[R_LAYER_SCALE].w || l->lin[R_PLE_OUT].present) r->ops->finish(r, l, layer);
}

/* From a point to the next one that the layer has. */
static void run_point(fwd_rows *r, const model_layer *l, int64_t layer, fwd_point from,
                      fwd_point at, const fwd_kv *kv, const fwd_group *groups, int64_t n_groups)
{
    const bool mlp = !r->c->layer[layer].no_mlp, mix = fwd_scans(r->c, layer);
    if (from == FWD_AT_QKV && mix) r->ops->mix_in(r, l, layer);
    if (from == FWD_AT_QKV && !mix) make_heads(r, l, layer, kv);
    if (at == FWD_AT_O && mix) r->ops->mix(r, l, layer, kv);
    if (at == FWD_AT_O && !mix) {
        run_heads(r, l, layer, kv, groups, n_groups);
        to_values(r);
    }
    if (from == FWD_AT_O) {
        attention_out(r, l, layer);
        attention_join(r, l, layer);
    }
    if (at == FWD_AT_MLP) enter_branch(r, l, R_MLP_NORM, BRANCH_MLP);
    if (at == FWD_AT_DOWN) enter_mlp(r, l);
    if (at == FWD_AT_END && mlp) {
        open_out(r, &l->vec[R_MLP_POST_NORM], BRANCH_MLP);
        run_down(r, l);
    }
    if (at == FWD_AT_END) to_end(r, l, layer);
}

void fwd_run_to(fwd_rows *r, const model_layer *l, int64_t layer, fwd_point from, fwd_point at,
                const fwd_kv *kv, const fwd_group *groups, int64_t n_groups)
{
    set_layer(r, l, layer, kv);
    set_limits(r, layer);
    if (from == FWD_AT_QKV) enter_branch(r, l, R_ATTN_NORM, branch_of(r, layer));
    if (from == FWD_AT_MLP) enter_branch(r, l, R_MLP_NORM, BRANCH_MLP);
    for (fwd_point next; from < at; from = next) {
        next = fwd_next_point(r->whole, layer, from);
        run_point(r, l, layer, from, next, kv, groups, n_groups);
    }
}

static void to_attention(fwd_rows *r, const model_layer *l, int64_t layer, const fwd_kv *kv,
                         const fwd_group *groups, int64_t n_groups, const int64_t *picked,
                         int64_t n_picked)
{
    const model_vector *v = l->vec;
    const arch_mixer m = r->c->layer[layer].mixer;
    if (arch_mixer_attends(m)) run_heads(r, l, layer, kv, groups, n_groups);
    if (fwd_scans(r->c, layer)) {
        pool_stage(r->p, STAGE_ATTENTION);
        r->ops->mix(r, l, layer, kv);
    }
    if (picked) {
        r->ops->pick(r, picked, n_picked);
        r->R = n_picked;
        if (n_picked == 0) return;
    }
    /* A parallel MLP reads x before attention joins it, or attention's own input. */
    if (r->c->w.parallel && v[R_MLP_NORM].w) enter_branch(r, l, R_MLP_NORM, BRANCH_MLP);
    if (arch_mixer_attends(m)) to_values(r);
    attention_out(r, l, layer);
}

static void to_mlp(fwd_rows *r, const model_layer *l, int64_t layer)
{
    const model_vector *v = l->vec;
    if (r->c->layer[layer].mixer != MIX_NONE) attention_join(r, l, layer);
    if (r->c->laurel) r->ops->laurel(r, l);
    if (r->c->layer[layer].no_mlp) return;
    r->sparse = r->c->layer[layer].sparse;
    set_limits(r, layer);
    if (r->c->hyper) r->ops->hyper_enter(r, l, R_HYPER_MLP_FN, R_HYPER_MLP_NORM);
    if (!r->c->w.parallel) enter_branch(r, l, R_MLP_NORM, BRANCH_MLP);
    if (arch_is_aside(r->c, layer)) fwd_aside_clear(r);
    open_out(r, &v[R_MLP_POST_NORM], BRANCH_MLP);
    if (r->c->layer[layer].moe && !r->c->w.dense_beside) {
        r->ops->moe(r, l);
        return;
    }
    enter_mlp(r, l);
    run_down(r, l);
    if (r->c->layer[layer].moe) r->ops->beside(r, l);
}

void fwd_run_part(fwd_part part, fwd_rows *r, const model_layer *l, int64_t layer, const fwd_kv *kv,
                  const fwd_group *groups, int64_t n_groups, const int64_t *picked,
                  int64_t n_picked)
{
    set_layer(r, l, layer, kv);
    if (r->lora) r->lora->layer = arch_first_with(r->c, R_O, layer); /* whose weights it changes */
    if (part == FWD_TO_HEADS) {
        if (r->c->streams) r->ops->predict(r, l);
        enter_mixer(r, l, layer, kv);
    } else if (part == FWD_TO_ATTENTION)
        to_attention(r, l, layer, kv, groups, n_groups, picked, n_picked);
    else if (r->R && part == FWD_TO_MLP)
        to_mlp(r, l, layer);
    else if (r->R)
        to_end(r, l, layer);
}

void fwd_run_layer(fwd_rows *r, const model_layer *l, int64_t layer, const fwd_kv *kv,
                   const fwd_group *groups, int64_t n_groups, const int64_t *picked,
                   int64_t n_picked)
{
    r->c = arch_at(r->whole, layer);
    if (r->parts) r->parts->at = part_at(r->parts->part, layer);
    for (fwd_part part = 0; part < FWD_N_PARTS; part++)
        fwd_run_part(part, r, l, layer, kv, groups, n_groups, picked, n_picked);
    r->c = r->whole;
}

/* ---- the head ---- */

/* x's first n rows to logits. */
static void finish_chunk(const fwd_rows *r, int64_t row, int64_t n, const void *arg)
{
    float *const *all = arg;
    const arch_config *c = r->c;
    float *logits = *all + row * c->vocab;
    if (c->logit_scale != 1) k_scale(logits, (float)c->logit_scale, n * c->vocab);
    if (c->final_softcap > 0) k_softcap(logits, (float)c->final_softcap, n * c->vocab);
}

void fwd_finish_logits(const fwd_rows *r, float *logits, int64_t n)
{
    if (r->c->logit_scale != 1 || r->c->final_softcap > 0) fwd_each(r, n, finish_chunk, &logits);
}

void fwd_run_final(const fwd_rows *r, const model *m, int64_t n)
{
    pool_stage(r->p, STAGE_HEAD);
    r->ops->norm(r, r->h, r->x, &m->final_norm, n, m->cfg->hidden);
}

/* By the lengths of the head's rows. */
typedef struct {
    const float *factors;
    float *logits;
    int64_t ld;
} scaled;

static void scale_words(const fwd_rows *r, int64_t row, int64_t n, const void *arg)
{
    const scaled *s = arg;
    const int64_t V = r->c->vocab;
    for (int64_t t = row; t < row + n; t++)
        for (int64_t v = 0; v < V; v++)
            s->logits[t * s->ld + v] *= s->factors[v];
}

static void gelu_chunk(const fwd_rows *r, int64_t row, int64_t n, const void *arg)
{
    const int64_t W = r->c->embed_dim;
    (void)arg;
    k_act(r->e + row * W, n * W, ACT_GELU);
}

void fwd_run_head(const fwd_rows *r, const model *m, float *logits, int64_t ld, int64_t n)
{
    const arch_config *c = m->cfg;
    const float *x = r->h;
    fwd_run_final(r, m, n);
    if (m->proj_out.present) {
        mm_out out = fwd_out(&m->proj_out, r->e, c->embed_dim, false);
        r->ops->products(r, &out, 1, x, c->hidden, n);
        x = r->e;
    }
    if (m->head_norm.w) {
        fwd_each(r, n, gelu_chunk, NULL);
        r->ops->norm(r, r->e, r->e, &m->head_norm, n, c->embed_dim);
    }
    mm_weight words = m->head.w;
    mm_out out = fwd_out(&m->head, logits, ld, false);
    if (c->head_more) { /* its first rows */
        words.N -= c->head_more;
        out.w = &words;
    }
    if (r->parts && r->parts->part->rank) { /* only rank 0 has them all */
        out.y = r->parts->out;
        out.ldy = m->head.w.N;
    }
    r->ops->products(r, &out, 1, x, c->embed_dim, n);
    if (m->head_factors) fwd_each(r, n, scale_words, &(scaled){ m->head_factors, logits, ld });
    if (r->parts) fwd_gather_logits(r, logits, n);
}
