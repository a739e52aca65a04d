/* The scheduler alone, in virtual time: no model, only sequences that grow and a real block pool.
 */
#include "runtime/engine/engine.h"
#include "runtime/engine/sched.h"
#include "tests/support/check.h"

#include <stdlib.h>

static uint64_t lcg = 7;
static int64_t rnd(int64_t n)
{
    lcg = lcg * 6364136223846793005u + 1442695040888963407u;
    return (int64_t)((lcg >> 33) % (uint64_t)n);
}

enum { VOCAB = 50, BLOCK = 8 };
static arch_layer layer;
static const arch_config cfg = { .vocab = VOCAB,
                                 .layers = 1,
                                 .kv_heads = 1,
                                 .head_dim = 4,
                                 .v_dim = 4,
                                 .max_pos = 4096,
                                 .layer = &layer,
                                 .bos = -1 };

typedef struct {
    kv_cache *kv;
    sched sc;
    fwd_item *items;
    int64_t n_blocks, steps; /* steps: that did something */
    double now;
    uint64_t next_id;
} sim;

static void sim_open_as(sim *m, eng_policy policy, int64_t n_blocks, int64_t max_seqs,
                        int64_t batch, bool prefix)
{
    lq_err err;
    memset(m, 0, sizeof *m);
    kv_opts k = {
        .n_blocks = n_blocks, .block_size = BLOCK, .dtype = KV_F32, .prefix_cache = prefix
    };
    m->n_blocks = n_blocks;
    CHECK(!kv_open(&m->kv, &cfg, &k, &err), "%s", err.msg);
    CHECK(!sched_open(&m->sc, m->kv, &policy, max_seqs, batch, &err), "%s", err.msg);
    m->items = calloc((size_t)max_seqs, sizeof *m->items);
    m->next_id = 1;
}

static void sim_open(sim *m, int64_t n_blocks, int64_t max_seqs, int64_t batch, bool prefix)
{
    sim_open_as(m, (eng_policy){ 0 }, n_blocks, max_seqs, batch, prefix);
}

static void sim_close(sim *m)
{
    CHECK(m->sc.n_running == 0 && m->sc.n_waiting == 0, "%lld run, %lld wait",
          (long long)m->sc.n_running, (long long)m->sc.n_waiting);
    CHECK(kv_free_blocks(m->kv) == m->n_blocks, "%lld of %lld blocks free",
          (long long)kv_free_blocks(m->kv), (long long)m->n_blocks);
    sched_close(&m->sc);
    kv_close(m->kv);
    free(m->items);
}

static int64_t sim_width; /* of what is added next; 0: no beam search */

static seq *sim_add(sim *m, int64_t n_prompt, int64_t n_new, int32_t priority, int score)
{
    lq_err err;
    seq *s = NULL;
    int32_t *ids = malloc((size_t)n_prompt * sizeof *ids);
    for (int64_t i = 0; i < n_prompt; i++)
        ids[i] = (int32_t)rnd(3);
    eng_request r = { .prompt = ids,
                      .n_prompt = n_prompt,
                      .max_tokens = n_new,
                      .prompt_logprobs = score,
                      .beam = { .width = sim_width, .n = 1, .length_penalty = 1 },
                      .priority = priority };
    CHECK(!seq_new(&s, &r, &cfg, m->n_blocks * BLOCK, false, &err), "%s", err.msg);
    s->id = m->next_id++;
    s->arrived = m->now;
    sched_wait(&m->sc, s);
    free(ids);
    return s;
}

/* What a plan must give to those that run: decodes are never held up, and some prefill moves, or is
 * deep beside decodes and waits for its burst, or for another's. */
static void check_plan(const sim *m)
{
    const seq *prefill = NULL;
    for (int64_t i = 0; i < m->sc.n_running; i++) {
        const seq *s = m->sc.running[i];
        if (s->n_ids - s->n_done == 1 && !m->sc.whole)
            CHECK(s->plan_n == 1, "step %lld: a decode was held up", (long long)m->steps);
        else if (!prefill)
            prefill = s;
    }
    const bool waits = m->sc.beside && m->sc.deep && m->sc.since < SCHED_BURST_STEPS &&
                       (m->sc.since > 0 || m->sc.bursts);
    CHECK(!prefill || prefill->plan_n > 0 || waits, "step %lld: the oldest prompt did not move",
          (long long)m->steps);
}

/* The blocks in use are those of the tables, no more and no fewer. */
static void check_blocks(const sim *m)
{
    static bool held[4096];
    int64_t n = 0;
    memset(held, 0, sizeof held);
    for (int64_t i = 0; i < m->sc.n_running; i++) {
        const beam_set *beams = m->sc.running[i]->beams;
        for (int64_t line = -1; line < (beams ? beams->n_lines : 0); line++) {
            const kv_seq *k = line < 0 ? &m->sc.running[i]->kv : &beams->lines[line].kv;
            for (int64_t b = 0; b < k->n_blocks; b++) {
                n += !held[k->table[b]];
                held[k->table[b]] = true;
            }
        }
    }
    CHECK(kv_free_blocks(m->kv) + n == m->n_blocks, "step %lld: %lld free, %lld in tables",
          (long long)m->steps, (long long)kv_free_blocks(m->kv), (long long)n);
}

/* A search's step with proposals of any kind; true: it is over. */
static bool search_on(sim *m, seq *s)
{
    lq_err err = { "" };
    beam_set *b = s->beams;
    for (int64_t i = 0; i < beam_rows(s); i++) {
        b->n_cands[i] = b->per;
        for (int64_t k = 0; k < b->per; k++)
            b->cands[i * b->per + k] =
                (smp_cand){ (int32_t)rnd(VOCAB), -0.1f * (float)(k + rnd(2)), 0 };
    }
    CHECK(!beam_take(s, m->kv, &cfg, NULL, &err), "%s", err.msg);
    return b->over;
}

/* One step: every planned sequence computes its chunk, appends an id at the end of it, leaves when
 * it has all. gone: called before a sequence is freed. Returns rows. */
static int64_t sim_step(sim *m, void (*gone)(seq *s))
{
    lq_err err;
    bool joins = m->sc.policy.batching == ENG_CONTINUOUS || m->sc.n_running == 0;
    for (seq *s; (s = sched_admit(&m->sc, m->now));) {
        CHECK(joins || s->preempted, "request %llu joined a closed batch",
              (unsigned long long)s->id);
        s->admitted = true;
        if (!s->prepared) CHECK(!seq_prepare(s, &cfg, NULL, SPEC_MAX, &err), "%s", err.msg);
    }
    for (int64_t i = 0; i < m->sc.n_running && m->sc.draft_rows; i++) {
        seq *s = m->sc.running[i];
        int64_t room = s->max_new - seq_output(s) - 1;
        s->n_draft = room > 0 && s->n_ids - s->n_done == 1 ? rnd(room < 9 ? room : 9) : 0;
    }
    int n = sched_plan(&m->sc, m->items);
    int64_t rows = 0, logits = 0;
    int item = 0;
    for (int i = 0; i < n; i++) {
        seq *s = m->sc.planned[i];
        fwd_item *it = &m->items[item];
        item += (int)beam_rows(s);
        for (int64_t k = 0; s->beams && k < s->beams->n_lines; k++)
            CHECK(it[k].seq == &s->beams->lines[k].kv && it[k].n == 1 && it[k].pos0 == s->n_done,
                  "line %lld of item %d", (long long)k, i);
        rows += it->n * (beam_rows(s) - 1);
        logits += beam_rows(s) - 1;
        CHECK(it->n >= 1 && it->pos0 == s->n_done && it->pos0 + it->n <= s->n_ids + s->plan_draft &&
                  s->plan_draft <= s->n_draft,
              "item %d", i);
        CHECK(it->seq->tokens >= it->pos0 + it->n, "item %d has no room in the cache", i);
        rows += it->n;
        logits += it->n - it->logits_from;
    }
    CHECK(item == m->sc.n_items && item <= m->sc.max_seqs, "%d items", item);
    check_plan(m);
    check_blocks(m);
    CHECK(rows <= sched_max_rows(&m->sc), "%lld rows", (long long)rows);
    CHECK(logits <= sched_max_logits(&m->sc), "%lld logits rows", (long long)logits);
    for (int i = 0; i < n; i++) {
        seq *s = m->sc.planned[i];
        s->n_done += s->plan_n;
        for (int64_t right = s->plan_draft ? rnd(s->plan_draft + 1) : 0; right > 0; right--) {
            s->ids[s->n_ids++] = (int32_t)rnd(3);
            s->n_done++;
        }
        if (s->plan_draft) kv_truncate(m->kv, &s->kv, s->n_done);
        kv_register(m->kv, &s->kv, s->ids, s->n_done, NULL);
        if (s->r.prompt_logprobs >= 0 && s->n_done > s->n_scored) s->n_scored = s->n_done;
        if (s->n_done < s->n_ids || (s->beams && !search_on(m, s))) continue;
        if (s->max_new > 0 && !s->beams) s->ids[s->n_ids++] = (int32_t)rnd(3);
        if (seq_output(s) < s->max_new && !s->beams) continue;
        sched_remove(&m->sc, s);
        if (gone) gone(s);
        seq_free(s);
    }
    m->now += 1e-3 + 1e-4 * (double)rows;
    if (rows) m->steps++;
    return rows;
}

TEST(random_traffic_always_moves_and_all_of_it_ends)
{
    for (int round = 0; round < 60; round++) {
        sim m;
        int64_t blocks = 4 + rnd(40), seqs = 1 + rnd(12), batch = 1 + rnd(40);
        sim_open(&m, blocks, seqs, batch, round % 2);
        m.sc.beside = rnd(9);
        m.sc.deep = rnd(2) ? rnd(50) : 0;
        int64_t left = 150, most = blocks * BLOCK;
        uint64_t idle = 0;
        while (left > 0 || m.sc.n_running || m.sc.n_waiting) {
            for (int64_t k = left > 0 ? rnd(4) : 0; k > 0 && left > 0; k--, left--) {
                int64_t n_prompt = 1 + rnd(most), n_new = rnd(most - n_prompt + 1);
                if (rnd(3)) n_prompt = 1 + n_prompt / 8;
                sim_add(&m, n_prompt, n_new, (int32_t)rnd(3), rnd(5) ? -1 : 0);
            }
            bool any = m.sc.n_running || m.sc.n_waiting;
            int64_t rows = sim_step(&m, NULL);
            if (any && rows == 0) idle++;
            if (m.steps + (int64_t)idle > 1000000) break;
        }
        CHECK(idle == 0, "round %d: %llu steps did nothing", round, (unsigned long long)idle);
        /* Between two departures each running sequence is pre-empted at most once. */
        CHECK(m.sc.preemptions <= 150 * (uint64_t)seqs, "round %d: %llu pre-emptions", round,
              (unsigned long long)m.sc.preemptions);
        sim_close(&m);
    }
}

TEST(beam_searches_move_among_others_and_leak_nothing)
{
    for (int round = 0; round < 40; round++) {
        sim m;
        int64_t blocks = 8 + rnd(40), seqs = 2 + rnd(12), left = 80, idle = 0;
        sim_open(&m, blocks, seqs, 1 + rnd(40), round % 2);
        while (left > 0 || m.sc.n_running || m.sc.n_waiting) {
            for (int64_t k = left > 0 ? rnd(4) : 0; k > 0 && left > 0; k--, left--) {
                sim_width = rnd(2) ? 1 + rnd(seqs < 5 ? seqs : 5) : 0;
                int64_t share = sim_width ? sim_width : 1;
                int64_t n_prompt = 1 + rnd(3 * BLOCK), most = blocks / share * BLOCK - n_prompt;
                sim_add(&m, n_prompt, 1 + rnd(most > 0 ? most : 1), (int32_t)rnd(3), -1);
            }
            bool any = m.sc.n_running || m.sc.n_waiting;
            if (any && sim_step(&m, NULL) == 0) idle++;
            if (m.steps + idle > 1000000) break;
        }
        CHECK(idle == 0, "round %d: %lld steps did nothing", round, (long long)idle);
        sim_close(&m);
    }
    sim_width = 0;
}

/* ---- every batching, in virtual time ---- */

enum { MOST = 24 };
typedef struct {
    double at;
    int64_t n_prompt, n_new;
    int64_t deadline; /* in steps, from the rule in sched.h */
    int ends;
} arrival;
static arrival trace[MOST];
static int n_trace;
static const sim *playing;

static void note_end(seq *s)
{
    arrival *a = &trace[s->id - 1];
    a->ends++;
    CHECK(playing->steps < a->deadline, "request %llu of %d: step %lld, due by %lld",
          (unsigned long long)s->id, n_trace, (long long)playing->steps, (long long)a->deadline);
}

/* Steps in which a request is done once it is the oldest: all its ids may have to be computed anew,
 * in shares of half the least budget, and each new id takes one. */
static int64_t steps_alone(const sim *m, const arrival *a)
{
    int64_t share = (m->sc.least + 1) / 2;
    return lq_ceil_div(a->n_prompt + a->n_new, share) + a->n_new + 1;
}

static void make_trace(int64_t most)
{
    n_trace = 1 + (int)rnd(MOST);
    double at = 0, gap = (double)rnd(40) * 1e-3;
    for (int i = 0; i < n_trace; i++) {
        int64_t n_prompt = 1 + rnd(most), n_new = 1 + rnd(most - n_prompt + 1);
        if (rnd(3)) n_prompt = 1 + n_prompt / 8;
        if (rnd(3)) n_new = 1 + n_new / 8;
        if (n_prompt + n_new > most) n_new = most - n_prompt;
        trace[i] = (arrival){ .at = at, .n_prompt = n_prompt, .n_new = n_new };
        at += gap * (double)rnd(100) / 50;
    }
}

/* Those that have arrived join the line; what each may wait is what the older ones and it need. */
static int arrive(sim *m, int next)
{
    for (; next < n_trace && trace[next].at <= m->now; next++) {
        arrival *a = &trace[next];
        a->deadline = m->steps;
        for (int i = 0; i <= next; i++)
            if (!trace[i].ends) a->deadline += steps_alone(m, &trace[i]);
        sim_add(m, a->n_prompt, a->n_new, 0, -1);
    }
    return next;
}

static void play_trace(eng_policy policy, int number)
{
    sim m;
    int64_t blocks = 2 + rnd(24), max_seqs = 1 + rnd(8);
    sim_open_as(&m, policy, blocks, max_seqs, 1 + rnd(40), rnd(2));
    m.sc.draft_rows = rnd(2) ? SPEC_ROWS : 0;
    if (rnd(2)) m.sc.beside = rnd(8);
    make_trace(blocks * BLOCK);
    playing = &m;
    int next = 0, bad = check_bad;
    while (next < n_trace || m.sc.n_running || m.sc.n_waiting) {
        if (!m.sc.n_running && !m.sc.n_waiting && m.now < trace[next].at) m.now = trace[next].at;
        next = arrive(&m, next);
        if (sim_step(&m, note_end) > 0) continue;
        double due = sched_due(&m.sc); /* a batch waits, for some, and not beyond its time */
        CHECK(m.sc.n_waiting < max_seqs && due > m.now - 0.1 && due <= m.now + policy.batch_wait,
              "nothing moves at %g, due %g", m.now, due);
        if (check_bad != bad) break;
        double other = next < n_trace ? trace[next].at : due;
        m.now = other < due ? other : due;
    }
    for (int i = 0; i < n_trace; i++)
        CHECK(trace[i].ends == 1, "request %d of %d ended %d times", i + 1, n_trace, trace[i].ends);
    CHECK(m.sc.preemptions <= (uint64_t)(n_trace * max_seqs), "%llu pre-emptions",
          (unsigned long long)m.sc.preemptions);
    if (check_bad != bad)
        fprintf(stderr, "trace %d\n", number);
    else
        sim_close(&m);
}

/* LLMQ_TRACES: how many; check-hard plays 100,000. */
TEST(random_traces_end_once_in_time_and_leak_nothing_under_every_batching) /* T-01 */
{
    const char *asked = getenv("LLMQ_TRACES");
    int n = asked ? atoi(asked) : 2000;
    CHECK(n > 0, "LLMQ_TRACES: expected a number, found '%s'", asked);
    for (int i = 0; i < n && !check_bad; i++) {
        eng_policy p = { .batching = (eng_batching)(i % ENG_N_BATCHINGS) };
        if (p.batching == ENG_DYNAMIC) p.batch_wait = (double)rnd(100) * 1e-3;
        if (p.batching == ENG_CONTINUOUS && rnd(2))
            p.served_ratio = (double)rnd(30) / 10, p.max_waiting_steps = 1 + rnd(40);
        play_trace(p, i);
    }
}

TEST(a_static_batch_runs_to_its_end_before_the_next)
{
    sim m;
    sim_open_as(&m, (eng_policy){ .batching = ENG_STATIC }, 100, 4, 64, false);
    seq *a = sim_add(&m, 4, 20, 0, -1);
    sim_add(&m, 4, 2, 0, -1);
    sim_step(&m, NULL);
    seq *late = sim_add(&m, 4, 2, 0, -1);
    for (int i = 0; i < 18; i++) {
        sim_step(&m, NULL);
        CHECK(!late->running && a->running, "step %d", i);
    }
    sim_step(&m, NULL); /* the last id of a */
    sim_step(&m, NULL);
    CHECK(late->running, "the next batch did not begin");
    while (m.sc.n_running || m.sc.n_waiting)
        sim_step(&m, NULL);
    sim_close(&m);
}

TEST(a_dynamic_batch_begins_when_it_is_full_or_has_waited)
{
    sim m;
    sim_open_as(&m, (eng_policy){ .batching = ENG_DYNAMIC, .batch_wait = 0.5 }, 100, 3, 64, false);
    m.now = 10;
    seq *a = sim_add(&m, 4, 3, 0, -1);
    CHECK(sim_step(&m, NULL) == 0 && !a->running && sched_due(&m.sc) == 10.5, "due %g",
          sched_due(&m.sc));
    m.now = 10.4;
    seq *b = sim_add(&m, 4, 3, -1, -1); /* first in line, and not the first that came */
    CHECK(sim_step(&m, NULL) == 0 && sched_due(&m.sc) == 10.5, "due %g", sched_due(&m.sc));
    m.now = 10.5;
    CHECK(sim_step(&m, NULL) == 8 && a->running && b->running, "waited long enough");
    CHECK(sched_due(&m.sc) == 0, "nothing waits");
    while (m.sc.n_running)
        sim_step(&m, NULL);
    for (int i = 0; i < 3; i++) {
        CHECK(sim_step(&m, NULL) == 0, "%d wait", i);
        sim_add(&m, 4, 1, 0, -1);
    }
    CHECK(sim_step(&m, NULL) == 12, "a full batch waits for nothing");
    sim_close(&m);
}

TEST(the_served_ratio_holds_few_back_for_a_while)
{
    sim m;
    eng_policy p = { .served_ratio = 0.5, .max_waiting_steps = 10 };
    sim_open_as(&m, p, 200, 16, 64, false);
    for (int i = 0; i < 8; i++)
        sim_add(&m, 2, 100, 0, -1);
    sim_step(&m, NULL);
    CHECK(m.sc.n_running == 8, "all begin when nothing runs");
    seq *one = sim_add(&m, 2, 100, 0, -1);
    int64_t held = 0;
    for (; !one->running && held < 100; held++)
        sim_step(&m, NULL);
    CHECK(held == 11, "held for %lld steps", (long long)held - 1);
    for (int i = 0; i < 4; i++)
        sim_add(&m, 2, 100, 0, -1);
    sim_step(&m, NULL);
    CHECK(m.sc.n_running == 9, "four are fewer than half of nine");
    sim_add(&m, 2, 100, 0, -1);
    sim_step(&m, NULL);
    CHECK(m.sc.n_running == 14, "five are not: %lld run", (long long)m.sc.n_running);
    while (m.sc.n_running || m.sc.n_waiting)
        sim_step(&m, NULL);
    sim_close(&m);
}

TEST(two_that_do_not_fit_together_do_not_push_each_other_out) /* T-04 */
{
    sim m;
    sim_open(&m, 10, 4, 64, false);
    sim_add(&m, 8, 40, 0, -1); /* six blocks of ten each */
    sim_add(&m, 8, 40, 0, -1);
    while (m.sc.n_running || m.sc.n_waiting)
        sim_step(&m, NULL);
    CHECK(m.sc.preemptions == 1, "%llu pre-emptions", (unsigned long long)m.sc.preemptions);
    sim_close(&m);
}

TEST(decodes_run_in_every_step_beside_a_long_prompt) /* T-06 */
{
    sim m;
    sim_open(&m, 200, 8, 32, false);
    seq *d = sim_add(&m, 4, 100, 0, -1);
    sim_step(&m, NULL);
    seq *p = sim_add(&m, 900, 1, 0, -1);
    int64_t steps = 0;
    while (p->n_done < 868) {
        int64_t before = seq_output(d), done = p->n_done;
        sim_step(&m, NULL);
        steps++;
        CHECK(seq_output(d) == before + 1, "step %lld: the decode did not move", (long long)steps);
        CHECK(p->n_done == done + 31, "step %lld: the prompt moved by %lld", (long long)steps,
              (long long)(p->n_done - done));
    }
    while (m.sc.n_running || m.sc.n_waiting)
        sim_step(&m, NULL);
    sim_close(&m);
}

TEST(a_prompt_takes_fewer_tokens_the_deeper_it_is)
{
    sim m;
    sim_open(&m, 4000, 64, 512, false);
    m.sc.beside = 32;
    m.sc.deep = 400;
    seq *deep = sim_add(&m, 4000, 1, 0, -1);
    for (int i = 0; i < 2; i++)
        sim_step(&m, NULL);
    CHECK(deep->n_done == 1024, "alone it is not paced: %lld", (long long)deep->n_done);
    for (int i = 0; i < 4; i++)
        sim_add(&m, 1, 4000, 0, -1);
    sim_step(&m, NULL); /* those begin */
    int64_t done = deep->n_done;
    sim_step(&m, NULL);
    CHECK(deep->n_done - done == 36 * 400 / (400 + done), "alone beside decodes: %lld",
          (long long)(deep->n_done - done));
    seq *fresh = sim_add(&m, 200, 1, 0, -1); /* what the deep one leaves is for others */
    done = deep->n_done;
    sim_step(&m, NULL);
    const int64_t share = deep->n_done - done; /* of 4 + 2 * 32 */
    CHECK(share == 68 * 400 / (400 + done), "%lld", (long long)share);
    CHECK(fresh->n_done == 68 - share, "%lld", (long long)fresh->n_done);
    while (m.sc.n_running || m.sc.n_waiting)
        sim_step(&m, NULL);
    sim_close(&m);
}

TEST(a_prompt_too_deep_for_a_share_of_each_step_has_bursts)
{
    enum { BURST = 6000, STEPS = 12 * SCHED_BURST_STEPS };
    sim m;
    sim_open(&m, 4000, 64, 512, false);
    m.sc.beside = 32;
    m.sc.deep = 100;
    m.sc.burst = BURST;
    seq *deep = sim_add(&m, 4000, 1, 0, -1), *next = sim_add(&m, 3500, 1, 0, -1);
    while (deep->n_done < 1000 || next->n_done < 1000)
        sim_step(&m, NULL);
    for (int i = 0; i < 4; i++)
        sim_add(&m, 1, 2 * STEPS, 0, -1);
    sim_step(&m, NULL); /* those begin */
    const int64_t before = next->n_done;
    seq *fresh = sim_add(&m, 37, 100, 0, -1);
    sim_step(&m, NULL);
    CHECK(fresh->n_done == 36, "one that is not deep begins: %lld", (long long)fresh->n_done);
    int64_t bursts = 0, last = 0;
    for (int64_t at = 0; at < STEPS; at++) {
        const int64_t done = deep->n_done;
        const int64_t cost = 100 + done;
        sim_step(&m, NULL);
        const int64_t n = deep->n_done - done;
        if (n == 0) continue;
        CHECK(bursts++ == 0 || at - last == SCHED_BURST_STEPS, "a burst after %lld steps",
              (long long)(at - last));
        last = at;
        const int64_t most = BURST * 100 / cost, half = 256 - m.sc.n_running + 2;
        CHECK(n == (most > half ? half : most), "%lld of %lld at %lld", (long long)n,
              (long long)most, (long long)done);
    }
    CHECK(bursts == 12, "%lld bursts", (long long)bursts);
    CHECK(next->n_done == before, "the next deep one waits for its turn: %lld",
          (long long)next->n_done);
    while (m.sc.n_running || m.sc.n_waiting)
        sim_step(&m, NULL);
    sim_close(&m);
}

TEST(prompts_beside_decodes_are_paced)
{
    sim m;
    sim_open(&m, 2000, 64, 512, false);
    m.sc.beside = 32;
    seq *long_one = sim_add(&m, 2000, 1, 0, -1);
    CHECK(sim_step(&m, NULL) == 512, "a prompt alone has the whole budget");
    for (int i = 0; i < 4; i++)
        sim_add(&m, 1, 400, 0, -1);
    sim_step(&m, NULL);
    const int64_t done = long_one->n_done;
    CHECK(sim_step(&m, NULL) == 4 + 4 + 32, "beside four decodes");
    CHECK(long_one->n_done == done + 36, "the prompt moved by %lld",
          (long long)(long_one->n_done - done));
    sim_add(&m, 900, 1, 0, -1);
    CHECK(sim_step(&m, NULL) == 4 + 4 + 2 * 32, "two prompts");
    for (int i = 0; i < 20; i++)
        sim_add(&m, 900, 1, 0, -1);
    CHECK(sim_step(&m, NULL) == 256, "half of the budget at most");
    while (m.sc.n_running || m.sc.n_waiting)
        sim_step(&m, NULL);
    sim_close(&m);
}

TEST(a_short_prompt_does_not_wait_for_a_long_one) /* T-08 */
{
    sim m;
    sim_open(&m, 400, 8, 64, false);
    seq *a = sim_add(&m, 1500, 1, 0, -1), *b = sim_add(&m, 1400, 1, 0, -1);
    sim_step(&m, NULL);
    seq *c = sim_add(&m, 60, 2, 0, -1);
    int steps = 0;
    for (; seq_output(c) == 0 && steps < 100; steps++) {
        int64_t before = a->n_done;
        sim_step(&m, NULL);
        CHECK(a->n_done >= before + 32, "the oldest got %lld", (long long)(a->n_done - before));
    }
    CHECK(steps == 2 && b->n_done > 0, "first token after %d steps", steps);
    while (m.sc.n_running || m.sc.n_waiting)
        sim_step(&m, NULL);
    sim_close(&m);
}

TEST(many_decodes_leave_room_for_prefill) /* T-07 */
{
    sim m;
    sim_open(&m, 400, 16, 8, false); /* more sequences than the budget has tokens */
    for (int i = 0; i < 15; i++)
        sim_add(&m, 1, 150, 0, -1);
    for (int i = 0; i < 20; i++)
        sim_step(&m, NULL);
    seq *p = sim_add(&m, 80, 1, 0, -1);
    for (int i = 0; i < 9; i++)
        sim_step(&m, NULL);
    CHECK(p->n_done >= 72, "%lld of the prompt after 9 steps", (long long)p->n_done);
    while (m.sc.n_running || m.sc.n_waiting)
        sim_step(&m, NULL);
    sim_close(&m);
}

static uint64_t order[16];
static int n_order;
static void note_order(seq *s) { order[n_order++ % 16] = s->id; }

TEST(lower_priority_numbers_and_earlier_arrivals_go_first)
{
    sim m;
    sim_open(&m, 20, 1, 32, false);
    static const int32_t prio[] = { 5, 0, 5, -1, 0 };
    static const uint64_t want[] = { 4, 2, 5, 1, 3 };
    for (int i = 0; i < 5; i++)
        sim_add(&m, 4, 2, prio[i], -1);
    n_order = 0;
    while (m.sc.n_running || m.sc.n_waiting)
        sim_step(&m, note_order);
    for (int i = 0; i < 5; i++)
        CHECK(order[i] == want[i], "place %d: request %llu", i, (unsigned long long)order[i]);
    sim_close(&m);
}

/* All of a prompt in one step; the oldest is never left out, whatever else waits. */
TEST(whole_prompts_are_one_step)
{
    sim m;
    sim_open(&m, 64, 6, 40, false);
    m.sc.whole = true;
    m.sc.score_rows = 40;
    for (int i = 0; i < 200; i++)
        sim_add(&m, i % 7 ? 1 + rnd(40) : 40, 0, 0, -1);
    while (m.sc.n_waiting || m.sc.n_running) {
        const int64_t left = m.sc.n_waiting + m.sc.n_running;
        sim_step(&m, NULL);
        for (int i = 0; i < m.sc.n_items; i++)
            CHECK(m.items[i].pos0 == 0 && m.items[i].n == m.items[i].seq_len, "step %lld: a part",
                  (long long)m.steps);
        CHECK(m.sc.n_waiting + m.sc.n_running < left, "step %lld: nobody left", (long long)m.steps);
        if (m.sc.n_waiting + m.sc.n_running == left) break;
    }
    sim_close(&m);
}

int main(int argc, char **argv)
{
    RUN(random_traffic_always_moves_and_all_of_it_ends);
    RUN(beam_searches_move_among_others_and_leak_nothing);
    RUN(random_traces_end_once_in_time_and_leak_nothing_under_every_batching);
    RUN(a_static_batch_runs_to_its_end_before_the_next);
    RUN(a_dynamic_batch_begins_when_it_is_full_or_has_waited);
    RUN(the_served_ratio_holds_few_back_for_a_while);
    RUN(two_that_do_not_fit_together_do_not_push_each_other_out);
    RUN(decodes_run_in_every_step_beside_a_long_prompt);
    RUN(a_prompt_takes_fewer_tokens_the_deeper_it_is);
    RUN(a_prompt_too_deep_for_a_share_of_each_step_has_bursts);
    RUN(prompts_beside_decodes_are_paced);
    RUN(a_short_prompt_does_not_wait_for_a_long_one);
    RUN(many_decodes_leave_room_for_prefill);
    RUN(lower_priority_numbers_and_earlier_arrivals_go_first);
    RUN(whole_prompts_are_one_step);
    return check_end();
}
