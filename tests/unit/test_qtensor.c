/* tests/unit/test_qtensor.c - names, sizes, refusals and hand-worked values of quantized tensors. */
#include "formats/hf/safetensors.h"
#include "formats/tensor/qtensor.h"
#include "tests/support/check.h"
#include "tests/support/fill.h"

TEST(a_scheme_has_one_name_and_reads_it_back)
{
    static const char *const names[] = { "f32",
                                         "f16",
                                         "bf16",
                                         "u2-g32",
                                         "u3-g96",
                                         "u4-g128",
                                         "u8-g64",
                                         "u4-g128-asym",
                                         "u4-g64-fzero",
                                         "i8-row",
                                         "i8-outlier",
                                         "i8-row-asym",
                                         "nf4",
                                         "nf4-g128",
                                         "fp4",
                                         "nf4-double",
                                         "fp4-g32-double",
                                         "u4-g32-bias",
                                         "fp8-e4m3",
                                         "fp8-e4m3-tensor",
                                         "fp8-e4m3-b128x128",
                                         "fp8-e4m3-b512xK",
                                         "mxfp4",
                                         "nvfp4",
                                         "i8-row-a8",
                                         "fp8-e4m3-b128x128-af8-g128",
                                         "u4-g128-asym-a8" };
    for (size_t i = 0; i < LQ_COUNT(names); i++) {
        qt_scheme s;
        char text[40];
        CHECK(!qt_scheme_parse(&s, names[i], NULL), "%s", names[i]);
        qt_scheme_text(text, &s);
        CHECK(strcmp(text, names[i]) == 0, "%s became %s", names[i], text);
    }
}

TEST(a_bad_scheme_name_is_refused)
{
    static const char *const names[] = { "",
                                         "u4",
                                         "u5-g32",
                                         "u4-g",
                                         "u4-g0",
                                         "u4-g-1",
                                         "u4-g32x",
                                         "i8",
                                         "nf4-g",
                                         "nf4-gK",
                                         "i32",
                                         "u4-g32-asymm",
                                         "u4-g99999999999",
                                         "nf4 ",
                                         "fp8-e4m3-b",
                                         "fp8-e4m3-b128",
                                         "fp8-e4m3-b128x0",
                                         "mxfp4-g32",
                                         "i8-row-a4",
                                         "nvfp4-a8-static" };
    for (size_t i = 0; i < LQ_COUNT(names); i++) {
        qt_scheme s;
        lq_err err = { "" };
        CHECK(qt_scheme_parse(&s, names[i], &err) == LQ_EVALUE && err.msg[0], "'%s'", names[i]);
    }
}

TEST(illegal_schemes_and_shapes_are_refused)
{
    qt_scheme u4 = fill_scheme("u4-g32"), bad;
    static const struct {
        const char *why;
        int64_t N, K;
    } shapes[] = { { "no rows", 0, 32 },
                   { "no columns", 4, 0 },
                   { "negative", -1, 32 },
                   { "group does not divide", 4, 33 },
                   { "more columns than an index", 1, INT64_C(1) << 31 },
                   { "product overflows", INT64_C(1) << 40, INT64_C(1) << 30 } };
    for (size_t i = 0; i < LQ_COUNT(shapes); i++)
        CHECK(qt_check(&u4, shapes[i].N, shapes[i].K, NULL) == LQ_ESHAPE, "%s", shapes[i].why);
#define BAD(why, from, field, value) \
    bad = fill_scheme(from);         \
    bad.field = value;               \
    CHECK(qt_check(&bad, 4, 64, NULL) != LQ_OK, why)
    BAD("bits", "u4-g32", bits, 5);
    BAD("scale type", "u4-g32", scale_dtype, LQ_I8);
    BAD("zero kind", "u4-g32", zero, (qt_zero)7);
    BAD("zero bits", "u4-g32-asym", zbits, 3);
    BAD("group", "u4-g32", group, 0);
    BAD("dense type", "f32", dtype, LQ_F64);
    BAD("f16 zeros of i8", "i8-row", zero, QT_ZERO_F16);
    BAD("outliers beyond K", "i8-outlier", n_out, 65);
    BAD("zeros of i8-outlier", "i8-outlier", zero, QT_ZERO_INT);
    BAD("block", "nf4", group, 0);
    BAD("negative rows of a block", "fp8-e4m3", rows, -1);
    BAD("negative inputs of a block", "fp8-e4m3", group, -1);
    BAD("group of mxfp4", "mxfp4", group, 16);
    BAD("group of nvfp4", "nvfp4", group, 32);
    BAD("scale type of e2m1", "nvfp4", scale_dtype, LQ_F32);
    BAD("division by no second scale", "mxfp4", recip, true);
    BAD("inputs rounded to an unknown type", "i8-row", act, (qt_act)5);
    BAD("a scale of inputs that are not rounded", "i8-row", act_scale, 0.5f);
    BAD("a negative scale of inputs", "i8-row-a8", act_scale, -0.5f);
    BAD("kind", "f32", kind, (qt_kind)9);
#undef BAD
}

TEST(views_with_wrong_planes_are_refused)
{
    lq_arena a;
    lq_arena_init(&a, 0, NULL);
    qt_tensor ok = fill_tensor(fill_scheme("gidx u4-g32-asym"), 5, 96, &a, 1), t;
    int32_t gidx[96];
    t = ok, t.plane[QT_CODES].bytes--;
    CHECK(qt_check_view(&t, NULL) == LQ_EFORMAT, "short codes");
    t = ok, t.plane[QT_MAP] = (qt_span){ gidx, 64 };
    CHECK(qt_check_view(&t, NULL) == LQ_EFORMAT, "a plane that the scheme does not have");
    t = ok, t.plane[QT_SCALES].data = NULL;
    CHECK(qt_check_view(&t, NULL) == LQ_EFORMAT, "no scales");
    t = ok, t.plane[QT_GIDX].data = gidx;
    memcpy(gidx, ok.plane[QT_GIDX].data, sizeof gidx);
    gidx[7] = 3;
    CHECK(qt_check_view(&t, NULL) == LQ_EVALUE, "a group beyond the last");
    gidx[7] = -1;
    CHECK(qt_check_view(&t, NULL) == LQ_EVALUE, "a negative group");
    for (int i = 0; i < 96; i++)
        gidx[i] = 0;
    CHECK(qt_check_view(&t, NULL) == LQ_EUNSUPPORTED, "one group has all");
    qt_scheme s = fill_scheme("i8-outlier");
    s.n_out = 3;
    t = fill_tensor(s, 5, 96, &a, 2);
    int32_t idx[3] = { 4, 4, 5 };
    t.plane[QT_OUT_IDX].data = idx;
    CHECK(qt_check_view(&t, NULL) == LQ_EVALUE, "an outlier column twice");
    idx[1] = 96;
    CHECK(qt_check_view(&t, NULL) == LQ_EVALUE, "an outlier column beyond the last");
    lq_arena_free(&a);
}

/* ---- small floats as torch reads and rounds them (tests/golden/quant/make_float.py) ---- */
static const st_tensor *golden(const st_file *f, const char *name)
{
    static const st_tensor none;
    const st_tensor *t = st_find(f, name);
    CHECK(t, "%s is missing", name);
    return t ? t : &none;
}

static float golden_at(const st_tensor *t, size_t i)
{
    float v;
    memcpy(&v, t->data + 4 * i, sizeof v);
    return v;
}

TEST(small_floats_are_those_of_torch)
{
    st_file f;
    lq_err err = { "" };
    lq_status st = st_open(&f, "tests/golden/quant/float.safetensors", &err);
    CHECK(!st, "%s", err.msg);
    if (st) return;
    for (unsigned c = 0; c < 256; c++) {
        float a = golden_at(golden(&f, "e4m3"), c), b = lq_e4m3_to_f32((uint8_t)c);
        CHECK(isnan(a) ? isnan(b) : memcmp(&a, &b, 4) == 0, "e4m3 %02x: %g", c, (double)b);
        a = golden_at(golden(&f, "e8m0"), c), b = lq_e8m0_to_f32((uint8_t)c);
        CHECK(isnan(a) ? isnan(b) : memcmp(&a, &b, 4) == 0, "e8m0 %02x: %g", c, (double)b);
    }
    const st_tensor *in = golden(&f, "round.in"), *out = golden(&f, "round.out");
    CHECK(out->bytes > 2000, "%zu", out->bytes);
    for (size_t i = 0; i < out->bytes; i++)
        CHECK(lq_f32_to_e4m3(golden_at(in, i)) == out->data[i], "%.9g: %02x, expected %02x",
              (double)golden_at(in, i), lq_f32_to_e4m3(golden_at(in, i)), out->data[i]);
    CHECK((lq_f32_to_e4m3(NAN) & 0x7f) == 0x7f && lq_f32_to_e4m3(INFINITY) == 0x7e, "NaN, Inf");
    st_close(&f);
}

TEST(weights_of_small_floats_are_those_of_torch)
{
    static const struct {
        const char *scheme, *codes, *scales, *scales2, *want;
        int64_t K;
    } t[] = {
        { "fp8-e4m3", "fp8.codes", "fp8.row", NULL, "fp8.row.w", 200 },
        { "fp8-e4m3-tensor", "fp8.codes", "fp8.tensor", NULL, "fp8.tensor.w", 200 },
        { "fp8-e4m3-b128x128", "fp8.codes", "fp8.b128", NULL, "fp8.b128.w", 200 },
        { "mxfp4", "mxfp4.codes", "mxfp4.scales", NULL, "mxfp4.w", 96 },
        { "recip nvfp4", "nvfp4.codes", "nvfp4.scales", "nvfp4.global", "nvfp4.w", 48 },
        { "nvfp4", "nvfp4.codes", "nvfp4.scales", "nvfp4.global", "nvfp4.times.w", 48 },
    };
    st_file f;
    lq_err err = { "" };
    lq_status st = st_open(&f, "tests/golden/quant/float.safetensors", &err);
    CHECK(!st, "%s", err.msg);
    for (size_t i = 0; i < LQ_COUNT(t) && !st; i++) {
        const st_tensor *codes = golden(&f, t[i].codes), *scales = golden(&f, t[i].scales);
        const st_tensor *want = golden(&f, t[i].want);
        qt_tensor q = { .scheme = fill_scheme(t[i].scheme), .N = codes->shape[0], .K = t[i].K };
        q.plane[QT_CODES] = (qt_span){ codes->data, codes->bytes };
        q.plane[QT_SCALES] = (qt_span){ scales->data, scales->bytes };
        if (t[i].scales2) q.plane[QT_SCALES2] = (qt_span){ golden(&f, t[i].scales2)->data, 4 };
        CHECK(!qt_check_view(&q, &err), "%s: %s", t[i].scheme, err.msg);
        float row[200];
        for (int64_t n = 0; n < q.N; n++) {
            qt_dequant(row, &q, n, n + 1);
            CHECK(memcmp(row, want->data + (size_t)(n * q.K) * 4, (size_t)q.K * 4) == 0,
                  "%s: row %lld", t[i].want, (long long)n);
        }
    }
    st_close(&f);
}

/* ---- a part of the rows ---- */
TEST(rows_of_a_tensor_read_as_they_do_in_the_whole)
{
    static const struct {
        const char *why, *scheme;
        int64_t n0, n1, rows;
        bool fits;
    } t[] = {
        { "dense", "bf16", 5, 9, 0, true },
        { "codes of odd rows", "u3-g32-asym", 5, 9, 0, true },
        { "order of inputs", "gidx u4-g32", 1, 20, 0, true },
        { "bias", "u4-g32-bias", 19, 20, 0, true },
        { "i8", "i8-row-asym", 3, 4, 0, true },
        { "outliers", "i8-outlier", 3, 7, 0, true },
        { "whole blocks", "nf4-g32", 5, 9, 0, true },
        { "double quantization from a block of blocks on", "nf4-g4-double", 0, 9, 0, true },
        { "double quantization inside one", "nf4-g4-double", 5, 9, 0, false },
        { "blocks across rows", "nf4-g64", 5, 9, 0, false },
        { "scales of rows", "fp8-e4m3", 5, 9, 0, true },
        { "one scale", "fp8-e4m3-tensor", 5, 9, 0, true },
        { "one scale for each expert", "fp8-e4m3-b5xK", 5, 10, 0, true },
        { "the last block, short", "fp8-e4m3-b8x16", 16, 20, 0, true },
        { "a cut block", "fp8-e4m3-b8x16", 4, 12, 0, false },
        { "mxfp4", "mxfp4", 5, 9, 0, true },
        { "nvfp4", "nvfp4", 5, 9, 0, true },
        { "nvfp4 of experts", "nvfp4", 5, 10, 5, true },
        { "nvfp4 of experts, cut", "nvfp4", 6, 10, 5, false },
        { "beyond the end", "bf16", 5, 21, 0, false },
        { "none", "bf16", 5, 5, 0, false },
    };
    enum { N = 20, K = 96 };
    static float whole[N * K], part[N * K];
    for (size_t i = 0; i < LQ_COUNT(t); i++) {
        lq_arena a;
        lq_arena_init(&a, 0, NULL);
        qt_scheme s = fill_scheme(t[i].scheme);
        if (t[i].rows) s.rows = t[i].rows;
        if (s.kind == QT_I8_OUTLIER) s.n_out = 3;
        qt_tensor q = fill_tensor(s, N, K, &a, i), r;
        lq_err err = { "" };
        bool fits = qt_rows(&r, &q, t[i].n0, t[i].n1);
        CHECK(fits == t[i].fits, "%s", t[i].why);
        if (fits) {
            CHECK(!qt_check_view(&r, &err), "%s: %s", t[i].why, err.msg);
            qt_dequant(whole, &q, 0, N);
            qt_dequant(part, &r, 0, r.N);
            CHECK(memcmp(part, whole + t[i].n0 * K, (size_t)(r.N * K) * 4) == 0, "%s", t[i].why);
        }
        lq_arena_free(&a);
    }
}

TEST(bits_are_packed_least_significant_first)
{
    static const uint8_t codes[] = { 1, 2, 3, 4, 5, 6, 7, 0, 1 };
    uint8_t row[4] = { 0 };
    qt_pack_row(row, codes, 9, 3);
    /* 001 010 011 100 101 110 111 000 001 from bit 0 up: 0x1f58d1 and then 01 */
    CHECK(row[0] == 0xd1 && row[1] == 0x58 && row[2] == 0x1f && row[3] == 0x01,
          "%02x %02x %02x %02x", row[0], row[1], row[2], row[3]);
    for (int i = 0; i < 9; i++)
        CHECK(qt_get(row, i, 3) == codes[i], "code %d", i);
}

/* A row's codes in the order of its bits, one by one. */
static unsigned code_of(const uint8_t *row, int64_t k, int bits)
{
    unsigned v = 0;
    for (int64_t i = 0; i < bits; i++) {
        const int64_t at = k * bits + i;
        v |= (unsigned)(row[at / 8] >> at % 8 & 1) << i;
    }
    return v;
}

TEST(rows_of_any_length_are_packed_and_read_code_by_code)
{
    static const int64_t lengths[] = { 1, 7, 8, 9, 16, 31, 40, 64, 255, 264, 599 };
    enum { MOST = 599 };
    for (size_t l = 0; l < LQ_COUNT(lengths); l++)
        for (int bits = 1; bits <= 8; bits++) {
            const int64_t K = lengths[l];
            const size_t bytes = qt_row_bytes(K, bits);
            uint8_t codes[MOST], row[MOST + 1];
            for (int64_t k = 0; k < K; k++)
                codes[k] = (uint8_t)((k * 37 + 11) ^ (k >> 3)); /* more than `bits` bits */
            memset(row, 0xa5, sizeof row);
            qt_pack_row(row, codes, K, bits);
            CHECK(row[bytes] == 0xa5, "%d bits, %lld: one byte too many", bits, (long long)K);
            CHECK((int)bytes * 8 == K * bits || row[bytes - 1] >> (K * bits % 8) == 0,
                  "%d bits, %lld: padding", bits, (long long)K);
            for (int64_t k = 0; k < K; k++)
                CHECK(code_of(row, k, bits) == (codes[k] & ((1u << bits) - 1)), "%d bits: %lld",
                      bits, (long long)k);
            for (int64_t k = 0, n = 0; k <= K; k += 1 + k / 20, n = (n + 29) % (K - k + 2)) {
                uint8_t piece[MOST + 1];
                memset(piece, 0x5a, sizeof piece);
                if (n > K - k) n = K - k;
                qt_unpack(piece, row, k, n, bits);
                int wrong = piece[n] != 0x5a;
                for (int64_t i = 0; i < n; i++)
                    wrong += piece[i] != (codes[k + i] & ((1u << bits) - 1));
                CHECK(!wrong, "%d bits: %lld from %lld", bits, (long long)n, (long long)k);
            }
        }
}

TEST(grids_are_read_alike_at_any_length_and_group)
{
    static const struct {
        int bits;
        const char *zeros;
    } kinds[] = { { 2, "" },      { 3, "-asym" }, { 4, "-asym" },
                  { 8, "-asym" }, { 3, "-bias" }, { 4, "-fzero" } };
    static const struct {
        int group;
        int64_t K;
    } shapes[] = { { 1, 5 },    { 8, 24 },   { 12, 60 },   { 16, 48 },
                   { 40, 120 }, { 64, 320 }, { 300, 300 }, { 599, 599 } };
    enum { MOST = 599 };
    for (size_t i = 0; i < LQ_COUNT(kinds) * LQ_COUNT(shapes); i++) {
        const int group = shapes[i % LQ_COUNT(shapes)].group;
        const int64_t K = shapes[i % LQ_COUNT(shapes)].K, ng = K / group;
        char name[40];
        float got[3 * MOST];
        lq_arena a;
        lq_arena_init(&a, 0, NULL);
        snprintf(name, sizeof name, "u%d-g%d%s", kinds[i / LQ_COUNT(shapes)].bits, group,
                 kinds[i / LQ_COUNT(shapes)].zeros);
        const qt_tensor t = fill_tensor(fill_scheme(name), 3, K, &a, i);
        const qt_scheme *s = &t.scheme;
        qt_dequant(got, &t, 0, 3);
        for (int64_t at = 0; at < 3 * K; at++) {
            const int64_t n = at / K, k = at % K, g = k / group;
            const uint8_t *codes = t.plane[QT_CODES].data, *zeros = t.plane[QT_ZEROS].data;
            uint16_t scale, side = 0;
            memcpy(&scale, (const uint8_t *)t.plane[QT_SCALES].data + 2 * (n * ng + g), 2);
            if (s->zero == QT_ZERO_F16 || s->zero == QT_ZERO_BIAS)
                memcpy(&side, zeros + 2 * (n * ng + g), 2);
            const float f = lq_f16_to_f32(scale), half = (float)(1 << (s->bits - 1));
            const float c =
                (float)code_of(codes + (size_t)n * qt_row_bytes(K, s->bits), k, s->bits);
            float zero = s->zero == QT_ZERO_F16 ? lq_f16_to_f32(side) : half;
            if (s->zero == QT_ZERO_INT)
                zero = (float)code_of(zeros + (size_t)n * qt_row_bytes(ng, s->zbits), g, s->zbits);
            const float want =
                s->zero == QT_ZERO_BIAS ? f * c + lq_f16_to_f32(side) : f * (c - zero);
            CHECK(memcmp(&got[at], &want, sizeof want) == 0 || (isnan(got[at]) && isnan(want)),
                  "%s [3,%lld]: %lld: %g, %g", name, (long long)K, (long long)at, (double)got[at],
                  (double)want);
        }
        lq_arena_free(&a);
    }
}

TEST(tables_are_read_alike_in_rows_of_odd_length)
{
    enum { N = 3, K = 77 };
    static const char *const kinds[] = { "nf4-g4", "nf4-g32", "nf4", "fp4-g128-double" };
    for (size_t i = 0; i < LQ_COUNT(kinds); i++) {
        float got[N * K], map[16];
        lq_arena a;
        lq_arena_init(&a, 0, NULL);
        const qt_tensor t = fill_tensor(fill_scheme(kinds[i]), N, K, &a, i);
        memcpy(map, t.plane[QT_MAP].data, sizeof map);
        for (int64_t n = 0; n < N; n++)
            qt_dequant(got + n * K, &t, n, n + 1);
        for (int64_t at = 0; at < N * K; at++) {
            const uint8_t byte = ((const uint8_t *)t.plane[QT_CODES].data)[at / 2];
            const float want =
                map[at % 2 ? byte & 15 : byte >> 4] * qt_lut_absmax(&t, at / t.scheme.group);
            CHECK(memcmp(&got[at], &want, sizeof want) == 0 || (isnan(got[at]) && isnan(want)),
                  "%s: %lld: %g, %g", kinds[i], (long long)at, (double)got[at], (double)want);
        }
        lq_arena_free(&a);
    }
}

/* Each scheme with values worked by hand. */
TEST(the_reference_reading_gives_hand_worked_values)
{
    float y[8];
    uint16_t h[4];
    qt_tensor t = { .scheme = fill_scheme("u4-g2-asym"), .N = 1, .K = 4 };
    uint8_t codes[4] = { 0x51, 0xf0 }, zeros[1] = { 0x83 }; /* codes 1 5 0 15, zeros 3 8 */
    h[0] = lq_f32_to_f16(0.5f), h[1] = lq_f32_to_f16(-2.0f);
    t.plane[QT_CODES] = (qt_span){ codes, 2 };
    t.plane[QT_SCALES] = (qt_span){ h, 4 };
    t.plane[QT_ZEROS] = (qt_span){ zeros, 1 };
    CHECK(!qt_check_view(&t, NULL), "view");
    qt_dequant(y, &t, 0, 1);
    CHECK(y[0] == -1.0f && y[1] == 1.0f && y[2] == 16.0f && y[3] == -14.0f, "%g %g %g %g",
          (double)y[0], (double)y[1], (double)y[2], (double)y[3]);

    int32_t gidx[4] = { 1, 0, 1, 0 };
    t.scheme.act_order = true;
    t.plane[QT_GIDX] = (qt_span){ gidx, 16 };
    qt_dequant(y, &t, 0, 1);
    CHECK(y[0] == 14.0f && y[1] == 1.0f && y[2] == 16.0f && y[3] == 6.0f, "by g_idx");

    uint16_t fz[2] = { lq_f32_to_f16(7.5f), lq_f32_to_f16(0.25f) };
    t.scheme = fill_scheme("u4-g2-fzero");
    t.plane[QT_GIDX] = (qt_span){ 0 };
    t.plane[QT_ZEROS] = (qt_span){ fz, 4 };
    qt_dequant(y, &t, 0, 1);
    CHECK(y[0] == -3.25f && y[1] == -1.25f && y[2] == 0.5f && y[3] == -29.5f, "f16 zeros");

    t.scheme = fill_scheme("u4-g2");
    qt_dequant(y, &t, 0, 1);
    CHECK(y[0] == -3.5f && y[1] == -1.5f && y[2] == 16.0f && y[3] == -14.0f, "symmetric: zero 8");

    int8_t i8[4] = { 127, -127, 0, 1 }, z8[1] = { -1 };
    float s32[4] = { 254.0f };
    t = (qt_tensor){ .scheme = fill_scheme("i8-row"), .N = 1, .K = 4 };
    t.plane[QT_CODES] = (qt_span){ i8, 4 };
    t.plane[QT_SCALES] = (qt_span){ s32, 4 };
    qt_dequant(y, &t, 0, 1);
    CHECK(y[0] == 254.0f && y[1] == -254.0f && y[2] == 0.0f && y[3] == 2.0f, "absmax");
    t.scheme = fill_scheme("i8-row-asym");
    t.plane[QT_ZEROS] = (qt_span){ z8, 1 };
    s32[0] = 0.5f;
    qt_dequant(y, &t, 0, 1);
    CHECK(y[0] == 64.0f && y[1] == -63.0f && y[2] == 0.5f && y[3] == 1.0f, "zero point");
    t.scheme = fill_scheme("i8-outlier");
    t.scheme.n_out = 1;
    int32_t out[1] = { 2 };
    h[0] = lq_f32_to_bf16(-3.5f);
    s32[0] = 127.0f;
    t.plane[QT_ZEROS] = (qt_span){ 0 };
    t.plane[QT_OUT_IDX] = (qt_span){ out, 4 };
    t.plane[QT_OUT_VALS] = (qt_span){ h, 2 };
    qt_dequant(y, &t, 0, 1);
    CHECK(y[0] == 127.0f && y[1] == -127.0f && y[2] == -3.5f && y[3] == 1.0f, "outlier column");

    /* nf4, 3 rows of 2, blocks of 4: rows 0,1 share block 0. Codes, high nibble first: 0 1 | 2 3 |
     * 4 5 */
    float map[16], map2[256] = { 0 };
    for (int i = 0; i < 16; i++)
        map[i] = (float)i;
    t = (qt_tensor){ .scheme = fill_scheme("nf4-g4"), .N = 3, .K = 2 };
    uint8_t nib[3] = { 0x01, 0x23, 0x45 }, q8[2] = { 7, 9 };
    s32[0] = 10, s32[1] = 100;
    t.plane[QT_CODES] = (qt_span){ nib, 3 };
    t.plane[QT_SCALES] = (qt_span){ s32, 8 };
    t.plane[QT_MAP] = (qt_span){ map, 64 };
    CHECK(!qt_check_view(&t, NULL), "view");
    qt_dequant(y, &t, 0, 3);
    CHECK(y[0] == 0 && y[1] == 10 && y[2] == 20 && y[3] == 30 && y[4] == 400 && y[5] == 500, "nf4");
    t.scheme.dbl = true;
    t.scheme.offset = 0.25f;
    map2[7] = 0.5f, map2[9] = -1.0f;
    float s2[1] = { 4.0f };
    t.plane[QT_SCALES] = (qt_span){ q8, 2 };
    t.plane[QT_SCALES2] = (qt_span){ s2, 4 };
    t.plane[QT_MAP2] = (qt_span){ map2, 1024 };
    CHECK(!qt_check_view(&t, NULL), "view");
    qt_dequant(y, &t, 0, 3); /* absmax 0.5*4+0.25 = 2.25 and -4+0.25 = -3.75 */
    CHECK(y[1] == 2.25f && y[3] == 6.75f && y[4] == -15.0f && y[5] == -18.75f, "double");
}

TEST(bytes_count_every_plane)
{
    static const struct {
        const char *scheme;
        int64_t N, K;
        size_t want;
    } t[] = {
        { "bf16", 3, 5, 30 },
        { "u4-g128", 2, 256, 256 + 8 },
        { "u4-g128-asym", 2, 256, 256 + 8 + 2 },
        { "u3-g96", 1, 96, 36 + 2 },
        { "u3-g5", 1, 5, 2 + 2 },
        { "i8-row", 3, 7, 21 + 12 },
        { "nf4", 3, 43, 65 + 12 + 64 },
        { "nf4-double", 3, 43, 65 + 3 + 64 + 4 + 1024 },
        { "u4-g32-bias", 2, 64, 64 + 8 + 8 },
        { "fp8-e4m3", 3, 43, 129 + 12 },
        { "fp8-e4m3-tensor", 3, 43, 129 + 4 },
        { "fp8-e4m3-b2x40", 3, 43, 129 + 16 },
        { "mxfp4", 3, 64, 96 + 6 },
        { "nvfp4", 3, 48, 72 + 9 + 4 },
    };
    for (size_t i = 0; i < LQ_COUNT(t); i++) {
        qt_scheme s = fill_scheme(t[i].scheme);
        CHECK(qt_bytes(&s, t[i].N, t[i].K) == t[i].want, "%s: %zu", t[i].scheme,
              qt_bytes(&s, t[i].N, t[i].K));
    }
}

int main(int argc, char **argv)
{
    RUN(a_scheme_has_one_name_and_reads_it_back);
    RUN(a_bad_scheme_name_is_refused);
    RUN(illegal_schemes_and_shapes_are_refused);
    RUN(views_with_wrong_planes_are_refused);
    RUN(small_floats_are_those_of_torch);
    RUN(weights_of_small_floats_are_those_of_torch);
    RUN(rows_of_a_tensor_read_as_they_do_in_the_whole);
    RUN(bits_are_packed_least_significant_first);
    RUN(rows_of_any_length_are_packed_and_read_code_by_code);
    RUN(grids_are_read_alike_at_any_length_and_group);
    RUN(tables_are_read_alike_in_rows_of_odd_length);
    RUN(the_reference_reading_gives_hand_worked_values);
    RUN(bytes_count_every_plane);
    return check_end();
}
