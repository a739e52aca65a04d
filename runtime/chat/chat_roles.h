/* runtime/chat/chat_roles.h - who speaks: what a template takes, and conversations made to fit it.
 *
 * Clients put instructions anywhere: Codex begins with the role developer, Claude Code sends a system
 * message after the user's first one, and both send turns of the user in a row. Templates raise at
 * what they do not know, or drop it. So each template is shown such conversations when it is loaded,
 * and what it does not take is said in a way that it takes; nothing is lost, and the order stays:
 *   - developer is system where the template shows it no otherwise than any word, or not at all;
 *   - an instruction that it does not show in its place is text of the user's turn there, or of the
 *     system message where it follows it;
 *   - the user's turns in a row are one turn where the template raises at two;
 *   - a turn of calls alone has an empty content where the template raises at none;
 *   - no calls, null or an empty list, are left out. */
#ifndef LLMQ_RUNTIME_CHAT_CHAT_ROLES_H
#define LLMQ_RUNTIME_CHAT_CHAT_ROLES_H

#include "base/json.h"
#include "runtime/chat/tmpl.h"

typedef struct {
    bool developer;      /* it knows this role */
    bool system;         /* it shows a system message that comes first, ... */
    bool late_system;    /* ... and one after the user has spoken */
    bool late_developer; /* likewise, where it knows that role */
    bool runs;           /* it takes two turns of the user in a row */
    bool no_content;     /* it takes a turn of calls that has no content, ... */
    bool null_content;   /* ... or null */
} chat_roles;

/* tokens: of chat_set_tokens. A template that raises at "hi" alone is said to take everything. */
chat_roles chat_roles_of(const tmpl_template *t, const cJSON *tokens);

/* Changes the messages; those whose content is no string stay apart. False: out of memory. */
bool chat_roles_fit(cJSON *messages, const chat_roles *r);

/* The message says that it is of that role. */
bool chat_has_role(const cJSON *m, const char *role);
/* Puts the text of m after that of the message before it, `between` between them, and removes m. Both
 * are strings. False: out of memory. */
bool chat_join(cJSON *messages, cJSON *m, const char *between);

/* A conversation of these roles (names with a space between), in which message i says "PROBE<i>" (but
 * "calls", "null" and "empty": the assistant calls a tool, without content, with null, with ""),
 * rendered; with kwargs, further variables, up to where an answer begins. malloc'd; NULL: the
 * template raises. */
char *chat_roles_render(const tmpl_template *t, const cJSON *tokens, const char *roles,
                        const cJSON *kwargs);

#endif
