/* formats/gguf/gguf_compress.c - see gguf_compress.h. */
#include "formats/gguf/gguf_compress.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct {
    gguf_file *f;
    const gguf_arch *row;
    int64_t layers;
} compressed;

static const gguf_kv *get(const compressed *c, const char *key, char full[128])
{
    snprintf(full, 128, "%.40s.%s", c->row->gguf, key);
    return gguf_get(c->f, full);
}

/* Numbers that llama.cpp asks for, where config.json's reader would assume one. */
static lq_status check_needed(const compressed *c, lq_err *err)
{
    static const char *const keys[] = {
        "rope.dimension_count",         "expert_feed_forward_length",
        "expert_shared_count",          "expert_weights_scale",
        "attention.q_lora_rank",        "attention.sliding_window",
        "attention.indexer.top_k",      "attention.indexer.head_count",
        "attention.indexer.key_length", "attention.output_lora_rank",
        "attention.output_group_count", "attention.compress_rope_freq_base",
        "hyper_connection.count",       "hyper_connection.sinkhorn_iterations",
        "hyper_connection.epsilon",
    };
    for (size_t i = 0; i < LQ_COUNT(keys); i++) {
        char k[128];
        double v = 0;
        get(c, keys[i], k);
        if (!gguf_float(c->f, k, &v) || !(v > 0))
            return lq_fail(err, LQ_EFORMAT, "%s: expected a number above 0, found %g", k, v);
    }
    return LQ_OK;
}

/* Of each layer how many positions become one: 0 none, 4 with an indexer, others without. */
static lq_status put_ratios(cJSON *j, const compressed *c, lq_err *err)
{
    char k[128];
    const gguf_kv *kv = get(c, "attention.compress_ratios", k);
    int64_t heavy = 0;
    if (!kv || !kv->array || !gguf_is_numbers(kv) || kv->n < (uint64_t)c->layers)
        return lq_fail(err, LQ_EFORMAT, "%s: expected a number for each of %" PRId64 " layers", k,
                       c->layers);
    cJSON *list = cJSON_AddArrayToObject(j, "layer_types"),
          *rates = cJSON_AddObjectToObject(j, "compress_rates");
    bool ok = list && rates;
    for (int64_t i = 0; i < c->layers && ok; i++) {
        const int64_t n = gguf_int_at(kv, (uint64_t)i);
        const bool is_heavy = n && n != GGUF_SPARSE_EVERY;
        char name[64];
        snprintf(name, sizeof name, "blk.%" PRId64 ".attn_compressor_kv.weight", i);
        if (!n && gguf_find(c->f, name))
            return lq_fail(err, LQ_EVALUE, "%s: found 0 in layer %" PRId64 ", and tensor '%s'", k,
                           i, name);
        if (n < 0 || (is_heavy && heavy && heavy != n))
            return lq_fail(err, LQ_EUNSUPPORTED,
                           "%s: expected 0, %d or one other ratio, found %" PRId64
                           " in layer %" PRId64,
                           k, GGUF_SPARSE_EVERY, n, i);
        if (is_heavy) heavy = n;
        ok = cJSON_AddItemToArray(list, cJSON_CreateString(is_heavy ? "heavily_compressed_attention"
                                                           : n      ? "compressed_sparse_attention"
                                                                    : "sliding_attention"));
    }
    ok = ok && cJSON_AddNumberToObject(rates, "compressed_sparse_attention", GGUF_SPARSE_EVERY) &&
         cJSON_AddNumberToObject(rates, "heavily_compressed_attention",
                                 (double)(heavy ? heavy : GGUF_HEAVY_EVERY));
    return ok ? LQ_OK : lq_fail(err, LQ_ENOMEM, "out of memory");
}

/* One limit, whatever the layer, of the experts and of those that are shared. */
static lq_status put_limit(cJSON *j, const compressed *c, lq_err *err)
{
    static const char *const keys[] = { "swiglu_clamp_exp", "swiglu_clamp_shexp" };
    char k[128], text[32];
    double limit = 0;
    for (size_t i = 0; i < LQ_COUNT(keys); i++) {
        const gguf_kv *kv = get(c, keys[i], k);
        if (!kv && i) continue; /* as the experts' */
        if (!kv || !gguf_is_numbers(kv) || (kv->array && kv->n < (uint64_t)c->layers))
            return lq_fail(err, LQ_EFORMAT, "%s: expected a number for each of %" PRId64 " layers",
                           k, c->layers);
        const uint64_t n = kv->array ? (uint64_t)c->layers : 1;
        if (!i) limit = gguf_real_at(kv, 0);
        for (uint64_t l = 0; l < n; l++)
            if (!(fabs(gguf_real_at(kv, l) - limit) <= 1e-6 * limit))
                return lq_fail(err, LQ_EUNSUPPORTED,
                               "%s: expected %g in all layers, found %g in layer %llu", k, limit,
                               gguf_real_at(kv, l), (unsigned long long)l);
    }
    snprintf(text, sizeof text, "%.7g", limit);
    return cJSON_AddNumberToObject(j, "swiglu_limit", strtod(text, NULL))
               ? LQ_OK
               : lq_fail(err, LQ_ENOMEM, "out of memory");
}

lq_status gguf_compress_config(cJSON *j, gguf_file *f, const gguf_arch *row, lq_err *err)
{
    enum { MAX_LAYERS = 65536 };
    compressed c = { .f = f, .row = row };
    char k[128];
    int64_t next = 0, hashed = 0, gating = 0;
    get(&c, "nextn_predict_layers", k);
    gguf_int(f, k, &next);
    get(&c, "block_count", k);
    gguf_int(f, k, &c.layers);
    c.layers -= next;
    if (c.layers < 1 || c.layers > MAX_LAYERS || next < 0)
        return lq_fail(err, LQ_EFORMAT, "%s: expected a number of layers, found %" PRId64, k,
                       c.layers);
    get(&c, "hash_layer_count", k);
    if (!gguf_int(f, k, &hashed) || hashed < 0 || hashed > c.layers)
        return lq_fail(err, LQ_EFORMAT, "%s: expected 0..%" PRId64 " layers", k, c.layers);
    cJSON_AddNumberToObject(j, "num_hash_layers", (double)hashed);
    get(&c, "expert_gating_func", k);
    if (!gguf_int(f, k, &gating) || gating != GGUF_SQRT_SOFTPLUS)
        return lq_fail(err, LQ_EUNSUPPORTED, "%s: expected %d (sqrt of softplus), found %" PRId64,
                       k, GGUF_SQRT_SOFTPLUS, gating);
    lq_status s = check_needed(&c, err);
    if (!s) s = put_ratios(j, &c, err);
    return s ? s : put_limit(j, &c, err);
}
