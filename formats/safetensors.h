/* formats/safetensors.h - strict reader and writer of one safetensors file.
 *
 * Rules: header length <= 100,000,000 and within the file; UTF-8 JSON object, no duplicate keys;
 * known dtypes; offsets sorted by begin cover the buffer with no hole, overlap or trailing byte;
 * end - begin = prod(shape)*bits/8 with checked multiplication. __metadata__ is an object of
 * strings. Source: huggingface/safetensors, format of 2026-05. */
#ifndef LLMQ_FORMATS_SAFETENSORS_H
#define LLMQ_FORMATS_SAFETENSORS_H

#include "formats/base.h"

enum { ST_MAX_DIMS = 8 };
typedef struct {
    const char *name;
    lq_dtype dtype;
    int n_dims;
    int64_t shape[ST_MAX_DIMS];
    const uint8_t *data; /* may be unaligned */
    size_t bytes;
} st_tensor;

typedef struct {
    lq_map map;
    lq_arena arena;
    st_tensor *tensors; /* by name */
    size_t n;
} st_file;

lq_status st_open(st_file *f, const char *path, lq_err *err);
/* The same over bytes that the caller keeps (tests, fuzzers). */
lq_status st_open_bytes(st_file *f, const uint8_t *data, size_t n, lq_err *err);
void st_close(st_file *f);
const st_tensor *st_find(const st_file *f, const char *name);

/* Write: tensors in the reference writer's order (dtype falling, then name), __metadata__
 * {"format":"pt"}. */
lq_status st_write(const char *path, const st_tensor *tensors, size_t n, lq_err *err);

#endif
