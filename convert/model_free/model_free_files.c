/* convert/model_free/model_free_files.c - the files beside the weights: config.json, llmq.json, and all that the source's
 * folder has besides. */
#include "base/file.h"
#include "base/path.h"
#include "convert/model_free/model_free_impl.h"
#include "convert/shards.h"
#include "formats/hf/model_files.h"
#include "formats/source/history.h"

#include <dirent.h>
#include <stdio.h>
#include <sys/stat.h>

enum { MAX_CONFIG = 16 << 20, MAX_DEPTH = 4 };

/* ---- what else is there ---- */
/* Made here, or of the weights that were. */
static bool is_replaced(const char *name)
{
    static const char *const names[] = { "config.json", "model.safetensors.index.json",
                                         HISTORY_FILE, "SHA256SUMS", "provenance.json" };
    for (size_t i = 0; i < LQ_COUNT(names); i++)
        if (strcmp(name, names[i]) == 0) return true;
    return false;
}

/* A file of the source's weights? */
static bool is_source(const mf_run *m, const char *path)
{
    for (size_t i = 0; i < src_n_files(m->src); i++)
        if (strcmp(src_file_at(m->src, i), path) == 0) return true;
    return false;
}

static bool may_copy(const char *name)
{
    const model_file *kind = model_file_of(name);
    if (model_module_path(name)) return true; /* a pooling or dense step, not a layer's weights */
    return kind ? !kind->weights : model_side_file(name);
}

static lq_status copy_file(const mf_run *m, const char *path, const char *name, lq_err *err)
{
    lq_map map;
    lq_status s = lq_map_open(&map, path, err);
    if (s) return s;
    s = folder_write(&m->folder, name, map.data, map.size, err);
    lq_map_close(&map);
    return s;
}

static void say_left(const mf_run *m, const char *name, const char *why)
{
    char line[320];
    const plan_voice *v = &m->o->voice;
    snprintf(line, sizeof line, "%.200s: not copied: %s", name, why);
    if (v->say) v->say(v->user, line);
}

/* Why what is at `path`, which `st` tells of, stays out; NULL: it does not. Links to files are those of
 * Hugging Face's cache; a link to a folder leads out of the model, or in a circle. */
static const char *left_out(struct stat *st, const char *path, const char *name, int depth)
{
    struct stat link;
    if (lstat(path, &link) != 0 || stat(path, st) != 0) return "it cannot be opened";
    if (S_ISDIR(st->st_mode))
        return S_ISLNK(link.st_mode) ? "a link to a folder"
               : depth >= MAX_DEPTH  ? "a folder too deep"
                                     : NULL;
    if (!S_ISREG(st->st_mode)) return "no file";
    return may_copy(name) ? NULL : "neither a file of a model nor text, code or picture";
}

/* A folder of the source, `sub` within its own; "": itself. */
static lq_status copy_folder(const mf_run *m, const char *dir, const char *sub, int depth,
                             lq_err *err)
{
    char here[4200], path[4200], name[4200];
    lq_status s = lq_path_join(here, sizeof here, dir, sub, err);
    DIR *d = s ? NULL : opendir(here);
    if (!s && !d) return lq_open_failed(err, here);
    for (struct dirent *e; !s && (e = lq_next_entry(&s, d, here, err));) {
        struct stat st;
        if (!model_plain_name(e->d_name)) continue; /* hidden ones, too */
        s = *sub ? lq_path_join(name, sizeof name, sub, e->d_name, err) : LQ_OK;
        if (!*sub) snprintf(name, sizeof name, "%s", e->d_name);
        if (!s) s = lq_path_join(path, sizeof path, dir, name, err);
        if (s || is_source(m, path) || (!*sub && is_replaced(name))) continue;
        const char *why = left_out(&st, path, name, depth);
        if (why)
            say_left(m, name, why);
        else
            s = S_ISDIR(st.st_mode) ? copy_folder(m, dir, name, depth + 1, err)
                                    : copy_file(m, path, name, err);
    }
    if (d) closedir(d);
    return s;
}

/* config.json with this quantization_config, all else as it is. */
static lq_status write_config(const mf_run *m, lq_err *err)
{
    const src_blob *b = src_find_blob(m->src, "config.json");
    char twice[64];
    cJSON *j = NULL;
    lq_status s = js_parse_python(&j, twice, (const char *)b->data, b->bytes, b->bytes, err);
    if (s) return lq_wrap(err, s, "config.json");
    js_keep_spelling(j);
    cJSON_DeleteItemFromObjectCaseSensitive(j, "quantization_config"); /* null, by now */
    cJSON_AddItemReferenceToObject(j, "quantization_config", m->quant);
    s = folder_write_json(&m->folder, "config.json", j, err);
    cJSON_Delete(j);
    return s;
}

lq_status mf_write_files(const mf_run *m, lq_err *err)
{
    char dir[4200];
    snprintf(dir, sizeof dir, "%s", src_path(m->src));
    if (!lq_is_dir(dir)) { /* one .safetensors file stands for its folder */
        char *slash = strrchr(dir, '/');
        if (slash)
            *slash = 0;
        else
            snprintf(dir, sizeof dir, ".");
    }
    lq_status s = write_config(m, err);
    return s ? s : copy_folder(m, dir, "", 0, err);
}

/* ---- llmq.json ---- */
lq_status mf_write_history(const mf_run *m, bool whole, lq_err *err)
{
    cJSON *j = cJSON_CreateObject();
    lq_status s = LQ_OK;
    cJSON_AddItemReferenceToObject(j, HISTORY_RECIPE, m->recipe);
    cJSON_AddItemReferenceToObject(j, HISTORY_PROVENANCE, m->provenance);
    cJSON *files = whole ? cJSON_AddObjectToObject(j, HISTORY_FILES) : NULL;
    if (whole) s = conv_list_files(files, &m->folder, m->n_shards, err);
    if (!s) s = folder_write_json(&m->folder, HISTORY_FILE, j, err);
    cJSON_Delete(j);
    return s;
}

bool mf_same_run(bool *other, const mf_run *m, const char *dir)
{
    char path[4200];
    cJSON *j = NULL;
    *other = false;
    if (lq_path_join(path, sizeof path, dir, HISTORY_FILE, NULL) || !lq_exists(path)) return false;
    if (js_parse_file(&j, path, MAX_CONFIG, JS_UNIQUE, NULL)) return false;
    const bool same = cJSON_Compare(js_get(j, HISTORY_RECIPE), m->recipe, true) &&
                      cJSON_Compare(js_get(j, HISTORY_PROVENANCE), m->provenance, true);
    *other = !same;
    cJSON_Delete(j);
    return same;
}
