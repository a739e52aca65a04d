/* convert/to_llmq.c - any source as one .llmq file, in the layout asked for. */
#include <cjson/cJSON.h>
#include <float.h>
#include <sys/stat.h>

#include "base/hash.h"
#include "base/json.h"
#include "base/version.h"
#include "convert/convert.h"
#include "convert/load.h"
#include "convert/parts.h"
#include "formats/llmq/llmq.h"
#include "formats/source/history.h"
#include "formats/tensor/finite.h"
#include "formats/tensor/tiles.h"
#include "kernels/mm.h"

/* What a share notes of a tensor (convert/parts.h). */
#define PLANES "planes"
#define TILED "tiled"
#define LARGEST "largest"
#define HASHES "hashes"

/* The kernels read linears; embedding rows are read one by one and stay portable, and so does the
 * head that is the embedding. So do dense matrices that lie [inputs, outputs], whose bytes are the
 * source's, codes whose tiled form would lose something (double-quantized scales), and stacked
 * experts that would begin in the middle of a tile. */
static bool may_tile(const arch_config *c, const src_tensor *t)
{
    arch_slot slot;
    if (!t->plain || !arch_slot_of(c, t->name, &slot) || slot.bias ||
        !arch_role_linear(slot.role) || (slot.role == R_HEAD && c->tied))
        return false;
    int64_t N, K;
    const int flags = arch_name_of(c, slot.role)->flags;
    arch_role_shape(c, slot.role, &N, &K);
    if ((flags & NAME_TRANSPOSED) && t->t.scheme.kind == QT_DENSE) return false;
    if (!tiles_keep(&t->t.scheme, t->t.N, t->t.K)) return false;
    return !(flags & NAME_STACKED) || N % TILE_N == 0;
}

static lq_status tile(qt_tensor *out, const qt_tensor *t, lq_arena *a, pool *p, lq_err *err)
{
    mm_weight w;
    lq_status s = mm_pack(&w, t, a, p, err);
    *out = w.t;
    return s;
}

typedef struct {
    src_source *src;
    const conv_llmq_opts *o;
    pool *pool;
    bool scan;     /* hashes of tensors are taken while they are translated, for provenance */
    lqf_writer *w; /* or a share's part: */
    lq_out *part;
    cJSON *about;
} conv;

/* The planes of t as they are written, q of a raw tensor with its bytes as codes. */
static lq_status give(const conv *c, const src_tensor *t, const qt_tensor *q, lq_err *err)
{
    if (c->w && t->plain) return lqf_add_tensor(c->w, t->name, q, t->n_dims, t->shape, err);
    if (c->w)
        return lqf_add_raw(c->w, t->name, t->raw_dtype, t->n_dims, t->shape,
                           q->plane[QT_CODES].data, q->plane[QT_CODES].bytes, err);
    cJSON *planes = cJSON_AddArrayToObject(c->about, PLANES);
    cJSON_AddBoolToObject(c->about, TILED, q->layout == QT_TILE16);
    lq_status s = LQ_OK;
    for (int p = 0; p < QT_N_PLANES && !s; p++) {
        const qt_span span = q->plane[p];
        cJSON_AddItemToArray(planes, cJSON_CreateNumber((double)span.bytes));
        if (span.bytes) s = lq_out_write(c->part, span.data, span.bytes, err);
        if (!s) s = lq_out_pad(c->part, LLMQ_ALIGN, err);
    }
    return s;
}

/* Tensor i of the source. */
static lq_status add(conv *c, int64_t i, lq_err *err)
{
    src_source *src = c->src;
    const src_tensor *t = src_tensor_at(src, i);
    if (!t->plain) {
        if (c->scan) src_scan(src, i);
        return give(c, t, &(qt_tensor){ .plane[QT_CODES] = t->raw }, err);
    }
    lq_arena a = { 0 };
    qt_tensor q, stored;
    src_load(&stored, src, t);
    if (c->scan) src_scan(src, i);
    q = stored;
    qt_layout want = may_tile(src_config(src), t) ? c->o->layout : QT_PORTABLE;
    lq_status s = val_check(&stored, true, err);
    if (!s && q.layout == QT_TILE16 && want == QT_PORTABLE)
        s = conv_untile(&q, &stored, c->pool, &a, err);
    if (!s && q.layout == QT_PORTABLE && want == QT_TILE16) s = tile(&q, &stored, &a, c->pool, err);
    if (!s) s = give(c, t, &q, err);
    src_unload(src, t);
    lq_arena_free(&a);
    return s ? lq_wrap(err, s, "%s", t->name) : LQ_OK;
}

/* ---- by shares ---- */
static size_t work_of(void *user, size_t i)
{
    const conv *c = user;
    return src_bytes(src_tensor_at(c->src, (int64_t)i)) + 1; /* each by itself */
}

static void put_scanned(cJSON *about, const src_source *src, int64_t i)
{
    src_scanned found;
    src_scan_get(&found, src, i);
    if (!found.scanned) return;
    cJSON_AddNumberToObject(about, LARGEST, (double)found.largest);
    cJSON *hashes = cJSON_AddArrayToObject(about, HASHES);
    for (int p = 0; p < QT_N_PLANES; p++) {
        char hex[33];
        lq_hash_hex(hex, &found.hash[p]);
        cJSON_AddItemToArray(hashes, cJSON_CreateString(hex));
    }
}

static lq_status make_piece(void *user, size_t i, lq_out *to, cJSON *about, lq_err *err)
{
    conv *c = user;
    c->part = to;
    c->about = about;
    const lq_status s = add(c, (int64_t)i, err);
    if (!s && c->scan) put_scanned(about, c->src, (int64_t)i);
    return s;
}

static void get_scanned(src_source *src, int64_t i, const cJSON *about)
{
    src_scanned found = { 0 };
    double largest = 0;
    const cJSON *hashes = js_get(about, HASHES), *c;
    int p = 0;
    cJSON_ArrayForEach(c, hashes)
    {
        const char *hex = cJSON_IsString(c) ? c->valuestring : "";
        if (p == QT_N_PLANES || !lq_hash_read(&found.hash[p], hex)) return;
        p++;
    }
    found.scanned = p == QT_N_PLANES && !js_f64(about, LARGEST, true, 0, FLT_MAX, &largest, NULL);
    found.largest = (float)largest;
    src_scan_put(src, i, &found);
}

/* Tensor i as a share has made it. */
static lq_status add_made(conv *c, int64_t i, qt_span bytes, const cJSON *about, lq_err *err)
{
    const src_tensor *t = src_tensor_at(c->src, i);
    bool tiled = false;
    qt_tensor q = t->t;
    size_t at = 0;
    int p = 0;
    const cJSON *n;
    js_bool(about, TILED, false, &tiled, NULL);
    if (tiled && t->t.layout != QT_TILE16) q.scheme = tiles_scheme(&t->t.scheme, q.N, q.K);
    q.layout = tiled ? QT_TILE16 : QT_PORTABLE;
    cJSON_ArrayForEach(n, js_get(about, PLANES))
    {
        int64_t size = 0;
        if (p == QT_N_PLANES || !js_whole(n, 0, (int64_t)(bytes.bytes - at), &size)) break;
        q.plane[p++] = (qt_span){ (const uint8_t *)bytes.data + at, (size_t)size };
        at += lq_round_up((size_t)size, LLMQ_ALIGN);
        if (at > bytes.bytes) break;
    }
    if (p < QT_N_PLANES || at != bytes.bytes)
        return lq_fail(err, LQ_EFORMAT, "%s: its part does not fit the model", t->name);
    if (c->scan) get_scanned(c->src, i, about);
    return give(c, t, &q, err);
}

/* Has what was converted before other values than the recipe gave? */
static bool changed_on_the_way(const cJSON *converted)
{
    bool exact = true;
    double floats = 0;
    js_bool(converted, "bit_exact", false, &exact, NULL);
    js_f64(converted, "floats", false, 0, 1e15, &floats, NULL);
    return !exact || floats > 0;
}

/* Of the source's own bytes, where nothing is known of what they were made from. */
static cJSON *new_provenance(const src_source *src)
{
    lq_hash h;
    char hex[33];
    if (src_fingerprint(&h, src, NULL)) return NULL;
    cJSON *o = cJSON_CreateObject(), *s = cJSON_AddObjectToObject(o, "source");
    lq_hash_hex(hex, &h);
    cJSON_AddStringToObject(o, "llmq", LLMQ_VERSION);
    cJSON_AddStringToObject(s, "format", src_format(src));
    cJSON_AddStringToObject(s, "xxh3", hex);
    return o;
}

/* NULL: out of memory. */
static cJSON *provenance(const src_source *src)
{
    const cJSON *was = src_provenance(src), *c = src_conversion(src);
    cJSON *o = was ? cJSON_Duplicate(was, true) : new_provenance(src);
    if (o && changed_on_the_way(c))
        cJSON_AddItemToObject(o, HISTORY_CONVERTED, cJSON_Duplicate(c, true));
    return o;
}

static lq_status add_header(lqf_writer *w, const src_source *src, lq_err *err)
{
    cJSON *config = arch_config_json(src_config(src));
    lq_status s = config ? LQ_OK : lq_fail(err, LQ_ENOMEM, "no memory for the header");
    if (!s) s = lqf_set_config(w, config, err);
    if (!s && src_recipe(src)) s = lqf_set_recipe(w, src_recipe(src), err);
    cJSON_Delete(config);
    return s;
}

/* After all tensors, whose hashes are known by then. */
static lq_status add_provenance(lqf_writer *w, const src_source *src, lq_err *err)
{
    cJSON *prov = provenance(src);
    const lq_status s = prov ? lqf_set_provenance(w, prov, err)
                             : lq_fail(err, LQ_ENOMEM, "no memory for the header");
    cJSON_Delete(prov);
    return s;
}

static lq_status add_blobs(lqf_writer *w, const src_source *src, const conv_llmq_opts *o,
                           lq_err *err)
{
    lq_status s = LQ_OK;
    for (size_t i = 0; i < src_n_blobs(src) && !s; i++) {
        const src_blob *b = src_blob_at(src, i);
        s = lqf_add_blob(w, b->name, b->data, b->bytes, err);
    }
    if (!s && o->tokenizer && !src_find_blob(src, "tokenizer.blob"))
        s = lqf_add_blob(w, "tokenizer.blob", o->tokenizer, o->tokenizer_bytes, err);
    return s;
}

lq_status conv_to_llmq(conv_report *r, src_source *src, const char *path, const conv_llmq_opts *o,
                       pool *p, const lq_job *job, lq_err *err)
{
    memset(r, 0, sizeof *r);
    conv c = { .src = src, .o = o, .pool = p, .scan = !src_provenance(src) };
    const conv_pieces pieces = { &c, (size_t)src_n_tensors(src), work_of, make_piece };
    conv_parts *parts = NULL;
    lq_status s = c.scan ? src_scan_room(src, err) : LQ_OK;
    if (!s) s = conv_parts_open(&parts, path, &o->share, &pieces, r, err);
    if (!s && o->share.n) s = conv_parts_make(parts, job, err);
    if (s || o->share.n) {
        conv_parts_close(parts, false);
        return s;
    }
    s = lqf_create(&c.w, path, err);
    if (!s) s = add_header(c.w, src, err);
    for (int64_t i = 0; i < src_n_tensors(src) && !s; i++) {
        qt_span made;
        const cJSON *about;
        lq_report(job, "writing", (double)i, (double)src_n_tensors(src));
        if (lq_stopped(job))
            s = lq_fail(err, LQ_EINTR, "interrupted");
        else if (conv_parts_get(parts, (size_t)i, &made, &about))
            s = add_made(&c, i, made, about, err);
        else
            s = add(&c, i, err);
        r->tensors++;
    }
    if (!s) s = add_provenance(c.w, src, err);
    if (!s) s = add_blobs(c.w, src, o, err);
    if (s)
        lqf_abort(c.w);
    else
        s = lqf_commit(c.w, err);
    conv_parts_close(parts, !s);
    struct stat st;
    if (!s && stat(path, &st) == 0) r->bytes = (size_t)st.st_size;
    r->bit_exact = !s;
    r->weights = r->tensors;
    return s;
}
