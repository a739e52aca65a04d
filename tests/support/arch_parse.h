/* tests/support/arch_parse.h - an arch_config of the text of a config.json. */
#ifndef LLMQ_TESTS_SUPPORT_ARCH_PARSE_H
#define LLMQ_TESTS_SUPPORT_ARCH_PARSE_H

#include "base/json.h"
#include "formats/arch/arch.h"
#include "tests/support/check.h"

static inline cJSON *arch_tree(const char *text)
{
    cJSON *j = NULL;
    lq_err err = { "" };
    lq_status s = js_parse(&j, text, strlen(text), 1 << 20, JS_UNIQUE, &err);
    CHECK(!s, "%s: %s", text, err.msg);
    return j;
}

static inline lq_status arch_parse(arch_config *c, const char *config, const char *generation,
                                   lq_err *err)
{
    cJSON *j = arch_tree(config), *g = generation ? arch_tree(generation) : NULL;
    lq_status s = arch_config_parse(c, j, g, err);
    cJSON_Delete(j);
    cJSON_Delete(g);
    return s;
}

static inline bool near_to(double a, double b) { return fabs(a - b) <= 1e-12 * fabs(b); }

#endif
