/* runtime/api/api_params_other.h - parameters that other servers and clients know and llmq does not
 * have: those that would change the answer are refused by name unless their value changes nothing,
 * the others are taken, and said once in the log.
 *
 * Sources: OpenAI's API, llama.cpp's server, vLLM, SGLang, text-generation-webui, KoboldCpp. */
#ifndef LLMQ_RUNTIME_API_API_PARAMS_OTHER_H
#define LLMQ_RUNTIME_API_API_PARAMS_OTHER_H

#include "runtime/api/api_params.h"

/* One member of a request. *known: there is a row for it; what is not null and has no influence is
 * added to *noted, as bit i of api_noted_name(i). LQ_EVALUE after api_fail: refused. */
lq_status api_read_other(const cJSON *v, api_kind kind, bool *known, uint64_t *noted, api_error *e);
/* The rows as members of an object of schemas. */
void api_other_schema(jw *w, api_kind kind);
/* The bit of a name that is among them. */
uint64_t api_noted_bit(const char *name);

#endif
