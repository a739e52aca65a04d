/* runtime/chat/chat_generic.h - tools for templates that do not show them. */
#ifndef LLMQ_RUNTIME_CHAT_CHAT_GENERIC_H
#define LLMQ_RUNTIME_CHAT_CHAT_GENERIC_H

#include "runtime/chat/chat_form.h"

/* Describes the tools, and how form wants them called, in the system message, which is made if there
 * is none; `in_user`: in the first message instead, for templates that know no system. Where
 * form->generic, calls and answers of tools become text that the template shows: they are the
 * assistant's, and the user's. False: out of memory. */
bool generic_messages(cJSON *messages, const cJSON *tools, const chat_form *form, bool in_user);

#endif
