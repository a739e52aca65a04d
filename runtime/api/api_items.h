/* runtime/api/api_items.h - an answer as a list of items in the order that the model wrote them: texts,
 * thoughts and calls. For clients whose answers are such lists; each has one choice. */
#ifndef LLMQ_RUNTIME_API_API_ITEMS_H
#define LLMQ_RUNTIME_API_API_ITEMS_H

#include "runtime/api/api_gen_int.h"

struct gen_item {
    chat_part kind; /* CHAT_CONTENT, CHAT_REASONING or CHAT_CALL */
    lq_buf name;    /* of the called function */
    lq_buf text;    /* a call's: its arguments */
    size_t sent;    /* bytes of the text that the stream has */
    jw logprobs;    /* of a text, where gen_shape.item_logprobs: of the tokens that it came with */
    size_t n_told;  /* bytes of them that the stream has */
    bool begun, ended; /* in the stream */
};

/* The events of a stream. False: the client is gone. */
typedef struct {
    bool (*open)(gen_choice *c); /* before all others; NULL: none, as for each of them */
    bool (*begin)(gen_choice *c, const gen_item *t);
    bool (*delta)(gen_choice *c, const gen_item *t, const char *p, size_t n);
    bool (*end)(gen_choice *c, const gen_item *t);
} gen_item_events;

/* gen_shape.take */
void gen_take_item(gen_choice *c, chat_part part, const char *p, size_t n);
/* gen_shape.chunk, with these events: an item ends where the next begins, or the answer does. */
bool gen_send_items(gen_choice *c, const gen_item_events *e);
/* Its number in the list. */
int gen_item_number(const gen_choice *c, const gen_item *t);
/* A member of a JSON object: what the buffer holds, as a string. */
void gen_put_text(jw *w, const char *key, const lq_buf *text);
/* Arguments of a call as a JSON value in one line: {} where the model's text is no object. */
void gen_put_object(jw *w, const lq_buf *text);
bool gen_has_call(const gen_choice *c);

#endif
