/* kernels/x86/k_avx2.c - the templates in 256-bit registers, two for 16 lanes. Sixteen registers hold
 * 4 rows of one tile and the weights between. */
#define MM_TILES 1
#define MM_TILES_1 2
#define MM_ROWS 4
#define MM_BODIES(X, body, SRC) \
    X(body, SRC, 2, MM_TILES) X(body, SRC, 3, MM_TILES) X(body, SRC, 4, MM_TILES)
#define ROWS_BODY(n) ((n) >= 4 ? 4 : (n) >= 3 ? 3 : 2)
#define BLOCKS_BODIES(X, name, has) X(name, has, 3) X(name, has, 4)
#define WIDE_TILES 1
#define WIDE_ROWS 6 /* twelve registers of sums, two of weights, one of inputs */
#include "kernels/simd/mm_tmpl.h"

#include "kernels/x86/mm_i8_avx2.h"

#include "kernels/simd/mm_blocks.h"

#define SCORE_ROWS 2 /* rows of the scores' sums, of two vectors each */
#define PV_ROWS 2    /* rows and vectors of the values' sums */
#define PV_VECS 2
#include "kernels/simd/k_tmpl.h"

#include "kernels/core/cpu.h"

const k_ops k_avx2 = {
    .name = "avx2",
    .usable = cpu_has_avx2,
    .mm_i8 = avx2_mm_i8,
    .mm_blocks = tmpl_mm_blocks,
    K_TMPL_OPS,
};
