/* runtime/grammar/grammar_schema_rules.c - what all of the JSON schema front end uses: the keywords,
 * messages with their place, and the list of rules to be made. */
#include "runtime/grammar/grammar_schema.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- keywords ---- */

static const struct {
    const char *name;
    gs_keyword kind;
} keywords[] = {
    { "title", GS_KEY_ANNOTATION },
    { "description", GS_KEY_ANNOTATION },
    { "default", GS_KEY_ANNOTATION },
    { "examples", GS_KEY_ANNOTATION },
    { "example", GS_KEY_ANNOTATION },
    { "deprecated", GS_KEY_ANNOTATION },
    { "readOnly", GS_KEY_ANNOTATION },
    { "writeOnly", GS_KEY_ANNOTATION },
    { "$schema", GS_KEY_ANNOTATION },
    { "$id", GS_KEY_ANNOTATION },
    { "$comment", GS_KEY_ANNOTATION },
    { "$anchor", GS_KEY_ANNOTATION },
    { "$vocabulary", GS_KEY_ANNOTATION },
    { "contentSchema", GS_KEY_ANNOTATION },
    { "$defs", GS_KEY_ANNOTATION },
    { "definitions", GS_KEY_ANNOTATION },
    { "discriminator", GS_KEY_ANNOTATION },
    { "contentEncoding", GS_KEY_ANNOTATION },
    { "contentMediaType", GS_KEY_ANNOTATION },
    { "propertyOrdering", GS_KEY_ANNOTATION },
    { "type", GS_KEY_CORE },
    { "nullable", GS_KEY_CORE },
    { "enum", GS_KEY_CORE },
    { "const", GS_KEY_CORE },
    { "$ref", GS_KEY_CORE },
    { "allOf", GS_KEY_CORE },
    { "anyOf", GS_KEY_CORE },
    { "oneOf", GS_KEY_CORE },
    { "minLength", GS_KEY_STR },
    { "maxLength", GS_KEY_STR },
    { "pattern", GS_KEY_STR },
    { "format", GS_KEY_STR },
    { GR_LARK_KEYWORD, GS_KEY_STR },
    { "minimum", GS_KEY_NUM },
    { "maximum", GS_KEY_NUM },
    { "exclusiveMinimum", GS_KEY_NUM },
    { "exclusiveMaximum", GS_KEY_NUM },
    { "multipleOf", GS_KEY_NUM },
    { "items", GS_KEY_ARR },
    { "prefixItems", GS_KEY_ARR },
    { "additionalItems", GS_KEY_ARR },
    { "minItems", GS_KEY_ARR },
    { "maxItems", GS_KEY_ARR },
    { "uniqueItems", GS_KEY_ARR },
    { "properties", GS_KEY_OBJ },
    { "required", GS_KEY_OBJ },
    { "additionalProperties", GS_KEY_OBJ },
    { "patternProperties", GS_KEY_OBJ },
    { "propertyNames", GS_KEY_OBJ },
    { "minProperties", GS_KEY_OBJ },
    { "maxProperties", GS_KEY_OBJ },
    { "not", GS_KEY_REFUSED },
    { "if", GS_KEY_REFUSED },
    { "then", GS_KEY_REFUSED },
    { "else", GS_KEY_REFUSED },
    { "contains", GS_KEY_REFUSED },
    { "minContains", GS_KEY_REFUSED },
    { "maxContains", GS_KEY_REFUSED },
    { "dependencies", GS_KEY_REFUSED },
    { "dependentRequired", GS_KEY_REFUSED },
    { "dependentSchemas", GS_KEY_REFUSED },
    { "unevaluatedItems", GS_KEY_REFUSED },
    { "unevaluatedProperties", GS_KEY_REFUSED },
    { "$dynamicRef", GS_KEY_REFUSED },
    { "$recursiveRef", GS_KEY_REFUSED },
};

gs_keyword gs_keyword_of(const char *name)
{
    for (size_t i = 0; i < LQ_COUNT(keywords); i++)
        if (strcmp(keywords[i].name, name) == 0) return keywords[i].kind;
    return GS_KEY_UNKNOWN;
}

bool gs_is_annotation(const char *key) { return gs_keyword_of(key) <= GS_KEY_UNKNOWN; }

/* ---- messages and places ---- */

void gs_fail(gs_ctx *c, lq_status s, const char *at, const char *key, const char *fmt, ...)
{
    char msg[256];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(msg, sizeof msg, fmt, ap);
    va_end(ap);
    ga_fail(c->b, s, "json schema: at #%.120s%s%.60s: %s", at, key ? "/" : "", key ? key : "", msg);
}

const char *gs_at(gs_ctx *c, const char *at, const char *key)
{
    size_t n = strlen(at), k = 0;
    for (const char *p = key; *p; p++)
        k += *p == '~' || *p == '/' ? 2 : 1;
    if (n + k > 400) return at; /* far enough to find it */
    char *out = c->b->status ? NULL : ga_push(c->b, n + k + 2), *w = out;
    if (!out) return at;
    memcpy(w, at, n);
    w += n;
    *w++ = '/';
    for (const char *p = key; *p; p++) {
        if (*p == '~' || *p == '/') {
            *w++ = '~';
            *w++ = *p == '~' ? '0' : '1';
        } else {
            *w++ = *p;
        }
    }
    return out;
}

int64_t gs_count(gs_ctx *c, const cJSON *schema, const char *key, int64_t def, const char *at)
{
    const cJSON *v = js_get(schema, key);
    int64_t n = def;
    if (v && !js_whole(v, 0, GR_MAX_REPEAT, &n))
        gs_fail(c, LQ_EVALUE, at, key, "expected an integer 0..%d", GR_MAX_REPEAT);
    return n;
}

int64_t gs_most(gs_ctx *c, const cJSON *schema, const char *key, const char *at)
{
    const cJSON *v = js_get(schema, key);
    int64_t n = -1;
    if (cJSON_IsNumber(v) && v->valuedouble > GR_MAX_LENGTH) return GR_MAX_LENGTH;
    if (v && !js_whole(v, 0, GR_MAX_LENGTH, &n))
        gs_fail(c, LQ_EVALUE, at, key, "expected a whole number from 0");
    return n;
}

/* ---- rules ---- */

static size_t slot_of(const gs_ctx *c, const cJSON *schema)
{
    size_t h = (size_t)((uintptr_t)schema >> 4) * 0x9e3779b97f4a7c15u >> 20;
    for (h &= c->n_slots - 1; c->slots[h] != GR_NONE; h = (h + 1) & (c->n_slots - 1))
        if (c->tasks[c->slots[h]].schema == schema) break;
    return h;
}

static bool task_room(gs_ctx *c)
{
    if (c->n_tasks < c->cap_tasks) return true;
    size_t cap = 2 * c->cap_tasks + 64, n = 1;
    while (n < 2 * cap)
        n *= 2;
    gs_task *tasks = realloc(c->tasks, cap * sizeof *tasks);
    if (tasks) c->tasks = tasks;
    uint32_t *slots = malloc(n * sizeof *slots);
    if (!tasks || !slots) {
        free(slots);
        ga_fail(c->b, LQ_ENOMEM, "grammar: out of memory");
        return false;
    }
    memset(slots, 0xff, n * sizeof *slots);
    free(c->slots);
    c->slots = slots;
    c->n_slots = n;
    c->cap_tasks = cap;
    for (size_t i = 0; i < c->n_tasks; i++)
        c->slots[slot_of(c, c->tasks[i].schema)] = (uint32_t)i;
    return true;
}

uint32_t gs_rule(gs_ctx *c, const cJSON *schema, const char *at)
{
    if (c->b->status || !task_room(c)) return 0;
    size_t h = slot_of(c, schema);
    if (c->slots[h] != GR_NONE) return c->tasks[c->slots[h]].rule;
    char name[128];
    snprintf(name, sizeof name, "#%.120s", at);
    uint32_t rule = ga_new_rule(c->b, name);
    c->slots[h] = (uint32_t)c->n_tasks;
    c->tasks[c->n_tasks++] = (gs_task){ schema, at, c->root, rule };
    return rule;
}
