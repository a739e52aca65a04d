/* convert/gguf_ngrams.c - see gguf_meta.h: what only a model with embeddings of n-grams says (Qwen4-Exp). */
#include "convert/gguf_meta.h"

#include "formats/arch/ngrams.h"

#include <stdio.h>

/* "ARCH.key" of n numbers, of 32 or of 64 bits. */
static void put_list(gguf_pairs *p, const gguf_arch *a, const char *key, gguf_type of,
                     const int64_t *v, int64_t n)
{
    char k[96];
    snprintf(k, sizeof k, "%s.%s", a->gguf, key);
    gguf_pair_array(p, k, of, (uint64_t)n);
    for (int64_t i = 0; i < n; i++)
        gguf_put_le(&p->b, (uint64_t)v[i], of == GGUF_U64 ? 8 : 4);
}

static void put_int(gguf_pairs *p, const gguf_arch *a, const char *key, int64_t v)
{
    char k[96];
    snprintf(k, sizeof k, "%s.%s", a->gguf, key);
    gguf_pair_int(p, k, v);
}

void gguf_put_ngrams(gguf_pairs *p, const gguf_arch *a, const arch_config *c)
{
    char k[96];
    int64_t layer = c->layers - 1, by[ARCH_MAX_NGRAM];
    arch_ngrams z;
    snprintf(k, sizeof k, "%s.attention.compress_ratios", a->gguf);
    gguf_pair_array(p, k, GGUF_I32, (uint64_t)c->layers);
    for (int64_t i = 0; i < c->layers; i++)
        gguf_put_le(&p->b, arch_mixer_attends(c->layer[i].mixer) ? (uint64_t)c->index_every : 0, 4);
    while (layer >= 0 && !c->layer[layer].ngrams)
        layer--;
    if (layer < 0) return;
    arch_ngrams_of(&z, c, layer);
    memcpy(by, z.by, sizeof by);
    put_list(p, a, "ple.layers", GGUF_I32, &layer, 1);
    put_int(p, a, "ple.ngram_size", c->ngram);
    put_int(p, a, "ple.heads_per_ngram", c->ngram_heads);
    put_int(p, a, "ple.conv_kernel", c->ngram_taps);
    put_int(p, a, "ple.eos_token_id", c->ngram_pad);
    put_int(p, a, "embedding_length_per_layer_input", arch_ngram_width(c));
    put_list(p, a, "ple.layer_multipliers", GGUF_U64, by, c->ngram);
    put_list(p, a, "ple.head_offsets", GGUF_U64, z.at, z.heads);
    put_list(p, a, "ple.head_vocab_sizes", GGUF_U64, z.size, z.heads);
}

static int64_t count_layers(const arch_config *c)
{
    int64_t n = 0;
    for (int64_t i = 0; i < c->layers; i++)
        n += c->layer[i].ngrams > 0;
    return n;
}

lq_status gguf_check_ngrams(const gguf_arch *a, const arch_config *c, lq_err *err)
{
    const int64_t n = count_layers(c);
    if (n <= 1) return LQ_OK;
    return lq_fail(err, LQ_EUNSUPPORTED,
                   "ple_layer_ids: GGUF's '%s' has a place for one layer with n-grams, found %lld",
                   a->gguf, (long long)n);
}

bool gguf_runs_ngrams(const arch_config *c)
{
    return (!arch_has_state(c) || c->mix_key == c->mix_value) &&
           (!count_layers(c) || c->ngram_dim == c->hidden);
}
