/* formats/source/source_list.c - the lists of a source: its tensors and blobs, and their sizes. */
#include "formats/source/source_impl.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

int src_by_name(const void *a, const void *b)
{
    const src_tensor *x = a, *y = b;
    return strcmp(x->name, y->name);
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
    int64_t elements = (int64_t)(bytes / lq_dtype_bytes(d));
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

const src_source *src_base(const src_source *s)
{
    while (s->base)
        s = s->base;
    return s;
}
