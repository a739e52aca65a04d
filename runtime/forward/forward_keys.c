/* runtime/forward/forward_keys.c - scores with an addend of each key (Doge): of a kv head
 *
 *   score = scale q k + exp(rate softplus(step v))
 *
 * It depends on v alone, and so is written beside k: of key_pad further dims of a head two are the addend in k, what
 * BF16 holds of it and the rest, and in q the power of two by which the scale is made up for; the others are 0. */
#include "runtime/forward/forward_impl.h"

static void finish_chunk(const fwd_rows *r, int64_t row, int64_t n, const void *arg)
{
    const float *rate = arg;
    const int64_t G = r->c->kv_heads;
    for (float *x = r->key_add + row * G; n > 0; n--, x += G)
        for (int64_t g = 0; g < G; g++)
            x[g] = expf(rate[g] * (x[g] > 20 ? x[g] : fwd_softplus(x[g])));
}

void fwd_key_steps(const fwd_rows *r, const model_layer *l)
{
    const int64_t G = r->c->kv_heads, W = G * r->c->v_dim;
    const mm_out out = fwd_out(&l->lin[R_KEY_STEP], r->key_add, G, false);
    mm_run(&out, 1, r->v, W, r->R, MM_F32, r->scratch, r->p);
    fwd_each(r, r->R, finish_chunk, l->vec[R_KEY_RATE].w);
}

/* n heads, from the last, which are one after the other. */
static void widen(float *x, int64_t n, int64_t D, int64_t pad)
{
    for (int64_t h = n - 1; h >= 0; h--) {
        memmove(x + h * (D + pad), x + h * D, (size_t)D * sizeof *x);
        memset(x + h * (D + pad) + D, 0, (size_t)pad * sizeof *x);
    }
}

/* What BF16 holds of it, toward 0. */
static float upper(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    bits &= 0xffff0000;
    memcpy(&x, &bits, sizeof x);
    return x;
}

void fwd_key_widen(const fwd_rows *r, int64_t t)
{
    const arch_config *c = r->c;
    const int64_t W = c->head_dim, D = W - c->key_pad, H = c->heads, G = c->kv_heads;
    const double power = exp2(ceil(-log2(c->attn_scale)));
    float *q = r->q + t * H * W, *k = r->k + t * G * W;
    widen(q, H, D, c->key_pad);
    widen(k, G, D, c->key_pad);
    for (int64_t h = 0; h < H; h++)
        q[h * W + D] = q[h * W + D + 1] = (float)power;
    for (int64_t g = 0; g < G; g++) {
        const float add = r->key_add[t * G + g] / (float)(power * c->attn_scale);
        k[g * W + D] = upper(add);
        k[g * W + D + 1] = add - upper(add);
    }
}
