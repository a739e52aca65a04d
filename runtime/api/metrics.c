/* runtime/api/metrics.c - see metrics.h. */
#include "runtime/api/metrics.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

enum { MAX_BUCKETS = 24 };
typedef enum { MET_B_LATENCY, MET_B_TOKEN, MET_B_COUNT, MET_B_SMALL } met_buckets;

/* Upper bounds, each row ended by 0; +Inf comes by itself. vLLM's. */
static const double bounds[][MAX_BUCKETS] = {
    [MET_B_LATENCY] = { 0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75,
                        1,     2.5,   5,    7.5,  10,   20,   40,   80,  160,  640, 2560 },
    [MET_B_TOKEN] = { 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3,
                      0.4,   0.5,    0.75,  1,    2.5,   5,    7.5,   10,  20,   40,  80 },
    [MET_B_COUNT] = { 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 1e4, 2e4, 5e4, 1e5,
                      2e5 },
    [MET_B_SMALL] = { 1, 2, 5, 10, 20 },
};

static const struct {
    const char *name, *labels, *help;
} counters[] = {
#define X(id, name, labels, help) { name, labels, help },
    MET_COUNTERS(X)
#undef X
};

static const struct {
    const char *name;
    met_buckets buckets;
    const char *help;
} histograms[] = {
#define X(id, name, buckets, help) { name, buckets, help },
    MET_HISTOGRAMS(X)
#undef X
};

typedef struct {
    uint64_t n[MAX_BUCKETS + 1]; /* by bucket, the last for +Inf */
    uint64_t count;
    double sum;
} histogram;

struct metrics {
    atomic_ullong counter[MET_N_COUNTERS];
    pthread_mutex_t mu;
    histogram h[MET_N_HISTOGRAMS];
};

metrics *met_new(void)
{
    metrics *m = calloc(1, sizeof *m);
    if (m) pthread_mutex_init(&m->mu, NULL);
    return m;
}

void met_free(metrics *m)
{
    if (!m) return;
    pthread_mutex_destroy(&m->mu);
    free(m);
}

void met_add(metrics *m, met_counter c, uint64_t n) { atomic_fetch_add(&m->counter[c], n); }

void met_observe(metrics *m, met_histogram which, double v)
{
    const double *b = bounds[histograms[which].buckets];
    int i = 0;
    while (b[i] > 0 && v > b[i])
        i++;
    pthread_mutex_lock(&m->mu);
    histogram *h = &m->h[which];
    h->n[b[i] > 0 ? i : MAX_BUCKETS]++;
    h->count++;
    h->sum += v;
    pthread_mutex_unlock(&m->mu);
}

static void head(lq_buf *w, const char *type, const char *name, const char *help)
{
    lq_buf_printf(w, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

/* name_suffix{labels,more} */
static void series(lq_buf *w, const char *name, const char *suffix, const char *labels,
                   const char *more)
{
    lq_buf_printf(w, "%s%s{", name, suffix);
    lq_buf_puts(w, labels);
    if (more[0]) lq_buf_printf(w, "%s%s", labels[0] ? "," : "", more);
    lq_buf_puts(w, "} ");
}

void met_write_one(lq_buf *w, const char *type, const char *name, const char *help,
                   const char *labels, double v)
{
    head(w, type, name, help);
    series(w, name, "", labels, "");
    lq_buf_printf(w, "%.15g\n", v);
}

static void write_histogram(lq_buf *w, int which, const histogram *h, const char *labels)
{
    const char *name = histograms[which].name;
    const double *b = bounds[histograms[which].buckets];
    uint64_t sum = 0;
    char le[48];
    head(w, "histogram", name, histograms[which].help);
    for (int i = 0; b[i] > 0; i++) {
        sum += h->n[i];
        snprintf(le, sizeof le, "le=\"%g\"", b[i]);
        series(w, name, "_bucket", labels, le);
        lq_buf_printf(w, "%llu\n", (unsigned long long)sum);
    }
    series(w, name, "_bucket", labels, "le=\"+Inf\"");
    lq_buf_printf(w, "%llu\n", (unsigned long long)h->count);
    series(w, name, "_sum", labels, "");
    lq_buf_printf(w, "%.9g\n", h->sum);
    series(w, name, "_count", labels, "");
    lq_buf_printf(w, "%llu\n", (unsigned long long)h->count);
}

void met_write(metrics *m, lq_buf *w, const char *labels)
{
    for (int i = 0; i < MET_N_COUNTERS; i++) {
        char name[96];
        snprintf(name, sizeof name, "%s_total", counters[i].name);
        if (i == 0 || strcmp(counters[i].name, counters[i - 1].name) != 0)
            head(w, "counter", name, counters[i].help);
        series(w, name, "", labels, counters[i].labels);
        lq_buf_printf(w, "%llu\n", (unsigned long long)atomic_load(&m->counter[i]));
    }
    for (int i = 0; i < MET_N_HISTOGRAMS; i++) {
        pthread_mutex_lock(&m->mu);
        histogram h = m->h[i];
        pthread_mutex_unlock(&m->mu);
        write_histogram(w, i, &h, labels);
    }
}

void met_label(lq_buf *w, const char *key, const char *value)
{
    lq_buf_printf(w, "%s=\"", key);
    for (const char *p = value; *p; p++) {
        if (*p == '"' || *p == '\\') lq_buf_add(w, "\\", 1);
        if (*p == '\n')
            lq_buf_puts(w, "\\n");
        else
            lq_buf_add(w, p, 1);
    }
    lq_buf_puts(w, "\"");
}

void met_labels(lq_buf *w, const char *model_name)
{
    met_label(w, "model_name", model_name);
    lq_buf_puts(w, ",engine=\"0\"");
}

/* ---- OpenMetrics ---- */

/* Heads name a counter without _total. */
static void open_head(lq_buf *w, const char *line, size_t n)
{
    static const char total[] = "_total";
    const char *name = line + strlen("# HELP "), *end = memchr(name, ' ', n - strlen("# HELP "));
    const char *cut = end - (sizeof total - 1);
    if (cut < name || memcmp(cut, total, sizeof total - 1) != 0) cut = end;
    lq_buf_add(w, line, (size_t)(cut - line));
    lq_buf_add(w, end, n - (size_t)(end - line));
}

/* Bounds of buckets are floats: 1.0, not 1. */
static void open_sample(lq_buf *w, const char *line, size_t n)
{
    static const char le[] = "le=\"";
    const char *at = memmem(line, n, le, sizeof le - 1);
    if (at) {
        char *end;
        at += sizeof le - 1;
        const double v = strtod(at, &end);
        lq_buf_add(w, line, (size_t)(at - line));
        if (v < 1e6 && !(v > floor(v)))
            lq_buf_printf(w, "%.1f", v);
        else
            lq_buf_add(w, at, (size_t)(end - at));
        n -= (size_t)(end - line);
        line = end;
    }
    lq_buf_add(w, line, n);
}

void met_open(lq_buf *w, const char *text)
{
    for (size_t n; *text; text += n) {
        n = strcspn(text, "\n") + 1;
        if (text[0] == '#')
            open_head(w, text, n);
        else
            open_sample(w, text, n);
    }
    lq_buf_puts(w, "# EOF\n");
}
