/* tests/fuzz/fuzz_kv.c - any order of reserving, writing, sharing, forking, cutting back and
 * freeing the blocks of a KV cache, beside the model of tests/support/kv_model.h. The first byte is the
 * pool's size and whether prefixes are kept. */
#include "tests/support/kv_model.h"

#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void right(const char *wrong)
{
    if (!wrong) return;
    fprintf(stderr, "%s\n", wrong);
    abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    kv_model m = { 0 };
    lq_err err;
    if (n < 2 || n > 4096) return 0;
    if (model_cache(&m.kv, 1 + data[0] % MAX_BLOCKS, data[0] < 192, &err)) abort();
    choices c = { .p = data + 1, .end = data + n };
    while (c.p < c.end) {
        right(model_step(&m, &c));
        right(model_check(&m));
    }
    right(model_close(&m));
    return 0;
}
