/* runtime/api/api_messages.h - Anthropic's Messages API: its bodies as chats (api_messages_in.c), and its answers
 * (api_messages.c). Source: docs.anthropic.com, "Messages" and "Streaming messages". */
#ifndef LLMQ_RUNTIME_API_API_MESSAGES_H
#define LLMQ_RUNTIME_API_API_MESSAGES_H

#include "runtime/api/api_body.h"

extern const api_dialect api_messages_dialect,
    api_count_dialect; /* the latter's without max_tokens */
extern const http_style api_messages_style;

#endif
