/* calib/backward_impl.h - the state of a backward pass; only the files that share it include it: backward_open.c,
 * which has its buffers, backward.c, which goes through a layer, backward_attention.c, through its heads,
 * backward_mla.c, through latents, backward_index.c, through an indexer, backward_streams.c, through several residual
 * streams, backward_beside.c, which has what layers read besides x, backward_mixer.c, through a state,
 * backward_select.c, through Mamba's, backward_moe.c, through experts, backward_ops.c and backward_norm.c, which
 * these use, and backward_share.c, which shares their work among ranks. */
#ifndef LLMQ_CALIB_BACKWARD_IMPL_H
#define LLMQ_CALIB_BACKWARD_IMPL_H

#include "calib/backward.h"
#include "calib/gemm_dev.h"
#include "kernels/attn.h"

enum { GRAD_ROWS = 16 }; /* rows of a tile of work; fixed, so that sums do not depend on threads */

/* What a layer with a state makes: see backward_mixer.c. */
typedef struct {
    float *in;             /* [R, 3 hidden] of MIX_CONV: what it is made of */
    float *y;              /* [R, channels]: what the convolution gives */
    float *z, *o;          /* [R, width]: the gate; what the recurrence gives */
    float *t;              /* [R, width]: what R_MIX_OUT reads */
    float *b, *a;          /* [R, heads], [R, arch_mix_decays]: what beta and decay are made of */
    float *parts, *normed; /* of MIX_SELECT: see backward_select.c */
} grad_mix;

/* Gradients there, and scratch: dout at t, then at o; dc at y; db has room for R_MIX_BA's rows. */
typedef struct {
    float *dc, *dz, *dout, *db, *da;
    float *low;  /* [R, the larger rank] between two small matrices */
    float *scan; /* of each thread */
    float *sums; /* of MIX_SELECT: [R, grad_select_sums] */
} grad_mix_back;

/* What latent attention makes: see backward_mla.c. */
typedef struct {
    float *q, *q_normed; /* [R, q_lora] */
    float *c, *c_normed; /* [R, kv_lora] */
    float *k_rope;       /* [R, rope_dims] */
} grad_mla;

/* What a layer makes on its way forward. */
typedef struct {
    float *h, *q, *k, *v, *a, *x2, *h2;
    float *q0, *k0, *v0; /* before their norms, clipped; NULL: there are none */
    float *z,
        *g; /* [R, heads * head_dim]: the gate on a, and a with it, which is what R_O reads; else NULL */
    float *an,
        *midn; /* [R, heads * v_dim], [R, ffn]: what R_O and R_DOWN read, where that is normed; else NULL */
    float *o, *y; /* what the branches give, where it is not added to x as it is; else NULL */
    float *gate, *up, *mid; /* [R, ffn] of a dense MLP */
    /* [R, hidden] of several streams: the first as the layer works on it, and what comes of that; [R, laurel] and
     * [R, hidden] of Laurel; [R, ffn] gates of which the least are cut off; else NULL */
    float *x1, *x3, *laurel, *laurel_y, *cut;
    /* Of per-layer embeddings: [R, ple_dim] gate and their part, [R, hidden] what joins x. */
    float *pg, *pv, *py;
    float *he,
        *ye; /* [R, width] of experts beside an MLP or of latents: what they read, their sum; else NULL */
    float *hr,
        *yd; /* [R, hidden] of experts beside an MLP: what the router reads, the MLP's output; else NULL */
    float *scores, *share, *shared; /* of experts: [R, E], [R, used], [R] of the shared MLP */
    int32_t *chosen;                /* [R, used], rising */
    grad_mla mla;
    grad_mix mix;
} grad_made;

/* The rows of one expert at a time, at most all. */
typedef struct {
    int32_t *row, *place; /* [R]: rows sent to it, and the places of their shares in `share` */
    float *part;          /* [R]: their shares */
    /* [R, width]: what it reads; puts out, or the gradient at x; the gradient at y */
    float *x, *y, *d;
    float *gate, *up, *mid;  /* [R, widest ffn] */
    float *dshare, *dshared; /* of all experts: [R, used], [R] */
    float *dscores;          /* [R, E]; forward: scratch */
    float *group_score;      /* [R, groups] */
    int32_t *group_best;     /* [R, groups used] */
    float *dsum;             /* [R, width]: the gradient at ye */
    float *
        dread; /* [R, hidden] of experts beside an MLP: that at hr; of latents [R, width]: that at he */
} grad_moe;

/* Angles of all positions, of layers that rotate so many dims by one table: [len, rope_dims / 2]; neg: -sin, the way back. */
typedef struct {
    const arch_config *c; /* of such a layer */
    int use;              /* arch_rope_use */
    float *cos, *sin, *neg;
} grad_angles;

/* K and V of a layer, normed and rotated, that later ones read, and their gradients: [R, kv_heads * head_dim] and
 * [R, kv_heads * v_dim]; NULL: none does. */
enum { GRAD_LENT_PARTS = 4 };
typedef struct {
    float *k, *v, *dk, *dv;
} grad_lent;

/* Positions that rows of a layer attend to, rising: arch_index_lists lists for each, [R, lists, index_topk], of which the
 * first n [R, lists] count; n NULL: as many as the row sees, at most all. */
typedef struct {
    int32_t *keys, *n;
} grad_chosen;

/* What indexers make, and what they chose: see backward_index.c. */
typedef struct {
    float *q, *k, *w;   /* [R, heads * dim], [R, dim], [R, heads] */
    grad_chosen *own;   /* [layers]; keys NULL: it is in `common`. NULL: nothing is chosen */
    grad_chosen common; /* of the layer at work */
    attn_seq *seqs;     /* [windows] */
    int32_t *blocks;    /* [windows] */
    lq_arena scratch;
} grad_index;

/* Residual streams but for the first, [R, streams - 1, hidden]: see backward_streams.c. */
typedef struct {
    float *before; /* [layers] of them: before each layer */
    float *now, *d, *made;
    float *dfirst; /* [R, hidden] */
} grad_streams;

struct grad_ctx {
    const arch_config *all; /* of all layers: the largest sizes */
    const arch_config *c;   /* of the layer at work, */
    int64_t layer;          /* ... its number */
    pool *p;
    int64_t len;
    float *slopes;       /* [heads] of ALiBi; NULL: it has none */
    grad_angles *angles; /* [n_angles] */
    int64_t n_angles;
    grad_made *made; /* [kept, at least 1] */
    grad_made *m;    /* of the layer at work */
    int64_t kept;    /* layers; 0: none, each overwrites the one before */
    float *dq, *dk, *dv, *da, *dz, *dgate, *dup, *dx; /* of the backward pass */
    float *dy; /* [R, hidden]: of what a branch gives, where that is not x's; of a parallel MLP */
    float *fused;   /* [R, widest matrix of several]: its outputs, or the gradient there */
    float *head;    /* [threads][grad_head_floats] */
    float *tile_dw; /* [tiles][width]: a norm's gradient by tile */
    float *dlora, *dc,
        *dk_rope; /* of latent attention: [R, q_lora], [R, kv_lora], [R, rope_dims] */
    /* Of the layer at work, as forward_cpu.c has it: p, n, b, eps. */
    struct {
        float p, m, b, eps;
    } xielu;
    grad_mix_back mix;
    grad_moe moe;
    grad_index index;
    grad_streams streams;
    float *ple;       /* [R, layers * ple_dim]: per-layer embeddings of all rows */
    float *dple;      /* [2][R, ple_dim] scratch */
    grad_lent *lent;  /* [layers] */
    lq_arena scratch; /* of grad_embed */
    gemm_dev *on;     /* where products of linears are made; NULL: here */
    comm *ranks;      /* that go through the same rows; NULL: this process alone */
    float *packed;    /* [R, widest]: what they send each other */
    size_t *at;       /* [ranks + 1] */
    lq_status lost;   /* their exchange has failed, or the device, */
    lq_err why;       /* ... and why */
    int64_t rows;     /* that there is room for */
    lq_arena arena;
};

/* A buffer of n floats or as many int32_t; `to`: the address of the pointer to it. */
typedef struct {
    void *to;
    int64_t n;
} grad_part;

static inline int64_t grad_tile_end(int64_t item, int64_t R)
{
    return (item + 1) * GRAD_ROWS < R ? (item + 1) * GRAD_ROWS : R;
}

/* ---- backward_ops.c ---- */
/* Buffers, out of g's arena. */
lq_status grad_push(grad_ctx *g, const grad_part *p, int n, lq_err *err);
double grad_sum(const float *x, int64_t n);
double grad_dot(const float *x, const float *y, int64_t n);
/* y [R,N] += bias, whose values are `step` apart; NULL: nothing. */
void grad_add_bias(const grad_ctx *g, float *y, const float *bias, int64_t step, int64_t R,
                   int64_t N);
/* The activation of the layer's routed experts, or of another MLP. */
typedef struct {
    arch_act f;
    float limit;
} grad_act;
grad_act grad_act_of(const grad_ctx *g, bool expert);
/* The middle of an MLP: mid = act(gate) up, or act(up) where gate is NULL; and back: dgate, dup from the gradient at mid,
 * which is in dup. */
void grad_mid(const grad_ctx *g, grad_act act, float *mid, const float *gate, const float *up,
              int64_t R, int64_t F);
void grad_mid_back(const grad_ctx *g, grad_act act, float *dgate, float *dup, const float *gate,
                   const float *up, int64_t R, int64_t F);

/* x [R, a + b + ...], rows of several parts beside each other, to or from those parts [R, a], [R, b], ...: q, k, v of
 * R_QKV in its order; gate, up. */
void grad_split_qkv(const grad_ctx *g, float *q, float *k, float *v, float *x, int64_t R,
                    bool join);
/* ... of R_Q that is gated: of each head q, then the gate. */
void grad_split_gated(const grad_ctx *g, float *q, float *gate, float *x, int64_t R, bool join);
void grad_split_gate_up(const grad_ctx *g, float *gate, float *up, float *x, int64_t R, bool join);

/* ---- backward_norm.c ---- */
typedef struct {
    const float *w, *bias; /* w NULL: 1 */
    float offset, eps;
    int64_t parts; /* of a row, each normed alone with weights of its own; 0: one */
    bool none;     /* there is no such norm */
} grad_norm;
grad_norm grad_norm_of(const grad_ctx *g, const grad_layer *l, int k);
/* y = norm(x), rows of K, all their parts together, R of them; d, the gradient at y, becomes that at x, dw [K] is added to (NULL: not wanted). */
void grad_norm_run(const grad_ctx *g, float *y, const float *x, const grad_norm *v, int64_t R,
                   int64_t K);
void grad_norm_back(const grad_ctx *g, float *d, float *dw, const float *x, const grad_norm *v,
                    int64_t R, int64_t K);

/* The gradient d at an RMS norm's row of K becomes that at x; dw NULL: not wanted. */
void grad_rms_back(const grad_norm *v, float *d, float *dw, const float *x, int64_t K);

/* ---- backward_attention.c ---- */
/* Angles of all positions, and ALiBi's slopes: floats, and g's. */
int64_t grad_angle_floats(const arch_config *c, int64_t len);
lq_status grad_open_angles(grad_ctx *g, lq_err *err);
int64_t grad_head_floats(const arch_config *c, int64_t len); /* scratch of a thread */
/* By which a layer rotates; NULL: it does not. */
const grad_angles *grad_angles_of(const grad_ctx *g, int64_t layer);
/* R rows of q and k, or of their gradients, to and from their positions' angles. With latent attention k
 * is k_rope, and of q's heads the last dims turn. */
void grad_rotate(grad_ctx *g, int64_t layer, float *q, float *k, int64_t R, bool back);
/* R rows of q, k and v within the model's clip; or the gradients there, in dq, dk and dv, of those that it cut are 0. */
void grad_clip(grad_ctx *g, float *q, float *k, float *v, int64_t R);
void grad_clip_back(grad_ctx *g, int64_t R);
/* R rows of g from a and z; or da and dz from the gradient at g, which is in da. */
void grad_gate(grad_ctx *g, int64_t R, bool back);
/* R rows of z += bias [heads]. */
void grad_gate_bias(grad_ctx *g, const float *bias, int64_t R);
/* Heads that have keys and values: all of them, with latent attention. */
int64_t grad_kv_heads(const arch_config *c);
/* a from q, k, v; or dq, dk, dv from da: each rank goes through its heads. chosen: grad_chosen_of the layer. */
void grad_attend(grad_ctx *g, const grad_layer *l, int64_t layer, const grad_chosen *chosen,
                 int64_t windows, bool back);

/* ---- backward_share.c ---- */
/* What the widest matrix of several makes of a row, or all of those of a state together; 0: there are none. */
int64_t grad_widest_fused(const arch_config *c);
/* C [M,N] = op(A) op(B) + beta C, its tiles by all ranks. What fails is in g->lost. */
void grad_product(grad_ctx *g, float *C, gemm_in A, gemm_in B, int64_t M, int64_t N, int64_t K,
                  float beta);
/* C [M,N], rows ldc apart, += op(A) op(B): this rank's rows of `all` of which C has row0 .. row0 + M. */
void grad_add_rows(const grad_ctx *g, float *C, int64_t ldc, gemm_in A, gemm_in B, int64_t M,
                   int64_t N, int64_t K, int64_t row0, int64_t all);
/* G [N, GRAD_BLOCK] += the blocks of dy^T dy, dy [R,N], but for tiles above their diagonals: this rank's rows. NULL:
 * nothing. */
void grad_sum_blocks(const grad_ctx *g, float *G, const float *dy, int64_t N, int64_t R);
/* One of n things of `rows` rows and `cols` columns, rows ld apart; of every window `across` beside each other. */
typedef struct {
    float *p;
    int64_t rows, cols, ld, across;
} grad_heads;
/* The items of n that this rank makes. */
void grad_own_items(const grad_ctx *g, int64_t *first, int64_t *end, int64_t n);
/* Those of `windows` windows, each rank's to all. */
void grad_share_heads(grad_ctx *g, const grad_heads *h, int64_t windows);

/* ---- backward_mla.c ---- */
enum { GRAD_MLA_PARTS = 5 };
void grad_mla_parts(grad_part p[GRAD_MLA_PARTS], grad_mla *m, const arch_config *c, int64_t R);
/* R rows x of R_KV_A to the latents and their k_rope, or their gradients back; x of R_KV_B to k and v, with k_rope as
 * it is; or the gradients back, with those of k_rope. */
void grad_mla_latents(grad_ctx *g, float *x, int64_t R, bool back);
void grad_mla_heads(grad_ctx *g, float *x, int64_t R, bool back);

/* ---- backward_mixer.c ---- */
enum { GRAD_MIX_PARTS = 9, GRAD_MIX_BACK_PARTS = 8 };
/* Buffers of a layer with a state, and of all of them together; m, b may be of no pass, for their sizes alone. */
void grad_mix_parts(grad_part p[GRAD_MIX_PARTS], grad_mix *m, const arch_config *c, int64_t R);
void grad_mix_back_parts(grad_part p[GRAD_MIX_BACK_PARTS], grad_mix_back *b, const arch_config *c,
                         int64_t R, int64_t len, int threads);
/* R rows x, which R_MIX_Q, _K or _V (k) made of several that the convolution reads together, to there, or back. */
void grad_mix_columns(grad_ctx *g, int k, float *x, int64_t R, bool back);
/* R rows that R_MIX_IN made, where that is more than what the convolution reads, to where it is read; or back, where x
 * has room for the rows of all linears. */
void grad_mix_split(grad_ctx *g, float *x, int64_t R, bool back);
/* m->mix.t of what the linears made; and the gradients there of that at t, in g->mix.dout. */
void grad_mix_forward(grad_ctx *g, const grad_layer *l, int64_t windows);
void grad_mix_backward(grad_ctx *g, const grad_layer *l, int64_t windows);
/* dx [R, hidden] += the gradient that comes through beta and decay. */
void grad_mix_pace_back(grad_ctx *g, const grad_layer *l, float *dx, int64_t R);

/* ---- backward_index.c ---- */
/* Buffers, and g's. */
size_t grad_index_bytes(const arch_config *c, int64_t R, int64_t len, bool keep, int threads);
lq_status grad_open_index(grad_ctx *g, int64_t windows, lq_err *err);
/* A layer with an indexer chooses, by h and q's latents; of others nothing. */
void grad_index_choose(grad_ctx *g, const grad_layer *l, int64_t layer, int64_t windows);
/* What a layer's rows attend to; NULL: all that they see. */
const grad_chosen *grad_chosen_of(const grad_ctx *g, int64_t layer);

/* ---- backward_select.c ---- */
/* Numbers of a row that MIX_SELECT makes of x, and sums of gradients there; scratch of a thread. */
int64_t grad_select_parts(const arch_config *c);
int64_t grad_select_sums(const arch_config *c);
int64_t grad_select_floats(const arch_config *c, int64_t len);
/* m->mix.t of what the convolution gave and the gate; and the gradients there, before the silu's slope, of that at t. */
void grad_select_forward(grad_ctx *g, const grad_layer *l, int64_t windows);
void grad_select_backward(grad_ctx *g, const grad_layer *l, int64_t windows);

/* ---- backward_streams.c ---- */
int64_t grad_streams_floats(const arch_config *c, int64_t R);
lq_status grad_open_streams(grad_ctx *g, int64_t R, lq_err *err);
/* x, the first stream, and the others as the layer works on them; again: they are what they were before it. Back: d, and
 * the others' gradients, to those of the layer's input x. */
void grad_streams_enter(grad_ctx *g, const grad_layer *l, float *x, int64_t R, bool again);
void grad_streams_enter_back(grad_ctx *g, const grad_layer *l, const float *x, float *d, int64_t R);
/* What the layer made of x, to all streams; and d of the first after it to that of what the layer made. */
void grad_streams_correct(grad_ctx *g, const grad_layer *l, float *x, int64_t R);
void grad_streams_correct_back(grad_ctx *g, const grad_layer *l, float *d, int64_t R);
/* What the layer's embeddings read of x; the others += y; d := the gradient at y. */
void grad_streams_ple(grad_ctx *g, const grad_layer *l, float *y, const float *x, int64_t R);
void grad_streams_join(grad_ctx *g, const float *y, int64_t R);
void grad_streams_join_back(const grad_ctx *g, float *d, int64_t R);
/* x, the first stream after the last layer, to the mean of all, and back. */
void grad_streams_end(grad_ctx *g, const grad_layer *l, float *x, int64_t R);
void grad_streams_end_back(grad_ctx *g, const grad_layer *l, float *d, int64_t R);
/* x of h and of Laurel's part; dh += of the gradient d at their sum. */
void grad_laurel(grad_ctx *g, const grad_layer *l, float *x, int64_t R);
void grad_laurel_back(grad_ctx *g, const grad_layer *l, float *dh, const float *d, int64_t R);
/* g->m->cut of the gates; or g->dgate, the gradient there, to that at the gates. */
void grad_cut(grad_ctx *g, int64_t R, bool back);

/* ---- backward_beside.c ---- */
/* Buffers of R rows: floats; and bytes that grad_embed takes. */
int64_t grad_beside_floats(const arch_config *c, int64_t R);
size_t grad_embed_bytes(const arch_config *c, int64_t len, int threads);
lq_status grad_open_beside(grad_ctx *g, int64_t R, lq_err *err);
/* Whose K and V a layer reads; NULL: its own. */
const grad_lent *grad_lent_of(const grad_ctx *g, int64_t layer);
/* R rows of a layer's K and V are put away, where later layers read them; and back: g->dk and g->dv are added to those of
 * the layer that they are of, or to a layer's own those of the ones that read them. */
void grad_lend(grad_ctx *g, int64_t layer, int64_t R);
void grad_lent_back(grad_ctx *g, int64_t layer, int64_t R);
/* x += what per-layer embeddings give, of the layer at work; d, the gradient behind that, becomes the one before. */
void grad_ple_forward(grad_ctx *g, const grad_layer *l, float *x, int64_t R);
void grad_ple_backward(grad_ctx *g, const grad_layer *l, float *d, int64_t R, const grad_out *out);

/* ---- backward_moe.c ---- */
enum { GRAD_MADE_PARTS = 8, GRAD_MOE_PARTS = 16 };
/* Buffers of a layer with experts, and of all of them together; m may be of no pass, for their sizes alone. */
void grad_made_parts(grad_part p[GRAD_MADE_PARTS], grad_made *m, const arch_config *c, int64_t R);
void grad_moe_parts(grad_part p[GRAD_MOE_PARTS], grad_moe *m, const arch_config *c, int64_t R);
/* The widest MLP of a layer, dense or with experts. */
int64_t grad_widest_ffn(const arch_config *c);
/* g->m's choices and shares of R rows h2. */
void grad_moe_choose(grad_ctx *g, const grad_layer *l, int64_t R);
/* x += the chosen experts of h2. Errors: those of l->experts. */
lq_status grad_moe_forward(grad_ctx *g, const grad_layer *l, float *x, int64_t R, lq_err *err);
/* g->dx := the gradient at h2 of d, that at the experts' sum. */
lq_status grad_moe_backward(grad_ctx *g, const grad_layer *l, const float *d, int64_t R,
                            const grad_out *out, lq_err *err);

#endif
