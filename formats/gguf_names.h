/* formats/gguf_names.h - what llama.cpp calls architectures and tensors, for reader and writer. */
#ifndef LLMQ_FORMATS_GGUF_NAMES_H
#define LLMQ_FORMATS_GGUF_NAMES_H

#include <stdbool.h>
#include <stdint.h>

typedef struct {
    const char *gguf, *hf, *type; /* general.architecture, architectures, model_type */
    bool turned;                  /* rows of q and k of a head alternate between its halves */
} gguf_arch;
typedef struct {
    const char *gguf, *hf; /* without ".weight", and "blk.N." or "model.layers.N." */
    int heads;             /* 1: q, 2: k */
} gguf_name;

enum { GGUF_N_ARCHS = 4, GGUF_N_NAMES = 14 };
extern const gguf_arch gguf_archs[GGUF_N_ARCHS]; /* a name of GGUF's is read as the first */
extern const gguf_name gguf_names[GGUF_N_NAMES];

/* Row n of ours stands in row gguf_stored_row(n) where heads are turned (0: as they are): 2i + j of
 * a head for its j * half + i. */
int64_t gguf_stored_row(int64_t n, int64_t N, int64_t heads);

#endif
