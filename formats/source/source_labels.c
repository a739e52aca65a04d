/* formats/source/source_labels.c - what a classifier's labels are called, and whether they exclude each other. */
#include "base/json.h"
#include "formats/source/source_impl.h"

#include <stdio.h>

static src_label_kind kind_named(const char *name, int64_t labels)
{
    if (name && strcmp(name, "multi_label_classification") == 0) return SRC_LABELS_EACH;
    if (name && strcmp(name, "regression") == 0) return SRC_LABELS_NUMBER;
    return labels == 1 ? SRC_LABELS_EACH : SRC_LABELS_ONE_OF;
}

/* As id2label has them, or as transformers calls those that it has not. */
static cJSON *names_of(const cJSON *config, int64_t n)
{
    const cJSON *names = js_get(config, "id2label");
    cJSON *list = cJSON_CreateArray();
    for (int64_t i = 0; i < n; i++) {
        char key[32], usual[40];
        snprintf(key, sizeof key, "%lld", (long long)i);
        snprintf(usual, sizeof usual, "LABEL_%s", key);
        const char *name = cJSON_GetStringValue(js_get(names, key));
        cJSON_AddItemToArray(list, cJSON_CreateString(name ? name : usual));
    }
    return list;
}

cJSON *src_labels(const src_source *s, src_label_kind *kind)
{
    s = src_base(s);
    const int64_t n = s->config.labels;
    const src_blob *b = src_find_blob(s, "config.json");
    cJSON *config = NULL;
    char twice[64];
    if (b) js_parse_python(&config, twice, (const char *)b->data, b->bytes, b->bytes, NULL);
    *kind = kind_named(cJSON_GetStringValue(js_get(config, "problem_type")), n);
    cJSON *list = names_of(config, n);
    cJSON_Delete(config);
    if (list && cJSON_GetArraySize(list) == n) return list;
    cJSON_Delete(list);
    return NULL;
}
