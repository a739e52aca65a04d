/* tests/fuzz/fuzz_stats.c - statistics files (calib/stats_file.h): any bytes as a file; and such a file whose sums are
 * any bytes, with their right hash, or whose bytes are changed after. The first byte says which. What is taken and merged
 * can be read again, and is merged to the same bytes. */
#include "base/hash.h"
#include "calib/stats_file.h"
#include "formats/hf/safetensors.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

enum {
    ANY = 1,
    CHANGED = 2,
    H = 12,
    SUMS = 32,
    MAX = 8,
    COUNT = 24,
    BYTES = H + SUMS + MAX + COUNT
};
static char dir[64], in[96], out[96], again[96];

static void clean(void)
{
    unlink(in);
    unlink(out);
    unlink(again);
    rmdir(dir);
}

static void begin(void)
{
    if (dir[0]) return;
    strcpy(dir, "/tmp/llmq-stats-XXXXXX");
    if (!mkdtemp(dir)) abort();
    snprintf(in, sizeof in, "%s/in", dir);
    snprintf(out, sizeof out, "%s/out", dir);
    snprintf(again, sizeof again, "%s/again", dir);
    atexit(clean);
}

/* Sums of two inputs, of these bytes. */
static void put_sums(const uint8_t *p)
{
    static const char about[] =
        "{\"format\":\"llmq-stats-1\",\"have\":[0],\"leaves\":1,\"record\":{}}";
    const lq_hash of = lq_hash_bytes(p, BYTES);
    lq_err err;
    const st_tensor t[] = {
        { .name = "about",
          .dtype = LQ_U8,
          .n_dims = 1,
          .shape = { sizeof about - 1 },
          .bytes = sizeof about - 1,
          .data = (const uint8_t *)about },
        { .name = "0.0.0.-1.h",
          .dtype = LQ_F32,
          .n_dims = 1,
          .shape = { 3 },
          .bytes = H,
          .data = p },
        { .name = "0.0.0.-1.sums",
          .dtype = LQ_F64,
          .n_dims = 1,
          .shape = { 4 },
          .bytes = SUMS,
          .data = p + H },
        { .name = "0.0.0.-1.max",
          .dtype = LQ_F32,
          .n_dims = 1,
          .shape = { 2 },
          .bytes = MAX,
          .data = p + H + SUMS },
        { .name = "0.0.0.-1.count",
          .dtype = LQ_I64,
          .n_dims = 1,
          .shape = { 3 },
          .bytes = COUNT,
          .data = p + H + SUMS + MAX },
        { .name = "0.0.0.-1.xxh3",
          .dtype = LQ_U8,
          .n_dims = 1,
          .shape = { 16 },
          .bytes = sizeof of.b,
          .data = of.b },
    };
    st_writer *w;
    if (st_create(&w, in, t, LQ_COUNT(t), &err) || st_commit(w, &err)) abort();
}

/* Pairs: where, and what is turned there. */
static void change(const uint8_t *p, size_t n)
{
    const int fd = open(in, O_RDWR);
    const off_t size = lseek(fd, 0, SEEK_END);
    uint8_t x;
    for (size_t i = 0; i + 2 < n; i += 3) {
        const off_t at = (p[i] << 8 | p[i + 1]) % size;
        if (pread(fd, &x, 1, at) != 1) abort();
        x ^= p[i + 2];
        if (pwrite(fd, &x, 1, at) != 1) abort();
    }
    close(fd);
}

static void put(const uint8_t *p, size_t n)
{
    const int fd = open(in, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (fd < 0 || write(fd, p, n) != (ssize_t)n) abort();
    close(fd);
}

static lq_status merge(const char *from, const char *to)
{
    lq_err err;
    stats_set *s;
    lq_status st = stats_open(&s, &from, 1, &err);
    if (!st) st = stats_merge(to, s, &err);
    stats_close(s);
    return st;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    uint8_t sums[BYTES] = { 0 };
    lq_map a, b;
    if (n < 1) return 0;
    begin();
    unlink(in);
    if (data[0] & ANY) {
        put(data + 1, n - 1);
    } else {
        memcpy(sums, data + 1, n - 1 < BYTES ? n - 1 : BYTES);
        put_sums(sums);
        if (data[0] & CHANGED && n > 1 + BYTES) change(data + 1 + BYTES, n - 1 - BYTES);
    }
    unlink(out);
    if (merge(in, out)) {
        if (access(out, F_OK) == 0) abort();
        return 0;
    }
    if (merge(out, again) || lq_map_open(&a, out, NULL) || lq_map_open(&b, again, NULL)) abort();
    if (a.size != b.size || memcmp(a.data, b.data, a.size) != 0) abort();
    lq_map_close(&a);
    lq_map_close(&b);
    return 0;
}
