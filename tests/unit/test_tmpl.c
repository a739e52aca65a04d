/* tests/unit/test_tmpl.c - chat templates against Jinja2's own renderings and refusals.
 * Golden data: tests/golden/make/templates.py (published templates' styles, through transformers),
 * tests/golden/make/templates_more.py (the language piece by piece). */
#include "base/file.h"
#include "runtime/chat/tmpl.h"
#include "tests/support/check.h"
#include "tests/support/jsonl.h"

#define DIR "tests/golden/templates/"

/* Render src with vars and compare with what the case says; *raised counts right refusals. */
static void check_case(const char *what, const char *src, size_t n_src, const cJSON *vars,
                       const cJSON *c, bool same_message)
{
    tmpl_template *t = NULL;
    char *got = NULL;
    size_t n_got = 0, n_want = 0;
    lq_err err = { "" };
    const cJSON *want = cJSON_GetObjectItem(c, "rendered");
    lq_status s = tmpl_parse(&t, src, n_src, &err);
    if (!s) s = tmpl_render(t, vars, &got, &n_got, &err);
    if (want) {
        char *w = jsonl_text(want, &n_want);
        CHECK(!s, "%s: %s", what, err.msg);
        CHECK(s || (n_got == n_want && !memcmp(got, w, n_want)), "%s\n  want '%s'\n   got '%s'",
              what, w, got);
        free(w);
    } else {
        const char *message = cJSON_GetStringValue(cJSON_GetObjectItem(c, "error_message"));
        CHECK(s != LQ_OK, "%s: rendered '%s' instead of: %s", what, got, message);
        CHECK(s == LQ_OK || err.msg[0], "%s: a refusal says why", what);
        if (same_message && s)
            CHECK(strcmp(err.msg, message) == 0, "%s: '%s' is not '%s'", what, err.msg, message);
    }
    free(got);
    tmpl_free(t);
}

TEST(published_styles_render_as_transformers_renders_them) /* T-34 */
{
    jsonl j;
    cJSON *c;
    int n = 0;
    if (!jsonl_open(&j, DIR "cases.jsonl")) {
        CHECK(false, "golden data");
        return;
    }
    for (; (c = jsonl_next(&j, JT_NUMBERS)); cJSON_Delete(c), n++) {
        static const char *const members[] = { "messages", "tools", "add_generation_prompt",
                                               "bos_token", "eos_token" };
        const char *name = cJSON_GetObjectItem(c, "template")->valuestring;
        char path[160], what[200], *src = NULL;
        size_t n_src = 0;
        snprintf(path, sizeof path, DIR "%s.jinja", name);
        snprintf(what, sizeof what, "%s, %s", name,
                 cJSON_GetObjectItem(c, "conversation")->valuestring);
        CHECK(!lq_read_file(&src, &n_src, path, 1 << 20, NULL), "%s", path);
        cJSON *vars = cJSON_CreateObject();
        for (size_t i = 0; i < LQ_COUNT(members); i++)
            cJSON_AddItemReferenceToObject(vars, members[i], cJSON_GetObjectItem(c, members[i]));
        for (cJSON *k = cJSON_GetObjectItem(c, "kwargs")->child; k; k = k->next)
            cJSON_AddItemReferenceToObject(vars, k->string, k);
        check_case(what, src, n_src, vars, c, true);
        cJSON_Delete(vars);
        free(src);
    }
    jsonl_close(&j);
    CHECK(n == 240, "%d cases", n);
}

TEST(the_language_renders_as_jinja_renders_it)
{
    jsonl j;
    cJSON *c, *all = cJSON_CreateArray(), *vars = NULL;
    if (!jsonl_open(&j, DIR "more.jsonl")) {
        CHECK(false, "golden data");
        return;
    }
    while ((c = jsonl_next(&j, JT_NUMBERS))) {
        cJSON_AddItemToArray(all, c);
        if (cJSON_HasObjectItem(c, "vars")) vars = cJSON_GetObjectItem(c, "vars");
    }
    CHECK(vars && cJSON_GetArraySize(all) > 700, "golden data");
    cJSON_ArrayForEach(c, all)
    {
        size_t n;
        if (!cJSON_HasObjectItem(c, "source")) continue;
        char *src = jsonl_text(cJSON_GetObjectItem(c, "source"), &n);
        check_case(src, src, n, vars, c, false);
        free(src);
    }
    cJSON_Delete(all);
    jsonl_close(&j);
}

TEST(a_hostile_template_meets_a_limit) /* T-64 */
{
    static const struct {
        const char *why, *src;
    } cases[] = {
        { "endless steps",
          "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}" },
        { "a huge text", "{% set ns = namespace(x='aaaaaaaa') %}{% for i in range(99) %}{% set "
                         "ns.x = ns.x ~ ns.x %}{% endfor %}" },
        { "a huge repetition", "{{ 'a' * 999999999999 }}" },
        { "a huge list", "{{ ([1] * 9999999999) | length }}" },
        { "endless recursion", "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}" },
        { "a value inside itself", "{% set ns = namespace(x=[]) %}{% for i in range(99999) %}{% "
                                   "set ns.x = [ns.x] %}{% endfor %}{{ ns.x }}" },
        { "a deep key", "{% set ns = namespace(x=()) %}{% for i in range(99999) %}{% set ns.x = "
                        "(ns.x,) %}{% endfor %}{{ {ns.x: 1} }}" },
        { "overflow", "{{ 9223372036854775807 + 1 }}" },
        { "overflow by power", "{{ 10 ** 99 }}" },
        { "overflow by negation", "{{ -(-9223372036854775807 - 1) }}" },
        { "a literal too large", "{{ 9223372036854775808 }}" },
        { "a wide format", "{{ '%999999999d' % 1 }}" },
        { "much output", "{% for i in range(99999) %}{{ '%100s' % i }}{{ '%100s' % i }}{{ '%100s' "
                         "% i }}{{ '%100s' % i }}{{ '%100s' % i }}{{ '%100s' % i }}{{ '%100s' % i "
                         "}}{{ '%100s' % i }}{% endfor %}" },
        { "include", "{% include '/etc/passwd' %}" },
        { "import", "{% import 'x' as y %}" },
        { "dunder", "{{ ''.__class__.__mro__ }}" },
        { "an argument list of no pairs", "{{ dict(*[1]) }}" },
        { "a loop inside itself without end",
          "{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}" },
        { "filters inside filters",
          "{% macro f(x) %}{{ [x] | map('string') | list }}{{ f([x]) }}{% endmacro %}{{ f(1) }}" },
        { "a wide field", "{{ '{:>999999999}'.format(1) }}" },
        { "a field in a field in a field", "{{ '{:{:{}}}'.format(1, 2, 3) }}" },
        { "a long list of arguments", "{{ range(*range(100000)) }}" },
        { "padding", "{{ 'a'.ljust(9999999999) }}" },
        { "tabs", "{{ '\\t'.expandtabs(99999999999) }}" },
        { "an indent", "{{ 'a\\nb' | indent(99999999999) }}" },
        { "a globals table", "{{ raise_exception.__globals__.x }}" },
        { "a method's self", "{{ 'x'.upper.__self__.x }}" },
        { "a generator's frame", "{{ ([1] | map('abs')).gi_frame.f_globals }}" },
        { "a format's attribute", "{{ '{0.__class__.__mro__}'.format('x') }}" },
        { "a filter's attribute", "{{ ('x' | attr('__class__')).x }}" },
        { "a changed list", "{{ [].append(1) }}" },
    };
    for (size_t i = 0; i < LQ_COUNT(cases); i++) {
        tmpl_template *t = NULL;
        char *out = NULL;
        size_t n = 0;
        lq_err err = { "" };
        cJSON *vars = cJSON_CreateObject();
        lq_status s = tmpl_parse(&t, cases[i].src, strlen(cases[i].src), &err);
        if (!s) s = tmpl_render(t, vars, &out, &n, &err);
        CHECK(s != LQ_OK && err.msg[0], "%s: %zu bytes", cases[i].why, n);
        free(out);
        tmpl_free(t);
        cJSON_Delete(vars);
    }
}

TEST(deep_source_is_refused_not_followed)
{
    static const char *const units[] = { "(", "[", "{", "not ", "-", "1 if ", "a.b(", "a[" };
    enum { TIMES = 20000 };
    char *src = malloc(TIMES * 8 + 16);
    for (size_t i = 0; i < LQ_COUNT(units); i++) {
        tmpl_template *t = NULL;
        lq_err err = { "" };
        char *w = src + sprintf(src, "{{ ");
        for (int k = 0; k < TIMES; k++)
            w += sprintf(w, "%s", units[i]);
        w += sprintf(w, " }}");
        CHECK(tmpl_parse(&t, src, (size_t)(w - src), &err) != LQ_OK && err.msg[0], "%s", units[i]);
        tmpl_free(t);
    }
    free(src);
}

TEST(a_damaged_template_is_refused_or_harmless)
{
    static const char *const names[] = { "think-namespace", "macro-json", "header-date-tools",
                                         "dates-and-numbers" };
    uint32_t rnd = 3;
    lq_err err;
    cJSON *vars = NULL;
    static const char json[] =
        "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"},{\"role\":\"assistant\","
        "\"content\":\"a\"}],\"bos_token\":\"<s>\",\"eos_token\":\"</s>\",\"tools\":null}";
    CHECK(!jt_parse(&vars, json, sizeof json - 1, 0, &err), "vars");
    for (size_t k = 0; k < LQ_COUNT(names); k++) {
        char path[128], *src = NULL;
        size_t n = 0;
        snprintf(path, sizeof path, DIR "%s.jinja", names[k]);
        CHECK(!lq_read_file(&src, &n, path, 1 << 20, NULL), "%s", path);
        for (int round = 0; round < 300; round++) {
            char *copy = malloc(n);
            memcpy(copy, src, n);
            for (int hit = 0; hit < 3; hit++) {
                rnd = rnd * 1664525u + 1013904223u;
                copy[(rnd >> 8) % n] = "{}%-'\"()[]|.,:= \n#i~"[(rnd >> 4) % 20];
            }
            size_t cut = round % 4 ? n : (rnd >> 8) % n;
            tmpl_template *t = NULL;
            char *out = NULL;
            size_t n_out;
            err.msg[0] = 0;
            lq_status s = tmpl_parse(&t, copy, cut, &err);
            if (!s) s = tmpl_render(t, vars, &out, &n_out, &err);
            CHECK(!s || err.msg[0], "a refusal says why");
            free(out);
            tmpl_free(t);
            free(copy);
        }
        free(src);
    }
    cJSON_Delete(vars);
}

TEST(json_keeps_nul_and_the_spelling_of_numbers)
{
    cJSON *o = NULL;
    lq_err err;
    static const char json[] =
        "{\"a\\u0000\": [1.0, 2, 9007199254740993], \"b\": \"x\\u0000\\\\u0000-1\"}";
    CHECK(!jt_parse(&o, json, sizeof json - 1, JT_NUMBERS, &err), "%s", err.msg);
    size_t n;
    char *b = jsonl_text(cJSON_GetObjectItem(o, "b"), &n);
    CHECK(n == 10 && memcmp(b, "x\0\\u0000-1", n) == 0, "%zu bytes", n);
    const cJSON *list = o->child;
    CHECK(strcmp(cJSON_GetArrayItem(list, 0)->valuestring, "1.0") == 0, "a float");
    CHECK(strcmp(cJSON_GetArrayItem(list, 2)->valuestring, "9007199254740993") == 0,
          "a long integer");
    free(b);
    cJSON_Delete(o);
    static const char *const bad[] = { "", "{", "[1", "\"\xFF\"", "\"\\ud800\"", "{} x", "nul" };
    for (size_t i = 0; i < LQ_COUNT(bad); i++)
        CHECK(jt_parse(&o, bad[i], strlen(bad[i]), 0, &err) == LQ_EFORMAT, "'%s'", bad[i]);
    char deep[400];
    memset(deep, '[', sizeof deep);
    CHECK(jt_parse(&o, deep, sizeof deep, 0, &err) == LQ_EFORMAT, "deep");
}

int main(int argc, char **argv)
{
    RUN(published_styles_render_as_transformers_renders_them);
    RUN(the_language_renders_as_jinja_renders_it);
    RUN(a_hostile_template_meets_a_limit);
    RUN(deep_source_is_refused_not_followed);
    RUN(a_damaged_template_is_refused_or_harmless);
    RUN(json_keeps_nul_and_the_spelling_of_numbers);
    return check_end();
}
