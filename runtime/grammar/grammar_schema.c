/* runtime/grammar/grammar_schema.c - JSON schema as rules.
 *
 * Each schema that can be met is one rule; references lead to the rule of what they point at, so a
 * recursive schema is a recursive grammar. What is generated is always valid, and not all that is
 * valid is generated: members come in the order of `properties`, and where `additionalProperties`
 * is not given, no others (spec->any_properties: any others). Keywords that say something about
 * validity and cannot be honoured are refused with their place; unknown ones are annotations, as the
 * standard has it, or refused too (spec->strict). Source: JSON schema 2020-12, with `definitions`, `nullable` and
 * tuples in `items` of earlier drafts. */
#include "runtime/grammar/grammar_schema.h"

#include <stdio.h>
#include <stdlib.h>

static ga_node *by_types(gs_ctx *c, const cJSON *schema, const char *at)
{
    int types = gs_types(c, schema, at);
    if (types == 0) return gj_value(&c->j);
    ga_node *alt = ga_alt(c->b);
    if (types & GS_OBJ) ga_add(alt, gs_object(c, schema, at));
    if (types & GS_ARR) ga_add(alt, gs_array(c, schema, at));
    if (types & GS_STR) ga_add(alt, gs_string(c, schema, at));
    if (types & GS_NUM) ga_add(alt, gs_number(c, schema, at, false));
    if ((types & GS_INT) && !(types & GS_NUM)) ga_add(alt, gs_number(c, schema, at, true));
    if (types & GS_BOOL) {
        ga_add(alt, ga_text(c->b, "true"));
        ga_add(alt, ga_text(c->b, "false"));
    }
    if (types & GS_NULL) ga_add(alt, ga_text(c->b, "null"));
    return alt;
}

static bool asserts(const cJSON *schema, const char *except)
{
    for (const cJSON *k = schema->child; k; k = k->next)
        if (strcmp(k->string, except) != 0 && !gs_is_annotation(k->string)) return true;
    return false;
}

/* $ref: the rule it leads to, or what it and its neighbours allow together. */
static ga_node *reference(gs_ctx *c, const cJSON *schema, const cJSON *ref, const char *at)
{
    const char *to = "";
    if (!cJSON_IsString(ref)) gs_fail(c, LQ_EVALUE, at, "$ref", "expected a string");
    if (c->b->status) return NULL;
    const cJSON *target = gs_resolve(c, ref->valuestring, at, &to);
    const cJSON *end = target;
    for (int n = 0; end && cJSON_IsString(js_get(end, "$ref")) && !asserts(end, "$ref"); n++) {
        const char *there;
        if (n == 64) gs_fail(c, LQ_EVALUE, at, "$ref", "it does not end");
        end = c->b->status ? NULL : gs_resolve(c, js_get(end, "$ref")->valuestring, at, &there);
    }
    if (!target || c->b->status) return NULL;
    if (!asserts(schema, "$ref")) return ga_ref(c->b, gs_rule(c, target, to));
    const cJSON *rest = gs_without(c, schema, "$ref", at);
    const cJSON *both = rest ? gs_merge(c, rest, target, at) : NULL;
    return both ? ga_ref(c->b, gs_rule(c, both, at)) : NULL;
}

static ga_node *all_of(gs_ctx *c, const cJSON *schema, const cJSON *parts, const char *at)
{
    const cJSON *all = gs_without(c, schema, "allOf", at);
    if (!cJSON_IsArray(parts) || !parts->child)
        gs_fail(c, LQ_EVALUE, at, "allOf", "expected an array of at least one schema");
    for (const cJSON *p = parts ? parts->child : NULL; p && all && !c->b->status; p = p->next)
        all = gs_merge(c, all, p, at);
    return all && !c->b->status ? ga_ref(c->b, gs_rule(c, all, at)) : NULL;
}

static ga_node *one_of_several(gs_ctx *c, const cJSON *schema, const cJSON *parts, const char *key,
                               const char *at)
{
    ga_node *alt = ga_alt(c->b);
    const char *here = gs_at(c, at, key);
    const cJSON *rest = asserts(schema, key) ? gs_without(c, schema, key, at) : NULL;
    int n = 0;
    if (!cJSON_IsArray(parts) || !parts->child)
        gs_fail(c, LQ_EVALUE, at, key, "expected an array of at least one schema");
    if (c->b->status) return NULL;
    for (const cJSON *p = parts->child; p && !c->b->status; p = p->next, n++) {
        char index[16];
        snprintf(index, sizeof index, "%d", n);
        if (n > 1000) gs_fail(c, LQ_EVALUE, at, key, "expected at most 1000 schemas");
        if (strcmp(key, "oneOf") == 0)
            for (const cJSON *q = parts->child; q != p && !c->b->status; q = q->next)
                if (!gs_disjoint(c, q, p, at, 0))
                    gs_fail(c, LQ_EUNSUPPORTED, here, index,
                            "may allow the same value as another of oneOf, which cannot be "
                            "excluded; say anyOf");
        const cJSON *one = rest ? gs_merge(c, rest, p, at) : p;
        if (one) ga_add(alt, ga_ref(c->b, gs_rule(c, one, gs_at(c, here, index))));
    }
    return alt;
}

static ga_node *body_of(gs_ctx *c, const cJSON *schema, const char *at)
{
    if (cJSON_IsTrue(schema)) return gj_value(&c->j);
    if (gs_is_nothing(schema)) return ga_alt(c->b);
    if (!cJSON_IsObject(schema)) {
        char found[64];
        gs_fail(c, LQ_EVALUE, at, NULL, "expected a schema, found %s", js_describe(found, schema));
        return NULL;
    }
    for (const cJSON *k = schema->child; k; k = k->next) {
        const gs_keyword what = gs_keyword_of(k->string);
        if (what == GS_KEY_REFUSED)
            gs_fail(c, LQ_EUNSUPPORTED, at, k->string, "this keyword cannot be honoured");
        if (what == GS_KEY_UNKNOWN && c->strict)
            gs_fail(c, LQ_EUNSUPPORTED, at, k->string, "this keyword is not known");
    }
    if (c->b->status) return NULL;
    const cJSON *v;
    if ((v = js_get(schema, "$ref"))) return reference(c, schema, v, at);
    if ((v = js_get(schema, "allOf"))) return all_of(c, schema, v, at);
    if ((v = js_get(schema, "anyOf"))) return one_of_several(c, schema, v, "anyOf", at);
    if ((v = js_get(schema, "oneOf"))) return one_of_several(c, schema, v, "oneOf", at);
    if ((v = cJSON_GetObjectItemCaseSensitive(schema, "const")))
        return gs_values(c, schema, v, "const", at);
    if ((v = js_get(schema, "enum"))) return gs_values(c, schema, v, "enum", at);
    return by_types(c, schema, at);
}

void gs_open(gs_ctx *c, ga_builder *b, const gr_spec *spec, cJSON **tree)
{
    lq_err why = { "" };
    *c = (gs_ctx){ .b = b, .any_properties = spec->any_properties, .strict = spec->strict };
    if (js_parse(tree, spec->text, spec->n, GR_MAX_TEXT, JS_UNIQUE, &why))
        ga_fail(b, LQ_EVALUE, "json schema: %s", why.msg);
    c->root = *tree;
    c->made = cJSON_CreateArray();
    if (!c->made) ga_fail(b, LQ_ENOMEM, "grammar: out of memory");
}

void gs_close(gs_ctx *c, cJSON *tree)
{
    while (!c->b->status && c->n_done < c->n_tasks) {
        gs_task t = c->tasks[c->n_done++];
        c->root = t.root;
        ga_node *body = body_of(c, t.schema, t.at);
        if (!c->b->status) c->b->rules[t.rule].body = body;
    }
    free(c->tasks);
    free(c->slots);
    cJSON_Delete(c->made);
    cJSON_Delete(tree);
}

void gr_parse_schema(ga_builder *b, const gr_spec *spec)
{
    cJSON *root = NULL;
    gs_ctx c;
    gs_open(&c, b, spec, &root);
    if (!b->status) gs_rule(&c, root, ""); /* rule 0 */
    if (!b->status) gj_open(&c.j, b, spec);
    gs_close(&c, root);
}
