/* kernels/ref/ops_ref.c - the row operations of ops.h in plain C, and the reference table. */
#include "kernels/core/k_ops.h"
#include "kernels/core/kmath.h"
#include "kernels/ref/ref.h"

enum { LANES = 16 };

static void ref_rmsnorm(float *dst, const float *x, const float *w, float off, int64_t K, float eps)
{
    float part[LANES] = { 0 };
    for (int64_t k = 0; k < K; k++)
        part[k % LANES] = fmaf(x[k], x[k], part[k % LANES]);
    float r = 1.0f / sqrtf(km_sum16(part) / (float)K + eps);
    for (int64_t k = 0; k < K; k++)
        dst[k] = w ? x[k] * r * (w[k] + off) : x[k] * r;
}

static void ref_layernorm(float *dst, const float *x, const float *w, const float *b, float off,
                          int64_t K, float eps)
{
    float part[LANES] = { 0 };
    for (int64_t k = 0; k < K; k++)
        part[k % LANES] += x[k];
    float mean = km_sum16(part) / (float)K;
    memset(part, 0, sizeof part);
    for (int64_t k = 0; k < K; k++) {
        float d = x[k] - mean;
        part[k % LANES] = fmaf(d, d, part[k % LANES]);
    }
    float r = 1.0f / sqrtf(km_sum16(part) / (float)K + eps);
    for (int64_t k = 0; k < K; k++) {
        float v = (x[k] - mean) * r;
        if (w) v *= w[k] + off;
        dst[k] = b ? v + b[k] : v;
    }
}

static void ref_act(float *dst, const float *x, int64_t n, k_act_fn f)
{
    for (int64_t i = 0; i < n; i++)
        switch (f) {
        case ACT_SILU:
            dst[i] = km_silu(x[i]);
            break;
        case ACT_GELU:
            dst[i] = km_gelu(x[i]);
            break;
        case ACT_GELU_TANH:
            dst[i] = km_gelu_tanh(x[i]);
            break;
        case ACT_RELU2:
            dst[i] = x[i] < 0 ? 0.0f : x[i] * x[i];
            break;
        default:
            dst[i] = x[i] < 0 ? 0.0f : x[i];
        }
}

static void ref_mul(float *dst, const float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        dst[i] *= x[i];
}

static void ref_swiglu_clamped(float *dst, const float *gate, const float *up, int64_t n,
                               float limit)
{
    for (int64_t i = 0; i < n; i++)
        dst[i] = km_swiglu_clamped(gate[i], up[i], limit);
}

static void ref_softcap(float *x, float cap, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        x[i] = cap * km_tanh(x[i] / cap);
}

static void ref_exp_minus(float *dst, const float *x, float c, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        dst[i] = km_exp(x[i] - c);
}

static void ref_softplus(float *x, const float *add, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        x[i] = km_softplus(x[i] + add[i]);
}

static float ref_logsumexp(const float *x, int64_t n)
{
    float max = -INFINITY, part[LANES] = { 0 };
    for (int64_t i = 0; i < n; i++)
        max = x[i] > max ? x[i] : max;
    if (max == -INFINITY || max == INFINITY) return max;
    for (int64_t i = 0; i < n; i++)
        part[i % LANES] += km_exp(x[i] - max);
    return (float)(km_log(km_sum16(part)) + (double)max);
}

/* The limits of this table are those of plain C: one fused step after the other. */
static double ref_peak(int64_t rounds)
{
    volatile float out;
    float sum[LANES] = { 0 };
    for (int64_t n = 0; n < rounds; n++)
        for (int i = 0; i < LANES; i++)
            sum[i] = fmaf(sum[i], 0.5f, 1.0f);
    out = km_sum16(sum);
    (void)out;
    return 2.0 * LANES * (double)rounds;
}

static uint32_t ref_read_all(const uint8_t *p, size_t n)
{
    uint64_t v, all = 0;
    for (size_t i = 0; i < n; i += sizeof v) {
        memcpy(&v, p + i, sizeof v);
        all ^= v;
    }
    return (uint32_t)(all ^ all >> 32);
}

static bool always(void) { return true; }

const k_ops k_ref = {
    .name = "ref",
    .usable = always,
    .mm_f32 = ref_mm_f32,
    .mm_i8 = ref_mm_i8,
    .mm_blocks = ref_mm_blocks,
    .mm_quant = ref_mm_quant,
    .to_bf16 = ref_to_bf16,
    .round_bf16 = ref_round_bf16,
    .attn_k = ref_attn_k,
    .attn_v = ref_attn_v,
    .attn_scores = ref_attn_scores,
    .attn_softmax = ref_attn_softmax,
    .attn_pv = ref_attn_pv,
    .rmsnorm = ref_rmsnorm,
    .layernorm = ref_layernorm,
    .act = ref_act,
    .mul = ref_mul,
    .swiglu_clamped = ref_swiglu_clamped,
    .softcap = ref_softcap,
    .exp_minus = ref_exp_minus,
    .softplus = ref_softplus,
    .logsumexp = ref_logsumexp,
    .conv = ref_conv,
    .scan = ref_scan,
    .select = ref_select,
    .peak_f32 = ref_peak,
    .peak_i8 = ref_peak,
    .read_all = ref_read_all,
};
