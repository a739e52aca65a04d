/* quantize/layer/importance.c */
#include "quantize/layer/importance.h"

#include "formats/gguf/gguf_names.h"

lq_status importance_of(const float **mean_sq, const imatrix *m, const arch_config *c,
                        const plan_entry *e, int64_t expert, lq_err *err)
{
    const gguf_arch *arch = gguf_arch_of(c);
    const gguf_name *names[2];
    char name[64];
    *mean_sq = NULL;
    if (!arch || !e->known || gguf_names_of(names, arch, c, e->role) == 0) return LQ_OK;
    gguf_tensor_name(name, names[0],
                     &(arch_slot){ .role = e->role, .layer = e->layer, .expert = e->expert });
    const imatrix_entry *found = imatrix_find(m, name);
    if (!found) return LQ_OK;
    const int64_t of = found->n > e->K && arch_role_per_expert(e->role) ? c->experts : 1;
    if (found->n != of * e->K)
        return lq_fail(err, LQ_ESHAPE, "--imatrix: %s: expected %lld inputs, found %lld", name,
                       (long long)(of * e->K), (long long)found->n);
    *mean_sq = found->mean_sq + (of > 1 && expert > 0 ? expert * e->K : 0);
    return LQ_OK;
}
