/* tests/unit/test_dev_topk.c - a device table's choice of keys against the CPU's, to the bit, and attention to
 * lists of positions: the CPU's bits, or those of the same keys side by side in a cache. */
#include "kernels/dispatch.h"
#include "kernels/topk.h"
#include "kernels/topk_blocks.h"
#include "tests/support/devrig.h"

typedef struct {
    const char *why;
    int64_t H, D, topk;
    kv_dtype dtype;
    int block_size;
    bool even; /* q, k and weights of few values: many scores are equal */
    struct {
        int64_t pos0, n;
    } seq[2];
} choice;

static const choice choices[] = {
    { "fewer keys than chosen", 2, 16, 40, KV_F32, 16, false, { { 0, 33 }, { 38, 2 } } },
    { "one key of each", 1, 8, 1, KV_F32, 8, false, { { 0, 3 }, { 63, 2 } } },
    { "as many as are chosen, and one more",
      3,
      12,
      64,
      KV_F16,
      32,
      false,
      { { 62, 3 }, { 63, 1 } } },
    { "dims that are no fours, heads behind a step",
      67,
      6,
      5,
      KV_BF16,
      8,
      false,
      { { 0, 9 }, { 130, 1 } } },
    { "dims behind a step, odd numbers", 5, 33, 7, KV_F32, 16, false, { { 127, 2 }, { 64, 1 } } },
    { "real heads, decode", 64, 128, 100, KV_BF16, 16, false, { { 250, 1 }, { 99, 2 } } },
    { "int8", 4, 36, 9, KV_I8, 16, false, { { 70, 2 }, { 8, 2 } } },
    { "int4", 4, 64, 9, KV_I4, 16, false, { { 70, 2 }, { 8, 2 } } },
    { "fp8", 4, 40, 9, KV_F8, 16, false, { { 70, 2 }, { 8, 2 } } },
    { "equal scores", 2, 16, 9, KV_F32, 16, true, { { 120, 5 }, { 40, 2 } } },
    { "all scores are equal", 1, 16, 20, KV_F32, 8, true, { { 88, 2 }, { 19, 2 } } },
    { "two parts, equal scores",
      2,
      8,
      300,
      KV_F32,
      16,
      true,
      { { DEV_TOPK_PART + 3000, 1 }, { 500, 1 } } },
    { "the last part has one key",
      1,
      8,
      70,
      KV_F32,
      32,
      false,
      { { DEV_TOPK_PART, 2 }, { DEV_TOPK_PART - 1, 1 } } },
};
/* More than is left in one turn: parts of parts. */
static const choice long_choice = {
    "three turns", 1,  4,    8000,
    KV_F16,        32, true, { { 3 * DEV_TOPK_PART, 1 }, { 2 * DEV_TOPK_PART + 5, 1 } }
};

enum { SEQS = 2 };

typedef struct {
    rig r;
    int64_t T, longest, per_seq;
    size_t stride, bytes;
    uint8_t *cache;
    int32_t *tables;
    attn_seq seqs[SEQS];
} paged;

/* Keys of both sequences in blocks in an order of their own, and what a step adds to each. */
static void paged_open(paged *o, const choice *c)
{
    uint64_t seed = 7;
    *o = (paged){ .T = 0 };
    rig_open(&o->r);
    for (int i = 0; i < SEQS; i++) {
        const int64_t end = c->seq[i].pos0 + c->seq[i].n;
        o->longest = end > o->longest ? end : o->longest;
    }
    const size_t row = attn_kv_row_bytes(c->dtype, c->D);
    o->per_seq = lq_ceil_div(o->longest, c->block_size);
    o->stride = lq_round_up(row * (size_t)c->block_size, 64) + 64;
    o->bytes = o->stride * (size_t)(SEQS * o->per_seq);
    o->cache = lq_push(&o->r.a, o->bytes);
    o->tables = lq_push(&o->r.a, (size_t)(SEQS * o->per_seq) * 4);
    memset(o->cache, 0xff, o->bytes); /* NaN where nothing is cached */
    float *k = lq_push(&o->r.a, (size_t)c->D * 4);
    for (int i = 0; i < SEQS; i++) {
        int32_t *table = o->tables + i * o->per_seq;
        o->seqs[i] = (attn_seq){ o->T, c->seq[i].n, c->seq[i].pos0, table };
        o->T += c->seq[i].n;
        for (int64_t b = 0; b < o->per_seq; b++)
            table[b] = (int32_t)(SEQS * (o->per_seq - 1 - b) + i);
        for (int64_t p = 0; p < c->seq[i].pos0 + c->seq[i].n; p++) {
            fill_row(k, c->D, &seed);
            for (int64_t d = 0; d < c->D && c->even; d++)
                k[d] = d == 0 && c->H > 1 ? rintf(k[d]) : 0;
            attn_kv_write(o->cache + (size_t)table[p / c->block_size] * o->stride,
                          (int)(p % c->block_size), c->block_size, k, 1, c->D, c->dtype);
        }
    }
}

static dev_key_row *key_rows(paged *o)
{
    dev_key_row *rows = lq_push(&o->r.a, (size_t)o->T * sizeof *rows), *to = rows;
    for (int i = 0; i < SEQS; i++)
        for (int64_t t = 0; t < o->seqs[i].n_rows; t++)
            *to++ = (dev_key_row){ (int32_t)(o->seqs[i].row0 + t), (int32_t)(o->seqs[i].pos0 + t),
                                   (int32_t)(i * o->per_seq) };
    return rows;
}

/* more: positions that the scratch has room for beyond the longest sequence. */
static void one_choice(const choice *c, int64_t more)
{
    paged o;
    uint64_t seed = 5;
    paged_open(&o, c);
    rig *r = &o.r;
    const int64_t nq = o.T * c->H * c->D, nw = o.T * c->H, n = o.T * c->topk;
    float *q = lq_push(&r->a, (size_t)nq * 4), *w = lq_push(&r->a, (size_t)nw * 4),
          *by = lq_push(&r->a, (size_t)nw * 4);
    int32_t *want = lq_push(&r->a, (size_t)n * 4), *got = lq_push(&r->a, (size_t)n * 4);
    fill_row(q, nq, &seed);
    fill_row(w, nw, &seed);
    for (int64_t i = 0; i < nq && c->even; i++)
        q[i] = 1;
    for (int64_t i = 0; i < nw; i++) {
        if (c->even) w[i] = 1;
        by[i] = w[i] * 0.125f;
    }
    memset(want, 0xff, (size_t)n * 4);
    lq_arena scratch;
    lq_arena_init(&scratch, topk_scratch_bytes(c->H, c->D, c->topk, 1), NULL);
    const topk_args twin = { .q = q,
                             .weight = by,
                             .k = o.cache,
                             .block_stride = o.stride,
                             .block_size = c->block_size,
                             .dtype = c->dtype,
                             .H = c->H,
                             .D = c->D,
                             .scale = 0.3f,
                             .topk = c->topk,
                             .seqs = o.seqs,
                             .n_seqs = SEQS,
                             .chosen = want };
    topk_run(&twin, &scratch, NULL);
    lq_arena_free(&scratch);
    memset(got, 0xff, (size_t)n * 4);
    const int64_t longest = o.longest + more;
    const dev_topk_args a = { .q = put(r, q, (size_t)nq * 4),
                              .weight = put(r, w, (size_t)nw * 4),
                              .weight_scale = 0.125f,
                              .k = put(r, o.cache, o.bytes),
                              .block_stride = o.stride,
                              .block_size = c->block_size,
                              .dtype = c->dtype,
                              .H = c->H,
                              .D = c->D,
                              .scale = 0.3f,
                              .topk = c->topk,
                              .longest = longest,
                              .rows = put(r, key_rows(&o), (size_t)o.T * sizeof *a.rows),
                              .n_rows = o.T,
                              .tables = put(r, o.tables, (size_t)(SEQS * o.per_seq) * 4),
                              .scratch = put(r, NULL, dev_topk_scratch(longest, c->topk, o.T)),
                              .chosen = put(r, got, (size_t)n * 4) };
    ops->topk(&r->d, &a);
    if (get(r, got, a.chosen, (size_t)n * 4, c->why))
        for (int64_t t = 0; t < o.T; t++)
            CHECK(memcmp(got + t * c->topk, want + t * c->topk, (size_t)c->topk * 4) == 0,
                  "%s, room for %d: row %d chose others", c->why, (int)longest, (int)t);
    rig_close(r);
}

TEST(the_device_chooses_the_keys_that_the_cpu_does)
{
    for (size_t i = 0; i < LQ_COUNT(choices); i++)
        one_choice(&choices[i], 0);
    one_choice(&choices[2], 1000);
    one_choice(&choices[9], DEV_TOPK_PART + 1);
    if (check_hard()) one_choice(&long_choice, 0);
}

/* Of a sequence of n positions whose rows come in one step, in blocks of BLOCK: keys of the groups that they end, and the
 * lists of rows that have chosen all groups, the last one first. */
static void one_grouping(const char *why, kv_dtype dtype, int64_t D, int64_t every, int64_t n)
{
    enum { BLOCK = 16 };
    rig r;
    uint64_t seed = 3;
    rig_open(&r);
    const size_t row = attn_kv_row_bytes(dtype, 2 * D), stride = lq_round_up(row * BLOCK, 64);
    const int64_t most = n / every, ld = most * every + every, blocks = lq_ceil_div(n, BLOCK);
    uint8_t *cache = lq_push(&r.a, stride * (size_t)blocks);
    int32_t *at[3], *chosen = lq_push(&r.a, (size_t)(n * most) * 4),
                    *list = lq_push(&r.a, (size_t)(n * ld) * 4);
    dev_key_row *rows = lq_push(&r.a, (size_t)n * sizeof *rows);
    float *x = lq_push(&r.a, (size_t)(n * 2 * D) * 4),
          *bias = lq_push(&r.a, (size_t)(every * D) * 4),
          *want = lq_push(&r.a, (size_t)(n * D) * 4);
    for (int i = 0; i < 3; i++)
        at[i] = lq_push(&r.a, (size_t)n * 4);
    fill_row(x, n * 2 * D, &seed);
    fill_row(bias, every * D, &seed);
    fill_row(want, n * D, &seed);
    const float *before = put(&r, want, (size_t)(n * D) * 4);
    for (int64_t t = 0; t < n; t++) {
        const int64_t there = (t + 1) / every;
        uint8_t *block = cache + (size_t)(blocks - 1 - t / BLOCK) * stride;
        at[0][t] = (int32_t)(blocks - 1 - t / BLOCK);
        at[1][t] = (int32_t)(t % BLOCK);
        at[2][t] = (t + 1) % every ? -1 : (int32_t)(t % BLOCK / every);
        rows[t] = (dev_key_row){ (int32_t)t, (int32_t)t, 0 };
        for (int64_t i = 0; i < there; i++)
            chosen[t * most + i] = (int32_t)(there - 1 - i);
        attn_kv_write(block, at[1][t], BLOCK, x + t * 2 * D, 1, 2 * D, dtype);
        k_get()->attn_v(x + t * 2 * D, block + (size_t)at[1][t] * row, 1, 2 * D, dtype);
        for (int64_t d = 0; d < D && at[2][t] >= 0; d++) {
            double sum = 0, key = 0;
            for (int64_t i = 0; i < every; i++) {
                const float *of = x + (t + 1 - every + i) * 2 * D;
                const double e = exp((double)of[D + d] + (double)bias[i * D + d]);
                sum += e;
                key += e * (double)of[d];
            }
            want[t * D + d] = (float)(key / sum);
        }
    }
    const dev_group_keys_args keys = { .keys = (float *)(uintptr_t)before,
                                       .k = put(&r, cache, stride * (size_t)blocks),
                                       .block_stride = stride,
                                       .dtype = dtype,
                                       .bias = put(&r, bias, (size_t)(every * D) * 4),
                                       .block = put(&r, at[0], (size_t)n * 4),
                                       .slot = put(&r, at[1], (size_t)n * 4),
                                       .group = put(&r, at[2], (size_t)n * 4),
                                       .T = n,
                                       .D = D,
                                       .every = every };
    const dev_group_list_args lists = { .list = put(&r, NULL, (size_t)(n * ld) * 4),
                                        .chosen = put(&r, chosen, (size_t)(n * most) * 4),
                                        .rows = put(&r, rows, (size_t)n * sizeof *rows),
                                        .n_rows = n,
                                        .ld = ld,
                                        .every = every,
                                        .most = most };
    ops->group_keys(&r.d, &keys);
    ops->group_list(&r.d, &lists);
    float *got = lq_push(&r.a, (size_t)(n * D) * 4);
    if (get(&r, got, keys.keys, (size_t)(n * D) * 4, why))
        for (int64_t i = 0; i < n * D; i++)
            CHECK(fabsf(got[i] - want[i]) <= 1e-5f * (1 + fabsf(want[i])), "%s: %g, not %g", why,
                  (double)got[i], (double)want[i]);
    if (get(&r, list, lists.list, (size_t)(n * ld) * 4, why))
        for (int64_t t = 0; t < n; t++) {
            const int64_t there = (t + 1) / every;
            for (int64_t i = 0; i < t + 1; i++) {
                const int64_t pos =
                    i < there * every ? (there - 1 - i / every) * every + i % every : i;
                CHECK(list[t * ld + i] == pos, "%s: row %d", why, (int)t);
            }
        }
    rig_close(&r);
}

TEST(groups_have_a_key_and_their_positions)
{
    one_grouping("f32, dims that are no fours", KV_F32, 6, 4, 39);
    one_grouping("bf16", KV_BF16, 160, 2, 33);
    one_grouping("f16, a group of a block", KV_F16, 8, 16, 32);
    one_grouping("int8", KV_I8, 8, 4, 23);
    one_grouping("fp8", KV_F8, 128, 4, 20);
}

/* Of the cache and rows of a choice, whose topk is of blocks. */
typedef struct {
    choice c;
    int64_t block, local;
} block_choice;

static const block_choice block_choices[] = {
    { { "fewer blocks than chosen", 2, 16, 4, KV_F32, 16, false, { { 0, 9 }, { 11, 2 } } }, 3, 1 },
    { { "as many as are chosen, and one more", 2, 6, 2, KV_BF16, 8, false, { { 4, 3 }, { 7, 2 } } },
      3,
      1 },
    { { "blocks of 128, a row over an end",
        4,
        128,
        3,
        KV_BF16,
        16,
        false,
        { { 638, 3 }, { 383, 2 } } },
      128,
      1 },
    { { "equal scores, two blocks near", 3, 16, 5, KV_F32, 16, true, { { 200, 3 }, { 50, 1 } } },
      7,
      2 },
    { { "more heads than at a time", 19, 12, 3, KV_F16, 32, false, { { 300, 2 }, { 95, 1 } } },
      20,
      1 },
    { { "blocks of one, none near", 1, 8, 6, KV_F32, 8, false, { { 1500, 1 }, { 5, 2 } } }, 1, 0 },
    { { "blocks as large as a tile, int8", 2, 36, 2, KV_I8, 16, false, { { 700, 1 }, { 511, 2 } } },
      256,
      1 },
};

static void one_block_choice(const block_choice *b, int64_t more)
{
    const choice *c = &b->c;
    paged o;
    uint64_t seed = 5;
    paged_open(&o, c);
    rig *r = &o.r;
    const int64_t nq = o.T * c->H * c->D, each = c->topk * b->block, lists = o.T * c->H,
                  longest = o.longest + more;
    const size_t bytes = (size_t)(lists * each) * 4;
    float *q = lq_push(&r->a, (size_t)nq * 4);
    int32_t *want = lq_push(&r->a, bytes), *got = lq_push(&r->a, bytes),
            *n_want = lq_push(&r->a, (size_t)lists * 4), *n_got = lq_push(&r->a, (size_t)lists * 4);
    fill_row(q, nq, &seed);
    for (int64_t i = 0; i < nq && c->even; i++)
        q[i] = 1;
    memset(want, 0xff, bytes);
    memset(got, 0xff, bytes);
    lq_arena scratch;
    lq_arena_init(&scratch, topk_blocks_scratch_bytes(c->H, c->D, b->block, o.longest, 1), NULL);
    const topk_blocks_args twin = { .q = q,
                                    .k = o.cache,
                                    .block_stride = o.stride,
                                    .block_size = c->block_size,
                                    .dtype = c->dtype,
                                    .H = c->H,
                                    .D = c->D,
                                    .block = b->block,
                                    .topk = c->topk,
                                    .local = b->local,
                                    .seqs = o.seqs,
                                    .n_seqs = SEQS,
                                    .chosen = want,
                                    .n_chosen = n_want };
    topk_blocks_run(&twin, &scratch, NULL);
    lq_arena_free(&scratch);
    const dev_topk_blocks_args a = {
        .q = put(r, q, (size_t)nq * 4),
        .k = put(r, o.cache, o.bytes),
        .block_stride = o.stride,
        .block_size = c->block_size,
        .dtype = c->dtype,
        .H = c->H,
        .D = c->D,
        .block = b->block,
        .topk = c->topk,
        .local = b->local,
        .longest = longest,
        .rows = put(r, key_rows(&o), (size_t)o.T * sizeof *a.rows),
        .n_rows = o.T,
        .tables = put(r, o.tables, (size_t)(SEQS * o.per_seq) * 4),
        .scratch = put(r, NULL, dev_topk_blocks_scratch(longest, b->block, c->H, o.T)),
        .chosen = put(r, got, bytes),
        .n_chosen = put(r, NULL, (size_t)lists * 4)
    };
    ops->topk_blocks(&r->d, &a);
    if (get(r, got, a.chosen, bytes, c->why) &&
        get(r, n_got, a.n_chosen, (size_t)lists * 4, c->why))
        for (int64_t l = 0; l < lists; l++)
            CHECK(n_got[l] == n_want[l] &&
                      memcmp(got + l * each, want + l * each, (size_t)n_want[l] * 4) == 0,
                  "%s, room for %d: list %d of %d positions, not %d, or others", c->why,
                  (int)longest, (int)l, (int)n_got[l], (int)n_want[l]);
    rig_close(r);
}

TEST(the_device_chooses_the_blocks_that_the_cpu_does)
{
    for (size_t i = 0; i < LQ_COUNT(block_choices); i++) {
        one_block_choice(&block_choices[i], 0);
        one_block_choice(&block_choices[i], 777);
    }
}

/* A row's scratch is more than its scores, and a wave's no more than DEV_TOPK_BYTES unless a row's is. */
TEST(scratch_of_a_choice_is_bounded)
{
    const int64_t lengths[] = {
        1, 5000, DEV_TOPK_PART, DEV_TOPK_PART + 1, 131072, 1 << 20, 1 << 25
    };
    for (size_t i = 0; i < LQ_COUNT(lengths); i++) {
        int64_t n[2];
        const size_t row = (size_t)dev_topk_row(n, lengths[i], 2048) * 4,
                     all = dev_topk_scratch(lengths[i], 2048, 4096);
        CHECK(row >= (size_t)lengths[i] * 4, "%d keys: a row of %zu bytes", (int)lengths[i], row);
        CHECK(all <= DEV_TOPK_BYTES || all == row, "%d keys: %zu bytes", (int)lengths[i], all);
        CHECK(n[0] == 0 || n[0] >= 2048, "%d keys: %d left", (int)lengths[i], (int)n[0]);
    }
    CHECK(dev_topk_scratch(100, 10, 3) == 3 * 400, "rows of 100 keys");
    CHECK(dev_topk_blocks_scratch(129, 128, 4, 5) == 5 * 4 * 2 * 4, "rows of two blocks");
    CHECK(dev_topk_blocks_scratch(1 << 20, 128, 4, 1 << 16) == DEV_TOPK_BYTES, "many rows");
}

typedef struct {
    const char *why;
    int64_t H, Hkv, D, Dv, most;
    kv_dtype dtype;
    bool latent, by_head, counted;
} listed;

static const listed lists[] = {
    { "latents in f32", 5, 1, 20, 16, 40, KV_F32, true, false, false },
    { "latents, a list over a split", 3, 1, 40, 32, 600, KV_BF16, true, false, false },
    { "latents, two passes of heads", 67, 1, 24, 16, 33, KV_F16, true, false, false },
    { "latents, int8", 18, 1, 32, 24, 45, KV_I8, true, false, false },
    { "latents, fp8, as many as they are told", 4, 1, 72, 64, 70, KV_F8, true, false, true },
    { "latents, int4", 2, 1, 64, 48, 31, KV_I4, true, false, false },
    { "heads, a list for each kv head", 8, 2, 16, 24, 50, KV_F16, false, true, true },
    { "heads in f32, a list for each kv head", 6, 3, 12, 12, 530, KV_F32, false, true, true },
    { "heads of 128", 32, 2, 128, 128, 40, KV_BF16, false, true, true },
};

enum { POSITIONS = 700, LISTED_ROWS = 4, BLOCK = 16 };

typedef struct {
    rig r;
    const listed *c;
    int64_t n_lists;
    size_t kb, stride, bytes;
    uint8_t *cache;
    int32_t table[POSITIONS / BLOCK + 1];
    int32_t *keys, *n_keys; /* [LISTED_ROWS, lists, most] */
    float *q;
    double k_most, v_most; /* of an element */
} list_rig;

static void list_open(list_rig *o, const listed *c)
{
    uint64_t seed = 3;
    *o = (list_rig){ .c = c, .n_lists = c->by_head ? c->Hkv : 1 };
    rig *r = &o->r;
    rig_open(r);
    const int64_t blocks = POSITIONS / BLOCK + 1;
    o->kb = attn_kv_row_bytes(c->dtype, c->D) * (size_t)(c->Hkv * BLOCK);
    o->stride =
        o->kb + (c->latent ? 0 : attn_kv_row_bytes(c->dtype, c->Dv) * (size_t)(c->Hkv * BLOCK));
    o->bytes = o->stride * (size_t)blocks;
    o->cache = lq_push(&r->a, o->bytes);
    o->keys = lq_push(&r->a, (size_t)(LISTED_ROWS * o->n_lists * c->most) * 4);
    o->n_keys = lq_push(&r->a, (size_t)(LISTED_ROWS * o->n_lists) * 4);
    o->q = floats(r, LISTED_ROWS * c->H * c->D, 1);
    float *x = lq_push(&r->a, (size_t)(c->Hkv * (c->D + c->Dv)) * 4);
    for (int64_t b = 0; b < blocks; b++)
        o->table[b] = (int32_t)(blocks - 1 - b);
    memset(o->cache, 0xff, o->bytes);
    for (int p = 0; p < POSITIONS; p++) {
        uint8_t *in = o->cache + (size_t)o->table[p / BLOCK] * o->stride;
        fill_row(x, c->Hkv * (c->D + c->Dv), &seed);
        for (int64_t j = 0; j < c->Hkv * (c->D + c->Dv); j++) {
            double *most = c->latent || j < c->Hkv * c->D ? &o->k_most : &o->v_most;
            *most = fmax(*most, fabs((double)x[j]));
        }
        if (c->latent) o->v_most = o->k_most;
        attn_kv_write(in, p % BLOCK, BLOCK, x, c->Hkv, c->D, c->dtype);
        if (!c->latent)
            attn_kv_write(in + o->kb, p % BLOCK, BLOCK, x + c->Hkv * c->D, c->Hkv, c->Dv, c->dtype);
    }
    for (int64_t l = 0; l < LISTED_ROWS * o->n_lists; l++) {
        o->n_keys[l] = (int32_t)(c->counted ? 1 + l * 17 % c->most : c->most);
        for (int64_t i = 0; i < c->most; i++)
            o->keys[l * c->most + i] = (int32_t)((l * 13 + i * (POSITIONS / c->most)) % POSITIONS);
    }
}

/* Rows at positions from most - 1 on, so that each sees a whole list, by one call of the device. */
static bool on_device(list_rig *o, float *got, dev_attn_how how)
{
    const listed *c = o->c;
    rig *r = &o->r;
    const dev few = { .n_sm = 1 << 20 };
    const int64_t split = dev_attn_split(&few, how, 2), ow = c->H * (c->latent ? c->D : c->Dv);
    dev_attn_chunk chunks[LISTED_ROWS];
    int32_t chunk_of[LISTED_ROWS * 4];
    int64_t n_chunks = 0, n_slots = 0;
    for (int i = 0; i < LISTED_ROWS; i++) {
        const attn_seq one = { i, 1, c->most - 1, NULL };
        dev_attn_plan(how, chunks, &n_chunks, chunk_of, &n_slots, &one, 0, split, c->H, c->Hkv, 0,
                      0);
    }
    const size_t nq = (size_t)(LISTED_ROWS * c->H * c->D) * 4, no = (size_t)(LISTED_ROWS * ow) * 4;
    const size_t n_lists = (size_t)(LISTED_ROWS * o->n_lists);
    uint8_t *on = put(r, o->cache, o->bytes);
    float *q = put(r, o->q, nq);
    dev_attn_args a = { .how = how,
                        .split = split,
                        .q = q,
                        .out = c->latent ? q : put(r, NULL, no),
                        .k = on,
                        .v = on + o->kb,
                        .chunks = put(r, chunks, (size_t)n_chunks * sizeof *chunks),
                        .chunk_of = put(r, chunk_of, (size_t)n_slots * 4),
                        .tables = put(r, o->table, sizeof o->table),
                        .ldq = c->H * c->D,
                        .ldo = ow,
                        .ho = c->latent ? c->D : c->Dv,
                        .n_chunks = n_chunks,
                        .n_slots = n_slots,
                        .H = c->H,
                        .Hkv = c->Hkv,
                        .D = c->D,
                        .Dv = c->Dv,
                        .block_stride = o->stride,
                        .block_size = BLOCK,
                        .dtype = c->dtype,
                        .scale = 0.3f,
                        .latent = c->latent,
                        .keys = put(r, o->keys, n_lists * (size_t)c->most * 4),
                        .n_keys = c->counted ? put(r, o->n_keys, n_lists * 4) : NULL,
                        .ld_keys = c->most,
                        .keys_by_head = c->by_head };
    a.scratch = put(r, NULL, ops->attn_scratch(&a));
    ops->attn(&r->d, &a);
    return get(r, got, a.out, no, c->why);
}

/* By the CPU, in f32; of latents Dv is D. */
static void on_cpu(list_rig *o, float *out)
{
    const listed *c = o->c;
    const int64_t Dv = c->latent ? c->D : c->Dv;
    lq_arena scratch;
    const attn_seq seq = { .n_rows = LISTED_ROWS, .pos0 = c->most - 1, .table = o->table };
    const attn_args a = { .q = o->q,
                          .ldq = c->H * c->D,
                          .out = out,
                          .ldo = c->H * Dv,
                          .k = o->cache,
                          .v = c->latent ? o->cache : o->cache + o->kb,
                          .block_stride = o->stride,
                          .block_size = BLOCK,
                          .dtype = c->dtype,
                          .H = c->H,
                          .Hkv = c->Hkv,
                          .D = c->D,
                          .Dv = Dv,
                          .scale = 0.3f,
                          .keys = o->keys,
                          .ld_keys = c->most,
                          .n_keys = c->counted ? o->n_keys : NULL,
                          .keys_by_head = c->by_head,
                          .seqs = &seq,
                          .n_seqs = 1 };
    lq_arena_init(&scratch, attn_scratch_bytes(c->H, c->D > Dv ? c->D : Dv, 1), NULL);
    attn_run(&a, &scratch, NULL);
    lq_arena_free(&scratch);
}

/* What rounding q and the weights to the cache's type, of codes to bf16, may do to an output (kernels/device.h). */
static double units_bound(const list_rig *o, int64_t row, int64_t h)
{
    const listed *c = o->c;
    const double u = c->dtype == KV_F16 ? 0x1p-11 : 0x1p-8, n = (double)c->most;
    double sum = 0;
    for (int64_t d = 0; d < c->D; d++)
        sum += fabs((double)o->q[(row * c->H + h) * c->D + d]) * o->k_most;
    const double off = (u + (double)(c->D + 8) * 0x1p-23) * (double)0.3f * sum;
    return (expm1(2 * off) + u + (n + 64) * 0x1p-23) * o->v_most + n * 0x1p-24 * o->v_most;
}

TEST(attention_to_lists_is_the_cpus)
{
    for (size_t i = 0; i < LQ_COUNT(lists); i++) {
        const listed *c = &lists[i];
        list_rig o;
        list_open(&o, c);
        const int64_t W = c->latent ? c->D : c->Dv, n = LISTED_ROWS * c->H * W;
        float *want = floats(&o.r, n, 2), *got = floats(&o.r, n, 3), *units = floats(&o.r, n, 4);
        on_cpu(&o, want);
        const bool exact = on_device(&o, got, DEV_ATTN_EXACT),
                   by_units = dev_attn_units(c->dtype, c->D, c->Dv, c->latent) &&
                              on_device(&o, units, DEV_ATTN_LATENT);
        double worst = 0;
        for (int64_t h = 0; h < LISTED_ROWS * c->H; h++)
            for (int64_t d = 0; d < c->Dv; d++) {
                const double w = (double)want[h * W + d];
                CHECK(!exact || (double)got[h * W + d] == w, "%s: head %d, %d: %g, not %g", c->why,
                      (int)h, (int)d, (double)got[h * W + d], w);
                if (!by_units) continue;
                const double off = fabs((double)units[h * W + d] - w);
                worst = fmax(worst, off / units_bound(&o, h / c->H, h % c->H));
            }
        CHECK(worst <= 1, "%s: the units are off by %g of the bound", c->why, worst);
        if (getenv("SHOW")) printf("%s: %g of the bound\n", c->why, worst);
        rig_close(&o.r);
    }
}

int main(int argc, char **argv)
{
    if (!rig_table()) return 0;
    RUN(the_device_chooses_the_keys_that_the_cpu_does);
    RUN(the_device_chooses_the_blocks_that_the_cpu_does);
    RUN(groups_have_a_key_and_their_positions);
    RUN(scratch_of_a_choice_is_bounded);
    RUN(attention_to_lists_is_the_cpus);
    return check_end();
}
