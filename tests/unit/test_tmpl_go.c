/* tests/unit/test_tmpl_go.c - Go's templates as Ollama's models have them: what they render, and refusals. Expected
 * texts are what Go 1.19's text/template printed for the same values. */
#include "base/json.h"
#include "runtime/chat/tmpl.h"
#include "runtime/chat/tmpl_go.h"
#include "tests/support/check.h"

#include <stdlib.h>

static const char values[] = "{\"System\": \"Be brief.\", \"Prompt\": \"Why?\", \"Empty\": [], "
                             "\"N\": 2, \"Words\": [\"x\", \"y\"], \"Messages\": ["
                             "{\"Role\": \"system\", \"Content\": \"S\"}, {\"Role\": \"user\", "
                             "\"Content\": \"U \\\"1\\\"\"},"
                             "{\"Role\": \"assistant\", \"Content\": \"A\\n\"}]}";

static lq_status render(char **out, const char *go, lq_err *err)
{
    lq_buf b = { 0 };
    tmpl_template *t = NULL;
    cJSON *vars = cJSON_Parse(values);
    size_t n = 0;
    *out = NULL;
    lq_status s = tmpl_from_go(&b, go, err);
    if (!s) s = tmpl_parse(&t, b.p ? b.p : "", b.n, err);
    if (!s) s = tmpl_render(t, vars, out, &n, err);
    tmpl_free(t);
    cJSON_Delete(vars);
    lq_buf_free(&b);
    return s;
}

TEST(templates_render_as_go_renders_them)
{
    static const struct {
        const char *why, *go, *want;
    } cases[] = {
        { "text alone", "plain \"text\" \\ {x}\n", "plain \"text\" \\ {x}\n" },
        { "ChatML, as Ollama's library has it",
          "{{ if .System }}<|im_start|>system\n{{ .System }}<|im_end|>\n{{ end }}{{ if .Prompt "
          "}}<|im_start|>user\n{{ .Prompt }}<|im_end|>\n{{ end }}<|im_start|>assistant\n",
          "<|im_start|>system\nBe "
          "brief.<|im_end|>\n<|im_start|>user\nWhy?<|im_end|>\n<|im_start|>assistant\n" },
        { "Llama 3",
          "{{ if .System }}<|start_header_id|>system<|end_header_id|>\n\n{{ .System }}<|eot_id|>{{ "
          "end }}{{ if .Prompt }}<|start_header_id|>user<|end_header_id|>\n\n{{ .Prompt "
          "}}<|eot_id|>{{ end }}<|start_header_id|>assistant<|end_header_id|>\n\n",
          "<|start_header_id|>system<|end_header_id|>\n\nBe "
          "brief.<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nWhy?<|eot_id|><|start_"
          "header_id|>assistant<|end_header_id|>\n\n" },
        { "messages",
          "{{- range $i, $m := .Messages }}\n{{- if eq $m.Role \"user\" }}U{{ $i }}: {{ $m.Content "
          "}}\n{{- else if eq .Role \"system\" }}[{{ .Content }}]{{ else }}A {{ .Content }}{{ end "
          "}}\n{{- end }}",
          "[S]U1: U \"1\"A A\n" },
        { "a field of the whole in a loop",
          "{{ range .Messages }}{{ $.Prompt }} {{ .Role }};{{ end }}",
          "Why? system;Why? user;Why? assistant;" },
        { "one name", "{{ range $m := .Messages }}{{ $m.Role }},{{ end }}",
          "system,user,assistant," },
        { "range else", "{{ range .Empty }}x{{ else }}none{{ end }}", "none" },
        { "blanks stay", "a \n {{ if .Prompt }} \n b \n {{ end }} \n c", "a \n  \n b \n  \n c" },
        { "blanks are cut", "a \n {{- if .Prompt -}} \n b \n {{- end -}} \n c", "abc" },
        { "and, or, not",
          "{{ if and .System .Prompt (not .Empty) }}yes{{ end }}{{ if or .Empty .Prompt }}or{{ end "
          "}}{{ if and .Empty .Prompt }}no{{ end }}",
          "yesor" },
        { "numbers",
          "{{ if gt (len .Messages) 2 }}many {{ len .Messages }}{{ end }}{{ if le .N 1 }}no{{ end "
          "}}{{ if and (ge .N 2) (lt .N 3) (ne .N 5) }} two{{ end }}",
          "many 3 two" },
        { "with", "{{ with .System }}({{ . }}){{ end }}{{ with .Empty }}x{{ else }}-{{ end }}",
          "(Be brief.)-" },
        { "comments", "a{{/* no */}}b{{- /* no */ -}} c", "abc" },
        { "texts", "{{ \"q\\\"\\n\" }}{{ `raw \\n` }}{{ if eq .Prompt `Why?` }}!{{ end }}",
          "q\"\nraw \\n!" },
        { "a dot in a loop", "{{ range .Words }}<{{ . }}>{{ end }}", "<x><y>" },
        { "nested loops",
          "{{ range $i, $a := .Words }}{{ range $j, $b := $.Words }}{{ $i }}{{ $j }}{{ $a }}{{ $b "
          "}} {{ end }}{{ $i }};{{ end }}",
          "00xx 01xy 0;10yx 11yy 1;" },
        { "an if in a with", "{{ with .System }}{{ if $.Prompt }}{{ . }}{{ end }}{{ end }}",
          "Be brief." },
        { "braces in a text", "{{ \"}}\" }}{{ \"{{\" }}", "}}{{" },
        { "last message",
          "{{ range $i, $m := .Messages }}{{ if eq (len $.Messages) 3 }}{{ $m.Role }} {{ end }}{{ "
          "end }}",
          "system user assistant " },
    };
    for (size_t i = 0; i < LQ_COUNT(cases); i++) {
        char *got;
        lq_err err = { "" };
        CHECK(!render(&got, cases[i].go, &err), "%s: %s", cases[i].why, err.msg);
        CHECK(got && strcmp(got, cases[i].want) == 0, "%s: expected '%s', found '%s'", cases[i].why,
              cases[i].want, got ? got : "");
        free(got);
    }
}

TEST(what_is_not_known_is_refused_by_its_words)
{
    static const struct {
        const char *go, *says;
    } cases[] = {
        { "a {{ .Prompt", "an action without its end" },
        { "{{ if .Prompt }}a", "a block without its end" },
        { "{{ end }}", "nothing to end" },
        { "{{ else }}", "nothing before it" },
        { "{{ printf \"%s\" .Prompt }}", "not supported: 'printf" },
        { "{{ .Prompt | json }}", "not supported: '| json" },
        { "{{ $x := 1 }}", "not supported" },
        { "{{ template \"a\" }}", "not supported: 'template" },
        { "{{ if }}a{{ end }}", "expected a value" },
        { "{{ eq .N }}", "expected two values" },
        { "{{ if (.N }}a{{ end }}", "expected )" },
        { "{{ .Prompt \"a }}", "an action without its end" },
    };
    for (size_t i = 0; i < LQ_COUNT(cases); i++) {
        char *got;
        lq_err err = { "" };
        CHECK(render(&got, cases[i].go, &err) == LQ_EVALUE && strstr(err.msg, cases[i].says),
              "%s: expected '%s', found '%s'", cases[i].go, cases[i].says, err.msg);
        free(got);
    }
}

int main(int argc, char **argv)
{
    RUN(templates_render_as_go_renders_them);
    RUN(what_is_not_known_is_refused_by_its_words);
    return check_end();
}
