/* formats/hf/safetensors.h - strict reader and writer of one safetensors file.
 *
 *   u64 n (LE) | n bytes of UTF-8 JSON | data: the tensors, each at data_offsets [begin, end)
 *
 * Rules: header length <= 100,000,000 and within the file; UTF-8 JSON object, no duplicate keys;
 * known dtypes; offsets sorted by begin cover the buffer with no hole, overlap or trailing byte;
 * end - begin = prod(shape)*bits/8 with checked multiplication. __metadata__ is an object of
 * strings. Source: huggingface/safetensors, format of 2026-05. */
#ifndef LLMQ_FORMATS_HF_SAFETENSORS_H
#define LLMQ_FORMATS_HF_SAFETENSORS_H

#include "base/base.h"
#include "base/file.h"

enum { ST_MAX_HEADER = 100000000 };
typedef struct {
    const char *name;
    lq_dtype dtype;
    int n_dims;
    int64_t shape[LQ_MAX_DIMS];
    const uint8_t *data; /* may be unaligned */
    size_t bytes;
} st_tensor;

typedef struct {
    lq_map map;
    lq_arena arena;
    st_tensor *tensors; /* by name */
    size_t n;
    struct cJSON *metadata; /* __metadata__, strings by name, or NULL */
} st_file;

/* Errors: LQ_EFORMAT, LQ_EUNSUPPORTED (a dtype or rank we do not know) name the tensor and what was
 * expected; LQ_EIO, LQ_ENOENT, LQ_ENOMEM. After an error f is closed. */
lq_status st_open(st_file *f, const char *path, lq_err *err);
/* The same over bytes that the caller keeps (tests, fuzzers). */
lq_status st_open_bytes(st_file *f, const uint8_t *data, size_t n, lq_err *err);
void st_close(st_file *f);
const st_tensor *st_find(const st_file *f, const char *name);

/* prod(shape) * bits / 8; false when it overflows or is no whole number of bytes. */
bool st_shape_bytes(lq_dtype d, int n_dims, const int64_t *shape, size_t *bytes);

/* Write: tensors in the reference writer's order (dtype falling, then name), __metadata__
 * {"format":"pt"}. `bytes` must fit the shape. Each tensor's data is given at once, or in pieces
 * and in any order with st_put, so that a file larger than memory can be made and the tensors of
 * one weight can be written together, wherever they are. The file appears at st_commit. */
typedef struct st_writer st_writer;
lq_status st_create(st_writer **w, const char *path, const st_tensor *tensors, size_t n,
                    lq_err *err);
/* n bytes of tensor i (as given to st_create) from its byte `at` on. */
lq_status st_put(st_writer *w, size_t i, size_t at, const void *data, size_t n, lq_err *err);
/* LQ_EVALUE: a tensor has not had all its bytes. Frees w, whatever happens. */
lq_status st_commit(st_writer *w, lq_err *err);
void st_abort(st_writer *w); /* NULL allowed */
/* All at once, every data there. */
lq_status st_write(const char *path, const st_tensor *tensors, size_t n, lq_err *err);

#endif
