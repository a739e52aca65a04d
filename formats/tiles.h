/* formats/tiles.h - QT_TILE16, the one layout that every CPU kernel reads.
 *
 * Sixteen outputs are interleaved, so that one 64-byte vector holds, for each of 16 rows (one per
 * 32-bit lane), four inputs; every lane is one output and K is summed in order, whatever the number
 * of rows.
 *
 * N is padded to whole tiles of 16 rows (padding rows: code 0, scale 0). K is cut into ng groups of
 * `group` inputs, each padded to Gp = round_up(group, 32); Kp = ng * Gp. Activations are laid out
 * the same way with zeros in the padding (kernels/mm.h), so kernels see whole steps of 32 only.
 * With an irregular g_idx the inputs are permuted so that groups become contiguous (GIDX plane: i32
 * [K], the input that stands at each place).
 *
 *   CODES   [tile][group][Gp/32 steps][64*bits bytes]; inside a step of 32 inputs, vectors of 64
 * bytes = [16 rows][4 bytes]: 8 bit  vector v: byte j of row r = input 4v+j. Signed codes are
 * stored + 128. 4 bit  vector v (0..3): low nibble of byte j = input 8v+j, high nibble = input
 * 8v+4+j 2 bit  vector v (0..1): bits 2s,2s+1 of byte j = input 16v+4s+j, s = 0..3 3 bit  the two
 * low bits as for 2 bit (two vectors), then one vector: bit s of byte j = the high bit of input
 * 4s+j, s = 0..7 dense  f32: [Kp][16 rows]; f16, bf16: [Kp/2][16 rows][2 inputs]  (one group: G =
 * K) SCALES  [tile][ng][16] of scale_dtype (LUT4: f32, double quantization undone; I8: f32, /127
 * done) ZEROS   [tile][ng][16] u8 (QT_ZERO_INT; for I8 the signed zero + 128) or f16 (QT_ZERO_F16)
 *   OUT_VALS dense bf16 tile of K = n_out; OUT_IDX, MAP: as in the portable layout
 *
 * QT_LUT4 whose blocks straddle rows (K % group != 0) has no tile form; it becomes dense f32
 * (tiles_scheme says so). */
#ifndef LLMQ_FORMATS_TILES_H
#define LLMQ_FORMATS_TILES_H

#include "formats/qt.h"

enum { TILE_N = 16, TILE_K = 32 };

typedef struct {
    int64_t tiles;     /* ceil(N/16) */
    int64_t ng;        /* groups along K */
    int64_t G, Gp;     /* inputs per group, and padded to 32 */
    int64_t Kp;        /* ng * Gp */
    size_t step_bytes; /* code bytes of one tile and one step of 32 inputs */
    size_t tile_bytes; /* code bytes of one tile */
} tile_shape;

tile_shape tiles_shape(const qt_scheme *s, int64_t N, int64_t K);
/* The scheme that `s` has once tiled (the same, save the exception above and LUT4's double
 * quantization). */
qt_scheme tiles_scheme(const qt_scheme *s, int64_t N, int64_t K);
/* Pack tiles t0..t1 of a portable tensor into the planes w[] of a tile16 tensor of tiles_scheme().
 * Any split of tiles over threads gives the same bytes. */
void tiles_pack(void *const w[QT_N_PLANES], const qt_tensor *portable, int64_t t0, int64_t t1);
/* The planes that do not belong to a tile: GIDX, OUT_IDX, MAP. */
void tiles_pack_shared(void *const w[QT_N_PLANES], const qt_tensor *portable);
/* The inverse, so that a tiled file converts back bit for bit where the scheme is kept. */
lq_status tiles_unpack(void *const w[QT_N_PLANES], const qt_tensor *tiled, lq_err *err);

#endif
