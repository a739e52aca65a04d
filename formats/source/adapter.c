/* formats/source/adapter.c - see adapter.h. */
#include "formats/source/adapter_impl.h"

#include "base/path.h"

lq_status adp_open(adp_adapter *a, const char *path, const src_source *base, lq_err *err)
{
    *a = (adp_adapter){ 0 };
    const bool folder = lq_is_dir(path);
    lq_status s = folder ? adp_open_peft(a, path, base, err) : adp_open_gguf(a, path, base, err);
    if (!s) return LQ_OK;
    adp_close(a);
    return lq_wrap(err, s, "adapter %s", path);
}

void adp_close(adp_adapter *a)
{
    lq_arena_free(&a->arena);
    *a = (adp_adapter){ 0 };
}
