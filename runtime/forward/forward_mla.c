/* runtime/forward/forward_mla.c - multi-head latent attention (arXiv:2405.04434), with K and V of every
 * head written out:
 *
 *   q = b_q norm(a_q h), or W_q h                of each head [nope | rope]
 *   [c | k_rope] = a_kv h                        k_rope is shared by the heads
 *   [k_nope | v] of each head = b_kv norm(c)
 *   K of each head = [k_nope | rotated k_rope]
 *
 * The rotation takes neighbours. Both norms have an epsilon of their own, whatever the config says.
 */
#include "runtime/forward/forward_impl.h"

size_t fwd_mla_scratch(const arch_config *c, int64_t R, int threads)
{
    if (!c->w.mla) return 0;
    const int64_t K = c->q_lora > c->kv_lora ? c->q_lora : c->kv_lora;
    return mm_scratch_bytes(2 * R, K, 2, threads);
}

static void norm_latents(const fwd_rows *r, int64_t row, int64_t n, const void *arg)
{
    const arch_config *c = r->c;
    const model_layer *l = arg;
    const int64_t width = c->kv_lora + c->rope_dims;
    float *kv = r->kv_a + row * width, *q = r->q_a + row * c->q_lora;
    k_rmsnorm(kv, width, kv, width, l->vec[R_KV_A_NORM].w, 0, n, c->kv_lora, FWD_LATENT_EPS);
    if (c->q_lora)
        k_rmsnorm(q, c->q_lora, q, c->q_lora, l->vec[R_Q_A_NORM].w, 0, n, c->q_lora,
                  FWD_LATENT_EPS);
}

static void finish_rows(const fwd_rows *r, int64_t row, int64_t n, const void *arg)
{
    const arch_config *c = r->c;
    const int64_t H = c->heads, D = c->head_dim, nope = c->nope_dims, rope = c->rope_dims,
                  V = c->v_dim, half = rope / 2;
    (void)arg;
    for (int64_t t = row; t < row + n; t++) {
        float *k_rope_row = r->kv_a + t * (c->kv_lora + rope) + c->kv_lora;
        const float *cs = r->cos[ROPE_MAIN] + t * half, *sn = r->sin[ROPE_MAIN] + t * half;
        k_rope(r->q + t * H * D + nope, H, D, rope, cs, sn, c->w.rope_half);
        k_rope(k_rope_row, 1, rope, rope, cs, sn, c->w.rope_half);
        const float f = arch_q_factor(c, 0, r->row_pos[t]);
        if (f != 1) k_scale(r->q + t * H * D, f, H * D);
        for (int64_t h = 0; h < H; h++) {
            const float *b = r->kv_b + (t * H + h) * (nope + V);
            float *k = r->k + (t * H + h) * D;
            memcpy(k, b, (size_t)nope * sizeof *k);
            memcpy(k + nope, k_rope_row, (size_t)rope * sizeof *k);
            memcpy(r->v + (t * H + h) * V, b + nope, (size_t)V * sizeof *k);
        }
    }
}

void fwd_run_mla(const fwd_rows *r, const model_layer *l)
{
    const arch_config *c = r->c;
    const model_linear *lin = l->lin;
    const int64_t width = c->kv_lora + c->rope_dims, q = c->heads * c->head_dim;
    const int64_t kv = c->heads * (c->nope_dims + c->v_dim);
    const arch_role first = c->q_lora ? R_Q_A : R_Q;
    fwd_tap_rows(r, first, r->h, c->hidden, c->hidden);
    fwd_tap_rows(r, R_KV_A, r->h, c->hidden, c->hidden);
    mm_out a[] = { c->q_lora ? fwd_out(&lin[R_Q_A], r->q_a, c->q_lora, false)
                             : fwd_out(&lin[R_Q], r->q, q, false),
                   fwd_out(&lin[R_KV_A], r->kv_a, width, false) };
    pool_stage(r->p, STAGE_QKV);
    mm_run(a, 2, r->h, c->hidden, r->R, r->acts, r->scratch, r->p);
    fwd_each(r, r->R, norm_latents, l);
    fwd_tap_rows(r, R_KV_B, r->kv_a, width, c->kv_lora);
    mm_out b[] = { fwd_out(&lin[R_KV_B], r->kv_b, kv, false),
                   fwd_out(&lin[R_Q_B], r->q, q, false) };
    const mm_job jobs[] = { { r->kv_a, width, r->R, NULL, &b[0], 1 },
                            { r->q_a, c->q_lora, r->R, NULL, &b[1], 1 } };
    if (c->q_lora) fwd_tap_rows(r, R_Q_B, r->q_a, c->q_lora, c->q_lora);
    mm_run_jobs(jobs, c->q_lora ? 2 : 1, r->acts, r->scratch, r->p);
    fwd_each(r, r->R, finish_rows, NULL);
}
