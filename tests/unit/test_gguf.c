/* tests/unit/test_gguf.c - GGUF's container and blocks. Block vectors: worked by two independent
 * decoders and gguf-py 0.19 (byte i is 37 i + 11, first f16 0.25, second 0.125). A whole model by
 * llama.cpp: tests/e2e/test_gguf.py. */
#include "formats/gguf/gguf_blocks.h"
#include "formats/source/source_impl.h"
#include "formats/tensor/blocks_uint.h"
#include "tests/support/check.h"

#include <stdlib.h>

TEST(blocks_of_every_type_have_known_values)
{
    static const struct {
        ggml_type type;
        const char *name;
        int n, d, d2; /* elements; places of the two f16, -1: none */
        float first[4];
        double sum;
        float last;
    } t[] = {
        { GGML_Q4_0, "Q4_0", 32, 0, -1, { -0.75f, 0.5f, 1.75f, -1 }, -5.25, 0 },
        { GGML_Q4_1, "Q4_1", 32, 0, 2, { 3.875f, 1.125f, 2.375f, 3.625f }, 65.25, 3.125f },
        { GGML_Q5_0, "Q5_0", 32, 0, -1, { 2.25f, -0.5f, 0.75f, -2 }, 3.75, 0.25f },
        { GGML_Q8_0, "Q8_0", 32, 0, -1, { 21.25f, 30.5f, -24.25f, -15 }, -44, -12 },
        { GGML_Q2_K, "Q2_K", 256, 80, 82, { 8.25f, 0, 2.75f, 5.5f }, 514.75, 1.125f },
        { GGML_Q3_K, "Q3_K", 256, 108, -1, { 20.25f, -27, 6.75f, -13.5f }, 239.5, 10.5f },
        { GGML_Q4_K, "Q4_K", 256, 0, 2, { 78.875f, -6.375f, 32.375f, 71.125f }, 13610, 12.125f },
        { GGML_Q5_K, "Q5_K", 256, 0, 2, { 202.875f, -6.375f, 156.375f, 71.125f }, 29054, 27.125f },
        { GGML_Q6_K, "Q6_K", 256, 208, -1, { -357.75f, 424, 145.75f, -132.5f }, 1153, -15 },
    };
    for (size_t i = 0; i < LQ_COUNT(t); i++) {
        uint8_t block[256];
        const uint8_t quarter[2] = { 0, 0x34 }, eighth[2] = { 0, 0x30 };
        for (int b = 0; b < 256; b++)
            block[b] = (uint8_t)(37 * b + 11);
        memcpy(block + t[i].d, quarter, 2);
        if (t[i].d2 >= 0) memcpy(block + t[i].d2, eighth, 2);
        const qt_scheme s = gguf_scheme(t[i].type);
        qt_tensor q;
        void *w[QT_N_PLANES];
        lq_arena a = { 0 };
        lq_err err = { "" };
        float y[256];
        double sum = 0;
        CHECK(!qt_alloc(&q, w, &s, 1, t[i].n, &a, &err), "%s: %s", t[i].name, err.msg);
        gguf_unpack_row(w, &q, 0, t[i].type, block);
        CHECK(!qt_check_view(&q, &err), "%s: %s", t[i].name, err.msg);
        qt_dequant(y, &q, 0, 1);
        for (int k = 0; k < t[i].n; k++)
            sum += (double)y[k];
        for (int k = 0; k < 4; k++)
            CHECK(y[k] == t[i].first[k], "%s[%d] = %g", t[i].name, k, (double)y[k]);
        CHECK(fabs(sum - t[i].sum) < 1e-9 && y[t[i].n - 1] == t[i].last, "%s: sum %.9g, last %g",
              t[i].name, sum, (double)y[t[i].n - 1]);
        CHECK(strcmp(gguf_type_text(t[i].type), t[i].name) == 0, "%s", gguf_type_text(t[i].type));
        lq_arena_free(&a);
    }
}

TEST(q5_1_is_q5_0_with_a_bias)
{
    uint8_t block[24] = {
        0, 0x34, 0, 0x30, 1, 0, 0, 0x80
    }; /* d .25, m .125; 5th bits of 0 and 31 */
    block[8] = 0x03, block[23] = 0xf0;
    const qt_scheme s = gguf_scheme(GGML_Q5_1);
    qt_tensor q;
    void *w[QT_N_PLANES];
    lq_arena a = { 0 };
    float y[32];
    CHECK(!qt_alloc(&q, w, &s, 1, 32, &a, NULL), "alloc");
    gguf_unpack_row(w, &q, 0, GGML_Q5_1, block);
    qt_dequant(y, &q, 0, 1);
    CHECK(y[0] == 0.25f * 19 + 0.125f && y[31] == 0.25f * 31 + 0.125f && y[1] == 0.125f, "%g %g %g",
          (double)y[0], (double)y[31], (double)y[1]);
    lq_arena_free(&a);
}

/* ---- the container, written by hand ---- */
typedef struct {
    uint8_t b[2048];
    size_t n;
} bytes;

static void put(bytes *o, const void *p, size_t n)
{
    memcpy(o->b + o->n, p, n);
    o->n += n;
}
static void put_le(bytes *o, uint64_t v, int n)
{
    for (int i = 0; i < n; i++)
        o->b[o->n++] = (uint8_t)(v >> 8 * i);
}
static void put_str(bytes *o, const char *s)
{
    put_le(o, strlen(s), 8);
    put(o, s, strlen(s));
}
static void put_head(bytes *o, uint32_t version, uint64_t tensors, uint64_t pairs)
{
    o->n = 0;
    put(o, "GGUF", 4);
    put_le(o, version, 4);
    put_le(o, tensors, 8);
    put_le(o, pairs, 8);
}
static void put_info(bytes *o, const char *name, uint64_t K, uint64_t N, uint32_t type,
                     uint64_t off)
{
    put_str(o, name);
    put_le(o, N ? 2 : 1, 4);
    put_le(o, K, 8);
    if (N) put_le(o, N, 8);
    put_le(o, type, 4);
    put_le(o, off, 8);
}
static void pad(bytes *o, size_t to)
{
    while (o->n % to)
        o->b[o->n++] = 0;
}

static void small(bytes *o)
{
    put_head(o, 3, 1, 3);
    put_str(o, "a.list");
    put_le(o, GGUF_ARRAY, 4), put_le(o, GGUF_STRING, 4), put_le(o, 2, 8);
    put_str(o, "x"), put_str(o, "yz");
    put_str(o, "a.number");
    put_le(o, GGUF_I16, 4), put_le(o, 0xfffe, 2);
    put_str(o, "general.architecture");
    put_le(o, GGUF_STRING, 4), put_str(o, "llama");
    put_info(o, "t.weight", 2, 3, 1, 0);
    pad(o, 32);
    for (int i = 0; i < 6; i++)
        put_le(o, 0x3c00, 2);
}

TEST(a_small_file_is_read)
{
    bytes o;
    gguf_file f;
    lq_err err = { "" };
    small(&o);
    lq_status st = gguf_open_bytes(&f, o.b, o.n, &err);
    CHECK(!st, "%s", err.msg);
    if (st) return;
    int64_t v = 0;
    const char *arch = "";
    const gguf_kv *list = gguf_get(&f, "a.list");
    CHECK(gguf_int(&f, "a.number", &v) && v == -2, "%lld", (long long)v);
    CHECK(gguf_str(&f, "general.architecture", &arch) && strcmp(arch, "llama") == 0, "%s", arch);
    CHECK(list && list->array && list->n == 2, "list");
    const uint8_t *at = list->data;
    gguf_next(&at);
    const gguf_text t = gguf_next(&at);
    CHECK(t.n == 2 && memcmp(t.s, "yz", 2) == 0, "second string");
    const gguf_tensor *w = gguf_find(&f, "t.weight");
    CHECK(w && w->n_dims == 2 && w->shape[0] == 3 && w->shape[1] == 2 && w->bytes == 12 &&
              w->data == o.b + o.n - 12,
          "tensor");
    bool no;
    CHECK(!gguf_bool(&f, "a.number", &no) && !gguf_get(&f, "b"), "other kinds, other keys");
    gguf_close(&f);
}

TEST(a_file_cut_anywhere_is_refused)
{
    bytes o;
    small(&o);
    for (size_t n = 0; n < o.n; n++) {
        gguf_file f;
        lq_err err = { "" };
        uint8_t *copy = malloc(n ? n : 1); /* exact */
        memcpy(copy, o.b, n);
        CHECK(gguf_open_bytes(&f, copy, n, &err) && err.msg[0], "%zu bytes", n);
        free(copy);
    }
}

TEST(what_a_header_may_not_say_is_refused)
{
    enum { CASES = 14 };
    const char *why[CASES];
    for (int i = 0; i < CASES; i++) {
        bytes o;
        gguf_file f;
        lq_err err = { "" };
        const char *says = "";
#define CASE(number, what, text)                 \
    if (i == number) why[i] = what, says = text; \
    if (i == number)
        put_head(&o, 3, 1, 0);
        CASE(0, "version 1", "version") put_head(&o, 1, 1, 0);
        CASE(1, "the other byte order", "endian") put_head(&o, 0x03000000, 1, 0);
        CASE(2, "more tensors than bytes", "more tensors") put_head(&o, 3, 1 << 20, 0);
        CASE(3, "counts that overflow", "more tensors") put_head(&o, 3, UINT64_MAX, UINT64_MAX);
        const uint64_t K = i == 4 ? 0 : i == 5 ? UINT64_C(1) << 62 : i == 6 ? 31 : 32;
        const uint64_t N = i == 5 ? 16 : i == 7 ? 4096 : 1;
        const uint32_t type = i == 8 ? 15 : i == 6 ? 2 : 0;
        CASE(4, "a size of 0", "sizes of 0")(void) 0;
        CASE(5, "sizes that overflow", "too large")(void) 0;
        CASE(6, "half a block", "whole blocks")(void) 0;
        CASE(7, "data behind the end", "in a file of")(void) 0;
        CASE(8, "a type that is not read", "type Q8_K")(void) 0;
        CASE(9, "an offset off the alignment", "multiple of 32")(void) 0;
        CASE(10, "an offset near 2^64", "in a file of")(void) 0;
        if (i == 11 || i == 12 || i == 13) put_head(&o, 3, i == 11 ? 2 : 0, i == 11 ? 0 : 2);
        if (i < 12) put_info(&o, "t", K, N, type, i == 9 ? 4 : i == 10 ? UINT64_MAX - 31 : 0);
        CASE(11, "a tensor twice", "given twice") put_info(&o, "t", K, N, type, 0);
        CASE(12, "a key twice", "given twice")
        for (int k = 0; k < 2; k++)
            put_str(&o, "k"), put_le(&o, GGUF_U8, 4), put_le(&o, 1, 1);
        CASE(13, "arrays in arrays without end", "too deep")
        {
            put_str(&o, "k"), put_le(&o, GGUF_ARRAY, 4);
            for (int k = 0; k < 8; k++)
                put_le(&o, GGUF_ARRAY, 4), put_le(&o, 1, 8);
        }
#undef CASE
        pad(&o, 32);
        for (int k = 0; k < 16; k++)
            put_le(&o, 0, 8);
        const lq_status st = gguf_open_bytes(&f, o.b, o.n, &err);
        CHECK(st && strstr(err.msg, says), "%s: '%s'", why[i], err.msg);
        if (!st) gguf_close(&f);
    }
}

/* Random blocks of a type, their factors finite. */
static void random_blocks(uint8_t *p, ggml_type t, size_t n)
{
    static uint64_t seed = 3;
    static const struct {
        ggml_type type;
        int at[2]; /* of f16 numbers in a block, or -1 */
    } f16s[] = { { GGML_Q4_0, { 0, -1 } },   { GGML_Q4_1, { 0, 2 } },  { GGML_Q5_0, { 0, -1 } },
                 { GGML_Q5_1, { 0, 2 } },    { GGML_Q8_0, { 0, -1 } }, { GGML_Q2_K, { 80, 82 } },
                 { GGML_Q3_K, { 108, -1 } }, { GGML_Q4_K, { 0, 2 } },  { GGML_Q5_K, { 0, 2 } },
                 { GGML_Q6_K, { 208, -1 } } };
    size_t k = 0;
    while (f16s[k].type != t)
        k++;
    const size_t block = gguf_row_bytes(t, 256) / (gguf_row_bytes(t, 32) ? 8 : 1);
    for (size_t i = 0; i < n; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        p[i] = (uint8_t)(seed >> 40);
    }
    for (size_t i = 0; i < n; i += block)
        for (int j = 0; j < 2; j++)
            if (f16s[k].at[j] >= 0) { /* a sign and 2^-8 .. 2^8 */
                uint8_t *high = p + i + f16s[k].at[j] + 1;
                *high = (uint8_t)((*high & 0x83u) | (7u + *high / 16u) << 2);
            }
}

TEST(blocks_of_every_type_come_back_from_our_schemes)
{
    static const ggml_type types[] = { GGML_Q4_0, GGML_Q4_1, GGML_Q5_0, GGML_Q5_1, GGML_Q8_0,
                                       GGML_Q2_K, GGML_Q3_K, GGML_Q4_K, GGML_Q5_K, GGML_Q6_K };
    enum { K = 512, ROUNDS = 1000 };
    for (size_t i = 0; i < LQ_COUNT(types) * ROUNDS; i++) {
        const ggml_type t = types[i / ROUNDS];
        uint8_t in[K * 2], out[K * 2] = { 0 };
        float want[K], got[K];
        ggml_type found;
        lq_arena a = { 0 };
        qt_tensor q, r;
        void *w[QT_N_PLANES];
        lq_err err = { "" };
        const size_t n = gguf_row_bytes(t, K);
        const qt_scheme s = gguf_scheme(t);
        random_blocks(in, t, n);
        CHECK(!qt_alloc(&q, w, &s, 1, K, &a, &err), "%s", err.msg);
        gguf_unpack_row(w, &q, 0, t, in);
        const qt_tensor blocks = q;
        if (s.kind == QT_BLOCKS) /* as files of earlier versions have it */
            CHECK(!blk_to_uint(&q, &blocks, &a, &err), "%s", err.msg);
        bool held = false; /* Q5_0 is tried before Q8_0 */
        for (size_t k = 0; !held && gguf_type_for(&found, &q, k); k++) {
            memset(out, 0, sizeof out);
            held = gguf_pack_row(out, &q, 0, found);
        }
        CHECK(held && found == t, "%s: another type", gguf_type_text(t));
        if (q.scheme.scale_dtype == LQ_F16) /* one way to say it */
            CHECK(!memcmp(in, out, n), "%s: other bytes", gguf_type_text(t));
        CHECK(!qt_alloc(&r, w, &s, 1, K, &a, &err), "%s", err.msg);
        gguf_unpack_row(w, &r, 0, t, out);
        qt_dequant(want, &q, 0, 1);
        qt_dequant(got, &r, 0, 1);
        for (int k = 0; k < K; k++)
            if (!(want[k] >= got[k] && want[k] <= got[k])) {
                CHECK(false, "%s: [%d]: %g instead of %g", gguf_type_text(t), k, (double)got[k],
                      (double)want[k]);
                break;
            }
        lq_arena_free(&a);
        if (check_bad) return;
    }
}

TEST(values_that_no_block_holds_are_refused)
{
    static const struct {
        const char *why, *scheme;
        float scale;
        bool type, held;
    } t[] = { { "groups of 128 repeat their scale", "u4-g128", 0.5f, true, true },
              { "2 bits are some of 4", "u2-g32", 0.5f, true, true },
              { "a scale with more bits than f16 has", "u4-g32", 1.0f + 0x1p-20f, true, false },
              { "groups of 48", "u4-g48", 0.5f, false, false },
              { "zero points", "u4-g32-asym", 0.5f, false, false },
              { "a table of values", "nf4", 0.5f, false, false } };
    for (size_t i = 0; i < LQ_COUNT(t); i++) {
        lq_arena a = { 0 };
        lq_err err = { "" };
        qt_tensor q;
        qt_scheme s;
        void *w[QT_N_PLANES];
        uint8_t out[4096] = { 0 };
        ggml_type type;
        CHECK(!qt_scheme_parse(&s, t[i].scheme, &err), "%s", err.msg);
        if (s.kind == QT_UINT) s.scale_dtype = LQ_F32;
        CHECK(!qt_alloc(&q, w, &s, 1, 384, &a, &err), "%s", err.msg);
        for (int64_t g = 0; s.kind == QT_UINT && g < 384 / s.group; g++)
            memcpy((uint8_t *)w[QT_SCALES] + 4 * g, &t[i].scale, 4);
        CHECK(gguf_type_for(&type, &q, 0) == t[i].type, "%s", t[i].why);
        if (t[i].type) CHECK(gguf_pack_row(out, &q, 0, type) == t[i].held, "%s", t[i].why);
        lq_arena_free(&a);
    }
}

int main(int argc, char **argv)
{
    RUN(blocks_of_every_type_have_known_values);
    RUN(q5_1_is_q5_0_with_a_bias);
    RUN(a_small_file_is_read);
    RUN(a_file_cut_anywhere_is_refused);
    RUN(what_a_header_may_not_say_is_refused);
    RUN(blocks_of_every_type_come_back_from_our_schemes);
    RUN(values_that_no_block_holds_are_refused);
    return check_end();
}
