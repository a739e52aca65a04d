/* tests/fuzz/fuzz_template.c - any bytes as a chat template, Jinja's and Go's, rendered with a short
 * conversation: refused or rendered within the limits, never a crash or a hang. */
#include "runtime/chat/tmpl.h"
#include "runtime/chat/tmpl_go.h"

#include <cjson/cJSON.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void render(const char *text, size_t n, const cJSON *vars)
{
    tmpl_template *t = NULL;
    char *out = NULL;
    size_t n_out = 0;
    if (tmpl_parse(&t, text, n, NULL)) return;
    if (!tmpl_render(t, vars, &out, &n_out, NULL) && strlen(out) > n_out) abort();
    free(out);
    tmpl_free(t);
}

/* What is taken for Go's is Jinja or refused by who parses that. */
static void render_go(const char *text, const cJSON *vars)
{
    lq_buf jinja = { 0 };
    lq_err err = { "" };
    const lq_status s = tmpl_from_go(&jinja, text, &err);
    if (s && !err.msg[0]) abort();
    if (!s) render(jinja.p ? jinja.p : "", jinja.n, vars);
    lq_buf_free(&jinja);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static const char vars_text[] =
        "{\"messages\":[{\"role\":\"system\",\"content\":\"Be brief.\"},"
        "{\"role\":\"user\",\"content\":\" Hi \"},{\"role\":\"assistant\",\"content\":null}],"
        "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{}}}],"
        "\"add_generation_prompt\":true,\"bos_token\":\"<s>\",\"eos_token\":\"</"
        "s>\",\"n\":3,\"System\":\"S\",\"Prompt\":\"P\",\"Messages\":"
        "[{\"Role\":\"user\",\"Content\":\"C\"}]}";
    static cJSON *vars;
    if (!vars) vars = cJSON_Parse(vars_text);
    render((const char *)data, n, vars);
    char *text = malloc(n + 1);
    if (!text) return 0;
    memcpy(text, data, n);
    text[n] = 0;
    render_go(text, vars);
    free(text);
    return 0;
}
