/* tests/unit/test_chat_roles.c - conversations as clients send them, in the published chat templates. */
#include "runtime/chat/chat_roles.h"
#include "tests/support/published.h"

#include <stdlib.h>

static cJSON *conversation(const char *roles)
{
    cJSON *list = cJSON_CreateArray();
    char copy[128], text[16], *save = NULL;
    snprintf(copy, sizeof copy, "%s", roles);
    int i = 0;
    for (char *r = strtok_r(copy, " ", &save); r; r = strtok_r(NULL, " ", &save)) {
        cJSON *m = cJSON_CreateObject();
        snprintf(text, sizeof text, "TEXT%d", i++);
        const bool calls = strcmp(r, "calls") == 0, null = strcmp(r, "null") == 0;
        const bool none = strcmp(r, "none") == 0, empty = strcmp(r, "empty") == 0;
        const bool assistant = calls || null || none || empty;
        cJSON_AddStringToObject(m, "role", assistant ? "assistant" : r);
        if (none) cJSON_AddNullToObject(m, "tool_calls");
        if (empty) cJSON_AddArrayToObject(m, "tool_calls");
        if (null) cJSON_AddNullToObject(m, "content");
        if (calls || null)
            cJSON_AddItemToObject(m, "tool_calls", cJSON_Parse("[{\"id\": \"a\"}]"));
        else
            cJSON_AddStringToObject(m, "content", text);
        cJSON_AddItemToArray(list, m);
    }
    return list;
}

static char *render(const tmpl_template *t, const cJSON *tokens, cJSON *messages, lq_err *err)
{
    char *text = NULL;
    size_t n;
    cJSON *vars = tokens ? cJSON_Duplicate(tokens, true) : cJSON_CreateObject();
    cJSON_AddItemToObject(vars, "messages", messages);
    cJSON_AddNullToObject(vars, "tools");
    cJSON_AddTrueToObject(vars, "add_generation_prompt");
    if (tmpl_render(t, vars, &text, &n, err)) text = NULL;
    cJSON_Delete(vars);
    return text;
}

/* The texts are all there. (Some templates gather system messages at the beginning.) */
static bool shows_all(const char *text, const char *roles)
{
    char word[16];
    bool all = text != NULL;
    int i = 0;
    for (const char *r = roles; r && all; r = strchr(r, ' '), r = r ? r + 1 : NULL) {
        snprintf(word, sizeof word, "TEXT%d", i++);
        all = strstr(text, word) != NULL;
    }
    return all;
}

/* ---- the published ones ---- */

/* First messages of the field's clients: Claude Code, Codex, Open WebUI's, Cline's, an agent's later
 * turns. */
static const char *const clients[] = { "system user system",
                                       "system user system user",
                                       "developer user user",
                                       "system developer user user",
                                       "system system user",
                                       "system user user",
                                       "user developer user",
                                       "system user assistant system user",
                                       "developer user assistant user developer user" };

static int shown, want_tools;

static void look(const char *name, const tmpl_template *t, const cJSON *tokens)
{
    const chat_roles r = chat_roles_of(t, tokens);
    if (getenv("LLMQ_PRINT"))
        printf("%-50s%s%s%s%s%s%s%s\n", name, r.developer ? " developer" : "",
               r.system ? " system" : "", r.late_system ? " late" : "",
               r.late_developer ? " late-developer" : "", r.runs ? " runs" : "",
               r.no_content ? " no-content" : "", r.null_content ? " null-content" : "");
    char *hi = render(t, tokens, conversation("user"), NULL);
    free(hi);
    if (!hi) { /* without tools it raises */
        want_tools++;
        return;
    }
    for (size_t i = 0; i < LQ_COUNT(clients); i++) {
        lq_err err = { "not all of it is there" };
        cJSON *messages = conversation(clients[i]);
        CHECK(chat_roles_fit(messages, &r), "memory");
        char *text = render(t, tokens, messages, &err);
        CHECK(shows_all(text, clients[i]), "%s: %s: %s: %s", name, clients[i], err.msg,
              text ? text : "");
        free(text);
    }
    shown++;
}

TEST(published_templates_show_what_clients_say)
{
    if (!published_each(look))
        CHECK_SKIP("tar or xz is not there: the published templates are not read");
    else
        CHECK(shown == 66 && want_tools == 4, "%d shown, %d want tools", shown, want_tools);
}

/* ---- each rule ---- */

#define CONTENT \
    "{{ '<' + m.role + '>' + (m.content if 'x' not in m.content else '') }}" /* raises at none */
#define GIVEN "{{ '<' + m.role + '>' + (m.content if 'content' in m else '') }}"
#define CALLS                                                                                     \
    "{% if 'tool_calls' in m and m.tool_calls|length != 1 %}{{ raise_exception('one call') }}{% " \
    "endif %}"
#define ECHO "{{ '<' + m.role + '>' + m.content }}"
#define EACH(body) "{% for m in messages %}" body "{% endfor %}"
#define KNOWN                                                                                      \
    "{% if m.role not in ['user', 'assistant', 'system'] %}{{ raise_exception('role') }}{% endif " \
    "%}"
#define TURNS                                                                                      \
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('turns') }}{% endif " \
    "%}"
#define FIRST \
    "{% if m.role == 'system' and not loop.first %}{{ raise_exception('first') }}{% endif %}"

TEST(what_a_template_does_not_take_is_said_as_it_takes_it)
{
    static const struct {
        const char *why, *template, *roles, *want;
    } cases[] = {
        { "all of it is taken", EACH(ECHO), "system user system user user",
          "<system>TEXT0<user>TEXT1<system>TEXT2<user>TEXT3<user>TEXT4" },
        { "a system message in the middle", EACH(KNOWN FIRST ECHO), "system user system user",
          "<system>TEXT0<user>TEXT1\n\nTEXT2\n\nTEXT3" },
        { "after an answer", EACH(KNOWN FIRST ECHO), "system user assistant system",
          "<system>TEXT0<user>TEXT1<assistant>TEXT2<user>TEXT3" },
        { "two at the beginning", EACH(KNOWN FIRST ECHO), "system system user",
          "<system>TEXT0\n\nTEXT1<user>TEXT2" },
        { "turns of the user that are apart stay so", EACH(KNOWN FIRST ECHO), "user user system",
          "<user>TEXT0<user>TEXT1\n\nTEXT2" },
        { "turns must alternate, and there is no system", EACH(TURNS ECHO), "system user user",
          "<user>TEXT0\n\nTEXT1\n\nTEXT2" },
        { "a developer late", EACH(KNOWN FIRST ECHO), "developer user developer user",
          "<system>TEXT0<user>TEXT1\n\nTEXT2\n\nTEXT3" },
        { "calls without a content", EACH(CONTENT), "user calls", "<user>TEXT0<assistant>" },
        { "no calls", EACH(CALLS ECHO), "user none user empty",
          "<user>TEXT0<assistant>TEXT1<user>TEXT2<assistant>TEXT3" },
        { "calls whose content is null", EACH(CONTENT), "user null", "<user>TEXT0<assistant>" },
        { "null, where none is taken", EACH(GIVEN), "user null", "<user>TEXT0<assistant>" },
    };
    for (size_t i = 0; i < LQ_COUNT(cases); i++) {
        tmpl_template *t = NULL;
        lq_err err = { "" };
        CHECK(!tmpl_parse(&t, cases[i].template, strlen(cases[i].template), &err), "%s", err.msg);
        const chat_roles r = chat_roles_of(t, NULL);
        cJSON *messages = conversation(cases[i].roles);
        CHECK(chat_roles_fit(messages, &r), "memory");
        char *text = render(t, NULL, messages, &err);
        CHECK(text && strcmp(text, cases[i].want) == 0, "%s: %s", cases[i].why,
              text ? text : err.msg);
        free(text);
        tmpl_free(t);
    }
}

int main(int argc, char **argv)
{
    RUN(published_templates_show_what_clients_say);
    RUN(what_a_template_does_not_take_is_said_as_it_takes_it);
    return check_end();
}
