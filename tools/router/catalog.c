/* tools/router/catalog.c - see catalog.h. */
#include "tools/router/catalog.h"

#include "base/buf.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/os.h"
#include "base/path.h"
#include "base/utf8.h"
#include "runtime/engine/adapters.h"
#include "tools/cli/load.h"
#include "tools/cli/models.h"

#include <assert.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

static_assert((int)CAT_ADAPTER_NAME == (int)ADAPTERS_NAME, "what the list takes, a server takes");

enum { MAX_FILE = 16 << 20, MAX_MODELS = 4096, MAX_PATH = 4096, MAX_NAME = 256, MAX_WORDS = 256 };

/* ---- the list ---- */

static void free_words(char **v)
{
    for (size_t i = 0; v && v[i]; i++)
        free(v[i]);
    free(v);
}

void cat_free(catalog *c)
{
    for (int i = 0; i < c->n; i++) {
        free(c->m[i].path);
        free_words(c->m[i].names);
        free_words(c->m[i].options);
        free_words(c->m[i].adapters);
    }
    free(c->m);
    *c = (catalog){ 0 };
}

int cat_find(const catalog *c, const char *name)
{
    for (int i = 0; i < c->n; i++)
        for (char **v = c->m[i].names; v && *v; v++)
            if (strcmp(*v, name) == 0) return i;
    return -1;
}

static char **words(size_t n) { return calloc(n + 1, sizeof(char *)); }

/* One more model, without names. */
static cat_model *add(catalog *c, const char *path)
{
    cat_model *m = realloc(c->m, (size_t)(c->n + 1) * sizeof *m);
    if (!m) return NULL;
    c->m = m;
    c->m[c->n] = (cat_model){ .idle_seconds = -1 };
    m = &c->m[c->n++];
    m->path = strdup(path);
    return m->path ? m : NULL;
}

static void stamp_path(lq_hasher *h, const char *path)
{
    struct stat st;
    if (stat(path, &st) != 0) return;
    const struct timespec t = os_mtime(&st);
    const int64_t what[] = { (int64_t)st.st_dev, (int64_t)st.st_ino, (int64_t)st.st_size,
                             (int64_t)t.tv_sec, (int64_t)t.tv_nsec };
    lq_hasher_add(h, what, sizeof what);
}

static void stamp_files(lq_hasher *h, const char *path)
{
    static const char *const in_folder[] = { "config.json", "model.safetensors",
                                             "model.safetensors.index.json", "adapter_config.json",
                                             "adapter_model.safetensors" };
    char file[MAX_PATH];
    stamp_path(h, path);
    for (size_t i = 0; i < LQ_COUNT(in_folder); i++)
        if (!lq_path_join(file, sizeof file, path, in_folder[i], NULL)) stamp_path(h, file);
}

uint64_t cat_stamp(const cat_model *m)
{
    uint64_t stamp = 0;
    lq_hasher *h = lq_exists(m->path) ? lq_hasher_new() : NULL;
    if (!h) return 0;
    stamp_files(h, m->path);
    for (char **v = m->adapters; v && *v; v++)
        stamp_files(h, strchr(*v, '=') + 1);
    const lq_hash all = lq_hasher_end(h);
    memcpy(&stamp, all.b, sizeof stamp);
    return stamp;
}

/* ---- a folder ---- */

static bool has_file(const char *dir, const char *name)
{
    char path[MAX_PATH];
    return !lq_path_join(path, sizeof path, dir, name, NULL) && lq_exists(path);
}

/* Of a file in shards the first stands for all. */
static bool is_first_shard(const char *name)
{
    const char *of = strstr(name, "-of-");
    return !of || of - name < 5 || strncmp(of - 5, "00001", 5) == 0;
}

/* Whether an entry of a folder is a model: what `llmq serve` takes, by its name alone. One that is not UTF-8
 * no request could name. */
static bool is_model(const char *dir, const char *name)
{
    char path[MAX_PATH];
    if (name[0] == '.' || !lq_utf8_valid(name, strlen(name), NULL)) return false;
    if (lq_path_join(path, sizeof path, dir, name, NULL)) return false;
    if (lq_is_dir(path)) return has_file(path, "config.json");
    if (strncmp(name, "mmproj", 6) == 0) return false;
    return (lq_has_ending(name, ".llmq") || lq_has_ending(name, ".gguf")) && is_first_shard(name);
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Names of the models in it, sorted; of at most `most`. */
static lq_status list(char ***out, size_t *n, size_t most, const char *dir, lq_err *err)
{
    lq_status s = LQ_OK;
    *n = 0;
    *out = words(most);
    DIR *d = *out ? opendir(dir) : NULL;
    if (!*out) return lq_fail(err, LQ_ENOMEM, "out of memory");
    if (!d) return lq_open_failed(err, dir);
    for (struct dirent *e; *n < most && (e = lq_next_entry(&s, d, dir, err)) != NULL;)
        if (is_model(dir, e->d_name) && ((*out)[*n] = strdup(e->d_name)) != NULL) ++*n;
    closedir(d);
    qsort(*out, *n, sizeof **out, by_name);
    return s;
}

bool cat_is_folder(const char *path)
{
    char **found = NULL;
    size_t n = 0;
    if (!lq_is_dir(path) || has_file(path, "config.json")) return false;
    const bool any = !list(&found, &n, 1, path, NULL) && n;
    free_words(found);
    return any;
}

/* Of an entry: as a server of it alone calls it; where an earlier one has that name (x, then x.llmq), the entry's
 * own, which is no earlier one's: what the name lacks of its entry is the end. */
static char *name_of(const catalog *c, const char *path, const char *entry)
{
    char name[MAX_NAME];
    return strdup(cat_find(c, load_name(name, sizeof name, path)) < 0 ? name : entry);
}

lq_status cat_read_folder(catalog *c, const char *dir, lq_err *err)
{
    char **found = NULL, path[MAX_PATH];
    size_t n = 0;
    *c = (catalog){ 0 };
    lq_status s = list(&found, &n, MAX_MODELS, dir, err);
    for (size_t i = 0; i < n && !s; i++) {
        s = lq_path_join(path, sizeof path, dir, found[i], err);
        char *name = s ? NULL : name_of(c, path, found[i]);
        cat_model *m = name ? add(c, path) : NULL;
        if (m && (m->names = words(1)) != NULL)
            m->names[0] = name;
        else
            free(name);
        if (!s && (!m || !m->names || !m->names[0])) s = lq_fail(err, LQ_ENOMEM, "out of memory");
    }
    free_words(found);
    if (s) cat_free(c);
    return s;
}

/* ---- a file ---- */

static lq_status wrong(lq_err *err, const char *key, const char *expected, const cJSON *v)
{
    char found[64];
    return lq_fail(err, LQ_EVALUE, "%s: expected %s, found %s", key, expected,
                   js_describe(found, v));
}

/* Strings of an array; `first` before them unless it is NULL. */
static lq_status read_words(char ***out, const cJSON *o, const char *key, const char *first,
                            lq_err *err)
{
    const cJSON *v = js_get(o, key);
    size_t n = first != NULL;
    if (v && (!cJSON_IsArray(v) || cJSON_GetArraySize(v) > MAX_WORDS))
        return wrong(err, key, "an array of up to 256 strings", v);
    *out = words(n + (v ? (size_t)cJSON_GetArraySize(v) : 0));
    if (!*out || (first && ((*out)[0] = strdup(first)) == NULL))
        return lq_fail(err, LQ_ENOMEM, "out of memory");
    for (const cJSON *e = v ? v->child : NULL; e; e = e->next) {
        if (!cJSON_IsString(e) || !e->valuestring[0]) return wrong(err, key, "texts", e);
        if (((*out)[n++] = strdup(e->valuestring)) == NULL)
            return lq_fail(err, LQ_ENOMEM, "out of memory");
    }
    return LQ_OK;
}

/* A path from the folder of the file on. */
static lq_status beside(char out[MAX_PATH], const char *file, const char *named, lq_err *err)
{
    char dir[MAX_PATH];
    const char *slash = strrchr(file, '/');
    snprintf(dir, sizeof dir, "%.*s", slash ? (int)(slash - file) : 1, slash ? file : ".");
    return lq_path_join(out, MAX_PATH, slash == file ? "/" : dir, named, err);
}

/* Where the model is: a path from the folder of the file on, or a name on the hub as it is. */
static lq_status place(char out[MAX_PATH], const char *file, const char *named, lq_err *err)
{
    const bool below = named[0] && named[0] != '/' && strncmp(named, "hf:", 3) != 0;
    lq_status s = below ? beside(out, file, named, err) : LQ_OK;
    if (s || (below && lq_exists(out))) return s;
    snprintf(out, MAX_PATH, "%s", named);
    const char *hub = models_name(named);
    if (lq_exists(named) || strcmp(named, "demo") == 0 || (hub && *hub)) return LQ_OK;
    return lq_fail(err, LQ_ENOENT,
                   "model: expected a file, a folder or ORG/NAME on the hub, found '%.200s'",
                   named);
}

/* One adapter, as --lora has it. */
static lq_status read_adapter(char **out, const char *file, const cJSON *v, lq_err *err)
{
    char path[MAX_PATH];
    lq_buf b = { 0 };
    const char *named = cJSON_GetStringValue(v);
    const size_t n = strlen(v->string);
    if (!n || n > CAT_ADAPTER_NAME || strchr(v->string, '='))
        return lq_fail(err, LQ_EVALUE,
                       "adapters: expected a name of 1..%d bytes without '=', found '%.200s'",
                       (int)CAT_ADAPTER_NAME, v->string);
    if (!named || !*named) return wrong(err, v->string, "a path", v);
    snprintf(path, sizeof path, "%s", named);
    lq_status s = named[0] == '/' ? LQ_OK : beside(path, file, named, err);
    if (!s && !lq_exists(path)) s = lq_open_failed(err, path);
    if (s) return lq_wrap(err, s, "adapters: %.200s", v->string);
    lq_buf_printf(&b, "%s=%s", v->string, path);
    lq_buf_add(&b, "", 1);
    if (b.oom) return lq_fail(err, LQ_ENOMEM, "out of memory");
    *out = b.p;
    return LQ_OK;
}

static lq_status read_adapters(char ***out, const char *file, const cJSON *o, lq_err *err)
{
    const cJSON *all = js_get(o, "adapters");
    lq_status s = LQ_OK;
    if (!all) return LQ_OK;
    const int n = cJSON_IsObject(all) ? cJSON_GetArraySize(all) : ADAPTERS_MOST + 1;
    if (n > ADAPTERS_MOST) return wrong(err, "adapters", "an object of up to 256 paths", all);
    *out = words((size_t)n);
    if (!*out) return lq_fail(err, LQ_ENOMEM, "out of memory");
    char **next = *out;
    for (const cJSON *v = all->child; v && !s; v = v->next)
        s = read_adapter(next++, file, v, err);
    return s;
}

/* How many of a model's names and adapters are called so. */
static int count(const cat_model *m, const char *name, size_t n)
{
    int found = 0;
    for (char **v = m->names; v && *v; v++)
        found += strncmp(*v, name, n) == 0 && !(*v)[n];
    for (char **v = m->adapters; v && *v; v++)
        found += strncmp(*v, name, n) == 0 && (*v)[n] == '=';
    return found;
}

/* A name (its first n bytes) is one model's alone, or one adapter's. */
static lq_status check_name(const catalog *c, const char *name, size_t n, lq_err *err)
{
    const cat_model *m = &c->m[c->n - 1];
    if (n >= MAX_NAME)
        return lq_fail(err, LQ_EVALUE, "name: expected at most %d bytes, found %zu", MAX_NAME - 1,
                       n);
    if (count(m, name, n) > 1)
        return lq_fail(err, LQ_EVALUE, "the name '%.*s' comes twice", (int)n, name);
    for (int i = 0; i < c->n - 1; i++)
        if (count(&c->m[i], name, n))
            return lq_fail(err, LQ_EVALUE, "the name '%.*s' is another model's too", (int)n, name);
    return LQ_OK;
}

static lq_status check_names(const catalog *c, const cat_model *m, lq_err *err)
{
    lq_status s = LQ_OK;
    for (char **v = m->names; *v && !s; v++)
        s = check_name(c, *v, strlen(*v), err);
    for (char **v = m->adapters; v && *v && !s; v++)
        s = check_name(c, *v, strcspn(*v, "="), err);
    return s;
}

static lq_status read_model(catalog *c, const char *file, const cJSON *o, lq_err *err)
{
    static const char *const known[] = { "model",    "name",    "aliases",    "options",
                                         "adapters", "preload", "idle_unload" };
    char path[MAX_PATH], auto_name[MAX_NAME];
    const char *where = NULL, *name = NULL;
    if (!cJSON_IsObject(o)) return wrong(err, "model", "an object", o);
    for (const cJSON *v = o->child; v; v = v->next) {
        bool ours = false;
        for (size_t i = 0; i < LQ_COUNT(known); i++)
            ours |= strcmp(v->string, known[i]) == 0;
        if (!ours)
            return lq_fail(err, LQ_EVALUE, "%.80s: no member of this name is known", v->string);
    }
    lq_status s = js_str(o, "model", true, &where, err);
    if (!s) s = js_str(o, "name", false, &name, err);
    if (!s && name && !*name) s = wrong(err, "name", "a text", js_get(o, "name"));
    if (!s) s = place(path, file, where, err);
    if (s) return s;
    cat_model *m = add(c, path);
    if (!m) return lq_fail(err, LQ_ENOMEM, "out of memory");
    if (!name)
        name = strncmp(path, "hf:", 3) == 0 ? path + 3 : load_name(auto_name, MAX_NAME, path);
    if (!js_get(o, "name") && models_name(path)) name = models_name(path);
    s = read_words(&m->names, o, "aliases", name, err);
    if (!s) s = read_words(&m->options, o, "options", NULL, err);
    if (!s) s = read_adapters(&m->adapters, file, o, err);
    if (!s) s = js_bool(o, "preload", false, &m->preload, err);
    if (!s) s = js_f64(o, "idle_unload", false, 0, 1e9, &m->idle_seconds, err);
    return s ? s : check_names(c, m, err);
}

lq_status cat_read_file(catalog *c, const char *path, lq_err *err)
{
    cJSON *doc = NULL;
    *c = (catalog){ 0 };
    lq_status s = js_parse_file(&doc, path, MAX_FILE, JS_UNIQUE, err);
    if (s) return s;
    const cJSON *all = js_get(doc, "models");
    if (!cJSON_IsArray(all) || !all->child || cJSON_GetArraySize(all) > MAX_MODELS)
        s = wrong(err, "models", "an array of 1 to 4096 objects", all);
    int i = 0;
    for (const cJSON *o = s ? NULL : all->child; o && !s; o = o->next, i++) {
        s = read_model(c, path, o, err);
        if (s) lq_wrap(err, s, "models[%d]", i);
    }
    cJSON_Delete(doc);
    if (s) {
        lq_wrap(err, s, "%s", path);
        cat_free(c);
    }
    return s;
}
