/* quantize/methods/lattice.c - see lattice.h. */
#include "quantize/methods/lattice.h"

#include <assert.h>
#include <pthread.h>

enum { MOST_POINTS = 1024, ROUNDS = 3, U = LAT_UNIT };

struct lattice {
    const blk_type *type;
    const blk_book *book;
    float v[MOST_POINTS * U]; /* [dim][n]: sizes */
};

static const blk_id ids[] = { BLK_IQ2_XXS, BLK_IQ2_XS, BLK_IQ2_S, BLK_IQ3_XXS, BLK_IQ3_S };
static lattice lattices[LQ_COUNT(ids)];
static pthread_once_t made = PTHREAD_ONCE_INIT;

static unsigned place(const blk_book *b, int p, int i)
{
    return (unsigned)b->point[p] >> b->bits * i & ((1u << b->bits) - 1u);
}

static void make_all(void)
{
    for (size_t k = 0; k < LQ_COUNT(ids); k++) {
        lattice *l = &lattices[k];
        l->type = blk_find(ids[k]);
        l->book = blk_made_of(l->type)->book;
        for (int i = 0; i < l->book->dim; i++)
            for (int p = 0; p < l->book->n; p++)
                l->v[i * l->book->n + p] = l->type->table[place(l->book, p, i)];
    }
}

const lattice *lattice_of(const blk_type *t)
{
    pthread_once(&made, make_all);
    for (size_t k = 0; k < LQ_COUNT(ids); k++)
        if (lattices[k].type == t) return &lattices[k];
    return NULL;
}

int lattice_sizes(const lattice *l, const int8_t **sizes)
{
    int n = 1;
    *sizes = l->type->table;
    while (n < 1 << l->book->bits && (*sizes)[n] > (*sizes)[n - 1])
        n++;
    return n;
}

static uint8_t code_of(const lattice *l, float size, float sign)
{
    unsigned c = 0;
    while (l->type->table[c] != (int)size)
        c++;
    assert(c < 1u << l->book->bits);
    return (uint8_t)(c | (sign < 0 ? 1u << l->book->bits : 0));
}

static void put_point(uint8_t *code, const lattice *l, int p, const float *sign)
{
    for (int i = 0; i < l->book->dim; i++)
        code[i] = (uint8_t)(place(l->book, p, i) | (sign[i] < 0 ? 1u << l->book->bits : 0));
}

/* ---- by importance ---- */
/* y = imp |w|, or of one weight its negative where the number of signs would be odd otherwise: of that for which it
 * costs the least with sizes alike. Signs are those of sizes times y. */
static void absolute(float y[U], float sign[U], const lattice *l, const float *w, const float *imp)
{
    int odd = 0, least = 0;
    for (int i = 0; i < U; i++) {
        sign[i] = w[i] < 0 ? -1 : 1;
        y[i] = (imp ? imp[i] : 1) * fabsf(w[i]);
        odd ^= w[i] < 0;
        if (y[i] < y[least]) least = i;
    }
    if (!odd || !l->book->even) return;
    y[least] = -y[least];
    sign[least] = -sign[least];
}

static const float ones[U] = { 1, 1, 1, 1, 1, 1, 1, 1 };

void lattice_nearest(uint8_t code[U], const lattice *l, const float *w, const float *imp,
                     float scale)
{
    const int dim = l->book->dim, n = l->book->n;
    const qz_rows_ops *ops = qz_rows_get();
    float A[MOST_POINTS], B[MOST_POINTS], y[U], sign[U];
    absolute(y, sign, l, w, imp);
    for (int i = 0; i < U; i += dim) {
        ops->lines(A, B, l->v, dim, n, y + i, imp ? imp + i : ones);
        put_point(code + i, l, ops->lowest_line(A, B, n, scale), sign + i);
    }
}

/* The pieces of one point while they are found: A, B of all points. */
typedef struct {
    const float *A, *B;
    int64_t n;
    const qz_rows_ops *ops;
    lat_piece *piece;
    int *count;
} envelope;

/* What is best between two scales for which p and q are. Between them B falls strictly: else rounding errors would
 * find the same points again and again. */
static void divide(const envelope *e, int p, int q)
{
    const float *A = e->A, *B = e->B;
    if (p == q || !(B[q] < B[p])) return;
    const float s = (A[p] - A[q]) / (B[p] - B[q]); /* there they are equal */
    const int m = *e->count + 2 < LAT_PIECES ? e->ops->lowest_line(A, B, e->n, s) : p;
    if (B[q] < B[m] && B[m] < B[p] && s * B[m] - A[m] < s * B[p] - A[p]) {
        divide(e, p, m);
        divide(e, m, q);
    } else if (*e->count < LAT_PIECES) {
        e->piece[(*e->count)++] = (lat_piece){ s, A[q], B[q] };
    }
}

void lattice_lines(lat_lines *lines, const lattice *l, const float *w, const float *imp, int64_t n,
                   float lo, float hi)
{
    const int dim = l->book->dim, points = l->book->n;
    float A[MOST_POINTS], B[MOST_POINTS], y[U], sign[U];
    envelope e = { .A = A, .B = B, .n = points, .ops = qz_rows_get() };
    lines->n_points = 0;
    lines->ww = 0;
    for (int64_t k = 0; k < n; k += U) {
        absolute(y, sign, l, w + k, imp ? imp + k : NULL);
        for (int i = 0; i < U; i++)
            lines->ww += (imp ? imp[k + i] : 1) * w[k + i] * w[k + i];
        for (int i = 0; i < U; i += dim) {
            e.ops->lines(A, B, l->v, dim, points, y + i, imp ? imp + k + i : ones);
            const int first = e.ops->lowest_line(A, B, points, lo);
            e.piece = lines->piece[lines->n_points];
            e.count = &lines->n_pieces[lines->n_points++];
            e.piece[0] = (lat_piece){ 0, A[first], B[first] };
            *e.count = 1;
            divide(&e, first, e.ops->lowest_line(A, B, points, hi));
        }
    }
}

rows_sums lattice_sums(const lat_lines *lines, float scale)
{
    float A = 0, B = 0;
    for (int k = 0; k < lines->n_points; k++) {
        const lat_piece *p = lines->piece[k], *end = p + lines->n_pieces[k];
        while (p + 1 < end && p[1].from <= scale)
            p++;
        A += p->A;
        B += p->B;
    }
    return (rows_sums){ .e = lines->ww + scale * (scale * B - A), .vv = B, .wv = A / 2 };
}

/* ---- with all pairs ---- */
typedef struct {
    const lattice *l;
    const float *M, *b;
    float scale;
    float sign[U], size[U];
} unit;

static float value(const unit *u, int i) { return u->scale * u->sign[i] * u->size[i]; }

/* b - M q of row i, from columns outside lo..hi. */
static float rest(const unit *u, int i, int lo, int hi)
{
    float r = u->b[i];
    for (int k = 0; k < U; k++)
        if (k < lo || k >= hi) r -= u->M[i * U + k] * value(u, k);
    return r;
}

/* The best point of sizes at..at + dim. */
static bool move_point(unit *u, int at)
{
    const int dim = u->l->book->dim, n = u->l->book->n;
    float m[U * U], b[U];
    bool moved = false;
    for (int i = 0; i < dim; i++) {
        b[i] = 2 * u->sign[at + i] * rest(u, at + i, at, at + dim);
        for (int k = i; k < dim; k++)
            m[i * dim + k] = (k > i ? 2 : 1) * u->scale * u->sign[at + i] * u->sign[at + k] *
                             u->M[(at + i) * U + at + k];
    }
    const int p = qz_rows_get()->lowest_point(u->l->v, dim, n, m, b);
    for (int i = 0; i < dim; i++) {
        const float v = u->l->v[i * n + p];
        moved |= v != u->size[at + i];
        u->size[at + i] = v;
    }
    return moved;
}

/* The change of signs that lowers the sum the most: of one weight, or of two where their number is to stay even. */
static bool move_signs(unit *u)
{
    float alone[U], least = 0;
    int a = -1, b = -1;
    for (int i = 0; i < U; i++) {
        const float q = value(u, i);
        alone[i] = 4 * q * (u->M[i * U + i] * q + rest(u, i, 0, 0));
        if (!u->l->book->even && alone[i] < least) least = alone[i], a = i;
    }
    for (int i = 0; i < U && u->l->book->even; i++)
        for (int k = i + 1; k < U; k++) {
            const float d = alone[i] + alone[k] + 8 * u->M[i * U + k] * value(u, i) * value(u, k);
            if (d < least) least = d, a = i, b = k;
        }
    if (a >= 0) u->sign[a] = -u->sign[a];
    if (b >= 0) u->sign[b] = -u->sign[b];
    return a >= 0;
}

bool lattice_descend(uint8_t code[U], const lattice *l, const float *M, const float *r, float scale)
{
    const int bits = l->book->bits, dim = l->book->dim;
    float b[U];
    unit u = { .l = l, .M = M, .b = b, .scale = scale };
    for (int i = 0; i < U; i++) {
        u.sign[i] = code[i] >> bits ? -1 : 1;
        u.size[i] = fabsf((float)l->type->table[code[i]]);
    }
    for (int i = 0; i < U; i++) {
        b[i] = r[i];
        for (int k = 0; k < U; k++)
            b[i] += M[i * U + k] * value(&u, k);
    }
    bool moved = true, any = false;
    for (int round = 0; round < ROUNDS && moved; round++, any |= moved) {
        moved = false;
        for (int at = 0; at < U; at += dim)
            moved |= move_point(&u, at);
        for (int i = 0; i < U && move_signs(&u); i++)
            moved = true;
    }
    for (int i = 0; i < U && any; i++)
        code[i] = code_of(l, u.size[i], u.sign[i]);
    return any;
}

void lattice_choose(uint8_t code[U], const lattice *l, const float *M, const float *w, float scale)
{
    float own[U], e[U], r[U];
    for (int i = 0; i < U; i++)
        own[i] = M[i * U + i];
    lattice_nearest(code, l, w, own, scale);
    for (int i = 0; i < U; i++)
        e[i] = w[i] - scale * (float)l->type->table[code[i]];
    for (int i = 0; i < U; i++) {
        r[i] = 0;
        for (int k = 0; k < U; k++)
            r[i] += M[i * U + k] * e[k];
    }
    lattice_descend(code, l, M, r, scale);
}
