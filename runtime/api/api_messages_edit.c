/* runtime/api/api_messages_edit.c - `context_management` of the Messages API: what of a long conversation the model is
 * not shown any more. Source: docs.anthropic.com, "Context editing". */
#include "runtime/api/api_messages.h"

#include <stdio.h>
#include <stdlib.h>

#define CLEARED "[cleared]"
static const char key[] = "context_management", made_key[] = "applied_edits",
                  original_key[] = "original_input_tokens";
static const char uses_type[] = "clear_tool_uses_20250919",
                  thinking_type[] = "clear_thinking_20251015";

enum { DEFAULT_TRIGGER = 100000, DEFAULT_KEEP = 3 };

/* ---- what is asked for ---- */

static lq_status wrong(api_body *b, int i, const char *where, const char *expected, const cJSON *v)
{
    char at[80];
    snprintf(at, sizeof at, "context_management.edits[%d]%s%s", i, where[0] ? "." : "", where);
    return api_body_wrong(b, key, at, expected, v);
}

static bool whole(const cJSON *v, int64_t *out) { return js_whole(v, 0, 1e15, out); }

/* {"type": one of the two, "value"}; NULL is right too. */
static lq_status check_bound(api_body *b, int i, const cJSON *edit, const char *name,
                             const char *type, const char *or_type)
{
    const cJSON *v = js_get(edit, name);
    int64_t n;
    if (!v) return LQ_OK;
    const bool known =
        api_is(js_get(v, "type"), type) || (or_type && api_is(js_get(v, "type"), or_type));
    if (known && whole(js_get(v, "value"), &n)) return LQ_OK;
    char expected[96];
    snprintf(expected, sizeof expected, "type %s%s%s with a value", type, or_type ? " or " : "",
             or_type ? or_type : "");
    return wrong(b, i, name, expected, v);
}

static bool is_names(const cJSON *v)
{
    for (const cJSON *t = v->child; t; t = t->next)
        if (!cJSON_IsString(t)) return false;
    return cJSON_IsArray(v);
}

static lq_status check_uses(api_body *b, int i, const cJSON *edit)
{
    const cJSON *but = js_get(edit, "exclude_tools"), *inputs = js_get(edit, "clear_tool_inputs");
    lq_status s = check_bound(b, i, edit, "trigger", "input_tokens", "tool_uses");
    if (!s) s = check_bound(b, i, edit, "keep", "tool_uses", NULL);
    if (!s) s = check_bound(b, i, edit, "clear_at_least", "input_tokens", NULL);
    if (!s && but && !is_names(but)) s = wrong(b, i, "exclude_tools", "an array of names", but);
    if (!s && inputs && !cJSON_IsBool(inputs) && !is_names(inputs))
        s = wrong(b, i, "clear_tool_inputs", "true, false or an array of names", inputs);
    return s;
}

lq_status api_read_edits(api_body *b, const char *name, const cJSON *v)
{
    const cJSON *edits = js_get(v, "edits");
    int i = 0;
    lq_status s = LQ_OK;
    if (!cJSON_IsObject(v) || (edits && !cJSON_IsArray(edits)))
        return api_body_wrong(b, name, name, "an object with an array \"edits\"", v);
    for (const cJSON *t = edits ? edits->child : NULL; t && !s; t = t->next, i++) {
        const cJSON *type = js_get(t, "type"), *keep = js_get(t, "keep");
        if (api_is(type, uses_type))
            s = check_uses(b, i, t);
        else if (!api_is(type, thinking_type))
            s = wrong(b, i, "", "type clear_tool_uses_20250919 or clear_thinking_20251015",
                      type ? type : t);
        else if (!api_is(keep, "all") && !api_is(js_get(keep, "type"), "all"))
            s = check_bound(b, i, t, "keep", "thinking_turns", NULL);
    }
    return s;
}

/* ---- what is done ---- */

static int64_t value_of(const cJSON *edit, const char *name, int64_t otherwise)
{
    int64_t n;
    return whole(js_get(js_get(edit, name), "value"), &n) ? n : otherwise;
}

static bool has_name(const cJSON *list, const char *name)
{
    for (const cJSON *t = list && name ? list->child : NULL; t; t = t->next)
        if (api_is(t, name)) return true;
    return false;
}

static const char *called(const cJSON *call)
{
    return cJSON_GetStringValue(js_get(js_get(call, "function"), "name"));
}

static cJSON *calls_of(const cJSON *m) { return cJSON_GetObjectItemCaseSensitive(m, "tool_calls"); }

static int64_t count_uses(const cJSON *messages)
{
    int64_t n = 0;
    for (const cJSON *m = messages->child; m; m = m->next)
        n += cJSON_GetArraySize(calls_of(m));
    return n;
}

/* The result of the call becomes a mark; false: there is none, or it is one. */
static bool clear_result(cJSON *from, const char *id)
{
    for (cJSON *m = from; m && id; m = m->next) {
        if (!api_is(js_get(m, "tool_call_id"), id)) continue;
        if (api_is(js_get(m, "content"), CLEARED)) return false;
        cJSON_ReplaceItemInObjectCaseSensitive(m, "content", cJSON_CreateString(CLEARED));
        return true;
    }
    return false;
}

/* All but the last `keep` uses; returns how many. */
static int64_t clear_uses(cJSON *messages, const cJSON *edit)
{
    const cJSON *but = js_get(edit, "exclude_tools"), *inputs = js_get(edit, "clear_tool_inputs");
    int64_t left = count_uses(messages) - value_of(edit, "keep", DEFAULT_KEEP), n = 0;
    for (cJSON *m = messages->child; m; m = m->next) {
        const cJSON *calls = calls_of(m);
        for (cJSON *c = calls ? calls->child : NULL; c && left > 0; c = c->next, left--) {
            const char *name = called(c);
            if (has_name(but, name)) continue;
            n += clear_result(m->next, cJSON_GetStringValue(js_get(c, "id")));
            if (cJSON_IsTrue(inputs) || has_name(inputs, name))
                cJSON_ReplaceItemInObjectCaseSensitive(
                    cJSON_GetObjectItemCaseSensitive(c, "function"), "arguments",
                    cJSON_CreateObject());
        }
    }
    return n;
}

/* The thoughts of all but the last `keep` turns that have one; returns how many. */
static int64_t clear_thinking(cJSON *messages, const cJSON *edit)
{
    static const char *const names[] = { "reasoning_content", "reasoning", "thinking" };
    const cJSON *keep = js_get(edit, "keep");
    int64_t left = value_of(edit, "keep", 1), n = 0;
    if (api_is(keep, "all") || api_is(js_get(keep, "type"), "all") || !messages->child) return 0;
    for (cJSON *m = messages->child->prev;; m = m->prev) {
        const bool thinks = js_get(m, names[0]) != NULL;
        if (thinks && left <= 0) {
            for (size_t i = 0; i < LQ_COUNT(names); i++)
                cJSON_DeleteItemFromObjectCaseSensitive(m, names[i]);
            n++;
        }
        left -= thinks;
        if (m == messages->child) break;
    }
    return n;
}

typedef struct {
    const api *a;
    api_request *q;
    api_error *e;
    lq_status made; /* of the prompt as it is now */
} editing;

/* Of the prompt; one that is too long has more than may be. */
static int64_t tokens(const editing *t)
{
    return t->made ? t->a->m.max_len + 1 : (int64_t)t->q->prompts->n;
}

static bool is_due(const editing *t, const cJSON *messages, const cJSON *edit)
{
    const cJSON *trigger = js_get(edit, "trigger");
    const int64_t most = value_of(edit, "trigger", DEFAULT_TRIGGER);
    if (api_is(js_get(trigger, "type"), "tool_uses")) return count_uses(messages) > most;
    return tokens(t) > most || tokens(t) >= t->a->m.max_len; /* else it would be refused */
}

/* Where too little was won, all is as before. */
static bool restore(editing *t, cJSON *before, int64_t won, int64_t least)
{
    if (!before || (!t->made && won >= least)) return false;
    cJSON_ReplaceItemInObjectCaseSensitive(t->q->doc, "messages", before);
    t->made = api_render(t->a, t->q, t->e);
    return true;
}

static void make_edit(editing *t, const cJSON *edit, cJSON *list)
{
    cJSON *messages = cJSON_GetObjectItemCaseSensitive(t->q->doc, "messages"), *before = NULL;
    const bool uses = api_is(js_get(edit, "type"), uses_type);
    const int64_t least = uses ? value_of(edit, "clear_at_least", 0) : 0, was = tokens(t);
    if (uses && !is_due(t, messages, edit)) return;
    if (least) before = cJSON_Duplicate(messages, true);
    const int64_t n = uses ? clear_uses(messages, edit) : clear_thinking(messages, edit);
    if (n) t->made = api_render(t->a, t->q, t->e);
    const int64_t won = was > tokens(t) ? was - tokens(t) : 0;
    if (n && restore(t, before, won, least)) return;
    cJSON_Delete(before);
    if (!n) return;
    cJSON *one = cJSON_CreateObject();
    if (!cJSON_AddItemToArray(list, one)) cJSON_Delete(one);
    cJSON_AddStringToObject(one, "type", uses ? uses_type : thinking_type);
    cJSON_AddNumberToObject(one, uses ? "cleared_tool_uses" : "cleared_thinking_turns", (double)n);
    cJSON_AddNumberToObject(one, "cleared_input_tokens", (double)won);
}

lq_status api_edit_messages(const api *a, api_request *q, lq_status made, api_error *e)
{
    cJSON *asked = cJSON_GetObjectItemCaseSensitive(q->body, key);
    const cJSON *edits = js_get(asked, "edits");
    const bool long_one = made && e->code && strcmp(e->code, "context_length_exceeded") == 0;
    if (!edits || (made && !long_one)) return made;
    editing t = { a, q, e, made };
    cJSON_DeleteItemFromObjectCaseSensitive(asked, made_key);
    cJSON_DeleteItemFromObjectCaseSensitive(asked, original_key);
    cJSON_AddNumberToObject(asked, original_key, (double)tokens(&t));
    cJSON *list = cJSON_AddArrayToObject(asked, made_key);
    for (const cJSON *edit = edits->child; edit; edit = edit->next)
        make_edit(&t, edit, list);
    return js_ran_out() ? api_no_memory(e) : t.made;
}

/* ---- what is told ---- */

static void write_member(jw *w, const cJSON *body, const char *name)
{
    const cJSON *v = js_get(js_get(body, key), name);
    char *text = v ? js_print(v, false) : NULL;
    w->b.oom |= v && !text;
    if (text) {
        jw_key(w, key);
        jw_open(w, '{');
        jw_key(w, name);
        jw_json(w, text, strlen(text));
        jw_close(w, '}');
    }
    free(text);
}

void api_write_edits(jw *w, const cJSON *body) { write_member(w, body, made_key); }
void api_write_original_tokens(jw *w, const cJSON *body) { write_member(w, body, original_key); }
