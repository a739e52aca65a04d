/* calib/backward.h - one layer of the transformer in f32 on dense weights, forward and backward.
 *
 * Given the gradient dy of some loss with respect to the layer's output, the backward pass gives
 * that with respect to its input, its weights and its norms. Between the passes nothing is kept but
 * the layer's input, and backward runs the layer forward again; or, where that fits, all that each layer
 * made is kept, which saves a quarter of the work and changes no bit. Attention is per window; the loss is
 * summed over rows, so gradients of chunks of windows add up.
 *
 * Covers layers with RMS or layer norms before and after their branches, one after the other or side by side, rotary
 * or no positions, heads in groups, clips of q, k and v, q/k norms before or after the rotation (of each head with
 * one weight, or of all heads together), biases, sliding windows, chunks, sinks, soft caps, gates on what attention
 * gives, norms of what R_O and R_DOWN read, latents for its keys and values, positions that an indexer chooses, K and
 * V of an earlier layer, in attention's place or beside it a gated delta rule, Kimi delta attention, Mamba, Mamba-2
 * or a short convolution, matrices of q, k and v or of gate and up together, an MLP, gated or not, of SiLU, GELU,
 * ReLU, its square, xIELU, clamped SwiGLU or SiLU within limits, experts with softmax or sigmoid scores, or
 * SparseMixer's, and a shared MLP, or another, beside them, layers of one branch, of sizes of their own and with
 * embeddings of their own, several residual streams and Laurel, gates of which the least are cut off: grad_covers
 * says whether a model is of that kind.
 *
 * Experts are asked for one at a time (grad_experts), so that of a layer's experts one is in memory as f32. Which
 * of them a row is sent to has no gradient; their shares have.
 *
 * Shapes: x, y [R, hidden], R rows = whole windows of `len` tokens; W [N,K]. */
#ifndef LLMQ_CALIB_BACKWARD_H
#define LLMQ_CALIB_BACKWARD_H

#include "base/comm.h"
#include "calib/gemm_dev.h"
#include "formats/arch/arch.h"
#include "kernels/core/pool.h"
#include "runtime/model/model.h"

/* From GRAD_GATE_UP on those of the dense MLP. */
enum {
    GRAD_Q,
    GRAD_K,
    GRAD_V,
    GRAD_QKV,
    GRAD_Q_A,
    GRAD_Q_B,
    GRAD_KV_A,
    GRAD_KV_B,
    GRAD_ATTN_GATE,
    GRAD_O,
    GRAD_MIX_IN,
    GRAD_MIX_Q,
    GRAD_MIX_K,
    GRAD_MIX_V,
    GRAD_MIX_GATE,
    GRAD_MIX_OUT,
    GRAD_GATE_UP,
    GRAD_GATE,
    GRAD_UP,
    GRAD_DOWN,
    GRAD_LINEARS
};
/* Beside a layer's: those of one expert at a time. */
enum { GRAD_X_GATE = GRAD_LINEARS, GRAD_X_UP, GRAD_X_DOWN, GRAD_BUFFERS };
/* Of a layer with experts, where G is summed: of all experts' last matrices together, whose outputs are the same, and
 * of the shared MLP's. */
enum {
    GRAD_EXPERT_DOWN = GRAD_LINEARS,
    GRAD_SHARED_GATE,
    GRAD_SHARED_UP,
    GRAD_SHARED_DOWN,
    GRAD_SUMS
};
enum {
    GRAD_ATTN_NORM,
    GRAD_MLP_NORM,
    GRAD_Q_NORM,
    GRAD_K_NORM,
    GRAD_Q_A_NORM,
    GRAD_KV_A_NORM,
    GRAD_ATTN_POST_NORM,
    GRAD_MLP_POST_NORM,
    GRAD_V_NORM,
    GRAD_ROUTER_NORM,
    GRAD_EXPERT_NORM,
    GRAD_DENSE_POST_NORM,
    GRAD_EXPERT_POST_NORM,
    GRAD_PLE_POST_NORM,
    GRAD_O_NORM,
    GRAD_DOWN_NORM,
    GRAD_NORMS
};
extern const arch_role grad_linear_roles[GRAD_SUMS], grad_norm_roles[GRAD_NORMS];
int grad_linear_of(arch_role r); /* GRAD_Q, ...; GRAD_SUMS: none of these */

/* An expert's matrices, or the shared MLP's, which is number c->experts: gate (NULL: it has none) and up [ffn, width],
 * their rows `ld` and their biases `step` apart; down [width, ffn]; width: arch_expert_width, or hidden. dgate, dup, ddown: where gradients are added to, laid out
 * alike; NULL: not wanted. Of biases NULL: none. */
typedef struct {
    const float *gate, *up, *down, *gate_bias, *up_bias, *down_bias;
    float *dgate, *dup, *ddown;
    int64_t ffn, width, ld, step;
    bool fused; /* gate and up are one matrix */
} grad_expert;

/* Who has them. Only those are asked for that rows are sent to, in rising order, in every pass. */
typedef struct {
    /* *x stays until the next call. */
    lq_status (*get)(void *user, int64_t expert, grad_expert *x, lq_err *err);
    /* Its gradients are complete; NULL: nobody waits for that. */
    lq_status (*done)(void *user, int64_t expert, lq_err *err);
    void *user;
} grad_experts;

enum { GRAD_XIELU = R_XIELU_EPS - R_XIELU_P + 1 };
enum { GRAD_STREAMS_MOST = 8 };
/* NULL: the layer has none. */
typedef struct {
    const float *W[GRAD_LINEARS], *bias[GRAD_LINEARS];
    const float *norm[GRAD_NORMS]; /* as stored: without the row's offset */
    const float *norm_bias[GRAD_NORMS];
    const float *sinks;
    const float *scale;             /* [1]: on x, at the end */
    const float *gate_bias;         /* [heads] */
    const float *head_gate;         /* [heads, hidden] */
    const float *xielu[GRAD_XIELU]; /* [1] each, of R_XIELU_P on */
    /* Of a state, what runtime/forward/forward_mixer.c calls R_MIX_BA, _B and _A [rows, hidden]; the convolution's taps
     * [channels, taps] and bias; [heads], of which rate is -exp of R_MIX_A_LOG; NULL: none. Of MIX_SELECT R_MIX_X and
     * R_MIX_STEP, the norms of their three parts, and rates [channels, mix_key] */
    const float *mix_a_down, *mix_a_up, *mix_gate_down,
        *mix_gate_up; /* [rank, hidden], [rows, rank] */
    const float *mix_x, *mix_step, *mix_parts[3];
    const float *mix_ba, *mix_b, *mix_a, *mix_conv, *mix_conv_bias, *mix_dt, *mix_rate, *mix_skip,
        *mix_norm;
    /* Of experts: [experts, hidden], [experts], [experts] added to the scores that choose, [experts] on shares;
     * [hidden] */
    const float *router, *router_bias, *router_corr, *expert_scale, *shared_router;
    /* Of an indexer, where it is asked (grad_chooses): R_INDEX_Q, _K and _W, its norms and the bias of keys' */
    const float *index_q, *index_k, *index_w, *index_k_norm, *index_k_bias, *index_q_norm;
    /* AltUp's small matrices, and Laurel's and its norm; of the last layer R_STREAM_OUT [hidden, hidden] of each */
    const float *stream_norm, *stream_router, *stream_predict, *stream_correct, *stream_scale;
    const float *laurel_left, *laurel_right, *laurel_norm, *stream_out[GRAD_STREAMS_MOST - 1];
    const float *ple_gate, *ple_out;     /* [ple_dim, hidden], [hidden, ple_dim] */
    const float *latent_in, *latent_out; /* [latent, hidden], [hidden, latent] */
    const grad_experts *experts;
} grad_layer;

enum { GRAD_BLOCK = 256 };
/* Where gradients are added to; NULL: not wanted. Of a linear's inputs x [R,K] and the gradients
 * dy [R,N] at its output, R being the rows of one call:
 *     G  dy^T dy, its blocks along the diagonal: ceil(N / B) of [B,B], B = GRAD_BLOCK
 *        Tiles above the diagonal (calib/gemm.h) stay as they are: gemm_mirror fills them.
 *     squares  [R]: |dy|^2 of each row, set. Wanted along with G. */
typedef struct {
    float *W[GRAD_LINEARS], *norm[GRAD_NORMS], *G[GRAD_SUMS], *squares[GRAD_LINEARS];
    float *router; /* [experts, hidden] */
} grad_out;

bool grad_covers(const arch_config *c);
/* Do indexers choose among the positions of windows of `len` tokens? */
bool grad_chooses(const arch_config *c, int64_t len);

typedef struct grad_ctx grad_ctx;
/* Buffers for up to `windows` windows of `len` tokens. keep: what grad_forward makes of a layer stays until
 * grad_backward of that layer, whose rows must be those that went forward last. Errors: LQ_ENOMEM. */
lq_status grad_open(grad_ctx **g, const arch_config *c, int64_t windows, int64_t len, bool keep,
                    pool *p, lq_err *err);
void grad_close(grad_ctx *g);
/* Is what all layers make of so many windows at most GRAD_KEPT_MOST? */
#define GRAD_KEPT_MOST ((int64_t)512 << 20)
bool grad_can_keep(const arch_config *c, int64_t windows, int64_t len);
/* Windows at a time: `most`, halved until it is; `most`, where it never is. */
int64_t grad_chunk(const arch_config *c, int64_t most, int64_t len);
/* Tokens of a window of `len` that attention multiplies one with, in the mean: masked ones too where others of its block
 * see them. */
double grad_seen(int64_t len);
/* What it takes, of a model that grad_covers. */
size_t grad_bytes(const arch_config *c, int64_t windows, int64_t len, bool keep, int threads);

/* From now on several ranks (base/comm.h) go through the same rows with the same weights: each makes some tiles of every
 * product of a linear and some heads of attention, and all get the rest, so that what the passes give is that of
 * one process. Sums over rows (grad_out's W, those of experts but for fused ones, and G) have each rank's own rows alone
 * (grad_own_rows). Routers, norms and what goes element by element all do alike. NULL: this process alone again.
 * Errors: LQ_ENOMEM. */
lq_status grad_share(grad_ctx *g, comm *ranks, lq_err *err);
/* Of M rows of sums, that products with tiles of `side` rows are added to (gemm_cut; of G those of one block): those
 * that rank `rank` of `size` makes. */
void grad_own_rows(int64_t *first, int64_t *end, int rank, int size, int64_t M, int64_t side);
/* p: such rows, or what follows from each, of row_bytes: every rank's own, to all. Errors: those of comm.h, LQ_ENOMEM. */
lq_status grad_gather_rows(comm *ranks, void *p, size_t row_bytes, int64_t M, int64_t side,
                           lq_err *err);
size_t grad_shared_bytes(const arch_config *c, int64_t windows, int64_t len); /* what it takes */

/* From now on products of linears, and sums of G, are made there (NULL: here), where what a pass keeps is forgotten when
 * it ends. Borrowed. */
void grad_use(grad_ctx *g, gemm_dev *on);

/* x [windows * len, hidden] := what the first layer reads of ids, m being the model's frame; what layers read of these
 * rows besides stays in g until the next call. Errors: those of fwd_embed. */
lq_status grad_embed(grad_ctx *g, const model *m, float *x, const int32_t *ids, int64_t windows,
                     lq_err *err);
/* Do they read such, so that rows go through all layers before the next rows begin? */
bool grad_reads_beside(const arch_config *c);

/* x := layer(x) for `windows` windows. Errors: those of l->experts, of comm.h, of the device. */
lq_status grad_forward(grad_ctx *g, const grad_layer *l, int64_t layer, float *x, int64_t windows,
                       lq_err *err);
/* x: the layer's input (kept); d: the gradient at its output in, at its input out. Errors: the same. */
lq_status grad_backward(grad_ctx *g, const grad_layer *l, int64_t layer, const float *x, float *d,
                        int64_t windows, const grad_out *out, lq_err *err);

/* The norm before the head, over up to as many rows: y = norm(x); and backward, d in place, dw [K]
 * added to. */
void grad_norm_forward(grad_ctx *g, float *y, const float *x, const float *w, const float *bias,
                       int64_t R);
void grad_norm_backward(grad_ctx *g, float *d, float *dw, const float *x, const float *w,
                        int64_t R);

#endif
