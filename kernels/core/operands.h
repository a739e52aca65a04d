/* kernels/core/operands.h - what the operations read and write, for the kernels and for those who call them
 * through mm.h, attn.h and ops.h. */
#ifndef LLMQ_KERNELS_CORE_OPERANDS_H
#define LLMQ_KERNELS_CORE_OPERANDS_H

#include "formats/tensor/qtensor.h"
#include "formats/tensor/tiles.h"

LQ_C_BEGIN

typedef enum {
    ACT_SILU,
    ACT_GELU,
    ACT_GELU_TANH,
    ACT_RELU,
    ACT_RELU2, /* max(x, 0)^2 */
    ACT_SWIGLU_CLAMPED,
    ACT_SILU_LIMITED,
    ACT_SILU_CAPPED,
    ACT_N
} k_act_fn;

/* ---- products (mm.h) ---- */

typedef enum { MM_F32, MM_BF16, MM_I8, MM_N_ACTS } mm_acts;
enum { BLK_SUM = 16 };       /* inputs of a sum for QT_BLOCKS: the least of its groups */
#define MM_I8_TINY 0x1p-100f /* so that 127/absmax is finite */

/* A table of 16 values v as MM_I8 multiplies them: v[c] becomes (t[c] - zero) * unit, unit =
 * max|v|/n with the n of 8..127 (the smallest of equals) whose sum of squared errors is least;
 * E2M1's values are exact with n = 12. That sum is at most what n = 127 leaves, so the root mean
 * square of the 16 errors is at most max|v|/254. nf4: n = 112, rms 0.0017, none above 0.0039 of the
 * block's absmax. A table of zeros has unit 0, one with NaN or Inf unit NaN. */
typedef struct {
    uint8_t t[16];
    int zero; /* 15 where n <= 15, so that t < 32; else 128 */
    float unit;
} mm_table;

typedef struct {
    qt_tensor t; /* layout QT_TILE16 */
    int64_t N, K;
    bool expanded;  /* had to become dense (see formats/tensor/tiles.h) */
    mm_table table; /* QT_LUT4, QT_E2M1 */
} mm_weight;

typedef struct {
    const mm_weight *w;
    float *y;          /* [M, ldy] */
    int64_t ldy;       /* floats from row to row */
    const float *bias; /* [N] or NULL */
    bool add;          /* y += instead of y = : the residual */
    /* NULL; or the gate's partner, with mm_gates: y = k_act_mul(w x + bias, up x + up_bias). */
    const mm_weight *up;
    const float *up_bias;
    k_act_fn act;
    float limit;
} mm_out;

/* ---- attention (attn.h) ---- */

enum { ATTN_TILE = 32, ATTN_SPLIT = 512, ATTN_LANES = 16 /* keys whose words are adjacent */ };

typedef enum { KV_F32, KV_F16, KV_BF16, KV_I8, KV_I4, KV_F8, KV_N_DTYPES } kv_dtype;
/* Of a whole cache: the type of K and V, or that of each (kv_apart). */
typedef unsigned kv_types;
static inline kv_types kv_apart(kv_dtype k, kv_dtype v)
{
    return (unsigned)k | ((unsigned)k ^ (unsigned)v) << 4;
}
static inline bool kv_alike(kv_types t) { return t >> 4 == 0; }
static inline kv_dtype kv_of(kv_types t, bool key)
{
    return (kv_dtype)(key ? t & 15 : (t & 15) ^ t >> 4);
}
/* Rows of this type hold heads times a Hadamard matrix (hadamard.h). */
static inline bool kv_turned(kv_dtype d) { return d == KV_I8 || d == KV_I4; }
/* Bits of an element; bytes before those of a row. */
static inline int attn_kv_bits(kv_dtype d)
{
    return d == KV_F32 ? 32 : d == KV_F16 || d == KV_BF16 ? 16 : d == KV_I4 ? 4 : 8;
}
static inline int attn_kv_head(kv_dtype d) { return d >= KV_I8 ? 4 : 0; }
static inline size_t attn_kv_row_bytes(kv_dtype d, int64_t D)
{
    return (size_t)attn_kv_head(d) + ((size_t)attn_kv_bits(d) * (size_t)D + 7) / 8;
}

/* A row of int4 begins with a word: the row's base, a bf16 number, in its upper half, and in its lower half
 * 4 bits for each of up to four blocks of attn_i4_block(D) numbers, the first block's lowest. A block's
 * scale is base / 16 times 9..16, negative with ATTN_I4_MINUS. */
enum { ATTN_I4_MINUS = 8, ATTN_I4_LEAST = 9, ATTN_I4_MOST = 16, ATTN_I4_FINE = 64 };
LQ_INLINE int64_t attn_i4_block(int64_t D) { return (D + 63) / 64 * 16; }
/* Base / 16 that many times; exact. */
LQ_INLINE int attn_i4_times(unsigned four)
{
    const int n = ATTN_I4_LEAST + (int)(four & 7);
    return four & ATTN_I4_MINUS ? -n : n;
}
LQ_INLINE float attn_i4_scale(float base, unsigned four)
{
    return (float)attn_i4_times(four) * (base * 0.0625f);
}
/* The fewest sixteenths of the base of which 8 codes hold m. */
LQ_INLINE int attn_i4_steps(float m, float base)
{
    const float n = ceilf(2 * m / base);
    return n > ATTN_I4_MOST ? ATTN_I4_MOST : n < ATTN_I4_LEAST ? ATTN_I4_LEAST : (int)n;
}

/* ---- along a sequence (scan.h) ---- */

enum { SCAN_LANES = 16, CONV_MAX_TAPS = 8 };

typedef struct {
    float *x; /* of the first channel */
    int64_t ldx, T, n;
    const float *w; /* [taps, ldw], of the first channel */
    int64_t ldw;
    const float *bias; /* or NULL */
    float *history;    /* [taps - 1, ldh], of the first channel */
    int64_t ldh;
    int taps; /* 1..CONV_MAX_TAPS */
    bool silu;
} k_conv_args;

typedef struct {
    float *S; /* [K, SCAN_LANES] */
    int64_t T, K;
    int lanes;
    bool correct;
    const float *q, *k, *v; /* rows of position 0: [K], [K], [lanes] */
    int64_t ldq, ldk, ldv;
    const float *beta, *decay; /* of position 0 */
    int64_t ldb, ldd;
    int64_t decay_step; /* 1: a decay for each of the K rows; 0: one for all */
    float *out;         /* [T, ldo] */
    int64_t ldo;
} k_scan_args;

typedef struct {
    float *S; /* [K, SCAN_LANES] */
    int64_t T, K;
    int lanes;
    const float *rate; /* [K, ldr], of the first lane */
    int64_t ldr;
    const float *q, *k, *v, *step; /* rows of position 0: [K], [K], [lanes], [lanes] */
    int64_t ldq, ldk, ldv, lds;
    float *out; /* [T, ldo] */
    int64_t ldo;
} k_select_args;

LQ_C_END

#endif
