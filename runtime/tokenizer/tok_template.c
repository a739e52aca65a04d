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

/* The id of a token of the vocabulary or of those that are added; -1. */
static int64_t id_of(const tok_builder *b, const cJSON *added, const char *name)
{
    const cJSON *e;
    const uint32_t known = tok_find_text(b, name, strlen(name));
    if (known != TOK_NONE) return known;
    cJSON_ArrayForEach(e, added)
    {
        const char *s = tok_json_str(e, "content");
        const cJSON *v = cJSON_GetObjectItemCaseSensitive(e, "id");
        if (s && strcmp(s, name) == 0 && cJSON_IsNumber(v)) return (int64_t)v->valuedouble;
    }
    return -1;
}

/* bos A eos, or with `sep` bos A eos sep B eos. */
static bool add_parts(cJSON *to, const char *const ends[2], const char *sep)
{
    bool ok = !ends[0] || add_part(to, "SpecialToken", ends[0]);
    ok = ok && add_part(to, "Sequence", "A");
    if (ends[1]) ok = ok && add_part(to, "SpecialToken", ends[1]);
    if (!sep) return ok;
    ok = ok && add_part(to, "SpecialToken", sep) && add_part(to, "Sequence", "B");
    return ok && (!ends[1] || add_part(to, "SpecialToken", ends[1]));
}

lq_status tok_put_template(tok_builder *b, cJSON *root, const tok_folder *f, lq_err *err)
{
    cJSON *added = cJSON_GetObjectItemCaseSensitive(root, "added_tokens");
    /* pair_sep_token: of a GGUF file's encoder (formats/gguf/gguf_tok.c) */
    const char *names[3] = { f->bos ? f->bos_text : NULL, f->eos ? f->eos_text : NULL,
                             tok_json_str(f->config, "pair_sep_token") };
    cJSON *single = cJSON_CreateArray(), *pair = cJSON_CreateArray(),
          *specials = cJSON_CreateObject();
    cJSON *post = cJSON_AddObjectToObject(root, "post_processor");
    bool ok = single && pair && specials && post &&
              cJSON_AddStringToObject(post, "type", "TemplateProcessing");
    for (size_t i = 0; i < LQ_COUNT(names) && ok; i++) {
        const int64_t id = names[i] ? id_of(b, added, names[i]) : -1;
        if (id < 0) { /* a model without it */
            names[i] = NULL;
            continue;
        }
        if (cJSON_GetObjectItemCaseSensitive(specials, names[i])) continue;
        const int number = (int)id;
        cJSON *spec = cJSON_AddObjectToObject(specials, names[i]);
        cJSON *ids = cJSON_CreateIntArray(&number, 1);
        ok = ids && cJSON_AddItemToObject(spec, "ids", ids);
        if (!ok) cJSON_Delete(ids);
    }
    ok = ok && add_parts(single, names, NULL) && (!names[2] || add_parts(pair, names, names[2]));
    if (!ok) {
        cJSON_Delete(single);
        cJSON_Delete(pair);
        cJSON_Delete(specials);
        return tok_oom(err);
    }
    cJSON_AddItemToObject(post, "single", single);
    cJSON_AddItemToObject(post, "special_tokens", specials);
    if (names[2])
        cJSON_AddItemToObject(post, "pair", pair);
    else
        cJSON_Delete(pair);
    return LQ_OK;
}
