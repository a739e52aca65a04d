/* runtime/forward/forward_ranks.c - a step on several devices that share a model (runtime/model/rank.h).
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
 * run; they differ from one device's by where a sum is cut.
 *
 * What a rank does between two exchanges is a piece, and of a step that is steady a graph of its
 * own (forward_graph.c). Exchanges are no part of a graph: NCCL warns that cudaGraphLaunch may wait
 * for one device before the others, which the same thread has yet to launch, have begun; here all
 * parts of an exchange are queued before anything behind it. */
#include "runtime/forward/forward_impl.h"
#include "runtime/model/kv_state.h"
#include "runtime/model/rank.h"

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
    void *logits, *parts = NULL;
    s = dev_take(&logits, d, part, "a part of the logits needs", err);
    k->logits = logits;
    if (!s && r == 0) s = dev_take(&parts, d, part * (size_t)a->n, "their parts need", err);
    if (r == 0) a->parts = parts;
    return s;
}

lq_status fwd_ranks_open(fwd_ranks *a, fwd_rows *first, fwd_dev_ctx *pass, const model *m,
                         const kv_cache *kv, const fwd_opts *o, lq_err *err)
{
    lq_status s = LQ_OK;
    model_on *on = m->on;
    *a = (fwd_ranks){ .n = on->ranks, .first = first, .pass = pass, .link = on->link };
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
        rows->states = a->first->states;
        rows->n_states = a->first->n_states;
        rows->ops->begin(rows, m, b);
    }
    for (int r = 0; r < a->n; r++)
        rows_of(a, r)->out = rows_of(a, r)->y; /* as a piece leaves it that is a graph */
}

/* Of branches: what is shared is never added to x at once. */
static void sum_branches(fwd_ranks *a)
{
    float *y[DEV_RANKS];
    for (int r = 0; r < a->n; r++)
        y[r] = rows_of(a, r)->y;
    a->rank[0].on->d.ops->all_reduce(a->link, y, a->first->R * a->first->c->hidden);
}

static void sum_squares(fwd_ranks *a)
{
    float *x[DEV_RANKS];
    for (int r = 0; r < a->n; r++)
        x[r] = rows_of(a, r)->squares;
    a->rank[0].on->d.ops->all_reduce(a->link, x, 2 * a->first->R);
}

/* The parts of the logits beside each other on rank 0, then by rows. */
static void gather_logits(fwd_ranks *a, float *raw, int64_t n)
{
    const int64_t V = a->first->c->vocab, width = fwd_ranks_width(a->first->c, a->n);
    float *part[DEV_RANKS];
    for (int r = 0; r < a->n; r++)
        part[r] = a->rank[r].logits;
    dev *d = turn_to(a, 0);
    d->ops->gather(a->link, a->parts, part, n * width);
    for (int r = 0; r < a->n; r++) {
        const int64_t from = rank_begin(V, r, a->n), own = rank_begin(V, r + 1, a->n) - from;
        d->ops->copy(d, &(dev_copy_args){ raw + from, a->parts + r * n * width,
                                          (size_t)own * sizeof *raw, (size_t)V * sizeof *raw,
                                          (size_t)width * sizeof *raw, n });
    }
}

/* ---- a step ---- */

static void run_stage(fwd_ranks *a, int r, int64_t stage, kv_cache *kv, const fwd_batch *b)
{
    const kv_opts *o = kv_options(kv);
    fwd_rows *rows = rows_of(a, r);
    const model *w = &a->rank[r].on->w;
    if (stage == 0) {
        rows->ops->enter(rows);
        return;
    }
    if (stage == fwd_ranks_stages(rows->c) - 1) {
        if (b->n_picked && !fwd_words(rows->c))
            fwd_run_final(rows, w, b->n_picked);
        else if (b->n_picked)
            fwd_run_head(rows, w, a->rank[r].logits, fwd_ranks_width(w->cfg, a->n), b->n_picked);
        return;
    }
    const int64_t layer = (stage - 1) / FWD_N_PARTS;
    const bool last = layer == rows->c->layers - 1; /* as run_layers in forward.c */
    const fwd_group all = { .n_rows = rows->R,
                            .seqs = last ? b->last : b->seqs,
                            .n_seqs = b->n_seqs };
    const fwd_kv own = { .k = kv_k_on(kv, layer, r),
                         .v = kv_v_on(kv, layer, r),
                         .block_stride = kv_block_stride(kv, layer),
                         .block_size = o->block_size,
                         .dtype = o->dtype,
                         .state = kv_state_offset(w->cfg, layer) };
    rows->c = arch_at(rows->whole, layer);
    fwd_run_part((fwd_part)((stage - 1) % FWD_N_PARTS), rows, &w->layers[layer], layer, &own, &all,
                 1, last ? b->picked : NULL, b->n_picked);
    rows->c = rows->whole;
}

static void run_piece(fwd_ranks *a, int r, int64_t piece, int64_t from, int64_t to, kv_cache *kv,
                      const fwd_batch *b)
{
    fwd_dev_ctx *pass = r ? a->rank[r].dev : a->pass;
    turn_to(a, r);
    const fwd_how how = fwd_dev_how(pass, piece);
    for (int64_t i = from; i < to && how != FWD_QUEUED; i++)
        run_stage(a, r, i, kv, b);
    if (how != FWD_CAPTURE || fwd_dev_kept(pass, piece)) return;
    for (int64_t i = from; i < to; i++)
        run_stage(a, r, i, kv, b);
}

void fwd_ranks_run(fwd_ranks *a, kv_cache *kv, float *raw, const fwd_batch *b)
{
    const arch_config *c = a->first->c;
    const int64_t end = fwd_ranks_stages(c);
    for (int64_t from = 0, to, piece = 0; from < end; from = to, piece++) {
        for (to = from + 1; !fwd_ranks_ends_piece(c, to - 1);)
            to++;
        for (int r = 0; r < a->n; r++)
            run_piece(a, r, piece, from, to, kv, b);
        if (to < end && (to - 2) % FWD_N_PARTS == FWD_TO_HEADS)
            sum_squares(a);
        else if (to < end && a->first->R)
            sum_branches(a);
        else if (to == end && b->n_picked && fwd_words(a->first->c))
            gather_logits(a, raw, b->n_picked);
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
