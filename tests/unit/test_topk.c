/* tests/unit/test_topk.c - an indexer's choice against sorting all scores, equal ones among them; the same
 * whatever the chunk, block size and threads; and attention to chosen keys alone. */
#include "kernels/topk.h"
#include "tests/support/check.h"
#include "tests/support/families.h"
#include "tests/support/fill.h"

#include <stdlib.h>

typedef struct {
    const char *why;
    int64_t H, D, topk, T;
    bool even; /* q, k and weights of few values: many scores are equal */
} shape;

static const shape shapes[] = {
    { "fewer keys than chosen", 2, 16, 40, 33, false },
    { "one of each", 1, 8, 1, 50, false },
    { "odd sizes", 3, 12, 7, 100, false },
    { "equal scores", 2, 16, 9, 130, true },
    { "all scores are equal", 1, 16, 20, 90, true },
    { "several pieces of keys", 1, 8, 300, 4500, true },
};

typedef struct {
    float *q, *k, *w;
} input;

static input input_make(const shape *s, lq_arena *a)
{
    uint64_t seed = 5;
    input in = { lq_push(a, (size_t)(s->T * s->H * s->D) * 4),
                 lq_push(a, (size_t)(s->T * s->D) * 4), lq_push(a, (size_t)(s->T * s->H) * 4) };
    float *const rows[] = { in.q, in.k, in.w };
    const int64_t n[] = { s->T * s->H * s->D, s->T * s->D, s->T * s->H };
    for (int r = 0; r < 3; r++) {
        fill_row(rows[r], n[r], &seed);
        for (int64_t i = 0; i < n[r] && s->even; i++)
            rows[r][i] = r == 0 ? 1.0f : r == 1 ? (float)(i % s->D == 0) * rintf(rows[r][i]) : 1.0f;
    }
    return in;
}

/* All T tokens in chunks; chosen [T, topk], -1 where there are fewer. */
static int32_t *run(const shape *s, const input *in, int block_size, int64_t chunk, pool *p,
                    lq_arena *a)
{
    const int64_t blocks = lq_ceil_div(s->T, block_size);
    const size_t stride = attn_kv_row_bytes(KV_F32, s->D) * (size_t)block_size + 64;
    uint8_t *mem = lq_push(a, stride * (size_t)blocks);
    int32_t *table = lq_push(a, (size_t)blocks * 4);
    int32_t *out = lq_push(a, (size_t)(s->T * s->topk) * 4);
    lq_arena scratch;
    lq_arena_init(&scratch, topk_scratch_bytes(s->H, s->D, s->topk, pool_threads(p)), NULL);
    memset(mem, 0xff, stride * (size_t)blocks);
    memset(out, 0xff, (size_t)(s->T * s->topk) * 4);
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
        const topk_args args = { .q = in->q,
                                 .weight = in->w,
                                 .k = mem,
                                 .block_stride = stride,
                                 .block_size = block_size,
                                 .dtype = KV_F32,
                                 .H = s->H,
                                 .D = s->D,
                                 .scale = 0.5f,
                                 .topk = s->topk,
                                 .seqs = &seq,
                                 .n_seqs = 1,
                                 .chosen = out };
        topk_run(&args, &scratch, p);
    }
    lq_arena_free(&scratch);
    return out;
}

typedef struct {
    double score;
    int32_t pos;
} scored;

static int by_score(const void *x, const void *y)
{
    const scored *a = x, *b = y;
    if (a->score > b->score || a->score < b->score) return a->score > b->score ? -1 : 1;
    return a->pos < b->pos ? -1 : 1;
}

/* How far below the best that was left out the worst that was chosen is; rising is checked. */
static double worst(const shape *s, const input *in, const int32_t *chosen, int64_t t)
{
    scored *all = calloc((size_t)(t + 1), sizeof *all);
    const int64_t k = s->topk < t + 1 ? s->topk : t + 1;
    double gap = 0;
    for (int64_t i = 0; i <= t; i++) {
        all[i].pos = (int32_t)i;
        for (int64_t h = 0; h < s->H; h++) {
            double dot = 0;
            for (int64_t d = 0; d < s->D; d++)
                dot += (double)in->q[(t * s->H + h) * s->D + d] * (double)in->k[i * s->D + d];
            all[i].score += (double)in->w[t * s->H + h] * (dot > 0 ? 0.5 * dot : 0);
        }
    }
    double *score = calloc((size_t)(t + 1), sizeof *score);
    for (int64_t i = 0; i <= t; i++)
        score[i] = all[i].score;
    qsort(all, (size_t)(t + 1), sizeof *all, by_score);
    for (int64_t i = 0; i < k; i++) {
        const int32_t pos = chosen[i];
        CHECK(pos >= 0 && pos <= t && (!i || pos > chosen[i - 1]), "row %d: position %d of %d",
              (int)t, (int)pos, (int)i);
        if (pos < 0 || pos > t) break;
        const double d = all[k - 1].score - score[pos];
        gap = d > gap ? d : gap;
        /* Exact numbers: of equal scores the lower positions. */
        if (s->even && !(score[pos] > all[k - 1].score))
            CHECK(pos <= all[k - 1].pos, "row %d: position %d, %d scores the same", (int)t,
                  (int)pos, (int)all[k - 1].pos);
    }
    free(score);
    free(all);
    return gap;
}

TEST(the_chosen_keys_are_those_that_score_best)
{
    char name[16];
    for (int f = 0; family_use(f, name); f++)
        for (size_t i = 0; i < LQ_COUNT(shapes); i++) {
            const shape *s = &shapes[i];
            pool *p;
            lq_arena a = { 0 };
            pool_open(&p, 3, NULL);
            const input in = input_make(s, &a);
            const int32_t *want = run(s, &in, 16, s->T, p, &a);
            for (int64_t t = 0; t < s->T; t += t < 200 ? 1 : 397) {
                /* the error of a sum of D products and H terms, twice */
                const double d = worst(s, &in, want + t * s->topk, t);
                CHECK(d <= 1e-5, "%s, %s: row %d misses a score by %g", name, s->why, (int)t, d);
            }
            CHECK(memcmp(want, run(s, &in, 8, 7, p, &a), (size_t)(s->T * s->topk) * 4) == 0,
                  "%s, %s: chunks of 7", name, s->why);
            CHECK(memcmp(want, run(s, &in, 32, 65, p, &a), (size_t)(s->T * s->topk) * 4) == 0,
                  "%s, %s: chunks of 65", name, s->why);
            lq_arena_free(&a);
            pool_close(p);
        }
    k_init(NULL, NULL);
}

/* One row over all keys but those that are masked away, against the same keys alone in a cache. */
TEST(attention_to_chosen_keys_sees_no_others)
{
    enum { H = 4, D = 32, T = 700, KEEP = 45, BLOCK = 16 };
    uint64_t seed = 9;
    static float q[H * D], k[T][D], want[H * D], got[H * D];
    static uint8_t all[T / BLOCK + 1][BLOCK * D * 4], few[KEEP / BLOCK + 1][BLOCK * D * 4];
    int32_t table[T / BLOCK + 1], keys[KEEP];
    fill_row(q, H * D, &seed);
    fill_row(&k[0][0], T * D, &seed);
    for (int i = 0; i <= T / BLOCK; i++)
        table[i] = i;
    for (int t = 0; t < T; t++)
        attn_kv_write(all[t / BLOCK], t % BLOCK, BLOCK, k[t], 1, D, KV_F32);
    for (int i = 0; i < KEEP; i++) {
        keys[i] = i * 15 + i % 3;
        attn_kv_write(few[i / BLOCK], i % BLOCK, BLOCK, k[keys[i]], 1, D, KV_F32);
    }
    for (int bf16 = 0; bf16 < 2; bf16++) {
        pool *p;
        lq_arena scratch;
        pool_open(&p, 2, NULL);
        lq_arena_init(&scratch, attn_scratch_bytes(H, D, 2), NULL);
        attn_seq seq = { .n_rows = 1, .pos0 = KEEP - 1, .table = table };
        attn_args a = { .q = q,
                        .ldq = H * D,
                        .out = want,
                        .ldo = H * D,
                        .k = few[0],
                        .v = few[0],
                        .block_stride = sizeof few[0],
                        .block_size = BLOCK,
                        .dtype = KV_F32,
                        .bf16 = bf16,
                        .H = H,
                        .Hkv = 1,
                        .D = D,
                        .Dv = D,
                        .scale = 0.4f,
                        .seqs = &seq,
                        .n_seqs = 1 };
        attn_run(&a, &scratch, p);
        seq.pos0 = T - 1;
        a.k = a.v = all[0];
        a.out = got;
        a.keys = keys;
        a.ld_keys = KEEP;
        attn_run(&a, &scratch, p);
        CHECK(memcmp(want, got, sizeof want) == 0, "bf16 %d", bf16);
        lq_arena_free(&scratch);
        pool_close(p);
    }
}

/* Each row of a step sees a list of a length of its own, in any order; against each row alone. */
TEST(rows_see_as_many_chosen_keys_as_they_are_told)
{
    enum { H = 2, D = 16, T = 90, ROWS = 5, MOST = 70, BLOCK = 12, BLOCKS = 8 };
    uint64_t seed = 11;
    static float q[ROWS * H * D], k[T][D], got[ROWS * H * D], want[H * D];
    static uint8_t mem[BLOCKS][BLOCK * D * 4], own[BLOCKS][16 * D * 4];
    static int32_t keys[ROWS][MOST];
    static const int32_t n_keys[ROWS] = { 1, 70, 16, 33, 2 };
    int32_t table[BLOCKS];
    pool *p;
    lq_arena scratch;
    pool_open(&p, 2, NULL);
    lq_arena_init(&scratch, attn_scratch_bytes(H, D, 2), NULL);
    fill_row(q, ROWS * H * D, &seed);
    fill_row(&k[0][0], T * D, &seed);
    for (int i = 0; i < BLOCKS; i++)
        table[i] = BLOCKS - 1 - i;
    for (int t = 0; t < T; t++)
        attn_kv_write(mem[table[t / BLOCK]], t % BLOCK, 1, k[t], 1, D, KV_F32);
    for (int r = 0; r < ROWS; r++)
        for (int i = 0; i < n_keys[r]; i++)
            keys[r][i] = (r * 13 + i * 31) % T;
    attn_seq seq = { .n_rows = ROWS, .pos0 = 3, .table = table };
    attn_args a = { .q = q,
                    .ldq = H * D,
                    .out = got,
                    .ldo = H * D,
                    .k = mem[0],
                    .v = mem[0],
                    .block_stride = sizeof mem[0],
                    .block_size = BLOCK,
                    .dtype = KV_F32,
                    .H = H,
                    .Hkv = 1,
                    .D = D,
                    .Dv = D,
                    .scale = 0.4f,
                    .keys = keys[0],
                    .ld_keys = MOST,
                    .n_keys = n_keys,
                    .seqs = &seq,
                    .n_seqs = 1 };
    attn_run(&a, &scratch, p);
    a.k = a.v = own[0];
    a.block_stride = sizeof own[0];
    a.block_size = 16;
    a.keys = a.n_keys = NULL;
    a.out = want;
    for (int r = 0; r < ROWS; r++) {
        for (int i = 0; i < n_keys[r]; i++)
            attn_kv_write(own[table[i / 16]], i % 16, 16, k[keys[r][i]], 1, D, KV_F32);
        seq.n_rows = 1;
        seq.pos0 = n_keys[r] - 1;
        a.q = q + r * H * D;
        attn_run(&a, &scratch, p);
        CHECK(memcmp(want, got + r * H * D, sizeof want) == 0, "row %d", r);
    }
    lq_arena_free(&scratch);
    pool_close(p);
}

/* Keys of 4 positions each, against as many positions of one each. */
TEST(keys_of_several_positions_are_chosen_once_they_are_whole)
{
    enum { H = 2, D = 8, K = 3, EVERY = 4, N = 50, T = N * EVERY + 2, BLOCK = 2 };
    static uint8_t mem[N][BLOCK * D * 4];
    static float q[T * H * D], w[T * H], k[N * D];
    static int32_t got[T * K], want[N * K], table[N];
    uint64_t seed = 3;
    pool *p;
    lq_arena scratch;
    pool_open(&p, 2, NULL);
    lq_arena_init(&scratch, topk_scratch_bytes(H, D, K, 2), NULL);
    fill_row(k, N * D, &seed);
    for (int t = 0; t < T; t++) { /* the same query for all that see as many keys */
        uint64_t own = 100 + (uint64_t)((t + 1) / EVERY);
        fill_row(q + t * H * D, H * D, &own);
        fill_row(w + t * H, H, &own);
    }
    for (int i = 0; i < N; i++) {
        table[i] = N - 1 - i;
        attn_kv_write(mem[N - 1 - i / BLOCK], i % BLOCK, BLOCK, k + i * D, 1, D, KV_F32);
    }
    attn_seq seq = { .n_rows = T, .table = table };
    topk_args a = {
        q, w, mem[0], sizeof mem[0], BLOCK, KV_F32, H, D, 0.5f, K, EVERY, &seq, 1, got
    };
    memset(got, 0xff, sizeof got);
    topk_run(&a, &scratch, p);
    for (int r = 0; r < N;
         r++) { /* of the rows that see r + 1 keys the first is (r + 1) EVERY - 1 */
        seq = (attn_seq){ .n_rows = 1, .pos0 = r, .table = table };
        a.q = q + ((r + 1) * EVERY - 1) * H * D;
        a.weight = w + ((r + 1) * EVERY - 1) * H;
        a.every = 0;
        a.chosen = want + r * K;
        memset(a.chosen, 0xff, K * sizeof *want);
        topk_run(&a, &scratch, p);
    }
    for (int t = 0; t < T; t++) {
        const int seen = (t + 1) / EVERY;
        static const int32_t none[K] = { -1, -1, -1 };
        CHECK(!memcmp(got + t * K, seen ? want + (seen - 1) * K : none, sizeof none), "row %d", t);
    }
    lq_arena_free(&scratch);
    pool_close(p);
}

int main(int argc, char **argv)
{
    RUN(rows_see_as_many_chosen_keys_as_they_are_told);
    RUN(keys_of_several_positions_are_chosen_once_they_are_whole);
    RUN(the_chosen_keys_are_those_that_score_best);
    RUN(attention_to_chosen_keys_sees_no_others);
    return check_end();
}
