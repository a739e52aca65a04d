/* quantize/job/progress.c - see progress.h. */
#include "quantize/job/progress.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "base/clock.h"
#include "calib/backward.h"
#include "calib/forward_pass.h"
#include "calib/gemm.h"
#include "calib/self_text.h"
#include "quantize/methods/awq.h"

const char *const progress_phases[PROGRESS_N] = {
    [PROGRESS_CURVATURE] = "curvature", [PROGRESS_STATISTICS] = "statistics",
    [PROGRESS_ROUNDING] = "rounding",   [PROGRESS_ADVANCING] = "forward",
    [PROGRESS_SELF_TEXT] = "own text",  [PROGRESS_TUNING] = "tuning",
    [PROGRESS_CHECK] = "check",         [PROGRESS_WRITING] = "writing",
};

/* Usual speeds, in seconds of two processors with AVX2 whose products make `products` multiply-adds a second
 * (quantize/job/probe.h), measured with the demo checkpoints. */
static const double products = 50e9, forward = 38e9 /* multiply-adds/s of the calibration pass */,
                    gradient = 50e9 /* ... of training */, solving = 4e9 /* N K^2/s of rounding */,
                    curving = 1.75e9 /* ... with the curvature of outputs */,
                    rounding = 6e6 /* weights/s besides */,
                    descent = 1.6e6 /* ... with the curvature */,
                    stepping = 150e6 /* codes/s of a step */,
                    stored = 60e6 /* ... whose states are on disk: 27 bytes each */,
                    scoring = 80e6 /* logits/s, of both models */, writing = 500e6 /* bytes/s */;

static double *cost_of(const qz_progress *m, int64_t layer, progress_kind k)
{
    return &m->cost[(layer < 0 || layer > m->n_layers ? m->n_layers : layer) * PROGRESS_N + (int)k];
}

/* ---- what it will cost ---- */
/* Of its rows, how many see a token: of experts those that are chosen. */
static double used(const arch_config *c, const plan_entry *e)
{
    return arch_role_per_expert(e->role) && c->experts > 0
               ? (double)c->experts_used / (double)c->experts
               : 1;
}

/* Tokens that run through training's layers, counted by how often: forward, for the gradient at the input, and
 * again forward where nothing is kept. Of what is trained the gradient of the weights as well. */
static double curved_tokens(const progress_work *w)
{
    return (double)w->curvature_tokens * (w->curvature_kept ? 2 : 3);
}
static double trained_tokens(const progress_work *w)
{
    return (double)w->tuned_tokens * (w->tuning_kept ? 3 : 4);
}

/* Of tuning what comes before its steps: the original's answers to all of the text. */
static void add_first(qz_progress *m, double cost)
{
    *cost_of(m, -1, PROGRESS_TUNING) += cost;
    m->first[PROGRESS_TUNING] += cost;
}

/* A linear of n weights that a token sees, in the passes that go back as well. Experts, and the MLP beside them, run
 * forward again always. */
static void add_gradient(qz_progress *m, const progress_work *w, const plan_entry *e, double n)
{
    const int of = grad_linear_of(e->role);
    const bool once = of < GRAD_LINEARS;
    const double K = (double)e->K, curved = (double)w->curvature_tokens;
    const double G = of < GRAD_SUMS && K > 0
                         ? curved * (double)GRAD_BLOCK * gemm_lower_part(GRAD_BLOCK) * n / K
                         : 0; /* K = 0: left as it is */
    const double look = once ? curved_tokens(w) : 3 * curved;
    const double train = once ? trained_tokens(w) : 4 * (double)w->tuned_tokens;
    *cost_of(m, -1, PROGRESS_CURVATURE) += (look * n + G) / gradient;
    *cost_of(m, -1, PROGRESS_TUNING) += train * n / gradient;
    if (w->tuned_tokens > 0) add_first(m, (double)(w->tokens + w->self_tokens) * n / gradient);
}

/* Head and answers of training: the head has no gradient of its own, and the original's answers are made again. */
static void add_answers(qz_progress *m, const progress_work *w)
{
    const arch_config *c = &w->plan->cfg;
    const double V = (double)c->vocab, n = V * (double)c->hidden;
    const double curved = (double)w->curvature_tokens, tuned = (double)w->tuned_tokens;
    *cost_of(m, -1, PROGRESS_CURVATURE) += 2 * curved * n / gradient + curved * V / scoring / 2;
    *cost_of(m, -1, PROGRESS_TUNING) += 3 * tuned * n / gradient + tuned * V / scoring;
    *cost_of(m, -1, PROGRESS_CHECK) += (double)w->check_tokens * V / scoring;
}

/* Attention: forward over half of the pairs in the calibration pass, over whole blocks in training, five products back. */
static void add_attention(qz_progress *m, const progress_work *w, int64_t layer)
{
    const arch_config *c = arch_at(&w->plan->cfg, layer);
    const double width = (double)(c->heads * c->head_dim);
    const double pairs = grad_seen(w->len) * width;
    const double all = (double)(w->tuned_tokens > 0 ? w->tokens + w->self_tokens : 0);
    const double curved = curved_tokens(w) * 2 + 3 * (double)w->curvature_tokens;
    const double tuned =
        (trained_tokens(w) - (double)w->tuned_tokens) * 2 + 3 * (double)w->tuned_tokens;
    *cost_of(m, -1, PROGRESS_CURVATURE) += curved * pairs / gradient;
    *cost_of(m, -1, PROGRESS_TUNING) += tuned * pairs / gradient;
    add_first(m, 2 * all * pairs / gradient);
    *cost_of(m, layer, PROGRESS_STATISTICS) += (double)w->tokens * (double)w->len * width / forward;
}

static void add_rounding(qz_progress *m, const progress_work *w, const plan_entry *e, double n)
{
    const bool curved = w->curved && w->curvature_tokens > 0 && grad_linear_of(e->role) < GRAD_SUMS;
    *cost_of(m, e->layer, PROGRESS_ROUNDING) +=
        curved ? n * (double)e->K / curving + n / descent : n * (double)e->K / solving;
    if (w->folds) /* and what plain rounding loses before */
        *cost_of(m, e->layer, PROGRESS_ROUNDING) +=
            ((double)e->count * awq_search_cost(e->N, e->K) + n * (double)e->K / 2) / products;
}

/* The original beside it, what both are compared by, and the glance before where scales are chosen. */
static void add_match(qz_progress *m, const progress_work *w, const plan_entry *e, double run,
                      fwd_point at)
{
    const bool ends = cal_ends_branch(at);
    const double K = (double)e->K, N = (double)w->plan->cfg.hidden, T = (double)w->tokens,
                 glance = w->folds ? 1.0 / CAL_GLANCE : 0;
    const double compare = ends ? 2 * T * N * K : 0.5 * T * K * K, D = ends ? N : K;
    *cost_of(m, e->layer, PROGRESS_STATISTICS) += ((at < FWD_AT_END) + glance) * run / forward;
    if (!w->hessian || !e->quantize || at == FWD_AT_END) return;
    *cost_of(m, e->layer, PROGRESS_STATISTICS) += (compare + 0.25 * glance * T * K * K) / products;
    *cost_of(m, e->layer, PROGRESS_ROUNDING) += (ends ? 1 : 0.5) * (K + 2 * D) * K * K / products;
    if (!ends)
        *cost_of(m, e->layer, PROGRESS_ROUNDING) += (double)src_elements(e->src) * K / products;
}

static void add_tensor_cost(qz_progress *m, const progress_work *w, const plan_entry *e)
{
    const arch_config *c = &w->plan->cfg;
    const double n = (double)src_elements(e->src), T = (double)w->tokens;
    const double run = n * used(c, e), K = (double)e->K;
    const bool linear = e->known && arch_role_linear(e->role) && !e->is_bias;
    *cost_of(m, -1, PROGRESS_WRITING) += (double)src_bytes(e->src) / writing;
    *cost_of(m, -1, PROGRESS_CHECK) += 2 * (double)w->check_tokens * run / forward;
    *cost_of(m, -1, PROGRESS_SELF_TEXT) += (double)w->self_tokens * run / forward;
    if (e->quantize) *cost_of(m, e->layer, PROGRESS_ROUNDING) += n / rounding;
    if (!linear || e->layer >= m->n_layers || !w->calibrated) return;
    add_gradient(m, w, e, run);
    if (w->steps > 0)
        *cost_of(m, -1, PROGRESS_TUNING) +=
            n * w->steps * (1 / stepping + (w->states ? 1 / stored : 0));
    const bool staged = w->staged && fwd_has_points(c, e->layer);
    const bool by_points = staged && fwd_points_to_end(c, e->layer);
    const fwd_point at = cal_point_of(c, e->layer, e->role),
                    last = fwd_has_point(c, e->layer, FWD_AT_DOWN) ? FWD_AT_DOWN : FWD_AT_O;
    /* In stages the last linear is run on the way to the end alone, and what an MLP begins with again where its rows
     * are not kept. */
    if (!by_points || at != last) *cost_of(m, e->layer, PROGRESS_STATISTICS) += T * run / forward;
    if (e->layer + 1 < m->n_layers &&
        (!by_points || at == last || (at == FWD_AT_MLP && !w->keep_rows)))
        *cost_of(m, e->layer, PROGRESS_ADVANCING) += T * run / forward;
    if (w->matched && e->layer + 1 < m->n_layers && !by_points) /* the original */
        *cost_of(m, e->layer, PROGRESS_ADVANCING) += T * run / forward;
    if (staged && w->matched) add_match(m, w, e, T * run, at);
    if (!w->hessian || !e->quantize) return;
    /* H once per site, which is about one in two linears, and one triangle of it */
    *cost_of(m, e->layer, PROGRESS_STATISTICS) += 0.25 * T * K * K / products;
    add_rounding(m, w, e, n);
}

/* ---- how it goes ---- */
/* Seconds for one usual second of kind k. */
static double pace(const qz_progress *m, int k)
{
    double secs = 0, cost = 0;
    if (m->done[k] > 0 && m->secs[k] > 0.2) return m->secs[k] / m->done[k];
    for (int i = 0; i < PROGRESS_N; i++) {
        secs += m->secs[i];
        cost += m->done[i];
    }
    return cost > 0 && secs > 0 ? secs / cost : m->usual;
}

/* A phase of the layer at work has come to `part`. */
static void reach(qz_progress *m, int k, double part)
{
    const double cost = *cost_of(m, m->layer, (progress_kind)k);
    if (part > 1) part = 1;
    if (part <= m->reached[k]) return;
    m->done[k] += (part - m->reached[k]) * cost;
    if (m->done[k] > m->total[k]) m->done[k] = m->total[k];
    m->reached[k] = part;
}

/* The phase at work up to now: seconds, and cost as far as its own reports say. */
static void account(qz_progress *m, double t, double part)
{
    if (m->kind < 0) return;
    m->secs[m->kind] += t - m->started;
    m->started = t;
    reach(m, m->kind, part);
}

static void end_layer(qz_progress *m)
{
    for (int k = 0; k < PROGRESS_N; k++) {
        if (m->reached[k] >= 0) reach(m, k, 1);
        m->reached[k] = -1;
    }
}

static void show(qz_progress *m, double t)
{
    double left = 0;
    for (int k = 0; k < PROGRESS_N; k++)
        left += (m->total[k] - m->done[k]) * pace(m, k);
    const double secs = t - m->began, all = secs + left > 0 ? secs / (secs + left) : 0;
    if (all > m->all) m->all = all;
    const progress_state s = { .phase = progress_phases[m->kind],
                               .layer = m->layer,
                               .n_layers = m->n_layers,
                               .detail = m->detail,
                               .part = m->reached[m->kind],
                               .all = m->all,
                               .secs = secs,
                               .secs_left = left };
    if (m->view.show)
        m->view.show(m->view.user, &s);
    else
        lq_report(m->outer, s.phase, m->all, 1);
}

/* Phases that begin with something else (m->first): what they report once at work. */
static const char *const at_work[PROGRESS_N] = {
    [PROGRESS_SELF_TEXT] = cal_self_progress, [PROGRESS_TUNING] = "tuning"
};

/* A module says where it is. */
static void heard(void *user, const char *what, double done, double total)
{
    qz_progress *m = user;
    if (m->kind < 0) return;
    const bool other = at_work[m->kind] && strcmp(what, at_work[m->kind]) != 0;
    const double all = m->total[m->kind], first = all > 0 ? m->first[m->kind] / all : 0;
    const double t = lq_now(), part = total > 0 ? done / total : 0;
    account(m, t, other ? first * part : first + (1 - first) * part);
    snprintf(m->detail, sizeof m->detail, "%s", m->kind == PROGRESS_ROUNDING || other ? what : "");
    show(m, t);
}

static lq_status add_costs(qz_progress *m, const progress_work *w, lq_err *err)
{
    m->n_layers = w->plan->cfg.layers;
    m->usual = w->speed > 0 ? products / w->speed : 1;
    m->cost = calloc((size_t)(m->n_layers + 1) * PROGRESS_N, sizeof *m->cost);
    if (!m->cost)
        return lq_fail(err, LQ_ENOMEM, "no memory for %lld layers", (long long)m->n_layers);
    add_answers(m, w);
    for (int64_t i = 0; i < m->n_layers && w->calibrated; i++)
        add_attention(m, w, i);
    for (size_t i = 0; i < w->plan->n; i++)
        add_tensor_cost(m, w, &w->plan->e[i]);
    for (int64_t i = 0; i <= m->n_layers; i++)
        for (int k = 0; k < PROGRESS_N; k++)
            m->total[k] += *cost_of(m, i, (progress_kind)k);
    return LQ_OK;
}

lq_status progress_predict(double secs[PROGRESS_N], const progress_work *w, lq_err *err)
{
    qz_progress m = { 0 };
    const lq_status s = add_costs(&m, w, err);
    progress_left(secs, &m);
    progress_close(&m);
    return s;
}

double progress_left(double secs[PROGRESS_N], const qz_progress *m)
{
    double sum = 0;
    for (int k = 0; k < PROGRESS_N; k++)
        sum += secs[k] = (m->total[k] - m->done[k]) * m->usual;
    return sum;
}

/* 45 s, 7 min, 2.5 h */
static void span_text(char text[16], double secs)
{
    if (secs < 100)
        snprintf(text, 16, "%.0f s", ceil(secs));
    else if (secs < 6000)
        snprintf(text, 16, "%.0f min", secs / 60);
    else
        snprintf(text, 16, "%.1f h", secs / 3600);
}

const char *progress_line(char line[PROGRESS_LINE], const double secs[PROGRESS_N])
{
    char text[16];
    double sum = 0;
    for (int k = 0; k < PROGRESS_N; k++)
        sum += secs[k];
    span_text(text, sum);
    int at = snprintf(line, PROGRESS_LINE, "time: about %s on this machine as busy as it is", text);
    const char *before = " (";
    for (int k = 0; k < PROGRESS_N; k++) {
        if (secs[k] < 0.05 * sum) continue;
        span_text(text, secs[k]);
        at += snprintf(line + at, (size_t)(PROGRESS_LINE - at), "%s%s %s", before,
                       progress_phases[k], text);
        before = ", ";
    }
    snprintf(line + at, (size_t)(PROGRESS_LINE - at), "%s", *before == ',' ? ")" : "");
    return line;
}

lq_status progress_open(qz_progress *m, const progress_work *w, const progress_view *view,
                        const lq_job *outer, lq_err *err)
{
    *m = (qz_progress){ .outer = outer, .view = *view, .kind = -1 };
    for (int k = 0; k < PROGRESS_N; k++)
        m->reached[k] = -1;
    m->job = (lq_job){ .report = heard, .user = m, .stop = outer ? outer->stop : NULL };
    const lq_status s = add_costs(m, w, err);
    m->began = m->started = lq_now();
    return s;
}

void progress_close(qz_progress *m)
{
    free(m->cost);
    memset(m, 0, sizeof *m);
}

void progress_skip(qz_progress *m, int64_t layer, bool advance)
{
    const progress_kind kinds[] = { PROGRESS_STATISTICS, PROGRESS_ROUNDING, PROGRESS_ADVANCING };
    for (size_t i = 0; i < LQ_COUNT(kinds) - advance; i++) {
        m->total[kinds[i]] -= *cost_of(m, layer, kinds[i]);
        *cost_of(m, layer, kinds[i]) = 0;
    }
}

void progress_phase(qz_progress *m, progress_kind kind, int64_t layer)
{
    const double t = lq_now();
    account(m, t, 0);
    if (layer != m->layer || layer < 0) end_layer(m);
    m->kind = (int)kind;
    m->layer = layer;
    m->started = t;
    if (m->reached[kind] < 0) m->reached[kind] = 0;
    m->detail[0] = 0;
    show(m, t);
}

void progress_end(qz_progress *m, double secs[PROGRESS_N])
{
    if (m->cost) {
        account(m, lq_now(), 0);
        end_layer(m);
    }
    m->kind = -1;
    memcpy(secs, m->secs, sizeof m->secs);
}
