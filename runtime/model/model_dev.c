/* runtime/model/model_dev.c - a loaded model's weights on a device: every plane, bias and norm by one
 * copy each, unchanged: the device reads the 16-row interleaved layout too. Dense weights of layers
 * go back into rows where cuBLAS is. Of several devices each gets its part. */
#include "runtime/model/absorb.h"
#include "runtime/model/model.h"
#include "runtime/model/rank.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

static bool model_dev_keep(model_on *on, void *p)
{
    if (on->n_mem == on->cap) {
        const int64_t cap = on->cap ? 2 * on->cap : 256;
        void **more = realloc(on->mem, (size_t)cap * sizeof *more);
        if (!more) return false;
        on->mem = more;
        on->cap = cap;
    }
    on->mem[on->n_mem++] = p;
    return true;
}

/* n bytes on the device. */
static lq_status model_dev_take(void **to, model_on *on, size_t n, lq_err *err)
{
    void *p;
    lq_status s = dev_take(&p, &on->d, n, "a weight needs", err);
    if (s) return s;
    if (!model_dev_keep(on, p)) {
        on->d.ops->free(&on->d, p);
        return lq_fail(err, LQ_ENOMEM, "out of memory");
    }
    on->bytes += n;
    *to = p;
    return LQ_OK;
}

/* A copy of n bytes there; NULL after a failure, which dev_sync or `err` tells. */
static lq_status model_dev_put(const void **to, model_on *on, const void *host, size_t n,
                               lq_err *err)
{
    void *p = NULL;
    *to = NULL;
    if (!host || n == 0) return LQ_OK;
    lq_status s = model_dev_take(&p, on, n, err);
    if (!s) on->d.ops->upload(&on->d, p, host, n);
    *to = p;
    return s;
}

static lq_status put_floats(const float **to, model_on *on, int64_t n, lq_err *err)
{
    const void *p;
    lq_status s = model_dev_put(&p, on, *to, (size_t)n * sizeof(float), err);
    *to = p;
    return s;
}

static lq_status put_tensor(qt_tensor *t, model_on *on, lq_err *err)
{
    lq_status s = LQ_OK;
    for (int i = 0; i < QT_N_PLANES && !s; i++)
        s = model_dev_put(&t->plane[i].data, on, t->plane[i].data, t->plane[i].bytes, err);
    return s;
}

/* A tiled weight in rows, on the host; its one plane is the caller's to free. */
static lq_status in_rows(qt_tensor *rows, const qt_tensor *t, lq_err *err)
{
    *rows = (qt_tensor){ .scheme = t->scheme, .layout = QT_PORTABLE, .N = t->N, .K = t->K };
    const size_t n = qt_plane_bytes(&t->scheme, QT_PORTABLE, t->N, t->K, QT_CODES);
    void *w[QT_N_PLANES] = { [QT_CODES] = malloc(n) };
    rows->plane[QT_CODES] = (qt_span){ w[QT_CODES], n };
    return w[QT_CODES] ? tiles_unpack(w, t, err) : lq_fail(err, LQ_ENOMEM, "out of memory");
}

/* One plane of n tensors behind each other; of what belongs to no row the first's. */
static lq_status put_planes(qt_span *to, model_on *on, const qt_tensor *of, int n, qt_plane p,
                            lq_err *err)
{
    void *on_it = NULL;
    size_t at = 0;
    if (p == QT_MAP) n = 1;
    to->bytes = 0;
    for (int i = 0; i < n; i++)
        to->bytes += of[i].plane[p].bytes;
    lq_status s = to->bytes ? model_dev_take(&on_it, on, to->bytes, err) : LQ_OK;
    for (int i = 0; i < n && !s; at += of[i++].plane[p].bytes)
        if (of[i].plane[p].bytes)
            on->d.ops->upload(&on->d, (uint8_t *)on_it + at, of[i].plane[p].data,
                              of[i].plane[p].bytes);
    to->data = on_it;
    return s;
}

static lq_status put_biases(model_linear *to, model_on *on, const model_linear *of, int n,
                            lq_err *err)
{
    void *on_it = NULL;
    float *at;
    to->bias = NULL;
    if (!of->bias) return LQ_OK;
    lq_status s = model_dev_take(&on_it, on, (size_t)to->w.N * sizeof *at, err);
    to->bias = at = on_it;
    for (int i = 0; i < n && !s; at += of[i++].w.N)
        on->d.ops->upload(&on->d, at, of[i].bias, (size_t)of[i].w.N * sizeof *at);
    return s;
}

/* The most that become one. */
enum { JOINED = 3 };

/* n weights that can be joined, as one; of their own memory or not. */
static lq_status put_linears(model_linear *to, model_on *on, const model_linear *of, int n,
                             bool rows, lq_err *err)
{
    qt_tensor t[JOINED];
    lq_status s = LQ_OK;
    int made = 0;
    model_linear all = *of;
    all.w.N = 0;
    rows = rows && dev_in_rows(&of->w.t);
    for (int i = 0; i < n && !s; i++) {
        t[i] = of[i].w.t;
        all.w.N += of[i].w.N;
        if (rows) s = in_rows(&t[made++], &of[i].w.t, err);
    }
    all.w.t.N = all.w.N;
    if (!s) all.w.t.layout = t->layout;
    for (int p = 0; p < QT_N_PLANES && !s; p++)
        s = put_planes(&all.w.t.plane[p], on, t, n, (qt_plane)p, err);
    if (!s) s = put_biases(&all, on, of, n, err);
    for (int i = 0; i < made; i++)
        free((void *)(uintptr_t)t[i].plane[QT_CODES].data);
    *to = all;
    return s;
}

static lq_status put_linear(model_linear *l, model_on *on, bool rows, lq_err *err)
{
    const model_linear of = *l;
    return l->present ? put_linears(l, on, &of, 1, rows, err) : LQ_OK;
}

/* What `on` has of m's matrix of a role (layer -1: of none): its planes and bias are cut from the arena. */
static lq_status cut_linear(model_linear *l, const model_on *on, const model *m, int64_t layer,
                            arch_role r, lq_arena *a, lq_err *err)
{
    const qt_tensor whole = l->w.t;
    const float *bias = l->bias;
    void *w[QT_N_PLANES];
    rank_part p;
    if (!rank_part_of(&p, arch_at(m->cfg, layer), r, on->rank, on->ranks)) return LQ_OK;
    lq_status s = tiles_part(&l->w.t, &whole, p.rows, p.n, p.k0, p.k1, err);
    if (s) return s;
    for (int i = 0; i < QT_N_PLANES; i++) {
        const size_t n = l->w.t.plane[i].bytes;
        l->w.t.plane[i].data = w[i] = n ? lq_push(a, n) : NULL;
        if (n && !w[i]) return lq_fail(err, LQ_ENOMEM, "out of memory");
    }
    tiles_cut(w, &l->w.t, &whole, p.rows, p.n, p.k0);
    l->w.N = l->w.t.N;
    l->w.K = l->w.t.K;
    l->bias = NULL;
    if (!bias || !p.bias) return LQ_OK;
    float *own = lq_push(a, (size_t)l->w.N * sizeof *own);
    if (!own) return lq_fail(err, LQ_ENOMEM, "out of memory");
    l->bias = own;
    for (int i = 0; i < p.n; i++)
        for (int64_t n = p.rows[i].n0; n < p.rows[i].n1; n++)
            *own++ = bias[n];
    return LQ_OK;
}

/* Of one rank or several. */
static lq_status put_part(model_linear *l, model_on *on, const model *m, int64_t layer, arch_role r,
                          bool rows, lq_err *err)
{
    lq_arena a;
    if (!l->present || on->ranks == 1) return put_linear(l, on, rows, err);
    lq_status s = lq_arena_init(&a, 0, err);
    if (s) return s;
    s = cut_linear(l, on, m, layer, r, &a, err);
    if (!s) s = put_linear(l, on, rows, err); /* what was uploaded may go */
    lq_arena_free(&a);
    return s;
}

/* Whether b's rows can follow a's in one weight. */
static bool can_follow(const model_linear *a, const model_linear *b)
{
    const qt_tensor *s = &a->w.t, *t = &b->w.t;
    const qt_span *x = &s->plane[QT_MAP], *y = &t->plane[QT_MAP];
    return a->present && b->present && dev_same_group(&s->scheme, &t->scheme) &&
           s->scheme.act_scale == t->scheme.act_scale && !s->scheme.act_order &&
           s->scheme.kind != QT_I8_OUTLIER && s->K == t->K && s->layout == t->layout &&
           s->N % TILE_N == 0 && !a->bias == !b->bias && x->bytes == y->bytes &&
           (!x->bytes || memcmp(x->data, y->data, x->bytes) == 0);
}

/* Matrices that read the same inputs go there as one where they can: one product, and one launch,
 * in place of two or three. */
static const struct {
    arch_role to, of[JOINED];
    int n;
} joins[] = { { R_QKV, { R_Q, R_K, R_V }, 3 }, { R_GATE_UP, { R_GATE, R_UP }, 2 } };

/* Those of `l`, all the host's; what went is not present any more. */
static lq_status put_joined(model_layer *l, model_on *on, const model *m, int64_t layer,
                            size_t which, lq_err *err)
{
    const arch_role *of = joins[which].of;
    const int n = joins[which].n;
    model_linear part[JOINED], *to = &l->lin[joins[which].to];
    lq_arena a;
    const arch_config *c = m->cfg;
    const bool apart = c->w.mla || c->w.q_gated || l->lin[R_ATTN_GATE].present ||
                       l->lin[R_INDEX_Q].present; /* which reads what they read */
    bool fits = !to->present && !(apart && joins[which].to == R_QKV);
    lq_status s = lq_arena_init(&a, 0, err);
    if (s) return s;
    for (int i = 0; i < n && fits && !s; i++) {
        part[i] = l->lin[of[i]];
        fits = part[i].present;
        if (fits && on->ranks > 1) s = cut_linear(&part[i], on, m, layer, of[i], &a, err);
        fits = fits && (i == 0 || s || can_follow(&part[i - 1], &part[i]));
    }
    if (fits && !s) {
        s = put_linears(to, on, part, n, on->rows, err);
        for (int i = 0; i < n; i++)
            l->lin[of[i]] = (model_linear){ 0 };
    }
    lq_arena_free(&a);
    return s;
}

/* Of a role's vector, all of its tensors; the convolutions of q, k and v are one (model.c). */
static int64_t vector_floats(const arch_config *c, arch_role r)
{
    int64_t N, K;
    arch_role_shape(c, r, &N, &K);
    if (r == R_MIX_CONV) return c->conv_taps * arch_conv_channels(c, c->row->mixer);
    if (r == R_MIX_CONV_K || r == R_MIX_CONV_V) return 0;
    return N * K * arch_n_tensors(c, r);
}
static int64_t bias_floats(const arch_config *c, arch_role r)
{
    return r == R_MIX_CONV ? arch_conv_channels(c, c->row->mixer) : vector_floats(c, r);
}

/* From each of `rows` rows of `from`, `ld` apart, a part's ranges, side by side. */
static const float *cut_vector(const float *from, const rank_part *p, int64_t rows, int64_t ld,
                               lq_arena *a)
{
    int64_t n = 0;
    for (int i = 0; i < p->n; i++)
        n += p->rows[i].n1 - p->rows[i].n0;
    float *to = from ? lq_push(a, (size_t)(rows * n) * sizeof *to) : NULL, *at = to;
    for (int64_t k = 0; k < rows && to; k++)
        for (int i = 0; i < p->n; i++)
            for (int64_t c = p->rows[i].n0; c < p->rows[i].n1; c++)
                *at++ = from[k * ld + c];
    return to;
}

/* Of heads the device's own: where the whole has so many times what a rank has, or parts of several things. */
static lq_status put_vector(model_vector *v, model_on *on, const model *m, int64_t layer,
                            arch_role r, lq_err *err)
{
    const arch_config *c = arch_at(on->w.cfg, layer), *whole = arch_at(m->cfg, layer);
    const int64_t n = vector_floats(c, r), all = bias_floats(whole, r);
    const model_vector of = *v;
    lq_arena a;
    rank_part p;
    lq_status s = lq_arena_init(&a, 0, err);
    if (s) return s;
    if (on->ranks > 1 && rank_vector_part(&p, whole, r, on->rank, on->ranks)) {
        v->w = cut_vector(of.w, &p, all ? vector_floats(whole, r) / all : 0, all, &a);
        v->bias = cut_vector(of.bias, &p, 1, all, &a);
        if ((of.w && !v->w) || (of.bias && !v->bias)) s = lq_fail(err, LQ_ENOMEM, "out of memory");
    } else if (vector_floats(whole, r) != n) {
        if (v->w) v->w += on->rank * n;
        if (v->bias) v->bias += on->rank * n;
    }
    if (!s) s = put_floats(&v->w, on, n, err);
    if (!s) s = put_floats(&v->bias, on, bias_floats(c, r), err);
    lq_arena_free(&a);
    return s;
}

/* A role's experts, of which `experts` are the host's until then. */
static lq_status put_experts(model_linear **experts, model_on *on, const model *m, int64_t layer,
                             arch_role r, lq_err *err)
{
    const int64_t n = on->w.cfg->experts;
    if (!*experts) return LQ_OK;
    model_linear *e = lq_push(&on->w.arena, (size_t)n * sizeof *e);
    if (!e) return lq_fail(err, LQ_ENOMEM, "out of memory");
    memcpy(e, *experts, (size_t)n * sizeof *e);
    *experts = e;
    lq_status s = LQ_OK;
    for (int64_t i = 0; i < n && !s; i++)
        s = put_part(&e[i], on, m, layer, r, false, err);
    return s;
}

/* What put_sets works with, for each expert of a role. */
typedef struct {
    dev_weight *w;
    const float **bias;
    bool *taken; /* in an earlier set */
} sorting;

/* The set of those like expert e that none has taken. */
static lq_status put_set(model_experts *set, model_on *on, const model_linear *l, int64_t e,
                         const sorting *s, lq_err *err)
{
    const int64_t n = on->w.cfg->experts;
    const qt_tensor *like = &l[e].w.t;
    set->next = NULL;
    set->w.t = (qt_tensor){ like->scheme, like->layout, like->N, like->K, { { NULL, 0 } } };
    for (int64_t i = 0; i < n; i++) {
        const qt_tensor *t = &l[i].w.t;
        s->w[i] = (dev_weight){ 0 };
        if (s->taken[i] || !dev_same_group(&t->scheme, &like->scheme)) continue;
        s->taken[i] = true;
        s->w[i] = (dev_weight){ *t, tiles_shape(&t->scheme, t->N, t->K) };
        s->bias[i] = l[i].bias;
        if (t->scheme.n_out > set->w.t.scheme.n_out) set->w.t.scheme.n_out = t->scheme.n_out;
    }
    set->w.s = tiles_shape(&set->w.t.scheme, like->N, like->K);
    lq_status st = model_dev_take(&set->parts, on, (size_t)n * DEV_GROUP_EACH, err);
    if (!st) on->d.ops->mm_group(&on->d, set->parts, s->w, s->bias, n);
    return st;
}

/* Experts, on the device already, by what one launch takes: mostly all of them. */
static lq_status put_sets(model_experts **sets, model_on *on, const model_linear *l, lq_err *err)
{
    const int64_t n = on->w.cfg->experts;
    if (!l || !l->present) return LQ_OK;
    sorting s = { calloc((size_t)n, sizeof *s.w), calloc((size_t)n, sizeof *s.bias),
                  calloc((size_t)n, sizeof *s.taken) };
    lq_status st = s.w && s.bias && s.taken ? LQ_OK : lq_fail(err, LQ_ENOMEM, "out of memory");
    for (int64_t e = 0; e < n && !st; e++) {
        if (s.taken[e]) continue;
        model_experts *set = lq_push(&on->w.arena, sizeof *set);
        if (!set) st = lq_fail(err, LQ_ENOMEM, "out of memory");
        if (!st) st = put_set(set, on, l, e, &s, err);
        if (st) break;
        *sets = set;
        sets = &set->next;
    }
    free(s.taken);
    free(s.bias);
    free(s.w);
    return st;
}

/* A factor of each head, as one group. */
static lq_status put_heads(model_experts *to, model_on *on, const mm_weight *of, int64_t H,
                           lq_arena *tmp, lq_err *err)
{
    const size_t n = of->t.plane[QT_CODES].bytes, each = lq_round_up(n, 64);
    dev_weight *w = lq_push(tmp, (size_t)H * sizeof *w);
    const float **bias = lq_push(tmp, (size_t)H * sizeof *bias);
    void *at;
    if (!w || !bias) return lq_fail(err, LQ_ENOMEM, "out of memory");
    lq_status s = model_dev_take(&at, on, (size_t)H * each, err);
    if (!s) s = model_dev_take(&to->parts, on, (size_t)H * DEV_GROUP_EACH, err);
    if (s) return s;
    for (int64_t h = 0; h < H; h++) {
        uint8_t *own = (uint8_t *)at + (size_t)h * each;
        bias[h] = NULL;
        w[h] = (dev_weight){ of[h].t, tiles_shape(&of[h].t.scheme, of[h].N, of[h].K) };
        w[h].t.plane[QT_CODES].data = own;
        on->d.ops->upload(&on->d, own, of[h].t.plane[QT_CODES].data, n);
    }
    to->w = *w;
    to->w.t.plane[QT_CODES] = (qt_span){ NULL, 0 };
    on->d.ops->mm_group(&on->d, to->parts, w, bias, H);
    return LQ_OK;
}

/* R_KV_B as attention over latents takes it; of several ranks of its own heads. */
static lq_status put_absorbed(model_layer *l, model_on *on, const model *m, int64_t layer,
                              lq_err *err)
{
    const arch_config *c = arch_at(on->w.cfg, layer);
    model_linear *kv_b = &l->lin[R_KV_B];
    model_absorbed f;
    lq_arena a;
    lq_status s = lq_arena_init(&a, 0, err);
    if (s) return s;
    if (on->ranks > 1) s = cut_linear(kv_b, on, m, layer, R_KV_B, &a, err);
    if (!s) s = model_absorb(&f, c, kv_b, on->half, &a, &a, NULL, err);
    if (!s) s = put_heads(&l->absorbed[0], on, f.k, c->heads, &a, err);
    if (!s) s = put_heads(&l->absorbed[1], on, f.v, c->heads, &a, err);
    *kv_b = (model_linear){ .w = { .N = kv_b->w.N, .K = kv_b->w.K } }; /* for what a token costs */
    lq_arena_free(&a);
    return s;
}

/* One number, of which launches are told the value. */
static bool is_told(arch_role r)
{
    return r == R_LAYER_SCALE || (r >= R_XIELU_P && r <= R_XIELU_EPS);
}
static lq_status keep_number(model_vector *v, model_on *on, lq_err *err)
{
    float *own = v->w ? lq_push(&on->w.arena, sizeof *own) : NULL;
    if (v->w && !own) return lq_fail(err, LQ_ENOMEM, "out of memory");
    if (own) *own = *v->w;
    v->w = own;
    return LQ_OK;
}

/* One for each stream but the first, of a list that is the host's until then. */
static lq_status put_streams(model_linear **list, model_on *on, const model *m, lq_err *err)
{
    const int64_t n = m->cfg->streams - 1;
    if (!*list) return LQ_OK;
    model_linear *own = lq_push(&on->w.arena, (size_t)n * sizeof *own);
    if (!own) return lq_fail(err, LQ_ENOMEM, "out of memory");
    memcpy(own, *list, (size_t)n * sizeof *own);
    *list = own;
    lq_status s = LQ_OK;
    for (int64_t i = 0; i < n && !s; i++)
        s = put_linear(&own[i], on, false, err);
    return s;
}

static lq_status put_layer(model_on *on, const model *m, int64_t layer, lq_err *err)
{
    lq_status s = LQ_OK;
    model_layer *to = &on->w.layers[layer];
    *to = m->layers[layer];
    to->dist_bias = on->w.dist_bias;
    bool there[ARCH_N_ROLES] = { false };
    on->d.ops->bind(&on->d);
    for (size_t i = 0; i < LQ_COUNT(joins) && !s; i++) {
        const bool before = to->lin[joins[i].to].present;
        s = put_joined(to, on, m, layer, i, err);
        there[joins[i].to] = to->lin[joins[i].to].present != before;
    }
    if (m->cfg->w.mla && to->lin[R_KV_B].present && !s) s = put_absorbed(to, on, m, layer, err);
    for (arch_role r = 0; r < ARCH_N_ROLES && !s; r++) {
        s = is_told(r) ? keep_number(&to->vec[r], on, err)
                       : put_vector(&to->vec[r], on, m, layer, r, err);
        if (!s && !there[r]) s = put_part(&to->lin[r], on, m, layer, r, on->rows, err);
    }
    if (!s) s = put_streams(&to->stream_out, on, m, err);
    for (int r = 0; r < ARCH_N_EXPERT_ROLES && !s; r++)
        s = put_experts(&to->expert[r], on, m, layer, R_EXPERT_GATE + r, err);
    for (int r = 0; r < ARCH_N_EXPERT_ROLES && !s; r++)
        s = put_sets(&to->sets[r], on, to->expert[r], err);
    return s;
}

/* The rows can be looked up there: dense, and nothing else joins them. */
static bool plain_rows(const model *m)
{
    return m->embed.scheme.kind == QT_DENSE && !m->proj_in.present && !m->pos_embed.N &&
           !m->pos_freq && !m->cfg->types;
}

/* Pages of the file that are on the device now. */
static void drop_tensor(const model *m, const qt_tensor *t)
{
    for (int i = 0; i < QT_N_PLANES && m->src; i++)
        src_drop(m->src, t->plane[i]);
}

static void drop_layer(const model *m, const model_layer *l)
{
    for (int r = 0; r < ARCH_N_ROLES; r++)
        drop_tensor(m, &l->lin[r].w.t);
    for (int r = 0; r < ARCH_N_EXPERT_ROLES; r++)
        for (int64_t e = 0; l->expert[r] && e < m->cfg->experts; e++)
            drop_tensor(m, &l->expert[r][e].w.t);
}

/* Whose are m's embedding and output head, which are on a device already; NULL: its own. */
typedef struct {
    const model_on *embed, *head;
} borrowed;

/* All but the layers. */
static lq_status put_frame(model_on *on, const model *m, const borrowed *of, lq_err *err)
{
    model *w = &on->w;
    *w = (model){ .cfg = on->ranks > 1 ? &on->own : m->cfg,
                  .final_norm = m->final_norm,
                  .proj_out = m->proj_out,
                  .mtp_embed_norm = m->mtp_embed_norm,
                  .mtp_hidden_norm = m->mtp_hidden_norm,
                  .mtp_states_norm = m->mtp_states_norm,
                  .mtp_proj = m->mtp_proj,
                  .head = m->head };
    on->d.ops->bind(&on->d);
    lq_status s = lq_arena_init(&w->arena, 0, err);
    if (!s && on->ranks > 1) s = rank_config(&on->own, m->cfg, on->ranks, &w->arena, err);
    if (s) return s;
    w->layers = lq_push(&w->arena, (size_t)m->cfg->layers * sizeof *w->layers);
    if (!w->layers) return lq_fail(err, LQ_ENOMEM, "out of memory");
    if (of->embed) {
        w->embed = of->embed->w.embed;
    } else if (plain_rows(m) && on->first == 0) {
        w->embed = m->embed;
        w->embed_norm = m->embed_norm;
    }
    if (on->first == 0) {
        w->ple_proj = m->ple_proj;
        w->ple_norm = m->ple_norm;
        w->stream_in = m->stream_in;
    }
    const size_t distances = model_distances_bytes(m->cfg, on->ranks);
    if (distances) { /* of its own heads */
        const float *of_rank = m->dist_bias + (size_t)on->rank * (distances / sizeof(float));
        const void *at;
        s = model_dev_put(&at, on, of_rank, distances, err);
        w->dist_bias = at;
    }
    if (!s && !of->embed) s = put_tensor(&w->embed, on, err);
    if (!s) s = put_vector(&w->embed_norm, on, m, -1, R_EMBED_NORM, err);
    if (!s) s = put_vector(&w->final_norm, on, m, -1, R_FINAL_NORM, err);
    if (!s) s = put_vector(&w->ple_norm, on, m, -1, R_PLE_NORM, err);
    if (!s) s = put_linear(&w->ple_proj, on, false, err);
    if (!s) s = put_streams(&w->stream_in, on, m, err);
    if (!s) s = put_linear(&w->proj_out, on, false, err);
    if (!s) s = put_vector(&w->mtp_embed_norm, on, m, -1, R_MTP_EMBED_NORM, err);
    if (!s) s = put_vector(&w->mtp_hidden_norm, on, m, -1, R_MTP_HIDDEN_NORM, err);
    const bool each = m->cfg->norm_each;
    if (!s)
        s = put_vector(&w->mtp_states_norm, on, m, -1, each ? R_MTP_EACH_NORM : R_MTP_ALL_NORM,
                       err);
    if (!s) s = put_linear(&w->mtp_proj, on, false, err);
    return s || of->head ? s : put_part(&w->head, on, m, -1, R_HEAD, false, err);
}

/* Each layer is read once, for all ranks. */
static lq_status put_model(const model *m, const borrowed *of, lq_err *err)
{
    lq_status s = LQ_OK;
    for (model_on *on = m->on; on && !s; on = on->next)
        s = put_frame(on, m, of, err);
    for (int64_t i = m->on->first; i < m->cfg->layers && !s; i++) {
        for (model_on *on = m->on; on && !s; on = on->next)
            s = put_layer(on, m, i, err);
        drop_layer(m, &m->layers[i]);
    }
    if (!of->head) drop_tensor(m, &m->head.w.t);
    if (!of->embed && m->on->w.embed.N) drop_tensor(m, &m->embed);
    for (model_on *on = m->on; on && !s; on = on->next)
        s = on->d.ops->sync(&on->d, err);
    return s;
}

/* ---- what it takes ---- */

static size_t piece(size_t n)
{
    enum { GRAIN = 512 }; /* of cudaMalloc */
    return lq_round_up(n, GRAIN);
}

static size_t tensor_size(const qt_tensor *t)
{
    size_t n = 0;
    for (int i = 0; i < QT_N_PLANES; i++)
        n += piece(t->plane[i].bytes);
    return n;
}

static size_t linear_size(const model_linear *l)
{
    if (!l->present) return 0;
    return tensor_size(&l->w.t) + (l->bias ? piece((size_t)l->w.N * sizeof(float)) : 0);
}

/* Of one device, which has all of it or a part (of any rank about the same); check_parts was here.
 */
static size_t part_size(const model *m, int64_t layer, const model_linear *l, arch_role r,
                        int ranks)
{
    model_linear own = *l;
    rank_part p;
    if (!l->present || ranks == 1 || !rank_part_of(&p, arch_at(m->cfg, layer), r, 0, ranks))
        return linear_size(l);
    tiles_part(&own.w.t, &l->w.t, p.rows, p.n, p.k0, p.k1, NULL);
    return linear_size(&own);
}

/* That a matrix can be cut. */
static lq_status check_part(const model *m, const model_linear *l, const arch_slot *at, int ranks,
                            lq_err *err)
{
    lq_status s = LQ_OK;
    qt_tensor part;
    rank_part p;
    char name[256] = "";
    for (int k = 0; k < ranks && l->present && !s; k++)
        if (rank_part_of(&p, arch_at(m->cfg, at->layer), at->role, k, ranks))
            s = tiles_part(&part, &l->w.t, p.rows, p.n, p.k0, p.k1, err);
    if (!s) return LQ_OK;
    arch_tensor_name(m->cfg, at->role, at->layer, at->expert, false, name, sizeof name);
    return lq_wrap(err, s, "%s over %d devices", name, ranks);
}

/* That all can. */
static lq_status check_parts(const model *m, int ranks, lq_err *err)
{
    arch_slot at = { .role = R_HEAD, .layer = -1, .expert = -1 };
    lq_status s = check_part(m, &m->head, &at, ranks, err);
    for (at.layer = 0; at.layer < m->cfg->layers && !s; at.layer++) {
        const model_layer *l = &m->layers[at.layer];
        for (at.role = R_ATTN_NORM; at.role < ARCH_N_ROLES && !s; at.role++) {
            const model_linear *e =
                arch_role_per_expert(at.role) ? l->expert[at.role - R_EXPERT_GATE] : NULL;
            at.expert = -1;
            s = check_part(m, &l->lin[at.role], &at, ranks, err);
            for (at.expert = 0; e && at.expert < m->cfg->experts && !s; at.expert++)
                s = check_part(m, &e[at.expert], &at, ranks, err);
        }
    }
    return s;
}

static size_t vector_size(const model *m, int64_t layer, const model_vector *v, arch_role r)
{
    int64_t N, K;
    arch_role_shape(arch_at(m->cfg, layer), r, &N, &K);
    return (size_t)(!!v->w + !!v->bias) * piece((size_t)(N * K) * sizeof(float));
}

/* Of R_KV_B what put_absorbed leaves there. */
static size_t absorbed_size(const arch_config *c, const model_linear *kv_b, const dev *d, bool half)
{
    const size_t H = (size_t)(c->heads / dev_ranks(d));
    size_t k, v;
    if (!kv_b->present) return 0;
    model_absorb_head(&k, &v, c, &kv_b->w.t.scheme, half);
    return piece(H * k) + piece(H * v) + 2 * piece(H * DEV_GROUP_EACH);
}

static size_t streams_size(const model *m, const model_linear *list)
{
    size_t n = 0;
    for (int64_t i = 0; i + 1 < m->cfg->streams && list; i++)
        n += linear_size(&list[i]);
    return n;
}

static size_t layer_size(const model *m, int64_t layer, const dev *d, bool half)
{
    const model_layer *l = &m->layers[layer];
    size_t n = streams_size(m, l->stream_out);
    for (arch_role r = 0; r < ARCH_N_ROLES; r++)
        n += (is_told(r) ? 0 : vector_size(m, layer, &l->vec[r], r)) +
             (m->cfg->w.mla && r == R_KV_B
                  ? absorbed_size(arch_at(m->cfg, layer), &l->lin[r], d, half)
                  : part_size(m, layer, &l->lin[r], r, dev_ranks(d)));
    for (int r = 0; r < ARCH_N_EXPERT_ROLES; r++) {
        for (int64_t e = 0; l->expert[r] && e < m->cfg->experts; e++)
            n += part_size(m, layer, &l->expert[r][e], R_EXPERT_GATE + r, dev_ranks(d));
        if (l->expert[r]) n += piece((size_t)m->cfg->experts * DEV_GROUP_EACH);
    }
    return n;
}

/* layer [L + 1] is filled. */
static model_sizes sizes_of(const model *m, const dev *d, bool half, size_t *layer)
{
    const int64_t L = m->cfg->layers;
    for (int64_t i = 0; i < L; i++)
        layer[i] = layer_size(m, i, d, half);
    layer[L] = vector_size(m, -1, &m->final_norm, R_FINAL_NORM) + linear_size(&m->proj_out) +
               part_size(m, -1, &m->head, R_HEAD, dev_ranks(d)) +
               piece(model_distances_bytes(m->cfg, dev_ranks(d)));
    const size_t rows =
        plain_rows(m) ? tensor_size(&m->embed) + vector_size(m, -1, &m->embed_norm, R_EMBED_NORM)
                      : 0;
    return (model_sizes){ .layer = layer,
                          .L = L,
                          .embed = rows + linear_size(&m->ple_proj) +
                                   streams_size(m, m->stream_in) +
                                   vector_size(m, -1, &m->ple_norm, R_PLE_NORM),
                          .least = model_least_layers(m->cfg) };
}

int64_t model_fit(const model_sizes *z, const model_share *s, size_t room)
{
    const size_t beside = z->layer[z->L] + s->more;
    size_t left = room > beside ? room - beside : 0;
    for (int64_t n = 0; n < z->L; n++) {
        const size_t more = z->layer[z->L - 1 - n] + s->more_layer + (n == z->L - 1 ? z->embed : 0);
        if (more > left) return n;
        left -= more;
    }
    return z->L;
}

size_t model_size_on(const model_sizes *z, int64_t n)
{
    if (n == 0) return 0;
    size_t all = z->layer[z->L] + (n == z->L ? z->embed : 0);
    while (n > 0)
        all += z->layer[z->L - n--];
    return all;
}

lq_status model_choose_layers(int64_t *out, const model_sizes *z, const model_share *share,
                              const char *name, int ranks, size_t room, lq_err *err)
{
    const int64_t fit = model_fit(z, share, room);
    int64_t n = share->layers;
    if (n == MODEL_AUTO_LAYERS)
        n = fit;
    else if (n == MODEL_ALL_LAYERS || n > z->L)
        n = z->L;
    *out = n;
    const size_t need = model_size_on(z, n);
    if (n > 0 && n < z->least)
        return lq_fail(err, LQ_ENOMEM,
                       "%s: the last layers read the K and V of layer %lld: expected at least "
                       "%lld of %lld layers there, found %s%lld",
                       name, (long long)(z->L - z->least), (long long)z->least, (long long)z->L,
                       n == fit ? "room for " : "", (long long)n);
    const size_t spare = share->spare ? share->more + (size_t)n * share->more_layer : 0;
    if (n == 0)
        return lq_fail(err, LQ_ENOMEM,
                       "%s: one layer and the head need %zu bytes, beside %zu for the cache and "
                       "a step, found %zu free",
                       name, model_size_on(z, 1), share->more + share->more_layer, room);
    if (need > room && fit > 0)
        return lq_fail(
            err, LQ_ENOMEM,
            "%s: the weights need %zu bytes, found %zu free; --gpu-layers %lld would fit", name,
            need, room, (long long)fit);
    if (need > room)
        return lq_fail(err, LQ_ENOMEM, "%s: the weights need %zu bytes, found %zu free", name, need,
                       room);
    if (n > fit && spare && fit > 0 && ranks == 1)
        return lq_fail(err, LQ_ENOMEM,
                       "%s: the weights need %zu bytes, the cache and a step %zu, found %zu free; "
                       "--gpu-layers %lld would fit",
                       name, need, spare, room, (long long)fit);
    if (n > fit && spare)
        return lq_fail(err, LQ_ENOMEM,
                       "%s: the weights need %zu bytes, the cache and a step %zu, found %zu free",
                       name, need, spare, room);
    return LQ_OK;
}

/* on->first, of a device that is open. */
static lq_status model_dev_choose(model_on *on, const model *m, const model_share *share,
                                  lq_err *err)
{
    const int64_t L = m->cfg->layers;
    size_t *layer = malloc((size_t)(L + 1) * sizeof *layer);
    int64_t n = 0;
    if (!layer) return lq_fail(err, LQ_ENOMEM, "out of memory");
    const model_sizes z = sizes_of(m, &on->d, share->half, layer);
    const lq_status s =
        model_choose_layers(&n, &z, share, on->d.name, on->ranks, dev_room(&on->d), err);
    on->first = L - n;
    if (on->ranks > 1)
        snprintf(on->text, sizeof on->text, "%s x %d", on->d.name, on->ranks);
    else if (n == L)
        snprintf(on->text, sizeof on->text, "%s", on->d.name);
    else
        snprintf(on->text, sizeof on->text, "%s, %lld of %lld layers", on->d.name, (long long)n,
                 (long long)L);
    free(layer);
    return s;
}

/* ---- there and back ---- */

/* Its weights are not the host's any more. */
static void forget(model_linear *l)
{
    for (int i = 0; i < QT_N_PLANES; i++)
        l->w.t.plane[i].data = NULL;
    l->bias = NULL;
}

/* Of experts, whose list goes with the host's weights, one of their shapes stays. */
static lq_status keep_shapes(model *m, lq_err *err)
{
    const size_t n = (size_t)m->cfg->experts;
    for (int64_t i = 0; i < m->cfg->layers; i++)
        for (int r = 0; r < ARCH_N_EXPERT_ROLES; r++) {
            model_linear **of = &m->layers[i].expert[r];
            if (!*of) continue;
            model_linear *e = lq_push(&m->on->w.arena, n * sizeof *e);
            if (!e) return lq_fail(err, LQ_ENOMEM, "out of memory");
            memcpy(e, *of, n * sizeof *e);
            for (size_t k = 0; k < n; k++)
                forget(&e[k]);
            *of = e;
        }
    return LQ_OK;
}

/* What had been repacked goes back to the system too. */
static void give_back(model *m)
{
    const int64_t L = m->cfg->layers;
    const model *w = &m->on->w;
    const bool whole = m->on->ranks == 1;
    for (int64_t i = m->on->first; i < L; i++) {
        for (int r = 0; r < ARCH_N_ROLES && !whole; r++)
            forget(&m->layers[i].lin[r]);
        if (whole) m->layers[i] = w->layers[i];
        lq_arena_free(&m->layer_arenas[i]);
    }
    if (whole)
        m->head = w->head;
    else
        forget(&m->head);
    lq_arena_free(&m->layer_arenas[L]);
}

/* The devices of all ranks: the one that `want` names, and those behind it. */
static lq_status open_devices(model *m, const char *want, int ranks, const model_share *share,
                              lq_err *err)
{
    model_on **to = &m->on;
    dev *last = NULL;
    for (int r = 0; r < ranks; r++, to = &(*to)->next) {
        model_on *on = calloc(1, sizeof *on);
        if (!on) return lq_fail(err, LQ_ENOMEM, "out of memory");
        lq_status s =
            last ? last->ops->open(&on->d, last->index + 1, err) : dev_open(&on->d, want, err);
        if (s) {
            free(on);
            return ranks > 1 ? lq_wrap(err, s, "%d devices", ranks) : s;
        }
        on->rank = r;
        on->ranks = ranks;
        on->int8 = share->int8;
        on->half = share->half;
        on->d.batch_invariant = share->batch_invariant;
        if (last) last->peer = &on->d;
        last = &on->d;
        *to = on;
    }
    return ranks > 1 ? last->ops->link(&m->on->link, &m->on->d, err) : LQ_OK;
}

/* The layers have weights that cuBLAS would multiply. */
static bool has_rows(const model *m)
{
    for (int64_t i = 0; i < m->cfg->layers; i++)
        for (int r = 0; r < ARCH_N_ROLES; r++)
            if (m->layers[i].lin[r].present && dev_in_rows(&m->layers[i].lin[r].w.t)) return true;
    return false;
}

/* The layers have weights whose codes cuBLASLt would multiply. */
static bool has_codes(const model *m)
{
    for (int64_t i = 0; i < m->cfg->layers; i++)
        for (int r = 0; r < ARCH_N_ROLES; r++) {
            const model_linear *l = &m->layers[i].lin[r];
            if (!l->present) continue;
            const dev_weight w = { l->w.t, tiles_shape(&l->w.t.scheme, l->w.N, l->w.K) };
            if (dev_mm_codes(&w)) return true;
        }
    return false;
}

/* Before anything is measured: cuBLAS takes some of the device's memory. Quantized weights have it for
 * many rows. */
static lq_status open_blas(model *m, lq_err *err)
{
    const bool rows = has_rows(m), codes = has_codes(m);
    lq_status s = LQ_OK;
    for (model_on *on = m->on; on && !s; on = on->next) {
        if (on->d.batch_invariant || (!rows && !codes && !on->d.wide)) continue;
        on->d.ops->bind(&on->d);
        const bool there = on->d.ops->blas(&on->d);
        on->rows = there && rows;
        if (!there) s = on->d.ops->sync(&on->d, err);
    }
    return s;
}

lq_status model_to_device(model *m, const char *want, const model_share *share, lq_err *err)
{
    const int ranks = share->ranks ? share->ranks : 1;
    assert(ranks == 1 || share->layers == MODEL_ALL_LAYERS);
    lq_status s = model_check_device(m->cfg, err);
    if (!s && ranks > 1) s = rank_check(m->cfg, ranks, err);
    if (!s && ranks > 1) s = check_parts(m, ranks, err);
    if (!s) s = open_devices(m, want, ranks, share, err);
    if (!s) {
        for (model_on *on = m->on; on; on = on->next) {
            on->eager = share->eager;
            on->note = share->note;
        }
        s = open_blas(m, err);
    }
    if (!s) s = model_dev_choose(m->on, m, share, err);
    if (!s) s = put_model(m, &(borrowed){ 0 }, err);
    if (!s && ranks > 1) s = keep_shapes(m, err);
    if (s)
        model_leave_device(m);
    else
        give_back(m);
    return s;
}

static bool same_tensor(const qt_tensor *a, const qt_tensor *b)
{
    return a->plane[QT_CODES].data == b->plane[QT_CODES].data;
}

lq_status model_join_device(model *head, const model *m, lq_err *err)
{
    const model_on *of = m->on;
    const borrowed parts = { same_tensor(&head->embed, &m->embed) ? of : NULL,
                             same_tensor(&head->head.w.t, &m->head.w.t) ? of : NULL };
    lq_status s = model_check_device(head->cfg, err);
    model_on *on = s ? NULL : calloc(1, sizeof *on);
    if (!s && !on) s = lq_fail(err, LQ_ENOMEM, "out of memory");
    if (!s && (s = of->d.ops->open(&on->d, of->d.index, err))) free(on);
    if (s) return s;
    head->on = on;
    on->ranks = 1;
    on->int8 = of->int8;
    on->half = of->half;
    on->eager = of->eager;
    on->note = of->note;
    on->d.batch_invariant = of->d.batch_invariant;
    snprintf(on->text, sizeof on->text, "%s", of->text);
    s = open_blas(head, err);
    if (!s) s = put_model(head, &parts, err);
    if (s)
        model_leave_device(head);
    else
        give_back(head);
    return s;
}

void model_leave_device(model *m)
{
    if (m->on && m->on->link) m->on->d.ops->unlink(m->on->link);
    for (model_on *on = m->on, *next; on; on = next) {
        next = on->next;
        while (on->n_mem)
            on->d.ops->free(&on->d, on->mem[--on->n_mem]);
        on->d.ops->close(&on->d);
        free(on->mem);
        lq_arena_free(&on->w.arena);
        free(on);
    }
    m->on = NULL;
}

const char *model_device(const model *m) { return m->on ? m->on->text : "cpu"; }
