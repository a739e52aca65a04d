/* runtime/api/api_grammar.c - the parameters of structured output, of four dialects, as one gr_spec:
 *
 *     OpenAI     response_format: {"type": "text" | "json_object" | "json_schema", ...}
 *     vLLM       structured_outputs: {"json" | "regex" | "choice" | "grammar" | "json_object":
 * ...}, guided_json, guided_regex, guided_choice, guided_grammar, guided_whitespace_pattern
 *     llama.cpp  grammar, json_schema; response_format: {"type": "json_object", "schema": ...}
 *     SGLang     regex, ebnf
 *
 * and the tree of calls that a tool_choice demands (api_parts.c). One request
 * has one of them. Grammars are compiled before the request is queued and kept. */
#include "runtime/api/api_int.h"

#include <stdio.h>
#include <stdlib.h>

/* Takes text, which may be NULL for want of memory. */
static lq_status set(api_structured *s, const char *param, gr_kind kind, char *text, api_error *e)
{
    if (s->param) {
        free(text);
        return api_fail(e, param, "invalid_value",
                        "%s: %s is given too, and an answer has one structure only", param,
                        s->param);
    }
    if (!text) return api_no_memory(e);
    s->param = param;
    s->text = text;
    s->spec.kind = kind;
    s->spec.text = text;
    s->spec.n = strlen(text);
    return LQ_OK;
}

static lq_status set_string(api_structured *s, const char *param, gr_kind kind, const cJSON *v,
                            api_error *e)
{
    if (!cJSON_IsString(v)) return api_wrong(e, param, "a string", v);
    return set(s, param, kind, strdup(v->valuestring), e);
}

/* A schema or a list, as JSON or as a string of JSON: the order of members matters. */
static lq_status set_json(api_structured *s, const char *param, gr_kind kind, const cJSON *v,
                          api_error *e)
{
    if (cJSON_IsString(v)) return set(s, param, kind, strdup(v->valuestring), e);
    if (!v || (kind == GR_CHOICE ? !cJSON_IsArray(v) : !cJSON_IsObject(v) && !cJSON_IsBool(v)))
        return api_wrong(e, param, kind == GR_CHOICE ? "an array of strings" : "a JSON schema", v);
    return set(s, param, kind, js_print(v, false), e);
}

static lq_status response_format(api_structured *s, const char *param, const cJSON *v, api_error *e)
{
    const cJSON *type = js_get(v, "type"), *box = js_get(v, "json_schema");
    const char *t = cJSON_IsString(type) ? type->valuestring : "";
    if (strcmp(t, "text") == 0) return LQ_OK;
    if (strcmp(t, "json_object") == 0 && js_get(v, "schema"))
        return set_json(s, param, GR_SCHEMA, js_get(v, "schema"), e);
    if (strcmp(t, "json_object") == 0) return set(s, param, GR_JSON, strdup(""), e);
    if (strcmp(t, "json_schema") != 0)
        return api_wrong(e, param, "type text, json_object or json_schema", type ? type : v);
    if (box ? !js_get(box, "schema") : !js_get(v, "schema"))
        return api_fail(e, param, "invalid_value", "%s: json_schema has no schema", param);
    return set_json(s, param, GR_SCHEMA, js_get(box ? box : v, "schema"), e);
}

static lq_status structured_outputs(api_structured *s, const char *param, const cJSON *v,
                                    api_error *e)
{
    static const struct {
        const char *name;
        gr_kind kind;
    } kinds[] = { { "json", GR_SCHEMA },
                  { "regex", GR_REGEX },
                  { "choice", GR_CHOICE },
                  { "grammar", GR_GRAMMAR },
                  { "json_object", GR_JSON } };
    if (!cJSON_IsObject(v)) return api_wrong(e, param, "an object", v);
    lq_status st = LQ_OK;
    for (const cJSON *c = v->child; c && !st; c = c->next) {
        size_t k = 0;
        while (k < LQ_COUNT(kinds) && strcmp(kinds[k].name, c->string) != 0)
            k++;
        if (cJSON_IsNull(c) || (cJSON_IsFalse(c) && (k == LQ_COUNT(kinds) || k == 4))) continue;
        if (k < LQ_COUNT(kinds) && s->param)
            st = api_fail(e, param, "invalid_value", "%s: expected one kind of structure, found %s",
                          param, c->string);
        else if (k == 4)
            st = cJSON_IsTrue(c) ? set(s, param, GR_JSON, strdup(""), e)
                                 : api_wrong(e, param, "json_object true or false", c);
        else if (k == 0 || k == 2)
            st = set_json(s, param, kinds[k].kind, c, e);
        else if (k < LQ_COUNT(kinds))
            st = set_string(s, param, kinds[k].kind, c, e);
        else if (strcmp(c->string, "whitespace_pattern") == 0 && cJSON_IsString(c))
            s->spec.blanks = c->valuestring;
        else if (strcmp(c->string, "disable_any_whitespace") == 0 && cJSON_IsTrue(c))
            s->spec.compact = true;
        else if (strncmp(c->string, "disable_", 8) != 0 || !cJSON_IsTrue(c))
            st = api_fail(e, param, "unsupported_value", "%s: %.60s is not supported", param,
                          c->string);
    }
    return st;
}

lq_status api_read_structured(api_structured *s, const char *param, const cJSON *v, api_error *e)
{
    static const struct {
        const char *name;
        gr_kind kind;
    } plain[] = { { "guided_json", GR_SCHEMA },   { "json_schema", GR_SCHEMA },
                  { "guided_choice", GR_CHOICE }, { "guided_regex", GR_REGEX },
                  { "regex", GR_REGEX },          { "guided_grammar", GR_GRAMMAR },
                  { "grammar", GR_GRAMMAR },      { "ebnf", GR_GRAMMAR } };
    if (strcmp(param, "response_format") == 0) return response_format(s, param, v, e);
    if (strcmp(param, "structured_outputs") == 0) return structured_outputs(s, param, v, e);
    if (strcmp(param, "guided_whitespace_pattern") == 0) {
        if (!cJSON_IsString(v)) return api_wrong(e, param, "a string", v);
        s->spec.blanks = v->valuestring;
        return LQ_OK;
    }
    const bool empty = cJSON_IsString(v) && !v->valuestring[0];
    for (size_t i = 0; i < LQ_COUNT(plain); i++)
        if (strcmp(plain[i].name, param) == 0)
            return plain[i].kind == GR_GRAMMAR && empty ? LQ_OK /* a field that was left empty */
                   : plain[i].kind == GR_SCHEMA || plain[i].kind == GR_CHOICE
                       ? set_json(s, plain[i].name, plain[i].kind, v, e)
                       : set_string(s, plain[i].name, plain[i].kind, v, e);
    return api_fail(e, param, NULL, "%s: unknown", param);
}

/* What is wrong with the tree that gen_plan_calls (api_parts.c) made out of tools, told in the
 * request's own words: "#/anyOf/0/properties/arguments/..." is parameters of the first one. */
static lq_status wrong_tool(const char *why, api_error *e)
{
    static const char of[] = "#/anyOf/", in[] = "/properties/arguments";
    const char *at = strstr(why, of);
    char *end = NULL;
    long k = at ? strtol(at + strlen(of), &end, 10) : 0;
    if (!at || strncmp(end, in, strlen(in)) != 0)
        return api_fail(e, "tools", "invalid_value", "tools: %s", why);
    char param[sizeof e->param];
    snprintf(param, sizeof param, "tools[%ld].function.parameters", k);
    return api_fail(e, param, "invalid_value", "%s: %.*s#%s", param, (int)(at - why), why,
                    end + strlen(in));
}

lq_status api_grammar(api *a, grammar **g, const api_structured *s, api_error *e)
{
    *g = NULL;
    if (!s->param) return LQ_OK;
    if (!a->m.tok)
        return api_fail(e, s->param, "unsupported_value", "%s: the model has no tokenizer",
                        s->param);
    lq_err err = { "" };
    lq_status st = LQ_OK;
    pthread_mutex_lock(&a->mu);
    if (!a->grammars) st = gr_cache_open(&a->grammars, a->m.tok, a->m.vocab, GR_CACHE_MAX, &err);
    gr_cache *cache = a->grammars;
    pthread_mutex_unlock(&a->mu);
    gr_spec spec = s->spec;
    spec.strict = a->o.strict_schema;
    if (!st) st = gr_cache_get(cache, g, &spec, &err);
    if (st == LQ_ENOMEM) return api_no_memory(e);
    const bool calls = strcmp(s->param, "tool_choice") == 0 || strcmp(s->param, "tools") == 0 ||
                       strcmp(s->param, "function_call") == 0;
    if (st && calls) return wrong_tool(err.msg, e);
    return st ? api_fail(e, s->param, "invalid_value", "%s: %s", s->param, err.msg) : LQ_OK;
}
