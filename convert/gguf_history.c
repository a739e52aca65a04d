/* convert/gguf_history.c - see gguf_meta.h: where a model came from (formats/source/history.h), in a GGUF file. */
#include "base/hash.h"
#include "convert/gguf_meta.h"
#include "convert/report.h"
#include "formats/source/history.h"

#include <stdio.h>
#include <stdlib.h>

enum { CONVERTED = 400, HEX = 32 }; /* bytes of the texts that are patched */

static lq_status put_tree(gguf_pairs *p, const char *key, const cJSON *v, lq_err *err)
{
    lq_buf b = { 0 };
    lq_status s = v ? js_canonical(&b, v, err) : LQ_OK;
    if (!s && b.n) {
        gguf_pair_key(p, key, GGUF_STRING);
        gguf_put_str(&p->b, b.p, b.n);
    }
    free(b.p);
    return s;
}

/* Room for a text of n bytes; where it is in the pairs. */
static size_t put_blanks(gguf_pairs *p, const char *key, size_t n)
{
    char blanks[CONVERTED + 1];
    snprintf(blanks, sizeof blanks, "%*s", (int)n, "");
    gguf_pair_str(p, key, blanks);
    return p->b.n - n;
}

static bool any_codes(const src_source *src)
{
    for (int64_t i = 0; i < src_n_tensors(src); i++) {
        const src_tensor *t = src_tensor_at(src, i);
        if (t->plain && t->t.scheme.kind != QT_DENSE) return true;
    }
    return false;
}

lq_status gguf_put_history(gguf_history *h, gguf_pairs *p, const src_source *src, bool changes,
                           lq_err *err)
{
    const bool anew = changes && any_codes(src);
    if (!conv_has_history(src, anew)) return LQ_OK;
    h->from = conv_from(src, anew);
    if (!h->from) return lq_fail(err, LQ_ENOMEM, "no memory for the history");
    lq_status s = put_tree(p, HISTORY_GGUF HISTORY_RECIPE, src_recipe(src), err);
    if (!s) s = put_tree(p, HISTORY_GGUF HISTORY_PROVENANCE, src_provenance(src), err);
    h->converted = put_blanks(p, HISTORY_GGUF HISTORY_CONVERTED, CONVERTED);
    h->hash = put_blanks(p, HISTORY_TENSORS, HEX);
    return s;
}

static int by_tensor_name(const void *a, const void *b)
{
    return strcmp(((const gguf_tensor *)a)->name, ((const gguf_tensor *)b)->name);
}

lq_status gguf_end_history(const gguf_history *h, char *head, gguf_tensor *t, size_t n,
                           const src_source *src, const conv_report *r, lq_err *err)
{
    char hex[HEX + 1];
    lq_buf b = { 0 };
    if (!h->from) return LQ_OK;
    cJSON *converted = conv_converted(src, r, h->from);
    lq_status s = converted ? js_canonical(&b, converted, err)
                            : lq_fail(err, LQ_ENOMEM, "no memory for the history");
    if (!s && b.n > CONVERTED) s = lq_fail(err, LQ_EVALUE, "history: expected a shorter one");
    if (!s) {
        qsort(t, n, sizeof *t, by_tensor_name);
        const lq_hash all = gguf_tensors_hash(t, n);
        lq_hash_hex(hex, &all);
        memcpy(head + h->at + h->hash, hex, HEX);
        memcpy(head + h->at + h->converted, b.p, b.n);
    }
    cJSON_Delete(converted);
    free(b.p);
    return s;
}
