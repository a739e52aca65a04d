/* runtime/forward/forward_windows.c - whole windows without a cache, layer by layer, for calibration and
 * the check after it.
 *
 * Each window in turn borrows one small f32 cache, in blocks of WINDOW_BLOCK tokens, and one state. */
#include "runtime/forward/forward_impl.h"

#include "runtime/model/kv_state.h"

enum { WINDOW_BLOCK = 32 };

static int64_t window_blocks(int64_t T) { return lq_ceil_div(T, WINDOW_BLOCK); }

static size_t plane(const arch_config *c, int64_t D)
{
    return (size_t)c->kv_heads * WINDOW_BLOCK * attn_kv_row_bytes(KV_F32, D);
}

/* Before V, or before an indexer's keys. */
static size_t first_plane(const arch_config *c)
{
    const size_t more = c->sparse_every ? WINDOW_BLOCK : 0; /* compressed positions are no more */
    if (c->w.mla) return (WINDOW_BLOCK + more) * attn_kv_row_bytes(KV_F32, kv_latent_width(c));
    return plane(c, c->head_dim);
}

static size_t window_stride(const arch_config *c)
{
    return first_plane(c) + kv_value_bytes(c, WINDOW_BLOCK, KV_F32) +
           (c->index_every ? 3u : 1u) * WINDOW_BLOCK * attn_kv_row_bytes(KV_F32, c->index_dim);
}

/* The largest state of a layer. */
static int64_t state_floats(const arch_config *c)
{
    int64_t most = 0;
    for (int64_t i = 0; i < c->layers; i++) {
        const int64_t n = kv_state_floats(c, i);
        most = n > most ? n : most;
    }
    return most;
}

/* Of the factors of a layer's R_KV_B. */
static size_t absorb_most(const arch_config *c)
{
    size_t most = model_absorb_bytes(c) + model_absorb_scratch(c);
    for (int64_t i = 0; i < c->n_sizes; i++) {
        const size_t n = model_absorb_bytes(c->sizes[i]) + model_absorb_scratch(c->sizes[i]);
        most = n > most ? n : most;
    }
    return most;
}

size_t fwd_layer_scratch(const arch_config *c, int64_t T, int threads)
{
    size_t blocks = (size_t)window_blocks(T);
    size_t kv = lq_round_up(blocks * window_stride(c) + 1, 64);
    size_t table = lq_round_up(blocks * sizeof(int32_t) + 1, 64);
    size_t seqs = lq_round_up((size_t)T * sizeof(attn_seq) + 1, 64) +
                  lq_round_up((size_t)T * sizeof(fwd_group) + 1, 64) +
                  lq_round_up((size_t)T * sizeof(fwd_seq_state) + 1, 64) +
                  lq_round_up((size_t)state_floats(c) * sizeof(float) + 1, 64);
    return fwd_rows_bytes(c, T, FWD_ALL) + fwd_rows_scratch(c, T, threads) + kv + table + seqs +
           absorb_most(c);
}

/* ---- what goes on from layer to layer ---- */

/* Do later layers read this one's K and V? */
static bool is_read(const arch_config *c, int64_t layer)
{
    for (int64_t i = layer + 1; i < c->layers; i++)
        if (c->layer[i].kv_back == i - layer) return true;
    return false;
}

static int64_t kv_width(const arch_config *c, int64_t layer)
{
    const arch_config *own = arch_at(c, layer);
    if (c->w.mla) return kv_latent_width(own);
    return own->kv_heads * (own->head_dim + own->v_dim);
}

/* The positions that an indexer chose, for layers without one. */
static int64_t index_width(const arch_config *c)
{
    return arch_shares_index(c) ? c->index_topk : 0;
}

int64_t fwd_state(const arch_config *c)
{
    int64_t n = c->hidden + c->route + fwd_ple_width(c) + fwd_streams_width(c) + index_width(c) +
                fwd_by_token(c);
    for (int64_t i = 0; i < c->layers; i++)
        if (is_read(c, i)) n += kv_width(c, i);
    return n;
}

/* The rows' parts of x [T, fwd_state], behind [T, hidden]. A layer whose K and V others read makes
 * them there, and those find them there. */
static void take_state(fwd_rows *r, int64_t layer, float *x)
{
    const arch_config *c = r->whole;
    float *at = x + r->R * c->hidden;
    if (c->route) r->route = at;
    at += r->R * c->route;
    if (c->ple_dim) r->ple = at;
    at += r->R * fwd_ple_width(c);
    if (fwd_streams_width(c)) r->streams = at;
    at += r->R * fwd_streams_width(c);
    if (arch_shares_index(c)) r->index_keys = (int32_t *)(void *)at;
    at += r->R * index_width(c);
    if (fwd_by_token(c)) r->ids = (int32_t *)(void *)at;
    at += r->R * fwd_by_token(c);
    const int64_t from = layer < 0 ? -1 : layer - c->layer[layer].kv_back;
    for (int64_t i = 0; i < c->layers; i++) {
        if (!is_read(c, i)) continue;
        if (i == from && c->w.mla) r->kv_a = at;
        if (i == from && !c->w.mla) {
            r->k = at;
            r->v = at + r->R * r->c->kv_heads * r->c->head_dim;
        }
        at += r->R * kv_width(c, i);
    }
}

/* ---- whole windows ---- */
typedef struct {
    fwd_rows rows;
    fwd_kv kv;
    fwd_group *groups; /* one per window */
} windows;

/* For a layer, or none (-1). Everything out of scratch, rows placed; scratch is as found after an error. */
static lq_status open_windows(windows *w, const arch_config *c, int64_t layer, float *x, int64_t n,
                              int64_t len, mm_acts acts, lq_arena *scratch, pool *p, lq_err *err)
{
    const arch_config *own = arch_at(c, layer);
    const int64_t T = n * len, blocks = window_blocks(len);
    const size_t mark = lq_arena_mark(scratch);
    w->rows =
        (fwd_rows){ .ops = &fwd_cpu, .p = p, .acts = acts, .scratch = scratch, .R = T, .x = x };
    w->kv =
        (fwd_kv){ .block_stride = window_stride(own), .block_size = WINDOW_BLOCK, .dtype = KV_F32 };
    w->kv.k = lq_push(scratch, (size_t)blocks * w->kv.block_stride);
    int32_t *table = lq_push(scratch, (size_t)blocks * sizeof *table);
    attn_seq *seqs = lq_push(scratch, (size_t)n * sizeof *seqs);
    w->groups = lq_push(scratch, (size_t)n * sizeof *w->groups);
    fwd_seq_state *states = lq_push(scratch, (size_t)n * sizeof *states);
    float *state = lq_push(scratch, (size_t)state_floats(c) * sizeof *state);
    if (!w->kv.k || !table || !seqs || !w->groups || !states || !state ||
        !fwd_rows_push(&w->rows, c, T, false, scratch)) {
        lq_arena_reset(scratch, mark);
        return lq_fail(err, LQ_ENOMEM, "no scratch for %lld rows", (long long)T);
    }
    w->rows.c = own;
    take_state(&w->rows, layer, x);
    w->rows.states = states;
    w->rows.n_states = (int)n;
    w->rows.in_turn = true;
    w->kv.v = w->kv.k + first_plane(own);
    for (int64_t b = 0; b < blocks; b++)
        table[b] = (int32_t)b;
    for (int64_t i = 0; i < n; i++) {
        seqs[i] = (attn_seq){ .row0 = i * len, .n_rows = len, .table = table };
        w->groups[i] = (fwd_group){ seqs[i].row0, len, &seqs[i], 1 };
        states[i] = (fwd_seq_state){ seqs[i].row0, len, { .state = state } };
        if (i > 0)
            fwd_place_like(&w->rows, &seqs[i], &seqs[0], WINDOW_BLOCK);
        else
            fwd_place(&w->rows, &seqs[i], WINDOW_BLOCK, len);
    }
    return LQ_OK;
}

/* The factors of R_KV_B, if there is one. Scratch goes back to mark after an error. */
static lq_status absorb(fwd_rows *r, model_absorbed *to, const model_layer *l, int64_t layer,
                        lq_arena *scratch, size_t mark, lq_err *err)
{
    if (!l->lin[R_KV_B].present) return LQ_OK;
    const lq_status s = model_absorb(to, r->c, &l->lin[R_KV_B], false, scratch, scratch, r->p, err);
    if (s) return lq_arena_reset(scratch, mark), lq_wrap(err, s, "layer %lld", (long long)layer);
    r->absorbed = to;
    return LQ_OK;
}

lq_status fwd_layer(const arch_config *c, const model_layer *l, int64_t layer, float *x,
                    int64_t n_windows, int64_t window_len, mm_acts acts, const fwd_tap *tap,
                    fwd_offload *offload, lq_arena *scratch, pool *p, lq_err *err)
{
    if (n_windows == 0 || window_len == 0) return LQ_OK;
    const size_t mark = lq_arena_mark(scratch);
    windows w;
    lq_status s = open_windows(&w, c, layer, x, n_windows, window_len, acts, scratch, p, err);
    if (s) return lq_wrap(err, s, "layer %lld", (long long)layer);
    w.rows.tap = tap;
    w.rows.offload = offload;
    model_absorbed absorbed;
    s = absorb(&w.rows, &absorbed, l, layer, scratch, mark, err);
    if (s) return s;
    pool_enter(p);
    fwd_run_layer(&w.rows, l, layer, &w.kv, w.groups, n_windows, NULL, 0);
    pool_leave(p);
    lq_arena_reset(scratch, mark);
    return offload ? fwd_offload_check(offload, err) : LQ_OK;
}

/* ---- in stages ---- */
float fwd_join_scale(const arch_config *c, const model_layer *l, int64_t layer, fwd_point at)
{
    const bool mlp = at == FWD_AT_DOWN;
    const arch_branch b = mlp ? BRANCH_MLP : fwd_scans(c, layer) ? BRANCH_STATE : BRANCH_ATTENTION;
    const model_vector *v = l->vec;
    const bool between = v[mlp ? R_MLP_POST_NORM : R_ATTN_POST_NORM].w || c->hyper ||
                         v[mlp ? R_MLP_JOIN : R_ATTN_JOIN].w || v[mlp ? R_MLP_CONV : R_ATTN_CONV].w;
    return between || c->join_x[b] != 1 ? 0 : (float)(c->residual_scale * c->join_y[b]);
}

/* Where a point's rows lie, ld floats apart. */
static float *rows_at(const fwd_rows *r, int64_t layer, fwd_point at, int64_t *ld)
{
    float *const made = fwd_scans(r->c, layer) ? r->mix_out : r->a, *const from[FWD_N_POINTS] = {
        r->h, r->q_a, r->kv_a, made, r->h, r->mlp, NULL
    };
    *ld = fwd_point_width(r->whole, layer, at);
    if (at == FWD_AT_DOWN) *ld = fwd_mlp_width(r->c);
    if (at == FWD_AT_KV_B) *ld = kv_latent_width(r->c);
    return from[at];
}

/* Rows of K floats to others. */
typedef struct {
    float *to;
    int64_t ld_to;
    const float *from;
    int64_t ld_from, n, K;
} rows_move;

enum { MOVED = 64 };

static void move_item(void *ctx, int64_t item, int thread)
{
    const rows_move *m = ctx;
    (void)thread;
    for (int64_t t = item * MOVED; t < m->n && t < (item + 1) * MOVED; t++)
        memcpy(m->to + t * m->ld_to, m->from + t * m->ld_from, (size_t)m->K * sizeof *m->to);
}

static void move_rows(rows_move m, pool *p) { pool_run(p, lq_ceil_div(m.n, MOVED), move_item, &m); }

lq_status fwd_layer_to(const arch_config *c, const model_layer *l, int64_t layer, fwd_point from,
                       fwd_point at, float *x, float *u, int64_t n_windows, int64_t window_len,
                       mm_acts acts, fwd_offload *offload, lq_arena *scratch, pool *p, lq_err *err)
{
    if (n_windows == 0 || window_len == 0) return LQ_OK;
    const size_t mark = lq_arena_mark(scratch);
    int64_t ld;
    windows w;
    lq_status s = open_windows(&w, c, layer, x, n_windows, window_len, acts, scratch, p, err);
    if (s) return lq_wrap(err, s, "layer %lld", (long long)layer);
    const int64_t T = w.rows.R;
    model_absorbed absorbed;
    w.rows.offload = offload;
    if (from == FWD_AT_QKV && at > from)
        s = absorb(&w.rows, &absorbed, l, layer, scratch, mark, err);
    if (s) return s;
    pool_enter(p);
    if (from == FWD_AT_O || from == FWD_AT_DOWN) {
        const int64_t K = fwd_point_width(c, layer, from);
        float *in = rows_at(&w.rows, layer, from, &ld);
        move_rows((rows_move){ in, ld, u, K, T, K }, p);
    }
    fwd_run_to(&w.rows, l, layer, from, at, &w.kv, w.groups, n_windows);
    if (at < FWD_AT_END) {
        const int64_t K = fwd_point_width(c, layer, at);
        const float *out = rows_at(&w.rows, layer, at, &ld);
        move_rows((rows_move){ u, K, out, ld, T, K }, p);
    }
    pool_leave(p);
    lq_arena_reset(scratch, mark);
    return offload ? fwd_offload_check(offload, err) : LQ_OK;
}

lq_status fwd_embed(const model *m, float *x, const int32_t *ids, int64_t n_windows,
                    int64_t window_len, mm_acts acts, lq_arena *scratch, pool *p, lq_err *err)
{
    if (n_windows == 0 || window_len == 0) return LQ_OK;
    const size_t mark = lq_arena_mark(scratch);
    windows w;
    lq_status s = model_check_positions(m, window_len, err);
    if (!s) s = open_windows(&w, m->cfg, -1, x, n_windows, window_len, acts, scratch, p, err);
    if (s) return lq_wrap(err, s, "embedding");
    pool_enter(p);
    fwd_embed_rows(&w.rows, m, ids);
    pool_leave(p);
    lq_arena_reset(scratch, mark);
    return LQ_OK;
}

size_t fwd_logits_scratch(const arch_config *c, int64_t T, int threads)
{
    const size_t a = mm_scratch_bytes(T, c->embed_dim, 1, threads);
    const size_t b = mm_scratch_bytes(T, c->hidden, 1, threads);
    return fwd_rows_bytes(c, T, FWD_ALL) + (a > b ? a : b);
}

lq_status fwd_logits(const model *m, float *logits, float *x, int64_t T, mm_acts acts,
                     lq_arena *scratch, pool *p, lq_err *err)
{
    if (T == 0) return LQ_OK;
    const size_t mark = lq_arena_mark(scratch);
    fwd_rows r = { .ops = &fwd_cpu, .p = p, .acts = acts, .scratch = scratch, .R = T, .x = x };
    if (!fwd_rows_push(&r, m->cfg, T, false, scratch)) {
        lq_arena_reset(scratch, mark);
        return lq_fail(err, LQ_ENOMEM, "no scratch for the logits of %lld rows", (long long)T);
    }
    pool_enter(p);
    fwd_run_head(&r, m, logits, m->cfg->vocab, T);
    fwd_finish_logits(&r, logits, T);
    pool_leave(p);
    lq_arena_reset(scratch, mark);
    return LQ_OK;
}
