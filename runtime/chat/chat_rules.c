/* runtime/chat/chat_rules.c - see chat_rules.h. */
#include "runtime/chat/chat_rules.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/json.h"
#include "base/json_write.h"

/* What of a mark is no hole, up to its first one; then the holes and the rest. */
static void add_mark(lq_buf *out, const char *mark, const char *name)
{
    form_mark text;
    lq_buf_puts(out, "[");
    for (const char *sep = ""; *mark; sep = ", ") {
        size_t n = strcspn(mark, "\x01\x02\x03");
        lq_buf_puts(out, sep);
        if (n) {
            memcpy(text, mark, n);
            text[n] = 0;
            js_put_str(out, text);
        } else {
            if (*mark == FORM_NAME)
                js_put_str(out, name);
            else
                lq_buf_puts(out, *mark == FORM_ID ? "{\"letters\": 9}" : "{\"digits\": 2}");
            n = 1;
        }
        mark += n;
    }
    lq_buf_puts(out, "]");
}

static void add_text(lq_buf *out, const char *key, const char *text)
{
    lq_buf_printf(out, ", \"%s\": ", key);
    js_put_str(out, text);
}

/* A schema as it was sent; an object even where it does not say so. */
static void add_schema(lq_buf *out, const cJSON *parameters)
{
    cJSON *copy = parameters ? cJSON_Duplicate(parameters, true) : cJSON_CreateObject();
    if (copy && !js_get(copy, "type") && !js_get(copy, "$ref"))
        cJSON_AddStringToObject(copy, "type", "object");
    char *text = js_print(copy, false);
    if (text)
        lq_buf_puts(out, text);
    else
        out->oom = true;
    free(text);
    cJSON_Delete(copy);
}

static void add_arguments(lq_buf *out, const chat_form *f, const cJSON *parameters, bool any,
                          int index)
{
    lq_buf_puts(out, f->args == FORM_JSON ? "{\"schema\": " : "{\"params\": ");
    if (any)
        lq_buf_puts(out, "{\"type\": \"object\", \"additionalProperties\": true}");
    else
        add_schema(out, parameters);
    lq_buf_printf(out, ", \"at\": \"/anyOf/%d/properties/arguments\"", index);
    if (f->args == FORM_PARAMS) {
        add_text(out, "open", f->p_open);
        add_text(out, "close", f->p_close);
        add_text(out, "sep", f->p_sep);
        lq_buf_printf(out, ", \"values\": %d, \"mid\": ", (int)f->values);
        for (int k = 0; k < FORM_N_TYPES; k++) {
            lq_buf_puts(out, k ? ", " : "[");
            js_put_str(out, f->p_mid[k]);
        }
        lq_buf_puts(out, "]");
    }
    lq_buf_puts(out, "}");
}

/* One call of any of the tools; `first`: nothing was before it, so blanks are not needed. */
static void add_call(lq_buf *out, const chat_form *f, const cJSON *tools, const char *name,
                     const bool *loose, bool first)
{
    const char *head = first && !f->open[0] ? form_skip(f->head) : f->head, *sep = "";
    int index = 0;
    lq_buf_puts(out, "{\"any\": [");
    for (const cJSON *t = tools->child; t; t = t->next, index++) {
        const cJSON *fn = js_get(t, "function");
        const char *its = cJSON_GetStringValue(js_get(fn, "name"));
        if (!its || (name && strcmp(its, name) != 0)) continue;
        lq_buf_printf(out, "%s[", sep);
        add_mark(out, head, its);
        lq_buf_puts(out, ", ");
        bool any = loose && loose[index];
        add_arguments(out, f, any ? NULL : js_get(fn, "parameters"), any, index);
        lq_buf_puts(out, ", ");
        add_mark(out, f->tail, its);
        lq_buf_puts(out, "]");
        sep = ", ";
    }
    lq_buf_puts(out, "]}");
}

/* What is between two calls, and the second. */
static void add_next(lq_buf *out, const chat_form *f, const cJSON *tools, const char *name,
                     const bool *loose)
{
    js_put_str(out, f->sep);
    lq_buf_puts(out, ", ");
    add_call(out, f, tools, name, loose, false);
}

/* Any number of further calls, and what closes the list. */
static void add_rest(lq_buf *out, const chat_form *f, const cJSON *tools, const char *name,
                     const bool *loose)
{
    lq_buf_puts(out, "{\"many\": [");
    add_next(out, f, tools, name, loose);
    lq_buf_puts(out, "]}, ");
    js_put_str(out, f->close);
}

/* What closes the list of a single call. */
static void add_lone_end(lq_buf *out, const chat_form *f)
{
    if (f->lone_open) lq_buf_puts(out, "{\"optional\": ");
    js_put_str(out, f->close);
    if (f->lone_open) lq_buf_puts(out, "}");
}

void rules_calls(lq_buf *out, const chat_form *f, const cJSON *tools, const char *name,
                 bool several, const bool *loose)
{
    const bool more = several && f->parallel;
    lq_buf_puts(out, "[");
    js_put_str(out, form_skip(f->open));
    lq_buf_puts(out, ", ");
    add_call(out, f, tools, name, loose, true);
    lq_buf_puts(out, ", ");
    if (!more) {
        add_lone_end(out, f);
    } else if (!f->lone_open) {
        add_rest(out, f, tools, name, loose);
    } else {
        lq_buf_puts(out, "{\"any\": [[");
        add_next(out, f, tools, name, loose);
        lq_buf_puts(out, ", ");
        add_rest(out, f, tools, name, loose);
        lq_buf_puts(out, "], ");
        add_lone_end(out, f);
        lq_buf_puts(out, "]}");
    }
    lq_buf_puts(out, "]");
}

/* Without newlines, without spaces behind JSON's marks, or both. */
static void drop_blanks(char *to, const char *from, int kind)
{
    for (; *from; from++) {
        bool after = from[0] == ' ' && (from[-1] == ':' || from[-1] == ',' || from[-1] == '{');
        if ((kind & 1 && *from == '\n') || (kind & 2 && after)) continue;
        *to++ = *from;
    }
    *to = 0;
}

int rules_wakes(char text[RULES_WAKES][RULES_WAKE], const chat_form *f, const char *name)
{
    const char *head = f->head;
    char whole[RULES_WAKE];
    size_t n = strcspn(f->head, "\x02\x03"), k = strcspn(f->head, "\x01");
    bool hole = n < k; /* an id comes first */
    if (hole) k = n;
    const char *open = form_skip(f->open);
    if (!*open) head = form_skip(head);
    k -= (size_t)(head - f->head);
    snprintf(whole, sizeof whole, "%s%.*s%s", open, (int)k, head, hole ? "" : name);
    int count = 0;
    for (int kind = 0; kind < RULES_WAKES; kind++) {
        drop_blanks(text[count], whole, kind);
        bool new = text[count][0] != 0;
        for (int i = 0; i < count; i++)
            new = new &&strcmp(text[i], text[count]) != 0;
        count += new;
    }
    return count;
}

int rules_bare_wakes(char text[RULES_BARE][RULES_WAKE], const chat_form *f, const char *name)
{
    form_mark first;
    form_begin(first, f, true);
    const bool id_first = strcspn(f->head, "\x02\x03") < strcspn(f->head, "\x01");
    if (!f->object || !first[0] || id_first) return 0;
    for (int i = 0; i < RULES_BARE; i++)
        snprintf(text[i], RULES_WAKE, "%s{\"%s\":\"%s", i ? "```json" : "", f->key_name, name);
    return RULES_BARE;
}

void rules_thought(lq_buf *out, const chat_form *f, bool thinking)
{
    if (!f->think_open[0]) {
        lq_buf_puts(out, "[]");
        return;
    }
    lq_buf_puts(out, thinking ? "[" : "{\"optional\": [");
    if (!thinking) js_put_str(out, f->think_open);
    lq_buf_puts(out, thinking ? "{\"until\": " : ", {\"until\": ");
    js_put_str(out, f->think_close);
    lq_buf_puts(out, "}, {\"blanks\": 4}]");
    if (!thinking) lq_buf_puts(out, "}");
}
