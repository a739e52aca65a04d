/* convert/gguf_modules.c - what sentence-transformers' files say of a model's vectors, in a GGUF file: how a
 * text's rows become one. */
#include "convert/gguf_meta.h"
#include "convert/report.h"

#include <stdio.h>

/* As llama.cpp numbers them. */
static const struct {
    const char *flag, *word;
    int type;
} modes[] = { { "pooling_mode_mean_tokens", "mean", 1 },
              { "pooling_mode_cls_token", "cls", 2 },
              { "pooling_mode_lasttoken", "lasttoken", 3 } };

static cJSON *read_blob(const src_source *src, const char *folder, const char *file)
{
    enum { MOST = 1 << 20 };
    char name[128];
    cJSON *j = NULL;
    snprintf(name, sizeof name, "%.80s%s%s", folder, *folder ? "." : "", file);
    const src_blob *b = src_find_blob(src, name);
    if (b && js_parse(&j, (const char *)b->data, b->bytes, MOST, 0, NULL)) return NULL;
    return j;
}

static int type_of(const cJSON *pooling)
{
    const char *word = cJSON_GetStringValue(js_get(pooling, "pooling_mode"));
    for (size_t i = 0; i < LQ_COUNT(modes); i++)
        if (word ? strcmp(word, modes[i].word) == 0 : cJSON_IsTrue(js_get(pooling, modes[i].flag)))
            return modes[i].type;
    return 0;
}

static bool is_module(const char *type, const char *what)
{
    const char *dot = strrchr(type, '.');
    return strcmp(dot ? dot + 1 : type, what) == 0;
}

void gguf_put_pooling(gguf_pairs *p, const gguf_arch *a, const src_source *src, conv_report *r)
{
    cJSON *modules = read_blob(src, "", "modules.json");
    char k[96];
    for (const cJSON *m = modules ? modules->child : NULL; m; m = m->next) {
        const char *type = cJSON_GetStringValue(js_get(m, "type"));
        const char *path = cJSON_GetStringValue(js_get(m, "path"));
        if (!type || !path) continue;
        if (is_module(type, "Dense"))
            conv_note(r, "%.60s is left out: vectors of the file are those before it", path);
        if (!is_module(type, "Pooling")) continue;
        cJSON *pooling = read_blob(src, path, "config.json");
        const int mode = type_of(pooling);
        cJSON_Delete(pooling);
        snprintf(k, sizeof k, "%s.pooling_type", a->gguf);
        if (mode)
            gguf_pair_int(p, k, mode);
        else
            conv_note(r, "%.60s: GGUF has no place for its pooling_mode, only for %s, %s and %s",
                      path, modes[0].word, modes[1].word, modes[2].word);
    }
    cJSON_Delete(modules);
}
