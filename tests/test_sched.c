/* The scheduler alone, in virtual time: no model, only sequences that grow and a real block pool.
 */
#include "runtime/sched.h"
#include "tests/check.h"

#include <stdlib.h>

static uint64_t lcg = 7;
static int64_t rnd(int64_t n)
{
    lcg = lcg * 6364136223846793005u + 1442695040888963407u;
    return (int64_t)((lcg >> 33) % (uint64_t)n);
}

enum { VOCAB = 50, BLOCK = 8 };
static const arch_config cfg = { .vocab = VOCAB,
                                 .layers = 1,
                                 .kv_heads = 1,
                                 .head_dim = 4,
                                 .v_dim = 4,
                                 .max_pos = 4096,
                                 .bos = -1 };

typedef struct {
    kv_cache *kv;
    sched sc;
    fwd_item *items;
    int64_t n_blocks, steps, max_new_steps;
    uint64_t next_id;
} sim;

static void sim_open(sim *m, int64_t n_blocks, int64_t max_seqs, int64_t batch, bool prefix)
{
    lq_err err;
    memset(m, 0, sizeof *m);
    kv_opts k = {
        .n_blocks = n_blocks, .block_size = BLOCK, .dtype = KV_F32, .prefix_cache = prefix
    };
    m->n_blocks = n_blocks;
    CHECK(!kv_open(&m->kv, &cfg, &k, &err), "%s", err.msg);
    CHECK(!sched_open(&m->sc, m->kv, max_seqs, batch, &err), "%s", err.msg);
    m->items = calloc((size_t)max_seqs, sizeof *m->items);
    m->next_id = 1;
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
                      .priority = priority };
    CHECK(!seq_new(&s, &r, &cfg, m->n_blocks * BLOCK, false, &err), "%s", err.msg);
    s->id = m->next_id++;
    sched_wait(&m->sc, s);
    free(ids);
    return s;
}

/* One step: every planned sequence computes its chunk, appends an id at the end of it, leaves when
 * it has all. gone: called before a sequence is freed. Returns rows. */
static int64_t sim_step(sim *m, void (*gone)(seq *s))
{
    lq_err err;
    for (seq *s; (s = sched_admit(&m->sc));) {
        s->admitted = true;
        if (!s->prepared) CHECK(!seq_prepare(s, &cfg, NULL, &err), "%s", err.msg);
    }
    int n = sched_plan(&m->sc, m->items);
    int64_t rows = 0, logits = 0;
    for (int i = 0; i < n; i++) {
        seq *s = m->sc.planned[i];
        fwd_item *it = &m->items[i];
        CHECK(it->n >= 1 && it->pos0 == s->n_done && it->pos0 + it->n <= s->n_ids, "item %d", i);
        CHECK(s->kv.tokens >= it->pos0 + it->n, "item %d has no room in the cache", i);
        rows += it->n;
        logits += it->n - it->logits_from;
    }
    CHECK(rows <= sched_max_rows(&m->sc), "%lld rows", (long long)rows);
    CHECK(logits <= sched_max_logits(&m->sc), "%lld logits rows", (long long)logits);
    for (int i = 0; i < n; i++) {
        seq *s = m->sc.planned[i];
        s->n_done += s->plan_n;
        kv_register(m->kv, &s->kv, s->ids, s->n_done, NULL);
        if (s->r.prompt_logprobs >= 0 && s->n_done > s->n_scored) s->n_scored = s->n_done;
        if (s->n_done < s->n_ids) continue;
        if (s->max_new > 0) s->ids[s->n_ids++] = (int32_t)rnd(3);
        if (seq_output(s) < s->max_new) continue;
        sched_remove(&m->sc, s);
        if (gone) gone(s);
        seq_free(s);
    }
    m->steps++;
    return rows;
}

TEST(random_traffic_always_moves_and_all_of_it_ends)
{
    for (int round = 0; round < 60; round++) {
        sim m;
        int64_t blocks = 4 + rnd(40), seqs = 1 + rnd(12), batch = 1 + rnd(40);
        sim_open(&m, blocks, seqs, batch, round % 2);
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
            if (m.steps > 1000000) break;
        }
        CHECK(idle == 0, "round %d: %llu steps did nothing", round, (unsigned long long)idle);
        /* Between two departures each running sequence is pre-empted at most once. */
        CHECK(m.sc.preemptions <= 150 * (uint64_t)seqs, "round %d: %llu pre-emptions", round,
              (unsigned long long)m.sc.preemptions);
        sim_close(&m);
    }
}

TEST(two_that_do_not_fit_together_do_not_push_each_other_out)
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

TEST(decodes_run_in_every_step_beside_a_long_prompt)
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

TEST(a_short_prompt_does_not_wait_for_a_long_one)
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

TEST(many_decodes_leave_room_for_prefill)
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

int main(int argc, char **argv)
{
    RUN(random_traffic_always_moves_and_all_of_it_ends);
    RUN(two_that_do_not_fit_together_do_not_push_each_other_out);
    RUN(decodes_run_in_every_step_beside_a_long_prompt);
    RUN(a_short_prompt_does_not_wait_for_a_long_one);
    RUN(many_decodes_leave_room_for_prefill);
    RUN(lower_priority_numbers_and_earlier_arrivals_go_first);
    return check_end();
}
