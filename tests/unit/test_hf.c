/* tests/unit/test_hf.c - published layouts that no golden checkpoint has, on vectors worked by hand;
 * memory of translated weights. Golden checkpoints: tests/e2e/test_published.py. */
#include "base/hash.h"
#include "formats/source/hf_quant.h"
#include "tests/support/check.h"

#include <stdlib.h>

enum { MAX_PARTS = 6 };
typedef struct {
    const char *name;
    lq_dtype dtype;
    int64_t shape[4]; /* up to the first 0 */
    const void *data;
} part;

static size_t part_bytes(const part *p, int *n_dims)
{
    size_t n = lq_dtype_bytes(p->dtype);
    for (*n_dims = 0; *n_dims < 4 && p->shape[*n_dims]; ++*n_dims)
        n *= (size_t)p->shape[*n_dims];
    return n;
}

static int by_name(const void *a, const void *b)
{
    const src_tensor *x = a, *y = b;
    return strcmp(x->name, y->name);
}

/* A source with these stored tensors, read as `config` says; NULL and err where it is refused. */
static src_source *source(const char *config, const part *parts, lq_err *err)
{
    src_source *s = calloc(1, sizeof *s);
    s->path = strdup("model");
    lq_status st = js_parse(&s->quant, config, strlen(config), 1 << 16, JS_UNIQUE, err);
    CHECK(!st, "%s: %s", config, err->msg);
    s->tensors = lq_push(&s->arena, MAX_PARTS * sizeof *s->tensors);
    for (; parts->name; parts++) {
        int n_dims;
        const size_t bytes = part_bytes(parts, &n_dims);
        src_fill_plain(&s->tensors[s->n_tensors++], parts->name, parts->dtype, n_dims, parts->shape,
                       parts->data, bytes, NULL);
    }
    qsort(s->tensors, s->n_tensors, sizeof *s->tensors, by_name);
    st = hf_quant_read(s, err);
    if (!st) return s;
    src_close(s);
    return NULL;
}

/* One stream of words in column order: word r of column n at r*N + n, every column the same. */
static void columns(uint32_t *out, const uint32_t *stream, int words, int N)
{
    for (int r = 0; r < words; r++)
        for (int n = 0; n < N; n++)
            out[r * N + n] = stream[r];
}

static void fill_f16(uint16_t *out, size_t n, float v)
{
    for (size_t i = 0; i < n; i++)
        out[i] = lq_f32_to_f16(v);
}

/* Row 0 of "m.weight" of the source. */
static bool row_of(float *row, int64_t n, const char *config, const part *parts, qt_scheme *scheme)
{
    lq_err err = { "" };
    src_source *s = source(config, parts, &err);
    CHECK(s, "%s: %s", config, err.msg);
    if (!s) return false;
    const src_tensor *t = src_find(s, "m.weight");
    CHECK(t && s->n_tensors == 1, "%s: one weight", config);
    if (t) {
        qt_tensor q;
        src_load(&q, s, t);
        CHECK(!qt_check_view(&q, &err), "%s: %s", config, err.msg);
        qt_dequant(row, &q, n, n + 1);
        *scheme = q.scheme;
        src_unload(s, t);
    }
    src_close(s);
    return t != NULL;
}

/* 32 inputs, 32 outputs; code i of every output as `code` says. */
TEST(gptq_streams_and_planes_are_unpacked)
{
    static const struct {
        const char *why, *config;
        int bits, mod;
        uint32_t stream[8];
    } t[] = {
        { "2 bits", "{\"bits\":2}", 2, 4, { 0xe4e4e4e4, 0xe4e4e4e4 } },
        { "3 bits", "{\"bits\":3}", 3, 8, { 0x88fac688, 0xc688fac6, 0xfac688fa } },
        { "4 bits",
          "{\"bits\":4,\"quant_method\":\"gptq\"}",
          4,
          16,
          { 0x76543210, 0xfedcba98, 0x76543210, 0xfedcba98 } },
        { "3 bits in planes",
          "{\"bits\":3,\"checkpoint_format\":\"gptq_p\"}",
          3,
          8,
          { 0xe4e4e4e4, 0xe4e4e4e4, 0xf0f0f0f0 } },
        { "5 bits in planes",
          "{\"bits\":5,\"checkpoint_format\":\"gptq_p\"}",
          5,
          32,
          { 0x76543210, 0xfedcba98, 0x76543210, 0xfedcba98, 0xffff0000 } },
    };
    for (size_t i = 0; i < LQ_COUNT(t); i++) {
        uint32_t qweight[8 * 32], qzeros[8] = { 0 }; /* zero points: stored 0, that is 1 in v1 */
        uint16_t scales[32];
        float row[32];
        qt_scheme s;
        columns(qweight, t[i].stream, t[i].bits, 32);
        fill_f16(scales, 32, 0.5f);
        const part parts[] = { { "m.qweight", LQ_I32, { t[i].bits, 32 }, qweight },
                               { "m.qzeros", LQ_I32, { 1, t[i].bits }, qzeros },
                               { "m.scales", LQ_F16, { 1, 32 }, scales },
                               { NULL, LQ_F32, { 0 }, NULL } };
        if (!row_of(row, 31, t[i].config, parts, &s)) continue;
        const int zero = strstr(t[i].config, "gptq_p") ? 0 : 1;
        for (int k = 0; k < 32; k++)
            CHECK(row[k] == 0.5f * (float)(k % t[i].mod - zero), "%s: [%d] = %g", t[i].why, k,
                  (double)row[k]);
    }
}

TEST(gptq_zero_points_one_above_the_codes_are_kept)
{
    uint32_t qweight[4 * 32] = { 0 },
                         qzeros[4] = { 0xf3f3f3f3, 0xf3f3f3f3, 0xf3f3f3f3, 0xf3f3f3f3 };
    uint16_t scales[32];
    float row[32];
    qt_scheme s;
    fill_f16(scales, 32, 1.0f);
    const part parts[] = { { "m.qweight", LQ_I32, { 4, 32 }, qweight },
                           { "m.qzeros", LQ_I32, { 1, 4 }, qzeros },
                           { "m.scales", LQ_F16, { 1, 32 }, scales },
                           { NULL, LQ_F32, { 0 }, NULL } };
    if (row_of(row, 1, "{\"bits\":4,\"sym\":false}", parts, &s))
        CHECK(row[0] == -16.0f && s.zbits == 8, "15 + 1: %g", (double)row[0]);
    if (row_of(row, 0, "{\"bits\":4,\"sym\":false}", parts, &s))
        CHECK(row[0] == -4.0f, "3 + 1: %g", (double)row[0]);
    if (row_of(row, 1, "{\"bits\":4,\"checkpoint_format\":\"gptq_v2\"}", parts, &s))
        CHECK(row[0] == -15.0f && s.zbits == 4, "v2: %g", (double)row[0]);
}

TEST(gptq_rules_for_modules_are_followed)
{
    uint32_t qweight[4 * 32] = { 0x76543210 }, qzeros[4] = { 0 };
    uint16_t scales[64];
    float row[32];
    qt_scheme s;
    fill_f16(scales, 64, 1.0f);
    const part parts[] = { { "m.qweight", LQ_I32, { 4, 32 }, qweight },
                           { "m.qzeros", LQ_I32, { 1, 4 }, qzeros },
                           { "m.scales", LQ_F16, { 1, 32 }, scales },
                           { NULL, LQ_F32, { 0 }, NULL } };
    row_of(row, 0, "{\"bits\":8,\"dynamic\":{\"x\":{\"bits\":2},\"+:[lm]\":{\"bits\":4}}}", parts,
           &s);
    CHECK(s.bits == 4 && row[1] == 0.0f, "%d bits, %g", s.bits, (double)row[1]);
    lq_err err = { "" };
    CHECK(!source("{\"bits\":4,\"dynamic\":{\"-:m\":{}}}", parts, &err) &&
              strstr(err.msg, "dynamic"),
          "%s", err.msg);
}

TEST(awq_words_are_put_in_order)
{
    /* gemm: outputs 0..7 have codes 0..7; zero points 0; gemv: input i has code i */
    uint32_t gemm[32], zeros[1] = { 0 }, gemv[8 * 4], gemv_zeros[8];
    uint16_t scales[64];
    float row[32];
    qt_scheme s;
    for (int k = 0; k < 32; k++)
        gemm[k] = 0x75316420;
    fill_f16(scales, 64, 2.0f);
    const part a[] = { { "m.qweight", LQ_I32, { 32, 1 }, gemm },
                       { "m.qzeros", LQ_I32, { 1, 1 }, zeros },
                       { "m.scales", LQ_F16, { 1, 8 }, scales },
                       { NULL, LQ_F32, { 0 }, NULL } };
    for (int n = 0; n < 8; n++)
        if (row_of(row, n, "{\"quant_method\":\"awq\",\"group_size\":32}", a, &s))
            CHECK(row[0] == 2.0f * (float)n && row[31] == row[0], "output %d: %g", n,
                  (double)row[0]);
    for (int n = 0; n < 8; n++) {
        gemv_zeros[n] = 0x00000031; /* group 0: 1, group 1: 3 */
        for (int w = 0; w < 4; w++)
            gemv[n * 4 + w] = w % 2 ? 0xfedcba98 : 0x76543210;
    }
    const part v[] = { { "m.qweight", LQ_I32, { 8, 4 }, gemv },
                       { "m.qzeros", LQ_I32, { 8, 1 }, gemv_zeros },
                       { "m.scales", LQ_F16, { 8, 8 }, scales },
                       { NULL, LQ_F32, { 0 }, NULL } };
    if (row_of(row, 5, "{\"quant_method\":\"awq\",\"group_size\":16,\"version\":\"gemv\"}", v, &s))
        for (int k = 0; k < 32; k++)
            CHECK(row[k] == 2.0f * (float)(k % 16 - (k < 16 ? 1 : 3)), "gemv[%d] = %g", k,
                  (double)row[k]);
}

TEST(three_bit_words_of_both_packings_are_read)
{
    static const uint32_t stream[] = { 0x88fac688, 0xc688fac6, 0xfac688fa };
    static const uint32_t padded[] = { 0x08fac688, 0x1a23eb1a, 0x2c688fac, 0x0000003e };
    static const int64_t shape[] = { 1, 32 };
    static const float scale[] = { 0.25f };
    static const char config[] =
        "{\"quant_method\":\"compressed-tensors\",\"format\":\"pack-quantized\",\"config_groups\":{"
        "\"a\":"
        "{\"targets\":[\"Linear\"],\"weights\":{\"num_bits\":3,\"strategy\":\"tensor\"}}}}";
    for (int i = 0; i < 2; i++) {
        float row[32];
        qt_scheme s;
        const part parts[] = { { "m.weight_packed", LQ_I32, { 1, 3 + i }, i ? padded : stream },
                               { "m.weight_shape", LQ_I64, { 2 }, shape },
                               { "m.weight_scale", LQ_F32, { 1 }, scale },
                               { NULL, LQ_F32, { 0 }, NULL } };
        if (!row_of(row, 0, config, parts, &s)) continue;
        for (int k = 0; k < 32; k++)
            CHECK(row[k] == 0.25f * (float)(k % 8 - 4), "%s [%d] = %g", i ? "padded" : "stream", k,
                  (double)row[k]);
    }
}

#define CT(format, weights, inputs)                                               \
    "{\"quant_method\":\"compressed-tensors\",\"format\":\"" format               \
    "\",\"config_groups\":{\"a\":{\"targets\":[\"Linear\"],\"weights\":{" weights \
    "},\"input_activations\":" inputs "}}}"

TEST(scales_of_inputs_and_weights_are_taken_as_declared)
{
    static const uint8_t codes[8] = { 0x38, 0x40, 0xb8, 0x30, 0x38, 0x38, 0x38, 0x38 };
    static const uint16_t one[] = { 0x3f00 }, two[] = { 0x3f80, 0x4000 }; /* bf16 .5; 1, 2 */
    static const float blocks[] = { 1.0f, 2.0f, 3.0f, 4.0f }, in[] = { 0.125f };
    static const struct {
        const char *why, *config, *scale, *text;
        int64_t shape[2];
        lq_dtype d;
        const void *data;
        bool input;
        float first, last; /* of row 1: codes 1 1 1 1 */
    } t[] = {
        { "tensor, static",
          CT("float-quantized", "\"type\":\"float\",\"strategy\":\"tensor\"",
             "{\"type\":\"float\",\"dynamic\":false,\"strategy\":\"tensor\"}"),
          "m.weight_scale",
          "fp8-e4m3-tensor-af8-static",
          { 1 },
          LQ_BF16,
          one,
          true,
          0.5f,
          0.5f },
        { "channel in bf16",
          CT("float-quantized", "\"type\":\"float\",\"strategy\":\"channel\"", "null"),
          "m.weight_scale",
          "fp8-e4m3",
          { 2, 1 },
          LQ_BF16,
          two,
          false,
          2,
          2 },
        { "blocks",
          CT("float-quantized",
             "\"type\":\"float\",\"strategy\":\"block\",\"block_structure\":[1,3]",
             "{\"type\":\"float\",\"dynamic\":true,\"strategy\":\"group\",\"group_size\":2}"),
          "m.weight_scale",
          "fp8-e4m3-b1x3-af8-g2",
          { 2, 2 },
          LQ_F32,
          blocks,
          false,
          3,
          4 },
        { "DeepSeek",
          "{\"quant_method\":\"fp8\",\"weight_block_size\":[1,3]}",
          "m.weight_scale_inv",
          "fp8-e4m3-b1x3-af8-g3",
          { 2, 2 },
          LQ_F32,
          blocks,
          false,
          3,
          4 },
        { "one scale, static",
          "{\"quant_method\":\"fp8\",\"activation_scheme\":\"static\"}",
          "m.weight_scale",
          "fp8-e4m3-tensor-af8-static",
          { 1 },
          LQ_BF16,
          one,
          true,
          0.5f,
          0.5f },
    };
    for (size_t i = 0; i < LQ_COUNT(t); i++) {
        float row[4];
        qt_scheme s;
        char text[40];
        const part parts[] = { { "m.weight", LQ_F8_E4M3, { 2, 4 }, codes },
                               { t[i].scale, t[i].d, { t[i].shape[0], t[i].shape[1] }, t[i].data },
                               { t[i].input ? "m.input_scale" : NULL, LQ_F32, { 1 }, in },
                               { NULL, LQ_F32, { 0 }, NULL } };
        if (!row_of(row, 1, t[i].config, parts, &s)) continue;
        qt_scheme_text(text, &s);
        CHECK(strcmp(text, t[i].text) == 0, "%s: %s", t[i].why, text);
        CHECK(row[0] == t[i].first && row[3] == t[i].last, "%s: %g, %g", t[i].why, (double)row[0],
              (double)row[3]);
        CHECK(!t[i].input || s.act_scale == 0.125f, "%s: %g", t[i].why, (double)s.act_scale);
    }
}

TEST(inputs_rounded_in_ways_that_are_not_computed_are_refused)
{
    static const uint8_t codes[8] = { 0 };
    static const float scale[2] = { 1, 1 };
    static const char *const inputs[] = {
        "{\"num_bits\":4,\"dynamic\":true,\"strategy\":\"token\"}",
        "{\"num_bits\":4,\"symmetric\":false,\"dynamic\":true,\"strategy\":\"token\"}",
        "{\"dynamic\":false,\"strategy\":\"tensor\"}",
        "{\"dynamic\":true,\"strategy\":\"attn_head\"}"
    };
    for (size_t i = 0; i < LQ_COUNT(inputs); i++) {
        char config[512];
        lq_err err = { "" };
        snprintf(config, sizeof config, CT("int-quantized", "\"strategy\":\"channel\"", "%s"),
                 inputs[i]);
        const part parts[] = { { "m.weight", LQ_I8, { 2, 4 }, codes },
                               { "m.weight_scale", LQ_F32, { 2, 1 }, scale },
                               { NULL, LQ_F32, { 0 }, NULL } };
        CHECK(!source(config, parts, &err) && err.msg[0], "%s", inputs[i]);
    }
}

TEST(mxfp4_experts_are_one_tensor_of_three_dims)
{
    uint8_t blocks[2 * 3 * 16], scales[6] = { 127, 128, 126, 127, 127, 130 };
    lq_err err = { "" };
    for (int i = 0; i < 96; i++)
        blocks[i] = 0x42; /* codes 2, 4: 1 and 2 */
    const part parts[] = { { "e.down_blocks", LQ_U8, { 2, 3, 1, 16 }, blocks },
                           { "e.down_scales", LQ_U8, { 2, 3, 1 }, scales },
                           { NULL, LQ_F32, { 0 }, NULL } };
    src_source *s = source("{\"quant_method\":\"mxfp4\"}", parts, &err);
    CHECK(s, "%s", err.msg);
    if (!s) return;
    const src_tensor *t = src_find(s, "e.down");
    CHECK(t && t->n_dims == 3 && t->shape[0] == 2 && t->shape[1] == 3 && t->shape[2] == 32,
          "shape");
    float row[32];
    qt_tensor second;
    CHECK(t && qt_rows(&second, &t->t, 3, 6) && second.plane[QT_CODES].data == blocks + 48,
          "an expert is a view");
    qt_dequant(row, &second, 2, 3);
    CHECK(row[0] == 8 && row[1] == 16, "%g %g", (double)row[0], (double)row[1]);
    src_close(s);
}

/* Two users of one translated weight: it stays until both are done, and comes again. */
TEST(a_translated_weight_stays_while_it_is_used)
{
    uint32_t qweight[4 * 32], qzeros[4] = { 0 };
    uint16_t scales[32];
    lq_err err = { "" };
    float row[32];
    qt_tensor a, b;
    static const uint32_t stream[] = { 0x76543210, 0xfedcba98, 0x76543210, 0xfedcba98 };
    columns(qweight, stream, 4, 32);
    fill_f16(scales, 32, 1.0f);
    const part parts[] = { { "m.qweight", LQ_I32, { 4, 32 }, qweight },
                           { "m.qzeros", LQ_I32, { 1, 4 }, qzeros },
                           { "m.scales", LQ_F16, { 1, 32 }, scales },
                           { NULL, LQ_F32, { 0 }, NULL } };
    src_source *s = source("{\"bits\":4}", parts, &err);
    CHECK(s, "%s", err.msg);
    if (!s) return;
    const src_tensor *t = src_find(s, "m.weight");
    CHECK(t->t.plane[QT_CODES].bytes == 512 && !t->t.plane[QT_CODES].data,
          "nothing before it is asked for");
    src_load(&a, s, t);
    src_load(&b, s, t);
    src_unload(s, t);
    qt_dequant(row, &a, 0, 1);
    CHECK(row[5] == 4.0f, "one user left: %g", (double)row[5]);
    src_unload(s, t);
    src_load(&b, s, t);
    CHECK(b.plane[QT_CODES].data == a.plane[QT_CODES].data, "the same place");
    qt_dequant(row, &b, 0, 1);
    CHECK(row[5] == 4.0f, "translated again: %g", (double)row[5]);
    const lq_hash h = src_tensor_hash(s, 0);
    lq_hash f, f2;
    CHECK(!src_fingerprint(&f, s, NULL), "no memory");
    src_unload(s, t);
    const lq_hash h2 = src_tensor_hash(s, 0);
    CHECK(!src_fingerprint(&f2, s, NULL), "no memory");
    CHECK(!memcmp(&h, &h2, sizeof h) && !memcmp(&f, &f2, sizeof f), "hashes load by themselves");
    src_close(s);
}

int main(int argc, char **argv)
{
    RUN(gptq_streams_and_planes_are_unpacked);
    RUN(gptq_zero_points_one_above_the_codes_are_kept);
    RUN(gptq_rules_for_modules_are_followed);
    RUN(awq_words_are_put_in_order);
    RUN(three_bit_words_of_both_packings_are_read);
    RUN(scales_of_inputs_and_weights_are_taken_as_declared);
    RUN(inputs_rounded_in_ways_that_are_not_computed_are_refused);
    RUN(mxfp4_experts_are_one_tensor_of_three_dims);
    RUN(a_translated_weight_stays_while_it_is_used);
    return check_end();
}
