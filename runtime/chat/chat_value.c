/* runtime/chat/chat_value.c - see chat_value.h. */
#include "runtime/chat/chat_value.h"

#include <ctype.h>

enum { DEPTH = 64 };

/* ---- types ---- */

static const cJSON *resolve(const cJSON *schema, const cJSON *root)
{
    for (int i = 0; i < 16; i++) {
        const char *ref = cJSON_GetStringValue(js_get(schema, "$ref"));
        if (!ref || ref[0] != '#') return schema;
        const cJSON *to = root;
        for (const char *p = ref + 1; *p == '/' && to;) {
            char key[256];
            size_t n = strcspn(++p, "/");
            if (n >= sizeof key) return NULL;
            memcpy(key, p, n);
            key[n] = 0;
            to = js_get(to, key);
            p += n;
        }
        schema = to;
    }
    return NULL;
}

static int type_bit(const char *name)
{
    static const struct {
        const char *name;
        int bit;
    } names[] = { { "string", VALUE_STR },   { "number", VALUE_NUM }, { "integer", VALUE_NUM },
                  { "boolean", VALUE_BOOL }, { "object", VALUE_OBJ }, { "array", VALUE_ARR },
                  { "null", VALUE_NULL } };
    for (size_t i = 0; i < LQ_COUNT(names); i++)
        if (strcmp(names[i].name, name) == 0) return names[i].bit;
    return VALUE_ANY;
}

static int bit_of(const cJSON *v)
{
    return cJSON_IsString(v)   ? VALUE_STR
           : cJSON_IsNumber(v) ? VALUE_NUM
           : cJSON_IsBool(v)   ? VALUE_BOOL
           : cJSON_IsObject(v) ? VALUE_OBJ
           : cJSON_IsArray(v)  ? VALUE_ARR
                               : VALUE_NULL;
}

static int types_at(const cJSON *schema, const cJSON *root, int depth)
{
    static const char *const unions[] = { "anyOf", "oneOf", "allOf" };
    int types = 0;
    schema = resolve(schema, root);
    if (!cJSON_IsObject(schema) || depth == DEPTH) return VALUE_ANY;
    const cJSON *type = js_get(schema, "type"), *values = js_get(schema, "enum"), *v;
    if (cJSON_IsString(type)) types = type_bit(type->valuestring);
    for (v = cJSON_IsArray(type) ? type->child : NULL; v; v = v->next)
        types |= cJSON_IsString(v) ? type_bit(v->valuestring) : VALUE_ANY;
    if (types && cJSON_IsTrue(js_get(schema, "nullable"))) types |= VALUE_NULL;
    if (types) return types;
    for (v = cJSON_IsArray(values) ? values->child : NULL; v; v = v->next)
        types |= bit_of(v);
    v = cJSON_GetObjectItemCaseSensitive(schema, "const");
    if (v) types |= bit_of(v);
    for (size_t i = 0; i < LQ_COUNT(unions) && !types; i++)
        for (v = js_get(schema, unions[i]) ? js_get(schema, unions[i])->child : NULL; v;
             v = v->next)
            types |= types_at(v, root, depth + 1);
    if (!types && js_get(schema, "properties")) types = VALUE_OBJ;
    if (!types && js_get(schema, "items")) types = VALUE_ARR;
    return types ? types : VALUE_ANY;
}

int value_types(const cJSON *schema, const cJSON *root)
{
    return schema ? types_at(schema, root, 0) : VALUE_ANY;
}

/* ---- strings ---- */

void value_escape(lq_buf *out, const char *text, size_t n)
{
    static const char plain[] = "btnvfr";
    for (size_t i = 0; i < n; i++) {
        uint8_t c = (uint8_t)text[i];
        if (c == '"' || c == '\\')
            lq_buf_printf(out, "\\%c", c);
        else if (c >= 8 && c <= 13 && c != 11)
            lq_buf_printf(out, "\\%c", plain[c - 8]);
        else if (c < 32)
            lq_buf_printf(out, "\\u%04x", c);
        else
            lq_buf_add(out, text + i, 1);
    }
}

static void put_string(lq_buf *out, const char *text, size_t n)
{
    lq_buf_puts(out, "\"");
    value_escape(out, text, n);
    lq_buf_puts(out, "\"");
}

/* ---- literals: JSON's, Python's and Gemma's at once ---- */

typedef struct {
    const char *p, *end;
    lq_buf *out;
    int depth;
} literal;

static bool value(literal *l);

static void blanks(literal *l)
{
    while (l->p < l->end && isspace((unsigned char)*l->p))
        l->p++;
}

static bool takes(literal *l, const char *word)
{
    size_t n = strlen(word);
    if ((size_t)(l->end - l->p) < n || memcmp(l->p, word, n) != 0) return false;
    l->p += n;
    return true;
}

/* Behind the backslash of a Python string. */
static void escaped(literal *l)
{
    static const char from[] = "abfnrtv0", to[] = "\a\b\f\n\r\t\v";
    char c = *l->p++;
    const char *at = c ? strchr(from, c) : NULL;
    if (c == 'u' || (c == '"')) { /* as JSON has it */
        lq_buf_printf(l->out, "\\%c", c);
    } else if (at) {
        char plain = at - from < 7 ? to[at - from] : 0;
        value_escape(l->out, &plain, 1);
    } else {
        if (c != '\'' && c != '\\' && c != '/') lq_buf_puts(l->out, "\\\\");
        if (c != '\n') value_escape(l->out, &c, 1);
    }
}

static bool quoted(literal *l, char quote)
{
    lq_buf_puts(l->out, "\"");
    while (l->p < l->end && *l->p != quote) {
        const char *p = l->p++;
        if (*p != '\\')
            value_escape(l->out, p, 1);
        else if (l->p < l->end)
            escaped(l);
    }
    lq_buf_puts(l->out, "\"");
    return l->p < l->end && *l->p++ == quote;
}

static bool gemma_string(literal *l)
{
    const char *stop = memmem(l->p, (size_t)(l->end - l->p), "<|\"|>", 5);
    if (!stop) return false;
    put_string(l->out, l->p, (size_t)(stop - l->p));
    l->p = stop + 5;
    return true;
}

static bool bare_key(literal *l)
{
    const char *from = l->p;
    while (l->p < l->end && !strchr(":,{}[]\"' \n", *l->p))
        l->p++;
    put_string(l->out, from, (size_t)(l->p - from));
    return l->p > from;
}

static bool key(literal *l)
{
    if (takes(l, "\"")) return quoted(l, '"');
    if (takes(l, "'")) return quoted(l, '\'');
    if (takes(l, "<|\"|>")) return gemma_string(l);
    return bare_key(l);
}

/* Behind an opening bracket: up to `close`. */
static bool several(literal *l, char close, bool keys)
{
    for (bool first = true;; first = false) {
        blanks(l);
        if (l->p < l->end && *l->p == close) break;
        if (!first && !takes(l, ",")) return false;
        blanks(l);
        if (!first && l->p < l->end && *l->p == close) break; /* (1,) */
        if (!first) lq_buf_puts(l->out, ", ");
        if (keys && !key(l)) return false;
        blanks(l);
        if (keys && !takes(l, ":")) return false;
        if (keys) lq_buf_puts(l->out, ": ");
        if (!value(l)) return false;
    }
    l->p++;
    lq_buf_puts(l->out, keys ? "}" : "]");
    return true;
}

static bool number(literal *l)
{
    const char *from = l->p;
    cJSON *v = NULL;
    while (l->p < l->end && strchr("+-.eE0123456789", *l->p))
        l->p++;
    bool ok = l->p > from && js_parse(&v, from, (size_t)(l->p - from), SIZE_MAX, 0, NULL) == LQ_OK;
    cJSON_Delete(v);
    lq_buf_add(l->out, from, ok ? (size_t)(l->p - from) : 0);
    return ok;
}

static bool value(literal *l)
{
    static const char *const words[][2] = { { "true", "true" },   { "True", "true" },
                                            { "false", "false" }, { "False", "false" },
                                            { "null", "null" },   { "None", "null" } };
    blanks(l);
    for (size_t i = 0; i < LQ_COUNT(words); i++)
        if (takes(l, words[i][0])) {
            lq_buf_puts(l->out, words[i][1]);
            return true;
        }
    if (takes(l, "\"")) return quoted(l, '"');
    if (takes(l, "'")) return quoted(l, '\'');
    if (takes(l, "<|\"|>")) return gemma_string(l);
    bool list = takes(l, "["), tuple = !list && takes(l, "("),
         dict = !tuple && !list && takes(l, "{");
    if (!list && !tuple && !dict) return number(l);
    lq_buf_puts(l->out, dict ? "{" : "[");
    bool ok = ++l->depth < DEPTH && several(l, dict ? '}' : tuple ? ')' : ']', dict);
    l->depth--;
    return ok;
}

/* The type of JSON text. */
static int type_of(const char *json)
{
    return json[0] == '"'                     ? VALUE_STR
           : json[0] == '{'                   ? VALUE_OBJ
           : json[0] == '['                   ? VALUE_ARR
           : json[0] == 't' || json[0] == 'f' ? VALUE_BOOL
           : json[0] == 'n'                   ? VALUE_NULL
                                              : VALUE_NUM;
}

/* The whole text is one literal, of a type there may be. JSON keeps its own spelling. */
static bool whole_literal(lq_buf *out, const char *text, size_t n, int types, bool strings)
{
    lq_buf got = { 0 };
    literal l = { .p = text, .end = text + n, .out = &got };
    bool ok = value(&l);
    blanks(&l);
    ok = ok && l.p == l.end && !got.oom && (type_of(got.p) & types) &&
         (strings || type_of(got.p) != VALUE_STR);
    cJSON *v = NULL;
    bool json = ok && js_parse(&v, text, n, SIZE_MAX, 0, NULL) == LQ_OK;
    cJSON_Delete(v);
    while (json && n && isspace((unsigned char)text[n - 1]))
        n--;
    while (json && n && isspace((unsigned char)text[0]))
        text++, n--;
    if (ok) lq_buf_add(out, json ? text : got.p, json ? n : got.n);
    out->oom |= got.oom;
    lq_buf_free(&got);
    return ok;
}

/* ---- nested elements: <name>value</name>, as the form's arguments ---- */

typedef struct {
    lq_buf *out;
    const chat_form *f;
    const cJSON *root;
    int depth;
} nest;

static void nested(nest *s, const char *text, size_t n, int types, const cJSON *schema);

/* The closing mark of `name`. */
static void close_of(lq_buf *to, const chat_form *f, const char *name, size_t n)
{
    for (const char *c = f->p_close; *c; c++)
        lq_buf_add(to, *c == FORM_KEY ? name : c, *c == FORM_KEY ? n : 1);
}

static void elements(nest *s, const char *text, const char *end, const cJSON *schema)
{
    const char *open = form_skip(s->f->p_open), *mid = s->f->p_mid[FORM_STR];
    size_t n_open = strlen(open);
    bool list = false, first = true;
    size_t begin = s->out->n;
    lq_buf_puts(s->out, "{");
    for (const char *p; (p = memmem(text, (size_t)(end - text), open, n_open)); first = false) {
        const char *name = p + n_open, *stop = memmem(name, (size_t)(end - name), mid, strlen(mid));
        if (!stop) break;
        lq_buf close = { 0 };
        close_of(&close, s->f, name, (size_t)(stop - name));
        const char *from = stop + strlen(mid);
        const char *to = close.p ? memmem(from, (size_t)(end - from), close.p, close.n) : NULL;
        if (!to) to = end;
        if (first) list = stop - name == 4 && memcmp(name, "item", 4) == 0;
        if (!first) lq_buf_puts(s->out, ", ");
        const cJSON *part = js_get(resolve(schema, s->root), list ? "items" : "properties");
        char key[256] = "";
        size_t n_key = (size_t)(stop - name) < sizeof key ? (size_t)(stop - name) : 0;
        memcpy(key, name, n_key);
        if (!list) {
            put_string(s->out, name, (size_t)(stop - name));
            lq_buf_puts(s->out, ": ");
            part = js_get(part, key);
        }
        nested(s, from, (size_t)(to - from), value_types(part, s->root), part);
        text = to + (to < end ? close.n : 0);
        s->out->oom |= close.oom;
        lq_buf_free(&close);
    }
    lq_buf_puts(s->out, list ? "]" : "}");
    if (list && !s->out->oom) s->out->p[begin] = '[';
}

static void nested(nest *s, const char *text, size_t n, int types, const cJSON *schema)
{
    const char *open = form_skip(s->f->p_open);
    size_t blank = 0;
    while (blank < n && isspace((unsigned char)text[blank]))
        blank++;
    bool inner = n - blank > strlen(open) && memcmp(text + blank, open, strlen(open)) == 0;
    if (types == VALUE_STR || (!inner && !(types & ~VALUE_STR))) {
        put_string(s->out, text, n);
    } else if (inner && s->depth < DEPTH) {
        s->depth++;
        elements(s, text, text + n, schema);
        s->depth--;
    } else if (!whole_literal(s->out, text, n, types, false)) {
        if (n == blank && (types & (VALUE_OBJ | VALUE_ARR)))
            lq_buf_puts(s->out, types & VALUE_OBJ ? "{}" : "[]");
        else
            put_string(s->out, text, n);
    }
}

/* ---- */

void value_json(lq_buf *out, const chat_form *f, const char *text, size_t n, int types,
                const cJSON *schema, const cJSON *root)
{
    nest s = { out, f, root, 0 };
    bool quotes = f->values == FORM_PY || f->values == FORM_GEMMA;
    if (f->values == FORM_NESTED)
        nested(&s, text, n, types, schema);
    else if ((!quotes && types == VALUE_STR) || !whole_literal(out, text, n, types, quotes))
        put_string(out, text, n);
}
