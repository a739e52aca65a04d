/* calib/samples.c - choosing calibration windows. */
#include "calib/samples.h"

#include <cjson/cJSON.h>
#include <stdlib.h>

#include "base/random.h"

/* Selection sampling: window i is taken with probability (still wanted) / (still to come). */
static void samples_choose(cal_samples *s, const int32_t *ids, uint64_t seed)
{
    int64_t taken = 0;
    for (int64_t i = 0; taken < s->n; i++) {
        uint64_t left = (uint64_t)(s->available - i), want = (uint64_t)(s->n - taken);
        if (lq_random(&seed) % left >= want) continue;
        memcpy(s->ids + taken * s->len, ids + i * s->len, (size_t)s->len * sizeof *ids);
        taken++;
    }
}

lq_status cal_check_ids(const int32_t *ids, int64_t n, int64_t len, int64_t vocab, lq_err *err)
{
    if (n < len)
        return lq_fail(err, LQ_EVALUE,
                       "calibration text: expected at least %lld tokens for one window, found %lld",
                       (long long)len, (long long)n);
    for (int64_t i = 0; i < n; i++)
        if (ids[i] < 0 || ids[i] >= vocab)
            return lq_fail(err, LQ_EVALUE,
                           "calibration text: token %lld has id %d, expected below the "
                           "vocabulary's %lld",
                           (long long)i, ids[i], (long long)vocab);
    return LQ_OK;
}

lq_status cal_samples_from_ids(cal_samples *s, const int32_t *ids, int64_t n_ids, int64_t n,
                               int64_t len, uint64_t seed, int64_t vocab, lq_err *err)
{
    memset(s, 0, sizeof *s);
    if (n < 1) return lq_fail(err, LQ_EVALUE, "calibration: expected at least one window");
    lq_status st = cal_check_ids(ids, n_ids, len, vocab, err);
    if (st) return st;
    const int64_t available = n_ids / len;
    s->len = len;
    s->available = available;
    s->n = n < available ? n : available;
    s->ids = malloc((size_t)(s->n * len) * sizeof *s->ids);
    if (!s->ids) return lq_fail(err, LQ_ENOMEM, "no memory for calibration samples");
    samples_choose(s, ids, seed);
    st = cal_samples_hash(s, err);
    if (st) cal_samples_free(s);
    return st;
}

lq_status cal_samples_hash(cal_samples *s, lq_err *err)
{
    lq_hasher *h = lq_hasher_new();
    if (!h) return lq_fail(err, LQ_ENOMEM, "no memory for calibration samples");
    lq_hasher_add(h, &s->n, sizeof s->n);
    lq_hasher_add(h, &s->len, sizeof s->len);
    lq_hasher_add(h, s->ids, (size_t)(s->n * s->len) * sizeof *s->ids);
    s->hash = lq_hasher_end(h);
    return LQ_OK;
}

cJSON *cal_samples_json(const cal_samples *s)
{
    char hex[33];
    cJSON *o = cJSON_CreateObject();
    lq_hash_hex(hex, &s->hash);
    cJSON_AddStringToObject(o, "xxh3", hex);
    cJSON_AddNumberToObject(o, "samples", (double)s->n);
    cJSON_AddNumberToObject(o, "length", (double)s->len);
    cJSON *files = s->n_parts ? cJSON_AddArrayToObject(o, "files") : NULL;
    for (int i = 0; i < s->n_parts; i++) {
        const cal_part *p = &s->parts[i];
        cJSON *f = cJSON_CreateObject();
        cJSON_AddStringToObject(f, "name", p->name);
        cJSON_AddStringToObject(f, "kind", p->kind);
        cJSON_AddNumberToObject(f, "weight", p->weight);
        cJSON_AddNumberToObject(f, "windows", (double)p->windows);
        cJSON_AddNumberToObject(f, "tokens", (double)(p->windows * s->len));
        cJSON_AddItemToObject(f, "begin", cJSON_CreateIntArray(p->begin, p->n_begin));
        lq_hash_hex(hex, &p->hash);
        cJSON_AddStringToObject(f, "xxh3", hex);
        cJSON_AddItemToArray(files, f);
    }
    return o;
}

void cal_samples_free(cal_samples *s)
{
    free(s->ids);
    free(s->parts);
    memset(s, 0, sizeof *s);
}
