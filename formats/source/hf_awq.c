/* formats/source/hf_awq.c - AutoAWQ: 4 bits, zero points stored as they are.
 *
 *   gemm   qweight I32 [K, N/8], qzeros I32 [ng, N/8], scales f16 [ng, N]: nibble i of a word is
 *          output 8c + AWQ_ORDER[i]
 *   gemv   qweight I32 [N, K/8] and qzeros I32 [N, zw] in natural order, scales f16 [N, 8*zw]:
 *          groups along the row, beyond ng padding */
#include "formats/hf/awq_words.h"
#include "formats/source/hf_quant.h"

typedef struct {
    const uint8_t *qweight, *qzeros, *scales;
    int64_t zero_words; /* gemv: words of a row of zero points */
    int64_t group;      /* inputs that share a stored scale; the last may have fewer */
} awq_parts;

static void put_nibble(uint8_t *row, int64_t i, unsigned v)
{
    row[i / 2] |= (uint8_t)(v << (i & 1 ? 4 : 0));
}

static int64_t awq_group(const qt_tensor *t, const awq_parts *p, int64_t g)
{
    return hf_group_at(g, t->scheme.group, p->group);
}

/* Zero points, of groups that may be parts of stored ones. */
static void fill_gemm_zeros(uint8_t *zeros, const qt_tensor *t, const awq_parts *p)
{
    const int64_t ng = t->K / t->scheme.group;
    if (p->group == t->scheme.group) {
        awq_unpack(zeros, qt_row_bytes(ng, 4), p->qzeros, ng, t->N);
        return;
    }
    for (int64_t n = 0; n < t->N; n++)
        for (int64_t g = 0; g < ng; g++) {
            const uint32_t word = hf_word(p->qzeros, awq_group(t, p, g) * (t->N / 8) + n / 8);
            int i = 0;
            while (AWQ_ORDER[i] != n % 8)
                i++;
            put_nibble(zeros + (size_t)n * qt_row_bytes(ng, 4), g, word >> 4 * i & 15);
        }
}

static void fill_gemm(void *const w[QT_N_PLANES], const qt_tensor *t, const void *from)
{
    const awq_parts *p = from;
    const int64_t ng = t->K / t->scheme.group;
    const size_t e = lq_dtype_bytes(t->scheme.scale_dtype);
    awq_unpack(w[QT_CODES], qt_row_bytes(t->K, 4), p->qweight, t->K, t->N);
    if (w[QT_ZEROS]) fill_gemm_zeros(w[QT_ZEROS], t, p);
    for (int64_t n = 0; n < t->N; n++)
        for (int64_t g = 0; g < ng; g++)
            memcpy((uint8_t *)w[QT_SCALES] + (size_t)(n * ng + g) * e,
                   p->scales + (size_t)(awq_group(t, p, g) * t->N + n) * e, e);
}

static void fill_gemv(void *const w[QT_N_PLANES], const qt_tensor *t, const void *from)
{
    const awq_parts *p = from;
    const int64_t ng = t->K / t->scheme.group;
    const size_t e = lq_dtype_bytes(t->scheme.scale_dtype);
    for (int64_t n = 0; n < t->N; n++) {
        for (int64_t g = 0; g < ng; g++)
            memcpy((uint8_t *)w[QT_SCALES] + (size_t)(n * ng + g) * e,
                   p->scales + (size_t)(n * 8 * p->zero_words + awq_group(t, p, g)) * e, e);
        for (int64_t g = 0; g < ng && w[QT_ZEROS]; g++)
            put_nibble((uint8_t *)w[QT_ZEROS] + (size_t)n * qt_row_bytes(ng, 4), g,
                       qt_get(p->qzeros + 4 * n * p->zero_words, awq_group(t, p, g), 4));
    }
}

typedef struct {
    int64_t group; /* -1: one */
    bool gemv, zero_point;
} awq_config;

static lq_status read_config(awq_config *c, const cJSON *q, lq_err *err)
{
    const char *version = "gemm", *backend = "autoawq";
    int64_t bits = 4;
    *c = (awq_config){ .group = 128, .zero_point = true };
    lq_status st = js_i64(q, "w_bit", false, 1, 32, &bits, err);
    if (!st) st = js_i64(q, "bits", false, 1, 32, &bits, err);
    if (!st) st = hf_group_size(q, "q_group_size", &c->group, err);
    if (!st) st = hf_group_size(q, "group_size", &c->group, err);
    if (!st) st = js_bool(q, "zero_point", false, &c->zero_point, err);
    if (!st) st = js_str(q, "version", false, &version, err);
    if (!st) st = js_str(q, "backend", false, &backend, err);
    if (st) return lq_wrap(err, st, "quantization_config");
    c->gemv = strcmp(version, "gemv") == 0 || strcmp(version, "GEMV") == 0;
    if (!c->gemv && strcmp(version, "gemm") != 0 && strcmp(version, "GEMM") != 0)
        return lq_fail(err, LQ_EUNSUPPORTED, "version: expected gemm or gemv, found \"%.40s\"",
                       version);
    if (strcmp(backend, "llm-awq") == 0)
        return lq_fail(err, LQ_EUNSUPPORTED, "backend: expected autoawq, found \"llm-awq\"");
    if (bits != 4)
        return lq_fail(err, LQ_EUNSUPPORTED, "bits: expected 4, found %lld", (long long)bits);
    return LQ_OK;
}

/* Of one module: extra_config is AutoRound's. */
static lq_status group_of(int64_t *group, const hf_quant *h, const awq_config *c,
                          const char *module, lq_err *err)
{
    const cJSON *extra;
    int64_t bits = 4;
    *group = c->group;
    lq_status st = hf_extra(&extra, h, module, err);
    if (st || !extra) return st;
    st = js_i64(extra, "bits", false, 1, 32, &bits, err);
    if (!st) st = hf_group_size(extra, "group_size", group, err);
    if (st) return lq_wrap(err, st, "quantization_config: extra_config: %.80s", module);
    if (bits == 4) return LQ_OK;
    return lq_fail(err, LQ_EUNSUPPORTED, "'%.100s': bits: expected 4 in awq's words, found %lld",
                   module, (long long)bits);
}

static bool all_are_8(const src_tensor *qzeros)
{
    const uint8_t *b = qzeros->raw.data;
    size_t i = 0;
    while (i < qzeros->raw.bytes && b[i] == 0x88)
        i++;
    return i == qzeros->raw.bytes;
}

static lq_status hf_awq_make_one(hf_quant *h, const awq_config *c, const char *module, lq_err *err)
{
    static const int words[] = { LQ_I32, LQ_U32, -1 };
    const src_tensor *qweight, *qzeros = NULL, *scales;
    int64_t group;
    lq_status st = hf_take(h, module, ".qweight", true, words, 2, &qweight, err);
    if (!st) st = hf_take(h, module, ".qzeros", c->zero_point, words, 2, &qzeros, err);
    if (!st) st = hf_take(h, module, ".scales", true, HF_FLOATS, 2, &scales, err);
    if (st) return st;
    const int64_t N = qweight->shape[0 + !c->gemv] * (c->gemv ? 1 : 8);
    const int64_t K = qweight->shape[c->gemv] * (c->gemv ? 8 : 1);
    st = group_of(&group, h, c, module, err);
    if (st) return st;
    group = group > 0 && group < K ? group : K;
    const int64_t ng = lq_ceil_div(K, group);
    awq_parts p = { .qweight = qweight->raw.data, .scales = scales->raw.data, .group = group };
    qt_tensor q = { .N = N, .K = K };
    q.scheme = (qt_scheme){ .kind = QT_UINT,
                            .bits = 4,
                            .group = hf_even_group(K, group),
                            .scale_dtype = scales->raw_dtype };
    p.zero_words = c->gemv ? scales->shape[1] / 8 : 0;
    st = hf_expect(scales, c->gemv ? N : ng, c->gemv ? 8 * p.zero_words : N, err);
    if (!st && c->gemv && 8 * p.zero_words < ng)
        st = lq_fail(err, LQ_ESHAPE, "tensor '%.100s': expected %lld groups, found %lld",
                     scales->name, (long long)ng, (long long)(8 * p.zero_words));
    if (!st && qzeros && (c->zero_point || !all_are_8(qzeros))) { /* kernels go by what is stored */
        st = hf_expect(qzeros, c->gemv ? N : ng, c->gemv ? p.zero_words : N / 8, err);
        p.qzeros = qzeros->raw.data;
        q.scheme.zero = QT_ZERO_INT;
        q.scheme.zbits = 4;
    }
    if (st) return st;
    if (c->gemv) q.plane[QT_CODES] = qweight->raw;
    return hf_make(h, module, ".weight", &q, c->gemv ? fill_gemv : fill_gemm, &p, sizeof p, err);
}

lq_status hf_awq_read(hf_quant *h, lq_err *err)
{
    awq_config c;
    lq_status st = read_config(&c, h->q, err);
    for (size_t i = 0; i < h->s->n_tensors && !st; i++) {
        const char *module = hf_module(h, i, ".qweight");
        if (module) st = hf_awq_make_one(h, &c, module, err);
    }
    return st;
}
