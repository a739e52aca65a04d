/* runtime/api/api_messages.h - Anthropic's Messages API: its bodies as chats (api_messages_in.c), and its answers
 * (api_messages.c). Source: docs.anthropic.com, "Messages" and "Streaming messages". */
#ifndef LLMQ_RUNTIME_API_API_MESSAGES_H
#define LLMQ_RUNTIME_API_API_MESSAGES_H

#include "runtime/api/api_body.h"

/* The latter's without max_tokens. */
extern const api_dialect api_messages_dialect, api_count_dialect;
/* bare: of what needs no body. */
extern const http_style api_messages_style, api_messages_bare;

/* api_messages_edit.c: `context_management`. Its edits are made of a prompt that is there, or is too long; what was
 * done becomes members of the request's own body, which these write. */
api_body_read api_read_edits;
lq_status api_edit_messages(const api *a, api_request *q, lq_status made, api_error *e);
void api_write_edits(jw *w, const cJSON *body); /* of an answer: the edits that were made */
void api_write_original_tokens(jw *w, const cJSON *body); /* of a count */

#endif
