/* formats/gguf/gguf_ngrams.c - see gguf_ngrams.h. */
#include "formats/gguf/gguf_ngrams.h"

#include "formats/arch/ngrams.h"

#include <inttypes.h>
#include <stdio.h>

typedef struct {
    cJSON *j;
    gguf_file *f;
    const gguf_arch *row;
    bool ok; /* memory sufficed */
} ngrams;

static const gguf_kv *get(const ngrams *c, const char *key, char full[128])
{
    snprintf(full, 128, "%.40s.%s", c->row->gguf, key);
    return gguf_get(c->f, full);
}

/* A number, or 0. */
static int64_t number_of(const ngrams *c, const char *key)
{
    char k[128];
    int64_t v = 0;
    get(c, key, k);
    gguf_int(c->f, k, &v);
    return v;
}

/* A list of at least n numbers; NULL: it is none. */
static const gguf_kv *list_of(const ngrams *c, const char *key, int64_t n, char full[128],
                              lq_err *err)
{
    const gguf_kv *kv = get(c, key, full);
    if (kv && kv->array && gguf_is_numbers(kv) && n > 0 && kv->n >= (uint64_t)n) return kv;
    lq_fail(err, LQ_EFORMAT, "%s: expected a list of %" PRId64 " numbers, found %s", full, n,
            kv ? "another" : "none");
    return NULL;
}

static void put(ngrams *c, const char *key, int64_t v)
{
    cJSON_DeleteItemFromObjectCaseSensitive(c->j, key);
    c->ok = c->ok && cJSON_AddNumberToObject(c->j, key, (double)v);
}

/* Positions of a group: of each layer that attends the same. */
static lq_status put_ratio(ngrams *c, lq_err *err)
{
    char k[128], name[64];
    const int64_t layers = number_of(c, "block_count");
    const gguf_kv *kv = list_of(c, "attention.compress_ratios", layers, k, err);
    int64_t every = 0;
    if (!kv) return LQ_EFORMAT;
    for (int64_t i = 0; i < layers; i++) {
        const int64_t n = gguf_int_at(kv, (uint64_t)i);
        snprintf(name, sizeof name, "blk.%" PRId64 ".indexer.q_proj.weight", i);
        const bool there = gguf_find(c->f, name);
        if (there != (n != 0) || (n && every && n != every))
            return lq_fail(err, LQ_EUNSUPPORTED,
                           "%s: expected one number in layers with an indexer, 0 in others, found "
                           "%" PRId64 " in layer %" PRId64,
                           k, n, i);
        if (n) every = n;
    }
    put(c, "indexer_kv_heads", 1);
    put(c, "indexer_compress_ratio", every);
    return LQ_OK;
}

/* The seed whose factors these are. */
static lq_status find_seed(int64_t *seed, arch_config *c, const gguf_kv *by, const char *k,
                           lq_err *err)
{
    enum { SEEDS = 1 << 20, USUAL = 1234 };
    arch_ngrams z;
    for (int64_t i = -1; i < SEEDS; i++) {
        int64_t n = 0;
        *seed = c->ngram_seed = i < 0 ? USUAL : i;
        arch_ngram_factors(&z, c, 0);
        while (n < c->ngram && z.by[n] == (uint64_t)gguf_int_at(by, (uint64_t)n))
            n++;
        if (n == c->ngram) return LQ_OK;
    }
    return lq_fail(err, LQ_EUNSUPPORTED,
                   "%s: expected factors of a seed below %d for %" PRId64
                   " words, found others (%" PRId64 ")",
                   k, SEEDS, c->vocab, gguf_int_at(by, 0));
}

/* What rows are made of: of the file's sizes the first is a base. */
static lq_status put_rows(ngrams *c, int64_t layer, lq_err *err)
{
    char k[128];
    const gguf_tensor *embed = gguf_find(c->f, "token_embd.weight"),
                      *table = gguf_find(c->f, "per_layer_token_embd.weight");
    arch_layer at = { .ngrams = 1 };
    arch_config own = { .layers = 1, .layer = &at, .ngram_even = 1 };
    arch_ngrams z;
    int64_t seed = 0;
    own.vocab = embed ? embed->shape[0] : 0;
    own.ngram = number_of(c, "ple.ngram_size");
    own.ngram_heads = number_of(c, "ple.heads_per_ngram");
    if (!table || table->n_dims != 2 || own.vocab < 1 || own.ngram < 2 ||
        own.ngram > ARCH_MAX_NGRAM || own.ngram_heads < 1 ||
        own.ngram_heads > ARCH_MAX_NGRAM_HEADS / (own.ngram - 1))
        return lq_fail(err, LQ_EFORMAT,
                       "%s.ple: expected n-grams of 2..%d tokens, up to %d heads, and "
                       "per_layer_token_embd, found %" PRId64 " and %" PRId64,
                       c->row->gguf, ARCH_MAX_NGRAM, ARCH_MAX_NGRAM_HEADS, own.ngram,
                       own.ngram_heads);
    const int64_t heads = arch_ngram_heads(&own);
    const gguf_kv *by = list_of(c, "ple.layer_multipliers", own.ngram, k, err);
    lq_status s = by ? find_seed(&seed, &own, by, k, err) : LQ_EFORMAT;
    const gguf_kv *at_kv = s ? NULL : list_of(c, "ple.head_offsets", heads, k, err);
    const gguf_kv *size = at_kv ? list_of(c, "ple.head_vocab_sizes", heads, k, err) : NULL;
    if (!s && !size) s = LQ_EFORMAT;
    if (s) return s;
    own.ngram_base = gguf_int_at(size, 0);
    if (own.ngram_base < 1 || own.ngram_base > INT32_MAX)
        return lq_fail(err, LQ_EVALUE, "%s: expected a size, found %" PRId64, k, own.ngram_base);
    arch_ngrams_of(&z, &own, 0);
    for (int64_t h = 0; h < heads; h++)
        if (z.size[h] != gguf_int_at(size, (uint64_t)h) ||
            z.at[h] != gguf_int_at(at_kv, (uint64_t)h))
            return lq_fail(
                err, LQ_EUNSUPPORTED,
                "%s: expected successive primes, each head's rows after the one's before "
                "it, found others in head %" PRId64,
                k, h);
    put(c, "ngram_size", own.ngram);
    put(c, "heads_per_ngram", own.ngram_heads);
    put(c, "ngram_vocab_size_base", own.ngram_base);
    put(c, "seed", seed);
    put(c, "ple_embed_dim", heads * table->shape[1]);
    put(c, "ple_conv_kernel_size", number_of(c, "ple.conv_kernel"));
    /* Whatever made it as long as it is: a multiple of itself */
    const bool usual = lq_ceil_div(z.rows, 128) * 128 == table->shape[0];
    put(c, "make_ngram_vocab_size_divisible_by", usual ? 128 : table->shape[0]);
    cJSON *list = cJSON_AddArrayToObject(c->j, "ple_layer_ids");
    c->ok = c->ok && cJSON_AddItemToArray(list, cJSON_CreateNumber((double)(layer + 1)));
    return LQ_OK;
}

lq_status gguf_ngrams_config(cJSON *j, gguf_file *f, const gguf_arch *row, lq_err *err)
{
    ngrams c = { j, f, row, true };
    char k[128];
    lq_status s = put_ratio(&c, err);
    const gguf_kv *layers = get(&c, "ple.layers", k);
    c.ok = c.ok && cJSON_AddStringToObject(j, "output_gate_type", "sigmoid"); /* llama.cpp's */
    if (!s && layers && layers->n > 0) {
        layers = list_of(&c, "ple.layers", 1, k, err);
        if (!layers) return LQ_EFORMAT;
        if (layers->n != 1)
            return lq_fail(err, LQ_EUNSUPPORTED, "%s: expected one layer, found %" PRIu64, k,
                           layers->n);
        s = put_rows(&c, gguf_int_at(layers, 0), err);
        /* ends of text are joined from several keys: the one that ends n-grams comes first */
        cJSON *ends = cJSON_CreateArray();
        const int64_t pad = number_of(&c, "ple.eos_token_id");
        c.ok = c.ok && ends && cJSON_AddItemToArray(ends, cJSON_CreateNumber((double)pad));
        cJSON *eos = cJSON_DetachItemFromObjectCaseSensitive(j, "eos_token_id");
        const cJSON *e = cJSON_IsArray(eos) ? eos->child : eos;
        for (; e; e = e->next) {
            if (e->valuedouble >= (double)pad && e->valuedouble <= (double)pad) continue;
            c.ok = c.ok && cJSON_AddItemToArray(ends, cJSON_CreateNumber(e->valuedouble));
        }
        cJSON_Delete(eos);
        c.ok = cJSON_AddItemToObject(j, "eos_token_id", ends) && c.ok;
    }
    return s || c.ok ? s : lq_fail(err, LQ_ENOMEM, "out of memory");
}
