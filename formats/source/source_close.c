/* formats/source/source_close.c - closing a source of any kind, opened whole or in part. */
#include "formats/source/source_impl.h"

#include <cjson/cJSON.h>
#include <stdlib.h>

void src_close(src_source *s)
{
    if (!s) return;
    src_close(s->tokenizer);
    for (size_t i = 0; i < s->n_shards; i++)
        st_close(&s->shards[i]);
    for (size_t i = 0; s->blob_maps && i < s->n_blobs; i++)
        lq_map_close(&s->blob_maps[i]);
    if (s->has_config) arch_config_free(&s->config);
    if (s->has_head) arch_config_free(&s->head);
    cJSON_Delete(s->quant);
    cJSON_Delete(s->history);
    src_free_room(s);
    lqf_close(&s->llmq);
    gguf_close(&s->gguf);
    for (size_t i = 0; i < s->n_splits; i++)
        gguf_close(&s->splits[i]);
    lq_arena_free(&s->arena);
    free(s->stamps);
    free(s->path);
    free(s);
}
