/* tests/fuzz/fuzz_kv_file.c - any bytes under the name of a file of the KV cache on disk; and such a file
 * whose bytes are changed, cut or lengthened: read is what was written, or nothing. The first byte says
 * which. */
#include "runtime/model/kv_store.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

enum { PART = 96, FILE_BYTES = KVF_HEAD + PART, ROOM = 4096 };
static char dir[64], path[128];
static kv_store *store;

static void clean(void)
{
    char lock[96];
    kvs_close(store);
    snprintf(lock, sizeof lock, "%s/llmq-kv.lock", dir);
    unlink(path);
    unlink(lock);
    rmdir(dir);
}

static kvf_what wanted(void)
{
    return (kvf_what){
        .of = { 1, 2 }, .key = { 3, 4 }, .block_size = 8, .tokens = { 5, 6, 7 }, .bytes = PART
    };
}

static void begin(void)
{
    char name[KVF_NAME];
    lq_err err;
    const kvf_what w = wanted();
    if (store) return;
    strcpy(dir, "/tmp/llmq-kv-XXXXXX");
    if (!mkdtemp(dir) || kvs_open(&store, dir, 1 << 20, &err)) abort();
    kvf_name(name, w.key, w.part);
    snprintf(path, sizeof path, "%s/%s", dir, name);
    atexit(clean);
}

static void put(const uint8_t *p, size_t n)
{
    const int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (fd < 0 || write(fd, p, n) != (ssize_t)n) abort();
    close(fd);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    uint8_t file[ROOM] = { 0 }, right[FILE_BYTES], got[FILE_BYTES];
    const kvf_what w = wanted();
    size_t size = FILE_BYTES;
    if (n < 1 || n > ROOM) return 0;
    begin();
    for (int i = 0; i < PART; i++)
        file[KVF_HEAD + i] = (uint8_t)(i * 7);
    kvf_seal(file, &w);
    memcpy(right, file, sizeof right);
    if (data[0] & 1) { /* any bytes */
        size = n - 1;
        memcpy(file, data + 1, size);
    } else { /* pairs: where, and what is turned there; the last one cuts */
        for (size_t i = 1; i + 2 < n; i += 3)
            file[(data[i] << 8 | data[i + 1]) % ROOM] ^= data[i + 2];
        if (data[0] & 2) size = n;
    }
    const bool same = size == FILE_BYTES && memcmp(file, right, sizeof right) == 0;
    const char *why = kvf_check(file, size, &w);
    if (!why != same) abort();
    put(file, size);
    const kvs_found found = kvs_read(store, &w, got, 1);
    if ((found == KVS_READ) != same || (same && memcmp(got, right, sizeof got) != 0)) abort();
    if (!same && (found != KVS_DAMAGED || access(path, F_OK) == 0)) abort();
    return 0;
}
