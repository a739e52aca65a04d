/* runtime/api/api_files.c - see api_files.h; in a folder: api_disk.h. */
#include "runtime/api/api_files_int.h"

#include "base/os.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

/* Under mu. */
static void unref(api_files *s, api_file *f)
{
    if (--f->refs > 0) return;
    s->bytes -= f->data.cap + sizeof *f;
    if (f->map.data)
        lq_map_close(&f->map);
    else
        lq_buf_free(&f->data);
    free(f);
}

/* Under mu. Takes the file at *at out of the list. */
static void forget(api_files *s, api_file **at)
{
    api_file *f = *at;
    *at = f->next;
    unref(s, f);
}

void api_files_remove_names(const api_files *s, const api_file *f)
{
    api_disk_remove(s->disk, f->id, ".json");
    api_disk_remove(s->disk, f->id, "");
}

/* Under mu. And out of the folder. */
static void drop(api_files *s, api_file **at)
{
    if (s->disk) api_files_remove_names(s, *at);
    forget(s, at);
}

void api_files_expire(api_files *s)
{
    const int64_t now = (int64_t)time(NULL);
    for (api_file **at = &s->latest; *at;)
        if ((*at)->expires && (*at)->expires <= now)
            drop(s, at);
        else
            at = &(*at)->next;
}

void api_files_close(api_files *s)
{
    if (!s) return;
    while (s->latest)
        forget(s, &s->latest);
    pthread_mutex_destroy(&s->mu);
    free(s);
}

/* ---- in a folder ---- */

static lq_status save(const api_files *s, const api_file *f, lq_err *err)
{
    char owner[33];
    jw w = { 0 };
    lq_hash_hex(owner, &f->owner);
    jw_open(&w, '{');
    jw_key(&w, "filename");
    jw_cstr(&w, f->name);
    jw_key(&w, "purpose");
    jw_cstr(&w, f->purpose);
    jw_key(&w, "owner");
    jw_cstr(&w, owner);
    jw_key(&w, "created_at");
    jw_i64(&w, f->created);
    jw_key(&w, "expires_at");
    jw_i64(&w, f->expires);
    jw_key(&w, "order");
    jw_i64(&w, f->order);
    jw_close(&w, '}');
    return api_disk_put_json(s->disk, f->id, &w, err);
}

static void view_map(api_file *f)
{
    union {
        const uint8_t *from;
        char *to;
    } bytes = { f->map.data }; /* nobody writes there */
    f->data = (lq_buf){ .p = bytes.to, .n = f->map.size, .cap = f->map.size };
}

bool api_read_owner(lq_hash *to, const cJSON *j)
{
    const char *hex = cJSON_GetStringValue(js_get(j, "owner"));
    if (!hex || strlen(hex) != 2 * sizeof to->b) return false;
    for (size_t i = 0; i < sizeof to->b; i++) {
        unsigned v;
        if (sscanf(hex + 2 * i, "%2x", &v) != 1) return false;
        to->b[i] = (uint8_t)v;
    }
    return true;
}

/* Where the file that came `order` belongs: the list has the latest first. */
static api_file **place_of(api_files *s, int64_t order)
{
    api_file **at = &s->latest;
    while (*at && (*at)->order > order)
        at = &(*at)->next;
    return at;
}

/* One that is there; others have no name of ours. */
static lq_status load(void *user, const char *id, const cJSON *j)
{
    api_files *s = user;
    const char *name = NULL, *purpose = NULL;
    api_file *f = calloc(1, sizeof *f);
    if (!f) return LQ_ENOMEM;
    const bool known = strlen(id) < sizeof f->id && !js_str(j, "filename", true, &name, NULL) &&
                       !js_str(j, "purpose", true, &purpose, NULL) &&
                       !js_i64(j, "created_at", true, 0, (int64_t)1 << 52, &f->created, NULL) &&
                       !js_i64(j, "expires_at", true, 0, (int64_t)1 << 52, &f->expires, NULL) &&
                       !js_i64(j, "order", true, 0, (int64_t)1 << 52, &f->order, NULL) &&
                       api_read_owner(&f->owner, j) && !api_disk_map(s->disk, &f->map, id, NULL);
    if (!known) {
        free(f);
        return LQ_OK;
    }
    f->refs = 1;
    view_map(f);
    snprintf(f->id, sizeof f->id, "%s", id);
    snprintf(f->name, sizeof f->name, "%s", name);
    snprintf(f->purpose, sizeof f->purpose, "%s", purpose);
    s->bytes += f->data.cap + sizeof *f;
    if (s->order <= f->order) s->order = f->order + 1;
    api_file **at = place_of(s, f->order);
    f->next = *at;
    *at = f;
    return LQ_OK;
}

lq_status api_files_open(api_files **out, size_t most_bytes, const api_disk *disk, lq_err *err)
{
    api_files *s = *out = calloc(1, sizeof *s);
    if (!s) return lq_fail(err, LQ_ENOMEM, "out of memory");
    pthread_mutex_init(&s->mu, NULL);
    s->most = most_bytes;
    s->disk = disk;
    lq_status st = disk ? api_disk_each(disk, "file-", load, s, err) : LQ_OK;
    if (!st && disk) api_disk_tidy(disk);
    return st;
}

/* ---- bytes ---- */

bool api_files_claim(api_files *s, size_t n)
{
    pthread_mutex_lock(&s->mu);
    api_files_expire(s);
    const bool fits = s->bytes <= s->most && n <= s->most - s->bytes;
    if (fits) s->bytes += n;
    pthread_mutex_unlock(&s->mu);
    return fits;
}

void api_files_give_back(api_files *s, size_t n)
{
    pthread_mutex_lock(&s->mu);
    s->bytes -= n;
    pthread_mutex_unlock(&s->mu);
}

void api_secret_id(char out[48], const char *prefix)
{
    unsigned long long v[2] = { 0 };
    if (!os_random(v, sizeof v)) v[0] = (unsigned long long)time(NULL);
    snprintf(out, 48, "%s%016llx%016llx", prefix, v[0], v[1]);
}

api_file *api_files_make(api_files *s, const api_file *like)
{
    api_file *f = malloc(sizeof *f);
    if (!f) return NULL;
    *f = *like;
    f->refs = 2; /* the list's and the caller's */
    f->created = (int64_t)time(NULL);
    api_secret_id(f->id, "file-");
    pthread_mutex_lock(&s->mu);
    f->order = s->order++;
    pthread_mutex_unlock(&s->mu);
    return f;
}

void api_files_enlist(api_files *s, api_file *f)
{
    pthread_mutex_lock(&s->mu);
    api_file **at = place_of(s, f->order);
    f->next = *at;
    *at = f;
    pthread_mutex_unlock(&s->mu);
}

lq_status api_files_settle(const api_files *s, api_file *f, lq_err *err)
{
    const lq_status st = api_disk_map(s->disk, &f->map, f->id, err);
    if (st) return st;
    view_map(f);
    return save(s, f, err);
}

api_file *api_files_add(api_files *s, const api_file *like, lq_buf *data, lq_err *err)
{
    const size_t claimed = data->cap + sizeof(api_file);
    api_file *f = api_files_make(s, like);
    lq_status st = f ? LQ_OK : lq_fail(err, LQ_ENOMEM, "out of memory");
    if (!st && s->disk) {
        st = api_disk_put(s->disk, f->id, data->p, data->n, err);
        if (!st) st = api_files_settle(s, f, err);
        if (!st) f->data.cap = data->cap; /* as claimed */
    } else if (!st) {
        f->data = *data;
        *data = (lq_buf){ .n = 0 };
    }
    lq_buf_free(data);
    if (!st) {
        api_files_enlist(s, f);
        return f;
    }
    if (f && s->disk) {
        api_files_remove_names(s, f);
        lq_map_close(&f->map);
    }
    api_files_give_back(s, claimed);
    free(f);
    return NULL;
}

/* Under mu. Where the owner's file of this id is; NULL: nowhere. */
static api_file **find(api_files *s, const char *id, const lq_hash *owner)
{
    api_files_expire(s);
    for (api_file **at = &s->latest; *at; at = &(*at)->next)
        if (strcmp((*at)->id, id) == 0 && memcmp(&(*at)->owner, owner, sizeof *owner) == 0)
            return at;
    return NULL;
}

api_file *api_files_get(api_files *s, const char *id, const lq_hash *owner)
{
    pthread_mutex_lock(&s->mu);
    api_file **at = find(s, id, owner), *f = at ? *at : NULL;
    if (f) f->refs++;
    pthread_mutex_unlock(&s->mu);
    return f;
}

void api_file_unref(api_files *s, api_file *f)
{
    if (!f) return;
    pthread_mutex_lock(&s->mu);
    unref(s, f);
    pthread_mutex_unlock(&s->mu);
}

bool api_files_remove(api_files *s, const char *id, const lq_hash *owner)
{
    pthread_mutex_lock(&s->mu);
    api_file **at = find(s, id, owner);
    if (at) drop(s, at);
    pthread_mutex_unlock(&s->mu);
    return at != NULL;
}
