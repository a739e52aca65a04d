/* formats/arch/arch_ngrams.c - see ngrams.h; the numbers of a config that these are made of. */
#include "formats/arch/ngrams.h"

#include "formats/arch/arch_impl.h"

#include <inttypes.h>

/* ---- of a layer ---- */

static uint64_t splitmix64(uint64_t x)
{
    x += 0x9e3779b97f4a7c15;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
    x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
    return x ^ (x >> 31);
}

static bool is_prime(int64_t n)
{
    if (n < 4 || n % 2 == 0) return n == 2 || n == 3;
    for (int64_t d = 3; d * d <= n; d += 2)
        if (n % d == 0) return false;
    return true;
}

static int64_t next_prime(int64_t n)
{
    while (!is_prime(n))
        n++;
    return n;
}

void arch_ngram_factors(arch_ngrams *out, const arch_config *c, int64_t place)
{
    const uint64_t part = (uint64_t)(INT64_MAX / c->vocab / 2), half = part ? part : 1,
                   seed = (uint64_t)(c->ngram_seed + 10007 * place);
    for (int64_t i = 0; i < c->ngram; i++)
        out->by[i] = 2 * (splitmix64(seed + 0x9e3779b97f4a7c15 * (uint64_t)(i + 1)) % half) + 1;
}

void arch_ngrams_of(arch_ngrams *out, const arch_config *c, int64_t layer)
{
    const int64_t place = c->layer[layer].ngrams - 1, heads = arch_ngram_heads(c);
    int64_t prime = c->ngram_base - 1;
    *out = (arch_ngrams){ .heads = heads };
    arch_ngram_factors(out, c, place);
    for (int64_t i = 0; i < place * heads; i++)
        prime = next_prime(prime + 1);
    for (int64_t h = 0; h < heads; h++) {
        out->size[h] = prime = next_prime(prime + 1);
        out->at[h] = out->rows;
        out->rows += prime;
    }
    out->rows = lq_ceil_div(out->rows, c->ngram_even) * c->ngram_even;
}

/* ---- of a config ---- */

static lq_status check_sizes(const arch_config *c, int64_t layers, lq_err *err)
{
    enum { MOST_BASE = 1 << 28, MOST_SIZES = 1024, MOST_IDS = 1 << 24 };
    if (!arch_name_of(c, R_NGRAM_TABLE) || !layers)
        return lq_fail(err, LQ_EVALUE, "ngram: expected none in a %s, or layers with n-grams",
                       c->row->arch);
    if (c->ngram < 2 || c->ngram > ARCH_MAX_NGRAM || c->ngram_heads < 1 ||
        c->ngram_heads > ARCH_MAX_NGRAM_HEADS / (c->ngram - 1) ||
        layers > MOST_SIZES / arch_ngram_heads(c))
        return lq_fail(
            err, LQ_EUNSUPPORTED,
            "ngram_size: expected n-grams of 2..%d tokens, up to %d heads of a layer and %d of "
            "all, found %" PRId64 " of %" PRId64 " heads in %" PRId64 " layers",
            ARCH_MAX_NGRAM, ARCH_MAX_NGRAM_HEADS, MOST_SIZES, c->ngram, c->ngram_heads, layers);
    if (c->ngram_dim < 1 || c->ngram_dim % arch_ngram_heads(c))
        return lq_fail(err, LQ_EVALUE,
                       "ple_embed_dim: expected a multiple of %" PRId64 " heads, found %" PRId64,
                       arch_ngram_heads(c), c->ngram_dim);
    if (c->ngram_taps < 1 || c->ngram_taps > ARCH_MAX_TAPS)
        return lq_fail(err, LQ_EUNSUPPORTED,
                       "ple_conv_kernel_size: expected 1..%d taps, found %" PRId64, ARCH_MAX_TAPS,
                       c->ngram_taps);
    if (c->ngram_base < 1 || c->ngram_base > MOST_BASE || c->ngram_even < 1)
        return lq_fail(err, LQ_EUNSUPPORTED,
                       "ngram_vocab_size_base: expected 1..%d, found %" PRId64
                       ", in tables of a multiple of %" PRId64,
                       MOST_BASE, c->ngram_base, c->ngram_even);
    if (c->ngram_pad < 0 || c->ngram_pad >= c->vocab || c->vocab >= MOST_IDS)
        return lq_fail(
            err, LQ_EUNSUPPORTED,
            "eos_token_id: expected an id that ends n-grams, of a vocabulary of up to %d, "
            "found %" PRId64 " of %" PRId64,
            MOST_IDS - 1, c->ngram_pad, c->vocab);
    return LQ_OK;
}

lq_status arch_ngrams_fit(arch_config *c, lq_err *err)
{
    int64_t n = 0, last = 0;
    for (int64_t i = 0; i < c->layers; i++) {
        if (!c->layer[i].ngrams) continue;
        if (!arch_mixer_scans(c->layer[i].mixer) || !c->hyper_rank)
            return lq_fail(err, LQ_EUNSUPPORTED,
                           "layer %" PRId64
                           ": expected n-grams in layers with a state and gates on "
                           "residual streams alone, found others",
                           i);
        c->layer[i].ngrams = ++n;
        last = i;
    }
    if (!n && !c->ngram) return LQ_OK;
    const lq_status s = check_sizes(c, n, err);
    arch_ngrams z;
    if (s) return s;
    c->ngram_base = next_prime(c->ngram_base); /* the same sizes are then the same config */
    arch_ngrams_of(&z, c, last);
    c->ngram_rows = z.rows;
    return z.rows <= INT32_MAX
               ? LQ_OK
               : lq_fail(err, LQ_EUNSUPPORTED,
                         "ngram_vocab_size_base: expected tables of up to %d rows, found %" PRId64,
                         INT32_MAX, z.rows);
}
