/* runtime/forward_moe.c - experts in the MLP's place. model.c refuses such models until they are
 * here. */
#include "runtime/forward_impl.h"

#include <assert.h>

void fwd_run_moe(const fwd_rows *r, const model_layer *l)
{
    assert(!l->lin[R_ROUTER].present);
    (void)r;
    (void)l;
}
