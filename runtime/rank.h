/* runtime/rank.h - what each of several devices has of a model (tensor parallelism).
 *
 *              outputs (rows)                    inputs
 *   q, k, v    its heads, its KV heads           all of x
 *   o          all                               its heads        the sum of all ranks is the
 * output gate, up   its part of the MLP's width       all of x down       all its part         the
 * sum of all ranks is the output head       its part of the vocabulary        all of x         the
 * parts lie side by side
 *
 * Each rank's keys and values are of its own heads. Norms, the embedding and what stands before the
 * head are whole on every rank, and so is x: after each sum all ranks hold the same bytes. Inputs
 * are cut between groups of the weights' scales alone (formats/tiles.h): no code is changed. */
#ifndef LLMQ_RUNTIME_RANK_H
#define LLMQ_RUNTIME_RANK_H

#include "formats/arch.h"
#include "formats/tiles.h"

/* LQ_EUNSUPPORTED: heads, KV heads or the MLP's width are no multiple of `ranks`; or what is not
 * divided yet (experts, latent attention, a norm of all heads together), by name. */
lq_status rank_check(const arch_config *c, int ranks, lq_err *err);
/* The config of each rank: its heads, KV heads and MLP. Borrows from c. */
arch_config rank_config(const arch_config *c, int ranks);

enum { RANK_RANGES = 3 };
typedef struct {
    tile_rows rows[RANK_RANGES];
    int n;
    int64_t k0, k1; /* inputs */
    bool bias;      /* of a sum's parts the first rank's has it */
} rank_part;
/* Of a role's matrix the part of one rank; false: it has all of it. */
bool rank_part_of(rank_part *p, const arch_config *c, arch_role r, int rank, int ranks);
/* Part `rank` of n things in order, the first of it. */
static inline int64_t rank_begin(int64_t n, int rank, int ranks) { return n * rank / ranks; }

#endif
