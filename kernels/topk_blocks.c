/* kernels/topk_blocks.c - see topk_blocks.h.
 *
 * Rows are taken in waves whose blocks' scores fit ROOM, or one by one. First they are scored, in units of
 * some whole blocks of a row, then each row and head picks. Scores are kept as whole numbers in the
 * same order, as in topk.c. */
#include "kernels/topk_blocks.h"

#include "kernels/dispatch.h"
#include "kernels/topk_int.h"

enum { ROOM = 1 << 16, ROWS = 64, UNIT = 8 * ATTN_TILE };

typedef struct {
    const topk_blocks_args *a;
    attn_args cache; /* how keys are read */
    uint8_t *scratch;
    size_t per_thread;
    uint32_t *order;      /* [rows][H][blocks] */
    int64_t first, rows;  /* the wave's */
    int64_t blocks, unit; /* of the longest sequence; blocks of a unit */
} run_ctx;

static size_t order_bytes(int64_t H, int64_t blocks)
{
    const int64_t n = H * blocks > ROOM ? H * blocks : ROOM;
    return lq_round_up((size_t)n * sizeof(uint32_t), 64);
}

size_t topk_blocks_scratch_bytes(int64_t H, int64_t D, int64_t block, int64_t positions,
                                 int threads)
{
    topk_work none;
    return (size_t)threads * topk_cut(&none, NULL, H, D) +
           order_bytes(H, lq_ceil_div(positions, block)) + 64;
}

static void score_unit(void *ctx, int64_t item, int thread)
{
    const run_ctx *c = ctx;
    const topk_blocks_args *a = c->a;
    const int64_t units = lq_ceil_div(c->blocks, c->unit), row = item / units;
    int64_t i;
    const attn_seq *s = topk_row(a->seqs, c->first + row, &i);
    const int64_t seen = s->pos0 + i + 1, from = item % units * c->unit * a->block;
    int64_t end = from + c->unit * a->block;
    if (end > seen) end = seen;
    if (from >= end || lq_ceil_div(seen, a->block) <= a->topk) return;
    topk_work w;
    topk_cut(&w, c->scratch + (size_t)thread * c->per_thread, a->H, a->D);
    memset(w.kt, 0, (size_t)(a->D * ATTN_TILE) * sizeof *w.kt);
    uint32_t *order = c->order + row * a->H * c->blocks;
    for (int64_t h = 0; h < a->H; h++) {
        w.q[h] = a->q + ((s->row0 + i) * a->H + h) * a->D;
        memset(order + h * c->blocks + from / a->block, 0,
               (size_t)lq_ceil_div(end - from, a->block) * sizeof *order);
    }
    for (int64_t pos = from; pos < end; pos += ATTN_TILE) {
        const int n = (int)(end - pos < ATTN_TILE ? end - pos : ATTN_TILE);
        attn_read_tile(w.kt, &c->cache, s, a->k, 0, pos, n, true, false);
        k_get()->attn_scores(w.s, w.q, w.kt, a->H, a->D, 1);
        for (int64_t h = 0; h < a->H; h++)
            for (int j = 0; j < n; j++) {
                const uint32_t o = topk_order(w.s[h * ATTN_TILE + j]);
                uint32_t *to = order + h * c->blocks + (pos + j) / a->block;
                if (o > *to) *to = o;
            }
    }
}

/* One row's choice of one head. */
static void choose(void *ctx, int64_t item, int thread)
{
    (void)thread;
    const run_ctx *c = ctx;
    const topk_blocks_args *a = c->a;
    int64_t i, equal = 0, n = 0;
    const attn_seq *s = topk_row(a->seqs, c->first + item / a->H, &i);
    const int64_t seen = s->pos0 + i + 1, blocks = lq_ceil_div(seen, a->block),
                  list = (s->row0 + i) * a->H + item % a->H;
    int32_t *chosen = a->chosen + list * a->topk * a->block;
    uint32_t *order = c->order + item * c->blocks, least = 0;
    const bool all = blocks <= a->topk;
    if (!all) {
        for (int64_t b = blocks - a->local; b < blocks; b++)
            order[b] = UINT32_MAX;
        least = topk_kth((const uint32_t *const[2]){ order, order }, (int64_t[2]){ blocks, 0 },
                         a->topk, &equal);
    }
    for (int64_t b = 0; b < blocks; b++) {
        if (!all && (order[b] < least || (order[b] == least && equal-- <= 0))) continue;
        for (int64_t p = b * a->block; p < (b + 1) * a->block && p < seen; p++)
            chosen[n++] = (int32_t)p;
    }
    a->n_chosen[list] = (int32_t)n;
}

void topk_blocks_run(const topk_blocks_args *a, lq_arena *scratch, pool *p)
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
    int64_t rows = 0;
    c.blocks = 1;
    for (int i = 0; i < a->n_seqs; i++) {
        const int64_t blocks = lq_ceil_div(a->seqs[i].pos0 + a->seqs[i].n_rows, a->block);
        rows += a->seqs[i].n_rows;
        c.blocks = blocks > c.blocks ? blocks : c.blocks;
    }
    c.unit = a->block < UNIT ? UNIT / a->block : 1;
    c.scratch = lq_push(scratch, c.per_thread * (size_t)pool_threads(p));
    c.order = lq_push(scratch, order_bytes(a->H, c.blocks));
    const int64_t fit = ROOM / (a->H * c.blocks), most = fit < 1 ? 1 : fit < ROWS ? fit : ROWS;
    for (; c.first < rows; c.first += c.rows) {
        c.rows = rows - c.first < most ? rows - c.first : most;
        if (c.blocks > a->topk) pool_run(p, c.rows * lq_ceil_div(c.blocks, c.unit), score_unit, &c);
        pool_run(p, c.rows * a->H, choose, &c);
    }
    lq_arena_reset(scratch, mark);
}
