/* tests/unit/test_base.c - statuses, arenas, element types, files. */
#include "base/base.h"
#include "base/buf.h"
#include "base/file.h"
#include "base/mapped.h"
#include "base/out_file.h"
#include "base/path.h"
#include "base/utf8.h"
#include "tests/support/check.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

TEST(f16_rounds_to_nearest_even_and_back)
{
    static const struct {
        const char *why;
        float in;
        uint16_t want;
    } t[] = {
        { "one", 1.0f, 0x3c00 },
        { "largest", 65504.0f, 0x7bff },
        { "overflow", 65520.0f, 0x7c00 },
        { "just below", 65519.0f, 0x7bff },
        { "tie to even", 2049.0f, 0x6800 },
        { "tie up", 2051.0f, 0x6802 },
        { "subnormal", 0x1p-24f, 0x0001 },
        { "half of it", 0x1p-25f, 0x0000 },
        { "minus zero", -0.0f, 0x8000 },
        { "into normal", 0x1.ffep-15f, 0x0400 },
    };
    for (size_t i = 0; i < LQ_COUNT(t); i++)
        CHECK(lq_f32_to_f16(t[i].in) == t[i].want, "%s: got %04x", t[i].why,
              lq_f32_to_f16(t[i].in));
    for (uint32_t h = 0; h < 65536; h++) {
        if ((h & 0x7c00) == 0x7c00 && (h & 0x3ff)) continue; /* NaN payloads may change */
        CHECK(lq_f32_to_f16(lq_f16_to_f32((uint16_t)h)) == h, "f16 %04x", h);
        uint16_t b = (uint16_t)h;
        float f = lq_bf16_to_f32(b);
        if (!isnan(f)) CHECK(lq_f32_to_bf16(f) == b, "bf16 %04x", h);
    }
}

TEST(many_elements_are_rounded_as_one_is)
{
    enum { N = 16 * 3 + 5 };
    float f[N], back[N], one;
    uint16_t h[N], want;
    uint32_t seed = 1;
    for (int turn = 0; turn < 20000; turn++)
        for (lq_dtype d = LQ_F16; d <= LQ_BF16; d++) {
            for (int i = 0; i < N; i++) {
                seed = seed * 1664525u + 1013904223u;
                f[i] = lq_bits_f32(turn & 1 ? seed : 0x32000000u + (seed >> 5)); /* small ones */
            }
            lq_from_f32(h, f, d, N);
            lq_to_f32(back, h, d, N);
            for (int i = 0; i < N; i++) {
                lq_from_f32(&want, &f[i], d, 1);
                lq_to_f32(&one, &h[i], d, 1);
                CHECK(h[i] == want, "%a as %s: %04x, alone %04x", (double)f[i], lq_dtype_text(d),
                      h[i], want);
                CHECK(memcmp(&back[i], &one, sizeof one) == 0, "%04x", h[i]);
            }
        }
}

TEST(f16_subnormals_round_half_to_even)
{
    for (uint32_t u = 0x32000000u; u < 0x38800000u; u += 0x377u) {
        const float f = lq_bits_f32(u);
        CHECK(lq_f32_to_f16(f) == (uint16_t)lrintf(f * 0x1p24f), "%a", (double)f);
        CHECK(lq_f32_to_f16(-f) == (uint16_t)(0x8000 | lrintf(f * 0x1p24f)), "-%a", (double)f);
    }
}

TEST(a_fixed_arena_fails_when_full_and_resets_to_a_mark)
{
    lq_arena a;
    CHECK(!lq_arena_init(&a, 256, NULL), "init");
    CHECK(lq_push(&a, 100) != NULL, "first");
    size_t mark = lq_arena_mark(&a);
    CHECK(lq_push(&a, 128) != NULL, "second");
    CHECK(lq_push(&a, 1) == NULL, "full");
    lq_arena_reset(&a, mark);
    CHECK(lq_push(&a, 128) != NULL, "after reset");
    lq_arena_free(&a);
}

TEST(an_output_file_is_whole_or_absent)
{
    char dir[] = "/tmp/llmq-base-XXXXXX", path[64];
    CHECK(mkdtemp(dir) != NULL, "mkdtemp");
    snprintf(path, sizeof path, "%s/f", dir);
    lq_out *o;
    CHECK(!lq_out_open(&o, path, NULL), "open");
    CHECK(!lq_out_write(o, "abc", 3, NULL), "write");
    CHECK(!lq_exists(path), "visible before commit");
    lq_out_abort(o);
    CHECK(!lq_exists(path), "visible after abort");
    CHECK(!lq_write_file(path, "hello", 5, NULL), "write_file");
    lq_map m;
    CHECK(!lq_map_open(&m, path, NULL) && m.size == 5 && !memcmp(m.data, "hello", 5), "map");
    lq_map_close(&m);
    lq_err err;
    CHECK(!lq_write_file(path, "", 0, NULL), "an empty file");
    CHECK(!lq_map_open(&m, path, NULL) && m.size == 0 && m.data, "its bytes have an address");
    lq_map_close(&m);
    CHECK(lq_map_open(&m, dir, &err) == LQ_EFORMAT, "a directory is refused: %s", err.msg);
    unlink(path);
    CHECK(rmdir(dir) == 0, "a temporary file was left");
}

/* What a killed process has written so far must have no name, where the file system can. */
TEST(unfinished_output_has_no_name)
{
    char dir[] = "/tmp/llmq-base-XXXXXX", path[64];
    CHECK(mkdtemp(dir) != NULL, "mkdtemp");
    snprintf(path, sizeof path, "%s/f", dir);
    int fd = open(dir, O_TMPFILE | O_WRONLY, 0600);
    lq_out *o;
    if (fd >= 0) {
        CHECK(!lq_out_open(&o, path, NULL) && !lq_out_write(o, "abc", 3, NULL), "write");
        CHECK(rmdir(dir) == 0, "a name is there before commit");
        CHECK(lq_out_commit(o, NULL) == LQ_EIO, "the folder has gone");
        close(fd);
    } else {
        rmdir(dir);
    }
}

/* Pages that it no longer has are zeros, of whatever size the system's pages are. */
TEST(a_mapped_file_that_is_cut_short_is_noticed)
{
    enum { BYTES = 1 << 18 };
    char path[] = "/tmp/llmq-base-XXXXXX";
    const int fd = mkstemp(path);
    uint8_t *x = malloc(BYTES);
    CHECK(fd >= 0 && x && memset(x, 7, BYTES) && write(fd, x, BYTES) == BYTES, "written");
    lq_map m;
    CHECK(!lq_map_open(&m, path, NULL), "mapped");
    lq_map_guard(true);
    const volatile uint8_t *at = m.data;
    CHECK(at[BYTES - 1] == 7 && !lq_map_lost(), "whole");
    CHECK(ftruncate(fd, 0) == 0, "cut");
    for (size_t i = 0; i < BYTES; i += 4096)
        CHECK(at[i] == 0, "byte %zu", i);
    CHECK(lq_map_lost(), "told");
    lq_map_guard(false);
    lq_map_close(&m);
    close(fd);
    unlink(path);
    free(x);
}

TEST(missing_folders_above_an_output_are_made)
{
    char dir[] = "/tmp/llmq-base-XXXXXX", path[64];
    CHECK(mkdtemp(dir) != NULL, "mkdtemp");
    snprintf(path, sizeof path, "%s/a//b/f", dir);
    CHECK(!lq_write_file(path, "x", 1, NULL) && lq_exists(path), "%s is there", path);
    unlink(path);
    for (int i = 0; i < 3; i++) { /* b, a, dir */
        *strrchr(path, '/') = 0;
        if (path[strlen(path) - 1] == '/') path[strlen(path) - 1] = 0;
        CHECK(rmdir(path) == 0, "%s was a folder and is empty", path);
    }
}

TEST(what_is_no_file_is_refused_at_once)
{
    static const struct {
        const char *why, *path;
        lq_status want;
    } t[] = { { "no name", "", LQ_EUSAGE },
              { "a folder", "/tmp", LQ_EUSAGE },
              { "a folder to be", "/proc/llmq-none/", LQ_EUSAGE },
              { "below a file", "/dev/null/f", LQ_EUSAGE },
              { "standard output", "-", LQ_EUSAGE } };
    for (size_t i = 0; i < LQ_COUNT(t); i++) {
        lq_out *o;
        lq_err err = { "" };
        CHECK(lq_out_open(&o, t[i].path, &err) == t[i].want, "%s: %s", t[i].why, err.msg);
    }
    char dir[] = "/tmp/llmq-base-XXXXXX", path[64];
    CHECK(mkdtemp(dir) != NULL, "mkdtemp");
    snprintf(path, sizeof path, "%s/pipe", dir);
    CHECK(mkfifo(path, 0600) == 0, "mkfifo");
    lq_map m;
    char *text;
    size_t n;
    CHECK(lq_map_open(&m, path, NULL) == LQ_EFORMAT, "a pipe is not waited for");
    CHECK(lq_read_file(&text, &n, path, 9, NULL) == LQ_EFORMAT, "a pipe is not waited for");
    unlink(path);
    CHECK(rmdir(dir) == 0, "rmdir");
}

TEST(a_piece_is_zero_also_where_others_wrote_before)
{
    static const size_t caps[] = { 4096, (size_t)4 << 20 }; /* from the heap, and fresh pages */
    for (size_t i = 0; i < LQ_COUNT(caps); i++) {
        lq_arena a;
        CHECK(!lq_arena_init(&a, caps[i], NULL), "init");
        for (size_t round = 0; round < 3; round++) {
            size_t n = caps[i] / 4 * (round + 1), bad = 0;
            uint8_t *p = lq_push(&a, n);
            CHECK(p != NULL, "%zu bytes", n);
            for (size_t k = 0; p && k < n; k++)
                bad += p[k] != 0;
            CHECK(bad == 0, "cap %zu, round %zu: %zu bytes are not zero", caps[i], round, bad);
            if (p) memset(p, 0xff, n);
            lq_arena_reset(&a, 0);
        }
        lq_arena_free(&a);
    }
}

TEST(a_buffer_grows_and_keeps_what_it_has)
{
    lq_buf b = { 0 };
    char want[2048], with[2048];
    memset(with, 'x', sizeof with);
    with[sizeof with - 1] = 0;
    lq_buf_puts(&b, "a");
    lq_buf_add(&b, NULL, 0);
    lq_buf_printf(&b, "%d", 17);
    CHECK(b.n == 3 && memcmp(b.p, "a17", 3) == 0, "%zu bytes", b.n);
    lq_buf_printf(&b, "%s|", with); /* more than there is room for */
    snprintf(want, sizeof want, "a17%.2000s", with);
    CHECK(b.n == 3 + sizeof with && memcmp(b.p, want, 2003) == 0 && b.p[b.n - 1] == '|',
          "%zu bytes", b.n);
    CHECK(!lq_buf_room(&b, SIZE_MAX) && b.oom && b.p[0] == 'a', "too much is out of memory");
    lq_buf_puts(&b, "lost");
    CHECK(b.n == 3 + sizeof with, "nothing is added after that");
    lq_buf_free(&b);
    CHECK(!b.p && !b.n && !b.oom, "ready again");
}

TEST(a_code_point_is_written_as_it_is_read)
{
    static const uint32_t edges[] = { 0,      0x7F,   0x80,    0x7FF,   0x800,
                                      0xFFFF, 0x20AC, 0x10000, 0x1F600, 0x10FFFF };
    for (size_t i = 0; i < LQ_COUNT(edges); i++) {
        lq_buf b = { 0 };
        size_t len = 0;
        lq_buf_cp(&b, edges[i]);
        CHECK(lq_utf8_get(b.u, &len) == edges[i] && len == b.n && lq_utf8_valid(b.p, b.n, NULL),
              "U+%04X", edges[i]);
        lq_buf_free(&b);
    }
}

TEST(e4m3_is_the_nearest_halves_to_even)
{
    for (int c = 0; c < 0x7f; c++) {
        const int e = c >> 3, m = c & 7;
        const float v = e ? ldexpf((float)(8 + m), e - 10) : ldexpf((float)m, -9);
        CHECK(lq_e4m3_to_f32((uint8_t)c) == v && lq_e4m3_to_f32((uint8_t)(c | 0x80)) == -v,
              "%02x: %g, expected %g", (unsigned)c, (double)lq_e4m3_to_f32((uint8_t)c), (double)v);
        CHECK(lq_f32_to_e4m3(v) == c && lq_f32_to_e4m3(-v) == (c | 0x80), "%02x back", (unsigned)c);
        if (c == 0x7e) break;
        const float half = (v + lq_e4m3_to_f32((uint8_t)(c + 1))) / 2;
        const uint8_t even = (uint8_t)(c + (c & 1));
        CHECK(lq_f32_to_e4m3(half) == even, "%g: %02x, expected %02x", (double)half,
              (unsigned)lq_f32_to_e4m3(half), (unsigned)even);
        CHECK(lq_f32_to_e4m3(nextafterf(half, 0)) == c &&
                  lq_f32_to_e4m3(nextafterf(half, 1000)) == c + 1,
              "beside %g", (double)half);
    }
    CHECK(lq_f32_to_e4m3(1e30f) == 0x7e && lq_f32_to_e4m3(-INFINITY) == 0xfe, "beyond 448");
    CHECK((lq_f32_to_e4m3(NAN) & 0x7f) == 0x7f && isnan(lq_e4m3_to_f32(0xff)), "NaN");
}

int main(int argc, char **argv)
{
    RUN(f16_rounds_to_nearest_even_and_back);
    RUN(many_elements_are_rounded_as_one_is);
    RUN(f16_subnormals_round_half_to_even);
    RUN(a_fixed_arena_fails_when_full_and_resets_to_a_mark);
    RUN(an_output_file_is_whole_or_absent);
    RUN(unfinished_output_has_no_name);
    RUN(a_mapped_file_that_is_cut_short_is_noticed);
    RUN(missing_folders_above_an_output_are_made);
    RUN(what_is_no_file_is_refused_at_once);
    RUN(a_piece_is_zero_also_where_others_wrote_before);
    RUN(a_buffer_grows_and_keeps_what_it_has);
    RUN(a_code_point_is_written_as_it_is_read);
    RUN(e4m3_is_the_nearest_halves_to_even);
    return check_end();
}
