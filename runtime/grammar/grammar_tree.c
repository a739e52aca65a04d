/* runtime/grammar/grammar_tree.c - a grammar as a tree of JSON: texts around values of schemas. Each schema
 * has its own root, so that references of two functions' parameters do not meet.
 *
 *     "text"                      the text; special tokens in it are themselves
 *     [a, b, ...]                 one after the other
 *     {"any": [a, b, ...]}        one of them
 *     {"many": a}                 any number, also none
 *     {"optional": a}
 *     {"until": "mark"}           any text up to the mark, and the mark
 *     {"blanks": n}               up to n spaces and newlines
 *     {"letters": n}              n letters and digits
 *     {"digits": n}               1..n digits
 *     {"regex": "..."}            what the whole of it matches
 *     {"choice": "[...]"}         one of the strings of this JSON
 *     {"grammar": "..."}          GBNF, one in a tree
 *     {"schema": S, "at": "..."}  JSON; `at` is its place in messages
 *     {"params": S, "at": "...", "open", "mid": [5], "close", "sep", "values"}
 *                                 the members of an object one by one, as runtime/chat/chat_form.h
 *                                 says: `mid` by type, 1 in `close` is the member's name */
#include "runtime/grammar/grammar_schema.h"

#include <stdlib.h>

/* ---- texts ---- */

static ga_node *text_of(gs_ctx *c, const char *s)
{
    ga_node *t = ga_seq(c->b);
    const char *plain = s;
    while (*s) {
        size_t n;
        const uint8_t *special = gr_special_at(c->b->v, s, &n);
        if (!special) {
            s++;
            continue;
        }
        if (s > plain) ga_add(t, ga_bytes(c->b, plain, (size_t)(s - plain)));
        ga_add(t, ga_bytes(c->b, (const char *)special, n + 1));
        plain = s += n;
    }
    if (s > plain) ga_add(t, ga_bytes(c->b, plain, (size_t)(s - plain)));
    return t;
}

static ga_node *any_char(gs_ctx *c) { return ga_chars(c->b, NULL, 0, true); }

enum { MAX_MARK = 256 };

/* Code points of s; how many. */
static int points(const char *s, uint32_t out[MAX_MARK])
{
    int n = 0;
    for (const uint8_t *p = (const uint8_t *)s; *p && n < MAX_MARK; n++) {
        int more = *p < 0x80 ? 0 : *p < 0xe0 ? 1 : *p < 0xf0 ? 2 : 3;
        uint32_t cp = more ? *p & (0x3fu >> more) : *p;
        for (p++; more-- && *p; p++)
            cp = cp << 6 | (*p & 0x3f);
        out[n] = cp;
    }
    return n;
}

/* How much of m[n] the text m[0..i) x ends with. */
static int after(const uint32_t *m, int n, int i, uint32_t x)
{
    for (int k = i + 1 < n ? i + 1 : n; k > 0; k--) {
        bool same = m[k - 1] == x;
        for (int q = 0; q + 1 < k && same; q++)
            same = m[q] == m[i - (k - 1) + q];
        if (same) return k;
    }
    return 0;
}

/* A rule for each part of the mark that was just read (Knuth, Morris and Pratt). */
static ga_node *until(gs_ctx *c, const char *mark)
{
    size_t n_special;
    uint32_t m[MAX_MARK];
    if (gr_special_at(c->b->v, mark, &n_special)) {
        ga_node *t = ga_seq(c->b);
        ga_add(t, ga_repeat(c->b, any_char(c), 0, -1));
        ga_add(t, text_of(c, mark));
        return t;
    }
    int n = points(mark, m);
    uint32_t rule[MAX_MARK + 1];
    for (int i = 0; i <= n; i++)
        rule[i] = ga_new_rule(c->b, "");
    for (int i = 0; i < n && !c->b->status; i++) {
        ga_node *alt = ga_alt(c->b);
        ga_range seen[MAX_MARK];
        int k = 0;
        for (int q = 0; q <= i; q++) {
            bool twice = false;
            for (int z = 0; z < k; z++)
                twice |= seen[z].lo == m[q];
            if (twice) continue;
            seen[k++] = (ga_range){ m[q], m[q] };
            ga_node *t = ga_seq(c->b);
            ga_add(t, ga_chars(c->b, &seen[k - 1], 1, false));
            ga_add(t, ga_ref(c->b, rule[after(m, n, i, m[q])]));
            ga_add(alt, t);
        }
        ga_node *t = ga_seq(c->b);
        ga_add(t, ga_chars(c->b, seen, k, true));
        ga_add(t, ga_ref(c->b, rule[0]));
        ga_add(alt, t);
        if (!c->b->status) c->b->rules[rule[i]].body = alt;
    }
    if (!c->b->status) c->b->rules[rule[n]].body = ga_seq(c->b);
    return ga_ref(c->b, rule[0]);
}

/* ---- members one by one ---- */

typedef struct {
    const char *open, *close, *mid[5];
    int values; /* form_values */
} members;

enum { RAW, RAW_PY, PY, GEMMA, NESTED };
enum { STR, NUM, BOOL, OBJ, ARR };

static const cJSON *target(gs_ctx *c, const cJSON *schema, const char *at)
{
    const char *there;
    for (int i = 0; i < 64 && cJSON_IsString(js_get(schema, "$ref")) && !c->b->status; i++)
        schema = gs_resolve(c, js_get(schema, "$ref")->valuestring, at, &there);
    return schema;
}

static const char *closing(gs_ctx *c, const members *m, const char *key)
{
    lq_buf b = { 0 };
    for (const char *p = m->close; *p; p++)
        lq_buf_add(&b, *p == 4 ? key : p, *p == 4 ? strlen(key) : 1);
    char *out = ga_push(c->b, b.n + 1);
    if (out && b.n) memcpy(out, b.p, b.n);
    if (out) out[b.n] = 0;
    if (b.oom) ga_fail(c->b, LQ_ENOMEM, "grammar: out of memory");
    lq_buf_free(&b);
    return out ? out : "";
}

static ga_node *pair(gs_ctx *c, ga_node *a, ga_node *b)
{
    ga_node *t = ga_seq(c->b);
    ga_add(t, a);
    ga_add(t, b);
    return t;
}

/* A string as it is, and the mark behind it. */
static ga_node *raw_string(gs_ctx *c, const cJSON *s, const char *close, const char *at)
{
    const cJSON *values = js_get(s, "enum"), *one = js_get(s, "const");
    const cJSON *pattern = js_get(s, "pattern"), *format = js_get(s, "format"),
                *lark = js_get(s, GR_LARK_KEYWORD);
    const char *regex = cJSON_GetStringValue(pattern);
    if (!regex && cJSON_IsString(format)) regex = gs_format(format->valuestring);
    if (cJSON_IsString(one)) return pair(c, text_of(c, one->valuestring), text_of(c, close));
    if (cJSON_IsArray(values)) {
        ga_node *alt = ga_alt(c->b);
        for (const cJSON *v = values->child; v; v = v->next)
            if (cJSON_IsString(v)) ga_add(alt, text_of(c, v->valuestring));
        return pair(c, alt, text_of(c, close));
    }
    if (cJSON_IsString(lark))
        return pair(
            c,
            ga_ref(c->b, gr_parse_lark(c->b, lark->valuestring, strlen(lark->valuestring), false)),
            text_of(c, close));
    if (regex)
        return pair(c, gr_regex(c->b, regex, strlen(regex), false, pattern != NULL, "pattern"),
                    text_of(c, close));
    if (js_get(s, "minLength") || js_get(s, "maxLength")) {
        ga_range lt[2] = { { '<', '<' }, { (uint8_t)close[0], (uint8_t)close[0] } };
        return pair(c,
                    gs_length(c, ga_chars(c->b, lt, 2, true), gs_count(c, s, "minLength", 0, at),
                              gs_most(c, s, "maxLength", at)),
                    text_of(c, close));
    }
    return until(c, close);
}

static int kind_of(int types)
{
    return types == GS_STR                          ? STR
           : types == GS_BOOL                       ? BOOL
           : types && !(types & ~(GS_NUM | GS_INT)) ? NUM
           : types == GS_ARR                        ? ARR
                                                    : OBJ;
}

static int types_of(gs_ctx *c, const cJSON *s, const char *at)
{
    const cJSON *values = js_get(s, "enum"), *one = cJSON_GetObjectItemCaseSensitive(s, "const");
    int types = cJSON_IsObject(s) && js_get(s, "type") ? gs_types(c, s, at) : 0;
    for (const cJSON *v = values && !types ? values->child : NULL; v; v = v->next)
        types |= gs_type_of(v);
    if (one && !types) types = gs_type_of(one);
    static const char *const unions[] = { "anyOf", "oneOf" };
    for (size_t i = 0; i < LQ_COUNT(unions) && !types; i++) {
        const cJSON *u = js_get(s, unions[i]);
        for (const cJSON *v = u ? u->child : NULL; v; v = v->next) {
            int t = types_of(c, target(c, v, at), at);
            if (!t) return 0;
            types |= t;
        }
    }
    return types;
}

static ga_node *own_value(gs_ctx *c, const members *m, const cJSON *s, const char *at, int depth);

/* A string between the style's quotes. */
static ga_node *own_string(gs_ctx *c, const members *m, const cJSON *s, const char *at)
{
    static const ga_range not [] = { { 0, 31 }, { '\'', '\'' }, { '\\', '\\' } };
    const cJSON *values = js_get(s, "enum");
    if (m->values == GEMMA) return pair(c, text_of(c, "<|\"|>"), raw_string(c, s, "<|\"|>", at));
    if (values || js_get(s, "pattern") || js_get(s, GR_LARK_KEYWORD) || js_get(s, "format") ||
        js_get(s, "minLength") || js_get(s, "maxLength") || js_get(s, "const"))
        return ga_ref(c->b, gs_rule(c, s, at)); /* as JSON, which is Python too */
    ga_node *t = ga_seq(c->b);
    ga_add(t, ga_text(c->b, "'"));
    ga_add(t, ga_repeat(c->b, ga_chars(c->b, not, 3, true), 0, -1));
    ga_add(t, ga_text(c->b, "'"));
    return t;
}

static ga_node *own_array(gs_ctx *c, const members *m, const cJSON *s, const char *at, int depth)
{
    const cJSON *items = js_get(s, "items");
    const char *sep = m->values == GEMMA ? "," : ", ";
    if (m->values == NESTED) {
        ga_node *t = pair(c, text_of(c, m->open), text_of(c, "item"));
        ga_add(t, text_of(c, m->mid[STR]));
        ga_add(t, own_value(c, m, items, at, depth));
        ga_add(t, text_of(c, closing(c, m, "item")));
        return ga_repeat(c->b, t, 0, -1);
    }
    ga_node *t = ga_seq(c->b), *some = ga_seq(c->b);
    ga_add(some, own_value(c, m, items, at, depth));
    ga_add(some,
           ga_repeat(c->b, pair(c, ga_text(c->b, sep), own_value(c, m, items, at, depth)), 0, -1));
    ga_add(t, ga_text(c->b, "["));
    ga_add(t, ga_optional(c->b, some));
    ga_add(t, ga_text(c->b, "]"));
    return t;
}

static ga_node *own_object(gs_ctx *c, const members *m, const cJSON *s, const char *at, int depth)
{
    static const char *const sep[] = { [RAW_PY] = ", ", [PY] = ", ", [GEMMA] = ",", [NESTED] = "" };
    bool nested = m->values == NESTED, gemma = m->values == GEMMA;
    const cJSON *properties = js_get(s, "properties"), *required = js_get(s, "required");
    uint32_t between = ga_new_rule(c->b, "");
    if (!c->b->status) c->b->rules[between].body = ga_text(c->b, sep[m->values]);
    ga_node *chain = ga_chain(c->b, between);
    for (const cJSON *p = properties->child; p && !c->b->status; p = p->next) {
        ga_node *t = ga_seq(c->b);
        ga_add(t, nested ? text_of(c, m->open) : ga_text(c->b, gemma ? "" : "'"));
        ga_add(t, ga_text(c->b, p->string));
        ga_add(t, nested ? text_of(c, m->mid[STR]) : ga_text(c->b, gemma ? ":" : "': "));
        ga_add(t, own_value(c, m, p, gs_at(c, at, p->string), depth));
        ga_add(t, nested ? text_of(c, closing(c, m, p->string)) : NULL);
        bool must = false;
        for (const cJSON *r = cJSON_IsArray(required) ? required->child : NULL; r; r = r->next)
            must |= cJSON_IsString(r) && strcmp(r->valuestring, p->string) == 0;
        if (t) t->optional = !must;
        ga_add(chain, t);
    }
    if (nested) return chain;
    ga_node *t = ga_seq(c->b);
    ga_add(t, ga_text(c->b, "{"));
    ga_add(t, chain);
    ga_add(t, ga_text(c->b, "}"));
    return t;
}

/* A value as the style itself spells it, or as JSON. */
static ga_node *own_value(gs_ctx *c, const members *m, const cJSON *s, const char *at, int depth)
{
    s = target(c, s, at);
    ga_node *alt = ga_alt(c->b);
    int types = s ? types_of(c, s, at) : 0;
    const cJSON *properties = js_get(s, "properties");
    if (c->b->status || !s) return gj_value(&c->j);
    bool python = m->values == RAW_PY || m->values == PY;
    if (depth < 8 && types == GS_STR && m->values != NESTED)
        ga_add(alt, own_string(c, m, s, at));
    else if (types == GS_STR && m->values == NESTED)
        return ga_repeat(
            c->b, ga_chars(c->b, (const ga_range[]){ { 0, 31 }, { ']', ']' } }, 2, true), 0, -1);
    else if (depth < 8 && types == GS_ARR && js_get(s, "items") && !js_get(s, "minItems") &&
             !js_get(s, "maxItems"))
        ga_add(alt, own_array(c, m, s, at, depth + 1));
    else if (depth < 8 && types == GS_OBJ && properties && properties->child)
        ga_add(alt, own_object(c, m, s, at, depth + 1));
    if (python && types == GS_BOOL) {
        ga_add(alt, ga_text(c->b, "True"));
        ga_add(alt, ga_text(c->b, "False"));
    }
    ga_add(alt, ga_ref(c->b, gs_rule(c, s, at)));
    return alt;
}

static ga_node *member_value(gs_ctx *c, const members *m, const cJSON *s, const char *close,
                             const char *at, int types)
{
    ga_node *end = text_of(c, close);
    if (m->values == GEMMA && types == GS_STR)
        return pair(c, text_of(c, "<|\"|>"), pair(c, raw_string(c, s, "<|\"|>", at), end));
    if (m->values != PY && m->values != GEMMA && (types == 0 || (types & GS_STR)))
        return types == GS_STR ? raw_string(c, s, close, at) : until(c, close);
    if (m->values != RAW) return pair(c, own_value(c, m, s, at, 0), end);
    return pair(c, ga_ref(c->b, gs_rule(c, s, at)), end);
}

static ga_node *member(gs_ctx *c, const members *m, const cJSON *property, const char *at)
{
    const char *here = gs_at(c, gs_at(c, at, "properties"), property->string);
    const cJSON *s = target(c, property, here);
    ga_node *t = ga_seq(c->b);
    if (!s || c->b->status) return t;
    int types = types_of(c, s, here);
    ga_add(t, text_of(c, m->open));
    ga_add(t, ga_text(c->b, property->string));
    ga_add(t, text_of(c, m->mid[types ? kind_of(types) : STR]));
    ga_add(t, member_value(c, m, s, closing(c, m, property->string), here, types));
    return t;
}

static bool is_required(const cJSON *schema, const char *name)
{
    const cJSON *list = js_get(schema, "required");
    for (const cJSON *r = cJSON_IsArray(list) ? list->child : NULL; r; r = r->next)
        if (cJSON_IsString(r) && strcmp(r->valuestring, name) == 0) return true;
    return false;
}

static const char *string_of(const cJSON *o, const char *key)
{
    const char *s = cJSON_GetStringValue(js_get(o, key));
    return s ? s : "";
}

static ga_node *params(gs_ctx *c, const cJSON *o, const cJSON *schema, const char *at)
{
    members m = { .open = string_of(o, "open"), .close = string_of(o, "close") };
    int64_t values = 0;
    js_whole(js_get(o, "values"), 0, 8, &values);
    m.values = (int)values;
    const cJSON *mid = js_get(o, "mid") ? js_get(o, "mid")->child : NULL;
    for (int i = 0; i < 5; i++, mid = mid ? mid->next : NULL)
        m.mid[i] = cJSON_IsString(mid) ? mid->valuestring : "";
    uint32_t sep = ga_new_rule(c->b, "");
    if (!c->b->status) c->b->rules[sep].body = text_of(c, string_of(o, "sep"));
    schema = target(c, schema, at);
    const cJSON *properties = js_get(schema, "properties");
    ga_node *chain = ga_chain(c->b, sep);
    for (const cJSON *p = properties ? properties->child : NULL; p && !c->b->status; p = p->next) {
        ga_node *one = member(c, &m, p, at);
        if (one) one->optional = !is_required(schema, p->string);
        ga_add(chain, one);
    }
    return properties && properties->child ? chain : ga_seq(c->b);
}

/* ---- nodes ---- */

static ga_node *node(gs_ctx *c, const cJSON *v);

static ga_node *all(gs_ctx *c, const cJSON *list, ga_node *into)
{
    for (const cJSON *v = list->child; v && !c->b->status; v = v->next)
        ga_add(into, node(c, v));
    return into;
}

static ga_node *chars(gs_ctx *c, const cJSON *n, const ga_range *r, int n_r, bool exactly)
{
    int64_t most = 0;
    if (!js_whole(n, 0, GR_MAX_REPEAT, &most)) ga_fail(c->b, LQ_EVALUE, "tree: expected a number");
    return ga_repeat(c->b, ga_chars(c->b, r, n_r, false), exactly ? most : 0, most);
}

static ga_node *tree_object(gs_ctx *c, const cJSON *v)
{
    static const ga_range blank[] = { { '\n', '\n' }, { ' ', ' ' } }, digit[] = { { '0', '9' } };
    static const ga_range letter[] = { { '0', '9' }, { 'A', 'Z' }, { 'a', 'z' } };
    const cJSON *x = v->child;
    const char *k = x ? x->string : "";
    if (strcmp(k, "any") == 0) return all(c, x, ga_alt(c->b));
    if (strcmp(k, "many") == 0) return ga_repeat(c->b, node(c, x), 0, -1);
    if (strcmp(k, "optional") == 0) return ga_optional(c->b, node(c, x));
    if (strcmp(k, "until") == 0) return until(c, x->valuestring ? x->valuestring : "");
    if (strcmp(k, "blanks") == 0) return chars(c, x, blank, 2, false);
    if (strcmp(k, "letters") == 0) return chars(c, x, letter, 3, true);
    if (strcmp(k, "digits") == 0)
        return pair(c, ga_chars(c->b, digit, 1, false), chars(c, x, digit, 1, false));
    if (cJSON_IsString(x) && strcmp(k, "regex") == 0)
        return gr_regex(c->b, x->valuestring, strlen(x->valuestring), false, false, "regex");
    if (cJSON_IsString(x) && strcmp(k, "choice") == 0)
        return ga_ref(c->b, gr_parse_choice(c->b, x->valuestring, strlen(x->valuestring)));
    if (cJSON_IsString(x) && strcmp(k, "grammar") == 0)
        return ga_ref(c->b, gr_parse_grammar(c->b, x->valuestring, strlen(x->valuestring)));
    c->root = x;
    if (strcmp(k, "schema") == 0) return ga_ref(c->b, gs_rule(c, x, string_of(v, "at")));
    if (strcmp(k, "params") == 0) return params(c, v, x, string_of(v, "at"));
    ga_fail(c->b, LQ_EVALUE, "tree: unknown node %.40s", k);
    return NULL;
}

static ga_node *node(gs_ctx *c, const cJSON *v)
{
    if (c->b->status) return NULL;
    if (cJSON_IsString(v)) return text_of(c, v->valuestring);
    if (cJSON_IsArray(v)) return all(c, v, ga_seq(c->b));
    return tree_object(c, v);
}

void gr_parse_tree(ga_builder *b, const gr_spec *spec)
{
    cJSON *tree = NULL;
    gs_ctx c;
    uint32_t root = ga_new_rule(b, "answer"); /* rule 0 */
    gs_open(&c, b, spec, &tree);
    if (!b->status) gj_open(&c.j, b, spec);
    ga_node *body = node(&c, tree);
    if (!b->status) b->rules[root].body = body;
    gs_close(&c, tree);
}
