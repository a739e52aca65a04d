/* formats/arch/generation_config.h - generation_config.json: the sampling defaults of a model's
 * makers.
 *
 * A request and the command line override them. Stop ids are in arch_config, joined with
 * config.json's. As in vLLM, max_length (prompt and answer together) is ignored; unlike vLLM, an
 * explicit do_sample false means greedy, temperature 0, since that is how the model's makers run
 * it, and do_sample true without a temperature means 1. */
#ifndef LLMQ_FORMATS_ARCH_GENERATION_CONFIG_H
#define LLMQ_FORMATS_ARCH_GENERATION_CONFIG_H

#include "base/base.h"

typedef struct cJSON cJSON;

typedef struct {
    bool has_temperature, has_top_p, has_top_k, has_min_p, has_repetition_penalty;
    bool has_max_new_tokens;
    double temperature; /* 0: greedy */
    double top_p, min_p, repetition_penalty;
    int64_t top_k; /* 0: all */
    int64_t max_new_tokens;
} gen_defaults;

/* From the file's bytes; data NULL: no file, nothing is set. Null members count as absent.
 * Errors: LQ_EFORMAT - not a JSON object; LQ_EVALUE - a value that is no number or out of range;
 * err names the member, what was expected and what was found. */
lq_status gen_read(gen_defaults *g, const uint8_t *data, size_t n, lq_err *err);

/* The members that are set, as an object; NULL: out of memory. */
cJSON *gen_json(const gen_defaults *g);

#endif
