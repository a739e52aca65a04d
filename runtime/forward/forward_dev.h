/* runtime/forward/forward_dev.h - the steps of a layer on a device (kernels/device.h): all are queued, end
 * waits. Layers that the device has no room for come first and are the CPU's: x goes over once.
 *
 * The inputs of a step (places in the cache, angles, ids, block tables, the plan of attention) are
 * written into one buffer on the host and go up by one copy; logits and their hidden states come
 * back. Not for other modules:
 *
 *     forward_dev.c        opens a pass: all that is ever allocated
 *     forward_dev_size.c   how much that is
 *     forward_dev_step.c   what a step sends and what comes back
 *     forward_dev_lora.c   what a step sends of its rows' adapters, and what they add to products
 *     forward_dev_product.c  products and norms
 *     forward_dev_mix.c    what layers with a state queue
 *     forward_dev_widen.c  a cache of codes as bf16, for attention of many rows
 *     forward_dev_ple.c    per-layer embeddings
 *     forward_dev_mla.c    latent attention
 *     forward_dev_index.c  layers that choose the positions that they attend to
 *     forward_dev_streams.c  several residual streams
 *     forward_dev_head.c   what guesses beside a model
 *     forward_dev_layer.c  what each step of a layer queues; the table */
#ifndef LLMQ_RUNTIME_FORWARD_FORWARD_DEV_H
#define LLMQ_RUNTIME_FORWARD_FORWARD_DEV_H

#include "runtime/forward/forward_impl.h"

#include <assert.h>

enum {
    FWD_DEV_MEM = 112, /* buffers on the device: more than there are */
    FWD_DEV_PINNED =
        11, /* of the host's: the staging buffer, x, logits, hidden states, draws, ple, given, x of
                           an MTP head, hidden states of all rows, what the CPU's layers chose, streams */
    FWD_DEV_ALIGN = 256, /* of a buffer there, and of a piece of the staging buffer */
};

/* Consecutive chunks of a plan that share a launch; slots count from 0 in each. */
typedef struct {
    int64_t chunk, n_chunks, slot, n_slots;
} fwd_launch;

/* Which rows a layer's attention has: all; the wanted ones where they are among all (the layer after which only
 * they go on); those, beside each other (layers after it, which read K and V of another). */
typedef enum { FWD_DEV_ALL, FWD_DEV_LAST, FWD_DEV_PACKED, FWD_DEV_ROWS } fwd_dev_which;

/* Of one kind of layers and one choice of rows. */
typedef struct {
    const dev_attn_chunk *chunks; /* device */
    const int32_t *chunk_of;
    int64_t split;        /* keys */
    fwd_launch *launches; /* [max_chunks] */
    int64_t n_launches;
} fwd_plan;

/* What attention works on: q's heads, and what is cached of a token. Of MLA that is one row of D for all
 * heads, whose first Dv numbers are attended to as values (all that a turned row's latent is in). */
typedef struct {
    int64_t H, Hkv, D, Dv;
    bool latent;
} fwd_dev_heads;

/* Layers that are alike in attention. */
typedef struct {
    fwd_dev_heads heads;
    bool window;
    int64_t chosen;         /* positions of a row's list at most; 0: it has none */
    bool has[FWD_DEV_ROWS]; /* some layer with such rows is one of them */
    dev_attn_how few, many; /* of up to DEV_ATTN_FEW rows of a sequence, and of more */
    bool widens;            /* its codes may become bf16 for many rows: `many` is then the step's */
    int64_t launch_slots[DEV_ATTN_N];
    fwd_plan plans[DEV_ATTN_N][FWD_DEV_ROWS];
} fwd_dev_kind;

/* Rows with adapters, on the device. */
typedef struct {
    const dev_lora_panel *panels; /* [n] */
    const int32_t *rows;
    int64_t n; /* 0: no row has one */
} fwd_dev_rows;

struct fwd_dev_ctx {
    dev *d;
    const model_on *on;       /* whose weights */
    const fwd_dev_ctx *first; /* of several devices; whose rows on the host are these; NULL: own */
    fwd_rows host; /* places; x, h, e where rows are looked up on the host; all where layers are */
    lq_arena arena, scratch;
    uint8_t *mem; /* all buffers on the device; NULL: they are only counted so far */
    size_t mem_used;
    void *pinned[FWD_DEV_PINNED];
    int n_pinned;
    uint8_t *stage, *stage_on; /* the buffer here (pinned) and there */
    size_t stage_bytes, staged;
    int64_t max_chunks, max_slots;
    fwd_dev_heads heads; /* the most of any layer; of MLA each one's */
    fwd_dev_kind kind[MODEL_KINDS];
    int n_kinds;
    kv_types types; /* of the cache */
    struct {
        int64_t blocks, n; /* that `to` holds; that the step needs, 0: codes stay codes */
        size_t stride;     /* bytes of one */
        uint8_t *to;
        const int32_t *tables,
            *list[MODEL_KINDS]; /* device: of the step's sequences; blocks to be read */
    } widen;
    int block_size;
    dev_attn_chunk *chunks; /* [max_chunks] */
    int32_t *chunk_of;      /* [max_slots] */
    int32_t *table_at;      /* [max_seqs] where each sequence's blocks begin in tables */
    int32_t *words;         /* [max_rows] */
    const attn_seq *rows_of[FWD_DEV_ROWS]; /* what the step's layers are told */
    const int32_t *tables, *picked, *ids;
    /* Rows of a step that choose positions, there, and [max_rows] on the host; what they are scored in. */
    const dev_key_row *key_rows[FWD_DEV_ROWS];
    int64_t n_key_rows[FWD_DEV_ROWS];
    dev_key_row *key_row_of;
    void *topk_scratch;
    int64_t longest; /* positions of a sequence at most */
    bool rounds;     /* what its layers' products read is rounded to bf16 by what makes it */
    bool even;       /* all of the step's rows are wanted, and few of each sequence */
    dev_norm_args
        late_norm; /* of h, put off: the product that reads it may begin with it, or take what it
                                leaves in its own order */
    const float *
        ordered; /* what lies in mm_scratch like that, for the product that comes next; NULL: nothing */
    dev_rope_args late_rope; /* put off until attention; both T 0: there is none */
    bool steady;             /* the step's work is a matter of its shape: it may be captured */
    fwd_shape shape;         /* of such a one */
    fwd_graphs graphs;
    float *ple; /* [max_rows, fwd_ple_width] pinned */
    float *packed_cos[2],
        *packed_sin[2];  /* angles of the wanted rows, where layers come after the last of all
                                             rows; NULL: none do */
    float *packed_turns; /* likewise */
    struct {
        float *x, *y, *h, *a, *q, *mix, *mix_out, *ple, *ple_row, *streams, *streams_row, *first,
            *hyper, *hyper_row, *beside;
        int32_t *index_keys, *index_keys_row;
    } home; /* the rows' buffers as a step begins: pick exchanges them */
    void *attn_scratch, *mm_scratch;
    int32_t *attn_done;       /* dev_attn_args.done of max_chunks */
    int32_t *first_of, *busy; /* [experts + 1], [experts] on the device: see dev_place_args */
    /* The same of MLA's heads, each with all rows: staged, also of the wanted rows alone, where layers come after the
     * last of all rows; and on the host, both [heads + 1]. */
    const int32_t *head_first, *head_busy, *packed_head_first;
    int32_t *head_rows;
    struct {
        int64_t most;             /* rank at most of a pass; 0: there are none */
        fwd_dev_rows all, picked; /* picked: of the last layer, once the others are gone */
        const fwd_dev_rows *now;
        int64_t rank;  /* of the step's at most */
        bool dora;     /* one of them has gains */
        int32_t *rows; /* [max_rows] host */
        dev_lora_panel *panels;
        float *low, *base; /* [DEV_LORA_OUTS, max_rows, most]; [max_rows, fwd_lora_width] */
        int64_t max_rows;
    } lora;
    /* Of models that have states: slot 0's of the first layer there, and where that begins in a sequence's. */
    const kv_cache *kv;
    float *states;
    int64_t state_stride, state0;
    float *fixed;        /* of MIX_LIGHTNING: fwd_dev_fixed_bytes */
    dev_run *run_of;     /* [max_seqs] host */
    const dev_run *runs; /* the step's, on the device */
    int64_t n_runs;
    const dev_draw *draws; /* the step's, on the device; what comes of them there and here */
    dev_drawn *drawn_on, *drawn;
    float *residual; /* [max_logits, hidden] pinned, of an MTP head; else NULL */
    float *all;      /* [max_rows, fwd_kept_width] pinned; NULL: they are not wanted */
    int64_t all_width;
    void *draw_scratch;
};

/* Of the table, a step's beginning and end (forward_dev_step.c). */
void fwd_dev_begin(fwd_rows *r, const model *m, const fwd_batch *b);
void fwd_dev_enter(fwd_rows *r);
void fwd_dev_leave(const fwd_rows *r, const fwd_batch *b, float *logits, float *hidden, float *raw);
lq_status fwd_dev_end(const fwd_rows *r, lq_err *err);

/* forward_dev_mix.c: decays of MIX_LIGHTNING, [1 + layers, heads], the first all 1; and the table's steps of layers with a
 * state. */
size_t fwd_dev_fixed_bytes(const arch_config *c);
void fwd_dev_fixed_put(fwd_dev_ctx *f, const arch_config *c); /* by way of the staging buffer */
void fwd_dev_mix_in(const fwd_rows *r, const model_layer *l, int64_t layer);
void fwd_dev_mix(const fwd_rows *r, const model_layer *l, int64_t layer, const fwd_kv *kv);

/* forward_dev_ple.c. Before the first layer: what the host knows of the rows' ids goes up (after fwd_embed_rows of
 * a pass whose first layers are the CPU's), and with x what all layers add is made of it. After a layer's MLP: into
 * x. */
void fwd_dev_ple_send(fwd_rows *r, const model *m, const int32_t *ids);
void fwd_dev_ple_rows(const fwd_rows *r);
void fwd_dev_ple_add(const fwd_rows *r, const model_layer *l, int64_t layer);

/* forward_dev_streams.c, as forward_altup.c: after x the streams, which of a pass whose first layers are the CPU's come
 * over; the table's steps; after a layer, before its per-layer embeddings; after the last. */
void fwd_dev_streams_begin(const fwd_rows *r);
void fwd_dev_shortcut_begin(
    const fwd_rows *r); /* w.shortcut: between a layer with experts and the next */
void fwd_dev_predict(const fwd_rows *r, const model_layer *l);
void fwd_dev_laurel(const fwd_rows *r, const model_layer *l);
void fwd_dev_correct(const fwd_rows *r, const model_layer *l);
void fwd_dev_streams_end(const fwd_rows *r, const model_layer *l);
/* As forward_hyper.c: likewise, of streams that are not mixed. */
void fwd_dev_hyper_begin(const fwd_rows *r);
void fwd_dev_hyper_enter(const fwd_rows *r, const model_layer *l, arch_role fn, arch_role norm);
void fwd_dev_hyper_leave(const fwd_rows *r);
void fwd_dev_hyper_mean(const fwd_rows *r);
void fwd_dev_hyper_end(const fwd_rows *r, const model_layer *l);

/* forward_dev_head.c. Of an MTP head or an EAGLE-3 draft, once x is the embedding's rows: x and mtp_in as its layer reads
 * them, with what it is given. Then the table's steps for hidden states of all rows. */
void fwd_dev_read_given(const fwd_rows *r);
void fwd_dev_keep(const fwd_rows *r, int64_t at, int64_t width);
void fwd_dev_keep_all(fwd_rows *r, const model_vector *norm, const fwd_batch *b);

/* forward_dev_product.c. The table's norm, which may be put off; T rows of K of one, whose sum, place and other
 * weights are the caller's. */
void fwd_dev_norm(const fwd_rows *r, float *dst, float *x, const model_vector *v, int64_t T,
                  int64_t K);
dev_norm_args fwd_dev_norm_of(const fwd_rows *r, float *dst, float *x, const model_vector *v,
                              int64_t T, int64_t K);
/* to += norm(y), of all rows. */
dev_post_args fwd_dev_post_of(const fwd_rows *r, float *to, const model_vector *v);
/* Where x [M], that the product of w alone will read, is to go: into its scratch, if it can. */
dev_order fwd_dev_order_for(fwd_dev_ctx *f, const dev_weight *w, mm_acts acts, int64_t M,
                            const float *x);
/* y [M, ldy] = x o^T + bias, or added to y. before: the product before it, of the same x, which may have arranged
 * it; or NULL. alone: no other reads x. */
void fwd_dev_product(const fwd_rows *r, const mm_out *o, const mm_out *before, bool alone,
                     const float *x, int64_t ldx, int64_t M, mm_acts acts, dev_mm_act act);
void fwd_dev_products(const fwd_rows *r, const mm_out *outs, int n, const float *x, int64_t ldx,
                      int64_t M, mm_acts acts);
void fwd_dev_copy(const fwd_rows *r, float *dst, int64_t ldd, const float *src, int64_t lds,
                  int64_t n, int64_t rows);
/* H heads of D at x, rows `ld` apart (0: H D), turned as a cache of codes has them; q out of a gated R_Q's or R_Q_B's
 * rows; y = x W of a set of weights, each with its own of M rows: one launch. */
void fwd_dev_turn(const fwd_rows *r, float *x, int64_t H, int64_t D, int64_t ld, bool bf16);
void fwd_dev_split_gated(const fwd_rows *r);
void fwd_dev_product_of_set(const fwd_rows *r, const model_experts *w, const dev_group *group,
                            int64_t M, float *y, int64_t ldy, const float *x, int64_t ldx);
/* The table's gate on a norm. */
void fwd_dev_gate_norm(const fwd_rows *r, const model_layer *l, arch_role down, arch_role up);
/* Rows of *x that are picked into *spare, K of each, which change places. */
void fwd_dev_gather(const fwd_rows *r, float **x, float **spare, int64_t K, int64_t n);
/* x [R, H D], each head times its slope log(position + 1) + base; without a slope: as they are. */
void fwd_dev_grow(const fwd_rows *r, float *x, int64_t H, int64_t D, const model_vector *slope,
                  const model_vector *base);
/* x [R, ld], n of each row, times factor; 1: as they are. */
void fwd_dev_times(const fwd_rows *r, float *x, int64_t n, int64_t ld, double factor);

/* forward_dev_lora.c. Bytes of the step's buffers, there and of those that it stages; cutting them. */
size_t fwd_dev_lora_bytes(const arch_config *c, const fwd_opts *o);
size_t fwd_dev_lora_stage(const fwd_opts *o);
bool fwd_dev_lora_host(fwd_dev_ctx *f, const fwd_opts *o, fwd_take *take, void *from);
void fwd_dev_lora_cut(fwd_dev_ctx *f, const arch_config *c, const fwd_opts *o, fwd_take *take,
                      void *from);
/* Of a step: fwd_dev_stage the rows of b that have adapters. */
void fwd_dev_lora_begin(fwd_dev_ctx *f, const fwd_batch *b, int64_t R);
/* fwd_dev's adapt, which gives the products of W that DoRA needs to `products`. */
void fwd_dev_adapt(const fwd_rows *r, const arch_role *roles, const mm_out *outs, int n,
                   const float *x, int64_t ldx);

/* forward_dev_mla.c. The table's mla; q to where it meets the latents, and those into the cache; a from what attention
 * made of the latents. */
void fwd_dev_mla(const fwd_rows *r, const model_layer *l);
void fwd_dev_store_latents(const fwd_rows *r, const model_layer *l, const fwd_kv *kv);
void fwd_dev_latent_values(const fwd_rows *r, const model_layer *l, const fwd_kv *kv);

/* forward_dev_index.c. Positions of a list at most that the layer's attention reads; 0: it sees all. Bytes that a step
 * stages, and of f->topk_scratch, for f's kinds and longest sequence; what a step stages, after its tables have places. */
int64_t fwd_dev_chosen(const arch_config *c, int64_t layer);
/* Positions of the list of the row at `pos`. */
int64_t fwd_dev_listed(const arch_config *c, int64_t pos);
size_t fwd_dev_index_stage(const fwd_dev_ctx *f, const fwd_opts *o);
size_t fwd_dev_index_bytes(const fwd_dev_ctx *f, const arch_config *c, const fwd_opts *o);
void fwd_dev_index_begin(fwd_dev_ctx *f, int n_seqs);
/* Of a layer with an indexer: the products of h and of the normed q_a; those of the heads' weights; keys
 * into the cache; and which positions rows attend to. */
mm_out fwd_dev_index_gate(const fwd_rows *r, const model_layer *l);
mm_out fwd_dev_index_key(const fwd_rows *r, const model_layer *l);
mm_out fwd_dev_index_query(const fwd_rows *r, const model_layer *l);
/* Of an indexer whose queries are made of h, or of what R_INDEX_IN_NORM makes of it: their product. */
void fwd_dev_index_queries(const fwd_rows *r, const model_layer *l);
void fwd_dev_index_weights(const fwd_rows *r, const model_layer *l);
void fwd_dev_index_products(const fwd_rows *r, const model_layer *l); /* the table's index */
void fwd_dev_index_store(const fwd_rows *r, const model_layer *l, const fwd_kv *kv);
void fwd_dev_index_choose(const fwd_rows *r, const fwd_kv *kv, fwd_dev_which which);

/* forward_dev_size.c. */
fwd_dev_heads fwd_dev_heads_of(const arch_config *c, kv_types t);
/* What the layer that runs is like. */
fwd_dev_kind *fwd_dev_kind_at(const fwd_rows *r, int64_t layer);
/* The kinds of layers from `first` on, the most that a step can stage, and the chunks of attention: into f. */
void fwd_dev_size_stage(fwd_dev_ctx *f, const arch_config *c, int64_t first, const kv_opts *k,
                        const fwd_opts *o);
/* Scratch of the largest product of w. */
size_t fwd_dev_products_scratch(const dev *d, const model *w, const fwd_opts *o);
/* Floats of a row of r->qkv that the pass makes room for itself: q, k and v of an architecture that
 * has them apart are one product where their weights were joined (model_dev.c). */
int64_t fwd_dev_joined_width(const arch_config *c);
size_t fwd_dev_done_bytes(const fwd_dev_ctx *f); /* of f->attn_done */

/* f->widen of kinds, types and block_size, whatever the device: what a step may stage for it; then the buffer's
 * bytes; then, on this device, whether it is needed. */
size_t fwd_dev_widen_size(fwd_dev_ctx *f, int64_t len, const fwd_opts *o);
size_t fwd_dev_widen_bytes(const fwd_dev_ctx *f);
void fwd_dev_widen_open(fwd_dev_ctx *f, bool both_ways);
/* Of a step: before its plans, with its tables, and before the attention of a layer, whose cache a is then told. */
void fwd_dev_widen_begin(fwd_dev_ctx *f, const fwd_batch *b, const arch_config *c);
void fwd_dev_widen_tables(fwd_dev_ctx *f, const fwd_batch *b);
void fwd_dev_widen(fwd_dev_ctx *f, const fwd_dev_kind *k, dev_attn_args *a);

/* Layers come after the last that all rows go through. */
static inline bool fwd_dev_packs(const arch_config *c) { return fwd_last_maker(c) < c->layers - 1; }

/* n bytes that go up with this step: where they will be. */
static inline void *fwd_dev_stage(fwd_dev_ctx *f, const void *host, size_t n)
{
    const size_t at = f->staged;
    assert(at + n <= f->stage_bytes);
    if (n) memcpy(f->stage + at, host, n);
    f->staged = lq_round_up(at + n, FWD_DEV_ALIGN);
    return f->stage_on + at;
}

static inline int64_t fwd_mask_words(int64_t vocab) { return lq_ceil_div(vocab, 32); }

static inline dev_weight fwd_dev_weight(const mm_weight *w)
{
    return (dev_weight){ w->t, tiles_shape(&w->t.scheme, w->t.N, w->t.K) };
}

#endif
