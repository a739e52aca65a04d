/* calib/gemm_dev.c - see gemm_dev.h. */
#include "calib/gemm_dev.h"

#include <stdlib.h>

enum { SPARE = 64 << 20 }; /* bytes that kept matrices leave on the device */

/* Memory on the device that grows. */
typedef struct {
    float *at;
    size_t bytes;
} room;

typedef struct {
    const float *p;
    int64_t n;
    float *there; /* NULL: not yet, or no more */
} kept;

struct gemm_dev {
    dev *d;
    kept *kept; /* [n_kept], cap */
    int n_kept, cap;
    room a, b, c;
    lq_status bad; /* of the host or the device */
    lq_err why;
};

lq_status gemm_dev_open(gemm_dev **out, dev *d, lq_err *err)
{
    gemm_dev *on = *out = calloc(1, sizeof *on);
    if (!on) return lq_fail(err, LQ_ENOMEM, "out of memory");
    on->d = d;
    return LQ_OK;
}

static void drop_kept(gemm_dev *on)
{
    for (int i = 0; i < on->n_kept; i++) {
        on->d->ops->free(on->d, on->kept[i].there);
        on->kept[i].there = NULL;
    }
}

void gemm_dev_close(gemm_dev *on)
{
    if (!on) return;
    on->d->ops->bind(on->d);
    drop_kept(on);
    on->d->ops->free(on->d, on->a.at);
    on->d->ops->free(on->d, on->b.at);
    on->d->ops->free(on->d, on->c.at);
    free(on->kept);
    free(on);
}

lq_status gemm_dev_check(gemm_dev *on, lq_err *err)
{
    if (!on) return LQ_OK;
    on->d->ops->bind(on->d);
    const lq_status here = on->bad;
    if (here && err) *err = on->why;
    on->bad = LQ_OK;
    return here ? here : on->d->ops->sync(on->d, err);
}

void gemm_dev_keep(gemm_dev *on, const float *p, int64_t n)
{
    if (!on || !p) return;
    if (on->n_kept == on->cap) {
        const int cap = on->cap ? 2 * on->cap : 32;
        kept *more = realloc(on->kept, (size_t)cap * sizeof *more);
        if (!more) {
            on->bad = lq_fail(&on->why, LQ_ENOMEM, "out of memory");
            return;
        }
        on->kept = more;
        on->cap = cap;
    }
    on->kept[on->n_kept++] = (kept){ p, n, NULL };
}

void gemm_dev_forget(gemm_dev *on, const float *p)
{
    if (!on || !p) return;
    int i = on->n_kept;
    while (i > 0 && on->kept[i - 1].p != p)
        i--;
    if (!i) return;
    on->d->ops->bind(on->d);
    on->d->ops->free(on->d, on->kept[i - 1].there);
    on->kept[i - 1] = on->kept[--on->n_kept];
}

/* Kept matrices make room, all at once. */
static float *grown(gemm_dev *on, room *r, size_t bytes)
{
    if (bytes > r->bytes) {
        on->d->ops->free(on->d, r->at);
        if (on->d->ops->room(on->d) < bytes + SPARE) drop_kept(on);
        r->at = on->d->ops->alloc(on->d, bytes);
        r->bytes = r->at ? bytes : 0;
    }
    return r->at;
}

/* The kept matrix that x begins in; NULL: none. */
static kept *kept_of(const gemm_dev *on, const float *x)
{
    for (int i = 0; i < on->n_kept; i++)
        if (x >= on->kept[i].p && x < on->kept[i].p + on->kept[i].n) return &on->kept[i];
    return NULL;
}

static size_t missing(const kept *k) { return k && !k->there ? (size_t)k->n * sizeof(float) : 0; }

static void put_kept(gemm_dev *on, kept *k)
{
    const size_t bytes = missing(k);
    if (!bytes) return;
    k->there = on->d->ops->alloc(on->d, bytes);
    if (k->there) on->d->ops->upload(on->d, k->there, k->p, bytes);
}

/* Both at once, or neither's place is the other's. */
static void put_both(gemm_dev *on, kept *a, kept *b)
{
    if (on->d->ops->room(on->d) < missing(a) + missing(b) + SPARE) drop_kept(on);
    put_kept(on, a);
    put_kept(on, b);
}

/* Rows of `cols` floats, where both sides have no more as one. */
static dev_copy_args rows_of(float *to, int64_t ldd, const float *from, int64_t lds, int64_t rows,
                             int64_t cols)
{
    const size_t f = sizeof *to;
    const bool one = ldd == cols && lds == cols;
    return (dev_copy_args){ .dst = to,
                            .src = from,
                            .n = (size_t)(one ? rows * cols : cols) * f,
                            .ldd = (size_t)ldd * f,
                            .lds = (size_t)lds * f,
                            .rows = one ? 1 : rows };
}

static void put_rows(gemm_dev *on, float *to, const float *x, int64_t ld, int64_t rows,
                     int64_t cols)
{
    const dev_copy_args a = rows_of(to, cols, x, ld, rows, cols);
    on->d->ops->upload_rows(on->d, &a);
}

/* An operand there, its rows *ld floats apart. */
static const float *operand(gemm_dev *on, room *r, gemm_in x, int64_t rows, int64_t cols,
                            int64_t *ld)
{
    const kept *k = kept_of(on, x.p);
    *ld = k ? x.ld : cols;
    if (k) return k->there ? k->there + (x.p - k->p) : NULL;
    if (r->at) put_rows(on, r->at, x.p, x.ld, rows, cols);
    return r->at;
}

void gemm_dev_run(gemm_dev *on, float *C, int64_t ldc, gemm_in A, gemm_in B, int64_t M, int64_t N,
                  int64_t K, float beta, pool *p)
{
    const size_t f = sizeof(float);
    if (!on) gemm_run(C, ldc, A, B, M, N, K, beta, p);
    if (!on || on->bad || M <= 0 || N <= 0) return;
    on->d->ops->bind(on->d);
    kept *a = kept_of(on, A.p), *b = kept_of(on, B.p);
    float *c = grown(on, &on->c, (size_t)(M * N) * f);
    if (!a) grown(on, &on->a, (size_t)(M * K) * f);
    if (!b) grown(on, &on->b, (size_t)(K * N) * f);
    put_both(on, a, b);
    dev_gemm_args g = {
        .C = c, .ldc = N, .M = M, .N = N, .K = K, .ta = A.t, .tb = B.t, .beta = beta
    };
    g.A = operand(on, &on->a, A, A.t ? K : M, A.t ? M : K, &g.lda);
    g.B = operand(on, &on->b, B, B.t ? N : K, B.t ? K : N, &g.ldb);
    if (!c || !g.A || !g.B) return;
    if (beta != 0) put_rows(on, c, C, ldc, M, N);
    on->d->ops->gemm(on->d, &g);
    const dev_copy_args down = rows_of(C, ldc, c, N, M, N);
    on->d->ops->download_rows(on->d, &down);
    lq_err why = { "" };
    const lq_status s = on->d->ops->sync(on->d, &why);
    if (!s || on->bad) return;
    on->bad = s;
    on->why = why;
}
