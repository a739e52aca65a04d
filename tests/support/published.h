/* tests/support/published.h - the published chat templates of tests/golden/templates. */
#ifndef LLMQ_TESTS_SUPPORT_PUBLISHED_H
#define LLMQ_TESTS_SUPPORT_PUBLISHED_H

#include "base/json.h"
#include "runtime/chat/tmpl.h"
#include "tests/support/check.h"

#include <stdlib.h>

/* All of a file, NUL-terminated, malloc'd; NULL. */
static inline char *published_file(const char *path)
{
    FILE *fp = fopen(path, "rb");
    char *text = fp ? calloc(1, 1 << 20) : NULL;
    if (text && fread(text, 1, (1 << 20) - 1, fp) == 0) text[0] = 0;
    if (fp) fclose(fp);
    return text;
}

/* look(NAME, template, tokens) for each, by name; false: tar cannot unpack them. */
static inline bool published_each(void (*look)(const char *name, const tmpl_template *t,
                                               const cJSON *tokens))
{
    char dir[] = "/tmp/llmq-templates-XXXXXX", command[256], name[128], path[256];
    if (!mkdtemp(dir)) return false;
    snprintf(command, sizeof command,
             "tar -xJf tests/golden/templates/published.tar.xz -C %s 2>/dev/null && ls %s", dir,
             dir);
    FILE *list = popen(command, "r");
    int n = 0;
    cJSON *tokens = cJSON_CreateObject();
    cJSON_AddStringToObject(tokens, "bos_token", "<BOS>");
    cJSON_AddStringToObject(tokens, "eos_token", "<EOS>");
    while (list && fgets(name, sizeof name, list)) {
        name[strcspn(name, "\n")] = 0;
        snprintf(path, sizeof path, "%s/%s", dir, name);
        char *text = published_file(path);
        tmpl_template *t = NULL;
        lq_err err = { "" };
        *strrchr(name, '.') = 0;
        CHECK(text && !tmpl_parse(&t, text, strlen(text), &err), "%s: %s", name, err.msg);
        if (t) look(name, t, tokens);
        tmpl_free(t);
        free(text);
        n++;
    }
    if (list) pclose(list);
    cJSON_Delete(tokens);
    snprintf(command, sizeof command, "rm -r %s", dir);
    return system(command) == 0 && n > 0;
}

#endif
