/* formats/gguf_names.h - what llama.cpp calls architectures and tensors, for reader and writer. */
#ifndef LLMQ_FORMATS_GGUF_NAMES_H
#define LLMQ_FORMATS_GGUF_NAMES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct {
    const char *gguf, *hf, *type; /* general.architecture, architectures, model_type */
    bool turned;                  /* rows of q and k of a head alternate between its halves */
    bool experts;                 /* read where expert_count is not 0 */
    bool written;                 /* llmq writes it too */
} gguf_arch;
typedef struct {
    const char *gguf, *hf; /* without ".weight", and "blk.N." or "model.layers.N." */
    int heads;             /* 1: q, 2: k */
    const char *only;      /* of this model_type alone; NULL: of all that no other row is for */
    bool stacked;          /* all experts in one tensor; ours are one by one, %d is which */
} gguf_name;

enum { GGUF_N_ARCHS = 7, GGUF_N_NAMES = 24 };
extern const gguf_arch gguf_archs[GGUF_N_ARCHS]; /* a name of GGUF's is read as the first */
extern const gguf_name gguf_names[GGUF_N_NAMES];

/* The row of GGUF's name (n bytes of it), of a layer or not; NULL: there is none. */
const gguf_name *gguf_name_find(const char *type, const char *name, size_t n, bool in_layer);

/* Row n of ours stands in row gguf_stored_row(n) where heads are turned (0: as they are): 2i + j of
 * a head for its j * half + i. */
int64_t gguf_stored_row(int64_t n, int64_t N, int64_t heads);

#endif
