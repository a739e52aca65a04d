/* tools/bench/bench_batch.c - see bench_batch.h. */
#include "tools/bench/bench_batch.h"

#include <stdlib.h>

#include "base/clock.h"
#include "tools/cli/progress.h"

enum { BLOCK = 32 };

void bench_batch_close(bench_batch *k)
{
    for (int64_t i = 0; i < k->n && k->seqs && k->kv; i++)
        kv_seq_free(k->kv, &k->seqs[i]);
    if (k->f) fwd_close(k->f);
    kv_close(k->kv);
    free(k->seqs);
    free(k->items);
    free(k->ids);
}

lq_status bench_batch_open(bench_batch *k, const model *m, const bench_fwd *how, int64_t n,
                           int64_t len, int64_t new, lq_err *err)
{
    *k = (bench_batch){ .n = n };
    k->seqs = calloc((size_t)n, sizeof *k->seqs);
    k->items = calloc((size_t)n, sizeof *k->items);
    k->ids = calloc((size_t) new, sizeof *k->ids);
    if (!k->seqs || !k->items || !k->ids) return lq_fail(err, LQ_ENOMEM, "out of memory");
    for (int64_t i = 0; i < new; i++)
        k->ids[i] = (int32_t)((i * 31 + 7) % m->cfg->vocab);
    kv_opts ko = { .n_blocks = n * lq_ceil_div(len, BLOCK),
                   .block_size = BLOCK,
                   .dtype = how->kv,
                   .on = model_dev(m),
                   .first = model_first_on(m) };
    fwd_opts fo = { .acts = how->acts, .max_rows = n * new, .max_logits = n *new, .max_seqs = n };
    lq_status s = kv_open(&k->kv, m->cfg, &ko, err);
    if (!s) s = fwd_open(&k->f, m, k->kv, how->p, &fo, err);
    for (int64_t i = 0; i < n && !s; i++)
        s = kv_reserve(k->kv, &k->seqs[i], len, err);
    /* Written once, so that reading it reads memory rather than the kernel's one page of zeros. */
    if (!s) kv_zero(k->kv);
    return s;
}

lq_status bench_batch_step(double *seconds, bench_batch *k, int64_t new, int64_t logits,
                           int64_t pos, lq_err *err)
{
    const float *out;
    for (int64_t i = 0; i < k->n; i++) {
        k->seqs[i].state_at = pos; /* a step takes as long whatever a state has seen */
        k->items[i] = (fwd_item){
            .seq = &k->seqs[i], .ids = k->ids, .n = new, .pos0 = pos, .logits_from = new - logits
        };
    }
    double start = lq_now();
    lq_status s = fwd_step(k->f, k->items, (int)k->n, &out, err);
    *seconds = lq_now() - start;
    return s;
}
