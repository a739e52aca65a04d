/* runtime/forward.c - a step over a ragged batch: embedding, layers, head. A layer's arithmetic is
 * in runtime/forward_layer.c. */
#include "runtime/forward_impl.h"

#include <stdlib.h>

struct fwd_ctx {
    const model *m;
    kv_cache *kv;
    fwd_opts opts;
    lq_arena arena;
    fwd_rows rows;
    attn_seq *seqs;  /* [max_seqs] */
    attn_seq *last;  /* [max_seqs] of the last layer: the rows whose logits are wanted */
    int32_t *ids;    /* [max_rows] */
    int64_t *picked; /* [max_logits] rows whose logits are wanted */
    float *logits;   /* [max_logits, vocab] */
};

static size_t piece(int64_t n, size_t size) { return lq_round_up((size_t)n * size + 1, 64); }

static size_t scratch_bytes(const arch_config *c, const fwd_opts *o, int threads)
{
    size_t layers = fwd_rows_scratch(c, o->max_rows, threads);
    size_t head = mm_scratch_bytes(o->max_logits, c->embed_dim, 1, threads);
    return layers > head ? layers : head;
}

size_t fwd_bytes(const arch_config *c, const fwd_opts *o, int threads)
{
    return fwd_rows_bytes(c, o->max_rows) + piece(o->max_rows * c->hidden, sizeof(float)) +
           piece(o->max_rows, sizeof(int32_t)) + 2 * piece(o->max_seqs, sizeof(attn_seq)) +
           piece(o->max_logits, sizeof(int64_t)) + piece(o->max_logits * c->vocab, sizeof(float)) +
           scratch_bytes(c, o, threads);
}

static bool cut_buffers(fwd_ctx *f)
{
    const arch_config *c = f->m->cfg;
    const fwd_opts *o = &f->opts;
    f->rows.x = lq_push(&f->arena, (size_t)(o->max_rows * c->hidden) * sizeof(float));
    f->ids = lq_push(&f->arena, (size_t)o->max_rows * sizeof *f->ids);
    f->seqs = lq_push(&f->arena, (size_t)o->max_seqs * sizeof *f->seqs);
    f->last = lq_push(&f->arena, (size_t)o->max_seqs * sizeof *f->last);
    f->picked = lq_push(&f->arena, (size_t)o->max_logits * sizeof *f->picked);
    f->logits = lq_push(&f->arena, (size_t)(o->max_logits * c->vocab) * sizeof(float));
    return f->rows.x && f->ids && f->seqs && f->picked && f->last && f->logits &&
           fwd_rows_push(&f->rows, c, o->max_rows, &f->arena);
}

lq_status fwd_open(fwd_ctx **out, const model *m, kv_cache *kv, pool *p, const fwd_opts *o,
                   lq_err *err)
{
    *out = NULL;
    if (o->max_rows < 1 || o->max_seqs < 1 || o->max_logits < 0 || o->max_logits > o->max_rows ||
        o->max_rows > 1 << 20)
        return lq_fail(err, LQ_EVALUE,
                       "forward pass: expected 1..%d rows and at most as many logits, found %lld "
                       "rows of %lld sequences, %lld logits",
                       1 << 20, (long long)o->max_rows, (long long)o->max_seqs,
                       (long long)o->max_logits);
    fwd_ctx *f = calloc(1, sizeof *f);
    if (!f) return lq_fail(err, LQ_ENOMEM, "forward pass: out of memory");
    f->m = m;
    f->kv = kv;
    f->opts = *o;
    f->rows.p = p;
    f->rows.acts = o->acts;
    f->rows.scratch = &f->arena;
    lq_status s = lq_arena_init(&f->arena, fwd_bytes(m->cfg, o, pool_threads(p)), err);
    if (!s && !cut_buffers(f)) s = lq_fail(err, LQ_ENOMEM, "forward pass: buffers do not fit");
    if (s) {
        fwd_close(f);
        return lq_wrap(err, s, "forward pass of %lld rows", (long long)o->max_rows);
    }
    *out = f;
    return LQ_OK;
}

void fwd_close(fwd_ctx *f)
{
    if (!f) return;
    lq_arena_free(&f->arena);
    free(f);
}

/* Everything that a caller can get wrong about a batch; after this nothing is checked. */
static lq_status check_items(const fwd_ctx *f, const fwd_item *items, int n_items, lq_err *err)
{
    int64_t rows = 0, logits = 0, vocab = f->m->cfg->vocab;
    for (int i = 0; i < n_items; i++) {
        const fwd_item *it = &items[i];
        if (it->n < 1 || it->n > f->opts.max_rows || it->pos0 < 0 || it->logits_from < 0 ||
            it->logits_from > it->n)
            return lq_fail(err, LQ_EVALUE,
                           "batch item %d: %lld ids at position %lld, logits from %lld", i,
                           (long long)it->n, (long long)it->pos0, (long long)it->logits_from);
        if (it->seq->tokens < it->pos0 + it->n)
            return lq_fail(err, LQ_EVALUE, "batch item %d: %lld positions, reserved %lld", i,
                           (long long)(it->pos0 + it->n), (long long)it->seq->tokens);
        for (int64_t t = 0; t < it->n; t++)
            if (it->ids[t] < 0 || it->ids[t] >= vocab)
                return lq_fail(err, LQ_EVALUE,
                               "token id at position %lld: expected 0..%lld, found %d",
                               (long long)(it->pos0 + t), (long long)(vocab - 1), it->ids[t]);
        lq_status s = model_check_positions(f->m, it->pos0 + it->n, err);
        if (s) return lq_wrap(err, s, "batch item %d", i);
        rows += it->n;
        logits += it->n - it->logits_from;
    }
    if (n_items > f->opts.max_seqs || rows > f->opts.max_rows || logits > f->opts.max_logits)
        return lq_fail(err, LQ_EVALUE,
                       "batch: %d sequences, %lld rows, %lld logits; at most %lld, %lld, %lld",
                       n_items, (long long)rows, (long long)logits, (long long)f->opts.max_seqs,
                       (long long)f->opts.max_rows, (long long)f->opts.max_logits);
    return LQ_OK;
}

/* Lay the items out as rows; returns how many logits are wanted. */
static int64_t place_items(fwd_ctx *f, const fwd_item *items, int n_items)
{
    int64_t n_picked = 0, block_size = kv_options(f->kv)->block_size;
    f->rows.R = 0;
    for (int i = 0; i < n_items; i++) {
        const fwd_item *it = &items[i];
        f->seqs[i] = (attn_seq){
            .row0 = f->rows.R, .n_rows = it->n, .pos0 = it->pos0, .table = it->seq->table
        };
        f->last[i] = f->seqs[i];
        f->last[i].row0 += it->logits_from;
        f->last[i].pos0 += it->logits_from;
        f->last[i].n_rows -= it->logits_from;
        fwd_place(&f->rows, &f->seqs[i], (int)block_size,
                  it->seq_len ? it->seq_len : it->pos0 + it->n);
        memcpy(f->ids + f->rows.R, it->ids, (size_t)it->n * sizeof *it->ids);
        for (int64_t t = it->logits_from; t < it->n; t++)
            f->picked[n_picked++] = f->rows.R + t;
        f->rows.R += it->n;
    }
    return n_picked;
}

/* x's first n rows to logits. */
static void finish_logits(const fwd_rows *r, int64_t row, int64_t n, const void *arg)
{
    float *const *all = arg;
    const arch_config *c = r->c;
    float *logits = *all + row * c->vocab;
    if (c->logit_scale != 1) k_scale(logits, (float)c->logit_scale, n * c->vocab);
    if (c->final_softcap > 0) k_softcap(logits, (float)c->final_softcap, n * c->vocab);
}

void fwd_run_head(const fwd_rows *r, const model *m, float *logits, int64_t n)
{
    const arch_config *c = m->cfg;
    const float *x = r->h;
    pool_stage(r->p, STAGE_HEAD);
    fwd_norm(r, r->h, r->x, &m->final_norm, n, c->hidden);
    if (m->proj_out.present) {
        mm_out out = fwd_out(&m->proj_out, r->e, c->embed_dim, false);
        mm_run(&out, 1, x, c->hidden, n, r->acts, r->scratch, r->p);
        x = r->e;
    }
    mm_out out = fwd_out(&m->head, logits, c->vocab, false);
    mm_run(&out, 1, x, c->embed_dim, n, r->acts, r->scratch, r->p);
    if (c->logit_scale != 1 || c->final_softcap > 0) fwd_each(r, n, finish_logits, &logits);
}

const float *fwd_hidden(const fwd_ctx *f) { return f->rows.h; }

lq_status fwd_step(fwd_ctx *f, const fwd_item *items, int n_items, const float **logits,
                   lq_err *err)
{
    lq_status s = check_items(f, items, n_items, err);
    *logits = f->logits;
    if (s || n_items == 0) return s;
    const int64_t L = f->m->cfg->layers;
    const kv_opts *o = kv_options(f->kv);
    pool_enter(f->rows.p);
    int64_t n_picked = place_items(f, items, n_items);
    pool_stage(f->rows.p, STAGE_EMBED);
    fwd_embed_rows(&f->rows, f->m, f->ids);
    for (int64_t i = 0; i < L; i++) {
        /* Of the last layer only the wanted rows go on, once all have their K and V. */
        const bool last = i == L - 1;
        const fwd_group all = { .n_rows = f->rows.R,
                                .seqs = last ? f->last : f->seqs,
                                .n_seqs = n_items };
        fwd_kv kv = { kv_k(f->kv, i), kv_v(f->kv, i), kv_block_stride(f->kv), o->block_size,
                      o->dtype };
        fwd_run_layer(&f->rows, &f->m->layers[i], i, &kv, &all, 1, last ? f->picked : NULL,
                      n_picked);
    }
    if (n_picked) fwd_run_head(&f->rows, f->m, f->logits, n_picked);
    pool_leave(f->rows.p);
    pool_stage(f->rows.p, STAGE_OTHER);
    return LQ_OK;
}
