/* calib/fisher.c - chunks of windows: forward, draw, backward. */
#include "calib/fisher.h"

#include "calib/dense_layer.h"
#include "calib/gemm.h"
#include "runtime/model/model.h"

enum { CHUNK_TOKENS = 2048 };

typedef struct {
    fisher *f;
    src_source *src;
    const cal_samples *samples;
    comm *ranks;
    pool *p;
    const lq_job *job;
    const arch_config *c;
    model frame;
    grad_ctx *g;
    kl_head head;
    int64_t chunk; /* windows */
    float *W[GRAD_BUFFERS];
    float *x;      /* [L + 1][chunk * len, hidden] */
    float *d, *y;  /* [chunk * len, hidden] */
    float *logits; /* of KL_ROWS rows */
    int32_t *ids;
    float *scratch; /* grad_out's */
    bool keep;
    lq_arena arena;
} work;

static size_t g_floats(int64_t N)
{
    return (size_t)lq_ceil_div(N, FISHER_BLOCK) * FISHER_BLOCK * FISHER_BLOCK;
}

/* Of linear k of a layer; false: it has none. */
static bool shape_of(int64_t *N, int64_t *K, const arch_config *c, int64_t layer, int k)
{
    if (!arch_has(c, grad_linear_roles[k], layer)) return false;
    arch_role_shape(arch_at(c, layer), grad_linear_roles[k], N, K);
    return true;
}

/* Bytes of all G and of all H; false: H would be too large. */
static bool sum_bytes(size_t *g, size_t *h, const arch_config *c)
{
    *g = *h = 0;
    for (int64_t i = 0; i < c->layers; i++)
        for (int k = 0; k < GRAD_SUMS; k++) {
            int64_t N, K;
            if (!shape_of(&N, &K, c, i, k)) continue;
            *g += g_floats(N) * sizeof(float);
            if (k < GRAD_LINEARS) *h += (size_t)(K * K) * sizeof(float);
        }
    return *h <= FISHER_H_MOST;
}

size_t fisher_bytes(const arch_config *c)
{
    size_t g, h;
    return sum_bytes(&g, &h, c) ? g + h : g;
}

int64_t fisher_chunk(const arch_config *c, int64_t windows, int64_t len)
{
    const int64_t most = CHUNK_TOKENS / len > 0 ? CHUNK_TOKENS / len : 1;
    return grad_chunk(c, most < windows ? most : windows, len);
}

size_t fisher_scratch(const arch_config *c, int64_t windows, int64_t len)
{
    size_t g, h;
    int64_t widest = 0, N, K;
    for (int64_t i = 0; i < c->layers; i++)
        for (int k = 0; k < GRAD_LINEARS; k++)
            if (shape_of(&N, &K, c, i, k)) widest = K > widest ? K : widest;
    return sum_bytes(&g, &h, c) ? (size_t)(windows * len * (1 + widest)) * sizeof(float) : 0;
}

static bool push_sums(work *w)
{
    const arch_config *c = w->c;
    lq_arena *a = &w->f->arena;
    const size_t layers = (size_t)c->layers, f = sizeof(float);
    size_t g, h;
    int64_t N, K;
    const bool want_h = sum_bytes(&g, &h, c);
    bool ok = (w->f->G = lq_push(a, layers * sizeof *w->f->G));
    if (want_h)
        ok = ok && (w->f->H = lq_push(a, layers * sizeof *w->f->H)) &&
             (w->scratch = lq_push(&w->arena, fisher_scratch(c, w->chunk, w->samples->len)));
    for (size_t i = 0; i < layers; i++)
        for (int k = 0; k < GRAD_SUMS && ok; k++) {
            if (!shape_of(&N, &K, c, (int64_t)i, k)) continue;
            ok = (w->f->G[i][k] = lq_push(a, g_floats(N) * f));
            if (want_h && k < GRAD_LINEARS)
                ok = ok && (w->f->H[i][k] = lq_push(a, (size_t)(K * K) * f));
        }
    return ok;
}

static lq_status load(work *w, lq_err *err)
{
    const arch_config *c = w->c;
    const int64_t rows = w->chunk * w->samples->len, D = c->hidden;
    lq_status s = model_load_frame(&w->frame, w->src, w->p, err);
    if (!s) s = grad_open(&w->g, c, w->chunk, w->samples->len, w->keep, w->p, err);
    if (!s) s = grad_share(w->g, w->ranks, err);
    if (!s) s = dense_buffers(w->W, c, &w->arena, err);
    if (!s) s = dense_head(&w->head, w->src, NULL, &w->arena, w->p, err);
    if (s) return s;
    const size_t f = sizeof(float);
    if (!(w->x = lq_push(&w->arena, (size_t)((c->layers + 1) * rows * D) * f)) ||
        !(w->d = lq_push(&w->arena, (size_t)(rows * D) * f)) ||
        !(w->y = lq_push(&w->arena, (size_t)(rows * D) * f)) ||
        !(w->logits = lq_push(&w->arena, kl_scratch(c->vocab) * f)) ||
        !(w->ids = lq_push(&w->arena, (size_t)rows * sizeof *w->ids)))
        return lq_fail(err, LQ_ENOMEM, "no memory for a backward pass");
    return push_sums(w) ? LQ_OK : lq_fail(err, LQ_ENOMEM, "no memory for curvature");
}

/* One layer, forward (d NULL) or backward with its curvature added up. */
static lq_status pass(work *w, int64_t layer, int64_t n, float *x, float *d, lq_err *err)
{
    lq_arena a = { 0 };
    grad_layer l;
    if (lq_stopped(w->job)) return lq_fail(err, LQ_EINTR, "interrupted");
    lq_status s = dense_layer(&l, w->W, w->src, layer, w->samples->len, &a, w->p, err);
    if (!s && !d) s = grad_forward(w->g, &l, layer, x, n, err);
    if (!s && d) {
        grad_out out = { .scratch = w->scratch };
        memcpy(out.G, w->f->G[layer], sizeof out.G);
        if (w->f->H) memcpy(out.H, w->f->H[layer], sizeof out.H);
        s = grad_backward(w->g, &l, layer, x, d, n, &out, err);
    }
    src_release_all(w->src);
    lq_arena_free(&a);
    return s;
}

/* Answers to y, each rank of some windows: d is their gradient. */
static lq_status draw(work *w, const int64_t *which, int64_t n, lq_err *err)
{
    const int rank = comm_rank(w->ranks), size = comm_size(w->ranks);
    const int64_t len = w->samples->len, per = len * w->c->hidden;
    int64_t first, end;
    grad_own_rows(&first, &end, rank, size, n, 1);
    for (int64_t i = first; i < end; i++)
        kl_draw(w->d + i * per, w->y + i * per, &w->head, len, (uint64_t)which[i], w->logits, w->p);
    return grad_gather_rows(w->ranks, w->d, (size_t)per * sizeof(float), n, 1, err);
}

static lq_status one_chunk(work *w, const int64_t *which, int64_t n, lq_err *err)
{
    const int64_t len = w->samples->len, D = w->c->hidden, rows = n * len, L = w->c->layers;
    const size_t bytes = (size_t)(rows * D) * sizeof(float);
    lq_status s = LQ_OK;
    for (int64_t i = 0; i < n; i++)
        memcpy(w->ids + i * len, w->samples->ids + which[i] * len, (size_t)len * sizeof *w->ids);
    s = grad_embed(w->g, &w->frame, w->x, w->ids, n, err);
    model_drop_embed(&w->frame);
    for (int64_t i = 0; i < L && !s; i++) {
        float *x = w->x + i * rows * D;
        memcpy(x + rows * D, x, bytes);
        s = pass(w, i, n, x + rows * D, NULL, err);
    }
    const float *last = w->x + L * rows * D;
    if (s) return s;
    grad_norm_forward(w->g, w->y, last, w->frame.final_norm.w, w->frame.final_norm.bias, rows);
    s = draw(w, which, n, err);
    if (s) return s;
    grad_norm_backward(w->g, w->d, NULL, last, w->frame.final_norm.w, rows);
    for (int64_t i = L; i-- > 0 && !s;)
        s = pass(w, i, n, w->x + i * rows * D, w->d, err);
    return s;
}

static void divide(fisher *f, const arch_config *c, int64_t tokens)
{
    for (int64_t i = 0; i < f->layers; i++)
        for (int k = 0; k < GRAD_SUMS; k++) {
            int64_t N, K;
            if (!shape_of(&N, &K, c, i, k)) continue;
            for (int64_t j = 0; j < K * K && f->H && k < GRAD_LINEARS; j++)
                f->H[i][k][j] = (float)((double)f->H[i][k][j] / (double)tokens);
            for (size_t j = 0; j < g_floats(N); j++)
                f->G[i][k][j] = (float)((double)f->G[i][k][j] / (double)tokens);
            if (f->H && k < GRAD_LINEARS) gemm_mirror(f->H[i][k], K, K);
            for (int64_t n = 0; n < N; n += FISHER_BLOCK)
                gemm_mirror(f->G[i][k] + n * FISHER_BLOCK, FISHER_BLOCK,
                            N - n < FISHER_BLOCK ? N - n : FISHER_BLOCK);
        }
}

/* The rows of the sums that each rank has, to all. */
static lq_status gather(work *w, lq_err *err)
{
    const int64_t block = gemm_cut(FISHER_BLOCK, FISHER_BLOCK).side;
    const fisher *f = w->f;
    lq_status s = LQ_OK;
    for (int64_t i = 0; i < f->layers && !s; i++)
        for (int k = 0; k < GRAD_SUMS && !s; k++) {
            int64_t N, K;
            if (!shape_of(&N, &K, w->c, i, k)) continue;
            s = grad_gather_rows(w->ranks, f->G[i][k], FISHER_BLOCK * sizeof(float), N, block, err);
            if (!s && f->H && k < GRAD_LINEARS)
                s = grad_gather_rows(w->ranks, f->H[i][k], (size_t)K * sizeof(float), K,
                                     gemm_cut(K, K).side, err);
        }
    return s;
}

lq_status fisher_run(fisher *f, src_source *src, const cal_samples *samples, int64_t windows,
                     bool keep, comm *ranks, pool *p, const lq_job *job, lq_err *err)
{
    memset(f, 0, sizeof *f);
    work w = { .f = f, .src = src, .samples = samples, .ranks = ranks, .p = p, .job = job };
    w.c = src_config(src);
    f->layers = w.c->layers;
    f->windows = windows < samples->n ? windows : samples->n;
    w.chunk = fisher_chunk(w.c, f->windows, samples->len);
    w.keep = keep && grad_can_keep(w.c, w.chunk, samples->len);
    lq_status s = load(&w, err);
    int64_t *which = s ? NULL : lq_push(&w.arena, (size_t)f->windows * sizeof *which);
    if (!s && !which) s = lq_fail(err, LQ_ENOMEM, "no memory for curvature");
    for (int64_t i = 0; i < f->windows && !s; i++)
        which[i] = i * samples->n / f->windows;
    for (int64_t i = 0; i < f->windows && !s; i += w.chunk) {
        lq_report(job, "what answers depend on", (double)i, (double)f->windows);
        int64_t left = f->windows - i;
        s = one_chunk(&w, which + i, left < w.chunk ? left : w.chunk, err);
    }
    if (!s) s = gather(&w, err);
    if (!s) divide(f, w.c, f->windows * samples->len);
    grad_close(w.g);
    model_free(&w.frame);
    lq_arena_free(&w.arena);
    if (s) fisher_free(f);
    return s;
}

void fisher_free(fisher *f)
{
    lq_arena_free(&f->arena);
    memset(f, 0, sizeof *f);
}
