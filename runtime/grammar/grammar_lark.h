/* runtime/grammar/grammar_lark.h - grammars in Lark's notation, as custom tools and vLLM's clients have them, as
 * regular expressions.
 *
 * Taken: rules and terminals, | * + ? ~n ~n..m ( ) [ ], strings ("..."i too), ranges "a".."z", /regular
 * expressions/, `%import common.NAME`, `%ignore`, aliases (-> name), priorities, comments. Each name is put in the
 * place where it is used, so none may use itself. What is ignored may stand before the first terminal and behind each.
 * Refused by name: recursion, other directives, templates, flags of regular expressions, imports from elsewhere. Source: lark-parser.readthedocs.io, "Grammar Reference". */
#ifndef LLMQ_RUNTIME_GRAMMAR_GRAMMAR_LARK_H
#define LLMQ_RUNTIME_GRAMMAR_GRAMMAR_LARK_H

#include "base/buf.h"

/* Appends what `start` matches, for GR_REGEX; NUL-terminated. LQ_EVALUE, LQ_EUNSUPPORTED: "lark: line 3: ..."; what is
 * wrong inside a regular expression, gr_compile says. LQ_ENOMEM. */
lq_status gr_lark_regex(lq_buf *out, const char *text, lq_err *err);

/* Whether a grammar is in this notation, by how its first rule begins: "name:", not GBNF's "name ::=". */
bool gr_is_lark(const char *text);

#endif
