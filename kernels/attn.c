/* kernels/attn.c - the walk over sequences, kv heads, row chunks and key tiles.
 *
 * One item = one sequence, one kv head, and as many query rows as give some ROWS (row, head) pairs:
 * they share each key tile once it is read from the cache. Tiles come in order of position and
 * every pair folds exactly the keys that it sees, so nothing but the pair itself decides its bits.
 */
#include "kernels/attn.h"
#include "kernels/k.h"
#include "kernels/kmath.h"

enum { ROWS = 64 };

static const struct {
    const char *text;
    size_t bytes, head; /* of an element, and before them */
} dtypes[KV_N_DTYPES] = { { "f32", 4, 0 }, { "f16", 2, 0 }, { "bf16", 2, 0 }, { "int8", 1, 4 } };

const char *kv_dtype_text(kv_dtype d) { return (unsigned)d < KV_N_DTYPES ? dtypes[d].text : "?"; }
size_t attn_kv_row_bytes(kv_dtype d, int64_t D)
{
    return dtypes[d].head + dtypes[d].bytes * (size_t)D;
}

void attn_kv_write(uint8_t *block, int slot, int block_size, const float *x, int64_t Hkv, int64_t D,
                   kv_dtype d)
{
    size_t row = attn_kv_row_bytes(d, D);
    for (int64_t h = 0; h < Hkv; h++, x += D) {
        uint8_t *dst = block + (size_t)(h * block_size + slot) * row;
        if (d == KV_F32) {
            memcpy(dst, x, (size_t)D * 4);
        } else if (d != KV_I8) {
            lq_from_f32(dst, x, d == KV_F16 ? LQ_F16 : LQ_BF16, (size_t)D);
        } else {
            float max = 0;
            for (int64_t i = 0; i < D; i++)
                max = fabsf(x[i]) > max ? fabsf(x[i]) : max;
            bool ok = max >= MM_I8_TINY && max < INFINITY;
            float scale = ok ? max / 127.0f : max < INFINITY ? 0.0f : NAN;
            float inv = ok ? 127.0f / max : 0.0f;
            memcpy(dst, &scale, 4);
            for (int64_t i = 0; i < D; i++) {
                float q = rintf(x[i] * inv);
                dst[4 + i] = (uint8_t)(int8_t)(fabsf(q) <= 127.0f ? q : 0.0f); /* NaN: 0 */
            }
        }
    }
}

/* ---- scratch of one thread ---- */
typedef struct {
    float *kt, *v;    /* one tile: [D][ATTN_TILE], [ATTN_TILE][Dv] */
    float *s, *acc;   /* [rows][ATTN_TILE], [rows][Dv] */
    float *m, *l, *a; /* [rows] */
    const float **q;  /* [rows] */
    int *lo, *hi;     /* [rows] keys of the tile that the row sees */
} work;

static size_t rows_max(int64_t H) { return H > ROWS ? (size_t)H : ROWS; }

/* Cut `w` out of base (NULL: only count); returns the bytes. */
static size_t cut(work *w, uint8_t *base, int64_t H, int64_t D)
{
    size_t rows = rows_max(H), d = (size_t)D, n = 0;
    work none;
    if (!w) w = &none;
#define CUT(field, type, count)                  \
    w->field = base ? (void *)(base + n) : NULL; \
    n += lq_round_up((count) * sizeof(type), 64)
    CUT(kt, float, d *ATTN_TILE);
    CUT(v, float, d *ATTN_TILE);
    CUT(s, float, rows *ATTN_TILE);
    CUT(acc, float, rows *d);
    CUT(m, float, rows);
    CUT(l, float, rows);
    CUT(a, float, rows);
    CUT(q, float *, rows);
    CUT(lo, int, rows);
    CUT(hi, int, rows);
#undef CUT
    return n;
}

size_t attn_scratch_bytes(int64_t H, int64_t D, int threads)
{
    return cut(NULL, NULL, H, D) * (size_t)threads;
}

/* ---- one item ---- */
typedef struct {
    const attn_args *a;
    uint8_t *scratch;
    size_t per_thread;
    int64_t width, chunk; /* max(D, Dv); query rows of an item */
} run_ctx;

/* Read the keys (or values) of the tile at position `pos`, n of them, through the block table. */
static void read_tile(float *dst, const attn_args *a, const attn_seq *s, const uint8_t *base,
                      int64_t kvh, int64_t pos, int n, bool key)
{
    int64_t D = key ? a->D : a->Dv;
    size_t row = attn_kv_row_bytes(a->dtype, D);
    for (int j = 0; j < n;) {
        int64_t p = pos + j, block = s->table[p / a->block_size], slot = p % a->block_size;
        int here = (int)(a->block_size - slot) < n - j ? (int)(a->block_size - slot) : n - j;
        const uint8_t *src =
            base + (size_t)block * a->block_stride + (size_t)(kvh * a->block_size + slot) * row;
        if (key)
            k_get()->attn_k(dst + j, src, here, D, a->dtype);
        else
            k_get()->attn_v(dst + j * D, src, here, D, a->dtype);
        j += here;
    }
}

static float bf16(float x) { return lq_bf16_to_f32(lq_f32_to_bf16(x)); }

/* Soft-cap and ALiBi on one row's scores of the keys pos + lo .. pos + hi - 1. */
static void adjust(const attn_args *a, float *s, int lo, int hi, int64_t h, int64_t pos,
                   int64_t query)
{
    if (a->softcap > 0) k_get()->softcap(s + lo, a->softcap, hi - lo);
    if (!a->alibi) return;
    float slope = a->alibi[h], f = a->alibi_scaled ? a->scale : 1.0f;
    if (a->alibi_bf16) {
        slope = bf16(slope);
        for (int j = lo; j < hi; j++)
            s[j] += f * bf16(slope * bf16((float)(pos + j)));
    } else {
        slope *= f;
        for (int j = lo; j < hi; j++)
            s[j] += slope * (float)(pos - query + j);
    }
}

static void one_tile(const attn_args *a, work *w, const attn_seq *s, int64_t kvh, int64_t i0,
                     int64_t R, int64_t pos)
{
    int64_t group = a->H / a->Hkv, last = s->pos0 + i0 + (R - 1) / group; /* of these rows */
    int n = (int)(last + 1 - pos < ATTN_TILE ? last + 1 - pos : ATTN_TILE);
    const k_ops *k = k_get();
    read_tile(w->kt, a, s, a->k, kvh, pos, n, true);
    read_tile(w->v, a, s, a->v, kvh, pos, n, false);
    /* Places behind the last key hold what an earlier tile left: finite or not, never folded. */
    k->attn_scores(w->s, w->q, w->kt, R, a->D, a->scale);
    for (int64_t r = 0; r < R; r++) {
        int64_t query = s->pos0 + i0 + r / group, first = a->window ? query - a->window + 1 : 0;
        int64_t hi = query + 1 - pos, lo = first - pos;
        w->lo[r] = (int)(lo < 0 ? 0 : lo > ATTN_TILE ? ATTN_TILE : lo);
        w->hi[r] = (int)(hi < 0 ? 0 : hi > ATTN_TILE ? ATTN_TILE : hi);
        if (w->lo[r] >= w->hi[r]) continue;
        float *row = w->s + r * ATTN_TILE;
        adjust(a, row, w->lo[r], w->hi[r], kvh * group + r % group, pos, query);
        w->a[r] = k->attn_softmax(row, w->lo[r], w->hi[r], &w->m[r], &w->l[r]);
    }
    k->attn_pv(w->acc, w->s, w->v, w->a, w->lo, w->hi, R, a->Dv);
}

static void finish_row(const attn_args *a, const work *w, int64_t r, int64_t h, float *out)
{
    float m = w->m[r], l = w->l[r], f = 1.0f;
    if (a->sinks) { /* one more logit, without a value */
        float max = a->sinks[h] > m ? a->sinks[h] : m;
        f = km_exp(m - max);
        l = fmaf(l, f, km_exp(a->sinks[h] - max));
    }
    f /= l;
    for (int64_t d = 0; d < a->Dv; d++)
        out[d] = w->acc[r * a->Dv + d] * f;
}

static void run_item(void *ctx, int64_t item, int thread)
{
    const run_ctx *c = ctx;
    const attn_args *a = c->a;
    const attn_seq *s = a->seqs;
    for (;; s++) { /* which sequence: they are few */
        int64_t n = lq_ceil_div(s->n_rows, c->chunk) * a->Hkv;
        if (item < n) break;
        item -= n;
    }
    /* Late chunks see most keys: start them first, the short ones fill the end. */
    int64_t n_chunks = lq_ceil_div(s->n_rows, c->chunk), kvh = item % a->Hkv;
    int64_t i0 = (n_chunks - 1 - item / a->Hkv) * c->chunk, group = a->H / a->Hkv;
    int64_t n = s->n_rows - i0 < c->chunk ? s->n_rows - i0 : c->chunk, R = n * group;

    work w;
    cut(&w, c->scratch + (size_t)thread * c->per_thread, a->H, c->width);
    memset(w.acc, 0, (size_t)(R * a->Dv) * sizeof *w.acc);
    memset(w.kt, 0, (size_t)(a->D * ATTN_TILE) * sizeof *w.kt);
    for (int64_t r = 0; r < R; r++) {
        w.m[r] = -INFINITY;
        w.l[r] = 0;
        w.q[r] = a->q + (s->row0 + i0 + r / group) * a->ldq + (kvh * group + r % group) * a->D;
    }
    int64_t last = s->pos0 + i0 + n - 1, first = a->window ? s->pos0 + i0 - a->window + 1 : 0;
    for (int64_t pos = (first > 0 ? first : 0) / ATTN_TILE * ATTN_TILE; pos <= last;
         pos += ATTN_TILE)
        one_tile(a, &w, s, kvh, i0, R, pos);
    for (int64_t r = 0; r < R; r++) {
        int64_t h = kvh * group + r % group;
        finish_row(a, &w, r, h, a->out + (s->row0 + i0 + r / group) * a->ldo + h * a->Dv);
    }
}

void attn_run(const attn_args *a, lq_arena *scratch, pool *p)
{
    run_ctx c = { .a = a, .width = a->D > a->Dv ? a->D : a->Dv };
    size_t mark = lq_arena_mark(scratch);
    int64_t group = a->H / a->Hkv, items = 0;
    c.chunk = ROWS / group > 0 ? ROWS / group : 1;
    c.per_thread = cut(NULL, NULL, a->H, c.width);
    c.scratch = lq_push(scratch, c.per_thread * (size_t)pool_threads(p));
    for (int i = 0; i < a->n_seqs; i++)
        items += lq_ceil_div(a->seqs[i].n_rows, c.chunk) * a->Hkv;
    pool_run(p, items, run_item, &c);
    lq_arena_reset(scratch, mark);
}
