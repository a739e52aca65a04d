/* kernels/k_avx512.c - the templates in 512-bit registers. */
#include "kernels/mm_shape512.h"

#include "kernels/mm_tmpl.h"

#include "kernels/mm_i8_dot.h"

#define SCORE_ROWS 8 /* rows of the scores' sums, of two vectors each */
#define PV_ROWS 4    /* rows and vectors of the values' sums */
#define PV_VECS 4
#include "kernels/k_tmpl.h"

#include "kernels/cpu.h"

const k_ops k_avx512 = {
    .name = "avx512",
    .usable = cpu_has_avx512,
    .mm_i8 = dot_mm_i8,
    K_TMPL_OPS,
};
