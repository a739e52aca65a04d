/* tools/cli/sampler_opts.h - the options of the samplers of runtime/engine/stage.h. */
#ifndef LLMQ_TOOLS_CLI_SAMPLER_OPTS_H
#define LLMQ_TOOLS_CLI_SAMPLER_OPTS_H

#include "runtime/engine/stages/dry_breakers.h"
#include "tools/cli/opt.h"

typedef struct {
    double typical_p, top_n_sigma, dynatemp_range, dynatemp_exponent;
    double xtc_probability, xtc_threshold, mirostat_tau, mirostat_eta;
    int mirostat; /* of the words off, 2 */
    double dry_multiplier, dry_base;
    int64_t dry_allowed, dry_last_n, repeat_last_n;
    opt_list breakers;
} opt_samplers;

enum { OPT_SAMPLERS_N = 15 };
extern const opt_row opt_samplers_rows[OPT_SAMPLERS_N];

/* Into p, whose other fields are there; breakers (of a model with a tokenizer) become *b's, which
 * lives as long as p is in use: dry_breakers_free. LQ_ENOMEM; LQ_EUSAGE - too many breakers. */
lq_status opt_samplers_put(smp_params *p, dry_breakers *b, const opt_samplers *o,
                           const tok_tokenizer *tok, int64_t vocab, lq_err *err);
/* One of them is on that draws. */
bool opt_samplers_draw(const opt_samplers *o);

#endif
