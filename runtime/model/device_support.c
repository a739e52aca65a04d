/* runtime/model/device_support.c - which architectures the devices have no kernels for. */
#include "kernels/device.h"
#include "runtime/model/model.h"

lq_status model_check_device(const arch_config *c, lq_err *err)
{
    const char *what =
        c->head_dim > DEV_ATTN_WIDTH || c->head_dim % 4 || c->v_dim % 4 || c->v_dim > DEV_ATTN_WIDTH
            ? "heads of this size"
        : c->experts > DEV_EXPERTS ? "so many experts"
                                   : NULL;
    return what ? lq_fail(err, LQ_EUNSUPPORTED, "not on cuda yet: %s (%s)", what, c->row->arch)
                : LQ_OK;
}
