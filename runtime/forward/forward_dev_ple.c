/* runtime/forward/forward_dev_ple.c - per-layer embeddings on a device (forward_ple.c says what they are). The
 * table stays with the host, which looks its rows up; projection and sums are the device's, unless the first
 * layers are the CPU's: then it has made them for all. */
#include "runtime/forward/forward_dev.h"

void fwd_dev_ple_send(fwd_rows *r, const model *m, const int32_t *ids)
{
    fwd_dev_ctx *f = r->self;
    const size_t n = (size_t)(r->R * fwd_ple_width(r->c)) * sizeof *f->ple;
    const bool made = f->on->first > 0;
    if (made)
        memcpy(f->ple, f->host.ple, n);
    else
        fwd_ple_lookup(&f->host, m, ids, f->ple);
    f->d->ops->upload(f->d, made ? r->ple : r->ple_row, f->ple, n);
}

void fwd_dev_ple_rows(const fwd_rows *r)
{
    fwd_dev_ctx *f = r->self;
    const arch_config *c = r->c;
    const model *w = &f->on->w;
    const int64_t W = fwd_ple_width(c), D = c->ple_dim, H = c->hidden, n = r->R * c->layers;
    const mm_out out = fwd_out(&w->ple_proj, r->ple, W, false);
    if (f->on->first) return;
    fwd_dev_products(r, &out, 1, r->x, H, r->R, r->acts);
    fwd_dev_times(r, r->ple, W, W, pow((double)H, -0.5));
    dev_norm_args a = fwd_dev_norm_of(r, r->ple, r->ple, &w->ple_norm, n, D);
    f->d->ops->norm(f->d, &a);
    f->d->ops->norm(f->d, &(dev_norm_args){ .x = r->ple, .add = r->ple_row, .T = n, .K = D });
    fwd_dev_times(r, r->ple, W, W, pow(2, -0.5));
}

void fwd_dev_ple_add(const fwd_rows *r, const model_layer *l, int64_t layer)
{
    fwd_dev_ctx *f = r->self;
    const arch_config *c = r->c;
    const int64_t D = c->ple_dim, H = c->hidden;
    const mm_out gate = fwd_out(&l->lin[R_PLE_GATE], r->ple_in, D, false),
                 out = fwd_out(&l->lin[R_PLE_OUT], r->y, H, false);
    fwd_dev_products(r, &gate, 1, c->streams ? r->y : r->x, H, r->R, r->acts);
    f->d->ops->act(f->d, &(dev_act_args){ .dst = r->ple_in,
                                          .gate = r->ple_in,
                                          .up = r->ple + layer * D,
                                          .T = r->R,
                                          .n = D,
                                          .ldd = D,
                                          .ld = D,
                                          .ld_up = fwd_ple_width(c),
                                          .f = (k_act_fn)c->act,
                                          .limit = (float)c->act_limit });
    fwd_dev_products(r, &out, 1, r->ple_in, D, r->R, r->acts);
    dev_post_args to = fwd_dev_post_of(r, r->x, &l->vec[R_PLE_POST_NORM]);
    if (c->streams) {
        to.to = r->streams;
        to.n = c->streams - 1;
    }
    f->d->ops->post(f->d, &to);
}
