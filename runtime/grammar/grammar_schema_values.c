/* runtime/grammar/grammar_schema_values.c - schemas of one value as rules: enum, const, strings, numbers. */
#include "runtime/grammar/grammar_schema.h"

#include <stdio.h>
#include <stdlib.h>

/* The value's canonical text: for enum and const. */
static ga_node *literal(gs_ctx *c, const cJSON *v, const char *at)
{
    lq_buf text = { 0 };
    lq_err why = { "" };
    ga_node *t = NULL;
    if (js_canonical(&text, v, &why))
        gs_fail(c, LQ_EVALUE, at, NULL, "%s", why.msg);
    else if (text.oom)
        ga_fail(c->b, LQ_ENOMEM, "grammar: out of memory");
    else
        t = ga_bytes(c->b, text.p, text.n);
    free(text.p);
    return t;
}

ga_node *gs_values(gs_ctx *c, const cJSON *schema, const cJSON *list, const char *key,
                   const char *at)
{
    ga_node *alt = ga_alt(c->b);
    int types = js_get(schema, "type") ? gs_types(c, schema, at) : 0;
    for (const cJSON *k = schema->child; k; k = k->next)
        if (gs_keyword_of(k->string) > GS_KEY_CORE)
            gs_fail(c, LQ_EUNSUPPORTED, at, k->string, "cannot be honoured with %s", key);
    if (cJSON_GetObjectItemCaseSensitive(schema, "enum") &&
        cJSON_GetObjectItemCaseSensitive(schema, "const"))
        gs_fail(c, LQ_EUNSUPPORTED, at, "const", "cannot be honoured with enum");
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
    if (!(fabs(x) < 1e18)) return false;
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

/* Numbers of a schema that are written with so many digits after the point. */
typedef struct {
    gs_ctx *c;
    const cJSON *schema;
    const char *at;
    bool integer;
    int places;
} decimals;

enum { PLACES = 5 }; /* at most, where a bound is given */

static int64_t unit_of(int places)
{
    int64_t unit = 1;
    while (places-- > 0)
        unit *= 10;
    return unit;
}

/* The largest that is written, in units: integers have GR_MAX_DIGITS digits, others 12 before the point. */
static int64_t largest(const decimals *d)
{
    return d->integer ? 999999999999999999 : 999999999999 * unit_of(d->places);
}

/* Nothing that is written reaches the bound: JavaScript's schemas have +-(2^53 - 1) beside every integer,
 * others +-2^63 or the largest double. */
static bool is_far(const decimals *d, const cJSON *v, bool lower)
{
    const double far = d->integer ? 1e18 : 1e15;
    return lower ? v->valuedouble <= -far : v->valuedouble >= far;
}

/* The bound that two keywords give, in units; *have: there is one; *far: one that is far. */
static bool bound(const decimals *d, bool lower, int64_t *out, bool *have, bool *far)
{
    static const char *const keys[2][2] = { { "maximum", "exclusiveMaximum" },
                                            { "minimum", "exclusiveMinimum" } };
    for (int strict = 0; strict < 2; strict++) {
        const char *key = keys[lower][strict];
        const cJSON *v = js_get(d->schema, key);
        int64_t n = 0;
        bool exact = true;
        if (!v || (strict && cJSON_IsBool(v))) continue;
        if (!cJSON_IsNumber(v)) {
            gs_fail(d->c, LQ_EVALUE, d->at, key, "expected a number");
            return false;
        }
        if (is_far(d, v, lower)) {
            *far = true;
            continue;
        }
        if (!(fabs(v->valuedouble) < (d->integer ? 1e18 : 1e15)) ||
            !scaled(v, d->places, lower, &n, &exact)) {
            gs_fail(d->c, LQ_EUNSUPPORTED, d->at, key, "only bounds below 10^%d can be honoured",
                    d->integer ? 18 : 15);
            return false;
        }
        /* OpenAPI 3.0 and draft 4: true beside the bound */
        const bool open = strict || cJSON_IsTrue(js_get(d->schema, keys[lower][1]));
        if (open && exact) n += lower ? 1 : -1;
        if (!*have || (lower ? n > *out : n < *out)) *out = n;
        *have = true;
    }
    return true;
}

/* A bound far out leaves less room after the point. */
static bool has_room(const decimals *d)
{
    static const char *const keys[] = { "minimum", "exclusiveMinimum", "maximum",
                                        "exclusiveMaximum" };
    bool room = true;
    for (int i = 0; i < 4; i++) {
        const cJSON *v = js_get(d->schema, keys[i]);
        room &=
            !v || is_far(d, v, i < 2) || fabs(v->valuedouble) * (double)unit_of(d->places) < 9e17;
    }
    return room;
}

/* Those between the bounds; NULL: there are none, or it failed. *bounds: there is a bound. */
static ga_node *with_places(const decimals *d, bool *bounds)
{
    bool has_lo = false, has_hi = false, far = false;
    int64_t lo = 0, hi = 0, most = largest(d), end = 999999999999999999;
    if (!d->integer && d->places <= 3)
        end = 999999999999999 * unit_of(d->places); /* below a far bound */
    if (!bound(d, true, &lo, &has_lo, &far) || !bound(d, false, &hi, &has_hi, &far)) return NULL;
    *bounds = has_lo || has_hi || far;
    if (!has_hi) hi = lo > most ? end : most;
    if (!has_lo) lo = hi < -most ? -end : -most;
    return *bounds && lo <= hi ? gj_range(d->c->b, lo, hi, d->places) : NULL;
}

ga_node *gs_number(gs_ctx *c, const cJSON *schema, const char *at, bool integer)
{
    const cJSON *of = js_get(schema, "multipleOf");
    if (of && !(cJSON_IsNumber(of) && integer && !(of->valuedouble < 1) && !(of->valuedouble > 1)))
        gs_fail(c, LQ_EUNSUPPORTED, at, "multipleOf", "only 1 for integers can be honoured");
    decimals d = { c, schema, at, integer, 0 };
    bool bounds = false;
    ga_node *whole = with_places(&d, &bounds);
    if (c->b->status) return NULL;
    if (!bounds) return integer ? gj_integer(&c->j) : gj_number(&c->j);
    ga_node *alt = ga_alt(c->b);
    if (whole) ga_add(alt, whole);
    for (d.places = 1; d.places <= (integer ? 0 : PLACES) && has_room(&d); d.places++) {
        ga_node *some = with_places(&d, &bounds);
        if (c->b->status) return NULL;
        if (some) ga_add(alt, some);
    }
    return alt;
}

/* min..max times the character. More than a repetition takes are blocks: fewer of them than there
 * could be and less than one more, or all and the rest. */
ga_node *gs_length(gs_ctx *c, ga_node *one, int64_t min, int64_t max)
{
    enum { BLOCK = 1024 };
    if (max <= GR_MAX_REPEAT) return ga_repeat(c->b, one, min, max);
    const uint32_t character = ga_new_rule(c->b, ""), block = ga_new_rule(c->b, "");
    if (c->b->status) return NULL;
    c->b->rules[character].body = one;
    c->b->rules[block].body = ga_repeat(c->b, ga_ref(c->b, character), BLOCK, BLOCK);
    const int64_t blocks = (max - min) / BLOCK, rest = (max - min) % BLOCK;
    const int64_t fewer = blocks ? blocks - 1 : 0, short_of = blocks ? BLOCK - 1 : rest;
    ga_node *seq = ga_seq(c->b), *alt = ga_alt(c->b), *some = ga_seq(c->b), *all = ga_seq(c->b);
    ga_add(seq, ga_repeat(c->b, ga_ref(c->b, character), min, min));
    ga_add(some, ga_repeat(c->b, ga_ref(c->b, block), 0, fewer));
    ga_add(some, ga_repeat(c->b, ga_ref(c->b, character), 0, short_of));
    ga_add(all, ga_repeat(c->b, ga_ref(c->b, block), blocks, blocks));
    ga_add(all, ga_repeat(c->b, ga_ref(c->b, character), 0, rest));
    ga_add(alt, some);
    ga_add(alt, all);
    ga_add(seq, alt);
    return seq;
}

ga_node *gs_string(gs_ctx *c, const cJSON *schema, const char *at)
{
    const cJSON *pattern = js_get(schema, "pattern"), *format = js_get(schema, "format");
    const cJSON *lark = js_get(schema, GR_LARK_KEYWORD);
    int64_t min = gs_count(c, schema, "minLength", 0, at),
            max = gs_most(c, schema, "maxLength", at);
    bool length = js_get(schema, "minLength") || js_get(schema, "maxLength");
    ga_node *body = NULL;
    if (pattern && !cJSON_IsString(pattern))
        gs_fail(c, LQ_EVALUE, at, "pattern", "expected a string");
    if (format && !cJSON_IsString(format)) gs_fail(c, LQ_EVALUE, at, "format", "expected a string");
    const char *regex = cJSON_IsString(format) ? gs_format(format->valuestring) : NULL;
    if (cJSON_IsString(format) && !regex && c->strict)
        gs_fail(c, LQ_EUNSUPPORTED, at, "format", "%.60s is not known", format->valuestring);
    if (!regex) format = NULL; /* an annotation, as an unknown keyword is */
    if (pattern && (length || format))
        gs_fail(c, LQ_EUNSUPPORTED, at, "pattern", "cannot be honoured with %s",
                format ? "format" : "minLength or maxLength");
    if (format && length)
        gs_fail(c, LQ_EUNSUPPORTED, at, "format", "cannot be honoured with minLength or maxLength");
    if (lark && (!cJSON_IsString(lark) || pattern || format || length))
        gs_fail(c, LQ_EVALUE, at, GR_LARK_KEYWORD,
                "expected a string, without pattern, format and lengths");
    if (max >= 0 && max < min) gs_fail(c, LQ_EVALUE, at, "maxLength", "it is below minLength");
    if (c->b->status) return NULL;
    if (pattern) {
        char what[160];
        snprintf(what, sizeof what, "json schema: at #%.120s/pattern", at);
        body = gr_regex(c->b, pattern->valuestring, strlen(pattern->valuestring), true, true, what);
    } else if (lark) {
        body =
            ga_ref(c->b, gr_parse_lark(c->b, lark->valuestring, strlen(lark->valuestring), true));
    } else if (format) {
        body = gr_regex(c->b, regex, strlen(regex), true, false, "format");
    } else if (length) {
        body = gs_length(c, gj_any_char(&c->j), min, max);
    } else {
        return gj_string(&c->j);
    }
    ga_node *t = ga_seq(c->b);
    ga_add(t, ga_text(c->b, "\""));
    ga_add(t, body);
    ga_add(t, ga_text(c->b, "\""));
    return t;
}
