/* formats/tensor/tiles.h - QT_TILE16, the 16-row interleaved layout that every kernel reads.
 *
 * Sixteen outputs are interleaved (llama.cpp: repacked), so that one 64-byte vector holds, for each
 * of 16 rows (one per 32-bit lane), four inputs; every lane is one output and K is summed in order,
 * whatever the number of rows.
 *
 * N is padded to whole tiles of 16 rows (padding rows: code 0, scale 0). K is cut into ng groups of
 * `group` inputs, each padded to Gp = round_up(group, 32); Kp = ng * Gp. Activations are laid out
 * the same way with zeros in the padding (kernels/mm.h), so kernels see whole steps of 32 only.
 * With act-order (g_idx) the inputs are permuted so that groups become contiguous (GIDX
 * plane: i32 [K], the input at each place).
 *
 *   CODES    [tile][group][Gp/32 steps][64*bits bytes]; inside a step of 32 inputs, vectors of 64
 *            bytes = [16 rows][4 bytes]:
 *              8 bit  vector v = 0..7: byte j of a row = input 4v+j; signed codes are stored + 128
 *              4 bit  v = 0..3: low nibble of byte j = input 8v+j, high nibble = input 8v+4+j
 *              2 bit  v = 0, 1: bits 2s, 2s+1 of byte j = input 16v+4s+j, s = 0..3
 *              3 bit  the two low bits as for 2 bit (two vectors), then one vector:
 *                     bit s of byte j = the high bit of input 4s+j, s = 0..7
 *              5 bit  the four low bits as for 4 bit (four vectors), then one vector as the last of 3 bit
 *              6 bit  the same, then the two high bits as for 2 bit (two vectors)
 *            dense: one group (G = K); f32 [Kp][16 rows]; f16, bf16 [Kp/2][16 rows][2 inputs]
 *   SCALES   [tile][ng][subs][16] of scale_dtype (I8: f32 as stored, ng = 1; LUT4, E4M3: f32)
 *   ZEROS    [tile][ng][16] u8 (QT_ZERO_INT; for I8 the signed zero + 128), f16 (QT_ZERO_F16) or
 *            scale_dtype (QT_ZERO_BIAS)
 *   SCALES2  [tile][16] f32 (nvfp4)
 *   OUT_VALS dense bf16 tiles of K = n_out;  OUT_IDX, MAP as in the portable layout
 *
 * QT_E4M3: a row or block of rows that shares a scale has it in each of its rows; the last group
 * may be short. QT_E2M1: a group of the tile is one step of 32 inputs, with one scale (mxfp4) or
 * two of 16 inputs each (nvfp4, `subs`).
 *
 * QT_LUT4 with double quantization is tiled without it (f32 absmax: the products of the portable
 * reading). QT_LUT4 whose blocks straddle rows (K % group != 0) has no tile form; it becomes dense
 * f32. tiles_scheme says both.
 *
 * QT_BLOCKS, G = Kp = K (in memory alone), is taken apart as blocks.h says, codes of the type's bits:
 *   SCALES   [tile][K/group][16] i8: sc, where fine
 *   ZEROS    [tile][K/group][16] u8: m, where fine and with biases
 *   SCALES2  [tile][K/elements][1 or 2][16] f16: d, and with biases dmin
 * tiles_keep is false for all these, and a file keeps such weights portable. */
#ifndef LLMQ_FORMATS_TENSOR_TILES_H
#define LLMQ_FORMATS_TENSOR_TILES_H

#include "formats/tensor/blocks.h"

LQ_C_BEGIN

enum { TILE_N = 16, TILE_K = 32 };

typedef struct {
    int64_t tiles;     /* ceil(N/16) */
    int64_t ng;        /* groups along K */
    int64_t subs;      /* scales per group: 1; nvfp4: 2 */
    int64_t G, Gp;     /* inputs per group, and padded to 32 */
    int64_t Kp;        /* ng * Gp */
    size_t step_bytes; /* code bytes of one tile and one step of 32 inputs */
    size_t tile_bytes; /* code bytes of one tile */
} tile_shape;

tile_shape tiles_shape(const qt_scheme *s, int64_t N, int64_t K);
/* The scheme that `s` has once tiled (the same, save the exceptions above). */
qt_scheme tiles_scheme(const qt_scheme *s, int64_t N, int64_t K);
/* Does the tiled form hold all that `s` has, so that tiles_unpack gives the same bytes back? */
bool tiles_keep(const qt_scheme *s, int64_t N, int64_t K);
/* Pack tiles t0..t1 of a portable tensor into the planes w[] of an interleaved tensor of tiles_scheme(),
 * after tiles_pack_shared (a permuted tensor needs its GIDX). Any split of tiles over threads gives
 * the same bytes. */
void tiles_pack(void *const w[QT_N_PLANES], const qt_tensor *portable, int64_t t0, int64_t t1);
/* The planes that do not belong to a tile: GIDX, OUT_IDX, MAP. */
void tiles_pack_shared(void *const w[QT_N_PLANES], const qt_tensor *portable);
/* The inverse, so that a tiled file converts back bit for bit where the scheme is kept: w[] are the
 * planes of a portable tensor of tiled->scheme, which qt_check_view has accepted. */
lq_status tiles_unpack(void *const w[QT_N_PLANES], const qt_tensor *tiled, lq_err *err);
/* The same in parts, for threads: tiles t0..t1 with `scratch` of tiles_scratch bytes, then once the
 * planes that belong to no tile. Any split gives the same bytes. */
size_t tiles_scratch(const qt_tensor *tiled);
void tiles_unpack_part(void *const w[QT_N_PLANES], const qt_tensor *tiled, int64_t t0, int64_t t1,
                       uint8_t *scratch);
void tiles_unpack_shared(void *const w[QT_N_PLANES], const qt_tensor *tiled);

/* Rows n0..n1 of a tiled tensor as one of their own, in place (qt_rows' like). False, and out
 * unspecified, where they are not whole tiles or the layout is another. */
bool tiles_rows(qt_tensor *out, const qt_tensor *t, int64_t n0, int64_t n1);

/* Parts of a tiled tensor as tensors of their own: rows of n ranges one after the other, of each
 * the inputs k0..k1 (a split of a weight over devices). tiles_part says scheme, shape and the bytes
 * of each plane, none of which has data; tiles_cut then fills w[]. Inputs are cut where a group
 * begins, or, where a row has one scale, at a multiple of what 64 bytes hold of a row (tiles_unit);
 * no weight changes; QT_BLOCKS have all their inputs. LQ_ESHAPE: a group is cut; LQ_EUNSUPPORTED: inputs that are permuted, or
 * rounded by the largest of all, are cut at all. */
typedef struct {
    int64_t n0, n1;
} tile_rows;
lq_status tiles_part(qt_tensor *part, const qt_tensor *t, const tile_rows *rows, int n, int64_t k0,
                     int64_t k1, lq_err *err);
void tiles_cut(void *const w[QT_N_PLANES], const qt_tensor *part, const qt_tensor *t,
               const tile_rows *rows, int n, int64_t k0);
int64_t tiles_unit(const qt_scheme *s);

/* One code of a tiled tensor that has codes (all but QT_DENSE): row r of a tile, place p of
 * Kp; `codes` is the tile's first byte, bits 2, 3, 4 or 8. For the reference and for tests. */
unsigned tiles_code(const uint8_t *codes, int bits, int r, int64_t p);
int tiles_bits(const qt_scheme *s);           /* bits of a stored code; dense: of an element */
size_t tiles_scale_bytes(const qt_scheme *s); /* of one scale; dense: 0 */
size_t tiles_zero_bytes(const qt_scheme *s);  /* of one zero point; none: 0 */
/* Row r, place p of a dense tile [Kp] of dtype d, as f32. */
/* QT_BLOCKS: scale and bias of row r of a tile and the group of input k. */
typedef struct {
    float scale, bias;
} blk_group;
blk_group tiles_group(const qt_tensor *t, const blk_type *type, int64_t tile, int64_t k, int r);
/* Tile `tile` of QT_BLOCKS as a dense one of f32: [K][16]. */
void tiles_blocks(float *dst, const qt_tensor *t, int64_t tile);
float tiles_dense(const uint8_t *tile, lq_dtype d, int r, int64_t p);

LQ_C_END

#endif
