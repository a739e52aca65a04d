/* formats/llmq/llmq.c - reading and verifying a .llmq file.
 *
 * Every offset follows from the order and sizes of what lies before it, so the reader computes each
 * and compares: no hole, overlap or byte outside the checksums can be there. */
#include "formats/llmq/llmq.h"

#include "formats/hf/model_files.h"

#include "base/json.h"
#include "base/mapped.h"
#include "formats/hf/safetensors.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

static uint64_t get_le(const uint8_t *p, int bytes)
{
    uint64_t v = 0;
    for (int i = bytes - 1; i >= 0; i--)
        v = v << 8 | p[i];
    return v;
}

/* ---- preamble and header ---- */
static lq_status expect(const char *field, uint64_t want, uint64_t found, lq_err *err)
{
    if (want == found) return LQ_OK;
    return lq_fail(err, LQ_EFORMAT, "%s: expected %" PRIu64 ", found %" PRIu64, field, want, found);
}

static lq_status read_preamble(const char **text, size_t *text_bytes, lqf_file *f, lq_err *err)
{
    const uint8_t *p = f->bytes.data;
    const size_t n = f->bytes.bytes;
    if (n < LLMQ_PAGE)
        return lq_fail(err, LQ_EFORMAT, "size: expected at least %d bytes, found %zu", LLMQ_PAGE,
                       n);
    if (memcmp(p, lqf_magic, sizeof lqf_magic) != 0)
        return lq_fail(err, LQ_EFORMAT,
                       memcmp(p, lqf_magic, 4) == 0
                           ? "magic: expected 0d0a1a0a after LLMQ: the file was changed as if it "
                             "were text"
                           : "magic: expected LLMQ, found something else");
    uint64_t major = get_le(p + 8, 4), off = get_le(p + 16, 8), len = get_le(p + 24, 8);
    if (major != LLMQ_MAJOR)
        return lq_fail(err, LQ_EUNSUPPORTED, "major version: expected %d, found %" PRIu64,
                       LLMQ_MAJOR, major);
    f->minor = (uint32_t)get_le(p + 12, 4);
    lq_status s = expect("file bytes", get_le(p + 32, 8), n, err);
    if (!s) s = expect("reserved", 0, get_le(p + 40, 8), err);
    if (s) return s;
    if (off < LLMQ_PAGE || off > n || off % LLMQ_ALIGN)
        return lq_fail(err, LQ_EFORMAT,
                       "header offset: expected a multiple of %d within %d..%zu, found %" PRIu64,
                       LLMQ_ALIGN, LLMQ_PAGE, n, off);
    s = expect("header bytes", n - off, len, err);
    if (s) return s;
    if (len > LLMQ_MAX_HEADER)
        return lq_fail(err, LQ_EFORMAT, "header bytes: expected at most %d, found %" PRIu64,
                       LLMQ_MAX_HEADER, len);
    lq_hash h;
    if (!lqf_header_hash(&h, p, p + off, (size_t)len))
        return lq_fail(err, LQ_ENOMEM, "header: out of memory");
    if (memcmp(h.b, p + 48, sizeof h.b) != 0) {
        char want[33], found[33];
        lq_hash stored;
        memcpy(stored.b, p + 48, sizeof stored.b);
        lq_hash_hex(want, &stored);
        lq_hash_hex(found, &h);
        return lq_fail(err, LQ_EFORMAT, "header checksum: expected %s, found %s", want, found);
    }
    *text = (const char *)p + off;
    *text_bytes = (size_t)len;
    return LQ_OK;
}

/* ---- the table ---- */
typedef struct {
    const lqf_file *f;
    size_t at;  /* where the last piece ended */
    size_t end; /* where the header begins */
} layout;

static lq_status read_hash(lq_hash *h, const cJSON *o, lq_err *err)
{
    const char *text;
    lq_status s = js_str(o, "xxh3", true, &text, err);
    if (s) return s;
    return lq_hash_read(h, text)
               ? LQ_OK
               : lq_fail(err, LQ_EFORMAT, "xxh3: expected 32 hex digits, found \"%.40s\"", text);
}

/* The next piece of the file: {"off", "bytes", "xxh3"}. */
static lq_status read_piece(qt_span *span, lq_hash *hash, layout *l, const cJSON *o, size_t align,
                            lq_err *err)
{
    int64_t off, bytes;
    size_t want = lq_round_up(l->at, align);
    lq_status s = js_i64(o, "off", true, 0, JS_MAX_INT, &off, err);
    if (!s) s = js_i64(o, "bytes", true, 0, JS_MAX_INT, &bytes, err);
    if (!s) s = read_hash(hash, o, err);
    if (!s) s = expect("off", want, (uint64_t)off, err);
    if (s) return s;
    if (want > l->end || (uint64_t)bytes > l->end - want)
        return lq_fail(err, LQ_EFORMAT,
                       "bytes: expected at most %zu up to the header, found %" PRId64,
                       want > l->end ? 0 : l->end - want, bytes);
    *span = (qt_span){ (const uint8_t *)l->f->bytes.data + want, (size_t)bytes };
    l->at = want + (size_t)bytes;
    return LQ_OK;
}

static lq_status read_planes(lqf_tensor *t, layout *l, const cJSON *o, lq_err *err)
{
    const cJSON *planes = js_get(o, "planes");
    if (!cJSON_IsObject(planes)) return lq_fail(err, LQ_EFORMAT, "planes: expected an object");
    int found = 0;
    size_t align = LLMQ_PAGE;
    for (int p = 0; p < QT_N_PLANES; p++) {
        const cJSON *plane = js_get(planes, qt_plane_text((qt_plane)p));
        if (!plane) continue;
        found++;
        lq_status s = read_piece(&t->t.plane[p], &t->hash[p], l, plane, align, err);
        if (!s && !t->t.plane[p].bytes)
            s = lq_fail(err, LQ_EFORMAT, "bytes: expected more than 0, found 0");
        if (s) return lq_wrap(err, s, "plane %s", qt_plane_text((qt_plane)p));
        align = LLMQ_ALIGN;
    }
    if (!found) l->at = lq_round_up(l->at, LLMQ_PAGE); /* an empty tensor's place */
    int n = cJSON_GetArraySize(planes);
    return n == found ? LQ_OK
                      : lq_fail(err, LQ_EUNSUPPORTED,
                                "planes: expected known names, found %d others", n - found);
}

static lq_status read_shape(lqf_tensor *t, const cJSON *o, lq_err *err)
{
    const cJSON *shape = js_get(o, "shape");
    if (!cJSON_IsArray(shape)) return lq_fail(err, LQ_EFORMAT, "shape: expected an array");
    for (const cJSON *d = shape->child; d; d = d->next) {
        if (t->n_dims == (int)LQ_COUNT(t->shape) ||
            !js_whole(d, 0, JS_MAX_INT, &t->shape[t->n_dims]))
            return lq_fail(err, LQ_EFORMAT, "shape: expected at most %zu whole sizes",
                           LQ_COUNT(t->shape));
        t->n_dims++;
    }
    return LQ_OK;
}

static lq_status read_layout(qt_layout *out, const cJSON *o, lq_err *err)
{
    const char *text;
    lq_status s = js_str(o, "layout", true, &text, err);
    for (int i = 0; i < QT_N_LAYOUTS && !s; i++)
        if (strcmp(qt_layout_text((qt_layout)i), text) == 0) return *out = (qt_layout)i, LQ_OK;
    return s ? s : lq_fail(err, LQ_EUNSUPPORTED, "layout: unknown \"%.40s\"", text);
}

/* N and K from the logical shape, of a number 1 and 1; the planes must be exactly what they need. */
static lq_status check_weight(lqf_tensor *t, lq_err *err)
{
    int64_t n = 1;
    bool fits = true;
    for (int i = 0; i < t->n_dims - 1 && fits; i++)
        fits = !__builtin_mul_overflow(n, t->shape[i], &n);
    if (!fits)
        return lq_fail(err, LQ_EFORMAT, "shape: expected up to %d sizes that fit the memory",
                       LQ_MAX_DIMS);
    t->plain = true;
    t->t.N = n;
    t->t.K = t->n_dims ? t->shape[t->n_dims - 1] : 1;
    return qt_check_view(&t->t, err);
}

static lq_status check_raw(lqf_tensor *t, const cJSON *scheme, lq_err *err)
{
    const char *dtype;
    size_t want;
    lq_status s = js_str(scheme, "dtype", true, &dtype, err);
    if (s) return s;
    if (!lq_dtype_from_text(&t->raw_dtype, dtype))
        return lq_fail(err, LQ_EUNSUPPORTED, "scheme: dtype: unknown \"%.40s\"", dtype);
    if (!st_shape_bytes(t->raw_dtype, t->n_dims, t->shape, &want))
        return lq_fail(err, LQ_EFORMAT, "shape: expected whole bytes that fit the memory");
    size_t found = 0;
    for (int p = 0; p < QT_N_PLANES; p++)
        found += t->t.plane[p].bytes;
    s = expect("bytes of a raw tensor", want, found, err);
    return s ? s : expect("bytes of its codes", want, t->t.plane[QT_CODES].bytes, err);
}

static lq_status read_tensor(lqf_tensor *t, layout *l, const cJSON *o, lq_err *err)
{
    const char *kind = "";
    const cJSON *scheme = js_get(o, "scheme");
    lq_status s = js_str(o, "role", false, &t->role, err);
    if (!s) s = read_shape(t, o, err);
    if (!s) s = read_layout(&t->t.layout, o, err);
    if (!s) s = js_str(scheme, "kind", true, &kind, err);
    bool raw = strcmp(kind, "raw") == 0;
    if (!s && !raw) s = lqf_scheme_from_json(&t->t.scheme, scheme, err);
    if (!s) s = read_planes(t, l, o, err);
    if (!s) s = raw ? check_raw(t, scheme, err) : check_weight(t, err);
    return s;
}

static int by_text(const void *a, const void *b)
{
    const char *const *x = a, *const *y = b;
    return strcmp(*x, *y);
}

static lq_status check_names(const lqf_file *f, lq_err *err)
{
    const char **names = malloc((f->n_tensors + 1) * sizeof *names);
    if (!names) return lq_fail(err, LQ_ENOMEM, "no memory for names");
    for (size_t i = 0; i < f->n_tensors; i++)
        names[i] = f->tensors[i].name;
    qsort(names, f->n_tensors, sizeof *names, by_text);
    lq_status s = LQ_OK;
    for (size_t i = 1; i < f->n_tensors && !s; i++)
        if (strcmp(names[i - 1], names[i]) == 0)
            s = lq_fail(err, LQ_EFORMAT, "tensors: expected each name once, found '%.100s' twice",
                        names[i]);
    free(names);
    return s;
}

static lq_status read_tensors(lqf_file *f, layout *l, const cJSON *list, lq_err *err)
{
    if (!cJSON_IsArray(list)) return lq_fail(err, LQ_EFORMAT, "tensors: expected an array");
    f->tensors = lq_push(&f->arena, (size_t)cJSON_GetArraySize(list) * sizeof *f->tensors);
    if (!f->tensors) return lq_fail(err, LQ_ENOMEM, "no memory for the tensor table");
    for (const cJSON *o = list->child; o; o = o->next) {
        lqf_tensor *t = &f->tensors[f->n_tensors++];
        lq_status s = js_str(o, "name", true, &t->name, err);
        if (!s && !*t->name) s = lq_fail(err, LQ_EFORMAT, "name: expected a name, found \"\"");
        if (s) return lq_wrap(err, s, "tensor %zu", f->n_tensors - 1);
        s = read_tensor(t, l, o, err);
        if (s) return lq_wrap(err, s, "tensor '%.100s'", t->name);
    }
    return check_names(f, err);
}

bool lqf_blob_name_fits(const char *name) { return model_plain_name(name); }

static lq_status read_blobs(lqf_file *f, layout *l, const cJSON *list, lq_err *err)
{
    if (!cJSON_IsArray(list)) return lq_fail(err, LQ_EFORMAT, "blobs: expected an array");
    f->blobs = lq_push(&f->arena, (size_t)cJSON_GetArraySize(list) * sizeof *f->blobs);
    if (!f->blobs) return lq_fail(err, LQ_ENOMEM, "no memory for the blob table");
    for (const cJSON *o = list->child; o; o = o->next) {
        lqf_blob *b = &f->blobs[f->n_blobs];
        lq_status s = js_str(o, "name", true, &b->name, err);
        if (s) return lq_wrap(err, s, "blob %zu", f->n_blobs);
        if (!lqf_blob_name_fits(b->name))
            s = lq_fail(err, LQ_EFORMAT, "expected the name of a file, not hidden, in no folder");
        else if (f->n_blobs && strcmp(b[-1].name, b->name) >= 0)
            s = lq_fail(err, LQ_EFORMAT, "expected rising names, found it after '%.100s'",
                        b[-1].name);
        if (!s) s = read_piece(&b->span, &b->hash, l, o, LLMQ_ALIGN, err);
        if (s) return lq_wrap(err, s, "blob '%.100s'", b->name);
        f->n_blobs++;
    }
    return LQ_OK;
}

static lq_status optional_object(const cJSON **out, const cJSON *h, const char *key, lq_err *err)
{
    *out = js_get(h, key);
    return !*out || cJSON_IsObject(*out) ? LQ_OK
                                         : lq_fail(err, LQ_EFORMAT, "%s: expected an object", key);
}

static lq_status read_header(lqf_file *f, size_t end, lq_err *err)
{
    const char *format;
    layout l = { .f = f, .at = LLMQ_PAGE, .end = end };
    lq_status s = js_str(f->header, "format", true, &format, err);
    if (!s && strcmp(format, "llmq") != 0)
        s = lq_fail(err, LQ_EFORMAT, "format: expected \"llmq\", found \"%.40s\"", format);
    if (!s) s = optional_object(&f->config, f->header, "config", err);
    if (!s) s = optional_object(&f->recipe, f->header, "recipe", err);
    if (!s) s = optional_object(&f->provenance, f->header, "provenance", err);
    if (!s) s = read_tensors(f, &l, js_get(f->header, "tensors"), err);
    if (!s) s = read_blobs(f, &l, js_get(f->header, "blobs"), err);
    return s ? s : expect("header offset", lq_round_up(l.at, LLMQ_ALIGN), end, err);
}

lq_status lqf_open_bytes(lqf_file *f, const uint8_t *data, size_t n, lq_err *err)
{
    const char *text = NULL;
    size_t text_bytes = 0;
    memset(f, 0, sizeof *f);
    f->bytes = (qt_span){ data, n };
    lq_status s = read_preamble(&text, &text_bytes, f, err);
    if (!s) {
        s = js_parse(&f->header, text, text_bytes, LLMQ_MAX_HEADER, JS_UNIQUE, err);
        if (!s) s = read_header(f, n - text_bytes, err);
        if (s) lq_wrap(err, s, "header");
    }
    if (s) lqf_close(f);
    return s;
}

lq_status lqf_open(lqf_file *f, const char *path, lq_err *err)
{
    lq_map map;
    memset(f, 0, sizeof *f);
    lq_status s = lq_map_open(&map, path, err);
    if (s) return s;
    s = lqf_open_bytes(f, map.data, map.size, err);
    if (s) {
        lq_map_close(&map);
        return lq_wrap(err, s, "%s", path);
    }
    f->map = map;
    return LQ_OK;
}

void lqf_close(lqf_file *f)
{
    cJSON_Delete(f->header);
    lq_arena_free(&f->arena);
    lq_map_close(&f->map);
    memset(f, 0, sizeof *f);
}

/* ---- verifying ---- */
typedef struct {
    const lqf_file *f;
    const lq_job *job;
    void (*bad)(void *user, const char *name, const char *what);
    void *user;
    size_t at; /* bytes verified so far, from the file's start */
    int64_t failures;
    char first[256];
} verifier;

static void report_bad(verifier *v, const char *name, const char *what)
{
    if (v->bad) v->bad(v->user, name, what);
    if (!v->failures++) snprintf(v->first, sizeof v->first, "%.100s: %.140s", name, what);
}

static void check_zeros(verifier *v, const char *before, size_t end)
{
    const uint8_t *p = v->f->bytes.data;
    for (size_t i = v->at; i < end; i++)
        if (p[i]) {
            char what[80];
            snprintf(what, sizeof what, "padding before it: expected 0 at byte %zu, found %u", i,
                     (unsigned)p[i]);
            report_bad(v, before, what);
            break;
        }
    v->at = end;
}

static lq_status check_piece(verifier *v, const char *name, const char *plane, qt_span span,
                             const lq_hash *want, lq_err *err)
{
    enum { STEP = 1 << 24 };
    const uint8_t *start = v->f->bytes.data, *p = span.data;
    if (lq_stopped(v->job)) return lq_fail(err, LQ_EINTR, "interrupted");
    check_zeros(v, name, (size_t)(p - start));
    lq_hasher *h = lq_hasher_new();
    if (!h) return lq_fail(err, LQ_ENOMEM, "no memory for a checksum");
    for (size_t i = 0; i < span.bytes && !lq_stopped(v->job); i += STEP) {
        size_t n = span.bytes - i < STEP ? span.bytes - i : STEP;
        lq_hasher_add(h, p + i, n);
        if (v->f->map.size) lq_map_drop(&v->f->map, p + i, n);
        lq_report(v->job, "verify", (double)(v->at + i + n), (double)v->f->bytes.bytes);
    }
    lq_hash found = lq_hasher_end(h);
    if (lq_stopped(v->job)) return lq_fail(err, LQ_EINTR, "interrupted");
    v->at += span.bytes;
    if (memcmp(found.b, want->b, sizeof found.b) != 0) {
        char a[33], b[33], what[128];
        lq_hash_hex(a, want);
        lq_hash_hex(b, &found);
        snprintf(what, sizeof what, "%s: checksum: expected %s, found %s", plane, a, b);
        report_bad(v, name, what);
    }
    return LQ_OK;
}

lq_status lqf_verify(const lqf_file *f, const lq_job *job,
                     void (*bad)(void *user, const char *name, const char *what), void *user,
                     lq_err *err)
{
    verifier v = { .f = f, .job = job, .bad = bad, .user = user, .at = LLMQ_PREAMBLE };
    lq_status s = LQ_OK;
    check_zeros(&v, "tensors", LLMQ_PAGE);
    for (size_t i = 0; i < f->n_tensors && !s; i++)
        for (int p = 0; p < QT_N_PLANES && !s; p++)
            if (f->tensors[i].t.plane[p].bytes)
                s = check_piece(&v, f->tensors[i].name, qt_plane_text((qt_plane)p),
                                f->tensors[i].t.plane[p], &f->tensors[i].hash[p], err);
    for (size_t i = 0; i < f->n_blobs && !s; i++)
        s = check_piece(&v, f->blobs[i].name, "blob", f->blobs[i].span, &f->blobs[i].hash, err);
    if (s) return s;
    uint64_t header = get_le((const uint8_t *)f->bytes.data + 16, 8);
    check_zeros(&v, "header", (size_t)header);
    if (!v.failures) return LQ_OK;
    return lq_fail(err, LQ_ECHECK, "%" PRId64 " checksums or paddings do not fit; first %s",
                   v.failures, v.first);
}
