/* tests/unit/test_topk_blocks.c - the blocks that an indexer's heads choose, against the best of all scores; the
 * same whatever the chunk, block size and threads; and attention of each kv head to a list of its own. */
#include "kernels/topk_blocks.h"
#include "tests/support/check.h"
#include "tests/support/families.h"
#include "tests/support/fill.h"

#include <stdlib.h>

typedef struct {
    const char *why;
    int64_t H, D, block, topk, local, T;
} shape;

static const shape shapes[] = {
    { "fewer blocks than chosen", 2, 16, 8, 9, 1, 66 },
    { "one block", 1, 8, 5, 1, 1, 60 },
    { "none is sure", 2, 8, 4, 2, 0, 70 },
    { "odd sizes", 3, 12, 7, 3, 2, 150 },
    { "all that are chosen are sure", 2, 16, 16, 2, 2, 100 },
    { "blocks longer than a unit of work", 1, 8, 300, 2, 1, 1300 },
    { "several units and waves", 4, 8, 3, 20, 1, 2500 },
};

typedef struct {
    float *q, *k;
} input;

static size_t chosen_bytes(const shape *s)
{
    return (size_t)(s->T * s->H * s->topk * s->block) * sizeof(int32_t);
}

/* All T tokens in chunks: chosen [T, H, topk * block], -1 where there are fewer, then n_chosen [T, H]. */
static int32_t *run(const shape *s, const input *in, int block_size, int64_t chunk, pool *p,
                    lq_arena *a)
{
    const int64_t blocks = lq_ceil_div(s->T, block_size);
    const size_t stride = attn_kv_row_bytes(KV_F32, s->D) * (size_t)block_size + 64;
    uint8_t *mem = lq_push(a, stride * (size_t)blocks);
    int32_t *table = lq_push(a, (size_t)blocks * 4);
    int32_t *out = lq_push(a, chosen_bytes(s) + (size_t)(s->T * s->H) * 4);
    lq_arena scratch;
    lq_arena_init(&scratch, topk_blocks_scratch_bytes(s->H, s->D, s->block, s->T, pool_threads(p)),
                  NULL);
    memset(mem, 0xff, stride * (size_t)blocks);
    memset(out, 0xff, chosen_bytes(s));
    for (int64_t b = 0; b < blocks; b++)
        table[b] = (int32_t)(blocks - 1 - b);
    for (int64_t t = 0; t < s->T; t++)
        attn_kv_write(mem + (size_t)table[t / block_size] * stride, (int)(t % block_size),
                      block_size, in->k + t * s->D, 1, s->D, KV_F32);
    for (int64_t pos = 0; pos < s->T; pos += chunk) {
        const attn_seq seq = { .row0 = pos,
                               .n_rows = s->T - pos < chunk ? s->T - pos : chunk,
                               .pos0 = pos,
                               .table = table };
        const topk_blocks_args args = { .q = in->q,
                                        .k = mem,
                                        .block_stride = stride,
                                        .block_size = block_size,
                                        .dtype = KV_F32,
                                        .H = s->H,
                                        .D = s->D,
                                        .block = s->block,
                                        .topk = s->topk,
                                        .local = s->local,
                                        .seqs = &seq,
                                        .n_seqs = 1,
                                        .chosen = out,
                                        .n_chosen = out + chosen_bytes(s) / 4 };
        topk_blocks_run(&args, &scratch, p);
    }
    lq_arena_free(&scratch);
    return out;
}

/* The best score of a block's keys up to t. */
static double best_of(const shape *s, const input *in, int64_t t, int64_t h, int64_t b)
{
    double best = -INFINITY;
    for (int64_t i = b * s->block; i <= t && i < (b + 1) * s->block; i++) {
        double dot = 0;
        for (int64_t d = 0; d < s->D; d++)
            dot += (double)in->q[(t * s->H + h) * s->D + d] * (double)in->k[i * s->D + d];
        best = dot > best ? dot : best;
    }
    return best;
}

/* A list of row t is whole blocks, rising, the sure ones among them, and no block that was left out
 * scores better than one that was not. */
static void check_list(const shape *s, const input *in, const int32_t *chosen, int32_t n, int64_t t,
                       int64_t h, const char *name)
{
    const int64_t blocks = t / s->block + 1, want = blocks < s->topk ? blocks : s->topk;
    double least = INFINITY, most = -INFINITY;
    int64_t at = 0, there = 0;
    for (int64_t b = 0; b < blocks; b++) {
        const int64_t end = (b + 1) * s->block < t + 1 ? (b + 1) * s->block : t + 1;
        const bool in_it = at < n && chosen[at] == b * s->block, sure = b >= blocks - s->local;
        const double best = best_of(s, in, t, h, b);
        CHECK(in_it || !sure, "%s, %s: row %d: no block %d", name, s->why, (int)t, (int)b);
        if (!in_it) {
            most = best > most ? best : most;
            continue;
        }
        there++;
        if (!sure) least = best < least ? best : least;
        for (int64_t i = b * s->block; i < end; i++, at++)
            CHECK(at < n && chosen[at] == i, "%s, %s: row %d: no position %d", name, s->why, (int)t,
                  (int)i);
    }
    CHECK(at == n && there == want, "%s, %s: row %d: %d of %d, %d blocks", name, s->why, (int)t,
          (int)at, (int)n, (int)there);
    CHECK(most <= least + 1e-5, "%s, %s: row %d: %g left out, %g not", name, s->why, (int)t, most,
          least);
}

TEST(the_chosen_blocks_are_those_that_score_best)
{
    char name[16];
    for (int f = 0; family_use(f, name); f++)
        for (size_t i = 0; i < LQ_COUNT(shapes); i++) {
            const shape *s = &shapes[i];
            uint64_t seed = 5;
            pool *p;
            lq_arena a = { 0 };
            pool_open(&p, 3, NULL);
            const input in = { lq_push(&a, (size_t)(s->T * s->H * s->D) * 4),
                               lq_push(&a, (size_t)(s->T * s->D) * 4) };
            fill_row(in.q, s->T * s->H * s->D, &seed);
            fill_row(in.k, s->T * s->D, &seed);
            const int32_t *want = run(s, &in, 16, s->T, p, &a), *n = want + chosen_bytes(s) / 4;
            const size_t bytes = chosen_bytes(s) + (size_t)(s->T * s->H) * 4;
            for (int64_t t = 0; t < s->T; t += t < 80 ? 1 : 61)
                for (int64_t h = 0; h < s->H; h++)
                    check_list(s, &in, want + (t * s->H + h) * s->topk * s->block, n[t * s->H + h],
                               t, h, name);
            CHECK(memcmp(want, run(s, &in, 8, 7, p, &a), bytes) == 0, "%s, %s: chunks of 7", name,
                  s->why);
            CHECK(memcmp(want, run(s, &in, 32, 65, p, &a), bytes) == 0, "%s, %s: chunks of 65",
                  name, s->why);
            lq_arena_free(&a);
            pool_close(p);
        }
    k_init(NULL, NULL);
}

/* Two kv heads with lists of their own, against each alone with its list. */
TEST(each_kv_head_sees_the_keys_of_its_own_list)
{
    enum { G = 2, EACH = 2, D = 16, T = 90, ROWS = 3, MOST = 70, BLOCK = 16, BLOCKS = 6 };
    uint64_t seed = 11;
    static float q[ROWS][G][EACH * D], k[T][G * D], got[ROWS][G][EACH * D], want[ROWS][EACH * D],
        own[ROWS][EACH * D];
    static uint8_t mem[BLOCKS][G * BLOCK * D * 4], one[BLOCKS][BLOCK * D * 4];
    static int32_t keys[ROWS][G][MOST], list[ROWS][MOST], n_list[ROWS];
    static const int32_t n_keys[ROWS][G] = { { 1, 70 }, { 33, 2 }, { 16, 40 } };
    int32_t table[BLOCKS];
    pool *p;
    lq_arena scratch;
    pool_open(&p, 2, NULL);
    lq_arena_init(&scratch, attn_scratch_bytes(G * EACH, D, 2), NULL);
    fill_row(&q[0][0][0], ROWS * G * EACH * D, &seed);
    fill_row(&k[0][0], T * G * D, &seed);
    for (int i = 0; i < BLOCKS; i++)
        table[i] = BLOCKS - 1 - i;
    for (int t = 0; t < T; t++)
        attn_kv_write(mem[table[t / BLOCK]], t % BLOCK, BLOCK, k[t], G, D, KV_F32);
    for (int i = 0; i < ROWS * G; i++)
        for (int j = 0; j < n_keys[i / G][i % G]; j++)
            keys[i / G][i % G][j] = (i * 13 + j * 31) % T;
    const attn_seq seq = { .n_rows = ROWS, .pos0 = 3, .table = table };
    attn_args a = { .q = q[0][0],
                    .ldq = G * EACH * D,
                    .out = got[0][0],
                    .ldo = G * EACH * D,
                    .k = mem[0],
                    .v = mem[0],
                    .block_stride = sizeof mem[0],
                    .block_size = BLOCK,
                    .dtype = KV_F32,
                    .H = G * EACH,
                    .Hkv = G,
                    .D = D,
                    .Dv = D,
                    .scale = 0.4f,
                    .keys = keys[0][0],
                    .ld_keys = MOST,
                    .keys_by_head = true,
                    .n_keys = n_keys[0],
                    .seqs = &seq,
                    .n_seqs = 1 };
    attn_run(&a, &scratch, p);
    for (int g = 0; g < G; g++) {
        for (int t = 0; t < T; t++)
            attn_kv_write(one[table[t / BLOCK]], t % BLOCK, BLOCK, k[t] + g * D, 1, D, KV_F32);
        for (int r = 0; r < ROWS; r++) {
            memcpy(own[r], q[r][g], sizeof own[r]);
            memcpy(list[r], keys[r][g], sizeof list[r]);
            n_list[r] = n_keys[r][g];
        }
        attn_args b = a;
        b.q = own[0];
        b.out = want[0];
        b.ldq = b.ldo = EACH * D;
        b.k = b.v = one[0];
        b.block_stride = sizeof one[0];
        b.H = EACH;
        b.Hkv = 1;
        b.keys = list[0];
        b.keys_by_head = false;
        b.n_keys = n_list;
        attn_run(&b, &scratch, p);
        for (int r = 0; r < ROWS; r++)
            CHECK(memcmp(want[r], got[r][g], sizeof want[r]) == 0, "row %d, kv head %d", r, g);
    }
    lq_arena_free(&scratch);
    pool_close(p);
}

int main(int argc, char **argv)
{
    RUN(the_chosen_blocks_are_those_that_score_best);
    RUN(each_kv_head_sees_the_keys_of_its_own_list);
    return check_end();
}
