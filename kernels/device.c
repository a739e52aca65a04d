/* kernels/device.c - which device tables this program has, and the one that --device names. */
#include "kernels/device.h"

#include <stdlib.h>

/* Of this file alone. LLMQ_CUDA: the Makefile has compiled kernels/cuda/, for these; LLMQ_NO_CUDA:
 * why it has not. */
#ifdef LLMQ_CUDA
extern const dev_ops cu_table;
static const dev_ops *in_use = &cu_table;
#else
static const dev_ops *in_use;
#define LLMQ_CUDA ""
#endif
#ifndef LLMQ_NO_CUDA
#define LLMQ_NO_CUDA ""
#endif

const dev_ops *dev_cuda(void) { return in_use; }
void dev_use(const dev_ops *ops) { in_use = ops; }

const char *dev_not_built(void)
{
    return dev_cuda() ? NULL : "this llmq was built without CUDA (" LLMQ_NO_CUDA ")";
}

const char *dev_code(void) { return LLMQ_CUDA; }

bool dev_may_follow(int cc, int ptx)
{
    enum { SINCE = 90 };
    return cc >= SINCE && ptx >= SINCE && cc / 10 != 12;
}

int dev_count(lq_err *why)
{
    const dev_ops *ops = dev_cuda();
    if (ops) return ops->count(why);
    lq_fail(why, LQ_EDEVICE, "no GPU: %s", dev_not_built());
    return 0;
}

lq_status dev_open(dev *d, const char *want, lq_err *err)
{
    const char *digits = want + strlen("cuda:");
    char *end = NULL;
    long index = 0;
    memset(d, 0, sizeof *d);
    if (strncmp(want, "cuda:", strlen("cuda:")) == 0) {
        index = *digits >= '0' && *digits <= '9' ? strtol(digits, &end, 10) : -1;
        if (index < 0 || index > 1023 || *end || (*digits == '0' && digits[1]))
            return lq_fail(err, LQ_EUSAGE, "expected cuda:NUMBER, found '%s'", want);
    } else if (strcmp(want, "cuda") != 0) {
        return lq_fail(err, LQ_EUSAGE, "expected cpu, auto, cuda or cuda:NUMBER, found '%s'", want);
    }
    if (dev_count(err) == 0) return LQ_EDEVICE;
    return dev_cuda()->open(d, (int)index, err);
}

lq_status dev_take(void **p, dev *d, size_t n, const char *what, lq_err *err)
{
    *p = d->ops->alloc(d, n);
    if (*p) return LQ_OK;
    const lq_status s = d->ops->sync(d, err);
    if (s != LQ_ENOMEM) return s;
    return lq_fail(err, s, "%s: %s %zu bytes, found %zu free", d->name, what, n, d->ops->room(d));
}

int dev_ranks(const dev *d)
{
    int n = 0;
    for (; d; d = d->peer)
        n++;
    return n;
}

size_t dev_room(dev *d)
{
    size_t least = SIZE_MAX;
    for (; d; d = d->peer) {
        const size_t room = d->ops->room(d);
        if (room < least) least = room;
    }
    return least;
}

bool dev_same_group(const qt_scheme *a, const qt_scheme *b)
{
    return a->kind == b->kind && a->dtype == b->dtype && a->bits == b->bits &&
           a->group == b->group && a->rows == b->rows && a->zero == b->zero &&
           a->zbits == b->zbits && a->scale_dtype == b->scale_dtype &&
           a->act_order == b->act_order && a->div127 == b->div127 && a->recip == b->recip &&
           a->act == b->act && a->act_group == b->act_group;
}

bool dev_mm_ints(const dev_weight *w, mm_acts acts)
{
    const qt_scheme *s = &w->t.scheme;
    return acts == MM_I8 && mm_effective(s, acts) == MM_I8 &&
           (s->kind == QT_UINT || s->kind == QT_I8 || s->kind == QT_I8_OUTLIER);
}

bool dev_rounds(const dev_weight *w, mm_acts acts)
{
    return acts != MM_F32 && !dev_mm_ints(w, acts) && !w->t.scheme.act &&
           w->t.scheme.kind != QT_I8_OUTLIER;
}

bool dev_acts(const dev *d, const dev_weight *w, mm_acts acts, int64_t M, dev_act_kind kind)
{
    const qt_scheme *s = &w->t.scheme;
    return acts != MM_F32 && !dev_mm_ints(w, acts) && !s->act && !d->batch_invariant &&
           M <= DEV_MM_SMALL && !(s->kind == QT_DENSE && s->dtype == LQ_F32) &&
           (kind != DEV_ACT_PAIR || w->t.N % (2 * TILE_N) == 0);
}

bool dev_norms(const dev *d, const dev_weight *w, mm_acts acts, int64_t M)
{
    return dev_rounds(w, acts) && dev_acts(d, w, acts, M, DEV_ACT_ALONE) &&
           !w->t.scheme.act_order && w->s.G == w->s.Gp && w->s.Kp == w->t.K;
}

size_t dev_mm_few_parts(int64_t N, int64_t K)
{
    enum { PART = 4096 };       /* inputs, of mm_thin */
    const int64_t most = 2 * K; /* with groups padded */
    const size_t parts = (size_t)(lq_ceil_div(most, PART) * DEV_MM_SMALL) *
                         lq_round_up((size_t)N, TILE_N) * sizeof(float);
    return most > PART && parts > DEV_MM_PARTS ? parts : DEV_MM_PARTS;
}

bool dev_in_rows(const qt_tensor *t)
{
    return t->scheme.kind == QT_DENSE && t->scheme.dtype == LQ_BF16 && !t->scheme.act &&
           t->K % TILE_K == 0;
}

size_t dev_mm_parts(int64_t M, int64_t N, int64_t K)
{
    enum { BLOCKS = 256, SUMS = 32 << 10 }; /* MM_CUT_BLOCKS, and what one has at most */
    const size_t n = (size_t)(DEV_MM_SPLITS * M * N) * sizeof(float);
    if (M <= DEV_MM_SMALL || K <= DEV_MM_SPLIT_LEAST) return 0;
    return n < (size_t)BLOCKS * SUMS ? n : (size_t)BLOCKS * SUMS;
}

/* 14,336 x 4,096 on an H200, TFLOP/s expanded and by own wgmma: of 2,048 rows u4-g128 509 and 429, u8-g128
 * 480 and 342, nf4 490 and 145, mxfp4 520 and 183, fp8-e4m3 536 and 178; of 512 rows 401 and 376, 350 and 314,
 * 339 and 130, 347 and 163, 381 and 156 (docs/lab/cuda.md). */
bool dev_mm_tall(const qt_scheme *s)
{
    return s->kind == QT_UINT && s->bits == 3 &&
           (s->zero == QT_ZERO_F16 || s->zero == QT_ZERO_BIAS || s->scale_dtype == LQ_F8_E4M3 ||
            s->scale_dtype == LQ_F8_E8M0);
}

/* Rows from which a weight of this scheme is expanded for cuBLAS. */
static int64_t wide_from(const qt_scheme *s)
{
    const bool floats = s->kind == QT_LUT4 || s->kind == QT_E2M1 || s->kind == QT_E4M3;
    return floats ? DEV_MM_WIDE_LEAST : 512;
}

bool dev_mm_wide(const dev *d, const dev_weight *w, mm_acts acts, int64_t M)
{
    const qt_scheme *s = &w->t.scheme;
    return d->wide && M >= wide_from(s) && d->blas_room && !d->batch_invariant && acts != MM_F32 &&
           !dev_mm_ints(w, acts) && !s->act && s->kind != QT_I8_OUTLIER &&
           !(s->kind == QT_DENSE && s->dtype == LQ_F32) && w->t.layout == QT_TILE16;
}

bool dev_mm_codes(const dev_weight *w)
{
    const qt_scheme *s = &w->t.scheme;
    const bool kinds = (s->kind == QT_I8 && s->act == QT_ACT_I8 && s->zero == QT_ZERO_NONE) ||
                       (s->kind == QT_E4M3 && s->act == QT_ACT_F8);
    return kinds && w->s.ng == 1 && w->s.subs == 1 && (!s->act_group || s->act_group == w->t.K);
}

bool dev_mm_lt(const dev *d, const dev_weight *w, mm_acts acts, int64_t M)
{
    enum { E4M3_SINCE = 89 };
    return d->lt && M >= DEV_MM_LT && acts != MM_F32 && !d->batch_invariant && dev_mm_codes(w) &&
           w->t.layout == QT_TILE16 && (w->t.scheme.act == QT_ACT_I8 || d->cc >= E4M3_SINCE);
}

size_t dev_mm_wide_bytes(int64_t M, int64_t N, int64_t K)
{
    const size_t all = lq_round_up((size_t)N, TILE_N) * (size_t)K * 2,
                 least = (size_t)K * TILE_N * 2;
    if (M < DEV_MM_WIDE_LEAST) return 0;
    const size_t most = least > DEV_MM_WIDE_BYTES ? least : DEV_MM_WIDE_BYTES;
    return all < most ? all : most;
}

bool dev_same_input(const dev_weight *a, const dev_weight *b, mm_acts acts)
{
    const bool ints = dev_mm_ints(a, acts);
    /* of many rows dev_mm_lt or dev_mm_wide may differ, of 33 to 64 the panels */
    if (dev_mm_codes(a) != dev_mm_codes(b) ||
        dev_mm_tall(&a->t.scheme) != dev_mm_tall(&b->t.scheme) ||
        wide_from(&a->t.scheme) != wide_from(&b->t.scheme))
        return false;
    if (ints != dev_mm_ints(b, acts) || (ints && mm_i8_block(&a->s) != mm_i8_block(&b->s)))
        return false;
    const qt_scheme *s = &a->t.scheme, *t = &b->t.scheme;
    const bool f32 = s->kind == QT_DENSE && s->dtype == LQ_F32;     /* none of bf16 for the units */
    const bool groups = (a->s.G == a->s.Gp && b->s.G == b->s.Gp) || /* no padding */
                        (a->s.G == b->s.G && a->s.Gp == b->s.Gp);
    return a->t.layout == b->t.layout && a->t.K == b->t.K && a->s.Kp == b->s.Kp && groups &&
           f32 == (t->kind == QT_DENSE && t->dtype == LQ_F32) && !s->act_order && !t->act_order &&
           s->kind != QT_I8_OUTLIER && t->kind != QT_I8_OUTLIER && s->act == t->act &&
           (!s->act || (s->act_group == t->act_group && s->act_scale == t->act_scale));
}

bool dev_attn_units(kv_dtype dtype, int64_t D, int64_t Dv, bool latent)
{
    return dtype != KV_F32 && D % 8 == 0 && Dv % 8 == 0 &&
           D <= (latent ? DEV_ATTN_LATENT_WIDTH : DEV_ATTN_HEAD) &&
           Dv <= (latent ? DEV_ATTN_LATENT_VALUES : DEV_ATTN_HEAD);
}

enum { WIDEST = 128 }; /* heads of DEV_ATTN_WIDE */

bool dev_attn_codes(kv_dtype dtype, int64_t D, int64_t Dv)
{
    return dtype != KV_F16 && dtype != KV_BF16 && dev_attn_units(dtype, D, Dv, false) &&
           D <= WIDEST && Dv <= WIDEST;
}

bool dev_attn_choose_wide(const dev *d, int64_t D, int64_t Dv)
{
    return d->cc == 90 && D <= WIDEST && Dv <= WIDEST;
}

dev_attn_how dev_attn_choose(const dev *d, mm_acts acts, kv_dtype dtype, int64_t D, int64_t Dv,
                             bool latent, int64_t n_rows)
{
    if (acts == MM_F32 || !dev_attn_units(dtype, D, Dv, latent)) return DEV_ATTN_EXACT;
    if (latent || D > DEV_ATTN_WIDTH || Dv > DEV_ATTN_WIDTH) return DEV_ATTN_LATENT;
    if (d->batch_invariant || n_rows <= DEV_ATTN_FEW) return DEV_ATTN_DECODE;
    return (dtype == KV_F16 || dtype == KV_BF16) && dev_attn_choose_wide(d, D, Dv) ? DEV_ATTN_WIDE
                                                                                   : DEV_ATTN_UNITS;
}

enum { PAIRS = 16 }; /* (row, head) pairs that share a tile of keys, of few rows */

/* That a block has. */
static int64_t pairs_of(dev_attn_how how)
{
    if (how == DEV_ATTN_WIDE) return DEV_ATTN_WIDE_PAIRS;
    return how == DEV_ATTN_UNITS || how == DEV_ATTN_LATENT ? DEV_ATTN_PAIRS : PAIRS;
}

int64_t dev_attn_rows(dev_attn_how how, int64_t H, int64_t Hkv)
{
    const int64_t pairs = pairs_of(how);
    return H / Hkv < pairs ? pairs / (H / Hkv) : 1;
}

int64_t dev_attn_done(int64_t n_chunks, int64_t H, int64_t Hkv)
{
    const int64_t pairs = dev_attn_rows(DEV_ATTN_DECODE, H, Hkv) * (H / Hkv);
    return n_chunks * Hkv * lq_ceil_div(pairs, PAIRS);
}

size_t dev_attn_scratch(dev_attn_how how, int64_t n_slots, int64_t H, int64_t Hkv, int64_t Dv)
{
    return (size_t)(n_slots * dev_attn_rows(how, H, Hkv) * H * (Dv + 2)) * sizeof(float);
}

int64_t dev_attn_split(const dev *d, dev_attn_how how, int64_t blocks)
{
    const bool latent = how == DEV_ATTN_LATENT;
    if (how != DEV_ATTN_UNITS && how != DEV_ATTN_WIDE && !latent) return ATTN_SPLIT;
    const bool enough = blocks > 0 && 4 * blocks >= 3 * d->n_sm; /* most multiprocessors have one */
    if (enough && !(latent && d->batch_invariant)) return DEV_ATTN_WHOLE;
    return latent ? ATTN_SPLIT : DEV_ATTN_LONG;
}

int64_t dev_attn_blocks(dev_attn_how how, int64_t n_rows, int64_t H, int64_t Hkv)
{
    const int64_t rows = dev_attn_rows(how, H, Hkv);
    return lq_ceil_div(n_rows, rows) * Hkv * lq_ceil_div(rows * (H / Hkv), pairs_of(how));
}

void dev_attn_plan(dev_attn_how how, dev_attn_chunk *chunks, int64_t *n_chunks, int32_t *chunk_of,
                   int64_t *n_slots, const attn_seq *s, int32_t table, int64_t split, int64_t H,
                   int64_t Hkv, int64_t window, int64_t end)
{
    const int64_t rows = dev_attn_rows(how, H, Hkv);
    for (int64_t i = 0; i < s->n_rows; i += rows) {
        const int64_t n = s->n_rows - i < rows ? s->n_rows - i : rows, pos = s->pos0 + i;
        const int64_t first = window && pos >= window ? pos - window + 1 : 0;
        int64_t last = end ? end - 1 : pos + n - 1;
        if (end && window && last > pos + n - 1 + window - 1) last = pos + n - 1 + window - 1;
        dev_attn_chunk c = { .row = (int32_t)(s->row0 + i),
                             .n_rows = (int32_t)n,
                             .pos = (int32_t)pos,
                             .fresh = (int32_t)(end ? end : s->pos0),
                             .table = table,
                             .split0 = (int32_t)(first / split),
                             .slot = (int32_t)*n_slots };
        c.n_splits = (int32_t)(last / split) + 1 - c.split0;
        for (int32_t k = 0; k < c.n_splits; k++, ++*n_slots)
            if (chunk_of) chunk_of[*n_slots] = (int32_t)*n_chunks;
        if (chunks) chunks[*n_chunks] = c;
        ++*n_chunks;
    }
}

/* ---- chosen keys ---- */

int64_t dev_topk_row(int64_t n[2], int64_t longest, int64_t topk)
{
    for (int i = 0; i < 2; i++) {
        const int64_t from = i ? n[0] : longest;
        n[i] = from > DEV_TOPK_PART ? lq_ceil_div(dev_topk_left(from, topk), 4) * 4 : 0;
    }
    return lq_ceil_div(longest, 4) * 4 + 2 * (n[0] + n[1]);
}

int64_t dev_topk_rows(int64_t longest, int64_t topk, int64_t n_rows)
{
    int64_t n[2];
    const int64_t fit = DEV_TOPK_BYTES / (int64_t)sizeof(uint32_t) / dev_topk_row(n, longest, topk);
    return fit < 1 ? 1 : fit < n_rows ? fit : n_rows;
}

size_t dev_topk_scratch(int64_t longest, int64_t topk, int64_t n_rows)
{
    int64_t n[2];
    return (size_t)(dev_topk_rows(longest, topk, n_rows) * dev_topk_row(n, longest, topk)) *
           sizeof(uint32_t);
}

int64_t dev_topk_blocks_rows(int64_t longest, int64_t block, int64_t H, int64_t n_rows)
{
    const int64_t fit =
        DEV_TOPK_BYTES / (int64_t)sizeof(uint32_t) / (H * lq_ceil_div(longest, block));
    return fit < 1 ? 1 : fit < n_rows ? fit : n_rows;
}

size_t dev_topk_blocks_scratch(int64_t longest, int64_t block, int64_t H, int64_t n_rows)
{
    const int64_t rows = dev_topk_blocks_rows(longest, block, H, n_rows);
    return (size_t)(rows * H * lq_ceil_div(longest, block)) * sizeof(uint32_t);
}
