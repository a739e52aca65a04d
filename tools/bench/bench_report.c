/* tools/bench/bench_report.c - what a run of `llmq bench serve` amounts to, as a line and as JSON. The
 * names in the document are those of `vllm bench serve --save-result`. */
#include "tools/bench/bench_serve.h"

#include "base/json.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

const char *const bs_load_names[BS_N_LOADS + 1] = { "random", "shared-prefix",  "multi-turn",
                                                    "abort",  "long-and-short", NULL };

/* ---- times ---- */

bool bs_push(bs_times *t, double v)
{
    if (t->n == t->cap) {
        const size_t cap = t->cap ? 2 * t->cap : 256;
        double *p = realloc(t->v, cap * sizeof *p);
        if (!p) return false;
        t->v = p;
        t->cap = cap;
    }
    t->v[t->n++] = v;
    return true;
}

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

double bs_percentile(bs_times *t, double p)
{
    if (!t->n) return 0;
    qsort(t->v, t->n, sizeof *t->v, compare);
    const double at = p / 100 * (double)(t->n - 1);
    const size_t i = (size_t)at;
    const double low = t->v[i], high = t->v[i + 1 < t->n ? i + 1 : i];
    return low + (at - (double)i) * (high - low);
}

static double mean(const bs_times *t)
{
    double sum = 0;
    for (size_t i = 0; i < t->n; i++)
        sum += t->v[i];
    return t->n ? sum / (double)t->n : 0;
}

static double deviation(const bs_times *t)
{
    const double m = mean(t);
    double sum = 0;
    for (size_t i = 0; i < t->n; i++)
        sum += (t->v[i] - m) * (t->v[i] - m);
    return t->n ? sqrt(sum / (double)t->n) : 0;
}

/* ---- goodput ---- */

lq_status bs_slo_parse(bs_slo *s, const char *text, lq_err *err)
{
    *s = (bs_slo){ 0 };
    const struct {
        const char *name;
        double *field;
    } kinds[] = { { "ttft:", &s->ttft }, { "tpot:", &s->tpot }, { "e2el:", &s->e2el } };
    for (const char *p = text; p && *p;) {
        const size_t n = strcspn(p, ",");
        char part[64], *end = NULL;
        double ms = 0;
        snprintf(part, sizeof part, "%.*s", (int)(n < sizeof part ? n : sizeof part - 1), p);
        size_t k = 0;
        while (k < LQ_COUNT(kinds) && strncmp(part, kinds[k].name, 5) != 0)
            k++;
        if (k < LQ_COUNT(kinds) && part[5]) ms = strtod(part + 5, &end);
        if (!end || *end || !(ms > 0) || !isfinite(ms) || *kinds[k].field > 0)
            return lq_fail(err, LQ_EUSAGE,
                           "--goodput: expected ttft:MS, tpot:MS and e2el:MS with commas between, "
                           "found '%s'",
                           part);
        *kinds[k].field = ms / 1e3;
        p += n + (p[n] == ',');
    }
    return LQ_OK;
}

static double tpot_of(const bs_done *d)
{
    return d->has_text && d->output_tokens > 1
               ? (d->e2el - d->ttft) / (double)(d->output_tokens - 1)
               : 0;
}

static bool good(const bs_done *d, const bs_slo *s)
{
    return d->ok && !(s->ttft > 0 && d->ttft > s->ttft) && !(s->tpot > 0 && tpot_of(d) > s->tpot) &&
           !(s->e2el > 0 && d->e2el > s->e2el);
}

/* ---- sums ---- */

typedef struct {
    int64_t ok, failed, aborted, good, input, output;
    bs_times ttft, tpot, e2el;
} sums;

static sums sum_up(const bs_run *r, const bs_slo *slo)
{
    sums s = { 0 };
    for (int64_t i = 0; i < r->n; i++) {
        const bs_done *d = &r->done[i];
        s.aborted += d->aborted;
        s.failed += !d->ok && !d->aborted;
        if (!d->ok) continue;
        s.ok++;
        s.good += good(d, slo);
        s.input += d->prompt_tokens;
        s.output += d->output_tokens;
        if (d->has_text) bs_push(&s.ttft, d->ttft);
        if (d->has_text && d->output_tokens > 1) bs_push(&s.tpot, tpot_of(d));
        bs_push(&s.e2el, d->e2el);
    }
    return s;
}

static void sums_free(sums *s)
{
    free(s->ttft.v);
    free(s->tpot.v);
    free(s->e2el.v);
}

void bs_run_free(bs_run *r)
{
    free(r->done);
    free(r->itl.v);
}

void bs_print(const bs_run *r, const bs_slo *slo, bool first)
{
    bs_times itl = r->itl;
    sums s = sum_up(r, slo);
    char load[32];
    if (first)
        printf("%-12s %5s %6s %7s %9s %8s %8s %8s %8s %9s %9s %6s\n", "load", "done", "failed",
               "aborted", "out tok/s", "ttft p50", "ttft p99", "itl p50", "itl p99", "e2el p50",
               "e2el p99", "good/s");
    if (r->rate > 0)
        snprintf(load, sizeof load, "%.4g a second", r->rate);
    else
        snprintf(load, sizeof load, "%lld at once", (long long)r->concurrency);
    printf("%-12s %5lld %6lld %7lld %9.1f %8.1f %8.1f %8.1f %8.1f %9.1f %9.1f %6.2f\n", load,
           (long long)s.ok, (long long)s.failed, (long long)s.aborted,
           (double)s.output / r->seconds, 1e3 * bs_percentile(&s.ttft, 50),
           1e3 * bs_percentile(&s.ttft, 99), 1e3 * bs_percentile(&itl, 50),
           1e3 * bs_percentile(&itl, 99), 1e3 * bs_percentile(&s.e2el, 50),
           1e3 * bs_percentile(&s.e2el, 99), (double)s.good / r->seconds);
    if (r->long_ratio > 0)
        printf("%-12s beside long prompts (%lld read, %.2f s each): p99 between tokens %.2f times "
               "that without\n",
               "", (long long)r->long_read,
               r->long_read ? r->long_seconds / (double)r->long_read : 0, r->long_ratio);
    fflush(stdout);
    sums_free(&s);
}

/* mean_NAME_ms, median_NAME_ms, std_NAME_ms, p90_, p95_ and p99_NAME_ms */
static void add_times(cJSON *o, const char *name, bs_times *t)
{
    const struct {
        const char *kind;
        double v;
    } rows[] = { { "mean", mean(t) },
                 { "median", bs_percentile(t, 50) },
                 { "std", deviation(t) },
                 { "p50", bs_percentile(t, 50) },
                 { "p90", bs_percentile(t, 90) },
                 { "p95", bs_percentile(t, 95) },
                 { "p99", bs_percentile(t, 99) } };
    for (size_t i = 0; i < LQ_COUNT(rows); i++) {
        char key[32];
        snprintf(key, sizeof key, "%s_%s_ms", rows[i].kind, name);
        cJSON_AddNumberToObject(o, key, 1e3 * rows[i].v);
    }
}

cJSON *bs_json(bs_run *r, const bench_cmd *o, const bs_slo *slo, const char *model)
{
    sums s = sum_up(r, slo);
    cJSON *d = cJSON_CreateObject();
    char date[32];
    const time_t now = time(NULL);
    struct tm utc;
    strftime(date, sizeof date, "%Y%m%d-%H%M%S", gmtime_r(&now, &utc));
    cJSON_AddStringToObject(d, "date", date);
    cJSON_AddStringToObject(d, "backend", "openai");
    cJSON_AddStringToObject(d, "endpoint_type", "openai");
    cJSON_AddStringToObject(d, "model_id", model);
    if (o->loras) cJSON_AddStringToObject(d, "lora_modules", o->loras);
    cJSON_AddStringToObject(d, "load", bs_load_names[o->load]);
    cJSON_AddNumberToObject(d, "seed", (double)o->seed);
    cJSON_AddNumberToObject(d, "num_prompts", (double)r->n);
    if (r->long_ratio > 0) {
        cJSON_AddNumberToObject(d, "long_prompts_read", (double)r->long_read);
        cJSON_AddNumberToObject(d, "long_prompt_seconds",
                                r->long_read ? r->long_seconds / (double)r->long_read : 0);
        cJSON_AddNumberToObject(d, "itl_p99_over_without", r->long_ratio);
    }
    if (r->rate > 0) {
        cJSON_AddNumberToObject(d, "request_rate", r->rate);
        cJSON_AddNumberToObject(d, "burstiness", 1);
        cJSON_AddNullToObject(d, "max_concurrency");
    } else {
        cJSON_AddStringToObject(d, "request_rate", "inf");
        cJSON_AddNumberToObject(d, "max_concurrency", (double)r->concurrency);
    }
    const struct {
        const char *name;
        double v;
    } rows[] = { { "duration", r->seconds },
                 { "completed", (double)s.ok },
                 { "failed", (double)s.failed },
                 { "aborted", (double)s.aborted },
                 { "total_input_tokens", (double)s.input },
                 { "total_output_tokens", (double)s.output },
                 { "request_throughput", (double)s.ok / r->seconds },
                 { "output_throughput", (double)s.output / r->seconds },
                 { "total_token_throughput", (double)(s.input + s.output) / r->seconds } };
    for (size_t i = 0; i < LQ_COUNT(rows); i++)
        cJSON_AddNumberToObject(d, rows[i].name, rows[i].v);
    if (o->goodput)
        cJSON_AddNumberToObject(d, "request_goodput", (double)s.good / r->seconds);
    else
        cJSON_AddNullToObject(d, "request_goodput");
    add_times(d, "ttft", &s.ttft);
    add_times(d, "tpot", &s.tpot);
    add_times(d, "itl", &r->itl);
    add_times(d, "e2el", &s.e2el);
    cJSON_AddNumberToObject(d, "ttft_p50", bs_percentile(&s.ttft, 50));
    cJSON_AddNumberToObject(d, "ttft_p99", bs_percentile(&s.ttft, 99));
    cJSON_AddNumberToObject(d, "itl_p50", bs_percentile(&r->itl, 50));
    cJSON_AddNumberToObject(d, "itl_p99", bs_percentile(&r->itl, 99));
    cJSON_AddNumberToObject(d, "output_tok_s", (double)s.output / r->seconds);
    if (r->error[0]) cJSON_AddStringToObject(d, "error", r->error);
    sums_free(&s);
    return d;
}
