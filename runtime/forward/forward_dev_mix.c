/* runtime/forward/forward_dev_mix.c - layers with a state on a device (forward_mixer.c says what such a
 * layer does). */
#include "runtime/forward/forward_dev.h"
#include "runtime/forward/forward_mix.h"
#include "runtime/model/kv_state.h"

/* ---- decays that are fixed ---- */

size_t fwd_dev_fixed_bytes(const arch_config *c)
{
    return c->row->mixer == MIX_LIGHTNING ? (size_t)((1 + c->layers) * c->mix_heads) * sizeof(float)
                                          : 0;
}

void fwd_dev_fixed_put(fwd_dev_ctx *f, const arch_config *c)
{
    const size_t n = fwd_dev_fixed_bytes(c);
    float *to = (float *)(void *)f->stage;
    if (!n) return;
    for (int64_t layer = -1; layer < c->layers; layer++)
        for (int64_t h = 0; h < c->mix_heads; h++)
            *to++ = layer < 0 ? 1 : arch_lightning_decay(c, layer, h);
    f->d->ops->upload(f->d, f->fixed, f->stage, n);
}

/* ---- products ---- */

/* The second of two small matrices, over what the first made. */
static void run_up(const fwd_rows *r, const model_layer *l, arch_role down, arch_role up)
{
    const mm_out o = fwd_out(&l->lin[up], r->mix + mix_at(r, up), mix_width(r), false);
    if (l->lin[up].present)
        fwd_dev_products(r, &o, 1, r->mix + mix_at(r, down), mix_width(r), r->R,
                         arch_role_exact(up) ? MM_F32 : r->acts);
}

void fwd_dev_mix_in(const fwd_rows *r, const model_layer *l, int64_t layer)
{
    enum { MOST = R_MIX_A_UP - R_MIX_IN + 1 };
    mm_out outs[MOST], exact[MOST];
    int n = 0, n_exact = 0;
    (void)layer;
    for (arch_role role = R_MIX_IN; role <= R_MIX_A_UP; role++) {
        if (!l->lin[role].present || role == R_MIX_GATE_UP || role == R_MIX_A_UP) continue;
        const mm_out o = fwd_out(&l->lin[role], r->mix + mix_at(r, role), mix_width(r), false);
        if (arch_role_exact(role))
            exact[n_exact++] = o;
        else
            outs[n++] = o;
    }
    pool_stage(r->p, STAGE_QKV);
    fwd_dev_products(r, outs, n, r->h, r->c->hidden, r->R, r->acts);
    fwd_dev_products(r, exact, n_exact, r->h, r->c->hidden, r->R, MM_F32);
    run_up(r, l, R_MIX_GATE_DOWN, R_MIX_GATE_UP);
    run_up(r, l, R_MIX_A_DOWN, R_MIX_A_UP);
}

/* ---- rows before the convolution ---- */

static void before_conv(const fwd_rows *r)
{
    const fwd_dev_ctx *f = r->self;
    const arch_config *c = r->c;
    const int64_t n = arch_mix_width(c, c->row->mixer), keys = c->mix_groups * c->mix_key;
    const int64_t parts[] = { n, n, keys, keys, c->mix_heads };
    float *x = r->mix;
    for (size_t i = 0; i < LQ_COUNT(parts) && mix_is_mamba(c); x += parts[i++])
        fwd_dev_times(r, x, parts[i], mix_width(r), c->mix_scale[i]);
    if (c->w.mix_mixed)
        f->d->ops->unmix(f->d, &(dev_unmix_args){ .dst = r->mix_conv,
                                                  .src = r->mix,
                                                  .T = r->R,
                                                  .G = c->mix_groups,
                                                  .K = c->mix_key,
                                                  .V = c->mix_heads / c->mix_groups * c->mix_value,
                                                  .ldd = fwd_mix_channels(c),
                                                  .lds = mix_width(r),
                                                  .bare = mix_has(r, R_MIX_GATE) });
    if (c->row->mixer == MIX_LIGHTNING)
        f->d->ops->act(f->d, &(dev_act_args){ .dst = r->mix_conv,
                                              .gate = r->mix_conv,
                                              .T = r->R,
                                              .n = fwd_mix_channels(c),
                                              .ldd = fwd_mix_channels(c),
                                              .ld = fwd_mix_channels(c),
                                              .f = ACT_SILU });
}

static void conv(const fwd_rows *r, const model_layer *l, const dev_states *s)
{
    const fwd_dev_ctx *f = r->self;
    const arch_config *c = r->c;
    const bool alone = c->row->mixer == MIX_CONV; /* between gates: b, c, x */
    const mix_view h = mix_view_of(r);
    const model_vector *w = &l->vec[R_MIX_CONV];
    f->d->ops->conv(f->d, &(dev_conv_args){ .states = *s,
                                            .x = h.x,
                                            .out = alone ? r->mix_out : h.x,
                                            .before = alone ? h.x + 2 * c->hidden : NULL,
                                            .after = alone ? h.x + c->hidden : NULL,
                                            .w = w->w,
                                            .bias = w->bias,
                                            .ldx = h.ld,
                                            .ldo = alone ? c->hidden : h.ld,
                                            .channels = h.channels,
                                            .taps = (int)c->conv_taps,
                                            .silu = !alone });
}

/* ---- rows between convolution and scan ---- */

static void norm_part(const fwd_rows *r, float *x, const model_vector *v, int64_t n)
{
    const fwd_dev_ctx *f = r->self;
    const dev_norm_args a = {
        .x = x, .h = x, .w = v->w, .eps = mix_norm_eps(r->c), .T = r->R, .K = n, .ld = mix_width(r)
    };
    if (v->w) f->d->ops->norm(f->d, &a);
}

/* x to step, B and C. In f32: a rounding of a step stays in the state. */
static void run_select(const fwd_rows *r, const model_layer *l)
{
    const arch_config *c = r->c;
    const int64_t n[] = { c->mix_rank, c->mix_key, c->mix_key };
    float *x = r->mix + mix_at(r, R_MIX_X);
    const mm_out parts = fwd_out(&l->lin[R_MIX_X], x, mix_width(r), false),
                 steps = fwd_out(&l->lin[R_MIX_STEP], r->decay, arch_mix_decays(c), false);
    fwd_dev_products(r, &parts, 1, r->mix, mix_width(r), r->R, MM_F32);
    for (int i = 0; i < 3; x += n[i++])
        norm_part(r, x, &l->vec[R_MIX_STEP_NORM + i], n[i]);
    fwd_dev_products(r, &steps, 1, r->mix + mix_at(r, R_MIX_X), mix_width(r), r->R, MM_F32);
}

static dev_scan_kind kind_of(const arch_config *c)
{
    const bool plain = mix_is_mamba(c) || c->row->mixer == MIX_LIGHTNING;
    return plain                         ? DEV_SCAN_MAMBA
           : c->row->mixer == MIX_SELECT ? DEV_SCAN_SELECT
           : c->row->mixer == MIX_KDA    ? DEV_SCAN_KEYS_DELTA
                                         : DEV_SCAN_DELTA;
}

static void rates(const fwd_rows *r, const model_layer *l)
{
    const fwd_dev_ctx *f = r->self;
    const arch_config *c = r->c;
    const dev_scan_kind kind = kind_of(c);
    const mix_view h = mix_view_of(r);
    const int64_t of = c->mix_heads / c->mix_groups;
    const bool unit = kind == DEV_SCAN_DELTA || kind == DEV_SCAN_KEYS_DELTA,
               mixed = mix_has(r, R_MIX_BA);
    dev_rates_args a = { .kind = kind,
                         .dt = l->vec[R_MIX_DT].w,
                         .rate = l->vec[R_MIX_A_LOG].w,
                         .beta = r->mix_beta,
                         .decay = r->decay,
                         .T = r->R,
                         .ld = mix_width(r),
                         .ldq = h.ld,
                         .H = c->mix_heads,
                         .G = c->mix_groups,
                         .K = c->mix_key,
                         .decays = arch_mix_decays(c),
                         .each = mixed ? of : c->mix_heads,
                         .step = 2 * of,
                         .scale = c->w.mix_beta_2 ? 2 : 1,
                         .span = (float)c->decay_span,
                         .min = (float)c->dt_min,
                         .max = (float)c->dt_max,
                         .eps = MIX_L2_EPS };
    if (unit) {
        a.q = h.x + h.q;
        a.k = h.x + h.k;
        a.b = r->mix + mix_at(r, mixed ? R_MIX_BA : R_MIX_B);
        a.a = mixed ? a.b + of : r->mix + mix_at(r, mix_has(r, R_MIX_A_UP) ? R_MIX_A_UP : R_MIX_A);
    } else if (kind == DEV_SCAN_MAMBA) {
        a.a = r->mix + mix_at(r, R_MIX_GATE) - c->mix_heads;
    }
    f->d->ops->rates(f->d, &a);
}

static void scan(const fwd_rows *r, const model_layer *l, int64_t layer, dev_states s)
{
    const fwd_dev_ctx *f = r->self;
    const arch_config *c = r->c;
    const mix_view h = mix_view_of(r);
    const bool fixed = c->row->mixer == MIX_LIGHTNING;
    s.of += kv_state_conv_floats(c);
    f->d->ops->scan(
        f->d, &(dev_scan_args){ .kind = kind_of(c),
                                .states = s,
                                .q = h.x + h.q,
                                .k = h.x + h.k,
                                .v = h.x + h.v,
                                .beta = fixed ? f->fixed : r->mix_beta,
                                .decay = fixed ? f->fixed + (1 + layer) * c->mix_heads : r->decay,
                                .rate = l->vec[R_MIX_A_LOG].w,
                                .out = r->mix_out,
                                .ld = h.ld,
                                .H = c->mix_heads,
                                .G = c->mix_groups,
                                .K = c->mix_key,
                                .V = c->mix_value,
                                .tiled = c->w.mix_tiled,
                                .fixed = fixed });
}

/* ---- rows after it ---- */

static void finish(const fwd_rows *r, const model_layer *l)
{
    const fwd_dev_ctx *f = r->self;
    const arch_config *c = r->c;
    const int64_t n = arch_mix_width(c, c->row->mixer), of = c->mix_heads / c->mix_groups;
    const bool groups = mix_is_mamba(c) && l->vec[R_MIX_NORM].w;
    dev_gate_args a = { .x = r->mix_out,
                        .w = l->vec[R_MIX_NORM].w,
                        .T = r->R,
                        .S = 1,
                        .n = n,
                        .ldx = n,
                        .ldg = mix_width(r),
                        .each = 1,
                        .f = DEV_GATE_SILU,
                        .eps = (float)c->norm_eps };
    if (mix_is_mamba(c) || c->row->mixer == MIX_SELECT) {
        const bool mamba = mix_is_mamba(c);
        a.y = mamba ? r->mix + n : r->mix;
        a.gate = mamba ? r->mix : r->mix + n;
        a.skip = l->vec[R_MIX_SKIP].w;
        a.skip_each = mamba ? c->mix_value : 1;
        a.w = groups ? a.w : NULL;
        a.S = a.each = groups ? c->mix_groups : 1;
        a.n /= a.S;
        a.first = groups && c->w.mix_norm_1st;
        a.w_rows = true;
        a.factor = mamba ? (float)c->mix_out_scale : 1;
    } else if (c->row->mixer == MIX_LIGHTNING) {
        a.gate = r->mix + mix_at(r, R_MIX_GATE);
        a.f = DEV_GATE_SIGMOID;
        a.eps = mix_norm_eps(c);
        a.first = true;
    } else {
        const int64_t keys = 2 * c->mix_key + of * c->mix_value;
        const arch_role gate = mix_has(r, R_MIX_GATE_UP) ? R_MIX_GATE_UP : R_MIX_GATE;
        a.S = c->mix_heads;
        a.n = c->mix_value;
        a.gate = r->mix + (c->w.mix_mixed ? keys : mix_at(r, gate));
        a.each = c->w.mix_mixed ? of : c->mix_heads;
        a.step = keys + of * c->mix_value;
        a.eps = mix_norm_eps(c);
        a.first = true;
        if (c->row->mixer == MIX_KDA) a.f = DEV_GATE_SIGMOID;
    }
    a.width = a.n;
    f->d->ops->gate(f->d, &a);
}

void fwd_dev_mix(const fwd_rows *r, const model_layer *l, int64_t layer, const fwd_kv *kv)
{
    const fwd_dev_ctx *f = r->self;
    const dev_states s = { f->states + (kv->state - f->state0), f->state_stride, f->runs,
                           f->n_runs };
    const arch_mixer m = r->c->row->mixer;
    before_conv(r);
    if (m != MIX_LIGHTNING) conv(r, l, &s);
    if (m == MIX_CONV) return;
    if (m == MIX_SELECT) run_select(r, l);
    if (m != MIX_LIGHTNING) rates(r, l);
    scan(r, l, layer, s);
    finish(r, l);
}
