/* tools/bench_kernels.c - `llmq bench kernels`: rows of kernels/bench.h as a table or JSON. */
#include "tools/bench.h"

#include "formats/json.h"
#include "tools/load.h"

#include <stdlib.h>

typedef struct {
    bench_limits one, all;
    bench_row rows[BENCH_MAX_ROWS];
    int n_rows;
} results;

static lq_status print_json(const results *r, lq_err *err)
{
    cJSON *doc = cJSON_CreateObject();
    cJSON_AddStringToObject(doc, "kernels", k_name());
    bench_add_limits(doc, "limits_one_thread", &r->one);
    bench_add_limits(doc, "limits", &r->all);
    cJSON *list = cJSON_AddArrayToObject(doc, "rows");
    for (int i = 0; i < r->n_rows; i++) {
        const bench_row *w = &r->rows[i];
        cJSON *o = cJSON_CreateObject();
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

static void print_table(const results *r)
{
    printf("kernels %s\n", k_name());
    if (r->all.threads > 1) bench_print_limits(&r->one);
    bench_print_limits(&r->all);
    printf("\n%-24s %-32s %10s %10s %10s %10s\n", "", "shape", "ms", "GFLOP/s", "GB/s",
           "% of limit");
    for (int i = 0; i < r->n_rows; i++) {
        const bench_row *w = &r->rows[i];
        printf("%-24s %-32s %10.3f %10.1f %10.2f %10.1f\n", w->name, w->shape, w->seconds * 1e3,
               w->gflops, w->gbytes_s, w->percent_of_limit);
    }
}

lq_status bench_kernels(const cmd_ctx *c, const bench_cmd *o, lq_err *err)
{
    if (c->argc > 1) return lq_fail(err, LQ_EUSAGE, "bench kernels takes no MODEL");
    const bench_opts b = { 0 };
    pool *p = NULL;
    results *r = calloc(1, sizeof *r);
    if (!r) return lq_fail(err, LQ_ENOMEM, "out of memory");
    lq_status s = load_start(&p, c, &o->model, err);
    if (!s) s = bench_limits_run(&r->one, &r->all, &b, p, err);
    if (!s) s = bench_kernels_run(r->rows, &r->n_rows, &r->all, &b, p, c->job, err);
    if (!s) prog_end();
    if (!s && c->json) s = print_json(r, err);
    if (!s && !c->json) print_table(r);
    pool_close(p);
    free(r);
    return s;
}
