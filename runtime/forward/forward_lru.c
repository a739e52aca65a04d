/* runtime/forward/forward_lru.c - what the real-gated linear recurrent unit (arXiv:2402.19427) makes of a row before
 * its recurrence, on the CPU. Of each block of channels by itself, x what the convolution gives:
 *
 *     admit = sigmoid(R_MIX_ADMIT x + bias), keep = sigmoid(R_MIX_KEEP x + bias)
 *     log a = keep R_MIX_SPAN, x = x admit sqrt(1 - a^2), or x admit at the first position */
#include "runtime/forward/forward_mix.h"

enum { LANES = 16 };

static inline void add_lanes(float *sum, const float *x, const float *w, int64_t n, int lanes)
{
    for (int64_t i = 0; i < n; i++)
        for (int j = 0; j < lanes; j++)
            sum[j] += x[i] * w[i * n + j];
}

/* Outputs of a block from j on: y = x w + bias, w [n inputs, n outputs]. */
static void block_lanes(float *y, const float *x, const float *w, const float *bias, int64_t n,
                        int64_t j)
{
    const int lanes = n - j < LANES ? (int)(n - j) : LANES;
    float sum[LANES];
    memcpy(sum, bias + j, (size_t)lanes * sizeof *sum);
    if (lanes == LANES)
        add_lanes(sum, x, w + j, n, LANES);
    else
        add_lanes(sum, x, w + j, n, lanes);
    memcpy(y + j, sum, (size_t)lanes * sizeof *sum);
}

/* A gate's sums of n rows, [T, channels]: the weights of LANES outputs serve all of them. */
static void run_gate(const fwd_rows *r, float *y, const float *w, const float *bias, int64_t row,
                     int64_t n)
{
    const int64_t C = r->c->mix_value, K = C / r->c->heads, ld = mix_width(r);
    for (int64_t at = 0; at < C; at += K)
        for (int64_t j = 0; j < K; j += LANES)
            for (int64_t t = row; t < row + n; t++)
                block_lanes(y + t * C + at, r->mix + t * ld + at, w + at * K, bias + at, K, j);
}

void fwd_lru_rows(const fwd_rows *r, const model_layer *l, int64_t row, int64_t n)
{
    const int64_t C = r->c->mix_value, ld = mix_width(r);
    const float *span = l->vec[R_MIX_SPAN].w;
    run_gate(r, r->mix_out, l->vec[R_MIX_ADMIT].w, l->vec[R_MIX_ADMIT_BIAS].w, row, n);
    run_gate(r, r->decay, l->vec[R_MIX_KEEP].w, l->vec[R_MIX_KEEP_BIAS].w, row, n);
    for (int64_t t = row; t < row + n; t++) {
        float *x = r->mix + t * ld, *admitted = r->mix_out + t * C, *a = r->decay + t * C;
        mix_to_sigmoids(admitted, 1, C);
        mix_to_sigmoids(a, 1, C);
        for (int64_t i = 0; i < C; i++) {
            admitted[i] *= x[i];
            a[i] *= span[i];
            x[i] = 2 * a[i];
        }
        k_exp_minus(x, x, 0, C);
        k_exp_minus(a, a, 0, C);
        for (int64_t i = 0; i < C; i++)
            x[i] = r->row_pos[t] ? admitted[i] * sqrtf(1 - x[i]) : admitted[i];
    }
}
