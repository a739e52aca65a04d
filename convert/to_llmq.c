/* convert/to_llmq.c - any source as one .llmq file, in the layout asked for. */
#include <cjson/cJSON.h>
#include <sys/stat.h>

#include "base/hash.h"
#include "base/json.h"
#include "base/version.h"
#include "convert/convert.h"
#include "convert/load.h"
#include "formats/llmq/llmq.h"
#include "formats/source/history.h"
#include "formats/tensor/finite.h"
#include "formats/tensor/tiles.h"
#include "kernels/mm.h"

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

/* Tensor i of the source. `scan`: its hashes are taken while it is translated, for provenance. */
static lq_status add(lqf_writer *w, src_source *src, int64_t i, bool scan, qt_layout layout,
                     pool *p, lq_err *err)
{
    const src_tensor *t = src_tensor_at(src, i);
    if (!t->plain && scan) src_scan(src, i);
    if (!t->plain)
        return lqf_add_raw(w, t->name, t->raw_dtype, t->n_dims, t->shape, t->raw.data, t->raw.bytes,
                           err);
    lq_arena a = { 0 };
    qt_tensor q, stored;
    src_load(&stored, src, t);
    if (scan) src_scan(src, i);
    q = stored;
    qt_layout want = may_tile(src_config(src), t) ? layout : QT_PORTABLE;
    lq_status s = val_check(&stored, true, err);
    if (!s && q.layout == QT_TILE16 && want == QT_PORTABLE)
        s = conv_untile(&q, &stored, p, &a, err);
    if (!s && q.layout == QT_PORTABLE && want == QT_TILE16) s = tile(&q, &stored, &a, p, err);
    if (!s) s = lqf_add_tensor(w, t->name, &q, t->n_dims, t->shape, err);
    src_unload(src, t);
    lq_arena_free(&a);
    return s ? lq_wrap(err, s, "%s", t->name) : LQ_OK;
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
    lqf_writer *w = NULL;
    const bool scan = !src_provenance(src);
    lq_status s = scan ? src_scan_room(src, err) : LQ_OK;
    if (!s) s = lqf_create(&w, path, err);
    if (!s) s = add_header(w, src, err);
    for (int64_t i = 0; i < src_n_tensors(src) && !s; i++) {
        lq_report(job, "writing", (double)i, (double)src_n_tensors(src));
        if (lq_stopped(job))
            s = lq_fail(err, LQ_EINTR, "interrupted");
        else
            s = add(w, src, i, scan, o->layout, p, err);
        r->tensors++;
    }
    if (!s) s = add_provenance(w, src, err);
    if (!s) s = add_blobs(w, src, o, err);
    if (s)
        lqf_abort(w);
    else
        s = lqf_commit(w, err);
    struct stat st;
    if (!s && stat(path, &st) == 0) r->bytes = (size_t)st.st_size;
    r->bit_exact = !s;
    r->weights = r->tensors;
    return s;
}
