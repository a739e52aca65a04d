/* formats/source/source_ngrams.c - what a folder stores of embeddings of n-grams (formats/arch/ngrams.h): a table in one tensor
 * or in several, and whole numbers that must be those that the config makes. */
#include "formats/arch/ngrams.h"
#include "formats/source/source_impl.h"

#include <stdio.h>

/* A tensor beside a table: "a.b.ngram_embedding.weight" to "a.b.WHAT". */
static const src_tensor *beside_table(const src_source *s, int64_t layer, const char *what)
{
    static const char table[] = "ngram_embedding";
    char name[256];
    if (!arch_tensor_name(&s->config, R_NGRAM_TABLE, layer, 0, false, name, sizeof name))
        return NULL;
    char *at = strstr(name, table);
    const size_t left = at ? sizeof name - (size_t)(at - name) : 0;
    return at && snprintf(at, left, "%s", what) < (int)left ? src_find(s, name) : NULL;
}

/* Where it is stored it has these n numbers. */
static lq_status check_numbers(const src_source *s, int64_t layer, const char *what,
                               const int64_t *want, int64_t n, lq_err *err)
{
    const src_tensor *t = beside_table(s, layer, what);
    if (!t) return LQ_OK;
    if (t->raw_dtype != LQ_I64 || t->n_dims != 1 || t->shape[0] != n || !t->raw.data)
        return lq_fail(err, LQ_ESHAPE, "tensor '%.100s': expected %lld whole numbers, found others",
                       t->name, (long long)n);
    for (int64_t i = 0, v; i < n; i++) {
        memcpy(&v, (const uint8_t *)t->raw.data + (size_t)i * sizeof v, sizeof v);
        if (v != want[i])
            return lq_fail(
                err, LQ_EVALUE,
                "tensor '%.100s': expected %lld as number %lld, by config.json, found %lld",
                t->name, (long long)want[i], (long long)i, (long long)v);
    }
    return LQ_OK;
}

static int64_t count_shards(src_source *s, int64_t layer)
{
    char name[256];
    int64_t n = 0;
    s->config.ngram_parts = 1; /* names as of parts */
    while (arch_tensor_name(&s->config, R_NGRAM_TABLE, layer, n, false, name, sizeof name) &&
           src_find(s, name))
        n++;
    return s->config.ngram_parts = n;
}

lq_status src_fit_ngrams(src_source *s, lq_err *err)
{
    const arch_config *c = &s->config;
    bool counted = false;
    lq_status st = LQ_OK;
    for (int64_t l = 0; l < c->layers && c->ngram && !st; l++) {
        arch_ngrams z;
        int64_t by[ARCH_MAX_NGRAM];
        if (!c->layer[l].ngrams) continue;
        if (!counted) count_shards(s, l);
        counted = true;
        arch_ngrams_of(&z, c, l);
        memcpy(by, z.by, sizeof by);
        st = check_numbers(s, l, "layer_multipliers", by, c->ngram, err);
        if (!st) st = check_numbers(s, l, "ngram_heads_vocab_sizes", z.size, z.heads, err);
        if (!st) st = check_numbers(s, l, "ngram_heads_offsets", z.at, z.heads, err);
    }
    return st ? lq_wrap(err, st, "%s", s->path) : LQ_OK;
}
