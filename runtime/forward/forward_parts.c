/* runtime/forward/forward_parts.c - what processes that share a model exchange within a step (runtime/model/part.h):
 * columns of rows, of which each has computed its own, put together on all; logits on rank 0.
 *
 *   each rank   its heads                            each rank   its width of gate and up
 *   all         a of all heads                       all         the activated width
 *   each rank   its rows of o                        each rank   its rows of down
 *   all         x                                    all         x
 *
 * Numbers are moved, never added, so there is no order of sums to keep. What fails is kept until the step ends: the
 * steps of a layer have no status. */
#include "runtime/forward/forward_impl.h"

#include <stdlib.h>

static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

/* Floats of a row that o, down and experts' down read. */
static int64_t parts_width(const arch_config *c)
{
    const int64_t q = c->w.qk_norm == QK_NORM_ALL ? c->heads * c->head_dim : 0;
    return larger(larger(larger(c->heads * c->v_dim, q), c->ffn), c->experts_used * c->expert_ffn);
}

/* Floats that are under way at once, at most. */
static int64_t most_moved(const arch_config *c, const fwd_opts *o)
{
    const int64_t row = larger(larger(parts_width(c), c->shared_ffn), larger(c->hidden, c->latent));
    return larger(o->max_rows * row, o->max_logits * arch_words(c));
}

size_t fwd_parts_bytes(const arch_config *c, const fwd_opts *o)
{
    const int64_t n = o->max_rows * (parts_width(c) + c->shared_ffn) + 2 * most_moved(c, o);
    return (size_t)n * sizeof(float) + 4 * 64;
}

lq_status fwd_parts_open(fwd_parts *p, const model_part *part, const fwd_opts *o, lq_err *err)
{
    const arch_config *c = part->whole;
    const size_t moved = (size_t)most_moved(c, o) * sizeof(float);
    p->part = p->at = part;
    lq_status s = lq_arena_init(&p->arena, fwd_parts_bytes(c, o), err);
    if (s) return s;
    p->wide = lq_push(&p->arena, (size_t)(o->max_rows * parts_width(c)) * sizeof(float));
    p->shared = lq_push(&p->arena, (size_t)(o->max_rows * c->shared_ffn) * sizeof(float));
    p->out = lq_push(&p->arena, moved);
    p->in = lq_push(&p->arena, moved);
    return p->wide && p->shared && p->out && p->in
               ? LQ_OK
               : lq_fail(err, LQ_ENOMEM, "ranks: buffers do not fit");
}

void fwd_parts_close(fwd_parts *p)
{
    lq_arena_free(&p->arena);
    free(p->plan.bytes);
    free(p->copies);
    for (int i = 0; i < p->n_loras; i++)
        lora_unref(p->loras[i]);
    free(p->loras);
    free(p->kv_bytes);
    p->part = NULL;
}

lq_status fwd_parts_failed(fwd_parts *p, lq_status s)
{
    if (s && !p->bad) p->bad = s;
    return p->bad;
}

static void copy_columns(float *to, int64_t ldt, const float *from, int64_t ldf, int64_t R,
                         int64_t n)
{
    for (int64_t t = 0; t < R && to + t * ldt != from + t * ldf; t++)
        memcpy(to + t * ldt, from + t * ldf, (size_t)n * sizeof *to);
}

static size_t bytes_of(const part_cuts *x, int rank, int64_t R)
{
    return (size_t)(R * (x->at[rank + 1] - x->at[rank])) * sizeof(float);
}

void fwd_put_together(const fwd_rows *r, float *to, int64_t ldt, const float *own, int64_t ldo,
                      int64_t R, const part_cuts *x)
{
    fwd_parts *p = r->parts;
    const int me = p->part->rank, n = p->part->ranks;
    const int64_t width = x->at[me + 1] - x->at[me];
    const bool one = R == 1; /* its columns lie side by side as they are */
    comm *c = p->part->c;
    float *in[PART_RANKS], *at = p->in;
    size_t moves = 0;
    lq_status s = p->bad;
    copy_columns(to + x->at[me], ldt, own, ldo, R, width);
    if (!one) copy_columns(p->out, width, own, ldo, R, width);
    for (int i = 0; i < n && !s; i++) {
        if (i == me) continue;
        in[i] = one ? to + x->at[i] : at;
        at += R * (x->at[i + 1] - x->at[i]);
        s = comm_start_recv(c, &p->moves[moves++], i, FWD_TAG_COLUMNS, in[i], bytes_of(x, i, R),
                            &p->why);
    }
    for (int k = 1; k < n && !s; k++) { /* to different ones at first */
        s = comm_start_send(c, &p->moves[moves++], (me + k) % n, FWD_TAG_COLUMNS,
                            one ? own : p->out, bytes_of(x, me, R), &p->why);
        p->sent += bytes_of(x, me, R);
    }
    if (!s) s = comm_wait(c, p->moves, moves, &p->why);
    if (fwd_parts_failed(p, s)) return;
    for (int i = 0; i < n && !one; i++)
        if (i != me)
            copy_columns(to + x->at[i], ldt, in[i], x->at[i + 1] - x->at[i], R,
                         x->at[i + 1] - x->at[i]);
}

/* Rows of q or k, of D numbers a head, normed over all heads. */
static void norm_together(const fwd_rows *r, float *own, part_cuts x, int64_t D,
                          const model_vector *norm)
{
    const int me = r->parts->part->rank, n = r->parts->part->ranks;
    float *all = r->parts->wide;
    for (int i = 0; i <= n; i++)
        x.at[i] *= D;
    const int64_t width = x.at[me + 1] - x.at[me];
    fwd_put_together(r, all, x.at[n], own, width, r->R, &x);
    fwd_norm_within(r, all, x.at[n], norm, x.at[n]);
    copy_columns(own, width, all + x.at[me], x.at[n], r->R, width);
}

void fwd_norm_parts(const fwd_rows *r, const model_layer *l)
{
    const model_part *p = r->parts->at;
    norm_together(r, r->q, p->heads, r->c->head_dim, &l->vec[R_Q_NORM]);
    norm_together(r, r->k, p->kv_heads, r->c->head_dim, &l->vec[R_K_NORM]);
}

void fwd_slopes_of_part(const fwd_rows *r)
{
    const model_part *p = r->parts->part;
    fwd_slopes(p->whole, r->parts->wide);
    memcpy(r->slopes, r->parts->wide + p->heads.at[p->rank],
           (size_t)p->own.heads * sizeof *r->slopes);
}

const float *fwd_all_heads(const fwd_rows *r, const model_layer *l)
{
    const arch_config *c = r->parts->at->whole;
    const int64_t K = c->heads * c->v_dim, own = r->c->heads * c->v_dim;
    part_cuts x = r->parts->at->heads;
    for (int i = 0; i <= r->parts->part->ranks; i++)
        x.at[i] *= c->v_dim;
    fwd_put_together(r, r->parts->wide, K, r->a, own, r->R, &x);
    fwd_norm_within(r, r->parts->wide, K, &l->vec[R_O_NORM], K);
    return r->parts->wide;
}

const float *fwd_all_width(const fwd_rows *r, const model_layer *l)
{
    const model_part *p = r->parts->at;
    const int64_t K = p->whole->ffn;
    fwd_put_together(r, r->parts->wide, K, r->mlp, fwd_mlp_width(r->c), r->R, &p->ffn);
    fwd_norm_within(r, r->parts->wide, K, &l->vec[R_DOWN_NORM], K);
    return r->parts->wide;
}

void fwd_gather_logits(const fwd_rows *r, float *logits, int64_t n)
{
    fwd_parts *p = r->parts;
    const model_part *m = p->part;
    const part_cuts *x = &m->words;
    const int64_t V = arch_words(m->whole);
    lq_status s = p->bad;
    if (!s && m->rank) {
        s = comm_send(m->c, 0, FWD_TAG_LOGITS, p->out, bytes_of(x, m->rank, n), &p->why);
        p->sent += bytes_of(x, m->rank, n);
    }
    float *at = p->in;
    for (int i = 1; i < m->ranks && !s && !m->rank; i++) {
        s = comm_start_recv(m->c, &p->moves[i - 1], i, FWD_TAG_LOGITS, at, bytes_of(x, i, n),
                            &p->why);
        at += n * (x->at[i + 1] - x->at[i]);
    }
    if (!s && !m->rank) s = comm_wait(m->c, p->moves, (size_t)m->ranks - 1, &p->why);
    if (fwd_parts_failed(p, s) || m->rank) return;
    at = p->in;
    for (int i = 1; i < m->ranks; i++) {
        const int64_t width = x->at[i + 1] - x->at[i];
        copy_columns(logits + x->at[i], V, at, width, n, width);
        at += n * width;
    }
}
