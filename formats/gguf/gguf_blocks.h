/* formats/gguf/gguf_blocks.h - GGUF's blocks as our schemes, without loss.
 *
 *   Q4_0  u4-g32   Q8_0  u8-g32   as they are: codes and f16 scales, apart instead of interleaved
 *   MXFP4 mxfp4                   ggml reads the code of -0 as 0
 *   NVFP4 nvfp4                   the same; scales have no sign, and 0x7f is 0. The tensor's scale
 *                                 (QT_SCALES2) is a tensor of its own, "NAME.scale"
 *   all others of blocks.h        as they are, QT_BLOCKS
 *
 * Source: ggml-quants.c's dequantize_row functions of 2026-08; docs in gguf-py. */
#ifndef LLMQ_FORMATS_GGUF_GGUF_BLOCKS_H
#define LLMQ_FORMATS_GGUF_GGUF_BLOCKS_H

#include "formats/gguf/gguf.h"
#include "formats/tensor/qtensor.h"

qt_scheme gguf_scheme(ggml_type t);
const char *gguf_type_text(ggml_type t); /* "Q4_K" */
size_t gguf_row_bytes(ggml_type t, int64_t K);
/* Row n of a portable tensor of gguf_scheme(t) from its row of blocks; planes zeroed before. */
void gguf_unpack_row(void *const w[QT_N_PLANES], const qt_tensor *q, int64_t n, ggml_type t,
                     const uint8_t *blocks);
/* The way back: is there a type whose blocks hold the same values? Types are tried in an order
 * in which what was read comes back as it was: i = 0, 1, ... until false. */
bool gguf_type_for(ggml_type *t, const qt_tensor *q, size_t i);
/* Row n of q as blocks (zeroed before); false: a code or scale has no place in the type. K-quants:
 * the two factors of each scale are found again. */
bool gguf_pack_row(uint8_t *blocks, const qt_tensor *q, int64_t n, ggml_type t);

#endif
