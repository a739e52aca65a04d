/* runtime/chat/chat_rules.h - the grammar of answers by a form (chat_form.h), as a tree that
 * runtime/grammar/grammar_tree.c reads. */
#ifndef LLMQ_RUNTIME_CHAT_CHAT_RULES_H
#define LLMQ_RUNTIME_CHAT_CHAT_RULES_H

#include "base/buf.h"
#include "runtime/chat/chat_form.h"

/* Appends the tree of one call (`several`: one or more, as far as the form has that) of the OpenAI
 * tools, or of the one called `name`. Places in messages are "/anyOf/I/properties/arguments" of the
 * I-th tool; loose[I]: its arguments are any object (NULL: none is). */
void rules_calls(lq_buf *out, const chat_form *f, const cJSON *tools, const char *name,
                 bool several, const bool *loose);
/* Texts behind which an answer is a call of that tool, in some variants of blanks; returns how many. The
 * first is what the tree of rules_calls begins with. */
enum { RULES_WAKES = 4, RULES_WAKE = 2 * FORM_MARK + 128 };
int rules_wakes(char text[RULES_WAKES][RULES_WAKE], const chat_form *f, const char *name);
/* Texts without blanks that an answer may begin with where it leaves the marks out (chat_out.h); 0 where the form's
 * calls are no objects or have no marks. */
enum { RULES_BARE = 2 };
int rules_bare_wakes(char text[RULES_BARE][RULES_WAKE], const chat_form *f, const char *name);
/* Appends the tree of a thought: to its end, where the prompt ends inside it, else one that may be
 * left out; "[]" for a form without. */
void rules_thought(lq_buf *out, const chat_form *f, bool thinking);

#endif
