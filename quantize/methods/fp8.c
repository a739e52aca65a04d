/* quantize/methods/fp8.c - see fp8.h. */
#include "quantize/methods/fp8.h"

#include <stdio.h>
#include <stdlib.h>

#include "quantize/methods/method.h"
#include "quantize/methods/rows.h"

typedef struct {
    qz_out *out;
    const void *W;
    lq_dtype d;
    int64_t rows, cols; /* that share a scale */
    bool codes;         /* too, not the scales alone */
    float *scratch;     /* [threads][K] */
} work;

static float scale_of(float absmax, lq_dtype d)
{
    float s = absmax / 448.0f;
    if (d == LQ_BF16) s = lq_bf16_to_f32(lq_f32_to_bf16(s));
    return s > 0 ? s : 1.0f;
}

/* The rows that share scales: largest magnitudes first, codes then. */
static void run_rows(void *ctx, int64_t item, int thread)
{
    const work *k = ctx;
    const qz_rows_ops *ops = qz_rows_get();
    const int64_t K = k->out->t.K, N = k->out->t.N, nb = lq_ceil_div(K, k->cols);
    const int64_t from = item * k->rows, end = from + k->rows < N ? from + k->rows : N;
    float *mem = k->scratch + (size_t)thread * (size_t)K;
    float *scales = (float *)k->out->w[QT_SCALES] + item * nb;
    for (int64_t n = from; n < end; n++) {
        const float *w = qz_rows(mem, k->W, k->d, K, n, 1);
        for (int64_t b = 0, at = 0; at < K; b++, at += k->cols)
            scales[b] = fmaxf(scales[b], ops->absmax(w + at, K - at < k->cols ? K - at : k->cols));
    }
    for (int64_t b = 0; b < nb; b++)
        scales[b] = scale_of(scales[b], k->d);
    for (int64_t n = from; n < end && k->codes; n++) {
        const float *w = qz_rows(mem, k->W, k->d, K, n, 1);
        uint8_t *codes = (uint8_t *)k->out->w[QT_CODES] + n * K;
        for (int64_t i = 0; i < K; i++)
            codes[i] = lq_f32_to_e4m3(w[i] / scales[i / k->cols]);
    }
}

static lq_status run(qz_out *out, const void *W, lq_dtype d, bool codes, pool *p, lq_err *err)
{
    const qt_scheme *s = &out->t.scheme;
    const int64_t N = out->t.N, K = out->t.K;
    work k = { .out = out,
               .W = W,
               .d = d,
               .rows = s->rows ? s->rows : N,
               .cols = s->group ? s->group : K,
               .codes = codes };
    k.scratch = calloc((size_t)pool_threads(p) * (size_t)K, sizeof *k.scratch);
    if (!k.scratch)
        return lq_fail(err, LQ_ENOMEM, "no memory to round rows of %lld weights", (long long)K);
    pool_run(p, lq_ceil_div(N, k.rows), run_rows, &k);
    free(k.scratch);
    return LQ_OK;
}

lq_status fp8_run(qz_out *out, const void *W, lq_dtype d, pool *p, lq_err *err)
{
    return run(out, W, d, true, p, err);
}

lq_status fp8_scales(qz_out *out, const void *W, lq_dtype d, pool *p, lq_err *err)
{
    return run(out, W, d, false, p, err);
}

/* ---- the method ---- */
static lq_status fp8_scheme(qt_scheme *s, const qz_opts *o, lq_err *err)
{
    char text[96];
    const long long G = (long long)qz_group(o);
    if (G > 0)
        snprintf(text, sizeof text, "fp8-e4m3-b%lldx%lld-af8-g%lld", G, G, G);
    else
        snprintf(text, sizeof text, "fp8-e4m3-af8");
    return qz_scheme_of(s, text, err);
}

const qz_method qz_method_fp8 = {
    .name = "fp8",
    .help = "8-bit floats, inputs too; a scale per row, or with -g 128 per block of 128x128",
    .layout = "fp8",
    .layout_group = 128,
    .schemes = "fp8-e4m3",
    .options = QZ_OPT_GROUP,
    .group = -1,
    .floats = true,
    .bounded = true,
    .alone = true,
    .scheme = fp8_scheme,
};
