/* formats/source/source.c - what all kinds of sources share: opening by kind, look-up, roles. */
#include "formats/source/source_impl.h"

#include "base/json.h"
#include "base/path.h"
#include "formats/tensor/finite.h"
#include "formats/tensor/tiles.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- opening ---- */
typedef lq_status open_fn(src_source *s, const src_opts *o, lq_err *err);

static lq_status pick(open_fn **open, const char *path, lq_err *err)
{
    static const struct {
        const char *magic, *name;
        open_fn *open;
    } kinds[] = { { "LLMQ", ".llmq", src_llmq_open },
                  { "GGUF", ".gguf", src_gguf_open },
                  { "PK\3\4",
                    "a PyTorch file (a pickle, which is not read: save the model with "
                    "safe_serialization=True in Python's transformers)",
                    NULL } };
    *open = src_hf_open;
    if (lq_is_dir(path)) return LQ_OK;
    lq_map m;
    lq_status s = lq_map_open(&m, path, err);
    if (s) return s;
    for (size_t i = 0; i < LQ_COUNT(kinds); i++) {
        if (m.size < 4 || memcmp(m.data, kinds[i].magic, 4) != 0) continue;
        *open = kinds[i].open;
        if (!*open)
            s = lq_fail(err, LQ_EUNSUPPORTED,
                        "%s: expected an HF folder, a .safetensors, .gguf or .llmq file, found %s",
                        path, kinds[i].name);
    }
    if (!s && *open == src_hf_open && !lq_has_ending(path, ".safetensors") &&
        (m.size < 9 || m.data[8] != '{'))
        s = lq_fail(err, LQ_EFORMAT,
                    "%s: expected an HF folder, a .safetensors, .gguf or .llmq file, found none of "
                    "their first bytes",
                    path);
    lq_map_close(&m);
    return s;
}

int src_by_name(const void *a, const void *b)
{
    const src_tensor *x = a, *y = b;
    return strcmp(x->name, y->name);
}

lq_status src_open(src_source **out, const char *path, const src_opts *o, lq_err *err)
{
    static const src_opts none;
    char found[4200];
    *out = NULL;
    open_fn *open;
    lq_status s = src_locate(found, sizeof found, path, err);
    if (s) return s;
    path = found;
    s = pick(&open, path, err);
    if (s) return s;
    src_source *src = calloc(1, sizeof *src);
    if (!src || !(src->path = strdup(path))) {
        free(src);
        return lq_fail(err, LQ_ENOMEM, "%s: out of memory", path);
    }
    if (!o) o = &none;
    s = open(src, o, err);
    if (!s && o->need_config && !src->has_config)
        s = lq_fail(err, LQ_ENOENT, "%s: expected a model's config, found none", path);
    if (s)
        src_close(src);
    else
        *out = src;
    return s;
}

void src_close(src_source *s)
{
    if (!s) return;
    for (size_t i = 0; i < s->n_shards; i++)
        st_close(&s->shards[i]);
    for (size_t i = 0; s->blob_maps && i < s->n_blobs; i++)
        lq_map_close(&s->blob_maps[i]);
    if (s->has_config) arch_config_free(&s->config);
    cJSON_Delete(s->quant);
    cJSON_Delete(s->history);
    src_free_room(s);
    llmq_close(&s->llmq);
    gguf_close(&s->gguf);
    for (size_t i = 0; i < s->n_splits; i++)
        gguf_close(&s->splits[i]);
    lq_arena_free(&s->arena);
    free(s->stamps);
    free(s->path);
    free(s);
}

lq_status src_fill_plain(src_tensor *out, const char *name, lq_dtype d, int n_dims,
                         const int64_t *shape, const void *data, size_t bytes, lq_err *err)
{
    if (n_dims > (int)LQ_COUNT(out->shape))
        return lq_fail(err, LQ_EUNSUPPORTED, "tensor '%.100s': expected at most %zu dims, found %d",
                       name, LQ_COUNT(out->shape), n_dims);
    *out = (src_tensor){ .name = name,
                         .n_dims = n_dims,
                         .plain = lq_dtype_is_float(d) && bytes,
                         .raw_dtype = d,
                         .raw = { data, bytes } };
    int64_t K = n_dims ? shape[n_dims - 1] : 1;
    for (int i = 0; i < n_dims; i++)
        out->shape[i] = shape[i];
    if (!out->plain) return LQ_OK;
    int64_t elements = (int64_t)(bytes / ((size_t)lq_dtype_bits(d) / 8));
    out->t.scheme = (qt_scheme){ .kind = QT_DENSE, .dtype = d };
    out->t.K = K;
    out->t.N = elements / K;
    out->t.plane[QT_CODES] = out->raw;
    return LQ_OK;
}

/* ---- what is there ---- */
const char *src_path(const src_source *s) { return s->path; }
const char *src_format(const src_source *s) { return s->format; }
const arch_config *src_config(const src_source *s) { return s->has_config ? &s->config : NULL; }
int64_t src_n_tensors(const src_source *s) { return (int64_t)s->n_tensors; }
const src_tensor *src_tensor_at(const src_source *s, int64_t i) { return &s->tensors[i]; }
size_t src_n_blobs(const src_source *s) { return s->n_blobs; }
const src_blob *src_blob_at(const src_source *s, size_t i) { return &s->blobs[i]; }

const src_tensor *src_find(const src_source *s, const char *name)
{
    const src_tensor key = { .name = name };
    return s->n_tensors ? bsearch(&key, s->tensors, s->n_tensors, sizeof key, src_by_name) : NULL;
}

const src_blob *src_find_blob(const src_source *s, const char *name)
{
    for (size_t i = 0; i < s->n_blobs; i++)
        if (strcmp(s->blobs[i].name, name) == 0) return &s->blobs[i];
    return NULL;
}

char *src_shape_text(char out[96], const src_tensor *t)
{
    int at = snprintf(out, 96, "[");
    for (int i = 0; i < t->n_dims && at < 96; i++)
        at += snprintf(out + at, (size_t)(96 - at), "%s%" PRId64, i ? "," : "", t->shape[i]);
    if (at < 96) snprintf(out + at, (size_t)(96 - at), "]");
    return out;
}

int64_t src_elements(const src_tensor *t)
{
    int64_t n = 1;
    for (int i = 0; i < t->n_dims; i++)
        n *= t->shape[i];
    return n;
}

size_t src_bytes(const src_tensor *t)
{
    size_t n = 0;
    if (!t->plain) return t->raw.bytes;
    for (int p = 0; p < QT_N_PLANES; p++)
        n += t->t.plane[p].bytes;
    return n;
}

/* ---- roles ---- */
static void shape_text(char out[96], int n_dims, const int64_t *shape)
{
    int at = 0;
    out[0] = 0;
    for (int i = 0; i < n_dims && at < 96; i++)
        at += snprintf(out + at, (size_t)(96 - at), "%s%" PRId64, i ? "," : "", shape[i]);
}

static lq_status find_checked(const src_source *s, const char *name, int n_dims,
                              const int64_t *want, const src_tensor **out, lq_err *err)
{
    const src_tensor *t = src_find(s, name);
    if (!t) return lq_fail(err, LQ_ENOENT, "%s: tensor '%s' is missing", s->path, name);
    if (t->n_dims != n_dims || memcmp(t->shape, want, (size_t)n_dims * sizeof *want) != 0) {
        char expected[96], found[96];
        shape_text(expected, n_dims, want);
        shape_text(found, t->n_dims, t->shape);
        return lq_fail(err, LQ_ESHAPE, "%s: tensor '%s': expected shape [%s], found [%s]", s->path,
                       name, expected, found);
    }
    if (!t->plain)
        return lq_fail(err, LQ_EVALUE, "%s: tensor '%s': expected a float type, found %s", s->path,
                       name, lq_dtype_text(t->raw_dtype));
    *out = t;
    return LQ_OK;
}

/* Stored [inputs, outputs]? Codes never are. */
static bool transposed(const arch_name *a, const src_tensor *t)
{
    return (a->flags & NAME_TRANSPOSED) && t && t->plain && t->t.scheme.kind == QT_DENSE;
}

/* A matrix or vector of a role, or its bias: [experts, outputs, inputs] less the dims it lacks. */
static lq_status find_role(const src_source *s, const arch_name *a, int64_t layer, int64_t expert,
                           bool bias, const src_tensor **out, lq_err *err)
{
    char name[256];
    int64_t N, K, want[3];
    int n = 0;
    const arch_config *c = &s->config;
    const bool vector = bias || arch_role_kind(a->role) == ARCH_VECTOR;
    if (!arch_tensor_name(c, a->role, layer, expert, bias, name, sizeof name))
        return lq_fail(err, LQ_EFORMAT, "tensor names are too long");
    if (a->role == R_HEAD && !bias && !src_find(s, name))
        return lq_fail(
            err, LQ_ENOENT,
            "%s: tensor '%s' is missing, and tie_word_embeddings is false: a head of its "
            "own is expected",
            s->path, name);
    const bool turned = !vector && transposed(a, src_find(s, name));
    arch_role_shape(c, a->role, &N, &K);
    if (a->flags & NAME_STACKED) want[n++] = c->experts;
    if (!vector || (a->flags & NAME_HEAD_ROWS)) want[n++] = turned ? K : N;
    want[n++] = turned || (bias && arch_role_kind(a->role) != ARCH_VECTOR) ? N : K;
    lq_status st = find_checked(s, name, n, want, out, err);
    if (!st && vector && (*out)->t.scheme.kind != QT_DENSE)
        return lq_fail(err, LQ_EVALUE, "%s: tensor '%s': expected a dense vector", s->path, name);
    return st;
}

static bool has_tensor(const src_source *s, arch_role r, int64_t layer, int64_t expert, bool bias)
{
    char name[256];
    return arch_tensor_name(&s->config, r, layer, expert, bias, name, sizeof name) &&
           src_find(s, name);
}

lq_status src_role(const src_source *s, arch_role r, int64_t layer, int64_t expert,
                   const src_tensor **t, const src_tensor **bias, lq_err *err)
{
    const arch_config *c = &s->config;
    *t = NULL;
    if (bias) *bias = NULL;
    if (r == R_HEAD && c->tied) r = R_EMBED;
    const arch_name *a = arch_name_of(c, r);
    if (!a || !arch_has(c, r, layer)) return LQ_OK;
    if ((a->flags & NAME_OPTIONAL) && !has_tensor(s, r, layer, expert, false)) return LQ_OK;
    lq_status st = find_role(s, a, layer, expert, false, t, err);
    int wants = arch_wants_bias(c, r);
    if (st || !bias || !wants) return st;
    if (wants < 0 && !has_tensor(s, r, layer, expert, true)) return LQ_OK;
    return find_role(s, a, layer, expert, true, bias, err);
}

lq_status src_check_roles(const src_source *s, lq_err *err)
{
    lq_status st = LQ_OK;
    for (int64_t l = -1; l < s->config.layers && !st; l++) /* -1: what belongs to no layer */
        for (int r = 0; r < ARCH_N_ROLES && !st; r++) {
            const int64_t n = arch_n_tensors(&s->config, (arch_role)r);
            const src_tensor *t, *bias;
            if (arch_role_per_layer((arch_role)r) != (l >= 0)) continue;
            for (int64_t e = 0; e < n && !st; e++)
                st = src_role(s, (arch_role)r, l, e, &t, &bias, err);
        }
    return st;
}

/* ---- matrices and vectors ---- */

void src_transpose(void *dst, const void *src, int64_t N, int64_t K, size_t size)
{
    enum { BLOCK = 32 };
    uint8_t *to = dst;
    const uint8_t *from = src;
    for (int64_t n0 = 0; n0 < N; n0 += BLOCK)
        for (int64_t k0 = 0; k0 < K; k0 += BLOCK)
            for (int64_t n = n0; n < N && n < n0 + BLOCK; n++)
                for (int64_t k = k0; k < K && k < k0 + BLOCK; k++)
                    memcpy(to + (size_t)(n * K + k) * size, from + (size_t)(k * N + n) * size,
                           size);
}

static lq_status no_room(const char *what, lq_err *err)
{
    return lq_fail(err, LQ_ENOMEM, "%s: out of memory", what);
}

/* In place, or as f32 where a block runs from one expert into the next. */
static lq_status rows_of_expert(qt_tensor *w, const qt_tensor *t, int64_t n0, int64_t n1,
                                lq_arena *a, lq_err *err)
{
    if (qt_rows(w, t, n0, n1) || tiles_rows(w, t, n0, n1)) return LQ_OK;
    if (t->layout != QT_PORTABLE)
        return lq_fail(err, LQ_EUNSUPPORTED, "expected experts of whole tiles, or layout portable");
    const size_t bytes = (size_t)(n1 - n0) * (size_t)t->K * sizeof(float);
    float *copy = lq_push(a, bytes);
    if (!copy) return no_room("experts", err);
    qt_dequant(copy, t, n0, n1);
    *w = (qt_tensor){ .scheme = { .kind = QT_DENSE, .dtype = LQ_F32 }, .N = n1 - n0, .K = t->K };
    w->plane[QT_CODES] = (qt_span){ copy, bytes };
    return LQ_OK;
}

lq_status src_slice(qt_tensor *w, const arch_config *c, arch_role r, int64_t expert,
                    const qt_tensor *stored, lq_arena *a, lq_err *err)
{
    const arch_name *name = arch_name_of(c, r);
    const bool dense = stored->scheme.kind == QT_DENSE;
    const bool stacked = name && (name->flags & NAME_STACKED);
    const bool turned = name && (name->flags & NAME_TRANSPOSED) && dense;
    int64_t N, K;
    arch_role_shape(c, r, &N, &K);
    *w = *stored;
    if (!stacked && !turned) return LQ_OK;
    if (!turned) return rows_of_expert(w, stored, expert * N, (expert + 1) * N, a, err);
    const size_t size = (size_t)lq_dtype_bits(stored->scheme.dtype) / 8;
    const size_t bytes = (size_t)(N * K) * size;
    const uint8_t *from = stored->plane[QT_CODES].data;
    void *copy = lq_push(a, bytes);
    if (!copy) return no_room(arch_role_text(r), err);
    src_transpose(copy, from + (stacked ? (size_t)expert * bytes : 0), N, K, size);
    *w = (qt_tensor){ .scheme = stored->scheme, .N = N, .K = K };
    w->plane[QT_CODES] = (qt_span){ copy, bytes };
    return LQ_OK;
}

lq_status src_first_rows(qt_tensor *plain, const qt_tensor *t, lq_arena *a, lq_err *err)
{
    qt_tensor tile = *t;
    void *w[QT_N_PLANES];
    *plain = *t;
    if (t->layout == QT_PORTABLE) return LQ_OK;
    if (t->N > TILE_N) tiles_rows(&tile, t, 0, TILE_N);
    const lq_status st = qt_alloc(plain, w, &tile.scheme, tile.N, tile.K, a, err);
    return st ? st : tiles_unpack(w, &tile, err);
}

/* Codes as they are stored are looked at where they are to be packed anyway; a file that is mapped
 * and used as it lies is not read for it. */
static lq_status check_slice(const qt_tensor *w, const qt_tensor *stored, lq_err *err)
{
    if (stored->scheme.kind == QT_DENSE) return LQ_OK;
    if (w->scheme.kind != QT_DENSE) return val_check(w, w->layout == QT_PORTABLE, err);
    const float most = val_largest(w->plane[QT_CODES].data, LQ_F32, (size_t)(w->N * w->K));
    return isfinite(most) ? LQ_OK
                          : lq_fail(err, LQ_EVALUE, "expected finite weights, found others");
}

lq_status src_matrix(const src_source *s, arch_role r, int64_t layer, int64_t expert, qt_tensor *w,
                     lq_arena *a, lq_err *err)
{
    const src_tensor *t = NULL;
    memset(w, 0, sizeof *w);
    lq_status st = src_role(s, r, layer, expert, &t, NULL, err);
    if (st || !t) return st;
    qt_tensor all;
    src_load(&all, s, t);
    st = src_slice(w, &s->config, r, expert, &all, a, err);
    if (!st) st = check_slice(w, &all, err);
    return st ? lq_wrap(err, st, "%s", t->name) : LQ_OK;
}

void src_matrix_done(const src_source *s, arch_role r, int64_t layer, int64_t expert)
{
    const src_tensor *t = NULL;
    if (!src_role(s, r, layer, expert, &t, NULL, NULL) && t) src_unload(s, t);
}

/* The stored tensor of a vector; NULL: there is none. */
static lq_status stored_vector(const src_source *s, arch_role r, int64_t layer, int64_t expert,
                               bool bias, const src_tensor **t, lq_err *err)
{
    const src_tensor *weight, *b;
    lq_status st = src_role(s, r, layer, expert, &weight, &b, err);
    *t = bias ? b : weight;
    if (st || !*t) return st;
    st = src_check_values(s, *t, err);
    return st ? lq_wrap(err, st, "%s", s->path) : LQ_OK;
}

lq_status src_vector(const src_source *s, arch_role r, int64_t layer, int64_t expert, bool bias,
                     const float **v, lq_arena *a, lq_err *err)
{
    const arch_name *name = arch_name_of(&s->config, r);
    const int flags = name ? name->flags : 0;
    const int64_t parts = flags & NAME_HEAD_EACH ? arch_n_tensors(&s->config, r) : 1;
    float *out = NULL;
    *v = NULL;
    for (int64_t i = 0; i < parts; i++) {
        const src_tensor *t;
        lq_status st =
            stored_vector(s, r, layer, flags & NAME_HEAD_EACH ? i : expert, bias, &t, err);
        if (st || !t) return st;
        const int64_t row = flags & NAME_STACKED ? expert : 0,
                      n = flags & NAME_STACKED ? 1 : t->t.N;
        if (!out) out = lq_push(a, (size_t)(parts * n * t->t.K) * sizeof *out);
        if (!out) return no_room(t->name, err);
        qt_tensor q;
        src_load(&q, s, t);
        qt_dequant(out + i * n * q.K, &q, row, row + n);
        if (t->made) src_unload(s, t);
    }
    *v = out;
    return LQ_OK;
}

/* ---- helpers over all tensors ---- */
static void hash_text(lq_hasher *h, const char *s) { lq_hasher_add(h, s, strlen(s) + 1); }

static void hash_u64(lq_hasher *h, uint64_t v)
{
    uint8_t b[8];
    for (int i = 0; i < 8; i++)
        b[i] = (uint8_t)(v >> (8 * i));
    lq_hasher_add(h, b, sizeof b);
}

/* The hashes of all planes that are there; returns how many. */
static size_t plane_hashes(lq_hash all[QT_N_PLANES], const src_source *s, size_t i)
{
    src_tensor t = s->tensors[i];
    const lq_hash *known = s->hashes                 ? s->hashes[i]
                           : t.scanned && s->scanned ? s->scanned[i]
                                                     : NULL;
    size_t n = 0;
    if (!known) src_load(&t.t, s, &s->tensors[i]);
    for (int p = 0; p < QT_N_PLANES; p++) {
        const qt_span span = src_plane(&t, p);
        if (span.bytes) all[n++] = known ? known[p] : lq_hash_bytes(span.data, span.bytes);
    }
    if (!known) src_unload(s, &s->tensors[i]);
    return n;
}

lq_hash src_tensor_hash(const src_source *s, int64_t i)
{
    lq_hash all[QT_N_PLANES];
    size_t n = plane_hashes(all, s, (size_t)i);
    if (!n) return lq_hash_bytes(NULL, 0);
    return n > 1 ? lq_hash_bytes(all, n * sizeof *all) : all[0];
}

/* As in the header of a .llmq, where every field that gives the planes a meaning is spelled out. */
static lq_status hash_scheme(lq_hasher *h, const src_tensor *t, lq_err *err)
{
    js_buf text = { 0 };
    cJSON *scheme = t->plain ? llmq_scheme_json(&t->t.scheme) : NULL;
    lq_status s = LQ_OK;
    if (t->plain)
        s = scheme ? js_canonical(&text, scheme, err) : lq_fail(err, LQ_ENOMEM, "out of memory");
    cJSON_Delete(scheme);
    hash_text(h, t->plain ? "weight" : lq_dtype_text(t->raw_dtype));
    lq_hasher_add(h, text.data, text.n);
    free(text.data);
    return s;
}

/* Over the planes' own hashes, so that a file which stores them need not be read. */
lq_status src_fingerprint(lq_hash *out, const src_source *s, lq_err *err)
{
    if (s->base) return src_fingerprint(out, s->base, err);
    lq_hasher *h = lq_hasher_new();
    if (!h) return lq_fail(err, LQ_ENOMEM, "out of memory");
    lq_status st = LQ_OK;
    for (size_t i = 0; i < s->n_tensors && !st; i++) {
        const src_tensor *t = &s->tensors[i];
        hash_text(h, t->name);
        st = hash_scheme(h, t, err);
        hash_text(h, qt_layout_text(t->t.layout));
        hash_u64(h, (uint64_t)t->n_dims);
        for (int d = 0; d < t->n_dims; d++)
            hash_u64(h, (uint64_t)t->shape[d]);
        lq_hash all[QT_N_PLANES];
        plane_hashes(all, s, i);
        size_t n = 0;
        for (int p = 0; p < QT_N_PLANES; p++) {
            hash_u64(h, src_plane(t, p).bytes);
            if (src_plane(t, p).bytes) lq_hasher_add(h, all[n++].b, sizeof all->b);
        }
    }
    *out = lq_hasher_end(h);
    return st;
}

lq_status src_check_finite(const src_tensor *t, lq_err *err)
{
    if (!t->plain || t->made || t->t.scheme.kind != QT_DENSE) return LQ_OK;
    const lq_dtype d = t->t.scheme.dtype;
    const size_t size = (size_t)lq_dtype_bits(d) / 8, n = t->t.plane[QT_CODES].bytes / size;
    const uint8_t *p = t->t.plane[QT_CODES].data;
    if (isfinite(t->scanned ? t->largest : val_largest(p, d, n))) return LQ_OK;
    for (size_t i = 0; i < n; i++) {
        float x;
        lq_to_f32(&x, p + i * size, d, 1);
        if (!isfinite(x))
            return lq_fail(err, LQ_EVALUE,
                           "tensor '%.100s': expected finite weights, found %s at element %zu",
                           t->name, isnan(x) ? "NaN" : "infinity", i);
    }
    return LQ_OK;
}

lq_status src_check_values(const src_source *s, const src_tensor *t, lq_err *err)
{
    src_tensor loaded = *t;
    if (!t->plain) return LQ_OK;
    src_load(&loaded.t, s, t);
    loaded.made = NULL;
    lq_status st = LQ_OK;
    if (t->t.scheme.kind == QT_DENSE)
        st = src_check_finite(&loaded, err);
    else if (val_check(&loaded.t, true, err))
        st = lq_wrap(err, LQ_EVALUE, "tensor '%.100s'", t->name);
    src_unload(s, t);
    return st;
}
