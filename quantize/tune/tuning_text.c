/* quantize/tune/tuning_text.c - see tuning_text.h. The file: XXH3-128 of the ids, then the ids. */
#include "quantize/tune/tuning_text.h"

#include <stdlib.h>

#include "base/file.h"
#include "base/out_file.h"
#include "base/path.h"
#include "calib/self_text.h"

static bool recall(int32_t *ids, size_t bytes, const char *file)
{
    char *all = NULL;
    size_t size = 0;
    lq_hash h;
    if (!lq_exists(file) || lq_read_file(&all, &size, file, sizeof h + bytes, NULL)) return false;
    if (size == sizeof h + bytes) {
        h = lq_hash_bytes(all + sizeof h, bytes);
        if (memcmp(all, &h, sizeof h) != 0) size = 0;
    }
    const bool whole = size == sizeof h + bytes;
    if (whole) memcpy(ids, all + sizeof h, bytes);
    free(all);
    return whole;
}

static lq_status keep_text(const int32_t *ids, size_t bytes, const char *file, lq_err *err)
{
    const lq_hash h = lq_hash_bytes(ids, bytes);
    lq_out *f = NULL;
    lq_status s = lq_out_open(&f, file, err);
    if (!s) s = lq_out_write(f, &h, sizeof h, err);
    if (!s) s = lq_out_write(f, ids, bytes, err);
    if (s)
        lq_out_abort(f);
    else
        s = lq_out_commit(f, err);
    return s;
}

/* How a rank came through its share: all go on alike, also where a failure does not end the run. */
typedef struct {
    int64_t status;
    lq_err why;
} drawn;

/* The first failure in the order of ranks, s being this one's. */
static lq_status agree(comm *ranks, lq_status s, lq_err *err)
{
    const int size = comm_size(ranks);
    drawn *all = calloc((size_t)size, sizeof *all);
    size_t *at = calloc((size_t)size + 1, sizeof *at);
    const bool room = all && at;
    if (!room) s = lq_fail(err, LQ_ENOMEM, "no memory for %d ranks", size);
    for (int i = 0; i < size && room; i++)
        at[i + 1] = at[i] + sizeof *all;
    if (room) all[comm_rank(ranks)] = (drawn){ (int64_t)s, *err };
    const lq_status sent = room ? comm_allgather(ranks, all, at, err) : LQ_OK;
    for (int i = size; i-- > 0 && room && !sent;)
        if (all[i].status) *err = all[i].why, s = (lq_status)all[i].status;
    free(all);
    free(at);
    return sent ? sent : s;
}

/* Every rank draws the next ones of n windows. */
static lq_status draw(int32_t *ids, int64_t n, int64_t len, src_source *src, uint64_t seed,
                      comm *ranks, pool *p, const lq_job *job, lq_err *err)
{
    const int size = comm_size(ranks), rank = comm_rank(ranks);
    const int64_t first = n * rank / size, own = n * (rank + 1) / size - first;
    lq_err why = { "" };
    lq_status s =
        own ? cal_self_write(ids + first * len, first, own, len, src, seed, p, job, &why) : LQ_OK;
    s = agree(ranks, s, &why);
    size_t *at = s ? NULL : calloc((size_t)size + 1, sizeof *at);
    if (!s && !at) s = lq_fail(&why, LQ_ENOMEM, "no memory for %d ranks", size);
    for (int i = 0; i <= size && at; i++)
        at[i] = (size_t)(n * i / size * len) * sizeof *ids;
    if (!s) s = comm_allgather(ranks, ids, at, &why);
    free(at);
    if (s && err) *err = why;
    return s;
}

lq_status tuning_text_make(tuning_text *o, int64_t n, const cal_samples *text, src_source *src,
                           uint64_t seed, const char *file, comm *ranks, pool *p, const lq_job *job,
                           lq_err *err)
{
    const size_t own = (size_t)(n * text->len) * sizeof *o->ids;
    const size_t given = (size_t)(text->n * text->len) * sizeof *o->ids;
    lq_status s = LQ_OK;
    *o = (tuning_text){ .ids = malloc(own + given) };
    if (!o->ids) return lq_fail(err, LQ_ENOMEM, "no memory for text to tune by");
    if (n && !recall(o->ids, own, file)) {
        s = draw(o->ids, n, text->len, src, seed, ranks, p, job, err);
        if (!s) s = keep_text(o->ids, own, file, err);
    }
    if (s) {
        tuning_text_free(o);
        return s;
    }
    memcpy(o->ids + n * text->len, text->ids, given);
    o->text = (tune_text){ o->ids, n, text->n, text->len };
    o->hash = lq_hash_bytes(o->ids, own);
    return LQ_OK;
}

void tuning_text_free(tuning_text *o)
{
    free(o->ids);
    memset(o, 0, sizeof *o);
}
