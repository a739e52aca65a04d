/* convert/model_free/model_free_plan.c - what becomes of each tensor, by its name and shape. */
#include "convert/model_free/model_free_impl.h"
#include "convert/shards.h"
#include "quantize/methods/grid.h"

#include <stdio.h>

enum {
    MAX_NAME = 500
}; /* bytes of a name that others are made of, with an expert's number and a suffix */

typedef struct {
    mf_run *m;
    mf_names *names;
    qz_patterns overrides, skips, includes;
    qt_scheme linear, head;
    size_t room; /* pieces */
} maker;

static lq_status no_memory(lq_err *err)
{
    return lq_fail(err, LQ_ENOMEM, "no memory for the plan");
}

static bool ends(const char *name, const char *end)
{
    const size_t n = strlen(name), e = strlen(end);
    return n > e && strcmp(name + n - e, end) == 0;
}

/* ---- experts in one tensor ---- */
typedef struct {
    int parts;   /* matrices of each expert: gate and up, or down; 0: the tensor is no stack */
    bool turned; /* [E, inputs, outputs] */
    const char *name[2];
} stack;

/* Which way they lie follows from gate and up [E,2I,H] and down [E,H,I] beside each other. Those with a bias
 * (gpt-oss) keep theirs in an order of their own. */
static stack stack_of(const mf_run *m, const src_tensor *t)
{
    static const char both[] = "experts.gate_up_proj", down[] = "experts.down_proj";
    char name[600];
    const bool first = ends(t->name, both);
    const size_t end = strlen(first ? both : down), n = strlen(t->name);
    if (t->n_dims != 3 || !t->plain || (!first && !ends(t->name, down))) return (stack){ 0 };
    snprintf(name, sizeof name, "%.*s%s", (int)(n - end), t->name, first ? down : both);
    const src_tensor *x = src_find(m->src, name), *g = first ? t : x, *d = first ? x : t;
    snprintf(name, sizeof name, "%s_bias", g ? g->name : "");
    if (!x || x->n_dims != 3 || x->shape[0] != t->shape[0] || src_find(m->src, name))
        return (stack){ 0 };
    const int64_t *a = g->shape, *b = d->shape;
    const bool straight = a[1] == 2 * b[2] && a[2] == b[1];
    if (!straight && !(a[2] == 2 * b[1] && a[1] == b[2])) return (stack){ 0 };
    if (first) return (stack){ 2, !straight, { "gate_proj", "up_proj" } };
    return (stack){ 1, !straight, { "down_proj" } };
}

/* ---- what is rounded ---- */
static const char *module_of(const src_tensor *t, lq_arena *a)
{
    const size_t n = strlen(t->name);
    return lq_push_str(a, t->name, ends(t->name, ".weight") ? n - 7 : n);
}

static bool is_head(const char *module) { return strcmp(module, "lm_head") == 0; }

/* The scheme that options ask for, or why the module stays as it is. */
static const char *wanted(maker *k, qt_scheme *s, const char *name, const char *module)
{
    if (qz_patterns_match(&k->skips, name, NULL)) return "--skip";
    if (qz_patterns_match(&k->overrides, name, s)) return NULL;
    const char *why = mf_names_leaves(k->names, module);
    *s = k->linear;
    if (k->m->o->q->lm_head && is_head(module)) return *s = k->head, NULL;
    return why && !qz_patterns_match(&k->includes, name, NULL) ? why : NULL;
}

/* Kernels read whole words and tiles; blocks of parts that are fused must end together. */
static const char *unfit(const qt_scheme *s, int64_t N, int64_t K)
{
    if (s->kind == QT_E4M3 && s->group && (N % s->rows || K % s->group))
        return "no multiple of the block";
    if (s->kind == QT_UINT && K % 32) return "inputs are no multiple of 32";
    return N % 16 || K % 16 ? "outputs or inputs are no multiple of 16" : NULL;
}

static lq_status decide(maker *k, mf_item *it, lq_err *err)
{
    const src_tensor *t = it->t;
    if (t->plain && strlen(t->name) > MAX_NAME)
        return it->why = "a name of more than 500 bytes", LQ_OK;
    const stack st = stack_of(k->m, t);
    if (t->plain && t->t.scheme.kind != QT_DENSE) {
        char have[40];
        qt_scheme_text(have, &t->t.scheme);
        return lq_fail(err, LQ_EUNSUPPORTED, "%s: expected unquantized weights, found %s", t->name,
                       have);
    }
    if (t->plain && t->n_dims == 3 && !st.parts && strstr(t->name, "experts."))
        it->why = "experts stacked in an order that is not known";
    if (!t->plain || !(st.parts || (t->n_dims == 2 && ends(t->name, ".weight")))) return LQ_OK;
    const char *module = module_of(t, &k->m->arena);
    if (!module) return no_memory(err);
    it->why = wanted(k, &it->scheme, t->name, module);
    it->rounded = !it->why && it->scheme.kind != QT_DENSE;
    if (!it->rounded) return LQ_OK;
    const int64_t N = st.turned ? t->shape[2] : t->shape[t->n_dims - 2];
    const int64_t K = st.turned ? t->shape[1] : t->t.K;
    if (it->scheme.kind == QT_UINT) it->scheme.group = qz_fit_group(K, it->scheme.group);
    it->why = unfit(&it->scheme, st.parts ? N / st.parts : N, K);
    it->rounded = !it->why;
    return it->rounded ? qt_check(&it->scheme, N, K, err) : LQ_OK;
}

static mf_item *item_of(mf_run *m, const char *module)
{
    char name[700];
    snprintf(name, sizeof name, "%s.weight", module);
    const src_tensor *t = src_find(m->src, name);
    return t ? &m->items[t - src_tensor_at(m->src, 0)] : NULL;
}

/* One of several that loaders fuse is left for its shape: so are the others. */
static lq_status leave_siblings(mf_run *m, lq_err *err)
{
    for (size_t i = 0; i < m->n_items; i++) {
        char name[600];
        const char *module = m->items[i].rounded ? module_of(m->items[i].t, &m->arena) : NULL;
        if (m->items[i].rounded && !module) return no_memory(err);
        for (int k = 0; module && mf_names_sibling(name, sizeof name, module, k); k++) {
            const mf_item *x = item_of(m, name);
            if (!x || x->rounded || !x->why || !x->scheme.kind || strncmp(x->why, "--", 2) == 0)
                continue;
            m->items[i].rounded = false;
            m->items[i].why = "fused with one that is left";
        }
    }
    return LQ_OK;
}

/* ---- the weights of the result ---- */
static conv_weight *add_piece(maker *k, size_t item, const char *module)
{
    mf_run *m = k->m;
    const mf_item *it = &m->items[item];
    conv_weight *w = &m->plan.w[m->plan.n];
    m->pieces[m->plan.n++] = (mf_piece){ .item = item, .expert = -1 };
    w->t = it->t;
    w->module = module;
    w->N = it->t->t.N;
    w->K = it->t->t.K;
    w->linear = it->rounded || it->why;
    w->foreign = it->why && strcmp(it->why, MF_TOWER) == 0;
    w->slot.role = is_head(module) ? R_HEAD : R_EMBED;
    w->quantized = it->rounded;
    w->scheme = it->scheme;
    w->dtype = it->t->raw_dtype;
    w->bytes = src_bytes(it->t);
    return w;
}

static lq_status add_stack(maker *k, size_t item, const stack *st, lq_err *err)
{
    const src_tensor *t = k->m->items[item].t;
    const size_t stem = (size_t)(strrchr(t->name, '.') - t->name);
    for (int64_t e = 0; e < t->shape[0]; e++)
        for (int p = 0; p < st->parts; p++) {
            char name[600];
            const int n = snprintf(name, sizeof name, "%.*s.%lld.%s", (int)stem, t->name,
                                   (long long)e, st->name[p]);
            const char *module = lq_push_str(&k->m->arena, name, (size_t)n);
            if (!module) return no_memory(err);
            conv_weight *w = add_piece(k, item, module);
            mf_piece *at = &k->m->pieces[k->m->plan.n - 1];
            w->N = t->shape[st->turned ? 2 : 1] / st->parts;
            w->K = t->shape[st->turned ? 1 : 2];
            *at = (mf_piece){ item, e, st->turned, p * w->N };
        }
    return LQ_OK;
}

static size_t pieces_of(const mf_run *m, const mf_item *it)
{
    const stack st = stack_of(m, it->t);
    return it->rounded && st.parts ? (size_t)it->t->shape[0] * (size_t)st.parts : 1;
}

static lq_status add_pieces(maker *k, lq_err *err)
{
    mf_run *m = k->m;
    size_t room = 1;
    for (size_t i = 0; i < m->n_items; i++)
        room += pieces_of(m, &m->items[i]);
    m->plan.w = lq_push(&m->arena, room * sizeof *m->plan.w);
    m->pieces = lq_push(&m->arena, room * sizeof *m->pieces);
    if (!m->plan.w || !m->pieces) return no_memory(err);
    lq_status s = LQ_OK;
    for (size_t i = 0; i < m->n_items && !s; i++) {
        const stack st = m->items[i].rounded ? stack_of(m, m->items[i].t) : (stack){ 0 };
        const char *module = module_of(m->items[i].t, &m->arena);
        if (!module) return no_memory(err);
        if (st.parts)
            s = add_stack(k, i, &st, err);
        else
            add_piece(k, i, module);
    }
    return s;
}

/* ---- the whole ---- */
static lq_status make_rules(maker *k, lq_err *err)
{
    const mf_opts *o = k->m->o;
    const qz_opts *q = o->q;
    if (qz_calibrated(q))
        return lq_fail(err, LQ_EUSAGE,
                       "--model-free: expected a method that needs no text, found %s",
                       q->method->name);
    lq_status s = mf_names_open(&k->names, err);
    if (!s)
        s = qz_patterns_make(&k->overrides, "--override", q->overrides, q->n_overrides, true,
                             q->method, err);
    if (!s) s = qz_patterns_make(&k->skips, "--skip", q->skips, q->n_skips, false, NULL, err);
    if (!s)
        s = qz_patterns_make(&k->includes, "--include", o->includes, o->n_includes, false, NULL,
                             err);
    if (!s) s = q->method->scheme(&k->linear, q, err);
    if (!s && k->linear.zero == QT_ZERO_F16) { /* which these layouts have no place for */
        k->linear.zero = QT_ZERO_INT;
        k->linear.zbits = k->linear.bits;
    }
    if (!s && q->lm_head) s = qz_scheme_asked(&k->head, q->lm_head, "--lm-head", q->method, err);
    return s;
}

static void free_rules(maker *k, const plan_voice *v)
{
    if (v) qz_patterns_say_unused(&k->overrides, v);
    if (v) qz_patterns_say_unused(&k->skips, v);
    if (v) qz_patterns_say_unused(&k->includes, v);
    qz_patterns_free(&k->overrides);
    qz_patterns_free(&k->skips);
    qz_patterns_free(&k->includes);
    mf_names_close(k->names);
}

static lq_status add_items(maker *k, lq_err *err)
{
    mf_run *m = k->m;
    m->n_items = (size_t)src_n_tensors(m->src);
    m->items = lq_push(&m->arena, (m->n_items + 1) * sizeof *m->items);
    if (!m->items) return no_memory(err);
    lq_status s = LQ_OK;
    for (size_t i = 0; i < m->n_items && !s; i++) {
        m->items[i].t = src_tensor_at(m->src, (int64_t)i);
        s = decide(k, &m->items[i], err);
    }
    return s ? s : leave_siblings(m, err);
}

/* What w becomes has names of its own, which no tensor beside it has. */
static lq_status check_names(const mf_run *m, const conv_weight *w, lq_err *err)
{
    char name[600];
    for (int i = -1; i < w->n_parts; i++) {
        snprintf(name, sizeof name, "%s%s", w->module, i < 0 ? ".weight" : w->parts[i].suffix);
        const src_tensor *t = src_find(m->src, name);
        if (t && t != w->t)
            return lq_fail(err, LQ_EUNSUPPORTED,
                           "'%.100s': expected no tensor of this name, which the rounded '%.100s' "
                           "takes (--skip leaves it)",
                           name, w->t->name);
    }
    return LQ_OK;
}

/* Parts of all that is rounded, and the shards. */
static lq_status plan_parts(mf_run *m, lq_err *err)
{
    lq_status s = LQ_OK;
    size_t in_shard = 0, n = 0;
    m->n_shards = 0;
    for (size_t i = 0; i < m->plan.n; i++)
        m->items[m->pieces[i].item].bytes = 0;
    for (size_t i = 0; i < m->plan.n && !s; i++) {
        conv_weight *w = &m->plan.w[i];
        if (w->quantized && (s = conv_plan_parts(w, m->layout, &m->plan, err)))
            lq_wrap(err, s, "'%s' has no place in %s", w->t->name, m->layout->name);
        if (w->quantized && !s) s = check_names(m, w, err);
        n += w->quantized;
        m->items[m->pieces[i].item].bytes += w->bytes;
        w->shard = conv_next_shard(&m->n_shards, &in_shard, w->bytes, m->o->shard_size);
    }
    m->n_shards++;
    if (!s && !n)
        s = lq_fail(err, LQ_EUNSUPPORTED, "%s: no matrix to round (--dry-run shows why)",
                    src_path(m->src));
    return s;
}

lq_status mf_plan(mf_run *m, lq_err *err)
{
    maker k = { .m = m };
    lq_status s = make_rules(&k, err);
    if (!s) s = add_items(&k, err);
    if (!s) s = add_pieces(&k, err);
    free_rules(&k, s ? NULL : &m->o->voice);
    m->plan.src = m->src;
    for (size_t i = 0; i < m->plan.n && !s; i++)
        if (m->plan.w[i].scheme.kind == QT_UINT) m->plan.w[i].scheme.scale_dtype = LQ_F16;
    if (!s) s = plan_parts(m, err);
    if (s == LQ_EUNSUPPORTED && !m->plan.n) return s;
    m->quant = s ? NULL : cJSON_CreateObject();
    if (!s && !m->quant) s = no_memory(err);
    return s ? s : m->layout->config(m->quant, &m->plan, err);
}

lq_status mf_settle(mf_run *m, lq_err *err)
{
    for (size_t i = 0; i < m->plan.n; i++) {
        conv_weight *w = &m->plan.w[i];
        if (w->quantized && w->scheme.kind == QT_UINT)
            w->scheme.scale_dtype = grid_scale_dtype(w->t->largest, w->scheme.bits);
    }
    return plan_parts(m, err);
}
