/* runtime/model/lora.c - see lora.h. */
#include "runtime/model/lora.h"

#include "formats/tensor/tiles.h"

#include <stdlib.h>

/* Is the role's product one of those beside which an adapter's is added (runtime/forward/forward_lora.c)? */
static bool runs(const model *m, const arch_slot *s)
{
    static const arch_role known[] = { R_Q, R_K,    R_V,  R_QKV,     R_ATTN_GATE,
                                       R_O, R_GATE, R_UP, R_GATE_UP, R_DOWN };
    const bool heads = s->role >= R_Q && s->role <= R_ATTN_GATE;
    size_t i = 0;
    while (i < LQ_COUNT(known) && known[i] != s->role)
        i++;
    return i < LQ_COUNT(known) && s->layer >= 0 && !(heads && m->cfg->w.mla) &&
           m->layers[s->layer].lin[s->role].present;
}

/* ---- DoRA: lengths of the rows of W + scale B A ---- */

typedef struct {
    const qt_tensor *w; /* portable */
    const adp_part *part;
    const float *a, *b; /* f32 */
    float *gain;
    float *rows; /* [threads, K] */
} gain_job;

static void gain_row(void *ctx, int64_t n, int thread)
{
    const gain_job *j = ctx;
    const adp_part *p = j->part;
    float *w = j->rows + thread * p->K;
    double sum = 0;
    qt_dequant(w, j->w, n, n + 1);
    for (int64_t r = 0; r < p->rank; r++) {
        const float f = p->scale * j->b[n * p->rank + r], *a = j->a + r * p->K;
        for (int64_t k = 0; k < p->K; k++)
            w[k] += f * a[k];
    }
    for (int64_t k = 0; k < p->K; k++)
        sum += (double)w[k] * (double)w[k];
    j->gain[n] = sum > 0 ? (float)((double)p->magnitude[n] / sqrt(sum)) : 0;
}

static lq_status portable(qt_tensor *w, lq_arena *a, lq_err *err)
{
    void *to[QT_N_PLANES];
    qt_tensor plain;
    if (w->layout == QT_PORTABLE) return LQ_OK;
    lq_status s = qt_alloc(&plain, to, &w->scheme, w->N, w->K, a, err);
    if (!s) s = tiles_unpack(to, w, err);
    *w = plain;
    return s;
}

static lq_status make_gain(lora_part *out, const adp_part *p, const model *m, lq_arena *a, pool *pl,
                           lq_err *err)
{
    lq_arena tmp = { 0 };
    qt_tensor w;
    float *gain = lq_push(a, (size_t)p->N * sizeof *gain);
    const size_t na = (size_t)(p->rank * p->K), nb = (size_t)(p->N * p->rank);
    float *f = lq_push(&tmp, (na + nb) * sizeof *f);
    float *rows = lq_push(&tmp, (size_t)(pool_threads(pl) * p->K) * sizeof *rows);
    lq_status s = gain && f && rows ? LQ_OK : lq_fail(err, LQ_ENOMEM, "adapter: out of memory");
    if (!s) s = src_matrix(m->src, p->slot.role, p->slot.layer, p->slot.expert, &w, &tmp, err);
    if (!s) s = portable(&w, &tmp, err);
    if (!s) {
        lq_to_f32(f, p->a, p->dtype, na);
        lq_to_f32(f + na, p->b, p->dtype, nb);
        gain_job j = { &w, p, f, f + na, gain, rows };
        pool_run(pl, p->N, gain_row, &j);
        src_matrix_done(m->src, p->slot.role, p->slot.layer, p->slot.expert);
    }
    lq_arena_free(&tmp);
    out->gain = gain;
    return s;
}

/* ---- parts ---- */

static lq_status pack(mm_weight *out, const void *x, const adp_part *p, int64_t N, int64_t K,
                      lq_arena *a, pool *pl, lq_err *err)
{
    qt_tensor t = { .scheme = { .kind = QT_DENSE, .dtype = p->dtype }, .N = N, .K = K };
    t.plane[QT_CODES] = (qt_span){ x, (size_t)(N * K) * lq_dtype_bytes(p->dtype) };
    return mm_pack(out, &t, a, pl, err);
}

static lq_status add_part(lora_adapter *l, const adp_part *p, const model *m, pool *pl, lq_err *err)
{
    if (!runs(m, &p->slot))
        return lq_fail(err, LQ_EUNSUPPORTED,
                       "'%.150s': %s: expected a linear of attention or of a dense MLP, others are "
                       "changed in merged weights alone (llmq convert --merge-lora)",
                       p->name, arch_role_text(p->slot.role));
    lora_part *to = lq_push(&l->arena, sizeof *to);
    if (!to) return lq_fail(err, LQ_ENOMEM, "adapter: out of memory");
    to->rank = p->rank;
    to->scale = p->scale;
    lq_status s = pack(&to->a, p->a, p, p->rank, p->K, &l->arena, pl, err);
    if (!s) s = pack(&to->b, p->b, p, p->N, p->rank, &l->arena, pl, err);
    if (!s && p->magnitude) s = make_gain(to, p, m, &l->arena, pl, err);
    l->at[p->slot.layer * ARCH_N_ROLES + p->slot.role] = to;
    return s;
}

static lq_status fill(lora_adapter *l, const adp_adapter *a, const model *m, int64_t max_rank,
                      pool *p, lq_err *err)
{
    lq_status s = LQ_OK;
    l->id = a->id;
    l->rank = a->rank;
    if (max_rank && a->rank > max_rank)
        return lq_fail(err, LQ_EVALUE,
                       "expected a rank of at most %lld (--max-lora-rank), found %lld",
                       (long long)max_rank, (long long)a->rank);
    l->at = lq_push(&l->arena, (size_t)(m->cfg->layers * ARCH_N_ROLES) * sizeof *l->at);
    if (!l->at) return lq_fail(err, LQ_ENOMEM, "adapter: out of memory");
    for (size_t i = 0; i < a->n && !s; i++)
        s = add_part(l, &a->parts[i], m, p, err);
    l->bytes = l->arena.used;
    return s;
}

lq_status lora_make(lora_adapter **out, const model *m, const adp_adapter *a, int64_t max_rank,
                    pool *p, lq_err *err)
{
    *out = NULL;
    if (m->on) return lq_fail(err, LQ_EUNSUPPORTED, "not on cuda yet: --lora");
    lora_adapter *l = calloc(1, sizeof *l);
    if (!l) return lq_fail(err, LQ_ENOMEM, "adapter: out of memory");
    atomic_init(&l->users, 1);
    lq_status s = fill(l, a, m, max_rank, p, err);
    if (s)
        lora_unref(l);
    else
        *out = l;
    return s;
}

lq_status lora_open(lora_adapter **out, const model *m, const char *path, int64_t max_rank, pool *p,
                    lq_err *err)
{
    adp_adapter a;
    *out = NULL;
    lq_status s = adp_open(&a, path, m->src, err); /* names the path */
    if (s) return s;
    s = lora_make(out, m, &a, max_rank, p, err);
    adp_close(&a);
    return s ? lq_wrap(err, s, "adapter %s", path) : LQ_OK;
}

lora_adapter *lora_ref(lora_adapter *l)
{
    if (l) atomic_fetch_add(&l->users, 1);
    return l;
}

void lora_unref(lora_adapter *l)
{
    if (!l || atomic_fetch_sub(&l->users, 1) > 1) return;
    lq_arena_free(&l->arena);
    free(l);
}
