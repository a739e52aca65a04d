/* formats/source/source_locate.c - the file that stands for a folder without safetensors. */
#include "base/path.h"
#include "formats/source/source.h"

#include <dirent.h>
#include <stdio.h>

/* ---- the file that stands for a folder ---- */
bool src_is_whole(const char *name)
{
    if (name[0] == '.' || (!lq_has_ending(name, ".llmq") && !lq_has_ending(name, ".gguf")))
        return false;
    return !strstr(name, "-of-") || strstr(name, "-00001-of-");
}

static bool is_folder(const char *dir, const char *name)
{
    char path[4200];
    return !lq_path_join(path, sizeof path, dir, name, NULL) && lq_is_dir(path);
}

typedef struct {
    char name[256], all[300]; /* one of them; of several the first names */
    int n;
    bool tensors; /* there are .safetensors */
} whole_files;

static lq_status list_whole(whole_files *w, const char *dir, lq_err *err)
{
    DIR *d = opendir(dir);
    if (!d) return lq_open_failed(err, dir);
    lq_status s = LQ_OK;
    for (struct dirent *e; (e = lq_next_entry(&s, d, dir, err));) {
        const size_t at = strlen(w->all);
        w->tensors = w->tensors || lq_has_ending(e->d_name, ".safetensors");
        if (!src_is_whole(e->d_name) || is_folder(dir, e->d_name)) continue;
        snprintf(w->name, sizeof w->name, "%s", e->d_name);
        snprintf(w->all + at, sizeof w->all - at, "%s%.100s", w->n++ ? ", " : "", e->d_name);
    }
    closedir(d);
    return s;
}

/* Hugging Face's cache: snapshots/COMMIT, whose files are links into blobs/. */
static lq_status refuse_cache(const char *dir, lq_err *err)
{
    char path[4200], all[300] = "";
    if (!is_folder(dir, "blobs")) return LQ_OK;
    DIR *d = lq_path_join(path, sizeof path, dir, "snapshots", NULL) ? NULL : opendir(path);
    for (struct dirent *e; d && (e = readdir(d));) {
        const size_t at = strlen(all);
        if (e->d_name[0] != '.' && is_folder(path, e->d_name))
            snprintf(all + at, sizeof all - at, "%ssnapshots/%.100s", at ? ", " : "", e->d_name);
    }
    if (d) closedir(d);
    if (!all[0]) return LQ_OK;
    return lq_fail(err, LQ_EUSAGE,
                   "%s: expected a model, found a folder of Hugging Face's cache: name a snapshot "
                   "in it: %s",
                   dir, all);
}

lq_status src_locate(char *out, size_t n, const char *path, lq_err *err)
{
    whole_files w = { .n = 0 };
    if (!*path) return lq_fail(err, LQ_EUSAGE, "model: expected a name, found \"\"");
    lq_status s = lq_is_dir(path) ? list_whole(&w, path, err) : LQ_OK;
    if (s) return s;
    if (w.n > 1 && !w.tensors)
        return lq_fail(err, LQ_EUSAGE, "%s: expected one model, found %d: name one of %s", path,
                       w.n, w.all);
    if (w.n == 1 && !w.tensors) return lq_path_join(out, n, path, w.name, err);
    if (!w.tensors && lq_is_dir(path)) s = refuse_cache(path, err);
    if (s) return s;
    return (size_t)snprintf(out, n, "%s", path) < n
               ? LQ_OK
               : lq_fail(err, LQ_EVALUE, "%.100s...: too long", path);
}
