/* kernels/arm/k_neon_dot.c - int8 products by SDOT; the rest is NEON's. */
#include "kernels/arm/mm_shape_neon.h"

#include "kernels/simd/mm_tmpl.h"

#include "kernels/simd/mm_i8_dot.h"

#include "kernels/simd/mm_blocks.h"
#include "kernels/simd/peak_tmpl.h"

#include "kernels/core/cpu.h"

const k_ops k_neon_dot = { .name = "neon-dot",
                           .usable = cpu_has_neon_dot,
                           .mm_i8 = dot_mm_i8,
                           .mm_blocks = tmpl_mm_blocks,
                           .peak_i8 = tmpl_peak_i8 };
