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

lq_status tuning_text_make(tuning_text *o, int64_t n, const cal_samples *text, src_source *src,
                           uint64_t seed, const char *file, pool *p, const lq_job *job, lq_err *err)
{
    const size_t own = (size_t)(n * text->len) * sizeof *o->ids;
    const size_t given = (size_t)(text->n * text->len) * sizeof *o->ids;
    lq_status s = LQ_OK;
    *o = (tuning_text){ .ids = malloc(own + given) };
    if (!o->ids) return lq_fail(err, LQ_ENOMEM, "no memory for text to tune by");
    if (n && !recall(o->ids, own, file)) {
        s = cal_self_write(o->ids, n, text->len, src, seed, p, job, err);
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
