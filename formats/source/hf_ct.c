/* formats/source/hf_ct.c - compressed-tensors (llm-compressor): per linear, by `format`,
 *
 *   pack-quantized          weight_packed I32 [N,W], weight_shape I64 [2], weight_scale; asymmetric
 *                           grids: weight_zero_point I32 packed along N [W(N),ng]; weight_g_idx
 *   int-quantized,          weight I8 or F8_E4M3 [N,K], weight_scale; weight_zero_point I8;
 *   float-, naive-quantized input_scale
 *   mxfp8-quantized         weight F8_E4M3 [N,K], weight_scale U8 [N,K/32] (E8M0)
 *   nvfp4-, mxfp4-          as hf_fp4.c reads them
 *   pack-quantized
 *
 * weight_scale is [N,ng] (group), [N,1] (channel), [1] (tensor) or one per block. A stored code is
 * the signed one + 2^(bits-1). Words of 3 bits: one stream, or ten to a word (before 0.18): the
 * number of words tells which. */
#include "base/path.h"
#include "formats/source/hf_quant.h"

typedef enum { BY_TENSOR, BY_CHANNEL, BY_GROUP, BY_BLOCK, BY_TOKEN, BY_TENSOR_GROUP } ct_strategy;
static const char *const strategies[] = { "tensor", "channel", "group",
                                          "block",  "token",   "tensor_group" };

/* QuantizationArgs: how weights or inputs are rounded. */
typedef struct {
    bool there, is_float, symmetric, dynamic;
    int64_t bits, group, rows, cols;
    ct_strategy by;
} ct_args;

typedef struct {
    const char *format;
    ct_args weights, inputs;
} ct_group;

/* ---- the config ---- */
static lq_status read_args(ct_args *a, const cJSON *scheme, const char *key, lq_err *err)
{
    const cJSON *j = js_get(scheme, key), *dynamic;
    const char *type = "int", *by = NULL;
    size_t i = 0;
    *a = (ct_args){ .symmetric = true, .bits = 8, .there = j != NULL };
    if (!j) return LQ_OK;
    lq_status st = js_i64(j, "num_bits", false, 1, 16, &a->bits, err);
    if (!st) st = js_str(j, "type", false, &type, err);
    if (!st) st = js_bool(j, "symmetric", false, &a->symmetric, err);
    if (!st) st = js_str(j, "strategy", false, &by, err);
    if (!st) st = hf_group_size(j, "group_size", &a->group, err);
    if (st) return lq_wrap(err, st, "%s", key);
    a->is_float = strcmp(type, "float") == 0;
    if (!a->is_float && strcmp(type, "int") != 0)
        return lq_fail(err, LQ_EVALUE, "%s: type: expected int or float, found \"%.40s\"", key,
                       type);
    if (!by) by = a->group > 0 ? "group" : a->group < 0 ? "channel" : "tensor";
    while (i < LQ_COUNT(strategies) && strcmp(strategies[i], by) != 0)
        i++;
    if (i == LQ_COUNT(strategies))
        return lq_fail(err, LQ_EUNSUPPORTED, "%s: strategy \"%.40s\" is not known", key, by);
    a->by = (ct_strategy)i;
    if (a->group > 0 && a->by != BY_GROUP && a->by != BY_TENSOR_GROUP)
        return lq_fail(err, LQ_EVALUE, "%s: group_size: expected none by %s, found %lld", key, by,
                       (long long)a->group);
    dynamic = js_get(j, "dynamic"); /* true, false, or "local": the scale of a group within one */
    a->dynamic = cJSON_IsTrue(dynamic) || cJSON_IsString(dynamic);
    st = hf_block_size(j, "block_structure", &a->rows, &a->cols, err);
    if (!st && a->by == BY_BLOCK && !a->rows)
        st = lq_fail(err, LQ_EVALUE, "block_structure: expected two sizes, found none");
    return st ? lq_wrap(err, st, "%s", key) : LQ_OK;
}

/* How well a scheme's targets name a module: 4 its name, 3 a pattern, 2 the class of linears, 1 another
 * class, 0 not at all. */
static lq_status target_rank(int *rank, const cJSON *scheme, const char *module, lq_err *err)
{
    const cJSON *targets = js_get(scheme, "targets");
    *rank = 0;
    for (const cJSON *t = cJSON_IsArray(targets) ? targets->child : NULL; t; t = t->next) {
        int r = 0;
        if (!cJSON_IsString(t)) return lq_fail(err, LQ_EVALUE, "targets: expected strings");
        if (strncmp(t->valuestring, "re:", 3) == 0) {
            bool yes;
            lq_status st = hf_matches(&yes, t->valuestring + 3, module, false, err);
            if (st) return st;
            r = yes ? 3 : 0;
        } else if (strcmp(t->valuestring, module) == 0) {
            r = 4;
        } else if (!strchr(t->valuestring, '.')) {
            r = lq_has_ending(t->valuestring, "Linear") ? 2 : 1;
        }
        *rank = r > *rank ? r : *rank;
    }
    return LQ_OK;
}

typedef enum { CT_PACKED, CT_BYTES, CT_MXFP8, CT_FP4 } ct_kind;

static lq_status kind_of(ct_kind *kind, const char *format, lq_err *err)
{
    static const struct {
        const char *format;
        ct_kind kind;
    } formats[] = {
        { "pack-quantized", CT_PACKED },    { "int-quantized", CT_BYTES },
        { "float-quantized", CT_BYTES },    { "naive-quantized", CT_BYTES },
        { "mxfp8-quantized", CT_MXFP8 },    { "mxfp8-pack-quantized", CT_MXFP8 },
        { "nvfp4-pack-quantized", CT_FP4 }, { "mxfp4-pack-quantized", CT_FP4 },
    };
    for (size_t i = 0; i < LQ_COUNT(formats); i++)
        if (strcmp(formats[i].format, format) == 0) {
            *kind = formats[i].kind;
            return LQ_OK;
        }
    return lq_fail(err, LQ_EUNSUPPORTED, "format: \"%.40s\" is not read", format);
}

/* Inputs of a packed weight, by the shape that is stored with it; 0: not known. */
static int64_t inputs_of(const src_tensor *shape)
{
    int64_t k = 0;
    if (shape && shape->raw_dtype == LQ_I64 && shape->raw.bytes == 2 * sizeof k)
        memcpy(&k, (const uint8_t *)shape->raw.data + sizeof k, sizeof k);
    return k > 0 && k < INT32_MAX ? k : 0;
}

static bool fits_words(const ct_args *a, const src_tensor *packed, const src_tensor *shape,
                       const src_tensor *scale)
{
    const int64_t k = inputs_of(shape), n = a->by == BY_GROUP ? a->group : k;
    if (packed->raw_dtype != LQ_I32 && packed->raw_dtype != LQ_U32) return false;
    if (!k || n <= 0 || packed->n_dims != 2 || scale->n_dims != 2) return true;
    const bool words = a->bits == 3 || packed->shape[1] == (k * a->bits + 31) / 32;
    return words && scale->shape[1] == (k + n - 1) / n;
}

/* Has what is stored of a module the form that a group says? */
static bool fits(const hf_quant *h, const char *module, const cJSON *group)
{
    const src_tensor *packed = hf_stored(h, module, ".weight_packed"),
                     *plain = hf_stored(h, module, ".weight"),
                     *scale = hf_stored(h, module, ".weight_scale");
    const char *format = "";
    ct_args a;
    ct_kind kind;
    js_str(h->q, "format", false, &format, NULL);
    js_str(group, "format", false, &format, NULL);
    if (!scale || kind_of(&kind, format, NULL) || read_args(&a, group, "weights", NULL))
        return false;
    const bool real =
        scale->raw_dtype == LQ_F32 || scale->raw_dtype == LQ_F16 || scale->raw_dtype == LQ_BF16;
    switch (kind) {
    case CT_PACKED:
        return packed && fits_words(&a, packed, hf_stored(h, module, ".weight_shape"), scale);
    case CT_FP4:
        return packed && packed->raw_dtype == LQ_U8 &&
               (scale->raw_dtype == LQ_F8_E4M3) == (strncmp(format, "nv", 2) == 0);
    case CT_MXFP8:
        return plain && plain->raw_dtype == LQ_F8_E4M3 && !real;
    case CT_BYTES:
        break;
    }
    return plain && real && plain->raw_dtype == (a.is_float ? LQ_F8_E4M3 : LQ_I8);
}

/* Where several groups name a module, as patterns that overlap do, the one that has what is stored; readers and
 * writers choose in several ways. Of those that do, the one that names it best, then the first. */
static lq_status group_of(ct_group *g, const hf_quant *h, const char *module, lq_err *err)
{
    const cJSON *groups = js_get(h->q, "config_groups"), *best = NULL;
    int best_rank = 0;
    lq_status st = LQ_OK;
    for (const cJSON *c = groups ? groups->child : NULL; c && !st; c = c->next) {
        int rank = 0;
        if (js_get(c, "weights")) st = target_rank(&rank, c, module, err);
        if (!st && rank && fits(h, module, c)) rank += 4;
        if (!st && rank > best_rank) {
            best = c;
            best_rank = rank;
        }
    }
    if (!st && !best)
        st = lq_fail(err, LQ_EFORMAT, "config_groups: none of them has '%.100s' among its targets",
                     module);
    *g = (ct_group){ .format = "" };
    if (!st) st = js_str(h->q, "format", false, &g->format, err);
    if (!st) st = js_str(best, "format", false, &g->format, err);
    if (!st) st = read_args(&g->weights, best, "weights", err);
    if (!st) st = read_args(&g->inputs, best, "input_activations", err);
    if (!st && js_get(best, "output_activations"))
        st = lq_fail(err, LQ_EUNSUPPORTED, "output_activations: expected none");
    return st;
}

/* Groups without weights round what attention reads and writes. */
static lq_status note_groups(hf_quant *h, lq_err *err)
{
    const cJSON *groups = js_get(h->q, "config_groups");
    lq_status st = LQ_OK;
    for (const cJSON *c = cJSON_IsObject(groups) ? groups->child : NULL; c && !st; c = c->next)
        if (!js_get(c, "weights"))
            st = src_note(h->s, err,
                          "config_groups: %.60s has no weights and is not applied: attention's "
                          "queries, keys and values are not rounded",
                          c->string);
    return st;
}

/* Parts of the config that would change the maths and that we do not know. */
static lq_status check_config(hf_quant *h, lq_err *err)
{
    static const char *const empty[] = { "sparsity_config", "transform_config" };
    static const char *const done[] = { "compressed", "frozen" };
    const char *status = "compressed";
    lq_status st = js_str(h->q, "quantization_status", false, &status, err);
    if (!st && strcmp(status, done[0]) != 0 && strcmp(status, done[1]) != 0)
        st = lq_fail(err, LQ_EUNSUPPORTED,
                     "quantization_status: expected compressed or frozen, found \"%.40s\"", status);
    for (size_t i = 0; i < LQ_COUNT(empty) && !st; i++) {
        const cJSON *c = js_get(h->q, empty[i]);
        const char *format = "";
        if (c) js_str(c, "format", false, &format, NULL);
        if (c && c->child && strcmp(format, "dense") != 0)
            st = *format ? lq_fail(err, LQ_EUNSUPPORTED,
                                   "%s: format: expected dense, found \"%.40s\"", empty[i], format)
                         : lq_fail(err, LQ_EUNSUPPORTED, "%s: expected none", empty[i]);
    }
    if (!st) st = note_groups(h, err);
    if (!st && js_get(h->q, "kv_cache_scheme")) st = hf_note_cache(h, "kv_cache_scheme", err);
    return st;
}

/* ---- translation ---- */
typedef struct {
    const uint8_t *packed, *scale, *zeros;
    int64_t words, n_scales;
    int64_t group;      /* inputs that share a stored scale; the last may have fewer */
    int bits, per_word; /* per_word: codes of a word that is filled from its low end; 0: a stream */
    lq_dtype scale_dtype, zero_dtype;
} ct_parts;

/* Code i of a run of words `step` words apart. */
static unsigned code_at(const ct_parts *p, const uint8_t *words, int64_t i, int64_t step)
{
    if (p->per_word)
        return hf_word(words, i / p->per_word * step) >> (i % p->per_word * p->bits) &
               ((1u << p->bits) - 1u);
    const int64_t bit = i * p->bits, at = bit / 32;
    uint64_t w = hf_word(words, at * step);
    if (bit % 32 + p->bits > 32) w |= (uint64_t)hf_word(words, (at + 1) * step) << 32;
    return (unsigned)(w >> bit % 32) & ((1u << p->bits) - 1u);
}

/* Bits `v` at field i of a row of zeros. */
static void put_bits(uint8_t *row, int64_t i, int bits, unsigned v)
{
    const size_t bit = (size_t)i * (size_t)bits;
    row[bit / 8] |= (uint8_t)(v << bit % 8);
    if (bit % 8 + (size_t)bits > 8) row[bit / 8 + 1] |= (uint8_t)(v >> (8 - bit % 8));
}

/* The stored one of scale i of n: fewer may be stored, one for all, or one for several parts. */
static size_t scale_at(const qt_tensor *t, const ct_parts *p, size_t n, size_t i)
{
    if ((size_t)p->n_scales == n) return i;
    if (p->n_scales == 1) return 0;
    const size_t ng = (size_t)(t->K / t->scheme.group),
                 stored = (size_t)lq_ceil_div(t->K, p->group);
    return i / ng * stored + (size_t)hf_group_at((int64_t)(i % ng), t->scheme.group, p->group);
}

static void fill_scales(void *dst, const qt_tensor *t, const ct_parts *p)
{
    const lq_dtype d = t->scheme.kind == QT_UINT ? t->scheme.scale_dtype : LQ_F32;
    const size_t e = lq_dtype_bytes(d), n = t->plane[QT_SCALES].bytes / e;
    for (size_t i = 0; i < n; i++) {
        const float v = hf_scale(p->scale, p->scale_dtype, scale_at(t, p, n, i));
        lq_from_f32((uint8_t *)dst + i * e, &v, d, 1);
    }
}

static void fill_packed(void *const w[QT_N_PLANES], const qt_tensor *t, const void *from)
{
    const ct_parts *p = from;
    const int64_t ng = t->K / t->scheme.group, stored = lq_ceil_div(t->K, p->group);
    if (w[QT_SCALES]) fill_scales(w[QT_SCALES], t, p);
    for (int64_t n = 0; n < t->N; n++) {
        uint8_t *codes = w[QT_CODES], *zeros = w[QT_ZEROS];
        if (codes) codes += (size_t)n * qt_row_bytes(t->K, p->bits);
        if (zeros) zeros += (size_t)n * qt_row_bytes(ng, p->bits);
        for (int64_t k = 0; codes && k < t->K; k++)
            put_bits(codes, k, p->bits, code_at(p, p->packed + 4 * n * p->words, k, 1));
        for (int64_t g = 0; zeros && g < ng; g++) {
            const int64_t at = hf_group_at(g, t->scheme.group, p->group);
            put_bits(zeros, g, p->bits,
                     p->zero_dtype == LQ_I8
                         ? (p->zeros[n * stored + at] + (1u << (p->bits - 1))) & 0xffu
                         : code_at(p, p->zeros + 4 * at, n, stored));
        }
    }
}

/* Codes of a byte. */
static void fill_bytes(void *const w[QT_N_PLANES], const qt_tensor *t, const void *from)
{
    const ct_parts *p = from;
    uint8_t *codes = w[QT_CODES], *zeros = w[QT_ZEROS];
    if (w[QT_SCALES]) fill_scales(w[QT_SCALES], t, p);
    for (size_t i = 0; codes && i < t->plane[QT_CODES].bytes; i++)
        codes[i] = p->packed[i] ^ 0x80u;
    const size_t n = t->plane[QT_ZEROS].bytes;
    for (size_t i = 0; zeros && i < n; i++)
        zeros[i] = p->zeros[scale_at(t, p, n, i)] ^ 0x80u;
}

/* ---- scales and inputs ---- */
/* Elements of weight_scale that the strategy asks for; group: inputs that share one. */
static lq_status check_scale(const ct_args *a, const src_tensor *scale, int64_t N, int64_t K,
                             int64_t *group, lq_err *err)
{
    const int64_t n = src_elements(scale);
    *group = a->by == BY_GROUP || a->by == BY_TENSOR_GROUP ? a->group : K;
    if (*group < 1)
        return lq_fail(err, LQ_EVALUE, "tensor '%.100s': weights: expected a group_size",
                       scale->name);
    if (*group > K) *group = K;
    if (a->by == BY_BLOCK)
        return hf_expect(scale, lq_ceil_div(N, a->rows), lq_ceil_div(K, a->cols), err);
    if (a->by == BY_TENSOR && n == 1) return LQ_OK;
    if (a->by == BY_CHANNEL && n == N && scale->shape[0] == N) return LQ_OK;
    return hf_expect(scale, N, lq_ceil_div(K, *group), err);
}

static lq_status take_inputs(qt_scheme *s, hf_quant *h, const ct_args *a, const char *module,
                             lq_err *err)
{
    static const int any[] = { LQ_I8, LQ_I32, LQ_U8, LQ_F32, LQ_F16, LQ_BF16, LQ_F8_E4M3, -1 };
    const src_tensor *scale = NULL, *zero = NULL;
    lq_status st =
        hf_take(h, module, ".input_scale", a->there && !a->dynamic, HF_FLOATS, -1, &scale, err);
    if (!st) st = hf_take(h, module, ".input_zero_point", false, any, -1, &zero, err);
    if (st || !a->there) return st;
    if (!a->symmetric && !a->is_float && a->bits == 8)
        return hf_note_weight_only(h, "asymmetric 8-bit inputs", err);
    for (size_t i = 0; zero && i < zero->raw.bytes && !st; i++)
        if (((const uint8_t *)zero->raw.data)[i])
            st = lq_fail(err, LQ_EUNSUPPORTED, "tensor '%.100s': expected 0", zero->name);
    if (st) return st;
    if (a->bits != 8 || !a->symmetric || a->by == BY_CHANNEL || a->by == BY_BLOCK)
        return lq_fail(err, LQ_EUNSUPPORTED,
                       "input_activations: expected 8 bits, symmetric, by token, group or tensor; "
                       "found %lld bits, %s, by %s",
                       (long long)a->bits, a->symmetric ? "symmetric" : "asymmetric",
                       strategies[a->by]);
    s->act = a->is_float ? QT_ACT_F8 : QT_ACT_I8;
    s->act_group = a->by == BY_GROUP && a->group > 0 ? a->group : 0;
    if (!a->dynamic) return hf_one_float(&s->act_scale, scale, err);
    if (a->by == BY_TENSOR)
        return src_note(h->s, err,
                        "inputs are rounded by token where the file says by tensor, so that a "
                        "token's result does not depend on others");
    return LQ_OK;
}

/* ---- the formats ---- */
static lq_status take_packed(hf_quant *h, const char *module, const ct_args *a, qt_tensor *q,
                             const src_tensor *scale, lq_err *err)
{
    static const int words[] = { LQ_I32, LQ_U32, -1 }, i64[] = { LQ_I64, LQ_I32, -1 };
    static const int zeros_types[] = { LQ_I32, LQ_I8, -1 };
    const src_tensor *packed, *shape, *zeros = NULL, *g_idx = NULL;
    lq_status st = hf_take(h, module, ".weight_packed", true, words, 2, &packed, err);
    if (!st) st = hf_take(h, module, ".weight_shape", true, i64, 1, &shape, err);
    if (!st)
        st = hf_take(h, module, ".weight_zero_point", !a->symmetric, zeros_types, 2, &zeros, err);
    if (!st) st = hf_take(h, module, ".weight_g_idx", false, words, 1, &g_idx, err);
    if (!st) st = hf_expect(shape, 2, -1, err);
    if (st) return st;
    const int bits = (int)a->bits;
    int64_t nk[2], group;
    for (int i = 0; i < 2; i++) {
        int32_t v;
        memcpy(&v, (const uint8_t *)shape->raw.data + 4 * i, 4);
        nk[i] = v;
        if (shape->raw_dtype == LQ_I64) memcpy(&nk[i], (const uint8_t *)shape->raw.data + 8 * i, 8);
    }
    if (a->is_float || (bits != 2 && bits != 3 && bits != 4 && bits != 8))
        return lq_fail(err, LQ_EUNSUPPORTED,
                       "pack-quantized: expected integers of 2, 3, 4 or 8 bits, found %s of %d",
                       a->is_float ? "floats" : "integers", bits);
    if (nk[0] < 1 || nk[1] < 1 || nk[1] > INT32_MAX || packed->shape[0] != nk[0])
        return lq_fail(err, LQ_ESHAPE, "tensor '%.100s': expected the rows of '%.100s'",
                       packed->name, shape->name);
    q->N = nk[0];
    q->K = nk[1];
    ct_parts p = { .packed = packed->raw.data,
                   .scale = scale->raw.data,
                   .words = packed->shape[1],
                   .n_scales = src_elements(scale),
                   .bits = bits,
                   .scale_dtype = scale->raw_dtype };
    const int64_t stream = lq_ceil_div(q->K * bits, 32), padded = lq_ceil_div(q->K, 32 / bits);
    if (p.words != stream && p.words != padded)
        return lq_fail(err, LQ_ESHAPE, "tensor '%.100s': expected %lld words in a row, found %lld",
                       packed->name, (long long)stream, (long long)p.words);
    if (p.words != stream) p.per_word = 32 / bits;
    st = check_scale(a, scale, q->N, q->K, &group, err);
    if (st) return st;
    q->scheme.kind = QT_UINT;
    q->scheme.bits = bits;
    p.group = group;
    q->scheme.group = hf_even_group(q->K, group);
    q->scheme.scale_dtype = scale->raw_dtype;
    const int64_t ng = lq_ceil_div(q->K, group);
    if (!p.per_word && qt_row_bytes(q->K, bits) == (size_t)p.words * 4)
        q->plane[QT_CODES] = packed->raw;
    if (p.n_scales == q->N * ng && group == q->scheme.group) q->plane[QT_SCALES] = scale->raw;
    if (zeros && !a->symmetric) {
        const int64_t w = p.per_word ? lq_ceil_div(q->N, p.per_word) : lq_ceil_div(q->N * bits, 32);
        p.zeros = zeros->raw.data;
        p.zero_dtype = zeros->raw_dtype;
        q->scheme.zero = QT_ZERO_INT;
        q->scheme.zbits = bits;
        st = hf_expect(zeros, p.zero_dtype == LQ_I8 ? q->N : w, ng, err);
    }
    if (!st && g_idx) st = hf_order(h, q, g_idx, group, err);
    return st ? st : hf_make(h, module, ".weight", q, fill_packed, &p, sizeof p, err);
}

/* A byte for each weight: int8 or e4m3. */
static lq_status take_bytes(hf_quant *h, const char *module, const ct_args *a, qt_tensor *q,
                            const src_tensor *scale, lq_err *err)
{
    static const int i8[] = { LQ_I8, -1 }, f8[] = { LQ_F8_E4M3, -1 };
    const src_tensor *weight, *zeros = NULL;
    int64_t group;
    lq_status st = hf_take(h, module, ".weight", true, a->is_float ? f8 : i8, 2, &weight, err);
    if (!st) st = hf_take(h, module, ".weight_zero_point", !a->symmetric, i8, -1, &zeros, err);
    if (st) return st;
    if (a->bits != 8 && (a->is_float || a->bits != 4))
        return lq_fail(err, LQ_EVALUE, "weights: num_bits: expected 8%s in a byte each, found %lld",
                       a->is_float ? "" : " or 4", (long long)a->bits);
    q->N = weight->shape[0];
    q->K = weight->shape[1];
    ct_parts p = { .packed = weight->raw.data,
                   .scale = scale->raw.data,
                   .zeros = zeros ? zeros->raw.data : NULL,
                   .n_scales = src_elements(scale),
                   .scale_dtype = scale->raw_dtype };
    st = check_scale(a, scale, q->N, q->K, &group, err);
    if (st) return st;
    p.group = group;
    const bool zero = zeros && !a->symmetric;
    if (a->is_float) {
        q->scheme.kind = QT_E4M3;
        q->scheme.group = a->by == BY_BLOCK ? a->cols : group == q->K ? 0 : group;
        q->scheme.rows = a->by == BY_BLOCK ? a->rows : p.n_scales == 1 && q->N > 1 ? 0 : 1;
    } else if (group == q->K && a->by != BY_BLOCK) {
        q->scheme.kind = QT_I8;
    } else if (a->by == BY_BLOCK) {
        return lq_fail(err, LQ_EUNSUPPORTED, "weights: int8 in blocks of rows and inputs");
    } else {
        q->scheme.kind = QT_UINT;
        q->scheme.bits = q->scheme.zbits = 8;
        q->scheme.group = hf_even_group(q->K, group);
        q->scheme.scale_dtype = scale->raw_dtype;
    }
    if (zero && a->is_float)
        return lq_fail(err, LQ_EUNSUPPORTED, "weights: floats with zero points");
    if (zero) {
        const int64_t n = q->scheme.kind == QT_I8 ? q->N : q->N * lq_ceil_div(q->K, group);
        if (src_elements(zeros) != n)
            return lq_fail(err, LQ_ESHAPE, "tensor '%.100s': expected %lld zero points, found %lld",
                           zeros->name, (long long)n, (long long)src_elements(zeros));
        q->scheme.zero = QT_ZERO_INT;
        if (q->scheme.kind == QT_I8) q->plane[QT_ZEROS] = zeros->raw;
    }
    if (q->scheme.kind != QT_UINT) q->plane[QT_CODES] = weight->raw;
    const lq_dtype want = q->scheme.kind == QT_UINT ? scale->raw_dtype : LQ_F32;
    const size_t scales = qt_plane_bytes(&q->scheme, QT_PORTABLE, q->N, q->K, QT_SCALES);
    if (scale->raw_dtype == want && scale->raw.bytes == scales) q->plane[QT_SCALES] = scale->raw;
    return hf_make(h, module, ".weight", q, fill_bytes, &p, sizeof p, err);
}

/* ---- one weight ---- */

/* What a scheme of weights must be in the first place. */
static lq_status check_weights(const hf_quant *h, const ct_group *g, ct_kind kind,
                               const char *module, lq_err *err)
{
    const src_tensor *plain = hf_stored(h, module, ".weight");
    const bool fp4 = kind == CT_FP4;
    const int64_t group = strncmp(g->format, "nv", 2) == 0 ? 16 : 32;
    if (g->weights.by == BY_TOKEN)
        return lq_fail(err, LQ_EVALUE,
                       "weights: strategy: expected one of weights, found \"token\"");
    if (plain && lq_dtype_is_float(plain->raw_dtype))
        return lq_fail(err, LQ_EUNSUPPORTED,
                       "tensor '%.100s': expected codes, found %s: rounded while running, not "
                       "compressed (save_pretrained with save_compressed=True)",
                       plain->name, lq_dtype_text(plain->raw_dtype));
    if (fp4 && (!g->weights.is_float || g->weights.bits != 4 || g->weights.group != group))
        return lq_fail(err, LQ_EVALUE,
                       "weights: expected floats of 4 bits in groups of %lld, found %s of %lld "
                       "bits in groups of %lld",
                       (long long)group, g->weights.is_float ? "floats" : "integers",
                       (long long)g->weights.bits, (long long)g->weights.group);
    return LQ_OK;
}

static lq_status hf_ct_make_one(hf_quant *h, const char *module, lq_err *err)
{
    static const int scales[] = { LQ_F32, LQ_F16, LQ_BF16, LQ_F8_E8M0, LQ_U8, -1 };
    const src_tensor *scale;
    ct_group g;
    ct_kind kind = CT_PACKED;
    qt_tensor q = { .N = 0 };
    lq_status st = group_of(&g, h, module, err);
    if (!st) st = kind_of(&kind, g.format, err);
    if (!st) st = check_weights(h, &g, kind, module, err);
    if (st) return st;
    h->fp4_inputs = kind == CT_FP4 && g.inputs.there;
    if (kind == CT_FP4) return hf_fp4_make(h, module, err);
    st = hf_take(h, module, ".weight_scale", true, scales, -1, &scale, err);
    if (!st && g.inputs.there && (kind == CT_MXFP8 || g.inputs.by == BY_TENSOR_GROUP)) {
        g.inputs.there = false;
        st = hf_note_weight_only(h, g.inputs.bits == 4 ? "NVFP4" : "MXFP8", err);
    }
    if (!st) st = take_inputs(&q.scheme, h, &g.inputs, module, err);
    if (!st && !lq_dtype_is_float(scale->raw_dtype) && (kind == CT_PACKED || !g.weights.is_float))
        st = lq_fail(err, LQ_EFORMAT, "tensor '%.100s': %s does not fit the format %.40s",
                     scale->name, lq_dtype_text(scale->raw_dtype), g.format);
    if (st) return st;
    return kind == CT_PACKED ? take_packed(h, module, &g.weights, &q, scale, err)
                             : take_bytes(h, module, &g.weights, &q, scale, err);
}

lq_status hf_ct_read(hf_quant *h, lq_err *err)
{
    lq_status st = check_config(h, err);
    for (size_t i = 0; i < h->s->n_tensors && !st; i++) {
        const char *module = hf_module(h, i, ".weight_scale");
        if (!module) continue;
        st = hf_ct_make_one(h, module, err);
        if (st) lq_wrap(err, st, "'%.100s'", module);
    }
    return st;
}
