/* tests/test_base.c - statuses, arenas, element types, files. */
#include "formats/base.h"
#include "tests/check.h"

#include <stdio.h>
#include <stdlib.h>
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
    CHECK(lq_map_open(&m, dir, &err) == LQ_EFORMAT, "a directory is refused: %s", err.msg);
    unlink(path);
    CHECK(rmdir(dir) == 0, "a temporary file was left");
}

int main(int argc, char **argv)
{
    RUN(f16_rounds_to_nearest_even_and_back);
    RUN(a_fixed_arena_fails_when_full_and_resets_to_a_mark);
    RUN(an_output_file_is_whole_or_absent);
    return check_end();
}
