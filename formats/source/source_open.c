/* formats/source/source_open.c - opening by kind: the table of all kinds of sources. */
#include "base/file.h"
#include "base/path.h"
#include "formats/source/source_impl.h"

#include <stdlib.h>

/* ---- opening ---- */
typedef lq_status open_fn(src_source *s, const src_opts *o, lq_err *err);

static lq_status pick(open_fn **open, const char *path, lq_err *err)
{
    static const struct {
        const char *magic, *name;
        open_fn *open;
    } kinds[] = { { "LLMQ", ".llmq", src_llmq_open },
                  { "GGUF", ".gguf", src_gguf_open },
                  { "PK\3\4",
                    "a PyTorch file (a pickle, which is not read: save the model with "
                    "safe_serialization=True in Python's transformers)",
                    NULL } };
    *open = src_hf_open;
    if (lq_is_dir(path)) return LQ_OK;
    lq_map m;
    lq_status s = lq_map_open(&m, path, err);
    if (s) return s;
    for (size_t i = 0; i < LQ_COUNT(kinds); i++) {
        if (m.size < 4 || memcmp(m.data, kinds[i].magic, 4) != 0) continue;
        *open = kinds[i].open;
        if (!*open)
            s = lq_fail(err, LQ_EUNSUPPORTED,
                        "%s: expected an HF folder, a .safetensors, .gguf or .llmq file, found %s",
                        path, kinds[i].name);
    }
    if (!s && *open == src_hf_open) {
        s = lq_refuse_stand_in(m.data, m.size, err);
        if (s) lq_wrap(err, s, "%s", path);
    }
    if (!s && *open == src_hf_open && !lq_has_ending(path, ".safetensors") &&
        (m.size < 9 || m.data[8] != '{'))
        s = lq_fail(err, LQ_EFORMAT,
                    "%s: expected an HF folder, a .safetensors, .gguf or .llmq file, found none of "
                    "their first bytes",
                    path);
    lq_map_close(&m);
    return s;
}

static lq_status other_tokenizer(src_source *s, const char *path, lq_err *err)
{
    lq_status st = src_open(&s->tokenizer, path, &(src_opts){ .no_tensors = true }, err);
    return st ? lq_wrap(err, st, "--tokenizer") : src_take_tokenizer(s, err);
}

lq_status src_open(src_source **out, const char *path, const src_opts *o, lq_err *err)
{
    static const src_opts none;
    char found[4200];
    *out = NULL;
    open_fn *open;
    lq_status s = src_locate(found, sizeof found, path, err);
    if (s) return s;
    path = found;
    s = pick(&open, path, err);
    if (s) return s;
    src_source *src = calloc(1, sizeof *src);
    if (!src || !(src->path = strdup(path))) {
        free(src);
        return lq_fail(err, LQ_ENOMEM, "%s: out of memory", path);
    }
    if (!o) o = &none;
    src->uint_blocks = o->uint_blocks;
    s = open(src, o, err);
    if (!s && o->tokenizer) s = other_tokenizer(src, o->tokenizer, err);
    if (!s && o->need_config && !src->has_config)
        s = lq_fail(err, LQ_ENOENT, "%s: expected a model's config, found none", path);
    if (!s && o->rope) s = arch_rope_rescale(&src->config, o->rope, err);
    if (s)
        src_close(src);
    else
        *out = src;
    return s;
}
