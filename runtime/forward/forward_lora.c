/* runtime/forward/forward_lora.c - adapters beside a layer's linears, on the CPU (on a device:
 * forward_dev_lora.c); see runtime/model/lora.h. Rows are grouped by adapter, so that each A and B is read once for all of
 * its rows: all groups' A x in one call of mm_run_jobs, all B (A x) in the next. As there, a row's result does
 * not depend on the others. At most FWD_LORA_ROWS rows are at work, of the groups one after the other. */
#include "runtime/forward/forward_impl.h"

enum { MOST_OUTS = 4 }; /* q, k, v and the gate */

int64_t fwd_lora_width(const arch_config *c)
{
    const int64_t qkv = (c->w.q_gated ? 2 : 1) * c->heads * c->head_dim +
                        c->kv_heads * (c->head_dim + c->v_dim) + fwd_gate_width(c);
    const int64_t most = qkv > 2 * c->ffn ? qkv : 2 * c->ffn;
    return most > c->hidden ? most : c->hidden;
}

static int64_t widest_input(const arch_config *c, int64_t rank)
{
    const int64_t all[] = { c->asides ? 2 * c->hidden : c->hidden, c->ffn, c->heads * c->v_dim,
                            rank };
    int64_t most = 0;
    for (size_t i = 0; i < LQ_COUNT(all); i++)
        if (all[i] > most) most = all[i];
    return most;
}

size_t fwd_lora_scratch(const arch_config *c, int64_t rank, int threads)
{
    if (!rank) return 0;
    return mm_scratch_bytes(FWD_LORA_ROWS, widest_input(c, rank), FWD_LORA_ROWS * MOST_OUTS,
                            threads);
}

/* X(field, elements, type): of any pass; of one with layers on the CPU */
#define ROWS(X)                    \
    X(of, R, const lora_adapter *) \
    X(rows, R, int32_t)            \
    X(groups, R, fwd_lora_group)
#define WORK(X)                                   \
    X(jobs, FWD_LORA_ROWS *MOST_OUTS, mm_job)     \
    X(outs, FWD_LORA_ROWS *MOST_OUTS, mm_out)     \
    X(low, FWD_LORA_ROWS *MOST_OUTS *rank, float) \
    X(y, FWD_LORA_ROWS *fwd_lora_width(c), float) \
    X(base, FWD_LORA_ROWS *fwd_lora_width(c), float)

size_t fwd_lora_bytes(const arch_config *c, int64_t R, int64_t rank, bool work)
{
    size_t n = 0;
#define ADD(field, count, type) n += lq_round_up((size_t)(count) * sizeof(type) + 1, 64);
    if (rank) {
        ROWS(ADD)
    }
    if (rank && work) {
        WORK(ADD)
    }
#undef ADD
    return n;
}

bool fwd_lora_cut(fwd_lora *l, const arch_config *c, int64_t R, int64_t rank, bool work,
                  lq_arena *a)
{
    bool ok = true;
#define TAKE(field, count, type) ok = (l->field = lq_push(a, (size_t)(count) * sizeof(type))) && ok;
    if (rank) {
        ROWS(TAKE)
    }
    if (rank && work) {
        WORK(TAKE)
    }
#undef TAKE
    return ok;
}

void fwd_lora_sort(fwd_lora *l, int64_t R)
{
    int32_t n = 0;
    l->n_groups = 0;
    for (int64_t t = 0; t < R; t++) {
        int64_t g = 0;
        while (g < l->n_groups && l->groups[g].of != l->of[t])
            g++;
        if (!l->of[t] || g < l->n_groups) continue;
        l->groups[l->n_groups++] = (fwd_lora_group){ .of = l->of[t], .at = n };
        for (int64_t i = t; i < R; i++)
            if (l->of[i] == l->of[t]) l->rows[n++] = (int32_t)i;
        l->groups[g].n = n - l->groups[g].at;
    }
}

void fwd_lora_pick(fwd_lora *l, const int64_t *rows, int64_t n)
{
    if (!l->n_groups) return;
    for (int64_t i = 0; i < n; i++)
        l->of[i] = l->of[rows[i]];
    fwd_lora_sort(l, n);
}

/* ---- one call: some outputs of one input ---- */

/* A part's rows that are at work. */
typedef struct {
    const lora_part *part;
    const mm_out *out;
    const int32_t *rows;
    int64_t n;
    float *low, *y, *base; /* [n, rank], [n, N], [n, N] of DoRA */
} piece;

typedef struct {
    piece at[FWD_LORA_ROWS * MOST_OUTS];
    int n;
    int64_t rows;         /* of all groups that are at work */
    int64_t low, y, base; /* floats that are taken */
} batch;

static void run_jobs(const fwd_rows *r, int n, mm_acts acts)
{
    if (n) mm_run_jobs(r->lora->jobs, n, acts, r->scratch, r->p);
}

/* low = A x of the rows, times the scale. */
static void run_low(const fwd_rows *r, const batch *b, const float *x, int64_t ldx)
{
    fwd_lora *l = r->lora;
    for (int i = 0; i < b->n; i++) {
        const piece *p = &b->at[i];
        l->outs[i] = (mm_out){ .w = &p->part->a, .y = p->low, .ldy = p->part->rank };
        l->jobs[i] = (mm_job){ x, ldx, p->n, p->rows, &l->outs[i], 1 };
    }
    run_jobs(r, b->n, MM_F32);
    for (int i = 0; i < b->n; i++)
        k_scale(b->at[i].low, b->at[i].part->scale, b->at[i].n * b->at[i].part->rank);
}

static void run_high(const fwd_rows *r, const batch *b)
{
    fwd_lora *l = r->lora;
    for (int i = 0; i < b->n; i++) {
        const piece *p = &b->at[i];
        l->outs[i] = (mm_out){ .w = &p->part->b, .y = p->y, .ldy = p->part->b.N };
        l->jobs[i] = (mm_job){ p->low, p->part->rank, p->n, NULL, &l->outs[i], 1 };
    }
    run_jobs(r, b->n, MM_F32);
}

/* DoRA: what the model's own weight makes of these rows, without bias. */
static void run_base(const fwd_rows *r, const batch *b, const float *x, int64_t ldx)
{
    fwd_lora *l = r->lora;
    int n = 0;
    for (int i = 0; i < b->n; i++) {
        const piece *p = &b->at[i];
        if (!p->part->gain) continue;
        l->outs[n] = (mm_out){ .w = p->out->w, .y = p->base, .ldy = p->part->b.N };
        l->jobs[n] = (mm_job){ x, ldx, p->n, p->rows, &l->outs[n], 1 };
        n++;
    }
    run_jobs(r, n, r->acts);
}

static void add_row(const piece *p, int64_t i)
{
    const int64_t N = p->part->b.N;
    float *to = p->out->y + p->rows[i] * p->out->ldy;
    const float *y = p->y + i * N, *base = p->base + i * N, *g = p->part->gain;
    if (!g) {
        k_add(to, y, N);
        return;
    }
    for (int64_t k = 0; k < N; k++)
        to[k] += (g[k] - 1) * base[k] + g[k] * y[k];
}

static void add_chunk(const fwd_rows *r, int64_t row, int64_t n, const void *arg)
{
    const batch *b = arg;
    (void)r;
    for (int i = 0; i < b->n; i++) {
        const piece *p = &b->at[i];
        for (int64_t t = row < 0 ? 0 : row; t < row + n && t < p->n; t++)
            add_row(p, t);
        row -= p->n;
    }
}

static void run_batch(const fwd_rows *r, batch *b, const float *x, int64_t ldx)
{
    int64_t all = 0;
    for (int i = 0; i < b->n; i++)
        all += b->at[i].n;
    run_low(r, b, x, ldx);
    run_high(r, b);
    run_base(r, b, x, ldx);
    fwd_each(r, all, add_chunk, b);
    b->n = 0;
    b->rows = b->low = b->y = b->base = 0;
}

/* n rows of a group, for each output that its adapter changes. */
static void take(const fwd_rows *r, batch *b, const fwd_lora_group *g, int64_t from, int64_t n,
                 const arch_role *roles, const mm_out *outs, int n_outs)
{
    const fwd_lora *l = r->lora;
    b->rows += n;
    for (int i = 0; i < n_outs; i++) {
        const lora_part *part = lora_find(g->of, l->layer, roles[i]);
        if (!part) continue;
        piece *p = &b->at[b->n++];
        *p = (piece){ part,        &outs[i],         l->rows + g->at + from, n, l->low + b->low,
                      l->y + b->y, l->base + b->base };
        b->low += n * part->rank;
        b->y += n * part->b.N;
        if (part->gain) b->base += n * part->b.N;
    }
}

void fwd_lora_add(const fwd_rows *r, const arch_role *roles, const mm_out *outs, int n,
                  const float *x, int64_t ldx)
{
    const fwd_lora *l = r->lora;
    batch b = { .n = 0 };
    if (!l) return;
    for (int64_t i = 0; i < l->n_groups; i++) {
        const fwd_lora_group *g = &l->groups[i];
        for (int64_t at = 0, k; at < g->n; at += k) {
            k = g->n - at < FWD_LORA_ROWS - b.rows ? g->n - at : FWD_LORA_ROWS - b.rows;
            take(r, &b, g, at, k, roles, outs, n);
            if (b.rows == FWD_LORA_ROWS) run_batch(r, &b, x, ldx);
        }
    }
    if (b.n) run_batch(r, &b, x, ldx);
}
