/* formats/llmq/llmq_write.c - writing a .llmq file: planes as they come, then blobs, header, preamble.
 */
#include "base/json.h"
#include "base/out_file.h"
#include "base/utf8.h"
#include "formats/hf/safetensors.h"
#include "formats/llmq/llmq.h"

#include <stdlib.h>

typedef struct {
    size_t off, bytes;
    lq_hash hash;
} stored;

typedef struct {
    const char *name;
    bool plain;
    lq_dtype raw_dtype;
    qt_scheme scheme;
    qt_layout layout;
    int n_dims;
    int64_t shape[LQ_MAX_DIMS];
    stored plane[QT_N_PLANES];
} entry;

typedef struct {
    const char *name;
    uint8_t *data; /* owned */
    stored at;
} blob;

struct lqf_writer {
    lq_out *out;
    lq_arena arena; /* names */
    entry *entries;
    size_t n_entries, cap_entries;
    blob *blobs;
    size_t n_blobs, cap_blobs;
    cJSON *config, *recipe, *provenance;
    arch_config arch; /* of config, for the roles */
    bool has_arch;
    void (*written)(void *user, const void *p, size_t n);
    void *user;
};

static lq_status llmq_write_no_memory(lq_err *err)
{
    return lq_fail(err, LQ_ENOMEM, ".llmq: out of memory");
}

lq_status lqf_create(lqf_writer **out, const char *path, lq_err *err)
{
    *out = NULL;
    lqf_writer *w = calloc(1, sizeof *w);
    if (!w) return llmq_write_no_memory(err);
    lq_status s = lq_arena_init(&w->arena, 0, err);
    if (!s) s = lq_out_open(&w->out, path, err);
    const uint8_t zeros[LLMQ_PREAMBLE] = { 0 }; /* patched by lqf_commit */
    if (!s) s = lq_out_write(w->out, zeros, sizeof zeros, err);
    if (!s) s = lq_out_pad(w->out, LLMQ_PAGE, err);
    if (s)
        lqf_abort(w);
    else
        *out = w;
    return s;
}

void lqf_on_written(lqf_writer *w, void (*fn)(void *user, const void *p, size_t n), void *user)
{
    w->written = fn;
    w->user = user;
}

void lqf_abort(lqf_writer *w)
{
    if (!w) return;
    lq_out_abort(w->out);
    for (size_t i = 0; i < w->n_blobs; i++)
        free(w->blobs[i].data);
    free(w->blobs);
    free(w->entries);
    cJSON_Delete(w->config);
    cJSON_Delete(w->recipe);
    cJSON_Delete(w->provenance);
    if (w->has_arch) arch_config_free(&w->arch);
    lq_arena_free(&w->arena);
    free(w);
}

/* Room for one more element at the end of a growing array; NULL: out of memory. */
static void *grow(void *array, size_t n, size_t *cap, size_t size)
{
    if (n < *cap) return array;
    size_t want = *cap ? *cap * 2 : 64;
    void *p = realloc(array, want * size);
    if (p) *cap = want;
    return p;
}

/* Piece by piece: hashed and written while it lies in the cache, and then released. */
static lq_status put_bytes(lqf_writer *w, stored *at, const void *data, size_t bytes, lq_err *err)
{
    enum { PIECE = 1 << 20 };
    const uint8_t *p = data;
    lq_hasher *h = lq_hasher_new();
    if (!h) return llmq_write_no_memory(err);
    lq_status s = lq_out_pad(w->out, LLMQ_ALIGN, err);
    at->off = lq_out_size(w->out);
    at->bytes = bytes;
    for (size_t i = 0; i < bytes && !s; i += PIECE) {
        const size_t n = bytes - i < PIECE ? bytes - i : PIECE;
        lq_hasher_add(h, p + i, n);
        s = lq_out_write(w->out, p + i, n, err);
        if (w->written) w->written(w->user, p + i, n);
    }
    at->hash = lq_hasher_end(h);
    return s;
}

static lq_status llmq_write_add_entry(lqf_writer *w, entry *e, const qt_span *planes, int n_dims,
                                      const int64_t *shape, lq_err *err)
{
    size_t len = strlen(e->name);
    if (!len || !lq_utf8_valid(e->name, len, NULL))
        return lq_fail(err, LQ_EVALUE, ".llmq: expected a tensor name in UTF-8");
    e->n_dims = n_dims;
    for (int i = 0; i < n_dims; i++)
        e->shape[i] = shape[i];
    e->name = lq_push_str(&w->arena, e->name, len);
    entry *more = grow(w->entries, w->n_entries, &w->cap_entries, sizeof *more);
    if (more) w->entries = more;
    if (!more || !e->name) return llmq_write_no_memory(err);
    lq_status s = lq_out_pad(w->out, LLMQ_PAGE, err);
    for (int p = 0; p < QT_N_PLANES && !s; p++)
        if (planes[p].bytes) s = put_bytes(w, &e->plane[p], planes[p].data, planes[p].bytes, err);
    if (!s) w->entries[w->n_entries++] = *e;
    return s;
}

lq_status lqf_add_tensor(lqf_writer *w, const char *name, const qt_tensor *t, int n_dims,
                         const int64_t *shape, lq_err *err)
{
    int64_t n = 1;
    lq_status s = qt_check_view(t, err);
    if (s) return lq_wrap(err, s, "tensor '%.100s'", name);
    bool fits = n_dims >= 0 && n_dims <= LQ_MAX_DIMS &&
                (n_dims ? shape[n_dims - 1] : 1) == t->K; /* no dims: a number */
    for (int i = 0; i < n_dims - 1 && fits; i++)
        fits = shape[i] > 0 && !__builtin_mul_overflow(n, shape[i], &n);
    if (!fits || n != t->N)
        return lq_fail(err, LQ_ESHAPE, "tensor '%.100s': its shape does not fit its planes", name);
    entry e = { .name = name, .plain = true, .scheme = t->scheme, .layout = t->layout };
    return llmq_write_add_entry(w, &e, t->plane, n_dims, shape, err);
}

lq_status lqf_add_raw(lqf_writer *w, const char *name, lq_dtype d, int n_dims, const int64_t *shape,
                      const void *data, size_t bytes, lq_err *err)
{
    size_t want;
    if (n_dims < 0 || n_dims > LQ_MAX_DIMS || !st_shape_bytes(d, n_dims, shape, &want) ||
        want != bytes)
        return lq_fail(err, LQ_ESHAPE, "tensor '%.100s': its shape does not fit %zu bytes", name,
                       bytes);
    entry e = { .name = name, .raw_dtype = d };
    const qt_span planes[QT_N_PLANES] = { [QT_CODES] = { data, bytes } };
    return llmq_write_add_entry(w, &e, planes, n_dims, shape, err);
}

lq_status lqf_add_blob(lqf_writer *w, const char *name, const void *data, size_t bytes, lq_err *err)
{
    if (!lqf_blob_name_fits(name))
        return lq_fail(err, LQ_EVALUE,
                       ".llmq: blob '%.100s': expected the name of a file in UTF-8, not hidden, in "
                       "no folder",
                       name);
    blob b = { .name = lq_push_str(&w->arena, name, strlen(name)),
               .data = malloc(bytes ? bytes : 1) };
    blob *more = grow(w->blobs, w->n_blobs, &w->cap_blobs, sizeof *more);
    if (more) w->blobs = more;
    if (!more || !b.name || !b.data) {
        free(b.data);
        return llmq_write_no_memory(err);
    }
    if (bytes) memcpy(b.data, data, bytes);
    b.at.bytes = bytes;
    w->blobs[w->n_blobs++] = b;
    return LQ_OK;
}

static lq_status set_object(cJSON **slot, const cJSON *v, const char *what, lq_err *err)
{
    if (!cJSON_IsObject(v)) return lq_fail(err, LQ_EVALUE, ".llmq: %s: expected an object", what);
    cJSON *copy = cJSON_Duplicate(v, true);
    if (!copy) return llmq_write_no_memory(err);
    cJSON_Delete(*slot);
    *slot = copy;
    return LQ_OK;
}

lq_status lqf_set_config(lqf_writer *w, const cJSON *config, lq_err *err)
{
    arch_config arch;
    lq_status s = arch_config_from_json(&arch, config, err);
    if (s) return lq_wrap(err, s, ".llmq: config");
    if (w->has_arch) arch_config_free(&w->arch);
    w->arch = arch;
    w->has_arch = true;
    return set_object(&w->config, config, "config", err);
}

lq_status lqf_set_recipe(lqf_writer *w, const cJSON *recipe, lq_err *err)
{
    return set_object(&w->recipe, recipe, "recipe", err);
}

lq_status lqf_set_provenance(lqf_writer *w, const cJSON *provenance, lq_err *err)
{
    return set_object(&w->provenance, provenance, "provenance", err);
}

/* ---- the header: built as a tree, spelled by js_canonical ---- */
static bool put_stored(cJSON *o, const stored *s)
{
    char hex[33];
    lq_hash_hex(hex, &s->hash);
    return cJSON_AddNumberToObject(o, "off", (double)s->off) &&
           cJSON_AddNumberToObject(o, "bytes", (double)s->bytes) &&
           cJSON_AddStringToObject(o, "xxh3", hex);
}

static cJSON *raw_scheme(lq_dtype d)
{
    cJSON *j = cJSON_CreateObject();
    if (j && cJSON_AddStringToObject(j, "kind", "raw") &&
        cJSON_AddStringToObject(j, "dtype", lq_dtype_text(d)))
        return j;
    cJSON_Delete(j);
    return NULL;
}

/* A new object at the end of the array, which owns it. */
static cJSON *append_object(cJSON *array)
{
    cJSON *o = cJSON_CreateObject();
    if (o && cJSON_AddItemToArray(array, o)) return o;
    cJSON_Delete(o);
    return NULL;
}

static bool put_entry(const lqf_writer *w, cJSON *o, const entry *e)
{
    arch_slot slot;
    bool ok = o && cJSON_AddStringToObject(o, "name", e->name) &&
              cJSON_AddStringToObject(o, "layout", qt_layout_text(e->layout));
    if (ok && w->has_arch && arch_slot_of(&w->arch, e->name, &slot) && !slot.bias)
        ok = cJSON_AddStringToObject(o, "role", arch_role_text(slot.role));
    ok = ok && cJSON_AddItemToObject(
                   o, "scheme", e->plain ? lqf_scheme_json(&e->scheme) : raw_scheme(e->raw_dtype));
    cJSON *shape = ok ? cJSON_AddArrayToObject(o, "shape") : NULL;
    ok = shape != NULL;
    for (int i = 0; i < e->n_dims && ok; i++)
        ok = cJSON_AddItemToArray(shape, cJSON_CreateNumber((double)e->shape[i]));
    cJSON *planes = ok ? cJSON_AddObjectToObject(o, "planes") : NULL;
    ok = planes != NULL;
    for (int p = 0; p < QT_N_PLANES && ok; p++) {
        if (!e->plane[p].bytes) continue;
        cJSON *plane = cJSON_AddObjectToObject(planes, qt_plane_text((qt_plane)p));
        ok = plane && put_stored(plane, &e->plane[p]);
    }
    return ok;
}

static bool put_copy(cJSON *o, const char *key, const cJSON *v)
{
    if (!v) return true;
    return cJSON_AddItemToObject(o, key, cJSON_Duplicate(v, true));
}

static lq_status header_text(lq_buf *text, const lqf_writer *w, lq_err *err)
{
    cJSON *h = cJSON_CreateObject();
    bool ok = h && cJSON_AddStringToObject(h, "format", "llmq");
    ok = ok && put_copy(h, "config", w->config) && put_copy(h, "recipe", w->recipe) &&
         put_copy(h, "provenance", w->provenance);
    cJSON *tensors = ok ? cJSON_AddArrayToObject(h, "tensors") : NULL;
    cJSON *blobs = ok ? cJSON_AddArrayToObject(h, "blobs") : NULL;
    ok = tensors && blobs;
    for (size_t i = 0; i < w->n_entries && ok; i++)
        ok = put_entry(w, append_object(tensors), &w->entries[i]);
    for (size_t i = 0; i < w->n_blobs && ok; i++) {
        cJSON *o = append_object(blobs);
        ok = o && cJSON_AddStringToObject(o, "name", w->blobs[i].name) &&
             put_stored(o, &w->blobs[i].at);
    }
    lq_status s = ok ? js_canonical(text, h, err) : llmq_write_no_memory(err);
    cJSON_Delete(h);
    if (!s && text->n > LLMQ_MAX_HEADER)
        s = lq_fail(err, LQ_EVALUE, ".llmq: header: expected at most %d bytes, found %zu",
                    LLMQ_MAX_HEADER, text->n);
    return s;
}

/* ---- the end ---- */
static int by_blob_name(const void *a, const void *b)
{
    const blob *x = a, *y = b;
    return strcmp(x->name, y->name);
}

static int by_text(const void *a, const void *b)
{
    const char *const *x = a, *const *y = b;
    return strcmp(*x, *y);
}

static lq_status check_names(const lqf_writer *w, lq_err *err)
{
    const char **names = malloc((w->n_entries + 1) * sizeof *names);
    if (!names) return llmq_write_no_memory(err);
    for (size_t i = 0; i < w->n_entries; i++)
        names[i] = w->entries[i].name;
    qsort(names, w->n_entries, sizeof *names, by_text);
    lq_status s = LQ_OK;
    for (size_t i = 1; i < w->n_entries && !s; i++)
        if (strcmp(names[i - 1], names[i]) == 0)
            s = lq_fail(err, LQ_EVALUE, ".llmq: tensor '%.100s': added twice", names[i]);
    for (size_t i = 1; i < w->n_blobs && !s; i++)
        if (strcmp(w->blobs[i - 1].name, w->blobs[i].name) == 0)
            s = lq_fail(err, LQ_EVALUE, ".llmq: blob '%.100s': added twice", w->blobs[i].name);
    free(names);
    return s;
}

static void put_le(uint8_t *at, uint64_t v, int bytes)
{
    for (int i = 0; i < bytes; i++)
        at[i] = (uint8_t)(v >> (8 * i));
}

static lq_status llmq_write_finish(lqf_writer *w, lq_buf *text, lq_err *err)
{
    if (w->n_blobs) qsort(w->blobs, w->n_blobs, sizeof *w->blobs, by_blob_name);
    lq_status s = check_names(w, err);
    for (size_t i = 0; i < w->n_blobs && !s; i++)
        s = put_bytes(w, &w->blobs[i].at, w->blobs[i].data, w->blobs[i].at.bytes, err);
    if (!s) s = header_text(text, w, err);
    if (!s) s = lq_out_pad(w->out, LLMQ_ALIGN, err);
    if (s) return s;
    size_t off = lq_out_size(w->out);
    uint8_t pre[LLMQ_PREAMBLE] = { 0 };
    memcpy(pre, lqf_magic, sizeof lqf_magic);
    put_le(pre + 8, LLMQ_MAJOR, 4);
    put_le(pre + 12, LLMQ_MINOR, 4);
    put_le(pre + 16, off, 8);
    put_le(pre + 24, text->n, 8);
    put_le(pre + 32, off + text->n, 8);
    lq_hash h;
    if (!lqf_header_hash(&h, pre, text->p, text->n)) return llmq_write_no_memory(err);
    memcpy(pre + 48, h.b, sizeof h.b);
    s = lq_out_write(w->out, text->p, text->n, err);
    return s ? s : lq_out_pwrite(w->out, pre, sizeof pre, 0, err);
}

lq_status lqf_commit(lqf_writer *w, lq_err *err)
{
    lq_buf text = { 0 };
    lq_status s = llmq_write_finish(w, &text, err);
    free(text.p);
    if (!s) {
        s = lq_out_commit(w->out, err);
        w->out = NULL;
    }
    lqf_abort(w);
    return s;
}
