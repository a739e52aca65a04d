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
        gs_fail(c, LQ_EUNSUPPORTED, at, "pattern", "cannot be honoured with %s",
                format ? "format" : "minLength or maxLength");
    if (format && length)
        gs_fail(c, LQ_EUNSUPPORTED, at, "format", "cannot be honoured with minLength or maxLength");
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
