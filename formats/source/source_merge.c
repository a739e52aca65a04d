/* formats/source/source_merge.c - a model with an adapter's changes in its weights; see adapter.h. */
#include "formats/source/adapter.h"
#include "formats/source/source_impl.h"

#include <stdlib.h>

/* Of all tensors: they are made one at a time. */
typedef struct {
    float *row;      /* of the widest */
    double *squares; /* of the most outputs; of DoRA */
} merge_scratch;

/* A stored matrix [R, C] += scale left [R, rank] right [rank, C]. Where it is stored transposed R are
 * inputs: left is A's transpose then, and right B's. */
typedef struct {
    const src_source *base;
    const src_tensor *t;
    const adp_part *part;
    const float *left, *right;
    int64_t R, C;
    bool transposed;
    const merge_scratch *scratch;
} merged;

/* Row i as it becomes, but for DoRA's lengths. */
static float *changed_row(const merged *m, const qt_tensor *q, int64_t i)
{
    float *w = m->scratch->row;
    const lq_dtype d = q->scheme.dtype;
    const size_t row = (size_t)m->C * lq_dtype_bytes(d);
    lq_to_f32(w, (const uint8_t *)q->plane[QT_CODES].data + (size_t)i * row, d, (size_t)m->C);
    for (int64_t r = 0; r < m->part->rank; r++) {
        const float f = m->part->scale * m->left[i * m->part->rank + r];
        const float *right = m->right + r * m->C;
        for (int64_t k = 0; k < m->C; k++)
            w[k] += f * right[k];
    }
    return w;
}

/* scratch->squares: of each output's weights. */
static void square(const merged *m, const qt_tensor *q)
{
    double *sum = m->scratch->squares;
    memset(sum, 0, (size_t)m->part->N * sizeof *sum);
    for (int64_t i = 0; i < m->R; i++) {
        const float *w = changed_row(m, q, i);
        for (int64_t k = 0; k < m->C; k++)
            sum[m->transposed ? k : i] += (double)w[k] * (double)w[k];
    }
}

static void source_merge_fill(void *const w[QT_N_PLANES], const qt_tensor *t, const void *from)
{
    const merged *m = from;
    const float *length = m->part->magnitude;
    const size_t out = (size_t)m->C * lq_dtype_bytes(t->scheme.dtype);
    qt_tensor q;
    src_load(&q, m->base, m->t);
    if (length) square(m, &q);
    for (int64_t i = 0; i < m->R; i++) {
        float *row = changed_row(m, &q, i);
        for (int64_t k = 0; length && k < m->C; k++) {
            const int64_t n = m->transposed ? k : i;
            const double norm = sqrt(m->scratch->squares[n]);
            row[k] = norm > 0 ? (float)((double)row[k] * (double)length[n] / norm) : 0;
        }
        lq_from_f32((uint8_t *)w[QT_CODES] + (size_t)i * out, row, t->scheme.dtype, (size_t)m->C);
    }
    src_unload(m->base, m->t);
}

/* x [N,K] as f32, or its transpose. */
static const float *floats(const void *x, lq_dtype d, int64_t N, int64_t K, bool turn, lq_arena *a)
{
    const size_t n = (size_t)(N * K);
    float *f = lq_push(a, n * sizeof *f), *turned = turn ? lq_push(a, n * sizeof *f) : NULL;
    if (!f || (turn && !turned)) return NULL;
    lq_to_f32(f, x, d, n);
    if (turn) src_transpose(turned, f, K, N, sizeof *f);
    return turn ? turned : f;
}

static lq_status merge_one(src_source *s, const adp_part *p, bool f32, const merge_scratch *scratch,
                           lq_err *err)
{
    const src_tensor *t = src_find(s->base, p->name);
    char scheme[40] = "none";
    if (t && t->plain) qt_scheme_text(scheme, &t->t.scheme);
    if (!t || !t->plain || t->t.scheme.kind != QT_DENSE)
        return lq_fail(err, LQ_EUNSUPPORTED,
                       "tensor '%.150s': merging: expected floats, found %s: merge into the full "
                       "weights and quantize the result, or serve these with --lora",
                       p->name, scheme);
    const bool turned = (arch_name_of(&s->config, p->slot.role)->flags & NAME_TRANSPOSED) != 0;
    const int64_t R = turned ? p->K : p->N, C = turned ? p->N : p->K;
    if (t->n_dims != 2 || t->t.N != R || t->t.K != C)
        return lq_fail(err, LQ_ESHAPE, "tensor '%.200s': expected [%lld,%lld], found [%lld,%lld]",
                       p->name, (long long)R, (long long)C, (long long)t->t.N, (long long)t->t.K);
    merged *m = lq_push(&s->arena, sizeof *m);
    if (!m) return lq_fail(err, LQ_ENOMEM, "%s: out of memory", s->path);
    const float *a = floats(p->a, p->dtype, p->rank, p->K, turned, &s->arena);
    const float *b = floats(p->b, p->dtype, p->N, p->rank, turned, &s->arena);
    if (!a || !b) return lq_fail(err, LQ_ENOMEM, "%s: out of memory", s->path);
    *m = (merged){ s->base, t, p, turned ? a : b, turned ? b : a, R, C, turned, scratch };
    src_tensor *to = &s->tensors[t - s->base->tensors];
    *to = (src_tensor){ .name = t->name, .n_dims = 2, .raw_dtype = t->raw_dtype };
    memcpy(to->shape, t->shape, sizeof to->shape);
    to->t = (qt_tensor){ .scheme = t->t.scheme, .N = R, .K = C };
    if (f32) to->t.scheme.dtype = to->raw_dtype = LQ_F32;
    return src_make(s, to, source_merge_fill, m, err);
}

static lq_status take_scratch(merge_scratch **out, lq_arena *a, const adp_adapter *x, lq_err *err)
{
    int64_t widest = 1, most = 1;
    for (size_t i = 0; i < x->n; i++) {
        const adp_part *p = &x->parts[i];
        const int64_t w = p->N > p->K ? p->N : p->K;
        if (w > widest) widest = w;
        if (p->N > most) most = p->N;
    }
    merge_scratch *m = *out = lq_push(a, sizeof *m);
    if (!m) return lq_fail(err, LQ_ENOMEM, "adapter: out of memory");
    m->row = lq_push(a, (size_t)widest * sizeof *m->row);
    m->squares = lq_push(a, (size_t)most * sizeof *m->squares);
    return m->row && m->squares ? LQ_OK : lq_fail(err, LQ_ENOMEM, "adapter: out of memory");
}

lq_status src_merge(src_source **out, const src_source *base, const adp_adapter *a, bool f32,
                    lq_err *err)
{
    merge_scratch *scratch;
    *out = NULL;
    src_source *s = src_begin_derived(base, err);
    if (!s) return LQ_ENOMEM;
    lq_status st = src_copy_config(s, base, err);
    s->tensors = lq_push(&s->arena, (base->n_tensors + 1) * sizeof *s->tensors);
    if (!st && !s->tensors) st = lq_fail(err, LQ_ENOMEM, "%s: out of memory", base->path);
    if (!st) {
        s->n_tensors = base->n_tensors;
        memcpy(s->tensors, base->tensors, base->n_tensors * sizeof *s->tensors);
        st = take_scratch(&scratch, &s->arena, a, err);
    }
    for (size_t i = 0; i < a->n && !st; i++)
        st = merge_one(s, &a->parts[i], f32, scratch, err);
    if (!st) st = src_make_room(s, err);
    s->base = NULL; /* other weights have another fingerprint */
    if (st)
        src_close(s);
    else
        *out = s;
    return st;
}
