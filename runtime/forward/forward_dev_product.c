/* runtime/forward/forward_dev_product.c - products and norms on a device: what a product reads may be put off until
 * it, or made in its own order. */
#include "runtime/forward/forward_dev.h"

void fwd_dev_copy(const fwd_rows *r, float *dst, int64_t ldd, const float *src, int64_t lds,
                  int64_t n, int64_t rows)
{
    const fwd_dev_ctx *f = r->self;
    const size_t w = sizeof *dst;
    f->d->ops->copy(
        f->d, &(dev_copy_args){ dst, src, (size_t)n * w, (size_t)ldd * w, (size_t)lds * w, rows });
}

void fwd_dev_gather(const fwd_rows *r, float **x, float **spare, int64_t K, int64_t n)
{
    const fwd_dev_ctx *f = r->self;
    float *from = *x;
    f->d->ops->embed(f->d, &(dev_embed_args){ .x = *spare,
                                              .table = from,
                                              .dtype = LQ_F32,
                                              .ids = f->picked,
                                              .T = n,
                                              .K = K,
                                              .scale = 1 });
    *x = *spare;
    *spare = from;
}

/* T rows of K; those that are added, another place and other weights are the caller's. */
dev_norm_args fwd_dev_norm_of(const fwd_rows *r, float *dst, float *x, const model_vector *v,
                              int64_t T, int64_t K)
{
    return (dev_norm_args){ .x = x,
                            .h = dst,
                            .w = v ? v->w : NULL,
                            .b = v ? v->bias : NULL,
                            .offset = v ? v->offset : 0,
                            .eps = v ? v->eps : 0,
                            .layer = r->c->w.norm == NORM_LAYER,
                            .T = T,
                            .K = K };
}

dev_post_args fwd_dev_post_of(const fwd_rows *r, float *to, const model_vector *v)
{
    return (dev_post_args){ .to = to,
                            .y = r->y,
                            .w = v->w,
                            .b = v->bias,
                            .offset = v->offset,
                            .eps = v->eps,
                            .layer = r->c->w.norm == NORM_LAYER,
                            .T = r->R,
                            .K = r->c->hidden,
                            .n = 1 };
}

/* What products of the layers read; the final norm's output goes to the host as well. It is put off
 * where only the next product reads it (but for a parallel MLP): see settle_norm. */
void fwd_dev_norm(const fwd_rows *r, float *dst, float *x, const model_vector *v, int64_t T,
                  int64_t K)
{
    fwd_dev_ctx *f = r->self;
    dev_norm_args a = fwd_dev_norm_of(r, dst, x, v, T, K);
    a.bf16 = f->rounds && dst == r->h && v != &f->on->w.final_norm;
    const bool alone = !r->c->w.parallel && !f->lora.now->n; /* adapters read it too */
    if (v->w && a.bf16 && alone)
        f->late_norm = a;
    else if (v->w)
        f->d->ops->norm(f->d, &a);
    else if (dst != x)
        fwd_dev_copy(r, dst, K, x, K, K, T);
}

/* Whether a product reads what was rounded for it. With norms after the sum h is x as it is. */
static bool is_rounded(const fwd_rows *r, const mm_weight *w, const float *x)
{
    const fwd_dev_ctx *f = r->self;
    const model *m = &f->on->w;
    const bool layers = w != &m->head.w && w != &m->proj_out.w;
    return f->rounds && layers &&
           (x == r->a || x == r->mlp || (x == r->h && !r->c->w.norm_after_add));
}

/* Where x [M], that the product of w alone will read, is to go: into its scratch, if it can. */
dev_order fwd_dev_order_for(fwd_dev_ctx *f, const dev_weight *w, mm_acts acts, int64_t M,
                            const float *x)
{
    const int64_t how = f->d->ops->mm_order(f->d, w, acts, M);
    if (how < 0) return (dev_order){ 0 };
    f->ordered = x;
    return (dev_order){ f->mm_scratch, how };
}

/* Now, or, where w is all that reads x, by its product, whose norm it is: true, and *x is what goes
 * into that. */
static bool settle_norm(const fwd_rows *r, dev_mm_norm *n, const float **x, const dev_weight *w,
                        mm_acts acts)
{
    fwd_dev_ctx *f = r->self;
    const dev_norm_args late = f->late_norm;
    if (*x != r->h || late.T == 0) return false;
    f->late_norm.T = 0;
    if (!w || !dev_norms(f->d, w, acts, late.T)) {
        dev_norm_args a = late;
        if (w) a.order = fwd_dev_order_for(f, w, acts, late.T, r->h);
        f->d->ops->norm(f->d, &a);
        return false;
    }
    *n = (dev_mm_norm){ late.w, late.b, late.offset, late.eps, late.layer };
    *x = late.x;
    return true;
}

/* y [M, ldy] = x l^T + bias, or added to y. before: the product before it, of the same x, which may
 * have arranged it; or NULL. alone: no other reads x. */
void fwd_dev_product(const fwd_rows *r, const mm_out *o, const mm_out *before, bool alone,
                     const float *x, int64_t ldx, int64_t M, mm_acts acts, dev_mm_act act)
{
    fwd_dev_ctx *f = r->self;
    const dev_weight w = fwd_dev_weight(o->w), last = fwd_dev_weight(before ? before->w : o->w);
    const float *from = x;
    dev_mm_norm n;
    const bool normed = settle_norm(r, &n, &from, alone ? &w : NULL, acts), there = f->ordered == x;
    f->ordered = NULL;
    f->d->ops->matmul(
        f->d, &(dev_mm_args){ .y = o->y,
                              .w = &w,
                              .x = from,
                              .norm = normed ? &n : NULL,
                              .bias = o->bias,
                              .scratch = f->mm_scratch,
                              .ldy = o->ldy,
                              .ldx = ldx,
                              .M = M,
                              .acts = acts,
                              .add = o->add,
                              .rounded = !normed && is_rounded(r, o->w, x),
                              .act = act,
                              .arranged = there || (before && dev_same_input(&w, &last, acts)) });
}

void fwd_dev_products(const fwd_rows *r, const mm_out *outs, int n, const float *x, int64_t ldx,
                      int64_t M, mm_acts acts)
{
    for (int i = 0; i < n; i++)
        fwd_dev_product(r, &outs[i], i ? &outs[i - 1] : NULL, n == 1, x, ldx, M, acts,
                        (dev_mm_act){ 0 });
}

void fwd_dev_times(const fwd_rows *r, float *x, int64_t n, int64_t ld, double factor)
{
    const fwd_dev_ctx *f = r->self;
    const dev_times_args a = { .x = x, .T = r->R, .n = n, .ld = ld, .factor = (float)factor };
    if (factor != 1) f->d->ops->times(f->d, &a);
}

void fwd_dev_grow(const fwd_rows *r, float *x, int64_t H, int64_t D, const model_vector *slope,
                  const model_vector *base)
{
    const fwd_dev_ctx *f = r->self;
    const int64_t n = H * D;
    if (!slope->w) return;
    f->d->ops->times(f->d, &(dev_times_args){ .x = x,
                                              .T = r->R,
                                              .n = n,
                                              .ld = n,
                                              .slope = slope->w,
                                              .base = base->w,
                                              .turns = r->turns,
                                              .D = D });
}

void fwd_dev_turn(const fwd_rows *r, float *x, int64_t H, int64_t D, int64_t ld, bool bf16)
{
    const fwd_dev_ctx *f = r->self;
    const int64_t T = r->R;
    f->d->ops->turn(f->d, &(dev_turn_args){ x, T, H, D, ld ? ld : H * D, bf16 });
}

/* The q of each head of q_gate, without its gate. */
void fwd_dev_split_gated(const fwd_rows *r)
{
    const fwd_dev_ctx *f = r->self;
    const size_t D = (size_t)r->c->head_dim * sizeof(float),
                 V = (size_t)r->c->v_dim * sizeof(float);
    f->d->ops->copy(f->d, &(dev_copy_args){ r->q, r->q_gate, D, D, D + V, r->R * r->c->heads });
}

void fwd_dev_product_of_set(const fwd_rows *r, const model_experts *w, const dev_group *group,
                            int64_t M, float *y, int64_t ldy, const float *x, int64_t ldx)
{
    const fwd_dev_ctx *f = r->self;
    f->d->ops->matmul(f->d, &(dev_mm_args){ .y = y,
                                            .w = &w->w,
                                            .group = group,
                                            .x = x,
                                            .scratch = f->mm_scratch,
                                            .ldy = ldy,
                                            .ldx = ldx,
                                            .M = M,
                                            .acts = r->acts });
}

/* As fwd_gate_norm. In f32 whatever the activations are. */
void fwd_dev_gate_norm(const fwd_rows *r, const model_layer *l, arch_role down, arch_role up)
{
    const fwd_dev_ctx *f = r->self;
    const int64_t H = r->c->hidden, W = r->c->norm_rank;
    const mm_out low = fwd_out(&l->lin[down], r->norm_gate, W, false),
                 gate = fwd_out(&l->lin[up], r->y, H, false);
    fwd_dev_products(r, &low, 1, r->h, H, r->R, MM_F32);
    f->d->ops->act(f->d, &(dev_act_args){ .dst = r->norm_gate,
                                          .gate = r->norm_gate,
                                          .T = r->R,
                                          .n = W,
                                          .ldd = W,
                                          .ld = W,
                                          .f = (k_act_fn)ARCH_SILU });
    fwd_dev_products(r, &gate, 1, r->norm_gate, W, r->R, MM_F32);
    f->d->ops->gate(f->d, &(dev_gate_args){ .x = r->h,
                                            .gate = r->y,
                                            .T = r->R,
                                            .S = 1,
                                            .n = H,
                                            .ldx = H,
                                            .ldg = H,
                                            .each = 1,
                                            .width = H,
                                            .f = DEV_GATE_SIGMOID });
}
