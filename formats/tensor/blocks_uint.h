/* formats/tensor/blocks_uint.h - GGUF's blocks as QT_UINT: the same values as codes of 2, 3, 4 or 8 bits
 * with f32 or (one to a block) f16 scales. More room, for kernels that know QT_UINT alone, as those of
 * devices. */
#ifndef LLMQ_FORMATS_TENSOR_BLOCKS_UINT_H
#define LLMQ_FORMATS_TENSOR_BLOCKS_UINT_H

#include "formats/tensor/blocks.h"

qt_scheme blk_uint(const blk_type *t);
/* A portable tensor of QT_BLOCKS; the planes are cut from a. LQ_ENOMEM. */
lq_status blk_to_uint(qt_tensor *q, const qt_tensor *t, lq_arena *a, lq_err *err);

#endif
