/* quantize/state.c - the resume folder. */
#include "quantize/state.h"

#include <cjson/cJSON.h>
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "formats/json.h"

/* ---- the folder ---- */
static bool is_ours(const char *name)
{
    return strncmp(name, "state.json", 10) == 0 || strncmp(name, "state.tmp-", 10) == 0 ||
           strncmp(name, "part-", 5) == 0;
}

/* Delete our files; others stay, and with them the folder. */
static void wipe(const char *dir)
{
    DIR *d = opendir(dir);
    struct dirent *e;
    while (d && (e = readdir(d)))
        if (is_ours(e->d_name)) unlinkat(dirfd(d), e->d_name, 0);
    if (d) closedir(d);
}

static lq_status part_path(char *path, size_t n, const qz_state *s, int64_t part, lq_err *err)
{
    char name[32];
    snprintf(name, sizeof name, "part-%05lld.llmq", (long long)part);
    return lq_path_join(path, n, s->dir, name, err);
}

/* Does the folder hold the state of this very run? */
static bool same_key(const char *state_file, const char *key)
{
    cJSON *j = NULL;
    const char *have = NULL;
    bool same = !js_parse_file(&j, state_file, 4096, 0, NULL) &&
                !js_str(j, "key", true, &have, NULL) && strcmp(have, key) == 0;
    cJSON_Delete(j);
    return same;
}

/* A part that cannot be read, or whose bytes are not what they were, is made again. */
static void load_part(qz_state *s, int64_t part)
{
    char path[4200];
    if (part_path(path, sizeof path, s, part, NULL) || !lq_exists(path)) return;
    llmq_file f;
    if (llmq_open(&f, path, NULL)) return;
    if (llmq_verify(&f, NULL, NULL, NULL, NULL)) {
        llmq_close(&f);
        return;
    }
    s->parts[part] = f;
    s->n_done++;
}

lq_status qz_state_open(qz_state *s, const char *out_path, lq_hash key, int64_t n_parts,
                        bool resume, const plan_voice *v, lq_err *err)
{
    memset(s, 0, sizeof *s);
    s->key = key;
    s->n_parts = n_parts;
    char file[4200], hex[33], text[64];
    int n = snprintf(s->dir, sizeof s->dir, "%s.resume", out_path);
    if (n < 0 || (size_t)n >= sizeof s->dir)
        return lq_fail(err, LQ_EUSAGE, "%s: path too long", out_path);
    s->parts = calloc((size_t)n_parts, sizeof *s->parts);
    if (!s->parts) return lq_fail(err, LQ_ENOMEM, "no memory for %lld parts", (long long)n_parts);
    lq_status st = lq_path_join(file, sizeof file, s->dir, "state.json", err);
    lq_hash_hex(hex, &key);
    bool there = lq_exists(file), same = !st && resume && same_key(file, hex);
    if (!st && resume && there && !same && v && v->say)
        v->say(v->user, "the resume state is of another model, other options or other calibration "
                        "data: starting from the first layer");
    if (!st && same) {
        for (int64_t i = 0; i < n_parts; i++)
            load_part(s, i);
        return LQ_OK;
    }
    if (!st && mkdir(s->dir, 0777) != 0 && errno != EEXIST)
        st = lq_fail(err, LQ_EIO, "%s: %s", s->dir, strerror(errno));
    if (!st) {
        wipe(s->dir);
        snprintf(text, sizeof text, "{\"key\":\"%s\"}\n", hex);
        st = lq_write_file(file, text, strlen(text), err);
    }
    if (st) qz_state_close(s, false);
    return st;
}

void qz_state_close(qz_state *s, bool remove)
{
    for (int64_t i = 0; s->parts && i < s->n_parts; i++)
        if (s->parts[i].header) llmq_close(&s->parts[i]);
    free(s->parts);
    if (remove && s->dir[0]) {
        wipe(s->dir);
        rmdir(s->dir);
    }
    memset(s, 0, sizeof *s);
}

/* ---- parts ---- */
static cJSON *reports_json(const qz_part *p)
{
    cJSON *o = cJSON_CreateObject(), *a = cJSON_AddArrayToObject(o, "reports");
    for (size_t i = 0; i < p->n_reports; i++)
        cJSON_AddItemToArray(a, qz_report_json(&p->reports[i]));
    return o;
}

lq_status qz_state_add(qz_state *s, int64_t part, const qz_part *p, lq_err *err)
{
    char path[4200];
    llmq_writer *w = NULL;
    cJSON *reports = reports_json(p);
    lq_status st = part_path(path, sizeof path, s, part, err);
    if (!st) st = llmq_create(&w, path, err);
    for (size_t i = 0; i < p->n_items && !st; i++) {
        const plan_entry *e = p->items[i].e;
        st = llmq_add_tensor(w, e->name, &p->items[i].t, e->src->n_dims, qz_plan_shape(e), err);
    }
    if (!st) st = llmq_set_recipe(w, reports, err);
    if (st)
        llmq_abort(w);
    else
        st = llmq_commit(w, err);
    cJSON_Delete(reports);
    if (!st) {
        st = llmq_open(&s->parts[part], path, err);
        if (!st) s->n_done++;
    }
    return st;
}

lq_status qz_state_items(const qz_state *s, const qz_plan *plan, int64_t part, qz_item *items,
                         size_t *n, lq_err *err)
{
    const llmq_file *f = &s->parts[part];
    size_t at = 0;
    *n = 0;
    for (size_t i = 0; i < plan->n && at < f->n_tensors; i++) {
        const plan_entry *e = &plan->e[i];
        if (e->part != part || strcmp(e->name, f->tensors[at].name) != 0) continue;
        const llmq_tensor *have = &f->tensors[at++];
        const qt_tensor *t = &have->t;
        if (have->n_dims != e->src->n_dims ||
            memcmp(have->shape, qz_plan_shape(e), (size_t)have->n_dims * sizeof *have->shape) != 0)
            break;
        items[(*n)++] = (qz_item){ e, *t };
    }
    if (*n != f->n_tensors)
        return lq_fail(err, LQ_EFORMAT,
                       "%s: part %lld does not fit the model; run without --resume", s->dir,
                       (long long)part);
    return LQ_OK;
}

void qz_state_reports(const qz_state *s, int64_t part, qz_report *reports, size_t *n)
{
    const cJSON *a = cJSON_GetObjectItemCaseSensitive(s->parts[part].recipe, "reports"), *j;
    cJSON_ArrayForEach(j, a) *n += qz_report_read(&reports[*n], j);
}
