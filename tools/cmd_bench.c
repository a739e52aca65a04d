/* tools/cmd_bench.c - `llmq bench`: speed beside the machine's own limits, measured in the same
 * run. */
#include "tools/bench.h"

static const struct {
    const char *name;
    lq_status (*run)(const cmd_ctx *c, const bench_opts *o, lq_err *err);
} kinds[] = {
    { "model", bench_model },
};

#define F(field) offsetof(bench_opts, field)
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
    .summary = "speed of a model beside this machine's limits",
    .details = "`bench model` measures prefill of one prompt and decode at several batch sizes; "
               "without MODEL on a built-in Llama shape of 1.1 B parameters with weights made in "
               "memory. The limit of a row is the larger of two times: reading the weights and the "
               "cache once at the measured bandwidth, and doing the products at the measured rate.",
    .args = { { "KIND", 1, 1, "model" },
              { "MODEL", 0, 1, ".llmq file or Hugging Face folder; default: built in" } },
    .groups = { OPT_GROUP("Options", rows, 0),
                OPT_GROUP("Running the model", opt_model_rows, F(model)) },
    .examples = "llmq bench model\0"
                "llmq bench model model.llmq --batch 1,8 --json\0",
    .opts_bytes = sizeof(bench_opts),
    .run = run,
};
