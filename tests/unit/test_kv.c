/* tests/unit/test_kv.c - the paged KV cache: counts, sharing, eviction, truncation; a random test. */
#include "runtime/model/kv.h"
#include "tests/support/check.h"
#include "tests/support/kv_model.h"

#include <stdlib.h>

static kv_cache *open_cache(int64_t n_blocks, bool prefix)
{
    kv_cache *kv = NULL;
    lq_err err;
    CHECK(!model_cache(&kv, n_blocks, prefix, &err), "%s", err.msg);
    return kv;
}

static void count_ids(int32_t *ids, int64_t n, int32_t first)
{
    for (int64_t i = 0; i < n; i++)
        ids[i] = first + (int32_t)i;
}

TEST(wrong_options_are_refused)
{
    static const struct {
        const char *why;
        int64_t n_blocks;
        int block_size;
        lq_status want;
    } t[] = {
        { "no block", 0, 16, LQ_EVALUE },
        { "negative", -1, 16, LQ_EVALUE },
        { "too many to number", INT64_MAX, 16, LQ_EVALUE },
        { "odd block size", 4, 12, LQ_EVALUE },
        { "no block size", 4, 0, LQ_EVALUE },
    };
    arch_config c = model_config();
    for (size_t i = 0; i < LQ_COUNT(t); i++) {
        kv_opts o = { .n_blocks = t[i].n_blocks, .block_size = t[i].block_size };
        kv_cache *kv;
        lq_err err = { "" };
        lq_status s = kv_open(&kv, &c, &o, &err);
        CHECK(s == t[i].want && err.msg[0] && !kv, "%s: %s", t[i].why, lq_status_text(s));
    }
    c = (arch_config){ .layers = 1 << 20, .kv_heads = 1 << 16, .head_dim = 1 << 16, .max_pos = 1 };
    c.layer = calloc((size_t)c.layers, sizeof *c.layer);
    kv_opts o = { .n_blocks = INT32_MAX / 32, .block_size = 32 };
    kv_cache *kv;
    CHECK(kv_open(&kv, &c, &o, NULL) == LQ_ENOMEM, "a size that overflows");
    free(c.layer);
}

TEST(the_pool_is_counted_and_full_means_busy)
{
    kv_cache *kv = open_cache(4, false);
    kv_seq a, b;
    kv_seq_init(&a);
    kv_seq_init(&b);
    lq_err err;
    CHECK(!kv_reserve(kv, &a, 17, &err) && a.n_blocks == 3 && kv_free_blocks(kv) == 1, "3 blocks");
    CHECK(kv_reserve(kv, &b, 9, &err) == LQ_EBUSY, "2 more do not fit");
    CHECK(b.n_blocks == 0 && kv_free_blocks(kv) == 1, "a refusal changes nothing");
    CHECK(kv_reserve(kv, &b, 33, &err) == LQ_EBUSY, "more than there are");
    CHECK(!kv_reserve(kv, &b, 8, &err) && kv_free_blocks(kv) == 0, "the last");
    CHECK(!kv_reserve(kv, &a, 24, &err), "room within the blocks held");
    kv_truncate(kv, &a, 8);
    CHECK(a.n_blocks == 1 && kv_free_blocks(kv) == 2, "truncation gives blocks back");
    kv_seq_free(kv, &a);
    kv_seq_free(kv, &b);
    CHECK(kv_free_blocks(kv) == 4, "nothing leaks");
    kv_close(kv);
}

TEST(a_prefix_is_found_up_to_the_last_full_block) /* T-44 */
{
    kv_cache *kv = open_cache(16, true);
    int32_t ids[40], other[40];
    count_ids(ids, 40, 5);
    kv_seq a, b;
    kv_seq_init(&a);
    CHECK(kv_match_prefix(kv, &a, ids, 40, NULL) == 0, "nothing yet");
    CHECK(!kv_reserve(kv, &a, 33, NULL), "reserve");
    kv_register(kv, &a, ids, 33, NULL);
    CHECK(a.registered == 4, "4 full blocks");

    static const struct {
        const char *why;
        int64_t n, differs_at;
        const char *salt;
        int64_t want;
        uint64_t adapter;
    } t[] = {
        { "all of it and more", 40, -1, NULL, 32, 0 },
        { "one token must remain", 32, -1, NULL, 24, 0 },
        { "just above a block", 33, -1, NULL, 32, 0 },
        { "too short", 8, -1, NULL, 0, 0 },
        { "another first token", 40, 0, NULL, 0, 0 },
        { "a difference in the third block", 40, 20, NULL, 16, 0 },
        { "another salt", 40, -1, "tenant", 0, 0 },
        { "another adapter", 40, -1, NULL, 0, 7 },
        { "no token", 0, -1, NULL, 0, 0 },
    };
    for (size_t i = 0; i < LQ_COUNT(t); i++) {
        memcpy(other, ids, sizeof ids);
        if (t[i].differs_at >= 0) other[t[i].differs_at]++;
        kv_seq_init(&b);
        b.adapter = t[i].adapter;
        int64_t got = kv_match_prefix(kv, &b, other, t[i].n, t[i].salt);
        CHECK(got == t[i].want && b.n_blocks == got / BS && b.tokens == got, "%s: %lld", t[i].why,
              (long long)got);
        for (int64_t j = 0; j < b.n_blocks; j++)
            CHECK(b.table[j] == a.table[j], "%s: block %d", t[i].why, (int)j);
        kv_seq_free(kv, &b);
        CHECK(b.adapter == t[i].adapter, "%s: it is the caller's", t[i].why);
    }

    kv_seq_free(kv, &a);
    CHECK(kv_free_blocks(kv) == 16 && kv_cached_blocks(kv) == 4, "cached blocks count as free");
    kv_seq_init(&b);
    CHECK(kv_match_prefix(kv, &b, ids, 40, NULL) == 32, "found after its owner has gone");
    CHECK(kv_free_blocks(kv) == 12 && kv_cached_blocks(kv) == 0, "held again");
    kv_seq_free(kv, &b);
    kv_close(kv);
}

TEST(the_oldest_cached_block_is_evicted_and_the_end_of_a_prefix_first) /* T-24 */
{
    kv_cache *kv = open_cache(6, true);
    int32_t old[24], young[24];
    count_ids(old, 24, 100);
    count_ids(young, 24, 200);
    kv_seq s;
    for (int i = 0; i < 2; i++) {
        kv_seq_init(&s);
        CHECK(!kv_reserve(kv, &s, 24, NULL), "reserve");
        kv_register(kv, &s, i ? young : old, 24, NULL);
        kv_seq_free(kv, &s);
    }
    CHECK(kv_cached_blocks(kv) == 6, "all blocks are cached");
    kv_seq big;
    kv_seq_init(&big);
    CHECK(!kv_reserve(kv, &big, 2 * BS, NULL), "two are evicted");
    kv_seq_init(&s);
    CHECK(kv_match_prefix(kv, &s, old, 24, NULL) == 8, "the old prefix has lost its end");
    kv_seq_free(kv, &s);
    kv_seq_init(&s);
    CHECK(kv_match_prefix(kv, &s, young, 24, NULL) == 16, "the young one is whole");
    kv_seq_free(kv, &s);
    kv_seq_free(kv, &big);
    kv_close(kv);
}

TEST(equal_blocks_become_one_and_a_lost_parent_hides_its_children)
{
    kv_cache *kv = open_cache(8, true);
    int32_t ids[24];
    count_ids(ids, 24, 1);
    kv_seq a, b;
    kv_seq_init(&a);
    kv_seq_init(&b);
    CHECK(!kv_reserve(kv, &a, 24, NULL) && !kv_reserve(kv, &b, 24, NULL), "reserve");
    kv_register(kv, &a, ids, 24, NULL);
    kv_register(kv, &b, ids, 16, NULL);
    CHECK(b.table[0] == a.table[0] && b.table[1] == a.table[1] && b.table[2] != a.table[2],
          "two blocks are shared, the third is not full yet");
    CHECK(kv_free_blocks(kv) == 4, "4 held: %d", (int)kv_free_blocks(kv));
    kv_register(kv, &b, ids, 24, NULL);
    CHECK(kv_free_blocks(kv) == 5, "3 held");
    kv_seq_free(kv, &a);
    CHECK(kv_cached_blocks(kv) == 0 && kv_free_blocks(kv) == 5, "b still holds them");
    kv_seq_free(kv, &b);
    kv_close(kv);
}

static void same_for_all(uint64_t out[2], const void *data, size_t n)
{
    (void)data;
    (void)n;
    out[0] = out[1] = 42;
}

TEST(blocks_of_equal_hashes_are_told_apart_by_tokens_and_parents) /* T-42 */
{
    const arch_config c = model_config();
    const kv_opts o = { .n_blocks = 16,
                        .block_size = BS,
                        .dtype = KV_F32,
                        .prefix_cache = true,
                        .hash = same_for_all };
    kv_cache *kv;
    CHECK(!kv_open(&kv, &c, &o, NULL), "open");
    if (!kv) return;
    enum { N = 2 * BS + 1 };
    static const struct {
        const char *why;
        int32_t first, second; /* every id of the block */
        int64_t found;
    } t[] = {
        { "the first one", 1, 2, 0 },
        { "other tokens", 3, 4, 0 },
        { "the first again", 1, 2, 2 * BS },
        { "the other again", 3, 4, 2 * BS },
        { "its own end behind a block that is shared", 1, 5, BS },
        { "a block that follows another one elsewhere", 3, 2, BS },
        { "nothing but a block that follows others", 2, 4, 0 },
        { "that one, which two have now", 3, 2, 2 * BS },
    };
    for (size_t i = 0; i < LQ_COUNT(t); i++) {
        int32_t ids[N];
        kv_seq s;
        kv_seq_init(&s);
        for (int k = 0; k < N; k++)
            ids[k] = k < BS ? t[i].first : t[i].second;
        const int64_t got = kv_match_prefix(kv, &s, ids, N, NULL);
        CHECK(got == t[i].found, "%s: %lld tokens", t[i].why, (long long)got);
        for (int64_t p = 0; p < got; p++)
            CHECK(*cell(kv, &s, p) == ids[p], "%s: position %lld", t[i].why, (long long)p);
        CHECK(!kv_reserve(kv, &s, N, NULL), "%s: reserve", t[i].why);
        for (int64_t p = got; p < N; p++)
            *cell(kv, &s, p) = (uint8_t)ids[p];
        kv_register(kv, &s, ids, N, NULL);
        kv_seq_free(kv, &s);
    }
    CHECK(kv_free_blocks(kv) == 16, "nothing leaks");
    kv_close(kv);
}

TEST(a_truncated_shared_block_is_copied_before_it_is_written)
{
    kv_cache *kv = open_cache(8, true);
    int32_t ids[17];
    count_ids(ids, 17, 1);
    kv_seq a, b;
    kv_seq_init(&a);
    kv_seq_init(&b);
    CHECK(!kv_reserve(kv, &a, 16, NULL), "reserve");
    for (int64_t p = 0; p < 16; p++)
        *cell(kv, &a, p) = (uint8_t)(p + 1);
    kv_register(kv, &a, ids, 16, NULL);
    CHECK(kv_match_prefix(kv, &b, ids, 17, NULL) == 16, "shared");
    kv_truncate(kv, &b, 11);
    CHECK(b.n_blocks == 2 && b.registered == 1, "inside the second block");
    CHECK(!kv_reserve(kv, &b, 12, NULL) && b.table[1] != a.table[1], "copied");
    CHECK(*cell(kv, &b, 10) == 11, "with its bytes");
    *cell(kv, &b, 11) = 99;
    CHECK(*cell(kv, &a, 11) == 12, "the other keeps its own");
    kv_seq_free(kv, &b);

    kv_truncate(kv, &a, 11); /* now held by a alone, but findable */
    int32_t mine = a.table[1];
    CHECK(!kv_reserve(kv, &a, 12, NULL) && a.table[1] == mine, "no copy is needed");
    kv_seq_init(&b);
    CHECK(kv_match_prefix(kv, &b, ids, 17, NULL) == 8, "what will be overwritten is not found");
    kv_seq_free(kv, &b);
    ids[12] = 77;
    CHECK(!kv_reserve(kv, &a, 16, NULL), "on");
    kv_register(kv, &a, ids, 16, NULL);
    CHECK(kv_match_prefix(kv, &b, ids, 17, NULL) == 16 && b.table[1] == mine, "found anew");
    kv_seq_free(kv, &b);
    kv_seq_free(kv, &a);
    CHECK(kv_free_blocks(kv) == 8, "nothing leaks");
    kv_close(kv);
}

TEST(forks_share_blocks_until_they_are_written)
{
    kv_cache *kv = open_cache(8, false);
    kv_seq a, b;
    kv_seq_init(&a);
    kv_seq_init(&b);
    CHECK(!kv_reserve(kv, &a, 12, NULL), "reserve");
    for (int64_t p = 0; p < 12; p++)
        *cell(kv, &a, p) = (uint8_t)(p + 1);
    CHECK(!kv_fork(kv, &b, &a, NULL) && b.tokens == 12 && kv_free_blocks(kv) == 6, "no block more");
    CHECK(!kv_reserve(kv, &b, 13, NULL) && b.table[0] == a.table[0] && b.table[1] != a.table[1] &&
              kv_free_blocks(kv) == 5,
          "the block that is written is copied");
    CHECK(*cell(kv, &b, 11) == 12, "with its bytes");
    int32_t last = a.table[1];
    *cell(kv, &b, 12) = 99;
    CHECK(!kv_reserve(kv, &a, 13, NULL) && a.table[1] == last, "who is left writes in place");
    *cell(kv, &a, 12) = 13;
    CHECK(*cell(kv, &b, 12) == 99 && *cell(kv, &a, 12) == 13, "each has its own");
    kv_seq_free(kv, &a);
    CHECK(*cell(kv, &b, 3) == 4 && kv_free_blocks(kv) == 6, "what is shared stays");
    kv_seq_free(kv, &b);
    CHECK(kv_free_blocks(kv) == 8, "nothing leaks");
    kv_close(kv);
}

TEST(keys_and_values_have_types_of_their_own)
{
    enum { BLOCKS = 3 };
    arch_layer layer[2] = { { 0 } };
    arch_config c = {
        .layers = 2, .kv_heads = 2, .head_dim = 32, .v_dim = 64, .max_pos = 64, .layer = layer
    };
    const kv_types t = kv_apart(KV_I8, KV_I4);
    const size_t k = 2 * BS * (4 + 32), v = 2 * BS * (4 + 32);
    kv_opts o = { .n_blocks = BLOCKS, .block_size = BS, .dtype = t };
    kv_cache *kv;
    lq_err err = { "" };
    CHECK(kv_block_bytes(&c, BS, t) == 2 * (k + v), "bytes of a block");
    CHECK(kv_token_bytes(&c, t) == 2 * (k + v) / BS, "bytes of a token");
    CHECK(!kv_open(&kv, &c, &o, &err), "%s", err.msg);
    CHECK((size_t)(kv_v(kv, 0) - kv_k(kv, 0)) == k && kv_block_stride(kv, 1) == k + v, "places");
    kv_close(kv);
    c.w.mla = true;
    c.kv_lora = 64;
    CHECK(kv_open(&kv, &c, &o, &err) == LQ_EUNSUPPORTED && strstr(err.msg, "k=int8,v=int4"), "%s",
          err.msg);
}

TEST(layers_have_their_own_sizes_or_those_of_the_layer_that_they_read)
{
    enum { LAYERS = 4, BLOCKS = 3 };
    arch_layer layer[LAYERS] = { [3] = { .kv_back = 2 } };
    arch_config c = { .layers = LAYERS, .kv_heads = 2, .head_dim = 8, .v_dim = 8, .max_pos = 64 };
    arch_config narrow = c;
    narrow.kv_heads = 1;
    narrow.head_dim = narrow.v_dim = 4;
    c.layer = narrow.layer = layer;
    layer[1].own = layer[3].own = &narrow;
    const kv_opts o = { .n_blocks = BLOCKS, .block_size = BS, .dtype = KV_F32 };
    const size_t wide = 2 * 2 * BS * 8 * 4, small = 2 * 1 * BS * 4 * 4;
    kv_cache *kv;
    CHECK(!kv_open(&kv, &c, &o, NULL), "open");
    CHECK(kv_block_bytes(&c, BS, KV_F32) == 2 * wide + small, "layer 3 takes nothing");
    CHECK(kv_token_bytes(&c, KV_F32) == (2 * wide + small) / BS, "of a token");
    CHECK(kv_most_bytes(&c, BS, KV_F32) == wide && kv_layer_bytes(&c, 3, BS, KV_F32) == 0, "each");
    const size_t at[LAYERS] = { 0, BLOCKS * wide, BLOCKS * (wide + small), BLOCKS * wide };
    for (int64_t i = 0; i < LAYERS; i++) {
        const size_t stride = i % 2 ? small : wide;
        CHECK(kv_block_stride(kv, i) == stride, "stride of layer %d", (int)i);
        CHECK((size_t)(kv_k(kv, i) - kv_k(kv, 0)) == at[i], "place of layer %d", (int)i);
        CHECK((size_t)(kv_v(kv, i) - kv_k(kv, i)) == stride / 2, "v of layer %d", (int)i);
    }
    kv_seq a, b;
    kv_seq_init(&a);
    kv_seq_init(&b);
    CHECK(!kv_reserve(kv, &a, 3, NULL), "reserve");
    for (int64_t i = 0; i < LAYERS; i++)
        memset(kv_k(kv, i), (int)i + 1, kv_block_stride(kv, i));
    CHECK(!kv_fork(kv, &b, &a, NULL) && !kv_reserve(kv, &b, 4, NULL), "a copy");
    for (int64_t i = 0; i < LAYERS; i++) {
        const size_t stride = kv_block_stride(kv, i);
        CHECK(memcmp(kv_k(kv, i) + (size_t)b.table[0] * stride, kv_k(kv, i), stride) == 0,
              "layer %d is copied", (int)i);
    }
    kv_seq_free(kv, &a);
    kv_seq_free(kv, &b);
    kv_close(kv);
}

/* LLMQ_KV_OPS: how many operations; check-hard plays 1,000,000. */
TEST(random_operations_leak_nothing_and_mix_nothing_up) /* T-41 */
{
    const char *asked = getenv("LLMQ_KV_OPS");
    int n = asked ? atoi(asked) : 6000;
    CHECK(n >= 1000, "LLMQ_KV_OPS: expected 1000 or more, found '%s'", asked);
    kv_model m = { .kv = open_cache(40, true) };
    choices c = { .seed = 2463534242u };
    const char *wrong = NULL;
    int step = 0;
    for (; step < n && !wrong; step++) {
        wrong = model_step(&m, &c);
        if (!wrong && step % 10 == 0) wrong = model_check(&m);
    }
    CHECK(!wrong, "step %d: %s", step, wrong);
    CHECK(m.reused > 1000, "prefixes were found: %d tokens", (int)m.reused);
    wrong = model_close(&m);
    CHECK(!wrong, "%s", wrong);
}

int main(int argc, char **argv)
{
    RUN(wrong_options_are_refused);
    RUN(the_pool_is_counted_and_full_means_busy);
    RUN(a_prefix_is_found_up_to_the_last_full_block);
    RUN(the_oldest_cached_block_is_evicted_and_the_end_of_a_prefix_first);
    RUN(equal_blocks_become_one_and_a_lost_parent_hides_its_children);
    RUN(blocks_of_equal_hashes_are_told_apart_by_tokens_and_parents);
    RUN(a_truncated_shared_block_is_copied_before_it_is_written);
    RUN(forks_share_blocks_until_they_are_written);
    RUN(keys_and_values_have_types_of_their_own);
    RUN(layers_have_their_own_sizes_or_those_of_the_layer_that_they_read);
    RUN(random_operations_leak_nothing_and_mix_nothing_up);
    return check_end();
}
