/* tests/unit/test_ops.c - exp, tanh, erf against libm in double; row operations against double and every
 * family against the reference, to the bit. */
#include "kernels/core/cpu.h"
#include "kernels/core/kmath.h"
#include "kernels/ops.h"
#include "tests/support/check.h"
#include "tests/support/families.h"
#include "tests/support/fill.h"

#include <float.h>
#include <stdlib.h>

static double ulps(float got, double want)
{
    if (isnan(want)) return isnan(got) ? 0 : 1e9;
    if (isinf(want) || fabs(want) > (double)FLT_MAX)
        return isinf(got) && (got > 0) == (want > 0) ? 0 : 1e9;
    double a = fabs(want);
    int e = a > 0 ? ilogb(a) : -126;
    return fabs((double)got - want) / ldexp(1, (e < -126 ? -126 : e) - 23);
}

TEST(exp_tanh_and_erf_are_within_their_stated_error)
{
    double worst[3] = { 0 };
    float at[3] = { 0 };
    for (uint32_t i = 0; i < (1u << 22); i++) { /* every 1024th float */
        uint32_t u = i << 10 | (i & 1023u);
        float x;
        memcpy(&x, &u, 4);
        if (isnan(x)) continue;
        double t[3] = { exp((double)x), tanh((double)x), erf((double)x) };
        if (t[0] < (double)FLT_MIN) t[0] = 0; /* stated: 0 below the least normal */
        float y[3] = { km_exp(x), km_tanh(x), km_erf(x) };
        for (int k = 0; k < 3; k++) {
            double d = ulps(y[k], t[k]);
            if (k == 0 && t[0] == 0 && y[0] <= FLT_MIN) d = 0;
            if (d > worst[k]) worst[k] = d, at[k] = x;
        }
    }
    CHECK(worst[0] <= 1.5, "exp: %g ulp at %a", worst[0], (double)at[0]);
    CHECK(worst[1] <= 3, "tanh: %g ulp at %a", worst[1], (double)at[1]);
    CHECK(worst[2] <= 3, "erf: %g ulp at %a", worst[2], (double)at[2]);
    CHECK(isnan(km_exp(NAN)) && isnan(km_tanh(NAN)) && isnan(km_erf(NAN)), "NaN");
    CHECK(km_exp(-INFINITY) == 0 && km_exp(INFINITY) == INFINITY && km_tanh(-INFINITY) == -1,
          "Inf");
    CHECK(km_exp(0) == 1 && km_tanh(-0.0f) == 0 && km_erf(-0.0f) == 0, "zeros");
    CHECK(km_exp(88.72283f) < INFINITY && km_exp(88.7229f) == INFINITY, "the largest");
    CHECK(km_exp(-87.3f) > 0 && km_exp(-87.5f) == 0, "the least");
}

TEST(log_is_good_to_the_last_float_digit)
{
    for (float x = 1e-30f; x < 1e30f; x *= 1.013f) {
        double want = log((double)x), d = fabs(km_log(x) - want);
        CHECK(d <= 1e-13 + 1e-13 * fabs(want), "log(%g): off by %g", (double)x, d);
    }
}

enum { MAX_N = 1000 };
static const int64_t lengths[] = { 1, 2, 15, 16, 17, 31, 64, 172, MAX_N };

typedef struct {
    float x[MAX_N], w[MAX_N], b[MAX_N];
} input;

static void input_fill(input *in, uint64_t seed, float scale)
{
    fill_row(in->x, MAX_N, &seed);
    fill_row(in->w, MAX_N, &seed);
    fill_row(in->b, MAX_N, &seed);
    for (int i = 0; i < MAX_N; i++)
        in->x[i] *= scale;
}

/* The operations under test, by number; returns false behind the last. */
static bool apply(int op, float *y, const input *in, int64_t n, const char **name)
{
    memcpy(y, in->x, (size_t)n * 4);
    static const k_act_fn acts[] = { ACT_SILU, ACT_GELU, ACT_GELU_TANH, ACT_RELU };
    static const char *const act_names[] = { "silu", "gelu", "gelu_tanh", "relu" };
    *name = op < 4 ? act_names[op] : "";
    if (op < 4) return k_act(y, n, acts[op]), true;
    switch (op) {
    case 4:
        *name = "rmsnorm";
        k_rmsnorm(y, n, in->x, n, in->w, 1.0f, 1, n, 1e-5f);
        return true;
    case 5:
        *name = "rmsnorm, no w";
        k_rmsnorm(y, n, y, n, NULL, 0, 1, n, 1e-5f);
        return true;
    case 6:
        *name = "layernorm";
        k_layernorm(y, n, in->x, n, in->w, in->b, 0, 1, n, 1e-5f);
        return true;
    case 7:
        *name = "layernorm, no w";
        k_layernorm(y, n, y, n, NULL, NULL, 0, 1, n, 1e-5f);
        return true;
    case 8:
        *name = "act_mul";
        k_act_mul(y, in->x, in->w, n, ACT_SILU, 0);
        return true;
    case 9:
        *name = "softcap";
        k_softcap(y, 3.0f, n);
        return true;
    case 10:
        *name = "logsumexp";
        y[0] = k_logsumexp(in->x, n);
        return true;
    case 11:
        *name = "act_mul in place";
        k_act_mul(y, y, in->w, n, ACT_GELU_TANH, 0);
        return true;
    case 12:
        *name = "swiglu clamped, in place";
        k_act_mul(y, y, in->w, n, ACT_SWIGLU_CLAMPED, 1.5f);
        return true;
    case 13:
        *name = "clamp";
        k_clamp(y, 2.0f, n);
        return true;
    case 14:
        *name = "relu2";
        k_act(y, n, ACT_RELU2);
        return true;
    case 15:
        *name = "exp_minus";
        k_exp_minus(y, in->x, 1.25f, n);
        return true;
    case 16:
        *name = "silu limited, in place";
        k_act_mul(y, y, in->w, n, ACT_SILU_LIMITED, 0.7f);
        return true;
    case 17:
        *name = "silu capped, in place";
        k_act_mul(y, y, in->w, n, ACT_SILU_CAPPED, 0.7f);
        return true;
    default:
        return false;
    }
}

/* The same in double; also the size of what was added up, for the bound. */
static double truth(int op, const input *in, int64_t n, int64_t i, double *size)
{
    double x = (double)in->x[i], w = (double)in->w[i], sum = 0, sq = 0, max = -1e300;
    for (int64_t k = 0; k < n; k++) {
        sum += (double)in->x[k];
        max = (double)in->x[k] > max ? (double)in->x[k] : max;
    }
    double mean = op == 6 || op == 7 ? sum / (double)n : 0;
    for (int64_t k = 0; k < n; k++) {
        double d = (double)in->x[k] - mean;
        sq += d * d;
    }
    double r = 1 / sqrt(sq / (double)n + (double)1e-5f), y;
    *size = fabs(x);
    switch (op) {
    case 0:
        return x / (1 + exp(-x));
    case 1:
        return 0.5 * x * (1 + erf(x * sqrt(0.5)));
    case 11:
    case 2:
        y = 0.5 * x * (1 + tanh(sqrt(2 / 3.14159265358979323846) * (x + 0.044715 * x * x * x)));
        return op == 11 ? y * w : y;
    case 3:
        return x > 0 ? x : 0;
    case 4:
        *size = fabs(x * r * (w + 1)) + fabs(x * r);
        return x * r * (w + 1);
    case 5:
        return x * r;
    case 6:
        *size = (fabs(x) + fabs(mean)) * r * fabs(w) * 10 + fabs((double)in->b[i]);
        return (x - mean) * r * w + (double)in->b[i];
    case 7:
        *size = (fabs(x) + fabs(mean)) * r * 10;
        return (x - mean) * r;
    case 8:
        return x / (1 + exp(-x)) * w;
    case 9:
        return 3 * tanh(x / 3);
    case 12:
        y = fmin(x, 1.5);
        return y / (1 + exp(-1.702 * y)) * (fmin(fmax(w, -1.5), 1.5) + 1);
    case 13:
        return fmin(fmax(x, -2), 2);
    case 14:
        *size = x * x;
        return x > 0 ? x * x : 0;
    case 15:
        *size = exp(x - 1.25) * (fabs(x) + 1.25); /* of the difference's rounding */
        return exp(x - 1.25);
    case 16:
        y = fmin(x, (double)0.7f);
        return y / (1 + exp(-y)) * fmin(fmax(w, -(double)0.7f), (double)0.7f);
    case 17:
        return fmin(x / (1 + exp(-x)), (double)0.7f) * fmin(fmax(w, -(double)0.7f), (double)0.7f);
    default:
        sum = 0;
        for (int64_t k = 0; k < n; k++)
            sum += exp((double)in->x[k] - max);
        *size = fabs(log(sum) + max) + 1;
        return log(sum) + max;
    }
}

TEST(row_operations_agree_with_double_precision)
{
    char family[16];
    family_use(0, family);
    input *in = malloc(sizeof *in);
    float y[MAX_N];
    const char *name;
    for (size_t l = 0; l < LQ_COUNT(lengths); l++)
        for (int op = 0; op < 18; op++) {
            int64_t n = lengths[l];
            if ((op == 6 || op == 7) && n < 15)
                continue; /* variance of one or two values: all rounding */
            input_fill(in, (uint64_t)n, 4);
            apply(op, y, in, n, &name);
            for (int64_t i = 0; i < (op == 10 ? 1 : n); i++) {
                double size, want = truth(op, in, n, i, &size);
                /* a handful of roundings, and the sums' n/16 + 4 on each */
                double bound = (12 + (double)n / 16) * 0x1p-23 * (fabs(want) + size);
                CHECK(fabs((double)y[i] - want) <= bound,
                      "%s of %lld: y[%lld] = %.9g, expected %.9g", name, (long long)n, (long long)i,
                      (double)y[i], want);
            }
        }
    free(in);
}

TEST(every_family_gives_the_same_bits)
{
    char family[16];
    static const float scales[] = { 1e-3f, 1, 30, 1e4f };
    input *in = malloc(sizeof *in);
    float y[MAX_N], want[MAX_N];
    const char *name;
    for (size_t s = 0; s < LQ_COUNT(scales); s++)
        for (size_t l = 0; l < LQ_COUNT(lengths); l++)
            for (int op = 0;; op++) {
                int64_t n = lengths[l];
                input_fill(in, (uint64_t)n, scales[s]);
                family_use(0, family);
                if (!apply(op, want, in, n, &name)) break;
                for (int f = 1; family_use(f, family); f++) {
                    memset(y, 0, sizeof y);
                    apply(op, y, in, n, &name);
                    int64_t i = 0;
                    while (i < n && memcmp(y + i, want + i, 4) == 0)
                        i++;
                    CHECK(i == n, "%s, %s of %lld: y[%lld] = %a, expected %a", family, name,
                          (long long)n, (long long)i, (double)y[i], (double)want[i]);
                }
            }
    free(in);
}

TEST(rope_turns_pairs_by_their_angle)
{
    float a[12] = { 1, 2, 3, 4, 9, 9, 5, 6, 7, 8, 9, 9 }, b[12];
    static const float c[] = { 0.6f, 0.0f }, s[] = { 0.8f, 1.0f };
    memcpy(b, a, sizeof a);
    k_rope(a, 2, 6, 4, c, s, true);
    static const float half[12] = { 0.6f * 1 - 0.8f * 3, -4, 0.6f * 3 + 0.8f * 1, 2, 9, 9,
                                    0.6f * 5 - 0.8f * 7, -8, 0.6f * 7 + 0.8f * 5, 6, 9, 9 };
    static const float pairs[12] = { 0.6f * 1 - 0.8f * 2, 0.6f * 2 + 0.8f * 1, -4, 3, 9, 9,
                                     0.6f * 5 - 0.8f * 6, 0.6f * 6 + 0.8f * 5, -8, 7, 9, 9 };
    k_rope(b, 2, 6, 4, c, s, false);
    for (int i = 0; i < 12; i++) {
        CHECK(fabsf(a[i] - half[i]) < 1e-6f, "half: [%d] = %g, expected %g", i, (double)a[i],
              (double)half[i]);
        CHECK(fabsf(b[i] - pairs[i]) < 1e-6f, "pairs: [%d] = %g, expected %g", i, (double)b[i],
              (double)pairs[i]);
    }
}

TEST(an_unknown_family_is_refused_by_name)
{
    lq_err err = { "" };
    CHECK(k_init("sse9", &err) == LQ_EUSAGE && strstr(err.msg, "sse9") && strstr(err.msg, "ref") &&
              !strstr(err.msg, "lacks"),
          "%s", err.msg);
    CHECK(!k_init("auto", &err) && strstr(k_list(), k_name()), "%s in %s", k_name(), k_list());
}

TEST(logsumexp_of_nothing_finite_is_what_it_is)
{
    static const float none[] = { -INFINITY, -INFINITY }, inf[] = { 1, INFINITY };
    CHECK(k_logsumexp(none, 2) == -INFINITY && k_logsumexp(inf, 2) == INFINITY, "infinities");
}

TEST(every_family_that_this_cpu_has_can_be_chosen)
{
    static const struct {
        const char *name;
        bool (*has)(void);
    } t[] = {
#if defined(__x86_64__)
        { "avx2", cpu_has_avx2 },
        { "avx512", cpu_has_avx512 },
        { "avxvnni", cpu_has_avxvnni },
        { "vnni", cpu_has_vnni },
        { "amx", cpu_has_amx },
        { "bf16", cpu_has_bf16 },
#elif defined(__aarch64__)
        { "neon", cpu_has_neon },
        { "neon-dot", cpu_has_neon_dot },
        { "neon-i8mm", cpu_has_neon_i8mm },
        { "neon-bf16", cpu_has_neon_bf16 },
#endif
        { "ref", NULL },
    };
    for (size_t i = 0; i < LQ_COUNT(t); i++) {
        bool has = !t[i].has || t[i].has();
        lq_err err = { "" };
        CHECK((k_init(t[i].name, &err) == LQ_OK) == has, "%s: the CPU %s it", t[i].name,
              has ? "has" : "lacks");
        CHECK(has == !strstr(err.msg, "this processor lacks"), "%s", err.msg);
        if (has) CHECK(strcmp(k_name(), t[i].name) == 0, "%s: found %s", t[i].name, k_name());
    }
    CHECK(k_init(NULL, NULL) == LQ_OK, "the best");
    const char *known = getenv("LLMQ_TEST_FAMILIES"); /* what an emulated CPU has */
    CHECK(!known || strcmp(k_list(), known) == 0, "found %s", k_list());
}

int main(int argc, char **argv)
{
    RUN(exp_tanh_and_erf_are_within_their_stated_error);
    RUN(log_is_good_to_the_last_float_digit);
    RUN(row_operations_agree_with_double_precision);
    RUN(every_family_gives_the_same_bits);
    RUN(rope_turns_pairs_by_their_angle);
    RUN(an_unknown_family_is_refused_by_name);
    RUN(logsumexp_of_nothing_finite_is_what_it_is);
    RUN(every_family_that_this_cpu_has_can_be_chosen);
    return check_end();
}
