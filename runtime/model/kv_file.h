/* runtime/model/kv_file.h - a file of the KV cache on disk (docs/design/0013-kv-disk.md): one part of one
 * block, a head of KVF_HEAD bytes and then the part as it is in memory.
 *
 *     offset bytes
 *          0     8  "LLMQKV1\n"
 *          8    16  XXH3-128 of all that follows
 *         24    16  what it is of: weights, arithmetic, types, rope, sizes
 *         40    16  its key: the hash chain of its tokens
 *         56     8  bytes of the part
 *         64     4  which part (kv_part)
 *         68     4  tokens of a block
 *         72   128  they, then zeros
 *        200    56  zeros
 *
 * Numbers are as the machine has them: a folder is one machine's. The name is the key in hex, a dot and
 * a letter for the part. */
#ifndef LLMQ_RUNTIME_MODEL_KV_FILE_H
#define LLMQ_RUNTIME_MODEL_KV_FILE_H

#include "base/base.h"
#include "runtime/model/kv_part.h"

enum { KVF_HEAD = 256, KVF_NAME = 35 };

typedef struct {
    uint64_t of[2], key[2];
    kv_part part;
    int block_size;
    int32_t tokens[KV_MAX_BLOCK]; /* zeros from block_size on */
    size_t bytes;                 /* of the part */
} kvf_what;

/* file [KVF_HEAD + bytes], the part in its place: the head is written. */
void kvf_seal(uint8_t *file, const kvf_what *w);
/* NULL, or in words why the n bytes are no such file, undamaged. */
const char *kvf_check(const uint8_t *file, size_t n, const kvf_what *w);
void kvf_name(char out[KVF_NAME], const uint64_t key[2], kv_part part);
bool kvf_name_read(const char *name, uint64_t key[2], kv_part *part); /* false: not such a name */

#endif
