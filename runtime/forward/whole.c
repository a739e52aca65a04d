/* runtime/forward/whole.c */
#include "runtime/forward/whole.h"

#include <math.h>
#include <stdlib.h>

enum { STEP_ROWS = 256, BLOCK = 32 };

void fwd_whole_size(kv_opts *kv, fwd_opts *step, int64_t n, mm_acts acts, kv_dtype dtype)
{
    const int64_t chunk = n < STEP_ROWS ? n : STEP_ROWS;
    *kv = (kv_opts){ .n_blocks = lq_ceil_div(n, BLOCK), .block_size = BLOCK, .dtype = dtype };
    *step = (fwd_opts){
        .acts = acts, .max_rows = chunk, .max_logits = chunk, .max_seqs = 1, .max_len = n
    };
}

/* Chunk by chunk into logits [n, vocab]. */
static lq_status steps(float *logits, fwd_ctx *f, kv_seq *seq, const lora_adapter *lora,
                       const int32_t *ids, int64_t n, int64_t chunk, int64_t vocab,
                       const lq_job *job, lq_err *err)
{
    lq_status s = LQ_OK;
    for (int64_t at = 0; at < n && !s; at += chunk) {
        const float *rows;
        fwd_item it = { .seq = seq,
                        .ids = ids + at,
                        .n = n - at < chunk ? n - at : chunk,
                        .pos0 = at,
                        .seq_len = n,
                        .lora = lora };
        s = lq_stopped(job) ? lq_fail(err, LQ_EINTR, "interrupted")
                            : fwd_step(f, &it, 1, &rows, err);
        if (!s) memcpy(logits + at * vocab, rows, (size_t)(it.n * vocab) * sizeof *logits);
        lq_report(job, "ids", (double)(at + it.n), (double)n);
    }
    for (int64_t i = 0; i < n * vocab && !s; i++)
        if (!isfinite(logits[i]))
            s = lq_fail(err, LQ_EVALUE,
                        "logits of id number %lld are not finite: the weights hold NaN or Inf, or "
                        "values overflow",
                        (long long)(i / vocab));
    return s;
}

lq_status fwd_whole(float **out, const model *m, const lora_adapter *lora, const int32_t *ids,
                    int64_t n, mm_acts acts, kv_dtype dtype, pool *p, const lq_job *job,
                    lq_err *err)
{
    const int64_t vocab = m->cfg->vocab;
    kv_cache *kv = NULL;
    fwd_ctx *f = NULL;
    kv_seq seq;
    size_t bytes;
    kv_opts ko;
    fwd_opts fo;
    kv_seq_init(&seq);
    *out = NULL;
    if (!lq_mul((size_t)n, (size_t)vocab * sizeof(float), &bytes) || !(*out = malloc(bytes)))
        return lq_fail(err, LQ_ENOMEM, "no memory for the logits of %lld ids", (long long)n);
    fwd_whole_size(&ko, &fo, n, acts, dtype);
    if (lora) fo.lora_rank = lora->rank;
    ko.on = model_dev(m);
    ko.first = model_first_on(m);
    lq_status s = kv_open(&kv, m->cfg, &ko, err);
    if (!s) s = fwd_open(&f, m, kv, p, &fo, err);
    if (!s) s = kv_reserve(kv, &seq, n, err);
    if (!s) s = steps(*out, f, &seq, lora, ids, n, fo.max_rows, vocab, job, err);
    fwd_close(f);
    if (kv) kv_seq_free(kv, &seq);
    kv_close(kv);
    if (s) {
        free(*out);
        *out = NULL;
    }
    return s;
}
