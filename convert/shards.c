/* convert/shards.c - see shards.h. */
#include "convert/shards.h"

#include "base/file.h"
#include "base/hash.h"
#include "base/path.h"
#include "formats/source/history.h"

#include <stdio.h>

static size_t part_bytes(const conv_part *p)
{
    size_t n = 0;
    st_shape_bytes(p->dtype, p->n_dims, p->shape, &n);
    return n;
}

lq_status conv_plan_parts(conv_weight *w, const conv_layout *l, const conv_plan *p, lq_err *err)
{
    w->n_parts = 0;
    w->bytes = 0;
    lq_status s = l->plan(w, p, err);
    for (int i = 0; i < w->n_parts && !s; i++)
        w->bytes += part_bytes(&w->parts[i]);
    return s;
}

int conv_next_shard(int *at, size_t *in_shard, size_t bytes, size_t limit)
{
    if (limit && *in_shard && *in_shard + bytes > limit) {
        ++*at;
        *in_shard = 0;
    }
    *in_shard += bytes;
    return *at;
}

void conv_shard_name(char *name, size_t n, int i, int n_shards)
{
    if (n_shards == 1)
        snprintf(name, n, "model.safetensors");
    else
        snprintf(name, n, "model-%05d-of-%05d.safetensors", i + 1, n_shards);
}

int conv_list_parts(st_tensor *out, const conv_weight *w, lq_arena *a)
{
    for (int i = 0; i < w->n_parts; i++) {
        char name[600];
        const conv_part *p = &w->parts[i];
        const int n = snprintf(name, sizeof name, "%s%s", w->module, p->suffix);
        out[i] = (st_tensor){ .name = lq_push_str(a, name, (size_t)n),
                              .dtype = p->dtype,
                              .n_dims = p->n_dims,
                              .bytes = part_bytes(p) };
        memcpy(out[i].shape, p->shape, sizeof p->shape);
    }
    return w->n_parts;
}

lq_status conv_pack(uint8_t *bytes, const conv_layout *l, const conv_weight *w, const qt_tensor *q,
                    const conv_plan *p, lq_err *err)
{
    uint8_t *dst[CONV_PARTS] = { bytes };
    for (int i = 1; i < w->n_parts; i++)
        dst[i] = dst[i - 1] + part_bytes(&w->parts[i - 1]);
    return l->pack(dst, w, q, p, err);
}

lq_status conv_put_parts(st_writer *out, size_t first, const conv_weight *w, const uint8_t *bytes,
                         lq_err *err)
{
    lq_status s = LQ_OK;
    for (int i = 0; i < w->n_parts && !s; i++) {
        const size_t n = part_bytes(&w->parts[i]);
        s = st_put(out, first + (size_t)i, 0, bytes, n, err);
        bytes += n;
    }
    return s;
}

lq_status conv_write_shards(const conv_folder *f, int n_shards, size_t total,
                            lq_status (*write)(void *user, int shard, cJSON *map, lq_err *err),
                            void *user, lq_err *err)
{
    cJSON *j = cJSON_CreateObject(), *meta = cJSON_AddObjectToObject(j, "metadata");
    cJSON_AddNumberToObject(meta, "total_size", (double)total);
    cJSON *map = cJSON_AddObjectToObject(j, "weight_map");
    lq_status s = map ? LQ_OK : lq_fail(err, LQ_ENOMEM, "no memory for the index");
    for (int i = 0; i < n_shards && !s; i++)
        s = write(user, i, map, err);
    if (!s && n_shards > 1) s = folder_write_json(f, "model.safetensors.index.json", j, err);
    cJSON_Delete(j);
    return s;
}

lq_status conv_list_files(cJSON *files, const conv_folder *f, int n_shards, lq_err *err)
{
    lq_status s = LQ_OK;
    for (int i = 0; i < n_shards && !s; i++) {
        char name[64], path[4200], hex[33];
        lq_map m;
        conv_shard_name(name, sizeof name, i, n_shards);
        s = lq_path_join(path, sizeof path, f->dir, name, err);
        if (!s) s = lq_map_open(&m, path, err);
        if (s) break;
        const lq_hash h = history_header(&m);
        lq_hash_hex(hex, &h);
        cJSON_AddStringToObject(cJSON_AddObjectToObject(files, name), HISTORY_HEADER, hex);
        lq_map_close(&m);
    }
    return s;
}
