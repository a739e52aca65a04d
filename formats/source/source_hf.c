/* formats/source/source_hf.c - a Hugging Face folder: config.json, one or several safetensors files, and
 * the files that travel along. A single .safetensors file stands for its folder with that file
 * alone. */
#include "base/file.h"
#include "base/path.h"
#include "formats/hf/model_files.h"
#include "formats/source/hf_quant.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>

enum { PATH_LEN = 4096, MAX_CONFIG = 16 << 20, MAX_INDEX = 256 << 20 };
static const char INDEX[] = "model.safetensors.index.json";
static const char SINGLE[] = "model.safetensors";

/* ---- names of shards ---- */

/* An index may only name files of its own folder. */
static bool plain_file_name(const char *name)
{
    return strlen(name) < 256 && name[0] != '.' && !strpbrk(name, "/\\") &&
           lq_has_ending(name, ".safetensors");
}

static int by_text(const void *a, const void *b)
{
    const char *const *x = a, *const *y = b;
    return strcmp(*x, *y);
}

/* The different file names of weight_map, sorted, malloc'd; they borrow from the tree. */
static lq_status shard_names(const char ***out, size_t *n, const cJSON *map, lq_err *err)
{
    size_t count = 0;
    *n = 0;
    *out = NULL;
    if (!cJSON_IsObject(map) || !map->child)
        return lq_fail(err, LQ_EFORMAT, "weight_map: expected an object of tensors and files");
    for (const cJSON *m = map->child; m; m = m->next, count++)
        if (!cJSON_IsString(m) || !plain_file_name(m->valuestring)) {
            char found[64];
            return lq_fail(err, LQ_EFORMAT,
                           "weight_map: '%.100s': expected the name of a .safetensors file in the "
                           "same folder, found %s",
                           m->string, js_describe(found, m));
        }
    const char **names = malloc(count * sizeof *names);
    if (!names) return lq_fail(err, LQ_ENOMEM, "no memory for %zu names", count);
    for (const cJSON *m = map->child; m; m = m->next)
        names[(*n)++] = m->valuestring;
    qsort(names, *n, sizeof *names, by_text);
    size_t kept = 1;
    for (size_t i = 1; i < *n; i++)
        if (strcmp(names[kept - 1], names[i]) != 0) names[kept++] = names[i];
    *n = kept;
    *out = names;
    return LQ_OK;
}

/* ---- opening shards ---- */
static lq_status source_hf_no_memory(lq_err *err)
{
    return lq_fail(err, LQ_ENOMEM, "out of memory");
}

static lq_status open_shard(src_source *s, const char *dir, const char *name, lq_err *err)
{
    char path[PATH_LEN];
    lq_status st = lq_path_join(path, sizeof path, dir, name, err);
    if (!st) st = st_open(&s->shards[s->n_shards], path, err);
    if (!st) s->n_shards++;
    if (!st) st = src_stamp_file(s, path, err);
    return st;
}

/* Every tensor that the index names must lie in the shard it names; names[i] is shard i. */
static lq_status check_index(const src_source *s, const cJSON *map, const char *const *names,
                             size_t *n, lq_err *err)
{
    *n = 0;
    for (const cJSON *m = map->child; m; m = m->next, ++*n) {
        const char *const *at =
            bsearch(&(const char *){ m->valuestring }, names, s->n_shards, sizeof *names, by_text);
        if (!at || !st_find(&s->shards[at - names], m->string))
            return lq_fail(err, LQ_EFORMAT, "%s: tensor '%.100s': expected in %s, not found there",
                           INDEX, m->string, m->valuestring);
    }
    return LQ_OK;
}

/* And every tensor of a shard must be named with that shard: `n` entries were found, so a shard
 * that has more than its share has a stranger. */
static lq_status check_shards(const src_source *s, const cJSON *map, const char *const *names,
                              size_t n, lq_err *err)
{
    const char **known = malloc((n ? n : 1) * sizeof *known);
    if (!known) return source_hf_no_memory(err);
    lq_status st = LQ_OK;
    for (size_t i = 0; i < s->n_shards && !st; i++) {
        const st_file *f = &s->shards[i];
        size_t here = 0;
        for (const cJSON *m = map->child; m; m = m->next)
            if (strcmp(m->valuestring, names[i]) == 0) known[here++] = m->string;
        if (here == f->n) continue;
        qsort(known, here, sizeof *known, by_text);
        size_t k = 0;
        while (k < f->n - 1 && bsearch(&f->tensors[k].name, known, here, sizeof *known, by_text))
            k++;
        st = lq_fail(err, LQ_EFORMAT, "%s: tensor '%.100s': expected in %s too, not found there",
                     names[i], f->tensors[k].name, INDEX);
    }
    free(known);
    return st;
}

/* Every .safetensors file of the folder, sorted, malloc'd with its names. */
typedef struct {
    char **name;
    size_t n;
} file_names;

static void free_names(file_names *f)
{
    for (size_t i = 0; i < f->n; i++)
        free(f->name[i]);
    free(f->name);
}

static lq_status list_files(file_names *f, const char *dir, lq_err *err)
{
    DIR *d = opendir(dir);
    if (!d) return lq_open_failed(err, dir);
    lq_status st = LQ_OK;
    for (struct dirent *e; !st && (e = lq_next_entry(&st, d, dir, err));) {
        if (!plain_file_name(e->d_name)) continue;
        char **more = realloc(f->name, (f->n + 1) * sizeof *more);
        if (more) f->name = more;
        if (!more || !(f->name[f->n] = strdup(e->d_name)))
            st = source_hf_no_memory(err);
        else
            f->n++;
    }
    closedir(d);
    if (f->n) qsort(f->name, f->n, sizeof *f->name, by_text);
    return st;
}

/* "NAME-00002-of-00005.safetensors": the part's number and how many there are. */
static bool is_part(const char *name, long *part, long *of)
{
    int end = 0;
    const char *at = strstr(name, "-of-");
    if (!at || at - name < 6) return false;
    return sscanf(at - 6, "-%5ld-of-%5ld%n", part, of, &end) == 2 && end == 15 && *part > 0 &&
           *part <= *of;
}

/* Parts of the model that lie beside those of the index belong to it too: `names`, malloc'd, takes
 * them from `f`. */
static lq_status add_parts(const char ***names, size_t *n, const file_names *f, lq_err *err)
{
    long part, of, first, all;
    const char **more = realloc(*names, (*n + f->n + 1) * sizeof *more);
    if (!more) return source_hf_no_memory(err);
    *names = more;
    const size_t named = *n;
    if (!is_part(more[0], &first, &all)) return LQ_OK;
    const size_t stem = (size_t)(strstr(more[0], "-of-") - more[0]) - 5;
    for (size_t i = 0; i < f->n; i++) {
        const char *name = f->name[i];
        if (is_part(name, &part, &of) && of == all && strncmp(name, more[0], stem) == 0 &&
            !bsearch(&name, more, named, sizeof *more, by_text))
            more[(*n)++] = name;
    }
    qsort(more, *n, sizeof *more, by_text);
    return LQ_OK;
}

static lq_status note_twice(src_source *s, const char *file, const char *key, lq_err *err)
{
    if (!key[0]) return LQ_OK;
    return src_note(s, err, "%s: the key '%s' is there twice: the last counts", file, key);
}

/* Are there files, and none of those that the index names? Writers leave the index of what they read. */
static bool is_of_others(const char *const *names, size_t n, const file_names *f)
{
    for (size_t i = 0; i < n; i++)
        if (f->n && bsearch(&names[i], f->name, f->n, sizeof *f->name, by_text)) return false;
    return f->n > 0;
}

/* *stale: the index is of other files than those that are here, and nothing was opened. */
static lq_status open_sharded(bool *stale, src_source *s, const char *dir, const char *index_path,
                              lq_err *err)
{
    cJSON *index;
    const char **names = NULL;
    file_names files = { .n = 0 };
    size_t n = 0;
    lq_status st = js_parse_file(&index, index_path, MAX_INDEX, JS_UNIQUE, err);
    if (st) return st;
    const cJSON *map = js_get(index, "weight_map");
    st = shard_names(&names, &n, map, err);
    if (st) {
        lq_wrap(err, st, "%s", index_path);
        goto done;
    }
    st = list_files(&files, dir, err);
    *stale = !st && is_of_others(names, n, &files);
    if (*stale)
        st = src_note(s, err, "%s names none of the files that are here: it is not read", INDEX);
    if (st || *stale) goto done;
    st = add_parts(&names, &n, &files, err);
    if (st) goto done;
    s->shards = lq_push(&s->arena, n * sizeof *s->shards);
    if (!s->shards) st = source_hf_no_memory(err);
    for (size_t i = 0; i < n && !st; i++) {
        st = open_shard(s, dir, names[i], err);
        if (st == LQ_ENOENT) lq_wrap(err, st, "%s names a shard that is missing", INDEX);
    }
    if (st) goto done;
    size_t entries;
    st = check_index(s, map, names, &entries, err);
    if (!st) st = check_shards(s, map, names, entries, err);
    if (st) lq_wrap(err, st, "%s", dir);
done:
    free(names);
    free_names(&files);
    cJSON_Delete(index);
    return st;
}

static lq_status open_single(src_source *s, const char *dir, const char *name, lq_err *err)
{
    s->shards = lq_push(&s->arena, sizeof *s->shards);
    return s->shards ? open_shard(s, dir, name, err) : source_hf_no_memory(err);
}

/* Weights that are there, but as Python pickles, which run code when they are read. */
static const char *pickled(const char *dir)
{
    static const char *const names[] = { "pytorch_model.bin",
                                         "pytorch_model.bin.index.json",
                                         "pytorch_model-00001-of-00002.bin",
                                         "consolidated.00.pth",
                                         "model.pt",
                                         "adapter_model.bin" };
    char path[PATH_LEN];
    for (size_t i = 0; i < LQ_COUNT(names); i++)
        if (!lq_path_join(path, sizeof path, dir, names[i], NULL) && lq_exists(path))
            return names[i];
    return NULL;
}

/* A folder without an index: its one file, or all parts of one model. *n = 0: neither. */
static lq_status check_parts(size_t *n, const file_names *f, const char *dir, lq_err *err)
{
    long part, of;
    *n = f->n == 1 && !is_part(f->name[0], &part, &of);
    if (*n || !f->n) return LQ_OK;
    for (size_t i = 0; i < f->n; i++) {
        if (!is_part(f->name[i], &part, &of))
            return lq_fail(err, LQ_ENOENT,
                           "%s: expected %s, or parts of one model, found %.100s among %zu files",
                           dir, INDEX, f->name[i], f->n);
        if (part != (long)i + 1 || (i + 1 == f->n && of != part))
            return lq_fail(err, LQ_ENOENT, "%s: expected part %zu of %ld, found %.100s%s", dir,
                           part == (long)i + 1 ? i + 2 : i + 1, of, f->name[i],
                           part == (long)i + 1 ? " as the last" : "");
    }
    *n = f->n;
    return LQ_OK;
}

static lq_status open_parts(bool *found, src_source *s, const char *dir, lq_err *err)
{
    file_names f = { .n = 0 };
    size_t n = 0;
    lq_status st = list_files(&f, dir, err);
    if (!st) st = check_parts(&n, &f, dir, err);
    *found = n > 0;
    s->shards = st || !n ? NULL : lq_push(&s->arena, n * sizeof *s->shards);
    if (!st && n && !s->shards) st = source_hf_no_memory(err);
    for (size_t i = 0; i < n && !st; i++)
        st = open_shard(s, dir, f.name[i], err);
    free_names(&f);
    return st;
}

static lq_status open_weights(src_source *s, const char *dir, const char *file, lq_err *err)
{
    char path[PATH_LEN], index[PATH_LEN];
    if (file) return open_single(s, dir, file, err);
    lq_status st = lq_path_join(path, sizeof path, dir, SINGLE, err);
    if (!st) st = lq_path_join(index, sizeof index, dir, INDEX, err);
    if (st) return st;
    if (lq_exists(path)) return open_single(s, dir, SINGLE, err);
    bool found, stale = lq_exists(index);
    if (stale) st = open_sharded(&stale, s, dir, index, err);
    if (st || s->n_shards) return st;
    st = open_parts(&found, s, dir, err);
    if (st || found) return st;
    const char *pickle = pickled(dir);
    if (pickle)
        return lq_fail(err, LQ_EUNSUPPORTED,
                       "%s: expected %s, found %s, a pickle, which is not read: convert it once, "
                       "AutoModelForCausalLM.from_pretrained(DIR, torch_dtype=\"auto\")"
                       ".save_pretrained(NEW, safe_serialization=True) with Python's transformers",
                       dir, SINGLE, pickle);
    return lq_fail(err, LQ_ENOENT, "%s: expected %s, %s, or one .llmq or .gguf file; found none",
                   dir, SINGLE, INDEX);
}

/* ---- the table of all tensors ---- */

/* BERT's first files call a norm's weights gamma and beta; transformers reads them as what they are now. */
static const char *name_today(lq_arena *a, const char *name)
{
    static const struct {
        const char *was, *is;
    } endings[] = { { "LayerNorm.gamma", "LayerNorm.weight" },
                    { "LayerNorm.beta", "LayerNorm.bias" } };
    const size_t n = strlen(name);
    for (size_t i = 0; i < LQ_COUNT(endings); i++) {
        const size_t was = strlen(endings[i].was), is = strlen(endings[i].is);
        if (n < was || strcmp(name + n - was, endings[i].was) != 0) continue;
        char *own = lq_push(a, n - was + is + 1);
        if (own) memcpy(own, name, n - was);
        if (own) memcpy(own + n - was, endings[i].is, is + 1);
        return own;
    }
    return name;
}

static lq_status list_tensors(src_source *s, lq_err *err)
{
    size_t n = 0;
    for (size_t i = 0; i < s->n_shards; i++)
        n += s->shards[i].n;
    s->tensors = lq_push(&s->arena, n * sizeof *s->tensors);
    if (!s->tensors) return source_hf_no_memory(err);
    for (size_t i = 0; i < s->n_shards; i++)
        for (size_t k = 0; k < s->shards[i].n; k++) {
            const st_tensor *t = &s->shards[i].tensors[k];
            const char *name = name_today(&s->arena, t->name);
            if (!name) return source_hf_no_memory(err);
            lq_status st = src_fill_plain(&s->tensors[s->n_tensors], name, t->dtype, t->n_dims,
                                          t->shape, t->data, t->bytes, err);
            if (st) return lq_wrap(err, st, "%s", s->path);
            s->n_tensors++;
        }
    if (n) qsort(s->tensors, n, sizeof *s->tensors, src_by_name);
    for (size_t i = 1; i < n; i++)
        if (src_by_name(&s->tensors[i - 1], &s->tensors[i]) == 0)
            return lq_fail(err, LQ_EFORMAT,
                           "%s: tensor '%.100s': expected in one file, found in two", s->path,
                           s->tensors[i].name);
    return LQ_OK;
}

/* ---- config and blobs ---- */
static lq_status parse_optional(cJSON **out, src_source *s, const char *dir, const char *name,
                                lq_err *err)
{
    char path[PATH_LEN], twice[64];
    *out = NULL;
    lq_status st = lq_path_join(path, sizeof path, dir, name, err);
    if (st || !lq_exists(path)) return st;
    st = js_parse_python_file(out, twice, path, MAX_CONFIG, err);
    return st ? st : note_twice(s, name, twice, err);
}

/* The older name, and the shape within it, of compressed-tensors. */
static lq_status find_compression(src_source *s, cJSON *config, lq_err *err)
{
    cJSON *c = cJSON_DetachItemFromObjectCaseSensitive(config, "compression_config");
    cJSON *within = cJSON_DetachItemFromObjectCaseSensitive(c, "quantization_config");
    if (cJSON_IsObject(within)) {
        cJSON *sparse = cJSON_DetachItemFromObjectCaseSensitive(c, "sparsity_config");
        if (sparse) cJSON_AddItemToObject(within, "sparsity_config", sparse);
        cJSON_Delete(c);
        c = within;
    }
    s->quant = c;
    if (!cJSON_IsObject(c) || js_get(c, "quant_method")) return LQ_OK;
    return cJSON_AddStringToObject(c, "quant_method", "compressed-tensors")
               ? LQ_OK
               : source_hf_no_memory(err);
}

/* In config.json: of the model, or of the language model in it. */
static lq_status find_in_config(src_source *s, cJSON *config, lq_err *err)
{
    static const char key[] = "quantization_config";
    if (!js_get(config, key) && js_get(config, "compression_config"))
        return find_compression(s, config, err);
    cJSON *text = cJSON_GetObjectItemCaseSensitive(config, "text_config");
    s->quant =
        cJSON_DetachItemFromObjectCaseSensitive(js_get(config, key) || !text ? config : text, key);
    return LQ_OK;
}

/* How the weights are quantized: in config.json, or in a file of its own, as older tools wrote it.
 */
static lq_status find_quant(src_source *s, const char *dir, cJSON *config, lq_err *err)
{
    static const struct {
        const char *file, *method;
    } files[] = { { "quantize_config.json", "gptq" },
                  { "quant_config.json", "awq" },
                  { "hf_quant_config.json", "modelopt" },
                  { "quantization_config.json", "auto-round" } };
    lq_status st = find_in_config(s, config, err);
    if (st) return st;
    if (cJSON_IsNull(s->quant)) {
        cJSON_Delete(s->quant);
        s->quant = NULL;
    }
    if (s->quant && !cJSON_IsObject(s->quant)) {
        char found[64];
        return lq_fail(err, LQ_EVALUE,
                       "%s/config.json: quantization_config: expected an object, found %s", dir,
                       js_describe(found, s->quant));
    }
    const char *packing = "mlx"; /* or of AutoRound, in mlx-lm's layout */
    js_str(s->quant, "packing_format", false, &packing, NULL);
    if (js_get(js_get(config, "quantization"), "group_size") && strstr(packing, "mlx") &&
        (!js_get(s->quant, "quant_method") || js_get(s->quant, "packing_format"))) {
        cJSON_Delete(s->quant);
        s->quant = cJSON_DetachItemFromObjectCaseSensitive(config, "quantization");
        if (!cJSON_AddStringToObject(s->quant, "quant_method", "mlx"))
            return source_hf_no_memory(err);
    }
    for (size_t i = 0; i < LQ_COUNT(files) && !s->quant && !st; i++) {
        st = parse_optional(&s->quant, s, dir, files[i].file, err);
        if (st || !s->quant || js_get(s->quant, "quant_method")) continue;
        if (!cJSON_AddStringToObject(s->quant, "quant_method", files[i].method))
            st = source_hf_no_memory(err);
    }
    return st;
}

/* Stored parts of quantized weights become weights. */
static lq_status read_quant(src_source *s, const src_opts *o, lq_err *err)
{
    lq_status st = hf_quant_read(s, err);
    cJSON_Delete(s->quant);
    s->quant = NULL;
    if (st != LQ_EUNSUPPORTED || o->need_config)
        return st ? lq_wrap(err, st, "%s", s->path) : LQ_OK;
    lq_wrap(err, st, "%s", s->path);
    return src_set_unfit(s, st, err, err); /* what is stored can be listed all the same */
}

/* How many MTP layers config.json says that there are, of the model or of the language model in it. */
static lq_status read_mtp_said(src_source *s, const cJSON *config, lq_err *err)
{
    enum { MOST = 1024 };
    static const char key[] = "num_nextn_predict_layers";
    s->mtp_said = -1;
    const lq_status st =
        js_i64(js_get(config, "text_config"), key, false, 0, MOST, &s->mtp_said, err);
    return st ? st : js_i64(config, key, false, 0, MOST, &s->mtp_said, err);
}

static lq_status read_config(src_source *s, const char *dir, const src_opts *o, lq_err *err)
{
    cJSON *config, *generation = NULL;
    lq_status st = parse_optional(&config, s, dir, "config.json", err);
    if (!st && !config) {
        st = lq_fail(err, LQ_ENOENT, "%s: expected a config.json, found none", dir);
        if (!o->need_config) st = src_set_unfit(s, st, err, err);
        return st;
    }
    if (st) return st;
    st = parse_optional(&generation, s, dir, "generation_config.json", err);
    if (st) goto done;
    st = find_quant(s, dir, config, err);
    if (st) goto done;
    st = arch_config_parse(&s->config, config, generation, err);
    if (!st && (st = read_mtp_said(s, config, err))) arch_config_free(&s->config);
    if (!st && s->config.mtp && !o->draft) {
        arch_config_free(&s->config);
        st = arch_refuse_draft(err);
    }
    s->has_config = !st;
    const bool in_config = !st || !err || strncmp(err->msg, "generation_config.json", 22) != 0;
    if (st) lq_wrap(err, st, in_config ? "%s/config.json" : "%s", dir);
    if (st && st != LQ_ENOMEM && !o->need_config) /* tensors can be listed without it */
        st = src_set_unfit(s, st, err, err);
done:
    cJSON_Delete(generation);
    cJSON_Delete(config);
    return st;
}

enum { MAX_BLOBS = 64 };
#define ONE_TEMPLATE "chat_template."

/* Of a folder, the names that `is_wanted`, with `prefix` before them. */
static lq_status names_in(src_source *s, const char **out, size_t *n, const char *dir,
                          const char *prefix, bool (*is_wanted)(const char *), lq_err *err)
{
    char name[PATH_LEN];
    lq_status st = LQ_OK;
    DIR *d = opendir(dir);
    if (!d && *prefix && errno == ENOENT) return LQ_OK;
    if (!d) return lq_open_failed(err, dir);
    for (struct dirent *e; !st && (e = lq_next_entry(&st, d, dir, err));) {
        if (!is_wanted(e->d_name)) continue;
        snprintf(name, sizeof name, "%s%s", prefix, e->d_name);
        const char *copy = lq_push_str(&s->arena, name, strlen(name));
        if (!copy)
            st = source_hf_no_memory(err);
        else if (*n == MAX_BLOBS)
            st = lq_fail(err, LQ_EUNSUPPORTED, "%s: expected at most %d licence files", dir,
                         MAX_BLOBS);
        else
            out[(*n)++] = copy;
    }
    closedir(d);
    return st;
}

lq_status src_blob_file(char *out, size_t n, const char *dir, const char *blob, lq_err *err)
{
    char sub[PATH_LEN], path[256];
    size_t len = strlen(ONE_TEMPLATE), folder;
    if (model_module_blob(blob, &folder)) {
        snprintf(path, sizeof path, "%s", blob);
        path[folder] = '/';
        return lq_path_join(out, n, dir, path, err);
    }
    if (strncmp(blob, ONE_TEMPLATE, len) != 0 || !model_template(blob + len))
        return lq_path_join(out, n, dir, blob, err);
    lq_status st = lq_path_join(sub, sizeof sub, dir, MODEL_TEMPLATES, err);
    return st ? st : lq_path_join(out, n, sub, blob + len, err);
}

/* The files of one module's folder, which may be missing: who runs it says so. */
static lq_status module_files(src_source *s, const char **out, size_t *n, const char *dir,
                              const char *folder, lq_err *err)
{
    char sub[PATH_LEN], name[PATH_LEN];
    snprintf(name, sizeof name, "%s.", folder);
    lq_status st = lq_path_join(sub, sizeof sub, dir, folder, err);
    return st || !lq_is_dir(sub) ? st : names_in(s, out, n, sub, name, model_module_file, err);
}

/* Those of the folders that modules.json names. */
static lq_status module_names(src_source *s, const char **out, size_t *n, const char *dir,
                              lq_err *err)
{
    enum { MAX_MODULES = 1 << 20 };
    char path[PATH_LEN], folder[128], *text = NULL;
    size_t bytes;
    cJSON *modules = NULL;
    if (lq_path_join(path, sizeof path, dir, "modules.json", NULL) || !lq_exists(path))
        return LQ_OK;
    lq_status st = lq_read_file(&text, &bytes, path, MAX_MODULES, err);
    if (!st && (st = js_parse(&modules, text, bytes, MAX_MODULES, 0, err)))
        lq_wrap(err, st, "%s", path);
    for (const cJSON *m = modules ? modules->child : NULL; m && !st; m = m->next) {
        const char *at = cJSON_GetStringValue(js_get(m, "path"));
        size_t len = at ? strlen(at) : 0;
        if (len && at[len - 1] == '/') len--;
        snprintf(folder, sizeof folder, "%.*s", (int)(len < sizeof folder ? len : 0), at ? at : "");
        if (model_module_folder(folder)) st = module_files(s, out, n, dir, folder, err);
    }
    cJSON_Delete(modules);
    free(text);
    return st;
}

/* The names in the folder that travel along, sorted, in the arena. */
static lq_status blob_names(src_source *s, const char ***out, size_t *n, const char *dir,
                            lq_err *err)
{
    *n = 0;
    *out = lq_push(&s->arena, MAX_BLOBS * sizeof **out);
    if (!*out) return source_hf_no_memory(err);
    char more[PATH_LEN];
    lq_status st = lq_path_join(more, sizeof more, dir, MODEL_TEMPLATES, err);
    if (!st) st = names_in(s, *out, n, dir, "", model_own_file, err);
    if (!st) st = names_in(s, *out, n, more, ONE_TEMPLATE, model_template, err);
    if (!st) st = module_names(s, *out, n, dir, err);
    qsort(*out, *n, sizeof **out, by_text);
    return st;
}

static lq_status map_blobs(src_source *s, const char *dir, lq_err *err)
{
    const char **names;
    size_t n;
    lq_status st = blob_names(s, &names, &n, dir, err);
    if (st) return st;
    s->blobs = lq_push(&s->arena, n * sizeof *s->blobs);
    s->blob_maps = lq_push(&s->arena, n * sizeof *s->blob_maps);
    if (!s->blobs || !s->blob_maps) return source_hf_no_memory(err);
    for (size_t i = 0; i < n; i++) {
        char path[PATH_LEN];
        st = src_blob_file(path, sizeof path, dir, names[i], err);
        if (st) return st;
        if (model_licence(names[i]) && lq_is_dir(path)) continue;
        lq_map *m = &s->blob_maps[s->n_blobs];
        st = lq_map_open(m, path, err);
        if (st) return st;
        s->blobs[s->n_blobs++] = (src_blob){ names[i], m->data, m->size };
    }
    return LQ_OK;
}

static bool has_tensor(void *user, const char *name) { return src_find(user, name) != NULL; }

/* The folder of a source, and in it the file that was named, or NULL. */
static const char *split_path(char dir[PATH_LEN], const char *path)
{
    if (lq_is_dir(path)) {
        snprintf(dir, PATH_LEN, "%s", path);
        return NULL;
    }
    const char *slash = strrchr(path, '/');
    snprintf(dir, PATH_LEN, "%.*s", slash ? (int)(slash - path) : 1, slash ? path : ".");
    if (!dir[0]) snprintf(dir, PATH_LEN, "/");
    return slash ? slash + 1 : path;
}

static bool is_in(const char *dir, const char *name, const char *path)
{
    char file[PATH_LEN];
    return !src_blob_file(file, sizeof file, dir, name, NULL) && lq_same_file(file, path);
}

bool src_reads(const src_source *s, const char *path)
{
    char dir[PATH_LEN];
    s = src_base(s);
    for (size_t i = 0; i < s->n_stamps; i++)
        if (lq_same_file(s->stamps[i].path, path)) return true;
    if (!s->blob_maps) return false; /* no folder */
    split_path(dir, s->path);
    for (size_t i = 0; i < s->n_blobs; i++)
        if (is_in(dir, s->blobs[i].name, path)) return true;
    return is_in(dir, INDEX, path);
}

lq_status src_hf_open(src_source *s, const src_opts *o, lq_err *err)
{
    char dir[PATH_LEN];
    const char *file = split_path(dir, s->path);
    s->format = "safetensors";
    lq_status st = map_blobs(s, dir, err);
    if (!st) st = read_config(s, dir, o, err);
    if (!st && !o->no_tensors) st = open_weights(s, dir, file, err);
    if (!st) st = list_tensors(s, err);
    if (st || o->no_tensors) return st;
    if (s->has_config) arch_fit_prefix(&s->config, has_tensor, s);
    if (s->has_config) st = src_fit_saved(s, err);
    if (st) return st;
    if (s->has_config) src_fit_draft(s);
    if (s->has_config) src_fit_asides(s);
    if (s->has_config) st = src_fit_ngrams(s, err);
    if (st) return st;
    if (s->has_config) src_fit_stacked_rows(s);
    if (s->has_config) src_fit_flat(s);
    if (s->has_config) st = src_fit_experts(s, err);
    if (!st) st = read_quant(s, o, err);
    if (!st) st = src_read_history(s, dir, err);
    if (st || !s->has_config) return st;
    arch_fit_prefix(&s->config, has_tensor, s); /* its embedding may be made of parts */
    st = src_check_denied(s, err);
    if (st) return lq_wrap(err, st, "%s", s->path);
    st = src_check_layers(s, err);
    if (!st) st = src_fit_turn(s, err);
    return st ? st : src_fit_head(s, err);
}
