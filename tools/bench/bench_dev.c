/* tools/bench/bench_dev.c - `llmq bench kernels --device cuda`: rows of kernels/bench/bench_dev.h as a table or
 * JSON. */
#include "tools/bench/bench.h"

#include "base/json.h"
#include "kernels/bench/bench_dev.h"

#include <stdlib.h>

typedef struct {
    dev d;
    double copy; /* bytes a second */
    bench_dev_row rows[BENCH_DEV_ROWS];
    int n_rows;
} results;

static lq_status print_json(const results *r, lq_err *err)
{
    cJSON *doc = cJSON_CreateObject();
    cJSON_AddStringToObject(doc, "device", r->d.name);
    cJSON_AddNumberToObject(doc, "compute_capability", r->d.cc);
    cJSON_AddNumberToObject(doc, "multiprocessors", r->d.n_sm);
    cJSON_AddNumberToObject(doc, "memory_bytes", (double)r->d.memory);
    cJSON_AddNumberToObject(cJSON_AddObjectToObject(doc, "limits"), "copy_gbytes_s",
                            r->copy * 1e-9);
    cJSON *list = cJSON_AddArrayToObject(doc, "rows");
    for (int i = 0; i < r->n_rows; i++) {
        const bench_dev_row *w = &r->rows[i];
        cJSON *o = cJSON_CreateObject();
        cJSON_AddStringToObject(o, "name", w->name);
        cJSON_AddStringToObject(o, "shape", w->shape);
        cJSON_AddNumberToObject(o, "seconds", w->seconds);
        cJSON_AddNumberToObject(o, "gflops", w->gflops);
        cJSON_AddNumberToObject(o, "gbytes_s", w->gbytes_s);
        cJSON_AddNumberToObject(o, "percent_of_copy", w->percent_of_copy);
        if (w->of_one > 0) cJSON_AddNumberToObject(o, "times_one_row", w->of_one);
        cJSON_AddItemToArray(list, o);
    }
    return cmd_print_json(doc, err);
}

static void print_table(const results *r)
{
    printf("device %s: copy %.1f GB/s\n\n%-24s %-24s %10s %10s %10s %8s %8s\n", r->d.name,
           r->copy * 1e-9, "", "shape", "us", "TFLOP/s", "GB/s", "% copy", "x 1 row");
    for (int i = 0; i < r->n_rows; i++) {
        const bench_dev_row *w = &r->rows[i];
        printf("%-24s %-24s %10.2f %10.2f %10.1f %8.1f", w->name, w->shape, w->seconds * 1e6,
               w->gflops * 1e-3, w->gbytes_s, w->percent_of_copy);
        if (w->of_one > 0) printf(" %8.2f", w->of_one);
        printf("\n");
    }
    if (r->d.memory < BENCH_DEV_MEMORY)
        printf("small shapes, as the device has less than %zu GiB: not for comparing\n",
               BENCH_DEV_MEMORY >> 30);
}

lq_status bench_device(const cmd_ctx *c, const bench_cmd *o, lq_err *err)
{
    results *r = calloc(1, sizeof *r);
    if (!r) return lq_fail(err, LQ_ENOMEM, "out of memory");
    const mm_acts asked = opt_acts(&o->model);
    lq_status s = dev_open(&r->d, opt_device(&o->model), err);
    if (s) {
        free(r);
        return lq_wrap(err, s, "--device");
    }
    r->d.batch_invariant = o->model.batch_invariant;
    s = bench_dev_copy(&r->d, &r->copy, err);
    if (!s)
        s = bench_dev_run(r->rows, &r->n_rows, &r->d,
                          asked == MM_I8 && !opt_int8(&o->model) ? MM_BF16 : asked, r->copy,
                          o->rows, c->job, err);
    prog_end();
    if (!s && !r->n_rows)
        s = lq_fail(err, LQ_EUSAGE,
                    "--rows: expected how a row's name begins, as u4-g128 or decode, found '%.60s'",
                    o->rows);
    lq_err unsaid;
    if (r->n_rows && c->json) { /* also of one that was not ended: its rows are no worse for it */
        const lq_status said = print_json(r, s ? &unsaid : err);
        if (!s) s = said;
    } else if (r->n_rows) {
        print_table(r);
    }
    r->d.ops->close(&r->d);
    free(r);
    return s;
}
