/* formats/source/source_tokenizer.c - another tokenizer in place of a source's own (src_opts). */
#include "base/json.h"
#include "formats/hf/model_files.h"
#include "formats/source/source_impl.h"

/* Chat templates are the model's, unless the other has some. */
static bool of_tokenizer(const char *name)
{
    return model_tokenizer_file(name) || strcmp(name, "tokenizer.blob") == 0;
}

static bool is_template(const char *name) { return strncmp(name, "chat_template", 13) == 0; }

/* The chat template in a tokenizer_config.json, in s's arena; NULL: none that is one text. */
static const char *template_of(src_source *s, const src_source *of)
{
    enum { MAX_CONFIG = 64 << 20 };
    const src_blob *config = src_find_blob(of, "tokenizer_config.json");
    cJSON *j = NULL;
    const char *text = NULL, *copy = NULL;
    if (config && !js_parse(&j, (const char *)config->data, config->bytes, MAX_CONFIG, 0, NULL))
        js_str(j, "chat_template", false, &text, NULL);
    if (text) copy = lq_push_str(&s->arena, text, strlen(text));
    cJSON_Delete(j);
    return copy;
}

static bool has_any(const src_source *s, bool (*is)(const char *name))
{
    for (size_t i = 0; i < s->n_blobs; i++)
        if (is(s->blobs[i].name)) return true;
    return false;
}

/* A tokenizer, not settings alone. */
static bool is_vocabulary(const char *name)
{
    return of_tokenizer(name) && !strstr(name, "config") && !strstr(name, "map");
}

/* s's own files, without its tokenizer's and, where the other has some, its templates. */
static size_t keep_own(src_source *s, src_blob *blobs, lq_map *maps, bool templates)
{
    size_t n = 0;
    for (size_t i = 0; i < s->n_blobs; i++) {
        const char *name = s->blobs[i].name;
        const bool drop = of_tokenizer(name) || (!templates && is_template(name));
        if (drop && s->blob_maps) lq_map_close(&s->blob_maps[i]);
        if (drop) continue;
        if (s->blob_maps) maps[n] = s->blob_maps[i];
        blobs[n++] = s->blobs[i];
    }
    return n;
}

lq_status src_take_tokenizer(src_source *s, lq_err *err)
{
    const src_source *o = s->tokenizer;
    if (!has_any(o, is_vocabulary))
        return lq_fail(err, LQ_ENOENT, "--tokenizer: %s: expected a tokenizer's files, found none",
                       o->path);
    const bool templates = !has_any(o, is_template) && !template_of(s, o);
    const char *own = templates ? template_of(s, s) : NULL;
    const size_t most = s->n_blobs + o->n_blobs + 1;
    src_blob *blobs = lq_push(&s->arena, most * sizeof *blobs);
    lq_map *maps = lq_push(&s->arena, most * sizeof *maps);
    if (!blobs || !maps) return lq_fail(err, LQ_ENOMEM, "%s: out of memory", o->path);
    memset(maps, 0, most * sizeof *maps);
    size_t n = keep_own(s, blobs, maps, templates);
    for (size_t i = 0; i < o->n_blobs; i++)
        if (of_tokenizer(o->blobs[i].name) || is_template(o->blobs[i].name))
            blobs[n++] = o->blobs[i];
    if (own) blobs[n++] = (src_blob){ "chat_template.jinja", (const uint8_t *)own, strlen(own) };
    s->blobs = blobs;
    if (s->blob_maps) s->blob_maps = maps;
    s->n_blobs = n;
    s->no_tokenizer = NULL;
    return LQ_OK;
}
