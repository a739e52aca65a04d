/* tests/unit/test_kv_state.c - states of sequences in the KV cache: in any order of runs, guesses that are taken
 * back, forks, pre-emptions and ends, a sequence finds the state of its own ids. */
#include "runtime/model/kv.h"
#include "tests/support/check.h"

#include <stdlib.h>
#include <string.h>

enum { BS = 8, LEN = 120, SEQS = 5, BLOCKS = 60 };

/* Stands for a run: each row puts its id into every float. */
static void play(const kv_run *run, size_t floats, const int32_t *ids, int64_t n)
{
    for (int64_t t = 0, mark = 0; t < n; t++) {
        for (size_t i = 0; i < floats; i++) {
            uint32_t x;
            memcpy(&x, run->state + i, sizeof x);
            x = (x ^ (uint32_t)(ids[t] + 1)) * 16777619u;
            memcpy(run->state + i, &x, sizeof x);
        }
        for (; mark < run->n_marks && run->marks[mark].after == t + 1; mark++)
            memcpy(run->marks[mark].copy, run->state, floats * sizeof(float));
    }
}

/* What the state of the first n ids must be. */
static uint32_t state_of(const int32_t *ids, int64_t n)
{
    uint32_t x = 0;
    for (int64_t i = 0; i < n; i++)
        x = (x ^ (uint32_t)(ids[i] + 1)) * 16777619u;
    return x;
}

typedef struct {
    kv_seq s;
    int32_t ids[LEN];
    int64_t n; /* ids that it has seen */
    bool live;
} player;

typedef struct {
    kv_cache *kv;
    size_t floats;
    player p[SEQS];
    uint32_t seed;
    int64_t reused, taken_back, refused;
} sim;

static uint32_t rnd(sim *m, uint32_t below)
{
    m->seed ^= m->seed << 13;
    m->seed ^= m->seed >> 17;
    m->seed ^= m->seed << 5;
    return m->seed % below;
}

/* Of few texts, so that beginnings meet. */
static void write_ids(sim *m, player *p, int64_t from)
{
    uint32_t x = 1 + rnd(m, 6), head = x / 2 + 1;
    for (int64_t i = from; i < LEN; i++) {
        uint32_t *of = i < 40 ? &head : &x;
        *of = *of * 1664525u + 1013904223u;
        p->ids[i] = (int32_t)(*of >> 29);
    }
}

static bool state_is(const sim *m, player *p, const kv_run *run, int64_t n)
{
    const uint32_t want = state_of(p->ids, n);
    for (size_t i = 0; i < m->floats; i++)
        if (memcmp(run->state + i, &want, sizeof want)) return false;
    return true;
}

/* A run of n rows, the last `guesses` of which are guessed; `right` of these are. False: the state was
 * another's. */
static bool run(sim *m, player *p, int64_t n, int64_t guesses, int64_t right)
{
    kv_run r;
    int32_t ids[LEN];
    if (p->n + n > LEN || kv_reserve(m->kv, &p->s, p->n + n, NULL)) return true;
    const int64_t kept = kv_keep_states(m->kv, &p->s, guesses);
    m->refused += guesses - kept;
    n -= guesses - kept;
    if (right > kept) right = kept;
    memcpy(ids, p->ids + p->n, (size_t)n * sizeof *ids);
    for (int64_t i = n - kept + right; i < n; i++)
        ids[i] = 77; /* nobody's */
    kv_run_begin(m->kv, &p->s, p->n, n, guesses == 0, &r);
    const bool own = state_is(m, p, &r, p->n);
    play(&r, m->floats, ids, n);
    p->n += n - (kept - right);
    m->taken_back += right < kept;
    if (guesses) kv_truncate(m->kv, &p->s, p->n);
    kv_register(m->kv, &p->s, p->ids, p->n, NULL);
    return own;
}

static void begin(sim *m, player *p)
{
    kv_seq_init(&p->s);
    write_ids(m, p, 0);
    p->n = kv_match_prefix(m->kv, &p->s, p->ids, LEN, NULL);
    m->reused += p->n;
    p->live = true;
}

/* False: somebody found a state that is not that of its ids. */
static bool step(sim *m)
{
    player *one = &m->p[rnd(m, SEQS)], *other = &m->p[rnd(m, SEQS)];
    const uint32_t what = rnd(m, 10);
    if (!one->live && what < 3 && other->live) {
        *one = *other;
        kv_seq_init(&one->s);
        return !kv_fork(m->kv, &one->s, &other->s, NULL) && (write_ids(m, one, one->n), true);
    }
    if (!one->live) return begin(m, one), true;
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
    return run(m, one, 1 + (guesses ? guesses : rnd(m, 20)), guesses, rnd(m, 10));
}

/* As many as there are slots can have a state: none has leaked. */
static void check_slots(sim *m, int64_t slots)
{
    kv_seq all[16];
    for (int64_t i = 0; i <= slots; i++) {
        kv_seq_init(&all[i]);
        const lq_status s = kv_reserve(m->kv, &all[i], 1, NULL);
        CHECK(s == (i < slots ? LQ_OK : LQ_EBUSY), "state %lld of %lld", (long long)i,
              (long long)slots);
    }
    for (int64_t i = 0; i <= slots; i++)
        kv_seq_free(m->kv, &all[i]);
}

TEST(whatever_happens_a_sequence_finds_the_state_of_its_own_ids)
{
    static const struct {
        const char *why;
        int64_t slots;
        bool cache;
    } t[] = { { "slots for all", 15, true },
              { "few slots", 7, true },
              { "no prefix cache", 9, false } };
    const arch_row row = { .mixer = MIX_MAMBA };
    arch_layer layers[2] = { { .mixer = MIX_MAMBA }, { .mixer = MIX_ATTENTION } };
    const arch_config c = { .row = &row,
                            .layers = 2,
                            .kv_heads = 1,
                            .head_dim = 4,
                            .v_dim = 4,
                            .max_pos = LEN,
                            .layer = layers,
                            .mix_heads = 1,
                            .mix_groups = 1,
                            .mix_key = 2,
                            .mix_value = 16,
                            .conv_taps = 2 };
    for (size_t i = 0; i < LQ_COUNT(t); i++) {
        const kv_opts o = {
            .n_blocks = BLOCKS, .block_size = BS, .n_states = t[i].slots, .prefix_cache = t[i].cache
        };
        sim m = { .seed = 2463534242u, .floats = kv_state_bytes(&c) / sizeof(float) };
        lq_err err = { "" };
        CHECK(!kv_open(&m.kv, &c, &o, &err), "%s", err.msg);
        if (!m.kv) return;
        int at = 0;
        while (at < 4000 && step(&m))
            at++;
        CHECK(at == 4000, "%s: step %d: another state", t[i].why, at);
        CHECK(m.taken_back > 200 && (m.reused > 500) == t[i].cache,
              "%s: %lld taken back, %lld reused", t[i].why, (long long)m.taken_back,
              (long long)m.reused);
        CHECK(t[i].slots > 9 || m.refused > 0, "%s: no guess was refused", t[i].why);
        for (int k = 0; k < SEQS; k++)
            if (m.p[k].live) kv_seq_free(m.kv, &m.p[k].s);
        check_slots(&m, t[i].slots);
        kv_close(m.kv);
    }
}

int main(int argc, char **argv)
{
    RUN(whatever_happens_a_sequence_finds_the_state_of_its_own_ids);
    return check_end();
}
