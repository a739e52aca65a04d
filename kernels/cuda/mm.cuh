/* kernels/cuda/mm.cuh - reading a 16-row interleaved weight (formats/tensor/tiles.h) in pieces of eight inputs.
 *
 * One step of a tile is 16 outputs (rows) by 32 inputs. Chunk c = 0..3 of a row is its inputs
 * 8c .. 8c+7. A step in memory, u4 (256 bytes), one cell = 4 bytes = 8 codes:
 *
 *             row 0    1    2         15
 *   chunk 0   [    ][    ][    ] .. [    ]   64 bytes
 *   chunk 1   [    ][    ][    ] .. [    ]
 *   chunk 2   [    ][    ][    ] .. [    ]
 *   chunk 3   [    ][    ][    ] .. [    ]
 *
 * So four rows of a chunk are one 16-byte load, a step is 16 lanes' loads side by side, and two
 * steps are one warp's 512 bytes: what mm_gemv.cu does. And a lane of mma.m16n8k16 that holds rows
 * g and g+8 and the k of c = lane % 4 finds its codes of two products in two cells, and the
 * activations that go with them in 16 neighbouring bytes: what mm_mma.cu does. The layout that the
 * CPU maps from the file is therefore used on the device as it is; no second packing.
 *
 * The other widths (chunk c, row r; "word i" = 4 bytes at 64 i + 4 r):
 *   8 bit  words 2c, 2c+1          2 bit  word c/2, half c%2
 *   3 bit  as 2 bit, and word 2: bits 2c, 2c+1 of each byte
 *   16 bit words 4c .. 4c+3        f32    words 8c .. 8c+7 */
#ifndef LLMQ_KERNELS_CUDA_MM_CUH
#define LLMQ_KERNELS_CUDA_MM_CUH

#include "kernels/cuda/last.cuh"
#include "kernels/cuda/ops.cuh"

/* How a code becomes a number; C_MAP: by a table of 16. C_ROWS: bf16 that lies in rows of K, not in
 * tiles. */
enum mm_code { C_U2, C_U3, C_U4, C_U8, C_MAP, C_E2M1, C_E4M3, C_F16, C_BF16, C_F32, C_ROWS };
/* Those that the matrix units take from tiles. */
#define MM_CODES(X) X(C_U2) X(C_U3) X(C_U4) X(C_U8) X(C_MAP) X(C_E2M1) X(C_E4M3) X(C_F16) X(C_BF16)

/* A weight as kernels take it; by value. */
struct mm_view {
    const uint8_t *codes, *scales, *zeros, *scales2;
    const float *map; /* [16] of C_MAP */
    int64_t N, Kp;
    int steps, group_steps; /* along K; of one group */
    int ng, subs;
    lq_dtype scale_dtype; /* LQ_BOOL: no scales */
    qt_zero zero;
    lq_dtype zero_dtype; /* of QT_ZERO_F16 and QT_ZERO_BIAS */
    float zero_const;    /* QT_ZERO_NONE */
    bool div127, recip;
    int step_bytes;
    int64_t tile_bytes;
};

/* What one weight of a group has of its own. codes NULL: it is not of the group. */
struct mm_part {
    const uint8_t *codes, *scales, *zeros, *scales2, *out_codes;
    const float *map, *bias;
    const int32_t *perm, *out_idx;
    int32_t n_out, out_steps;
    float act_scale;
};
static_assert(sizeof(mm_part) == DEV_GROUP_EACH, "of device.h");

/* Whose the M rows of a launch are; by value. They begin at row0 of those that `first` counts. */
struct mm_rows {
    const mm_part *parts; /* NULL: all rows are of one weight */
    const int32_t *first, *busy;
    int n; /* weights that have rows, at most */
    int64_t row0, M;
};

/* Up to `size` rows from m0 that one block or warp takes: of weight `part`. rows <= 0: none. */
struct mm_panel {
    int part;
    int64_t m0, rows;
};

__device__ __forceinline__ int64_t mm_begin(const mm_rows &g, int i)
{
    const int64_t at = G<const int32_t>(g.first)[i] - g.row0;
    return at < 0 ? 0 : at < g.M ? at : g.M;
}
/* The first panel of the i-th weight that has rows. Counted so, panels lie between weights without
 * rows of their own, at most one behind each weight; but no sum over those before is needed. */
__device__ __forceinline__ int64_t mm_panel0(const mm_rows &g, int i, int size)
{
    return size == 1 ? mm_begin(g, i) : mm_begin(g, i) / size + i;
}
/* The last of those that have rows whose first panel is y or before. */
__device__ __forceinline__ int mm_index_of(const mm_rows &g, int64_t y, int size)
{
    int lo = 0, hi = g.n;
    while (hi - lo > 1) {
        const int mid = (lo + hi) / 2;
        if (mm_panel0(g, mid, size) <= y)
            lo = mid;
        else
            hi = mid;
    }
    return lo;
}
__device__ __forceinline__ mm_panel mm_panel_of(const mm_rows &g, int64_t y, int size)
{
    if (!g.parts) return { 0, y * size, g.M - y * size < size ? g.M - y * size : size };
    const int lo = mm_index_of(g, y, size);
    mm_panel p = { G<const int32_t>(g.busy)[lo], 0, 0 };
    p.m0 = mm_begin(g, lo) + (y - mm_panel0(g, lo, size)) * size;
    p.rows = mm_begin(g, lo + 1) - p.m0;
    if (p.rows > size) p.rows = size;
    return p;
}
/* Where row m stands if each weight's rows begin at a multiple of eight. */
__device__ __forceinline__ int64_t mm_row8(const mm_rows &g, int64_t m)
{
    if (!g.parts) return m;
    const int i = mm_index_of(g, m, 1);
    return mm_panel0(g, i, 8) * 8 + (m - mm_begin(g, i));
}
/* In the grid's y. */
static inline unsigned mm_panels(const mm_rows &g, int size)
{
    if (!g.parts) return (unsigned)lq_ceil_div(g.M, size);
    return (unsigned)(size == 1 ? g.M : g.M / size + g.n);
}
__device__ __forceinline__ mm_part mm_part_of(const mm_rows &g, int part)
{
    return cu_ld<mm_part>(G<const mm_part>(g.parts) + part);
}
/* The planes of a group's weight in place of w's; false: it is not of the group. */
__device__ __forceinline__ bool mm_member(mm_view *v, mm_view *outliers, const float **bias,
                                          const mm_rows &g, int part)
{
    if (!g.parts) return true;
    const mm_part p = mm_part_of(g, part);
    v->codes = p.codes;
    v->scales = p.scales;
    v->zeros = p.zeros;
    v->scales2 = p.scales2;
    v->map = p.map;
    outliers->codes = p.out_codes;
    outliers->steps = outliers->group_steps = p.out_steps;
    outliers->tile_bytes = (int64_t)p.out_steps * outliers->step_bytes;
    *bias = p.bias;
    return p.codes;
}

__host__ __device__ constexpr int mm_bits(mm_code code)
{
    return code == C_U2                                      ? 2
           : code == C_U3                                    ? 3
           : code == C_U4 || code == C_MAP || code == C_E2M1 ? 4
           : code == C_U8 || code == C_E4M3                  ? 8
           : code == C_F32                                   ? 32
                                                             : 16;
}
__host__ __device__ constexpr int mm_words(mm_code code) /* 4-byte words of a chunk of one row */
{
    return code == C_F32                                       ? 8
           : code == C_F16 || code == C_BF16 || code == C_ROWS ? 4
           : code == C_U8 || code == C_E4M3                    ? 2
           : code == C_U3                                      ? 2
                                                               : 1;
}
/* Which words of the step chunk c reads: the i-th. */
__device__ __forceinline__ int mm_word(mm_code code, int c, int i)
{
    switch (code) {
    case C_U2:
        return c / 2;
    case C_U3:
        return i ? 2 : c / 2;
    case C_U4:
    case C_MAP:
    case C_E2M1:
        return c;
    case C_U8:
    case C_E4M3:
        return 2 * c + i;
    case C_F32:
        return 8 * c + i;
    default:
        return 4 * c + i;
    }
}

/* 0 .5 | 1 1.5 | 2 3 | 4 6: exponent and mantissa moved up into a float's, 2^126 too small. */
__device__ __forceinline__ float mm_e2m1(unsigned c)
{
    return __uint_as_float((c & 7u) << 22 | (c & 8u) << 28) * 0x1p126f;
}
/* The 16 numbers of C_MAP into shared memory, by the block's first threads; a barrier after it. */
__device__ __forceinline__ void mm_load_map(S<float> map, const mm_view &v)
{
    if (threadIdx.x < 16) map[threadIdx.x] = cu_ldg<float>(G<const float>(v.map) + threadIdx.x);
    __syncthreads();
}

/* The numbers of C_MAP as floats, and as two bf16 that add up to them: high | low << 16. */
struct mm_maps {
    S<float> number;
    S<unsigned> two;
};
__device__ __forceinline__ void mm_load_maps(const mm_maps &map, const mm_view &v)
{
    mm_load_map(map.number, v);
    if (threadIdx.x < 16) {
        const float all = map.number[threadIdx.x], high = cu_bf16_f32(cu_f32_bf16(all));
        map.two[threadIdx.x] = cu_pair<false>(high, all - high);
    }
    __syncthreads();
}

__host__ __device__ constexpr bool mm_is_uint(mm_code code)
{
    return code == C_U2 || code == C_U3 || code == C_U4 || code == C_U8;
}
/* Codes 4 half .. 4 half + 3 of a chunk of unsigned ones, a byte each. */
template <mm_code CODE>
__device__ __forceinline__ unsigned mm_four(const unsigned *w, int c, int half)
{
    if (CODE == C_U8) return w[half];
    if (CODE == C_U4) return w[0] >> 4 * half & 0x0f0f0f0fu;
    const unsigned low = w[0] >> (4 * (c % 2) + 2 * half) & 0x03030303u;
    return CODE == C_U3 ? low | (w[1] >> (2 * c + half) & 0x01010101u) << 2 : low;
}

/* The eight numbers of a chunk from its words: codes as they are, not yet scaled. Unsigned ones become
 * floats by 2^23 + q, which is one as it is put together: a conversion takes four times a unit's turn.
 * `map`: C_MAP. */
template <mm_code CODE>
__device__ __forceinline__ void mm_numbers(float q[8], const unsigned *w, int c, S<const float> map)
{
#pragma unroll
    for (int j = 0; j < 8; j++) {
        if constexpr (mm_is_uint(CODE)) {
            const unsigned four = mm_four<CODE>(w, c, j / 4);
            q[j] = __uint_as_float(__byte_perm(four, 0x4b000000u, 0x7540u | j % 4)) - 0x1p23f;
            continue;
        }
        switch (CODE) {
        case C_MAP:
            q[j] = map[(int)(w[0] >> (j % 4 * 8 + 4 * (j / 4)) & 15u)];
            break;
        case C_E2M1:
            q[j] = mm_e2m1(w[0] >> (j % 4 * 8 + 4 * (j / 4)) & 15u);
            break;
        case C_E4M3:
            q[j] = cu_e4m3_f32(w[j / 4] >> j % 4 * 8 & 255u);
            break;
        case C_F16:
            q[j] = cu_f16_f32(w[j / 2] >> 16 * (j % 2) & 0xffffu);
            break;
        case C_BF16:
        case C_ROWS:
            q[j] = cu_bf16_f32(w[j / 2] >> 16 * (j % 2) & 0xffffu);
            break;
        default:
            q[j] = __uint_as_float(w[j]);
        }
    }
}

/* A scale or zero point from its bits. */
__device__ __forceinline__ float mm_side_of(unsigned bits, lq_dtype d)
{
    if (d == LQ_F8_E4M3) return cu_e4m3_f32(bits);
    if (d == LQ_F8_E8M0) return bits == 255 ? NAN : __uint_as_float(bits ? bits << 23 : 0x400000u);
    const float wide = __uint_as_float(d == LQ_BF16 ? bits << 16 : bits);
    return d == LQ_F16 ? cu_f16_f32(bits) : wide;
}
/* The same without branches: in an unrolled loop each would have its own copy of all that follows.
 */
__device__ __forceinline__ float mm_side_number(unsigned bits, lq_dtype d)
{
    const unsigned power = bits == 255 ? 0x7fc00000u : bits ? bits << 23 : 0x400000u;
    const float small = __uint_as_float((bits & 0x7fu) << 20) * 0x1p120f,
                f8 = (bits & 0x7fu) == 0x7fu ? NAN
                     : bits & 0x80u          ? -small
                                             : small;
    const unsigned word = d == LQ_BF16 ? bits << 16 : d == LQ_F8_E8M0 ? power : bits;
    const float half = cu_f16_f32(bits & 0xffffu), wide = __uint_as_float(word);
    return d == LQ_F16 ? half : d == LQ_F8_E4M3 ? f8 : wide;
}
__device__ __forceinline__ unsigned mm_side_bits(G<const uint8_t> p, lq_dtype d, int64_t i)
{
    if (d == LQ_F16 || d == LQ_BF16) return cu_ldg<uint16_t>(p + 2 * i);
    if (d == LQ_F8_E4M3 || d == LQ_F8_E8M0) return cu_ldg<uint8_t>(p + i);
    return cu_ldg<unsigned>(p + 4 * i);
}
__device__ __forceinline__ float mm_side(G<const uint8_t> p, lq_dtype d, int64_t i)
{
    return mm_side_of(mm_side_bits(p, d, i), d);
}

/* What a chunk's numbers of one row go through: w = scale * (q - zero), or, with bias, scale * q +
 * bias. less: 128 + zero as two bf16, of an integer zero point below 128. */
struct mm_scale_of {
    float scale, zero;
    unsigned less;
};
/* x times what all of row r of a tile is scaled by besides. */
__device__ __forceinline__ float mm_row_scaled(float x, const mm_view &v, int64_t tile, int r)
{
    if (v.scales2) {
        const float second = cu_ldg<float>(G<const uint8_t>(v.scales2) + 4 * (tile * TILE_N + r));
        x = v.recip ? x / second : x * second;
    }
    return v.div127 ? x / 127.0f : x;
}
/* From what lies in the planes; zero: its bits. */
__device__ __forceinline__ mm_scale_of mm_scale_made(const mm_view &v, float scale, unsigned zero)
{
    mm_scale_of s = { scale, v.zero_const, 0 };
    if (v.zero == QT_ZERO_NONE)
        zero = (unsigned)v.zero_const;
    else
        s.zero = v.zero == QT_ZERO_INT ? (float)zero : mm_side_of(zero, v.zero_dtype);
    s.less = 0x43004300u | zero * 0x10001u;
    return s;
}
/* Of row r of a tile, in a group. */
__device__ __forceinline__ mm_scale_of mm_group_scales(const mm_view &v, int64_t tile, int group,
                                                       int c, int r)
{
    unsigned zero = 0;
    if (v.scale_dtype == LQ_BOOL) return { 1.0f, 0.0f, 0 };
    const int64_t g = tile * v.ng + group;
    const int sub = v.subs == 2 ? c / 2 : 0;
    const float scale =
        mm_side(G<const uint8_t>(v.scales), v.scale_dtype, (g * v.subs + sub) * TILE_N + r);
    if (v.zero != QT_ZERO_NONE)
        zero = mm_side_bits(G<const uint8_t>(v.zeros),
                            v.zero == QT_ZERO_INT ? LQ_F8_E4M3 : v.zero_dtype, g * TILE_N + r);
    return mm_scale_made(v, mm_row_scaled(scale, v, tile, r), zero);
}
__device__ __forceinline__ mm_scale_of mm_scales(const mm_view &v, int64_t tile, int step, int c,
                                                 int r)
{
    return mm_group_scales(v, tile, step / v.group_steps, c, r);
}

/* The numbers less the zero point; with a bias the finished weights, whose scale is then 1. */
__device__ __forceinline__ void mm_center(float q[8], mm_scale_of *s, qt_zero zero)
{
    if (zero == QT_ZERO_BIAS) {
        for (int j = 0; j < 8; j++)
            q[j] = s->scale * q[j] + s->zero;
        s->scale = 1.0f;
        return;
    }
    for (int j = 0; j < 8; j++)
        q[j] -= s->zero;
}

/* The numbers of rows g and g + 8 as A of two products m16n8k16, and what bf16 leaves of them. */
__device__ __forceinline__ void mm_fragments(unsigned a[2][4], const float q[2][8])
{
    for (int half = 0; half < 2; half++)
        for (int i = 0; i < 4; i++) {
            const float *two = &q[i % 2][4 * half + i / 2 * 2];
            a[half][i] = cu_pair<false>(two[0], two[1]);
        }
}
__device__ __forceinline__ void mm_rest(float q[2][8])
{
    for (int h = 0; h < 2; h++)
        for (int j = 0; j < 8; j++)
            q[h][j] -= cu_bf16_f32(cu_f32_bf16(q[h][j]));
}

/* Codes that become A without a float between: of 2 to 4 bits less integer zero points (0x4300 | q
 * is 128 + q as bf16, and 128 + q - (128 + zero) is exact), floats of 4 and 8 bits (mm_two), and bf16;
 * and of 8 bits (2^23 + q is a float as it is put together). */
__host__ __device__ constexpr bool mm_can_quick(mm_code code)
{
    return code == C_U2 || code == C_U3 || code == C_U4 || code == C_U8 || code == C_E2M1 ||
           code == C_E4M3 || code == C_BF16 || code == C_ROWS;
}
__host__ __device__ constexpr bool mm_is_quick(mm_code code, qt_zero zero)
{
    return mm_can_quick(code) &&
           (code == C_BF16 || code == C_ROWS || zero == QT_ZERO_NONE || zero == QT_ZERO_INT);
}
/* Two floats of 4 or 8 bits as bf16, exactly: the upper ones of the halves of t. Exponent and mantissa
 * are moved into a bf16's, which is 2^126 or 2^120 too small, subnormals included. NaN becomes 480. */
template <mm_code CODE> __device__ __forceinline__ unsigned mm_two(unsigned t)
{
    return CODE == C_E2M1
               ? cu_fma_bf16((t & 0x80008000u) | (t >> 6 & 0x01c001c0u), 0x7e807e80u, 0x80008000u)
               : cu_fma_bf16((t & 0x80008000u) | (t >> 4 & 0x07f007f0u), 0x7b807b80u, 0x80008000u);
}
/* mm_quick of floats. */
template <mm_code CODE>
__device__ __forceinline__ void mm_quick_floats(unsigned a[2][4],
                                                const unsigned w[2][mm_words(CODE)])
{
    enum { WORDS = mm_words(CODE) };
    unsigned nan = 0;
#pragma unroll
    for (int i = 0; i < 8; i++) { /* of a pair of bytes */
        const int h = i % 2, half = i / 4;
        const unsigned t = __byte_perm(w[h][half % WORDS], 0, i / 2 % 2 ? 0x3424u : 0x1404u);
        a[half][i % 4] = mm_two<CODE>(CODE == C_E2M1 && half == 0 ? t << 4 : t);
    }
    if (CODE != C_E4M3) return;
#pragma unroll
    for (int i = 0; i < 4; i++)
        nan |= (w[i % 2][i / 2 % WORDS] & 0x7f7f7f7fu) + 0x01010101u;
    if ((nan & 0x80808080u) == 0) return; /* the rule */
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const unsigned of = w[i % 2][i / 4 % WORDS] >> i / 2 % 2 * 16;
        if ((of & 0x7fu) == 0x7fu) a[i / 4][i % 4] |= 0x7fffu;
        if ((of & 0x7f00u) == 0x7f00u) a[i / 4][i % 4] |= 0x7fff0000u;
    }
}
/* A times the rows' scales, where that is exact: E2M1 and E4M3 have at most 6 bits. */
__device__ __forceinline__ void mm_times_scales(unsigned a[2][4], const mm_scale_of s[2])
{
    const unsigned by[2] = { cu_pair<false>(s[0].scale, s[0].scale),
                             cu_pair<false>(s[1].scale, s[1].scale) };
#pragma unroll
    for (int i = 0; i < 8; i++)
        a[i / 4][i % 4] = cu_fma_bf16(a[i / 4][i % 4], by[i % 2], 0x80008000u);
}
/* A of two products from the words of two rows. */
template <mm_code CODE>
__device__ __forceinline__ void mm_quick(unsigned a[2][4], const unsigned w[2][mm_words(CODE)],
                                         int c, const mm_scale_of s[2])
{
    if (CODE == C_BF16 || CODE == C_ROWS) {
#pragma unroll
        for (int i = 0; i < 8; i++)
            a[i / 4][i % 4] = w[i % 2][mm_words(CODE) > 2 ? i / 4 * 2 + i / 2 % 2 : 0];
        return;
    }
    if (CODE == C_E2M1 || CODE == C_E4M3) {
        mm_quick_floats<CODE>(a, w);
        return;
    }
#pragma unroll
    for (int h = 0; h < 2; h++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const unsigned q = mm_four<CODE>(w[h], c, half);
#pragma unroll
            for (int two = 0; two < 2; two++) {
                unsigned *to = &a[half][h + 2 * two];
                if (CODE != C_U8) {
                    *to = cu_sub_bf16(__byte_perm(q, 0x43u, two ? 0x4342u : 0x4140u), s[h].less);
                    continue;
                }
                const float less = 0x1p23f + s[h].zero;
                const unsigned lo = __byte_perm(q, 0x4b000000u, two ? 0x7542u : 0x7540u),
                               hi = __byte_perm(q, 0x4b000000u, two ? 0x7543u : 0x7541u);
                *to = cu_pair<false>(__uint_as_float(lo) - less, __uint_as_float(hi) - less);
            }
        }
}

/* The same of two rows of C_MAP, and low: what a leaves of the numbers. */
__device__ __forceinline__ void mm_from_map(unsigned a[2][4], unsigned low[2][4],
                                            const unsigned w[2][mm_words(C_MAP)],
                                            const mm_maps &map)
{
    const S<const uint8_t> two = cu_as<const uint8_t>(map.two);
    auto at = [&](int h, int half,
                  int j) { /* in bytes: 4 times the code, which has a byte by now */
                           const unsigned four = (half ? w[h][0] >> 2 : w[h][0] << 2) & 0x3c3c3c3cu;
                           return cu_ld<unsigned>(two +
                                                  (int)__byte_perm(four, 0, 0x4440u + (unsigned)j));
    };
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const int h = i % 2, half = i / 4, j = i / 2 % 2 * 2;
        const unsigned first = at(h, half, j), second = at(h, half, j + 1);
        a[half][i % 4] = __byte_perm(first, second, 0x5410u);
        low[half][i % 4] = __byte_perm(first, second, 0x7632u);
    }
}

/* The outliers' share of row r of a tile for one row of x, in order. */
__device__ __forceinline__ float mm_outlier_sum(const mm_view &v, int64_t tile, int r,
                                                G<const float> x)
{
    const G<const uint8_t> w = G<const uint8_t>(v.codes) + tile * v.tile_bytes;
    float sum = 0;
    for (int p = 0; p < v.steps * TILE_K; p++)
        sum = fmaf(x[p], cu_bf16_f32(cu_ldg<uint16_t>(w + (p / 2 * 64 + 4 * r + p % 2 * 2))), sum);
    return sum;
}

/* Where a product goes; by value. */
struct mm_sink {
    float *y;
    const float *bias, *x_out;
    int64_t ldy, ldo, N;
    bool add;
};
/* y of row m, whose output n it is. */
__device__ __forceinline__ void mm_put(float y, const mm_sink &o, int64_t m, int64_t n)
{
    const G<float> to = G<float>(o.y) + (m * o.ldy + n);
    if (o.bias) y += G<const float>(o.bias)[n];
    *to = o.add ? y + *to : y;
}
/* Output n of row m from the sums of n_parts parts of K, [n_parts][M][o.N], in order. */
__device__ __forceinline__ float mm_joined(G<const float> parts, const mm_sink &o, int n_parts,
                                           int64_t M, int64_t m, int64_t n)
{
    float y = 0;
#pragma unroll 4
    for (int z = 0; z < n_parts; z++)
        y += parts[(z * M + m) * o.N + n];
    return y;
}
/* y, of row m: row r of a tile is output `out`. */
__device__ __forceinline__ void mm_finish(float y, const mm_sink &o, const mm_view &outliers,
                                          int64_t tile, int r, int64_t m, int64_t out)
{
    if (outliers.steps) y += mm_outlier_sum(outliers, tile, r, G<const float>(o.x_out) + m * o.ldo);
    mm_put(y, o, m, out);
}

/* ---- host ---- */
mm_code CU_NAME(mm_code_of)(const qt_tensor *t);
mm_view CU_NAME(mm_view_of)(const dev_weight *w);
/* The outlier columns of QT_I8_OUTLIER as a dense weight; steps 0: none. */
mm_view CU_NAME(mm_outliers_of)(const dev_weight *w);

/* Activations as the kernels read them. */
struct mm_input {
    const float *f;    /* [M, ldf] in the tile's places, of gemv, thin; as they come, of i8 */
    const uint16_t *b; /* [M, ldb] bf16, of mma, blas and wide */
    const float *out;  /* [M, ldo] outlier inputs */
    int64_t ldf, ldb, ldo;
    mm_rows rows;
    int64_t most; /* rows of one weight */
    float
        *parts; /* of sm90: mm_sm90.part_bytes; gemv, thin: mm_cut_bytes; mma: dev_mm_parts; wide */
};
static inline mm_sink mm_sink_of(const dev_mm_args *a, const mm_input *x, const mm_view &v)
{
    return { a->y, a->bias, x->out, a->ldy, x->ldo, v.N, a->add };
}
/* Numbers that bf16 holds, or the sum of two: integer codes less an integer zero point, E2M1 and
 * E4M3 fit. */
static inline int mm_terms(const dev_weight *w, const mm_view &v)
{
    const bool two = (w->t.scheme.kind == QT_DENSE && w->t.scheme.dtype == LQ_F16) ||
                     w->t.scheme.kind == QT_LUT4 || v.zero == QT_ZERO_F16 || v.zero == QT_ZERO_BIAS;
    return two ? 2 : 1;
}

/* Where mm_gemv and mm_thin cut K: of a weight that has fewer tiles than the device has
 * multiprocessors, into as many parts as leave each of those a block at most, of whole rounds of a
 * block of mm_gemv. Whatever M: of few rows every part is a block's, and the last of them to be done
 * adds all; of more a block takes one after the other; both add them in order. A group's weights, of
 * which there are several, are not cut. */
enum { MM_CUT_STEPS = 16, MM_CUT_MOST = 8, MM_CUT_BLOCKS = 256 };
struct mm_cut {
    int splits, per_split; /* steps of 32 inputs */
};
static inline mm_cut mm_cut_of(const dev_weight *w, int n_sm)
{
    const int64_t steps = w->s.Kp / TILE_K, rounds = lq_ceil_div(steps, MM_CUT_STEPS);
    int64_t splits = (n_sm < MM_CUT_BLOCKS ? n_sm : MM_CUT_BLOCKS) / w->s.tiles;
    if (splits > MM_CUT_MOST) splits = MM_CUT_MOST;
    if (splits > rounds) splits = rounds;
    if (splits < 1) splits = 1;
    mm_cut c;
    c.per_split = (int)lq_ceil_div(rounds, splits) * MM_CUT_STEPS;
    c.splits = (int)lq_ceil_div(steps, c.per_split);
    return c;
}
/* Where mm_thin cuts K: there, or else into parts of up to MM_THIN_PART steps, whatever M. apart:
 * parts are blocks of their own, as tiles are few or x, as bf16, would take more than
 * MM_THIN_STAGED bytes of a block's shared memory; or, of more rows than one block has, by_part: a
 * block has x of one part at a time. */
enum { MM_THIN_PART = 128, MM_THIN_STAGED = 64 << 10 };
struct mm_thin_cut {
    int splits, per_split; /* steps */
    bool apart, by_part;
};
static inline mm_thin_cut mm_thin_cut_of(const dev_weight *w, int n_sm, int64_t M, bool group)
{
    const int64_t steps = w->s.Kp / TILE_K, rows = M < DEV_MM_SMALL ? M : DEV_MM_SMALL;
    const bool large = rows * w->s.Kp * 2 > MM_THIN_STAGED, one = !group && M <= DEV_MM_SMALL;
    mm_cut c = { 1, (int)steps };
    if (!group) c = mm_cut_of(w, n_sm);
    const bool few = c.splits > 1;
    if (c.per_split > MM_THIN_PART) {
        const int64_t each = lq_ceil_div(steps, lq_ceil_div(steps, MM_THIN_PART));
        c.per_split = (int)lq_ceil_div(each, MM_CUT_STEPS) * MM_CUT_STEPS;
        c.splits = (int)lq_ceil_div(steps, c.per_split);
    }
    return { c.splits, c.per_split, one && c.splits > 1 && (few || large), !one && large };
}
static_assert(DEV_MM_SMALL * (MM_CUT_BLOCKS + MM_CUT_BLOCKS / 2) * TILE_N * 4 <= DEV_MM_PARTS,
              "what a pass counts on");
/* Of the parts of up to DEV_MM_SMALL rows in the scratch, on any device: of mm_gemv, those of the
 * weight and one of outliers; of mm_thin. */
static inline size_t mm_cut_bytes(const dev_weight *w)
{
    const int64_t tiles = w->s.tiles < MM_CUT_BLOCKS / 2 + 1 ? MM_CUT_BLOCKS + w->s.tiles : 0,
                  parts = lq_ceil_div(w->s.Kp, MM_THIN_PART * TILE_K), thin = parts * w->s.tiles,
                  most = parts > 1 && thin > tiles ? thin : tiles;
    return (size_t)(DEV_MM_SMALL * most * TILE_N) * sizeof(float);
}

/* How mm_sm90 cuts a product of M rows, of `parts` weights (0: one, that has all of them). narrow:
 * blocks of 64 rows by 256 outputs, else of 128 by 128. Where those are few K is cut too, so that
 * the multiprocessors of an H100 or H200 (132) have a block each: it depends on the shapes alone.
 */
enum { MM_SM90_ROWS = 32, MM_SM90_BLOCKS = 128, MM_SM90_SPLITS = 8, MM_SM90_LEAST = 4 };
struct mm_sm90 {
    bool narrow;
    int splits, per_split; /* stages of 128 inputs */
    int64_t rows;          /* of x as it is arranged */
    size_t x_bytes, part_bytes;
};
static inline mm_sm90 mm_sm90_of(const dev_weight *w, int64_t M, int parts)
{
    mm_sm90 h;
    const int64_t each = parts ? M / parts : M, stages = lq_ceil_div(w->s.Kp, 4 * TILE_K);
    h.narrow = each <= 64 && !dev_mm_tall(&w->t.scheme);
    const int64_t size = h.narrow ? 64 : 128, tiles = h.narrow ? 16 : 8;
    const int64_t blocks = lq_ceil_div(w->s.tiles, tiles) * lq_ceil_div(M, size);
    int64_t splits = parts ? 1 : MM_SM90_BLOCKS / blocks;
    if (splits > MM_SM90_SPLITS) splits = MM_SM90_SPLITS;
    if (splits > stages / MM_SM90_LEAST) splits = stages / MM_SM90_LEAST;
    if (splits < 1) splits = 1;
    h.per_split = (int)lq_ceil_div(stages, splits);
    h.splits = (int)lq_ceil_div(stages, h.per_split);
    h.rows = parts ? (int64_t)lq_round_up((size_t)M, 8) + 8 * parts + size
                   : (int64_t)lq_round_up((size_t)M, (size_t)size);
    h.x_bytes = (size_t)h.rows * (size_t)stages * (4 * TILE_K) * 2;
    h.part_bytes = h.splits > 1 ? (size_t)(h.splits * M * w->s.tiles * TILE_N) * 4 : 0;
    return h;
}
void CU_NAME(mm_gemv)(dev *d, const dev_mm_args *a, const mm_input *x);
void CU_NAME(mm_thin)(dev *d, const dev_mm_args *a, const mm_input *x);
void CU_NAME(mm_mma)(dev *d, const dev_mm_args *a, const mm_input *x);
void CU_NAME(mm_sm90)(dev *d, const dev_mm_args *a, const mm_input *x);
/* Outputs n0 .. n0 + n - 1 by their rows of bf16, ld numbers apart, by cuBLAS, which CU_NAME(blas) has
 * opened (blas.cu). */
struct mm_dense {
    const void *rows;
    int64_t n0, n, ld;
};
void CU_NAME(mm_blas)(dev *d, const dev_mm_args *a, const mm_input *x, const mm_dense *w);
/* By cuBLAS, of what tiles become in x->parts, which has dev_mm_wide_bytes (mm_wide.cu). */
void CU_NAME(mm_wide)(dev *d, const dev_mm_args *a, const mm_input *x);
/* y [M, n] = x [M, K] w [n, K]^T of codes: int8, summed in int32, or e4m3, in f32; by cuBLASLt, where
 * dev_mm_lt says so; K, n and M are multiples of 16 (blas.cu). False: it does not do it, and nothing failed. */
struct mm_codes {
    const void *w, *x;
    void *y;
    int64_t M, n, K;
    bool f8;
};
bool CU_NAME(mm_lt_product)(dev *d, const mm_codes *c);
/* Where dev_mm_lt says so, of a's rows; `all` rows are of the call (mm_lt.cu). arranged: the scratch holds
 * their codes already. False: cuBLASLt does not do it, and d->lt is false from now on. */
bool CU_NAME(mm_lt)(dev *d, const dev_mm_args *a, int64_t all, bool arranged);
/* arranged: `room`, bytes as CU_NAME(mm_scratch) has for each place, holds them already. */
void CU_NAME(mm_i8)(dev *d, const dev_mm_args *a, const mm_input *x, void *room, bool arranged);

#endif
