/* formats/hf/safetensors.c */
#include "formats/hf/safetensors.h"

#include "base/file.h"
#include "base/json.h"
#include "base/json_write.h"
#include "base/out_file.h"
#include "base/utf8.h"

#include <inttypes.h>
#include <stdlib.h>

bool st_shape_bytes(lq_dtype d, int n_dims, const int64_t *shape, size_t *bytes)
{
    size_t n = (size_t)lq_dtype_bits(d);
    bool empty = false, fits = true; /* an empty tensor is empty however large its other dims */
    for (int i = 0; i < n_dims; i++) {
        if (shape[i] < 0) return false;
        if (shape[i] == 0)
            empty = true;
        else if (!lq_mul(n, (size_t)shape[i], &n))
            fits = false;
    }
    if (!empty && (!fits || n % 8)) return false;
    *bytes = empty ? 0 : n / 8;
    return true;
}

/* ---- reading ---- */
typedef struct {
    size_t begin, end;
    const char *name;
} st_range;

static int by_name(const void *a, const void *b)
{
    const st_tensor *x = a, *y = b;
    return strcmp(x->name, y->name);
}

static int by_begin(const void *a, const void *b)
{
    const st_range *x = a, *y = b;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    if (x->end != y->end) return x->end < y->end ? -1 : 1;
    return strcmp(x->name, y->name);
}

static lq_status tensor_fail(lq_err *err, const cJSON *m, const char *field, const char *want)
{
    char found[64];
    return lq_fail(err, LQ_EFORMAT, "tensor '%.100s': %s: expected %s, found %s", m->string, field,
                   want, js_describe(found, js_get(m, field)));
}

static lq_status read_shape(st_tensor *t, const cJSON *m, lq_err *err)
{
    const cJSON *shape = js_get(m, "shape");
    if (!cJSON_IsArray(shape)) return tensor_fail(err, m, "shape", "an array of sizes");
    for (const cJSON *d = shape->child; d; d = d->next) {
        if (t->n_dims == LQ_MAX_DIMS)
            return lq_fail(err, LQ_EUNSUPPORTED, "tensor '%.100s': shape: expected at most %d dims",
                           m->string, LQ_MAX_DIMS);
        if (!js_whole(d, 0, JS_MAX_INT, &t->shape[t->n_dims])) {
            char found[64];
            return lq_fail(err, LQ_EFORMAT,
                           "tensor '%.100s': shape: expected whole sizes, found %s", m->string,
                           js_describe(found, d));
        }
        t->n_dims++;
    }
    return LQ_OK;
}

static lq_status read_tensor(st_tensor *t, st_range *r, const cJSON *m, size_t buffer, lq_err *err)
{
    if (!cJSON_IsObject(m))
        return lq_fail(err, LQ_EFORMAT, "tensor '%.100s': expected an object", m->string);
    const cJSON *dtype = js_get(m, "dtype"), *off = js_get(m, "data_offsets");
    if (!cJSON_IsString(dtype)) return tensor_fail(err, m, "dtype", "a string");
    if (!lq_dtype_from_st(&t->dtype, dtype->valuestring)) {
        tensor_fail(err, m, "dtype", "a dtype of safetensors");
        return LQ_EUNSUPPORTED;
    }
    lq_status s = read_shape(t, m, err);
    if (s) return s;
    int64_t begin, end;
    if (!cJSON_IsArray(off) || !off->child || !off->child->next || off->child->next->next ||
        !js_whole(off->child, 0, JS_MAX_INT, &begin) ||
        !js_whole(off->child->next, 0, JS_MAX_INT, &end) || begin > end)
        return tensor_fail(err, m, "data_offsets", "[begin, end] with begin <= end");
    if ((uint64_t)end > buffer)
        return lq_fail(err, LQ_EFORMAT,
                       "tensor '%.100s': data_offsets: expected an end of at most %zu (the file's "
                       "data), found %" PRId64,
                       m->string, buffer, end);
    size_t bytes;
    if (!st_shape_bytes(t->dtype, t->n_dims, t->shape, &bytes))
        return lq_fail(err, LQ_EFORMAT,
                       "tensor '%.100s': shape: expected whole bytes that fit the memory, found a "
                       "product that does not",
                       m->string);
    if (bytes != (size_t)(end - begin))
        return lq_fail(err, LQ_EFORMAT,
                       "tensor '%.100s': data_offsets: expected %zu bytes for its shape, found "
                       "%" PRId64,
                       m->string, bytes, end - begin);
    t->bytes = bytes;
    *r = (st_range){ (size_t)begin, (size_t)end, t->name };
    return LQ_OK;
}

static lq_status check_metadata(const cJSON *m, lq_err *err)
{
    if (!cJSON_IsObject(m)) return lq_fail(err, LQ_EFORMAT, "__metadata__: expected an object");
    for (const cJSON *v = m->child; v; v = v->next)
        if (!cJSON_IsString(v))
            return lq_fail(err, LQ_EFORMAT, "__metadata__: '%.100s': expected a string", v->string);
    return LQ_OK;
}

/* Sorted by begin, the ranges must touch each other and both ends of the buffer. */
static lq_status check_cover(st_range *r, size_t n, size_t buffer, lq_err *err)
{
    qsort(r, n, sizeof *r, by_begin);
    size_t at = 0;
    for (size_t i = 0; i < n; i++) {
        if (r[i].begin != at)
            return lq_fail(err, LQ_EFORMAT,
                           "tensor '%.100s': data_offsets: expected to begin at %zu, found %zu: %s",
                           r[i].name, at, r[i].begin, r[i].begin < at ? "an overlap" : "a hole");
        at = r[i].end;
    }
    if (at != buffer)
        return lq_fail(err, LQ_EFORMAT, "data: expected %zu bytes as the header says, found %zu",
                       at, buffer);
    return LQ_OK;
}

static lq_status read_table(st_file *f, const cJSON *root, const uint8_t *data, size_t buffer,
                            lq_err *err)
{
    if (!cJSON_IsObject(root)) return lq_fail(err, LQ_EFORMAT, "header: expected a JSON object");
    size_t n = 0;
    for (const cJSON *m = root->child; m; m = m->next)
        n++;
    f->tensors = lq_push(&f->arena, n * sizeof *f->tensors);
    st_range *r = malloc((n ? n : 1) * sizeof *r);
    lq_status s = f->tensors && r ? LQ_OK : lq_fail(err, LQ_ENOMEM, "no memory for %zu tensors", n);
    for (const cJSON *m = root->child; m && !s; m = m->next) {
        if (strcmp(m->string, "__metadata__") == 0) {
            s = check_metadata(m, err);
            continue;
        }
        st_tensor *t = &f->tensors[f->n];
        t->name = lq_push_str(&f->arena, m->string, strlen(m->string));
        s = t->name ? read_tensor(t, &r[f->n], m, buffer, err)
                    : lq_fail(err, LQ_ENOMEM, "no memory for names");
        if (!s) t->data = data + r[f->n++].begin;
    }
    if (!s) s = check_cover(r, f->n, buffer, err);
    if (!s) qsort(f->tensors, f->n, sizeof *f->tensors, by_name);
    free(r);
    return s;
}

lq_status st_open_bytes(st_file *f, const uint8_t *data, size_t n, lq_err *err)
{
    memset(f, 0, sizeof *f);
    if (n < 8)
        return lq_fail(err, LQ_EFORMAT,
                       "expected a safetensors file (8 bytes of header length), found %zu bytes",
                       n);
    uint64_t len = 0;
    lq_status s = lq_refuse_stand_in(data, n, err);
    if (s) return s;
    for (int i = 7; i >= 0; i--)
        len = len << 8 | data[i];
    if (len > ST_MAX_HEADER || len > n - 8)
        return lq_fail(err, LQ_EFORMAT,
                       "header length: expected at most %zu, found %" PRIu64
                       " in a file of %zu bytes",
                       n - 8 < ST_MAX_HEADER ? n - 8 : ST_MAX_HEADER, len, n);
    cJSON *root;
    s = js_parse(&root, (const char *)data + 8, (size_t)len, ST_MAX_HEADER, JS_UNIQUE, err);
    if (s) return lq_wrap(err, s, "header");
    s = read_table(f, root, data + 8 + len, n - 8 - (size_t)len, err);
    f->metadata = cJSON_DetachItemFromObjectCaseSensitive(root, "__metadata__");
    cJSON_Delete(root);
    if (s) st_close(f);
    return s;
}

lq_status st_open(st_file *f, const char *path, lq_err *err)
{
    memset(f, 0, sizeof *f);
    lq_map map;
    lq_status s = lq_map_open(&map, path, err);
    if (s) return s;
    s = st_open_bytes(f, map.data, map.size, err);
    if (s) {
        lq_map_close(&map);
        return lq_wrap(err, s, "%s", path);
    }
    f->map = map;
    return LQ_OK;
}

void st_close(st_file *f)
{
    lq_map_close(&f->map);
    lq_arena_free(&f->arena);
    cJSON_Delete(f->metadata);
    memset(f, 0, sizeof *f);
}

const st_tensor *st_find(const st_file *f, const char *name)
{
    const st_tensor key = { .name = name };
    return f->n ? bsearch(&key, f->tensors, f->n, sizeof key, by_name) : NULL;
}

/* ---- writing ---- */

/* The reference writer's rank of a dtype; higher ones come first, so large elements stay aligned.
 */
static int dtype_rank(lq_dtype d)
{
    static const lq_dtype order[] = {
        LQ_BOOL,    LQ_F4,      LQ_F6_E2M3, LQ_F6_E3M2,     LQ_U8,          LQ_I8,
        LQ_F8_E5M2, LQ_F8_E4M3, LQ_F8_E8M0, LQ_F8_E4M3FNUZ, LQ_F8_E5M2FNUZ, LQ_I16,
        LQ_U16,     LQ_F16,     LQ_BF16,    LQ_I32,         LQ_U32,         LQ_F32,
        LQ_C64,     LQ_F64,     LQ_I64,     LQ_U64,
    };
    _Static_assert(LQ_COUNT(order) == LQ_N_DTYPES, "every dtype has a rank");
    int i = 0;
    while (order[i] != d)
        i++;
    return i;
}

typedef struct {
    st_tensor t;
    size_t given; /* its place in the caller's list */
} ordered;

static int by_file_order(const void *a, const void *b)
{
    const ordered *x = a, *y = b;
    int rx = dtype_rank(x->t.dtype), ry = dtype_rank(y->t.dtype);
    return rx != ry ? ry - rx : strcmp(x->t.name, y->t.name);
}

/* Each name once, whatever the types. */
static lq_status check_names(const st_tensor *tensors, size_t n, lq_err *err)
{
    st_tensor *list = malloc((n + 1) * sizeof *list);
    if (!list) return lq_fail(err, LQ_ENOMEM, "no memory for %zu tensors", n);
    if (n) memcpy(list, tensors, n * sizeof *list);
    qsort(list, n, sizeof *list, by_name);
    lq_status s = LQ_OK;
    for (size_t i = 1; i < n && !s; i++)
        if (by_name(&list[i - 1], &list[i]) == 0)
            s = lq_fail(err, LQ_EVALUE, "tensor '%.100s': named twice", list[i].name);
    free(list);
    return s;
}

static lq_status build_header(lq_buf *b, const ordered *list, size_t n, lq_err *err)
{
    size_t at = 0;
    lq_buf_puts(b, "{\"__metadata__\":{\"format\":\"pt\"}");
    for (size_t i = 0; i < n; i++) {
        const st_tensor *t = &list[i].t;
        size_t want;
        if (!st_shape_bytes(t->dtype, t->n_dims, t->shape, &want) || want != t->bytes)
            return lq_fail(err, LQ_ESHAPE, "tensor '%.100s': %zu bytes do not fit its shape",
                           t->name, t->bytes);
        if (!lq_utf8_valid(t->name, strlen(t->name), NULL))
            return lq_fail(err, LQ_EVALUE, "tensor '%.100s': expected a name of UTF-8", t->name);
        lq_buf_puts(b, ",");
        js_put_str(b, t->name);
        lq_buf_puts(b, ":{\"dtype\":");
        js_put_str(b, lq_dtype_st(t->dtype));
        lq_buf_puts(b, ",\"shape\":[");
        for (int k = 0; k < t->n_dims; k++) {
            if (k) lq_buf_puts(b, ",");
            js_put_i64(b, t->shape[k]);
        }
        lq_buf_puts(b, "],\"data_offsets\":[");
        js_put_i64(b, (int64_t)at);
        lq_buf_puts(b, ",");
        if (!lq_add(at, want, &at)) return lq_fail(err, LQ_ESHAPE, "tensors: too many bytes");
        js_put_i64(b, (int64_t)at);
        lq_buf_puts(b, "]}");
    }
    lq_buf_puts(b, "}");
    while (b->n % 8 && !b->oom)
        lq_buf_puts(b, " ");
    if (b->oom) return lq_fail(err, LQ_ENOMEM, "no memory for the header");
    if (b->n > ST_MAX_HEADER)
        return lq_fail(err, LQ_EVALUE, "header: expected at most %d bytes, found %zu",
                       ST_MAX_HEADER, b->n);
    return LQ_OK;
}

struct st_writer {
    lq_out *out;
    size_t n;
    size_t *at;   /* [n] where each tensor begins in the file */
    size_t *left; /* [n] bytes not yet put */
    size_t *bytes;
    char **names;
};

static lq_status safetensors_begin(st_writer *w, const char *path, const st_tensor *tensors,
                                   size_t n, lq_err *err)
{
    lq_buf header = { 0 };
    uint8_t len[8];
    ordered *list = malloc((n + 1) * sizeof *list);
    w->at = calloc(n + 1, sizeof *w->at);
    w->left = calloc(n + 1, sizeof *w->left);
    w->bytes = calloc(n + 1, sizeof *w->bytes);
    w->names = calloc(n + 1, sizeof *w->names);
    lq_status s = LQ_OK;
    if (!list || !w->at || !w->left || !w->bytes || !w->names)
        s = lq_fail(err, LQ_ENOMEM, "no memory for %zu tensors", n);
    for (size_t i = 0; i < n && !s; i++) {
        list[i] = (ordered){ tensors[i], i };
        w->names[w->n++] = strdup(tensors[i].name);
        if (!w->names[i]) s = lq_fail(err, LQ_ENOMEM, "no memory for %zu tensors", n);
    }
    if (!s) s = check_names(tensors, n, err);
    if (!s) {
        qsort(list, n, sizeof *list, by_file_order);
        s = build_header(&header, list, n, err);
    }
    size_t at = 8 + header.n;
    for (size_t i = 0; i < n && !s; i++) {
        const size_t k = list[i].given;
        w->at[k] = at;
        w->left[k] = w->bytes[k] = list[i].t.bytes;
        at += list[i].t.bytes;
    }
    for (int i = 0; i < 8; i++)
        len[i] = (uint8_t)((uint64_t)header.n >> (8 * i));
    if (s)
        lq_wrap(err, s, "%s", path);
    else
        s = lq_out_open(&w->out, path, err);
    if (!s) s = lq_out_write(w->out, len, sizeof len, err);
    if (!s) s = lq_out_write(w->out, header.p, header.n, err);
    for (size_t i = 0; i < n && !s; i++) { /* in file order: a pipe takes nothing else */
        const st_tensor *t = &list[i].t;
        const size_t k = list[i].given;
        if (!t->data) continue;
        if (lq_out_size(w->out) != w->at[k]) {
            s = st_put(w, k, 0, t->data, t->bytes, err);
            continue;
        }
        s = lq_out_write(w->out, t->data, t->bytes, err);
        w->left[k] = 0;
    }
    free(header.p);
    free(list);
    return s;
}

static void free_writer(st_writer *w)
{
    for (size_t i = 0; i < w->n; i++)
        free(w->names[i]);
    free(w->names);
    free(w->bytes);
    free(w->left);
    free(w->at);
    free(w);
}

void st_abort(st_writer *w)
{
    if (!w) return;
    lq_out_abort(w->out);
    free_writer(w);
}

lq_status st_create(st_writer **out, const char *path, const st_tensor *tensors, size_t n,
                    lq_err *err)
{
    st_writer *w = calloc(1, sizeof *w);
    *out = NULL;
    lq_status s = w ? LQ_OK : lq_fail(err, LQ_ENOMEM, "%s: out of memory", path);
    if (!s) s = safetensors_begin(w, path, tensors, n, err);
    if (s)
        st_abort(w);
    else
        *out = w;
    return s;
}

lq_status st_put(st_writer *w, size_t i, size_t at, const void *data, size_t n, lq_err *err)
{
    if (at > w->bytes[i] || n > w->bytes[i] - at || n > w->left[i])
        return lq_fail(err, LQ_EVALUE, "tensor '%.100s': expected %zu bytes, found more",
                       w->names[i], w->bytes[i]);
    w->left[i] -= n;
    return lq_out_pwrite(w->out, data, n, w->at[i] + at, err);
}

lq_status st_commit(st_writer *w, lq_err *err)
{
    lq_status s = LQ_OK;
    for (size_t i = 0; i < w->n && !s; i++)
        if (w->left[i])
            s = lq_fail(err, LQ_EVALUE, "tensor '%.100s': expected %zu bytes, found %zu",
                        w->names[i], w->bytes[i], w->bytes[i] - w->left[i]);
    if (s)
        lq_out_abort(w->out);
    else
        s = lq_out_commit(w->out, err);
    free_writer(w);
    return s;
}

lq_status st_write(const char *path, const st_tensor *tensors, size_t n, lq_err *err)
{
    st_writer *w;
    lq_status s = st_create(&w, path, tensors, n, err);
    return s ? s : st_commit(w, err);
}
