/* kernels/ref/scan_ref.c - the operations of scan.h in plain C. */
#include "kernels/core/kmath.h"
#include "kernels/ref/ref.h"

static void conv_channel(const k_conv_args *a, int64_t c)
{
    const int taps = a->taps;
    float in[CONV_MAX_TAPS]; /* oldest first, the newest last */
    for (int j = 0; j < taps - 1; j++)
        in[j] = a->history[j * a->ldh + c];
    for (int64_t t = 0; t < a->T; t++) {
        float *x = a->x + t * a->ldx + c, y = a->bias ? a->bias[c] : 0;
        in[taps - 1] = *x;
        for (int j = 0; j < taps; j++)
            y = fmaf(a->w[j * a->ldw + c], in[j], y);
        *x = a->silu ? km_silu(y) : y;
        memmove(in, in + 1, (size_t)(taps - 1) * sizeof *in);
    }
    for (int j = 0; j < taps - 1; j++)
        a->history[j * a->ldh + c] = in[j];
}

void ref_conv(const k_conv_args *a)
{
    for (int64_t c = 0; c < a->n; c++)
        conv_channel(a, c);
}

enum { PARTS = 4 };

static float sum_parts(const float p[PARTS]) { return (p[0] + p[1]) + (p[2] + p[3]); }

/* One lane at position t. */
static void scan_lane(const k_scan_args *a, int64_t t, int lane)
{
    const float *k = a->k + t * a->ldk, *q = a->q + t * a->ldq, *decay = a->decay + t * a->ldd;
    const float beta = a->beta[t * a->ldb], v = a->v[t * a->ldv + lane];
    float *S = a->S + lane, part[PARTS] = { 0 };
    for (int64_t i = 0; a->correct && i < a->K; i++)
        part[i % PARTS] = fmaf(S[i * SCAN_LANES] * decay[i * a->decay_step], k[i], part[i % PARTS]);
    const float d = beta * (a->correct ? v - sum_parts(part) : v);
    memset(part, 0, sizeof part);
    for (int64_t i = 0; i < a->K; i++) {
        float *s = S + i * SCAN_LANES;
        *s = fmaf(k[i], d, *s * decay[i * a->decay_step]);
        part[i % PARTS] = fmaf(*s, q[i], part[i % PARTS]);
    }
    a->out[t * a->ldo + lane] = sum_parts(part);
}

void ref_scan(const k_scan_args *a)
{
    for (int64_t t = 0; t < a->T; t++)
        for (int lane = 0; lane < a->lanes; lane++)
            scan_lane(a, t, lane);
}

/* One lane at position t. */
static void select_lane(const k_select_args *a, int64_t t, int lane)
{
    const float *k = a->k + t * a->ldk, *q = a->q + t * a->ldq, step = a->step[t * a->lds + lane],
                d = step * a->v[t * a->ldv + lane];
    float *S = a->S + lane, part[PARTS] = { 0 };
    for (int64_t i = 0; i < a->K; i++) {
        float *s = S + i * SCAN_LANES;
        *s = fmaf(k[i], d, *s * km_exp(step * a->rate[i * a->ldr + lane]));
        part[i % PARTS] = fmaf(*s, q[i], part[i % PARTS]);
    }
    a->out[t * a->ldo + lane] = sum_parts(part);
}

void ref_select(const k_select_args *a)
{
    for (int64_t t = 0; t < a->T; t++)
        for (int lane = 0; lane < a->lanes; lane++)
            select_lane(a, t, lane);
}
