/* kernels/arm/k_neon.c - the templates in 128-bit registers, four for 16 lanes; any ARMv8-A processor.
 */
#include "kernels/arm/mm_shape_neon.h"

#include "kernels/simd/mm_tmpl.h"

#include "kernels/simd/mm_i8_dot.h"

#include "kernels/simd/mm_blocks.h"

#define SCORE_ROWS 2 /* rows of the scores' sums, of two vectors each */
#define PV_ROWS 2    /* rows and vectors of the values' sums */
#define PV_VECS 2
#include "kernels/simd/k_tmpl.h"

#include "kernels/core/cpu.h"

const k_ops k_neon = {
    .name = "neon",
    .usable = cpu_has_neon,
    .mm_i8 = dot_mm_i8,
    .mm_blocks = tmpl_mm_blocks,
    K_TMPL_OPS,
};
