/* runtime/api/api_ollama.h - Ollama's API: its bodies (api_ollama_in.c), its answers (api_ollama.c), what it
 * tells of models (api_ollama_models.c), and what is asked before (api_ollama_load.c). Source: github.com/ollama/ollama, docs/api.md. */
#ifndef LLMQ_RUNTIME_API_API_OLLAMA_H
#define LLMQ_RUNTIME_API_API_OLLAMA_H

#include "runtime/api/api_body.h"

extern const api_dialect api_ollama_chat, api_ollama_generate, api_ollama_plain, api_ollama_embed,
    api_ollama_embedding, api_ollama_templated;
extern const http_style api_ollama_style;

/* `prompt` of b->to: the ids that the request's template makes of system and prompt, after those of
 * `context`. */
lq_status api_ollama_by_template(api_body *b);
/* The name that is served where a client adds ":latest"; malloc'd. NULL: `name` is right as it is. */
char *api_ollama_name(const api *a, const char *name);
/* The model that a body names is served; `name`: as it is spelled there, NULL: it is not a text. */
lq_status api_ollama_find(const api *a, const cJSON *body, const char **name, api_error *e);
/* Answers a request that wants the model loaded: a chat without messages, a generation without a prompt. False: it is
 * another, and not answered. */
bool api_ollama_load(api *a, http_req *r, const cJSON *body, bool chat);
/* Likewise of vectors, without a text; `old`: of /api/embeddings. */
bool api_ollama_load_vectors(api *a, http_req *r, const cJSON *body, bool old);

#endif
