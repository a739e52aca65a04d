/* runtime/forward/forward_dev_head.c - what guesses beside a model, on a device: what an MTP head's or an EAGLE-3 draft's
 * layer reads, as forward_embed.c; and of the model the hidden states of all rows. */
#include "runtime/forward/forward_dev.h"

/* The norm v of rows [R, n], in rows of ld, in place. */
static void norm_here(const fwd_rows *r, float *x, const float *w, const model_vector *v, int64_t n,
                      int64_t ld)
{
    const fwd_dev_ctx *f = r->self;
    f->d->ops->norm(f->d, &(dev_norm_args){ .x = x,
                                            .h = x,
                                            .w = w,
                                            .offset = v->offset,
                                            .eps = v->eps,
                                            .T = r->R,
                                            .K = n,
                                            .ld = ld });
}

/* The norm of `from` [R, hidden] as columns of mtp_in. */
static void norm_half(const fwd_rows *r, int64_t at, const float *from, const model_vector *v)
{
    const int64_t H = r->c->hidden;
    fwd_dev_copy(r, r->mtp_in + at, 2 * H, from, H, H, r->R);
    norm_here(r, r->mtp_in + at, v->w, v, H, 2 * H);
}

/* x from the model's states, of which each or all as one are normed. */
static void read_states(const fwd_rows *r, const model *m)
{
    const model_vector *v = &m->mtp_states_norm;
    const int64_t T = r->c->target_hidden, all = 3 * T, n = r->c->norm_each ? T : all;
    const mm_out out = fwd_out(&m->mtp_proj, r->x, r->c->hidden, false);
    for (int64_t at = 0; at < all && v->w; at += n)
        norm_here(r, r->given + at, v->w + at, v, n, all);
    fwd_dev_products(r, &out, 1, r->given, all, r->R, r->acts);
}

static void eagle_rows(const fwd_rows *r, const model *m)
{
    const int64_t H = r->c->hidden;
    norm_half(r, 0, r->x, &m->mtp_embed_norm);
    if (r->given_own)
        fwd_dev_copy(r, r->x, H, r->given, H, H, r->R);
    else
        read_states(r, m);
    if (r->given_own && r->c->norm_own) norm_here(r, r->x, m->final_norm.w, &m->final_norm, H, H);
    norm_half(r, H, r->x, &m->mtp_hidden_norm);
    if (r->c->norm_first) fwd_dev_copy(r, r->x, H, r->mtp_in + H, 2 * H, H, r->R);
}

void fwd_dev_read_given(const fwd_rows *r)
{
    const fwd_dev_ctx *f = r->self;
    const model *m = &f->on->w;
    const int64_t H = r->c->hidden, embed = r->c->mtp->hidden_first ? H : 0;
    const bool eagle = arch_is_eagle(r->c);
    const int64_t W = eagle && !r->given_own ? 3 * r->c->target_hidden : H;
    const mm_out out = fwd_out(&m->mtp_proj, r->x, H, false);
    f->d->ops->upload(f->d, r->given, f->host.given, (size_t)(r->R * W) * sizeof *r->given);
    if (eagle) {
        eagle_rows(r, m);
        return;
    }
    norm_half(r, embed, r->x, &m->mtp_embed_norm);
    norm_half(r, H - embed, r->given, &m->mtp_hidden_norm);
    fwd_dev_products(r, &out, 1, r->mtp_in, 2 * H, r->R, r->acts);
}

void fwd_dev_keep(const fwd_rows *r, int64_t at, int64_t width)
{
    const int64_t H = r->c->hidden;
    fwd_dev_copy(r, r->all + at, width, r->x, H, H, r->R);
}

void fwd_dev_keep_all(fwd_rows *r, const model_vector *norm, const fwd_batch *b)
{
    const fwd_dev_ctx *f = r->self;
    const int64_t H = r->c->hidden;
    if (norm) fwd_dev_norm(r, r->all, r->x, norm, r->R, H);
    f->d->ops->download(f->d, f->all, r->all, (size_t)(r->R * f->all_width) * sizeof *r->all);
    if (b->n_picked && b->n_picked < r->R) fwd_dev_gather(r, &r->x, &r->y, H, b->n_picked);
    r->R = b->n_picked;
}
