/* convert/imatrix_write.h - an importance matrix as llama-imatrix writes it (formats/gguf/imatrix.h: the GGUF form). */
#ifndef LLMQ_CONVERT_IMATRIX_WRITE_H
#define LLMQ_CONVERT_IMATRIX_WRITE_H

#include "base/base.h"

/* Sums of squares of a weight's inputs, of each expert, and the tokens that they are over. */
typedef struct {
    char name[64];
    int64_t K, experts;   /* 1 where it has none */
    float *sums, *tokens; /* [experts][K], [experts] */
} imatrix_sums;

/* Of a text of so many windows; written whole or not at all. Errors: LQ_EIO, LQ_ENOMEM. */
lq_status imatrix_write(const char *path, const imatrix_sums *e, size_t n, const char *text,
                        int64_t windows, int64_t len, lq_err *err);

#endif
