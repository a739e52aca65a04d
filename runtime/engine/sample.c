/* runtime/engine/sample.c - see sample.h.
 *
 * The token path never sorts the vocabulary: top-k streams it past a heap of k ids, top-p orders
 * ids only until enough weight has come, and what needs no order is drawn in the order of ids. */
#include "runtime/engine/sample.h"

#include <assert.h>
#include <stdlib.h>

#include "kernels/ops.h"
#include "kernels/sampling.h"
#include "runtime/engine/stage.h"
#include "runtime/engine/stages/dry.h"

struct smp_ctx {
    int64_t V;
    float unit;     /* of weights: kernels/sampling.h */
    float *x;       /* [V] adjusted logits */
    float *w;       /* [V] weights of the kept ids, by rank or by id */
    int32_t *ids;   /* [V] candidates */
    int32_t *count; /* [V] zero between calls */
    float surprise; /* smp_surprise */
};

size_t smp_bytes(int64_t vocab)
{
    const smp_ctx *c = NULL;
    return sizeof *c +
           (size_t)vocab * (sizeof *c->x + sizeof *c->w + sizeof *c->ids + sizeof *c->count);
}

lq_status smp_open(smp_ctx **s, int64_t vocab, lq_err *err)
{
    *s = NULL;
    if (vocab < 1 || vocab > INT32_MAX)
        return lq_fail(err, LQ_EVALUE, "sampler: expected a vocabulary of 1..%d, found %lld",
                       INT32_MAX, (long long)vocab);
    smp_ctx *c = calloc(1, sizeof *c);
    if (!c) return lq_fail(err, LQ_ENOMEM, "sampler: out of memory");
    size_t n = (size_t)vocab;
    c->V = vocab;
    c->unit = draw_unit(vocab);
    c->x = malloc(n * sizeof *c->x);
    c->w = malloc(n * sizeof *c->w);
    c->ids = malloc(n * sizeof *c->ids);
    c->count = calloc(n, sizeof *c->count);
    if (!c->x || !c->w || !c->ids || !c->count) {
        smp_close(c);
        return lq_fail(err, LQ_ENOMEM, "sampler: out of memory for a vocabulary of %lld",
                       (long long)vocab);
    }
    *s = c;
    return LQ_OK;
}

void smp_close(smp_ctx *s)
{
    if (!s) return;
    free(s->x);
    free(s->w);
    free(s->ids);
    free(s->count);
    free(s);
}

/* ---- parameters ---- */

static lq_status check_range(const char *name, float v, float lo, float hi, lq_err *err)
{
    if (v >= lo && v <= hi) return LQ_OK; /* false for NaN */
    return lq_fail(err, LQ_EVALUE, "%s: expected %g..%g, found %g", name, (double)lo, (double)hi,
                   (double)v);
}

static lq_status check_id(const char *name, int32_t id, int64_t prev, int64_t vocab, lq_err *err)
{
    if (id < 0 || id >= vocab)
        return lq_fail(err, LQ_EVALUE, "%s: token id %d is not in the vocabulary of %lld", name, id,
                       (long long)vocab);
    if (id <= prev)
        return lq_fail(err, LQ_EVALUE, "%s: expected rising token ids, found %d after %lld", name,
                       id, (long long)prev);
    return LQ_OK;
}

static lq_status check_stages(const smp_params *p, lq_err *err)
{
    const struct {
        const char *name;
        float v, lo, hi;
    } ranges[] = {
        { "dynatemp_range", p->dynatemp_range, 0, 100 },
        { "dynatemp_exponent", p->dynatemp_exponent, 0, 100 },
        { "typical_p", p->typical_p, 0, 1 },
        { "top_n_sigma", p->top_n_sigma, 0, 1e6f },
        { "xtc_probability", p->xtc_probability, 0, 1 },
        { "xtc_threshold", p->xtc_threshold, 0, 1 },
        { "mirostat_tau", p->mirostat_tau, 0, 100 },
        { "mirostat_eta", p->mirostat_eta, 0, 100 },
        { "dry_multiplier", p->dry.multiplier, 0, 100 },
        { "dry_base", p->dry.multiplier > 0 ? p->dry.base : 1, 1, 100 },
    };
    lq_status s = LQ_OK;
    for (size_t i = 0; i < LQ_COUNT(ranges) && !s; i++)
        s = check_range(ranges[i].name, ranges[i].v, ranges[i].lo, ranges[i].hi, err);
    if (!s && p->mirostat != 0 && p->mirostat != 2)
        s = lq_fail(err, LQ_EVALUE, "mirostat: expected 0 or 2, found %d", p->mirostat);
    if (!s && p->dry.multiplier > 0 && (p->dry.allowed < 1 || p->dry.last_n < -1))
        s = lq_fail(err, LQ_EVALUE, "dry: expected a shortest run from 1 and a window from -1");
    for (int i = 0; i < SMP_STAGES && !s; i++)
        if (p->order[i] > SMP_STAGES)
            s = lq_fail(err, LQ_EVALUE, "samplers: expected numbers 1..%d, found %d", SMP_STAGES,
                        p->order[i]);
    return s;
}

lq_status smp_check(const smp_params *p, int64_t vocab, lq_err *err)
{
    lq_status s = check_range("temperature", p->temperature, 0, 100, err);
    if (!s) s = check_stages(p, err);
    if (!s && p->top_k < -1)
        s = lq_fail(err, LQ_EVALUE, "top_k: expected -1 or more, found %d", p->top_k);
    if (!s) s = check_range("top_p", p->top_p, 0, 1, err);
    if (!s) s = check_range("min_p", p->min_p, 0, 1, err);
    if (!s) s = check_range("repetition_penalty", p->repetition_penalty, 0, 1e6f, err);
    if (!s) s = check_range("presence_penalty", p->presence_penalty, -100, 100, err);
    if (!s) s = check_range("frequency_penalty", p->frequency_penalty, -100, 100, err);
    if (!s && (p->logprobs < -1 || p->logprobs > SMP_MAX_LOGPROBS))
        s = lq_fail(err, LQ_EVALUE, "logprobs: expected -1..%d, found %d", SMP_MAX_LOGPROBS,
                    p->logprobs);
    int64_t prev = -1;
    for (int i = 0; !s && i < p->n_bias; prev = p->bias[i++].id) {
        s = check_id("logit_bias", p->bias[i].id, prev, vocab, err);
        if (!s && (isnan(p->bias[i].bias) || p->bias[i].bias > 1000))
            s = lq_fail(err, LQ_EVALUE, "logit_bias of id %d: expected at most 1000, found %g",
                        p->bias[i].id, (double)p->bias[i].bias);
    }
    if (!s && p->allowed && p->n_allowed < 1)
        s = lq_fail(err, LQ_EVALUE, "allowed ids: expected at least one");
    if (!s && p->asked && (p->n_asked < 0 || p->n_asked > SMP_MAX_LOGPROBS))
        s = lq_fail(err, LQ_EVALUE, "asked ids: expected at most %d, found %d", SMP_MAX_LOGPROBS,
                    p->n_asked);
    for (int i = 0; !s && p->asked && i < p->n_asked; i++)
        s = check_id("asked ids", p->asked[i], -1, vocab, err);
    prev = -1;
    for (int i = 0; !s && p->allowed && i < p->n_allowed; prev = p->allowed[i++])
        s = check_id("allowed ids", p->allowed[i], prev, vocab, err);
    return s;
}

double smp_uniform(uint64_t seed, uint64_t i) { return (double)draw_bits(seed, i) * 0x1p-53; }

/* ---- logits ---- */

static lq_status refuse(float x, int64_t id, lq_err *err)
{
    return lq_fail(err, LQ_EVALUE, "logits: expected finite numbers, found %s for token %lld",
                   isnan(x) ? "NaN" : "infinity", (long long)id);
}

static lq_status check_finite(const float *x, int64_t n, lq_err *err)
{
    uint32_t bad = 0;
    for (int64_t i = 0; i < n; i++) {
        uint32_t u;
        memcpy(&u, x + i, sizeof u);
        bad |= (uint32_t)((u & 0x7f800000u) == 0x7f800000u);
    }
    if (!bad) return LQ_OK;
    int64_t i = 0;
    while (isfinite(x[i]))
        i++;
    return refuse(x[i], i, err);
}

static lq_status all_banned(lq_err *err)
{
    return lq_fail(err, LQ_ENOENT, "sampling: every token is banned");
}

static bool has_repetition(const smp_params *p)
{
    return p->repetition_penalty > 0 && p->repetition_penalty != 1.0f;
}

static bool has_penalty(const smp_params *p)
{
    return has_repetition(p) || p->presence_penalty != 0 || p->frequency_penalty != 0;
}

static float penalized(float x, int32_t n, const smp_params *p)
{
    return draw_penalize(x, n, p->repetition_penalty, p->presence_penalty, p->frequency_penalty);
}

/* The ids that penalties look at. */
static void window(const smp_params *p, const int32_t **prompt, int64_t *n_prompt,
                   const int32_t **output, int64_t *n_output)
{
    if (p->penalty_last_n <= 0) return;
    const int64_t out = *n_output < p->penalty_last_n ? *n_output : p->penalty_last_n;
    const int64_t rest = p->penalty_last_n - out, in = *n_prompt < rest ? *n_prompt : rest;
    *output += *n_output - out;
    *prompt += *n_prompt - in;
    *n_output = out;
    *n_prompt = in;
}

/* Each id that occurred is met once: count holds its occurrences until then, -1 after. */
static void penalize(smp_ctx *s, const smp_params *p, const int32_t *prompt, int64_t n_prompt,
                     const int32_t *output, int64_t n_output)
{
    const bool rep = has_repetition(p);
    window(p, &prompt, &n_prompt, &output, &n_output);
    for (int64_t i = 0; i < n_output; i++)
        s->count[output[i]]++;
    for (int64_t i = 0; i < n_output; i++) {
        int32_t id = output[i], n = s->count[id];
        if (n < 0) continue;
        s->count[id] = -1;
        s->x[id] = penalized(s->x[id], n, p);
    }
    for (int64_t i = 0; rep && i < n_prompt; i++) {
        int32_t id = prompt[i];
        if (s->count[id] < 0) continue;
        s->count[id] = -1;
        s->x[id] = penalized(s->x[id], -1, p);
    }
    for (int64_t i = 0; i < n_output; i++)
        s->count[output[i]] = 0;
    for (int64_t i = 0; rep && i < n_prompt; i++)
        s->count[prompt[i]] = 0;
}

/* The logits with everything applied that comes before the temperature: either the caller's own or
 * s->x. */
static const float *adjust(smp_ctx *s, const float *logits, const smp_params *p,
                           const int32_t *prompt, int64_t n_prompt, const int32_t *output,
                           int64_t n_output)
{
    const bool dry = p->dry.multiplier > 0;
    if (!p->n_bias && !p->allowed && !p->mask && !has_penalty(p) && !dry) return logits;
    if (p->allowed) {
        for (int64_t i = 0; i < s->V; i++)
            s->x[i] = -INFINITY;
        for (int i = 0; i < p->n_allowed; i++)
            s->x[p->allowed[i]] = logits[p->allowed[i]];
    } else {
        memcpy(s->x, logits, (size_t)s->V * sizeof *logits);
    }
    for (int i = 0; i < p->n_bias; i++)
        s->x[p->bias[i].id] += p->bias[i].bias;
    if (has_penalty(p)) penalize(s, p, prompt, n_prompt, output, n_output);
    if (dry) dry_apply(s->x, s->count, &p->dry, prompt, n_prompt, output, n_output);
    for (int64_t i = 0; p->mask && i < s->V; i++)
        if (!(p->mask[i >> 5] >> (i & 31) & 1)) s->x[i] = -INFINITY;
    return s->x;
}

static int64_t argmax(const float *x, int64_t n)
{
    int64_t best = 0;
    for (int64_t i = 1; i < n; i++)
        if (x[i] > x[best]) best = i;
    return best;
}

/* ---- the first in order ---- */

/* The first k ids of x in order, into s->ids; -inf is never taken. Returns how many. */
static int64_t select_top(smp_ctx *s, const float *x, int64_t k)
{
    int64_t n = 0, i = 0;
    for (; i < s->V && n < k; i++)
        if (x[i] != -INFINITY) s->ids[n++] = (int32_t)i;
    heap_make(s->ids, n, x, false);
    for (; i < s->V && n > 0; i++)
        if (x[i] > x[s->ids[0]]) { /* equal: the lower id is there already */
            s->ids[0] = (int32_t)i;
            heap_sift(s->ids, n, 0, x, false);
        }
    for (int64_t left = n; left > 1;)
        heap_pop_to_end(s->ids, &left, x, false);
    return n;
}

/* ---- weights (kernels/sampling.h) ---- */

/* The units of n weights of at least min_p. */
static uint64_t total_of(const smp_ctx *s, const float *w, int64_t n, float min_p)
{
    uint64_t total = 0;
    for (int64_t i = 0; i < n; i++)
        total += w[i] >= min_p ? draw_units(w[i], s->unit) : 0;
    return total;
}

/* Length of the shortest run of weights that reaches p of their sum. */
static int64_t nucleus(const smp_ctx *s, const float *w, int64_t n, float p)
{
    const uint64_t share = draw_share(p, total_of(s, w, n, 0));
    uint64_t sum = 0;
    int64_t i = 0;
    while (sum < share)
        sum += draw_units(w[i++], s->unit);
    return i;
}

/* top-p of the whole vocabulary: s->ids in order and s->w by rank; returns how many are kept.
 * All ids lighter than (1 - p) / V of the total weigh less than 1 - p together, so the run lies
 * among the others (half of that bound leaves room for rounding). */
static int64_t select_nucleus(smp_ctx *s, const float *x, float max, const smp_params *p)
{
    for (int64_t i = 0; i < s->V; i++)
        s->w[i] = draw_weight(x[i], max, p->temperature);
    const uint64_t total = total_of(s, s->w, s->V, 0), share = draw_share(p->top_p, total);
    const double least = 0.5 * (1 - (double)p->top_p) * (double)total / (double)s->V;
    int64_t n = 0;
    for (int64_t i = 0; i < s->V; i++)
        if (s->w[i] > 0 && (double)draw_units(s->w[i], s->unit) >= least) s->ids[n++] = (int32_t)i;
    heap_make(s->ids, n, x, true);
    int64_t left = n;
    for (uint64_t sum = 0; left > 0 && sum < share;) {
        sum += draw_units(s->w[s->ids[0]], s->unit);
        heap_pop_to_end(s->ids, &left, x, true);
    }
    int64_t kept = n - left; /* in falling order from the end */
    for (int64_t i = left, j = n - 1; i < j; i++, j--) {
        int32_t t = s->ids[i];
        s->ids[i] = s->ids[j];
        s->ids[j] = t;
    }
    memmove(s->ids, s->ids + left, (size_t)kept * sizeof *s->ids);
    for (int64_t i = 0; i < kept; i++)
        s->w[i] = draw_weight(x[s->ids[i]], max, p->temperature);
    return kept;
}

/* Index of the draw among n weights of which those below min_p do not count; one does. */
static int64_t draw_index(const smp_ctx *s, const float *w, int64_t n, float min_p, uint64_t bits)
{
    const uint64_t point = draw_point(bits, total_of(s, w, n, min_p));
    uint64_t sum = 0;
    for (int64_t i = 0;; i++) {
        sum += w[i] >= min_p ? draw_units(w[i], s->unit) : 0;
        if (sum > point) return i;
    }
}

/* Through the table of stages, in the order of ids. */
static int32_t draw_staged(smp_ctx *s, const float *logits, const smp_params *p, uint64_t draw)
{
    stage_ctx c = { .w = s->w, .ids = s->ids, .unit = s->unit, .V = s->V, .draw = draw };
    if (logits != s->x) memcpy(s->x, logits, (size_t)s->V * sizeof *logits);
    stages_run(&c, s->x, p);
    const double sum = stage_weights(&c, s->x);
    const int64_t id = draw_index(s, s->w, s->V, 0, draw_bits(p->seed, draw));
    if (p->mirostat)
        s->surprise =
            (float)((km_log((float)sum) - km_log(s->w[id])) / 0.6931471805599453 /* ln 2 */);
    return (int32_t)id;
}

float smp_surprise(const smp_ctx *s) { return s->surprise; }

float smp_mirostat(const smp_params *p, float surprise)
{
    return p->mu - p->mirostat_eta * (surprise - p->mirostat_tau);
}

static int32_t draw_id(smp_ctx *s, const float *x, const smp_params *p, uint64_t draw)
{
    int64_t best = argmax(x, s->V);
    if (p->temperature == 0.0f || x[best] == -INFINITY) return (int32_t)best;
    if (stages_wanted(p)) return draw_staged(s, x, p, draw);
    if (p->top_k == 1) return (int32_t)best;
    const uint64_t u = draw_bits(p->seed, draw);
    float max = x[best];
    bool top_p = p->top_p > 0 && p->top_p < 1;
    if (p->top_k > 0 && p->top_k < s->V) {
        int64_t n = select_top(s, x, p->top_k);
        for (int64_t i = 0; i < n; i++)
            s->w[i] = draw_weight(x[s->ids[i]], max, p->temperature);
        if (top_p) n = nucleus(s, s->w, n, p->top_p);
        return s->ids[draw_index(s, s->w, n, p->min_p, u)];
    }
    if (top_p) {
        int64_t n = select_nucleus(s, x, max, p);
        return s->ids[draw_index(s, s->w, n, p->min_p, u)];
    }
    for (int64_t i = 0; i < s->V; i++)
        s->w[i] = draw_weight(x[i], max, p->temperature);
    return (int32_t)draw_index(s, s->w, s->V, p->min_p, u);
}

/* ---- results ---- */

/* Rounding may leave a sure token a little above 0. */
static float logprob_of(float x, float lse) { return x - lse < 0 ? x - lse : 0.0f; }

static void score(smp_ctx *s, smp_result *out, const float *logits, int32_t id, int n_top)
{
    float lse = k_logsumexp(logits, s->V);
    out->id = id;
    out->rank = 0;
    out->logprob = logprob_of(logits[id], lse);
    out->n_top = n_top > 0 ? (int)select_top(s, logits, n_top) : 0;
    for (int i = 0; i < out->n_top; i++) {
        out->top_id[i] = s->ids[i];
        out->top_logprob[i] = logprob_of(logits[s->ids[i]], lse);
    }
}

static void score_asked(smp_ctx *s, smp_result *out, const float *logits, int32_t id,
                        const smp_params *p)
{
    const float lse = k_logsumexp(logits, s->V);
    score(s, out, logits, id, 0);
    out->n_top = p->n_asked;
    for (int i = 0; i < p->n_asked; i++) {
        out->top_id[i] = p->asked[i];
        out->top_logprob[i] = logprob_of(logits[p->asked[i]], lse);
    }
}

lq_status smp_sample(smp_ctx *s, smp_result *out, const float *logits, const smp_params *p,
                     const int32_t *prompt, int64_t n_prompt, const int32_t *output,
                     int64_t n_output, uint64_t draw, lq_err *err)
{
    lq_status st = check_finite(logits, s->V, err);
    if (st) return st;
    const float *x = adjust(s, logits, p, prompt, n_prompt, output, n_output);
    int32_t id = draw_id(s, x, p, draw);
    if (x[id] == -INFINITY) return all_banned(err);
    if (p->logprobs >= 0 && p->asked) {
        score_asked(s, out, logits, id, p);
    } else if (p->logprobs >= 0) {
        score(s, out, logits, id, p->logprobs);
    } else {
        out->id = id;
        out->rank = 0;
        out->logprob = 0;
        out->n_top = 0;
    }
    return LQ_OK;
}

/* ---- on a device (kernels/cuda/draw.cu) ---- */

static_assert((int)DEV_TOPS == (int)SMP_MAX_LOGPROBS, "alternatives of a result");

typedef struct {
    dev_edit *at;
    int64_t n, room;
} edit_list;

/* The edit of an id, which count has the number of; NULL: there is no room. */
static dev_edit *edit_of(smp_ctx *s, edit_list *l, int32_t id)
{
    if (s->count[id] == 0) {
        if (l->n == l->room) return NULL;
        l->at[l->n++] = (dev_edit){ .id = id };
        s->count[id] = (int32_t)l->n;
    }
    return &l->at[s->count[id] - 1];
}

static bool list_edits(smp_ctx *s, edit_list *l, const smp_params *p, const int32_t *prompt,
                       int64_t n_prompt, const int32_t *output, int64_t n_output)
{
    dev_edit *e;
    window(p, &prompt, &n_prompt, &output, &n_output);
    for (int64_t i = 0; i < n_output && has_penalty(p); i++) {
        if (!(e = edit_of(s, l, output[i]))) return false;
        e->n++;
    }
    for (int64_t i = 0; i < n_prompt && has_repetition(p); i++) {
        if (!(e = edit_of(s, l, prompt[i]))) return false;
        if (e->n == 0) e->n = -1;
    }
    for (int i = 0; i < p->n_bias; i++) {
        if (!(e = edit_of(s, l, p->bias[i].id))) return false;
        e->value = p->bias[i].bias;
    }
    return true;
}

bool smp_on_device(smp_ctx *s, dev_draw *d, dev_edit *edits, int64_t room, const smp_params *p,
                   const int32_t *prompt, int64_t n_prompt, const int32_t *output, int64_t n_output,
                   uint64_t draw, int64_t row)
{
    edit_list l = { edits, 0, room };
    if (p->allowed || p->asked || p->dry.multiplier > 0 || stages_wanted(p)) return false;
    const bool ok = list_edits(s, &l, p, prompt, n_prompt, output, n_output);
    for (int64_t i = 0; i < l.n; i++)
        s->count[edits[i].id] = 0;
    *d = (dev_draw){ .seed = p->seed,
                     .draw = draw,
                     .mask = p->mask,
                     .edits = edits,
                     .temperature = p->temperature,
                     .top_p = p->top_p,
                     .min_p = p->min_p,
                     .repetition = p->repetition_penalty,
                     .presence = p->presence_penalty,
                     .frequency = p->frequency_penalty,
                     .top_k = p->top_k,
                     .logprobs = p->logprobs,
                     .row = (int32_t)row,
                     .n_edits = (int32_t)l.n };
    return ok;
}

lq_status smp_take(smp_result *out, const dev_drawn *d, lq_err *err)
{
    if (d->id == -2) return all_banned(err);
    if (d->id < 0) return refuse(d->value, d->bad, err);
    *out = (smp_result){ .id = d->id, .logprob = d->logprob, .n_top = d->n_top };
    memcpy(out->top_id, d->top_id, (size_t)d->n_top * sizeof *d->top_id);
    memcpy(out->top_logprob, d->top_logprob, (size_t)d->n_top * sizeof *d->top_logprob);
    return LQ_OK;
}

lq_status smp_best(smp_ctx *s, smp_cand *out, int64_t k, int64_t *n, smp_result *top,
                   const float *logits, const smp_params *p, const int32_t *prompt,
                   int64_t n_prompt, const int32_t *output, int64_t n_output, lq_err *err)
{
    lq_status st = check_finite(logits, s->V, err);
    if (st) return st;
    float lse = k_logsumexp(logits, s->V);
    for (int64_t i = 0; i < s->V; i++)
        s->w[i] = logits[i] - lse;
    const float *x = adjust(s, s->w, p, prompt, n_prompt, output, n_output);
    *n = select_top(s, x, k);
    for (int64_t i = 0; i < *n; i++)
        out[i] = (smp_cand){ s->ids[i], x[s->ids[i]], logprob_of(logits[s->ids[i]], lse) };
    if (top) score(s, top, logits, 0, p->logprobs);
    return LQ_OK;
}

lq_status smp_score(smp_ctx *s, smp_result *out, const float *logits, int32_t id, int n_top,
                    lq_err *err)
{
    lq_status st = check_finite(logits, s->V, err);
    if (st) return st;
    score(s, out, logits, id, n_top < SMP_MAX_LOGPROBS ? n_top : SMP_MAX_LOGPROBS);
    out->rank = 1;
    for (int64_t i = 0; i < s->V; i++)
        out->rank += logits[i] > logits[id];
    return LQ_OK;
}
