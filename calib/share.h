/* calib/share.h - calibration's windows over several ranks (base/comm.h), and the rows that linears read put together
 * again.
 *
 *     windows  0 1 2 3 | 4 5 6 7 | 8 9 ...      chunks: whose rows are added to H by one product
 *     slices   0   1   | 2   3   | 4 ...        of a chunk; slice s is gone through by rank s mod ranks
 *
 * A sum must not depend on the number of ranks, so ranks do not add up sums of their own: the rows of a slice go from
 * the rank that made them to those that need them, in the order of slices, and are added chunk by chunk as one process
 * adds them. Of what a layer has once every rank gets all rows and adds its share of H's tiles; of an expert's
 * inputs the rank e mod ranks alone gets the rows, and holds H. */
#ifndef LLMQ_CALIB_SHARE_H
#define LLMQ_CALIB_SHARE_H

#include "base/comm.h"
#include "calib/stats.h"

typedef struct {
    comm *ranks; /* NULL: one process has all, its slices are chunks */
    int rank, size;
    int64_t n, len;               /* windows; tokens in each */
    int64_t per_chunk, per_slice; /* windows */
    int64_t in_chunk, n_slices;   /* slices of a whole chunk; of all */
} cal_share;

/* As rank `rank` of `size` has them. */
cal_share share_cut(int size, int rank, int64_t n, int64_t len, int64_t per_chunk);
cal_share share_of(comm *ranks, int64_t n, int64_t len, int64_t per_chunk);
/* The slices of this rank, and of these number i among all. */
int64_t share_mine(const cal_share *s);
static inline int64_t share_at(const cal_share *s, int64_t i) { return i * s->size + s->rank; }
/* Windows of a slice, the first of them, and whether its chunk ends with it. */
int64_t share_first(const cal_share *s, int64_t slice);
int64_t share_windows(const cal_share *s, int64_t slice);
bool share_ends(const cal_share *s, int64_t slice);
static inline int share_owner(const cal_share *s, int64_t slice) { return (int)(slice % s->size); }
/* Whose is an expert's H? */
static inline int share_of_expert(const cal_share *s, int64_t expert)
{
    return (int)(expert % s->size);
}

/* ---- rows that a look at a layer finds ---- */
typedef struct cal_found cal_found; /* of one slice, and of the chunk that it belongs to */
lq_status found_open(cal_found **f, const cal_share *s, lq_err *err);
void found_close(cal_found *f);
/* A linear's inputs x [T,K], rows ldx apart, in the slice at work: copied. False: out of memory. */
bool found_add(cal_found *f, cal_site site, int64_t expert, const float *x, int64_t ldx, int64_t T,
               int64_t K);
/* All ranks have gone through their slice of round `round` (slices round * size ..): what was found goes where it is
 * needed, and into st. Errors: those of comm.h, LQ_ENOMEM. */
lq_status found_share(cal_found *f, int64_t round, cal_layer_stats *st, pool *p, lq_err *err);

/* ---- statistics whose sums are complete ---- */
/* Of what a layer has once: every rank's share to all. */
lq_status share_sums(const cal_share *s, cal_stats *of, lq_err *err);
/* An expert's but H, to all. */
lq_status share_means(const cal_share *s, cal_stats *of, int64_t expert, lq_err *err);

#endif
