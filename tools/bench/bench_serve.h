/* tools/bench/bench_serve.h - what the parts of `llmq bench serve` share.
 *
 * A run sends requests to a server and notes of each when its tokens came:
 *
 *     closed loop    --concurrency C: C are under way at any time
 *     open loop      --request-rate R: they begin at the times of a Poisson process, whatever the
 *                    server does
 *
 * TTFT is from a request's beginning to its first text, ITL between the arrivals of texts, TPOT the
 * mean time of a request's tokens after the first, E2EL to its end. */
#ifndef LLMQ_TOOLS_BENCH_BENCH_SERVE_H
#define LLMQ_TOOLS_BENCH_BENCH_SERVE_H

#include "tools/bench/bench.h"
#include "tools/server/client.h"

typedef enum { BS_RANDOM, BS_PREFIX, BS_TURNS, BS_ABORT, BS_LONG, BS_N_LOADS } bs_load;
extern const char *const bs_load_names[BS_N_LOADS + 1]; /* ends with NULL */

/* Limits that a request must keep to be good, in seconds; 0: none. */
typedef struct {
    double ttft, tpot, e2el;
} bs_slo;
/* "ttft:200,tpot:50,e2el:2000" in milliseconds, each at most once. LQ_EUSAGE. */
lq_status bs_slo_parse(bs_slo *s, const char *text, lq_err *err);

/* Growing list of times in seconds. */
typedef struct {
    double *v;
    size_t n, cap;
} bs_times;
bool bs_push(bs_times *t, double v);
/* The p-th percentile, 0..100, linear between neighbours (as numpy's default); sorts. 0 of none. */
double bs_percentile(bs_times *t, double p);

/* One finished request. */
typedef struct {
    bool ok, aborted; /* aborted: as the load wanted */
    bool has_text;    /* else no ttft and no tpot */
    double ttft, e2el;
    int64_t prompt_tokens, output_tokens;
} bs_done;

/* What a run has seen. */
typedef struct {
    int64_t concurrency; /* 0: open loop */
    double rate;         /* 0: closed loop */
    bs_done *done;       /* [n] */
    int64_t n, room;
    bs_times itl;
    double seconds;
    /* Of BS_LONG: long prompts that were read to their end beside these requests, and how long that took them;
     * p99 of the ITL over that without them. 0: a run without. */
    int64_t long_read, long_failed;
    double long_seconds, long_ratio;
    char error[256]; /* of the first request that failed */
} bs_run;
void bs_run_free(bs_run *r);

enum { BS_PIECES = 256 };
/* What is sent: made ahead, the same for a seed. */
typedef struct {
    int32_t *ids; /* of the text that prompts are cut from; NULL: words are sent */
    int64_t n_ids;
    const char *text; /* of words; n_text bytes */
    size_t n_text;
    struct { /* where a piece of the text begins, and its ids */
        size_t at;
        int64_t id;
    } piece[BS_PIECES + 1];
    int n_pieces;
} bs_text;

/* tools/bench/bench_report.c */
void bs_print(const bs_run *r, const bs_slo *slo, bool first);
cJSON *bs_json(bs_run *r, const bench_cmd *o, const bs_slo *slo, const char *model);

#endif
