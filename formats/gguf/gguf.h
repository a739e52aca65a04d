/* formats/gguf/gguf.h - strict reader of one GGUF file, versions 2 and 3, little endian.
 *
 *     file     "GGUF" | u32 version | u64 tensors | u64 pairs | pairs | tensor infos |
 *              zeros to the alignment | data
 *     string   u64 n, n bytes
 *     pair     string key, u32 type, value
 *     array    u32 type, u64 n, n elements
 *     info     string name, u32 dims, u64 dim[dims] (dim[0] is contiguous), u32 type, u64 offset
 *
 * Source: ggml's docs/gguf.md of 2026-08. Every count, length and offset is checked here. */
#ifndef LLMQ_FORMATS_GGUF_GGUF_H
#define LLMQ_FORMATS_GGUF_GGUF_H

#include "base/base.h"
#include "base/file.h"
#include "base/hash.h"
#include "formats/tensor/blocks.h"

typedef enum {
    GGUF_U8,
    GGUF_I8,
    GGUF_U16,
    GGUF_I16,
    GGUF_U32,
    GGUF_I32,
    GGUF_F32,
    GGUF_BOOL,
    GGUF_STRING,
    GGUF_ARRAY,
    GGUF_U64,
    GGUF_I64,
    GGUF_F64,
    GGUF_N_TYPES
} gguf_type;

typedef struct {
    const char *key;
    gguf_type type; /* of the value; of the elements of an array */
    bool array;
    uint64_t n;          /* elements; 1 where it is no array */
    const uint8_t *data; /* first element, unaligned; strings with their lengths */
    size_t bytes;
} gguf_kv;

/* Types of tensors that are read: X(name, id, elements of a block, bytes of a block), and those of
 * formats/tensor/blocks.h. */
#define GGUF_TENSOR_TYPES(X) \
    X(F32, 0, 1, 4)          \
    X(F16, 1, 1, 2)          \
    X(Q4_0, 2, 32, 18)       \
    X(Q8_0, 8, 32, 34)       \
    X(I32, 26, 1, 4)         \
    X(BF16, 30, 1, 2)        \
    X(MXFP4, 39, 32, 17)     \
    X(NVFP4, 40, 64, 36)     \
    BLK_TYPES(X)
typedef enum {
#define X(name, id, elements, bytes) GGML_##name = id,
    GGUF_TENSOR_TYPES(X)
#undef X
} ggml_type;

typedef struct {
    const char *name;
    ggml_type type;
    int n_dims;
    int64_t shape[4]; /* outermost first, as elsewhere: [N,K] */
    const uint8_t *data;
    size_t bytes;
} gguf_tensor;

typedef struct gguf_file {
    lq_map map;
    lq_arena arena;
    size_t head_bytes, data_off; /* where the infos end, where the tensors begin */
    size_t align;
    gguf_kv *kv; /* by key */
    size_t n_kv;
    gguf_tensor *tensors; /* by name */
    size_t n;
} gguf_file;

/* Errors: LQ_EFORMAT, LQ_EUNSUPPORTED (version, byte order, a tensor type we do not read) say
 * where; LQ_EIO, LQ_ENOENT, LQ_ENOMEM. After an error f is closed. */
lq_status gguf_open(gguf_file *f, const char *path, lq_err *err);
lq_status gguf_open_bytes(gguf_file *f, const uint8_t *data, size_t n, lq_err *err);
void gguf_close(gguf_file *f);
const gguf_kv *gguf_get(const gguf_file *f, const char *key); /* NULL */
const gguf_tensor *gguf_find(const gguf_file *f, const char *name);
/* Are the tensors placed as writers do: one after the other, each at the next multiple of the
 * alignment, zeros between, and the file's end after the last? t[n]: tensors of this file (others
 * are passed over). Each finding goes to `bad`. LQ_ENOMEM. */
typedef void gguf_bad(void *user, const char *name, const char *what);
lq_status gguf_check_cover(const gguf_file *f, const gguf_tensor *t, size_t n, gguf_bad *bad,
                           void *user, lq_err *err);
/* Over names, types and shapes of n tensors in the order of names. */
lq_hash gguf_tensors_hash(const gguf_tensor *t, size_t n);

/* Is it a number or an array of them? And is it one number: a scalar, or an array (of one element
 * for each layer) of equal ones? */
bool gguf_is_numbers(const gguf_kv *kv);
/* The array of n integers, of any type, under that name; NULL: there is none. */
const gguf_kv *gguf_integers(const gguf_file *f, const char *key, uint64_t n);
bool gguf_is_one(const gguf_kv *kv);
/* Values; false: absent, of another kind, or an array of different numbers. Numbers of any type;
 * gguf_int: whole ones. */
bool gguf_int(const gguf_file *f, const char *key, int64_t *v);
bool gguf_float(const gguf_file *f, const char *key, double *v);
bool gguf_bool(const gguf_file *f, const char *key, bool *v);
/* In the arena, NUL-terminated (text up to the first NUL). */
bool gguf_str(gguf_file *f, const char *key, const char **v);
/* The string at *at, which moves past it; checked at open. */
typedef struct {
    const char *s;
    size_t n;
} gguf_text;
gguf_text gguf_next(const uint8_t **at);
/* Element i of an array of integers (any width) as int64. */
int64_t gguf_int_at(const gguf_kv *kv, uint64_t i);
double gguf_real_at(const gguf_kv *kv, uint64_t i); /* of any numbers (gguf_is_numbers) */

#endif
