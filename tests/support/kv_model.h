/* tests/support/kv_model.h - sequences that reserve, write, share, fork, cut back and free blocks of a KV
 * cache, in an order that bytes or a seed choose, beside what must hold after each step. Played by
 * tests/unit/test_kv.c and tests/fuzz/fuzz_kv.c.
 *
 * The sequences are over two letters, so that prefixes often meet. Each written cell holds a hash
 * of the whole prefix up to it: whatever is shared, copied or evicted, a sequence must read its
 * own. */
#ifndef LLMQ_TESTS_SUPPORT_KV_MODEL_H
#define LLMQ_TESTS_SUPPORT_KV_MODEL_H

#include "runtime/model/kv.h"

#include <string.h>

enum { BS = 8, MAX_LEN = 160, V_DIM = 4, SEQS = 6, MAX_BLOCKS = 64 };

static inline arch_config model_config(void)
{
    static arch_layer layers[2];
    return (arch_config){ .layers = 2,
                          .kv_heads = 2,
                          .head_dim = 6,
                          .v_dim = V_DIM,
                          .max_pos = MAX_LEN,
                          .layer = layers };
}

static inline lq_status model_cache(kv_cache **kv, int64_t n_blocks, bool prefix, lq_err *err)
{
    const arch_config c = model_config();
    const kv_opts o = {
        .n_blocks = n_blocks, .block_size = BS, .dtype = KV_F32, .prefix_cache = prefix
    };
    return kv_open(kv, &c, &o, err);
}

/* One byte per position stands for its K and V, written where a step would write them. */
static inline uint8_t *cell(kv_cache *kv, const kv_seq *s, int64_t pos)
{
    return kv_v(kv, 1) + (size_t)s->table[pos / BS] * kv_block_stride(kv, 1) +
           (size_t)(pos % BS) * attn_kv_row_bytes(KV_F32, V_DIM);
}

/* What is chosen: the next byte, or where there are none to begin with, drawn from the seed. */
typedef struct {
    const uint8_t *p, *end;
    uint32_t seed; /* not 0 */
} choices;

static inline uint32_t choose(choices *c, uint32_t below) /* 0..below-1, below at most 256 */
{
    if (c->p) return c->p < c->end ? *c->p++ % below : 0;
    c->seed ^= c->seed << 13;
    c->seed ^= c->seed >> 17;
    c->seed ^= c->seed << 5;
    return c->seed % below;
}

typedef struct {
    kv_seq s;
    int32_t ids[MAX_LEN];
    uint32_t hash[MAX_LEN]; /* of the ids up to there (FNV-1a) */
    const char *salt;
    int64_t written;
    bool live;
} player;

typedef struct {
    kv_cache *kv;
    player p[SEQS];
    int64_t reused; /* tokens of prefixes that were found */
} kv_model;

static inline uint8_t prefix_byte(const player *p, int64_t pos)
{
    return (uint8_t)(p->hash[pos] >> 24 ^ (p->salt ? 0x5a : 0));
}

/* From `at` on as one of 32 texts has them, of which pairs begin alike. */
static inline void letters(player *p, int64_t at, choices *c)
{
    uint32_t x = choose(c, 32), head = x / 2 + 1;
    for (int64_t i = at; i < MAX_LEN; i++) {
        uint32_t *from = i < 64 ? &head : &x;
        *from = *from * 1664525u + 1013904223u;
        p->ids[i] = *from >> 28 == 0;
        p->hash[i] = ((i ? p->hash[i - 1] : 2166136261u) ^ (uint32_t)p->ids[i]) * 16777619u;
    }
}

static inline void start(kv_model *m, player *p, choices *c)
{
    kv_seq_init(&p->s);
    letters(p, 0, c);
    p->salt = choose(c, 8) ? NULL : "another";
    p->written = kv_match_prefix(m->kv, &p->s, p->ids, 1 + choose(c, MAX_LEN - 1), p->salt);
    p->live = true;
    m->reused += p->written;
}

static inline void go_on(kv_model *m, player *p, int64_t more)
{
    const int64_t n = p->written + more < MAX_LEN ? p->written + more : MAX_LEN;
    if (kv_reserve(m->kv, &p->s, n, NULL)) return; /* busy */
    for (; p->written < n; p->written++)
        *cell(m->kv, &p->s, p->written) = prefix_byte(p, p->written);
    kv_register(m->kv, &p->s, p->ids, p->written, p->salt);
}

static inline void cut_back(kv_model *m, player *p, choices *c)
{
    const int64_t n = p->written ? choose(c, (uint32_t)p->written) : 0;
    kv_truncate(m->kv, &p->s, n);
    if (p->written > n) p->written = n;
    letters(p, n, c);
}

/* NULL, or what went wrong. */
static inline const char *model_step(kv_model *m, choices *c)
{
    player *one = &m->p[choose(c, SEQS)];
    const uint32_t what = choose(c, 8);
    const player *other = &m->p[what % SEQS];
    if (one->live && what == 0) {
        kv_seq_free(m->kv, &one->s);
        one->live = false;
    } else if (one->live && what == 1) {
        cut_back(m, one, c);
    } else if (one->live) {
        go_on(m, one, 1 + choose(c, 20));
    } else if (what < 2 && other->live) {
        *one = *other;
        kv_seq_init(&one->s);
        if (kv_fork(m->kv, &one->s, &other->s, NULL)) return "a fork failed";
    } else {
        start(m, one, c);
    }
    return NULL;
}

static inline const char *model_check(const kv_model *m)
{
    bool held[MAX_BLOCKS] = { false };
    int64_t n_held = 0;
    for (const player *p = m->p; p < m->p + SEQS; p++) {
        if (!p->live) continue;
        if (p->s.n_blocks != lq_ceil_div(p->s.tokens, BS)) return "a sequence's number of blocks";
        for (int64_t b = 0; b < p->s.n_blocks; b++) {
            n_held += !held[p->s.table[b]];
            held[p->s.table[b]] = true;
        }
        for (int64_t t = 0; t < p->written; t++)
            if (*cell(m->kv, &p->s, t) != prefix_byte(p, t)) return "one reads what another wrote";
    }
    if (kv_free_blocks(m->kv) != kv_options(m->kv)->n_blocks - n_held) return "free blocks";
    if (kv_cached_blocks(m->kv) > kv_free_blocks(m->kv)) return "cached blocks";
    return NULL;
}

/* Frees all; NULL, or what leaked. */
static inline const char *model_close(kv_model *m)
{
    for (int i = 0; i < SEQS; i++)
        kv_seq_free(m->kv, &m->p[i].s);
    const bool all = kv_free_blocks(m->kv) == kv_options(m->kv)->n_blocks;
    kv_close(m->kv);
    return all ? NULL : "blocks leaked";
}

#endif
