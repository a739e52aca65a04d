/* quantize/methods/grid.c - scale, zero point and code of a group on a uniform grid. */
#include "quantize/methods/grid.h"

enum { SHRINKS = 48, STEPS = 80 }; /* ends drawn in by 1/80 each time, down to 0.4125 */

static const float f16_max = 65504.0f, f16_normal = 0x1p-14f, f16_min = 0x1p-24f;

lq_dtype grid_scale_dtype(float absmax, int bits)
{
    float coarsest = absmax / (float)(1 << (bits - 1)), margin = 2; /* compensated weights grow */
    return coarsest * margin > f16_max || (absmax > 0 && coarsest < f16_normal) ? LQ_F32 : LQ_F16;
}

grid_range grid_find_range(const float *w, int64_t n)
{
    grid_range r = { 0, 0 };
    for (int64_t i = 0; i < n; i++) {
        r.lo = w[i] < r.lo ? w[i] : r.lo;
        r.hi = w[i] > r.hi ? w[i] : r.hi;
    }
    return r;
}

/* To the stored type; a scale never becomes 0 or infinite by it. */
static float store_scale(float s, lq_dtype d)
{
    if (d == LQ_F32) return s;
    if (d == LQ_BF16) return lq_bf16_to_f32(lq_f32_to_bf16(s));
    float a = fabsf(s);
    a = a > f16_max ? f16_max : a < f16_min ? f16_min : lq_f16_to_f32(lq_f32_to_f16(a));
    return s < 0 ? -a : a;
}

/* Zero points beside the rounded one are worth trying where a grid has few values. */
static int n_zeros(const grid_spec *s) { return s->mode == GRID_ASYM && s->bits <= 3 ? 3 : 1; }

int grid_n_candidates(const grid_spec *s)
{
    return SHRINKS * (s->mode == GRID_SYM_FULL ? 2 : n_zeros(s));
}

grid_param grid_candidate(const grid_spec *s, grid_range r, int i)
{
    static const float beside[3] = { 0, 1, -1 };
    float M = grid_max_code(s->bits), half = (float)(1 << (s->bits - 1));
    float shrink = 1.0f - (float)(i % SHRINKS) / STEPS;
    int kind = i / SHRINKS;
    const float first = s->zero_from_one ? 1 : 0;
    if (r.lo == 0 && r.hi == 0) return (grid_param){ 1.0f, s->mode == GRID_ASYM ? first : half };
    float lo = r.lo * shrink, hi = r.hi * shrink, a = hi > -lo ? hi : -lo;
    if (s->mode == GRID_ASYM) {
        grid_param p = { store_scale(hi / M - lo / M, s->scale_dtype), 0 };
        float z = grid_round(-lo / p.scale) + beside[kind];
        if (z < first) /* the top end needs as many codes as before */
            p.scale = store_scale(hi / (M - first), s->scale_dtype);
        p.zero = z < first ? first : z > M ? M : z;
        return p;
    }
    bool full = (s->mode == GRID_SYM_FULL) == (kind == 0); /* the mode's own rule first */
    if (!full) return (grid_param){ store_scale(a / (M / 2), s->scale_dtype), half };
    float end = hi > -lo ? hi : lo; /* a tie: the negative end, so that the scale is positive */
    return (grid_param){ store_scale(-end / half, s->scale_dtype), half };
}

/* sum imp (w - q)^2 in eight partial sums; stops early once beyond `limit`. */
static float grid_error(const float *w, const float *imp, int64_t n, grid_param p, float max_code,
                        float limit)
{
    enum { LANES = 8 };
    float acc[LANES] = { 0 }, inv = 1 / p.scale, lo = -p.zero, hi = max_code - p.zero, sum = 0;
    int64_t i = 0;
    while (i < n) {
        int64_t stop = n - i > 64 ? i + 64 : n;
        for (; i + LANES <= stop; i += LANES)
            for (int j = 0; j < LANES; j++) {
                float x = w[i + j] * inv;
                x = x < lo ? lo : x;
                x = x > hi ? hi : x;
                float e = w[i + j] - p.scale * grid_round(x);
                acc[j] += e * e * imp[i + j];
            }
        for (; i < stop; i++) {
            float x = w[i] * inv;
            x = x < lo ? lo : x;
            x = x > hi ? hi : x;
            float e = w[i] - p.scale * grid_round(x);
            acc[0] += e * e * imp[i];
        }
        sum = ((acc[0] + acc[1]) + (acc[2] + acc[3])) + ((acc[4] + acc[5]) + (acc[6] + acc[7]));
        if (sum >= limit) break;
    }
    return sum;
}

/* The same of any length; imp may be NULL. */
static float error_of(const float *w, const float *imp, int64_t n, grid_param p, float M,
                      float limit)
{
    enum { BLOCK = 1024 };
    static const float ones[BLOCK] = {
#define ONE4 1, 1, 1, 1
#define ONE16 ONE4, ONE4, ONE4, ONE4
#define ONE64 ONE16, ONE16, ONE16, ONE16
#define ONE256 ONE64, ONE64, ONE64, ONE64
        ONE256, ONE256, ONE256, ONE256
    };
    float e = 0;
    for (int64_t at = 0; at < n && e < limit; at += BLOCK) {
        const int64_t len = n - at < BLOCK ? n - at : BLOCK;
        e += grid_error(w + at, imp ? imp + at : ones, len, p, M, limit - e);
    }
    return e;
}

/* Codes fixed, the scale with the least error: sum imp w c / sum imp c^2, c = code - zero. */
static grid_param refit(const grid_spec *s, const float *w, const float *imp, int64_t n,
                        grid_param best, float least)
{
    enum { ROUNDS = 4 };
    const float M = grid_max_code(s->bits);
    for (int i = 0; i < ROUNDS; i++) {
        double num = 0, den = 0;
        for (int64_t k = 0; k < n; k++) {
            const double c = (double)(grid_code(w[k], best, M) - best.zero);
            const double by = imp ? c * (double)imp[k] : c;
            num += by * (double)w[k];
            den += by * c;
        }
        if (num == 0 || !(den > 0)) return best;
        const grid_param p = { store_scale((float)(num / den), s->scale_dtype), best.zero };
        const float e = error_of(w, imp, n, p, M, least);
        if (!(e < least)) return best;
        least = e;
        best = p;
    }
    return best;
}

grid_param grid_fit(const grid_spec *s, const float *w, const float *imp, int64_t n)
{
    grid_range r = grid_find_range(w, n);
    grid_param best = grid_candidate(s, r, 0);
    if (!s->search || (r.lo == 0 && r.hi == 0)) return best;
    float least = INFINITY, M = grid_max_code(s->bits);
    for (int c = 0; c < grid_n_candidates(s); c++) {
        grid_param p = grid_candidate(s, r, c);
        const float e = error_of(w, imp, n, p, M, least);
        if (e < least) {
            least = e;
            best = p;
        }
    }
    return s->refit ? refit(s, w, imp, n, best, least) : best;
}
