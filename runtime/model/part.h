/* runtime/model/part.h - what each of several processes has of a model on the CPU (tensor parallelism over ranks,
 * base/comm.h).
 *
 *              outputs (rows)                          inputs
 *   q, k, v    its heads, and the KV heads they read   all
 *   o, down    its part of what comes out              all
 *   gate, up   its part of the width                   all
 *   head       its part of the vocabulary              all
 *
 * gate, up and down are the MLP's, the shared MLP's and each expert's. No inputs are divided: an output is summed by
 * one rank, in the order in which a single process sums it, so answers are the same bytes for any number of ranks
 * (docs/design/0017-ranks-serving.md). What o and down read is put together on every rank first, and so is what they gave
 * (forward_parts.c). Norms, the embedding, routers and the small projections of latent attention are whole on every
 * rank, and so is x.
 *
 * Parts begin at whole tiles, so that weights that are stored in tiles are used where they lie. Heads are divided by
 * KV heads, in unequal parts where they must be; of more ranks than KV heads several have the same one, and a part of
 * its queries each. */
#ifndef LLMQ_RUNTIME_MODEL_PART_H
#define LLMQ_RUNTIME_MODEL_PART_H

#include "base/comm.h"
#include "runtime/model/model.h"

enum { PART_RANKS = 64 }; /* at most */

/* Where each rank's part begins of things that are in their order; [ranks]: how many they are. */
typedef struct {
    int64_t at[PART_RANKS + 1];
} part_cuts;

/* Where layers have different sizes each set of them is divided by itself. */
struct model_part {
    comm *c; /* borrowed; NULL: only sizes are asked for */
    int rank, ranks;
    const arch_config *whole;
    arch_config
        own; /* with the heads, KV heads and widths of this rank; model.cfg is it, or a copy */
    part_cuts heads, kv_heads, hidden, latent, ffn, expert_ffn, shared_ffn, words;
    const model_part **of_layer; /* [layers]; NULL: all layers have one size */
};

/* What the ranks have of a layer (-1: of none). */
static inline const model_part *part_at(const model_part *p, int64_t layer)
{
    return layer >= 0 && p->of_layer ? p->of_layer[layer] : p;
}

/* Processes that share the model; 1: this one has all. */
static inline int model_processes(const model *m) { return m->part ? m->part->ranks : 1; }

/* LQ_EUNSUPPORTED: so many ranks cannot have it, and how many can; or what is not divided yet, by name. */
lq_status part_check(const arch_config *c, int ranks, lq_err *err);
/* Borrows `whole` and a; part_check has accepted. The last rank has most of anything. LQ_ENOMEM. */
lq_status part_init(model_part *p, const arch_config *whole, int rank, int ranks, lq_arena *a,
                    lq_err *err);
/* Of a layer's role p is part_at's. */
/* Outputs that this rank has of a role's N. */
int64_t part_outputs(const model_part *p, arch_role r, int64_t N);
/* This rank's rows of a role's matrix where they are n0..n1; false: it has all of them, or several such ranges. */
bool part_range(const model_part *p, arch_role r, int64_t *n0, int64_t *n1);
/* This rank's rows of a role's matrix, as mm_pack; w may be those of part_range already. */
lq_status part_pack(mm_weight *out, const model_part *p, arch_role r, const qt_tensor *w,
                    lq_arena *a, pool *threads, lq_err *err);
/* This rank's part of a vector that has a number for each row of a role's matrix (bias), or is one of a head. NULL
 * stays NULL. */
lq_status part_bias(const float **v, const model_part *p, arch_role r, lq_arena *a, lq_err *err);
void part_vector(model_vector *v, const model_part *p, arch_role r);
/* All ranks have loaded theirs (s: how it went here), and it is the same model, of the same version and kernels.
 * Errors: s; LQ_EVALUE: they differ; another rank's, by its number. */
lq_status part_agree(const model *m, comm *c, lq_status s, lq_err *err);

#endif
