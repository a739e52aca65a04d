/* formats/source/source_derived.c - a source in front of another that changes some of its tensors. */
#include "base/json.h"
#include "formats/source/source_impl.h"

#include <cjson/cJSON.h>
#include <stdlib.h>

static void source_derived_fill(void *const w[QT_N_PLANES], const qt_tensor *t, const void *from)
{
    const src_change *c = from;
    (void)t;
    c->make(w[QT_CODES], c->from);
}

src_source *src_begin_derived(const src_source *base, lq_err *err)
{
    src_source *s = calloc(1, sizeof *s);
    if (!s || !(s->path = strdup(base->path))) {
        free(s);
        lq_fail(err, LQ_ENOMEM, "%s: out of memory", base->path);
        return NULL;
    }
    s->format = base->format;
    s->base = base;
    s->blobs = base->blobs;
    s->n_blobs = base->n_blobs;
    return s;
}

lq_status src_copy_config(src_source *s, const src_source *base, lq_err *err)
{
    if (!base->has_config) return LQ_OK;
    cJSON *own = arch_config_json(&base->config);
    lq_status st = own ? arch_config_from_json(&s->config, own, err)
                       : lq_fail(err, LQ_ENOMEM, "%s: out of memory", base->path);
    cJSON_Delete(own);
    s->has_config = !st;
    return st;
}

/* The base's tensors come first, in its order. */
static lq_status put_change(src_source *s, const src_source *base, const src_change *c, lq_err *err)
{
    const src_tensor *old = src_find(base, c->name);
    src_tensor *t = &s->tensors[old ? (size_t)(old - base->tensors) : s->n_tensors++];
    size_t bytes = lq_dtype_bytes(c->dtype);
    for (int i = 0; i < c->n_dims; i++)
        bytes *= (size_t)c->shape[i];
    lq_status st = src_fill_plain(t, c->name, c->dtype, c->n_dims, c->shape, c->data, bytes, err);
    if (st || c->data) return st;
    t->raw = t->t.plane[QT_CODES] = (qt_span){ 0 };
    return src_make(s, t, source_derived_fill, c, err);
}

static lq_status change_all(src_source *s, const src_source *base, const src_change *c, size_t n,
                            lq_err *err)
{
    s->tensors = lq_push(&s->arena, (base->n_tensors + n + 1) * sizeof *s->tensors);
    if (!s->tensors) return lq_fail(err, LQ_ENOMEM, "%s: out of memory", base->path);
    s->n_tensors = base->n_tensors;
    memcpy(s->tensors, base->tensors, base->n_tensors * sizeof *s->tensors);
    lq_status st = LQ_OK;
    for (size_t i = 0; i < n && !st; i++)
        st = put_change(s, base, &c[i], err);
    if (!st) qsort(s->tensors, s->n_tensors, sizeof *s->tensors, src_by_name);
    return st ? st : src_make_room(s, err);
}

lq_status src_derive(src_source **out, const src_source *base, const src_change *c, size_t n,
                     bool untied, lq_err *err)
{
    *out = NULL;
    src_source *s = src_begin_derived(base, err);
    if (!s) return LQ_ENOMEM;
    lq_status st = src_copy_config(s, base, err);
    if (untied) s->config.tied = false;
    if (!st) st = change_all(s, base, c, n, err);
    if (st)
        src_close(s);
    else
        *out = s;
    return st;
}

lq_status src_plan(src_source **out, const src_source *base, const src_coming *c, size_t n,
                   bool tied, lq_err *err)
{
    *out = NULL;
    src_source *s = src_begin_derived(base, err);
    if (!s) return LQ_ENOMEM;
    lq_status st = src_copy_config(s, base, err);
    s->config.tied = tied;
    s->tensors = lq_push(&s->arena, (base->n_tensors + n + 1) * sizeof *s->tensors);
    if (!st && !s->tensors) st = lq_fail(err, LQ_ENOMEM, "%s: out of memory", base->path);
    if (st) {
        src_close(s);
        return st;
    }
    s->n_tensors = base->n_tensors;
    memcpy(s->tensors, base->tensors, base->n_tensors * sizeof *s->tensors);
    for (size_t i = 0; i < n; i++) {
        const src_tensor *old = src_find(base, c[i].name);
        src_tensor *t = &s->tensors[old ? (size_t)(old - base->tensors) : s->n_tensors++];
        *t = (src_tensor){ .name = c[i].name, .n_dims = c[i].n_dims, .plain = true };
        t->t = (qt_tensor){ .scheme = c[i].scheme, .N = c[i].N, .K = c[i].K };
        memcpy(t->shape, c[i].shape, (size_t)c[i].n_dims * sizeof *t->shape);
    }
    qsort(s->tensors, s->n_tensors, sizeof *s->tensors, src_by_name);
    *out = s;
    return LQ_OK;
}

/* Is there a head, and does it fit the rest? */
static lq_status check_head(const src_source *head, lq_err *err)
{
    char proj[256];
    if (!arch_tensor_name(&head->config, R_MTP_PROJ, -1, -1, false, proj, sizeof proj) ||
        !src_find(head, proj))
        return lq_fail(err, LQ_ENOENT,
                       "%s: multi-token prediction: expected a head, found no tensor '%s'",
                       head->path, proj);
    if (src_recipe(head->base) && js_get(src_recipe(head->base), "rotate_seed"))
        return lq_fail(err, LQ_EUNSUPPORTED,
                       "%s: multi-token prediction: expected hidden states as the head has learned "
                       "them, found a model that was quantized with --rotate",
                       head->path);
    return LQ_OK;
}

lq_status src_mtp(src_source **out, const src_source *base, lq_err *err)
{
    *out = NULL;
    src_source *s = src_begin_derived(base, err);
    if (!s) return LQ_ENOMEM;
    s->tensors = base->tensors;
    s->n_tensors = base->n_tensors;
    s->uint_blocks = base->uint_blocks;
    lq_status st = arch_config_mtp(&s->config, &base->config, err);
    s->has_config = !st;
    if (!st) st = check_head(s, err);
    if (st)
        src_close(s);
    else
        *out = s;
    return st;
}
