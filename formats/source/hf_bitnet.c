/* formats/source/hf_bitnet.c - quant_method "bitnet" (b1.58, arXiv:2402.17764; transformers' integrations/bitnet.py).
 * Per linear
 *
 *   offline  weight U8 [N/4,K]: output i * N/4 + n is in bits 2i of row n, weight + 1; weight_scale [1], which
 *            multiplies ("autobitlinear") or divides ("bitlinear", the default)
 *   online   weight in floats: rounded to -1, 0 or 1 times the mean of its magnitudes
 *
 * Made into QT_UINT with the zero 1. Its own code rounds inputs to 8 bits too, by 127 / absmax. */
#include "formats/source/hf_quant.h"

#include "formats/tensor/qtensor.h"

#include <math.h>
#include <stdio.h>

typedef struct {
    const uint8_t *packed; /* [N/4, K], or NULL: */
    const uint8_t *floats; /* [N, K] of dtype */
    lq_dtype dtype;
    float scale;
} bitnet_parts;

static void put_code(uint8_t *row, int64_t k, unsigned code)
{
    row[k / 4] = (uint8_t)(row[k / 4] | code << (k % 4 * 2));
}

/* The mean of the magnitudes, in the order of the matrix. */
static float mean_of(const bitnet_parts *p, int64_t n)
{
    double sum = 0;
    const size_t size = lq_dtype_bytes(p->dtype);
    for (int64_t i = 0; i < n; i++) {
        float x;
        lq_to_f32(&x, p->floats + (size_t)i * size, p->dtype, 1);
        sum += fabs((double)x);
    }
    const double mean = sum / (double)n;
    return (float)(mean > 1e-5 ? mean : 1e-5);
}

static unsigned code_of(const bitnet_parts *p, const qt_tensor *t, int64_t n, int64_t k,
                        float scale)
{
    if (p->packed) {
        const int64_t quarter = t->N / 4;
        return p->packed[n % quarter * t->K + k] >> (n / quarter * 2) & 3;
    }
    float x;
    lq_to_f32(&x, p->floats + (size_t)(n * t->K + k) * lq_dtype_bytes(p->dtype), p->dtype, 1);
    x = rintf(x / scale);
    return x > 0 ? 2 : x < 0 ? 0 : 1;
}

static void hf_bitnet_fill(void *const w[QT_N_PLANES], const qt_tensor *t, const void *from)
{
    const bitnet_parts *p = from;
    const size_t bytes = qt_row_bytes(t->K, 2);
    const float scale = p->packed ? p->scale : mean_of(p, t->N * t->K);
    memset(w[QT_CODES], 0, (size_t)t->N * bytes);
    memset(w[QT_ZEROS], 1, (size_t)t->N);
    for (int64_t n = 0; n < t->N; n++) {
        uint8_t *row = (uint8_t *)w[QT_CODES] + (size_t)n * bytes;
        memcpy((uint8_t *)w[QT_SCALES] + (size_t)n * sizeof scale, &scale, sizeof scale);
        for (int64_t k = 0; k < t->K; k++)
            put_code(row, k, code_of(p, t, n, k, scale));
    }
}

static lq_status bitnet_make(hf_quant *h, const char *module, const bitnet_parts *p, int64_t N,
                             int64_t K, lq_err *err)
{
    const qt_tensor q = { .scheme = { .kind = QT_UINT,
                                      .bits = 2,
                                      .group = K,
                                      .zero = QT_ZERO_INT,
                                      .zbits = 2,
                                      .scale_dtype = LQ_F32 },
                          .N = N,
                          .K = K };
    return hf_make(h, module, ".weight", &q, hf_bitnet_fill, p, sizeof *p, err);
}

static lq_status make_packed(hf_quant *h, const char *module, bool divides, lq_err *err)
{
    static const int U8[] = { LQ_U8, -1 };
    const src_tensor *weight, *scale;
    lq_status st = hf_take(h, module, ".weight", true, U8, 2, &weight, err);
    if (!st) st = hf_take(h, module, ".weight_scale", true, HF_FLOATS, -1, &scale, err);
    if (st) return st;
    if (scale->raw.bytes != lq_dtype_bytes(scale->raw_dtype))
        return lq_fail(err, LQ_ESHAPE, "tensor '%.100s': expected one number", scale->name);
    bitnet_parts p = { .packed = weight->raw.data,
                       .scale = hf_scale(scale->raw.data, scale->raw_dtype, 0) };
    if (divides) p.scale = 1 / p.scale;
    return bitnet_make(h, module, &p, 4 * weight->shape[0], weight->shape[1], err);
}

/* A weight of a linear in floats; not taken: another. */
static lq_status make_online(hf_quant *h, const char *module, lq_err *err)
{
    const src_tensor *weight;
    arch_slot slot;
    char name[512];
    snprintf(name, sizeof name, "%s.weight", module);
    if (!h->s->has_config || !arch_slot_of(&h->s->config, name, &slot) || slot.role == R_HEAD ||
        !arch_role_linear(slot.role))
        return LQ_OK;
    lq_status st = hf_take(h, module, ".weight", true, HF_FLOATS, 2, &weight, err);
    if (st) return st;
    const bitnet_parts p = { .floats = weight->raw.data, .dtype = weight->raw_dtype };
    return bitnet_make(h, module, &p, weight->shape[0], weight->shape[1], err);
}

lq_status hf_bitnet_read(hf_quant *h, lq_err *err)
{
    const char *linear = "bitlinear", *mode = "offline";
    bool norm = false;
    lq_status st = js_str(h->q, "linear_class", false, &linear, err);
    if (!st) st = js_str(h->q, "quantization_mode", false, &mode, err);
    if (!st) st = js_bool(h->q, "use_rms_norm", false, &norm, err);
    const bool autobit = !st && strcmp(linear, "autobitlinear") == 0;
    const bool online = !st && autobit && strcmp(mode, "online") == 0;
    if (!st && !autobit && strcmp(linear, "bitlinear") != 0)
        st = lq_fail(err, LQ_EUNSUPPORTED,
                     "linear_class: expected bitlinear or autobitlinear, found \"%.40s\"", linear);
    if (!st && norm) st = lq_fail(err, LQ_EUNSUPPORTED, "use_rms_norm: expected false");
    if (st) return lq_wrap(err, st, "quantization_config");
    for (size_t i = 0; i < h->s->n_tensors && !st; i++) {
        const char *module = hf_module(h, i, online ? ".weight" : ".weight_scale");
        if (!module) continue;
        st = online ? make_online(h, module, err) : make_packed(h, module, !autobit, err);
    }
    if (!st && h->n_made)
        st = src_note(h->s, err,
                      "bitnet: inputs of its linears, which its own code rounds to 8 bits by "
                      "127 / their largest, are rounded as --activations says");
    return st;
}
