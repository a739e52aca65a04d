/* tools/bench/bench_profile.c - see bench_profile.h. */
#include "tools/bench/bench_profile.h"

#include <stdio.h>

static const struct {
    pool_stage_id stage;
    arch_role roles[3];
    int n;
    bool all; /* of the last layer too every row is computed */
} products[] = {
    { STAGE_QKV, { R_Q, R_K, R_V }, 3, true },
    { STAGE_QKV, { R_QKV }, 1, true },
    { STAGE_O, { R_O }, 1, false },
    { STAGE_MLP_IN, { R_GATE, R_UP, R_GATE_UP }, 3, false },
    { STAGE_MLP_OUT, { R_DOWN }, 1, false },
};

/* Operations of one row in a stage's products. */
static double linear_flops(const model_linear *l)
{
    return l->present ? 2.0 * (double)l->w.N * (double)l->w.K : 0;
}

/* Of a step; 0: the stage has no products, or not only those. */
static double stage_flops(const bench_profile *b, const model *m, pool_stage_id stage)
{
    const int64_t last = m->cfg->layers - 1;
    double sum = 0;
    if (m->cfg->w.mla) return 0;
    if (stage == STAGE_HEAD) return (double)b->logits * model_logits_flops(m);
    for (size_t i = 0; i < LQ_COUNT(products); i++)
        for (int k = 0; k < products[i].n && products[i].stage == stage; k++)
            for (int64_t l = 0; l <= last; l++)
                sum += linear_flops(&m->layers[l].lin[products[i].roles[k]]) *
                       (double)(l < last || products[i].all ? b->tokens : b->logits);
    return sum;
}

typedef struct {
    const char *name;
    double ms, share, waiting, gflops, percent;
} line;

/* false: the stage took no time. */
static bool line_of(line *out, const bench_profile *b, const model *m, double peak, int threads,
                    int stage)
{
    const double seconds = b->times.seconds[stage], busy = b->times.busy[stage];
    double all = 0;
    for (int s = 0; s < N_STAGES; s++)
        all += b->times.seconds[s];
    if (!(seconds > 0) || b->steps < 1) return false;
    const double step = seconds / (double)b->steps;
    const double flops = stage_flops(b, m, (pool_stage_id)stage);
    *out = (line){ .name = pool_stage_text((pool_stage_id)stage),
                   .ms = step * 1e3,
                   .share = 100 * seconds / all,
                   .waiting = 100 * fmax(0, 1 - busy / (threads * seconds)),
                   .gflops = flops / step * 1e-9,
                   .percent = 100 * flops / step / peak };
    return true;
}

void bench_profile_json(cJSON *row, const bench_profile *b, const model *m, double peak,
                        int threads)
{
    cJSON *list = cJSON_AddArrayToObject(row, "profile");
    line l;
    for (int s = 0; s < N_STAGES; s++) {
        if (!line_of(&l, b, m, peak, threads, s)) continue;
        cJSON *o = cJSON_CreateObject();
        cJSON_AddStringToObject(o, "stage", l.name);
        cJSON_AddNumberToObject(o, "seconds", l.ms * 1e-3);
        cJSON_AddNumberToObject(o, "percent", l.share);
        cJSON_AddNumberToObject(o, "percent_waiting", l.waiting);
        if (l.gflops > 0) {
            cJSON_AddNumberToObject(o, "gflops", l.gflops);
            cJSON_AddNumberToObject(o, "percent_of_peak", l.percent);
        }
        cJSON_AddItemToArray(list, o);
    }
}

void bench_profile_print(const char *title, const bench_profile *b, const model *m, double peak,
                         int threads)
{
    line l;
    printf("\n%-24s %9s %7s %9s %9s %9s\n", title, "ms a step", "%", "% waiting", "GFLOP/s",
           "% of peak");
    for (int s = 0; s < N_STAGES; s++) {
        if (!line_of(&l, b, m, peak, threads, s)) continue;
        printf("%-24s %9.2f %7.1f %9.1f", l.name, l.ms, l.share, l.waiting);
        if (l.gflops > 0) printf(" %9.1f %9.1f", l.gflops, l.percent);
        printf("\n");
    }
}
