/* runtime/chat/chat_roles.c - see chat_roles.h. */
#include "runtime/chat/chat_roles.h"

#include <stdio.h>
#include <stdlib.h>

/* ---- what a template takes ---- */

static void put(cJSON *o, const char *key, const cJSON *v)
{
    cJSON_AddItemToObject(o, key, v ? cJSON_Duplicate(v, true) : cJSON_CreateNull());
}

/* Turns of the assistant with a call, by what their content is. */
static const struct {
    const char *name, *content;
} calling[] = { { "calls", NULL }, { "null", "null" }, { "empty", "\"\"" } };

static cJSON *turn_of_calls(const char *content)
{
    static const char call[] =
        "[{\"id\": \"zida00001\", \"type\": \"function\", \"function\": {\"name\": \"zfn\", "
        "\"arguments\": {}}}]";
    cJSON *m = cJSON_CreateObject();
    cJSON_AddStringToObject(m, "role", "assistant");
    if (content) cJSON_AddItemToObject(m, "content", cJSON_Parse(content));
    cJSON_AddItemToObject(m, "tool_calls", cJSON_Parse(call));
    return m;
}

static cJSON *turn(const char *role, const char *text)
{
    for (size_t i = 0; i < LQ_COUNT(calling); i++)
        if (strcmp(role, calling[i].name) == 0) return turn_of_calls(calling[i].content);
    cJSON *m = cJSON_CreateObject();
    cJSON_AddStringToObject(m, "role", role);
    cJSON_AddStringToObject(m, "content", text);
    if (strcmp(role, "tool") == 0) cJSON_AddStringToObject(m, "tool_call_id", "zida00001");
    return m;
}

static cJSON *conversation(const char *roles)
{
    cJSON *list = cJSON_CreateArray();
    for (int i = 0; *roles; i++) {
        char role[24], text[16];
        const size_t n = strcspn(roles, " ");
        snprintf(role, sizeof role, "%.*s", (int)n, roles);
        snprintf(text, sizeof text, "PROBE%d", i);
        cJSON_AddItemToArray(list, turn(role, text));
        roles += n + (roles[n] == ' ');
    }
    return list;
}

char *chat_roles_render(const tmpl_template *t, const cJSON *tokens, const char *roles,
                        const cJSON *kwargs)
{
    char *text = NULL;
    size_t n = 0;
    cJSON *vars = cJSON_CreateObject();
    cJSON_AddItemToObject(vars, "messages", conversation(roles));
    put(vars, "tools", NULL);
    put(vars, "documents", NULL);
    cJSON_AddBoolToObject(vars, "add_generation_prompt", kwargs != NULL);
    for (const cJSON *e = kwargs ? kwargs->child : NULL; e; e = e->next)
        put(vars, e->string, e);
    for (const cJSON *e = tokens ? tokens->child : NULL; e; e = e->next)
        if (!js_get(vars, e->string)) put(vars, e->string, e);
    if (js_ran_out() || tmpl_render(t, vars, &text, &n, NULL)) text = NULL;
    cJSON_Delete(vars);
    return text;
}

/* It shows all that such a conversation says, but for answers. */
static bool takes(const tmpl_template *t, const cJSON *tokens, const char *roles)
{
    char word[16], *text = chat_roles_render(t, tokens, roles, NULL);
    bool all = text != NULL;
    int i = 0;
    for (const char *r = roles; r && all; r = strchr(r, ' '), r = r ? r + 1 : NULL) {
        snprintf(word, sizeof word, "PROBE%d", i++);
        all = *r == 'a' || strstr(text, word) != NULL;
    }
    free(text);
    return all;
}

/* It shows a developer's message, and otherwise than one of a role that nobody knows. */
static bool knows_developer(const tmpl_template *t, const cJSON *tokens)
{
    static const char role[] = "developer", nobody[] = "nobodyyyy";
    char *a = chat_roles_render(t, tokens, "developer user", NULL);
    char *b = chat_roles_render(t, tokens, "nobodyyyy user", NULL);
    bool knows = a && strstr(a, "PROBE0");
    for (char *at = b; knows && at && (at = strstr(at, nobody)); at += sizeof role - 1)
        memcpy(at, role, sizeof role - 1);
    knows = knows && !(b && strcmp(a, b) == 0);
    free(a);
    free(b);
    return knows;
}

static bool raises(const tmpl_template *t, const cJSON *tokens, const char *roles)
{
    char *text = chat_roles_render(t, tokens, roles, NULL);
    free(text);
    return !text;
}

/* What it makes of calls alone; some raise at calls without tools, which says nothing. */
static void try_calls(chat_roles *r, const tmpl_template *t, const cJSON *tokens)
{
    if (raises(t, tokens, "user empty tool")) return;
    r->no_content = !raises(t, tokens, "user calls tool");
    r->null_content = !raises(t, tokens, "user null tool");
}

chat_roles chat_roles_of(const tmpl_template *t, const cJSON *tokens)
{
    chat_roles r = { true, true, true, true, true, true, true };
    try_calls(&r, t, tokens);
    r.developer = knows_developer(t, tokens);
    if (!takes(t, tokens, "user")) return r;
    r.system = takes(t, tokens, "system user");
    r.late_system =
        takes(t, tokens, "user system") && takes(t, tokens, "user system user") &&
        takes(t, tokens,
              r.system ? "system user assistant system user" : "user assistant system user");
    r.late_developer = takes(t, tokens, "user developer user") &&
                       takes(t, tokens, "developer user assistant developer user");
    r.runs = takes(t, tokens, "user user");
    return r;
}

/* ---- conversations made to fit ---- */

bool chat_has_role(const cJSON *m, const char *role)
{
    const char *s = cJSON_GetStringValue(js_get(m, "role"));
    return s && strcmp(s, role) == 0;
}

static const char *text_of(const cJSON *m) { return cJSON_GetStringValue(js_get(m, "content")); }

bool chat_join(cJSON *messages, cJSON *m, const char *between)
{
    cJSON *to = cJSON_GetObjectItemCaseSensitive(m->prev, "content");
    const size_t n = strlen(to->valuestring) + strlen(between) + strlen(text_of(m)) + 1;
    char *both = cJSON_malloc(n);
    if (!both) return false;
    snprintf(both, n, "%s%s%s", to->valuestring, between, text_of(m));
    cJSON_free(to->valuestring);
    to->valuestring = both;
    cJSON_Delete(cJSON_DetachItemViaPointer(messages, m));
    return true;
}

static bool set_role(cJSON *m, const char *name)
{
    cJSON *role = cJSON_CreateString(name);
    return role && cJSON_ReplaceItemInObjectCaseSensitive(m, "role", role);
}

/* Both are text, and m is not the first. */
static bool can_join(const cJSON *messages, const cJSON *m)
{
    return m != messages->child && text_of(m) && text_of(m->prev);
}

/* An instruction, and whether it is shown where it is. */
static bool instructs(const cJSON *m)
{
    return chat_has_role(m, "system") || chat_has_role(m, "developer");
}

static bool is_shown(const cJSON *messages, const cJSON *m, const chat_roles *r)
{
    if (m == messages->child) return r->system || !chat_has_role(m, "system");
    return chat_has_role(m, "system") ? r->late_system : r->late_developer;
}

/* For a template that does not know the role developer: it is system, and of two in a row one. */
static bool developer_to_system(cJSON *messages)
{
    for (cJSON *m = messages->child, *next; m; m = next) {
        next = m->next;
        if (!chat_has_role(m, "developer")) continue;
        if (!set_role(m, "system")) return false;
        const bool joins = can_join(messages, m) && chat_has_role(m->prev, "system");
        if (joins && !chat_join(messages, m, "\n\n")) return false;
    }
    return true;
}

/* Clients send an answer back with "tool_calls": null; templates look whether the key is there. */
static void drop_no_calls(cJSON *m)
{
    const cJSON *calls = cJSON_GetObjectItemCaseSensitive(m, "tool_calls");
    if (calls && (cJSON_IsNull(calls) || (cJSON_IsArray(calls) && !calls->child)))
        cJSON_DeleteItemFromObjectCaseSensitive(m, "tool_calls");
}

/* A turn of calls alone, where the template wants a text. */
static bool fill_content(cJSON *m, const chat_roles *r)
{
    const cJSON *calls = js_get(m, "tool_calls");
    const cJSON *content = cJSON_GetObjectItemCaseSensitive(m, "content");
    const bool taken = content ? !cJSON_IsNull(content) || r->null_content : r->no_content;
    if (!cJSON_IsArray(calls) || !calls->child || taken) return true;
    cJSON_DeleteItemFromObjectCaseSensitive(m, "content");
    return cJSON_AddStringToObject(m, "content", "") != NULL;
}

bool chat_roles_fit(cJSON *messages, const chat_roles *r)
{
    bool before = false; /* the message before has taken in an instruction */
    if (!r->developer && !developer_to_system(messages)) return false;
    for (cJSON *m = messages->child, *next; m; m = next) {
        next = m->next;
        drop_no_calls(m);
        if (!fill_content(m, r)) return false;
        const bool turned = instructs(m) && !is_shown(messages, m, r);
        bool joins = turned && can_join(messages, m) && instructs(m->prev);
        if (turned && !joins && !set_role(m, "user")) return false;
        joins |= can_join(messages, m) && chat_has_role(m, "user") &&
                 chat_has_role(m->prev, "user") && (turned || before || !r->runs);
        before = turned ? !joins || !instructs(m->prev) : joins && before;
        if (joins && !chat_join(messages, m, "\n\n")) return false;
    }
    return true;
}
