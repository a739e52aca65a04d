/* runtime/grammar/grammar_merge.c - JSON schemas as data: references, types, merging (allOf), disjointness
 * (oneOf). Merged schemas are copies; the total of what is copied is bounded, which ends schemas
 * that merge for ever. */
#include "runtime/grammar/grammar_schema.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- references ---- */

/* One part of a JSON pointer in a URI fragment: %XX, then ~1 and ~0. */
static bool unescape(char *out, size_t cap, const char *s, size_t n)
{
    size_t k = 0;
    for (size_t i = 0; i < n; i++) {
        char ch = s[i];
        if (ch == '%' && i + 2 < n && isxdigit((uint8_t)s[i + 1]) && isxdigit((uint8_t)s[i + 2])) {
            char hex[3] = { s[i + 1], s[i + 2], 0 };
            ch = (char)strtol(hex, NULL, 16);
            i += 2;
        } else if (ch == '~' && i + 1 < n && (s[i + 1] == '0' || s[i + 1] == '1')) {
            ch = s[++i] == '0' ? '~' : '/';
        }
        if (k + 1 >= cap) return false;
        out[k++] = ch;
    }
    out[k] = 0;
    return true;
}

const cJSON *gs_resolve(gs_ctx *c, const char *ref, const char *at, const char **to)
{
    const cJSON *v = c->root;
    const char *own = cJSON_GetStringValue(js_get(v, "$id"));
    const size_t n_own = own ? strcspn(own, "#") : 0;
    char part[256];
    *to = "";
    if (n_own && strncmp(ref, own, n_own) == 0 && ref[n_own] == '#') ref += n_own;
    if (ref[0] != '#' || (ref[1] && ref[1] != '/')) {
        gs_fail(c, LQ_EUNSUPPORTED, at, "$ref",
                "only places in the schema itself (#/...) can be honoured, found %.80s", ref);
        return NULL;
    }
    for (const char *p = ref + 1; *p && v;) {
        size_t n = strcspn(++p, "/");
        if (!unescape(part, sizeof part, p, n)) break;
        p += n;
        *to = gs_at(c, *to, part);
        if (cJSON_IsArray(v)) {
            char *end;
            long i = strtol(part, &end, 10);
            v = *end || end == part || i < 0 || i > 100000 ? NULL : cJSON_GetArrayItem(v, (int)i);
        } else {
            v = cJSON_IsObject(v) ? cJSON_GetObjectItemCaseSensitive(v, part) : NULL;
        }
        if (!*p && v) return v;
    }
    if (!ref[1]) return v;
    gs_fail(c, LQ_EVALUE, at, "$ref", "nothing is at %.120s", ref);
    return NULL;
}

/* ---- types ---- */

bool gs_is_nothing(const cJSON *schema)
{
    const cJSON *not = js_get(schema, "not");
    return cJSON_IsFalse(schema) || cJSON_IsTrue(not ) || (cJSON_IsObject(not ) && !not ->child);
}

static const struct {
    const char *name;
    int types;
} type_names[] = { { "null", GS_NULL },  { "boolean", GS_BOOL }, { "integer", GS_INT },
                   { "number", GS_NUM }, { "string", GS_STR },   { "array", GS_ARR },
                   { "object", GS_OBJ } };

int gs_type_of(const cJSON *v)
{
    if (cJSON_IsNull(v)) return GS_NULL;
    if (cJSON_IsBool(v)) return GS_BOOL;
    if (cJSON_IsNumber(v)) {
        double d = v->valuedouble;
        return floor(d) < d ? GS_NUM : GS_NUM | GS_INT;
    }
    return cJSON_IsString(v) ? GS_STR : cJSON_IsArray(v) ? GS_ARR : GS_OBJ;
}

static int type_named(gs_ctx *c, const cJSON *v, const char *at)
{
    for (size_t i = 0; cJSON_IsString(v) && i < LQ_COUNT(type_names); i++)
        if (strcmp(type_names[i].name, v->valuestring) == 0) return type_names[i].types;
    char found[64];
    gs_fail(c, LQ_EVALUE, at, "type", "expected a JSON type, found %s", js_describe(found, v));
    return GS_NULL;
}

int gs_types(gs_ctx *c, const cJSON *schema, const char *at)
{
    static const struct {
        const char *key;
        int types;
    } speak_of[] = { { "properties", GS_OBJ },
                     { "required", GS_OBJ },
                     { "additionalProperties", GS_OBJ },
                     { "patternProperties", GS_OBJ },
                     { "propertyNames", GS_OBJ },
                     { "minProperties", GS_OBJ },
                     { "maxProperties", GS_OBJ },
                     { "items", GS_ARR },
                     { "prefixItems", GS_ARR },
                     { "minItems", GS_ARR },
                     { "maxItems", GS_ARR },
                     { "uniqueItems", GS_ARR },
                     { "additionalItems", GS_ARR },
                     { "minLength", GS_STR },
                     { "maxLength", GS_STR },
                     { "pattern", GS_STR },
                     { "format", GS_STR },
                     { "minimum", GS_NUM },
                     { "maximum", GS_NUM },
                     { "exclusiveMinimum", GS_NUM },
                     { "exclusiveMaximum", GS_NUM },
                     { "multipleOf", GS_NUM } };
    const cJSON *v = js_get(schema, "type"), *null = js_get(schema, "nullable");
    int types = 0;
    if (cJSON_IsArray(v)) {
        if (!v->child) gs_fail(c, LQ_EVALUE, at, "type", "expected at least one type");
        for (const cJSON *t = v->child; t && !c->b->status; t = t->next)
            types |= type_named(c, t, at);
    } else if (v) {
        types = type_named(c, v, at);
    } else {
        for (size_t i = 0; i < LQ_COUNT(speak_of); i++)
            if (js_get(schema, speak_of[i].key)) types |= speak_of[i].types;
    }
    if (null && !cJSON_IsBool(null))
        gs_fail(c, LQ_EVALUE, at, "nullable", "expected true or false");
    if (types && cJSON_IsTrue(null)) types |= GS_NULL;
    return types;
}

/* ---- copies ---- */

static int64_t size_of(const cJSON *v)
{
    int64_t n = 1;
    for (const cJSON *k = v->child; k; k = k->next)
        n += size_of(k); /* JSON's depth is bounded; merging adds a level or two each time */
    return n;
}

static cJSON *copy(gs_ctx *c, const cJSON *v, const char *at)
{
    c->copied += size_of(v);
    if (c->copied > GR_MAX_COPIED) {
        gs_fail(c, LQ_EVALUE, at, NULL, "merging its schemas takes too much, or does not end");
        return NULL;
    }
    cJSON *out = cJSON_Duplicate(v, true);
    if (!out) ga_fail(c->b, LQ_ENOMEM, "grammar: out of memory");
    return out;
}

static void grammar_merge_put(gs_ctx *c, cJSON *o, const char *key, cJSON *v)
{
    cJSON_DeleteItemFromObjectCaseSensitive(o, key);
    if (v && !cJSON_AddItemToObject(o, key, v)) {
        cJSON_Delete(v);
        ga_fail(c->b, LQ_ENOMEM, "grammar: out of memory");
    }
}

static const cJSON *grammar_merge_keep(gs_ctx *c, cJSON *v)
{
    if (!v || c->b->status) {
        cJSON_Delete(v);
        return NULL;
    }
    cJSON_AddItemToArray(c->made, v);
    return v;
}

const cJSON *gs_without(gs_ctx *c, const cJSON *schema, const char *key, const char *at)
{
    cJSON *out = copy(c, schema, at);
    if (out) cJSON_DeleteItemFromObjectCaseSensitive(out, key);
    return grammar_merge_keep(c, out);
}

/* ---- merging ---- */

/* {"allOf": [a, b]}; true and equal ones need none. */
static cJSON *both_of(gs_ctx *c, const cJSON *a, const cJSON *b, const char *at)
{
    if (cJSON_IsTrue(a) || cJSON_Compare(a, b, true)) return copy(c, b, at);
    if (cJSON_IsTrue(b)) return copy(c, a, at);
    if (cJSON_IsFalse(a) || cJSON_IsFalse(b)) return cJSON_CreateFalse();
    cJSON *o = cJSON_CreateObject(), *list = cJSON_AddArrayToObject(o, "allOf");
    cJSON *x = copy(c, a, at), *y = copy(c, b, at);
    if (list && x && y) {
        cJSON_AddItemToArray(list, x);
        cJSON_AddItemToArray(list, y);
        return o;
    }
    cJSON_Delete(x);
    cJSON_Delete(y);
    cJSON_Delete(o);
    return NULL;
}

static bool in_list(const cJSON *list, const cJSON *v)
{
    for (const cJSON *k = list->child; k; k = k->next)
        if (cJSON_Compare(k, v, true)) return true;
    return false;
}

static cJSON *type_list(int types)
{
    cJSON *list = cJSON_CreateArray();
    for (size_t i = 0; i < LQ_COUNT(type_names); i++)
        if (types & type_names[i].types)
            cJSON_AddItemToArray(list, cJSON_CreateString(type_names[i].name));
    return list;
}

static cJSON *merge_types(gs_ctx *c, const cJSON *a, const cJSON *b, const char *at)
{
    int x = gs_types(c, a, at), y = gs_types(c, b, at);
    if (x & GS_NUM) x |= GS_INT;
    if (y & GS_NUM) y |= GS_INT;
    if (!(x & y)) gs_fail(c, LQ_EVALUE, at, "type", "no type is allowed by all parts");
    return type_list(x & y);
}

static cJSON *merge_properties(gs_ctx *c, const cJSON *a, const cJSON *b, const char *at)
{
    cJSON *out = copy(c, a, at);
    for (const cJSON *k = b->child; k && out && !c->b->status; k = k->next) {
        const cJSON *own = cJSON_GetObjectItemCaseSensitive(a, k->string);
        cJSON *v = own ? both_of(c, own, k, at) : copy(c, k, at);
        if (v && own)
            cJSON_ReplaceItemInObjectCaseSensitive(out, k->string, v);
        else
            grammar_merge_put(c, out, k->string, v);
    }
    return out;
}

/* The union (required) or intersection (enum) of two lists. */
static cJSON *merge_lists(gs_ctx *c, const cJSON *a, const cJSON *b, bool all, const char *at)
{
    cJSON *out = all ? copy(c, a, at) : cJSON_CreateArray();
    for (const cJSON *k = b->child; k && out && !c->b->status; k = k->next) {
        if (in_list(a, k) == all) continue;
        cJSON *v = copy(c, k, at);
        if (v) cJSON_AddItemToArray(out, v);
    }
    return out;
}

/* Each of a's with each of b's. */
static cJSON *merge_anyof(gs_ctx *c, const cJSON *a, const cJSON *b, const char *at)
{
    cJSON *out = cJSON_CreateArray();
    if (cJSON_GetArraySize(a) * (int64_t)cJSON_GetArraySize(b) > GR_MAX_PRODUCT)
        gs_fail(c, LQ_EVALUE, at, "anyOf", "too many alternatives come together");
    for (const cJSON *x = a->child; x && out && !c->b->status; x = x->next)
        for (const cJSON *y = b->child; y && !c->b->status; y = y->next) {
            cJSON *v = both_of(c, x, y, at);
            if (v) cJSON_AddItemToArray(out, v);
        }
    return out;
}

typedef enum { M_SAME, M_MIN, M_MAX, M_SCHEMA, M_PROPERTIES, M_UNION, M_COMMON, M_ANYOF } how;
static const struct {
    const char *key;
    how how;
} rules[] = {
    { "minimum", M_MAX },          { "exclusiveMinimum", M_MAX },
    { "minLength", M_MAX },        { "minItems", M_MAX },
    { "minProperties", M_MAX },    { "maximum", M_MIN },
    { "exclusiveMaximum", M_MIN }, { "maxLength", M_MIN },
    { "maxItems", M_MIN },         { "maxProperties", M_MIN },
    { "items", M_SCHEMA },         { "additionalProperties", M_SCHEMA },
    { "propertyNames", M_SCHEMA }, { "properties", M_PROPERTIES },
    { "required", M_UNION },       { "enum", M_COMMON },
    { "anyOf", M_ANYOF },          { "allOf", M_UNION },
};

static cJSON *merge_member(gs_ctx *c, const cJSON *a, const cJSON *b, const char *at)
{
    const char *key = a->string;
    how h = M_SAME;
    for (size_t i = 0; i < LQ_COUNT(rules); i++)
        if (strcmp(rules[i].key, key) == 0) h = rules[i].how;
    bool numbers = cJSON_IsNumber(a) && cJSON_IsNumber(b),
         lists = cJSON_IsArray(a) && cJSON_IsArray(b);
    if (cJSON_Compare(a, b, true)) return copy(c, a, at);
    if ((h == M_MIN || h == M_MAX) && numbers)
        return copy(c, (a->valuedouble < b->valuedouble) == (h == M_MIN) ? a : b, at);
    if (h == M_SCHEMA && !cJSON_IsArray(a) && !cJSON_IsArray(b)) return both_of(c, a, b, at);
    if (h == M_PROPERTIES && cJSON_IsObject(a) && cJSON_IsObject(b))
        return merge_properties(c, a, b, at);
    if (h == M_UNION && lists) return merge_lists(c, a, b, true, at);
    if (h == M_COMMON && lists) return merge_lists(c, a, b, false, at);
    if (h == M_ANYOF && lists) return merge_anyof(c, a, b, at);
    gs_fail(c, LQ_EUNSUPPORTED, at, key, "two different ones cannot be merged");
    return NULL;
}

/* What a's additionalProperties says of b's properties would have to be merged into them: refused
 * unless it allows all. */
static void check_additional(gs_ctx *c, const cJSON *a, const cJSON *b, const char *at)
{
    const cJSON *extra = js_get(a, "additionalProperties"), *props = js_get(b, "properties");
    if (js_get(a, "patternProperties") && props)
        gs_fail(c, LQ_EUNSUPPORTED, at, "patternProperties", "cannot be merged with properties");
    if (!extra || cJSON_IsTrue(extra) || !cJSON_IsObject(props)) return;
    for (const cJSON *k = props->child; k; k = k->next)
        if (!cJSON_GetObjectItemCaseSensitive(js_get(a, "properties"), k->string)) {
            gs_fail(c, LQ_EUNSUPPORTED, at, "additionalProperties",
                    "cannot be merged with the property %.60s of another part", k->string);
            return;
        }
}

/* A $ref alone is what it points at; with neighbours, a merged schema. */
static const cJSON *flat(gs_ctx *c, const cJSON *s, const char *at)
{
    const char *to;
    for (int n = 0; cJSON_IsObject(s) && js_get(s, "$ref") && !c->b->status; n++) {
        const cJSON *ref = js_get(s, "$ref"), *rest = NULL;
        if (n == GR_MAX_REFS || !cJSON_IsString(ref)) {
            gs_fail(c, LQ_EVALUE, at, "$ref",
                    n == GR_MAX_REFS ? "it does not end" : "expected a string");
            return NULL;
        }
        for (const cJSON *k = s->child; k && !rest; k = k->next)
            if (k != ref && !gs_is_annotation(k->string)) rest = k;
        const cJSON *target = gs_resolve(c, ref->valuestring, at, &to);
        if (rest && target) {
            gs_fail(c, LQ_EUNSUPPORTED, at, "$ref", "cannot be merged with %.40s here",
                    rest->string);
            return NULL;
        }
        s = target;
    }
    return s;
}

const cJSON *gs_merge(gs_ctx *c, const cJSON *a, const cJSON *b, const char *at)
{
    a = flat(c, a, at);
    b = flat(c, b, at);
    if (!a || !b || c->b->status) return NULL;
    if (cJSON_IsTrue(a) || cJSON_IsFalse(b)) return b;
    if (cJSON_IsTrue(b) || cJSON_IsFalse(a)) return a;
    if (!cJSON_IsObject(a) || !cJSON_IsObject(b)) {
        gs_fail(c, LQ_EVALUE, at, NULL, "expected schemas to be merged");
        return NULL;
    }
    check_additional(c, a, b, at);
    check_additional(c, b, a, at);
    cJSON *out = copy(c, a, at);
    for (const cJSON *k = b->child; k && out && !c->b->status; k = k->next) {
        const cJSON *own = cJSON_GetObjectItemCaseSensitive(a, k->string);
        if (strcmp(k->string, "type") == 0 || strcmp(k->string, "nullable") == 0) continue;
        if (own && gs_is_annotation(k->string)) continue;
        cJSON *v = own ? merge_member(c, own, k, at) : copy(c, k, at);
        if (v) grammar_merge_put(c, out, k->string, v);
    }
    if (out && js_get(a, "type") && js_get(b, "type"))
        grammar_merge_put(c, out, "type", merge_types(c, a, b, at));
    else if (out && js_get(b, "type"))
        grammar_merge_put(c, out, "type", type_list(gs_types(c, b, at)));
    else if (out && js_get(a, "type"))
        grammar_merge_put(c, out, "type", type_list(gs_types(c, a, at)));
    if (out) cJSON_DeleteItemFromObjectCaseSensitive(out, "nullable"); /* in type now */
    return grammar_merge_keep(c, out);
}

/* ---- disjointness ---- */

static bool is_required(const cJSON *s, const char *name)
{
    const cJSON *list = js_get(s, "required");
    for (const cJSON *k = list ? list->child : NULL; k; k = k->next)
        if (cJSON_IsString(k) && strcmp(k->valuestring, name) == 0) return true;
    return false;
}

/* The values that a schema allows at most, as a list or one; NULL: not listed. */
static const cJSON *listed(const cJSON *s, bool *one)
{
    const cJSON *v = cJSON_GetObjectItemCaseSensitive(s, "const");
    *one = v != NULL;
    return v ? v : js_get(s, "enum");
}

static bool disjoint_lists(const cJSON *x, bool one_x, const cJSON *y, bool one_y)
{
    for (const cJSON *a = one_x ? x : x->child; a; a = one_x ? NULL : a->next)
        for (const cJSON *b = one_y ? y : y->child; b; b = one_y ? NULL : b->next)
            if (cJSON_Compare(a, b, true)) return false;
    return true;
}

static int types_met(gs_ctx *c, const cJSON *s, const char *at)
{
    bool one;
    const cJSON *v = listed(s, &one);
    int types = js_get(s, "type") ? gs_types(c, s, at) : 0;
    if (!types && v)
        for (const cJSON *k = one ? v : v->child; k; k = one ? NULL : k->next)
            types |= gs_type_of(k);
    return types & (GS_NUM | GS_INT) ? types | GS_NUM | GS_INT : types;
}

bool gs_disjoint(gs_ctx *c, const cJSON *a, const cJSON *b, const char *at, int depth)
{
    bool one_a, one_b;
    a = flat(c, a, at);
    b = flat(c, b, at);
    if (gs_is_nothing(a) || gs_is_nothing(b)) return true;
    if (!cJSON_IsObject(a) || !cJSON_IsObject(b) || depth > 4) return false;
    const cJSON *x = listed(a, &one_a), *y = listed(b, &one_b);
    if (x && y && disjoint_lists(x, one_a, y, one_b)) return true;
    int p = types_met(c, a, at), q = types_met(c, b, at);
    bool object = p == GS_OBJ && q == GS_OBJ;
    if (p && q && !(p & q)) return true;
    const cJSON *props = js_get(a, "properties");
    for (const cJSON *k = object && props ? props->child : NULL; k; k = k->next) {
        const cJSON *other = cJSON_GetObjectItemCaseSensitive(js_get(b, "properties"), k->string);
        if (other && is_required(a, k->string) && is_required(b, k->string) &&
            gs_disjoint(c, k, other, at, depth + 1))
            return true;
    }
    return false;
}
