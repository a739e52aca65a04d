/* calib/kl.c - logits of a block of rows, twice; their distance; its gradient. */
#include "calib/kl.h"

#include <assert.h>
#include <string.h>

#include "base/random.h"
#include "calib/gemm.h"
#include "kernels/ops.h"

enum { CHUNK = 256 };

size_t kl_scratch(int64_t V) { return 2 * (size_t)KL_ROWS * (size_t)V; }

typedef struct {
    float *s, *t; /* logits [rows, V]; s becomes (q - p) * scale */
    const kl_head *hs, *ht;
    int64_t V;
    float scale;
    double kl[KL_ROWS];
} block;

/* What the head makes of its product. */
static void finish(float *row, const kl_head *h)
{
    for (int64_t v = 0; v < h->V && h->bias; v++)
        row[v] += h->bias[v];
    if (h->scale != 0) k_scale(row, h->scale, h->V);
    if (h->cap > 0) k_softcap(row, h->cap, h->V);
}

/* The slope of that where a logit has come out as s. */
static float slope(const kl_head *h, float s)
{
    const float scale = h->scale != 0 ? h->scale : 1;
    return h->cap > 0 ? scale * (1 - s / h->cap * (s / h->cap)) : scale;
}

static void one_row(void *ctx, int64_t r, int thread)
{
    (void)thread;
    block *b = ctx;
    float *s = b->s + r * b->V, *t = b->t + r * b->V;
    finish(s, b->hs);
    finish(t, b->ht);
    float zs = k_logsumexp(s, b->V), zt = k_logsumexp(t, b->V);
    double kl = 0;
    for (int64_t at = 0; at < b->V; at += CHUNK) {
        const int64_t n = b->V - at < CHUNK ? b->V - at : CHUNK;
        float p[CHUNK], q[CHUNK];
        k_exp_minus(p, t + at, zt, n);
        k_exp_minus(q, s + at, zs, n);
        for (int64_t v = 0; v < n; v++) {
            const float lq = s[at + v] - zs, lp = t[at + v] - zt;
            kl += (double)p[v] * ((double)lp - (double)lq);
            s[at + v] = (q[v] - p[v]) * (b->scale * slope(b->hs, s[at + v]));
        }
    }
    b->kl[r] = kl;
}

double kl_run(float *grad, const float *student, const kl_head *hs, const float *teacher,
              const kl_head *ht, int64_t R, float scale, float *scratch, pool *p)
{
    assert(hs->V == ht->V && hs->K == ht->K);
    const int64_t V = hs->V, K = hs->K;
    block b = {
        .s = scratch, .t = scratch + KL_ROWS * V, .hs = hs, .ht = ht, .V = V, .scale = scale
    };
    double sum = 0;
    for (int64_t r = 0; r < R; r += KL_ROWS) {
        int64_t n = R - r < KL_ROWS ? R - r : KL_ROWS;
        gemm_dev_run(hs->on, b.s, V, (gemm_in){ student + r * K, K, false },
                     (gemm_in){ hs->W, K, true }, n, V, K, 0, p);
        gemm_dev_run(ht->on, b.t, V, (gemm_in){ teacher + r * K, K, false },
                     (gemm_in){ ht->W, K, true }, n, V, K, 0, p);
        pool_run(p, n, one_row, &b);
        for (int64_t i = 0; i < n; i++)
            sum += b.kl[i];
        if (grad)
            gemm_dev_run(hs->on, grad + r * K, K, (gemm_in){ b.s, V, false },
                         (gemm_in){ hs->W, K, false }, n, K, V, 0, p);
    }
    return sum;
}

/* ---- answers drawn ---- */
typedef struct {
    float *logits,
        *before; /* [rows, V]; becomes the gradient there: p - onehot(y) times the slope; `before` that */
    const kl_head *head;
    int64_t V, row0;
    uint64_t seed;
} draws;

static void draw_row(void *ctx, int64_t r, int thread)
{
    (void)thread;
    const draws *w = ctx;
    const kl_head *h = w->head;
    float *s = w->logits + r * w->V, *before = w->before + r * w->V;
    finish(s, h);
    if (h->cap > 0) memcpy(before, s, (size_t)w->V * sizeof *s);
    float z = k_logsumexp(s, w->V);
    double at = (double)(lq_random_of(lq_random_of(w->seed) + (uint64_t)(w->row0 + r)) >> 11) *
                0x1p-53,
           sum = 0;
    int64_t y = -1;
    k_exp_minus(s, s, z, w->V);
    for (int64_t v = 0; v < w->V; v++) {
        sum += (double)s[v];
        if (y < 0 && sum > at) y = v;
    }
    s[y < 0 ? w->V - 1 : y] -= 1;
    for (int64_t v = 0; v < w->V && h->cap > 0; v++)
        s[v] *= slope(h, before[v]);
    if (h->cap <= 0 && h->scale != 0) k_scale(s, h->scale, w->V);
}

void kl_draw(float *grad, const float *h, const kl_head *head, int64_t R, uint64_t seed,
             float *scratch, pool *p)
{
    const int64_t V = head->V, K = head->K;
    for (int64_t r = 0; r < R; r += KL_ROWS) {
        int64_t n = R - r < KL_ROWS ? R - r : KL_ROWS;
        draws w = { scratch, scratch + KL_ROWS * V, head, V, r, seed };
        gemm_dev_run(head->on, scratch, V, (gemm_in){ h + r * K, K, false },
                     (gemm_in){ head->W, K, true }, n, V, K, 0, p);
        pool_run(p, n, draw_row, &w);
        gemm_dev_run(head->on, grad + r * K, K, (gemm_in){ scratch, V, false },
                     (gemm_in){ head->W, K, false }, n, K, V, 0, p);
    }
}
