/* formats/tensor/qtensor.h - a linear weight W[N,K] in any scheme: its planes, their bytes.
 *
 * A qt_tensor is a view: it says the scheme and points at planes that somebody else owns (a mapped
 * file, an arena). y = x W^T, N outputs, K inputs.
 *
 * Portable layout (QT_PORTABLE), the one on disk and the one that quantizers write:
 *
 *   QT_DENSE       CODES    [N,K] of `dtype`
 *
 *   QT_UINT        CODES    N rows of bitpack(K codes, bits), ceil(K*bits/8) bytes each
 *                  SCALES   [N,ng] of scale_dtype, ng = K/group
 *                  ZEROS    QT_ZERO_INT: N rows of bitpack(ng zeros, zbits);
 *                           QT_ZERO_F16: f16 [N,ng]; QT_ZERO_BIAS: [N,ng] of scale_dtype
 *                  GIDX     i32 [K], the group of each input, if act_order (`group` inputs in each)
 *
 *   QT_I8          CODES    int8 [N,K]
 *                  SCALES   f32 [N]
 *                  ZEROS    int8 [N] if QT_ZERO_INT
 *
 *   QT_I8_OUTLIER  as QT_I8 without zeros, codes 0 in the outlier columns
 *                  OUT_IDX  i32 [n_out], rising
 *                  OUT_VALS bf16 [N,n_out]
 *
 *   QT_LUT4        CODES    bitsandbytes' bytes: element 2j is the high nibble of byte j, 2j+1 the
 *                           low one, matrix flat, ceil(N*K/2) bytes
 *                  SCALES   f32 [nb], nb = ceil(N*K/group); u8 [nb] when double
 *                  MAP      f32 [16]
 *                  SCALES2  f32 [ceil(nb/256)] when double
 *                  MAP2     f32 [256] when double
 *
 *   QT_E4M3        CODES    e4m3 [N,K]
 *                  SCALES   f32 [ceil(N/rows), ceil(K/group)]; rows or group 0: all of them
 *
 *   QT_E2M1        CODES    N rows of bitpack(K codes, 4), K/2 bytes each
 *                  SCALES   [N, K/group] of scale_dtype: f8_e8m0 and group 32 (mxfp4), or f8_e4m3
 *                           and group 16 (nvfp4)
 *                  SCALES2  nvfp4: f32 [ceil(N/rows)]; rows 0: all of them
 *
 *   QT_BLOCKS      CODES    N rows of GGUF's blocks as published, of one type (blocks.h)
 *
 *   bitpack: codes LSB first in one bit stream, each row padded with zero bits to a whole byte.
 *
 *   QT_UINT  w[n][k] = scale[n][g] * (code[n][k] - zero[n][g])
 *            g = act_order ? gidx[k] : k / group; without a ZEROS plane zero = 2^(bits-1);
 *            QT_ZERO_BIAS: scale * code + bias
 *
 *   QT_I8    w = scale' * (code - zero[n])
 *            scale' = div127 ? scale[n] / 127 (LLM.int8: scale is the absmax) : scale[n], in f32
 *
 *   QT_LUT4  w[i] = map[code[i]] * a[i / group]; a = scales, or when double
 *            map2[scales[j]] * scales2[j/256] + offset; every step in f32
 *
 *   QT_E4M3  w = code * scale
 *
 *   QT_BLOCKS  blocks.h
 *
 *   QT_E2M1  w = code * s; mxfp4: s = scale; nvfp4: s = recip ? scale / scale2 : scale * scale2,
 *            rounded to f32
 *
 * A checkpoint may declare that the inputs of a linear are rounded too (`act`): that is part of the
 * model, whatever arithmetic runs it. kernels/mm.h applies it.
 *
 * 16-row interleaved layout (QT_TILE16): formats/tensor/tiles.h. On disk: docs/formats/llmq.md.
 * 8- and 4-bit floats: OCP Microscaling Formats (MX) v1.0. */
#ifndef LLMQ_FORMATS_TENSOR_QTENSOR_H
#define LLMQ_FORMATS_TENSOR_QTENSOR_H

#include "base/base.h"

LQ_C_BEGIN

typedef enum {
    QT_DENSE,
    QT_UINT,
    QT_I8,
    QT_I8_OUTLIER,
    QT_LUT4,
    QT_E4M3,
    QT_E2M1,
    QT_BLOCKS,
    QT_N_KINDS
} qt_kind;
typedef enum { QT_PORTABLE, QT_TILE16, QT_N_LAYOUTS } qt_layout;
typedef enum { QT_ZERO_NONE, QT_ZERO_INT, QT_ZERO_F16, QT_ZERO_BIAS, QT_N_ZEROS } qt_zero;
/* Inputs rounded to int8 or e4m3 as a checkpoint declares: in groups of act_group inputs of one
 * token (0: all of them), scale = absmax/127.5 or absmax/448, or act_scale where that is not 0. */
typedef enum { QT_ACT_NONE, QT_ACT_I8, QT_ACT_F8, QT_N_ACTS } qt_act;
typedef enum {
    QT_CODES,
    QT_SCALES,
    QT_ZEROS,
    QT_GIDX,
    QT_OUT_IDX,
    QT_OUT_VALS,
    QT_MAP,
    QT_SCALES2,
    QT_MAP2,
    QT_N_PLANES
} qt_plane;

/* How a tensor is stored, apart from its shape. Zero fields mean "does not apply". */
typedef struct {
    qt_kind kind;
    lq_dtype dtype; /* QT_DENSE: element type */
    int bits;       /* QT_UINT: 2, 3, 4, 8 */
    int64_t group;  /* inputs per scale (QT_UINT with one group: K); QT_LUT4: elements per absmax */
    int64_t rows;   /* QT_E4M3, nvfp4: rows that share a scale */
    qt_zero zero;   /* QT_UINT, QT_I8: zero points */
    int zbits; /* QT_UINT with QT_ZERO_INT: bits per stored zero: `bits`, or 8 where one exceeds
                  them */
    lq_dtype scale_dtype; /* QT_UINT: f16, bf16 or f32; QT_E2M1: f8_e8m0 or f8_e4m3 */
    bool act_order;       /* QT_UINT: has GIDX (act-order, g_idx); "irregular" in files */
    bool div127;          /* QT_I8*: see above */
    bool fp4;             /* QT_LUT4: the name to publish: fp4 instead of nf4 */
    bool dbl;             /* QT_LUT4: double-quantized absmax */
    bool recip;           /* nvfp4: see above */
    int blocks;           /* QT_BLOCKS: blk_id */
    float offset;         /* QT_LUT4 with dbl: added to every absmax */
    int64_t n_out;        /* QT_I8_OUTLIER: outlier columns */
    qt_act act;
    int64_t act_group;
    float act_scale;
} qt_scheme;

typedef struct {
    const void *data;
    size_t bytes;
} qt_span;

typedef struct {
    qt_scheme scheme;
    qt_layout layout;
    int64_t N, K;
    qt_span plane[QT_N_PLANES];
} qt_tensor;

/* "bf16", "u4-g128", "u4-g128-asym", "u4-g64-fzero" (QT_ZERO_F16), "u4-g32-bias", "i8-row",
 * "i8-row-asym", "i8-outlier", "nf4", "nf4-g128", "nf4-double", "fp4", "fp8-e4m3" (a scale per
 * row), "fp8-e4m3-tensor", "fp8-e4m3-b128x128" (rows x inputs), "mxfp4", "nvfp4", "q4_k" (GGUF's name of the blocks); then "-a8" or
 * "-af8" where inputs are rounded to int8 or e4m3, with "-g128" for groups of them, "-static" for a
 * fixed scale. */
void qt_scheme_text(char out[40], const qt_scheme *s);
/* The inverse, for options such as --override and --lm-head; fills defaults (f16 scales, block 64,
 * div127 for symmetric i8). "u4-gK" gives group 0: the caller, who knows K, puts it there. A fixed
 * scale of the inputs has no name. */
lq_status qt_scheme_parse(qt_scheme *out, const char *text, lq_err *err);
const char *qt_plane_text(qt_plane p);   /* "codes", ... */
const char *qt_layout_text(qt_layout l); /* "portable", "tile16" (16-row interleaved) */

/* Legal for this shape? Group divides K and so on; err says what does not fit. */
lq_status qt_check(const qt_scheme *s, int64_t N, int64_t K, lq_err *err);
/* Bytes of one plane in the given layout; 0 when the scheme has no such plane. Shape was checked.
 */
size_t qt_plane_bytes(const qt_scheme *s, qt_layout l, int64_t N, int64_t K, qt_plane p);
size_t qt_bytes(const qt_scheme *s, int64_t N,
                int64_t K); /* all planes, portable: what bpw counts */
/* View: every plane has exactly its bytes; GIDX puts `group` inputs in each group (tiled: is a
 * permutation), OUT_IDX rises within range. */
lq_status qt_check_view(const qt_tensor *t, lq_err *err);
/* Cut all planes from an arena (zeroed); returns writable pointers in w[QT_N_PLANES]. */
lq_status qt_alloc(qt_tensor *t, void *w[QT_N_PLANES], const qt_scheme *s, int64_t N, int64_t K,
                   lq_arena *a, lq_err *err);

/* The reference reading of every scheme: rows n0..n1 of a portable tensor as f32 [n1-n0, K]. */
void qt_dequant(float *dst, const qt_tensor *t, int64_t n0, int64_t n1);
/* QT_LUT4, portable: absmax of one block, double quantization undone. */
float qt_lut_absmax(const qt_tensor *t, int64_t block);
/* QT_E4M3, QT_E2M1, portable: what the code of (n, k) is multiplied with. */
float qt_scale(const qt_tensor *t, int64_t n, int64_t k);
/* Rows n0..n1 of a portable tensor as a tensor of their own, in place. False, and out unspecified,
 * where its blocks do not begin at n0 (QT_LUT4 blocks that run across rows, QT_E4M3 blocks of rows
 * that n0 or n1 cuts) or its layout is tiled. */
bool qt_rows(qt_tensor *out, const qt_tensor *t, int64_t n0, int64_t n1);
extern const float qt_e2m1[16]; /* 0 .5 1 1.5 2 3 4 6, then negative */

/* bitpack helpers: code i of a row, and a whole row. */
static inline uint32_t qt_get(const uint8_t *row, int64_t i, int bits)
{
    size_t bit = (size_t)i * (size_t)bits;
    uint32_t v = row[bit >> 3];
    if ((bit & 7) + (size_t)bits > 8) v |= (uint32_t)row[(bit >> 3) + 1] << 8;
    return (v >> (bit & 7)) & ((1u << bits) - 1u);
}
static inline size_t qt_row_bytes(int64_t K, int bits)
{
    return ((size_t)K * (size_t)bits + 7) / 8;
}
/* GIDX and OUT_IDX: entry i. */
static inline int32_t qt_get_i32(const void *p, int64_t i)
{
    int32_t v;
    memcpy(&v, (const uint8_t *)p + 4 * i, 4);
    return v;
}
void qt_pack_row(uint8_t *row, const uint8_t *codes, int64_t K, int bits);
/* Codes k .. k + n of a row. */
void qt_unpack(uint8_t *codes, const uint8_t *row, int64_t k, int64_t n, int bits);

LQ_C_END

#endif
