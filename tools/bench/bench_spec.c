/* tools/bench/bench_spec.c - `llmq bench model --spec-accept A`: what speculation gains for one sequence
 * when a guess is right with probability A.
 *
 * The acceptance is given, the arithmetic is real: the draft is the model's first two layers with
 * its head and computes every guess, and the model computes the rows that check them. Whether a
 * guess counts follows from the round, so each run accepts the same ones. Each step is followed by
 * one without guesses, so both meet the same machine. */
#include "tools/bench/bench_spec.h"

#include <stdio.h>

static const int64_t ways[] = { 1, 2, 3, 4, 6, 8 }; /* guesses a step */
static const double accepts[BENCH_ACCEPTS] = { 0.5, 0.6, 0.7, 0.8, 0.9 };
enum { MOST = 8, ROUNDS = 12, DRAFT_LAYERS = 2 };

/* How many of n guesses are right in round i: at least k of them with probability accept^k. The
 * rounds' numbers are spread evenly over 0..1 (multiples of the golden ratio), so that a few rounds
 * accept what many would. */
static int64_t right_in(int64_t i, int64_t n, double accept)
{
    double u = 0.5 + (double)i * 0.6180339887498949, p = accept;
    int64_t right = 0;
    for (u -= floor(u); right < n && u < p; p *= accept)
        right++;
    return right;
}

/* Ids of a step in the mean, its own and the guesses before the first that is wrong. */
static double ids_a_step(int64_t guesses, double accept)
{
    double ids = 1, p = 1;
    for (int64_t i = 0; i < guesses; i++)
        ids += p *= accept;
    return ids;
}

static lq_status run_way(bench_spec_row *r, bench_batch *big, bench_batch *small, double accept,
                         int64_t context, const lq_job *job, lq_err *err)
{
    int64_t tokens = 0, unread = 1; /* unread: by the draft, of the last step's ids */
    double total = 0, plain = 0, once = 0;
    lq_status s = LQ_OK;
    for (int64_t round = 0; round < ROUNDS && !s; round++) {
        for (int64_t i = 0; i < r->guesses && !s; i++) {
            int64_t n = i ? 1 : unread;
            s = bench_batch_step(&once, small, n, 1, context + tokens + i - (n - 1), err);
            total += once;
        }
        if (!s)
            s = bench_batch_step(&once, big, r->guesses + 1, r->guesses + 1, context + tokens, err);
        total += once;
        if (!s) s = bench_batch_step(&once, big, 1, 1, context + tokens, err);
        plain += once;
        int64_t right = right_in(round, r->guesses, accept);
        unread = right == r->guesses ? 2 : 1; /* the last guess was not read */
        tokens += right + 1;
        if (lq_stopped(job)) s = LQ_EINTR;
        lq_report(job, "speculation", (double)(round + 1), ROUNDS);
    }
    r->accepted = (double)(tokens - ROUNDS) / ROUNDS;
    r->tok_s = (double)tokens / total;
    r->plain_tok_s = ROUNDS / plain;
    r->speedup = r->tok_s / r->plain_tok_s;
    for (int i = 0; i < BENCH_ACCEPTS; i++)
        r->at[i] = ids_a_step(r->guesses, accepts[i]) * plain / total;
    return s;
}

lq_status bench_spec_run(bench_spec *b, const model *m, const bench_fwd *how, double accept,
                         int64_t context, const lq_job *job, lq_err *err)
{
    model few = *m;
    arch_config cfg = *m->cfg;
    bench_batch big, small = { 0 };
    if (cfg.layers > DRAFT_LAYERS) cfg.layers = DRAFT_LAYERS;
    few.cfg = &cfg;
    *b = (bench_spec){ .accept = accept, .draft_layers = cfg.layers };
    const int64_t len = context + (ROUNDS + 1) * (MOST + 1);
    lq_status s = bench_batch_open(&big, m, how, 1, len, MOST + 1, err);
    if (!s) s = bench_batch_open(&small, &few, how, 1, len, MOST + 1, err);
    double warm;
    if (!s) s = bench_batch_step(&warm, &big, MOST + 1, MOST + 1, context, err);
    if (!s) s = bench_batch_step(&warm, &small, 1, 1, context, err);
    for (size_t i = 0; i < LQ_COUNT(ways) && !s; i++) {
        bench_spec_row *r = &b->rows[b->n_rows++];
        r->guesses = ways[i];
        s = run_way(r, &big, &small, accept, context, job, err);
    }
    bench_batch_close(&small);
    bench_batch_close(&big);
    return s;
}

static double best_speedup(const bench_spec *b)
{
    double best = 0;
    for (int i = 0; i < b->n_rows; i++)
        best = b->rows[i].speedup > best ? b->rows[i].speedup : best;
    return best;
}

void bench_spec_json(cJSON *doc, const bench_spec *b)
{
    cJSON *o = cJSON_AddObjectToObject(doc, "speculation");
    cJSON_AddNumberToObject(o, "accept", b->accept);
    cJSON_AddNumberToObject(o, "draft_layers", (double)b->draft_layers);
    cJSON_AddNumberToObject(o, "best_speedup", best_speedup(b));
    cJSON *list = cJSON_AddArrayToObject(o, "rows");
    for (int i = 0; i < b->n_rows; i++) {
        const bench_spec_row *r = &b->rows[i];
        cJSON *row = cJSON_CreateObject();
        cJSON_AddNumberToObject(row, "guesses", (double)r->guesses);
        cJSON_AddNumberToObject(row, "accepted_per_step", r->accepted);
        cJSON_AddNumberToObject(row, "tok_s", r->tok_s);
        cJSON_AddNumberToObject(row, "plain_tok_s", r->plain_tok_s);
        cJSON_AddNumberToObject(row, "speedup", r->speedup);
        cJSON *at = cJSON_AddObjectToObject(row, "speedup_at");
        for (int k = 0; k < BENCH_ACCEPTS; k++) {
            char name[8];
            snprintf(name, sizeof name, "%.1f", accepts[k]);
            cJSON_AddNumberToObject(at, name, r->at[k]);
        }
        cJSON_AddItemToArray(list, row);
    }
}

void bench_spec_print(const bench_spec *b)
{
    printf("\none sequence, guesses of the first %lld layers that are right with probability %g\n",
           (long long)b->draft_layers, b->accept);
    printf("%-8s %12s %12s %12s %10s   speed-up at", "guesses", "right a step", "tokens/s",
           "without", "speed-up");
    for (int k = 0; k < BENCH_ACCEPTS; k++)
        printf(" %5.1f", accepts[k]);
    for (int i = 0; i < b->n_rows; i++) {
        const bench_spec_row *r = &b->rows[i];
        printf("\n%-8lld %12.2f %12.2f %12.2f %10.2f              ", (long long)r->guesses,
               r->accepted, r->tok_s, r->plain_tok_s, r->speedup);
        for (int k = 0; k < BENCH_ACCEPTS; k++)
            printf(" %5.2f", r->at[k]);
    }
    printf("\n");
}
