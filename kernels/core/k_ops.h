/* kernels/core/k_ops.h - the table of kernels: one function pointer per operation, one table per instruction
 * family, chosen once at start (kernels/dispatch.c). The plain-C table is complete; a faster one
 * holds what it does better. A new kernel is one line of K_OPS and one definition in *_ref.c.
 *
 * Inside kernels/ only; callers use mm.h, attn.h, ops.h, which state the contracts. Families agree
 * to the bit except where said: in every one of them a lane is an output (or a key), so the order
 * of a sum is a property of the layout, and f32 steps are the same fused multiply-adds. */
#ifndef LLMQ_KERNELS_CORE_K_OPS_H
#define LLMQ_KERNELS_CORE_K_OPS_H

#include "kernels/core/operands.h"

/* Activations as a matmul reads them (mm.h): M rows of Kp places, the tile's groups and padding. */
typedef struct {
    const float *f;      /* MM_F32 (and MM_BF16 without the instruction: rounded): [M, ldf] */
    int64_t ldf;         /* floats from row to row */
    const uint16_t *b;   /* MM_BF16: [M, Kp] */
    const int8_t *q;     /* MM_I8: [M, Kp] */
    const float *s, *qs; /* MM_I8: [M, Kp/A] scale, and sum of the block's q (an exact integer); for
                            QT_BLOCKS [M, Kp/BLK_SUM] sums */
    int64_t A;           /* MM_I8: inputs per block */
    const float *out;    /* QT_I8_OUTLIER: the outlier inputs, [M, ldo] padded with zeros */
    int64_t ldo;
} mm_x;

/* y[m][n] for rows m0..m1 and tiles t0..t1. */
typedef struct {
    const qt_tensor *w; /* tiled */
    tile_shape s;
    mm_x x;
    mm_out o;
    int64_t m0, m1, t0, t1;
    int64_t y_m, y_t; /* the row and the tile that o.y begins with */
} mm_task;

/* Where the outputs of row m and a tile go. */
static inline float *mm_place(const mm_task *t, int64_t m, int64_t tile)
{
    return t->o.y + (m - t->y_m) * t->o.ldy + (tile - t->y_t) * TILE_N;
}

/* What attention reads next: four runs of eight rows, each of so many bytes. */
typedef struct {
    const uint8_t *at[4];
    size_t bytes;
} k_next;

/* X(result, name, arguments) */
#define K_OPS(X)                                                                                     \
    /* the three matmuls of mm.h; mm_bf16 is absent where the machine lacks the instruction */       \
    X(void, mm_f32, (const mm_task *t))                                                              \
    X(void, mm_bf16, (const mm_task *t))                                                             \
    X(void, mm_i8, (const mm_task *t))                                                               \
    X(void, mm_blocks, (const mm_task *t)) /* MM_I8 of QT_BLOCKS */                                  \
    /* n inputs, a multiple of A, to int8 blocks of A (mm.h) */                                      \
    X(void, mm_quant, (int8_t * q, float *s, float *qs, const float *x, int64_t n, int64_t A))       \
    X(void, to_bf16, (uint16_t * dst, const float *x, int64_t n))                                    \
    X(void, round_bf16, (float *dst, const float *x, int64_t n)) /* to bf16 and back */              \
    /* attention on one tile of ATTN_TILE keys, `n` of them */                                       \
    X(void, attn_k, (float *kt, const uint8_t *src, int n, int64_t D, kv_dtype d))                   \
    X(void, attn_v, (float *v, const uint8_t *src, int n, int64_t D, kv_dtype d))                    \
    /* s[r][j] = scale * sum_d q[r][d] kt[d][j], d in order */                                       \
    X(void, attn_scores,                                                                             \
      (float *s, const float *const *q, const float *kt, int64_t R, int64_t D, float scale))         \
    /* s[r][lo[r]..hi[r]) to exp(s - m'), m' = max(m, s); a = exp(m - m'); l = l*a + sum; m = m'.  \
     * Of rows that see no key m, l and a stay as they are */ \
    X(void, attn_softmax,                                                                            \
      (float *s, const int *lo, const int *hi, int64_t R, float *m, float *l, float *a))             \
    /* acc[r][d] = a[r]*acc[r][d], then + s[r][j] v[j][d] for j = lo[r]..hi[r]-1 in order */         \
    X(void, attn_pv,                                                                                 \
      (float *acc, const float *s, const float *v, const float *a, const int *lo, const int *hi,     \
       int64_t R, int64_t D))                                                                        \
    /* the same on bf16, absent as mm_bf16 is, D a multiple of 16. A word holds two numbers, and a \
     * tile is two halves of ATTN_LANES keys: of a key elements 2i, 2i+1 (kt [D/2][ATTN_LANES]);   \
     * of an element keys 2j, 2j+1 (v [ATTN_LANES/2][D]). attn_k16, attn_v16: n keys of one half,  \
     * or both with n > ATTN_LANES. q: [R][D]. s is written over. next: read into the cache next to \
     */ \
    X(void, attn_k16, (uint32_t * kt, const uint8_t *src, int n, int64_t D, kv_dtype d))             \
    X(void, attn_v16, (uint32_t * v, const uint8_t *src, int n, int64_t D, kv_dtype d))              \
    X(void, attn_scores16,                                                                           \
      (float *s, const uint16_t *q, const uint32_t *const kt[2], int64_t R, int64_t D,               \
       float scale, const k_next *next))                                                             \
    X(void, attn_pv16,                                                                               \
      (float *acc, float *s, const uint32_t *const v[2], const float *a, const int *lo,              \
       const int *hi, int64_t R, int64_t D, const k_next *next))                                     \
    /* ops.h, one row each */                                                                        \
    X(void, rmsnorm,                                                                                 \
      (float *dst, const float *x, const float *w, float off, int64_t K, float eps))                 \
    X(void, layernorm,                                                                               \
      (float *dst, const float *x, const float *w, const float *b, float off, int64_t K,             \
       float eps))                                                                                   \
    X(void, act, (float *dst, const float *x, int64_t n, k_act_fn f))                                \
    X(void, mul, (float *dst, const float *x, int64_t n)) /* dst *= x */                             \
    X(void, swiglu_clamped,                                                                          \
      (float *dst, const float *gate, const float *up, int64_t n, float limit))                      \
    X(void, softcap, (float *x, float cap, int64_t n))                                               \
    X(void, exp_minus, (float *dst, const float *x, float c, int64_t n))                             \
    X(void, softplus, (float *x, const float *add, int64_t n))                                       \
    X(float, logsumexp, (const float *x, int64_t n))                                                 \
    /* scan.h */                                                                                     \
    X(void, conv, (const k_conv_args *a))                                                            \
    X(void, scan, (const k_scan_args *a))                                                            \
    X(void, select, (const k_select_args *a))                                                        \
    /* limits for bench.h: operations done by `rounds` of each; xor of n bytes, n % 1024 == 0 */     \
    X(double, peak_f32, (int64_t rounds))                                                            \
    X(double, peak_bf16, (int64_t rounds))                                                           \
    X(double, peak_i8, (int64_t rounds))                                                             \
    X(uint32_t, read_all, (const uint8_t *p, size_t n))

typedef struct {
    const char *name;
    bool (*usable)(void); /* the processor has it and the system saves its registers */
    bool (*pays)(void);   /* NULL: wherever usable; else taken unasked only where true */
#define X(result, name, args) result(*name) args;
    K_OPS(X)
#undef X
} k_ops;

extern const k_ops k_ref;
#if defined(__x86_64__)
extern const k_ops k_avx2, k_avxvnni, k_avx512, k_vnni, k_amx, k_bf16;
#elif defined(__aarch64__)
extern const k_ops k_neon, k_neon_dot, k_neon_i8mm, k_neon_bf;
#endif

/* The end of every matmul kernel: 16 sums of one row and tile to y, with bias and residual, rows of
 * the last tile beyond N dropped. Order: (sum + bias) + y. */
static inline void mm_finish(const mm_task *t, int64_t m, int64_t tile, const float *sum)
{
    const mm_out *o = &t->o;
    int64_t n0 = tile * TILE_N, N = o->w->N - n0 < TILE_N ? o->w->N - n0 : TILE_N;
    float *y = mm_place(t, m, tile);
    for (int64_t i = 0; i < N; i++) {
        float v = sum[i];
        if (o->bias) v += o->bias[n0 + i];
        if (o->add) v += y[i];
        y[i] = v;
    }
}

/* Whether codes stand for values of a table (mm_table under MM_I8). */
static inline bool mm_tabled(const mm_task *t)
{
    return t->w->scheme.kind == QT_LUT4 || t->w->scheme.kind == QT_E2M1;
}

/* One scale or zero point of row r of a tile and group g (part `sub` of it), as f32. */
static inline float mm_scale(const mm_task *t, int64_t tile, int64_t g, int64_t sub, int r)
{
    const qt_tensor *w = t->w;
    const qt_scheme *s = &w->scheme;
    size_t at = (size_t)(((tile * t->s.ng + g) * t->s.subs + sub) * TILE_N + r);
    const uint8_t *p = (const uint8_t *)w->plane[QT_SCALES].data + at * tiles_scale_bytes(s);
    float f, second;
    if (s->kind == QT_E2M1) {
        if (s->scale_dtype == LQ_F8_E8M0) return lq_e8m0_to_f32(*p);
        memcpy(&second, (const uint8_t *)w->plane[QT_SCALES2].data + 4 * (tile * TILE_N + r), 4);
        f = lq_e4m3_to_f32(*p);
        return s->recip ? f / second : f * second;
    }
    lq_to_f32(&f, p, s->kind == QT_UINT ? s->scale_dtype : LQ_F32, 1);
    return s->div127 ? f / 127.0f : f;
}
static inline float mm_zero(const mm_task *t, int64_t tile, int64_t g, int r)
{
    const qt_scheme *s = &t->w->scheme;
    size_t at = (size_t)((tile * t->s.ng + g) * TILE_N + r);
    const uint8_t *z = t->w->plane[QT_ZEROS].data;
    float f;
    if (s->zero == QT_ZERO_INT) return z[at];
    if (s->zero == QT_ZERO_NONE) return (float)(1 << (tiles_bits(s) - 1));
    lq_to_f32(&f, z + at * tiles_zero_bytes(s), s->zero == QT_ZERO_F16 ? LQ_F16 : s->scale_dtype,
              1);
    return f;
}

#endif
