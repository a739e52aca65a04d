/* runtime/chat/chat_value.h - values of arguments as chat models spell them, to JSON. */
#ifndef LLMQ_RUNTIME_CHAT_CHAT_VALUE_H
#define LLMQ_RUNTIME_CHAT_CHAT_VALUE_H

#include "base/json.h"
#include "runtime/chat/chat_form.h"

/* Types that a schema allows. */
enum {
    VALUE_STR = 1,
    VALUE_NUM = 2,
    VALUE_BOOL = 4,
    VALUE_OBJ = 8,
    VALUE_ARR = 16,
    VALUE_NULL = 32,
    VALUE_ANY = 63
};
/* root: where its references point into; NULL schema: any. */
int value_types(const cJSON *schema, const cJSON *root);

/* Appends the value that text[n] spells: as JSON, as a Python literal, or (f->values) as Gemma's or
 * nested elements; what is none of them, or of a type that `types` does not have, is a string. */
void value_json(lq_buf *out, const chat_form *f, const char *text, size_t n, int types,
                const cJSON *schema, const cJSON *root);
/* Appends bytes of a string between its quotes. */
void value_escape(lq_buf *out, const char *text, size_t n);

#endif
