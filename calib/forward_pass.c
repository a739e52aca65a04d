/* calib/forward_pass.c - hidden states of the calibration tokens, layer after layer. */
#include "calib/forward_pass.h"

#include <assert.h>
#include <stdlib.h>
#include <unistd.h>

#include "calib/gemm_dev.h"
#include "calib/share.h"
#include "calib/spill.h"

enum { CHUNK_TOKENS = 2048 };

/* Rows of all tokens, or of one chunk where a file holds the rest. */
typedef struct {
    float *rows;
    int64_t width; /* floats a row at most */
    int fd;        /* -1: none */
} store;

struct cal_pass {
    model m;
    pool *p;
    int64_t n, len;   /* windows, tokens in each */
    cal_share share;  /* of which slices are ours: what is a chunk below is one of them */
    cal_found *found; /* where there are several ranks, and layers are looked at */
    float *all;       /* likewise a whole chunk's rows between stages */
    bool want_h, all_experts, sums, staged, keep_rows;
    dev *on;
    fwd_offload *offload; /* its products; NULL: the CPU's */
    gemm_dev *compares;   /* those that outputs are compared by; NULL: the CPU's */
    float outlier;
    float *(*weight)[CAL_N_SHARED];
    store state; /* fwd_state: of a chunk [T, hidden], then the rest */
    store
        inner; /* what is read at FWD_AT_O, until the state has joined it, then at FWD_AT_DOWN; width 0: none */
    store own; /* the original's; width 0: none */
    float *u;  /* of a chunk: what is read at a point; NULL: layers have none */
    /* likewise the original's, their difference, and what it makes of outputs */
    float *u0, *du, *d;
    float *all_d; /* rows compared of a whole chunk, where there are several ranks */
    float *x;     /* one chunk: the copy that a look consumes */
    lq_arena scratch;
};

const model *cal_model(const cal_pass *r) { return &r->m; }

/* ---- the state, chunk by chunk ---- */
static int64_t n_chunks(const cal_pass *r) { return share_mine(&r->share); }

static int64_t chunk_windows(const cal_pass *r, int64_t c)
{
    return share_windows(&r->share, share_at(&r->share, c));
}

static size_t chunk_floats(const cal_pass *r, const store *s)
{
    return (size_t)(r->share.per_slice * r->len * s->width);
}

/* Rows of `width` floats from or to the chunk's place in the file. */
static lq_status move_file(const cal_pass *r, const store *s, int64_t c, int64_t width, bool put,
                           lq_err *err)
{
    const size_t n = (size_t)(chunk_windows(r, c) * r->len * width) * sizeof(float);
    const size_t at = (size_t)c * chunk_floats(r, s) * sizeof(float);
    return put ? spill_put(s->fd, s->rows, n, at, err) : spill_get(s->fd, s->rows, n, at, err);
}

static float *place_of(const cal_pass *r, const store *s, int64_t c)
{
    return s->fd < 0 ? s->rows + (size_t)c * chunk_floats(r, s) : s->rows;
}

static lq_status get_chunk(const cal_pass *r, const store *s, int64_t c, int64_t width, lq_err *err)
{
    return s->fd < 0 ? LQ_OK : move_file(r, s, c, width, false, err);
}

static lq_status put_chunk(const cal_pass *r, const store *s, int64_t c, int64_t width, lq_err *err)
{
    return s->fd < 0 ? LQ_OK : move_file(r, s, c, width, true, err);
}

static lq_status open_store(store *s, const cal_pass *r, int64_t width, const char *spill_dir,
                            lq_err *err)
{
    s->width = width;
    lq_status st = LQ_OK;
    if (spill_dir && n_chunks(r) > 1) st = spill_open(&s->fd, spill_dir, err);
    if (st) return st;
    const int64_t held = s->fd < 0 && n_chunks(r) ? n_chunks(r) : 1;
    const size_t n = chunk_floats(r, s) * (size_t)held * sizeof *s->rows;
    s->rows = malloc(n);
    return s->rows ? LQ_OK
                   : lq_fail(err, LQ_ENOMEM, "no memory for %zu bytes of calibration state", n);
}

static void close_store(store *s)
{
    if (s->fd >= 0) close(s->fd);
    free(s->rows);
}

static lq_status embed_all(cal_pass *r, const int32_t *ids, lq_err *err)
{
    lq_status s = LQ_OK;
    for (int64_t c = 0; c < n_chunks(r) && !s; c++) {
        float *x = place_of(r, &r->state, c);
        const int64_t first = share_first(&r->share, share_at(&r->share, c));
        s = fwd_embed(&r->m, x, ids + first * r->len, chunk_windows(r, c), r->len, MM_F32,
                      &r->scratch, r->p, err);
        if (!s) s = put_chunk(r, &r->state, c, r->state.width, err);
        if (s || !r->own.width) continue;
        memcpy(place_of(r, &r->own, c), x,
               (size_t)(chunk_windows(r, c) * r->len * r->own.width) * sizeof *x);
        s = put_chunk(r, &r->own, c, r->own.width, err);
    }
    return s;
}

int64_t cal_stage_width(const arch_config *c)
{
    int64_t most = 0;
    for (int64_t i = 0; i < c->layers; i++)
        for (fwd_point at = FWD_AT_QKV; at < FWD_AT_END && fwd_has_points(c, i); at++) {
            const int64_t width = fwd_has_point(c, i, at) ? fwd_point_width(c, i, at) : 0;
            most = width > most ? width : most;
        }
    return most;
}

/* Between stages: of an MLP's inputs, with keep_rows alone. */
static bool is_kept(const arch_config *c, int64_t layer, fwd_point at, bool keep_rows)
{
    return (at == FWD_AT_O || (at == FWD_AT_DOWN && keep_rows)) && fwd_has_points(c, layer) &&
           fwd_has_point(c, layer, at);
}

int64_t cal_kept_width(const arch_config *c, bool keep_rows)
{
    int64_t most = 0;
    for (int64_t i = 0; i < c->layers; i++)
        for (fwd_point at = FWD_AT_QKV; at < FWD_AT_END; at++) {
            const bool kept = is_kept(c, i, at, keep_rows);
            const int64_t width = kept ? fwd_point_width(c, i, at) : 0;
            most = width > most ? width : most;
        }
    return most;
}

bool cal_keeps_rows(const arch_config *c, int64_t tokens)
{
    const int64_t width = cal_kept_width(c, true) - cal_kept_width(c, false);
    return tokens * width * (int64_t)sizeof(float) <= 1 << 30;
}

int64_t cal_match_width(const arch_config *c) { return 2 * cal_stage_width(c) + c->hidden; }

int64_t cal_chunk(int64_t n, int64_t len)
{
    const int64_t windows = CHUNK_TOKENS / len > 0 ? CHUNK_TOKENS / len : 1;
    return (windows < n ? windows : n) * len;
}

/* Room for what is between the stages of a layer, and for the original's states. */
static lq_status open_stages(cal_pass *r, const cal_opts *o, lq_err *err)
{
    const arch_config *c = r->m.cfg;
    const size_t rows = (size_t)(r->share.per_slice * r->len), width = (size_t)cal_stage_width(c),
                 hidden = (size_t)c->hidden, f = sizeof(float),
                 all = o->ranks ? (size_t)(r->share.per_chunk * r->len) : 0;
    lq_status s = open_store(&r->inner, r, cal_kept_width(c, o->keep_rows), o->spill_dir, err);
    if (!s && o->match) s = open_store(&r->own, r, fwd_state(c), o->spill_dir, err);
    if (s) return s;
    r->u = malloc(rows * width * f);
    r->all = all ? malloc(all * width * f) : NULL;
    bool ok = r->u && (!all || r->all);
    if (ok && o->match) {
        r->u0 = malloc(rows * width * f);
        r->du = malloc(rows * width * f);
        r->d = malloc(rows * hidden * f);
        r->all_d = all ? malloc(all * hidden * f) : NULL;
        ok = r->u0 && r->du && r->d && (!all || r->all_d);
    }
    return ok ? LQ_OK : lq_fail(err, LQ_ENOMEM, "no memory for a chunk of calibration state");
}

lq_status cal_open(cal_pass **out, src_source *src, const cal_samples *samples, const cal_opts *o,
                   pool *p, lq_err *err)
{
    *out = NULL;
    cal_pass *r = calloc(1, sizeof *r);
    if (!r) return lq_fail(err, LQ_ENOMEM, "no memory for calibration");
    r->p = p;
    r->state.fd = r->inner.fd = r->own.fd = -1;
    r->n = samples->n;
    r->len = samples->len;
    r->want_h = o->want_h;
    r->outlier = o->outlier;
    r->all_experts = o->all_experts;
    r->sums = o->sums;
    r->staged = o->staged;
    r->keep_rows = o->keep_rows;
    r->weight = o->weight;
    r->on = o->on;
    r->share = share_of(o->ranks, r->n, r->len, cal_chunk(r->n, r->len) / r->len);
    lq_status s = model_load_frame(&r->m, src, p, err);
    if (!s && o->logits) s = model_load_head(&r->m, p, err);
    if (!s && o->frame) s = o->frame(o->user, &r->m, err);
    if (!s && o->on) s = fwd_offload_open(&r->offload, o->on, p, err);
    if (!s && o->on && o->match) s = gemm_dev_open(&r->compares, o->on, err);
    if (s) goto done;
    bool stages = false, looks = false;
    for (int64_t i = 0; i < r->m.cfg->layers; i++) {
        const bool staged = o->staged && fwd_has_points(r->m.cfg, i);
        stages |= staged;
        looks |= !staged || !fwd_points_to_end(r->m.cfg, i);
    }
    looks |= o->looks;
    s = open_store(&r->state, r, fwd_state(r->m.cfg), o->spill_dir, err);
    if (!s && stages) s = open_stages(r, o, err);
    if (!s && looks && !(r->x = malloc(chunk_floats(r, &r->state) * sizeof *r->x)))
        s = lq_fail(err, LQ_ENOMEM, "no memory for a chunk of calibration state");
    if (!s && o->ranks && looks) s = found_open(&r->found, &r->share, err);
    size_t need = fwd_layer_scratch(r->m.cfg, r->share.per_slice * r->len, pool_threads(p));
    size_t head = fwd_logits_scratch(r->m.cfg, CAL_LOGIT_ROWS, pool_threads(p));
    if (o->logits && head > need) need = head;
    if (!s) s = lq_arena_init(&r->scratch, need, err);
    if (!s) s = embed_all(r, samples->ids, err);
    if (!s) model_drop_embed(&r->m);
done:
    if (s)
        cal_close(r);
    else
        *out = r;
    return s;
}

void cal_close(cal_pass *r)
{
    if (!r) return;
    fwd_offload_close(r->offload);
    gemm_dev_close(r->compares);
    close_store(&r->state);
    close_store(&r->inner);
    close_store(&r->own);
    found_close(r->found);
    free(r->d);
    free(r->du);
    free(r->u0);
    free(r->u);
    free(r->all_d);
    free(r->all);
    free(r->x);
    lq_arena_free(&r->scratch);
    model_free(&r->m);
    free(r);
}

/* ---- a layer ---- */
typedef struct {
    cal_layer_stats *st;
    const arch_config *c;
    pool *p;
    bool shared, all_experts;  /* look at what is no expert's; see cal_opts */
    arch_role of[CAL_N_SITES]; /* the role that brings a site's rows of this chunk */
    bool seen[CAL_N_SITES];
    cal_found *found; /* rows go here; NULL: into the statistics */
    int64_t every;    /* chunk that is looked at, from the first on */
    lq_status status;
    lq_err *err;
} look;

/* Several linears show the same input: the first of a site's roles in a chunk brings it. */
static void on_input(void *user, arch_role role, int64_t expert, const float *x, int64_t ldx,
                     int64_t T, int64_t K)
{
    look *k = user;
    cal_site site;
    if (!cal_site_of(&site, k->c, role) || (site < CAL_N_SHARED && !k->shared)) return;
    if (site == CAL_EXPERT_IN && k->all_experts) return;
    if (k->seen[site] && k->of[site] != role) return;
    k->seen[site] = true;
    k->of[site] = role;
    cal_stats *s = cal_stats_of(k->st, k->c, role, expert);
    if (!s || T == 0 || k->status) return;
    assert(s->K == K);
    if (!k->found)
        k->status = cal_stats_add(s, x, ldx, T, k->p, k->err);
    else if (!found_add(k->found, site, site < CAL_N_SHARED ? -1 : expert, x, ldx, T, K))
        k->status = lq_fail(k->err, LQ_ENOMEM, "no memory for rows of calibration");
}

/* Chunk c through the layer; k: looking, the state stays. */
static lq_status run_chunk(cal_pass *r, int64_t c, int64_t layer, const model_layer *l, look *k,
                           lq_err *err)
{
    fwd_tap tap = { .tap = on_input, .user = k, .inputs_only = true };
    float *x = place_of(r, &r->state, c);
    lq_status s = get_chunk(r, &r->state, c, r->state.width, err);
    if (s) return s;
    const int64_t w = chunk_windows(r, c);
    if (k) {
        memcpy(r->x, x, (size_t)(w * r->len * r->state.width) * sizeof *x);
        memset(k->seen, 0, sizeof k->seen);
        x = r->x;
    }
    s = fwd_layer(r->m.cfg, l, layer, x, w, r->len, MM_F32, k ? &tap : NULL, r->offload,
                  &r->scratch, r->p, err);
    if (!s && k) s = k->status;
    if (!s && !k) s = put_chunk(r, &r->state, c, r->state.width, err);
    return s;
}

static lq_status run_layer(cal_pass *r, int64_t layer, const model_layer *l, look *k,
                           const lq_job *job, lq_err *err)
{
    const int64_t mine = n_chunks(r), rounds = lq_ceil_div(r->share.n_slices, r->share.size);
    lq_status s = LQ_OK;
    if (r->offload) fwd_offload_drop(r->offload);
    for (int64_t c = 0; c < (k ? rounds : mine) && !s;
         c++) { /* of the last round we may have none */
        lq_report(job, "calibration", (double)c, (double)rounds);
        if (lq_stopped(job)) return lq_fail(err, LQ_EINTR, "interrupted");
        const bool wanted = !k || share_at(&r->share, c) / r->share.in_chunk % k->every == 0;
        if (c < mine && wanted) s = run_chunk(r, c, layer, l, k, err);
        if (!s && k && r->found) s = found_share(r->found, c, k->st, r->p, err);
    }
    return s;
}

/* Has a stage looked at the site? */
static bool looked_at(const cal_pass *r, int64_t layer, cal_site site)
{
    const arch_config *c = r->m.cfg;
    return r->staged && fwd_has_points(c, layer) && cal_at_point(c, layer, site);
}

/* Empty statistics of what the layer has; rest: but for what stages have looked at. */
static lq_status start_look(const cal_pass *r, cal_layer_stats *st, int64_t layer, int64_t first,
                            int64_t n, bool rest, lq_err *err)
{
    const arch_config *c = r->m.cfg, *own = arch_at(c, layer);
    bool has[CAL_N_SITES] = { false };
    lq_status s = LQ_OK;
    cal_site site;
    for (arch_role role = 0; role < ARCH_N_ROLES; role++)
        if (arch_has(c, role, layer) && cal_site_of(&site, c, role))
            has[site] = !rest || !looked_at(r, layer, site);
    if (r->all_experts) has[CAL_EXPERT_IN] = false;
    cal_layer_stats old = *st; /* the sites of an earlier look are kept */
    for (int i = 0; i < CAL_N_OF_EXPERT; i++) {
        for (int64_t e = 0; old.expert[i] && e < old.n_experts; e++)
            cal_stats_free(&old.expert[i][e]);
        free(old.expert[i]);
        st->expert[i] = NULL;
    }
    st->first = first;
    st->n_experts = n;
    st->tokens = r->n * r->len;
    for (int i = 0; i < CAL_N_SHARED && !s && first == 0; i++) {
        cal_stats_free(&st->site[i]);
        if (has[i])
            s = cal_stats_init(&st->site[i], cal_site_width(own, (cal_site)i), r->want_h, r->on,
                               err);
        st->site[i].limit = r->outlier;
        st->site[i].weight = r->weight ? r->weight[layer][i] : NULL;
        st->site[i].part = r->share.rank;
        st->site[i].parts = r->share.size;
    }
    for (int i = 0; i < CAL_N_OF_EXPERT && !s && n; i++) {
        st->expert[i] = calloc((size_t)n, sizeof *st->expert[i]);
        if (!st->expert[i]) return lq_fail(err, LQ_ENOMEM, "no memory for statistics");
        cal_site of = (cal_site)(CAL_N_SHARED + i);
        for (int64_t e = 0; e < n && !s && has[of]; e++) {
            const bool ours = share_of_expert(&r->share, first + e) == r->share.rank;
            s = cal_stats_init(&st->expert[i][e], cal_site_width(c, of), r->want_h && ours, NULL,
                               err);
            st->expert[i][e].limit = r->outlier;
            st->expert[i][e].elsewhere = r->want_h && !ours;
        }
    }
    return s;
}

/* An input that is not finite makes the statistics of all worthless, and the next layers'. */
static lq_status check_finite(const cal_pass *r, const cal_stats *s, cal_site site, int64_t layer,
                              lq_err *err)
{
    const arch_config *c = r->m.cfg;
    const int64_t bad = cal_stats_bad(s);
    arch_role role = 0;
    cal_site of;
    if (bad < 0) return LQ_OK;
    while (!arch_has(c, role, layer) || !cal_site_of(&of, c, role) || of != site)
        role++;
    return lq_fail(err, LQ_EVALUE,
                   "layer %lld: %s: expected finite inputs on the calibration text, found NaN or "
                   "Inf in input %lld: values overflow f32 (methods without calibration do not run "
                   "the model)",
                   (long long)layer, arch_role_text(role), (long long)bad);
}

static lq_status statistics(cal_pass *r, cal_layer_stats *st, int64_t layer, const model_layer *l,
                            int64_t first, int64_t n, int64_t every, const lq_job *job, lq_err *err)
{
    look k = { .st = st,
               .c = r->m.cfg,
               .p = r->p,
               .shared = first == 0,
               .all_experts = r->all_experts,
               .found = r->found,
               .every = every,
               .err = err };
    lq_status s = start_look(r, st, layer, first, n, every == 1, err);
    for (int i = 0; i < CAL_N_SHARED && every > 1; i++)
        st->site[i].weight = NULL; /* they are in the order of all tokens */
    if (!s) s = run_layer(r, layer, l, &k, job, err);
    for (int i = 0; i < CAL_N_SHARED && !s && first == 0; i++)
        if (st->site[i].K) {
            s = share_sums(&r->share, &st->site[i], err);
            if (!s && !r->sums) s = cal_stats_finish(&st->site[i], err);
            if (!s) s = check_finite(r, &st->site[i], (cal_site)i, layer, err);
        }
    for (int i = 0; i < CAL_N_OF_EXPERT && !s && n; i++)
        for (int64_t e = 0; e < n && !s; e++)
            if (st->expert[i][e].K) {
                s = share_means(&r->share, &st->expert[i][e], first + e, err);
                if (!s && !r->sums) s = cal_stats_finish(&st->expert[i][e], err);
                if (!s)
                    s = check_finite(r, &st->expert[i][e], (cal_site)(CAL_N_SHARED + i), layer,
                                     err);
            }
    return s;
}

lq_status cal_statistics(cal_pass *r, cal_layer_stats *st, int64_t layer, const model_layer *l,
                         int64_t first, int64_t n, const lq_job *job, lq_err *err)
{
    return statistics(r, st, layer, l, first, n, 1, job, err);
}

lq_status cal_glance(cal_pass *r, cal_layer_stats *st, int64_t layer, const model_layer *l,
                     const lq_job *job, lq_err *err)
{
    return statistics(r, st, layer, l, 0, 0, CAL_GLANCE, job, err);
}

lq_status cal_follow(cal_pass *r, int64_t layer, const model_layer *own, const lq_job *job,
                     lq_err *err)
{
    lq_status s = LQ_OK;
    if (r->offload) fwd_offload_drop(r->offload);
    for (int64_t c = 0; r->own.width && c < n_chunks(r) && !s; c++) {
        if (lq_stopped(job)) return lq_fail(err, LQ_EINTR, "interrupted");
        s = get_chunk(r, &r->own, c, r->own.width, err);
        if (!s)
            s = fwd_layer(r->m.cfg, own, layer, place_of(r, &r->own, c), chunk_windows(r, c),
                          r->len, MM_F32, NULL, r->offload, &r->scratch, r->p, err);
        if (!s) s = put_chunk(r, &r->own, c, r->own.width, err);
    }
    return s;
}

lq_status cal_advance(cal_pass *r, int64_t layer, const model_layer *l, const lq_job *job,
                      lq_err *err)
{
    return run_layer(r, layer, l, NULL, job, err);
}

/* ---- a layer in stages ---- */
static lq_status chunk_to(cal_pass *r, int64_t c, int64_t layer, const model_layer *l,
                          fwd_point from, fwd_point at, float *x, float *u, lq_err *err)
{
    return fwd_layer_to(r->m.cfg, l, layer, from, at, x, u, chunk_windows(r, c), r->len, MM_F32,
                        r->offload, &r->scratch, r->p, err);
}

/* to [rows, width] = x0 / by - x, or += (x0 - x) / scale */
typedef struct {
    float *to;
    const float *x0, *x, *by;
    float scale; /* 0: the first */
    int64_t rows, width;
} less_job;

enum { LESS_ROWS = 64 };

static void less_item(void *ctx, int64_t item, int thread)
{
    const less_job *j = ctx;
    const int64_t from = item * LESS_ROWS, W = j->width,
                  to = from + LESS_ROWS < j->rows ? from + LESS_ROWS : j->rows;
    (void)thread;
    for (int64_t t = from; t < to; t++) {
        float *restrict row = j->to + t * W;
        const float *x0 = j->x0 + t * W, *x = j->x + t * W;
        if (j->scale != 0)
            for (int64_t k = 0; k < W; k++)
                row[k] += (x0[k] - x[k]) / j->scale;
        else
            for (int64_t k = 0; k < W; k++)
                row[k] = (j->by ? x0[k] / j->by[k] : x0[k]) - x[k];
    }
}

/* A layer's stage. */
typedef struct {
    cal_pass *r;
    int64_t layer, K; /* floats of what is read there */
    const model_layer *l;
    const cal_original *by;
    fwd_point at;
    cal_stats *site; /* NULL: none */
    const float *d;  /* rows d of the chunk at work; NULL: none */
    int64_t have;    /* rows of it that are in r->all */
    lq_err *err;
} stage;

/* Where a stage that ends at a point begins, for the layer at work: what took attention or a state to make is kept for the
 * next one, and what gate and up make with keep_rows. */
static fwd_point begins_at(const cal_pass *r, int64_t layer, fwd_point at)
{
    const arch_config *c = r->m.cfg;
    if (at <= FWD_AT_O) return FWD_AT_QKV;
    if (at == FWD_AT_MLP && fwd_has_point(c, layer, FWD_AT_O)) return FWD_AT_O;
    if (at == FWD_AT_END && is_kept(c, layer, FWD_AT_DOWN, r->keep_rows)) return FWD_AT_DOWN;
    return fwd_has_point(c, layer, FWD_AT_MLP) ? FWD_AT_MLP : FWD_AT_O;
}

/* What is read of chunk c at the point: u. */
static lq_status go_on(const stage *k, int64_t c)
{
    cal_pass *r = k->r;
    const arch_config *cfg = r->m.cfg;
    const fwd_point from = begins_at(r, k->layer, k->at);
    const size_t T = (size_t)(chunk_windows(r, c) * r->len);
    float *x = place_of(r, &r->state, c), *kept = place_of(r, &r->inner, c);
    lq_status s = get_chunk(r, &r->state, c, r->state.width, k->err);
    if (!s && is_kept(cfg, k->layer, from, r->keep_rows)) {
        const int64_t width = fwd_point_width(cfg, k->layer, from);
        s = get_chunk(r, &r->inner, c, width, k->err);
        memcpy(r->u, kept, T * (size_t)width * sizeof *kept);
    }
    if (!s) s = chunk_to(r, c, k->layer, k->l, from, k->at, x, r->u, k->err);
    if (!s && is_kept(cfg, k->layer, k->at, r->keep_rows)) {
        memcpy(kept, r->u, T * (size_t)k->K * sizeof *kept);
        s = put_chunk(r, &r->inner, c, k->K, k->err);
    }
    const bool along =
        r->state.width > r->m.cfg->hidden; /* K and V that later layers read, or the like */
    const bool changed = from == FWD_AT_O || k->at == FWD_AT_END || (k->at == FWD_AT_O && along);
    return !s && changed ? put_chunk(r, &r->state, c, r->state.width, k->err) : s;
}

/* Rows d of chunk c, of which x is here and of the original. */
static const float *compare(const stage *k, int64_t c)
{
    const cal_pass *r = k->r;
    const cal_original *by = k->by;
    const int64_t T = chunk_windows(r, c) * r->len, H = r->m.cfg->hidden, K = k->K;
    less_job j = { r->du, r->u0, r->u, by->cols, 0, T, K };
    pool_run(r->p, lq_ceil_div(T, LESS_ROWS), less_item, &j);
    if (!cal_ends_branch(k->at)) return r->du;
    for (int64_t t = 0; t < T; t += r->len) /* a window's sums are the same in any slice */
        gemm_dev_run(r->compares, r->d + t * H, H, (gemm_in){ r->du + t * K, K, false },
                     (gemm_in){ by->W, K, true }, r->len, H, K, 0, r->p);
    if (by->scale == 0) return r->d;
    j = (less_job){
        r->d, place_of(r, &r->own, c), place_of(r, &r->state, c), NULL, by->scale, T, H
    };
    pool_run(r->p, lq_ceil_div(T, LESS_ROWS), less_item, &j);
    return r->d;
}

/* The original at the same point, and what both are compared by. Nothing waits for its linears: its state goes on at once
 * through the last one of a branch; of a layer with experts as a whole, later (cal_follow). */
static lq_status follow(stage *k, int64_t c)
{
    cal_pass *r = k->r;
    const fwd_point at = k->at, from = at > FWD_AT_O ? FWD_AT_MLP : FWD_AT_QKV;
    const fwd_point next = fwd_next_point(r->m.cfg, k->layer, at);
    float *x = place_of(r, &r->own, c);
    lq_status s = get_chunk(r, &r->own, c, r->own.width, k->err);
    if (!s) s = chunk_to(r, c, k->layer, k->by->own, from, at, x, r->u0, k->err);
    if (!s && k->site->D) k->d = compare(k, c);
    if (!s) s = gemm_dev_check(r->compares, k->err);
    if (s || !cal_ends_branch(at) || !fwd_points_to_end(r->m.cfg, k->layer)) return s;
    s = chunk_to(r, c, k->layer, k->by->own, at, next, x, r->u0, k->err);
    return s ? s : put_chunk(r, &r->own, c, r->own.width, k->err);
}

/* What is read at the point, [T,K] of the slices of a round in their order, into the statistics. */
static lq_status add_round(stage *k, int64_t round)
{
    cal_pass *r = k->r;
    cal_stats *site = k->site;
    const cal_share *sh = &r->share;
    const int64_t K = k->K, D = site->D, first = round * sh->size;
    lq_status s = LQ_OK;
    if (sh->size == 1)
        return cal_stats_add_with(site, r->u, K, k->d, D, chunk_windows(r, round) * r->len, r->p,
                                  k->err);
    for (int64_t slice = first; slice < first + sh->size && slice < sh->n_slices && !s; slice++) {
        const int owner = share_owner(sh, slice);
        const bool ours = owner == sh->rank;
        const int64_t T = share_windows(sh, slice) * r->len;
        float *x = r->all + k->have * K, *d = D ? r->all_d + k->have * D : NULL;
        const size_t bytes = (size_t)(T * K) * sizeof *x, more = (size_t)(T * D) * sizeof *d;
        if (ours) memcpy(x, r->u, bytes);
        if (ours && D) memcpy(d, k->d, more);
        s = comm_broadcast(sh->ranks, owner, x, bytes, k->err);
        if (!s && D) s = comm_broadcast(sh->ranks, owner, d, more, k->err);
        k->have += T;
        if (s || !share_ends(sh, slice)) continue;
        s = cal_stats_add_with(site, r->all, K, D ? r->all_d : NULL, D, k->have, r->p, k->err);
        k->have = 0;
    }
    return s;
}

lq_status cal_stage(cal_pass *r, cal_layer_stats *st, int64_t layer, const model_layer *l,
                    const cal_original *by, fwd_point at, const lq_job *job, lq_err *err)
{
    const cal_site of = at < FWD_AT_END ? cal_site_at(r->m.cfg, layer, at) : CAL_N_SITES;
    const int64_t K = fwd_point_width(r->m.cfg, layer, at), mine = n_chunks(r),
                  rounds = lq_ceil_div(r->share.n_slices, r->share.size);
    stage k = { .r = r, .layer = layer, .K = K, .l = l, .by = by, .at = at, .err = err };
    lq_status s = LQ_OK;
    if (r->offload) fwd_offload_drop(r->offload);
    assert(r->u && fwd_has_points(r->m.cfg, layer) && (st || at == FWD_AT_END));
    assert(!by || r->own.width);
    if (at < FWD_AT_END) {
        cal_layer_stats_free(st);
        st->tokens = r->n * r->len;
        k.site = &st->site[of];
        s = cal_stats_init(k.site, K, r->want_h, r->on, err);
        if (!s && by && by->match)
            s = cal_stats_match(k.site, cal_ends_branch(at) ? r->m.cfg->hidden : K, err);
        k.site->limit = r->outlier;
        k.site->weight = r->weight ? r->weight[layer][of] : NULL;
        k.site->part = r->share.rank;
        k.site->parts = r->share.size;
    }
    if (by) gemm_dev_keep(r->compares, by->W, r->m.cfg->hidden * K);
    for (int64_t c = 0; c < rounds && !s; c++) { /* of the last we may have none */
        lq_report(job, "calibration", (double)(at * rounds + c), (double)(FWD_N_POINTS * rounds));
        s = lq_stopped(job) ? lq_fail(err, LQ_EINTR, "interrupted") : LQ_OK;
        if (!s && c < mine) s = go_on(&k, c);
        if (c < mine && !s && by && k.site) s = follow(&k, c);
        if (!s && k.site) s = add_round(&k, c);
    }
    if (by) gemm_dev_forget(r->compares, by->W);
    if (!s && k.site) s = share_sums(&r->share, k.site, err);
    if (!s && k.site) s = cal_stats_finish(k.site, err);
    return s || !k.site ? s : check_finite(r, k.site, of, layer, err);
}

lq_status cal_logits(cal_pass *r, float *logits, int64_t window, int64_t from, int64_t n,
                     lq_err *err)
{
    const int64_t row = window % r->share.per_chunk * r->len + from;
    const int64_t c = window / r->share.per_chunk;
    float *x = place_of(r, &r->state, c);
    assert(n <= CAL_LOGIT_ROWS && from + n <= r->len);
    lq_status s = get_chunk(r, &r->state, c, r->state.width, err);
    return s ? s
             : fwd_logits(&r->m, logits, x + row * r->m.cfg->hidden, n, MM_F32, &r->scratch, r->p,
                          err);
}
