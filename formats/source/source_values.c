/* formats/source/source_values.c - are the weights of a source finite, and its codes in range? */
#include "formats/source/source_impl.h"
#include "formats/tensor/finite.h"

lq_status src_check_finite(const src_tensor *t, lq_err *err)
{
    if (!t->plain || t->made || t->t.scheme.kind != QT_DENSE) return LQ_OK;
    const lq_dtype d = t->t.scheme.dtype;
    const size_t size = lq_dtype_bytes(d), n = t->t.plane[QT_CODES].bytes / size;
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
