/* tests/fuzz/fuzz_llmq.c - the bytes after the preamble's place are zeros, planes and a header of
 * the fuzzer's choice: the first two bytes say how long the data is. Lengths and checksum are set
 * right, so that the fuzzer gets behind them. */
#include "base/hash.h"
#include "formats/llmq/llmq.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    if (n < 2) return 0;
    const size_t body = (size_t)(data[0] | (data[1] & 0x0f) << 8) * LLMQ_ALIGN, text = n - 2;
    const size_t off = LLMQ_PAGE + body;
    const uint64_t fields[] = { off, text, off + text };
    uint8_t *file = aligned_alloc(LLMQ_PAGE, lq_round_up(off + text, LLMQ_PAGE));
    if (!file) return 0;
    memset(file, 0, off);
    memcpy(file, lqf_magic, sizeof lqf_magic);
    file[8] = LLMQ_MAJOR;
    memcpy(file + 16, fields, sizeof fields); /* little endian here */
    memcpy(file + off, data + 2, text);
    lq_hash h;
    if (!lqf_header_hash(&h, file, file + off, text)) abort();
    memcpy(file + 48, h.b, sizeof h.b);
    lqf_file f;
    lq_err err;
    if (!lqf_open_bytes(&f, file, off + text, &err)) {
        lqf_verify(&f, NULL, NULL, NULL, &err);
        lqf_close(&f);
    }
    free(file);
    return 0;
}
