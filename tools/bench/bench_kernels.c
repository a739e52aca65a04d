/* tools/bench/bench_kernels.c - `llmq bench kernels`: rows of kernels/bench/bench.h as a table or JSON. */
#include "tools/bench/bench.h"

#include "base/json.h"
#include "tools/cli/load.h"

#include <stdlib.h>

typedef struct {
    bench_limits one, all;
    bench_sharing sharing;
    bench_row rows[BENCH_MAX_ROWS];
    int n_rows;
} results;

static lq_status print_json(const results *r, lq_err *err)
{
    cJSON *doc = cJSON_CreateObject();
    cJSON_AddStringToObject(doc, "kernels", k_name());
    bench_add_limits(doc, "limits_one_thread", &r->one);
    bench_add_limits(doc, "limits", &r->all);
    const bench_sharing *s = &r->sharing;
    cJSON *o = cJSON_AddObjectToObject(doc, "sharing");
    cJSON_AddNumberToObject(o, "threads", s->threads);
    cJSON_AddNumberToObject(o, "cpus", s->cpus);
    cJSON_AddNumberToObject(o, "meet_best_seconds", s->meet_best);
    cJSON_AddNumberToObject(o, "meet_median_seconds", s->meet_median);
    cJSON_AddNumberToObject(o, "load", s->load);
    cJSON_AddNumberToObject(o, "slowdown", s->slowdown);
    cJSON_AddNumberToObject(o, "fair_slowdown", s->fair);
    cJSON *list = cJSON_AddArrayToObject(doc, "rows");
    for (int i = 0; i < r->n_rows; i++) {
        const bench_row *w = &r->rows[i];
        o = cJSON_CreateObject();
        cJSON_AddStringToObject(o, "name", w->name);
        cJSON_AddStringToObject(o, "shape", w->shape);
        cJSON_AddNumberToObject(o, "threads", w->threads);
        cJSON_AddNumberToObject(o, "seconds", w->seconds);
        cJSON_AddNumberToObject(o, "gflops", w->gflops);
        cJSON_AddNumberToObject(o, "gbytes_s", w->gbytes_s);
        cJSON_AddNumberToObject(o, "percent_of_limit", w->percent_of_limit);
        cJSON_AddItemToArray(list, o);
    }
    return cmd_print_json(doc, err);
}

static void print_sharing(const bench_sharing *s)
{
    if (s->threads > 1)
        printf("threads: %d meet in %.2f us (median %.2f)\n", s->threads, s->meet_best * 1e6,
               s->meet_median * 1e6);
    printf(
        "next to a load of %.2f cores one row's products take %.2f times as long; a fair share of "
        "%d is %.2f\n",
        s->load, s->slowdown, s->cpus, s->fair);
}

static void print_table(const results *r)
{
    printf("kernels %s\n", k_name());
    if (r->all.threads > 1) bench_print_limits(&r->one);
    bench_print_limits(&r->all);
    print_sharing(&r->sharing);
    printf("\n%-24s %-32s %10s %10s %10s %10s\n", "", "shape", "ms", "GFLOP/s", "GB/s",
           "% of limit");
    bool above = false;
    for (int i = 0; i < r->n_rows; i++) {
        const bench_row *w = &r->rows[i];
        printf("%-24s %-32s %10.3f %10.1f %10.2f %10.1f\n", w->name, w->shape, w->seconds * 1e3,
               w->gflops, w->gbytes_s, w->percent_of_limit);
        above = above || w->percent_of_limit > 100;
    }
    if (above)
        printf(
            "above 100 %%: weights that a cache holds are read faster than memory; or the machine "
            "was busier\nwhile its limits were measured\n");
}

/* ---- the steps of a layer ---- */
enum { N_CHAINS = 2 }; /* decode of one row; a piece of a prompt */

static lq_status print_chains_json(const bench_chain *chains, const bench_cmd *o, lq_err *err)
{
    cJSON *doc = cJSON_CreateObject(), *list;
    cJSON_AddStringToObject(doc, "kernels", k_name());
    cJSON_AddStringToObject(doc, "scheme", o->scheme);
    cJSON_AddBoolToObject(doc, "fused", chains->fused);
    list = cJSON_AddArrayToObject(doc, "chains");
    for (int i = 0; i < N_CHAINS; i++) {
        const bench_chain *b = &chains[i];
        cJSON *chain = cJSON_CreateObject(), *steps;
        cJSON_AddItemToArray(list, chain);
        cJSON_AddNumberToObject(chain, "rows", (double)b->M);
        cJSON_AddNumberToObject(chain, "depth", (double)b->depth);
        steps = cJSON_AddArrayToObject(chain, "steps");
        for (int k = 0; k < b->n_steps; k++) {
            cJSON *s = cJSON_CreateObject();
            cJSON_AddItemToArray(steps, s);
            cJSON_AddStringToObject(s, "name", b->step[k].name);
            cJSON_AddNumberToObject(s, "seconds", b->step[k].seconds);
            cJSON_AddNumberToObject(s, "bytes", b->step[k].bytes);
        }
    }
    return cmd_print_json(doc, err);
}

static void print_chains(const bench_chain *chains, const bench_cmd *o, int threads)
{
    printf("kernels %s, %s, %d thread%s, steps %s\n", k_name(), o->scheme, threads,
           threads == 1 ? "" : "s",
           chains->fused ? "joined as the forward pass joins them" : "each on its own");
    for (int i = 0; i < N_CHAINS; i++) {
        const bench_chain *b = &chains[i];
        printf("\n%-24s %10s %12s %10s\n", b->M == 1 ? "1 row" : "many rows", "ms", "MB moved",
               "GB/s");
        for (int k = 0; k < b->n_steps; k++)
            printf("%-24s %10.4f %12.4f %10.2f\n", b->step[k].name, b->step[k].seconds * 1e3,
                   b->step[k].bytes * 1e-6, b->step[k].bytes / b->step[k].seconds * 1e-9);
    }
}

static lq_status run_chains(const cmd_ctx *c, const bench_cmd *o, lq_err *err)
{
    static const int64_t rows[N_CHAINS] = { 1, 128 };
    bench_chain chains[N_CHAINS];
    pool *p = NULL;
    lq_status s = opt_only_cpu(&o->model, "bench kernels --fusion", err);
    if (s) return s;
    s = load_start(&p, c, &o->model, err);
    for (int i = 0; i < N_CHAINS && !s; i++)
        s = bench_chain_run(&chains[i], o->fusion == FUSION_ON, rows[i], o->scheme,
                            opt_acts(&o->model), NULL, p, err);
    if (lq_exit_code(s) == lq_exit_code(LQ_EVALUE)) s = LQ_EUSAGE; /* --scheme was wrong */
    if (!s && c->json) s = print_chains_json(chains, o, err);
    if (!s && !c->json) print_chains(chains, o, pool_threads(p));
    pool_close(p);
    return s;
}

lq_status bench_kernels(const cmd_ctx *c, const bench_cmd *o, lq_err *err)
{
    if (c->argc > 1) return lq_fail(err, LQ_EUSAGE, "bench kernels takes no MODEL");
    if (o->fusion != FUSION_NONE) return run_chains(c, o, err);
    if (strncmp(opt_device(&o->model), "cuda", 4) == 0) return bench_device(c, o, err);
    const bench_opts b = { 0 };
    pool *p = NULL;
    results *r = calloc(1, sizeof *r);
    if (!r) return lq_fail(err, LQ_ENOMEM, "out of memory");
    lq_status s = opt_only_cpu(&o->model, "bench kernels", err);
    if (!s) s = load_start(&p, c, &o->model, err);
    if (!s) s = bench_limits_run(&r->one, &r->all, &b, p, err);
    if (!s) s = bench_sharing_run(&r->sharing, &b, p, err);
    if (!s) s = bench_kernels_run(r->rows, &r->n_rows, &r->all, &b, p, c->job, err);
    if (!s) prog_end();
    if (!s && c->json) s = print_json(r, err);
    if (!s && !c->json) print_table(r);
    pool_close(p);
    free(r);
    return s;
}
