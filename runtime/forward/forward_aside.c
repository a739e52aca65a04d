/* runtime/forward/forward_aside.c - transformers beside the residual x, e its first value (Zamba2, arXiv:2411.15242):
 *
 *   a = attention(norm [x, e]) + what this use's adapters add;  t = mlp(norm(a)), likewise
 *   the next layer reads norm(x + out t), and adds what it gives to x
 *
 * Of a row of r->streams the first half is e, the second the x that goes on. */
#include "runtime/forward/forward_impl.h"

static void begin_rows(const fwd_rows *r, int64_t row, int64_t n, const void *arg)
{
    const int64_t H = r->c->hidden;
    (void)arg;
    for (int64_t t = row; t < row + n; t++)
        memcpy(r->streams + 2 * t * H, r->x + t * H, (size_t)H * sizeof(float));
}

void fwd_aside_begin(const fwd_rows *r) { fwd_each(r, r->R, begin_rows, NULL); }

static void enter_rows(const fwd_rows *r, int64_t row, int64_t n, const void *arg)
{
    const int64_t H = r->c->hidden;
    const size_t bytes = (size_t)H * sizeof(float);
    (void)arg;
    for (int64_t t = row; t < row + n; t++) {
        float *x = r->x + t * H, *e = r->streams + 2 * t * H, *in = r->mtp_in + 2 * t * H;
        memcpy(in, x, bytes);
        memcpy(in + H, e, bytes);
        memcpy(e + H, x, bytes);
    }
}

void fwd_aside_enter(const fwd_rows *r, const model_layer *l)
{
    pool_stage(r->p, STAGE_NORM);
    fwd_each(r, r->R, enter_rows, NULL);
    r->ops->norm(r, r->mtp_in, r->mtp_in, &l->vec[R_PAIR_NORM], r->R, 2 * r->c->hidden);
    fwd_aside_clear(r);
}

void fwd_aside_clear(const fwd_rows *r)
{
    memset(r->x, 0, (size_t)(r->R * r->c->hidden) * sizeof *r->x);
}

static void leave_rows(const fwd_rows *r, int64_t row, int64_t n, const void *arg)
{
    const int64_t H = r->c->hidden;
    (void)arg;
    for (int64_t t = row; t < row + n; t++) {
        memcpy(r->x + t * H, r->streams + (2 * t + 1) * H, (size_t)H * sizeof(float));
        k_add(r->x + t * H, r->y + t * H, H);
    }
}

void fwd_aside_leave(const fwd_rows *r, const model_layer *l)
{
    const int64_t H = r->c->hidden;
    const mm_out out = fwd_out(&l->lin[R_ASIDE_OUT], r->y, H, false);
    pool_stage(r->p, STAGE_MLP_OUT);
    r->ops->products(r, &out, 1, r->x, H, r->R);
    fwd_each(r, r->R, leave_rows, NULL);
}

static void resume_rows(const fwd_rows *r, int64_t row, int64_t n, const void *arg)
{
    const int64_t H = r->c->hidden;
    (void)arg;
    for (int64_t t = row; t < row + n; t++)
        memcpy(r->x + t * H, r->streams + (2 * t + 1) * H, (size_t)H * sizeof(float));
}

void fwd_aside_resume(const fwd_rows *r) { fwd_each(r, r->R, resume_rows, NULL); }

void fwd_aside_adapt(const fwd_rows *r, const model_layer *l, arch_role low, float *y, int64_t ldy,
                     const float *x, int64_t K)
{
    const int64_t rank = r->c->aside_rank;
    const mm_out in = fwd_out(&l->lin[low], r->aside_low, rank, false),
                 out = fwd_out(&l->lin[low + 1], y, ldy, true);
    r->ops->products(r, &in, 1, x, K, r->R);
    r->ops->products(r, &out, 1, r->aside_low, rank, r->R);
}
