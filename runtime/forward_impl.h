/* runtime/forward_impl.h - one layer of the one transformer, shared by fwd_step (rows in a paged
 * cache) and fwd_layer (whole windows without one). Not for other modules.
 *
 * x [R, hidden] is the residual stream; the other buffers hold one stage each. The rows' work is
 * split over the pool in chunks of FWD_ROWS rows; no row's result depends on another's. */
#ifndef LLMQ_RUNTIME_FORWARD_IMPL_H
#define LLMQ_RUNTIME_FORWARD_IMPL_H

#include "kernels/ops.h"
#include "runtime/forward.h"

enum { FWD_ROWS = 4 };

/* Where attention reads and each row's K and V go. */
typedef struct {
    uint8_t *k, *v; /* of this layer */
    size_t block_stride;
    int block_size;
    kv_dtype dtype;
} fwd_kv;

/* Rows row0..row0+n_rows that share a fwd_kv; seqs count their rows from the start of x. */
typedef struct {
    int64_t row0, n_rows;
    const attn_seq *seqs;
    int n_seqs;
} fwd_group;

typedef struct {
    const arch_config *c;
    pool *p;
    mm_acts acts;
    const fwd_tap *tap;            /* or NULL */
    lq_arena *scratch;             /* for mm_run and attn_run */
    int64_t R;                     /* rows of this call */
    float *x, *h;                  /* [R, hidden] */
    float *q, *a;                  /* [R, heads * head_dim]; a: attention's output */
    float *k, *v;                  /* [R, kv_heads * head_dim] */
    float *gate, *up;              /* [R, ffn] */
    float *cos, *sin;              /* [R, rope_dims / 2] */
    int32_t *row_block, *row_slot; /* [R] where each row's K and V are written */
} fwd_rows;

/* Bytes for the buffers of R rows (all but x and scratch), and cutting them; false: no room. */
size_t fwd_rows_bytes(const arch_config *c, int64_t R);
bool fwd_rows_push(fwd_rows *r, const arch_config *c, int64_t R, lq_arena *a);
/* Bytes of r->scratch for R rows. */
size_t fwd_rows_scratch(const arch_config *c, int64_t R, int threads);

/* Angles and places in the cache of the rows of one sequence. seq_len: see arch_rope_table. */
void fwd_place(fwd_rows *r, const attn_seq *s, int block_size, int64_t seq_len);
/* dst = norm(x) of T rows, over the pool. */
void fwd_norm(const fwd_rows *r, float *dst, const float *x, const float *w, int64_t T);

void fwd_run_attention(const fwd_rows *r, const model_layer *l, int64_t layer, const fwd_kv *kv,
                       const fwd_group *groups, int64_t n_groups);
void fwd_run_mlp(const fwd_rows *r, const model_layer *l);

#endif
