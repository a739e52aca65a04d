/* convert/gguf_compress.c - see gguf_meta.h: what only a model with compressed positions says (DeepSeek V4). */
#include "convert/gguf_meta.h"

#include "formats/gguf/gguf_compress.h"

#include <stdio.h>

void gguf_put_compress(gguf_pairs *p, const gguf_arch *a, const arch_config *c)
{
    static const char *const limits[] = { "swiglu_clamp_exp", "swiglu_clamp_shexp" };
    int64_t hashed = 0;
    char k[96];
    snprintf(k, sizeof k, "%s.attention.compress_ratios", a->gguf);
    gguf_pair_array(p, k, GGUF_I32, (uint64_t)c->layers);
    for (int64_t i = 0; i < c->layers; i++)
        gguf_put_le(&p->b, (uint64_t)arch_compresses(c, i), 4);
    for (size_t i = 0; i < LQ_COUNT(limits); i++) {
        snprintf(k, sizeof k, "%s.%s", a->gguf, limits[i]);
        gguf_pair_array(p, k, GGUF_F32, (uint64_t)c->layers);
        for (int64_t l = 0; l < c->layers; l++)
            gguf_put_f32(p, c->act_limit);
    }
    while (hashed < c->layers && c->layer[hashed].hashed)
        hashed++;
    snprintf(k, sizeof k, "%s.hash_layer_count", a->gguf);
    gguf_pair_int(p, k, hashed);
    snprintf(k, sizeof k, "%s.embedding_length_out", a->gguf);
    gguf_pair_int(p, k, c->hidden * c->hyper);
}

bool gguf_runs_compressed(const arch_config *c)
{
    bool as = c->hyper == GGUF_HYPER;
    for (int64_t i = 0; i < c->layers; i++) {
        const int64_t n = arch_compresses(c, i);
        as = as &&
             (!n || n == (c->layer[i].mixer == MIX_HEAVY ? GGUF_HEAVY_EVERY : GGUF_SPARSE_EVERY));
    }
    return as;
}
