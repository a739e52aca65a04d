/* formats/source/source_tokenizer.c - another tokenizer in place of a source's own (src_opts). */
#include "base/json.h"
#include "formats/source/source_impl.h"

#include <stdio.h>

/* Files of a tokenizer; chat templates are the model's, unless the other folder has some. */
static bool of_tokenizer(const char *name)
{
    static const char *const names[] = { "tokenizer.json",    "tokenizer_config.json",
                                         "tokenizer.model",   "tekken.json",
                                         "vocab.json",        "merges.txt",
                                         "added_tokens.json", "special_tokens_map.json",
                                         "tokenizer.blob" };
    const size_t n = strlen(name);
    for (size_t i = 0; i < LQ_COUNT(names); i++)
        if (strcmp(names[i], name) == 0) return true;
    return strncmp(name, "tokenizer.model.v", 17) == 0 ||
           (n > 9 && strcmp(name + n - 9, ".tiktoken") == 0);
}

static bool is_template(const char *name) { return strncmp(name, "chat_template", 13) == 0; }

/* The chat template in a tokenizer_config.json, in s's arena; NULL: none that is one text. */
static const char *template_of(src_source *s, const src_blob *config)
{
    cJSON *j = NULL;
    const char *text = NULL, *copy = NULL;
    if (config &&
        !js_parse(&j, (const char *)config->data, config->bytes, (size_t)64 << 20, 0, NULL))
        js_str(j, "chat_template", false, &text, NULL);
    if (text) copy = lq_push_str(&s->arena, text, strlen(text));
    cJSON_Delete(j);
    return copy;
}

lq_status src_take_tokenizer(src_source *s, lq_err *err)
{
    const src_source *o = s->tokenizer;
    bool any = false, has_template = false;
    for (size_t i = 0; i < o->n_blobs; i++) {
        any = any || (of_tokenizer(o->blobs[i].name) && !strstr(o->blobs[i].name, "config"));
        has_template = has_template || is_template(o->blobs[i].name);
    }
    if (!any)
        return lq_fail(err, LQ_ENOENT, "--tokenizer: %s: expected a tokenizer's files, found none",
                       o->path);
    const char *own = template_of(s, src_find_blob(s, "tokenizer_config.json"));
    has_template = has_template || template_of(s, src_find_blob(o, "tokenizer_config.json"));
    const size_t most = s->n_blobs + o->n_blobs + 1;
    src_blob *blobs = lq_push(&s->arena, most * sizeof *blobs);
    lq_map *maps = lq_push(&s->arena, most * sizeof *maps);
    if (!blobs || !maps) return lq_fail(err, LQ_ENOMEM, "%s: out of memory", o->path);
    memset(maps, 0, most * sizeof *maps);
    size_t n = 0;
    for (size_t i = 0; i < s->n_blobs; i++) {
        const bool drop =
            of_tokenizer(s->blobs[i].name) || (has_template && is_template(s->blobs[i].name));
        if (drop && s->blob_maps) lq_map_close(&s->blob_maps[i]);
        if (drop) continue;
        if (s->blob_maps) maps[n] = s->blob_maps[i];
        blobs[n++] = s->blobs[i];
    }
    for (size_t i = 0; i < o->n_blobs; i++)
        if (of_tokenizer(o->blobs[i].name) || is_template(o->blobs[i].name))
            blobs[n++] = o->blobs[i];
    if (own && !has_template)
        blobs[n++] = (src_blob){ "chat_template.jinja", (const uint8_t *)own, strlen(own) };
    s->blobs = blobs;
    if (s->blob_maps) s->blob_maps = maps;
    s->n_blobs = n;
    s->no_tokenizer = NULL;
    return LQ_OK;
}
