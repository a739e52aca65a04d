/* tests/unit/test_safetensors.c - the reference's vectors, and every rule broken once. */
#include "base/file.h"
#include "base/path.h"
#include "formats/hf/safetensors.h"
#include "tests/support/check.h"
#include "tests/support/guard.h"

#include <stdlib.h>
#include <unistd.h>

/* u64 length, header text, data of `data` zero bytes. */
static size_t build(uint8_t *out, const char *header, size_t data)
{
    size_t n = strlen(header);
    for (int i = 0; i < 8; i++)
        out[i] = (uint8_t)((uint64_t)n >> 8 * i);
    memcpy(out + 8, header, n);
    memset(out + 8 + n, 0, data);
    return 8 + n + data;
}

static lq_status open_guarded(st_file *f, guard_buf *g, const uint8_t *data, size_t n, lq_err *err)
{
    *g = guard_copy(data, n);
    return st_open_bytes(f, g->data, n, err);
}

#define T(name, dtype, shape, b, e) \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":[" b "," e "]}"

TEST(the_minimal_reference_file_is_read)
{
    static const uint8_t file[72] = {
        0x38, 0,    0,    0,    0,    0,    0,    0,    0x7b, 0x22, 0x74, 0x22, 0x3a, 0x7b, 0x22,
        0x64, 0x74, 0x79, 0x70, 0x65, 0x22, 0x3a, 0x22, 0x49, 0x33, 0x32, 0x22, 0x2c, 0x22, 0x73,
        0x68, 0x61, 0x70, 0x65, 0x22, 0x3a, 0x5b, 0x32, 0x5d, 0x2c, 0x22, 0x64, 0x61, 0x74, 0x61,
        0x5f, 0x6f, 0x66, 0x66, 0x73, 0x65, 0x74, 0x73, 0x22, 0x3a, 0x5b, 0x30, 0x2c, 0x38, 0x5d,
        0x7d, 0x7d, 0x20, 0x20, 1,    0,    0,    0,    0xff, 0xff, 0xff, 0xff,
    };
    st_file f;
    guard_buf g;
    lq_err err = { "" };
    lq_status s = open_guarded(&f, &g, file, sizeof file, &err);
    CHECK(!s && f.n == 1, "%s", err.msg);
    const st_tensor *t = st_find(&f, "t");
    CHECK(t && t->dtype == LQ_I32 && t->n_dims == 1 && t->shape[0] == 2 && t->bytes == 8, "t");
    CHECK(t && !memcmp(t->data, file + 64, 8), "data");
    CHECK(!st_find(&f, "u") && !st_find(&f, ""), "a tensor that is not there");
    st_close(&f);
    guard_free(&g);
}

TEST(legal_files_are_read)
{
    static const struct {
        const char *why, *header;
        size_t data, n;
    } t[] = {
        { "nothing in it", "{}", 0, 0 },
        { "blanks around the header", "  {} \n", 0, 0 },
        { "metadata alone", "{\"__metadata__\":{\"format\":\"pt\"}}", 0, 0 },
        { "a scalar", "{" T("a", "F32", "[]", "0", "4") "}", 4, 1 },
        { "an empty tensor", "{" T("a", "F32", "[0]", "0", "0") "}", 0, 1 },
        { "empty, with dims that overflow",
          "{" T("a", "F32", "[4294967296,4294967296,4294967296,0]", "0", "0") "}", 0, 1 },
        { "empty between others",
          "{" T("b", "U8", "[3]", "0", "3") "," T("e", "U8", "[0]", "3",
                                                  "3") "," T("a", "U8", "[1]", "3", "4") "}",
          4, 3 },
        { "any order", "{" T("b", "U8", "[2]", "1", "3") "," T("a", "U8", "[1]", "0", "1") "}", 3,
          2 },
        { "4-bit elements", "{" T("a", "F4", "[3,2]", "0", "3") "}", 3, 1 },
        { "6-bit elements", "{" T("a", "F6_E2M3", "[4]", "0", "3") "}", 3, 1 },
        { "eight dims", "{" T("a", "U8", "[1,1,1,1,1,1,1,2]", "0", "2") "}", 2, 1 },
        { "every 8-bit float",
          "{" T("a", "F8_E5M2", "[1]", "0", "1") "," T("b", "F8_E4M3", "[1]", "1", "2") "," T(
              "c", "F8_E8M0", "[1]", "2", "3") "," T("d", "F8_E4M3FNUZ", "[1]", "3",
                                                     "4") "," T("e", "F8_E5M2FNUZ", "[1]", "4",
                                                                "5") "}",
          5, 5 },
        { "an unknown key of a tensor",
          "{\"a\":{\"x\":1,\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1, 1 },
    };
    for (size_t i = 0; i < LQ_COUNT(t); i++) {
        uint8_t buf[1024];
        st_file f;
        guard_buf g;
        lq_err err = { "" };
        lq_status s = open_guarded(&f, &g, buf, build(buf, t[i].header, t[i].data), &err);
        CHECK(!s && f.n == t[i].n, "%s: %s", t[i].why, err.msg);
        for (size_t k = 1; k < f.n; k++)
            CHECK(strcmp(f.tensors[k - 1].name, f.tensors[k].name) < 0, "%s: order", t[i].why);
        st_close(&f);
        guard_free(&g);
    }
}

TEST(a_broken_header_is_refused)
{
    static const struct {
        const char *why, *header;
        size_t data;
        const char *says;
    } t[] = {
        { "no JSON", "hello", 0, "JSON" },
        { "an array", "[]", 0, "object" },
        { "cut off", "{\"a\":", 0, "JSON" },
        { "trailing garbage", "{}{}", 0, "JSON" },
        { "NUL padding", "{}\x01", 0, "JSON" },
        { "not UTF-8", "{\"\xff\":1}", 0, "UTF-8" },
        { "a tensor twice", "{" T("a", "U8", "[1]", "0", "1") "," T("a", "U8", "[1]", "1", "2") "}",
          2, "'a' twice" },
        { "a tensor that is no object", "{\"a\":1}", 0, "'a': expected an object" },
        { "metadata that is no object", "{\"__metadata__\":[]}", 0, "__metadata__" },
        { "metadata that is no string", "{\"__metadata__\":{\"a\":1}}", 0,
          "'a': expected a string" },
        { "no dtype", "{\"a\":{\"shape\":[1],\"data_offsets\":[0,1]}}", 1, "dtype: expected" },
        { "unknown dtype", "{" T("a", "U7", "[1]", "0", "1") "}", 1, "found \"U7\"" },
        { "lower-case dtype", "{" T("a", "u8", "[1]", "0", "1") "}", 1, "found \"u8\"" },
        { "dtype null", "{\"a\":{\"dtype\":null,\"shape\":[],\"data_offsets\":[0,1]}}", 1,
          "dtype" },
        { "no shape", "{\"a\":{\"dtype\":\"U8\",\"data_offsets\":[0,1]}}", 1, "shape: expected" },
        { "shape a number", "{" T("a", "U8", "1", "0", "1") "}", 1, "shape: expected" },
        { "negative size", "{" T("a", "U8", "[-1]", "0", "1") "}", 1, "found -1" },
        { "a fraction", "{" T("a", "U8", "[1.5]", "0", "1") "}", 1, "found 1.5" },
        { "a size as text", "{" T("a", "U8", "[\"1\"]", "0", "1") "}", 1, "found \"1\"" },
        { "nine dims", "{" T("a", "U8", "[1,1,1,1,1,1,1,1,1]", "0", "1") "}", 1, "at most 8" },
        { "product overflows", "{" T("a", "F64", "[4294967296,4294967296]", "0", "0") "}", 0,
          "product" },
        { "product wraps to fit",
          "{" T("a", "U8", "[4503599627370496,4503599627370496]", "0", "0") "}", 0, "product" },
        { "half a byte", "{" T("a", "F4", "[3]", "0", "2") "}", 2, "whole bytes" },
        { "no offsets", "{\"a\":{\"dtype\":\"U8\",\"shape\":[1]}}", 1, "data_offsets: expected" },
        { "one offset", "{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1]}}", 1,
          "data_offsets" },
        { "three offsets", "{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1,2]}}", 1,
          "data_offsets" },
        { "backwards", "{" T("a", "U8", "[1]", "1", "0") "}", 1, "begin <= end" },
        { "negative offset", "{" T("a", "U8", "[1]", "-1", "0") "}", 1, "data_offsets" },
        { "beyond the file", "{" T("a", "U8", "[8]", "0", "8") "}", 7, "at most 7" },
        { "far beyond", "{" T("a", "U8", "[9007199254740991]", "0", "9007199254740991") "}", 7,
          "at most 7" },
        { "beyond 2^53", "{" T("a", "U8", "[1]", "0", "18446744073709551617") "}", 1,
          "data_offsets" },
        { "fewer bytes than the shape", "{" T("a", "F32", "[2]", "0", "4") "}", 4, "expected 8" },
        { "more bytes than the shape", "{" T("a", "F32", "[1]", "0", "8") "}", 8, "expected 4" },
        { "a hole at the start", "{" T("a", "U8", "[1]", "1", "2") "}", 2, "a hole" },
        { "a hole", "{" T("a", "U8", "[1]", "0", "1") "," T("b", "U8", "[1]", "2", "3") "}", 3,
          "a hole" },
        { "an overlap", "{" T("a", "U8", "[2]", "0", "2") "," T("b", "U8", "[2]", "1", "3") "}", 3,
          "an overlap" },
        { "the same bytes", "{" T("a", "U8", "[2]", "0", "2") "," T("b", "U8", "[2]", "0", "2") "}",
          2, "an overlap" },
        { "trailing bytes", "{" T("a", "U8", "[1]", "0", "1") "}", 2, "expected 1 bytes" },
        { "bytes and no tensor", "{}", 1, "expected 0 bytes" },
    };
    for (size_t i = 0; i < LQ_COUNT(t); i++) {
        uint8_t buf[1024];
        st_file f;
        guard_buf g;
        lq_err err = { "" };
        lq_status s = open_guarded(&f, &g, buf, build(buf, t[i].header, t[i].data), &err);
        CHECK(s && lq_exit_code(s) == 3, "%s: accepted", t[i].why);
        CHECK(strstr(err.msg, t[i].says), "%s: '%s' does not say '%s'", t[i].why, err.msg,
              t[i].says);
        CHECK(!f.tensors && !f.n, "%s: not closed", t[i].why);
        guard_free(&g);
    }
}

TEST(a_header_length_that_does_not_fit_is_refused)
{
    static const struct {
        const char *why;
        uint64_t n;
        size_t file;
    } t[] = {
        { "an empty file", 0, 0 },
        { "seven bytes", 0, 7 },
        { "no header", 0, 8 },
        { "one byte short", 3, 10 },
        { "9000 in a file of 4096", 9000, 4096 },
        { "wraps around", UINT64_MAX, 64 },
        { "wraps to zero", UINT64_MAX - 7, 64 },
        { "above the limit", ST_MAX_HEADER + 1, 64 },
    };
    for (size_t i = 0; i < LQ_COUNT(t); i++) {
        uint8_t buf[4096];
        st_file f;
        guard_buf g;
        lq_err err = { "" };
        memset(buf, ' ', sizeof buf);
        for (int k = 0; k < 8; k++)
            buf[k] = (uint8_t)(t[i].n >> 8 * k);
        CHECK(open_guarded(&f, &g, buf, t[i].file, &err) == LQ_EFORMAT && err.msg[0], "%s: %s",
              t[i].why, err.msg);
        guard_free(&g);
    }
}

static size_t write_read(uint8_t **out, const st_tensor *t, size_t n, lq_err *err)
{
    char path[] = "/tmp/llmq-st-XXXXXX", *text = NULL;
    size_t bytes = 0;
    int fd = mkstemp(path);
    close(fd);
    lq_status s = st_write(path, t, n, err);
    if (!s) s = lq_read_file(&text, &bytes, path, 1 << 20, err);
    CHECK(!s, "%s", err->msg);
    unlink(path);
    *out = (uint8_t *)text;
    return bytes;
}

TEST(the_writer_writes_the_reference_order)
{
    static const uint8_t a[] = { 7 }, b[] = { 0, 0, 0x80, 0x3f }, c[] = { 1, 2, 3, 4, 5, 6, 7, 8 };
    const st_tensor t[] = {
        { .name = "b", .dtype = LQ_F32, .n_dims = 1, .shape = { 1 }, .data = b, .bytes = 4 },
        { .name = "a", .dtype = LQ_U8, .n_dims = 1, .shape = { 1 }, .data = a, .bytes = 1 },
        { .name = "c", .dtype = LQ_I64, .n_dims = 1, .shape = { 1 }, .data = c, .bytes = 8 },
    };
    static const char want[] =
        "{\"__metadata__\":{\"format\":\"pt\"}," T("c", "I64", "[1]", "0", "8") //
        "," T("b", "F32", "[1]", "8", "12") "," T("a", "U8", "[1]", "12", "13") "}";
    uint8_t *x;
    lq_err err = { "" };
    size_t n = write_read(&x, t, 3, &err);
    CHECK(n == 8 + 200 + 13 && x[0] == 200, "%zu bytes, header of %u", n, x ? x[0] : 0);
    if (n == 221) {
        CHECK(!memcmp(x + 8, want, strlen(want)), "%.200s", x + 8);
        for (size_t i = 8 + strlen(want); i < 208; i++)
            CHECK(x[i] == ' ', "padding");
        CHECK(!memcmp(x + 208, c, 8) && !memcmp(x + 216, b, 4) && x[220] == 7, "data");
    }
    free(x);
}

TEST(what_is_written_is_read_back)
{
    static const uint8_t data[64] = { 1, 2, 3 };
    const st_tensor t[] = {
        { .name = "scalar", .dtype = LQ_BF16, .data = data, .bytes = 2 },
        { .name = "empty", .dtype = LQ_F32, .n_dims = 2, .shape = { 3, 0 } },
        { .name = "a \"quoted\" \\ name \xc3\xa9",
          .dtype = LQ_F4,
          .n_dims = 2,
          .shape = { 2, 4 },
          .data = data,
          .bytes = 4 },
        { .name = "f16",
          .dtype = LQ_F16,
          .n_dims = 3,
          .shape = { 2, 1, 3 },
          .data = data,
          .bytes = 12 },
    };
    uint8_t *x;
    st_file f;
    lq_err err = { "" };
    size_t n = write_read(&x, t, LQ_COUNT(t), &err);
    CHECK(!st_open_bytes(&f, x, n, &err) && f.n == LQ_COUNT(t), "%s", err.msg);
    for (size_t i = 0; i < LQ_COUNT(t); i++) {
        const st_tensor *r = st_find(&f, t[i].name);
        CHECK(r && r->dtype == t[i].dtype && r->n_dims == t[i].n_dims && r->bytes == t[i].bytes &&
                  !memcmp(r->shape, t[i].shape, sizeof r->shape),
              "%s", t[i].name);
        CHECK(r && (!r->bytes || !memcmp(r->data, t[i].data, r->bytes)), "%s: data", t[i].name);
    }
    st_close(&f);
    free(x);
}

TEST(a_writer_takes_pieces_in_any_order_and_refuses_what_does_not_fit)
{
    static const uint8_t words[] = { 1, 2, 3, 4 };
    char path[] = "/tmp/llmq-st-XXXXXX";
    int fd = mkstemp(path);
    close(fd);
    unlink(path);
    lq_err err = { "" };
    const st_tensor two[] = {
        { .name = "a", .dtype = LQ_U8, .n_dims = 1, .shape = { 5 }, .bytes = 5 },
        { .name = "b", .dtype = LQ_I32, .n_dims = 1, .shape = { 1 }, .bytes = 4 }
    };
    st_writer *w;
    CHECK(!st_create(&w, path, two, 2, &err), "%s", err.msg);
    CHECK(!st_put(w, 0, 2, "\7\7\7", 3, &err) && !st_put(w, 1, 0, words, 4, &err) &&
              !st_put(w, 0, 0, "\7\7", 2, &err),
          "%s", err.msg);
    CHECK(!lq_exists(path), "half a file has its name");
    CHECK(!st_commit(w, &err), "%s", err.msg);
    st_file f;
    CHECK(!st_open(&f, path, &err) && f.n == 2 && !memcmp(f.tensors[0].data, "\7\7\7\7\7", 5) &&
              !memcmp(f.tensors[1].data, words, 4),
          "%s", err.msg);
    st_close(&f);
    unlink(path);
    CHECK(!st_create(&w, path, two, 2, &err), "%s", err.msg);
    CHECK(st_put(w, 0, 3, "\7\7\7", 3, &err) == LQ_EVALUE, "beyond the end");
    CHECK(!st_put(w, 0, 0, "\7\7\7\7", 4, &err), "%s", err.msg);
    CHECK(st_put(w, 0, 0, "\7\7", 2, &err) == LQ_EVALUE, "more than all");
    CHECK(st_commit(w, &err) == LQ_EVALUE, "too few bytes");
    st_tensor t = two[0];
    CHECK(st_write(path, &t, 1, &err) == LQ_EVALUE, "no data");
    t.shape[0] = 6;
    CHECK(st_write(path, &t, 1, &err) == LQ_ESHAPE, "shape");
    const st_tensor twice[] = { { .name = "a", .dtype = LQ_U8, .n_dims = 1, .shape = { 0 } },
                                { .name = "a", .dtype = LQ_U8, .n_dims = 1, .shape = { 0 } } };
    CHECK(st_write(path, twice, 2, &err) == LQ_EVALUE, "twice");
    const st_tensor types[] = { twice[0],
                                { .name = "b", .dtype = LQ_I8, .n_dims = 1, .shape = { 0 } },
                                { .name = "a", .dtype = LQ_F32, .n_dims = 1, .shape = { 0 } } };
    CHECK(st_write(path, types, 3, &err) == LQ_EVALUE, "twice, of two types");
    CHECK(!lq_exists(path), "a refused file has its name");
}

int main(int argc, char **argv)
{
    RUN(the_minimal_reference_file_is_read);
    RUN(legal_files_are_read);
    RUN(a_broken_header_is_refused);
    RUN(a_header_length_that_does_not_fit_is_refused);
    RUN(the_writer_writes_the_reference_order);
    RUN(what_is_written_is_read_back);
    RUN(a_writer_takes_pieces_in_any_order_and_refuses_what_does_not_fit);
    return check_end();
}
