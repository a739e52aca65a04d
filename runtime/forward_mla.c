/* runtime/forward_mla.c - latent attention. model.c refuses such models until it is here. */
#include "runtime/forward_impl.h"

#include <assert.h>

void fwd_run_mla(const fwd_rows *r, const model_layer *l)
{
    assert(!r->c->w.mla);
    (void)r;
    (void)l;
}
