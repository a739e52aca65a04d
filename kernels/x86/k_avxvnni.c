/* kernels/x86/k_avxvnni.c - int8 products by VPDPBUSD in 256-bit registers, of processors that have it
 * without AVX-512 (Intel's from Alder Lake on); the rest is AVX2's. Sixteen
 * registers hold the sums of 6 rows of one tile, its codes and the inputs. */
#define MM_TILES 1
#define MM_TILES_1 2
#define MM_ROWS 6
#define MM_BODIES(X, body, SRC) \
    X(body, SRC, 2, MM_TILES)   \
    X(body, SRC, 3, MM_TILES) X(body, SRC, 4, MM_TILES) X(body, SRC, 6, MM_TILES)
#define ROWS_BODY(n) ((n) > 4 ? 6 : (n) > 3 ? 4 : (n) > 2 ? 3 : 2)
#define I8_ROWS 6
#define I8_TILES 1
#define I8_TILES_1 2
#define I8_BODIES(X, SRC) \
    X(SRC, 2, I8_TILES)   \
    X(SRC, 3, I8_TILES) X(SRC, 4, I8_TILES) X(SRC, 5, I8_TILES) X(SRC, 6, I8_TILES)
#define BLOCKS_BODIES(X, name, has) X(name, has, 4) X(name, has, 5) X(name, has, 6)
#define WIDE_TILES 1
#define WIDE_ROWS 6
#include "kernels/simd/mm_tmpl.h"

#include "kernels/simd/mm_i8_dot.h"

#include "kernels/simd/mm_blocks.h"
#include "kernels/simd/peak_tmpl.h"

#include "kernels/core/cpu.h"

const k_ops k_avxvnni = { .name = "avxvnni",
                          .usable = cpu_has_avxvnni,
                          .mm_i8 = dot_mm_i8,
                          .mm_blocks = tmpl_mm_blocks,
                          .peak_i8 = tmpl_peak_i8 };
