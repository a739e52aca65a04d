/* runtime/api/api_body.h - the body of another API as one of chat/completions: a table with a row for
 * each of its parameters, and what the functions of the rows build with.
 *
 * The result borrows the values of the body it was made of (references of cJSON), so it goes first.
 * Allocations are not looked at one by one: js_ran_out tells at the end. */
#ifndef LLMQ_RUNTIME_API_API_BODY_H
#define LLMQ_RUNTIME_API_API_BODY_H

#include "runtime/api/api_int.h"

typedef struct {
    api *a;
    const cJSON *from;
    cJSON *to;       /* the body of a chat */
    cJSON *messages; /* its messages */
    cJSON *past;     /* what else `to` borrows from; NULL: nothing. cJSON_Delete it after `to` */
    api_error *e;
} api_body;

/* v is not null. */
typedef lq_status api_body_read(api_body *b, const char *name, const cJSON *v);

typedef struct {
    const char *name;
    const char *ours;    /* the parameter of a chat that has the same values; NULL: see read */
    api_body_read *read; /* NULL, like ours: no influence on the answer */
} api_field;

/* A parameter without a row has its meaning of a chat, if it has one. */
typedef struct api_dialect {
    const api_field *fields;
    size_t n;
    /* After all rows: what the API demands. NULL: nothing. */
    lq_status (*finish)(api_body *b);
    /* Before all rows: may change the body. NULL: does not. */
    lq_status (*begin)(api *a, cJSON *body, api_error *e);
    /* After the prompt was made, or not (`made`, e): may change the messages and make it again
     * (api_render). NULL: does not. */
    lq_status (*edit)(const api *a, api_request *q, lq_status made, api_error *e);
} api_dialect;

/* q->doc of another API becomes q->body, and what it means q->doc; also after an error. */
lq_status api_body_translate(api *a, const api_dialect *d, api_request *q, api_error *e);
/* Names in an error the parameter of the dialect for the one of a chat. */
void api_body_error(const api_dialect *d, api_error *e);

/* ---- for the rows ---- */
/* One member, by a table. */
lq_status api_body_field(api_body *b, const api_field *fields, size_t n, const cJSON *v);
api_body_read api_body_refuse;    /* "NAME is not supported" */
api_body_read api_body_variables; /* chat_template_kwargs, beside api_put_variable's */
/* "WHERE: expected EXPECTED, found (what v is)"; WHERE is made of a format, which may be NULL. */
lq_status api_body_wrong(api_body *b, const char *name, const char *where, const char *expected,
                         const cJSON *v);
bool api_is(const cJSON *v, const char *text); /* a string that is this one */
cJSON *api_ref(const cJSON *v);                /* the same value, borrowed */
void api_put(cJSON *o, const char *key, cJSON *v);
void api_put_str(cJSON *o, const char *key, const char *s); /* s is borrowed */
/* A message behind the others. */
cJSON *api_add_message(api_body *b, const char *role);
/* The last message, where it has this role; else one more. */
cJSON *api_turn(api_body *b, const char *role);
/* A text behind the others of a message: there is a newline between them. */
void api_add_text(cJSON *message, const char *text);
/* A call of an assistant's message; arguments: an object, or text; NULL: they are added to the
 * function, which is returned. Borrowed. */
cJSON *api_add_call(cJSON *message, const char *id, const char *name, const cJSON *arguments);
/* A variable of the chat template, which may know it or not. */
void api_put_variable(api_body *b, const char *name, cJSON *v);
/* A function that the model may call, which is returned. Borrowed; NULL: not given. */
cJSON *api_add_tool(api_body *b, const cJSON *name, const cJSON *description,
                    const cJSON *parameters, const cJSON *strict);
/* A custom tool with the members of `tool`; what has them is returned. */
cJSON *api_add_custom_tool(api_body *b, const cJSON *tool);

#endif
