/* formats/source/totals.c */
#include "formats/source/totals.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

void src_scheme_text(char out[40], const src_tensor *t)
{
    if (t->plain)
        qt_scheme_text(out, &t->t.scheme);
    else
        snprintf(out, 40, "%s (raw)", lq_dtype_text(t->raw_dtype));
}

/* A weight of the layers that quantizers work on; without a config any float matrix counts. */
static bool is_linear(const arch_config *c, const src_tensor *t)
{
    arch_slot slot;
    if (!t->plain) return false;
    if (!c) return t->n_dims == 2;
    return arch_slot_of(c, t->name, &slot) && !slot.bias && arch_role_linear(slot.role) &&
           arch_role_per_layer(slot.role);
}

lq_status src_count(src_totals *t, const src_source *s, lq_err *err)
{
    const int64_t n = src_n_tensors(s);
    memset(t, 0, sizeof *t);
    t->per = calloc((size_t)n + 1, sizeof *t->per);
    if (!t->per) return lq_fail(err, LQ_ENOMEM, "no memory for %" PRId64 " tensors", n);
    for (int64_t i = 0; i < n; i++) {
        const src_tensor *x = src_tensor_at(s, i);
        const double elements = (double)src_elements(x), bytes = (double)src_bytes(x);
        char scheme[40];
        size_t k = 0;
        src_scheme_text(scheme, x);
        while (k < t->n && strcmp(t->per[k].scheme, scheme) != 0)
            k++;
        if (k == t->n) snprintf(t->per[t->n++].scheme, sizeof scheme, "%s", scheme);
        t->per[k].tensors++;
        t->per[k].elements += elements;
        t->per[k].bytes += bytes;
        t->bytes += bytes;
        if (x->plain) t->params += elements;
        if (is_linear(src_config(s), x)) {
            t->linear_params += elements;
            t->linear_bytes += bytes;
        }
    }
    return LQ_OK;
}

void src_totals_free(src_totals *t)
{
    free(t->per);
    *t = (src_totals){ .per = NULL };
}
