/* tools/quantize_to/refine.c - see refine.h. */
#include "tools/quantize_to/refine.h"

#include "base/mapped.h"
#include "base/out_file.h"
#include "formats/gguf/gguf_blocks.h"
#include "quantize/layer/plan.h"
#include "tools/cli/carried_tok.h"
#include "tools/cli/progress.h"

#include <stdlib.h>

/* ---- options ---- */
lq_status refine_check(const cmd_ctx *c, const refine_opts *o, lq_err *err)
{
    static const char *const others[] = {
        "to",  "bits",          "group-size", "sym",     "asym",  "narrow",     "rotate",
        "bpw", "static-groups", "override",   "lm-head", "embed", "model-free", "mtp",
    };
    if (o->on != (o->ref != NULL))
        return lq_fail(err, LQ_EUSAGE,
                       o->on ? "--refine needs --ref, the unquantized model"
                             : "--ref needs --refine");
    for (size_t i = 0; i < LQ_COUNT(others) && o->on; i++)
        if (opt_given(c, others[i]))
            return lq_fail(err, LQ_EUSAGE, "--refine: the file says every scheme: expected no --%s",
                           others[i]);
    return LQ_OK;
}

/* ---- the file ---- */
static bool is_float(ggml_type t) { return t == GGML_F32 || t == GGML_F16 || t == GGML_BF16; }

/* Tensors that methods make, and those that stay, which are named. */
static void count_types(int64_t *made, int64_t *kept, const gguf_file *f)
{
    *made = *kept = 0;
    for (size_t i = 0; i < f->n; i++) {
        const gguf_tensor *t = &f->tensors[i];
        const qt_scheme s = gguf_scheme(t->type);
        if (is_float(t->type) || t->type == GGML_I32) continue;
        *made += qz_makes(&s);
        *kept += !qz_makes(&s);
        if (!qz_makes(&s))
            prog_say(LOG_WARN, "%s: no method makes %s: copied", t->name, gguf_type_text(t->type));
    }
}

lq_status refine_open(qz_opts *q, const char *path, const cmd_ctx *c, lq_err *err)
{
    int64_t made, kept;
    lq_hash hash;
    lq_status s = src_open(&q->like, path, &(src_opts){ .need_config = true }, err);
    if (s) return s;
    const gguf_file *f = src_gguf(q->like);
    if (!f)
        return lq_fail(err, LQ_EUSAGE, "--refine: %s: expected a GGUF file, found %s", path,
                       src_format(q->like));
    if (src_n_files(q->like) != 1)
        return lq_fail(err, LQ_EUSAGE,
                       "--refine: %s: expected one file, found %zu parts (llama-gguf-split "
                       "--merge joins them)",
                       path, src_n_files(q->like));
    count_types(&made, &kept, f);
    if (!made)
        return lq_fail(err, LQ_EUSAGE, "--refine: %s: no tensor has a type that a method makes",
                       path);
    if (kept + q->n_skips && opt_given(c, "fold") && !q->no_fold)
        return lq_fail(err, LQ_EUSAGE,
                       "--fold: scales go into all tensors of a layer, and some of "
                       "them stay as they are in the file");
    if (kept + q->n_skips) q->no_fold = true;
    s = src_fingerprint(&hash, q->like, err);
    if (!s) lq_hash_hex(q->like_hash, &hash);
    lq_map_drop(&f->map, f->map.data, f->map.size);
    return s;
}

/* ---- is it made of that model? ---- */
enum { ROWS = 16 };
static const double FARTHEST = 0.6; /* IQ1_S is off by 0.2, another model by 2 */

/* |b - a|^2 / |a|^2 over the first rows. */
static lq_status distance(double *d, const qt_tensor *a, const qt_tensor *b, lq_err *err)
{
    const int64_t n = a->N < ROWS ? a->N : ROWS;
    const size_t each = (size_t)(n * a->K);
    float *x = malloc(2 * each * sizeof *x), *y = x + each;
    double off = 0, all = 0;
    if (!x) return lq_fail(err, LQ_ENOMEM, "no memory to compare weights");
    qt_dequant(x, a, 0, n);
    qt_dequant(y, b, 0, n);
    for (size_t i = 0; i < each; i++) {
        const double e = (double)y[i] - (double)x[i];
        off += e * e;
        all += (double)x[i] * (double)x[i];
    }
    free(x);
    *d = all > 0 ? off / all : 0;
    return LQ_OK;
}

static lq_status compare_to(const qt_tensor *w, const src_source *like, const arch_slot *at,
                            const char *name, lq_err *err)
{
    lq_arena a = { 0 };
    qt_tensor q;
    double d = 0;
    lq_status s = src_matrix(like, at->role, at->layer, at->expert, &q, &a, err);
    if (!s && (w->N != q.N || w->K != q.K))
        s = lq_fail(err, LQ_EUSAGE, "%s: expected [%lld,%lld] as in %s, found [%lld,%lld]", name,
                    (long long)q.N, (long long)q.K, src_path(like), (long long)w->N,
                    (long long)w->K);
    if (!s) s = distance(&d, w, &q, err);
    if (!s && !(d <= FARTHEST))
        s = lq_fail(err, LQ_EUSAGE,
                    "%s: expected about the weights of %s, found others (relative square of the "
                    "difference: %.2f)",
                    name, src_path(like), d);
    src_matrix_done(like, at->role, at->layer, at->expert);
    lq_arena_free(&a);
    return s;
}

static lq_status compare_matrix(const src_source *like, const src_source *src, const arch_slot *at,
                                const char *name, lq_err *err)
{
    lq_arena a = { 0 };
    qt_tensor w;
    lq_status s = src_matrix(src, at->role, at->layer, at->expert, &w, &a, err);
    if (!s) s = compare_to(&w, like, at, name, err);
    src_matrix_done(src, at->role, at->layer, at->expert);
    lq_arena_free(&a);
    return s;
}

static bool has(const src_source *s, const arch_slot *at, const src_tensor **t)
{
    const src_tensor *weight, *bias;
    lq_err none;
    const int64_t expert = arch_role_per_expert(at->role) && at->expert < 0 ? 0 : at->expert;
    const arch_config *c = src_config(s);
    if (at->layer >= c->layers || (expert > 0 && expert >= c->experts)) return false;
    if (src_role(s, at->role, at->layer, expert, &weight, &bias, &none)) return false;
    *t = at->bias ? bias : weight;
    return *t != NULL;
}

/* Every tensor of `a` is in `b`. */
static lq_status names_fit(const src_source *a, const src_source *b, lq_err *err)
{
    const src_tensor *t;
    arch_slot at;
    for (int64_t i = 0; i < src_n_tensors(a); i++) {
        const char *name = src_tensor_at(a, i)->name;
        if (arch_slot_of(src_config(a), name, &at) && !has(b, &at, &t))
            return lq_fail(err, LQ_EUSAGE, "expected the tensors of %s, found no '%s' in %s",
                           src_path(a), name, src_path(b));
    }
    return LQ_OK;
}

static lq_status tensors_fit(const src_source *like, const src_source *src, lq_err *err)
{
    lq_status s = names_fit(like, src, err);
    if (!s) s = names_fit(src, like, err);
    for (int64_t i = 0; i < src_n_tensors(src) && !s; i++) {
        const src_tensor *x = src_tensor_at(src, i), *y;
        arch_slot at;
        if (!arch_slot_of(src_config(src), x->name, &at) || at.expert > 0) continue;
        if (arch_role_per_expert(at.role)) at.expert = 0;
        if (!at.bias && arch_role_linear(at.role))
            s = compare_matrix(like, src, &at, x->name, err);
        else if (!arch_role_per_expert(at.role) && has(like, &at, &y) &&
                 src_elements(x) != src_elements(y))
            s = lq_fail(err, LQ_EUSAGE, "%s: expected %lld elements as in %s, found %lld", x->name,
                        (long long)src_elements(y), src_path(like), (long long)src_elements(x));
    }
    return s;
}

static lq_status same_tokens(const tok_tokenizer *a, const tok_tokenizer *b, lq_err *err)
{
    const int32_t n = tok_vocab(a) < tok_vocab(b) ? tok_vocab(a) : tok_vocab(b);
    for (int32_t id = 0; id < n; id++) {
        size_t la, lb;
        const char *x = tok_token(a, id, &la), *y = tok_token(b, id, &lb);
        if (x && y && (la != lb || memcmp(x, y, la) != 0))
            return lq_fail(err, LQ_EUSAGE, "token %d: expected '%.*s', found '%.*s'", id, (int)la,
                           x, (int)lb, y);
    }
    return LQ_OK;
}

static lq_status tokens_fit(const src_source *like, const src_source *src, lq_err *err)
{
    carried_tok a = { 0 }, b = { 0 };
    lq_status s = carried_tok_open(&a, like, true, err);
    if (!s) s = carried_tok_open(&b, src, true, err);
    if (!s && a.tok && b.tok) s = same_tokens(a.tok, b.tok, err);
    carried_tok_close(&a);
    carried_tok_close(&b);
    return s;
}

lq_status refine_fits(const qz_opts *q, const src_source *src, lq_err *err)
{
    lq_status s = tensors_fit(q->like, src, err);
    if (!s) s = tokens_fit(q->like, src, err);
    return s ? lq_wrap(err, s, "--ref: %s", src_path(src)) : LQ_OK;
}

/* ---- the result ---- */
/* The tensor that takes t's place; *s: it has another type. NULL: t stays. */
static const gguf_tensor *better(lq_status *s, const gguf_file *made, const gguf_tensor *t,
                                 lq_err *err)
{
    const gguf_tensor *m = gguf_find(made, t->name);
    *s = LQ_OK;
    if (!m || (m->type == t->type && m->bytes == t->bytes)) return m;
    if (!is_float(m->type) || m->n_dims != t->n_dims ||
        memcmp(m->shape, t->shape, (size_t)t->n_dims * sizeof *t->shape) != 0)
        *s = lq_fail(err, LQ_EUNSUPPORTED, "%s: expected %s, found %s", t->name,
                     gguf_type_text(t->type), gguf_type_text(m->type));
    return NULL;
}

/* All of a mapped file, whose pages go again. */
static lq_status copy(lq_out *o, const lq_map *m, lq_err *err)
{
    enum { PIECE = 8 << 20 };
    lq_status s = LQ_OK;
    for (size_t at = 0; at < m->size && !s; at += PIECE) {
        const size_t n = m->size - at < PIECE ? m->size - at : PIECE;
        s = lq_out_write(o, m->data + at, n, err);
        lq_map_drop(m, m->data + at, n);
    }
    return s;
}

lq_status refine_write(const char *out, const src_source *like, const char *made, lq_err *err)
{
    const gguf_file *f = src_gguf(like);
    gguf_file m;
    lq_out *o = NULL;
    lq_status s = gguf_open(&m, made, err);
    if (s) return s;
    s = lq_out_open(&o, out, err);
    if (!s) s = copy(o, &f->map, err);
    for (size_t i = 0; i < f->n && !s; i++) {
        const gguf_tensor *t = &f->tensors[i], *b = better(&s, &m, t, err);
        if (!b) continue;
        s = lq_out_pwrite(o, b->data, b->bytes, (size_t)(t->data - f->map.data), err);
        lq_map_drop(&m.map, b->data, b->bytes);
    }
    if (!s)
        s = lq_out_commit(o, err);
    else
        lq_out_abort(o);
    gguf_close(&m);
    return s;
}
