/* calib/share.c - see share.h. */
#include "calib/share.h"

#include <assert.h>
#include <stdlib.h>

enum { TAG_EXPERTS = 1 };

cal_share share_of(comm *ranks, int64_t n, int64_t len, int64_t per_chunk)
{
    cal_share s = share_cut(comm_size(ranks), comm_rank(ranks), n, len, per_chunk);
    s.ranks = ranks;
    return s;
}

cal_share share_cut(int size, int rank, int64_t n, int64_t len, int64_t per_chunk)
{
    cal_share s = { .rank = rank,
                    .size = size,
                    .n = n,
                    .len = len,
                    .per_chunk = per_chunk,
                    .per_slice = per_chunk };
    for (;; s.per_slice =
                lq_ceil_div(s.per_slice, 2)) { /* two for each rank, where there are as many */
        const int64_t whole = n / per_chunk, rest = n % per_chunk;
        s.in_chunk = lq_ceil_div(per_chunk, s.per_slice);
        s.n_slices = whole * s.in_chunk + lq_ceil_div(rest, s.per_slice);
        if (s.size == 1 || s.per_slice == 1 || s.n_slices >= 2 * s.size) return s;
    }
}

int64_t share_mine(const cal_share *s)
{
    return s->n_slices > s->rank ? lq_ceil_div(s->n_slices - s->rank, s->size) : 0;
}

int64_t share_first(const cal_share *s, int64_t slice)
{
    return slice / s->in_chunk * s->per_chunk + slice % s->in_chunk * s->per_slice;
}

int64_t share_windows(const cal_share *s, int64_t slice)
{
    const int64_t first = share_first(s, slice);
    const int64_t chunk = (slice / s->in_chunk + 1) * s->per_chunk,
                  end = chunk < s->n ? chunk : s->n;
    return end - first < s->per_slice ? end - first : s->per_slice;
}

bool share_ends(const cal_share *s, int64_t slice)
{
    return slice + 1 == s->n_slices || (slice + 1) % s->in_chunk == 0;
}

/* ---- rows ---- */
/* Floats that grow. */
typedef struct {
    float *p;
    size_t n, cap;
} rows;

static float *rows_grow(rows *r, size_t n)
{
    if (r->n + n > r->cap) {
        const size_t cap = r->n + n > 2 * r->cap ? r->n + n : 2 * r->cap;
        float *p = realloc(r->p, cap * sizeof *p);
        if (!p) return NULL;
        r->p = p;
        r->cap = cap;
    }
    r->n += n;
    return r->p + r->n - n;
}

/* Inputs as they were found, in order. */
typedef struct {
    int64_t site, expert; /* -1: what the layer has once */
    int64_t T, K;
} found_entry;

struct cal_found {
    const cal_share *s;
    found_entry *e, *theirs; /* ours; those of the slice that is shared */
    size_t n, cap, cap_theirs;
    rows *own;   /* [1 + size]: what all get; what the owner of experts gets */
    rows in[2];  /* the same of another rank's slice, for us: one entry; all of our experts */
    rows *chunk; /* what has come of a chunk, by statistics; n_chunk of them */
    size_t n_chunk;
};

lq_status found_open(cal_found **out, const cal_share *s, lq_err *err)
{
    cal_found *f = *out = calloc(1, sizeof *f);
    if (f) f->own = calloc((size_t)s->size + 1, sizeof *f->own);
    if (f && f->own) {
        f->s = s;
        return LQ_OK;
    }
    free(f);
    *out = NULL;
    return lq_fail(err, LQ_ENOMEM, "no memory for rows of calibration");
}

void found_close(cal_found *f)
{
    if (!f) return;
    for (int i = 0; i <= f->s->size; i++)
        free(f->own[i].p);
    for (size_t i = 0; i < f->n_chunk; i++)
        free(f->chunk[i].p);
    free(f->in[0].p);
    free(f->in[1].p);
    free(f->own);
    free(f->chunk);
    free(f->e);
    free(f->theirs);
    free(f);
}

static bool room_for(found_entry **e, size_t *cap, size_t n)
{
    if (n <= *cap) return true;
    const size_t more = n > 2 * *cap ? n : 2 * *cap;
    found_entry *p = realloc(*e, more * sizeof *p);
    if (!p) return false;
    *e = p;
    *cap = more;
    return true;
}

bool found_add(cal_found *f, cal_site site, int64_t expert, const float *x, int64_t ldx, int64_t T,
               int64_t K)
{
    rows *to = &f->own[expert < 0 ? 0 : 1 + share_of_expert(f->s, expert)];
    if (!room_for(&f->e, &f->cap, f->n + 1)) return false;
    float *at = rows_grow(to, (size_t)(T * K));
    if (!at) return false;
    for (int64_t t = 0; t < T; t++)
        memcpy(at + t * K, x + t * ldx, (size_t)K * sizeof *at);
    f->e[f->n++] = (found_entry){ (int64_t)site, expert, T, K };
    return true;
}

static lq_status no_room(lq_err *err)
{
    return lq_fail(err, LQ_ENOMEM, "no memory for rows of calibration");
}

/* Floats of the entries of a rank's experts. */
static size_t floats_for(const cal_found *f, const found_entry *e, size_t n, int to)
{
    size_t sum = 0;
    for (size_t i = 0; i < n; i++)
        if (e[i].expert >= 0 && share_of_expert(f->s, e[i].expert) == to)
            sum += (size_t)(e[i].T * e[i].K);
    return sum;
}

/* Rank `from`'s entries, and its rows of our experts. */
static lq_status get_found(cal_found *f, int from, size_t *n, lq_err *err)
{
    const cal_share *s = f->s;
    const bool ours = from == s->rank;
    uint64_t count = f->n;
    lq_status st = comm_broadcast(s->ranks, from, &count, sizeof count, err);
    if (st) return st;
    *n = (size_t)count;
    if (!room_for(&f->theirs, &f->cap_theirs, *n)) return no_room(err);
    if (ours) memcpy(f->theirs, f->e, *n * sizeof *f->e);
    st = comm_broadcast(s->ranks, from, f->theirs, *n * sizeof *f->theirs, err);
    for (int to = 0; to < s->size && ours && !st; to++)
        if (to != from && f->own[1 + to].n)
            st = comm_send(s->ranks, to, TAG_EXPERTS, f->own[1 + to].p,
                           f->own[1 + to].n * sizeof *f->own[0].p, err);
    if (st || ours) return st;
    const size_t own = floats_for(f, f->theirs, *n, s->rank);
    f->in[1].n = 0;
    if (!own) return LQ_OK;
    if (!rows_grow(&f->in[1], own)) return no_room(err);
    return comm_recv(s->ranks, from, TAG_EXPERTS, f->in[1].p, own * sizeof *f->in[1].p, err);
}

/* The rows of entry e, which all get: of rank `from`, which has them at `own`. One entry at a time, so that what has come is
 * added while it is in the cache. */
static lq_status get_rows(cal_found *f, int from, const found_entry *e, float *own, const float **x,
                          lq_err *err)
{
    const size_t n = (size_t)(e->T * e->K);
    f->in[0].n = 0;
    float *to = from == f->s->rank ? own : rows_grow(&f->in[0], n);
    *x = to;
    return to ? comm_broadcast(f->s->ranks, from, to, n * sizeof *to, err) : no_room(err);
}

/* ---- chunks ---- */
static cal_stats *stats_at(cal_layer_stats *st, size_t i)
{
    if (i < CAL_N_SHARED) return &st->site[i];
    i -= CAL_N_SHARED;
    return &st->expert[i / (size_t)st->n_experts][i % (size_t)st->n_experts];
}

static size_t index_of(const cal_layer_stats *st, const found_entry *e)
{
    if (e->expert < 0) return (size_t)e->site;
    return CAL_N_SHARED +
           (size_t)((e->site - CAL_N_SHARED) * st->n_experts + e->expert - st->first);
}

static lq_status add_rows(cal_found *f, cal_layer_stats *st, const found_entry *e, const float *x,
                          pool *p, lq_err *err)
{
    const size_t i = index_of(st, e), n = (size_t)(e->T * e->K);
    if (f->s->in_chunk == 1) /* as it was found */
        return cal_stats_add(stats_at(st, i), x, e->K, e->T, p, err);
    float *to = rows_grow(&f->chunk[i], n);
    if (!to) return no_room(err);
    memcpy(to, x, n * sizeof *x);
    return LQ_OK;
}

static lq_status end_chunk(cal_found *f, cal_layer_stats *st, pool *p, lq_err *err)
{
    lq_status s = LQ_OK;
    for (size_t i = 0; i < f->n_chunk && !s; i++) {
        rows *r = &f->chunk[i];
        if (!r->n) continue;
        cal_stats *to = stats_at(st, i);
        s = cal_stats_add(to, r->p, to->K, (int64_t)r->n / to->K, p, err);
        r->n = 0;
    }
    return s;
}

static lq_status room_for_chunks(cal_found *f, const cal_layer_stats *st, lq_err *err)
{
    const size_t n = CAL_N_SHARED + CAL_N_OF_EXPERT * (size_t)st->n_experts;
    if (n <= f->n_chunk) return LQ_OK;
    rows *r = realloc(f->chunk, n * sizeof *r);
    if (!r) return no_room(err);
    memset(r + f->n_chunk, 0, (n - f->n_chunk) * sizeof *r);
    f->chunk = r;
    f->n_chunk = n;
    return LQ_OK;
}

lq_status found_share(cal_found *f, int64_t round, cal_layer_stats *st, pool *p, lq_err *err)
{
    const cal_share *s = f->s;
    lq_status e = room_for_chunks(f, st, err);
    for (int from = 0; from < s->size && !e; from++) {
        const int64_t slice = round * s->size + from;
        const bool ours = from == s->rank;
        size_t n = 0, at[2] = { 0, 0 };
        if (slice >= s->n_slices) break;
        e = get_found(f, from, &n, err);
        for (size_t i = 0; i < n && !e; i++) {
            const found_entry *x = &f->theirs[i];
            const int one = x->expert >= 0;
            if (one && share_of_expert(s, x->expert) != s->rank) continue;
            const rows *in = ours ? &f->own[one ? 1 + s->rank : 0] : &f->in[1];
            float *own = ours || one ? in->p + at[one] : NULL;
            const float *r = own;
            if (!one) e = get_rows(f, from, x, own, &r, err);
            if (!e) e = add_rows(f, st, x, r, p, err);
            at[one] += (size_t)(x->T * x->K);
        }
        if (!e && share_ends(s, slice)) e = end_chunk(f, st, p, err);
    }
    for (int i = 0; i <= s->size; i++)
        f->own[i].n = 0;
    f->n = 0;
    return e;
}

/* ---- complete sums ---- */
static lq_status share_columns(const cal_share *s, cal_stats *of, int part, lq_err *err)
{
    int64_t from, to;
    cal_stats_columns(of, part, &from, &to);
    const size_t n = (size_t)(to - from);
    lq_status st = comm_broadcast(s->ranks, part, of->sum_abs + from, n * sizeof *of->sum_abs, err);
    if (!st) st = comm_broadcast(s->ranks, part, of->sum_sq + from, n * sizeof *of->sum_sq, err);
    if (!st) st = comm_broadcast(s->ranks, part, of->reached + from, n * sizeof *of->reached, err);
    return st ? st
              : comm_broadcast(s->ranks, part, of->max_abs + from, n * sizeof *of->max_abs, err);
}

lq_status share_sums(const cal_share *s, cal_stats *of, lq_err *err)
{
    if (s->size == 1) return LQ_OK;
    for (int part = 0; part < s->size; part++) {
        const lq_status st = share_columns(s, of, part, err);
        if (st) return st;
    }
    if (!of->H) return LQ_OK;
    size_t most = 0;
    for (int part = 0; part < s->size; part++) {
        const size_t n = cal_stats_tiles(of, part, NULL, false);
        most = n > most ? n : most;
    }
    float *box = malloc(most * sizeof *box);
    lq_status st = box ? LQ_OK : lq_fail(err, LQ_ENOMEM, "no memory for statistics");
    for (int from = 0; from < s->size && !st; from++) {
        const size_t n = cal_stats_tiles(of, from, from == s->rank ? box : NULL, false);
        st = comm_broadcast(s->ranks, from, box, n * sizeof *box, err);
        if (!st && from != s->rank) cal_stats_tiles(of, from, box, true);
    }
    free(box);
    return st;
}

lq_status share_means(const cal_share *s, cal_stats *of, int64_t expert, lq_err *err)
{
    const int owner = share_of_expert(s, expert);
    const size_t k = (size_t)of->K;
    lq_status st = comm_broadcast(s->ranks, owner, &of->tokens, sizeof of->tokens, err);
    if (!st) st = comm_broadcast(s->ranks, owner, of->sum_abs, 2 * k * sizeof *of->sum_abs, err);
    if (!st) st = comm_broadcast(s->ranks, owner, of->reached, k * sizeof *of->reached, err);
    return st ? st : comm_broadcast(s->ranks, owner, of->max_abs, k * sizeof *of->max_abs, err);
}
