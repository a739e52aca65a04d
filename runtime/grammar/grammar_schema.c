/* runtime/grammar/grammar_schema.c - JSON schema as rules.
 *
 * Each schema that can be met is one rule; references lead to the rule of what they point at, so a
 * recursive schema is a recursive grammar. What is generated is always valid, and not all that is
 * valid is generated: members come in the order of `properties`, and where `additionalProperties`
 * is not given, no others (spec->any_properties: any others). Keywords that say something about
 * validity and cannot be honoured are refused with their place; so are unknown ones, but for
 * names that begin with "x-". Source: JSON schema 2020-12, with `definitions`, `nullable` and
 * tuples in `items` of earlier drafts. */
#include "runtime/grammar/grammar_schema.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- keywords ---- */

typedef enum { K_ANNOTATION, K_CORE, K_STR, K_NUM, K_ARR, K_OBJ, K_REFUSED } keyword_kind;
static const struct {
    const char *name;
    keyword_kind kind;
} keywords[] = {
    { "title", K_ANNOTATION },
    { "description", K_ANNOTATION },
    { "default", K_ANNOTATION },
    { "examples", K_ANNOTATION },
    { "example", K_ANNOTATION },
    { "deprecated", K_ANNOTATION },
    { "readOnly", K_ANNOTATION },
    { "writeOnly", K_ANNOTATION },
    { "$schema", K_ANNOTATION },
    { "$id", K_ANNOTATION },
    { "$comment", K_ANNOTATION },
    { "$defs", K_ANNOTATION },
    { "definitions", K_ANNOTATION },
    { "discriminator", K_ANNOTATION },
    { "contentEncoding", K_ANNOTATION },
    { "contentMediaType", K_ANNOTATION },
    { "propertyOrdering", K_ANNOTATION },
    { "type", K_CORE },
    { "nullable", K_CORE },
    { "enum", K_CORE },
    { "const", K_CORE },
    { "$ref", K_CORE },
    { "allOf", K_CORE },
    { "anyOf", K_CORE },
    { "oneOf", K_CORE },
    { "minLength", K_STR },
    { "maxLength", K_STR },
    { "pattern", K_STR },
    { "format", K_STR },
    { "minimum", K_NUM },
    { "maximum", K_NUM },
    { "exclusiveMinimum", K_NUM },
    { "exclusiveMaximum", K_NUM },
    { "multipleOf", K_NUM },
    { "items", K_ARR },
    { "prefixItems", K_ARR },
    { "additionalItems", K_ARR },
    { "minItems", K_ARR },
    { "maxItems", K_ARR },
    { "uniqueItems", K_ARR },
    { "properties", K_OBJ },
    { "required", K_OBJ },
    { "additionalProperties", K_OBJ },
    { "patternProperties", K_OBJ },
    { "propertyNames", K_OBJ },
    { "minProperties", K_OBJ },
    { "maxProperties", K_OBJ },
};

static keyword_kind kind_of(const char *name)
{
    for (size_t i = 0; i < LQ_COUNT(keywords); i++)
        if (strcmp(keywords[i].name, name) == 0) return keywords[i].kind;
    return strncmp(name, "x-", 2) == 0 ? K_ANNOTATION : K_REFUSED;
}

bool gs_is_annotation(const char *key) { return kind_of(key) == K_ANNOTATION; }

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
    c->tasks[c->n_tasks++] = (gs_task){ schema, at, rule };
    return rule;
}

/* ---- values ---- */

/* The value's canonical text: for enum and const. */
static ga_node *literal(gs_ctx *c, const cJSON *v, const char *at)
{
    js_buf text = { 0 };
    lq_err why = { "" };
    ga_node *t = NULL;
    if (js_canonical(&text, v, &why))
        gs_fail(c, LQ_EVALUE, at, NULL, "%s", why.msg);
    else if (text.failed)
        ga_fail(c->b, LQ_ENOMEM, "grammar: out of memory");
    else
        t = ga_bytes(c->b, text.data, text.n);
    free(text.data);
    return t;
}

/* The values of enum or const that `type` allows; other assertions beside them are refused. */
static ga_node *values(gs_ctx *c, const cJSON *schema, const cJSON *list, const char *key,
                       const char *at)
{
    ga_node *alt = ga_alt(c->b);
    int types = js_get(schema, "type") ? gs_types(c, schema, at) : 0;
    for (const cJSON *k = schema->child; k; k = k->next)
        if (kind_of(k->string) > K_CORE)
            gs_fail(c, LQ_EUNSUPPORTED, at, k->string, "cannot be honoured beside %s", key);
    if (cJSON_GetObjectItemCaseSensitive(schema, "enum") &&
        cJSON_GetObjectItemCaseSensitive(schema, "const"))
        gs_fail(c, LQ_EUNSUPPORTED, at, "const", "cannot be honoured beside enum");
    bool is_const = strcmp(key, "const") == 0;
    if (!is_const && (!cJSON_IsArray(list) || !list->child))
        gs_fail(c, LQ_EVALUE, at, key, "expected an array of at least one value");
    for (const cJSON *v = is_const ? list : list->child; v && !c->b->status;
         v = is_const ? NULL : v->next)
        if (!types || (gs_type_of(v) & types)) ga_add(alt, literal(c, v, at));
    return alt;
}

/* v as units of 10^-places, rounded up or down; false: too large or too fine to be exact. */
static bool scaled(const cJSON *v, int places, bool up, int64_t *out, bool *exact)
{
    char text[40];
    double x = v->valuedouble;
    if (!(fabs(x) < 1e15)) return false;
    for (int digits = 1; digits <= 17; digits++) { /* the shortest that reads back the same */
        snprintf(text, sizeof text, "%.*g", digits, x);
        if (!(strtod(text, NULL) < x) && !(strtod(text, NULL) > x)) break;
    }
    char *e = strchr(text, 'e');
    int point = 0, exp = e ? atoi(e + 1) : 0;
    bool neg = text[0] == '-', seen = false;
    int64_t n = 0, rest = 0;
    int taken = 0; /* digits behind the point in n */
    for (const char *p = text + neg; *p && p != e; p++) {
        if (*p == '.') {
            seen = true;
            continue;
        }
        n = 10 * n + (*p - '0'); /* at most 17 digits */
        point += seen;
    }
    for (taken = point - exp; taken < places; taken++) {
        if (n > INT64_MAX / 10) return false;
        n *= 10;
    }
    for (; taken > places; taken--) {
        rest |= n % 10;
        n /= 10;
    }
    *exact = rest == 0;
    if (rest && up != neg) n++;
    *out = neg ? -n : n;
    return n <= 999999999999999999;
}

/* The bound that two keywords give, in units; *have: there is one. */
static bool bound(gs_ctx *c, const cJSON *schema, bool lower, int places, int64_t *out, bool *have,
                  const char *at)
{
    static const char *const keys[2][2] = { { "maximum", "exclusiveMaximum" },
                                            { "minimum", "exclusiveMinimum" } };
    for (int strict = 0; strict < 2; strict++) {
        const char *key = keys[lower][strict];
        const cJSON *v = js_get(schema, key);
        int64_t n = 0;
        bool exact = true;
        if (!v) continue;
        if (!cJSON_IsNumber(v)) {
            gs_fail(c, LQ_EVALUE, at, key, "expected a number");
            return false;
        }
        if (!scaled(v, places, lower, &n, &exact)) {
            gs_fail(c, LQ_EUNSUPPORTED, at, key, "only bounds below 10^15 can be honoured");
            return false;
        }
        if (strict && exact) n += lower ? 1 : -1;
        if (!*have || (lower ? n > *out : n < *out)) *out = n;
        *have = true;
    }
    return true;
}

ga_node *gs_number(gs_ctx *c, const cJSON *schema, const char *at, bool integer)
{
    enum { PLACES = 5 }; /* digits behind the point where a bound is given */
    const cJSON *of = js_get(schema, "multipleOf");
    if (of && !(cJSON_IsNumber(of) && integer && !(of->valuedouble < 1) && !(of->valuedouble > 1)))
        gs_fail(c, LQ_EUNSUPPORTED, at, "multipleOf", "only 1 for integers can be honoured");
    bool has_lo = false, has_hi = false;
    int64_t lo = 0, hi = 0;
    if (!bound(c, schema, true, 0, &lo, &has_lo, at) ||
        !bound(c, schema, false, 0, &hi, &has_hi, at))
        return NULL;
    if (!has_lo && !has_hi) return integer ? gj_integer(&c->j) : gj_number(&c->j);
    ga_node *alt = ga_alt(c->b);
    for (int places = 0; places <= (integer ? 0 : PLACES) && !c->b->status; places++) {
        int64_t unit = 1, most = 999999999999;
        for (int i = 0; i < places; i++)
            unit *= 10;
        bool l = false, h = false;
        lo = hi = 0;
        if (integer) most = 999999999999999999;
        /* a bound far out leaves less room behind the point */
        const cJSON *v[4] = { js_get(schema, "minimum"), js_get(schema, "exclusiveMinimum"),
                              js_get(schema, "maximum"), js_get(schema, "exclusiveMaximum") };
        bool room = true;
        for (int i = 0; i < 4; i++)
            room &= !v[i] || fabs(v[i]->valuedouble) * (double)unit < 9e17;
        if (places && !room) break;
        if (!bound(c, schema, true, places, &lo, &l, at) ||
            !bound(c, schema, false, places, &hi, &h, at))
            return NULL;
        most *= integer ? 1 : unit;
        if (!h) hi = lo > most ? 999999999999999999 : most;
        if (!l) lo = hi < -most ? -999999999999999999 : -most;
        if (lo <= hi) ga_add(alt, gj_range(c->b, lo, hi, places));
    }
    return alt;
}

ga_node *gs_string(gs_ctx *c, const cJSON *schema, const char *at)
{
    const cJSON *pattern = js_get(schema, "pattern"), *format = js_get(schema, "format");
    int64_t min = gs_count(c, schema, "minLength", 0, at),
            max = gs_count(c, schema, "maxLength", -1, at);
    bool length = js_get(schema, "minLength") || js_get(schema, "maxLength");
    ga_node *body = NULL;
    if (pattern && !cJSON_IsString(pattern))
        gs_fail(c, LQ_EVALUE, at, "pattern", "expected a string");
    if (format && !cJSON_IsString(format)) gs_fail(c, LQ_EVALUE, at, "format", "expected a string");
    if (pattern && (length || format))
        gs_fail(c, LQ_EUNSUPPORTED, at, "pattern", "cannot be honoured beside %s",
                format ? "format" : "minLength or maxLength");
    if (format && length)
        gs_fail(c, LQ_EUNSUPPORTED, at, "format",
                "cannot be honoured beside minLength or maxLength");
    if (max >= 0 && max < min) gs_fail(c, LQ_EVALUE, at, "maxLength", "it is below minLength");
    if (c->b->status) return NULL;
    if (pattern) {
        char what[160];
        snprintf(what, sizeof what, "json schema: at #%.120s/pattern", at);
        body = gr_regex(c->b, pattern->valuestring, strlen(pattern->valuestring), true, true, what);
    } else if (format) {
        const char *regex = gs_format(format->valuestring);
        if (!regex)
            gs_fail(c, LQ_EUNSUPPORTED, at, "format", "%.60s is not known", format->valuestring);
        else
            body = gr_regex(c->b, regex, strlen(regex), true, false, "format");
    } else if (length) {
        body = ga_repeat(c->b, gj_any_char(&c->j), min, max);
    } else {
        return gj_string(&c->j);
    }
    ga_node *t = ga_seq(c->b);
    ga_add(t, ga_text(c->b, "\""));
    ga_add(t, body);
    ga_add(t, ga_text(c->b, "\""));
    return t;
}

/* ---- one schema ---- */

static ga_node *by_types(gs_ctx *c, const cJSON *schema, const char *at)
{
    int types = gs_types(c, schema, at);
    if (types == 0) return gj_value(&c->j);
    ga_node *alt = ga_alt(c->b);
    if (types & GS_OBJ) ga_add(alt, gs_object(c, schema, at));
    if (types & GS_ARR) ga_add(alt, gs_array(c, schema, at));
    if (types & GS_STR) ga_add(alt, gs_string(c, schema, at));
    if (types & GS_NUM) ga_add(alt, gs_number(c, schema, at, false));
    if ((types & GS_INT) && !(types & GS_NUM)) ga_add(alt, gs_number(c, schema, at, true));
    if (types & GS_BOOL) {
        ga_add(alt, ga_text(c->b, "true"));
        ga_add(alt, ga_text(c->b, "false"));
    }
    if (types & GS_NULL) ga_add(alt, ga_text(c->b, "null"));
    return alt;
}

static bool asserts(const cJSON *schema, const char *except)
{
    for (const cJSON *k = schema->child; k; k = k->next)
        if (strcmp(k->string, except) != 0 && !gs_is_annotation(k->string)) return true;
    return false;
}

/* $ref: the rule it leads to, or what it and its neighbours allow together. */
static ga_node *reference(gs_ctx *c, const cJSON *schema, const cJSON *ref, const char *at)
{
    const char *to = "";
    if (!cJSON_IsString(ref)) gs_fail(c, LQ_EVALUE, at, "$ref", "expected a string");
    if (c->b->status) return NULL;
    const cJSON *target = gs_resolve(c, ref->valuestring, at, &to);
    const cJSON *end = target;
    for (int n = 0; end && cJSON_IsString(js_get(end, "$ref")) && !asserts(end, "$ref"); n++) {
        const char *there;
        if (n == 64) gs_fail(c, LQ_EVALUE, at, "$ref", "it does not end");
        end = c->b->status ? NULL : gs_resolve(c, js_get(end, "$ref")->valuestring, at, &there);
    }
    if (!target || c->b->status) return NULL;
    if (!asserts(schema, "$ref")) return ga_ref(c->b, gs_rule(c, target, to));
    const cJSON *rest = gs_without(c, schema, "$ref", at);
    const cJSON *both = rest ? gs_merge(c, rest, target, at) : NULL;
    return both ? ga_ref(c->b, gs_rule(c, both, at)) : NULL;
}

static ga_node *all_of(gs_ctx *c, const cJSON *schema, const cJSON *parts, const char *at)
{
    const cJSON *all = gs_without(c, schema, "allOf", at);
    if (!cJSON_IsArray(parts) || !parts->child)
        gs_fail(c, LQ_EVALUE, at, "allOf", "expected an array of at least one schema");
    for (const cJSON *p = parts ? parts->child : NULL; p && all && !c->b->status; p = p->next)
        all = gs_merge(c, all, p, at);
    return all && !c->b->status ? ga_ref(c->b, gs_rule(c, all, at)) : NULL;
}

static ga_node *one_of_several(gs_ctx *c, const cJSON *schema, const cJSON *parts, const char *key,
                               const char *at)
{
    ga_node *alt = ga_alt(c->b);
    const char *here = gs_at(c, at, key);
    const cJSON *rest = asserts(schema, key) ? gs_without(c, schema, key, at) : NULL;
    int n = 0;
    if (!cJSON_IsArray(parts) || !parts->child)
        gs_fail(c, LQ_EVALUE, at, key, "expected an array of at least one schema");
    if (c->b->status) return NULL;
    for (const cJSON *p = parts->child; p && !c->b->status; p = p->next, n++) {
        char index[16];
        snprintf(index, sizeof index, "%d", n);
        if (n > 1000) gs_fail(c, LQ_EVALUE, at, key, "expected at most 1000 schemas");
        if (strcmp(key, "oneOf") == 0)
            for (const cJSON *q = parts->child; q != p && !c->b->status; q = q->next)
                if (!gs_disjoint(c, q, p, at, 0))
                    gs_fail(c, LQ_EUNSUPPORTED, here, index,
                            "may allow the same value as another of oneOf, which cannot be "
                            "excluded; say anyOf");
        const cJSON *one = rest ? gs_merge(c, rest, p, at) : p;
        if (one) ga_add(alt, ga_ref(c->b, gs_rule(c, one, gs_at(c, here, index))));
    }
    return alt;
}

static ga_node *body_of(gs_ctx *c, const cJSON *schema, const char *at)
{
    if (cJSON_IsTrue(schema)) return gj_value(&c->j);
    if (cJSON_IsFalse(schema)) return ga_alt(c->b);
    if (!cJSON_IsObject(schema)) {
        char found[64];
        gs_fail(c, LQ_EVALUE, at, NULL, "expected a schema, found %s", js_describe(found, schema));
        return NULL;
    }
    for (const cJSON *k = schema->child; k; k = k->next)
        if (kind_of(k->string) == K_REFUSED)
            gs_fail(c, LQ_EUNSUPPORTED, at, k->string, "this keyword cannot be honoured");
    if (c->b->status) return NULL;
    const cJSON *v;
    if ((v = js_get(schema, "$ref"))) return reference(c, schema, v, at);
    if ((v = js_get(schema, "allOf"))) return all_of(c, schema, v, at);
    if ((v = js_get(schema, "anyOf"))) return one_of_several(c, schema, v, "anyOf", at);
    if ((v = js_get(schema, "oneOf"))) return one_of_several(c, schema, v, "oneOf", at);
    if ((v = cJSON_GetObjectItemCaseSensitive(schema, "const")))
        return values(c, schema, v, "const", at);
    if ((v = js_get(schema, "enum"))) return values(c, schema, v, "enum", at);
    return by_types(c, schema, at);
}

void gr_parse_schema(ga_builder *b, const gr_spec *spec)
{
    cJSON *root = NULL;
    lq_err why = { "" };
    gs_ctx c = { .b = b, .any_properties = spec->any_properties };
    if (js_parse(&root, spec->text, spec->n, GR_MAX_TEXT, JS_UNIQUE, &why))
        ga_fail(b, LQ_EVALUE, "json schema: %s", why.msg);
    c.root = root;
    c.made = cJSON_CreateArray();
    if (!c.made) ga_fail(b, LQ_ENOMEM, "grammar: out of memory");
    if (!b->status) gs_rule(&c, root, ""); /* rule 0 */
    if (!b->status) gj_open(&c.j, b, spec);
    while (!b->status && c.n_done < c.n_tasks) {
        gs_task t = c.tasks[c.n_done++];
        ga_node *body = body_of(&c, t.schema, t.at);
        if (!b->status) b->rules[t.rule].body = body;
    }
    free(c.tasks);
    free(c.slots);
    cJSON_Delete(c.made);
    cJSON_Delete(root);
}
