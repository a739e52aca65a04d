/* tools/cli/engine_opts.c - see engine_opts.h. */
#include "tools/cli/engine_opts.h"

#include "runtime/engine/sizing.h"
#include "runtime/engine/spec.h"

static const char *const batchings[] = {
    [ENG_CONTINUOUS] = "continuous", [ENG_STATIC] = "static", [ENG_DYNAMIC] = "dynamic", NULL
};

static const char *const lengths[] = { [-1 - ENG_LEN_AUTO] = "auto", NULL };

#define F(field) offsetof(opt_engine, field)
const opt_row opt_engine_rows[OPT_ENGINE_N] = {
    { "max-model-len", 0, OPT_INT, F(max_len), .hi = 1 << 24, .words = lengths,
      .help = "context length in tokens; 0: the model's, or less where a quarter of free memory "
              "holds less; auto: the longest that the KV cache's or most of free memory holds" },
    { "max-num-seqs", 0, OPT_INT, F(max_seqs), .def = "64", .lo = 1, .hi = 4096,
      .help = "sequences that run at the same time" },
    { "max-num-batched-tokens", 0, OPT_INT, F(max_batch_tokens), .def = "512", .lo = 1,
      .hi = 1 << 20, .help = "tokens of one step, prefill and decode together" },
    { "batching", 0, OPT_ENUM, F(batching), .def = "continuous", .words = batchings,
      .help = "when new requests join: continuous (as soon as there is room), static (after the "
              "batch ends) or dynamic (static, after waiting --batch-wait-ms for more)" },
    { "batch-wait-ms", 0, OPT_FLOAT, F(wait_ms), .def = "0", .hi = 60000,
      .help = "with --batching dynamic: how long a batch that is not full waits for more" },
    { "waiting-served-ratio", 0, OPT_FLOAT, F(served_ratio), .def = "0", .hi = 1e6,
      .help = "with --batching continuous: requests join only when this many wait for each that "
              "runs; 0: at once" },
    { "max-waiting-tokens", 0, OPT_INT, F(max_waiting), .def = "0", .hi = 1 << 20,
      .help = "with --waiting-served-ratio: they join after this many steps in any case; 0: 20" },
    { "block-size", 0, OPT_INT, F(block_size), .def = "16", .lo = 8, .hi = 32,
      .help = "tokens per block of the KV cache: 8, 16 or 32" },
    { "kv-cache-memory", 0, OPT_SIZE, F(kv_bytes),
      .help = "memory of the KV cache; 0: what --max-num-seqs needs, at most 1/4 of what is free" },
    { "enable-prefix-caching", 0, OPT_TRI, F(prefix_cache),
      .help = "keep the KV blocks of finished requests for prompts with the same beginning "
              "(default: on)" },
    { "speculative-ngram", 0, OPT_FLAG, F(ngram),
      .help = "speculative decoding by prompt look-up: what followed the last tokens earlier is "
              "guessed to follow again; answers stay the same" },
    { "speculative-model", 0, OPT_STR, F(draft), .arg = "DRAFT", .files = FILES_MODEL,
      .help = "speculative decoding with this small model of the same vocabulary, or this EAGLE-3 "
              "draft for the model; answers stay the same" },
    { "speculative-mtp", 0, OPT_TRI, F(mtp),
      .help = "speculative decoding with the model's own head for multi-token prediction; answers "
              "stay the same (default: serve on the CPU uses one that the files have and memory "
              "has room for)" },
    { "num-speculative-tokens", 0, OPT_INT, F(guesses), .def = "0", .hi = SPEC_MAX,
      .help = "with one of these: guesses per sequence and step, at most; 0: 5" },
    { "lora", 0, OPT_LIST, F(loras), .arg = "NAME=PATH",
      .help =
          "serve the model with this LoRA or DoRA adapter too, to requests whose model is NAME: "
          "a folder of PEFT's, or a GGUF adapter; on the CPU" },
    { "max-lora-rank", 0, OPT_INT, F(lora_rank), .def = "256", .lo = 1, .hi = 4096,
      .help = "the largest rank that an adapter may have" },
};

lq_status opt_guesses(int64_t *guesses, bool ngram, bool mtp, const char *draft, lq_err *err)
{
    const int ways = ngram + mtp + (draft != NULL);
    if (*guesses && !ways)
        return lq_fail(err, LQ_EUSAGE,
                       "--num-speculative-tokens goes with --speculative-ngram, --speculative-mtp "
                       "or --speculative-model");
    if (ways > 1)
        return lq_fail(err, LQ_EUSAGE,
                       "--speculative-ngram, --speculative-mtp and --speculative-model exclude "
                       "each other");
    if (ways && !*guesses) *guesses = SPEC_DEFAULT;
    return LQ_OK;
}

adapters_opts opt_adapters(const opt_engine *o, const char *dir)
{
    return (adapters_opts){ .dir = dir,
                            .named = o->loras.v,
                            .n = o->loras.n,
                            .max_rank = o->loras.n || dir ? o->lora_rank : 0 };
}

lq_status opt_engine_of(eng_opts *e, const opt_engine *o, const opt_model *m, lq_err *err)
{
    *e = (eng_opts){ .acts = opt_acts(m),
                     .kv = opt_kv(m),
                     .policy = { .batching = (eng_batching)o->batching,
                                 .batch_wait = 1e-3 * o->wait_ms,
                                 .served_ratio = o->served_ratio,
                                 .max_waiting_steps = o->max_waiting },
                     .block_size = (int)o->block_size,
                     .kv_bytes = o->kv_bytes,
                     .max_len = o->max_len,
                     .max_seqs = o->max_seqs,
                     .max_batch_tokens = o->max_batch_tokens,
                     .no_prefix_cache = !opt_tri_or(o->prefix_cache, true) };
    const adapters_opts loras = opt_adapters(o, NULL);
    e->lora_rank = loras.max_rank;
    e->lora_bytes = adapters_file_bytes(&loras);
    e->guesses = o->guesses;
    lq_status s = adapters_check(&loras, err);
    if (!s) s = opt_guesses(&e->guesses, o->ngram, opt_engine_mtp(o), o->draft, err);
    if (s) return s;
    return eng_check_policy(&e->policy, err);
}
