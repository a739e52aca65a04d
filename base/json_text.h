/* base/json_text.h - JSON whose strings may hold U+0000 and whose numbers keep their spelling.
 *
 * cJSON ends a string at its first NUL and keeps a number as a double. Text that goes to a
 * tokenizer or a chat template needs both, so jt_parse
 *   - turns the escape \u0000 into the bytes C0 80, which no valid UTF-8 text holds; jt_copy turns
 *     them back;
 *   - with JT_NUMBERS, keeps how numbers were spelled (JS_SPELLED of base/json.h: "1.0" stays a
 *     float, "9007199254740993" keeps its last digit).
 * The tree is an ordinary cJSON tree otherwise; cJSON_Delete frees it.
 * Source: RFC 8259; Java's "modified UTF-8" for the two bytes. */
#ifndef LLMQ_BASE_JSON_TEXT_H
#define LLMQ_BASE_JSON_TEXT_H

#include "base/base.h"

#include <cjson/cJSON.h>

enum { JT_DEPTH = 128 }; /* nesting */
typedef enum { JT_NUMBERS = 1 } jt_flags;

/* Parse exactly n bytes (white space may follow). Errors: LQ_EFORMAT - not JSON, invalid UTF-8, a
 * raw NUL, nested deeper than JT_DEPTH; LQ_ENOMEM. */
lq_status jt_parse(cJSON **out, const char *text, size_t n, unsigned flags, lq_err *err);

/* Bytes of a tree's string as the text has them; dst needs strlen(src) bytes. Returns the length.
 */
size_t jt_copy(char *dst, const char *src);

#endif
