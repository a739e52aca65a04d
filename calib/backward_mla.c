/* calib/backward_mla.c - latent attention (arXiv:2405.04434) forward and back (calib/backward_impl.h). In training each
 * head has keys and values of its own, made of the latents:
 *
 *     q = b_q norm(a_q h), or W_q h                       of each head [nope | rope]
 *     [c | k_rope] = a_kv h;  [k_nope | v] = b_kv norm(c)  of each head; k = [k_nope | k_rope], one k_rope for all */
#include <string.h>

#include "calib/backward_impl.h"
#include "kernels/ops.h"

void grad_mla_parts(grad_part p[GRAD_MLA_PARTS], grad_mla *m, const arch_config *c, int64_t R)
{
    const bool mla = c->w.mla;
    const grad_part parts[GRAD_MLA_PARTS] = { { &m->q, mla ? R * c->q_lora : 0 },
                                              { &m->q_normed, mla ? R * c->q_lora : 0 },
                                              { &m->c, mla ? R * c->kv_lora : 0 },
                                              { &m->c_normed, mla ? R * c->kv_lora : 0 },
                                              { &m->k_rope, mla ? R * c->rope_dims : 0 } };
    memcpy(p, parts, sizeof parts);
}

typedef struct {
    grad_ctx *g;
    float *x;
    int64_t R;
} split_job;

static int64_t row_end(const split_job *j, int64_t item) { return grad_tile_end(item, j->R); }

/* [c | k_rope] of a row to its two parts, or back. */
static void latent_item(void *ctx, int64_t item, int thread)
{
    (void)thread;
    const split_job *j = ctx;
    const arch_config *c = j->g->c;
    const grad_mla *m = &j->g->m->mla;
    const int64_t L = c->kv_lora, P = c->rope_dims;
    for (int64_t r = item * GRAD_ROWS; r < row_end(j, item); r++) {
        memcpy(m->c + r * L, j->x + r * (L + P), (size_t)L * sizeof(float));
        memcpy(m->k_rope + r * P, j->x + r * (L + P) + L, (size_t)P * sizeof(float));
    }
}

static void latent_back_item(void *ctx, int64_t item, int thread)
{
    (void)thread;
    const split_job *j = ctx;
    const arch_config *c = j->g->c;
    const int64_t L = c->kv_lora, P = c->rope_dims;
    for (int64_t r = item * GRAD_ROWS; r < row_end(j, item); r++) {
        memcpy(j->x + r * (L + P), j->g->dc + r * L, (size_t)L * sizeof(float));
        memcpy(j->x + r * (L + P) + L, j->g->dk_rope + r * P, (size_t)P * sizeof(float));
    }
}

/* k and v of a row's heads from [k_nope | v] and the k_rope of all. */
static void heads_item(void *ctx, int64_t item, int thread)
{
    (void)thread;
    const split_job *j = ctx;
    const arch_config *c = j->g->c;
    const int64_t N = c->nope_dims, V = c->v_dim, P = c->rope_dims;
    for (int64_t r = item * GRAD_ROWS; r < row_end(j, item); r++)
        for (int64_t h = 0; h < c->heads; h++) {
            const int64_t i = r * c->heads + h;
            const float *x = j->x + i * (N + V);
            float *k = j->g->m->k + i * (N + P);
            memcpy(k, x, (size_t)N * sizeof *k);
            memcpy(k + N, j->g->m->mla.k_rope + r * P, (size_t)P * sizeof *k);
            memcpy(j->g->m->v + i * V, x + N, (size_t)V * sizeof *k);
        }
}

static void heads_back_item(void *ctx, int64_t item, int thread)
{
    (void)thread;
    const split_job *j = ctx;
    const arch_config *c = j->g->c;
    const int64_t N = c->nope_dims, V = c->v_dim, P = c->rope_dims;
    for (int64_t r = item * GRAD_ROWS; r < row_end(j, item); r++) {
        float *rope = j->g->dk_rope + r * P;
        memset(rope, 0, (size_t)P * sizeof *rope);
        for (int64_t h = 0; h < c->heads; h++) {
            const int64_t i = r * c->heads + h;
            const float *dk = j->g->dk + i * (N + P);
            float *x = j->x + i * (N + V);
            memcpy(x, dk, (size_t)N * sizeof *x);
            memcpy(x + N, j->g->dv + i * V, (size_t)V * sizeof *x);
            k_add(rope, dk + N, P);
        }
    }
}

static void run(grad_ctx *g, float *x, int64_t R, void (*fn)(void *, int64_t, int))
{
    split_job j = { g, x, R };
    pool_run(g->p, lq_ceil_div(R, GRAD_ROWS), fn, &j);
}

void grad_mla_latents(grad_ctx *g, float *x, int64_t R, bool back)
{
    run(g, x, R, back ? latent_back_item : latent_item);
}

void grad_mla_heads(grad_ctx *g, float *x, int64_t R, bool back)
{
    run(g, x, R, back ? heads_back_item : heads_item);
}
