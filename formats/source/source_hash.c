/* formats/source/source_hash.c - checksums of tensors, and the fingerprint of a whole source. */
#include "base/json.h"
#include "formats/source/source_impl.h"

#include <stdlib.h>

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
    lq_buf text = { 0 };
    cJSON *scheme = t->plain ? lqf_scheme_json(&t->t.scheme) : NULL;
    lq_status s = LQ_OK;
    if (t->plain)
        s = scheme ? js_canonical(&text, scheme, err) : lq_fail(err, LQ_ENOMEM, "out of memory");
    cJSON_Delete(scheme);
    hash_text(h, t->plain ? "weight" : lq_dtype_text(t->raw_dtype));
    lq_hasher_add(h, text.p, text.n);
    free(text.p);
    return s;
}

/* ---- a few places ---- */
static lq_status sample_file(lq_hasher *h, const char *path, lq_err *err)
{
    enum { PLACES = 256, PIECE = 4096 };
    lq_map m;
    lq_status s = lq_map_open(&m, path, err);
    if (s) return s;
    const size_t step = m.size / PLACES > PIECE ? m.size / PLACES : PIECE;
    hash_u64(h, m.size);
    for (size_t at = 0; at < m.size; at += step)
        lq_hasher_add(h, m.data + at, m.size - at < PIECE ? m.size - at : PIECE);
    lq_map_close(&m);
    return LQ_OK;
}

lq_status src_sample(lq_hash *out, const src_source *s, lq_err *err)
{
    s = src_base(s);
    lq_hasher *h = lq_hasher_new();
    lq_status st = h ? LQ_OK : lq_fail(err, LQ_ENOMEM, "out of memory");
    for (size_t i = 0; i < s->n_stamps && !st; i++)
        st = sample_file(h, s->stamps[i].path, err);
    for (size_t i = 0; i < src_n_blobs(s) && !st; i++) {
        const src_blob *b = src_blob_at(s, i);
        hash_text(h, b->name);
        hash_u64(h, b->bytes);
        lq_hasher_add(h, b->data, b->bytes);
    }
    if (h) *out = lq_hasher_end(h);
    return st;
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
