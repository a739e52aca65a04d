/* runtime/chat/chat.c - see chat.h. */
#include "runtime/chat/chat.h"

#include <stdlib.h>

#include "base/json.h"
#include "runtime/chat/chat_generic.h"
#include "runtime/chat/chat_roles.h"
#include "runtime/chat/chat_set.h"

enum { MAX_FILE = 64 << 20 };

struct chat_format {
    const tok_tokenizer *tok;
    chat_set *set;
    int32_t shown[64];
    int n_shown;
    unsigned reads;      /* chat_reads */
    chat_roles roles[2]; /* of the template without tools, with */
};

void chat_close(chat_format *c)
{
    if (!c) return;
    chat_set_close(c->set);
    free(c);
}

const chat_form *chat_form_of(const chat_format *c, bool tools, const char **why)
{
    return chat_set_form(c->set, tools, why);
}

const int32_t *chat_shown(const chat_format *c, int *n)
{
    *n = c->n_shown;
    return c->shown;
}

static void find_shown(chat_format *c)
{
    const char *why;
    const chat_form *a = chat_form_of(c, false, &why), *b = chat_form_of(c, true, &why);
    for (int32_t i = 0; i < tok_vocab(c->tok) && c->n_shown < (int)LQ_COUNT(c->shown); i++) {
        size_t n = 0;
        char text[FORM_MARK];
        const char *t = tok_is_special(c->tok, i) ? tok_token(c->tok, i, &n) : NULL;
        if (!t || !n || n >= sizeof text) continue;
        memcpy(text, t, n);
        text[n] = 0;
        if (form_has(a, text) || form_has(b, text)) c->shown[c->n_shown++] = i;
    }
}

unsigned chat_reads(const chat_format *c) { return c->reads; }
const chat_set *chat_templates(const chat_format *c) { return c->set; }
const char *chat_text(const chat_format *c) { return chat_set_text(c->set, "default"); }
const cJSON *chat_tokens(const chat_format *c) { return chat_set_tokens(c->set); }

/* ---- variables of a render ---- */

/* OpenAI sends a call's arguments as the text of an object; templates expect the object. */
static void parse_arguments(cJSON *messages)
{
    cJSON *m, *call;
    cJSON_ArrayForEach(m, messages)
    {
        cJSON_ArrayForEach(call, cJSON_GetObjectItemCaseSensitive(m, "tool_calls"))
        {
            cJSON *f = cJSON_GetObjectItemCaseSensitive(call, "function"), *parsed = NULL;
            const char *a = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(f, "arguments"));
            if (!a || js_parse(&parsed, a, strlen(a), MAX_FILE, 0, NULL)) continue;
            if (!cJSON_IsObject(parsed) ||
                !cJSON_ReplaceItemInObjectCaseSensitive(f, "arguments", parsed))
                cJSON_Delete(parsed);
        }
    }
}

/* Templates spell some control tokens with the role in them ("<|" + role + "|>"), so a role of this
 * list counts as the template's own text. */
static void own_roles(cJSON *messages)
{
    static const char *const roles[] = { "system",      "developer", "user",     "assistant",
                                         "tool",        "function",  "ipython",  "model",
                                         "observation", "context",   "documents" };
    cJSON *m;
    cJSON_ArrayForEach(m, messages)
    {
        cJSON *role = cJSON_GetObjectItemCaseSensitive(m, "role");
        for (size_t i = 0; cJSON_IsString(role) && i < LQ_COUNT(roles); i++)
            if (strcmp(role->valuestring, roles[i]) == 0) role->valueint = TMPL_OWN;
    }
}

/* A copy of `v` (or null) under `key`, replacing what is there. */
static bool chat_put(cJSON *o, const char *key, const cJSON *v)
{
    cJSON *copy = v ? cJSON_Duplicate(v, true) : cJSON_CreateNull();
    if (!copy) return false;
    cJSON_DeleteItemFromObjectCaseSensitive(o, key);
    if (cJSON_AddItemToObject(o, key, copy)) return true;
    cJSON_Delete(copy);
    return false;
}

/* ---- all of them ---- */

static bool reserved(const char *key)
{
    return strcmp(key, "messages") == 0 || strcmp(key, "tools") == 0 ||
           strcmp(key, "add_generation_prompt") == 0;
}

static cJSON *variables(const chat_format *c, const chat_request *r, const chat_roles *roles)
{
    const char *why;
    const chat_form *form = chat_set_form(c->set, r->tools != NULL, &why);
    const bool describe = r->tools && !form->shows_tools && form->args != FORM_NO_CALLS;
    cJSON *o = cJSON_CreateObject();
    bool ok = o && chat_put(o, "messages", r->messages) &&
              chat_put(o, "tools", describe ? NULL : r->tools) && chat_put(o, "documents", NULL);
    cJSON *messages = cJSON_GetObjectItemCaseSensitive(o, "messages");
    if (ok) ok = chat_roles_fit(messages, roles);
    if (ok && describe) ok = generic_messages(messages, r->tools, form, !roles->system);
    if (ok && !form->text_arguments) parse_arguments(messages);
    if (ok) own_roles(messages);
    for (const cJSON *e = r->kwargs ? r->kwargs->child : NULL; ok && e; e = e->next)
        ok = !e->string || reserved(e->string) || chat_put(o, e->string, e);
    for (const cJSON *e = chat_set_tokens(c->set)->child; ok && e; e = e->next)
        ok = cJSON_GetObjectItemCaseSensitive(o, e->string) || chat_put(o, e->string, e);
    ok = ok && cJSON_AddBoolToObject(o, "add_generation_prompt", r->add_generation_prompt);
    if (ok) return o;
    cJSON_Delete(o);
    return NULL;
}

/* ---- continuing the last message ---- */

/* As transformers does it: this goes behind the last message's text, and the prompt is cut there.
 * The space tells whether the template keeps the message's own trailing space. */
static const char cut_tag[] = "CONTINUE_FINAL_MESSAGE_TAG ";

/* The text of the last message, which may be its last part that has one; NULL: none. */
static cJSON *final_text(const cJSON *messages)
{
    const cJSON *last = cJSON_GetArrayItem(messages, cJSON_GetArraySize(messages) - 1);
    cJSON *content = cJSON_GetObjectItemCaseSensitive(last, "content"), *part, *text = NULL;
    if (cJSON_IsString(content)) return content;
    cJSON_ArrayForEach(part, content)
    {
        cJSON *t = cJSON_GetObjectItemCaseSensitive(part, "text");
        if (cJSON_IsString(t)) text = t;
    }
    return text;
}

static lq_status tag_final(cJSON *vars, lq_err *err)
{
    cJSON *text = final_text(cJSON_GetObjectItemCaseSensitive(vars, "messages"));
    if (!text)
        return lq_fail(err, LQ_EVALUE, "continue_final_message: the last message has no text");
    size_t n = strlen(text->valuestring);
    char *tagged = cJSON_malloc(n + sizeof cut_tag);
    if (!tagged) return lq_fail(err, LQ_ENOMEM, "chat template: out of memory");
    memcpy(tagged, text->valuestring, n);
    memcpy(tagged + n, cut_tag, sizeof cut_tag);
    cJSON_free(text->valuestring);
    text->valuestring = tagged;
    return LQ_OK;
}

static bool is_space(char ch) { return ch == ' ' || (ch >= '\t' && ch <= '\r'); }

/* The message as it came, without white space around it, is in the text. */
static bool shows(const char *text, size_t n, const char *s)
{
    while (is_space(*s))
        s++;
    size_t len = strlen(s);
    while (len > 0 && is_space(s[len - 1]))
        len--;
    return len == 0 || memmem(text, n, s, len) != NULL;
}

static lq_status cut_at_tag(char *text, size_t *n, const cJSON *messages, lq_err *err)
{
    const size_t whole = sizeof cut_tag - 1, bare = whole - 1;
    const cJSON *last = final_text(messages);
    for (size_t at = *n >= bare ? *n - bare + 1 : 0; at-- > 0;) {
        if (memcmp(text + at, cut_tag, bare) != 0) continue;
        bool kept = *n - at >= whole && text[at + bare] == ' ';
        while (!kept && at > 0 && is_space(text[at - 1]))
            at--;
        if (!shows(text, at, last->valuestring)) break;
        *n = at;
        text[at] = 0;
        return LQ_OK;
    }
    return lq_fail(err, LQ_EVALUE,
                   "continue_final_message: the template does not show the last message as it is");
}

/* What a developer says is in the text: a template may drop what it takes for system's. */
static lq_status check_developer(const cJSON *messages, const char *text, size_t n, lq_err *err)
{
    int i = 0;
    for (const cJSON *m = messages->child; m; m = m->next, i++) {
        const char *said = cJSON_GetStringValue(js_get(m, "content"));
        if (chat_has_role(m, "developer") && said && !shows(text, n, said))
            return lq_fail(err, LQ_EVALUE,
                           "messages[%d]: the chat template does not show a developer's message "
                           "there",
                           i);
    }
    return LQ_OK;
}

static lq_status render(const chat_format *c, const chat_request *r, char **text, uint8_t **own,
                        size_t *n, lq_err *err)
{
    const tmpl_template *t;
    *text = NULL;
    if (!cJSON_IsArray(r->messages) || !r->messages->child)
        return lq_fail(err, LQ_EVALUE, "messages: expected an array of at least one message");
    if (r->continue_final && r->add_generation_prompt)
        return lq_fail(err, LQ_EVALUE,
                       "continue_final_message: expected add_generation_prompt to be off");
    bool tools = cJSON_IsArray(r->tools) && r->tools->child;
    lq_status s = chat_set_pick(c->set, NULL, tools, &t, err);
    if (s) return s;
    cJSON *vars = variables(c, r, &c->roles[tools]);
    if (!vars) return lq_fail(err, LQ_ENOMEM, "chat template: out of memory");
    if (r->continue_final) s = tag_final(vars, err);
    if (!s) s = tmpl_render_own(t, vars, text, own, n, err);
    if (!s) s = check_developer(r->messages, *text, *n, err);
    if (!s && r->continue_final) s = cut_at_tag(*text, n, r->messages, err);
    cJSON_Delete(vars);
    if (s) {
        free(*text);
        if (own) free(*own);
        *text = NULL;
        if (own) *own = NULL;
    }
    return s;
}

lq_status chat_render(const chat_format *c, const chat_request *r, char **text, size_t *n,
                      lq_err *err)
{
    return render(c, r, text, NULL, n, err);
}

lq_status chat_encode(const chat_format *c, const chat_request *r, int32_t **ids, size_t *n,
                      lq_err *err)
{
    char *text = NULL;
    uint8_t *own = NULL;
    size_t n_text = 0;
    *ids = NULL;
    *n = 0;
    lq_status s = render(c, r, &text, &own, &n_text, err);
    if (!s && r->max_bytes && n_text > r->max_bytes)
        s = lq_fail(err, LQ_ESHAPE, "the conversation has %zu bytes, expected at most %zu", n_text,
                    r->max_bytes);
    if (!s) s = tok_encode_own(c->tok, text, own, n_text, ids, n, err);
    if (!s && !*n) s = lq_fail(err, LQ_EVALUE, "the chat template gives an empty prompt");
    if (s) {
        free(*ids);
        *ids = NULL;
    }
    free(own);
    free(text);
    return s;
}

/* ---- opening ---- */

/* The conversation is rendered otherwise where the variable has another value. */
static bool depends(const chat_format *c, const tmpl_template *t, const char *roles,
                    const char *name, const char *const values[2])
{
    char *text[3];
    for (int i = 0; i < 3; i++) {
        cJSON *kwargs = cJSON_CreateObject();
        if (i < 2) cJSON_AddItemToObject(kwargs, name, cJSON_Parse(values[i]));
        text[i] = kwargs ? chat_roles_render(t, chat_set_tokens(c->set), roles, kwargs) : NULL;
        cJSON_Delete(kwargs);
    }
    bool differ = false;
    for (int i = 0; i < 2; i++)
        differ |= text[i] && text[2] && strcmp(text[i], text[2]) != 0;
    for (int i = 0; i < 3; i++)
        free(text[i]);
    return differ;
}

static unsigned find_reads(const chat_format *c)
{
    static const struct {
        chat_variable bit;
        const char *name, *values[2];
    } rows[] = { { CHAT_EFFORT, "reasoning_effort", { "\"low\"", "\"high\"" } },
                 { CHAT_ENABLE_THINKING, "enable_thinking", { "false", "true" } },
                 { CHAT_THINKING, "thinking", { "false", "true" } } };
    const tmpl_template *t;
    unsigned reads = 0;
    lq_err unused;
    if (chat_set_pick(c->set, NULL, false, &t, &unused)) return 0;
    for (size_t i = 0; i < LQ_COUNT(rows); i++)
        if (depends(c, t, "user", rows[i].name, rows[i].values) ||
            depends(c, t, "system user", rows[i].name, rows[i].values))
            reads |= (unsigned)rows[i].bit;
    return reads;
}

lq_status chat_open(chat_format **out, const src_source *src, const tok_tokenizer *tok,
                    const chat_choice *choice, lq_err *err)
{
    *out = NULL;
    chat_format *c = calloc(1, sizeof *c);
    if (!c) return lq_fail(err, LQ_ENOMEM, "chat template: out of memory");
    c->tok = tok;
    const tmpl_template *t;
    lq_err unused;
    lq_status s = chat_set_open(&c->set, src, choice, err);
    /* A model none of whose templates can be used says so when it is loaded. */
    if (!s && chat_set_pick(c->set, NULL, true, &t, &unused))
        s = chat_set_pick(c->set, NULL, false, &t, err);
    if (s) {
        chat_close(c);
        return s;
    }
    for (int tools = 0; tools < 2; tools++)
        if (!chat_set_pick(c->set, NULL, tools, &t, &unused))
            c->roles[tools] = chat_roles_of(t, chat_set_tokens(c->set));
    c->reads = find_reads(c);
    if (tok) find_shown(c);
    *out = c;
    return LQ_OK;
}
