/* runtime/chat/chat_out.h - splits an answer of a chat model as it arrives: reasoning, content,
 * function calls, by the form of its template (chat_form.h).
 *
 * The parts do not depend on how the text was cut into pieces, and only text that may still become
 * a mark is withheld. What looks like a call and is none - no such function, no name, no object -
 * stays text. A call that is an object needs no marks at the beginning of an answer. Arguments are JSON: those that the model writes as JSON are passed on as it spells
 * them, piece by piece; others become JSON as they come, by the types of the function's parameters.
 * Newlines next to the marks of thoughts, and before calls, are dropped. */
#ifndef LLMQ_RUNTIME_CHAT_CHAT_OUT_H
#define LLMQ_RUNTIME_CHAT_CHAT_OUT_H

#include "runtime/chat/chat_form.h"

typedef enum { CHAT_CONTENT, CHAT_REASONING, CHAT_CALL, CHAT_ARGUMENTS } chat_part;

typedef struct {
    const chat_form *form; /* borrowed */
    bool calls;            /* there may be calls */
    bool one_call;         /* what comes after the first call is dropped */
    bool thinks;           /* the answer may begin with a thought */
    bool thinking;         /* it has: the prompt ends inside it */
    /* Is there a function of this name? */
    bool (*known)(void *user, const char *name, size_t n);
    /* Its parameters, a JSON schema; NULL (also the function): not known. */
    const cJSON *(*parameters)(void *user, const char *name, size_t n);
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
