/* runtime/api/api_calls.c - what an answer may be, by the form of the chat template: calls that must come,
 * calls once one has begun, a structure behind a thought. */
#include "runtime/api/api_gen_int.h"

#include <stdio.h>
#include <stdlib.h>

#include "runtime/chat/chat_rules.h"

const chat_form *gen_form(const gen *g)
{
    return g->shape->kind != API_CHAT ? NULL : g->p.tools ? g->a->m.tool_form : g->a->m.form;
}

bool gen_ends_thinking(const gen *g, const api_prompt *p)
{
    enum { TAIL = 16 };
    const chat_form *f = gen_form(g);
    size_t k = p->n < TAIL ? p->n : TAIL, n = 0, m = f ? strlen(f->think_open) : 0;
    char *text = NULL;
    if (!m || !g->a->m.tok || tok_decode(g->a->m.tok, p->ids + p->n - k, k, false, &text, &n, NULL))
        return false;
    while (n && (text[n - 1] == '\n' || text[n - 1] == ' '))
        n--;
    bool yes = n >= m && memcmp(text + n - m, f->think_open, m) == 0;
    free(text);
    return yes;
}

/* A model that begins thoughts itself has a token for it. */
static bool begins_thoughts(const gen *g, const chat_form *f)
{
    int32_t *ids = NULL;
    size_t n = 0;
    lq_err err;
    bool one = f->think_open[0] && g->a->m.tok &&
               !tok_encode(g->a->m.tok, f->think_open, strlen(f->think_open), 0, &ids, &n, &err) &&
               n == 1;
    free(ids);
    return one;
}

/* Takes b over as the request's structure. */
static lq_status set_tree(api_structured *s, lq_buf *b, api_error *e)
{
    lq_buf_add(b, "", 1);
    if (b->oom) {
        lq_buf_free(b);
        return api_no_memory(e);
    }
    free(s->text);
    s->text = b->p;
    s->spec.kind = GR_TREE;
    s->spec.text = b->p;
    s->spec.n = b->n - 1;
    return LQ_OK;
}

/* The structure behind the thought. */
static void plan_structure(lq_buf *b, const api_structured *s)
{
    static const char *const texts[GR_N_KINDS] = {
        [GR_REGEX] = "regex", [GR_CHOICE] = "choice", [GR_GRAMMAR] = "grammar"
    };
    if (texts[s->spec.kind]) {
        lq_buf_printf(b, ", {\"%s\": ", texts[s->spec.kind]);
        js_put_str(b, s->spec.text);
        lq_buf_puts(b, "}");
        return;
    }
    lq_buf_puts(b, ", {\"schema\": ");
    if (s->spec.kind == GR_JSON)
        lq_buf_puts(b, "{\"type\": \"object\", \"additionalProperties\": true}");
    else
        lq_buf_add(b, s->spec.text, s->spec.n);
    lq_buf_puts(b, "}");
}

/* A function whose parameters must hold: it says so, or the server does. */
static bool is_strict(const gen *g, long tool)
{
    const cJSON *f = js_get(cJSON_GetArrayItem(g->p.tools, (int)tool), "function");
    return g->a->o.strict_schema || cJSON_IsTrue(js_get(f, "strict"));
}

/* An answer that may have calls, as a tree: calls alone, or (`structure`) calls or that, behind a thought. */
typedef struct {
    const chat_form *f;
    const api_structured *structure; /* NULL: none */
    bool thinks, thinking;
} free_calls;

static void put_thought(lq_buf *b, const chat_form *f, bool thinks, bool thinking)
{
    if (thinks)
        rules_thought(b, f, thinking);
    else
        lq_buf_puts(b, "[]");
}

static void put_tree(lq_buf *b, const gen *g, const free_calls *c, const bool *loose)
{
    const bool several = g->p.parallel_calls && (c->f->open[0] || c->structure);
    if (c->structure) {
        lq_buf_puts(b, "[");
        put_thought(b, c->f, c->thinks, c->thinking);
        lq_buf_puts(b, ", {\"any\": [");
    }
    rules_calls(b, c->f, g->p.tools, NULL, several, loose);
    if (!c->structure) return;
    plan_structure(b, c->structure);
    lq_buf_puts(b, "]}]");
}

/* Its grammar, and (text) the tree. A tool whose parameters cannot be honoured is refused where they
 * must be, as for a call that must come; else it takes any object, and the log says so. *to NULL: it is not the tools
 * that no grammar can be made of. */
static lq_status compile_calls(gen *g, const free_calls *c, grammar **to, char **text, api_error *e)
{
    bool loose[API_MAX_TOOLS] = { false };
    for (int tries = 0; tries <= API_MAX_TOOLS; tries++) {
        api_structured s = { .param = "tools" };
        lq_buf b = { 0 };
        if (c->structure) s.spec = c->structure->spec;
        put_tree(&b, g, c, loose);
        lq_status st = set_tree(&s, &b, e);
        if (!st) st = api_grammar(g->a, to, &s, e);
        if (!st && text)
            *text = s.text;
        else
            free(s.text);
        if (st != LQ_EVALUE && st != LQ_EUNSUPPORTED) return st;
        const char *at = strchr(e->param, '[');
        long i = at ? strtol(at + 1, NULL, 10) : -1;
        if (i < 0 || i >= API_MAX_TOOLS || loose[i]) return LQ_OK;
        if (is_strict(g, i)) return st;
        api_note_schema(g->a, e);
        loose[i] = true;
    }
    return LQ_OK;
}

/* Where the model may call functions, a response_format is that of the other answers. */
static lq_status plan_either(gen *g, const free_calls *c, api_error *e)
{
    api_structured *s = &g->p.structured;
    grammar *made = NULL; /* which is asked for again, and is in the cache */
    char *text = NULL;
    lq_status st = compile_calls(g, c, &made, &text, e);
    gr_unref(made);
    if (st || !made) return st;
    *e = (api_error){ 0 };
    free(s->text);
    s->text = text;
    s->spec.kind = GR_TREE;
    s->spec.text = text;
    s->spec.n = strlen(text);
    return LQ_OK;
}

/* The answer has a structure from its beginning, or from its thought on. */
static lq_status plan_whole(gen *g, const chat_form *f, api_error *e)
{
    api_structured *s = &g->p.structured;
    bool thinking = gen_ends_thinking(g, &g->prompts.v[0]);
    bool thinks = thinking || begins_thoughts(g, f);
    bool either = !g->p.must_call && g->p.tools && f->args != FORM_NO_CALLS && s->param &&
                  strcmp(s->param, "response_format") == 0;
    if (either) {
        const free_calls c = { f, s, thinks, thinking };
        lq_status st = plan_either(g, &c, e);
        if (st || s->spec.kind == GR_TREE) return st;
    }
    if (!g->p.must_call && !(s->param && thinks)) return LQ_OK;
    lq_buf b = { 0 };
    lq_buf_puts(&b, "[");
    put_thought(&b, f, thinks, thinking);
    if (g->p.must_call) {
        lq_buf_puts(&b, ", ");
        rules_calls(&b, f, g->p.tools, g->p.only_tool, false, NULL);
        s->param = g->p.functions ? "function_call" : "tool_choice";
    } else {
        plan_structure(&b, s);
    }
    lq_buf_puts(&b, "]");
    return set_tree(s, &b, e);
}

static lq_status plan_wakes(gen *g, const chat_form *f, api_error *e)
{
    int n = 0;
    form_mark begin;
    for (const cJSON *t = g->p.tools->child; t; t = t->next)
        n += RULES_WAKES + RULES_BARE;
    eng_wake *w = calloc((size_t)n, sizeof *w);
    char(*text)[RULES_WAKE] = calloc((size_t)n, sizeof *text);
    g->limits.wakes = w;
    g->limits.wake_text = text;
    if (!w || !text) return api_no_memory(e);
    n = 0;
    for (const cJSON *t = g->p.tools->child; t; t = t->next) {
        const char *name = cJSON_GetStringValue(js_get(js_get(t, "function"), "name"));
        int first = n;
        for (int i = 0, k = rules_wakes(text + n, f, name); i < k; i++, n++)
            w[n] = (eng_wake){ .text = text[n], .feed = text[first] };
        for (int i = 0, k = rules_bare_wakes(text + n, f, name); i < k; i++, n++)
            w[n] = (eng_wake){ .text = text[n], .feed = text[first], .begins = true };
    }
    g->limits.n_wakes = n;
    form_begin(begin, f, true);
    g->limits.wake_begin = f->think_close[0] ? f->think_close : NULL;
    g->limits.wake_after = begin[0] ? NULL : f->think_close;
    return LQ_OK;
}

/* The thought's budget, of a model that has thoughts. */
static lq_status plan_thought(gen *g, const chat_form *f, api_error *e)
{
    thought_limit *l = &g->limits.thought;
    int32_t *ids = NULL;
    size_t n = 0;
    lq_err err;
    l->budget = f && f->think_open[0] && g->a->m.tok ? g->p.thinking_budget : -1;
    if (l->budget < 0) return LQ_OK;
    if (g->p.beams)
        return api_fail(e, "thinking_token_budget", "unsupported_value",
                        "thinking_token_budget: not with use_beam_search");
    const size_t m = strlen(f->think_close);
    lq_status s = tok_encode(g->a->m.tok, f->think_close, m, 0, &ids, &n, &err);
    const bool fits =
        n && n <= THOUGHT_IDS && m < THOUGHT_MARK && strlen(f->think_open) < THOUGHT_MARK;
    if (!s && fits) {
        strcpy(l->open, f->think_open);
        strcpy(l->close, f->think_close);
        memcpy(l->ids, ids, n * sizeof *ids);
        l->n_ids = (int)n;
        l->begun = gen_ends_thinking(g, &g->prompts.v[0]);
    }
    free(ids);
    if (s == LQ_ENOMEM) return api_no_memory(e);
    return !s && fits ? LQ_OK
                      : api_fail(e, "thinking_token_budget", "unsupported_value",
                                 "thinking_token_budget: the mark that ends this model's thoughts "
                                 "cannot be written by it");
}

lq_status gen_plan_calls(gen *g, api_error *e)
{
    const chat_form *f = gen_form(g);
    lq_status s = plan_thought(g, f, e);
    if (s || !f) return s;
    s = plan_whole(g, f, e);
    if (s || g->p.structured.param || !g->p.tools || f->args == FORM_NO_CALLS || g->p.beams)
        return s;
    const free_calls c = { .f = f };
    s = compile_calls(g, &c, &g->limits.grammar, NULL, e);
    *e = s ? *e : (api_error){ 0 };
    return s || !g->limits.grammar ? s : plan_wakes(g, f, e);
}
