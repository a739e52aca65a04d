/* formats/gguf/imatrix.c - see imatrix.h. */
#include "formats/gguf/imatrix.h"

#include "formats/gguf/gguf.h"

#include <stdio.h>
#include <stdlib.h>

static int by_name(const void *a, const void *b)
{
    return strcmp(((const imatrix_entry *)a)->name, ((const imatrix_entry *)b)->name);
}

static lq_status check_values(const imatrix_entry *e, lq_err *err)
{
    for (int64_t i = 0; i < e->n; i++)
        if (!(e->mean_sq[i] >= 0) || !isfinite(e->mean_sq[i]))
            return lq_fail(err, LQ_EVALUE,
                           "%s: input %lld: expected a mean square of 0 or more, found %g", e->name,
                           (long long)i, (double)e->mean_sq[i]);
    return LQ_OK;
}

/* ---- GGUF ---- */
static const char SUMS[] = ".in_sum2", COUNTS[] = ".counts";

static lq_status take_sums(imatrix *m, imatrix_entry *e, const gguf_file *f, const gguf_tensor *t,
                           lq_err *err)
{
    char counts[256];
    const size_t n = strlen(t->name) - (sizeof SUMS - 1);
    snprintf(counts, sizeof counts, "%.*s%s", (int)n, t->name, COUNTS);
    const gguf_tensor *c = gguf_find(f, counts);
    if (!c || c->type != GGML_F32 || t->type != GGML_F32)
        return lq_fail(err, LQ_EFORMAT, "%s: expected sums and counts in F32", t->name);
    const size_t parts = c->bytes / sizeof(float), values = t->bytes / sizeof(float);
    if (!parts || values % parts)
        return lq_fail(err, LQ_EFORMAT, "%s: %zu sums with %zu counts", t->name, values, parts);
    e->name = lq_push_str(&m->arena, t->name, n);
    e->mean_sq = lq_push(&m->arena, t->bytes);
    e->n = (int64_t)values;
    if (!e->name || !e->mean_sq) return lq_fail(err, LQ_ENOMEM, "no memory");
    memcpy(e->mean_sq, t->data, t->bytes);
    for (size_t p = 0; p < parts; p++) {
        float count;
        memcpy(&count, c->data + p * sizeof count, sizeof count);
        for (size_t i = p * (values / parts); i < (p + 1) * (values / parts); i++)
            e->mean_sq[i] = count > 0 ? e->mean_sq[i] / count : 1;
    }
    return check_values(e, err);
}

static lq_status take_gguf(imatrix *m, const lq_map *map, lq_err *err)
{
    gguf_file f;
    const char *type = "";
    lq_status s = gguf_open_bytes(&f, map->data, map->size, err);
    if (s) return s;
    if (!gguf_str(&f, "general.type", &type) || strcmp(type, "imatrix") != 0)
        s = lq_fail(err, LQ_EFORMAT, "general.type: expected imatrix, found '%s'", type);
    m->e = lq_push(&m->arena, (f.n + 1) * sizeof *m->e);
    if (!s && !m->e) s = lq_fail(err, LQ_ENOMEM, "no memory");
    for (size_t i = 0; i < f.n && !s; i++) {
        const size_t n = strlen(f.tensors[i].name);
        if (n >= sizeof SUMS && strcmp(f.tensors[i].name + n - (sizeof SUMS - 1), SUMS) == 0)
            s = take_sums(m, &m->e[m->n++], &f, &f.tensors[i], err);
    }
    gguf_close(&f);
    return s;
}

/* ---- the old form ---- */
typedef struct {
    const uint8_t *at, *end;
} cursor;

static bool take_int(cursor *c, int32_t *v)
{
    if (c->end - c->at < 4) return false;
    memcpy(v, c->at, 4);
    c->at += 4;
    return true;
}

static lq_status take_entry(imatrix *m, imatrix_entry *e, cursor *c, lq_err *err)
{
    int32_t len, calls, n;
    if (!take_int(c, &len) || len < 1 || len > c->end - c->at) goto bad;
    e->name = lq_push_str(&m->arena, (const char *)c->at, (size_t)len);
    c->at += len;
    if (!take_int(c, &calls) || calls < 0 || !take_int(c, &n) || n < 1 || n > (c->end - c->at) / 4)
        goto bad;
    e->mean_sq = lq_push(&m->arena, (size_t)n * sizeof *e->mean_sq);
    e->n = n;
    if (!e->name || !e->mean_sq) return lq_fail(err, LQ_ENOMEM, "no memory");
    memcpy(e->mean_sq, c->at, (size_t)n * sizeof *e->mean_sq);
    c->at += (size_t)n * sizeof *e->mean_sq;
    for (int32_t i = 0; i < n && calls > 0; i++)
        e->mean_sq[i] /= (float)calls;
    return check_values(e, err);
bad:
    return lq_fail(err, LQ_EFORMAT,
                   "expected an importance matrix of llama.cpp; weight %zu: the file ends, or a "
                   "count is negative or 0",
                   m->n);
}

static lq_status take_old(imatrix *m, const lq_map *map, lq_err *err)
{
    enum { LEAST = 14 }; /* bytes of a weight */
    cursor c = { map->data, map->data + map->size };
    int32_t n;
    if (!take_int(&c, &n) || n < 1 || n > (c.end - c.at) / LEAST)
        return lq_fail(err, LQ_EFORMAT, "expected an importance matrix of llama.cpp");
    m->e = lq_push(&m->arena, (size_t)n * sizeof *m->e);
    if (!m->e) return lq_fail(err, LQ_ENOMEM, "no memory");
    lq_status s = LQ_OK;
    for (int32_t i = 0; i < n && !s; i++)
        s = take_entry(m, &m->e[m->n++], &c, err);
    return s;
}

/* ---- both ---- */
lq_status imatrix_open(imatrix *m, const char *path, lq_err *err)
{
    lq_map map;
    *m = (imatrix){ 0 };
    lq_status s = lq_map_open(&map, path, err);
    if (s) return s;
    const bool gguf = map.size >= 4 && memcmp(map.data, "GGUF", 4) == 0;
    s = gguf ? take_gguf(m, &map, err) : take_old(m, &map, err);
    m->hash = lq_hash_bytes(map.data, map.size);
    lq_map_close(&map);
    if (!s && !m->n) s = lq_fail(err, LQ_EFORMAT, "no weight is in it");
    if (s) {
        imatrix_close(m);
        return lq_wrap(err, s, "%s", path);
    }
    qsort(m->e, m->n, sizeof *m->e, by_name);
    for (size_t i = 1; i < m->n; i++)
        if (strcmp(m->e[i - 1].name, m->e[i].name) == 0) {
            s = lq_fail(err, LQ_EFORMAT, "%s: %s is in it twice", path, m->e[i].name);
            imatrix_close(m);
            return s;
        }
    return LQ_OK;
}

void imatrix_close(imatrix *m)
{
    lq_arena_free(&m->arena);
    *m = (imatrix){ 0 };
}

const imatrix_entry *imatrix_find(const imatrix *m, const char *name)
{
    const imatrix_entry key = { .name = name };
    return bsearch(&key, m->e, m->n, sizeof *m->e, by_name);
}
