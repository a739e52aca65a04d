/* runtime/api/api_card.h - /v1/models as Anthropic's clients read it, and what Ollama's read of any server.
 * Sources: docs.anthropic.com, "List Models"; github.com/ollama/ollama 0.33.0, docs/api.md, cmd/cmd.go. */
#ifndef LLMQ_RUNTIME_API_API_CARD_H
#define LLMQ_RUNTIME_API_API_CARD_H

#include "runtime/http/http.h"

/* The request says a version of that API, as their clients do; its errors have that API's shape from now on. */
bool api_asks_anthropic(http_req *r);
void api_anthropic_card(jw *w, const char *name, int64_t created,
                        int64_t max_len); /* 0: not known */
/* The members of a list beside its `data`, which has all that there are. */
void api_anthropic_page(jw *w, const char *first, const char *last);

/* The body of GET /api/version: the version of Ollama's API that this is, since clients do not talk to one that is too
 * old for them, and llmq's own. */
void api_ollama_version(jw *w, const char *llmq);
/* Digest of a model that is not loaded yet: clients show the first 12 characters, and end where there are fewer. */
#define API_NO_DIGEST "0000000000000000"

#endif
