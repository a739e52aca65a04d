/* formats/tensor/tiles.c - the tiled layout: packing, unpacking, and reading one code of it. */
#include "formats/tensor/tiles.h"
#include "formats/tensor/blocks.h"

#include <assert.h>
#include <stdlib.h>

/* ---- one step: 16 rows of 32 codes to and from the vectors of the header's picture ----
 * Where code (r, i) lies: byte 64*v + 4*r + j, shift s; 3 bit adds a high bit elsewhere. */
/* Bits of a code in the vectors before those of the high bits. */
static inline int low_bits(int bits) { return bits == 3 ? 2 : bits == 5 || bits == 6 ? 4 : bits; }

typedef struct {
    int byte, shift;
} place;

static place low_place(int bits, int r, int i)
{
    int j = i & 3, q = i >> 2; /* q: the four inputs, 0..7 */
    const int width = low_bits(bits), per = 8 / width;
    return (place){ 64 * (q / per) + 4 * r + j, q % per * width };
}
/* Of the bits above the low ones, `more` of them. */
static place high_place(int bits, int more, int r, int i)
{
    const int q = i >> 2, j = i & 3, vector = low_bits(bits) + (more == 2 ? q / 4 : 0);
    return (place){ 64 * vector + 4 * r + j, more == 2 ? q % 4 * 2 : q };
}

/* Four inputs of a row are the bytes of a word, moved together. */
enum { FOURS = TILE_K / 4, ONES = 0x01010101 };

LQ_INLINE void encode(uint8_t *dst, uint8_t codes[TILE_N][TILE_K], int bits)
{
    const int width = low_bits(bits), per = 8 / width, more = bits - width;
    const uint32_t low = ((1u << width) - 1u) * (uint32_t)ONES;
    for (int r = 0; r < TILE_N; r++) {
        uint32_t v[FOURS] = { 0 }, high[2] = { 0 };
#pragma GCC unroll 8
        for (int q = 0; q < FOURS; q++) {
            uint32_t c;
            memcpy(&c, &codes[r][4 * q], 4);
            v[q / per] |= (c & low) << (q % per) * width;
            if (more == 1) high[0] |= (c >> width & ONES) << q;
            if (more == 2) high[q / 4] |= (c >> width & 3u * ONES) << 2 * (q % 4);
        }
        for (int i = 0; i < FOURS / per; i++)
            memcpy(dst + 64 * i + 4 * r, &v[i], 4);
        for (int i = 0; i < more; i++)
            memcpy(dst + 64 * (width + i) + 4 * r, &high[i], 4);
    }
}

static void encode_step(uint8_t *dst, uint8_t codes[TILE_N][TILE_K], int bits)
{
#define STEP(b)                  \
    case b:                      \
        encode(dst, codes, (b)); \
        break
    switch (bits) { /* of a known number of bits a compiler unrolls it */
        STEP(1);
        STEP(2);
        STEP(3);
        STEP(4);
        STEP(5);
        STEP(6);
    default:
        encode(dst, codes, 8);
    }
#undef STEP
}

/* Row r of the step to dst + r * stride. */
static inline void decode_step(uint8_t *dst, size_t stride, const uint8_t *step, int bits)
{
    const int width = low_bits(bits), per = 8 / width, more = bits - width;
    const uint32_t low = ((1u << width) - 1u) * (uint32_t)ONES;
    for (int r = 0; r < TILE_N; r++) {
        uint32_t high[2] = { 0 };
        for (int i = 0; i < more; i++)
            memcpy(&high[i], step + 64 * (width + i) + 4 * r, 4);
        for (int q = 0; q < FOURS; q++) {
            uint32_t c;
            memcpy(&c, step + 64 * (q / per) + 4 * r, 4);
            c = c >> (q % per) * width & low;
            if (more == 1) c |= (high[0] >> q & ONES) << width;
            if (more == 2) c |= (high[q / 4] >> 2 * (q % 4) & 3u * ONES) << width;
            memcpy(dst + (size_t)r * stride + 4 * q, &c, 4);
        }
    }
}

/* All places of a tile: 16 rows of Kp codes. */
static void decode_tile(uint8_t *rows, const uint8_t *tile, const tile_shape *ts, int bits)
{
#define STEPS(b)                                                                    \
    for (int64_t p = 0; p < ts->Kp; p += TILE_K)                                    \
        decode_step(rows + p, (size_t)ts->Kp, tile + p / TILE_K * (64 * (b)), (b)); \
    break
    switch (bits) { /* of a known number of bits a compiler unrolls it */
    case 2:
        STEPS(2);
    case 3:
        STEPS(3);
    case 4:
        STEPS(4);
    default:
        STEPS(8);
    }
#undef STEPS
}

unsigned tiles_code(const uint8_t *codes, int bits, int r, int64_t p)
{
    const uint8_t *step = codes + p / TILE_K * (64 * bits);
    int i = (int)(p % TILE_K);
    place at = low_place(bits, r, i);
    unsigned c = (unsigned)step[at.byte] >> at.shift;
    if (bits != 3 && bits != 5 && bits != 6) return c & ((1u << bits) - 1u);
    const int width = low_bits(bits), more = bits - width;
    const place hi = high_place(bits, more, r, i);
    return (c & ((1u << width) - 1u)) | ((unsigned)step[hi.byte] >> hi.shift & ((1u << more) - 1u))
                                            << width;
}

/* Element (place p, row r) of a dense tile, counted in elements. */
static size_t dense_at(lq_dtype d, int r, int64_t p)
{
    if (d == LQ_F32) return (size_t)(p * TILE_N + r);
    return (size_t)((p / 2 * TILE_N + r) * 2 + p % 2);
}

float tiles_dense(const uint8_t *tile, lq_dtype d, int r, int64_t p)
{
    float f;
    lq_to_f32(&f, tile + dense_at(d, r, p) * lq_dtype_bytes(d), d, 1);
    return f;
}

/* ---- pack ---- */
static void put_i32(void *p, int64_t i, int32_t v) { memcpy((uint8_t *)p + 4 * i, &v, 4); }

void tiles_pack_shared(void *const w[QT_N_PLANES], const qt_tensor *t)
{
    const qt_scheme *s = &t->scheme;
    if (s->kind == QT_UINT && s->act_order) {
        /* Group g's inputs, rising, take places g*G ..: a counting sort whose buckets all hold G,
         * one pass per group kept cheap by remembering where each group stands. */
        int64_t ng = t->K / s->group;
        const void *gidx = t->plane[QT_GIDX].data;
        int32_t *perm = w[QT_GIDX];
        /* The last place of each bucket counts how many it has, until its own input arrives. */
        for (int64_t g = 0; g < ng; g++)
            perm[g * s->group + s->group - 1] = 0;
        for (int64_t k = 0; k < t->K; k++) {
            int32_t *bucket = perm + qt_get_i32(gidx, k) * s->group;
            int32_t have = bucket[s->group - 1];
            if (have + 1 < s->group) bucket[s->group - 1] = have + 1;
            bucket[have] = (int32_t)k;
        }
    }
    if (s->kind == QT_I8_OUTLIER && s->n_out)
        memcpy(w[QT_OUT_IDX], t->plane[QT_OUT_IDX].data, (size_t)s->n_out * 4);
    if (s->kind == QT_LUT4 && w[QT_MAP]) memcpy(w[QT_MAP], t->plane[QT_MAP].data, 64);
}

/* Copy a row-major [N,K] matrix of 2- or 4-byte elements into dense tiles t0..t1. A tile is a
 * matrix of words [places][16 rows]: a word is one f32, or two neighbouring 16-bit inputs. */
static void pack_dense(uint8_t *dst, const uint8_t *src, lq_dtype d, int64_t N, int64_t K,
                       int64_t t0, int64_t t1)
{
    size_t e = lq_dtype_bytes(d), row_bytes = (size_t)K * e;
    size_t bytes = lq_round_up((size_t)K, TILE_K) * TILE_N * e;
    for (int64_t t = t0; t < t1; t++) {
        uint8_t *tile = dst + (size_t)t * bytes;
        int64_t rows = N - t * TILE_N < TILE_N ? N - t * TILE_N : TILE_N;
        memset(tile, 0, bytes);
        for (size_t at = 0; at < row_bytes; at += 4)
            for (int64_t r = 0; r < rows; r++)
                memcpy(tile + at * TILE_N + 4 * r, src + (size_t)(t * TILE_N + r) * row_bytes + at,
                       row_bytes - at < 4 ? row_bytes - at : 4);
    }
}

static unsigned portable_code(const qt_tensor *t, int64_t n, int64_t k)
{
    const uint8_t *codes = t->plane[QT_CODES].data;
    int64_t i = n * t->K + k;
    switch (t->scheme.kind) {
    case QT_UINT:
        return qt_get(codes + (size_t)n * qt_row_bytes(t->K, t->scheme.bits), k, t->scheme.bits);
    case QT_E2M1:
        return qt_get(codes + (size_t)n * qt_row_bytes(t->K, 4), k, 4);
    case QT_E4M3:
        return codes[i];
    case QT_LUT4:
        return i & 1 ? codes[i / 2] & 15u : codes[i / 2] >> 4;
    default:
        return codes[i] ^ 0x80u; /* int8 + 128 */
    }
}

/* A word of codes in portable order (8 nibbles, or 16 codes of 2 bits) to a lane's word: byte j
 * holds inputs j, 4+j, ... from its low bits up. For 2 bits that is the transpose of a 4 x 4
 * matrix, by two delta swaps. */
static uint32_t lane_word(uint32_t w, int bits)
{
    if (bits == 4) {
        uint32_t lo = w & 0xffffu, hi = w >> 16;
        lo = (lo | lo << 8) & 0x00ff00ffu;
        hi = (hi | hi << 8) & 0x00ff00ffu;
        lo = (lo | lo << 4) & 0x0f0f0f0fu;
        hi = (hi | hi << 4) & 0x0f0f0f0fu;
        return lo | hi << 4;
    }
    if (bits == 2) {
        uint32_t t = ((w >> 6) ^ w) & 0x00cc00ccu;
        w ^= t ^ t << 6;
        t = ((w >> 12) ^ w) & 0x0000f0f0u;
        return w ^ t ^ t << 12;
    }
    return w;
}

/* The usual step, a word at a time: 32 inputs from k on that lie together and begin on a byte.
 * False: not of that form, nothing done. */
static bool pack_step_words(uint8_t *dst, const qt_tensor *t, int64_t n0, int64_t k, int bits)
{
    if (bits == 3 || k % TILE_K || (t->scheme.kind == QT_LUT4 && t->K % 2)) return false;
    size_t row_bytes = qt_row_bytes(t->K, bits);
    int64_t rows = t->N - n0 < TILE_N ? t->N - n0 : TILE_N;
    const uint8_t *src =
        (const uint8_t *)t->plane[QT_CODES].data + (size_t)n0 * row_bytes + (size_t)(k * bits / 8);
    bool high_first = t->scheme.kind == QT_LUT4;
    uint32_t flip = t->scheme.kind == QT_I8 || t->scheme.kind == QT_I8_OUTLIER ? 0x80808080u : 0;
    memset(dst, 0, (size_t)(64 * bits));
    for (int v = 0; v < bits; v++)
        for (int64_t r = 0; r < rows; r++) {
            uint32_t w;
            memcpy(&w, src + (size_t)r * row_bytes + 4 * v, 4);
            if (high_first) w = (w & 0x0f0f0f0fu) << 4 | (w >> 4 & 0x0f0f0f0fu);
            w = lane_word(w, bits) ^ flip;
            memcpy(dst + 64 * v + 4 * r, &w, 4);
        }
    return true;
}

static void pack_codes(uint8_t *tile, const qt_tensor *t, const tile_shape *ts, const int32_t *perm,
                       int64_t tile_no)
{
    int bits = tiles_bits(&t->scheme);
    uint8_t codes[TILE_N][TILE_K];
    for (int64_t p = 0; p < ts->Kp; p += TILE_K, tile += ts->step_bytes) {
        int64_t g = p / ts->Gp, first = p % ts->Gp; /* inputs first.. of group g */
        int64_t left = (ts->G < t->K - g * ts->G ? ts->G : t->K - g * ts->G) - first;
        int64_t n_in = left < TILE_K ? left : TILE_K; /* padding: 0 or below */
        if (!perm && n_in == TILE_K &&
            pack_step_words(tile, t, tile_no * TILE_N, g * ts->G + first, bits))
            continue;
        memset(codes, 0, sizeof codes);
        for (int r = 0; r < TILE_N && tile_no * TILE_N + r < t->N; r++)
            for (int64_t i = 0; i < n_in; i++) {
                int64_t k = g * ts->G + first + i;
                codes[r][i] = (uint8_t)portable_code(t, tile_no * TILE_N + r, perm ? perm[k] : k);
            }
        encode_step(tile, codes, bits);
    }
}

/* Where the scale of row n, group g, part `sub` of it stands in the portable plane, in scales;
 * false: beyond the last input, none. */
static bool scale_at(size_t *at, const qt_tensor *t, const tile_shape *ts, int64_t n, int64_t g,
                     int64_t sub)
{
    const qt_scheme *s = &t->scheme;
    int64_t per_row = s->kind == QT_E2M1 ? t->K / s->group : ts->ng;
    if (s->kind == QT_E4M3) n = s->rows ? n / s->rows : 0;
    *at = (size_t)(n * per_row + g * ts->subs + sub);
    return g * ts->subs + sub < per_row;
}

/* Scales and zeros of row r of a tile and group g to their places in the tiled planes. */
static void pack_side(void *const w[QT_N_PLANES], const qt_tensor *t, const tile_shape *ts,
                      int64_t tile, int r, int64_t g)
{
    const qt_scheme *s = &t->scheme;
    const int64_t n = tile * TILE_N + r;
    const size_t e = tiles_scale_bytes(s), ze = tiles_zero_bytes(s);
    uint8_t *scales = w[QT_SCALES], *zeros = w[QT_ZEROS];
    for (int64_t sub = 0; sub < ts->subs; sub++) {
        size_t from, to = (size_t)(((tile * ts->ng + g) * ts->subs + sub) * TILE_N + r);
        if (!scale_at(&from, t, ts, n, g, sub)) continue;
        if (s->kind == QT_LUT4) {
            float a = qt_lut_absmax(t, (int64_t)from);
            memcpy(scales + to * e, &a, e);
        } else {
            memcpy(scales + to * e, (const uint8_t *)t->plane[QT_SCALES].data + from * e, e);
        }
    }
    const uint8_t *z = t->plane[QT_ZEROS].data;
    const size_t to = (size_t)((tile * ts->ng + g) * TILE_N + r);
    if (s->zero == QT_ZERO_INT && s->kind == QT_I8)
        zeros[to] = z[n] ^ 0x80u;
    else if (s->zero == QT_ZERO_INT)
        zeros[to] = (uint8_t)qt_get(z + (size_t)n * qt_row_bytes(ts->ng, s->zbits), g, s->zbits);
    else if (ze)
        memcpy(zeros + to * ze, z + (size_t)(n * ts->ng + g) * ze, ze);
}

/* Row n's second scale; of rows that share one, each has it. */
static void pack_scale2(void *const w[QT_N_PLANES], const qt_tensor *t, int64_t n)
{
    if (t->scheme.kind != QT_E2M1 || !w[QT_SCALES2]) return;
    memcpy((uint8_t *)w[QT_SCALES2] + 4 * n,
           (const uint8_t *)t->plane[QT_SCALES2].data +
               4 * (t->scheme.rows ? n / t->scheme.rows : 0),
           4);
}

/* Tile i of QT_BLOCKS. */
static void pack_blocks(void *const w[QT_N_PLANES], const qt_tensor *t, const tile_shape *ts,
                        int64_t i)
{
    const blk_type *type = blk_find(t->scheme.blocks);
    const int64_t left = t->N - i * TILE_N, rows = left < TILE_N ? left : TILE_N;
    const int64_t groups = t->K / type->group, halves = type->bias ? 2 : 1;
    const size_t row = blk_row_bytes(type, t->K);
    const uint8_t *from = (const uint8_t *)t->plane[QT_CODES].data + (size_t)(i * TILE_N) * row;
    uint8_t *codes = (uint8_t *)w[QT_CODES] + (size_t)i * ts->tile_bytes;
    int8_t *sc = type->fine ? (int8_t *)w[QT_SCALES] + i * groups * TILE_N : NULL;
    uint8_t *m = sc && type->bias ? (uint8_t *)w[QT_ZEROS] + i * groups * TILE_N : NULL;
    uint8_t *d = (uint8_t *)w[QT_SCALES2] + i * (t->K / type->elements) * halves * TILE_N * 2;
    blk_parts b[TILE_N] = { { { 0 }, { 0 }, { 0 }, 0, 0 } };
    for (int64_t k = 0; k < t->K; k += type->elements, from += type->bytes) {
        for (int64_t r = 0; r < rows; r++)
            blk_take(&b[r], type, from + (size_t)r * row);
        for (int at = 0; at < type->elements; at += TILE_K, codes += ts->step_bytes) {
            uint8_t step[TILE_N][TILE_K];
            for (int r = 0; r < TILE_N; r++)
                memcpy(step[r], b[r].code + at, TILE_K);
            encode_step(codes, step, type->bits);
        }
        for (int g = 0; sc && g < type->elements / type->group; g++)
            for (int r = 0; r < TILE_N; r++) {
                *sc++ = b[r].sc[g];
                if (m) *m++ = b[r].m[g];
            }
        for (int64_t h = 0; h < halves; h++)
            for (int r = 0; r < TILE_N; r++, d += 2)
                memcpy(d, h ? &b[r].dmin : &b[r].d, 2);
    }
}

blk_group tiles_group(const qt_tensor *t, const blk_type *type, int64_t tile, int64_t k, int r)
{
    const int64_t at = (tile * (t->K / type->group) + k / type->group) * TILE_N + r;
    const int64_t halves = type->bias ? 2 : 1;
    const int64_t block = (tile * (t->K / type->elements) + k / type->elements) * halves;
    const uint8_t *d = (const uint8_t *)t->plane[QT_SCALES2].data + 2 * (block * TILE_N + r);
    blk_parts b = { .sc = { 1 }, .m = { 1 } };
    memcpy(&b.d, d, 2);
    if (type->bias) memcpy(&b.dmin, d + 2 * TILE_N, 2);
    if (type->fine) b.sc[0] = ((const int8_t *)t->plane[QT_SCALES].data)[at];
    if (type->fine && type->bias) b.m[0] = ((const uint8_t *)t->plane[QT_ZEROS].data)[at];
    return (blk_group){ blk_scale(type, &b, 0), type->bias ? blk_bias(type, &b, 0) : 0 };
}

void tiles_blocks(float *dst, const qt_tensor *t, int64_t tile)
{
    const blk_type *type = blk_find(t->scheme.blocks);
    const tile_shape ts = tiles_shape(&t->scheme, t->N, t->K);
    const uint8_t *codes = (const uint8_t *)t->plane[QT_CODES].data + (size_t)tile * ts.tile_bytes;
    for (int64_t k = 0; k < t->K; k += TILE_K, codes += ts.step_bytes) {
        uint8_t step[TILE_N][TILE_K];
        decode_step(step[0], TILE_K, codes, type->bits);
        for (int r = 0; r < TILE_N; r++)
            for (int at = 0; at < TILE_K; at += type->group) {
                const blk_group g = tiles_group(t, type, tile, k + at, r);
                for (int i = at; i < at + type->group; i++) {
                    const float v = g.scale * (float)blk_value(type, step[r][i]);
                    dst[(k + i) * TILE_N + r] = type->bias ? v + g.bias : v;
                }
            }
    }
}

void tiles_pack(void *const w[QT_N_PLANES], const qt_tensor *t, int64_t t0, int64_t t1)
{
    const qt_scheme *s = &t->scheme;
    qt_scheme to = tiles_scheme(s, t->N, t->K);
    tile_shape ts = tiles_shape(&to, t->N, t->K);
    if (s->kind == QT_DENSE) {
        pack_dense(w[QT_CODES], t->plane[QT_CODES].data, s->dtype, t->N, t->K, t0, t1);
        return;
    }
    if (to.kind == QT_DENSE) { /* LUT4 with blocks across rows */
        uint8_t *codes = w[QT_CODES];
        for (int64_t i = t0; i < t1; i++) {
            memset(codes + (size_t)i * ts.tile_bytes, 0, ts.tile_bytes);
            for (int r = 0; r < TILE_N && i * TILE_N + r < t->N; r++)
                for (int64_t k = 0; k < t->K; k++) {
                    int64_t at = (i * TILE_N + r) * t->K + k;
                    float m, v;
                    memcpy(&m,
                           (const uint8_t *)t->plane[QT_MAP].data +
                               4 * portable_code(t, i * TILE_N + r, k),
                           4);
                    v = m * qt_lut_absmax(t, at / s->group);
                    memcpy(codes + (size_t)i * ts.tile_bytes + dense_at(LQ_F32, r, k) * 4, &v, 4);
                }
        }
        return;
    }
    if (s->kind == QT_BLOCKS) {
        for (int64_t i = t0; i < t1; i++)
            pack_blocks(w, t, &ts, i);
        return;
    }
    const int32_t *perm = s->kind == QT_UINT && s->act_order ? w[QT_GIDX] : NULL;
    size_t side_bytes = qt_plane_bytes(&to, QT_TILE16, t->N, t->K, QT_SCALES) / (size_t)ts.tiles;
    size_t zero_bytes = qt_plane_bytes(&to, QT_TILE16, t->N, t->K, QT_ZEROS) / (size_t)ts.tiles;
    for (int64_t i = t0; i < t1; i++) {
        pack_codes((uint8_t *)w[QT_CODES] + (size_t)i * ts.tile_bytes, t, &ts, perm, i);
        memset((uint8_t *)w[QT_SCALES] + (size_t)i * side_bytes, 0, side_bytes);
        if (zero_bytes) memset((uint8_t *)w[QT_ZEROS] + (size_t)i * zero_bytes, 0, zero_bytes);
        for (int r = 0; r < TILE_N && i * TILE_N + r < t->N; r++) {
            for (int64_t g = 0; g < ts.ng; g++)
                pack_side(w, t, &ts, i, r, g);
            pack_scale2(w, t, i * TILE_N + r);
        }
    }
    if (s->kind == QT_I8_OUTLIER && s->n_out)
        pack_dense(w[QT_OUT_VALS], t->plane[QT_OUT_VALS].data, LQ_BF16, t->N, s->n_out, t0, t1);
}

/* ---- unpack ---- */
static void unpack_dense(uint8_t *dst, const uint8_t *tiles, lq_dtype d, int64_t N, int64_t K,
                         int64_t t0, int64_t t1)
{
    const size_t e = lq_dtype_bytes(d), row_bytes = (size_t)K * e;
    const size_t bytes = lq_round_up((size_t)K, TILE_K) * TILE_N * e;
    for (int64_t t = t0; t < t1; t++)
        for (size_t at = 0; at < row_bytes; at += 4)
            for (int64_t n = t * TILE_N; n < (t + 1) * TILE_N && n < N; n++)
                memcpy(dst + (size_t)n * row_bytes + at,
                       tiles + (size_t)t * bytes + at * TILE_N + 4 * (n % TILE_N),
                       row_bytes - at < 4 ? row_bytes - at : 4);
}

static void unpack_side(void *const w[QT_N_PLANES], const qt_tensor *t, const tile_shape *ts,
                        int64_t n, uint8_t *row)
{
    const qt_scheme *s = &t->scheme;
    const size_t e = tiles_scale_bytes(s), ze = tiles_zero_bytes(s);
    const uint8_t *scales = t->plane[QT_SCALES].data, *zeros = t->plane[QT_ZEROS].data;
    const bool first = s->rows ? n % s->rows == 0 : n == 0; /* of rows that share a scale */
    for (int64_t g = 0; g < ts->ng; g++) {
        int64_t group = n / TILE_N * ts->ng + g, r = n % TILE_N;
        size_t from = (size_t)(group * TILE_N + r), to;
        for (int64_t sub = 0; sub < ts->subs && (first || s->kind != QT_E4M3); sub++)
            if (scale_at(&to, t, ts, n, g, sub))
                memcpy((uint8_t *)w[QT_SCALES] + to * e,
                       scales + (size_t)((group * ts->subs + sub) * TILE_N + r) * e, e);
        if (s->zero == QT_ZERO_INT && s->kind == QT_I8)
            ((uint8_t *)w[QT_ZEROS])[n] = zeros[from] ^ 0x80u;
        else if (s->zero == QT_ZERO_INT)
            row[g] = zeros[from];
        else if (ze)
            memcpy((uint8_t *)w[QT_ZEROS] + (size_t)(n * ts->ng + g) * ze, zeros + from * ze, ze);
    }
    if (s->zero == QT_ZERO_INT && s->kind == QT_UINT)
        qt_pack_row((uint8_t *)w[QT_ZEROS] + (size_t)n * qt_row_bytes(ts->ng, s->zbits), row,
                    ts->ng, s->zbits);
    if (s->kind == QT_E2M1 && w[QT_SCALES2] && first)
        memcpy((uint8_t *)w[QT_SCALES2] + 4 * (s->rows ? n / s->rows : 0),
               (const uint8_t *)t->plane[QT_SCALES2].data + 4 * n, 4);
}

/* Codes of a row in the order of its inputs, from that of its places. */
static const uint8_t *in_order(uint8_t *row, const uint8_t *places, const qt_tensor *t,
                               const tile_shape *ts)
{
    const qt_scheme *s = &t->scheme;
    const void *perm = s->kind == QT_UINT && s->act_order ? t->plane[QT_GIDX].data : NULL;
    if (!perm && ts->G == ts->Gp) return places;
    for (int64_t k = 0; k < t->K; k += ts->G, places += ts->Gp) {
        const int64_t n = ts->G < t->K - k ? ts->G : t->K - k;
        if (!perm) memcpy(row + k, places, (size_t)n);
        for (int64_t i = 0; i < n && perm; i++)
            row[qt_get_i32(perm, k + i)] = places[i];
    }
    return row;
}

static void put_codes(uint8_t *codes, const qt_tensor *t, int64_t n, const uint8_t *row)
{
    const qt_scheme *s = &t->scheme;
    const int64_t K = t->K;
    if (s->kind == QT_UINT || s->kind == QT_E2M1) {
        const int bits = tiles_bits(s);
        qt_pack_row(codes + (size_t)n * qt_row_bytes(K, bits), row, K, bits);
    } else if (s->kind == QT_E4M3) {
        memcpy(codes + n * K, row, (size_t)K);
    } else if (s->kind != QT_LUT4) {
        for (int64_t k = 0; k < K; k++)
            codes[n * K + k] = row[k] ^ 0x80u;
    } else if (K % 2 == 0) {
        for (int64_t k = 0; k < K; k += 2)
            codes[(n * K + k) / 2] = (uint8_t)(row[k] << 4 | row[k + 1]);
    } else {
        for (int64_t k = 0; k < K; k++) {
            const int64_t i = n * K + k;
            if (i & 1)
                codes[i / 2] = (uint8_t)((codes[i / 2] & 0xf0u) | row[k]);
            else
                codes[i / 2] = (uint8_t)(row[k] << 4); /* the last low nibble is 0 */
        }
    }
}

size_t tiles_scratch(const qt_tensor *t)
{
    return (size_t)tiles_shape(&t->scheme, t->N, t->K).Kp * (TILE_N + 1);
}

void tiles_unpack_part(void *const w[QT_N_PLANES], const qt_tensor *t, int64_t t0, int64_t t1,
                       uint8_t *scratch)
{
    const qt_scheme *s = &t->scheme;
    const tile_shape ts = tiles_shape(s, t->N, t->K);
    const uint8_t *tiles = t->plane[QT_CODES].data;
    if (s->kind == QT_DENSE) {
        unpack_dense(w[QT_CODES], tiles, s->dtype, t->N, t->K, t0, t1);
        return;
    }
    uint8_t *row = scratch + ts.Kp * TILE_N;
    for (int64_t i = t0; i < t1; i++) {
        decode_tile(scratch, tiles + (size_t)i * ts.tile_bytes, &ts, tiles_bits(s));
        for (int64_t r = 0; r < TILE_N && i * TILE_N + r < t->N; r++) {
            const int64_t n = i * TILE_N + r;
            put_codes(w[QT_CODES], t, n, in_order(row, scratch + r * ts.Kp, t, &ts));
            unpack_side(w, t, &ts, n, row);
        }
    }
    if (s->kind == QT_I8_OUTLIER && s->n_out)
        unpack_dense(w[QT_OUT_VALS], t->plane[QT_OUT_VALS].data, LQ_BF16, t->N, s->n_out, t0, t1);
}

void tiles_unpack_shared(void *const w[QT_N_PLANES], const qt_tensor *t)
{
    const qt_scheme *s = &t->scheme;
    for (int64_t at = 0; at < t->K && s->kind == QT_UINT && s->act_order; at++)
        put_i32(w[QT_GIDX], qt_get_i32(t->plane[QT_GIDX].data, at), (int32_t)(at / s->group));
    if (s->kind == QT_I8_OUTLIER && s->n_out)
        memcpy(w[QT_OUT_IDX], t->plane[QT_OUT_IDX].data, (size_t)s->n_out * 4);
    if (s->kind == QT_LUT4) memcpy(w[QT_MAP], t->plane[QT_MAP].data, 64);
}

lq_status tiles_unpack(void *const w[QT_N_PLANES], const qt_tensor *t, lq_err *err)
{
    if (t->layout != QT_TILE16) return lq_fail(err, LQ_EVALUE, "expected a tile16 tensor");
    uint8_t *scratch = malloc(tiles_scratch(t));
    if (!scratch)
        return lq_fail(err, LQ_ENOMEM, "no memory for a tile of %lld inputs", (long long)t->K);
    tiles_unpack_part(w, t, 0, lq_ceil_div(t->N, TILE_N), scratch);
    tiles_unpack_shared(w, t);
    free(scratch);
    return LQ_OK;
}

bool tiles_rows(qt_tensor *out, const qt_tensor *t, int64_t n0, int64_t n1)
{
    *out = *t;
    if (t->layout != QT_TILE16 || n0 < 0 || n1 > t->N || n0 >= n1 || n0 % TILE_N) return false;
    if (n1 % TILE_N && n1 != t->N) return false;
    const size_t tiles = (size_t)lq_ceil_div(t->N, TILE_N), from = (size_t)(n0 / TILE_N);
    const size_t n = (size_t)lq_ceil_div(n1, TILE_N) - from;
    out->N = n1 - n0;
    for (int p = 0; p < QT_N_PLANES; p++) {
        const bool shared = p == QT_GIDX || p == QT_OUT_IDX || p == QT_MAP || p == QT_MAP2;
        const size_t one = t->plane[p].bytes / tiles;
        if (shared || !one) continue;
        out->plane[p].data = (const uint8_t *)t->plane[p].data + from * one;
        out->plane[p].bytes = n * one;
    }
    return true;
}

/* ---- parts ---- */

int64_t tiles_unit(const qt_scheme *s)
{
    const int bits = tiles_bits(s);
    return bits == 3 ? TILE_K : 32 / bits;
}

/* Where inputs may be cut, but for the end. */
static int64_t cut_step(const qt_tensor *t)
{
    const tile_shape ts = tiles_shape(&t->scheme, t->N, t->K);
    return ts.ng > 1 || t->scheme.kind == QT_E2M1 ? ts.G : tiles_unit(&t->scheme);
}

/* Outlier columns before input k. */
static int64_t outliers_below(const qt_tensor *t, int64_t k)
{
    int64_t n = 0;
    while (n < t->scheme.n_out && qt_get_i32(t->plane[QT_OUT_IDX].data, n) < k)
        n++;
    return n;
}

static lq_status check_inputs(const qt_tensor *t, int64_t k0, int64_t k1, lq_err *err)
{
    const qt_scheme *s = &t->scheme;
    const int64_t step = cut_step(t);
    if (k0 == 0 && k1 == t->K) return LQ_OK;
    if (s->kind == QT_UINT && s->act_order)
        return lq_fail(
            err, LQ_EUNSUPPORTED,
            "inputs %lld..%lld of %lld: the groups are of inputs in an order of their own",
            (long long)k0, (long long)k1, (long long)t->K);
    if (k0 % step || (k1 % step && k1 != t->K))
        return lq_fail(err, LQ_ESHAPE, "inputs %lld..%lld of %lld: expected multiples of %lld, %s",
                       (long long)k0, (long long)k1, (long long)t->K, (long long)step,
                       tiles_shape(s, t->N, t->K).ng > 1 ? "a group" : "which lie together");
    const int64_t rounded = s->act_scale > 0 ? 1 : s->act_group;
    if (s->act && (!rounded || k0 % rounded || (k1 % rounded && k1 != t->K)))
        return lq_fail(err, LQ_EUNSUPPORTED,
                       "inputs %lld..%lld of %lld: they are rounded by the largest of %s",
                       (long long)k0, (long long)k1, (long long)t->K,
                       rounded ? "groups that this cuts" : "all");
    return LQ_OK;
}

lq_status tiles_part(qt_tensor *part, const qt_tensor *t, const tile_rows *rows, int n, int64_t k0,
                     int64_t k1, lq_err *err)
{
    assert(t->layout == QT_TILE16 && k0 >= 0 && k0 < k1 && k1 <= t->K);
    lq_status s = check_inputs(t, k0, k1, err);
    if (s) return s;
    *part = (qt_tensor){ .scheme = t->scheme, .layout = QT_TILE16, .K = k1 - k0 };
    for (int i = 0; i < n; i++) {
        assert(rows[i].n0 >= 0 && rows[i].n0 <= rows[i].n1 && rows[i].n1 <= t->N);
        part->N += rows[i].n1 - rows[i].n0;
    }
    qt_scheme *to = &part->scheme;
    if (to->rows) to->rows = 1; /* once tiled, each has its own scale */
    if ((to->kind == QT_UINT || to->kind == QT_LUT4) && to->group > part->K) to->group = part->K;
    to->n_out = outliers_below(t, k1) - outliers_below(t, k0);
    for (int p = 0; p < QT_N_PLANES; p++)
        part->plane[p].bytes = qt_plane_bytes(to, QT_TILE16, part->N, part->K, (qt_plane)p);
    return LQ_OK;
}

/* A plane of vectors of 16 rows of `lane` bytes: of each tile the n from `first` on. */
typedef struct {
    uint8_t *dst;
    const uint8_t *src;
    size_t dst_tile, src_tile, first, n, lane; /* tiles: in vectors */
} lanes;

static void cut_lanes(const lanes *l, const tile_rows *rows, int n_ranges)
{
    const size_t vector = TILE_N * l->lane;
    int64_t to = 0;
    for (int i = 0; i < n_ranges; i++)
        for (int64_t n = rows[i].n0, step; n < rows[i].n1; n += step, to += step) {
            const int64_t left = rows[i].n1 - n;
            const bool whole = n % TILE_N == 0 && to % TILE_N == 0 && left >= TILE_N;
            uint8_t *d = l->dst + (size_t)(to / TILE_N) * l->dst_tile * vector;
            const uint8_t *s = l->src + ((size_t)(n / TILE_N) * l->src_tile + l->first) * vector;
            step = whole ? TILE_N : 1;
            if (whole) {
                memcpy(d, s, l->n * vector);
                continue;
            }
            d += (size_t)(to % TILE_N) * l->lane;
            s += (size_t)(n % TILE_N) * l->lane;
            for (size_t v = 0; v < l->n; v++)
                memcpy(d + v * vector, s + v * vector, l->lane);
        }
}

static void cut_outliers(void *const w[QT_N_PLANES], const qt_tensor *part, const qt_tensor *t,
                         const tile_rows *rows, int n, int64_t k0)
{
    const int64_t o = outliers_below(t, k0), count = part->scheme.n_out;
    const size_t from = lq_round_up((size_t)t->scheme.n_out, TILE_K) * TILE_N;
    const size_t into = lq_round_up((size_t)count, TILE_K) * TILE_N;
    const uint8_t *src = t->plane[QT_OUT_VALS].data;
    uint8_t *dst = w[QT_OUT_VALS];
    int64_t to = 0;
    for (int64_t i = 0; i < count; i++)
        put_i32(w[QT_OUT_IDX], i, qt_get_i32(t->plane[QT_OUT_IDX].data, o + i) - (int32_t)k0);
    for (int r = 0; r < n; r++)
        for (int64_t row = rows[r].n0; row < rows[r].n1; row++, to++)
            for (int64_t i = 0; i < count; i++)
                memcpy(dst + 2 * ((size_t)(to / TILE_N) * into +
                                  dense_at(LQ_BF16, (int)(to % TILE_N), i)),
                       src + 2 * ((size_t)(row / TILE_N) * from +
                                  dense_at(LQ_BF16, (int)(row % TILE_N), o + i)),
                       2);
}

/* Scales and biases of QT_BLOCKS, of all inputs. */
static void cut_blocks(void *const w[QT_N_PLANES], const qt_tensor *t, const tile_rows *rows, int n)
{
    const blk_type *type = blk_find(t->scheme.blocks);
    const size_t groups = (size_t)(t->K / type->group), blocks = (size_t)(t->K / type->elements);
    const size_t d = blocks * (type->bias ? 2 : 1);
    const struct {
        qt_plane p;
        size_t n, lane;
    } sides[] = { { QT_SCALES, groups, 1 }, { QT_ZEROS, groups, 1 }, { QT_SCALES2, d, 2 } };
    for (size_t i = 0; i < LQ_COUNT(sides); i++) {
        const qt_span *from = &t->plane[sides[i].p];
        if (!from->bytes) continue;
        cut_lanes(&(lanes){ w[sides[i].p], from->data, sides[i].n, sides[i].n, 0, sides[i].n,
                            sides[i].lane },
                  rows, n);
    }
}

void tiles_cut(void *const w[QT_N_PLANES], const qt_tensor *part, const qt_tensor *t,
               const tile_rows *rows, int n, int64_t k0)
{
    const qt_scheme *s = &t->scheme;
    const tile_shape all = tiles_shape(s, t->N, t->K);
    const tile_shape own = tiles_shape(&part->scheme, part->N, part->K);
    const size_t bits = (size_t)tiles_bits(s), word = 4; /* a code vector is 16 words */
    const size_t g0 = (size_t)(k0 / all.G), ng = (size_t)own.ng, subs = (size_t)all.subs;
    const size_t first = all.ng > 1 ? g0 * (size_t)all.Gp : (size_t)k0;
    const size_t unit = (size_t)tiles_unit(s);
    const size_t places = all.ng > 1 ? (size_t)own.Kp : lq_round_up((size_t)part->K, unit);
#define VECTORS(p) ((p)*bits / 32)
    const lanes codes = { w[QT_CODES],
                          t->plane[QT_CODES].data,
                          VECTORS((size_t)own.Kp),
                          VECTORS((size_t)all.Kp),
                          VECTORS(first),
                          VECTORS(places),
                          word };
#undef VECTORS
    for (int p = 0; p < QT_N_PLANES; p++)
        if (part->plane[p].bytes) memset(w[p], 0, part->plane[p].bytes);
    cut_lanes(&codes, rows, n);
    if (s->kind == QT_BLOCKS) {
        assert(part->K == t->K);
        cut_blocks(w, t, rows, n);
        return;
    }
    if (part->plane[QT_SCALES].bytes)
        cut_lanes(&(lanes){ w[QT_SCALES], t->plane[QT_SCALES].data, ng * subs,
                            (size_t)all.ng * subs, g0 * subs, ng * subs, tiles_scale_bytes(s) },
                  rows, n);
    if (part->plane[QT_ZEROS].bytes)
        cut_lanes(&(lanes){ w[QT_ZEROS], t->plane[QT_ZEROS].data, ng, (size_t)all.ng, g0, ng,
                            tiles_zero_bytes(s) },
                  rows, n);
    if (part->plane[QT_SCALES2].bytes)
        cut_lanes(&(lanes){ w[QT_SCALES2], t->plane[QT_SCALES2].data, 1, 1, 0, 1, sizeof(float) },
                  rows, n);
    if (part->plane[QT_OUT_VALS].bytes) cut_outliers(w, part, t, rows, n, k0);
    if (part->plane[QT_GIDX].bytes)
        memcpy(w[QT_GIDX], t->plane[QT_GIDX].data, part->plane[QT_GIDX].bytes);
    if (part->plane[QT_MAP].bytes)
        memcpy(w[QT_MAP], t->plane[QT_MAP].data, part->plane[QT_MAP].bytes);
}
