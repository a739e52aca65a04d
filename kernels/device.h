/* kernels/device.h - a GPU as a table of operations on device memory and one stream.
 *
 * The table is complete and chosen whole: dev_cuda() where this build has it (kernels/cuda/,
 * compiled by nvcc), in the tests also the same sources compiled for the host (kernels/cuda/emu/).
 *
 * Operations are queued in order and return nothing. The first that fails is kept in the dev, those
 * after it do nothing, and dev_sync says what happened. All pointers in arguments are device memory
 * unless marked "host". None allocates; no result depends on how many rows or sequences share
 * a call, save where an operation says so, and there not with dev.batch_invariant. Every sum has one
 * fixed order (of its own: results equal the CPU's within the bound of its contract in mm.h, ops.h,
 * attn.h, not to the bit). */
#ifndef LLMQ_KERNELS_DEVICE_H
#define LLMQ_KERNELS_DEVICE_H

#include "formats/tensor/tiles.h"
#include "kernels/attn.h"
#include "kernels/mm.h"
#include "kernels/ops.h"

LQ_C_BEGIN

typedef struct dev_ops dev_ops;

enum { DEV_DONE = 1024 };

typedef struct dev dev;
struct dev {
    const dev_ops *ops;
    dev *peer; /* the next rank's of several that share a model (dev_link); NULL: none */
    struct dev_link *link; /* of those; NULL: none */
    void *stream;
    void *blas, *blas_room;  /* cuBLAS, once it was needed, and its workspace */
    int32_t *done;           /* [DEV_DONE] 0 between launches: counters of blocks that join parts */
    int index, cc;           /* cc: compute capability, 90 for 9.0 */
    int code, ptx;           /* its kernels: machine code for, and compiled from PTX of, likewise;
                                code above ptx is what the driver has compiled */
    int n_sm;                /* multiprocessors */
    bool wide;               /* cuBLAS multiplies quantized weights, of many rows */
    bool lt;                 /* cuBLASLt is there too */
    bool follows;            /* a launch may begin before the one before it has ended */
    size_t memory;           /* bytes in all */
    size_t shared_per_block; /* bytes at most */
    char name[64];
    bool batch_invariant; /* a row's bits do not depend on the other rows of a call; set before
                                anything is queued */
    lq_status bad;        /* first failure since dev_sync */
    lq_err why;
};

/* What is made for one product alone, rounded to bf16, goes to its scratch, as it would arrange it: `to`, and how
 * (mm_order). Then it is `arranged`. */
typedef struct {
    void *to; /* NULL: not so */
    int64_t how;
} dev_order;

/* x += add * factor, then h = norm(x), of T rows of K; rms or layer norm as in ops.h. add, h, w, b
 * may be NULL; without h only the sum. h may be x, or add. w and b [rows, K] are taken in turn. */
typedef struct {
    float *x, *h;
    const float *add, *w, *b;
    float factor; /* of add; 0: 1 */
    float offset, eps;
    bool layer;
    bool bf16; /* h is rounded to it */
    int64_t T, K;
    int64_t ld;   /* from row to row of x, h and add; 0: K */
    int64_t side; /* rows that are side by side: then ld is from the first of so many to the next's;
                     0: 1 */
    int64_t rows; /* of w and b; 0: 1 */
    dev_order order; /* of h, which is not written then; side is 0 */
} dev_norm_args;

/* A row of `whole` floats of which each of several devices has K: first `squares` leaves each row's
 * own sum of squares in sums [T], then, those being the sums over all devices, `scale` makes x =
 * x / sqrt(sums / whole + eps) * (w + offset), the rms norm of ops.h. */
typedef struct {
    float *x, *sums;
    const float *w; /* [K] */
    float offset, eps;
    int64_t T, K, whole;
    int64_t ld; /* from row to row of x; 0: K */
} dev_share_args;

/* q, k and v are held within +-clip (0: they are not). The first R of each head's D dims of q [T,
 * H*D] and k [T, Hkv*D] are rotated in place (as k_rope; cos, sin [T, R/2]; R = 0: none); then k
 * and v [T, Hkv*Dv] are written into the cache of a layer, laid out as attn.h says, row t to
 * slot[t] of block[t]; slot[t] < 0: nowhere. cache_k NULL: no cache; cache_v NULL: v is not looked at. */
typedef struct {
    float *q, *k, *v;
    const float *cos, *sin;
    const int32_t *block, *slot;
    uint8_t *cache_k, *cache_v;
    size_t block_stride;
    int block_size;
    kv_dtype dtype;
    bool half; /* pairs (i, i + R/2), else (2i, 2i + 1) */
    float clip;
    int64_t T, H, Hkv, D, Dv, R;
    int64_t ld; /* from row to row of q, k and v, which are in the same rows; 0: each in its own */
} dev_rope_args;

/* dst [T, ldd] = f(gate) * up * scale, n of each row of gate [T, ld] and up [T, ld_up] (k_act_mul); up NULL:
 * f(gate). dst may be gate or up, with the same row length. mixed: gate holds [gate up gate up ...]
 * and up is not looked at. */
typedef struct {
    float *dst;
    const float *gate, *up;
    const float *scale; /* [T] or NULL: 1 */
    int64_t T, n, ldd, ld;
    int64_t ld_up; /* 0: ld */
    k_act_fn f;
    float limit;
    bool mixed;
    bool bf16;       /* dst is rounded to it */
    dev_order order; /* of dst, which is not written then; not mixed */
    /* Gates become max(gate - (their row's mean + z times their deviation), 0) first; not with mixed or order. */
    bool cut;
    float z;
} dev_act_args;

/* to += by * norm(y), + more, all of it times factor, of T rows of K; norms as dev_norm_args. to [T, ldt] has n such
 * rows beside each other, which all get the same. y stays. */
typedef struct {
    float *to;
    const float *y, *w, *b, *more; /* w: not NULL; b and more may be */
    float offset, eps, by, factor; /* by, factor: 0: 1 */
    bool layer;
    int64_t T, K, n;
    int64_t ldt; /* 0: n K */
} dev_post_args;

enum { DEV_STREAMS = 8 }; /* at most */

/* What runtime/forward/forward_altup.c does to T rows of n residual streams of K, the first of which is x [T, K] and
 * the others, streams [T, (n - 1) K], are beside each other, with m [n] = tanh(router norm(x) / K): without
 * `scale` what is before a layer, coef [n n, n], and first [T, K] = x; with it what is after one, coef [n, n], and
 * y = x scale. */
typedef struct {
    float *x, *streams, *first, *y;
    const float *norm, *router, *coef, *scale; /* [K], [n, K] */
    float offset, eps;
    int64_t T, K, n;
} dev_altup_args;

/* out = factor (base + y |x| / |y|), |y| being the root of the mean of squares, y's at least that of 1e-5, of n rows of
 * K beside each other for each of T of x [T, K] and base [T, K] (NULL: 0). out and y [T, ld] may be the same, and
 * out may be x or base where n is 1. */
typedef struct {
    float *out;
    const float *y, *x, *base;
    int64_t T, K, n, ld;
    float factor;
} dev_gauge_args;

/* What runtime/forward/forward_hyper.c makes of T rows of n residual streams of K beside each other: mix [T, ldm] are
 * products of all of a row's; divided by their root mean square, times scale[0], with base [n], the first n are x's
 * factors, x = sum_j (sigmoid(mix_j) + eps) stream_j. after: the next n, by scale[1] and base + n, become what a
 * branch's output is multiplied by, post sigmoid(mix_j) + eps, without eps where streams are mixed. steps > 0: they are,
 * by what the n * n numbers after these become, by scale[2] and base + 2n: a softmax of each row plus eps, whose columns
 * are divided by their sums plus eps, then steps - 1 times rows and columns. mix NULL: x is the streams' mean. */
typedef struct {
    float *x, *mix;
    const float *streams, *base, *scale;
    float norm_eps, eps, post;
    bool after;
    int64_t steps, T, K, n, ldm;
} dev_collapse_args;

/* stream_k += by_k y [T, K], of n streams beside each other; by [T, ldb]. mixed: stream_k = by_k y + sum_j m_jk stream_j,
 * m [n, n] after by's n. */
typedef struct {
    float *streams;
    const float *y, *by;
    bool mixed;
    int64_t T, K, n, ldb;
} dev_spread_args;

/* x [T, K] = scale * by[ids[t]] * rows ids[t] of table [V, K] of dtype f32, f16 or bf16. Ids were checked. Also
 * how rows are picked out of others (f32, scale 1, no by: the same bits). */
typedef struct {
    float *x;
    const void *table;
    lq_dtype dtype;
    const int32_t *ids;
    const float *by; /* [V] or NULL: 1 */
    int64_t T, K;
    float scale;
} dev_embed_args;

/* n bytes of each of `rows` rows, on the device; rows are ldd and lds bytes apart and do not
 * overlap. */
typedef struct {
    void *dst;
    const void *src;
    size_t n, ldd, lds;
    int64_t rows;
} dev_copy_args;

/* n floats of each of A times B rows, which change their order: dst [B, A, ldd], src [A, B, lds]. */
typedef struct {
    float *dst;
    const float *src;
    int64_t A, B, n, ldd, lds;
} dev_swap_args;

/* Each of H heads of D at x [T, ld] is turned (k_hadamard), in place. */
typedef struct {
    float *x;
    int64_t T, H, D, ld;
    bool bf16; /* x is rounded to it */
} dev_turn_args;

/* A weight whose planes, laid out as formats/tensor/tiles.h says, are in device memory. */
typedef struct {
    qt_tensor t;
    tile_shape s;
} dev_weight;

/* n weights of one scheme and shape (dev_same_group), each for rows of its own: experts. */
typedef struct {
    const void *parts;           /* n * DEV_GROUP_EACH bytes, written by mm_group */
    const int32_t *first, *busy; /* dev_place_args: whose the rows of x and y are */
    int64_t n, most;             /* most: rows of one weight at most */
} dev_group;

enum {
    DEV_GROUP_EACH = 88,      /* bytes that a group keeps of each of its weights */
    DEV_MM_SMALL = 8,         /* rows up to which a product is bound by reading the weight */
    DEV_MM_PARTS = 192 << 10, /* bytes of mm_scratch at most for parts of weights of few outputs */
    DEV_MM_SPLITS = 8,        /* parts of K at most of more than DEV_MM_SMALL rows */
    DEV_MM_SPLIT_LEAST = 512, /* inputs of such a part at least, but for the last */
    DEV_MM_LT = 512,          /* rows from which codes may be cuBLASLt's (dev_mm_lt) */
    DEV_MM_WIDE_LEAST = 256,  /* the least of rows from which a weight is expanded for cuBLAS */
    DEV_MM_WIDE_BYTES = 32 << 20, /* of what is expanded at a time, at most */
};

/* What is done to x before a product, in place of a dev_norm_args after which it is rounded to
 * bf16, to the same bits: h = norm(x), x stays. w, b [K] or NULL; they, and the rows of x, are at
 * multiples of 16 bytes. */
typedef struct {
    const float *w, *b;
    float offset, eps;
    bool layer;
} dev_mm_norm;

/* What an MLP makes of its first product, in place of a dev_act_args after it, to the same bits.
 * PAIR: W has gate's N / 2 outputs and then up's, and y [M, N / 2] = f(gate) * up; ALONE: f(W x).
 */
typedef enum { DEV_ACT_NONE, DEV_ACT_ALONE, DEV_ACT_PAIR } dev_act_kind;
typedef struct {
    dev_act_kind kind;
    k_act_fn f;
    float limit;
    bool bf16; /* y is rounded to it */
} dev_mm_act;

/* y [M, ldy] = x [M, ldx] W^T, + bias [N] if not NULL, + y where add.
 *
 * With dev.batch_invariant products are done in the order of more than DEV_MM_SMALL rows, any M.
 * acts MM_F32: f32 by the dequantized weight, any M. MM_BF16: x rounded to bf16, by the matrix
 * units (M in one order of summation up to DEV_MM_SMALL, in another beyond), to which weights whose
 * codes less their zero points have more than 8 significant bits (f16, nf4 and float zero points)
 * go as the sum of two bf16, an error of 2^-16 of |w|; by an f32 weight in f32.
 * In f32, and up to DEV_MM_SMALL rows, K is cut where the weight has few outputs for the device's
 * multiprocessors: the order is the shape's and the device's; with a group it is not cut. Of more
 * rows by the matrix units, without dev.batch_invariant, where it is cut is a matter of M too.
 * Of QT_ZERO_BIAS the code is scaled first. MM_I8: of integer codes (dev_mm_ints) what mm.h says,
 * to the bit, whatever M; of others MM_BF16.
 * A weight that is dev_in_rows may be QT_PORTABLE where `blas` said yes: with MM_BF16, of more than
 * DEV_MM_SMALL rows, cuBLAS multiplies it, in an order that is its own but the same every time;
 * with dev.batch_invariant, and in f32, any M is in that of few rows.
 * A quantized weight that dev_mm_wide names is rounded to bf16 there, an error of 2^-8 of each of its
 * numbers, and cuBLAS multiplies by it. By one that dev_mm_lt names cuBLASLt multiplies the codes that the
 * inputs are rounded to: of int8 the sum is exact, and y = scale of the output * (scale of the row *
 * sum), each rounded; of e4m3 it is one of f32, in an order and with a rounding of its own.
 * scratch: mm_scratch bytes, of M rows or of more.
 *
 * With a group its weights all take their rows in one launch, and `most` counts in place of M. w
 * then says scheme (n_out: the largest of the group), shape, and no planes; the biases are the
 * group's. Nothing is done for rows of a weight that the group has not (mm_group).
 *
 * arranged: the product before had the same x, M, acts and scratch, no group, and a weight of the
 * same inputs (dev_same_input): what it made of x in the scratch is taken again; or a dev_order has
 * left that there. */
typedef struct {
    float *y;
    const dev_weight *w;    /* host */
    const dev_group *group; /* host; NULL: w, for all rows */
    const float *x, *bias;
    void *scratch;
    int64_t ldy, ldx, M;
    mm_acts acts;
    bool add, arranged;
    bool rounded;            /* where x is to be rounded to bf16, it is */
    dev_mm_act act;          /* where dev_acts says so; then nothing is added to y */
    const dev_mm_norm *norm; /* host; NULL: none; where dev_norms says so */
} dev_mm_args;

enum { DEV_LORA_ROWS = 8, DEV_LORA_PAD = 8, DEV_LORA_OUTS = 4 };

/* What an adapter changes of one linear (runtime/model/lora.h), in device memory: a [ranks, inputs], both
 * padded to multiples of DEV_LORA_PAD by zeros; b [ranks / 8][N][8], padded likewise; of one type: f32,
 * f16 or bf16. a, b NULL: nothing. */
typedef struct {
    const void *a, *b;
    const float *gain; /* [N] of DoRA or NULL */
    int32_t rank;
    lq_dtype dtype;
    float scale;
} dev_lora_part;

/* Up to DEV_LORA_ROWS rows of one adapter: rows[first ..], n of them; n 0: none. */
typedef struct {
    const dev_lora_part *parts;
    int32_t first, n;
} dev_lora_panel;

/* y [., ldy] of N outputs: what parts[part] of a row's adapter does to it. base [., ldb]: what the
 * model's own weight makes of x, without bias; of DoRA alone. */
typedef struct {
    float *y;
    const float *base;
    int64_t ldy, ldb, N;
    int part;
} dev_lora_out;

/* y += scale B (A x), of DoRA y += (gain - 1) base + gain scale B (A x), for the panels' rows of x
 * [., ldx], y and base alike. In f32, in an order that depends on the part alone. */
typedef struct {
    const float *x;
    float *low; /* [n, rows_most, ldl] scratch */
    const dev_lora_panel *panels;
    const int32_t *rows;
    int64_t ldx, K, ldl, rows_most, n_panels;
    int64_t rank; /* of any of the panels' adapters at most; ldl: that padded, or more */
    dev_lora_out out[DEV_LORA_OUTS];
    int n;
} dev_lora_args;

/* Rows of one sequence that attention takes together, and where its keys are. */
typedef struct {
    int32_t row, n_rows; /* of q and out */
    int32_t pos;         /* absolute position of the first; row i sees keys 0 .. pos + i */
    int32_t fresh;       /* of the first row of its sequence in this call; with dev_attn_args.both
                                 the position after its sequence's last key */
    int32_t table;       /* its sequence's block numbers begin at tables[table] */
    int32_t split0, n_splits; /* the splits that hold what its rows see */
    int32_t slot;             /* the first of as many slots */
} dev_attn_chunk;

/* What runtime/forward/forward_moe.c does for each row: from a router's logits, scores [T, E], to the k
 * experts of each, rising, and their shares [T, k]. */
typedef struct {
    float *scores;           /* [T, E] logits; then softmax or sigmoid of them */
    float *choice;           /* [T, E] scratch */
    float *group_score;      /* [T, groups] scratch; these two only where groups_used < groups */
    int32_t *group_best;     /* [T, groups_used] scratch */
    const float *correction; /* [E] or NULL: added to what is chosen by; with on_logits to logits */
    const float *each;       /* [E] or NULL: of each expert, on its share */
    float *shared;           /* [T] or NULL: becomes its sigmoid */
    int32_t *chosen;         /* [T, k] distinct, below E, whatever the logits are */
    float *share;            /* [T, k] */
    int64_t T, E, k, groups, groups_used;
    bool sigmoid, top2, normed; /* of all; groups by the sum of their best two; shares sum to 1 */
    bool on_logits;             /* experts are chosen by those and the correction */
    bool mixer;                 /* SparseMixer (arXiv:2409.12136): k 2, without the others */
    float jitter;               /* of it */
    float scale;                /* of shares */
    float eps;                  /* beside their sum */
} dev_route_args;

enum { DEV_EXPERTS = 1024 }; /* at most */

/* Rows by expert: sent [T * k] holds the rows of the lowest expert that has any, then of the next,
 * ..., each one's rising; place [T, k] is where each choice went. The i-th expert that has rows is
 * busy[i], and they begin at first[i]; after the last, busy [E - idle] is -1 and first [E - idle + 1] where the rows
 * end. The last `idle` experts have places like the others, behind that end, and are never among the busy ones. */
typedef struct {
    int32_t *first, *busy, *place, *sent;
    const int32_t *chosen; /* [T, k] */
    int64_t T, E, k, idle;
} dev_place_args;

/* out [T, H] += the sum over i of share[t, i] * y[place[t, i]], in order of i, and bias. */
typedef struct {
    float *out;
    const float *y, *share, *bias; /* y [T * k, H]; share NULL: 1; bias [H] or NULL */
    const int32_t *place;
    int64_t T, H, k;
} dev_join_args;

enum { DEV_ATTN_HEAD = 512 }; /* D and Dv at most; multiples of 4, of int4 of 8 */
enum {
    DEV_ATTN_WIDTH = 256
}; /* of narrow heads; wider ones: DEV_ATTN_EXACT and DEV_ATTN_LATENT, without ALiBi */
/* The same of latents: DEV_ATTN_EXACT takes as many values as keys, the units so many. */
enum { DEV_ATTN_LATENT_WIDTH = 576, DEV_ATTN_LATENT_VALUES = 512 };

/* DEV_ATTN_EXACT: in attn.h's order, and with its bits; splits of ATTN_SPLIT keys.
 * DEV_ATTN_DECODE: the same splits through the matrix units, where dev_attn_units says so. q times
 * the scale, and the weights (times a value's scale), are the sum of two numbers of 16 bits: an
 * error of 2^-16 of each, in f16 of 2^-22 and 2^-25 besides; all sums are f32's.
 * DEV_ATTN_UNITS: through the matrix units, where dev_attn_units says so; splits of DEV_ATTN_LONG
 * keys, or none (dev_attn_split), each in an order that depends on a row's position alone. q times
 * the scale, and the weights, are rounded to the cache's type, of codes to bf16 (to nearest,
 * relative error u: f16 2^-11, bf16 2^-8), all sums are f32's. With d the largest error of a score,
 * (u + (D + 8) 2^-23) scale sum |q k|, n keys and the weights w that add to 1, an output is off by
 * at most (expm1(2 d)
 * + u + (n + 64) 2^-23) sum w |v|, and in f16 2^-24 sum |v| where weights are tiny.
 * DEV_ATTN_WIDE: the same on sm_90a, in another order; exponentials are off by 2^-22 besides.
 * DEV_ATTN_LATENT: the same of latents, wide heads, or lists of keys, and any number of rows, in splits of
 * ATTN_SPLIT keys, or none (dev_attn_split). */
typedef enum {
    DEV_ATTN_EXACT,
    DEV_ATTN_DECODE,
    DEV_ATTN_UNITS,
    DEV_ATTN_WIDE,
    DEV_ATTN_LATENT,
    DEV_ATTN_N
} dev_attn_how;
enum {
    DEV_ATTN_FEW = 16,   /* rows of a sequence up to which most of a tile would be empty */
    DEV_ATTN_PAIRS = 64, /* (row, head) pairs that a block of DEV_ATTN_UNITS has */
    DEV_ATTN_WIDE_PAIRS = 128,
    DEV_ATTN_LONG = 2048,    /* keys of its splits: enough blocks for few rows of a long context */
    DEV_ATTN_WHOLE = 1 << 30 /* ... where rows are enough */
};

/* Attention as attn.h says. One slot is one split of one chunk. scratch: attn_scratch bytes. */
typedef struct {
    dev_attn_how how; /* that the chunks were planned for */
    int64_t split;    /* and its keys */
    const float *q;   /* [T, ldq] rotated */
    float *out;       /* [T, ldo] */
    const uint8_t *k, *v;
    const float *alibi, *sinks; /* [H] or NULL */
    const float
        *dist_bias; /* [H][2 n_dist + 1] or NULL, as attn.h has it: of EXACT, without ALiBi */
    const dev_attn_chunk *chunks; /* [n_chunks] */
    const int32_t
        *chunk_of; /* [n_slots]; after all others of EXACT, DECODE, LATENT -1: of no chunk */
    const int32_t *tables;
    void *scratch;
    int64_t ldq, ldo, n_chunks, n_slots, H, Hkv, D, Dv, window;
    int64_t n_dist;
    int64_t hq, ho; /* from head to head of q, and of out, of EXACT and LATENT; 0: D, Dv */
    size_t block_stride;
    int block_size;
    kv_dtype dtype;
    float scale, softcap;
    bool alibi_scaled, alibi_bf16;
    bool bf16; /* out is rounded to it */
    bool both; /* rows see the keys after them too, as attn.h has it; of EXACT and UNITS */
    bool
        latent; /* Hkv 1: a key's first Dv numbers are its value, v is not looked at; no ALiBi, sinks. out
                    may be q where rows and heads are as far apart */
    /* Of DEV_ATTN_DECODE, where the chunks are of all of the call's rows, those of a sequence
     * consecutive: what else would be launches before and after it, with the same bits. rope
     * (host): as of this cache, of no clip; q is not rotated, and stays, nor is the cache written.
     * done [dev_attn_done]: 0, and again after it; the splits are merged by the same kernel. */
    const dev_rope_args *rope;
    int32_t *done;
    /* NULL; else of EXACT and LATENT, in chunks of one row and without a window: positions in the list of
     * the row are what its keys are, and `pos` is the last of them. Rows of q from row t on
     * have lists of ld_keys: t, or with keys_by_head t * Hkv + the kv head. n_keys: NULL; or how many of
     * the chunk's keys each list has, 1 or more */
    const int32_t *keys, *n_keys;
    int64_t ld_keys;
    bool keys_by_head;
} dev_attn_args;

/* A row of a step: of q, its position, and where its sequence's block numbers begin in tables. */
typedef struct {
    int32_t row, pos, table;
} dev_key_row;

enum {
    DEV_TOPK_PART = 16384,     /* keys that are chosen from at a time */
    DEV_TOPK_MOST = 8192,      /* that are chosen: half a part, so that each choice leaves fewer */
    DEV_TOPK_BYTES = 64 << 20, /* of scratch, unless a row needs more */
};

/* kernels/topk.h's choice, to the bit. scratch: dev_topk_scratch of as many rows and keys, or of more. */
typedef struct {
    const float *q;      /* [., H * D] rotated */
    const float *weight; /* [., H] */
    float weight_scale;  /* on weight, each rounded */
    const uint8_t *k;    /* one head for all */
    size_t block_stride;
    int block_size;
    kv_dtype dtype; /* of codes rows begin at multiples of 4 bytes */
    int64_t H, D;
    float scale;
    int64_t topk;    /* at most DEV_TOPK_MOST */
    int64_t every;   /* > 0: keys are of groups of so many positions; rows see whole ones */
    int64_t longest; /* keys of a row at most */
    const dev_key_row *rows;
    int64_t n_rows;
    const int32_t *tables;
    void *scratch;
    int32_t *chosen; /* [., topk], by the rows of q */
} dev_topk_args;

/* Keys of groups of `every` positions (runtime/forward/forward_index.c, GLM-5-Next): of a row t with group[t] >= 0, which
 * ends one, keys [T, D] from what rows slot[t] + 1 - every .. slot[t] of block[t] have, D numbers of a key and D of its
 * weights: by dim the sum of keys by the softmax of weights plus bias [every, D]. Other rows of keys stay. */
typedef struct {
    float *keys;
    const uint8_t *k;
    size_t block_stride;
    kv_dtype dtype;
    const float *bias;
    const int32_t *block, *slot, *group;
    int64_t T, D, every;
} dev_group_keys_args;

/* list [., ld], by the rows of q: the positions of the groups that each row has in chosen [., most], then those of the
 * group at its end that is not whole. */
typedef struct {
    int32_t *list;
    const int32_t *chosen;
    const dev_key_row *rows;
    int64_t n_rows, ld, every, most;
} dev_group_list_args;

enum {
    DEV_TOPK_BLOCK = 256, /* positions of a block at most */
    DEV_TOPK_BLOCKS = 256 /* that are chosen at most */
};

/* kernels/topk_blocks.h's choice, to the bit; likewise. scratch: dev_topk_blocks_scratch. */
typedef struct {
    const float *q; /* [., H * D] rotated */
    const uint8_t *k;
    size_t block_stride;
    int block_size;
    kv_dtype dtype;
    int64_t H, D, block, topk, local;
    int64_t longest;
    const dev_key_row *rows;
    int64_t n_rows;
    const int32_t *tables;
    void *scratch;
    int32_t *chosen;   /* [., H, topk * block], by the rows of q */
    int32_t *n_chosen; /* [., H] */
} dev_topk_blocks_args;

/* Blocks of a cache of codes as bf16, one after the other, for DEV_ATTN_WIDE: of block i of to the keys
 * [Hkv, block_size, D], then the values [Hkv, block_size, Dv]. A number is its code times its row's scale,
 * rounded once to bf16. D and Dv: as dev_attn_codes. */
typedef struct {
    uint8_t *to;
    const uint8_t *k, *v;
    const int32_t *blocks; /* [n] of the cache; < 0: nobody reads it */
    int64_t n;
    size_t block_stride, to_stride; /* bytes from block to block */
    int block_size;
    int64_t Hkv, D, Dv;
    kv_dtype dtype;
} dev_widen_args;

enum { DEV_TOPS = 20, DEV_DRAW_IDS = 1 << 28 }; /* at most: alternatives; ids of a vocabulary */
/* Of a row that several blocks share: they, rows, at most; numbers that such a row has in the scratch. */
enum { DEV_DRAW_BLOCKS = 16, DEV_DRAW_SHARED = 64, DEV_DRAW_WORDS = 512 + DEV_DRAW_BLOCKS };

/* An id whose logit is changed before the draw. */
typedef struct {
    int32_t id;
    int32_t n;   /* of draw_penalize; 0: only the bias */
    float value; /* the bias, which goes first; then the kernel keeps here what the logit was */
} dev_edit;

/* How runtime/engine/sample.h draws from row `row` of the logits. */
typedef struct {
    uint64_t seed, draw;
    const uint32_t *mask; /* [(V + 31) / 32] or NULL, as smp_params.mask */
    dev_edit *edits;      /* [n_edits] no id twice */
    float temperature, top_p, min_p, repetition, presence, frequency;
    int32_t top_k, logprobs, row, n_edits;
} dev_draw;

/* What came of it. */
typedef struct {
    int32_t id; /* -1: the row is refused, as logit `bad` is `value`, NaN or infinite; -2: every id
                   is banned */
    int32_t bad;
    float value;
    float logprob; /* of the raw distribution; 0 where no logprobs were asked for */
    int32_t n_top, top_id[DEV_TOPS];
    float top_logprob[DEV_TOPS]; /* falling */
} dev_drawn;

/* n draws, each from a row of its own. Rows that are drawn from are scaled (scale 1: not) and then
 * soft-capped (cap 0: not) first, in place; what edits made of them may stay. Ids and numbers are
 * those of smp_sample, to the bit. */
typedef struct {
    float *logits; /* [rows, V] */
    const dev_draw *how;
    dev_drawn *out;
    void *scratch; /* dev_draw_scratch bytes of n draws or of more */
    int64_t n, V;
    float scale, cap;
} dev_draw_args;

/* C [M, ldc] = op(A) op(B) + beta C in f32, row-major, rows ld floats apart; op(A) is A [M, K], or
 * with ta A^T of A [K, M]; op(B) [K, N] likewise. Sums go over k in order, by fma from 0 on: the
 * CPU's products in MM_F32 (kernels/mm.h) have the same bits. */
typedef struct {
    float *C;
    const float *A, *B;
    int64_t ldc, lda, ldb, M, N, K;
    bool ta, tb;
    bool lower; /* what is above C's diagonal is not wanted, and unspecified */
    float beta;
} dev_gemm_args;

/* C [M, ldc] -= A [M, K] B in f64, B [K, N], or B^T of B [N, K] with tb; M, N and K are multiples of
 * DEV_MINUS. Each sum goes over k in order, by fma from 0 on, and is taken from C: as OpenBLAS does it. */
enum { DEV_MINUS = 64 };
typedef struct {
    double *C;
    const double *A, *B;
    int64_t ldc, lda, ldb, M, N, K;
    bool tb;
} dev_minus_args;

enum { DEV_GPTQ_BLOCK = 128 };

/* Steps of quantize/methods/gptq.c, N rows at a time; each looks at what it names.
 * gptq_round: columns k0 .. k1 (at most DEV_GPTQ_BLOCK) of w, which is in the order of perm, become
 * codes; e gets their errors, negated. gptq_errors: d = w - q, w in the order of the inputs.
 * gptq_sweep: coordinate descent on codes, d and g = d H (g is not written back), up to `sweeps`
 * times; then loss = sum d g. K floats at most in a block's shared memory. */
typedef struct {
    float *w;            /* [N, K] */
    float *e;            /* [N, DEV_GPTQ_BLOCK] */
    float *d, *g;        /* [N, K] */
    double *loss;        /* [N] */
    uint8_t *codes;      /* [N, K] in the order of the inputs */
    const float *U, *H;  /* [K, K] */
    const float *imp;    /* [K] H's diagonal */
    const float *params; /* [N, ng, 2] scale and zero of each group of K / ng inputs */
    const int32_t *perm; /* [K] the input at each place of the order */
    int64_t N, K, ng, k0, k1;
    int sweeps;
    float most; /* largest code */
} dev_gptq_args;

/* ---- layers with a state (kernels/scan.h says what they do along a sequence) ---- */

enum {
    DEV_MARKS = 18,     /* copies of a state that a run makes at most */
    DEV_SCAN_KEYS = 256 /* rows of a head's state at most */
};

/* Rows row .. row + n_rows of one sequence, its state's slot, and the slots that hold a copy of it as it
 * is after so many of the rows, 1 or more, rising. */
typedef struct {
    int32_t row, n_rows, slot, n_marks;
    struct {
        int32_t after, slot;
    } mark[DEV_MARKS];
} dev_run;

/* One layer's states: from `of` on, floats of slot 0; slots are `stride` floats apart. */
typedef struct {
    float *of;
    int64_t stride;
    const dev_run *runs; /* [n] */
    int64_t n;
} dev_states;

/* x [., ldx] = f(the convolution of its channels with what came before them) as k_conv says, history
 * being [taps - 1, channels] of each state, to out [., ldo], which may be x. before, after: NULL; or
 * rows as x, by which its inputs, and its outputs, are multiplied. */
typedef struct {
    dev_states states;
    float *x, *out;
    const float *before, *after;
    const float *w, *bias; /* [taps, channels], [channels] or NULL */
    int64_t ldx, ldo, channels;
    int taps;
    bool silu;
} dev_conv_args;

typedef enum {
    DEV_SCAN_DELTA,      /* k_scan with the correction, a decay for each head */
    DEV_SCAN_KEYS_DELTA, /* ... for each row of a head */
    DEV_SCAN_MAMBA,      /* k_scan without it */
    DEV_SCAN_SELECT,     /* k_select */
    DEV_SCAN_N
} dev_scan_kind;

/* What is made of a row before the scan. q, k [T, ldq]: rows of G heads of K, each to length 1, q then by
 * 1 / sqrt(K); NULL: as they are. b, a [T, ld]: those of head h are at h / each * step + h % each; b of
 * DELTA alone:
 *
 *     DELTA        beta = scale sigmoid(b), decay = exp(rate softplus(a + dt))
 *     KEYS_DELTA   the same, K decays a head; with span > 0 decay = exp(-span sigmoid(-rate (a + dt)))
 *     MAMBA        beta = softplus(a + dt), within min and max (0: no such), decay = exp(rate beta)
 *     SELECT       decay = softplus(decay + dt), in place */
typedef struct {
    dev_scan_kind kind;
    float *q, *k;
    const float *b, *a;
    const float *dt, *rate; /* [decays], [H] */
    float *beta, *decay;    /* [T, H], [T, decays] */
    int64_t T, ld, ldq, H, G, K, decays, each, step;
    float scale, span, min, max, eps; /* eps: of the sum of squares of a q or k */
} dev_rates_args;

/* The scan of H heads, states [H, blocks of SCAN_LANES of V values, K, SCAN_LANES], with the bits of
 * k_scan and k_select; head h has key h / (H / G), or h % G. q, k, v [., ld]; out [., H * V]. SELECT:
 * H and G 1, decay [., V] the time steps, rate [K, V]. */
typedef struct {
    dev_scan_kind kind;
    dev_states states;
    const float *q, *k, *v, *beta, *decay, *rate;
    float *out;
    int64_t ld, H, G, K, V;
    bool tiled; /* h % G */
    bool fixed; /* beta and decay are [H], of all rows; not SELECT's and KEYS_DELTA's */
} dev_scan_args;

typedef enum { DEV_GATE_SIGMOID, DEV_GATE_SILU, DEV_GATE_SOFTPLUS } dev_gate_fn;

/* x [T, ldx] of S segments of n, each: x + skip * y, then by f(gate), and by the norm of the segment
 * (before it where first), and by `factor`. Of segment s the gate [T, ldg] begins at s / each * step + s % each
 * * width, of `width` numbers, each for n / width of the segment's, to which bias [S] is added. */
typedef struct {
    float *x;
    const float *y,
        *skip; /* [T, ldg], and of each skip_each numbers of a row; NULL: nothing is added */
    const float *bias;     /* NULL: none */
    const float *gate, *w; /* w NULL: no norm; [n], or with w_rows [S, n] */
    int64_t T, S, n, ldx, ldg, each, step, width, skip_each;
    dev_gate_fn f;
    float eps, factor; /* factor 0: 1 */
    bool first, w_rows, bf16;
} dev_gate_args;

/* x [T, ld], n of each row: above 0 p x^2, else m (exp(min(x, eps)) - 1 - x), and + b x (arXiv:2411.13010). */
typedef struct {
    float *x;
    int64_t T, n, ld;
    float p, m, b, eps;
} dev_xielu_args;

/* x [T, ld], n of each row, times factor; or, with slope, each of its heads of D times slope turns + base, of the head and
 * the row. */
typedef struct {
    float *x;
    int64_t T, n, ld;
    float factor;
    const float *slope, *base, *turns; /* [n / D], [n / D], [T]; NULL: factor */
    int64_t D;
} dev_times_args;

/* Of rows [G, q K, k K, values V, gates V] at src [T, lds]: all q, then all k, all values: dst [T, ldd]. bare: of
 * rows without gates. */
typedef struct {
    float *dst;
    const float *src;
    int64_t T, G, K, V, ldd, lds;
    bool bare;
} dev_unmix_args;

/* What was queued between capture and captured, to be queued again as one: the same operations with
 * the same arguments, on what is in memory then. */
typedef struct dev_graph dev_graph;

/* Devices that work on one model, each with a share of it: ranks 0 and up. One thread of the host
 * queues on each in turn. A failure of one is, from the next operation of the link on, a failure of
 * all; one that comes while the others wait for it inside an exchange is found by any dev_sync, and
 * ends the link. */
typedef struct dev_link dev_link;
enum { DEV_RANKS = 16 }; /* at most */

/* Whether weights of these schemes, of one shape, can be of one group: all but act_scale and n_out.
 */
bool dev_same_group(const qt_scheme *a, const qt_scheme *b);
/* Whether a product is one of integers: MM_I8, and codes less zero points that are scaled. */
bool dev_mm_ints(const dev_weight *w, mm_acts acts);
/* Whether a product by w begins with x rounded to bf16, and looks at nothing else of it. */
bool dev_rounds(const dev_weight *w, mm_acts acts);
/* Whether a product of M rows can end with an activation. */
bool dev_acts(const dev *d, const dev_weight *w, mm_acts acts, int64_t M, dev_act_kind kind);
/* Whether a product of M rows can begin with a norm. */
bool dev_norms(const dev *d, const dev_weight *w, mm_acts acts, int64_t M);
/* Bytes of mm_scratch at most for parts of up to DEV_MM_SMALL rows, there for any M, of a weight
 * [N, K]. */
size_t dev_mm_few_parts(int64_t N, int64_t K);
/* Whether a weight can be on a device as it does in a checkpoint, in rows of K: bf16, K a multiple
 * of 32. It is no member of a group. */
bool dev_in_rows(const qt_tensor *t);
/* Bytes at most of the sums of parts of K that a product of M > DEV_MM_SMALL rows adds up, of N
 * outputs and K places, padding included; grows with each. */
size_t dev_mm_parts(int64_t M, int64_t N, int64_t K);
/* Codes that 9.0's units make floats of though most of their width need none: u3 of these has no registers for
 * two tiles of a warp, and so panels of 128 rows alone, where others have some of 64 (kernels/cuda/mm.cuh). */
bool dev_mm_tall(const qt_scheme *s);
/* Whether a product of M rows, of no group, expands its weight for cuBLAS: on this device, which has
 * it (`blas`) and is dev.wide; what is integers, rounds its inputs, has outliers, is f32 or in rows
 * does not. */
bool dev_mm_wide(const dev *d, const dev_weight *w, mm_acts acts, int64_t M);
/* Whether a product of M rows, of no group, is one of codes by cuBLASLt: on this device, which has it (`blas`), of
 * DEV_MM_LT rows and more, not in f32 nor with batch_invariant; of weights that dev_mm_codes names. */
bool dev_mm_lt(const dev *d, const dev_weight *w, mm_acts acts, int64_t M);
/* Codes of 8 bits by inputs that the checkpoint rounds likewise, with one scale for each output and row: int8
 * by int8, e4m3 by e4m3. */
bool dev_mm_codes(const dev_weight *w);
/* Bytes that dev_mm_wide or dev_mm_lt expands at a time, of N outputs and K places; grows with each. Of fewer
 * than DEV_MM_WIDE_LEAST rows: 0. */
size_t dev_mm_wide_bytes(int64_t M, int64_t N, int64_t K);
/* Whether products by these take x rounded and arranged alike. */
bool dev_same_input(const dev_weight *a, const dev_weight *b, mm_acts acts);

/* Whether there are units for these: all but f32, multiples of 8. DEV_ATTN_WIDE takes f16 and bf16
 * alone: codes become bf16 before it, which is as exact as a bf16 cache of what the codes say. */
bool dev_attn_units(kv_dtype dtype, int64_t D, int64_t Dv, bool latent);
/* Codes, in heads that DEV_ATTN_WIDE could take as bf16 (dev_widen_args); whether it does heads so wide here. */
bool dev_attn_codes(kv_dtype dtype, int64_t D, int64_t Dv);
bool dev_attn_choose_wide(const dev *d, int64_t D, int64_t Dv);
/* How attention of so many rows of a sequence is done; with dev.batch_invariant in one way. */
dev_attn_how dev_attn_choose(const dev *d, mm_acts acts, kv_dtype dtype, int64_t D, int64_t Dv,
                             bool latent, int64_t n_rows);
/* Rows of a chunk at most, and keys of a split where all launches together have so many blocks
 * without splits; blocks 0, d NULL: the shortest that there are. */
int64_t dev_attn_rows(dev_attn_how how, int64_t H, int64_t Hkv);
int64_t dev_attn_split(const dev *d, dev_attn_how how, int64_t blocks);
/* How many blocks have chunks of so many rows of a sequence. */
int64_t dev_attn_blocks(dev_attn_how how, int64_t n_rows, int64_t H, int64_t Hkv);
/* Numbers of dev_attn_args.done for so many chunks. */
int64_t dev_attn_done(int64_t n_chunks, int64_t H, int64_t Hkv);
/* Bytes of the scratch of n draws. */
static inline size_t dev_draw_scratch(int64_t n)
{
    return (size_t)(n < DEV_DRAW_SHARED ? n : DEV_DRAW_SHARED) * DEV_DRAW_WORDS * sizeof(uint64_t);
}
/* Bytes of dev_topk_args.scratch; how many of these rows are scored at a time; and words of a row: scores of all
 * keys, then in two places in turn what one choice leaves to the next, n[i] scores and positions. */
size_t dev_topk_scratch(int64_t longest, int64_t topk, int64_t n_rows);
int64_t dev_topk_rows(int64_t longest, int64_t topk, int64_t n_rows);
int64_t dev_topk_row(int64_t n[2], int64_t longest, int64_t topk);
/* Of dev_topk_blocks_args likewise; a row has one score of each head and block. */
size_t dev_topk_blocks_scratch(int64_t longest, int64_t block, int64_t H, int64_t n_rows);
int64_t dev_topk_blocks_rows(int64_t longest, int64_t block, int64_t H, int64_t n_rows);
/* How many of n keys, more than a part, are left where each part keeps its topk: those are chosen from next. */
LQ_INLINE int64_t dev_topk_left(int64_t n, int64_t topk)
{
    const int64_t whole = (n - 1) / DEV_TOPK_PART, rest = n - whole * DEV_TOPK_PART;
    return whole * topk + (rest < topk ? rest : topk);
}
/* Bytes of attention's scratch for so many slots. */
size_t dev_attn_scratch(dev_attn_how how, int64_t n_slots, int64_t H, int64_t Hkv, int64_t Dv);
/* Host: cut sequence `s`, whose block numbers begin at tables[table], into chunks; *n_chunks and
 * *n_slots count on. chunks, chunk_of NULL: only count. end: 0; or, where rows see both ways, the position after the
 * sequence's last key. */
void dev_attn_plan(dev_attn_how how, dev_attn_chunk *chunks, int64_t *n_chunks, int32_t *chunk_of,
                   int64_t *n_slots, const attn_seq *s, int32_t table, int64_t split, int64_t H,
                   int64_t Hkv, int64_t window, int64_t end);

#define DEV_OPS(X)                                                                                  \
    X(lq_status, open, (dev * d, int index, lq_err *err))                                           \
    X(void, close, (dev * d))                                                                       \
    X(void, bind, (dev * d))      /* what this thread does from now on is meant for d */            \
    X(int, count, (lq_err * why)) /* of devices; 0: why says what is missing */                     \
    X(void, versions, (int *toolkit, int *driver)) /* of CUDA, 13000 for 13.0; 0: none */           \
    X(void, libraries, (int devices)) /* loaded: cuBLAS, NCCL for several, where they are here */   \
    X(void *, alloc, (dev * d, size_t n)) /* NULL: out of memory, said by dev_sync */               \
    X(void, free, (dev * d, void *p))     /* also after a failure */                                \
    /* n bytes at p, of what alloc gave, are a buffer of their own: where somebody watches (the  \
     * emulation), what is reached from there ends there, and what is in no such buffer is     \
     * nobody's. They go with free of the whole */  \
    X(void, part, (dev * d, void *p, size_t n))                                                     \
    X(size_t, room, (dev * d)) /* bytes that alloc has left, about */                               \
    /* Memory of the host that copies need not wait for (pinned). Until dev_sync an upload may   \
     * still read it, and a download is not there yet. */  \
    X(void *, alloc_host, (dev * d, size_t n))                                                      \
    X(void, free_host, (dev * d, void *p))                                                          \
    /* host may be reused, but for alloc_host's; of other memory this may wait for the stream */    \
    X(void, upload, (dev * d, void *dst, const void *host, size_t n))                               \
    X(void, download, (dev * d, void *host, const void *src, size_t n))                             \
    /* The same of rows: dst, or src, is the host's */                                              \
    X(void, upload_rows, (dev * d, const dev_copy_args *a))                                         \
    X(void, download_rows, (dev * d, const dev_copy_args *a))                                       \
    X(void, zero, (dev * d, void *dst, size_t n))                                                   \
    X(void, copy, (dev * d, const dev_copy_args *a))                                                \
    X(lq_status, sync, (dev * d, lq_err * err)) /* waits also after a failure */                    \
    /* From now on nothing runs that this thread queues: it is kept. Until `captured` there is   \
     * no sync, alloc, free or link, and the host's memory is alloc_host's. After an error d is  \
     * as before. */  \
    X(lq_status, capture, (dev * d, lq_err * err))                                                  \
    /* NULL: there is none, err says why; d is as before the capture, and nothing has run */        \
    X(dev_graph *, captured, (dev * d, lq_err * err))                                               \
    X(void, replay, (dev * d, dev_graph * g))                                                       \
    X(void, drop, (dev * d, dev_graph * g)) /* once what it queued is done; NULL: nothing */        \
    X(void, norm, (dev * d, const dev_norm_args *a))                                                \
    X(void, squares, (dev * d, const dev_share_args *a))                                            \
    X(void, scale, (dev * d, const dev_share_args *a))                                              \
    X(void, rope, (dev * d, const dev_rope_args *a))                                                \
    X(void, act, (dev * d, const dev_act_args *a))                                                  \
    X(void, post, (dev * d, const dev_post_args *a))                                                \
    X(void, altup, (dev * d, const dev_altup_args *a))                                              \
    X(void, gauge, (dev * d, const dev_gauge_args *a))                                              \
    X(void, collapse, (dev * d, const dev_collapse_args *a))                                        \
    X(void, spread, (dev * d, const dev_spread_args *a))                                            \
    X(void, embed, (dev * d, const dev_embed_args *a))                                              \
    X(void, swap, (dev * d, const dev_swap_args *a))                                                \
    X(void, turn, (dev * d, const dev_turn_args *a))                                                \
    X(void, route, (dev * d, const dev_route_args *a))                                              \
    X(void, place, (dev * d, const dev_place_args *a))                                              \
    X(void, join_experts, (dev * d, const dev_join_args *a))                                        \
    X(size_t, mm_scratch, (const dev_weight *w, int64_t M))                                         \
    /* How a product of M rows, of no group, has its inputs at the beginning of its scratch: for  \
     * dev_order; < 0: other than bf16 numbers that a dev_order can give */ \
    X(int64_t, mm_order, (const dev *d, const dev_weight *w, mm_acts acts, int64_t M))              \
    /* parts of a group: w[n] and bias[n] (NULL: none); N = 0: not of this group */                 \
    X(void, mm_group,                                                                               \
      (dev * d, void *parts, const dev_weight *w, const float *const *bias, int64_t n))             \
    X(void, matmul, (dev * d, const dev_mm_args *a))                                                \
    X(void, lora, (dev * d, const dev_lora_args *a))                                                \
    /* cuBLAS is there, opened, and has a workspace; false also where memory is short */            \
    X(bool, blas, (dev * d))                                                                        \
    X(size_t, attn_scratch, (const dev_attn_args *a))                                               \
    X(void, attn, (dev * d, const dev_attn_args *a))                                                \
    X(void, topk, (dev * d, const dev_topk_args *a))                                                \
    X(void, topk_blocks, (dev * d, const dev_topk_blocks_args *a))                                  \
    X(void, group_keys, (dev * d, const dev_group_keys_args *a))                                    \
    X(void, group_list, (dev * d, const dev_group_list_args *a))                                    \
    X(void, widen, (dev * d, const dev_widen_args *a))                                              \
    X(void, conv, (dev * d, const dev_conv_args *a))                                                \
    X(void, rates, (dev * d, const dev_rates_args *a))                                              \
    X(void, scan, (dev * d, const dev_scan_args *a))                                                \
    X(void, gate, (dev * d, const dev_gate_args *a))                                                \
    X(void, times, (dev * d, const dev_times_args *a))                                              \
    X(void, xielu, (dev * d, const dev_xielu_args *a))                                              \
    X(void, unmix, (dev * d, const dev_unmix_args *a))                                              \
    X(void, draw, (dev * d, const dev_draw_args *a))                                                \
    X(void, gemm, (dev * d, const dev_gemm_args *a))                                                \
    X(void, minus, (dev * d, const dev_minus_args *a))                                              \
    X(void, gptq_round, (dev * d, const dev_gptq_args *a))                                          \
    X(void, gptq_errors, (dev * d, const dev_gptq_args *a))                                         \
    X(void, gptq_sweep, (dev * d, const dev_gptq_args *a))                                          \
    /* d and its peers, which are borrowed. LQ_EDEVICE: no NCCL */                                  \
    X(lq_status, link, (dev_link * *l, dev * d, lq_err * err))                                      \
    X(void, unlink, (dev_link * l)) /* before its devices are closed */                             \
    /* x[r] [n] of each rank r becomes the sum over all, ((x[0] + x[1]) + x[2]) + ... */            \
    X(void, all_reduce, (dev_link * l, float *const *x, int64_t n))                                 \
    /* to [ranks, n] of rank 0 = x[r] [n] of each; other memory than x[0] */                        \
    X(void, gather, (dev_link * l, float *to, float *const *x, int64_t n))

struct dev_ops {
    const char *name;
#define X(result, op, args) result(*op) args;
    DEV_OPS(X)
#undef X
};

/* The CUDA table, or NULL where this program was built without; dev_not_built then says why. */
const dev_ops *dev_cuda(void);
const char *dev_not_built(void); /* NULL: it was built with it */
/* What its machine code is for, as nvcc names that ("80 90a"); "": none. */
const char *dev_code(void);
/* Whether launches may begin before the one before has ended, of kernels compiled from PTX of `ptx`
 * on a device of `cc`. On 12.x not until it was tried there: captures of such launches failed
 * (SGLang's pull request 18596). */
bool dev_may_follow(int cc, int ptx);
/* For tests, before anything else here: dev_cuda gives this table from now on. */
void dev_use(const dev_ops *ops);
/* Of dev_cuda(); 0: why says in one line what is missing. */
int dev_count(lq_err *why);
/* want: "cuda" or "cuda:i". LQ_EUSAGE: another word; LQ_EDEVICE: there is none that llmq runs on.
 */
lq_status dev_open(dev *d, const char *want, lq_err *err);
/* n bytes of its memory for `what` ("the weights"). LQ_ENOMEM: err says what it needs and what is
 * free; also the first failure of what was queued before. */
lq_status dev_take(void **p, dev *d, size_t n, const char *what, lq_err *err);
/* This device and its peers: how many, and the least of what alloc has left on each. */
int dev_ranks(const dev *d);
size_t dev_room(dev *d);

LQ_C_END

#endif
