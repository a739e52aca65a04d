/* runtime/chat/chat_out.h - splits an answer of a chat model as it arrives: reasoning, content,
 * function calls.
 *
 * The parts do not depend on how the text was cut into pieces, and only text that may still become
 * a mark is withheld. Styles of calls:
 *   CHAT_CALLS_HERMES  (Hermes, Qwen)  <tool_call>{"name": ..., "arguments": {...}}</tool_call>
 *                      anywhere, any number of them; newlines before them are dropped
 *   CHAT_CALLS_LLAMA3  (Llama 3.1)     {"name": ..., "parameters": {...}} as the whole answer;
 *                      several with ';' between them
 * What looks like a call and is none - no such function, no name, no object - stays text. The
 * arguments are passed on as the model spells them, piece by piece; they are as good JSON as the
 * model writes.
 * Reasoning is between <think> and </think> at the beginning; the first mark may be in the
 * prompt. Newlines next to the marks are dropped. */
#ifndef LLMQ_RUNTIME_CHAT_CHAT_OUT_H
#define LLMQ_RUNTIME_CHAT_CHAT_OUT_H

#include "runtime/chat/chat_set.h"

typedef enum { CHAT_CONTENT, CHAT_REASONING, CHAT_CALL, CHAT_ARGUMENTS } chat_part;

typedef struct {
    chat_calls calls;
    bool one_call; /* what comes after the first call is dropped */
    bool thinks;   /* the answer may begin with <think> */
    bool thinking; /* it has: the prompt ends with it */
    /* Is there a function of this name? */
    bool (*known)(void *user, const char *name, size_t n);
    /* The next n bytes of a part. CHAT_CALL: a call begins, p is the function's name; its arguments
     * follow. Pieces end where pushes end, or a part does. */
    void (*sink)(void *user, chat_part part, const char *p, size_t n);
    void *user;
} chat_out_opts;

typedef struct chat_out chat_out;
lq_status chat_out_open(chat_out **c, const chat_out_opts *o, lq_err *err);
void chat_out_close(chat_out *c); /* NULL allowed */
/* LQ_ENOMEM. */
lq_status chat_out_push(chat_out *c, const char *text, size_t n, lq_err *err);
lq_status chat_out_end(chat_out *c, lq_err *err); /* no more text will come */

#endif
