/* runtime/model/kv_file.c - see kv_file.h. */
#include "runtime/model/kv_file.h"

#include "base/hash.h"

#include <assert.h>
#include <stdio.h>

typedef struct {
    char magic[8];
    uint8_t sum[16];
    uint64_t of[2], key[2];
    uint64_t bytes;
    uint32_t part, block_size;
    int32_t tokens[KV_MAX_BLOCK];
    uint8_t zero[56];
} head;
static_assert(sizeof(head) == KVF_HEAD, "as kv_file.h has it");

enum { SUMMED_FROM = offsetof(head, of) };
static const char magic[8] = { 'L', 'L', 'M', 'Q', 'K', 'V', '1', '\n' };
static const char letters[KV_PARTS] = { [KV_ROWS] = 'k', [KV_STATE] = 's', [KV_NEAR] = 'w' };

/* But for the sum. */
static head head_of(const kvf_what *w)
{
    head h = { .of = { w->of[0], w->of[1] },
               .key = { w->key[0], w->key[1] },
               .bytes = w->bytes,
               .part = (uint32_t)w->part,
               .block_size = (uint32_t)w->block_size };
    memcpy(h.magic, magic, sizeof magic);
    memcpy(h.tokens, w->tokens, sizeof h.tokens);
    return h;
}

static void sum_of(uint8_t sum[16], const uint8_t *file, size_t n)
{
    const lq_hash s = lq_hash_bytes(file + SUMMED_FROM, n - SUMMED_FROM);
    memcpy(sum, s.b, sizeof s.b);
}

void kvf_seal(uint8_t *file, const kvf_what *w)
{
    const head h = head_of(w);
    memcpy(file, &h, sizeof h);
    sum_of(file + offsetof(head, sum), file, KVF_HEAD + w->bytes);
}

const char *kvf_check(const uint8_t *file, size_t n, const kvf_what *w)
{
    if (n < KVF_HEAD || n - KVF_HEAD != w->bytes) return "another size";
    head want = head_of(w);
    sum_of(want.sum, file, n);
    if (memcmp(file, want.magic, sizeof want.magic) != 0) return "another kind of file";
    if (memcmp(file + offsetof(head, sum), want.sum, sizeof want.sum) != 0) return "damaged";
    return memcmp(file, &want, sizeof want) != 0 ? "of something else" : NULL;
}

void kvf_name(char out[KVF_NAME], const uint64_t key[2], kv_part part)
{
    snprintf(out, KVF_NAME, "%016llx%016llx.%c", (unsigned long long)key[0],
             (unsigned long long)key[1], letters[part]);
}

static bool hex_read(uint64_t *v, const char *text)
{
    static const char digits[] = "0123456789abcdef";
    *v = 0;
    for (int i = 0; i < 16; i++) {
        const char *d = text[i] ? strchr(digits, text[i]) : NULL;
        if (!d) return false;
        *v = *v << 4 | (uint64_t)(d - digits);
    }
    return true;
}

bool kvf_name_read(const char *name, uint64_t key[2], kv_part *part)
{
    if (strlen(name) != KVF_NAME - 1 || name[32] != '.') return false;
    const char *letter = memchr(letters, name[33], sizeof letters);
    if (!letter || !hex_read(&key[0], name) || !hex_read(&key[1], name + 16)) return false;
    *part = (kv_part)(letter - letters);
    return true;
}
