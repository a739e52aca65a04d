/* kernels/attn.c - the walk over sequences, kv heads, row chunks, splits and key tiles.
 *
 * One item = one sequence, one kv head, and as many query rows as give some ROWS (row, head) pairs:
 * they share each key tile once it is read from the cache. Keys come in splits of ATTN_SPLIT
 * positions, aligned to the absolute position. The tiles of a split are folded in order into a
 * maximum, a sum and an accumulator that start with it, and the splits' results are joined in
 * order. Every pair folds exactly the keys that it sees, so nothing but the pair itself decides its
 * bits: a thread may walk an item's splits one after the other (many items), or all threads may
 * share the splits of few items (a long context alone), and the bytes are the same. */
#include "kernels/attn_int.h"
#include "kernels/attn_int4.h"
#include "kernels/core/kmath.h"
#include "kernels/dispatch.h"
#include "kernels/hadamard.h"

enum {
    ROWS = 64,
    WIDE_ITEMS = 4, /* fewer items than this per thread: their splits are shared out */
    WIDE_SLOTS = 6  /* results per thread that wait to be joined, of as many rows as an item has */
};

static const char *const dtypes[KV_N_DTYPES] = { "f32", "f16", "bf16", "int8", "int4", "fp8" };
#define BESIDE(k)                                                                               \
    {                                                                                           \
        "k=" k ",v=f32", "k=" k ",v=f16", "k=" k ",v=bf16", "k=" k ",v=int8", "k=" k ",v=int4", \
            "k=" k ",v=fp8"                                                                     \
    }
static const char *const apart[KV_N_DTYPES][KV_N_DTYPES] = { BESIDE("f32"),  BESIDE("f16"),
                                                             BESIDE("bf16"), BESIDE("int8"),
                                                             BESIDE("int4"), BESIDE("fp8") };
#undef BESIDE

const char *kv_types_text(kv_types t)
{
    const kv_dtype k = kv_of(t, true), v = kv_of(t, false);
    if (k >= KV_N_DTYPES || v >= KV_N_DTYPES) return "?";
    return kv_alike(t) ? dtypes[k] : apart[k][v];
}

/* One element of a row as its code; inv: 1 / scale. */
static uint8_t code_of(float x, float inv, kv_dtype d)
{
    float q = x * inv;
    if (d == KV_F8) return lq_f32_to_e4m3(q);
    q = rintf(q);
    return (uint8_t)(int8_t)(fabsf(q) <= 127.0f ? q : 0.0f); /* NaN: 0 */
}

static void write_scaled(uint8_t *dst, const float *x, int64_t D, kv_dtype d)
{
    float max = 0;
    bool nan = false;
    for (int64_t i = 0; i < D; i++) {
        nan |= isnan(x[i]);
        if (fabsf(x[i]) > max) max = fabsf(x[i]);
    }
    const float most = d == KV_I8 ? 127.0f : 448.0f;
    const bool finite = max < INFINITY && !nan, ok = max >= MM_I8_TINY && finite;
    float scale = ok ? max / most : finite ? 0.0f : NAN, inv = ok ? most / max : 0.0f;
    memcpy(dst, &scale, sizeof scale);
    dst += sizeof scale;
    for (int64_t i = 0; i < D; i++)
        dst[i] = code_of(x[i], inv, d);
}

void attn_kv_write(uint8_t *block, int slot, int block_size, const float *x, int64_t Hkv, int64_t D,
                   kv_dtype d)
{
    size_t row = attn_kv_row_bytes(d, D);
    for (int64_t h = 0; h < Hkv; h++, x += D) {
        uint8_t *dst = block + (size_t)(h * block_size + slot) * row;
        if (d == KV_F32) {
            memcpy(dst, x, (size_t)D * 4);
        } else if (!attn_kv_head(d)) {
            lq_from_f32(dst, x, d == KV_F16 ? LQ_F16 : LQ_BF16, (size_t)D);
        } else if (d == KV_I4) {
            attn_int4_write(dst, x, D);
        } else {
            write_scaled(dst, x, D, d);
        }
    }
}

bool attn_paired(kv_types d, int block_size, int64_t D, int64_t Dv, bool bf16)
{
    const attn_args a = { .bf16 = bf16, .D = D, .Dv = Dv };
    return d == KV_BF16 && block_size % ATTN_LANES == 0 && attn_in_bf16(&a);
}

void attn_kv_write_paired(uint8_t *block, int slot, int block_size, const float *x, int64_t Hkv,
                          int64_t D, bool key)
{
    enum { PIECE = 64 };
    uint16_t y[PIECE];
    const int64_t lane = slot % ATTN_LANES;
    /* from element to element (of K: from word to word), in numbers */
    const int64_t first = key ? 2 * lane : lane / 2 * 2 * D + lane % 2;
    const int64_t word = key ? 2 * ATTN_LANES : 4, odd = key ? 1 : 2;
    for (int64_t h = 0; h < Hkv; h++, x += D) {
        uint16_t *to = (uint16_t *)(void *)block + (h * block_size + slot - lane) * D + first;
        for (int64_t d = 0; d < D; d += PIECE) {
            const int64_t n = D - d < PIECE ? D - d : PIECE;
            lq_from_f32(y, x + d, LQ_BF16, (size_t)n);
            for (int64_t i = 0; i < n; i += 2, to += word) {
                to[0] = y[i];
                to[odd] = y[i + 1];
            }
        }
    }
}

/* ---- scratch ---- */
/* What some rows have folded so far: l = 0 where nothing. */
typedef struct {
    float *m, *l, *acc; /* [rows], [rows], [rows][Dv] */
} folded;

typedef struct {
    void *kt, *v;     /* one tile, as k_ops.h has it */
    uint16_t *q16;    /* in bf16: [rows][D] */
    float *s, *a;     /* [rows][ATTN_TILE], [rows] */
    const float **q;  /* [rows] */
    int *lo, *hi;     /* [rows] keys of the tile that the row sees */
    uint8_t *listed;  /* a tile of chosen keys, as they are in the cache */
    folded part, sum; /* of the split at hand, and of those before */
} work;

#define CUT(field, type, count)                  \
    w->field = base ? (void *)(base + n) : NULL; \
    n += lq_round_up((count) * sizeof(type), 64)

/* Cut `w` out of base (NULL: only count); returns the bytes. */
static size_t cut_folded(folded *w, uint8_t *base, size_t rows, size_t d)
{
    size_t n = 0;
    CUT(m, float, rows);
    CUT(l, float, rows);
    CUT(acc, float, rows *d);
    return n;
}

static size_t rows_max(int64_t H) { return H > ROWS ? (size_t)H : ROWS; }

static size_t cut(work *w, uint8_t *base, int64_t H, int64_t D)
{
    size_t rows = rows_max(H), d = (size_t)D, n = 0;
    CUT(kt, float, d *ATTN_TILE);
    CUT(v, float, d *ATTN_TILE);
    CUT(q16, uint16_t, rows * d);
    CUT(s, float, rows *ATTN_TILE);
    CUT(a, float, rows);
    CUT(q, float *, rows);
    CUT(lo, int, rows);
    CUT(hi, int, rows);
    CUT(listed, float, (d + 1) * ATTN_TILE);
    n += cut_folded(&w->part, base ? base + n : NULL, rows, d);
    n += cut_folded(&w->sum, base ? base + n : NULL, rows, d);
    return n;
}
#undef CUT

static size_t work_bytes(int64_t H, int64_t D)
{
    work none;
    return cut(&none, NULL, H, D);
}
static size_t folded_bytes(size_t rows, int64_t D)
{
    folded none;
    return cut_folded(&none, NULL, rows, (size_t)D);
}

size_t attn_scratch_bytes(int64_t H, int64_t D, int threads)
{
    return (size_t)threads * (work_bytes(H, D) + WIDE_SLOTS * folded_bytes(rows_max(H), D));
}

/* ---- one item ---- */
typedef struct {
    const attn_args *a;
    uint8_t *scratch, *slots;
    size_t per_thread, per_slot;
    int64_t width, chunk; /* max(D, Dv); query rows of an item */
    int64_t n_items, n_slots;
    int64_t first, n_units; /* wide: the units at work */
} run_ctx;

/* What an item is: rows i0..i0+n-1 of a sequence and one kv head, R (row, head) pairs, and the
 * splits that hold keys which some of them see. */
typedef struct {
    const attn_seq *s;
    int64_t kvh, i0, n, R, split, n_splits;
} item_at;

/* Of the keys that row i of a sequence sees by a kv head. */
static int64_t list_of(const attn_args *a, const attn_seq *s, int64_t kvh, int64_t i)
{
    return a->keys_by_head ? (s->row0 + i) * a->Hkv + kvh : s->row0 + i;
}

/* Row i of a sequence as a position among the keys that it may see: its own, or the last of its list. */
static int64_t query_at(const attn_args *a, const attn_seq *s, int64_t kvh, int64_t i)
{
    const int64_t pos = s->pos0 + i;
    if (a->n_keys) return a->n_keys[list_of(a, s, kvh, i)] - 1;
    return a->keys && pos >= a->ld_keys ? a->ld_keys - 1 : pos;
}

/* The first key that a query sees. */
static int64_t seen_from(const attn_args *a, int64_t query)
{
    if (!a->window) return 0;
    const int64_t first = a->chunks ? query - query % a->window : query - a->window + 1;
    return first > 0 ? first : 0;
}

/* The key after the last one that a query sees. */
static int64_t seen_to(const attn_args *a, const attn_seq *s, int64_t query)
{
    if (!a->both) return query + 1;
    const int64_t end = s->pos0 + s->n_rows, most = query + a->window;
    return a->window && most < end ? most : end;
}

/* The first key that one of its rows sees, and the one after the last. */
static int64_t first_key(const attn_args *a, const item_at *t)
{
    return seen_from(a, query_at(a, t->s, t->kvh, t->i0));
}
static int64_t end_key(const attn_args *a, const item_at *t)
{
    return seen_to(a, t->s, query_at(a, t->s, t->kvh, t->i0 + t->n - 1));
}

static item_at find_item(const run_ctx *c, int64_t item)
{
    const attn_args *a = c->a;
    const attn_seq *s = a->seqs;
    for (;; s++) { /* which sequence: they are few */
        int64_t n = lq_ceil_div(s->n_rows, c->chunk) * a->Hkv;
        if (item < n) break;
        item -= n;
    }
    /* Late chunks see most keys: start them first, the short ones fill the end. */
    int64_t n_chunks = lq_ceil_div(s->n_rows, c->chunk);
    item_at t = { .s = s, .kvh = item % a->Hkv };
    t.i0 = (n_chunks - 1 - item / a->Hkv) * c->chunk;
    t.n = s->n_rows - t.i0 < c->chunk ? s->n_rows - t.i0 : c->chunk;
    t.R = t.n * (a->H / a->Hkv);
    t.split = first_key(a, &t) / ATTN_SPLIT;
    t.n_splits = (end_key(a, &t) - 1) / ATTN_SPLIT + 1 - t.split;
    return t;
}

bool attn_in_bf16(const attn_args *a)
{
    return a->bf16 && k_get()->attn_k16 && a->D % 16 == 0 && a->Dv % 16 == 0;
}

kv_dtype attn_fast_cache(bool may) { return may && k_get()->attn_k16 ? KV_BF16 : KV_F16; }

static size_t row_bytes(const attn_args *a, bool key)
{
    return attn_kv_row_bytes(kv_of(a->dtype, key), key ? a->D : a->Dv);
}

/* Keys (or values) j..j+here-1 of a tile at dst. */
static void read_rows(void *dst, const attn_args *a, const uint8_t *src, int j, int here, bool key,
                      bool pairs)
{
    const k_ops *k = k_get();
    if (pairs && key)
        k->attn_k16((uint32_t *)dst + j / ATTN_LANES * (a->D / 2 * ATTN_LANES) + j % ATTN_LANES,
                    src, here, a->D, kv_of(a->dtype, true));
    else if (pairs) /* blocks begin with even keys */
        k->attn_v16((uint32_t *)dst + j / 2 * a->Dv, src, here, a->Dv, kv_of(a->dtype, false));
    else if (key)
        k->attn_k((float *)dst + j, src, here, a->D, kv_of(a->dtype, true));
    else
        k->attn_v((float *)dst + j * a->Dv, src, here, a->Dv, kv_of(a->dtype, false));
}

void attn_read_tile(void *dst, const attn_args *a, const attn_seq *s, const uint8_t *base,
                    int64_t kvh, int64_t pos, int n, bool key, bool pairs)
{
    const size_t row = row_bytes(a, key);
    for (int j = 0; j < n;) {
        int64_t p = pos + j, block = s->table[p / a->block_size], slot = p % a->block_size;
        int here = (int)(a->block_size - slot) < n - j ? (int)(a->block_size - slot) : n - j;
        const uint8_t *src =
            base + (size_t)block * a->block_stride + (size_t)(kvh * a->block_size + slot) * row;
        read_rows(dst, a, src, j, here, key, pairs);
        j += here;
    }
}

/* Row `pos` of K or V; of pairs, where 16 rows begin. */
static const uint8_t *row_at(const attn_args *a, const item_at *t, bool key, int64_t pos)
{
    const uint8_t *base = key ? a->k : a->v;
    const int64_t block = t->s->table[pos / a->block_size], slot = pos % a->block_size;
    return base + (size_t)block * a->block_stride +
           (size_t)(t->kvh * a->block_size + slot) * row_bytes(a, key);
}

/* attn_read_tile for the n keys from `at` on of the list of an item, which is one row. */
static void read_listed(void *dst, const attn_args *a, work *w, const item_at *t, int64_t at, int n,
                        bool key, bool pairs)
{
    const int32_t *pos = a->keys + list_of(a, t->s, t->kvh, t->i0) * a->ld_keys + at;
    const size_t row = row_bytes(a, key);
    for (int j = 0; j < n; j++)
        memcpy(w->listed + (size_t)j * row, row_at(a, t, key, pos[j]), row);
    for (int j = 0; j < n; j += ATTN_LANES) {
        const int here = n - j < ATTN_LANES ? n - j : ATTN_LANES;
        read_rows(dst, a, w->listed + (size_t)j * row, j, here, key, pairs);
    }
}

static void read_keys(void *dst, const attn_args *a, work *w, const item_at *t, int64_t pos, int n,
                      bool key, bool pairs)
{
    if (a->keys)
        read_listed(dst, a, w, t, pos, n, key, pairs);
    else
        attn_read_tile(dst, a, t->s, key ? a->k : a->v, t->kvh, pos, n, key, pairs);
}

static float bf16(float x) { return lq_bf16_to_f32(lq_f32_to_bf16(x)); }

void attn_adjust(const attn_args *a, float *s, int lo, int hi, int64_t h, int64_t pos,
                 int64_t query)
{
    if (a->softcap > 0) k_get()->softcap(s + lo, a->softcap, hi - lo);
    for (int j = lo; j < hi && a->dist_bias; j++) {
        const int64_t n = a->n_dist, d = pos + j - query;
        s[j] += a->dist_bias[h * (2 * n + 1) + n + (d < -n ? -n : d > n ? n : d)];
    }
    if (!a->alibi) return;
    float slope = a->alibi[h], f = a->alibi_scaled ? a->scale : 1.0f;
    if (a->alibi_bf16) {
        slope = bf16(slope);
        for (int j = lo; j < hi; j++)
            s[j] += f * bf16(slope * bf16((float)(pos + j)));
    } else if (a->both) {
        slope *= f;
        for (int j = lo; j < hi; j++)
            s[j] -= slope * fabsf((float)(pos - query + j));
    } else {
        slope *= f;
        for (int j = lo; j < hi; j++)
            s[j] += slope * (float)(pos - query + j);
    }
}

/* What query row i of a sequence and its keys have of their distances, onto the scores of one tile. */
static void add_distances(const attn_args *a, float *s, const attn_seq *seq, int64_t i, int lo,
                          int hi, int64_t h, int64_t pos)
{
    const int64_t n = a->n_dist, ld = a->H * a->dist_rows, query = seq->pos0 + i;
    const float *q = a->dist_q ? a->dist_q + (seq->row0 + i) * ld + h * a->dist_rows : NULL;
    const float *k =
        a->dist_k ? a->dist_k + (seq->row0 + pos - seq->pos0) * ld + h * a->dist_rows : NULL;
    for (int j = lo; j < hi; j++) {
        const int64_t d = pos + j - query;
        const int32_t row = a->dist_row[n + (d < -n ? -n : d > n ? n : d)];
        const float of_q = q ? q[row] : 0, of_k = k ? k[j * ld + row] : 0;
        s[j] += a->scale * (of_q + of_k);
    }
}

void attn_seen(const attn_args *a, const attn_seq *s, int64_t query, int64_t pos, int *from,
               int *to)
{
    int64_t hi = seen_to(a, s, query) - pos, lo = seen_from(a, query) - pos;
    *from = (int)(lo < 0 ? 0 : lo > ATTN_TILE ? ATTN_TILE : lo);
    *to = (int)(hi < 0 ? 0 : hi > ATTN_TILE ? ATTN_TILE : hi);
}

/* The tile at `pos` of K or V. No block is smaller than a run of it. */
static k_next next_of(const attn_args *a, const item_at *t, bool key, int64_t pos)
{
    const uint8_t *base = key ? a->k : a->v;
    enum { RUNS = 4, RUN = ATTN_TILE / RUNS };
    const int64_t end = a->keys ? 0 : end_key(a, t);
    k_next n = { { base, base, base, base }, 0 };
    if (pos < end) n.bytes = RUN * row_bytes(a, key);
    for (int i = 0; i < RUNS && pos < end; i++, pos += RUN)
        n.at[i] = row_at(a, t, key, pos);
    return n;
}

/* What lies together is too short for the hardware to see a stream, and a whole tile more than can
 * be under way: so a quarter of it at a time. */
static void ask_for(const k_next n[2], int quarter)
{
    for (int i = 0; i < 2; i++)
        for (size_t at = 0; at < n[i].bytes; at += 64)
            __builtin_prefetch(n[i].at[quarter] + at);
}

/* A tile in pairs of bf16: its halves. */
typedef struct {
    const uint32_t *k[2], *v[2];
} pair_tile;

static pair_tile read_pairs(const attn_args *a, work *w, const item_at *t, int64_t pos, int n)
{
    uint32_t *k = w->kt, *v = w->v;
    const int64_t half = ATTN_LANES / 2;
    if (!a->paired) {
        read_keys(k, a, w, t, pos, n, true, true);
        read_keys(v, a, w, t, pos, n, false, true);
        return (pair_tile){ { k, k + half * a->D }, { v, v + half * a->Dv } };
    }
    const int64_t last = n > ATTN_LANES ? pos + ATTN_LANES : pos; /* a half that no one sees: any */
    return (pair_tile){
        { (const void *)row_at(a, t, true, pos), (const void *)row_at(a, t, true, last) },
        { (const void *)row_at(a, t, false, pos), (const void *)row_at(a, t, false, last) }
    };
}

/* after: the item whose first tile comes next if this one is the last of its own (or NULL). */
static void one_tile(const attn_args *a, work *w, const item_at *t, int64_t pos,
                     const item_at *after)
{
    const attn_seq *s = t->s;
    const int64_t group = a->H / a->Hkv, last = end_key(a, t) - 1;
    const item_at *from = t;
    int64_t next = pos + ATTN_TILE;
    if (after && next > last) {
        from = after;
        next = first_key(a, after) / ATTN_TILE * ATTN_TILE;
    }
    const k_next ahead[2] = { next_of(a, from, true, next), next_of(a, from, false, next) };
    int n = (int)(last + 1 - pos < ATTN_TILE ? last + 1 - pos : ATTN_TILE);
    const k_ops *k = k_get();
    const bool pairs = attn_in_bf16(a);
    pair_tile tile;
    /* Places behind the last key hold what an earlier tile left: finite or not, never folded. */
    if (pairs) {
        tile = read_pairs(a, w, t, pos, n);
        k->attn_scores16(w->s, w->q16, tile.k, t->R, a->D, a->scale, &ahead[0]);
    } else {
        ask_for(ahead, 0);
        read_keys(w->kt, a, w, t, pos, n, true, false);
        read_keys(w->v, a, w, t, pos, n, false, false);
        ask_for(ahead, 1);
        k->attn_scores(w->s, w->q, w->kt, t->R, a->D, a->scale);
        ask_for(ahead, 2);
    }
    const bool adjusted = a->softcap > 0 || a->alibi || a->dist_bias;
    for (int64_t i = 0, r = 0; i < t->n; i++) {
        const int64_t query = query_at(a, t->s, t->kvh, t->i0 + i);
        int lo, hi;
        attn_seen(a, s, query, pos, &lo, &hi);
        for (int64_t h = t->kvh * group; h < (t->kvh + 1) * group; h++, r++) {
            w->lo[r] = lo;
            w->hi[r] = hi;
            if (adjusted && lo < hi) attn_adjust(a, w->s + r * ATTN_TILE, lo, hi, h, pos, query);
            if (a->dist_row) add_distances(a, w->s + r * ATTN_TILE, s, t->i0 + i, lo, hi, h, pos);
        }
    }
    k->attn_softmax(w->s, w->lo, w->hi, t->R, w->part.m, w->part.l, w->a);
    if (pairs) {
        k->attn_pv16(w->part.acc, w->s, tile.v, w->a, w->lo, w->hi, t->R, a->Dv, &ahead[1]);
    } else {
        ask_for(ahead, 3);
        k->attn_pv(w->part.acc, w->s, w->v, w->a, w->lo, w->hi, t->R, a->Dv);
    }
}

static void fold_nothing(const folded *f, int64_t R, int64_t Dv)
{
    memset(f->acc, 0, (size_t)(R * Dv) * sizeof *f->acc);
    for (int64_t r = 0; r < R; r++) {
        f->m[r] = -INFINITY;
        f->l[r] = 0;
    }
}

static void open_item(const attn_args *a, work *w, const item_at *t)
{
    const int64_t group = a->H / a->Hkv;
    const bool pairs = attn_in_bf16(a);
    if (!a->paired) memset(w->kt, 0, (size_t)(a->D * ATTN_TILE) * sizeof(float));
    for (int64_t r = 0; r < t->R; r++) {
        w->q[r] =
            a->q + (t->s->row0 + t->i0 + r / group) * a->ldq + (t->kvh * group + r % group) * a->D;
        if (pairs) k_get()->to_bf16(w->q16 + r * a->D, w->q[r], a->D);
    }
}

/* The keys of one split into w->part. */
static void fold_split(const attn_args *a, work *w, const item_at *t, int64_t split,
                       const item_at *after)
{
    int64_t first = first_key(a, t), last = end_key(a, t) - 1, end = (split + 1) * ATTN_SPLIT;
    if (first < split * ATTN_SPLIT) first = split * ATTN_SPLIT;
    fold_nothing(&w->part, t->R, a->Dv);
    for (int64_t pos = first / ATTN_TILE * ATTN_TILE; pos <= last && pos < end; pos += ATTN_TILE)
        one_tile(a, w, t, pos, after);
}

/* sum = sum and part joined: with the larger maximum, both sums and accumulators scaled to it. */
static void join(const folded *sum, const folded *part, int64_t R, int64_t Dv)
{
    for (int64_t r = 0; r < R; r++) {
        if (part->l[r] == 0) continue; /* saw no key of the split */
        float *to = sum->acc + r * Dv;
        const float *from = part->acc + r * Dv;
        if (sum->l[r] == 0) {
            sum->m[r] = part->m[r];
            sum->l[r] = part->l[r];
            memcpy(to, from, (size_t)Dv * sizeof *to);
            continue;
        }
        float max = part->m[r] > sum->m[r] ? part->m[r] : sum->m[r];
        float a = km_exp(sum->m[r] - max), b = km_exp(part->m[r] - max);
        sum->m[r] = max;
        sum->l[r] = sum->l[r] * a + part->l[r] * b;
        for (int64_t d = 0; d < Dv; d++)
            to[d] = to[d] * a + from[d] * b;
    }
}

void attn_finish_row(const attn_args *a, float m, float l, const float *acc, int64_t h, float *out)
{
    float f = 1.0f;
    if (a->sinks) { /* one more logit, without a value */
        float max = a->sinks[h] > m ? a->sinks[h] : m;
        f = km_exp(m - max);
        l = fmaf(l, f, km_exp(a->sinks[h] - max));
    }
    f /= l;
    for (int64_t d = 0; d < a->Dv; d++)
        out[d] = acc[d] * f;
    if (a->turned) k_hadamard(out, 1, a->Dv);
}

static void finish_item(const attn_args *a, const folded *sum, const item_at *t)
{
    const int64_t group = a->H / a->Hkv;
    for (int64_t r = 0; r < t->R; r++) {
        int64_t h = t->kvh * group + r % group;
        attn_finish_row(a, sum->m[r], sum->l[r], sum->acc + r * a->Dv, h,
                        a->out + (t->s->row0 + t->i0 + r / group) * a->ldo + h * a->Dv);
    }
}

/* ---- items shared out ---- */
/* The one behind t, which is item `item`; of the last t itself. */
static item_at item_after(const run_ctx *c, int64_t item, const item_at *t)
{
    item_at next = *t;
    if (item + 1 == c->n_items) return next;
    if (++next.kvh < c->a->Hkv) return next; /* of the same rows */
    return find_item(c, item + 1);
}

static void run_item(void *ctx, int64_t item, int thread)
{
    const run_ctx *c = ctx;
    const attn_args *a = c->a;
    const item_at t = find_item(c, item);
    const item_at after = item_after(c, item, &t);
    work w;
    cut(&w, c->scratch + (size_t)thread * c->per_thread, a->H, c->width);
    open_item(a, &w, &t);
    fold_nothing(&w.sum, t.R, a->Dv);
    for (int64_t i = 0; i < t.n_splits; i++) {
        fold_split(a, &w, &t, t.split + i, item + 1 < c->n_items ? &after : NULL);
        join(&w.sum, &w.part, t.R, a->Dv);
    }
    finish_item(a, &w.sum, &t);
}

/* ---- splits shared out ----
 * A unit is one split of one item. As many as there are slots run in one region, each into a slot
 * of its own; then each item joins its units in order, and the next ones run. The items' sums have
 * the first n_items slots. */
static folded slot(const run_ctx *c, int64_t i)
{
    folded f;
    const size_t rows = (size_t)c->chunk * (size_t)(c->a->H / c->a->Hkv);
    cut_folded(&f, c->slots + (size_t)i * c->per_slot, rows, (size_t)c->a->Dv);
    return f;
}

static void run_unit(void *ctx, int64_t unit, int thread)
{
    const run_ctx *c = ctx;
    work w;
    cut(&w, c->scratch + (size_t)thread * c->per_thread, c->a->H, c->width);
    w.part = slot(c, c->n_items + unit);
    unit += c->first;
    item_at t = find_item(c, 0);
    for (int64_t item = 0; unit >= t.n_splits; t = find_item(c, ++item))
        unit -= t.n_splits;
    open_item(c->a, &w, &t);
    fold_split(c->a, &w, &t, t.split + unit, NULL);
}

static void join_item(void *ctx, int64_t item, int thread)
{
    (void)thread;
    const run_ctx *c = ctx;
    int64_t unit = 0;
    for (int64_t i = 0; i < item; i++)
        unit += find_item(c, i).n_splits;
    const item_at t = find_item(c, item);
    const folded sum = slot(c, item);
    const int64_t end = unit + t.n_splits;
    if (unit >= c->first) fold_nothing(&sum, t.R, c->a->Dv);
    for (; unit < end; unit++) {
        if (unit < c->first || unit >= c->first + c->n_units) continue;
        const folded part = slot(c, c->n_items + unit - c->first);
        join(&sum, &part, t.R, c->a->Dv);
    }
    if (end > c->first && end <= c->first + c->n_units) finish_item(c->a, &sum, &t);
}

static void run_wide(run_ctx *c, int64_t units, pool *p)
{
    for (; c->first < units; c->first += c->n_units) {
        c->n_units = c->n_slots - c->n_items;
        if (c->n_units > units - c->first) c->n_units = units - c->first;
        pool_run(p, c->n_units, run_unit, c);
        pool_run(p, c->n_items, join_item, c);
    }
}

void attn_run(const attn_args *a, lq_arena *scratch, pool *p)
{
    run_ctx c = { .a = a, .width = a->D > a->Dv ? a->D : a->Dv };
    const size_t mark = lq_arena_mark(scratch), threads = (size_t)pool_threads(p);
    int64_t group = a->H / a->Hkv, rows = 0, units = 0, longest = 0;
    for (int i = 0; i < a->n_seqs; i++)
        if (a->seqs[i].n_rows > rows) rows = a->seqs[i].n_rows;
    c.chunk = ROWS / group > 0 && !a->keys ? ROWS / group : 1;
    if (c.chunk > rows && rows > 0) c.chunk = rows;
    c.per_thread = work_bytes(a->H, c.width);
    c.scratch = lq_push(scratch, c.per_thread * threads);
    for (int i = 0; i < a->n_seqs; i++)
        c.n_items += lq_ceil_div(a->seqs[i].n_rows, c.chunk) * a->Hkv;
    const bool few = threads > 1 && c.n_items < WIDE_ITEMS * (int64_t)threads;
    for (int64_t i = 0; i < c.n_items && few; i++) {
        const int64_t n = find_item(&c, i).n_splits;
        units += n;
        if (n > longest) longest = n;
    }
    /* Alike, and as many for each thread: whole, since what comes next is known then. */
    const bool even = units == longest * c.n_items && c.n_items % (int64_t)threads == 0;
    const size_t room = WIDE_SLOTS * folded_bytes(rows_max(a->H), c.width) * threads;
    c.per_slot = folded_bytes((size_t)(c.chunk * group), a->Dv);
    c.n_slots = (int64_t)(room / c.per_slot);
    if (units > c.n_items && !even && c.n_slots >= 2 * c.n_items) {
        c.slots = lq_push(scratch, room);
        run_wide(&c, units, p);
    } else {
        pool_run(p, c.n_items, run_item, &c);
    }
    lq_arena_reset(scratch, mark);
}
