/* tests/unit/test_builtin.c - the embedded calibration text. */
#include "base/base.h"
#include "base/file.h"
#include "calib/builtin.h"
#include "tests/support/check.h"

#include <stdlib.h>

static void check_file(const char *path, const char *inside, size_t bytes, size_t at_least)
{
    char *data = NULL;
    size_t size = 0;
    lq_err err;
    lq_status s = lq_read_file(&data, &size, path, 1 << 20, &err);
    CHECK(!s, "%s", err.msg);
    CHECK(size == bytes && size > at_least, "%s: %zu bytes, %zu inside", path, size, bytes);
    CHECK(!s && size == bytes && memcmp(data, inside, size) == 0, "%s: bytes differ", path);
    free(data);
}

TEST(what_is_embedded_is_the_files)
{
    check_file("calib/builtin_text.txt", calib_builtin_text, calib_builtin_text_bytes(), 100000);
    check_file("calib/builtin_chat.jsonl", calib_builtin_chat, calib_builtin_chat_bytes(), 10000);
}

TEST(its_first_part_is_mixed_already)
{
    static const char *const kinds[] = { " the ", "#include", "\xeb\x8a\x94 " /* 는 */ };
    for (size_t i = 0; i < LQ_COUNT(kinds); i++)
        CHECK(memmem(calib_builtin_text, 16384, kinds[i], strlen(kinds[i])) != NULL,
              "no '%s' in the first 16 KB", kinds[i]);
}

int main(int argc, char **argv)
{
    RUN(what_is_embedded_is_the_files);
    RUN(its_first_part_is_mixed_already);
    return check_end();
}
