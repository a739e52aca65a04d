/* runtime/forward_layer.c - attention and MLP of one layer over any rows; see forward_impl.h. */
#include "runtime/forward_impl.h"

/* ---- buffers ---- */

/* Calls X(field, floats per row) for each buffer. */
#define BUFFERS(X)                  \
    X(h, c->hidden)                 \
    X(q, c->heads * c->head_dim)    \
    X(a, c->heads * c->head_dim)    \
    X(k, c->kv_heads * c->head_dim) \
    X(v, c->kv_heads * c->head_dim) \
    X(gate, c->ffn)                 \
    X(up, c->ffn)                   \
    X(cos, c->rope_dims / 2)        \
    X(sin, c->rope_dims / 2)        \
    X(row_block, 1)                 \
    X(row_slot, 1)

static size_t buffer_bytes(int64_t R, int64_t per_row) { return (size_t)R * (size_t)per_row * 4; }

size_t fwd_rows_bytes(const arch_config *c, int64_t R)
{
    size_t n = 0;
#define ADD(field, per_row) n += lq_round_up(buffer_bytes(R, per_row) + 1, 64);
    BUFFERS(ADD)
#undef ADD
    return n;
}

bool fwd_rows_push(fwd_rows *r, const arch_config *c, int64_t R, lq_arena *a)
{
    bool ok = true;
    r->c = c;
#define PUSH(field, per_row) ok = (r->field = lq_push(a, buffer_bytes(R, per_row))) && ok;
    BUFFERS(PUSH)
#undef PUSH
    return ok;
}

static size_t max_size(size_t a, size_t b) { return a > b ? a : b; }

size_t fwd_rows_scratch(const arch_config *c, int64_t R, int threads)
{
    size_t n = mm_scratch_bytes(R, c->hidden, 3, threads);
    n = max_size(n, mm_scratch_bytes(R, c->heads * c->head_dim, 1, threads));
    n = max_size(n, mm_scratch_bytes(R, c->ffn, 1, threads));
    return max_size(n, attn_scratch_bytes(c->heads, c->head_dim, threads));
}

void fwd_place(fwd_rows *r, const attn_seq *s, int block_size, int64_t seq_len)
{
    int64_t half = r->c->rope_dims / 2;
    for (int64_t i = 0; i < s->n_rows; i++) {
        int64_t pos = s->pos0 + i;
        r->row_block[s->row0 + i] = s->table[pos / block_size];
        r->row_slot[s->row0 + i] = (int32_t)(pos % block_size);
    }
    arch_rope_table(r->c, ROPE_MAIN, s->pos0, s->n_rows, seq_len, r->cos + s->row0 * half,
                    r->sin + s->row0 * half);
}

/* ---- work on rows ---- */

typedef struct {
    const fwd_rows *r;
    const model_layer *l;
    const fwd_kv *kv;
    float *dst;
    const float *src, *w;
    int64_t from, to;
} job;

static void split_rows(const job *j, void (*fn)(void *ctx, int64_t item, int thread))
{
    job copy = *j;
    pool_run(j->r->p, lq_ceil_div(j->to - j->from, FWD_ROWS), fn, &copy);
}

/* The rows of one item. */
static int64_t first_row(const job *j, int64_t item) { return j->from + item * FWD_ROWS; }
static int64_t rows_of(const job *j, int64_t item)
{
    int64_t left = j->to - first_row(j, item);
    return left < FWD_ROWS ? left : FWD_ROWS;
}

static void norm_item(void *ctx, int64_t item, int thread)
{
    const job *j = ctx;
    const arch_config *c = j->r->c;
    int64_t at = first_row(j, item) * c->hidden;
    (void)thread;
    k_rmsnorm(j->dst + at, c->hidden, j->src + at, c->hidden, j->w, c->w.norm_offset,
              rows_of(j, item), c->hidden, (float)c->norm_eps);
}

void fwd_norm(const fwd_rows *r, float *dst, const float *x, const float *w, int64_t T)
{
    job j = { .r = r, .dst = dst, .src = x, .w = w, .to = T };
    split_rows(&j, norm_item);
}

/* Norms of the heads, rotation, and K and V into the cache. */
static void rotate_item(void *ctx, int64_t item, int thread)
{
    const job *j = ctx;
    const fwd_rows *r = j->r;
    const arch_config *c = r->c;
    const int64_t D = c->head_dim, H = c->heads, G = c->kv_heads, half = c->rope_dims / 2;
    const float eps = (float)c->norm_eps, off = c->w.norm_offset;
    const float *qn = j->l->vec[R_Q_NORM].w, *kn = j->l->vec[R_K_NORM].w;
    (void)thread;
    for (int64_t i = 0; i < rows_of(j, item); i++) {
        int64_t t = first_row(j, item) + i;
        float *q = r->q + t * H * D, *k = r->k + t * G * D;
        if (qn) k_rmsnorm(q, D, q, D, qn, off, H, D, eps);
        if (kn) k_rmsnorm(k, D, k, D, kn, off, G, D, eps);
        const float *cs = r->cos + t * half, *sn = r->sin + t * half;
        k_rope(q, H, D, c->rope_dims, cs, sn, c->w.rope_half);
        k_rope(k, G, D, c->rope_dims, cs, sn, c->w.rope_half);
        size_t block = (size_t)r->row_block[t] * j->kv->block_stride;
        attn_kv_write(j->kv->k + block, r->row_slot[t], j->kv->block_size, k, G, D, j->kv->dtype);
        attn_kv_write(j->kv->v + block, r->row_slot[t], j->kv->block_size, r->v + t * G * D, G, D,
                      j->kv->dtype);
    }
}

static void act_item(void *ctx, int64_t item, int thread)
{
    const job *j = ctx;
    const arch_config *c = j->r->c;
    int64_t at = first_row(j, item) * c->ffn;
    (void)thread;
    k_act_mul(j->r->gate + at, j->r->gate + at, j->r->up + at, rows_of(j, item) * c->ffn,
              (k_act_fn)c->act);
}

/* ---- the two halves of a layer ---- */

static void tap(const fwd_rows *r, arch_role role, const float *x, int64_t K)
{
    if (r->tap) r->tap->tap(r->tap->user, role, -1, x, K, r->R, K);
}

static mm_out out_of(const model_linear *l, float *y, bool add)
{
    return (mm_out){ .w = &l->w, .y = y, .ldy = l->w.N, .bias = l->bias, .add = add };
}

static void attend(const fwd_rows *r, int64_t layer, const fwd_kv *kv, const fwd_group *g)
{
    const arch_config *c = r->c;
    attn_args a = {
        .q = r->q,
        .ldq = c->heads * c->head_dim,
        .out = r->a,
        .ldo = c->heads * c->head_dim,
        .k = kv->k,
        .v = kv->v,
        .block_stride = kv->block_stride,
        .block_size = kv->block_size,
        .dtype = kv->dtype,
        .H = c->heads,
        .Hkv = c->kv_heads,
        .D = c->head_dim,
        .Dv = c->head_dim,
        .scale = (float)c->attn_scale,
        .window = c->layer[layer].window ? c->window : 0,
        .seqs = g->seqs,
        .n_seqs = g->n_seqs,
    };
    attn_run(&a, r->scratch, r->p);
}

void fwd_run_attention(const fwd_rows *r, const model_layer *l, int64_t layer, const fwd_kv *kv,
                       const fwd_group *groups, int64_t n_groups)
{
    const arch_config *c = r->c;
    fwd_norm(r, r->h, r->x, l->vec[R_ATTN_NORM].w, r->R);
    tap(r, R_Q, r->h, c->hidden);
    tap(r, R_K, r->h, c->hidden);
    tap(r, R_V, r->h, c->hidden);
    mm_out qkv[] = { out_of(&l->lin[R_Q], r->q, false), out_of(&l->lin[R_K], r->k, false),
                     out_of(&l->lin[R_V], r->v, false) };
    mm_run(qkv, 3, r->h, c->hidden, r->R, r->acts, r->scratch, r->p);
    for (int64_t i = 0; i < n_groups; i++) {
        const fwd_group *g = &groups[i];
        job j = { .r = r, .l = l, .kv = kv, .from = g->row0, .to = g->row0 + g->n_rows };
        split_rows(&j, rotate_item);
        attend(r, layer, kv, g);
    }
    const int64_t K = c->heads * c->head_dim;
    tap(r, R_O, r->a, K);
    mm_out o = out_of(&l->lin[R_O], r->x, true);
    mm_run(&o, 1, r->a, K, r->R, r->acts, r->scratch, r->p);
}

void fwd_run_mlp(const fwd_rows *r, const model_layer *l)
{
    const arch_config *c = r->c;
    fwd_norm(r, r->h, r->x, l->vec[R_MLP_NORM].w, r->R);
    tap(r, R_GATE, r->h, c->hidden);
    tap(r, R_UP, r->h, c->hidden);
    mm_out in[] = { out_of(&l->lin[R_GATE], r->gate, false), out_of(&l->lin[R_UP], r->up, false) };
    mm_run(in, 2, r->h, c->hidden, r->R, r->acts, r->scratch, r->p);
    job j = { .r = r, .to = r->R };
    split_rows(&j, act_item);
    tap(r, R_DOWN, r->gate, c->ffn);
    mm_out down = out_of(&l->lin[R_DOWN], r->x, true);
    mm_run(&down, 1, r->gate, c->ffn, r->R, r->acts, r->scratch, r->p);
}

/* ---- one layer over windows, for calibration ----
 *
 * Each window in turn borrows one small f32 cache, in blocks of WINDOW_BLOCK tokens. */
enum { WINDOW_BLOCK = 32 };

static int64_t window_blocks(int64_t T) { return lq_ceil_div(T, WINDOW_BLOCK); }

static size_t window_stride(const arch_config *c)
{
    return (size_t)c->kv_heads * WINDOW_BLOCK * attn_kv_row_bytes(KV_F32, c->head_dim);
}

size_t fwd_layer_scratch(const arch_config *c, int64_t T, int threads)
{
    size_t blocks = (size_t)window_blocks(T);
    size_t kv = 2 * lq_round_up(blocks * window_stride(c) + 1, 64);
    size_t table = lq_round_up(blocks * sizeof(int32_t) + 1, 64);
    size_t seqs = lq_round_up((size_t)T * sizeof(attn_seq) + 1, 64) +
                  lq_round_up((size_t)T * sizeof(fwd_group) + 1, 64);
    return fwd_rows_bytes(c, T) + fwd_rows_scratch(c, T, threads) + kv + table + seqs;
}

lq_status fwd_layer(const arch_config *c, const model_layer *l, int64_t layer, float *x,
                    int64_t n_windows, int64_t window_len, mm_acts acts, const fwd_tap *taps,
                    lq_arena *scratch, pool *p, lq_err *err)
{
    if (n_windows == 0 || window_len == 0) return LQ_OK;
    const int64_t T = n_windows * window_len, blocks = window_blocks(window_len);
    const size_t mark = lq_arena_mark(scratch);
    fwd_rows r = { .p = p, .acts = acts, .tap = taps, .scratch = scratch, .R = T, .x = x };
    fwd_kv kv = { .block_stride = window_stride(c), .block_size = WINDOW_BLOCK, .dtype = KV_F32 };
    kv.k = lq_push(scratch, (size_t)blocks * kv.block_stride);
    kv.v = lq_push(scratch, (size_t)blocks * kv.block_stride);
    int32_t *table = lq_push(scratch, (size_t)blocks * sizeof *table);
    attn_seq *seqs = lq_push(scratch, (size_t)n_windows * sizeof *seqs);
    fwd_group *groups = lq_push(scratch, (size_t)n_windows * sizeof *groups);
    if (!kv.k || !kv.v || !table || !seqs || !groups || !fwd_rows_push(&r, c, T, scratch)) {
        lq_arena_reset(scratch, mark);
        return lq_fail(err, LQ_ENOMEM, "layer %lld: no scratch for %lld rows", (long long)layer,
                       (long long)T);
    }
    for (int64_t b = 0; b < blocks; b++)
        table[b] = (int32_t)b;
    for (int64_t w = 0; w < n_windows; w++) {
        seqs[w] = (attn_seq){ .row0 = w * window_len, .n_rows = window_len, .table = table };
        groups[w] = (fwd_group){ seqs[w].row0, window_len, &seqs[w], 1 };
        fwd_place(&r, &seqs[w], WINDOW_BLOCK, window_len);
    }
    pool_enter(p);
    fwd_run_attention(&r, l, layer, &kv, groups, n_windows);
    fwd_run_mlp(&r, l);
    pool_leave(p);
    lq_arena_reset(scratch, mark);
    return LQ_OK;
}
