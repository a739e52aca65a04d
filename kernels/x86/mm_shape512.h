/* kernels/x86/mm_shape512.h - blocks for 32 registers of 512 bits: up to 8 rows of 2 tiles keep 16
 * sums. One row takes 4 tiles of floats, so that enough sums are in flight, and one tile of codes,
 * so that its codes are one stream. */
#ifndef LLMQ_KERNELS_X86_MM_SHAPE512_H
#define LLMQ_KERNELS_X86_MM_SHAPE512_H

#define MM_TILES 2
#define MM_TILES_1 4
#define MM_ROWS 8
#define MM_BODIES(X, body, SRC) \
    X(body, SRC, 2, MM_TILES)   \
    X(body, SRC, 3, MM_TILES)   \
    X(body, SRC, 4, MM_TILES) X(body, SRC, 6, MM_TILES) X(body, SRC, 8, MM_TILES)
#define I8_ROWS 8
#define I8_TILES 2
#define I8_TILES_1 1
#define I8_BODIES(X, SRC) \
    X(SRC, 2, I8_TILES)   \
    X(SRC, 3, I8_TILES)   \
    X(SRC, 4, I8_TILES)   \
    X(SRC, 5, I8_TILES) X(SRC, 6, I8_TILES) X(SRC, 7, I8_TILES) X(SRC, 8, I8_TILES)
#define BLOCKS_BODIES(X, name, has) X(name, has, 5) X(name, has, 6) X(name, has, 7) X(name, has, 8)
#define WIDE_TILES 2
#define WIDE_ROWS 8
#define ROWS_BODY(n) ((n) > 6 ? 8 : (n) > 4 ? 6 : (n) > 3 ? 4 : (n) > 2 ? 3 : 2)

#endif
