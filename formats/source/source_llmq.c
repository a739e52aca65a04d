/* formats/source/source_llmq.c - a .llmq file as a source. */
#include "base/json.h"
#include "formats/hf/model_files.h"
#include "formats/source/history.h"
#include "formats/source/source_impl.h"

#include <stdlib.h>

static int by_pointed_name(const void *a, const void *b)
{
    const lqf_tensor *const *x = a, *const *y = b;
    return strcmp((*x)->name, (*y)->name);
}

static void source_llmq_fill(src_tensor *out, const lqf_tensor *t)
{
    *out = (src_tensor){ .name = t->name,
                         .t = t->t,
                         .n_dims = t->n_dims,
                         .plain = t->plain,
                         .raw_dtype = t->raw_dtype };
    memcpy(out->shape, t->shape, sizeof out->shape);
    const bool dense = t->plain && t->t.scheme.kind == QT_DENSE;
    if (dense) out->raw_dtype = t->t.scheme.dtype;
    if (!t->plain || (dense && t->t.layout == QT_PORTABLE)) out->raw = t->t.plane[QT_CODES];
}

static lq_status list_tensors(src_source *s, lq_err *err)
{
    const lqf_file *f = &s->llmq;
    const lqf_tensor **order = malloc((f->n_tensors + 1) * sizeof *order);
    s->tensors = lq_push(&s->arena, f->n_tensors * sizeof *s->tensors);
    s->hashes = lq_push(&s->arena, f->n_tensors * sizeof *s->hashes);
    if (!order || !s->tensors || !s->hashes) {
        free(order);
        return lq_fail(err, LQ_ENOMEM, "%s: no memory for %zu tensors", s->path, f->n_tensors);
    }
    for (size_t i = 0; i < f->n_tensors; i++)
        order[i] = &f->tensors[i];
    qsort(order, f->n_tensors, sizeof *order, by_pointed_name);
    for (size_t i = 0; i < f->n_tensors; i++) {
        source_llmq_fill(&s->tensors[i], order[i]);
        memcpy(s->hashes[i], order[i]->hash, sizeof s->hashes[i]);
    }
    s->n_tensors = f->n_tensors;
    free(order);
    return LQ_OK;
}

static lq_status list_blobs(src_source *s, lq_err *err)
{
    const lqf_file *f = &s->llmq;
    s->blobs = lq_push(&s->arena, f->n_blobs * sizeof *s->blobs);
    if (!s->blobs) return lq_fail(err, LQ_ENOMEM, "%s: out of memory", s->path);
    for (size_t i = 0; i < f->n_blobs; i++) { /* convert makes files of them */
        if (!model_blob(f->blobs[i].name))
            return lq_fail(err, LQ_EFORMAT,
                           "%s: blob '%.100s': expected a file of a model that is neither weights "
                           "nor code",
                           s->path, f->blobs[i].name);
        s->blobs[i] = (src_blob){ f->blobs[i].name, f->blobs[i].span.data, f->blobs[i].span.bytes };
    }
    s->n_blobs = f->n_blobs;
    return LQ_OK;
}

lq_status src_verify(const src_source *s, const lq_job *job, lq_err *err)
{
    if (!s->llmq.map.size) return LQ_OK;
    lq_status st = lqf_verify(&s->llmq, job, NULL, NULL, err);
    return st ? lq_wrap(err, st, "%s", s->path) : LQ_OK;
}

/* It stands within the provenance there, and beside it everywhere else. */
static bool take_conversion(src_source *s)
{
    cJSON *c = cJSON_DetachItemFromObjectCaseSensitive(
        cJSON_GetObjectItemCaseSensitive(s->llmq.header, HISTORY_PROVENANCE), HISTORY_CONVERTED);
    if (!c) return true;
    s->conversion = c;
    s->history = cJSON_CreateObject();
    if (s->history) return cJSON_AddItemToObject(s->history, HISTORY_CONVERTED, c);
    cJSON_Delete(c);
    return false;
}

lq_status src_llmq_open(src_source *s, const src_opts *o, lq_err *err)
{
    s->format = "llmq";
    lq_status st = lqf_open(&s->llmq, s->path, err);
    if (!st) st = src_stamp_file(s, s->path, err);
    if (st) return st;
    if (o->verify && (st = src_verify(s, NULL, err))) return st;
    if (s->llmq.config) {
        st = arch_config_from_json(&s->config, s->llmq.config, err);
        s->has_config = !st;
        if (st) lq_wrap(err, st, "%s: header: config", s->path);
        if (st && (o->need_config || st == LQ_ENOMEM)) return st;
        if (st && (st = src_set_unfit(s, st, err, err))) return st;
    }
    s->recipe = s->llmq.recipe;
    s->provenance = s->llmq.provenance;
    if (!take_conversion(s)) return lq_fail(err, LQ_ENOMEM, "%s: out of memory", s->path);
    st = list_tensors(s, err);
    return st ? st : list_blobs(s, err);
}
