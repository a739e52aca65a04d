/* runtime/forward/forward_dev_lora.c - adapters beside the products of a device's layers (kernels/cuda/lora.cu):
 * a step sends which rows have which adapter, in panels of a few rows of one, and each product is
 * followed by what the panels' adapters add to it. The adapters' tables are addresses among these data;
 * a graph's launches are bound to a layer and a role alone, to the number of panels, rounded up to a power of
 * two by empty ones, and to the largest rank, rounded up likewise. */
#include "runtime/forward/forward_dev.h"

#include <assert.h>

static int64_t power_above(int64_t n)
{
    int64_t p = 1;
    while (p < n)
        p *= 2;
    return p;
}

/* The largest rank as a pass counts it. */
static int64_t most_rank(const fwd_opts *o)
{
    return o->lora_rank ? lq_ceil_div(power_above(o->lora_rank), DEV_LORA_PAD) * DEV_LORA_PAD : 0;
}

static size_t low_bytes(const fwd_opts *o)
{
    return (size_t)(DEV_LORA_OUTS * o->max_rows * most_rank(o)) * sizeof(float);
}

static size_t base_bytes(const arch_config *c, const fwd_opts *o)
{
    return o->lora_rank ? (size_t)(o->max_rows * fwd_lora_width(c)) * sizeof(float) : 0;
}

size_t fwd_dev_lora_bytes(const arch_config *c, const fwd_opts *o)
{
    return low_bytes(o) + base_bytes(c, o);
}

size_t fwd_dev_lora_stage(const fwd_opts *o)
{
    const size_t rows = (size_t)o->max_rows;
    if (!o->lora_rank) return 0;
    return 2 *
           (lq_round_up(rows * sizeof(int32_t), FWD_DEV_ALIGN) +
            lq_round_up((size_t)power_above(o->max_rows) * sizeof(dev_lora_panel), FWD_DEV_ALIGN));
}

bool fwd_dev_lora_host(fwd_dev_ctx *f, const fwd_opts *o, fwd_take *take, void *from)
{
    if (!o->lora_rank) return true;
    f->lora.rows = take(from, (size_t)o->max_rows * sizeof *f->lora.rows);
    f->lora.panels = take(from, (size_t)power_above(o->max_rows) * sizeof *f->lora.panels);
    return f->lora.rows && f->lora.panels;
}

void fwd_dev_lora_cut(fwd_dev_ctx *f, const arch_config *c, const fwd_opts *o, fwd_take *take,
                      void *from)
{
    f->lora.most = most_rank(o);
    f->lora.max_rows = o->max_rows;
    if (!o->lora_rank) return;
    f->lora.low = take(from, low_bytes(o));
    f->lora.base = take(from, base_bytes(c, o));
}

/* ---- what a step sends ---- */

/* rows [n] of one adapter, behind the `at` rows before them. */
static int64_t put_panels(fwd_dev_ctx *f, int64_t panels, int64_t at, int64_t n,
                          const lora_adapter *l)
{
    for (int64_t i = 0; i < n; i += DEV_LORA_ROWS)
        f->lora.panels[panels++] = (dev_lora_panel){
            .parts = l->on[f->on->rank].parts,
            .first = (int32_t)(at + i),
            .n = (int32_t)(n - i < DEV_LORA_ROWS ? n - i : DEV_LORA_ROWS),
        };
    return panels;
}

/* f->lora.rows [R] and n panels, padded where the step may be a graph. */
static void send(fwd_dev_ctx *f, fwd_dev_rows *to, int64_t n, int64_t R)
{
    const int64_t all = f->steady ? power_above(n) : n;
    while (n < all)
        f->lora.panels[n++] = (dev_lora_panel){ .n = 0 };
    to->n = n;
    to->rows = fwd_dev_stage(f, f->lora.rows, (size_t)R * sizeof *f->lora.rows);
    to->panels = fwd_dev_stage(f, f->lora.panels, (size_t)n * sizeof *f->lora.panels);
}

static void send_all(fwd_dev_ctx *f, const fwd_lora *l, int64_t R)
{
    int64_t n = 0, rank = 0;
    f->lora.dora = false;
    for (int64_t i = 0; i < l->n_groups; i++) {
        const fwd_lora_group *g = &l->groups[i];
        n = put_panels(f, n, g->at, g->n, g->of);
        if (g->of->rank > rank) rank = g->of->rank;
        f->lora.dora = f->lora.dora || g->of->dora;
    }
    f->lora.rank = lq_ceil_div(power_above(rank), DEV_LORA_PAD) * DEV_LORA_PAD;
    memcpy(f->lora.rows, l->rows, (size_t)R * sizeof *l->rows);
    send(f, &f->lora.all, n, R);
}

/* Where in picked [n], which rises, row is; -1: nowhere. */
static int64_t place_of(const int64_t *picked, int64_t n, int64_t row)
{
    int64_t lo = 0, hi = n;
    while (lo < hi) {
        const int64_t mid = (lo + hi) / 2;
        if (picked[mid] < row)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < n && picked[lo] == row ? lo : -1;
}

static void send_picked(fwd_dev_ctx *f, const fwd_lora *l, const fwd_batch *b)
{
    int64_t n = 0, at = 0;
    for (int64_t i = 0; i < l->n_groups; i++) {
        const fwd_lora_group *g = &l->groups[i];
        const int64_t first = at;
        for (int64_t k = 0; k < g->n; k++) {
            const int64_t row = place_of(b->picked, b->n_picked, l->rows[g->at + k]);
            if (row >= 0) f->lora.rows[at++] = (int32_t)row;
        }
        n = put_panels(f, n, first, at - first, g->of);
    }
    send(f, &f->lora.picked, n, at);
}

void fwd_dev_lora_begin(fwd_dev_ctx *f, const fwd_batch *b, int64_t R)
{
    const fwd_lora *l = b->lora;
    f->lora.all.n = f->lora.picked.n = 0;
    f->lora.rank = f->lora.dora = 0;
    f->lora.now = &f->lora.all;
    if (!l || !l->n_groups) return;
    send_all(f, l, R);
    if (b->n_picked < R) send_picked(f, l, b);
}

/* ---- a product's adapters ---- */

/* The roles whose outputs a product of role r has, one after the other, and how many of each. */
static int parts_of(arch_role roles[DEV_LORA_OUTS], int64_t n[DEV_LORA_OUTS], const arch_config *c,
                    arch_role r, int64_t N)
{
    const bool joined = !arch_name_of(c, r); /* where the weights went there (model_dev.c) */
    if (joined && r == R_QKV) {
        const arch_role qkv[] = { R_Q, R_K, R_V };
        const int64_t wide[] = { c->heads * c->head_dim, c->kv_heads * c->head_dim,
                                 c->kv_heads * c->v_dim };
        memcpy(roles, qkv, sizeof qkv);
        memcpy(n, wide, sizeof wide);
        return 3;
    }
    roles[0] = joined && r == R_GATE_UP ? R_GATE : r;
    roles[1] = R_UP;
    n[0] = n[1] = N;
    if (!joined || r != R_GATE_UP) return 1;
    n[0] = n[1] = N / 2;
    return 2;
}

/* What W makes of x, side by side in r->lora.base: *out says where. */
static void put_base(const fwd_rows *r, mm_out *base, const mm_out *outs, int n, const float *x,
                     int64_t ldx)
{
    const fwd_dev_ctx *f = r->self;
    int64_t wide = 0, at = 0;
    for (int i = 0; i < n; i++)
        wide += outs[i].w->N;
    for (int i = 0; i < n; at += outs[i++].w->N)
        base[i] = (mm_out){ .w = outs[i].w, .y = f->lora.base + at, .ldy = wide };
    r->ops->products(r, base, n, x, ldx, r->R);
}

void fwd_dev_adapt(const fwd_rows *r, const arch_role *roles, const mm_out *outs, int n,
                   const float *x, int64_t ldx)
{
    const fwd_dev_ctx *f = r->self;
    const fwd_dev_rows *of = f->lora.now;
    const int64_t layer = r->layer - f->on->w.layers;
    mm_out base[DEV_LORA_OUTS] = { { 0 } };
    dev_lora_args a = { .x = x,
                        .low = f->lora.low,
                        .panels = of->panels,
                        .rows = of->rows,
                        .ldx = ldx,
                        .K = outs->w->K,
                        .ldl = f->lora.most,
                        .rows_most = f->lora.max_rows,
                        .n_panels = of->n,
                        .rank = f->lora.rank };
    if (!of->n) return;
    assert(n <= DEV_LORA_OUTS);
    if (f->lora.dora) put_base(r, base, outs, n, x, ldx);
    for (int i = 0; i < n; i++) {
        arch_role part[DEV_LORA_OUTS];
        int64_t width[DEV_LORA_OUTS], at = 0;
        const int parts = parts_of(part, width, r->c, roles[i], outs[i].w->N);
        for (int k = 0; k < parts; at += width[k++]) {
            assert(a.n < DEV_LORA_OUTS);
            a.out[a.n++] = (dev_lora_out){
                .y = outs[i].y + at,
                .base = base[i].y ? base[i].y + at : NULL,
                .ldy = outs[i].ldy,
                .ldb = base[i].ldy,
                .N = width[k],
                .part = (int)(layer * LORA_SLOTS) + lora_slot(part[k]),
            };
        }
    }
    f->d->ops->lora(f->d, &a);
}
