/* quantize/layer/mix.h - the mixes of block types that llama.cpp's users know by name ("Q4_K_M"): which type each
 * tensor of a model takes.
 *
 * Source: llama.cpp's llama-quant.cpp (2026-10, commit 0c1e570), as it chooses with an importance matrix; mixes of
 * types that no quantizer here makes are not there. */
#ifndef LLMQ_QUANTIZE_LAYER_MIX_H
#define LLMQ_QUANTIZE_LAYER_MIX_H

#include "formats/arch/arch.h"
#include "formats/tensor/qtensor.h"

typedef struct mix_row mix_row;

/* "Q4_K_M", in any case; LQ_EUSAGE names those there are. */
lq_status mix_find(const mix_row **m, const char *name, lq_err *err);
const char *mix_name(const mix_row *m);
/* The scheme of a type of GGUF's, by its number, for rows of K; false: no blocks divide them. */
bool mix_type_scheme(qt_scheme *s, int type, int64_t K);
/* The scheme of a matrix [N,K] of this role and layer (-1: none); false: it stays as it is (routers, vectors). Where
 * K is no multiple of a block's 256 the type of 32 that is nearest above. */
bool mix_scheme(qt_scheme *s, const mix_row *m, const arch_config *c, arch_role r, int64_t layer,
                int64_t K);

#endif
