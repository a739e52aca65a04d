/* runtime/model/kv_move.c - see kv_move.h. */
#include "runtime/model/kv_move.h"

static bool is_of(const kv_place *p, kv_part part)
{
    return !p->other && p->stride && p->near == (part == KV_NEAR);
}

/* Layers from l on, before `end`, whose blocks are of one size and equally far apart: how many. */
static int64_t run_of(const kv_memory *m, kv_part part, int64_t l, int64_t end)
{
    const kv_place *p = m->place + l;
    int64_t n = 1;
    while (l + n < end && is_of(&p[n], part) && p[n].stride == p->stride &&
           p[n].at - p[n - 1].at == p[1].at - p->at)
        n++;
    return n;
}

static size_t apart(const kv_memory *m, int64_t l, int64_t n)
{
    return n > 1 ? m->place[l + 1].at - m->place[l].at : m->place[l].stride;
}

size_t kv_move_bytes(const kv_memory *m, kv_part part)
{
    size_t n = 0;
    for (int64_t l = 0; l < m->layers; l++)
        if (is_of(&m->place[l], part))
            n += m->place[l].stride * (size_t)(l < m->first || m->alike ? 1 : dev_ranks(m->on));
    return n;
}

void kv_move(const kv_memory *m, kv_part part, size_t i, void *to, const void *from)
{
    uint8_t *out = to;
    const uint8_t *in = from;
    for (int64_t l = 0; l < m->first; l++) {
        const size_t n = m->place[l].stride;
        if (!is_of(&m->place[l], part)) continue;
        uint8_t *own = m->data + m->place[l].at + i * n;
        memcpy(to ? out : own, to ? own : in, n);
        out += to ? n : 0;
        in += to ? 0 : n;
    }
    int r = 0;
    const uint8_t *const behind = in; /* the host's layers */
    for (dev *on = m->on; on && !(r && m->alike && to); on = on->peer, r++) {
        if (m->alike) in = behind;
        on->ops->bind(on);
        for (int64_t l = m->first, n; l < m->layers; l += n) {
            n = run_of(m, part, l, m->layers);
            if (!is_of(&m->place[l], part)) continue;
            const size_t each = m->place[l].stride, all = each * (size_t)n, ld = apart(m, l, n);
            uint8_t *own = m->data_on[r] + m->place[l].at + i * each;
            if (to)
                on->ops->download_rows(on, &(dev_copy_args){ out, own, each, each, ld, n });
            else
                on->ops->upload_rows(on, &(dev_copy_args){ own, in, each, ld, each, n });
            out += to ? all : 0;
            in += to ? 0 : all;
        }
    }
}

void kv_move_copy(const kv_memory *m, kv_part part, size_t dst, size_t src)
{
    for (int64_t l = 0; l < m->first; l++) {
        const size_t n = m->place[l].stride;
        uint8_t *at = m->data + m->place[l].at;
        if (is_of(&m->place[l], part)) memcpy(at + dst * n, at + src * n, n);
    }
    int r = 0;
    for (dev *on = m->on; on; on = on->peer, r++) {
        on->ops->bind(on);
        for (int64_t l = m->first, n; l < m->layers; l += n) {
            n = run_of(m, part, l, m->layers);
            if (!is_of(&m->place[l], part)) continue;
            const size_t each = m->place[l].stride, ld = apart(m, l, n);
            uint8_t *at = m->data_on[r] + m->place[l].at;
            on->ops->copy(on,
                          &(dev_copy_args){ at + dst * each, at + src * each, each, ld, ld, n });
        }
    }
}
