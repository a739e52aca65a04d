/* quantize/methods/int8.c - row-wise int8: absmax, zero point, outlier columns. */
#include "quantize/methods/int8.h"

#include <cjson/cJSON.h>
#include <stdlib.h>

#include "quantize/methods/method.h"
#include "quantize/methods/rows.h"

int64_t int8_find_outliers(int32_t *idx, const float *share, int64_t K, float least)
{
    int64_t n = 0;
    for (int64_t k = 0; k < K; k++)
        if (share[k] > 0 && share[k] >= least) idx[n++] = (int32_t)k;
    return n;
}

typedef struct {
    qz_out *out;
    const void *W;
    lq_dtype d;
    const int32_t *outliers;
    float *scratch; /* [threads][K] */
} work;

static float absmax_row(int8_t *codes, const float *w, int64_t K)
{
    const qz_rows_ops *ops = qz_rows_get();
    const float a = ops->absmax(w, K);
    if (a > 0)
        ops->codes_i8(codes, w, K, a);
    else
        memset(codes, 0, (size_t)K);
    return a;
}

/* A row of zeros takes scale 1. */
static float zero_point_row(int8_t *codes, int8_t *zero, const float *w, int64_t K)
{
    grid_range r = grid_find_range(w, K);
    float scale = r.hi / 255 - r.lo / 255; /* hi - lo may overflow */
    if (!(scale > 0)) scale = 1;
    float z = grid_round(-r.lo / scale) - 128;
    z = z > 127 ? 127 : z;
    *zero = (int8_t)z;
    for (int64_t k = 0; k < K; k++) {
        float c = grid_round(w[k] / scale) + z;
        codes[k] = (int8_t)(c < -128 ? -128 : c > 127 ? 127 : c);
    }
    return scale;
}

static void run_rows(void *ctx, int64_t item, int thread)
{
    const work *k = ctx;
    const qt_scheme *s = &k->out->t.scheme;
    int64_t N = k->out->t.N, K = k->out->t.K;
    float *w = k->scratch + (size_t)thread * (size_t)K, *scales = k->out->w[QT_SCALES];
    for (int64_t n = item * QZ_ROWS; n < N && n < (item + 1) * QZ_ROWS; n++) {
        int8_t *codes = (int8_t *)k->out->w[QT_CODES] + n * K;
        size_t elem = lq_dtype_bytes(k->d);
        qz_rows_get()->to_f32(w, (const uint8_t *)k->W + (size_t)(n * K) * elem, k->d, (size_t)K);
        if (s->kind == QT_I8_OUTLIER) {
            uint16_t *vals = (uint16_t *)k->out->w[QT_OUT_VALS] + n * s->n_out;
            for (int64_t i = 0; i < s->n_out; i++) {
                vals[i] = lq_f32_to_bf16(w[k->outliers[i]]);
                w[k->outliers[i]] = 0;
            }
        }
        if (s->zero == QT_ZERO_INT)
            scales[n] = zero_point_row(codes, (int8_t *)k->out->w[QT_ZEROS] + n, w, K);
        else
            scales[n] = absmax_row(codes, w, K);
    }
}

lq_status int8_run(qz_out *out, const void *W, lq_dtype d, const int32_t *outliers, pool *p,
                   lq_err *err)
{
    work k = { .out = out, .W = W, .d = d, .outliers = outliers };
    size_t K = (size_t)out->t.K;
    k.scratch = calloc((size_t)pool_threads(p) * K, sizeof *k.scratch);
    if (!k.scratch) return lq_fail(err, LQ_ENOMEM, "no memory to round rows of %zu weights", K);
    if (out->t.scheme.kind == QT_I8_OUTLIER)
        memcpy(out->w[QT_OUT_IDX], outliers, (size_t)out->t.scheme.n_out * sizeof *outliers);
    pool_run(p, lq_ceil_div(out->t.N, QZ_ROWS), run_rows, &k);
    free(k.scratch);
    return LQ_OK;
}

/* ---- the methods ---- */
static lq_status absmax_scheme(qt_scheme *s, const qz_opts *o, lq_err *err)
{
    return qz_scheme_of(s, o->asym ? "i8-row-asym" : "i8-row", err);
}

static void absmax_recipe(cJSON *r, const qz_opts *o) { cJSON_AddBoolToObject(r, "sym", !o->asym); }

const qz_method qz_method_absmax = {
    .name = "absmax",
    .help = "8 bits, a scale per row, or with --asym a zero point too",
    .schemes = "i8-row",
    .options = QZ_OPT_SYM | QZ_OPT_ASYM,
    .bounded = true,
    .alone = true,
    .scheme = absmax_scheme,
    .recipe = absmax_recipe,
};

static bool decomposes(const qz_opts *o) { return !(o->outlier_threshold < 0); }
static unsigned int8_needs(const qz_opts *o) { return decomposes(o) ? QZ_NEEDS_OUTLIERS : 0; }

static lq_status int8_scheme(qt_scheme *s, const qz_opts *o, lq_err *err)
{
    return qz_scheme_of(s, decomposes(o) ? "i8-outlier" : "i8-row", err);
}

static void int8_recipe(cJSON *r, const qz_opts *o)
{
    cJSON_AddNumberToObject(r, "outlier_share", qz_outlier_share(o));
    cJSON_AddNumberToObject(r, "outlier_threshold", decomposes(o) ? qz_outlier_threshold(o) : -1);
}

const qz_method qz_method_int8 = {
    .name = "int8",
    .help = "LLM.int8: as absmax, but inputs with outliers stay in bf16",
    .schemes = "i8-outlier",
    .options = QZ_OPT_THRESHOLD | QZ_OPT_SHARE | QZ_OPT_ALL_EXPERTS,
    .needs = QZ_NEEDS_OUTLIERS,
    .needs_of = int8_needs,
    .bounded = true,
    .alone = true,
    .scheme = int8_scheme,
    .recipe = int8_recipe,
};
