/* runtime/chat/chat_probe.h - conversations rendered to be looked at, and pieces of their text. */
#ifndef LLMQ_RUNTIME_CHAT_CHAT_PROBE_H
#define LLMQ_RUNTIME_CHAT_CHAT_PROBE_H

#include "base/json.h"
#include "runtime/chat/chat_form.h"
#include "runtime/chat/tmpl.h"

/* Words that no template has. */
#define PROBE_USER "Zuserz"
#define PROBE_CONTENT "Zcontz"
#define PROBE_THOUGHT "Zthinkz"
enum { PROBE_CALLS = 3 };
extern const char *const probe_names[PROBE_CALLS], *const probe_ids[PROBE_CALLS];

typedef enum {
    PROBE_STRINGS, /* two strings: PROBE_KEY_A: PROBE_VALUE_A, PROBE_KEY_B: PROBE_VALUE_B */
    PROBE_NONE,    /* no arguments */
    PROBE_TYPES    /* zka [1, 2], zkb true, zkn 7301, zko {"k": "v"} */
} probe_args;
#define PROBE_KEY_A "zkeya"
#define PROBE_KEY_B "zkeyb"
#define PROBE_VALUE_A "Zvala1"
#define PROBE_VALUE_B "Zvalb2"

typedef struct {
    const char *content; /* of the assistant's turn; NULL: there is none */
    int calls;
    probe_args args;
    bool thought; /* the turn has one */
    bool parts;   /* thought and content are parts of a list */
    bool results; /* tools have answered */
    bool prompt;  /* add_generation_prompt */
    bool no_tools;
    bool text;         /* arguments as text */
    const char *kwarg; /* a further variable, ... */
    bool value;        /* ... and what it is */
} probe;

/* malloc'd; NULL: the template raised (err), or out of memory. */
char *probe_render(const tmpl_template *t, const cJSON *tokens, const probe *p, lq_err *err);

/* The arguments of a probe's call, and the schema of them. */
cJSON *probe_arguments(probe_args a);
cJSON *probe_parameters(void);

typedef struct {
    const char *p;
    size_t n;
} span;
/* Behind the last of the user's words. */
span probe_turn(const char *text);
span span_of(const char *from, const char *to);
/* What both begin, or end, with; cut so that no mark ("<...>") and no code point is split. */
size_t span_prefix(span a, span b);
size_t span_suffix(span a, span b);
const char *span_find(span s, const char *word); /* NULL: it is not there */
span span_after(span s, size_t n);               /* without its first n bytes */
/* A copy in which names, ids and keys of the probes are holes. False: it does not fit. */
bool span_mark(form_mark to, span s);

/* chat_check.c: the calls of `how`'s conversation, with every kind of arguments, are read as what
 * they are. */
bool probe_reads_back(const chat_form *f, const tmpl_template *t, const cJSON *tokens,
                      const probe *how);

#endif
