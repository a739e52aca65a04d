/* runtime/forward/forward_each.c - work on the rows of a step in chunks, and who looks at them; see forward_impl.h. */
#include "runtime/forward/forward_impl.h"

typedef void row_fn(const fwd_rows *r, int64_t row, int64_t n, const void *arg);
typedef struct {
    const fwd_rows *r;
    int64_t R;
    row_fn *fn;
    const void *arg;
} row_job;

static void row_item(void *ctx, int64_t item, int thread)
{
    const row_job *j = ctx;
    int64_t from = item * FWD_ROWS, left = j->R - from;
    (void)thread;
    j->fn(j->r, from, left < FWD_ROWS ? left : FWD_ROWS, j->arg);
}

void fwd_each(const fwd_rows *r, int64_t R, row_fn *fn, const void *arg)
{
    row_job j = { r, R, fn, arg };
    pool_run(r->p, lq_ceil_div(R, FWD_ROWS), row_item, &j);
}

typedef struct {
    float *x;
    int64_t ldx, K;
    const model_vector *v;
} within;

static void within_chunk(const fwd_rows *r, int64_t row, int64_t n, const void *arg)
{
    const within *a = arg;
    (void)r;
    float *x = a->x + row * a->ldx;
    k_rmsnorm(x, a->ldx, x, a->ldx, a->v->w, a->v->offset, n, a->K, a->v->eps);
}

void fwd_norm_within(const fwd_rows *r, float *x, int64_t ldx, const model_vector *norm, int64_t K)
{
    const within a = { x, ldx, K, norm };
    if (norm->w) fwd_each(r, r->R, within_chunk, &a);
}

void fwd_tap_rows(const fwd_rows *r, arch_role role, const float *x, int64_t ldx, int64_t K)
{
    if (r->tap) r->tap->tap(r->tap->user, role, -1, x, ldx, r->R, K);
}

void fwd_act_mixed(float *x, int64_t n, k_act_fn f, float limit)
{
    enum { AT_ONCE = 64 };
    /* Writing follows reading at half its pace. */
    for (int64_t i = 0; i < n; i += AT_ONCE) {
        float gate[AT_ONCE], up[AT_ONCE];
        const int64_t here = n - i < AT_ONCE ? n - i : AT_ONCE;
        for (int64_t j = 0; j < here; j++) {
            gate[j] = x[2 * (i + j)];
            up[j] = x[2 * (i + j) + 1];
        }
        k_act_mul(x + i, gate, up, here, f, limit);
    }
}
