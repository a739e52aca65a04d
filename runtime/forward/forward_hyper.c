/* runtime/forward/forward_hyper.c - several residual streams s, mixed before and after every branch
 * (hyper-connections, arXiv:2409.19606, with mixing that is doubly stochastic, arXiv:2512.24880).
 *
 *   [p, o, m] = fn [s_1 .. s_n] / rms(all s);  p, o, m *= scale, += base      m [n, n]
 *   pre = sigmoid(p) + eps;  post = 2 sigmoid(o)
 *   mix = softmax of m's rows + eps, its columns and rows then divided in turn by their sums
 *   x = sum_j pre_j s_j;  y = branch(x);  s_k = post_k y + sum_j mix_jk s_j
 *
 * The streams begin as the embedding, and end as x of a last such pre (DeepSeek V4), or as their mean (GLM-5-Next). Or
 * without m (Hy4):
 *
 *   post = magnitude sigmoid(o) + eps;  s_k += post_k y
 *
 * Or with a gate for each dim of each stream (Qwen4-Exp):
 *
 *   n_j = norm(s_j);  g = sigmoid(up silu(down [n_1 .. n_n] / n));  x = sum_j g_j n_j / n
 *   post = 2 sigmoid(post_fn [n_1 .. n_n] / n);  s_k += post_k y */
#include "runtime/forward/forward_impl.h"

enum { MAX = 8 };

void fwd_hyper_begin(const fwd_rows *r)
{
    const int64_t H = r->c->hidden, n = r->c->hyper;
    for (int64_t t = 0; t < r->R; t++)
        for (int64_t j = 0; j < n; j++)
            memcpy(r->streams + (t * n + j) * H, r->x + t * H, (size_t)H * sizeof(float));
}

/* ---- before a branch ---- */

static float sum_of(const float *x, int64_t n, int64_t step)
{
    float sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += x[i * step];
    return sum;
}

static void divide(float *x, int64_t n, int64_t step, float by)
{
    for (int64_t i = 0; i < n; i++)
        x[i * step] /= by;
}

/* m [n, n] to the mixing matrix. */
static void make_stochastic(float *m, const arch_config *c)
{
    const int64_t n = c->hyper;
    const float eps = (float)c->hyper_eps;
    for (float *row = m; row < m + n * n; row += n) {
        float max = row[0];
        for (int64_t k = 1; k < n; k++)
            max = row[k] > max ? row[k] : max;
        for (int64_t k = 0; k < n; k++)
            row[k] = k_exp(row[k] - max);
        divide(row, n, 1, sum_of(row, n, 1));
        for (int64_t k = 0; k < n; k++)
            row[k] += eps;
    }
    for (int64_t step = 0; step < c->hyper_steps; step++) {
        for (int64_t j = 0; j < n && step; j++)
            divide(m + j * n, n, 1, sum_of(m + j * n, n, 1) + eps);
        for (int64_t k = 0; k < n; k++)
            divide(m + k, n, n, sum_of(m + k, n, n) + eps);
    }
}

static float sigmoid(float x) { return 1 / (1 + k_exp(-x)); }

/* n numbers of a row, scaled and with their base. */
static void finish(float *x, int64_t n, float scale, const float *base)
{
    for (int64_t i = 0; i < n; i++)
        x[i] = x[i] * scale + base[i];
}

static float inverse_rms(const float *x, int64_t n, double eps)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += (double)x[i] * (double)x[i];
    return (float)(1 / sqrt(sum / (double)n + eps));
}

/* x = sum_j sigmoid(p_j) + eps of s_j */
static void collapse(const fwd_rows *r, int64_t t, const float *p)
{
    const int64_t H = r->c->hidden, n = r->c->hyper;
    const float *s = r->streams + t * n * H;
    float pre[MAX], *x = r->x + t * H;
    for (int64_t j = 0; j < n; j++)
        pre[j] = sigmoid(p[j]) + (float)r->c->hyper_eps;
    for (int64_t i = 0; i < H; i++) {
        float sum = 0;
        for (int64_t j = 0; j < n; j++)
            sum += pre[j] * s[j * H + i];
        x[i] = sum;
    }
}

typedef struct {
    const float *base, *scale;
} hyper_arg;

static void enter_rows(const fwd_rows *r, int64_t row, int64_t rows, const void *arg)
{
    const hyper_arg *a = arg;
    const arch_config *c = r->c;
    const bool apart = c->w.hyper_apart;
    const int64_t n = c->hyper, W = arch_hyper_width(c), S = fwd_streams_width(c);
    for (int64_t t = row; t < row + rows; t++) {
        float *m = r->hyper + t * W;
        k_scale(m, inverse_rms(r->streams + t * S, S, c->norm_eps), W);
        finish(m, n, a->scale[0], a->base);
        finish(m + n, n, a->scale[1], a->base + n);
        collapse(r, t, m);
        for (int64_t j = n; j < 2 * n; j++)
            m[j] = (float)c->hyper_post * sigmoid(m[j]) + (apart ? (float)c->hyper_eps : 0);
        if (apart) continue;
        finish(m + 2 * n, n * n, a->scale[2], a->base + 2 * n);
        make_stochastic(m + 2 * n, c);
    }
}

/* fn's product of all streams, always in f32: what a row mixes by stays in it. */
static void mix_products(const fwd_rows *r, const model_layer *l, arch_role fn, int64_t ldy)
{
    const mm_out out = fwd_out(&l->lin[fn], r->hyper, ldy, false);
    const int64_t S = fwd_streams_width(r->c);
    mm_run(&out, 1, r->streams, S, r->R, MM_F32, r->scratch, r->p);
}

/* ---- gates of each dim ---- */

static void norm_streams(const fwd_rows *r, int64_t row, int64_t rows, const void *arg)
{
    const model_vector *v = arg;
    const int64_t H = r->c->hidden, S = fwd_streams_width(r->c);
    for (int64_t at = row * S; at < (row + rows) * S; at += H)
        k_rmsnorm(r->hyper_normed + at, H, r->streams + at, H, v->w + at % S, v->offset, 1, H,
                  v->eps);
}

static void act_low(const fwd_rows *r, int64_t row, int64_t rows, const void *arg)
{
    const int64_t W = r->c->hyper_rank;
    float *x = r->hyper_low + row * W;
    (void)arg;
    k_scale(x, 1 / (float)r->c->hyper, rows * W);
    k_act(x, rows * W, (k_act_fn)ARCH_SILU);
}

/* x, and the factors on what the branch gives. */
static void gate_streams(const fwd_rows *r, int64_t row, int64_t rows, const void *arg)
{
    const int64_t H = r->c->hidden, n = r->c->hyper, S = fwd_streams_width(r->c);
    const float each = 1 / (float)n;
    (void)arg;
    for (int64_t t = row; t < row + rows; t++) {
        float *gate = r->hyper_gate + t * S, *x = r->x + t * H,
              *post = r->hyper + t * arch_hyper_width(r->c) + n;
        const float *normed = r->hyper_normed + t * S;
        k_scale(gate, -1, S);
        k_exp_minus(gate, gate, 0, S);
        for (int64_t i = 0; i < H; i++) {
            float sum = 0;
            for (int64_t j = i; j < S; j += H)
                sum += normed[j] / (1 + gate[j]);
            x[i] = sum * each;
        }
        for (int64_t j = 0; j < n; j++)
            post[j] = 2 * sigmoid(post[j] * each);
    }
}

/* Roles from `norm` on: norm, down, up, and before a branch post. Always in f32, as above. */
static void enter_gated(const fwd_rows *r, const model_layer *l, arch_role norm, bool branch)
{
    const int64_t S = fwd_streams_width(r->c), W = r->c->hyper_rank, ld = arch_hyper_width(r->c);
    mm_out outs[2] = { fwd_out(&l->lin[norm + 1], r->hyper_low, W, false) };
    const mm_out up = fwd_out(&l->lin[norm + 2], r->hyper_gate, S, false);
    fwd_each(r, r->R, norm_streams, &l->vec[norm]);
    if (branch) outs[1] = fwd_out(&l->lin[norm + 3], r->hyper + r->c->hyper, ld, false);
    mm_run(outs, branch ? 2 : 1, r->hyper_normed, S, r->R, MM_F32, r->scratch, r->p);
    fwd_each(r, r->R, act_low, NULL);
    mm_run(&up, 1, r->hyper_low, W, r->R, MM_F32, r->scratch, r->p);
    fwd_each(r, r->R, gate_streams, NULL);
}

void fwd_hyper_enter(const fwd_rows *r, const model_layer *l, arch_role fn, arch_role norm)
{
    if (r->c->hyper_rank) {
        pool_stage(r->p, STAGE_NORM);
        enter_gated(r, l, norm, true);
        return;
    }
    const hyper_arg a = { l->vec[fn + 1].w, l->vec[fn + 2].w };
    pool_stage(r->p, STAGE_NORM);
    mix_products(r, l, fn, arch_hyper_width(r->c));
    fwd_each(r, r->R, enter_rows, &a);
}

/* ---- after it ---- */
static void leave_rows(const fwd_rows *r, int64_t row, int64_t rows, const void *arg)
{
    const int64_t H = r->c->hidden, n = r->c->hyper;
    (void)arg;
    for (int64_t t = row; t < row + rows; t++) {
        const float *post = r->hyper + t * arch_hyper_width(r->c) + n, *mix = post + n,
                    *y = r->y + t * H;
        float *s = r->streams + t * n * H;
        for (int64_t k = 0; k < n && r->c->w.hyper_apart; k++)
            for (int64_t i = 0; i < H; i++)
                s[k * H + i] += post[k] * y[i];
        for (int64_t i = 0; i < H && !r->c->w.hyper_apart; i++) {
            float was[MAX];
            for (int64_t j = 0; j < n; j++)
                was[j] = s[j * H + i];
            for (int64_t k = 0; k < n; k++) {
                float sum = post[k] * y[i];
                for (int64_t j = 0; j < n; j++)
                    sum += mix[j * n + k] * was[j];
                s[k * H + i] = sum;
            }
        }
    }
}

void fwd_hyper_leave(const fwd_rows *r) { fwd_each(r, r->R, leave_rows, NULL); }

static void end_rows(const fwd_rows *r, int64_t row, int64_t rows, const void *arg)
{
    const hyper_arg *a = arg;
    const int64_t n = r->c->hyper, S = fwd_streams_width(r->c);
    for (int64_t t = row; t < row + rows; t++) {
        float *p = r->hyper + t * n;
        k_scale(p, inverse_rms(r->streams + t * S, S, r->c->norm_eps), n);
        finish(p, n, a->scale[0], a->base);
        collapse(r, t, p);
    }
}

static void mean_rows(const fwd_rows *r, int64_t row, int64_t rows, const void *arg)
{
    const int64_t H = r->c->hidden, n = r->c->hyper;
    (void)arg;
    for (int64_t i = row * H; i < (row + rows) * H; i++) {
        const float *s = r->streams + i / H * n * H + i % H;
        r->x[i] = sum_of(s, n, H) / (float)n;
    }
}

void fwd_hyper_mean(const fwd_rows *r) { fwd_each(r, r->R, mean_rows, NULL); }

void fwd_hyper_end(const fwd_rows *r, const model_layer *l)
{
    const hyper_arg a = { l->vec[R_HYPER_END_BASE].w, l->vec[R_HYPER_END_SCALE].w };
    if (r->c->hyper_rank) {
        enter_gated(r, l, R_HYPER_END_NORM, false);
        return;
    }
    mix_products(r, l, R_HYPER_END_FN, r->c->hyper);
    fwd_each(r, r->R, end_rows, &a);
}
