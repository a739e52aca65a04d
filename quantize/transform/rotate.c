/* quantize/transform/rotate.c - which axis of which tensor turns; the tensors themselves when asked for. */
#include "quantize/transform/rotate.h"

#include <stdio.h>
#include <stdlib.h>

#include "quantize/methods/loss.h"
#include "quantize/transform/fold.h"
#include "quantize/transform/hadamard.h"

enum { ROWS = 16, COLUMNS = 32 }; /* of a tile of work */

/* What an axis of a matrix runs along. */
typedef enum {
    FREE,
    STREAM, /* the residual stream */
    ATTN,   /* the same behind attn_norm */
    MLP,    /* ... mlp_norm */
    FINAL,  /* ... final_norm */
    HEADS   /* v of the heads */
} axis;

static const struct {
    arch_role role;
    axis in, out;
} places[] = {
    { R_EMBED, STREAM, FREE },
    { R_POS_EMBED, STREAM, FREE },
    { R_PROJ_IN, FREE, STREAM },
    { R_PROJ_OUT, FINAL, FREE },
    { R_HEAD, FINAL, FREE },
    { R_Q, ATTN, FREE },
    { R_K, ATTN, FREE },
    { R_V, ATTN, HEADS },
    { R_QKV, ATTN, HEADS },
    { R_ATTN_GATE, ATTN, FREE },
    { R_Q_A, ATTN, FREE },
    { R_KV_A, ATTN, FREE },
    { R_INDEX_K, ATTN, FREE },
    { R_INDEX_W, ATTN, FREE },
    { R_HEAD_GATE, ATTN, FREE },
    { R_KV_B, FREE, HEADS },
    { R_O, HEADS, STREAM },
    { R_GATE, MLP, FREE },
    { R_UP, MLP, FREE },
    { R_GATE_UP, MLP, FREE },
    { R_DOWN, FREE, STREAM },
    { R_ROUTER, MLP, FREE },
    { R_EXPERT_GATE, MLP, FREE },
    { R_EXPERT_UP, MLP, FREE },
    { R_EXPERT_GATE_UP, MLP, FREE },
    { R_EXPERT_DOWN, FREE, STREAM },
    { R_SHARED_ROUTER, MLP, FREE },
    { R_SHARED_GATE, MLP, FREE },
    { R_SHARED_UP, MLP, FREE },
    { R_SHARED_GATE_UP, MLP, FREE },
    { R_SHARED_DOWN, FREE, STREAM },
};

static void place_of(const arch_config *c, arch_role r, axis *in, axis *out)
{
    const bool narrow = c->embed_dim != c->hidden; /* embedding and head stand beside the stream */
    *in = *out = FREE;
    for (size_t i = 0; i < LQ_COUNT(places); i++)
        if (places[i].role == r) *in = places[i].in, *out = places[i].out;
    if (r == R_INDEX_Q && !c->q_lora) *in = ATTN;
    if (r == R_ROUTER && c->row->early) *in = STREAM;
    if (narrow && (r == R_EMBED || r == R_HEAD)) *in = FREE;
}

struct rot_model {
    src_source *src;
    const src_source *base;
    const arch_config *c; /* the base's */
    pool *p;
    had_rotation stream, head; /* head.n 0: no R2 */
    const float **norm[2];     /* [ATTN - ATTN, MLP - ATTN][layers] weights, 1 + w; NULL: ones */
    const float *final;
    bool untied, wide;
    float *scratch; /* [threads][widest] */
    int64_t widest;
    lq_arena arena;
};

/* A matrix (or count of them) to be turned; also a linear's bias, as a matrix of one row. */
typedef struct {
    const rot_model *r;
    const arch_config *c; /* of its layer */
    const src_tensor *t;
    arch_role role;
    const float *norm; /* of its inputs [width], or NULL */
    lq_dtype dtype;
    int64_t count, A, B; /* [count][A][B] as stored */
    axis last, middle;   /* along B, along A */
    bool in_last;        /* inputs are along B */
} turn;

static lq_status rotate_no_memory(lq_err *err)
{
    return lq_fail(err, LQ_ENOMEM, "no memory to rotate");
}

/* ---- what cannot be rotated ---- */
static lq_status check_arch(const arch_config *c, lq_err *err)
{
    const struct {
        bool is;
        const char *what;
    } hurdles[] = {
        { c->w.norm_after_add, "its norms come after the residual's sum" },
        { c->w.norm_stays, "what its norms give is the residual" },
        { arch_name_of(c, R_ATTN_POST_NORM) || arch_name_of(c, R_MLP_POST_NORM),
          "the outputs of attention and MLP pass norms with weights of their own" },
        { arch_name_of(c, R_EMBED_NORM), "a norm with weights follows the embedding" },
        { arch_has_state(c), "some of its layers carry a state" },
        { arch_name_of(c, R_O_NORM), "a norm follows its attention" },
        { c->w.q_gated || arch_name_of(c, R_ATTN_GATE), "the output of its attention is gated" },
        { c->w.diff, "norms follow the differences of its heads" },
        { arch_name_of(c, R_ATTN_JOIN) || arch_name_of(c, R_ATTN_JOIN_X_BY),
          "its branches join by gates of each dimension" },
        { c->w.mla && c->n_sizes, "its latents are of different sizes" },
        { c->row->early == EARLY_EXPERTS, "its experts read a norm of their own" },
        { c->zero_experts > 0, "some of its experts put out what a norm gives" },
        { c->norm_rank > 0, "gates follow its norms" },
        { c->w.pos == POS_SINUSOIDAL, "its positions are computed, not stored" },
        { arch_name_of(c, R_INDEX_IN_NORM), "a layer norm comes before its indexer" },
        { c->w.head_rows_1, "its output head is used with rows of length 1" },
        { c->head != HEAD_WORDS, "its answer is made of hidden states" },
        { c->tied && arch_name_of(c, R_HEAD) && arch_name_of(c, R_HEAD)->bias == BIAS_YES,
          "its tied head would need a bias of its own" },
    };
    for (size_t i = 0; i < LQ_COUNT(hurdles); i++)
        if (hurdles[i].is)
            return lq_fail(err, LQ_EUNSUPPORTED, "--rotate: %s cannot be rotated: %s", c->row->arch,
                           hurdles[i].what);
    return LQ_OK;
}

/* ---- one matrix ---- */

/* Turn one axis of `lanes` vectors; component i of lane j is x[i * ld + j]. */
static void turn_axis(const turn *t, axis a, float *x, int64_t ld, int64_t lanes)
{
    const arch_config *c = t->c;
    if (a == FREE) return;
    if (a != HEADS) {
        had_apply(&t->r->stream, x, ld, lanes);
        return;
    }
    const int64_t heads = t->role == R_O || c->w.mla ? c->heads : c->kv_heads;
    for (int64_t h = 0; h < heads && t->r->head.n; h++) {
        const int64_t at = t->role == R_O ? h * c->v_dim : fold_v_row(c, t->role, h);
        had_apply(&t->r->head, x + at * ld, ld, lanes);
    }
}

typedef struct {
    const turn *t;
    const void *from;
    void *dst;
} job;

static void turn_rows(void *ctx, int64_t item, int thread)
{
    const job *j = ctx;
    const turn *t = j->t;
    const lq_dtype d = t->t->t.scheme.dtype;
    const size_t in = lq_dtype_bytes(d), out = lq_dtype_bytes(t->dtype);
    const int64_t rows = t->count * t->A, B = t->B;
    float *x = t->r->scratch + (size_t)thread * (size_t)t->r->widest;
    for (int64_t i = item * ROWS; i < rows && i < (item + 1) * ROWS; i++) {
        const size_t at = (size_t)i * (size_t)B;
        lq_to_f32(x, (const uint8_t *)j->from + at * in, d, (size_t)B);
        for (int64_t k = 0; t->norm && k < B; k++)
            x[k] *= t->in_last ? t->norm[k] : t->norm[i % t->A];
        turn_axis(t, t->last, x, 1, 1);
        lq_from_f32((uint8_t *)j->dst + at * out, x, t->dtype, (size_t)B);
    }
}

static void turn_columns(void *ctx, int64_t item, int thread)
{
    const job *j = ctx;
    const turn *t = j->t;
    const int64_t tiles = lq_ceil_div(t->B, COLUMNS), k = item % tiles * COLUMNS;
    (void)thread;
    turn_axis(t, t->middle, (float *)j->dst + item / tiles * t->A * t->B + k, t->B,
              t->B - k < COLUMNS ? t->B - k : COLUMNS);
}

static void make(void *dst, const void *from)
{
    const turn *t = from;
    qt_tensor stored;
    src_load(&stored, t->r->base, t->t);
    job j = { t, stored.plane[QT_CODES].data, dst };
    pool_run(t->r->p, lq_ceil_div(t->count * t->A, ROWS), turn_rows, &j);
    src_unload(t->r->base, t->t);
    if (t->middle != FREE)
        pool_run(t->r->p, t->count * lq_ceil_div(t->B, COLUMNS), turn_columns, &j);
}

/* ---- the list of changes ---- */
typedef struct {
    rot_model *r;
    const src_source *src;
    src_change *c;
    size_t n;
    int64_t unknown; /* matrices that may read the stream, for all we know */
} list;

/* f16 unless something may not fit. */
static lq_dtype type_of(const turn *t, float absmax)
{
    const lq_dtype d = t->t->t.scheme.dtype;
    const bool outside = t->role == R_EMBED || t->role == R_POS_EMBED || t->role == R_HEAD;
    const bool fits = absmax * sqrtf((float)t->B) < 60000.0f;
    return outside && !t->r->wide && d != LQ_F32 && t->in_last && t->middle == FREE && fits
               ? LQ_F16
               : LQ_F32;
}

/* The caller unloads t after LQ_OK. */
static lq_status load(qt_tensor *stored, float *absmax, const rot_model *r, const src_tensor *t,
                      lq_err *err)
{
    int64_t bad;
    if (!t->plain || t->t.scheme.kind != QT_DENSE || t->t.layout != QT_PORTABLE)
        return lq_fail(err, LQ_EUNSUPPORTED,
                       "--rotate: %s: expected unquantized weights in the portable layout",
                       t->name);
    src_load(stored, r->base, t);
    if (qz_absmax(absmax, &bad, stored->plane[QT_CODES].data, t->t.scheme.dtype, t->t.N * t->t.K,
                  r->p))
        return LQ_OK;
    src_unload(r->base, t);
    return lq_fail(err, LQ_EVALUE, "%s: NaN or Inf at element %lld", t->name, (long long)bad);
}

static lq_status add(list *l, const turn *t, const char *name, lq_err *err)
{
    rot_model *r = l->r;
    turn *keep = lq_push(&r->arena, sizeof *keep);
    const src_tensor *s = t->t;
    if (!keep) return rotate_no_memory(err);
    *keep = *t;
    if (t->B > r->widest) r->widest = t->B;
    src_change *c = &l->c[l->n++];
    *c = (src_change){ name, t->dtype, s->n_dims, { 0 }, NULL, make, keep };
    memcpy(c->shape, s->shape, sizeof c->shape);
    return LQ_OK;
}

static const float *norm_of(const rot_model *r, axis a, int64_t layer)
{
    if (a == FINAL) return r->final;
    if (a == MLP && !arch_has(r->c, R_MLP_NORM, layer)) a = ATTN; /* one norm for both */
    return a == ATTN || a == MLP ? r->norm[a - ATTN][layer] : NULL;
}

static lq_status add_matrix(list *l, const src_tensor *s, const char *name, arch_role role,
                            int64_t layer, lq_err *err)
{
    const arch_name *a = arch_name_of(l->r->c, role);
    axis in, out;
    place_of(l->r->c, role, &in, &out);
    if (in == FREE && out == FREE) return LQ_OK;
    turn t = { .r = l->r, .c = arch_at(l->r->c, layer), .t = s, .role = role };
    t.in_last = !(a->flags & NAME_TRANSPOSED);
    qt_tensor stored;
    float absmax;
    lq_status st = load(&stored, &absmax, l->r, s, err);
    if (st) return st;
    src_unload(l->r->base, s);
    t.count = (a->flags & NAME_STACKED) && s->n_dims == 3 ? s->shape[0] : 1;
    t.A = s->t.N / t.count;
    t.B = s->t.K;
    t.last = t.in_last ? in : out;
    t.middle = t.in_last ? out : in;
    t.norm = norm_of(l->r, in, layer);
    t.dtype = type_of(&t, absmax);
    return add(l, &t, name, err);
}

/* A bias lies along the outputs. */
static lq_status add_bias(list *l, const src_tensor *s, arch_role role, int64_t layer, lq_err *err)
{
    axis in, out;
    place_of(l->r->c, role, &in, &out);
    if (out == FREE) return LQ_OK;
    turn t = { .r = l->r, .c = arch_at(l->r->c, layer), .t = s, .role = role };
    t.dtype = LQ_F32;
    t.in_last = true;
    t.last = out;
    t.middle = FREE;
    t.count = 1;
    t.A = s->t.N;
    t.B = s->t.K;
    qt_tensor stored;
    float absmax, *x = lq_push(&l->r->arena, (size_t)(t.A * t.B) * sizeof *x);
    if (!x) return rotate_no_memory(err);
    const lq_status st = load(&stored, &absmax, l->r, s, err);
    if (st) return st;
    if (t.B > l->r->widest) l->r->widest = t.B;
    qt_dequant(x, &stored, 0, t.A);
    src_unload(l->r->base, s);
    for (int64_t i = 0; i < t.A; i++)
        turn_axis(&t, out, x + i * t.B, 1, 1);
    src_change *c = &l->c[l->n++];
    *c = (src_change){ s->name, LQ_F32, s->n_dims, { 0 }, x, NULL, NULL };
    memcpy(c->shape, s->shape, sizeof c->shape);
    return LQ_OK;
}

/* ---- norms ---- */
static bool on_stream(arch_role r)
{
    return r == R_ATTN_NORM || r == R_MLP_NORM || r == R_FINAL_NORM;
}

/* Weights of a norm as it multiplies, offset included; NULL: ones. */
static lq_status read_norm(const float **out, list *l, arch_role r, int64_t layer, lq_err *err)
{
    const float *w;
    lq_status st = src_vector(l->src, r, layer, -1, false, &w, &l->r->arena, err);
    *out = NULL;
    if (st || !w) return st;
    float *v = lq_push(&l->r->arena, (size_t)l->r->c->hidden * sizeof *v);
    if (!v) return rotate_no_memory(err);
    for (int64_t i = 0; i < l->r->c->hidden; i++)
        v[i] = w[i] + arch_norm_offset(l->r->c, r);
    *out = v;
    return LQ_OK;
}

static lq_status read_norms(list *l, lq_err *err)
{
    rot_model *r = l->r;
    lq_status st = read_norm(&r->final, l, R_FINAL_NORM, -1, err);
    for (int n = 0; n < 2 && !st; n++) {
        const arch_role role = n ? R_MLP_NORM : R_ATTN_NORM;
        r->norm[n] = lq_push(&r->arena, (size_t)r->c->layers * sizeof *r->norm[n]);
        if (!r->norm[n]) return rotate_no_memory(err);
        for (int64_t i = 0; i < r->c->layers && !st; i++)
            if (arch_has(r->c, role, i)) st = read_norm(&r->norm[n][i], l, role, i, err);
    }
    return st;
}

/* Its weights become ones, its bias (b / w) R. */
static lq_status add_norm(list *l, const src_tensor *s, arch_role role, int64_t layer, bool bias,
                          lq_err *err)
{
    const rot_model *r = l->r;
    const float *w = norm_of(r,
                             role == R_FINAL_NORM ? FINAL
                             : role == R_MLP_NORM ? MLP
                                                  : ATTN,
                             layer);
    float *x = lq_push(&l->r->arena, (size_t)s->t.K * sizeof *x), absmax;
    if (!x) return rotate_no_memory(err);
    qt_tensor stored;
    const lq_status st = load(&stored, &absmax, r, s, err);
    if (st) return st;
    if (bias) qt_dequant(x, &stored, 0, 1);
    src_unload(r->base, s);
    for (int64_t i = 0; i < s->t.K; i++) {
        if (!bias) x[i] = 1 - arch_norm_offset(r->c, role);
        if (bias && w && x[i] != 0) x[i] /= w[i];
        if (!isfinite(x[i]))
            return lq_fail(err, LQ_EVALUE, "--rotate: %s: bias %lld is on a norm's weight of 0",
                           s->name, (long long)i);
    }
    if (bias) had_apply(&r->stream, x, 1, 1);
    src_change *c = &l->c[l->n++];
    *c = (src_change){ s->name, LQ_F32, s->n_dims, { 0 }, x, NULL, NULL };
    memcpy(c->shape, s->shape, sizeof c->shape);
    return LQ_OK;
}

/* ---- all of them ---- */
static lq_status add_tensor(list *l, const src_tensor *s, lq_err *err)
{
    arch_slot slot;
    const arch_config *c = l->r->c;
    if (!arch_slot_of(c, s->name, &slot)) {
        l->unknown += s->plain && s->n_dims > 1;
        return LQ_OK;
    }
    if (slot.role == R_HEAD && l->r->untied) return LQ_OK; /* a copy that the model does not use */
    if (on_stream(slot.role)) return add_norm(l, s, slot.role, slot.layer, slot.bias, err);
    return slot.bias ? add_bias(l, s, slot.role, slot.layer, err)
                     : add_matrix(l, s, s->name, slot.role, slot.layer, err);
}

/* The head reads through the final norm, the embedding does not: they cannot stay one. */
static lq_status untie(list *l, lq_err *err)
{
    const arch_config *c = l->r->c;
    const src_tensor *embed = NULL;
    char name[256];
    if (!l->r->untied) return LQ_OK;
    if (!arch_tensor_name(c, R_HEAD, -1, -1, false, name, sizeof name))
        return lq_fail(err, LQ_EUNSUPPORTED,
                       "--rotate: %s cannot be rotated: it knows no output head of its own",
                       c->row->arch);
    lq_status st = src_role(l->src, R_EMBED, -1, -1, &embed, NULL, err);
    const char *keep = lq_push_str(&l->r->arena, name, strlen(name));
    if (!keep) return rotate_no_memory(err);
    return st ? st : add_matrix(l, embed, keep, R_HEAD, -1, err);
}

static lq_status init(rot_model *r, const src_source *src, const rot_opts *o, pool *p, lq_err *err)
{
    const arch_config *c = r->c = src_config(src);
    const bool layer_norm = c->w.norm == NORM_LAYER;
    r->base = src;
    r->p = p;
    r->wide = o->wide;
    r->untied = c->tied && c->embed_dim == c->hidden;
    lq_status st = had_init(&r->stream, c->hidden, o->seed, layer_norm, &r->arena, err);
    if (!st && c->qkv_clip == 0)
        st = had_init(&r->head, c->v_dim, o->seed + 1, false, &r->arena, err);
    return st;
}

static void tell(const list *l, const plan_voice *v)
{
    char line[256], stream[64], head[64] = "nothing";
    const rot_model *r = l->r;
    if (!v || !v->say) return;
    had_text(stream, &r->stream);
    if (r->head.n) had_text(head, &r->head);
    snprintf(line, sizeof line, "rotate: residual stream of %lld by %s, v of each head by %s",
             (long long)r->c->hidden, stream, head);
    v->say(v->user, line);
    if (r->untied)
        v->say(v->user, "rotate: tied model: the output head becomes a matrix of its own");
    if (!l->unknown) return;
    snprintf(line, sizeof line,
             "rotate: %lld matrices are not understood and stay as they are: they do not fit the "
             "rotated stream",
             (long long)l->unknown);
    v->say(v->user, line);
}

lq_status rot_open(rot_model **out, const src_source *src, const rot_opts *o, pool *p,
                   const plan_voice *v, lq_err *err)
{
    *out = NULL;
    rot_model *r = calloc(1, sizeof *r);
    if (!r) return rotate_no_memory(err);
    const size_t n = (size_t)src_n_tensors(src);
    list l = { .r = r, .src = src };
    lq_status st = check_arch(src_config(src), err);
    if (!st) st = src_check_roles(src, err);
    if (!st) st = init(r, src, o, p, err);
    if (!st) st = read_norms(&l, err);
    l.c = lq_push(&r->arena, (n + 1) * sizeof *l.c);
    if (!st && !l.c) st = rotate_no_memory(err);
    for (size_t i = 0; i < n && !st; i++)
        st = add_tensor(&l, src_tensor_at(src, (int64_t)i), err);
    if (!st) st = untie(&l, err);
    if (!st) {
        r->scratch =
            lq_push(&r->arena, (size_t)pool_threads(p) * (size_t)r->widest * sizeof(float));
        st =
            r->scratch ? src_derive(&r->src, src, l.c, l.n, r->untied, err) : rotate_no_memory(err);
    }
    if (st) {
        rot_close(r);
        return st;
    }
    tell(&l, v);
    *out = r;
    return LQ_OK;
}

src_source *rot_source(const rot_model *r) { return r->src; }

void rot_close(rot_model *r)
{
    if (!r) return;
    src_close(r->src);
    lq_arena_free(&r->arena);
    free(r);
}
