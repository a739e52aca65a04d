/* kernels/simd/scan_tmpl.h - convolution and recurrence on 16 lanes, a lane being a channel or a value: step
 * for step those of scan_ref.c.
 *
 * The block of a state that one call works on, K rows of one register, stays in the first cache
 * for all its positions. Include after ops_tmpl.h.
 *
 * Included once per instruction set; no include guard on purpose. */
#include "kernels/scan.h"

/* n <= 16 channels from c on, T positions. */
V16 void conv16(const k_conv_args *a, float *x, int64_t T, int64_t c, int64_t n, int taps)
{
    vf w[CONV_MAX_TAPS], in[CONV_MAX_TAPS], bias = a->bias ? get(a->bias + c, n) : vf_set1(0);
    for (int j = 0; j < taps; j++)
        w[j] = get(a->w + j * a->ldw + c, n);
    for (int j = 0; j < taps - 1; j++)
        in[j] = get(a->history + j * a->ldh + c, n);
    x += c;
    for (int64_t t = 0; t < T; t++, x += a->ldx) {
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

/* By few positions at a time, whose lines the first 16 channels fetch for the others: rows are far apart. */
static inline void tmpl_conv(const k_conv_args *a)
{
    enum { POSITIONS = 32, LINE = 16 };
    for (int64_t t = 0, T; t < a->T; t += T) {
        T = a->T - t < POSITIONS ? a->T - t : POSITIONS;
        float *x = a->x + t * a->ldx;
        for (int64_t i = 0; i < T; i++)
            for (int64_t c = 0; c < a->n; c += LINE)
                v16_prefetch(x + i * a->ldx + c);
        EACH16(c, n, a->n)
        {
            if (a->taps == 4)
                conv16(a, x, T, c, n, 4);
            else if (a->taps == 3)
                conv16(a, x, T, c, n, 3);
            else
                conv16(a, x, T, c, n, a->taps);
        }
    }
}

/* Sums of K rows: of row i in part i % SCAN_PARTS, as scan.h has them. */
enum { SCAN_PARTS = 4 };
typedef struct {
    vf part[SCAN_PARTS];
} scan_sums;

V16 scan_sums scan_zero(void)
{
    const vf z = vf_set1(0);
    return (scan_sums){ { z, z, z, z } };
}

V16 vf scan_sum(const scan_sums *s)
{
    return vf_add(vf_add(s->part[0], s->part[1]), vf_add(s->part[2], s->part[3]));
}

/* BODY(i, j) for each row i of K, whose part is j. */
#define SCAN_EACH_ROW(K, BODY)                             \
    do {                                                   \
        int64_t i_ = 0;                                    \
        for (; i_ + SCAN_PARTS <= (K); i_ += SCAN_PARTS) { \
            BODY(i_, 0);                                   \
            BODY(i_ + 1, 1);                               \
            BODY(i_ + 2, 2);                               \
            BODY(i_ + 3, 3);                               \
        }                                                  \
        if (i_ < (K)) BODY(i_, 0);                         \
        if (i_ + 1 < (K)) BODY(i_ + 1, 1);                 \
        if (i_ + 2 < (K)) BODY(i_ + 2, 2);                 \
    } while (0)

/* What one position gives each row. */
typedef struct {
    const float *k, *q, *decay;
} scan_rows;

V16 scan_rows scan_at(const k_scan_args *a, int64_t t)
{
    return (scan_rows){ a->k + t * a->ldk, a->q + t * a->ldq, a->decay + t * a->ldd };
}

/* The state after its decay; what it then holds for k. */
V16 vf scan_recall(float *restrict S, int64_t K, scan_rows at, int64_t step)
{
    scan_sums held = scan_zero();
#define ROW(i, j)                                                                      \
    do {                                                                               \
        const vf s = vf_mul(vf_load(S + (i)*SCAN_LANES), vf_set1(at.decay[(i)*step])); \
        held.part[j] = vf_fma(s, vf_set1(at.k[i]), held.part[j]);                      \
        vf_store(S + (i)*SCAN_LANES, s);                                               \
    } while (0)
    SCAN_EACH_ROW(K, ROW);
#undef ROW
    return scan_sum(&held);
}

/* The state, after its decay, takes k and d; returned is what it then holds for q. Where there is a next position,
 * its decay follows in the same pass, and *held is what is then held for its k. */
V16 vf scan_take(float *restrict S, int64_t K, scan_rows at, scan_rows next, int64_t step, vf d,
                 bool more, vf *held)
{
    scan_sums out = scan_zero(), recall = scan_zero();
#define ROW(i, j)                                                           \
    do {                                                                    \
        vf s = vf_fma(vf_set1(at.k[i]), d, vf_load(S + (i)*SCAN_LANES));    \
        out.part[j] = vf_fma(s, vf_set1(at.q[i]), out.part[j]);             \
        if (more) {                                                         \
            s = vf_mul(s, vf_set1(next.decay[(i)*step]));                   \
            recall.part[j] = vf_fma(s, vf_set1(next.k[i]), recall.part[j]); \
        }                                                                   \
        vf_store(S + (i)*SCAN_LANES, s);                                    \
    } while (0)
    SCAN_EACH_ROW(K, ROW);
#undef ROW
    *held = scan_sum(&recall);
    return scan_sum(&out);
}

/* Rows are far apart and each head's are few lines: no prefetcher of the processor finds the next. */
V16 void scan_fetch(const k_scan_args *a, int64_t t)
{
    enum { POSITIONS = 3, LINE = 16 };
    if (t + POSITIONS >= a->T) return;
    const scan_rows at = scan_at(a, t + POSITIONS);
    for (int64_t i = 0; i < a->K; i += LINE) {
        v16_prefetch(at.k + i);
        v16_prefetch(at.q + i);
    }
    v16_prefetch(a->v + (t + POSITIONS) * a->ldv);
}

/* With the correction: one pass over the state for each position and one before the first. */
V16 void scan_delta(const k_scan_args *a, int64_t step)
{
    float *S = a->S;
    const int64_t K = a->K;
    vf held = scan_recall(S, K, scan_at(a, 0), step);
    for (int64_t t = 0; t < a->T; t++) {
        const bool more = t + 1 < a->T;
        const scan_rows at = scan_at(a, t), next = more ? scan_at(a, t + 1) : at;
        scan_fetch(a, t);
        vf d = vf_sub(get(a->v + t * a->ldv, a->lanes), held);
        d = vf_mul(vf_set1(a->beta[t * a->ldb]), d);
        const vf out = more ? scan_take(S, K, at, next, step, d, true, &held)
                            : scan_take(S, K, at, next, step, d, false, &held);
        put(a->out + t * a->ldo, out, a->lanes);
    }
}

/* Decay, take and what is held for q in one pass. */
V16 vf scan_add(float *restrict S, int64_t K, scan_rows at, int64_t step, vf d)
{
    scan_sums out = scan_zero();
#define ROW(i, j)                                                                        \
    do {                                                                                 \
        const vf was = vf_mul(vf_load(S + (i)*SCAN_LANES), vf_set1(at.decay[(i)*step])); \
        const vf s = vf_fma(vf_set1(at.k[i]), d, was);                                   \
        out.part[j] = vf_fma(s, vf_set1(at.q[i]), out.part[j]);                          \
        vf_store(S + (i)*SCAN_LANES, s);                                                 \
    } while (0)
    SCAN_EACH_ROW(K, ROW);
#undef ROW
    return scan_sum(&out);
}

V16 void scan_plain(const k_scan_args *a, int64_t step)
{
    for (int64_t t = 0; t < a->T; t++) {
        scan_fetch(a, t);
        const vf v = get(a->v + t * a->ldv, a->lanes);
        const vf d = vf_mul(vf_set1(a->beta[t * a->ldb]), v);
        put(a->out + t * a->ldo, scan_add(a->S, a->K, scan_at(a, t), step, d), a->lanes);
    }
}

static inline void tmpl_scan(const k_scan_args *a)
{
    if (a->T <= 0) return;
    if (a->correct && a->decay_step)
        scan_delta(a, 1);
    else if (a->correct)
        scan_delta(a, 0);
    else if (a->decay_step)
        scan_plain(a, 1);
    else
        scan_plain(a, 0);
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
