/* tests/unit/test_kv_window.c - slots of layers with a window: in any order of runs, guesses that are taken
 * back, forks, pre-emptions and ends, a sequence reads its own K and V wherever a row looks. */
#include "runtime/model/kv_window.h"
#include "tests/support/check.h"

#include <stdlib.h>
#include <string.h>

enum { BS = 8, LEN = 240, SEQS = 5, BLOCKS = 120, ROWS = 24, FULL = 0, NEAR = 1 };

typedef struct {
    kv_seq s;
    uint8_t ids[LEN], text[LEN]; /* text: what K of each position is, after all ids before it */
    int64_t n;                   /* positions that are written */
    bool live;
} player;

typedef struct {
    kv_cache *kv;
    arch_config c;
    player p[SEQS];
    uint32_t seed;
    int64_t reused, taken_back, busy, late; /* late: prefixes that began after the window's size */
} sim;

static uint32_t rnd(sim *m, uint32_t below)
{
    m->seed ^= m->seed << 13;
    m->seed ^= m->seed >> 17;
    m->seed ^= m->seed << 5;
    return m->seed % below;
}

static uint8_t *cell(kv_cache *kv, const kv_seq *s, int64_t layer, int64_t pos)
{
    const int32_t *table = kv_in_window(kv, layer) ? s->near : s->table;
    return kv_k(kv, layer) + (size_t)table[pos / BS] * kv_block_stride(kv, layer) +
           (size_t)(pos % BS) * attn_kv_row_bytes(KV_F32, 4);
}

/* Of few texts, so that beginnings meet. */
static void write_ids(sim *m, player *p, int64_t from)
{
    uint32_t x = 1 + rnd(m, 6), head = x / 2 + 1;
    for (int64_t i = from; i < LEN; i++) {
        uint32_t *of = i < 100 ? &head : &x;
        *of = *of * 1664525u + 1013904223u;
        p->ids[i] = (uint8_t)(*of >> 29);
        p->text[i] = (uint8_t)(31 * (i ? p->text[i - 1] : 7) + p->ids[i] + 1);
    }
}

/* What the row at `pos` reads is the sequence's own. */
static bool reads_its_own(const sim *m, const player *p, int64_t pos)
{
    const int64_t w = m->c.window;
    int64_t from = m->c.row->window == WINDOW_CHUNKS ? pos - pos % w : pos - w + 1;
    from = from < 0 ? 0 : from / ATTN_TILE * ATTN_TILE; /* tiles are read whole */
    for (int64_t i = 0; i < pos; i++) {
        if (*cell(m->kv, &p->s, FULL, i) != p->text[i]) return false;
        if (i >= from && *cell(m->kv, &p->s, NEAR, i) != p->text[i]) return false;
    }
    return true;
}

/* A run of n rows, the last `guesses` of which are guessed; `right` of these are. */
static bool run(sim *m, player *p, int64_t n, int64_t guesses, int64_t right)
{
    kv_run r;
    int32_t ids[LEN];
    if (p->n + n > LEN) return true;
    if (kv_reserve(m->kv, &p->s, p->n + n, NULL)) return m->busy++, true;
    kv_run_begin(m->kv, &p->s, p->n, n, false, &r);
    if (!reads_its_own(m, p, p->n)) return false;
    for (int64_t i = p->n; i < p->n + n; i++) {
        const bool wrong = i >= p->n + n - guesses + right;
        for (int layer = FULL; layer <= NEAR; layer++)
            *cell(m->kv, &p->s, layer, i) = wrong ? 77 : p->text[i];
    }
    p->n += n - (guesses > right ? guesses - right : 0);
    m->taken_back += right < guesses;
    if (guesses) kv_truncate(m->kv, &p->s, p->n);
    for (int64_t i = 0; i < p->n; i++)
        ids[i] = p->ids[i];
    kv_register(m->kv, &p->s, ids, p->n, NULL);
    return true;
}

static bool begin(sim *m, player *p)
{
    int32_t ids[LEN];
    kv_seq_init(&p->s);
    write_ids(m, p, 0);
    for (int64_t i = 0; i < LEN; i++)
        ids[i] = p->ids[i];
    p->n = kv_match_prefix(m->kv, &p->s, ids, LEN, NULL);
    m->reused += p->n;
    m->late += p->n > 100;
    p->live = true;
    return true;
}

/* False: somebody read what is another's. */
static bool step(sim *m)
{
    player *one = &m->p[rnd(m, SEQS)], *other = &m->p[rnd(m, SEQS)];
    const uint32_t what = rnd(m, 16);
    if (!one->live && what < 4 && other->live) {
        *one = *other;
        kv_seq_init(&one->s);
        return !kv_fork(m->kv, &one->s, &other->s, NULL) && (write_ids(m, one, one->n), true);
    }
    if (!one->live) return begin(m, one);
    if (what == 0) {
        kv_seq_free(m->kv, &one->s);
        return one->live = false, true;
    }
    if (what == 1) { /* pre-empted */
        kv_truncate(m->kv, &one->s, 0);
        one->n = 0;
        return true;
    }
    const int64_t guesses = what < 6 ? 1 + rnd(m, 9) : 0;
    return run(m, one, 1 + (guesses ? guesses : rnd(m, ROWS)), guesses, rnd(m, 10));
}

static arch_config config_of(const arch_row *row, arch_layer *layers, int64_t window)
{
    return (arch_config){ .row = row,
                          .layers = 2,
                          .kv_heads = 1,
                          .head_dim = 4,
                          .v_dim = 4,
                          .max_pos = LEN,
                          .window = window,
                          .layer = layers };
}

TEST(whatever_happens_a_sequence_reads_its_own)
{
    static const struct {
        const char *why;
        int64_t window, slots; /* 0: as many as one sequence needs */
        bool chunks, cache;
    } t[] = {
        { "slots for all", 12, 60, false, true },  { "slots for one", 12, 0, false, true },
        { "a window of one", 1, 40, false, true }, { "no prefix cache", 40, 20, false, false },
        { "chunks", 24, 30, true, true },          { "chunks, slots for one", 37, 0, true, true }
    };
    for (size_t i = 0; i < LQ_COUNT(t); i++) {
        const arch_row row = { .window = t[i].chunks ? WINDOW_CHUNKS : WINDOW_ALL };
        arch_layer layers[2] = { { .mixer = MIX_ATTENTION },
                                 { .mixer = MIX_ATTENTION, .window = true } };
        sim m = { .c = config_of(&row, layers, t[i].window), .seed = 2463534242u };
        const int64_t each = kv_window_slots(&m.c, BS, ROWS);
        const kv_opts o = { .n_blocks = BLOCKS,
                            .block_size = BS,
                            .n_windows = t[i].slots ? t[i].slots : each,
                            .windows_each = each,
                            .prefix_cache = t[i].cache };
        lq_err err;
        CHECK(!kv_open(&m.kv, &m.c, &o, &err), "%s: %s", t[i].why, err.msg);
        if (!m.kv) return;
        int at = 0;
        while (at < 6000 && step(&m))
            at++;
        CHECK(at == 6000, "%s: step %d: another's", t[i].why, at);
        CHECK(m.taken_back > 150, "%s: %lld taken back", t[i].why, (long long)m.taken_back);
        CHECK((m.reused > 500) == t[i].cache, "%s: %lld reused", t[i].why, (long long)m.reused);
        CHECK(!t[i].cache || !t[i].slots || m.late > 10, "%s: %lld late", t[i].why,
              (long long)m.late);
        CHECK(t[i].slots || m.busy > 100, "%s: %lld busy", t[i].why, (long long)m.busy);
        for (int k = 0; k < SEQS; k++)
            if (m.p[k].live) kv_seq_free(m.kv, &m.p[k].s);
        CHECK(kv_free_blocks(m.kv) == BLOCKS, "%s: a block leaks", t[i].why);
        CHECK(kv_spare_blocks(m.kv) == o.n_windows, "%s: a slot leaks", t[i].why);
        kv_close(m.kv);
    }
}

static void go_on(kv_cache *kv, kv_seq *s, const int32_t *ids, int64_t *n, int64_t to)
{
    kv_run r;
    while (*n < to) {
        const int64_t more = to - *n < ROWS ? to - *n : ROWS;
        CHECK(!kv_reserve(kv, s, *n + more, NULL), "room");
        kv_run_begin(kv, s, *n, more, false, &r);
        *n += more;
        kv_register(kv, s, ids, *n, NULL);
    }
}

/* Ids 0..239 by one; then others ask for what remains. */
TEST(a_prefix_is_found_where_its_window_is_left)
{
    const arch_row row = { .window = WINDOW_ALL };
    arch_layer layers[2] = { { .mixer = MIX_ATTENTION },
                             { .mixer = MIX_ATTENTION, .window = true } };
    const arch_config c = config_of(&row, layers, 16);
    const int64_t each = kv_window_slots(&c, BS, ROWS);
    const kv_opts o = { .n_blocks = BLOCKS,
                        .block_size = BS,
                        .n_windows = 2 * each,
                        .windows_each = each,
                        .prefix_cache = true };
    kv_cache *kv;
    kv_seq a, b;
    int32_t ids[LEN], others[LEN];
    int64_t n = 0, m = 0;
    CHECK(each == 10 && !kv_open(&kv, &c, &o, NULL), "%lld slots", (long long)each);
    for (int i = 0; i < LEN; i++)
        ids[i] = i, others[i] = 500 + i;
    kv_seq_init(&a);
    go_on(kv, &a, ids, &n, 240);
    CHECK(a.n_blocks == 30 && a.near_to - a.near_from <= each, "%lld blocks, %lld slots",
          (long long)a.n_blocks, (long long)(a.near_to - a.near_from));
    kv_seq_init(&b);
    /* Of 20 slots the last 20 blocks have one: 80..239. A row at 120 reads from 96 on, one at 88 from 64. */
    CHECK(kv_match_prefix(kv, &b, ids, 121, NULL) == 120 && b.near_from == 12, "%lld from %lld",
          (long long)b.tokens, (long long)b.near_from);
    kv_seq_free(kv, &b);
    CHECK(kv_match_prefix(kv, &b, ids, 89, NULL) == 0, "%lld", (long long)b.tokens);
    kv_seq_free(kv, &b);
    go_on(kv, &b, others, &m, 120); /* takes 15 slots: the oldest that nobody holds */
    kv_seq_free(kv, &b);
    CHECK(kv_match_prefix(kv, &b, ids, 121, NULL) == 0, "gone");
    kv_seq_free(kv, &b);
    kv_seq_free(kv, &a);
    CHECK(kv_match_prefix(kv, &a, ids, LEN, NULL) == 232, "%lld", (long long)a.tokens);
    kv_seq_free(kv, &a);
    kv_close(kv);
}

TEST(which_layers_have_slots)
{
    const arch_row row = { .window = WINDOW_ALL };
    arch_layer layers[4] = { { .mixer = MIX_ATTENTION, .window = true },
                             { .mixer = MIX_ATTENTION, .window = true },
                             { .mixer = MIX_ATTENTION, .kv_back = 1 },
                             { .mixer = MIX_ATTENTION, .window = true, .kv_back = 3 } };
    arch_config c = config_of(&row, layers, 16);
    c.layers = 4;
    CHECK(kv_has_window(&c, 0), "a window, and its reader has one");
    CHECK(!kv_has_window(&c, 1), "its reader sees all");
    CHECK(!kv_has_window(&c, 2) && !kv_has_window(&c, 3), "they have none of their own");
    c.w.both_ways = true;
    CHECK(!kv_window_slots(&c, BS, ROWS), "a prompt is one run");
    c.w.both_ways = false;
    c.window = 0;
    CHECK(!kv_window_slots(&c, BS, ROWS), "no window");
}

int main(int argc, char **argv)
{
    RUN(whatever_happens_a_sequence_reads_its_own);
    RUN(a_prefix_is_found_where_its_window_is_left);
    RUN(which_layers_have_slots);
    return check_end();
}
