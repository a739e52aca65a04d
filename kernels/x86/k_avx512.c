/* kernels/x86/k_avx512.c - the templates in 512-bit registers. */
#include "kernels/x86/mm_shape512.h"

#include "kernels/simd/mm_tmpl.h"

#include "kernels/simd/mm_i8_dot.h"

#include "kernels/simd/mm_blocks.h"

#define SCORE_ROWS 8 /* rows of the scores' sums, of two vectors each */
#define PV_ROWS 4    /* rows and vectors of the values' sums */
#define PV_VECS 4
#include "kernels/simd/k_tmpl.h"

#include "kernels/core/cpu.h"

const k_ops k_avx512 = {
    .name = "avx512",
    .usable = cpu_has_avx512,
    .mm_i8 = dot_mm_i8,
    .mm_blocks = tmpl_mm_blocks,
    K_TMPL_OPS,
};
