/* runtime/forward/forward_diff.c - differential attention (arXiv:2410.05258), on the CPU. Of H heads and G of k and v, G even:
 *
 *     head h attends with k of its group g to [v of g % (G / 2), v of G / 2 + g % (G / 2)], which are in the cache so
 *     a of the first H / 2 = (1 - start) norm(pair h - model_layer.diff pair (h + H / 2)) */
#include "runtime/forward/forward_impl.h"

void fwd_diff_values(const fwd_rows *r, int64_t t)
{
    const arch_config *c = r->c;
    const int64_t D = c->head_dim, G = c->kv_heads, half = G / 2;
    const size_t bytes = (size_t)D * sizeof(float);
    float *v = r->v + t * G * c->v_dim, *was = r->pairs + t * c->heads * c->v_dim;
    memcpy(was, v, (size_t)G * bytes);
    for (int64_t g = 0; g < G; g++) {
        memcpy(v + 2 * g * D, was + g % half * D, bytes);
        memcpy(v + (2 * g + 1) * D, was + (half + g % half) * D, bytes);
    }
}

void fwd_diff_heads(const fwd_rows *r, int64_t row, int64_t n, const void *arg)
{
    const arch_config *c = r->c;
    const int64_t W = c->v_dim, half = c->heads / 2, row0 = *(const int64_t *)arg;
    const float by = r->layer->diff, rest = 1 - r->layer->diff_start;
    for (int64_t t = row0 + row; t < row0 + row + n; t++) {
        float *a = r->a + t * half * W;
        const float *one = r->pairs + t * 2 * half * W, *other = one + half * W;
        for (int64_t i = 0; i < half * W; i++)
            a[i] = one[i] - by * other[i];
        for (int64_t h = 0; h < half; h++)
            k_rmsnorm(a + h * W, W, a + h * W, W, NULL, 0, 1, W, (float)c->norm_eps);
        k_scale(a, rest, half * W);
    }
}
