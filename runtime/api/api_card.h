/* runtime/api/api_card.h - /v1/models as Anthropic's clients read it. Source: docs.anthropic.com, "List Models". */
#ifndef LLMQ_RUNTIME_API_API_CARD_H
#define LLMQ_RUNTIME_API_API_CARD_H

#include "runtime/http/http.h"

/* The request says a version of that API, as their clients do; its errors have that API's shape from now on. */
bool api_asks_anthropic(http_req *r);
void api_anthropic_card(jw *w, const char *name, int64_t created,
                        int64_t max_len); /* 0: not known */
/* The members of a list beside its `data`, which has all that there are. */
void api_anthropic_page(jw *w, const char *first, const char *last);

#endif
