/* tests/fuzz/fuzz_template.c - any bytes as a chat template, rendered with a short conversation:
 * refused or rendered within the limits, never a crash or a hang. */
#include "runtime/chat/tmpl.h"

#include <cjson/cJSON.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static const char vars_text[] =
        "{\"messages\":[{\"role\":\"system\",\"content\":\"Be brief.\"},"
        "{\"role\":\"user\",\"content\":\" Hi \"},{\"role\":\"assistant\",\"content\":null}],"
        "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{}}}],"
        "\"add_generation_prompt\":true,\"bos_token\":\"<s>\",\"eos_token\":\"</s>\",\"n\":3}";
    static cJSON *vars;
    if (!vars) vars = cJSON_Parse(vars_text);
    tmpl_template *t = NULL;
    char *out = NULL;
    size_t n_out = 0;
    if (!tmpl_parse(&t, (const char *)data, n, NULL)) {
        if (!tmpl_render(t, vars, &out, &n_out, NULL) && strlen(out) > n_out) abort();
        free(out);
        tmpl_free(t);
    }
    return 0;
}
