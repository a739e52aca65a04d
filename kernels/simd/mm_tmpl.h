/* kernels/simd/mm_tmpl.h - the fused dequantize-and-multiply kernels on 16 lanes, for whichever family
 * includes it. A lane is an output; a block is RM rows times NT tiles:
 *
 *          tile 0 (16 outputs)  tile 1
 *   row 0  acc[0][0]            acc[0][1]     each step of K unpacks one vector of weights per tile
 *   row 1  acc[1][0]            acc[1][1]     and uses it for all RM rows; activations are
 * broadcast
 *   ...
 *
 * RM and NT are constants of the inlined body; rows and tiles beyond the end repeat the last one
 * and are not stored, so few bodies serve every shape. Sums run over K in order in every body:
 * which body takes a row changes nothing. MM_ROWS, MM_BODIES, ROWS_BODY, MM_TILES, MM_TILES_1 come
 * from the includer, and WIDE_ROWS, WIDE_TILES (mm_wide.h).
 *
 * Included once per instruction set; no include guard on purpose. */
#include "kernels/core/k_ops.h"
#include "kernels/simd/v16.h"

enum { MAX_R = 8, MAX_T = 4 };

/* What weights are read from. */
typedef enum {
    W_F32,
    W_F16,
    W_BF16,
    W_U2,
    W_U3,
    W_U4,
    W_U8,
    W_U2B, /* with QT_ZERO_BIAS */
    W_U3B,
    W_U4B,
    W_U8B,
    W_LUT4,  /* also mxfp4, whose table is fixed */
    W_LUT4S, /* MM_I8 alone: a table of integers below 32 */
    W_NV4,   /* nvfp4: two scales in a step */
    W_E4M3
} w_src;
V16 int w_bits(w_src s)
{
    return s == W_U2 || s == W_U2B                  ? 2
           : s == W_U3 || s == W_U3B                ? 3
           : s == W_U8 || s == W_U8B || s == W_E4M3 ? 8
                                                    : 4;
}
V16 bool w_bias(w_src s) { return s >= W_U2B && s <= W_U8B; }
V16 bool w_table(w_src s) { return s >= W_LUT4 && s <= W_NV4; }
V16 int64_t w_subs(w_src s) { return s == W_NV4 ? 2 : 1; } /* scales in a group */
static w_src w_src_of(const qt_scheme *s)
{
    if (s->kind == QT_DENSE)
        return s->dtype == LQ_F32 ? W_F32 : s->dtype == LQ_F16 ? W_F16 : W_BF16;
    if (s->kind == QT_E4M3) return W_E4M3;
    if (s->kind == QT_E2M1 && s->scale_dtype == LQ_F8_E4M3) return W_NV4;
    if (s->kind == QT_LUT4 || s->kind == QT_E2M1) return W_LUT4;
    if (s->kind != QT_UINT) return W_U8;
    bool bias = s->zero == QT_ZERO_BIAS;
    return s->bits == 2   ? bias ? W_U2B : W_U2
           : s->bits == 3 ? bias ? W_U3B : W_U3
           : s->bits == 4 ? bias ? W_U4B : W_U4
           : bias         ? W_U8B
                          : W_U8;
}

/* Quads of inputs per turn of the loop over a step of 8: as many as share a vector of codes, so
 * that shifts are constants and the bodies stay small. */
V16 int quads(w_src s) { return s <= W_BF16 || w_bits(s) == 8 ? 1 : w_bits(s) == 4 ? 2 : 4; }

/* Codes of inputs 4i..4i+3 of a step, i = turn * quads + k, a byte each, in every row's lane. */
V16 vi unpack(const uint8_t *step, w_src src, int turn, int k)
{
    if (w_bits(src) == 8) return vi_load(step + 64 * turn);
    if (w_bits(src) == 4) {
        vi v = vi_load(step + 64 * turn), low = vi_set1(0x0f0f0f0f);
        return k ? vi_and(vi_srl(v, 4), low) : vi_and(v, low);
    }
    vi v = vi_load(step + 64 * turn), low = vi_set1(0x03030303);
    v = k ? vi_and(vi_srl(v, (unsigned)(2 * k)), low) : vi_and(v, low);
    if (w_bits(src) == 2) return v;
    vi h = vi_srlv(vi_load(step + 128), 4 * turn), bit = vi_set1(0x04040404);
    h = k < 2 ? vi_sll(h, (unsigned)(2 - k)) : vi_srl(h, (unsigned)(k - 2));
    return vi_or(v, vi_and(h, bit));
}

/* Exponents alone, one in each lane (base/base.h). */
V16 vf vf_e8m0(vi e)
{
    vf v = vf_cast(vi_sll(e, 23)), f = vf_from_vi(e);
    v = vf_sel(vf_lt(f, vf_set1(1)), vf_set1(0x1p-127f), v);
    return vf_sel(vf_lt(vf_set1(254), f), vf_set1(NAN), v);
}

V16 vf load_scale_e2m1(const mm_task *t, int64_t tile, const uint8_t *p)
{
    const qt_scheme *s = &t->w->scheme;
    if (s->scale_dtype == LQ_F8_E8M0) return vf_e8m0(vi_u8(p));
    const uint8_t *second = (const uint8_t *)t->w->plane[QT_SCALES2].data + 4 * tile * TILE_N;
    vf v = vf_e4m3(vi_u8(p)), v2 = vf_load((const float *)(const void *)second);
    return s->recip ? vf_div(v, v2) : vf_mul(v, v2);
}

/* 16 scales or zero points of (tile, group); `sub`: the part of the group. */
V16 vf load_scale(const mm_task *t, int64_t tile, int64_t g, int64_t sub)
{
    const qt_scheme *s = &t->w->scheme;
    const uint8_t *p = t->w->plane[QT_SCALES].data;
    size_t at = (size_t)(((tile * t->s.ng + g) * t->s.subs + sub) * TILE_N);
    if (s->kind == QT_DENSE) return vf_set1(1);
    if (s->kind == QT_E2M1) return load_scale_e2m1(t, tile, p + at);
    if (s->kind == QT_UINT && s->scale_dtype == LQ_F16) return vf_f16(p + 2 * at);
    if (s->kind == QT_UINT && s->scale_dtype == LQ_BF16) return vf_bf16(p + 2 * at);
    vf v = vf_load((const float *)(const void *)(p + 4 * at));
    return s->div127 ? vf_div(v, vf_set1(127)) : v;
}
/* The same under MM_I8, where tables are integers (mm_table). */
V16 vf load_scale_i8(const mm_task *t, int64_t tile, int64_t g, int64_t sub, w_src src)
{
    vf s = load_scale(t, tile, g, sub);
    return w_table(src) ? vf_mul(s, vf_set1(t->o.w->table.unit)) : s;
}
V16 vf load_zero(const mm_task *t, int64_t tile, int64_t g, w_src src)
{
    if (w_table(src)) return vf_set1((float)t->o.w->table.zero);
    const qt_scheme *s = &t->w->scheme;
    const uint8_t *p = t->w->plane[QT_ZEROS].data;
    size_t at = (size_t)((tile * t->s.ng + g) * TILE_N);
    if (s->zero == QT_ZERO_INT) return vf_from_vi(vi_u8(p + at));
    if (s->zero == QT_ZERO_F16) return vf_f16(p + 2 * at);
    if (s->zero == QT_ZERO_BIAS) {
        if (s->scale_dtype == LQ_F16) return vf_f16(p + 2 * at);
        if (s->scale_dtype == LQ_BF16) return vf_bf16(p + 2 * at);
        return vf_load((const float *)(const void *)(p + 4 * at));
    }
    return vf_set1((float)(1 << (w_bits(src) - 1)));
}

/* Rows and tiles of a block, those beyond the end clamped to the last. */
typedef struct {
    int64_t m[MAX_R], tile[MAX_T];
    int rows, tiles; /* to store */
} block;
V16 block block_at(const mm_task *t, int64_t m, int64_t tile, int RM, int NT)
{
    block b;
    b.rows = t->m1 - m < RM ? (int)(t->m1 - m) : RM;
    b.tiles = t->t1 - tile < NT ? (int)(t->t1 - tile) : NT;
    for (int r = 0; r < RM; r++)
        b.m[r] = r < b.rows ? m + r : t->m1 - 1;
    for (int n = 0; n < NT; n++)
        b.tile[n] = n < b.tiles ? tile + n : t->t1 - 1;
    return b;
}

/* The outlier columns' own sum of one row and tile. Rare: no tiling over rows. */
static inline vf outlier_sum(const mm_task *t, int64_t m, int64_t tile)
{
    int64_t Kp = (int64_t)lq_round_up((size_t)t->w->scheme.n_out, TILE_K);
    const float *x = t->x.out + m * t->x.ldo;
    const uint8_t *w =
        (const uint8_t *)t->w->plane[QT_OUT_VALS].data + (size_t)(tile * Kp * TILE_N) * 2;
    vf sum = vf_set1(0);
    for (int64_t p = 0; p < Kp; p += 2, w += 64) {
        vi pair = vi_load(w);
        sum = vf_fma(vf_set1(x[p]), vf_cast(vi_sll(pair, 16)), sum);
        sum = vf_fma(vf_set1(x[p + 1]), vf_cast(vi_and(pair, vi_set1(INT32_C(-65536)))), sum);
    }
    return sum;
}

/* The sums acc[r * NT + n] to y: ((sum + outliers) + bias) + y, as mm_finish in plain C. */
V16 void block_store(const mm_task *t, const block *b, const vf *acc, int NT)
{
    const mm_out *o = &t->o;
    bool outliers = t->w->scheme.kind == QT_I8_OUTLIER;
    for (int n = 0; n < b->tiles; n++) {
        int64_t n0 = b->tile[n] * TILE_N, left = o->w->N - n0;
        int lanes = left < TILE_N ? (int)left : TILE_N;
        vf bias = o->bias ? vf_loadn(o->bias + n0, lanes) : vf_set1(0);
        for (int r = 0; r < b->rows; r++) {
            float *y = mm_place(t, b->m[r], b->tile[n]);
            vf v = acc[r * NT + n];
            if (outliers) v = vf_add(v, outlier_sum(t, b->m[r], b->tile[n]));
            if (o->bias) v = vf_add(v, bias);
            if (lanes == TILE_N) {
                vf_store(y, o->add ? vf_add(v, vf_load(y)) : v);
            } else {
                vf_storen(y, o->add ? vf_add(v, vf_loadn(y, lanes)) : v, lanes);
            }
        }
    }
}

/* A body with constant SRC, RM and NT is a function of its own: compilers take very long over one
 * function of them all. name_SRC[RM] is the body of RM rows. */
typedef void mm_body(const mm_task *t, int64_t m, int64_t tile);
#define WALK_BODY(body, SRC, RM, NT)                                                       \
    static __attribute__((noinline)) void body##_##SRC##_##RM(const mm_task *t, int64_t m, \
                                                              int64_t tile)                \
    {                                                                                      \
        body(t, SRC, RM, NT, m, tile);                                                     \
    }
#define WALK_ENTRY(body, SRC, RM, NT) [RM] = body##_##SRC##_##RM,
#define WALK_BODIES(body, SRC)                                          \
    WALK_BODY(body, SRC, 1, MM_TILES_1)                                 \
    MM_BODIES(WALK_BODY, body, SRC)                                     \
    static mm_body *const body##_##SRC[] = { WALK_ENTRY(body, SRC, 1, ) \
                                                 MM_BODIES(WALK_ENTRY, body, SRC) };
#define WALK_ROW(body, SRC) [SRC] = body##_##SRC,

/* All rows and tiles of the task by the smallest body that takes the rows left, MM_ROWS at most.
 * Tiles outside: a tile's weights stay in the first caches for all rows of the panel. */
static inline void walk(const mm_task *t, mm_body *const *bodies)
{
    const bool one = t->m1 - t->m0 == 1;
    for (int64_t tile = t->t0; tile < t->t1; tile += one ? MM_TILES_1 : MM_TILES)
        for (int64_t m = t->m0; m < t->m1; m += MM_ROWS)
            bodies[one ? 1 : ROWS_BODY(t->m1 - m)](t, m, tile);
}

/* How far ahead in a tile weights are asked for. */
enum { AHEAD = 4096 };

/* Each turn of the first rows of a tile asks for as many weights as it takes; one row alone has more
 * tiles at work, and the hardware keeps up. */
V16 bool asks_ahead(const mm_task *t, int64_t m, int RM) { return m == t->m0 && RM > 1; }
V16 void ask_ahead(const uint8_t *const *step, w_src src, int turn, int NT)
{
    const int bits = src == W_F32 ? 32 : src <= W_BF16 ? 16 : w_bits(src);
    const size_t bytes = (size_t)(TILE_K * TILE_N / 8 * bits / (8 / quads(src)));
    for (size_t i = 0; i < bytes; i += 64) {
        UNROLL
        for (int n = 0; n < NT; n++)
            v16_prefetch(step[n] + AHEAD + (size_t)turn * bytes + i);
    }
}

/* ---- MM_F32 ---- */
/* Weights of the four inputs of quad turn * quads + k. */
V16 void weights4(vf w[4], w_src src, const uint8_t *step, int turn, int k, vf s, vf z, vlut lut)
{
    if (src == W_F32) {
        UNROLL
        for (int j = 0; j < 4; j++)
            w[j] = vf_load((const float *)(const void *)(step + 64 * (4 * turn + j)));
        return;
    }
    if (src == W_F16 || src == W_BF16) {
        UNROLL
        for (int h = 0; h < 2; h++) {
            vi v = vi_load(step + 64 * (2 * turn + h));
            if (src == W_F16) {
                w[2 * h] = vf_f16_words(v);
                w[2 * h + 1] = vf_f16_words(vi_srl(v, 16));
            } else {
                w[2 * h] = vf_cast(vi_sll(v, 16));
                w[2 * h + 1] = vf_cast(vi_and(v, vi_set1(INT32_C(-65536))));
            }
        }
        return;
    }
    vi u = unpack(step, src, turn, k), low = vi_set1(255);
    if (w_table(src)) {
        vlut_get4(w, lut, u);
        UNROLL
        for (int j = 0; j < 4; j++)
            w[j] = vf_mul(w[j], s);
        return;
    }
    vi c[4] = { vi_and(u, low), vi_and(vi_srl(u, 8), low), vi_and(vi_srl(u, 16), low),
                vi_srl(u, 24) };
    UNROLL
    for (int j = 0; j < 4; j++) {
        if (src == W_E4M3)
            w[j] = vf_mul(vf_e4m3(c[j]), s);
        else if (w_bias(src))
            w[j] = vf_add(vf_mul(s, vf_from_vi(c[j])), z);
        else
            w[j] = vf_mul(s, vf_sub(vf_from_vi(c[j]), z));
    }
}

V16 void f32_block(const mm_task *t, w_src src, int RM, int NT, int64_t m, int64_t tile)
{
    block b = block_at(t, m, tile, RM, NT);
    vf acc[MAX_R][MAX_T], s[MAX_T], z[MAX_T];
    const vlut lut = vlut_load(t->w->scheme.kind == QT_LUT4 ? t->w->plane[QT_MAP].data : qt_e2m1);
    const uint8_t *step[MAX_T];
    const float *x[MAX_R];
    UNROLL
    for (int n = 0; n < NT; n++)
        step[n] = (const uint8_t *)t->w->plane[QT_CODES].data + (size_t)b.tile[n] * t->s.tile_bytes;
    UNROLL
    for (int r = 0; r < RM; r++) {
        x[r] = t->x.f + b.m[r] * t->x.ldf;
        UNROLL
        for (int n = 0; n < NT; n++)
            acc[r][n] = vf_set1(0);
    }
    const bool first = asks_ahead(t, m, RM);
    int64_t p = 0;
    for (int64_t g = 0; g < t->s.ng; g++) {
        UNROLL
        for (int n = 0; n < NT; n++) {
            s[n] = load_scale(t, b.tile[n], g, 0);
            z[n] = src > W_BF16 && src < W_LUT4 ? load_zero(t, b.tile[n], g, src) : vf_set1(0);
        }
        for (int64_t end = p + t->s.Gp; p < end; p += TILE_K) {
            for (int turn = 0; turn < 8 / quads(src); turn++) {
                if (first) ask_ahead(step, src, turn, NT);
                if (src == W_NV4 && turn == 2) /* the second 16 inputs */
                    UNROLL
                for (int n = 0; n < NT; n++)
                    s[n] = load_scale(t, b.tile[n], g, 1);
                UNROLL
                for (int k = 0; k < quads(src); k++) {
                    vf w[MAX_T][4];
                    UNROLL
                    for (int n = 0; n < NT; n++)
                        weights4(w[n], src, step[n], turn, k, s[n], z[n], lut);
                    UNROLL
                    for (int j = 0; j < 4; j++) {
                        UNROLL
                        for (int r = 0; r < RM; r++) {
                            vf xv = vf_set1(x[r][p + 4 * (turn * quads(src) + k) + j]);
                            UNROLL
                            for (int n = 0; n < NT; n++)
                                acc[r][n] = vf_fma(xv, w[n][j], acc[r][n]);
                        }
                    }
                }
            }
            UNROLL
            for (int n = 0; n < NT; n++)
                step[n] += t->s.step_bytes;
        }
    }
    vf sums[MAX_R * MAX_T];
    UNROLL
    for (int r = 0; r < RM; r++) {
        UNROLL
        for (int n = 0; n < NT; n++)
            sums[r * NT + n] = acc[r][n];
    }
    block_store(t, &b, sums, NT);
}

#include "kernels/simd/mm_wide.h" /* needs weights4 */

#define F32_SOURCES(X)   \
    X(f32_block, W_F32)  \
    X(f32_block, W_F16)  \
    X(f32_block, W_BF16) \
    X(f32_block, W_U2)   \
    X(f32_block, W_U3)   \
    X(f32_block, W_U4)   \
    X(f32_block, W_U8)   \
    X(f32_block, W_U2B)  \
    X(f32_block, W_U3B)  \
    X(f32_block, W_U4B)  \
    X(f32_block, W_U8B)  \
    X(f32_block, W_LUT4) \
    X(f32_block, W_NV4)  \
    X(f32_block, W_E4M3)
F32_SOURCES(WALK_BODIES)
static mm_body *const *const f32_bodies[] = { F32_SOURCES(WALK_ROW) };

static inline void tmpl_mm_f32(const mm_task *t)
{
    if (t->m1 - t->m0 >= WIDE_FROM)
        f32_wide(t);
    else
        walk(t, f32_bodies[w_src_of(&t->w->scheme)]);
}

/* ---- MM_I8 ---- */
/* Whether products with small integers have a shorter way than those with any byte. */
#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)
#define SMALL_TABLES 0
#else
#define SMALL_TABLES 1
#endif
static inline w_src w_src_i8(const mm_task *t)
{
    w_src s = w_src_of(&t->w->scheme);
    return SMALL_TABLES && s == W_LUT4 && t->o.w->table.zero < 16 ? W_LUT4S : s;
}
/* Whether sums are of codes less 128, signed bytes: those of 8 bits, where no instruction
 * multiplies unsigned by signed bytes without loss. */
V16 bool is_signed(w_src src)
{
#if defined(__AVX512F__) || defined(__AVXVNNI__) || defined(__ARM_FEATURE_MATMUL_INT8)
    (void)src;
    return false;
#else
    return src == W_U8 || src == W_LUT4;
#endif
}
/* D - zX of one vector: D the dot product with the codes, of which `dot` lacks 128 X where codes
 * are taken as signed. Every step but the last is exact (integers below 2^24), so a zero point of
 * 128 that meets that 128 needs no step at all. */
V16 vf less_zeros(vi dot, vf z, vf X, w_src src, bool no_zeros)
{
    vf D = vf_from_vi(dot);
    if (is_signed(src)) {
        if (no_zeros) return D;
        D = vf_fma(vf_set1(128), X, D);
    }
    return vf_fnma(z, X, D);
}

/* vi_dot adds to each lane the products of its four unsigned codes and the four int8 activations
 * that all lanes share. Exact in every version, so its order is free. */
#if defined(__AVX512VNNI__)
V16 vi vi_dot(vi acc, vi w, vi x, w_src src)
{
    (void)src;
    return _mm512_dpbusd_epi32(acc, w, x);
}
#elif defined(__AVXVNNI__)
V16 vi vi_dot(vi acc, vi w, vi x, w_src src)
{
    (void)src;
    return (vi){ _mm256_dpbusd_avx_epi32(acc.a, w.a, x.a),
                 _mm256_dpbusd_avx_epi32(acc.b, w.b, x.b) };
}
#elif defined(__ARM_NEON)
#include "kernels/arm/mm_i8_neon.h"
#elif defined(__AVX512F__)
V16 vi vi_dot(vi acc, vi w, vi x, w_src src)
{
    if (src != W_U8 && src != W_LUT4) /* sums of two products below 2^15: 2 * 31 * 127 */
        return vi_add(acc, _mm512_madd_epi16(_mm512_maddubs_epi16(w, x), _mm512_set1_epi16(1)));
    vi low = vi_set1(0x00ff00ff); /* inputs 0, 2 and 1, 3 as pairs of 16 bits */
    vi even = _mm512_madd_epi16(vi_and(w, low), _mm512_srai_epi16(_mm512_slli_epi16(x, 8), 8));
    vi odd = _mm512_madd_epi16(_mm512_srli_epi16(w, 8), _mm512_srai_epi16(x, 8));
    return vi_add(acc, vi_add(even, odd));
}
#endif

/* Activations to int8 blocks; bit for bit ref_mm_quant. */
static inline void tmpl_mm_quant(int8_t *q, float *s, float *qs, const float *x, int64_t n,
                                 int64_t A)
{
    for (int64_t b = 0; b < n / A; b++, x += A, q += A) {
        vi bits = vi_set1(0); /* of magnitudes, which are in order as integers, NaN last */
        for (int64_t i = 0; i < A; i += 16)
            bits = vi_max(bits, vi_cast(vf_abs(vf_load(x + i))));
        const bool finite = vm_all(vf_lt(vf_cast(bits), vf_set1(INFINITY)));
        const float max = vf_top(vf_cast(bits));
        s[b] = !finite ? NAN : max >= MM_I8_TINY ? max / 127.0f : 0.0f;
        if (!finite || max < MM_I8_TINY) {
            memset(q, 0, (size_t)A);
            qs[b] = 0;
            continue;
        }
        vf inv = vf_set1(127.0f / max);
        vi sum = vi_set1(0);
        for (int64_t i = 0; i < A; i += 16) {
            vi v = vi_round(vf_mul(vf_load(x + i), inv));
            sum = vi_add(sum, v);
            vi_store8(q + i, v);
        }
        qs[b] = vf_sum(vf_from_vi(sum)); /* exact: below 2^24 */
    }
}

/* Nearest even, in the upper half of each lane; NaN stays NaN (lq_f32_to_bf16). n: a multiple
 * of 16. */
V16 vi bf16_bits(vf v)
{
    vi u = vi_cast(v), odd = vi_and(vi_srl(u, 16), vi_set1(1));
    vi even = vi_add(vi_add(u, vi_set1(0x7fff)), odd), quiet = vi_or(u, vi_set1(0x400000));
    return vi_and(vi_cast(vf_sel(vf_nan(v), vf_cast(quiet), vf_cast(even))),
                  vi_set1(INT32_C(-65536)));
}
static inline void tmpl_to_bf16(uint16_t *dst, const float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i += 16)
        vi_store16(dst + i, vi_srl(bf16_bits(vf_load(x + i)), 16));
}
static inline void tmpl_round_bf16(float *dst, const float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i += 16)
        vf_store(dst + i, vf_cast(bf16_bits(vf_load(x + i))));
}
