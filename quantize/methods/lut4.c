/* quantize/methods/lut4.c - NF4 and FP4 blocks, and double quantization of their absmax. */
#include "quantize/methods/lut4.h"

#include <stdio.h>
#include <stdlib.h>

#include "quantize/methods/method.h"
#include "quantize/methods/rows.h"

/* Quantiles of a normal distribution, scaled to 1 (QLoRA, appendix E). */
static const float nf4_map[16] = {
    -0x1p+0f,        -0x1.647362p-1f, -0x1.0cd66p-1f,  -0x1.94654p-2f,
    -0x1.23449ap-2f, -0x1.7a6a7ep-3f, -0x1.74f0e2p-4f, 0.0f,
    0x1.45f5fep-4f,  0x1.4995c6p-3f,  0x1.f809bap-3f,  0x1.5a0674p-2f,
    0x1.c34970p-2f,  0x1.200f56p-1f,  0x1.722766p-1f,  0x1p+0f,
};
/* Sign, two exponent bits, one mantissa bit, divided by 12; not in rising order. */
static const float fp4_map[16] = {
    0.0f,  0.0625f / 12,  8.0f / 12,  12.0f / 12,  4.0f / 12,  6.0f / 12,  2.0f / 12,  3.0f / 12,
    -0.0f, -0.0625f / 12, -8.0f / 12, -12.0f / 12, -4.0f / 12, -6.0f / 12, -2.0f / 12, -3.0f / 12,
};

const float *lut4_map(bool fp4) { return fp4 ? fp4_map : nf4_map; }

/* A table sorted for search: the codes in rising order of value (equal values keep their order) and
 * the midpoints between neighbours. */
typedef struct {
    uint8_t code[256];
    float mid[255];
    int n;
} lookup;

static void lookup_init(lookup *l, const float *map, int n)
{
    l->n = n;
    for (int i = 0; i < n; i++) { /* insertion: n <= 256 and nearly sorted */
        int j = i;
        for (; j > 0 && map[l->code[j - 1]] > map[i]; j--)
            l->code[j] = l->code[j - 1];
        l->code[j] = (uint8_t)i;
    }
    for (int i = 0; i + 1 < n; i++)
        l->mid[i] = (map[l->code[i]] + map[l->code[i + 1]]) * 0.5f;
}

/* Largest magnitude of a block, and what to multiply by to bring it to 1. */
static float block_absmax(const qz_rows_ops *ops, const float *x, int64_t n, float *inv)
{
    const float a = ops->absmax(x, n);
    *inv = 1.0f / (a > 1e-38f ? a : 1e-38f);
    return a;
}

/* NaN is -1. */
static float clamp1(float v) { return v > 1 ? 1.0f : v >= -1 ? v : -1.0f; }

/* The dynamic map: seven decades below 1, decade i cut into 2^i cells whose centres it holds with
 * both signs, then 0 and 1. The cell bounds are rounded as a fused multiply-add gives them. */
static void dynamic_map(float map[256])
{
    static const float decade[7] = { 1e-6f, 1e-5f, 1e-4f, 1e-3f, 1e-2f, 1e-1f, 1.0f };
    int n = 0;
    map[n++] = 0.0f;
    map[n++] = 1.0f;
    for (int i = 0; i < 7; i++) {
        int cells = 1 << i;
        float step = (1.0f - 0.1f) / (float)cells, prev = 0.1f;
        for (int j = 1; j <= cells; j++) {
            bool low = j < (cells + 1) / 2;
            float bound = low ? fmaf(step, (float)j, 0.1f) : fmaf(-step, (float)(cells - j), 1.0f);
            float centre = decade[i] * ((prev + bound) / 2.0f);
            map[n++] = centre;
            map[n++] = -centre;
            prev = bound;
        }
    }
    for (int i = 1; i < 256; i++) { /* insertion sort */
        float v = map[i];
        int j = i;
        for (; j > 0 && map[j - 1] > v; j--)
            map[j] = map[j - 1];
        map[j] = v;
    }
}

/* Fewer than 8: four running sums, what is left over to the first. */
static float short_sum(const float *x, int64_t n)
{
    const int64_t rows = n / 4;
    float acc[4] = { 0 };
    for (int64_t i = 0; i < n; i++)
        acc[i < rows * 4 ? i % 4 : 0] += x[i];
    return ((acc[0] + acc[1]) + acc[2]) + acc[3];
}

/* Sum in the order of an 8-lane, 4-fold unrolled cascade: four rows of 8 lanes side by side,
 * carried up a level every `step` rows; then the tail that fills no vector, then the lanes. */
static float cascade_sum(const float *x, int64_t n)
{
    enum { LANES = 8, ILP = 4, LEVELS = 4, W = LANES * ILP };
    if (n < LANES) return short_sum(x, n);
    int64_t vecs = n / LANES, rows = vecs / ILP;
    int power = 0;
    while (((int64_t)1 << power) < rows)
        power++;
    power = power / 4 > 4 ? power / 4 : 4;
    int64_t step = (int64_t)1 << power;
    float acc[LEVELS][W] = { { 0 } };
    int64_t i = 0;
    for (; i + step <= rows;) {
        for (int64_t j = 0; j < step; j++, i++)
            for (int k = 0; k < W; k++)
                acc[0][k] += x[i * W + k];
        for (int j = 1; j < LEVELS; j++) {
            for (int k = 0; k < W; k++) {
                acc[j][k] += acc[j - 1][k];
                acc[j - 1][k] = 0;
            }
            if (i & ((step - 1) << (j * power))) break;
        }
    }
    for (; i < rows; i++)
        for (int k = 0; k < W; k++)
            acc[0][k] += x[i * W + k];
    for (int j = 1; j < LEVELS; j++)
        for (int k = 0; k < W; k++)
            acc[0][k] += acc[j][k];
    for (int64_t v = rows * ILP; v < vecs; v++)
        for (int k = 0; k < LANES; k++)
            acc[0][k] += x[v * LANES + k];
    for (int r = 1; r < ILP; r++)
        for (int k = 0; k < LANES; k++)
            acc[0][k] += acc[0][r * LANES + k];
    float sum = 0;
    for (int64_t k = vecs * LANES; k < n; k++)
        sum += x[k];
    for (int k = 0; k < LANES; k++)
        sum += acc[0][k];
    return sum;
}

/* Bytes for the absmax: the library cuts [-1, 1] into 65536 even cells, and a value takes the code
 * that is nearest to its cell. */
enum { CELLS = 65536 };

static void cells_init(uint8_t code[CELLS], const lookup *l)
{
    int below = 0; /* midpoints: they rise as the cells do */
    for (int i = 0; i < CELLS; i++) {
        const float v = (float)(-1.0 + 2.0 * (double)i / (CELLS - 1));
        while (below < l->n - 1 && v > l->mid[below])
            below++;
        code[i] = l->code[below];
    }
}

static int cell_of(float v) { return (int)((clamp1(v) + 1.0f) * 0.5f * (float)(CELLS - 1) + 0.5f); }

/* LQ_EVALUE: their mean is no number of f32. */
static lq_status quantize_absmax(qz_out *out, float *absmax, int64_t nb, lq_err *err)
{
    float *map2 = out->w[QT_MAP2], *scales2 = out->w[QT_SCALES2];
    uint8_t *codes = out->w[QT_SCALES], code[CELLS];
    lookup l;
    dynamic_map(map2);
    lookup_init(&l, map2, 256);
    cells_init(code, &l);
    const float offset = cascade_sum(absmax, nb) / (float)nb;
    if (!isfinite(offset))
        return lq_fail(
            err, LQ_EVALUE,
            "double quantization: expected blocks whose mean largest magnitude is finite");
    for (int64_t b = 0; b < nb; b++)
        absmax[b] -= offset;
    for (int64_t b = 0; b < nb; b += 256) {
        int64_t n = nb - b < 256 ? nb - b : 256;
        float inv;
        scales2[b / 256] = block_absmax(qz_rows_get(), absmax + b, n, &inv);
        for (int64_t i = 0; i < n; i++)
            codes[b + i] = code[cell_of(absmax[b + i] * inv)];
    }
    out->t.scheme.offset = offset;
    return LQ_OK;
}

/* ---- the blocks ---- */
enum { RUN = 1 << 12 };

typedef struct {
    const void *W;
    lq_dtype d;
    int64_t n, group, per_item; /* elements; elements per block; blocks per item */
    uint8_t *codes;
    float *absmax;
    float *scratch; /* [threads][run of blocks] */
    lookup l;
} work;

/* Blocks that are read together. */
static int64_t blocks_of_run(int64_t group) { return group < RUN ? RUN / group : 1; }

static void run_blocks(void *ctx, int64_t item, int thread)
{
    const work *k = ctx;
    const qz_rows_ops *ops = qz_rows_get();
    const int64_t G = k->group, run = blocks_of_run(G) * G, last = (item + 1) * k->per_item * G;
    const int64_t end = last < k->n ? last : k->n;
    float *scratch = k->scratch + thread * run;
    for (int64_t at = item * k->per_item * G, n; at < end; at += n) {
        n = end - at < run ? end - at : run;
        const float *x = qz_rows(scratch, k->W, k->d, 1, at, n);
        for (int64_t i = 0, len; i < n; i += len) {
            len = n - i < G ? n - i : G;
            float inv;
            k->absmax[(at + i) / G] = block_absmax(ops, x + i, len, &inv);
            /* A block is even: it starts on a whole byte. What scaling by `inv` leaves beyond 1 is
             * above the last midpoint all the same. */
            ops->pack_table(k->codes + (at + i) / 2, x + i, len, inv, k->l.mid, k->l.code);
        }
    }
}

lq_status lut4_run(qz_out *out, const void *W, lq_dtype d, pool *p, lq_err *err)
{
    qt_scheme *s = &out->t.scheme;
    int64_t n = out->t.N * out->t.K, nb = lq_ceil_div(n, s->group);
    work k = { .W = W, .d = d, .n = n, .group = s->group, .codes = out->w[QT_CODES] };
    k.per_item = lq_ceil_div(1 << 16, s->group);
    lookup_init(&k.l, lut4_map(s->fp4), 16);
    memcpy(out->w[QT_MAP], lut4_map(s->fp4), 16 * sizeof(float));
    k.scratch =
        calloc((size_t)(pool_threads(p) * blocks_of_run(s->group) * s->group), sizeof *k.scratch);
    k.absmax = s->dbl ? calloc((size_t)nb, sizeof *k.absmax) : out->w[QT_SCALES];
    lq_status st = LQ_OK;
    if (!k.scratch || !k.absmax) {
        st = lq_fail(err, LQ_ENOMEM, "no memory for %lld blocks", (long long)nb);
    } else {
        pool_run(p, lq_ceil_div(nb, k.per_item), run_blocks, &k);
        if (s->dbl) st = quantize_absmax(out, k.absmax, nb, err);
    }
    if (s->dbl) free(k.absmax);
    free(k.scratch);
    return st;
}

/* ---- the methods ---- */
static lq_status lut4_scheme(qt_scheme *s, const qz_opts *o, lq_err *err)
{
    char text[40];
    const int64_t G = qz_group(o);
    if (G < 32 || G > 4096 || (G & (G - 1)))
        return lq_fail(err, LQ_EUSAGE,
                       "--group-size: expected a power of two from 32 to 4096 for %s, found %lld",
                       o->method->name, (long long)o->group);
    snprintf(text, sizeof text, "%s-g%lld%s", o->method->schemes, (long long)G,
             o->dbl ? "-double" : "");
    return qz_scheme_of(s, text, err);
}

const qz_method qz_method_nf4 = {
    .name = "nf4",
    .layout = "bnb",
    .help = "bitsandbytes' 16 values of a normal distribution, to its bits",
    .schemes = "nf4",
    .options = QZ_OPT_GROUP | QZ_OPT_DOUBLE,
    .group = 64,
    .bounded = true,
    .alone = true,
    .plan = 2,
    .scheme = lut4_scheme,
};

const qz_method qz_method_fp4 = {
    .name = "fp4",
    .help = "bitsandbytes' 16 values of a 4-bit float, to its bits",
    .schemes = "fp4",
    .options = QZ_OPT_GROUP | QZ_OPT_DOUBLE,
    .group = 64,
    .bounded = true,
    .alone = true,
    .scheme = lut4_scheme,
};
