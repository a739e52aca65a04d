/* runtime/model/lora.c - see lora.h. */
#include "runtime/model/lora.h"

#include "formats/tensor/tiles.h"
#include "runtime/model/lora_wire.h"
#include "runtime/model/part.h"

#include <stdlib.h>

/* What a device may have made one weight of, this one among others (model_dev.c). */
static arch_role joined(arch_role r)
{
    return r == R_Q || r == R_K || r == R_V ? R_QKV : r == R_GATE || r == R_UP ? R_GATE_UP : r;
}

static bool is_there(const model *m, const arch_slot *s)
{
    const model_linear *lin = m->layers[s->layer].lin;
    return lin[s->role].present || lin[joined(s->role)].present;
}

/* Is the role's product one of those beside which an adapter's is added (runtime/forward/forward_lora.c)? */
static bool runs(const model *m, const arch_slot *s)
{
    const bool heads = s->role >= R_Q && s->role <= R_ATTN_GATE;
    /* The keys and queries of distances are there already; one tensor of several layers. */
    const bool more =
        m->cfg->layer_groups || (m->cfg->dist_shared && (s->role == R_Q || s->role == R_K));
    return lora_slot(s->role) < LORA_SLOTS && s->layer >= 0 && !(heads && m->cfg->w.mla) && !more &&
           is_there(m, s);
}

/* Is the layer on a device? */
static bool is_on(const model *m, const arch_slot *s) { return m->on && s->layer >= m->on->first; }

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

static lq_status make_gain(const float **out, const adp_part *p, const model *m, lq_arena *a,
                           pool *pl, lq_err *err)
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
    *out = gain;
    return s;
}

/* ---- parts ---- */

static qt_tensor dense(const void *x, const adp_part *p, int64_t N, int64_t K)
{
    qt_tensor t = { .scheme = { .kind = QT_DENSE, .dtype = p->dtype }, .N = N, .K = K };
    t.plane[QT_CODES] = (qt_span){ x, (size_t)(N * K) * lq_dtype_bytes(p->dtype) };
    return t;
}

static lq_status pack_inputs(mm_weight *out, const adp_part *p, lq_arena *a, pool *pl, lq_err *err)
{
    const qt_tensor t = dense(p->a, p, p->rank, p->K);
    return mm_pack(out, &t, a, pl, err);
}

/* B, or its rows for the outputs that this process has. */
static lq_status pack_outputs(mm_weight *out, const adp_part *p, const model *m, lq_arena *a,
                              pool *pl, lq_err *err)
{
    const qt_tensor t = dense(p->b, p, p->N, p->rank);
    return m->part ? part_pack(out, part_at(m->part, p->slot.layer), p->slot.role, &t, a, pl, err)
                   : mm_pack(out, &t, a, pl, err);
}

static lq_status check_part(const adp_part *p, const model *m, lq_err *err)
{
    if (runs(m, &p->slot)) return LQ_OK;
    return lq_fail(err, LQ_EUNSUPPORTED,
                   "'%.150s': %s: expected a linear of attention or of a dense MLP, others are "
                   "changed in merged weights alone (llmq convert --merge-lora)",
                   p->name, arch_role_text(p->slot.role));
}

/* Of a layer that the CPU has. */
static lq_status add_part(lora_adapter *l, const adp_part *p, const model *m, pool *pl, lq_err *err)
{
    lora_part *to = lq_push(&l->arena, sizeof *to);
    if (!to) return lq_fail(err, LQ_ENOMEM, "adapter: out of memory");
    to->rank = p->rank;
    to->scale = p->scale;
    lq_status s = pack_inputs(&to->a, p, &l->arena, pl, err);
    if (!s) s = pack_outputs(&to->b, p, m, &l->arena, pl, err);
    if (!s && p->magnitude) s = make_gain(&to->gain, p, m, &l->arena, pl, err);
    if (!s && m->part)
        s = part_bias(&to->gain, part_at(m->part, p->slot.layer), p->slot.role, &l->arena, err);
    l->at[p->slot.layer * ARCH_N_ROLES + p->slot.role] = to;
    return s;
}

/* Of the layers that devices have. */
static lq_status put_parts(lora_adapter *l, const adp_adapter *a, const model *m, pool *pl,
                           lq_err *err)
{
    lq_arena tmp = { 0 };
    const float **gains = lq_push(&tmp, (a->n + 1) * sizeof *gains);
    lq_status s = gains ? LQ_OK : lq_fail(err, LQ_ENOMEM, "adapter: out of memory");
    for (size_t i = 0; i < a->n && !s; i++)
        if (is_on(m, &a->parts[i].slot) && a->parts[i].magnitude)
            s = make_gain(&gains[i], &a->parts[i], m, &tmp, pl, err);
    if (!s) s = lora_put(l, m, a, gains, err);
    lq_arena_free(&tmp);
    return s;
}

static lq_status fill(lora_adapter *l, const adp_adapter *a, const model *m, int64_t max_rank,
                      pool *p, lq_err *err)
{
    lq_status s = LQ_OK;
    l->id = a->id;
    l->rank = a->rank;
    l->dora = a->dora;
    if (max_rank && a->rank > max_rank)
        return lq_fail(err, LQ_EVALUE,
                       "expected a rank of at most %lld (--max-lora-rank), found %lld",
                       (long long)max_rank, (long long)a->rank);
    l->at = lq_push(&l->arena, (size_t)(m->cfg->layers * ARCH_N_ROLES) * sizeof *l->at);
    if (!l->at) return lq_fail(err, LQ_ENOMEM, "adapter: out of memory");
    for (size_t i = 0; i < a->n && !s; i++) {
        s = check_part(&a->parts[i], m, err);
        if (!s && !is_on(m, &a->parts[i].slot)) s = add_part(l, &a->parts[i], m, p, err);
    }
    if (!s && m->part && m->part->rank == 0) s = lora_wire_put(&l->wire, &l->n_wire, a, err);
    l->bytes = l->arena.used + l->n_wire;
    return s || !m->on ? s : put_parts(l, a, m, p, err);
}

lq_status lora_make(lora_adapter **out, const model *m, const adp_adapter *a, int64_t max_rank,
                    pool *p, lq_err *err)
{
    *out = NULL;
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
    lora_take_back(l);
    lq_arena_free(&l->arena);
    free(l->wire);
    free(l);
}
