/* runtime/forward/forward_dev_streams.c - several residual streams on a device (forward_altup.c and forward_hyper.c say
 * what they are). AltUp's take one launch before a layer and one after it, and Laurel one behind its products; those
 * of hyper-connections a product and a launch before a branch, and one after it. */
#include "runtime/forward/forward_dev.h"

static_assert((int)DEV_STREAMS >= (int)ARCH_MAX_STREAMS, "what kernels have room for");

/* Where the first layers are the CPU's. */
static bool come_over(const fwd_rows *r)
{
    const fwd_dev_ctx *f = r->self;
    const size_t n = (size_t)(r->R * fwd_streams_width(r->c)) * sizeof *r->streams;
    if (f->on->first) f->d->ops->upload(f->d, r->streams, f->host.streams, n);
    return f->on->first > 0;
}

void fwd_dev_streams_begin(const fwd_rows *r)
{
    const fwd_dev_ctx *f = r->self;
    const arch_config *c = r->c;
    const int64_t W = fwd_streams_width(c), H = c->hidden, n = c->streams - 1;
    mm_out out[DEV_STREAMS];
    if (come_over(r)) return;
    for (int64_t i = 0; i < n; i++)
        out[i] = fwd_out(&f->on->w.stream_in[i], r->streams + i * H, W, false);
    fwd_dev_products(r, out, (int)n, r->x, H, r->R, r->acts);
    f->d->ops->gauge(f->d, &(dev_gauge_args){ .out = r->streams,
                                              .y = r->streams,
                                              .x = r->x,
                                              .T = r->R,
                                              .K = H,
                                              .n = n,
                                              .ld = W,
                                              .factor = 1 });
}

void fwd_dev_shortcut_begin(const fwd_rows *r)
{
    const fwd_dev_ctx *f = r->self;
    if (f->on->first && !r->c->layer[f->on->first].moe) come_over(r);
}

static void around_layer(const fwd_rows *r, const model_layer *l, arch_role coef,
                         const float *scale)
{
    const fwd_dev_ctx *f = r->self;
    const model_vector *norm = &l->vec[R_STREAM_NORM];
    f->d->ops->altup(f->d, &(dev_altup_args){ .x = r->x,
                                              .streams = r->streams,
                                              .first = r->first,
                                              .y = r->y,
                                              .norm = norm->w,
                                              .router = l->vec[R_STREAM_ROUTER].w,
                                              .coef = l->vec[coef].w,
                                              .scale = scale,
                                              .offset = norm->offset,
                                              .eps = norm->eps,
                                              .T = r->R,
                                              .K = r->c->hidden,
                                              .n = r->c->streams });
}

void fwd_dev_predict(const fwd_rows *r, const model_layer *l)
{
    around_layer(r, l, R_STREAM_PREDICT, NULL);
}

/* y is left as what R_PLE_GATE reads. */
void fwd_dev_correct(const fwd_rows *r, const model_layer *l)
{
    around_layer(r, l, R_STREAM_CORRECT, l->vec[R_STREAM_SCALE].w);
}

void fwd_dev_laurel(const fwd_rows *r, const model_layer *l)
{
    const fwd_dev_ctx *f = r->self;
    const arch_config *c = r->c;
    const mm_out left = fwd_out(&l->lin[R_LAUREL_LEFT], r->laurel, c->laurel, false),
                 right = fwd_out(&l->lin[R_LAUREL_RIGHT], r->y, c->hidden, false);
    dev_post_args to = fwd_dev_post_of(r, r->x, &l->vec[R_LAUREL_NORM]);
    to.more = r->h;
    to.factor = (float)sqrt(0.5);
    fwd_dev_products(r, &left, 1, r->h, c->hidden, r->R, r->acts);
    fwd_dev_products(r, &right, 1, r->laurel, c->laurel, r->R, r->acts);
    f->d->ops->post(f->d, &to);
}

/* x = (x + what each of the others gives) / streams; the sum so far is in `first`. */
void fwd_dev_streams_end(const fwd_rows *r, const model_layer *l)
{
    const fwd_dev_ctx *f = r->self;
    const arch_config *c = r->c;
    const int64_t W = fwd_streams_width(c), H = c->hidden, n = c->streams - 1;
    for (int64_t i = 0; i < n; i++) {
        const bool last = i == n - 1;
        const mm_out out = fwd_out(&l->stream_out[i], r->y, H, false);
        fwd_dev_products(r, &out, 1, r->streams + i * H, W, r->R, r->acts);
        f->d->ops->gauge(f->d, &(dev_gauge_args){ .out = last ? r->x : r->first,
                                                  .y = r->y,
                                                  .x = r->x,
                                                  .base = i ? r->first : r->x,
                                                  .T = r->R,
                                                  .K = H,
                                                  .n = 1,
                                                  .ld = H,
                                                  .factor = last ? 1 / (float)c->streams : 1 });
    }
}

/* ---- hyper-connections ---- */

void fwd_dev_hyper_begin(const fwd_rows *r)
{
    const int64_t W = fwd_streams_width(r->c), H = r->c->hidden;
    if (come_over(r)) return;
    for (int64_t j = 0; j < r->c->hyper; j++)
        fwd_dev_copy(r, r->streams + j * H, W, r->x, H, H, r->R);
}

/* x from the streams, by roles from fn on; ld: of the products that fn gives. In f32, as on the CPU. */
static void collapse(const fwd_rows *r, const model_layer *l, arch_role fn, int64_t ld, bool after)
{
    const fwd_dev_ctx *f = r->self;
    const arch_config *c = r->c;
    const mm_out out = fwd_out(&l->lin[fn], r->hyper, ld, false);
    fwd_dev_product(r, &out, NULL, false, r->streams, fwd_streams_width(c), r->R, MM_F32,
                    (dev_mm_act){ 0 });
    f->d->ops->collapse(f->d, &(dev_collapse_args){ .x = r->x,
                                                    .mix = r->hyper,
                                                    .streams = r->streams,
                                                    .base = l->vec[fn + 1].w,
                                                    .scale = l->vec[fn + 2].w,
                                                    .norm_eps = (float)c->norm_eps,
                                                    .eps = (float)c->hyper_eps,
                                                    .post = (float)c->hyper_post,
                                                    .after = after,
                                                    .steps = after ? c->hyper_steps : 0,
                                                    .T = r->R,
                                                    .K = c->hidden,
                                                    .n = c->hyper,
                                                    .ldm = ld });
}

void fwd_dev_hyper_enter(const fwd_rows *r, const model_layer *l, arch_role fn, arch_role norm)
{
    (void)norm; /* of gates, which no device has */
    collapse(r, l, fn, arch_hyper_width(r->c), true);
}

void fwd_dev_hyper_leave(const fwd_rows *r)
{
    const fwd_dev_ctx *f = r->self;
    const arch_config *c = r->c;
    f->d->ops->spread(f->d, &(dev_spread_args){ .streams = r->streams,
                                                .y = r->y,
                                                .by = r->hyper + c->hyper,
                                                .mixed = c->hyper_steps > 0,
                                                .T = r->R,
                                                .K = c->hidden,
                                                .n = c->hyper,
                                                .ldb = arch_hyper_width(c) });
}

void fwd_dev_hyper_mean(const fwd_rows *r)
{
    const fwd_dev_ctx *f = r->self;
    f->d->ops->collapse(
        f->d,
        &(dev_collapse_args){
            .x = r->x, .streams = r->streams, .T = r->R, .K = r->c->hidden, .n = r->c->hyper });
}

void fwd_dev_hyper_end(const fwd_rows *r, const model_layer *l)
{
    collapse(r, l, R_HYPER_END_FN, r->c->hyper, false);
}
