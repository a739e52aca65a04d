/* runtime/engine/sched.c - see sched.h. */
#include "runtime/engine/sched.h"

#include <stdlib.h>

void sched_size(sched *sc, int64_t max_seqs, int64_t batch_tokens, int64_t draft_rows)
{
    memset(sc, 0, sizeof *sc);
    sc->max_seqs = max_seqs;
    sc->batch_tokens = batch_tokens;
    sc->least = batch_tokens < SCHED_LEAST ? batch_tokens : SCHED_LEAST;
    sc->score_rows = SCHED_SCORE_ROWS;
    sc->draft_rows = draft_rows;
}

lq_status sched_open(sched *sc, kv_cache *kv, const eng_policy *policy, int64_t max_seqs,
                     int64_t batch_tokens, lq_err *err)
{
    sched_size(sc, max_seqs, batch_tokens, 0);
    sc->kv = kv;
    sc->policy = *policy;
    if (!sc->policy.max_waiting_steps) sc->policy.max_waiting_steps = SCHED_WAITING_STEPS;
    sc->running = calloc((size_t)max_seqs, sizeof *sc->running);
    sc->planned = calloc((size_t)max_seqs, sizeof *sc->planned);
    if (sc->running && sc->planned) return LQ_OK;
    sched_close(sc);
    return lq_fail(err, LQ_ENOMEM, "scheduler: out of memory");
}

void sched_close(sched *sc)
{
    free(sc->running);
    free(sc->planned);
    memset(sc, 0, sizeof *sc);
}

int64_t sched_max_rows(const sched *sc)
{
    int64_t n = sc->max_seqs + sc->least;
    return (n > sc->batch_tokens ? n : sc->batch_tokens) + sc->draft_rows;
}

int64_t sched_max_logits(const sched *sc)
{
    int64_t n = sc->max_seqs + sc->score_rows + sc->draft_rows, rows = sched_max_rows(sc);
    return n < rows ? n : rows;
}

/* ---- the two lists ---- */

static bool older(const seq *a, const seq *b)
{
    if (a->r.priority != b->r.priority) return a->r.priority < b->r.priority;
    return a->id < b->id;
}

void sched_wait(sched *sc, seq *s)
{
    seq **p = &sc->waiting;
    while (*p && older(*p, s))
        p = &(*p)->next;
    s->next = *p;
    *p = s;
    sc->n_waiting++;
}

static void leave_waiting(sched *sc, seq *s)
{
    seq **p = &sc->waiting;
    while (*p != s)
        p = &(*p)->next;
    *p = s->next;
    s->next = NULL;
    sc->n_waiting--;
}

static void join_running(sched *sc, seq *s)
{
    int64_t i = sc->n_running++;
    for (; i > 0 && older(s, sc->running[i - 1]); i--)
        sc->running[i] = sc->running[i - 1];
    sc->running[i] = s;
    sc->n_places += beam_places(s);
    s->running = true;
}

static void leave_running(sched *sc, seq *s)
{
    int64_t i = 0;
    while (sc->running[i] != s)
        i++;
    sc->n_running--;
    for (; i < sc->n_running; i++)
        sc->running[i] = sc->running[i + 1];
    sc->n_places -= beam_places(s);
    s->running = false;
    beam_release(sc->kv, s);
    s->n_done = 0;
}

void sched_remove(sched *sc, seq *s)
{
    if (s->running)
        leave_running(sc, s);
    else
        leave_waiting(sc, s);
    sc->left++;
}

static void preempt(sched *sc, seq *s)
{
    leave_running(sc, s);
    beam_restart(s);
    s->preempted = true;
    s->preempt_mark = sc->left;
    s->looked = false;
    s->plan_n = 0;
    sc->preemptions++;
    sched_wait(sc, s);
}

/* ---- admission ---- */

double sched_due(const sched *sc)
{
    if (sc->policy.batching != ENG_DYNAMIC || sc->n_running > 0 || !sc->waiting ||
        sc->n_waiting >= sc->max_seqs)
        return 0;
    double first = sc->waiting->arrived;
    for (const seq *s = sc->waiting->next; s; s = s->next)
        if (s->arrived < first) first = s->arrived;
    return first + sc->policy.batch_wait;
}

/* May those that never ran begin in this step? */
static bool opens(const sched *sc, double now)
{
    const eng_policy *p = &sc->policy;
    if (sc->n_running == 0) return now >= sched_due(sc);
    if (p->batching != ENG_CONTINUOUS) return false;
    return (double)sc->n_waiting >= p->served_ratio * (double)sc->n_running ||
           sc->held >= p->max_waiting_steps;
}

static seq *first_in_line(sched *sc, double now)
{
    if (sc->gate == GATE_ASK) sc->gate = opens(sc, now) ? GATE_OPEN : GATE_SHUT;
    seq *s = sc->waiting;
    while (s && (s->reading || (sc->gate == GATE_SHUT && !s->preempted)))
        s = s->next;
    return s;
}

static bool may_try(const sched *sc, const seq *s)
{
    if (!s || sc->n_places + beam_places(s) > sc->max_seqs) return false;
    if (sc->n_running == 0) return true;
    if (s->preempted && s->preempt_mark == sc->left) return false;
    return sc->blocked != s->id || sc->blocked_left != sc->left ||
           kv_spare_blocks(sc->kv) > sc->blocked_free;
}

/* Scoring needs the logits of every position, so it computes them all. */
static bool looks(const sched *sc, seq *s)
{
    return sc->look && !seq_scoring(s) && sc->look(sc->look_user, s);
}

/* Does a batch that begins together wait for one of it? */
static bool batch_looks(const sched *sc)
{
    int64_t n = 0;
    bool any = false;
    if (!sc->look || sc->policy.batching == ENG_CONTINUOUS || sc->n_running) return false;
    for (seq *s = sc->waiting; s && n < sc->max_seqs; s = s->next, n++)
        any |= s->reading || looks(sc, s);
    return any;
}

seq *sched_admit(sched *sc, double now)
{
    seq *s = first_in_line(sc, now);
    if (s && batch_looks(sc)) return NULL;
    while (may_try(sc, s) && looks(sc, s))
        s = first_in_line(sc, now);
    if (!may_try(sc, s)) return NULL;
    const int32_t *ids = s->ids ? s->ids : s->r.prompt;
    int64_t cached = 0, free_before = kv_spare_blocks(sc->kv);
    if (!seq_scoring(s)) cached = kv_match_prefix(sc->kv, &s->kv, ids, s->n_ids, s->r.salt);
    const lq_status st = kv_reserve(sc->kv, &s->kv, s->n_ids, &s->err);
    const bool starved = st == LQ_ENOMEM && !sc->n_running; /* nobody's end would give any back */
    if (starved) s->status = st;
    if (!starved && (st || kv_spare_blocks(sc->kv) < sc->n_places)) {
        kv_seq_free(sc->kv, &s->kv);
        sc->blocked = s->id;
        sc->blocked_free = free_before;
        sc->blocked_left = sc->left;
        return NULL;
    }
    leave_waiting(sc, s);
    join_running(sc, s);
    if (!s->preempted) sc->held = 0;
    s->n_done = cached;
    if (!s->admitted) s->n_cached = cached;
    return s;
}

/* ---- the plan of a step ---- */

static int64_t todo(const seq *s) { return s->n_ids - s->n_done; }

/* Blocks for all ids of s, at the cost of the youngest; false when s itself had to go. */
static bool make_room(sched *sc, seq *s)
{
    lq_err ignored;
    while (beam_reserve(sc->kv, s, s->n_ids, &ignored)) {
        seq *youngest = sc->running[sc->n_running - 1];
        preempt(sc, youngest);
        if (youngest == s) return false;
    }
    return true;
}

/* Up to `share` more ids of s; returns how many. Logits rows for scoring come out of *score. */
static int64_t grow(seq *s, int64_t share, int64_t *score)
{
    int64_t n = todo(s) - s->plan_n;
    if (n > share) n = share;
    if (seq_scoring(s)) {
        int64_t at = s->n_done + s->plan_n, fresh = at - s->n_scored; /* < 0: scored before */
        int64_t free_rows = (fresh < 0 ? -fresh : 0) + *score;
        if (n > free_rows) n = free_rows;
        int64_t rows = n - (fresh < 0 ? -fresh : 0);
        if (rows > 0) *score -= rows;
    }
    s->plan_n += n;
    return n;
}

/* Tokens that n prompts may take of a step which has `decodes` rows of them. */
static int64_t prefill_quota(const sched *sc, int64_t decodes, int64_t n)
{
    int64_t quota = sc->batch_tokens - decodes;
    if (decodes && sc->beside) {
        const int64_t paced = decodes + n * sc->beside, half = sc->batch_tokens / 2 - decodes;
        if (quota > paced) quota = paced;
        if (quota > half) quota = half;
    }
    return quota > sc->least ? quota : sc->least;
}

double sched_cost(const sched *sc, const seq *s)
{
    return sc->deep ? 1 + (double)s->n_done / (double)sc->deep : 1;
}

/* As much of `quota` tokens as s may take: so many of its own cost as much as they do at its beginning. */
static int64_t deep_share(const sched *sc, const seq *s, int64_t decodes, int64_t quota)
{
    if (!decodes || !sc->beside || !sc->deep) return quota;
    const int64_t most = (int64_t)((double)quota / sched_cost(sc, s));
    return most > SCHED_DEEP_LEAST ? most : quota < SCHED_DEEP_LEAST ? quota : SCHED_DEEP_LEAST;
}

/* So deep in its prompt that what decodes leave to it in a step is too little to be worth a step. */
static bool is_deep(const sched *sc, const seq *s, int64_t decodes)
{
    return decodes && sc->beside && sc->deep &&
           (double)(decodes + sc->beside) < SCHED_DEEP_LEAST * sched_cost(sc, s);
}

/* Many tokens of a deep prompt in one step, then none for SCHED_BURST_STEPS. Returns how many. */
static int64_t plan_burst(sched *sc, seq *s, int64_t decodes, int64_t *score)
{
    if (!s || sc->since < SCHED_BURST_STEPS) return 0;
    const int64_t half = sc->batch_tokens / 2 - decodes;
    int64_t n = (int64_t)(sc->burst / sched_cost(sc, s));
    if (n > half) n = half;
    if (n < sc->least) n = sc->least;
    sc->bursts = true;
    sc->since = 0;
    return grow(s, n, score);
}

static void plan_prefill(sched *sc, int64_t decodes)
{
    int64_t n = 0, score = sc->score_rows;
    seq *oldest = NULL, *deep = NULL;
    for (int64_t i = 0; i < sc->n_running; i++) {
        seq *s = sc->running[i];
        if (todo(s) <= 1) continue;
        if (is_deep(sc, s, decodes)) {
            if (!deep) deep = s;
            continue;
        }
        if (!oldest) oldest = s;
        n++;
    }
    sc->since += decodes > 0;
    sc->bursts = false;
    if (plan_burst(sc, deep, decodes, &score) > 0 || !oldest) return;
    int64_t quota = prefill_quota(sc, decodes, n);
    int64_t most = deep_share(sc, oldest, decodes, quota); /* of the oldest's, in all */
    int64_t first = n > 1 ? (quota + 1) / 2 : quota;
    if (first > most) first = most;
    first = grow(oldest, first, &score);
    most -= first;
    quota -= first;
    for (; n > 1 && quota > 0; n--) {
        seq *least = NULL;
        for (int64_t i = 0; i < sc->n_running; i++) {
            seq *s = sc->running[i];
            if (todo(s) > 1 && s->plan_n == 0 && !is_deep(sc, s, decodes) &&
                (!least || todo(s) < todo(least)))
                least = s;
        }
        if (!least) break;
        int64_t got = grow(least, deep_share(sc, least, decodes, quota), &score);
        if (got == 0) break; /* no rows left for scoring */
        quota -= got;
    }
    if (quota > most) quota = most;
    if (quota > 0) grow(oldest, quota, &score);
}

static void plan_whole(sched *sc)
{
    int64_t left = sc->batch_tokens;
    for (int64_t i = 0; i < sc->n_running; i++) {
        seq *s = sc->running[i];
        if (todo(s) > left) continue;
        s->plan_n = todo(s);
        left -= s->plan_n;
    }
}

_Static_assert((int)SPEC_MAX <= (int)KV_UNDO, "a state can be kept before each guess");

/* decodes: rows of them in this step, each of which may be followed by guesses. */
static void plan_drafts(sched *sc, int64_t decodes)
{
    lq_err ignored;
    int64_t left = SPEC_ROWS - decodes;
    if (left > sc->draft_rows) left = sc->draft_rows;
    for (int64_t i = 0; i < sc->n_running; i++) {
        seq *s = sc->running[i];
        s->plan_draft = 0;
        if (s->plan_n != 1 || todo(s) != 1) continue;
        int64_t n = s->n_draft < left ? s->n_draft : left;
        if (n <= 0 || kv_reserve(sc->kv, &s->kv, s->n_ids + n, &ignored)) continue;
        n = kv_keep_states(sc->kv, &s->kv, n);
        s->plan_draft = n;
        left -= n;
    }
}

/* First row of the chunk that wants logits. */
static int64_t logits_from(const seq *s)
{
    if (seq_scoring(s)) return s->n_scored > s->n_done ? s->n_scored - s->n_done : 0;
    const bool wanted = s->max_new > 0 || s->r.pool;
    bool samples = s->n_done + s->plan_n == s->n_ids && wanted;
    return samples ? s->plan_n - 1 : s->plan_n;
}

static void plan_chunks(sched *sc)
{
    int64_t rows = 0;
    for (int64_t i = 0; i < sc->n_running; i++) {
        seq *s = sc->running[i];
        if (todo(s) != 1) continue;
        if (!make_room(sc, s)) break; /* s was the youngest, hence the last */
        s->plan_n = 1;
        rows += beam_rows(s);
    }
    plan_prefill(sc, rows);
    plan_drafts(sc, rows);
}

int sched_plan(sched *sc, fwd_item *items)
{
    int n = 0;
    sc->gate = GATE_ASK;
    if (sc->n_waiting > 0) sc->held++;
    for (int64_t i = 0; i < sc->n_running; i++)
        sc->running[i]->plan_n = 0;
    if (sc->whole)
        plan_whole(sc);
    else
        plan_chunks(sc);
    sc->n_items = 0;
    for (int64_t i = 0; i < sc->n_running; i++) {
        seq *s = sc->running[i];
        if (!s->plan_n) continue;
        s->plan_from = logits_from(s);
        if (s->plan_from > s->plan_n) s->plan_from = s->plan_n;
        sc->planned[n++] = s;
        if (s->beams && s->beams->n_lines) {
            sc->n_items += beam_items(s, items + sc->n_items);
            continue;
        }
        items[sc->n_items++] = (fwd_item){ .seq = &s->kv,
                                           .ids = s->ids + s->n_done,
                                           .n = s->plan_n + s->plan_draft,
                                           .pos0 = s->n_done,
                                           .logits_from = s->plan_from,
                                           .n_first = s->r.n_first,
                                           .seq_len = s->n_prompt,
                                           .lora = s->r.lora };
    }
    return n;
}
