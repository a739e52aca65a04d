/* runtime/eval_score.c - see eval_score.h. */
#include "runtime/eval_score.h"

#include "kernels/ops.h"

#include <stdlib.h>

enum { CHUNK = 256 };
static int64_t chunk_at(int64_t at, int64_t n) { return n - at < CHUNK ? n - at : CHUNK; }

double eval_log_sum(const float *x, int64_t n, int64_t *argmax)
{
    int64_t best = 0;
    for (int64_t i = 1; i < n; i++)
        if (x[i] > x[best]) best = i;
    double sum = 0;
    for (int64_t at = 0; at < n; at += CHUNK) {
        float e[CHUNK];
        const int64_t m = chunk_at(at, n);
        k_exp_minus(e, x + at, x[best], m);
        for (int64_t i = 0; i < m; i++)
            sum += (double)e[i];
    }
    *argmax = best;
    return (double)x[best] + log(sum);
}

eval_score eval_position(const float *x, const float *y, int64_t V, int64_t target)
{
    int64_t top, ref_top;
    double lse = eval_log_sum(x, V, &top);
    eval_score s = { .nll = lse - (double)x[target] };
    if (!y) return s;
    double ref_lse = eval_log_sum(y, V, &ref_top);
    for (int64_t at = 0; at < V; at += CHUNK) {
        float p[CHUNK];
        const int64_t m = chunk_at(at, V);
        for (int64_t i = 0; i < m; i++)
            p[i] = (float)((double)y[at + i] - ref_lse);
        k_exp_minus(p, p, 0, m);
        for (int64_t i = 0; i < m; i++) {
            const double log_p = (double)y[at + i] - ref_lse;
            s.kl += (double)p[i] * (log_p - ((double)x[at + i] - lse));
        }
    }
    s.ref_nll = ref_lse - (double)y[target];
    s.agree = top == ref_top;
    return s;
}

static double mean(const double *x, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += x[i];
    return sum / (double)n;
}

double eval_mean_cov(const double *x, const double *y, int64_t n)
{
    const double mx = mean(x, n), my = mean(y, n);
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += (x[i] - mx) * (y[i] - my);
    return n > 1 ? sum / (double)n / (double)(n - 1) : 0;
}

eval_mean eval_mean_of(const double *x, int64_t n)
{
    return (eval_mean){ mean(x, n), sqrt(eval_mean_cov(x, x, n)) };
}

static int by_value(const void *a, const void *b)
{
    double x, y;
    memcpy(&x, a, sizeof x);
    memcpy(&y, b, sizeof y);
    return (x > y) - (x < y);
}

void eval_sort(double *x, int64_t n) { qsort(x, (size_t)n, sizeof *x, by_value); }

double eval_percentile(const double *x, int64_t n, double p, bool between)
{
    if (!between) {
        const int64_t rank = (int64_t)ceil(p * (double)n);
        return x[rank > 0 ? rank - 1 : 0];
    }
    const double at = p * (double)(n - 1);
    const int64_t i = (int64_t)at, next = i + 1 < n ? i + 1 : i;
    return x[i] + (at - (double)i) * (x[next] - x[i]);
}
