/* runtime/api/api_thinking.c - whether and how long a model thinks, as clients ask for it: `reasoning_effort`
 * (OpenAI), `reasoning` (OpenRouter), `enable_thinking` (Qwen), `thinking` (Zhipu, DeepSeek). All of
 * them become variables of the chat template, where it reads them (chat_reads). */
#include "runtime/api/api_int.h"
#include "runtime/api/api_params_other.h"

static lq_status read_effort(api_params *p, const char *name, const cJSON *v, api_error *e)
{
    static const char *const levels[] = {
        "none", "minimal", "low", "medium", "high", "xhigh", "max"
    };
    for (size_t i = 0; cJSON_IsString(v) && i < LQ_COUNT(levels); i++)
        if (strcmp(levels[i], v->valuestring) == 0) p->effort = v->valuestring;
    return p->effort ? LQ_OK
                     : api_wrong(e, name, "none, minimal, low, medium, high, xhigh or max", v);
}

static lq_status read_switch(api_params *p, const char *name, const cJSON *v, api_error *e)
{
    if (!cJSON_IsBool(v)) return api_wrong(e, name, "true or false", v);
    p->thinking = cJSON_IsTrue(v) ? API_THINK : API_THINK_NOT;
    return LQ_OK;
}

static lq_status read_budget(api_params *p, const char *name, const cJSON *v, api_error *e)
{
    return js_whole(v, 0, JS_MAX_INT, &p->thinking_budget)
               ? LQ_OK
               : api_wrong(e, name, "an integer from 0", v);
}

static lq_status read_exclude(api_params *p, const char *name, const cJSON *v, api_error *e)
{
    if (!cJSON_IsBool(v)) return api_wrong(e, name, "true or false", v);
    if (cJSON_IsTrue(v)) p->include_reasoning = false;
    return LQ_OK;
}

static lq_status read_type(api_params *p, const char *name, const cJSON *v, api_error *e)
{
    static const struct {
        const char *name;
        api_think what;
    } types[] = { { "enabled", API_THINK },
                  { "disabled", API_THINK_NOT },
                  { "auto", API_THINK_ANY },
                  { "adaptive", API_THINK_ANY } };
    for (size_t i = 0; cJSON_IsString(v) && i < LQ_COUNT(types); i++)
        if (strcmp(types[i].name, v->valuestring) == 0) {
            p->thinking = types[i].what;
            return LQ_OK;
        }
    return api_wrong(e, name, "enabled, disabled, auto or adaptive", v);
}

/* Members of `reasoning` and of `thinking`. read NULL: no influence. */
typedef struct {
    const char *name;
    lq_status (*read)(api_params *p, const char *name, const cJSON *v, api_error *e);
} member;

static lq_status read_members(api_params *p, const member *m, size_t n, const char *name,
                              const cJSON *v, api_error *e)
{
    lq_status s = LQ_OK;
    if (!cJSON_IsObject(v)) return api_wrong(e, name, "an object", v);
    for (const cJSON *c = v->child; c && !s; c = c->next) {
        size_t i = 0;
        while (i < n && strcmp(m[i].name, c->string) != 0)
            i++;
        if (i == n && !cJSON_IsNull(c))
            return api_fail(e, name, "unsupported_parameter", "%s.%.40s is not supported", name,
                            c->string);
        if (i < n && m[i].read && !cJSON_IsNull(c)) s = m[i].read(p, name, c, e);
    }
    return s;
}

lq_status api_read_thinking(api_params *p, const char *name, const cJSON *v, api_error *e)
{
    static const member reasoning[] = {
        { "effort", read_effort },   { "enabled", read_switch }, { "max_tokens", read_budget },
        { "exclude", read_exclude }, { "summary", NULL },        { "generate_summary", NULL }
    };
    static const member thinking[] = { { "type", read_type },
                                       { "budget_tokens", read_budget },
                                       { "clear_thinking", NULL } };
    if (strcmp(name, "reasoning_effort") == 0) return read_effort(p, name, v, e);
    if (strcmp(name, "enable_thinking") == 0) return read_switch(p, name, v, e);
    if (strcmp(name, "reasoning") == 0)
        return read_members(p, reasoning, LQ_COUNT(reasoning), name, v, e);
    if (cJSON_IsBool(v)) return read_switch(p, name, v, e);
    return read_members(p, thinking, LQ_COUNT(thinking), name, v, e);
}

/* A variable of the template that the request does not give itself. */
static bool put(cJSON *o, const char *name, cJSON *v)
{
    const bool there = cJSON_GetObjectItemCaseSensitive(o, name) != NULL;
    if (v && !there && cJSON_AddItemToObject(o, name, v)) return true;
    cJSON_Delete(v);
    return there;
}

static bool add_given(cJSON *o, const cJSON *given)
{
    bool ok = o != NULL;
    for (const cJSON *c = given ? given->child : NULL; c && ok; c = c->next)
        ok = put(o, c->string, cJSON_Duplicate(c, true));
    return ok;
}

lq_status api_thinking_variables(const api *a, api_params *p, api_error *e)
{
    const unsigned reads = a->m.reads;
    const bool off = p->effort && strcmp(p->effort, "none") == 0;
    const api_think think = p->thinking == API_THINK_ANY && off ? API_THINK_NOT : p->thinking;
    bool effort = p->effort && (reads & CHAT_EFFORT), heard = effort;
    if (!p->effort && think == API_THINK_ANY) return LQ_OK;
    cJSON *o = cJSON_CreateObject();
    bool ok = add_given(o, p->template_kwargs);
    if (ok && effort) ok = put(o, "reasoning_effort", cJSON_CreateString(p->effort));
    static const struct {
        chat_variable bit;
        const char *name;
    } switches[] = { { CHAT_ENABLE_THINKING, "enable_thinking" }, { CHAT_THINKING, "thinking" } };
    for (size_t i = 0; ok && think != API_THINK_ANY && i < LQ_COUNT(switches); i++) {
        if (!(reads & (unsigned)switches[i].bit)) continue;
        ok = put(o, switches[i].name, cJSON_CreateBool(think == API_THINK));
        heard = true;
    }
    if (!ok) {
        cJSON_Delete(o);
        return api_no_memory(e);
    }
    p->template_kwargs = p->made_kwargs = o;
    if (!heard) p->noted |= api_noted_bit(p->effort ? "reasoning_effort" : "enable_thinking");
    return LQ_OK;
}
