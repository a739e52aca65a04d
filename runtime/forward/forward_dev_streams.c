/* runtime/forward/forward_dev_streams.c - several residual streams on a device (forward_altup.c says what they are).
 * Before and after a layer one launch each; Laurel takes one behind its products. */
#include "runtime/forward/forward_dev.h"

void fwd_dev_streams_begin(const fwd_rows *r)
{
    const fwd_dev_ctx *f = r->self;
    const arch_config *c = r->c;
    const int64_t W = fwd_streams_width(c), H = c->hidden, n = c->streams - 1;
    mm_out out[DEV_STREAMS];
    if (f->on->first) {
        f->d->ops->upload(f->d, r->streams, f->host.streams, (size_t)(r->R * W) * sizeof(float));
        return;
    }
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
