/* runtime/forward/forward_mixer.c - layers that carry a state along a sequence (arch_mixer), on the CPU.
 *
 *   mix = products of h by R_MIX_IN, R_MIX_GATE and those of b and a, side by side, in parts times
 *         mix_scale; R_MIX_GATE_UP's and R_MIX_A_UP's are of what their _DOWN made
 *   MIX_DELTA   q, k, v = silu(conv(mix's)); q, k of each head to length 1, q / sqrt(mix_key)
 *               beta = sigmoid(b), decay = exp(-exp(a_log) softplus(a + dt))
 *               out = norm(scan) silu(gate), or a sigmoid of it, head by head
 *   MIX_KDA     the same with a decay for each dim of a key (arch_config.decay_span), a sigmoid as gate
 *   MIX_MAMBA   x, B, C = silu(conv(mix's)); dt = softplus(dt + its bias), decay = exp(-exp(a_log) dt)
 *               out = norm((scan + skip x) silu(gate)) mix_out_scale, group by group
 *   MIX_SELECT  x = silu(conv(x)); step, B, C = norms of x's products by R_MIX_X;
 *               step = softplus(R_MIX_STEP step + its bias); out = (scan + skip x) silu(gate)
 *   MIX_LRU     x = conv(x); what is kept and what comes in: forward_lru.c; out = scan act(gate)
 *   MIX_LIGHTNING q, k, v = silu(mix's); out = norm(scan) sigmoid(gate), of all heads together
 *   MIX_CONV    out = c conv(b x)
 *
 * (arXiv:2412.06464, arXiv:2510.26692, arXiv:2405.21060, arXiv:2312.00752; scan and conv: kernels/scan.h.) Work on rows is split as elsewhere; along a
 * sequence work is split by channels and by SCAN_LANES values of a head, and each such piece goes from
 * position to position by itself, so that neither threads nor chunks show in the result. */
#include "runtime/forward/forward_mix.h"

#include "kernels/scan.h"
#include "runtime/model/kv_state.h"

/* Positions that all pieces of a head go through before the next: the second cache holds their q and k. */
enum { SCAN_ROWS = 256 };

static bool is_delta(const arch_config *c)
{
    return c->row->mixer == MIX_DELTA || c->row->mixer == MIX_KDA;
}

/* ---- where things are ---- */

/* What a row of r->mix has of the gate, or of the decays. */
static const float *part_of(const fwd_rows *r, int64_t t, arch_role one, arch_role up)
{
    return r->mix + t * mix_width(r) + mix_at(r, mix_has(r, up) ? up : one);
}

/* A part of head h in a row of R_MIX_IN or R_MIX_BA that is mixed: of each key head `before` of its
 * group's, then those of its values, n each. */
static int64_t mixed_at(const arch_config *c, int64_t h, int64_t group_rows, int64_t before,
                        int64_t n)
{
    const int64_t of = c->mix_heads / c->mix_groups;
    return h / of * group_rows + before + h % of * n;
}

/* ---- products ---- */

/* The second of two small matrices, over what the first made. */
static void run_up(const fwd_rows *r, const model_layer *l, arch_role down, arch_role up)
{
    const int64_t W = mix_width(r);
    const mm_out o = fwd_out(&l->lin[up], r->mix + mix_at(r, up), W, false);
    const float *x = r->mix + mix_at(r, down);
    if (!l->lin[up].present) return;
    mm_run(&o, 1, x, W, r->R, arch_role_exact(up) ? MM_F32 : r->acts, r->scratch, r->p);
}

void fwd_mix_in(const fwd_rows *r, const model_layer *l, int64_t layer)
{
    enum { MOST = R_MIX_A_UP - R_MIX_IN + 1 };
    const arch_config *c = r->c;
    const int64_t W = mix_width(r);
    mm_out outs[MOST], exact[MOST];
    int n = 0, n_exact = 0;
    (void)layer;
    for (arch_role role = R_MIX_IN; role <= R_MIX_A_UP; role++) {
        const model_linear *lin = &l->lin[role];
        if (!lin->present || role == R_MIX_GATE_UP || role == R_MIX_A_UP) continue;
        fwd_tap_rows(r, role, r->h, c->hidden, c->hidden);
        const mm_out o = fwd_out(lin, r->mix + mix_at(r, role), W, false);
        if (arch_role_exact(role))
            exact[n_exact++] = o;
        else
            outs[n++] = o;
    }
    pool_stage(r->p, STAGE_QKV);
    r->ops->products(r, outs, n, r->h, c->hidden, r->R);
    /* A rounding of a decay stays in the state. */
    if (n_exact) mm_run(exact, n_exact, r->h, c->hidden, r->R, MM_F32, r->scratch, r->p);
    run_up(r, l, R_MIX_GATE_DOWN, R_MIX_GATE_UP);
    run_up(r, l, R_MIX_A_DOWN, R_MIX_A_UP);
}

/* States that are run at once. */
typedef struct {
    const fwd_rows *r;
    const model_layer *l;
    int64_t state; /* where the layer's begins in a sequence's */
    const fwd_seq_state *states;
    int64_t pieces; /* of each */
    mix_view v;
    int64_t from; /* of each sequence's rows these: up to SCAN_ROWS */
} along;

/* ---- rows before the convolution ---- */

/* From [q, k, values, gates where not apart] of each key head to all q, all k, all values. */
static void unmix(const fwd_rows *r, int64_t t)
{
    const arch_config *c = r->c;
    const int64_t K = c->mix_key, G = c->mix_groups, V = c->mix_heads / G * c->mix_value;
    const float *from = r->mix + t * mix_width(r);
    float *to = r->mix_conv + t * fwd_mix_channels(c);
    const int64_t step = mix_has(r, R_MIX_GATE) ? 2 * K + V : 2 * (K + V);
    for (int64_t g = 0; g < G; g++, from += step) {
        memcpy(to + g * K, from, (size_t)K * sizeof *to);
        memcpy(to + (G + g) * K, from + K, (size_t)K * sizeof *to);
        memcpy(to + 2 * G * K + g * V, from + 2 * K, (size_t)V * sizeof *to);
    }
}

/* The parts of R_MIX_IN's output, which have a factor each. */
static void scale_parts(const arch_config *c, float *x)
{
    const int64_t n = arch_mix_width(c, c->row->mixer), keys = c->mix_groups * c->mix_key;
    const int64_t width[] = { n, n, keys, keys, c->mix_heads };
    for (size_t i = 0; i < LQ_COUNT(width); x += width[i++])
        if (c->mix_scale[i] != 1) k_scale(x, (float)c->mix_scale[i], width[i]);
}

/* From x, gate, x, gate to all of x, then all gates. */
static void take_turns(const fwd_rows *r, int64_t t)
{
    const int64_t n = arch_mix_width(r->c, MIX_SELECT);
    float *x = r->mix + t * mix_width(r), *gate = r->mix_out + t * n;
    for (int64_t i = 0; i < n; i++) {
        gate[i] = x[2 * i + 1];
        x[i] = x[2 * i];
    }
    memcpy(x + n, gate, (size_t)n * sizeof *x);
}

static void before_conv(const fwd_rows *r, int64_t row, int64_t n, const void *arg)
{
    const arch_config *c = r->c;
    const int64_t W = mix_width(r), H = c->hidden;
    (void)arg;
    for (int64_t t = row; t < row + n; t++) {
        float *x = r->mix + t * W;
        if (c->w.mix_mixed) unmix(r, t);
        if (c->w.mix_turns) take_turns(r, t);
        if (mix_is_mamba(c)) scale_parts(c, x);
        if (c->row->mixer == MIX_LIGHTNING)
            k_act(r->mix_conv + t * fwd_mix_channels(c), fwd_mix_channels(c), ACT_SILU);
        for (int64_t i = 0; c->row->mixer == MIX_CONV && i < H; i++)
            x[i] *= x[2 * H + i];
    }
}

/* ---- rows between convolution and scan ---- */

/* q and k to length 1, q / sqrt(mix_key) besides. */
static void to_unit(const arch_config *c, float *x, bool query)
{
    const float K = (float)c->mix_key, root = 1 / sqrtf(K);
    for (int64_t g = 0; g < c->mix_groups; g++, x += c->mix_key) {
        k_rmsnorm(x, c->mix_key, x, c->mix_key, NULL, 0, 1, c->mix_key, MIX_L2_EPS / K);
        k_scale(x, query ? root * root : root, c->mix_key);
    }
}

/* x = exp(rate softplus(x + dt)), [n] */
static void to_decays(float *x, const float *dt, const float *rate, int64_t n)
{
    k_softplus(x, dt, n);
    for (int64_t i = 0; i < n; i++)
        x[i] *= rate[i];
    k_exp_minus(x, x, 0, n);
}

static void delta_row(const fwd_rows *r, const model_layer *l, int64_t t)
{
    const arch_config *c = r->c;
    const int64_t H = c->mix_heads, of = H / c->mix_groups;
    const float *mix = r->mix + t * mix_width(r), *ba = mix + mix_at(r, R_MIX_BA),
                *b = mix + mix_at(r, R_MIX_B), *a = mix + mix_at(r, R_MIX_A);
    const bool mixed = mix_has(r, R_MIX_BA);
    float *beta = r->mix_beta + t * H, *decay = r->decay + t * H;
    for (int64_t h = 0; h < H; h++) {
        beta[h] = mixed ? ba[mixed_at(c, h, 2 * of, 0, 1)] : b[h];
        decay[h] = mixed ? ba[mixed_at(c, h, 2 * of, of, 1)] : a[h];
    }
    mix_to_sigmoids(beta, c->w.mix_beta_2 ? 2 : 1, H);
    to_decays(decay, l->vec[R_MIX_DT].w, l->vec[R_MIX_A_LOG].w, H);
}

static void kda_row(const fwd_rows *r, const model_layer *l, int64_t t)
{
    const arch_config *c = r->c;
    const int64_t H = c->mix_heads, K = c->mix_key;
    const float *a = part_of(r, t, R_MIX_A, R_MIX_A_UP), *dt = l->vec[R_MIX_DT].w;
    const float span = (float)c->decay_span;
    float *beta = r->mix_beta + t * H;
    memcpy(beta, r->mix + t * mix_width(r) + mix_at(r, R_MIX_B), (size_t)H * sizeof *beta);
    mix_to_sigmoids(beta, 1, H);
    for (int64_t h = 0; h < H; h++) {
        const float rate = l->vec[R_MIX_A_LOG].w[h];
        float *decay = r->decay + (t * H + h) * K;
        memcpy(decay, a + h * K, (size_t)K * sizeof *decay);
        if (span > 0) {
            for (int64_t i = 0; i < K; i++)
                decay[i] = -rate * (decay[i] + dt[h * K + i]);
            mix_to_sigmoids(decay, -span, K);
        } else {
            k_softplus(decay, dt + h * K, K);
            k_scale(decay, rate, K);
        }
        k_exp_minus(decay, decay, 0, K);
    }
}

static void mamba_row(const fwd_rows *r, const model_layer *l, int64_t t)
{
    const arch_config *c = r->c;
    const int64_t H = c->mix_heads;
    const float min = (float)c->dt_min, max = (float)c->dt_max, *rate = l->vec[R_MIX_A_LOG].w;
    float *step = r->mix_beta + t * H, *decay = r->decay + t * H;
    memcpy(step, r->mix + t * mix_width(r) + mix_at(r, R_MIX_GATE) - H, (size_t)H * sizeof *step);
    k_softplus(step, l->vec[R_MIX_DT].w, H);
    for (int64_t h = 0; h < H; h++) {
        step[h] = step[h] < min ? min : max > 0 && step[h] > max ? max : step[h];
        decay[h] = rate[h] * step[h];
    }
    k_exp_minus(decay, decay, 0, H);
}

/* The decays are the same for each row; those of the run's first are made before. */
static void lightning_row(const fwd_rows *r, int64_t t, int64_t first)
{
    const int64_t H = r->c->mix_heads;
    for (int64_t h = 0; h < H; h++)
        r->mix_beta[t * H + h] = 1;
    if (t > first) memcpy(r->decay + t * H, r->decay + first * H, (size_t)H * sizeof *r->decay);
}

/* Of MIX_SELECT: a time step for each channel, in the place of decays. */
static void select_row(const fwd_rows *r, const model_layer *l, int64_t t)
{
    const int64_t n = arch_mix_decays(r->c);
    k_softplus(r->decay + t * n, l->vec[R_MIX_DT].w, n);
}

/* step, B and C of a row, side by side, normed where the model has norms. */
static void norm_select(const fwd_rows *r, int64_t row, int64_t n, const void *arg)
{
    const arch_config *c = r->c;
    const along *a = arg;
    const int64_t width[] = { c->mix_rank, c->mix_key, c->mix_key };
    const float eps = mix_norm_eps(c);
    for (int64_t t = a->states->row0 + row; n > 0; t++, n--) {
        float *x = r->mix + t * a->v.ld + mix_at(r, R_MIX_X);
        for (int i = 0; i < 3; x += width[i++]) {
            const float *w = a->l->vec[R_MIX_STEP_NORM + i].w;
            if (w) k_rmsnorm(x, width[i], x, width[i], w, 0, 1, width[i], eps);
        }
    }
}

/* Numbers of R_MIX_X's that a head has. */
static int64_t select_span(const arch_config *c) { return c->mix_rank + 2 * c->mix_key; }

/* The same of heads that have matrices of their own. */
static void run_select_heads(const along *a, int64_t R)
{
    fwd_rows r = *a->r;
    const arch_config *c = r.c;
    const int64_t H = c->mix_heads, V = c->mix_value, span = select_span(c);
    float *x = r.mix + a->states->row0 * a->v.ld, *parts = x + mix_at(&r, R_MIX_X);
    r.R = R;
    fwd_head_products(&r, a->l->mix_x, H, parts, a->v.ld, span, x, a->v.ld, V);
    fwd_head_products(&r, a->l->mix_step, H, r.decay + a->states->row0 * H * V, H * V, V, parts,
                      a->v.ld, span);
}

/* R rows of x to step, B and C. In f32: a rounding of a step stays in the state. */
static void run_select(const along *a, int64_t R)
{
    const fwd_rows *r = a->r;
    const arch_config *c = r->c;
    if (a->l->mix_x) {
        run_select_heads(a, R);
        return;
    }
    const int64_t at = mix_at(r, R_MIX_X), D = arch_mix_decays(c);
    float *x = r->mix + a->states->row0 * a->v.ld, *step = r->decay + a->states->row0 * D;
    const mm_out parts = fwd_out(&a->l->lin[R_MIX_X], x + at, a->v.ld, false),
                 steps = fwd_out(&a->l->lin[R_MIX_STEP], step, D, false);
    mm_run(&parts, 1, x, a->v.ld, R, MM_F32, r->scratch, r->p);
    fwd_each(r, R, norm_select, a);
    mm_run(&steps, 1, x + at, a->v.ld, R, MM_F32, r->scratch, r->p);
}

static void before_scan(const fwd_rows *r, int64_t row, int64_t n, const void *arg)
{
    const mix_view v = mix_view_of(r);
    const along *a = arg;
    const int64_t row0 = a->states->row0; /* the first of these */
    if (r->c->row->mixer == MIX_LRU) {
        fwd_lru_rows(r, a->l, row0 + row, n);
        return;
    }
    for (int64_t t = row0 + row; t < row0 + row + n; t++) {
        if (mix_is_mamba(r->c) || r->c->row->mixer == MIX_SELECT) {
            (mix_is_mamba(r->c) ? mamba_row : select_row)(r, a->l, t);
            continue;
        }
        if (r->c->row->mixer == MIX_LIGHTNING) {
            lightning_row(r, t, row0);
            continue;
        }
        to_unit(r->c, v.x + t * v.ld + v.q, true);
        to_unit(r->c, v.x + t * v.ld + v.k, false);
        if (r->c->row->mixer == MIX_KDA)
            kda_row(r, a->l, t);
        else
            delta_row(r, a->l, t);
    }
}

/* ---- along the sequences ---- */

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/* SCAN_LANES values of a head. */
static void scan_piece(void *ctx, int64_t item, int thread)
{
    const along *a = ctx;
    const fwd_rows *r = a->r;
    const arch_config *c = r->c;
    const fwd_seq_state *s = &a->states[item / a->pieces];
    const int64_t H = c->mix_heads, V = c->mix_value, K = c->mix_key, piece = item % a->pieces;
    const int64_t blocks = lq_ceil_div(V, SCAN_LANES), h = piece / blocks,
                  lane = piece % blocks * SCAN_LANES, G = c->mix_groups,
                  g = c->w.mix_tiled ? h % G : h / (H / G);
    const int64_t block = K * SCAN_LANES, D = arch_mix_decays(c);
    float *S = s->run.state + a->state + kv_state_conv_floats(c) + piece * block;
    (void)thread;
    int mark = 0;
    const int64_t end = least(a->from + SCAN_ROWS, s->n_rows);
    for (int64_t at = a->from, to; at < end; at = to) {
        to = fwd_next_mark(s, &mark, at, end);
        const int64_t t = s->row0 + at;
        const float *x = a->v.x + t * a->v.ld;
        const k_scan_args k = { .S = S,
                                .T = to - at,
                                .K = K,
                                .lanes = (int)(V - lane < SCAN_LANES ? V - lane : SCAN_LANES),
                                .correct = is_delta(c),
                                .q = x + a->v.q + g * K,
                                .k = x + a->v.k + g * K,
                                .v = x + a->v.v + h * V + lane,
                                .ldq = a->v.ld,
                                .ldk = a->v.ld,
                                .ldv = a->v.ld,
                                .beta = r->mix_beta + t * H + h,
                                .decay = r->decay + t * D + h * (D / H),
                                .decay_step = D > H,
                                .ldb = H,
                                .ldd = D,
                                .out = r->mix_out + t * H * V + h * V + lane,
                                .ldo = H * V };
        k_scan(&k);
        fwd_copy_marked(s, mark, to, S, 1, block, block);
    }
}

/* SCAN_LANES channels. */
static void select_piece(void *ctx, int64_t item, int thread)
{
    const along *a = ctx;
    const fwd_rows *r = a->r;
    const arch_config *c = r->c;
    const fwd_seq_state *s = &a->states[item / a->pieces];
    const int64_t V = arch_mix_width(c, MIX_SELECT), K = c->mix_key, piece = item % a->pieces,
                  blocks = lq_ceil_div(c->mix_value, SCAN_LANES), h = piece / blocks,
                  in_head = piece % blocks * SCAN_LANES, left = c->mix_value - in_head,
                  lane = h * c->mix_value + in_head, block = K * SCAN_LANES;
    float *S = s->run.state + a->state + kv_state_conv_floats(c) + piece * block;
    (void)thread;
    int mark = 0;
    const int64_t end = least(a->from + SCAN_ROWS, s->n_rows);
    for (int64_t at = a->from, to; at < end; at = to) {
        to = fwd_next_mark(s, &mark, at, end);
        const int64_t t = s->row0 + at;
        const float *x = a->v.x + t * a->v.ld, *own = x + h * select_span(c);
        const k_select_args k = { .S = S,
                                  .T = to - at,
                                  .K = K,
                                  .lanes = (int)(left < SCAN_LANES ? left : SCAN_LANES),
                                  .rate = a->l->vec[R_MIX_A_LOG].w + lane,
                                  .ldr = V,
                                  .q = own + a->v.q,
                                  .k = own + a->v.k,
                                  .v = x + lane,
                                  .step = r->decay + t * V + lane,
                                  .ldq = a->v.ld,
                                  .ldk = a->v.ld,
                                  .ldv = a->v.ld,
                                  .lds = V,
                                  .out = r->mix_out + t * V + lane,
                                  .ldo = V };
        k_select(&k);
        fwd_copy_marked(s, mark, to, S, 1, block, block);
    }
}

/* The same: s = a s + x of each. */
static void lru_piece(void *ctx, int64_t item, int thread)
{
    const along *a = ctx;
    const fwd_rows *r = a->r;
    const arch_config *c = r->c;
    const fwd_seq_state *s = &a->states[item / a->pieces];
    const int64_t V = c->mix_value, lane = item % a->pieces * SCAN_LANES,
                  lanes = least(V - lane, SCAN_LANES);
    float *S = s->run.state + a->state + kv_state_conv_floats(c) + lane;
    (void)thread;
    int mark = 0;
    const int64_t end = least(a->from + SCAN_ROWS, s->n_rows);
    for (int64_t at = a->from, to; at < end; at = to) {
        to = fwd_next_mark(s, &mark, at, end);
        for (int64_t t = s->row0 + at; t < s->row0 + to; t++) {
            const float *x = a->v.x + t * a->v.ld + lane, *keep = r->decay + t * V + lane;
            for (int64_t i = 0; i < lanes; i++)
                S[i] = keep[i] * S[i] + x[i];
            memcpy(r->mix_out + t * V + lane, S, (size_t)lanes * sizeof *S);
        }
        fwd_copy_marked(s, mark, to, S, 1, SCAN_LANES, SCAN_LANES);
    }
}

/* ---- rows after it ---- */

/* x = x sigmoid(gate), [n] */
static void gate_by_sigmoid(float *x, const float *gate, int64_t n)
{
    enum { PIECE = 256 };
    float e[PIECE];
    for (int64_t at = 0, k; at < n; at += k) {
        k = n - at < PIECE ? n - at : PIECE;
        memcpy(e, gate + at, (size_t)k * sizeof *e);
        k_scale(e, -1, k);
        k_exp_minus(e, e, 0, k);
        for (int64_t i = 0; i < k; i++)
            x[at + i] /= 1 + e[i];
    }
}

static void delta_out(const fwd_rows *r, const model_layer *l, int64_t t)
{
    const arch_config *c = r->c;
    const int64_t H = c->mix_heads, V = c->mix_value, of = H / c->mix_groups;
    const float *mix = r->mix + t * mix_width(r), *gate = part_of(r, t, R_MIX_GATE, R_MIX_GATE_UP);
    const float eps = mix_norm_eps(c);
    float *out = r->mix_out + t * H * V;
    for (int64_t h = 0; h < H; h++, out += V) {
        const int64_t group = 2 * c->mix_key + 2 * of * V;
        const float *z =
            c->w.mix_mixed ? mix + mixed_at(c, h, group, 2 * c->mix_key + of * V, V) : gate + h * V;
        k_rmsnorm(out, V, out, V, l->vec[R_MIX_NORM].w, 0, 1, V, eps);
        if (c->row->mixer == MIX_KDA || c->w.mix_sigmoid)
            gate_by_sigmoid(out, z, V);
        else
            k_act_mul(out, z, out, V, ACT_SILU, 0);
    }
}

/* A norm of each group's values. */
static void norm_groups(const arch_config *c, float *x, const float *w)
{
    const int64_t n = arch_mix_width(c, c->row->mixer) / c->mix_groups;
    for (int64_t g = 0; g < c->mix_groups; g++)
        k_rmsnorm(x + g * n, n, x + g * n, n, w + g * n, 0, 1, n, mix_norm_eps(c));
}

static void lightning_out(const fwd_rows *r, const model_layer *l, int64_t t)
{
    const int64_t n = arch_mix_width(r->c, MIX_LIGHTNING);
    float *out = r->mix_out + t * n;
    k_rmsnorm(out, n, out, n, l->vec[R_MIX_NORM].w, 0, 1, n, mix_norm_eps(r->c));
    gate_by_sigmoid(out, r->mix + t * mix_width(r) + mix_at(r, R_MIX_GATE), n);
}

static void mamba_out(const fwd_rows *r, const model_layer *l, int64_t t)
{
    const arch_config *c = r->c;
    const int64_t n = arch_mix_width(c, c->row->mixer), V = c->mix_value;
    const float *gate = r->mix + t * mix_width(r), *x = gate + n, *w = l->vec[R_MIX_NORM].w,
                *skip = l->vec[R_MIX_SKIP].w;
    float *out = r->mix_out + t * n;
    for (int64_t h = 0; h * V < n; h++)
        for (int64_t i = h * V; i < (h + 1) * V; i++)
            out[i] += skip[h] * x[i];
    if (w && c->w.mix_norm_1st) norm_groups(c, out, w);
    k_act_mul(out, gate, out, n, ACT_SILU, 0);
    if (w && !c->w.mix_norm_1st) norm_groups(c, out, w);
    if (c->mix_out_scale != 1) k_scale(out, (float)c->mix_out_scale, n);
}

static void select_out(const fwd_rows *r, const model_layer *l, int64_t t)
{
    const int64_t n = arch_mix_width(r->c, MIX_SELECT);
    const float *x = r->mix + t * mix_width(r), *skip = l->vec[R_MIX_SKIP].w;
    float *out = r->mix_out + t * n;
    for (int64_t i = 0; i < n; i++)
        out[i] += skip[i] * x[i];
    k_act_mul(out, x + n, out, n, ACT_SILU, 0);
}

static void lru_out(const fwd_rows *r, int64_t t)
{
    const int64_t n = r->c->mix_value;
    const float *gate = r->mix + t * mix_width(r) + mix_at(r, R_MIX_GATE);
    k_act_mul(r->mix_out + t * n, gate, r->mix_out + t * n, n, (k_act_fn)r->c->act, 0);
}

static void conv_out(const fwd_rows *r, int64_t t)
{
    const int64_t H = r->c->hidden;
    const float *x = r->mix + t * mix_width(r);
    for (int64_t i = 0; i < H; i++)
        r->mix_out[t * H + i] = x[H + i] * x[i];
}

static void after_scan(const fwd_rows *r, int64_t row, int64_t n, const void *arg)
{
    const arch_mixer m = r->c->row->mixer;
    for (int64_t t = row; t < row + n; t++)
        if (m == MIX_CONV)
            conv_out(r, t);
        else if (m == MIX_LRU)
            lru_out(r, t);
        else if (m == MIX_SELECT)
            select_out(r, arg, t);
        else if (m == MIX_LIGHTNING)
            lightning_out(r, arg, t);
        else if (is_delta(r->c))
            delta_out(r, arg, t);
        else
            mamba_out(r, arg, t);
}

/* ---- all of it ---- */

static void run_along(const fwd_rows *r, const model_layer *l, int64_t layer, int64_t state,
                      int first, int n)
{
    const arch_config *c = r->c;
    const fwd_seq_state *last = &r->states[first + n - 1];
    along a = { r, l, state, r->states + first, 0, mix_view_of(r), 0 };
    const int64_t R = last->row0 + last->n_rows - a.states->row0;
    const arch_mixer m = c->row->mixer;
    const fwd_conv conv = { a.v.x,
                            a.v.ld,
                            a.v.channels,
                            l->vec[R_MIX_CONV].w,
                            l->vec[R_MIX_CONV].bias,
                            m != MIX_CONV && m != MIX_LRU,
                            state };
    if (m != MIX_LIGHTNING) fwd_conv_along(r, &conv, a.states, n);
    if (m == MIX_CONV) return;
    if (m == MIX_SELECT) run_select(&a, R);
    for (int64_t h = 0; h < c->mix_heads && m == MIX_LIGHTNING; h++)
        r->decay[a.states->row0 * c->mix_heads + h] = arch_lightning_decay(c, layer, h);
    fwd_each(r, R, before_scan, &a);
    a.pieces = c->mix_heads * lq_ceil_div(c->mix_value, SCAN_LANES);
    int64_t longest = 0;
    for (int i = 0; i < n; i++)
        longest = a.states[i].n_rows > longest ? a.states[i].n_rows : longest;
    for (; a.from < longest; a.from += SCAN_ROWS)
        pool_run(r->p, n * a.pieces,
                 m == MIX_SELECT ? select_piece
                 : m == MIX_LRU  ? lru_piece
                                 : scan_piece,
                 &a);
}

void fwd_mix(const fwd_rows *r, const model_layer *l, int64_t layer, const fwd_kv *kv)
{
    const size_t bytes = (size_t)kv_state_floats(r->c, layer) * sizeof(float);
    fwd_each(r, r->R, before_conv, NULL);
    if (!r->in_turn) run_along(r, l, layer, kv->state, 0, r->n_states);
    for (int i = 0; r->in_turn && i < r->n_states; i++) {
        memset(r->states[i].run.state, 0, bytes);
        run_along(r, l, layer, 0, i, 1);
    }
    fwd_each(r, r->R, after_scan, l);
}
