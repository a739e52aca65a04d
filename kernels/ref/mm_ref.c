/* kernels/ref/mm_ref.c - the matmuls in plain C: decode 32 weights of one output, use them for each
 * row. The definition of the results (mm.h); every faster version equals it to the bit. */
#include "kernels/core/k_ops.h"
#include "kernels/ref/ref.h"

enum { ROWS = 64 }; /* rows that share a decoded step */

/* What a step decodes from: row r of a tile. */
typedef struct {
    const mm_task *t;
    const uint8_t *tile;
    int64_t tile_no;
    int bits, r;
    float map[16];
} decoder;

static decoder decoder_for(const mm_task *t, int64_t tile, int r)
{
    const qt_tensor *w = t->w;
    decoder d = { .t = t, .tile_no = tile, .r = r, .bits = tiles_bits(&w->scheme) };
    d.tile = (const uint8_t *)w->plane[QT_CODES].data + (size_t)tile * t->s.tile_bytes;
    if (w->scheme.kind == QT_LUT4) memcpy(d.map, w->plane[QT_MAP].data, sizeof d.map);
    if (w->scheme.kind == QT_E2M1) memcpy(d.map, qt_e2m1, sizeof d.map);
    return d;
}

/* One weight from its code. */
static float weight(const decoder *d, unsigned c, float scale, float zero)
{
    const qt_scheme *s = &d->t->w->scheme;
    switch (s->kind) {
    case QT_LUT4:
    case QT_E2M1:
        return d->map[c] * scale;
    case QT_E4M3:
        return lq_e4m3_to_f32((uint8_t)c) * scale;
    default:
        return s->zero == QT_ZERO_BIAS ? scale * (float)c + zero : scale * ((float)c - zero);
    }
}

/* The weights of places p..p+31, which lie in one group, in f32 as qt_dequant reads them. */
static void decode(float w[TILE_K], const decoder *d, int64_t p)
{
    const mm_task *t = d->t;
    const qt_scheme *s = &t->w->scheme;
    if (s->kind == QT_DENSE) {
        for (int i = 0; i < TILE_K; i++)
            w[i] = tiles_dense(d->tile, s->dtype, d->r, p + i);
        return;
    }
    int64_t g = p / t->s.Gp, each = TILE_K / t->s.subs; /* inputs of one scale in this step */
    float zero = s->kind == QT_UINT || s->kind == QT_I8 || s->kind == QT_I8_OUTLIER
                     ? mm_zero(t, d->tile_no, g, d->r)
                     : 0.0f;
    for (int64_t sub = 0; sub < t->s.subs; sub++) {
        float scale = mm_scale(t, d->tile_no, g, sub, d->r);
        for (int64_t i = sub * each; i < (sub + 1) * each; i++)
            w[i] = weight(d, tiles_code(d->tile, d->bits, d->r, p + i), scale, zero);
    }
}

/* y and the outlier columns' share of row m: a dense sum of its own. Without such columns nothing
 * is added, not even 0, which would turn -0. */
static float with_outliers(float y, const mm_task *t, int64_t m, int64_t tile, int r)
{
    const qt_tensor *w = t->w;
    float sum = 0;
    if (w->scheme.kind != QT_I8_OUTLIER) return y;
    int64_t Kp = (int64_t)lq_round_up((size_t)w->scheme.n_out, TILE_K);
    const uint8_t *vals = (const uint8_t *)w->plane[QT_OUT_VALS].data + tile * Kp * TILE_N * 2;
    for (int64_t p = 0; p < Kp; p++)
        sum = fmaf(t->x.out[m * t->x.ldo + p], tiles_dense(vals, LQ_BF16, r, p), sum);
    return y + sum;
}

void ref_mm_f32(const mm_task *t)
{
    for (int64_t m0 = t->m0; m0 < t->m1; m0 += ROWS)
        for (int64_t tile = t->t0; tile < t->t1; tile++) {
            int64_t M = t->m1 - m0 < ROWS ? t->m1 - m0 : ROWS;
            float acc[ROWS][TILE_N] = { { 0 } };
            for (int r = 0; r < TILE_N; r++) {
                decoder d = decoder_for(t, tile, r);
                float w[TILE_K];
                for (int64_t p = 0; p < t->s.Kp; p += TILE_K) {
                    decode(w, &d, p);
                    for (int64_t m = 0; m < M; m++)
                        for (int i = 0; i < TILE_K; i++)
                            acc[m][r] = fmaf(t->x.f[(m0 + m) * t->x.ldf + p + i], w[i], acc[m][r]);
                }
                for (int64_t m = 0; m < M; m++)
                    acc[m][r] = with_outliers(acc[m][r], t, m0 + m, tile, r);
            }
            for (int64_t m = 0; m < M; m++)
                mm_finish(t, m0 + m, tile, acc[m]);
        }
}

/* A weight as MM_I8 multiplies it. */
static int integer(const decoder *d, int64_t p)
{
    unsigned c = tiles_code(d->tile, d->bits, d->r, p);
    return (int)(mm_tabled(d->t) ? d->t->o.w->table.t[c] : c);
}

void ref_mm_i8(const mm_task *t)
{
    int64_t A = t->x.A, nb = t->s.Kp / A, subs = t->s.subs, n = t->s.Gp / subs / A;
    const mm_table *table = &t->o.w->table;
    for (int64_t m = t->m0; m < t->m1; m++)
        for (int64_t tile = t->t0; tile < t->t1; tile++) {
            float y[TILE_N] = { 0 };
            for (int r = 0; r < TILE_N; r++) {
                decoder d = decoder_for(t, tile, r);
                for (int64_t i = 0; i < t->s.ng * subs; i++) {
                    int64_t g = i / subs;
                    float scale = mm_scale(t, tile, g, i % subs, r), acc = 0;
                    float zero = mm_tabled(t) ? (float)table->zero : mm_zero(t, tile, g, r);
                    for (int64_t b = i * n; b < (i + 1) * n; b++) {
                        int32_t dot = 0;
                        for (int64_t p = b * A; p < (b + 1) * A; p++)
                            dot += integer(&d, p) * t->x.q[m * t->s.Kp + p];
                        float v = fmaf(-zero, t->x.qs[m * nb + b], (float)dot);
                        acc = fmaf(t->x.s[m * nb + b], v, acc);
                    }
                    y[r] = fmaf(mm_tabled(t) ? scale * table->unit : scale, acc, y[r]);
                }
                y[r] = with_outliers(y[r], t, m, tile, r);
            }
            mm_finish(t, m, tile, y);
        }
}

/* y of row m and row r of a tile. */
static float blocks_sum(const mm_task *t, const blk_type *type, int64_t m, int64_t tile, int r)
{
    const int64_t K = t->s.Kp, A = t->x.A;
    const uint8_t *codes =
        (const uint8_t *)t->w->plane[QT_CODES].data + (size_t)tile * t->s.tile_bytes;
    const int8_t *q = t->x.q + m * K;
    float y = 0;
    for (int64_t p = 0; p < K; p += A) {
        float acc = 0;
        for (int64_t k = p; k < p + A; k += type->group) {
            const blk_group g = tiles_group(t->w, type, tile, k, r);
            int32_t dot = 0, X = 0;
            for (int64_t i = k; i < k + type->group; i++) {
                dot += blk_value(type, tiles_code(codes, type->bits, r, i)) * q[i];
                X += q[i];
            }
            acc = fmaf(g.scale, (float)dot, acc);
            if (type->bias) acc = fmaf(g.bias, (float)X, acc);
        }
        y = fmaf(t->x.s[(m * K + p) / A], acc, y);
    }
    return y;
}

void ref_mm_blocks(const mm_task *t)
{
    const blk_type *type = blk_find(t->w->scheme.blocks);
    for (int64_t m = t->m0; m < t->m1; m++)
        for (int64_t tile = t->t0; tile < t->t1; tile++) {
            float y[TILE_N];
            for (int r = 0; r < TILE_N; r++)
                y[r] = blocks_sum(t, type, m, tile, r);
            mm_finish(t, m, tile, y);
        }
}

void ref_mm_quant(int8_t *q, float *s, float *qs, const float *x, int64_t n, int64_t A)
{
    for (int64_t b = 0; b < n / A; b++, x += A, q += A) {
        float max = 0;
        int32_t sum = 0;
        bool finite = true;
        for (int64_t i = 0; i < A; i++) {
            finite = finite && fabsf(x[i]) < INFINITY; /* false for NaN too */
            max = fabsf(x[i]) > max ? fabsf(x[i]) : max;
        }
        float inv = finite && max >= MM_I8_TINY ? 127.0f / max : 0.0f;
        for (int64_t i = 0; i < A; i++) {
            q[i] = inv > 0 ? (int8_t)rintf(x[i] * inv) : 0;
            sum += q[i];
        }
        s[b] = !finite ? NAN : inv > 0 ? max / 127.0f : 0.0f;
        qs[b] = (float)sum;
    }
}

void ref_to_bf16(uint16_t *dst, const float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        dst[i] = lq_f32_to_bf16(x[i]);
}

void ref_round_bf16(float *dst, const float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        dst[i] = lq_bf16_to_f32(lq_f32_to_bf16(x[i]));
}
