/* runtime/engine/sample.h - from logits to a token: penalties, bias, temperature, top-k, top-p, min-p,
 * seed, and the stages that other servers have (runtime/engine/stage.h).
 *
 * Order: allowed ids, logit bias and bans, repetition/presence/frequency penalties, DRY, the mask of
 * a grammar, top-n-sigma, temperature, top-k, typical, top-p, min-p, XTC, draw; or, from
 * top-n-sigma on, the order that a request gives. With x the adjusted logits and
 * w = exp((x - max x) / temperature):
 *
 *     top-k   keeps the k largest x, lower ids first on ties
 *     top-p   keeps, of those in falling order, the shortest run whose weight reaches p of theirs
 *     min-p   keeps, of those, w >= min_p (the largest w is 1)
 *     draw    takes the first of the kept ids at which the running sum of w exceeds u times the
 *             total
 *
 * Temperature 0 (or top_k 1) is the argmax of x, lowest id on ties.
 *
 * u of draw i depends only on (seed, i): counter-based (splitmix64), so a request gives the same
 * tokens alone or in a batch. Weights are added as integers (kernels/sampling.h) and exp is
 * kernels/ops.h's, so the result is the same on every machine that gives the same logits, and on a
 * device. */
#ifndef LLMQ_RUNTIME_ENGINE_SAMPLE_H
#define LLMQ_RUNTIME_ENGINE_SAMPLE_H

#include "base/base.h"
#include "kernels/device.h" /* dev_draw, dev_drawn */
#include "runtime/limits.h"

typedef struct {
    int32_t id;
    float bias;
} smp_bias;

/* runtime/engine/stages/dry.h */
typedef struct {
    float multiplier;       /* 0: off */
    float base;             /* at least 1 */
    int32_t allowed;        /* shortest run that is punished; at least 1 */
    int64_t last_n;         /* ids that are looked at; -1: all */
    const uint32_t *breaks; /* [(vocab + 31) / 32] bit id: no run has this id in it; NULL: none */
    const int32_t *runs;    /* further breakers: of each the number of its ids (>= 1), then those */
    int n_runs;             /* numbers in all */
} smp_dry;

enum { SMP_STAGES = 9 }; /* rows of runtime/engine/stage.c */

typedef struct {
    float temperature; /* 0: greedy */
    int32_t top_k;     /* 0 or -1: off */
    float top_p;       /* 1: off; 0 counts as 1 so that a zeroed struct is greedy and legal */
    float min_p;       /* 0: off */
    float repetition_penalty;                  /* 1 or 0: off; over prompt and output */
    float presence_penalty, frequency_penalty; /* over output */
    int64_t penalty_last_n; /* ids that the three look at, from the end; 0: all */
    /* each of them 0: off */
    smp_dry dry;
    float dynatemp_range, dynatemp_exponent;
    float typical_p; /* 1: off too */
    float top_n_sigma;
    float xtc_probability, xtc_threshold;
    struct { /* tok NULL: off */
        const struct tok_tokenizer *tok;
        const int32_t *ends; /* ids that end an answer */
        int n_ends;
    } infill;
    int mirostat; /* 0, or 2 */
    float mirostat_tau, mirostat_eta;
    float mu;                  /* mirostat's state before this draw: 2 tau before the first */
    uint8_t order[SMP_STAGES]; /* numbers of stages from 1 on, 0 at the end; [0] 0: the usual one */
    uint64_t seed;
    const smp_bias *bias; /* sorted by id, no id twice; -inf bans */
    int n_bias;
    const int32_t *allowed; /* sorted, no id twice; NULL: all */
    int n_allowed;
    const uint32_t
        *mask;    /* [(vocab + 31) / 32] bit id % 32 of word id / 32: may be drawn; NULL: all */
    int logprobs; /* -1: none; else how many alternatives, 0..20 */
    const int32_t *asked; /* with logprobs: the alternatives are these ids, in this order; NULL: the
                             likeliest */
    int n_asked;          /* 0..20 */
} smp_params;

typedef struct {
    int32_t id;
    float logprob; /* of the raw distribution (before penalties and temperature); smp_sample leaves
                      it 0 when params.logprobs is -1 */
    int32_t rank;  /* smp_score: 1 + how many ids are likelier */
    int n_top;
    int32_t top_id[SMP_MAX_LOGPROBS]; /* falling logprob, raw distribution; or as asked */
    float top_logprob[SMP_MAX_LOGPROBS];
} smp_result;

/* Ranges (finite, temperature >= 0, top_k >= -1, top_p and min_p within 0..1, penalties), ids below
 * vocab, order. LQ_EVALUE names the field and the value found. What passes here is safe below. */
lq_status smp_check(const smp_params *p, int64_t vocab, lq_err *err);

/* The uniform number in [0, 1) of draw i of a seed. */
double smp_uniform(uint64_t seed, uint64_t i);

typedef struct smp_ctx smp_ctx;  /* scratch for one vocabulary; one thread at a time */
size_t smp_bytes(int64_t vocab); /* of one */
lq_status smp_open(smp_ctx **s, int64_t vocab, lq_err *err);
void smp_close(smp_ctx *s);
/* prompt and output ids of the sequence so far (for the penalties); draw: number of this draw.
 * LQ_EVALUE: a logit is NaN or infinite. LQ_ENOENT: every id is banned. Logits are read only.
 * Allocates nothing. */
lq_status smp_sample(smp_ctx *s, smp_result *out, const float *logits, const smp_params *p,
                     const int32_t *prompt, int64_t n_prompt, const int32_t *output,
                     int64_t n_output, uint64_t draw, lq_err *err);
/* -log2 of the probability, among the ids that the stages left, of the id that smp_sample drew last;
 * only where p->mirostat. */
float smp_surprise(const smp_ctx *s);
/* mu after a draw of that surprise. */
float smp_mirostat(const smp_params *p, float surprise);
/* The same on a device, from row `row` of the logits there. edits: room for so many; d points to
 * them and to the mask. False: the draw is the host's, as ids are allowed or asked for by a list, stages
 * are wanted, or bias and penalties change more logits than there is room for. */
bool smp_on_device(smp_ctx *s, dev_draw *d, dev_edit *edits, int64_t room, const smp_params *p,
                   const int32_t *prompt, int64_t n_prompt, const int32_t *output, int64_t n_output,
                   uint64_t draw, int64_t row);
/* What smp_sample would have said. */
lq_status smp_take(smp_result *out, const dev_drawn *d, lq_err *err);
/* One of the likeliest ids of a row. */
typedef struct {
    int32_t id;
    float score;   /* its log-probability, and then all that comes before the temperature */
    float logprob; /* of the raw distribution */
} smp_cand;

/* For beam search: the k ids of the highest score, falling, lower ids first; *n: how many there
 * are, since banned ones are none. Bias, penalties and bans act on log-probabilities as smp_sample
 * lets them act on logits. top (NULL: not wanted): the p->logprobs alternatives of the row. */
lq_status smp_best(smp_ctx *s, smp_cand *out, int64_t k, int64_t *n, smp_result *top,
                   const float *logits, const smp_params *p, const int32_t *prompt,
                   int64_t n_prompt, const int32_t *output, int64_t n_output, lq_err *err);
/* Logprobs of a given token and its top alternatives (echo, prompt logprobs). */
lq_status smp_score(smp_ctx *s, smp_result *out, const float *logits, int32_t id, int n_top,
                    lq_err *err);

#endif
