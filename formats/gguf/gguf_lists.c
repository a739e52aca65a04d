/* formats/gguf/gguf_lists.c - see gguf_lists.h. */
#include "formats/gguf/gguf_lists.h"

#include <inttypes.h>
#include <stdio.h>

enum { MAX_LAYERS = 65536 };

typedef struct {
    gguf_file *f;
    const gguf_arch *row;
    cJSON *j;
    int64_t layers;
    bool ok;           /* memory sufficed */
    const char *wrong; /* a key of no number above 0, or NULL */
} lists;

static const gguf_kv *get(const lists *c, const char *key, char full[128])
{
    snprintf(full, 128, "%.40s.%s", c->row->gguf, key);
    return gguf_get(c->f, full);
}

/* Of a list, or of the one number of all layers; 0: there is none. */
static int64_t number_at(const lists *c, const char *key, int64_t i)
{
    char k[128];
    int64_t v = 0;
    const gguf_kv *kv = get(c, key, k);
    if (kv && kv->array)
        return gguf_is_numbers(kv) && (uint64_t)i < kv->n ? gguf_int_at(kv, (uint64_t)i) : 0;
    return gguf_int(c->f, k, &v) ? v : 0;
}

static double real(lists *c, const char *key, double otherwise)
{
    char k[128];
    double v = otherwise;
    if (get(c, key, k) && (!gguf_float(c->f, k, &v) || !(v > 0))) c->wrong = key;
    return v;
}

static void put(lists *c, cJSON *to, const char *key, double v)
{
    c->ok = c->ok && to && cJSON_AddNumberToObject(to, key, v);
}

static void put_flag(lists *c, cJSON *to, const char *key, bool v)
{
    c->ok = c->ok && to && cJSON_AddBoolToObject(to, key, v);
}

static cJSON *object(lists *c, cJSON *to, const char *key)
{
    cJSON *o = to ? cJSON_AddObjectToObject(to, key) : NULL;
    c->ok = c->ok && o;
    return o;
}

/* ---- Deci ---- */
static void put_blocks(lists *c)
{
    cJSON *all = cJSON_AddArrayToObject(c->j, "block_configs");
    for (int64_t i = 0; i < c->layers && c->ok; i++) {
        const int64_t heads = number_at(c, "attention.head_count", i);
        const int64_t kv = number_at(c, "attention.head_count_kv", i);
        const int64_t ffn = number_at(c, "feed_forward_length", i);
        cJSON *o = cJSON_CreateObject();
        c->ok = o && cJSON_AddItemToArray(all, o);
        cJSON *attention = object(c, o, "attention"), *mlp = object(c, o, "ffn");
        put_flag(c, attention, "no_op", heads < 1);
        put_flag(c, attention, "replace_with_linear", heads > 0 && kv < 1);
        const int64_t each = kv > 0 ? heads / kv : 0;
        if (kv > 0) put(c, attention, "n_heads_in_group", (double)each);
        put_flag(c, mlp, "no_op", ffn < 1);
        if (ffn > 0) put(c, mlp, "intermediate_size", (double)ffn);
    }
}

/* ---- Laguna ---- */
/* As llama.cpp has them where the file is silent: of four layers the first sees everything. */
static void put_types(lists *c)
{
    char k[128];
    const bool window = number_at(c, "attention.sliding_window", 0) > 0;
    if (get(c, "attention.sliding_window_pattern", k)) return; /* read with the other numbers */
    cJSON *list = cJSON_AddArrayToObject(c->j, "layer_types");
    for (int64_t i = 0; i < c->layers; i++) {
        const char *type = window && i % 4 ? "sliding_attention" : "full_attention";
        c->ok = c->ok && cJSON_AddItemToArray(list, cJSON_CreateString(type));
    }
}

/* What j has of the rotation is that of the layers that see everything. */
static void put_rotations(lists *c)
{
    const bool half = c->row->half_turns;
    const double dim = (double)number_at(c, "attention.key_length", 0);
    const double all = (double)number_at(c, "rope.dimension_count", 0);
    const double local = c->row->values ? all : (double)number_at(c, "rope.dimension_count_swa", 0);
    cJSON *full = cJSON_DetachItemFromObject(c->j, "rope_scaling");
    if (!full) full = cJSON_CreateObject();
    if (!js_get(full, "rope_type")) cJSON_AddStringToObject(full, "rope_type", "default");
    cJSON_DeleteItemFromObject(c->j, "rope_theta");
    cJSON_DeleteItemFromObject(c->j, "partial_rotary_factor");
    cJSON *both = object(c, c->j, "rope_parameters");
    c->ok = c->ok && cJSON_AddItemToObject(both, "full_attention", full);
    put(c, full, "rope_theta", real(c, "rope.freq_base", 1e4));
    put(c, full, "partial_rotary_factor", half ? 0.5 : dim > 0 && all > 0 ? all / dim : 1);
    cJSON *sliding = object(c, both, "sliding_attention");
    c->ok = c->ok && sliding && cJSON_AddStringToObject(sliding, "rope_type", "default");
    put(c, sliding, "rope_theta", real(c, "rope.freq_base_swa", real(c, "rope.freq_base", 1e4)));
    put(c, sliding, "partial_rotary_factor", dim > 0 && local > 0 ? local / dim : 1);
}

static void put_heads(lists *c)
{
    const int64_t dense = number_at(c, "leading_dense_block_count", 0);
    cJSON *list = cJSON_AddArrayToObject(c->j, "num_attention_heads_per_layer");
    cJSON *types = cJSON_AddArrayToObject(c->j, "mlp_layer_types");
    for (int64_t i = 0; i < c->layers && c->ok; i++) {
        const double n = (double)number_at(c, "attention.head_count", i);
        c->ok = cJSON_AddItemToArray(list, cJSON_CreateNumber(n)) &&
                cJSON_AddItemToArray(types, cJSON_CreateString(i < dense ? "dense" : "sparse"));
    }
}

static void put_laguna(lists *c)
{
    const gguf_tensor *gate = gguf_find(c->f, "blk.0.attn_gate.weight");
    const int64_t heads = number_at(c, "attention.head_count", 0);
    const bool each = !gate || gate->shape[0] == heads;
    put_heads(c);
    c->ok = c->ok && cJSON_AddStringToObject(c->j, "gating", each ? "per-head" : "per-element");
    put_types(c);
    put_rotations(c);
}

/* ---- OpenELM ---- */
static void put_sizes(lists *c)
{
    static const char *const keys[][2] = { { "num_query_heads", "attention.head_count" },
                                           { "num_kv_heads", "attention.head_count_kv" },
                                           { "intermediate_size", "feed_forward_length" } };
    for (size_t k = 0; k < LQ_COUNT(keys); k++) {
        cJSON_DeleteItemFromObject(c->j, keys[k][0]);
        cJSON *list = cJSON_AddArrayToObject(c->j, keys[k][0]);
        for (int64_t i = 0; i < c->layers && c->ok; i++)
            c->ok =
                cJSON_AddItemToArray(list, cJSON_CreateNumber((double)number_at(c, keys[k][1], i)));
    }
}

/* ---- MiMo V2 ---- */
/* Of the layers with a window, or of those without, one number; 0: there are none. */
static lq_status same_of(int64_t *out, const lists *c, const char *key, bool window, lq_err *err)
{
    char k[128];
    const gguf_kv *kv = get(c, "attention.sliding_window_pattern", k);
    *out = 0;
    if (!kv || !kv->array || !gguf_is_numbers(kv) || kv->n < (uint64_t)c->layers)
        return lq_fail(err, LQ_EFORMAT, "%s: expected 0 or 1 for each of %" PRId64 " layers", k,
                       c->layers);
    for (int64_t i = 0; i < c->layers; i++) {
        if ((gguf_int_at(kv, (uint64_t)i) != 0) != window) continue;
        const int64_t n = number_at(c, key, i);
        if (!*out) *out = n;
        if (n < 1 || n != *out) {
            get(c, key, k);
            return lq_fail(err, LQ_EUNSUPPORTED,
                           "%s: expected one number of heads in the layers with%s a window, found "
                           "%" PRId64 " in layer %" PRId64,
                           k, window ? "" : "out", n, i);
        }
    }
    return LQ_OK;
}

static lq_status put_mimo(lists *c, lq_err *err)
{
    static const struct {
        const char *gguf, *all, *window;
    } heads[] = { { "attention.head_count", "num_attention_heads", "swa_num_attention_heads" },
                  { "attention.head_count_kv", "num_key_value_heads", "swa_num_key_value_heads" } };
    char name[64];
    for (size_t i = 0; i < LQ_COUNT(heads); i++) {
        int64_t all, window;
        lq_status s = same_of(&all, c, heads[i].gguf, false, err);
        if (!s) s = same_of(&window, c, heads[i].gguf, true, err);
        if (s) return s;
        cJSON_DeleteItemFromObject(c->j, heads[i].all);
        put(c, c->j, heads[i].all, (double)(all ? all : window));
        put(c, c->j, heads[i].window, (double)(window ? window : all));
    }
    cJSON *types = cJSON_AddArrayToObject(c->j, "mlp_layer_types");
    for (int64_t i = 0; i < c->layers && c->ok; i++) {
        snprintf(name, sizeof name, "blk.%" PRId64 ".ffn_gate_inp.weight", i);
        const char *type = gguf_find(c->f, name) ? "sparse" : "dense";
        c->ok = types && cJSON_AddItemToArray(types, cJSON_CreateString(type));
    }
    put(c, c->j, "attention_value_scale", real(c, "attention.value_scale", 1));
    put_flag(c, c->j, "attention_bias", false);
    if (number_at(c, "attention.sliding_window", 0) < 1) c->wrong = "attention.sliding_window";
    put_rotations(c);
    return LQ_OK;
}

lq_status gguf_lists_config(cJSON *j, gguf_file *f, const gguf_arch *row, lq_err *err)
{
    lists c = { .f = f, .row = row, .j = j, .ok = true };
    c.layers = number_at(&c, "block_count", 0) - number_at(&c, "nextn_predict_layers", 0);
    if (c.layers < 1 || c.layers > MAX_LAYERS)
        return lq_fail(err, LQ_EFORMAT,
                       "%s.block_count: expected a number of layers, found %" PRId64, row->gguf,
                       c.layers);
    if (strcmp(row->gguf, "deci") == 0)
        put_blocks(&c);
    else if (strcmp(row->gguf, "openelm") == 0)
        put_sizes(&c);
    else if (row->values) {
        const lq_status s = put_mimo(&c, err);
        if (s) return s;
    } else if (row->half_turns)
        put_heads(&c), put_rotations(&c);
    else
        put_laguna(&c);
    if (c.wrong)
        return lq_fail(err, LQ_EFORMAT, "%s.%s: expected a number above 0, found another",
                       row->gguf, c.wrong);
    return c.ok ? LQ_OK : lq_fail(err, LQ_ENOMEM, "out of memory");
}
