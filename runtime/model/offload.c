/* runtime/model/offload.c - see offload.h. */
#include "runtime/model/offload.h"

#include <stdlib.h>

enum { WEIGHTS = 16, ROWS = 256 /* that the host has in f32 at a time; whole tiles */ };

/* Memory on the device that grows. */
typedef struct {
    float *at;
    size_t bytes;
} room;

struct fwd_offload {
    dev *d;
    pool *p;
    struct {
        const mm_weight *of;
        float *w; /* [N, K] on the device */
    } held[WEIGHTS];
    int n_held;
    room x, y;       /* on the device */
    float *y_here;   /* [ROWS, N] of what came down */
    size_t y_floats; /* it has room for */
    lq_status bad;   /* of the host or of the device */
    lq_err why;
};

lq_status fwd_offload_open(fwd_offload **out, dev *d, pool *p, lq_err *err)
{
    fwd_offload *o = *out = calloc(1, sizeof *o);
    if (!o) return lq_fail(err, LQ_ENOMEM, "out of memory");
    o->d = d;
    o->p = p;
    return LQ_OK;
}

void fwd_offload_drop(fwd_offload *o)
{
    while (o->n_held)
        o->d->ops->free(o->d, o->held[--o->n_held].w);
}

void fwd_offload_close(fwd_offload *o)
{
    if (!o) return;
    o->d->ops->bind(o->d);
    fwd_offload_drop(o);
    o->d->ops->free(o->d, o->x.at);
    o->d->ops->free(o->d, o->y.at);
    free(o->y_here);
    free(o);
}

static void failed(fwd_offload *o, lq_status s, const lq_err *why)
{
    if (o->bad) return;
    o->bad = s;
    o->why = *why;
}

lq_status fwd_offload_check(fwd_offload *o, lq_err *err)
{
    lq_err why = { "" };
    const lq_status s = o->d->ops->sync(o->d, &why), was = s && !o->bad ? s : o->bad;
    if (was && err) *err = o->bad ? o->why : why;
    o->bad = LQ_OK;
    return was;
}

static void offload_no_memory(fwd_offload *o)
{
    lq_err why = { "" };
    failed(o, lq_fail(&why, LQ_ENOMEM, "out of memory"), &why);
}

static float *grown(fwd_offload *o, room *r, size_t bytes)
{
    if (bytes > r->bytes) {
        o->d->ops->free(o->d, r->at);
        r->at = o->d->ops->alloc(o->d, bytes);
        r->bytes = r->at ? bytes : 0;
    }
    return r->at;
}

typedef struct {
    float *to;
    const qt_tensor *t;
} dequant;

static void dequant_rows(void *ctx, int64_t item, int thread)
{
    const dequant *q = ctx;
    const int64_t n0 = item * TILE_N, n1 = n0 + TILE_N < q->t->N ? n0 + TILE_N : q->t->N;
    (void)thread;
    qt_dequant(q->to + n0 * q->t->K, q->t, n0, n1);
}

/* Rows n0 .. n1 of w in f32, and up; false: out of memory. */
static bool put_rows(fwd_offload *o, float *on, const mm_weight *w, int64_t n0, int64_t n1)
{
    qt_tensor tiled, t;
    void *planes[QT_N_PLANES] = { NULL };
    const int64_t K = w->t.K;
    float *here = malloc((size_t)((n1 - n0) * K) * sizeof *here);
    bool ok = here && tiles_rows(&tiled, &w->t, n0, n1);
    t = (qt_tensor){ .scheme = w->t.scheme, .layout = QT_PORTABLE, .N = n1 - n0, .K = K };
    for (int i = 0; i < QT_N_PLANES && ok; i++) {
        const size_t n = qt_plane_bytes(&t.scheme, QT_PORTABLE, t.N, K, (qt_plane)i);
        if (!n) continue;
        planes[i] = malloc(n);
        t.plane[i] = (qt_span){ planes[i], n };
        ok = planes[i];
    }
    if (ok) ok = !tiles_unpack(planes, &tiled, NULL);
    if (ok) pool_run(o->p, lq_ceil_div(t.N, TILE_N), dequant_rows, &(dequant){ here, &t });
    if (ok) o->d->ops->upload(o->d, on + n0 * K, here, (size_t)(t.N * K) * sizeof *here);
    for (int i = 0; i < QT_N_PLANES; i++)
        free(planes[i]);
    free(here);
    return ok;
}

/* The weight there; NULL after a failure. */
static const float *weight(fwd_offload *o, const mm_weight *w)
{
    for (int i = 0; i < o->n_held; i++)
        if (o->held[i].of == w) return o->held[i].w;
    if (o->n_held == WEIGHTS) fwd_offload_drop(o); /* of no layer so far */
    const size_t bytes = (size_t)(w->t.N * w->t.K) * sizeof(float);
    float *on = o->d->ops->alloc(o->d, bytes);
    if (!on) return NULL;
    bool ok = true;
    for (int64_t n = 0; n < w->t.N && ok; n += ROWS)
        ok = put_rows(o, on, w, n, n + ROWS < w->t.N ? n + ROWS : w->t.N);
    if (!ok) offload_no_memory(o);
    o->held[o->n_held].of = w;
    o->held[o->n_held++].w = on;
    return on;
}

/* n rows of out's product, which begin at y on the device. */
static void take_rows(fwd_offload *o, const mm_out *out, int64_t m0, const float *y, int64_t n)
{
    const int64_t N = out->w->t.N;
    lq_err why = { "" };
    o->d->ops->download(o->d, o->y_here, y, (size_t)(n * N) * sizeof *y);
    const lq_status s = o->d->ops->sync(o->d, &why);
    if (s) failed(o, s, &why);
    for (int64_t m = 0; m < n && !s; m++)
        for (int64_t i = 0; i < N; i++) {
            float *to = out->y + (m0 + m) * out->ldy + i;
            const float v = o->y_here[m * N + i] + (out->bias ? out->bias[i] : 0.0f);
            *to = out->add ? *to + v : v;
        }
}

/* One product from the inputs that are there already. */
static void product(fwd_offload *o, const mm_out *out, int64_t M)
{
    const int64_t N = out->w->t.N, K = out->w->t.K;
    const size_t rows = (size_t)(ROWS * N);
    const float *w = weight(o, out->w);
    float *y = grown(o, &o->y, (size_t)(M * N) * sizeof *y);
    if (rows > o->y_floats) {
        free(o->y_here);
        o->y_here = malloc(rows * sizeof *y);
        o->y_floats = o->y_here ? rows : 0;
    }
    if (!o->y_here) offload_no_memory(o);
    if (!w || !y || !o->y_here) return;
    o->d->ops->gemm(o->d, &(dev_gemm_args){ .C = y,
                                            .A = o->x.at,
                                            .B = w,
                                            .ldc = N,
                                            .lda = K,
                                            .ldb = K,
                                            .M = M,
                                            .N = N,
                                            .K = K,
                                            .tb = true });
    for (int64_t m = 0; m < M && !o->bad; m += ROWS)
        take_rows(o, out, m, y + m * N, M - m < ROWS ? M - m : ROWS);
}

/* That mm_run sums over K in its order, and all at once. */
static bool in_order(const qt_scheme *s)
{
    return !s->act && s->kind != QT_I8_OUTLIER && s->kind != QT_BLOCKS &&
           !(s->kind == QT_UINT && s->act_order);
}

bool fwd_offload_products(fwd_offload *o, const mm_out *outs, int n, const float *x, int64_t ldx,
                          int64_t M)
{
    const int64_t K = outs->w->t.K;
    const size_t row = (size_t)K * sizeof *x;
    for (int i = 0; i < n; i++)
        if (!in_order(&outs[i].w->t.scheme) || outs[i].up) return false;
    if (o->bad || M == 0) return true;
    o->d->ops->bind(o->d);
    float *on = grown(o, &o->x, (size_t)M * row);
    for (int64_t m = 0; on && m < (ldx == K ? 1 : M); m++)
        o->d->ops->upload(o->d, on + m * K, x + m * ldx, ldx == K ? (size_t)M * row : row);
    for (int i = 0; i < n && on; i++)
        product(o, &outs[i], M);
    return true;
}
