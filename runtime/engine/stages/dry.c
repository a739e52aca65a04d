/* runtime/engine/stages/dry.c - see dry.h. */
#include "runtime/engine/stages/dry.h"

#include "kernels/core/kmath.h"

enum { LONGEST = 1024 }; /* longer runs are no worse */

/* The ids from `from` on, counted from the end: 0 is the last one. */
typedef struct {
    const int32_t *prompt, *output;
    int64_t n_prompt, n_output, n;
} tail;

static int32_t from_end(const tail *t, int64_t i)
{
    return i < t->n_output ? t->output[t->n_output - 1 - i]
                           : t->prompt[t->n_prompt - 1 - (i - t->n_output)];
}

/* A run of ids ends i places before the end. */
static bool run_ends(const tail *t, int64_t i, const int32_t *run, int64_t len)
{
    if (len > t->n - i) return false;
    for (int64_t k = 0; k < len; k++)
        if (from_end(t, i + len - 1 - k) != run[k]) return false;
    return true;
}

static bool breaks_at(const tail *t, int64_t i, const smp_dry *d)
{
    const int32_t id = from_end(t, i), *end = d->runs + d->n_runs;
    if (d->breaks && d->breaks[id >> 5] >> (id & 31) & 1) return true;
    for (const int32_t *r = d->runs; r < end; r += 1 + r[0])
        if (run_ends(t, i, r + 1, r[0])) return true;
    return false;
}

/* How many ids are behind the last breaker, at most `most`. */
static int64_t free_length(const tail *t, const smp_dry *d, int64_t most)
{
    int64_t n = 0;
    while (n < t->n && n < most && !breaks_at(t, n, d))
        n++;
    return n;
}

static float penalty(const smp_dry *d, int64_t length)
{
    const double ln = km_log(d->base), most = 88.7; /* base^n is a float */
    const double e = fmin((double)(length - d->allowed) * ln, most);
    return d->multiplier * km_exp((float)e);
}

void dry_apply(float *x, int32_t *count, const smp_dry *d, const int32_t *prompt, int64_t n_prompt,
               const int32_t *output, int64_t n_output)
{
    tail t = { prompt, output, n_prompt, n_output, n_prompt + n_output };
    if (d->last_n >= 0 && d->last_n < t.n) t.n = d->last_n;
    const int64_t most = free_length(&t, d, LONGEST);
    if (t.n < 2 || most < d->allowed) return;
    for (int64_t i = 1; i < t.n; i++) { /* the run ends at i, and id i - 1 followed it */
        int64_t len = 0;
        while (len < most && i + len < t.n && from_end(&t, len) == from_end(&t, i + len))
            len++;
        int32_t *longest = &count[from_end(&t, i - 1)];
        if (len >= d->allowed && len > *longest) *longest = (int32_t)len;
    }
    for (int64_t i = 0; i < t.n; i++) {
        const int32_t id = from_end(&t, i);
        if (count[id] > 0) x[id] -= penalty(d, count[id]);
        count[id] = 0;
    }
}
