/* tools/cli/engine_opts.h - the options of the engine, for the commands that serve many requests. */
#ifndef LLMQ_TOOLS_CLI_ENGINE_OPTS_H
#define LLMQ_TOOLS_CLI_ENGINE_OPTS_H

#include "runtime/engine/adapters.h"
#include "runtime/engine/engine.h"
#include "tools/cli/model_opts.h"

typedef struct {
    int64_t max_len, max_seqs, max_batch_tokens, block_size, max_waiting;
    size_t kv_bytes;
    double wait_ms, served_ratio;
    int batching; /* eng_batching */
    opt_tri prefix_cache;
    bool ngram;
    opt_tri mtp;
    const char *draft;
    int64_t guesses;
    opt_list loras;
    int64_t lora_rank;
} opt_engine;

enum { OPT_ENGINE_N = 16 };
extern const opt_row opt_engine_rows[OPT_ENGINE_N];

/* Is the model's MTP head to guess? */
static inline bool opt_engine_mtp(const opt_engine *o) { return o->mtp == OPT_YES; }
/* *guesses of each sequence and step, as was said or by default; 0: nobody guesses. LQ_EUSAGE: as below. */
lq_status opt_guesses(int64_t *guesses, bool ngram, bool mtp, const char *draft, lq_err *err);
/* dir: adapters may be loaded from it later; or NULL. Their rank there is e->lora_rank too. */
adapters_opts opt_adapters(const opt_engine *o, const char *dir);
/* LQ_EUSAGE: options that do not go together. */
lq_status opt_engine_of(eng_opts *e, const opt_engine *o, const opt_model *m, lq_err *err);

#endif
