/* kernels/arm/mm_shape_neon.h - blocks for 32 registers of 128 bits: 4 rows of one tile keep 16 sums, a
 * vector of weights takes four more. */
#ifndef LLMQ_KERNELS_ARM_MM_SHAPE_NEON_H
#define LLMQ_KERNELS_ARM_MM_SHAPE_NEON_H

#define MM_TILES 1
#define MM_TILES_1 2
#define MM_ROWS 4
#define MM_BODIES(X, body, SRC) \
    X(body, SRC, 2, MM_TILES) X(body, SRC, 3, MM_TILES) X(body, SRC, 4, MM_TILES)
#define ROWS_BODY(n) ((n) >= 4 ? 4 : (n) >= 3 ? 3 : 2)
#define I8_ROWS 4
#define I8_TILES 1
#define I8_TILES_1 2
#define I8_BODIES(X, SRC) X(SRC, 2, I8_TILES) X(SRC, 3, I8_TILES) X(SRC, 4, I8_TILES)
#define BLOCKS_BODIES(X, name, has) X(name, has, 3) X(name, has, 4)
#define WIDE_TILES 1
#define WIDE_ROWS 6 /* 24 registers of sums, four of weights, one of inputs */

#endif
