/* convert/gguf_rope.c - see gguf_meta.h: factors on frequencies and on q. */
#include "convert/gguf_meta.h"

#include "formats/gguf/gguf_config.h"

#include <math.h>
#include <stdio.h>

int gguf_rope_lists(arch_rope_kind kind)
{
    return kind == ROPE_LONG ? 2 : kind == ROPE_LLAMA3 || kind == ROPE_PROPORTIONAL;
}

const char *gguf_rope_name(arch_rope_kind kind, int list)
{
    return kind != ROPE_LONG ? GGUF_ROPE_FREQS : list ? GGUF_ROPE_LONG : GGUF_ROPE_SHORT;
}

int64_t gguf_rope_pairs(const arch_config *c)
{
    int64_t most = c->rope_dims;
    for (int64_t i = 0; c->rope[ROPE_MAIN].kind == ROPE_LLAMA3 && i < c->layers; i++)
        if (arch_at(c, i)->rope_dims > most) most = arch_at(c, i)->rope_dims;
    return most / 2;
}

/* Of a layer that turns by them; all of c where none differs. */
static int64_t turned(const arch_config *c)
{
    for (int64_t i = 0; i < c->layers; i++)
        if (c->layer[i].rope == ROPE_MAIN) return arch_at(c, i)->rope_dims / 2;
    return c->rope_dims / 2;
}

float gguf_q_factor(char name[64], const arch_config *c, int64_t i)
{
    snprintf(name, 64, "blk.%lld.attn_%c_norm.weight", (long long)i / 2, i % 2 ? 'k' : 'q');
    return i % 2 ? 1 : (float)(c->attn_scale * sqrt((double)c->head_dim));
}

lq_status gguf_rope_factors(float **out, const arch_config *c, lq_arena *a, lq_err *err)
{
    const arch_rope *r = &c->rope[ROPE_MAIN];
    const int64_t all = gguf_rope_pairs(c), n = r->kind == ROPE_LLAMA3 ? turned(c) : all;
    *out = NULL;
    if (!gguf_rope_lists(r->kind)) return LQ_OK;
    *out = lq_push(a, 2 * (size_t)all * sizeof **out);
    if (!*out) return lq_fail(err, LQ_ENOMEM, "factors of frequencies: out of memory");
    for (int64_t i = n; i < all; i++)
        (*out)[i] = 1;
    for (int64_t i = 0; r->kind == ROPE_LONG && i < 2 * n; i++)
        (*out)[i] = (float)r->factors[i];
    for (int64_t i = 0; r->kind == ROPE_PROPORTIONAL && i < n; i++) /* 1e30: it does not turn */
        (*out)[i] = i < (int64_t)(r->partial * (double)n) ? 1 : 1e30f;
    for (int64_t i = 0; r->kind == ROPE_LLAMA3 && i < n; i++) {
        const double original = (double)r->original_max;
        const double wave = 2 * 3.14159265358979323846 * pow(r->theta, (double)i / (double)n);
        const double smooth = (original / wave - r->low_freq) / (r->high_freq - r->low_freq);
        double f = 1 / ((1 - smooth) / r->factor + smooth);
        if (wave < original / r->high_freq) f = 1;
        if (wave > original / r->low_freq) f = r->factor;
        (*out)[i] = (float)f;
    }
    return LQ_OK;
}
