/* runtime/forward/forward_mla.c - multi-head latent attention (arXiv:2405.04434), absorbed: the heads attend to
 * the latents themselves, which are all that is cached.
 *
 *   q = b_q norm(a_q h), or W_q h                    of each head [nope | rope]
 *   [c | k_rope] = a_kv h;  c = norm(c)              cached, one row for all heads: [c | rotated k_rope]
 *   [W_k; W_v] of each head = its rows of b_kv
 *
 *   q . [W_k c | k_rope]  =  [W_k^T q_nope | q_rope] . [c | k_rope]
 *   sum p_j W_v c_j       =  W_v sum p_j c_j
 *
 * so a token takes kv_lora + rope_dims numbers of the cache for any number of heads. Attention takes
 * the cached row as V too: the last rope_dims of its output are not looked at. The rotation takes
 * neighbours; without positions (POS_NONE) those dims stay as they are. Both norms have an epsilon of
 * their own, whatever the config says (but w.latent_eps). A layer without R_KV_A attends to the rows of
 * the one that it shares with. Where there is an R_HEAD_GATE, each head's output is times
 * sigmoid of its number, and where there is an R_K_ROPE_NORM, k_rope is normed before it rotates. */
#include "runtime/forward/forward_impl.h"

enum { HEADS_AT_ONCE = 16 }; /* one region of the pool; more would take more scratch */

size_t fwd_heads_scratch(int64_t heads, int64_t R, int64_t K, int threads)
{
    const int64_t n = heads < HEADS_AT_ONCE ? heads : HEADS_AT_ONCE;
    return mm_scratch_bytes(n * R, K, (int)n, threads);
}

size_t fwd_mla_scratch(const arch_config *c, int64_t R, int threads)
{
    if (!c->w.mla || c->w.kv_one) return 0;
    const int64_t K = arch_q_width(c) > c->kv_lora ? arch_q_width(c) : c->kv_lora,
                  n = HEADS_AT_ONCE;
    const int64_t nope = c->n_sizes ? c->head_dim : c->nope_dims, /* the most of any layer */
        k = nope > c->kv_lora ? nope : c->kv_lora;
    const size_t in = mm_scratch_bytes(2 * R, K, 2, threads),
                 heads = mm_scratch_bytes(n * R, k, (int)n, threads);
    return in > heads ? in : heads;
}

static void norm_latents(const fwd_rows *r, int64_t row, int64_t n, const void *arg)
{
    const arch_config *c = r->c;
    const model_layer *l = arg;
    const int64_t width = c->kv_lora + c->rope_dims;
    const int64_t Q = arch_q_width(c), L = c->q_lora;
    float *kv = r->kv_a + row * width, *q = r->q_a + row * Q;
    const float eps = (float)arch_norm_eps(c, R_KV_A_NORM);
    if (l->lin[R_KV_A].present)
        k_rmsnorm(kv, width, kv, width, l->vec[R_KV_A_NORM].w, 0, n, c->kv_lora, eps);
    const model_vector *turned = &l->vec[R_K_ROPE_NORM];
    if (turned->w)
        k_rmsnorm(kv + c->kv_lora, width, kv + c->kv_lora, width, turned->w, turned->offset, n,
                  c->rope_dims, turned->eps);
    for (int64_t t = 0; t < n && c->latent_scale != 1 && l->lin[R_KV_A].present; t++)
        k_scale(kv + t * width, (float)c->latent_scale, c->kv_lora);
    if (c->q_lora) k_rmsnorm(q, Q, q + Q - L, Q, l->vec[R_Q_A_NORM].w, 0, n, L, eps);
}

/* Rotations, and an indexer's rows; of q's heads the rotated part goes where they meet the latents. */
static void rotate_rows(const fwd_rows *r, int64_t row, int64_t n, const void *arg)
{
    const arch_config *c = r->c;
    const int64_t H = c->heads, D = c->head_dim, nope = c->nope_dims, rope = c->rope_dims,
                  L = kv_latent_width(c), half = rope / 2;
    const model_layer *l = arg;
    const arch_rope_use turn = r->turn == ROPE_LOCAL ? ROPE_LOCAL : ROPE_MAIN;
    if (l->lin[R_INDEX_Q].present) fwd_index_rows(r, l, row, n);
    for (int64_t t = row; t < row + n; t++) {
        float *q = r->q + t * H * D, *to = r->latent + t * H * L + c->kv_lora;
        const float *cs = r->cos[turn] + t * half, *sn = r->sin[turn] + t * half;
        const float f = arch_q_factor(c, 0, r->row_pos[t]);
        if (c->w.pos == POS_ROPE) {
            k_rope(q + nope, H, D, rope, cs, sn, c->w.rope_half);
            if (l->lin[R_KV_A].present)
                k_rope(r->kv_a + t * L + c->kv_lora, 1, rope, rope, cs, sn, c->w.rope_half);
        }
        if (l->vec[R_Q_SLOPE].w)
            fwd_grow_heads(q, H, D, r->row_pos[t], &l->vec[R_Q_SLOPE], &l->vec[R_Q_BASE]);
        if (f != 1) k_scale(q, f, H * D);
        for (int64_t h = 0; h < H; h++)
            memcpy(to + h * L, q + h * D + nope, (size_t)rope * sizeof *q);
    }
}

void fwd_head_products(const fwd_rows *r, const mm_weight *w, int64_t heads, float *y, int64_t ldy,
                       int64_t y_head, const float *x, int64_t ldx, int64_t x_head)
{
    for (int64_t h = 0; h < heads; h += HEADS_AT_ONCE) {
        mm_out outs[HEADS_AT_ONCE];
        mm_job jobs[HEADS_AT_ONCE];
        int n = 0;
        for (; n < HEADS_AT_ONCE && h + n < heads; n++) {
            outs[n] = (mm_out){ .w = &w[h + n], .y = y + (h + n) * y_head, .ldy = ldy };
            jobs[n] = (mm_job){ x + (h + n) * x_head, ldx, r->R, NULL, &outs[n], 1 };
        }
        mm_run_jobs(jobs, n, MM_F32, r->scratch, r->p);
    }
}

/* Of R_ATTN_GATE, each output's own. */
static void gate_outputs(const fwd_rows *r, int64_t row, int64_t n, const void *arg)
{
    const int64_t W = fwd_gate_width(r->c);
    (void)arg;
    float *gate = r->q_gate + row * W, *a = r->a + row * W;
    k_scale(gate, -1, n * W);
    k_exp_minus(gate, gate, 0, n * W);
    for (int64_t i = 0; i < n * W; i++)
        a[i] /= 1 + gate[i];
}

/* Of a gated R_Q_B: its rows of q go where they are taken from. */
static void split_gated(const fwd_rows *r, int64_t row, int64_t n, const void *arg)
{
    const int64_t D = r->c->head_dim, W = D + r->c->v_dim;
    (void)arg;
    for (int64_t i = row * r->c->heads; i < (row + n) * r->c->heads; i++)
        memcpy(r->q + i * D, r->q_gate + i * W, (size_t)D * sizeof *r->q);
}

static void gate_rows(const fwd_rows *r, int64_t row, int64_t n, const void *arg)
{
    const int64_t D = r->c->head_dim, V = r->c->v_dim;
    (void)arg;
    for (int64_t i = row * r->c->heads; i < (row + n) * r->c->heads; i++) {
        float *a = r->a + i * V, *gate = r->q_gate + i * (D + V) + D;
        k_scale(gate, -1, V);
        k_exp_minus(gate, gate, 0, V);
        for (int64_t d = 0; d < V; d++)
            a[d] /= 1 + gate[d];
    }
}

static void gate_heads(const fwd_rows *r, int64_t row, int64_t n, const void *arg)
{
    const int64_t H = r->c->heads, V = r->c->v_dim;
    (void)arg;
    for (int64_t i = row * H; i < (row + n) * H; i++)
        k_scale(r->a + i * V, 1 / (1 + k_exp(-r->head_gate[i])), V);
}

void fwd_run_values(const fwd_rows *r)
{
    if (r->c->w.kv_one) {
        fwd_one_values(r);
        return;
    }
    const int64_t H = r->c->heads, V = r->c->v_dim, L = kv_latent_width(r->c);
    fwd_head_products(r, r->absorbed->v, H, r->a, H * V, V, r->latent, H * L, L);
    if (fwd_head_gates(r->c)) fwd_each(r, r->R, gate_heads, NULL);
    if (r->layer->lin[R_ATTN_GATE].present) fwd_each(r, r->R, gate_outputs, NULL);
    if (r->c->w.q_gated) fwd_each(r, r->R, gate_rows, NULL);
}

void fwd_run_mla(const fwd_rows *r, const model_layer *l)
{
    const arch_config *c = r->c;
    if (c->w.kv_one) {
        fwd_one_rows(r, l);
        return;
    }
    const model_linear *lin = l->lin;
    const int64_t H = c->heads, D = c->head_dim, L = kv_latent_width(c), q = H * D;
    const arch_role first = c->q_lora ? R_Q_A : R_Q;
    if (lin[R_ATTN_GATE].present) {
        const mm_out gate = fwd_out(&lin[R_ATTN_GATE], r->q_gate, fwd_gate_width(c), false);
        fwd_tap_rows(r, R_ATTN_GATE, r->h, c->hidden, c->hidden);
        mm_run(&gate, 1, r->h, c->hidden, r->R, r->acts, r->scratch, r->p);
    }
    fwd_tap_rows(r, first, r->h, c->hidden, c->hidden);
    if (lin[R_KV_A].present) fwd_tap_rows(r, R_KV_A, r->h, c->hidden, c->hidden);
    if (fwd_head_gates(c)) fwd_tap_rows(r, R_HEAD_GATE, r->h, c->hidden, c->hidden);
    const int64_t Q = arch_q_width(c);
    mm_out a[3];
    int n = 0;
    a[n++] = c->q_lora ? fwd_out(&lin[R_Q_A], r->q_a + Q - c->q_lora, Q, false)
                       : fwd_out(&lin[R_Q], r->q, q, false);
    if (lin[R_KV_A].present) a[n++] = fwd_out(&lin[R_KV_A], r->kv_a, L, false);
    if (fwd_head_gates(c)) a[n++] = fwd_out(&lin[R_HEAD_GATE], r->head_gate, H, false);
    pool_stage(r->p, STAGE_QKV);
    mm_run(a, n, r->h, c->hidden, r->R, r->acts, r->scratch, r->p);
    fwd_each(r, r->R, norm_latents, l);
    fwd_tap_rows(r, R_KV_B, r->kv_a, L, c->kv_lora);
    if (c->q_lora) {
        const bool gated = c->w.q_gated;
        const mm_out b =
            fwd_out(&lin[R_Q_B], gated ? r->q_gate : r->q, gated ? fwd_gate_width(c) : q, false);
        fwd_tap_rows(r, R_Q_B, r->q_a, Q, Q);
        mm_run(&b, 1, r->q_a, Q, r->R, r->acts, r->scratch, r->p);
        if (gated) fwd_each(r, r->R, split_gated, NULL);
    }
    if (lin[R_INDEX_Q].present) fwd_index_products(r, l);
    fwd_each(r, r->R, rotate_rows, l);
    fwd_head_products(r, r->absorbed->k, H, r->latent, H * L, L, r->q, q, D);
}
