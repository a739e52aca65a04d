/* formats/gguf/gguf_layers.c */
#include "formats/gguf/gguf_layers.h"

#include "formats/gguf/gguf_config.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct {
    gguf_file *f;
    const gguf_arch *row;
    cJSON *j;
    int64_t layers, shared; /* the last `shared` read the K and V of others */
    bool ok;                /* memory sufficed */
} layered;

enum { MAX_LAYERS = 65536 };

static const gguf_kv *get(const layered *c, const char *key, char full[128])
{
    snprintf(full, 128, "%.40s.%s", c->row->gguf, key);
    return gguf_get(c->f, full);
}

static lq_status wrong(const layered *c, const char *key, const char *what, lq_err *err)
{
    return lq_fail(err, LQ_EFORMAT, "%s.%s: expected %s, found another", c->row->gguf, key, what);
}

/* A number, or one for each layer. */
static lq_status number_at(int64_t *out, const layered *c, const char *key, int64_t i, lq_err *err)
{
    char k[128];
    const gguf_kv *kv = get(c, key, k);
    if (kv && !kv->array && gguf_int(c->f, k, out)) return LQ_OK;
    if (!kv || !kv->array || !gguf_is_numbers(kv) || kv->n < (uint64_t)c->layers)
        return wrong(c, key, "a whole number, or one for each layer", err);
    *out = gguf_int_at(kv, (uint64_t)i);
    return LQ_OK;
}

static lq_status number(int64_t *out, const layered *c, const char *key, int64_t otherwise,
                        lq_err *err)
{
    char k[128];
    *out = otherwise;
    return !get(c, key, k) || gguf_int(c->f, k, out) ? LQ_OK : wrong(c, key, "a whole number", err);
}

static void put(layered *c, cJSON *to, const char *key, double v)
{
    c->ok = c->ok && to && cJSON_AddNumberToObject(to, key, v);
}

static bool has_window(const layered *c, int64_t i)
{
    char k[128];
    const gguf_kv *kv = get(c, "attention.sliding_window_pattern", k);
    return kv && kv->array && (uint64_t)i < kv->n && gguf_int_at(kv, (uint64_t)i);
}

/* ---- heads ---- */
static lq_status put_heads(layered *c, lq_err *err)
{
    int64_t full = 0, dim = 0, heads = 0, kv = 0;
    cJSON *own = NULL;
    lq_status s = number(&full, c, "attention.key_length", 0, err);
    if (!s) s = number(&dim, c, "attention.key_length_swa", full, err);
    for (int64_t i = 0; i < c->layers && !s; i++) { /* those of the first with a window are all's */
        s = number_at(&kv, c, "attention.head_count_kv", i, err);
        if (!heads || (has_window(c, i) && !own)) heads = kv;
        if (has_window(c, i)) own = c->j;
    }
    put(c, c->j, "head_dim", (double)dim);
    put(c, c->j, "num_key_value_heads", (double)heads);
    own = NULL;
    for (int64_t i = 0; i < c->layers && !s; i++) {
        char name[24];
        s = number_at(&kv, c, "attention.head_count_kv", i, err);
        const int64_t width = has_window(c, i) ? dim : full;
        if (s || (width == dim && kv == heads)) continue;
        if (!own) own = cJSON_AddObjectToObject(c->j, "per_layer_config");
        snprintf(name, sizeof name, "%" PRId64, i);
        cJSON *o = own ? cJSON_AddObjectToObject(own, name) : NULL;
        put(c, o, "head_dim", (double)width);
        put(c, o, "num_key_value_heads", (double)kv);
    }
    if (!s && !own) c->ok = c->ok && cJSON_AddObjectToObject(c->j, "per_layer_config");
    return s;
}

/* Is V K in the layers that see everything? */
static void put_same(layered *c)
{
    bool same = false;
    for (int64_t i = 0; i < c->layers - c->shared && !same; i++) {
        char k[64], v[64];
        snprintf(k, sizeof k, "blk.%" PRId64 ".attn_k.weight", i);
        snprintf(v, sizeof v, "blk.%" PRId64 ".attn_v.weight", i);
        same = !has_window(c, i) && gguf_find(c->f, k) && !gguf_find(c->f, v);
    }
    c->ok = c->ok && cJSON_AddBoolToObject(c->j, "attention_k_eq_v", same);
}

/* ---- MLP ---- */
static lq_status put_widths(layered *c, bool list, lq_err *err)
{
    int64_t first = 0, n = 0;
    bool wide = false;
    lq_status s = number_at(&first, c, "feed_forward_length", 0, err);
    cJSON *all = list ? cJSON_AddArrayToObject(c->j, "intermediate_size") : NULL;
    for (int64_t i = 0; i < c->layers && !s; i++) {
        s = number_at(&n, c, "feed_forward_length", i, err);
        if (all) c->ok = c->ok && cJSON_AddItemToArray(all, cJSON_CreateNumber((double)n));
        const bool shares = i >= c->layers - c->shared;
        wide |= !list && shares && n == 2 * first;
        if (!s && !list && n != first && !(shares && n == 2 * first))
            s = lq_fail(err, LQ_EUNSUPPORTED,
                        "%s.feed_forward_length: expected %" PRId64 ", or twice that in the layers "
                        "that share K and V, found %" PRId64 " in layer %" PRId64,
                        c->row->gguf, first, n, i);
    }
    if (list) return s;
    put(c, c->j, "intermediate_size", (double)first);
    c->ok = c->ok && cJSON_AddBoolToObject(c->j, "use_double_wide_mlp", wide);
    return s;
}

/* Gates that are cut off: of z (-inf: none) the share of a normal distribution that is below it. */
static lq_status put_sparse(layered *c, lq_err *err)
{
    char k[128];
    const gguf_kv *kv = get(c, "activation_sparsity_scale", k);
    if (!kv || !kv->array || kv->type != GGUF_F32 || kv->n < (uint64_t)c->layers)
        return wrong(c, "activation_sparsity_scale", "a float for each layer", err);
    cJSON *list = cJSON_AddArrayToObject(c->j, "activation_sparsity_pattern");
    for (int64_t i = 0; i < c->layers; i++) {
        float z;
        memcpy(&z, (const uint8_t *)kv->data + 4 * i, sizeof z);
        const double share = z > -10 ? erfc(-(double)z / sqrt(2)) / 2 : 0;
        c->ok = c->ok && cJSON_AddItemToArray(list, cJSON_CreateNumber(share));
    }
    return LQ_OK;
}

/* ---- rotations ---- */
static void put_theta(layered *c, cJSON *to, const char *key, double otherwise)
{
    char k[128];
    double v = otherwise;
    if (get(c, key, k)) gguf_float(c->f, k, &v);
    put(c, to, "rope_theta", v);
}

/* Of the layers that see everything: the frequencies of the whole head, of which those divided by
 * 1e30 do not turn. */
static lq_status put_full(layered *c, cJSON *full, lq_err *err)
{
    const gguf_tensor *t = gguf_find(c->f, GGUF_ROPE_FREQS);
    int64_t n = 0, turn = 0;
    if (t && t->type != GGML_F32) return wrong(c, "rope_freqs", "F32 factors", err);
    if (t) n = (int64_t)(t->bytes / 4);
    for (int64_t i = 0; i < n; i++) {
        float v;
        memcpy(&v, t->data + 4 * i, sizeof v);
        const bool one = v > 0.9999f && v < 1.0001f;
        if (one && turn == i) turn++;
        if (one ? turn != i + 1 : !(v > 1e20f))
            return lq_fail(err, LQ_EUNSUPPORTED,
                           GGUF_ROPE_FREQS ": expected ones, then 1e30, found %g", (double)v);
    }
    c->ok = c->ok && cJSON_AddStringToObject(full, "rope_type", n ? "proportional" : "default");
    if (n) put(c, full, "partial_rotary_factor", (double)turn / (double)n);
    return LQ_OK;
}

static lq_status put_rotations(layered *c, lq_err *err)
{
    cJSON *both = cJSON_AddObjectToObject(c->j, "rope_parameters");
    cJSON *full = both ? cJSON_AddObjectToObject(both, "full_attention") : NULL;
    cJSON *sliding = full ? cJSON_AddObjectToObject(both, "sliding_attention") : NULL;
    c->ok = c->ok && sliding && cJSON_AddStringToObject(sliding, "rope_type", "default");
    if (!c->ok) return LQ_OK;
    put_theta(c, full, "rope.freq_base", 1e6);
    put_theta(c, sliding, "rope.freq_base_swa", 1e4);
    cJSON_DeleteItemFromObject(c->j, "rope_theta");
    return put_full(c, full, err);
}

/* ---- all ---- */
static lq_status put_embeddings(layered *c, lq_err *err)
{
    const gguf_tensor *t = gguf_find(c->f, "per_layer_token_embd.weight");
    int64_t dim = 0;
    lq_status s = number(&dim, c, "embedding_length_per_layer_input", 0, err);
    put(c, c->j, "hidden_size_per_layer_input", (double)dim);
    if (t && t->n_dims == 2) put(c, c->j, "vocab_size_per_layer_input", (double)t->shape[0]);
    return s;
}

static lq_status put_types(layered *c, lq_err *err)
{
    char k[128];
    const gguf_kv *kv = get(c, "attention.sliding_window_pattern", k);
    if (!kv || !kv->array || !gguf_is_numbers(kv) || kv->n < (uint64_t)c->layers)
        return wrong(c, "attention.sliding_window_pattern", "true or false for each layer", err);
    cJSON *list = cJSON_AddArrayToObject(c->j, "layer_types");
    for (int64_t i = 0; i < c->layers; i++)
        c->ok = c->ok &&
                cJSON_AddItemToArray(list, cJSON_CreateString(has_window(c, i) ? "sliding_attention"
                                                                               : "full_attention"));
    return LQ_OK;
}

/* What only Gemma 3n has. */
static lq_status put_streams(layered *c, lq_err *err)
{
    const gguf_tensor *left = gguf_find(c->f, "blk.0.laurel_l.weight");
    int64_t n = 0, active = 0;
    lq_status s = number(&n, c, "altup.num_inputs", 4, err);
    if (!s) s = number(&active, c, "altup.active_idx", 0, err);
    put(c, c->j, "altup_num_inputs", (double)n);
    put(c, c->j, "altup_active_idx", (double)active);
    if (left && left->n_dims == 2) put(c, c->j, "laurel_rank", (double)left->shape[0]);
    return s ? s : put_sparse(c, err);
}

static lq_status put_experts(layered *c, lq_err *err)
{
    int64_t n = 0, used = 0, ffn = 0;
    lq_status s = number(&n, c, "expert_count", 0, err);
    if (!s) s = number(&used, c, "expert_used_count", 0, err);
    if (!s) s = number(&ffn, c, "expert_feed_forward_length", 0, err);
    c->ok = c->ok && cJSON_AddBoolToObject(c->j, "enable_moe_block", n > 0);
    if (n < 1) return s;
    put(c, c->j, "num_experts", (double)n);
    put(c, c->j, "top_k_experts", (double)used);
    put(c, c->j, "moe_intermediate_size", (double)ffn);
    return s;
}

lq_status gguf_layers_config(cJSON *j, gguf_file *f, const gguf_arch *row, lq_err *err)
{
    layered c = { .f = f, .row = row, .j = j, .ok = true };
    const bool streams = strcmp(row->gguf, "gemma3n") == 0;
    lq_status s = number(&c.layers, &c, "block_count", 0, err);
    if (!s && (c.layers < 1 || c.layers > MAX_LAYERS))
        s = wrong(&c, "block_count", "a number of layers", err);
    if (!s) s = number(&c.shared, &c, "attention.shared_kv_layers", 0, err);
    put(&c, j, "num_kv_shared_layers", (double)c.shared);
    if (!s) s = put_types(&c, err);
    if (!s) s = put_heads(&c, err);
    if (!s) s = put_widths(&c, streams, err);
    if (!s) s = put_rotations(&c, err);
    if (!s) s = put_embeddings(&c, err);
    if (!s) s = streams ? put_streams(&c, err) : put_experts(&c, err);
    if (streams)
        cJSON_DeleteItemFromObject(j, "per_layer_config");
    else
        put_same(&c);
    return s || c.ok ? s : lq_fail(err, LQ_ENOMEM, "out of memory");
}
