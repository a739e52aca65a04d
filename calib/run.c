/* calib/run.c - hidden states of the calibration tokens, layer after layer. */
#include "calib/run.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "runtime/forward.h"

enum { CHUNK_TOKENS = 2048 };

struct cal_run {
    model m;
    pool *p;
    int64_t n, len, per_chunk; /* windows, tokens in each, windows per chunk */
    bool want_h;
    float *state; /* [n*len][hidden], or one chunk when `fd` holds the rest */
    int fd;
    float *x; /* one chunk: the copy that a look consumes */
    lq_arena scratch;
};

bool cal_site_of(cal_site *site, arch_role r)
{
    static const struct {
        arch_role role;
        cal_site site;
    } sites[] = { { R_Q, CAL_ATTN },   { R_K, CAL_ATTN }, { R_V, CAL_ATTN },   { R_O, CAL_O },
                  { R_GATE, CAL_MLP }, { R_UP, CAL_MLP }, { R_DOWN, CAL_DOWN } };
    for (size_t i = 0; i < LQ_COUNT(sites); i++)
        if (sites[i].role == r) return *site = sites[i].site, true;
    return false;
}

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
    size_t n = (size_t)(chunk_windows(r, c) * r->len * r->m.cfg->hidden) * sizeof *x, done = 0;
    off_t at = (off_t)((size_t)c * chunk_floats(r) * sizeof *x);
    while (done < n) {
        uint8_t *b = (uint8_t *)x + done;
        ssize_t k = put ? pwrite(r->fd, b, n - done, at + (off_t)done)
                        : pread(r->fd, b, n - done, at + (off_t)done);
        if (k < 0 && errno == EINTR) continue;
        if (k <= 0)
            return lq_fail(err, LQ_EIO, "calibration state on disk: %s",
                           k < 0 ? strerror(errno) : "file too short");
        done += (size_t)k;
    }
    return LQ_OK;
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

/* A file without a name in `dir`. */
static int unnamed_file(const char *dir)
{
    int fd = open(dir, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (fd >= 0) return fd;
    char path[4096];
    int n = snprintf(path, sizeof path, "%s/state.tmp-XXXXXX", dir);
    if (n < 0 || (size_t)n >= sizeof path) return -1;
    fd = mkostemp(path, O_CLOEXEC);
    if (fd >= 0) unlink(path);
    return fd;
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
    r->per_chunk = CHUNK_TOKENS / r->len > 0 ? CHUNK_TOKENS / r->len : 1;
    lq_status s = model_load_frame(&r->m, src, p, err);
    if (s) goto done;
    size_t chunk = chunk_floats(r), all = chunk * (size_t)n_chunks(r) * sizeof(float);
    if (o->spill_dir && o->state_limit && all > o->state_limit) {
        r->fd = unnamed_file(o->spill_dir);
        if (r->fd < 0) {
            s = lq_fail(err, LQ_EIO, "%s: cannot make a file for the calibration state: %s",
                        o->spill_dir, strerror(errno));
            goto done;
        }
        all = chunk * sizeof(float);
    }
    r->state = malloc(all);
    r->x = malloc(chunk * sizeof *r->x);
    if (!r->state || !r->x)
        s = lq_fail(err, LQ_ENOMEM, "no memory for %zu bytes of calibration state", all);
    size_t need = fwd_layer_scratch(r->m.cfg, r->per_chunk * r->len, pool_threads(p));
    if (!s) s = lq_arena_init(&r->scratch, need, err);
    if (!s) s = embed_all(r, samples->ids, err);
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
    cal_stats *st;
    pool *p;
} look;

/* The first linear of a site to run brings the statistics of all of them. */
static void on_input(void *user, arch_role role, int64_t expert, const float *x, int64_t ldx,
                     int64_t T, int64_t K)
{
    look *k = user;
    cal_site site;
    (void)K;
    (void)expert;
    if ((role == R_Q || role == R_O || role == R_GATE || role == R_DOWN) &&
        cal_site_of(&site, role))
        cal_stats_add(&k->st[site], x, ldx, T, k->p);
}

static lq_status run_layer(cal_run *r, int64_t layer, const model_layer *l, cal_stats *st,
                           const lq_job *job, lq_err *err)
{
    look k = { st, r->p };
    fwd_tap tap = { on_input, &k };
    lq_status s = LQ_OK;
    for (int64_t c = 0; c < n_chunks(r) && !s; c++) {
        if (lq_stopped(job)) return lq_fail(err, LQ_EINTR, "interrupted");
        float *x;
        s = get_chunk(r, &x, c, err);
        if (s) break;
        int64_t w = chunk_windows(r, c);
        if (st) { /* looking: the state stays */
            memcpy(r->x, x, (size_t)(w * r->len * r->m.cfg->hidden) * sizeof *x);
            x = r->x;
        }
        s = fwd_layer(r->m.cfg, l, layer, x, w, r->len, MM_F32, st ? &tap : NULL, &r->scratch, r->p,
                      err);
        if (!s && !st) s = put_chunk(r, x, c, err);
    }
    return s;
}

lq_status cal_look(cal_run *r, cal_stats st[CAL_N_SITES], int64_t layer, const model_layer *l,
                   const lq_job *job, lq_err *err)
{
    const arch_config *c = r->m.cfg;
    static const arch_role roles[CAL_N_SITES] = { R_Q, R_O, R_GATE, R_DOWN };
    lq_status s = LQ_OK;
    for (int i = 0; i < CAL_N_SITES && !s; i++) {
        int64_t N, K;
        arch_role_shape(c, roles[i], &N, &K);
        s = cal_stats_init(&st[i], K, r->want_h, err);
    }
    if (!s) s = run_layer(r, layer, l, st, job, err);
    for (int i = 0; i < CAL_N_SITES && !s; i++)
        cal_stats_finish(&st[i]);
    return s;
}

lq_status cal_advance(cal_run *r, int64_t layer, const model_layer *l, const lq_job *job,
                      lq_err *err)
{
    return run_layer(r, layer, l, NULL, job, err);
}
