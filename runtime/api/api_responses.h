/* runtime/api/api_responses.h - OpenAI's Responses API: its bodies as chats (api_responses_in.c), its answers
 * (api_responses.c) those that nobody waits for (api_background.c). Source: OpenAI's API reference,
 * "Responses" and "Streaming events". */
#ifndef LLMQ_RUNTIME_API_API_RESPONSES_H
#define LLMQ_RUNTIME_API_API_RESPONSES_H

#include "runtime/api/api_body.h"

extern const api_dialect api_responses_dialect, api_compact_dialect;

/* Thoughts go out, and come back, as the "encrypted" content of a reasoning item where the client asks
 * for that, and summaries as that of a compaction item: this, and the text. */
#define API_THOUGHT_MARK "llmq:"
bool api_wants(const cJSON *body, const char *included); /* `include` has it */

struct gen_choice;
void api_write_usage(jw *w, const struct gen_choice *c); /* "usage", of a choice that has ended */
/* Makes item i of that response one as lists have it: with an id, a type and a content of parts. False: no memory. */
bool api_complete_item(cJSON *item, const char *response, int i);

/* ---- in the background (api_background.c) ---- */
/* Takes q over, whose answer has q->id: it is kept as what is given here, made without the client, and kept again when
 * it has ended. events: it is a stream, which begins with these, and r gets it; NULL: r is answered at once. */
void api_background(api *a, http_req *r, const gen_shape *shape, api_request *q,
                    const lq_buf *response, const lq_buf *items, const lq_buf *events);
/* Keeps what is in progress as this, its end. False: it has ended, is forgotten, or could not be kept. */
bool api_response_end(api *a, const char *id, const lq_buf *response, const lq_buf *items);
void api_response_not_kept(api *a, http_req *r, const char *id); /* 404 */

/* Tools in a namespace (api_namespace.c). */
bool api_is_namespace(const cJSON *tool);
/* The name that the model sees, a new string; NULL: no memory. */
cJSON *api_joined_name(const char *space, const char *name);
/* The tool's own name and *space, where `whole` is what the model sees of one of `tools` in a namespace; else NULL. */
const char *api_split_name(const cJSON *tools, const lq_buf *whole, const char **space);

#endif
