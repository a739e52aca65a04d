/* tests/fuzz/fuzz_llmq.c - any bytes into the .llmq reader. The file's length and the header's
 * checksum are put right first: they would refuse almost everything, and nothing behind them
 * would be tried. What is taken must be readable: every plane within the bytes, every row. */
#include "formats/llmq.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void put_le(uint8_t *p, uint64_t v)
{
    for (int i = 0; i < 8; i++)
        p[i] = (uint8_t)(v >> (8 * i));
}

static uint64_t get_le(const uint8_t *p)
{
    uint64_t v = 0;
    for (int i = 7; i >= 0; i--)
        v = v << 8 | p[i];
    return v;
}

static void mend(uint8_t *p, size_t n)
{
    if (n < LLMQ_PAGE) return;
    memcpy(p, llmq_magic, sizeof llmq_magic);
    uint64_t off = get_le(p + 16);
    if (off < LLMQ_PAGE || off > n) return;
    put_le(p + 24, n - off);
    put_le(p + 32, n);
    lq_hash h = llmq_header_hash(p, p + off, n - (size_t)off);
    memcpy(p + 48, h.b, sizeof h.b);
}

static void ignore(void *user, const char *name, const char *what)
{
    (void)user, (void)name, (void)what;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    uint8_t *copy = aligned_alloc(64, lq_round_up(n ? n : 1, 64));
    if (!copy) return 0;
    memcpy(copy, data, n);
    mend(copy, n);
    llmq_file f;
    if (!llmq_open_bytes(&f, copy, n, NULL)) {
        llmq_verify(&f, NULL, ignore, NULL, NULL);
        for (size_t i = 0; i < f.n_tensors; i++) {
            const qt_tensor *t = &f.tensors[i].t;
            if (!f.tensors[i].plain || t->layout != QT_PORTABLE || t->K > 4096 || !t->N) continue;
            float row[4096];
            qt_dequant(row, t, t->N - 1, t->N);
        }
        llmq_close(&f);
    }
    free(copy);
    return 0;
}
