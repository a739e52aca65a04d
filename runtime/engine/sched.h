/* runtime/engine/sched.h - who runs in the next step, and how many of its ids.
 *
 * Order is (priority, arrival): lower first. A step takes, in this order,
 *   1. one row for each running sequence that has one id to compute (decode; of a beam search one
 *      for each line), oldest first; when
 *      blocks run out the youngest running sequence is pre-empted (its blocks go, its ids stay, it
 *      waits again at its old place and computes them again);
 *   2. prefill chunks within what is left of the token budget, at least `least` tokens: half for
 *      the oldest, the rest for the shortest, what remains for the oldest again. So neither a long
 *      prompt nor a stream of short ones keeps another from starting. Beside decodes they are
 *      paced: as many tokens as there are decodes, and `beside` for each prompt, up to half of the
 *      budget in all. `beside` is learned on the CPU: a prompt beside decodes makes their step some three
 *      times as long. Far into a
 *      long prompt a token costs more, by what it attends to: beyond `deep` tokens it takes fewer. Where
 *      less than SCHED_DEEP_LEAST would be left of it, the oldest such prompt has a step of many
 *      (`burst`) after SCHED_BURST_STEPS without: so few gaps between the tokens of others are long
 *      ones, and what it attends to is read for many tokens at once.
 *   3. guesses of decodes (runtime/engine/spec.h), within SPEC_ROWS rows of decodes and guesses: they take
 *      blocks that are free, never another's.
 * Where all of a prompt belongs in one step (`whole`) a step takes those that fit, oldest first.
 *
 * Admission reserves the blocks of all ids that a sequence has, and leaves one block free for each
 * that runs, so prefill never runs out of blocks. The oldest running sequence is never pre-empted,
 * and each fits the pool alone (the engine sees to that): something always moves. A pre-empted
 * sequence comes back only after another has left, so there is no ping-pong: between two
 * departures each running sequence is pre-empted at most once.
 *
 * One whose beginning is read from disk (runtime/engine/disk.h) is passed over until that is over; a batch
 * that begins together waits for it.
 *
 * eng_policy (runtime/engine/engine.h) decides when waiting requests may begin. They always may
 * when nothing runs (dynamic: at most batch_wait later), and a pre-empted sequence still belongs to
 * those that run. So with equal priorities the oldest request in the engine is always at work, and
 * gains an output id or least / 2 ids of prefill in every step without a burst, or `least` ids in
 * SCHED_BURST_STEPS steps: that bounds every wait. */
#ifndef LLMQ_RUNTIME_ENGINE_SCHED_H
#define LLMQ_RUNTIME_ENGINE_SCHED_H

#include "runtime/engine/beam.h"
#include "runtime/engine/engine_opts.h"

typedef struct {
    kv_cache *kv;
    eng_policy policy;
    int64_t max_seqs, batch_tokens, least, score_rows;
    int64_t beside; /* tokens of a prompt beside decodes; 0: not paced */
    int64_t deep;   /* positions that a token attends to at the cost of its weights; 0: not known */
    double burst;   /* tokens of a burst, at the cost of a prompt's first ones */
    int64_t since;  /* steps with decodes since the last burst */
    bool bursts;    /* the last plan has one */
    seq *waiting;   /* sorted */
    int64_t n_waiting;
    seq **running;               /* [max_seqs], sorted */
    int64_t n_running, n_places; /* places: of a step, for those that run (beam_places) */
    seq **planned;               /* [max_seqs] the sequences of the last plan, in its order */
    int n_items;   /* of the last plan: one for each of them, of a beam search one for each line */
    uint64_t left; /* sequences that have left */
    uint64_t preemptions;
    uint64_t blocked;     /* id of the one that was tried last and did not fit; 0: none */
    int64_t blocked_free; /* free blocks then */
    uint64_t blocked_left;
    bool whole;         /* a prompt is computed in one step: none is longer than batch_tokens */
    int64_t draft_rows; /* guesses that a step may have; 0: none */
    /* Of one that could begin: does something come first that it waits for? s->reading until then, and
     * others may begin. NULL: nothing does. */
    bool (*look)(void *user, seq *s);
    void *look_user;
    enum { GATE_ASK, GATE_OPEN, GATE_SHUT } gate; /* whether who waits may begin in this step */
    int64_t held;                                 /* steps since one began, while others waited */
} sched;

/* SCHED_BESIDE: on a CPU reading the weights takes as long as the products of some 16 rows. */
enum {
    SCHED_LEAST = 16,
    SCHED_DEEP_LEAST = 4,
    SCHED_BESIDE = 32,
    SCHED_BURST_STEPS = 128, /* bursts are below one gap of a hundred: p99 does not see them */
    SCHED_BURST = 256,
    SCHED_SCORE_ROWS = 32,
    SCHED_WAITING_STEPS = 20
};

/* What a token of the sequence costs, of one at its beginning: 1 or more. */
double sched_cost(const sched *sc, const seq *s);
lq_status sched_open(sched *sc, kv_cache *kv, const eng_policy *policy, int64_t max_seqs,
                     int64_t batch_tokens, lq_err *err);
void sched_close(sched *sc);
/* The sizes alone, of one that is not open: for what follows. */
void sched_size(sched *sc, int64_t max_seqs, int64_t batch_tokens, int64_t draft_rows);
/* Most rows, and most logits rows, of any plan. */
int64_t sched_max_rows(const sched *sc);
int64_t sched_max_logits(const sched *sc);

void sched_wait(sched *sc, seq *s); /* into the waiting list */
/* The next sequence to start, with blocks for all its ids, now running; NULL: none fits, or none
 * may begin yet. now: on the clock of seq.arrived. */
seq *sched_admit(sched *sc, double now);
/* When a batch that waits to fill begins at the latest; 0: nothing waits for the clock. */
double sched_due(const sched *sc);
/* Fill items [max_seqs] and sc->planned; returns how many sequences. Their blocks are reserved. */
int sched_plan(sched *sc, fwd_item *items);
/* Take it out, wherever it is, and free its blocks. */
void sched_remove(sched *sc, seq *s);

#endif
