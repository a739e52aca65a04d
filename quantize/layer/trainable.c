/* quantize/layer/trainable.c - parameters and their optimizer. */
#include "quantize/layer/trainable.h"

#include <math.h>

#include "calib/backward.h"
#include "calib/gemm.h"
#include "quantize/methods/row_grid.h"
#include "quantize/methods/rows.h"
#include "quantize/methods/rtn.h"

static const float beta1 = 0.9f, beta2 = 0.99f;

/* The change that Adam makes, for a gradient g. */
static inline float adam(float *m, float *v, float g, float fix1, float fix2)
{
    *m = beta1 * *m + (1 - beta1) * g;
    *v = beta2 * *v + (1 - beta2) * g * g;
    float d = sqrtf(*v * fix2);
    return d > 0 ? *m * fix1 / d : 0;
}

static void corrections(float *fix1, float *fix2, int step)
{
    *fix1 = 1 / (1 - powf(beta1, (float)step));
    *fix2 = 1 / (1 - powf(beta2, (float)step));
}

/* With moments of gradients g, weighed by a and b: |sum a g| <= sqrt(max(a / b) sum b g^2), the last being the max. */
double tune_code_reach(int step)
{
    const double a = (1 - (double)beta1) / (1 - pow((double)beta1, step));
    const double b = (1 - (double)beta2) / (1 - pow((double)beta2, step));
    return sqrt(a / b);
}

/* ---- the state ---- */
/* Its parts, what the weight's value is made of first; `state` NULL: none, their sizes alone. */
static tune_bytes carve(tune_weight *w, uint8_t *state)
{
    const size_t n = (size_t)(w->base.N * w->base.K), g = n / (size_t)row_group(&w->base.scheme);
    const size_t f = sizeof(float), moved = w->stay ? 0 : g * f, trained = w->codes ? n * f : 0;
    const struct {
        void *to;
        size_t bytes;
        bool value;
    } parts[] = {
        { &w->scale, g * f, true },
        { &w->zero, g * f, true },
        { &w->code, w->codes || w->stay ? n : 0, true },
        { &w->scale0, moved, false },
        { &w->m, moved, false },
        { &w->v, moved, false },
        { &w->off, trained, false },
        { &w->m_off, trained, false },
        { &w->v_off, trained, false },
    };
    tune_bytes at = { 0, 0 };
    for (size_t i = 0; i < LQ_COUNT(parts); i++) {
        void *p = state && parts[i].bytes ? state + at.all : NULL;
        memcpy(parts[i].to, &p, sizeof p);
        at.all += lq_round_up(parts[i].bytes, 64);
        if (parts[i].value) at.value = at.all;
    }
    return at;
}

tune_bytes tune_weight_plan(tune_weight *w, const qt_tensor *base, bool codes)
{
    const grid_spec spec = rtn_spec(&base->scheme, GRID_FREE, false);
    *w = (tune_weight){ .base = *base,
                        .table = spec.table,
                        .bits = spec.bits,
                        .stay = base->scheme.kind != QT_UINT,
                        .codes = codes };
    return carve(w, NULL);
}

void tune_weight_at(tune_weight *w, void *state) { carve(w, state); }

static void start_codes(tune_weight *w, const int8_t *rest)
{
    const int64_t N = w->base.N, K = w->base.K;
    for (int64_t r = 0; r < N && !w->stay; r++)
        qt_unpack(w->code + r * K, tune_code_row(w, r), 0, K, w->bits);
    for (int64_t i = 0; i < N * K; i++) {
        const float x = (float)rest[i] / ROW_REST_UNIT;
        w->off[i] = x > TUNE_EDGE ? TUNE_EDGE : x < -TUNE_EDGE ? -TUNE_EDGE : x;
    }
}

/* Codes, scales and zero points of what has no planes for them. */
static lq_status start_staying(tune_weight *w, lq_err *err)
{
    const int64_t N = w->base.N, K = w->base.K, ng = K / row_group(&w->base.scheme);
    const grid_spec spec = rtn_spec(&w->base.scheme, GRID_FREE, false);
    lq_arena a = { 0 };
    grid_param *params = lq_push(&a, (size_t)ng * sizeof *params);
    row_head *heads = lq_push(&a, ((size_t)row_heads(&spec, K) + 1) * sizeof *heads);
    for (int64_t r = 0; r < N && params && heads; r++) {
        row_load(params, heads, w->code + r * K, &w->base, r);
        for (int64_t i = 0; i < ng; i++) {
            w->scale[r * ng + i] = params[i].scale;
            w->zero[r * ng + i] = params[i].zero;
        }
    }
    lq_arena_free(&a);
    return params && heads
               ? LQ_OK
               : lq_fail(err, LQ_ENOMEM, "no memory to train rows of %lld codes", (long long)K);
}

static void start_scales(tune_weight *w)
{
    const qt_scheme *s = &w->base.scheme;
    const int64_t N = w->base.N, ng = w->base.K / s->group;
    const size_t g = (size_t)(N * ng);
    const uint8_t *zeros = w->base.plane[QT_ZEROS].data;
    lq_to_f32(w->scale, w->base.plane[QT_SCALES].data, s->scale_dtype, g);
    memcpy(w->scale0, w->scale, g * sizeof(float));
    for (int64_t r = 0; r < N; r++)
        for (int64_t i = 0; i < ng; i++)
            w->zero[r * ng + i] =
                s->zero == QT_ZERO_INT
                    ? (float)qt_get(zeros + (size_t)r * qt_row_bytes(ng, s->zbits), i, s->zbits)
                    : (float)(1 << (s->bits - 1));
}

lq_status tune_weight_start(tune_weight *w, const int8_t *rest, lq_err *err)
{
    const size_t n = (size_t)(w->base.N * w->base.K), g = n / (size_t)row_group(&w->base.scheme);
    lq_status s = LQ_OK;
    if (w->stay)
        s = start_staying(w, err);
    else
        start_scales(w);
    for (int i = 0; i < 2 && !w->stay; i++)
        memset(i ? w->v : w->m, 0, g * sizeof(float));
    for (int i = 0; i < 2 && w->codes; i++)
        memset(i ? w->v_off : w->m_off, 0, n * sizeof(float));
    if (!s && w->codes) start_codes(w, rest);
    return s;
}

lq_status tune_weight_init(tune_weight *w, const qt_tensor *base, const int8_t *rest, lq_arena *a,
                           lq_err *err)
{
    const size_t bytes = tune_weight_plan(w, base, rest != NULL).all;
    void *state = lq_push(a, bytes);
    if (!state) return lq_fail(err, LQ_ENOMEM, "no memory to train %zu bytes", bytes);
    tune_weight_at(w, state);
    return tune_weight_start(w, rest, err);
}

/* ---- values and steps ---- */
/* Codes k .. k + n of a row, of at most PIECE: where they are not in memory they are unpacked. */
enum { PIECE = 256 };

static const uint8_t *codes_at(uint8_t scratch[PIECE], const tune_weight *w, int64_t row, int64_t k,
                               int64_t n)
{
    if (w->code) return w->code + row * w->base.K + k;
    qt_unpack(scratch, tune_code_row(w, row), k, n, w->bits);
    return scratch;
}

static int64_t piece_of(int64_t left) { return left < PIECE ? left : PIECE; }

typedef struct {
    tune_weight *w;
    const tune_weight *from;
    float *W;
    const float *dW;
    const tune_step *s;
    float fix1, fix2;
    int64_t first, end; /* rows */
} rows_job;

static void expand_item(void *ctx, int64_t item, int thread)
{
    (void)thread;
    const rows_job *j = ctx;
    const tune_weight *w = j->from;
    const qz_rows_ops *ops = qz_rows_get();
    const int64_t K = w->base.K, G = row_group(&w->base.scheme), ng = K / G;
    for (int64_t n = item * QZ_ROWS; n < w->base.N && n < (item + 1) * QZ_ROWS; n++)
        for (int64_t g = 0; g < ng; g++) {
            const float s = w->scale[n * ng + g], z = w->zero[n * ng + g];
            for (int64_t at = g * G, len; at < (g + 1) * G; at += len) {
                uint8_t scratch[PIECE];
                len = piece_of((g + 1) * G - at);
                const uint8_t *code = codes_at(scratch, w, n, at, len);
                float *W = j->W + n * K + at;
                for (int64_t i = 0; i < len && w->table; i++)
                    W[i] = s * (float)w->table[code[i]];
                if (!w->table) ops->values(W, code, len, (grid_param){ s, z });
            }
        }
}

void tune_weight_expand(float *W, const tune_weight *w, pool *p)
{
    rows_job j = { .from = w, .W = W };
    pool_run(p, lq_ceil_div(w->base.N, QZ_ROWS), expand_item, &j);
}

/* Codes at .. at + n of one group; w = scale (code + off - zero): dL/doff = dW scale. */
static void step_codes(tune_weight *w, const rows_job *j, int64_t at, int64_t n, float scale)
{
    const rows_adam a = { .scale = scale,
                          .rate = j->s->code,
                          .beta1 = beta1,
                          .beta2 = beta2,
                          .fix1 = j->fix1,
                          .fix2 = j->fix2,
                          .top = (1 << w->bits) - 1 };
    qz_rows_get()->train(w->code + at, w->off + at, w->m_off + at, w->v_off + at, j->dW + at, n,
                         &a);
}

/* w = scale table[code], and between two values in the share that off says. */
static void step_places(tune_weight *w, const rows_job *j, int64_t at, int64_t n, float scale)
{
    const int bits = w->bits, top = (1 << bits) - 1;
    for (int64_t i = at; i < at + n; i++) {
        const float g = j->dW[i] * scale * row_gap(w->table, bits, w->code[i], w->off[i]);
        float x = w->off[i] - j->s->code * adam(&w->m_off[i], &w->v_off[i], g, j->fix1, j->fix2);
        if (x > 0.5f && w->code[i] < top) w->code[i]++, x -= 1;
        if (x < -0.5f && w->code[i] > 0) w->code[i]--, x += 1;
        w->off[i] = x > 0.5f ? 0.5f : x < -0.5f ? -0.5f : x;
    }
}

static void step_staying(tune_weight *w, const rows_job *j, int64_t at, int64_t n, float scale)
{
    if (w->table)
        step_places(w, j, at, n, scale);
    else
        step_codes(w, j, at, n, scale);
}

/* w = scale (code - zero): dL/dscale = sum dW (code - zero). */
static void step_item(void *ctx, int64_t item, int thread)
{
    (void)thread;
    const rows_job *j = ctx;
    tune_weight *w = j->w;
    const int64_t K = w->base.K, G = row_group(&w->base.scheme), ng = K / G;
    const float rate = j->s->scale * 16 / (float)(1 << w->bits);
    const int64_t row = j->first + item * QZ_ROWS;
    for (int64_t n = row; n < j->end && n < row + QZ_ROWS; n++)
        for (int64_t g = 0; g < ng; g++) {
            const int64_t at = n * K + g * G, ag = n * ng + g;
            double ds = 0;
            if (w->stay) {
                if (w->off) step_staying(w, j, at, G, w->scale[ag]);
                continue;
            }
            for (int64_t k = g * G, len; k < (g + 1) * G; k += len) {
                uint8_t scratch[PIECE];
                len = piece_of((g + 1) * G - k);
                const uint8_t *code = codes_at(scratch, w, n, k, len);
                const float *dW = j->dW + n * K + k;
                for (int64_t i = 0; i < len; i++)
                    ds += (double)dW[i] * (double)((float)code[i] - w->zero[ag]);
            }
            if (w->off) step_codes(w, j, at, G, w->scale[ag]);
            float change = adam(&w->m[ag], &w->v[ag], (float)ds * w->scale0[ag], j->fix1, j->fix2);
            w->scale[ag] -= rate * w->scale0[ag] * change;
        }
}

void tune_weight_step(tune_weight *w, const float *dW, int64_t first, int64_t end,
                      const tune_step *s, pool *p)
{
    rows_job j = { .w = w, .dW = dW, .s = s, .first = first, .end = end };
    corrections(&j.fix1, &j.fix2, s->step);
    if (end > first) pool_run(p, lq_ceil_div(end - first, QZ_ROWS), step_item, &j);
}

lq_status tune_weight_share(tune_weight *w, comm *ranks, lq_err *err)
{
    const int64_t N = w->base.N, K = w->base.K, side = gemm_cut(N, K).side;
    const size_t scales = (size_t)(K / row_group(&w->base.scheme)) * sizeof(float);
    lq_status s = w->stay ? LQ_OK : grad_gather_rows(ranks, w->scale, scales, N, side, err);
    if (!s && w->codes) s = grad_gather_rows(ranks, w->code, (size_t)K, N, side, err);
    return s;
}

/* Where codes stay nothing but scales has changed. */
static lq_status store_scales(qt_tensor *out, const tune_weight *w, lq_arena *a, lq_err *err)
{
    qt_span *scales = &out->plane[QT_SCALES];
    *out = w->base;
    void *to = lq_push(a, scales->bytes);
    if (!to) return lq_fail(err, LQ_ENOMEM, "no memory for tuned scales");
    lq_from_f32(to, w->scale, w->base.scheme.scale_dtype,
                (size_t)(w->base.N * (w->base.K / w->base.scheme.group)));
    scales->data = to;
    return LQ_OK;
}

/* Codes in place of the base's, beside its scales. */
static lq_status store_codes(qt_tensor *out, const tune_weight *w, lq_arena *a, lq_err *err)
{
    const int64_t N = w->base.N, K = w->base.K, ng = K / row_group(&w->base.scheme);
    const grid_spec spec = rtn_spec(&w->base.scheme, GRID_FREE, false);
    const qt_span *second = &w->base.plane[QT_SCALES2];
    qz_out q;
    lq_status s = qz_out_alloc(&q, &w->base.scheme, N, K, a, err);
    if (s) return s;
    grid_param *params = lq_push(a, (size_t)ng * sizeof *params);
    row_head *heads = lq_push(a, ((size_t)row_heads(&spec, K) + 1) * sizeof *heads);
    uint8_t *codes = lq_push(a, (size_t)K);
    if (!params || !heads || !codes) return lq_fail(err, LQ_ENOMEM, "no memory for a tuned weight");
    if (second->bytes) memcpy(q.w[QT_SCALES2], second->data, second->bytes);
    for (int64_t n = 0; n < N; n++) {
        row_load(params, heads, codes, &w->base, n);
        row_store(&q, n, params, heads, w->code + n * K, NULL);
    }
    *out = q.t;
    return LQ_OK;
}

lq_status tune_weight_store(qt_tensor *out, const tune_weight *w, lq_arena *a, lq_err *err)
{
    if (w->stay) return store_codes(out, w, a, err);
    const qt_scheme *s = &w->base.scheme;
    const int64_t N = w->base.N, K = w->base.K, ng = K / s->group;
    qz_out q;
    if (!w->code) return store_scales(out, w, a, err);
    lq_status st = qz_out_alloc(&q, s, N, K, a, err);
    grid_param *params = st ? NULL : lq_push(a, (size_t)ng * sizeof *params);
    uint8_t *zeros = params ? lq_push(a, (size_t)ng) : NULL;
    if (!st && !zeros) st = lq_fail(err, LQ_ENOMEM, "no memory for a tuned weight");
    for (int64_t n = 0; n < N && !st; n++) {
        for (int64_t g = 0; g < ng; g++)
            params[g] = (grid_param){ w->scale[n * ng + g], w->zero[n * ng + g] };
        row_store(&q, n, params, NULL, w->code + n * K, zeros);
    }
    if (!st) *out = q.t;
    return st;
}

lq_status tune_vector_init(tune_vector *v, const float *w, int64_t n, lq_arena *a, lq_err *err)
{
    size_t bytes = (size_t)n * sizeof(float);
    v->n = n;
    if (!(v->w = lq_push(a, bytes)) || !(v->m = lq_push(a, bytes)) || !(v->v = lq_push(a, bytes)) ||
        !(v->grad = lq_push(a, bytes)))
        return lq_fail(err, LQ_ENOMEM, "no memory to tune a norm");
    memcpy(v->w, w, bytes);
    return LQ_OK;
}

void tune_vector_step(tune_vector *v, const tune_step *s)
{
    float fix1, fix2;
    corrections(&fix1, &fix2, s->step);
    for (int64_t i = 0; i < v->n; i++) {
        v->w[i] -= s->vector * adam(&v->m[i], &v->v[i], v->grad[i], fix1, fix2);
        v->grad[i] = 0;
    }
}
