/* runtime/tokenizer/tok_json.c - members of tokenizer.json, as all stages read them. */
#include "runtime/tokenizer/tok_int.h"

const char *tok_json_str(const cJSON *o, const char *key)
{
    return cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(o, key));
}

bool tok_json_bool(const cJSON *o, const char *key, bool otherwise)
{
    const cJSON *v = cJSON_GetObjectItemCaseSensitive(o, key);
    return cJSON_IsBool(v) ? cJSON_IsTrue(v) : otherwise;
}

lq_status tok_json_choice(const cJSON *o, const char *key, const char *const *names, size_t n,
                          uint32_t *out, lq_err *err)
{
    const char *v = tok_json_str(o, key);
    *out = 0;
    if (!v) return LQ_OK;
    for (size_t i = 0; i < n; i++)
        if (strcmp(v, names[i]) == 0) return *out = (uint32_t)i, LQ_OK;
    return lq_fail(err, LQ_EUNSUPPORTED, "tokenizer.json: %s '%.60s' is not supported", key, v);
}

lq_status tok_put_pattern(tok_builder *b, const cJSON *pattern, tok_op *op, lq_err *err)
{
    const char *s = cJSON_GetStringValue(pattern);
    const char *regex = tok_json_str(pattern, "Regex");
    if (!s) s = tok_json_str(pattern, "String");
    if (!s && !regex)
        return lq_fail(err, LQ_EFORMAT, "tokenizer.json: pattern: expected a String or a Regex");
    op->arg[0] = regex != NULL;
    op->s[0] = tok_put_text(b, regex ? regex : s);
    return LQ_OK;
}
