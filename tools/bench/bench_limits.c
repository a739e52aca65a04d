/* tools/bench/bench_limits.c - the machine's limits, as JSON and as a line of text. */
#include "base/json.h"
#include "tools/bench/bench.h"

#include <stdio.h>

static const char *limit_name(mm_acts a, char out[24])
{
    snprintf(out, 24, "%s_gflops", mm_acts_text(a));
    return out;
}

void bench_add_limits(cJSON *doc, const char *name, const bench_limits *l)
{
    char text[24];
    cJSON *o = cJSON_AddObjectToObject(doc, name);
    cJSON_AddNumberToObject(o, "threads", l->threads);
    cJSON_AddNumberToObject(o, "read_gbytes_s", l->read_gbytes_s);
    for (int a = 0; a < MM_N_ACTS; a++)
        if (l->gflops[a] > 0)
            cJSON_AddNumberToObject(o, limit_name((mm_acts)a, text), l->gflops[a]);
}

void bench_print_limits(const bench_limits *l)
{
    printf("limits measured now, %d thread%s: %.1f GB/s read", l->threads,
           l->threads == 1 ? "" : "s", l->read_gbytes_s);
    for (int a = 0; a < MM_N_ACTS; a++)
        if (l->gflops[a] > 0) printf(", %.0f GFLOP/s %s", l->gflops[a], mm_acts_text((mm_acts)a));
    printf("\n");
}
