/* formats/gguf/gguf_config.c */
#include "formats/gguf/gguf_config.h"

#include "base/utf8.h"
#include "formats/gguf/gguf_compress.h"
#include "formats/gguf/gguf_ends.h"
#include "formats/gguf/gguf_layers.h"
#include "formats/gguf/gguf_lists.h"
#include "formats/gguf/gguf_ngrams.h"
#include "formats/gguf/gguf_state.h"

#include <stdio.h>
#include <stdlib.h>

enum { MAX_LAYERS = 65536 };

typedef struct {
    gguf_file *f;
    const gguf_arch *row;
    const arch_row *arch; /* of row->hf */
    cJSON *j;
    bool ok;         /* memory sufficed */
    char fault[240]; /* what the first key that is not as it should be has, or "" */
    lq_status st;    /* of that */
} config;

#define NONE "a number, found none"

static const char *meta_key(char out[128], const config *c, const char *key)
{
    snprintf(out, 128, "%.40s.%s", c->row->gguf, key);
    return out;
}
static bool is(const config *c, const char *hf) { return strcmp(c->row->hf, hf) == 0; }
static void fault(config *c, lq_status st, const char *key, const char *what)
{
    if (c->st) return;
    c->st = st;
    snprintf(c->fault, sizeof c->fault, "%s: expected %s", key, what);
}
/* "ARCH.key", of which one number for all layers is wanted. */
static const char *number_key(char out[128], config *c, const char *key)
{
    const gguf_kv *kv = gguf_get(c->f, meta_key(out, c, key));
    if (!kv || gguf_is_one(kv)) return out;
    if (gguf_is_numbers(kv) && kv->n)
        fault(c, LQ_EUNSUPPORTED, out, "one number for all layers, found others");
    else
        fault(c, LQ_EFORMAT, out, NONE);
    return out;
}
/* Of a list, where the row has some, the largest. */
static bool read_int(config *c, const char *key, int64_t *v)
{
    char k[128];
    const gguf_kv *kv = gguf_get(c->f, meta_key(k, c, key));
    if (c->row->lists && kv && kv->array && gguf_is_numbers(kv)) {
        *v = 0;
        for (uint64_t i = 0; i < kv->n; i++)
            if (gguf_int_at(kv, i) > *v) *v = gguf_int_at(kv, i);
        return true;
    }
    const bool found = gguf_int(c->f, number_key(k, c, key), v);
    if (!found && gguf_get(c->f, k)) fault(c, LQ_EFORMAT, k, "a whole number, found another");
    return found;
}
static void put_number(config *c, cJSON *to, const char *key, double v)
{
    c->ok = c->ok && cJSON_AddNumberToObject(to, key, v);
}
static void put_text(config *c, cJSON *to, const char *key, const char *v)
{
    c->ok = c->ok && cJSON_AddStringToObject(to, key, v);
}
/* "attn_config.clip_qkv" is a member of the object attn_config. */
static cJSON *object_of(config *c, const char **key)
{
    char name[64];
    const char *dot = strchr(*key, '.');
    if (!dot) return c->j;
    snprintf(name, sizeof name, "%.*s", (int)(dot - *key), *key);
    cJSON *o = cJSON_GetObjectItemCaseSensitive(c->j, name);
    *key = dot + 1;
    return o ? o : cJSON_AddObjectToObject(c->j, name);
}
static void put_bool(config *c, const char *key, bool v)
{
    cJSON *o = object_of(c, &key);
    c->ok = c->ok && cJSON_AddBoolToObject(o, key, v);
}
static void put_int(config *c, const char *key, const char *from)
{
    int64_t v;
    if (!read_int(c, from, &v)) return;
    cJSON *o = object_of(c, &key);
    put_number(c, o, key, (double)v);
}
/* An f32 as people write it: 1e-05, not 9.99999975e-06. */
static double shortest(double v)
{
    char text[32];
    snprintf(text, sizeof text, "%.7g", v);
    return strtod(text, NULL);
}
static void put_float(config *c, const char *key, const char *from)
{
    char k[128];
    double v;
    if (!gguf_float(c->f, number_key(k, c, from), &v)) return;
    cJSON *o = object_of(c, &key);
    put_number(c, o, key, shortest(v));
}
/* An id; some files have -1 for none, as a number without a sign. */
static void put_token(config *c, const char *key, const char *from)
{
    int64_t v;
    if (gguf_int(c->f, from, &v) && v >= 0 && v <= INT32_MAX) put_number(c, c->j, key, (double)v);
}
/* One id, or a list. */
static void put_ends(config *c)
{
    int64_t ids[GGUF_MAX_ENDS];
    const int n = gguf_ends(ids, c->f);
    cJSON *list = n > 1 ? cJSON_AddArrayToObject(c->j, "eos_token_id") : NULL;
    if (n == 1) put_number(c, c->j, "eos_token_id", (double)ids[0]);
    for (int i = 0; i < n && n > 1; i++)
        c->ok = c->ok && cJSON_AddItemToArray(list, cJSON_CreateNumber((double)ids[i]));
}
static int64_t int_at(config *c, const char *key, int64_t otherwise)
{
    read_int(c, key, &otherwise);
    return otherwise;
}

/* ---- rotations ---- */
bool gguf_is_rope(const char *name)
{
    return strcmp(name, GGUF_ROPE_FREQS) == 0 || strcmp(name, GGUF_ROPE_SHORT) == 0 ||
           strcmp(name, GGUF_ROPE_LONG) == 0;
}

static bool is_floats(const gguf_tensor *t)
{
    return t->type == GGML_F32 && t->bytes == (size_t)t->shape[t->n_dims - 1] * 4;
}

static double float_at(const gguf_tensor *t, int64_t i)
{
    float v;
    memcpy(&v, t->data + 4 * i, 4);
    return (double)v;
}

static lq_status put_list(config *c, cJSON *to, const char *key, const char *from, lq_err *err)
{
    const gguf_tensor *t = gguf_find(c->f, from);
    if (!t || !is_floats(t))
        return lq_fail(err, LQ_EFORMAT, "%s: expected F32 factors, found %s", from,
                       t ? "another type" : "none");
    cJSON *list = cJSON_AddArrayToObject(to, key);
    const int64_t n = t->shape[t->n_dims - 1] / (c->row->half_turns ? 2 : 1);
    for (int64_t i = 0; i < n; i++)
        c->ok = c->ok && cJSON_AddItemToArray(list, cJSON_CreateNumber(float_at(t, i)));
    return LQ_OK;
}

/* The object, which put_own may have begun. */
static cJSON *scaling_of(config *c)
{
    cJSON *r = cJSON_GetObjectItemCaseSensitive(c->j, "rope_scaling");
    return r ? r : cJSON_AddObjectToObject(c->j, "rope_scaling");
}

/* Factors of no formula: longrope with one list for texts of any length. */
static lq_status put_factors(config *c, lq_err *err)
{
    cJSON *r = scaling_of(c);
    put_text(c, r, "rope_type", "longrope");
    put_number(c, r, "attention_factor", 1);
    put_number(c, c->j, "original_max_position_embeddings",
               (double)int_at(c, "context_length", 2048));
    lq_status s = put_list(c, r, "short_factor", GGUF_ROPE_FREQS, err);
    return s ? s : put_list(c, r, "long_factor", GGUF_ROPE_FREQS, err);
}

enum { LOW_FREQ = 1 };

/* Llama 3's formula backwards, by a factor between 1 and the last: the length that it was trained with, which Step 3.5's
 * files do not say. */
static int64_t original_of(const gguf_tensor *t, int64_t n, double theta, double factor, int high)
{
    for (int64_t i = 0; i < n; i++) {
        const double f = float_at(t, i),
                     wave = 2 * 3.14159265358979323846 * pow(theta, (double)i / (double)n);
        if (f > 1 && f < factor)
            return (int64_t)round(
                wave * (LOW_FREQ + (1 / f - 1 / factor) / (1 - 1 / factor) * (high - LOW_FREQ)));
    }
    return 8192;
}

/* Frequencies stored one by one: those of Llama 3's formula, or any. */
static lq_status put_freqs(config *c, const gguf_tensor *t, lq_err *err)
{
    const int high = c->row->half_turns ? 32 : 4; /* Step 3.5's, Llama 3's */
    double theta = 10000, factor = 1;
    char k[128];
    gguf_float(c->f, number_key(k, c, "rope.freq_base"), &theta);
    const int64_t n = t->shape[t->n_dims - 1] / (c->row->half_turns ? 2 : 1);
    bool same = is_floats(t);
    for (int64_t i = 0; i < n && same; i++)
        factor = float_at(t, i) > factor ? float_at(t, i) : factor;
    /* of Llama 3 itself, where the file is silent */
    const int64_t known =
                      same && c->row->half_turns ? original_of(t, n, theta, factor, high) : 8192,
                  original = int_at(c, "rope.scaling.original_context_length", known);
    for (int64_t i = 0; i < n && same; i++) {
        const double wave = 2 * 3.14159265358979323846 * pow(theta, (double)i / (double)n);
        const double smooth = ((double)original / wave - LOW_FREQ) / (high - LOW_FREQ);
        double want = 1 / ((1 - smooth) / factor + smooth);
        if (wave < (double)original / high) want = 1;
        if (wave > (double)original / LOW_FREQ) want = factor;
        same = fabs(float_at(t, i) - want) <= 1e-3 * want;
    }
    if (!same) return put_factors(c, err);
    cJSON *r = scaling_of(c);
    put_text(c, r, "rope_type", "llama3");
    put_number(c, r, "factor", factor);
    put_number(c, r, "low_freq_factor", LOW_FREQ);
    put_number(c, r, "high_freq_factor", high);
    put_number(c, r, "original_max_position_embeddings", (double)original);
    return LQ_OK;
}

/* Phi-3's longrope. Where rope.scaling.attn_factor is what the lengths give, config.json's readers
 * compute it themselves, and more exactly. */
static lq_status put_long(config *c, lq_err *err)
{
    const int64_t max = int_at(c, "context_length", 0);
    const int64_t original = int_at(c, "rope.scaling.original_context_length", max);
    char k[128];
    double said = 0;
    cJSON *r = scaling_of(c);
    put_text(c, r, "rope_type", "longrope");
    lq_status s = put_list(c, r, "short_factor", GGUF_ROPE_SHORT, err);
    if (!s) s = put_list(c, r, "long_factor", GGUF_ROPE_LONG, err);
    if (s) return s;
    put_number(c, c->j, "original_max_position_embeddings", (double)original);
    const double given = max > original && original > 1
                             ? sqrt(1 + log((double)max / (double)original) / log((double)original))
                             : 1;
    if (gguf_float(c->f, number_key(k, c, "rope.scaling.attn_factor"), &said) &&
        fabs(said - given) > 1e-6 * given)
        put_number(c, r, "attention_factor", shortest(said));
    return LQ_OK;
}

static void put_yarn(config *c, cJSON *r)
{
    static const char *const keys[] = { "beta_fast", "beta_slow" };
    char k[128], from[64];
    double v;
    for (size_t i = 0; i < LQ_COUNT(keys); i++) {
        snprintf(from, sizeof from, "rope.scaling.yarn_%s", keys[i]);
        if (gguf_float(c->f, number_key(k, c, from), &v)) put_number(c, r, keys[i], shortest(v));
    }
    /* llama.cpp keeps a tenth of DeepSeek's mscale_all_dim, which its models' mscale equals */
    if (gguf_float(c->f, number_key(k, c, "rope.scaling.yarn_log_multiplier"), &v) && v > 0) {
        put_number(c, r, "mscale", shortest(10 * v));
        put_number(c, r, "mscale_all_dim", shortest(10 * v));
    }
    if (is(c, "GptOssForCausalLM") || is(c, "Plamo3ForCausalLM"))
        c->ok = c->ok && cJSON_AddFalseToObject(r, "truncate");
}

static lq_status put_scaling(config *c, lq_err *err)
{
    char k[128];
    const char *type = "none";
    double factor = 1, alpha = 0;
    const gguf_tensor *freqs = gguf_find(c->f, GGUF_ROPE_FREQS);
    if (gguf_find(c->f, GGUF_ROPE_LONG)) return put_long(c, err);
    gguf_str(c->f, meta_key(k, c, "rope.scaling.type"), &type);
    if (gguf_float(c->f, number_key(k, c, "rope.scaling.alpha"), &alpha) && alpha > 0) {
        put_text(c, scaling_of(c), "rope_type", "dynamic"); /* Hunyuan's, of any length */
        put_number(c, scaling_of(c), "alpha", alpha);
        put_number(c, scaling_of(c), "factor", 1);
        return LQ_OK;
    }
    if (strcmp(type, "none") == 0 && freqs) return put_freqs(c, freqs, err);
    if (strcmp(type, "none") == 0) {
        if (c->arch->def_rope) put_text(c, scaling_of(c), "rope_type", "default");
        return LQ_OK;
    }
    gguf_float(c->f, number_key(k, c, "rope.scaling.factor"), &factor);
    const int64_t original = int_at(c, "rope.scaling.original_context_length", 0);
    if (freqs || (strcmp(type, "linear") != 0 && strcmp(type, "yarn") != 0))
        return lq_fail(err, LQ_EUNSUPPORTED,
                       "rope.scaling.type: expected none, linear or yarn, found \"%.40s\"%s", type,
                       freqs ? " and " GGUF_ROPE_FREQS : "");
    cJSON *r = scaling_of(c);
    put_text(c, r, "rope_type", type);
    put_number(c, r, "factor", factor);
    if (original) put_number(c, r, "original_max_position_embeddings", (double)original);
    if (strcmp(type, "yarn") == 0) put_yarn(c, r);
    return LQ_OK;
}

/* ---- what only some architectures say, or llama.cpp assumes of them ---- */
/* A list of true and false for each layer as one of two words. */
static void put_words(config *c, const char *key, const gguf_kv *kv, const char *yes,
                      const char *no)
{
    if (!gguf_is_numbers(kv)) return;
    cJSON *list = cJSON_AddArrayToObject(c->j, key);
    for (uint64_t i = 0; i < kv->n; i++)
        c->ok =
            c->ok && cJSON_AddItemToArray(list, cJSON_CreateString(gguf_int_at(kv, i) ? yes : no));
}

/* A list of true (a window) and false for each layer; or of so many layers the last has none. */
static void put_pattern(config *c, const gguf_own *o)
{
    char k[128];
    const gguf_kv *kv = gguf_get(c->f, meta_key(k, c, o->gguf));
    if (!kv || !kv->array)
        put_int(c, o->key, o->gguf);
    else
        put_words(c, "layer_types", kv, "sliding_attention", "full_attention");
}

static void put_indexers(config *c, const gguf_own *o)
{
    char k[128];
    const gguf_kv *kv = gguf_get(c->f, meta_key(k, c, o->gguf));
    if (kv && kv->array) put_words(c, o->key, kv, "full", "shared");
}

/* A list of true (it rotates) and false for each layer. */
static void put_rotating(config *c, const gguf_own *o)
{
    char k[128];
    double theta = 10000;
    const gguf_kv *kv = gguf_get(c->f, meta_key(k, c, o->gguf));
    if (!kv || !kv->array || !gguf_is_numbers(kv)) return;
    gguf_float(c->f, number_key(k, c, "rope.freq_base"), &theta);
    cJSON *list = cJSON_AddArrayToObject(c->j, o->key);
    for (uint64_t i = 0; i < kv->n; i++)
        c->ok = c->ok && cJSON_AddItemToArray(
                             list, cJSON_CreateNumber(gguf_int_at(kv, i) ? shortest(theta) : 0));
}

/* A number for each layer, or one for all. */
static void put_reals(config *c, const gguf_own *o)
{
    char k[128];
    double v = 0;
    const int64_t layers = int_at(c, "block_count", 0);
    const gguf_kv *kv = gguf_get(c->f, meta_key(k, c, o->gguf));
    if (!kv || !gguf_is_numbers(kv) || layers < 1 || layers > MAX_LAYERS) return;
    if (!kv->array) gguf_float(c->f, k, &v);
    cJSON *list = cJSON_AddArrayToObject(c->j, o->key);
    const uint64_t n = kv->array ? kv->n : (uint64_t)layers;
    for (uint64_t i = 0; i < n; i++)
        c->ok =
            c->ok && cJSON_AddItemToArray(
                         list, cJSON_CreateNumber(shortest(kv->array ? gguf_real_at(kv, i) : v)));
}

static bool has(const config *c, const char *tensor)
{
    const bool one = strcmp(tensor, "blk.0.attn_q.bias") == 0; /* q, k and v may be */
    return gguf_find(c->f, tensor) || (one && gguf_find(c->f, "blk.0.attn_qkv.bias"));
}

/* Which layers have a tensor: MiniMax M3's with an indexer. */
static void put_types_of(config *c, const gguf_own *o)
{
    const int64_t layers = int_at(c, "block_count", 0);
    cJSON *list = cJSON_AddArrayToObject(c->j, o->key);
    for (int64_t i = 0; i < layers && i < MAX_LAYERS && c->ok; i++) {
        char name[96];
        snprintf(name, sizeof name, "blk.%lld.%s", (long long)i, o->gguf);
        c->ok = cJSON_AddItemToArray(
            list,
            cJSON_CreateString(gguf_find(c->f, name) ? "minimax_m3_sparse" : "full_attention"));
    }
}

/* Vectors of one number in all layers, the factor on q, and of ones; and layers with a window, which rotate alone
 * (Muse Glimmer). */
static void put_q_factor(config *c)
{
    static const char *const parts[] = { "attn_q_norm", "attn_k_norm" };
    const gguf_own rotate = { .key = "layer_rope_theta",
                              .gguf = "attention.sliding_window_pattern" };
    const int64_t layers = int_at(c, "block_count", 0);
    char k[128], name[96];
    double factor = 0, local = 0, theta = 10000, v = 0;
    for (int64_t i = 0; i < 2 * layers && i < MAX_LAYERS; i++) {
        snprintf(name, sizeof name, "blk.%lld.%s.weight", (long long)i / 2, parts[i % 2]);
        const gguf_tensor *t = gguf_find(c->f, name);
        if (!t || !is_floats(t) || t->n_dims != 1) {
            fault(c, LQ_EFORMAT, name, "a vector of F32, found none");
            return;
        }
        if (!i) factor = float_at(t, 0);
        for (int64_t d = 0; d < t->shape[0]; d++)
            if (!(fabs(float_at(t, d) - (i % 2 ? 1 : factor)) <= 1e-6 * factor))
                fault(c, LQ_EUNSUPPORTED, name,
                      i % 2 ? "ones, found others" : "one factor in all layers, found others");
    }
    put_number(c, c->j, "qk_scale_factor", shortest(factor));
    if (!gguf_float(c->f, number_key(k, c, "final_logit_softcapping"), &v))
        put_number(c, c->j, "final_logit_softcapping", 0);
    if (!gguf_float(c->f, number_key(k, c, "logit_scale"), &v) || !(v > 0))
        fault(c, LQ_EFORMAT, k, "a number above 0, found another");
    if (int_at(c, "attention.sliding_window", 0) < 1)
        fault(c, LQ_EFORMAT, meta_key(k, c, "attention.sliding_window"), NONE);
    const gguf_kv *kv = gguf_get(c->f, meta_key(k, c, rotate.gguf));
    if (!kv || !kv->array || !gguf_is_numbers(kv) || kv->n != (uint64_t)layers)
        fault(c, LQ_EFORMAT, k, "true or false for each layer, found another");
    put_rotating(c, &rotate);
    gguf_float(c->f, number_key(k, c, "rope.freq_base"), &theta);
    if (gguf_float(c->f, number_key(k, c, "rope.freq_base_swa"), &local) &&
        !(fabs(local - theta) <= 1e-6 * theta))
        fault(c, LQ_EUNSUPPORTED, k, "rope.freq_base, found another");
}

static void put_one(config *c, const gguf_own *o)
{
    char k[128];
    bool on;
    switch (o->kind) {
    case OWN_REAL:
    case OWN_INVERSE:
    case OWN_LIMIT:
        put_float(c, o->key, o->gguf);
        return;
    case OWN_STEP:
    case OWN_INT: /* 0 is none */
        if (int_at(c, o->gguf, 0)) put_int(c, o->key, o->gguf);
        return;
    case OWN_SHARED_FFN:
        put_number(c, c->j, o->key,
                   (double)int_at(c, o->gguf, 0) *
                       (double)int_at(c, "expert_feed_forward_length", 0));
        return;
    case OWN_TYPES:
        put_types_of(c, o);
        return;
    case OWN_BLOCKS:
    case OWN_SHARED:
    case OWN_DENSE:
        if (gguf_get(c->f, number_key(k, c, o->gguf))) put_int(c, o->key, o->gguf);
        return;
    case OWN_PATTERN:
    case OWN_WINDOWS:
        put_pattern(c, o);
        return;
    case OWN_BOOL:
        if (gguf_bool(c->f, number_key(k, c, o->gguf), &on))
            put_bool(c, o->key, on);
        else if (gguf_get(c->f, k))
            fault(c, LQ_EFORMAT, k, "true or false, found another value");
        return;
    case OWN_HAS:
        put_bool(c, o->key, has(c, o->gguf));
        return;
    case OWN_INDEXERS:
        put_indexers(c, o);
        return;
    case OWN_ROTATES:
        put_rotating(c, o);
        return;
    case OWN_LIMITS:
        put_reals(c, o);
        return;
    case OWN_RATIO: {
        const int64_t by = int_at(c, "embedding_length", 0),
                      times = by > 0 ? int_at(c, o->gguf, 0) / by : 0;
        if (by > 0) put_number(c, c->j, o->key, (double)times);
        return;
    }
    case OWN_GATING:;
    }
}

/* Falcon's and StarCoder's ways to share keys and values. */
static void put_sharing(config *c, int64_t heads)
{
    const bool falcon = is(c, "FalconForCausalLM");
    if (!falcon && !is(c, "GPTBigCodeForCausalLM")) return;
    const int64_t kv = int_at(c, "attention.head_count_kv", heads);
    const bool two = gguf_find(c->f, "blk.0.attn_norm_2.weight") != NULL;
    put_bool(c, "multi_query", kv == 1 || (falcon && kv != heads));
    if (!falcon || (kv != 1 && kv == heads && !two)) return;
    if (kv == 1 && !two) return;
    put_bool(c, "new_decoder_architecture", true);
    put_number(c, c->j, "num_ln_in_parallel_attn", two ? 2 : 1);
}

/* Multi-head latent attention. In files of before 2025-04 the lengths are those of its heads. */
static void put_mla(config *c, int64_t heads)
{
    const int64_t rope = int_at(c, "rope.dimension_count", 0);
    const int64_t head =
        int_at(c, "attention.key_length_mla", int_at(c, "attention.key_length", 0));
    const int64_t rest = heads > 0 ? int_at(c, "embedding_length", 0) / heads : 0;
    const int64_t v =
        int_at(c, "attention.value_length_mla", int_at(c, "attention.value_length", rest));
    const int64_t q_lora = int_at(c, "attention.q_lora_rank", 0);
    if (q_lora)
        put_number(c, c->j, "q_lora_rank", (double)q_lora);
    else
        c->ok = c->ok && cJSON_AddNullToObject(c->j, "q_lora_rank");
    put_int(c, "kv_lora_rank", "attention.kv_lora_rank");
    put_number(c, c->j, "qk_nope_head_dim", (double)(head - rope));
    put_number(c, c->j, "qk_rope_head_dim", (double)rope);
    put_number(c, c->j, "v_head_dim", (double)v);
    cJSON_DeleteItemFromObject(c->j, "head_dim");
    cJSON_DeleteItemFromObject(c->j, "num_key_value_heads");
    put_number(c, c->j, "num_key_value_heads", (double)heads);
}

/* DeepSeek V2's experts, whose shares are never made to sum to 1. */
static void put_topk(config *c)
{
    if (!is(c, "DeepseekV2ForCausalLM") && !is(c, "DeepseekOcr2ForConditionalGeneration")) return;
    cJSON_DeleteItemFromObject(c->j, "norm_topk_prob");
    put_text(c, c->j, "topk_method",
             int_at(c, "expert_group_count", 1) > 1 ? "group_limited_greedy" : "greedy");
}

/* Where config.json's reader would assume another number than llama.cpp. */
static void put_heads(config *c, int64_t heads, int64_t hidden)
{
    const int64_t head = int_at(c, "attention.key_length", hidden / heads);
    const int64_t rotated = c->row->all_heads ? head : int_at(c, "rope.dimension_count", head);
    if (c->arch->def_head_dim && !int_at(c, "attention.key_length", 0))
        put_number(c, c->j, "head_dim", (double)head);
    if (c->arch->def_kv_heads && !int_at(c, "attention.head_count_kv", 0))
        put_number(c, c->j, "num_key_value_heads", (double)heads);
    if (rotated > 0 && head > 0 && (rotated != head || c->arch->def_partial > 0))
        put_number(c, c->j, "partial_rotary_factor", (double)rotated / (double)head);
}

/* Those whose q, k and v are one tensor in a checkpoint. Baichuan 13B's config.json has another word for the longest
 * text, and no rotation. */
static void put_apart(config *c)
{
    if (is(c, "QWenLMHeadModel")) { /* as llama.cpp runs it */
        put_bool(c, "use_dynamic_ntk", false);
        put_bool(c, "use_logn_attn", false);
    }
    if (is(c, "BailingMoeForCausalLM")) put_bool(c, "attention_projections_apart", true);
    if (!is(c, "BaichuanForCausalLM")) return;
    cJSON_DeleteItemFromObject(c->j, "max_position_embeddings");
    put_int(c, "model_max_length", "context_length");
    put_bool(c, "attention_projections_apart", true);
}

/* Of four layers of SmallThinker the first has no window and does not rotate, where there are windows; these are of 4096
 * positions. */
static void put_smallthinker(config *c)
{
    enum { EVERY = 4, WINDOW = 4096 };
    static const char *const lists[] = { "sliding_window_layout", "rope_layout" };
    static const char *const none[] = { "rope.freq_base_swa", "attention.sliding_window_pattern" };
    char k[128];
    const int64_t window = int_at(c, "attention.sliding_window", 0),
                  layers = int_at(c, "block_count", 0);
    put_bool(c, "moe_primary_router_apply_softmax", int_at(c, "expert_gating_func", 2) == 1);
    for (size_t i = 0; i < LQ_COUNT(none); i++)
        if (gguf_get(c->f, meta_key(k, c, none[i])))
            fault(c, LQ_EUNSUPPORTED, k, "none, which llama.cpp's converter does not write");
    if (window < 1) return;
    if (window != WINDOW)
        fault(c, LQ_EUNSUPPORTED, meta_key(k, c, "attention.sliding_window"),
              "4096, as llama.cpp runs it");
    for (size_t l = 0; l < LQ_COUNT(lists); l++) {
        cJSON *list = cJSON_AddArrayToObject(c->j, lists[l]);
        for (int64_t i = 0; i < layers && i < MAX_LAYERS; i++)
            c->ok = c->ok && cJSON_AddItemToArray(list, cJSON_CreateNumber(i % EVERY != 0));
    }
}

/* llama.cpp caps no router's logits, whatever the file says, and beside an MLP it makes shares sum to 1. */
static void put_grok(config *c)
{
    static const char mlp[] = "blk.0.ffn_up.weight";
    put_number(c, c->j, "router_logit_softcapping", 0);
    if (has(c, mlp))
        fault(
            c, LQ_EUNSUPPORTED, mlp,
            "no MLP beside experts (Grok 2), which llama.cpp weighs otherwise than its publisher");
}

static void put_own(config *c)
{
    static const char *const biased[] = { "LlamaForCausalLM",   "MistralForCausalLM",
                                          "Qwen3ForCausalLM",   "Qwen3MoeForCausalLM",
                                          "GraniteForCausalLM", "SmolLM3ForCausalLM" };
    for (const gguf_own *o = gguf_owns; o->hf; o++) {
        if (!o->key || !is(c, o->hf)) continue;
        if (strcmp(o->key, "intermediate_size") == 0) /* an expert's, there */
            cJSON_DeleteItemFromObject(c->j, o->key);
        put_one(c, o);
    }
    if (is(c, "Llama4ForCausalLM"))
        put_bool(c, "use_qk_norm", int_at(c, "expert_count", 0) != 128); /* as llama.cpp */
    for (size_t i = 0; i < LQ_COUNT(biased); i++)
        if (is(c, biased[i])) put_bool(c, "attention_bias", has(c, "blk.0.attn_q.bias"));
    if (is(c, "Qwen3MoeForCausalLM")) put_bool(c, "norm_topk_prob", true);
    if (is(c, "AfmoeForCausalLM")) put_bool(c, "mup_enabled", true); /* llama.cpp always scales */
    const int64_t heads = int_at(c, "attention.head_count", 0);
    const int64_t hidden = int_at(c, "embedding_length", 0);
    const int64_t layers = int_at(c, "block_count", 0);
    if (heads < 1 || hidden < 1) return; /* refused as a config */
    if (is(c, "Gemma2ForCausalLM") || is(c, "Gemma3ForCausalLM")) {
        /* the scale of attention is in the code: another one for the models of 27 B */
        const bool large = layers == (is(c, "Gemma2ForCausalLM") ? 46 : 62) && !c->row->both_ways;
        const int64_t by = large ? hidden / heads : int_at(c, "attention.key_length", 0);
        put_number(c, c->j, "query_pre_attn_scalar", (double)by);
    }
    if (strcmp(c->row->gguf, "minicpm") == 0) { /* a Granite whose attention is scaled as usual */
        const int64_t dim = int_at(c, "attention.key_length", hidden / heads);
        put_number(c, c->j, "attention_multiplier", dim > 0 ? 1 / sqrt((double)dim) : 0);
    }
    if (c->arch->w.mla && !c->arch->w.kv_one)
        put_mla(c, heads);
    else if (!c->row->layered && !c->row->state && !c->row->compress)
        put_heads(c, heads, hidden);
    if (c->row->q_factor) put_q_factor(c);
    if (is(c, "SmallThinkerForCausalLM")) put_smallthinker(c);
    if (is(c, "Grok1ForCausalLM")) put_grok(c);
    put_topk(c);
    put_sharing(c, heads);
    put_apart(c);
    if (is(c, "Cohere2MoeForCausalLM"))
        put_text(c, c->j, "expert_selection_fn",
                 int_at(c, "expert_gating_func", 2) == 1 ? "softmax" : "sigmoid");
}

/* Layers that predict further tokens are counted by llama.cpp, and not run. */
static void put_layers(config *c)
{
    const int64_t layers = int_at(c, "block_count", 0);
    const int64_t next = int_at(c, "nextn_predict_layers", 0);
    put_number(c, c->j, "num_hidden_layers", (double)(next < layers ? layers - next : layers));
}

/* Where the row has none of the usual functions, config.json is silent and the row's own is used. */
static void put_activation(config *c)
{
    const bool gemma = strncmp(c->row->gguf, "gemma", 5) == 0;
    if (gemma)
        put_text(c, c->j, "hidden_activation", "gelu_pytorch_tanh");
    else if (strcmp(c->row->gguf, "bitnet") == 0) /* BitNet.cpp's has the row's own */
        put_text(c, c->j, "hidden_act", "silu");
    else if (c->arch->def_act == ARCH_SILU)
        put_text(c, c->j, "hidden_act", "silu");
}

static void put_epsilon(config *c)
{
    const char *key = c->row->eps ? c->row->eps : "rms_norm_eps";
    char k[128];
    double v;
    const bool rms = gguf_float(c->f, number_key(k, c, "attention.layer_norm_rms_epsilon"), &v);
    if (rms && is(c, "Cohere2MoeForCausalLM")) key = "rms_norm_eps"; /* of two kinds of norms */
    put_float(c, key, rms ? "attention.layer_norm_rms_epsilon" : "attention.layer_norm_epsilon");
}

/* Where a window of 0 is said, llama.cpp runs no chunks and rotates all layers. */
static void check_chunks(config *c)
{
    char k[128];
    if (is(c, "Llama4ForCausalLM") && gguf_get(c->f, meta_key(k, c, "attention.sliding_window")))
        fault(c, LQ_EUNSUPPORTED, k, "none, found a Llama 4 without its chunks of 8192");
}

/* GLM-4V's GGUF is a glm4 whose rows of q and k are in another order. */
static void check_sections(config *c)
{
    char k[128];
    if (is(c, "Glm4ForCausalLM") && gguf_get(c->f, meta_key(k, c, "rope.dimension_sections")))
        fault(c, LQ_EUNSUPPORTED, k, "none, found sections of images (GLM-4V)");
}

/* Is there a tensor whose name ends so? */
static bool any_tensor(const gguf_file *f, const char *ending)
{
    const size_t n = strlen(ending);
    for (size_t i = 0; i < f->n; i++) {
        const size_t len = strlen(f->tensors[i].name);
        if (len >= n && strcmp(f->tensors[i].name + len - n, ending) == 0) return true;
    }
    return false;
}

/* Norms of jina-embeddings-v2-base-code and -zh, which its row has not. */
static void check_norms(config *c)
{
    static const char *const names[] = { ".attn_q_norm.weight", ".attn_k_norm.weight",
                                         ".attn_norm_2.weight" };
    for (size_t i = 0; i < LQ_COUNT(names) && is(c, "JinaBertForCausalLM"); i++)
        if (any_tensor(c->f, names[i]))
            fault(c, LQ_EUNSUPPORTED, names[i] + 1, "none in a jina-bert-v2, found some");
}

/* Of one head's size values are as wide as keys, or the file is another model's. */
static void check_values(config *c, const char *ending)
{
    char k[128], key[64], value[64];
    int64_t v = 0, width = 0;
    if (c->row->values) { /* read with the other numbers */
        if (int_at(c, "attention.value_length", 0) < 1)
            fault(c, LQ_EFORMAT, meta_key(k, c, "attention.value_length"), NONE);
        return;
    }
    snprintf(key, sizeof key, "attention.key_length%s", ending);
    snprintf(value, sizeof value, "attention.value_length%s", ending);
    if ((c->arch->w.mla && !c->arch->w.kv_one) || !read_int(c, value, &v)) return;
    const bool said = read_int(c, key, &width);
    if (!said && (c->row->layered || c->row->state)) return; /* by layer, or none attends */
    if (!said) {
        const int64_t heads = int_at(c, "attention.head_count", 0);
        width = heads > 0 ? int_at(c, "embedding_length", 0) / heads : v;
    }
    char what[64];
    snprintf(what, sizeof what, "%lld as of keys, found %lld", (long long)width, (long long)v);
    if (v != width) fault(c, LQ_EUNSUPPORTED, meta_key(k, c, value), what);
}

/* Ling 1's config.json has no factor on what experts give. */
static void check_scale(config *c)
{
    char k[128];
    double v = 1;
    const gguf_kv *kv = gguf_get(c->f, meta_key(k, c, "expert_weights_scale"));
    if (is(c, "BailingMoeForCausalLM") && kv && !(gguf_float(c->f, k, &v) && v == 1))
        fault(c, LQ_EUNSUPPORTED, k, "1, found another factor");
}

/* What llama.cpp asks of every file; config.json's readers would assume a number of their own. */
static void check_needed(config *c)
{
    char k[128];
    if (!gguf_get(c->f, meta_key(k, c, "context_length"))) fault(c, LQ_EFORMAT, k, NONE);
    if (int_at(c, "expert_count", 0) > 0 && int_at(c, "expert_used_count", 0) < 1)
        fault(c, LQ_EFORMAT, k,
              gguf_get(c->f, meta_key(k, c, "expert_used_count")) ? "1 or more, found fewer"
                                                                  : NONE);
    if (!gguf_get(c->f, meta_key(k, c, "attention.layer_norm_epsilon")) &&
        !gguf_get(c->f, meta_key(k, c, "attention.layer_norm_rms_epsilon")))
        fault(c, LQ_EFORMAT, k, NONE);
}

/* How many kinds of parts an encoder's text may have. */
static void put_types(config *c)
{
    const gguf_tensor *t = gguf_find(c->f, "token_types.weight");
    if (is(c, "JinaBertForCausalLM")) { /* words that its config.json must have */
        put_text(c, c->j, "position_embedding_type", "alibi");
        put_text(c, c->j, "feed_forward_type", "geglu");
    }
    put_number(c, c->j, "type_vocab_size", t ? (double)t->shape[0] : 0);
}

static void put_label_names(config *c)
{
    char k[128], name[256];
    const gguf_kv *kv = gguf_get(c->f, meta_key(k, c, "classifier.output_labels"));
    const uint8_t *at = kv ? kv->data : NULL;
    if (!kv || !kv->array || kv->type != GGUF_STRING) return;
    cJSON *names = cJSON_AddObjectToObject(c->j, "id2label");
    for (uint64_t i = 0; i < kv->n; i++) {
        const gguf_text t = gguf_next(&at);
        if (t.n >= sizeof name || !lq_utf8_valid(t.s, t.n, NULL)) continue;
        snprintf(k, sizeof k, "%llu", (unsigned long long)i);
        snprintf(name, sizeof name, "%.*s", (int)t.n, t.s);
        put_text(c, names, k, name);
    }
}

/* How a score is made: llama.cpp's ModernBERT takes the mean where no key says it. The function of the score is a key of
 * our own. */
static void put_classifier(config *c)
{
    char k[128];
    const char *act = "", *kind = "";
    if (is(c, "ModernBertForCausalLM"))
        put_text(c, c->j, "classifier_pooling",
                 int_at(c, "classifier.pooling_type", 1) == 1 ? "mean" : "cls");
    put_label_names(c);
    gguf_str(c->f, meta_key(k, c, "classifier.problem_type"), &kind); /* our own, as the next */
    if (strcmp(kind, "regression") == 0 || strcmp(kind, "multi_label_classification") == 0)
        put_text(c, c->j, "problem_type", kind);
    gguf_str(c->f, meta_key(k, c, "classifier.activation"), &act);
    if (strcmp(act, "identity") == 0)
        put_text(c, c->j, "sbert_ce_default_activation_function", "Identity");
}

/* The architecture's name with its head: what encoders have for labels makes a model of them. */
static void put_architecture(config *c)
{
    char name[80];
    const char *vectors = c->row->both_ways, *model = vectors ? strstr(vectors, "Model") : NULL;
    const gguf_tensor *score = gguf_find(c->f, "cls.output.weight");
    cJSON *list = cJSON_AddArrayToObject(c->j, "architectures");
    snprintf(name, sizeof name, "%s", vectors ? vectors : c->row->hf);
    if (model && score && c->arch->scorer) {
        snprintf(name, sizeof name, "%.*sForSequenceClassification", (int)(model - vectors),
                 vectors);
        put_number(c, c->j, "num_labels", score->n_dims == 2 ? (double)score->shape[0] : 1);
        put_classifier(c);
    }
    c->ok = cJSON_AddItemToArray(list, cJSON_CreateString(name)) && c->ok;
}

static lq_status put_all(config *c, lq_err *err)
{
    static const struct {
        const char *key, *from;
    } ints[] = { { "hidden_size", "embedding_length" },
                 { "num_attention_heads", "attention.head_count" },
                 { "max_position_embeddings", "context_length" } },
      of_all[] = { { "intermediate_size", "feed_forward_length" },
                   { "num_key_value_heads", "attention.head_count_kv" },
                   { "head_dim", "attention.key_length" } };
    const gguf_tensor *embed = gguf_find(c->f, "token_embd.weight");
    if (!embed || embed->n_dims != 2)
        return lq_fail(err, LQ_EFORMAT, "token_embd.weight: expected a matrix, found none");
    c->ok = true;
    put_architecture(c);
    if (c->row->both_ways && !c->arch->w.both_ways)
        put_bool(c, "use_bidirectional_attention", true);
    if (c->arch->w.both_ways) put_types(c);
    put_text(c, c->j, "model_type", c->arch->model_type);
    put_activation(c);
    put_number(c, c->j, "vocab_size", (double)embed->shape[0]);
    put_bool(c, "tie_word_embeddings", !gguf_find(c->f, "output.weight"));
    put_text(c, c->j, "torch_dtype", "float32");
    for (size_t i = 0; i < LQ_COUNT(ints); i++)
        put_int(c, ints[i].key, ints[i].from);
    for (size_t i = 0; i < LQ_COUNT(of_all) && !c->row->layered && !c->row->state; i++)
        put_int(c, of_all[i].key, of_all[i].from);
    put_layers(c);
    put_epsilon(c);
    put_float(c, "rope_theta", "rope.freq_base");
    /* what llama.cpp takes where a file is silent, whatever the architecture's own */
    if (c->arch->def_theta > 0 && !cJSON_HasObjectItem(c->j, "rope_theta"))
        put_number(c, c->j, "rope_theta", 10000);
    put_token(c, "bos_token_id", "tokenizer.ggml.bos_token_id");
    put_ends(c);
    put_own(c);
    lq_status s =
        c->row->layered ? gguf_layers_config(c->j, c->f, c->row, err) : put_scaling(c, err);
    if (!s && c->row->state) s = gguf_state_config(c->j, c->f, c->row, err);
    if (!s && c->row->lists) s = gguf_lists_config(c->j, c->f, c->row, err);
    if (!s && c->row->compress) s = gguf_compress_config(c->j, c->f, c->row, err);
    if (!s && c->row->ngrams) s = gguf_ngrams_config(c->j, c->f, c->row, err);
    check_needed(c);
    check_sections(c);
    check_scale(c);
    check_chunks(c);
    check_norms(c);
    check_values(c, "");
    check_values(c, "_swa");
    return !s && c->st ? lq_fail(err, c->st, "%s", c->fault) : s;
}

lq_status gguf_config(cJSON **out, gguf_file *f, const gguf_arch *row, lq_err *err)
{
    config c = { .f = f, .row = row, .arch = arch_find(row->hf, NULL), .j = cJSON_CreateObject() };
    lq_status s = put_all(&c, err);
    if (!s && !c.ok) s = lq_fail(err, LQ_ENOMEM, "out of memory");
    *out = s ? NULL : c.j;
    if (s) cJSON_Delete(c.j);
    return s;
}

const gguf_arch *gguf_arch_find(gguf_file *f)
{
    const char *arch = "";
    char k[128];
    gguf_str(f, "general.architecture", &arch);
    for (const gguf_arch *a = gguf_archs; a->gguf; a++) {
        int64_t n = 0;
        int64_t blocks = 0;
        snprintf(k, sizeof k, "%.40s.block_count", arch);
        gguf_int(f, k, &blocks);
        if (strcmp(a->gguf, arch) != 0 || (a->blocks && a->blocks != blocks)) continue;
        if (!a->when) return a;
        if (a->when[0] == '*') {
            if (any_tensor(f, a->when + 1)) return a;
            continue;
        }
        snprintf(k, sizeof k, "%.40s.%s", arch, a->when);
        bool on = false;
        double v = 0;
        if ((gguf_int(f, k, &n) && n > 0) || (gguf_bool(f, k, &on) && on) ||
            (gguf_float(f, k, &v) && v > 0))
            return a;
    }
    return NULL;
}
