/* runtime/grammar/grammar_json.c - JSON texts as rules: strings, numbers, blanks, any value; choices.
 *
 * What is generated is a part of JSON: numbers have at most 18 digits before and 17 behind the
 * point and an exponent of two digits, so that they are finite wherever they are read; \u spells
 * whole code points only. Blanks (unless spec->compact or spec->blanks says otherwise) may stand
 * behind { [ , : and before } ]: one space, or a line feed with up to 40 spaces, so that an answer
 * cannot lose itself in white space. Source: RFC 8259. */
#include "base/json.h"
#include "runtime/grammar/grammar_int.h"

static uint32_t rule_of(ga_builder *b, const char *name, ga_node *body)
{
    uint32_t r = ga_new_rule(b, name);
    if (!b->status) b->rules[r].body = body;
    return r;
}

static uint32_t regex_rule(ga_builder *b, const char *name, const char *regex)
{
    return rule_of(b, name, gr_regex(b, regex, strlen(regex), false, false, name));
}

/* NULL: none are allowed. */
static ga_node *blanks(gj_rules *j)
{
    return j->blanks == GR_NONE ? NULL : ga_ref(j->b, j->blanks);
}

/* "," or ":" and blanks. */
static uint32_t mark_rule(gj_rules *j, const char *name, const char *mark)
{
    ga_node *t = ga_seq(j->b);
    ga_add(t, ga_text(j->b, mark));
    ga_add(t, blanks(j));
    return rule_of(j->b, name, t);
}

void gj_open(gj_rules *j, ga_builder *b, const gr_spec *spec)
{
    *j = (gj_rules){ .b = b };
    j->blanks = j->value = j->object = j->array = j->string = j->number = j->integer = j->any_char =
        GR_NONE;
    if (spec->blanks)
        j->blanks = rule_of(
            b, "whitespace_pattern",
            gr_regex(b, spec->blanks, strlen(spec->blanks), false, false, "whitespace_pattern"));
    else if (!spec->compact)
        j->blanks = regex_rule(b, "blanks", "( |\\n {0,40})?");
    j->sep = mark_rule(j, "comma", ",");
    j->colon = mark_rule(j, "colon", ":");
}

ga_node *gj_wrap(gj_rules *j, const char *head, ga_node *what, const char *tail)
{
    ga_node *t = ga_seq(j->b);
    ga_add(t, ga_text(j->b, head));
    ga_add(t, blanks(j));
    ga_add(t, what);
    if (what) ga_add(t, blanks(j));
    ga_add(t, ga_text(j->b, tail));
    return t;
}

ga_node *gj_member(gj_rules *j, ga_node *key, ga_node *value)
{
    ga_node *t = ga_seq(j->b);
    ga_add(t, key);
    ga_add(t, ga_ref(j->b, j->colon));
    ga_add(t, value);
    return t;
}

/* ---- strings ---- */

ga_node *gj_any_char(gj_rules *j)
{
    if (j->any_char == GR_NONE)
        j->any_char = regex_rule(j->b, "character",
                                 "[^\"\\\\\\x00-\\x1f]|\\\\[\"\\\\/bfnrt]"
                                 "|\\\\u(?:[0-9abcefABCEF][0-9a-fA-F]{3}|[dD][0-7][0-9a-fA-F]{2}"
                                 "|[dD][89abAB][0-9a-fA-F]{2}\\\\u[dD][c-fC-F][0-9a-fA-F]{2})");
    return ga_ref(j->b, j->any_char);
}

ga_node *gj_string(gj_rules *j)
{
    if (j->string == GR_NONE) {
        ga_node *t = ga_seq(j->b);
        ga_add(t, ga_text(j->b, "\""));
        ga_add(t, ga_repeat(j->b, gj_any_char(j), 0, -1));
        ga_add(t, ga_text(j->b, "\""));
        j->string = rule_of(j->b, "string", t);
    }
    return ga_ref(j->b, j->string);
}

/* ---- other values ---- */

ga_node *gj_number(gj_rules *j)
{
    if (j->number == GR_NONE)
        j->number = regex_rule(j->b, "number",
                               "-?(0|[1-9][0-9]{0,17})(\\.[0-9]{1,17})?([eE][+-]?[0-9]{1,2})?");
    return ga_ref(j->b, j->number);
}

ga_node *gj_integer(gj_rules *j)
{
    if (j->integer == GR_NONE) j->integer = regex_rule(j->b, "integer", "-?(0|[1-9][0-9]{0,17})");
    return ga_ref(j->b, j->integer);
}

/* item (sep item)*, or nothing; item is a rule. */
static ga_node *list_of(gj_rules *j, uint32_t item)
{
    ga_node *t = ga_seq(j->b), *more = ga_seq(j->b);
    ga_add(more, ga_ref(j->b, j->sep));
    ga_add(more, ga_ref(j->b, item));
    ga_add(t, ga_ref(j->b, item));
    ga_add(t, ga_repeat(j->b, more, 0, -1));
    ga_add(t, blanks(j));
    return ga_optional(j->b, t);
}

static ga_node *wrap_list(gj_rules *j, const char *head, uint32_t item, const char *tail)
{
    ga_node *t = ga_seq(j->b);
    ga_add(t, ga_text(j->b, head));
    ga_add(t, blanks(j));
    ga_add(t, list_of(j, item));
    ga_add(t, ga_text(j->b, tail));
    return t;
}

static ga_node *object_rule(gj_rules *j)
{
    if (j->object == GR_NONE) {
        j->object = ga_new_rule(j->b, "object");
        uint32_t member = rule_of(j->b, "member", gj_member(j, gj_string(j), gj_value(j)));
        ga_node *t = wrap_list(j, "{", member, "}");
        if (!j->b->status) j->b->rules[j->object].body = t;
    }
    return ga_ref(j->b, j->object);
}

static ga_node *array_rule(gj_rules *j)
{
    if (j->array == GR_NONE) {
        j->array = ga_new_rule(j->b, "array");
        ga_node *value = gj_value(j);
        ga_node *t = value ? wrap_list(j, "[", value->rule, "]") : NULL;
        if (!j->b->status) j->b->rules[j->array].body = t;
    }
    return ga_ref(j->b, j->array);
}

ga_node *gj_value(gj_rules *j)
{
    if (j->value == GR_NONE) {
        j->value = ga_new_rule(j->b, "value");
        ga_node *t = ga_alt(j->b);
        ga_add(t, gj_string(j));
        ga_add(t, gj_number(j));
        ga_add(t, ga_text(j->b, "true"));
        ga_add(t, ga_text(j->b, "false"));
        ga_add(t, ga_text(j->b, "null"));
        ga_add(t, object_rule(j));
        ga_add(t, array_rule(j));
        if (!j->b->status) j->b->rules[j->value].body = t;
    }
    return ga_ref(j->b, j->value);
}

/* ---- front ends ---- */

void gr_parse_json(ga_builder *b, const gr_spec *spec)
{
    gj_rules j;
    uint32_t root = ga_new_rule(b, "json");
    gj_open(&j, b, spec);
    ga_node *t = object_rule(&j);
    if (!b->status) b->rules[root].body = t;
}

uint32_t gr_parse_choice(ga_builder *b, const char *text, size_t n)
{
    cJSON *list = NULL;
    uint32_t root = ga_new_rule(b, "choice");
    lq_err why = { "" };
    if (js_parse(&list, text, n, GR_MAX_TEXT, 0, &why))
        ga_fail(b, LQ_EVALUE, "choice: %s", why.msg);
    ga_node *alt = ga_alt(b);
    bool ok = cJSON_IsArray(list) && list->child;
    for (const cJSON *c = ok ? list->child : NULL; c && ok; c = c->next) {
        ok = cJSON_IsString(c) && c->valuestring[0];
        if (ok) ga_add(alt, ga_text(b, c->valuestring));
    }
    if (!ok) ga_fail(b, LQ_EVALUE, "choice: expected a list of strings that are not empty");
    cJSON_Delete(list);
    if (!b->status) b->rules[root].body = alt;
    return root;
}
