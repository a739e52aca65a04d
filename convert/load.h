/* convert/load.h - a tensor of the source, checked and laid out by rows. For convert/ only. */
#ifndef LLMQ_CONVERT_LOAD_H
#define LLMQ_CONVERT_LOAD_H

#include "formats/source/source.h"
#include "kernels/core/pool.h"

/* A tensor in the portable layout, checked (formats/tensor/finite.h), its planes in the source or in `a`;
 * conv_unload also after an error. p may be NULL. */
lq_status conv_load(qt_tensor *q, const src_source *src, const src_tensor *t, pool *p, lq_arena *a,
                    lq_err *err);
void conv_unload(const src_source *src, const src_tensor *t, lq_arena *a);
/* A tiled tensor in the portable layout. */
lq_status conv_untile(qt_tensor *q, const qt_tensor *tiled, pool *p, lq_arena *a, lq_err *err);

#endif
