/* kernels/simd/scan_tmpl.h - convolution and recurrence on 16 lanes, a lane being a channel or a value: step
 * for step those of scan_ref.c.
 *
 * The block of a state that one call works on, K rows of one register, stays in the first cache
 * for all its positions. Include after ops_tmpl.h.
 *
 * Included once per instruction set; no include guard on purpose. */
#include "kernels/scan.h"

/* n <= 16 channels from c on. */
V16 void conv16(const k_conv_args *a, int64_t c, int64_t n, int taps)
{
    vf w[CONV_MAX_TAPS], in[CONV_MAX_TAPS], bias = a->bias ? get(a->bias + c, n) : vf_set1(0);
    for (int j = 0; j < taps; j++)
        w[j] = get(a->w + j * a->ldw + c, n);
    for (int j = 0; j < taps - 1; j++)
        in[j] = get(a->history + j * a->ldh + c, n);
    float *x = a->x + c;
    for (int64_t t = 0; t < a->T; t++, x += a->ldx) {
        vf y = bias;
        in[taps - 1] = get(x, n);
        for (int j = 0; j < taps; j++)
            y = vf_fma(w[j], in[j], y);
        put(x, a->silu ? vf_act(y, ACT_SILU) : y, n);
        for (int j = 0; j < taps - 1; j++)
            in[j] = in[j + 1];
    }
    for (int j = 0; j < taps - 1; j++)
        put(a->history + j * a->ldh + c, in[j], n);
}

static inline void tmpl_conv(const k_conv_args *a)
{
    EACH16(c, n, a->n)
    {
        if (a->taps == 4)
            conv16(a, c, n, 4);
        else if (a->taps == 3)
            conv16(a, c, n, 3);
        else
            conv16(a, c, n, a->taps);
    }
}

/* What the state holds for k, after its decay. */
V16 vf scan_recall(const k_scan_args *a, const float *k, const float *decay)
{
    enum { PARTS = 4 };
    vf part[PARTS] = { vf_set1(0), vf_set1(0), vf_set1(0), vf_set1(0) };
    const int64_t whole = a->K / PARTS * PARTS;
    for (int64_t i = 0; i < whole; i += PARTS)
        UNROLL
    for (int j = 0; j < PARTS; j++) {
        const vf s = vf_load(a->S + (i + j) * SCAN_LANES);
        const vf g = vf_set1(decay[(i + j) * a->decay_step]);
        part[j] = vf_fma(vf_mul(s, g), vf_set1(k[i + j]), part[j]);
    }
    for (int64_t i = whole; i < a->K; i++) {
        const vf s = vf_load(a->S + i * SCAN_LANES), g = vf_set1(decay[i * a->decay_step]);
        part[i % PARTS] = vf_fma(vf_mul(s, g), vf_set1(k[i]), part[i % PARTS]);
    }
    return vf_add(vf_add(part[0], part[1]), vf_add(part[2], part[3]));
}

V16 vf scan_row(const k_scan_args *a, int64_t i, float k, float q, float decay, vf d, vf part)
{
    float *at = a->S + i * SCAN_LANES;
    const vf s = vf_fma(vf_set1(k), d, vf_mul(vf_load(at), vf_set1(decay)));
    vf_store(at, s);
    return vf_fma(s, vf_set1(q), part);
}

/* The state takes k and d; what it then holds for q. */
V16 vf scan_update(const k_scan_args *a, const float *k, const float *q, const float *decay, vf d)
{
    enum { PARTS = 4 };
    vf part[PARTS] = { vf_set1(0), vf_set1(0), vf_set1(0), vf_set1(0) };
    const int64_t whole = a->K / PARTS * PARTS;
    for (int64_t i = 0; i < whole; i += PARTS)
        UNROLL
    for (int j = 0; j < PARTS; j++)
        part[j] =
            scan_row(a, i + j, k[i + j], q[i + j], decay[(i + j) * a->decay_step], d, part[j]);
    for (int64_t i = whole; i < a->K; i++)
        part[i % PARTS] = scan_row(a, i, k[i], q[i], decay[i * a->decay_step], d, part[i % PARTS]);
    return vf_add(vf_add(part[0], part[1]), vf_add(part[2], part[3]));
}

static inline void tmpl_scan(const k_scan_args *a)
{
    for (int64_t t = 0; t < a->T; t++) {
        const float *k = a->k + t * a->ldk, *q = a->q + t * a->ldq, *decay = a->decay + t * a->ldd;
        vf d = get(a->v + t * a->ldv, a->lanes);
        if (a->correct) d = vf_sub(d, scan_recall(a, k, decay));
        d = vf_mul(vf_set1(a->beta[t * a->ldb]), d);
        put(a->out + t * a->ldo, scan_update(a, k, q, decay, d), a->lanes);
    }
}

V16 vf select_row(const k_select_args *a, int64_t i, float k, float q, vf step, vf d, vf part)
{
    float *at = a->S + i * SCAN_LANES;
    const vf decay = vf_exp(vf_mul(step, get(a->rate + i * a->ldr, a->lanes)));
    const vf s = vf_fma(vf_set1(k), d, vf_mul(vf_load(at), decay));
    vf_store(at, s);
    return vf_fma(s, vf_set1(q), part);
}

static inline void tmpl_select(const k_select_args *a)
{
    enum { PARTS = 4 };
    for (int64_t t = 0; t < a->T; t++) {
        const float *k = a->k + t * a->ldk, *q = a->q + t * a->ldq;
        const vf step = get(a->step + t * a->lds, a->lanes);
        const vf d = vf_mul(step, get(a->v + t * a->ldv, a->lanes));
        vf part[PARTS] = { vf_set1(0), vf_set1(0), vf_set1(0), vf_set1(0) };
        for (int64_t i = 0; i < a->K; i++)
            part[i % PARTS] = select_row(a, i, k[i], q[i], step, d, part[i % PARTS]);
        put(a->out + t * a->ldo, vf_add(vf_add(part[0], part[1]), vf_add(part[2], part[3])),
            a->lanes);
    }
}
