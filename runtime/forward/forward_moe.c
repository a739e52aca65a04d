/* runtime/forward/forward_moe.c - experts in the MLP's place.
 *
 *   experts and shares of the router's logits (runtime/forward/choose.h)
 *   out += sum over them, by rising expert, of share_e * expert_e(h), and the shared MLP
 *
 * Experts without tensors (arch_config.zero_experts) put out what they read; their numbers are the last.
 *
 * Experts may be without a gate (MLP_PLAIN), and may read and put out something narrower than h:
 * latent_in h, and out += latent_out of their sum.
 *
 * (arXiv:2401.04088.) Rows are put in order of their experts, so that each expert's weights are read
 * once for all rows sent to it, and all experts run in one region of the pool per matrix:
 *
 *     row    chosen         place    0  1  2  3  4  5
 *      0     1, 3           expert   1  1  2  3  3  3
 *      1     2, 3           sent     0  2  1  0  1  2     place of (row, choice): its inverse
 *      2     1, 3
 *
 * A row's sum is made in one order whatever the other rows are. */
#include "formats/tensor/tiles.h"
#include "runtime/forward/choose.h"
#include "runtime/forward/forward_impl.h"

/* The experts' rows and jobs of one call, cut out of scratch. */
typedef struct {
    const fwd_rows *r;
    const model_layer *l;
    int32_t *first; /* [arch_choices + 1]: where each expert's places begin */
    int32_t *next;  /* [arch_choices] */
    mm_job *jobs;   /* [experts + 1]: the last for the shared MLP */
    mm_out *outs;   /* two for each */
    int n_jobs, n_outs;
    bool joined; /* every gate with its up: their product comes activated */
} moe;

static size_t piece(int64_t n, size_t size) { return lq_round_up((size_t)n * size + 1, 64); }

size_t fwd_moe_scratch(const arch_config *c, int64_t R, int threads)
{
    if (!c->experts) return 0;
    const int64_t E = arch_choices(c) + 1, M = R * (c->experts_used + 1);
    size_t in = mm_scratch_bytes(M, c->hidden, (int)(2 * E), threads);
    size_t down = mm_scratch_bytes(M, c->expert_ffn > c->shared_ffn ? c->expert_ffn : c->shared_ffn,
                                   (int)E, threads);
    return 2 * piece(E, sizeof(int32_t)) + piece(E, sizeof(mm_job)) + piece(2 * E, sizeof(mm_out)) +
           (in > down ? in : down);
}

/* ---- choosing ---- */

static void choose_rows(const fwd_rows *r, int64_t row, int64_t n, const void *arg)
{
    const model_layer *l = arg;
    const int64_t E = arch_choices(r->c), k = r->c->experts_used, shared = r->c->shared_experts;
    for (int64_t t = row; t < row + n; t++) {
        const choose_row one = { .scores = r->scores + t * (E + shared),
                                 .choice = r->choice + t * E,
                                 .group_score = r->group_score + t * r->c->expert_groups,
                                 .group_best = r->group_best + t * r->c->groups_used,
                                 .chosen = r->chosen + t * k,
                                 .share = r->share + t * k,
                                 .shared = r->shared_share + t * shared,
                                 .by = l->vec[R_SHARE_SCALE].w,
                                 .given = l->vec[R_EXPERTS_OF].w
                                              ? l->vec[R_EXPERTS_OF].w + r->ids[t] * k
                                              : NULL };
        choose_experts(&one, r->c, l->vec[R_ROUTER_CORR].w, l->vec[R_EXPERT_SCALE].w);
        if (l->lin[R_SHARED_ROUTER].present)
            r->shared_share[t] = choose_sigmoid(r->shared_share[t]);
    }
}

static void carry_chunk(const fwd_rows *r, int64_t row, int64_t n, const void *arg)
{
    const model_layer *l = arg;
    const int64_t W = r->c->route;
    const float *by = l->vec[R_ROUTER_CARRY].w;
    for (int64_t i = row * W; i < (row + n) * W; i++)
        r->route[i] = by ? r->route[i] * by[i % W] : 0;
}

static void gelu_chunk(const fwd_rows *r, int64_t row, int64_t n, const void *arg)
{
    const int64_t W = r->c->route;
    k_act(*(float *const *)arg + row * W, n * W, (k_act_fn)ARCH_GELU);
}

/* What the router reads of h, where it has layers of its own. */
static const float *enter_router(const fwd_rows *r, const model_layer *l)
{
    const int64_t W = r->c->route;
    float *mid[] = { r->route_mid, r->route_mid + r->R * W };
    const mm_out in = fwd_out(&l->lin[R_ROUTER_IN], r->route, W, true);
    fwd_each(r, r->R, carry_chunk, l);
    mm_run(&in, 1, r->h, r->c->hidden, r->R, MM_F32, r->scratch, r->p);
    r->ops->norm(r, mid[0], r->route, &l->vec[R_ROUTER_IN_NORM], r->R, W);
    for (int i = 0; i < 2; i++) {
        const mm_out o = fwd_out(&l->lin[R_ROUTER_1 + i], mid[!i], W, false);
        mm_run(&o, 1, mid[i], W, r->R, MM_F32, r->scratch, r->p);
        fwd_each(r, r->R, gelu_chunk, &mid[!i]);
    }
    return mid[0];
}

/* Of rows x. Always in f32: a rounded logit may choose another expert. */
static void run_router(const fwd_rows *r, const model_layer *l, const float *x)
{
    const arch_config *c = r->c;
    const int64_t W = c->route ? c->route : c->hidden;
    if (c->route) x = enter_router(r, l);
    mm_out outs[] = { fwd_out(&l->lin[R_ROUTER], r->scores, arch_router_rows(c), false),
                      fwd_out(&l->lin[R_SHARED_ROUTER], r->shared_share, 1, false) };
    mm_run(outs, l->lin[R_SHARED_ROUTER].present ? 2 : 1, x, W, r->R, MM_F32, r->scratch, r->p);
    fwd_each(r, r->R, choose_rows, l);
}

/* ---- rows by expert ---- */

static void place_rows(const moe *m)
{
    const fwd_rows *r = m->r;
    const int64_t E = arch_choices(r->c), k = r->c->experts_used;
    memset(m->first, 0, (size_t)(E + 1) * sizeof *m->first);
    for (int64_t i = 0; i < r->R * k; i++)
        m->first[r->chosen[i] + 1]++;
    for (int64_t e = 0; e < E; e++) {
        m->next[e] = m->first[e];
        m->first[e + 1] += m->first[e];
    }
    for (int64_t i = 0; i < r->R * k; i++) {
        int32_t at = m->next[r->chosen[i]]++;
        r->place[i] = at;
        r->sent[at] = (int32_t)(i / k);
    }
}

static void add_job(moe *m, const float *x, int64_t ldx, int64_t M, const int32_t *rows, int n_outs)
{
    m->jobs[m->n_jobs++] = (mm_job){ x, ldx, M, rows, m->outs + m->n_outs - n_outs, n_outs };
}

static void add_out(moe *m, const model_linear *l, float *y, int64_t ldy, bool add)
{
    m->outs[m->n_outs++] = fwd_out(l, y, ldy, add);
}

static void run_jobs(moe *m)
{
    const fwd_rows *r = m->r;
    int here = 0;
    for (int i = 0; i < m->n_jobs; i++)
        if (!r->offload || !fwd_offload_products(r->offload, &m->jobs[i]))
            m->jobs[here++] = m->jobs[i];
    mm_run_jobs(m->jobs, here, r->acts, r->scratch, r->p);
    m->n_jobs = m->n_outs = 0;
}

/* The experts' linears of a role, or NULL. */
static const model_linear *experts(const moe *m, arch_role role)
{
    const model_linear *e = m->l->expert[role - R_EXPERT_GATE];
    return e && e->present ? e : NULL;
}

static void tap_expert(const moe *m, arch_role role, int64_t e, const float *x, int64_t ldx,
                       int64_t K)
{
    const fwd_tap *tap = m->r->tap;
    const int64_t n = m->first[e + 1] - m->first[e];
    if (tap && n && experts(m, role)) tap->tap(tap->user, role, e, x, ldx, n, K);
}

/* What experts read, [R, arch_expert_width]. */
static const float *read_by_experts(const fwd_rows *r)
{
    return r->c->latent ? r->latent_in : r->h;
}

/* The rows that experts read, put together where their outputs will be. */
static void gather_inputs(const moe *m)
{
    const fwd_rows *r = m->r;
    const int64_t H = arch_expert_width(r->c), k = r->c->experts_used;
    for (int64_t i = 0; i < r->R * k; i++) {
        float *x = r->expert_out + r->place[i] * H;
        memcpy(x, read_by_experts(r) + i / k * H, (size_t)H * sizeof(float));
        if (r->c->w.share_in) k_scale(x, r->share[i], H);
    }
}

/* What gate and up read. */
static void tap_inputs(const moe *m)
{
    const fwd_rows *r = m->r;
    const int64_t H = r->c->hidden, W = arch_expert_width(r->c);
    if (r->tap || r->c->w.share_in) gather_inputs(m);
    if (!r->tap) return;
    fwd_tap_rows(r, R_ROUTER, read_by_experts(r), W, W); /* all of what is sent to experts */
    for (int64_t e = 0; e < r->c->experts; e++)
        for (arch_role role = R_EXPERT_GATE; role <= R_EXPERT_GATE_UP; role++)
            tap_expert(m, role, e, r->expert_out + m->first[e] * W, W, W);
    for (arch_role role = R_SHARED_GATE; role <= R_SHARED_GATE_UP; role++)
        if (m->l->lin[role].present) fwd_tap_rows(r, role, r->h, H, H);
}

static bool joins(const moe *m, const model_linear *gate, const model_linear *up)
{
    return mm_gates(&gate->w, &up->w, m->r->acts);
}
static bool all_join(const moe *m)
{
    const arch_config *c = m->r->c;
    const model_linear *gate = experts(m, R_EXPERT_GATE), *up = experts(m, R_EXPERT_UP),
                       *lin = m->l->lin;
    bool all = gate && up && !lin[R_SHARED_GATE_UP].present &&
               (!c->shared_ffn || joins(m, &lin[R_SHARED_GATE], &lin[R_SHARED_UP]));
    for (int64_t e = 0; e < c->experts && all; e++)
        all = m->first[e] == m->first[e + 1] || joins(m, &gate[e], &up[e]);
    return all;
}

/* Of routed experts; shared ones have the model's. */
k_act_fn fwd_experts_act(const arch_config *c)
{
    return c->w.limit_experts && c->act_limit > 0 ? ACT_SILU_LIMITED : (k_act_fn)c->act;
}

/* y [n][2 F] of rows of x [ldx]: activated, or [gate, up], or up alone. */
static void add_gate(moe *m, const model_linear *gate, const model_linear *up, k_act_fn f,
                     float limit, float *y, int64_t F, const float *x, int64_t ldx, int64_t n,
                     const int32_t *rows)
{
    const arch_config *c = m->r->c;
    if (c->w.mlp == MLP_PLAIN) {
        add_out(m, up, y, 2 * F, false);
        add_job(m, x, ldx, n, rows, 1);
        return;
    }
    add_out(m, gate, y, 2 * F, false);
    if (m->joined) {
        mm_out *o = &m->outs[m->n_outs - 1];
        o->up = &up->w;
        o->up_bias = up->bias;
        o->act = f;
        o->limit = limit;
    } else {
        add_out(m, up, y + F, 2 * F, false);
    }
    add_job(m, x, ldx, n, rows, m->joined ? 1 : 2);
}

/* expert_in = [gate, up], or [gate up gate up ...], of each place; shared_in of each row; joined:
 * activated. */
static void run_in(moe *m)
{
    const fwd_rows *r = m->r;
    const arch_config *c = r->c;
    const int64_t F = c->expert_ffn, S = c->shared_ffn, W = arch_expert_width(c);
    const model_linear *gate = experts(m, R_EXPERT_GATE), *up = experts(m, R_EXPERT_UP),
                       *fused = experts(m, R_EXPERT_GATE_UP);
    for (int64_t e = 0; e < c->experts; e++) {
        const int64_t from = m->first[e], n = m->first[e + 1] - from;
        float *y = r->expert_in + from * 2 * F;
        /* Scaled by their shares, rows are already in their places. */
        const float *x = c->w.share_in ? r->expert_out + from * W : read_by_experts(r);
        const int32_t *rows = c->w.share_in ? NULL : r->sent + from;
        if (!n) continue;
        if (fused) {
            add_out(m, &fused[e], y, 2 * F, false);
            add_job(m, x, W, n, rows, 1);
        } else {
            add_gate(m, gate ? &gate[e] : NULL, &up[e], fwd_experts_act(c), r->expert_limit, y, F,
                     x, W, n, rows);
        }
    }
    if (m->l->lin[R_SHARED_GATE_UP].present) {
        add_out(m, &m->l->lin[R_SHARED_GATE_UP], r->shared_in, 2 * S, false);
        add_job(m, r->h, c->hidden, r->R, NULL, 1);
    } else if (S) {
        add_gate(m, &m->l->lin[R_SHARED_GATE], &m->l->lin[R_SHARED_UP], (k_act_fn)c->act,
                 r->mlp_limit, r->shared_in, S, r->h, c->hidden, r->R, NULL);
    }
    run_jobs(m);
}

static void act_row(const arch_config *c, k_act_fn f, float limit, float *x, int64_t n, bool mixed)
{
    if (c->w.mlp == MLP_PLAIN)
        k_act(x, n, f);
    else if (mixed)
        fwd_act_mixed(x, n, f, limit);
    else
        k_act_mul(x, x, x + n, n, f, limit);
}

/* Places, and behind them the rows of the shared MLP. Its sigmoid is taken before its last matrix,
 * which is linear, and so stands in one sum with the residual. */
static void act_rows(const fwd_rows *r, int64_t row, int64_t n, const void *arg)
{
    const moe *m = arg;
    const arch_config *c = r->c;
    const model_layer *l = m->l;
    const int64_t places = m->first[c->experts], F = c->expert_ffn, S = c->shared_ffn;
    const bool mixed = c->w.gate_up_mixed && l->expert[R_EXPERT_GATE_UP - R_EXPERT_GATE];
    for (int64_t i = row; i < row + n; i++) {
        if (i < places) {
            if (!m->joined)
                act_row(c, fwd_experts_act(c), r->expert_limit, r->expert_in + i * 2 * F, F, mixed);
            continue;
        }
        float *x = r->shared_in + (i - places) * 2 * S;
        if (!m->joined) act_row(c, (k_act_fn)c->act, r->mlp_limit, x, S, c->w.mlp_mixed);
        if (l->lin[R_SHARED_ROUTER].present) k_scale(x, r->shared_share[i - places], S);
        for (int64_t e = 0; e < c->shared_experts; e++)
            k_scale(x + e * F, r->shared_share[(i - places) * c->shared_experts + e], F);
        if (c->shared_scale != 1) k_scale(x, (float)c->shared_scale, S);
    }
}

/* Of what experts put out, this process's columns. */
typedef struct {
    int64_t from, to;
} columns;
static columns expert_columns(const fwd_rows *r)
{
    const model_part *p = r->parts ? r->parts->part : NULL;
    const part_cuts *x = !p ? NULL : r->c->latent ? &p->latent : &p->hidden;
    return x ? (columns){ x->at[p->rank], x->at[p->rank + 1] }
             : (columns){ 0, arch_expert_width(r->c) };
}

/* What the last matrices read, of all processes. */
typedef struct {
    const float *expert, *shared;
    int64_t ld, ld_shared;
} read_by_down;
static read_by_down inputs_of_down(const fwd_rows *r)
{
    const arch_config *c = r->c;
    read_by_down in = { r->expert_in, r->shared_in, 2 * c->expert_ffn, 2 * c->shared_ffn };
    if (!r->parts) return in;
    const model_part *p = r->parts->part;
    const int64_t F = p->whole->expert_ffn, S = p->whole->shared_ffn;
    fwd_put_together(r, r->parts->wide, F, in.expert, in.ld, r->R * c->experts_used,
                     &p->expert_ffn);
    if (S) fwd_put_together(r, r->parts->shared, S, in.shared, in.ld_shared, r->R, &p->shared_ffn);
    return (read_by_down){ r->parts->wide, r->parts->shared, F, S };
}

/* What the processes have put out, beside each other. */
static void join_outputs(const fwd_rows *r)
{
    if (!r->parts) return;
    const model_part *p = r->parts->part;
    const int64_t H = r->c->hidden, W = r->c->latent;
    if (W)
        fwd_put_together(r, r->latent_sum, W, r->latent_sum + p->latent.at[p->rank], W, r->R,
                         &p->latent);
    if (!W || r->c->shared_ffn)
        fwd_put_together(r, r->out, H, r->out + p->hidden.at[p->rank], H, r->R, &p->hidden);
}

/* One of several shared experts, to out, which the others add to as well. */
static void run_shared(const moe *m, int64_t e)
{
    const fwd_rows *r = m->r;
    const arch_config *c = r->c;
    const int64_t F = c->expert_ffn, H = c->hidden, ld = 2 * c->shared_ffn;
    const model_linear *all = &m->l->lin[R_SHARED_DOWN];
    const float *x = r->shared_in + e * F;
    mm_weight own = all->w;
    own.N = H;
    tiles_rows(&own.t, &all->w.t, e * H, (e + 1) * H);
    fwd_tap_rows(r, R_SHARED_DOWN, x, ld, F);
    const mm_out o = { .w = &own, .y = r->out, .ldy = H, .add = true };
    mm_run(&o, 1, x, ld, r->R, r->acts, r->scratch, r->p);
}

static void run_down(moe *m)
{
    const fwd_rows *r = m->r;
    const arch_config *c = r->c;
    const int64_t H = c->hidden, W = arch_expert_width(c);
    const columns own = expert_columns(r);
    const read_by_down in = inputs_of_down(r);
    const model_linear *down = experts(m, R_EXPERT_DOWN);
    for (int64_t e = 0; e < c->experts; e++) {
        const int64_t from = m->first[e], n = m->first[e + 1] - from;
        const float *x = in.expert + from * in.ld;
        if (!n) continue;
        tap_expert(m, R_EXPERT_DOWN, e, x, in.ld, c->expert_ffn);
        add_out(m, &down[e], r->expert_out + from * W + own.from, W, false);
        add_job(m, x, in.ld, n, NULL, 1);
    }
    if (c->shared_ffn && !c->shared_experts) {
        const int64_t at = r->parts ? r->parts->part->hidden.at[r->parts->part->rank] : 0;
        fwd_tap_rows(r, R_SHARED_DOWN, in.shared, in.ld_shared, c->shared_ffn);
        add_out(m, &m->l->lin[R_SHARED_DOWN], r->out + at, H, true);
        add_job(m, in.shared, in.ld_shared, r->R, NULL, 1);
    }
    run_jobs(m);
    for (int64_t e = 0; e < c->shared_experts; e++)
        run_shared(m, e);
}

/* What experts without tensors put out. */
static void pass_on(const fwd_rows *r, int64_t row, int64_t n, const void *arg)
{
    const moe *m = arg;
    const int64_t W = arch_expert_width(r->c), from = m->first[r->c->experts];
    for (int64_t i = from + row; i < from + row + n; i++)
        memcpy(r->expert_out + i * W, read_by_experts(r) + m->r->sent[i] * W,
               (size_t)W * sizeof *r->expert_out);
}

/* out, or what the latents are summed in, += the shares of the chosen experts' outputs, by rising
 * expert. */
static void join_rows(const fwd_rows *r, int64_t row, int64_t n, const void *arg)
{
    enum { AT_ONCE = 256 };
    const int64_t H = arch_expert_width(r->c), k = r->c->experts_used;
    const columns own = expert_columns(r);
    float *out = r->c->latent ? r->latent_sum : r->out;
    (void)arg;
    for (int64_t t = row; t < row + n; t++)
        for (int64_t from = own.from; from < own.to; from += AT_ONCE) {
            float sum[AT_ONCE] = { 0 };
            const int64_t here = own.to - from < AT_ONCE ? own.to - from : AT_ONCE;
            for (int64_t i = 0; i < k; i++) {
                const float *y = r->expert_out + r->place[t * k + i] * H + from;
                const float share = r->c->w.share_in ? 1 : r->share[t * k + i];
                for (int64_t j = 0; j < here; j++)
                    sum[j] += share * y[j];
            }
            k_add(out + t * H + from, sum, here);
        }
}

/* h through the experts that the rows have been given, to out. */
static void run_experts(const fwd_rows *r, const model_layer *l)
{
    const int64_t E = arch_choices(r->c) + 1;
    const size_t mark = lq_arena_mark(r->scratch);
    moe m = { .r = r, .l = l };
    m.first = lq_push(r->scratch, (size_t)E * sizeof *m.first);
    m.next = lq_push(r->scratch, (size_t)E * sizeof *m.next);
    m.jobs = lq_push(r->scratch, (size_t)E * sizeof *m.jobs);
    m.outs = lq_push(r->scratch, (size_t)(2 * E) * sizeof *m.outs);
    place_rows(&m);
    tap_inputs(&m);
    m.joined = !r->offload && all_join(&m);
    run_in(&m);
    const int64_t places = m.first[r->c->experts];
    if (!m.joined || r->c->shared_ffn)
        fwd_each(r, places + (r->c->shared_ffn ? r->R : 0), act_rows, &m);
    run_down(&m);
    if (l->vec[R_EXPERT_OUT_NORM].w)
        r->ops->norm(r, r->expert_out, r->expert_out, &l->vec[R_EXPERT_OUT_NORM], places,
                     arch_expert_width(r->c));
    fwd_each(r, r->R * r->c->experts_used - places, pass_on, &m);
    fwd_each(r, r->R, join_rows, NULL);
    join_outputs(r);
    lq_arena_reset(r->scratch, mark);
}

static void add_bias(const fwd_rows *r, int64_t row, int64_t n, const void *arg)
{
    const float *bias = arg;
    for (int64_t t = row; t < row + n; t++)
        k_add(r->out + t * r->c->hidden, bias, r->c->hidden);
}

void fwd_run_moe(const fwd_rows *r, const model_layer *l)
{
    const int64_t H = r->c->hidden, W = r->c->latent;
    const mm_out in = fwd_out(&l->lin[R_LATENT_IN], r->latent_in, W, false),
                 out = fwd_out(&l->lin[R_LATENT_OUT], r->out, H, true);
    pool_stage(r->p, STAGE_EXPERTS);
    run_router(r, l, r->c->row->early ? r->beside : r->h);
    if (l->vec[R_EXPERTS_BIAS].w) fwd_each(r, r->R, add_bias, l->vec[R_EXPERTS_BIAS].w);
    if (!W) {
        run_experts(r, l);
        return;
    }
    memset(r->latent_sum, 0, (size_t)(r->R * W) * sizeof *r->latent_sum);
    mm_run(&in, 1, r->h, H, r->R, r->acts, r->scratch, r->p);
    r->ops->norm(r, r->latent_in, r->latent_in, &l->vec[R_LATENT_NORM], r->R, W);
    run_experts(r, l);
    mm_run(&out, 1, r->latent_sum, W, r->R, r->acts, r->scratch, r->p);
}

/* ---- beside the MLP ---- */

static void norm_to(const fwd_rows *r, float *dst, const float *x, const model_vector *v, int64_t T)
{
    const int64_t H = r->c->hidden;
    k_rmsnorm(dst, H, x, H, v->w, v->offset, T, H, v->eps);
}

/* What router and experts read: norms of x. */
static void enter_rows(const fwd_rows *r, int64_t row, int64_t n, const void *arg)
{
    const model_layer *l = arg;
    const int64_t H = r->c->hidden, at = row * H;
    norm_to(r, r->y + at, r->y + at, &l->vec[R_DENSE_POST_NORM], n);
    norm_to(r, r->beside + at, r->x + at, &l->vec[R_ROUTER_NORM], n);
    k_scale(r->beside + at, (float)pow((double)H, -0.5), n * H);
    norm_to(r, r->h + at, r->x + at, &l->vec[R_EXPERT_NORM], n);
}

static void leave_rows(const fwd_rows *r, int64_t row, int64_t n, const void *arg)
{
    const model_layer *l = arg;
    const int64_t H = r->c->hidden, at = row * H;
    norm_to(r, r->beside + at, r->beside + at, &l->vec[R_EXPERT_POST_NORM], n);
    k_add(r->y + at, r->beside + at, n * H);
}

/* Experts read what the MLP read. */
static void run_shortcut(const fwd_rows *r, const model_layer *l)
{
    fwd_rows own = *r;
    own.out = r->streams;
    memset(own.out, 0, (size_t)(r->R * r->c->hidden) * sizeof *own.out);
    run_router(r, l, r->h);
    run_experts(&own, l);
}

/* Experts read x as it was before attention. */
static void norm_early(const fwd_rows *r, int64_t row, int64_t n, const void *arg)
{
    const model_layer *l = arg;
    const int64_t at = row * r->c->hidden;
    norm_to(r, r->h + at, r->beside + at, &l->vec[R_EXPERT_NORM], n);
}

static void run_early(const fwd_rows *r, const model_layer *l)
{
    fwd_each(r, r->R, norm_early, l);
    run_router(r, l, r->h);
    run_experts(r, l);
}

static void take_up(const fwd_rows *r, int64_t row, int64_t n, const void *arg)
{
    const int64_t H = r->c->hidden;
    (void)arg;
    k_add(r->x + row * H, r->streams + row * H, n * H);
}
void fwd_end_shortcut(const fwd_rows *r) { fwd_each(r, r->R, take_up, NULL); }

void fwd_run_beside(const fwd_rows *r, const model_layer *l)
{
    fwd_rows own = *r;
    pool_stage(r->p, STAGE_EXPERTS);
    if (r->c->w.shortcut) {
        run_shortcut(r, l);
        return;
    }
    if (r->c->row->early) {
        run_early(r, l);
        return;
    }
    fwd_each(r, r->R, enter_rows, l);
    run_router(r, l, r->beside);
    own.out = r->beside;
    memset(own.out, 0, (size_t)(r->R * r->c->hidden) * sizeof *own.out);
    run_experts(&own, l);
    fwd_each(r, r->R, leave_rows, l);
}
