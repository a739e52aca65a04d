/* kernels/arm/k_neon_i8mm.c - int8 products by USMMLA, and by USDOT those of one row; the rest is
 * NEON's. */
#include "kernels/arm/mm_shape_neon.h"

#include "kernels/simd/mm_tmpl.h"

#include "kernels/simd/mm_i8_dot.h"

#include "kernels/simd/mm_blocks.h"
#include "kernels/simd/peak_tmpl.h"

#include "kernels/core/cpu.h"

const k_ops k_neon_i8mm = { .name = "neon-i8mm",
                            .usable = cpu_has_neon_i8mm,
                            .mm_i8 = dot_mm_i8,
                            .mm_blocks = tmpl_mm_blocks,
                            .peak_i8 = tmpl_peak_i8 };
