/* runtime/forward_impl.h - one layer of the one transformer, shared by fwd_step (rows in a paged
 * cache) and fwd_layer (whole windows without one). Not for other modules.
 *
 * x [R, hidden] is the residual stream; the other buffers hold one stage each. The rows' work is
 * split over the pool in chunks of FWD_ROWS rows; no row's result depends on another's.
 *
 * A branch (attention, MLP, experts) reads h and adds its output to `out`: x itself, or, where
 * a norm or a factor stands between, y, which was cleared. */
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

/* Rows row0..row0+n_rows that share a fwd_kv; seqs, whose rows count from the start of x, are what
 * attention computes of them. */
typedef struct {
    int64_t row0, n_rows;
    const attn_seq *seqs;
    int n_seqs;
} fwd_group;

typedef struct {
    const arch_config *c;
    pool *p;
    mm_acts acts;
    const fwd_tap *tap;     /* or NULL */
    lq_arena *scratch;      /* for mm_run and attn_run */
    int64_t R;              /* rows of this call */
    float *x, *h, *y;       /* [R, hidden] */
    float *out;             /* of the branch at work: x or y */
    float *e;               /* [R, embed_dim] where that is not hidden */
    float *q, *a;           /* [R, heads * head_dim], [R, heads * v_dim]: attention's output */
    float *k, *v;           /* [R, kv_heads * head_dim], [R, kv_heads * v_dim] */
    float *qkv;             /* [R, q + k + v]: output of R_QKV */
    float *mlp;             /* [R, fwd_mlp_width]: gate beside up, or up alone */
    float *cos[2], *sin[2]; /* [R, rope_dims / 2] of ROPE_MAIN, ROPE_LOCAL */
    float *slopes;          /* [heads]: ALiBi */
    /* Experts; R * experts_used places, see forward_moe.c. */
    float *scores, *choice;         /* [R, experts] */
    float *group_score;             /* [R, expert_groups] */
    int32_t *group_best;            /* [R, groups_used] */
    int32_t *chosen, *place, *sent; /* [R, experts_used] */
    float *share;                   /* [R, experts_used] */
    float *expert_in, *expert_out;  /* [places, 2 * expert_ffn], [places, hidden] */
    float *shared_in;               /* [R, 2 * shared_ffn] */
    float *shared_share;            /* [R] */
    /* MLA */
    float *q_a, *kv_a, *kv_b; /* [R, q_lora], [R, kv_lora + rope_dims], [R, outputs of R_KV_B] */
    int32_t *row_pos;         /* [R] */
    int32_t *row_block, *row_slot; /* [R] where each row's K and V are written */
} fwd_rows;

/* Bytes for the buffers of R rows (all but x and scratch), and cutting them; false: no room. */
size_t fwd_rows_bytes(const arch_config *c, int64_t R);
bool fwd_rows_push(fwd_rows *r, const arch_config *c, int64_t R, lq_arena *a);
/* Bytes of r->scratch for R rows. */
size_t fwd_rows_scratch(const arch_config *c, int64_t R, int threads);
int64_t fwd_mlp_width(const arch_config *c);

/* Positions, angles and places in the cache of the rows of one sequence; seq_len: as fwd_item's. */
void fwd_place(fwd_rows *r, const attn_seq *s, int block_size, int64_t seq_len);
/* x = what the first layer reads, for placed rows. */
void fwd_embed_rows(const fwd_rows *r, const model *m, const int32_t *ids);
/* dst = norm(x) of T rows of K, over the pool; a copy where there is no such norm. */
void fwd_norm(const fwd_rows *r, float *dst, const float *x, const model_vector *v, int64_t T,
              int64_t K);
/* fn for each chunk of up to FWD_ROWS rows of all R. */
void fwd_each(const fwd_rows *r, int64_t R,
              void (*fn)(const fwd_rows *r, int64_t row, int64_t n, const void *arg),
              const void *arg);
void fwd_tap_rows(const fwd_rows *r, arch_role role, const float *x, int64_t ldx, int64_t K);
static inline mm_out fwd_out(const model_linear *l, float *y, int64_t ldy, bool add)
{
    return (mm_out){ .w = &l->w, .y = y, .ldy = ldy, .bias = l->bias, .add = add };
}

/* One layer. picked: the n_picked rows (ascending) that go on from it: they become x's first rows
 * and R; NULL: all. */
void fwd_run_layer(fwd_rows *r, const model_layer *l, int64_t layer, const fwd_kv *kv,
                   const fwd_group *groups, int64_t n_groups, const int64_t *picked,
                   int64_t n_picked);
/* Of a layer that has points (runtime/forward.h) what lies before `at`; its input is where the
 * point before left it: h, a or mlp. */
void fwd_run_to(fwd_rows *r, const model_layer *l, int64_t layer, fwd_point at, const fwd_kv *kv,
                const fwd_group *groups, int64_t n_groups);
/* Final norm and head of x's first n rows: logits [n, vocab]. */
void fwd_run_head(const fwd_rows *r, const model *m, float *logits, int64_t n);
/* Experts in the MLP's place: h to out. (forward_moe.c) */
void fwd_run_moe(const fwd_rows *r, const model_layer *l);
size_t fwd_moe_scratch(const arch_config *c, int64_t R, int threads); /* of fwd_rows_scratch */
/* q, k and v of MLA layers from h, rotated. (forward_mla.c) */
void fwd_run_mla(const fwd_rows *r, const model_layer *l);
size_t fwd_mla_scratch(const arch_config *c, int64_t R, int threads);

#endif
