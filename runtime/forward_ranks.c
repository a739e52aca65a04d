/* runtime/forward_ranks.c - a step on several devices that share a model (runtime/rank.h).
 *
 *   each rank   h = norm(x); its q, k, v                                        FWD_TO_HEADS
 *   all         sums of squares of q and k, where those are normed as a whole
 *   each rank   its heads; y = its inputs of o                                  FWD_TO_ATTENTION
 *   all         y = sum over ranks
 *   each rank   x += y; h = norm(x); its gate and up; y = its inputs of down    FWD_TO_MLP
 *   all         y = sum over ranks
 *   each rank   x += y                                                          FWD_TO_END
 *
 * Sums are in the order of ranks, so x has the same bytes on every device, and the same from run to
 * run; they differ from one device's by where a sum is cut. */
#include "runtime/forward_impl.h"
#include "runtime/rank.h"

int64_t fwd_ranks_width(const arch_config *c, int ranks) { return lq_ceil_div(c->vocab, ranks); }

static fwd_rows *rows_of(fwd_ranks *a, int r) { return r ? &a->rank[r].rows : a->first; }

/* What this thread queues from now on is for rank r. */
static dev *turn_to(fwd_ranks *a, int r)
{
    dev *d = &a->rank[r].on->d;
    d->ops->bind(d);
    return d;
}

static lq_status open_rank(fwd_ranks *a, int r, fwd_dev_ctx *first, const model *m,
                           const kv_cache *kv, const fwd_opts *o, lq_err *err)
{
    fwd_rank *k = &a->rank[r];
    dev *d = turn_to(a, r);
    const size_t part = (size_t)(o->max_logits * fwd_ranks_width(m->cfg, a->n)) * sizeof(float);
    k->rows.acts = o->acts;
    lq_status s = LQ_OK;
    if (r) s = fwd_dev_open_rank(&k->dev, &k->rows, k->on, first, m, kv, o, err);
    if (s) return s;
    rows_of(a, r)->shared = true;
    k->logits = d->ops->alloc(d, part);
    if (r == 0) a->parts = d->ops->alloc(d, part * (size_t)a->n);
    return d->ops->sync(d, err);
}

lq_status fwd_ranks_open(fwd_ranks *a, fwd_rows *first, fwd_dev_ctx *pass, const model *m,
                         const kv_cache *kv, const fwd_opts *o, lq_err *err)
{
    lq_status s = LQ_OK;
    model_on *on = m->on;
    *a = (fwd_ranks){ .n = on->ranks, .first = first, .link = on->link };
    for (int r = 0; r < a->n; r++, on = on->next)
        a->rank[r].on = on;
    for (int r = 0; r < a->n && !s; r++)
        s = open_rank(a, r, pass, m, kv, o, err);
    return s;
}

void fwd_ranks_close(fwd_ranks *a)
{
    for (int r = 0; r < a->n; r++) {
        if (!a->rank[r].on) continue;
        dev *d = turn_to(a, r);
        fwd_dev_close(a->rank[r].dev);
        d->ops->free(d, a->rank[r].logits);
        if (r == 0) d->ops->free(d, a->parts);
    }
}

void fwd_ranks_begin(fwd_ranks *a, const model *m, const fwd_batch *b)
{
    for (int r = 1; r < a->n; r++) {
        fwd_rows *rows = rows_of(a, r);
        rows->R = a->first->R;
        rows->ops->begin(rows, m, b);
    }
}

void fwd_ranks_enter(fwd_ranks *a)
{
    for (int r = 0; r < a->n; r++) {
        turn_to(a, r);
        rows_of(a, r)->ops->enter(rows_of(a, r));
    }
}

static void sum_branches(fwd_ranks *a)
{
    float *y[DEV_RANKS];
    for (int r = 0; r < a->n; r++)
        y[r] = rows_of(a, r)->out;
    a->rank[0].on->d.ops->all_reduce(a->link, y, a->first->R * a->first->c->hidden);
}

static void sum_squares(fwd_ranks *a)
{
    float *x[DEV_RANKS];
    for (int r = 0; r < a->n; r++)
        x[r] = rows_of(a, r)->squares;
    a->rank[0].on->d.ops->all_reduce(a->link, x, 2 * a->first->R);
}

void fwd_ranks_layer(fwd_ranks *a, kv_cache *kv, int64_t layer, const fwd_group *all,
                     const int64_t *picked, int64_t n_picked)
{
    const kv_opts *o = kv_options(kv);
    for (fwd_part part = 0; part < FWD_N_PARTS; part++) {
        for (int r = 0; r < a->n; r++) {
            const fwd_kv own = { kv_k_on(kv, layer, r), kv_v_on(kv, layer, r), kv_block_stride(kv),
                                 o->block_size, o->dtype };
            turn_to(a, r);
            fwd_run_part(part, rows_of(a, r), &a->rank[r].on->w.layers[layer], layer, &own, all, 1,
                         picked, n_picked);
        }
        if (part == FWD_TO_HEADS && fwd_norm_shared(a->first)) sum_squares(a);
        if ((part == FWD_TO_ATTENTION || part == FWD_TO_MLP) && a->first->R) sum_branches(a);
    }
}

void fwd_ranks_head(fwd_ranks *a, float *raw, int64_t n)
{
    const int64_t V = a->first->c->vocab, width = fwd_ranks_width(a->first->c, a->n);
    float *part[DEV_RANKS];
    for (int r = 0; r < a->n; r++) {
        turn_to(a, r);
        part[r] = a->rank[r].logits;
        fwd_run_head(rows_of(a, r), &a->rank[r].on->w, part[r], width, n);
    }
    dev *d = turn_to(a, 0);
    d->ops->gather(a->link, a->parts, part, n * width);
    for (int r = 0; r < a->n; r++) {
        const int64_t from = rank_begin(V, r, a->n), own = rank_begin(V, r + 1, a->n) - from;
        d->ops->copy(d, &(dev_copy_args){ raw + from, a->parts + r * n * width,
                                          (size_t)own * sizeof *raw, (size_t)V * sizeof *raw,
                                          (size_t)width * sizeof *raw, n });
    }
}

lq_status fwd_ranks_end(fwd_ranks *a, lq_err *err)
{
    lq_status first = LQ_OK;
    for (int r = 1; r < a->n; r++) {
        dev *d = turn_to(a, r);
        const lq_status s = d->ops->sync(d, first ? NULL : err);
        if (!first) first = s;
    }
    turn_to(a, 0);
    return first;
}
