/* kernels/x86/k_vnni.c - int8 products by VPDPBUSD; the rest is AVX-512's. */
#include "kernels/x86/mm_shape512.h"

#include "kernels/simd/mm_tmpl.h"

#include "kernels/simd/mm_i8_dot.h"

#include "kernels/simd/mm_blocks.h"
#include "kernels/simd/peak_tmpl.h"

#include "kernels/core/cpu.h"

const k_ops k_vnni = { .name = "vnni",
                       .usable = cpu_has_vnni,
                       .mm_i8 = dot_mm_i8,
                       .mm_blocks = tmpl_mm_blocks,
                       .peak_i8 = tmpl_peak_i8 };
