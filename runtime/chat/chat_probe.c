/* runtime/chat/chat_probe.c - see chat_probe.h. */
#include "runtime/chat/chat_probe.h"

#include <stdlib.h>

const char *const probe_names[PROBE_CALLS] = { "zfnone", "zfntwo", "zfnthr" };
const char *const probe_ids[PROBE_CALLS] = { "zida00001", "zidb00002", "zidc00003" };

/* ---- conversations ---- */

static const char parameters[] =
    "{\"type\": \"object\", \"properties\": {"
    "\"zkeya\": {\"type\": \"string\", \"description\": \"a\"}, "
    "\"zkeyb\": {\"type\": \"string\", \"description\": \"b\"}, "
    "\"zka\": {\"type\": \"array\", \"items\": {\"type\": \"integer\"}, \"description\": \"c\"}, "
    "\"zkb\": {\"type\": \"boolean\", \"description\": \"d\"}, "
    "\"zkn\": {\"type\": \"integer\", \"description\": \"e\"}, "
    "\"zko\": {\"type\": \"object\", \"additionalProperties\": {\"type\": \"string\"}, "
    "\"description\": \"f\"}}, \"required\": []}";

cJSON *probe_parameters(void) { return cJSON_Parse(parameters); }

static cJSON *tools_of(void)
{
    cJSON *list = cJSON_CreateArray();
    for (int i = 0; i < PROBE_CALLS; i++) {
        cJSON *tool = cJSON_CreateObject(), *f;
        cJSON_AddItemToArray(list, tool);
        cJSON_AddStringToObject(tool, "type", "function");
        f = cJSON_AddObjectToObject(tool, "function");
        cJSON_AddStringToObject(f, "name", probe_names[i]);
        cJSON_AddStringToObject(f, "description", "z");
        cJSON_AddItemToObject(f, "parameters", probe_parameters());
    }
    return list;
}

cJSON *probe_arguments(probe_args a)
{
    static const char *const text[] = {
        [PROBE_STRINGS] = "{\"" PROBE_KEY_A "\": \"" PROBE_VALUE_A "\", \"" PROBE_KEY_B
                          "\": \"" PROBE_VALUE_B "\"}",
        [PROBE_NONE] = "{}",
        [PROBE_TYPES] = "{\"zka\": [1, 2], \"zkb\": true, \"zkn\": 7301, \"zko\": {\"k\": \"v\"}}"
    };
    return cJSON_Parse(text[a]);
}

static cJSON *message(cJSON *list, const char *role, const char *content)
{
    cJSON *m = cJSON_CreateObject();
    cJSON_AddItemToArray(list, m);
    cJSON *r = cJSON_AddStringToObject(m, "role", role);
    if (r) r->valueint = TMPL_OWN;
    if (content) cJSON_AddStringToObject(m, "content", content);
    return m;
}

static void add_calls(cJSON *m, const probe *p)
{
    cJSON *list = cJSON_AddArrayToObject(m, "tool_calls");
    for (int i = 0; i < p->calls; i++) {
        cJSON *call = cJSON_CreateObject(), *f, *args = probe_arguments(p->args);
        cJSON_AddItemToArray(list, call);
        cJSON_AddStringToObject(call, "id", probe_ids[i]);
        cJSON_AddStringToObject(call, "type", "function");
        f = cJSON_AddObjectToObject(call, "function");
        cJSON_AddStringToObject(f, "name", probe_names[i]);
        char *text = p->text ? cJSON_PrintUnformatted(args) : NULL;
        if (text) {
            cJSON_AddStringToObject(f, "arguments", text);
            cJSON_Delete(args);
        } else {
            cJSON_AddItemToObject(f, "arguments", args);
        }
        cJSON_free(text);
    }
}

/* {"type": KIND, KIND: TEXT} */
static void add_part(cJSON *list, const char *kind, const char *text)
{
    cJSON *part = cJSON_CreateObject();
    cJSON_AddItemToArray(list, part);
    cJSON_AddStringToObject(part, "type", kind);
    cJSON_AddStringToObject(part, kind, text);
}

static void add_answer(cJSON *list, const probe *p)
{
    static const char *const names[] = { "reasoning_content", "reasoning", "thinking" };
    cJSON *m = message(list, "assistant", p->parts ? NULL : p->content);
    if (!p->parts && !p->content) cJSON_AddNullToObject(m, "content");
    if (p->parts) {
        cJSON *parts = cJSON_AddArrayToObject(m, "content");
        add_part(parts, "thinking", PROBE_THOUGHT);
        add_part(parts, "text", PROBE_CONTENT);
    }
    for (size_t i = 0; p->thought && i < LQ_COUNT(names); i++)
        cJSON_AddStringToObject(m, names[i], PROBE_THOUGHT);
    if (p->calls) add_calls(m, p);
    for (int i = 0; p->results && i < p->calls; i++) {
        cJSON *r = message(list, "tool", "Zresz");
        cJSON_AddStringToObject(r, "tool_call_id", probe_ids[i]);
        cJSON_AddStringToObject(r, "name", probe_names[i]);
    }
}

char *probe_render(const tmpl_template *t, const cJSON *tokens, const probe *p, lq_err *err)
{
    cJSON *vars = cJSON_CreateObject(), *list = cJSON_AddArrayToObject(vars, "messages");
    char *out = NULL;
    size_t n;
    message(list, "user", PROBE_USER);
    if (p->content || p->calls) add_answer(list, p);
    cJSON_AddItemToObject(vars, "tools", p->no_tools ? cJSON_CreateNull() : tools_of());
    cJSON_AddBoolToObject(vars, "add_generation_prompt", p->prompt);
    if (p->kwarg) cJSON_AddBoolToObject(vars, p->kwarg, p->value);
    for (const cJSON *e = tokens ? tokens->child : NULL; e; e = e->next)
        cJSON_AddItemToObject(vars, e->string, cJSON_Duplicate(e, true));
    if (js_ran_out())
        lq_fail(err, LQ_ENOMEM, "chat template: out of memory");
    else if (tmpl_render(t, vars, &out, &n, err))
        out = NULL;
    cJSON_Delete(vars);
    return out;
}

/* ---- pieces ---- */

span probe_turn(const char *text)
{
    const char *at = NULL;
    for (const char *p = text; p && (p = strstr(p, PROBE_USER)); p++)
        at = p + strlen(PROBE_USER);
    return at ? span_of(at, at + strlen(at)) : span_of(text, text + strlen(text));
}

span span_of(const char *from, const char *to)
{
    return (span){ from, to > from ? (size_t)(to - from) : 0 };
}

span span_after(span s, size_t n) { return (span){ s.p + n, s.n - n }; }

const char *span_find(span s, const char *word)
{
    return s.n ? memmem(s.p, s.n, word, strlen(word)) : NULL;
}

/* The last "<" of s[n] that no ">" follows; n: there is none. */
static size_t open_mark(const char *s, size_t n)
{
    for (size_t i = n; i-- > 0;) {
        if (s[i] == '>') return n;
        if (s[i] == '<') return i;
    }
    return n;
}

static bool continues(char c) { return ((uint8_t)c & 0xc0) == 0x80; }

size_t span_prefix(span a, span b)
{
    size_t n = 0, most = a.n < b.n ? a.n : b.n;
    while (n < most && a.p[n] == b.p[n])
        n++;
    if (n == a.n && n == b.n) return n;
    while (n > 0 && ((n < a.n && continues(a.p[n])) || (n < b.n && continues(b.p[n]))))
        n--;
    return open_mark(a.p, n);
}

/* Of the last n bytes of s, those that end a mark which begins before them. */
static size_t split_mark(span s, size_t n)
{
    size_t left = s.n - n;
    if (open_mark(s.p, left) == left) return 0;
    const char *end = memchr(s.p + left, '>', n), *begin = memchr(s.p + left, '<', n);
    return end && (!begin || end < begin) ? (size_t)(end + 1 - (s.p + left)) : 0;
}

size_t span_suffix(span a, span b)
{
    size_t n = 0, most = a.n < b.n ? a.n : b.n;
    while (n < most && a.p[a.n - n - 1] == b.p[b.n - n - 1])
        n++;
    while (n > 0 && continues(a.p[a.n - n]))
        n--;
    if (n == a.n && n == b.n) return n;
    size_t x = split_mark(a, n), y = split_mark(b, n);
    return n - (x > y ? x : y);
}

/* The hole for what begins at s[n], *len bytes; 0: none. */
static char hole_at(const char *s, size_t n, size_t *len)
{
    for (int i = 0; i < PROBE_CALLS; i++) {
        *len = strlen(probe_names[i]);
        if (n >= *len && memcmp(s, probe_names[i], *len) == 0) return FORM_NAME;
        *len = strlen(probe_ids[i]);
        if (n >= *len && memcmp(s, probe_ids[i], *len) == 0) return FORM_ID;
    }
    *len = strlen(PROBE_KEY_A);
    bool key =
        n >= *len && (memcmp(s, PROBE_KEY_A, *len) == 0 || memcmp(s, PROBE_KEY_B, *len) == 0);
    return (char)(key ? FORM_KEY : 0);
}

bool span_mark(form_mark to, span s)
{
    size_t at = 0, len;
    for (size_t i = 0; i < s.n; i += len, at++) {
        char hole = hole_at(s.p + i, s.n - i, &len);
        if (at + 1 >= FORM_MARK) return false;
        if (!hole) len = 1;
        to[at] = hole ? hole : s.p[i];
    }
    to[at] = 0;
    return true;
}
