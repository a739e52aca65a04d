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
    gemm_dev *on;
    kl_head head;
    int64_t chunk; /* windows */
    float *W[GRAD_BUFFERS];
    float *x;      /* [L + 1][chunk * len, hidden] */
    float *d, *y;  /* [chunk * len, hidden] */
    float *logits; /* of KL_ROWS rows */
    int32_t *ids;
    /* [layers]: [windows * len], as grad_out's, window after window */
    float *(*squares)[GRAD_LINEARS];
    int64_t done; /* windows, of chunks before this */
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

/* The site that reads what linear k reads; false: it is not one of a layer's own. */
static bool site_of(cal_site *site, const arch_config *c, int k)
{
    return k < GRAD_LINEARS && cal_site_of(site, c, grad_linear_roles[k]) && *site < CAL_N_SHARED;
}

size_t fisher_bytes(const arch_config *c, int64_t tokens)
{
    size_t floats = 0;
    for (int64_t i = 0; i < c->layers; i++) {
        bool has[CAL_N_SHARED] = { false };
        for (int k = 0; k < GRAD_SUMS; k++) {
            int64_t N, K;
            cal_site site;
            if (!shape_of(&N, &K, c, i, k)) continue;
            floats += g_floats(N);
            if (site_of(&site, arch_at(c, i), k)) has[site] = true;
        }
        for (int s = 0; s < CAL_N_SHARED; s++)
            floats += has[s] ? (size_t)tokens : 0;
    }
    return floats * sizeof(float);
}

size_t fisher_scratch(const arch_config *c, int64_t tokens)
{
    size_t linears = 0;
    for (int64_t i = 0; i < c->layers; i++)
        for (int k = 0; k < GRAD_LINEARS; k++)
            linears += arch_has(c, grad_linear_roles[k], i);
    return linears * (size_t)tokens * sizeof(float);
}

int64_t fisher_chunk(const arch_config *c, int64_t windows, int64_t len)
{
    const int64_t most = CHUNK_TOKENS / len > 0 ? CHUNK_TOKENS / len : 1;
    return grad_chunk(c, most < windows ? most : windows, len);
}

static bool push_sums(work *w)
{
    const arch_config *c = w->c;
    lq_arena *a = &w->f->arena;
    const size_t layers = (size_t)c->layers, f = sizeof(float);
    const size_t looked = (size_t)(w->f->windows * w->samples->len),
                 all = (size_t)(w->samples->n * w->samples->len);
    int64_t N, K;
    cal_site site;
    bool ok = (w->f->G = lq_push(a, layers * sizeof *w->f->G)) &&
              (w->f->weight = lq_push(a, layers * sizeof *w->f->weight)) &&
              (w->squares = lq_push(&w->arena, layers * sizeof *w->squares));
    for (size_t i = 0; i < layers; i++)
        for (int k = 0; k < GRAD_SUMS && ok; k++) {
            if (!shape_of(&N, &K, c, (int64_t)i, k)) continue;
            ok = (w->f->G[i][k] = lq_push(a, g_floats(N) * f));
            if (!ok || !site_of(&site, arch_at(c, (int64_t)i), k)) continue;
            ok = (w->squares[i][k] = lq_push(&w->arena, looked * f)) &&
                 (w->f->weight[i][site] || (w->f->weight[i][site] = lq_push(a, all * f)));
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
    grad_use(w->g, w->on);
    w->head.on = w->on;
    gemm_dev_keep(w->on, w->head.W, w->head.V * w->head.K);
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
        grad_out out = { 0 };
        memcpy(out.G, w->f->G[layer], sizeof out.G);
        for (int k = 0; k < GRAD_LINEARS; k++)
            if (w->squares[layer][k])
                out.squares[k] = w->squares[layer][k] + w->done * w->samples->len;
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
    const lq_status s = gemm_dev_check(w->on, err);
    if (s) return s;
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
            for (size_t j = 0; j < g_floats(N); j++)
                f->G[i][k][j] = (float)((double)f->G[i][k][j] / (double)tokens);
            for (int64_t n = 0; n < N; n += FISHER_BLOCK)
                gemm_mirror(f->G[i][k] + n * FISHER_BLOCK, FISHER_BLOCK,
                            N - n < FISHER_BLOCK ? N - n : FISHER_BLOCK);
        }
}

/* Linear k's part of its site's weights, one of `linears` that read it. */
static void add_weights(const work *w, float *weight, const float *squares, const int64_t *which,
                        int linears)
{
    const int64_t len = w->samples->len, n = w->f->windows * len;
    double mean = 0;
    for (int64_t t = 0; t < n; t++)
        mean += (double)squares[t] / (double)n;
    for (int64_t t = 0; t < n; t++) {
        const double c = mean > 0 ? (double)squares[t] / mean : 1;
        weight[which[t / len] * len + t % len] +=
            (float)((c < FISHER_WEIGHT_MOST ? c : FISHER_WEIGHT_MOST) / linears);
    }
}

static void weigh(const work *w, const int64_t *which)
{
    const int64_t len = w->samples->len;
    for (int64_t i = 0; i < w->f->layers; i++) {
        const arch_config *c = arch_at(w->c, i);
        int linears[CAL_N_SHARED] = { 0 };
        cal_site site;
        for (int k = 0; k < GRAD_LINEARS; k++)
            if (w->squares[i][k] && site_of(&site, c, k)) linears[site]++;
        for (int s = 0; s < CAL_N_SHARED; s++) {
            for (int64_t t = 0; t < w->samples->n * len && linears[s]; t++)
                w->f->weight[i][s][t] = CAL_TOKEN_UNKNOWN;
            for (int64_t j = 0; j < w->f->windows && linears[s]; j++)
                memset(w->f->weight[i][s] + which[j] * len, 0, (size_t)len * sizeof(float));
        }
        for (int k = 0; k < GRAD_LINEARS; k++)
            if (w->squares[i][k] && site_of(&site, c, k))
                add_weights(w, w->f->weight[i][site], w->squares[i][k], which, linears[site]);
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
            if (shape_of(&N, &K, w->c, i, k))
                s = grad_gather_rows(w->ranks, f->G[i][k], FISHER_BLOCK * sizeof(float), N, block,
                                     err);
        }
    return s;
}

lq_status fisher_run(fisher *f, src_source *src, const cal_samples *samples, int64_t windows,
                     bool keep, dev *on, comm *ranks, pool *p, const lq_job *job, lq_err *err)
{
    memset(f, 0, sizeof *f);
    work w = { .f = f, .src = src, .samples = samples, .ranks = ranks, .p = p, .job = job };
    w.c = src_config(src);
    f->layers = w.c->layers;
    f->windows = windows < samples->n ? windows : samples->n;
    f->tokens = f->windows * samples->len;
    w.chunk = fisher_chunk(w.c, f->windows, samples->len);
    w.keep = keep && grad_can_keep(w.c, w.chunk, samples->len);
    lq_status s = on ? gemm_dev_open(&w.on, on, err) : LQ_OK;
    if (!s) s = load(&w, err);
    int64_t *which = s ? NULL : lq_push(&w.arena, (size_t)f->windows * sizeof *which);
    if (!s && !which) s = lq_fail(err, LQ_ENOMEM, "no memory for curvature");
    for (int64_t i = 0; i < f->windows && !s; i++)
        which[i] = i * samples->n / f->windows;
    for (int64_t i = 0; i < f->windows && !s; i += w.chunk) {
        lq_report(job, "what answers depend on", (double)i, (double)f->windows);
        int64_t left = f->windows - i;
        w.done = i;
        s = one_chunk(&w, which + i, left < w.chunk ? left : w.chunk, err);
    }
    if (!s) s = gather(&w, err);
    if (!s) divide(f, w.c, f->windows * samples->len);
    if (!s) weigh(&w, which);
    grad_close(w.g);
    gemm_dev_close(w.on);
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
