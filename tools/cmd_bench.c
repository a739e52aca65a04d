/* tools/cmd_bench.c - `llmq bench`: speed beside the machine's own limits, measured in the same
 * run. */
#include "tools/bench/bench_serve.h"

#include "base/json.h"
#include "runtime/model/model.h"

static const struct {
    const char *name;
    lq_status (*run)(const cmd_ctx *c, const bench_cmd *o, lq_err *err);
} kinds[] = {
    { "kernels", bench_kernels },
    { "model", bench_model },
    { "attention", bench_attention },
    { "serve", bench_serve },
};

static const char *const fusions[] = { "none", "on", "off", NULL };

#define F(field) offsetof(bench_cmd, field)
static const opt_row rows[] = {
    { "scheme", 0, OPT_STR, F(scheme), .def = "u4-g128", .arg = "SCHEME",
      .help = "weights of the built-in model's layers, and of --fusion" },
    { "shape", 0, OPT_ENUM, F(shape), .def = "1.1b", .words = model_shape_names,
      .help = "of the built-in model; that of Llama-3.1-8B takes 7 GB and has a bf16 head" },
    { "prompt", 0, OPT_INT, F(prompt), .def = "512", .lo = 1, .hi = 1 << 16,
      .help = "tokens of the prompt that prefill is measured with (default: fewer where MODEL has "
              "fewer positions)" },
    { "batch", 0, OPT_STR, F(batch), .def = "1,2,4,8,16,32", .arg = "B[,B...]",
      .help = "sequences that decode together" },
    { "context", 0, OPT_INT, F(context), .def = "128", .lo = 0, .hi = 1 << 20,
      .help = "tokens that each of them has in its cache already (unasked: fewer, as above)" },
    { "steps", 0, OPT_INT, F(steps), .def = "16", .lo = 1, .hi = 100000,
      .help = "decode steps; the median counts" },
    { "fusion", 0, OPT_ENUM, F(fusion), .def = "none", .words = fusions,
      .help =
          "kernels: the steps of one layer of the built-in shape instead, with the bytes that they "
          "move; on: joined as the forward pass joins them; off: each on its own" },
    { "rows", 0, OPT_STR, F(rows), .arg = "ROW[;ROW...]",
      .help = "kernels of a GPU: only the rows that begin so, as 'u4-g128 bf16 1x;decode'" },
    { "profile", 0, OPT_FLAG, F(profile),
      .help = "model: where the time of each row's steps goes, stage by stage" },
    { "spec-accept", 0, OPT_FLOAT, F(accept), .def = "0", .hi = 1,
      .help = "measure speculation too, with two layers of the model as a draft whose guesses are "
              "right with this probability" },
    { "mixed", 0, OPT_INT, F(mixed), .def = "0", .lo = 0, .hi = 100000,
      .help = "measure static, dynamic and continuous batching too, with so many requests whose "
              "answers have 8 tokens, but one of each eight 128" },
    { "places", 0, OPT_INT, F(places), .def = "16", .lo = 1, .hi = 4096,
      .help = "sequences that may run together with --mixed" },
};

static const opt_row attention_rows[] = {
    { "attention", 0, OPT_ENUM, F(attention), .def = "both", .words = bench_attentions,
      .help = "naive: all scores at once, as the formula has it; flash: by tiles with a running "
              "softmax, as models run it" },
    { "longest", 0, OPT_INT, F(longest), .def = "2048", .lo = 128, .hi = 16384,
      .help = "prompts from 128 tokens on, each twice as long, up to this" },
};

static const opt_row serve_rows[] = {
    { "load", 0, OPT_ENUM, F(load), .def = "random", .words = bs_load_names,
      .help =
          "random: prompts that share nothing; shared-prefix: they begin alike; multi-turn: "
          "conversations; abort: clients leave at their first token; long-and-short: short ones "
          "alone, then beside one prompt of --long-len after the other" },
    { "num-prompts", 0, OPT_INT, F(num_prompts), .def = "64", .lo = 1, .hi = 1e6,
      .help = "requests (or conversations) of each row" },
    { "concurrency", 0, OPT_STR, F(concurrency), .def = "1,4,16,64", .arg = "C[,C...]",
      .help = "closed loop: this many at a time, one row each" },
    { "request-rate", 0, OPT_FLOAT, F(rate), .lo = 1e-3, .hi = 1e5, .arg = "R",
      .help = "open loop: this many start per second, at the times of a Poisson process" },
    { "input-len", 0, OPT_INT, F(input_len), .def = "128", .lo = 1, .hi = 1 << 20,
      .help = "tokens of a prompt, of a turn; with a shared prefix: those after it" },
    { "output-len", 0, OPT_INT, F(output_len), .def = "64", .lo = 1, .hi = 1 << 20,
      .help = "tokens of an answer" },
    { "prefix-len", 0, OPT_INT, F(prefix_len), .def = "256", .lo = 1, .hi = 1 << 20,
      .help = "tokens that all prompts begin with" },
    { "long-len", 0, OPT_INT, F(long_len), .def = "8192", .lo = 1, .hi = 1 << 24,
      .help = "tokens of a long prompt" },
    { "turns", 0, OPT_INT, F(turns), .def = "4", .lo = 1, .hi = 1000, .help = "of a conversation" },
    { "goodput", 0, OPT_STR, F(goodput), .arg = "ttft:MS,tpot:MS,e2el:MS",
      .help = "limits that a good request keeps; default: every completed request is good" },
    { "warmups", 0, OPT_INT, F(warmups), .def = "4", .lo = 0, .hi = 10000,
      .help = "warm-up requests, not counted" },
    { "seed", 's', OPT_INT, F(seed), .def = "0", .help = "same seed, same requests and times" },
    { "key", 0, OPT_STR, F(key), .arg = "KEY",
      .help = "the server's key; default: LLMQ_API_KEY or OPENAI_API_KEY of the environment" },
    { "model", 0, OPT_STR, F(name), .arg = "NAME",
      .help = "one of the server's models, which it may have to load first; default: its first" },
    { "served-model-name", 0, OPT_STR, F(served), .arg = "NAME", .help = "the same" },
    { "lora-modules", 0, OPT_STR, F(loras), .arg = "NAME[,NAME...]",
      .help = "names of adapters (or models): each request is for one of them, by chance" },
    { "insecure", 0, OPT_FLAG, F(insecure), .help = "accept any TLS certificate" },
};

static lq_status bench_run(const cmd_ctx *c, const void *opts, lq_err *err)
{
    const bench_cmd *o = opts;
    if (o->fusion != FUSION_NONE && strcmp(c->argv[0], "kernels") != 0)
        return lq_fail(err, LQ_EUSAGE, "--fusion: expected with bench kernels, found bench %.40s",
                       c->argv[0]);
    if (o->rows && (strcmp(c->argv[0], "kernels") != 0 || o->fusion != FUSION_NONE ||
                    strncmp(opt_device(&o->model), "cuda", 4) != 0))
        return lq_fail(err, LQ_EUSAGE, "--rows: expected with bench kernels --device cuda");
    if (o->profile && strcmp(c->argv[0], "model") != 0)
        return lq_fail(err, LQ_EUSAGE, "--profile: expected with bench model, found bench %.40s",
                       c->argv[0]);
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
    .summary = "speed of kernels and models next to this machine's limits, and of servers",
    .details =
        "`bench kernels` measures each kernel at sizes of real layers. `bench model` "
        "measures prefill of one prompt and decode at several batch sizes; "
        "without MODEL on a built-in Llama shape (--shape) with weights made in "
        "memory. The limit of a row is the larger of two times: reading the weights and the "
        "cache once at the measured bandwidth, and doing the products at the measured rate. "
        "After it: what a token of context takes in the cache, by type and by KV heads. "
        "Weights that a cache of the machine holds are read faster than that, and pass 100 %. "
        "`bench attention` sets attention as the formula has it next to the one that models run. "
        "`bench serve` loads a server of this API, llmq's or another's, and prints the times to "
        "the first token (ttft), between tokens (itl) and to the end (e2el), the throughput, and "
        "how many good requests there were a second. With --json and one row the document has "
        "the names of vLLM's.",
    .args = { { "KIND", 1, 1, "kernels, model, attention or serve" },
              { "MODEL", 0, 1,
                ".llmq or .gguf file, or Hugging Face folder; default: built in. For serve: "
                "http://HOST:PORT",
                FILES_MODEL } },
    .groups = { OPT_GROUP("Kernels and models", rows, 0), OPT_GROUP("Attention", attention_rows, 0),
                OPT_GROUP("Servers", serve_rows, 0),
                OPT_GROUP("Running the model", opt_model_rows, F(model)) },
    .examples = "llmq bench kernels\0"
                "llmq bench kernels --fusion on --scheme nf4\0"
                "llmq bench model\0"
                "llmq bench model --device cuda --shape llama-3.1-8b --prompt 4096\0"
                "llmq bench model model.llmq --batch 1,8 --json\0"
                "llmq bench model --batch 32 --profile\0"
                "llmq bench model --batch 1 --mixed 64 --places 16\0"
                "llmq bench attention --longest 1024\0"
                "llmq bench serve http://127.0.0.1:8000 --concurrency 1,8,64\0"
                "llmq bench serve http://127.0.0.1:8000 --request-rate 4 --goodput "
                "ttft:500,tpot:50 --json\0",
    .opts_bytes = sizeof(bench_cmd),
    .run = bench_run,
};
