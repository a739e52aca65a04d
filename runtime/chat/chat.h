/* runtime/chat/chat.h - from the messages of a conversation to prompt ids, by the model's chat template.
 *
 * The template (chat_set.h says which) is rendered as transformers does it and encoded without the
 * tokenizer's own special tokens: the template writes BOS itself, so there is never a second one.
 * (A plain completion is the other way round: tok_encode with TOK_ADD_SPECIAL puts BOS where the
 * tokenizer's post-processor says so.)
 *
 * Instructions that a template would drop or refuse where they are, and turns of the user in a row
 * that it refuses, are made to fit it (chat_roles.h).
 *
 * What a user writes never becomes a control token. The template engine tracks for every byte
 * whether it came from the template (or the model's own bos_token, ...) or from a message, tool or
 * argument (tmpl_render_own). A special token counts as one only where all of its bytes are the
 * template's; else it is ordinary text. Conversations without such texts, nearly all, give exactly
 * the ids of transformers' apply_chat_template. */
#ifndef LLMQ_RUNTIME_CHAT_CHAT_H
#define LLMQ_RUNTIME_CHAT_CHAT_H

#include "formats/source/source.h"
#include "runtime/chat/chat_set.h"
#include "runtime/tokenizer/tok.h"

typedef struct cJSON cJSON;
typedef struct chat_format chat_format;

/* LQ_ENOENT: the model has no chat template. tok is borrowed. Read-only afterwards: any number of
 * threads may use it. */
lq_status chat_open(chat_format **c, const src_source *src, const tok_tokenizer *tok,
                    const chat_choice *choice, lq_err *err);
void chat_close(chat_format *c); /* NULL allowed */
/* How answers to a request, with or without tools, are to be read (runtime/chat/chat_out.h); *why: the
 * reason where there are no calls. Borrowed. */
const chat_form *chat_form_of(const chat_format *c, bool tools, const char **why);

/* Which variables change what the template makes of a conversation: bits. */
typedef enum { CHAT_EFFORT = 1, CHAT_ENABLE_THINKING = 2, CHAT_THINKING = 4 } chat_variable;
unsigned chat_reads(const chat_format *c);

/* The special tokens that the marks of its forms have. Borrowed. */
const int32_t *chat_shown(const chat_format *c, int *n);

/* The model's templates. Borrowed. */
const chat_set *chat_templates(const chat_format *c);
/* The template's own text (NULL: only templates by name), and the special tokens by name. */
const char *chat_text(const chat_format *c);
const cJSON *chat_tokens(const chat_format *c);

typedef struct {
    const cJSON *messages; /* array of objects */
    const cJSON *tools;    /* array or NULL; with some, a template "tool_use" serves */
    const cJSON *kwargs;   /* further variables of the template, or NULL */
    bool add_generation_prompt;
    bool continue_final; /* the prompt ends inside the last message, which the answer continues */
    size_t max_bytes;    /* of the text that is made into ids; 0: any */
} chat_request;

/* The conversation as text, as transformers renders it; malloc'd. LQ_EVALUE: the template raised
 * (its own message) or the request does not fit it. */
lq_status chat_render(const chat_format *c, const chat_request *r, char **text, size_t *n,
                      lq_err *err);
/* And as ids; malloc'd. LQ_ESHAPE: the text has more than max_bytes. */
lq_status chat_encode(const chat_format *c, const chat_request *r, int32_t **ids, size_t *n,
                      lq_err *err);

#endif
