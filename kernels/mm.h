/* kernels/mm.h - y[M,N] = x[M,K] W^T (+ bias) for a weight in any scheme; W is never expanded.
 *
 * Activations are prepared once per input and shared by the weights that read it (q, k, v; gate,
 * up): MM_F32   as they are MM_BF16  rounded to bf16; products summed in f32 (VDPBF16PS order:
 * docs/design) MM_I8    int8 with one absmax scale per block of up to 128 inputs of a group;
 * integer products are exact Every output is summed over K in one order: group by group, block by
 * block, whatever M, the tile split or the thread count. So a row's result is the same bytes alone
 * or among others. One instruction family serves all M of a run.
 *
 * Error bound of a result against the exact product with the prepared activations:
 * 3*K*2^-24*sum|x*w|. */
#ifndef LLMQ_KERNELS_MM_H
#define LLMQ_KERNELS_MM_H

#include "formats/qt.h"
#include "kernels/pool.h"

typedef enum { MM_F32, MM_BF16, MM_I8, MM_N_ACTS } mm_acts;

typedef struct {
    qt_tensor t; /* layout QT_TILE16 */
    int64_t N, K;
    bool expanded; /* had to become dense (see formats/tiles.h) */
} mm_weight;

/* Bytes that mm_pack cuts from the arena; 0 when `w` is tiled already and is used in place. */
size_t mm_pack_bytes(const qt_tensor *w);
lq_status mm_pack(mm_weight *out, const qt_tensor *w, lq_arena *a, pool *p, lq_err *err);

typedef struct {
    const mm_weight *w;
    float *y;          /* [M, ldy] */
    int64_t ldy;       /* floats from row to row */
    const float *bias; /* [N] or NULL */
    bool add;          /* y += instead of y = : the residual */
} mm_out;

/* Scratch bytes for mm_run with at most M rows of weights with this many inputs (any scheme). */
size_t mm_scratch_bytes(int64_t M, int64_t K, int n_outs, int threads);
/* All outs share x [M, ldx]. `scratch` is left as it was found. M >= 0. */
void mm_run(const mm_out *outs, int n_outs, const float *x, int64_t ldx, int64_t M, mm_acts acts,
            lq_arena *scratch, pool *p);

#endif
