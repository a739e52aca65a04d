/* runtime/grammar/grammar_object.c - objects and arrays of JSON schemas as rules. See grammar_schema.c. */
#include "runtime/grammar/grammar_schema.h"

#include "base/json_write.h"

#include <stdio.h>
#include <stdlib.h>

/* ---- keys ---- */

/* A key as it stands in the answer, quotes and escapes included. */
static ga_node *key_text(gs_ctx *c, const char *name)
{
    lq_buf text = { 0 };
    js_put_str(&text, name);
    if (text.oom) ga_fail(c->b, LQ_ENOMEM, "grammar: out of memory");
    ga_node *t = text.oom ? NULL : ga_bytes(c->b, text.p, text.n);
    free(text.p);
    return t;
}

static int by_text(const void *a, const void *b)
{
    const char *const *p = a, *const *q = b;
    return strcmp(*p, *q);
}

static const ga_range plain[] = { { '0', '9' }, { 'A', 'Z' }, { '_', '_' }, { 'a', 'z' } };

static bool is_plain(unsigned ch)
{
    for (int i = 0; i < 4; i++)
        if (ch >= plain[i].lo && ch <= plain[i].hi) return true;
    return false;
}

/* What may follow the first `at` bytes, which names[n] share, so that the key is none of them:
 * another byte and anything, or one of their bytes and so on. Plain ASCII letters, digits and _
 * alone are made. */
static ga_node *not_a_name(gs_ctx *c, const char *const *names, int n, size_t at)
{
    ga_node *alt = ga_alt(c->b);
    ga_range out[128];
    int k = 0;
    for (unsigned ch = 0; ch < 128; ch++) {
        bool taken = false;
        for (int i = 0; i < n; i++)
            taken |= (uint8_t)names[i][at] == ch;
        if (is_plain(ch) && !taken) out[k++] = (ga_range){ ch, ch };
    }
    if (k) {
        ga_node *seq = ga_seq(c->b);
        ga_add(seq, ga_chars(c->b, out, k, false));
        ga_add(seq, ga_repeat(c->b, ga_chars(c->b, plain, 4, false), 0, GR_MAX_NAME_TRIE));
        ga_add(alt, seq);
    }
    if (at > 0 && names[0][at]) ga_add(alt, ga_seq(c->b)); /* ends short of all of them */
    for (int i = 0, j; i < n && at < GR_MAX_NAME_TRIE && !c->b->status; i = j) {
        j = i + 1;
        while (j < n && names[j][at] == names[i][at])
            j++;
        uint8_t ch = (uint8_t)names[i][at];
        if (!is_plain(ch)) continue;
        ga_node *seq = ga_seq(c->b);
        ga_add(seq, ga_bytes(c->b, names[i] + at, 1));
        ga_add(seq, not_a_name(c, names + i, j - i, at + 1));
        ga_add(alt, seq);
    }
    return alt;
}

/* A key that no property has. */
static ga_node *other_key(gs_ctx *c, const cJSON *props)
{
    int n = cJSON_GetArraySize(props), k = 0;
    const char **names = malloc(((size_t)n + 1) * sizeof *names);
    if (!names) {
        ga_fail(c->b, LQ_ENOMEM, "grammar: out of memory");
        return NULL;
    }
    for (const cJSON *p = props ? props->child : NULL; p; p = p->next)
        if (p->string[0]) names[k++] = p->string;
    qsort(names, (size_t)k, sizeof *names, by_text);
    ga_node *t = ga_seq(c->b);
    ga_add(t, ga_text(c->b, "\""));
    if (k > 0)
        ga_add(t, not_a_name(c, names, k, 0));
    else
        ga_add(t, ga_repeat(c->b, gj_any_char(&c->j), props ? 1 : 0, -1));
    ga_add(t, ga_text(c->b, "\""));
    free(names);
    return t;
}

/* ---- objects ---- */

/* item, then more of them: least..most in all. */
static ga_node *items_of(gs_ctx *c, uint32_t item, int64_t least, int64_t most)
{
    ga_node *t = ga_seq(c->b), *more = ga_seq(c->b);
    if (most == 0) return t;
    ga_add(more, ga_ref(c->b, c->j.sep));
    ga_add(more, ga_ref(c->b, item));
    ga_add(t, ga_ref(c->b, item));
    ga_add(t, ga_repeat(c->b, more, least > 1 ? least - 1 : 0, most < 0 ? -1 : most - 1));
    return least == 0 ? ga_optional(c->b, t) : t;
}

static uint32_t as_rule(gs_ctx *c, ga_node *body)
{
    uint32_t r = ga_new_rule(c->b, "");
    if (!c->b->status) c->b->rules[r].body = body;
    return r;
}

/* The schema of members that are not declared: NULL for none. */
static const cJSON *additional(gs_ctx *c, const cJSON *schema, const char *at)
{
    static const cJSON any = { .type = cJSON_True };
    const cJSON *v = js_get(schema, "additionalProperties");
    if (v && !cJSON_IsBool(v) && !cJSON_IsObject(v))
        gs_fail(c, LQ_EVALUE, at, "additionalProperties", "expected a schema");
    if (cJSON_IsFalse(v)) return NULL;
    if (v) return v;
    return js_get(schema, "properties") && !c->any_properties ? NULL : &any;
}

static ga_node *value_of(gs_ctx *c, const cJSON *schema, const char *at, const char *key)
{
    return ga_ref(c->b, gs_rule(c, schema, gs_at(c, at, key)));
}

/* An object without declared members: a map. */
static ga_node *map(gs_ctx *c, const cJSON *schema, const char *at)
{
    const cJSON *patterns = js_get(schema, "patternProperties"),
                *names = js_get(schema, "propertyNames"), *extra = additional(c, schema, at);
    int64_t min = gs_count(c, schema, "minProperties", 0, at),
            max = gs_count(c, schema, "maxProperties", -1, at);
    ga_node *member = ga_alt(c->b);
    if (patterns && (!cJSON_IsObject(patterns) || !patterns->child || names))
        gs_fail(c, LQ_EUNSUPPORTED, at, "patternProperties",
                "only some, and without propertyNames, can be honoured");
    if (patterns && patterns->child && patterns->child->next)
        gs_fail(c, LQ_EUNSUPPORTED, at, "patternProperties", "only one can be honoured");
    if (c->b->status) return NULL;
    if (patterns) {
        const cJSON *p = patterns->child;
        const char *where = gs_at(c, at, "patternProperties");
        ga_node *key = ga_seq(c->b);
        ga_add(key, ga_text(c->b, "\""));
        ga_add(key, gr_regex(c->b, p->string, strlen(p->string), true, true, "patternProperties"));
        ga_add(key, ga_text(c->b, "\""));
        ga_add(member, gj_member(&c->j, key, value_of(c, p, where, p->string)));
    } else if (extra) {
        ga_node *key =
            names ? gs_string(c, names, gs_at(c, at, "propertyNames")) : gj_string(&c->j);
        for (const cJSON *k = names ? names->child : NULL; k; k = k->next)
            if (strcmp(k->string, "type") != 0 && strcmp(k->string, "pattern") != 0 &&
                strcmp(k->string, "minLength") != 0 && strcmp(k->string, "maxLength") != 0 &&
                strcmp(k->string, "format") != 0)
                gs_fail(c, LQ_EUNSUPPORTED, at, "propertyNames", "%.40s cannot be honoured there",
                        k->string);
        ga_add(member, gj_member(&c->j, key, value_of(c, extra, at, "additionalProperties")));
    } else {
        max = 0;
    }
    if (max >= 0 && max < min) gs_fail(c, LQ_EVALUE, at, "minProperties", "it cannot be reached");
    if (c->b->status) return NULL;
    return gj_wrap(&c->j, "{", max == 0 ? NULL : items_of(c, as_rule(c, member), min, max), "}");
}

static bool is_required(const cJSON *list, const char *name)
{
    for (const cJSON *k = list ? list->child : NULL; k; k = k->next)
        if (strcmp(k->valuestring, name) == 0) return true;
    return false;
}

/* Declared members in their order, then those that are required and not declared, then others. */
static ga_node *record(gs_ctx *c, const cJSON *schema, const cJSON *props, const cJSON *required,
                       const char *at)
{
    const cJSON *extra = additional(c, schema, at);
    const char *where = gs_at(c, at, "properties");
    ga_node *chain = ga_chain(c->b, c->j.sep);
    int64_t n = 0, needed = 0;
    for (const cJSON *p = props ? props->child : NULL; p && !c->b->status; p = p->next) {
        ga_node *m = gj_member(&c->j, key_text(c, p->string), value_of(c, p, where, p->string));
        if (m) m->optional = !is_required(required, p->string);
        if (m && !m->optional) needed++;
        if (++n > GR_MAX_PROPERTIES)
            gs_fail(c, LQ_EVALUE, at, "properties", "expected at most %d", GR_MAX_PROPERTIES);
        ga_add(chain, m);
    }
    static const cJSON any = { .type = cJSON_True };
    for (const cJSON *k = required ? required->child : NULL; k && !c->b->status; k = k->next) {
        if (cJSON_GetObjectItemCaseSensitive(props, k->valuestring)) continue;
        const cJSON *v = js_get(schema, "additionalProperties");
        if (cJSON_IsFalse(v))
            gs_fail(c, LQ_EVALUE, at, "required", "%.60s is not allowed", k->valuestring);
        if (++n > GR_MAX_PROPERTIES)
            gs_fail(c, LQ_EVALUE, at, "required", "expected at most %d", GR_MAX_PROPERTIES);
        ga_add(chain, gj_member(&c->j, key_text(c, k->valuestring),
                                value_of(c, v ? v : &any, at, "additionalProperties")));
        needed++;
        extra = NULL; /* its key is not kept from coming twice */
    }
    int64_t min = gs_count(c, schema, "minProperties", 0, at),
            max = gs_count(c, schema, "maxProperties", -1, at);
    if (min > needed)
        gs_fail(c, LQ_EUNSUPPORTED, at, "minProperties",
                "with properties only what `required` demands can be honoured");
    if (max >= 0 && (max < n || extra))
        gs_fail(c, LQ_EUNSUPPORTED, at, "maxProperties",
                "with properties only what they make can be honoured");
    if (extra && !c->b->status) {
        uint32_t member = as_rule(c, gj_member(&c->j, other_key(c, props),
                                               value_of(c, extra, at, "additionalProperties")));
        ga_node *more = items_of(c, member, 1, -1);
        if (more) more->optional = true;
        ga_add(chain, more);
    }
    return c->b->status ? NULL : gj_wrap(&c->j, "{", n || extra ? chain : NULL, "}");
}

ga_node *gs_object(gs_ctx *c, const cJSON *schema, const char *at)
{
    const cJSON *props = js_get(schema, "properties"), *required = js_get(schema, "required");
    int n = 0;
    if (props && !cJSON_IsObject(props))
        gs_fail(c, LQ_EVALUE, at, "properties", "expected an object");
    if (required && !cJSON_IsArray(required))
        gs_fail(c, LQ_EVALUE, at, "required", "expected an array of strings");
    for (const cJSON *k = required ? required->child : NULL; k && !c->b->status; k = k->next)
        if (!cJSON_IsString(k) || ++n > GR_MAX_PROPERTIES)
            gs_fail(c, LQ_EVALUE, at, "required", "expected an array of at most %d strings",
                    GR_MAX_PROPERTIES);
    for (const cJSON *k = required ? required->child : NULL; k && !c->b->status; k = k->next)
        for (const cJSON *q = required->child; q != k; q = q->next)
            if (strcmp(q->valuestring, k->valuestring) == 0)
                gs_fail(c, LQ_EVALUE, at, "required", "%.60s is given twice", k->valuestring);
    bool members = (props && props->child) || (required && required->child);
    if (members)
        for (int i = 0; i < 2; i++) {
            const char *key = i ? "propertyNames" : "patternProperties";
            if (js_get(schema, key))
                gs_fail(c, LQ_EUNSUPPORTED, at, key, "cannot be honoured with properties");
        }
    if (c->b->status) return NULL;
    return members ? record(c, schema, props, required, at) : map(c, schema, at);
}

/* ---- arrays ---- */

ga_node *gs_array(gs_ctx *c, const cJSON *schema, const char *at)
{
    static const cJSON any = { .type = cJSON_True };
    const cJSON *prefix = js_get(schema, "prefixItems"), *items = js_get(schema, "items"),
                *more = js_get(schema, "additionalItems");
    const char *key = "items";
    int64_t min = gs_count(c, schema, "minItems", 0, at),
            max = gs_count(c, schema, "maxItems", -1, at), n = 0;
    if (cJSON_IsArray(items) && !prefix) { /* before 2020-12 */
        prefix = items;
        items = more;
        key = "additionalItems";
    } else if (more) {
        gs_fail(c, LQ_EUNSUPPORTED, at, "additionalItems", "can be honoured only with a tuple");
    }
    if (prefix && !cJSON_IsArray(prefix))
        gs_fail(c, LQ_EVALUE, at, "prefixItems", "expected an array of schemas");
    if (cJSON_IsTrue(js_get(schema, "uniqueItems")) && (max < 0 || max > 1))
        gs_fail(c, LQ_EUNSUPPORTED, at, "uniqueItems", "this keyword cannot be honoured");
    for (const cJSON *p = prefix ? prefix->child : NULL; p; p = p->next)
        n++;
    if (n > GR_MAX_PREFIX)
        gs_fail(c, LQ_EVALUE, at, "prefixItems", "expected at most %d", GR_MAX_PREFIX);
    if (cJSON_IsFalse(items) && (max < 0 || max > n)) max = n;
    if (max >= 0 && max < min) gs_fail(c, LQ_EVALUE, at, "minItems", "it cannot be reached");
    if (c->b->status) return NULL;
    if (n && !items && max < 0 && min <= n) max = n; /* others are allowed and not made */
    bool rest = max < 0 || max > n;
    uint32_t item = rest ? gs_rule(c, items ? items : &any, gs_at(c, at, key)) : 0;
    if (n == 0) return gj_wrap(&c->j, "[", rest ? items_of(c, item, min, max) : NULL, "]");
    ga_node *chain = ga_chain(c->b, c->j.sep);
    int64_t k = 0;
    if (chain) {
        chain->stops = true;
        chain->min = min;
    }
    for (const cJSON *p = prefix->child; p && (max < 0 || k < max) && !c->b->status; p = p->next) {
        char index[24];
        snprintf(index, sizeof index, "%lld", (long long)k++);
        ga_add(chain, value_of(c, p, gs_at(c, at, "prefixItems"), index));
    }
    if (rest) ga_add(chain, items_of(c, item, min > n ? min - n : 1, max < 0 ? -1 : max - n));
    return gj_wrap(&c->j, "[", max == 0 ? NULL : chain, "]");
}
