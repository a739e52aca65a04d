/* runtime/api/api_responses.h - OpenAI's Responses API: its bodies as chats (api_responses_in.c), its answers
 * (api_responses.c) and what is kept of them (api_responses_kept.c). Source: OpenAI's API reference,
 * "Responses" and "Streaming events". */
#ifndef LLMQ_RUNTIME_API_API_RESPONSES_H
#define LLMQ_RUNTIME_API_API_RESPONSES_H

#include "runtime/api/api_body.h"

extern const api_dialect api_responses_dialect;

/* Thoughts go out, and come back, as the "encrypted" content of a reasoning item where the client asks
 * for that: this, and the text. */
#define API_THOUGHT_MARK "llmq:"
bool api_wants(const cJSON *body, const char *included); /* `include` has it */

#endif
