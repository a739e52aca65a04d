/* quantize/job/memory.c - see memory.h. Each function mirrors what one module allocates. */
#include "quantize/job/memory.h"

#include <stdio.h>

#include "calib/dense_layer.h"
#include "calib/fisher.h"
#include "calib/forward_pass.h"
#include "calib/kl.h"
#include "calib/self_text.h"
#include "calib/share.h"
#include "formats/tensor/tiles.h"
#include "quantize/job/check.h"
#include "quantize/layer/residual.h"
#include "quantize/methods/cholesky.h"
#include "quantize/methods/effort.h"
#include "quantize/methods/loss.h"
#include "quantize/methods/row_grid.h"
#include "quantize/mixed/measure.h"
#include "quantize/mixed/perturb.h"
#include "quantize/tune/params.h"
#include "quantize/tune/tune.h"

static const size_t F = sizeof(float);

static size_t larger(size_t a, size_t b) { return a > b ? a : b; }

/* What is known of the plan by layer. */
typedef struct {
    size_t stored, made;     /* bytes in the source; in the result */
    size_t packed, repacked; /* in the kernels' layout, before and after */
    size_t replaced;         /* of the latter what stages put into the layer */
    size_t residual;         /* bytes that rounding leaves for tuning */
    size_t fold;             /* f32 copies of what is folded together */
    size_t unit;             /* scratch of the largest matrix */
    size_t fixed;            /* of linears that tuning leaves as they are */
    size_t trained;          /* states of those that it does not */
    size_t most_trained;     /* of one of them */
} layer_memory;

static size_t packed_bytes(const plan_entry *e, const qt_scheme *s)
{
    size_t sum = 0;
    const qt_scheme t = tiles_scheme(s, e->N, e->K);
    for (int i = 0; i < QT_N_PLANES; i++)
        sum += qt_plane_bytes(&t, QT_TILE16, e->N, e->K, (qt_plane)i);
    return sum * (size_t)e->count;
}

/* Is it rounded by curvature? */
static bool curved(const memory_work *w, const plan_entry *e)
{
    return w->curvature_windows > 0 && grad_linear_of(e->role) < GRAD_SUMS;
}

/* Are weights of such layers read together and changed before they are rounded? */
static bool in_stages(const memory_work *w, int64_t layer);
static bool matched(const memory_work *w, int64_t layer)
{
    return qz_matches(w->o) && w->windows && layer < w->plan->cfg.layers && in_stages(w, layer);
}
static bool changes(const memory_work *w, const plan_entry *e)
{
    return (qz_folds(w->o) || matched(w, e->layer)) && qz_on_grids(e);
}

/* Rounding one matrix. */
static size_t unit_bytes(const memory_work *w, const plan_entry *e)
{
    const size_t n = (size_t)(e->N * e->K);
    const bool hessian = qz_needs_h(w->o) && w->windows;
    const size_t loss = qz_loss_bytes(e->N * e->count, e->K, hessian, w->threads);
    const bool own = changes(w, e); /* counted with folding */
    const size_t copy = e->src->t.scheme.dtype != LQ_F32 && hessian && !own ? n * F : 0;
    const size_t turned = e->turned ? n * lq_dtype_bytes(e->src->t.scheme.dtype) : 0;
    if (!hessian || !qz_by_method(e, w->o)) return turned + loss;
    const qz_room room = { e->N, e->K, w->threads, curved(w, e), loss };
    return turned + copy + w->o->method->scratch(&room);
}

/* A matrix that is matched; none: 0. */
static size_t match_bytes(const memory_work *w, const plan_entry *e)
{
    if (!matched(w, e->layer)) return 0;
    const fwd_point at = cal_point_of(&w->plan->cfg, e->layer, e->role);
    const int64_t rows = cal_ends_branch(at) ? w->plan->cfg.hidden : e->K;
    return at < FWD_AT_END ? layer_match_bytes(e->N, e->K, rows) : 0;
}

static void add_tensor(layer_memory *p, const memory_work *w, const plan_entry *e)
{
    const size_t n = (size_t)src_elements(e->src);
    const bool once = !arch_role_per_expert(e->role), tunes = qz_tune_steps(w->o) > 0;
    if (e->known && e->role == R_NGRAM_TABLE && !e->quantize)
        return; /* read by rows, in the file */
    p->stored += src_bytes(e->src);
    if (e->quantize) p->made += qz_planned_bytes(e);
    if (e->mtp && e->quantize) p->unit = larger(p->unit, unit_bytes(w, e));
    if (!e->known || arch_role_kind(e->role) == ARCH_VECTOR || e->is_bias) return;
    if (!e->quantize) { /* as it lies */
        p->packed += src_bytes(e->src);
        p->repacked += src_bytes(e->src);
        const bool index = e->role >= R_INDEX_Q && e->role <= R_INDEX_W; /* if it is asked */
        if (arch_role_kind(e->role) == ARCH_LINEAR)
            p->fixed += src_bytes(e->src);
        else if (!index || grad_chooses(&w->plan->cfg, w->len))
            p->fixed += n * F;
        return;
    }
    const size_t repacked = packed_bytes(e, &e->scheme);
    p->packed += packed_bytes(e, &e->src->t.scheme);
    p->repacked += repacked;
    if (e->layer < w->plan->cfg.layers && in_stages(w, e->layer) &&
        cal_point_of(&w->plan->cfg, e->layer, e->role) < FWD_AT_END)
        p->replaced += repacked;
    if (changes(w, e)) {
        const size_t own = once ? n : (size_t)(e->N * e->K);
        p->fold += (once || e->expert <= 0) ? own * F : 0;
    }
    p->unit = larger(p->unit, unit_bytes(w, e));
    p->unit = larger(p->unit, match_bytes(w, e));
    if (!tunes) return;
    if (!qz_residual_fits(&e->scheme) || (e->scheme.kind != QT_UINT && !w->trains_codes)) {
        p->fixed += src_bytes(e->src);
        return;
    }
    tune_weight none;
    qt_tensor shape = { .scheme = e->scheme, .N = e->N, .K = e->K };
    if (!shape.scheme.group) shape.scheme.group = e->K;
    const size_t state = tune_weight_plan(&none, &shape, w->trains_codes).all;
    p->residual += w->trains_codes ? n : 0;
    p->trained += state * (size_t)e->count;
    p->most_trained = larger(p->most_trained, state);
}

static void of_layer(layer_memory *p, const memory_work *w, int64_t layer)
{
    *p = (layer_memory){ 0 };
    for (size_t i = 0; i < w->plan->n; i++)
        if (w->plan->e[i].layer == layer) add_tensor(p, w, &w->plan->e[i]);
}

/* ---- what is held through the calibrated layers ---- */
/* The windows of so many ranks, as the first has them. */
static cal_share share_at_first(int ranks, int64_t windows, int64_t len)
{
    return share_cut(ranks, 0, windows, len, cal_chunk(windows, len) / len);
}

/* Tokens whose states are held. */
static int64_t rows_held(int ranks, int64_t windows, int64_t len, bool spill)
{
    if (!windows) return 0;
    const cal_share s = share_at_first(ranks, windows, len);
    const int64_t n = spill ? 1 : share_mine(&s), all = windows * len;
    return n * s.per_slice * len < all ? n * s.per_slice * len : all;
}

static size_t state_bytes(const memory_work *w, int ranks, int64_t windows, int64_t len, bool spill)
{
    return (size_t)(rows_held(ranks, windows, len, spill) * fwd_state(&w->plan->cfg)) * F;
}

/* A run of calib/forward_pass.h: states and the scratch of a chunk, of which prepared activations (8 bytes
 * each) stay untouched with f32. */
static size_t run_bytes(const memory_work *w, int ranks, int64_t windows, int64_t len, bool spill)
{
    const arch_config *c = &w->plan->cfg;
    const int64_t chunk = rows_held(ranks, windows, len, true), v = c->heads * c->v_dim;
    int64_t widest = c->hidden > c->ffn ? c->hidden : c->ffn;
    widest = widest > v ? widest : v;
    return state_bytes(w, ranks, windows, len, spill) + fwd_layer_scratch(c, chunk, w->threads) -
           (size_t)(chunk * widest) * 2 * F;
}

static bool in_stages(const memory_work *w, int64_t layer)
{
    return qz_in_stages(w->o) && fwd_has_points(&w->plan->cfg, layer);
}

/* And is nothing of it looked at apart from these? */
static bool by_points(const memory_work *w, int64_t layer)
{
    return in_stages(w, layer) && fwd_points_to_end(&w->plan->cfg, layer);
}

static bool any_layer(const memory_work *w, bool (*is)(const memory_work *, int64_t), bool value)
{
    for (int64_t i = 0; i < w->plan->cfg.layers; i++)
        if (is(w, i) == value) return true;
    return false;
}
static bool any_stages(const memory_work *w) { return any_layer(w, in_stages, true); }

/* Does an original's state go along, and are layers that have stages looked at as well? */
static bool any_match(const memory_work *w) { return qz_matches(w->o) && any_stages(w); }
static bool looks(const memory_work *w) { return any_match(w) && qz_folds(w->o); }

/* Of a whole chunk, where ranks have parts of it. */
static int64_t rows_of_all(const memory_work *w)
{
    return w->ranks > 1 && w->windows ? cal_chunk(w->windows, w->len) : 0;
}

/* What is kept between the stages of a layer, and an original's states. */
static size_t stage_bytes(const memory_work *w, bool spill, bool keep_rows)
{
    const arch_config *c = &w->plan->cfg;
    const int64_t own = any_match(w) ? fwd_state(c) : 0;
    return any_stages(w) ? (size_t)(rows_held(w->ranks, w->windows, w->len, spill) *
                                    (cal_kept_width(c, keep_rows) + own)) *
                               F
                         : 0;
}

/* A chunk's rows at a point, and what they are compared in. */
static size_t point_bytes(const memory_work *w)
{
    const arch_config *c = &w->plan->cfg;
    const bool match = any_match(w);
    const int64_t width = cal_stage_width(c);
    if (!any_stages(w)) return 0;
    return (size_t)(rows_held(w->ranks, w->windows, w->len, true) *
                        (width + (match ? cal_match_width(c) : 0)) +
                    rows_of_all(w) * (width + (match ? c->hidden : 0))) *
           F;
}

/* The copy of a chunk that looking at it consumes. */
static size_t statistics_bytes(const memory_work *w)
{
    if (!any_layer(w, by_points, false) && !looks(w)) return 0;
    return (size_t)(rows_held(w->ranks, w->windows, w->len, true) * fwd_state(&w->plan->cfg)) * F;
}

static size_t curvature_bytes(const memory_work *w)
{
    return w->curvature_windows ? fisher_bytes(&w->plan->cfg, w->windows * w->len) : 0;
}

static size_t h_bytes(const arch_config *c, cal_site s)
{
    const size_t K = (size_t)cal_site_width(c, s);
    return K * K * F;
}

/* Floats of what an input is compared by. */
static int64_t match_width(const memory_work *w, const arch_config *own, cal_site s)
{
    if (!any_match(w)) return 0;
    return s == CAL_O || s == CAL_MIX_OUT || s == CAL_DOWN ? own->hidden : cal_site_width(own, s);
}

/* M beside it. */
static size_t m_bytes(const memory_work *w, const arch_config *own, cal_site s)
{
    return (size_t)(cal_site_width(own, s) * match_width(w, own, s)) * F;
}

/* Rows that ranks send each other: ours, another one's, and what came of the chunk. */
static size_t sent_bytes(const memory_work *w, int64_t layer)
{
    const arch_config *c = &w->plan->cfg, *own = arch_at(c, layer);
    const cal_share s = share_at_first(w->ranks, w->windows, w->len);
    const int64_t slice = s.per_slice * s.len, chunk = s.in_chunk > 1 ? s.per_chunk * s.len : 0;
    int64_t once = 0, expert = 0; /* floats a token */
    bool seen[CAL_N_SITES] = { false };
    cal_site site;
    if (w->ranks < 2 || (by_points(w, layer) && !looks(w))) return 0;
    for (arch_role r = 0; r < ARCH_N_ROLES; r++) {
        if (!arch_has(c, r, layer) || !cal_site_of(&site, c, r) || seen[site]) continue;
        seen[site] = true;
        if (site < CAL_N_SHARED)
            once += cal_site_width(own, site);
        else if (site != CAL_EXPERT_IN || !w->o->all_experts)
            expert += cal_site_width(c, site) * c->experts_used;
    }
    const int64_t in = once + expert / w->ranks;
    return (size_t)(slice * (once + expert + in) + chunk * in) * F;
}

/* Factors that ranks make before any row is rounded, but the largest, which counts as a matrix's own. */
static size_t factors_bytes(const memory_work *w, int64_t layer)
{
    bool seen[CAL_N_SITES] = { false };
    size_t sum = 0, most = 0;
    if (w->ranks < 2 || !w->windows || !w->o->method->share || by_points(w, layer)) return 0;
    for (size_t i = 0; i < w->plan->n; i++) {
        const plan_entry *e = &w->plan->e[i];
        const size_t bytes = (size_t)(e->K * e->K) * F;
        cal_site site;
        if (e->layer != layer || !e->known || !qz_by_method(e, w->o) ||
            arch_role_per_expert(e->role) || e->K < CHOLESKY_SHARED ||
            !cal_site_of(&site, &w->plan->cfg, e->role) || seen[site])
            continue;
        seen[site] = true;
        sum += bytes;
        most = larger(most, bytes);
    }
    return sum - most;
}

/* A chunk's rows times their tokens' weights. */
static size_t weighed_bytes(const memory_work *w, const arch_config *own, cal_site s, bool staged)
{
    const int64_t width = cal_site_width(own, s) + (staged ? match_width(w, own, s) : 0);
    if (!w->curvature_windows) return 0;
    return (size_t)(cal_chunk(w->windows, w->len) * (width + 2)) * F;
}

/* H of the layer's inputs: of what it has once (in stages one at a time, then those of the rest), and of one expert.
 * glance: all of what it has once, without tokens' weights. */
static void h_of_layer(size_t *once, size_t *expert, const memory_work *w, int64_t layer,
                       bool glance)
{
    const arch_config *c = &w->plan->cfg, *own = arch_at(c, layer);
    bool has[CAL_N_SITES] = { false };
    size_t stage = 0, rest = 0;
    cal_site site;
    *once = *expert = 0;
    if (!qz_needs_h(w->o)) return;
    for (arch_role r = 0; r < ARCH_N_ROLES; r++)
        if (arch_has(c, r, layer) && cal_site_of(&site, c, r)) has[site] = true;
    for (int s = 0; s < CAL_N_SITES; s++)
        if (s < CAL_N_SHARED && has[s]) {
            const bool staged =
                !glance && in_stages(w, layer) && cal_at_point(c, layer, (cal_site)s);
            const size_t one = h_bytes(own, (cal_site)s) +
                               (glance ? 0 : weighed_bytes(w, own, (cal_site)s, staged)) +
                               (staged ? m_bytes(w, own, (cal_site)s) : 0);
            if (staged)
                stage = larger(stage, one);
            else
                rest += one;
        } else if (has[s] && !(s == CAL_EXPERT_IN && w->o->all_experts))
            *expert += h_bytes(c, (cal_site)s);
    *once = larger(stage, rest);
}

/* ---- phases ---- */
/* The choices that memory decides. */
typedef struct {
    bool spill, keep_rows;
    size_t experts;
} choice;

static size_t program_bytes(const memory_work *w)
{
    const bool blas = w->windows && qz_needs_h(w->o);
    return QZ_PROGRAM + (size_t)w->plan->cfg.vocab * QZ_WORD +
           (size_t)w->threads * (blas ? QZ_PER_THREAD + QZ_BLAS : QZ_PER_THREAD) +
           (size_t)(((w->windows + w->self_windows) * w->len + w->check_windows * w->check_len) *
                    4);
}

static size_t layers_peak(const memory_work *w, choice ch)
{
    const arch_config *c = &w->plan->cfg;
    size_t peak = 0;
    for (int64_t i = 0; i < c->layers; i++) {
        layer_memory p;
        size_t once, expert;
        of_layer(&p, w, i);
        h_of_layer(&once, &expert, w, i, false);
        const int64_t experts = c->layer[i].moe ? lq_ceil_div(c->experts, w->ranks) : 0;
        const size_t all = expert * (size_t)experts;
        const size_t some = larger(ch.experts, expert);
        const size_t h = once + (all < some ? all : some);
        const size_t rounding =
            p.stored + p.fold + p.made + p.residual + p.unit + factors_bytes(w, i);
        const size_t at_once = by_points(w, i) ? 0 : p.repacked + p.made;
        const size_t both = p.replaced + larger(rounding, at_once);
        size_t all_h = 0;
        if (matched(w, i) && looks(w)) h_of_layer(&all_h, &expert, w, i, true);
        const size_t folding = all_h ? all_h + p.stored + p.fold + p.unit : 0;
        peak = larger(peak, p.packed + larger(folding, h + both) + sent_bytes(w, i));
    }
    return peak + curvature_bytes(w) + run_bytes(w, w->ranks, w->windows, w->len, ch.spill) +
           stage_bytes(w, ch.spill, ch.keep_rows) + point_bytes(w) + statistics_bytes(w);
}

/* Without calibration: the largest tensor, beside the one before it, which is written meanwhile;
 * and where layers are made whole, for a check or beside calibrated ones, the largest of them. */
static size_t plain_peak(const memory_work *w)
{
    size_t peak = 0, before = QZ_PER_THREAD; /* of who writes */
    for (int64_t i = 0; i <= w->plan->cfg.layers && (w->windows || w->check_windows); i++) {
        layer_memory p;
        of_layer(&p, w, i);
        peak = larger(peak, p.stored + p.made + p.unit);
    }
    for (size_t i = 0; i < w->plan->n; i++) {
        const plan_entry *e = &w->plan->e[i];
        const size_t made = e->quantize ? qz_planned_bytes(e) : 0;
        if (made) peak = larger(peak, before + src_bytes(e->src) + made + unit_bytes(w, e));
        before = made + QZ_PER_THREAD;
    }
    return peak;
}

static size_t head_floats(const memory_work *w)
{
    return (size_t)(w->plan->cfg.vocab * w->plan->cfg.hidden);
}

static size_t head_bytes(const memory_work *w)
{
    return head_floats(w) * (w->plan->cfg.dtype == LQ_F32 ? 4 : 2);
}

static size_t largest_layer(const memory_work *w)
{
    size_t most = 0;
    for (int64_t i = 0; i < w->plan->cfg.layers; i++) {
        layer_memory p;
        of_layer(&p, w, i);
        most = larger(most, p.packed + p.repacked + p.made);
    }
    return most;
}

static size_t check_peak(const memory_work *w, choice ch)
{
    const int64_t V = w->plan->cfg.vocab;
    int64_t rows = QZ_CHECK_LOGITS / V < CAL_LOGIT_ROWS ? QZ_CHECK_LOGITS / V : CAL_LOGIT_ROWS;
    rows = rows < w->check_len ? rows : w->check_len;
    const int64_t windows = lq_ceil_div(w->check_windows, w->ranks);
    return 2 * run_bytes(w, 1, windows, w->check_len, ch.spill) + 2 * head_bytes(w) +
           larger(2 * (size_t)(rows * V) * F, largest_layer(w));
}

/* Passes that go back: the inputs of all layers for so many windows, the head in f32, and the scratch of a chunk of
 * windows, which go through a layer at once. */
static size_t backward_bytes(const memory_work *w, int64_t windows, int64_t chunk, bool keep)
{
    const arch_config *c = &w->plan->cfg;
    return (size_t)((c->layers + 3) * windows * w->len * c->hidden) * F + head_floats(w) * F +
           kl_scratch(c->vocab) * F + grad_bytes(c, chunk, w->len, keep, w->threads) +
           (w->ranks > 1 ? grad_shared_bytes(c, chunk, w->len) : 0);
}

static size_t curvature_peak(const memory_work *w, int64_t windows, bool keep)
{
    const int64_t chunk = fisher_chunk(&w->plan->cfg, windows, w->len);
    keep = keep && grad_can_keep(&w->plan->cfg, chunk, w->len);
    return fisher_bytes(&w->plan->cfg, w->windows * w->len) +
           fisher_scratch(&w->plan->cfg, windows * w->len) + dense_bytes(&w->plan->cfg) +
           backward_bytes(w, chunk, chunk, keep);
}

static bool tunes(const memory_work *w)
{
    return w->windows && qz_tune_steps(w->o) && grad_covers(&w->plan->cfg);
}

/* The result's head in f32, where it is not the source's. */
static size_t own_head_bytes(const memory_work *w)
{
    const arch_role role = w->plan->cfg.tied ? R_EMBED : R_HEAD;
    for (size_t i = 0; i < w->plan->n; i++) {
        const plan_entry *e = &w->plan->e[i];
        if (e->role == role && e->quantize && !e->is_bias) return head_floats(w) * F;
    }
    return 0;
}

/* What is trained; in memory is one weight's state then, and what comes of a layer. */
static bool states_on_disk(const memory_work *w, choice ch) { return ch.spill || !w->small; }

static size_t tuning_peak(const memory_work *w, choice ch)
{
    size_t sum = 0, made = 0, all_made = 0, one = 0;
    for (int64_t i = 0; i < w->plan->cfg.layers; i++) {
        layer_memory p;
        of_layer(&p, w, i);
        sum += p.fixed + (states_on_disk(w, ch) ? 0 : p.trained);
        one = larger(one, p.most_trained);
        made = larger(made, p.made);
        all_made += p.made;
    }
    sum += states_on_disk(w, ch) ? one : w->trains_codes ? all_made : 0;
    const int64_t windows = w->windows + w->self_windows;
    const int64_t most = qz_effort_of(w->o)->batch, batch = windows < most ? windows : most;
    const arch_config *c = &w->plan->cfg;
    const int64_t chunk = tune_chunk(c, batch, w->len, windows);
    const bool keep = !ch.spill && tune_can_keep(c, batch, w->len, windows);
    const size_t teacher = (size_t)((ch.spill ? chunk : windows) * w->len * c->hidden) * F;
    const size_t experts = c->experts ? (size_t)(c->layers * (c->experts + 1)) : 0;
    return sum + made + teacher + experts * sizeof(tune_expert) + 2 * dense_bytes(c) +
           backward_bytes(w, batch, chunk, keep) + own_head_bytes(w);
}

/* The whole model as it is served, beside its mapped file, and the cache of a batch. */
static size_t self_text_peak(const memory_work *w)
{
    const arch_config *c = &w->plan->cfg;
    const int64_t at_once = w->self_windows < CAL_SELF_AT_ONCE ? w->self_windows : CAL_SELF_AT_ONCE;
    size_t weights = 0;
    for (size_t i = 0; i < w->plan->n; i++)
        weights += src_bytes(w->plan->e[i].src);
    return 2 * weights + (size_t)(at_once * w->len) * kv_token_bytes(c, KV_F16) +
           (size_t)at_once * kv_state_bytes(c) + (size_t)(at_once * c->vocab) * F;
}

/* Every scheme of what lies outside the layers, and a unit's where no gradient says it. */
static int64_t perturb_branches(const memory_work *w)
{
    const bool covered = fisher_of_all(&w->plan->cfg);
    int64_t n = 0;
    for (size_t i = 0; i < w->plan->n; i++) {
        const plan_entry *e = &w->plan->e[i];
        if (e->open && e->layer >= w->plan->cfg.layers) n += MEASURE_SCHEMES;
        if (e->open && e->layer < w->plan->cfg.layers && e->expert <= 0) n += !covered;
    }
    return n;
}

/* --bpw: a layer with its H, the head, and states of replaced layers at most. */
static size_t measuring_peak(const memory_work *w, int64_t n)
{
    layer_memory p;
    size_t once, expert, peak = 0;
    for (int64_t i = 0; i < w->plan->cfg.layers; i++) {
        of_layer(&p, w, i);
        h_of_layer(&once, &expert, w, i, false);
        peak = larger(peak, 2 * p.packed + once + expert + p.unit + sent_bytes(w, i));
    }
    const arch_config *c = &w->plan->cfg;
    const int64_t branches = perturb_branches(w);
    return peak + fisher_bytes(c, w->windows * w->len) + run_bytes(w, w->ranks, n, w->len, false) +
           head_bytes(w) + (branches ? perturb_bytes(c, n, w->len, branches, w->threads) : 0);
}

typedef struct {
    size_t rss;
    progress_kind phase;
} peak;

static void raise(peak *p, size_t rss, progress_kind phase)
{
    if (rss > p->rss) *p = (peak){ rss, phase };
}

static peak peak_of(const memory_work *w, choice ch)
{
    peak p = { 0, PROGRESS_WRITING };
    raise(&p, plain_peak(w), PROGRESS_ROUNDING);
    if (w->windows) raise(&p, layers_peak(w, ch), PROGRESS_ROUNDING);
    const int64_t measured = w->windows < MEASURE_WINDOWS ? w->windows : MEASURE_WINDOWS;
    if (w->curvature_windows)
        raise(&p, curvature_peak(w, w->curvature_windows, !ch.spill), PROGRESS_CURVATURE);
    else if (w->o->bpw > 0 && fisher_of_all(&w->plan->cfg))
        raise(&p, curvature_peak(w, measured, false), PROGRESS_CURVATURE);
    if (w->o->bpw > 0) raise(&p, measuring_peak(w, measured), PROGRESS_CURVATURE);
    if (tunes(w)) raise(&p, tuning_peak(w, ch), PROGRESS_TUNING);
    if (w->self_windows) raise(&p, self_text_peak(w), PROGRESS_SELF_TEXT);
    if (w->check_windows) raise(&p, check_peak(w, ch), PROGRESS_CHECK);
    p.rss += program_bytes(w);
    return p;
}

static size_t disk_bytes(const memory_work *w, choice ch)
{
    const int64_t windows = w->windows + (tunes(w) ? w->self_windows : 0);
    const bool states = tunes(w) && states_on_disk(w, ch);
    bool spill = ch.spill;
    size_t sum = 0;
    if (!w->windows && !w->check_windows) return 0; /* straight into the file */
    for (int64_t i = 0; i <= w->plan->cfg.layers; i++) {
        layer_memory p;
        of_layer(&p, w, i);
        const bool trained = states && i < w->plan->cfg.layers;
        sum += p.made + p.residual + (trained ? p.trained + p.made : 0);
    }
    const size_t layers =
        state_bytes(w, w->ranks, w->windows, w->len, false) + stage_bytes(w, false, false);
    const size_t tuning = state_bytes(w, 1, windows, w->len, false);
    if (spill && w->windows * w->len > cal_chunk(w->windows, w->len))
        return sum + larger(layers, tuning);
    spill = spill && windows * w->len > cal_chunk(windows, w->len);
    return sum + (spill ? tuning : 0);
}

/* A limit as the option takes it: no digits of it are lost. */
static const char *limit_text(char out[32], size_t bytes)
{
    const int unit = !bytes || bytes % 1024 ? 0 : bytes % (1 << 20) ? 1 : 2;
    snprintf(out, 32, "%zu%s", bytes >> (10 * unit), (const char *[]){ "", "K", "M" }[unit]);
    return out;
}

lq_status qz_memory_of(qz_memory *n, const memory_work *w, size_t limit, lq_err *err)
{
    enum { STEPS = 8 };
    const int64_t rows = rows_held(w->ranks, w->windows, w->len, false);
    choice use = { .keep_rows = limit || cal_keeps_rows(&w->plan->cfg, rows), .experts = SIZE_MAX };
    const peak least = peak_of(w, (choice){ .spill = true, .experts = 1 });
    peak p = peak_of(w, use);
    if (limit && p.rss > limit) {
        use.keep_rows = false;
        p = peak_of(w, use);
    }
    for (int i = 0; limit && p.rss > limit && i <= STEPS;
         i++) { /* experts in halves of the limit */
        use = (choice){ .spill = true, .experts = i < STEPS ? limit >> (i + 1) : 1 };
        p = peak_of(w, use);
    }
    *n = (qz_memory){ .rss = p.rss, .least = least.rss, .phase = p.phase, .spill = use.spill };
    n->keep_rows = use.keep_rows;
    n->experts = use.experts;
    n->states = states_on_disk(w, use);
    n->disk = disk_bytes(w, use);
    if (!limit || least.rss <= limit) return LQ_OK;
    char found[32];
    return lq_fail(err, LQ_EUSAGE,
                   "--memory-limit: expected at least %zuM (which %s takes), found %s",
                   (least.rss >> 20) + 1, progress_phases[least.phase], limit_text(found, limit));
}
