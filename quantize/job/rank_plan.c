/* quantize/job/rank_plan.c - see rank_plan.h. */
#include "quantize/job/rank_plan.h"

#include <stdlib.h>

#include "calib/forward_pass.h"
#include "calib/share.h"
#include "quantize/job/memory.h"
#include "quantize/layer/layer_share.h"
#include "quantize/methods/cholesky.h"

/* Multiply-adds of the pass that take as long as one of these (quantize/job/progress.c): N K^2 of rounding, of the choice of
 * scales; K^3 of a factor, in f64. */
static const double solving = 7.5, folding = 5, factor = 2;
static const double stored = 2, made = 4.25 / 8; /* bytes a weight */
enum { TILE = 256, CANDIDATES = 41 };

typedef struct {
    const arch_config *c;
    cal_share share; /* of the rank that has most */
    double T, mine;  /* tokens; of those the most that a rank has */
    double *load;    /* [ranks] rounding of what a layer has once */
    bool *site;      /* [ranks][CAL_N_SITES] whose factor a rank makes */
    double *tiles;   /* [ranks] of a factor that all make */
    rank_plan *out;
} counting;

static double larger(double a, double b) { return a > b ? a : b; }

/* Of n things that are dealt out one by one, the most that one of `ranks` has. */
static double most(double n, int ranks) { return ceil(n / ranks); }

/* A layer, as one process has it. */
typedef struct {
    double once, expert;     /* weights; of one expert */
    double cubes;            /* K^3 of an expert's sites */
    double h_once, h_expert; /* K^2 */
    double rows_once,
        rows_expert;     /* floats a token: of all sites; of an expert that it is sent to */
    double round_expert; /* N K^2 */
    double round_once, widest,
        sums;      /* likewise of the layer's own; the largest K; inputs of all sites */
    double shared; /* K^2 of the sites whose factors all ranks make */
} layer_counts;

/* Does a layer's own H of so many inputs have a factor that ranks share? */
static bool shares_factor(const counting *k, int64_t K)
{
    return k->out->ranks > 1 && K >= CHOLESKY_SHARED;
}

static void count_linear(layer_counts *l, bool seen[CAL_N_SITES], const counting *k, int64_t layer,
                         arch_role r)
{
    const arch_config *own = arch_at(k->c, layer);
    int64_t N, K;
    cal_site site;
    if (!arch_has(k->c, r, layer) || !arch_role_linear(r) || !arch_role_per_layer(r)) return;
    arch_role_shape(own, r, &N, &K);
    const double n = (double)N * (double)K, square = (double)K * (double)K;
    const bool expert = arch_role_per_expert(r), has = cal_site_of(&site, k->c, r);
    *(expert ? &l->expert : &l->once) += n;
    *(expert ? &l->round_expert : &l->round_once) += n * (double)K;
    l->widest = larger(l->widest, (double)K);
    if (!has || seen[site]) return;
    seen[site] = true;
    *(expert ? &l->h_expert : &l->h_once) += square;
    l->cubes += expert ? square * (double)K : 0;
    l->shared += !expert && shares_factor(k, K) ? square : 0;
    *(expert ? &l->rows_expert : &l->rows_once) += (double)K;
}

static layer_counts count_layer(const counting *k, int64_t layer)
{
    layer_counts l = { 0 };
    bool seen[CAL_N_SITES] = { false };
    for (arch_role r = 0; r < ARCH_N_ROLES; r++)
        count_linear(&l, seen, k, layer, r);
    return l;
}

/* The part of a factor that the rank makes that has most: they wait for each other at each column of tiles of the first
 * half of the work, and at the end of the second (quantize/methods/cholesky.c). */
static double factor_part(counting *k, int64_t K)
{
    const int64_t n = lq_ceil_div(K, CHOLESKY_TILE);
    double one = 0, all = 0;
    for (int64_t column = 0; column <= n; column++) { /* n: all rows of the second half */
        double busiest = 0;
        for (int i = 0; i < k->out->ranks; i++)
            k->tiles[i] = 0;
        for (int64_t row = 0; row < column; row++) {
            const double left = (double)(column - row);
            const double tiles = column < n ? left : left * (left - 1) / 2;
            double *of = &k->tiles[cholesky_owner(row, k->out->ranks)];
            all += tiles;
            *of += tiles;
            busiest = larger(busiest, *of);
        }
        one += busiest;
    }
    return one / all;
}

/* Pieces of the layer's own linears to so many ranks: what the busiest has to round. */
static double deal(counting *k, int ranks, int64_t layer, double all)
{
    const arch_config *own = arch_at(k->c, layer);
    double before = 0, together = 0;
    bool seen[CAL_N_SITES] = { false };
    for (int i = 0; i < ranks; i++)
        k->load[i] = 0;
    memset(k->site, 0, (size_t)ranks * CAL_N_SITES * sizeof *k->site);
    for (arch_role r = 0; r < ARCH_N_ROLES; r++) {
        int64_t N, K;
        cal_site site = CAL_ATTN;
        if (!arch_has(k->c, r, layer) || !arch_role_linear(r) || !arch_role_per_layer(r) ||
            arch_role_per_expert(r))
            continue;
        arch_role_shape(own, r, &N, &K);
        const int64_t step = N > LAYER_SHARE_ROWS ? LAYER_SHARE_ROWS : N;
        cal_site_of(&site, k->c, r);
        const double cube = factor * (double)K * (double)K * (double)K;
        const bool all_make = ranks > 1 && shares_factor(k, K);
        if (all_make && !seen[site]) together += factor_part(k, K) * cube;
        seen[site] = true;
        for (int64_t n = 0; n < N; n += step) {
            const int64_t rows = N - n < step ? N - n : step;
            const double cost = (double)rows * (double)K * (double)K;
            const int owner = layer_dealt(before + cost / 2, all, ranks);
            bool *of = k->site + (size_t)owner * CAL_N_SITES;
            before += cost;
            k->load[owner] += solving * cost;
            if (!of[site] && !all_make) k->load[owner] += cube;
            of[site] = true;
        }
    }
    double busiest = 0;
    for (int i = 0; i < ranks; i++)
        busiest = larger(busiest, k->load[i]);
    return busiest + together;
}

/* Of what the layer has once: H's tiles of one rank, of all. */
static void add_sums(counting *k, const layer_counts *l, double *one, double *all)
{
    const double tiles = l->h_once / TILE / TILE / 2;
    *all += k->T * l->h_once / 2;
    *one += k->T * l->h_once / 2 * (tiles > 1 ? most(tiles, k->out->ranks) / ceil(tiles) : 1);
}

/* What goes through the layers: states, the copy of a slice that a look consumes, scratch, and rows of a slice and a chunk
 * that ranks send each other. */
static double text_memory(const counting *k, const layer_counts *l)
{
    const arch_config *c = k->c;
    const int ranks = k->out->ranks;
    const int64_t slice = k->share.per_slice * k->share.len;
    const int64_t chunk = k->share.in_chunk > 1 ? k->share.per_chunk * k->share.len : 0;
    const double used = c->experts ? (double)c->experts_used : 0;
    const double all = l->rows_once + used * l->rows_expert;
    const double in = l->rows_once + used * l->rows_expert / ranks;
    const double sent = 4 * ((double)slice * (all + in) + (double)chunk * in) * (ranks > 1);
    return 4 * (k->mine + (double)slice) * (double)fwd_state(c) + sent +
           (double)fwd_layer_scratch(c, slice, 1);
}

/* What a layer that is matched has besides (calib/forward_pass.h): what attention made and the original's states, a chunk's
 * rows at a point, and what they are compared in. */
static double match_memory(const counting *k)
{
    const arch_config *c = k->c;
    const double width = (double)cal_stage_width(c), H = (double)c->hidden;
    const double slice = (double)(k->share.per_slice * k->share.len);
    const double chunk = k->out->ranks > 1 ? (double)(k->share.per_chunk * k->share.len) : 0;
    const bool keep_rows = cal_keeps_rows(c, (int64_t)k->mine);
    return 4 * (k->mine * (double)(cal_kept_width(c, keep_rows) + fwd_state(c)) +
                slice * (width + (double)cal_match_width(c)) + chunk * (width + H));
}

static void add_layer(counting *k, int64_t layer)
{
    const arch_config *c = k->c, *own = arch_at(c, layer);
    rank_plan *p = k->out;
    const layer_counts l = count_layer(k, layer);
    const double E = l.expert > 0 ? (double)c->experts : 0,
                 used = E > 0 ? (double)c->experts_used : 0;
    const double N = p->ranks, mine = E > 0 ? most(E, p->ranks) : 0, away = 1 - 1 / N;
    const bool matched = fwd_has_points(c, layer);
    const double glance = 1.0 / CAL_GLANCE;
    /* through the layer twice, to look and to go on; or once, and through gate and up once more, beside the original, of which
     * the products that compare both are as much again as a fifth; with experts twice beside it; attention over half of the
     * pairs */
    const double times = !matched ? 2 : fwd_points_to_end(c, layer) ? 2.7 + glance : 3 + glance;
    const double token = times * (l.once + used * l.expert) +
                         2 * (double)(k->share.len * own->heads * own->head_dim);
    double one = token * k->mine, all = token * k->T;
    add_sums(k, &l, &one, &all);
    const double sent = E > 0 ? k->T * used / E : 0; /* rows to an expert */
    const double expert = sent * l.h_expert / 2 + solving * l.round_expert +
                          folding * l.round_expert + factor * l.cubes;
    one += mine * expert;
    all += E * expert;
    one += folding * l.round_once * most(CANDIDATES, p->ranks) / CANDIDATES;
    all += folding * l.round_once;
    one += deal(k, p->ranks, layer, l.round_once);
    all += deal(k, 1, layer, l.round_once);
    p->work += one;
    k->out->all += all;
    /* rows, tiles, factors, the experts' small sums, rounded planes */
    const double rows = matched ? (1 + glance) * l.rows_once + 4 * (double)c->hidden : l.rows_once,
                 sums = matched ? 4 * l.h_once + 4 * (double)c->hidden * l.rows_once
                                : 2 * l.h_once; /* H of the glance too, and M */
    p->received += 4 * (k->T - k->T / N) * rows + sums * away + 6 * l.shared * away +
                   4 * k->T * used * l.rows_expert / N * away + 28 * E * l.rows_expert * away +
                   made * (l.once + E * l.expert) * away;
    const double weights = l.once + E * l.expert;
    const bool one_by_one = !shares_factor(k, (int64_t)l.widest); /* with its tiles */
    const double factors = 4 * l.shared + (one_by_one ? 8 : 4) * l.widest * l.widest;
    const double held = (2 * stored + made) * weights + 4 * l.once + 4 * l.h_once +
                        4 * mine * l.h_expert + factors + text_memory(k, &l) +
                        (matched ? match_memory(k) : 0);
    p->memory = larger(p->memory, held);
}

lq_status rank_plan_of(rank_plan *p, const arch_config *c, int ranks, int64_t windows, int64_t len,
                       lq_err *err)
{
    *p = (rank_plan){ .ranks = ranks };
    counting k = { .c = c, .out = p, .T = (double)(windows * len) };
    k.share = share_cut(ranks, 0, windows, len, cal_chunk(windows, len) / len);
    for (int64_t i = 0; i < share_mine(&k.share); i++)
        k.mine += (double)(share_windows(&k.share, share_at(&k.share, i)) * len);
    k.load = calloc((size_t)ranks, sizeof *k.load);
    k.tiles = calloc((size_t)ranks, sizeof *k.tiles);
    k.site = calloc((size_t)ranks * CAL_N_SITES, sizeof *k.site);
    lq_status s = k.load && k.tiles && k.site
                      ? LQ_OK
                      : lq_fail(err, LQ_ENOMEM, "no memory for %d ranks", ranks);
    for (int64_t i = 0; i < c->layers && !s; i++)
        add_layer(&k, i);
    p->memory += QZ_PROGRAM + (double)c->vocab * QZ_WORD + QZ_PER_THREAD + QZ_BLAS;
    free(k.load);
    free(k.tiles);
    free(k.site);
    return s;
}
