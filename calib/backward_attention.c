/* calib/backward_attention.c - rotation and attention of a layer's heads, forward and back (calib/backward_impl.h).
 *
 * A head's weights are formed for BLOCK tokens at a time, from the first token that one of them sees to the last of
 * them: what is masked beside that is not multiplied, and what a block needs stays in the cache. */
#include <cblas.h>
#include <math.h>
#include <string.h>

#include "calib/backward_impl.h"
#include "kernels/ops.h"

enum { BLOCK = 128 };

int64_t grad_head_floats(const arch_config *c, int64_t len)
{
    return (c->attn_softcap > 0 ? 3 : 2) * (len < BLOCK ? len : BLOCK) * len;
}

double grad_seen(int64_t len) { return (double)(len + (len < BLOCK ? len : BLOCK)) / 2; }

/* ---- angles ---- */
enum { ANGLE_PARTS = 3 };

static int64_t angle_floats(const arch_config *c, int64_t len) { return len * c->rope_dims / 2; }

static bool rotates(const arch_config *c, int64_t layer)
{
    return c->layer[layer].rope != ROPE_OFF && arch_at(c, layer)->rope_dims > 0;
}

/* The first layer that rotates as this one does. */
static int64_t first_rotated_so(const arch_config *c, int64_t layer)
{
    int64_t i = 0;
    while (!rotates(c, i) || c->layer[i].rope != c->layer[layer].rope ||
           arch_at(c, i)->rope_dims != arch_at(c, layer)->rope_dims)
        i++;
    return i;
}

static int64_t slope_floats(const arch_config *c) { return c->w.pos == POS_ALIBI ? c->heads : 0; }

int64_t grad_angle_floats(const arch_config *c, int64_t len)
{
    int64_t n = 0;
    for (int64_t i = 0; i < c->layers; i++)
        if (rotates(c, i) && first_rotated_so(c, i) == i) n += angle_floats(arch_at(c, i), len);
    return ANGLE_PARTS * n + slope_floats(c);
}

const grad_angles *grad_angles_of(const grad_ctx *g, int64_t layer)
{
    const arch_config *own = arch_at(g->all, layer);
    for (int64_t i = 0; i < g->n_angles; i++)
        if (g->angles[i].use == own->layer[layer].rope &&
            g->angles[i].c->rope_dims == own->rope_dims)
            return &g->angles[i];
    return NULL;
}

/* Of all positions, there and back. */
static lq_status make_angles(grad_ctx *g, grad_angles *t, lq_err *err)
{
    const int64_t n = angle_floats(t->c, g->len);
    const grad_part p[ANGLE_PARTS] = { { &t->cos, n }, { &t->sin, n }, { &t->neg, n } };
    const lq_status s = grad_push(g, p, ANGLE_PARTS, err);
    if (s) return s;
    arch_rope_table(t->c, (arch_rope_use)t->use, 0, g->len, g->len, t->cos, t->sin);
    for (int64_t i = 0; i < n; i++)
        t->neg[i] = -t->sin[i];
    return LQ_OK;
}

lq_status grad_open_angles(grad_ctx *g, lq_err *err)
{
    const arch_config *c = g->all;
    const grad_part slopes = { &g->slopes, slope_floats(c) };
    lq_status s = grad_push(g, &slopes, 1, err);
    if (s) return s;
    if (g->slopes) arch_alibi_slopes(c, g->slopes);
    if (g->slopes && c->w.alibi_twice) k_scale(g->slopes, 2, c->heads);
    g->angles = lq_push(&g->arena, (size_t)c->layers * sizeof *g->angles);
    if (!g->angles) return lq_fail(err, LQ_ENOMEM, "no memory for a backward pass");
    for (int64_t i = 0; i < c->layers && !s; i++) {
        if (!rotates(c, i) || first_rotated_so(c, i) != i) continue;
        grad_angles *t = &g->angles[g->n_angles++];
        *t = (grad_angles){ .c = arch_at(c, i), .use = c->layer[i].rope };
        s = make_angles(g, t, err);
    }
    return s;
}

/* ---- rotation ---- */
typedef struct {
    const grad_ctx *g;
    float *q, *k;
    int64_t layer, R;
    bool back;
} rotate_job;

/* Rotated, and q times its position's factor; the way back is both again, by the other angle. */
static void rotate_item(void *ctx, int64_t item, int thread)
{
    (void)thread;
    const rotate_job *j = ctx;
    const arch_config *c = j->g->c;
    const int64_t H = c->heads, G = c->kv_heads, D = c->head_dim, half = c->rope_dims / 2;
    const grad_angles *t = grad_angles_of(j->g, j->layer);
    for (int64_t r = item * GRAD_ROWS; c->q_grow > 0 && r < grad_tile_end(item, j->R); r++)
        k_scale(j->q + r * H * D, arch_q_factor(c, j->layer, r % j->g->len), H * D);
    if (!t) return;
    for (int64_t r = item * GRAD_ROWS; r < grad_tile_end(item, j->R); r++) {
        const int64_t at = r % j->g->len * half, P = c->rope_dims;
        const float *cs = t->cos + at;
        const float *sn = (j->back ? t->neg : t->sin) + at;
        k_rope(j->q + r * H * D + (c->w.mla ? c->nope_dims : 0), H, D, P, cs, sn, c->w.rope_half);
        if (!j->k) continue;
        if (c->w.mla)
            k_rope(j->k + r * P, 1, P, P, cs, sn, c->w.rope_half);
        else
            k_rope(j->k + r * G * D, G, D, P, cs, sn, c->w.rope_half);
    }
}

void grad_rotate(grad_ctx *g, int64_t layer, float *q, float *k, int64_t R, bool back)
{
    rotate_job j = { g, q, k, layer, R, back };
    pool_run(g->p, lq_ceil_div(R, GRAD_ROWS), rotate_item, &j);
}

/* ---- clips ---- */
/* cut: q, k and v within the clip, whose gradients x are; NULL: x is q, k and v. */
typedef struct {
    float *x[3];
    const float *cut[3];
    int64_t n[3], R; /* n: of a row */
    float limit;
} clip_job;

static void clip_item(void *ctx, int64_t item, int thread)
{
    (void)thread;
    const clip_job *j = ctx;
    const int64_t r = item * GRAD_ROWS, rows = grad_tile_end(item, j->R) - r;
    for (int i = 0; i < 3; i++) {
        float *x = j->x[i] + r * j->n[i];
        if (!j->cut[i]) k_clamp(x, j->limit, rows * j->n[i]);
        for (int64_t k = 0; j->cut[i] && k < rows * j->n[i]; k++)
            if (fabsf(j->cut[i][r * j->n[i] + k]) >= j->limit) x[k] = 0;
    }
}

static void clip(const grad_ctx *g, clip_job *j)
{
    const arch_config *c = g->c;
    j->n[0] = c->heads * c->head_dim;
    j->n[1] = c->kv_heads * c->head_dim;
    j->n[2] = c->kv_heads * c->v_dim;
    j->limit = (float)c->qkv_clip;
    if (c->qkv_clip > 0) pool_run(g->p, lq_ceil_div(j->R, GRAD_ROWS), clip_item, j);
}

void grad_clip(grad_ctx *g, float *q, float *k, float *v, int64_t R)
{
    clip(g, &(clip_job){ .x = { q, k, v }, .R = R });
}

void grad_clip_back(grad_ctx *g, int64_t R)
{
    const grad_made *m = g->m;
    clip(g, &(clip_job){ .x = { g->dq, g->dk, g->dv }, .cut = { m->q0, m->k0, m->v0 }, .R = R });
}

/* ---- gates ---- */
typedef struct {
    const grad_ctx *g;
    int64_t R;
    bool back;
} gate_job;

/* What a gate is times, and by how much that grows with it. */
static float gate_of(const arch_config *c, float z, float *slope)
{
    const float s = 1 / (1 + k_exp(-z));
    *slope = c->w.gate_softplus ? s : s * (1 - s);
    if (!c->w.gate_softplus) return s;
    return z > 20 ? z : log1pf(k_exp(z));
}

/* A gate has one dim of a head, or all of them. */
static void gate_item(void *ctx, int64_t item, int thread)
{
    (void)thread;
    const gate_job *j = ctx;
    const arch_config *c = j->g->c;
    const grad_made *m = j->g->m;
    const bool by_head = c->w.gate_heads || arch_name_of(c, R_HEAD_GATE);
    const int64_t n = c->heads * c->v_dim, gates = by_head ? c->heads : n, each = n / gates;
    for (int64_t i = item * GRAD_ROWS * gates; i < grad_tile_end(item, j->R) * gates; i++) {
        float slope, sum = 0, *da = j->g->da + i * each;
        const float *a = m->a + i * each, s = gate_of(c, m->z[i], &slope);
        for (int64_t k = 0; k < each; k++) {
            if (!j->back) m->g[i * each + k] = a[k] * s;
            if (!j->back) continue;
            sum += da[k] * a[k];
            da[k] *= s;
        }
        if (j->back) j->g->dz[i] = sum * slope;
    }
}

void grad_gate(grad_ctx *g, int64_t R, bool back)
{
    gate_job j = { g, R, back };
    pool_run(g->p, lq_ceil_div(R, GRAD_ROWS), gate_item, &j);
}

void grad_gate_bias(grad_ctx *g, const float *bias, int64_t R)
{
    const int64_t H = g->c->heads, n = g->c->w.gate_heads ? 1 : g->c->v_dim;
    for (int64_t i = 0; i < R * H * n; i++)
        g->m->z[i] += bias[i / n % H];
}

/* ---- attention ---- */
int64_t grad_kv_heads(const arch_config *c) { return c->w.mla ? c->heads : c->kv_heads; }

typedef struct {
    grad_ctx *g;
    const grad_layer *l;
    int64_t layer;
    const grad_chosen *chosen; /* NULL: each sees all before it */
    int64_t first;             /* item that is ours */
} heads_job;

/* One head of one window, and BLOCK of its tokens. Rows of q and dq are ldq apart, those of k and dk ldk,
 * of a and da lda, of v and dv ldv. */
typedef struct {
    const float *q, *k, *v, *da, *sink;
    /* Lists of positions that tokens see, ld_keys apart, and how many each has, ld_n apart, or at most `most`; NULL: all */
    const int32_t *keys, *n_keys;
    int64_t ld_keys, ld_n, most;
    float *a, *dq, *dk, *dv, *P, *S, *T; /* T: scores with a soft cap; NULL: they have none */
    int64_t ldq, ldk, lda, ldv, D, V, window;
    bool chunks;      /* of `window` tokens, of which a token sees its own */
    int64_t t0, rows; /* tokens of the block */
    int64_t u0, n;    /* tokens that one of them sees; P and S are [rows, n] */
    float scale, cap;
    float slope, slope_scale; /* of ALiBi, on key - query */
    bool bf16;                /* ... on the key's position, rounded (Falcon) */
} head;

/* Tokens that token t sees begin at: */
static int64_t sees_from(const head *h, int64_t t)
{
    if (h->chunks) return t - t % h->window;
    return h->window && t >= h->window ? t - h->window + 1 : 0;
}

static void at_block(head *h, int64_t t0, int64_t T)
{
    h->t0 = t0;
    h->rows = T - t0 < BLOCK ? T - t0 : BLOCK;
    h->u0 = sees_from(h, t0);
    h->n = t0 + h->rows - h->u0;
}

static float bf16(float x) { return lq_bf16_to_f32(lq_f32_to_bf16(x)); }

/* What a head has of distances, onto n scores of which the last is of the query itself, at position t. */
static void add_slope(const head *h, float *score, int64_t n, int64_t t)
{
    const float slope = h->bf16 ? bf16(h->slope) : h->slope * h->slope_scale;
    for (int64_t i = 0; i < n; i++)
        score[i] += h->bf16 ? h->slope_scale * bf16(slope * bf16((float)(t + 1 - n + i)))
                            : slope * (float)(i - (n - 1));
}

/* Of token t's scores of positions up to its own, which begin at the first, those that are not on its list. */
static void leave_out(const head *h, float *score, int64_t t)
{
    const int32_t *at = h->keys + t * h->ld_keys;
    const int64_t seen = t + 1 < h->most ? t + 1 : h->most;
    const int32_t *end = at + (h->n_keys ? h->n_keys[t * h->ld_n] : seen);
    for (int64_t i = 0; i <= t; i++)
        if (at < end && *at == i)
            at++;
        else
            score[i] = -INFINITY;
}

/* P = softmax(scale q k^T) of a block, causal, within the window. A sink is a logit that takes part and has no value. */
static void weights_of_block(const head *h)
{
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (int)h->rows, (int)h->n, (int)h->D,
                h->scale, h->q + h->t0 * h->ldq, (int)h->ldq, h->k + h->u0 * h->ldk, (int)h->ldk, 0,
                h->P, (int)h->n);
    for (int64_t r = 0; r < h->rows; r++) {
        const int64_t t = h->t0 + r, from = sees_from(h, t) - h->u0, end = t + 1 - h->u0;
        float *row = h->P + r * h->n;
        if (h->slope != 0) add_slope(h, row + from, end - from, t);
        if (h->T) {
            k_softcap(row + from, h->cap, end - from);
            memcpy(h->T + r * h->n + from, row + from, (size_t)(end - from) * sizeof *row);
        }
        if (h->keys) leave_out(h, row, t);
        float max = row[end - 1];
        for (int64_t i = from; i < end; i++)
            max = row[i] > max ? row[i] : max;
        if (h->sink && *h->sink > max) max = *h->sink;
        k_exp_minus(row + from, row + from, max, end - from);
        const double beside = h->sink ? (double)k_exp(*h->sink - max) : 0;
        const float inv = (float)(1 / (beside + grad_sum(row + from, end - from)));
        memset(row, 0, (size_t)from * sizeof *row);
        for (int64_t i = from; i < end; i++)
            row[i] *= inv;
        memset(row + end, 0, (size_t)(h->n - end) * sizeof *row);
    }
}

static void attend_block(const head *h)
{
    weights_of_block(h);
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, (int)h->rows, (int)h->V, (int)h->n, 1,
                h->P, (int)h->n, h->v + h->u0 * h->ldv, (int)h->ldv, 0, h->a + h->t0 * h->lda,
                (int)h->lda);
}

/* dP = da v^T, dS = P (dP - sum dP P), dq = scale dS k, dk += scale dS^T q, dv += P^T da. */
static void attend_block_back(const head *h)
{
    const int rows = (int)h->rows, n = (int)h->n, D = (int)h->D, V = (int)h->V;
    const int ldq = (int)h->ldq, ldk = (int)h->ldk, lda = (int)h->lda, ldv = (int)h->ldv;
    const float *q = h->q + h->t0 * h->ldq, *da = h->da + h->t0 * h->lda;
    const float *k = h->k + h->u0 * h->ldk, *v = h->v + h->u0 * h->ldv;
    weights_of_block(h);
    cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, n, V, rows, 1, h->P, n, da, lda, 1,
                h->dv + h->u0 * h->ldv, ldv);
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, rows, n, V, 1, da, lda, v, ldv, 0, h->S,
                n);
    for (int64_t r = 0; r < h->rows; r++) {
        const int64_t end = h->t0 + r + 1 - h->u0; /* beyond it P is 0 */
        float *S = h->S + r * h->n;
        const float *P = h->P + r * h->n, sum = (float)grad_dot(S, P, end);
        for (int64_t i = 0; i < h->n; i++)
            S[i] = P[i] * (S[i] - sum);
        for (int64_t i = sees_from(h, h->t0 + r) - h->u0; h->T && i < end; i++) {
            const float t = h->T[r * h->n + i] / h->cap;
            S[i] *= 1 - t * t;
        }
    }
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, rows, D, n, h->scale, h->S, n, k, ldk, 0,
                h->dq + h->t0 * h->ldq, ldq);
    cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, n, D, rows, h->scale, h->S, n, q, ldq, 1,
                h->dk + h->u0 * h->ldk, ldk);
}

/* Head `number` of the item's share of q heads, at the window's tokens. */
static head head_of(const heads_job *j, int64_t item, int64_t number, int thread)
{
    const grad_ctx *g = j->g;
    const arch_config *c = g->c;
    const int64_t T = g->len, D = c->head_dim, V = c->v_dim, G = grad_kv_heads(c);
    const int64_t w = item / G, kv = item % G, i = kv * (c->heads / G) + number;
    const int64_t ldq = c->heads * D, ldk = G * D, lda = c->heads * V, ldv = G * V;
    const int64_t q = w * T * ldq + i * D, k = w * T * ldk + kv * D;
    const int64_t a = w * T * lda + i * V, v = w * T * ldv + kv * V;
    const int64_t floats = grad_head_floats(c, T), parts = c->attn_softcap > 0 ? 3 : 2;
    const grad_lent *from = grad_lent_of(g, j->layer);
    const grad_chosen *chosen = j->chosen;
    const int64_t lists = arch_index_lists(c), list = w * T * lists + (lists > 1 ? kv : 0);
    float *P = g->head + thread * floats;
    return (head){ .q = g->m->q + q,
                   .a = g->m->a + a,
                   .da = g->da + a,
                   .dq = g->dq + q,
                   .k = (from ? from->k : g->m->k) + k,
                   .v = (from ? from->v : g->m->v) + v,
                   .dk = g->dk + k,
                   .dv = g->dv + v,
                   .keys = chosen ? chosen->keys + list * c->index_topk : NULL,
                   .n_keys = chosen && chosen->n ? chosen->n + list : NULL,
                   .ld_keys = lists * c->index_topk,
                   .ld_n = lists,
                   .most = c->index_topk,
                   .sink = j->l->sinks ? j->l->sinks + i : NULL,
                   .P = P,
                   .S = P + floats / parts,
                   .T = parts > 2 ? P + 2 * (floats / parts) : NULL,
                   .ldq = ldq,
                   .ldk = ldk,
                   .lda = lda,
                   .ldv = ldv,
                   .D = D,
                   .V = V,
                   .window = c->layer[j->layer].window ? c->window : 0,
                   .chunks = c->layer[j->layer].window && c->row->window == WINDOW_CHUNKS,
                   .scale = (float)c->attn_scale,
                   .slope = g->slopes ? g->slopes[i] : 0,
                   .slope_scale = c->w.alibi_scaled ? (float)c->attn_scale : 1,
                   .bf16 = c->w.alibi_bf16,
                   .cap = (float)c->attn_softcap };
}

/* One window and one kv head with the q heads that share it. */
static void attend_item(void *ctx, int64_t i, int thread)
{
    const heads_job *j = ctx;
    const int64_t T = j->g->len, share = j->g->c->heads / grad_kv_heads(j->g->c);
    for (int64_t number = 0; number < share; number++) {
        head h = head_of(j, j->first + i, number, thread);
        for (int64_t t = 0; t < T; t += BLOCK) {
            at_block(&h, t, T);
            attend_block(&h);
        }
    }
}

static void attend_back_item(void *ctx, int64_t i, int thread)
{
    const heads_job *j = ctx;
    const int64_t T = j->g->len, share = j->g->c->heads / grad_kv_heads(j->g->c);
    for (int64_t number = 0; number < share; number++) {
        head h = head_of(j, j->first + i, number, thread);
        for (int64_t t = 0; t < T && !number; t++) {
            memset(h.dk + t * h.ldk, 0, (size_t)h.D * sizeof *h.dk);
            memset(h.dv + t * h.ldv, 0, (size_t)h.V * sizeof *h.dv);
        }
        for (int64_t t = 0; t < T; t += BLOCK) {
            at_block(&h, t, T);
            attend_block_back(&h);
        }
    }
}

void grad_attend(grad_ctx *g, const grad_layer *l, int64_t layer, const grad_chosen *chosen,
                 int64_t windows, bool back)
{
    const arch_config *c = g->c;
    const int64_t T = g->len, D = c->head_dim, V = c->v_dim, G = grad_kv_heads(c);
    const int64_t Q = c->heads * (back ? D : V);
    const grad_heads q = { back ? g->dq : g->m->a, T, Q / G, Q, G };
    const grad_heads k = { g->dk, T, D, G * D, G }, v = { g->dv, T, V, G * V, G };
    heads_job j = { .g = g, .l = l, .layer = layer, .chosen = chosen };
    int64_t end;
    grad_own_items(g, &j.first, &end, windows * G);
    if (end > j.first) pool_run(g->p, end - j.first, back ? attend_back_item : attend_item, &j);
    grad_share_heads(g, &q, windows);
    if (back) grad_share_heads(g, &k, windows);
    if (back) grad_share_heads(g, &v, windows);
}
