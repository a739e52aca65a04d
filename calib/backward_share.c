/* calib/backward_share.c - passes that several ranks share: who makes what, and what was made to all. See backward.h.
 *
 * A product's tiles are dealt out in their order. Each is one call of BLAS, wherever it is made, and so has the bytes of
 * one process. What ranks send each other are the tiles as they are, one after another; where all ranks have whole rows
 * of tiles, the rows of C themselves. */
#include <stdlib.h>
#include <string.h>

#include "calib/backward_impl.h"

/* ---- who makes what ---- */
static int64_t dealt(int64_t n, int rank, int size) { return n * rank / size; }

void grad_own_items(const grad_ctx *g, int64_t *first, int64_t *end, int64_t n)
{
    const int rank = comm_rank(g->ranks), size = comm_size(g->ranks);
    *first = dealt(n, rank, size);
    *end = dealt(n, rank + 1, size);
}

static int64_t row_at(int64_t M, int64_t side, int rank, int size)
{
    const int64_t row = dealt(lq_ceil_div(M, side), rank, size) * side;
    return row < M ? row : M;
}

void grad_own_rows(int64_t *first, int64_t *end, int rank, int size, int64_t M, int64_t side)
{
    *first = row_at(M, side, rank, size);
    *end = row_at(M, side, rank + 1, size);
}

lq_status grad_gather_rows(comm *ranks, void *p, size_t row_bytes, int64_t M, int64_t side,
                           lq_err *err)
{
    const int size = comm_size(ranks);
    if (size < 2) return LQ_OK;
    size_t *at = calloc((size_t)size + 1, sizeof *at);
    if (!at) return lq_fail(err, LQ_ENOMEM, "no memory for %d ranks", size);
    for (int i = 0; i < size; i++) {
        int64_t first, end;
        grad_own_rows(&first, &end, i, size, M, side);
        at[i + 1] = (size_t)end * row_bytes;
    }
    const lq_status s = comm_allgather(ranks, p, at, err);
    free(at);
    return s;
}

/* ---- room ---- */
int64_t grad_widest_fused(const arch_config *c)
{
    static const arch_role fused[] = { R_QKV, R_GATE_UP, R_KV_A, R_KV_B };
    int64_t most = 0, N, K;
    if (c->w.q_gated) most = 2 * c->heads * c->head_dim;
    if (arch_has_state(c)) {
        const arch_mixer m = c->row->mixer;
        const int64_t W = arch_mix_width(c, m);
        N = m == MIX_CONV ? 3 * W : arch_conv_channels(c, m) + W + c->mix_heads;
        most = N > most ? N : most;
    }
    for (size_t i = 0; i < LQ_COUNT(fused); i++) {
        if (!arch_name_of(c, fused[i])) continue;
        arch_role_shape(c, fused[i], &N, &K);
        most = N > most ? N : most;
    }
    return most;
}

static int64_t widest(const arch_config *c)
{
    const int64_t Q = c->heads * c->head_dim, F = c->ffn, D = c->hidden;
    const int64_t all[] = { Q,
                            c->heads * c->v_dim,
                            c->q_lora,
                            c->kv_lora,
                            F,
                            D,
                            grad_widest_fused(c),
                            c->index_heads * c->index_dim,
                            c->experts ? c->expert_ffn : 0,
                            c->experts ? c->shared_ffn : 0 };
    int64_t most = 0;
    for (size_t i = 0; i < LQ_COUNT(all); i++)
        most = all[i] > most ? all[i] : most;
    return most;
}

size_t grad_shared_bytes(const arch_config *c, int64_t windows, int64_t len)
{
    return (size_t)(windows * len * widest(c)) * sizeof(float);
}

lq_status grad_share(grad_ctx *g, comm *ranks, lq_err *err)
{
    g->ranks = comm_size(ranks) > 1 ? ranks : NULL;
    if (!g->ranks || g->packed) return LQ_OK;
    g->packed = lq_push(&g->arena, (size_t)(g->rows * widest(g->c)) * sizeof(float));
    g->at = lq_push(&g->arena, ((size_t)comm_size(ranks) + 1) * sizeof *g->at);
    return g->packed && g->at ? LQ_OK : lq_fail(err, LQ_ENOMEM, "no memory for a backward pass");
}

/* ---- what was made, to all ---- */
/* Things of C, in the order in which they are dealt out: tiles, or heads of windows. */
typedef struct {
    float *C, *packed;
    int64_t ldc, M, N;      /* of C */
    int64_t side_m, side_n; /* of a thing, where C does not end before */
    int64_t across;
    int64_t from; /* the first that is copied */
    int64_t skip_from, skip_end;
    bool out; /* to `packed`, else back */
} things;

/* Floats before thing i: those of whole rows of things, then of the things beside it. */
static int64_t place(const things *t, int64_t i)
{
    const int64_t m = i / t->across * t->side_m, n = i % t->across * t->side_n;
    if (m >= t->M) return t->M * t->N;
    const int64_t rows = t->M - m < t->side_m ? t->M - m : t->side_m;
    return m * t->N + n * rows;
}

static void copy_item(void *ctx, int64_t item, int thread)
{
    (void)thread;
    const things *t = ctx;
    const int64_t i = t->from + item;
    if (i >= t->skip_from && i < t->skip_end) return;
    const int64_t m = i / t->across * t->side_m, n = i % t->across * t->side_n;
    const int64_t rows = t->M - m < t->side_m ? t->M - m : t->side_m;
    const int64_t cols = t->N - n < t->side_n ? t->N - n : t->side_n;
    float *c = t->C + m * t->ldc + n, *p = t->packed + place(t, i);
    for (int64_t r = 0; r < rows; r++)
        memcpy(t->out ? p + r * cols : c + r * t->ldc, t->out ? c + r * t->ldc : p + r * cols,
               (size_t)cols * sizeof *c);
}

static void exchange(grad_ctx *g, void *p)
{
    if (!g->lost) g->lost = comm_allgather(g->ranks, p, g->at, &g->why);
}

/* Do all ranks have whole rows of things? */
static bool in_rows(const things *t, int64_t n, int size)
{
    for (int i = 1; i < size; i++)
        if (dealt(n, i, size) % t->across) return false;
    return true;
}

static void share_things(grad_ctx *g, things *t, int64_t n)
{
    const int size = comm_size(g->ranks);
    const bool rows = t->ldc == t->N && in_rows(t, n, size);
    int64_t first, end;
    grad_own_items(g, &first, &end, n);
    for (int i = 0; i <= size; i++)
        g->at[i] = (size_t)place(t, dealt(n, i, size)) * sizeof(float);
    if (rows) {
        exchange(g, t->C);
        return;
    }
    t->packed = g->packed;
    t->out = true;
    t->from = first;
    if (end > first) pool_run(g->p, end - first, copy_item, t);
    exchange(g, g->packed);
    t->out = false;
    t->from = 0;
    t->skip_from = first;
    t->skip_end = end;
    pool_run(g->p, n, copy_item, t);
}

void grad_product(grad_ctx *g, float *C, gemm_in A, gemm_in B, int64_t M, int64_t N, int64_t K,
                  float beta)
{
    const gemm_tiles cut = gemm_cut(M, N);
    int64_t first, end;
    if (!g->ranks || cut.n < 2) {
        gemm_dev_run(g->on, C, N, A, B, M, N, K, beta, g->p);
        return;
    }
    grad_own_items(g, &first, &end, cut.n);
    gemm_some(C, N, A, B, M, N, K, beta, first, end, g->p);
    things t = { .C = C,
                 .ldc = N,
                 .M = M,
                 .N = N,
                 .side_m = cut.side,
                 .side_n = cut.side,
                 .across = cut.across };
    share_things(g, &t, cut.n);
}

void grad_share_heads(grad_ctx *g, const grad_heads *h, int64_t windows)
{
    things t = { .C = h->p,
                 .ldc = h->ld,
                 .M = windows * h->rows,
                 .N = h->across * h->cols,
                 .side_m = h->rows,
                 .side_n = h->cols,
                 .across = h->across };
    if (g->ranks) share_things(g, &t, windows * h->across);
}

/* Tiles first .. end of C, which has rows row0 .. row0 + M of `all`: this rank's. */
static void own_tiles(const grad_ctx *g, int64_t *first, int64_t *end, gemm_tiles cut, int64_t M,
                      int64_t row0, int64_t all)
{
    grad_own_rows(first, end, comm_rank(g->ranks), comm_size(g->ranks), all, cut.side);
    *first = *first < row0 ? 0 : *first - row0;
    *end = *end > row0 + M ? M : *end - row0;
    *first = *first / cut.side * cut.across;
    *end = *end > 0 ? lq_ceil_div(*end, cut.side) * cut.across : 0;
}

void grad_add_rows(const grad_ctx *g, float *C, int64_t ldc, gemm_in A, gemm_in B, int64_t M,
                   int64_t N, int64_t K, int64_t row0, int64_t all)
{
    int64_t first, end;
    own_tiles(g, &first, &end, gemm_cut(M, N), M, row0, all);
    if (g->on)
        gemm_dev_run(g->on, C, ldc, A, B, M, N, K, 1, g->p);
    else
        gemm_some(C, ldc, A, B, M, N, K, 1, first, end, g->p);
}

void grad_sum_blocks(const grad_ctx *g, float *G, const float *dy, int64_t N, int64_t R)
{
    enum { AT_ONCE = 64 };
    gemm_square q[AT_ONCE];
    int n = 0;
    for (int64_t at = 0; at < N && G; at += GRAD_BLOCK) {
        const int64_t M = N - at < GRAD_BLOCK ? N - at : GRAD_BLOCK;
        int64_t first, end;
        own_tiles(g, &first, &end, gemm_cut(M, M), M, at, N);
        if (g->on) {
            const gemm_in x = { dy + at, N, false }, turned = { dy + at, N, true };
            gemm_dev_run(g->on, G + at * GRAD_BLOCK, GRAD_BLOCK, turned, x, M, M, R, 1, g->p);
            continue;
        }
        if (end > first) q[n++] = (gemm_square){ G + at * GRAD_BLOCK, dy + at, M, first, end };
        if (n < AT_ONCE && at + GRAD_BLOCK < N) continue;
        gemm_lower(q, n, GRAD_BLOCK, N, R, 1, g->p);
        n = 0;
    }
}
