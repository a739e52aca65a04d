/* runtime/api/api_samplers.h - the parameters of the samplers of runtime/engine/stage.h, by the
 * names of llama.cpp's server and of text-generation-webui. */
#ifndef LLMQ_RUNTIME_API_API_SAMPLERS_H
#define LLMQ_RUNTIME_API_API_SAMPLERS_H

#include "base/json.h"
#include "runtime/api/api_error.h"
#include "runtime/engine/stages/dry_breakers.h"

typedef struct {
    double dynatemp_range, dynatemp_exponent, dynatemp_low, dynatemp_high;
    bool dynamic; /* low and high say temperature and range */
    bool temperature_last;
    double typical_p, top_n_sigma, xtc_probability, xtc_threshold, mirostat_tau, mirostat_eta;
    int64_t mirostat;
    double dry_multiplier, dry_base;
    int64_t dry_allowed_length, dry_last_n;
    const cJSON *breakers;  /* array of strings; NULL: the usual ones */
    cJSON *own_breakers;    /* where a string spelled them */
    bool has_last_n, all_n; /* repeat_last_n was given; its 0 is all */
    int64_t last_n;
    uint8_t order[SMP_STAGES];
    bool ordered, penalties, dry, infill; /* `samplers` was given, and has these */
} api_samplers;

void api_samplers_init(api_samplers *s);
void api_samplers_free(api_samplers *s);
/* Values that are more than one number; LQ_EVALUE after api_fail. */
lq_status api_read_samplers(api_samplers *s, const cJSON *v, api_error *e);
lq_status api_read_breakers(api_samplers *s, const cJSON *v, api_error *e);
lq_status api_read_mirostat(api_samplers *s, const char *name, const cJSON *v, api_error *e);
/* When all is read; temperature may become that of dynatemp_low and _high. */
lq_status api_check_samplers(api_samplers *s, double *temperature, api_error *e);
/* The name of one that draws otherwise than without it, or NULL: a beam search draws nothing. */
const char *api_sampler_on(const api_samplers *s);
/* Into out, whose other fields are there; breakers are b's. */
void api_samplers_put(smp_params *out, const api_samplers *s, const dry_breakers *b);
/* Of DRY, if it is on. A model without a tokenizer has none; tok NULL. */
lq_status api_breakers(dry_breakers *b, const api_samplers *s, const tok_tokenizer *tok,
                       int64_t vocab, api_error *e);

#endif
