/* tools/cmd_bench.c - `llmq bench`: speed beside the machine's own limits, measured in the same
 * run. */
#include "tools/bench.h"

#include "formats/json.h"

static const struct {
    const char *name;
    lq_status (*run)(const cmd_ctx *c, const bench_cmd *o, lq_err *err);
} kinds[] = {
    { "kernels", bench_kernels },
    { "model", bench_model },
};

#define F(field) offsetof(bench_cmd, field)
static const opt_row rows[] = {
    { "scheme", 0, OPT_STR, F(scheme), .def = "u4-g128", .arg = "SCHEME",
      .help = "weights of the built-in 1.1 B model" },
    { "prompt", 0, OPT_INT, F(prompt), .def = "512", .lo = 1, .hi = 1 << 16,
      .help = "tokens of the prompt that prefill is measured with" },
    { "batch", 0, OPT_STR, F(batch), .def = "1,2,4,8,16,32", .arg = "B[,B...]",
      .help = "sequences that decode together" },
    { "context", 0, OPT_INT, F(context), .def = "128", .lo = 0, .hi = 1 << 20,
      .help = "tokens that each of them has in its cache already" },
    { "steps", 0, OPT_INT, F(steps), .def = "16", .lo = 1, .hi = 100000,
      .help = "decode steps; the median counts" },
};

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

static lq_status run(const cmd_ctx *c, const void *opts, lq_err *err)
{
    for (size_t i = 0; i < LQ_COUNT(kinds); i++)
        if (strcmp(kinds[i].name, c->argv[0]) == 0) return kinds[i].run(c, opts, err);
    char known[64] = "";
    for (size_t i = 0; i < LQ_COUNT(kinds); i++) {
        size_t used = strlen(known);
        snprintf(known + used, sizeof known - used, i ? ", %s" : "%s", kinds[i].name);
    }
    return lq_fail(err, LQ_EUSAGE, "expected one of %s, found '%.40s'", known, c->argv[0]);
}

const cmd_row cmd_bench = {
    .name = "bench",
    .summary = "speed of kernels and models beside this machine's limits",
    .details =
        "`bench kernels` measures each kernel at sizes of real layers. `bench model` "
        "measures prefill of one prompt and decode at several batch sizes; "
        "without MODEL on a built-in Llama shape of 1.1 B parameters with weights made in "
        "memory. The limit of a row is the larger of two times: reading the weights and the "
        "cache once at the measured bandwidth, and doing the products at the measured rate. "
        "Weights that a cache of the machine holds are read faster than that, and pass 100 %.",
    .args = { { "KIND", 1, 1, "kernels or model" },
              { "MODEL", 0, 1, ".llmq file or Hugging Face folder; default: built in" } },
    .groups = { OPT_GROUP("Options", rows, 0),
                OPT_GROUP("Running the model", opt_model_rows, F(model)) },
    .examples = "llmq bench kernels\0"
                "llmq bench model\0"
                "llmq bench model model.llmq --batch 1,8 --json\0",
    .opts_bytes = sizeof(bench_cmd),
    .run = run,
};
