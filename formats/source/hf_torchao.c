/* formats/source/hf_torchao.c - quant_method "torchao" in safetensors (torchao's safetensors_support). A weight MODULE.weight
 * is several tensors MODULE._weight_PART; the file's metadata says of it, as JSON, which class it was and that one's
 * attributes:
 *
 *   Int8Tensor                qdata I8 [N,K], scale of blocks [1,K] (an output), [N,K] (all) or [1,G], zero_point I8
 *   IntxUnpackedToInt8Tensor  the same of codes of 1 to 8 bits (target_dtype), one a byte
 *   Float8Tensor              qdata F8_E4M3 [N,K], scale of blocks [R,C]
 *   Int4Tensor                qdata two codes a byte, the even one low, in two's complement [N,K/2]; scale and
 *                             zero_point [K/G,N] of the same float type: code * scale + zero_point
 *   Int4TilePackedTo4dTensor  qdata I32 [N/8,K/128,32,4], the order of an m16n8k16 product's registers; scale_and_zero
 *                             [K/G,N,2]: (code - 8) * scale + zero; N is padded to 8, K to 1,024
 *
 * Inputs that are rounded while it runs are rounded here too where they are symmetric, by token. Sources: torchao 0.18
 * (quantization/quantize_/workflows), PyTorch's int4mm.cu. */
#include "formats/source/hf_quant.h"

#include <stdio.h>

typedef struct {
    const char *module;
    cJSON *said; /* of the metadata; owned */
    const char *type;
    const cJSON *data;
    int64_t rows, cols; /* of a block that shares a scale */
} tao_weight;

/* ---- the metadata ---- */
static const cJSON *said_of(const hf_quant *h, const char *module)
{
    char name[512];
    snprintf(name, sizeof name, "%s.weight", module);
    for (size_t i = 0; i < h->s->n_shards; i++) {
        const cJSON *v = js_get(h->s->shards[i].metadata, name);
        if (v) return v;
    }
    return NULL;
}

/* An object { "_type", "_data" }, as torchao writes all that JSON has not. */
static lq_status typed(const char **type, const cJSON **data, const cJSON *o, lq_err *err)
{
    *data = js_get(o, "_data");
    const lq_status st = js_str(o, "_type", true, type, err);
    return st || *data ? st : lq_fail(err, LQ_EFORMAT, "_data: expected a value, found none");
}

static lq_status block_of(tao_weight *w, lq_err *err)
{
    const cJSON *b = js_get(w->data, "block_size"), *last = b ? b->child : NULL;
    if (cJSON_IsArray(b) && cJSON_GetArraySize(b) == 2 && js_whole(last, 1, INT32_MAX, &w->rows) &&
        js_whole(last->next, 1, INT32_MAX, &w->cols))
        return LQ_OK;
    return lq_fail(err, LQ_EVALUE, "block_size: expected two sizes from 1");
}

/* A zero point that is not there would be read as none. */
static lq_status parts_there(const tao_weight *w, const hf_quant *h, lq_err *err)
{
    const cJSON *name;
    cJSON_ArrayForEach(name, js_get(w->said, "_tensor_data_names"))
    {
        char part[96];
        if (!cJSON_IsString(name) ||
            snprintf(part, sizeof part, "._weight_%s", name->valuestring) >= (int)sizeof part)
            return lq_fail(err, LQ_EFORMAT, "_tensor_data_names: expected names of its tensors");
        if (!hf_stored(h, w->module, part))
            return lq_fail(err, LQ_EFORMAT, "tensor '%.100s%s' is missing", w->module, part);
    }
    return LQ_OK;
}

/* The caller frees w->said, also after an error. */
static lq_status read_said(tao_weight *w, const hf_quant *h, const char *module, lq_err *err)
{
    enum { MOST = 1 << 16 };
    *w = (tao_weight){ .module = module };
    const cJSON *text = said_of(h, module);
    if (!text)
        return lq_fail(err, LQ_EFORMAT,
                       "expected what torchao says of it in the file's metadata, found nothing");
    lq_status st = js_parse(&w->said, text->valuestring, strlen(text->valuestring), MOST, 0, err);
    if (!st) st = typed(&w->type, &w->data, w->said, err);
    if (!st) st = block_of(w, err);
    return st ? st : parts_there(w, h, err);
}

/* ---- inputs ---- */
/* What inputs are rounded to that has no rounding here; NULL: it has. */
static const char *other_rounding(const cJSON *how)
{
    static const char *const bounds[] = { "hp_value_lb", "hp_value_ub" };
    const cJSON *type = js_get(how, "float8_dtype");
    const char *name = type ? cJSON_GetStringValue(js_get(type, "_data")) : NULL;
    if (cJSON_IsTrue(js_get(how, "reduce_range"))) return "7-bit inputs";
    for (size_t i = 0; i < LQ_COUNT(bounds); i++)
        if (cJSON_IsNumber(js_get(how, bounds[i]))) return "8-bit inputs of a bounded scale";
    return type && (!name || strcmp(name, "float8_e4m3fn") != 0) ? "inputs of another 8-bit float"
                                                                 : NULL;
}

/* Symmetric ones by token, or of a fixed scale; others are not rounded. */
static lq_status read_inputs(qt_scheme *s, hf_quant *h, const tao_weight *w, qt_act act,
                             lq_err *err)
{
    const cJSON *how = js_get(w->data, "act_quant_kwargs"), *asym;
    const src_tensor *scale = NULL, *zero = NULL;
    const char *type, *mapping = "SYMMETRIC";
    static const int any[] = { LQ_I8, LQ_F32, LQ_F16, LQ_BF16, -1 };
    lq_status st =
        hf_take(h, w->module, "._weight_act_quant_scale", false, HF_FLOATS, -1, &scale, err);
    if (!st)
        st = hf_take(h, w->module, "._weight_act_quant_zero_point", false, any, -1, &zero, err);
    if (st) return st;
    if (js_get(w->data, "activation_quantization") &&
        !cJSON_IsNull(js_get(w->data, "activation_quantization")))
        return hf_note_weight_only(h, "asymmetric 8-bit inputs", err);
    if (!how || cJSON_IsNull(how)) return LQ_OK;
    st = typed(&type, &how, how, err);
    asym = st ? NULL : js_get(how, "mapping_type");
    if (asym) st = js_str(asym, "_data", true, &mapping, err);
    if (st) return lq_wrap(err, st, "act_quant_kwargs");
    if (zero || strcmp(mapping, "SYMMETRIC") != 0)
        return hf_note_weight_only(h, "asymmetric 8-bit inputs", err);
    if (other_rounding(how)) return hf_note_weight_only(h, other_rounding(how), err);
    s->act = act;
    if (scale && src_elements(scale) == 1) return hf_one_float(&s->act_scale, scale, err);
    const char *by = "";
    const cJSON *grain = js_get(how, "granularity");
    if (grain) st = js_str(grain, "_type", true, &by, err);
    if (st || strcmp(by, "PerTensor") != 0) return st;
    return src_note(h->s, err,
                    "inputs are rounded by token where the file says by tensor, so that a token's "
                    "result does not depend on others");
}

/* A scale of inputs beside the weight (AWQ's, SmoothQuant's): another model than the weight alone. */
static lq_status refuse_scaled(const hf_quant *h, const tao_weight *w, lq_err *err)
{
    if (!hf_stored(h, w->module, "._weight_act_pre_scale")) return LQ_OK;
    return lq_fail(err, LQ_EUNSUPPORTED, "act_pre_scale: inputs that are scaled first");
}

/* ---- codes ---- */
typedef struct {
    const uint8_t *codes, *scale, *zero;
    lq_dtype scale_dtype;
    int from_bits;                  /* 8: a byte each; 4: two a byte */
    int64_t padded;                 /* K of the tiles; 0: rows */
    int64_t scale_step, scale_next; /* of groups and of outputs, in numbers; 0, 0: one for all */
} tao_parts;

static unsigned code_at(const tao_parts *p, const qt_tensor *t, int64_t n, int64_t k)
{
    const unsigned half = 1u << (t->scheme.bits - 1);
    if (p->padded) {
        const int64_t inner = k % 128 / 16, lane = n % 8 * 4 + k % 8 / 2;
        const uint32_t word =
            hf_word(p->codes, ((n / 8 * (p->padded / 128) + k / 128) * 32 + lane) * 4 + inner / 2);
        /* of k % 16: 0 1 8 9 of an even 16 in nibbles 0 4 1 5, of an odd one in 2 6 3 7 */
        const int64_t at = k % 2 * 4 + k % 16 / 8 + inner % 2 * 2;
        return word >> 4 * at & 15;
    }
    if (p->from_bits == 4) return (p->codes[(n * t->K + k) / 2] >> k % 2 * 4 & 15u) ^ 8u;
    return ((unsigned)(int8_t)p->codes[n * t->K + k] + half) & (2 * half - 1);
}

static float number_at(const tao_parts *p, const uint8_t *plane, int64_t n, int64_t g)
{
    return hf_scale(plane, p->scale_dtype, (size_t)(n * p->scale_next + g * p->scale_step));
}

/* The zero of a group of integers, as a code. */
static uint8_t zero_at(const tao_parts *p, const qt_tensor *t, int64_t n, int64_t g)
{
    const int8_t z = (int8_t)p->zero[n * p->scale_next + g * p->scale_step];
    return (uint8_t)(z + (1 << (t->scheme.bits - 1)));
}

enum { PIECE = 256 };

static void fill_codes(uint8_t *row, const tao_parts *p, const qt_tensor *t, int64_t n)
{
    uint8_t box[PIECE];
    for (int64_t k = 0; k < t->K; k += PIECE) {
        const int64_t some = t->K - k < PIECE ? t->K - k : PIECE;
        for (int64_t i = 0; i < some; i++)
            box[i] = (uint8_t)code_at(p, t, n, k + i);
        qt_pack_row(row + k / 8 * t->scheme.bits, box, some, t->scheme.bits);
    }
}

static void fill_zeros(uint8_t *row, const tao_parts *p, const qt_tensor *t, int64_t n, int64_t ng)
{
    uint8_t box[PIECE];
    for (int64_t g = 0; g < ng; g += PIECE) {
        const int64_t some = ng - g < PIECE ? ng - g : PIECE;
        for (int64_t i = 0; i < some; i++)
            box[i] = zero_at(p, t, n, g + i);
        qt_pack_row(row + g / 8 * t->scheme.zbits, box, some, t->scheme.zbits);
    }
}

static void hf_torchao_fill(void *const w[QT_N_PLANES], const qt_tensor *t, const void *from)
{
    const tao_parts *p = from;
    const qt_scheme *s = &t->scheme;
    const int64_t ng = t->K / s->group;
    const size_t e = lq_dtype_bytes(s->scale_dtype);
    uint8_t *scales = w[QT_SCALES], *zeros = w[QT_ZEROS];
    for (int64_t n = 0; n < t->N; n++) {
        fill_codes((uint8_t *)w[QT_CODES] + (size_t)n * qt_row_bytes(t->K, s->bits), p, t, n);
        for (int64_t g = 0; g < ng; g++) {
            const size_t at = (size_t)(n * ng + g) * e;
            const float scale = number_at(p, p->scale, n, g);
            lq_from_f32(scales + at, &scale, s->scale_dtype, 1);
            if (s->zero != QT_ZERO_BIAS) continue;
            const float bias = number_at(p, p->zero, n, g) - (float)(1 << (s->bits - 1)) * scale;
            lq_from_f32(zeros + at, &bias, s->scale_dtype, 1);
        }
        if (s->zero == QT_ZERO_INT)
            fill_zeros(zeros + (size_t)n * qt_row_bytes(ng, s->zbits), p, t, n, ng);
    }
}

/* Of planes that are not views: an output's scales and zeros, or a block's. */
static void fill_few(void *const w[QT_N_PLANES], const qt_tensor *t, const void *from)
{
    const tao_parts *p = from;
    float *scales = w[QT_SCALES];
    int8_t *zeros = w[QT_ZEROS];
    for (size_t i = 0; scales && i < t->plane[QT_SCALES].bytes / sizeof *scales; i++)
        scales[i] = hf_scale(p->scale, p->scale_dtype, p->scale_next ? i : 0);
    for (size_t i = 0; zeros && i < t->plane[QT_ZEROS].bytes; i++)
        zeros[i] = (int8_t)p->zero[p->scale_next ? i : 0];
}

/* ---- the classes ---- */
/* Does any group have another zero than 0, and which are the ends? LQ_EVALUE: no code says them. */
static lq_status look_at_zeros(qt_scheme *s, const src_tensor *zero, lq_err *err)
{
    const int half = 1 << (s->bits - 1);
    const int8_t *z = zero->raw.data;
    for (size_t i = 0; i < zero->raw.bytes; i++) {
        if (!z[i]) continue;
        s->zero = QT_ZERO_INT;
        if (s->zbits < s->bits) s->zbits = s->bits;
        if (z[i] + half > 2 * half - 1) s->zbits = 8;
        if (z[i] + half < 0 || z[i] + half > 255)
            return lq_fail(err, LQ_EVALUE, "tensor '%.100s': expected a code as the zero, found %d",
                           zero->name, z[i]);
    }
    return LQ_OK;
}

/* Bits of a code here, of which there are fewer kinds. */
static lq_status bits_of(int *bits, const tao_weight *w, lq_err *err)
{
    static const int here[] = { 2, 3, 4, 8 };
    const cJSON *target = js_get(w->data, "target_dtype");
    const char *name = "int8";
    lq_status st = target ? js_str(target, "_data", true, &name, err) : LQ_OK;
    if (st) return lq_wrap(err, st, "target_dtype");
    const int said = strncmp(name, "int", 3) == 0 && name[3] >= '1' && name[3] <= '8' && !name[4]
                         ? name[3] - '0'
                         : 0;
    if (!said)
        return lq_fail(err, LQ_EUNSUPPORTED, "target_dtype: expected int1 to int8, found \"%.40s\"",
                       name);
    size_t i = 0;
    while (here[i] < said)
        i++;
    *bits = here[i];
    return LQ_OK;
}

static lq_status make_bytes(hf_quant *h, const tao_weight *w, lq_err *err)
{
    static const int i8[] = { LQ_I8, -1 };
    const src_tensor *codes, *scale, *zero = NULL;
    int bits = 8;
    qt_tensor q = { .N = 0 };
    lq_status st = hf_take(h, w->module, "._weight_qdata", true, i8, 2, &codes, err);
    if (!st) st = hf_take(h, w->module, "._weight_scale", true, HF_FLOATS, -1, &scale, err);
    if (!st) st = hf_take(h, w->module, "._weight_zero_point", false, i8, -1, &zero, err);
    if (!st) st = read_inputs(&q.scheme, h, w, QT_ACT_I8, err);
    if (!st) st = bits_of(&bits, w, err);
    if (st) return st;
    q.N = codes->shape[0];
    q.K = codes->shape[1];
    const bool all = w->rows == q.N && w->cols == q.K, by_row = w->rows == 1 && w->cols == q.K;
    const int64_t ng = all ? 1 : lq_ceil_div(q.K, w->cols), n = all ? 1 : q.N * ng;
    if ((!all && w->rows != 1) || q.K % w->cols)
        return lq_fail(err, LQ_EUNSUPPORTED, "block_size: [%lld,%lld] of [%lld,%lld]",
                       (long long)w->rows, (long long)w->cols, (long long)q.N, (long long)q.K);
    if (src_elements(scale) != n || (zero && src_elements(zero) != n))
        return lq_fail(err, LQ_ESHAPE, "tensor '%.100s': expected %lld numbers, found %lld",
                       scale->name, (long long)n, (long long)src_elements(scale));
    q.scheme.bits = bits;
    st = zero ? look_at_zeros(&q.scheme, zero, err) : LQ_OK;
    if (st) return st;
    const tao_parts p = { .codes = codes->raw.data,
                          .scale = scale->raw.data,
                          .zero = zero ? zero->raw.data : NULL,
                          .scale_dtype = scale->raw_dtype,
                          .from_bits = 8,
                          .scale_step = all ? 0 : 1,
                          .scale_next = all ? 0 : ng };
    q.scheme.kind = bits == 8 && (all || by_row) ? QT_I8 : QT_UINT;
    if (q.scheme.kind == QT_I8) {
        q.scheme.bits = q.scheme.zbits = 0;
        q.plane[QT_CODES] = codes->raw;
        if (!all) hf_view_f32(&q, QT_SCALES, scale);
        if (!all && q.scheme.zero == QT_ZERO_INT) q.plane[QT_ZEROS] = zero->raw;
        return hf_make(h, w->module, ".weight", &q, fill_few, &p, sizeof p, err);
    }
    q.scheme.group = w->cols;
    q.scheme.scale_dtype = scale->raw_dtype;
    return hf_make(h, w->module, ".weight", &q, hf_torchao_fill, &p, sizeof p, err);
}

static lq_status make_fp8(hf_quant *h, const tao_weight *w, lq_err *err)
{
    static const int f8[] = { LQ_F8_E4M3, -1 };
    const src_tensor *codes, *scale;
    qt_tensor q = { .scheme = { .kind = QT_E4M3 } };
    lq_status st = hf_take(h, w->module, "._weight_qdata", true, f8, 2, &codes, err);
    if (!st) st = hf_take(h, w->module, "._weight_scale", true, HF_FLOATS, -1, &scale, err);
    if (!st) st = read_inputs(&q.scheme, h, w, QT_ACT_F8, err);
    if (st) return st;
    q.N = codes->shape[0];
    q.K = codes->shape[1];
    q.scheme.rows = w->rows >= q.N && q.N > 1 ? 0 : w->rows;
    q.scheme.group = w->cols >= q.K ? 0 : w->cols;
    if (q.scheme.group) q.scheme.act_group = q.scheme.act ? q.scheme.group : 0;
    const int64_t n = lq_ceil_div(q.N, w->rows) * lq_ceil_div(q.K, w->cols);
    if (src_elements(scale) != n)
        return lq_fail(err, LQ_ESHAPE, "tensor '%.100s': expected %lld numbers, found %lld",
                       scale->name, (long long)n, (long long)src_elements(scale));
    q.plane[QT_CODES] = codes->raw;
    hf_view_f32(&q, QT_SCALES, scale);
    const tao_parts p = { .scale = scale->raw.data,
                          .scale_dtype = scale->raw_dtype,
                          .scale_next = 1 };
    return hf_make(h, w->module, ".weight", &q, fill_few, &p, sizeof p, err);
}

/* The weight's own shape, which tiles are padded from. */
static lq_status shape_of(qt_tensor *q, const tao_weight *w, lq_err *err)
{
    const cJSON *shape = js_get(w->data, "shape"), *d = shape ? shape->child : NULL;
    if (!cJSON_IsArray(shape) || cJSON_GetArraySize(shape) != 2 ||
        !js_whole(d, 1, INT32_MAX, &q->N) || !js_whole(d->next, 1, INT32_MAX, &q->K))
        return lq_fail(err, LQ_EFORMAT, "shape: expected two sizes");
    if (w->rows == 1 && w->cols <= q->K && q->K % w->cols == 0) return LQ_OK;
    return lq_fail(err, LQ_EUNSUPPORTED, "block_size: [%lld,%lld] of [%lld,%lld]",
                   (long long)w->rows, (long long)w->cols, (long long)q->N, (long long)q->K);
}

/* Four bits with a zero that is a number: code * scale + bias. */
static qt_scheme with_bias(int64_t group)
{
    return (qt_scheme){
        .kind = QT_UINT, .bits = 4, .group = group, .zero = QT_ZERO_BIAS, .scale_dtype = LQ_F32
    };
}

static lq_status make_int4(hf_quant *h, const tao_weight *w, lq_err *err)
{
    static const int bytes[] = { LQ_I8, LQ_U8, -1 };
    const src_tensor *codes, *scale, *zero;
    const cJSON *act = js_get(w->data, "activation_dtype");
    const char *type = "bfloat16";
    qt_tensor q = { .scheme = with_bias(w->cols) };
    lq_status st = shape_of(&q, w, err);
    if (!st) st = hf_take(h, w->module, "._weight_qdata", true, bytes, 2, &codes, err);
    if (!st) st = hf_take(h, w->module, "._weight_scale", true, HF_FLOATS, 2, &scale, err);
    if (!st) st = hf_take(h, w->module, "._weight_zero_point", true, HF_FLOATS, 2, &zero, err);
    if (!st) st = hf_expect(codes, q.N, lq_ceil_div(q.K, 2), err);
    if (!st) st = hf_expect(scale, q.K / w->cols, q.N, err);
    if (!st) st = hf_expect(zero, q.K / w->cols, q.N, err);
    if (!st && act) st = js_str(act, "_data", true, &type, err);
    if (st) return st;
    if (q.K % 2 || zero->raw_dtype != scale->raw_dtype)
        return lq_fail(err, LQ_EUNSUPPORTED, "tensor '%.100s': expected an even K, and one type",
                       zero->name);
    if (strncmp(type, "float8", 6) == 0) q.scheme.act = QT_ACT_F8;
    const tao_parts p = { .codes = codes->raw.data,
                          .scale = scale->raw.data,
                          .zero = zero->raw.data,
                          .scale_dtype = scale->raw_dtype,
                          .from_bits = 4,
                          .scale_step = q.N,
                          .scale_next = 1 };
    return hf_make(h, w->module, ".weight", &q, hf_torchao_fill, &p, sizeof p, err);
}

static lq_status make_tiles(hf_quant *h, const tao_weight *w, lq_err *err)
{
    static const int i32[] = { LQ_I32, -1 };
    const src_tensor *codes, *scale;
    qt_tensor q = { .scheme = with_bias(w->cols) };
    lq_status st = shape_of(&q, w, err);
    if (!st) st = hf_take(h, w->module, "._weight_qdata", true, i32, 4, &codes, err);
    if (!st) st = hf_take(h, w->module, "._weight_scale_and_zero", true, HF_FLOATS, 3, &scale, err);
    if (st) return st;
    const int64_t N = codes->shape[0] * 8, K = codes->shape[1] * 128;
    if (codes->shape[2] != 32 || codes->shape[3] != 4 || N < q.N || K < q.K)
        return lq_fail(err, LQ_ESHAPE, "tensor '%.100s': expected tiles of [%lld,%lld]",
                       codes->name, (long long)q.N, (long long)q.K);
    if (scale->shape[0] != K / w->cols || scale->shape[1] != N || scale->shape[2] != 2)
        return lq_fail(err, LQ_ESHAPE, "tensor '%.100s': expected [%lld,%lld,2]", scale->name,
                       (long long)(K / w->cols), (long long)N);
    const tao_parts p = { .codes = codes->raw.data,
                          .scale = scale->raw.data,
                          .zero =
                              (const uint8_t *)scale->raw.data + lq_dtype_bytes(scale->raw_dtype),
                          .scale_dtype = scale->raw_dtype,
                          .padded = K,
                          .scale_step = 2 * N,
                          .scale_next = 2 };
    return hf_make(h, w->module, ".weight", &q, hf_torchao_fill, &p, sizeof p, err);
}

static lq_status make_one(hf_quant *h, const char *module, lq_err *err)
{
    static const struct {
        const char *type;
        lq_status (*make)(hf_quant *h, const tao_weight *w, lq_err *err);
    } classes[] = { { "Int8Tensor", make_bytes },
                    { "IntxUnpackedToInt8Tensor", make_bytes },
                    { "Float8Tensor", make_fp8 },
                    { "Int4Tensor", make_int4 },
                    { "Int4TilePackedTo4dTensor", make_tiles } };
    tao_weight w;
    size_t i = 0;
    lq_status st = read_said(&w, h, module, err);
    if (!st) st = refuse_scaled(h, &w, err);
    while (!st && i < LQ_COUNT(classes) && strcmp(classes[i].type, w.type) != 0)
        i++;
    if (!st && i < LQ_COUNT(classes))
        st = classes[i].make(h, &w, err);
    else if (!st)
        st = lq_fail(err, LQ_EUNSUPPORTED, "a weight of class \"%.60s\" is not read", w.type);
    cJSON_Delete(w.said);
    return st ? lq_wrap(err, st, "'%.100s'", module) : LQ_OK;
}

lq_status hf_torchao_read(hf_quant *h, lq_err *err)
{
    lq_status st = LQ_OK;
    for (size_t i = 0; i < h->s->n_tensors && !st; i++) {
        const char *module = hf_module(h, i, "._weight_qdata");
        if (module) st = make_one(h, module, err);
    }
    return st;
}
