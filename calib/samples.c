/* calib/samples.c - choosing calibration windows. */
#include "calib/samples.h"

#include <stdlib.h>

#include "calib/random.h"

/* Selection sampling: window i is taken with probability (still wanted) / (still to come). */
static void choose(cal_samples *s, const int32_t *ids, uint64_t seed)
{
    int64_t taken = 0;
    for (int64_t i = 0; taken < s->n; i++) {
        uint64_t left = (uint64_t)(s->available - i), want = (uint64_t)(s->n - taken);
        if (cal_random(&seed) % left >= want) continue;
        memcpy(s->ids + taken * s->len, ids + i * s->len, (size_t)s->len * sizeof *ids);
        taken++;
    }
}

lq_status cal_samples_from_ids(cal_samples *s, const int32_t *ids, int64_t n_ids, int64_t n,
                               int64_t len, uint64_t seed, int64_t vocab, lq_err *err)
{
    memset(s, 0, sizeof *s);
    int64_t available = n_ids / len;
    if (n < 1 || available < 1)
        return lq_fail(err, LQ_EVALUE,
                       "calibration text: expected at least %lld tokens for one window, found %lld",
                       (long long)len, (long long)n_ids);
    for (int64_t i = 0; i < n_ids; i++)
        if (ids[i] < 0 || ids[i] >= vocab)
            return lq_fail(
                err, LQ_EVALUE,
                "calibration text: token %lld has id %d, expected below the vocabulary's "
                "%lld",
                (long long)i, ids[i], (long long)vocab);
    s->len = len;
    s->available = available;
    s->n = n < available ? n : available;
    s->ids = malloc((size_t)(s->n * len) * sizeof *s->ids);
    lq_hasher *h = lq_hasher_new();
    if (!s->ids || !h) {
        if (h) lq_hasher_end(h);
        cal_samples_free(s);
        return lq_fail(err, LQ_ENOMEM, "no memory for calibration samples");
    }
    choose(s, ids, seed);
    lq_hasher_add(h, &s->n, sizeof s->n);
    lq_hasher_add(h, &s->len, sizeof s->len);
    lq_hasher_add(h, s->ids, (size_t)(s->n * len) * sizeof *s->ids);
    s->hash = lq_hasher_end(h);
    return LQ_OK;
}

lq_status cal_samples_make(cal_samples *s, const tok_tokenizer *t, const char *text, size_t bytes,
                           int64_t n, int64_t len, uint64_t seed, int64_t vocab, lq_err *err)
{
    int32_t *ids = NULL;
    size_t n_ids = 0;
    memset(s, 0, sizeof *s);
    lq_status st = tok_encode(t, text, bytes, 0, &ids, &n_ids, err);
    if (!st) st = cal_samples_from_ids(s, ids, (int64_t)n_ids, n, len, seed, vocab, err);
    free(ids);
    return st;
}

void cal_samples_free(cal_samples *s)
{
    free(s->ids);
    memset(s, 0, sizeof *s);
}
