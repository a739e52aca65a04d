/* kernels/attn_int.h - what attention by tiles and the naive one share; no one else includes it. */
#ifndef LLMQ_KERNELS_ATTN_INT_H
#define LLMQ_KERNELS_ATTN_INT_H

#include "kernels/attn.h"

/* Read the keys (or values) of the tile at position `pos`, n of them, through the block table:
 * [D][ATTN_TILE], [ATTN_TILE][Dv] floats, or words of pairs (k_ops.h). */
void attn_read_tile(void *dst, const attn_args *a, const attn_seq *s, const uint8_t *base,
                    int64_t kvh, int64_t pos, int n, bool key, bool pairs);
/* Which keys *from .. *to - 1 of the tile at `pos` a query of the sequence sees. */
void attn_seen(const attn_args *a, const attn_seq *s, int64_t query, int64_t pos, int *from,
               int *to);
/* Soft-cap and ALiBi on one row's scores of the keys pos + lo .. pos + hi - 1. */
void attn_adjust(const attn_args *a, float *s, int lo, int hi, int64_t h, int64_t pos,
                 int64_t query);
/* The output of a row whose weights exp(s - m) sum to l and have gathered acc [Dv]. */
void attn_finish_row(const attn_args *a, float m, float l, const float *acc, int64_t h, float *out);

#endif
