/* tests/test_builtin.c - the embedded calibration text. */
#include "calib/builtin.h"
#include "formats/base.h"
#include "tests/check.h"

#include <stdlib.h>

TEST(the_embedded_text_is_the_file)
{
    char *data = NULL;
    size_t size = 0;
    lq_err err;
    lq_status s = lq_read_file(&data, &size, "calib/builtin_text.txt", 1 << 20, &err);
    CHECK(!s, "%s", err.msg);
    CHECK(size == calib_builtin_bytes() && size > 100000, "%zu bytes in the file, %zu inside", size,
          calib_builtin_bytes());
    CHECK(!s && memcmp(data, calib_builtin_text, size) == 0, "bytes differ");
    free(data);
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
    RUN(the_embedded_text_is_the_file);
    RUN(its_first_part_is_mixed_already);
    return check_end();
}
