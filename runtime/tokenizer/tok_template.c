/* runtime/tokenizer/tok_template.c - BOS and EOS of tokenizer_config.json as a template. */
#include "runtime/tokenizer/tok_int.h"

/* {kind: {"id": id}} at the end of a template. */
static bool add_part(cJSON *single, const char *kind, const char *id)
{
    cJSON *o = cJSON_CreateObject();
    bool ok = o && cJSON_AddStringToObject(cJSON_AddObjectToObject(o, kind), "id", id) &&
              cJSON_AddItemToArray(single, o);
    if (!ok) cJSON_Delete(o);
    return ok;
}

lq_status tok_put_template(tok_builder *b, cJSON *root, const tok_folder *f, lq_err *err)
{
    cJSON *added = cJSON_GetObjectItemCaseSensitive(root, "added_tokens");
    const char *const names[2] = { f->bos ? f->bos_text : NULL, f->eos ? f->eos_text : NULL };
    cJSON *single = cJSON_CreateArray(), *specials = cJSON_CreateObject();
    cJSON *post = cJSON_AddObjectToObject(root, "post_processor");
    if (!single || !specials || !post ||
        !cJSON_AddStringToObject(post, "type", "TemplateProcessing")) {
        cJSON_Delete(single);
        cJSON_Delete(specials);
        return tok_oom(err);
    }
    cJSON_AddItemToObject(post, "single", single);
    cJSON_AddItemToObject(post, "special_tokens", specials);
    for (int i = 0; i < 2; i++) {
        double id = -1;
        const cJSON *e;
        if (i == 1) { /* the text, between the two */
            if (!add_part(single, "Sequence", "A")) return tok_oom(err);
        }
        if (!names[i]) continue;
        uint32_t known = tok_find_text(b, names[i], strlen(names[i]));
        if (known != TOK_NONE) id = known;
        cJSON_ArrayForEach(e, added)
        {
            const char *s = tok_json_str(e, "content");
            const cJSON *v = cJSON_GetObjectItemCaseSensitive(e, "id");
            if (id < 0 && s && strcmp(s, names[i]) == 0 && cJSON_IsNumber(v)) id = v->valuedouble;
        }
        if (id < 0) continue; /* a model without it */
        int number = (int)id;
        cJSON *spec = cJSON_AddObjectToObject(specials, names[i]);
        cJSON *ids = cJSON_CreateIntArray(&number, 1);
        if (!ids || !cJSON_AddItemToObject(spec, "ids", ids))
            return cJSON_Delete(ids), tok_oom(err);
        if (!add_part(single, "SpecialToken", names[i])) return tok_oom(err);
    }
    return LQ_OK;
}
