/* tests/unit/test_llmq.c - the .llmq file: round trips, equal bytes, every byte covered, refusals, and
 * the hex dump in its specification. */
#include "base/file.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/path.h"
#include "formats/llmq/llmq.h"
#include "formats/source/source.h"
#include "tests/support/check.h"
#include "tests/support/guard.h"

#include <stdlib.h>
#include <unistd.h>

static char dir[] = "/tmp/llmq-test-XXXXXX";

static const char *in_dir(const char *name)
{
    static char path[4][128];
    static int turn;
    turn = (turn + 1) % 4;
    snprintf(path[turn], sizeof path[turn], "%s/%s", dir, name);
    return path[turn];
}

/* ---- tensors of every scheme, filled with bytes that qt_check_view accepts ---- */
static const struct {
    const char *name;
    qt_scheme s;
    int64_t N, K;
} schemes[] = {
    { "dense.f32", { .kind = QT_DENSE, .dtype = LQ_F32 }, 3, 5 },
    { "dense.bf16", { .kind = QT_DENSE, .dtype = LQ_BF16 }, 1, 7 },
    { "uint.sym", { .kind = QT_UINT, .bits = 4, .group = 32, .scale_dtype = LQ_F16 }, 3, 64 },
    { "uint.asym",
      { .kind = QT_UINT,
        .bits = 3,
        .group = 16,
        .zero = QT_ZERO_INT,
        .zbits = 8,
        .scale_dtype = LQ_F32 },
      2,
      48 },
    { "uint.gidx",
      { .kind = QT_UINT,
        .bits = 2,
        .group = 8,
        .zero = QT_ZERO_F16,
        .scale_dtype = LQ_BF16,
        .act_order = true },
      2,
      16 },
    { "i8", { .kind = QT_I8, .zero = QT_ZERO_INT }, 2, 9 },
    { "i8.outlier", { .kind = QT_I8_OUTLIER, .n_out = 2, .div127 = true }, 2, 9 },
    { "nf4", { .kind = QT_LUT4, .group = 64 }, 3, 33 },
    { "fp4.double",
      { .kind = QT_LUT4, .group = 64, .fp4 = true, .dbl = true, .offset = 0.1f },
      4,
      64 },
    { "uint.bias",
      { .kind = QT_UINT, .bits = 4, .group = 32, .zero = QT_ZERO_BIAS, .scale_dtype = LQ_F16 },
      3,
      64 },
    { "fp8", { .kind = QT_E4M3, .rows = 2, .group = 5, .act = QT_ACT_F8, .act_group = 5 }, 3, 9 },
    { "mxfp4", { .kind = QT_E2M1, .group = 32, .scale_dtype = LQ_F8_E8M0 }, 3, 64 },
    { "nvfp4",
      { .kind = QT_E2M1, .group = 16, .scale_dtype = LQ_F8_E4M3, .rows = 2, .recip = true },
      3,
      48 },
    { "w8a8", { .kind = QT_I8, .act = QT_ACT_I8, .act_scale = 0.125f }, 2, 9 },
};

static qt_tensor make_tensor(size_t which, lq_arena *a)
{
    qt_tensor t;
    void *w[QT_N_PLANES];
    lq_err err = { "" };
    lq_status s = qt_alloc(&t, w, &schemes[which].s, schemes[which].N, schemes[which].K, a, &err);
    CHECK(!s, "%s: %s", schemes[which].name, err.msg);
    for (int p = 0; p < QT_N_PLANES && !s; p++) {
        uint8_t *b = w[p];
        for (size_t i = 0; i < t.plane[p].bytes; i++)
            b[i] = (uint8_t)(37 * i + 11 * which + (size_t)p + 1);
    }
    for (int32_t k = 0; w[QT_GIDX] && k < t.K; k++)
        memcpy((uint8_t *)w[QT_GIDX] + 4 * k, &(int32_t){ k % 2 }, 4);
    for (int32_t k = 0; w[QT_OUT_IDX] && k < t.scheme.n_out; k++)
        memcpy((uint8_t *)w[QT_OUT_IDX] + 4 * k, &(int32_t){ 3 * k + 1 }, 4);
    return t;
}

/* A file with everything in it; `swap` changes the order of the calls that may come in any order.
 */
static lq_status write_all(const char *path, bool swap, lq_err *err)
{
    static const int64_t ids[] = { -1, 1 };
    lq_arena a;
    lqf_writer *w = NULL;
    cJSON *recipe = cJSON_Parse(swap ? "{\"bits\":4,\"alpha\":0.1}" : "{\"alpha\":0.1,\"bits\":4}");
    lq_arena_init(&a, 0, NULL);
    lq_status s = lqf_create(&w, path, err);
    if (!s) s = lqf_add_blob(w, swap ? "vocab.json" : "LICENSE", swap ? "two" : "one", 3, err);
    for (size_t i = 0; i < LQ_COUNT(schemes) && !s; i++) {
        qt_tensor t = make_tensor(i, &a);
        s = lqf_add_tensor(w, schemes[i].name, &t, 2, (int64_t[]){ t.N, t.K }, err);
    }
    if (!s) s = lqf_add_raw(w, "raw", LQ_I64, 1, (int64_t[]){ 2 }, ids, sizeof ids, err);
    if (!s) s = lqf_add_raw(w, "raw.empty", LQ_F32, 2, (int64_t[]){ 0, 4 }, NULL, 0, err);
    if (!s) s = lqf_set_recipe(w, recipe, err);
    if (!s) s = lqf_add_blob(w, swap ? "LICENSE" : "vocab.json", swap ? "one" : "two", 3, err);
    if (!s) s = lqf_add_blob(w, "merges.txt", "", 0, err);
    if (s)
        lqf_abort(w);
    else
        s = lqf_commit(w, err);
    cJSON_Delete(recipe);
    lq_arena_free(&a);
    return s;
}

TEST(every_scheme_comes_back_byte_for_byte)
{
    lq_err err = { "" };
    const char *path = in_dir("all.llmq");
    lq_status s = write_all(path, false, &err);
    CHECK(!s, "%s", err.msg);
    lqf_file f;
    s = lqf_open(&f, path, &err);
    CHECK(!s, "%s", err.msg);
    if (s) return;
    CHECK(!lqf_verify(&f, NULL, NULL, NULL, &err), "%s", err.msg);
    CHECK(f.n_tensors == LQ_COUNT(schemes) + 2, "%zu tensors", f.n_tensors);
    lq_arena a;
    lq_arena_init(&a, 0, NULL);
    for (size_t i = 0; i < LQ_COUNT(schemes); i++) {
        qt_tensor t = make_tensor(i, &a);
        const lqf_tensor *r = &f.tensors[i];
        CHECK(!strcmp(r->name, schemes[i].name), "%s", r->name);
        CHECK(r->plain && r->t.N == t.N && r->t.K == t.K, "%s: shape", r->name);
        cJSON *want = lqf_scheme_json(&t.scheme), *found = lqf_scheme_json(&r->t.scheme);
        CHECK(cJSON_Compare(want, found, true), "%s: scheme", r->name);
        CHECK(memcmp(&r->t.scheme.offset, &t.scheme.offset, sizeof t.scheme.offset) == 0, "offset");
        cJSON_Delete(want);
        cJSON_Delete(found);
        for (int p = 0; p < QT_N_PLANES; p++) {
            qt_span x = t.plane[p], y = r->t.plane[p];
            CHECK(x.bytes == y.bytes && (!x.bytes || !memcmp(x.data, y.data, x.bytes)), "%s: %s",
                  r->name, qt_plane_text((qt_plane)p));
            CHECK(!y.bytes || (uintptr_t)y.data % LLMQ_ALIGN == 0, "%s: alignment", r->name);
        }
        CHECK((uintptr_t)r->t.plane[QT_CODES].data % LLMQ_PAGE == 0, "%s: page", r->name);
    }
    CHECK(f.n_blobs == 3 && !memcmp(f.blobs[1].span.data, "two", 3), "blobs");
    CHECK(f.recipe && !f.config && !f.provenance, "objects");
    lq_arena_free(&a);
    lqf_close(&f);
}

static size_t slurp(uint8_t **out, const char *path)
{
    char *text;
    size_t n;
    lq_err err = { "" };
    lq_status s = lq_read_file(&text, &n, path, 1 << 24, &err);
    CHECK(!s, "%s", err.msg);
    *out = (uint8_t *)text;
    return s ? 0 : n;
}

TEST(the_bytes_depend_on_the_content_alone)
{
    lq_err err = { "" };
    uint8_t *x, *y;
    CHECK(!write_all(in_dir("x.llmq"), false, &err), "%s", err.msg);
    CHECK(!write_all(in_dir("y.llmq"), true, &err), "%s", err.msg);
    size_t n = slurp(&x, in_dir("x.llmq")), m = slurp(&y, in_dir("y.llmq"));
    CHECK(n == m && n && !memcmp(x, y, n), "two writes differ: %zu and %zu bytes", n, m);
    free(x);
    free(y);
}

/* ---- the tiny file of docs/formats/llmq.md ---- */
static lq_status write_tiny(const char *path, lq_err *err)
{
    static const uint8_t codes[] = { 0x10, 0x32, 0x54, 0x76, 0xfe, 0xdc, 0xba, 0x98 };
    static const uint8_t scales[] = { 0x00, 0x3c, 0x00, 0x38 }; /* f16 1.0, 0.5 */
    const qt_tensor t = {
        .scheme = { .kind = QT_UINT, .bits = 4, .group = 8, .scale_dtype = LQ_F16 },
        .N = 2,
        .K = 8,
        .plane = { [QT_CODES] = { codes, 8 }, [QT_SCALES] = { scales, 4 } },
    };
    lqf_writer *w;
    lq_status s = lqf_create(&w, path, err);
    if (s) return s;
    s = lqf_add_tensor(w, "w", &t, 2, (int64_t[]){ 2, 8 }, err);
    if (!s) s = lqf_add_blob(w, "LICENSE", "CC0\n", 4, err);
    if (!s) return lqf_commit(w, err);
    lqf_abort(w);
    return s;
}

TEST(flipping_any_byte_is_noticed)
{
    lq_err err = { "" };
    uint8_t *x;
    CHECK(!write_tiny(in_dir("tiny.llmq"), &err), "%s", err.msg);
    size_t n = slurp(&x, in_dir("tiny.llmq")), open_caught = 0;
    for (size_t i = 0; i < n; i++) {
        lqf_file f;
        x[i] ^= (uint8_t)(1u << (i % 8));
        lq_status s = lqf_open_bytes(&f, x, n, &err);
        if (s) {
            open_caught++;
            CHECK(s == LQ_EFORMAT || s == LQ_EUNSUPPORTED, "byte %zu: %s", i, err.msg);
        } else {
            s = lqf_verify(&f, NULL, NULL, NULL, &err);
            CHECK(s == LQ_ECHECK, "byte %zu: not noticed", i);
            lqf_close(&f);
        }
        x[i] ^= (uint8_t)(1u << (i % 8));
    }
    size_t header = n - 64 * ((size_t)(x[16] | x[17] << 8) / 64);
    CHECK(open_caught == LLMQ_PREAMBLE + header, "%zu bytes refused at open, expected %zu",
          open_caught, LLMQ_PREAMBLE + header);
    free(x);
}

TEST(a_truncated_file_is_refused)
{
    lq_err err = { "" };
    uint8_t *x;
    CHECK(!write_tiny(in_dir("tiny.llmq"), &err), "%s", err.msg);
    size_t n = slurp(&x, in_dir("tiny.llmq"));
    for (size_t k = 0; k < n; k += k < 80 || k > n - 80 ? 1 : 61) {
        guard_buf g = guard_copy(x, k);
        lqf_file f;
        CHECK(lqf_open_bytes(&f, g.data, k, &err) == LQ_EFORMAT, "%zu of %zu bytes", k, n);
        guard_free(&g);
    }
    guard_buf g = guard_copy(x, n);
    lqf_file f;
    lq_status s = lqf_open_bytes(&f, g.data, n, &err);
    CHECK(!s, "%s", err.msg);
    if (!s) CHECK(!lqf_verify(&f, NULL, NULL, NULL, &err), "%s", err.msg);
    lqf_close(&f);
    guard_free(&g);
    free(x);
}

/* ---- headers that a hostile writer could sign ---- */

/* The file with `from` in its header replaced by `to` and lengths and checksum set right again. */
static uint8_t *forge(size_t *out_n, const uint8_t *x, size_t n, const char *from, const char *to)
{
    size_t off = (size_t)x[16] | (size_t)x[17] << 8, len = n - off;
    char *text = malloc(len + 1);
    memcpy(text, x + off, len);
    text[len] = 0;
    char *at = strstr(text, from);
    CHECK(at != NULL, "'%s' is not in %s", from, text);
    if (!at) at = text;
    size_t a = strlen(from), b = strlen(to), total = len - a + b;
    uint8_t *y = calloc(1, off + total);
    memcpy(y, x, off);
    memcpy(y + off, text, (size_t)(at - text));
    memcpy(y + off + (at - text), to, b);
    memcpy(y + off + (at - text) + b, at + a, len - a - (size_t)(at - text));
    for (int i = 0; i < 8; i++) {
        y[24 + i] = (uint8_t)((uint64_t)total >> 8 * i);
        y[32 + i] = (uint8_t)((uint64_t)(off + total) >> 8 * i);
    }
    lq_hash h;
    CHECK(lqf_header_hash(&h, y, y + off, total), "no memory");
    memcpy(y + 48, h.b, 16);
    free(text);
    *out_n = off + total;
    return y;
}

TEST(a_signed_but_wrong_header_is_refused_by_name)
{
    static const struct {
        const char *why, *from, *to, *says;
    } t[] = {
        { "other format", "\"format\":\"llmq\"", "\"format\":\"gguf\"", "format: expected" },
        { "unknown scheme", "\"kind\":\"uint\"", "\"kind\":\"vq\"", "scheme: kind" },
        { "unknown field", "\"zero\":\"none\"", "\"zero\":\"none\",\"x\":1", "not known" },
        { "missing field", "\"bits\":4,\"group\"", "\"group\"", "bits: expected" },
        { "5 bits", "\"bits\":4,", "\"bits\":5,", "bits: expected" },
        { "group 0", "\"group\":8", "\"group\":0", "group: expected" },
        { "group no divisor", "\"group\":8", "\"group\":3", "roup" },
        { "unknown zero", "\"zero\":\"none\"", "\"zero\":\"half\"", "zero: expected" },
        { "zero plane missing", "\"zero\":\"none\"", "\"zero\":\"f16\"", "plane" },
        { "unknown dtype", "\"scale_dtype\":\"f16\"", "\"scale_dtype\":\"i8\"", "scale_dtype" },
        { "unknown layout", "\"portable\"", "\"tile99\"", "layout: unknown" },
        { "other layout's sizes", "\"portable\"", "\"tile16\"", "expected" },
        { "unknown plane", "\"scales\":", "\"shapes\":", "planes: expected" },
        { "shape too large", "\"shape\":[2,8]", "\"shape\":[3,8]", "expected" },
        { "shape overflows", "\"shape\":[2,8]", "\"shape\":[9007199254740991,9007199254740991,8]",
          "shape" },
        { "nine dims", "\"shape\":[2,8]", "\"shape\":[1,1,1,1,1,1,1,2,8]", "shape" },
        { "a fraction", "\"shape\":[2,8]", "\"shape\":[2,8.5]", "shape" },
        { "negative size", "\"shape\":[2,8]", "\"shape\":[-2,8]", "shape" },
        { "no shape", "\"shape\":[2,8]", "\"shape\":7", "shape" },
        { "offset in the preamble", "\"off\":4096", "\"off\":0", "off: expected 4096" },
        { "offset with a hole", "\"off\":4160", "\"off\":4224", "off: expected 4160" },
        { "offset beyond", "\"off\":4160", "\"off\":1e15", "off: expected 4160" },
        { "more bytes than there are", "\"bytes\":8,", "\"bytes\":9007199254740991,", "bytes" },
        { "negative bytes", "\"bytes\":8,", "\"bytes\":-8,", "bytes: expected" },
        { "too few bytes", "\"bytes\":8,", "\"bytes\":7,", "codes" },
        { "no checksum", "\"xxh3\":\"", "\"yyh3\":\"", "xxh3: expected" },
        { "short checksum", "\"xxh3\":\"", "\"xxh3\":\"00", "xxh3: expected 32" },
        { "no tensors", "\"tensors\":", "\"tensor\":", "tensors: expected" },
        { "no blobs", "\"blobs\":", "\"blob\":", "blobs: expected" },
        { "no name", "\"name\":\"w\"", "\"nome\":\"w\"", "name: expected" },
        { "empty name", "\"name\":\"w\"", "\"name\":\"\"", "name" },
        { "key twice", "\"format\":\"llmq\"", "\"format\":\"llmq\",\"format\":\"llmq\"", "twice" },
        { "no JSON", "{\"blobs\"", "{'blobs'", "JSON" },
        { "a blob outside the folder", "\"name\":\"LICENSE\"", "\"name\":\"../.ssh/x\"",
          "expected the name of a file" },
        { "a hidden blob", "\"name\":\"LICENSE\"", "\"name\":\"..\"",
          "expected the name of a file" },
        { "config of a wrong type", "\"format\":", "\"config\":3,\"format\":", "config: expected" },
        { "recipe of a wrong type",
          "\"format\":", "\"recipe\":[],\"format\":", "recipe: expected" },
        { "tensor forgotten", "\"name\":\"w\",\"planes\":{\"codes\":",
          "\"name\":\"w\",\"planes\":{},\"x\":{\"codes\":", "codes" },
    };
    lq_err err = { "" };
    uint8_t *x;
    CHECK(!write_tiny(in_dir("tiny.llmq"), &err), "%s", err.msg);
    size_t n = slurp(&x, in_dir("tiny.llmq"));
    for (size_t i = 0; i < LQ_COUNT(t); i++) {
        size_t m;
        uint8_t *y = forge(&m, x, n, t[i].from, t[i].to);
        lqf_file f;
        err.msg[0] = 0;
        lq_status s = lqf_open_bytes(&f, y, m, &err);
        CHECK(s && lq_exit_code(s) == 3, "%s: %s", t[i].why, lq_status_text(s));
        CHECK(strstr(err.msg, t[i].says), "%s: '%s' does not say '%s'", t[i].why, err.msg,
              t[i].says);
        if (!s) lqf_close(&f);
        free(y);
    }
    free(x);
}

TEST(a_preamble_that_does_not_fit_is_refused_by_name)
{
    static const struct {
        const char *why;
        size_t at;
        uint8_t value;
        const char *says;
    } t[] = {
        { "text mode", 4, '\n', "as if it were text" },
        { "other magic", 0, 'X', "magic" },
        { "newer major version", 8, 2, "major version: expected 1, found 2" },
        { "minor version unsigned", 12, 9, "header checksum" },
        { "header before the data", 17, 0, "header offset" },
        { "header far away", 22, 1, "header offset" },
        { "header not aligned", 16, 1, "header offset" },
        { "header length", 24, 0, "header bytes" },
        { "file length", 39, 1, "file bytes" },
        { "reserved", 47, 1, "reserved: expected 0" },
        { "checksum", 48, 0, "header checksum" },
    };
    lq_err err = { "" };
    uint8_t *x;
    CHECK(!write_tiny(in_dir("tiny.llmq"), &err), "%s", err.msg);
    size_t n = slurp(&x, in_dir("tiny.llmq"));
    for (size_t i = 0; i < LQ_COUNT(t); i++) {
        uint8_t keep = x[t[i].at];
        x[t[i].at] = (uint8_t)(keep == t[i].value ? keep + 1 : t[i].value);
        lqf_file f;
        lq_status s = lqf_open_bytes(&f, x, n, &err);
        CHECK(s && strstr(err.msg, t[i].says), "%s: '%s'", t[i].why, s ? err.msg : "accepted");
        if (!s) lqf_close(&f);
        x[t[i].at] = keep;
    }
    free(x);
}

TEST(a_writer_refuses_what_does_not_fit)
{
    lq_err err = { "" };
    lq_arena a;
    lq_arena_init(&a, 0, NULL);
    lqf_writer *w;
    CHECK(!lqf_create(&w, in_dir("no.llmq"), &err), "%s", err.msg);
    qt_tensor t = make_tensor(2, &a);
    CHECK(lqf_add_tensor(w, "w", &t, 2, (int64_t[]){ t.K, t.N }, &err) == LQ_ESHAPE, "transposed");
    CHECK(lqf_add_tensor(w, "", &t, 2, (int64_t[]){ t.N, t.K }, &err) == LQ_EVALUE, "no name");
    CHECK(lqf_add_tensor(w, "\xff", &t, 2, (int64_t[]){ t.N, t.K }, &err) == LQ_EVALUE, "UTF-8");
    CHECK(lqf_add_raw(w, "r", LQ_I64, 1, (int64_t[]){ 2 }, "1234567", 7, &err) == LQ_ESHAPE, "raw");
    CHECK(lqf_add_blob(w, "../b", "", 0, &err) == LQ_EVALUE, "a blob outside the folder");
    t.plane[QT_CODES].bytes--;
    CHECK(lqf_add_tensor(w, "w", &t, 2, (int64_t[]){ t.N, t.K }, &err) != LQ_OK, "short plane");
    t.plane[QT_CODES].bytes++;
    CHECK(!lqf_add_tensor(w, "w", &t, 2, (int64_t[]){ t.N, t.K }, &err), "%s", err.msg);
    CHECK(!lqf_add_tensor(w, "w", &t, 2, (int64_t[]){ t.N, t.K }, &err), "%s", err.msg);
    CHECK(lqf_commit(w, &err) == LQ_EVALUE && strstr(err.msg, "twice"), "%s", err.msg);
    CHECK(!lq_exists(in_dir("no.llmq")), "a refused file has its name");
    lq_arena_free(&a);
}

/* ---- the specification's dump ---- */
TEST(the_dump_in_the_specification_is_what_the_writer_writes)
{
    lq_err err = { "" };
    uint8_t *x, *page;
    CHECK(!write_tiny(in_dir("tiny.llmq"), &err), "%s", err.msg);
    size_t n = slurp(&x, in_dir("tiny.llmq")), m = slurp(&page, "docs/formats/llmq.md");
    char *doc = (char *)page, *at = m ? strstr(doc, "```hexdump\n") : NULL;
    CHECK(at != NULL, "no hexdump block in the specification");
    size_t pos = 0;
    bool skip = false, ended = false;
    for (char *line = at ? strchr(at, '\n') + 1 : NULL; line && strncmp(line, "```", 3) != 0;
         line = strchr(line, '\n') + 1) {
        if (*line == '*') {
            skip = true;
            continue;
        }
        char *p;
        size_t off = strtoul(line, &p, 16);
        for (; skip && pos < off; pos++)
            CHECK(pos < n && x[pos] == x[pos - 16], "byte %zx: '*' stands for equal lines", pos);
        skip = false;
        CHECK(off == pos, "line %08zx: expected %08zx", off, pos);
        for (int i = 0; i < 16 && pos < n; i++, pos++) {
            unsigned long v = strtoul(p, &p, 16);
            CHECK(v == x[pos], "byte %zx: the page says %02lx, the file %02x", pos, v, x[pos]);
        }
        ended = off == n;
    }
    CHECK(ended && pos == n, "the dump ends at %zx, the file at %zx", pos, n);
    free(x);
    free(page);
}

/* ---- as a source ---- */
static lq_status copy_model(const char *from, const char *to, lq_err *err)
{
    src_source *s;
    lqf_writer *w;
    lq_status st = src_open(&s, from, &(src_opts){ .need_config = true }, err);
    if (st) return st;
    cJSON *config = arch_config_json(src_config(s));
    st = lqf_create(&w, to, err);
    if (!st) st = lqf_set_config(w, config, err);
    for (int64_t i = 0; i < src_n_tensors(s) && !st; i++) {
        const src_tensor *t = src_tensor_at(s, i);
        st = lqf_add_tensor(w, t->name, &t->t, t->n_dims, t->shape, err);
    }
    for (size_t i = 0; i < src_n_blobs(s) && !st; i++) {
        const src_blob *b = src_blob_at(s, i);
        st = lqf_add_blob(w, b->name, b->data, b->bytes, err);
    }
    if (!st) st = lqf_commit(w, err);
    cJSON_Delete(config);
    src_close(s);
    return st;
}

TEST(a_checkpoint_copied_into_a_file_is_the_same_model)
{
    lq_err err = { "" };
    static const char *const names[] = { "llama3-gqa", "mistral-swa", "qwen3" };
    for (size_t i = 0; i < LQ_COUNT(names); i++) {
        char from[128];
        src_source *a = NULL, *b = NULL;
        snprintf(from, sizeof from, "tests/golden/arch/%s", names[i]);
        lq_status s = copy_model(from, in_dir("m.llmq"), &err);
        const src_opts o = { .need_config = true, .verify = true };
        if (!s) s = src_open(&a, from, &o, &err);
        if (!s) s = src_open(&b, in_dir("m.llmq"), &o, &err);
        CHECK(!s, "%s: %s", names[i], err.msg);
        if (!s) {
            lq_hash x, y;
            CHECK(!src_fingerprint(&x, a, &err) && !src_fingerprint(&y, b, &err), "%s", err.msg);
            CHECK(!memcmp(&x, &y, sizeof x), "%s: fingerprints", names[i]);
            cJSON *p = arch_config_json(src_config(a)), *q = arch_config_json(src_config(b));
            CHECK(cJSON_Compare(p, q, true), "%s: config", names[i]);
            cJSON_Delete(p);
            cJSON_Delete(q);
            CHECK(src_n_blobs(a) == src_n_blobs(b), "%s: blobs", names[i]);
            const src_blob *u = src_find_blob(a, "config.json"),
                           *v = src_find_blob(b, "config.json");
            CHECK(u && v && u->bytes == v->bytes && !memcmp(u->data, v->data, u->bytes),
                  "config.json");
            const src_tensor *t, *bias;
            CHECK(!src_role(b, R_Q, 1, -1, &t, &bias, &err) && t, "%s", err.msg);
        }
        src_close(a);
        src_close(b);
    }
}

int main(int argc, char **argv)
{
    CHECK(mkdtemp(dir) != NULL, "mkdtemp");
    RUN(every_scheme_comes_back_byte_for_byte);
    RUN(the_bytes_depend_on_the_content_alone);
    RUN(flipping_any_byte_is_noticed);
    RUN(a_truncated_file_is_refused);
    RUN(a_signed_but_wrong_header_is_refused_by_name);
    RUN(a_preamble_that_does_not_fit_is_refused_by_name);
    RUN(a_writer_refuses_what_does_not_fit);
    RUN(the_dump_in_the_specification_is_what_the_writer_writes);
    RUN(a_checkpoint_copied_into_a_file_is_the_same_model);
    static const char *const files[] = { "all.llmq", "x.llmq", "y.llmq", "tiny.llmq", "m.llmq" };
    for (size_t i = 0; i < LQ_COUNT(files); i++)
        unlink(in_dir(files[i]));
    CHECK(rmdir(dir) == 0, "a temporary file was left");
    return check_end();
}
