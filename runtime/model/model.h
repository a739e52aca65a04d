/* runtime/model/model.h - a model ready to run: weights in the kernels' layout, norms, rope tables.
 *
 * Loads from any source (formats/source/source.h); weights that are stored in the kernels' layout
 * are used from the map, others are repacked in parallel. The source must stay open as long as the
 * model. */
#ifndef LLMQ_RUNTIME_MODEL_MODEL_H
#define LLMQ_RUNTIME_MODEL_MODEL_H

#include "base/comm.h"
#include "formats/source/source.h"
#include "kernels/core/pool.h"
#include "kernels/device.h"
#include "kernels/mm.h"

typedef struct {
    mm_weight w;
    const float *bias; /* [N] or NULL */
    bool present;
    size_t whole; /* bytes in tiles of what all ranks have of it; 0: this one has all */
} model_linear;

/* A vector role: a norm's weights and bias, sinks, ...; NULL: none. Of a norm: what is added to its
 * weights, and to the mean square or variance. Of R_ATTN_JOIN and R_MLP_JOIN: w what y is times, bias what x is, and before what is
 * added; of R_EMBED_BY w and bias. */
typedef struct {
    const float *w, *bias;
    const float *before; /* what the norm reads is times these; NULL: it is not */
    float offset, eps;
} model_vector;

/* Experts of a role that are one product on a device: those that can be of one group (dev.h); or heads. */
typedef struct model_experts model_experts;
typedef struct model_ngrams model_ngrams; /* runtime/model/ngrams.h */
struct model_experts {
    model_experts *next; /* those of another scheme */
    dev_weight w;        /* without planes; n_out the largest */
    void *parts;         /* on the device */
};

enum { MODEL_DIST = 128 }; /* distances from there on share a bucket of R_DIST_BIAS */
/* Of model.dist_bias, for the heads of one of so many ranks. */
static inline size_t model_distances_bytes(const arch_config *c, int ranks)
{
    const bool biases = c->dist_buckets && !c->dist_far;
    return biases ? (size_t)(c->heads / ranks * (2 * MODEL_DIST + 1)) * sizeof(float) : 0;
}

/* All by role; what the layer lacks is zero. */
typedef struct {
    model_vector vec[ARCH_N_ROLES];
    model_linear lin[ARCH_N_ROLES]; /* ARCH_LINEAR, and ARCH_MATRIX of a layer (routers) */
    model_linear *expert[ARCH_N_EXPERT_ROLES]; /* [role - R_EXPERT_GATE][experts], or NULL */
    const float *dist_bias;                    /* the model's */
    const int32_t *dist_row;                   /* likewise, or of R_REL the layer's part of it */
    float diff,
        diff_start; /* what the second of a pair of heads counts, taken off; without R_DIFF_* */
    mm_weight *
        cca; /* [heads + kv_heads] R_CCA_HEADS: of each head [head_dim, head_taps * head_dim]; else NULL */
    mm_weight *mix_x,
        *mix_step; /* [mix_heads] of each R_MIX_X and R_MIX_STEP, of NAME_HEADS; else NULL */
    mm_weight *dist_k,
        *dist_q;          /* [heads] keys and queries of R_DIST_EMBED (distance.h); NULL: none */
    model_ngrams *ngrams; /* or NULL */
    model_linear *stream_out;                 /* [streams - 1] of the last layer, or NULL */
    model_experts *sets[ARCH_N_EXPERT_ROLES]; /* on a device, the same by scheme */
    model_experts absorbed[2]; /* there, in place of R_KV_B, its halves by heads (absorb.h): k, v */
} model_layer;

typedef struct model_on model_on;
typedef struct model_part model_part;
typedef struct {
    model_on *on;           /* where it runs; NULL: on the CPU */
    model_part *part;       /* what this process has of it (part.h); NULL: all */
    const arch_config *cfg; /* borrowed from the source; with a part, the sizes of that */
    src_source *src;        /* borrowed */
    qt_tensor embed;        /* [V, embed_dim], any scheme, portable: rows are read by qt_dequant */
    qt_tensor pos_embed;    /* likewise; N = 0: none */
    qt_tensor ple_embed;    /* [ple_vocab, layers * ple_dim], likewise */
    model_linear ple_proj;
    model_vector ple_norm;
    model_linear *stream_in; /* [streams - 1], or NULL */
    const float *pos_freq;   /* [hidden / 2] of sinusoidal positions; NULL: none */
    float *score,
        *pooler; /* [labels, hidden] of HEAD_LABELS, [hidden, hidden] of arch_scorer; else NULL */
    const float *score_bias, *pooler_bias; /* of each, or NULL */
    double *pooled;                        /* [hidden] model_score's, with pooler */
    model_vector pool_norm;
    float *type_embed;      /* [types, hidden] of the first type and the second; else NULL */
    const float *dist_bias; /* [heads][2 MODEL_DIST + 1] for attn_args, of layers; NULL: none */
    float *dist_embed;      /* [arch_dist_rows, hidden], normed; NULL: none */
    const int32_t *
        dist_row; /* [2 dist_far + 1] its row of key - query, for attn_args, or of R_REL [2 rel_extent + 1] how
                              far; NULL: none */
    model_vector embed_by; /* x = w x + bias */
    model_vector embed_norm, final_norm, head_norm;
    model_linear proj_in, proj_out; /* present: OPT's */
    model_vector mtp_embed_norm, mtp_hidden_norm;
    model_vector
        mtp_states_norm;   /* [3 * target_hidden] EAGLE-3.1: of what mtp_proj reads; w NULL: none */
    model_linear mtp_proj; /* present: this is an MTP head (model_load_mtp) or an EAGLE-3 draft */
    const int32_t *drafted; /* [draft_vocab] EAGLE-3: the ids that its head's rows are; else NULL */
    model_linear head;
    const float *head_factors; /* [vocab] on logits: 1 / length of the head's rows; NULL: none */
    model_layer *layers;
    lq_arena arena; /* f32 norms and biases; repacked weights that are not in layer_arenas */
    /* What each layer had repacked, and after the last the head: [layers + 1], or NULL. On
     * a device it is given back (model_to_device). */
    lq_arena *layer_arenas;
    size_t weight_bytes; /* read per token (all linears and the head; of experts those used), by
                            all ranks together */
} model;

/* A device's part of a model. The weights of the layers from `first` on, final norm and head, in a
 * device's memory: linears and vectors of w point there. w.embed too, where rows can be looked up
 * there and no layer is left to the CPU; else its N is 0. The host has given its copies back: of
 * those layers and of the head the model itself has what w has.
 *
 * Of several devices (runtime/model/rank.h) each has an on of its own, of all layers, in w what it has of
 * each, and in `own` the sizes of that. The model then has no weights left. */
struct model_on {
    dev d;
    model w;
    int64_t first;
    int rank, ranks;
    model_on *next;  /* the next rank's; NULL: none */
    dev_link *link;  /* the first rank's, where there are others */
    bool rows;       /* dense weights of layers are in rows there, for cuBLAS (dev_in_rows) */
    bool int8, half; /* of model_share */
    bool eager;      /* of model_share, as is note */
    void (*note)(const char *what, const char *text);
    arch_config own; /* w.cfg of several ranks; its sizes are in w.arena */
    char text[96];   /* the device's name, and how many layers or devices where that is not all */
    void **mem;      /* [n_mem], cap */
    int64_t n_mem, cap;
    size_t bytes;
};

/* Load everything. */
lq_status model_load(model *m, src_source *src, pool *p, const lq_job *job, lq_err *err);
/* Of several processes, which all call it: each has its part (part.h). c of NULL: model_load. */
lq_status model_load_part(model *m, src_source *src, comm *c, pool *p, const lq_job *job,
                          lq_err *err);
/* The MTP head of m, from src_mtp; embedding and output head are those of m, which stays. Freed as a
 * model, before m. */
lq_status model_load_mtp(model *head, const model *m, src_source *src, pool *p, lq_err *err);
/* Of a head whose frame is loaded: what x is made of, and its layer. */
lq_status model_load_reader(model *head, pool *p, lq_err *err);
/* An EAGLE-3 draft for m from its checkpoint; without an embedding of its own it has m's. As model_load_mtp.
 * LQ_EVALUE: it is for another model. */
lq_status model_load_eagle(model *draft, const model *m, src_source *src, pool *p, lq_err *err);
/* Is it for a model of this config? Else LQ_EVALUE, LQ_EUNSUPPORTED. */
lq_status model_eagle_fits(const arch_config *draft, const arch_config *m, lq_err *err);
/* The layers of m whose inputs it reads. LQ_EVALUE: m has fewer. */
lq_status model_eagle_layers(int64_t at[3], const arch_config *draft, const arch_config *m,
                             lq_err *err);
/* Load what comes before and after the layers, but for the head; layers come and go one by one
 * (calibration in bounded memory). */
lq_status model_load_frame(model *m, src_source *src, pool *p, lq_err *err);
/* And the head, where logits are wanted. After an error model_free is the caller's. */
lq_status model_load_head(model *m, pool *p, lq_err *err);
/* Again after its head has become another. */
lq_status model_head_lengths(model *m, lq_err *err);
/* LQ_EUNSUPPORTED: it has no words to choose from (arch_head). */
lq_status model_check_words(const arch_config *c, lq_err *err);
/* The scores [labels] of HEAD_LABELS, of the row that they are made of, normed: the last, or what arch_scorer says. One
 * thread at a time. */
void model_score(const model *m, const double *hidden, double *scores);
/* One layer into its own arena; free the arena to drop it. */
lq_status model_load_layer(model_layer *l, const model *m, int64_t layer, lq_arena *a, pool *p,
                           lq_err *err);
/* A table of n-grams, or part of one (-1: it is whole), in the place of the source's; what it points to stays the caller's. */
void model_put_ngrams(model_layer *l, int64_t part, const qt_tensor *t);
/* A shape made in memory, for `bench model`: needs no source. cfg is owned by the model. "1.1b":
 * hidden 2048, 22 layers, 32/4 heads, ffn 5632, vocabulary 32000, all in one scheme;
 * "llama-3.1-8b": 4096, 32, 32/8, 14336, 128256 and a bf16 head; "tiny": to see that all of it
 * runs. */
extern const char *const model_shape_names[]; /* ends with NULL */
const char *model_shape_title(int which);
lq_status model_builtin(model *m, int which, const qt_scheme *s, pool *p, lq_err *err);

/* Which layers a device gets: the last so many (or all: 0), and with them final norm and head; with
 * all of them the embedding too, where its rows can be looked up there. */
enum { MODEL_ALL_LAYERS = 0, MODEL_AUTO_LAYERS = -1 };
typedef struct {
    int64_t layers;       /* AUTO: as many as fit when this is left for other things: */
    size_t more;          /* ... in all, */
    size_t more_layer;    /* and for each layer that is there */
    int ranks;            /* devices that share all layers, from the named one on; 0: one */
    bool int8;            /* MM_I8 is that on the device too; else it is MM_BF16 there */
    bool half;            /* no pass is in MM_F32: what is made of codes (absorb.h) may be f16 */
    bool eager;           /* each operation of a step is launched by itself, always */
    bool batch_invariant; /* a row's bits depend on its sequence alone (dev.batch_invariant) */
    bool spare;           /* any number of layers has to leave `more` and `more_layer`s too */
    /* What is found while it runs, from any thread; may be NULL. */
    void (*note)(const char *what, const char *text);
} model_share;
/* What a device needs of a model: [L + 1] of each layer's weights and vectors; [L]: what is there
 * with any of them; and what the embedding adds where it is to go there with all of them. */
typedef struct {
    const size_t *layer;
    int64_t L;
    size_t embed;
    int64_t least; /* of layers there, if any are: model_least_layers */
} model_sizes;
/* Layers on a device at least, where the last ones read K and V of others: those with them; else 0. */
int64_t model_least_layers(const arch_config *c);
/* AUTO of a device with so much room; 0: none fits. */
int64_t model_fit(const model_sizes *z, const model_share *s, size_t room);
/* Bytes there of the last n layers and all that goes with them; of none 0. */
size_t model_size_on(const model_sizes *z, int64_t n);
/* *n: the layers of `share` in so much room of a device, or of each of so many. Errors: as
 * model_to_device, of which this is the choice. */
lq_status model_choose_layers(int64_t *n, const model_sizes *z, const model_share *share,
                              const char *name, int ranks, size_t room, lq_err *err);

/* Copy weights to the device that `want` names ("cuda", "cuda:1": kernels/device.h), or to so many
 * from it on, and give the host's copy of them back; what is opened for m afterwards works there.
 * After an error m is on the CPU, as it was: LQ_EUNSUPPORTED "not on cuda yet: ...", or what
 * devices cannot share (rank.h); LQ_EDEVICE; LQ_ENOMEM names bytes wanted and left, and how many
 * layers would fit. More layers than there are: all. */
lq_status model_to_device(model *m, const char *want, const model_share *share, lq_err *err);
/* m's MTP head or EAGLE-3 draft goes where all of m is, on one device; what it has of m, embedding and output head, is there
 * already. It leaves before m does. Errors: as model_to_device. */
lq_status model_join_device(model *head, const model *m, lq_err *err);
static inline dev *model_dev(const model *m) { return m->on ? &m->on->d : NULL; }
/* The first layer that is there; all of the CPU's: 0. */
static inline int64_t model_first_on(const model *m) { return m->on ? m->on->first : 0; }
static inline int model_ranks(const model *m) { return m->on ? m->on->ranks : 1; }
const char *model_device(const model *m); /* "cpu", "NAME", "NAME, 3 of 8 layers", "NAME x 2" */
void model_leave_device(model *m);        /* for good; model_free does */
void model_free(model *m);
/* Room for m->layers and their arenas. */
lq_status model_cut_layers(model *m, lq_err *err);
/* Read per token: all linears as packed, of the experts those used, and the head: weight_bytes. */
size_t model_count_bytes(const model *m);
/* Operations (2 per product) of a token's matrix products in all layers, and in the head. */
double model_row_flops(const model *m);
double model_logits_flops(const model *m);

/* Embedding rows of ids into x [T, embed_dim] f32, scaled. Ids were checked. */
void model_embed(const model *m, float *x, const int32_t *ids, int64_t T);
/* Its rows that were read need not stay in memory: their pages are read again from the file. */
void model_drop_embed(const model *m);
/* LQ_EVALUE: `positions` of them are more than the model's table of learned ones has. */
lq_status model_check_positions(const model *m, int64_t positions, lq_err *err);
/* LQ_EUNSUPPORTED: what this architecture has that no device table does yet. */
enum { MODEL_KINDS = 8 }; /* of layers by heads and window, on a device at most */
lq_status model_check_device(const arch_config *c, lq_err *err);

#endif
