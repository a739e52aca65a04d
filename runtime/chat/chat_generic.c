/* runtime/chat/chat_generic.c - see chat_generic.h. */
#include "runtime/chat/chat_generic.h"

#include <stdlib.h>

#include "base/json.h"
#include "base/json_write.h"
#include "runtime/chat/chat_roles.h"

static const char *text_of(const cJSON *m, const char *key)
{
    const char *s = cJSON_GetStringValue(js_get(m, key));
    return s ? s : "";
}

static bool set_text(cJSON *m, const char *key, const lq_buf *b)
{
    cJSON *v = b->oom ? NULL : cJSON_CreateString(b->p ? b->p : "");
    cJSON_DeleteItemFromObjectCaseSensitive(m, key);
    return v && cJSON_AddItemToObject(m, key, v);
}

/* ---- the description ---- */

static void put_mark(lq_buf *b, const char *mark)
{
    for (; *mark; mark++) {
        if (*mark == FORM_NAME)
            lq_buf_puts(b, "NAME");
        else if (*mark == FORM_ID || *mark == FORM_INDEX)
            lq_buf_puts(b, "0");
        else
            lq_buf_add(b, mark, 1);
    }
}

static void put_example(lq_buf *b, const chat_form *f)
{
    put_mark(b, form_skip(f->open));
    put_mark(b, f->open[0] ? f->head : form_skip(f->head));
    if (f->args == FORM_JSON)
        lq_buf_puts(b, "{\"PARAMETER\": VALUE}");
    else
        lq_buf_printf(b, "%sPARAMETER%sVALUE%s", f->p_open, f->p_mid[FORM_STR], f->p_close);
    put_mark(b, f->tail);
    put_mark(b, f->close);
}

static bool describe(lq_buf *b, const cJSON *tools, const chat_form *f)
{
    lq_buf_puts(b, "You may call these functions to help with the user's request, one per line as "
                   "JSON schemas:\n<tools>\n");
    for (const cJSON *t = tools->child; t; t = t->next) {
        char *text = js_print(t, false);
        if (!text) return false;
        lq_buf_printf(b, "%s\n", text);
        free(text);
    }
    lq_buf_puts(b,
                "</tools>\nTo call a function, write exactly this, with its name and arguments:\n");
    put_example(b, f);
    lq_buf_puts(b, "\nIf no function is needed, answer in plain text.");
    lq_buf_add(b, "", 1);
    return !b->oom;
}

static bool add_system(cJSON *messages, const char *text, bool in_user)
{
    cJSON *first = messages->child;
    bool there = first && (in_user || chat_has_role(first, "system")) &&
                 cJSON_IsString(js_get(first, "content"));
    lq_buf b = { 0 };
    if (there && !in_user) lq_buf_printf(&b, "%s\n\n", text_of(first, "content"));
    lq_buf_puts(&b, text);
    if (there && in_user) lq_buf_printf(&b, "\n\n%s", text_of(first, "content"));
    lq_buf_add(&b, "", 1);
    bool ok = !b.oom;
    if (there) {
        ok = ok && set_text(first, "content", &b);
    } else {
        cJSON *m = cJSON_CreateObject();
        ok = ok && m && cJSON_AddStringToObject(m, "role", "system") &&
             set_text(m, "content", &b) && cJSON_InsertItemInArray(messages, 0, m);
        if (!ok) cJSON_Delete(m);
    }
    lq_buf_free(&b);
    return ok;
}

/* ---- calls and answers as text ---- */

static bool tell_calls(cJSON *m)
{
    const cJSON *calls = js_get(m, "tool_calls");
    lq_buf b = { 0 };
    lq_buf_puts(&b, text_of(m, "content"));
    for (const cJSON *c = calls->child; c; c = c->next) {
        const cJSON *f = js_get(c, "function"), *args = js_get(f, "arguments");
        char *text = cJSON_IsString(args) ? NULL : js_print(args, false);
        lq_buf_puts(&b, b.n ? "\n<tool_call>\n{\"name\": " : "<tool_call>\n{\"name\": ");
        js_put_str(&b, text_of(f, "name"));
        lq_buf_printf(&b, ", \"arguments\": %s}\n</tool_call>",
                      text ? text : text_of(f, "arguments"));
        free(text);
    }
    lq_buf_add(&b, "", 1);
    bool ok = set_text(m, "content", &b);
    cJSON_DeleteItemFromObjectCaseSensitive(m, "tool_calls");
    lq_buf_free(&b);
    return ok;
}

static bool tell_answer(cJSON *m)
{
    lq_buf role = { 0 }, b = { 0 };
    lq_buf_printf(&b, "<tool_response>\n%s\n</tool_response>", text_of(m, "content"));
    lq_buf_add(&b, "", 1);
    lq_buf_add(&role, "user", 5);
    bool ok = set_text(m, "content", &b) && set_text(m, "role", &role);
    lq_buf_free(&b);
    lq_buf_free(&role);
    return ok;
}

static bool tell_all(cJSON *messages)
{
    bool ok = true, told = false;
    for (cJSON *m = messages->child, *next; m && ok; m = next) {
        next = m->next;
        const cJSON *calls = js_get(m, "tool_calls");
        bool answer = chat_has_role(m, "tool");
        if (cJSON_IsArray(calls) && calls->child)
            ok = tell_calls(m);
        else if (answer)
            ok = tell_answer(m);
        /* A user's message after an answer goes into it: templates want turns. */
        bool joins = m != messages->child && chat_has_role(m, "user") &&
                     chat_has_role(m->prev, "user") && (answer || told);
        told = chat_has_role(m, "user") && (answer || (joins && told));
        if (ok && joins) ok = chat_join(messages, m, "\n");
    }
    return ok;
}

bool generic_messages(cJSON *messages, const cJSON *tools, const chat_form *form, bool in_user)
{
    lq_buf b = { 0 };
    bool ok = !form->generic || tell_all(messages);
    ok = ok && describe(&b, tools, form) && add_system(messages, b.p, in_user);
    lq_buf_free(&b);
    return ok;
}
