/* kernels/topk.c - see topk.h.
 *
 * Rows are taken in waves of up to ROWS, their keys in pieces, so that a wave's scores of a piece fit
 * ROOM. First a piece is scored, in units of UNIT keys of a row; then each row picks anew from what it
 * had chosen and the piece. Scores are kept as whole numbers in the same order, so the pick is a
 * radix select. */
#include "kernels/topk.h"

#include "kernels/dispatch.h"
#include "kernels/topk_int.h"

enum { ROOM = 1 << 18, ROWS = 64, UNIT = 8 * ATTN_TILE };

typedef struct {
    const topk_args *a;
    attn_args cache; /* how keys are read */
    uint8_t *scratch;
    size_t per_thread;
    uint32_t *order; /* [rows][stride]: topk of what is chosen, then the piece's */
    int64_t first, rows, stride, at, piece; /* the wave's rows; the piece's first key and length */
} run_ctx;

static size_t order_bytes(int64_t topk)
{
    return lq_round_up((size_t)(ROOM + ROWS * topk) * sizeof(uint32_t), 64);
}

size_t topk_scratch_bytes(int64_t H, int64_t D, int64_t topk, int threads)
{
    topk_work none;
    return (size_t)threads * topk_cut(&none, NULL, H, D) + order_bytes(topk) + 64;
}

size_t topk_cut(topk_work *w, uint8_t *base, int64_t H, int64_t D)
{
    size_t n = 0;
#define CUT(field, type, count)                  \
    w->field = base ? (void *)(base + n) : NULL; \
    n += lq_round_up((size_t)(count) * sizeof(type), 64);
    CUT(kt, float, D *ATTN_TILE)
    CUT(s, float, H *ATTN_TILE)
    CUT(q, float *, H)
#undef CUT
    return n;
}

const attn_seq *topk_row(const attn_seq *s, int64_t row, int64_t *i)
{
    for (; row >= s->n_rows; s++) /* they are few */
        row -= s->n_rows;
    *i = row;
    return s;
}

/* Keys that a row sees. */
static int64_t keys_before(const topk_args *a, int64_t positions)
{
    return a->every ? positions / a->every : positions;
}

uint32_t topk_order(float x)
{
    uint32_t u;
    if (isnan(x)) return UINT32_MAX;
    x += 0.0f;
    memcpy(&u, &x, sizeof u);
    return u >> 31 ? ~u : u | 0x80000000u;
}

/* ---- scores ---- */
static void score_tile(const run_ctx *c, const topk_work *w, const attn_seq *s, int64_t pos, int n,
                       const float *weight, uint32_t *to)
{
    const topk_args *a = c->a;
    float sum[ATTN_TILE] = { 0 };
    attn_read_tile(w->kt, &c->cache, s, a->k, 0, pos, n, true, false);
    k_get()->attn_scores(w->s, w->q, w->kt, a->H, a->D, a->scale);
    for (int64_t h = 0; h < a->H; h++) {
        const float *of = w->s + h * ATTN_TILE;
        for (int j = 0; j < n; j++)
            sum[j] += weight[h] * (of[j] > 0 || isnan(of[j]) ? of[j] : 0);
    }
    for (int j = 0; j < n; j++)
        to[j] = topk_order(sum[j]);
}

static void score_unit(void *ctx, int64_t unit, int thread)
{
    const run_ctx *c = ctx;
    const topk_args *a = c->a;
    const int64_t units = lq_ceil_div(c->piece, UNIT), row = unit / units;
    int64_t i;
    const attn_seq *s = topk_row(a->seqs, c->first + row, &i);
    const int64_t from = c->at + unit % units * UNIT, seen = keys_before(a, s->pos0 + i + 1);
    int64_t end = from + UNIT < c->at + c->piece ? from + UNIT : c->at + c->piece;
    if (end > seen) end = seen;
    if (from >= end || seen <= a->topk) return;
    topk_work w;
    topk_cut(&w, c->scratch + (size_t)thread * c->per_thread, a->H, a->D);
    memset(w.kt, 0, (size_t)(a->D * ATTN_TILE) * sizeof *w.kt);
    for (int64_t h = 0; h < a->H; h++)
        w.q[h] = a->q + ((s->row0 + i) * a->H + h) * a->D;
    uint32_t *to = c->order + row * c->stride + a->topk;
    for (int64_t pos = from; pos < end; pos += ATTN_TILE)
        score_tile(c, &w, s, pos, (int)(end - pos < ATTN_TILE ? end - pos : ATTN_TILE),
                   a->weight + (s->row0 + i) * a->H, to + (pos - c->at));
}

/* ---- the choice ---- */

uint32_t topk_kth(const uint32_t *const x[2], const int64_t n[2], int64_t k, int64_t *equal)
{
    uint32_t prefix = 0, mask = 0;
    for (int shift = 24; shift >= 0; shift -= 8) {
        int64_t count[256] = { 0 };
        for (int l = 0; l < 2; l++)
            for (int64_t i = 0; i < n[l]; i++)
                if ((x[l][i] & mask) == prefix) count[x[l][i] >> shift & 255]++;
        uint32_t digit = 255;
        for (; k > count[digit]; digit--)
            k -= count[digit];
        prefix |= digit << shift;
        mask |= 255u << shift;
    }
    *equal = k;
    return prefix;
}

static void choose_row(void *ctx, int64_t row, int thread)
{
    (void)thread;
    const run_ctx *c = ctx;
    const topk_args *a = c->a;
    const int64_t k = a->topk;
    int64_t i, equal = 0;
    const attn_seq *s = topk_row(a->seqs, c->first + row, &i);
    const int64_t seen = keys_before(a, s->pos0 + i + 1),
                  more = seen - c->at < c->piece ? seen - c->at : c->piece;
    int32_t *chosen = a->chosen + (s->row0 + i) * k;
    if (seen <= k) {
        for (int64_t j = 0; j < seen && !c->at; j++)
            chosen[j] = (int32_t)j;
        return;
    }
    if (more <= 0) return;
    uint32_t *order = c->order + row * c->stride;
    const uint32_t *const lists[2] = { order, order + k };
    const int64_t had = c->at < k ? c->at : k, n[2] = { had, more };
    const bool all = had + more <= k;
    const uint32_t least = all ? 0 : topk_kth(lists, n, k, &equal);
    int64_t to = 0;
    for (int64_t j = 0; j < had + more; j++) { /* rising, in place: `to` is never ahead */
        const bool old = j < had;
        const uint32_t o = old ? order[j] : lists[1][j - had];
        if (!all && (o < least || (o == least && equal-- <= 0))) continue;
        chosen[to] = old ? chosen[j] : (int32_t)(c->at + j - had);
        order[to++] = o;
    }
}

void topk_run(const topk_args *a, lq_arena *scratch, pool *p)
{
    const size_t mark = lq_arena_mark(scratch);
    topk_work none;
    run_ctx c = { .a = a,
                  .cache = { .block_stride = a->block_stride,
                             .block_size = a->block_size,
                             .dtype = a->dtype,
                             .Hkv = 1,
                             .D = a->D },
                  .per_thread = topk_cut(&none, NULL, a->H, a->D) };
    int64_t rows = 0, longest = 0;
    for (int i = 0; i < a->n_seqs; i++) {
        const int64_t end = keys_before(a, a->seqs[i].pos0 + a->seqs[i].n_rows);
        rows += a->seqs[i].n_rows;
        longest = end > longest ? end : longest;
    }
    c.scratch = lq_push(scratch, c.per_thread * (size_t)pool_threads(p));
    c.order = lq_push(scratch, order_bytes(a->topk));
    for (; c.first < rows; c.first += c.rows) {
        c.rows = rows - c.first < ROWS ? rows - c.first : ROWS;
        const int64_t room = ROOM / c.rows / UNIT * UNIT;
        c.stride = a->topk + room;
        for (c.at = 0; c.at < longest; c.at += c.piece) {
            c.piece = longest - c.at < room ? longest - c.at : room;
            if (longest > a->topk) pool_run(p, c.rows * lq_ceil_div(c.piece, UNIT), score_unit, &c);
            pool_run(p, c.rows, choose_row, &c);
        }
    }
    lq_arena_reset(scratch, mark);
}
