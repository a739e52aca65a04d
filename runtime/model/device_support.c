/* runtime/model/device_support.c - which architectures the devices have no kernels for. */
#include "kernels/device.h"
#include "runtime/model/model.h"

static bool shares_kv(const arch_config *c)
{
    for (int64_t i = 0; i < c->layers; i++)
        if (c->layer[i].kv_back) return true;
    return false;
}

lq_status model_check_device(const arch_config *c, lq_err *err)
{
    const bool heads = c->head_dim > DEV_ATTN_WIDTH || c->head_dim % 4 || c->v_dim % 4 ||
                       c->v_dim > DEV_ATTN_WIDTH;
    const char *what = c->n_sizes                 ? "layers of different sizes"
                       : shares_kv(c)             ? "layers that read the K and V of another"
                       : heads                    ? "heads of this size"
                       : c->experts > DEV_EXPERTS ? "so many experts"
                       : c->q_grow > 0            ? "queries that grow with their position"
                                                  : NULL;
    return what ? lq_fail(err, LQ_EUNSUPPORTED, "not on cuda yet: %s (%s)", what, c->row->arch)
                : LQ_OK;
}
