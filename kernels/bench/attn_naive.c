/* kernels/bench/attn_naive.c - see attn_naive.h. */
#include "kernels/bench/attn_naive.h"

#include "kernels/attn_int.h"
#include "kernels/dispatch.h"

/* One KV head of a sequence: R = rows * group (row, head) pairs. */
typedef struct {
    float *s; /* [tiles][R][ATTN_TILE] */
    float *kt, *v, *acc, *m, *l, *one;
    const float **q;
    int *lo, *hi;
} head;

typedef struct {
    const attn_args *a;
    const attn_seq *seq;
    uint8_t *scratch;
    size_t per_head;
    int64_t R, n_tiles;
} naive;

#define CUT(field, type, count)                  \
    h->field = base ? (void *)(base + n) : NULL; \
    n += lq_round_up((count) * sizeof(type), 64)

/* Cut `h` out of base (NULL: only count); returns the bytes. */
static size_t cut(head *h, uint8_t *base, const attn_args *a, size_t R, size_t tiles)
{
    size_t n = 0;
    CUT(s, float, tiles *R *ATTN_TILE);
    CUT(kt, float, (size_t)a->D *ATTN_TILE);
    CUT(v, float, (size_t)a->Dv *ATTN_TILE);
    CUT(acc, float, R *(size_t)a->Dv);
    CUT(m, float, R);
    CUT(l, float, R);
    CUT(one, float, R);
    CUT(q, float *, R);
    CUT(lo, int, R);
    CUT(hi, int, R);
    return n;
}
#undef CUT

static int64_t tiles_of(const attn_seq *s) { return lq_ceil_div(s->pos0 + s->n_rows, ATTN_TILE); }

static size_t head_bytes(const attn_args *a, const attn_seq *s)
{
    head none;
    return cut(&none, NULL, a, (size_t)(s->n_rows * (a->H / a->Hkv)), (size_t)tiles_of(s));
}

size_t attn_naive_scratch_bytes(const attn_args *a)
{
    size_t most = 0;
    for (int i = 0; i < a->n_seqs; i++)
        if (head_bytes(a, &a->seqs[i]) > most) most = head_bytes(a, &a->seqs[i]);
    return most * (size_t)a->Hkv;
}

static void run_head(void *ctx, int64_t kvh, int thread)
{
    (void)thread;
    const naive *c = ctx;
    const attn_args *a = c->a;
    const attn_seq *s = c->seq;
    const k_ops *k = k_get();
    const int64_t group = a->H / a->Hkv, R = c->R, end = s->pos0 + s->n_rows;
    head h;
    cut(&h, c->scratch + (size_t)kvh * c->per_head, a, (size_t)R, (size_t)c->n_tiles);
    memset(h.kt, 0, (size_t)(a->D * ATTN_TILE) * sizeof *h.kt);
    memset(h.acc, 0, (size_t)(R * a->Dv) * sizeof *h.acc);
    for (int64_t r = 0; r < R; r++) {
        h.q[r] = a->q + (s->row0 + r / group) * a->ldq + (kvh * group + r % group) * a->D;
        h.m[r] = -INFINITY;
        h.l[r] = 0;
        h.one[r] = 1;
    }
    for (int64_t t = 0; t < c->n_tiles; t++) { /* S, and the largest score of each row */
        int64_t pos = t * ATTN_TILE;
        float *tile = h.s + t * R * ATTN_TILE;
        int n = (int)(end - pos < ATTN_TILE ? end - pos : ATTN_TILE);
        attn_read_tile(h.kt, a, s, a->k, kvh, pos, n, true, false);
        k->attn_scores(tile, h.q, h.kt, R, a->D, a->scale);
        for (int64_t r = 0; r < R; r++) {
            int64_t query = s->pos0 + r / group;
            int lo, hi;
            float *row = tile + r * ATTN_TILE;
            attn_seen(a, s, query, pos, &lo, &hi);
            if (lo < hi) attn_adjust(a, row, lo, hi, kvh * group + r % group, pos, query);
            for (int j = lo; j < hi; j++)
                h.m[r] = row[j] > h.m[r] ? row[j] : h.m[r];
        }
    }
    for (int64_t t = 0; t < c->n_tiles; t++) { /* P, not yet divided by the sums */
        for (int64_t r = 0; r < R; r++)
            attn_seen(a, s, s->pos0 + r / group, t * ATTN_TILE, &h.lo[r], &h.hi[r]);
        k->attn_softmax(h.s + t * R * ATTN_TILE, h.lo, h.hi, R, h.m, h.l, h.one); /* by exp(0) */
    }
    for (int64_t t = 0; t < c->n_tiles; t++) { /* P V */
        int64_t pos = t * ATTN_TILE;
        int n = (int)(end - pos < ATTN_TILE ? end - pos : ATTN_TILE);
        attn_read_tile(h.v, a, s, a->v, kvh, pos, n, false, false);
        for (int64_t r = 0; r < R; r++)
            attn_seen(a, s, s->pos0 + r / group, pos, &h.lo[r], &h.hi[r]);
        k->attn_pv(h.acc, h.s + t * R * ATTN_TILE, h.v, h.one, h.lo, h.hi, R, a->Dv);
    }
    for (int64_t r = 0; r < R; r++) {
        int64_t q = kvh * group + r % group;
        attn_finish_row(a, h.m[r], h.l[r], h.acc + r * a->Dv, q,
                        a->out + (s->row0 + r / group) * a->ldo + q * a->Dv);
    }
}

void attn_naive_run(const attn_args *a, lq_arena *scratch, pool *p)
{
    const size_t mark = lq_arena_mark(scratch);
    naive c = { .a = a };
    for (int i = 0; i < a->n_seqs; i++) {
        c.seq = &a->seqs[i];
        c.R = c.seq->n_rows * (a->H / a->Hkv);
        c.n_tiles = tiles_of(c.seq);
        c.per_head = head_bytes(a, c.seq);
        c.scratch = lq_push(scratch, c.per_head * (size_t)a->Hkv);
        pool_run(p, a->Hkv, run_head, &c);
        lq_arena_reset(scratch, mark);
    }
}
