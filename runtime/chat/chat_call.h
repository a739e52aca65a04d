/* runtime/chat/chat_call.h - one call of a function, read byte by byte by a form; chat_out.c's.
 *
 * It begins behind form_begin(f, first); what it was may turn out to be no call until its
 * function's name is complete. Blanks may differ from the form's; a call that is a JSON object may
 * have its members in any order. */
#ifndef LLMQ_RUNTIME_CHAT_CHAT_CALL_H
#define LLMQ_RUNTIME_CHAT_CHAT_CALL_H

#include "base/buf.h"
#include "runtime/chat/chat_out.h"
#include "runtime/chat/chat_value.h"

typedef enum { CALL_MORE, CALL_NONE, CALL_DONE } call_state;

typedef struct {
    const chat_form *f;
    const chat_out_opts *o;
    /* CHAT_CALL and CHAT_ARGUMENTS as they come. */
    void (*give)(void *user, chat_part part, const char *p, size_t n);
    void *user;

    bool
        bare; /* without its marks, so it must look like a call from its beginning: the name, and arguments */
    bool announced, has_args;
    int place;
    const char *at; /* in the head or the tail */
    lq_buf key, text, name, args;
    const cJSON *tool; /* its parameters; NULL: not known */
    int n_params, types, depth;
    size_t full; /* bytes of `text` that the next argument's mark has */
    bool in_string, escaped, streams, fresh, has_name;
    char quote;
} chat_call;

void call_begin(chat_call *c);
/* One byte. CALL_DONE: the call is complete, and (*again) the byte is not part of it. */
call_state call_byte(chat_call *c, char b, bool *again);
void call_end(chat_call *c); /* no more text: what is open is given as it is */
void call_free(chat_call *c);
bool call_oom(const chat_call *c);

/* How text compares with a mark, blanks aside. */
typedef enum { MARK_NO, MARK_PART, MARK_FULL } mark_match;
mark_match mark_compare(const char *mark, size_t n_mark, const char *text, size_t n);
static inline bool mark_blank(char b) { return b == ' ' || b == '\n' || b == '\t' || b == '\r'; }

#endif
