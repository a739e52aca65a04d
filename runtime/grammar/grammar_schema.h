/* runtime/grammar/grammar_schema.h - what the files of the JSON schema front end share; no one else
 * includes it. */
#ifndef LLMQ_RUNTIME_GRAMMAR_GRAMMAR_SCHEMA_H
#define LLMQ_RUNTIME_GRAMMAR_GRAMMAR_SCHEMA_H

#include "base/json.h"
#include "runtime/grammar/grammar_int.h"

/* A schema to be made into a rule, and its place. */
typedef struct {
    const cJSON *schema;
    const char *at;    /* JSON pointer, for messages */
    const cJSON *root; /* that its references point into */
    uint32_t rule;
} gs_task;

typedef struct {
    ga_builder *b;
    gj_rules j;
    const cJSON *root;
    bool any_properties, strict;
    gs_task *tasks; /* all, in the order of their rules */
    size_t n_tasks, n_done, cap_tasks;
    uint32_t *slots; /* tasks by the address of their schema */
    size_t n_slots;
    cJSON *made; /* an array: schemas that were merged out of others */
    int64_t copied;
} gs_ctx;

/* Parses spec->text; then rules are asked for, and gs_close makes all of them. */
void gs_open(gs_ctx *c, ga_builder *b, const gr_spec *spec, cJSON **tree);
void gs_close(gs_ctx *c, cJSON *tree);
/* Refuse: "json schema: AT: KEY: ..." */
#if defined(__GNUC__)
__attribute__((format(printf, 5, 6)))
#endif
void gs_fail(gs_ctx *c, lq_status s, const char *at, const char *key, const char *fmt, ...);
/* at/key, in the builder's arena. */
const char *gs_at(gs_ctx *c, const char *at, const char *key);
typedef enum {
    GS_KEY_ANNOTATION, /* says nothing of what is valid */
    GS_KEY_UNKNOWN,    /* likewise, unless the spec is strict */
    GS_KEY_CORE,       /* of all types; the others of one */
    GS_KEY_STR,
    GS_KEY_NUM,
    GS_KEY_ARR,
    GS_KEY_OBJ,
    GS_KEY_REFUSED
} gs_keyword;
gs_keyword gs_keyword_of(const char *key);
bool gs_is_annotation(const char *key);

/* What `ref` ("#", "#/$defs/x") points at, and where that is; NULL after gs_fail. */
const cJSON *gs_resolve(gs_ctx *c, const char *ref, const char *at, const char **to);
/* One schema that allows what all of the parts allow (allOf); the caller's until gs_ctx ends. */
const cJSON *gs_merge(gs_ctx *c, const cJSON *a, const cJSON *b, const char *at);
/* A copy of `schema` without the member `key`. */
const cJSON *gs_without(gs_ctx *c, const cJSON *schema, const char *key, const char *at);
/* Provably, no value is allowed by both. */
bool gs_disjoint(gs_ctx *c, const cJSON *a, const cJSON *b, const char *at, int depth);

typedef enum {
    GS_NULL = 1,
    GS_BOOL = 2,
    GS_INT = 4,
    GS_NUM = 8, /* integers too */
    GS_STR = 16,
    GS_ARR = 32,
    GS_OBJ = 64
} gs_type;
int gs_type_of(const cJSON *value); /* of a JSON value */
/* `type` and `nullable` of a schema; without them what its keywords speak of, or 0: all. */
int gs_types(gs_ctx *c, const cJSON *schema, const char *at);

/* No value is valid: false, or {"not": {}}, as Zod writes what is undefined. */
bool gs_is_nothing(const cJSON *schema);

/* The regular expression of a `format`; NULL: not known. */
const char *gs_format(const char *name);

/* Parts of grammar_schema.c's work (grammar_schema_rules.c, grammar_object.c,
 * grammar_schema_values.c). */
uint32_t gs_rule(gs_ctx *c, const cJSON *schema, const char *at); /* made later */
ga_node *gs_object(gs_ctx *c, const cJSON *schema, const char *at);
ga_node *gs_array(gs_ctx *c, const cJSON *schema, const char *at);
/* The values of enum or const (`key`) that `type` allows; other assertions are refused. */
ga_node *gs_values(gs_ctx *c, const cJSON *schema, const cJSON *list, const char *key,
                   const char *at);
ga_node *gs_string(gs_ctx *c, const cJSON *schema, const char *at);
ga_node *gs_number(gs_ctx *c, const cJSON *schema, const char *at, bool whole);
/* An integer keyword within 0..GR_MAX_REPEAT, or `def`. */
int64_t gs_count(gs_ctx *c, const cJSON *schema, const char *key, int64_t def, const char *at);
/* A whole number from 0, GR_MAX_LENGTH at most: no answer is as long. -1: it is not there. */
int64_t gs_most(gs_ctx *c, const cJSON *schema, const char *key, const char *at);
/* min..max of the character `one`, which is used up; max < 0: without a bound. */
ga_node *gs_length(gs_ctx *c, ga_node *one, int64_t min, int64_t max);

#endif
