/* convert/shards.c - see shards.h. */
#include "convert/shards.h"

#include "base/file.h"
#include "base/hash.h"
#include "base/path.h"
#include "formats/source/history.h"

#include <stdio.h>
#include <stdlib.h>

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

/* Weights that a stack has one after another in this one's parts, and stacks that these are of. */
static int64_t experts_in(const conv_weight *w) { return w->expert < 0 ? w->stack : 1; }
static int halves_of(const conv_weight *w) { return w->up ? 2 : 1; }

static void as_stack(st_tensor *t, const conv_weight *w)
{
    const int64_t rows = t->shape[0] / experts_in(w) / halves_of(w);
    t->bytes = t->bytes / (size_t)experts_in(w) * (size_t)w->stack / (size_t)halves_of(w);
    t->shape[2] = t->shape[1];
    t->shape[1] = rows;
    t->shape[0] = w->stack;
    t->n_dims++;
}

int conv_list_parts(st_tensor *out, const conv_weight *w, lq_arena *a)
{
    int at = 0;
    for (int i = 0; i < w->n_parts; i++)
        for (int half = 0; half < halves_of(w); half++) {
            char name[600];
            const conv_part *p = &w->parts[i];
            const int n = snprintf(name, sizeof name, "%s%s", half ? w->up : w->module, p->suffix);
            out[at] = (st_tensor){ .name = lq_push_str(a, name, (size_t)n),
                                   .dtype = p->dtype,
                                   .n_dims = p->n_dims,
                                   .bytes = part_bytes(p) };
            memcpy(out[at].shape, p->shape, sizeof p->shape);
            if (w->stack) as_stack(&out[at], w);
            at++;
        }
    return at;
}

lq_status conv_pack(uint8_t *bytes, const conv_layout *l, const conv_weight *w, const qt_tensor *q,
                    const conv_plan *p, lq_err *err)
{
    uint8_t *dst[CONV_PARTS] = { bytes };
    for (int i = 1; i < w->n_parts; i++)
        dst[i] = dst[i - 1] + part_bytes(&w->parts[i - 1]);
    return l->pack(dst, w, q, p, err);
}

/* Part p's rows of gate and of up into tensors first and first + 1. */
static lq_status put_halves(st_writer *out, size_t first, const conv_weight *w, const conv_part *p,
                            const uint8_t *bytes, lq_err *err)
{
    const int64_t experts = experts_in(w), rows = p->shape[0] / experts / 2;
    const size_t row = part_bytes(p) / (size_t)p->shape[0], one = (size_t)rows * row;
    uint8_t *half = malloc(one);
    lq_status s = half ? LQ_OK : lq_fail(err, LQ_ENOMEM, "no memory for %zu bytes", one);
    for (int64_t k = 0; k < 2 * experts && !s; k++) {
        const uint8_t *from = bytes + (size_t)(k / 2) * 2 * one;
        for (int64_t r = 0; r < rows; r++) {
            const int64_t at = w->mixed ? 2 * r + k % 2 : k % 2 * rows + r;
            memcpy(half + (size_t)r * row, from + (size_t)at * row, row);
        }
        s = st_put(out, first + (size_t)(k % 2), (size_t)(k / 2) * one, half, one, err);
    }
    free(half);
    return s;
}

lq_status conv_put_parts(st_writer *out, size_t first, const conv_weight *w, const uint8_t *bytes,
                         lq_err *err)
{
    const size_t expert = w->stack && w->expert > 0 ? (size_t)w->expert : 0;
    lq_status s = LQ_OK;
    for (int i = 0; i < w->n_parts && !s; i++) {
        const size_t n = part_bytes(&w->parts[i]);
        s = w->up ? put_halves(out, first, w, &w->parts[i], bytes, err)
                  : st_put(out, first, expert * n, bytes, n, err);
        first += (size_t)halves_of(w);
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
