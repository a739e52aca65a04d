/* runtime/model/kv_memory.c - see kv_memory.h. */
#include "runtime/model/kv_memory.h"

#include "base/os.h"
#include "runtime/model/kv_size.h"
#include "runtime/model/kv_window.h"

#include <assert.h>
#include <stdlib.h>
#include <sys/mman.h>

static lq_status take_device(kv_memory *m, size_t n, lq_err *err)
{
    int r = 0;
    m->on_bytes = n;
    for (dev *on = m->on; on; on = on->peer, r++) {
        void *p;
        lq_status s = dev_take(&p, on, n, "the KV cache needs", err);
        if (s) return s;
        m->data_on[r] = p;
    }
    return LQ_OK;
}

static lq_status map_host(kv_memory *m, size_t n, int64_t n_blocks, lq_err *err)
{
    void *p = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return lq_fail(err, LQ_ENOMEM, "KV cache: no memory for %zu bytes in %lld blocks", n,
                       (long long)n_blocks);
    os_huge_pages(p, n);
    m->data = p;
    m->data_bytes = n;
    return LQ_OK;
}

/* Where each layer is, on the host and on the device each from 0 on; how much that is of each. */
static lq_status place_layers(kv_memory *m, const arch_config *c, const kv_opts *o, size_t *host,
                              size_t *on, lq_err *err)
{
    size_t all, one = 0;
    *host = *on = 0;
    for (int64_t i = 0; i < c->layers; i++)
        one += kv_layer_bytes(c, i, o->block_size, o->dtype);
    if (!lq_mul(one, (size_t)o->n_blocks, &all))
        return lq_fail(err, LQ_ENOMEM, "KV cache: %lld blocks do not fit in memory",
                       (long long)o->n_blocks);
    for (int64_t i = 0; i < c->layers; i++) {
        const int64_t back = c->layer[i].kv_back;
        const bool here = i < o->first, near = o->n_windows && kv_has_window(c, i);
        size_t *side = here ? host : on;
        m->place[i] = (kv_place){ .at = *side,
                                  .k_bytes = kv_key_bytes(c, i, o->block_size, o->dtype),
                                  .stride = kv_layer_bytes(c, i, o->block_size, o->dtype),
                                  .near = near };
        *side += m->place[i].stride * (size_t)(near ? o->n_windows : o->n_blocks);
        if (!back) continue;
        m->place[i] = m->place[i - back];
        m->place[i].other = true;
        for (int64_t k = i - back; k < i && c->w.mla; k++) /* keys of indexers, one after another */
            if (k - c->layer[k].kv_back == i - back)
                m->place[i].k_bytes += kv_index_bytes(c, k, o->block_size, o->dtype);
    }
    return LQ_OK;
}

lq_status kv_memory_open(kv_memory *m, const arch_config *c, const kv_opts *o, lq_err *err)
{
    size_t host, on;
    assert(o->first >= 0 && o->first <= c->layers);
    *m = (kv_memory){ .layers = c->layers, .first = o->first, .on = o->on, .alike = c->w.mla };
    m->place = calloc((size_t)c->layers, sizeof *m->place);
    if (!m->place)
        return lq_fail(err, LQ_ENOMEM, "KV cache: no memory for the tables of %lld layers",
                       (long long)c->layers);
    lq_status s = place_layers(m, c, o, &host, &on, err);
    if (!s && host) s = map_host(m, host, o->n_blocks, err);
    return s || !on ? s : take_device(m, on, err);
}

void kv_memory_close(kv_memory *m)
{
    int r = 0;
    for (dev *on = m->on; on; on = on->peer, r++)
        if (m->data_on[r]) on->ops->free(on, m->data_on[r]);
    if (m->data) munmap(m->data, m->data_bytes);
    free(m->place);
}

void kv_memory_zero(kv_memory *m)
{
    int r = 0;
    for (dev *on = m->on; on; on = on->peer, r++)
        if (m->data_on[r]) {
            on->ops->bind(on);
            on->ops->zero(on, m->data_on[r], m->on_bytes);
        }
    if (m->data) memset(m->data, 0, m->data_bytes);
}
