/* tools/verify/verify_sums.c */
#include "tools/verify/verify_sums.h"

#include "base/file.h"
#include "base/path.h"
#include "publish/files.h"
#include "tools/cli/progress.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static lq_status read_sums(pub_files *sums, verdict *v, const char *path, lq_err *err)
{
    char *text = NULL;
    size_t n = 0;
    if (access(path, R_OK) != 0) return lq_open_failed(err, path);
    lq_status s = lq_read_file(&text, &n, path, PUB_MAX_SMALL, err);
    if (!s) s = pub_read_sums(sums, text, n, err);
    free(text);
    if (lq_exit_code(s) != lq_exit_code(LQ_EFORMAT)) return s;
    verdict_add(v, PUB_SUMS, err->msg);
    return LQ_OK;
}

static lq_status check_file(verdict *v, const char *dir, const pub_file *sum, lq_err *err)
{
    char path[4200], what[2 * SHA_HEX + 40];
    pub_files one = { NULL, 0 };
    lq_status s = lq_path_join(path, sizeof path, dir, sum->name, err);
    if (s) return s;
    v->checked++;
    if (!lq_exists(path)) {
        verdict_add(v, sum->name, PUB_SUMS " names it, but it is not there");
        return LQ_OK;
    }
    s = pub_add_path(&one, sum->name, path, err);
    if (!s) s = pub_hash(&one, v->c->job, err);
    if (!s && strcmp(one.f[0].sha256, sum->sha256) != 0) {
        snprintf(what, sizeof what, "expected SHA-256 %s, found %s", sum->sha256, one.f[0].sha256);
        verdict_add(v, sum->name, what);
    }
    pub_files_free(&one);
    return s;
}

/* Files of a model that the list does not name. */
static lq_status find_strangers(verdict *v, const char *dir, const char *sub, const pub_files *sums,
                                lq_err *err)
{
    char path[4200], name[600];
    lq_status s = lq_path_join(path, sizeof path, dir, sub, err);
    DIR *d = s ? NULL : opendir(path);
    if (!s && !d && (!*sub || (errno != ENOENT && errno != ENOTDIR))) s = lq_open_failed(err, path);
    for (struct dirent *e; d && (e = lq_next_entry(&s, d, path, err));) {
        snprintf(name, sizeof name, "%s%s", sub, e->d_name);
        if (e->d_name[0] != '.' && strcmp(name, PUB_SUMS) != 0 && model_file_of(name) &&
            !pub_find(sums, name))
            verdict_add(v, name, "expected in " PUB_SUMS ", not found there");
    }
    if (d) closedir(d);
    return s;
}

lq_status verify_sums(verdict *v, const char *path, lq_err *err)
{
    char file[4200];
    pub_files sums = { NULL, 0 };
    if (!lq_is_dir(path)) return LQ_OK;
    lq_status s = lq_path_join(file, sizeof file, path, PUB_SUMS, err);
    if (s || !lq_exists(file)) return s;
    s = read_sums(&sums, v, file, err);
    for (size_t i = 0; i < sums.n && !s; i++)
        s = check_file(v, path, &sums.f[i], err);
    if (!s && sums.n) s = find_strangers(v, path, "", &sums, err);
    if (!s && sums.n) s = find_strangers(v, path, "additional_chat_templates/", &sums, err);
    pub_files_free(&sums);
    if (v->n_bad)
        prog_say(LOG_WARN, "where files were changed on purpose, remove " PUB_SUMS
                           ": llmq publish writes a new one");
    return s;
}

/* The folder of a module that modules.json names? */
static bool is_module(const src_source *src, const char *name)
{
    for (size_t i = 0; i < src_n_blobs(src); i++) {
        const char *blob = src_blob_at(src, i)->name;
        size_t n;
        if (model_module_blob(blob, &n) && strlen(name) == n && memcmp(blob, name, n) == 0)
            return true;
    }
    return false;
}

void verify_beside(verdict *v, const src_source *src, const char *path)
{
    char file[4200];
    DIR *d = lq_is_dir(path) ? opendir(path) : NULL;
    for (struct dirent *e; d && (e = readdir(d));) {
        const model_file *kind = model_file_of(e->d_name);
        if (e->d_name[0] == '.' || lq_path_join(file, sizeof file, path, e->d_name, NULL)) continue;
        const bool folder = lq_is_dir(file);
        if (folder
                ? strcmp(e->d_name, "additional_chat_templates") == 0 || is_module(src, e->d_name)
                : !kind || !kind->weights || src_reads(src, file))
            continue;
        prog_say(LOG_WARN, "%s: a %s that is no part of the model: not checked", file,
                 folder ? "folder" : "file of weights");
        cJSON *name = cJSON_CreateString(e->d_name);
        if (!cJSON_AddItemToArray(v->beside, name)) v->no_memory = true;
    }
    if (d) closedir(d);
}
