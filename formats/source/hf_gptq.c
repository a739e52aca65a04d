/* formats/source/hf_gptq.c - AutoGPTQ, GPTQModel, optimum: per linear, I32 words along K or N,
 *
 *   qweight [K*b/32, N]   column n is one stream of the codes of output n
 *   qzeros  [ng, N*b/32]  row g is one stream of zero points less one (v1), or themselves (v2)
 *   scales  [ng, N]       float
 *   g_idx   [K]           group of each input; may be absent: k / group
 *
 * ng = ceil(K / group): a last group that is shorter becomes parts (hf_even_group). extra_config is
 * AutoRound's: bits and groups by module.
 *
 * "gptq_p" stores 32 codes as bit planes instead of one stream. Zero points that contradict the
 * label of a symmetric file are read by what they are (formats known to write it: GPTQModel 5). */
#include "formats/source/hf_quant.h"

typedef struct {
    const uint8_t *qweight, *qzeros, *scales;
    int bits;
    bool planar;
    int add;       /* to a stored zero point */
    int64_t group; /* inputs that share a stored scale; the last may have fewer */
} gptq_parts;

typedef struct {
    int64_t bits, group; /* bits 0: as is stored; group -1: one for all inputs */
    bool sym, desc_act;
    bool skip; /* a module that is not quantized */
} gptq_rule;

/* Code i of a stream of planes: widths 4, 2, 1 from the lowest bits up, each 32 codes. */
static unsigned planar_code(const uint8_t *words, int64_t i, int bits)
{
    const uint8_t *block = words + i / 32 * 4 * bits;
    unsigned code = 0;
    for (int have = 0, left = bits; left;) {
        int width = left >= 4 ? (left >= 8 ? 8 : 4) : left >= 2 ? 2 : 1;
        code |= (unsigned)qt_get(block + 4 * have, i % 32, width) << have;
        have += width;
        left -= width;
    }
    return code;
}

/* A stream is a column here: row r of it is word r * N + n. Stored bits of 5..7 become codes of 8.
 */
static unsigned field(const gptq_parts *p, const uint8_t *words, int64_t i)
{
    return p->planar ? planar_code(words, i, p->bits) : qt_get(words, i, p->bits);
}

static void fill_codes(uint8_t *dst, const qt_tensor *t, const gptq_parts *p)
{
    enum { BLOCK = 16 }; /* words: a line of the cache each way */
    const int64_t words = t->K * p->bits / 32;
    const size_t row = qt_row_bytes(t->K, t->scheme.bits);
    if (!p->planar || p->bits == 2 || p->bits == 4 || p->bits == 8) { /* the words transposed */
        for (int64_t r0 = 0; r0 < words; r0 += BLOCK)
            for (int64_t n = 0; n < t->N; n++)
                for (int64_t r = r0; r < words && r < r0 + BLOCK; r++)
                    memcpy(dst + (size_t)n * row + 4 * r, p->qweight + 4 * (r * t->N + n), 4);
        return;
    }
    for (int64_t n = 0; n < t->N; n++) {
        uint8_t block[32], stream[4 * 8];
        for (int64_t k = 0; k < t->K; k += 32) {
            for (int64_t r = 0; r < p->bits; r++)
                memcpy(stream + 4 * r, p->qweight + 4 * ((k / 32 * p->bits + r) * t->N + n), 4);
            for (int i = 0; i < 32; i++)
                block[i] = (uint8_t)planar_code(stream, i, p->bits);
            qt_pack_row(dst + (size_t)n * row + (size_t)(k / 8 * t->scheme.bits), block, 32,
                        t->scheme.bits);
        }
    }
}

static void hf_gptq_fill(void *const w[QT_N_PLANES], const qt_tensor *t, const void *from)
{
    const gptq_parts *p = from;
    const qt_scheme *s = &t->scheme;
    const int64_t ng = t->K / s->group;
    const size_t e = lq_dtype_bytes(s->scale_dtype);
    fill_codes(w[QT_CODES], t, p);
    for (int64_t n = 0; n < t->N; n++)
        for (int64_t g = 0; g < ng; g++)
            memcpy((uint8_t *)w[QT_SCALES] + (size_t)(n * ng + g) * e,
                   p->scales + (size_t)(hf_group_at(g, s->group, p->group) * t->N + n) * e, e);
    if (w[QT_ZEROS]) { /* bytes as wide as zbits: 8, or the bits of a code */
        uint8_t *zeros = w[QT_ZEROS];
        const size_t row = qt_row_bytes(ng, s->zbits), qrow = (size_t)(t->N * p->bits / 8);
        for (int64_t n = 0; n < t->N; n++)
            for (int64_t g = 0; g < ng; g++) {
                const int64_t at_g = hf_group_at(g, s->group, p->group);
                unsigned z = field(p, p->qzeros + (size_t)at_g * qrow, n) + (unsigned)p->add;
                size_t bit = (size_t)g * (size_t)s->zbits;
                uint8_t *at = zeros + (size_t)n * row + bit / 8;
                at[0] |= (uint8_t)(z << bit % 8);
                if (bit % 8 + (size_t)s->zbits > 8) at[1] |= (uint8_t)(z >> (8 - bit % 8));
            }
    }
}

/* ---- the config ---- */
static lq_status read_rule(gptq_rule *r, const cJSON *q, lq_err *err)
{
    static const char *const bits[] = { "bits", "w_bit" };
    static const char *const group[] = { "group_size", "q_group_size" };
    lq_status st = LQ_OK;
    for (int i = 1; i >= 0 && !st; i--) {
        st = js_i64(q, bits[i], false, 2, 8, &r->bits, err);
        if (!st) st = hf_group_size(q, group[i], &r->group, err);
    }
    if (!st) st = js_bool(q, "sym", false, &r->sym, err);
    return st ? st : js_bool(q, "desc_act", false, &r->desc_act, err);
}

/* AutoRound's exceptions; 16 bits: not quantized. */
static lq_status extra_rule(gptq_rule *r, const hf_quant *h, const char *module, lq_err *err)
{
    const cJSON *extra;
    int64_t bits = 0;
    lq_status st = hf_extra(&extra, h, module, err);
    if (st || !extra) return st;
    st = js_i64(extra, "bits", false, 1, 32, &bits, err);
    r->skip = bits >= 16;
    if (!st && !r->skip) st = read_rule(r, extra, err);
    return st ? lq_wrap(err, st, "quantization_config: extra_config: %.80s", module) : LQ_OK;
}

/* The rule of a module: the first of `dynamic` that matches; "-:" in front: not quantized. */
static lq_status rule_for(gptq_rule *r, const hf_quant *h, const gptq_rule *all, const char *module,
                          lq_err *err)
{
    const cJSON *dynamic = js_get(h->q, "dynamic");
    char found[64];
    *r = *all;
    if (dynamic && !cJSON_IsObject(dynamic))
        return lq_fail(err, LQ_EVALUE, "quantization_config: dynamic: expected an object, found %s",
                       js_describe(found, dynamic));
    for (const cJSON *d = dynamic ? dynamic->child : NULL; d; d = d->next) {
        const char *pattern = d->string ? d->string : "";
        const bool minus = strncmp(pattern, "-:", 2) == 0;
        bool yes;
        if (!cJSON_IsObject(d))
            return lq_fail(err, LQ_EVALUE,
                           "quantization_config: dynamic: %.80s: expected an object, found %s",
                           pattern, js_describe(found, d));
        if (minus || strncmp(pattern, "+:", 2) == 0) pattern += 2;
        lq_status st = hf_matches(&yes, pattern, module, false, err);
        if (st) return st;
        if (!yes) continue;
        r->skip = minus;
        return minus ? LQ_OK : read_rule(r, d, err);
    }
    return extra_rule(r, h, module, err);
}

typedef struct {
    gptq_rule all;
    bool v1, planar;
} gptq_config;

static lq_status read_config(gptq_config *c, const hf_quant *h, lq_err *err)
{
    const char *format = h->format ? h->format : "gptq", *pack = "int32";
    bool marlin = false;
    *c = (gptq_config){ .all = { .group = -1, .sym = true } };
    lq_status st = read_rule(&c->all, h->q, err);
    if (!st) st = js_str(h->q, "format", false, &format, err);
    if (!st) st = js_str(h->q, "checkpoint_format", false, &format, err);
    if (!st) st = js_str(h->q, "pack_dtype", false, &pack, err);
    if (!st) st = js_bool(h->q, "is_marlin_format", false, &marlin, err);
    if (st) return lq_wrap(err, st, "quantization_config");
    c->planar = strcmp(format, "gptq_p") == 0;
    c->v1 = strcmp(format, "gptq") == 0;
    if (marlin || (!c->planar && !c->v1 && strcmp(format, "gptq_v2") != 0))
        return lq_fail(err, LQ_EUNSUPPORTED,
                       "checkpoint_format: expected gptq, gptq_v2 or gptq_p, found \"%.40s\"",
                       marlin ? "marlin" : format);
    if (strcmp(pack, "int32") != 0)
        return lq_fail(err, LQ_EUNSUPPORTED, "pack_dtype: expected int32, found \"%.40s\"", pack);
    return LQ_OK;
}

/* ---- one weight ---- */
/* Is every stored zero point z? */
static bool all_zeros_are(const gptq_parts *p, const src_tensor *qzeros, int64_t N, unsigned z)
{
    const size_t row = qzeros->raw.bytes / (size_t)qzeros->shape[0];
    for (int64_t g = 0; g < qzeros->shape[0]; g++)
        for (int64_t n = 0; n < N; n++)
            if (field(p, p->qzeros + (size_t)g * row, n) != z) return false;
    return true;
}

/* The words that GPTQModel up to 5 writes for a symmetric grid of 3 bits. */
static bool three_bit_slip(const src_tensor *qzeros)
{
    static const uint32_t words[] = { 0, 0xb6db6db7, 0x49249249 };
    const int64_t n = (int64_t)(qzeros->raw.bytes / 4), row = qzeros->shape[1];
    for (int64_t i = 0; i < n; i++)
        if (hf_word(qzeros->raw.data, i) != words[i % row % 3]) return false;
    return row % 3 == 0;
}

/* Zero points: none stored (a symmetric grid), or integers; p->add. */
static lq_status settle_zeros(qt_scheme *s, gptq_parts *p, hf_quant *h, const gptq_config *c,
                              const gptq_rule *r, const src_tensor *qzeros, int64_t N, lq_err *err)
{
    const unsigned half = 1u << (p->bits - 1);
    p->add = c->v1 ? 1 : 0;
    s->zero = QT_ZERO_NONE;
    if (s->bits == p->bits) {
        if (all_zeros_are(p, qzeros, N, half - (unsigned)p->add)) return LQ_OK;
        if (r->sym && all_zeros_are(p, qzeros, N, half - (unsigned)!p->add))
            return src_note(h->s, err,
                            "zero points are those of %s, though the file says %s: a symmetric "
                            "grid, read by its zero points",
                            c->v1 ? "gptq_v2" : "gptq", c->v1 ? "gptq" : "another");
        if (r->sym && c->v1 && p->bits == 3 && three_bit_slip(qzeros))
            return src_note(h->s, err,
                            "3-bit zero points are in the wrong order of words, as GPTQModel 5 "
                            "writes them: read as the symmetric grid they stand for");
    }
    s->zero = QT_ZERO_INT;
    s->zbits = s->bits;
    const size_t row = qzeros->raw.bytes / (size_t)qzeros->shape[0];
    for (int64_t g = 0; g < qzeros->shape[0]; g++)
        for (int64_t n = 0; n < N; n++)
            if ((field(p, p->qzeros + (size_t)g * row, n) + (unsigned)p->add) >> s->bits)
                s->zbits = 8;
    if (s->bits == 8 && p->add) /* 255 + 1 has no place in a byte */
        for (int64_t g = 0; g < qzeros->shape[0]; g++)
            for (int64_t n = 0; n < N; n++)
                if (field(p, p->qzeros + (size_t)g * row, n) == 255)
                    return lq_fail(err, LQ_EUNSUPPORTED,
                                   "tensor '%.100s': expected zero points 0..255, found 256",
                                   qzeros->name);
    return LQ_OK;
}

static lq_status hf_gptq_make_one(hf_quant *h, const gptq_config *c, const char *module,
                                  lq_err *err)
{
    static const int words[] = { LQ_I32, LQ_U32, -1 };
    const src_tensor *qweight, *qzeros, *scales, *g_idx;
    gptq_rule r = { 0 };
    lq_status st = rule_for(&r, h, &c->all, module, err);
    if (!st) st = hf_take(h, module, ".qweight", true, words, 2, &qweight, err);
    if (!st) st = hf_take(h, module, ".qzeros", true, words, 2, &qzeros, err);
    if (!st) st = hf_take(h, module, ".scales", true, HF_FLOATS, 2, &scales, err);
    if (!st) st = hf_take(h, module, ".g_idx", false, words, 1, &g_idx, err);
    if (st) return st;
    if (r.skip)
        return lq_fail(err, LQ_EFORMAT,
                       "'%.100s': expected plain weights, as `dynamic` or extra_config says",
                       module);
    if (!r.bits && qweight->shape[1] > 0) r.bits = qzeros->shape[1] * 32 / qweight->shape[1];
    if (r.bits < 2 || r.bits > 8)
        return lq_fail(err, LQ_ESHAPE, "tensor '%.100s': expected zero points of 2 to 8 bits",
                       qzeros->name);
    gptq_parts p = { .qweight = qweight->raw.data,
                     .qzeros = qzeros->raw.data,
                     .scales = scales->raw.data,
                     .bits = (int)r.bits,
                     .planar = c->planar };
    const int64_t N = qweight->shape[1], K = qweight->shape[0] * 32 / r.bits;
    const int64_t ng = scales->shape[0];
    const bool five = r.bits > 4 && r.bits < 8;
    if (five && !c->planar)
        return lq_fail(err, LQ_EUNSUPPORTED,
                       "'%.100s': expected 2, 3, 4 or 8 bits (5 to 7 in gptq_p alone), found %d",
                       module, p.bits);
    if ((qweight->shape[0] * 32) % r.bits || K % 32 || N % 32)
        return lq_fail(err, LQ_ESHAPE,
                       "'%.100s': expected multiples of 32 outputs and inputs, found %lld x %lld "
                       "words of %d bits",
                       module, (long long)N, (long long)qweight->shape[0], p.bits);
    st = hf_expect(scales, ng, N, err);
    if (!st && qzeros->shape[0] == ng && qzeros->shape[1] != N * r.bits / 32)
        st = lq_fail(err, LQ_ESHAPE,
                     "'%.100s': expected %d bits, as the config says, found zero points of %lld",
                     module, p.bits, (long long)(qzeros->shape[1] * 32 / N));
    if (!st) st = hf_expect(qzeros, ng, N * r.bits / 32, err);
    if (st) return st;
    p.group = r.group > 0 && r.group < K ? r.group : lq_ceil_div(K, ng);
    if (lq_ceil_div(K, p.group) != ng || (p.group != r.group && K % ng))
        return lq_fail(err, LQ_ESHAPE,
                       "tensor '%.100s': expected %lld inputs in groups of %lld, "
                       "found %lld groups",
                       scales->name, (long long)K, (long long)r.group, (long long)ng);
    qt_tensor q = { .N = N, .K = K };
    q.scheme = (qt_scheme){ .kind = QT_UINT,
                            .bits = five ? 8 : p.bits,
                            .group = hf_even_group(K, p.group),
                            .scale_dtype = scales->raw_dtype };
    st = settle_zeros(&q.scheme, &p, h, c, &r, qzeros, N, err);
    if (!st && g_idx) st = hf_order(h, &q, g_idx, p.group, err);
    if (!st && !g_idx && r.desc_act &&
        ng > 1) /* as the libraries read it; right of static groups */
        st = src_note(h->s, err,
                      "desc_act, and no g_idx is stored: inputs are in groups in their order");
    return st ? st : hf_make(h, module, ".weight", &q, hf_gptq_fill, &p, sizeof p, err);
}

lq_status hf_gptq_read(hf_quant *h, lq_err *err)
{
    gptq_config c;
    lq_status st = read_config(&c, h, err);
    for (size_t i = 0; i < h->s->n_tensors && !st; i++) {
        const char *module = hf_module(h, i, ".qweight");
        if (module) st = hf_gptq_make_one(h, &c, module, err);
    }
    return st;
}
