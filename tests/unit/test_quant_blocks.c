/* tests/unit/test_quant_blocks.c - NF4, FP4 and int8 against what bitsandbytes made. */
#include "formats/hf/safetensors.h"
#include "quantize/methods/int8.h"
#include "quantize/methods/lut4.h"
#include "tests/support/check.h"

#include <stdio.h>
#include <stdlib.h>

#define GOLDEN "tests/golden/bnb/"

enum { EVERY_TYPE = 3 }; /* of the first three matrices; the others are in f32 alone */
static const char *const matrices[] = { "tiny",   "zero_row",       "ragged_17x37",
                                        "normal", "outlier_column", "laplace" };
static const char *const dtypes[] = { "f32", "bf16", "f16" };

static const st_tensor *must_find(const st_file *f, const char *a, const char *b, const char *c)
{
    char name[128];
    snprintf(name, sizeof name, "%s%s%s", a, b, c);
    const st_tensor *t = st_find(f, name);
    CHECK(t != NULL, "%s is not in the golden file", name);
    return t;
}

static int64_t n_diff(const void *a, const void *b, size_t n)
{
    const uint8_t *x = a, *y = b;
    int64_t bad = 0;
    for (size_t i = 0; i < n; i++)
        bad += x[i] != y[i];
    return bad;
}

/* Codes and absmax of one matrix; a double-quantized one has other side data. */
static void check_4bit(const st_file *f, const char *mat, const char *tail, const qt_scheme *s)
{
    char key[96];
    snprintf(key, sizeof key, "%s.%s", mat, tail);
    const st_tensor *in = must_find(f, mat, ".input", "");
    const st_tensor *packed = must_find(f, key, ".packed", "");
    if (!in || !packed) return;
    lq_arena a = { 0 };
    qz_out out;
    lq_err err = { "" };
    CHECK(!qz_out_alloc(&out, s, in->shape[0], in->shape[1], &a, &err), "%s", err.msg);
    CHECK(!lut4_run(&out, in->data, in->dtype, NULL, &err), "%s", err.msg);
    CHECK(out.t.plane[QT_CODES].bytes == packed->bytes, "%s: %zu bytes, expected %zu", key,
          out.t.plane[QT_CODES].bytes, packed->bytes);
    int64_t bad = n_diff(out.w[QT_CODES], packed->data, packed->bytes);
    CHECK(!bad, "%s: %lld of %zu code bytes differ", key, (long long)bad, packed->bytes);
    const st_tensor *am = must_find(f, key, s->dbl ? ".absmax_u8" : ".absmax", "");
    bad = am ? n_diff(out.w[QT_SCALES], am->data, am->bytes) : 1;
    CHECK(!bad, "%s: %lld absmax bytes differ", key, (long long)bad);
    if (s->dbl) {
        const st_tensor *a2 = must_find(f, key, ".absmax2", "");
        const st_tensor *code2 = must_find(f, key, ".code2", "");
        const st_tensor *offset = must_find(f, key, ".offset", "");
        CHECK(a2 && !n_diff(out.w[QT_SCALES2], a2->data, a2->bytes), "%s: absmax2", key);
        CHECK(code2 && !n_diff(out.w[QT_MAP2], code2->data, code2->bytes), "%s: code2", key);
        CHECK(offset && !n_diff(&out.t.scheme.offset, offset->data, 4), "%s: offset", key);
    }
    lq_arena_free(&a);
}

TEST(nf4_and_fp4_are_bitsandbytes_to_the_bit)
{
    st_file f;
    lq_err err = { "" };
    CHECK(!st_open(&f, GOLDEN "bnb-4bit-part.safetensors", &err), "%s", err.msg);
    for (size_t m = 0; m < LQ_COUNT(matrices); m++)
        for (size_t d = 0; d < (m < EVERY_TYPE ? LQ_COUNT(dtypes) : 1); d++) {
            char mat[64], tail[32];
            snprintf(mat, sizeof mat, "%s.%s", matrices[m], dtypes[d]);
            for (int fp4 = 0; fp4 < 2; fp4++)
                for (int block = 64; block <= 128; block += 64) {
                    snprintf(tail, sizeof tail, "%s.b%d", fp4 ? "fp4" : "nf4", block);
                    check_4bit(&f, mat, tail,
                               &(qt_scheme){ .kind = QT_LUT4, .group = block, .fp4 = fp4 });
                }
            check_4bit(&f, mat, "nf4.b64.double",
                       &(qt_scheme){ .kind = QT_LUT4, .group = 64, .dbl = true });
        }
    for (int fp4 = 0; fp4 < 2; fp4++) {
        const st_tensor *map = must_find(&f, fp4 ? "fp4" : "nf4", ".code", "");
        for (int i = 0; map && i < 16; i++) { /* the library spells -0 as 0 */
            float v;
            memcpy(&v, map->data + 4 * i, 4);
            CHECK(v == lut4_map(fp4)[i], "%s[%d]: %a", fp4 ? "fp4" : "nf4", i, (double)v);
        }
    }
    st_close(&f);
}

static void check_plane(const st_file *f, const char *key, const char *tail, const void *got)
{
    const st_tensor *t = must_find(f, key, tail, "");
    if (!t) return;
    const int64_t bad = n_diff(got, t->data, t->bytes);
    CHECK(!bad, "%s%s: %lld of %zu bytes differ", key, tail, (long long)bad, t->bytes);
}

TEST(every_block_size_is_bitsandbytes_to_the_bit)
{
    st_file f;
    lq_err err = { "" };
    CHECK(!st_open(&f, GOLDEN "bnb-4bit-blocks.safetensors", &err), "%s", err.msg);
    const st_tensor *w = must_find(&f, "w", "", "");
    for (int block = 32; w && block <= 4096; block *= 2)
        for (int i = 0; i < 4; i++) {
            char key[32];
            lq_arena a = { 0 };
            qz_out out;
            const qt_scheme s = {
                .kind = QT_LUT4, .group = block, .fp4 = i & 1, .dbl = (i & 2) != 0
            };
            snprintf(key, sizeof key, "%s.b%d", s.fp4 ? "fp4" : "nf4", block);
            CHECK(!qz_out_alloc(&out, &s, w->shape[0], w->shape[1], &a, &err), "%s", err.msg);
            CHECK(!lut4_run(&out, w->data, w->dtype, NULL, &err), "%s", err.msg);
            check_plane(&f, key, ".packed", out.w[QT_CODES]);
            check_plane(&f, key, s.dbl ? ".absmax_u8" : ".absmax", out.w[QT_SCALES]);
            if (s.dbl) check_plane(&f, key, ".absmax2", out.w[QT_SCALES2]);
            if (s.dbl) check_plane(&f, key, ".offset", &out.t.scheme.offset);
            lq_arena_free(&a);
        }
    st_close(&f);
}

/* The ramp (i - 31.5) / 10, i < 64: the worked vectors of the format's description. */
TEST(a_ramp_gives_the_published_bytes)
{
    static const uint8_t want[2][32] = {
        { 0x00, 0x00, 0x01, 0x11, 0x11, 0x11, 0x12, 0x22, 0x22, 0x33, 0x34,
          0x44, 0x45, 0x55, 0x66, 0x67, 0x78, 0x88, 0x99, 0xaa, 0xab, 0xbb,
          0xcc, 0xcc, 0xdd, 0xdd, 0xee, 0xee, 0xee, 0xef, 0xff, 0xff },
        { 0xbb, 0xbb, 0xbb, 0xaa, 0xaa, 0xaa, 0xaa, 0xdd, 0xdd, 0xdc, 0xcc,
          0xcf, 0xfe, 0xee, 0xe9, 0x99, 0x11, 0x16, 0x66, 0x67, 0x74, 0x44,
          0x45, 0x55, 0x55, 0x22, 0x22, 0x22, 0x22, 0x33, 0x33, 0x33 },
    };
    float x[64];
    for (int i = 0; i < 64; i++)
        x[i] = ((float)i - 31.5f) / 10;
    for (int fp4 = 0; fp4 < 2; fp4++)
        for (int block = 64; block <= 4096; block *= 2) { /* one block, whole or not */
            lq_arena a = { 0 };
            qz_out out;
            qt_scheme s = { .kind = QT_LUT4, .group = block, .fp4 = fp4 };
            lq_err err = { "" };
            CHECK(!qz_out_alloc(&out, &s, 4, 16, &a, &err), "block %d: %s", block, err.msg);
            CHECK(!lut4_run(&out, x, LQ_F32, NULL, &err), "%s", err.msg);
            CHECK(*(float *)out.w[QT_SCALES] == 3.15f, "absmax");
            CHECK(memcmp(out.w[QT_CODES], want[fp4], 32) == 0, "fp4 %d, block %d", fp4, block);
            lq_arena_free(&a);
        }
}

TEST(int8_rows_are_bitsandbytes_within_a_code)
{
    static const char *const names[] = { "model.layers.0.self_attn.k_proj",
                                         "model.layers.1.mlp.down_proj" };
    st_file f;
    lq_err err = { "" };
    CHECK(!st_open(&f, GOLDEN "bnb-int8-part.safetensors", &err), "%s", err.msg);
    for (size_t i = 0; i < LQ_COUNT(names); i++) {
        const st_tensor *in = must_find(&f, names[i], ".input", "");
        const st_tensor *codes = must_find(&f, names[i], ".codes", "");
        const st_tensor *scb = must_find(&f, names[i], ".SCB", "");
        if (!in || !codes || !scb) continue;
        lq_arena a = { 0 };
        qz_out out;
        qt_scheme s = { .kind = QT_I8, .div127 = true };
        CHECK(!qz_out_alloc(&out, &s, in->shape[0], in->shape[1], &a, &err), "%s", err.msg);
        CHECK(!int8_run(&out, in->data, in->dtype, NULL, NULL, &err), "%s", err.msg);
        CHECK(!n_diff(out.w[QT_SCALES], scb->data, scb->bytes), "%s: absmax", names[i]);
        const int8_t *got = out.w[QT_CODES];
        int64_t off = 0, far = 0;
        for (size_t k = 0; k < codes->bytes; k++) {
            int d = got[k] - (int8_t)codes->data[k];
            off += d != 0;
            far += d < -1 || d > 1;
        }
        /* The library divides before it multiplies: a code moves only where w lies within an ulp of
         * a halfway point, in less than one of a thousand weights with 8 significant bits. */
        CHECK(!far && off * 1000 <= (int64_t)codes->bytes, "%s: %lld codes differ, %lld by more",
              names[i], (long long)off, (long long)far);
        lq_arena_free(&a);
    }
    st_close(&f);
}

TEST(int8_edges)
{
    static const float w[4][4] = {
        { 1, -2, .5f, .25f }, { 0, 0, 0, 0 }, { -1, -2, -3, -255 }, { 3e38f, -3e38f, 0, 1 }
    };
    static const int8_t want[4][4] = {
        { 64, -127, 32, 16 }, { 0, 0, 0, 0 }, { 0, -1, -1, -127 }, { 127, -127, 0, 0 }
    };
    lq_arena a = { 0 };
    qz_out out;
    lq_err err = { "" };
    qt_scheme s = { .kind = QT_I8, .div127 = true };
    CHECK(!qz_out_alloc(&out, &s, 4, 4, &a, &err), "%s", err.msg);
    CHECK(!int8_run(&out, w, LQ_F32, NULL, NULL, &err), "%s", err.msg);
    CHECK(memcmp(out.w[QT_CODES], want, sizeof want) == 0, "codes");

    /* Zero points: rounding the zero shifts the grid by half a step at most, the code by another.
     */
    s = (qt_scheme){ .kind = QT_I8, .zero = QT_ZERO_INT };
    CHECK(!qz_out_alloc(&out, &s, 4, 4, &a, &err), "%s", err.msg);
    CHECK(!int8_run(&out, w, LQ_F32, NULL, NULL, &err), "%s", err.msg);
    const float *scale = out.w[QT_SCALES];
    for (int n = 0; n < 4; n++)
        for (int k = 0; k < 4; k++) {
            int c = ((int8_t *)out.w[QT_CODES])[n * 4 + k], z = ((int8_t *)out.w[QT_ZEROS])[n];
            double back = (double)scale[n] * (c - z), e = fabs(back - (double)w[n][k]);
            CHECK(e <= (double)scale[n] * (1 + 0x1p-20), "row %d, input %d: %g", n, k, back);
        }

    /* Outlier columns: exact in bf16, absent from the codes and from the row's absmax. */
    const float share[4] = { 0.05f, 0.06f, 0, 1 };
    int32_t idx[4];
    int64_t n_out = int8_find_outliers(idx, share, 4, 0);
    CHECK(n_out == 3 && idx[1] == 1, "in any token: %lld", (long long)n_out);
    n_out = int8_find_outliers(idx, share, 4, 0.06f);
    CHECK(n_out == 2 && idx[0] == 1 && idx[1] == 3, "outliers: %lld", (long long)n_out);
    s = (qt_scheme){ .kind = QT_I8_OUTLIER, .div127 = true, .n_out = n_out };
    CHECK(!qz_out_alloc(&out, &s, 4, 4, &a, &err), "%s", err.msg);
    CHECK(!int8_run(&out, w, LQ_F32, idx, NULL, &err), "%s", err.msg);
    CHECK(((float *)out.w[QT_SCALES])[0] == 1 && ((float *)out.w[QT_SCALES])[2] == 3, "absmax");
    CHECK(((int8_t *)out.w[QT_CODES])[3] == 0, "an outlier among the codes");
    CHECK(lq_bf16_to_f32(((uint16_t *)out.w[QT_OUT_VALS])[1]) == 0.25f, "outlier value");
    lq_arena_free(&a);
}

int main(int argc, char **argv)
{
    RUN(nf4_and_fp4_are_bitsandbytes_to_the_bit);
    RUN(every_block_size_is_bitsandbytes_to_the_bit);
    RUN(a_ramp_gives_the_published_bytes);
    RUN(int8_rows_are_bitsandbytes_within_a_code);
    RUN(int8_edges);
    return check_end();
}
