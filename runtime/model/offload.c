/* runtime/model/offload.c - see offload.h. */
#include "runtime/model/offload.h"

#include <stdlib.h>
#include <string.h>

enum {
    ROWS = 256,      /* that the host has in f32 at a time; whole tiles */
    SPARE = 64 << 20 /* bytes that weights leave on the device */
};

/* Memory on the device that grows. */
typedef struct {
    float *at;
    size_t bytes;
} room;

typedef struct {
    const mm_weight *of;
    float *w; /* [N, K] on the device */
} held;

struct fwd_offload {
    dev *d;
    pool *p;
    held *held; /* [n_held], cap */
    int n_held, cap;
    room x, y;                 /* on the device */
    float *x_here, *y_here;    /* inputs in rows of K; [ROWS, N] of what came down */
    size_t x_floats, y_floats; /* they have room for */
    lq_status bad;             /* of the host or of the device */
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
    free(o->x_here);
    free(o->y_here);
    free(o->held);
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

/* Memory of the device; weights make room. */
static float *take(fwd_offload *o, size_t bytes)
{
    if (o->n_held && o->d->ops->room(o->d) < bytes + SPARE) fwd_offload_drop(o);
    return o->d->ops->alloc(o->d, bytes);
}

static float *grown(fwd_offload *o, room *r, size_t bytes)
{
    if (bytes > r->bytes) {
        o->d->ops->free(o->d, r->at);
        r->at = take(o, bytes);
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
    if (o->n_held == o->cap) {
        const int cap = o->cap ? 2 * o->cap : 16;
        held *more = realloc(o->held, (size_t)cap * sizeof *more);
        if (!more) offload_no_memory(o);
        if (!more) return NULL;
        o->held = more;
        o->cap = cap;
    }
    float *on = take(o, (size_t)(w->t.N * w->t.K) * sizeof *on);
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

/* Room for n floats on the host. */
static bool grown_here(fwd_offload *o, float **at, size_t *floats, size_t n)
{
    if (n > *floats) {
        free(*at);
        *at = malloc(n * sizeof **at);
        *floats = *at ? n : 0;
    }
    if (!*at) offload_no_memory(o);
    return *at;
}

/* One product from the inputs that are there already. */
static void product(fwd_offload *o, const mm_out *out, int64_t M)
{
    const int64_t N = out->w->t.N, K = out->w->t.K;
    const size_t rows = (size_t)(ROWS * N);
    float *y = grown(o, &o->y, (size_t)(M * N) * sizeof *y);
    const float *w = weight(o, out->w); /* last: what else is taken may drop it */
    if (!grown_here(o, &o->y_here, &o->y_floats, rows) || !w || !y) return;
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

/* A job's inputs, in rows of K; NULL: no memory. */
static const float *inputs(fwd_offload *o, const mm_job *j)
{
    const int64_t K = j->outs->w->t.K;
    if (j->ldx == K && !j->rows) return j->x;
    if (!grown_here(o, &o->x_here, &o->x_floats, (size_t)(j->M * K))) return NULL;
    for (int64_t m = 0; m < j->M; m++)
        memcpy(o->x_here + m * K, j->x + (j->rows ? j->rows[m] : m) * j->ldx,
               (size_t)K * sizeof *o->x_here);
    return o->x_here;
}

bool fwd_offload_products(fwd_offload *o, const mm_job *j)
{
    const size_t bytes = (size_t)(j->M * j->outs->w->t.K) * sizeof(float);
    for (int i = 0; i < j->n_outs; i++)
        if (!in_order(&j->outs[i].w->t.scheme) || j->outs[i].up) return false;
    if (o->bad || j->M == 0) return true;
    o->d->ops->bind(o->d);
    float *on = grown(o, &o->x, bytes);
    const float *x = on ? inputs(o, j) : NULL;
    if (x) o->d->ops->upload(o->d, on, x, bytes);
    for (int i = 0; i < j->n_outs && x; i++)
        product(o, &j->outs[i], j->M);
    return true;
}
