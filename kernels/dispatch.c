/* kernels/dispatch.c - choosing the kernels, and the operations of ops.h on top of the table. */
#include "kernels/dispatch.h"
#include "kernels/core/kmath.h"
#include "kernels/ops.h"
#include "kernels/scan.h"

#include <pthread.h>
#include <stdio.h>

static const k_ops *const tables[] = {
    /* slowest first; k_ref is complete */
    &k_ref,
#if defined(__x86_64__)
    &k_avx2, &k_avxvnni, &k_avx512, &k_vnni, &k_amx, &k_bf16,
#elif defined(__aarch64__)
    &k_neon, &k_neon_dot, &k_neon_i8mm, &k_neon_bf,
#endif
};

static k_ops ops;
static const k_ops *in_use = &k_ref;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int holders;

static void dispatch_take(k_ops *out, const k_ops *t)
{
    out->name = t->name;
#define X(result, op, args) \
    if (t->op) out->op = t->op;
    K_OPS(X)
#undef X
}

const char *k_list(void)
{
    static char list[64];
    size_t n = 0;
    for (size_t i = 0; i < LQ_COUNT(tables); i++)
        if (tables[i]->usable())
            n += (size_t)snprintf(list + n, sizeof list - n, "%s%s", n ? " " : "", tables[i]->name);
    return list;
}

static bool compiled_in(const char *name)
{
    for (size_t i = 0; i < LQ_COUNT(tables); i++)
        if (strcmp(name, tables[i]->name) == 0) return true;
    return false;
}

static lq_status dispatch_choose(const char *want, lq_err *err)
{
    k_ops chosen = { 0 };
    if (want && strcmp(want, "auto") == 0) want = NULL;
    for (size_t i = 0; i < LQ_COUNT(tables); i++) {
        if (!tables[i]->usable()) continue;
        if (!want && tables[i]->pays && !tables[i]->pays()) continue;
        dispatch_take(&chosen, tables[i]);
        if (want && strcmp(want, tables[i]->name) == 0) {
            want = NULL;
            break;
        }
    }
    if (want)
        return lq_fail(err, LQ_EUSAGE, "--kernels: expected auto or one of: %s; found %s%s",
                       k_list(), want, compiled_in(want) ? ", which this processor lacks" : "");
    ops = chosen;
    in_use = &ops;
    return LQ_OK;
}

static lq_status choose_unless_held(const char *want, lq_err *err)
{
    if (!holders) return dispatch_choose(want, err);
    if (!want || strcmp(want, "auto") == 0 || strcmp(want, in_use->name) == 0) return LQ_OK;
    return lq_fail(err, LQ_EBUSY, "--kernels: %s are in use by this process, not %s", in_use->name,
                   want);
}

lq_status k_init(const char *want, lq_err *err)
{
    pthread_mutex_lock(&lock);
    const lq_status s = choose_unless_held(want, err);
    pthread_mutex_unlock(&lock);
    return s;
}

lq_status k_hold(const char *want, lq_err *err)
{
    pthread_mutex_lock(&lock);
    const lq_status s = choose_unless_held(want, err);
    holders += !s;
    pthread_mutex_unlock(&lock);
    return s;
}

void k_release(void)
{
    pthread_mutex_lock(&lock);
    holders--;
    pthread_mutex_unlock(&lock);
}

const k_ops *k_get(void) { return in_use; }
const char *k_name(void) { return in_use->name; }

void k_rmsnorm(float *dst, int64_t ldd, const float *x, int64_t ldx, const float *w, float w_offset,
               int64_t T, int64_t K, float eps)
{
    for (int64_t t = 0; t < T; t++)
        in_use->rmsnorm(dst + t * ldd, x + t * ldx, w, w_offset, K, eps);
}

void k_layernorm(float *dst, int64_t ldd, const float *x, int64_t ldx, const float *w,
                 const float *b, float w_offset, int64_t T, int64_t K, float eps)
{
    for (int64_t t = 0; t < T; t++)
        in_use->layernorm(dst + t * ldd, x + t * ldx, w, b, w_offset, K, eps);
}

void k_rope(float *x, int64_t H, int64_t D, int64_t R, const float *cos, const float *sin,
            bool half)
{
    int64_t n = R / 2, step = half ? 1 : 2, apart = half ? n : 1;
    for (int64_t h = 0; h < H; h++, x += D)
        for (int64_t i = 0; i < n; i++) {
            float *a = x + i * step, *b = a + apart, u = *a, v = *b;
            *a = u * cos[i] - v * sin[i];
            *b = v * cos[i] + u * sin[i];
        }
}

void k_act(float *x, int64_t n, k_act_fn f) { in_use->act(x, x, n, f); }

static void keep_below(float *dst, const float *x, int64_t n, float limit)
{
    for (int64_t i = 0; i < n; i++)
        dst[i] = x[i] > limit ? limit : x[i];
}

/* The gate is bounded before SiLU, or (capped) what it gives. NaN stays NaN. */
static void limited_silu(float *dst, const float *gate, const float *up, int64_t n, float limit,
                         bool capped)
{
    float bounded[512];
    memcpy(bounded, up, (size_t)n * sizeof *up);
    k_clamp(bounded, limit, n);
    if (!capped) keep_below(dst, gate, n, limit);
    in_use->act(dst, capped ? gate : dst, n, ACT_SILU);
    if (capped) keep_below(dst, dst, n, limit);
    in_use->mul(dst, bounded, n);
}

void k_act_mul(float *dst, const float *gate, const float *up, int64_t n, k_act_fn f, float limit)
{
    if (f == ACT_SWIGLU_CLAMPED) {
        in_use->swiglu_clamped(dst, gate, up, n, limit);
        return;
    }
    enum { PIECE = 512 }; /* stays in the first cache; also lets dst be gate or up */
    float tmp[PIECE];
    for (int64_t i = 0; i < n; i += PIECE) {
        int64_t m = n - i < PIECE ? n - i : PIECE;
        if (f == ACT_SILU_LIMITED || f == ACT_SILU_CAPPED) {
            limited_silu(tmp, gate + i, up + i, m, limit, f == ACT_SILU_CAPPED);
        } else {
            in_use->act(tmp, gate + i, m, f);
            in_use->mul(tmp, up + i, m);
        }
        memcpy(dst + i, tmp, (size_t)m * sizeof *tmp);
    }
}

void k_add(float *dst, const float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        dst[i] += x[i];
}

void k_scale(float *x, float s, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        x[i] *= s;
}

void k_clamp(float *x, float limit, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        x[i] = x[i] > limit ? limit : x[i] < -limit ? -limit : x[i];
}

void k_softcap(float *x, float cap, int64_t n) { in_use->softcap(x, cap, n); }
float k_exp(float x) { return km_exp(x); }
void k_exp_minus(float *dst, const float *x, float c, int64_t n)
{
    in_use->exp_minus(dst, x, c, n);
}
float k_logsumexp(const float *x, int64_t n) { return in_use->logsumexp(x, n); }
void k_conv(const k_conv_args *a) { in_use->conv(a); }
void k_scan(const k_scan_args *a) { in_use->scan(a); }
void k_select(const k_select_args *a) { in_use->select(a); }
void k_softplus(float *x, const float *add, int64_t n) { in_use->softplus(x, add, n); }
