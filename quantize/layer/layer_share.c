/* quantize/layer/layer_share.c - rounding over several ranks: who rounds which rows, and the rounded rows to all. See
 * layer_impl.h.
 *
 * What a layer has once is cut into pieces of LAYER_SHARE_ROWS rows, which are dealt out in order, so that each rank rounds
 * about as much; the factors of small H each makes itself. Rows are rounded one by one but for what they share in
 * blocks of FISHER_BLOCK and in products of GPTQ_BATCH rows, so pieces begin at multiples of both, and give the bits of
 * the whole. An expert is rounded by the rank that has the statistics of its inputs. */
#include "quantize/layer/layer_impl.h"

#include <assert.h>

#include "quantize/methods/cholesky.h"

static_assert(LAYER_SHARE_ROWS % FISHER_BLOCK == 0, "pieces begin where blocks of curvature do");

int layer_expert_owner(const work *w, int64_t expert)
{
    return (int)(expert % comm_size(w->how.ranks));
}

/* May its rows be rounded apart? */
static bool may_cut(const unit *u)
{
    qt_tensor some;
    const target *t = u->t;
    return u->N > LAYER_SHARE_ROWS && u->N == t->out.t.N && qz_on_grids(t->e) &&
           !(t->out.t.scheme.kind == QT_UINT && t->out.t.scheme.act_order) &&
           qt_rows(&some, &t->out.t, LAYER_SHARE_ROWS, u->N);
}

int layer_dealt(double at, double all, int size)
{
    const int owner = all > 0 ? (int)(at / all * size) : 0;
    return owner < size ? owner : size - 1;
}

double layer_cost(const unit *u, int64_t rows)
{
    return (double)rows * (double)u->K * (u->st && u->st->H ? (double)u->K : 1);
}

size_t layer_cut(piece *p, const work *w, const unit *u, size_t n)
{
    const int size = comm_size(w->how.ranks);
    size_t n_pieces = 0;
    double sum = 0, before = 0;
    for (size_t i = 0; i < n; i++)
        sum += layer_cost(&u[i], u[i].N);
    for (size_t i = 0; i < n; i++) {
        const int64_t step = size > 1 && may_cut(&u[i]) ? LAYER_SHARE_ROWS : u[i].N;
        for (int64_t r = 0; r < u[i].N; r += step) {
            const int64_t rows = u[i].N - r < step ? u[i].N - r : step;
            const double cost = layer_cost(&u[i], rows);
            const int owner = layer_dealt(before + cost / 2, sum, size);
            piece *last = n_pieces ? &p[n_pieces - 1] : NULL;
            before += cost;
            if (last && last->unit == i && last->owner == owner)
                last->rows += rows;
            else
                p[n_pieces++] = (piece){ i, r, rows, owner };
        }
    }
    return n_pieces;
}

size_t layer_most_pieces(const work *w, size_t n_units)
{
    return n_units * (size_t)comm_size(w->how.ranks) + 1;
}

unit layer_part(const unit *whole, const piece *p)
{
    unit u = *whole;
    if (p->rows == whole->N) return u;
    const size_t skip = (size_t)p->first * (size_t)u.K;
    u.W = (const uint8_t *)u.W + skip * lq_dtype_bytes(u.d);
    if (u.own) u.own += skip;
    if (u.fold.rows) u.fold.rows += p->first;
    if (p->first && !isnan(u.loss_rtn)) u.loss_rtn = 0; /* that of the whole counts once */
    u.row0 += p->first;
    u.skipped = p->first;
    u.N = p->rows;
    return u;
}

/* ---- factors ---- */
static bool shares_factor(const work *w, const unit *u)
{
    return w->o->method->share && qz_by_method(u->t->e, w->o) && u->st && u->st->H &&
           u->K >= CHOLESKY_SHARED;
}

static int unit_of(const work *w, const unit *u)
{
    const grid_spec spec = rtn_spec_of(&u->t->out, w->o->limits, false);
    return row_unit(&spec);
}

/* Is one of our pieces of unit i, or of one after it that takes the same factor? */
static bool goes_by(const work *w, const group *g, size_t i, const gptq_basis *b, const piece *p,
                    size_t n)
{
    for (size_t k = 0; k < n; k++) {
        const size_t at = p[k].unit;
        const bool same = b->H && g->u[at].st && g->u[at].st->H == b->H;
        if (p[k].owner == comm_rank(w->how.ranks) && (at == i || (at > i && same))) return true;
    }
    return false;
}

lq_status layer_share_factors(work *w, group *g, const piece *p, size_t n, gptq_basis *b,
                              lq_err *err)
{
    lq_status s = LQ_OK;
    for (size_t i = 0; i < g->n && !s; i++) {
        unit *u = &g->u[i];
        if (!shares_factor(w, u)) continue;
        for (size_t k = 0; k < i && !u->basis; k++)
            if (b[k].H == u->st->H && b[k].unit == unit_of(w, u)) u->basis = &b[k];
        if (u->basis) continue;
        if (lq_stopped(w->job)) return lq_fail(err, LQ_EINTR, "interrupted");
        u->basis = &b[i];
        s = layer_share_basis(w, u, &b[i], err);
        if (s || goes_by(w, g, i, &b[i], p, n)) continue;
        const gptq_basis known = { .H = b[i].H, .unit = b[i].unit };
        gptq_basis_free(&b[i]);
        b[i] = known; /* the others have it */
    }
    return s;
}

/* ---- what was rounded, to all ranks ---- */
/* What the others do not find themselves. */
typedef struct {
    unit_sums sums;
    qt_scheme scheme;
    int32_t residual, first;
    char note[sizeof((qz_report *)0)->note];
    double alpha, fold_lo, fold_hi;
} news;

static lq_status share_bytes(work *w, int from, void *p, size_t n, lq_err *err)
{
    return comm_broadcast(w->how.ranks, from, p, n, err);
}

static lq_status share_planes(work *w, const qz_out *out, int from, lq_err *err)
{
    lq_status s = LQ_OK;
    for (int p = 0; p < QT_N_PLANES && !s; p++)
        if (out->w[p] && out->t.plane[p].bytes)
            s = share_bytes(w, from, out->w[p], out->t.plane[p].bytes, err);
    return s;
}

/* The rank that has rounded it says how it went. */
static news tell_news(const work *w, const target *t, const unit_sums *sums, bool first)
{
    news n;
    memset(&n, 0, sizeof n);
    (void)w;
    n.sums = *sums;
    n.scheme = t->out.t.scheme;
    n.residual = t->residual != NULL;
    n.first = first;
    memcpy(n.note, t->rep.note, sizeof n.note);
    n.alpha = t->rep.alpha;
    n.fold_lo = t->rep.fold_lo;
    n.fold_hi = t->rep.fold_hi;
    return n;
}

static lq_status take_news(work *w, target *t, const news *n, bool whole, lq_err *err)
{
    const plan_entry *e = t->e;
    lq_status s = LQ_OK;
    if (!t->out.t.N)
        s = qz_out_alloc(&t->out, &n->scheme, e->count * e->N, e->K, &w->out.arena, err);
    if (whole) t->out.t.scheme = n->scheme; /* what rounding settled */
    if (n->first) {
        memcpy(t->rep.note, n->note, sizeof n->note);
        t->rep.alpha = n->alpha;
        t->rep.fold_lo = n->fold_lo;
        t->rep.fold_hi = n->fold_hi;
    }
    const size_t bytes = (size_t)(e->count * e->N * e->K);
    if (s || !n->residual || t->residual) return s;
    t->residual = lq_push(&w->out.arena, bytes);
    return t->residual ? LQ_OK : layer_no_memory(bytes, err);
}

lq_status layer_share_piece(work *w, const unit *u, int64_t first, int64_t rows, int owner,
                            unit_sums *sums, lq_err *err)
{
    target *t = u->t;
    const bool ours = owner == comm_rank(w->how.ranks);
    news n;
    if (ours) n = tell_news(w, t, sums, u->row0 + first == 0);
    lq_status s = share_bytes(w, owner, &n, sizeof n, err);
    const int64_t row0 = u->row0 + first;
    if (s) return s;
    if (!ours) s = take_news(w, t, &n, rows == t->e->count * t->e->N, err);
    if (s) return s;
    *sums = n.sums;
    qz_out part, *out = &t->out;
    if (rows != t->out.t.N) {
        out = &part;
        if (!qz_out_rows(out, &t->out, row0, row0 + rows))
            return lq_fail(err, LQ_EUNSUPPORTED, "its blocks run across experts");
    }
    s = share_planes(w, out, owner, err);
    if (!s && n.residual)
        s = share_bytes(w, owner, t->residual + row0 * u->K, (size_t)(rows * u->K), err);
    return s;
}

/* What folding an expert changed beside its matrices. */
lq_status layer_share_beside(work *w, int64_t expert, lq_err *err)
{
    const int owner = layer_expert_owner(w, expert);
    lq_status s = LQ_OK;
    for (size_t i = 0; i < w->n && !s; i++) {
        target *t = &w->targets[i];
        if (t->e->quantize || !t->e->known || t->e->expert != expert) continue;
        int32_t changed = t->dense != NULL;
        const size_t bytes = (size_t)(t->src.N * t->src.K) * sizeof(float);
        s = share_bytes(w, owner, &changed, sizeof changed, err);
        if (s || !changed) continue;
        if (!t->dense && !(t->dense = lq_push(&w->out.arena, bytes)))
            return layer_no_memory(bytes, err);
        s = share_bytes(w, owner, t->dense, bytes, err);
    }
    return s;
}
