/* formats/source/source_pages.c - giving back the pages of mapped files. */
#include "formats/source/source_impl.h"

/* ---- pages of the mapped files ---- */
static bool in_map(const lq_map *m, const uint8_t *p)
{
    return m->size && p >= m->data && p < m->data + m->size;
}

static const lq_map *map_of(const src_source *s, const uint8_t *p)
{
    for (size_t i = 0; i < s->n_shards; i++)
        if (in_map(&s->shards[i].map, p)) return &s->shards[i].map;
    for (size_t i = 0; i < s->n_splits; i++)
        if (in_map(&s->splits[i].map, p)) return &s->splits[i].map;
    const lq_map *one[] = { &s->llmq.map, &s->gguf.map };
    for (size_t i = 0; i < LQ_COUNT(one); i++)
        if (in_map(one[i], p)) return one[i];
    return NULL;
}

void src_drop(const src_source *s, qt_span span)
{
    const lq_map *m = span.bytes ? map_of(src_base(s), span.data) : NULL;
    if (m) lq_map_drop(m, span.data, span.bytes);
}

void src_scattered(const src_source *s, qt_span span)
{
    const lq_map *m = span.bytes ? map_of(src_base(s), span.data) : NULL;
    if (m) lq_map_scattered(m, span.data, span.bytes);
}

static void drop_whole(const lq_map *m)
{
    if (m->size) lq_map_drop(m, m->data, m->size);
}

void src_release_all(const src_source *s)
{
    s = src_base(s);
    for (size_t i = 0; i < s->n_shards; i++)
        drop_whole(&s->shards[i].map);
    for (size_t i = 0; i < s->n_splits; i++)
        drop_whole(&s->splits[i].map);
    drop_whole(&s->llmq.map);
    drop_whole(&s->gguf.map);
}

void src_release(const src_source *s, const src_tensor *t)
{
    for (int p = 0; p < QT_N_PLANES; p++)
        src_drop(s, src_plane(t, p));
}
