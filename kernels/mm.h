/* kernels/mm.h - y[M,N] = x[M,K] W^T (+ bias) for a weight in any scheme; W is never expanded.
 *
 * Activations are prepared once per input and shared by the weights that read it (q, k, v; gate,
 * up), in the order of the tile's places (formats/tensor/tiles.h: groups padded to Gp, zeros in the
 * padding). x_p, w_p: input and weight at place p. The order of every sum is part of the contract:
 *
 *   MM_F32    x as it is
 *             y = x_0 w_0, then y = fma(x_p, w_p, y) for p in order, w as qt_dequant gives it: the
 *             product with the dequantized matrix, to the bit
 *
 *   MM_BF16   x rounded to bf16
 *             VDPBF16PS, BFMMLA   sums of pairs of places, in order (BFMMLA rounds to odd)
 *             AMX                 of each 32 places, the sum of the even and that of the odd ones,
 *                                 joined, in order
 *             no instruction      MM_F32 on the rounded x
 *             With an instruction, q - z of quantized weights is exact in bf16, each group has a
 *             sum of its own, and y = fma(s, sum_g, y).
 *
 *   MM_I8     x rounded to int8, one scale per block of A places, A the largest of 128, 64, 32 that
 *             divides Gp: sx = absmax/127, xq = rint(x * (127/absmax)), all 0 where absmax <
 *             MM_I8_TINY
 *             Exact integer sums D = sum(code*xq) and X = sum(xq) per block, then in f32, blocks
 *             and groups in order:
 *                 v = fma(-z, X, D);  acc_g = fma(sx, v, acc_g);  y = fma(s, acc_g, y)
 *             A block with NaN or Inf gives NaN. Tables of 16 values are rounded to integers first
 *             (mm_table): the code is then t[code], and s is s * unit, rounded to f32. Where half
 *             a step has a scale (nvfp4), it is a group of its own, and A is 16.
 *
 *             QT_BLOCKS (of x an A of Kp as one group; D and X of each group of the type, in order):
 *                 acc = fma(s, D - zero X, acc); acc = fma(bias, X, acc) where it has biases
 *             and of each block of A inputs y = fma(sx, acc, y); tables of blocks are whole numbers
 *
 * QT_I8_OUTLIER: y += the outlier columns' own sum (MM_F32 order), from the unquantized
 * activations; in MM_I8 their places hold 0. Then y += bias, y += the old y (add).
 *
 * Every output is summed over K in one order, whatever M, the tile split or the thread count: a
 * row's result is the same bytes alone or among others (batch-invariant). MM_F32 and MM_I8 are the
 * same bytes in every instruction family; MM_BF16 differs between those with any of the
 * instructions and without.
 *
 * Inputs that a weight's scheme rounds (qt_scheme.act) are rounded first, by round_acts (mm.c), and
 * then taken as MM_F32.
 *
 * mm_effective gives the dtype that is used:
 *
 *     asked     weight                                     used
 *     MM_I8     integers, a table of values, QT_BLOCKS     MM_I8
 *     MM_I8     dense bf16                                 MM_BF16
 *     MM_I8     other dense, QT_E4M3, QT_ZERO_BIAS         MM_F32
 *     MM_BF16   every scheme that does not round inputs    MM_BF16
 *
 * Error bound of a result against the exact product with the prepared activations:
 * 3*K*2^-24*sum|x*w|; with zero points under MM_I8 or MM_BF16 the sum is over |x|*(code + z)*s, and
 * under MM_I8 the weights of tables are those of mm_table. */
#ifndef LLMQ_KERNELS_MM_H
#define LLMQ_KERNELS_MM_H

#include "kernels/core/operands.h"
#include "kernels/core/pool.h"

LQ_C_BEGIN

mm_acts mm_effective(const qt_scheme *s, mm_acts want);
int64_t mm_i8_block(const tile_shape *s); /* A of MM_I8 */

mm_table mm_table_of(const float v[16]);

/* What a product needs of a weight. Bytes that mm_pack cuts from the arena; 0 when `w` is tiled
 * already and is used in place.
 * mm_pack: LQ_ENOMEM alone; `w` has passed qt_check_view. */
size_t mm_pack_bytes(const qt_tensor *w);
lq_status mm_pack(mm_weight *out, const qt_tensor *w, lq_arena *a, pool *p, lq_err *err);

/* Can `up` be the partner of `gate`: as many outputs of inputs prepared alike? */
bool mm_gates(const mm_weight *gate, const mm_weight *up, mm_acts acts);

/* One input and the weights that read it. */
typedef struct {
    const float *x;      /* f32, ldx floats from row to row */
    int64_t ldx, M;      /* M >= 0 rows of y */
    const int32_t *rows; /* [M]: row m of y comes from row rows[m] of x; NULL: from row m */
    const mm_out *outs;
    int n_outs;
} mm_job;

/* Scratch bytes for mm_run_jobs with at most M rows and n_outs outs in all jobs together, of
 * weights with at most K inputs (any scheme). */
size_t mm_scratch_bytes(int64_t M, int64_t K, int n_outs, int threads);
/* Independent products, all spread over the pool at once (the experts of a layer). `scratch` is a
 * fixed arena with mm_scratch_bytes free, left as it was found. No y may overlap an x. */
void mm_run_jobs(const mm_job *jobs, int n_jobs, mm_acts acts, lq_arena *scratch, pool *p);
/* One job: all outs share x [M, ldx]. */
void mm_run(const mm_out *outs, int n_outs, const float *x, int64_t ldx, int64_t M, mm_acts acts,
            lq_arena *scratch, pool *p);

LQ_C_END

#endif
