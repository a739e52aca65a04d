/* formats/gguf/imatrix.h - llama.cpp's importance matrices: the mean squares of each weight's inputs over some text.
 *
 *     GGUF      general.type "imatrix", imatrix.datasets [string], .chunk_count u32, .chunk_size u32; of each weight
 *               NAME.in_sum2 f32 [experts, K], sums of squares, and NAME.counts f32 [experts, 1], tokens
 *     old form  i32 weights; of each i32 n, name [n], i32 calls, i32 values, f32 [values], means times calls; then
 *               maybe i32 chunks, i32 n, the text's name [n]; little endian
 *
 * Source: tools/imatrix and common/imatrix-loader.cpp of llama.cpp (2026-10, commit 0c1e570). */
#ifndef LLMQ_FORMATS_GGUF_IMATRIX_H
#define LLMQ_FORMATS_GGUF_IMATRIX_H

#include "base/hash.h"

typedef struct {
    const char *name; /* "blk.0.attn_q.weight" */
    float *
        mean_sq; /* [n]: of all experts, one after the other; 1 for those that no token was sent to */
    int64_t n;
} imatrix_entry;

typedef struct imatrix {
    imatrix_entry *e; /* by name */
    size_t n;
    lq_hash hash; /* of the file */
    lq_arena arena;
} imatrix;

/* Errors: LQ_EFORMAT, LQ_EVALUE (a value that is not finite or below 0) say where; LQ_ENOENT, LQ_EIO, LQ_ENOMEM. After
 * an error m is closed. */
lq_status imatrix_open(imatrix *m, const char *path, lq_err *err);
void imatrix_close(imatrix *m);
const imatrix_entry *imatrix_find(const imatrix *m, const char *name); /* NULL */

#endif
