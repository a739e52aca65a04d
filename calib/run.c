/* calib/run.c - hidden states of the calibration tokens, layer after layer. */
#include "calib/run.h"

#include <assert.h>
#include <stdlib.h>
#include <unistd.h>

#include "calib/spill.h"
#include "runtime/forward.h"

enum { CHUNK_TOKENS = 2048 };

struct cal_run {
    model m;
    pool *p;
    int64_t n, len, per_chunk; /* windows, tokens in each, windows per chunk */
    bool want_h, all_experts;
    float outlier;
    float *state; /* [n*len][hidden], or one chunk when `fd` holds the rest */
    int fd;       /* -1: none */
    float *x;     /* one chunk: the copy that a look consumes */
    lq_arena scratch;
};

const model *cal_model(const cal_run *r) { return &r->m; }

/* ---- the state, chunk by chunk ---- */
static int64_t n_chunks(const cal_run *r) { return lq_ceil_div(r->n, r->per_chunk); }

static int64_t chunk_windows(const cal_run *r, int64_t c)
{
    int64_t left = r->n - c * r->per_chunk;
    return left < r->per_chunk ? left : r->per_chunk;
}

static size_t chunk_floats(const cal_run *r)
{
    return (size_t)(r->per_chunk * r->len * r->m.cfg->hidden);
}

static lq_status move_file(const cal_run *r, float *x, int64_t c, bool put, lq_err *err)
{
    const size_t n = (size_t)(chunk_windows(r, c) * r->len * r->m.cfg->hidden);
    const size_t at = (size_t)c * chunk_floats(r);
    return put ? spill_put(r->fd, x, n, at, err) : spill_get(r->fd, x, n, at, err);
}

static lq_status get_chunk(const cal_run *r, float **x, int64_t c, lq_err *err)
{
    *x = r->fd < 0 ? r->state + (size_t)c * chunk_floats(r) : r->state;
    return r->fd < 0 ? LQ_OK : move_file(r, *x, c, false, err);
}

static lq_status put_chunk(const cal_run *r, float *x, int64_t c, lq_err *err)
{
    return r->fd < 0 ? LQ_OK : move_file(r, x, c, true, err);
}

static lq_status embed_all(cal_run *r, const int32_t *ids, lq_err *err)
{
    lq_status s = LQ_OK;
    for (int64_t c = 0; c < n_chunks(r) && !s; c++) {
        float *x = r->fd < 0 ? r->state + (size_t)c * chunk_floats(r) : r->state;
        s = fwd_embed(&r->m, x, ids + c * r->per_chunk * r->len, chunk_windows(r, c), r->len,
                      MM_F32, &r->scratch, r->p, err);
        if (!s) s = put_chunk(r, x, c, err);
    }
    return s;
}

int64_t cal_chunk(int64_t n, int64_t len)
{
    const int64_t windows = CHUNK_TOKENS / len > 0 ? CHUNK_TOKENS / len : 1;
    return (windows < n ? windows : n) * len;
}

lq_status cal_open(cal_run **out, src_source *src, const cal_samples *samples, const cal_opts *o,
                   pool *p, lq_err *err)
{
    *out = NULL;
    cal_run *r = calloc(1, sizeof *r);
    if (!r) return lq_fail(err, LQ_ENOMEM, "no memory for calibration");
    r->p = p;
    r->fd = -1;
    r->n = samples->n;
    r->len = samples->len;
    r->want_h = o->want_h;
    r->outlier = o->outlier;
    r->all_experts = o->all_experts;
    r->per_chunk = cal_chunk(r->n, r->len) / r->len;
    lq_status s = model_load_frame(&r->m, src, p, err);
    if (!s && o->logits) s = model_load_head(&r->m, p, err);
    if (!s && o->frame) s = o->frame(o->user, &r->m, err);
    if (s) goto done;
    size_t chunk = chunk_floats(r), all = chunk * (size_t)n_chunks(r) * sizeof(float);
    if (o->spill_dir && n_chunks(r) > 1) {
        s = spill_open(&r->fd, o->spill_dir, err);
        if (s) goto done;
        all = chunk * sizeof(float);
    }
    r->state = malloc(all);
    r->x = malloc(chunk * sizeof *r->x);
    if (!r->state || !r->x)
        s = lq_fail(err, LQ_ENOMEM, "no memory for %zu bytes of calibration state", all);
    size_t need = fwd_layer_scratch(r->m.cfg, r->per_chunk * r->len, pool_threads(p));
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

void cal_close(cal_run *r)
{
    if (!r) return;
    if (r->fd >= 0) close(r->fd);
    free(r->state);
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
    if (!s || T == 0) return;
    assert(s->K == K);
    (void)K;
    cal_stats_add(s, x, ldx, T, k->p);
}

static lq_status run_layer(cal_run *r, int64_t layer, const model_layer *l, look *k,
                           const lq_job *job, lq_err *err)
{
    fwd_tap tap = { .tap = on_input, .user = k, .inputs_only = true };
    lq_status s = LQ_OK;
    for (int64_t c = 0; c < n_chunks(r) && !s; c++) {
        lq_report(job, "calibration", (double)c, (double)n_chunks(r));
        if (lq_stopped(job)) return lq_fail(err, LQ_EINTR, "interrupted");
        float *x;
        s = get_chunk(r, &x, c, err);
        if (s) break;
        int64_t w = chunk_windows(r, c);
        if (k) { /* looking: the state stays */
            memcpy(r->x, x, (size_t)(w * r->len * r->m.cfg->hidden) * sizeof *x);
            memset(k->seen, 0, sizeof k->seen);
            x = r->x;
        }
        s = fwd_layer(r->m.cfg, l, layer, x, w, r->len, MM_F32, k ? &tap : NULL, &r->scratch, r->p,
                      err);
        if (!s && !k) s = put_chunk(r, x, c, err);
    }
    return s;
}

/* Empty statistics of what the layer has. */
static lq_status start_look(const cal_run *r, cal_layer_stats *st, int64_t layer, int64_t first,
                            int64_t n, lq_err *err)
{
    const arch_config *c = r->m.cfg;
    bool has[CAL_N_SITES] = { false };
    lq_status s = LQ_OK;
    cal_site site;
    for (arch_role role = 0; role < ARCH_N_ROLES; role++)
        if (arch_has(c, role, layer) && cal_site_of(&site, c, role)) has[site] = true;
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
            s = cal_stats_init(&st->site[i], cal_site_width(c, (cal_site)i), r->want_h, err);
        st->site[i].limit = r->outlier;
    }
    for (int i = 0; i < CAL_N_OF_EXPERT && !s && n; i++) {
        st->expert[i] = calloc((size_t)n, sizeof *st->expert[i]);
        if (!st->expert[i]) return lq_fail(err, LQ_ENOMEM, "no memory for statistics");
        cal_site of = (cal_site)(CAL_N_SHARED + i);
        for (int64_t e = 0; e < n && !s && has[of]; e++) {
            s = cal_stats_init(&st->expert[i][e], cal_site_width(c, of), r->want_h, err);
            st->expert[i][e].limit = r->outlier;
        }
    }
    return s;
}

/* An input that is not finite makes the statistics of all worthless, and the next layers'. */
static lq_status check_finite(const cal_run *r, const cal_stats *s, cal_site site, int64_t layer,
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

lq_status cal_look(cal_run *r, cal_layer_stats *st, int64_t layer, const model_layer *l,
                   int64_t first, int64_t n, const lq_job *job, lq_err *err)
{
    look k = {
        .st = st, .c = r->m.cfg, .p = r->p, .shared = first == 0, .all_experts = r->all_experts
    };
    lq_status s = start_look(r, st, layer, first, n, err);
    if (!s) s = run_layer(r, layer, l, &k, job, err);
    for (int i = 0; i < CAL_N_SHARED && !s && first == 0; i++)
        if (st->site[i].K) {
            cal_stats_finish(&st->site[i]);
            s = check_finite(r, &st->site[i], (cal_site)i, layer, err);
        }
    for (int i = 0; i < CAL_N_OF_EXPERT && !s && n; i++)
        for (int64_t e = 0; e < n && !s; e++)
            if (st->expert[i][e].K) {
                cal_stats_finish(&st->expert[i][e]);
                s = check_finite(r, &st->expert[i][e], (cal_site)(CAL_N_SHARED + i), layer, err);
            }
    return s;
}

lq_status cal_advance(cal_run *r, int64_t layer, const model_layer *l, const lq_job *job,
                      lq_err *err)
{
    return run_layer(r, layer, l, NULL, job, err);
}

lq_status cal_logits(cal_run *r, float *logits, int64_t window, int64_t from, int64_t n,
                     lq_err *err)
{
    const int64_t row = window % r->per_chunk * r->len + from;
    float *x;
    assert(n <= CAL_LOGIT_ROWS && from + n <= r->len);
    lq_status s = get_chunk(r, &x, window / r->per_chunk, err);
    return s ? s
             : fwd_logits(&r->m, logits, x + row * r->m.cfg->hidden, n, MM_F32, &r->scratch, r->p,
                          err);
}
