/* runtime/chat/chat_form.h - how the answers of a chat model are spelled: thoughts, content, calls.
 *
 * One description, read from the chat template by rendering conversations whose names, values and
 * thoughts are unlikely words and looking at what is around them (chat_derive.c), or taken from a
 * row of known formats (chat_form.c). Who parses an answer (chat_out.h), who constrains it
 * (chat_rules.h) and who describes tools to a template that has none (chat_generic.h) read the
 * same description.
 *
 * An answer:  [think_open thought think_close] [content_open content content_close] [calls]
 * calls:      open call (sep call)* close
 * a call:     head arguments tail; head and tail have holes, FORM_NAME where the function's name is,
 *             FORM_ID an id, FORM_INDEX the call's number
 * arguments:  one JSON object, or of each argument p_open name p_mid value p_close with p_sep between
 *             them; the argument's name is between p_open and p_mid, and in p_close where it
 *             has FORM_KEY */
#ifndef LLMQ_RUNTIME_CHAT_CHAT_FORM_H
#define LLMQ_RUNTIME_CHAT_CHAT_FORM_H

#include "base/base.h"

#define FORM_NAME '\x01'
#define FORM_ID '\x02'
#define FORM_INDEX '\x03'
#define FORM_KEY '\x04'

enum { FORM_MARK = 192 };
typedef char form_mark[FORM_MARK];

typedef enum {
    FORM_NO_CALLS,
    FORM_JSON,  /* arguments are a JSON object */
    FORM_PARAMS /* one by one */
} form_args;

/* How a value of FORM_PARAMS is spelled. */
typedef enum {
    FORM_RAW,    /* strings as they are, others as JSON */
    FORM_RAW_PY, /* strings as they are, others as Python: True, {'a': 1} */
    FORM_PY,     /* Python literals */
    FORM_GEMMA,  /* strings between <|"|>, keys bare */
    FORM_NESTED  /* strings as they are, objects and arrays as elements like the arguments' */
} form_values;

/* Types of a value whose p_mid differs. */
typedef enum { FORM_STR, FORM_NUM, FORM_BOOL, FORM_OBJ, FORM_ARR, FORM_N_TYPES } form_type;

typedef struct {
    const char *name; /* of a row; "derived" */
    form_args args;
    form_values values;
    form_mark open, head, tail, sep, close;
    form_mark p_open, p_mid[FORM_N_TYPES], p_close, p_sep;
    bool parallel;       /* several calls in one answer */
    bool lone_open;      /* of a single call the template leaves `close` out */
    bool object;         /* a call is a JSON object: its members may come in any order */
    form_mark key_args;  /* then: the member that has the arguments ... */
    form_mark key_name;  /* ... and the one that has the name */
    int first_index;     /* of FORM_INDEX */
    bool text_arguments; /* the template wants a call's arguments as text */
    bool shows_tools;    /* the prompt of a request with tools describes them */
    bool generic;        /* the template knows no tools: its messages are made to show them */
    bool guessed;        /* from a row, since the template shows tools and no calls */

    form_mark think_open, think_close; /* "": it does not think */
    form_mark content_open, content_close;
    bool header; /* harmony: what a part is, and a call's name, is said up to FORM_HEADER_END */
} chat_form;
#define FORM_HEADER_END "<|message|>"

typedef struct cJSON cJSON;
typedef struct tmpl_template tmpl_template;

#define FORM_NO_TOOLS "it knows no tools"
/* Reads the form out of a template; `tokens` (bos_token, ...) are further variables. The reason why
 * there are no calls (f->args FORM_NO_CALLS) is in why: the template knows no tools, or spells their
 * calls in a way that is not understood. LQ_ENOMEM. */
lq_status form_derive(chat_form *f, const tmpl_template *t, const cJSON *tokens, lq_err *why);
/* The row of a known format ("hermes", "llama3_json", "mistral", ...) in place of f's calls; its
 * thoughts stay. LQ_EVALUE lists the names. */
lq_status form_named(chat_form *f, const char *name, lq_err *err);
/* The row for a template that shows its tools and no calls, by a word of its prompt; NULL: none. */
const char *form_row_of(const char *prompt);
/* A mark of f has this text. */
bool form_has(const chat_form *f, const char *text);
/* What follows of a call from its arguments alone: object, key_args, key_name. */
void form_complete(chat_form *f);
/* Where in f->head a call's pieces begin: its first hole, or the object. What is before is its mark. */
size_t form_begin_head(const chat_form *f);
/* The mark of a call without blanks around it: `first`, with what opens the list; of another one. */
void form_begin(form_mark to, const chat_form *f, bool first);
/* Behind the blanks that a mark begins with. */
const char *form_skip(const char *mark);
/* One line for people: the marks with holes as {name}, {id}, {n}, {key}. */
void form_text(char *out, size_t room, const chat_form *f);

#endif
