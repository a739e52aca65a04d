/* kernels/attn.h - block-wise causal attention with online softmax over a paged KV cache, ragged
 * batch.
 *
 * Cache of one layer: blocks of `block_size` tokens (8, 16 or 32). Element (block, kv head h, slot,
 * d) of K is at k + block*block_stride + (h*block_size + slot)*row_bytes ; V likewise at v + ...
 * (bytes). row_bytes = attn_kv_row_bytes(dtype, D): D elements, for int8 and fp8 preceded by
 * one f32 scale, for int4 by a word of four (operands.h), so that each token and head has its own:
 *
 *     int8  x = scale * code, -127..127; scale = max|x| / 127
 *     int4  x = scale * (code - 8), two codes a byte, low half first; the scale of a block is about
 *           m / -8, m its element of largest magnitude with its sign, so that all codes are in use
 *     fp8   x = scale * e4m3(code); scale = max|x| / 448
 *
 * int8 and int4 hold heads that were turned (kv_turned): q must be, and out is turned back.
 *
 * A NaN or infinity among a row's elements makes its scale NaN, and so all of the row: it is never
 * lost in a code.
 *
 * Where attention multiplies pairs of bf16 numbers and the cache is bf16, its bytes may be as they
 * are multiplied (attn_paired), in words of two elements: 16 rows of K as [D/2][16 keys], of two
 * neighbouring elements, and of V as [8][Dv], of two neighbouring keys. Then no tile is turned
 * round. 16 rows take the same bytes as else.
 *
 * Keys are read in tiles of ATTN_TILE tokens aligned to the absolute position, each tile folded
 * into a running maximum and sum in order, per query row; these start afresh every ATTN_SPLIT
 * tokens, and the splits' results are joined in order. So results do not depend on chunk, block
 * size, batch or thread count, while all threads can work on one long context. KV is always read
 * back through the cache's dtype, also inside a prefill chunk.
 *
 * Of a row that sees chosen keys, tiles and splits are those of its list. */
#ifndef LLMQ_KERNELS_ATTN_H
#define LLMQ_KERNELS_ATTN_H

#include "kernels/core/operands.h"
#include "kernels/core/pool.h"

LQ_C_BEGIN

const char *kv_types_text(kv_types t); /* "f32", ..., "k=int8,v=int4" */

typedef struct {
    int64_t row0;   /* first of this sequence's rows in q and out */
    int64_t n_rows; /* its new tokens */
    int64_t pos0; /* absolute position of the first of them; keys 0..pos0+i are visible to row i */
    const int32_t *table; /* block numbers; block of position p is table[p / block_size] */
} attn_seq;

typedef struct {
    const float *q; /* [T, H*D], rotated */
    int64_t ldq;
    float *
        out; /* [T, H*Dv]; may be q where Hkv is 1 and Dv is D: rows then take each other's place */
    int64_t ldo;
    const uint8_t *k, *v;
    size_t block_stride; /* bytes from block to block (of this layer's K, and of V) */
    int block_size;
    kv_types dtype;
    bool turned; /* V was turned by k_hadamard before it was written: out is turned back */
    bool bf16;   /* may round q, K, V and the weights to bf16 (attn_in_bf16) */
    bool paired; /* K and V were written by attn_kv_write_paired */
    int64_t H, Hkv, D, Dv; /* H % Hkv == 0 */
    float scale;           /* on q k^T */
    float softcap;         /* 0: none; cap * tanh(s / cap) */
    int64_t window; /* 0: none; else a row sees its last `window` positions, itself included */
    bool chunks;    /* ... no: those of the `window` positions, counted from 0, in which it is */
    bool both; /* it sees the keys after it too, to its sequence's last row; of a window as many on
                  either side */
    const float *
        alibi; /* [H] slopes or NULL: + slope * (key - query); with `both` - slope * |key - query| */
    bool alibi_scaled; /* ... * scale */
    bool alibi_bf16;   /* bf16(bf16(slope) * bf16(key)) instead of the product (Falcon) */
    /* [H][2 n_dist + 1] or NULL: + that of key - query, -n_dist .. n_dist, and of what is farther its nearest */
    const float *dist_bias;
    int64_t n_dist;
    /* NULL; else + scale * (dist_q[query's row][h][i] + dist_k[key's row][h][i]), i = dist_row[key - query] of the
     * [2 n_dist + 1] as above; [T][H][dist_rows], either may be NULL. Keys are rows of this call, as queries are */
    const int32_t *dist_row;
    const float *dist_q, *dist_k;
    int64_t dist_rows;
    const float *sinks; /* [H] or NULL: one more logit in the softmax's sum */
    /* NULL: all; else row t of q sees only keys[t * ld_keys ..], rising positions, as many as there are
     * (its own and those before it), at most ld_keys. Not with a window, ALiBi or pairs */
    const int32_t *keys;
    int64_t ld_keys;
    bool
        keys_by_head; /* row t has a list for each kv head, the lists (and n_keys) t * Hkv and on */
    const int32_t
        *n_keys; /* NULL; else how many each list has (1 or more), whatever its row's position,
                              and in any order */
    const attn_seq *seqs;
    int n_seqs;
} attn_args;

/* Is it done so? Sums stay f32. Only where the family multiplies pairs of bf16 numbers and D and Dv
 * are multiples of 16; else all is f32. An output is off by at most 2^-8 of the largest |v|, and a
 * weight's logarithm by 2^-8 of scale * sum|q k|, next to f32. */
bool attn_in_bf16(const attn_args *a);
/* May a cache be written so, for attention that has `bf16`? Of all its layers. */
bool attn_paired(kv_types d, int block_size, int64_t D, int64_t Dv, bool bf16);
/* The cache that costs attention least where it `may` be in bf16: there f16 would be rounded anyway,
 * as each key is read. */
kv_dtype attn_fast_cache(bool may);
/* Scratch bytes for attn_run; D = max(D, Dv). `scratch` is a fixed arena, left as it was found. */
size_t attn_scratch_bytes(int64_t H, int64_t D, int threads);
void attn_run(const attn_args *a, lq_arena *scratch, pool *p);
/* Write one token's K or V rows [Hkv, D] into slot `slot` of the block at `block`. */
void attn_kv_write(uint8_t *block, int slot, int block_size, const float *x, int64_t Hkv, int64_t D,
                   kv_dtype d);
/* The same in pairs of bf16. key: K; else V. */
void attn_kv_write_paired(uint8_t *block, int slot, int block_size, const float *x, int64_t Hkv,
                          int64_t D, bool key);

LQ_C_END

#endif
