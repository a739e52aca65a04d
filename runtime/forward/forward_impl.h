/* runtime/forward/forward_impl.h - one layer of the one transformer, shared by fwd_step (rows in a paged
 * cache) and fwd_layer (whole windows without one), and by the CPU and the devices. Not for other
 * modules.
 *
 * x [R, hidden] is the residual stream; the other buffers hold one stage each. No row's result
 * depends on another's.
 *
 * A branch (attention, MLP, experts) reads h and adds its output to `out`: x itself, or, where
 * a norm or a factor comes between, y, which was cleared.
 *
 * Which steps a layer has and in which order is said once (forward_layer.c); what a step does is an
 * fwd_ops: forward_cpu.c, whose work on rows is split over the pool in chunks of FWD_ROWS rows, and
 * forward_dev_layer.c, which queues it on a device. Rows, weights and cache are in the memory of
 * the table that works on them. */
#ifndef LLMQ_RUNTIME_FORWARD_FORWARD_IMPL_H
#define LLMQ_RUNTIME_FORWARD_FORWARD_IMPL_H

#include "kernels/mm.h"
#include "kernels/ops.h"
#include "runtime/forward/forward.h"
#include "runtime/model/absorb.h"
#include "runtime/model/lora.h"
#include "runtime/model/part.h"

enum { FWD_ROWS = 4, FWD_LORA_ROWS = 64 };

/* Where attention reads and each row's K and V go. */
typedef struct {
    uint8_t *k, *v; /* of this layer */
    size_t block_stride;
    int block_size;
    kv_types dtype;
    bool there;    /* the rows' K and V are there: an earlier layer's */
    int64_t state; /* where this layer's state begins in a sequence's, in floats */
} fwd_kv;

/* Rows row0..row0+n_rows of one sequence, for layers with a state. */
typedef struct {
    int64_t row0, n_rows;
    kv_run run;
} fwd_seq_state;

/* Rows row0..row0+n_rows that share a fwd_kv; seqs, whose rows count from the start of x, are what
 * attention computes of them. */
typedef struct {
    int64_t row0, n_rows;
    const attn_seq *seqs;
    int n_seqs;
} fwd_group;

/* Adapters of a step's rows (forward_lora.c). */
typedef struct {
    const lora_adapter *of;
    int32_t at, n; /* of fwd_lora.rows */
} fwd_lora_group;
typedef struct {
    const lora_adapter **of; /* [R] of each row; NULL: none */
    int32_t *rows;           /* those that have one, group after group */
    fwd_lora_group *groups;  /* [n_groups] of one adapter each */
    int64_t n_groups;
    int64_t layer; /* at work */
    mm_job *jobs;  /* scratch of fwd_lora_add */
    mm_out *outs;
    float *low, *y, *base;
} fwd_lora;

typedef struct fwd_ops fwd_ops;
typedef struct fwd_parts fwd_parts;
typedef struct {
    const fwd_ops *ops;
    void *self;           /* the ops' own (fwd_dev); NULL: the CPU's */
    const arch_config *c; /* with the sizes of the layer at work: arch_at */
    const arch_config *whole;
    const model_layer *layer; /* at work */
    arch_rope_use turn;       /* how it rotates */
    int64_t state; /* where its state begins in a sequence's; of those that take turns 0 */
    pool *p;
    mm_acts acts;
    const fwd_tap *tap;   /* or NULL */
    fwd_offload *offload; /* where the CPU's products are done; NULL: there */
    fwd_lora *lora;       /* of the CPU's layers; NULL: no row may have an adapter */
    bool shared;          /* a branch's output is a part of the sum over several devices */
    fwd_parts *parts;     /* what processes that share the model exchange; NULL: this one has all */
    lq_arena *scratch;    /* for mm_run and attn_run */
    int64_t R;            /* rows of this call */
    float *x, *h, *y;     /* [R, hidden] */
    float *out;           /* of the branch at work: x or y */
    float scale_y;        /* on y before it joins x */
    const model_vector *join; /* of the branch at work, R_ATTN_JOIN or R_MLP_JOIN; w NULL: x + y */
    float *e;                 /* [R, embed_dim] where that is not hidden, or R_PROJ_OUT there */
    /* MTP: [R, fwd_given_width] fwd_item's; [R, 2 * hidden] what proj, or of EAGLE-3 or an aside attention, reads */
    float *given, *mtp_in;
    bool given_own;
    float *all; /* [R, fwd_kept_width] of a pass whose hidden states are wanted; else NULL */
    float *cca,
        *cca_out;   /* MIX_CCA: [R, channels * head_taps] what R_CCA_HEADS reads, [R, channels] */
    float *q, *a;   /* [R, heads * head_dim], [R, arch_o_width]: attention's output */
    float *pairs;   /* [R, heads * v_dim]: that of differential attention, before a */
    float *k, *v;   /* [R, kv_heads * head_dim], [R, kv_heads * v_dim] */
    float *key_add; /* [R, kv_heads]: R_KEY_STEP's */
    float *squares; /* [2, R] sums of squares of q's rows, then k's: norms of all heads */
    float *qkv;     /* [R, q + k + v]: output of R_QKV */
    float *mlp;     /* [R, fwd_mlp_width]: gate next to up, or up alone */
    float *ple, *ple_row;   /* [R, fwd_ple_width]: of all layers; scratch */
    float *ple_in;          /* [R, ple_dim] */
    float *streams, *first; /* [R, fwd_streams_width] beside x; AltUp: [R, hidden]: x before */
    float *streams_row;     /* on a device as streams, of AltUp and hyper-connections; scratch */
    float *laurel;          /* [R, laurel] */
    float *hyper;           /* [R, arch_hyper_width]: of the branch at work (forward_hyper.c) */
    float *hyper_row;       /* on a device as hyper; scratch */
    float *hyper_normed, *hyper_gate, *hyper_low; /* [R, fwd_streams_width] each, [R, hyper_rank] */
    /* N-grams (forward_ngram.c): [R, heads] rows of the table; [R, ngram_dim]; [R, fwd_streams_width], [R, hidden] */
    int32_t *ngram_rows;
    float *ngram_e, *ngram_key, *ngram_value;
    float *dist_q,
        *dist_k;   /* [R, heads, arch_dist_rows]: q by each distance's keys, k by its queries */
    float *rel;    /* [R, heads * rel_dims]; of it dist_q is [R, heads, rel_extent + 1] */
    int32_t *ids;  /* [R] tokens, where layers go by them */
    double sparse; /* arch_layer's, of the layer at work, as the next two: */
    float expert_limit, mlp_limit; /* or the model's, or infinity */
    float *beside; /* [R, hidden]: what the router reads, then what the experts give; or x early */
    float *cos[2], *sin[2]; /* [R, rope_dims / 2] of ROPE_MAIN, ROPE_LOCAL */
    float *grow[2];   /* [R, head_dim / 2] q's factor (arch_q_factor), and zeros: cosines and sines
                       by which a device's rope multiplies */
    float *turns;     /* [R] log(position + 1), where q's heads grow by it (R_Q_SLOPE) */
    float *slopes;    /* [heads]: ALiBi */
    float *q_gate;    /* [R, fwd_gate_width]: output of a gated R_Q or R_Q_B, or of R_ATTN_GATE */
    float *norm_gate; /* [R, norm_rank] */
    float *aside_low; /* [R, aside_rank] */
    float *head_gate; /* [R, fwd_head_gates] */
    /* Layers with a state; see forward_mixer.c. */
    fwd_seq_state *states; /* [n_states] all rows */
    int n_states;
    bool in_turn; /* they share one memory: each begins with zeros when the one before has ended */
    /* Of a row of mix: where what R_MIX_IN to R_MIX_X make begins, side by side; last its width. */
    int64_t mix_at[R_MIX_X - R_MIX_IN + 2];
    float *mix, *mix_conv;   /* [R, width], [R, channels]: the convolution's where not in mix */
    float *mix_out;          /* [R, heads * mix_value] or [R, hidden] */
    float *mix_beta, *decay; /* [R, mix_heads], [R, arch_mix_decays] */
    /* Experts; R * experts_used places, see forward_moe.c. */
    float *scores, *choice;   /* [R, arch_router_rows], [R, arch_choices] */
    float *route, *route_mid; /* [R, route] goes on to the next layer's router; [2, R, route] */
    float *group_score;       /* [R, expert_groups] */
    int32_t *group_best;      /* [R, groups_used] */
    int32_t *chosen, *place, *sent; /* [R, experts_used] */
    float *share;                   /* [R, experts_used] */
    float *expert_in, *expert_out;  /* [places, 2 * expert_ffn], [places, hidden] */
    float *latent_in, *latent_sum;  /* [R, latent]: what experts read, and what they give */
    float *shared_in;               /* [R, 2 * shared_ffn] */
    float *shared_share;            /* [R, shared_experts], or [R] */
    /* MLA */
    float *q_a, *kv_a; /* [R, arch_q_width], [R, kv_lora + rope_dims]; k and v are not there */
    /* What is attended to are latents: [R, heads, kv_lora + rope_dims] q, then what attention made of
     * it. On a device [heads, R, ..], as products of each head take it, and so is by_head: [heads, R,
     * nope_dims] q's part that keys absorb, then [heads, R, v_dim] the output. */
    float *latent, *by_head;
    /* Of indexers: [R, index_heads * index_dim] q, [R, index_dim], [R, index_heads]; and what they chose,
     * [R, lists, index_topk] positions, for attn_args.keys; and of blocks how many, [R, lists] */
    float *index_q, *index_k, *index_w;
    float *
        index_qk; /* [R, (index_heads + 1) * index_dim]: what R_INDEX_Q gives, where with the key */
    float *index_in; /* [R, hidden]: what R_INDEX_IN_NORM gives */
    int32_t *index_keys, *index_seen;
    int32_t *
        index_keys_row; /* on a device, of layers after the last that all rows go through; scratch */
    float *
        index_group; /* [R, index_every, 2 index_dim]: of a group that a row ends keys and weights */
    /* Of layers that compress (forward_compress.c): [R, 2 * head_dim] what rows give and with what weight, and
     * [R, 2 * index_dim] of index_k's; the places that each row sees, [R, fwd_seen_most], and how many */
    float *gives, *weighs, *index_weighs;
    int32_t *seen, *n_seen;
    const struct model_absorbed *absorbed; /* of the layer at work */
    int32_t *row_pos;                      /* [R] */
    int32_t *row_type;                     /* [R] of R_TYPE_EMBED; nothing without */
    int32_t *row_block, *row_slot;         /* [R] where each row's K and V are written */
    int32_t *
        row_group; /* [R] of index_every: where in its block the key of a group that it ends is; -1: it ends none */
} fwd_rows;

/* The items of a step, on the host; their rows count from the start of x. */
typedef struct {
    /* [n_seqs]; last: of the layer after which no K or V are made, the wanted rows alone; packed: the
     * same of the layers after it, which have no others */
    const attn_seq *seqs, *last, *packed;
    int n_seqs;
    const int32_t *ids;    /* [R] */
    const int64_t *picked; /* [n_picked] rows whose logits are wanted */
    int64_t n_picked;
    const dev_draw *draws; /* [n_draws] from rows among the picked, rising */
    int64_t n_draws;
    const fwd_lora *lora; /* of all R rows; NULL: none may have an adapter */
} fwd_batch;
/* The next run of picked rows whose logits come to the host: from `row` on, n of them; draw: the
 * first draw after it. Begins at zero; false: there is no more. */
typedef struct {
    int64_t row, n, draw;
} fwd_run;
bool fwd_next_run(fwd_run *run, const fwd_batch *b);

/* X(result, step, arguments); NULL: not there, and no model that needs it gets so far. */
#define FWD_OPS(X)                                                                                       \
    /* x = what the first layer reads, for placed rows; of a device whose model begins on the    \
     * host: of the host's rows */       \
    X(void, begin, (fwd_rows * r, const model *m, const fwd_batch *b))                                   \
    /* The first layer of a device is next: x is made there, or comes over */                            \
    X(void, enter, (fwd_rows * r))                                                                       \
    /* dst = norm(x) of T rows of K; a copy where there is no such norm; dst may be x */                 \
    X(void, norm,                                                                                        \
      (const fwd_rows *r, float *dst, float *x, const model_vector *v, int64_t T, int64_t K))            \
    /* of a layer with gates on norms: h of the branch, by the two products of these roles */            \
    X(void, gate_norm, (const fwd_rows *r, const model_layer *l, arch_role down, arch_role up))          \
    X(void, products,                                                                                    \
      (const fwd_rows *r, const mm_out *outs, int n, const float *x, int64_t ldx, int64_t M))            \
    /* What the rows' adapters add to outputs of these roles, which are there, and whose input is x */   \
    X(void, adapt,                                                                                       \
      (const fwd_rows *r, const arch_role *roles, const mm_out *outs, int n, const float *x,             \
       int64_t ldx))                                                                                     \
    /* of a group's rows: q, k and v as attention takes them (but for MLA, which has made them), \
     * K and V into the cache */       \
    X(void, store,                                                                                       \
      (const fwd_rows *r, const model_layer *l, int64_t layer, const fwd_kv *kv,                         \
       const fwd_group *g))                                                                              \
    /* of heads that are shared and normed together: q, k and v up to that norm, and r->squares  \
     * of this device's; store goes on from their sums over all */       \
    X(void, squares, (const fwd_rows *r, const model_layer *l, int64_t layer, const fwd_kv *kv))         \
    X(void, attend,                                                                                      \
      (const fwd_rows *r, const model_layer *l, int64_t layer, const fwd_kv *kv,                         \
       const fwd_group *g))                                                                              \
    /* layers with a state: products of h; then along the sequences, to what R_MIX_OUT reads */          \
    X(void, mix_in, (const fwd_rows *r, const model_layer *l, int64_t layer))                            \
    X(void, mix, (const fwd_rows *r, const model_layer *l, int64_t layer, const fwd_kv *kv))             \
    /* of x, h and a only these rows (ascending) go on */                                                \
    X(void, pick, (fwd_rows * r, const int64_t *rows, int64_t n))                                        \
    /* outs' products of h (of these roles), activated where outs[0] has its place; of two the \
     * first is the gate. outs is written over */         \
    X(void, mlp_in, (const fwd_rows *r, const arch_role *roles, mm_out *outs, int n))                    \
    /* K floats of each of R rows x [R, ld], in place: what o or down reads (no norm: nothing) */        \
    X(void, norm_in,                                                                                     \
      (const fwd_rows *r, float *x, int64_t ld, const model_vector *norm, int64_t K))                    \
    X(void, clear, (const fwd_rows *r)) /* y = 0 */                                                      \
    /* x = h times factor */                                                                             \
    X(void, stay, (const fwd_rows *r, double factor))                                                    \
    /* x = after(x + scale * post(y)), y only where it is the branch's output; after may be NULL \
     */       \
    X(void, join, (const fwd_rows *r, const model_vector *post, const model_vector *after))              \
    X(void, mla, (const fwd_rows *r, const model_layer *l))                                              \
    /* of a layer of heads with an indexer: its products of h */                                         \
    X(void, index, (const fwd_rows *r, const model_layer *l))                                            \
    X(void, values, (const fwd_rows *r)) /* of MLA: a from the latents that attention left */            \
    /* arch_row.early: before a layer's attention, r->beside = x */                                      \
    X(void, hold, (const fwd_rows *r))                                                                   \
    X(void, moe, (const fwd_rows *r, const model_layer *l))                                              \
    /* of a layer with experts beside its MLP: they join what that left in y */                          \
    X(void, beside, (const fwd_rows *r, const model_layer *l))                                           \
    /* w.shortcut: at the end of a layer without experts, x += what the one before left in streams */    \
    X(void, take_up, (const fwd_rows *r))                                                                \
    /* of a layer with several streams: before it; x after attention */                                  \
    X(void, predict, (const fwd_rows *r, const model_layer *l))                                          \
    X(void, laurel, (const fwd_rows *r, const model_layer *l))                                           \
    /* of hyper-connections: as fwd_hyper_enter, fwd_hyper_leave, fwd_hyper_mean and fwd_hyper_end */    \
    X(void, hyper_enter, (const fwd_rows *r, const model_layer *l, arch_role fn, arch_role norm))        \
    X(void, hyper_leave, (const fwd_rows *r))                                                            \
    X(void, hyper_mean, (const fwd_rows *r))                                                             \
    X(void, hyper_end, (const fwd_rows *r, const model_layer *l))                                        \
    /* of a layer that has R_LAYER_SCALE or R_PLE_OUT: its last steps */                                 \
    X(void, finish, (const fwd_rows *r, const model_layer *l, int64_t layer))                            \
    /* x as columns from `at` on of r->all [R, width] */                                                 \
    X(void, keep, (const fwd_rows *r, int64_t at, int64_t width))                                        \
    /* After the last layer: norm(x) of all rows is r->all, or that was kept before (norm NULL); the   \
     * picked rows become x's first, and all that there are */ \
    X(void, keep_all, (fwd_rows * r, const model_vector *norm, const fwd_batch *b))                      \
    /* The head's rows to `logits` on the host, and those behind them to `hidden`, but for those \
     * that are drawn from, and the draws; they may be there already */       \
    X(void, leave,                                                                                       \
      (const fwd_rows *r, const fwd_batch *b, float *logits, float *hidden, float *raw))                 \
    X(lq_status, end, (const fwd_rows *r, lq_err *err)) /* all that is there by now */
struct fwd_ops {
#define X(result, step, args) result(*step) args;
    FWD_OPS(X)
#undef X
};
extern const fwd_ops fwd_cpu, fwd_dev;

/* Bytes for the buffers of R rows (all but x and scratch), and cutting them; false: no room. Of
 * those that fwd_place fills, of those that a step fills, or of all. */
typedef enum { FWD_PLACED = 1, FWD_HELD = 2, FWD_ALL = 3 } fwd_which;
typedef void *fwd_take(void *from, size_t bytes);
size_t fwd_rows_bytes(const arch_config *c, int64_t R, fwd_which which);
bool fwd_rows_cut(fwd_rows *r, const arch_config *c, int64_t R, fwd_which which, fwd_take *take,
                  void *from);
/* All out of an arena, and the slopes filled. Steps need no zeros: they are for those whose pages are fresh anyway. */
bool fwd_rows_push(fwd_rows *r, const arch_config *c, int64_t R, bool zeroed, lq_arena *a);
size_t fwd_slopes_bytes(const arch_config *c); /* of r->slopes; 0: no ALiBi */
void fwd_slopes(const arch_config *c, float *slopes);
int64_t fwd_angles(const arch_config *c, arch_rope_use which); /* cosines of a row; 0: unused */
/* The last layer that makes K and V, or an indexer's keys: those after it read others', and of them only the
 * wanted rows are computed. As many as there are layers: all rows go to the end, for the states that they leave. */
int64_t fwd_last_maker(const arch_config *c);
int64_t fwd_grows(const arch_config *c); /* likewise of grow */
int64_t fwd_turns(const arch_config *c); /* and of turns */
/* Is q multiplied in this layer? */
bool fwd_grows_in(const arch_config *c, int64_t layer);
/* Positions of a row's lists that layers share after the last that all rows go through; 0: none do. */
int64_t fwd_lists_beyond(const arch_config *c);
int64_t fwd_qkv_width(const arch_config *c);
/* Floats of a row that an MTP head or an EAGLE-3 draft is given, at most. */
int64_t fwd_given_width(const arch_config *c);
/* Floats of a row of r->all: fwd_all_hidden's. */
int64_t fwd_kept_width(const arch_config *c, const fwd_opts *o);
int64_t fwd_gate_width(const arch_config *c);
/* Bytes of r->scratch for R rows. */
size_t fwd_rows_scratch(const arch_config *c, int64_t R, int threads);
int64_t fwd_mlp_width(const arch_config *c);
static inline int64_t fwd_head_gates(const arch_config *c)
{
    return arch_name_of(c, R_HEAD_GATE) ? c->heads : 0;
}
static inline int64_t fwd_cca_width(const arch_config *c)
{
    return c->row->mixer == MIX_CCA ? arch_cca_channels(c) : 0;
}
static inline float fwd_softplus(float x) { return log1pf(expf(x)); }
/* Of a row of r->mix_conv. */
int64_t fwd_mix_channels(const arch_config *c);

/* Positions, angles and places in the cache of the rows of one sequence; seq_len: as fwd_item's. */
void fwd_place(fwd_rows *r, const attn_seq *s, int block_size, int64_t seq_len);
/* The same of s at the positions of `like`, which has been placed: as many rows, of as long a sequence. */
void fwd_place_like(fwd_rows *r, const attn_seq *s, const attn_seq *like, int block_size);
/* The CPU's begin, with r->h and r->e as scratch. */
void fwd_embed_rows(const fwd_rows *r, const model *m, const int32_t *ids);
/* fn for each chunk of up to FWD_ROWS rows of all R. */
void fwd_each(const fwd_rows *r, int64_t R,
              void (*fn)(const fwd_rows *r, int64_t row, int64_t n, const void *arg),
              const void *arg);
/* x [R, K], rows ldx apart, normed in place; nothing where there is no such norm. On the CPU. */
void fwd_norm_within(const fwd_rows *r, float *x, int64_t ldx, const model_vector *norm, int64_t K);
void fwd_tap_rows(const fwd_rows *r, arch_role role, const float *x, int64_t ldx, int64_t K);
static inline mm_out fwd_out(const model_linear *l, float *y, int64_t ldy, bool add)
{
    return (mm_out){ .w = &l->w, .y = y, .ldy = ldy, .bias = l->bias, .add = add };
}

/* A layer is four parts. The two in the middle end with a branch's output in r->out: that of
 * several devices is then to be summed, as is r->squares after the first where fwd_norm_shared. */
typedef enum { FWD_TO_HEADS, FWD_TO_ATTENTION, FWD_TO_MLP, FWD_TO_END, FWD_N_PARTS } fwd_part;
static inline bool fwd_norm_shared(const fwd_rows *r)
{
    return r->shared && r->c->w.qk_norm == QK_NORM_ALL;
}
void fwd_run_part(fwd_part part, fwd_rows *r, const model_layer *l, int64_t layer, const fwd_kv *kv,
                  const fwd_group *groups, int64_t n_groups, const int64_t *picked,
                  int64_t n_picked);
/* One layer. picked: the n_picked rows (ascending) that go on from it: they become x's first rows
 * and R; NULL: all. */
void fwd_run_layer(fwd_rows *r, const model_layer *l, int64_t layer, const fwd_kv *kv,
                   const fwd_group *groups, int64_t n_groups, const int64_t *picked,
                   int64_t n_picked);
/* Does a state go along, by products of its own? */
static inline bool fwd_scans(const arch_config *c, int64_t layer)
{
    return arch_mixer_scans(c->layer[layer].mixer);
}
/* Of a layer that has points what is between two of them, as fwd_layer_to says (runtime/forward/forward.h); what is read
 * at FWD_AT_O and FWD_AT_DOWN is in a and mlp. */
void fwd_run_to(fwd_rows *r, const model_layer *l, int64_t layer, fwd_point from, fwd_point at,
                const fwd_kv *kv, const fwd_group *groups, int64_t n_groups);
/* Final norm of x's first n rows: h. */
void fwd_run_final(const fwd_rows *r, const model *m, int64_t n);
/* Logits of a row: of a model without words its hidden state is all that is wanted, of as many rows as there are. */
static inline int64_t fwd_words(const arch_config *c)
{
    return c->head == HEAD_WORDS ? arch_words(c) : 0;
}
static inline int64_t fwd_most_wanted(const arch_config *c, const fwd_opts *o)
{
    return c->head == HEAD_WORDS ? o->max_logits : o->max_rows;
}
/* That and the head: logits [n, ld], before fwd_finish_logits. */
/* Differential attention (forward_diff.c): r->v of a row as the cache has it; a of n rows from *arg + row. */
/* What keys add to scores (forward_keys.c): r->key_add of v; and of a row's q and k, normed, heads of head_dim of those
 * that are key_pad narrower, such that their products have it. */
void fwd_key_steps(const fwd_rows *r, const model_layer *l);
void fwd_key_widen(const fwd_rows *r, int64_t t);
/* MIX_CCA (forward_cca.c): q, k and v of products, before their norms. */
void fwd_cca(const fwd_rows *r, const model_layer *l, const fwd_kv *kv);
void fwd_diff_values(const fwd_rows *r, int64_t t);
void fwd_diff_heads(const fwd_rows *r, int64_t row, int64_t n, const void *arg);
void fwd_run_head(const fwd_rows *r, const model *m, float *logits, int64_t ld, int64_t n);
/* The model's scale and soft-cap, on the host. */
void fwd_finish_logits(const fwd_rows *r, float *logits, int64_t n);
void fwd_gate_norm(const fwd_rows *r, const model_layer *l, arch_role down, arch_role up);
/* fwd_cpu's experts in the MLP's place: h to out. (forward_moe.c) */
void fwd_run_moe(const fwd_rows *r, const model_layer *l);
/* What becomes of an expert's gates. */
k_act_fn fwd_experts_act(const arch_config *c);
size_t fwd_moe_scratch(const arch_config *c, int64_t R, int threads); /* of fwd_rows_scratch */
/* The same beside the MLP, whose output out is; w.shortcut: to r->streams, which x takes up later. */
void fwd_run_beside(const fwd_rows *r, const model_layer *l);
void fwd_end_shortcut(const fwd_rows *r);
/* Adapters (forward_lora.c), of rows with ranks up to `rank`, which is not 0 but for no bytes: buffers of R
 * rows (work: of layers that the CPU has), and of r->scratch. */
size_t fwd_lora_bytes(const arch_config *c, int64_t R, int64_t rank, bool work);
bool fwd_lora_cut(fwd_lora *l, const arch_config *c, int64_t R, int64_t rank, bool work,
                  lq_arena *a);
/* The widest outputs that are made of one input. */
int64_t fwd_lora_width(const arch_config *c);
size_t fwd_lora_scratch(const arch_config *c, int64_t rank, int threads);
/* The groups, of the first R rows' `of`; and after only these rows (ascending) go on. */
void fwd_lora_sort(fwd_lora *l, int64_t R);
void fwd_lora_pick(fwd_lora *l, const int64_t *rows, int64_t n);
/* fwd_cpu's adapt. */
void fwd_lora_add(const fwd_rows *r, const arch_role *roles, const mm_out *outs, int n,
                  const float *x, int64_t ldx);
/* Per-layer embeddings (forward_ple.c): of the rows that x and ids begin with; fwd_cpu's finish. */
void fwd_ple_rows(const fwd_rows *r, const model *m, const int32_t *ids);
/* rows [R, fwd_ple_width] = the table's of these ids, as a sum takes them. */
void fwd_ple_lookup(const fwd_rows *r, const model *m, const int32_t *ids, float *rows);
static inline int64_t fwd_ple_width(const arch_config *c) { return c->layers * c->ple_dim; }
void fwd_run_finish(const fwd_rows *r, const model_layer *l, int64_t layer);
/* AltUp and Laurel (forward_altup.c): the streams from x, all of them before and after a layer, and
 * x from them after the last, which has stream_out; x after attention. */
static inline int64_t fwd_streams_width(const arch_config *c)
{
    return c->streams      ? (c->streams - 1) * c->hidden
           : c->w.shortcut ? c->hidden
           : c->asides     ? 2 * c->hidden
                           : c->hyper * c->hidden;
}
void fwd_streams_begin(const fwd_rows *r, const model *m);
void fwd_streams_predict(const fwd_rows *r, const model_layer *l);
void fwd_streams_correct(const fwd_rows *r, const model_layer *l);
void fwd_streams_end(const fwd_rows *r, const model_layer *l);
void fwd_run_laurel(const fwd_rows *r, const model_layer *l);
/* Transformers beside the residual (forward_aside.c): the streams from x; what an aside reads, of x, which is then 0; x
 * is 0 once more before the MLP's output; at its end the residual and what the aside adds for the next layer, after
 * whose norm the residual is taken up; what an aside's adapters, from `low` on, add to y [R, ldy] of x [R, K]. */
void fwd_aside_begin(const fwd_rows *r);
void fwd_aside_enter(const fwd_rows *r, const model_layer *l);
void fwd_aside_clear(const fwd_rows *r);
void fwd_aside_leave(const fwd_rows *r, const model_layer *l);
void fwd_aside_resume(const fwd_rows *r);
void fwd_aside_adapt(const fwd_rows *r, const model_layer *l, arch_role low, float *y, int64_t ldy,
                     const float *x, int64_t K);
/* Hyper-connections (forward_hyper.c): all streams from x; x from them before a branch, whose roles begin with
 * fn, or with norm; the streams from a branch's output y; x from them after the last layer. */
void fwd_hyper_begin(const fwd_rows *r);
void fwd_hyper_enter(const fwd_rows *r, const model_layer *l, arch_role fn, arch_role norm);
void fwd_hyper_leave(const fwd_rows *r);
void fwd_hyper_mean(const fwd_rows *r);
void fwd_hyper_end(const fwd_rows *r, const model_layer *l);
/* What a layer with n-grams adds to all streams before its branches (forward_ngram.c). */
void fwd_ngrams(const fwd_rows *r, const model_layer *l, int64_t layer, const fwd_kv *kv);
/* Do layers go by the rows' tokens: for experts, or for n-grams? */
bool fwd_by_token(const arch_config *c);
/* fwd_cpu's q and latents of MLA layers from h, rotated; and attention's output a from that of the
 * latents. (forward_mla.c) */
void fwd_run_mla(const fwd_rows *r, const model_layer *l);
void fwd_run_values(const fwd_rows *r);
/* y of each head = w[head] x of it, all in f32; y_head, x_head: from head to head. */
void fwd_head_products(const fwd_rows *r, const mm_weight *w, int64_t heads, float *y, int64_t ldy,
                       int64_t y_head, const float *x, int64_t ldx, int64_t x_head);
size_t fwd_heads_scratch(int64_t heads, int64_t R, int64_t K, int threads);
size_t fwd_mla_scratch(const arch_config *c, int64_t R, int threads);
/* Each head of a position's q times slope log(pos + 1) + base. */
void fwd_grow_heads(float *q, int64_t H, int64_t D, int64_t pos, const model_vector *slope,
                    const model_vector *base);
/* The same of layers with one row for keys and values (forward_compress.c): q, in `latent`, and the row; a from
 * what attention left in its place. */
void fwd_one_rows(const fwd_rows *r, const model_layer *l);
void fwd_one_values(const fwd_rows *r);
/* Compressed positions of a group's rows into the cache, whose sequences' states are n from `first` on; and what
 * its rows see. */
void fwd_compress(const fwd_rows *r, const model_layer *l, int64_t layer, const fwd_kv *kv,
                  const fwd_group *g, int first, int n);
void fwd_compress_seen(const fwd_rows *r, int64_t layer, const fwd_kv *kv, const fwd_group *g);
int64_t fwd_seen_most(const arch_config *c);
size_t fwd_one_scratch(const arch_config *c, int64_t R, int threads); /* of fwd_rows_scratch */
/* Of a layer with an indexer (forward_index.c): the products of h and of the normed q_a; rows of its q,
 * k and weights from what those left; a row's key into its block; the keys of groups that end in
 * some rows, whose own are there; and of a group's rows the positions to attend to. */
#define FWD_INDEX_EPS 1e-6f                     /* of k's norm, whatever the config says */
int64_t fwd_index_normed(const arch_config *c); /* numbers that R_INDEX_IN_NORM gives; 0: none */
void fwd_index_products(const fwd_rows *r, const model_layer *l);
void fwd_index_rows(const fwd_rows *r, const model_layer *l, int64_t row, int64_t n);
void fwd_index_groups(const fwd_rows *r, const model_layer *l, const fwd_kv *kv,
                      const fwd_group *g);
void fwd_index_store(const fwd_rows *r, const fwd_kv *kv, int64_t t);
void fwd_index_choose(const fwd_rows *r, const fwd_kv *kv, const fwd_group *g);
size_t fwd_index_scratch(const arch_config *c, int threads); /* of fwd_rows_scratch */

/* fwd_cpu's layers with a state. (forward_mixer.c) */
void fwd_mix_in(const fwd_rows *r, const model_layer *l, int64_t layer);
void fwd_mix(const fwd_rows *r, const model_layer *l, int64_t layer, const fwd_kv *kv);
/* A convolution of each channel by itself along the sequences (forward_conv.c), in place; its bias may be NULL. state:
 * where the inputs before, [taps - 1, channels], begin in a sequence's. */
typedef struct {
    float *x; /* of the first of all rows */
    int64_t ld, channels;
    const float *w, *bias; /* [conv_taps, channels], [channels] */
    bool silu;
    int64_t state;
} fwd_conv;
void fwd_conv_along(const fwd_rows *r, const fwd_conv *c, const fwd_seq_state *states, int n);
/* MIX_TAPPED (forward_taps.c): the convolution of a role, if the layer has it, of x [R, channels]; what R_REL's rows add to
 * scores, to dist_q. */
void fwd_tap_along(const fwd_rows *r, const model_layer *l, int64_t layer, arch_role role,
                   float *x);
void fwd_relative(const fwd_rows *r, const model_layer *l, int64_t layer);
size_t fwd_relative_scratch(const arch_config *c, int64_t R, int threads);
/* x [n] = f(gate) up of [gate up gate up ...], 2 n. */
void fwd_act_mixed(float *x, int64_t n, k_act_fn f, float limit);
/* The rows of a sequence up to its next mark, or `end`: [at, the result). *mark begins with 0. */
int64_t fwd_next_mark(const fwd_seq_state *s, int *mark, int64_t at, int64_t end);
/* Rows [n] of `width` floats of the state, ld apart, to their places in the copies wanted after `at`. */
void fwd_copy_marked(const fwd_seq_state *s, int mark, int64_t at, const float *from, int64_t n,
                     int64_t width, int64_t ld);

/* A device's part of a pass (forward_dev.h): buffers, and what a step sends there. r becomes
 * fwd_dev's. */
typedef struct {
    fwd_rows *host;         /* to place rows on, and to run the layers on that the CPU has */
    float *raw;             /* [max_logits, fwd_words] on the device */
    float *logits, *hidden; /* where those and their hidden states arrive on the host */
    float *residual, *all;  /* and of an MTP head's rows x, and r->all; else NULL */
    dev_drawn *drawn;       /* [max_logits] and what was drawn */
} fwd_dev_ends;
typedef struct fwd_dev_ctx fwd_dev_ctx;
lq_status fwd_dev_open(fwd_dev_ctx **d, fwd_rows *r, fwd_dev_ends *ends, const model *m,
                       const kv_cache *kv, const fwd_opts *o, lq_err *err);
void fwd_dev_close(fwd_dev_ctx *d);

/* From enter to leave of a step, these included, is the same work whenever a step has
 * the same shape: it is captured once, and from then on one launch (forward_graph.c). All that
 * differs is in what begin has sent. Of several devices each has a graph for every piece between
 * two exchanges. */
enum { FWD_GRAPHS = 32, FWD_RANK_GRAPHS = 8, FWD_GRAPH_ROWS = 256 }; /* shapes, those of ranks */
typedef struct {
    int64_t rows; /* all with logits */
    int64_t n_draws;
    uint64_t drawn[FWD_GRAPH_ROWS / 64]; /* which rows, as bits */
    struct {
        int64_t panels, rank, dora; /* of all rows' adapters; 0: there are none */
    } lora;
    int64_t runs; /* of states; 0: there are none */
    int64_t given_own;
    int64_t fixed; /* bytes sent before what only other data point to */
    struct {
        int64_t chunks, slots;
    } attn[MODEL_KINDS]; /* of each kind of layers */
} fwd_shape;
typedef struct {
    struct {
        fwd_shape shape;
        dev_graph **piece; /* [n_pieces]; NULL: was not captured */
        uint64_t used;     /* the step of its last use; 0: nothing is here */
    } kept[FWD_GRAPHS];
    int n_kept; /* shapes at most */
    int64_t n_pieces;
    dev_graph **pieces; /* all of them */
    uint64_t now;
    int at;     /* the step's */
    bool known; /* its shape was there before */
    bool off;   /* no more are made */
} fwd_graphs;
typedef enum {
    FWD_PLAIN,   /* queue the piece */
    FWD_CAPTURE, /* do so, then fwd_graphs_end */
    FWD_QUEUED   /* it is */
} fwd_how;
bool fwd_graphs_open(fwd_graphs *g, int n_kept, int64_t n_pieces); /* false: no memory */
void fwd_graphs_begin(fwd_graphs *g, dev *d, const fwd_shape *s);  /* a step; NULL: has none */
fwd_how fwd_graphs_piece(fwd_graphs *g, dev *d, int64_t piece, const model_on *on);
/* Of FWD_CAPTURE; false: it could not be, nothing has run, queue the piece once more. */
bool fwd_graphs_end(fwd_graphs *g, dev *d, int64_t piece, const model_on *on);
void fwd_graphs_close(fwd_graphs *g, dev *d);
/* The same of a device's pass, after begin; piece by piece. */
fwd_how fwd_dev_how(fwd_dev_ctx *d, int64_t piece);
bool fwd_dev_kept(fwd_dev_ctx *d, int64_t piece);

/* The other devices of those that share a model, and what all do together
 * (forward_ranks.c): one thread queues each part of a layer on every device in turn. */
typedef struct {
    model_on *on;
    fwd_rows rows;
    fwd_dev_ctx *dev;
    float *logits; /* [max_logits, fwd_ranks_width] of its part of the head */
} fwd_rank;
typedef struct {
    int n;                    /* ranks; 1: nothing here is used */
    fwd_rows *first;          /* those of rank 0 */
    fwd_dev_ctx *pass;        /* and its pass */
    fwd_rank rank[DEV_RANKS]; /* of rank 0 only `on` and `logits` */
    dev_link *link;
    float *parts; /* [n, max_logits, width] of rank 0: the parts side by side */
} fwd_ranks;
int64_t fwd_ranks_width(const arch_config *c, int ranks); /* logits of one, at most */
/* Rank 0's pass is open. */
lq_status fwd_ranks_open(fwd_ranks *a, fwd_rows *first, fwd_dev_ctx *pass, const model *m,
                         const kv_cache *kv, const fwd_opts *o, lq_err *err);
void fwd_ranks_close(fwd_ranks *a);
void fwd_ranks_begin(fwd_ranks *a, const model *m, const fwd_batch *b);
/* All from enter to the head: raw [n_picked, vocab] on rank 0. */
void fwd_ranks_run(fwd_ranks *a, kv_cache *kv, float *raw, const fwd_batch *b);
/* Of a step: enter, four parts of each layer, the head; pieces for fwd_graphs_open. */
int64_t fwd_ranks_stages(const arch_config *c);
bool fwd_ranks_ends_piece(const arch_config *c, int64_t stage); /* an exchange follows */
int64_t fwd_ranks_pieces(const arch_config *c);
/* All but rank 0 are waited for; the first failure. */
lq_status fwd_ranks_end(fwd_ranks *a, lq_err *err);
/* A rank's pass, with the rows of `first` on the host (forward_dev.c). */
lq_status fwd_dev_open_rank(fwd_dev_ctx **d, fwd_rows *r, model_on *on, fwd_dev_ctx *first,
                            const model *m, const kv_cache *kv, const fwd_opts *o, lq_err *err);

/* ---- processes that share a model (runtime/model/part.h) ---- */

/* What rank 0 tells the others (forward_plan.c). */
typedef enum {
    FWD_WORD_OPEN,
    FWD_WORD_STEP,
    FWD_WORD_LORA,
    FWD_WORD_KV_OUT,
    FWD_WORD_KV_IN,
    FWD_WORD_CLOSE,
    FWD_WORD_ALIVE,
    FWD_WORD_END
} fwd_word_kind;
typedef struct {
    fwd_word_kind kind;
    int n_items; /* FWD_WORD_LORA: its number; FWD_WORD_KV_...: the block or slot */
    kv_part part;
    int64_t n_copies;
    size_t bytes; /* that follow */
} fwd_word;
enum { FWD_TAG_COLUMNS = 1, FWD_TAG_LOGITS, FWD_TAG_KV }; /* of messages between ranks */
/* An item; its blocks, its blocks of windows and its ids follow. */
typedef struct {
    int64_t n, pos0, logits_from, n_first, seq_len, n_blocks, near_from, near_to;
    int64_t lora; /* its number; -1: none */
    kv_run_slots run;
} fwd_told;
typedef struct {
    uint8_t *bytes;
    size_t n, cap;
} fwd_bytes_of;

struct fwd_parts {
    const model_part *part; /* NULL: this process has all of the model */
    const model_part *at;   /* ... of the layer at work */
    lq_arena arena;
    float *wide; /* [R, width] what o or down read, of all ranks; [places, expert_ffn] of experts */
    float *shared;   /* [R, shared_ffn] */
    float *out, *in; /* messages: columns of this rank, and of the others one after the other */
    comm_move moves[2 * PART_RANKS];
    lq_status bad; /* of this step and all that follow */
    lq_err why;
    uint64_t sent; /* bytes so far, by this rank */
    fwd_bytes_of plan;
    kv_copy *copies; /* [n_copies], cap: since the last step */
    int64_t n_copies, cap_copies;
    lora_adapter **loras; /* [n_loras] that the others have, by number; NULL: it is free */
    int n_loras;
    size_t (*kv_bytes)[KV_PARTS]; /* [ranks] kv_own_bytes of each, on rank 0 */
    bool led;                     /* the others have heard of this pass */
};
lq_status fwd_parts_open(fwd_parts *p, const model_part *part, const fwd_opts *o, lq_err *err);
void fwd_parts_close(fwd_parts *p);
/* Keeps the first failure, of which p->why has the text; returns it. */
lq_status fwd_parts_failed(fwd_parts *p, lq_status s);
/* to [R, all columns], rows ldt apart, on every rank, from what each has of it: own, rows ldo apart; own may be its
 * place in `to`. */
void fwd_put_together(const fwd_rows *r, float *to, int64_t ldt, const float *own, int64_t ldo,
                      int64_t R, const part_cuts *x);
/* What o reads: attention's output of all heads; what down reads, activated. Normed where the layer does so. */
const float *fwd_all_heads(const fwd_rows *r, const model_layer *l);
const float *fwd_all_width(const fwd_rows *r, const model_layer *l);
/* q and k normed over all heads, where the model does so before it rotates them. */
void fwd_norm_parts(const fwd_rows *r, const model_layer *l);
void fwd_slopes_of_part(const fwd_rows *r); /* ALiBi: r->slopes are those of this process's heads */
/* Rank 0's logits [n, words], of which it has its own there; the others' are in parts->out. */
void fwd_gather_logits(const fwd_rows *r, float *logits, int64_t n);
/* Rank 0 to the others. */
lq_status fwd_lead_open(fwd_parts *p, kv_cache *kv, const fwd_opts *o, lq_err *err);
void fwd_lead_step(fwd_parts *p, const kv_cache *kv, const fwd_item *items,
                   const fwd_seq_state *states, int n_items);
lq_status fwd_lead_alive(fwd_parts *p, lq_err *err);
void fwd_lead_close(fwd_parts *p);

#endif
