/* kernels/k_avx512.c - the templates in 512-bit registers. */
#if defined(__x86_64__)
#include "kernels/mm_shape512.h"

#include "kernels/mm_tmpl.h"

#include "kernels/cpu.h"

const k_ops k_avx512 = {
    .name = "avx512",
    .usable = cpu_has_avx512,
    .mm_f32 = tmpl_mm_f32,
    .mm_i8 = tmpl_mm_i8,
    .mm_quant = tmpl_mm_quant,
};
#endif
