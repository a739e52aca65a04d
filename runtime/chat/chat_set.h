/* runtime/chat/chat_set.h - the chat templates of a model, and its special tokens by name.
 *
 * Where they come from, as in transformers: chat_template.jinja and additional_chat_templates/
 * NAME.jinja; else "chat_template" of tokenizer_config.json (a string, or a list of {"name",
 * "template"}, or an object of name: template); else that of chat_template.json. A lone template
 * is "default". */
#ifndef LLMQ_RUNTIME_CHAT_CHAT_SET_H
#define LLMQ_RUNTIME_CHAT_CHAT_SET_H

#include "formats/source/source.h"
#include "runtime/chat/chat_form.h"
#include "runtime/chat/tmpl.h"

typedef struct chat_set chat_set;

/* What a user has instead. A name is that of one of the model's templates, or chatml. */
typedef struct {
    const char *template;    /* its name or file; NULL: the model's own. It is the only one then */
    const char *tool_format; /* of form_named; NULL: as the template spells calls */
} chat_choice;
#define CHAT_MAX_TEMPLATE (4 << 20) /* bytes */

/* choice may be NULL. LQ_ENOENT: the model has no chat template. A template that does not parse is an error when it
 * is asked for, so that a broken one for documents does not keep a model from talking. */
lq_status chat_set_open(chat_set **c, const src_source *src, const chat_choice *choice,
                        lq_err *err);
void chat_set_close(chat_set *c); /* NULL allowed */

/* The template called `name`; NULL: "tool_use" where there is one and tools are given, else
 * "default". LQ_EVALUE names those there are. Borrowed. */
lq_status chat_set_pick(const chat_set *c, const char *name, bool tools, const tmpl_template **t,
                        lq_err *err);
/* The form of the template that chat_set_pick(NULL, tools) gives; *why: the reason where it has no
 * calls. Borrowed. */
const chat_form *chat_set_form(const chat_set *c, bool tools, const char **why);
/* The text of the template called `name`; NULL: there is none. Borrowed. */
const char *chat_set_text(const chat_set *c, const char *name);
/* bos_token, eos_token, ...: strings, marked TMPL_OWN. Borrowed. */
const cJSON *chat_set_tokens(const chat_set *c);

#endif
